"""Launch: what compute waits for before it starts, and why the GPU is idle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import (
    METRICS,
    Metric,
    Scope,
    Values,
    column,
    computed_column,
    numbered,
    worded,
)
from chopper_core.metrics.time import INSTANCE_LEVELS
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.groups import Groups, gpu_by_gpu
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue, TimeSpans
from chopper_core.model.table import NO_TIME, KernelTable, Kind, Selection
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    means_of,
    minima_of,
    quantiles_of,
    ranked,
    sums_of,
)
from chopper_core.views.launch import by_host
from chopper_core.views.shared.table_view import Own, Partition, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="launch",
    title="Launch",
    question="What does compute wait for before it starts, and why is the GPU idle?",
    by=(*any_level("operation", "phase", "layer", "gpu"), "host"),
    needs_starts=True,
    any_split=True,
)

OVERHEADS: Final = ("launch_overhead_ns", "prep_overhead_ns", "call_overhead_ns")
NEVER: Final = np.iinfo(np.int64).max
_STATISTICS: Final = ("mean", "median")
_MAX_BARS: Final = 12
_MAX_LINES: Final = 16
_BINS: Final = 240
_UNLINKED: Final = "no activity of the row has a launch record"

COMM_WAIT: Final = column(f"""comm_wait_ns | ns | comm wait | sum
    The part of call_overhead_ns during which communication ran: launched, and waiting for it
    or running beside it.
    missing: {_UNLINKED}""")
CAUSE: Final = column("""main_cause | | main cause
    The largest cause of time without compute: host late (idle_host_ns), launch latency
    (idle_latency_ns), waits in queue (idle_queued_ns), no launch record (idle_unknown_ns),
    copies (exposed_copy_ns), and communication: that the row is (exposed_comm_ns) or waits for
    (comm_wait_ns).
    missing: the row is compute that never had to wait""")
QUEUE: Final = column("""queue_depth | | queue
    Activities that the host has launched and the GPU has not started yet, mean over the time
    of the scope.""")
LEAST: Final = column(f"""least_latency_ns | ns | least lat. | min | signed
    The shortest time from a launch call to the start. Below 0 the clocks of host and GPU
    disagree by at least as much.
    missing: {_UNLINKED}""")
CAUSES: Final = {
    "idle_host_ns": "host late",
    "idle_latency_ns": "launch latency",
    "idle_queued_ns": "waits in queue",
    "idle_unknown_ns": "no launch record",
    "exposed_comm_ns": "communication",
    "exposed_copy_ns": "copies",
}
"""Causes of time without compute; the first four are idle time."""


def _statistic(name: str, statistic: str) -> Metric:
    known = METRICS[name]
    what = known.title.removesuffix(" ovh")
    return computed_column(
        f"{name.removesuffix('_overhead_ns')}_{statistic}_ns",
        "ns",
        f"{what} {statistic}",
        f"The {statistic} of {name} over the row's instances: per GPU, iteration and layer for "
        "operations, else per GPU and iteration.",
        source=known.source,
        missing_because="no compute in the row",
    )


STATISTICS: Final = {
    (name, statistic): _statistic(name, statistic)
    for statistic in _STATISTICS
    for name in OVERHEADS
}


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "operation"
    if by == by_host.LEVEL:
        return by_host.answer(run, view)
    rows = Partition.of(run.tree_of(view), view, by)
    over = INSTANCE_LEVELS if by == "operation" else ("gpu", "iteration")
    waits = _Waits.of(run, rows, over)
    own, total = _figures(rows.scope(run), waits), _figures(rows.whole_scope(run), waits.together())
    figures = {metric.name: values for metric, values in own}
    whole = {metric.name: values.at(0) for metric, values in total}
    (gpus, edges, depths), clock_notes = run.memo(
        ("launch queues", view.order, view.path, view.cut),
        lambda: (_queues(run, view, rows.whole), _clock_notes(run, rows.whole)),
        keep=1,
    )
    own.insert(4, (CAUSE, _main_causes(figures)))
    is_known = whole["prep_overhead_ns"] is not None
    if by == "gpu":
        unknown = np.full(len(gpus), not is_known)
        own.append((QUEUE, Values(depths.mean(axis=1), unknown)))
        total.append((QUEUE, Values(depths.mean(keepdims=True)[0], unknown[:1])))
    used = [name for name in CAUSES if figures[name].numbers.any()]
    shown = [name for name in (*OVERHEADS, COMM_WAIT.name) if figures[name].numbers.any()]
    sort = "launch_overhead_ns" if "launch_overhead_ns" in shown else "idle_ns"
    shown += [CAUSE.name, "launch_mean_ns", "launch_median_ns"]
    shown += [*((QUEUE.name,) if by == "gpu" else ()), "idle_ns", *used]
    shown += [metric.name for key, metric in STATISTICS.items() if key[0] != OVERHEADS[0]]
    order = np.argsort(-figures[sort].numbers, kind="stable")[:_MAX_BARS]
    causes = {CAUSES[name]: figures[name].numbers[order] for name in used}
    drawn = {
        f"before compute starts, by {by}": _gaps(figures, order),
        f"time without compute, by {by}": causes,
    }
    top = tuple(rows.labels[row] for row in order.tolist())
    bars = [
        BarChart(title, "ms", top, series)
        for title, parts in drawn.items()
        if (series := tuple(Series(name, ns / 1e6) for name, ns in parts.items()))
    ]
    middles = ((edges[:-1] + edges[1:]) / 2 - run.origin_ns) / 1e6
    lines = {f"GPU {gpu}": depth for gpu, depth in zip(gpus[:_MAX_LINES], depths, strict=False)}
    title = "host queue: launched, not started"
    queue = LineChart.over(title, "", "time", "ms", middles, lines)
    return table_view(
        view,
        rows,
        own,
        total,
        sort=f"-{sort}",
        shown=tuple(dict.fromkeys(shown)),
        headline=_headline(whole, gpus, depths),
        notes=(*clock_notes, *_notes(whole)),
        charts=(*bars, *([queue] if is_known else [])),
    )


def _figures(scope: Scope, waits: _Waits) -> Own:
    """All columns but the words."""
    nodes = scope.nodes
    has_compute = nodes.sizes() > nodes.sum("collectives") + nodes.sum("copies")
    unlinked = waits.least_ns == NEVER
    node, (linked, *sums) = waits.node, waits.sums

    def known(*names: str) -> Own:
        return [(METRICS[name], METRICS[name].compute(scope)) for name in names]

    def statistic(name: str, statistic: str) -> Values:
        # Parts of the overhead are known only with a launch record.
        own = (linked > 0) | (name == OVERHEADS[0])
        values, owner, count = sums[OVERHEADS.index(name)][own], node[own], len(nodes)
        if statistic == "median":
            found = quantiles_of(values, owner, count, (0.5,))[:, 0]
        else:
            found = means_of(values, owner, count)
        return numbered(np.where(has_compute, found, np.nan))

    return [
        *known(*OVERHEADS),
        (COMM_WAIT, Values(waits.comm_wait_ns, unlinked)),
        *known("idle_ns", *CAUSES),
        *((metric, statistic(*key)) for key, metric in STATISTICS.items()),
        (LEAST, Values(np.where(unlinked, 0, waits.least_ns), unlinked)),
    ]


def _main_causes(figures: dict[str, Values]) -> Values:
    causes = {name: figures[name].numbers for name in CAUSES}
    causes["exposed_comm_ns"] = np.maximum(
        causes["exposed_comm_ns"], figures[COMM_WAIT.name].numbers
    )
    sizes, words = np.stack(list(causes.values()), axis=1), list(CAUSES.values())
    return worded([words[row.argmax()] if row.any() else None for row in sizes])


def _gaps(figures: dict[str, Values], order: Index) -> dict[str, Int64 | Float64]:
    launch, prep, call = (figures[name].numbers[order] for name in OVERHEADS)
    comm = figures[COMM_WAIT.name].numbers[order]
    parts = {
        "prep": prep,
        "call under communication": comm,
        "other call": call - comm,
        "no launch record": launch - prep - call,
    }
    return {name: part for name, part in parts.items() if part.any()}


def _queues(run: Run, view: View, parent: Groups) -> tuple[list[int], Int64, Float64]:
    gpus = run.tree_of(view).split(view.path, ("gpu",)).codes("gpu").tolist()
    begin, end = int(parent.min("start_ns")[0]), int(parent.max("end_ns")[0])
    # Times since the epoch are too large for a float to hold them to the nanosecond.
    edges = begin + np.linspace(0, max(end - begin, _BINS), _BINS + 1).astype(np.int64)
    depths = []
    for gpu in gpus:
        rows = run.tree().node((str(gpu),)).selection
        launch, start = run.table.launch_ns[rows], run.table.start_ns[rows]
        near = (start > begin) & (launch < end)
        depths.append(Queue.of(launch[near], start[near]).depths(edges))
    return gpus, edges, np.stack(depths)


_LEAST_QUEUED: Final = 0.05
"""Fewer activities in the host's queue would be written as 0.0."""


def _headline(
    whole: dict[str, int | float | None], gpus: list[int], depths: Float64
) -> tuple[str, ...]:
    def ms(name: str) -> str:
        return time_text(whole[name] or 0)

    if whole[OVERHEADS[1]] is None:
        return (
            f"compute waits {ms('launch_overhead_ns')} to start; the GPU is idle "
            f"{ms('idle_ns')}; without launch records the causes are unknown",
        )

    idle = ", ".join(f"{CAUSES[name]} {ms(name)}" for name in list(CAUSES)[:4] if whole[name])
    mean = depths.mean(axis=1)
    least, most = int(mean.argmin()), int(mean.argmax())
    queue = f"{mean[most]:.1f} launched activities are in the host queue on average"
    if len(gpus) > 1:
        queue += f" of GPU {gpus[most]}, {mean[least]:.1f} on GPU {gpus[least]}"
    parts = {
        "prep_overhead_ns": "preparation",
        "call_overhead_ns": "launch calls",
        "comm_wait_ns": "of these during communication",
    }
    late = ", ".join(f"{ms(name)} {words}" for name, words in parts.items() if whole[name])
    waits = f"compute starts {ms('launch_overhead_ns')} late: {late}"
    return (
        waits if whole["launch_overhead_ns"] else "compute starts at once",
        f"idle {ms('idle_ns')}{': ' if idle else ''}{idle}" if whole["idle_ns"] else "never idle",
        *((queue,) if mean[most] >= _LEAST_QUEUED else ()),
    )


def _notes(whole: dict[str, int | float | None]) -> tuple[str, ...]:
    notes = []
    if whole["idle_queued_ns"]:
        notes.append(
            "waits in queue: the trace can't tell the dispatch of the next kernel from a wait for "
            "an event of the host, another stream or another GPU"
        )
    if whole["idle_unknown_ns"]:
        notes.append("the cause of idle time before activities without a launch record is unknown")
    return tuple(notes)


def _clock_notes(run: Run, parent: Groups) -> tuple[str, ...]:
    """How far host and GPU clocks can disagree, by the shortest time from a launch to a start."""
    count = max(gpu.index for gpu in run.gpus) + 1
    least, early, number = np.full(count, NEVER), np.zeros(count, np.int64), 0
    for rows in gpu_by_gpu(run.table, parent.selection):
        gpu, waited = run.table.gpu[rows], waited_ns(run.table, rows)
        least = np.minimum(least, minima_of(waited, gpu, count, NEVER))
        early += counts_of(gpu[waited < 0], count)
        number += len(distinct(gpu))
    notes = [
        f"GPU {gpu}: {early[gpu]} activities start before their launch, by up to "
        f"{-least[gpu] / 1e3:.1f} µs: its clock is at least that far behind the host's"
        for gpu in np.flatnonzero(early).tolist()
    ]
    fine = least[(early == 0) & (least != NEVER)].tolist()
    if fine:
        of = "the GPU" if number == 1 else f"{len(fine)} of {len(run.gpus)} GPUs"
        notes.append(
            f"clocks of host and GPU: on {of} no start precedes its launch; the shortest time "
            f"from a launch to a start is {min(fine) / 1e3:.1f} to {max(fine) / 1e3:.1f} µs, the "
            "most that a GPU clock can be ahead"
        )
    if not notes:
        return ("no launch records: prep, call, causes of idle time and queue depth are unknown",)
    return tuple(notes)


class _Waits(Struct, frozen=True, eq=False):
    """Sums over the activities of nodes, and over those of their instances."""

    comm_wait_ns: Int64
    """The part of a node's call overhead during which communication ran on the GPU."""
    least_ns: Int64
    """The shortest time from a launch call to a start; `NEVER` where there is none."""
    node: Int64
    """The node of each instance, ascending."""
    instance: Int64
    """Its codes at some levels as one number, the same in every node."""
    sums: list[Int64]
    """By instance: activities with a launch record, and each of `OVERHEADS`."""

    @classmethod
    def of(cls, run: Run, partition: Partition, over: Sequence[str]) -> _Waits:
        table, nodes, count = run.table, partition.nodes, len(partition.nodes)
        comm_wait, least = np.zeros(count, np.int64), np.full(count, NEVER, np.int64)
        levels = [table.column(level)[partition.whole.selection] for level in over]
        lows = [int(codes.min()) for codes in levels]
        widths = [int(codes.max()) - low + 1 for codes, low in zip(levels, lows, strict=True)]
        parts = []
        for rows, node in nodes.pieces():
            waited = waited_ns(table, rows)
            least = np.minimum(least, minima_of(waited, node, count, NEVER))
            comm_wait += sums_of(_beside_comm(run, rows), node, count)
            code = node.astype(np.int64)
            for level, low, width in zip(over, lows, widths, strict=True):
                code = code * width + (table.column(level)[rows] - low)
            codes, owner = ranked(code)
            values = (waited != NEVER, *(table.column(name)[rows] for name in OVERHEADS))
            parts.append((codes, *(sums_of(value, owner, len(codes)) for value in values)))
        codes, *sums = map(np.concatenate, zip(*parts, strict=True))
        codes, *sums = _added_up(codes, sums)
        size = int(np.prod(widths, dtype=np.int64))
        return cls(comm_wait, least, codes // size, codes % size, sums)

    def together(self) -> _Waits:
        """The same with all nodes as one."""
        wait, least = self.comm_wait_ns.sum(keepdims=True), self.least_ns.min(keepdims=True)
        instance, *sums = _added_up(self.instance, self.sums)
        return _Waits(wait, least, np.zeros(len(instance), np.int64), instance, sums)


def _added_up(codes: Int64, sums: Sequence[Int64]) -> list[Int64]:
    """The distinct codes, ascending, and the sums over each."""
    each, owner = ranked(codes)
    return [each, *(sums_of(values, owner, len(each)) for values in sums)]


def waited_ns(table: KernelTable, rows: Selection) -> Int64:
    """How long after its launch call each starts; `NEVER` without such a call."""
    launch = table.launch_ns[rows]
    return np.where(launch == NO_TIME, NEVER, table.start_ns[rows] - launch)


def _beside_comm(run: Run, rows: Selection) -> Int64:
    """How long communication ran in the call overhead of each activity."""
    table = run.table
    gpu, start, call = table.gpu[rows], table.start_ns[rows], table.call_overhead_ns[rows]
    # Where the GPU stood idle for as long before the start, nothing ran next to the call.
    waiting = call > table.idle_ns[rows]
    wait = np.zeros(len(gpu), np.int64)
    for number in distinct(gpu[waiting]).tolist():
        running = run.memo(("communication", number), partial(_comm_of, run, number))
        own = np.flatnonzero(waiting & (gpu == number))
        wait[own] = running.within(start[own] - call[own], start[own])
    return wait


def _comm_of(run: Run, gpu: int) -> TimeSpans:
    table = run.table
    whole = run.tree().node((str(gpu),)).selection
    comm = np.flatnonzero(table.kind[whole] == Kind.COMM)
    return TimeSpans.running(table.start_ns[whole][comm], table.duration_ns[whole][comm])
