"""Pictures of the collectives of a scope: durations by kind and occurrence, skew and transfer."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.charts import BoxChart, Chart, LineChart, Series
from chopper_core.model.groups import Groups
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import distinct, quantiles_along, ranked
from chopper_core.views.shared.collective_figures import Chosen
from chopper_core.views.shared.groups import grouped, quantiles

_POINTS: Final = 1_500
"""Collectives that are drawn one by one; of more, evenly chosen ones."""
_OCCURRENCES: Final = 300
"""Occurrences along a line; of more, neighbours are drawn as their median."""
_LINES: Final = 12


def charts(chosen: Chosen) -> tuple[Chart, ...]:
    """All pictures of the collectives of a scope."""
    return (_boxes(chosen), *_skews(chosen), *_by_occurrence(chosen))


def _boxes(chosen: Chosen) -> BoxChart:
    """How long the kernels of each kind take."""
    table = chosen.table
    whole = Groups.single(table, chosen.rows)
    codes, nodes = grouped(whole, table.operation[chosen.rows].astype(np.int64))
    return BoxChart(
        "durations of the kernels by kind",
        "ms",
        tuple(table.text_of("operation", code) for code in codes.tolist()),
        quantiles(nodes, "duration_ns", (0.0, 0.25, 0.5, 0.75, 1.0)) / 1e6,
    )


def _skews(chosen: Chosen) -> tuple[LineChart, ...]:
    """The transfer of collectives over their arrival skew, by kind."""
    found, sets = chosen.all, chosen.sets[chosen.complete]
    if not len(sets):
        return ()
    names, x, y = [], [], []
    for code in distinct(found.kind[sets]).tolist():
        own = sets[found.kind[sets] == code]
        own = own[:: -(-len(own) // _POINTS)]
        names.append(chosen.table.text_of("operation", code))
        x.append(found.skew_ns[own] / 1e6)
        y.append(found.transfer_ns[own] / 1e6)
    return (
        LineChart(
            "transfer against arrival skew",
            "ms",
            "arrival skew",
            "ms",
            tuple(x),
            tuple(Series(name, numbers) for name, numbers in zip(names, y, strict=True)),
            points=True,
        ),
    )


def _by_occurrence(chosen: Chosen) -> tuple[LineChart, ...]:
    """Per GPU the durations of the kind with the longest waits, in order of first arrival."""
    found, table = chosen.all, chosen.table
    kinds = found.kind[chosen.sets][chosen.owner]
    waits = np.bincount(kinds + 1, weights=chosen.wait_ns)
    if not waits.any():
        return ()
    kind = int(waits.argmax()) - 1
    members = np.flatnonzero(kinds == kind)
    places = ranked(chosen.owner[members])[1]
    gpus, gpu = ranked(table.gpu[chosen.rows[members]])
    durations = np.full((int(places.max()) + 1, len(gpus)), np.nan)
    durations[places, gpu] = table.duration_ns[chosen.rows[members]] / 1e6
    step = -(-len(durations) // _OCCURRENCES)
    lines = _medians(durations, step)
    names = [f"GPU {number}" for number in gpus.tolist()]
    if len(gpus) > _LINES:
        names = ["least of the GPUs", "median of the GPUs", "largest of the GPUs"]
        lines = _across(lines)
    of = f", medians of {step} each" if step > 1 else ""
    x = (np.arange(len(lines)) * step).astype(np.float64)
    return (
        LineChart(
            f"{table.text_of('operation', kind)}: duration by occurrence{of}",
            "ms",
            "occurrence",
            "",
            (x,) * len(names),
            tuple(Series(name, lines[:, place]) for place, name in enumerate(names)),
        ),
    )


def _medians(durations: Float64, step: int) -> Float64:
    """Medians of so many neighbouring rows, column by column; NaN where all are."""
    if step == 1:
        return durations
    padding = np.full((-len(durations) % step, durations.shape[1]), np.nan)
    parts = np.concatenate([durations, padding]).reshape(-1, step, durations.shape[1])
    found: Float64 = quantiles_along(np.moveaxis(parts, 1, 0), (0.5,))[0]
    return found


def _across(lines: Float64) -> Float64:
    return quantiles_along(lines.T, (0.0, 0.5, 1.0)).T
