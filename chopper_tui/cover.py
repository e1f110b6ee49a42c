"""The first screen as an earlier start left it: on the terminal before the app is imported.

It covers the app until this has drawn its own first screen, or an input asks for it, and is used
only where everything that the screen depends on is as it was.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from chopper_core.ingest.cache import Kept, code_stamp, digest, kept_covers
from chopper_core.util.atomic import state_of
from chopper_tui.endings import FATAL_SIGNALS, restore_by

if TYPE_CHECKING:
    from chopper_core.model.overrides import Overrides
    from chopper_core.model.run import Run
    from chopper_core.model.view import View
    from chopper_core.render.glyphs import Glyphs
    from chopper_core.util.progress import Progress
    from chopper_tui.config import Config

Lines = tuple[tuple[tuple[str, str], ...], ...]
"""Cells of a screen by line: codes of a style (SGR), and characters of one cell each in it."""

_STOPPING: Final = (signal.SIGTSTP, signal.SIGCONT)
ALTERNATE_SCREEN: Final = "\x1b[?1049h"
_HIDE_CURSOR: Final = "\x1b[?25l"
_GIVE_BACK: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"
_VARIABLES: Final = (
    *("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE", "CHOPPER_GLYPHS", "STY"),
)
"""What decides on colours, characters and sizes, besides all that begin with TEXTUAL_."""
_PACKAGES: Final = ("textual", "rich", "plotext")
_PIECE: Final = 256
"""Bytes that a terminal takes if it takes any."""
_STALLED_S: Final = 1.0
_MOST: Final = 4
"""First screens that are kept of a run: views, sizes and kinds of terminals."""


class Cover:
    """The first screen of a view, from the time that it is painted until the app shows its own."""

    def __init__(self) -> None:
        """No cover: the app draws its first screen itself."""
        self.lines: Lines = ()
        """The cells on the terminal, as long as they cover the app."""
        self._runs: tuple[tuple[str, Overrides], ...] = ()
        self._key = ""
        self._size = shutil.get_terminal_size()
        self._place: Kept | None = None
        self._attributes: list[Any] | None = None
        """Of the terminal before; None unless it is to be given back."""

    @classmethod
    def of(cls, view: View, config: Config, glyphs: Glyphs) -> Cover:
        """The cover of a view on this terminal, to be painted as soon as it is entered."""
        cover, base = cls(), view.baseline
        runs = [(view.run, view.overrides.of_run)]
        if base is not None and base.run not in ("", view.run):
            runs.append((base.run, view.overrides.of_base))
        cover._runs = tuple(runs)
        cover._key = digest([repr(cover._size), *_conditions(view, config, glyphs)])
        return cover

    def __enter__(self) -> Cover:
        """Paint it if it was kept, and nothing has changed since."""
        self._place = kept_covers(self._runs)
        known = self._recall().get(self._key)
        try:
            if known is not None and _fits(known, *self._size):
                self._paint(known)
        except BaseException:  # a signal that has waited
            self.take_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Give the terminal back, unless the app has taken it."""
        self.take_down()

    def beside(self, load: Callable[[Progress], Run]) -> Callable[[Progress], Run]:
        """The same, after a look at the state of the files that are read."""

        def loaded(progress: Progress) -> Run:
            self._place = self._place or kept_covers(self._runs, is_new=True)
            return load(progress)

        return loaded

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines that it covers."""
        return sum(len(text) for _, text in self.lines[0]) if self.lines else 0, len(self.lines)

    def hand_over(self) -> list[Any] | None:
        """Leave the terminal to the app; its attributes before the cover, if this is on it."""
        attributes, self._attributes = self._attributes, None
        return attributes

    def take_down(self) -> None:
        """Give the terminal back as it was, without the keys that nothing has read."""
        attributes = self.hand_over()
        if attributes is None:
            return
        self.lines = ()
        with suppress(OSError, ValueError, termios.error):
            _write(_GIVE_BACK)
        with suppress(OSError, ValueError, termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, attributes)

    def keep(self, lines: Lines, size: tuple[int, int]) -> None:
        """Keep the cells of the first screen for the next start on a terminal of the same size."""
        if self._place is None or size != self._size or not _fits(lines, *size):
            return
        known = self._recall()
        if known.pop(self._key, None) != lines:
            latest = [*known.items(), (self._key, lines)][-_MOST:]
            self._place.keep(dict(latest))

    def _recall(self) -> dict[str, Lines]:
        return (self._place and self._place.recall(dict[str, Lines])) or {}

    def _paint(self, lines: Lines) -> None:
        # In the middle of it a signal would give the terminal back, and the rest would follow.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*FATAL_SIGNALS, *_STOPPING))
        try:
            terminal = sys.stdin.fileno()
            with suppress(OSError):  # of a terminal that doesn't control the process
                if os.tcgetpgrp(terminal) != os.getpgrp():
                    return
            before = termios.tcgetattr(terminal)
            self._take_signals()
            self._attributes = before
            restore_by(self.take_down)
            termios.tcsetattr(terminal, termios.TCSANOW, _silent(before))
            _write(ALTERNATE_SCREEN + _HIDE_CURSOR + "".join(_painted(lines)))
            self.lines = lines
        except (OSError, ValueError, termios.error):
            self.take_down()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _take_signals(self) -> None:
        """Give the terminal back before the process is stopped."""

        def stop(_: int, __: FrameType | None) -> None:
            self.take_down()
            os.kill(os.getpid(), signal.SIGSTOP)

        signal.signal(signal.SIGTSTP, stop)
        # SIGSTOP can't be caught: afterwards a shell has had the terminal.
        signal.signal(signal.SIGCONT, lambda *_: self.take_down())


def _conditions(view: View, config: Config, glyphs: Glyphs) -> list[str]:
    """All that a first screen depends on, but for the run's files and what reads them."""
    specs = (find_spec(name) for name in _PACKAGES)
    set_for = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith("TEXTUAL_")
    )
    return [
        *(repr(view), glyphs.name, code_stamp(Path(__file__).parent)),
        repr(replace(config, actions=())),
        *(f"{each.id} {each.keys}" for each in config.actions),
        *set_for,
        *(repr(state_of(spec.origin)) for spec in specs if spec is not None and spec.origin),
    ]


def _fits(lines: Lines, width: int, height: int) -> bool:
    """Whether lines fill a screen, and nothing in them acts on a terminal."""
    return len(lines) == height and all(
        sum(len(text) for _, text in line) == width
        and all(text.isprintable() and not codes.strip("0123456789;") for codes, text in line)
        for line in lines
    )


def _painted(lines: Lines) -> list[str]:
    painted = []
    for number, line in enumerate(lines, 1):
        painted.append(f"\x1b[{number};1H")
        painted += [f"\x1b[0;{codes}m{text}" if codes else f"\x1b[0m{text}" for codes, text in line]
    return [*painted, "\x1b[0m"]


def _silent(attributes: list[Any]) -> list[Any]:
    """The attributes of a terminal whose keys are kept as they come until the app reads them.

    Ctrl+C interrupts; Ctrl+Z and Ctrl+\\ wait as other keys do.
    """
    iflag, oflag, cflag, lflag, *speeds, characters = attributes
    iflag &= ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)
    lflag &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    characters = list(characters)
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    characters[termios.VSUSP] = characters[termios.VQUIT] = b"\0"
    return [iflag, oflag, cflag, lflag, *speeds, characters]


def _write(text: str) -> None:
    """Write to the terminal; raises TimeoutError where nobody reads it."""
    stream = sys.__stderr__ or sys.stderr  # where Textual draws
    data, terminal = text.encode(stream.encoding, "replace"), stream.fileno()
    for begin in range(0, len(data), _PIECE):
        if not select.select((), (terminal,), (), _STALLED_S)[1]:
            raise TimeoutError
        os.write(terminal, data[begin : begin + _PIECE])
