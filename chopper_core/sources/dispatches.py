"""The tables that every reader of hardware counters returns: dispatches with their counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chopper_core.model.hardware import Agent, CounterInfo
from chopper_core.sources.trace import Activities, HostRanges, Launches, Syncs, blank
from chopper_core.util.arrays import Float64, Int32, Int64

if TYPE_CHECKING:
    from chopper_core.tables.losses import Losses


CLOCK_BOOTTIME: Final = "boottime"
"""ns since boot, the clock of rocprofiler."""


class Dispatches(Struct, frozen=True):
    """One row per kernel dispatch, with all counters measured for it.

    Rows are in the order of dispatch of each GPU. `grid` is in work-items, `grid` and `workgroup`
    are n x 3 with 0 where unknown; `start_ns` and `end_ns` are -1 where the file has no times.
    """

    name: Int32
    """Code of the kernel's name in `DispatchRun.names`, without `.kd` and clone suffixes."""
    gpu: Int32
    """Number of the agent in `DispatchRun.agents`."""
    process: Int64
    part: Int32
    """Which process of the program it is of, counted from 0: pids repeat in containers."""
    queue: Int64
    dispatch_id: Int64
    correlation: Int64
    start_ns: Int64
    end_ns: Int64
    grid: Int32
    workgroup: Int32
    registers: Int32
    """Vector registers of a work-item, those that accumulate too; -1 where unknown."""
    lds: Int32
    """Bytes of local data share (LDS) of a workgroup; -1 where unknown."""
    region: Int32
    """Code in `DispatchRun.names` of the innermost roctx range around the dispatch, or -1."""
    counters: Mapping[str, Float64]
    """One column per counter; NaN where no pass measured it."""

    def __len__(self) -> int:
        return len(self.name)


class SampledCounter(Struct, frozen=True):
    """The increments of one counter of one GPU between samples, summed over its instances."""

    name: str
    gpu: int
    """Number of the agent in `DispatchRun.agents`."""
    begin_ns: Int64
    """Time of the sample before each, on the clock of the run."""
    time_ns: Int64
    """Time of each sample, ascending."""
    counted: Float64
    """Increment since the sample before; NaN where an instance was reset."""


class DispatchRun(Struct, frozen=True):
    """A profiled program with its counter passes joined, or a kernel trace."""

    paths: Sequence[Path]
    format: str
    """For people: `rocprofv3 CSV`, `rocpd`, `rocprof-compute CSV` …"""
    names: Sequence[str]
    agents: Sequence[Agent]
    dispatches: Dispatches
    counter_info: Mapping[str, CounterInfo]
    passes: int
    join_notes: Sequence[str]
    """One sentence per dispatch or value that joining passes left out or found ambiguous."""
    losses: Losses
    host: str = ""
    """The host of its processes, where others took part in the run or the file names it."""
    folder: Path | None = None
    """Above those of passes, hosts and ranks."""
    sampled: Sequence[SampledCounter] = ()
    """Counters of whole GPUs over time, of the execution that `dispatches` has the times of."""
    syncs: Syncs = blank(Syncs)
    """Waits between the queues that it states, by the times of the dispatches next to them."""
    calls: Launches = blank(Launches)
    """Calls of the runtime on the host, by the correlation ids of dispatches and copies."""
    ranges: HostRanges = blank(HostRanges)
    """The ranges of roctx on the host."""
    threads: Sequence[tuple[int, int, int]] = ()
    """Process, thread and part of a thread code of `calls` and `ranges`."""
    copies: Activities = blank(Activities)
    """Copies of memory; devices are numbers of agents, streams are queues, ranks are parts."""
