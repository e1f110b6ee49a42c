"""Metrics of time and counts, which the trace alone gives, and of telemetry."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.columns.metric import (
    METRICS,
    Metric,
    Reduces,
    Scope,
    Theme,
    Values,
    absent,
    declare,
    metric,
    quotient,
    time_weighted,
)
from chopper_core.model.column_names import (
    COUNTS_PER_US,
    ENERGY,
    HELD,
    SAMPLED,
    integral_of,
    known_of,
    samples_in,
)
from chopper_core.model.groups import quantiles
from chopper_core.model.signals import TRACKS
from chopper_core.model.table import NO_TIME
from chopper_core.model.units import AnyUnit, Unit
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import counts_of, places_by, ratios

SHARE: Final = "share_pct"
KERNEL_SHARE: Final = "kernel_pct"
INSTANCES: Final = "instances"
INSTANCE_LEVELS: Final = ("gpu", "iteration", "layer")
_ACCOUNTING: Final = "time accounting (docs/accounting.md)"
_NO_LAUNCH: Final = "no activity of the row has a launch record"
_COLUMNS_OF: Final = {
    "kernel_ns": ("duration_ns",),
    "compute_busy_ns": ("compute_ns", "overlap_ns"),
}
"""The columns that a metric adds up, where it isn't the one of its name."""
_NO_ACTIVITY: Final = "the row has no activity"
_NOT_COMMON: Final = "the activities of the row differ in it, or the trace doesn't record it"


_telemetry = partial(metric, source="telemetry", theme=Theme.TELEMETRY)
_ratio = partial(metric, reduces=Reduces.RATIO, source=_ACCOUNTING)
_common = partial(metric, reduces=Reduces.COMMON, missing=_NOT_COMMON)


def _total(name: str, scope: Scope) -> Values:
    """The sum of the columns of a metric; where it is of launches, missing without any."""
    amount = np.sum([scope.nodes.sum(each) for each in _COLUMNS_OF.get(name, (name,))], axis=0)
    needs_launch = METRICS[name].missing_because == _NO_LAUNCH
    return Values(amount, _without_launch(scope) if needs_launch else None)


def _without_launch(scope: Scope) -> Mask:
    """Whether a row has activities and none of them a launch record; time outside steps needs
    none, since all of it is the host's."""
    unlinked, activities = scope.nodes.sum("unlinked"), scope.nodes.activities()
    return np.equal(unlinked, activities) & np.greater(activities, 0)


@metric("elapsed_ns", Unit.NS, "time", source=_ACCOUNTING)
def elapsed(scope: Scope) -> Values:
    """Time of the GPUs' spans charged to the row: compute_ns + overlap_ns + exposed_comm_ns +
    exposed_copy_ns + idle_ns. Rows add up to their parent."""
    return Values(scope.nodes.elapsed_ns)


@_ratio(
    SHARE,
    Unit.PERCENT,
    "% of parent",
    missing="the parent has no time, or the row is left out of it",
)
def share(scope: Scope) -> Values:
    """elapsed_ns of the row, in % of its parent's."""
    return quotient(scope.nodes.elapsed_ns, scope.parent.elapsed_ns[:1], 100.0)


@metric("kernels", Unit.NONE, "kernels", needs_times=False)
def kernels(scope: Scope) -> Values:
    """Number of kernels, collectives included; copies and memsets are not kernels."""
    return Values(scope.nodes.sum("kernels"))


@_ratio("busy_pct", Unit.PERCENT, "busy %", missing="no time is charged to the row")
def busy(scope: Scope) -> Values:
    """Part of elapsed_ns in which something ran: 100 x (elapsed_ns - idle_ns) / elapsed_ns."""
    whole = scope.nodes.elapsed_ns
    return quotient(whole - scope.nodes.sum("idle_ns"), whole, 100.0)


declare(
    """
    compute_ns | ns | compute | sum
        Time of compute without communication, charged to the compute that started first.
    overlap_ns | ns | overlap | sum
        Time in which compute and communication ran, charged to the compute.
    exposed_comm_ns | ns | exp.comm | sum
        Time of communication without compute, charged to the communication.
    exposed_copy_ns | ns | exp.copy | sum
        Time of copies without compute or communication, charged to the copy.
    idle_ns | ns | idle | sum
        Time in which nothing ran, charged to the activity that started next.
    hidden_ns | ns | hidden | sum
        Time of communication that compute hides; it is not part of elapsed_ns.
    kernel_ns | ns | kernel time | sum
        Sum of the durations of the activities; simultaneous ones count twice.
        source: trace
    compute_busy_ns | ns | compute busy | sum
        Time in which compute ran: compute_ns + overlap_ns.
    idle_host_ns | ns | idle host | sum
        Idle time before the launch call of the activity that started next: the host was late.
        missing: no activity of the row has a launch record
    idle_launch_ns | ns | idle launch | sum
        Idle time from the launch call on: launched, but not started yet. The sum of
        idle_latency_ns and idle_queued_ns.
        missing: no activity of the row has a launch record
    idle_latency_ns | ns | launch lat. | sum
        Launch latency: idle time from the launch call on, before activities that were launched
        into an empty queue, while nothing ran on the GPU; at most 1 ms each.
        missing: no activity of the row has a launch record
""",
    _total,
    source=_ACCOUNTING,
)


@metric("idle_queued_ns", Unit.NS, "in queue", source=_ACCOUNTING, missing=_NO_LAUNCH)
def queued(scope: Scope) -> Values:
    """Idle time in which the next activity waits in the queue: it was launched while earlier work
    still ran, and didn't start when that ended, or started over 1 ms after its launch. The dispatch
    of the next kernel, or a wait for an event of the host, another stream, another GPU or work of
    before the trace; the trace doesn't tell which."""
    waits = scope.nodes.sum("idle_launch_ns") - scope.nodes.sum("idle_latency_ns")
    return Values(waits, _without_launch(scope))


declare(
    """
    idle_unknown_ns | ns | idle unkn. | sum
        Idle time before an activity that has no launch record in the trace.
        source: time accounting (docs/accounting.md)
    launch_overhead_ns | ns | start delay | sum
        Chopper's launch overhead: gaps before the compute activities of a step, from the latest
        end of those before; of the first from the step's first kernel.
    prep_overhead_ns | ns | before launch | sum
        Chopper's prep overhead: the part of the launch overhead before the launch call.
        missing: no activity of the row has a launch record
    call_overhead_ns | ns | after launch | sum
        Chopper's call overhead: the part of the launch overhead from the launch call on.
        missing: no activity of the row has a launch record
""",
    _total,
    source="UnaryLab/chopper trace_metrics.py",
)


@metric("activities", Unit.NONE, "activities", needs_times=False)
def count_activities(scope: Scope) -> Values:
    """Number of kernels, copies and memsets."""
    return Values(scope.nodes.activities())


declare(
    """
    collectives | | collectives | sum
        Number of communication kernels.
    copies | | copies | sum
        Number of copies.
    unlinked | | unlinked | sum
        Number of activities without a launch record.
""",
    _total,
    needs_times=False,
)


@metric(INSTANCES, Unit.NONE, "instances", reduces=Reduces.DISTINCT)
def count_instances(scope: Scope) -> Values:
    """Number of layers of steps of GPUs in which the row occurs; with a statistic, the number
    of instances that it covers."""
    _, node = scope.nodes.split(INSTANCE_LEVELS)
    return Values(counts_of(node, len(scope.nodes)))


@metric("mean_ns", Unit.NS, "mean", reduces=Reduces.RATIO, missing=_NO_ACTIVITY)
def mean_duration(scope: Scope) -> Values:
    """Mean duration of an activity."""
    return quotient(scope.nodes.sum("duration_ns"), scope.nodes.activities())


@metric("median_ns", Unit.NS, "median", reduces=Reduces.QUANTILE, missing=_NO_ACTIVITY)
def median_duration(scope: Scope) -> Values:
    """Median duration of an activity."""
    return Values(quantiles(scope.nodes, "duration_ns", (0.5,))[:, 0])


@metric("p95_ns", Unit.NS, "p95", reduces=Reduces.QUANTILE, missing=_NO_ACTIVITY)
def long_duration(scope: Scope) -> Values:
    """95th percentile of the activities' durations."""
    return Values(quantiles(scope.nodes, "duration_ns", (0.95,))[:, 0])


@metric(
    KERNEL_SHARE,
    Unit.PERCENT,
    "of kernels",
    reduces=Reduces.RATIO,
    missing="no activity of the scope has a duration",
)
def kernel_share(scope: Scope) -> Values:
    """Share of the scope's kernel time (sum of durations)."""
    return quotient(scope.nodes.sum("duration_ns"), scope.parent.sum("duration_ns")[:1], 100.0)


@metric("min_ns", Unit.NS, "min", reduces=Reduces.MIN, missing=_NO_ACTIVITY)
def shortest(scope: Scope) -> Values:
    """Shortest duration of an activity."""
    nodes = scope.nodes
    if not nodes.sum("outside").any():
        return Values(nodes.min("duration_ns"))
    # Time outside steps has no duration, and stands for no activity.
    least = quantiles(nodes, "duration_ns", (0.0,))[:, 0]
    return Values(np.nan_to_num(least).astype(np.int64), np.isnan(least))


@metric("max_ns", Unit.NS, "max", reduces=Reduces.MAX, missing=_NO_ACTIVITY)
def longest_duration(scope: Scope) -> Values:
    """Longest duration of an activity."""
    return Values(scope.nodes.max("duration_ns"), scope.nodes.activities() == 0)


@metric(
    "bytes",
    Unit.BYTES,
    "bytes",
    missing="the trace records no size for any activity of the row",
    needs_times=False,
)
def moved_bytes(scope: Scope) -> Values:
    """Bytes moved by copies and collectives, where the trace records them; for a collective the
    larger of its input and output."""
    return Values(scope.nodes.sum("known_bytes"), scope.nodes.max("bytes") < 0)


@metric(
    "est_occupancy_pct",
    Unit.PERCENT,
    "est. occup. %",
    reduces=Reduces.MEAN,
    missing="the profiler doesn't estimate it: Kineto does for kernels of NVIDIA GPUs",
)
def estimated_occupancy(scope: Scope) -> Values:
    """Achieved occupancy as the profiler estimates it of a kernel's launch, mean over durations."""
    return time_weighted(scope, "est_occupancy_pct")


@metric("start_ns", Unit.NS, "start", reduces=Reduces.MIN)
def first_start(scope: Scope) -> Values:
    """Start of the row, of several activities that of the first, since the run's first activity."""
    return Values(scope.nodes.min("start_ns") - scope.origin_ns)


@metric("end_ns", Unit.NS, "end", reduces=Reduces.MAX)
def last_end(scope: Scope) -> Values:
    """End of the row, of several activities that of the last, since the run's first activity."""
    return Values(scope.nodes.max("end_ns") - scope.origin_ns)


@_common("stream", Unit.NONE, "stream", needs_times=False)
def stream(scope: Scope) -> Values:
    """Stream of the activities; in ROCm's traces of before June 2026 the HSA queue."""
    low, high = scope.nodes.min("stream"), scope.nodes.max("stream")
    return Values(low, (low != high) | (low == -1))


@metric(
    "hsa_queue", Unit.NONE, "HSA queue", reduces=Reduces.COMMON, needs_times=False,
    missing="the activities of the row differ in it, or the trace names streams alone",
)  # fmt: skip
def hsa_queue(scope: Scope) -> Values:
    """HSA queue of the activities, which several HIP streams may share."""
    total, count = scope.nodes.known("hsa_queue")
    highest = scope.nodes.known_max("hsa_queue")
    if highest is None:
        return absent(len(scope.nodes))
    return Values(highest, (count != scope.nodes.activities()) | (total != highest * count))


@_common("launch_ns", Unit.NS, "launch")
def launch(scope: Scope) -> Values:
    """Start of the launch call, since the run's first activity."""
    low, high = scope.nodes.min("launch_ns"), scope.nodes.max("launch_ns")
    return Values(low - scope.origin_ns, (low != high) | (low == NO_TIME))


def _means(integral: Float64, known: Float64, samples: Float64) -> Values:
    return Values(ratios(integral, known), None, (known > 0) & (samples == 0))


def part_of_signal(name: str) -> Metric | None:
    """The metric of one of several instances of a signal, such as `gfx_mhz.xcd3`."""
    signal, _, instance = name.partition(".")
    whole = METRICS.get(instance if signal == SAMPLED else signal)
    unit: AnyUnit = whole.unit if whole else Unit.PER_US
    if signal == COUNTS_PER_US:
        title, lacks = f"{instance}/µs", f"samples of {instance}"
        definition = (
            f"Increments of {instance} on the whole GPU, mean over the durations of the "
            "activities; ~ marks the value of the nearest sample where none lies within the row."
        )
    elif whole is None or not instance:
        return None
    elif signal == SAMPLED:
        title, lacks = f"sampled {whole.title}", "samples of its counters"
        definition = (
            f"{whole.definition} Of the whole GPU between two samples, mean over the durations of "
            "the activities."
        )
    elif whole.reduces == Reduces.MEAN:
        title, lacks = f"{instance} {whole.title}", f"telemetry of {instance} for {signal}"
        definition = f"Of {instance}: {whole.definition[0].lower()}{whole.definition[1:]}"
    else:
        return None
    return Metric(
        name,
        unit,
        title,
        Reduces.MEAN,
        definition,
        lambda scope: _part_mean(scope, name),
        "counters" if whole is None else whole.source,
        f"the run has no {lacks} at the times of the row",
        theme=Theme.TELEMETRY if whole is None else whole.theme,
        needs_times=whole is None or whole.needs_times,
    )


def _part_mean(scope: Scope, name: str) -> Values:
    nodes, signal = scope.nodes, scope.signals.get(name)
    if signal is None:
        return absent(len(nodes))
    rows = nodes.rows
    start = nodes.table.start_ns[rows]
    times = np.stack([start, start + nodes.table.duration_ns[rows]])
    sums = np.zeros((3, len(rows)))
    for gpu, on_gpu in places_by(nodes.table.gpu[rows]).items():
        if (curve := signal.curves.get(gpu)) is not None:
            inside = np.searchsorted(curve.edges_ns, times[:, on_gpu])
            sums[:, on_gpu] = np.diff([*curve.integrals(times[:, on_gpu]), inside], axis=1)[:, 0]
    return _means(*np.add.reduceat(sums, nodes.first, axis=1))


def _mean_of(name: str, scope: Scope) -> Values:
    columns = (integral_of(name), known_of(name), samples_in(name))
    return _means(*(scope.nodes.known(column)[0] for column in columns))


for _name, _track in TRACKS.items():
    _telemetry(
        _name,
        _track.unit,
        _track.column,
        f"{_track.subject}, mean over the durations of the activities, so idle time doesn't count; "
        "~ marks the value of the nearest sample where none lies within the row.",
        reduces=Reduces.MEAN,
        missing="the run has no telemetry of it at the times of the row",
    )(partial(_mean_of, _name))


def _most_of(name: str, scope: Scope) -> Values:
    """The largest mean of a signal over any of the row's activities."""
    table, size = scope.nodes.table, len(scope.nodes)
    found = np.full(size, -np.inf)
    columns = (integral_of(name), known_of(name))
    if any(column not in table.measured for column in columns):
        return absent(size)
    for rows, group in scope.nodes.pieces():
        integral, known = (table.measured[column][rows] for column in columns)
        means = ratios(integral, known)
        own = np.flatnonzero(np.isfinite(means))
        np.maximum.at(found, group[own], means[own])
    return Values(np.where(np.isfinite(found), found, np.nan))


_PEAKS = {"power_w": "peak busy W", "hotspot_c": "peak hot °C", "edge_c": "peak edge °C"}
for _name, _title in _PEAKS.items():
    _telemetry(
        f"most_{_name}",
        TRACKS[_name].unit,
        _title,
        f"{TRACKS[_name].subject}: the largest mean over one of the activities; one that is "
        "shorter than a sample has that sample's value.",
        reduces=Reduces.MAX,
        missing="the run has no telemetry of it at the times of the row",
    )(partial(_most_of, _name))


_POWERS = ("power_w", "energy_rate_w")
_EDGES_OF_TWO = 4
"""Each sample has a beginning and an end."""


@_telemetry(
    "energy_j",
    Unit.JOULES,
    "energy",
    missing="telemetry of power or energy doesn't cover all of the row's time",
)
def energy(scope: Scope) -> Values:
    """Energy of the GPU in the time charged to the row, from the energy counter, else from power:
    each piece of the GPU's span is charged as its time is; ~ marks rows shorter than two samples of
    the power, and rows that begin or end up to a sampling period outside of the samples, where the
    first or the last one counts."""
    joules, count = scope.nodes.known(ENERGY)
    missing = count < scope.nodes.sizes()
    edges = sum(scope.nodes.known(samples_in(name))[0] for name in _POWERS)
    is_held = scope.nodes.known(HELD)[0] > 0
    return Values(joules, missing, extrapolated=~missing & ((edges < _EDGES_OF_TWO) | is_held))


@metric(
    "charged_power_w",
    Unit.WATTS,
    "charged power",
    reduces=Reduces.RATIO,
    source="telemetry",
    missing="no telemetry of power or energy for all of the row's time",
)
def charged_power(scope: Scope) -> Values:
    """energy_j over elapsed_ns: mean power of a GPU over the time charged to the row, idle time
    before its activities too."""
    joules, elapsed = energy(scope), METRICS["elapsed_ns"].compute(scope)
    power = quotient(joules.known(), elapsed.known() * 1e-9)
    return replace(power, extrapolated=joules.extrapolated)
