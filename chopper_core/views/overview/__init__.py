"""Overview: the speed of a run, the parts of its step, each GPU's difference from the others, the
findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Metric, Values, column, heat_of, is_measured, numbered
from chopper_core.model.charts import Cards, Chart, Composition, Series
from chopper_core.model.column_names import HEAT, HOTSPOT
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.units import LONG_TIMES, Unit
from chopper_core.model.view import View, baseline_view, with_view
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.grouping import distinct, sums_of
from chopper_core.views.overview.step import (
    COUNTED,
    TITLES,
    Step,
    facts_of,
    headline_of,
    step_of,
    without,
)
from chopper_core.views.shared.phrases import by_number, count, time
from chopper_core.views.shared.samples import (
    CLOCK,
    ENERGY,
    HEAT_FIGURE,
    POWER,
    WINDOW,
    columns_of,
    figure,
    gpus_of,
    opened,
    result_of_samples,
    sampled_notes,
    totals_of,
)
from chopper_core.views.shared.table_view import child_of
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="overview",
    title="Overview",
    question="How fast is the run, where does its step go, and what stands out?",
    by=("gpu", "node"),
    compares=True,
    has_preview=True,
    no_statistic="shows the mean over the complete iterations",
    takes_samples=True,
)

_MAX_GPUS: Final = 64
"""Of more GPUs, rows are nodes, where their hosts are known."""
_MAX_CARDS: Final = 12
_CACHED: Final = 32
"""Scopes whose slow parts are cached."""
_UNITS: Final = (*LONG_TIMES, (1e5, 1e6, "ms"), (0.0, 1e3, "µs"))
"""From which time a step is written in units of how many ns, and their name."""
_KINDS: Final = {
    Kind.COMPUTE: "compute",
    Kind.COMM: "communication",
    Kind.COPY: "copies",
}
_NONE: Final = np.zeros(1, np.int64)
_COMPUTING: Final = "it is being computed"

STEP: Final = column("""step_ns | ns | step
    Mean time charged to a complete iteration of the GPU: its activities and the idle time
    before them. For a row of several GPUs, the largest.""")
CHANGE: Final = column("""step_change_pct | % | Δ step | signed
    step_ns minus that of the same GPU in the baseline, in % of it.
    missing: the baseline lacks the GPU""")
LAG: Final = column("""lag_ns | ns | lag
    How much later than the earliest GPU it starts the same kernels, on average over the
    complete iterations. For a row of several GPUs, the largest.
    missing: no compute kernel of the scope runs on all of several GPUs
    source: Lit Silicon, algorithm 1""")
_UTILISATION: Final = "gfx_util_pct"


class _Slow(Struct, frozen=True):
    """The part of the result that all activities are read for."""

    lag_ns: tuple[float | None, ...]
    """How much later than the earliest GPU each starts the same kernels; None if unknown."""
    cards: Cards


class _OverviewRows(Struct, frozen=True, eq=False):
    """The rows of the table: GPUs, or nodes of several."""

    level: str
    labels: list[str]
    members: list[Index]
    """The places of each row's GPUs."""

    def reduced(self, numbers: Float64, how: str) -> Values:
        """A figure of the GPUs as one of the rows; marked where it is known on some GPUs only."""
        lacks = np.array([bool(np.isnan(numbers[own]).any()) for own in self.members], np.bool_)
        found = np.full(len(self.labels), np.nan)
        for row, own in enumerate(self.members):
            known = numbers[own][np.isfinite(numbers[own])]
            if len(known):
                sizes = {"max": known.max(), "mean": known.mean(), "sum": known.sum()}
                found[row] = sizes[how]
        return replace(numbered(found), partial=lacks & np.isfinite(found))


def answer(run: Run, view: View) -> ViewResult:
    """A row per GPU, or per node of very many: its step, its lag, its telemetry."""
    if run.is_sampled_only:
        return result_of_samples(run, view, _of_samples(run, view))
    return _result(step_of(run, view), _slow_part(run, view))


def preview(run: Run, view: View) -> ViewResult | None:
    """The result without what takes long; None where that is known already."""
    if run.memo.has(_slow_key(view)):
        return None
    return _result(step_of(run, view), None)


def _slow_part(run: Run, view: View) -> _Slow:
    """The lags of the GPUs and the cards, computed once."""

    def compute() -> _Slow:
        step = step_of(run, view)
        lag = [None if np.isnan(each) else each for each in _lag_ns(step).tolist()]
        return _Slow(tuple(lag), _cards(step))

    return run.memo(_slow_key(view), compute, keep=_CACHED)


def _slow_key(view: View) -> tuple[str, View]:
    return "overview", replace(view, by="", sort="", filter="", columns=())


def _result(step: Step, slow: _Slow | None) -> ViewResult:
    """The result with what takes long; None: it is being computed."""
    view, run = step.view, step.run
    lag_ns = None if slow is None else np.array(slow.lag_ns, np.float64)
    cards = Cards(_cards_title(view), (), is_pending=True) if slow is None else slow.cards
    rows = _rows_of(step)
    base = _baseline_step(run, view)
    own = _columns(step, rows, lag_ns, base)
    slowest = _slowest_of(step, rows)
    by = rows.level if rows.level == "node" else ""
    facts = facts_of(step)
    return ViewResult(
        level=rows.level,
        labels=rows.labels,
        columns=tuple(own),
        opens=lambda row: _opens(step, rows, row),
        total=_totals(step, base, own),
        shown=tuple(metric.name for metric, _ in own if metric.name not in ("exposed_comm_pct",)),
        sort=_sort(rows, lag_ns),
        headline=(headline_of(step, base), " · ".join(facts)),
        notes=_notes(step),
        charts=(_composition(step, base), _lanes(step, slowest, rows), cards),
        by="" if view.by else by,
    )


def _rows_of(step: Step) -> _OverviewRows:
    """GPUs, or nodes where there are too many GPUs to see at once and their hosts are known."""
    gpus, view = step.gpus, step.view
    if view.by == "node" or (not view.by and len(gpus) > _MAX_GPUS):
        from chopper_core.views.ranks.rank_columns import node_names

        try:
            names = node_names(step.run, tuple(gpus))
        except UsageError:
            if view.by:
                raise
        else:
            labels = list(dict.fromkeys(names))
            members = [np.flatnonzero(np.array(names) == label) for label in labels]
            return _OverviewRows("node", labels, members)
    if view.by in (along := step.run.table.coordinates):
        codes = along[view.by][gpus]
        parts = distinct(codes).tolist()
        labels = [step.run.table.text_of(view.by, code) for code in parts]
        return _OverviewRows(view.by, labels, [np.flatnonzero(codes == code) for code in parts])
    return _OverviewRows(
        "gpu", [str(gpu) for gpu in gpus], [np.array([at]) for at in range(len(gpus))]
    )


def _sort(rows: _OverviewRows, lag_ns: Float64 | None) -> str:
    """Of more rows than a screen has lines, those that lag most come first."""
    has_lags = lag_ns is not None and bool(np.isfinite(lag_ns).any())
    return f"-{LAG.name}" if has_lags and len(rows.labels) > _MAX_GPUS else ""


def _opens(step: Step, rows: _OverviewRows, row: int) -> View:
    plain = replace(step.view, by="", of="", columns=(), sort="", filter="")
    if rows.level != "node":
        return child_of(plain, rows.level, rows.labels[row])
    gpus = ",".join(str(step.gpus[place]) for place in rows.members[row].tolist())
    return replace(plain, name="ranks", by="gpu", filter=f"gpu:{gpus}")


def _baseline_step(run: Run, view: View) -> Step | None:
    """The step of the baseline; None without one."""
    if view.baseline is None:
        return None
    there = replace(baseline_view(view), name="", by="", of="")
    return step_of(run if there.run == view.run else run.baseline_run(there.run), there)


def _columns(
    step: Step, rows: _OverviewRows, lag_ns: Float64 | None, base: Step | None
) -> list[tuple[Metric, Values]]:
    steps = step.times.by_gpu_ns
    own: list[tuple[Metric, Values]] = []
    if base is not None and rows.level == "gpu":
        before = dict(zip(base.gpus, base.times.by_gpu_ns.tolist(), strict=True))
        # A baseline that others hide entirely takes no time.
        known = np.array([before.get(gpu) or np.nan for gpu in step.gpus])
        own.append((CHANGE, numbered(100.0 * (steps - known) / known)))
    if lag_ns is None:
        pending = replace(LAG, missing_because=_COMPUTING)
        own.append((pending, numbered(np.full(len(rows.labels), np.nan))))
    elif len(step.gpus) > 1:
        own.append((LAG, rows.reduced(lag_ns, "max")))
    for name in (*_measured(step.run), STEP.name, _UTILISATION):
        if name == STEP.name:
            own.append((STEP, rows.reduced(steps, "max")))
        elif is_measured(name, step.run.table):
            values = step.figure(name)
            if rows.level == "gpu":
                own.append((METRICS[name], values))
                continue
            numbers = np.where(values.present(), values.numbers, np.nan).astype(np.float64)
            how = {**dict.fromkeys(HEAT, "max"), "power_w": "sum"}.get(name, "mean")
            own.append((_of_node(METRICS[name], how), rows.reduced(numbers, how)))
    return own


def _measured(run: Run) -> tuple[str, ...]:
    return ("gfx_mhz", heat_of(run.table) or HOTSPOT, "power_w")


def _of_node(metric: Metric, how: str) -> Metric:
    return replace(
        metric,
        name=f"{how}_{metric.name}",
        reduces="",
        definition=f"The {how} of {metric.name} over the row's GPUs.",
    )


def _totals(
    step: Step, base: Step | None, own: Sequence[tuple[Metric, Values]]
) -> dict[str, int | float]:
    names = {metric.name for metric, _ in own}
    total: dict[str, int | float] = {STEP.name: step.times.mean_ns}
    if CHANGE.name in names and base is not None and base.times.mean_ns:
        total[CHANGE.name] = 100.0 * (step.times.mean_ns - base.times.mean_ns) / base.times.mean_ns
    for name in (*_measured(step.run), _UTILISATION):
        if name in names:
            value = METRICS[name].compute(step.scope(step.whole)).at(0)
            if value is not None:
                total[name] = value
    return total


def _slowest_of(step: Step, rows: _OverviewRows) -> list[int]:
    """The GPU of each row whose lane is drawn: the one that takes longest."""
    steps = step.times.by_gpu_ns
    return [step.gpus[int(own[steps[own].argmax()])] for own in rows.members]


def _lanes(step: Step, gpus: list[int], rows: _OverviewRows) -> Chart:
    from chopper_core.views.overview.lanes import lanes_chart

    labels = [
        f"GPU {label}"
        if rows.level == "gpu"
        else f"{'' if rows.level == 'node' else rows.level + ' '}{label} GPU {gpu}"
        for label, gpu in zip(rows.labels, gpus, strict=True)
    ]
    return lanes_chart(step, gpus, labels)


def _composition(step: Step, base: Step | None) -> Composition:
    """The parts of the mean step; next to it a baseline's, or those that only some GPUs have."""
    known = [each for each in (step, base) if each is not None]
    if any(each.run.is_reconstructed for each in known):
        return _durations(known)
    parts = [each.parts for each in known]
    # Parts that only one side can distinguish can't be compared.
    if len({tuple(each) for each in parts}) > 1:
        parts = [each.states for each in known]
    else:
        lacking = {name for each in known for name in each.covered if name in parts[0]}
        lacking |= {
            name for name in COUNTED if len({bool(own.get(name, _NONE)[0]) for own in parts}) > 1
        }
        if lacking:
            parts = [without(own, lacking) for own in parts]
    sides = [(own, each.times.cells) for own, each in zip(parts, known, strict=True)]
    labels, some = _sides(step, base), ""
    if base is None and step.some:
        own, cells = step.parts_on(step.some)
        sides.append((without(own, ()), cells))
        some = f"{len(step.some)}/{len(step.gpus)}"
        labels = (f"{len(step.gpus)} GPUs", f"{len(step.some)} of {len(step.gpus)}")
    scale, unit = next((ns, name) for least, ns, name in _UNITS if step.times.mean_ns >= least)
    names = [name for name in TITLES if any(own.get(name, _NONE)[0] for own, _ in sides)]
    series = tuple(
        Series(
            TITLES[name],
            np.array([own[name][0] / n / scale if name in own else np.nan for own, n in sides]),
        )
        for name in names
    )
    return Composition(f"mean {step.word} of a GPU", unit, labels, series, "mean", some)


def _sides(step: Step, base: Step | None) -> tuple[str, ...]:
    """The titles of a step's bar, and of its baseline's; of two runs their names."""
    own = "step" if step.times.iterations else "time"
    if base is None:
        return (own,)
    names = tuple(PurePath(each.view.run).name for each in (step, base))
    return names if base.run is not step.run and len(set(names)) > 1 else (own, "baseline")


def _durations(known: Sequence[Step]) -> Composition:
    """Durations by kind, where a side has no start times: what overlaps isn't known."""
    scale, unit = next((ns, name) for least, ns, name in _UNITS if known[0].times.mean_ns >= least)
    sums = []
    for each in known:
        table, rows = each.run.table, each.whole.selection
        weights = table.duration_ns[rows]
        own = sums_of(weights, table.kind[rows], len(Kind))
        sums.append(own / each.times.cells / scale)
    series = tuple(
        Series(title, np.array([own[kind] for own in sums]))
        for kind, title in _KINDS.items()
        if any(own[kind] for own in sums)
    )
    labels = _sides(known[0], known[1] if len(known) > 1 else None)
    return Composition("durations on a GPU by kind", unit, labels, series)


def _lag_ns(step: Step) -> Float64:
    """How much later than the earliest GPU each starts the same kernels; NaN if unknown."""
    found = np.full(len(step.gpus), np.nan)
    if len(step.gpus) < 2:
        return found
    from chopper_core.views.shared.leads import leads

    with suppress(UsageError):
        ranks, _ = leads(step.run, with_view(replace(step.view, baseline=None), ""))
        mean = ranks.lead_ns / max(len(ranks.found), 1)
        lag = dict(zip(ranks.gpus, (mean.max() - mean).tolist(), strict=True))
        found[:] = [lag.get(gpu, np.nan) for gpu in step.gpus]
    return found


def _cards_title(view: View) -> str:
    return "findings" if view.baseline is None else "what changed"


def _figures_of(view: View) -> str:
    return "potential saving" if view.baseline is None else "change"


def _cards(step: Step) -> Cards:
    """The findings of the scope; against a baseline, what changed most."""
    from chopper_core.views.overview import evidence

    cards = evidence.findings if step.view.baseline is None else evidence.changes
    try:
        found = cards(step.run, step.view, _MAX_CARDS)
    except ChopperError:
        # A scope that no rule can check has no cards; its other figures hold.
        found = ()
    return Cards(_cards_title(step.view), found, figures=_figures_of(step.view))


def _notes(step: Step) -> tuple[str, ...]:
    notes = []
    truncated = step.run.truncated(step.view)
    lacking = [number for number in step.times.left_out if number not in truncated]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        notes.append(f"{by_number('iteration', lacking)} {verb} missing on a GPU: left out")
    return tuple(notes)


_SHOWN_OF_SAMPLES: Final = (
    *("mean_power_w", "peak_power_w", "sampled_energy_j", "mean_gfx_mhz", "lowest_gfx_mhz"),
    *("mean_hot_c", "hottest_c", "mean_throttle_pct", "low_clock_pct", "mean_gfx_util_pct"),
    "window_ns",
)


def _of_samples(run: Run, view: View) -> ViewResult:
    """A row per GPU with telemetry: its power, clock, temperature; and the findings."""
    from chopper_core.views.overview.evidence import findings
    from chopper_core.views.power import WINDOW_NS
    from chopper_core.views.power.charts import charts, samples_of

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
        shown=tuple(name for name in _SHOWN_OF_SAMPLES if name in known),
        headline=(_headline_of_samples(run), *([run.status] if run.status else [])),
        notes=sampled_notes(run),
        charts=(
            *charts(found, run.origin_ns)[:2],
            Cards("findings", findings(run, view, _MAX_CARDS)),
        ),
    )


def _headline_of_samples(run: Run) -> str:
    """Power, energy, clock and heat of all GPUs, as far as all have them."""
    power, energy, clock, heat = (figure(run, each) for each in (POWER, ENERGY, CLOCK, HEAT_FIGURE))
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
