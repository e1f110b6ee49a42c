"""Kernels of a scope: which take its time, wherever they run, and how near the roof they are."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.kernel_classes import kernel_class
from chopper_core.metrics import (
    METRICS,
    Metric,
    Scope,
    Values,
    column,
    is_measured,
    numbered,
    worded,
)
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.cubes import Cells
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import Selection
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import run_starts, stable_order
from chopper_core.views.shared.table_view import Partition, grouped, quantiles, table_view
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="kernels",
    title="Kernels",
    question="Which kernels take the scope's time, wherever they run?",
    by=("name", "class", "operation"),
)


_SHARES: Final = (0.5, 0.95)
_MAX_BARS: Final = 10
_ROOF: Final = ("intensity", "roof_tflops", "roof_pct")

CLASS: Final = column(
    "class", "", "class", "The class of the kernel by its name: gemm, attention, elementwise …"
)
SHARE: Final = column(
    "kernel_pct", "%", "of kernels", "Share of the scope's kernel time (sum of durations)."
)
MEAN: Final = column("mean_ns", "ns", "mean", "Mean duration of one activity.")
MEDIAN: Final = column("median_ns", "ns", "median", "Median duration of one activity.")
P95: Final = column("p95_ns", "ns", "p95", "The duration that 95 % of the activities don't exceed.")
LEAST: Final = column("min_ns", "ns", "min", "The shortest activity.")
LONGEST: Final = column("max_ns", "ns", "max", "The longest activity.")
INTENSITY: Final = column(
    "intensity",
    "FLOP/B",
    "FLOP/B",
    "Arithmetic intensity: the FLOPs of the matrix units and, where counted, of the vector units "
    "(mfma_tflops + valu_tflops) over the bytes per second that the L2 caches read and wrote "
    "over the fabric.",
    source="counters",
    missing_because="the row lacks counters of the fabric or of the units that its kernels use",
)
ROOF: Final = column(
    "roof_tflops",
    "TFLOP/s",
    "roof TF/s",
    "The roofline's limit: the smaller of the peak for the types that the matrix units "
    "multiplied and intensity times the memory's bandwidth (hardware.toml).",
    source="counters and hardware.toml",
    missing_because="the intensity is unknown, or the GPU is not in hardware.toml",
)
OF_ROOF: Final = column(
    "roof_pct",
    "%",
    "% roof",
    "mfma_tflops + valu_tflops in % of roof_tflops.",
    source="counters and hardware.toml",
    missing_because=ROOF.missing_because,
)


def answer(run: Run, view: View) -> ViewResult:
    """The scope's activities by name, class or operation, the ones with the most time first."""
    by = view.by or "name"
    tree = run.tree_of(view)
    rows = Partition.of(tree, view, "operation" if by == "operation" else "kernel")
    words, codes_of = _classes(run)
    own: list[tuple[Metric, Values]] = []
    if by == "class":
        codes, nodes = _by_class(rows, codes_of)
        rows = Partition("class", [words[code] for code in codes.tolist()], nodes, rows.whole)
    elif by == "name":
        codes = rows.nodes.codes("kernel")
        own.append((CLASS, worded([words[codes_of[code]] for code in codes.tolist()])))
    nodes, labels = rows.nodes, rows.labels
    total_ns = max(int(rows.whole.sum("duration_ns")[0]), 1)
    kernel_ns = nodes.sum("duration_ns")
    spread = quantiles(nodes, "duration_ns", _SHARES)
    own += [
        (SHARE, Values(100.0 * kernel_ns / total_ns)),
        (MEAN, Values(kernel_ns / nodes.sizes())),
        (MEDIAN, Values(spread[:, 0])),
        (P95, Values(spread[:, 1])),
        (LEAST, Values(nodes.min("duration_ns"))),
        (LONGEST, Values(nodes.max("duration_ns"))),
        *_roofline(run, rows.scope(run)),
    ]
    measured = tuple(
        name
        for name in ("mfma_util_pct", "mfma_tflops", "gfx_mhz", "l2_hit_pct", "occupancy_pct")
        if is_measured(name, run.table)
    )
    roof = tuple(
        metric.name for metric, values in own if metric.name in _ROOF and values.present().any()
    )
    shown = ("kernel_ns", "kernel_pct", "kernels", "mean_ns", "p95_ns", *measured[:1], *roof)
    shown += (*(("class",) if by == "name" else ()), *measured[1:], "elapsed_ns", "max_ns")
    order = np.argsort(-kernel_ns, kind="stable")
    top = order[:_MAX_BARS]
    return table_view(
        view,
        rows,
        own,
        [(SHARE, Values(np.array([100.0])))],
        opens=(lambda row: _kernels_of(view, labels[row])) if by == "class" else None,
        sort="-kernel_ns",
        shown=shown,
        headline=(_headline(labels, kernel_ns, order, total_ns, by),),
        charts=(
            BarChart(
                f"time by {rows.level}",
                "ms",
                tuple(labels[row] for row in top),
                (Series("time", kernel_ns[top] / 1e6),),
                rows.level,
            ),
        ),
    )


def _by_class(by_kernel: Partition, codes_of: Int64) -> tuple[Int64, Groups]:
    """The classes in a node, and their activities, from those of each kernel where cells say it."""
    parent, kernels = by_kernel.whole, by_kernel.nodes

    def found() -> tuple[Int64, Groups]:
        return grouped(parent, codes_of[parent.table.kernel[parent.rows]])

    cells = kernels.cells
    if cells is None:
        return found()
    codes = codes_of[cells.cube.codes["kernel"][cells.at]]
    order = stable_order(codes)
    codes = codes[order]
    first = run_starts(codes)

    def rows() -> tuple[Selection, Index]:
        nodes = found()[1]
        return nodes.selection, nodes.first

    of_class = Cells(cells.cube, cells.at[order], first)
    return codes[first], Groups(parent.table, None, None, of_class, rows, kernels.around)


def _classes(run: Run) -> tuple[list[str], Int64]:
    """The classes of the run's kernel names, and the class of each name."""
    words: dict[str, int] = {}
    codes = [words.setdefault(kernel_class(name), len(words)) for name in run.table.names]
    return list(words), np.array(codes, np.int64)


def _roofline(run: Run, scope: Scope) -> list[tuple[Metric, Values]]:
    """Intensity, the roofline's limit and the share of it reached; missing without counters."""
    matrix, vector, share, reads, writes = (
        METRICS[name].compute(scope)
        for name in (
            *("mfma_tflops", "valu_tflops", "mfma_peak_pct"),
            *("fabric_read_gbps", "fabric_write_gbps"),
        )
    )
    rate = np.where(matrix.present(), matrix.numbers, 0.0)
    rate = rate + np.where(vector.present(), vector.numbers, 0.0)
    traffic = reads.numbers + writes.numbers
    # Without counters of the vector units nothing is known of a kernel without matrix FLOPs.
    known = (rate > 0) | vector.present()
    known &= matrix.present() & reads.present() & writes.present() & (traffic > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        intensity = np.where(known, 1e3 * rate / traffic, np.nan)
        if run.hardware is None:
            roof = np.full(len(intensity), np.nan)
        else:
            # The units' peak for the types that they multiplied in the row.
            peak = 100.0 * matrix.numbers / np.where(share.numbers > 0, share.numbers, np.nan)
            by_memory = intensity * run.hardware.memory_gbps / 1e3
            roof = np.where(matrix.numbers > 0, np.minimum(peak, by_memory), by_memory)
        reached = 100.0 * rate / np.where(roof > 0, roof, np.nan)
    return [
        (INTENSITY, numbered(intensity)),
        (ROOF, numbered(roof)),
        (OF_ROOF, numbered(reached)),
    ]


def _kernels_of(view: View, label: str) -> View:
    """The kernels of a class."""
    return replace(view, by="name", filter=f"class:{label}", sort="", columns=())


def _headline(labels: list[str], kernel_ns: Int64, order: Index, total: int, by: str) -> str:
    top = order[:5]
    share = 100.0 * kernel_ns[top].sum() / total
    one, what = {
        "name": ("kernel", "kernels"),
        "class": ("class", "classes"),
        "operation": ("operation", "operations"),
    }[by]
    if len(labels) == 1:
        return f"one {one} takes all kernel time, {time_text(total)}"
    return (
        f"{len(labels)} {what}; the top {len(top)} take {share:.1f} % of the kernel time, "
        f"{time_text(total)}"
    )
