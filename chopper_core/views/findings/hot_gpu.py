"""A GPU that is hotter than the others and runs at a lower clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import heat_of, is_measured
from chopper_core.util.grouping import median_of
from chopper_core.views.findings.rule import (
    ROBUST_Z,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
)
from chopper_core.views.shared.marks import MAD_TO_SIGMA
from chopper_core.views.shared.phrases import percent, time
from chopper_core.views.shared.places import places_of

HOTTER: Final = Threshold(
    "temperature above the median of the GPUs", 5.0, "°C", "slots of a node differ by less"
)
SLOWER: Final = Threshold(
    "clock below the median of the GPUs", 1.5, "%", "GPUs of one model vary by about one percent"
)
_FEWEST: Final = 3


@rule(
    "hot-gpu",
    saving="its compute time beyond what it would take at the median clock",
    holds=(0.3, 1.3),
    needs="telemetry of clocks and temperatures, three GPUs",
    thresholds=(HOTTER, SLOWER),
)
def hot_gpus(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that is hotter than the others and runs at a lower clock."""
    name = heat_of(context.table)
    if not name or not is_measured("gfx_mhz", context.table) or len(context.gpus) < _FEWEST:
        return
    heat, clock = (context.by_gpu(each) for each in (name, "gfx_mhz"))
    if not (np.isfinite(heat).all() and np.isfinite(clock).all()):
        return
    usual, usual_mhz = median_of(heat), median_of(clock)
    spread = MAD_TO_SIGMA * median_of(np.abs(clock - usual_mhz))
    busy = context.by_gpu_and_iteration(lambda nodes: nodes.sum("compute_ns")).mean(axis=1)
    busy += context.by_gpu_and_iteration(lambda nodes: nodes.sum("overlap_ns")).mean(axis=1)
    for place, gpu in enumerate(context.gpus):
        lower = 1 - float(clock[place]) / usual_mhz
        is_low = lower >= SLOWER.share and usual_mhz - clock[place] >= ROBUST_Z.value * spread
        if heat[place] - usual < HOTTER.value or not is_low:
            continue
        where = places_of(context.run, [gpu]).text(0)
        saving = float(busy[place]) * lower
        yield Finding(
            sentence=(
                f"GPU {gpu}{f' ({where})' if where else ''} is {heat[place] - usual:.0f} °C hotter "
                f"than the median GPU and its clock is {percent(lower)} lower ({clock[place]:,.0f} "
                f"vs {usual_mhz:,.0f} MHz); {time(saving)}{context.each} of its compute"
            ),
            evidence=replace(context.with_view("grid", sort=f"-{name}"), of=name),
            confidence=confidence(measured=True, repeated=context.repeats),
            saving_ns=saving,
            gpu=gpu,
            cost=Cost.COMPUTE,
            total_ns=saving * len(context.iterations),
        )
