"""Metrics from telemetry: clocks, power, temperature, use, over the time of a node's own work."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.model.column_names import ENERGY, integral_of, known_of, samples_in
from chopper_core.model.units import Unit

_NEEDS = "the run has no telemetry of it at the times of the row"
_MEAN = "mean over busy time"


def _mean(name: str, unit: Unit, title: str, what: str) -> Metric:
    def compute(scope: Scope) -> Values:
        integral, _ = scope.nodes.known(integral_of(name))
        known, _ = scope.nodes.known(known_of(name))
        samples, _ = scope.nodes.known(samples_in(name))
        missing = known <= 0
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(missing, np.nan, integral / known)
        return Values(means, missing, held=~missing & (samples == 0))

    return Metric(
        name,
        unit,
        title,
        _MEAN,
        f"{what}, mean over the durations of the activities; ~ marks a value held from the "
        "nearest sample, none lies within the row.",
        compute,
        source="telemetry",
        missing_because=_NEEDS,
    )


def part(name: str) -> Metric | None:
    """The metric of one of several instances of a signal, such as `gfx_mhz.xcd3`."""
    signal, _, instance = name.partition(".")
    whole = next((metric for metric in METRICS if metric.name == signal), None)
    if whole is None or whole.reduces != _MEAN or not instance:
        return None

    def compute(scope: Scope) -> Values:
        return _part_mean(scope, name)

    return replace(
        whole,
        name=name,
        title=f"{instance} {whole.title}",
        definition=f"Of {instance}: {whole.definition[0].lower()}{whole.definition[1:]}",
        compute=compute,
        missing_because=f"the run has no telemetry of {instance} for {signal} at the times of "
        "the row",
    )


def _part_mean(scope: Scope, name: str) -> Values:
    nodes, signal = scope.nodes, scope.signals.get(name)
    if signal is None:
        return Values(np.full(len(nodes), np.nan), np.ones(len(nodes), np.bool_))
    rows = nodes.rows
    start = nodes.table.start_ns[rows]
    times = np.stack([start, start + nodes.table.duration_ns[rows]])
    sums = np.zeros((3, len(rows)))
    for gpu, curve in signal.curves.items():
        own = np.flatnonzero(nodes.table.gpu[rows] == gpu)
        if len(own):
            inside = np.searchsorted(curve.edges_ns, times[:, own])
            sums[:, own] = np.diff([*curve.integrals(times[:, own]), inside], axis=1)[:, 0]
    integral, known, samples = np.add.reduceat(sums, nodes.first, axis=1)
    missing = known <= 0
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(missing, np.nan, integral / known)
    return Values(means, missing, held=~missing & (samples == 0))


def _energy(scope: Scope) -> Values:
    energy, count = scope.nodes.known(ENERGY)
    return Values(energy, count < scope.nodes.sizes())


METRICS = (
    _mean("gfx_mhz", Unit.MHZ, "gfx MHz", "Clock of the compute units"),
    _mean(
        "gfx_util_pct", Unit.PERCENT, "util %", "Use of the compute units as the driver reports it"
    ),
    _mean("power_w", Unit.WATTS, "power W", "Power of the socket"),
    _mean("hotspot_c", Unit.CELSIUS, "hot °C", "Temperature of the hottest spot"),
    _mean("mem_mhz", Unit.MHZ, "mem MHz", "Clock of the memory"),
    _mean("mem_c", Unit.CELSIUS, "mem °C", "Temperature of the memory"),
    _mean("edge_c", Unit.CELSIUS, "edge °C", "Temperature at the edge of the die"),
    _mean("mem_util_pct", Unit.PERCENT, "mem util", "Use of the memory as the driver reports it"),
    _mean(
        "throttle_pct", Unit.PERCENT, "throttle", "Share of time under the driver's largest limiter"
    ),
    _mean("power_cap_w", Unit.WATTS, "cap W", "Limit of the power of the socket"),
    _mean(
        "energy_rate_w", Unit.WATTS, "by energy W", "Power by the differences of the energy counter"
    ),
    _mean("pcie_gbps", Unit.GBPS, "PCIe GB/s", "Traffic over PCIe, both directions"),
    _mean("xgmi_read_gbps", Unit.GBPS, "xGMI in", "Traffic over the links to other GPUs, read"),
    _mean(
        "xgmi_write_gbps", Unit.GBPS, "xGMI out", "Traffic over the links to other GPUs, written"
    ),
    _mean("vram_bytes", Unit.BYTES, "VRAM", "Memory in use on the GPU"),
    Metric(
        "energy_j",
        Unit.JOULES,
        "energy",
        "sum",
        "Energy of the GPU in the time charged to the row: by the energy counter, else power, over "
        "each piece of its span, charged as its time is.",
        _energy,
        source="telemetry",
        missing_because="no telemetry of power or energy for all of the row's time",
    ),
)
