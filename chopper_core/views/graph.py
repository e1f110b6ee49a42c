"""Graph: which activities depend on which, the longest path, and what could run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.labels import numbered as combined
from chopper_core.align.operations import RECOMPUTE_SUFFIX
from chopper_core.graph.dependencies import Evidence
from chopper_core.graph.path import (
    GAPS,
    Graph,
    LongestPath,
    graph_of,
    longest_path,
)
from chopper_core.metrics import METRICS, Values, column, worded
from chopper_core.model.charts import Chart, Composition, LineChart, Series
from chopper_core.model.column_names import NO_TIMES
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import Queue
from chopper_core.model.table import NO_LABEL, Category, KernelTable, Kind
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import counts_of, distinct, sums_of
from chopper_core.views.base import base_of
from chopper_core.views.shared import collective_figures
from chopper_core.views.shared.table_view import (
    Own,
    Partition,
    activity_view,
    child_of,
    grouped,
    table_view,
)
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="graph",
    title="Graph",
    question="Which chain of dependencies is the longest, and how much could run at the same time?",
    by=(
        *any_level("operation", "kernel", "phase", "layer", "iteration"),
        "type",
        "message",
        "node",
    ),
    of_one_run="shows one run; enter a run first",
    any_split=True,
)

NODE: Final = "node"
_MAX_ROWS: Final = 1 << 20
"""In scopes with more activities the graph is that of one iteration."""
_LEAST_RANGE: Final = 0.01
"""Activities at a time by which a chart of them varies at least."""
_BINS: Final = 240
TYPES: Final = ("compute", "memory", "collective", "send/receive")
_SEND_RECV: Final = frozenset({"send_recv", "send", "recv"})

ON_PATH: Final = column("""path_ns | ns | on path | sum
    Work on the longest path: the chain of activities, each depending on the one before, with
    the most work in total. A collective works from the arrival of its last member.""")
OF_PATH: Final = column("""path_pct | % | of path | sum
    Share of the work on the longest path.""")
NODES: Final = column("""path_activities | | steps | sum
    Activities on the longest path.""")
GAP: Final = column("""path_gap_ns | ns | gap before | sum
    Time between the end of the activity before it on the path and the beginning of its work.""")
GAP_PARTS: Final = {
    "host": column("""gap_host_ns | ns | host late | sum
        The part of path_gap_ns before the launch of the activity: the host was late."""),
    "latency": column("""gap_latency_ns | ns | launch latency | sum
        The part of path_gap_ns after a launch that found nothing running before it on the
        path."""),
    "queued": column("""gap_queued_ns | ns | waits in queue | sum
        path_gap_ns of activities that were already launched: queued, they waited for something
        that the trace doesn't show."""),
    "peer": column("""gap_peer_ns | ns | waits for peers | sum
        The part of path_gap_ns in which a collective waits for its members on other GPUs."""),
    "unknown": column("""gap_unknown_ns | ns | no launch record | sum
        path_gap_ns of activities without a launch record."""),
}
TYPE: Final = column("""type | | type
    The type of the node: compute, memory (copies and memsets), collective, send/receive.""")
KERNEL: Final = column("""kernel_name | | kernel
    The name of the kernel.""")
ON_GPU: Final = column("""gpu | | GPU
    The GPU.""")
EVIDENCE: Final = column("""evidence | | evidence
    Evidence that it depends on the activity before it on the path.
    missing: it is the first of the path""")


class _ScopeGraph(Struct, frozen=True, eq=False):
    """A scope's graph and its longest path."""

    graph: Graph
    path: LongestPath
    rows: Index
    """The activities of the scope, in the order of the table."""
    iteration: int | None
    """The iteration that stands for a scope with too many activities."""

    @property
    def on_path(self) -> Index:
        found: Index = self.graph.rows[self.path.places]
        return found


def answer(run: Run, view: View) -> ViewResult:
    if not run.table.has_times:
        raise NothingToShow(NO_TIMES)
    scope = run.memo(
        ("graph", view.order, view.path, run.left_out(view)), lambda: _scope(run, view), keep=2
    )
    found = _one_by_one(run, view, scope) if view.by == NODE else _together(run, view, scope)
    charts = _charts(run, scope)
    base = base_of(run, replace(view, is_total=True))  # The path leads through all GPUs and steps.
    return replace(
        found, headline=_headline(run, scope), notes=_notes(scope), charts=charts, base=base
    )


def _scope(run: Run, view: View) -> _ScopeGraph:
    rows = run.tree_of(view).node(view.path).rows
    iteration = None
    if len(rows) > _MAX_ROWS:
        codes = run.table.iteration[rows]
        complete = [code for code in distinct(codes).tolist() if code not in run.cut_iterations]
        iteration = next((code for code in complete if code != NO_LABEL), None)
        rows = rows if iteration is None else rows[codes == iteration]
    graph = graph_of(run, rows)
    return _ScopeGraph(graph, longest_path(run, graph), np.sort(rows), iteration)


def node_types(table: KernelTable, rows: Index) -> Int64:
    """The place in TYPES of each of some rows."""
    plain = [name.removesuffix(RECOMPUTE_SUFFIX) in _SEND_RECV for name in table.operations]
    pairwise = np.array([*plain, False])[table.operation[rows]]
    of_kernel = np.where(table.category[rows] == Category.KERNEL, 0, TYPES.index("memory"))
    of_comm = np.where(pairwise, TYPES.index("send/receive"), TYPES.index("collective"))
    return np.where(table.kind[rows] == Kind.COMM, of_comm, of_kernel)


def _together(run: Run, view: View, scope: _ScopeGraph) -> ViewResult:
    table, path, by = run.table, scope.path, view.by or "operation"
    on_path = scope.on_path
    rows, chosen = scope.rows, np.arange(len(on_path))
    if by == "message":
        rows = rows[table.kind[rows] == Kind.COMM]
        if not len(rows):
            raise NothingToShow("the scope has no communication kernels")
        chosen = np.flatnonzero(table.kind[on_path] == Kind.COMM)
    codes, label = _codes(table, rows, by)
    # The rows of a scope come in the order of the table.
    of_path = codes[np.searchsorted(rows, on_path[chosen])]
    codes, nodes = grouped(Groups.single(table, rows), codes)
    begins = nodes.rows[nodes.first]
    labels = [label(*each) for each in zip(codes.tolist(), begins.tolist(), strict=True)]
    place = np.searchsorted(codes, of_path)

    def summed(values: Int64) -> Values:
        return Values(sums_of(values[chosen], place, len(codes)))

    work = summed(path.work_ns)
    total = max(int(path.work_ns.sum()), 1)
    own: Own = [
        (ON_PATH, work),
        (OF_PATH, Values(100.0 * work.numbers / total)),
        (NODES, summed(np.ones(len(on_path), np.int64))),
        (GAP, summed(path.gap_ns.sum(axis=0))),
        *((GAP_PARTS[name], summed(path.gap_ns[k])) for k, name in enumerate(GAPS)),
    ]
    if by == "message":
        size, groups = table.bytes[begins], table.group[begins].tolist()
        kinds = [table.text_of("operation", code) for code in table.operation[begins].tolist()]
        names = [table.names[code] if code >= 0 else None for code in groups]
        own += [
            (collective_figures.KIND, worded(kinds)),
            (collective_figures.GROUP, worded(names)),
            (collective_figures.SIZE, Values(size, size < 0)),
        ]
    parts = [metric.name for metric, values in own[4:9] if values.numbers.any()]
    shown: tuple[str, ...] = (ON_PATH.name, OF_PATH.name, NODES.name, "kernel_ns", "activities")
    shown += (*(("bytes",) if by in ("type", "message") else ()), GAP.name, *parts)

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
        opens=opens,
        sort=f"-{'kernel_ns' if by == 'message' else ON_PATH.name}",
        shown=shown,
    )


def _codes(table: KernelTable, rows: Index, by: str) -> tuple[Int64, Callable[[int, int], str]]:
    if by == "type":
        return node_types(table, rows), lambda code, _: TYPES[code]
    if by == "message":
        codes = combined((table.operation[rows], table.group[rows], table.bytes[rows]))
        return codes.astype(np.int64), lambda _, row: _message(table, row)
    return table.column(by)[rows].astype(np.int64), lambda code, _: table.text_of(by, code)


def _message(table: KernelTable, row: int) -> str:
    parts = [table.text_of("operation", int(table.operation[row]))]
    size, group = int(table.bytes[row]), int(table.group[row])
    parts += [f"{size} B"] if size >= 0 else []
    parts += [table.names[group]] if group >= 0 else []
    return " ".join(parts)


def _one_by_one(run: Run, view: View, scope: _ScopeGraph) -> ViewResult:
    table, path, rows = run.table, scope.path, scope.on_path
    nodes = Groups(table, rows, np.arange(len(rows)))
    operations = [table.text_of("operation", code) for code in table.operation[rows].tolist()]
    labels = [f"{number} {name}" for number, name in enumerate(operations)]
    evidence = [Evidence(each).text if each >= 0 else None for each in path.evidence.tolist()]
    gpu = table.gpu[rows].astype(np.int64)
    own: Own = [
        (METRICS["start_ns"], Values(table.start_ns[rows] - run.origin_ns)),
        (ON_PATH, Values(path.work_ns)),
        (GAP, Values(path.gap_ns.sum(axis=0))),
        *((GAP_PARTS[name], Values(path.gap_ns[k])) for k, name in enumerate(GAPS)),
        (ON_GPU, Values(gpu)),
        (TYPE, worded([TYPES[code] for code in node_types(table, rows).tolist()])),
        (KERNEL, worded([table.names[code] for code in table.kernel[rows].tolist()])),
        (EVIDENCE, worded(evidence)),
    ]
    first = (ON_PATH, GAP, ON_GPU, METRICS["start_ns"], TYPE, EVIDENCE, KERNEL)
    shown = [each.name for each in (*first, METRICS["kernel_ns"], *GAP_PARTS.values())]
    return table_view(
        view,
        Partition(NODE, labels, nodes, Groups.single(table, rows)),
        own,
        opens=lambda row: activity_view(run, view, int(rows[row])),
        shown=shown,
    )


def _parts(table: KernelTable, scope: _ScopeGraph) -> dict[str, int]:
    """The times of the path: its work by type, then what is between its activities."""
    types = node_types(table, scope.on_path)
    times = [*sums_of(scope.path.work_ns, types, len(TYPES)), *scope.path.gap_ns.sum(axis=1)]
    names = (*TYPES, *(GAP_PARTS[name].title for name in GAPS))
    return {name: int(ns) for name, ns in zip(names, times, strict=True) if ns}


def _headline(run: Run, scope: _ScopeGraph) -> tuple[str, ...]:
    graph, path = scope.graph, scope.path
    work, gaps = int(path.work_ns.sum()), int(path.gap_ns.sum())
    parts = [f"{name} {time_text(ns)}" for name, ns in _parts(run.table, scope).items()]
    free = int(graph.work_ns.sum()) / max(path.length_ns, 1)
    counts = counts_of(node_types(run.table, scope.rows), len(TYPES)).tolist()
    mix = [f"{n} {name}" for n, name in zip(counts, TYPES, strict=True) if n]
    lead = graph.edges.lead_ns
    where = "between them" if lead is None else "before and between them"
    return (
        f"longest path: {len(path.places)} of {len(scope.rows)} activities, {time_text(work)} of "
        f"work, {time_text(gaps)} {where}; on average {free:.2f} could run at "
        "a time",
        f"path: {', '.join(parts)}",
        f"nodes: {', '.join(mix)}",
    )


def _notes(scope: _ScopeGraph) -> tuple[str, ...]:
    found = scope.graph.edges
    edges = counts_of(found.evidence, len(Evidence)).tolist()
    shared = counts_of(scope.graph.task)
    parts = [f"{n} {each.text}" for each, n in zip(Evidence, edges, strict=True) if n]
    if members := int(shared[shared > 1].sum()):
        parts.append(f"{members} kernels of collectives that wait for each other")
    if found.lead_ns is not None and (led := int(np.count_nonzero(found.lead_ns))):
        parts.append(f"{led} on work of the host, stated by the trace")
    notes = [f"dependencies: {'; '.join(parts)}" if parts else "no activity depends on another"]
    if found.contradicted:
        notes.append(
            f"{found.contradicted} dependencies of the trace are left out: they lead to activities "
            "that start no earlier"
        )
    if edges[Evidence.HOST] or edges[Evidence.UNKNOWN]:
        notes.append(
            "dependencies on other streams without a queued launch may be coincidence: more "
            "activities may be free to run than the figures say"
        )
    if scope.iteration is not None:
        notes.append(
            f"the scope has too many activities: this is the graph of iteration {scope.iteration}"
        )
    return tuple(notes)


def _charts(run: Run, scope: _ScopeGraph) -> tuple[Chart, ...]:
    charts: list[Chart] = []
    if parts := _parts(run.table, scope):
        series = tuple(Series(name, np.array([ns / 1e6])) for name, ns in parts.items())
        charts.append(Composition("the longest path", "ms", ("path",), series))
    if length := float(scope.path.length_ns):
        edges = np.linspace(0.0, length, _BINS + 1)
        free = Queue.of(scope.path.from_ns, scope.path.to_ns).depths(edges)
        # An axis would magnify the rounding of a serial run; the headline has its figure.
        if np.ptp(free) >= _LEAST_RANGE:
            title = "activities that could run at a time"
            middles = (edges[1:] + edges[:-1]) / 2e6
            lines = {"activities": free}
            charts.append(LineChart.over(title, "", "work on the path", "ms", middles, lines))
    return tuple(charts)
