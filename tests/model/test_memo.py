"""The cache of a run: one value per key, whoever asks, and nothing kept of what failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import islice, permutations
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from numpy.typing import NDArray

from chopper_core.model.memo import Memo
from chopper_core.model.table import LEVELS
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.memory import bytes_of
from tests.support import Row, run_of


def test_threads_that_ask_at_once_share_one_value() -> None:
    memo, calls, start = Memo(), [], Barrier(8)

    def make() -> object:
        calls.append(1)
        return object()

    def ask(_: int) -> object:
        start.wait()
        return memo(("one", 1), make)

    with ThreadPoolExecutor(8) as pool:
        values = set(map(id, pool.map(ask, range(8))))
    assert len(values) == 1 and calls == [1]


def test_what_fails_is_not_kept() -> None:
    memo = Memo()
    with pytest.raises(ZeroDivisionError):
        memo(("one",), lambda: 1 // 0)
    assert memo(("one",), lambda: 2) == 2
    assert memo(("one",), lambda: 3) == 2


def test_only_the_last_ones_of_an_owner_stay() -> None:
    memo, made = Memo(), []

    def ask(owner: str, number: int) -> None:
        memo((owner, number), lambda: made.append((owner, number)), keep=2)

    for number in (1, 2, 1, 3, 1, 2):
        ask("a", number)
    ask("b", 1)
    ask("a", 1)
    assert made == [("a", 1), ("a", 2), ("a", 3), ("a", 2), ("b", 1)]


def test_trees_of_many_orders_are_bounded_and_the_first_one_is_made_anew() -> None:
    run = run_of([Row(0, 10), Row(20, 10, gpu=1)])
    first = run.tree()
    for order in islice(permutations(LEVELS), 40):
        assert run.tree(order).node(()).sizes().tolist() == [2]
    assert len(run.memo) <= 17
    assert run.tree() is not first and run.tree() is run.tree()


@pytest.mark.parametrize("label", ["00", "+0", "0" * 5000, "9" * 5000, "\u0660"])
def test_a_number_of_a_level_has_one_spelling(label: str) -> None:
    with pytest.raises(NoSuchNode):
        run_of([Row(0, 10)]).tree().node((label,))


def test_the_bytes_of_values_are_bounded() -> None:
    memo, made = Memo(250_000, (Held,)), []

    def make(size: int) -> NDArray[np.int8]:
        made.append(size)
        return np.zeros(size, np.int8)

    for size in (100_000, 100_001, 10, 100_002):
        memo(("a", size), partial(make, size))
    memo(("a", 100_001), partial(make, 100_001))
    assert made == [100_000, 100_001, 10, 100_002], "the one that was used last has stayed"
    for size in (100_000, 10):
        memo(("a", size), partial(make, size))
    assert made[4:] == [100_000], "small values stay, the oldest large one had to go"
    memo(("one too large", 0), partial(make, 400_000))
    assert memo.has(("one too large", 0)), "the value that is asked for stays"
    assert [size for size in (100_000, 100_001, 100_002) if memo.has(("a", size))] == []


class Held:
    """Shared by values."""

    def __init__(self) -> None:
        self.of = np.zeros(1 << 20)


def test_bytes_are_those_that_dropping_a_value_frees(tmp_path: Path) -> None:
    array = np.zeros(1 << 17)
    path = tmp_path / "mapped"
    array.tofile(path)
    size = array.nbytes
    for value, expected in (
        (array, size),
        ([array, array[5:], {"again": array.reshape(2, -1)}], size),
        ((array.copy()[:1], np.array([array, None], object)), 2 * size),
        (lambda: array, size),
        (partial(len, array), size),
        (cache(lambda: array), size),
        (np.memmap(path), 0),
        ((Held(), Held, np), 0),
        (["x" * size], size),
        ([str(number) for number in range(100_000)], 6_100_000),
    ):
        assert abs(bytes_of(value, (Held,)) - expected) < 0.1 * size, (type(value), expected)


def test_the_cache_of_a_small_run_is_small_however_many_views_are_seen() -> None:
    run = run_of([Row(0, 10)])
    for number in range(20):
        run.memo(("large", number), lambda: np.zeros(1 << 17))
    assert sum(run.memo.has(("large", number)) for number in range(20)) == 4
