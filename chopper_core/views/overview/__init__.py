"""Overview: a run's speed, the parts of its step, how its GPUs differ, and the findings."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, base_of, base_of_steps, baseline_of
from chopper_core.analyses.kernel_figures import columns_of_kernels
from chopper_core.analyses.rows import ALL_GPUS, GpuRows, Own, Partition
from chopper_core.analyses.samples import (
    mean_powers,
    total_power,
)
from chopper_core.analyses.step_account import (
    COUNTED,
    OTHER,
    TITLES,
    UNATTRIBUTED,
    Step,
    doubt_of,
    facts_of,
    headline_of,
    step_of,
    without,
)
from chopper_core.columns import (
    METRICS,
    Metric,
    Values,
    columns,
    heat_of,
    is_measured,
    numbered,
)
from chopper_core.model import address
from chopper_core.model.charts import (
    Card,
    Cards,
    Composition,
    Series,
)
from chopper_core.model.column_names import AWAITED, HEAT, HOTSPOT
from chopper_core.model.run import Run, SideSource
from chopper_core.model.table import Kind, Phase
from chopper_core.model.units import LONG_TIMES
from chopper_core.model.view import View, child_of, with_view
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import ChopperError, NothingToShow, UsageError
from chopper_core.util.grouping import sums_of
from chopper_core.views.overview.lanes import step_lanes
from chopper_core.views.overview.without_trace import (
    MAX_CARDS,
    overview_of_log,
    overview_of_samples,
    overview_of_snapshot,
)
from chopper_core.views.shared.rows_of_samples import result_of_samples
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import ViewResult, ViewSpec

OPERATION: Final = "operation"
_SLOWED_PCT: Final = 50.0
"""The headline names recorded steps as slowed from here on."""
SPEC: Final = ViewSpec(
    name="overview",
    title="Summary",
    question="How fast is the run, where does its step go, and what stands out?",
    by=("gpu", "node", OPERATION),
    compares=True,
    has_preview=True,
    no_statistic="shows the mean over the complete steps",
    takes_samples=True,
    takes_logs=True,
    takes_snapshots=True,
)

_MAX_GPUS: Final = 64
"""Of more GPUs, rows are nodes, where their hosts are known."""
_UNITS: Final = (*LONG_TIMES, (1e5, 1e6, "ms"), (0.0, 1e3, "µs"))
"""From which time a step is written in units of how many ns, and their name."""
_KINDS: Final = {"compute": "compute", "comm": "communication", "copy": "copies"}
_COMPUTING: Final = "it is being computed"

COLUMNS: Final = columns(
    """
    step_change_pct | % | Δ step | signed
        iteration_ns minus that of the same GPU in the baseline, in % of it.
        missing: the baseline lacks the GPU
"""
)
_LAG: Final = "lag_ns"
_STEP: Final = "iteration_ns"
_CHANGE: Final = "step_change_pct"
_POWER: Final = "mean_power_w"
_UTILISATION: Final = "gfx_util_pct"


class _Slow(Struct, frozen=True, eq=False):
    """The part of the result that all activities are read for, and the headline."""

    headline: str
    lag_ns: Float64
    """How much later than the earliest GPU each starts the same kernels; NaN if unknown."""
    cards: Cards


def answer(run: Run, view: View) -> ViewResult:
    if run.is_logged_only:
        return overview_of_log(run, view)
    if run.is_snapshot:
        return overview_of_snapshot(run, view)
    if run.is_sampled_only:
        return result_of_samples(run, view, overview_of_samples(run, view))
    step = step_of(run, view)
    return _result(step, run.memo(_slow_key(view), lambda: _slow_of(step)))


def _slow_of(step: Step) -> _Slow:
    run, view = step.run, step.view

    def made() -> _Slow:
        return _Slow(headline_of(step, _baseline_step(step)), _lag_ns(step), _cards(step))

    if view.base_run:
        return made()
    checked = partial(_checked, step)
    return run.kept(_slow_key(view), _Slow, made, lambda found: found, checked)


def _checked(step: Step, found: _Slow) -> _Slow:
    if len(found.lag_ns) != len(step.gpus):
        raise ValueError("the lags of other GPUs")
    return found


def preview(run: Run, view: View) -> ViewResult | None:
    key = _slow_key(view)
    if run.memo.has(key):
        return None
    step = step_of(run, view)
    if not view.base_run and run.knows(key, _Slow, partial(_checked, step)):
        return None
    return _result(step, None)


def _slow_key(view: View) -> tuple[str, View]:
    # The answer itself is kept under the name of the view.
    return "summary", replace(view, by="", sort="", filter="", columns=())


def _result(step: Step, slow: _Slow | None) -> ViewResult:
    """The result with what takes long; None: it is being computed."""
    view, run = step.view, step.run
    base = _baseline_step(step)
    headline = headline_of(step, base) if slow is None else slow.headline
    if _is_of_operations(step):
        return _of_operations(step, base, slow, headline)
    rows = _gpu_rows(step)
    own, total = _columns(step, rows, slow, base)
    # A screen may have lines for a few rows only: those that lag most come first.
    has_lags = len(step.gpus) > 1 if slow is None else bool(np.isfinite(slow.lag_ns).any())
    result = table_view(
        view,
        rows,
        own,
        total=total,
        opens=lambda row: _opens(step, rows, row),
        sort=f"-{_LAG}" if has_lags else "",
        headline=(
            headline,
            facts_of(step),
            *_whole_run(step),
            *_slowed_by_recording(step.run),
            *doubt_of(step),
        ),
        charts=(_composition(step, base), step_lanes(step, rows), _cards_of(step, slow)),
        base=base_of_steps(run, view),
        total_title=ALL_GPUS,
    )
    return replace(result, by=NODE if rows.level == NODE and not view.by else "")


def _slowed_by_recording(run: Run) -> tuple[str, ...]:
    """That the recorded steps are much longer than the others of the job."""
    slower = max((each.slower_pct or 0.0 for each in run.recordings), default=0.0)
    if slower < _SLOWED_PCT:
        return ()
    return (
        f"recording slows these steps: {slower:.0f} % longer than outside the window; --light "
        "slows them less",
    )


def _baseline_step(step: Step) -> Step | None:
    view = step.view
    return None if view.baseline is None else step_of(*baseline_of(step.run, view))


def _is_of_operations(step: Step) -> bool:
    """Whether rows are operations: with one GPU, or without training, there is no straggler."""
    if step.view.by or step.view.baseline is not None:
        return step.view.by == OPERATION
    if len(step.gpus) == 1:
        return True
    return not {Phase.BACKWARD, Phase.OPTIMIZER} & step.phases


def _of_operations(step: Step, base: Step | None, slow: _Slow | None, headline: str) -> ViewResult:
    """The operations that take the time: their share, calls, roof and the gaps before them."""
    view, run = step.view, step.run
    nodes = step.tree.split(view.path, (OPERATION,), step.times.excluded)
    labels = nodes.labels(OPERATION)
    rows = Partition(OPERATION, labels, nodes, step.whole)
    shown = columns_of_kernels(run, rows, {})
    at = shown.index("mean_ns") + 1
    lanes = replace(step_lanes(step, _gpu_rows(step)), has_own_rows=True)
    result = table_view(
        view,
        rows,
        (),
        opens=lambda row: replace(child_of(view, OPERATION, labels[row]), name="kernels"),
        sort="-kernel_ns",
        shown=(*shown[:at], "idle_ns", *shown[at:]),
        headline=(
            headline,
            facts_of(step),
            *_whole_run(step),
            *_slowed_by_recording(step.run),
            *doubt_of(step),
        ),
        charts=(_composition(step, base), lanes, _cards_of(step, slow)),
        base=base_of(run, view),
    )
    return replace(result, by=OPERATION)


def _cards_of(step: Step, slow: _Slow | None) -> Cards:
    return Cards(_cards_title(step.view), (), is_pending=True) if slow is None else slow.cards


def _gpu_rows(step: Step) -> GpuRows:
    """GPUs, or nodes where there are too many GPUs to see at once and their hosts are known."""
    if step.view.by in ("", OPERATION) and len(step.gpus) > _MAX_GPUS:
        with suppress(NothingToShow):
            return GpuRows.of(step.run, step.gpus, NODE)
    by = "" if step.view.by == OPERATION else step.view.by
    return GpuRows.of(step.run, step.gpus, by or "gpu")


def _reduced(rows: GpuRows, numbers: Float64, how: str) -> Values:
    """A figure of the GPUs as one of the rows; marked where it is known on some GPUs only."""
    known = rows.largest(numbers) if how == "max" else rows.reduced(numbers, getattr(np, how))
    values = Values(known)
    return replace(values, partial=rows.lacking(numbers) & values.present())


def _opens(step: Step, rows: GpuRows, row: int) -> View:
    plain = replace(step.view, by="", of="", columns=(), sort="", filter="")
    if rows.level != NODE:
        return child_of(plain, rows.level, rows.labels[row])
    gpus = ",".join(str(step.gpus[place]) for place in rows.members[row].tolist())
    return replace(plain, name="ranks", by="gpu", filter=f"gpu:{gpus}")


def _of_several(metric: Metric, how: str) -> Metric:
    """A figure of GPUs as the largest, or the mean, of those of a row."""
    text = f"The {how} of {metric.name} over the row's GPUs."
    return replace(metric, name=f"{how}_{metric.name}", reduces="", definition=text)


def _columns(
    step: Step, rows: GpuRows, slow: _Slow | None, base: Step | None
) -> tuple[Own, dict[str, int | float]]:
    steps, mean_ns = step.times.by_gpu_ns, step.times.mean_ns
    own: Own = []
    total: dict[str, int | float] = {_STEP: mean_ns}
    if base is not None and rows.level == "gpu":
        before = dict(zip(base.gpus, base.times.by_gpu_ns.tolist(), strict=True))
        # A baseline that others hide entirely takes no time.
        known = np.array([before.get(gpu) or np.nan for gpu in step.gpus])
        own.append((COLUMNS[_CHANGE], Values(100.0 * (steps - known) / known)))
        if base.times.mean_ns:
            total[_CHANGE] = 100.0 * (mean_ns - base.times.mean_ns) / base.times.mean_ns
    if slow is None:
        own.append(_pending(METRICS[_LAG], rows, _COMPUTING))
    elif len(step.gpus) > 1:
        own.append((METRICS[_LAG], _reduced(rows, slow.lag_ns, "max")))
    table = step.run.table
    for name in ("gfx_mhz", heat_of(table) or HOTSPOT, _POWER, _STEP, _UTILISATION):
        if name == _STEP:
            of_gpu = METRICS[_STEP]
            metric = of_gpu if rows.level == "gpu" else _of_several(of_gpu, "max")
            own.append((metric, _reduced(rows, steps, "max")))
        elif name == _POWER:
            powers = mean_powers(step.run, step.view)
            if np.isfinite(powers).any():
                own.append((METRICS[_POWER], _reduced(rows, powers, "sum")))
            elif SideSource.TELEMETRY in step.run.awaited:
                own.append(_pending(METRICS[_POWER], rows, AWAITED))
            if (watts := total_power(step.run, step.view)) is not None:
                total[_POWER] = watts
        elif is_measured(name, table):
            values, metric = step.figure(name), METRICS[name]
            if rows.level == "gpu":
                if (value := metric.compute(step.scope(step.whole)).at(0)) is not None:
                    total[name] = value
            else:
                how = "max" if name in HEAT else "mean"
                values, metric = _reduced(rows, values.known(), how), _of_several(metric, how)
            own.append((metric, values))
        elif SideSource.TELEMETRY in step.run.awaited:
            own.append(_pending(METRICS[name], rows, AWAITED))
    return own, total


def _pending(metric: Metric, rows: GpuRows, reason: str) -> tuple[Metric, Values]:
    """A column that has its place before its figures."""
    return replace(metric, missing_because=reason), numbered([None] * len(rows.labels))


def _composition(step: Step, base: Step | None) -> Composition:
    known = [each for each in (step, base) if each is not None]
    labels, titles, some, divided = _sides(step, base), TITLES, "", frozenset[str]()
    title, reduction = f"mean {step.word} of a GPU", "mean"
    sides = [(each.parts, each.times.cells) for each in known]
    if any(each.run.is_reconstructed for each in known):
        title, reduction, titles = "durations on a GPU by kind", "", _KINDS
        sides = [(_durations(each), each.times.cells) for each in known]
    elif len({tuple(parts) for parts, _ in sides}) > 1:
        # Parts that only one side can distinguish can't be compared.
        sides = [(each.states, each.times.cells) for each in known]
    else:
        lacking = {name for each in known for name in each.covered}
        lacking |= {
            name for name in COUNTED if len({parts.get(name, 0) > 0 for parts, _ in sides}) > 1
        }
        if lacking & sides[0][0].keys():
            sides = [(without(parts, lacking), cells) for parts, cells in sides]
        if base is None and step.divided:
            sides = [(step.parts, step.times.cells)]
            divided, some = step.divided, f"{len(step.some)}/{len(step.gpus)}"
    ns, unit = next((ns, name) for least, ns, name in _UNITS if step.times.mean_ns >= least)
    names = [name for name in titles if any(parts.get(name) for parts, _ in sides)]
    series = tuple(
        Series(
            titles[name],
            np.array([parts.get(name, np.nan) / cells / ns for parts, cells in sides]),
        )
        for name in names
    )

    def opens(part: int) -> View:
        column = UNATTRIBUTED if names[part] == OTHER else names[part]
        plain = replace(with_view(step.view, "overheads"), baseline=None)
        return replace(plain, columns=("elapsed_ns", column), sort=f"-{column}")

    has_columns = titles is not _KINDS
    return Composition(
        title,
        unit,
        labels,
        series,
        reduction,
        some,
        tuple(titles[name] for name in names if name in divided),
        opens if has_columns else None,
        tuple(titles[name] for name in names if any(name in each.run.doubted for each in known)),
    )


def _sides(step: Step, base: Step | None) -> tuple[str, ...]:
    own = "step" if step.times.iterations else "time"
    if base is None:
        return (own,)
    names = tuple(PurePath(each.view.run).name for each in (step, base))
    return names if base.run is not step.run and len(set(names)) > 1 else (own, "baseline")


def _durations(step: Step) -> dict[str, int]:
    table, rows = step.run.table, step.whole.selection
    sums = sums_of(table.duration_ns[rows], table.kind[rows], len(Kind))
    return {kind.name.lower(): int(sums[kind]) for kind in Kind}


def _lag_ns(step: Step) -> Float64:
    """How much later than the earliest GPU each starts the same kernels; NaN if unknown."""
    found = np.full(len(step.gpus), np.nan)
    if len(step.gpus) < 2:
        return found
    from chopper_core.analyses.leads import leads

    with suppress(UsageError):
        ranks, _ = leads(step.run, with_view(replace(step.view, baseline=None), ""))
        lag = dict(zip(ranks.gpus, ranks.lag_ns.tolist(), strict=True))
        found[:] = [lag.get(gpu, np.nan) for gpu in step.gpus]
    return found


def _cards_title(view: View) -> str:
    return "findings" if view.baseline is None else "what changed"


def _cards(step: Step) -> Cards:
    from chopper_core.views.shared import evidence

    cards, figures, number = evidence.finding_cards, "costs, saves", ""
    if step.view.baseline is not None:
        cards, figures = evidence.changes, "change"
    try:
        found = cards(step.run, step.view, MAX_CARDS)
        if step.view.baseline is None:
            number = evidence.number_of_findings(step.run, step.view)
    except ChopperError as error:
        # The other figures of a scope that no rule can check hold.
        asked = address.render(with_view(step.view, "findings"))
        found = (Card((), "", asked, f"not checked: {error}"),)
    return Cards(_cards_title(step.view), found, figures=figures, number=number)


def _whole_run(step: Step) -> tuple[str, ...]:
    """How the traced steps compare with the whole run, where its trainer's log is there."""
    if step.view.path or not step.run.logs:
        return ()
    from chopper_core.analyses.training import traced_steps  # most runs have no log

    traced = traced_steps(step.run)
    return () if traced is None else (traced.sentence,)
