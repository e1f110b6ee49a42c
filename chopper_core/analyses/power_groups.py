"""GPUs of a stage, a replica or a node together: energy, heat, clocks, and their spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import NODE
from chopper_core.analyses.power_samples import OF_STEPS
from chopper_core.analyses.rows import GROUP_GPUS, GpuRows, LabelledRows, Own
from chopper_core.analyses.sample_definitions import of_several, text_of_several
from chopper_core.analyses.step_energy import StepEnergy
from chopper_core.analyses.step_traffic import COLUMNS as TRAFFIC
from chopper_core.analyses.step_traffic import traffic_together
from chopper_core.columns import METRICS, Values, columns, numbered
from chopper_core.model.phrases import differs, facts
from chopper_core.model.run import Run
from chopper_core.model.units import Unit, scaled_text
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import ratios

SHOWN_OF_GROUPS: Final = (
    *("group_gpus", "iteration_energy_j", "energy_pct", "token_energy_mj", "mean_power_w"),
    *("peak_power_w", "mean_hot_c", "hottest_c", "hot_spread_c", "mean_gfx_mhz", "gfx_spread_mhz"),
    *("throttled_pct", "at_limit_pct", "mean_mem_c"),
)
_SPREAD: Final = {
    "power_spread_w": "mean_power_w",
    "hot_spread_c": "mean_hot_c",
    "gfx_spread_mhz": "mean_gfx_mhz",
}
"""Column → the figure of which it has the largest minus the smallest of the row's GPUs."""
COLUMNS: Final = columns(
    """
    power_spread_w | W | spread W
        Largest minus smallest mean_power_w of the row's GPUs.
    hot_spread_c | °C | spread °C
        Largest minus smallest mean_hot_c of the row's GPUs.
    gfx_spread_mhz | MHz | spread MHz
        Largest minus smallest mean_gfx_mhz of the row's GPUs.
""",
    missing="fewer than two GPUs of the row have such telemetry",
    source="telemetry",
)


def places_in(gpus: Sequence[int], some: Sequence[int]) -> Index:
    """The places of some GPUs among others; those that aren't there have none."""
    place = {gpu: at for at, gpu in enumerate(gpus)}
    return np.array([place[gpu] for gpu in some if gpu in place], np.intp)


def energy_columns(energy: StepEnergy, rows: Sequence[Index]) -> Own:
    """The energy of a step and of a token, of rows of places among the GPUs."""
    return [
        (OF_STEPS["iteration_energy_j"], energy.each(rows)),
        (OF_STEPS["token_energy_mj"], energy.each_token(rows)),
    ]


def of_groups(
    run: Run, gpus: Sequence[int], by: str, own: Own, energy: StepEnergy
) -> tuple[LabelledRows, Own, tuple[str, ...]]:
    """Columns of GPUs as those of groups by a coordinate or by node, and a sentence about spread.

    Raises NothingToShow by node where the nodes are unknown.
    """
    rows = GpuRows.of(run, gpus, by)
    by_name = {metric.name: values for metric, values in own}
    figures = {name: values.known() for name, values in by_name.items()}
    members = [places_in(energy.gpus, [gpus[at] for at in places]) for places in rows.members]
    found: Own = [(GROUP_GPUS, numbered([len(places) for places in rows.members]))]
    steps = energy_columns(energy, members)
    joules = steps[0][1].known()
    found += [*steps, (OF_STEPS["energy_pct"], numbered(100.0 * ratios(joules, joules.sum())))]
    for metric, values in own:
        if metric.name in OF_STEPS or values.words is not None:
            continue
        known = values.known()
        if metric.name in TRAFFIC:
            sums = traffic_together(run, gpus, metric.name, known, rows.members)
            found.append((metric, numbered(sums)))
            continue
        together = metric
        if metric.name not in METRICS:
            text = text_of_several(metric.name)
            together = replace(metric, definition=metric.definition + text)
        numbers = [of_several(metric.name, figures, at) for at in rows.members]
        found.append((together, numbered(numbers)))
    for name, of in _SPREAD.items():
        known = by_name[of].known()
        spread = rows.reduced(known, np.ptp)
        few = [np.isfinite(known[places]).sum() < 2 for places in rows.members]
        found.append((COLUMNS[name], numbered(np.where(few, np.nan, spread))))
    return rows, found, _spread_of(by, rows, by_name)


def _spread_of(by: str, rows: GpuRows, by_name: dict[str, Values]) -> tuple[str, ...]:
    """How far GPUs of a row are apart at most, and how far the means of the rows are."""
    if len(rows.labels) < 2:
        return ()
    parts, word = [], "stages" if by == "pp" else f"{by}s" if by == NODE else f"{by} groups"
    for name, unit in (("mean_hot_c", Unit.CELSIUS), ("mean_power_w", Unit.WATTS)):
        known = by_name[name].known()
        if not np.isfinite(known).all():
            continue
        within = rows.reduced(known, np.ptp).max()
        means = rows.reduced(known, np.mean)
        if differs(within, 0.0) or differs(np.ptp(means), 0.0):
            parts.append(
                f"up to {scaled_text(float(within), unit)} between GPUs of one of the {word}, "
                f"{scaled_text(float(np.ptp(means)), unit)} between the means of the {word}"
            )
    return (facts(*parts),) if parts else ()
