"""Sequences are aligned as long as can be, and what could be paired otherwise is flagged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from chopper_core.align.sequences import UNMATCHED, Alignment, align

Pairs = tuple[tuple[int, int], ...]


def aligned(first: Sequence[int], second: Sequence[int]) -> Alignment:
    return align(np.array(first, np.int64), np.array(second, np.int64))


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
    assert len(pairs) == found.matched == longest_length(first, second)
    assert not any(found.ambiguous[i] for i, j in enumerate(found.partner) if j == UNMATCHED)


WORDS = st.lists(st.integers(0, 3), max_size=40)


@limits(max_examples=150)
@given(WORDS, WORDS)
def test_equal_elements_pair_in_order_and_as_many_as_can_be(
    first: list[int], second: list[int]
) -> None:
    check_is_longest(first, second)


def test_long_programs_are_aligned_as_far_as_can_be() -> None:
    random = np.random.default_rng(3)
    layer = random.integers(0, 25, 60).tolist()
    program = [*random.integers(0, 25, 13).tolist(), *layer * 12, *random.integers(0, 25, 20)]
    measured = [kernel for kernel in program * 2 if random.random() > 0.03]
    check_is_longest(program, measured)
    check_is_longest(measured, program)


@limits(max_examples=60)
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
    assert aligned(program, measured).matched >= kept


def tiny_sequences() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    lengths = [(a, b) for a in range(1, 6) for b in range(1, 6)]
    return [
        (first, second)
        for a, b in lengths
        for first in product(range(3 if a + b < 7 else 2), repeat=a)
        for second in product(range(3 if a + b < 7 else 2), repeat=b)
    ]


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


@limits(max_examples=80)
@given(st.lists(st.integers(0, 2), max_size=11), st.lists(st.integers(0, 2), max_size=11))
def test_longer_pairs_are_certain_on_the_same_terms(first: list[int], second: list[int]) -> None:
    found = aligned(first, second)
    longest = every_longest(first, second)
    assert pairs_of(found) in longest
    for pair in pairs_of(found):
        assert found.ambiguous[pair[0]] != all(pair in each for each in longest), pair


def test_a_sequence_pairs_with_itself_without_doubt() -> None:
    found = aligned([3, 3, 1, 3, 2, 2, 2], [3, 3, 1, 3, 2, 2, 2])
    assert found.partner.tolist() == list(range(7))
    assert not found.ambiguous.any()


def test_sequences_with_nothing_in_common_stay_unpaired() -> None:
    found = aligned([1, 2, 3], [4, 5, 6, 7])
    assert found.partner.tolist() == [UNMATCHED] * 3
    assert found.matched == 0
    assert not found.ambiguous.any()


@pytest.mark.parametrize(("first", "second"), [([], []), ([], [1]), ([1, 2], [])])
def test_an_empty_sequence_pairs_with_nothing(first: list[int], second: list[int]) -> None:
    found = aligned(first, second)
    assert found.partner.tolist() == [UNMATCHED] * len(first)
    assert found.matched == 0


def test_one_lost_of_several_equal_kernels_leaves_all_of_them_in_doubt() -> None:
    """Which of the three was lost, nobody can tell: `7 5 5 5 8` against `7 5 5 8`."""
    found = aligned([7, 5, 5, 5, 8], [7, 5, 5, 8])
    assert found.matched == 4
    surely = [
        place for place, j in enumerate(found.partner) if j >= 0 and not found.ambiguous[place]
    ]
    assert surely == [0, 4]


def test_one_lost_of_several_equal_kernels_at_the_end_leaves_them_in_doubt_too() -> None:
    found = aligned([1, 2, 5, 5, 5], [1, 2, 5, 5])
    assert found.matched == 4
    surely = [
        place for place, j in enumerate(found.partner) if j >= 0 and not found.ambiguous[place]
    ]
    assert surely == [0, 1]


def test_a_lost_kernel_that_is_unlike_its_neighbours_is_told_exactly() -> None:
    program = [1, 2, 3, 1, 2, 3, 1, 2, 3, 9]
    for lost in range(len(program)):
        found = aligned(program, program[:lost] + program[lost + 1 :])
        assert found.matched == len(program) - 1
        assert found.partner[lost] == UNMATCHED
        assert not found.ambiguous.any()
        kept = [place for place in range(len(program)) if place != lost]
        assert found.partner[kept].tolist() == list(range(len(program) - 1))
