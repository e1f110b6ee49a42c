"""Metrics from telemetry: clocks, power, temperature, use, over the time of a node's own work."""

from __future__ import annotations

import numpy as np

from chopper_core.measured import ENERGY, integral_of, known_of, samples_in
from chopper_core.metrics.metric import Metric, Scope, Values

_NEEDS = "the run has no telemetry of it at the times of the row"


def _mean(name: str, unit: str, title: str, what: str) -> Metric:
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
        "mean over busy time",
        f"{what}, mean over the durations of the activities; ~ marks a value held from the "
        "nearest sample, none lies within the row.",
        compute,
        source="telemetry",
        missing_because=_NEEDS,
    )


def _energy(scope: Scope) -> Values:
    energy, count = scope.nodes.known(ENERGY)
    return Values(energy, count < scope.nodes.sizes())


METRICS = (
    _mean("gfx_mhz", "MHz", "gfx MHz", "Clock of the compute units"),
    _mean("gfx_util_pct", "%", "util %", "Use of the compute units as the driver reports it"),
    _mean("power_w", "W", "power W", "Power of the socket"),
    _mean("hotspot_c", "°C", "hot °C", "Temperature of the hottest spot"),
    _mean("mem_mhz", "MHz", "mem MHz", "Clock of the memory"),
    _mean("mem_c", "°C", "mem °C", "Temperature of the memory"),
    _mean("edge_c", "°C", "edge °C", "Temperature at the edge of the die"),
    _mean("mem_util_pct", "%", "mem util", "Use of the memory as the driver reports it"),
    _mean("throttle_pct", "%", "throttle", "Share of time under the driver's largest limiter"),
    Metric(
        "energy_j",
        "J",
        "energy",
        "sum",
        "Energy of the GPU in the time charged to the row: power over each piece of its span, "
        "charged as its time is.",
        _energy,
        source="telemetry",
        missing_because="power is not known for all of the row's time",
    ),
)
