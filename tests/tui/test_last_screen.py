"""The first screen of a run, shown before anything is imported while the same command opens it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from chopper_core.model.view import View
from chopper_core.util.atomic import file_state
from chopper_tui.app import ChopperApp
from chopper_tui.last_screen import LastScreen, drawn
from chopper_tui.textual_internals import ShownCells
from chopper_tui.widgets import frame_table
from tests.demo import small_run
from tests.ingest.test_windows import ranks_of, written
from tests.tui.explorer import Driven
from tests.tui.terminal_harness import Terminal, visible

LINES = [[("one ", "1"), ("two", "38;5;4")], [], [("three", "")]]
_COMPLETE = "costs, saves"


def _started(run: Path, size: tuple[int, int] = (80, 24)) -> Terminal:
    home = {f"XDG_{name}_HOME": str(run.parent / name) for name in ("CACHE", "CONFIG", "STATE")}
    command = [sys.executable, "-m", "chopper_tui", str(run)]
    return Terminal(command=command, size=size, **home)


def _screens(run: Path) -> Path:
    return run.parent / "CACHE" / "chopper" / "screens"


def _kept(folder: Path, starts: int = 1) -> tuple[Path, list[tuple[object, ...]]]:
    """A run whose first screen is kept after so many starts, and its cells."""
    run, state = folder / "run", folder / "STATE" / "chopper"
    for rank in ranks_of(2, 0, 3, 0):
        written(run, rank, rank.rank)
    state.mkdir(parents=True)
    (state / "started").touch()  # The very first start says that it is.
    for _ in range(starts):
        shutil.rmtree(_screens(run), ignore_errors=True)
        with _started(run) as terminal:
            terminal.until(lambda: any(_screens(run).glob("[!.]*")))
            cells = visible(terminal.screen)
            terminal.send("q")
            assert terminal.wait() == 0
    return run, cells


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[object, ...]]]:
    # Lanes of a run that was just read have a shorter title.
    return _kept(tmp_path_factory.mktemp("kept"), 2)


def test_the_first_screen_of_a_run_opened_before_is_there_at_once(
    kept: tuple[Path, list[tuple[object, ...]]],
) -> None:
    """It is the whole of the screen, nothing of it is drawn again, and a key typed early acts."""
    run, first = kept
    (screen,) = _screens(run).iterdir()
    kept_ns = screen.stat().st_mtime_ns
    with _started(run) as terminal:
        terminal.until(lambda: visible(terminal.screen) == first)
        assert b"\x1b[?1000h" not in terminal.output
        before = len(terminal.output)
        terminal.until(lambda: b"\x1b[?1000h" in terminal.output)
        terminal.rest()
        sent = terminal.output[before:].decode()
        assert visible(terminal.screen) == first
        assert "\x1b[?1049h" not in sent and not any(word in sent for word in ("GPU", "costs"))
        terminal.send("q")
        assert terminal.wait() == 0 and terminal.is_restored()
    with _started(run) as terminal:
        terminal.send("2")
        terminal.until_text(_COMPLETE)
        terminal.until_text("slack")
        terminal.send("q")
        assert terminal.wait() == 0 and terminal.is_restored()
    assert screen.stat().st_mtime_ns == kept_ns


def test_a_changed_run_is_drawn_as_it_is(tmp_path: Path) -> None:
    run, _ = _kept(tmp_path)
    next(run.glob("node1_101.*")).unlink()
    with _started(run) as terminal:
        terminal.until(lambda: b"\x1b[?1000h" in terminal.output)
        assert _COMPLETE not in terminal.text
        terminal.until_text(_COMPLETE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_gives_the_terminal_back(
    kept: tuple[Path, list[tuple[object, ...]]], number: signal.Signals
) -> None:
    with _started(kept[0]) as terminal:
        terminal.until_text(_COMPLETE)
        terminal.signal(number)
        assert terminal.wait() == 128 + number and terminal.is_restored()


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LastScreen]:
    """The screen of a command, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *given: LastScreen(given or ("run",))


def test_a_screen_is_of_one_command_terminal_and_state(
    last: Callable[..., LastScreen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, missing = tmp_path / "rank0.json", tmp_path / "config.toml"
    trace.write_text("{}")
    made_of = {str(path): file_state(path) for path in (trace, missing)}
    assert last().lines == ()
    last().keep(LINES, made_of)
    assert last().lines == LINES
    assert last("run", "--ascii").lines == last("other").lines == ()
    for name, value in (("TERM", "vt100"), ("NO_COLOR", "1"), ("CHOPPER_GLYPHS", "ascii")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert last().lines == ()
    with monkeypatch.context() as changed:
        changed.setattr("chopper_tui.last_screen.terminal_size", lambda: (81, 24))
        assert last().lines == ()
    with monkeypatch.context() as changed:
        (tmp_path / "elsewhere").mkdir()
        changed.chdir(tmp_path / "elsewhere")
        assert last().lines == ()
    assert last().lines == LINES
    missing.write_text("[explorer]")
    assert last().lines == ()
    missing.unlink()
    assert last().lines == LINES
    trace.write_text("[]")
    assert last().lines == ()


def test_a_damaged_or_foreign_screen_is_not_shown(
    last: Callable[..., LastScreen], tmp_path: Path
) -> None:
    last().keep(LINES, {})
    (path,) = (tmp_path / "cache" / "chopper" / "screens").iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert last().lines == ()
        path.write_bytes(whole[:place])
        assert last().lines == ()
    path.write_bytes(whole)
    assert last().lines == LINES
    path.parent.chmod(0o777)  # Others could have put it there.
    assert last().lines == ()


def test_lines_are_drawn_as_the_cells_that_were_shown() -> None:
    """What draws kept lines fills the same cells as what drew the screen."""
    shown, console = ShownCells(), Console(color_system="truecolor")
    styles = "bold red", "on #102030"
    strips = [
        Strip([Segment("a  b", Style.parse(styles[row % 2])), Segment("c"), Segment("   ")])
        for row in range(3)
    ]
    parts = [(row, 0, strip) for row, strip in enumerate(strips)]
    sent, found = shown.sent(parts, console), []
    lines = shown.lines(8, 3)
    for text in (sent, drawn(lines)):
        screen = pyte.Screen(8, 3)
        pyte.ByteStream(screen).feed(text.encode())
        found.append(visible(screen))
    assert found[0] == found[1]
    again = ShownCells()
    again.put(lines)
    assert again.lines(8, 3) == lines and again.sent(parts, console) == ""


def test_nothing_that_takes_long_is_imported_before_the_screen_is_shown() -> None:
    code = (
        "import sys, chopper_tui.cli, chopper_tui.last_screen\n"
        "print({'numpy', 'msgspec', 'rich', 'textual', 'asyncio'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()" and not done.stderr


async def test_a_screen_is_not_kept_while_a_part_of_it_is_being_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lanes of a large run come later than its rows."""
    may_draw, draw = threading.Event(), frame_table._draw

    def slow(*given: Any) -> None:
        may_draw.wait(20)
        draw(*given)

    monkeypatch.setattr(frame_table, "_draw", slow)
    run = small_run()
    app = ChopperApp(lambda progress: run, View(run.name, name="overview"))
    async with app.run_test(size=(100, 30)) as pilot:
        driven = Driven(app, pilot)
        while not (app._is_settled and driven.explore.table.sparks) or driven.frame.is_pending:
            await pilot.pause(0.01)
        await pilot.pause(0.3)
        assert not app._is_first_screen(driven.explore)
        may_draw.set()
        await driven.settle()
        assert app._is_first_screen(driven.explore)
