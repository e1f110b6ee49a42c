"""Metrics of telemetry: clocks, power, temperature and utilization while a node's work ran."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics.metric import (
    METRICS,
    Metric,
    Reduces,
    Scope,
    Theme,
    Values,
    absent,
    metric,
)
from chopper_core.model.column_names import COUNTS_PER_US, ENERGY, integral_of, known_of, samples_in
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

_telemetry = partial(metric, source="telemetry", theme=Theme.TELEMETRY)


def _means(integral: Float64, known: Float64, samples: Float64) -> Values:
    missing = known <= 0
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(missing, np.nan, integral / known)
    return Values(means, missing, extrapolated=~missing & (samples == 0))


def part(name: str) -> Metric | None:
    """The metric of one of several instances of a signal, such as `gfx_mhz.xcd3`."""
    signal, _, instance = name.partition(".")
    if signal == COUNTS_PER_US:
        return _sampled(name, instance)
    whole = METRICS.get(signal)
    if whole is None or whole.reduces != Reduces.MEAN or not instance:
        return None
    return replace(
        whole,
        name=name,
        title=f"{instance} {whole.title}",
        definition=f"Of {instance}: {whole.definition[0].lower()}{whole.definition[1:]}",
        compute=lambda scope: _part_mean(scope, name),
        missing_because=f"the run has no telemetry of {instance} for {signal} at the times of "
        "the row",
    )


def _sampled(name: str, counter: str) -> Metric:
    """The metric of a counter that was sampled over time, such as `counts_per_us.SQ_WAVES`."""
    return Metric(
        name=name,
        unit=Unit.PER_US,
        title=f"{counter}/µs",
        reduces=Reduces.MEAN,
        definition=f"Increments of {counter} on the whole GPU, mean over the durations of the "
        "activities; ~ marks the value of the nearest sample where none lies within the row.",
        compute=lambda scope: _part_mean(scope, name),
        source="counters",
        missing_because=f"the run has no samples of {counter} at the times of the row",
        theme=Theme.TELEMETRY,
    )


def _part_mean(scope: Scope, name: str) -> Values:
    nodes, signal = scope.nodes, scope.signals.get(name)
    if signal is None:
        return absent(len(nodes))
    rows = nodes.rows
    start = nodes.table.start_ns[rows]
    times = np.stack([start, start + nodes.table.duration_ns[rows]])
    sums = np.zeros((3, len(rows)))
    for gpu, curve in signal.curves.items():
        on_gpu = np.flatnonzero(nodes.table.gpu[rows] == gpu)
        if len(on_gpu):
            inside = np.searchsorted(curve.edges_ns, times[:, on_gpu])
            sums[:, on_gpu] = np.diff([*curve.integrals(times[:, on_gpu]), inside], axis=1)[:, 0]
    return _means(*np.add.reduceat(sums, nodes.first, axis=1))


_SIGNALS = """
    gfx_mhz | MHz | gfx MHz | Clock of the compute units
    gfx_util_pct | % | util % | Utilization of the compute units, as reported by the driver
    power_w | W | power W | Power of the socket
    hotspot_c | °C | hot °C | Temperature of the hottest spot
    mem_mhz | MHz | mem MHz | Clock of the memory
    mem_c | °C | mem °C | Temperature of the memory
    edge_c | °C | edge °C | Temperature at the edge of the die
    mem_util_pct | % | mem util | Utilization of the memory, as reported by the driver
    throttle_pct | % | throttle | Share of time under the driver's strongest limiter
    power_cap_w | W | cap W | Power cap of the socket
    energy_rate_w | W | power (energy) | Power derived from the increments of the energy counter
    pcie_gbps | GB/s | PCIe GB/s | PCIe traffic, both directions
    xgmi_read_gbps | GB/s | xGMI in | Data read over the links to other GPUs
    xgmi_write_gbps | GB/s | xGMI out | Data written over the links to other GPUs
    nvlink_read_gbps | GB/s | NVLink in | Data received over NVLink
    nvlink_write_gbps | GB/s | NVLink out | Data sent over NVLink
    mem_power_w | W | mem W | Power of the memory, a part of the socket's
    vram_bytes | B | VRAM | Memory in use on the GPU
"""
"""Signals of which an activity has the mean over its duration."""


def _mean_of(name: str, scope: Scope) -> Values:
    columns = (integral_of(name), known_of(name), samples_in(name))
    return _means(*(scope.nodes.known(column)[0] for column in columns))


for _line in _SIGNALS.strip().split("\n"):
    _name, _unit, _title, _subject = map(str.strip, _line.split("|"))
    _telemetry(
        _name,
        Unit(_unit),
        _title,
        f"{_subject}, mean over the durations of the activities, so idle time doesn't count; ~ "
        "marks the value of the nearest sample where none lies within the row.",
        reduces=Reduces.MEAN,
        missing="the run has no telemetry of it at the times of the row",
    )(partial(_mean_of, _name))


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
    the power."""
    joules, count = scope.nodes.known(ENERGY)
    missing = count < scope.nodes.sizes()
    edges = sum(scope.nodes.known(samples_in(name))[0] for name in _POWERS)
    return Values(joules, missing, extrapolated=~missing & (edges < _EDGES_OF_TWO))
