"""New samples of a run that is still going: whole new lines of a growing telemetry file, read below
the file's own headings, or what a library gives."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.ingest.feeds import LibraryFeed
from chopper_core.ingest.recorded import recorded_at
from chopper_core.ingest.untraced import identified
from chopper_core.model.recent import RecentSamples
from chopper_core.model.run import Run
from chopper_core.model.signals import TRACKS
from chopper_core.sources.registry import Family, SourceFormat, discover
from chopper_core.sources.signals import ClockDomain, SignalName, SignalSamples, Telemetry
from chopper_core.sources.telemetry.cells import SECOND_NS
from chopper_core.store.format import paths_of
from chopper_core.util.arrays import Int64, Mask
from chopper_core.util.atomic import BYTE_ORDER_MARK
from chopper_core.util.compression import COMPRESSED_STARTS
from chopper_core.util.errors import DataError
from chopper_core.util.memory import reading

_MAX_HEADINGS: Final = 50
"""Lines that may come before the first row."""
_AGAIN: Final = 128, 512
"""Lines, at least and at most, that are read once more with new ones: rates are differences to
the sample before, and samples with one stamp are averaged."""
_ROUNDS: Final = 2
"""Fewer lines do where they have so many samples of each signal."""
_PIECE: Final = 1 << 18
_BLOCK: Final = 1 << 15
"""Bytes that are looked for by time."""
_LAST_BLOCKS: Final = 8
_CLOCK_SET_NS: Final = 10 * SECOND_NS
"""Appended samples that are so much older than those before are of a clock that was set back."""
_WHOLE: Final = (*COMPRESSED_STARTS, b"[", b"{", b"PAR1")
"""How files begin that no line of can be read alone."""
_LONGEST_START: Final = 8


class FollowedSamples:
    """Adds the samples of one source that aren't known yet, in the order in which they came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset_ns = self._newest_ns = 0
        self._times: dict[tuple[str, SignalName], Int64] = {}
        """The times of the samples that came last, by GPU and signal."""

    def read(self, recent: RecentSamples, run: Run) -> bool:
        """Add what is new; False where nothing came."""
        raise NotImplementedError

    def _add(self, telemetry: Telemetry, recent: RecentSamples, run: Run) -> bool:
        """Add the samples that aren't known yet; of the newest stamp there may be more now."""
        before, self._times = self._times, {}
        own: dict[tuple[int, SignalName], tuple[SignalSamples, Mask]] = {}
        for (number, name), parts in telemetry.signals.items():
            for each in (part for part in parts if not part.part and name in TRACKS):
                key = telemetry.gpus[number].text, name
                own[number, name] = (
                    each,
                    _are_among(each.time_ns, before.get(key, each.time_ns[:0])),
                )
                self._times[key] = each.time_ns
        fresh = [each.time_ns[~is_known] for each, is_known in own.values()]
        first_ns = min((int(each[0]) for each in fresh if len(each)), default=0)
        newest_ns = max((int(each[-1]) for each in fresh if len(each)), default=0)
        is_set_back = newest_ns and newest_ns < self._newest_ns - _CLOCK_SET_NS
        if is_set_back:
            # They come after those before, and none of these is read again.
            self._offset_ns += self._newest_ns - first_ns + SECOND_NS
            self._forget()
        self._newest_ns = newest_ns or self._newest_ns
        gpu_of = _gpus_of(telemetry, run)
        source = telemetry.resolution_ns or 1, str(self.path)
        for (number, name), (each, is_known) in own.items():
            if number in gpu_of and not telemetry.is_of_node:
                if not is_set_back:
                    is_known[-1] = False
                samples = each.time_ns[~is_known] + self._offset_ns, each.value[~is_known]
                recent.add(
                    name.value,
                    (TRACKS[name].title, TRACKS[name].unit),
                    gpu_of[number],
                    samples,
                    source,
                )
        return bool(own)

    def _forget(self) -> None:
        """Leave what came before: a clock was set back."""
        self._times = {}


class FeedSamples(FollowedSamples):
    """The samples of a library as it gives them, after those that are in its file already."""

    def __init__(self, feed: LibraryFeed) -> None:
        super().__init__(feed.path)
        self._feed = feed
        self._before: Tail | None = Tail(feed.path)

    def read(self, recent: RecentSamples, run: Run) -> bool:
        came = [self._add(each, recent, run) for each in self._feed.taken()]
        if self._before is not None:
            came.append(self._before.read(recent, run))
            self._before = None
        if any(came):
            recent.newest_s = time.time()
        return any(came)


class Tail(FollowedSamples):
    """A telemetry file, and how far it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._scratch = TemporaryDirectory(prefix="chopper-")
        self._state = (-1, -1, -1)
        self._size = 0
        """The bytes that a look found: lines that come while it reads wait for the next one."""
        self._is_dated = False
        self._begin()

    def _begin(self) -> None:
        self._at = 0
        self._format: SourceFormat | None = None
        self._head: list[bytes] = []
        """The lines above the rows."""
        self._last: list[bytes] = []
        """The last lines that were read."""
        self._times = {}
        self._new_lines = 0
        self._is_untimed = False
        self._newest_ns = 0

    def read(self, recent: RecentSamples, run: Run) -> bool:
        """Add the samples of new lines; False where nothing came."""
        try:
            status = os.stat(self.path)
            state = status.st_size, status.st_mtime_ns, status.st_ino
            if state == self._state:
                return False
            self._state, self._size = state, status.st_size
            with self.path.open("rb") as file:
                last = b"".join(self._last[-1:])
                file.seek(self._at - len(last))
                if file.read(len(last)) != last:
                    self._begin()  # Rotated, replaced or truncated: another file begins.
                file.seek(0)
                start = file.read(_LONGEST_START).removeprefix(BYTE_ORDER_MARK)
                is_whole = not self._at and start.startswith(_WHOLE)
            pieces: Iterable[Telemetry] = self._whole() if is_whole else iter(self._next, None)
            pieces = (self._timed(each, status.st_mtime_ns) for each in pieces)
            if not self._is_dated:
                pieces = self._dated(pieces, status.st_mtime_ns)
            came = [self._add(each, recent, run) for each in pieces]
        except (OSError, DataError):
            return False
        if any(came):
            recent.newest_s = max(recent.newest_s, min(status.st_mtime, time.time()))
        return any(came)

    def excerpt(self, spans: Sequence[tuple[int, int]]) -> Telemetry | None:
        """The samples within spans of time and of the last lines of a large file.

        None for a file that has to be read as a whole: one without dates, or not in order of time.
        """
        size = self.path.stat().st_size
        blocks = range(-(-size // _BLOCK))
        if len(blocks) <= _LAST_BLOCKS:
            return None
        with self.path.open("rb") as file:

            def lines_of(first: int, end: int) -> list[bytes]:
                """The whole lines that begin in blocks."""
                file.seek(max(first * _BLOCK - 1, 0))
                lines = file.read((end - first) * _BLOCK + 1).splitlines(keepends=True)
                begun = 1 if first else 0
                return [*lines[begun:-1], lines[-1] + file.readline()]

            @cache
            def time_at(block: int) -> int:
                lines = lines_of(block, block + 1)[:_MAX_HEADINGS]
                found = self._read_lines([*self._head, *lines])
                is_dated = found.clock is ClockDomain.EPOCH and found.resolution_ns
                return min(_times(found, 0)) if is_dated else -1

            try:
                start = lines_of(0, 1)
                first_line = start[0].removeprefix(BYTE_ORDER_MARK)
                if first_line.startswith(_WHOLE) or not self._recognise(start) or time_at(0) < 0:
                    return None
                wanted = {*blocks[-_LAST_BLOCKS:]}
                for edges in spans:
                    first, end = (bisect_left(blocks, edge, key=time_at) for edge in edges)
                    wanted.update(blocks[max(first - 1, 0) : end + 1])
                parts = [lines_of(at, at + 1) for at in sorted(wanted)]
                return self._read_lines([*self._head, *chain.from_iterable(parts)])
            except DataError:
                return None

    def _whole(self) -> list[Telemetry]:
        found = discover([self.path], Family.TELEMETRY).files
        with reading(self.path):
            return [each.source.read(self.path) for each in found]

    def _timed(self, telemetry: Telemetry, written_ns: int) -> Telemetry:
        """Samples without times: the last one came when it was written, those before in steps."""
        if telemetry.resolution_ns:
            return telemetry
        self._is_untimed, last = True, max(_times(telemetry, -1))
        step_ns = min(SECOND_NS, (written_ns - self._newest_ns) // (last + 2))

        def timed(own: SignalSamples) -> SignalSamples:
            return replace(own, time_ns=written_ns - (last - own.time_ns) * step_ns, begin_ns=None)

        signals = {key: [*map(timed, own)] for key, own in telemetry.signals.items()}
        return replace(telemetry, signals=signals, clock=ClockDomain.EPOCH)

    def _dated(self, pieces: Iterable[Telemetry], written_ns: int) -> Iterator[Telemetry]:
        """Of a clock without a date, the newest sample was taken when it was written."""
        for piece in pieces:
            waiting, self._is_dated = [piece], True
            if piece.clock is not ClockDomain.EPOCH:
                waiting += pieces
                self._offset_ns = written_ns - max(chain(*(_times(each, -1) for each in waiting)))
            yield from waiting

    def _next(self) -> Telemetry | None:
        """The samples of the next whole lines and of some before; None where there are none."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read(max(min(_PIECE, self._size - self._at), 0))
        data = data[: data.rfind(b"\n") + 1]  # The rest of the last line is still to come.
        text = data if self._at else data.removeprefix(BYTE_ORDER_MARK)
        lines = text.splitlines(keepends=True)
        if not lines or (self._format is None and not self._recognise(lines)):
            return None
        context = [*self._head, *([] if self._is_untimed else self._last)] if self._at else []
        self._at += len(data)
        least, most = _AGAIN
        kept = min(max(least, len(lines)), most)
        self._last, self._new_lines = [*self._last, *lines][-kept:], len(lines)
        self._note_headings(lines)
        try:
            telemetry = self._read_lines([*context, *lines])
        except DataError:  # Without any usable sample.
            return self._next()
        if context:
            own = [len(each.time_ns) for each in chain.from_iterable(telemetry.signals.values())]
            lines_each = -(-(len(context) - len(self._head) + len(lines)) // min(own))
            self._last = self._last[-max(_ROUNDS * lines_each, 1) :]
        return telemetry

    def _read_lines(self, lines: Sequence[bytes]) -> Telemetry:
        assert self._format is not None
        copy = Path(self._scratch.name) / self.path.name
        copy.write_bytes(b"".join(lines))
        with reading(self.path):
            telemetry: Telemetry = self._format.read(copy)
        return replace(telemetry, path=self.path)

    def _recognise(self, lines: Sequence[bytes]) -> bool:
        """Find the format, and the lines above the first row: the fewest that it is known by."""
        found = discover([self.path], Family.TELEMETRY).files
        if not found:
            return False
        self._format = found[0].source
        copy = Path(self._scratch.name) / self.path.name
        for count in range(1, min(len(lines), _MAX_HEADINGS) + 1):
            copy.write_bytes(b"".join(lines[:count]))
            if discover([copy], Family.TELEMETRY).files:
                self._head = [*lines[:count]]
                return True
        # Known by headings of which a half is written: the other half is to come.
        if len(lines) < _MAX_HEADINGS:
            self._format = None
        return self._format is not None

    def _forget(self) -> None:
        super()._forget()
        self._last = self._last[-self._new_lines :]

    def _note_headings(self, lines: Sequence[bytes]) -> None:
        """Read on below headings that came again, perhaps changed, after a tool's restart."""
        if self._head:
            first = self._head[-1].split(b",")[0]
            again = [line for line in lines if line.split(b",")[0] == first]
            self._head = [*self._head[:-1], *(again[-1:] or self._head[-1:])]


def _are_among(times: Int64, known: Int64) -> Mask:
    """Which times are among known ones, in rising order."""
    if not len(known):
        return np.zeros(len(times), np.bool_)
    return np.asarray(known[np.minimum(np.searchsorted(known, times), len(known) - 1)] == times)


def _times(telemetry: Telemetry, at: int) -> list[int]:
    """The first (0) or last (-1) time of each signal."""
    return [int(each.time_ns[at]) for own in telemetry.signals.values() for each in own]


def _gpus_of(telemetry: Telemetry, run: Run) -> Mapping[int, int]:
    """GPU by number in the file, as the run has matched its devices; new ones as it would."""
    path = str(telemetry.path)
    known = {each.device: each.gpu for each in run.identities if each.source == path}
    if all(device.text in known for device in telemetry.gpus):
        found = ((number, known[each.text]) for number, each in enumerate(telemetry.gpus))
        return {number: gpu for number, gpu in found if gpu is not None}
    recorded = recorded_at(paths_of(run.name))
    there = recorded.gpus_of(telemetry.path, run.gpus) if recorded else run.gpus
    return identified(telemetry, there, run.overrides)[1]
