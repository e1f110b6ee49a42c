"""The cache of a run: one value per key, whoever asks, and nothing kept of what failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from chopper_core.model.memo import Memo


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
