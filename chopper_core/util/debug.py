"""`--debug`: timings of the program's own steps and the tracebacks behind its sentences."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

STDERR: Final = "-"

_file: IO[str] | None = None
target = ""
"""Where notes go: a path, STDERR, or nowhere."""


def start_log(to: str) -> None:
    global _file, target
    import faulthandler

    to_stderr = to == STDERR
    file = sys.stderr if to_stderr else open(to, "a", encoding="utf-8", opener=_private)  # noqa: SIM115
    _file, target = file, to
    # Standard error may not be a system file, as in a test or a notebook.
    with suppress(OSError, ValueError):
        faulthandler.enable(file)


def to_file(path_of: Callable[[], str]) -> str:
    """Write further notes to a file, since standard error shows something else; its path.

    Where it can't be written there are no further notes.
    """
    stop()
    try:
        start_log(path := path_of())
    except OSError:
        return ""
    return path


def stop() -> None:
    global _file, target
    if _file is not None and target != STDERR:
        import faulthandler

        faulthandler.disable()
        with suppress(OSError):  # a full disk
            _file.close()
    _file, target = None, ""


def note(text: str) -> None:
    """Write a line with the time of day and the number of the process: workers write, too."""
    if _file is not None:
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        with suppress(OSError, ValueError):
            lines = "\n".join(map(_inert, text.split("\n")))
            _file.write(f"{clock}.{int(now * 1000) % 1000:03}  {os.getpid()}  {lines}\n")
            _file.flush()


def note_error(error: BaseException) -> None:
    if _file is not None:
        import traceback

        note("".join(traceback.format_exception(error)).rstrip())


@contextmanager
def timed(step: str) -> Iterator[None]:
    if _file is None:
        yield
        return
    begin, outcome = time.perf_counter(), "failed after"
    try:
        yield
        outcome = "took"
    finally:
        note(f"{step}: {outcome} {1000 * (time.perf_counter() - begin):.1f} ms")


def _inert(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
