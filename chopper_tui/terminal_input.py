"""The bytes that a terminal sends, cut into characters, escape sequences and pastes.

This is the gate of all input: whatever bytes come, text leaves it. Bytes that aren't UTF-8 are
replaced, and a sequence that is broken off, or that nobody asked the terminal for, is dropped.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator
from re import DOTALL
from typing import Final

from msgspec import Struct

from chopper_core.util.patterns import late

ESCAPE: Final = "\x1b"
_PASTE_BEGINS, _PASTE_ENDS = f"{ESCAPE}[200~", f"{ESCAPE}[201~"
_ALT: Final = f"{ESCAPE}["
"""Esc, or alt and a character, which also begin sequences, have no more bytes."""
_MAX_PASTE: Final = 1 << 20
"""Bytes of a paste, beyond which the rest is dropped."""
_MAX_HELD: Final = 1 << 16
"""Bytes of a sequence without an end, after which it is dropped."""
_BROKEN_S: Final = 1.0
"""A sequence or a paste whose next byte doesn't come for so long has no end."""
_ORDINARY: Final = late(f"[^{ESCAPE}]+")
_WHOLE: Final = late(
    ESCAPE + r"(?:"
    r"\[M(?P<mouse>[ -\xff]{3})"  # X10 mouse: button, column and line, a byte each
    r"|\[\[."  # a function key of the Linux console
    r"|\[\d+\$(?!y)"  # a key with shift, in rxvt
    r"|\[(?![M\[])[ -?]*[@-~]"  # CSI
    r"|O[\d;]*[@-~]"  # SS3
    r"|(?P<answer>[\]PX^_][^\x00-\x1f]*(?:\x07|\x1b\\))"  # the answer to a question
    r"|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
    r"|[^\[O\]PX^_\x1b\xc2-\xf4]"  # alt and a character
    r")",
    DOTALL,
)
_BEGINNING: Final = late(
    ESCAPE + r"(?:"
    r"\[(?:M[ -\xff]{0,2}|\[|[ -?]*)"
    r"|O[\d;]*"
    r"|[\]PX^_][^\x00-\x1f]*\x1b?"
    r"|[\xc2-\xf4][\x80-\xbf]{0,2}"
    r")?",
    DOTALL,
)
_MOTION_OR_WHEEL: Final = 32 | 64
_RELEASE: Final = 3


class Pasted(Struct, frozen=True):
    """A text from the clipboard."""

    text: str


Typed = str | Pasted
"""A character, Esc, Esc and a character (alt), an escape sequence, or a paste."""


class TerminalInput:
    """Cuts bytes as they come, and holds those that may still become something."""

    def __init__(self) -> None:
        self._held = ""
        """Bytes, a character each."""
        self._is_pasting = False
        self._decoder = getincrementaldecoder("utf-8")("replace")

    @property
    def is_waiting(self) -> bool:
        """Whether something was begun that needs more bytes, or time, to end."""
        return bool(self._held or self._is_pasting or self._decoder.getstate()[0])

    def feed(self, data: bytes) -> Iterator[Typed]:
        """What is whole with these bytes."""
        self._held += data.decode("latin-1")
        size = 0
        while self._held and len(self._held) != size:
            size = len(self._held)
            yield from self._pasted() if self._is_pasting else self._next()
        if len(self._held) > _MAX_HELD and not self._is_pasting:
            self._held = ""

    def rest(self, idle_s: float) -> Iterator[Typed]:
        """What was begun and stays as it is when nothing has come for a while: Esc, or alt+[."""
        is_key, is_late = len(self._held) <= len(_ALT), idle_s >= _BROKEN_S
        if self._is_pasting and is_late:
            yield self._end_paste(len(self._held))
        elif self._held and is_key and not self._is_pasting:
            yield _text_of(self._held)
            self._held = ""
        elif self._held and is_late:
            self._held = ""
        if is_late:
            yield from self._decoder.decode(b"", final=True)

    def _next(self) -> Iterator[Typed]:
        """What the held bytes begin with, once it is whole."""
        if ordinary := _ORDINARY.match(self._held):
            self._held = self._held[ordinary.end() :]
            yield from self._decoder.decode(ordinary[0].encode("latin-1"), final=bool(self._held))
            return
        yield from self._decoder.decode(b"", final=True)
        whole, begun = _WHOLE.match(self._held), _BEGINNING.match(self._held)
        if whole is not None:
            self._held = self._held[whole.end() :]
            if whole[0] == _PASTE_BEGINS:
                self._is_pasting = True
            elif whole["mouse"]:
                yield from _mouse_report(*whole["mouse"].encode("latin-1"))
            elif not whole["answer"]:
                yield _text_of(whole[0])
        elif begun is not None and begun.end() < len(self._held):
            # Something else follows: it is broken off, or a key after Esc or alt and a character.
            self._held = self._held[begun.end() :]
            if begun.end() <= len(_ALT):
                yield _text_of(begun[0])

    def _pasted(self) -> Iterator[Typed]:
        end = self._held.find(_PASTE_ENDS)
        if end >= 0:
            yield self._end_paste(end)
        elif len(self._held) > _MAX_PASTE:
            # The last bytes may begin the end of it.
            self._held = self._held[:_MAX_PASTE] + self._held[-len(_PASTE_ENDS) :]

    def _end_paste(self, end: int) -> Pasted:
        text, self._held = self._held[:end], self._held[end:].removeprefix(_PASTE_ENDS)
        self._is_pasting = False
        return Pasted(_text_of(text[:_MAX_PASTE]).replace("\0", ""))


def _text_of(held: str) -> str:
    return held.encode("latin-1").decode("utf-8", "replace")


def _mouse_report(button: int, column: int, line: int) -> Iterator[str]:
    """The report of a mouse in the form that has no limit at column 95 (SGR)."""
    button -= 32
    is_release = button & 3 == _RELEASE and not button & _MOTION_OR_WHEEL
    if column > 32 and line > 32:
        end = "m" if is_release else "M"
        yield f"{ESCAPE}[<{button - (_RELEASE if is_release else 0)};{column - 32};{line - 32}{end}"
