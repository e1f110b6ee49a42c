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
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.views.shared.call_rows import (
    SHOWN,
    by_shape,
    kernels_of_shape,
    measured_roofline,
    modelled_columns,
    of_shape,
    shape_notes,
    shapes_of,
)
from chopper_core.views.shared.table_view import (
    Own,
    Partition,
    by_kernel_codes,
    by_level,
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


_SHARES: Final = (0.5, 0.95)
_MAX_BARS: Final = 10
_ROOF: Final = ("intensity", "roof_tflops", "roof_pct")

COLUMNS: Final = columns(
    """
    class | | class
        The class of the kernel by its name: gemm, attention, elementwise …
    kernel_pct | % | of kernels
        Share of the scope's kernel time (sum of durations).
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


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "name"
    rows = _partition(run, view, by)
    classes = [kernel_class(name) for name in run.table.names]
    words = list(dict.fromkeys(classes))
    codes_of = np.array([words.index(word) for word in classes], np.int64)
    own: Own = []
    if by == "class":
        codes, nodes = by_kernel_codes(rows.whole, rows.nodes, codes_of)
        rows = Partition("class", [words[code] for code in codes.tolist()], nodes, rows.whole)
    elif by == "name":
        codes = rows.nodes.codes("kernel")
        own.append((COLUMNS["class"], worded([words[codes_of[code]] for code in codes.tolist()])))
    nodes, labels = rows.nodes, rows.labels
    total_ns = max(int(rows.whole.sum("duration_ns")[0]), 1)
    kernel_ns = nodes.sum("duration_ns")
    spread = quantiles(nodes, "duration_ns", _SHARES)
    found: dict[str, Int64 | Float64] = {
        "kernel_pct": 100.0 * kernel_ns / total_ns,
        "mean_ns": kernel_ns / nodes.sizes(),
        "median_ns": spread[:, 0],
        "p95_ns": spread[:, 1],
        "min_ns": nodes.min("duration_ns"),
        "max_ns": nodes.max("duration_ns"),
    }
    own += [(COLUMNS[name], Values(numbers)) for name, numbers in found.items()]
    own += measured_roofline(run, rows.scope(run))
    whole = [(COLUMNS["kernel_pct"], Values(np.array([100.0])))]
    if by == "shape":
        modelled, of_all = modelled_columns(run, rows)
        own += modelled
        whole += of_all
    measured = [name for name in _MEASURED if is_measured(name, run.table)]
    known = {metric.name for metric, values in own if values.present().any()}
    roof = [name for name in _ROOF if name in known]
    shown = ["kernel_ns", "kernel_pct", *measured[:1], "kernels", "mean_ns", "p95_ns", *roof]
    shown += [*(["class"] if by == "name" else []), *measured[1:], "elapsed_ns", "max_ns"]
    if by == "shape":
        shown = [*SHOWN, *(name for name in roof if name != "intensity")]
    order = np.argsort(-kernel_ns, kind="stable")
    top = order[:_MAX_BARS]
    top_labels = tuple(labels[row] for row in top)
    bars = (Series("time", kernel_ns[top] / 1e6),)
    named = replace(view, by="name", sort="", columns=())
    opens = {
        "class": lambda row: replace(named, filter=f"class:{labels[row]}"),
        "shape": lambda row: kernels_of_shape(view, labels[row]),
    }
    notes = (f"only activities of the shape {view.of}",) if view.of else ()
    return table_view(
        view,
        rows,
        own,
        whole,
        opens=opens.get(by),
        sort="-kernel_ns",
        shown=shown,
        headline=(_headline(labels, kernel_ns, order, total_ns, by),),
        notes=(*notes, *(shape_notes(run, rows.whole) if by == "shape" else ())),
        charts=(BarChart(f"time by {rows.level}", "ms", top_labels, bars, rows.level),),
    )


def _partition(run: Run, view: View, by: str) -> Partition:
    tree, level = run.tree_of(view), "kernel" if by in ("name", "class") else by
    if not view.of:
        return by_shape(run, view) if by == "shape" else Partition.of(tree, view, level)
    whole = of_shape(run, tree.node(view.path), view.of)
    if by == "shape":
        return shapes_of(run, whole)
    labels, nodes = by_level(whole, level)
    return Partition(level, labels, nodes, whole)


def _headline(labels: list[str], kernel_ns: Int64, order: Index, total: int, by: str) -> str:
    top = order[:5]
    share = 100.0 * kernel_ns[top].sum() / total
    one = {"name": "kernel"}.get(by, by)
    what = f"{one}{'es' if one.endswith('s') else 's'}"
    if len(labels) == 1:
        return f"one {one} takes all kernel time, {time_text(total)}"
    return (
        f"{len(labels)} {what}; the top {len(top)} take {share:.1f} % of the kernel time, "
        f"{time_text(total)}"
    )
