"""Terminals that know fewer sequences: the Linux console, PuTTY, VT220s, and a real GNU screen."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from rich.color import ColorSystem

from chopper_core.model.view import View
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs
from chopper_tui.app import ChopperApp
from chopper_tui.terminal import has_clipboard, is_old, understood
from tests.tui.explorer import explorer, measured_run
from tests.tui.terminal_harness import Terminal

SHOWN = "4 of 4 rows"
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)", re.DOTALL)
_BASIC = re.compile(r"\[(\d{0,3}(;\d{0,3})*[A-HJKLMPX@`acdefghlmnqrsu]|\?\d{1,4}[hl])|[78cDEHM]")
"""What a VT220 and its followers know, or skip as a whole: moves, erasing, attributes, modes."""
OLD = {"linux": ASCII, "vt220": ASCII, "putty": UNICODE, "putty-256color": UNICODE}


async def expected(
    size: tuple[int, int], glyphs: Glyphs, *keys: str, colours: ColorSystem | None = None
) -> list[str]:
    run = measured_run()
    app = ChopperApp(lambda _: run, View("sample.json"), glyphs=glyphs)
    app.console._color_system = colours
    async with explorer(size, app=app) as at:
        await at.press(*keys)
        return [line.rstrip() for line in at.lines()]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("term", "size"), [*((term, (80, 24)) for term in OLD), ("vt220", (132, 43))]
)
async def test_an_old_terminal_shows_all_and_no_garbage(term: str, size: tuple[int, int]) -> None:
    # Areas of many colours are blank on their colour.
    colours = ColorSystem.EIGHT_BIT if term.endswith("256color") else None
    wanted = await expected(size, OLD[term], "down", "enter", "3", colours=colours)
    with Terminal("views", size, TERM=term, COLORTERM="") as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet()
        terminal.send("j\r3")
        terminal.until(lambda: [line.rstrip() for line in terminal.screen.display] == wanted)
        for keys in ("?", "q", ":"):
            terminal.send(keys)
            terminal.quiet(0.1)
        terminal.send("\x03")
        assert terminal.wait() == 0
        assert terminal.is_restored()
        output = terminal.output.decode()
    unknown = {each for each in _SEQUENCE.findall(output) if not _BASIC.fullmatch(each)}
    assert not unknown


@pytest.mark.sweep
@pytest.mark.parametrize("term", OLD)
def test_its_keys_work(term: str) -> None:
    """Arrows, paging and Esc as these terminals send them."""
    up = "\x1b[A" if term != "putty" else "\x1bOA"
    with Terminal("views", TERM=term, COLORTERM="") as terminal:
        terminal.until_text("1/4")
        for keys, place in ((up.replace("A", "B"), "2/4"), ("\x1b[6~", "4/4"), (up, "3/4")):
            terminal.send(keys)
            terminal.until_text(place)
        terminal.send("\r")
        terminal.until_text("GPU 2")
        terminal.send("\x1b")
        terminal.until_text("3/4")
        terminal.send("\x7f\x03")
        assert terminal.wait() == 0


@pytest.mark.sweep
def test_a_console_has_no_clipboard() -> None:
    with Terminal("views", TERM="linux", COLORTERM="") as terminal:
        terminal.until_text(SHOWN)
        terminal.send("y")
        terminal.until_text("no clipboard")
        assert b"]52;" not in terminal.output
    with Terminal("views", TERM="xterm") as terminal:
        terminal.until_text(SHOWN)
        terminal.send("y")
        terminal.until_text("copied the row")
        assert b"]52;" in terminal.output


def test_what_is_left_out_is_what_came_later() -> None:
    sent = "\x1b[>1u\x1b[?2026$p\x1b[2;3Ha\x1b]22;default\x07\x1b[?1049h\x1b[<u\x1b]52;c;eA==\x07b"
    assert understood(sent) == "\x1b[2;3Ha\x1b[?1049h\x1b]52;c;eA==\x07b"
    assert is_old({"TERM": "screen-256color"}) and is_old({"TERM": "linux"})
    assert not is_old({"TERM": "screen-256color", "TMUX": "/tmp/x"})
    assert not is_old({"TERM": "xterm-256color"}) and not is_old({})
    assert has_clipboard({"TERM": "putty"}) and not has_clipboard({"TERM": "vt220"})


@pytest.mark.skipif(shutil.which("screen") is None, reason="GNU screen is not installed")
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_in_gnu_screen(tmp_path: Path, size: tuple[int, int]) -> None:
    """The real multiplexer in a pseudo-terminal: drawn, driven, detached, left clean."""
    wanted = await expected(size, UNICODE, "down", "enter")
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    settings = tmp_path / "rc"
    settings.write_text("defutf8 on\nstartup_message off\naltscreen on\ndefscrollback 0\n")
    words = ("screen", "-U", "-c", str(settings), "-S", "chopper")
    app = (sys.executable, "-m", "tests.tui.pty_app", "views")
    home = {"SCREENDIR": str(folder), "COLORTERM": "", "HOME": str(tmp_path)}
    with Terminal(command=(*words, *app), size=size, **home) as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet()
        terminal.send("j\r")
        terminal.until(lambda: [line.rstrip() for line in terminal.screen.display] == wanted)
        # Away and back: what is on the screen then comes from screen, not from the app.
        terminal.send("\x01d")
        terminal.until(lambda: terminal.process.poll() is not None)
    with Terminal(command=(*words[:4], "-r", "chopper"), size=size, **home) as terminal:
        terminal.until(lambda: [line.rstrip() for line in terminal.screen.display] == wanted)
        terminal.send("q")
        terminal.until_text("terminating")
        assert terminal.wait() == 0
