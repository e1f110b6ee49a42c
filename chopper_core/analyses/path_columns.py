"""Columns of the longest path: the work and the gaps that rows of activities have on it."""

from __future__ import annotations

from chopper_core.columns.metric import Scope, Values, absent, declare
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError


def _figure(name: str, scope: Scope) -> Values:
    # Loaded here: most screens have no graph.
    from chopper_core.analyses.scope_path import scope_path

    nodes, run = scope.nodes, scope.run
    origin = scope.parent.origin or nodes.origin
    if run is None or origin is None or not run.table.has_times:
        return absent(len(nodes), 0)
    key = "path", id(scope.parent)
    if key not in nodes.memo:
        order, _, steps, *_ = origin
        try:
            path = scope_path(run, View(run.name, steps, order))
            found = None if path.iteration is not None else path.figures(nodes)
        except ChopperError:
            found = None
        # The parent stays referred to, so that no other gets its id.
        nodes.memo[key] = found, scope.parent
    figures: dict[str, Values] | None = nodes.memo[key][0]
    return absent(len(nodes), 0) if figures is None else figures[name]


declare(
    """
    path_ns | ns | on path | sum over GPUs
        Work on the longest path: the chain of activities and work of the hosts that ends with the
        last activity of the step, each of which begins when the one before it on the path has
        ended.
        A collective works from the arrival of its last member.
    path_pct | % | of path
        Share of the path's work and gaps.
    path_activities | | activities on path | sum over GPUs
        Activities on the longest path.
    path_gap_ns | ns | gap before | sum over GPUs
        Time on the path between the activity before it and the beginning of its work: its parts are
        the host's work, launch latency, and dispatch.
    gap_host_ns | ns | host | sum over GPUs
        Work of the host on the longest path before the activity.
    gap_latency_ns | ns | launch latency | sum over GPUs
        The typical time from a launch to its activity, where the path comes from the launch.
    gap_dispatch_ns | ns | dispatch | sum over GPUs
        The typical time from the end of an activity to the one that waited for it, where the path
        comes from there.
    """,
    _figure,
    source="replay (docs/graph.md)",
    missing="the run has no times, or more than 1,048,576 activities",
)
