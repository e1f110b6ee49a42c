"""The first collective that ranks don't share, against a comparison of each rank with each."""

from __future__ import annotations

from random import Random

import pytest

from chopper_core.extensions.chakra.lint import _first_difference as first_difference

Step = tuple[str, ...]


def differ(one: Step | None, other: Step | None) -> bool:
    """Kinds differ, or sizes that both know; a rank that ended differs from one that goes on."""
    if one is None or other is None:
        return one is not other
    return any(a != b for a, b in zip(one, other, strict=False))


def expected(sequences: list[list[Step]]) -> tuple[int, int, int] | None:
    for place in range(max(map(len, sequences))):
        steps = [own[place] if place < len(own) else None for own in sequences]
        for at in range(len(steps)):
            for first in range(at):
                if differ(steps[first], steps[at]):
                    return place + 1, first, at
    return None


@pytest.mark.parametrize("seed", range(40))
def test_it_names_the_first_two_ranks_that_differ(seed: int) -> None:
    random = Random(seed)
    usual: list[Step] = [("all_reduce", "8 B"), ("all_gather", "4 B"), ("all_reduce", "8 B")]
    odd: list[Step] = [("all_reduce",), ("all_gather",), ("broadcast",), ("all_reduce", "9 B")]
    sequences = [
        [random.choice(odd) if random.random() < 0.1 else step for step in usual]
        for _ in range(random.randrange(2, 9))
    ]
    if seed % 5 == 0:
        sequences[-1] = sequences[-1][:-1]
    found, wanted = first_difference(range(100), sequences), expected(sequences)
    if wanted is None:
        assert found == ""
    else:
        place, first, at = wanted
        words = found.split()
        ranks = [int(words[i + 1]) for i, word in enumerate(words) if word == "rank"]
        assert found.startswith(f"collective {place} is ") and ranks == [first, at]
