"""Comms: collectives matched across ranks, their bandwidth, who waits and for whom."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Values, numbered, worded
from chopper_core.model.charts import BoxChart, Chart, LineChart
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import NoSuchNode, NothingToShow
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    first_equal,
    quantiles_along,
    quantiles_of,
    ranked,
    run_starts,
    sums_of,
)
from chopper_core.views.shared import collective_figures as columns
from chopper_core.views.shared.collective_figures import (
    Chosen,
    blame,
    chosen_in,
    gpu_words,
    headline,
    latest,
    moved,
    notes,
    outlying,
    rates,
    shares,
)
from chopper_core.views.shared.collectives import collectives_of
from chopper_core.views.shared.process_groups import (
    SPLITS,
    expert_note,
    split_groups,
    split_of,
)
from chopper_core.views.shared.table_view import (
    Own,
    Partition,
    activity_view,
    by_gpu,
    child_of,
    grouped,
    quantiles,
    table_view,
)
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="comms",
    title="Comms",
    question="How fast are the collectives, which ranks wait in them, and for whom?",
    by=(
        *any_level(
            "kind", "collective", "phase", "layer", "iteration", but=("operation", "kernel")
        ),
        "group",
        *SPLITS,
    ),
    of="collective",
    any_split=True,
)


COLLECTIVE: Final = "collective"
_LEVEL_OF: Final = {"kind": "operation"}
"""Split → level of the tree, where their names differ."""
_DURATIONS: Final = ("exposed_comm_ns", "hidden_ns", "median_ns", "p95_ns", "max_ns")
_OF_GPU: Final = (
    *("wait_ns", "caused_ns", "times_last", "exposed_wait_ns", "calls", "lag_ns"),
    *("wait_pct", "exposed_pct", "hidden_pct", *_DURATIONS),
)
_OF_RANKS: Final = (
    *("calls", "wait_ns", "bus_gbps", "last_gpu", "last_pct", "exposed_wait_ns"),
    *("median_transfer_ns", "median_skew_ns", "wait_pct", "exposed_pct", "hidden_pct"),
    *("moved_bytes", "algo_gbps", *_DURATIONS, "outliers"),
)
_UNMATCHED: Final = (
    *("calls", "got_gbps", "exposed_pct", "hidden_pct", "moved_bytes", *_DURATIONS, "outliers"),
)
_OF_ONE: Final = (
    *("collective_ns", "skew_ns", "transfer_ns", "last_gpu", "bus_gbps", "phase", "layer"),
    *("exposed_pct", "wait_ns", "message_bytes", "times_median", "outlier", "algo_gbps"),
    *("exposed_comm_ns", "hidden_ns"),
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "kind"
    parent = run.tree_of(view).node(view.path)
    found = collectives_of(run)
    chosen = None if found is None else chosen_in(run, found, parent)
    if chosen is None:
        raise NothingToShow("no collectives: the scope has no communication kernels")
    if view.of:
        return _members(chosen, view)
    if by == COLLECTIVE:
        return _one_by_one(chosen, view)
    return _together(chosen, view, by)


def _one_by_one(chosen: Chosen, view: View) -> ViewResult:
    run, found, sets = chosen.run, chosen.all, chosen.sets
    table = run.table
    nodes = Groups(table, chosen.rows, run_starts(chosen.owner))
    kinds = chosen.kinds()
    labels = [f"{kind} {number}" for kind, number in zip(kinds, sets.tolist(), strict=True)]
    one = found.members.rows[found.members.first[sets]]
    times, apart = outlying(chosen)
    wait, exposed = (
        sums_of(waits, chosen.owner, len(sets)) for waits in (chosen.wait_ns, chosen.exposed_ns)
    )
    layer, iteration = (table.column(name)[one].astype(np.int64) for name in ("layer", "iteration"))
    size, every, names = found.bytes[sets], np.arange(len(sets)), split_groups(run).names
    groups = [names[code] if code >= 0 else None for code in found.group[sets].tolist()]
    own: Own = [
        (columns.TIME, Values((found.end_ns - found.first_start_ns)[sets])),
        (columns.SKEW, chosen.known(found.skew_ns)),
        (columns.TRANSFER, chosen.known(found.transfer_ns)),
        (columns.LAST, gpu_words(found.last_gpu[sets], chosen.complete)),
        (columns.WAIT, Values(wait, ~chosen.complete)),
        (columns.EXPOSED_WAIT, Values(exposed, ~chosen.complete)),
        *rates(chosen, every, len(sets), chosen.owner),
        *shares(chosen, chosen.owner, len(sets)),
        (columns.SIZE, Values(size, size < 0)),
        (columns.KIND, worded(kinds)),
        (columns.PHASE, worded([table.text_of("phase", code) for code in table.phase[one]])),
        (columns.LAYER, Values(layer, layer < 0)),
        (columns.ITERATION, Values(iteration, iteration < 0)),
        (columns.TIMES, numbered(times)),
        (columns.OUTLIER, worded(apart)),
        (columns.SEEN, Values(found.members.sizes()[sets])),
        (columns.GROUP, worded(groups)),
        (columns.STARTS, Values(found.first_start_ns[sets] - run.origin_ns)),
    ]
    return table_view(
        view,
        Partition(COLLECTIVE, labels, nodes, chosen.whole),
        own,
        opens=lambda row: replace(
            view, by="gpu", of=str(sets[row]), path=(), sort="", filter="", columns=()
        ),
        shown=_shown(own, _OF_ONE),
        headline=headline(chosen),
        notes=notes(chosen),
        charts=charts(chosen),
    )


def _together(chosen: Chosen, view: View, by: str) -> ViewResult:
    run, found, sets = chosen.run, chosen.all, chosen.sets
    table = split_groups(run)
    level = _LEVEL_OF.get(by, by)
    texts: list[str] = []
    if by in SPLITS:
        codes_of_rows, texts = split_of(run, chosen.rows, by)
    else:
        column = table.group if by == "group" else table.column(level)
        codes_of_rows = column[chosen.rows].astype(np.int64)
    codes, nodes = grouped(chosen.whole, codes_of_rows)
    count = len(codes)
    member_owner = np.searchsorted(codes, codes_of_rows)
    if by == "gpu":
        owner = member_owner
        pairs = chosen.owner
    else:
        # A collective belongs to the row of its first kernel in the scope.
        owner = member_owner[run_starts(chosen.owner)]
        pairs = np.arange(len(sets))
    complete = chosen.complete[pairs]
    some = counts_of(owner[complete], count) == 0
    unmet = counts_of(member_owner[chosen.complete[chosen.owner]], count) == 0
    spread = quantiles(nodes, "duration_ns", (0.5, 0.95))

    def over(values: Int64, *shares: float) -> Float64:
        return quantiles_of(values[sets][pairs][complete], owner[complete], count, shares)

    skew = over(found.skew_ns, 0.5, 1.0)
    transfer = over(found.transfer_ns, 0.5, 0.95)
    _, apart = outlying(chosen)
    strange = np.array([word is not None for word in apart], np.bool_)[pairs]
    wait, exposed = (
        sums_of(waits, member_owner, count) for waits in (chosen.wait_ns, chosen.exposed_ns)
    )
    own: Own = [
        (columns.CALLS_OF_GPU if by == "gpu" else columns.CALLS, Values(counts_of(owner, count))),
        (columns.WAIT, Values(wait, unmet)),
        (columns.EXPOSED_WAIT, Values(exposed, unmet)),
        *(blame(chosen, codes, member_owner, some) if by == "gpu" else ()),
        (columns.MEDIAN_TRANSFER, numbered(transfer[:, 0])),
        (columns.P95_TRANSFER, numbered(transfer[:, 1])),
        (columns.MEDIAN_SKEW, numbered(skew[:, 0])),
        (columns.LARGEST_SKEW, numbered(skew[:, 1])),
        *shares(chosen, member_owner, count),
    ]
    if by != "gpu":
        own += rates(chosen, owner, count, member_owner)
        own += [*moved(chosen, owner, count), *latest(chosen, owner, count)]
    own += [
        (columns.MEDIAN, Values(spread[:, 0])),
        (columns.P95, Values(spread[:, 1])),
        (columns.LONGEST, Values(nodes.max("duration_ns"))),
        (columns.OUTLIERS, Values(counts_of(owner[strange], count), some)),
    ]
    if by == "group":
        texts = [*table.names, "unknown"]
        labels = [texts[code] for code in codes.tolist()]
    else:
        labels = [texts[code] if texts else table.text_of(level, code) for code in codes.tolist()]
    shown = _OF_GPU if by == "gpu" else _OF_RANKS if complete.any() else _UNMATCHED

    def opens(row: int) -> View:
        if by in SPLITS:
            return replace(view, by="group", sort="", filter="", columns=())
        if by != "group":
            return replace(child_of(view, level, labels[row]), name=view.name, by=COLLECTIVE)
        name = re.escape(labels[row]).replace("\\ ", r"\s")
        return replace(view, by=COLLECTIVE, filter=name, sort="", columns=())

    return table_view(
        view,
        Partition(by, labels, nodes, chosen.whole),
        own,
        opens=opens,
        sort="-wait_ns" if by in ("kind", "group") and chosen.complete.any() else "",
        shown=_shown(own, shown),
        headline=headline(chosen),
        notes=(*expert_note(run, chosen.rows), *notes(chosen)),
        charts=charts(chosen),
    )


def _members(chosen: Chosen, view: View) -> ViewResult:
    found, run = chosen.all, chosen.run
    table = run.table
    number = int(view.of) if view.of.isdecimal() else -1
    if not 0 <= number < len(found):
        raise NoSuchNode(
            f"unknown collective {view.of}: of= takes a number from 0 to {len(found) - 1}"
        )
    rows = found.members.rows_of(number)
    rows = rows[np.lexsort((table.gpu[rows], table.start_ns[rows]))]
    members, own_set = found.members.rows, found.member_set == number
    wait = found.member_wait_ns[own_set][first_equal(members[own_set], rows)]
    unknown = np.full(len(rows), not found.complete[number])
    whole = Groups.single(table, rows)
    kind = chosen_in(run, found, whole)
    assert kind is not None
    nodes = Groups(table, rows, np.arange(len(rows)))
    own: Own = [
        (METRICS["start_ns"], Values(table.start_ns[rows] - run.origin_ns)),
        (columns.LAG, Values(table.start_ns[rows] - found.first_start_ns[number], unknown)),
        (columns.WAIT, Values(wait, unknown)),
        (METRICS["kernel_ns"], Values(nodes.sum("duration_ns"))),
        (METRICS["exposed_comm_ns"], Values(nodes.sum("exposed_comm_ns"))),
        (METRICS["hidden_ns"], Values(nodes.sum("hidden_ns"))),
    ]
    labels = [str(gpu) for gpu in table.gpu[rows].tolist()]
    skew = (
        f"GPU {found.last_gpu[number]} arrives last, {found.skew_ns[number] / 1e3:.1f} µs after "
        f"the first; the transfer then takes {found.transfer_ns[number] / 1e3:.1f} µs"
        if found.complete[number]
        else "the traces lack some of its ranks"
    )
    return table_view(
        view,
        Partition("gpu", labels, nodes, whole),
        own,
        opens=lambda row: activity_view(run, view, int(rows[row])),
        headline=(f"{kind.kinds()[0]} {number}: {skew}",),
        notes=notes(kind),
    )


def _shown(own: Own, names: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of some names but own ones without any value; notes say why those have none."""
    unknown = {metric.name for metric, values in own if not values.present().any()}
    return tuple(name for name in names if name not in unknown)


_MAX_POINTS: Final = 1_500
"""With more collectives, evenly chosen ones are drawn."""
_MAX_OCCURRENCES: Final = 300
"""With more occurrences, medians of neighbours are drawn."""


def charts(chosen: Chosen) -> tuple[Chart, ...]:
    return (_boxes(chosen), *_skews(chosen), *_by_occurrence(chosen))


def _boxes(chosen: Chosen) -> BoxChart:
    table = chosen.table
    codes, nodes = grouped(chosen.whole, table.operation[chosen.rows].astype(np.int64))
    return BoxChart(
        "durations of the kernels by kind",
        "ms",
        tuple(table.text_of("operation", code) for code in codes.tolist()),
        quantiles(nodes, "duration_ns", (0.0, 0.25, 0.5, 0.75, 1.0)) / 1e6,
    )


def _skews(chosen: Chosen) -> tuple[LineChart, ...]:
    found, sets = chosen.all, chosen.sets[chosen.complete]
    clouds = {}
    for code in distinct(found.kind[sets]).tolist():
        own = sets[found.kind[sets] == code]
        own = own[:: -(-len(own) // _MAX_POINTS)]
        name = chosen.table.text_of("operation", code)
        clouds[name] = found.skew_ns[own] / 1e6, found.transfer_ns[own] / 1e6
    chart = LineChart.clouds("transfer against arrival skew", "ms", "arrival skew", "ms", clouds)
    return (chart,) if clouds else ()


def _by_occurrence(chosen: Chosen) -> tuple[LineChart, ...]:
    found, table = chosen.all, chosen.table
    kinds = found.kind[chosen.sets][chosen.owner]
    waits = sums_of(chosen.wait_ns, kinds + 1)
    if not waits.any():
        return ()
    kind = int(waits.argmax()) - 1
    members = np.flatnonzero(kinds == kind)
    places = ranked(chosen.owner[members])[1]
    gpus, gpu = ranked(table.gpu[chosen.rows[members]])
    step = -(-(int(places.max()) + 1) // _MAX_OCCURRENCES)
    durations = np.full((-(-(int(places.max()) + 1) // step), step, len(gpus)), np.nan)
    durations[places // step, places % step, gpu] = table.duration_ns[chosen.rows[members]] / 1e6
    lines = quantiles_along(np.moveaxis(durations, 1, 0), (0.5,))[0]
    of = f", medians of {step} each" if step > 1 else ""
    return (
        LineChart.over(
            f"{table.text_of('operation', kind)}: duration by occurrence{of}",
            "ms",
            "occurrence",
            "",
            (np.arange(len(lines)) * step).astype(np.float64),
            by_gpu(gpus.tolist(), lines.T),
        ),
    )
