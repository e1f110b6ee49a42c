"""The text of a Chrome trace, read piece by piece: keys, an array of events, more keys.

A piece is cut where the text looks like the end of an event. If the piece decodes as an array, the
cut was right: it began at an event, and only whole events form an array. Otherwise an exact scanner
walks through the same text event by event, past any damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from chopper_core.sources.kineto.events import Event, EventDecoder, UnreadFields
from chopper_core.tables.json_stream import (
    DECODE_ERRORS,
    INCOMPLETE,
    element_end,
    members,
    skip_space,
)
from chopper_core.tables.losses import Losses
from chopper_core.util.errors import DataError

EVENTS_KEY: Final = "traceEvents"
FOREIGN_KEYS: Final = {
    "nodes": "is an execution trace (operators without times on the GPU), not a profiler trace; "
    "give the Kineto trace of the same run",
    "rocprofiler-sdk-tool": "is rocprofv3 JSON, not a PyTorch profiler trace",
    "meta_user": "is the timeline of a simulation, not a PyTorch profiler trace",
}

MAX_KEYS_BYTES: Final = 16 << 20
"""The maximum offset of the events in a file, and the maximum length of text after them."""

MAX_EVENT_BYTES: Final = 2 << 20
"""An event with lists of objects that is longer counts as damaged."""

_MAX_OPEN_BYTES: Final = 16 << 20
"""Text without the end of an event and without the start of another, from which it is lost."""
_KEPT_BYTES: Final = 1 << 12
"""Of lost text its end is kept, in which an event may begin."""

_ALL_LOOKED_AT_BYTES: Final = 1 << 18
_START_BYTES: Final = 4 << 20
_LOOKED_AT_BYTES: Final = 1 << 12
"""At several places of the first pieces, at one of each later one: exporters write the same fields
of all events of a category."""

_EVENTS_START: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST: Final = re.compile(rb'[\s,]*+\{\s*("\w[^"\\]*")\s*:')
_BOUNDARY: Final = re.compile(rb'\}\s*,\s*(?=\{\s*("\w[^"\\]*")\s*:)')
"""Between two objects; can't match inside a valid string, where the quotes would be escaped."""
_COMMAS: Final = re.compile(rb"[\s,]*+")
_MORE_ENDS: Final = re.compile(rb"(?:\]\s*+)+(?=\])")
_OBJECT_OR_END: Final = re.compile(rb"[{\]]")
_PHASE_KEY: Final = b'"ph"'
_PHASE_WITHIN_BYTES: Final = 1 << 9
_LIST_END: Final = re.compile(rb'\]\s*(?:\}|\Z|,\s*(?:"|\Z))')


class TextState(Struct, frozen=True):
    """What earlier events tell about how to read later ones."""

    first_key: bytes
    """Of the event that follows, with its quotes."""
    is_bare: bool
    """Whether the text is the list alone."""
    is_exact: bool
    """Whether a float can't hold its times."""
    is_merged: bool
    """Whether its events name their rank."""


class TextSource(Protocol):
    """What gives a text in pieces."""

    path: Path
    bytes_given: int
    problem: str | None
    """Why the text ends before it should."""

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""


class TraceText:
    """One pass over the text: iterate over `batches`, then read `members` and the losses."""

    def __init__(self, source: TextSource, losses: Losses) -> None:
        self.members: dict[str, bytes] = {}
        """The JSON text of each top-level key except the events."""
        self.unread = UnreadFields()
        self._source = source
        self._losses = losses
        self._decoder = EventDecoder()
        self._buffer = b""
        self._is_bare = False
        self._is_closed = False
        self._patience_bytes = 0
        self._is_lost = False
        """Whether the buffer begins within text that was lost."""
        self._is_open = self.is_read = False

    def batches(self, stop: float = inf) -> Iterator[list[Event]]:
        """Yield the events, a piece at a time, in the order of the file.

        A pass ends at the piece that ends at `stop`, or with the text, which then `is_read`. Raises
        DataError if the text has no events.
        """
        if not self._is_open:
            self._is_open = True
            self._open()
            yield self._whole_events(b"", False)
        at_end = self.is_read
        while not (at_end or self._is_closed):
            if self._source.bytes_given >= stop:
                return
            piece = self._source.read()
            at_end = not piece
            yield self._whole_events(piece, at_end)
        if not self.is_read:
            self._close()
        self.is_read = True

    def resume(self, before: bytes, like: TextState) -> None:
        """Go on behind the last event that ends in the piece before those of the source.

        So does a pass from the start, unless something is odd: compare its `place`.
        """
        self._is_open, self._is_bare = True, like.is_bare
        self._decoder.is_exact = like.is_exact
        if last := _last_boundary(before, like.first_key):
            self._buffer = before[last.end() :]

    def state(self, is_merged: bool) -> TextState:
        first = _FIRST.match(self._buffer)
        key = first[1] if first else b""
        return TextState(key, self._is_bare, self._decoder.is_exact, is_merged)

    def place(self) -> int:
        """The bytes whose events were given; -1 where more than that decides what follows."""
        is_odd = self._patience_bytes or self._is_lost or self._decoder.beyond_repair
        return -1 if is_odd else self._source.bytes_given - len(self._buffer)

    def _open(self) -> None:
        path = self._source.path
        buffer = self._source.read()
        while (start := skip_space(buffer)) == len(buffer):
            buffer = self._source.read()
            if not buffer:
                why = f" {self._source.problem}." if self._source.problem else ""
                raise DataError(f"{path} is empty.{why}")
        if buffer[start : start + 1] == b"[":
            self._is_bare = True
            self._buffer = buffer[start + 1 :]
            return
        if buffer[start : start + 1] != b"{":
            raise DataError(f"{path} is not JSON; a trace of the PyTorch profiler is expected.")
        while True:
            events_start = self._find_events(buffer, start + 1)
            if events_start != INCOMPLETE:
                break
            longer = self._read_up_to(buffer, 2 * len(buffer))
            if len(longer) == len(buffer) or len(buffer) >= MAX_KEYS_BYTES:
                buffer = longer
                events_start = self._find_events_in_damage(buffer, start)
                break
            buffer = longer
        self._buffer = buffer[events_start:]

    def _find_events(self, buffer: bytes, start: int) -> int:
        path = self._source.path
        for member in members(buffer, start, stop_at=EVENTS_KEY):
            if member.key in FOREIGN_KEYS:
                raise DataError(f"{path} {FOREIGN_KEYS[member.key]}.")
            if member.key == EVENTS_KEY:
                if buffer[member.start : member.start + 1] != b"[":
                    raise DataError(f"{path} is not a trace: its {EVENTS_KEY} is not a list.")
                return member.start + 1
            if member.end != INCOMPLETE:
                self.members[member.key] = buffer[member.start : member.end]
        return INCOMPLETE

    def _find_events_in_damage(self, buffer: bytes, start: int) -> int:
        is_whole = element_end(buffer, start) != INCOMPLETE
        match = None if is_whole else _EVENTS_START.search(buffer)
        if match is None:
            raise DataError(
                f"{self._source.path} holds no {EVENTS_KEY}; "
                "a trace of the PyTorch profiler is expected."
            )
        self._losses.notes.append("The keys before the events are damaged.")
        return match.end()

    def _read_up_to(self, buffer: bytes, wanted: int) -> bytes:
        parts = [buffer]
        length = len(buffer)
        while length < wanted and (piece := self._source.read()):
            parts.append(piece)
            length += len(piece)
        return b"".join(parts)

    def _whole_events(self, piece: bytes, at_end: bool) -> list[Event]:
        """Take the whole events off the buffer and the piece that follows it."""
        if not at_end and len(self._buffer) + len(piece) < self._patience_bytes:
            self._buffer += piece
            return []
        if first := _FIRST.match(self._buffer or piece):
            last = _last_boundary(piece, first[1])
            if last is None:
                self._buffer, piece = b"", self._buffer + piece
                last = _last_boundary(piece, first[1])
            with suppress(*DECODE_ERRORS):
                cut = last.start() + 1 if last else 0
                whole = b"".join((b"[", self._buffer, memoryview(piece)[:cut], b"]"))
                if last and (events := self._decoder.decode_many(whole)):
                    self._look_at(whole, first[1])
                    self._buffer = piece[last.end() :]
                    self._patience_bytes, self._is_lost = 0, False
                    return events + self._walk(at_end) if at_end else events
        self._buffer += piece
        return self._walk(at_end)

    def _look_at(self, whole: bytes, key: bytes) -> None:
        """Look at the fields of the events in an array: of all if it is short, else of some."""
        if len(whole) <= _ALL_LOOKED_AT_BYTES:
            self.unread.look_at(whole)
            return
        places = 8 if self._source.bytes_given <= _START_BYTES else 1
        for number in range(1, places + 1):
            begin = len(whole) * number // (places + 1)
            if first := _BOUNDARY.search(whole, begin):
                some = whole[first.end() : first.end() + _LOOKED_AT_BYTES]
                if last := _last_boundary(some, key):
                    self.unread.look_at(b"[" + some[: last.start() + 1] + b"]")

    def _walk(self, at_end: bool) -> list[Event]:
        """Pass the elements of the buffer one by one, up to one that continues beyond it.

        An event that can't be repaired is lost, and the pass continues at the next text that looks
        like the start of an event.
        """
        self._events: list[Event] = []
        self._at_end, self._position = at_end, 0
        self._is_after_damage, self._is_lost = self._is_lost, False
        self._had_damage = self._has_no_boundary = False
        while self._step():
            pass
        self._patience_bytes = (
            0 if self._position else min(2 * len(self._buffer), _MAX_OPEN_BYTES + 1)
        )
        self._buffer = self._buffer[self._position :]
        self._losses.repaired_pieces += self._had_damage
        return self._events

    def _close(self) -> None:
        """Read the keys after the events, and note how the text ends."""
        losses = self._losses
        if not self._is_closed:
            rest = self._buffer.strip(b" \t\r\n,")
            if rest:
                losses.lost_bytes += len(rest)
                read_up_to = self._source.bytes_given - len(self._buffer)
                losses.notes.append(
                    f"The file ends in the middle of an event; read up to byte {read_up_to:,}."
                )
            elif not self._is_bare:
                losses.notes.append("The file ends before its list of events does.")
            losses.truncated = bool(rest) or not self._is_bare or self._source.problem is not None
        else:
            self._read_keys_after()
        if self._source.problem:
            losses.notes.append(f"{self._source.problem}.")

    def _read_keys_after(self) -> None:
        tail = self._read_up_to(self._buffer, MAX_KEYS_BYTES)
        end = skip_space(tail)
        if not self._is_bare:
            if tail[end : end + 1] == b",":
                end += 1
                for member in members(tail, end):
                    end = member.end
                    if end == INCOMPLETE:
                        break
                    self.members[member.key] = tail[member.start : end]
            end = len(tail) if end == INCOMPLETE else skip_space(tail, end)
            if tail[end : end + 1] != b"}":
                self._losses.truncated = True
                self._losses.notes.append("The keys after the events are truncated or damaged.")
                return
            end += 1
        extra = len(tail[end:].strip())
        if extra:
            self._losses.lost_bytes += extra
            self._losses.notes.append(f"{extra:,} bytes follow the end of the trace.")

    def _step(self) -> bool:
        """Pass one element or mark; False at the end of the list or of the readable text."""
        text = self._buffer
        self._position = skip_space(text, self._position)
        mark = text[self._position : self._position + 1]
        if mark == b"":
            return False
        if mark == b",":
            self._position = _end(_COMMAS, text, self._position)
            return True
        if mark == b"{":
            return self._step_over_object()
        if mark == b"]":
            return self._step_over_list_end()
        if self._is_after_damage:
            return self._lose_up_to_next_event() or self._lose_up_to_object()
        if mark in (b"}", b":", b"["):
            return self._lose_up_to(self._position + 1)
        end = element_end(text, self._position)
        if end != INCOMPLETE:
            return self._lose_up_to(end)
        return self._lose_up_to_next_event() or self._lose_all(_MAX_OPEN_BYTES)

    def _step_over_object(self) -> bool:
        if self._is_after_damage and self._buffer.find(_PHASE_KEY, self._position) == -1:
            return self._lose_all(0)
        boundary = _BOUNDARY.search(self._buffer, self._position)
        if boundary and self._take(boundary.start() + 1):
            return True
        if boundary and self._decoder.has_given_up:
            self._losses.unreadable_events += 1
            return self._lose_up_to(boundary.start() + 1)
        end = element_end(self._buffer, self._position, self._position + MAX_EVENT_BYTES)
        if end == INCOMPLETE:
            if not self._at_end and len(self._buffer) - self._position < MAX_EVENT_BYTES:
                return False
        elif self._take(end):
            return True
        if boundary and (end == INCOMPLETE or boundary.start() < end):
            end = boundary.start() + 1
        if end == INCOMPLETE:
            return self._lose_all(MAX_EVENT_BYTES if self._is_after_damage else _MAX_OPEN_BYTES)
        self._losses.unreadable_events += 1
        return self._lose_up_to(end)

    def _step_over_list_end(self) -> bool:
        """Close the list, unless the text after the bracket shows that it is part of damage."""
        if self._had_damage or self._losses.repaired_pieces or self._source.problem:
            if self._lose_up_to_next_event():
                return True
            if not self._at_end and len(self._buffer) - self._position < MAX_EVENT_BYTES:
                return False
        follows = skip_space(self._buffer, self._position + 1)
        if self._buffer[follows : follows + 1] == b",":
            follows = skip_space(self._buffer, follows + 1)
        if follows == len(self._buffer) and not self._at_end:
            return False
        if _LIST_END.match(self._buffer, self._position) is None:
            more = _end(_MORE_ENDS, self._buffer, self._position)
            return self._lose_up_to(max(more, self._position + 1))
        self._is_closed = True
        self._position += 1
        return False

    def _take(self, end: int) -> bool:
        decoded = self._decoder.decode_one(self._buffer[self._position : end])
        if decoded is None or (self._is_after_damage and not decoded[0].ph):
            return False
        event, was_repaired = decoded
        self._events.append(event)
        self._had_damage |= was_repaired
        self._is_after_damage = False
        self._position = end
        return True

    def _lose_up_to_next_event(self) -> bool:
        """Go to the next object that looks like an event; False if there is none."""
        if self._has_no_boundary:
            return False
        for boundary in _BOUNDARY.finditer(self._buffer, self._position):
            start = boundary.end()
            if self._buffer.find(_PHASE_KEY, start, start + _PHASE_WITHIN_BYTES) != -1:
                return self._lose_up_to(start)
        self._has_no_boundary = True
        return False

    def _lose_up_to_object(self) -> bool:
        """Go to the next object or end of a list; without any, lose all but the end."""
        match = _OBJECT_OR_END.search(self._buffer, self._position)
        return self._lose_up_to(match.start()) if match else self._lose_all(0)

    def _lose_all(self, from_bytes: int) -> bool:
        """Lose all but the end of a text of at least `from_bytes`, unless no more text follows."""
        end = len(self._buffer) - _KEPT_BYTES
        if not self._at_end and end > self._position + from_bytes:
            self._lose_up_to(end)
            self._is_lost = True
        return False

    def _lose_up_to(self, end: int) -> bool:
        self._losses.lost_bytes += end - self._position
        self._position = end
        self._had_damage = self._is_after_damage = True
        return True


def _end(pattern: re.Pattern[bytes], text: bytes, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def from_boundary(text: bytes, like: TextState) -> bytes:
    """What a pass that is resumed behind a text needs of it: all from its last boundary on."""
    last = _last_boundary(text, like.first_key)
    return text[last.start() :] if last else text


def _last_boundary(text: bytes, key: bytes) -> re.Match[bytes] | None:
    """The last place between two objects of which the second one begins with a key."""
    end = len(text)
    while (end := text.rfind(b"}", 0, end)) >= 0:
        match = _BOUNDARY.match(text, end)
        if match and match[1] == key:
            return match
    return None
