"""Runs with a planted cause, and what it truly costs: the same run without it takes less."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from generator import causes as k
from generator import constants as c
from generator import telemetry
from generator.capture import capture
from generator.causes import Cause, Style
from generator.cluster import Cluster
from generator.kineto import render
from generator.records import GpuHistory, RankTrace
from generator.styled_training import StyledTraining
from generator.timeline import merged

SIZES = (0.015, 0.04, 0.12)
"""About what a cause costs, as a share of the iteration."""


def _style(looks: str, **options: int | float | bool) -> Style:
    sizes = {"ranks": 4, "iterations": 6, "layers": 4, "counters": False, "telemetry": False}
    return Style(clean=True, looks=looks, **(sizes | options))  # type: ignore[arg-type]


STYLES: dict[str, Style] = {
    "annotated": _style(k.ANNOTATED, telemetry=True),
    "module": _style(k.MODULE),
    "fsdp": _style(k.FSDP_NAMES, telemetry=True),
    "module accumulating": _style(k.MODULE, shards=False, microsteps=4),
    "fsdp accumulating": _style(k.FSDP_NAMES, microsteps=2, layers=6),
    "module recomputing": _style(k.MODULE, recompute=True),
    "fsdp recomputing": _style(k.FSDP_NAMES, recompute=True, telemetry=True),
    "flat": _style(k.FLAT, shards=False, ranks=2),
    "flat accumulating": _style(k.FLAT, shards=False, microsteps=2),
    "noisy": _style(k.FSDP_NAMES, noise=0.01, lost_share=0.005),
    "lossy": _style(k.MODULE, noise=0.004, lost_share=0.02),
    "wide": _style(k.ANNOTATED, ranks=8, telemetry=True),
    "busy links": _style(k.ANNOTATED, link_times=2.5),
    "busy links of modules": _style(k.MODULE, link_times=2.5),
    "tensor": _style(k.MODULE, tensor=2, shards=False),
    "stages": _style(k.MODULE, stages=2, shards=False, microsteps=4),
    "stages alone": _style(k.MODULE, stages=4, layers=8, shards=False, microsteps=4),
}
"""What runs look like."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated run as its profilers saw it."""

    config: Style
    gpus: tuple[GpuHistory, ...]
    traces: tuple[RankTrace, ...]

    @property
    def step_ns(self) -> float:
        """The time of an iteration: all that GPUs and hosts show, by their number."""
        start = min(trace.start_ns for trace in self.traces)
        end = max(trace.end_ns for trace in self.traces)
        return (end - start) / self.config.iterations

    def per_iteration_ns(self, **labels: object) -> float:
        """Compute with these labels, per GPU and iteration."""
        found = sum(
            each.end_ns - each.start_ns
            for trace in self.traces
            for each in trace.activities
            if each.is_compute
            and all(getattr(each.label, name) == value for name, value in labels.items())
        )
        return found / len(self.traces) / self.config.iterations

    def write(self, folder: Path) -> None:
        """Writes the traces, and the telemetry if there is any, without packing them."""
        folder.mkdir(parents=True, exist_ok=True)
        for trace in self.traces:
            (folder / f"rank{trace.rank}.json").write_text(render(self.config, trace))
        if self.config.telemetry:
            path = folder / telemetry.SAMPLES_FILE.removesuffix(".gz")
            path.parent.mkdir(exist_ok=True)
            sensors = [telemetry.signals(self.config, gpu) for gpu in self.gpus]
            path.write_text(telemetry.samples_csv(self.config, sensors))


@dataclass(frozen=True, slots=True)
class Planted:
    """A run with a cause, and the truth about it."""

    name: str
    style: str
    run: Simulated
    cost_ns: float
    """How much shorter an iteration is without it."""
    step_ns: float
    """The time of an iteration with it."""

    @property
    def cause(self) -> Cause:
        """What was planted, of several causes this one."""
        return self.run.config.causes[0]

    @property
    def share(self) -> float:
        """The cost as a share of the iteration."""
        return self.cost_ns / self.step_ns


@lru_cache(maxsize=4)
def simulated(config: Style) -> Simulated:
    """Simulates a run; a clean one is kept for the next causes."""
    cluster = Cluster(config, StyledTraining)
    cluster.run()
    return Simulated(
        config,
        tuple(gpu.history() for gpu in cluster.gpus),
        tuple(capture(config, gpu.host) for gpu in cluster.gpus),
    )


def clean(style: str, seed: int, *, is_rough: bool = False) -> Simulated:
    """A run without a cause."""
    return simulated(_styled(style, seed, is_rough))


def _styled(style: str, seed: int, is_rough: bool) -> Style:
    """A style with a seed; a rough one has GPUs' clocks late by up to 40 µs, and lost 1 to 3 % of
    the launch records."""
    found = replace(STYLES[style], seed=seed)
    if not is_rough:
        return found
    return replace(found, late_ns=40_000, lost_share=max(found.lost_share, (1 + seed % 3) / 100))


def plant(name: str, seed: int, size: float, style: str = "", *, is_rough: bool = False) -> Planted:
    """A run with a cause that costs about `size` of the iteration; its style goes by the seed."""
    styles = CAUSES[name].styles
    style = style or styles[seed % len(styles)]
    without = _fitting(_styled(style, seed, is_rough), (name,))
    before = simulated(without)
    cause = CAUSES[name].make(before, size, seed)
    after = simulated(replace(without, causes=(cause,)))
    if cause.kind == "head":
        before = simulated(balanced(after))
    return Planted(name, style, after, after.step_ns - before.step_ns, after.step_ns)


def balanced(run: Simulated) -> Style:
    """The same run with the work of a heavy head, next to none of it left, shared by all stages."""
    (head,) = run.config.causes
    light = replace(head, amount=0.03)
    rest = simulated(replace(run.config, causes=(light,)))
    share = run.per_iteration_ns() / rest.per_iteration_ns()
    return replace(run.config, causes=(light, Cause("kernels", share, (), head.iterations)))


def plant_together(
    names: Sequence[str], seed: int, size: float, *, is_rough: bool = False
) -> tuple[Planted, ...]:
    """One run with several causes, each with its own GPU, layer and time, and what the run without
    this one takes less; none where no style of run can show them all."""
    styles = [
        each for each in CAUSES[names[0]].styles if all(each in CAUSES[n].styles for n in names)
    ]
    if not styles:
        return ()
    style = styles[seed % len(styles)]
    without = _fitting(_styled(style, seed, is_rough), names)
    before = simulated(without)
    causes = tuple(
        CAUSES[name].make(before, size, seed + number) for number, name in enumerate(names)
    )
    after = simulated(replace(without, causes=causes))
    found = []
    for number, name in enumerate(names):
        others = (*causes[:number], *causes[number + 1 :])
        own = replace(after, config=replace(without, causes=(causes[number], *others)))
        cost = cost_of(after, (causes[number],))
        found.append(Planted(name, style, own, cost, after.step_ns))
    return tuple(found)


def cost_of(run: Simulated, causes: Collection[Cause]) -> float:
    """How much shorter an iteration is without some of its causes."""
    rest = tuple(each for each in run.config.causes if each not in causes)
    return run.step_ns - simulated(replace(run.config, causes=rest)).step_ns


def _fitting(style: Style, names: Sequence[str]) -> Style:
    """A style with the telemetry and as many iterations as some causes need."""
    kinds = [CAUSES[name] for name in names]
    return replace(
        style,
        telemetry=style.telemetry or any(each.telemetry for each in kinds),
        iterations=max([style.iterations, *(each.iterations for each in kinds)]),
    )


Make = Callable[[Simulated, float, int], Cause]


@dataclass(frozen=True, slots=True)
class Kind:
    """A cause that can be planted: how, and in which styles of run."""

    make: Make
    styles: tuple[str, ...]
    telemetry: bool = False
    iterations: int = 0
    """How many the run has; 0: as many as its style says."""


CAUSES: dict[str, Kind] = {}
_WITH_LAYERS = ("annotated", "module", "fsdp", "module accumulating", "module recomputing")
_ANY = ("annotated", "module", "fsdp accumulating", "flat accumulating", "noisy", "stages")
_SHARDED = ("annotated", "module", "fsdp", "fsdp accumulating", "module recomputing")


def _plants(
    name: str, styles: tuple[str, ...] = _ANY, *, telemetry: bool = False, iterations: int = 0
) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CAUSES[name] = Kind(make, styles, telemetry, iterations)
        return make

    return register


def _all(run: Simulated) -> tuple[int, ...]:
    return tuple(run.config.complete_iterations)


def _some(run: Simulated, seed: int, every: int) -> tuple[int, ...]:
    return tuple(n for n in run.config.complete_iterations if n % every == seed % every)


def _one(run: Simulated, seed: int) -> tuple[int, ...]:
    numbers = _all(run)
    return (numbers[1 + seed % (len(numbers) - 2)],)


def _gpu(run: Simulated, seed: int) -> tuple[int, ...]:
    return ((seed * 7 + 3) % run.config.ranks,)


def _layer(run: Simulated, seed: int) -> int:
    return (seed * 5 + 1) % run.config.layers


def _operation(seed: int) -> str:
    return ("mlp_gp", "attn_fa", "mlp_dp", "q_ip", "mlp_up")[seed % 5]


def _spread(run: Simulated, size: float, times: int) -> float:
    """ns each time, of a pause that happens a number of times in the run."""
    return size * run.step_ns * run.config.iterations / max(times, 1)


def _slower(size: float) -> float:
    """A clock's factor, as kernels are nearly all of an iteration."""
    return 1 / (1 + 1.1 * size)


@_plants("one GPU at a lower clock")
def _slow_gpu(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("clock", _slower(size), _gpu(run, seed), _from_start(run))


@_plants("two GPUs at a lower clock", ("annotated", "module", "wide", "fsdp accumulating"))
def _two_slow(run: Simulated, size: float, seed: int) -> Cause:
    first = _gpu(run, seed)[0]
    both = tuple(sorted((first, (first + 1) % run.config.ranks)))
    return Cause("clock", _slower(size), both, _from_start(run))


@_plants("all GPUs at a lower clock", ("annotated", "module", "fsdp"), telemetry=True)
def _all_slow(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("clock", _slower(size), (), _from_start(run))


@_plants("a clock that drops", ("annotated", "module", "fsdp"), telemetry=True)
def _dip(run: Simulated, size: float, seed: int) -> Cause:
    numbers = _all(run)
    later = numbers[len(numbers) // 2 :]
    return Cause("clock", _slower(2 * size), _gpu(run, seed), later)


@_plants("a throttled GPU", ("annotated", "fsdp", "wide"), telemetry=True)
def _throttled(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("throttled", _slower(size), _gpu(run, seed), _from_start(run))


@_plants("hipFree on one GPU")
def _hip_free(run: Simulated, size: float, seed: int) -> Cause:
    layer = run.config.layers_of(run.config.stage_of(_gpu(run, seed)[0]))[1]
    return Cause("hip_free", size * run.step_ns, _gpu(run, seed), _all(run), layer)


@_plants("values read back in every layer", ("annotated", "module", "fsdp", "flat"))
def _items(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("items", size * run.step_ns / run.config.layers, (), _all(run))


@_plants("data of one GPU late, always")
def _data(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("data", size * run.step_ns, _gpu(run, seed), _all(run))


@_plants("data of one GPU late, once")
def _data_once(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("data", _spread(run, size, 1), _gpu(run, seed), _one(run, seed))


@_plants("data of one GPU late, every third")
def _data_every(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    return Cause("data", _spread(run, size, len(those)), _gpu(run, seed), those)


@_plants("data late on all GPUs")
def _data_all(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("data", size * run.step_ns, (), _all(run))


@_plants("slow optimizer kernels on one GPU")
def _optimizer(run: Simulated, size: float, seed: int) -> Cause:
    usual = run.per_iteration_ns(phase="optimizer")
    return Cause(
        "optimizer_kernels", 1 + size * run.step_ns / usual, _gpu(run, seed), _from_start(run)
    )


@_plants("slow optimizer host on one GPU")
def _optimizer_host(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("optimizer_host", size * run.step_ns, _gpu(run, seed), _all(run))


@_plants("garbage collection on one GPU")
def _gc(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 2)
    gpu = ((seed * 7 + 3) % (run.config.ranks // run.config.stages),)
    return Cause("gc", _spread(run, size, len(those)), gpu, those)


@_plants("logging on one GPU")
def _logging(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("logging", size * run.step_ns, _gpu(run, seed), _all(run))


@_plants("a checkpoint on one GPU")
def _checkpoint(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("checkpoint", _spread(run, size, 1), _gpu(run, seed), _one(run, seed))


@_plants("one operation slow on one GPU", ("annotated", "module", "fsdp", "module accumulating"))
def _slow_operation(run: Simulated, size: float, seed: int) -> Cause:
    name = _operation(seed)
    factor = 1 + size * run.step_ns / run.per_iteration_ns(operation=name)
    return Cause("kernels", factor, _gpu(run, seed), _from_start(run), None, name)


@_plants("one operation slow in one layer", _WITH_LAYERS)
def _slow_in_layer(run: Simulated, size: float, seed: int) -> Cause:
    name, layer = _operation(seed), _layer(run, seed)
    factor = 1 + size * run.step_ns / run.per_iteration_ns(operation=name, layer=layer)
    return Cause("kernels", factor, (), _from_start(run), layer, name)


@_plants("one layer slow", _WITH_LAYERS)
def _slow_layer(run: Simulated, size: float, seed: int) -> Cause:
    layer = _layer(run, seed)
    factor = 1 + size * run.step_ns / run.per_iteration_ns(layer=layer)
    return Cause("kernels", factor, (), _from_start(run), layer)


@_plants("slow memory of one GPU", telemetry=True)
def _memory(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("memory", _memory_factor(run, size), _gpu(run, seed), _from_start(run))


@_plants("slow memory of all GPUs", ("annotated", "module", "fsdp"), telemetry=True)
def _memory_all(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("memory", _memory_factor(run, size), (), _from_start(run))


def _memory_factor(run: Simulated, size: float) -> float:
    bound = sum(
        each.end_ns - each.start_ns
        for trace in run.traces
        for each in trace.activities
        if each.is_compute and not each.kernel.flops
    )
    return 1 + size * run.step_ns * len(run.traces) * run.config.iterations / bound


@_plants("an extra operation in one layer", _WITH_LAYERS)
def _extra(run: Simulated, size: float, seed: int) -> Cause:
    # Also in a first iteration that isn't shown; half of it at either kernel.
    amount = size * run.step_ns / run.config.microsteps * k.USUAL_CLOCK
    return Cause("extra", amount, (), _from_start(run), _layer(run, seed), "mlp_n")


@_plants("a slow link of one group", ("tensor",))
def _link(run: Simulated, size: float, seed: int) -> Cause:
    gpu = _gpu(run, seed)[0]
    for group in (run.config.tensor_group(gpu), run.config.data_group(gpu)):
        usual = sum(
            each.collective.transfer_ns
            for each in run.traces[group.ranks[0]].activities
            if each.collective and each.collective.group == group
        )
        if usual:
            break
    factor = 1 + size * run.step_ns * run.config.iterations / usual
    return Cause("link", factor, group.ranks, _from_start(run))


@_plants("parameters not gathered ahead", _SHARDED)
def _unhidden(run: Simulated, size: float, seed: int) -> Cause:
    # Which layers are gathered ahead: none, half, or all but one.
    those = {0.015: 2, 0.04: run.config.layers // 2, 0.12: run.config.layers}
    return Cause("unhidden", those.get(size, run.config.layers), (), _from_start(run))


@_plants("one slow iteration")
def _slow_iteration(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("kernels", 1 + size * run.config.iterations / 2, (), _one(run, seed))


@_plants("hosts that can't keep up", ("annotated", "module", "flat", "fsdp"))
def _host(run: Simulated, size: float, seed: int) -> Cause:
    # The host's own time, from which on the GPU waits for it.
    usual = max(_host_ns(run, trace) for trace in run.traces) / run.config.iterations
    return Cause("host", (1 + size) * run.step_ns / usual, (), _from_start(run))


def _host_ns(run: Simulated, trace: RankTrace) -> float:
    """The time of a rank's host without waiting for its GPU."""
    waits = [call for call in trace.calls if call.name == "hipDeviceSynchronize"]
    return trace.end_ns - trace.start_ns - sum(call.end_ns - call.start_ns for call in waits)


@_plants("more tokens on one GPU", ("annotated", "module", "fsdp", "module accumulating"))
def _imbalance(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("imbalance", size, _gpu(run, seed), _from_start(run))


@_plants("an operation slowed by communication", (*_SHARDED, "busy links", "busy links of modules"))
def _contention(run: Simulated, size: float, seed: int) -> Cause:
    # Any operation that communication runs beside, wherever links and step bring that about.
    beside = {
        name: _beside_comm_ns(run, name) for name in sorted({_operation(n) for n in range(5)})
    }
    names = [name for name, ns in beside.items() if ns > _LEAST_BESIDE * run.step_ns]
    name = names[seed % len(names)] if names else max(beside, key=lambda each: beside[each])
    factor = 1 + size * run.step_ns / max(beside[name], 1.0)
    return Cause("contention", min(factor, _MOST_SLOWED), (), _from_start(run), None, name)


_LEAST_BESIDE = 0.01
_MOST_SLOWED = 4.0


def _beside_comm_ns(run: Simulated, operation: str) -> float:
    """The time of an operation beside communication, per GPU and iteration."""
    found = 0
    for trace in run.traces:
        comm = merged((a.start_ns, a.end_ns) for a in trace.activities if a.is_comm)
        for each in trace.activities:
            if each.is_compute and each.label.operation == operation:
                found += sum(
                    max(0, min(end, each.end_ns) - max(start, each.start_ns)) for start, end in comm
                )
    return found / len(run.traces) / run.config.iterations


@_plants("a host late in one layer, once", ("annotated", "module", "fsdp", "noisy"))
def _late_host(run: Simulated, size: float, seed: int) -> Cause:
    layer = _layer(run, seed)
    return Cause("late_host", _spread(run, size, 1), _gpu(run, seed), _one(run, seed), layer)


@_plants("copies from pageable memory")
def _copies(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("copies", size * run.step_ns, (), _all(run))


@_plants("backward slow on one GPU")
def _slow_backward(run: Simulated, size: float, seed: int) -> Cause:
    factor = 1 + size * run.step_ns / run.per_iteration_ns(phase="backward")
    return Cause("kernels", factor, _gpu(run, seed), _from_start(run), phase="backward")


@_plants("a clock that dips in one iteration", ("annotated", "module", "fsdp"), telemetry=True)
def _dip_once(run: Simulated, size: float, seed: int) -> Cause:
    slower = _slower(size * run.config.iterations)
    return Cause("clock", slower, _gpu(run, seed), _one(run, seed))


@_plants("all GPUs of a node throttled from then on", ("annotated", "fsdp", "wide"), telemetry=True)
def _node_throttled(run: Simulated, size: float, seed: int) -> Cause:
    numbers = _all(run)
    return Cause("throttled", _slower(2 * size), (), numbers[len(numbers) // 2 :])


@_plants("a slow network in one iteration", ("tensor", "busy links", "busy links of modules"))
def _network(run: Simulated, size: float, seed: int) -> Cause:
    return _costing(run, size, Cause("link", 3.0, (), _one(run, seed)))


@_plants("one collective slow from then on", ("busy links", "busy links of modules"))
def _collective(run: Simulated, size: float, seed: int) -> Cause:
    numbers, kind = _all(run), ("all_gather", "reduce_scatter")[seed % 2]
    cause = Cause("link", 1.5, (), numbers[len(numbers) // 2 :], None, kind)
    return _costing(run, size, cause)


@_plants("a slow link between replicas", ("tensor",))
def _replicas(run: Simulated, size: float, seed: int) -> Cause:
    group = run.config.data_group(_gpu(run, seed)[0])
    return _costing(run, size, Cause("link", 3.0, group.ranks, _from_start(run)))


@_plants("one GPU of a tensor group at a lower clock", ("tensor",))
def _slow_in_group(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("clock", _slower(size), _gpu(run, seed), _from_start(run))


_WITH_TOKENS = ("annotated", "module", "fsdp", "module accumulating")


@_plants("more tokens in one iteration", _WITH_TOKENS)
def _longer_sequences(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("imbalance", size * run.config.iterations, (), _one(run, seed))


@_plants("more tokens on another GPU each time", _WITH_TOKENS)
def _rotating(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("rotation", size, (), _from_start(run))


@_plants("garbage collection on all GPUs")
def _gc_all(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    return Cause("gc", _spread(run, size, len(those)), (), those)


@_plants("data late on all GPUs, every third")
def _data_all_every(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    return Cause("data", _spread(run, size, len(those)), (), those)


@_plants("a checkpoint on all GPUs")
def _checkpoint_all(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("checkpoint", _spread(run, size, 1), (), _one(run, seed))


@_plants("an allocator that retries", ("annotated", "module", "fsdp", "noisy"))
def _retries(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("retries", size * run.step_ns, (), _all(run))


@_plants("untraced time of one host, always", ("annotated", "module", "fsdp", "noisy"))
def _untraced(run: Simulated, size: float, seed: int) -> Cause:
    layer = _layer(run, seed)
    return Cause("late_host", size * run.step_ns, _gpu(run, seed), _all(run), layer)


_SHOWN = ("annotated", "module", "noisy")
_STEADY = ("annotated", "module", "fsdp")


@_plants("experts of one GPU with more tokens", _STEADY)
def _experts(run: Simulated, size: float, seed: int) -> Cause:
    layer = (seed * 5 + 1) % (run.config.layers - 1)
    usual = sum(
        run.per_iteration_ns(layer=at, operation=name)
        for at in (layer, layer + 1)
        for name in ("mlp_gp", "mlp_gs", "mlp_up", "mlp_gu", "mlp_dp")
    )
    amount = size * run.step_ns / usual
    return Cause("experts", amount, _gpu(run, seed), _from_start(run), layer)


@_plants("a heavy last stage", ("stages", "stages alone"))
def _heavy_stage(run: Simulated, size: float, seed: int) -> Cause:
    config = run.config
    last = tuple(rank for rank in range(config.ranks) if config.stage_of(rank) == config.stages - 1)
    usual = run.per_iteration_ns(operation="lp") * config.stages
    return Cause("head", 1 + 2 * size * run.step_ns / usual, last, _from_start(run))


@_plants("evaluation between steps", ("annotated", "module"))
def _evaluation(run: Simulated, size: float, seed: int) -> Cause:
    layer = run.per_iteration_ns(phase="forward") / run.config.layers
    those = _some(run, seed, 3)
    number = size * run.step_ns * run.config.iterations / layer / len(those)
    return Cause("evaluation", max(round(number), 1), (), those)


@_plants("values read back every third step", _STEADY)
def _items_every(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    each = _spread(run, size, len(those)) / run.config.layers
    return Cause("items", each, (), those)


@_plants("a stall after the optimizer")
def _end_stall(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("end_stall", size * run.step_ns, _gpu(run, seed), _all(run))


@_plants("a stall of all hosts after the optimizer")
def _end_stall_of_all(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("end_stall", size * run.step_ns, (), _all(run))


@_plants("a rail that flaps", ("tensor",))
def _flapping(run: Simulated, size: float, seed: int) -> Cause:
    group = run.config.tensor_group(_gpu(run, seed)[0])
    return _costing(run, size, Cause("link", 3.0, group.ranks, _some(run, seed, 2)))


@_plants("hipMalloc in one layer")
def _malloc(run: Simulated, size: float, seed: int) -> Cause:
    layer = run.config.layers_of(run.config.stage_of(_gpu(run, seed)[0]))[1]
    return Cause("hip_malloc", size * run.step_ns, _gpu(run, seed), _all(run), layer)


@_plants("a clock that sinks slowly", ("annotated", "fsdp"), telemetry=True, iterations=12)
def _sinking(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("sinking", 2 * size, (), _from_start(run))


@_plants("slow memory of all GPUs from then on", _STEADY)
def _later_memory(run: Simulated, size: float, seed: int) -> Cause:
    numbers = _all(run)
    factor = 1 + 2 * (_memory_factor(run, size) - 1)
    return Cause("later_memory", factor, (), numbers[len(numbers) // 2 :])


@_plants("debug kernels on one GPU", _STEADY)
def _debug(run: Simulated, size: float, seed: int) -> Cause:
    amount = size * run.step_ns / run.config.layers * k.USUAL_CLOCK
    return Cause("extra", amount, _gpu(run, seed), _from_start(run), None, "mlp_n")


@_plants("a slow host of one GPU", ("annotated", "module", "flat", "fsdp"))
def _slow_host(run: Simulated, size: float, seed: int) -> Cause:
    usual = max(_host_ns(run, trace) for trace in run.traces) / run.config.iterations
    return Cause("host", (1 + size) * run.step_ns / usual, _gpu(run, seed), _from_start(run))


@_plants("half of the GPUs capped", ("wide",))
def _capped(run: Simulated, size: float, seed: int) -> Cause:
    half = run.config.ranks // 2
    first = half * (seed % 2)
    return Cause("clock", _slower(size), tuple(range(first, first + half)), _from_start(run))


@_plants("a step that compiles", ("annotated", "module"))
def _compile(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("compile", _spread(run, size, 1), (), _one(run, seed), _layer(run, seed))


@_plants("slow copies of one GPU")
def _slow_copies(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("copies", size * run.step_ns, _gpu(run, seed), _all(run))


@_plants("a device synchronised in every layer", _STEADY)
def _synchronises(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("synchronises", size * run.step_ns / run.config.layers, (), _all(run))


@_plants("pauses of one host anywhere")
def _jitter(run: Simulated, size: float, seed: int) -> Cause:
    gpu = ((seed * 7 + 3) % (run.config.ranks // run.config.stages),)
    return Cause("jitter", size * run.step_ns, gpu, _all(run))


@_plants("more tokens on all GPUs every third step", _STEADY)
def _longer_every(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    return Cause("imbalance", size * run.config.iterations / len(those), (), those)


@_plants("a clock that dips every third step", ("annotated", "fsdp"), telemetry=True)
def _dip_every(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    slower = _slower(size * run.config.iterations / len(those))
    return Cause("clock", slower, _gpu(run, seed), those)


@_plants("data that take ever longer", ("annotated", "module"), iterations=12)
def _growing_data(run: Simulated, size: float, seed: int) -> Cause:
    return Cause("growing_data", size * run.step_ns, (), _all(run))


@_plants("logging on all GPUs every third step")
def _logging_every(run: Simulated, size: float, seed: int) -> Cause:
    those = _some(run, seed, 3)
    return Cause("logging", _spread(run, size, len(those)), (), those)


@_plants("one operation slow from then on", _STEADY)
def _later_operation(run: Simulated, size: float, seed: int) -> Cause:
    name, numbers = _operation(seed), _all(run)
    factor = 1 + 2 * size * run.step_ns / run.per_iteration_ns(operation=name)
    return Cause("kernels", factor, (), numbers[len(numbers) // 2 :], None, name)


def _costing(run: Simulated, size: float, cause: Cause) -> Cause:
    """The cause with the factor that costs about `size`, whatever hides a part of it."""
    for _ in range(3):
        after = simulated(replace(run.config, causes=(cause,)))
        cost = max(after.step_ns / run.step_ns - 1, size / 10)
        cause = replace(cause, amount=1 + (cause.amount - 1) * size / cost)
    return cause


def _from_start(run: Simulated) -> tuple[int, ...]:
    """All iterations, the first one too, which isn't shown."""
    return (c.FIRST_ITERATION, *run.config.complete_iterations)
