"""Which rows of the tree are compared: none of either side is left out.

Kernels that run at the same place in two runs under different names are one row. The place of an
activity is its operation and layer, the number of kernels before it there that both runs have by
name, and its distance from the last of those. Two names that only one side has are the same kernel
renamed if they share at least half of their places; the closest pair first, each name once. Phase,
layer and operation count only where the compared nodes don't fix them. Operations are paired by the
common ones around them in their phase and layer, as two frameworks name the same work otherwise:
those that are alone there, else the n-th of the same class of kernels. Those that stand elsewhere
are paired by their kernels (`same_work`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct

from chopper_core.analyses.same_work import MIN_SHARED, Side, same_work, sampled_rows
from chopper_core.columns import Metric, Values
from chopper_core.columns.derived import of_sides, whole_of
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import combined, counts_of, distinct, nth_of, run_mask, run_starts
from chopper_core.work.kernel_classes import kernel_classes

RENAMED: Final = {"kernel": ("phase", "layer", "operation"), "operation": ("phase", "layer")}
"""Levels whose labels are paired by their place, and the parts of a place."""
_STEP: Final = ("gpu", "iteration")


class Pairs(Struct, frozen=True):
    """The rows of a view and of its baseline, matched by their labels.

    `labels` are ours in their order, then those that only the baseline has. `ours` and `base` are
    the positions of each pair among the rows of its side, -1 for a row that the side lacks.
    """

    labels: tuple[str, ...]
    ours: Index
    base: Index
    partners: tuple[str, ...]
    """The label of a row in the baseline, where it differs; else empty."""
    instead: Mapping[str, str] = {}
    """By label, what below a row only one side has."""

    def aligned(self, ours: Values, base: Values) -> tuple[Values, Values]:
        """The values of both sides in the order of pairs; missing for rows that a side lacks."""
        found = []
        for values, places in ((ours, self.ours), (base, self.base)):
            if len(values):
                taken = values.take(np.maximum(places, 0))
                missing = ~taken.present() | (places < 0)
                found.append(Values(taken.numbers, missing, taken.extrapolated))
            else:
                found.append(Values(np.full(len(places), np.nan)))
        return found[0], found[1]

    def known(
        self,
        metric: Metric,
        values: Callable[[str], tuple[Values, Values]],
        runs: Sequence[Run],
    ) -> tuple[Values, Values]:
        """A figure of both sides in the order of pairs, 0 in rows of which a side has none.

        `values` are those of a figure by its name, in the rows of each side.
        """
        sides = self.aligned(*values(metric.name))
        could = [places >= 0 for places in (self.ours, self.base)]
        unknown = [there & ~side.present() for there, side in zip(could, sides, strict=True)]
        if np.any(unknown) and (whole := whole_of(metric)):
            wholes = self.aligned(*values(whole))
            could = [
                there & (each.known(missing=0.0) > 0)
                for there, each in zip(could, wholes, strict=True)
            ]
        return of_sides(metric, sides, runs, could)


def matched(ours: Sequence[str], base: Sequence[str], renamed: Mapping[str, str]) -> Pairs:
    """Pairs of rows with the same label, or renamed: our label → the baseline's."""
    theirs = [renamed.get(label, label) for label in ours]
    places = {label: place for place, label in enumerate(base)}
    here = set(theirs)
    removed = [label for label in base if label not in here]
    partners = [other if other != label else "" for label, other in zip(ours, theirs, strict=True)]
    return Pairs(
        (*ours, *removed),
        np.array([*range(len(ours)), *(-1 for _ in removed)], np.intp),
        np.array([places.get(label, -1) for label in (*theirs, *removed)], np.intp),
        (*partners, *("" for _ in removed)),
    )


def all_with(labels: Sequence[str], row: str) -> Pairs:
    """Pairs of all rows with one of them."""
    count, place = len(labels), labels.index(row) if row in labels else -1
    return Pairs(tuple(labels), np.arange(count), np.full(count, place), ("",) * count)


Place = tuple[int | str, ...]
Key = TypeVar("Key")


def renamed_labels(ours: Side, base: Side, level: str) -> dict[str, str]:
    """Our name → the baseline's, of kernels or operations that only one side has by name."""
    common = set(ours.labels) & set(base.labels)
    if len(common) == min(len(ours.labels), len(base.labels)):
        return {}
    fixed = dict((*ours.view.scope, *base.view.scope))
    free = [part for part in RENAMED[level] if part not in fixed]
    shares, base_shares = (_shares(side, level, free, common) for side in (ours, base))
    sizes, base_sizes = (_summed(each.values()) for each in (shares, base_shares))
    shared = _summed(
        {
            (own, other): min(share, other_share)
            for own, share in names.items()
            for other, other_share in base_shares.get(place, {}).items()
        }
        for place, names in shares.items()
    )
    closeness = {
        (own, other): 2 * amount / (sizes[own] + base_sizes[other])
        for (own, other), amount in shared.items()
    }
    found: dict[str, str] = {}
    for own, other in sorted(closeness, key=lambda pair: (-closeness[pair], pair)):
        is_free = own not in found and other not in found.values()
        if is_free and closeness[own, other] >= MIN_SHARED:
            found[own] = other
    if level == "operation":
        found |= same_work(ours, base, free, {*common, *found, *found.values()})
    return found


def _summed(each: Iterable[Mapping[Key, float]]) -> Mapping[Key, float]:
    sums: dict[Key, float] = defaultdict(float)
    for amounts in each:
        for key, amount in amounts.items():
            sums[key] += amount
    return sums


def _shares(
    side: Side, level: str, free: Sequence[str], common: Collection[str]
) -> dict[Place, dict[str, float]]:
    table, rows = side.run.table, sampled_rows(side)
    part = combined([table.column(name)[rows] for name in (*_STEP, *RENAMED[level])])[1]
    order = np.lexsort((table.stream[rows], table.start_ns[rows], part))
    rows, part = rows[order], part[order]
    names = table.column(level)[rows]
    if level == "operation":
        # Its kernels in a row are one.
        first = run_starts(part, names)
        rows, part, names = rows[first], part[first], names[first]
    labels = {int(code): table.text_of(level, int(code)) for code in distinct(names)}
    is_common = np.isin(names, [code for code, label in labels.items() if label in common])
    # How many common rows precede each row in its part, and the distance to the last of them.
    position = np.arange(len(rows))
    begin = np.maximum.accumulate(np.where(run_mask(part), position, 0))
    before: Int64 = np.cumsum(is_common) - is_common
    anchor = np.maximum.accumulate(np.where(is_common, position, -1))
    since = position - np.maximum(anchor, begin - 1)
    classes = [""]
    kind = np.zeros(len(rows), np.int64)
    if level == "operation":
        classes += kernel_classes(table.names)
        gap = combined([part, np.where(is_common, -1, before)])[1]
        kind = np.where(np.bincount(gap)[gap] > 1, 1 + table.kernel[rows], 0)
        kind = np.array([classes.index(each) for each in classes], np.int64)[kind]
        since = nth_of(combined([gap, kind])[1])
    columns = [
        *(table.column(level)[rows] for level in free),
        before - before[begin],
        since,
        kind,
        names,
    ]
    places, owner = combined([each[~is_common] for each in columns])
    at: dict[Place, dict[str, float]] = defaultdict(dict)
    for (*place, name), count in zip(places.tolist(), counts_of(owner).tolist(), strict=True):
        parts = [
            table.operations[code] if level == "operation" and code != NO_LABEL else code
            for level, code in zip(free, place, strict=False)
        ]
        at[(*parts, *place[-3:-1], classes[place[-1]])][labels[name]] = float(count)
    return {
        place: {name: count / sum(found.values()) for name, count in found.items()}
        for place, found in at.items()
    }
