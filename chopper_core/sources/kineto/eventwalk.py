"""Going through a list of events one by one, with an exact scanner, past any damage."""

from __future__ import annotations

import re
from typing import Final

from chopper_core.sources.kineto.events import Event, EventDecoder
from chopper_core.sources.shared.json_stream import INCOMPLETE, element_end, skip_space

MAX_EVENT_BYTES: Final = 2 << 20
"""An event that holds lists of objects and goes on for longer is taken for damaged."""

_BOUNDARY: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"\w[^"\\]*"\s*:)')
"""Between two objects; can't match inside a valid string, where the quotes would be escaped."""
_PHASE_KEY: Final = b'"ph"'
_PHASE_WITHIN_BYTES: Final = 1 << 9
_LIST_END: Final = re.compile(rb'\]\s*(?:\}|\Z|,\s*(?:"|\Z))')


class EventWalk:
    """One pass over text that starts inside a list of events, at an element or before a comma.

    An event that no repair can decode is lost, and the pass goes on at the next text that looks
    like the start of an event.
    """

    def __init__(
        self, text: bytes, decoder: EventDecoder, *, at_end: bool, had_damage_before: bool
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
        self._at_end = at_end
        self._had_damage_before = had_damage_before
        self._is_after_damage = False
        while self._step():
            pass

    def _step(self) -> bool:
        """Go past one element or mark; False at the end of the list or of what can be read."""
        text = self._text
        self.position = skip_space(text, self.position)
        mark = text[self.position : self.position + 1]
        if mark == b"":
            return False
        if mark == b",":
            self.position += 1
            return True
        if mark == b"{":
            return self._step_over_object()
        if mark == b"]":
            return self._step_over_list_end()
        if self._is_after_damage and self._lose_up_to_next_event():
            return True
        if mark in (b"}", b":", b"["):
            return self._lose_up_to(self.position + 1)
        end = element_end(text, self.position)
        return self._lose_up_to(end) if end != INCOMPLETE else self._lose_up_to_next_event()

    def _step_over_object(self) -> bool:
        boundary = _BOUNDARY.search(self._text, self.position)
        if boundary and self._take(boundary.start() + 1):
            return True
        end = element_end(self._text, self.position, self.position + MAX_EVENT_BYTES)
        if end == INCOMPLETE:
            if not self._at_end and len(self._text) - self.position < MAX_EVENT_BYTES:
                return False
        elif self._take(end):
            return True
        if boundary and (end == INCOMPLETE or boundary.start() < end):
            end = boundary.start() + 1
        if end == INCOMPLETE:
            return False
        self.unreadable_events += 1
        return self._lose_up_to(end)

    def _step_over_list_end(self) -> bool:
        """Close the list, unless what follows shows that the bracket is part of damage."""
        if self.had_damage or self._had_damage_before:
            if self._lose_up_to_next_event():
                return True
            if not self._at_end and len(self._text) - self.position < MAX_EVENT_BYTES:
                return False
        follows = skip_space(self._text, self.position + 1)
        if self._text[follows : follows + 1] == b",":
            follows = skip_space(self._text, follows + 1)
        if follows == len(self._text) and not self._at_end:
            return False
        if _LIST_END.match(self._text, self.position) is None:
            return self._lose_up_to(self.position + 1)
        self.is_closed = True
        self.position += 1
        return False

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

    def _lose_up_to_next_event(self) -> bool:
        """Go to the next object that is an event by its looks; False if there is none."""
        for boundary in _BOUNDARY.finditer(self._text, self.position):
            start = boundary.end()
            if self._text.find(_PHASE_KEY, start, start + _PHASE_WITHIN_BYTES) != -1:
                return self._lose_up_to(start)
        return False

    def _lose_up_to(self, end: int) -> bool:
        self.lost_bytes += end - self.position
        self.position = end
        self.had_damage = self._is_after_damage = True
        return True
