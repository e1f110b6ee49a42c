"""What workers of tests do: they import this module alone, a test's takes ten times as long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import THREADS_FROM_ROWS, concurrently, read_all


def read_size(path: Path, progress: Progress) -> int:
    progress("read", 1, 1)
    if path.name == "bad":
        raise DataError(f"{path} is bad")
    return len(path.read_bytes())


def die_in_worker(path: Path, progress: Progress) -> int:
    if os.getpid() != int((path.parent / "parent").read_text()):
        os._exit(1)
    return 1


def blocked_signals(_: Path, __: Progress) -> list[int]:
    return sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def how_it_began(_path: Path, _progress: Progress) -> str:
    """How this process was started, and whether it ends by the signals that its parent handles."""
    ends = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return f"{type(multiprocessing.current_process()).__name__}, {ends}"


def print_and_read(path: Path, progress: Progress) -> int:
    print("a library's banner")
    return read_size(path, progress)


def which_thread(path: Path, _progress: Progress) -> list[bool]:
    """Whether work on few and on many rows is done in this thread."""
    rows = (THREADS_FROM_ROWS - 1, THREADS_FROM_ROWS)
    here = threading.get_ident()
    return [concurrently(threading.get_ident, count)() == here for count in rows]


def fail_concurrently(path: Path, _progress: Progress) -> int:
    def fail() -> int:
        raise DataError(f"{path} is bad")

    return concurrently(fail, THREADS_FROM_ROWS)()


def read_both(paths: list[Path], found: Any) -> None:
    found.extend(read_all(paths, size_of, silent, 2))


def size_of(path: Path, _progress: Progress) -> int:
    return path.stat().st_size
