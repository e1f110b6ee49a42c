"""The first screen of a run as it was seen last, shown while the same command opens the run again.

A first screen follows from the command, the terminal, and the files that it was made of: those of
the run, the person's settings, and the program. While none of them has changed, the kept cells are
those that the explorer will draw; it sends what differs. Imported before anything that takes long.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from chopper_core.util import atomic
from chopper_tui.terminal import (
    can_draw,
    end_at_once,
    give_keys_back,
    give_terminal_back,
    keys_kept,
    restore_with,
    take,
    terminal_size,
)

KIND: Final = "screens"
"""The folder of kept screens next to the cached runs."""
Lines = Sequence[Sequence[tuple[str, str]]]
"""Of each line from the top the texts next to each other, and the codes of their styles."""
_MATTER: Final = ("TERM", "COLORTERM", "COLUMNS", "LINES", "LANG", "HOME", "TZ", "TMUX", "STY")
_BEGINNINGS: Final = ("LC_", "XDG_", "CHOPPER_", "TEXTUAL_", "NO_COLOR", "FORCE_COLOR", "PYTHON")
"""Variables of the environment, and beginnings of others, that a screen depends on."""
ENTER: Final = "\x1b[?1049h"
"""Shows the terminal's other screen, which some terminals clear."""
_ENTER: Final = f"{ENTER}\x1b[?25l\x1b[H\x1b[2J"
_LEAVE: Final = "\x1b[m\x1b[?1049l\x1b[?25h"
_UNREADABLE: Final = (OSError, ValueError, TypeError, LookupError, RecursionError, zlib.error)


class LastScreen:
    """The screen that is kept for a command in a terminal."""

    def __init__(self, given: Sequence[str]) -> None:
        """The arguments of the command."""
        names = [each for each in os.environ if each in _MATTER or each.startswith(_BEGINNINGS)]
        variables = [(each, os.environ[each]) for each in sorted(names)]
        self.size = terminal_size()
        self._asked = json.dumps([*given, os.getcwd(), self.size, variables])
        folder = atomic.user_folder("XDG_CACHE_HOME", "~/.cache") / KIND
        self._path = folder / f"{zlib.crc32(self._asked.encode()):08x}"
        self.lines = self._recalled()
        """The screen; nothing where none is kept, or something that it was made of has changed."""
        self._is_up = False

    def show(self) -> None:
        self._is_up = True
        restore_with(self.leave)
        _write(_ENTER + drawn(self.lines))

    def leave(self) -> None:
        """Give the terminal back, unless the app has taken it over."""
        if self.take():
            _write(_LEAVE)

    def take(self) -> bool:
        """Take the terminal over as it is; whether it shows the screen."""
        was_up, self._is_up = self._is_up, False
        return was_up

    def keep(self, lines: Lines, made_of: Mapping[str, atomic.FileState]) -> None:
        """Keep a screen, and the states of the files that it was made of, unless one may change
        unseen; raises nothing."""
        if not all(map(atomic.is_settled, made_of.values())):
            return
        files = [[path, *state] for path, state in made_of.items()]
        with suppress(OSError, UnicodeEncodeError):
            content = zlib.compress(json.dumps([self._asked, files, lines]).encode(), 1)
            atomic.make_private(self._path.parent)
            whole = b"%08x\n" % zlib.crc32(content) + content
            atomic.publish(self._path, whole, mode=0o600, is_synced=False)

    def _recalled(self) -> Lines:
        """The kept screen; nothing where a file that it was made of has changed."""
        try:
            if not atomic.is_private(self._path.parent):
                return ()
            checksum, _, content = atomic.read_small(self._path).partition(b"\n")
            if checksum != b"%08x" % zlib.crc32(content):
                return ()
            asked, files, lines = json.loads(zlib.decompress(content))
            is_same = asked == self._asked and all(
                atomic.file_state(path) == tuple(state) for path, *state in files
            )
            if not is_same:
                return ()
            return [[(str(text), str(codes)) for text, codes in line] for line in lines]
        except _UNREADABLE:
            return ()


def drawn(lines: Lines) -> str:
    """What draws lines on a cleared screen."""
    parts: list[str] = []
    for number, line in enumerate(lines, 1):
        parts.append(f"\x1b[{number};1H" if line else "")
        parts += (f"\x1b[;{codes}m{text}" if codes else f"\x1b[m{text}" for text, codes in line)
    return "".join([*parts, "\x1b[m"])


_own: LastScreen | None = None


def own_screen() -> LastScreen | None:
    """That of this process, where it may draw one."""
    return _own


@contextmanager
def last_screen(given: Sequence[str]) -> Iterator[None]:
    """Show the last screen of a command while it starts, and let keys wait for the app."""
    global _own
    if can_draw() is not None:
        yield
        return
    _own = last = LastScreen(given)
    if not last.lines:
        yield
        return

    def end(number: int, _: object) -> NoReturn:
        # Raised in the middle of an import, a signal may end in a fault of native code.
        last.leave()
        give_keys_back()
        end_at_once(number)

    before = take(end)
    with keys_kept():
        try:
            last.show()
            yield
        finally:
            last.leave()
            give_terminal_back(before)


def states_now(paths: Iterable[str | Path]) -> dict[str, atomic.FileState]:
    return {os.fspath(path): atomic.file_state(path) for path in paths}


def _write(text: str) -> None:
    """Write where Textual draws; not through a buffer, which a signal may find half filled."""
    left = text.encode("utf-8", "replace")
    with suppress(OSError, ValueError):
        while left:
            left = left[os.write((sys.__stderr__ or sys.stderr).fileno(), left) :]
