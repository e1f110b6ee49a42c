"""Progress reporting and cancellation for long-running work."""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Any, Final, Protocol

_MIN_UNITS: Final = 10
"""Units from which their number says how much of a step is done: of two files one may take all."""


class Cancelled(Exception):
    """The user cancelled this work."""


_thread: Final = local()


def work_while(is_wanted: Callable[[], bool]) -> None:
    """Let the work of this thread end at the next value that it looks up, once it isn't wanted."""
    _thread.is_wanted = is_wanted


def stop_unwanted() -> None:
    """Raise Cancelled in a thread whose work isn't wanted any more."""
    is_wanted = getattr(_thread, "is_wanted", None)
    if is_wanted is not None and not is_wanted():
        raise Cancelled


class Progress(Protocol):
    """Called often by long-running work; raises `Cancelled` to stop it."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report `done` of `total` units of a step; a total of 0 or 1 says nothing of the rest."""


def share_done(done: int, total: int) -> float | None:
    """The completed share of a step; None if unknown, or of few units: no bar is shown then."""
    return min(done / total, 1.0) if total >= _MIN_UNITS else None


def progress_text(step: str, done: int, total: int) -> str:
    """A step, and of few units which one it is at."""
    return f"{step}, {done + 1} of {total}" if done < total and 1 < total < _MIN_UNITS else step


class ShowingProgress:
    """A progress that is given the run of the traces, while other sources still join it."""

    def __init__(self, report: Progress, show: Callable[[Any], None]) -> None:
        self._report, self.show = report, show

    def __call__(self, step: str, done: int, total: int) -> None:
        self._report(step, done, total)


def silent(step: str, done: int, total: int) -> None:
    """Report nothing."""
