"""Whatever bytes a terminal sends, the explorer lives, and answers what comes after them."""

from __future__ import annotations

import string
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import XTermParser

from chopper_tui.terminal_input import Pasted, TerminalInput, Typed
from chopper_tui.textual_internals import MessageParser
from tests.tui.terminal_harness import Terminal

SHOWN = "4 of 4 rows"
ESC = "\x1b[27u"
"""Not the byte: that is alt right before another key."""
HELP = "─ Help ─"
ASKED_AFTER = 5
"""Of `BYTES`, one after another: what swallows the keys after it swallows those of the question."""
BYTES = {
    "Latin-1": b"\xe9t\xe9 \xa0\xff",
    "a character in two reads": "é".encode()[:1],
    "a Latin-1 paste": b"\x1b[200~d\xe9j\xe0 vu\x1b[201~",
    "a paste without an end": b"\x1b[200~abc",
    "a paste of 2 MB": b"\x1b[200~" + b"x" * (2 << 20) + b"\x1b[201~",
    "8-bit alt": bytes(0x80 | byte for byte in b"abcxyz"),
    "an X10 mouse": b"\x1b[M !!\x1b[M#!!",
    "an X10 mouse beyond column 95": b"\x1b[M \xe1!\x1b[M#\xe1!",
    "half an X10 mouse": b"\x1b[M \xe1",
    "a released key": b"\x1b[97;1:3u",
    "alternate keys": b"\x1b[97:65;2u",
    "no key": b"\x1b[1;:u\x1b[;u\x1b[:;:u",
    "huge code points": b"\x1b[1114112u\x1b[99999999999999999999u\x1b[97;99999999999999999u",
    "half a character": b"\x1b[55296u\x1b[97;;55296u",
    "no pixels": b"\x1b[48;24;80;0;0t\x1b[<35;3;4M",
    "no cells": b"\x1b[48;0;0;480;640t\x1b[<35;3;4M",
    "a vast screen": b"\x1b[48;99999;99999;9;9t\x1b[?2048;2$y\x1b[<35;3;4M",
    "a mouse far away": b"\x1b[<0;99999999;99999999M\x1b[<0;99999999;99999999m",
    "a mouse before the screen": b"\x1b[<0;0;0M\x1b[<0;-4;-4m",
    "a fourth button": b"\x1b[<128;3;3M\x1b[<9999999;3;3M",
    "answers": b"\x1b[?1;2c\x1b]11;rgb:ffff/0/0\x07\x1bP>|xterm(1)\x1b\\\x1b[>0;1;2c\x1b[0n",
    "a long sequence": b"\x1b[" + b"1;" * 5000 + b"x",
    "an answer without an end": b"\x1b]0;title",
    "a sequence without an end": b"\x1b[1;5",
    "controls": b"\x00\x01\x1c\x1d\x1e\x1f\x7f\x9b\x84",
}


def answers(terminal: Terminal) -> bool:
    """Whether help opens and closes, on whichever screen the bytes have led to."""
    terminal.send(4 * ESC + "?")
    terminal.until_text(HELP)
    terminal.send(ESC)
    terminal.until(lambda: HELP not in terminal.text)
    return terminal.process.poll() is None


def cut(data: bytes, at: int = 0) -> list[Typed]:
    """What bytes are when they come in two parts, and nothing comes after them."""
    given = TerminalInput()
    typed = [*given.feed(data[:at]), *given.feed(data[at:])]
    return [*typed, *given.rest(0.1), *given.rest(1.0)]


def keys(data: bytes) -> list[tuple[str, str | None]]:
    parser = MessageParser()
    found = [message for typed in cut(data) for message in parser.messages(typed)]
    return [(each.key, each.character) for each in found if isinstance(each, events.Key)]


def test_bytes_from_the_terminal_end_nothing(tmp_path: Path) -> None:
    with Terminal(size=(80, 24), XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.until_text(SHOWN)
        for number, (name, data) in enumerate(BYTES.items(), 1):
            for at in range(0, len(data), 1024):
                terminal.send(data[at : at + 1024])
                terminal.quiet(0.0)
            terminal.quiet(1.2 if "end" in name else 0.1)
            terminal.send(4 * ESC)
            if number % ASKED_AFTER == 0 or number == len(BYTES):
                assert answers(terminal), name
        terminal.send("q")
        assert terminal.wait() == 0 and terminal.is_restored()
        assert b"Traceback" not in terminal.output and not [*tmp_path.rglob("crash*")]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_end_nothing(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    # Without those that leave, stop, write a file or perform a command.
    letters = [each for each in string.printable.encode() if each not in b"qQyYBPR\r\n:"]
    pieces = [
        *(bytes([byte]) for byte in letters),
        *(bytes([byte]) for byte in range(0x80, 0x100)),
        *(
            b"\x1b",
            b"\x1b[",
            b"\x1b[<",
            b"\x1b[M",
            b"\x1b[48;",
            b"\x1b[200~",
            b"\x1b[201~",
            b"\x1bO",
        ),
        *(
            b"\x1b]",
            b"\x1bP",
            b";",
            b":",
            b"0",
            b"97",
            b"99999999999",
            b"-1",
            b"u",
            b"~",
            b"t",
            b"M",
        ),
    ]
    heads = [piece for piece in pieces if piece.startswith(b"\x1b")]
    with Terminal(size=(100, 30), XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.until_text(SHOWN)
        for _ in range(30):
            body = random.choices(pieces, k=random.randint(1, 40))
            terminal.send(random.choice(heads) + b"".join(body).replace(b":", b"", 1))
            terminal.quiet(random.choice([0.0, 0.0, 0.15]))
        terminal.quiet(1.2)
        assert answers(terminal)
        terminal.send("q")
        assert terminal.wait() == 0 and terminal.is_restored()
        assert b"Traceback" not in terminal.output


def test_an_error_of_the_thread_that_reads_goes_to_a_file(tmp_path: Path) -> None:
    with Terminal("deaf", XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.until_text(SHOWN)
        terminal.send("j")
        assert terminal.wait() == 1 and terminal.is_restored()
        (log,) = (tmp_path / "chopper").iterdir()
        assert str(log).encode() in terminal.output.replace(b"\r\n", b"")
        assert "ZeroDivisionError" in log.read_text()
        assert b"Traceback" not in terminal.output


@given(st.binary(max_size=60), st.integers(0, 60))
def test_bytes_are_the_same_wherever_they_are_cut(data: bytes, at: int) -> None:
    assert cut(data, at) == cut(data)
    parser = MessageParser()
    for typed in cut(data):
        for message in parser.messages(typed):
            assert not isinstance(message, events.Resize)
            if isinstance(message, events.Key | events.Paste):
                str(message).encode()


def test_keys_are_those_that_textual_knows() -> None:
    for sequence in ANSI_SEQUENCES_KEYS.keys() - {"\x1b", "\x1b\x1b"}:
        known = [each for each in XTermParser().feed(sequence) if isinstance(each, events.Key)]
        assert keys(sequence.encode()) == [(each.key, each.character) for each in known], sequence


def test_keys_after_what_is_dropped_are_keys() -> None:
    assert [key for key, _ in keys(b"\x1b") + keys(b"\x1b[27u")] == ["escape"] * 2
    assert [key for key, _ in keys(b"\x1b\x1b[A\x1bOB")] == ["escape", "up", "down"]
    assert [key for key, _ in keys("\x1bé\x1bx".encode())] == ["alt+é", "alt+x"]
    assert [key for key, _ in keys(b"\x1b[<0;3;\x03")] == ["ctrl+c"]
    for dropped in ("a released key", "alternate keys", "no pixels", "answers"):
        assert [key for key, _ in keys(BYTES[dropped] + b"j")] == ["j"], dropped


def test_a_mouse_is_where_it_is_in_either_form() -> None:
    parser = MessageParser()
    for data, kind, x in (
        (b"\x1b[M \xe1!", events.MouseDown, 192),
        (b"\x1b[M#\xe1!", events.MouseUp, 192),
        (b"\x1b[MC\xe1!", events.MouseMove, 192),
        (b"\x1b[Ma!!", events.MouseScrollDown, 0),
        (b"\x1b[<0;193;1M", events.MouseDown, 192),
    ):
        ((message,),) = (parser.messages(typed) for typed in cut(data))
        assert type(message) is kind and (message.screen_x, message.screen_y) == (x, 0)


def test_a_paste_is_one_text() -> None:
    assert cut(b"\x1b[200~\xe9\x1b[A\x00x\x1b[201~j") == [Pasted("\ufffd\x1b[Ax"), "j"]
    (paste, key) = cut(BYTES["a paste of 2 MB"] + b"j", 1 << 20)
    assert isinstance(paste, Pasted) and len(paste.text) == 1 << 20 and key == "j"
