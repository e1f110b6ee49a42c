"""Texts that a process lays out for others: each is taken once, as it was laid."""

from __future__ import annotations

from multiprocessing import get_context

from chopper_core.util.shelf import Shelf

CONTEXT = get_context("fork")


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
