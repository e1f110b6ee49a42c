"""The columns of the ranks view, the waits in collectives, and the GPUs of a node together."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, Base
from chopper_core.analyses.collective_columns import gpu_words
from chopper_core.analyses.leads import RankLeads
from chopper_core.analyses.rank_figures import CAUSES_OF_GPUS, waiting_pairs
from chopper_core.analyses.rows import GROUP_GPUS, GpuRows
from chopper_core.columns import METRICS, Metric, Values, numbered, worded
from chopper_core.model.charts import Chart, HeatMap
from chopper_core.model.column_names import HEAT
from chopper_core.model.run import Run
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import median_of, sums_of
from chopper_core.views.spec import ViewResult

_MAX_MAP_GPUS: Final = 64

_MEDIANS: Final = ("mean_lead_ns", "slower_pct", "span_ns", "gfx_mhz", *HEAT, "power_w")
_SUMS: Final = ("caused_ns", "caused_exposed_ns", "wait_ns", "exposed_wait_ns")


def waits_map(stand: RankLeads, base: Base) -> tuple[Chart, ...]:
    chosen, size = stand.collectives, len(stand.gpus)
    if chosen is None or not chosen.complete.any() or size > _MAX_MAP_GPUS:
        return ()
    waiter, last = waiting_pairs(stand)
    pairs = sums_of(chosen.member_wait_ns, waiter * (size + 1) + last, (size + 1) ** 2)
    pairs = pairs.reshape(size + 1, size + 1)[:size, :size]
    ms = 1e6 * base.of_rows({"gpu": [str(gpu) for gpu in stand.gpus]})[:, None]
    names = tuple(f"GPU {gpu}" for gpu in stand.gpus)
    title = "who waits (rows) for whom (columns)"
    return (HeatMap(title, "ms", names, names, "last to arrive", pairs / ms),)


def by_part(run: Run, view: View, by: str, each: ViewResult) -> ViewResult:
    """A result by GPU with the GPUs of each node or coordinate combined."""
    gpus = tuple(map(int, each.rows.labels))
    rows = GpuRows.of(run, gpus, by)
    members = rows.members
    known = {metric.name: (metric, values) for metric, values in each.columns}
    lead = known["mean_lead_ns"][1].known(np.inf)
    least = rows.reduced(lead, np.min)
    behind = np.array([gpus[own[lead[own].argmin()]] for own in members])

    def median(metric: Metric, values: Values) -> tuple[Metric, Values]:
        text = f"The median of {metric.name} over the row's GPUs."
        of_row = replace(metric, name=f"median_{metric.name}", reduces="", definition=text)
        return of_row, numbered(rows.reduced(values.known(), median_of))

    def total(metric: Metric, values: Values) -> tuple[Metric, Values]:
        sums = rows.reduced(values.known(), np.sum)
        return metric, Values(np.nan_to_num(sums).astype(np.int64), np.isnan(sums))

    return replace(
        each,
        rows=rows,
        columns=(
            (GROUP_GPUS, Values(np.array([len(own) for own in members]))),
            (METRICS["least_lead_ns"], numbered(least)),
            (METRICS["behind"], gpu_words(behind, np.isfinite(least))),
            *(total(*known[name]) for name in _SUMS),
            (CAUSES_OF_GPUS, worded([_causes(known["apart_by"][1], own) for own in members])),
            *(median(*known[name]) for name in _MEDIANS if name in known),
        ),
        opens=lambda row: (
            replace(view, by="gpu", filter=_filter(gpus, members[row]), sort="", columns=())
            if by == NODE
            else replace(child_of(view, by, rows.labels[row]), name=view.name, by="gpu")
        ),
        total={name: value for name, value in each.total.items() if name in _SUMS},
        sort="",
        shown=(),
    )


def _causes(values: Values, rows: Index) -> str | None:
    words = Counter(str(word) for row in rows.tolist() if (word := values.cell(row)) is not None)
    return ", ".join(f"{count} {word}" for word, count in words.most_common()) or None


def _filter(gpus: tuple[int, ...], rows: Index) -> str:
    """The filter that leaves these GPUs: `gpu:0-7,12`."""
    numbers = np.sort(np.array(gpus)[rows])
    spans = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    texts = [f"{own[0]}-{own[-1]}" if len(own) > 1 else f"{own[0]}" for own in spans]
    return f"gpu:{','.join(texts)}"
