"""The longest path through the steps of a scope: its activities, their work and gaps."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.columns import Values
from chopper_core.graph.build import build_graph, step_graph
from chopper_core.graph.path import GAPS, longest_path, work_alone
from chopper_core.graph.slack import MAX_ROWS
from chopper_core.graph.step_graph import Replayed, StepGraph, replay
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, activity_rows
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int32, Int64
from chopper_core.util.grouping import counts_of, distinct, evenly, sums_of

GAP_COLUMNS: Final = tuple(f"gap_{name}_ns" for name in GAPS)
_MOST_ROWS: Final = 1 << 19
"""Of a step with too many activities, as many GPUs are in the graph as have so many."""


class ScopePath(Struct, frozen=True, eq=False):
    """The graph of a run, and what its longest path has of a scope."""

    graph: StepGraph
    rows: Index
    """The activities of the scope, in the order of the table."""
    iteration: int | None
    """The step that stands for a scope with too many activities."""
    gpus: tuple[int, ...]
    """The GPUs that stand for all of a step with too many activities."""
    on_path: Index
    """The activities of the scope on the path, in the order of time; the next three along these."""
    work_ns: Int64
    gap_ns: Int64
    """GAPS x activities."""
    evidence: Int64
    alone_ns: tuple[Int64, Int64]
    """When the scope's activities begin and end if nothing but what they wait for holds them up."""

    @property
    def path_ns(self) -> int:
        return int(self.work_ns.sum() + self.gap_ns.sum())

    @property
    def alone_span_ns(self) -> int:
        return int(self.alone_ns[1].max(initial=0))

    def figures(self, nodes: Groups) -> dict[str, Values]:
        """What groups of activities have of the path, by column."""
        number, size = nodes.numbers_of(self.on_path), len(nodes)
        inside = number >= 0

        def summed(values: Int64) -> Int64:
            return sums_of(values[inside], number[inside], size)

        work, gaps = summed(self.work_ns), summed(self.gap_ns.sum(axis=0))
        return {
            "path_ns": Values(work),
            "path_pct": Values(100.0 * (work + gaps) / max(self.path_ns, 1)),
            "path_activities": Values(counts_of(number[inside], size)),
            "path_gap_ns": Values(gaps),
            **{
                name: Values(summed(gap))
                for name, gap in zip(GAP_COLUMNS, self.gap_ns, strict=True)
            },
        }


def scope_path(run: Run, view: View) -> ScopePath:
    """The longest path of a scope's steps, found once."""
    key = ("graph", view.order, view.path, run.uncounted(view))
    return run.memo(key, lambda: _scope_path(run, view))


def _scope_path(run: Run, view: View) -> ScopePath:
    node, codes, iteration = run.tree_of(view).node(view.path), run.table.iteration, None
    gpus: tuple[int, ...] = ()
    if len(run.table) <= MAX_ROWS:
        rows, graph = activity_rows(run.table, np.sort(node.rows)), step_graph(run)
        # What runs outside of steps is on the path of none.
        in_steps = codes[rows] != NO_LABEL
        rows = rows[in_steps] if in_steps.any() else rows
        replayed, alone = replay(graph), work_alone(graph)
    else:
        steps = run.tree_of(view).split(view.path, ("iteration",)).codes("iteration").tolist()
        there = [code for code in steps if code != NO_LABEL]
        whole = [code for code in there if code not in run.cut_iterations]
        iteration = next(iter(whole or there), None)
        every = np.sort(node.rows) if iteration is None else np.flatnonzero(codes == iteration)
        every = activity_rows(run.table, every)
        rows = every[node.holds(every)]
        gpus = _fitting(run.table.gpu[every], run.table.gpu[rows])
        if gpus:
            every, rows = (own[np.isin(run.table.gpu[own], gpus)] for own in (every, rows))

        def made() -> tuple[StepGraph, Replayed, Replayed]:
            graph = build_graph(run, every)
            return graph, replay(graph), work_alone(graph)

        # All scopes of a step share its graph.
        whose = (view.order, view.path) if iteration is None else ()
        graph, replayed, alone = run.memo(("graph of a step", iteration, gpus, whose), made)
    own = graph.activities[np.isin(graph.iteration[graph.activities], distinct(codes[rows]))]
    path = longest_path(graph, replayed, own)
    inside = np.isin(path.rows, rows)
    places = graph.activities
    places = places[np.searchsorted(graph.row[places], rows)]
    first = alone.begin_ns[places].min()
    return ScopePath(
        graph=graph,
        rows=rows,
        iteration=iteration,
        gpus=gpus,
        on_path=path.rows[inside],
        work_ns=path.work_ns[inside],
        gap_ns=path.gap_ns[:, inside],
        evidence=path.evidence[inside],
        alone_ns=(alone.begin_ns[places] - first, alone.end_ns[places] - first),
    )


def _fitting(whose: Int32, of_scope: Int32) -> tuple[int, ...]:
    """The GPUs of as many activities as a graph may have, where these are too many: evenly chosen
    ones of a scope, and of the others; () where all fit."""
    gpus, first = distinct(whose), distinct(of_scope)
    fitting = max(_MOST_ROWS * len(gpus) // len(whose), 1)
    if len(whose) <= MAX_ROWS or fitting >= len(gpus):
        return ()
    chosen = list(evenly(first.tolist(), fitting))
    others = gpus[~np.isin(gpus, first)].tolist()
    return tuple(sorted([*chosen, *evenly(others, fitting - len(chosen))]))
