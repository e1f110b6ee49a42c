"""Losses: what the step loses, from its time down to the ideal, in one sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of, divided
from chopper_core.analyses.coverage import Coverage
from chopper_core.analyses.rows import LabelledRows, Partition
from chopper_core.analyses.time_parts import (
    LOSSES,
    THEORY,
    TimeParts,
    covered_parts,
    parts_of_rows,
    with_all_parts,
    with_parts,
)
from chopper_core.columns import METRICS, Scope, Values, columns
from chopper_core.columns.metric import quotient
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import facts, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View, with_view
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

PART: Final = "part"
_IDLE: Final = {
    "idle_latency_ns": "launch",
    "idle_host_ns": "host",
    "idle_queued_ns": "queue",
    "idle_unknown_ns": "idle, cause unknown",
}
"""The parts of idle time, which add up to it."""
TITLES: Final = {name: title for name, title in LOSSES.items() if name != "idle_ns"} | _IDLE
"""The losses of the sum, in its order."""

COLUMNS: Final = columns(
    """
    loss_ns | ns | loss
        elapsed_ns less the ideal: what the row loses. The rows add up to the step less the ideal.
        Where FLOPs are unknown, no time is ideal, and compute is not explained.
    loss_pct | % | % of step
        loss_ns in % of the step.
        missing: the step takes no time
    """,
    source="time accounting (docs/accounting.md), breakdown of compute",
)
SPEC: Final = ViewSpec(
    name="losses",
    title="Losses · step",
    question="What does the step lose, in one sum, from its time down to the ideal?",
    by=(PART, *any_level("operation", "layer", "gpu")),
    any_split=True,
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or PART
    tree = with_parts(run).tree_of(view)
    base, node = base_of(run, view), tree.node(view.path)
    rows = Partition(PART, [], node, node) if by == PART else Partition.of(tree, view, by)
    covered = covered_parts(Coverage(run, view, "" if by == PART else by, rows.nodes, node))
    whole = parts_of_rows(run, tree, view, "", node, covered)
    step_ns = base.each(float(whole.elapsed_ns[0]))
    total = _figures(Values(base.each(whole.elapsed_ns - whole.numbers(THEORY))), step_ns)
    if by == PART:
        lost = _by_part(run, node, whole)
        used = [*lost]
        names = LabelledRows(PART, [TITLES[name] for name in used])
        marks = np.array([whole.is_divided(name)[0] for name in used], np.bool_)
        loss = Values(base.each(np.array([*lost.values()], np.float64)), extrapolated=marks)
        return table_view(
            view,
            names,
            columns_of(_figures(loss, step_ns), COLUMNS),
            columns_of(total, COLUMNS),
            opens=lambda row: _opens(view, used[row]),
            sort="-loss_ns",
            headline=_headline(base, whole),
            notes=_notes(whole, covered, len(run.gpus)),
            base=base.applied,
        )
    parts = parts_of_rows(run, tree, view, by, rows.nodes, covered)
    loss = divided(
        Values(parts.elapsed_ns - parts.numbers(THEORY)), base.of_rows({by: rows.labels})
    )
    known = {name: parts.values[name] for name in LOSSES if parts.ns(name).any()}
    return table_view(
        view,
        rows,
        columns_of({**_figures(loss, step_ns), **known}, COLUMNS),
        columns_of(total, COLUMNS),
        sort="-loss_ns",
        shown=("loss_ns", "loss_pct", "elapsed_ns", *known),
        headline=_headline(base, whole),
        notes=_notes(whole, covered, len(run.gpus)),
    )


def _by_part(run: Run, node: Groups, whole: TimeParts) -> dict[str, float]:
    """The time of each loss of a node, those without any left out; they add up to all of it."""
    scope = Scope.of(run, node)
    idle = {name: METRICS[name].compute(scope).known(0.0)[0] for name in _IDLE}
    every = {name: idle[name] if name in idle else whole.ns(name)[0] for name in TITLES}
    return {name: float(ns) for name, ns in every.items() if ns}


def _figures(loss: Values, step_ns: float) -> dict[str, Values]:
    steps = np.full(len(loss), step_ns)
    share = replace(quotient(loss.known(), steps, 100.0), extrapolated=loss.extrapolated)
    return {"loss_ns": loss, "loss_pct": share}


def _opens(view: View, name: str) -> View:
    """The evidence of a loss: its collectives, its launches, or the operations that lose it."""
    if name == "exposed_comm_ns":
        return with_view(view, "comms")
    if name in _IDLE:
        return replace(with_view(view, "launch"), sort=f"-{name}", columns=())
    return replace(view, by="operation", sort=f"-{name}", columns=(), filter="")


def _headline(base: Base, whole: TimeParts) -> tuple[str, ...]:
    step, ideal = float(whole.elapsed_ns[0]), whole.known(THEORY).at(0)
    lost = step - (ideal or 0.0)
    known = "ideal unknown: no FLOPs with a known peak, so that compute is not explained"
    return (
        facts(
            f"{time_text(base.each(step))}{base.words}",
            known if ideal is None else f"ideal {time_text(base.each(ideal))}",
            f"lost {time_text(base.each(lost))}, {percent(lost / max(step, 1.0))}",
        ),
    )


def _notes(whole: TimeParts, covered: Mapping[str, frozenset[int]], gpus: int) -> tuple[str, ...]:
    if not any(whole.is_divided(name)[0] for name in whole.divided_ns):
        return ()
    own, _ = with_all_parts(covered)
    return (f"~ compute of {gpus} GPUs is divided as on the {len(own)} that have the parts",)
