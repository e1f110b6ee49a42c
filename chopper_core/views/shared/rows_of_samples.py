"""The rows of a view of a run that only telemetry describes: its GPUs, or groups of them."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.rows import ALL_GPUS, GpuRows, Partition
from chopper_core.analyses.samples import totals_of
from chopper_core.columns import numbered
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.views.spec import ViewResult


def power_of_gpu(view: View, gpu: str) -> View:
    """What a GPU's row opens: the view power of it."""
    plain = view if view.name == "power" else replace(view, name="power", by="", of="")
    return replace(plain, columns=(), sort="", filter=f"gpu:{gpu}")


def result_of_samples(run: Run, view: View, result: ViewResult) -> ViewResult:
    """The result of a run without a trace, whose rows are GPUs, by the split of its view.

    Raises NothingToShow for a split that only activities have.
    """
    if view.path:
        raise NothingToShow("without a trace this view is of the whole run; explore has its parts")
    if not view.by or view.by == result.rows.level:
        rows = result.rows
        if len(run.table):
            alone = Partition.of(run.tree(), view, "gpu")
            rows = alone if alone.labels == rows.labels else rows
        return replace(
            result,
            rows=rows,
            base=base_of(run, view).applied,
            total_title=ALL_GPUS,
            opens=lambda row: power_of_gpu(view, rows.labels[row]),
        )
    if view.by not in run.table.coordinates:
        raise NothingToShow(f"by={view.by} needs a trace, and this run has telemetry alone")
    groups = GpuRows.of(run, [int(label) for label in result.rows.labels], view.by)
    own = [each for each in result.columns if each[1].words is None]
    totals = [
        totals_of([(metric, values.take(places)) for metric, values in own])
        for places in groups.members
    ]
    together = " Of the GPUs of the row together."
    columns = [
        (
            replace(metric, definition=metric.definition + together),
            numbered([each.get(metric.name, np.nan) for each in totals]),
        )
        for metric, _ in own
    ]
    names = {metric.name for metric, _ in columns}
    by_gpu = replace(view, by="gpu", columns=(), sort="")
    return replace(
        result,
        rows=groups,
        columns=tuple(columns),
        base=base_of(run, view).applied,
        total_title=ALL_GPUS,
        shown=tuple(name for name in result.shown if name in names),
        opens=lambda row: replace(by_gpu, filter=f"{view.by}:{groups.labels[row]}"),
    )
