"""What is generated: the size of the run, the model, and the planted phenomena."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from generator.kernels import Kernel
    from generator.records import Group, Label

FSDP1 = "FSDP1"
FSDP2 = "FSDP2"

VERSION = 2
WORLD_NAME = "0"
FIRST_ITERATION = 10

# Llama-3-8B
HIDDEN = 4096
FFN = 14336
HEADS = 32
KV_HEADS = 8
HEAD_DIM = 128
VOCAB = 128256
BATCH = 2
SEQUENCE = 4096
TOKENS = BATCH * SEQUENCE
KV_WIDTH = KV_HEADS * HEAD_DIM
LAYER_PARAMS = 2 * HIDDEN * (HIDDEN + KV_WIDTH) + 3 * HIDDEN * FFN + 2 * HIDDEN
ROOT_PARAMS = 2 * VOCAB * HIDDEN + HIDDEN

# MI300X
XCDS = 8
CUS = 304
SIMDS_PER_CU = 4
SHADER_ENGINES = 32
FLOPS_PER_CU_CYCLE = 2048
PEAK_MHZ = 2100
PEAK_FLOPS_PER_NS = CUS * FLOPS_PER_CU_CYCLE * PEAK_MHZ / 1e3
HBM_BYTES_PER_S = 3.5e12
BUS_BYTES_PER_S = 320e9
NOMINAL_MHZ = 1684
HOT_MHZ = 1580

# What a collective on the same GPU costs the compute kernels beside it
TRANSFER_SLOWDOWN = 1.08
SPIN_SLOWDOWN = 1.01
SENSITIVE_OPERATION = "attn_op"
SENSITIVE_SLOWDOWN = 1.35

SLOW_LAYER_OPERATION = "mlp_dp"
SLOW_LAYER_FACTOR = 1.25
STALL_NS = 700_000
# How far a kernel's cycles differ from those at its place in other iterations, at most
CHANCE = 0.001
UNSTEADY_CHANCE = 0.02
# FSDP1: what memory that is freed when the GPU has got there costs
LOWERED_CLOCK = 0.955
ALLOCATOR_RETRIES = 4
HIP_FREE_NS = 260_000
HIP_MALLOC_NS = 1_900_000
PLANTED_UNLINKED = 10
COLLECTIVES_WITHOUT_ARGS = 2

# What the clocks of the other sources show at the simulation's zero
MONOTONIC_ORIGIN_NS = 1_641_209_187_654_321
BOOTTIME_ORIGIN_NS = MONOTONIC_ORIGIN_NS + 41_256_000_000
AMD_SMI_AHEAD_NS = 370_000_000


@dataclass(frozen=True, slots=True)
class Config:
    """The size and the options of one generated run."""

    ranks: int = 8
    iterations: int = 2
    layers: int = 32
    seed: int = 20250
    annotations: bool = True
    recompute: bool = False
    counters: bool = True
    telemetry: bool = True
    strategy: str = FSDP2
    """Also says what is planted, besides the hot GPU and the operation that suffers from overlap:
    in an FSDP2 run a late host and a slow layer, in an FSDP1 run memory without determinism."""
    clean: bool = False
    """Plants nothing."""
    lost_share: float = 0.0
    """The share of each rank's activities whose launch the profiler loses, in stretches."""
    lost_stretches: int = 6
    lost_dispatches: float = 0.0
    """The share of its dispatches that each counter pass loses besides."""
    end_scatter_ns: int = 0
    """Within this the ranks leave a collective."""

    def __post_init__(self) -> None:
        if min(self.ranks, self.iterations, self.layers) < 1:
            raise ValueError("ranks, iterations and layers must be at least 1")
        shares = (self.lost_share, self.lost_dispatches)
        if (
            not 0 <= min(shares) <= max(shares) <= 1
            or self.lost_stretches < 1
            or self.end_scatter_ns < 0
        ):
            raise ValueError("a share is from 0 to 1, and there is a stretch or more")
        if self.strategy not in (FSDP1, FSDP2):
            raise ValueError(f"the strategy is {FSDP1} or {FSDP2}")

    @property
    def last_iteration(self) -> int:
        """The number of the last iteration; the first one is cut and comes on top."""
        return FIRST_ITERATION + self.iterations

    @property
    def complete_iterations(self) -> range:
        """The iterations that the profiler saw from start to end."""
        return range(FIRST_ITERATION + 1, self.last_iteration + 1)

    @property
    def counter_ranks(self) -> tuple[int, ...]:
        """The ranks whose GPUs were profiled with hardware counters."""
        return tuple(sorted({0, self.slow_rank}))

    @property
    def has_cut(self) -> bool:
        """Whether the profiler starts amid the backward of the first iteration, else after it."""
        return self.strategy == FSDP2

    @property
    def shown_iterations(self) -> range:
        """The iterations that the profiler saw at least a part of."""
        return range(FIRST_ITERATION + (not self.has_cut), self.last_iteration + 1)

    @property
    def cut_layer(self) -> int:
        """The layer before whose backward the profiler starts."""
        return self.layers // 2

    @property
    def has_hot_gpu(self) -> bool:
        """Whether one GPU is hot and slow."""
        return not self.clean

    @property
    def has_incidents(self) -> bool:
        """Whether one host is late for some layers, and one layer is slow."""
        return self.strategy == FSDP2 and not self.clean

    @property
    def is_unsteady(self) -> bool:
        """Whether memory isn't deterministic: lower clocks, and chance in all that is measured."""
        return self.strategy == FSDP1 and not self.clean

    @property
    def slow_rank(self) -> int:
        """The rank of the hot GPU."""
        return min(5, self.ranks - 1)

    @property
    def slow_layer(self) -> int:
        """The layer whose down projection is slow on every GPU."""
        return min(21, self.layers - 1)

    @property
    def host_bound_rank(self) -> int:
        """The rank whose host is late in `host_bound_layers`."""
        return min(2, self.ranks - 1)

    @property
    def host_bound_layers(self) -> range:
        """The forward layers of the last iteration in which that host is late."""
        first = min(10, self.layers - 1)
        return range(first, min(first + 3, self.layers))

    def is_host_bound(self, rank: int, iteration: int, layer: int) -> bool:
        """Says whether this rank's host is late in this forward layer."""
        return (
            self.has_incidents
            and rank == self.host_bound_rank
            and iteration == self.last_iteration
            and layer in self.host_bound_layers
        )

    @property
    def chance(self) -> float:
        """How far a kernel's cycles differ from iteration to iteration, at most."""
        return UNSTEADY_CHANCE if self.is_unsteady else CHANCE

    @property
    def lost_launches(self) -> int:
        """How many launch records are lost on each rank."""
        return PLANTED_UNLINKED

    def kernel_factor(self, rank: int, label: Label, kernel: Kernel) -> float:
        """How many times its usual cycles a kernel takes."""
        slow = (
            self.has_incidents
            and label.operation == SLOW_LAYER_OPERATION
            and label.layer == self.slow_layer
        )
        return SLOW_LAYER_FACTOR if slow else 1.0

    def host_factor(self, rank: int) -> float:
        """How many times its usual time the host takes for everything."""
        return 1.0

    def link_factor(self, group: Group) -> float:
        """How many times its usual time a collective of the group transfers."""
        return 1.0

    def clock_factor(self, rank: int, iteration: int) -> float:
        """The part of its usual clock at which a GPU runs."""
        return 1.0

    def is_sensitive(self, label: Label) -> bool:
        """Whether a kernel suffers from communication beside it."""
        forward = label.phase == "forward"
        return forward and label.operation == SENSITIVE_OPERATION and not self.clean

    @property
    def sensitive_slowdown(self) -> float:
        """How many times its usual time such a kernel takes beside communication."""
        return SENSITIVE_SLOWDOWN

    def mem_mhz(self, rank: int, mhz: int) -> int:
        """The memory clock of a GPU whose usual one is `mhz`."""
        return mhz

    def is_throttled(self, rank: int) -> bool:
        """Whether the GPU's driver reports a thermal limit."""
        return self.has_hot_gpu and rank == self.slow_rank

    def retries(self, rank: int, iteration: int) -> frozenset[int]:
        """The forward layers in which the rank's allocator gives memory back and asks anew."""
        if not self.is_unsteady:
            return frozenset()
        random = Random(f"{self.seed}:retries:{iteration}")
        drawn = [
            (random.randrange(self.ranks), random.randrange(self.layers))
            for _ in range(ALLOCATOR_RETRIES)
        ]
        return frozenset(layer for owner, layer in drawn if owner == rank)
