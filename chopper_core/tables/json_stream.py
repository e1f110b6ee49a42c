"""JSON text, scanned for its structure and read piece by piece without decoding all of it.

The scanner follows strings and escapes, so braces and keys inside strings have no effect. Control
characters and invalid UTF-8 are tolerated.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from chopper_core.tables.bytes import ByteSource
from chopper_core.util.progress import Progress, silent

INCOMPLETE: Final = -1
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_BRACKET: Final = re.compile(
    rb'[^"{}\[\]]*+(?:' + _STRING + rb'[^"{}\[\]]*+)*+(["{}\[\]]|\Z)', re.DOTALL
)
"""The next bracket outside of strings; the quote of one without an end, or the end of the text."""
_MEMBER_TOKEN: Final = re.compile(_STRING + rb'|["{}\[\],:]', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(_STRING + rb'|[^,\]}"\s][^,\]}]*', re.DOTALL)
_KEY: Final = re.compile(_STRING + rb"(?=\s*:)", re.DOTALL)
_NEXT_OBJECT: Final = re.compile(rb'\s*,\s*{\s*"[^"\\]*"\s*:')
_MAX_DEPTH: Final = 1000
_MAX_VALUE_BYTES: Final = 1 << 25
"""A longer value is none: a string, a number or a list without an end."""
_OPENING: Final = (b"{", b"[")
_CLOSING: Final = (b"}", b"]")


def skip_space(text: bytes, start: int = 0) -> int:
    """Return the position of the first byte at or after `start` that is not white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def element_end(text: bytes, start: int, limit: int = sys.maxsize) -> int:
    """Return the end of the JSON value at `start`; INCOMPLETE if it ends beyond text or `limit`.

    So is one nested too deeply to be decoded.
    """
    if text[start : start + 1] not in _OPENING:
        scalar = _SCALAR.match(text, start)
        return scalar.end() if scalar and scalar.end() < len(text) else INCOMPLETE
    depth = 0
    for token in _BRACKET.finditer(text, start, limit):
        mark = token.group(1)
        if mark in _OPENING:
            depth += 1
            if depth > _MAX_DEPTH:
                return INCOMPLETE
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                return token.end()
        else:
            return INCOMPLETE
    return INCOMPLETE


class Member(msgspec.Struct, frozen=True):
    """A key of an object and the span of its value; `end` is INCOMPLETE if the text ends before."""

    key: str
    start: int
    end: int


def members(text: bytes, start: int, stop_at: str | None = None) -> Iterator[Member]:
    """Yield the members of the object whose inside starts at `start`, up to its end or the text's.

    The last one is a member whose value continues beyond the text, or the one named `stop_at`,
    whose value isn't scanned.
    """
    position = start
    while True:
        position = skip_space(text, position)
        key = _MEMBER_TOKEN.match(text, position)
        if key is None or len(key.group()) < 2:
            return
        colon = skip_space(text, key.end())
        if text[colon : colon + 1] != b":":
            return
        value = skip_space(text, colon + 1)
        if value >= len(text):
            return
        name = key.group()[1:-1].decode("utf-8", "replace")
        end = INCOMPLETE if name == stop_at else element_end(text, value)
        yield Member(name, value, end)
        if end == INCOMPLETE:
            return
        position = skip_space(text, end)
        if text[position : position + 1] != b",":
            return
        position += 1


class TextEnded(Exception):
    """The text ends, or is invalid, before an object or a list is closed."""


class JsonStream:
    """A position in JSON text that only moves forward.

    Every method raises `TextEnded` if the text is truncated or invalid.
    """

    def __init__(self, source: ByteSource, progress: Progress = silent) -> None:
        self._source = source
        self._progress = progress
        self._text = source.read()
        self._position = 0

    def enter(self, mark: bytes) -> bool:
        """Enter the next object or list; False if something else comes next."""
        if self._next_mark() != mark:
            return False
        self._position += 1
        return True

    def enter_list(self, name: str) -> bool:
        """Enter the list of a key of the next object; False if there is none."""
        if self.enter(b"{"):
            while (key := self.key()) is not None:
                if key == name and self.enter(b"["):
                    return True
                self.skip_value()
        return False

    def key(self) -> str | None:
        """Return and pass the next key of the object; None, past its end, after the last one."""
        if self._at_end_of(b"}"):
            return None
        while (match := _KEY.match(self._text, self._position)) is None:
            self._read_more()
        self._position = skip_space(self._text, match.end()) + 1
        try:
            return str(json.loads(match.group().decode("utf-8", "replace"), strict=False))
        except ValueError as error:
            raise TextEnded from error

    def next_element(self) -> bool:
        return not self._at_end_of(b"]")

    def value(self) -> bytes:
        self._next_mark()
        while (end := element_end(self._text, self._position)) == INCOMPLETE:
            self._read_more()
        text = self._text[self._position : end]
        self._position = end
        return text

    def skip_value(self) -> bool:
        """Pass the next value; an object or a list may have any length. Whether it holds any."""
        if self._next_mark() not in _OPENING:
            return self.value() not in (b"null", b'""')
        depth, has_any = 0, False
        while True:
            match = _BRACKET.match(self._text, self._position)
            mark = match.group(1) if match else b""
            if match is None or mark not in (*_OPENING, *_CLOSING):
                self._read_more()
                continue
            self._position = match.end()
            if depth and not has_any:
                has_any = depth > 1 or bool(match.group()[:-1].strip())
            depth += 1 if mark in _OPENING else -1
            if depth == 0:
                return has_any
            if depth > _MAX_DEPTH:
                raise TextEnded

    def records(
        self, decode: Callable[[bytes], list[Any]], repair: Callable[[bytes], list[Any]]
    ) -> list[Any] | None:
        """Return and pass the next whole elements of a list, decoded; None after the last one.

        `decode` takes a JSON list; an element on which it raises one of DECODE_ERRORS goes to
        `repair`.
        """
        if not self.next_element():
            return None
        self._next_mark()
        while (end := element_end(self._text, self._position)) == INCOMPLETE:
            self._read_more()
        text, start = self._text, self._position
        # The key with which objects begin shows where the last like the first begins; decoding
        # them shows that those before it are whole.
        following = _NEXT_OBJECT.match(text, end)
        last = text.rfind(following.group(), end) if following else end
        try:
            found = decode(b"[" + text[start:last] + b"]")
            self._position = last
            return found
        except DECODE_ERRORS:
            pass
        found = []
        while start < last and (end := element_end(text, start)) != INCOMPLETE:
            element = text[start:end]
            try:
                found += decode(b"[" + element + b"]")
            except DECODE_ERRORS:
                found += repair(element)
            self._position = end
            comma = skip_space(text, end)
            if text[comma : comma + 1] != b",":
                break
            start = skip_space(text, comma + 1)
        return found

    def _at_end_of(self, closing: bytes) -> bool:
        mark = self._next_mark()
        if mark == b",":
            self._position += 1
            mark = self._next_mark()
        if mark not in _CLOSING:
            return False
        if mark != closing:
            raise TextEnded
        self._position += 1
        return True

    def _next_mark(self) -> bytes:
        while (place := skip_space(self._text, self._position)) == len(self._text):
            self._position = place
            self._read_more()
        self._position = place
        return self._text[place : place + 1]

    def _read_more(self) -> None:
        piece = self._source.read()
        if not piece or len(self._text) - self._position > _MAX_VALUE_BYTES:
            raise TextEnded
        self._text = self._text[self._position :] + piece
        self._position = 0
        name = f"read {self._source.path.name}"
        self._progress(name, self._source.file_position, self._source.size_bytes)
