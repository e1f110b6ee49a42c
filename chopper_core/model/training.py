"""What a trainer's log says of the steps of a whole run, of which a trace shows a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.side_table import SideTable
from chopper_core.util.arrays import AnyArray, Float64, Int32, Int64

FIGURES: Final = (
    *("step_ns", "tokens_per_s", "samples_per_s", "tflops", "mfu_pct", "loss", "grad_norm"),
    *("learning_rate", "memory_bytes", "reserved_bytes", "capacity_bytes", "data_ns"),
)
"""The figures of a step in a log: times in ns per step, tokens and TFLOP per second and GPU,
samples per second of the whole job. Memory is the most of a GPU: allocated where the log has that,
else what it calls memory."""
UNKNOWN: Final = -1
"""In place of a rank, time or size that isn't known."""


class TrainedSteps(SideTable, frozen=True, eq=False):
    """The steps of a job by its logs, a row per step and rank, in order of attempt and step."""

    FILE = "training.arrow"

    rank: Int32
    """`UNKNOWN` where the log is of the whole job."""
    attempt: Int32
    """How often the job was started before."""
    step: Int64
    steps: Int32
    """The steps that the row is about: as many as lie between two lines, up to this step."""
    stamp_ns: Int64
    """When the line was written, on the clock of the log; `UNKNOWN` without a stamp."""
    step_ns: Float64
    """The mean time of these steps: as the trainer states it, else between stamps; NaN without."""
    tokens_per_s: Float64
    samples_per_s: Float64
    tflops: Float64
    mfu_pct: Float64
    loss: Float64
    grad_norm: Float64
    learning_rate: Float64
    memory_bytes: Float64
    reserved_bytes: Float64
    """What the framework's allocator holds at most."""
    capacity_bytes: Float64
    """The memory of the GPU."""
    data_ns: Float64


class TrainedPhases(SideTable, frozen=True, eq=False):
    """Parts of steps that logs time, such as forward; a row per row of `TrainedSteps` and part."""

    FILE = "training_phases.arrow"
    CODES = ("phase",)

    row: Int64
    """The row of `TrainedSteps`."""
    phase: Int32
    """Code of its name."""
    time_ns_each: Float64
    """Per step."""


class FailedAllocations(SideTable, frozen=True, eq=False):
    """Allocations that failed, by the framework's messages in logs or by memory snapshots.

    Sizes are `UNKNOWN` where the message lacks them.
    """

    FILE = "out_of_memory.arrow"

    rank: Int32
    attempt: Int32
    step: Int64
    """The last step that was logged before; `UNKNOWN` without one."""
    device: Int32
    """As the process numbers it."""
    asked_bytes: Int64
    capacity_bytes: Int64
    free_bytes: Int64
    """Of the GPU, for any process."""
    allocated_bytes: Int64
    unallocated_bytes: Int64
    """What the framework's allocator holds and hasn't handed out."""
    largest_bytes: Int64
    """The largest piece of that."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, int]]) -> FailedAllocations:
        """The table of rows that have all of its columns."""
        columns: dict[str, AnyArray] = {}
        for name in cls.column_names()[1:]:
            is_long = name.endswith("_bytes") or name == "step"
            columns[name] = np.array([row[name] for row in rows], np.int64 if is_long else np.int32)
        return cls((), np.zeros(len(rows), np.int32), **columns)

    def with_others(self, others: FailedAllocations) -> FailedAllocations:
        """These, by messages of logs, and those of snapshots; of one that both have the log knows
        the step, and the snapshot the largest piece."""
        own = self._rows()
        for other in others._rows():
            same = [each for each in own if _is_same(each, other)]
            for each in same:
                each["largest_bytes"] = max(each["largest_bytes"], other["largest_bytes"])
            own += [] if same else [other]
        return FailedAllocations.of(own)

    def _rows(self) -> list[dict[str, int]]:
        names = self.column_names()[1:]
        rows = zip(*(getattr(self, name).tolist() for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]


def _is_same(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether two failures are of one rank and size, which messages round."""
    size = one["asked_bytes"]
    return one["rank"] == other["rank"] and abs(size - other["asked_bytes"]) <= 0.01 * size


class LogSource(Struct, frozen=True):
    """A trainer's log, and how it was read."""

    path: str
    format: str
    clock: str
    rows: int
    ranks: int
    """How many ranks it names; 0 where it names none."""
    is_stated: bool = True
    """Whether the trainer states step times; else they are those between stamps."""
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    unused: dict[str, int] = {}
    """The number of values of each field that no figure is read from."""
