"""The size of a generated run, and what is planted in it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from generator.constants import (
    ALLOCATOR_RETRIES,
    CHANCE,
    FIRST_ITERATION,
    FSDP1,
    FSDP2,
    PLANTED_UNLINKED,
    SENSITIVE_OPERATION,
    SENSITIVE_SLOWDOWN,
    SLOW_LAYER_FACTOR,
    SLOW_LAYER_OPERATION,
    UNSTEADY_CHANCE,
)
from generator.kernels import Kernel
from generator.records import Group, Label


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
    memory: bool = False
    """Records what the allocator does, and plants logits that the loop keeps."""
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
    def gpu_late_ns(self) -> list[int]:
        """By how much the stamps of each rank's GPU are late against its host's."""
        return [0] * self.ranks

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

    def link_factor(self, group: Group, label: Label, kind: str) -> float:
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

    @property
    def throttled_from(self) -> int:
        """The first iteration in which it does."""
        return FIRST_ITERATION

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
