"""The metric of the step graph, which registers itself where it is imported."""

from __future__ import annotations

import numpy as np

from chopper_core.columns.metric import Reduces, Scope, Values, absent, metric
from chopper_core.model.units import Unit


@metric(
    "slack_ns",
    Unit.NS,
    "slack",
    reduces=Reduces.MIN,
    source="replay (docs/graph.md)",
    missing="the run has no times, or more than 1,048,576 activities",
)
def slack(scope: Scope) -> Values:
    """How much longer an activity could take before its step ends later, in a replay of all
    GPUs along what each activity waits for; of a row, the least of its activities."""
    # Loaded here: most screens show no slack.
    from chopper_core.graph.slack import row_slack

    found = None if scope.run is None else row_slack(scope.run)
    if found is None:
        return absent(len(scope.nodes), 0)
    return Values(np.minimum.reduceat(found[scope.nodes.selection], scope.nodes.first))
