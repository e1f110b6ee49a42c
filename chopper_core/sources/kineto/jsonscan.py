"""Exact scanning of JSON text for its structure, without decoding it.

Strings and their escapes are followed, so braces and key names inside strings mean nothing. Control
characters and bytes that are not UTF-8 do no harm.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

INCOMPLETE: Final = -1

_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
_MEMBER_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\],:]', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^,\]}"\s][^,\]}]*', re.DOTALL)


def skip_space(text: bytes, start: int = 0) -> int:
    """Return the position of the first byte at or after `start` that is not white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def element_end(text: bytes, start: int, limit: int = sys.maxsize) -> int:
    """Return the end of the JSON value at `start`; INCOMPLETE if it goes on, or beyond `limit`."""
    if text[start : start + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(text, start)
        return scalar.end() if scalar and scalar.end() < len(text) else INCOMPLETE
    depth = 0
    for token in _BRACKET.finditer(text, start, limit):
        mark = token.group()
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
        elif mark == b'"':
            return INCOMPLETE
    return INCOMPLETE


class Member(Struct, frozen=True):
    """One key of an object and where its value lies; `end` is INCOMPLETE if it goes on."""

    key: str
    start: int
    end: int


def members(text: bytes, start: int, stop_at: str | None = None) -> Iterator[Member]:
    """Yield the members of the object whose inside starts at `start`, up to its end or the text's.

    A member whose value goes on beyond the text is the last one, and so is the one named `stop_at`,
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
