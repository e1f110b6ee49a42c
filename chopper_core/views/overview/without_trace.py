"""Overviews of runs that have a log, snapshots of memory or telemetry alone."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.analyses.samples import (
    doubted_columns,
    gpus_of,
    sampled_columns,
    sampled_notes,
    totals_of,
    without_totals,
)
from chopper_core.analyses.step_account import (
    power_text,
)
from chopper_core.model.charts import (
    Cards,
)
from chopper_core.model.phrases import count, facts, time
from chopper_core.model.run import Run
from chopper_core.model.units import Unit, scaled_text
from chopper_core.model.view import View, with_view
from chopper_core.views.shared.table_view import known_columns, table_view
from chopper_core.views.spec import ViewResult

MAX_CARDS: Final = 12
_SHOWN_OF_SAMPLES: Final = (
    *("mean_power_w", "peak_power_w", "sampled_energy_j", "mean_gfx_mhz", "lowest_gfx_mhz"),
    *("mean_hot_c", "hottest_c", "mean_throttle_pct", "low_clock_pct", "mean_gfx_util_pct"),
    "window_ns",
)


def overview_of_log(run: Run, view: View) -> ViewResult:
    """The windows of the log of a run that has nothing else, and its findings."""
    from chopper_core.views.shared.evidence import finding_cards, number_of_findings
    from chopper_core.views.shared.log_rows import of_windows

    found = of_windows(run, View(view.run))
    number = number_of_findings(run, view)
    cards = Cards("findings", finding_cards(run, view, MAX_CARDS), number=number)
    return replace(
        found, opens=lambda row: with_view(view, "training"), charts=(*found.charts[:2], cards)
    )


def overview_of_snapshot(run: Run, view: View) -> ViewResult:
    """What holds the memory of a run that has snapshots of it alone, and its findings."""
    from chopper_core.views.shared.evidence import finding_cards, number_of_findings
    from chopper_core.views.shared.held_memory import held_rows

    found = held_rows(run, View(view.run))
    number = number_of_findings(run, view)
    cards = Cards("findings", finding_cards(run, view, MAX_CARDS), number=number)
    return replace(
        found, opens=lambda row: with_view(view, "memory"), charts=(found.charts[0], cards)
    )


def overview_of_samples(run: Run, view: View) -> ViewResult:
    from chopper_core.analyses.power_samples import WINDOW_NS, samples_of
    from chopper_core.views.shared.evidence import finding_cards, number_of_findings
    from chopper_core.views.shared.sample_charts import charts

    own = sampled_columns(run)
    found = samples_of(run, view, WINDOW_NS) if own else []
    number = number_of_findings(run, view)
    cards = Cards("findings", finding_cards(run, view, MAX_CARDS), number=number)
    return table_view(
        view,
        LabelledRows("gpu", [str(gpu) for gpu in gpus_of(run)]),
        own,
        total=totals_of(own),
        shown=known_columns(own, _SHOWN_OF_SAMPLES),
        headline=(_headline_of_samples(run, own), *([run.status] if run.status else [])),
        notes=(*sampled_notes(run), *without_totals(own)),
        charts=(*charts(found, run.origin_ns)[:2], cards),
    )


def _headline_of_samples(run: Run, own: Own) -> str:
    total = totals_of([each for each in own if each[1].present().all()])
    parts = [f"telemetry alone of {count(len(run.gpus), 'GPU')}"]

    def mark(column: str) -> str:
        return "~" if column in doubted_columns(run) else ""

    if not run.status and (window := totals_of(own).get("window_ns")):
        parts.append(f"window {time(window)}")
    if "mean_power_w" in total:
        parts.append(f"mean power {mark('mean_power_w')}{power_text(total['mean_power_w'])}")
    if not run.status and "sampled_energy_j" in total:
        joules = scaled_text(total["sampled_energy_j"], Unit.JOULES)
        parts.append(f"energy {mark('sampled_energy_j')}{joules}")
    if "mean_gfx_mhz" in total:
        parts.append(f"clock {mark('mean_gfx_mhz')}{total['mean_gfx_mhz']:,.0f} MHz")
    if "mean_hot_c" in total:
        parts.append(f"{total['mean_hot_c']:.1f} °C")
    return facts(*parts)
