"""Alignment of two kernel sequences: longest common subsequence, with ambiguities."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chopper_core.util.arrays import Index, Int32, Int64, Mask

Bits = NDArray[np.uint8]

UNMATCHED: Final = -1
UNKNOWN: Final = -1
"""A trait that can't be compared: it matches any."""


class Alignment(Struct, frozen=True):
    """The partner in the second sequence of each element of the first one."""

    partner: Index
    """Position in the second sequence, or UNMATCHED."""
    ambiguous: Mask
    """Where an equally long alignment pairs the element differently, or not at all."""

    @property
    def matched(self) -> int:
        """How many elements have a partner."""
        return int((self.partner != UNMATCHED).sum())


class Launched(Struct, frozen=True):
    """Kernels in launch order."""

    code: Int64
    """Equal for the same kernel."""
    traits: tuple[Int64, ...] = ()
    """Further codes that distinguish kernels, UNKNOWN where they can't be compared; both sides of
    an alignment have the same traits."""

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Index | slice | Mask) -> Launched:
        return Launched(self.code[rows], tuple(trait[rows] for trait in self.traits))

    def alike(self, other: Launched, position: int) -> Mask:
        """Which of the kernels may equal the other's at the position."""
        same: Mask = self.code == other.code[position]
        for ours, theirs in zip(self.traits, other.traits, strict=True):
            if theirs[position] != UNKNOWN:
                same &= (ours == theirs[position]) | (ours == UNKNOWN)
        return same

    def may_be(self, other: Launched) -> Mask:
        """Whether each kernel may equal the other's at the same position."""
        same: Mask = self.code == other.code
        for ours, theirs in zip(self.traits, other.traits, strict=True):
            same &= (ours == theirs) | (ours == UNKNOWN) | (theirs == UNKNOWN)
        return same


def align(first: Launched, second: Launched) -> Alignment:
    """Pair kernels that may be the same, in order, as many as possible.

    Of several longest alignments the one with the earliest partners wins. Time is linear if the
    second sequence contains the whole first one; else it is quadratic, with an eighth of a byte
    of memory per pair of elements.
    """
    if len(first) == len(second) and first.may_be(second).all():
        return Alignment(np.arange(len(first)), np.zeros(len(first), np.bool_))
    partner = np.full(len(first), UNMATCHED, np.intp)
    ambiguous = np.zeros(len(first), np.bool_)
    if not len(first) or not len(second):
        return Alignment(partner, ambiguous)
    earliest = _earliest(first, second)
    if earliest is not None:
        # Reversed, the earliest partners are the latest ones; all alignments lie between.
        mirrored = slice(None, None, -1)
        latest = _earliest(first.take(mirrored), second.take(mirrored))
        assert latest is not None
        return Alignment(earliest, earliest != len(second) - 1 - latest[mirrored])
    rest = _rests(first, second)
    here = _row(rest[0], len(second))
    longest = int(here[0])
    before = np.zeros(len(second) + 1, np.int32)
    column = 0
    for position in range(len(first)):
        equal = second.alike(first, position)
        after = _row(rest[position + 1], len(second))
        hits = np.flatnonzero(equal[column:])
        if len(hits):
            hit = column + int(hits[0])
            # Pairing this element must not cost a pair later on.
            if after[hit + 1] + 1 == here[column]:
                partner[position] = hit
                # A pair is certain if every longest alignment has it: none uses another
                # partner or skips the element.
                on_one = equal & (before[:-1] + 1 + after[1:] == longest)
                ambiguous[position] = on_one.sum() > 1 or bool((before + after == longest).any())
                column = hit + 1
        before, here = _next_row(before, equal), after
    return Alignment(partner, ambiguous)


def _earliest(first: Launched, second: Launched) -> Index | None:
    """The earliest partners, in order, if every kernel of the first sequence has one."""
    ours = list(zip(first.code.tolist(), *(trait.tolist() for trait in first.traits), strict=True))
    theirs = list(
        zip(second.code.tolist(), *(trait.tolist() for trait in second.traits), strict=True)
    )
    partner: list[int] = []
    column = 0
    for own in ours:
        while column < len(theirs) and not _may_be(own, theirs[column]):
            column += 1
        if len(theirs) - column < len(ours) - len(partner):
            return None
        partner.append(column)
        column += 1
    return np.array(partner, np.intp)


def _may_be(own: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two kernels, given as code and traits, may be the same."""
    return own == other or (
        own[0] == other[0]
        and all(
            one == two or UNKNOWN in (one, two) for one, two in zip(own[1:], other[1:], strict=True)
        )
    )


def with_moved(found: Alignment, first: Launched, second: Launched) -> Alignment:
    """Add pairs of kernels that changed places: equal kernels that share a known trait.

    Such a pair counts, in order or not, between the same two certain pairs, if neither kernel has
    another candidate there.
    """
    anchor = (found.partner != UNMATCHED) & ~found.ambiguous
    is_anchor_there = np.zeros(len(second), np.bool_)
    is_anchor_there[found.partner[anchor]] = True
    theirs = _by_gap(second, is_anchor_there)
    partner, ambiguous = found.partner.copy(), found.ambiguous.copy()
    for gap, here in _by_gap(first, anchor).items():
        there = theirs.get(gap)
        if there is None:
            continue
        ours, others = first.take(here), second.take(there)
        may = np.stack([others.alike(ours, position) for position in range(len(here))])
        alone = may.sum(axis=0) == 1
        for row in np.flatnonzero(may.sum(axis=1) == 1):
            column = int(np.argmax(may[row]))
            if alone[column] and _share_a_trait(ours, int(row), others, column):
                partner[here[row]], ambiguous[here[row]] = there[column], False
    return Alignment(partner, ambiguous)


def _by_gap(kernels: Launched, anchor: Mask) -> dict[tuple[int, int], Index]:
    """Kernels that are not anchors, by (number of anchors before, code)."""
    found: dict[tuple[int, int], list[int]] = {}
    gap = np.cumsum(anchor)
    for position in np.flatnonzero(~anchor).tolist():
        place = int(gap[position]), int(kernels.code[position])
        found.setdefault(place, []).append(position)
    return {place: np.array(positions, np.intp) for place, positions in found.items()}


def _share_a_trait(first: Launched, here: int, second: Launched, there: int) -> bool:
    return any(
        ours[here] == theirs[there] != UNKNOWN
        for ours, theirs in zip(first.traits, second.traits, strict=True)
    )


def _rests(first: Launched, second: Launched) -> Bits:
    """Lengths of the best alignments of the suffixes, a row per suffix of `first`.

    Neighbouring lengths differ by 0 or 1: each row is packed as these steps.
    """
    packed = np.zeros((len(first) + 1, (len(second) + 7) // 8), np.uint8)
    lengths = np.zeros(len(second) + 1, np.int32)
    mirrored = second.take(slice(None, None, -1))
    for position in range(len(first) - 1, -1, -1):
        lengths = _next_row(lengths, mirrored.alike(first, position))
        packed[position] = np.packbits(np.diff(lengths).astype(np.uint8))
    return packed


def _row(packed: Bits, width: int) -> Int32:
    """The lengths for each suffix of the second sequence."""
    lengths = np.zeros(width + 1, np.int32)
    np.cumsum(np.unpackbits(packed, count=width), out=lengths[1:])
    return lengths[::-1]


def _next_row(row: Int32, equal: Mask) -> Int32:
    """The lengths for each prefix of the second sequence, with one more element of the first."""
    following = row.copy()
    np.maximum(following[1:], row[:-1] + equal, out=following[1:])
    return np.maximum.accumulate(following)
