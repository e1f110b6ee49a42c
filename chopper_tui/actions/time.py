"""In charts: zooming, panning, pointing and measuring along time, and walking cells and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.columns import metric_named
from chopper_core.model.charts import Chart, HeatMap, Icicle
from chopper_core.model.column_names import HEAT
from chopper_core.model.run import interval_of, scope_of
from chopper_core.model.table import Kind
from chopper_core.model.units import time_text
from chopper_core.model.view import (
    ALL_TIME,
    SHORTEST_NS,
    Interval,
    View,
    Window,
    at_level,
    fitted,
    panned,
    parse_time,
    pivot,
    pointing,
    stepped,
    with_view,
    zoomed,
)
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.grouping import distinct
from chopper_tui.actions.compare import refuse_of_set
from chopper_tui.draw import charts as drawing
from chopper_tui.draw.canvas import WHOLE
from chopper_tui.keymap import TIME, WALK, action, actions
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

_ZOOM: Final = 2.0
_NOT_SHOWN: Final = "no chart shown; try c, z or more room"
_ALMOST: Final = 0.99
"""Share of the scope from which the chart shows all of it."""

_timeline = partial(action, TIME, view="timeline")
_timelines = actions(TIME, view="timeline")


@_timeline("+", "w", title="Zoom in", hint="zoom", adds_up=True)
async def zoom_in(screen: Explorer, argument: str, presses: int) -> None:
    """Timeline: show half the time, around the cursor."""
    await _zoom(screen, 1 / _ZOOM, argument, presses)


@_timeline("-", "s", title="Zoom out", adds_up=True)
async def zoom_out(screen: Explorer, argument: str, presses: int) -> None:
    """Timeline: show twice the time, around the cursor."""
    await _zoom(screen, _ZOOM, argument, presses)


async def _zoom(screen: Explorer, factor: float, around: str, presses: int) -> None:
    if not around:
        await _move(screen, lambda seen: zoomed(seen, factor), presses)
        return
    seen = interval(screen)
    near = zoomed(replace(seen, at_ns=parse_time("at", around)), factor)
    await _show(screen, replace(near, at_ns=seen.at_ns))


def _can_pan(screen: Explorer) -> bool:
    lanes = screen.lanes
    return lanes is None or any(panned(lanes.seen, by) != lanes.seen for by in (-0.5, 0.5))


@actions(TIME, view="timeline", can=_can_pan, adds_up=True)("""
    pan_left: -0.5 | a | Pan left
        Timeline: move the window half its length earlier.
    pan_right: 0.5 | d | Pan right | pan
        Timeline: move the window half its length later.
    """)
async def _pan(screen: Explorer, share: float, presses: int) -> None:
    await _move(screen, lambda seen: panned(seen, share), presses)


@actions(TIME, view="timeline", adds_up=True)("""
    time_left: -1 | left h | Cursor left
        Timeline: move the cursor a cell earlier.
    time_right: 1 | right l | Cursor right | cursor
        Timeline: move the cursor a cell later.
    """)
async def _move_cursor(screen: Explorer, cells: int, presses: int) -> None:
    await _move(screen, lambda seen: stepped(seen, cells, screen.time_cells), presses)


@actions(TIME, view="timeline", adds_up=True)("""
    next_collective: 1 | c | Next collective | collective
        Timeline: move the cursor to the next start of a collective on the lane's GPU.
    previous_collective: -1 | C | Previous collective
        Timeline: move the cursor to the previous start of a collective on the lane's GPU.
    """)
async def _to_collective(screen: Explorer, step: int, presses: int) -> None:
    await _jump(screen, step, presses, Kind.COMM, "collective on this GPU")


@actions(TIME, view="timeline", adds_up=True)("""
    previous_activity: -1 | , | Previous activity
        Timeline: move the cursor to the previous start on the lane.
    next_activity: 1 | . | Next activity | activity
        Timeline: move the cursor to the next start on the lane.
    """)
async def _to_activity(screen: Explorer, step: int, presses: int) -> None:
    await _jump(screen, step, presses, None, "activity on this lane")


@_timelines("""
    next_gap: 1 | J | Next gap and its host | gap
        Timeline: move the cursor to the next gap on the lane's GPU, of those that are longer than
        what is usual between launches, or else the longest; below the lanes stands what the host
        does in it. From elsewhere: open the timeline at the longest gap of the scope.
    previous_gap: -1 | K | Previous gap and its host
        Timeline: move the cursor to the previous gap on the lane's GPU.
    """)
async def _to_gap(screen: Explorer, step: int) -> None:
    from chopper_core.analyses import gaps

    run, view, lanes = screen.run, screen.view, screen.lanes
    if lanes is None:
        refuse_of_set(screen)
        longest = await run_in_thread(gaps.longest_gap, run, view)
        if longest is None:
            raise UsageError("no GPU is idle in the scope")
        await screen.open_evidence(gaps.timeline_of_gap(run, view, longest))
        return
    gpu = int(lanes.owners[lanes.lanes.index(_lane(screen))].removeprefix("GPU "))
    seen = lanes.seen
    args = run.origin_ns + seen.at_ns, step, seen.length_ns
    found = await run_in_thread(gaps.gap_to_stop_at, run, gpu, *args)
    if found is None:
        longest = await run_in_thread(gaps.longest_of_gpu, run, gpu)
        if longest is None:
            raise UsageError(f"GPU {gpu} is never idle between two activities")
        at_ns = longest.begin_ns - run.origin_ns
        raise UsageError(
            f"GPU {gpu} isn't idle {'after' if step > 0 else 'before'} the cursor; its longest "
            f"gap, {time_text(longest.length_ns)}, is at {time_text(at_ns)}"
        )
    await _show(screen, pointing(seen, found.middle_ns - run.origin_ns))


@_timeline("v", title="Measure from here", takes="[FROM TO]", hint="measure")
async def measure(screen: Explorer, argument: str) -> None:
    """Timeline: measure from here to wherever the cursor moves; press again to clear. Two times
    measure between them, as does dragging the mouse.
    """
    seen = interval(screen)
    if argument:
        begin, _, end = argument.partition(" ")
        if not end.strip():
            raise UsageError("two times are missing: :measure 10ms 12.5ms")
        mark_ns, at_ns = parse_time("measure", begin), parse_time("measure", end.strip())
        await _show(screen, pointing(replace(seen, mark_ns=mark_ns), at_ns))
        return
    await _show(screen, replace(seen, mark_ns=seen.at_ns if seen.mark_ns is None else None))


@_timeline("F", title="Fit")
async def fit(screen: Explorer, _: str) -> None:
    """Timeline: zoom to the measured time, or else to the activity under the cursor."""
    seen = interval(screen)
    if seen.mark_ns is not None and seen.mark_ns != seen.at_ns:
        start, end = sorted((seen.mark_ns, seen.at_ns))
        await _show(screen, fitted(seen, start, end), "the measured time")
        return
    from chopper_core.analyses.lanes import under_cursor

    found = await run_in_thread(under_cursor, screen.run, screen.view, _lane(screen))
    if found is None:
        raise UsageError("nothing runs on this lane at the cursor")
    await _show(screen, fitted(seen, *found), "the activity under the cursor")


@_timeline("Z", title="Whole scope", hint="whole")
async def whole(screen: Explorer, _: str) -> None:
    """Timeline: show all of the scope's time again."""
    seen = interval(screen)
    window = replace(ALL_TIME, at_ns=seen.at_ns, mark_ns=seen.mark_ns)
    await screen.change(replace(screen.view, window=window), "all of the scope's time")


@_timeline(title="Cursor at a time", takes="TIME")
async def at(screen: Explorer, argument: str) -> None:
    """Timeline: move the cursor to a time since the run's first activity: 12.5ms, 830us. From
    elsewhere: open the timeline there.
    """
    if not argument:
        raise UsageError("missing time: :at 12.5ms, since the run's first activity")
    at_ns = parse_time("at", argument)
    if screen.lanes is None:
        window = replace(ALL_TIME, at_ns=at_ns)
        await screen.change(replace(with_view(screen.view, "timeline"), window=window))
        return
    await _show(screen, pointing(interval(screen), at_ns))


@actions(TIME, adds_up=True)("""
    chart_in: 2 | + w | Zoom in
        Zoom in: the tree's chart shows half the time, around the row under the cursor; a view's
        chart half the time, half the columns, or the shorter half of the bars.
    chart_out: 0.5 | - _ | Zoom out
        Zoom out: the tree's chart shows twice the time, even beyond the scope, which is marked; a
        view's chart likewise, up to all of it.
    """)
async def _zoom_chart(screen: Explorer, factor: float, presses: int) -> None:
    if not screen.view.name:
        scope = scope_of(screen.run, screen.view)

        def step(seen: Interval) -> Interval:
            return _through(scope, seen, zoomed(seen, 1 / factor))

        await _move_chart(screen, step, presses)
        return
    chart = _picture_of(screen)
    for _ in range(presses):
        lens = drawing.drawer_of(chart).centred(chart, screen.lens, screen.cell)
        screen.look(drawing.zoomed_lens(lens, chart, factor))


def _through(scope: tuple[int, int], seen: Interval, moved: Interval) -> Interval:
    """An interval that was zoomed: on the way out of a scope it stops at the scope first."""
    begin, end = scope
    if not begin <= seen.from_ns <= seen.to_ns <= end or (seen.from_ns, seen.to_ns) == scope:
        return moved
    is_almost = moved.length_ns >= (end - begin) * _ALMOST
    length = end - begin if is_almost else moved.length_ns
    start = min(max(moved.from_ns, begin), end - length)
    return replace(moved, from_ns=start, to_ns=start + length)


@actions(TIME, adds_up=True)("""
    chart_earlier: -0.5 | a | Pan left
        Move the chart half its length to the left.
    chart_later: 0.5 | d | Pan right
        Move the chart half its length to the right.
    """)
async def _pan_chart(screen: Explorer, share: float, presses: int) -> None:
    if not screen.view.name:
        await _move_chart(screen, lambda seen: panned(seen, share), presses)
        return
    for _ in range(presses):
        screen.look(drawing.panned_lens(screen.lens, _picture_of(screen), share))


@action(TIME, "Z", title="Whole picture")
async def chart_whole(screen: Explorer, _: str) -> None:
    """Show the whole chart again; in the tree, exactly the scope's time."""
    if screen.view.name:
        if screen.lens == WHOLE:
            raise UsageError("this is the whole chart")
        screen.look(WHOLE)
    else:
        _need_chart(screen)
        await screen.change(replace(screen.view, window=ALL_TIME))


def _picture_of(screen: Explorer) -> Chart:
    """The whole picture of a view, the first that has a scale; raises UsageError without any."""
    charts = screen.charts
    if not charts:
        raise UsageError("this view has no chart to zoom")
    if not screen.shows_picture:
        raise UsageError(_NOT_SHOWN)
    first = min(screen.picture, len(charts) - 1)
    pictures = [*charts[first:], *charts[:first]]
    scaled = (each for each in pictures if drawing.drawer_of(each).max_zoom(each) is not None)
    return next(scaled, pictures[0])


def interval(screen: Explorer) -> Interval:
    """The time that the timeline shows; raises UsageError in other views."""
    if screen.lanes is None:
        raise UsageError("this is for the timeline; 2 opens it")
    return screen.lanes.seen


async def point_at(screen: Explorer, found: tuple[str, Interval]) -> None:
    name, seen = found
    screen.table.move_to_label(name)
    await _show(screen, seen)


async def find_along_time(screen: Explorer, step: int) -> None:
    text = screen.searched
    if not text:
        raise UsageError("no search yet: f finds a name")
    from chopper_core.views.find import next_named

    found = await run_in_thread(next_named, screen.run, screen.view, step, text)
    if found is None:
        where = "after" if step > 0 else "before"
        raise UsageError(f"no activity {where} the cursor matches {text!r}")
    await point_at(screen, found)


async def _jump(screen: Explorer, step: int, presses: int, kind: Kind | None, name: str) -> None:
    interval(screen)
    from chopper_core.analyses.lanes import next_start

    def jumped() -> list[tuple[str, Interval]]:
        lane, view = _lane(screen), screen.view
        found: list[tuple[str, Interval]] = []
        while len(found) < presses:
            further = next_start(screen.run, view, lane, step, kind)
            if further is None:
                break
            found.append(further)
            lane, view = further[0], replace(view, window=further[1].window())
        return found

    found = await run_in_thread(jumped)
    if found:
        await point_at(screen, found[-1])
    if len(found) < presses:
        raise UsageError(f"there is no {name} {'after' if step > 0 else 'before'} the cursor")


async def _move(screen: Explorer, step: Callable[[Interval], Interval], presses: int) -> None:
    seen = last = moved = interval(screen)
    for _ in range(presses):
        last, moved = moved, step(moved)
    if moved != seen:
        await _show(screen, moved)
    if moved == last:
        raise UsageError("this is all of the run's time")


async def _show(screen: Explorer, seen: Interval, message: str = "") -> None:
    await screen.change(replace(screen.view, window=seen.window()), message)


def _lane(screen: Explorer) -> str:
    if screen.table.label is None:
        raise UsageError("there is no lane")
    return screen.table.label


async def _move_chart(screen: Explorer, step: Callable[[Interval], Interval], presses: int) -> None:
    _need_chart(screen)
    scope, view = scope_of(screen.run, screen.view), screen.view
    for _ in range(presses):
        seen = await run_in_thread(_chart_interval, screen, view)
        moved = step(seen)
        is_end = (moved.from_ns, moved.to_ns) == (seen.from_ns, seen.to_ns)
        is_scope = (moved.from_ns, moved.to_ns) == scope
        if not is_end:
            window = ALL_TIME if is_scope else Window(moved.from_ns, moved.to_ns)
            view = replace(view, window=window)
    if view != screen.view:
        await screen.change(view)
    if is_end:
        is_shortest = moved.length_ns == SHORTEST_NS
        raise UsageError("maximum zoom" if is_shortest else "this is all of the run's time")


def _chart_interval(screen: Explorer, view: View) -> Interval:
    """The time that the chart of a view shows, pointing at the middle of the row under the
    cursor."""
    run, frame, row = screen.run, screen.frame, screen.table.cursor
    seen = interval_of(run, view)
    try:
        begin, end = scope_of(run, frame.target(row) if row < len(frame) else screen.view)
    except ChopperError:
        # A row that only the baseline has takes no time here.
        return seen
    begin, end = max(begin, seen.from_ns), min(end, seen.to_ns)
    return replace(seen, at_ns=(begin + end) // 2) if begin <= end else seen


def _need_chart(screen: Explorer) -> None:
    if not screen.signal_panes:
        raise UsageError(_NOT_SHOWN)


FIGURES: Final = (
    *("elapsed_ns", "gfx_mhz", "gfx_util_pct", "power_w", "exposed_comm_ns", "idle_ns"),
    *(*HEAT, "kernels"),
)
_COLOURS: Final = (
    *("gfx_mhz", "busy_pct", "gfx_util_pct", "power_w", "exposed_comm_ns", "idle_ns"),
    *("mfma_util_pct", "hotspot_c"),
)

_heat = partial(action, WALK, view="heatmap")
_heats = actions(WALK, view="heatmap")


@_heats("""
    cell_left: -1 | left h | Cell to the left | cell
        Heat map: move the cursor a column to the left.
    cell_right: 1 | right l | Cell to the right
        Heat map: move the cursor a column to the right.
    """)
def _step(screen: Explorer, step: int) -> None:
    heat, whole = _map_of(screen), screen.charts[0]
    wanted = screen.cell[1] + step
    if not 0 <= wanted < len(heat.columns) and screen.lens != WHOLE:
        with suppress(UsageError):  # at the end of the map
            screen.look(drawing.panned_lens(screen.lens, whole, step / len(heat.columns)))
            wanted = screen.cell[1] + step
        heat = _map_of(screen)
    if not 0 <= wanted < len(heat.columns):
        raise UsageError(f"this is the {'last' if step > 0 else 'first'} column")
    screen.cell = 0, wanted
    screen.follow_cursor()


@_heat("enter", title="Enter the cell", hint="in")
async def open_cell(screen: Explorer, _: str) -> None:
    """Heat map: go to the cell under the cursor: its GPU, at its column."""
    heat = _map_of(screen)
    label = screen.table.label
    if heat.opens is None or label not in heat.labels or not heat.columns:
        raise UsageError("there is no cell to enter")
    # The cursor keeps its column where a map has fewer: it is drawn at the last one.
    view = heat.opens(heat.labels.index(label), min(screen.cell[1], len(heat.columns) - 1))
    await screen.open_evidence(replace(view, run=screen.view.run))


@_heat("m", title="Next figure of the heat map", hint="figure")
async def next_figure(screen: Explorer, _: str) -> None:
    """Heat map: show the next figure; :of chooses any."""
    await show_next_figure(screen, FIGURES)


async def show_next_figure(screen: Explorer, figures: Sequence[str]) -> None:
    current = screen.view.of or figures[0]
    place = figures.index(current) if current in figures else -1
    for name in (*figures[place + 1 :], *figures[: place + 1]):
        with suppress(UsageError):
            metric = metric_named(name, screen.run.table)
            await screen.change(replace(screen.view, of="" if name == figures[0] else name))
            if not screen.status.is_error:
                screen.say(f"{metric.title}; m shows the next figure, :of any")
                return


def _map_of(screen: Explorer) -> HeatMap:
    heat = screen.first_chart(HeatMap)
    if heat is None or heat.opens is None:
        raise UsageError("there are no cells: this heat map has quantiles of the GPUs")
    return heat


@_heats("""
    previous_iteration: -1 | , | Previous step of the heat map
        Heat map: show the previous step alone; before the first, all of them.
    next_iteration: 1 | . | Next step of the heat map | step
        Heat map: show the next step alone; after the last, all of them.
    """)
async def _step_iteration(screen: Explorer, step: int) -> None:
    view, table = screen.view, screen.run.table
    codes = screen.run.tree().split((), ("iteration",)).codes("iteration")
    labels = table.texts_of("iteration", distinct(codes))
    if view.by == "iteration" or len(labels) < 2:
        raise UsageError("the heat map has no steps to step through")
    here = dict(view.scope).get("iteration")
    place = labels.index(here) + step if here in labels else (0 if step > 0 else len(labels) - 1)
    if 0 <= place < len(labels):
        label, split = labels[place], pivot(view, "iteration")
        there = at_level(view, "iteration", label)
        if here is None:
            there = replace(split, path=(*split.path, label))
        await screen.go(screen.trail_to(there), f"step {label}")
        return
    depth = view.order.index("iteration")
    await screen.go(screen.trail_to(replace(view, path=view.path[:depth])), "all steps")


_icicle = partial(action, WALK, view="icicle")


@actions(WALK, view="icicle")("""
    block_left: -1 | left h | Block to the left | block
        Icicle: move the cursor to the previous block of the level.
    block_right: 1 | right l | Block to the right
        Icicle: move the cursor to the next block of the level.
    """)
def _step_block(screen: Explorer, step: int) -> None:
    depth, block = screen.cell
    if not 0 <= block + step < len(_icicle_of(screen).rows[depth].labels):
        raise UsageError(f"this is the {'last' if step > 0 else 'first'} block of its level")
    screen.move_to_cell((depth, block + step))


@_icicle("down", "j", title="Level below", hint="level")
def block_down(screen: Explorer, _: str) -> None:
    """Blocks: move the cursor to the largest child block."""
    icicle = _icicle_of(screen)
    depth, block = screen.cell
    if depth + 1 >= len(icicle.rows):
        raise UsageError("this is the last level")
    row = icicle.rows[depth + 1]
    inside = np.flatnonzero(row.parents == block)
    largest = inside[np.argmax((row.ends_ns - row.begins_ns)[inside])]
    screen.move_to_cell((depth + 1, int(largest)))


@_icicle("up", "k", title="Level above")
def block_up(screen: Explorer, _: str) -> None:
    """Blocks: move the cursor to the parent block."""
    icicle = _icicle_of(screen)
    depth, block = screen.cell
    if not depth:
        raise UsageError("this is the first level")
    screen.move_to_cell((depth - 1, int(icicle.rows[depth].parents[block])))


@_icicle("enter", title="Enter the block", hint="in")
async def open_block(screen: Explorer, _: str) -> None:
    """Blocks: show only the block under the cursor; a kernel opens in the tree."""
    view = _icicle_of(screen).opens(*screen.cell)
    await screen.open_evidence(replace(view, run=screen.view.run))


@_icicle("m", title="Next figure of the blocks", hint="figure")
async def next_colour(screen: Explorer, _: str) -> None:
    """Blocks: colour the blocks by the next figure; :of chooses any."""
    await show_next_figure(screen, _COLOURS)


def _icicle_of(screen: Explorer) -> Icicle:
    icicle = screen.first_chart(Icicle)
    if icicle is None:
        raise UsageError("this is for the blocks; :view icicle opens them")
    return icicle
