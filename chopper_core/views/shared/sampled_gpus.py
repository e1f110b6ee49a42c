"""GPUs by their telemetry alone: figures of their samples over the time that these cover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Metric, Values, computed_column, numbered
from chopper_core.model.column_names import HEAT as HEAT_SIGNALS
from chopper_core.model.run import Run
from chopper_core.model.signals import SampleSummary
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64
from chopper_core.views.shared.samples import beside_of, gpus_of, sampled, spans_of_samples

_TRAFFIC: Final = {"ib_read_bytes": "received", "ib_write_bytes": "sent"}
LOW_CLOCK: Final = 0.97
"""A clock below this part of the GPU's highest is low."""
BUSY_PCT: Final = 90.0
"""Only while the GPU is used so much does a low clock mean that something limits it."""
_ALONE: Final = "over the time of the GPU's samples, each of which holds until the next"
_SOURCE: Final = "telemetry"

Own = list[tuple[Metric, Values]]


def _column(name: str, unit: str, title: str, text: str, reduces: str = "") -> Metric:
    missing = "no such telemetry of the GPU"
    return computed_column(
        name, unit, title, text, reduces=reduces, source=_SOURCE, missing_because=missing
    )


class _SampledFigure(Struct, frozen=True):
    """A column, the signals that it is of (the first one that a GPU has), and how."""

    metric: Metric
    signals: tuple[str, ...]
    value: Callable[[SampleSummary], float]
    needs_span: bool = False
    """Whether a single sample doesn't give it."""


def _mean(name: str, unit: str, title: str, what: str, *signals: str) -> _SampledFigure:
    metric = _column(f"mean_{name}", unit, title, f"Mean {what}, {_ALONE}.")
    return _SampledFigure(metric, signals or (name,), lambda own: own.mean)


def _end(
    name: str, unit: str, title: str, what: str, *signals: str, low: bool = False
) -> _SampledFigure:
    metric = _column(
        name, unit, title, f"The {'least' if low else 'largest'} sample of the {what}."
    )
    return _SampledFigure(metric, signals, lambda own: own.low if low else own.high)


def _amount(name: str, title: str, what: str, *signals: str, unit: str = "B") -> _SampledFigure:
    text = f"{what} from the first to the last sample, by the device's counter."
    return _SampledFigure(
        _column(name, unit, title, text, "sum"), signals, lambda own: own.amount, True
    )


POWER: Final = _mean("power_w", "W", "mean power", "power of the socket")
ENERGY: Final = _SampledFigure(
    _column(
        "sampled_energy_j",
        "J",
        "energy",
        "Integral of the power from the first to the last sample, by the trapezoidal rule.",
        "sum",
    ),
    ("power_w",),
    lambda own: own.area if own.is_timed else np.nan,
    needs_span=True,
)
WINDOW: Final = _SampledFigure(
    _column("window_ns", "ns", "window", "From the first to the last sample of the power."),
    ("power_w", "gfx_mhz", *HEAT_SIGNALS, "gfx_util_pct"),
    lambda own: float(own.span_ns) if own.is_timed else np.nan,
    needs_span=True,
)
CLOCK: Final = _mean("gfx_mhz", "MHz", "mean gfx", "clock of the compute units")
HEAT: Final = _mean(
    "hot_c", "°C", "mean hot", "temperature: of the hotspot, else of the edge", *HEAT_SIGNALS
)
FIGURES: Final = (
    POWER,
    _end("peak_power_w", "W", "peak", "power", "power_w"),
    ENERGY,
    _amount("counted_energy_j", "counted energy", "Energy", "energy_j", unit="J"),
    CLOCK,
    _end("lowest_gfx_mhz", "MHz", "lowest gfx", "compute units' clock", "gfx_mhz", low=True),
    HEAT,
    _end("hottest_c", "°C", "hottest", "temperature", *HEAT_SIGNALS),
    _mean("mem_c", "°C", "mem °C", "temperature of the memory"),
    _mean("gfx_util_pct", "%", "util", "utilization of the compute units"),
    _mean("throttle_pct", "%", "mean throttled", "share of the time under a limiter"),
    _mean("mem_power_w", "W", "mem power", "power of the memory, a part of the socket's"),
    _mean("mem_mhz", "MHz", "mem clk", "clock of the memory"),
    _amount("pcie_in_bytes", "PCIe in", "Bytes received over PCIe", "pcie_bytes.rx"),
    _amount("pcie_out_bytes", "PCIe out", "Bytes sent over PCIe", "pcie_bytes.tx"),
    _amount("nvlink_in_bytes", "NVLink in", "Bytes received over NVLink", "nvlink_read_bytes"),
    _amount("nvlink_out_bytes", "NVLink out", "Bytes sent over NVLink", "nvlink_write_bytes"),
    _amount("xgmi_in_bytes", "xGMI in", "Bytes read over xGMI", "xgmi_read_bytes"),
    _amount("xgmi_out_bytes", "xGMI out", "Bytes written over xGMI", "xgmi_write_bytes"),
    WINDOW,
)
THROTTLED: Final = _column(
    "low_clock_pct",
    "%",
    "low clock",
    f"Share of the time in which the compute units' clock is below {100 * LOW_CLOCK:.0f} % of the "
    f"GPU's highest while they are used for {BUSY_PCT:.0f} % or more.",
)
"""Our definition of throttling, for telemetry without limiters."""


def summary_of(run: Run, gpu: int, signals: Sequence[str]) -> SampleSummary | None:
    """The samples of the first of some signals that a GPU has."""
    return next(
        (run.sampled[name][gpu] for name in signals if gpu in run.sampled.get(name, {})), None
    )


def figure(run: Run, wanted: _SampledFigure) -> Float64:
    """A figure of every GPU of the run; NaN where unknown."""
    found = [summary_of(run, gpu, wanted.signals) for gpu in gpus_of(run)]
    return np.array(
        [
            np.nan if own is None or (wanted.needs_span and not own.span_ns) else wanted.value(own)
            for own in found
        ]
    )


def low_clock_pct(run: Run) -> Float64:
    """The share of each GPU's time with a low clock though it is used; NaN where unknown."""
    shares = []
    for gpu in gpus_of(run):
        curves = [
            run.measured[name].curves.get(gpu) if name in run.measured else None
            for name in ("gfx_mhz", "gfx_util_pct")
        ]
        clock = sampled(curves[0], spans_of_samples(run)[gpu])
        values, used = beside_of(clock, curves[1])
        if not len(values) or len(values) != len(clock):
            shares.append(np.nan)
            continue
        is_low = (values < LOW_CLOCK * values.max()) & (used >= BUSY_PCT)
        weights = clock.weights_ns
        shares.append(100.0 * float(weights[is_low].sum()) / float(weights.sum()))
    return np.array(shares)


def columns_of(run: Run) -> Own:
    """All figures that any GPU has; without known GPUs none."""
    own = [(each.metric, numbered(figure(run, each))) for each in FIGURES]
    if "throttle_pct" not in run.sampled:
        own.append((THROTTLED, numbered(low_clock_pct(run))))
    return [(metric, values) for metric, values in own if values.present().any()]


def totals_of(own: Own) -> dict[str, int | float]:
    """The total row: sums where every GPU has the figure, means of means, extremes."""
    total: dict[str, int | float] = {}
    for metric, values in own:
        known = values.numbers[values.present()]
        if not len(known):
            continue
        if metric.reduces == "sum":
            if values.present().all():
                total[metric.name] = known.sum().item()
        elif metric.name.startswith("lowest"):
            total[metric.name] = known.min().item()
        elif metric.name.startswith(("peak", "hottest", "window")):
            total[metric.name] = known.max().item()
        else:
            total[metric.name] = known.mean().item()
    return total


def opened(view: View, gpu: str) -> View:
    """The view that the row of a GPU opens: its power, clocks and temperatures."""
    return replace(view, name="power", by="", of="", columns=(), sort="", filter=f"gpu:{gpu}")


def sampled_notes(run: Run) -> tuple[str, ...]:
    """The limits of a run of telemetry alone."""
    notes = ["no trace: time is the window of the samples, and no step is known"]
    own = [each for by_gpu in run.sampled.values() for each in by_gpu.values()]
    if own and not own[0].is_timed:
        notes.append(
            "the samples have no times, so they are numbered, one a second: energy and the window "
            "are unknown"
        )
    lacking = [
        str(gpu) for gpu in gpus_of(run) if not any(gpu in own for own in run.sampled.values())
    ]
    if lacking:
        notes.append(f"no samples of GPU {', '.join(lacking)}")
    return (*notes, *_of_nodes(run))


def _of_nodes(run: Run) -> list[str]:
    """InfiniBand traffic and temperatures of the nodes of some ranks."""
    notes = []
    for rank in sorted({node.rank for node in run.of_nodes}):
        own = [node for node in run.of_nodes if node.rank == rank]
        sentences = []
        for signal, how in _TRAFFIC.items():
            amounts = [node.summary.amount for node in own if node.signal == signal]
            if amounts:
                scale = Unit.BYTES.scale(sum(amounts), False)
                sentences.append(
                    f"{sum(amounts) / scale.divisor:.4g} {scale.text} {how} over InfiniBand"
                )
        hot = [node.summary.high for node in own if node.signal == "cpu_c"]
        sentences += [f"processors up to {max(hot):.0f} °C"] if hot else []
        if sentences:
            notes.append(f"node of rank {rank}: {', '.join(sentences)}")
    return notes
