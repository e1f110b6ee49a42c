"""Links from backward operators to their forward operators."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.host import BACKWARD_NODE, Host
from chopper_core.align.intervals import NOWHERE, Intervals, Points, union
from chopper_core.sources.trace import HostCategory
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import distinct, last_equal, ranked

_REENTRANT_FRAME = re.compile(r": backward$")


class Backward(Struct, frozen=True):
    """The backward operators with a known forward, and the ranges that recompute."""

    linked: Intervals
    """Backward operators; the value is a position in `forward`."""
    forward: Points
    """The start of the forward operator of each."""
    recompute: Intervals
    """Ranges in backward that recompute forward work."""

    def forward_around(self, points: Points) -> Points:
        """The forward point of the linked backward operator around each point, else nowhere."""
        return self.forward.take(self.linked.innermost(points))

    def forward_of(self, points: Points) -> Points:
        """The forward point of the work of a linked backward operator at each point, else nowhere.

        Work recomputed inside a backward operator does not belong to that operator.
        """
        again = replace(self.recompute, value=np.full(len(self.recompute), NOWHERE, np.intp))
        return self.forward.take(union(self.linked, again).innermost(points))


def link_backward(host: Host) -> Backward:
    """Link backward operators to forward ones: by flow, else by sequence number.

    Autograd numbers operators per forward thread, so the key is (forward thread, number). The
    profiler's own thread numbers are translated by flows with both ends; without any, the only
    thread with forward operators is used.
    """
    ranges, flows = host.ranges, host.trace.flows
    operators = host.operators[ranges.sequence[host.operators] >= 0]
    numbers, number = ranked(ranges.sequence[operators])
    is_backward = ranges.forward_thread[operators] > 0
    backward, forward = operators[is_backward], operators[~is_backward]
    threads, thread = ranked(ranges.forward_thread[backward])
    keys, key = ranked(thread * len(numbers) + number[is_backward])
    ends, starts = _by_flow(host, backward)

    forward_threads = distinct(ranges.thread[forward])
    only = forward_threads[0] if len(forward_threads) == 1 else NOWHERE
    thread_of = np.full(len(threads), only, np.int64)
    # Where flows disagree, the first gives a number's thread, the last a key's point.
    thread_of[thread[ends[::-1]]] = flows.thread[starts[::-1]]

    by_start = np.argsort(ranges.start_ns[forward], kind="stable")
    latest = forward[by_start]
    begun = last_equal(
        ranges.thread[latest].astype(np.int64) * len(numbers) + number[~is_backward][by_start],
        np.where(
            thread_of[thread] == NOWHERE,
            NOWHERE,
            thread_of[thread] * len(numbers) + number[is_backward],
        ),
    )
    known = np.flatnonzero(begun != NOWHERE)
    known = known[ranges.start_ns[latest[begun[known]]] <= ranges.start_ns[backward[known]]]
    begun = latest[begun[known]]
    point_thread = np.full(len(keys), NOWHERE, np.int32)
    point_ns = np.zeros(len(keys), np.int64)
    point_thread[key[known]], point_ns[key[known]] = ranges.thread[begun], ranges.start_ns[begun]
    point_thread[key[ends]], point_ns[key[ends]] = flows.thread[starts], flows.time_ns[starts]

    linked = np.flatnonzero(point_thread[key] != NOWHERE)
    return Backward(
        linked=host.intervals(backward[linked], np.arange(len(linked))),
        forward=Points(point_thread[key[linked]], point_ns[key[linked]]),
        recompute=_recomputing(host, forward),
    )


def _by_flow(host: Host, backward: Index) -> tuple[Index, Index]:
    """Positions in `backward` where flows end, in file order, and the starts of the flows."""
    flows, ranges = host.trace.flows, host.ranges
    starts, ends = np.flatnonzero(flows.is_start), np.flatnonzero(~flows.is_start)
    time_ns = np.concatenate([ranges.start_ns[backward], flows.time_ns[ends]])
    thread = np.concatenate([ranges.thread[backward], flows.thread[ends]]).astype(np.int64)
    if not len(time_ns):
        return starts[:0], starts[:0]
    at = thread * (np.ptp(time_ns) + 1) + (time_ns - time_ns.min())
    operator = last_equal(at[: len(backward)], at[len(backward) :])
    start = last_equal(flows.id[starts], flows.id[ends])
    both = np.flatnonzero((operator >= 0) & (start >= 0))
    return operator[both], starts[start[both]]


def _recomputing(host: Host, forward: Index) -> Intervals:
    """Ranges that recompute: recompute frames, and forward operators inside autograd nodes.

    Inside a backward node gradients are disabled and operators have no sequence number; only work
    recomputed with gradients enabled has one.
    """
    ranges = host.ranges
    evaluates = np.flatnonzero(host.is_operator & host.named(BACKWARD_NODE))
    inside = host.intervals(evaluates).innermost(host.starts(forward)) != NOWHERE
    # The backward frame of a reentrant checkpoint also contains the real backward.
    frames = np.flatnonzero(
        (ranges.category == HostCategory.RECOMPUTE) & ~host.named(_REENTRANT_FRAME)
    )
    return host.intervals(distinct(np.concatenate([frames, forward[inside]])))
