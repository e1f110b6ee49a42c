"""Experts: how unevenly tokens go to experts and ranks, and what balancing would bring."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.analyses.experts import (
    BY_LOG,
    EXPERT_ROWS,
    ExpertLoads,
    ExpertWork,
    balanced_question,
    balancing_saves_ns,
    expert_loads,
    expert_work,
)
from chopper_core.analyses.rows import LabelledRows
from chopper_core.analyses.step_times import step_times
from chopper_core.columns import Values, numbered
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.phrases import count, facts, percent, time
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import places_by, ranked, sums_of
from chopper_core.views.shared.table_view import columns_of, known_columns, table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="experts",
    title="GPUs · experts",
    question="Which experts and ranks get more tokens than others, and what would balancing bring?",
    by=("rank", "expert", "layer"),
    rows=(EXPERT_ROWS,),
    no_statistic="computes its figures over all complete steps",
    takes_samples=True,
    takes_logs=True,
)
_NO_LOADS: Final = (
    "nothing lists the tokens of experts; print tokens_per_expert: [12, 34, …] to the job's log, "
    "or put it into the name of a range, or trace all-to-alls of several ranks"
)
_MOST_BARS: Final = 24


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    return "" if expert_loads(run) or expert_work(run) else _NO_LOADS


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or SPEC.by[0]
    loads, work = expert_loads(run), expert_work(run)
    if loads is None:
        if work is None or by != "rank":
            raise NothingToShow(_NO_LOADS)
        return _of_work(run, view, work)
    codes = getattr(loads, by)
    own = np.flatnonzero(codes >= 0)
    if not len(own):
        known = ", ".join(name for name in SPEC.by if (getattr(loads, name) >= 0).any())
        raise NothingToShow(f"{loads.source} name no {by}s; by={known} answers")
    names, place = ranked(codes[own])
    sums = sums_of(loads.amount[own], place, len(names)) / loads.steps
    figures = {
        "expert_tokens" if loads.is_tokens else "exchanged_bytes": Values(sums),
        "load_share_pct": Values(100.0 * sums / max(float(sums.sum()), 1e-9)),
        "over_mean_pct": Values(100.0 * (sums / max(float(sums.mean()), 1e-9) - 1.0)),
    }
    if by == "layer":
        which = loads.expert if loads.is_tokens else loads.rank
        figures["layer_imbalance"] = numbered(
            [loads.take(own[at]).imbalance(which[own[at]]) for at in places_by(place).values()]
        )
    if by == "rank" and work is not None:
        times = dict(zip(work.gpus.tolist(), work.each_ns.tolist(), strict=True))
        of_rank = {run.rank_of[gpu]: took for gpu, took in times.items()}
        figures["expert_ns"] = numbered([of_rank.get(rank) for rank in names.tolist()])
    labels = [*map(str, names.tolist())]
    order = np.argsort(-sums, kind="stable")[:_MOST_BARS]
    bars = BarChart(
        f"{'tokens' if loads.is_tokens else 'bytes exchanged'} per step",
        "" if loads.is_tokens else "B",
        tuple(f"{by} {labels[row]}" for row in order.tolist()),
        (Series("load", sums[order].astype(np.float64)),),
        "",
    )
    own_columns = columns_of(figures)
    return table_view(
        view,
        LabelledRows(by, labels),
        own_columns,
        opens=lambda row: view,
        sort="" if by == "layer" else "-over_mean_pct",
        shown=known_columns(own_columns),
        headline=_headline(run, loads, work),
        notes=(f"by {loads.source}", *_notes(loads)),
        charts=(bars,),
    )


def _of_work(run: Run, view: View, work: ExpertWork) -> ViewResult:
    """The ranks by what their experts compute, where nothing lists tokens."""
    own = columns_of({"expert_ns": Values(work.each_ns)})
    return table_view(
        view,
        LabelledRows("rank", [str(run.rank_of[gpu]) for gpu in work.gpus.tolist()]),
        own,
        total={},
        opens=lambda row: view,
        sort="-expert_ns",
        shown=known_columns(own),
        headline=_of_trace(run, work),
        notes=("nothing lists the tokens of experts",),
    )


def _headline(run: Run, loads: ExpertLoads, work: ExpertWork | None) -> tuple[str, ...]:
    of_ranks, of_experts = (
        loads.imbalance(getattr(loads, name)) if (getattr(loads, name) >= 0).all() else np.nan
        for name in ("rank", "expert")
    )
    lines = [
        facts(
            f"the busiest expert gets {of_experts:.2f} times the mean" if of_experts > 0 else "",
            f"the busiest rank {of_ranks:.2f} times" if of_ranks > 0 else "",
            count(loads.steps, "step"),
        )
    ]
    if work is not None:
        lines += _of_trace(run, work)
    elif not len(run.table):
        lines.append("without a trace, no replay tells what balancing would bring")
    return tuple(filter(None, lines))


def _of_trace(run: Run, work: ExpertWork) -> tuple[str, ...]:
    """What experts compute, and what a replay with balanced ones saves."""
    step_ns = step_times(run, View(run.name)).mean_ns
    saving, saved = balancing_saves_ns(run, work), ""
    if saving is not None:
        less = max(saving, 0.0)
        saved = (
            f"balanced, a step takes {time(less)} ({percent(less / step_ns)}) less, by replay: "
            f"what-if '{balanced_question(work)}'"
        )
    mean = time(float(work.each_ns.mean()))
    computed = (
        f"experts compute {mean} per step and GPU, {time(work.behind_ns)} more on the busiest"
    )
    return (facts(computed, saved),)


def _notes(loads: ExpertLoads) -> tuple[str, ...]:
    if loads.source == BY_LOG and (loads.rank >= 0).any():
        return ("lists of several ranks are added up place by place: each lists all experts",)
    return ()
