"""Pythons of our own: they import nothing from the directory they start in, and end with us."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread, active_count
from typing import Final

_SAFE_PATH: Final = "PYTHONSAFEPATH"
_OWN_THREADS: Final = "/proc/self/task"
_THAT_COPIES_ALLOW: Final = ("jemalloc_bg_thd",)
_ENDING_S: Final = 0.001
_MOST_POLLS: Final = 5
_POLL_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1
"""Argument of prctl(2): the signal that this process gets when its parent ends."""
_starting: Final = Lock()


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours in a process of its own.

    Python would look for modules in the working directory first, which may be anybody's.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


@contextmanager
def safe_path() -> Iterator[None]:
    """Let the Pythons that `multiprocessing` starts meanwhile leave out the working directory.

    One thread at a time: the environment is that of all. Raises OSError where Python was started
    without its variables (`python -E`), which its children would ignore, too.
    """
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise OSError(errno.EPERM, f"workers would ignore {_SAFE_PATH}")
    with _starting:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            del os.environ[_SAFE_PATH]
            if before is not None:
                os.environ[_SAFE_PATH] = before


_readied: Final[set[str]] = set()


@contextmanager
def readied_threads() -> Iterator[None]:
    """Note that threads which a library starts in the block are made ready by it for a copy."""

    def threads() -> set[str]:
        try:
            return {*os.listdir(_OWN_THREADS)}
        except OSError:
            return set()

    before = threads()
    try:
        yield
    finally:
        _readied.update(threads() - before)


def may_fork() -> bool:
    """Whether a copy of this process can go on by itself, which starts in no time.

    It has one thread: in a copy nobody ever releases what another thread holds. Arrow and its
    allocator have others, and take their own locks while a process is copied.
    """
    for _ in range(_MOST_POLLS):
        if active_count() > 1:
            return False
        try:
            threads = {*os.listdir(_OWN_THREADS)} - _readied
            names = [Path(_OWN_THREADS, each, "comm").read_text().strip() for each in threads]
        except OSError:  # No Linux, or a thread has just ended.
            names = []
        if len(names) - sum(name in _THAT_COPIES_ALLOW for name in names) == 1:
            return True
        # One that was waited for takes a moment to be gone.
        time.sleep(_ENDING_S)
    return False


def may_start_threads(count: int) -> bool:
    """Whether the system lets this process start so many threads, or processes, now: what a user or
    a container runs at once is limited, too (`ulimit -u`)."""
    gate, started = Lock(), list[Thread]()
    try:
        with gate:
            for _ in range(count):
                thread = Thread(target=_pass, args=(gate,), daemon=True)
                thread.start()
                started.append(thread)
    except RuntimeError:
        return False
    finally:
        for thread in started:
            thread.join()
        for thread in started:
            _wait_until_gone(thread.native_id)
    return True


def _wait_until_gone(task: int | None) -> None:
    """Wait for the system's part of a thread that has ended, which counts for a moment more."""
    for _ in range(_MOST_POLLS):
        if not os.path.exists(f"{_OWN_THREADS}/{task}"):
            return
        time.sleep(_ENDING_S)


def _pass(gate: Lock) -> None:
    with gate:
        pass


def forget_handlers() -> None:
    """End by the signals that the process handles of which this one is a copy."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


_locks: Final[set[int]] = set()
"""Open files whose locks are those of this process."""


@contextmanager
def own_lock(handle: int) -> Iterator[None]:
    """Have copies of this process close a locked file: its lock is held as long as one has it open,
    and a copy may live on for a moment once this process was killed."""
    _locks.add(handle)
    try:
        yield
    finally:
        _locks.discard(handle)


def _leave_locks() -> None:
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks)


def end_with(parent: int, is_over: Callable[[], bool] = lambda: False) -> None:
    """End this process, whatever it does, soon after its parent, which SIGKILL asks nothing, or
    once its work is over."""

    def watch() -> None:
        while os.getppid() == parent and not is_over():
            time.sleep(_POLL_S)
        os._exit(1)

    try:
        Thread(target=watch, name="parent", daemon=True).start()
    except RuntimeError:
        os._exit(1)  # Nobody would end it: whoever started it does its work.


def ending_with_parent() -> Callable[[], None]:
    """What a child of another program does before it becomes that: ask for SIGTERM at our end."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
