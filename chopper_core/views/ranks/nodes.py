"""The GPUs of a scope by node (host), or by a coordinate."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Metric, Values, column, numbered, worded
from chopper_core.model.column_names import HEAT
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Index
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import median_of
from chopper_core.views.ranks import columns as rank_columns
from chopper_core.views.shared.collective_figures import gpu_words
from chopper_core.views.shared.table_view import child_of
from chopper_core.views.spec import ViewResult

Own = list[tuple[Metric, Values]]

NODE: Final = "node"
_MEDIANS: Final = ("mean_lead_ns", "slower_pct", "iteration_ns", "gfx_mhz", *HEAT, "power_w")
_SUMS: Final = ("caused_ns", "caused_exposed_ns", "wait_ns", "exposed_wait_ns")

GPUS: Final = column("gpus", "", "GPUs", "GPUs of the row that are compared.", reduces="sum")
LEAST: Final = column(
    "least_lead_ns",
    "ns",
    "least lead",
    "The smallest mean_lead_ns of the row's GPUs: that of its straggler.",
    source=rank_columns.LIT,
)
APART: Final = column(
    "apart_gpus",
    "",
    "causes",
    "GPUs of the row that lag, by cause (see apart_by).",
    missing_because="none of them lags for a known cause",
)


def node_names(run: Run, gpus: tuple[int, ...]) -> list[str]:
    """The host of each GPU; raises UsageError where the run doesn't give hosts."""
    of_rank = {source.rank: source.host for source in run.sources}
    if len(run.hosts) > 1:
        of_rank |= {rank: host.name for host in run.hosts for rank in host.ranks}
    rank_of = {gpu.index: gpu.rank for gpu in run.gpus}
    names = [of_rank.get(rank_of.get(gpu, -1), "") for gpu in gpus]
    if not any(names):
        raise NothingToShow(
            "neither the traces nor their file names give the hosts, so that GPUs can't be "
            "grouped by node; torch.profiler.tensorboard_trace_handler names files by host"
        )
    return [name or "unknown" for name in names]


def by_part(run: Run, view: View, by: str, gpus: tuple[int, ...], each: ViewResult) -> ViewResult:
    """A result by GPU with the GPUs of each node or coordinate combined."""
    along = run.table.coordinates.get(by)
    if along is None:
        names = node_names(run, gpus)
        labels = list(dict.fromkeys(names))
    else:
        names = [run.table.text_of(by, code) for code in along[list(gpus)].tolist()]
        labels = sorted(set(names), key=lambda name: (not name.isdigit(), len(name), name))
    places = [np.flatnonzero(np.array(names) == label) for label in labels]
    known = {metric.name: (metric, values) for metric, values in each.columns}
    lead = known["mean_lead_ns"][1].numbers
    lead = np.where(np.isnan(lead), np.inf, lead)
    least = np.array([lead[rows].min() for rows in places])
    behind = np.array([gpus[own[int(lead[own].argmin())]] for own in places])
    own: Own = [
        (GPUS, Values(np.array([len(rows) for rows in places]))),
        (LEAST, numbered(np.where(np.isfinite(least), least, np.nan))),
        (rank_columns.BEHIND, gpu_words(behind, np.isfinite(least))),
    ]
    own += [_summed(*known[name], places) for name in _SUMS]
    own.append((APART, worded([_causes(known["apart_by"][1], rows) for rows in places])))
    own += [_median(*known[name], places) for name in _MEDIANS if name in known]
    return replace(
        each,
        level=by,
        labels=labels,
        columns=tuple(own),
        opens=lambda row: (
            replace(view, by="gpu", filter=_filter(gpus, places[row]), sort="", columns=())
            if along is None
            else replace(child_of(view, by, labels[row]), name=view.name, by="gpu")
        ),
        total={name: value for name, value in each.total.items() if name in _SUMS}
        | {GPUS.name: len(gpus)},
        shown=(),
    )


def _summed(metric: Metric, values: Values, places: list[Index]) -> tuple[Metric, Values]:
    missing = np.array([not values.present()[rows].any() for rows in places])
    sums = [values.numbers[rows][values.present()[rows]].sum() for rows in places]
    return metric, Values(np.array(sums, np.int64), missing)


def _median(metric: Metric, values: Values, places: list[Index]) -> tuple[Metric, Values]:
    numbers = np.where(values.present(), values.numbers, np.nan).astype(np.float64)
    found = []
    for rows in places:
        own = numbers[rows][np.isfinite(numbers[rows])]
        found.append(median_of(own) if len(own) else np.nan)
    of_node = replace(
        metric,
        name=f"median_{metric.name}",
        reduces="",
        definition=f"The median of {metric.name} over the row's GPUs.",
    )
    return of_node, numbered(found)


def _causes(values: Values, rows: Index) -> str | None:
    words = Counter(str(word) for row in rows.tolist() if (word := values.cell(row)) is not None)
    return ", ".join(f"{count} {word}" for word, count in words.most_common()) or None


def _filter(gpus: tuple[int, ...], rows: Index) -> str:
    """The filter that leaves these GPUs: `gpu:0-7,12`."""
    numbers = sorted(gpus[row] for row in rows.tolist())
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "gpu:" + ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)
