"""The facts of a run, taken from the simulation's own records, in ns."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from generator import constants as c
from generator import counters, telemetry
from generator.breakdown import breakdown, operation_clocks
from generator.config import Config
from generator.cpu import cpu_facts
from generator.kineto import BASE_NS, RUN_START_NS, projected
from generator.memory import KEPT_BYTES
from generator.records import Activity, Collective, GpuHistory, RankTrace
from generator.serialised import counter_facts
from generator.stability import allocator_retries, idle_host_ns, stability
from generator.timeline import merged

Facts = dict[str, Any]


def truth(
    config: Config,
    gpus: Sequence[GpuHistory],
    traces: Sequence[RankTrace],
    collectives: Sequence[Collective],
) -> Facts:
    """Everything planted in the run, with where it is and how large."""
    facts = _of_traces(config, gpus, traces, collectives)
    sensors = [telemetry.signals(config, gpu) for gpu in gpus]
    facts["stability"] = stability(config, traces, sensors)
    if config.telemetry:
        facts["processors"] = cpu_facts(config, traces)
    if config.is_unsteady:
        facts["allocator_retries"] = allocator_retries(config, traces, gpus)
    if config.memory:
        facts["memory"] = _memory(config, traces)
    facts["operation_clocks"] = operation_clocks(config, traces, gpus)
    if config.counters:
        facts["breakdown"] = breakdown(config, traces, gpus)
    offsets: Facts = {}
    if config.telemetry:
        offsets |= telemetry.clock_offsets(config)
    if config.counters:
        offsets[counters.FOLDER] = counters.clock_offset()
        facts["counter_run"] = counter_facts(config, gpus, [trace.activities for trace in traces])
    facts["clock_offsets"] = {
        "definition": "ns to add to a source's stamps for ns since the epoch on the trace's clock",
        **offsets,
    }
    return facts


def _memory(config: Config, traces: Sequence[RankTrace]) -> Facts:
    return {
        "definition": "the most bytes allocated while recording; what the loop keeps of each step",
        "peak_bytes": {
            str(trace.rank): max(event.allocated_bytes for event in trace.memory)
            for trace in traces
        },
        "kept_bytes": KEPT_BYTES,
        "kept_by": "cel",
        "iterations": list(config.complete_iterations),
    }


def _of_traces(
    config: Config,
    gpus: Sequence[GpuHistory],
    traces: Sequence[RankTrace],
    collectives: Sequence[Collective],
) -> Facts:
    facts: Facts = {
        "schema": "chopper.demo-truth/1",
        "config": {
            "ranks": config.ranks,
            "iterations": list(config.shown_iterations),
            "cut_iteration": c.FIRST_ITERATION if config.has_cut else None,
            "layers": config.layers,
            "seed": config.seed,
            "annotations": config.annotations,
            "recompute": config.recompute,
            "counters": config.counters,
            "telemetry": config.telemetry,
            "strategy": config.strategy,
            "clean": config.clean,
        },
        "time_origin_ns": BASE_NS + RUN_START_NS,
        "counts": {str(trace.rank): counts(trace) for trace in traces},
        "spans_ns": {str(trace.rank): _spans(trace) for trace in traces},
    }
    if config.has_hot_gpu:
        facts["slow_gpu"] = {
            "rank": config.slow_rank,
            "mhz": {str(gpu.rank): gpu.base_mhz for gpu in gpus},
            "compute_slowdown": c.NOMINAL_MHZ / c.HOT_MHZ,
            "compute_kernel_ns": {str(t.rank): _compute_ns(t) for t in traces},
        }
    facts["collectives_wait"] = _waits(traces, collectives)
    if not config.clean:
        facts["overlap_slowed_operation"] = {
            "operation": c.SENSITIVE_OPERATION,
            "phase": "forward",
            "slowdown": c.SENSITIVE_SLOWDOWN,
            "other_operations_slowdown": [c.SPIN_SLOWDOWN, c.TRANSFER_SLOWDOWN],
            "per_rank": {str(trace.rank): _overlapped(trace) for trace in traces},
        }
    facts["exposed_communication"] = {
        "definition": "ns in which a collective's kernel ran and no other kernel or memset",
        "per_rank": {str(trace.rank): _exposed(trace) for trace in traces},
    }
    if config.has_incidents:
        facts["host_bound_stretch"] = _host_bound(config, traces[config.host_bound_rank])
        facts["slow_layer"] = _slow_layer(config, traces)
    shown = _recorded(collectives, traces)
    facts["collectives"] = [_collective(each, traces) for each in shown]
    return facts


def counts(trace: RankTrace) -> Facts:
    """How many events of each kind a rank's file holds."""
    events: Counter[str] = Counter(record.category for record in trace.ranges)
    events.update(activity.kernel.category for activity in trace.activities)
    events["cuda_runtime"] = len(trace.calls)
    events["gpu_user_annotation"] = len(projected(trace))
    events["ac2g"] = len(trace.calls) + len(trace.activities)
    flows = Counter(record.flow for record in trace.ranges if record.flow is not None)
    events["fwdbwd"] = flows.total()
    lost = [activity for activity in trace.activities if not activity.has_launch]
    early = sum(activity.call.start_ns < trace.start_ns for activity in lost)
    comm = [activity for activity in trace.activities if activity.collective]
    return {
        "events": dict(sorted(events.items())),
        "unlinked": {"before_start": early, "planted": len(lost) - early},
        "collectives": dict(
            sorted(Counter(a.collective.kind for a in comm if a.collective).items())
        ),
        "collectives_without_args": sum(not activity.has_collective_args for activity in comm),
        "one_ended_flows": {
            "ac2g": len(lost) + sum(call.activity is None for call in trace.calls),
            "fwdbwd": sum(ends == 1 for ends in flows.values()),
        },
    }


def true_labels(trace: RankTrace) -> dict[str, list[Any]]:
    """Parallel arrays over a rank's GPU activities in file order: what each really is."""
    rows = trace.activities
    return {
        "correlation": [a.call.correlation for a in rows],
        "name": [a.kernel.name for a in rows],
        "start_ns": [BASE_NS + RUN_START_NS + a.start_ns for a in rows],
        "dur_ns": [a.end_ns - a.start_ns for a in rows],
        "iteration": [a.label.iteration for a in rows],
        "phase": [a.label.phase for a in rows],
        "layer": [a.label.layer for a in rows],
        "operation": [a.label.operation for a in rows],
        "linked": [a.has_launch for a in rows],
        "recompute": [a.label.recompute for a in rows],
    }


def _by_iteration(activities: Iterable[Activity]) -> dict[int, list[Activity]]:
    groups: dict[int, list[Activity]] = defaultdict(list)
    for activity in activities:
        groups[activity.label.iteration].append(activity)
    return dict(sorted(groups.items()))


def _duration_ns(activity: Activity) -> int:
    return activity.end_ns - activity.start_ns


def _spans(trace: RankTrace) -> dict[str, int]:
    return {
        str(iteration): max(a.end_ns for a in group) - min(a.start_ns for a in group)
        for iteration, group in _by_iteration(trace.activities).items()
    }


def _compute_ns(trace: RankTrace) -> dict[str, int]:
    return {
        str(iteration): sum(_duration_ns(a) for a in group if a.is_compute)
        for iteration, group in _by_iteration(trace.activities).items()
    }


def _recorded(collectives: Sequence[Collective], traces: Sequence[RankTrace]) -> list[Collective]:
    """The collectives of which at least one rank's kernel is in the files."""
    shown = {a.collective.index for t in traces for a in t.activities if a.collective}
    return [collective for collective in collectives if collective.index in shown]


def _last_rank(collective: Collective) -> int:
    return max(collective.starts_ns, key=lambda rank: (collective.starts_ns[rank], rank))


def _collective(collective: Collective, traces: Sequence[RankTrace]) -> Facts:
    starts = {trace.rank: collective.starts_ns[trace.rank] for trace in traces}
    shown = [starts[t.rank] if starts[t.rank] >= t.start_ns else None for t in traces]
    return {
        "iteration": collective.label.iteration,
        "kind": collective.kind,
        "phase": collective.label.phase,
        "layer": collective.label.layer,
        "transfer_ns": collective.transfer_ns,
        "start_ns": shown,
        "end_ns": collective.end_ns,
        "last_rank": _last_rank(collective),
    }


def _waits(traces: Sequence[RankTrace], collectives: Sequence[Collective]) -> Facts:
    per_rank: Facts = {}
    for trace in traces:
        groups = _by_iteration(a for a in trace.activities if a.is_comm)
        per_rank[str(trace.rank)] = {
            str(iteration): sum(
                _duration_ns(a) - a.collective.transfer_ns for a in group if a.collective
            )
            for iteration, group in groups.items()
        }
    last: dict[str, Counter[str]] = defaultdict(Counter)
    for collective in _recorded(collectives, traces):
        last[collective.kind][str(_last_rank(collective))] += 1
    return {
        "definition": "duration of a collective's kernel beyond its transfer",
        "wait_ns": per_rank,
        "times_last": {kind: dict(sorted(ranks.items())) for kind, ranks in sorted(last.items())},
    }


def _shared_ns(one: tuple[int, int], others: Sequence[tuple[int, int]]) -> int:
    """How much of an interval lies within others, which are in order and without contact."""
    first = bisect_right(others, one[0], key=lambda each: each[1])
    shared = 0
    for start, end in map(others.__getitem__, range(first, len(others))):
        if start >= one[1]:
            break
        shared += min(one[1], end) - max(one[0], start)
    return shared


def _interval(activity: Activity) -> tuple[int, int]:
    return activity.start_ns, activity.end_ns


def _exposed(trace: RankTrace) -> dict[str, int]:
    exposed: dict[str, int] = {}
    for iteration, group in _by_iteration(trace.activities).items():
        compute = merged(_interval(a) for a in group if a.is_compute)
        comm = merged(_interval(a) for a in group if a.is_comm)
        exposed[str(iteration)] = sum(
            end - start - _shared_ns((start, end), compute) for start, end in comm
        )
    return exposed


def _overlapped(trace: RankTrace) -> Facts:
    comm = merged(_interval(a) for a in trace.activities if a.is_comm)
    groups: dict[str, list[int]] = {"alone": [], "partly": [], "fully": []}
    for activity in trace.activities:
        if activity.sensitive:
            duration = _duration_ns(activity)
            shared = _shared_ns(_interval(activity), comm)
            how = "alone" if shared == 0 else "fully" if shared == duration else "partly"
            groups[how].append(duration)
    return {
        how: {"count": len(durations), "mean_ns": fmean(durations) if durations else None}
        for how, durations in groups.items()
    }


def _host_bound(config: Config, trace: RankTrace) -> Facts:
    idle_ns = idle_host_ns(trace, config.last_iteration, config.host_bound_layers)
    return {
        "rank": trace.rank,
        "iteration": config.last_iteration,
        "phase": "forward",
        "layers": list(config.host_bound_layers),
        "stall_ns": c.STALL_NS,
        "definition": "idle ns before a launched activity of these layers, up to its launch call",
        "idle_host_ns": {str(layer): ns for layer, ns in idle_ns.items()},
        "total_idle_host_ns": sum(idle_ns.values()),
    }


def _slow_layer(config: Config, traces: Sequence[RankTrace]) -> Facts:
    phases: Facts = {}
    for phase in ("forward", "backward"):
        here: list[int] = []
        elsewhere: list[int] = []
        for trace in traces:
            for activity in trace.activities:
                label = activity.label
                if label.operation == c.SLOW_LAYER_OPERATION and label.phase == phase:
                    group = here if label.layer == config.slow_layer else elsewhere
                    group.append(_duration_ns(activity))
        phases[phase] = {
            "kernels": len(here),
            "mean_ns": fmean(here),
            "mean_ns_elsewhere": fmean(elsewhere) if elsewhere else None,
        }
    return {
        "operation": c.SLOW_LAYER_OPERATION,
        "layer": config.slow_layer,
        "slowdown": c.SLOW_LAYER_FACTOR,
        **phases,
    }
