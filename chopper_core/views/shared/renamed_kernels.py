"""Kernels that run at the same place in two runs under different names.

The place of an activity is its operation and layer, the number of kernels before it there that
both runs have by name, and its distance from the last of those. Two names that only one side has
are the same kernel renamed if they share at least half of their places; the closest pair first,
each name once. Phase, layer and operation count only where the compared nodes don't fix them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import AnyArray, Index, Int64, Mask
from chopper_core.util.grouping import (
    distinct,
    ranked,
    run_mask,
    run_sizes,
    run_starts,
    stable_order,
)

MIN_SHARED: Final = 0.5
_MAX_ROWS: Final = 1 << 20
"""The most rows that are compared; larger nodes are sampled by iteration."""
_STEP: Final = ("gpu", "iteration")
_PARTS: Final = ("phase", "layer", "operation")

Place = tuple[int | str, ...]
Shares = Mapping[Place, Mapping[str, float]]
"""Place → name → the share of the activities there that have it."""


class Side(Struct, frozen=True):
    """A node of one run, and the levels that its path fixes."""

    node: Groups
    fixed: Collection[str]


def renamed_kernels(ours: Side, base: Side, common: Collection[str]) -> dict[str, str]:
    """Renamed kernels, of those not in `common`: our name → the baseline's."""
    free = [part for part in _PARTS if part not in ours.fixed and part not in base.fixed]
    sides = [_shares(side.node, free, common) for side in (ours, base)]
    sizes = [_sizes(shares) for shares in sides]
    shared: dict[tuple[str, str], float] = defaultdict(float)
    for place, names in sides[0].items():
        for own, share in names.items():
            for other, other_share in sides[1].get(place, {}).items():
                shared[own, other] += min(share, other_share)
    closeness = {
        (own, other): 2 * amount / (sizes[0][own] + sizes[1][other])
        for (own, other), amount in shared.items()
    }
    found: dict[str, str] = {}
    taken: set[str] = set()
    for own, other in sorted(closeness, key=lambda pair: (-closeness[pair], pair)):
        if closeness[own, other] >= MIN_SHARED and own not in found and other not in taken:
            found[own] = other
            taken.add(other)
    return found


def _shares(node: Groups, free: Iterable[str], common: Collection[str]) -> Shares:
    table, rows = node.table, _sampled(node)
    levels = (*_STEP, *_PARTS)
    keys = [table.column(level)[rows] for level in levels]
    part = np.zeros(len(rows), np.int64)
    for key in keys:
        _, part = ranked(part * (int(key.max(initial=0)) + 2) + key)
    order = np.lexsort((table.stream[rows], table.start_ns[rows], part))
    rows, part = rows[order], part[order]
    changed = run_mask(part)
    names = table.kernel[rows]
    labels = {int(code): table.text_of("kernel", int(code)) for code in distinct(names)}
    is_common = np.isin(names, [code for code, label in labels.items() if label in common])
    before, since = _from_anchors(changed, is_common)
    alone = np.flatnonzero(~is_common)
    columns = [table.column(part)[rows[alone]] for part in free]
    stacked: list[AnyArray] = [*columns, before[alone], since[alone], names[alone]]
    places, counts = _counted([each.astype(np.int64) for each in stacked])
    at: dict[Place, dict[str, float]] = defaultdict(dict)
    for *place, name, count in zip(*places.tolist(), counts.tolist(), strict=True):
        parts = [
            table.operations[code] if part == "operation" and code != NO_LABEL else code
            for part, code in zip(free, place, strict=False)
        ]
        at[(*parts, *place[-2:])][labels[name]] = float(count)
    return {
        place: {name: count / sum(found.values()) for name, count in found.items()}
        for place, found in at.items()
    }


def _sampled(node: Groups) -> Index:
    """The rows, or of very many those of some iterations: iterations are much alike."""
    table, rows = node.table, node.rows
    every = -(-len(rows) // _MAX_ROWS)
    if every < 2:
        return rows
    gpus: Int64 = table.column("gpu")[rows].astype(np.int64)
    iterations: Int64 = table.column("iteration")[rows].astype(np.int64)
    step = gpus * (int(iterations.max()) + 2) + iterations
    _, number = ranked(step)
    return rows[number % every == every // 2] if number.max() >= every else rows


def _counted(columns: Sequence[Int64]) -> tuple[Int64, Int64]:
    """The distinct combinations, as columns x combinations, and the count of each."""
    key = np.zeros(len(columns[0]), np.intp)
    for column in columns:
        # Ranks stay below the number of rows, so that no combination overflows.
        known, place = ranked(column)
        _, key = ranked(key * len(known) + place)
    order = stable_order(key)
    first = run_starts(key[order])
    return np.stack([column[order[first]] for column in columns]), run_sizes(first, len(key))


def _from_anchors(changed: Mask, is_common: Mask) -> tuple[Int64, Int64]:
    """How many common rows precede each row in its part, and the distance to the last of them."""
    position = np.arange(len(changed))
    begin = np.maximum.accumulate(np.where(changed, position, 0))
    count: Int64 = np.cumsum(is_common)
    before: Int64 = count - is_common - (count - is_common)[begin]
    anchor = np.maximum.accumulate(np.where(is_common, position, -1))
    return before, position - np.maximum(anchor, begin - 1)


def _sizes(shares: Shares) -> dict[str, float]:
    sizes: dict[str, float] = defaultdict(float)
    for names in shares.values():
        for name, share in names.items():
            sizes[name] += share
    return sizes
