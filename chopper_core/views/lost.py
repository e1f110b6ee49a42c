"""Kernels and shapes by the time that they lose to their roof."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.call_figures import (
    LEVEL,
    by_shape,
    kernels_of_shape,
    shape_notes,
)
from chopper_core.analyses.kernel_figures import COLUMNS, main_classes
from chopper_core.analyses.rows import Partition
from chopper_core.columns import METRICS, Values
from chopper_core.model.phrases import facts, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="lost",
    title="Kernels · lost",
    question="Which kernels and shapes lose the most time to their roof?",
    by=("name", "shape", "operation"),
    any_split=True,
)
_LOST: Final = "roof_lost_ns"
_SHOWN: Final = (_LOST, "model_roof_pct", "kernel_ns", "bound", "calls", "model_tflops")


def answer(run: Run, view: View) -> ViewResult:
    """A row per kernel or shape, those that lose most first, those without a known roof last."""
    by = view.by or "name"
    level = "kernel" if by == "name" else by
    rows = by_shape(run, view) if by == LEVEL else Partition.of(run.tree_of(view), view, level)
    lost = METRICS[_LOST].compute(rows.scope(run))
    base = base_of(run, view)
    notes = shape_notes(run, rows.whole, base)
    if not lost.present().any():
        why = "no hardware.toml entry of the GPU" if run.hardware is None else notes[0]
        raise NothingToShow(f"no roof is known here: {why}")
    return table_view(
        view,
        rows,
        columns_of({"class": main_classes(run, rows)}, COLUMNS),
        opens=(lambda row: kernels_of_shape(view, rows.labels[row])) if by == LEVEL else None,
        sort=f"-{_LOST}",
        shown=(*_SHOWN, "served_by") if by == LEVEL else _SHOWN,
        headline=(_headline(run, rows, lost, base),),
        notes=notes,
    )


def _headline(run: Run, rows: Partition, lost: Values, base: Base) -> str:
    whole = METRICS[_LOST].compute(rows.whole_scope(run)).at(0) or 0
    share = METRICS["model_roof_pct"].compute(rows.whole_scope(run)).at(0)
    most = int(lost.known(-np.inf).argmax())
    named = f" of it in {rows.labels[most]}" if rows.level != "kernel" else " of it in one kernel"
    return facts(
        f"{time_text(base.each(float(whole)))} lost to the known roofs{base.words}",
        "" if share is None else f"{percent(share / 100)} of these roofs",
        time_text(base.each(float(lost.numbers[most]))) + named,
    )
