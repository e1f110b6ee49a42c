"""What is generated: the size of the run, the model, and the planted phenomena."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1
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
PEAK_FLOPS = 1307e12
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
PLANTED_UNLINKED = 10
COLLECTIVES_WITHOUT_ARGS = 2


@dataclass(frozen=True, slots=True)
class Config:
    """The size and the options of one generated run."""

    ranks: int = 8
    iterations: int = 2
    layers: int = 32
    seed: int = 20250
    annotations: bool = True
    recompute: bool = False

    def __post_init__(self) -> None:
        if min(self.ranks, self.iterations, self.layers) < 1:
            raise ValueError("ranks, iterations and layers must be at least 1")

    @property
    def last_iteration(self) -> int:
        """The number of the last iteration; the first one is cut and comes on top."""
        return FIRST_ITERATION + self.iterations

    @property
    def cut_layer(self) -> int:
        """The layer before whose backward the profiler starts."""
        return self.layers // 2

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
            rank == self.host_bound_rank
            and iteration == self.last_iteration
            and layer in self.host_bound_layers
        )
