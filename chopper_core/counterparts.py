"""Kernels of two runs that stand at the same place under different names.

The place of an activity is its operation and layer, and there the number of kernels before it
that both runs have by name, and its distance from the last of them. Two names that only one side
has are counterparts where they share at least half of their places; the closest pair first, each
name once. Phase, layer and operation count only where the compared nodes don't fix them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.schema import NO_LABEL
from chopper_core.tree import Groups

LEAST_SHARED: Final = 0.5
_STEP: Final = ("gpu", "iteration")
_PARTS: Final = ("phase", "layer", "operation")

Place = tuple[int | str, ...]
Shares = Mapping[Place, Mapping[str, float]]
"""At each place the share of every name that stands there."""


@dataclass(frozen=True, slots=True)
class Side:
    """A node of one run, and the levels that its path fixes."""

    node: Groups
    fixed: Collection[str]


def counterparts(ours: Side, base: Side, common: Collection[str]) -> dict[str, str]:
    """Our name → the baseline's, of kernels that are not in `common` but at the same places."""
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
        if closeness[own, other] >= LEAST_SHARED and own not in found and other not in taken:
            found[own] = other
            taken.add(other)
    return found


def _shares(node: Groups, free: Iterable[str], common: Collection[str]) -> Shares:
    table, rows = node.table, node.rows
    levels = (*_STEP, *_PARTS)
    keys = [table.column(level)[rows] for level in levels]
    order = np.lexsort((table.stream[rows], table.start_ns[rows], *reversed(keys)))
    rows = rows[order]
    keys = [key[order] for key in keys]
    changed = np.ones(len(rows), np.bool_)
    changed[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    names = table.kernel[rows]
    labels = {int(code): table.text_of("kernel", int(code)) for code in np.unique(names)}
    is_common = np.isin(names, [code for code, label in labels.items() if label in common])
    before, since = _from_anchors(changed, is_common)
    alone = np.flatnonzero(~is_common)
    columns = [table.column(part)[rows[alone]] for part in free]
    stacked = np.stack([*columns, before[alone], since[alone], names[alone]]).astype(np.int64)
    places, counts = np.unique(stacked, axis=1, return_counts=True)
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


def _from_anchors(
    changed: NDArray[np.bool_], is_common: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each row how many common ones come before it in its part, and how far the last is."""
    position = np.arange(len(changed))
    begin = np.maximum.accumulate(np.where(changed, position, 0))
    count: NDArray[np.int64] = np.cumsum(is_common)
    before: NDArray[np.int64] = count - is_common - (count - is_common)[begin]
    anchor = np.maximum.accumulate(np.where(is_common, position, -1))
    return before, position - np.maximum(anchor, begin - 1)


def _sizes(shares: Shares) -> dict[str, float]:
    sizes: dict[str, float] = defaultdict(float)
    for names in shares.values():
        for name, share in names.items():
            sizes[name] += share
    return sizes
