"""How long work tells what it is doing, and how it is told to stop."""

from __future__ import annotations

from typing import Protocol


class Cancelled(Exception):
    """The person who waited for this work no longer wants it."""


class Progress(Protocol):
    """Called often by long work; raises `Cancelled` where the work shall end."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Say that `done` of `total` units of the named step are done; a total of 0 is unknown."""


def silent(step: str, done: int, total: int) -> None:
    """Report nothing."""
