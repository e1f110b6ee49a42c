"""Roofline: how near the roof of its type or of the memory each shape or operation comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from chopper_core.analyses.base import base_of
from chopper_core.analyses.call_columns import shape_figures
from chopper_core.analyses.call_figures import (
    LEVEL,
    by_shape,
    kernels_of_shape,
    shape_notes,
)
from chopper_core.analyses.kernel_figures import COLUMNS, main_classes
from chopper_core.analyses.rows import Partition
from chopper_core.columns import METRICS, Scope, Values
from chopper_core.model.charts import Roofline
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE
from chopper_core.model.hardware import ElementType
from chopper_core.model.phrases import facts, level_title
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="roofline",
    title="Kernels · shapes",
    question="How close does each shape come to its roof, of compute or memory?",
    by=any_level("shape", "operation", "phase", "layer", but=("iteration", "kernel")),
    any_split=True,
)
_NO_ROOFS: Final = (
    "the GPU is not in hardware.toml: no roofs; --hardware NAME or FILE says which it is"
)
_SHOWN: Final = (
    *("kernel_ns", "kernel_pct", "model_roof_pct", "bound", "model_tflops", "model_tbps"),
    *("model_intensity", "calls", "peak_pct", "peak_at_clock_pct", "achievable_pct"),
)
_WITH_COUNTERS: Final = ("intensity", "measured_tflops", "roof_pct")
_DRAWN: Final = (
    *("kernel_pct", "model_tflops", "model_tbps", "model_intensity", "model_roof_pct", "bound"),
    *("peak_pct", "intensity", "measured_tflops"),
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or LEVEL
    rows = by_shape(run, view) if by == LEVEL else Partition.of(run.tree_of(view), view, by)
    total_ns, base = int(rows.whole.sum("duration_ns")[0]), base_of(run, view)
    own, whole = _figures(rows.scope(run)), _figures(rows.whole_scope(run))
    return table_view(
        view,
        rows,
        columns_of(
            {**(shape_figures(run, rows) if by == LEVEL else {}), "class": main_classes(run, rows)},
            COLUMNS,
        ),
        opens=(lambda row: kernels_of_shape(view, rows.labels[row])) if by == LEVEL else None,
        sort="-kernel_ns",
        shown=(*_SHOWN, *_WITH_COUNTERS),
        headline=(_headline(whole, time_text(base.each(total_ns)) + base.words),),
        notes=(*shape_notes(run, rows.whole, base), *(() if run.hardware else (_NO_ROOFS,))),
        charts=_charts(run, rows, own),
    )


def _figures(scope: Scope) -> dict[str, Values]:
    """The columns that the chart and the headline show."""
    return {name: METRICS[name].compute(scope) for name in _DRAWN}


def _charts(run: Run, rows: Partition, figures: Mapping[str, Values]) -> tuple[Roofline, ...]:
    if not any(figures[name].present().any() for name in ("model_tflops", "measured_tflops")):
        return ()
    chart = Roofline(
        f"roofline by {level_title(rows.level)}",
        tuple(rows.labels),
        figures["model_intensity"].known(),
        figures["model_tflops"].known(),
        figures["kernel_pct"].known() / 100,
        figures["intensity"].known(),
        figures["measured_tflops"].known(),
        tuple(f"{label}: {_sentence(figures, row)}" for row, label in enumerate(rows.labels)),
        run.hardware.memory_gbps / 1e3 if run.hardware else None,
        _peaks(run, rows),
    )
    return (chart,)


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


def _sentence(figures: Mapping[str, Values], row: int) -> str:
    def text(name: str, unit: str, digits: int = 1) -> list[str]:
        number = figures[name].at(row)
        return [] if number is None else [f"{number:.{digits}f} {unit}"]

    parts = text("model_roof_pct", "% of its roof")
    if bound := figures["bound"].cell(row):
        parts.append(f"{bound}-bound")
    parts += [
        *text("model_tflops", "TFLOP/s"),
        *text("model_tbps", "TB/s", 2),
        *text("model_intensity", "FLOP/B"),
        *text("peak_pct", "% of peak"),
    ]
    if measured := [*text("measured_tflops", "TFLOP/s"), *text("intensity", "FLOP/B")]:
        parts.append(f"by counters {' at '.join(measured)}")
    return ", ".join(parts) or "no model"


def _headline(whole: Mapping[str, Values], kernel_time: str) -> str:
    rate, peak, roof = (
        whole[name].at(0) for name in ("model_tflops", "peak_pct", "model_roof_pct")
    )
    if rate is None:
        return f"no modelled FLOPs in {kernel_time} of kernels"
    return facts(
        f"{rate:.1f} TFLOP/s",
        "" if peak is None else f"{peak:.1f} % of the peak of their types",
        "" if roof is None else f"{roof:.1f} % of the known roofs",
    )
