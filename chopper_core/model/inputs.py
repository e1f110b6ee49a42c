"""The inputs of a run: where it is, its GPUs, files, their clocks and the devices they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from chopper_core.model.doubts import Doubt

NO_DEVICE: Final = -1
"""The device of a GPU that only telemetry has."""
BY_HAND: Final = "hand (*)"
"""How a device was matched that the user named."""
RECONSTRUCTED: Final = "reconstructed"
"""The clock of a source begins so if its times are a schedule along dependencies, not measured."""
SCHEDULE: Final = f"{RECONSTRUCTED} along dependencies: the file gives durations, no start times"
"""That clock, for people."""
SIMULATED: Final = "simulated"
"""The same for the times of a simulator."""
PREDICTED: Final = "predicted"
"""The same for the times of a replay with something changed."""
MEASURED: Final = "measured"
"""The name of the run that a predicted one was measured as, to compare with."""
TIMES_NOTES: Final = {
    RECONSTRUCTED: "reconstructed times: a schedule along dependencies; only durations were "
    "measured, so overlap, waits and idle time are not known",
    SIMULATED: "simulated times: a simulator's log, 1 tick taken as 1 ns; nothing was measured",
    PREDICTED: "predicted times: a replay with something changed; nothing was measured",
}
"""Mark of times that were not measured → its sentence in each frame of such a run."""
ONE_CLOCK: Final = "one clock"
"""The clock of a source begins so if all ranks' times are on one clock already."""
BY_PROCESS: Final = "processes of a file, in the order of their GPUs"
"""Where ranks come from that were counted within a file: those of other files follow them."""
NO_RANK: Final = -1
"""The rank of a source that doesn't give it."""


class FoundRun(Struct, frozen=True):
    """A run of a directory of runs."""

    name: str
    """Its path below the directory."""
    path: str
    is_empty: bool = False
    """Whether it has no data, where its neighbours of such names do."""


class Gpu(Struct, frozen=True, omit_defaults=True):
    """One device of one rank."""

    index: int
    """Its number in the run: the rank, if every rank has one GPU."""
    rank: int
    device: int
    """The device as the trace numbers it (on AMD the HSA node, not the GPU's index)."""
    hardware: str
    """Name of the product, '' if the trace lacks it."""
    process: int = -1
    """The id of the process that launched its work, -1 if the trace lacks it."""
    pci: str = ""
    """Its PCI address, if a profiler's device table has it."""
    memory_bytes: int = 0
    """Its memory; 0 if no file states it."""


REPEATED_STEPS: Final = "step annotations with the number of an earlier one"
"""Among a source's findings: an iteration is all that its number annotates."""


class ClockBounds(Struct, frozen=True):
    """How far the stamps of GPUs may still be off their host's: between the two, in ns."""

    early_ns: int | None
    """The most that they can be early; None where no call that waits for the GPU shows it."""
    late_ns: int | None
    """The most that they can be late; None where no launch on an idle GPU shows it."""

    @property
    def width_ns(self) -> int | None:
        """The width of what remains; None where one side isn't bounded."""
        if self.early_ns is None or self.late_ns is None:
            return None
        return self.early_ns + self.late_ns

    def joined(self, other: ClockBounds) -> ClockBounds:
        """The wider of both."""

        def wider(one: int | None, two: int | None) -> int | None:
            return None if one is None or two is None else max(one, two)

        early = wider(self.early_ns, other.early_ns)
        return ClockBounds(early, wider(self.late_ns, other.late_ns))


class Source(Struct, frozen=True, omit_defaults=True):
    """One input file, its events and losses."""

    path: str
    size_bytes: int
    rank: int
    rank_from: str
    """Origin of the rank: `distributedInfo`, the file's or folder's name, or the order of files."""
    events: Mapping[str, int]
    unused: Mapping[str, int]
    findings: Mapping[str, int]
    """Counts of incomplete items in the file, by display name."""
    losses: tuple[str, ...]
    """One sentence per loss."""
    clock: str
    facts: Mapping[str, str]
    """Metadata of the file: versions, world size, base time."""
    host: str = ""
    """The host of the process, '' if neither the file nor its name has it."""
    notes: tuple[str, ...] = ()
    """Sentences on how the source was read that are no losses."""
    span_ns: tuple[int, int] = (0, 0)
    """First start and last end of its activities, on the run's clock."""
    iterations: tuple[int, int] | None = None
    """The first and the last one; None without labels."""
    doubts: tuple[Doubt, ...] = ()
    """What of its data is missing or contradicts itself."""
    unread: Mapping[str, Sequence[str]] = {}
    """The names of fields that nothing is read from, by the category or table of their rows."""
    gpu_clock: ClockBounds | None = None
    """What remains unknown of its GPUs' clock; None without a host."""

    @property
    def called(self) -> tuple[str, ...]:
        """Names that users may give it: file name, rank (`rank4`), host."""
        names = (PurePath(self.path).name, f"rank{self.rank}", self.host)
        return tuple(name for name in names if name)


class CounterSource(Struct, frozen=True):
    """A counter run and how well it matches one GPU of the trace."""

    gpu: int
    paths: tuple[str, ...]
    format: str
    counters: int
    dispatches: int
    matched: int
    borrowed: int
    """Activities with the counters of the same kernel in another iteration."""
    ambiguous: int
    """Activities that another, equally good alignment pairs with another dispatch."""
    unmatched: int
    """Compute kernels without counters."""
    unused_dispatches: int
    iterations: int
    """Iterations recognised in the counter run."""
    comparison: str
    """How kernel names were compared."""
    notes: tuple[str, ...]
    doubts: tuple[Doubt, ...] = ()


class SampledFile(Struct, frozen=True):
    """A file of samples, and its place on the run's clock."""

    path: str
    format: str
    clock: str
    offset_ns: int | None
    """None if it can't be aligned; then its samples play no part."""
    uncertainty_ns: int
    method: str
    """How the offset was found, or why it wasn't."""
    samples: int
    """Number of instants in the file."""
    notes: tuple[str, ...]


class TelemetrySource(SampledFile, frozen=True):
    """A telemetry file."""

    gpus: Mapping[int, int]
    late_ns: int = 0
    """How far stamps lie behind the middle of what their samples average."""
    doubts: tuple[Doubt, ...] = ()
    """What its samples contradict."""
    unused: Mapping[str, int] = {}
    """The number of values of each field that no signal is read from."""


class HostClock(Struct, frozen=True):
    """A clock that ranks of the run share."""

    name: str
    """The host, or `clock 2` if hosts are unknown."""
    ranks: tuple[int, ...]
    correction_ns: int
    """Offset to the run's clock, already applied to the run's times."""
    uncertainty_ns: int | None
    """None if unknown."""
    method: str


class RecordingSummary(Struct, frozen=True):
    """How `chopper record` made the run, or the part of it on one node."""

    facts: Mapping[str, str]
    """Command, versions, nodes …, for people."""
    problems: tuple[str, ...]
    """Sentences on what the recording lacks."""
    notes: tuple[str, ...] = ()
    """Sentences on what could not be sampled."""
    hosts: tuple[str, ...] = ()
    job: str = ""
    """The scheduler's job; empty without one."""
    slower_pct: float | None = None
    """How much longer steps take in a window than outside; None where that isn't known."""


class Identity(Struct, frozen=True):
    """A device of a source, and its GPU in the run."""

    source: str
    """Path, or paths separated by commas."""
    format: str
    names: tuple[str, ...]
    """Names that users may give it."""
    device: str
    """The source's name of it, for display."""
    gpu: int | None
    """None if it is not one of the run's."""
    by: str
    """How it was matched: node, number, order, or by hand."""
