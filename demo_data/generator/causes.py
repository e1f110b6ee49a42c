"""Small runs with one planted cause of lost time: the style of the run, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from random import Random

from generator import constants as c
from generator.config import Config
from generator.kernels import Kernel
from generator.model import Sizes
from generator.records import Group, Label

MODULE = "module"
ANNOTATED = "annotated"
FSDP_NAMES = "fsdp"
FLAT = "flat"
LOOKS = (MODULE, ANNOTATED, FSDP_NAMES, FLAT)
SMALL_VOCAB = 8192
USUAL_LINK = {"default_pg": 0.4, "mesh_dp": 0.4, "mesh_tp": 0.2, "mesh_pp": 0.4}
"""By what a group is for: so short that little communication can't be hidden."""
USUAL_CLOCK = 1.0
"""That of the demonstration runs, a fifth below the nominal one, as under full load."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that goes wrong: of which kind, where, when, and how much."""

    kind: str
    amount: float
    """ns each time, or a factor, as the kind says."""
    gpus: tuple[int, ...] = ()
    """The GPUs that it is on; all where empty."""
    iterations: tuple[int, ...] = ()
    layer: int | None = None
    operation: str | None = None
    phase: str | None = None

    def is_on(self, rank: int) -> bool:
        """Whether it is on this rank."""
        return not self.gpus or rank in self.gpus

    def is_at(self, label: Label) -> bool:
        """Whether it is in an iteration, layer, operation and phase."""
        return (
            label.iteration in self.iterations
            and self.layer in (None, label.layer)
            and self.operation in (None, label.operation)
            and self.phase in (None, label.phase)
        )


@dataclass(frozen=True, slots=True)
class Style(Config):
    """A small clean run, or one with causes."""

    looks: str = ANNOTATED
    shards: bool = True
    """Whether parameters are sharded by FSDP2; else gradients are reduced layer by layer."""
    microsteps: int = 1
    tensor: int = 1
    stages: int = 1
    rotates: bool = False
    """Whether queries and keys are rotated, and keys and values repeated: many small kernels."""
    link_times: float = 1.0
    """How many times as long as in other small runs collectives transfer."""
    noise: float = c.CHANCE
    lost_share: float = 0.0
    """The share of launches of which the record is lost."""
    late_ns: int = 0
    """By how much the stamps of a rank's GPU are late at most, against its host's."""
    causes: tuple[Cause, ...] = ()

    def __post_init__(self) -> None:
        # super() needs the class before slots were added.
        Config.__post_init__(self)
        if not self.clean or self.looks not in LOOKS:
            raise ValueError(f"a style is clean but for its causes, and looks like {LOOKS}")
        if self.ranks % (self.tensor * self.stages) or self.layers % self.stages:
            raise ValueError("ranks and layers must be multiples of the parallel sizes")

    @property
    def is_annotated(self) -> bool:
        """Whether iterations, layers and operations are annotated."""
        return self.looks == ANNOTATED

    @property
    def has_modules(self) -> bool:
        """Whether the frames of modules are recorded."""
        return self.looks == MODULE

    @property
    def has_cut(self) -> bool:
        """No iteration is cut."""
        return False

    @property
    def chance(self) -> float:
        """How far a kernel's cycles differ from iteration to iteration, at most."""
        return self.noise

    @property
    def lost_launches(self) -> int:
        """How many launch records are lost on each rank."""
        per_iteration = 60 * self.layers * self.microsteps // self.stages
        return round(self.lost_share * per_iteration * self.iterations)

    @property
    def gpu_late_ns(self) -> list[int]:
        """By how much each rank's are."""
        random = Random(f"{self.seed}:late")
        return [random.randint(0, self.late_ns) for _ in range(self.ranks)]

    # Parallelism: rank = (stage * data + data place) * tensor + tensor place

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return rank // (self.ranks // self.stages)

    def layers_of(self, stage: int) -> range:
        """The layers of a stage."""
        each = self.layers // self.stages
        return range(stage * each, (stage + 1) * each)

    def data_group(self, rank: int) -> Group:
        """The ranks with the same parameters."""
        if self.tensor == self.stages == 1:
            return Group(c.WORLD_NAME, tuple(range(self.ranks)))
        each = self.ranks // self.stages
        first = self.stage_of(rank) * each + rank % self.tensor
        ranks = tuple(range(first, (self.stage_of(rank) + 1) * each, self.tensor))
        return Group(f"1{first}", ranks, "mesh_dp")

    def tensor_group(self, rank: int) -> Group:
        """The ranks that share a layer's products."""
        first = rank - rank % self.tensor
        return Group(f"2{first}", tuple(range(first, first + self.tensor)), "mesh_tp")

    def stage_group(self, rank: int, step: int, *, forwards: bool) -> Group:
        """A rank and the one in its place at the stage before or behind."""
        first = min(rank, rank + step * self.ranks // self.stages)
        pair = (first, first + self.ranks // self.stages)
        return Group(f"{3 if forwards else 4}{first}", pair, "mesh_pp")

    def sizes_of(self, rank: int, iteration: int) -> Sizes:
        """The model's sizes on a rank in an iteration."""
        sizes = Sizes(
            batch=1,
            sequence=2 * c.SEQUENCE // self.microsteps,
            heads=c.HEADS // self.tensor,
            kv_heads=c.KV_HEADS // self.tensor,
            ffn=c.FFN // self.tensor,
            vocab=SMALL_VOCAB,
        )
        if head := self.cause_of("head", rank):
            # A larger vocabulary, which only the last stage has.
            sizes = replace(sizes, vocab=round(SMALL_VOCAB * head.amount / 256) * 256)
        more = self.cause_of("imbalance", rank, iteration)
        if iteration % self.ranks == rank:
            more = more or self.cause_of("rotation", rank, iteration)
        if more is not None:
            longer = round(sizes.sequence * (1 + more.amount) / 64) * 64
            sizes = replace(sizes, sequence=longer)
        return sizes

    def expert_sizes_of(self, rank: int, layer: int, sizes: Sizes) -> Sizes:
        """The sizes of a layer's feed-forward part: those of its experts' tokens."""
        cause = self.cause_of("experts", rank)
        if cause is None or cause.layer is None:
            return sizes
        if layer not in (cause.layer, cause.layer + 1):
            return sizes
        return replace(sizes, sequence=round(sizes.sequence * (1 + cause.amount) / 64) * 64)

    # What the causes do

    def cause_of(self, kind: str, rank: int, iteration: int | None = None) -> Cause | None:
        """The cause of a kind on a rank, in an iteration if one is given."""
        for each in self.causes:
            is_then = iteration is None or iteration in each.iterations
            if each.kind == kind and each.is_on(rank) and is_then:
                return each
        return None

    def kernel_factor(self, rank: int, label: Label, kernel: Kernel) -> float:
        """How many times its usual cycles a kernel takes."""
        if kernel.category == "gpu_memcpy":
            return 1.0
        bound = not kernel.flops and kernel.base_ns > 0
        slows = {
            "kernels": True,
            "memory": bound,
            "later_memory": bound,
            "optimizer_kernels": label.phase == "optimizer",
        }
        return prod(
            each.amount
            for each in self.causes
            if slows.get(each.kind, False) and each.is_on(rank) and each.is_at(label)
        )

    def host_factor(self, rank: int) -> float:
        """How many times its usual time the host takes for everything."""
        cause = self.cause_of("host", rank)
        return cause.amount if cause else 1.0

    def link_factor(self, group: Group, label: Label, kind: str) -> float:
        """How many times its usual time a collective of the group transfers."""
        usual = self.link_times * USUAL_LINK[group.description]
        return usual * prod(
            each.amount
            for each in self.causes
            if each.kind == "link"
            and label.iteration in each.iterations
            and (not each.gpus or set(group.ranks) <= set(each.gpus))
            and each.operation in (None, kind)
        )

    def clock_factor(self, rank: int, iteration: int) -> float:
        """The part of its usual clock at which a GPU runs."""
        found = USUAL_CLOCK
        part = (iteration - c.FIRST_ITERATION) / self.iterations
        for each in self.causes:
            if each.is_on(rank) and iteration in each.iterations:
                found *= each.amount if each.kind in ("clock", "throttled") else 1.0
                found *= 1 - each.amount * part if each.kind == "sinking" else 1.0
        return found

    def is_sensitive(self, label: Label) -> bool:
        """Whether a kernel suffers from communication beside it."""
        cause = self.cause_of("contention", 0)
        return cause is not None and label.operation == cause.operation

    @property
    def sensitive_slowdown(self) -> float:
        """How many times its usual time such a kernel takes beside communication."""
        cause = self.cause_of("contention", 0)
        return cause.amount if cause else 1.0

    def mem_mhz(self, rank: int, mhz: int) -> int:
        """The memory clock of a GPU whose usual one is `mhz`."""
        cause = self.cause_of("memory", rank)
        return round(mhz / cause.amount) if cause else mhz

    def is_throttled(self, rank: int) -> bool:
        """Whether the GPU's driver reports a thermal limit."""
        return self.cause_of("throttled", rank) is not None

    @property
    def throttled_from(self) -> int:
        """The first iteration in which it does."""
        known = [each.iterations[0] for each in self.causes if each.kind == "throttled"]
        return known[0] if known else c.FIRST_ITERATION

    def prefetches(self, layer: int) -> bool:
        """Whether a layer's parameters are gathered ahead."""
        cause = self.cause_of("unhidden", 0)
        return cause is None or layer >= cause.amount
