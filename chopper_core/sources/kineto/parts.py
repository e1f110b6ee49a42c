"""The text of a trace, read by one process or, part by part, by several.

A part begins at a guess: behind the last boundary between two events before a position. If the part
before ends there, and nothing is odd, both are what one pass reads. Else the text is read in one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.kineto.tables import Share, Sizes, TraceTables
from chopper_core.sources.kineto.text import TextState, TraceText
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import Losses, Repeats
from chopper_core.tables.mmap_columns import (
    ColumnPlace,
    content_of,
    mapped_columns,
    write_columns,
)
from chopper_core.util.progress import Progress
from chopper_core.util.workers import helped

PART_PIECES: Final = 8
_FIRST_PIECES: Final = 4
"""They show how the events are written."""
LEAST_PARTS: Final = 16
"""Of fewer, most are read before another process has started."""


class TraceRead(Struct):
    """What was read of a trace."""

    tables: TraceTables
    losses: Losses
    members: dict[str, bytes]
    """The JSON text of each top-level key except the events."""
    size_bytes: int


class _TextPart(Struct):
    """A part of the text, and where it is in what its process has read."""

    number: int
    begin: int
    """The byte of the text where its first event begins."""
    end: int
    """The byte where its last event ends; -1 if what follows can't be read by itself."""
    before: Sizes
    after: Sizes
    is_last: bool
    losses: Losses
    members: dict[str, bytes]


Given = tuple[list[_TextPart], Share]
"""What a process has read."""


def read_text(path: Path, piece_bytes: int, progress: Progress) -> TraceRead:
    """Read the text of a trace, with the processes that may help; raises DataError."""
    shared_from = LEAST_PARTS * PART_PIECES * piece_bytes
    with _collector_paused():
        # Where no file or process can be made, this one reads all.
        with suppress(OSError), ByteSource(path, piece_bytes) as source:
            if read := _read(source, progress, shared_from):
                return read
        with ByteSource(path, piece_bytes) as source:
            return _PartReader(source, progress).rest()


def _read(source: ByteSource, progress: Progress, shared_from: int) -> TraceRead | None:
    """What was read of a text, with others if it is so large; None if the parts don't fit."""
    own = _PartReader(source, progress)
    state = own.state()
    size = source.likely_bytes
    if state is None or size < shared_from:
        return own.rest()
    with TemporaryDirectory(prefix="chopper-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        work = partial(_help, piece_bytes=source.piece_bytes, folder=folder, state=state)
        with helped(source.path, work, size) as futures:
            if not futures:
                return own.rest()
            own.take(folder, state)
            shares = [(own.parts, own.tables.share())]
            for future in futures:
                if future.exception() or not isinstance(given := future.result(), tuple):
                    return None
                (parts, share), file, places = given
                content = content_of(file)
                share.columns = [mapped_columns(content, each) for each in places]
                shares.append((parts, share))
            return _joined(source, shares)


def _joined(source: ByteSource, shares: Sequence[Given]) -> TraceRead | None:
    parts = {part.number: (at, part) for at, (own, _) in enumerate(shares) for part in own}
    order: list[tuple[int, Sizes, Sizes]] = []
    members: dict[str, bytes] = {}
    end = 0
    while (found := parts.get(len(order))) and found[1].begin == end >= 0:
        at, part = found
        order.append((at, part.before, part.after))
        members |= part.members
        end = part.end
        if part.is_last:
            break
    else:
        return None
    if len(order) < len(parts):  # What was read behind the end of the events is counted, too.
        return None
    tables = TraceTables(Repeats(source.path))
    tables.join([share for _, share in shares], order)
    return TraceRead(tables, part.losses, members, source.size_bytes)


def _help(
    path: Path, progress: Progress, piece_bytes: int, folder: Path, state: TextState
) -> tuple[Given, Path, list[dict[str, ColumnPlace]]]:
    """Read parts of a text until none is left, as other processes do; columns go to a file."""
    with _collector_paused(), ByteSource(path, piece_bytes) as source:
        own = _PartReader(source, progress)
        own.take(folder, state, first=1)
    share = own.tables.share()
    with NamedTemporaryFile(dir=folder, delete=False) as file:
        places = write_columns(file, share.columns)
    share.columns = ()
    return (own.parts, share), Path(file.name), places


class _PartReader:
    """What this process reads of a text."""

    def __init__(self, source: ByteSource, progress: Progress) -> None:
        self.tables = TraceTables(Repeats(source.path))
        self.parts: list[_TextPart] = []
        self._empty = self.tables.sizes()
        self._source, self._progress = source, progress
        self._losses = Losses()
        self._text = TraceText(source, self._losses)

    def state(self) -> TextState | None:
        """How the events are written, by the first ones; None if no part can be read by itself."""
        self._add(_FIRST_PIECES * self._source.piece_bytes)
        state = self._text.state(self.tables.is_merged)
        return state if self._end(state) >= 0 else None

    def rest(self) -> TraceRead:
        self._add(inf)
        return TraceRead(self.tables, self._losses, self._text.members, self._source.size_bytes)

    def take(self, folder: Path, state: TextState, first: int = 0) -> None:
        """Read the parts from a first one on that no other process has taken, which it notes."""
        size = PART_PIECES * self._source.piece_bytes
        for number in count(first):
            try:
                (folder / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            before, begin = self._empty, 0
            if number:
                self._losses = Losses()
                self._text = TraceText(self._source, self._losses)
                if not self._text.resume(number * size, state):
                    return
                before, begin = self.tables.sizes(), self._text.place()
            self._add((number + 1) * size)
            part = _TextPart(
                number=number,
                begin=begin if self.tables.is_joinable() else -1,
                end=self._end(state),
                before=before,
                after=self.tables.sizes(),
                is_last=self._text.is_read,
                losses=self._losses,
                members=self._text.members,
            )
            self.parts.append(part)
            if part.is_last or part.end < 0:
                return

    def _add(self, stop: float) -> None:
        source = self._source
        for events in self._text.batches(stop):
            self.tables.add(events)
            self._progress(f"read {source.path.name}", source.file_position, source.size_bytes)
        self.tables.unread.join(self._text.unread)

    def _end(self, state: TextState) -> int:
        """Where the text that was read ends, if what follows is read as that after the state."""
        now = replace(self._text.state(self.tables.is_merged), first_key=state.first_key)
        is_plain = now == state and self._losses == Losses() and self.tables.is_joinable()
        return self._text.place() if is_plain else -1


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Disable Python's cyclic garbage collector, which would scan every new event again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
