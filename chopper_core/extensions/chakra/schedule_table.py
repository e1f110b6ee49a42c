"""Dumps of pipeline schedules, when each microbatch ran on each stage, and the table they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from chopper_core.tables.losses import Losses
from chopper_core.util.arrays import Int8, Int32, Int64

NO_MICROBATCH = -1
EVERYWHERE = ("optimizer-clip-main-grad",)
"""Operations in which all ranks wait for each other: the norm of all gradients."""


class ScheduleTable(Struct, frozen=True):
    """One file: a row per operation; times count from the start of the step."""

    path: Path
    format: str
    operations: Sequence[str]
    rank: Int32
    stage: Int32
    replica: Int32
    step: Int32
    operation: Int32
    """Code in `operations`."""
    kind: Int8
    """Of `Kind`."""
    phase: Int8
    """Of `Phase`."""
    microbatch: Int32
    """`NO_MICROBATCH` for operations of the whole step."""
    chunk: Int32
    """The part of the stage's model, 0 unless the schedule is interleaved."""
    start_ns: Int64
    duration_ns: Int64
    windows_ns: Mapping[tuple[int, int], int]
    """(rank, step) → how long the step took there, where the file says it."""
    unused: Mapping[str, int]
    """Rows by operation that are no work of a GPU."""
    losses: Losses
