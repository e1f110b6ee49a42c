"""From a result and its columns to a frame: rows sorted and filtered, built once."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.analyses.rows import Partition
from chopper_core.columns.filter import FilterRows, Shown, shown_of
from chopper_core.model.attributes import attributes_at
from chopper_core.model.charts import LineChart, picked
from chopper_core.model.memo import LazyMap
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Mask
from chopper_core.views.frame import Frame, no_means
from chopper_core.views.shared.row_columns import Columns
from chopper_core.views.shared.signal_charts import signal_means
from chopper_core.views.spec import ViewResult

_NO_TIMES: Final = np.zeros(0)


def arranged(
    run: Run, view: View, result: ViewResult, columns: Columns, counted: Mask | None = None
) -> Shown:
    """The rows of a result that the view's filter leaves, in the order of its sort."""
    texts = list(result.rows.labels)
    for _, values in result.columns if view.filter else ():
        if values.words is not None:
            words = (*values.words, "")
            places = np.where(values.present(), values.numbers, -1).tolist()
            texts = [f"{text}\n{words[place]}" for text, place in zip(texts, places, strict=True)]
    titled = (*columns.metrics, *(each for each, _ in result.columns))
    rows = FilterRows(
        result.rows.level, result.rows.labels, columns.values, tuple(columns.own), titled, texts,
        run.table.coordinates,
    )  # fmt: skip
    return shown_of(rows, view.filter, view.sort or result.sort, counted)


def framed(
    run: Run,
    view: View,
    result: ViewResult,
    columns: Columns,
    shown: Shown,
    *,
    notes: tuple[str, ...],
    left_out: tuple[int, ...],
    is_pending: bool = False,
    hidden_ns: float = 0,
    parent_ns: float = 0,
    elapsed_ns: Float64 = _NO_TIMES,
) -> Frame:
    """The frame of a result: its columns for the rows that are shown, with the total row."""
    rows, places = result.rows, shown.at.tolist()
    signal, *others = run.signals(view.signal)
    means = no_means
    if isinstance(rows, Partition):
        # How busy a kernel keeps the GPU while it runs says nothing.
        means = signal_means(
            signal, rows.nodes, shown.at, lambda each: not view.name or each.name in run.measured
        )

    def is_extrapolated(name: str) -> bool:
        is_marked = name in result.extrapolated_total or columns.is_doubted(name)
        return is_marked or columns.is_total_extrapolated(name)

    return Frame(
        view=view,
        level=rows.level,
        columns=columns.metrics,
        labels=shown.labels,
        values=shown.values(columns.metrics),
        total=columns.totals,
        notes=notes,
        target=lambda row: result.opens(places[row]),
        signal=signal,
        means=means,
        signals=tuple(others),
        sort=view.sort or result.sort,
        hidden=shown.hidden,
        hidden_ns=hidden_ns,
        parent_ns=parent_ns,
        elapsed_ns=elapsed_ns,
        more=columns.hidden if view.name else (),
        headline=result.headline,
        charts=tuple(
            picked(each, places)
            for each in result.charts
            if not isinstance(each, LineChart) or each.has_course
        ),
        over=result.over or columns.over,
        is_pending=is_pending,
        by=result.by,
        truncated=run.truncated(view),
        warm_up=tuple(sorted(run.warm_up)),
        left_out=left_out,
        attributes=lambda row: attributes_at(run, result.opens(places[row])),
        base=columns.base.text if columns.base.is_applied or columns.adds_up else "",
        total_title=result.total_title or columns.base.total_title(rows.level, rows.labels),
        partial_total=columns.partial_totals,
        extrapolated_total=LazyMap([each.name for each in columns.metrics], is_extrapolated),
        quality=run.doubts,
    )
