"""Walking through JSON text piece by piece: into what matters, past what doesn't."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from chopper_core.sources.kineto.jsonscan import INCOMPLETE, element_end, skip_space
from chopper_core.sources.recognise import BYTE_ORDER_MARK
from chopper_core.sources.shared.bytes import ByteSource
from chopper_core.util.progress import Progress, silent

_UP_TO_BRACKET: Final = re.compile(
    rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+([{}\[\]])', re.DOTALL
)
_KEY: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"(?=\s*:)', re.DOTALL)
_SCALAR: Final = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"|[^\s,"{}\[\]]++)(?=[\s,}\]])', re.DOTALL)
_NEXT_OBJECT: Final = re.compile(rb'\s*,\s*{\s*"[^"\\]*"\s*:')
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OPENING: Final = (b"{", b"[")
_CLOSING: Final = (b"}", b"]")


class TextEnded(Exception):
    """The text ends, or is broken, before what was begun is closed."""


class JsonPieces:
    """A position in JSON text that only moves forward.

    Every method raises `TextEnded` where the text ends too early or is no JSON.
    """

    def __init__(self, source: ByteSource, progress: Progress = silent) -> None:
        self._source = source
        self._progress = progress
        self._text = source.read().removeprefix(BYTE_ORDER_MARK)
        self._position = 0

    def enter(self, mark: bytes) -> bool:
        """Go inside the object or list that comes next; False if something else comes next."""
        if self._next_mark() != mark:
            return False
        self._position += 1
        return True

    def key(self) -> str | None:
        """Go past the next key of the object; None, and past its end, if it has no more."""
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
        """Go to the next element of the list; False, and past its end, if it has no more."""
        return not self._at_end_of(b"]")

    def value(self) -> bytes:
        """Go past the value that comes next, and return its text."""
        mark = self._next_mark()
        while True:
            end = element_end(self._text, self._position)
            if end != INCOMPLETE:
                break
            self._read_more()
        text = self._text[self._position : end]
        self._position = end
        return text if mark else b""

    def skip_value(self) -> None:
        """Go past the value that comes next, however long it is."""
        if self._next_mark() not in _OPENING:
            while (match := _SCALAR.match(self._text, self._position)) is None:
                self._read_more()
            self._position = match.end()
            return
        depth = 0
        while True:
            match = _UP_TO_BRACKET.match(self._text, self._position)
            if match is None:
                self._read_more()
                continue
            self._position = match.end()
            depth += 1 if match.group(1) in _OPENING else -1
            if depth == 0:
                return

    def batch(self) -> bytes | None:
        """Go past the next whole elements of a list of objects, and return them as a JSON list.

        None, and past its end, if the list has no more.
        """
        if not self.next_element():
            return None
        if self._next_mark() != b"{":
            return b"[" + self.value() + b"]"
        while True:
            start = self._position
            if (batch := self._alike_objects(start)) is not None:
                return batch
            if (end := self._end_of_objects(start)) != start:
                self._position = end
                return b"[" + self._text[start:end] + b"]"
            self._read_more()

    def _alike_objects(self, start: int) -> bytes | None:
        """Go past objects that begin with one key, as the first of them, and return them as a list.

        Where the last of them begins is found by that key; that all before it are whole, by
        decoding. None if it isn't so, or the first isn't whole.
        """
        end = element_end(self._text, start)
        following = None if end == INCOMPLETE else _NEXT_OBJECT.match(self._text, end)
        if following is None:
            return None
        last = self._text.rfind(following.group(), end)
        batch = b"[" + self._text[start:last] + b"]"
        try:
            _ELEMENTS.decode(batch)
        except (msgspec.DecodeError, RecursionError):
            return None
        self._position = last
        return batch

    def _end_of_objects(self, start: int) -> int:
        """Return the end of the last whole object of those that follow one another from `start`."""
        end = start
        depth = 0
        position = start
        while (match := _UP_TO_BRACKET.match(self._text, position)) is not None:
            position = match.end()
            if match.group(1) in _OPENING:
                depth += 1
                continue
            depth -= 1
            if depth < 0:
                break
            if depth == 0:
                end = match.end()
        return end

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
        if not piece:
            raise TextEnded
        self._text = self._text[self._position :] + piece
        self._position = 0
        name = f"read {self._source.path.name}"
        self._progress(name, self._source.file_position, self._source.size_bytes)


def elements_of(batch: bytes) -> Iterator[bytes]:
    """Yield the elements of a JSON list that `JsonPieces.batch` gave."""
    position = 1
    while True:
        position = skip_space(batch, position)
        if batch[position : position + 1] == b",":
            position = skip_space(batch, position + 1)
        end = element_end(batch, position)
        if batch[position : position + 1] in (b"]", b"") or end == INCOMPLETE:
            return
        yield batch[position:end]
        position = end
