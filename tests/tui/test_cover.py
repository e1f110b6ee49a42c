"""The kept first screen, on the terminal before the app is: what is kept, used, and given back."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pyte
import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

from chopper_core.ingest import cache
from chopper_core.model.view import Baseline, View
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.store.writer import write_store
from chopper_core.util.progress import silent
from chopper_tui import cover
from chopper_tui.config import DEFAULTS, Config
from chopper_tui.cover import Cover, Lines
from chopper_tui.textual_internals import ChangedCells, ShownCells
from tests.tui.explorer import measured_run
from tests.tui.terminal_harness import Terminal, visible

SIZE = (40, 10)
LINES: Lines = ((("", "a figure "), ("1;38;2;0;114;178", "12 ms"), ("48;5;4", " " * 26)),) * 10


@pytest.fixture
def slave(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The terminal of this process, small; what is painted is read from its other end."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *reversed(SIZE), 0, 0))
    with open(slave, closefd=False) as keys, open(slave, "w", closefd=False) as screen:
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(sys, "__stderr__", screen)
        monkeypatch.setattr(sys, "__stdout__", screen)
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        yield master
        for number, handler in handlers.items():
            if handler is not signal.getsignal(number):
                signal.signal(number, handler)
    os.close(slave)
    os.close(master)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    trace = tmp_path / "run" / "trace.json"
    trace.parent.mkdir()
    trace.write_text("{}")
    return trace


def read(terminal: int) -> bytes:
    """All that has been written to a terminal."""
    pieces = []
    while select.select([terminal], [], [], 0.05)[0]:
        pieces.append(os.read(terminal, 65536))
    return b"".join(pieces)


def attributes() -> list[object]:
    return termios.tcgetattr(sys.stdin.fileno())


def kept(run: Path, lines: Lines = LINES) -> View:
    """A view of a run whose first screen was kept."""
    view = View(str(run.parent), name="overview")
    with Cover.of(view, DEFAULTS, UNICODE) as first:
        assert not first.lines
        first.beside(lambda _: measured_run())(silent)
        first.keep(lines, SIZE)
    return view


def is_used(view: View, config: Config = DEFAULTS, glyphs: object = UNICODE) -> bool:
    with Cover.of(view, config, glyphs) as again:  # type: ignore[arg-type]
        termios.tcflush(sys.stdin.fileno(), termios.TCOFLUSH)
        return bool(again.lines)


def test_the_terminal_shows_it_without_an_echo_and_is_given_back(slave: int, run: Path) -> None:
    view, before = kept(run), attributes()
    screen = pyte.Screen(*SIZE)
    with Cover.of(view, DEFAULTS, UNICODE) as found:
        assert found.lines == LINES
        assert found.size == SIZE
        painted = read(slave)
        pyte.ByteStream(screen).feed(painted)
        assert screen.display == ["".join(text for _, text in line) for line in LINES]
        assert screen.buffer[9][9].bold and screen.buffer[9][9].fg == "0072b2"
        assert not attributes()[3] & (termios.ECHO | termios.ICANON)
        os.write(slave, b"j\r\x1a")
        time.sleep(0.01)
        assert os.read(sys.stdin.fileno(), 9) == b"j\r\x1a"
    assert attributes() == before
    assert b"?1049h" in painted and read(slave).endswith(b"\x1b[?1049l")


def test_an_app_that_takes_the_terminal_over_gives_it_back_itself(slave: int, run: Path) -> None:
    view, before = kept(run), attributes()
    with Cover.of(view, DEFAULTS, UNICODE) as found:
        assert found.hand_over() == before
    assert found.hand_over() is None
    found.take_down()
    assert found.lines == LINES and attributes() != before


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "a file's content": lambda run, _: run.write_text("[]"),
    "another file": lambda run, _: (run.parent / "power.csv").touch(),
    "a file less": lambda run, _: run.unlink(),
    "no run": lambda run, _: run.parent.rename(run.parent.with_name("away")),
    "Chopper's reading": lambda _, monkeypatch: monkeypatch.setattr(
        cache, "_code_stamp", lambda: "another version"
    ),
    "Chopper's drawing": lambda _, monkeypatch: monkeypatch.setattr(
        cover, "code_stamp", lambda _: "another version"
    ),
    "Textual": lambda _, monkeypatch: monkeypatch.setattr(
        cover, "find_spec", lambda _: SimpleNamespace(origin=__file__)
    ),
    "NO_COLOR": lambda _, monkeypatch: monkeypatch.setenv("NO_COLOR", "1"),
    "TERM": lambda _, monkeypatch: monkeypatch.setenv("TERM", "linux"),
    "COLORTERM": lambda _, monkeypatch: monkeypatch.setenv("COLORTERM", "16"),
    "Textual's colours": lambda _, monkeypatch: monkeypatch.setenv("TEXTUAL_COLOR_SYSTEM", "256"),
    "the terminal's size": lambda _, __: ioctl(
        sys.stdin.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 11, 40, 0, 0)
    ),
    "a damaged file": lambda run, _: _damage(b"12 ms", b"11 ms"),
    "a file cut short": lambda run, _: _damage(b"]", b"", 1),
    "others' rights": lambda run, _: _folder().chmod(0o777),
}


def _folder() -> Path:
    return cache.directory().parent / "covers"


def _damage(old: bytes, new: bytes, count: int = -1) -> None:
    for file in _folder().iterdir():
        file.write_bytes(file.read_bytes().replace(old, new, count))


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_used_only_where_nothing_has_changed(
    change: str, slave: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = kept(run)
    assert is_used(view)
    CHANGES[change](run, monkeypatch)
    assert not is_used(view)


def test_it_is_used_for_the_same_view_settings_and_characters_alone(slave: int, run: Path) -> None:
    view = kept(run)
    assert is_used(view)
    assert not is_used(view, glyphs=ASCII)
    assert not is_used(view, replace(DEFAULTS, theme="contrast"))
    assert not is_used(view, replace(DEFAULTS, is_first=True))
    assert not is_used(view, replace(DEFAULTS, splits={"overview": 2}))
    assert not is_used(replace(view, name="kernels"))
    assert not is_used(replace(view, path=("1",)))
    assert not is_used(replace(view, overrides=replace(view.overrides, parallel="tp=2")))
    assert is_used(view)


@pytest.mark.parametrize("changed", ["A", "B"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_that_of_several_runs_follows_the_files_of_each(
    is_folder: bool, changed: str, slave: int, tmp_path: Path
) -> None:
    places = {name: tmp_path / "runs" / name for name in "ABC"}
    for place in places.values():
        place.mkdir(parents=True)
        (place / "trace.json").write_text("{}")
    view = View(str(places["B"]), name="compare", baseline=Baseline(str(places["A"])))
    other = replace(view, baseline=Baseline(str(places["C"])))
    if is_folder:
        view, other = View(str(tmp_path / "runs")), View(str(tmp_path / "runs"), name="runs")
    with Cover.of(view, DEFAULTS, UNICODE) as first:
        first.beside(lambda _: measured_run())(silent)
        first.keep(LINES, SIZE)
    assert is_used(view) and is_used(view) and not is_used(other)
    (places[changed] / "trace.json").write_text("[]")
    assert not is_used(view)


@pytest.mark.parametrize(
    "lines",
    [
        LINES[:9],
        (*LINES[:9], (("", " " * 39),)),
        (*LINES[:9], (("", "\x1b[2J" + " " * 36),)),
        (*LINES[:9], (("0m\x1b]52;c;YQ==\x07\x1b[", " " * 40),)),
    ],
    ids=["a line less", "a cell less", "a sequence in the text", "a sequence in the style"],
)
def test_only_cells_that_fill_the_screen_and_do_nothing_are_painted(
    lines: Lines, slave: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as careless:
        careless.setattr(cover, "_fits", lambda *_: True)
        view = kept(run, lines)
        assert is_used(view)
    assert not is_used(view)


def test_the_latest_of_a_run_are_kept_and_are_private(slave: int, run: Path) -> None:
    views = [View(str(run.parent), path=(str(gpu),)) for gpu in range(6)]
    for view in views:
        with Cover.of(view, DEFAULTS, UNICODE) as first:
            first.beside(lambda _: measured_run())(silent)
            first.keep(LINES, SIZE)
    assert [is_used(view) for view in views] == [False] * 2 + [True] * 4
    (file,) = _folder().iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    cache.clear()
    assert not _folder().exists()


def test_cells_that_are_known_are_kept_as_they_were_sent() -> None:
    """The lines of one terminal are those of another: neither sends anything to show them."""
    ink, ground = Style(color="#112233", bold=True), Style(bgcolor="#445566")
    strip = Strip([Segment("ab", ink), Segment("  ", ink), Segment("  ", ground), Segment("cd")])
    update = LayoutUpdate([[strip]] * 2, Size(8, 2).region)
    console = Console(color_system="truecolor", force_terminal=True)
    shown, later = ShownCells(), ShownCells()
    assert ChangedCells(shown, update).render_segments(console)
    later.lines = shown.lines
    assert later.lines == shown.lines
    assert not ChangedCells(later, update).render_segments(console)
    wide = LayoutUpdate([[Strip([Segment("字 of it  ")])]] * 2, Size(8, 2).region)
    ChangedCells(shown, wide).render_segments(console)
    assert not shown.lines


class Started:
    """Starts the explorer of a store in a terminal, each time with the same cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drawn = ""
        write_store(measured_run(), folder / "store")
        (folder / "STATE" / "chopper").mkdir(parents=True)
        (folder / "STATE" / "chopper" / "started").touch()  # a first start greets
        self.places = {f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "STATE")}

    def __call__(self, size: tuple[int, int] = (80, 24), *options: str) -> Terminal:
        command = (sys.executable, "-m", "chopper_tui.cli", str(self.folder / "store"), *options)
        return Terminal(size=size, command=command, **self.places)

    @property
    def kept(self) -> bytes:
        return b"".join(file.read_bytes() for file in self.folder.glob("CACHE/chopper/covers/*"))

    def keep(self, size: tuple[int, int] = (80, 24)) -> str:
        """Start once, until the first screen is kept; its text."""
        before = self.kept
        with self(size) as terminal:
            terminal.until(lambda: self.kept != before)
            terminal.quiet(0.2)
            self.drawn = terminal.text
        return self.drawn


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    return Started(tmp_path_factory.mktemp("covered"))


@pytest.fixture(scope="module")
def covered(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """The same, of a store whose first screen is kept."""
    started = Started(tmp_path_factory.mktemp("kept"))
    started.keep()
    return started


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(120, 40), (80, 24), (200, 60), (60, 16), (40, 10), (30, 8)])
def test_the_app_draws_the_same_cells(size: tuple[int, int], started: Started) -> None:
    """Of a screen that was covered no cell is sent once the app is there."""
    drawn = started.keep(size)
    with started(size) as terminal:
        terminal.until(lambda: b"?2048$p" in terminal.output)
        terminal.quiet(1.0)
        painted, _, rest = terminal.output.partition(b"\x1b[?1000h")
        screen = pyte.Screen(*size)
        pyte.ByteStream(screen).feed(painted)
        assert "\n".join(screen.display) == terminal.text == drawn
        assert not re.search(rb"\x1b\[[\d;]*m|\w \w", rest)
        terminal.signal(signal.SIGCONT)  # for a shell that had the terminal all is drawn anew
        terminal.quiet(0.7)
        assert terminal.text == drawn
        assert visible(terminal.screen) == visible(screen)
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.few(1)
@pytest.mark.parametrize("keys", ["jjk1q", "1q", "1\rq", ":theme contrast\rq"])
def test_keys_typed_before_the_app_is_there_are_performed_by_it(
    keys: str, covered: Started
) -> None:
    with covered() as terminal:
        terminal.until(lambda: b"\x1b[?1049h" in terminal.output)
        terminal.send(keys)
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        *((each, 128 + each) for each in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)),
        (signal.SIGINT, 130),
    ],
)
def test_a_signal_before_the_app_is_there_restores_the_terminal(
    number: signal.Signals, code: int, covered: Started
) -> None:
    with covered() as terminal:
        terminal.until(lambda: b"\x1b[?1049h" in terminal.output)
        terminal.signal(number)
        assert terminal.wait() == code
        assert b"?1000h" not in terminal.output, "the app was there"
        assert terminal.is_restored()
        assert b"Traceback" not in terminal.output


@pytest.mark.few(1)
@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_stop_before_the_app_is_there_leaves_the_terminal_whole(
    stop: signal.Signals, covered: Started
) -> None:
    with covered() as terminal:
        terminal.until(lambda: b"\x1b[?1049h" in terminal.output)
        terminal.signal(stop)
        terminal.until(lambda: terminal.is_stopped)
        if stop is signal.SIGTSTP:
            terminal.quiet(0.1)
            assert terminal.is_restored()
        # The shell draws over it.
        pyte.Stream(terminal.screen).feed("\x1b[?1049l\x1b[2J\x1b[H$ fg\r\n")
        terminal.signal(signal.SIGCONT)
        terminal.until(lambda: terminal.text == covered.drawn)
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


def test_it_ends_with_a_terminal_that_is_closed_before_the_app_is_there(covered: Started) -> None:
    with covered() as terminal:
        terminal.until(lambda: b"\x1b[?1049h" in terminal.output)
        terminal.hang_up()
        assert terminal.process.wait(30)


@pytest.mark.sweep
@pytest.mark.parametrize("option", ["--no-cache", "--ascii"])
def test_options_that_want_another_screen_do_without_it(option: str, covered: Started) -> None:
    with covered((80, 24), option) as terminal:
        terminal.until(lambda: b"\x1b[?1049h" in terminal.output)
        terminal.until_text("4 of 4 rows")
        assert b"?2048$p" in terminal.output
        assert terminal.output.index(b"?1000h") < terminal.output.index(b" of 4 rows")
