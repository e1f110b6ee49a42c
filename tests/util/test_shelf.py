"""Texts that a process lays out for others, and arrays that these give back: each is taken once, as
it was laid."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context

import numpy as np
import pytest

from chopper_core.util.arrays import AnyArray
from chopper_core.util.shelf import Shelf

CONTEXT = get_context("fork")
ARRAYS: dict[tuple[str, int], AnyArray] = {
    ("start", 1): np.arange(7, dtype=np.int64) - 3,
    ("name", 1): np.array([3, -1, 2], np.int16),
    ("none", 2): np.zeros(0, np.float64),
    ("is", 2): np.array([True, False, True]),
    ("every second", 3): np.arange(9, dtype=np.int32)[::2],
}


def give_all(shelf: Shelf, number: int = 0) -> None:
    for (name, at), values in ARRAYS.items():
        shelf.give((name, at + number), values + number if number else values)


def test_texts_are_taken_in_their_order() -> None:
    shelf = Shelf(CONTEXT, 1, 8)
    assert shelf.lay("a", [b"one", b"", b"three"]) and shelf.lay(("b", 2), [b"two"])
    assert shelf.take() == ("a", [b"one", b"", b"three"])
    assert shelf.lay("c", [bytes(range(8))])
    assert shelf.take() == (("b", 2), [b"two"]) and shelf.take() == ("c", [bytes(range(8))])


def test_what_has_no_place_is_left_to_the_owner() -> None:
    shelf = Shelf(CONTEXT, 2, 8)
    assert not shelf.lay("long", [b"12345678", b"9"])
    places = [shelf.lay(number, [b"text"]) for number in range(5)]
    assert places == [True, True, True, True, False]
    assert shelf.take() == (0, [b"text"]) and shelf.lay(5, [b"text"])


def test_each_worker_is_told_that_nothing_more_comes() -> None:
    shelf = Shelf(CONTEXT, 2, 8)
    shelf.lay("last", [b"text"])
    shelf.close()
    assert [shelf.take() for _ in range(3)] == [("last", [b"text"]), None, None]


@pytest.mark.parametrize("place_bytes", [1, 5, 8, 1_000])
def test_arrays_come_back_from_all_workers_as_they_were(place_bytes: int) -> None:
    shelf = Shelf(CONTEXT, 2, place_bytes)
    workers = [CONTEXT.Process(target=give_all, args=(shelf, number)) for number in (0, 10)]
    for each in workers:
        each.start()
    found = shelf.given(lambda: not any(each.is_alive() for each in workers))
    expected: dict[tuple[str, int], AnyArray] = {
        (name, at + number): values + number if number else values
        for number in (0, 10)
        for (name, at), values in ARRAYS.items()
    }
    assert found.keys() == expected.keys()
    for label, values in expected.items():
        assert found[label].dtype == values.dtype and found[label].tolist() == values.tolist()


def killed_while_giving(shelf: Shelf) -> None:
    shelf.give("first", np.arange(2))
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_waiting(shelf: Shelf) -> None:
    shelf.take()


@pytest.mark.parametrize("work", [killed_while_giving, killed_while_waiting])
def test_the_owner_goes_on_where_a_worker_is_killed(work: Callable[[Shelf], None]) -> None:
    shelf = Shelf(CONTEXT, 1, 8)
    worker = CONTEXT.Process(target=work, args=(shelf,))
    worker.start()
    if work is killed_while_waiting:
        worker.join(timeout=0.2)
        worker.kill()
    found = shelf.given(lambda: not worker.is_alive())
    assert set(found) <= {"first"}
    assert [shelf.lay(number, [b"text"]) for number in range(3)] == [True, True, False]
