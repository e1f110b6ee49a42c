"""Compute matched across GPUs: the same kernel at the same place of the step, and who leads.

An occurrence is one kernel of an iteration, phase, layer and operation, the n-th of its name
there, where all GPUs have as many. Its lead on a GPU is how much earlier it starts there than on
the GPU that starts it last (Lit Silicon, algorithm 1, over every occurrence).
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from chopper_core.run import Run
from chopper_core.schema import LEVELS, Kind
from chopper_core.tree import Groups

Int64 = NDArray[np.int64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Occurrences:
    """The compute of a run that runs on every GPU, as occurrences x GPUs, in order of time."""

    gpus: tuple[int, ...]
    rows: Index
    """Rows of the kernel table, occurrences x GPUs."""
    lead_ns: Int64
    """How much earlier than on the last GPU each starts, occurrences x GPUs."""
    last_start_ns: Int64
    """When the last GPU starts each occurrence."""
    compute: int
    """Compute activities of the run."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: NDArray[np.generic]) -> Occurrences:
        """Some of the occurrences."""
        return Occurrences(
            self.gpus,
            self.rows[chosen],
            self.lead_ns[chosen],
            self.last_start_ns[chosen],
            self.compute,
        )


_KNOWN: WeakKeyDictionary[Run, Occurrences] = WeakKeyDictionary()


def occurrences_of(run: Run) -> Occurrences:
    """The occurrences of a run that all its GPUs with compute have, matched once."""
    if run not in _KNOWN:
        _KNOWN[run] = _matched(run)
    return _KNOWN[run]


def within(run: Run, found: Occurrences, node: Groups) -> Occurrences:
    """The occurrences of which a node has any kernel."""
    inside = np.zeros(len(run.table), np.bool_)
    inside[node.selection] = True
    chosen: Mask = np.logical_or.reduce(inside[found.rows], axis=1)
    return found.take(chosen)


def cut_iterations(run: Run) -> frozenset[int]:
    """The iterations that the profiler's start or end cut on any GPU."""
    return frozenset().union(*run.partial_iterations.values())


def _matched(run: Run) -> Occurrences:
    table = run.table
    rows = run.tree().node(()).rows
    rows = rows[table.kind[rows] == Kind.COMPUTE]
    keys = [table.column(level)[rows] for level in LEVELS]
    changes = np.ones(len(rows), np.bool_)
    if len(rows):
        changes[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.flatnonzero(changes)
    lane = np.cumsum(changes) - 1
    place = np.arange(len(rows)) - first[lane]
    # Where a GPU has more of a kernel than the others, its n-th there may not be their n-th.
    size = np.diff(np.append(first, len(rows)))[lane]
    code = np.zeros(len(rows), np.int64)
    for key in (*keys[1:], size, place):
        known = np.asarray(key, np.int64)
        if not len(known):
            break
        low, width = int(known.min()), int(np.ptp(known)) + 1
        if int(code.max() + 1) > np.iinfo(np.int64).max // width:
            code = np.unique(code, return_inverse=True)[1].ravel()
        code = code * width + (known - low)
    gpus, gpu = np.unique(keys[0], return_inverse=True)
    # Equal codes come together, by GPU; each GPU has a code once at most.
    order = np.lexsort((gpu.ravel(), code))
    ordered = code[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    sizes = np.diff(np.append(starts, len(ordered)))
    whole = starts[sizes == len(gpus)] if len(gpus) > 1 else starts[:0]
    matched = rows[order[whole[:, None] + np.arange(len(gpus))]]
    start = table.start_ns[matched]
    last = start.max(axis=1) if len(matched) else np.zeros(0, np.int64)
    by_time = np.argsort(last, kind="stable")
    return Occurrences(
        gpus=tuple(int(gpu) for gpu in gpus),
        rows=matched[by_time],
        lead_ns=(last[:, None] - start)[by_time],
        last_start_ns=last[by_time],
        compute=len(rows),
    )
