"""Every step of a recorded process, in the ring that its hooks write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.record.hooks.step_ring import ENTRY, HEADER, MAGIC, SUFFIX
from chopper_core.sources.registry import Recognised
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.cells import LATEST_NS
from chopper_core.sources.trainer.steps import MAX_STEP, TrainerLog
from chopper_core.tables.columns import MAX_RANKS
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "`chopper record`"
FILES: Final = "`steps/*.ring`: the last 1,024 steps of each process, and what it does now"
EXAMPLE: Final = "chopper record --steps 0 -- torchrun train.py"
SUFFIXES: Final = (SUFFIX,)

_FORMAT: Final = "steps of a recording"
_MOST_SLOTS: Final = 1 << 16
_FIELDS: Final = ENTRY.size // 8
NUMBER, BEGIN, DURATION, TOKENS, EVALUATION, CHECKPOINT, PROFILED = range(7)
"""The columns of entries."""


class RingHead(Struct, frozen=True):
    """What a ring says of its process; times in ns since the epoch."""

    slots: int
    count: int
    """Steps that have ended."""
    rank: int
    """-1 where nothing names it, as for `world`."""
    world: int
    born_ns: int
    state: int
    """What it does now (`record/hooks/step_ring.py`)."""
    since_ns: int
    step: int


def recognise(head: FileHead) -> Recognised | None:
    return Recognised(_FORMAT) if head.data.startswith(MAGIC) else None


def read(path: Path, progress: Progress = silent) -> TrainerLog:
    """The steps of a ring: each lasts until the next one begins.

    Raises DataError without any step.
    """
    ring = RingReader(path)
    steps = ring.new_steps()
    losses = Losses()
    losses.note(ring.damaged, "step", "of impossible numbers: skipped")
    losses.unreadable_events += ring.damaged
    if ring.head is None or not len(steps):
        raise DataError(f"{path} holds no step that ended.")
    took_ns = steps[:, DURATION].astype(np.float64)
    tokens = steps[:, TOKENS].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where((tokens >= 0) & (took_ns > 0), tokens / took_ns * 1e9, np.nan)
    figures = {"step_ns": took_ns} | ({"tokens_per_s": rates} if (tokens >= 0).any() else {})
    parts = {"evaluation": EVALUATION, "checkpoint": CHECKPOINT}
    phases = {name: steps[:, at].astype(np.float64) for name, at in parts.items()}
    return TrainerLog(
        path,
        _FORMAT,
        ClockDomain.EPOCH,
        np.full(len(steps), ring.head.rank, np.int32),
        steps[:, NUMBER],
        steps[:, BEGIN] + steps[:, DURATION],
        figures,
        {name: np.where(times > 0, times, np.nan) for name, times in phases.items() if times.any()},
        [],
        losses,
    )


class RingReader:
    """A ring, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: RingHead | None = None
        """None before the first look, and of a file that holds no ring any more."""
        self.damaged = 0
        """Steps of impossible numbers."""
        self._count = 0

    def new_steps(self) -> Int64:
        """The steps that came since the last look, rows of fields as in `ENTRY`, and the head.

        Raises DataError for a file that can't be read or holds no ring.
        """
        try:
            # Opened each time: that is when a client of NFS asks for what is new.
            with self.path.open("rb", buffering=0) as file:
                before = _head_of(file.read(HEADER.size), self.path)
                if self.head is not None and self.head.born_ns != before.born_ns:
                    self._count = 0
                content = file.read(before.slots * ENTRY.size)
                file.seek(0)
                after = _head_of(file.read(HEADER.size), self.path)
        except OSError as error:
            raise DataError(f"{self.path} can't be read: {error.strerror}.") from error
        self.head = after
        rows = np.frombuffer(content[: len(content) // ENTRY.size * ENTRY.size], "<i8")
        rows = rows.reshape(-1, _FIELDS).astype(np.int64)
        # One more than those that ended since may have been written over.
        first = max(self._count, after.count - before.slots + 1, 0)
        places = np.arange(first, before.count) % before.slots
        self._count = max(before.count, first)
        own = rows[places[places < len(rows)]]
        is_sound = _are_sound(own)
        self.damaged += int((~is_sound).sum())
        return own[is_sound]


def _head_of(content: bytes, path: Path) -> RingHead:
    if len(content) < HEADER.size or not content.startswith(MAGIC):
        raise DataError(f"{path} holds no ring of steps.")
    head = RingHead(*HEADER.unpack(content)[1:])
    is_sound = 0 < head.slots <= _MOST_SLOTS and 0 <= head.count < MAX_STEP
    if not is_sound or not _are_times((head.born_ns, head.since_ns)):
        raise DataError(f"{path} is a damaged ring of steps.")
    return head if 0 <= head.rank < MAX_RANKS else replace(head, rank=ABSENT)


def _are_times(times_ns: Sequence[int]) -> bool:
    return all(0 <= each < LATEST_NS for each in times_ns)


def _are_sound(rows: Int64) -> Mask:
    number, begin, took = rows[:, NUMBER], rows[:, BEGIN], rows[:, DURATION]
    parts = rows[:, [EVALUATION, CHECKPOINT]]
    is_time = (begin >= 0) & (begin < LATEST_NS) & (took >= 0) & (took < LATEST_NS)
    return is_time & (number >= 0) & (number < MAX_STEP) & (parts >= 0).all(axis=1)
