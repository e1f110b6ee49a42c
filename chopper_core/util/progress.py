"""Progress reporting and cancellation for long-running work."""

from __future__ import annotations

from typing import Protocol


class Cancelled(Exception):
    """The user cancelled this work."""


class Progress(Protocol):
    """Called often by long-running work; raises `Cancelled` to stop it."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report `done` of `total` units of a step; a total of 0 or 1 says nothing of the rest."""


def share_done(done: int, total: int) -> float | None:
    """The completed share of a step; None if unknown: no bar is shown then."""
    return min(done / total, 1.0) if total > 1 else None


def silent(step: str, done: int, total: int) -> None:
    """Report nothing."""
