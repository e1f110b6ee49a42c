"""The text of a trace, read by one process or, part by part, by several.

One process unpacks the text. It lays parts out for the others as long as these take them, and reads
the rest itself. A part begins at a guess: behind the last boundary between two events before a
position. If the part before ends there, and nothing is odd, both are what one pass reads. Else the
text is read in one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.kineto.tables import Share, Sizes, TraceTables
from chopper_core.sources.kineto.text import TextState, TraceText, from_boundary
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import Losses, Repeats
from chopper_core.util.memory import keep_freed
from chopper_core.util.progress import Progress
from chopper_core.util.shelf import Shelf
from chopper_core.util.workers import helped

FIRST_PIECES: Final = 4
"""They show how the events are written."""
PART_PIECES: Final = 2
"""Of each other part: in the end one process waits while the other reads its last ones."""
LEAST_PIECES: Final = 64
"""Of fewer, most are read before another process has started."""


class TraceRead(Struct):
    """What was read of a trace."""

    tables: TraceTables
    losses: Losses
    members: dict[str, bytes]
    """The JSON text of each top-level key except the events."""
    size_bytes: int


class _PartPieces(Struct):
    """A part of the text in pieces, of which the first is the end of the one before it."""

    number: int
    given: list[int]
    """How much of the text was given up to the end of each piece."""
    is_end: bool
    """Whether the text ends with it."""
    problem: str | None
    """Why the text ends before it should."""


class _PartText:
    """A part of a text as a text of its own."""

    def __init__(self, path: Path, part: _PartPieces, pieces: Sequence[bytes]) -> None:
        self.path, self.problem = path, part.problem
        self.bytes_given = part.given[0]
        self.is_exceeded = False
        """Whether more was asked for than the part has."""
        self._is_end = part.is_end
        self._left = zip(pieces[1:], part.given[1:], strict=True)

    def read(self) -> bytes:
        piece, self.bytes_given = next(self._left, (b"", self.bytes_given))
        self.is_exceeded |= not (piece or self._is_end)
        return piece


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

    @property
    def is_followed(self) -> bool:
        """Whether another part, or the end of the text, can follow."""
        return self.end >= 0 or self.is_last


Given = tuple[list[_TextPart], Share]
"""What a process has read."""


def read_text(path: Path, piece_bytes: int, progress: Progress) -> TraceRead:
    """Read the text of a trace, with the processes that may help; raises DataError."""
    shared_from = LEAST_PIECES * piece_bytes
    with _collector_paused():
        # Where no file or process can be made, this one reads all.
        with suppress(OSError), ByteSource(path, piece_bytes) as source:
            if read := _read(source, progress, shared_from):
                return read
        with ByteSource(path, piece_bytes) as source:
            own = _PartReader(path, _reporting(source, progress))
            own.open(source, inf)
            return own.rest(source)


def _reporting(source: ByteSource, progress: Progress) -> Callable[[], None]:
    step = f"read {source.path.name}"
    return lambda: progress(step, source.file_position, source.size_bytes)


def _read(source: ByteSource, progress: Progress, shared_from: int) -> TraceRead | None:
    """What was read of a text, with others if it is so large; None if the parts don't fit."""
    own = _PartReader(source.path, _reporting(source, progress))
    first = own.open(source, FIRST_PIECES * source.piece_bytes)
    if first is None or source.likely_bytes < shared_from:
        return own.rest(source)
    part_bytes = PART_PIECES * source.piece_bytes
    work = partial(_help, state=first)
    text_bytes = part_bytes + source.piece_bytes
    with helped(source.path, work, source.likely_bytes, text_bytes) as others:
        if others is None:
            return own.rest(source)
        for part, pieces in _parts(source, part_bytes, first):
            if others.ended():
                return None
            if not (others.shelf.lay(part, pieces) or own.add_part(part, pieces, first)):
                break
        others.shelf.close()
        shares: list[Given] = [(own.parts, own.tables.share())]
        columns = others.shelf.given(others.have_ended)
        for given in others.ended():
            if not isinstance(given, tuple):
                return None
            shares.append(given)
    shares = [(parts, share) for parts, share in shares if parts]
    own_of = {parts[0].number: share.columns for parts, share in shares}
    while columns:
        (number, table, name), values = columns.popitem()
        own_of[number][table][name] = values
    return _joined(source, shares)


def _parts(
    source: ByteSource, part_bytes: int, state: TextState
) -> Iterator[tuple[_PartPieces, list[bytes]]]:
    """The rest of a text, of which the first part was read."""
    number, piece = 0, source.last
    while piece:
        number += 1
        pieces, given = [from_boundary(piece, state)], [source.bytes_given]
        while piece and given[-1] - given[0] < part_bytes:
            piece = source.read()
            pieces.append(piece)
            given.append(source.bytes_given)
        yield _PartPieces(number, given, not piece, source.problem), pieces


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


def _help(path: Path, progress: Progress, shelf: Shelf, state: TextState) -> Given:
    """Read the parts of a text that are laid out, as other processes do, and give the columns back:
    under the number of the first part, which no other process has."""
    keep_freed()
    with _collector_paused():
        own = _PartReader(path, lambda: progress(f"read {path.name}", 0, 0))
        while (laid := shelf.take()) and own.add_part(*laid, state):
            pass
    share = own.tables.share()
    given, share.columns = share.columns, [{} for _ in share.columns]
    if own.parts and own.parts[-1].is_followed:
        for table, columns in enumerate(given):
            for name in [*columns]:
                shelf.give((own.parts[0].number, table, name), columns.pop(name))
    return own.parts, share


class _PartReader:
    """What this process reads of a text."""

    def __init__(self, path: Path, report: Callable[[], None]) -> None:
        self.tables = TraceTables(Repeats(path))
        self.parts: list[_TextPart] = []
        self._path, self._report = path, report
        self._losses = Losses()

    def open(self, source: ByteSource, stop: float) -> TextState | None:
        """Read the first part, up to `stop`: how the events are written; None if no other part can
        be read by itself."""
        before = self.tables.sizes()
        self._text = TraceText(source, self._losses)
        self._add(stop)
        state = self._text.state(self.tables.is_merged)
        end = self._end(state)
        self._note(0, 0, before, end, is_last=self._text.is_read)
        return state if end >= 0 and not self._text.is_read else None

    def rest(self, source: ByteSource) -> TraceRead:
        """Read all that is left of a text that was opened."""
        self._add(inf)
        return TraceRead(self.tables, self._losses, self._text.members, source.size_bytes)

    def add_part(self, part: _PartPieces, pieces: Sequence[bytes], state: TextState) -> bool:
        """Read a part; whether one after it can be read by itself."""
        before = self.tables.sizes()
        source = _PartText(self._path, part, pieces)
        self._losses = Losses()
        self._text = TraceText(source, self._losses)
        self._text.resume(pieces[0], state)
        begin = self._text.place()
        self._add(inf if part.is_end else part.given[-1])
        # What follows the events may go on in the next part.
        is_whole = not source.is_exceeded
        end = self._end(state) if is_whole else -1
        self._note(part.number, begin, before, end, is_last=is_whole and self._text.is_read)
        return end >= 0 and not self._text.is_read

    def _note(self, number: int, begin: int, before: Sizes, end: int, *, is_last: bool) -> None:
        self.parts.append(
            _TextPart(
                number=number,
                begin=begin if self.tables.is_joinable() else -1,
                end=end,
                before=before,
                after=self.tables.sizes(),
                is_last=is_last,
                losses=self._losses,
                members=self._text.members,
            )
        )

    def _add(self, stop: float) -> None:
        for events in self._text.batches(stop):
            self.tables.add(events)
            del events  # The next ones take their place, and no memory beside them.
            self._report()
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
