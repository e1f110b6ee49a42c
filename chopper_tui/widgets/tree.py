"""The tree at the left of a large screen: the scope, those around it, and those above."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

import numpy as np
from textual import events

from chopper_core.model.run import Run
from chopper_core.model.view import View, enter, with_view
from chopper_core.render.cells import crumb, display_name, pad
from chopper_core.util.escape import clean
from chopper_core.views.frame import Frame
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
Row = tuple[View, Line]


class ScopeTree(DrawnPane, Listing):
    """Each level down to the scope's own, with the time of every place: Enter and a click go there.

    It is a second cursor, at another level than the table's.
    """

    cursor = 0
    _views: Sequence[View] = ()

    def show(self, run: Run, view: View) -> None:
        self.draw(run, view)

    @property
    def rows(self) -> int:
        return len(self._views)

    @property
    def place(self) -> View | None:
        """What is under the cursor, while it has the keys."""
        return self._views[self.cursor] if self.has_keys and self._views else None

    def show_cursor(self) -> None:
        self.redraw()

    def move(self, rows: int) -> None:
        self.move_to(self.cursor + rows)

    def move_to(self, row: int) -> None:
        self.cursor = max(min(row, min(self.rows, self.size.height) - 1), 0)
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        drawn = [*self.drawn]
        if self.has_keys and self.cursor < len(drawn):
            (_, *rest) = drawn[self.cursor]
            drawn[self.cursor] = [(self.glyphs.cursor, "chosen"), *((t, "cursor") for t, _ in rest)]
        return drawn

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.gutter.top
        if 0 <= y < self.rows:
            self.explorer.give_keys(self)
            self.move_to(y)
            self.explorer.action_perform("enter")

    def drawing(
        self, width: int, height: int, check: Check, run: Run, view: View
    ) -> Sequence[Pieces]:
        plain = View(view.run, (), view.order, overrides=view.overrides)
        scopes = [plain]
        for label in view.path:
            scopes.append(enter(scopes[-1], label))
        most = max((height - len(scopes)) // len(scopes), _LEAST)
        name = PurePath(run.name.rstrip("/")).name or run.name
        rows: list[Row] = [(plain, self._row(0, clean(name), np.nan, width))]
        after: list[Row] = []
        for depth, scope in enumerate(scopes):
            check()
            if scope.is_leaf:
                break
            frame = query(run, with_view(scope, ""))
            here = frame.labels.index(view.path[depth]) if depth < len(view.path) else -1
            first = min(max(here - most // 2, 0), max(len(frame) - most, 0))
            shown = range(first, min(first + most, len(frame)))
            drawn = self._rows(frame, shown, depth + 1, width, here)
            room = height - len(rows) - len(drawn) - len(after)
            if here < 0 and 0 < self._inside(run, [each for each, _ in drawn]) <= room:
                # Where all that is inside of the last level fits, too, it is in sight.
                drawn = [
                    row
                    for each in drawn
                    for row in (each, *self._rows_inside(run, each[0], depth + 2, width))
                ]
            left = len(frame) - len(shown)
            rest = f"{'  ' * (depth + 1)}{left} more"
            more: list[Row] = [(scope, [(f"   {rest}", "dim")])] if left else []
            split = here - first + 1 if here >= 0 else len(drawn)
            rows += drawn[:split]
            after = [*drawn[split:], *more, *after]
        rows += after
        places = [place for place, _ in rows]
        if places != self._views:
            self._views = places
            self.cursor = next((at for at, each in enumerate(places) if each.path == view.path), 0)
        self.name_panel([("scope", "strong")], "ms per step and GPU")
        return [line for _, line in rows]

    def _inside(self, run: Run, places: Sequence[View]) -> int:
        """The number of nodes one level further in; 0: too many activities to ask for them."""
        if len(run.table) > _MOST_OPENED or any(each.is_leaf for each in places):
            return 0
        return sum(len(run.tree(each.order).children(each.path).labels) for each in places)

    def _rows_inside(self, run: Run, place: View, depth: int, width: int) -> list[Row]:
        frame = query(run, with_view(place, ""))
        return self._rows(frame, range(len(frame)), depth, width)

    def _rows(
        self, frame: Frame, shown: range, depth: int, width: int, here: int = -1
    ) -> list[Row]:
        def name(place: int) -> str:
            return display_name(crumb(frame.level, frame.labels[place]), frame.level)

        times = (frame.elapsed_ns / 1e6).tolist()
        return [
            (frame.target(at), self._row(depth, name(at), times[at], width, is_open=at == here))
            for at in shown
        ]

    def _row(self, depth: int, name: str, ms: float, width: int, *, is_open: bool = False) -> Line:
        glyphs = self.glyphs
        sign = glyphs.spelled("▾" if is_open or not depth else "▸")
        figure = short_number(ms).rjust(_FIGURE)
        room = width - 1 - _FIGURE - 1
        text = fit(f"{'  ' * depth}{sign} {name}", room, glyphs)
        return [(" ", "text"), (pad(text, room), "strong" if is_open else "text"), (figure, "dim")]
