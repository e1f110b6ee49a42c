"""The overview of a run that telemetry alone describes."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.charts import Card, Cards
from chopper_core.model.run import Run
from chopper_core.model.units import Unit
from chopper_core.model.view import View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.views.power import WINDOW_NS
from chopper_core.views.power.charts import charts, samples_of
from chopper_core.views.shared.phrases import count, time
from chopper_core.views.shared.sampled_gpus import (
    CLOCK,
    ENERGY,
    HEAT,
    POWER,
    WINDOW,
    columns_of,
    figure,
    opened,
    sampled_notes,
    totals_of,
)
from chopper_core.views.shared.samples import gpus_of
from chopper_core.views.spec import ViewResult

_MAX_CARDS: Final = 12
_SHOWN: Final = (
    *("mean_power_w", "peak_power_w", "sampled_energy_j", "mean_gfx_mhz", "lowest_gfx_mhz"),
    *("mean_hot_c", "hottest_c", "mean_throttle_pct", "low_clock_pct", "mean_gfx_util_pct"),
    "window_ns",
)


def overview_of_samples(run: Run, view: View) -> ViewResult:
    """A row per GPU with telemetry: its power, clock, temperature; and the findings."""
    own = columns_of(run)
    labels = [str(gpu) for gpu in gpus_of(run)]
    known = {metric.name for metric, _ in own}
    found = samples_of(run, view, WINDOW_NS) if own else []
    return ViewResult(
        level="gpu",
        labels=labels,
        columns=tuple(own),
        opens=lambda row: opened(view, labels[row]),
        total=totals_of(own),
        shown=tuple(name for name in _SHOWN if name in known),
        headline=(_headline(run), *([run.status] if run.status else [])),
        notes=sampled_notes(run),
        charts=(*charts(found, run.origin_ns)[:2], _cards(run, view)),
    )


def _headline(run: Run) -> str:
    """Power, energy, clock and heat of all GPUs, as far as all have them."""
    power, energy, clock, heat = (figure(run, each) for each in (POWER, ENERGY, CLOCK, HEAT))
    window = figure(run, WINDOW)
    parts = [f"telemetry alone of {count(len(run.gpus), 'GPU')}"]
    if np.isfinite(window).any() and not run.status:
        parts.append(f"window {time(float(np.nanmax(window)))}")
    if np.isfinite(power).all():
        parts.append(f"mean power {power.mean():,.1f} W")
    if np.isfinite(energy).all() and not run.status:
        scale = Unit.JOULES.scale(float(energy.sum()), is_whole=False)
        parts.append(f"energy {scale.number(float(energy.sum()))} {scale.text}")
    if np.isfinite(clock).all():
        parts.append(f"clock {clock.mean():,.0f} MHz")
    if np.isfinite(heat).all():
        parts.append(f"{heat.mean():.1f} °C")
    return " · ".join(parts)


def _cards(run: Run, view: View) -> Cards:
    from chopper_core.model import address
    from chopper_core.views.findings.sampled import findings_of_samples

    there = with_view(view, "findings")
    try:
        found = findings_of_samples(run, there)[:_MAX_CARDS]
    except UsageError:
        found = []
    return Cards(
        "findings",
        tuple(
            Card((), each.sentence, address.render(each.evidence), each.confidence.text)
            for each in found
        ),
    )
