"""Aligning two sequences of kernels: the longest common subsequence, in linear memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Index = NDArray[np.intp]

UNMATCHED: Final = -1
_SMALL: Final = 1 << 22
"""Cells up to which the whole table of lengths is kept."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """For each element of the first sequence its partner in the second one."""

    partner: Index
    """Position in the second sequence, or UNMATCHED."""
    ambiguous: NDArray[np.bool_]
    """Where another equally long alignment pairs the element otherwise."""

    @property
    def matched(self) -> int:
        """How many elements have a partner."""
        return int((self.partner != UNMATCHED).sum())


def align(first: Int64, second: Int64) -> Alignment:
    """Pair equal elements of two sequences in order, as many as possible.

    Equal elements at both ends pair up first. Of several longest alignments the one with the
    earliest partners is taken; where the one with the latest partners differs, the pair is
    ambiguous. Takes time of the product of the lengths, and memory of their sum.
    """
    shorter = min(len(first), len(second))
    head = _common_prefix(first[:shorter], second[:shorter])
    rest = shorter - head
    tail = _common_prefix(first[::-1][:rest], second[::-1][:rest])
    inner_first = first[head : len(first) - tail]
    inner_second = second[head : len(second) - tail]

    partner = np.full(len(first), UNMATCHED, np.intp)
    partner[:head] = np.arange(head)
    if tail:
        partner[-tail:] = np.arange(len(second) - tail, len(second))
    earliest = _longest(inner_first, inner_second)
    # The mirrored problem's earliest partners are this one's latest.
    mirrored = _longest(inner_first[::-1], inner_second[::-1])[::-1]
    latest = np.where(mirrored == UNMATCHED, UNMATCHED, len(inner_second) - 1 - mirrored)
    inner = slice(head, len(first) - tail)
    partner[inner] = np.where(earliest == UNMATCHED, UNMATCHED, earliest + head)
    ambiguous = np.zeros(len(first), np.bool_)
    ambiguous[inner] = (earliest != latest) & (earliest != UNMATCHED)
    return Alignment(partner, ambiguous)


def _common_prefix(first: Int64, second: Int64) -> int:
    different = np.flatnonzero(first != second)
    return int(different[0]) if len(different) else len(first)


def _longest(first: Int64, second: Int64) -> Index:
    """Partners of a longest common subsequence, as early in the second sequence as possible."""
    if len(first) == 0 or len(second) == 0:
        return np.full(len(first), UNMATCHED, np.intp)
    if len(first) * len(second) <= _SMALL:
        return _from_table(first, second)
    if len(first) == 1:
        hits = np.flatnonzero(second == first[0])
        return np.array([hits[0] if len(hits) else UNMATCHED], np.intp)
    # Hirschberg: a longest alignment crosses the middle of the first sequence where the lengths
    # of both halves add up to the most.
    middle = len(first) // 2
    before = _lengths(first[:middle], second)
    after = _lengths(first[middle:][::-1], second[::-1])[::-1]
    cut = int(np.argmax(before + after))
    left = _longest(first[:middle], second[:cut])
    right = _longest(first[middle:], second[cut:])
    return np.concatenate([left, np.where(right == UNMATCHED, UNMATCHED, right + cut)])


def _lengths(first: Int64, second: Int64) -> NDArray[np.int32]:
    """Length of the longest common subsequence of `first` with each prefix of `second`."""
    row = np.zeros(len(second) + 1, np.int32)
    for element in first:
        row = _next_row(row, second == element)
    return row


def _next_row(row: NDArray[np.int32], equal: NDArray[np.bool_]) -> NDArray[np.int32]:
    following = row.copy()
    np.maximum(following[1:], row[:-1] + equal, out=following[1:])
    return np.maximum.accumulate(following)


def _from_table(first: Int64, second: Int64) -> Index:
    table = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for position in range(len(first) - 1, -1, -1):
        row = _next_row(table[position + 1][::-1], (second == first[position])[::-1])
        table[position] = row[::-1]
    partner = np.full(len(first), UNMATCHED, np.intp)
    column = 0
    for position, element in enumerate(first):
        if column == len(second) or table[position, column] == 0:
            break
        if table[position + 1, column] == table[position, column]:
            hits = np.flatnonzero(second[column:] == element)
            # Pairing this element must not cost a pair later on.
            if not len(hits):
                continue
            hit = column + int(hits[0])
            if table[position + 1, hit + 1] + 1 < table[position, column]:
                continue
        else:
            hit = column + int(np.flatnonzero(second[column:] == element)[0])
        partner[position] = hit
        column = hit + 1
    return partner
