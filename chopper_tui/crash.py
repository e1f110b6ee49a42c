"""Logs of crashes: what was typed since the start, the address, the traceback; enough to repeat it.

A log is a file of keys as `--play` takes them, with the rest in comments: `chopper --replay LOG`.
It holds nothing of the environment, the command line or the machine but the path of the run.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model import address
from chopper_core.model.view import View
from chopper_core.render.cells import clean
from chopper_core.util.atomic import make_private, read_small
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.patterns import late
from chopper_tui.config import state_directory

if TYPE_CHECKING:
    from textual.events import Event

WAIT: Final = "wait"
"""In a log: a person paused here; keys between two pauses came faster than screens open."""
_MAX_INPUTS: Final = 50_000
_PAUSE_S: Final = 0.05
_MAX_LOGS: Final = 20
_PACKAGES: Final = ("textual", "numpy", "msgspec")
_OFFERED: Final = "crash-offered"
"""The file that names the log that was offered last."""
_HEADER_LINES: Final = 12
_FIRST_LINE: Final = "# A crash of Chopper; repeat it with: chopper --replay FILE"
_HEADER: Final = late(r"# (address|size|at|glyphs): (.*)")


class Journal:
    """The inputs of a session in their order, as lines of a log."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_INPUTS)
        self._last_s = 0.0
        self.size: tuple[int, int] | None = None
        """Of the terminal at the start, in cells."""
        self.is_whole = True
        """Whether it holds all inputs, from the first on."""

    def take(self, event: Event) -> None:
        """Note an input, or another size; other events are none of the journal's."""
        from textual import events

        if isinstance(event, events.Key):
            character = event.character or ""
            if len(character) == 1 and character.isprintable():
                self._append(f"text {json.dumps(character)}")
            else:
                self._append(event.key)
        elif isinstance(event, events.Paste):
            self._append(f"paste {json.dumps(event.text)}")
        elif isinstance(event, events.MouseEvent):
            self._append(_mouse_line(event))
        elif isinstance(event, events.Resize):
            size = event.size.width, event.size.height
            if self.size is None:
                self.size = size
            else:
                self._append(f"resize {size[0]}x{size[1]}")

    def _append(self, line: str) -> None:
        now = time.monotonic()
        lines = self._lines
        if now - self._last_s > _PAUSE_S and lines:
            lines.append(WAIT)
        elif lines and line.startswith("mouse move") and lines[-1].startswith("mouse move"):
            # Where the pointer rests counts: a way of many cells is one input.
            lines.pop()
        elif lines and line.startswith("text") and lines[-1].startswith("text"):
            line = f"text {json.dumps(json.loads(lines.pop()[5:]) + json.loads(line[5:]))}"
        self.is_whole = self.is_whole and len(lines) < _MAX_INPUTS
        self._last_s = now
        lines.append(line)

    def lines(self) -> list[str]:
        """The inputs so far."""
        return list(self._lines)


def _mouse_line(event: Event) -> str:
    from textual import events

    assert isinstance(event, events.MouseEvent)
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__.removeprefix("Mouse")).lower()
    held = [name for name in ("shift", "meta", "ctrl") if getattr(event, name)]
    words = ["mouse", kind, f"{int(event.screen_x)},{int(event.screen_y)}", str(event.button)]
    return " ".join([*words, *held])


class CrashLog(Struct, frozen=True):
    """A log that was read: where it began, where it ended, on which size."""

    start: View
    at: str
    """The address on the screen when it happened; empty: none."""
    size: tuple[int, int]
    is_ascii: bool


def write_log(
    crash: BaseException,
    journal: Journal | None = None,
    start: View | None = None,
    at: View | None = None,
    *,
    is_ascii: bool = False,
) -> Path | None:
    """Write the log of a crash into the state directory, for its owner alone; None if it can't be.

    Without a journal there is only the traceback: the crash of a command.
    """
    folder = state_directory()
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S.%f")
    path = folder / f"crash-{stamp}-{os.getpid()}.log"
    lines = [f"# error: {clean(summary(crash))}", f"# versions: {_versions()}"]
    if journal is not None and start is not None:
        width, height = journal.size or (80, 24)
        lines = [
            _FIRST_LINE,
            "# It holds the path of the run and what was typed: read it before you share it.",
            f"# address: {_in_a_line(address.render(absolute(start)))}",
            *([f"# at: {_in_a_line(address.render(absolute(at)))}"] if at is not None else []),
            f"# size: {width}x{height}",
            f"# glyphs: {'ascii' if is_ascii else 'unicode'}",
            *lines,
            *([] if journal.is_whole else ["# earlier inputs are left out"]),
            *journal.lines(),
        ]
    text = "".join(traceback.format_exception(crash))
    lines += [f"# {clean(line)}".rstrip() for line in text.splitlines()]
    try:
        make_private(folder)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines) + "\n")
        for old in logs()[:-_MAX_LOGS]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def summary(crash: BaseException) -> str:
    """The error in a line."""
    return f"{type(crash).__name__}: {crash}".splitlines()[0][:200]


def _in_a_line(text: str) -> str:
    """A text as it is where it can't be taken for other lines of the log, else quoted."""
    return text if text.isprintable() and not text.startswith('"') else json.dumps(text)


def absolute(view: View) -> View:
    """The view with the paths of its runs from the root, so that it opens from any directory."""
    base = view.baseline
    if base is not None and base.run:
        base = replace(base, run=_absolute(base.run))
    return replace(view, run=_absolute(view.run), baseline=base)


def _absolute(name: str) -> str:
    """Names that are none of files stay as they are: `@NAME` is a baseline."""
    if os.path.exists(name):
        return os.path.abspath(name)
    return ",".join(
        os.path.abspath(part) if os.path.exists(part := os.path.expanduser(each)) else each
        for each in name.split(",")
    )


def _versions() -> str:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = [f"Python {platform.python_version()}", sys.platform]
    for package in ("chopper-tui", *_PACKAGES):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def read_log(path: Path) -> CrashLog:
    """The head of a log; raises DataError."""
    try:
        lines = read_small(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"the log {path} can't be read: {reason}") from error
    found = map(_HEADER.match, lines[:_HEADER_LINES])
    head = {match[1]: match[2] for match in found if match is not None}
    for name, text in head.items():
        with suppress(ValueError):
            head[name] = str(json.loads(text)) if text.startswith('"') else text
    size = re.fullmatch(r"(\d{1,4})x(\d{1,4})", head.get("size", ""))
    if "address" not in head or size is None:
        raise DataError(
            f"{path} is not a log of the explorer: it lacks the lines `# address:` and `# size:`"
        )
    try:
        view = address.parse(head["address"])
    except ChopperError as error:  # another version's, or a damaged one
        raise DataError(f"the log {path} can't be read: {error}") from error
    ascii_only = head.get("glyphs") == "ascii"
    return CrashLog(view, head.get("at", ""), (int(size[1]), int(size[2])), ascii_only)


def logs() -> list[Path]:
    """The logs, the latest last."""
    return sorted(state_directory().glob("crash-*.log"))


def latest() -> Path:
    """The log of the last crash of the explorer; raises DataError without one."""
    for path in reversed(logs()):
        try:
            read_log(path)
        except DataError:
            continue
        return path
    raise DataError(f"no crash of the explorer is logged in {state_directory()}")


def new_crash_log() -> Path | None:
    """The log of the last crash, once: from now on it has been offered."""
    try:
        found = latest()
        note = state_directory() / _OFFERED
        if note.exists() and read_small(note) >= found.name.encode():
            return None
        note.write_text(found.name, encoding="utf-8")
    except (DataError, OSError):
        return None
    return found
