"""The cache of a run: one value per key, whoever asks, and nothing kept of what failed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, permutations
from threading import Barrier, Thread
from time import sleep
from weakref import ref

import numpy as np
import pytest

from chopper_core.model.memo import LazyMap, Memo
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View
from chopper_core.util.errors import NoSuchNode, NothingToShow
from chopper_core.util.progress import Cancelled, work_while
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


@pytest.mark.parametrize("holder", [list, lambda arrays: lambda: arrays, partial(partial, len)])
def test_those_used_last_stay_as_many_as_have_room(
    holder: Callable[[list[object]], object],
) -> None:
    memo, made = Memo(most_bytes=2_900), []

    def ask(name: str, size: int = 1_000) -> None:
        def make() -> object:
            made.append(name)
            sleep(0.003)
            return holder([np.zeros(size, np.int8)[1:]])

        memo((name,), make)

    for name in ["small", "1", "2", "1", "3", "1", "2"]:
        ask(name, 0 if name == "small" else 1_000)
    ask("larger than all", 9_000)
    ask("small", 0)
    assert made == ["small", "1", "2", "3", "2", "larger than all"] and len(memo) == 2


def test_what_is_large_goes_first_where_less_is_to_be_kept() -> None:
    """An explorer at rest keeps the frames of its places, and leaves what they were made of."""
    memo = Memo()
    for name, count in (("frame", 10), ("replays", 100_000), ("place on the screen", 20)):
        memo((name,), partial(np.zeros, count))
    memo.trim(1_000)
    assert [memo.has((name,)) for name in ("frame", "replays", "place on the screen")] == [
        True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize("value", [dict.fromkeys(range(1_000), 0.5), [0.5] * 1_000])
def test_a_thousand_numbers_are_as_much_as_they_take(value: object) -> None:
    memo = Memo()
    memo(("numbers",), lambda: value)
    memo.trim(sys.getsizeof(0.5) * 900)
    assert not memo.has(("numbers",))
    memo(("numbers",), lambda: value)
    memo.trim(sys.getsizeof(0.5) * 10_000)
    assert memo.has(("numbers",))


def test_arrays_in_a_long_dict_count_each() -> None:
    memo = Memo()
    memo(("arrays",), lambda: {name: np.zeros(100) for name in range(1_000)})
    memo.trim(100_000)
    assert not memo.has(("arrays",))


def test_what_goes_takes_no_other_values_memory_upon_itself() -> None:
    """The timeline of a run holds the lanes of each GPU, which are values of their own."""
    memo = Memo()
    held = [ref(memo(("lane", gpu), partial(np.zeros, 1_000))) for gpu in range(4)]
    memo(("timeline",), lambda: [each() for each in held])
    memo.trim(10_000)
    assert not memo.has(("timeline",)) and [memo.has(("lane", gpu)) for gpu in range(4)] == [
        False, False, False, True,
    ]  # fmt: skip
    assert sum(each() is not None for each in held) == 1
    memo.trim(0)
    assert len(memo) == 0 and not any(each() is not None for each in held)


def test_an_array_of_two_values_counts_once_and_what_is_apart_not_at_all() -> None:
    shared, table = np.zeros(1_000, np.int8), np.zeros(9_000, np.int8)
    memo = Memo([table], most_bytes=1_600)

    def make() -> object:
        sleep(0.003)
        return shared[:10], table

    for name in "abc":
        memo((name,), make)
    assert len(memo) == 3


def test_values_that_share_a_large_array_are_measured_together_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each move of a timeline's cursor makes a frame that holds the lanes of all GPUs."""
    lanes = np.zeros(1 << 20)
    memo, trims = Memo(most_bytes=2 * lanes.nbytes), list[int]()
    monkeypatch.setattr(memo, "trim", lambda most_bytes, least: trims.append(most_bytes))

    def make() -> object:
        sleep(0.003)
        return [lanes]

    for frame in range(10):
        memo((frame,), make)
    assert not trims and len(memo) == 10


def test_trees_of_any_order_are_made_once() -> None:
    run = run_of([Row(0, 10), Row(20, 10, gpu=1)])
    first = run.tree()
    for order in islice(permutations(LEVELS), 40):
        assert run.tree(order).node(()).sizes().tolist() == [2]
    assert run.tree() is first


@pytest.mark.parametrize("label", ["00", "+0", "0" * 5000, "9" * 5000, "\u0660"])
def test_a_number_of_a_level_has_one_spelling(label: str) -> None:
    with pytest.raises(NoSuchNode):
        run_of([Row(0, 10)]).tree().node((label,))


def test_a_reason_for_showing_nothing_holds_none_of_what_was_looked_at() -> None:
    run = run_of([Row(0, 10)])
    view = View(run.name, name="pipeline")
    with pytest.raises(NothingToShow):
        query(run, view)
    assert run.memo.has(("view", view))
    assert run.memo(("view", view), NothingToShow).__traceback__ is None


def test_unwanted_work_ends_where_it_looks_something_up() -> None:
    memo, ended = Memo(), list[BaseException]()

    def work() -> None:
        wanted = iter((True, False))
        work_while(lambda: next(wanted))
        try:
            memo(("whole",), lambda: memo(("part",), lambda: 1))
        except Cancelled as error:
            ended.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert len(ended) == 1 and not memo.has(("whole",))
    assert memo(("whole",), lambda: memo(("part",), lambda: 2)) == 2, (
        "others make it for themselves"
    )


def test_each_of_very_many_known_keys_is_made_once() -> None:
    """As the curves of ten thousand GPUs."""
    made: list[int] = []

    def make(key: int) -> tuple[int, ...]:
        made.append(key)
        return (key,)

    curves = LazyMap(range(6000), make)
    for _ in range(2):
        assert [curves[key] for key in curves] == [(key,) for key in range(6000)]
    assert made == [*range(6000)]
    assert [*curves.made()] == [(key,) for key in range(6000)]


def test_only_what_was_made_is_there() -> None:
    curves = LazyMap(range(3), str)
    assert [*curves.made()] == []
    assert curves[1] == "1" and [*curves.made()] == ["1"]


def test_few_large_values_are_given_up_for_others_however_quick_they_are() -> None:
    memo = Memo(most_bytes=1 << 24)
    made: list[int] = []

    def make(number: int) -> np.ndarray:
        made.append(number)
        return np.empty(1 << 20, np.int8)

    for number in range(200):
        memo((number,), partial(make, number))
    assert len(memo) < 100


def test_a_cleared_memo_makes_all_again() -> None:
    numbers = iter(range(9))
    memo = Memo()
    for expected in range(3):
        for _ in range(2):
            assert memo(("number",), lambda: next(numbers)) == expected
        assert memo.has(("number",))
        memo.clear()
        assert len(memo) == 0 and not memo.has(("number",))
