"""Rows of what holds the peak of a GPU's memory, for the views that show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.lanes import edges
from chopper_core.analyses.memory import MemoryPeak, memory_peak, size_text
from chopper_core.analyses.rows import LabelledRows, Partition
from chopper_core.columns import METRICS, Values, columns, numbered
from chopper_core.model import phrases
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.column_names import ALLOC_BYTES, PEAK_BYTES
from chopper_core.model.run import Run
from chopper_core.model.side_table import ALLOCATED, NEVER, MemoryEvents, largest_between
from chopper_core.model.table import LEVELS, NO_LABEL, NO_LABEL_TEXT
from chopper_core.model.units import time_text
from chopper_core.model.view import View, Window, child_of, with_view
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import counts_of, maxima_of, means_of, ranked, sums_of
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult

NO_EVENTS: Final = (
    "the traces have no events of GPU memory; profile with profile_memory=True to see allocations"
)
_OPERATOR: Final = "operator"
_SPLITS: Final = (_OPERATOR, "phase", "gpu")
"""Of snapshots, whose operators are lines of Python."""
_EARLIER: Final = "before the trace"
"""The row of memory that was allocated before the first event of its GPU."""
_OUTSIDE: Final = "outside operators"
_NOTES: Final = (
    "an allocation or release counts for the next activity that its thread launches; times are "
    "the host's, which runs ahead of the GPU",
    f"{_EARLIER}: allocated before the first event of the trace, such as weights and the "
    "optimizer's state; nothing shows by what",
)
_OF_SNAPSHOT: Final = (
    "memory snapshot: sizes are those asked for, which the allocator rounds up; the innermost line "
    "of the user's own Python counts",
    f"{_EARLIER}: allocated before the history of the snapshot, and released in it",
)
_LABELS: Final = LEVELS[:-1]
_MAX_BARS: Final = 12
_BINS: Final = 240
_MARGIN: Final = 20
"""The part of the run's time that the timeline shows around the peak, on either side."""

_BY_ROW: Final = {"gpu": "GPU ", "iteration": "step ", "layer": "layer "}
COLUMNS: Final = columns(
    """
    held_bytes | B | at the peak
        Bytes that the row had allocated and that were not released when the scope's peak was
        reached (peak_bytes), on the GPU that has it; from anywhere in the run, not only from the
        scope.
    held_pct | % | of peak
        Share of the bytes at the peak.
    growth_bytes | B | growth | sum | signed
        Bytes allocated in the row minus bytes released in it, wherever those were allocated.
    allocations | | allocs | sum
        Allocations in the row, released or not.
    releases | | releases | sum
        Releases in the row.
    largest_alloc_bytes | B | largest | max
        The largest single allocation of the row.
        missing: the row allocates nothing
    kept_bytes | B | never freed | sum
        Bytes allocated in the row that the trace doesn't release any more.
    alloc_lifetime_ns | ns | mean life
        Mean time from an allocation of the row to its release, of those that are released.
        missing: the row allocates nothing that is released
"""
)
_SHOWN: Final[tuple[str, ...]] = (
    *("held_bytes", "held_pct", "growth_bytes", ALLOC_BYTES, "allocations"),
    *("largest_alloc_bytes", "kept_bytes", "alloc_lifetime_ns"),
)


def held_rows(run: Run, view: View) -> ViewResult:
    """The holders of the peak of a scope; raises NothingToShow without events of memory."""
    memory = run.side(MemoryEvents)
    if not len(memory):
        raise NothingToShow(NO_EVENTS)
    if not {level for level, _ in view.scope} <= set(_LABELS):
        raise UsageError("memory is known by operation; leave the kernel out of the path")
    by = _split(run, view)
    own = np.flatnonzero(_inside(run, view))
    peak = memory_peak(run, view)
    if not len(own) and peak.event < 0:
        raise NothingToShow("nothing is allocated or released in the scope")
    held = peak.alive
    codes, place = ranked(getattr(memory, by)[np.concatenate([own, held])].astype(np.int64))
    labels = [_text(run, by, code) for code in codes.tolist()]
    held_bytes = sums_of(memory.bytes[held], place[len(own) :], len(labels))
    if peak.earlier_bytes:
        labels.append(_EARLIER)
        held_bytes = np.append(held_bytes, peak.earlier_bytes)
    figures = _figures(memory, own, place[: len(own)], held_bytes)
    largest = memory.bytes[own].max(initial=0, keepdims=True)
    whole = {
        PEAK_BYTES: Values(held_bytes.sum(keepdims=True)),
        "held_bytes": Values(held_bytes.sum(keepdims=True)),
        "held_pct": Values(np.array([100.0])),
        "largest_alloc_bytes": Values(largest, largest == 0),
    }
    shown, level = _SHOWN, ""
    if by != _OPERATOR and not run.is_snapshot:
        figures[PEAK_BYTES] = _peaks(run, view, by, labels)
        shown, level = (*_SHOWN, PEAK_BYTES), by
    order = np.argsort(-held_bytes, kind="stable")[:_MAX_BARS]
    order = order[held_bytes[order] > 0]
    top = tuple(labels[row] for row in order.tolist())
    bars = (Series("held", held_bytes[order] / 1e9),)
    found = table_view(
        view,
        LabelledRows(by, labels),
        columns_of(figures, COLUMNS),
        columns_of(whole, COLUMNS),
        opens=lambda row: _opens(run, view, by, labels[row], peak),
        sort="-held_bytes",
        shown=shown,
        headline=_headline(run, peak, by, labels, held_bytes),
        notes=_notes(run, peak),
        charts=(
            _over_time(run, own, peak),
            BarChart("held at the peak", "GB", top, bars, level),
        ),
    )
    return replace(found, by=by if by != "operation" else "")


def _split(run: Run, view: View) -> str:
    """What the rows are: of a snapshot lines of Python, where nothing else is asked for."""
    if not run.is_snapshot:
        return view.by or "operation"
    if view.by and view.by not in _SPLITS:
        raise NothingToShow(f"a memory snapshot knows no {view.by}; by={', '.join(_SPLITS)} answer")
    return view.by or _OPERATOR


def _notes(run: Run, peak: MemoryPeak) -> tuple[str, ...]:
    if run.is_snapshot:
        return _OF_SNAPSHOT if peak.earlier_bytes else _OF_SNAPSHOT[:1]
    return _NOTES if peak.earlier_bytes else _NOTES[:1]


def _inside(run: Run, view: View) -> Mask:
    memory, table = run.side(MemoryEvents), run.table
    if run.is_snapshot:
        return np.ones(len(memory), np.bool_)
    inside = ~np.isin(memory.iteration, run.left_out(view))
    for level, label in view.scope:
        if level == "operation":
            codes = {name: code for code, name in enumerate(memory.names)}
            wanted = NO_LABEL if label == NO_LABEL_TEXT else codes.get(label.removeprefix("\\"), -2)
        else:
            found = table.code_of(level, label)
            wanted = -2 if found is None else found
        inside &= getattr(memory, level) == wanted
    return inside


def _text(run: Run, by: str, code: int) -> str:
    if by == _OPERATOR:
        return _OUTSIDE if code < 0 else run.side(MemoryEvents).names[code]
    if by == "gpu":
        return str(code)
    if by == "operation":
        if code < 0:
            return NO_LABEL_TEXT
        name = run.side(MemoryEvents).names[code]
        return f"\\{name}" if name.lstrip("\\") == NO_LABEL_TEXT else name
    return run.table.text_of(by, code)


def _figures(memory: MemoryEvents, own: Index, place: Index, held: Int64) -> dict[str, Values]:
    count, size = len(held), memory.bytes[own]
    gained, partner = size > 0, memory.partner[own]
    kept, ended = gained & (partner == NEVER), gained & (partner != NEVER)
    lives = memory.time_ns[partner[ended]] - memory.time_ns[own[ended]]
    largest = maxima_of(size[gained], place[gained], count)
    return {
        "held_bytes": Values(held),
        "held_pct": Values(100.0 * held / max(int(held.sum()), 1)),
        "growth_bytes": Values(sums_of(size, place, count)),
        ALLOC_BYTES: Values(sums_of(size[gained], place[gained], count)),
        "allocations": Values(counts_of(place[gained], count)),
        "releases": Values(counts_of(place[~gained], count)),
        "largest_alloc_bytes": Values(largest, largest == 0),
        "kept_bytes": Values(sums_of(size[kept], place[kept], count)),
        "alloc_lifetime_ns": Values(means_of(lives, place[ended], count)),
    }


def _peaks(run: Run, view: View, by: str, labels: Sequence[str]) -> Values:
    rows = Partition.of(run.tree_of(view), view, by)
    peaks = METRICS[PEAK_BYTES].compute(rows.scope(run)).known().tolist()
    of_label = dict(zip(rows.labels, peaks, strict=True))
    return numbered([of_label.get(label) for label in labels])


def _opens(run: Run, view: View, by: str, label: str, peak: MemoryPeak) -> View:
    """A row's part of the tree; of operators and of earlier memory, the peak in the timeline."""
    if run.is_snapshot:
        return view
    if by != _OPERATOR and label != _EARLIER:
        tree = run.tree_of(view)
        if label in Partition.of(tree, view, by).labels:
            return child_of(view, by, label)
    timeline = with_view(view, "timeline")
    if peak.event < 0:
        return replace(timeline, signal=ALLOCATED)
    at = max(int(run.side(MemoryEvents).time_ns[peak.event]) - run.origin_ns, 0)
    end = int(run.tree().node(()).max("end_ns")[0]) - run.origin_ns
    around = max(end // _MARGIN, 1)
    return replace(
        timeline,
        by="stream",
        path=(str(run.side(MemoryEvents).gpu[peak.event]),),
        order=LEVELS,
        signal=ALLOCATED,
        window=Window(max(at - around, 0), min(at + around, end), min(at, end)),
    )


def _headline(
    run: Run, peak: MemoryPeak, by: str, labels: Sequence[str], held: Int64
) -> tuple[str, ...]:
    if peak.event < 0:
        return ("the peak is unknown: no activity of the scope has a launch record",)
    memory, at = run.side(MemoryEvents), peak.event
    origin_ns = _origin_ns(run)
    most, reserved = int(held.sum()), int(memory.reserved[at])
    moment = time_text(int(memory.time_ns[at]) - origin_ns)
    holder, alive = int(held.argmax()), phrases.count(len(peak.alive), "allocation")
    share = phrases.percent(held[holder] / max(most, 1))
    free = phrases.percent((reserved - most) / max(reserved, 1))
    return (
        phrases.facts(
            f"{size_text(most)} at the peak of GPU {memory.gpu[at]}, {moment} on its host",
            f"{size_text(reserved)} reserved, {free} of it free" if reserved else "",
        ),
        phrases.facts(
            f"{size_text(int(held[holder]))} ({share}) {_holder(by, labels[holder])}",
            f"{alive} of the {'snapshot' if run.is_snapshot else 'trace'} alive then",
        ),
    )


def _holder(by: str, label: str) -> str:
    if label == _EARLIER:
        return "allocated before the trace"
    if label in (NO_LABEL_TEXT, _OUTSIDE):
        return f"allocated outside any {by}"
    return f"of {_BY_ROW.get(by, '')}{label}"


def _origin_ns(run: Run) -> int:
    """What times are since; those of a snapshot are since its first event."""
    return 0 if run.is_snapshot else run.origin_ns


def _over_time(run: Run, own: Index, peak: MemoryPeak) -> LineChart:
    """The most that is allocated and reserved in equal parts of the scope's time on one GPU."""
    memory = run.side(MemoryEvents)
    gpu = int(memory.gpu[own[0] if peak.event < 0 else peak.event])
    events = memory.of_gpu(gpu)
    times = memory.time_ns[events]
    inside = own[memory.gpu[own] == gpu]
    moments = [*(memory.time_ns[inside[[0, -1]]].tolist() if len(inside) else [])]
    moments += [] if peak.event < 0 else [int(memory.time_ns[peak.event])]
    begin, end = min(moments), max(max(moments), min(moments) + _BINS)
    cut = edges(begin, end, _BINS)
    # The last edge belongs to the last part.
    at = np.searchsorted(times, np.append(cut[:-1], cut[-1] + 1), "left")
    begins = np.maximum(at[:-1] - 1, 0)
    x = ((cut[:-1] + cut[1:]) / 2 - _origin_ns(run)) / 1e6
    ends = np.maximum(at[1:], begins + 1)
    lines = {
        name: largest_between(values[events], begins, ends) / 1e9
        for name, values in (("reserved", memory.reserved), ("allocated", memory.allocated))
        if values[events].any()
    }
    chart = LineChart.over(f"memory of GPU {gpu} over time", "GB", "time", "ms", x, lines)
    return replace(chart, is_nested=True)
