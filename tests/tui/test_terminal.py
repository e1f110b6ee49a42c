"""The explorer in a real pseudo-terminal: how it starts, what it sends, how it leaves."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.views import VIEWS
from chopper_tui.driver import HUNG_UP
from chopper_tui.terminal import can_draw, glyphs_of, prepare_environment, set_size
from chopper_tui.textual_internals import ShownCells
from tests.tui.terminal_harness import ROOT, Terminal, visible

SHOWN = "4 of 4 rows"


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_it_starts_and_leaves(size: tuple[int, int]) -> None:
    with Terminal(size=size) as terminal:
        terminal.until_text(SHOWN)
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        *(
            pytest.param(number, marks=pytest.mark.sweep)
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGABRT)
        ),
    ],
)
def test_a_signal_restores_the_terminal(number: signal.Signals) -> None:
    with Terminal() as terminal:
        terminal.until_text(SHOWN)
        terminal.signal(number)
        assert terminal.wait() == 128 + number
        assert terminal.is_restored()
        assert f"ended by {number.name}".encode() in terminal.output
        assert b"Traceback" not in terminal.output


@pytest.mark.sweep
@pytest.mark.parametrize(
    "keys", ["o", "?", "\x10", ":", pytest.param("m", marks=pytest.mark.sweep)]
)
def test_a_signal_over_a_dialog_restores_the_terminal(keys: str) -> None:
    with Terminal() as terminal:
        terminal.until_text(SHOWN)
        terminal.send(keys)
        terminal.quiet()
        terminal.signal(signal.SIGHUP)
        assert terminal.wait() == 128 + signal.SIGHUP
        assert terminal.is_restored() and b"Traceback" not in terminal.output


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_although_nobody_reads_its_terminal(number: signal.Signals) -> None:
    """It waited for a hung client for ever: the loop waits for room, and never sees the signal."""
    with Terminal(size=(200, 60)) as terminal:
        terminal.until_text(SHOWN)
        for _ in range(40):
            terminal.send("jk1o\x1b?\x1b345678")
            time.sleep(0.01)
        time.sleep(1.0)
        terminal.signal(number)
        assert terminal.process.wait(30) == 128 + number


@pytest.mark.few(1)
@pytest.mark.parametrize("ending", ["\x03", "\x1b[99;5u", "TERM", "HUP", "hang-up"])
def test_an_app_that_is_stuck_ends_all_the_same(ending: str) -> None:
    """Whatever its loop waits for, Ctrl-C, a signal and a lost terminal end it."""
    with Terminal("stuck", controls=ending != "hang-up") as terminal:
        terminal.until_text("? help")
        terminal.rest()
        terminal.send("jjjj3oo")
        if ending == "hang-up":
            terminal.hang_up()
            assert terminal.process.wait(60) == HUNG_UP
            return
        number = getattr(signal, f"SIG{ending}", None)
        if number is None:
            terminal.send(ending)
        else:
            terminal.signal(number)
        assert terminal.wait() == 128 + (number or signal.SIGINT)
        assert terminal.is_restored() and b"Traceback" not in terminal.output


def test_ctrl_c_overtakes_the_keys_before_it() -> None:
    with Terminal("large") as terminal:
        terminal.until_text("? help")
        for _ in range(20):
            terminal.send("3p\x1b[27u12o\x1b[27u48?\x1b[27u")
        terminal.send(":filter x\x03")
        assert terminal.wait() == 0 and terminal.is_restored()


@pytest.mark.sweep
@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_stop_from_outside_and_another_size_leave_the_terminal_whole(
    stop: signal.Signals,
) -> None:
    with Terminal(size=(100, 30)) as terminal:
        terminal.until_text(SHOWN)
        terminal.signal(stop)
        terminal.until(lambda: terminal.is_stopped)
        terminal.resize(80, 24)
        before = len(terminal.output)
        terminal.signal(signal.SIGCONT)
        terminal.until(lambda: SHOWN.encode() in terminal.output[before:])
        terminal.until_text(SHOWN)
        # A second one finds the program running: it takes the terminal anew, and draws all of it.
        before = len(terminal.output)
        terminal.signal(signal.SIGCONT)
        terminal.until(lambda: SHOWN.encode() in terminal.output[before:].rpartition(b"?1049h")[2])
        terminal.quiet(0.5)
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.sweep
def test_a_continuation_in_the_middle_of_a_write_blocks_nothing() -> None:
    with Terminal("continued") as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet(0.7)  # a key that comes while it takes the terminal is lost
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.sweep
@pytest.mark.parametrize("moment", ["at once", "drawing", "quiet"])
def test_the_program_ends_with_its_terminal(moment: str) -> None:
    """No SIGHUP comes: the terminal doesn't control the process."""
    with Terminal(controls=False) as terminal:
        if moment != "at once":
            terminal.until(lambda: b"\x1b[?1049h" in terminal.output)
        if moment == "quiet":
            terminal.until_text(SHOWN)
            terminal.quiet()
        terminal.hang_up()
        code = terminal.process.wait(30)
        assert code == HUNG_UP or moment == "at once"


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [1, 20, 200])
def test_an_interruption_while_modules_load_prints_no_traceback(number: int) -> None:
    """From the first module on: before that the interpreter has no handler but its own."""
    code = f"""
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells ignore it in the background.
imports = 0
def hook(event, arguments):
    global imports
    if event == "import" and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        imports += 1
        if imports == {number}:
            signal.raise_signal(signal.SIGINT)
sys.addaudithook(hook)
runpy.run_module("chopper_tui", run_name="__main__")
"""
    command = [sys.executable, "-c", code, "info", DEMO_RANK[-1]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"chopper: interrupted\n")


@pytest.mark.sweep
def test_the_shell_gets_the_terminal_while_it_is_stopped() -> None:
    with Terminal() as terminal:
        terminal.until_text(SHOWN)
        terminal.send("\x1a")
        terminal.until(lambda: terminal.is_stopped)
        terminal.quiet()
        assert terminal.is_restored()
        before = len(terminal.output)
        terminal.signal(signal.SIGCONT)
        terminal.until(lambda: SHOWN.encode() in terminal.output[before:])
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


@pytest.mark.sweep
@pytest.mark.parametrize("term", ["tmux-256color", "screen", "screen-256color", "xterm"])
def test_terminals_by_their_names(term: str) -> None:
    with Terminal(TERM=term, COLORTERM="") as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet()
        assert b"\xe2" in terminal.output
        terminal.send("q")
        assert terminal.wait() == 0
        assert terminal.is_restored()


DEMO_RANK = (
    sys.executable,
    "-m",
    "chopper_tui.cli",
    str(ROOT / "demo_data" / "fsdp2" / "rank0.json.gz"),
)


@pytest.mark.sweep
@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_be_drawn_on_gets_the_view_as_text(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with Terminal(command=DEMO_RANK, XDG_CACHE_HOME=str(tmp_path), **environment) as terminal:
        assert terminal.wait() == 0
        assert b"kernels" in terminal.output and b"total" in terminal.output
        assert b"\x1b" not in terminal.output and terminal.is_restored()


def test_without_a_terminal_for_its_keys_it_prints_and_ends(tmp_path: Path) -> None:
    with (
        Path("/dev/null").open("rb") as nothing,
        Terminal(
            command=DEMO_RANK, stdin=nothing.fileno(), XDG_CACHE_HOME=str(tmp_path)
        ) as terminal,
    ):
        assert terminal.wait() == 0
        assert b"total" in terminal.output and b"\x1b[?1049h" not in terminal.output


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_tmux(tmp_path: Path) -> None:
    """The real multiplexer, of the size of an ordinary pane: drawn, driven, left clean."""
    socket = str(tmp_path / "tmux")

    def tmux(*words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", socket, "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)},
        )
        return done.stdout

    def until(text: str) -> str:
        deadline = time.monotonic() + 20
        while text not in (pane := tmux("capture-pane", "-p")):
            assert time.monotonic() < deadline, pane
            time.sleep(0.05)
        return pane

    tmux("new-session", "-d", "-x", "80", "-y", "24", "-c", str(ROOT), "sh")
    try:
        tmux("send-keys", f"{sys.executable} -m tests.tui.pty_app; echo left with $?", "Enter")
        until(SHOWN)
        tmux("send-keys", "j", "Enter")
        assert "GPU 1" in until("3 of 3 rows")
        tmux("resize-window", "-x", "120", "-y", "40")
        until("on every GPU")
        tmux("send-keys", "q")
        assert SHOWN not in until("left with 0")
    finally:
        tmux("kill-server")


@pytest.mark.sweep
@pytest.mark.parametrize("count", ["99999", "9" * 5000])
def test_the_size_is_the_terminal_s_whatever_variables_say(count: str) -> None:
    with Terminal(COLUMNS=count, LINES=count) as terminal:
        terminal.until_text(SHOWN)
        terminal.resize(100, 30)
        terminal.until(lambda: ": ask" in terminal.screen.display[29])


@pytest.mark.parametrize(
    ("own", "given", "left"),
    [
        ((80, 24), {"COLUMNS": "99999", "LINES": "50"}, {}),
        ((65535, 24), {}, {"COLUMNS": "1000"}),
        ((0, 0), {"COLUMNS": "99999", "LINES": "50"}, {"COLUMNS": "1000", "LINES": "50"}),
        ((0, 0), {"COLUMNS": "many", "LINES": "9" * 5000}, {"LINES": "1000"}),
    ],
)
def test_no_more_cells_are_laid_out_than_are_drawn(
    own: tuple[int, int], given: dict[str, str], left: dict[str, str]
) -> None:
    set_size(given, *own)
    assert given == left


def test_resizing_redraws() -> None:
    with Terminal() as terminal:
        terminal.until_text(SHOWN)
        terminal.resize(140, 40)
        terminal.until_text("more of the trace")
        terminal.resize(30, 8)
        terminal.until_text("too small")
        terminal.send("\x03")
        assert terminal.wait() == 0


@pytest.mark.sweep
@pytest.mark.parametrize("key", ["q", "\x1b", "\x03"])
def test_loading_is_cancelled(key: str) -> None:
    with Terminal("slow") as terminal:
        terminal.until_text("reading sample.json")
        terminal.send(key)
        assert terminal.wait() == 130
        assert terminal.is_restored()


@pytest.mark.sweep
def test_an_error_is_told_in_a_sentence() -> None:
    with Terminal("broken") as terminal:
        assert terminal.wait() == 1
        assert terminal.is_restored()
        assert b"chopper: sample.json can't be read" in terminal.output
        assert b"Traceback" not in terminal.output


@pytest.mark.sweep
def test_a_crash_goes_to_a_file(tmp_path: Path) -> None:
    with Terminal("crash", XDG_STATE_HOME=str(tmp_path)) as terminal:
        assert terminal.wait() == 1
        assert terminal.is_restored()
        (log,) = (tmp_path / "chopper").iterdir()
        assert str(log).encode() in terminal.output.replace(b"\r\n", b"")
        assert "ZeroDivisionError" in log.read_text()
        assert b"Traceback" not in terminal.output


@pytest.mark.sweep
def test_without_colour_the_cursor_is_reversed() -> None:
    with Terminal(NO_COLOR="1") as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet()
        assert b"38;" not in terminal.output and b"48;" not in terminal.output
        cursor = next(y for y, line in enumerate(terminal.screen.display) if "▌ 0" in line)
        assert terminal.screen.buffer[cursor][4].reverse
        assert not terminal.screen.buffer[cursor + 1][4].reverse


@pytest.mark.sweep
def test_sixteen_colours_are_enough() -> None:
    with Terminal(TERM="xterm", COLORTERM="", TEXTUAL_COLOR_SYSTEM="standard") as terminal:
        terminal.until_text(SHOWN)
        terminal.quiet()
        cursor = next(y for y, line in enumerate(terminal.screen.display) if "▌ 0" in line)
        assert terminal.screen.buffer[cursor][4].reverse


@pytest.mark.sweep
@pytest.mark.parametrize(
    "environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}, {"CHOPPER_GLYPHS": "ascii"}]
)
def test_without_utf8_everything_is_ascii(environment: dict[str, str]) -> None:
    with Terminal(size=(120, 40), **environment) as terminal:
        terminal.until_text(SHOWN)
        terminal.send("jlo")
        terminal.until_text("Sort by")
        terminal.quiet()
        assert terminal.output.isascii() and b"\\u" not in terminal.output


@pytest.mark.sweep
def test_without_the_mouse() -> None:
    with Terminal("no-mouse") as terminal:
        terminal.until_text(SHOWN)
        assert b"?1003h" not in terminal.output
        terminal.send("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("char", ["\x7f", "\x00", "\x1b", "\x9b", "\u202e", "\ud800", "\t", "\xa0"])
def test_no_character_that_is_drawn_acts_on_the_terminal(char: str) -> None:
    strip = Strip([Segment(f"a{char}b", Style(bold=True)), Segment(" c")])
    text = sent(ShownCells(), LayoutUpdate([[strip]], Size(5, 1).region))
    assert char not in re.sub(r"\x1b\[[\d;]*[mHJ]", "", text)
    assert re.search(r"a[? ]b", text)


def test_an_update_is_of_its_cells_alone() -> None:
    """Textual's begins at the left edge of the widget."""
    strip = Strip([Segment("time "), Segment("12.5 µs"), Segment(" busy")])
    update = ChopsUpdate([{0: strip}], [(0, 6, 9), (0, 12, 14)], [[17]])
    shown = ShownCells()
    assert sent(shown, update) == "\x1b[2J\x1b[1;7H2.5\x1b[4Cb", "a cleared screen needs no blanks"
    shown.forget()
    assert sent(shown, update).startswith("\x1b[2J")


CONSOLE = Console(color_system="truecolor", force_terminal=True)


def sent(shown: ShownCells, update: CompositorUpdate) -> str:
    changes = shown.changes(update)
    assert isinstance(changes, CompositorUpdate)
    return changes.render_segments(CONSOLE)


WORDS = st.sampled_from(["a", "b1", " ", "   ", " " * 13, "│", "█", "字", "e\u0301", "a字a"])
TEXTS = st.lists(WORDS, max_size=6).map("".join)
INKS = st.sampled_from(
    [
        *(None, Style(bold=True), Style(color="#112233"), Style(bgcolor="#445566")),
        *(Style(underline=True, bgcolor="#445566"), Style(color="#778899", bgcolor="#445566")),
        *(Style(color="bright_red"), Style(color="red", bgcolor="bright_blue", italic=True)),
        *(Style(color=Color.from_ansi(9), strike=True), Style(reverse=True), Style(bgcolor="blue")),
    ]
)


@given(st.lists(st.lists(st.lists(st.tuples(TEXTS, INKS), max_size=4), max_size=4), max_size=5))
@settings(max_examples=20)
def test_only_cells_that_differ_are_sent_and_the_screen_is_whole(
    screens: list[list[list[tuple[str, Style | None]]]],
) -> None:
    size = Size(24, 4)
    shown, screen, plain = ShownCells(can_erase=True), pyte.Screen(25, 4), pyte.Screen(25, 4)
    for lines in screens:
        strips = [
            Strip([Segment(text, ink) for text, ink in line]).adjust_cell_length(24)
            for line in [*lines, *[[]] * 4][:4]
        ]
        whole = LayoutUpdate([[each] for each in strips], size.region)
        pyte.Stream(screen).feed(sent(shown, whole))
        plain.reset()
        pyte.Stream(plain).feed(whole.render_segments(CONSOLE))
        assert screen.display == plain.display
        assert visible(screen) == visible(plain)
        part = ChopsUpdate([{0: strips[0]}], [(0, 2, 20)], [[24]])
        assert not sent(shown, part) or not strips[0].text.isascii()
    shown.forget()
    assert not screens or sent(shown, whole)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("size", "case", "move", "page"),
    [
        ((80, 24), "large", 600, 6_000),
        ((80, 24), "large-measured", 600, 6_000),
        ((200, 60), "large-restless", 600, 16_000),
        ((200, 60), "large-measured-restless", 600, 16_000),
        ((200, 60), "large", 1_400, 16_000),
        ((200, 60), "large-measured", 1_400, 16_000),
    ],
)
def test_bytes_to_the_terminal(size: tuple[int, int], case: str, move: int, page: int) -> None:
    """Where there is a side pane, a row's detail follows a cursor that rests."""
    with Terminal(case, size) as terminal:
        # The table, its sparklines and the chart, then silence: only then a key is measured.
        signs = ("▅▅▅", "0┤") if "measured" in case else ("100┤",)
        for text in ("200 of 200 rows", *signs):
            terminal.until_text(text)
        terminal.quiet(0.5)
        assert terminal.bytes_for("j") <= move
        assert terminal.bytes_for("k") <= move
        assert terminal.bytes_for("\x1b[6~") <= page
        assert terminal.bytes_for("\x1b[6~") <= page
        assert terminal.quiet(0.5) == 0


_CARD = 2_500
"""Bytes that a whole card may take, as the detail of a row."""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("size", "move", "alone", "page"),
    [((80, 24), 600, 600, 6_000), ((120, 40), 1_700, 600, 6_000), ((200, 60), 2_700, 800, 16_000)],
)
def test_bytes_of_every_view(size: tuple[int, int], move: int, alone: int, page: int) -> None:
    """A move of the cursor with all that follows it, a page, a move in the table alone, nothing.

    Beside the table a large screen has the detail of the row, whose text is another one, and the
    timeline, with or without a table, the bands and signals of another GPU.
    """
    run = str(Path(DEMO_RANK[-1]).parent)
    command = (sys.executable, "-m", "chopper_tui.cli", run)
    over: list[str] = []
    with Terminal(size=size, command=command) as terminal:
        terminal.until_text("filter")
        for view in ("explore", *VIEWS):
            terminal.rest()
            terminal.send(f":go {run}?view={view}\r")
            terminal.rest()
            # Of cards alone the cursor's is whole, which moves those between.
            alone_here = {"timeline": move + 50, "overview": 3 * alone, "findings": _CARD}.get(
                view, alone
            )
            here = {"findings": _CARD, "timeline": move + 50}.get(view, move)
            for settling, keys in (
                ("jk", (("j", here), ("k", here), ("\x1b[6~", page), ("\x1b[5~", page))),
                ("zjk", (("j", alone_here), ("k", alone_here))),
                ("z", ()),
            ):
                terminal.send(settling)
                terminal.rest()
                for key, limit in keys:
                    terminal.send(key)
                    if (sent := terminal.rest()) > limit:
                        over.append(f"{view} {settling} {key!r}: {sent} of {limit}")
        assert terminal.quiet(0.5) == 0
    assert not over, "\n".join(over)


class _Tty(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "system"),
    [
        ({"TERM": "screen", "COLORTERM": "truecolor", "STY": "1.a"}, "256"),
        ({"TERM": "screen.xterm-256color", "COLORTERM": "24bit"}, "256"),
        ({"TERM": "screen-256color", "COLORTERM": "truecolor", "TMUX": "/tmp/x"}, None),
        ({"TERM": "screen"}, None),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, None),
    ],
)
def test_gnu_screen_gets_256_colours(environment: dict[str, str], system: str | None) -> None:
    prepare_environment(environment)
    assert environment.get("TEXTUAL_COLOR_SYSTEM") == system


def test_where_it_can_be_drawn() -> None:
    tty, pipe = _Tty(), io.StringIO()
    assert can_draw(tty, tty, tty, {"TERM": "xterm"}) is None
    assert "input" in str(can_draw(pipe, tty, tty, {"TERM": "xterm"}))
    assert "output" in str(can_draw(tty, pipe, tty, {"TERM": "xterm"}))
    assert "error" in str(can_draw(tty, tty, pipe, {"TERM": "xterm"}))
    assert "TERM is dumb" in str(can_draw(tty, tty, tty, {"TERM": "dumb"}))
    assert "not set" in str(can_draw(tty, tty, tty, {}))


def test_the_glyphs_suit_the_terminal() -> None:
    assert glyphs_of(_Tty(), {}) is UNICODE
    assert glyphs_of(_Tty(), {"LC_ALL": "C"}) is ASCII
    assert glyphs_of(_Tty(), {"LC_ALL": "C", "CHOPPER_GLYPHS": "unicode"}) is UNICODE
