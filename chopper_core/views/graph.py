"""Graph: which activities depend on which, the longest path, and what could run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses import collective_figures
from chopper_core.analyses.base import base_of
from chopper_core.analyses.rows import ALL_GPUS, LabelledRows, Own, Partition
from chopper_core.analyses.scope_path import GAP_COLUMNS, ScopePath, scope_path
from chopper_core.columns import METRICS, Reduces, Values, column, worded
from chopper_core.columns.labels import LABELS
from chopper_core.graph.dependencies import INFERRED, MOST_STREAMS, Evidence
from chopper_core.model.charts import Chart, Composition, LineChart, Series
from chopper_core.model.column_names import NO_TIMES
from chopper_core.model.groups import Groups, grouped
from chopper_core.model.phrases import amount, facts, percent
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue
from chopper_core.model.table import (
    RECOMPUTE_SUFFIX,
    Category,
    KernelTable,
    Kind,
)
from chopper_core.model.units import time_text
from chopper_core.model.view import View, child_of
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    combined,
    counts_of,
    numbered_rows,
    sums_of,
)
from chopper_core.views.shared.table_view import activity_view, columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="graph",
    title="Timeline · critical path",
    question="Which chain of dependencies is the longest, and how much could run at the same time?",
    by=(
        *any_level("operation", "kernel", "phase", "layer", "iteration"),
        "type",
        "cause",
        "message",
        "node",
    ),
    of_one_run="shows one run; enter a run first",
    any_split=True,
)

NODE: Final = "node"
CAUSE: Final = "cause"
_LEAST_RANGE: Final = 0.01
"""Activities at a time by which a chart of them varies at least."""
_MOST_NAMED: Final = 4
"""Reasons to wait for others."""
_BINS: Final = 240
TYPES: Final = ("compute", "memory", "collective", "send/receive")
_SEND_RECV: Final = frozenset({"send_recv", "send", "recv"})

CAUSE_NS: Final = column("""cause_ns | ns | on path | sum over GPUs
    Time of the longest path by its cause: work by type, and what is between activities.""")
TYPE: Final = column("""type | | type
    The type of the node: compute, memory (copies and memsets), collective, send/receive.""")
KERNEL: Final = column("""kernel_name | | kernel
    The name of the kernel.""")
EVIDENCE: Final = column("""evidence | | evidence
    Evidence that it depends on the activity before it on the path.
    missing: it is the first of the path""")


def answer(run: Run, view: View) -> ViewResult:
    if not run.table.has_times:
        raise NothingToShow(NO_TIMES)
    scope = scope_path(run, view)
    shown = {NODE: _one_by_one, CAUSE: _by_cause}.get(view.by, _together)
    found, base = shown(run, view, scope), base_of(run, view)
    if scope.iteration is not None:
        base = base.of_iterations([scope.iteration])
    if scope.gpus:
        base = base.of_gpus(scope.gpus)
    steps = int(base.of_rows({"": [""]}, reduces=Reduces.STEPS)[0])
    return replace(
        found,
        headline=_headline(scope, steps),
        notes=_notes(scope, run.table),
        charts=_charts(run, scope, steps),
        base=base.itself if view.by == NODE else base,
    )


def node_types(table: KernelTable, rows: Index) -> Int64:
    """The place in TYPES of each of some rows."""
    plain = [name.removesuffix(RECOMPUTE_SUFFIX) in _SEND_RECV for name in table.operations]
    pairwise = np.array([*plain, False])[table.operation[rows]]
    of_kernel = np.where(table.category[rows] == Category.KERNEL, 0, TYPES.index("memory"))
    of_comm = np.where(pairwise, TYPES.index("send/receive"), TYPES.index("collective"))
    return np.where(table.kind[rows] == Kind.COMM, of_comm, of_kernel)


def _together(run: Run, view: View, scope: ScopePath) -> ViewResult:
    table, by = run.table, view.by or "operation"
    rows = scope.rows
    if by == "message":
        rows = rows[table.kind[rows] == Kind.COMM]
        if not len(rows):
            raise NothingToShow("the scope has no communication kernels")
    codes, label = _codes(table, rows, by)
    codes, nodes = grouped(Groups.single(table, rows), codes)
    begins = nodes.rows[nodes.first]
    labels = [label(*each) for each in zip(codes.tolist(), begins.tolist(), strict=True)]
    figures = scope.figures(nodes)
    own = columns_of(figures)
    if by == "message":
        size, groups = table.bytes[begins], table.group[begins].tolist()
        kinds = [table.text_of("operation", code) for code in table.operation[begins].tolist()]
        names = [table.names[code] if code >= 0 else None for code in groups]
        own += [
            (collective_figures.KIND, worded(kinds)),
            (collective_figures.PROCESS_GROUP, worded(names)),
            (collective_figures.SIZE, Values(size, size < 0)),
        ]
    parts = [name for name in GAP_COLUMNS if figures[name].numbers.any()]
    shown = ("path_ns", "path_gap_ns", "path_pct", "path_activities", "kernel_ns", "activities")
    shown += (*(("bytes",) if by in ("type", "message") else ()), *parts)

    def opens(row: int) -> View:
        if by == "type":
            return replace(view, by=NODE, filter=f"type:{labels[row]}", sort="", columns=())
        if by == "message":
            operation = int(table.operation[begins[row]])
            return child_of(view, "operation", table.text_of("operation", operation))
        return child_of(view, by, labels[row])

    return table_view(
        view,
        Partition(by, labels, nodes, Groups.single(table, rows)),
        own,
        columns_of({"path_pct": Values(figures["path_pct"].numbers.sum(keepdims=True))}),
        opens=opens,
        total_title=ALL_GPUS if by == "gpu" else "",
        sort=f"-{'kernel_ns' if by == 'message' else 'path_ns'}",
        shown=shown,
    )


def _codes(table: KernelTable, rows: Index, by: str) -> tuple[Int64, Callable[[int, int], str]]:
    if by == "type":
        return node_types(table, rows), lambda code, _: TYPES[code]
    if by == "message":
        codes = numbered_rows((table.operation[rows], table.group[rows], table.bytes[rows]))
        return codes.astype(np.int64), lambda _, row: _message(table, row)
    return table.column(by)[rows].astype(np.int64), lambda code, _: table.text_of(by, code)


def _message(table: KernelTable, row: int) -> str:
    parts = [table.text_of("operation", int(table.operation[row]))]
    size, group = int(table.bytes[row]), int(table.group[row])
    parts += [f"{size} B"] if size >= 0 else []
    parts += [table.names[group]] if group >= 0 else []
    return " ".join(parts)


def _one_by_one(run: Run, view: View, scope: ScopePath) -> ViewResult:
    table, rows = run.table, scope.on_path
    if not len(rows):
        raise NothingToShow("no activity of the scope is on the longest path")
    nodes = Groups(table, rows, np.arange(len(rows)))
    operations = [table.text_of("operation", code) for code in table.operation[rows].tolist()]
    labels = [f"{number} {name}" for number, name in enumerate(operations)]
    evidence = [Evidence(each).text if each >= 0 else None for each in scope.evidence.tolist()]
    gpu = table.gpu[rows].astype(np.int64)
    figures = scope.figures(nodes)
    of_path = ("path_ns", "path_gap_ns", *GAP_COLUMNS)
    own: Own = [
        (METRICS["start_ns"], Values(table.start_ns[rows] - run.origin_ns)),
        *columns_of({name: figures[name] for name in of_path}),
        (LABELS["gpu"], Values(gpu)),
        (TYPE, worded([TYPES[code] for code in node_types(table, rows).tolist()])),
        (KERNEL, worded([table.names[code] for code in table.kernel[rows].tolist()])),
        (EVIDENCE, worded(evidence)),
    ]
    first = (LABELS["gpu"], METRICS["start_ns"], TYPE, EVIDENCE, KERNEL, METRICS["kernel_ns"])
    shown = ["path_ns", "path_gap_ns", *(each.name for each in first), *GAP_COLUMNS]
    return table_view(
        view,
        Partition(NODE, labels, nodes, Groups.single(table, rows)),
        own,
        opens=lambda row: activity_view(run, view, int(rows[row])),
        shown=shown,
    )


def _by_cause(run: Run, view: View, scope: ScopePath) -> ViewResult:
    """What the path's time is: work by type, the hosts' work, launch latency and dispatch."""
    parts = _parts(run.table, scope)
    labels, times = list(parts), np.array(list(parts.values()))
    gaps = {METRICS[name].title: name for name in GAP_COLUMNS}

    def opens(row: int) -> View:
        gap = gaps.get(labels[row])
        chosen = {"sort": f"-{gap}"} if gap else {"sort": "", "filter": f"type:{labels[row]}"}
        return replace(view, by=NODE, columns=(), **chosen)

    share = Values(100.0 * times / max(scope.path_ns, 1))
    columns: Own = [(CAUSE_NS, Values(times)), *columns_of({"path_pct": share})]
    whole = {CAUSE_NS.name: scope.path_ns, "path_pct": 100.0}
    rows = LabelledRows(CAUSE, labels)
    return table_view(view, rows, columns, total=whole, opens=opens, sort=f"-{CAUSE_NS.name}")


def _parts(table: KernelTable, scope: ScopePath) -> dict[str, int]:
    """The times of the path: its work by type, then what is between its activities."""
    types = node_types(table, scope.on_path)
    times = [*sums_of(scope.work_ns, types, len(TYPES)), *scope.gap_ns.sum(axis=1)]
    names = (*TYPES, *(METRICS[name].title for name in GAP_COLUMNS))
    return {name: int(ns) for name, ns in zip(names, times, strict=True) if ns}


def _headline(scope: ScopePath, steps: int) -> tuple[str, ...]:
    """Figures of the path, per so many steps."""
    work, gap = (time_text(int(each.sum()) / steps) for each in (scope.work_ns, scope.gap_ns))
    on_path, rows = (amount(len(each) / steps) for each in (scope.on_path, scope.rows))
    begin, end = scope.alone_ns
    free = int((end - begin).sum()) / max(scope.alone_span_ns, 1)
    return (
        facts(
            f"{work} of work, {gap} of waits on the longest path"
            f"{' of a step' if steps > 1 else ''}",
            f"{on_path} of {rows} activities",
            f"{free:.2f} activities could run at a time",
        ),
    )


def _notes(scope: ScopePath, table: KernelTable) -> tuple[str, ...]:
    graph = scope.graph
    edges = counts_of(graph.evidence, len(Evidence)).tolist()
    total = max(len(graph.evidence), 1)
    known = sorted(((n, each) for each, n in zip(Evidence, edges, strict=True) if n), reverse=True)
    parts = [f"{each.text} {percent(n / total)}" for n, each in known[:_MOST_NAMED]]
    rest = sum(n for n, _ in known[_MOST_NAMED:])
    parts += [f"other reasons {percent(rest / total)}"] if rest else []
    why = f"why activities wait for others: {', '.join(parts)}"
    notes = [why if parts else "no activity waits for another"]
    if graph.unlaunched:
        notes.append(
            f"{graph.unlaunched} activities have no launch record: what their hosts did before "
            "them is unknown, so the path may lack it"
        )
    if graph.contradicted:
        notes.append(
            f"{graph.contradicted} dependencies are left out: they lead to activities that start "
            "no earlier"
        )
    if any(edges[each] for each in INFERRED):
        notes.append("waits for other streams are inferred from the times; some may be coincidence")
    gpu, stream = table.gpu[scope.rows], table.stream[scope.rows]
    streams, _ = combined((gpu, stream))
    if (most := int(counts_of(streams[:, 0]).max(initial=0))) > MOST_STREAMS:
        notes.append(
            f"a GPU has {most:,} streams: its activities wait for the last that ended in any of "
            "them, not for that of each"
        )
    if scope.iteration is not None:
        notes.append(
            f"the run has too many activities: this is the graph of step {scope.iteration}"
        )
    if scope.gpus:
        notes.append(
            f"of its GPUs, {len(scope.gpus)} evenly chosen ones are in the graph: gpu=N in the "
            "scope has another"
        )
    return tuple(notes)


def _charts(run: Run, scope: ScopePath, steps: int) -> tuple[Chart, ...]:
    charts: list[Chart] = []
    if parts := _parts(run.table, scope):
        series = tuple(Series(name, np.array([ns / steps / 1e6])) for name, ns in parts.items())
        charts.append(Composition("the longest path", "ms", ("path",), series))
    if length := float(scope.alone_span_ns):
        edges = np.linspace(0.0, length, _BINS + 1)
        free = Queue.of(*scope.alone_ns).depths(edges)
        # An axis would magnify the rounding of a serial run; the headline has its figure.
        if np.ptp(free) >= _LEAST_RANGE:
            title = "activities that could run at a time"
            middles = (edges[1:] + edges[:-1]) / 2e6
            lines = {"activities": free}
            charts.append(LineChart.over(title, "", "work on the path", "ms", middles, lines))
    return tuple(charts)
