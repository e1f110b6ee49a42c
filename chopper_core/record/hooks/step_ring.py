"""Every step of a process in a file of fixed size, which watchers on other nodes read as it grows.

Nothing is mapped: a page that a full disk can't hold would end the program by a signal.
"""

from __future__ import annotations

import os
import struct
from typing import Final

FOLDER: Final = "steps"
"""Where the rings of a recording are, in its directory."""
SUFFIX: Final = ".ring"
MAGIC: Final = b"chopper.steps/1\n"
HEADER: Final = struct.Struct("<16s8q")
"""The magic; slots, steps that have ended, rank or -1, size of the world or -1, when the process
began; then what it does now, since when, and in which step. Times are ns since the epoch."""
ENTRY: Final = struct.Struct("<8q")
"""Number, begin, duration, tokens or -1; the parts of it that were evaluations and checkpoints, in
ns; whether the profiler recorded it (`TRACED`) or was near (`NEAR`); 0. Its slot is its count
modulo the slots."""
SLOTS: Final = 1024
FREE, TRACED, NEAR = 0, 1, 2
FORWARD, BACKWARD, BETWEEN, EVALUATION, CHECKPOINT, WRITING, ENDED = range(7)
"""What a process does: `BETWEEN` is from an optimizer's step to the next forward."""
_COUNT: Final = struct.Struct("<q")
_JOB: Final = struct.Struct("<2q")
_NOW: Final = struct.Struct("<3q")
_COUNT_AT: Final = len(MAGIC) + 8
_JOB_AT: Final = _COUNT_AT + 8
_NOW_AT: Final = len(MAGIC) + 5 * 8


class StepRing:
    """Writes the ring of a process; raises OSError where the disk doesn't take it."""

    def __init__(self, path: str, born_ns: int) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._job = (-1, -1)
        self.count = 0
        head = HEADER.pack(MAGIC, SLOTS, 0, *self._job, born_ns, BETWEEN, born_ns, 0)
        os.pwrite(self._file, head, 0)

    def add(self, step: tuple[int, int, int, int, int, int, int]) -> None:
        """Add a step that has ended, with the fields of `ENTRY`."""
        place = HEADER.size + self.count % SLOTS * ENTRY.size
        os.pwrite(self._file, ENTRY.pack(*step, 0), place)
        self.count += 1
        os.pwrite(self._file, _COUNT.pack(self.count), _COUNT_AT)

    def note(self, state: int, since_ns: int, step: int) -> None:
        """Say what the process does from now on."""
        os.pwrite(self._file, _NOW.pack(state, since_ns, step), _NOW_AT)

    def name(self, rank: int, world: int) -> None:
        """Say which rank it is: a process group may come after the first steps."""
        if self._job != (rank, world):
            self._job = (rank, world)
            os.pwrite(self._file, _JOB.pack(rank, world), _JOB_AT)

    def close(self) -> None:
        os.close(self._file)
