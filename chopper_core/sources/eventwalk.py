"""Going through a list of events one by one, with an exact scanner, past any damage."""

from __future__ import annotations

import re
from typing import Final

from chopper_core.sources.events import Event, EventDecoder
from chopper_core.sources.jsonscan import INCOMPLETE, element_end, skip_space

MAX_EVENT_BYTES: Final = 4 << 20
"""An event that goes on for longer is taken for damaged."""

_EVENT_START: Final = rb'(?=\{\s*"\w[^"\\]*"\s*:)'
"""Can't match inside a valid string, where the quotes would be escaped."""


def boundary_pattern(separator: bytes | None = None) -> re.Pattern[bytes]:
    """Return a pattern for what lies between two events, from the closing to the opening brace."""
    between = rb"\s*,\s*" if separator is None else re.escape(separator)
    return re.compile(rb"\}" + between + _EVENT_START)


class EventWalk:
    """One pass over text that starts inside a list of events, at an element or before a comma.

    An event that no repair can decode is lost, and the pass goes on at the next text that looks
    like the start of an event.
    """

    def __init__(
        self,
        text: bytes,
        decoder: EventDecoder,
        boundary: re.Pattern[bytes],
        *,
        at_end: bool,
    ) -> None:
        self.events: list[Event] = []
        self.position = 0
        """Where the rest starts: after the list, or at an element that goes on beyond the text."""
        self.is_closed = False
        self.had_damage = False
        self.unreadable_events = 0
        self.lost_bytes = 0
        self._text = text
        self._decoder = decoder
        self._boundary = boundary
        self._at_end = at_end
        self._is_after_damage = False
        while self._step():
            pass

    def _step(self) -> bool:
        """Go past one element or mark; False at the end of the list or of what can be read."""
        text = self._text
        self.position = skip_space(text, self.position)
        mark = text[self.position : self.position + 1]
        if mark in (b"", b"]"):
            self.is_closed = mark == b"]"
            self.position += len(mark)
            return False
        if mark == b",":
            self.position += 1
            return True
        if mark in (b"}", b":"):
            self._lose_up_to(self.position + 1)
            return True
        boundary = self._boundary.search(text, self.position)
        if boundary and self._take(boundary.start() + 1):
            return True
        end = element_end(text, self.position)
        if end == INCOMPLETE:
            if not self._at_end and len(text) - self.position < MAX_EVENT_BYTES:
                return False
        elif self._take(end):
            return True
        return self._lose_event(end, boundary)

    def _take(self, end: int) -> bool:
        """Take the event that ends there, if it can be decoded."""
        decoded = self._decoder.decode_one(self._text[self.position : end])
        if decoded is None or (self._is_after_damage and not decoded.event.ph):
            return False
        self.events.append(decoded.event)
        self.had_damage |= decoded.was_repaired
        self._is_after_damage = False
        self.position = end
        return True

    def _lose_event(self, end: int, boundary: re.Match[bytes] | None) -> bool:
        """Go on behind the event; False if its end can't be told."""
        if end != INCOMPLETE and (boundary is None or self._is_element_end(end)):
            self._lose_up_to(end)
        elif boundary:
            self._lose_up_to(boundary.start() + 1)
        else:
            return False
        self.unreadable_events += 1
        return True

    def _is_element_end(self, end: int) -> bool:
        follows = skip_space(self._text, end)
        return self._text[follows : follows + 1] in (b",", b"]")

    def _lose_up_to(self, end: int) -> None:
        self.lost_bytes += end - self.position
        self.position = end
        self.had_damage = self._is_after_damage = True
