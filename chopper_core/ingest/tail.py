"""The end of a growing telemetry file: whole new lines, read below the file's own headings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from chopper_core.align.telemetry import TITLES
from chopper_core.ingest.untraced import identified
from chopper_core.model.inputs import Gpu
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.recent import RecentSamples
from chopper_core.sources.registry import Family, SourceFormat, discover, read_source
from chopper_core.sources.signals import ClockDomain, Telemetry
from chopper_core.util.errors import DataError
from chopper_core.util.memory import reading

_MAX_HEADINGS: Final = 50
"""Lines that may come before the first row."""
_PIECE: Final = 1 << 24
_WHOLE: Final = (b"\x1f\x8b", b"[", b"{")
"""How files begin that no line of can be read alone."""


class Tail:
    """A telemetry file, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = TemporaryDirectory(prefix="chopper-")
        self._at = 0
        self._inode = -1
        self._state = (-1, -1, -1)
        self._since_ns = -1
        """Of a file that is read as a whole again, samples up to then are known."""
        self._head: bytes | None = None
        """The lines above the rows; None before they are there."""
        self._format: SourceFormat | None = None
        self._resolution_ns = 0
        self._offset_ns: int | None = None

    def read(
        self, recent: RecentSamples, gpus: Sequence[Gpu], overrides: Overrides = NO_OVERRIDES
    ) -> bool:
        """Add the samples of new lines; False where nothing came."""
        try:
            status = os.stat(self.path)
            if status.st_ino != self._inode or status.st_size < self._at:
                # Rotated or truncated: another file begins.
                self._at, self._inode, self._head = 0, status.st_ino, None
            state = status.st_size, status.st_mtime_ns, status.st_ino
            if state == self._state:
                return False
            self._state = state
            telemetry = self._next()
        except (OSError, DataError):
            return False
        if telemetry is None:
            return False
        self._add(telemetry, recent, gpus, overrides, status.st_mtime_ns)
        recent.newest_s = max(recent.newest_s, status.st_mtime)
        return True

    def _next(self) -> Telemetry | None:
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read(_PIECE)
        if not self._at and data.startswith(_WHOLE):
            with reading(self.path):
                whole: Telemetry = read_source(self.path, Family.TELEMETRY)
            return whole
        data = data[: data.rfind(b"\n") + 1]  # The rest of the last line is still to come.
        lines = data.splitlines(keepends=True)
        copy = Path(self._scratch.name) / self.path.name
        if self._head is None:
            for count in range(1, min(len(lines), _MAX_HEADINGS) + 1):
                copy.write_bytes(b"".join(lines[:count]))
                if found := discover([copy], Family.TELEMETRY).files:
                    self._head, self._format = b"".join(lines[:count]), found[0].source
                    lines = lines[count:]
                    break
        if self._head is None or self._format is None or not lines:
            return None
        self._at += len(data)
        copy.write_bytes(self._head + b"".join(lines))
        self._note_headings(lines)
        with reading(self.path):
            telemetry: Telemetry = self._format.read(copy)
        return replace(telemetry, path=self.path)

    def _note_headings(self, lines: Sequence[bytes]) -> None:
        """Read on below headings that came again, perhaps changed, after a tool's restart."""
        *above, heading = (self._head or b"\n").splitlines(keepends=True)
        first = heading.split(b",")[0]
        again = [line for line in lines if line.split(b",")[0] == first]
        self._head = b"".join([*above, *again[-1:]]) if again else self._head

    def _add(
        self,
        telemetry: Telemetry,
        recent: RecentSamples,
        gpus: Sequence[Gpu],
        overrides: Overrides,
        written_ns: int,
    ) -> None:
        newest = [int(own.time_ns[-1]) for each in telemetry.signals.values() for own in each]
        if self._offset_ns is None:
            # A clock without a date: the newest sample was taken when it was written.
            is_epoch = telemetry.clock is ClockDomain.EPOCH
            self._offset_ns = 0 if is_epoch else written_ns - max(newest)
            self._resolution_ns = telemetry.resolution_ns or 1
        _, gpu_of = identified(telemetry, gpus, overrides)
        source = self._resolution_ns, str(self.path)
        for (number, name), parts in telemetry.signals.items():
            if name not in TITLES or number not in gpu_of or telemetry.is_of_node:
                continue
            for own in (part for part in parts if not part.part):
                new = own.time_ns > (self._since_ns if not self._at else -1)
                samples = own.time_ns[new] + self._offset_ns, own.value[new]
                recent.add(name.value, TITLES[name], gpu_of[number], samples, source)
        self._since_ns = max(newest)
