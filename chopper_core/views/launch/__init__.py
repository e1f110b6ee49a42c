"""Launch: what compute waits for before it starts, and why the GPU is idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.base import base_of
from chopper_core.analyses.rows import Partition
from chopper_core.columns import METRICS, Scope, Values, columns, worded
from chopper_core.columns.derived import reduced
from chopper_core.columns.time import INSTANCE_LEVELS
from chopper_core.model.charts import BarChart, Chart, LineChart, Series
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue, SpansOfGpus
from chopper_core.model.table import NO_TIME, KernelTable, Kind, Selection
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import (
    minima_of,
    packed,
    ranked,
    run_minima,
    run_starts,
    run_sums,
    sums_of,
)
from chopper_core.views.launch import by_host
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="launch",
    title="Losses · launch",
    question="What does compute wait for before it starts, and why is the GPU idle?",
    by=(*any_level("operation", "phase", "layer", "gpu"), by_host.LEVEL),
    needs_starts=True,
    any_split=True,
)

LAUNCH, PREP, CALL = OVERHEADS = ("launch_overhead_ns", "prep_overhead_ns", "call_overhead_ns")
NEVER: Final = np.iinfo(np.int64).max
_MAX_BARS: Final = 200
_MAX_LINES: Final = 16
_BINS: Final = 240
_LEAST_QUEUED: Final = 0.05
"""Fewer activities in the host's queue would be written as 0.0."""
CAUSES: Final = {
    "idle_host_ns": "host late",
    "idle_latency_ns": "launch latency",
    "idle_queued_ns": "waits in queue",
    "idle_unknown_ns": "no launch record",
    "exposed_comm_ns": "communication",
    "exposed_copy_ns": "copies",
}
"""Causes of time without compute; the first four are idle time."""
STATISTICS: Final = {
    f"{name.split('_')[0]}_{statistic}_ns": (name, statistic)
    for statistic in ("mean", "median")
    for name in OVERHEADS
}
COLUMNS: Final = columns(
    "".join(
        f"""
    {title} | ns | {name.split("_")[0]} {statistic}
        The {statistic} of {name} over the row's instances: per GPU, iteration and layer for
        operations, else per GPU and iteration.
        missing: no compute in the row
        source: {METRICS[name].source}
"""
        for title, (name, statistic) in STATISTICS.items()
    )
    + """
    comm_wait_ns | ns | comm wait | sum
        The part of call_overhead_ns during which communication ran: launched, and waiting for it
        or running next to it.
        missing: no activity of the row has a launch record
    main_cause | | main cause
        The largest cause of time without compute: host late (idle_host_ns), launch latency
        (idle_latency_ns), waits in queue (idle_queued_ns), no launch record (idle_unknown_ns),
        copies (exposed_copy_ns), and communication: that the row is (exposed_comm_ns) or waits for
        (comm_wait_ns).
        missing: the row is compute that never had to wait
    queue_depth | | queue
        Activities that the host has launched and the GPU has not started yet, mean over the time
        of the scope.
    least_latency_ns | ns | least lat. | min | signed
        The shortest time from a launch call to the start. Below 0 the clocks of host and GPU
        disagree by at least as much.
        missing: no activity of the row has a launch record
"""
)
_OF_ROWS: Final = (
    *(*OVERHEADS, "comm_wait_ns", "main_cause", "idle_ns", *CAUSES, *STATISTICS),
    *("least_latency_ns", "queue_depth"),
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "operation"
    if by == by_host.LEVEL:
        return by_host.answer(run, view)
    rows = Partition.of(run.tree_of(view), view, by)
    over = INSTANCE_LEVELS if by == "operation" else ("gpu", "iteration")
    (node, place, *sums), comm_wait, least = _waits(run, rows.nodes, over)
    own = _figures(rows.scope(run)) | _statistics(rows.nodes, node, sums)
    _, merged = ranked(place)
    sums = [sums_of(each, merged) for each in sums]
    total = _figures(rows.whole_scope(run))
    total |= _statistics(rows.whole, np.zeros(len(sums[0]), np.intp), sums)
    for figures, wait, latency in (
        (own, comm_wait, least),
        (total, comm_wait.sum(keepdims=True), least.min(keepdims=True)),
    ):
        figures["comm_wait_ns"] = Values(wait, latency == NEVER)
        figures["least_latency_ns"] = Values(
            np.where(latency == NEVER, 0, latency), latency == NEVER
        )
    own["main_cause"] = _main_causes(own)
    base = base_of(run, view)
    whole = {name: base.each(values.at(0) or 0) for name, values in total.items()}
    gpus, middles, depths, clock_notes = run.memo(
        ("launch queues", view.order, view.path, view.cut),
        lambda: (*_queues(run, view, rows.whole), _clock_notes(run, view)),
    )
    is_known = bool(total[PREP].present()[0])
    if by == "gpu":
        own["queue_depth"] = Values(depths.mean(axis=1), np.full(len(gpus), not is_known))
        total["queue_depth"] = Values(depths.mean(keepdims=True)[0], np.array([not is_known]))
    used = [name for name in CAUSES if own[name].numbers.any()]
    waits = [name for name in (*OVERHEADS, "comm_wait_ns") if own[name].numbers.any()]
    sort = LAUNCH if LAUNCH in waits else "idle_ns"
    drawn = {
        f"before compute starts, by {by}": _parts_of_waits(own),
        f"time without compute, by {by}": {CAUSES[name]: own[name].numbers for name in used},
    }
    charts: list[Chart] = []
    for title, parts in drawn.items():
        whole_ns = np.sum([*parts.values()], axis=0) if parts else np.zeros(0)
        order = np.argsort(-whole_ns, kind="stable")[:_MAX_BARS]
        top = tuple(rows.labels[row] for row in order.tolist())
        ms = 1e6 * base.of_rows({by: top})
        bars = tuple(Series(name, ns[order] / ms) for name, ns in parts.items())
        charts += [BarChart(title, "ms", top, bars)] if bars else []
    if is_known:
        lines = {f"GPU {gpu}": depth for gpu, depth in zip(gpus[:_MAX_LINES], depths, strict=False)}
        title = "host queue: launched, not started"
        charts.append(LineChart.over(title, "", "time", "ms", middles, lines))
    return table_view(
        view,
        rows,
        columns_of({name: own[name] for name in _OF_ROWS if name in own}, COLUMNS),
        columns_of(total, COLUMNS),
        sort=f"-{sort}",
        shown=(
            *(*waits, "main_cause", "launch_mean_ns", "launch_median_ns"),
            *(name for name in ("queue_depth",) if name in own),
            *dict.fromkeys(("idle_ns", *used)),
            *(name for name, (overhead, _) in STATISTICS.items() if overhead != LAUNCH),
        ),
        headline=_headline(whole, base.words, gpus, depths.mean(axis=1), is_known=is_known),
        notes=(*clock_notes, *_notes(whole)),
        charts=tuple(charts),
    )


def _figures(scope: Scope) -> dict[str, Values]:
    return {name: METRICS[name].compute(scope) for name in (*OVERHEADS, "idle_ns", *CAUSES)}


def _waits(
    run: Run, nodes: Groups, over: Sequence[str]
) -> tuple[list[Index | Int64], Int64, Int64]:
    """Of each instance of nodes, in order, the node and the place among all labels of the levels
    `over`, how often it has launch records, and its sum of each of `OVERHEADS`; of each node how
    long communication ran in the call overhead, and the least latency."""
    table, count, parts = nodes.table, len(nodes), []
    comm_wait, least = np.zeros(count, np.int64), np.full(count, NEVER, np.int64)
    for rows, node in nodes.pieces():
        comm_wait += sums_of(_during_comm(run, rows), node, count)
        waited = _waited_ns(table, rows)
        least = np.minimum(least, minima_of(waited, node, count, NEVER))
        codes = (node, *(table.column(level)[rows] for level in over))
        # Activities of an instance follow each other, up to a few.
        first = run_starts(*codes)
        values = (table.column(each)[rows].astype(np.int64, copy=False) for each in OVERHEADS)
        is_linked = run_minima(waited, first) != NEVER
        sums = (run_sums(each, first) for each in values)
        parts.append((*(each[first] for each in codes), is_linked, *sums))
    whose, *rest = (np.concatenate(each) for each in zip(*parts, strict=True))
    labels, place = ranked(packed(rest[: len(over)]))
    found, owner = ranked(whose * np.int64(len(labels)) + place)
    added = (sums_of(each, owner) for each in rest[len(over) :])
    return [found // len(labels), found % len(labels), *added], comm_wait, least


def _statistics(nodes: Groups, owner: Index, instances: Sequence[Int64]) -> dict[str, Values]:
    linked, *sums = instances
    has_compute, found = nodes.computing() > 0, {}
    for title, (name, statistic) in STATISTICS.items():
        # Parts of the overhead are known only with a launch record.
        is_known = (linked > 0) | (name == LAUNCH)
        values = Values(np.where(is_known, sums[OVERHEADS.index(name)], np.nan))
        numbers = reduced(statistic, values, owner, len(nodes)).known()
        found[title] = Values(np.where(has_compute, numbers, np.nan))
    return found


def _least_ns(run: Run, nodes: Groups) -> Int64:
    """The shortest time from a launch call to a start; `NEVER` where there is none."""
    least = np.full(len(nodes), NEVER, np.int64)
    for rows, node in nodes.pieces():
        least = np.minimum(least, minima_of(_waited_ns(run.table, rows), node, len(nodes), NEVER))
    return least


def _waited_ns(table: KernelTable, rows: Selection) -> Int64:
    """How long after its launch call each starts; `NEVER` without such a call."""
    launch = table.launch_ns[rows]
    return np.where(launch == NO_TIME, NEVER, table.start_ns[rows] - launch)


def _during_comm(run: Run, rows: Selection) -> Int64:
    """How long communication ran in the call overhead of each activity."""
    table = run.table
    gpu, start, call = table.gpu[rows], table.start_ns[rows], table.call_overhead_ns[rows]
    # Where the GPU stood idle for as long before the start, nothing ran next to the call.
    own = np.flatnonzero(call > table.idle_ns[rows])
    wait = np.zeros(len(gpu), np.int64)
    running = run.memo(("communication",), lambda: _communication(table))
    wait[own] = running.within(gpu[own], start[own] - call[own], start[own])
    return wait


def _communication(table: KernelTable) -> SpansOfGpus:
    comm = np.flatnonzero(table.kind == Kind.COMM)
    return SpansOfGpus.running(table.gpu[comm], table.start_ns[comm], table.duration_ns[comm])


def _main_causes(figures: Mapping[str, Values]) -> Values:
    sizes = {name: figures[name].numbers for name in CAUSES}
    sizes["exposed_comm_ns"] = np.maximum(sizes["exposed_comm_ns"], figures["comm_wait_ns"].numbers)
    words = list(CAUSES.values())
    by_row = np.stack(list(sizes.values()), axis=1)
    return worded([words[row.argmax()] if row.any() else None for row in by_row])


def _parts_of_waits(figures: Mapping[str, Values]) -> dict[str, Int64 | Float64]:
    launch, prep, call = (figures[name].numbers for name in OVERHEADS)
    comm = figures["comm_wait_ns"].numbers
    parts = {
        "prep": prep,
        "call under communication": comm,
        "other call": call - comm,
        "no launch record": launch - prep - call,
    }
    return {name: part for name, part in parts.items() if part.any()}


def _queues(run: Run, view: View, parent: Groups) -> tuple[list[int], Float64, Float64]:
    """The GPUs, the middles of equal parts of the time in ms, and the depth of each queue there."""
    table, by_gpu = run.table, run.tree().by_gpu()
    gpus = run.tree_of(view).split(view.path, ("gpu",)).codes("gpu").tolist()
    begin, end = int(parent.min("start_ns")[0]), int(parent.max("end_ns")[0])
    # Times since the epoch are too large for a float to hold them to the nanosecond.
    edges = begin + np.linspace(0, max(end - begin, _BINS), _BINS + 1).astype(np.int64)
    depths = []
    for gpu in gpus:
        rows = by_gpu[gpu]
        launch, start = table.launch_ns[rows], table.start_ns[rows]
        near = (start > begin) & (launch < end)
        depths.append(Queue.of(launch[near], start[near]).depths(edges))
    return gpus, ((edges[:-1] + edges[1:]) / 2 - run.origin_ns) / 1e6, np.stack(depths)


def _headline(
    whole: Mapping[str, float], base: str, gpus: Sequence[int], depth: Float64, *, is_known: bool
) -> tuple[str, ...]:
    def ms(name: str, words: str) -> str:
        return f"{time_text(whole[name])} {words}" if whole[name] else ""

    def largest(parts: Mapping[str, str]) -> str:
        name = max(parts, key=lambda each: whole[each])
        return ms(name, parts[name])

    late, idle = ms(LAUNCH, f"late starts{base}"), ms("idle_ns", "idle")
    if not is_known:
        return (facts(late, idle, "without launch records the causes are unknown"),)
    causes = {name: CAUSES[name] for name in list(CAUSES)[:4]}
    parts = {PREP: "preparation", CALL: "launch calls"}
    if 2 * whole["comm_wait_ns"] > whole[CALL]:
        parts["comm_wait_ns"] = parts.pop(CALL) + " in communication"
    least, most = int(depth.argmin()), int(depth.argmax())
    queue = ""
    if depth[most] >= _LEAST_QUEUED:
        high, low = (f"{each:,.{int(each < 100)}f}" for each in depth[[most, least]].tolist())
        queue = f"mean queue {high} launches"
        if len(gpus) > 1:
            queue += f" on GPU {gpus[most]}, {low} on GPU {gpus[least]}"
    return (
        facts(late or "no late start of compute", largest(parts)),
        facts(f"{idle}, {largest(causes)}" if idle else "never idle", queue),
    )


def _notes(whole: Mapping[str, float]) -> list[str]:
    notes = []
    if whole["idle_queued_ns"]:
        notes.append(
            "waits in queue: the trace can't tell the dispatch of the next kernel from a wait for "
            "an event of the host, another stream or another GPU"
        )
    if whole["idle_unknown_ns"]:
        notes.append("the cause of idle time before activities without a launch record is unknown")
    return notes


def _clock_notes(run: Run, view: View) -> list[str]:
    """How far host and GPU clocks can disagree, by the shortest time from a launch to a start."""
    nodes = run.tree_of(view).split(view.path, ("gpu",))
    least = _least_ns(run, nodes)
    early = np.zeros(len(nodes), np.int64)
    if least.min() < 0:
        early = nodes.sum_of(lambda table, rows: _waited_ns(table, rows) < 0)
    notes = [
        f"GPU {nodes.codes('gpu')[place]}: {early[place]} activities start before their launch, by "
        f"up to {-least[place] / 1e3:.1f} µs: its clock is at least that far behind the host's"
        for place in np.flatnonzero(early).tolist()
    ]
    fine = least[(early == 0) & (least != NEVER)]
    if len(fine):
        of = "the GPU" if len(nodes) == 1 else f"{len(fine)} of {len(run.gpus)} GPUs"
        times = dict.fromkeys(f"{each / 1e3:.1f}" for each in (fine.min(), fine.max()))
        notes.append(
            f"clocks of host and GPU: on {of} no start precedes its launch; the shortest time "
            f"from a launch to a start is {' to '.join(times)} µs, the most that a GPU clock can "
            "be ahead"
        )
    return notes or [
        "no launch records: prep, call, causes of idle time and queue depth are unknown"
    ]
