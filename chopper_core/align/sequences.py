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


def align(first: Int64, second: Int64) -> Alignment:
    """Pair equal elements of two sequences in order, as many as possible.

    Of several longest alignments the one with the earliest partners is taken. Time goes with the
    product of the lengths; memory with an eighth of a byte for each pair of elements.
    """
    if np.array_equal(first, second):
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
    for position, element in enumerate(first):
        equal = second == element
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


def _rests(first: Int64, second: Int64) -> Bits:
    """For each beginning in `first` the lengths that are left, by beginning in `second`.

    Neighbouring lengths differ by 0 or 1: each row is packed as these steps.
    """
    packed = np.zeros((len(first) + 1, (len(second) + 7) // 8), np.uint8)
    lengths = np.zeros(len(second) + 1, np.int32)
    mirrored = second[::-1]
    for position in range(len(first) - 1, -1, -1):
        lengths = _next_row(lengths, mirrored == first[position])
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
