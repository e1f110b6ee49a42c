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


def _mean(name: str, unit: Unit, title: str, subject: str) -> None:
    """Register the mean of a signal over the durations of the activities."""
    columns = (integral_of(name), known_of(name), samples_in(name))
    definition = (
        f"{subject}, mean over the durations of the activities, so idle time doesn't count; ~ "
        "marks the value of the nearest sample where none lies within the row."
    )
    missing = "the run has no telemetry of it at the times of the row"

    @_telemetry(name, unit, title, definition, reduces=Reduces.MEAN, missing=missing)
    def compute(scope: Scope) -> Values:
        return _means(*(scope.nodes.known(column)[0] for column in columns))


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


_mean("gfx_mhz", Unit.MHZ, "gfx MHz", "Clock of the compute units")
_mean(
    "gfx_util_pct",
    Unit.PERCENT,
    "util %",
    "Utilization of the compute units, as reported by the driver",
)
_mean("power_w", Unit.WATTS, "power W", "Power of the socket")
_mean("hotspot_c", Unit.CELSIUS, "hot °C", "Temperature of the hottest spot")
_mean("mem_mhz", Unit.MHZ, "mem MHz", "Clock of the memory")
_mean("mem_c", Unit.CELSIUS, "mem °C", "Temperature of the memory")
_mean("edge_c", Unit.CELSIUS, "edge °C", "Temperature at the edge of the die")
_mean(
    "mem_util_pct", Unit.PERCENT, "mem util", "Utilization of the memory, as reported by the driver"
)
_mean(
    "throttle_pct", Unit.PERCENT, "throttle", "Share of time under the driver's strongest limiter"
)
_mean("power_cap_w", Unit.WATTS, "cap W", "Power cap of the socket")
_mean(
    "energy_rate_w",
    Unit.WATTS,
    "power (energy)",
    "Power derived from the increments of the energy counter",
)
_mean("pcie_gbps", Unit.GBPS, "PCIe GB/s", "PCIe traffic, both directions")
_mean("xgmi_read_gbps", Unit.GBPS, "xGMI in", "Data read over the links to other GPUs")
_mean("xgmi_write_gbps", Unit.GBPS, "xGMI out", "Data written over the links to other GPUs")
_mean("nvlink_read_gbps", Unit.GBPS, "NVLink in", "Data received over NVLink")
_mean("nvlink_write_gbps", Unit.GBPS, "NVLink out", "Data sent over NVLink")
_mean("mem_power_w", Unit.WATTS, "mem W", "Power of the memory, a part of the socket's")
_mean("vram_bytes", Unit.BYTES, "VRAM", "Memory in use on the GPU")


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
