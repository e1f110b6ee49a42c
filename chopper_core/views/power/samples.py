"""The samples of each GPU's signals in a scope's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64
from chopper_core.views.shared.samples import Sampled, TimeSpans, all_sampled, sampled, spans_of

ROLLED: Final = (("gfx_mhz", 0.05), ("power_w", 0.95))
"""The quantiles that the original takes of windows."""
SIGNALS: Final = ("power_w", "gfx_mhz", "mem_mhz", "hotspot_c", "mem_c", "edge_c", "throttle_pct")
DIES: Final = ("hotspot_c.", "mem_c.", "gfx_mhz.xcd")
"""How the signals of single dies begin."""
LIMITER: Final = "throttle_pct."
"""How the signals of single limiters begin."""


class GpuSamples(Struct, frozen=True, eq=False):
    """The samples of one GPU's signals in the scope's time."""

    gpu: int
    signals: dict[str, Sampled]
    curves: dict[str, IntegralCurve]
    """The whole signals."""
    limit_w: float
    """NaN where it isn't known."""
    rolled: dict[str, tuple[Int64, Float64]]
    """The ends of the windows of rolling quantiles, and the quantiles."""


def samples_of(
    run: Run,
    view: View,
    window_ns: float | None = None,
    spans: Mapping[int, TimeSpans] | None = None,
) -> list[GpuSamples]:
    """The samples of the scope's GPUs, or of some spans; rolling quantiles only with a window."""
    tdp_w = float(run.hardware.tdp_w) if run.hardware else np.nan
    limiters = [name for name in run.measured if name.startswith((LIMITER, *DIES))]
    found = []
    for gpu, stretches in (spans_of(run, view) if spans is None else spans).items():
        curves = {
            name: run.measured[name].curves[gpu]
            for name in (*SIGNALS, "power_cap_w", "vram_bytes", *limiters)
            if name in run.measured and gpu in run.measured[name].curves
        }
        signals = all_sampled(curves, stretches)
        for name in SIGNALS:
            signals.setdefault(name, sampled(None, stretches))
        cap = signals["power_cap_w"].mean() if "power_cap_w" in signals else np.nan
        limit_w = cap if np.isfinite(cap) else tdp_w
        rolled = {}
        if window_ns is not None:
            rolled = {name: signals[name].rolling(window_ns, share) for name, share in ROLLED}
        found.append(GpuSamples(gpu, signals, curves, limit_w, rolled))
    return found
