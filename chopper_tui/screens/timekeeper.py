"""The actions along time: zoom, pan, the cursor, the mark, the next collective."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from chopper_core.model.charts import Lanes
from chopper_core.model.run import interval_of, scope_of
from chopper_core.model.table import Kind
from chopper_core.model.view import with_view
from chopper_core.model.window import (
    ALL_TIME,
    SHORTEST_NS,
    Interval,
    Window,
    fitted,
    panned,
    parse_time,
    pointing,
    stepped,
    zoomed,
)
from chopper_core.render.cells import cell_width, clean, display_name, elide
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views.find import next_named
from chopper_tui.actions.action import TIMELINE
from chopper_tui.background import away
from chopper_tui.draw.timeline import bins_of
from chopper_tui.history import Place
from chopper_tui.screens.asker import Asker, key_of
from chopper_tui.widgets.picture_pane import PicturePane
from chopper_tui.widgets.status import Status
from chopper_tui.widgets.track_chart import SignalPane

_FACTOR: Final = 2.0
_PAN: Final = 0.5
_MANY: Final = 500_000
"""Activities whose order is not there at once."""
_BINS: Final = 100
"""Cells of the time where the lanes are not on the screen."""


class Timekeeper(Asker):
    """An asker that moves along time."""

    @property
    def is_along_time(self) -> bool:
        """Whether the view shows a window of time."""
        return self._lanes() is not None

    def follow(self) -> None:
        """Say what the cursor points at."""
        if self._lanes() is not None:
            self._show_pictures()
            self.query_one(Status).point(self._pointed_at())

    def on_picture_pane_clicked(self, event: PicturePane.Clicked) -> None:
        """A click puts the cursor there."""
        lanes = self._lanes()
        if lanes is None:
            return
        if event.name in lanes.lanes and event.name in self.frame.labels:
            self.table.move_to(list(self.frame.labels).index(event.name))
        time = self._time_of(lanes, event.cell)
        if time is not None:
            self.say("")
            self.take(lambda: self._show_stretch(pointing(self._seen(), time)))

    def on_picture_pane_turned(self, event: PicturePane.Turned) -> None:
        """The wheel zooms around the pointer."""
        lanes = self._lanes()
        time = None if lanes is None else self._time_of(lanes, event.cell)
        if time is not None:
            factor = 1 / _FACTOR if event.up else _FACTOR
            self.say("")
            self.take(lambda: self._zoom_around(time, factor))

    async def do_time_left(self, _: str) -> None:
        """The cursor a cell earlier."""
        await self._move(lambda seen, bins: stepped(seen, -1, bins))

    async def do_time_right(self, _: str) -> None:
        """The cursor a cell later."""
        await self._move(lambda seen, bins: stepped(seen, 1, bins))

    async def do_pan_left(self, _: str) -> None:
        """Half a window earlier."""
        await self._move(lambda seen, _: panned(seen, -_PAN))

    async def do_pan_right(self, _: str) -> None:
        """Half a window later."""
        await self._move(lambda seen, _: panned(seen, _PAN))

    async def do_zoom_in(self, _: str) -> None:
        """Half the time."""
        await self._move(lambda seen, _: zoomed(seen, 1 / _FACTOR))

    async def do_zoom_out(self, _: str) -> None:
        """Twice the time."""
        await self._move(lambda seen, _: zoomed(seen, _FACTOR))

    async def do_whole(self, _: str) -> None:
        """All of the scope's time; the cursor and the mark stay."""
        seen = self._seen()
        window = replace(ALL_TIME, at_ns=seen.at_ns, mark_ns=seen.mark_ns)
        await self.change(replace(self.view, window=window))

    async def do_fit(self, _: str) -> None:
        """What is measured, or else what is under the cursor, as wide as the screen."""
        seen = self._seen()
        if seen.mark_ns is not None and seen.mark_ns != seen.at_ns:
            ends = sorted((seen.mark_ns, seen.at_ns))
            await self._show_stretch(fitted(seen, ends[0], ends[1]))
            return
        from chopper_core.views import timeline

        found = await away(timeline.under_cursor, self.run, self.view, self._lane())
        if found is None:
            raise UsageError("nothing runs on this lane at the cursor")
        await self._show_stretch(fitted(seen, *found))

    async def do_next_collective(self, _: str) -> None:
        """The next start of a collective on this GPU."""
        await self._jump(1, Kind.COMM, "collective on this GPU")

    async def do_previous_collective(self, _: str) -> None:
        """The start of a collective before."""
        await self._jump(-1, Kind.COMM, "collective on this GPU")

    async def do_next_activity(self, _: str) -> None:
        """The next start on the lane."""
        await self._jump(1, None, "activity on this lane")

    async def do_previous_activity(self, _: str) -> None:
        """The start before on the lane."""
        await self._jump(-1, None, "activity on this lane")

    def do_find(self, argument: str) -> Awaitable[None] | None:
        """A name anywhere; along time the next activity that has it."""
        if argument and self.is_along_time:
            self.sought = argument
            return self._seek(1)
        return super().do_find(argument)

    async def do_next_hit(self, _: str) -> None:
        """The next row that matches; along time the next activity."""
        await (self._seek(1) if self.is_along_time else super().do_next_hit(_))

    async def do_previous_hit(self, _: str) -> None:
        """The row before that matches; along time the activity before."""
        await (self._seek(-1) if self.is_along_time else super().do_previous_hit(_))

    async def do_measure(self, _: str) -> None:
        """The mark at the cursor, or none."""
        seen = self._seen()
        mark = seen.at_ns if seen.mark_ns is None else None
        await self._show_stretch(replace(seen, mark_ns=mark))

    async def do_chart_in(self, _: str) -> None:
        """Half the time of the chart."""
        await self._chart_time(lambda seen: zoomed(seen, 1 / _FACTOR))

    async def do_chart_out(self, _: str) -> None:
        """Twice the time of the chart."""
        await self._chart_time(lambda seen: zoomed(seen, _FACTOR))

    async def do_chart_earlier(self, _: str) -> None:
        """The chart half of its time earlier."""
        await self._chart_time(lambda seen: panned(seen, -_PAN))

    async def do_chart_later(self, _: str) -> None:
        """The chart half of its time later."""
        await self._chart_time(lambda seen: panned(seen, _PAN))

    async def do_chart_whole(self, _: str) -> None:
        """The scope's time again."""
        self._need_chart()
        await self.change(replace(self.view, window=ALL_TIME))

    async def do_at(self, argument: str) -> None:
        """The cursor at a time."""
        if not argument:
            raise UsageError("at what time? :at 12.5ms, since the run's first activity")
        await self._show_stretch(pointing(self._seen(), parse_time("at", argument)))

    async def _move(self, step: Callable[[Interval, int], Interval]) -> None:
        seen = self._seen()
        moved = step(seen, self._bins())
        if moved == seen:
            raise UsageError("there is no more: this is all of the run's time")
        await self._show_stretch(moved)

    async def _chart_time(self, step: Callable[[Interval], Interval]) -> None:
        self._need_chart()
        seen = await away(self._charted)
        moved = step(seen)
        if (moved.from_ns, moved.to_ns) == (seen.from_ns, seen.to_ns):
            less = moved.length_ns == SHORTEST_NS
            raise UsageError("a chart shows no less" if less else "this is all of the run's time")
        window = Window(moved.from_ns, moved.to_ns)
        is_scope = (moved.from_ns, moved.to_ns) == scope_of(self.run, self.view)
        await self.change(replace(self.view, window=ALL_TIME if is_scope else window))

    def _charted(self) -> Interval:
        """What the chart shows, with the row under the cursor as what it is zoomed around."""
        seen, row = interval_of(self.run, self.view), self.table.cursor
        try:
            begin, end = scope_of(
                self.run, self.frame.target(row) if row < len(self.frame) else self.view
            )
        except ChopperError:
            # A row of the baseline alone has no time here.
            return seen
        begin, end = max(begin, seen.from_ns), min(end, seen.to_ns)
        return replace(seen, at_ns=(begin + end) // 2) if begin <= end else seen

    def _need_chart(self) -> None:
        if self.view.name:
            raise UsageError("this view has no chart of a signal over time; 1 and 2 have")
        if not any(chart.display for chart in self.query(SignalPane)):
            raise UsageError("no chart shown; try c, z or more room")

    async def _jump(self, step: int, kind: Kind | None, what: str) -> None:
        self._seen()
        from chopper_core.views import timeline

        found = await away(timeline.next_start, self.run, self.view, self._lane(), step, kind)
        if found is None:
            raise UsageError(f"there is no {what} {'after' if step > 0 else 'before'} the cursor")
        await self._point(found)

    async def _point(self, found: tuple[str, Interval]) -> None:
        """Show a lane at a time."""
        name, seen = found
        if name in self.frame.labels:
            self.table.move_to(list(self.frame.labels).index(name))
        await self._show_stretch(seen)

    async def _seek(self, step: int) -> None:
        text = self.sought
        if not text:
            raise UsageError("nothing was sought yet: f finds a name")
        found = await away(next_named, self.run, self.view, step, text)
        if found is None:
            where = "after" if step > 0 else "before"
            raise UsageError(f"no activity {where} the cursor matches {text!r}")
        await self._point(found)

    async def _ask(self, name: str) -> None:
        """Another question; the timeline's cursor begins where the row under the cursor does."""
        here = self.view
        asked = with_view(here, name)
        if name == TIMELINE and len(self.run.table) > _MANY:
            self.say("putting the activities in the order of time, once")
        is_first = name == TIMELINE and key_of(asked) not in self.left
        if is_first and not here.name and not here.is_leaf and self.table.rows:
            there = self.frame.target(self.table.cursor)
            if there.run == here.run:
                from chopper_core.views import timeline

                start = await away(timeline.start_of, self.run, there)
                window = replace(ALL_TIME, at_ns=start)
                self.left[key_of(asked)] = Place(replace(asked, window=window))
        await super()._ask(name)

    async def _show_stretch(self, seen: Interval) -> None:
        await self.change(replace(self.view, window=seen.window()))

    async def _zoom_around(self, time: int, factor: float) -> None:
        seen = self._seen()
        near = zoomed(replace(seen, at_ns=time), factor)
        await self._show_stretch(replace(near, at_ns=seen.at_ns))

    def _time_of(self, lanes: Lanes, cell: int) -> int | None:
        """The time in the middle of a cell of the picture."""
        bins = self._bins()
        if not 0 <= cell < bins:
            return None
        return lanes.seen.from_ns + (2 * cell + 1) * lanes.seen.length_ns // (2 * bins)

    def _lanes(self) -> Lanes | None:
        pictures = self.frame.charts
        return pictures[0] if pictures and isinstance(pictures[0], Lanes) else None

    def _lane(self) -> str:
        """The lane under the cursor."""
        if self.table.label is None:
            raise UsageError("there is no lane")
        return self.table.label

    def _seen(self) -> Interval:
        lanes = self._lanes()
        if lanes is None:
            raise UsageError("this is for the timeline; 2 opens it")
        return lanes.seen

    def _bins(self) -> int:
        lanes, pane = self._lanes(), self.query(PicturePane).first()
        if lanes is None or not pane.display:
            return _BINS
        return bins_of(lanes, pane.room)

    def _pointed_at(self) -> str:
        """What runs on the lane at the cursor, in a line; else what comes next."""
        if not self.table.rows:
            return ""
        name, lanes = self.table.label, self._lanes()
        assert lanes is not None and name is not None
        at = lanes.pointed[self.table.cursor]
        if at.kernel is None or at.duration_ns is None or at.start_ns is None:
            rest = "" if at.next_ns is None else f"; the next starts in {_time(at.next_ns)}"
            return f"{name}: nothing runs here{rest}"
        parts = []
        if at.operation is not None:
            parts.append(clean(at.operation))
        if at.layer is not None:
            parts.append(f"L{at.layer}")
        parts.append(f"{_time(at.duration_ns)} at {_time(at.start_ns)}")
        if at.mhz is not None:
            parts.append(f"{at.mhz:.0f} MHz")
        line = "  ".join(parts)
        room = max(self.size.width - cell_width(line) - 4, 8)
        return f"{line}  {elide(display_name(at.kernel, 'kernel'), room, self.table.glyphs)}"


def _time(ns: int) -> str:
    """A time in the unit that suits it."""
    if ns >= 1_000_000:
        return f"{ns / 1e6:.3f} ms"
    return f"{ns / 1e3:.3f} µs"
