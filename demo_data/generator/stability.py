"""How much clocks, power and durations differ over a run's iterations, from the simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import Any

from generator import constants as c
from generator.config import Config
from generator.records import Activity, GpuHistory, RankTrace
from generator.telemetry import Signals
from generator.timeline import Steps

Facts = dict[str, Any]
SIGNALS = ("gfx_mhz", "mem_mhz", "power_w")


def stability(config: Config, traces: Sequence[RankTrace], sensors: Sequence[Signals]) -> Facts:
    """The mean and the deviation of the signals in every iteration, and the kernels' spread."""
    return {
        "definition": (
            "per GPU and iteration, from its first start to its last end: time-weighted mean and "
            "standard deviation; kernel_spread_pct: median over the compute kernels of the "
            "iterations' longest duration less the shortest one, in % of it, for each place in an "
            "iteration (phase, layer, operation, name, number)"
        ),
        "iterations": list(config.complete_iterations),
        "unsteady": config.is_unsteady,
        "clock_factor": c.LOWERED_CLOCK if config.is_unsteady else 1.0,
        "per_gpu": {
            str(trace.rank): _of_gpu(config, trace, own)
            for trace, own in zip(traces, sensors, strict=True)
        },
    }


def allocator_retries(
    config: Config, traces: Sequence[RankTrace], gpus: Sequence[GpuHistory]
) -> Facts:
    """Where the allocator gave memory back, and what the GPU stood idle there for it."""
    return {
        "definition": (
            "ns in which the GPU had nothing to do before the first activity launched after the "
            "allocator had memory again, up to its launch call"
        ),
        "phase": "forward",
        "hip_free_ns": c.HIP_FREE_NS,
        "hip_malloc_ns": c.HIP_MALLOC_NS,
        "places": [
            {
                "rank": gpu.rank,
                "iteration": place.iteration,
                "layer": place.layer,
                "idle_host_ns": _idle_before_ns(trace, gpu.activities[first]),
            }
            for trace, gpu in zip(traces, gpus, strict=True)
            for first, place in gpu.retries.items()
            if place.iteration in config.complete_iterations
        ],
    }


def _idle_before_ns(trace: RankTrace, activity: Activity) -> int:
    earlier = [a.end_ns for a in trace.activities if a.start_ns < activity.start_ns]
    return max(0, activity.call.start_ns - max(earlier))


def idle_host_ns(trace: RankTrace, iteration: int, layers: Iterable[int]) -> dict[int, int]:
    """Idle time of the GPU up to the launch call of what starts next, in forward layers."""
    idle_ns = dict.fromkeys(layers, 0)
    covered_ns = trace.activities[0].start_ns
    for activity in sorted(trace.activities, key=lambda a: (a.start_ns, a.end_ns)):
        label = activity.label
        late = label.phase == "forward" and label.layer in idle_ns
        if late and activity.has_launch and label.iteration == iteration:
            gap_ns = max(0, activity.start_ns - covered_ns)
            assert label.layer is not None
            idle_ns[label.layer] += min(gap_ns, max(0, activity.call.start_ns - covered_ns))
        covered_ns = max(covered_ns, activity.end_ns)
    return idle_ns


def _of_gpu(config: Config, trace: RankTrace, sensors: Signals) -> Facts:
    spans = {}
    for iteration in config.complete_iterations:
        own = [a for a in trace.activities if a.label.iteration == iteration]
        spans[iteration] = (min(a.start_ns for a in own), max(a.end_ns for a in own))
    facts: Facts = {
        name: {str(i): _mean_and_deviation(getattr(sensors, name), *s) for i, s in spans.items()}
        for name in SIGNALS
    }
    facts["kernel_spread_pct"] = _kernel_spread_pct(config, trace)
    return facts


def _mean_and_deviation(signal: Steps, start_ns: int, end_ns: int) -> dict[str, float]:
    mean = signal.mean(start_ns, end_ns)
    inside = [time for time in signal.times_ns if start_ns < time < end_ns]
    edges = [start_ns, *inside, end_ns]
    squares = sum((signal.at(begin) - mean) ** 2 * (end - begin) for begin, end in pairwise(edges))
    deviation = sqrt(squares / (end_ns - start_ns))
    return {"mean": round(mean, 3), "deviation": round(deviation, 3)}


def _kernel_spread_pct(config: Config, trace: RankTrace) -> float | None:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for iteration in config.complete_iterations:
        seen: dict[Hashable, int] = defaultdict(int)
        for activity in sorted(trace.activities, key=_order):
            label = activity.label
            if label.iteration != iteration or not activity.is_compute:
                continue
            what = (label.phase, label.layer, label.operation, activity.kernel.name)
            seen[what] += 1
            places[what, seen[what]].append(activity.end_ns - activity.start_ns)
    count = len(config.complete_iterations)
    spreads = [
        100 * (max(durations) / min(durations) - 1)
        for durations in places.values()
        if len(durations) == count
    ]
    return round(median(spreads), 4) if count > 1 else None


def _order(activity: Activity) -> tuple[int, int]:
    return activity.start_ns, activity.stream
