"""Comms: collectives matched across ranks, their bandwidth, who waits and for whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses import collective_figures as columns
from chopper_core.analyses.base import base_of
from chopper_core.analyses.collective_figures import (
    collective_notes,
    collectives_headline,
    kind_text,
    known,
)
from chopper_core.analyses.collective_outliers import outlying
from chopper_core.analyses.rows import Own, Partition
from chopper_core.columns import METRICS, Values, numbered, worded_codes
from chopper_core.columns.labels import LABELS
from chopper_core.graph.collectives import (
    Collectives,
    collectives_in,
    collectives_of,
    transfers,
)
from chopper_core.graph.process_groups import SPLITS, expert_note, split_groups, split_of
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.groups import Groups, grouped
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NoSuchNode, NothingToShow
from chopper_core.util.grouping import (
    distinct,
    quantiles_of,
    ranked,
    runs_of,
    stable_order,
    sums_of,
)
from chopper_core.views.shared.table_view import activity_view, by_gpu, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="comms",
    title="Losses · communication",
    question="How fast are the collectives, which ranks wait in them, and for whom?",
    by=(
        *any_level("kind", "operation", "collective", "phase", "layer", "iteration"),
        "group",
        "pair",
        *SPLITS,
    ),
    of="collective",
    any_split=True,
)


COLLECTIVE: Final = "collective"
PAIR: Final = "pair"
"""Split of messages by the ranks between which they go."""
_NO_COLLECTIVES: Final = "no collectives: the scope has no communication kernels"
OPERATION: Final = "operation"
"""Split by the operation that runs next on the GPU: what exposed communication holds up."""
_LEAST_BAR: Final = 0.005
"""Of all exposed time: an operation that waits less has no bar."""
_LEVEL_OF: Final = {"kind": "operation"}
"""Split → level of the tree, where their names differ."""
_OTHERS: Final = {"kind": tuple(int(each) for each in Kind if each is not Kind.COMM)}
"""What is no communication."""
_DURATIONS: Final = ("hidden_ns", "median_ns", "p95_ns", "max_ns")
_OF_GPU: Final = (
    *("wait_ns", "caused_ns", "times_last", "exposed_wait_ns", "collectives", "arrival_lag_ns"),
    *("wait_pct", "exposed_pct", "hidden_pct", "exposed_comm_ns", *_DURATIONS),
)
_OF_RANKS: Final = (
    *("exposed_comm_ns", "wait_ns", "wait_pct", "bus_gbps", "last_gpu", "last_pct", "collectives"),
    *("exposed_wait_ns", "median_transfer_ns", "median_skew_ns", "exposed_pct", "hidden_pct"),
    *("moved_bytes", "algo_gbps", *_DURATIONS, "outliers"),
)
_UNMATCHED: Final = (
    *("collectives", "exposed_comm_ns", "got_gbps", "exposed_pct", "hidden_pct", "moved_bytes"),
    *(*_DURATIONS, "outliers"),
)
_OF_OPERATIONS: Final = (
    *("exposed_comm_ns", "exposed_pct", "exposed_wait_ns", "collectives", "hidden_ns"),
)
_OF_ONE: Final = (
    *("collective_ns", "skew_ns", "transfer_ns", "last_gpu", "bus_gbps", "phase", "layer"),
    *("exposed_pct", "wait_ns", "message_bytes", "times_median", "outlier", "algo_gbps"),
    *("exposed_comm_ns", "hidden_ns"),
)


def missing_from(run: Run) -> str:
    """Why no scope of a run has an answer; empty: one may."""
    return "" if run.communicates else _NO_COLLECTIVES


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "kind"
    found = collectives_in(run, run.tree_of(view).node(view.path))
    if found is None:
        raise NothingToShow(_NO_COLLECTIVES)
    if view.of:
        return _members(run, view)
    result = _one_by_one(run, found, view) if by == COLLECTIVE else _together(run, found, view, by)
    exposed_ms = _exposed_ms(run, found, view)
    return replace(
        result,
        headline=collectives_headline(found, base_of(run, view), exposed_ms),
        notes=(*result.notes, *collective_notes(run, found)),
        charts=(*_bars(exposed_ms), *_skews(found), *_by_occurrence(found)),
    )


def _one_by_one(run: Run, found: Collectives, view: View) -> ViewResult:
    table = found.table
    whole = collectives_of(run)
    assert whole is not None
    # The labels are those of a collective's first kernel, which the scope may not have.
    one = whole.rows[whole.members.first[found.number]]
    numbers, names = found.number.tolist(), split_groups(run).names
    kinds = worded_codes(found.kind, partial(kind_text, found))
    layer, iteration = (table.column(name)[one].astype(np.int64) for name in ("layer", "iteration"))
    times, strange = outlying(run, found)
    own: Own = [
        (columns.TIME, Values(found.end_ns - found.first_start_ns)),
        (columns.SKEW, known(found, found.skew_ns)),
        (columns.TRANSFER, known(found, found.transfer_ns)),
        (columns.SIZE, Values(found.bytes, found.bytes < 0)),
        (columns.KIND, kinds),
        (LABELS["phase"], worded_codes(table.phase[one], partial(table.text_of, "phase"))),
        (LABELS["layer"], Values(layer, layer < 0)),
        (LABELS["iteration"], Values(iteration, iteration < 0)),
        (columns.TIMES, times),
        (columns.OUTLIER, strange),
        (columns.SEEN, Values(whole.members.sizes()[found.number])),
        (
            columns.PROCESS_GROUP,
            worded_codes(found.group, lambda code: names[code] if code >= 0 else None),
        ),
        (METRICS["start_ns"], Values(found.first_start_ns - run.origin_ns)),
    ]
    words = kinds.words or ()
    named = zip(kinds.numbers.tolist(), numbers, strict=True)
    labels = [f"{words[word]} {number}" for word, number in named]
    return table_view(
        view,
        Partition(COLLECTIVE, labels, found.members, Groups.single(table, found.rows)),
        own,
        opens=lambda row: replace(
            view, by="gpu", of=str(numbers[row]), path=(), sort="", filter="", columns=()
        ),
        shown=_OF_ONE,
        base=replace(base_of(run, view).itself, on_gpus=len(found) < len(found.rows)),
    )


def _together(run: Run, found: Collectives, view: View, by: str) -> ViewResult:
    table, rows, is_gpu = split_groups(run), found.rows, by == "gpu"
    level = _LEVEL_OF.get(by, by)
    texts: list[str] = []
    codes_of_rows: Int64 | None = None
    if by in SPLITS:
        codes_of_rows, texts = split_of(run, rows, by)
    elif by == "group":
        codes_of_rows, texts = table.group[rows].astype(np.int64), [*table.names, "unknown"]
    elif by == PAIR:
        codes_of_rows, texts = _pairs(run, rows)
    elif by == OPERATION:
        codes_of_rows = _next_operation(run, rows)
    if codes_of_rows is None:
        # Parts of the tree: what is kept of them needs no rows.
        of_node = partial(run.tree_of(view).split, view.path, without=_OTHERS)
        whole, nodes = of_node(()), of_node((level,))
        codes = nodes.codes(level)
    else:
        whole = Groups.single(run.table, rows)
        codes, nodes = grouped(whole, codes_of_rows)
    labels = [texts[code] if texts else table.text_of(level, code) for code in codes.tolist()]
    own: Own = []
    if is_gpu:
        own.append((columns.LAG, _lags(found, nodes)))

    def opens(row: int) -> View:
        if by in (PAIR, *SPLITS):
            return replace(view, by="group", sort="", filter="", columns=())
        if by == OPERATION:
            return child_of(view, level, labels[row])
        if by != "group":
            return replace(child_of(view, level, labels[row]), name=view.name, by=COLLECTIVE)
        name = re.escape(labels[row]).replace("\\ ", r"\s")
        return replace(view, by=COLLECTIVE, filter=name, sort="", columns=())

    shown: tuple[str, ...] = _OF_RANKS if found.complete.any() else _UNMATCHED
    sort = ""
    if by == OPERATION:
        shown, sort = _OF_OPERATIONS, "-exposed_comm_ns"
    elif is_gpu:
        shown = _OF_GPU
    elif by in ("kind", "group"):
        # By what the headline says first: what is exposed, or where all is hidden, what waits.
        is_hidden = found.complete.any() and not run.table.exposed_comm_ns[rows].any()
        sort = "-wait_ns" if is_hidden else "-exposed_comm_ns"
    return table_view(
        view,
        Partition(by, labels, nodes, whole),
        own,
        opens=opens,
        sort=sort,
        shown=shown,
        notes=expert_note(run, rows),
    )


def _lags(found: Collectives, nodes: Groups) -> Values:
    """The median of how late the kernels of each row arrive at whole collectives."""
    own = found.complete[found.member_set]
    lag = found.table.start_ns[found.rows] - found.first_start_ns[found.member_set]
    owner = nodes.numbers_of(found.rows[own])
    return numbered(quantiles_of(lag[own], owner, len(nodes), (0.5,))[:, 0])


def _members(run: Run, view: View) -> ViewResult:
    whole, table = collectives_of(run), run.table
    assert whole is not None
    number = int(view.of) if view.of.isdecimal() else -1
    if not 0 <= number < len(whole):
        raise NoSuchNode(
            f"unknown collective {view.of}: of= takes a number from 0 to {len(whole) - 1}"
        )
    one = whole.take(whole.member_set == number)
    order = np.lexsort((table.gpu[one.rows], table.start_ns[one.rows]))
    rows, is_unknown = one.rows[order], np.full(len(order), not one.complete[0])
    nodes = Groups(table, rows, np.arange(len(rows)))
    own: Own = [
        (METRICS["start_ns"], Values(table.start_ns[rows] - run.origin_ns)),
        (columns.LAG, Values(table.start_ns[rows] - one.first_start_ns, is_unknown)),
    ]
    skew = (
        facts(
            f"GPU {one.last_gpu[0]} arrives last, {one.skew_ns[0] / 1e3:.1f} µs after the first",
            f"transfer {one.transfer_ns[0] / 1e3:.1f} µs",
        )
        if one.complete[0]
        else "the traces lack some of its ranks"
    )
    return table_view(
        view,
        Partition("gpu", list(map(str, table.gpu[rows])), nodes, Groups.single(table, rows)),
        own,
        opens=lambda row: activity_view(run, view, int(rows[row])),
        shown=(
            "start_ns",
            "arrival_lag_ns",
            "wait_ns",
            "kernel_ns",
            "exposed_comm_ns",
            "hidden_ns",
        ),
        headline=(f"{kind_text(one, int(one.kind[0]))} {number}: {skew}",),
        base=base_of(run, view).itself,
        notes=collective_notes(run, one),
    )


_MAX_POINTS: Final = 1_500
"""With more collectives, evenly chosen ones are drawn."""
_MAX_OCCURRENCES: Final = 300
"""With more occurrences, medians of neighbours are drawn."""


def _pairs(run: Run, rows: Index) -> tuple[Int64, list[str]]:
    """The code of the pair of ranks of each message, and the text of each code; `NO_LABEL` is the
    last, of what is no message or has no known peer."""
    sent = transfers(run, rows)
    rank_of = run.rank_of
    pairs = sorted({(rank_of[one.sender], rank_of[one.receiver]) for one in sent.values()})
    number = {pair: code for code, pair in enumerate(pairs)}
    codes = np.full(len(rows), NO_LABEL, np.int64)
    for place, row in enumerate(rows.tolist()):
        if (one := sent.get(row)) is not None:
            codes[place] = number[rank_of[one.sender], rank_of[one.receiver]]
    return codes, [*(f"rank {one} to {other}" for one, other in pairs), "no peer"]


def _next_operation(run: Run, rows: Index) -> Int64:
    """The operation of the first compute activity of the GPU after the end of each row of
    communication."""
    comm, found = run.memo(("next operation",), lambda: _next_operations(run))
    return np.asarray(found[np.searchsorted(comm, rows)])


def _next_operations(run: Run) -> tuple[Index, Int64]:
    """All rows of communication, and that operation of each."""
    table = run.table
    rows = np.flatnonzero(table.kind == Kind.COMM)
    ends = table.start_ns[rows] + table.duration_ns[rows]
    found = np.full(len(rows), NO_LABEL, np.int64)
    by_gpu = run.tree().by_gpu()
    for gpu, mine in runs_of(table.gpu[rows]):
        own = by_gpu[gpu]
        computes = np.flatnonzero(table.kind[own] == Kind.COMPUTE)
        start = table.start_ns[own][computes]
        order = stable_order(start)
        place = np.searchsorted(start[order], ends[mine])
        next_operations = np.append(table.operation[own][computes[order]], NO_LABEL)
        found[mine] = next_operations[place]
    return rows, found


def _exposed_ms(run: Run, found: Collectives, view: View) -> dict[str, float]:
    """The exposed time of communication before each operation, the longest first."""
    if found.is_scheduled:  # Reconstructed times don't tell what hides what.
        return {}
    codes, place = ranked(_next_operation(run, found.rows))
    spent = sums_of(run.table.exposed_comm_ns[found.rows], place, len(codes))
    base = base_of(run, view)
    return {
        run.table.text_of(OPERATION, int(codes[row])): base.each(int(spent[row])) / 1e6
        for row in np.argsort(-spent, kind="stable").tolist()
        if spent[row] > 0
    }


def _bars(exposed_ms: Mapping[str, float]) -> tuple[BarChart, ...]:
    """The same as a chart; the table has it where its rows are these operations."""
    if not exposed_ms:
        return ()
    least = _LEAST_BAR * sum(exposed_ms.values())
    shown = {name: ms for name, ms in exposed_ms.items() if ms >= least}
    bars = (Series("exposed communication", np.array([*shown.values()])),)
    return (BarChart("exposed before the operation", "ms", tuple(shown), bars, OPERATION),)


def _skews(found: Collectives) -> tuple[LineChart, ...]:
    clouds = {}
    for code in distinct(found.kind[found.complete]).tolist():
        own = np.flatnonzero(found.complete & (found.kind == code))
        own = own[:: -(-len(own) // _MAX_POINTS)]
        name = found.table.text_of("operation", code)
        clouds[name] = found.skew_ns[own] / 1e6, found.transfer_ns[own] / 1e6
    chart = LineChart.clouds("transfer against arrival skew", "ms", "arrival skew", "ms", clouds)
    return (chart,) if clouds else ()


def _by_occurrence(found: Collectives) -> tuple[LineChart, ...]:
    """The durations of the kind of collectives with the most waiting."""
    table, kinds = found.table, found.kind[found.member_set]
    waits = sums_of(found.member_wait_ns, kinds + 1)
    if not waits.any():
        return ()
    kind = int(waits.argmax()) - 1
    members = np.flatnonzero(kinds == kind)
    rows, places = found.rows[members], ranked(found.member_set[members])[1]
    gpus, gpu = ranked(table.gpu[rows])
    count = int(places.max()) + 1
    step = -(-count // _MAX_OCCURRENCES)
    # Of many groups a GPU has few of the collectives: most points of most lines are empty.
    shape = -(-count // step), len(gpus)
    owner = places // step * len(gpus) + gpu
    medians = quantiles_of(table.duration_ns[rows], owner, shape[0] * shape[1], (0.5,))
    lines = medians.reshape(shape) / 1e6
    of = f", medians of {step} each" if step > 1 else ""
    title = f"{table.text_of('operation', kind)}: duration by occurrence{of}"
    at = (np.arange(len(lines)) * step).astype(np.float64)
    lines_of = by_gpu(gpus.tolist(), lines.T)
    return (LineChart.over(title, "ms", "occurrence", "", at, lines_of),)
