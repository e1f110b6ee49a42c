"""A process in a real pseudo-terminal, with an emulator that shows what its screen holds."""

from __future__ import annotations

import fcntl
import math
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
_RESTING_S = 0.005


class Terminal:
    """A pseudo-terminal with the explorer in it."""

    def __init__(
        self,
        case: str = "plain",
        size: tuple[int, int] = (80, 24),
        *,
        command: Sequence[str] = (),
        stdin: int | None = None,
        controls: bool = True,
        **environment: str,
    ) -> None:
        """Start a case of `pty_app`, or another command.

        Unless it `controls` the process, the terminal sends it neither SIGWINCH nor SIGHUP.
        """
        self.columns, self.rows = size
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.output = b""
        self._master, slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self._is_open = True
        self.process = subprocess.Popen(
            [*command] or [sys.executable, "-m", "tests.tui.pty_app", case],
            stdin=slave if stdin is None else stdin,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=_environment(environment),
            start_new_session=True,
            preexec_fn=partial(_prepare, stdin is None and controls),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._is_open:
            os.close(self._slave)
            os.close(self._master)

    def resize(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self.screen.resize(rows, columns)

    def send(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def until(self, condition: Callable[[], bool]) -> None:
        """Read until a condition holds."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self._read(0.02)

    def until_text(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def quiet(self, seconds: float = 0.2) -> int:
        """Read until nothing has come for a while; the number of bytes that came."""
        before = len(self.output)
        while self._read(seconds):
            pass
        return len(self.output) - before

    def rest(self) -> int:
        """Read until nothing comes and nothing is computed; the number of bytes that came."""
        before, is_resting = len(self.output), False
        deadline = time.monotonic() + 3 * DEADLINE
        while not is_resting:
            assert time.monotonic() < deadline, "it never rests"
            used = self.processor_s()
            is_resting = not self._read(0.25) and self.processor_s() - used < _RESTING_S
            is_resting &= not any(state in "RD" for state in self._states())
        return len(self.output) - before

    def _states(self) -> Iterator[str]:
        """The state of each thread: one that has to wait for a processor takes none."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield (task / "stat").read_text().rpartition(")")[2].split()[0]

    def bytes_for(self, keys: str) -> int:
        """The bytes that keys bring to the terminal until it is quiet."""
        self.quiet()
        before = len(self.output)
        self.send(keys)
        self.until(lambda: len(self.output) > before)
        self.quiet()
        return len(self.output) - before

    def timed(
        self,
        keys: str,
        quiet_s: float,
        longest_s: float = 20.0,
        is_answer: Callable[[], bool] = lambda: True,
        silent_s: float = math.inf,
    ) -> tuple[float, int]:
        """Seconds from keys to the last byte of their answer, and how many bytes came.

        Keys that nothing follows for `silent_s` change nothing, which takes 0 s. A screen is
        the answer when it is quiet and `is_answer`. It is worked out when it is quiet: the emulator
        takes longer than some keys.
        """
        before, pieces = len(self.output), list[bytes]()
        start = last = time.monotonic()
        self.send(keys)
        while (now := time.monotonic()) - start < longest_s:
            has_bytes = pieces or len(self.output) > before
            if now - last > quiet_s and has_bytes:
                self._take(b"".join(pieces))
                pieces.clear()
                if is_answer():
                    break
            if now - last > silent_s and not has_bytes:
                break
            if self._has_more(0.002):
                pieces.append(os.read(self._master, 65536))
                last = time.monotonic()
        self._take(b"".join(pieces))
        return last - start, len(self.output) - before

    def processor_s(self) -> float:
        """Processor time that the process has taken in all its threads."""
        clock = (~self.process.pid << 3) | 2  # clock_getcpuclockid(3), which Python lacks
        return time.clock_gettime(clock)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def hang_up(self) -> None:
        """Take the terminal away, as a closed window does."""
        os.close(self._slave)
        os.close(self._master)
        self._is_open = False

    def wait(self) -> int:
        """Read until the process has ended; its exit code."""
        self.until(lambda: self.process.poll() is not None)
        self.quiet(0.05)
        return self.process.returncode

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has stopped the process."""
        return "T" in self._states()

    def is_restored(self) -> bool:
        """Whether the alternate screen, the mouse and the line mode are as before."""
        off = (b"\x1b[?1049l", b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?25h")
        on = (b"\x1b[?1049h", b"\x1b[?1000h", b"\x1b[?1003h", b"\x1b[?25l")
        left = all(
            self.output.rfind(end) > self.output.rfind(begin)
            for begin, end in zip(on, off, strict=True)
            if begin in self.output
        )
        return left and termios.tcgetattr(self._slave)[3] == self.before[3]

    def _has_more(self, timeout: float) -> bool:
        """Whether there is something to read within so many seconds; `select` takes no file beyond
        the 1,024th, and tests may have more open."""
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        return bool(poll.poll(1000 * timeout))

    def _read(self, timeout: float) -> bool:
        if not self._has_more(timeout):
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        self.output += data
        self._stream.feed(data)


def _prepare(controls: bool) -> None:
    """Undo what `nohup` or a shell's `&` set; the terminal may be the one that controls."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if controls:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LANG": "C.UTF-8",
        **more,
    }


def visible(screen: pyte.Screen) -> list[tuple[object, ...]]:
    """The cells of a screen; of a blank one only its background is seen."""
    cells = [screen.buffer[y][x] for y in range(screen.lines) for x in range(screen.columns)]
    return [(" ", cell.bg) if cell.data == " " else tuple(cell) for cell in cells]
