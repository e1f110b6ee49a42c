"""Metrics of time and counts: what the trace alone gives."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics.metric import IF_SAME, Metric, Scope, Values, percent, ratio, total
from chopper_core.model.table import NO_TIME, STATES
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Int64

SHARE: Final = "share_pct"
INSTANCES: Final = "instances"
INSTANCE_LEVELS: Final = ("gpu", "iteration", "layer")
ACCOUNTING = "time accounting (docs/accounting.md)"


def _elapsed(scope: Scope) -> Int64:
    elapsed = np.zeros(len(scope.nodes), np.int64)
    for state in STATES:
        elapsed += scope.nodes.sum(state)
    return elapsed


def _share(scope: Scope) -> Values:
    whole = sum(int(scope.parent.sum(state)[0]) for state in STATES)
    return percent(_elapsed(scope), np.full(len(scope.nodes), whole, np.int64))


def _busy(scope: Scope) -> Values:
    elapsed = _elapsed(scope)
    return percent(elapsed - scope.nodes.sum("idle_ns"), elapsed)


def _bytes(scope: Scope) -> Values:
    known = scope.nodes.max("bytes") >= 0
    return Values(scope.nodes.sum("known_bytes"), ~known)


def _of_launches(name: str, title: str, definition: str, source: str) -> Metric:
    """A sum over times since or until launch calls: of nodes without one it isn't known."""

    def compute(scope: Scope) -> Values:
        nodes = scope.nodes
        return Values(nodes.sum(name), nodes.sum("unlinked") == nodes.sizes())

    return Metric(
        name,
        Unit.NS,
        title,
        "sum",
        definition,
        compute,
        source=source,
        missing_because="no activity here has a launch record",
    )


def _if_same(column: str, none: int, offset: bool = False) -> Metric:
    titles = {
        "stream": ("stream", Unit.NONE, "Stream (queue) of the activities."),
        "launch_ns": (
            "launch",
            Unit.NS,
            "When the launch call began, since the run's first activity.",
        ),
    }
    title, unit, definition = titles[column]

    def compute(scope: Scope) -> Values:
        low, high = scope.nodes.min(column), scope.nodes.max(column)
        return Values(low - scope.origin_ns if offset else low, (low != high) | (low == none))

    return Metric(
        column,
        unit,
        title,
        IF_SAME,
        definition,
        compute,
        missing_because="the activities of the row differ in it, or the trace doesn't give it",
    )


def _instances(scope: Scope) -> Values:
    _, node = scope.nodes.split(INSTANCE_LEVELS)
    return Values(np.bincount(node, minlength=len(scope.nodes)).astype(np.int64))


def _end(scope: Scope) -> Values:
    return Values(scope.nodes.max("end_ns") - scope.origin_ns)


COUNTS = ("kernels", "activities", "collectives", "copies", "unlinked", "bytes", "stream")
"""What needs no times."""

METRICS = (
    Metric(
        "elapsed_ns",
        Unit.NS,
        "time",
        "sum",
        "The part of the GPUs' spans charged to the row: compute_ns + overlap_ns + "
        "exposed_comm_ns + exposed_copy_ns + idle_ns. Rows add up to their parent.",
        lambda scope: Values(_elapsed(scope)),
        source=ACCOUNTING,
    ),
    Metric(
        SHARE,
        Unit.PERCENT,
        "%",
        "ratio of sums",
        "elapsed_ns of the row, in % of its parent's.",
        _share,
        source=ACCOUNTING,
        missing_because="the parent has no time",
    ),
    Metric(
        "kernels",
        Unit.NONE,
        "kernels",
        "sum",
        "Number of kernels, collectives among them; copies and memsets are not kernels.",
        lambda scope: Values(scope.nodes.sum("kernels")),
    ),
    Metric(
        "busy_pct",
        Unit.PERCENT,
        "busy %",
        "ratio of sums",
        "Part of elapsed_ns during which something ran: 100 x (elapsed_ns - idle_ns) / elapsed_ns.",
        _busy,
        source=ACCOUNTING,
        missing_because="the row has no time of its own: all of it ran beside something else",
    ),
    total(
        "compute_ns",
        "compute",
        "Time of compute without communication, charged to the compute that started first.",
        source=ACCOUNTING,
    ),
    total(
        "overlap_ns",
        "overlap",
        "Time of compute while communication ran too, charged to the compute.",
        source=ACCOUNTING,
    ),
    total(
        "exposed_comm_ns",
        "exp.comm",
        "Time of communication without compute, charged to the communication.",
        source=ACCOUNTING,
    ),
    total(
        "exposed_copy_ns",
        "exp.copy",
        "Time of copies without compute or communication, charged to the copy.",
        source=ACCOUNTING,
    ),
    total(
        "idle_ns",
        "idle",
        "Time in which nothing ran, charged to the activity that started next.",
        source=ACCOUNTING,
    ),
    total(
        "hidden_ns",
        "hidden",
        "Time of communication under compute; stands beside the accounting, adds to no span.",
        source=ACCOUNTING,
    ),
    Metric(
        "kernel_ns",
        Unit.NS,
        "kern.time",
        "sum",
        "Sum of the durations of the activities; what runs at the same time counts twice.",
        lambda scope: Values(scope.nodes.sum("duration_ns")),
    ),
    Metric(
        "compute_busy_ns",
        Unit.NS,
        "comp.union",
        "sum",
        "Time in which compute ran: compute_ns + overlap_ns.",
        lambda scope: Values(scope.nodes.sum("compute_ns") + scope.nodes.sum("overlap_ns")),
        source=ACCOUNTING,
    ),
    _of_launches(
        "idle_host_ns",
        "idle host",
        "Idle before the launch call of the activity that started next: the host was late.",
        source=ACCOUNTING,
    ),
    _of_launches(
        "idle_launch_ns",
        "idle launch",
        "Idle from the launch call on: launched, but not started yet.",
        source=ACCOUNTING,
    ),
    total(
        "idle_unknown_ns",
        "idle unkn.",
        "Idle before an activity of which the trace has no launch record.",
        source=ACCOUNTING,
    ),
    total(
        "launch_overhead_ns",
        "launch ovh",
        "Chopper's launch overhead: gaps between neighbouring compute activities of an iteration.",
        source="UnaryLab/chopper trace_metrics.py",
    ),
    _of_launches(
        "prep_overhead_ns",
        "prep ovh",
        "Chopper's prep overhead: the part of the launch overhead before the launch call.",
        source="UnaryLab/chopper trace_metrics.py",
    ),
    _of_launches(
        "call_overhead_ns",
        "call ovh",
        "Chopper's call overhead: the part of the launch overhead from the launch call on.",
        source="UnaryLab/chopper trace_metrics.py",
    ),
    Metric(
        "activities",
        Unit.NONE,
        "activities",
        "sum",
        "Number of kernels, copies and memsets.",
        lambda scope: Values(scope.nodes.sizes()),
    ),
    Metric(
        "collectives",
        Unit.NONE,
        "collectives",
        "sum",
        "Number of communication kernels.",
        lambda scope: Values(scope.nodes.sum("collectives")),
    ),
    Metric(
        "copies",
        Unit.NONE,
        "copies",
        "sum",
        "Number of copies.",
        lambda scope: Values(scope.nodes.sum("copies")),
    ),
    Metric(
        "unlinked",
        Unit.NONE,
        "unlinked",
        "sum",
        "Number of activities without a launch record.",
        lambda scope: Values(scope.nodes.sum("unlinked")),
    ),
    Metric(
        INSTANCES,
        Unit.NONE,
        "instances",
        "sum of different ones",
        "In how many layers of iterations of GPUs the row occurs; beside a statistic, over how "
        "many instances that goes.",
        _instances,
    ),
    Metric(
        "mean_ns",
        Unit.NS,
        "mean",
        "ratio of sums",
        "Mean duration of an activity.",
        lambda scope: ratio(scope.nodes.sum("duration_ns"), scope.nodes.sizes()),
    ),
    Metric(
        "min_ns",
        Unit.NS,
        "min",
        "min",
        "Shortest duration of an activity.",
        lambda scope: Values(scope.nodes.min("duration_ns")),
    ),
    Metric(
        "max_ns",
        Unit.NS,
        "max",
        "max",
        "Longest duration of an activity.",
        lambda scope: Values(scope.nodes.max("duration_ns")),
    ),
    Metric(
        "bytes",
        Unit.BYTES,
        "bytes",
        "sum",
        "Bytes that copies and collectives moved, where the trace says it; for a collective the "
        "larger of its input and output.",
        _bytes,
        missing_because="the trace gives no size for any activity of the row",
    ),
    Metric(
        "start_ns",
        Unit.NS,
        "start",
        "min",
        "Start of the first activity, since the run's first activity.",
        lambda scope: Values(scope.nodes.min("start_ns") - scope.origin_ns),
    ),
    Metric(
        "end_ns",
        Unit.NS,
        "end",
        "max",
        "End of the last activity, since the run's first activity.",
        _end,
    ),
    _if_same("stream", -1),
    _if_same("launch_ns", NO_TIME, offset=True),
)
