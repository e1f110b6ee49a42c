"""The rows of a simulated run: host ranges, runtime calls, GPU activities, collectives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from generator.kernels import Kernel
from generator.timeline import Steps

COMPUTE_STREAM = 0
COPY_IN_STREAM = 10
ALL_GATHER_STREAM = 11
REDUCE_SCATTER_STREAM = 12
ALL_REDUCE_STREAM = 13
POST_BACKWARD_STREAM = 14


@dataclass(frozen=True, slots=True)
class Label:
    """Where in the training step a GPU activity belongs."""

    iteration: int
    phase: str = "other"
    layer: int | None = None
    operation: str | None = None
    recompute: bool = False

    def at(self, operation: str, layer: int | None) -> Label:
        """The same place with another operation and layer."""
        return replace(self, operation=operation, layer=layer)


@dataclass(frozen=True, slots=True)
class Place:
    """A layer of an iteration."""

    iteration: int
    layer: int


@dataclass(slots=True, eq=False)
class HostRange:
    """A cpu_op or user_annotation on a host thread."""

    category: str
    name: str
    thread: int
    start_ns: int
    external_id: int
    end_ns: int = -1
    sequence: int | None = None
    forward_thread: int = 0
    args: str = ""
    flow: int | None = None
    flow_ends: bool = False


@dataclass(slots=True, eq=False)
class RuntimeCall:
    """A HIP runtime call."""

    name: str
    thread: int
    start_ns: int
    correlation: int
    external_id: int | None
    end_ns: int = -1
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator: its name and its ranks, whose n-th collectives in it are the same one."""

    name: str
    ranks: tuple[int, ...]
    description: str = "default_pg"


@dataclass(slots=True, eq=False)
class Collective:
    """One collective of a group, which ends everywhere `transfer_ns` after its last start."""

    index: int
    kind: str
    label: Label
    elements_in: int
    elements_out: int
    dtype: str
    transfer_ns: int
    group: Group
    starts_ns: dict[int, int] = field(default_factory=dict)
    end_ns: int = -1


@dataclass(slots=True, eq=False)
class Activity:
    """A kernel, memcpy or memset on one GPU; undisturbed it takes `cycles` of the gfx clock."""

    kernel: Kernel
    stream: int
    label: Label
    call: RuntimeCall
    cycles: float
    gap_ns: int
    sensitive: bool = False
    after: tuple[Activity, ...] = ()
    collective: Collective | None = None
    start_ns: int = -1
    end_ns: int = -1
    has_launch: bool = True
    has_collective_args: bool = True

    @property
    def is_comm(self) -> bool:
        """Whether this is a collective's kernel."""
        return self.collective is not None

    @property
    def is_compute(self) -> bool:
        """Whether this counts as compute: any kernel or memset but a collective's."""
        return self.collective is None and self.kernel.category != "gpu_memcpy"


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation, or with negative bytes a release, and what is allocated and held after it."""

    time_ns: int
    thread: int
    address: int
    size_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """All that one GPU did in the run, in the order of the launches, and its clock over time."""

    rank: int
    base_mhz: int
    clock: Steps
    activities: tuple[Activity, ...]
    retries: dict[int, Place]
    """The activity launched after its allocator asked anew for memory → in which layer."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What the profiler recorded on one rank, from `start_ns` to `end_ns`."""

    rank: int
    start_ns: int
    end_ns: int
    main_thread: int
    autograd_thread: int
    ranges: tuple[HostRange, ...]
    calls: tuple[RuntimeCall, ...]
    activities: tuple[Activity, ...]
    memory: tuple[MemoryEvent, ...] = ()
