"""Signals that end the program: one sentence, exit code 128 + signal, nothing left half-written."""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import get_ident, start_new_thread
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

FATAL_SIGNALS: Final = tuple(
    getattr(signal, name)
    for name in (
        *("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGUSR1", "SIGUSR2", "SIGALRM"),
        *("SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGIO", "SIGPWR", "SIGSTKFLT", "SIGTRAP", "SIGSYS"),
    )
    if hasattr(signal, name)
)
"""Signals that would end the process with the terminal as the explorer needs it; not those of
faults, after which nothing can be trusted."""
_PATIENCE_S: Final = 2.0
"""For which further signals leave the first one's clean-up alone."""

_begun_s = 0.0
"""When the first signal came; 0: none has."""
_end_lost: Any = None
_restore: Callable[[], object] = int
_taken = 0
"""The signal that was raised; 0: none."""


class Ended(BaseException):
    """A signal asked the program to end; half-written output is removed on the way out."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def sentence(number: int) -> str:
    """Why the program ended."""
    name = signal.Signals(number).name
    return "chopper: interrupted" if number == signal.SIGINT else f"chopper: ended by {name}"


def end_at_once(number: int, _: object = None) -> NoReturn:
    """Handle a signal while modules load, and after all is done."""
    with suppress(OSError):
        os.write(2, f"{sentence(number)}\n".encode())
    os._exit(128 + number)


def restore_by(give_back_terminal: Callable[[], object]) -> None:
    """What gives the terminal back, should a mapped file be cut short."""
    global _restore
    _restore = give_back_terminal


def guard_mapped_files() -> None:
    """End in a sentence where a mapped file is cut short, which the next access of it raises
    SIGBUS for: Python's own handlers are called after the access, which never ends then.
    """
    global _end_lost
    if _end_lost is not None:
        return
    import ctypes  # numpy has imported it

    def end_lost(number: int) -> None:
        with suppress(Exception):
            _restore()
        with suppress(OSError):
            why = "a file that it reads was cut short, or its disk fails"
            os.write(2, f"{sentence(number)}: {why}\n".encode())
        os._exit(128 + number)

    _end_lost = ctypes.CFUNCTYPE(None, ctypes.c_int)(end_lost)
    ctypes.CDLL(None).signal(signal.SIGBUS, _end_lost)


def end(number: int, _: object = None) -> None:
    """Handle a signal while a command runs: raise it, once; one that comes much later ends it."""
    global _begun_s, _taken
    now_s = time.monotonic()
    if _begun_s:
        if now_s - _begun_s > _PATIENCE_S:
            end_at_once(number)
        return
    _begun_s, _taken = now_s, number
    raise_taken()


def raise_taken() -> None:
    """Raise the signal that came, if one did: C code turns what is raised into errors of its own.

    Raises KeyboardInterrupt for SIGINT, else Ended.
    """
    if _taken:
        raise KeyboardInterrupt if _taken == signal.SIGINT else Ended(_taken)


def handlers() -> dict[int, Any]:
    """The handlers of all signals that end the program, but those that are ignored."""
    if get_ident() != _MAIN_THREAD:
        return {}
    before = {number: signal.getsignal(number) for number in FATAL_SIGNALS}
    return {number: old for number, old in before.items() if old is not signal.SIG_IGN}


def take(handler: Callable[[int, Any], object]) -> dict[int, Any]:
    """Handle all signals that end the program; returns the handlers before, to `give_back`.

    One that is ignored, as by `nohup`, stays so.
    """
    global _begun_s, _taken
    if get_ident() != _MAIN_THREAD:
        return {}
    _begun_s, _taken = 0.0, 0
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _raise_again
    taken = handlers()
    for number in taken:
        signal.signal(number, handler)
    return taken


def give_back(before: dict[int, Any]) -> None:
    """Set earlier handlers again; the program is about to end, and isn't interrupted meanwhile."""
    global _begun_s
    _begun_s = _begun_s or time.monotonic()
    for number, handler in before.items():
        signal.signal(number, handler)


def _raise_again(lost: Any) -> None:
    """Send a signal again that came where nothing can be raised, as in a finaliser."""
    global _begun_s
    if isinstance(lost.exc_value, KeyboardInterrupt | Ended):
        _begun_s = 0.0
        number = getattr(lost.exc_value, "signal", signal.SIGINT)
        start_new_thread(os.kill, (os.getpid(), number))
    else:
        sys.__unraisablehook__(lost)


_MAIN_THREAD: Final = get_ident()
