"""A shelf of texts that a process lays out for its workers, and of the arrays that they give back,
in memory that they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chopper_core.util.arrays import AnyArray

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext  # Slow to import.

_PLACES_EACH: Final = 2
"""Places per worker: it takes a text while the next one is there."""
_POLL_SECONDS: Final = 0.0005


class _SharedPlaces:
    """Places for bytes, which some processes fill and others empty.

    Only those of one side wait for one another: what is killed there holds up no process of the
    other side.
    """

    def __init__(self, context: BaseContext, count: int, size: int) -> None:
        self.size = size
        self._memory = context.RawArray("c", count * size)
        self._full: Any = context.SimpleQueue()
        self._free: Any = context.SimpleQueue()
        for place in range(count):
            self._free.put(place)

    def is_full(self) -> bool:
        return bool(self._free.empty())

    def is_empty(self) -> bool:
        return bool(self._full.empty())

    def fill(self, label: Any, pieces: Sequence[bytes | memoryview]) -> None:
        """Fill a place once one is free."""
        place = self._free.get()
        memory, at = self._bytes(), place * self.size
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)
        self._full.put((place, [*map(len, pieces)], label))

    def empty(self) -> tuple[Any, list[bytes]] | None:
        """Take copies of what is in the next place once it is full; None if none will be."""
        if (full := self._full.get()) is None:
            return None
        place, lengths, label = full
        memory, at = self._bytes(), place * self.size
        pieces = []
        for length in lengths:
            pieces.append(bytes(memory[at : at + length]))
            at += length
        self._free.put(place)
        return label, pieces

    def end_empty(self) -> None:
        """Tell a process that it has emptied all."""
        self._full.put(None)

    def _bytes(self) -> memoryview:
        return memoryview(self._memory).cast("B")


class Shelf:
    """Texts in pieces, each with a label, in the order in which they are laid out; then arrays.

    Whoever takes one has a copy of it, so that its place is free at once. Labels are objects that
    can be pickled, of a few hundred bytes.
    """

    def __init__(self, context: BaseContext, workers: int, text_bytes: int) -> None:
        self._workers = workers
        self._texts = _SharedPlaces(context, _PLACES_EACH * workers, text_bytes)
        self._arrays = _SharedPlaces(context, _PLACES_EACH * workers, text_bytes)

    def lay(self, label: Any, pieces: Sequence[bytes]) -> bool:
        """Lay out a text; False if no place is free for it, or it is too long for one."""
        if sum(map(len, pieces)) > self._texts.size or self._texts.is_full():
            return False
        self._texts.fill(label, pieces)
        return True

    def close(self) -> None:
        """Tell each worker that no more texts are laid out."""
        for _ in range(self._workers):
            self._texts.end_empty()

    def take(self) -> tuple[Any, list[bytes]] | None:
        """As a worker, take the next text once there is one: its label and its pieces; None if none
        comes."""
        return self._texts.empty()

    def give(self, label: Any, values: AnyArray) -> None:
        """As a worker, give an array back under a label of its own, as its parts are taken."""
        data = np.ascontiguousarray(values).data.cast("B")
        for begin in range(0, max(len(data), 1), self._arrays.size):
            piece = data[begin : begin + self._arrays.size]
            self._arrays.fill((label, values.dtype.str), [piece])

    def given(self, is_over: Callable[[], bool]) -> dict[Any, AnyArray]:
        """All arrays that workers give back until they have ended, by their labels."""
        found: dict[Any, tuple[str, bytearray]] = {}
        while True:
            over = is_over()  # First: what was given before that is on the shelf.
            if not self._arrays.is_empty() and (given := self._arrays.empty()):
                (label, kind), (piece,) = given
                found.setdefault(label, (kind, bytearray()))[1].extend(piece)
            elif over:
                return {label: np.frombuffer(data, kind) for label, (kind, data) in found.items()}
            else:
                time.sleep(_POLL_SECONDS)
