"""The tree at the left of a large screen: the scope, those around it, and those above."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from msgspec.structs import replace
from textual import events

from chopper_core.model.run import Run
from chopper_core.model.table import UNLABELLED
from chopper_core.model.view import View, with_view
from chopper_core.render.cells import crumb, display_name, pad
from chopper_core.util.escape import clean
from chopper_core.views.query import query
from chopper_tui.draw.pieces import Line, Pieces, fit, short_number
from chopper_tui.widgets.chart_panes import Check, DrawnPane
from chopper_tui.widgets.pane import Listing

_FIGURE = 7
"""Cells of a time."""
_LEAST = 3
"""Places of a level that are shown at least."""
_MOST_OPENED = 1 << 20
"""Activities up to which a level that nobody asked for takes no time to speak of."""
_MOST_PLACES = 8
"""Places of a level that open by themselves, each at the cost of a query."""
Row = tuple[View, Line]


class ScopeTree(DrawnPane, Listing):
    """Each level down to the scope's own, with the time of every place: Enter and a click go there,
    → and ← open and close a place.

    It is a second cursor, at another level than the table's.
    """

    _views: Sequence[View] = ()
    _folded: frozenset[tuple[str, ...]] = frozenset()
    """Places that were opened or closed against what is open by itself: the path, and all inside of
    the scope where it fits."""
    _open: frozenset[tuple[str, ...]] = frozenset()
    """The places that are open now."""

    def show(self, run: Run, view: View) -> None:
        if self.content and view.order != self.content[1].order:
            self._folded = frozenset()
        self.draw(run, view, self._folded)

    @property
    def rows(self) -> int:
        return len(self._views)

    @property
    def place(self) -> View | None:
        """What is under the cursor, while it has the keys."""
        return self._views[self.cursor] if self.has_keys and self._views else None

    def show_cursor(self) -> None:
        self.redraw()

    def move_to(self, row: int) -> None:
        self.cursor = max(min(row, self.rows - 1), 0)
        self.redraw()

    def fold(self, *, is_open: bool) -> None:
        """Open or close the place under the cursor; a closed one's parent gets the cursor."""
        path = self._views[self.cursor].path
        if (path in self._open) != is_open and (is_open or path):
            self._folded ^= {path}
            self.draw(*self.content[:2], self._folded)
        elif is_open:
            self.move(1)
        else:
            paths = [each.path for each in self._views]
            self.move_to(paths.index(path[:-1]) if path[:-1] in paths else 0)

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        drawn = [*self.drawn]
        if self.has_keys and self.cursor < len(drawn):
            (_, *rest) = drawn[self.cursor]
            drawn[self.cursor] = [(self.glyphs.cursor, "chosen"), *((t, "cursor") for t, _ in rest)]
        return drawn[self._top :]

    @property
    def _top(self) -> int:
        return max(self.cursor + 1 - self.size.height, 0) if self.has_keys else 0

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.gutter.top + self._top
        if self._top <= y < self.rows:
            self.explorer.give_keys(self)
            self.move_to(y)
            self.explorer.action_perform("enter")

    def drawing(
        self, width: int, height: int, check: Check, run: Run, view: View, folded: frozenset[Any]
    ) -> Sequence[Pieces]:
        plain = View(view.run, (), view.order, overrides=view.overrides)
        depth = len(view.path)
        opened = {view.path[:at] for at in range(depth + 1)}
        most = max((height - depth - 1) // (depth + 1), _LEAST)
        scope = replace(plain, path=view.path)
        is_known = len(run.table) <= _MOST_OPENED and not scope.is_leaf
        within = self._within(run, scope)[:most] if is_known else []
        used = (most + 1) * depth + len(within)
        while 0 < len(within) <= _MOST_PLACES:
            # Where all that is inside of the scope's places fits, too, it is in sight.
            places, within = within, [row for each in within for row in self._within(run, each)]
            used += len(within)
            if within and used < height:
                opened |= {each.path for each in places if not each.is_leaf}
            else:
                break
        shown = frozenset(opened) ^ folded
        name = PurePath(run.name.rstrip("/")).name or run.name
        rows: list[Row] = [(plain, self._row(plain, clean(name), np.nan, width, shown))]
        rows += self._inside(run, plain, view, width, most, shown, check)
        places = [place for place, _ in rows]
        if places != self._views:
            before = self._views[self.cursor : self.cursor + 1] if self.has_keys else ()
            here = [each.path for each in before] + [view.path]
            self._views = places
            paths = [each.path for each in places]
            self.cursor = next((paths.index(each) for each in here if each in paths), 0)
        self._open = shown
        self.name_panel([("scope", "strong")], "ms per step and GPU")
        return [line for _, line in rows]

    def _within(self, run: Run, place: View) -> list[View]:
        if place.is_leaf:
            return []
        labels = run.tree(place.order).children(place.path).labels
        return [replace(place, path=(*place.path, label)) for label in labels]

    def _inside(
        self, run: Run, scope: View, view: View, width: int, most: int,
        shown: frozenset[Any], check: Check,
    ) -> Iterator[Row]:  # fmt: skip
        """The places of a scope and those inside of open ones: those around the path."""
        if scope.path not in shown or scope.is_leaf:
            return
        check()
        depth, frame = len(scope.path), query(run, with_view(scope, ""))
        is_on_path = view.path[:depth] == scope.path and depth < len(view.path)
        here = frame.labels.index(view.path[depth]) if is_on_path else 0
        first = min(max(here - most // 2, 0), max(len(frame) - most, 0))
        for at in range(first, min(first + most, len(frame))):
            place, ms = frame.target(at), float(frame.elapsed_ns[at]) / 1e6
            name = display_name(frame.labels[at], frame.level)
            # What is unlabelled has no room for the name of its level.
            name = name if name == UNLABELLED else crumb(frame.level, name)
            yield place, self._row(place, name, ms, width, shown)
            yield from self._inside(run, place, view, width, most, shown, check)
        if (left := len(frame) - most) > 0:
            yield scope, [(f"   {'  ' * (depth + 1)}{left} more", "dim")]

    def _row(self, place: View, name: str, ms: float, width: int, shown: frozenset[Any]) -> Line:
        glyphs, is_open = self.glyphs, place.path in shown
        sign = " " if place.is_leaf else glyphs.spelled("▾" if is_open else "▸")
        figure = short_number(ms).rjust(_FIGURE)
        room = width - 1 - _FIGURE - 1
        text = fit(f"{'  ' * len(place.path)}{sign} {name}", room, glyphs)
        return [(" ", "text"), (pad(text, room), "strong" if is_open else "text"), (figure, "dim")]
