"""Columns of launches: waits under communication, the least latency, the largest cause of idle."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.columns import METRICS, Scope, Values, worded
from chopper_core.columns.metric import Reduces, absent, metric
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import SpansOfGpus
from chopper_core.model.table import NO_TIME, KernelTable, Kind, Selection
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import minima_of, sums_of

NEVER: Final = np.iinfo(np.int64).max
CAUSES: Final = {
    "idle_host_ns": "host late",
    "idle_latency_ns": "launch latency",
    "idle_queued_ns": "waits in queue",
    "idle_unknown_ns": "no launch record",
    "exposed_comm_ns": "communication",
    "exposed_copy_ns": "copies",
}
"""Causes of time without compute; the first four are idle time."""
_UNLINKED: Final = "no activity of the row has a launch record"


def least_ns(nodes: Groups) -> Int64:
    """The shortest time from a launch call to a start; `NEVER` where there is none."""
    if "least latency" not in nodes.memo:
        least = np.full(len(nodes), NEVER, np.int64)
        for rows, node in nodes.pieces():
            waited = waited_ns(nodes.table, rows)
            least = np.minimum(least, minima_of(waited, node, len(nodes), NEVER))
        nodes.memo["least latency"] = least
    found: Int64 = nodes.memo["least latency"]
    return found


def waited_ns(table: KernelTable, rows: Selection) -> Int64:
    """How long after its launch call each starts; `NEVER` without such a call."""
    launch = table.launch_ns[rows]
    return np.where(launch == NO_TIME, NEVER, table.start_ns[rows] - launch)


def _during_comm(run: Run, rows: Selection) -> Int64:
    """How long communication ran in the call overhead of each activity."""
    table = run.table
    gpu, start, call = table.gpu[rows], table.start_ns[rows], table.call_overhead_ns[rows]
    # Where the GPU stood idle for as long before the start, nothing ran next to the call.
    own = np.flatnonzero(call > table.idle_ns[rows])
    wait = np.zeros(len(gpu), np.int64)
    running = run.memo(("communication",), lambda: _communication(table))
    wait[own] = running.within(gpu[own], start[own] - call[own], start[own])
    return wait


def _communication(table: KernelTable) -> SpansOfGpus:
    comm = np.flatnonzero(table.kind == Kind.COMM)
    return SpansOfGpus.running(table.gpu[comm], table.start_ns[comm], table.duration_ns[comm])


@metric("comm_wait_ns", Unit.NS, "comm wait", missing=_UNLINKED)
def comm_wait(scope: Scope) -> Values:
    """The part of call_overhead_ns during which communication ran: launched, and waiting for it or
    running next to it."""
    nodes, run = scope.nodes, scope.run
    if run is None:
        return absent(len(nodes), 0)
    if "comm wait" not in nodes.memo:
        wait = np.zeros(len(nodes), np.int64)
        for rows, node in nodes.pieces():
            wait += sums_of(_during_comm(run, rows), node, len(nodes))
        nodes.memo["comm wait"] = Values(wait, least_ns(nodes) == NEVER)
    found: Values = nodes.memo["comm wait"]
    return found


@metric(
    "least_latency_ns", Unit.NS, "least lat.", reduces=Reduces.MIN, missing=_UNLINKED, signed=True
)
def least_latency(scope: Scope) -> Values:
    """The shortest time from a launch call to the start. Below 0 the clocks of host and GPU
    disagree by at least as much."""
    least = least_ns(scope.nodes)
    return Values(np.where(least == NEVER, 0, least), least == NEVER)


@metric(
    "main_cause",
    Unit.NONE,
    "main cause",
    reduces=Reduces.NONE,
    missing="the row is compute that never had to wait",
    has_words=True,
)
def main_cause(scope: Scope) -> Values:
    """The largest cause of time without compute: host late (idle_host_ns), launch latency
    (idle_latency_ns), waits in queue (idle_queued_ns), no launch record (idle_unknown_ns), copies
    (exposed_copy_ns), and communication: that the row is (exposed_comm_ns) or waits for
    (comm_wait_ns)."""
    sizes = {name: METRICS[name].compute(scope).numbers for name in CAUSES}
    waits = METRICS["comm_wait_ns"].compute(scope).numbers
    sizes["exposed_comm_ns"] = np.maximum(sizes["exposed_comm_ns"], waits)
    words = list(CAUSES.values())
    by_row = np.stack(list(sizes.values()), axis=1)
    return worded([words[row.argmax()] if row.any() else None for row in by_row])
