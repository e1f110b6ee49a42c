"""Compute losses: from the ideal time to the measured time, loss by loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.loss_columns import HFU, LOST, MFU, SHARES, divided_note, parts_in
from chopper_core.analyses.rows import Partition
from chopper_core.analyses.time_parts import (
    LOSSES,
    TERMS,
    THEORY,
    TITLES,
    UNKNOWN,
    TimeParts,
    with_parts,
    without_flops,
)
from chopper_core.columns import METRICS, Scope, Values
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.column_names import (
    CYCLES,
    RECOMPUTED,
)
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import facts, level_title, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

_NOTED_PCT: Final = 1.0
_MAX_BARS: Final = 200
SPEC: Final = ViewSpec(
    name="overheads",
    title="Losses · compute",
    question="Which losses lie between the ideal and the measured time?",
    by=any_level("operation", "phase", "layer", "gpu"),
    parts=tuple(SHARES.values()),
    any_split=True,
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "operation"
    tree = with_parts(run).tree_of(view)
    rows = Partition.of(tree, view, by)
    scope, of_whole = rows.scope(run), rows.whole_scope(run)
    parts, whole = parts_in(scope), parts_in(of_whole)
    assert parts is not None and whole is not None
    words = {
        name: f"{title} ~" if whole.is_divided(name)[0] else title for name, title in TITLES.items()
    }
    has_theory = bool(whole.values[THEORY].present()[0])
    figures, total = _figures(scope, parts), _figures(of_whole, whole)
    base = base_of(run, view)
    used = [name for name in TERMS if parts.ns(name).any()]
    most = figures["lost_ns"].known(missing=-1.0) if has_theory else parts.elapsed_ns
    order = np.argsort(-most, kind="stable")[:_MAX_BARS]
    top = tuple(rows.labels[row] for row in order.tolist())
    ms = 1e6 * base.of_rows({by: top})
    bars = tuple(Series(TITLES[name], parts.ns(name)[order] / ms) for name in used)
    return table_view(
        view,
        rows,
        columns_of(figures),
        columns_of(total),
        sort="-lost_ns" if has_theory else "-elapsed_ns",
        shown=("elapsed_ns", *_columns_of(used), *(SHARES[name] for name in used), *used),
        headline=(_headline(run, base, whole),),
        notes=(
            *_notes(run, tree.split(view.path, ("operation", "kernel")), whole),
            *divided_note(run, whole, rows.whole),
        ),
        charts=(
            _waterfall(base, whole, used, words),
            BarChart(f"time by {level_title(by)} and its parts", "ms", top, bars),
        ),
    )


def _columns_of(used: Sequence[str]) -> tuple[str, ...]:
    """HFU is another figure than MFU in a run that recomputes."""
    return tuple(name for name in LOST if name not in (MFU, HFU) or RECOMPUTED in used)


def _figures(scope: Scope, parts: TimeParts) -> dict[str, Values]:
    names = (*LOST, *SHARES.values())
    own = {name: METRICS[name].compute(scope) for name in names}
    return {"elapsed_ns": Values(parts.elapsed_ns), **own, **parts.values}


def _headline(run: Run, base: Base, whole: TimeParts) -> str:
    elapsed = base.each(int(whole.elapsed_ns[0]))
    shares = {name: whole.share(name).at(0) or 0.0 for name in LOSSES}
    name = max((name for name in LOSSES if name != UNKNOWN), key=lambda each: shares[each])
    lost, unknown = (base.each(float(whole.ns(each)[0])) for each in (name, UNKNOWN))
    kind = "largest known loss" if shares[UNKNOWN] > shares[name] else "largest loss"
    theory = whole.known(THEORY).at(0)
    of = f"of {run.mark('elapsed_ns')}{time_text(elapsed)}{base.words}"

    def mark(part: str) -> str:
        return "~" if whole.is_divided(part)[0] else run.mark(part)

    return facts(
        f"{mark(name)}{_amount(lost, elapsed)} {TITLES[name]}, the {kind}"
        if shares[name] > 0
        else "",
        f"{mark(UNKNOWN)}{_amount(unknown, elapsed)} {TITLES[UNKNOWN]}" if unknown > 0 else "",
        f"ideal unknown, {of}"
        if theory is None
        else f"{_amount(base.each(theory), elapsed)} ideal, {of}",
    )


def _amount(part: float, whole: float) -> str:
    return f"{time_text(part)} ({percent(part / max(whole, 1))})"


def _notes(run: Run, kernels: Groups, whole: TimeParts) -> tuple[str, ...]:
    """The unknown parts, and the part with their time; `kernels` by operation and name."""
    notes: list[str] = []
    counted = CYCLES in run.table.measured
    if run.hardware is None:
        notes.append("the GPU is not in hardware.toml: without its peak no compute is explained")
    elif not whole.values[THEORY].present()[0]:
        notes.append(
            "the ideal time is unknown: no kernel has FLOPs and a data type "
            "(record_shapes=True in the profiler gives both)"
        )
    elif (share := without_flops(kernels)) > _NOTED_PCT:
        notes.append(
            f"{share:.1f} % of the time of matrix kernels has unknown FLOPs or an unknown peak: "
            f"their share makes the ideal time too short and the lost time too long"
        )
    if not counted:
        notes.append(
            "no counters: extra instructions, idle matrix units, vector work and contention "
            "are together in the part that is not explained"
        )
    if not whole.values["frequency_ns"].present()[0]:
        lies = LOSSES["unseparated_ns"] if counted and run.hardware else LOSSES[UNKNOWN]
        notes.append(f"the GPUs' clock is unknown in the scope: its loss is in {lies}")
    if counted and run.hardware and whole.numbers(UNKNOWN)[0] > 0:
        notes.append("not explained: kernels without counters, and matrix kernels without FLOPs")
    return tuple(notes)


def _waterfall(base: Base, whole: TimeParts, used: list[str], words: Mapping[str, str]) -> BarChart:
    losses = [name for name in used if name != THEORY]
    steps = np.array([0, *(whole.ns(name)[0] for name in losses), 0], np.float64)
    level = whole.ns(THEORY)[0] + np.cumsum(steps)
    series = {
        "reached": np.minimum(level, level - steps),
        "adds": np.maximum(steps, 0.0),
        "saves": np.maximum(-steps, 0.0),
    }
    if not series["saves"].any():
        del series["saves"]
    if not whole.values[THEORY].present()[0]:
        for numbers in series.values():
            numbers[0] = np.nan
    return BarChart(
        "from the ideal to the measured time",
        "ms",
        ("ideal", *(words[name] for name in losses), "measured"),
        tuple(Series(name, base.each(numbers) / 1e6) for name, numbers in series.items()),
    )
