"""Kernels of a scope: which take its time, wherever they run, and how near the roof they are."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.kernel_classes import kernel_class
from chopper_core.metrics import Values, columns, is_measured, worded
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.views.base import Base, base_of
from chopper_core.views.shared import call_figures
from chopper_core.views.shared.call_figures import (
    by_shape,
    kernels_of_shape,
    measured_roofline,
    modelled_figures,
    of_shape,
    shape_notes,
)
from chopper_core.views.shared.table_view import (
    Partition,
    by_kernel_codes,
    by_level,
    columns_of,
    quantiles,
    table_view,
)
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="kernels",
    title="Kernels",
    question="Which kernels take the scope's time, wherever they run?",
    by=("name", "class", "operation", "shape"),
    of="a shape of by=shape, of which to show the kernels",
    any_split=True,
)


_MAX_BARS: Final = 10
_MAX_TOP: Final = 5
COLUMNS: Final = call_figures.COLUMNS | columns(
    """
    class | | class
        The class of the kernel by its name: gemm, attention, elementwise …
    mean_ns | ns | mean
        Mean duration of one activity.
    median_ns | ns | median
        Median duration of one activity.
    p95_ns | ns | p95
        95th percentile of the activities' durations.
    min_ns | ns | min
        The shortest activity.
    max_ns | ns | max
        The longest activity.
"""
)
_MEASURED: Final = ("mfma_util_pct", "mfma_tflops", "gfx_mhz", "l2_hit_pct", "occupancy_pct")
_OF_SHAPES: Final = (
    *("calls", "kernel_ns", "kernel_pct", "model_tflops", "model_tbps", "model_intensity", "bound"),
    *("peak_pct", "peak_at_clock_pct", "achievable_pct", "call_tflops", "served_by"),
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "name"
    rows = _partition(run, view, by)
    classes = [kernel_class(name) for name in run.table.names]
    figures: dict[str, Values] = {}
    if by == "class":
        words = list(dict.fromkeys(classes))
        codes_of = np.array([words.index(word) for word in classes], np.int64)
        codes, nodes = by_kernel_codes(rows.whole, rows.nodes, codes_of)
        rows = Partition("class", [words[code] for code in codes.tolist()], nodes, rows.whole)
    elif by == "name":
        figures["class"] = worded([classes[code] for code in rows.nodes.codes("kernel").tolist()])
    nodes, labels = rows.nodes, rows.labels
    total_ns = max(int(rows.whole.sum("duration_ns")[0]), 1)
    kernel_ns = nodes.sum("duration_ns")
    spread = quantiles(nodes, "duration_ns", (0.5, 0.95))
    figures |= {
        "kernel_pct": Values(100.0 * kernel_ns / total_ns),
        "mean_ns": Values(kernel_ns / nodes.sizes()),
        "median_ns": Values(spread[:, 0]),
        "p95_ns": Values(spread[:, 1]),
        "min_ns": Values(nodes.min("duration_ns")),
        "max_ns": Values(nodes.max("duration_ns")),
    }
    base = base_of(run, view)
    roofline = measured_roofline(run, rows.scope(run))
    figures |= roofline
    whole = {"kernel_pct": Values(np.array([100.0]))}
    roof = [name for name, values in roofline.items() if values.present().any()]
    measured = [name for name in _MEASURED if is_measured(name, run.table)]
    shown = ["kernel_ns", "kernel_pct", *measured[:1], "kernels", "mean_ns", "p95_ns", *roof]
    shown += [*(["class"] if by == "name" else []), *measured[1:], "elapsed_ns", "max_ns"]
    notes = [f"only activities of the shape {view.of}"] if view.of else []
    if by == "shape":
        modelled, of_all = modelled_figures(run, rows)
        figures |= modelled
        whole |= of_all
        shown = [*_OF_SHAPES, *(name for name in roof if name != "intensity")]
        notes += shape_notes(run, rows.whole, base)
    order = np.argsort(-kernel_ns, kind="stable")
    top = order[:_MAX_BARS].tolist()
    bars = (Series("time", (kernel_ns / base.of_rows({rows.level: labels}))[top] / 1e6),)
    named = replace(view, by="name", sort="", columns=())
    opens = {
        "class": lambda row: replace(named, filter=f"class:{labels[row]}"),
        "shape": lambda row: kernels_of_shape(view, labels[row]),
    }
    share = 100.0 * kernel_ns[order[:_MAX_TOP]].sum() / total_ns
    return table_view(
        view,
        rows,
        columns_of(figures, COLUMNS),
        columns_of(whole, COLUMNS),
        opens=opens.get(by),
        sort="-kernel_ns",
        shown=shown,
        headline=(_headline(len(labels), "kernel" if by == "name" else by, share, base, total_ns),),
        notes=tuple(notes),
        charts=(
            BarChart(
                f"time by {rows.level}", "ms", tuple(labels[row] for row in top), bars, rows.level
            ),
        ),
    )


def _partition(run: Run, view: View, by: str) -> Partition:
    """The rows; those by class are kernels, to be put together."""
    if by == "shape":
        return by_shape(run, view)
    tree, level = run.tree_of(view), "kernel" if by in ("name", "class") else by
    if not view.of:
        return Partition.of(tree, view, level)
    return by_level(of_shape(run, tree.node(view.path), view.of), level)


def _headline(count: int, one: str, share: float, base: Base, total_ns: int) -> str:
    time = f"{time_text(base.each(total_ns))}{base.words}"
    if count == 1:
        return f"one {one} takes all kernel time, {time}"
    return (
        f"{count} {one}{'es' if one.endswith('s') else 's'}; the top {min(count, _MAX_TOP)} take "
        f"{share:.1f} % of the kernel time, {time}"
    )
