"""The cache of a run: one value per key, whoever asks, and nothing kept of what failed."""

from __future__ import annotations

import sys
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
from chopper_core.model.view import View
from chopper_core.util.errors import NoSuchNode, NothingToShow
from chopper_core.util.memory import bytes_of
from chopper_core.views.query import query
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
    memo, made = Memo(140_012, (Held,)), []

    def make(size: int) -> NDArray[np.int8]:
        made.append(size)
        return np.zeros(size, np.int8)

    def held() -> list[int]:
        memo.make_room()
        return [size for size in sizes if memo.has(("a", size))]

    sizes = (70_000, 70_001, 10, 70_002)
    for size in sizes:
        memo(("a", size), partial(make, size))
    memo(("a", 70_000), partial(make, 70_000))
    assert made == [*sizes], "nothing is dropped before there is time to count"
    assert held() == [70_000, 10, 70_002], "the oldest goes; the last used doesn't count"
    memo(("a", 10), partial(make, 10))
    assert held() == [70_000, 10, 70_002], "small values stay"
    memo(("a", 400_000), partial(make, 400_000))
    assert held() == [70_000, 10, 70_002] and memo.has(("a", 400_000)), "the last used stays"
    memo(("a", 10), partial(make, 10))
    assert held() == [70_000, 10, 70_002] and not memo.has(("a", 400_000)), "it alone has gone"


def test_room_is_made_without_being_asked() -> None:
    memo = Memo(100_000)
    for each in range(100):
        memo(("a", each), partial(np.zeros, 10_000))
    assert len(memo) < 50


class Held:
    """Shared by values."""

    def __init__(self) -> None:
        self.of = np.zeros(1 << 20)


def test_bytes_are_those_that_dropping_a_value_frees(tmp_path: Path) -> None:
    array = np.zeros(1 << 17)
    path = tmp_path / "mapped"
    array.tofile(path)
    size = array.nbytes
    numbers = [str(number) for number in range(100_000)]
    of_numbers = sys.getsizeof(numbers) + sum(map(sys.getsizeof, numbers))
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
        (numbers, of_numbers),
    ):
        assert abs(bytes_of(value, (Held,)) - expected) < 0.1 * size, (type(value), expected)


def test_the_cache_of_a_small_run_is_small_however_many_views_are_seen() -> None:
    run = run_of([Row(0, 10)])
    for number in range(20):
        run.memo(("large", number), lambda: np.zeros(1 << 17))
    run.memo.make_room()
    assert sum(run.memo.has(("large", number)) for number in range(20)) == 4


def test_a_reason_for_showing_nothing_holds_none_of_what_was_looked_at() -> None:
    run = run_of([Row(0, 10)])
    view = View(run.name, name="pipeline")
    with pytest.raises(NothingToShow):
        query(run, view)
    assert run.memo.has(("view", view))
    assert run.memo(("view", view), NothingToShow).__traceback__ is None
