"""What holds the peak of a GPU's memory, by the events of its allocator.

An allocation or release has the labels of the next activity that its thread launches. What was
allocated before the first event is a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.memory import MemoryPeak, memory_peak
from chopper_core.analyses.rows import FigureRows, Partition
from chopper_core.columns import METRICS, Values, numbered, row_columns
from chopper_core.model.column_names import ALLOC_BYTES, PEAK_BYTES
from chopper_core.model.run import Run
from chopper_core.model.side_table import NEVER, MemoryEvents
from chopper_core.model.table import LEVELS, NO_LABEL, NO_LABEL_TEXT, spelled
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import counts_of, maxima_of, means_of, ranked, sums_of

NO_EVENTS: Final = (
    "the traces have no events of GPU memory; profile with profile_memory=True to see allocations"
)
OPERATOR: Final = "operator"
EARLIER: Final = "before the trace"
"""The row of memory that was allocated before the first event of its GPU."""
OUTSIDE_OPERATORS: Final = "outside operators"
_SPLITS: Final = (OPERATOR, "phase", "gpu")
"""Of snapshots, whose operators are lines of Python."""
_LABELS: Final = LEVELS[:-1]
HELD_ROWS: Final = "what holds memory"
row_columns(
    HELD_ROWS,
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
""",
)


class HeldRows(FigureRows, frozen=True, eq=False, kw_only=True):
    """What holds the peak of a scope: operations, operators or GPUs."""

    held_bytes: Int64
    peak: MemoryPeak
    events: Index
    """Those of the scope."""


def held_memory(run: Run, view: View) -> HeldRows:
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
        labels.append(EARLIER)
        held_bytes = np.append(held_bytes, peak.earlier_bytes)
    figures = _figures(memory, own, place[: len(own)], held_bytes)
    if by != OPERATOR and not run.is_snapshot:
        figures[PEAK_BYTES] = _peaks(run, view, by, labels)
    largest = memory.bytes[own].max(initial=0, keepdims=True)
    whole = {
        PEAK_BYTES: Values(held_bytes.sum(keepdims=True)),
        "held_bytes": Values(held_bytes.sum(keepdims=True)),
        "held_pct": Values(np.array([100.0])),
        "largest_alloc_bytes": Values(largest, largest == 0),
    }
    return HeldRows(by, labels, figures, whole, held_bytes=held_bytes, peak=peak, events=own)


def _split(run: Run, view: View) -> str:
    """What the rows are: of a snapshot lines of Python, where nothing else is asked for."""
    if not run.is_snapshot:
        return view.by or "operation"
    if view.by and view.by not in _SPLITS:
        raise NothingToShow(f"a memory snapshot knows no {view.by}; by={', '.join(_SPLITS)} answer")
    return view.by or OPERATOR


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
    if by == OPERATOR:
        return OUTSIDE_OPERATORS if code < 0 else run.side(MemoryEvents).names[code]
    if by == "gpu":
        return str(code)
    if by == "operation":
        if code < 0:
            return NO_LABEL_TEXT
        return spelled(run.side(MemoryEvents).names[code])
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
