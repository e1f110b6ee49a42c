"""A shelf of texts that a process lays out for its workers, in memory that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext  # Slow to import.

_PLACES_EACH: Final = 2
"""Places per worker: it takes a text while the next one is there."""


class Shelf:
    """Texts in pieces, each with a label, in the order in which they are laid out.

    Whoever takes one has a copy of it, so that its place is free at once.
    """

    def __init__(self, context: BaseContext, workers: int, text_bytes: int) -> None:
        self._workers = workers
        self._text_bytes = text_bytes
        self._memory = context.RawArray("c", _PLACES_EACH * workers * text_bytes)
        self._laid: Any = context.SimpleQueue()
        self._free: Any = context.SimpleQueue()
        for place in range(_PLACES_EACH * workers):
            self._free.put(place)

    def lay(self, label: Any, pieces: Sequence[bytes]) -> bool:
        """Lay out a text; False if no place is free for it, or it is too long for one.

        The label is an object that can be pickled.
        """
        if sum(map(len, pieces)) > self._text_bytes or self._free.empty():
            return False
        place = self._free.get()
        memory, at = self._bytes(), place * self._text_bytes
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)
        self._laid.put((place, [*map(len, pieces)], label))
        return True

    def close(self) -> None:
        """Tell each worker that nothing more is laid out."""
        for _ in range(self._workers):
            self._laid.put(None)

    def take(self) -> tuple[Any, list[bytes]] | None:
        """Take the next text, once there is one: its label and its pieces; None if none comes."""
        if (given := self._laid.get()) is None:
            return None
        place, lengths, label = given
        memory, at = self._bytes(), place * self._text_bytes
        pieces = []
        for length in lengths:
            pieces.append(bytes(memory[at : at + length]))
            at += length
        self._free.put(place)
        return label, pieces

    def _bytes(self) -> memoryview:
        return memoryview(self._memory).cast("B")
