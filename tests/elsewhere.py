"""A second family of runs with planted causes: other kernels, streams and notes than the demo's.

NVIDIA's names, gradients reduced in buckets next to the backward pass, pairs of GPUs that share
activations. The true cost of a cause is how much longer the same run takes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.run import Run
from tests.align.traces import ADAM, FLASH, RCCL
from tests.training import BF16, WIDTH, Rank, opened

NORM: Final = "void vectorized_layer_norm_kernel<c10::BFloat16, float, false>"
FIRST: Final = 40
"""The number of the first step."""
EVERYWHERE: Final = -1


class Plan(Struct, frozen=True):
    """What runs, and what is wrong with it."""

    seed: int
    gpus: int
    layers: int
    steps: int
    tokens: int
    noise: float
    kind: str = ""
    amount: float = 0.0
    """A share that work takes longer or is more, or the µs of a pause."""
    gpu: int = EVERYWHERE
    layer: int = EVERYWHERE
    operation: str = ""
    phase: str = ""
    when: tuple[int, ...] = ()
    """Steps; empty: all."""

    def hits(self, rank: int, step: int, layer: int, phase: str, operation: str) -> bool:
        return (
            self.gpu in (EVERYWHERE, rank)
            and (not self.when or step in self.when)
            and self.layer in (EVERYWHERE, layer)
            and self.phase in ("", phase)
            and self.operation in ("", operation)
        )


class Training(Struct):
    """The ranks of a plan while they run."""

    plan: Plan
    ranks: list[Rank]
    random: np.random.Generator
    comm: list[int]
    """When the stream of communication of each rank is free, in µs."""
    step: int = FIRST
    phase: str = ""

    def run(self) -> None:
        for step in range(FIRST, FIRST + self.plan.steps):
            self.step = step
            begins = [each.now for each in self.ranks]
            self._data()
            for phase, walk in (("forward", self._forward), ("backward", self._backward)):
                self.phase = phase
                notes = [each.now for each in self.ranks]
                walk()
                self._note(phase, notes)
            self._optimizer()
            for each in self.ranks:
                each.read_back()
            self._pauses("save", "torch/serialization.py(943): save")
            for each, begin in zip(self.ranks, begins, strict=True):
                each.note(f"ProfilerStep#{self.step}", begin, each.now)

    def _note(self, name: str, begins: Sequence[int]) -> None:
        for each, begin in zip(self.ranks, begins, strict=True):
            each.note(name, begin, each.now)

    def _hit(self, rank: int, layer: int = EVERYWHERE, operation: str = "") -> bool:
        return self.plan.hits(rank, self.step, layer, self.phase, operation)

    def _pauses(self, kind: str, name: str) -> None:
        for each in self.ranks if self.plan.kind == kind else ():
            if self._hit(each.rank):
                each.pause(round(self.plan.amount), name)

    def _data(self) -> None:
        self.phase = ""
        for each in self.ranks:
            is_late = self.plan.kind == "data" and self._hit(each.rank)
            begin = each.now
            each.now += 40 + (round(self.plan.amount) if is_late else 0)
            each.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter", begin, each.now)
        self._pauses("gc", "Garbage collection")
        for each in self.ranks:
            each.embed(self.plan.tokens)

    def _kernel(self, each: Rank, layer: int, operation: str, us: float, name: str) -> None:
        plan, tokens = self.plan, self.plan.tokens
        if plan.kind == "tokens" and self._hit(each.rank):
            tokens = round(tokens * (1 + plan.amount))
        us *= tokens / 1000 * self.random.normal(1.0, plan.noise)
        if plan.kind == "kernels" and self._hit(each.rank, layer, operation):
            us *= 1 + plan.amount
        with each.note_around(operation):
            if name == FLASH:
                operator, shape = "aten::_flash_attention_forward", [[1, 8, tokens, 128]] * 3
            elif name == NORM:
                operator, shape = "aten::native_layer_norm", [[tokens, WIDTH]]
            else:
                operator, shape = "aten::mm", [[tokens, WIDTH], [WIDTH, _WIDTHS[operation]]]
            each.kernel(name, us, operator, **{"Input Dims": shape, **BF16})

    def _block(self, layer: int, times: float) -> None:
        notes = [each.now for each in self.ranks]
        for operation, us, name in _OPERATIONS:
            for each in self.ranks:
                self._kernel(each, layer, operation, us * times, name)
                if self.plan.kind == "reads" and operation == "ffn_in" and times == 1:
                    each.read_back()
                    each.pause(round(self.plan.amount))
        if self.plan.kind == "extra" and layer == self.plan.layer and times == 1:
            for each in self.ranks:
                with each.note_around("debug_check"):
                    each.kernel("void isfinite_kernel", self.plan.amount, "aten::isfinite")
        for first in range(0, len(self.ranks), 2):
            self._reduce(self.ranks[first : first + 2], 25, "shared", waits=True)
        self._note(f"Layer_{layer}", notes)

    def _forward(self) -> None:
        for layer in range(self.plan.layers):
            self._block(layer, 1.0)

    def _backward(self) -> None:
        for layer in reversed(range(self.plan.layers)):
            self._block(layer, 2.0)
            self._reduce(self.ranks, 300, "bucket", waits=False)

    def _optimizer(self) -> None:
        self.phase = "optimizer"
        for each in self.ranks:
            each.free = max(each.free, self.comm[each.rank])
            us = 400 * self.random.normal(1.0, self.plan.noise)
            if self.plan.kind == "kernels" and self._hit(each.rank, EVERYWHERE, "adamw"):
                us *= 1 + self.plan.amount
            with each.note_around("optimizer"):
                each.kernel(ADAM, us, "aten::_fused_adamw_")

    def _reduce(self, ranks: Sequence[Rank], us: float, name: str, *, waits: bool) -> None:
        """A collective that the ranks' compute waits for, or that runs next to it."""
        members = [each.rank for each in ranks]
        starts = [max(each.now + 12, each.free, self.comm[each.rank]) for each in ranks]
        us *= self.random.normal(1.0, self.plan.noise)
        is_slow = self.plan.kind in ("network", "link") and (
            self.plan.gpu == EVERYWHERE or (self.plan.gpu in members and waits)
        )
        if is_slow and (not self.plan.when or self.step in self.plan.when):
            us *= 1 + self.plan.amount
        end = max(starts) + round(us)
        elements = 1 << (20 if waits else 24)
        for each, start in zip(ranks, starts, strict=True):
            each.op("nccl:all_reduce", each.now, each.now + 6)
            each.launch(
                RCCL, each.now + 2, start=start, duration=end - start, stream=33,
                **{"Collective name": "allreduce", "In msg nelems": elements,
                   "Out msg nelems": elements, "dtype": "BFloat16", "Group size": len(members),
                   "Process Group Name": f"{name}{min(members)}",
                   "Process Group Ranks": str(members)},
            )  # fmt: skip
            each.now += 6
            self.comm[each.rank] = end
            each.free = end if waits else each.free


_OPERATIONS: Final = (
    ("norm_in", 40.0, NORM),
    ("qkv", 320.0, "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"),
    ("core", 180.0, FLASH),
    ("ffn_in", 420.0, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"),
    ("ffn_out", 430.0, "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_nn"),
)
_WIDTHS: Final = {"qkv": 3 * WIDTH, "ffn_in": 4 * WIDTH, "ffn_out": 5 * WIDTH}


def simulated(plan: Plan) -> Training:
    ranks = [Rank(number, plan.gpus) for number in range(plan.gpus)]
    training = Training(plan, ranks, np.random.default_rng(plan.seed), [0] * plan.gpus)
    training.run()
    return training


def step_us(training: Training) -> float:
    return max(each.now for each in training.ranks) / training.plan.steps


class Case(Struct, frozen=True):
    """A cause, how it is planted so that it costs about a share of the step, and its finding."""

    name: str
    plant: Callable[[Plan, float, float], Plan]
    """From a clean plan, its step in µs and the share."""
    says: tuple[str, ...]
    """Regular expressions that the first finding matches."""


def clean(seed: int) -> Plan:
    random = np.random.default_rng(seed)
    gpus, layers, steps = 2 * int(random.integers(2, 4)), int(random.integers(4, 8)), 6
    return Plan(seed, gpus, layers, steps, int(random.choice([800, 1000, 1400])), 0.002)


def _one(plan: Plan) -> tuple[int, ...]:
    return (FIRST + 2 + plan.seed % (plan.steps - 3),)


def _gpu(plan: Plan) -> int:
    return (plan.seed * 5 + 2) % plan.gpus


def _work_us(plan: Plan, *names: str) -> float:
    """The work of a layer's operations in a step."""
    own = sum(us for name, us, _ in _OPERATIONS if not names or name in names)
    return 3 * own * plan.tokens / 1000


def _kernels(plan: Plan, us: float, of_us: float, **where: object) -> Plan:
    return replace(plan, kind="kernels", amount=us / of_us, **where)


def _slow(p: Plan, s: float, x: float) -> Plan:
    return _kernels(p, s * x, _work_us(p) * p.layers, gpu=_gpu(p))


def _slow_once(p: Plan, s: float, x: float) -> Plan:
    return _kernels(p, s * x * p.steps, _work_us(p) * p.layers, gpu=_gpu(p), when=_one(p))


def _slow_backward(p: Plan, s: float, x: float) -> Plan:
    whole = _work_us(p) * p.layers * 2 / 3
    return _kernels(p, s * x, whole, gpu=_gpu(p), phase="backward")


def _operation(p: Plan, s: float, x: float) -> Plan:
    whole = _work_us(p, "ffn_in") * p.layers
    return _kernels(p, s * x, whole, gpu=_gpu(p), operation="ffn_in")


def _layer(p: Plan, s: float, x: float) -> Plan:
    return _kernels(p, s * x, _work_us(p), layer=1 + p.seed % (p.layers - 2))


def _in_layer(p: Plan, s: float, x: float) -> Plan:
    place = {"layer": 1 + p.seed % (p.layers - 2), "operation": "core"}
    return _kernels(p, s * x, _work_us(p, "core"), **place)


def _optimizer(p: Plan, s: float, x: float) -> Plan:
    return _kernels(p, s * x, 400.0, gpu=_gpu(p), operation="adamw", phase="optimizer")


def _pause(kind: str, *, once: bool, one: bool) -> Callable[[Plan, float, float], Plan]:
    def plant(p: Plan, s: float, x: float) -> Plan:
        place = {"gpu": _gpu(p)} if one else {}
        when = {"when": _one(p)} if once else {}
        return replace(p, kind=kind, amount=s * x * (p.steps if once else 1), **place, **when)

    return plant


def _tokens(p: Plan, s: float, x: float) -> Plan:
    return replace(p, kind="tokens", amount=s * x / (_work_us(p) * p.layers), gpu=_gpu(p))


def _tokens_once(p: Plan, s: float, x: float) -> Plan:
    amount = s * x * p.steps / (_work_us(p) * p.layers)
    return replace(p, kind="tokens", amount=amount, when=_one(p))


def _network(p: Plan, s: float, x: float) -> Plan:
    return replace(p, kind="network", amount=s * x * p.steps / (50 * p.layers), when=_one(p))


def _link(p: Plan, s: float, x: float) -> Plan:
    return replace(p, kind="link", amount=s * x / (50 * p.layers), gpu=_gpu(p))


def _reads(p: Plan, s: float, x: float) -> Plan:
    return replace(p, kind="reads", amount=s * x / p.layers)


def _extra(p: Plan, s: float, x: float) -> Plan:
    return replace(p, kind="extra", amount=s * x, layer=1 + p.seed % (p.layers - 2))


SLOWER: Final = r"longer|slower"
CASES: Final = tuple(
    Case(name, plant, says)
    for name, plant, *says in (
        ("a slow GPU", _slow, r"GPU {gpu}\b", SLOWER),
        ("a slow GPU once", _slow_once, r"GPU {gpu}\b", SLOWER, r"step {when}\b"),
        ("a slow backward", _slow_backward, r"GPU {gpu}\b", SLOWER, "backward"),
        ("a slow operation of a GPU", _operation, r"GPU {gpu}\b", SLOWER, "(ffn|mlp)_in"),
        ("a slow layer", _layer, r"layer {layer}\b", SLOWER),
        ("a slow operation of a layer", _in_layer, r"layer {layer}\b", SLOWER, "core|attn_fa"),
        ("a slow optimizer", _optimizer, r"GPU {gpu}\b", SLOWER, "optimizer|opt_step"),
        ("late data", _pause("data", once=False, one=True), r"GPU {gpu}\b", "data"),
        ("late data once", _pause("data", once=True, one=True),
         r"GPU {gpu}\b", "data", r"step {when}\b"),
        ("late data everywhere", _pause("data", once=False, one=False), "data"),
        ("garbage collection", _pause("gc", once=True, one=True),
         r"GPU {gpu}\b", "[gG]arbage", r"step {when}\b"),
        ("garbage collection everywhere", _pause("gc", once=True, one=False),
         "[gG]arbage", r"step {when}\b"),
        ("a checkpoint", _pause("save", once=True, one=True),
         r"GPU {gpu}\b", "save|checkpoint", r"step {when}\b"),
        ("a checkpoint everywhere", _pause("save", once=True, one=False),
         "save|checkpoint", r"step {when}\b"),
        ("more tokens of a GPU", _tokens, r"GPU {gpu}\b", "more|×"),
        ("more tokens once", _tokens_once, "more FLOPs|× the tokens", r"[sS]tep {when}\b"),
        ("a slow network once", _network, "transfer|communication", r"[sS]tep {when}\b"),
        ("a slow link", _link, "link|transfer", r"\b{gpu}\b"),
        ("values read back", _reads, "item|read|Synchronize"),
        ("an extra operation", _extra, r"layer {layer}\b", "only there|more kernel"),
    )
)  # fmt: skip


def planted(case: Case, seed: int, share: float, folder: Path) -> tuple[Plan, float, Run]:
    """A plan with a cause, what it costs a step in ns, and its run."""
    before = clean(seed)
    took = step_us(simulated(before))
    plan = case.plant(before, took, share)
    training = simulated(plan)
    return plan, 1e3 * (step_us(training) - took), opened(training.ranks, folder)
