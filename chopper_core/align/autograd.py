"""From backward to forward: which forward operator a backward operator belongs to."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from chopper_core.align.host import Host
from chopper_core.align.intervals import NOWHERE, Intervals, Points, union
from chopper_core.sources.trace import HostCategory

Index = NDArray[np.intp]

_REENTRANT_FRAME = re.compile(r": backward$")
_EVALUATE = re.compile(r"^autograd::engine::evaluate_function")


class Backward(Struct, frozen=True):
    """The backward operators with a known forward, and the ranges that recompute."""

    linked: Intervals
    """Backward operators; the value is a position in `forward`."""
    forward: Points
    """The begin of the forward operator of each."""
    recompute: Intervals
    """Ranges in backward that run forward work again."""

    def forward_around(self, points: Points) -> Points:
        """The forward point of the linked backward operator around each point, else nowhere."""
        return self.forward.take(self.linked.innermost(points))

    def forward_of(self, points: Points) -> Points:
        """The forward point of the work of a linked backward operator at each point, else nowhere.

        What is recomputed inside a backward operator is not that operator's work.
        """
        again = replace(self.recompute, value=np.full(len(self.recompute), NOWHERE, np.intp))
        return self.forward.take(union(self.linked, again).innermost(points))


def link_backward(host: Host) -> Backward:
    """Link backward operators to forward ones: by flow, else by sequence number.

    Autograd numbers operators per forward thread, so the key is (forward thread, number). The
    profiler's own number of a thread is translated by the flows that both ends have; without
    any, the only thread with forward operators is taken.
    """
    ranges = host.ranges
    operators = host.operators
    backward = operators[(ranges.sequence[operators] >= 0) & (ranges.forward_thread[operators] > 0)]
    forward = operators[(ranges.sequence[operators] >= 0) & (ranges.forward_thread[operators] <= 0)]
    by_flow, threads = _by_flow(host, backward)
    points = _by_sequence(host, backward, forward, threads)
    linked = {key: point for key, point in points.items() if key not in by_flow} | by_flow

    keys = zip(
        ranges.forward_thread[backward].tolist(), ranges.sequence[backward].tolist(), strict=True
    )
    found = [linked.get(key) for key in keys]
    with_forward = np.array([point is not None for point in found], np.bool_)
    known = [point for point in found if point is not None]
    return Backward(
        linked=host.intervals(backward[with_forward], np.arange(len(known))),
        forward=Points(
            np.array([thread for thread, _ in known], np.int32),
            np.array([time for _, time in known], np.int64),
        ),
        recompute=_recomputing(host, forward),
    )


Key = tuple[int, int]
Point = tuple[int, int]


def _by_flow(host: Host, backward: Index) -> tuple[dict[Key, Point], dict[int, int]]:
    """Forward points by (forward thread, sequence number), and the threads behind the numbers."""
    flows, ranges = host.trace.flows, host.ranges
    starts = {
        int(number): (int(thread), int(time))
        for number, thread, time in zip(
            flows.id[flows.is_start],
            flows.thread[flows.is_start],
            flows.time_ns[flows.is_start],
            strict=True,
        )
    }
    operator_at = {
        (thread, time): row
        for thread, time, row in zip(
            ranges.thread[backward].tolist(),
            ranges.start_ns[backward].tolist(),
            backward.tolist(),
            strict=True,
        )
    }
    linked: dict[Key, Point] = {}
    threads: dict[int, int] = {}
    ends = ~flows.is_start
    for number, thread, time in zip(
        flows.id[ends].tolist(),
        flows.thread[ends].tolist(),
        flows.time_ns[ends].tolist(),
        strict=True,
    ):
        row, start = operator_at.get((thread, time)), starts.get(number)
        if row is None or start is None:
            continue
        forward_thread = int(ranges.forward_thread[row])
        linked[forward_thread, int(ranges.sequence[row])] = start
        threads.setdefault(forward_thread, start[0])
    return linked, threads


def _by_sequence(
    host: Host, backward: Index, forward: Index, threads: dict[int, int]
) -> dict[Key, Point]:
    """Forward points by sequence number: the last forward operator of that number and thread."""
    ranges = host.ranges
    forward_threads = np.unique(ranges.thread[forward])
    order = forward[np.argsort(ranges.start_ns[forward], kind="stable")]
    last = {
        (thread, number): time
        for thread, number, time in zip(
            ranges.thread[order].tolist(),
            ranges.sequence[order].tolist(),
            ranges.start_ns[order].tolist(),
            strict=True,
        )
    }
    only = int(forward_threads[0]) if len(forward_threads) == 1 else None
    points: dict[Key, Point] = {}
    for number, sequence, time in zip(
        ranges.forward_thread[backward].tolist(),
        ranges.sequence[backward].tolist(),
        ranges.start_ns[backward].tolist(),
        strict=True,
    ):
        thread = threads.get(number, only)
        begun = last.get((thread, sequence)) if thread is not None else None
        if thread is not None and begun is not None and begun <= time:
            points[number, sequence] = (thread, begun)
    return points


def _recomputing(host: Host, forward: Index) -> Intervals:
    """Ranges that recompute: frames that say so, and forward operators inside autograd's nodes.

    Inside a backward node gradients are off and operators carry no number of their own; only
    work that is done again under enabled gradients does.
    """
    ranges = host.ranges
    evaluates = np.flatnonzero(host.is_operator & host.named(_EVALUATE))
    inside = host.intervals(evaluates).innermost(host.starts(forward)) != NOWHERE
    # The frame of a reentrant checkpoint's backward holds the real backward too.
    frames = np.flatnonzero(
        (ranges.category == HostCategory.RECOMPUTE) & ~host.named(_REENTRANT_FRAME)
    )
    return host.intervals(np.union1d(frames, forward[inside]))
