"""Slack: how much longer each activity could take before its step takes longer."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.graph.build import step_graph
from chopper_core.graph.step_graph import NodeKind, StepGraph, latest_ends, replay
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import maxima_of

MAX_ROWS: Final = 1 << 20
"""The activities of the largest run with one graph."""


def slack_of(graph: StepGraph) -> Int64:
    """How much later each node could end, in a replay of the graph, before a step ends later.

    A step ends with the last of its activities on any GPU; what has no step must not
    delay the end of all.
    """
    found = replay(graph)
    end = found.end_ns
    due = np.full(len(graph), end.max(initial=0))
    own = np.flatnonzero((graph.kind == NodeKind.ACTIVITY) & (graph.iteration != NO_LABEL))
    if len(own):
        iteration = graph.iteration[own]
        due[own] = maxima_of(end[own], iteration, int(iteration.max()) + 1)[iteration]
    return latest_ends(graph, found, due) - end


def row_slack(run: Run) -> Int64 | None:
    """The slack of each row of a run's table, 0 of time outside steps; None without times, or for
    too many rows."""

    def found() -> Int64 | None:
        if not run.table.has_times or run.is_sampled_only or len(run.table) > MAX_ROWS:
            return None
        graph = step_graph(run)
        slack = np.zeros(len(run.table), np.int64)
        slack[graph.row[graph.activities]] = slack_of(graph)[graph.activities]
        return slack

    return run.memo(("slack",), found)
