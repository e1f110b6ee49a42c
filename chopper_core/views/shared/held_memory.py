"""The view of what holds the peak of a GPU's memory, for the views that show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.held_memory import EARLIER, OPERATOR, OUTSIDE_OPERATORS, held_memory
from chopper_core.analyses.lanes import edges
from chopper_core.analyses.memory import MemoryPeak, size_text
from chopper_core.analyses.rows import Partition
from chopper_core.model import phrases
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.column_names import ALLOC_BYTES, PEAK_BYTES
from chopper_core.model.run import Run
from chopper_core.model.side_table import ALLOCATED, MemoryEvents, largest_between
from chopper_core.model.table import LEVELS, NO_LABEL_TEXT
from chopper_core.model.units import time_text
from chopper_core.model.view import View, Window, child_of, with_view
from chopper_core.util.arrays import Index, Int64
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult

_NOTES: Final = (
    "an allocation or release counts for the next activity that its thread launches; times are "
    "the host's, which runs ahead of the GPU",
    f"{EARLIER}: allocated before the first event of the trace, such as weights and the "
    "optimizer's state; nothing shows by what",
)
_OF_SNAPSHOT: Final = (
    "memory snapshot: sizes are those asked for, which the allocator rounds up; the innermost line "
    "of the user's own Python counts",
    f"{EARLIER}: allocated before the history of the snapshot, and released in it",
)
_MAX_BARS: Final = 12
_BINS: Final = 240
_MARGIN: Final = 20
"""The part of the run's time that the timeline shows around the peak, on either side."""

_BY_ROW: Final = {"gpu": "GPU ", "iteration": "step ", "layer": "layer "}
_SHOWN: Final[tuple[str, ...]] = (
    *("held_bytes", "held_pct", "growth_bytes", ALLOC_BYTES, "allocations"),
    *("largest_alloc_bytes", "kept_bytes", "alloc_lifetime_ns"),
)


def held_rows(run: Run, view: View) -> ViewResult:
    """The holders of the peak of a scope; raises NothingToShow without events of memory."""
    rows = held_memory(run, view)
    by, labels, held_bytes, peak = rows.level, rows.labels, rows.held_bytes, rows.peak
    has_peaks = PEAK_BYTES in rows.figures
    order = np.argsort(-held_bytes, kind="stable")[:_MAX_BARS]
    order = order[held_bytes[order] > 0]
    top = tuple(labels[row] for row in order.tolist())
    bars = (Series("held", held_bytes[order].astype(np.float64)),)
    found = table_view(
        view,
        rows,
        columns_of(rows.figures),
        columns_of(rows.whole),
        opens=lambda row: _opens(run, view, by, labels[row], peak),
        sort="-held_bytes",
        shown=(*_SHOWN, PEAK_BYTES) if has_peaks else _SHOWN,
        headline=_headline(run, peak, by, labels, held_bytes),
        notes=_notes(run, peak),
        charts=(
            _over_time(run, rows.events, peak),
            BarChart("held at the peak", "B", top, bars, by if has_peaks else ""),
        ),
    )
    return replace(found, by=by if by != "operation" else "")


def _notes(run: Run, peak: MemoryPeak) -> tuple[str, ...]:
    if run.is_snapshot:
        return _OF_SNAPSHOT if peak.earlier_bytes else _OF_SNAPSHOT[:1]
    return _NOTES if peak.earlier_bytes else _NOTES[:1]


def _opens(run: Run, view: View, by: str, label: str, peak: MemoryPeak) -> View:
    """A row's part of the tree; of operators and of earlier memory, the peak in the timeline."""
    if run.is_snapshot:
        return view
    if by != OPERATOR and label != EARLIER:
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
    if label == EARLIER:
        return "allocated before the trace"
    if label in (NO_LABEL_TEXT, OUTSIDE_OPERATORS):
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
        name: largest_between(values[events], begins, ends)
        for name, values in (("reserved", memory.reserved), ("allocated", memory.allocated))
        if values[events].any()
    }
    chart = LineChart.over(f"memory of GPU {gpu} over time", "B", "time", "ms", x, lines)
    return replace(chart, is_nested=True)
