"""Rows by the shape of the call that launched an activity, and the kernels of one shape."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Metric, Values, is_measured, worded
from chopper_core.model.column_names import CALL_SHAPE
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import run_starts, stable_order
from chopper_core.views.shared.call_figures import (
    NO_SHAPE,
    SERVED,
    ShapeLabels,
    call_columns,
    shape_figures,
)
from chopper_core.views.shared.table_view import Partition, grouped

LEVEL: Final = "shape"
SHOWN: Final = (
    "calls",
    "kernel_ns",
    "kernel_pct",
    "model_tflops",
    "model_tbps",
    "model_intensity",
    "bound",
    "peak_pct",
    "peak_at_clock_pct",
    "achievable_pct",
    "call_tflops",
    SERVED.name,
)
"""The columns of rows by shape."""
_MAX_NAMED: Final = 3


def by_shape(run: Run, whole: Groups) -> Partition:
    """A group's activities by shape; those without one by class."""
    labels = ShapeLabels.of(run)
    codes, nodes = grouped(whole, labels.codes(run.table, whole.selection))
    return Partition(LEVEL, [labels.texts[code] for code in codes.tolist()], nodes, whole)


def of_shape(run: Run, whole: Groups, label: str) -> Groups:
    """A group's activities of one shape; raises NothingToShow where it has none."""
    labels = ShapeLabels.of(run)
    place = labels.texts.index(label) if label in labels.texts else -1
    rows = whole.rows[labels.codes(run.table, whole.selection) == place]
    if not len(rows):
        raise NothingToShow(
            f"no activity of the shape {label!r} here; view=kernels&by=shape lists the shapes"
        )
    return Groups.single(run.table, rows)


def kernels_of_shape(view: View, label: str) -> View:
    """The kernels that served a shape."""
    return replace(view, name="kernels", by="name", of=label, sort="", filter="", columns=())


def modelled_columns(run: Run, rows: Partition) -> list[tuple[Metric, Values]]:
    """The columns of the modelled work of rows, whatever they are."""
    scope = rows.scope(run)
    names = ["model_flops", "model_tflops", "peak_pct"]
    names += ["peak_at_clock_pct"] if is_measured("gfx_mhz", run.table) else []
    return [
        *call_columns(run, rows.nodes),
        *((METRICS[name], METRICS[name].compute(scope)) for name in names),
    ]


def shape_columns(run: Run, rows: Partition) -> list[tuple[Metric, Values]]:
    """The columns of rows by shape: their work, that of one call, kernels, and benchmarks."""
    labels = ShapeLabels.of(run)
    places = {text: place for place, text in enumerate(labels.texts)}
    shapes = [labels.shapes[places[label]] for label in rows.labels]
    return [
        *modelled_columns(run, rows),
        *shape_figures(shapes),
        (SERVED, _served(rows.nodes)),
    ]


def as_one(rows: Partition) -> Partition:
    """All rows as one, for the total row."""
    return Partition(rows.level, ["total"], rows.whole, rows.whole)


def _served(nodes: Groups) -> Values:
    """The kernel with the most time of each group, and the number of other names."""
    by_name, owner = nodes.split(("kernel",))
    time_ns, names = by_name.sum("duration_ns"), by_name.codes("kernel")
    order = stable_order(-time_ns)
    order = order[stable_order(owner[order])]
    first = run_starts(owner[order])
    counts = np.diff(np.append(first, len(order)))
    texts = nodes.table.names
    return worded(
        [
            texts[names[order[place]]] + (f" +{count - 1}" if count > 1 else "")
            for place, count in zip(first.tolist(), counts.tolist(), strict=True)
        ]
    )


def shape_notes(run: Run, rows: Partition) -> tuple[str, ...]:
    """The time that no model covers, and why."""
    if CALL_SHAPE not in run.table.measured:
        return (
            "the trace has no shapes (record_shapes=True in the profiler records them): "
            "no row is modelled",
        )
    kernel_ns = rows.nodes.sum("duration_ns")
    whole = max(int(kernel_ns.sum()), 1)
    rest = [
        (int(time), label.removeprefix(NO_SHAPE))
        for label, time in zip(rows.labels, kernel_ns, strict=True)
        if label.startswith(NO_SHAPE)
    ]
    if not rest:
        return ()
    without = sum(time for time, _ in rest)
    largest = sorted(rest, reverse=True)[:_MAX_NAMED]
    named = ", ".join(f"{name} {time_text(time)}" for time, name in largest)
    return (
        f"{100 * without / whole:.1f} % of kernel time ({time_text(without)}) has no model: "
        f"{named}{' …' if len(rest) > len(largest) else ''}",
    )
