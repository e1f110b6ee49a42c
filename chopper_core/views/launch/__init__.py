"""Launch: what compute waits for before it starts, and why the GPU is idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.base import base_of
from chopper_core.analyses.idle_causes import HOST, IDLE_CAUSE_ROWS
from chopper_core.analyses.launch_columns import CAUSES, NEVER, least_ns, waited_ns
from chopper_core.analyses.rows import Own, Partition
from chopper_core.columns import METRICS, Scope, Values, column
from chopper_core.model.charts import BarChart, Chart, LineChart, Series
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import count, facts, level_title
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64
from chopper_core.views.launch import by_host
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="launch",
    title="Losses · launch",
    question="What does compute wait for before it starts, and why is the GPU idle?",
    by=(*any_level("operation", "phase", "layer", "gpu"), HOST),
    rows=(IDLE_CAUSE_ROWS,),
    needs_starts=True,
    any_split=True,
)

LAUNCH, PREP, CALL = OVERHEADS = ("launch_overhead_ns", "prep_overhead_ns", "call_overhead_ns")
_MAX_BARS: Final = 200
_MAX_LINES: Final = 16
_BINS: Final = 240
_LEAST_QUEUED: Final = 0.05
"""Fewer activities in the host's queue would be written as 0.0."""
QUEUE: Final = column("""queue_depth | | queue
    Activities that the host has launched and the GPU has not started yet, mean over the time
    of the scope.""")
_FIGURES: Final = (*OVERHEADS, "comm_wait_ns", "idle_ns", *CAUSES)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "operation"
    if by == HOST:
        return by_host.answer(run, view)
    rows = Partition.of(run.tree_of(view), view, by)
    own, total = _figures(rows.scope(run)), _figures(rows.whole_scope(run))
    base = base_of(run, view)
    whole = {name: base.each(values.at(0) or 0) for name, values in total.items()}
    gpus, middles, depths, clock_notes = run.memo(
        ("launch queues", view.order, view.path, view.cut),
        lambda: (*_queues(run, view, rows.whole), _clock_notes(run, view)),
    )
    is_known = bool(total[PREP].present()[0])
    queue: Own = []
    if by == "gpu":
        queue = [(QUEUE, Values(depths.mean(axis=1), np.full(len(gpus), not is_known)))]
    used = [name for name in CAUSES if own[name].numbers.any()]
    waits = [name for name in (*OVERHEADS, "comm_wait_ns") if own[name].numbers.any()]
    sort = LAUNCH if LAUNCH in waits else "idle_ns"
    drawn = {
        f"before compute starts, by {level_title(by)}": _parts_of_waits(own),
        f"time without compute, by {level_title(by)}": {
            CAUSES[name]: own[name].numbers for name in used
        },
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
        queue,
        [(QUEUE, Values(depths.mean(keepdims=True)[0], np.array([not is_known])))] if queue else (),
        sort=f"-{sort}",
        shown=(
            *(*waits, "main_cause"),
            *(metric.name for metric, _ in queue),
            *dict.fromkeys(("idle_ns", *used)),
            "least_latency_ns",
        ),
        headline=_headline(run, whole, base.words, gpus, depths.mean(axis=1), is_known=is_known),
        notes=(*clock_notes, *_notes(whole)),
        charts=tuple(charts),
    )


def _figures(scope: Scope) -> dict[str, Values]:
    return {name: METRICS[name].compute(scope) for name in _FIGURES}


def _parts_of_waits(figures: Mapping[str, Values]) -> dict[str, Int64 | Float64]:
    launch, prep, call = (figures[name].numbers for name in OVERHEADS)
    comm = figures["comm_wait_ns"].numbers
    parts = {
        "before launch": prep,
        "after launch, under communication": comm,
        "after launch, else": call - comm,
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
    run: Run,
    whole: Mapping[str, float],
    base: str,
    gpus: Sequence[int],
    depth: Float64,
    *,
    is_known: bool,
) -> tuple[str, ...]:
    def ms(name: str, words: str) -> str:
        return f"{run.mark(name)}{time_text(whole[name])} {words}" if whole[name] else ""

    def largest(parts: Mapping[str, str]) -> str:
        name = max(parts, key=lambda each: whole[each])
        return ms(name, parts[name])

    late, idle = ms(LAUNCH, f"start delay{base}"), ms("idle_ns", "idle")
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
        facts(late or "no start delay of compute", largest(parts)),
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


def _start(number: int) -> str:
    return f"{count(number, 'activity')} {'starts' if number == 1 else 'start'}"


def _clock_notes(run: Run, view: View) -> list[str]:
    """How far host and GPU clocks can disagree, by the shortest time from a launch to a start."""
    nodes = run.tree_of(view).split(view.path, ("gpu",))
    least = least_ns(nodes)
    early = np.zeros(len(nodes), np.int64)
    if least.min() < 0:
        early = nodes.sum_of(lambda table, rows: waited_ns(table, rows) < 0)
    notes = [
        f"GPU {nodes.codes('gpu')[place]}: {_start(int(early[place]))} before launch, by up to "
        f"{-least[place] / 1e3:.1f} µs: its clock is at least that far behind the host's"
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
