"""Text from files, with what a terminal would act on or hide written as escapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NewType

from chopper_core.util.patterns import late

NARROW: Final = late(
    "[ -~\u00a1-\u02ff\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u2010-\u2027\u2030-\u205e"
    "\u2190-\u2319\u23cd-\u23cf\u2500-\u25fc\u2800-\u28ff]*"
)
"""Text of one-cell characters; importing `wcwidth`, which knows the others, takes as
long as opening a store, and 1.2 MB."""
_INVISIBLE: Final = late(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What is printable by Unicode, and not seen: joiners, fillers, selectors of variants."""
_LIKE_AN_ESCAPE: Final = late(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_MAX_MARKS: Final = 2
"""Of marks over or under one character, which would cover the lines next to it."""


def is_seen(character: str) -> bool:
    """Whether a character is printable and has a form of its own."""
    return character.isprintable() and not _INVISIBLE.match(character)


def clean(text: str, *, is_sentence: bool = False) -> str:
    """Text with its control, invisible and direction-changing characters written as escapes.

    So are marks that flood a character, those that make it look like another one, and a backslash
    that would begin an escape: different texts stay different. Text is to be cleaned once. In a
    sentence, which may quote a name by `repr`, backslashes stay.
    """
    if not is_sentence and "\\" in text:
        text = _LIKE_AN_ESCAPE.sub(r"\\x5c", text)
    if text.isprintable() and (text.isascii() or NARROW.fullmatch(text)):
        return text
    from unicodedata import combining, normalize

    made, marks, before = [], 0, ""
    for character in text:
        marks = marks + 1 if combining(character) else 0
        is_plain = (
            is_seen(character)
            and marks <= _MAX_MARKS
            and normalize("NFC", character) == character
            and len(normalize("NFC", before + character)) == len(before) + 1
        )
        made.append(character if is_plain else _escape(character))
        before = character
    return "".join(made)


def cut_text(text: str, most: int) -> str:
    """A text of at most so many characters, the last of them an ellipsis where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(text: str) -> str:
    """Text of the same length: `?` in place of characters that a terminal acts on."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


Escaped = NewType("Escaped", str)
"""Lines that no terminal acts on: what writers take. Made by the two below and `json_text`."""
_BREAKS: Final = late(r"([\n\t])")
_BREAKS_AND_STYLES: Final = late(r"([\n\t]|\x1b\[[\d;]*m)")


def escape_each(lines: Iterable[str], *, is_sentence: bool = True) -> Escaped:
    """Texts, each in a line of its own whatever it quotes; see `clean`."""
    return Escaped("".join(f"{clean(line, is_sentence=is_sentence)}\n" for line in lines))


def escape_lines(text: str, *, is_styled: bool = False) -> Escaped:
    """Lines of sentences, or of cells that are clean already; `is_styled`: with codes of styles."""
    if text.isascii() and text.isprintable():
        return Escaped(text)
    parts = (_BREAKS_AND_STYLES if is_styled else _BREAKS).split(text)
    parts[::2] = [clean(part, is_sentence=True) for part in parts[::2]]
    return Escaped("".join(parts))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
