"""Compute matched across GPUs: the same kernel at the same place of the step, and who leads.

An occurrence is one kernel of an iteration, phase, layer and operation, the n-th of its name
there, where all GPUs have as many. Its lead on a GPU is how much earlier it starts there than on
the GPU that starts it last (Lit Silicon, algorithm 1, over every occurrence).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, KernelTable, Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import ranked, run_mask, stable_order


class Occurrences(Struct, frozen=True, eq=False):
    """The compute of a run that runs on every GPU, as occurrences x GPUs, in order of time."""

    table: KernelTable
    gpus: tuple[int, ...]
    rows: Index
    """Rows of the kernel table, occurrences x GPUs, GPU by GPU in memory."""
    lead_ns: Int64
    """How much earlier than on the last GPU each starts, as the rows."""
    last_start_ns: Int64
    """When the last GPU starts each occurrence."""
    compute: int
    """Compute activities of the iterations."""

    def __len__(self) -> int:
        return len(self.rows)

    def durations_ns(self) -> Iterator[Int64]:
        """How long each takes, GPU by GPU."""
        return (self.table.duration_ns[own] for own in self.rows.T)

    def take(self, chosen: Numbers) -> Occurrences:
        """Some of the occurrences."""
        return replace(
            self,
            rows=self.rows.T[:, chosen].T,
            lead_ns=self.lead_ns.T[:, chosen].T,
            last_start_ns=self.last_start_ns[chosen],
        )


_CACHED_SETS: Final = 8
"""Sets of iterations whose occurrences are cached."""
MAX_MATCHED: Final = 1 << 22
"""With more activities, evenly chosen iterations are compared."""


def occurrences_of(run: Run, iterations: tuple[int, ...] = ()) -> Occurrences:
    """The occurrences that all GPUs with compute have, of some iterations or all; matched once."""
    key = ("matched kernels", iterations)
    return run.memo(key, lambda: _matched(run, iterations), keep=_CACHED_SETS)


def compared_iterations(run: Run, view: View) -> tuple[int, ...]:
    """The iterations of a scope that are compared where those of the run are too many, else ()."""
    tree = run.tree(view.order)
    whole = run.tree().split((), ("iteration",))
    if int(whole.sizes().sum()) <= MAX_MATCHED:
        return ()
    scope = tree.split(view.path, ("iteration",))
    numbers, sizes = whole.codes("iteration").tolist(), whole.sizes().tolist()
    costs = dict(zip(numbers, sizes, strict=True))
    cut = cut_iterations(run)
    here = [int(code) for code in scope.codes("iteration")]
    here = [code for code in here if code not in cut] or here
    fitting = max(1, int(MAX_MATCHED * len(here) / sum(costs[code] for code in here)))
    if fitting >= len(here):
        return tuple(here)
    places = np.linspace(0, len(here) - 1, fitting + 2)[1:-1].round().astype(np.intp)
    return tuple(here[place] for place in places.tolist())


def within(run: Run, found: Occurrences, node: Groups) -> Occurrences:
    """The occurrences of which a node has any kernel."""
    inside = np.zeros(len(run.table), np.bool_)
    inside[node.selection] = True
    chosen: Mask = np.logical_or.reduce(inside[found.rows], axis=1)
    return found.take(chosen)


def cut_iterations(run: Run) -> frozenset[int]:
    """The iterations truncated by the profiling window on any GPU."""
    return frozenset().union(*run.partial_iterations.values())


def _matched(run: Run, iterations: tuple[int, ...]) -> Occurrences:
    table = run.table
    rows = _compute_of(run)
    if iterations:
        rows = rows[np.isin(table.iteration[rows], iterations)]
    whose, gpus = table.gpu[rows], run.tree().codes_of("gpu")
    begin, end = (np.searchsorted(whose, gpus, side) for side in ("left", "right"))
    gpus, begin, end = (values[end > begin] for values in (gpus, begin, end))
    spans = zip(begin.tolist(), end.tolist(), strict=True)
    parts = [rows[low:high] for low, high in spans] if len(gpus) > 1 else []
    matched = _common(run, parts) if parts else [rows[:0]] * max(len(gpus), 1)
    last = table.start_ns[matched[0]]
    for own in matched[1:]:
        np.maximum(last, table.start_ns[own], out=last)
    order = stable_order(last)
    last = last[order]
    # GPU by GPU, so that what is reduced over the GPUs lies side by side.
    places = np.empty((len(matched), len(last)), np.intp)
    lead = np.empty(places.shape, np.int64)
    for at, own in enumerate(matched):
        np.take(own, order, out=places[at], mode="clip")
        np.take(table.start_ns[own], order, out=lead[at], mode="clip")
        np.subtract(last, lead[at], out=lead[at])
    numbers = tuple(int(gpu) for gpu in gpus)
    return Occurrences(table, numbers, places.T, lead.T, last, len(rows))


def _compute_of(run: Run) -> Index:
    """The rows of all compute, in the order of the levels."""
    selection = run.tree().node(()).selection
    computes = np.flatnonzero(run.table.kind[selection] == Kind.COMPUTE)
    return computes + selection.start if isinstance(selection, slice) else selection[computes]


def _common(run: Run, parts: list[Index]) -> list[Index]:
    """Of each GPU's rows those that all GPUs have, one beside the other."""
    table = run.table
    numbers = [table.iteration[own] for own in parts]
    labels = [[table.column(level)[own] for level in LEVELS[2:]] for own in parts]
    everything = [slice(0, len(own)) for own in parts]
    if _are_alike(
        [[number, *each] for number, each in zip(numbers, labels, strict=True)], everything
    ):
        return parts
    iterations = run.tree().codes_of("iteration")
    edges = [
        [np.searchsorted(own, iterations, side) for side in ("left", "right")] for own in numbers
    ]
    same: list[list[Index]] = [[] for _ in parts]
    others: list[list[Index]] = [[] for _ in parts]
    for number in range(len(iterations)):
        spans = [slice(int(begin[number]), int(end[number])) for begin, end in edges]
        into = same if _are_alike(labels, spans) else others
        for own, span, kept in zip(parts, spans, into, strict=True):
            kept.append(own[span])
    left = _by_code(
        run, [np.concatenate([own[:0], *rest]) for own, rest in zip(parts, others, strict=True)]
    )
    return [np.concatenate([*kept, rest]) for kept, rest in zip(same, left, strict=True)]


def _are_alike(columns: list[list[AnyArray]], spans: list[slice]) -> bool:
    """Whether all GPUs have the same labels in their spans."""
    return all(
        np.array_equal(first[spans[0]], own[span])
        for others, span in zip(columns[1:], spans[1:], strict=True)
        for first, own in zip(columns[0], others, strict=True)
    )


def _by_code(run: Run, parts: list[Index]) -> list[Index]:
    """The rows that all GPUs have: of the same labels, and the n-th of those."""
    rows = np.concatenate(parts)
    keys = [run.table.column(level)[rows] for level in LEVELS]
    changes = run_mask(*keys)
    first = np.flatnonzero(changes)
    lane = np.cumsum(changes) - 1
    place = np.arange(len(rows)) - first[lane]
    # Where a GPU has more of a kernel than the others, its n-th there may not be their n-th.
    size = np.diff(np.append(first, len(rows)))[lane]
    code = np.zeros(len(rows), np.int64)
    for key in (*keys[1:], size, place) if len(rows) else ():
        known = np.asarray(key, np.int64)
        low, width = int(known.min()), int(np.ptp(known)) + 1
        if int(code.max() + 1) > np.iinfo(np.int64).max // width:
            code = ranked(code)[1]
        code = code * width + (known - low)
    # Rows are in the order of the keys, so each GPU's codes rise, and none comes twice.
    codes = np.split(code, np.cumsum([len(own) for own in parts])[:-1])
    common = codes[0]
    for own in codes[1:]:
        common = np.intersect1d(common, own, assume_unique=True)
    return [
        own[np.searchsorted(mine, common)] if len(common) else own[:0]
        for own, mine in zip(parts, codes, strict=True)
    ]
