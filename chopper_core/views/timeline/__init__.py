"""Timeline: lanes of activities over time, with the clock and power of the GPU below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.gaps import gap_around, host_during
from chopper_core.analyses.lane_cells import KIND_NAMES
from chopper_core.analyses.lane_figures import LANE_ROWS, lane_figures
from chopper_core.analyses.lanes import (
    EVERY_STREAM,
    MAX_GPUS,
    Lane,
    label_of,
    lane_gpus,
    lane_split,
    lanes_in,
    waiting_at,
)
from chopper_core.analyses.leads import leads
from chopper_core.analyses.rows import LabelledRows
from chopper_core.columns import Values, columns, numbered, worded
from chopper_core.columns.labels import LABELS
from chopper_core.model.charts import Pointed
from chopper_core.model.parallel import TITLES
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run, interval_of
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.units import moment_text, moment_unit, time_text
from chopper_core.model.view import ALL_TIME, Interval, View
from chopper_core.util.arrays import Int64, Mask
from chopper_core.util.errors import ChopperError
from chopper_core.views.shared.table_view import activity_view, columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec
from chopper_core.views.timeline.chart import ghosts_of, lanes_chart, own_time

SPEC: Final = ViewSpec(
    name="timeline",
    title="Timeline",
    question="What runs when, on which stream, and at which clock and power?",
    by=("stream", "gpu"),
    rows=(LANE_ROWS,),
    along_time=True,
    compares=True,
    of_one_run="shows one run along its time; enter a run first",
    no_statistic="has a row per lane, which is one thing",
)

_CLOCK: Final = "gfx_mhz"
_MAX_FOR_LATE: Final = 1 << 20
"""Activities of a run up to which its stragglers are looked for: a timeline is there at once."""

_NOTHING: Final = "nothing runs on the lane at the cursor"
AT_CURSOR: Final = columns(
    f"""
    at_kernel | | at the cursor
        The activity at the cursor.
    at_operation | | operation
        The operation of the activity at the cursor.
        missing: {_NOTHING}, or it has no operation
    at_phase | | phase
        The phase of the activity at the cursor.
        missing: {_NOTHING}, or it has no phase
    at_layer | | layer
        The layer of the activity at the cursor.
        missing: {_NOTHING}, or it has no layer
    at_duration_ns | ns | takes
        Duration of the activity at the cursor.
    at_start_ns | ns | starts
        Start of the activity at the cursor, since the run's first activity.
    at_mhz | MHz | MHz there
        Mean clock of the GPU during the activity at the cursor.
        missing: {_NOTHING}, or the clock is unknown for that time
        source: telemetry
    next_ns | ns | next in
        Time from the cursor to the next start on the lane.
        missing: nothing starts on the lane after the cursor
    at_queue | | in queue
        Activities of the GPU that are launched and haven't started at the cursor.
        missing: no activity of the GPU has a launch record before its start
    at_gap_ns | ns | gap there
        Length of the gap at the cursor: the time around it in which nothing runs on the GPU.
        missing: something runs on the GPU at the cursor, or nothing before or after it
    at_host | | host there
        What the thread that launches for the GPU does in the gap at the cursor, the longest first.
        missing: no gap at the cursor, or the run has no record of the host for it
""",
    missing=_NOTHING,
)


_SHOWN: Final = (
    *("lane_ns", "lane_pct", "between_ns", "between_activities", "scope_ns"),
    *(f"lane_{word}_pct" for word in KIND_NAMES),
    *("lane_activities", "at_kernel", "at_operation", "at_layer", "at_duration_ns", "at_mhz"),
    *("at_start_ns", "next_ns", "at_queue", "at_gap_ns", "at_host"),
)


def answer(run: Run, view: View) -> ViewResult:
    lanes, left_out = lanes_in(run, view)
    seen = interval_of(run, view)
    begin, end = (run.origin_ns + time for time in (seen.from_ns, seen.to_ns))
    at = run.origin_ns + seen.at_ns
    marked = None if seen.mark_ns is None else sorted((run.origin_ns + seen.mark_ns, at))
    found = lane_figures(lanes, (begin, end), marked, own_time(run, view, lanes))
    hidden = set() if _CLOCK in run.signal_names else {"at_mhz"}
    for kind, word in zip(Kind, KIND_NAMES, strict=True):
        if not any(len(lane.kinds[kind].starts_ns) for lane in lanes):
            hidden.add(f"lane_{word}_pct")
    labels, pointed = [label_of(lane) for lane in lanes], _at_cursor(run, lanes, at)
    chart = lanes_chart(run, view, seen, lanes, labels)
    at_lanes: list[dict[str, Any]] = [
        {name.removeprefix("at_"): each.cell(row) for name, each in pointed.items()}
        for row in range(len(lanes))
    ]
    ghosts = ghosts_of(run, view, lanes, seen)
    pointed_at = tuple(Pointed(**each) for each in at_lanes)
    chart = replace(chart, pointed=pointed_at, ghosts=ghosts, late=_late_lane(run, view, lanes))
    own = columns_of(found, LABELS)
    own += [(AT_CURSOR[name], values) for name, values in pointed.items()]
    result = table_view(
        view,
        LabelledRows("lane", labels),
        own,
        opens=lambda row: _opens(run, view, lanes[row], at),
        shown=[name for name in _SHOWN if name in {*found, *pointed} - hidden],
        headline=(_headline(seen),),
        notes=_notes(run, view, lanes, left_out, seen),
        charts=(chart,),
        base=base_of(run, view).itself,
    )
    return replace(result, by=lane_split(run, view))


def _late_lane(run: Run, view: View, lanes: Sequence[Lane]) -> str:
    """The label of the first lane of the GPU that the others wait for; empty without one."""
    if len({lane.gpu for lane in lanes}) < 2 or len(run.table) > _MAX_FOR_LATE:
        return ""
    try:
        ranks, _ = leads(run, View(view.run, overrides=view.overrides))
    except ChopperError:
        return ""
    late = {ranks.gpus[one.place] for one in ranks.stragglers[:1]}
    return next((label_of(lane) for lane in lanes if lane.gpu in late), "")


def _at_cursor(run: Run, lanes: Sequence[Lane], at: int) -> dict[str, Values]:
    table = run.table
    places = [lane.running(at) for lane in lanes]
    absent = np.array([place is None for place in places], np.bool_)
    rows = np.array([lane.rows[place or 0] for lane, place in zip(lanes, places, strict=True)])
    starts, durations = table.start_ns[rows].astype(np.int64), table.duration_ns[rows]

    def codes(level: str) -> Int64:
        return np.where(absent, NO_LABEL, table.column(level)[rows])

    def words(level: str) -> Values:
        known = codes(level).tolist()
        return worded([None if code == NO_LABEL else table.text_of(level, code) for code in known])

    def integers(numbers: Int64, missing: Mask = absent) -> Values:
        return Values(np.where(missing, 0, numbers), missing)

    mhz = np.full(len(lanes), np.nan)
    curves = run.signal(_CLOCK).curves if _CLOCK in run.signal_names else {}
    for place in np.flatnonzero(~absent).tolist():
        if (curve := curves.get(lanes[place].gpu)) is not None:
            ends = np.array([starts[place], starts[place] + durations[place]], np.float64)
            mhz[place] = curve.means(ends)[0]
    following = [lane.after(at) for lane in lanes]
    later = [lane.starts_ns[place or 0] for lane, place in zip(lanes, following, strict=True)]
    waiting = {gpu: waiting_at(run, gpu, at) for gpu in {lane.gpu for lane in lanes}}
    queued = [waiting[lane.gpu] for lane in lanes]
    gaps = [gap_around(run, lane.gpu, at) for lane in lanes]
    return {
        "at_kernel": words("kernel"),
        "at_operation": words("operation"),
        "at_phase": words("phase"),
        "at_layer": integers(codes("layer"), codes("layer") == NO_LABEL),
        "at_duration_ns": integers(durations),
        "at_start_ns": integers(starts - run.origin_ns),
        "at_mhz": numbered(mhz),
        "next_ns": integers(
            np.array(later) - at, np.array([place is None for place in following], np.bool_)
        ),
        "at_queue": integers(
            np.array([depth or 0 for depth in queued], np.int64),
            np.array([depth is None for depth in queued], np.bool_),
        ),
        "at_gap_ns": integers(
            np.array([0 if gap is None else gap.length_ns for gap in gaps], np.int64),
            np.array([gap is None for gap in gaps], np.bool_),
        ),
        "at_host": worded([None if gap is None else host_during(run, gap) or None for gap in gaps]),
    }


def _opens(run: Run, view: View, lane: Lane, at: int) -> View:
    for place in (lane.running(at), lane.after(at), lane.before(at)):
        if place is not None:
            there = activity_view(run, view, int(lane.rows[place]))
            return replace(there, overrides=view.overrides)
    return replace(view, name="", by="", window=ALL_TIME)


def _headline(seen: Interval) -> str:
    unit = moment_unit(seen.end_ns)
    is_long, unit = not unit, f" {unit}".rstrip()
    is_few = unit != " ms" and seen.length_ns >= 10**9
    decimals = 0 if is_few else 3 if seen.length_ns >= 10**6 else 6

    def moment(ns: int, decimals: int = decimals) -> str:
        return moment_text(ns, decimals, seen.end_ns)

    length = time_text(seen.length_ns) if is_long else f"{moment(seen.length_ns)}{unit}"
    end = moment(seen.end_ns, 0) if is_long else f"{moment(seen.end_ns, min(decimals, 3))}{unit}"
    away, mark = seen.at_ns - (seen.mark_ns or 0), ""
    if seen.mark_ns is not None:
        mark = f"{moment(abs(away))} {'after' if away >= 0 else 'before'} mark"
    part = f"{moment(seen.from_ns)}-{moment(seen.to_ns)} of {end} ({length})"
    return facts(
        part if seen.length_ns < seen.end_ns else f"all of {end}",
        f"cursor {moment(seen.at_ns)}{unit}",
        mark,
    )


def _notes(
    run: Run, view: View, lanes: Sequence[Lane], left_out: int, seen: Interval
) -> tuple[str, ...]:
    notes = []
    hidden = len(lane_gpus(run, view)) - len(lanes)
    if view.by in run.table.coordinates and hidden > 0:
        notes.append(
            f"a lane is the first GPU of its {TITLES[view.by]}; {hidden} more GPUs are in by=gpu"
        )
    if left_out:
        notes.append(
            f"only the first {MAX_GPUS} of {MAX_GPUS + left_out} GPUs are shown; gpu=N in the "
            "scope shows another"
        )
    if any(lane.stream == NO_LABEL for lane in lanes):
        notes.append("lane s? holds activities whose stream is not in the trace")
    if any(lane.stream is not EVERY_STREAM and lane.stream < NO_LABEL for lane in lanes):
        notes.append("streams with text names in the trace are numbered with #")
    within = sum(lane.overlapping for lane in lanes if lane.stream is not EVERY_STREAM)
    if within:
        notes.append(
            f"{within:,} activities start while another one runs on their stream; the kinds of a "
            "cell may add up to more than the cell"
            if within > 1
            else "1 activity starts while another one runs on its stream; the kinds of a cell may "
            "add up to more than the cell"
        )
    if not {_CLOCK, "power_w"} & set(run.signal_names):
        notes.append("no clock and no power: the run has no telemetry of them")
    return tuple(notes)
