"""Operations of two runs that do the same work under other names: by their kernels and their place.

Two operations that only one side has are the same work if their names differ in case and
underscores alone; or if they share at least half of their kernels, by phase and number per step and
GPU, and stand at the same place among the common operations of their layer. Kernels are the same by
name, else by class. The pair that shares the most comes first, each name once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import combined, counts_of, distinct, ranked, run_mask, sums_of
from chopper_core.work.kernel_classes import OTHER_CLASS, kernel_class

MIN_SHARED: Final = 0.5
"""The part of their kernels, or of their places, that two names have to share."""
_NEAR: Final = 0.25
"""The part of a layer that two operations at the same place are apart at most."""
_MAX_ROWS: Final = 1 << 20
"""The most rows that are compared by name; larger nodes are sampled by step."""
_STEP: Final = ("gpu", "iteration")
_PART: Final = (*_STEP, "phase", "layer")

Kernel = tuple[int, str]
"""Its phase, and its name or class."""


class Side(Struct, frozen=True):
    """One of two compared nodes, and the labels of its rows."""

    run: Run
    view: View
    labels: Sequence[str]


class OperationMix(Struct, frozen=True):
    """What an operation runs in a step on a GPU, and where."""

    counts: MutableMapping[Kernel, float]
    times_ns: MutableMapping[Kernel, float]
    place: float
    """The mean part of the common kernels of its layer that start before; NaN without any."""

    def by_class(self) -> OperationMix:
        counts, times_ns = (
            _summed(((phase, _class_of(name)), amount) for (phase, name), amount in each.items())
            for each in (self.counts, self.times_ns)
        )
        return OperationMix(counts, times_ns, self.place)


def _class_of(name: str) -> str:
    """The class of a kernel; one of no known class is its own."""
    known = kernel_class(name)
    return name if known == OTHER_CLASS else known


def _summed(amounts: Iterable[tuple[Kernel, float]]) -> MutableMapping[Kernel, float]:
    sums: dict[Kernel, float] = defaultdict(float)
    for key, amount in amounts:
        sums[key] += amount
    return sums


def sampled_rows(side: Side) -> Index:
    """The rows of a side's node, or those of some of its steps."""
    table, rows = side.run.table, side.run.tree_of(side.view).node(side.view.path).rows
    every = -(-len(rows) // _MAX_ROWS)
    number = combined([table.column(level)[rows] for level in _STEP])[1]
    if every > 1 and number.max() >= every:
        rows = rows[number % every == every // 2]
    return rows


def same_work(
    ours: Side, base: Side, free: Sequence[str], common: Collection[str]
) -> dict[str, str]:
    """Our operation → the baseline's, of those that are not `common`.

    Phases count where they are `free`, not fixed by the compared nodes.
    """
    own, other = (_work_of(side, "phase" in free, common) for side in (ours, base))
    spelled = {_plain(name): name for name in other}
    found = {name: spelled[_plain(name)] for name in own if _plain(name) in spelled}
    for _ in range(2):
        own = {name: work for name, work in own.items() if name not in found}
        other = {name: work for name, work in other.items() if name not in found.values()}
        found |= _closest(own, other)
        own, other = (
            {name: each.by_class() for name, each in side.items()} for side in (own, other)
        )
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _closest(own: Mapping[str, OperationMix], other: Mapping[str, OperationMix]) -> dict[str, str]:
    """The pairs that share enough of their kernels at one place, those with the most time first."""
    pairs = [
        (-sum(_smaller(own[mine].times_ns, other[theirs].times_ns)), mine, theirs)
        for mine, theirs in product(own, other)
        if _apart(own[mine].place, other[theirs].place) <= _NEAR
        and _share(own[mine].counts, other[theirs].counts) >= MIN_SHARED
    ]
    found: dict[str, str] = {}
    for _, mine, theirs in sorted(pairs):
        if mine not in found and theirs not in found.values():
            found[mine] = theirs
    return found


def _apart(own: float, other: float) -> float:
    """How far apart two places are: the end of a layer is next to the start of another."""
    return min(abs(own - other), 1 - abs(own - other))


def _share(own: Mapping[Kernel, float], other: Mapping[Kernel, float]) -> float:
    return 2 * sum(_smaller(own, other)) / (sum(own.values()) + sum(other.values()))


def _smaller(own: Mapping[Kernel, float], other: Mapping[Kernel, float]) -> list[float]:
    return [min(amount, other[each]) for each, amount in own.items() if each in other]


def _work_of(side: Side, has_phases: bool, common: Collection[str]) -> dict[str, OperationMix]:
    """The work of each operation that isn't common."""
    table, rows = side.run.table, sampled_rows(side)
    part = combined([table.column(level)[rows] for level in _PART])[1]
    order = np.lexsort((table.stream[rows], table.start_ns[rows], part))
    rows, part = rows[order], part[order]
    operation = table.column("operation")[rows]
    texts = {code: table.text_of("operation", code) for code in distinct(operation).tolist()}
    is_common = np.isin(operation, [code for code, text in texts.items() if text in common])
    # The part of the common kernels of the row's layer that start before it.
    before: Int64 = np.cumsum(is_common) - is_common
    first = np.maximum.accumulate(np.where(run_mask(part), np.arange(len(part)), 0))
    with np.errstate(invalid="ignore"):
        place = (before - before[first]) / sums_of(is_common, part)[part]
    steps = len(distinct(combined([table.column(level)[rows] for level in _STEP])[1]))
    alone = np.flatnonzero(~is_common & (operation != NO_LABEL))
    rows, codes, owner = rows[alone], *ranked(operation[alone])
    phase = table.phase[rows] if has_phases else np.zeros(len(rows), np.int64)
    places = sums_of(place[alone], owner) / counts_of(owner)
    found = {
        texts[code]: OperationMix({}, {}, mean)
        for code, mean in zip(codes.tolist(), places.tolist(), strict=True)
    }
    works = [*found.values()]
    keys, which = combined([owner, phase, table.kernel[rows]])
    amounts = counts_of(which) / steps, sums_of(table.duration_ns[rows], which) / steps
    for (at, own_phase, kernel), count, time_ns in zip(keys.tolist(), *amounts, strict=True):
        key = own_phase, table.names[kernel]
        works[at].counts[key], works[at].times_ns[key] = float(count), float(time_ns)
    return found
