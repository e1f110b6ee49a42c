"""Roofline: how near the roof of its type or of the memory each shape or operation comes."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics import METRICS, Scope, Values, column
from chopper_core.metrics.metric import quotient
from chopper_core.model.charts import Roofline
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE
from chopper_core.model.hardware import ElementType
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.call_figures import (
    BOUND,
    CALLS,
    MODEL_INTENSITY,
    OF_ACHIEVABLE,
    OF_MODEL_ROOF,
)
from chopper_core.views.shared.call_rows import (
    INTENSITY,
    LEVEL,
    by_shape,
    kernels_of_shape,
    measured_roofline,
    modelled_columns,
    shape_notes,
)
from chopper_core.views.shared.table_view import Own, Partition, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="roofline",
    title="Roofline",
    question="How close does each shape come to its roof, of compute or memory?",
    by=any_level("shape", "operation", "phase", "layer", but=("iteration", "kernel")),
    any_split=True,
)
SHARE: Final = column("""kernel_pct | % | of kernels
    Share of the scope's kernel time (sum of durations).""")
MEASURED: Final = column("""measured_tflops | TFLOP/s | meas. TFLOP/s
    FLOPs of the matrix and vector units by counters over the duration in the counter run
    (mfma_tflops + valu_tflops).
    missing: the row lacks counters of the units that its kernels use
    source: counters""")
_NO_ROOFS: Final = (
    "the GPU is not in hardware.toml: no roofs; --hardware NAME or FILE says which it is"
)
_SHOWN: Final = (
    "kernel_ns",
    SHARE.name,
    "model_tflops",
    MODEL_INTENSITY.name,
    "model_tbps",
    CALLS.name,
    BOUND.name,
    OF_MODEL_ROOF.name,
    "peak_pct",
    "peak_at_clock_pct",
    OF_ACHIEVABLE.name,
)
_WITH_COUNTERS: Final = (INTENSITY.name, MEASURED.name, "roof_pct")


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or LEVEL
    tree = run.tree_of(view)
    rows = by_shape(run, view) if by == LEVEL else Partition.of(tree, view, by)
    kernel_ns = rows.nodes.sum("duration_ns")
    total_ns = max(int(rows.whole.sum("duration_ns")[0]), 1)
    share = kernel_ns / total_ns
    modelled, of_all = modelled_columns(run, rows)
    own = [(SHARE, Values(100.0 * share)), *modelled, *_measured(run, rows.scope(run))]
    totals = [
        (SHARE, Values(np.array([100.0]))),
        *of_all,
        *_measured(run, rows.whole_scope(run)),
    ]
    has_counters = any(
        metric.name in _WITH_COUNTERS and values.present().any() for metric, values in own
    )
    order = np.argsort(-kernel_ns, kind="stable")
    return table_view(
        view,
        rows,
        own,
        totals,
        opens=(lambda row: kernels_of_shape(view, rows.labels[row])) if by == LEVEL else None,
        sort="-kernel_ns",
        shown=(*_SHOWN, *(_WITH_COUNTERS if has_counters else ())),
        headline=(_headline(_by_name(totals), total_ns),),
        notes=(*shape_notes(run, rows.whole), *(() if run.hardware else (_NO_ROOFS,))),
        charts=(_chart(run, rows, _by_name(own), share, order),),
    )


def _measured(run: Run, scope: Scope) -> Own:
    matrix, vector = (METRICS[name].compute(scope) for name in ("mfma_tflops", "valu_tflops"))
    rate = matrix.known(0.0) + vector.known(0.0)
    is_known = matrix.present() & (vector.present() | (matrix.known(0.0) > 0))
    measured = quotient(np.where(is_known, rate, np.nan), np.ones(len(rate)))
    modelled = [METRICS[name] for name in ("model_tflops", "peak_pct")]
    figures = [(each, each.compute(scope)) for each in modelled]
    return [*figures, *measured_roofline(run, scope), (MEASURED, measured)]


def _by_name(columns: Own) -> dict[str, Values]:
    return {metric.name: values for metric, values in columns}


def _chart(
    run: Run, rows: Partition, columns: dict[str, Values], share: Float64, order: Int64
) -> Roofline:
    def numbers(name: str) -> Float64:
        return columns[name].known() if name in columns else np.full(len(rows.labels), np.nan)

    hardware = run.hardware
    return Roofline(
        f"roofline by {rows.level}",
        tuple(rows.labels),
        numbers(MODEL_INTENSITY.name),
        numbers("model_tflops"),
        share,
        numbers(INTENSITY.name),
        numbers(MEASURED.name),
        tuple(_sentence(columns, row, label) for row, label in enumerate(rows.labels)),
        hardware.memory_gbps / 1e3 if hardware else None,
        _peaks(run, rows),
    )


def _peaks(run: Run, rows: Partition) -> tuple[tuple[str, float], ...]:
    hardware, table = run.hardware, run.table
    if hardware is None or FLOPS not in table.measured:
        return ()
    element = table.measured[FLOPS_TYPE][rows.whole.selection]
    names: dict[float, list[str]] = {}
    for code in distinct(element[np.isfinite(element)].astype(np.int64)).tolist():
        peak = hardware.flop_per_ns(ElementType(code)) / 1e3
        if np.isfinite(peak):
            names.setdefault(peak, []).append(ElementType(code).text)
    return tuple((" ".join(names[peak]), peak) for peak in sorted(names, reverse=True))


def _sentence(columns: dict[str, Values], row: int, label: str) -> str:
    def text(name: str, unit: str, digits: int) -> list[str]:
        number = columns[name].at(row) if name in columns else None
        return [] if number is None else [f"{number:.{digits}f}{unit}"]

    parts = [
        *text(MODEL_INTENSITY.name, " FLOP/B", 1),
        *text("model_tflops", " TFLOP/s", 1),
        *text("model_tbps", " TB/s", 2),
        *text("peak_pct", " % of peak", 1),
        *text(OF_MODEL_ROOF.name, " % of its roof", 1),
    ]
    bound = columns[BOUND.name].cell(row)
    parts += [f"{bound}-bound"] if bound else []
    measured = [*text(INTENSITY.name, " FLOP/B", 1), *text(MEASURED.name, " TFLOP/s", 1)]
    parts += [f"by counters {' at '.join(reversed(measured))}"] if measured else []
    return f"{label}: {', '.join(parts) if parts else 'no model'}"


def _headline(whole: dict[str, Values], total_ns: int) -> str:
    rate, peak = whole["model_tflops"].at(0), whole["peak_pct"].at(0)
    if rate is None:
        return f"none of the {time_text(total_ns)} of kernel time has modelled FLOPs"
    of_peak = "" if peak is None else f", {peak:.1f} % of the peak of their types"
    roof = whole[OF_MODEL_ROOF.name].at(0)
    of_roof = "" if roof is None else f", {roof:.1f} % of the roof over them"
    return f"kernels with modelled FLOPs reach {rate:.1f} TFLOP/s{of_peak}{of_roof}"
