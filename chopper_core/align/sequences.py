"""Aligning two sequences of kernels: the longest common subsequence, and where it is certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Index = NDArray[np.intp]
Bits = NDArray[np.uint8]

UNMATCHED: Final = -1
UNKNOWN: Final = -1
"""A shape that isn't known: it forbids no pair."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """For each element of the first sequence its partner in the second one."""

    partner: Index
    """Position in the second sequence, or UNMATCHED."""
    ambiguous: NDArray[np.bool_]
    """Where another equally long alignment pairs the element otherwise, or not at all."""

    @property
    def matched(self) -> int:
        """How many elements have a partner."""
        return int((self.partner != UNMATCHED).sum())


@dataclass(frozen=True, slots=True)
class Launched:
    """Kernels in the order of their launch."""

    code: Int64
    """Equal for the same kernel."""
    shape: Int64
    """Equal for the same size of launch; UNKNOWN where it can't be compared."""

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Index | slice | NDArray[np.bool_]) -> Launched:
        """The kernels at the rows."""
        return Launched(self.code[rows], self.shape[rows])

    def alike(self, code: int, shape: int) -> NDArray[np.bool_]:
        """Which of the kernels may be one of this code and shape."""
        same: NDArray[np.bool_] = self.code == code
        if shape != UNKNOWN:
            same &= (self.shape == shape) | (self.shape == UNKNOWN)
        return same


def align(first: Launched, second: Launched) -> Alignment:
    """Pair kernels that may be the same, in order, as many as possible.

    Of several longest alignments the one with the earliest partners is taken. Time goes with the
    product of the lengths; memory with an eighth of a byte for each pair of elements.
    """
    if len(first) == len(second) and np.array_equal(first.code, second.code):
        known = (first.shape != UNKNOWN) & (second.shape != UNKNOWN)
        if (first.shape[known] == second.shape[known]).all():
            return Alignment(np.arange(len(first)), np.zeros(len(first), np.bool_))
    partner = np.full(len(first), UNMATCHED, np.intp)
    ambiguous = np.zeros(len(first), np.bool_)
    if not len(first) or not len(second):
        return Alignment(partner, ambiguous)
    rest = _rests(first, second)
    here = _row(rest[0], len(second))
    longest = int(here[0])
    before = np.zeros(len(second) + 1, np.int32)
    column = 0
    for position, element in enumerate(zip(first.code, first.shape, strict=True)):
        equal = second.alike(*element)
        after = _row(rest[position + 1], len(second))
        hits = np.flatnonzero(equal[column:])
        if len(hits):
            hit = column + int(hits[0])
            # Pairing this element must not cost a pair later on.
            if after[hit + 1] + 1 == here[column]:
                partner[position] = hit
                # Certain is a pair that every longest alignment has: no other partner lies on
                # one, and none leaves the element out.
                on_one = equal & (before[:-1] + 1 + after[1:] == longest)
                ambiguous[position] = on_one.sum() > 1 or bool((before + after == longest).any())
                column = hit + 1
        before, here = _next_row(before, equal), after
    return Alignment(partner, ambiguous)


def with_moved(found: Alignment, first: Launched, second: Launched) -> Alignment:
    """The alignment with what changed places: the same kernel with the same known shape.

    Certain is such a pair, in order or not, between the same neighbouring certain pairs, where
    both sides have one of the kind only.
    """
    anchor = (found.partner != UNMATCHED) & ~found.ambiguous
    is_anchor_there = np.zeros(len(second), np.bool_)
    is_anchor_there[found.partner[anchor]] = True
    ours, theirs = _by_kind(first, anchor), _by_kind(second, is_anchor_there)
    partner, ambiguous = found.partner.copy(), found.ambiguous.copy()
    for kind, here in ours.items():
        there = theirs.get(kind, [])
        unsized = (*kind[:2], UNKNOWN)
        is_one = len(here) == len(there) == 1 and kind != unsized
        if is_one and unsized not in ours and unsized not in theirs:
            partner[here[0]], ambiguous[here[0]] = there[0], False
    return Alignment(partner, ambiguous)


def _by_kind(kernels: Launched, anchor: NDArray[np.bool_]) -> dict[tuple[int, int, int], list[int]]:
    """The kernels that are no anchors by (number of anchors before, code, shape)."""
    found: dict[tuple[int, int, int], list[int]] = {}
    gap = np.cumsum(anchor)
    for position in np.flatnonzero(~anchor).tolist():
        kind = int(gap[position]), int(kernels.code[position]), int(kernels.shape[position])
        found.setdefault(kind, []).append(position)
    return found


def _rests(first: Launched, second: Launched) -> Bits:
    """For each beginning in `first` the lengths that are left, by beginning in `second`.

    Neighbouring lengths differ by 0 or 1: each row is packed as these steps.
    """
    packed = np.zeros((len(first) + 1, (len(second) + 7) // 8), np.uint8)
    lengths = np.zeros(len(second) + 1, np.int32)
    mirrored = second.take(slice(None, None, -1))
    for position in range(len(first) - 1, -1, -1):
        equal = mirrored.alike(first.code[position], first.shape[position])
        lengths = _next_row(lengths, equal)
        packed[position] = np.packbits(np.diff(lengths).astype(np.uint8))
    return packed


def _row(packed: Bits, width: int) -> Int32:
    """The lengths that are left from each beginning in the second sequence on."""
    lengths = np.zeros(width + 1, np.int32)
    np.cumsum(np.unpackbits(packed, count=width), out=lengths[1:])
    return lengths[::-1]


def _next_row(row: Int32, equal: NDArray[np.bool_]) -> Int32:
    """The lengths with each prefix of the second sequence, for one more element of the first."""
    following = row.copy()
    np.maximum(following[1:], row[:-1] + equal, out=following[1:])
    return np.maximum.accumulate(following)
