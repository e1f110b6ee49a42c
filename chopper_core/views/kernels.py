"""Kernels of a scope: which take its time, wherever they run, and how near the roof they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses import call_figures
from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.call_figures import (
    by_shape,
    kernels_of_shape,
    measured_roofline,
    modelled_figures,
    most_in,
    of_shape,
    shape_notes,
)
from chopper_core.analyses.rows import Partition, by_kernel_codes, by_level, quantiles
from chopper_core.columns import Values, columns, is_measured, worded
from chopper_core.model.column_names import BLOCK, GRID
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import count, facts, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Mask
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec
from chopper_core.work.kernel_classes import kernel_class

SPEC: Final = ViewSpec(
    name="kernels",
    title="Kernels",
    question="Which kernels take the scope's time, wherever they run?",
    by=("name", "class", "operation", "shape"),
    of="a shape of by=shape, of which to show the kernels",
    second="comms",
    any_split=True,
)


_MAX_TOP: Final = 5
COLUMNS: Final = call_figures.COLUMNS | columns(
    """
    class | | class
        The class of the kernel by its name: gemm, attention, elementwise …
    operation | | operation
        The operation that spends most time in the kernel, and how many others use it.
    activities | | calls | sum
        Number of the row's activities: kernels, collectives, copies and memsets.
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
    *("calls", "kernel_ns", "kernel_pct", "model_roof_pct", "bound", "model_tflops", "model_tbps"),
    *("model_intensity", "peak_pct", "peak_at_clock_pct", "achievable_pct", "call_tflops"),
    "served_by",
)
_OF_LAUNCH: Final = (GRID, "waves_per_cu", BLOCK)
_OF_ROOF: Final = (
    ("roof_pct", "model_roof_pct"),
    ("bound",),
    ("intensity", "model_intensity"),
)
"""Of each, the first that is known is shown: counters before models."""


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "name"
    rows = _partition(run, view, by)
    classes = [kernel_class(name) for name in run.table.names]
    words: dict[str, Values] = {}
    if by == "class":
        names = list(dict.fromkeys(classes))
        codes_of = np.array([names.index(word) for word in classes], np.int64)
        codes, nodes = by_kernel_codes(rows.whole, rows.nodes, codes_of)
        rows = Partition("class", [names[code] for code in codes.tolist()], nodes, rows.whole)
    elif by == "name":
        words["operation"] = _operations(run, view, rows)
        words["class"] = worded([classes[code] for code in rows.nodes.codes("kernel").tolist()])
    base, labels = base_of(run, view), rows.labels
    figures, whole = figures_of(run, rows)
    spread = quantiles(rows.nodes, "duration_ns", (0.5, 0.95))
    quantile = {"median_ns": Values(spread[:, 0]), "p95_ns": Values(spread[:, 1])}
    figures = words | figures | quantile
    shown = columns_of_kernels(run, figures)
    notes = [f"only activities of the shape {view.of}"] if view.of else []
    if by == "shape":
        shown = [*_OF_SHAPES, *_known(figures, ("roof_tflops", "roof_pct"))]
        notes += shape_notes(run, rows.whole, base)
    named = replace(view, by="name", sort="", columns=())
    opens = {
        "class": lambda row: replace(named, filter=f"class:{labels[row]}"),
        "shape": lambda row: kernels_of_shape(view, labels[row]),
    }
    return table_view(
        view,
        rows,
        columns_of(figures, COLUMNS),
        columns_of(whole, COLUMNS),
        opens=opens.get(by),
        sort="-kernel_ns",
        shown=shown,
        headline=_headline(rows, "kernel" if by == "name" else by, base),
        notes=tuple(notes),
    )


def figures_of(run: Run, rows: Partition) -> tuple[dict[str, Values], dict[str, Values]]:
    """Time and distance from the roof of each row, and what all of them have as one."""
    nodes = rows.nodes
    kernel_ns = nodes.sum("duration_ns")
    figures = {
        "activities": Values(nodes.activities()),
        "kernel_pct": Values(100.0 * kernel_ns / max(int(rows.whole.sum("duration_ns")[0]), 1)),
        "mean_ns": Values(kernel_ns / nodes.sizes()),
        "min_ns": Values(nodes.min("duration_ns")),
        "max_ns": Values(nodes.max("duration_ns")),
        **measured_roofline(run, rows.scope(run)),
    }
    whole = {"kernel_pct": Values(np.array([100.0]))}
    modelled, of_all = modelled_figures(run, rows)
    return figures | modelled, whole | of_all


def columns_of_kernels(run: Run, figures: Mapping[str, Values]) -> list[str]:
    """The columns that say what a row costs, how it was launched and how near its roof it is."""
    measured = [name for name in _MEASURED if is_measured(name, run.table)]
    launched: Sequence[str] = _OF_LAUNCH if GRID in run.table.measured else ()
    launched = launched if run.hardware is not None else launched[::2]
    roof = [name for names in _OF_ROOF for name in _known(figures, names)[:1]]
    if is_measured("peak_pct", run.table) and not {"roof_pct", "model_roof_pct"} & {*roof}:
        roof.insert(0, "peak_pct")
    near = [name for name in roof if name != "bound"]
    words, spread = _known(figures, ("operation", "class")), _known(figures, ("p95_ns",))
    first = ("kernel_ns", "kernel_pct", "activities", "mean_ns", *near[:1], *words[:1], *near[1:])
    more = (*_known(figures, ("bound",)), *measured, *words[1:], *spread)
    # Of several kernels together what they were launched with says less than how they ran.
    ran = measured[: not words]
    return [*dict.fromkeys((*first, *ran, *launched, *more, "elapsed_ns", "max_ns", "kernels"))]


def _known(figures: Mapping[str, Values], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in figures and figures[name].present().any()]


def collectives_in(nodes: Groups) -> Mask:
    """The rows that are mostly communication."""
    return np.asarray(2 * nodes.sum("collectives") > nodes.sizes(), np.bool_)


def _operations(run: Run, view: View, rows: Partition) -> Values:
    """The operation with the most time of each kernel, and the number of the others."""
    if view.of:
        return worded([None] * len(rows.labels))
    both = run.tree_of(view).split(view.path, ("kernel", "operation"))
    row = np.searchsorted(rows.nodes.codes("kernel"), both.codes("kernel"))
    return most_in(both, "operation", row, len(rows.labels))


def _partition(run: Run, view: View, by: str) -> Partition:
    """The rows; those by class are kernels, to be put together."""
    if by == "shape":
        return by_shape(run, view)
    tree, level = run.tree_of(view), "kernel" if by in ("name", "class") else by
    if not view.of:
        return Partition.of(tree, view, level)
    return by_level(of_shape(run, tree.node(view.path), view.of), level)


def _headline(rows: Partition, one: str, base: Base) -> tuple[str, ...]:
    """The time of kernels, and how much of it the first rows and communication take."""
    is_comm = collectives_in(rows.nodes)
    kernel_ns = rows.nodes.sum("duration_ns")
    most, comm_ns = np.sort(kernel_ns)[::-1][:_MAX_TOP], int(kernel_ns[is_comm].sum())
    whole, has_others = int(kernel_ns.sum()), not is_comm.all()
    share = float(most.sum()) / max(whole, 1)
    kind = "kernels" if has_others else "communication"
    communication = time_text(base.each(comm_ns))
    return (
        facts(
            f"{time_text(base.each(whole))} of {kind}{base.words}",
            count(len(kernel_ns), one) if has_others else "",
            f"{percent(share)} in the top {_MAX_TOP}" if len(kernel_ns) > _MAX_TOP else "",
            f"{communication} of it communication" if comm_ns and has_others else "",
        ),
    )
