"""The counter run: the same program once more for each pass, its kernels one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from generator import constants as c
from generator import losses
from generator.config import Config
from generator.kernels import Kernel, gemm, memory_bound
from generator.records import Activity, GpuHistory

PASSES = (
    ("GRBM_GUI_ACTIVE", "SQ_BUSY_CYCLES", "SQ_WAVES"),
    ("SQ_VALU_MFMA_BUSY_CYCLES", "SQ_INSTS_VALU_MFMA_MOPS_BF16"),
    (
        "TCC_EA0_RDREQ_sum",
        "TCC_EA0_WRREQ_sum",
        "TCC_EA0_RDREQ_32B_sum",
        "TCC_BUBBLE_sum",
        "TCC_EA0_WRREQ_64B_sum",
    ),
)
# A warm-up and a full one
ITERATIONS = 2
FIRST_PROCESS = 58_210
AFTER_TRACE_NS = 1_560_000_000_000
PASS_NS = 97_300_000_000
START_UP_DISPATCHES = (212, 229, 187)

LOST_IN_ONE_ITERATION = 7
LOST_IN_EVERY_ITERATION = 6
CUT_FROM_LAST_PASS = 37

CLOCK_FACTOR = 1.055
CLOCK_STEP = 0.0016
CLOCK_RETURN = 1 / 40
CYCLES_NOISE = 0.001
AUTOTUNE_REPEATS = 3
# Candidates that the library tries before it settles; the first is what it then uses.
_TRIED = (gemm("forward", c.TOKENS, c.HIDDEN, c.HIDDEN), gemm("dgrad", c.TOKENS, c.FFN, c.HIDDEN))
_TRIED_TILES = ("MT256x256x64", "MT256x192x64", "MT224x256x64", "MT128x256x32")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel as the counter run dispatched it; `place` is (iteration, position) in there."""

    number: int
    kernel: Kernel
    stream: int
    start_ns: int
    end_ns: int
    cycles: int
    place: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """What one pass recorded of one process, that is of one GPU."""

    rank: int
    number: int
    process: int
    counters: tuple[str, ...]
    dispatches: tuple[Dispatch, ...]


def program(gpu: GpuHistory, iteration: int) -> list[Activity]:
    """The kernels and memsets of an iteration in the order of their launches."""
    return [
        a
        for a in gpu.activities
        if a.label.iteration == iteration and a.kernel.category != "gpu_memcpy"
    ]


def profile(config: Config, gpu: GpuHistory) -> list[Profile]:
    """All passes over one GPU."""
    profiles = []
    for index, counters in enumerate(PASSES):
        dispatches = tuple(_dispatches(config, gpu, index))
        if index == len(PASSES) - 1:
            # This process ended before its last buffer was written.
            dispatches = dispatches[:-CUT_FROM_LAST_PASS]
        dispatches = losses.of_dispatches(config, gpu.rank, index, dispatches)
        process = FIRST_PROCESS + 4_513 * index + 113 * gpu.rank
        profiles.append(Profile(gpu.rank, index + 1, process, counters, dispatches))
    return profiles


def lost(config: Config, gpu: GpuHistory) -> list[set[int]]:
    """The positions in the program that were not recorded, for each iteration."""
    kernels = [
        position
        for position, activity in enumerate(program(gpu, c.FIRST_ITERATION + 1))
        if activity.is_compute and activity.kernel.category == "kernel"
    ]
    count = LOST_IN_EVERY_ITERATION + ITERATIONS * LOST_IN_ONE_ITERATION
    drawn = Random(f"{config.seed}:lost dispatches:{gpu.rank}").sample(kernels, count)
    always = set(drawn[:LOST_IN_EVERY_ITERATION])
    rest = drawn[LOST_IN_EVERY_ITERATION:]
    return [always | set(rest[iteration::ITERATIONS]) for iteration in range(ITERATIONS)]


def _tuning() -> Iterator[Kernel]:
    """The matrix products that the library times at the start to choose among."""
    for kernel in _TRIED:
        for tile in _TRIED_TILES:
            name = kernel.name.replace(_TRIED_TILES[0], tile)
            tried = Kernel(
                name,
                kernel.base_ns * (1 + 0.07 * _TRIED_TILES.index(tile)),
                kernel.grid,
                launcher=kernel.launcher,
                flops=kernel.flops,
                executed_flops=kernel.executed_flops,
                read_bytes=kernel.read_bytes,
                written_bytes=kernel.written_bytes,
            )
            yield from (tried,) * AUTOTUNE_REPEATS


def _as_dispatched(kernel: Kernel) -> Kernel:
    """The kernel that the runtime dispatches for it."""
    if kernel.category != "gpu_memset":
        return kernel
    return memory_bound("__amd_rocclr_fillBufferAligned", kernel.size_bytes, 2432, written=1.0)


class _Execution:
    """The serialised run of one pass: its clocks, and the next dispatch id."""

    def __init__(self, config: Config, gpu: GpuHistory, index: int) -> None:
        self.random = Random(f"{config.seed}:pass:{index}:{gpu.rank}")
        self.number = START_UP_DISPATCHES[index] + gpu.rank
        self.now_ns = c.BOOTTIME_ORIGIN_NS + AFTER_TRACE_NS + index * PASS_NS
        self.now_ns += self.random.randrange(4_000_000)
        self._base_mhz = gpu.base_mhz * CLOCK_FACTOR
        self._wander = 0.0

    def run(
        self, kernel: Kernel, cycles: float, stream: int = 0, place: tuple[int, int] | None = None
    ) -> Dispatch:
        """Runs a kernel alone and measures it."""
        random = self.random.random
        self._wander += CLOCK_STEP * (random() - 0.5) - CLOCK_RETURN * self._wander
        whole = round(cycles * (1 + CYCLES_NOISE * (random() - 0.5)))
        start_ns = self.now_ns + 18_000 + round(24_000 * random())
        self.now_ns = start_ns + round(whole * 1e3 / (self._base_mhz * (1 + self._wander)))
        self.number += 1
        return Dispatch(self.number, kernel, stream, start_ns, self.now_ns, whole, place)

    def skip(self) -> None:
        """Lets a kernel take its dispatch id without a measurement."""
        self.number += 1


def _dispatches(config: Config, gpu: GpuHistory, index: int) -> Iterator[Dispatch]:
    execution = _Execution(config, gpu, index)
    for kernel in _tuning():
        yield execution.run(kernel, kernel.nominal_cycles)
    activities = program(gpu, c.FIRST_ITERATION + 1)
    for iteration, missing in enumerate(lost(config, gpu)):
        for position, activity in enumerate(activities):
            if activity.is_comm or position in missing:
                execution.skip()
                continue
            kernel = _as_dispatched(activity.kernel)
            place = (iteration, position)
            yield execution.run(kernel, activity.cycles, activity.stream, place)


def counter_facts(
    config: Config, gpus: Sequence[GpuHistory], traced: Sequence[Sequence[Activity]]
) -> dict[str, object]:
    """How many dispatches each pass holds, and how many activities of the trace have counters."""
    counted = [gpus[rank] for rank in config.counter_ranks]
    return {
        "gpus": list(config.counter_ranks),
        "iterations": ["warm-up", "full"],
        "clock_factor": CLOCK_FACTOR,
        "passes": [
            {"pass": index + 1, "counters": list(counters)} for index, counters in enumerate(PASSES)
        ],
        "per_gpu": {str(gpu.rank): _facts_of_gpu(config, gpu, traced[gpu.rank]) for gpu in counted},
    }


def _facts_of_gpu(config: Config, gpu: GpuHistory, traced: Sequence[Activity]) -> dict[str, object]:
    profiles = profile(config, gpu)
    first = profiles[0].dispatches
    missing = lost(config, gpu)
    fills = sum(d.kernel.name.startswith("__amd") for d in first)
    return {
        "process_of_pass": [each.process for each in profiles],
        "dispatches_of_pass": [len(each.dispatches) for each in profiles],
        "extra": {"autotuning": sum(d.place is None for d in first), "memset_kernels": fills},
        "missing_of_iteration": [len(each) for each in missing],
        "missing_in_every_iteration": _missing(gpu, set.intersection(*missing)),
        "cut_from_last_pass": CUT_FROM_LAST_PASS,
        "mean_mhz_of_pass": [_mean_mhz(each.dispatches) for each in profiles],
        "trace_kernels": _expected(gpu, traced, missing),
    }


def _mean_mhz(dispatches: Sequence[Dispatch]) -> float:
    busy_ns = sum(d.end_ns - d.start_ns for d in dispatches)
    return round(sum(d.cycles for d in dispatches) * 1e3 / busy_ns, 3)


def _missing(gpu: GpuHistory, positions: set[int]) -> list[dict[str, object]]:
    activities = program(gpu, c.FIRST_ITERATION + 1)
    rows = [activities[position] for position in sorted(positions)]
    return [
        {
            "phase": a.label.phase,
            "layer": a.label.layer,
            "operation": a.label.operation,
            "kernel": a.kernel.name,
        }
        for a in rows
    ]


def _expected(
    gpu: GpuHistory, traced: Sequence[Activity], missing: Sequence[set[int]]
) -> dict[str, dict[str, int]]:
    """For each iteration of the trace: its compute kernels, and those measured at their place."""
    expected = {}
    shown = set(traced)
    never = set.intersection(*missing)
    for iteration in sorted({a.label.iteration for a in traced}):
        places = [
            position
            for position, activity in enumerate(program(gpu, iteration))
            if activity in shown and activity.is_compute and activity.kernel.category == "kernel"
        ]
        expected[str(iteration)] = {
            "compute_kernels": len(places),
            "measured_once_or_more": sum(place not in never for place in places),
            "measured_in_full_iteration": sum(place not in missing[-1] for place in places),
        }
    return expected
