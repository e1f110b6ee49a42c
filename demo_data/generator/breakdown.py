"""The true clocks of the operations, and what makes up the time of the matrix ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import Any

from generator import constants as c
from generator.config import Config
from generator.records import Activity, GpuHistory, RankTrace
from generator.timeline import Steps, merged

Facts = dict[str, Any]
Place = tuple[str, str]

TERMS = ("theoretical", "extra_instructions", "mfma_underutilisation", "contention", "frequency")


def operation_clocks(
    config: Config, traces: Sequence[RankTrace], gpus: Sequence[GpuHistory]
) -> Facts:
    """The mean gfx clock of every operation on every GPU, over its own busy intervals."""
    return {
        "definition": "mean gfx_mhz over the union of the operation's activities in `iterations`",
        "iterations": list(config.complete_iterations),
        "per_gpu": {
            str(trace.rank): _nested(
                (place, _mean_mhz(gpu.clock, group))
                for place, group in _by_operation(_complete(config, trace)).items()
            )
            for trace, gpu in zip(traces, gpus, strict=True)
        },
    }


def breakdown(config: Config, traces: Sequence[RankTrace], gpus: Sequence[GpuHistory]) -> Facts:
    """What the time of each operation with matrix products is made of, on the counted GPUs."""
    return {
        "definition": (
            "sums over the operation's compute activities in `iterations`, each step from the one "
            "before: FLOPs at 304*2048*2100e6/s; executed matrix FLOPs; undisturbed cycles at "
            "2100 MHz; cycles in the trace at 2100 MHz; durations in the trace"
        ),
        "iterations": list(config.complete_iterations),
        "per_gpu": {
            str(rank): _of_gpu(config, traces[rank], gpus[rank]) for rank in config.counter_ranks
        },
    }


def _of_gpu(config: Config, trace: RankTrace, gpu: GpuHistory) -> Facts:
    around = {each.activity: each for each in _surroundings(trace)}
    groups = _by_operation(a for a in _complete(config, trace) if a.is_compute)
    return _nested(
        (place, _terms(gpu.clock, group, [around[activity] for activity in group]))
        for place, group in groups.items()
        if any(activity.kernel.flops for activity in group)
    )


def _terms(clock: Steps, group: Sequence[Activity], around: Sequence[Surroundings]) -> Facts:
    flops = sum(a.kernel.flops for a in group)
    executed = sum(a.kernel.executed_flops for a in group)
    cycles = fsum(a.cycles for a in group)
    durations_ns = sum(a.end_ns - a.start_ns for a in group)
    spent = fsum(clock.integral(a.end_ns) - clock.integral(a.start_ns) for a in group) / 1e3
    levels = [
        0,
        round(flops / c.PEAK_FLOPS_PER_NS),
        round(executed / c.PEAK_FLOPS_PER_NS),
        round(cycles * 1e3 / c.PEAK_MHZ),
        round(spent * 1e3 / c.PEAK_MHZ),
        durations_ns,
    ]
    parts = [upper - lower for lower, upper in pairwise(levels)]
    gaps_ns = sum(each.gap_ns for each in around)
    return {
        "kernels": len(group),
        "flops": flops,
        "extra_instructions": executed / flops - 1,
        "mfma_util": executed / c.PEAK_FLOPS_PER_NS / (cycles * 1e3 / c.PEAK_MHZ),
        "contention": spent / cycles,
        "mean_mhz": spent * 1e3 / durations_ns,
        **{f"{name}_ns": part for name, part in zip(TERMS, parts, strict=True)},
        "durations_ns": durations_ns,
        "launch_gaps_ns": gaps_ns,
        "elapsed_ns": durations_ns + gaps_ns,
        "beside_earlier_compute_ns": sum(each.shared_ns for each in around),
    }


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The idle time right before an activity, and its time beside compute that began earlier."""

    activity: Activity
    gap_ns: int
    shared_ns: int


def _surroundings(trace: RankTrace) -> Iterator[Surroundings]:
    activities = sorted(trace.activities, key=lambda a: (a.start_ns, a.stream))
    busy_until_ns = activities[0].start_ns
    compute_until_ns = busy_until_ns
    for activity in activities:
        shared_ns = min(activity.end_ns, compute_until_ns) - activity.start_ns
        yield Surroundings(activity, max(0, activity.start_ns - busy_until_ns), max(0, shared_ns))
        busy_until_ns = max(busy_until_ns, activity.end_ns)
        if activity.is_compute:
            compute_until_ns = max(compute_until_ns, activity.end_ns)


def _complete(config: Config, trace: RankTrace) -> list[Activity]:
    return [a for a in trace.activities if a.label.iteration in config.complete_iterations]


def _by_operation(activities: Iterable[Activity]) -> dict[Place, list[Activity]]:
    groups: dict[Place, list[Activity]] = defaultdict(list)
    for activity in activities:
        if activity.label.operation is not None:
            groups[activity.label.phase, activity.label.operation].append(activity)
    return dict(sorted(groups.items()))


def _mean_mhz(clock: Steps, group: Iterable[Activity]) -> float:
    spans = merged((a.start_ns, a.end_ns) for a in group)
    cycles = fsum(clock.integral(end) - clock.integral(start) for start, end in spans)
    return round(cycles / sum(end - start for start, end in spans), 3)


def _nested(rows: Iterable[tuple[Place, Any]]) -> Facts:
    nested: Facts = {}
    for (phase, operation), fact in rows:
        nested.setdefault(phase, {})[operation] = fact
    return nested
