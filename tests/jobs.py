"""A third family of runs: several causes at once, in jobs of other names, streams and clocks.

Every rank is a program that meets others in collectives. Times are µs with fractions on a clock of
each rank's own, launch records get lost, and the noise of an activity depends on its place alone:
a run without one of its causes is the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from msgspec import json

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run

MAIN, ENGINE = 4711, 4999
COMPUTE, GATHERS, REDUCES, COPIES = 7, 21, 25, 13
FIRST: Final = 300
Meeting = tuple[tuple[int, ...], float, float]
"""Ranks that meet, when the own one is ready, and how long the transfer takes."""
Program = Generator[Meeting, float, None]
_NORMAL: Final = NormalDist()


@dataclass(frozen=True)
class Cause:
    """What goes wrong, where, when, and how much: a factor less one, or µs each time."""

    kind: str
    amount: float = 0.0
    gpus: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    layer: int | None = None
    operation: str = ""
    phase: str = ""

    def hits(self, rank: int, step: int) -> bool:
        return (not self.gpus or rank in self.gpus) and (not self.steps or step in self.steps)

    def at(self, layer: int | None, operation: str, phase: str) -> bool:
        return (
            self.layer in (None, layer)
            and self.operation in ("", operation)
            and self.phase in ("", phase)
        )


@dataclass(frozen=True)
class Job:
    """A run: its parallelism, its size, and its causes."""

    style: str = "ddp"
    """fsdp, ddp, tp, pp, or accumulating."""
    seed: int = 0
    ranks: int = 4
    layers: int = 6
    steps: int = 7
    tokens: int = 1024
    noise: float = 0.003
    lost: float = 0.05
    causes: tuple[Cause, ...] = ()

    @property
    def micros(self) -> int:
        return {"pp": 6, "accumulating": 3}.get(self.style, 1)

    @property
    def stages(self) -> int:
        return 2 if self.style == "pp" else 1

    @cached_property
    def keeps_below(self) -> float:
        """Of which chance a launch is recorded."""
        return _NORMAL.inv_cdf(1 - self.lost) if self.lost else 9.0

    def stage(self, rank: int) -> int:
        return rank * self.stages // self.ranks

    def own_layers(self, rank: int) -> range:
        each = self.layers // self.stages
        return range(self.stage(rank) * each, (self.stage(rank) + 1) * each)

    def replicas(self, rank: int) -> tuple[int, ...]:
        """The ranks with the same parameters."""
        if self.style == "tp":
            return tuple(range(rank % 2, self.ranks, 2))
        each = self.ranks // self.stages
        first = self.stage(rank) * each
        return tuple(range(first, first + each))

    def about(self, kind: str, ranks: tuple[int, ...]) -> str:
        """Megatron's description of a process group."""
        if kind == "coalesced":
            return "PIPELINE_MODEL_PARALLEL_GROUP"
        is_tensor = self.style == "tp" and ranks[1] - ranks[0] == 1
        return f"{'TENSOR_MODEL' if is_tensor else 'DATA'}_PARALLEL_GROUP"

    def chance(self, *place: object) -> float:
        """A number from a normal distribution, of a place."""
        digest = blake2b(repr((self.seed, place)).encode(), digest_size=4).digest()
        return _NORMAL.inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**32)


GEMM: Final = "nvjet_tst_{}x256_64x4_2x1_v_bz_coopB_TNT"
BLOCK: Final = (
    ("input_layernorm", 38.0, "void rms_norm_fwd_kernel<bf16>", "aten::rms_norm"),
    ("qkv_proj", 260.0, GEMM.format(128), "aten::mm"),
    (
        "core_attention",
        190.0,
        "void cutlass::device_kernel<FlashAttnFwdSm90>",
        "aten::_scaled_dot_product_flash_attention",
    ),
    ("o_proj", 150.0, GEMM.format(192), "aten::mm"),
    ("post_layernorm", 41.0, "void rms_norm_fwd_kernel<bf16>", "aten::rms_norm"),
    ("gate_up_proj", 520.0, GEMM.format(256), "aten::mm"),
    ("silu", 60.0, "triton_poi_fused_mul_silu_0", "aten::silu"),
    ("down_proj", 270.0, GEMM.format(320), "aten::mm"),
)
"""Module, µs for 1,024 tokens, kernel, operator."""
WIDTHS: Final = {"qkv_proj": 6144, "o_proj": 4096, "gate_up_proj": 14336, "down_proj": 7168}
_CLASSES: Final = {"core_attention": "FlashAttention", "silu": "SiLU"}
_MEMORY: Final = ("input_layernorm", "post_layernorm", "silu", "adamw")


def _lookup(tokens: int) -> list[list[int]]:
    return [[32000, 4096], [1, tokens]]


@dataclass
class Rank:
    """A host and its GPU."""

    job: Job
    rank: int
    now: float = 0.0
    free: dict[int, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    comm: list[tuple[float, float]] = field(default_factory=list)
    step: int = FIRST
    phase: str = ""
    thread: int = MAIN
    correlation: int = 10_000
    sequence: int = 0
    count: int = 0

    @cached_property
    def causes(self) -> list[Cause]:
        return [each for each in self.job.causes if not each.gpus or self.rank in each.gpus]

    def having(self, *kinds: str) -> Iterator[Cause]:
        for each in self.causes:
            if each.kind in kinds and each.hits(self.rank, self.step):
                yield each

    def host(self, cat: str, name: str, begin: float, end: float, **args: Any) -> None:
        about = {"ph": "X", "cat": cat, "name": name, "pid": 9000 + self.rank, "tid": self.thread}
        self.events.append({**about, "ts": begin, "dur": end - begin, "args": args})

    @contextmanager
    def span(self, cat: str, name: str, **args: Any) -> Iterator[None]:
        begin = self.now
        yield
        self.host(cat, name, begin, self.now, **args)

    def work(self, us: float, *place: object) -> None:
        """Python and dispatch before a launch."""
        self.count += 1
        factor = 1 + 0.2 * self.job.chance("host", self.rank, self.step, self.count)
        for each in self.having("host"):
            factor *= 1 + each.amount
        self.now += us * max(factor, 0.3)

    def gpu(self, cat: str, name: str, stream: int, start: float, end: float, call: str,
            called: float | None = None, **args: Any) -> None:  # fmt: skip
        """An activity whose launch call ends now."""
        self.correlation += 1
        numbers = {"device": self.rank, "stream": stream, "correlation": self.correlation}
        chance = self.job.chance("lost", self.rank, self.step, self.correlation)
        if chance < self.job.keeps_below:
            called = self.now - 3.2 if called is None else called
            self.host("cuda_runtime", call, called, self.now, correlation=self.correlation)
        event = {"ph": "X", "cat": cat, "name": name, "pid": self.rank, "tid": stream}
        self.events.append(event | {"ts": start, "dur": end - start, "args": numbers | args})
        self.free[stream] = end

    def kernel(self, us: float, name: str, op: str, operation: str, layer: int | None,
               micro: int = 0, dims: Any = None, waits: float = 0.0) -> None:  # fmt: skip
        begin, job, step = self.now, self.job, self.step
        tokens = job.tokens
        for each in self.having("tokens"):
            if each.at(layer, operation, self.phase):
                tokens = round(tokens * (1 + each.amount) / 8) * 8
        for each in self.having("rotating"):
            if step % job.ranks == self.rank:
                tokens = round(tokens * (1 + each.amount) / 8) * 8
        us *= tokens / 1024 if operation != "adamw" else 1.0
        us *= 1 + job.noise * job.chance(self.rank, step, self.phase, layer, operation, micro)
        for each in self.having("kernels", "clock", "memory"):
            is_bound = each.kind != "memory" or operation in _MEMORY
            if is_bound and each.at(layer, operation, self.phase):
                us *= 1 + each.amount
        self.work(11.0)
        start = max(self.now + 4.1, self.free.get(COMPUTE, 0.0) + 1.2, waits)
        end = start + us
        for each in self.having("contention"):
            if each.operation == operation:
                end = self.slowed(start, us, 1 + each.amount)
        us = end - start
        shape = dims(tokens) if dims else [[tokens, 4096]]
        if op == "aten::mm":
            shape = [[tokens, 4096], [4096, WIDTHS[operation]]]
        elif operation == "core_attention":
            shape = [[1, 32, tokens, 128]] * 3
        self.gpu("kernel", name, COMPUTE, start, start + us, "cudaLaunchKernelExC",
                 grid=[tokens // 8, 1, 1], block=[128, 1, 1])  # fmt: skip
        types = ["c10::BFloat16"] * len(shape)
        self.host("cpu_op", op, begin, self.now, **{"Input Dims": shape, "Input type": types})

    def slowed(self, start: float, us: float, factor: float) -> float:
        """When work ends that goes on so many times as slowly while communication runs."""
        at = start
        for begin, end in self.comm[-8:]:
            free = max(begin - at, 0.0)
            if end > at and us > free:
                done = min(us - free, (end - at - free) / factor)
                us, at = us - free - done, at + free + done * factor
        return at + us

    def collective(self, kind: str, us: float, ranks: tuple[int, ...], group: str, stream: int,
                   elements: int, waits: float = 0.0) -> Program:  # fmt: skip
        begin, job = self.now, self.job
        self.work(16.0)
        ready = max(self.now + 5.0, self.free.get(stream, 0.0) + 1.0, waits)
        us *= 1 + job.noise * job.chance("comm", ranks, kind, self.step, self.count)
        factor = 1.0
        for each in job.causes:
            is_there = not each.gpus or set(ranks) <= set(each.gpus)
            is_there &= not each.steps or self.step in each.steps
            if each.kind == "link" and is_there and each.operation in ("", kind):
                factor *= 1 + each.amount
        end = yield ranks, ready, us * factor
        names = {"_allgather_base": "AllGather_RING_LL", "_reduce_scatter_base":
                 "ReduceScatter_Sum_bf16_RING_LL", "allreduce": "AllReduce_Sum_bf16_RING_LL",
                 "coalesced": "SendRecv"}  # fmt: skip
        self.gpu("kernel", f"ncclDevKernel_{names[kind]}(ncclDevKernelArgsStorage<4096ul>)", stream,
                 ready, end, "cudaLaunchKernelExC",
                 **{"Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements,
                    "dtype": "BFloat16", "Group size": len(ranks), "Process Group Name": group,
                    "Process Group Description": self.job.about(kind, ranks),
                    "Process Group Ranks": str(list(ranks))})  # fmt: skip
        self.host("cpu_op", "record_param_comms", begin, self.now)
        self.comm.append((ready, end))

    def synchronize(self, call: str = "cudaStreamSynchronize") -> None:
        end = max(self.now + 1.0, *self.free.values()) + 3.0
        self.host("cuda_runtime", call, self.now, end)
        self.now = end

    def pause(self, us: float, name: str = "", cat: str = "python_function") -> None:
        if name:
            self.host(cat, name, self.now, self.now + us)
        self.now += us

    # A step

    def train(self) -> Program:
        for step in range(FIRST, FIRST + self.job.steps):
            self.step = step
            begin = self.now
            self.data()
            yield from self.schedule()
            yield from self.optimize()
            self.read_back()
            for each in self.having("save"):
                self.pause(each.amount, "torch/serialization.py(966): save")
            self.now += 30.0
            self.host("user_annotation", f"ProfilerStep#{self.step}", begin, self.now)

    def data(self) -> None:
        self.phase = ""
        begin = self.now
        self.now += 60.0 + sum(each.amount for each in self.having("data"))
        self.host("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter",
                  begin, self.now)  # fmt: skip
        for each in self.having("gc"):
            self.pause(each.amount, "gc.collect")
        us = 14.0 + sum(each.amount for each in self.having("copies"))
        start = max(self.now + 5.0, self.free.get(COMPUTE, 0.0))
        begin, self.now = self.now, start + us + 2.0
        # The call returns with the copy.
        self.gpu("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", COMPUTE, start, start + us,
                 "cudaMemcpyAsync", begin + 1.0, bytes=int(us * 20_000))  # fmt: skip
        self.host("cpu_op", "aten::copy_", begin, self.now)

    def read_back(self) -> None:
        begin = self.now
        with self.span("cpu_op", "aten::item"):
            self.work(4.0)
            self.synchronize()
        assert self.now > begin

    def schedule(self) -> Program:
        job = self.job
        if job.stages == 1:
            for micro in range(job.micros):
                yield from self.forward(micro)
                yield from self.backward(micro, is_last=micro == job.micros - 1)
            return
        # One forward, one backward: both stages exchange what the other one needs next.
        if job.stage(self.rank) == 0:
            for micro in range(job.micros):
                yield from self.forward(micro)
                yield from self.exchange()
                if micro:
                    yield from self.backward(micro - 1, is_last=False)
            yield from self.exchange()
            yield from self.backward(job.micros - 1, is_last=True)
            return
        yield from self.exchange()
        for micro in range(job.micros):
            yield from self.forward(micro)
            yield from self.backward(micro, is_last=micro == job.micros - 1)
            yield from self.exchange()

    def exchange(self) -> Program:
        """Send and receive with the same place of the other stage, in one kernel."""
        place = self.rank % (self.job.ranks // 2)
        pair = (place, place + self.job.ranks // 2)
        ready = self.free.get(COMPUTE, 0.0)
        yield from self.collective(
            "coalesced", 45.0, pair, f"{60 + pair[0]}", REDUCES, 1 << 22, ready
        )
        self.free[COMPUTE] = max(ready, self.free[REDUCES] + 1.5)

    def module(self, name: str, number: int) -> Any:
        return self.span("python_function", f"nn.Module: {name}_{number}")

    def forward(self, micro: int) -> Program:
        self.phase, job = "forward", self.job
        with self.module("LlamaModel", 0):
            if job.stage(self.rank) == 0:
                with self.module("Embedding", 0):
                    self.kernel(42.0, "void vectorized_gather_kernel<16, long>", "aten::embedding",
                                "embed", None, micro, _lookup)  # fmt: skip
            for layer in job.own_layers(self.rank):
                arrived = 0.0
                if job.style == "fsdp":
                    ready = 0.0
                    if any(c.layer is None or c.layer == layer for c in self.having("unhidden")):
                        ready = self.free.get(COMPUTE, 0.0)
                    yield from self.collective("_allgather_base", 380.0, job.replicas(self.rank),
                                               "0", GATHERS, 1 << 24, ready)  # fmt: skip
                    arrived = self.free[GATHERS] + 1.5
                with self.module("LlamaDecoderLayer", layer):
                    for number, (name, us, kernel, op) in enumerate(BLOCK):
                        with self.module(_CLASSES.get(name, name), 8 * layer + number):
                            self.kernel(us, kernel, op, name, layer, micro, waits=arrived)
                        arrived = 0.0
                        self.troubles(layer, name)
                        if job.style == "tp" and name in ("o_proj", "down_proj"):
                            yield from self.shared()

    def shared(self) -> Program:
        first = self.rank - self.rank % 2
        yield from self.collective("allreduce", 24.0, (first, first + 1), f"{30 + first}", REDUCES,
                                   1 << 20, self.free[COMPUTE])  # fmt: skip
        self.free[COMPUTE] = self.free[REDUCES] + 1.5

    def troubles(self, layer: int, name: str) -> None:
        is_first = layer == self.job.own_layers(self.rank)[1]
        for each in self.having("extra"):
            if name == "silu" and layer == each.layer:
                self.kernel(
                    each.amount, "void isfinite_check_kernel", "aten::isfinite", "check", layer
                )
        if name != "o_proj":
            return
        for each in self.having("retries"):
            if is_first:
                self.synchronize("cudaFree")
                self.pause(each.amount / 2, "cudaFree", "cuda_runtime")
                self.pause(each.amount / 2, "cudaMalloc", "cuda_runtime")
        for each in self.having("untraced"):
            if layer == each.layer:
                self.synchronize()
                self.pause(each.amount)
        for each in self.having("items"):
            with self.span("cpu_op", "aten::item"):
                self.synchronize()
            self.pause(each.amount)

    def backward(self, micro: int, *, is_last: bool) -> Program:
        self.phase, self.thread, job = "backward", ENGINE, self.job
        for layer in reversed(job.own_layers(self.rank)):
            arrived = 0.0
            if job.style == "fsdp":
                yield from self.collective("_allgather_base", 380.0, job.replicas(self.rank), "0",
                                           GATHERS, 1 << 24)  # fmt: skip
                arrived = self.free[GATHERS] + 1.5
            with self.module("LlamaDecoderLayer", layer):
                for number, (name, us, kernel, op) in reversed(list(enumerate(BLOCK))):
                    with self.module(_CLASSES.get(name, name), 8 * layer + number):
                        note = (
                            f"autograd::engine::evaluate_function: {op.partition('::')[2]}Backward0"
                        )
                        with self.span("cpu_op", note):
                            kernel = kernel.replace("fwd", "bwd")
                            self.kernel(2.05 * us, kernel, op, name, layer, micro, waits=arrived)
                    arrived = 0.0
                    if job.style == "tp" and name in ("qkv_proj", "gate_up_proj"):
                        yield from self.shared()
            ranks = job.replicas(self.rank)
            if job.style == "fsdp":
                yield from self.collective("_reduce_scatter_base", 420.0, ranks, "0", REDUCES,
                                           1 << 24, self.free[COMPUTE])  # fmt: skip
            elif is_last and len(ranks) > 1 and layer % 2 == 0:
                yield from self.collective("allreduce", 700.0, ranks, f"{2 + ranks[0]}", GATHERS,
                                           1 << 25, self.free[COMPUTE])  # fmt: skip
        self.thread = MAIN

    def optimize(self) -> Program:
        self.phase = "optimizer"
        waits = max(self.free.get(GATHERS, 0.0), self.free.get(REDUCES, 0.0)) + 1.5
        with self.span("user_annotation", "Optimizer.step#AdamW.step"):
            for each in self.having("slow_optimizer"):
                self.pause(each.amount)
            for number in range(4):
                self.kernel(160.0, "void multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>",
                            "aten::_fused_adamw_", "adamw", None, number,
                            lambda n: [[4096, 4096]], waits)  # fmt: skip
        yield from ()


@dataclass(frozen=True)
class Simulated:
    """A job that ran."""

    job: Job
    ranks: tuple[Rank, ...]
    step_us: float

    def write(self, folder: Path) -> Run:
        """The run, opened; every rank's clock has an offset of its own."""
        for each in self.ranks:
            by = 5e6 + 900.0 * self.job.chance("clock", each.rank)
            events = [
                event | {"ts": round(event["ts"] + by, 3), "dur": round(event["dur"], 3)}
                for event in each.events
            ]
            about = {"rank": each.rank, "world_size": self.job.ranks, "backend": "nccl"}
            whole = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}
            (folder / f"host{each.rank}.trace.json").write_bytes(json.encode(whole))
        return open_run(str(folder), jobs=1)


def simulated(job: Job) -> Simulated:
    """Run all ranks until none of them is left."""
    ranks = [Rank(job, rank) for rank in range(job.ranks)]
    programs = [each.train() for each in ranks]
    asked: dict[int, Meeting] = {}
    answers: dict[int, float | None] = dict.fromkeys(range(job.ranks))
    while programs and (answers or asked):
        for rank in list(answers):
            answer = answers.pop(rank)
            try:
                asked[rank] = (
                    programs[rank].send(answer) if answer is not None else next(programs[rank])
                )
            except StopIteration:
                continue
        for group in {each[0] for each in asked.values()}:
            if all(rank in asked and asked[rank][0] == group for rank in group):
                last = max(asked[rank][1] for rank in group)
                end = last + max(asked[rank][2] for rank in group)
                for rank in group:
                    del asked[rank]
                    answers[rank] = end
        if not answers:
            assert not asked, asked
            break
    return Simulated(job, tuple(ranks), max(each.now for each in ranks) / job.steps)


# Causes


@dataclass(frozen=True)
class Case:
    """A cause: where it is, about how much of it costs the step so many µs, and what is said."""

    name: str
    make: Callable[[Job], Cause]
    first: Callable[[Job], float]
    """The µs that one unit of the amount costs a step."""
    says: tuple[str, ...]
    styles: tuple[str, ...] = ("ddp", "fsdp", "tp", "pp", "accumulating")


def _gpu(job: Job) -> int:
    return (job.seed * 7 + 1) % job.ranks


def _layer(job: Job) -> int:
    own = job.own_layers(_gpu(job))
    return own[1 + job.seed % (len(own) - 2)]


def _once(job: Job) -> tuple[int, ...]:
    return (FIRST + 2 + job.seed % (job.steps - 3),)


def _half(job: Job) -> tuple[int, ...]:
    return tuple(range(FIRST + 4, FIRST + job.steps))


def _thirds(job: Job) -> tuple[int, ...]:
    return tuple(range(FIRST + 1, FIRST + job.steps, 3))


def _work(job: Job, *names: str, passes: float = 3.05) -> float:
    own = sum(us for name, us, *_ in BLOCK if not names or name in names)
    return own * job.tokens / 1024 * passes * job.micros


def _layers(job: Job) -> int:
    return job.layers // job.stages


def _of(kind: str, *, one: bool = True, when: Callable[[Job], tuple[int, ...]] | None = None,
        layer: bool = False, **fixed: Any) -> Callable[[Job], Cause]:  # fmt: skip
    def make(job: Job) -> Cause:
        gpus = (_gpu(job),) if one else ()
        steps = when(job) if when else ()
        return Cause(kind, 0.0, gpus, steps, _layer(job) if layer else None, **fixed)

    return make


def _part(
    when: Callable[[Job], tuple[int, ...]] | None, cost: Callable[[Job], float]
) -> Callable[[Job], float]:
    return lambda job: cost(job) * (len(when(job)) / job.steps if when else 1.0)


def _whole(job: Job) -> float:
    return _work(job) * _layers(job)


def _us(job: Job) -> float:
    return 1.0


def _tensor(job: Job) -> Cause:
    first = _gpu(job) - _gpu(job) % 2
    return Cause("link", 0.0, (first, first + 1))


def _everywhere(
    kind: str, when: Callable[[Job], tuple[int, ...]] | None, operation: str = ""
) -> Callable[[Job], Cause]:
    return lambda job: Cause(kind, 0.0, (), when(job) if when else (), None, operation)


LONGER: Final = "longer|slower"
HOST: Final = r"\bhosts?\b|\bidle\b|launch"
ON: Final = r"GPU {gpu}\b"
WHEN: Final = r"\b(?:{when})\b|every \w+"
CASES: Final = tuple(
    Case(name, make, first, tuple(says.split("&")), *styles)
    for name, make, first, says, *styles in (
        ("a slow GPU", _of("clock"), _whole, f"{ON}&{LONGER}"),
        ("a slow GPU once", _of("clock", when=_once), _part(_once, _whole),
         f"{ON}&{LONGER}&{WHEN}"),
        ("a node slow from then on", _of("clock", one=False, when=_half), _part(_half, _whole),
         f"{LONGER}&from iteration {{first}}|iterations? {{first}}",
         ("ddp", "fsdp", "accumulating")),
        ("a slow backward", _of("kernels", phase="backward"),
         lambda j: _work(j, passes=2.05) * _layers(j), f"{ON}&{LONGER}&backward"),
        ("a slow operation on a GPU", _of("kernels", operation="gate_up_proj"),
         lambda j: _work(j, "gate_up_proj") * _layers(j),
         f"{ON}&{LONGER}&gate_up_proj|mlp_gp|mlp_up"),
        ("a slow layer", _of("kernels", one=False, layer=True), _work,
         f"layer {{layer}}\\b&{LONGER}"),
        ("a slow operation in a layer", _of("kernels", one=False, layer=True, operation="o_proj"),
         lambda j: _work(j, "o_proj"), f"layer {{layer}}\\b&{LONGER}&o_proj|attn_op"),
        ("slow memory", _of("memory"),
         lambda j: _work(j, *_MEMORY) * _layers(j) + 640, f"{ON}&memory|{LONGER}"),
        ("a slow optimizer", _of("kernels", operation="adamw"), lambda j: 640.0,
         f"{ON}&{LONGER}&optimizer|opt_step"),
        ("a slow optimizer host", _of("slow_optimizer"), _us, f"{ON}&{HOST}"),
        ("more tokens", _of("tokens"), _whole, f"{ON}&more|×"),
        ("more tokens once", _of("tokens", one=False, when=_once), _part(_once, _whole),
         f"more (FLOPs|work|tokens)|× the tokens&{WHEN}"),
        ("loaded experts", _of("tokens", layer=True, operation="gate_up_proj"),
         lambda j: _work(j, "gate_up_proj"), f"{ON}&more&gate_up_proj|mlp_gp|mlp_up"),
        ("kernels that one rank alone runs", _of("extra", layer=True), lambda j: 1.0 * j.micros,
         f"{ON}&more (work|kernels)|only there"),
        ("a slow host", _of("host"), lambda j: 40.0, f"{ON}&{HOST}"),
        ("more tokens in turn", _of("rotating", one=False), _whole, "more|×&in turn|another GPU"),
        ("data of a GPU", _of("data"), _us, f"{ON}&data"),
        ("data of a GPU once", _of("data", when=_once), _part(_once, _us), f"{ON}&data&{WHEN}"),
        ("data of a GPU, every third", _of("data", when=_thirds), _part(_thirds, _us),
         f"{ON}&data&{WHEN}"),
        ("data everywhere", _of("data", one=False), _us, "data"),
        ("collection", _of("gc", when=_once), _part(_once, _us), f"{ON}&gc|arbage|{HOST}&{WHEN}"),
        ("collection everywhere", _of("gc", one=False, when=_thirds), _part(_thirds, _us),
         f"gc|arbage|{HOST}&{WHEN}"),
        ("a checkpoint", _of("save", when=_once), _part(_once, _us),
         f"{ON}&save|checkpoint&{WHEN}"),
        ("a checkpoint everywhere", _of("save", one=False, when=_once), _part(_once, _us),
         f"save|checkpoint&{WHEN}"),
        ("an allocator", _of("retries"), _us, f"{ON}&cudaFree|cudaMalloc|alloc"),
        ("untraced time", _of("untraced", layer=True), _us, f"{ON}&untraced|{HOST}"),
        ("values read back", _of("items", one=False), lambda j: 1.0 * _layers(j) * j.micros,
         "item|read|Synchronize"),
        ("hosts that can't keep up", _of("host", one=False), lambda j: 40.0,
         "host-bound|launch-bound"),
        ("an extra operation", _of("extra", one=False, layer=True), lambda j: 1.0 * j.micros,
         "layer {layer}\\b&only there|more kernel|extra|longer"),
        ("pageable copies", _of("copies", one=False), _us, r"\bcop(y|ies)\b"),
        ("a slow network once", _everywhere("link", _once), _part(_once, lambda j: 700.0),
         f"transfer|communication|link&{WHEN}", ("fsdp", "tp")),
        ("a slow collective from then on", _everywhere("link", _half, "_reduce_scatter_base"),
         _part(_half, lambda j: 700.0), "transfer&reduce_scatter&{first}", ("fsdp",)),
        ("a rail that flaps", lambda j: replace(_tensor(j), steps=_thirds(j)),
         _part(_thirds, lambda j: 4 * 24.0 * j.layers), r"link|transfer&\b{pair}\b&{when}",
         ("tp",)),
        ("a slow link of a tensor group", _tensor, lambda j: 4 * 24.0 * j.layers,
         r"link|transfer&\b{pair}\b", ("tp",)),
        ("parameters not gathered ahead", _everywhere("unhidden", None), _us,
         "exposed communication", ("fsdp",)),
        ("an operation slowed by communication", _everywhere("contention", None, "down_proj"),
         lambda j: 400.0, "communication&down_proj|mlp_dp", ("fsdp", "ddp")),
    )
)  # fmt: skip


def clean(style: str, seed: int) -> Job:
    """A job without a cause; its size goes by the seed."""
    ranks = 8 if seed % 5 == 0 and style in ("tp", "pp") else 4
    tokens = (768, 1024, 1536)[seed % 3]
    layers = (6, 8)[seed % 2]
    return Job(style, seed, ranks, layers, 7 + seed % 3, tokens)


@dataclass(frozen=True)
class Planted:
    """A job with causes, and what each of them costs the step in µs: the job without takes less."""

    run: Simulated
    cost_us: tuple[float, ...]
    all_us: float
    """What they cost together."""


def planted(cases: Sequence[Case], job: Job, shares: Sequence[float]) -> Planted:
    """A job with causes that each cost about a share of the step."""
    usual = simulated(job).step_us
    found: list[Cause] = []
    for case, share in zip(cases, shares, strict=True):
        cause = replace(case.make(job), amount=share * usual / case.first(job))
        if cause.kind != "unhidden":
            for _ in range(4):
                cost = simulated(replace(job, causes=(cause,))).step_us - usual
                if abs(cost / (share * usual) - 1) < 0.1:
                    break
                factor = min(max(share * usual / max(cost, 1e-9), 0.2), 6.0)
                cause = replace(cause, amount=cause.amount * factor)
        found.append(cause)
    run = simulated(replace(job, causes=tuple(found)))
    without = [
        simulated(replace(job, causes=tuple(each for each in found if each is not one))).step_us
        for one in found
    ]
    return Planted(run, tuple(run.step_us - each for each in without), run.step_us - usual)


def words_of(case: Case, job: Job) -> tuple[str, ...]:
    """What a finding of the cause says, as regular expressions."""
    cause = case.make(job)
    layer = -1 if cause.layer is None else cause.layer % _layers(job)
    steps = cause.steps or (0,)
    place = {"gpu": _gpu(job), "layer": layer, "when": "|".join(map(str, steps)), "first": steps[0]}
    pair = r"\D+".join(map(str, cause.gpus))
    return tuple(each.format(**place, pair=pair) for each in case.says)
