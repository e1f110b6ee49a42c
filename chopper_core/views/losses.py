"""Losses: what the step loses, from its time down to the ideal, in one sum."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.loss_columns import divided_note, parts_in
from chopper_core.analyses.rows import LabelledRows, Own, Partition
from chopper_core.analyses.time_parts import (
    LOSSES,
    THEORY,
    TimeParts,
    with_parts,
)
from chopper_core.columns import METRICS, Scope, Values
from chopper_core.columns.metric import quotient
from chopper_core.model.column_names import STEP_PART
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import facts, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View, with_view
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

_IDLE: Final = {
    "idle_latency_ns": "launch",
    "idle_host_ns": "host",
    "idle_queued_ns": "queue",
    "idle_unknown_ns": "idle, cause unknown",
}
"""The parts of idle time, which add up to it."""
TITLES: Final = {name: title for name, title in LOSSES.items() if name != "idle_ns"} | _IDLE
"""The losses of the sum, in its order."""

SPEC: Final = ViewSpec(
    name="losses",
    title="Losses · step",
    question="What does the step lose, in one sum, from its time down to the ideal?",
    by=(STEP_PART, *any_level("operation", "layer", "gpu")),
    any_split=True,
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or STEP_PART
    tree = with_parts(run).tree_of(view)
    base, node = base_of(run, view), tree.node(view.path)
    rows = Partition(STEP_PART, [], node, node) if by == STEP_PART else Partition.of(tree, view, by)
    whole = parts_in(rows.whole_scope(run))
    assert whole is not None
    total = _figures(rows.whole_scope(run))
    if by == STEP_PART:
        lost = _by_part(run, node, whole)
        used = [*lost]
        names = LabelledRows(STEP_PART, [TITLES[name] for name in used])
        marks = np.array([whole.is_divided(name)[0] or name in run.doubted for name in used])
        loss = Values(np.array([*lost.values()], np.float64), extrapolated=marks)
        share = replace(
            quotient(loss.numbers, whole.elapsed_ns.repeat(len(loss)), 100.0), extrapolated=marks
        )
        return table_view(
            view,
            names,
            columns_of({"loss_ns": loss, "loss_pct": share}),
            total,
            opens=lambda row: _opens(view, used[row]),
            sort="-loss_ns",
            headline=_headline(run, base, whole),
            notes=divided_note(run, whole, node),
        )
    parts = parts_in(rows.scope(run))
    assert parts is not None
    known = {name: parts.values[name] for name in LOSSES if parts.ns(name).any()}
    return table_view(
        view,
        rows,
        [*_figures(rows.scope(run)), *columns_of(known)],
        total,
        sort="-loss_ns",
        shown=("loss_ns", "loss_pct", "elapsed_ns", *known),
        headline=_headline(run, base, whole),
        notes=divided_note(run, whole, node),
    )


def _by_part(run: Run, node: Groups, whole: TimeParts) -> dict[str, float]:
    """The time of each loss of a node, those without any left out; they add up to all of it."""
    scope = Scope.of(run, node)
    idle = {name: METRICS[name].compute(scope).known(0.0)[0] for name in _IDLE}
    every = {name: idle[name] if name in idle else whole.ns(name)[0] for name in TITLES}
    return {name: float(ns) for name, ns in every.items() if ns}


def _figures(scope: Scope) -> Own:
    return [(METRICS[name], METRICS[name].compute(scope)) for name in ("loss_ns", "loss_pct")]


def _opens(view: View, name: str) -> View:
    """The evidence of a loss: its collectives, its launches, or the operations that lose it."""
    if name == "exposed_comm_ns":
        return with_view(view, "comms")
    if name in _IDLE:
        return replace(with_view(view, "launch"), sort=f"-{name}", columns=())
    return replace(view, by="operation", sort=f"-{name}", columns=(), filter="")


def _amount(base: Base, part: float, whole: float) -> str:
    return f"{time_text(base.each(part))}, {percent(part / max(whole, 1.0))}"


def _headline(run: Run, base: Base, whole: TimeParts) -> tuple[str, ...]:
    step, ideal = float(whole.elapsed_ns[0]), whole.known(THEORY).at(0)
    mark = run.mark("elapsed_ns")
    known = "ideal unknown: no FLOPs with a known peak, so that compute is not explained"
    return (
        facts(
            f"{mark}{time_text(base.each(step))}{base.words}",
            known if ideal is None else f"ideal {time_text(base.each(ideal))}",
            "" if ideal is None else f"lost {mark}{_amount(base, step - ideal, step)}",
        ),
    )
