"""Sequences are aligned as long as can be, and what could be paired otherwise is flagged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.align.launches import UNKNOWN, UNMATCHED, Alignment, Launched, align, with_moved

Pairs = tuple[tuple[int, int], ...]


def matched(found: Alignment) -> int:
    """How many elements have a partner."""
    return int((found.partner != UNMATCHED).sum())


def launched(codes: Sequence[int], shapes: Sequence[int] | None = None) -> Launched:
    known = [UNKNOWN] * len(codes) if shapes is None else shapes
    return Launched(np.array(codes, np.int64), (np.array(known, np.int64),))


def aligned(first: Sequence[int], second: Sequence[int]) -> Alignment:
    return align(launched(first), launched(second))


def pairs_of(found: Alignment) -> Pairs:
    return tuple((i, int(j)) for i, j in enumerate(found.partner) if j != UNMATCHED)


def longest_length(first: Sequence[int], second: Sequence[int]) -> int:
    row = [0] * (len(second) + 1)
    for one in first:
        before, row = row, [0] * (len(second) + 1)
        for j, other in enumerate(second):
            row[j + 1] = before[j] + 1 if one == other else max(before[j + 1], row[j])
    return row[-1]


def every_longest(first: Sequence[int], second: Sequence[int]) -> set[Pairs]:
    """All alignments of the greatest length, by trying every choice."""

    @cache
    def of_rest(i: int, j: int) -> frozenset[Pairs]:
        if i == len(first) or j == len(second):
            return frozenset({()})
        found = set(of_rest(i + 1, j) | of_rest(i, j + 1))
        if first[i] == second[j]:
            found |= {((i, j), *rest) for rest in of_rest(i + 1, j + 1)}
        most = max(map(len, found))
        return frozenset(pairs for pairs in found if len(pairs) == most)

    return set(of_rest(0, 0))


def check_is_longest(first: Sequence[int], second: Sequence[int]) -> None:
    found = aligned(first, second)
    pairs = pairs_of(found)
    assert len(found.partner) == len(found.ambiguous) == len(first)
    assert all(first[i] == second[j] for i, j in pairs)
    partners = [j for _, j in pairs]
    assert partners == sorted(set(partners))
    assert len(pairs) == matched(found) == longest_length(first, second)
    assert not any(found.ambiguous[i] for i, j in enumerate(found.partner) if j == UNMATCHED)


WORDS = st.lists(st.integers(0, 3), max_size=40)


@given(WORDS, WORDS)
def test_equal_elements_pair_in_order_and_as_many_as_can_be(
    first: list[int], second: list[int]
) -> None:
    check_is_longest(first, second)


@pytest.mark.sweep
def test_long_programs_are_aligned_as_far_as_can_be() -> None:
    random = np.random.default_rng(3)
    layer = random.integers(0, 25, 60).tolist()
    program = [*random.integers(0, 25, 13).tolist(), *layer * 12, *random.integers(0, 25, 20)]
    measured = [kernel for kernel in program * 2 if random.random() > 0.03]
    check_is_longest(program, measured)
    check_is_longest(measured, program)


@given(
    st.lists(st.integers(0, 30), min_size=20, max_size=150),
    st.sets(st.integers(0, 149), max_size=12),
    st.lists(st.tuples(st.integers(0, 149), st.integers(0, 35)), max_size=8),
)
def test_programs_with_kernels_lost_and_added_are_aligned_to_the_full(
    program: list[int], lost: set[int], added: list[tuple[int, int]]
) -> None:
    measured = [kernel for place, kernel in enumerate(program) if place not in lost]
    kept = len(measured)
    for place, kernel in added:
        measured.insert(place % (len(measured) + 1), kernel)
    check_is_longest(program, measured)
    assert matched(aligned(program, measured)) >= kept


def tiny_sequences() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    lengths = [(a, b) for a in range(1, 6) for b in range(1, 6)]
    return [
        (first, second)
        for a, b in lengths
        for first in product(range(3 if a + b < 7 else 2), repeat=a)
        for second in product(range(3 if a + b < 7 else 2), repeat=b)
    ]


@pytest.mark.sweep
def test_a_pair_is_certain_if_and_only_if_every_longest_alignment_has_it() -> None:
    unsound, timid = [], []
    pairs = 0
    for first, second in tiny_sequences():
        found = aligned(first, second)
        longest = every_longest(first, second)
        assert pairs_of(found) in longest
        for pair in pairs_of(found):
            pairs += 1
            certain = all(pair in each for each in longest)
            if not found.ambiguous[pair[0]] and not certain:
                unsound.append((first, second, pair))
            if found.ambiguous[pair[0]] and certain:
                timid.append((first, second, pair))
    assert pairs > 10_000
    assert unsound == [], f"{len(unsound)} of {pairs} pairs, such as {unsound[:3]}"
    assert timid == [], f"{len(timid)} of {pairs} pairs, such as {timid[:3]}"


@given(st.lists(st.integers(0, 2), max_size=11), st.lists(st.integers(0, 2), max_size=11))
def test_longer_pairs_are_certain_on_the_same_terms(first: list[int], second: list[int]) -> None:
    found = aligned(first, second)
    longest = every_longest(first, second)
    assert pairs_of(found) in longest
    for pair in pairs_of(found):
        assert found.ambiguous[pair[0]] != all(pair in each for each in longest), pair


SHAPED = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), max_size=30)


def of_pairs(pairs: Sequence[tuple[int, int]]) -> Launched:
    return launched([code for code, _ in pairs], [shape for _, shape in pairs])


@given(SHAPED, SHAPED)
def test_no_pair_is_of_two_shapes(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """With what changed places, too; and each kernel serves once."""
    ours, theirs = of_pairs(first), of_pairs(second)
    found = with_moved(align(ours, theirs), ours, theirs)
    pairs = pairs_of(found)
    for here, there in pairs:
        assert first[here][0] == second[there][0]
        assert UNKNOWN in (first[here][1], second[there][1]) or first[here] == second[there]
    assert len({there for _, there in pairs}) == len(pairs)


def test_what_changed_places_is_found_by_its_shape() -> None:
    ours = of_pairs([(7, 0), (1, 10), (1, 20), (7, 0)])
    theirs = of_pairs([(7, 0), (1, 20), (1, 10), (7, 0)])
    in_order = align(ours, theirs)
    assert pairs_of(aligned([7, 1, 1, 7], [7, 1, 1, 7])) == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert matched(in_order) == 3
    assert pairs_of(with_moved(in_order, ours, theirs)) == ((0, 0), (1, 2), (2, 1), (3, 3))


def test_of_several_that_may_have_moved_none_is_certain() -> None:
    """A layer of two was lost: what is left of it may be either."""
    layer = [(1, 10), (2, 10), (1, 20)]
    ours, theirs = of_pairs([(7, 0), *layer, *layer, (8, 0)]), of_pairs([(7, 0), *layer, (8, 0)])
    found = with_moved(align(ours, theirs), ours, theirs)
    assert matched(found) == 5
    assert found.ambiguous.tolist() == [False, *(found.partner[1:7] != UNMATCHED).tolist(), False]


def test_a_kernel_without_a_shape_may_be_the_one_that_moved() -> None:
    ours = of_pairs([(7, 0), (1, 10), (1, 20), (8, 0)])
    theirs = of_pairs([(7, 0), (1, UNKNOWN), (1, 20), (1, 10), (8, 0)])
    found = with_moved(align(ours, theirs), ours, theirs)
    pairs = align(ours, theirs)
    assert pairs_of(found) == pairs_of(pairs)
    assert found.ambiguous.tolist() == pairs.ambiguous.tolist()
