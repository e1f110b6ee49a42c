"""The hosts of a step graph: launches, calls that block, and ends of steps, in order of time.

The launching threads of a GPU count as one sequence: autograd's thread launches while the main
thread waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.dependencies import STAMP_NS
from chopper_core.graph.step_graph import minimum_to_end
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostKind, HostLane, HostSteps, axis_of
from chopper_core.model.table import NO_LABEL, NO_TIME
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    first_equal,
    maxima_of,
    minima_of,
    nth_of,
    places_by,
    quantiles_of,
    ranked,
    run_mask,
    run_starts,
    stable_order,
)
from chopper_core.util.patterns import late

_LONGEST_NS: Final = 1 << 53
"""Nothing waits longer in a queue than 104 days."""
_NEVER: Final = np.iinfo(np.int64).max
_FOLLOWS_NS: Final = 20_000
"""A launch this soon after the end of an activity, or before it, may have waited for it."""
_LONG_NS: Final = 4 * _FOLLOWS_NS
"""The host's time before a launch that chance seldom ends that close to an activity."""
_FOLLOWED: Final = 0.8
"""The part of such time that ends so close where a host waits in calls that aren't traced."""
_MIN_FOLLOWED: Final = 4
"""The launches that show it: fewer may be chance."""
_BLOCKS: Final = late(r"Synchronize|Memcpy|^(?:cuda|hip)Free$")
"""Calls that may wait for the GPU."""
_COPIES: Final = late(r"Memcpy")
_AWAITS_ALL: Final = late(r"DeviceSynchronize|CtxSynchronize|^(?:cuda|hip)Free$")


StatedCalls = Mapping[tuple[int, int], list[int]]
"""GPU and begin of a call that waits → the places of the activities that it waits for, where the
trace states them."""
NOTHING_STATED: Final[StatedCalls] = {}


class TimedRows(Struct, frozen=True, eq=False):
    """The rows of a graph in `time_order`."""

    rows: Index
    gpu: Int32
    stream: Int64
    kind: Int8
    start: Int64
    end: Int64
    """Its end, or the start of the next of its stream if that is some stamps earlier."""
    launch: Int64
    """NO_TIME without a launch record, and where the clocks put the launch after the start."""

    queued: Int64
    """When each was launched; one without a record, at the launch before it in its stream."""


def queue_times(gpu: Int32, stream: Int64, start: Int64, launch: Int64) -> Int64:
    """When rows in `time_order` were launched at least; on a GPU without launches, their starts."""
    if not len(gpu):
        return launch
    known = launch != NO_TIME
    lowest = minima_of(launch[known], gpu[known], int(gpu.max(initial=0)) + 1, _NEVER)
    found = np.where(known, launch, lowest[gpu])
    found = np.where(found == _NEVER, start, found)
    found = np.clip(found, start - _LONGEST_NS, start + _LONGEST_NS)
    if known.all():
        return found
    order = np.lexsort((start, stream, gpu))
    # Clocks of GPUs may be years from each other: sums of times would be beyond 64 bits.
    times, place = ranked(found[order])
    offset = np.cumsum(run_mask(gpu[order], stream[order])) * len(times)
    latest = times[np.maximum.accumulate(place + offset) - offset]
    found[order] = np.where(known[order], found[order], latest)
    return found


def with_lost_launches(run: Run, timed: TimedRows) -> TimedRows:
    """Rows whose launch record is lost, launched as the same kernels elsewhere.

    Those are at the same place of other complete steps and GPUs. What is launched right before
    and after them there, and how long before and after, is the same here.
    """
    table, known = run.table, timed.launch != NO_TIME
    if known.all() or known.sum() < 2:
        return timed
    gpu, kernel, launch = timed.gpu, table.kernel[timed.rows], timed.launch.copy()
    iteration = table.iteration[timed.rows]
    place = combined([timed.stream, kernel, nth_of(timed.stream, kernel, gpu, iteration)])[1]
    count, spot = int(place.max()) + 1, combined([gpu, iteration])[1]
    order = np.lexsort((launch, gpu))
    order = order[known[order]]
    order = np.stack([order[:-1], order[1:]])[:, ~run_mask(gpu[order])[1:]]
    if not order.size:
        return timed
    is_cut = np.zeros(len(known), np.bool_)
    for one, own in places_by(gpu).items():
        is_cut[own] = np.isin(iteration[own], list(run.partial_iterations.get(one, ())))
    lost, key = np.flatnonzero(~known & ~is_cut), spot * count + place
    found, least = np.full(len(lost), NO_TIME), np.full(len(lost), _NEVER)
    for near, own in (order, order[::-1]):
        pairs, which = combined([place[own], place[near]])
        often = counts_of(which, len(pairs))
        gap = quantiles_of((launch[own] - launch[near]) * 1.0, which, len(pairs), (0.5,))[:, 0]
        # The most frequent neighbour: the real one may be lost elsewhere.
        best = np.full(count, -1)
        by_often = stable_order(often)
        best[pairs[by_often, 0]] = by_often
        pair = best[place[lost]]
        there = first_equal(key, spot[lost] * count + pairs[pair, 1])
        gap = gap[pair]
        better = (pair >= 0) & (there >= 0) & (np.abs(gap) < least)
        better &= known[there]
        found[better] = (launch[there] + np.rint(gap).astype(np.int64))[better]
        least[better] = np.abs(gap[better])
    # It starts after its launch, and others of its stream are launched before it and after it.
    latest = np.where(known, launch, timed.start)
    lane = np.lexsort((timed.start, timed.stream, gpu))
    lanes = np.cumsum(run_mask(gpu[lane], timed.stream[lane]), dtype=np.int64)
    latest[lane] = minimum_to_end(latest[lane], lanes)
    chosen = (found != NO_TIME) & (found >= timed.queued[lost]) & (found <= latest[lost])
    launch[lost[chosen]] = found[chosen]
    queued = queue_times(gpu, timed.stream, timed.start, launch)
    return replace(timed, launch=launch, queued=queued)


class HostMoment:
    """What happens on a host at the end of a node's work, in this order at one moment."""

    LAUNCH, CALL, RETURN, STEP_END, STEP_BEGIN = range(5)


class HostNodes(Struct, frozen=True, eq=False):
    """Moments of the hosts, GPU by GPU in order of time."""

    gpu: Int32
    time: Int64
    moment: Int8
    """Of `HostMoment`."""
    iteration: Int32
    """The step that the host leaves at the end of a step, or enters at its begin, else -1."""
    name: Int32
    """The name of a call that returns, a code of `HostLane`, else -1."""
    waited: Mask
    """Returns of calls that an activity held up: they have no work of their own."""
    returns: Index
    """The return of each pair of a call and an activity that it waits for."""
    awaited: Index
    """The places of these activities among the rows."""
    follows: Index
    """The launches that come right after an activity each time, though no call waits for it."""
    followed: Index
    """The places of these activities among the rows."""
    begin: Int64
    """When the work up to each moment begins: at the moment before, of the first its own."""

    def __len__(self) -> int:
        return len(self.time)

    def launches(self, timed: TimedRows) -> Index:
        """The node at which each activity is launched, or -1."""
        found = np.full(len(timed.rows), -1, np.intp)
        known = np.flatnonzero(timed.launch != NO_TIME)
        on_axis, launch = axis_of(self.time), timed.launch[known]
        # Launches come first at their moment.
        found[known] = first_equal(on_axis(self.gpu, self.time), on_axis(timed.gpu[known], launch))
        return found


def host_nodes(run: Run, timed: TimedRows, stated: StatedCalls = NOTHING_STATED) -> HostNodes:
    """Those of the steps of some rows, and their calls while the rows are queued and run."""
    launches = np.flatnonzero(timed.launch != NO_TIME)
    launches = launches[np.lexsort((timed.launch[launches], timed.gpu[launches]))]
    if len(launches):
        launches = launches[run_starts(timed.gpu[launches], timed.launch[launches])]
    lane, steps = run.side(HostLane), run.side(HostSteps)
    there, labels = distinct(timed.gpu), distinct(run.table.iteration[timed.rows])
    if len(timed.rows) < len(run.table):
        # Calls of steps that are left out wait for nothing here.
        step = steps.at(lane.gpu, lane.start_ns)
        own = (step == NO_LABEL) | np.isin(step, labels)
        lane = replace(lane, **{name: column[own] for name, column in lane.columns().items()})
    ends = np.flatnonzero(np.isin(steps.gpu, there) & np.isin(steps.iteration, labels))
    step_end = steps.start_ns[ends] + steps.duration_ns[ends]
    until = maxima_of(timed.end, timed.gpu, int(timed.gpu.max(initial=0)) + 1)
    np.maximum.at(until, steps.gpu[ends], step_end)
    calls, returned, awaited = awaited_by_calls(lane, timed, until, stated)
    step_begin = _begins(steps)[ends]
    count = len(launches), len(calls), len(calls), len(ends), len(ends)
    rows_of = launches, calls, calls, ends, ends
    owners = timed.gpu, lane.gpu, lane.gpu, steps.gpu, steps.gpu
    gpu = np.concatenate([own[rows] for own, rows in zip(owners, rows_of, strict=True)])
    call_end = lane.start_ns[calls] + lane.duration_ns[calls]
    time = np.concatenate(
        [timed.launch[launches], lane.start_ns[calls], call_end, step_end, step_begin]
    )
    moment = np.repeat(np.arange(5, dtype=np.int8), count)
    iteration = np.full(len(time), NO_LABEL, np.int32)
    iteration[moment == HostMoment.STEP_END] = steps.iteration[ends]
    iteration[moment == HostMoment.STEP_BEGIN] = steps.iteration[ends]
    name = np.full(len(time), -1, np.int32)
    name[moment == HostMoment.RETURN] = lane.name[calls]
    waited = np.zeros(len(time), np.bool_)
    held = timed.end[awaited] > lane.start_ns[calls[returned]]
    waited[sum(count[:2]) + returned[held]] = True
    order = np.lexsort((moment, time, gpu))
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    follows, followed = _follows(timed, gpu[order], time[order], place[: len(launches)])
    waited[order[follows]] = True
    gpu, time, waited = gpu[order], time[order], waited[order]
    begin = time.copy()
    begin[1:] = np.where(~waited[1:] & (gpu[1:] == gpu[:-1]), time[:-1], time[1:])
    return HostNodes(
        gpu=gpu.astype(np.int32),
        time=time,
        moment=moment[order],
        iteration=iteration[order],
        name=name[order],
        waited=waited,
        returns=place[sum(count[:2]) + returned],
        awaited=awaited,
        follows=follows,
        followed=followed,
        begin=begin,
    )


def _begins(steps: HostSteps) -> Int64:
    """When the host of each step begins: with what its loop does before the annotation."""
    found = steps.start_ns.copy()
    for gpu in distinct(steps.gpu).tolist():
        found[steps.of_gpu(gpu)] -= steps.spans(gpu).loop_ns
    return found


def _follows(timed: TimedRows, gpu: Int32, time: Int64, launches: Index) -> tuple[Index, Index]:
    """The launches that follow the end of an activity, of hosts that wait where no call shows it;
    and the places of these activities.

    The queue of such a host is never full, and never empty for long.
    """
    launches = np.sort(launches)
    before = np.where(gpu[launches] == gpu[launches - 1], time[launches - 1], time[launches])
    gap = time[launches] - np.where(launches > 0, before, time[launches])
    found: list[tuple[Index, Index]] = [(launches[:0], launches[:0])]
    of_gpu = places_by(timed.gpu)
    for one, own in places_by(gpu[launches]).items():
        mine = of_gpu[one]
        by_end = mine[stable_order(timed.end[mine])]
        at = time[launches[own]]
        last = by_end[np.maximum(np.searchsorted(timed.end[by_end], at + _FOLLOWS_NS) - 1, 0)]
        is_near = np.abs(timed.end[last] - at) <= _FOLLOWS_NS
        is_near &= timed.queued[last] < at
        is_long = gap[own] >= _LONG_NS
        whole = gap[own][is_long].sum()
        is_often = np.count_nonzero(is_near & is_long) >= _MIN_FOLLOWED
        if is_often and gap[own][is_near & is_long].sum() > _FOLLOWED * whole:
            found.append((launches[own][is_near], last[is_near]))
    follows, followed = (np.concatenate(each) for each in zip(*found, strict=True))
    return follows, followed


def awaited_by_calls(
    lane: HostLane, timed: TimedRows, until: Int64, stated: StatedCalls = NOTHING_STATED
) -> tuple[Index, Index, Index]:
    """The calls that wait for activities, until some time on each GPU, as rows of the lane; and
    pairs of one of these calls, by its place, and an activity. What a call waits for by what is
    stated is no matter of its name."""
    matched = [_BLOCKS.search(name) is not None for name in lane.names]
    rows = np.flatnonzero((lane.kind == HostKind.CALL) & np.array([*matched, False])[lane.name])
    pairs: list[tuple[int, int]] = []
    of_gpu = places_by(timed.gpu)
    for gpu, calls in places_by(lane.gpu[rows]).items():
        if (mine := of_gpu.get(gpu)) is not None:
            own = rows[calls]
            begun = lane.start_ns[own]
            own = own[(begun >= timed.queued[mine].min()) & (begun <= until[gpu])]
            pairs += _awaited(lane, own, timed, mine, stated)
    call, activity = np.array(pairs, np.intp).reshape(-1, 2).T
    chosen = distinct(call)
    return chosen, np.searchsorted(chosen, call), activity


def _awaited(
    lane: HostLane, rows: Index, timed: TimedRows, mine: Index, stated: StatedCalls
) -> list[tuple[int, int]]:
    """Calls of one GPU, each with the activities that it waits for.

    A copy that ends within its call is what the call waits for. A call for the whole device waits
    for the last activity launched to each stream; any other that blocks, for what ended last
    before it returned, of what was launched before it.
    """
    queued, gpu = timed.queued, int(timed.gpu[mine[0]])
    by_launch = mine[stable_order(queued[mine])]
    launched = queued[by_launch]
    streams = [
        by_launch[timed.stream[by_launch] == each] for each in distinct(timed.stream[mine]).tolist()
    ]
    by_end = mine[stable_order(timed.end[mine])]
    ends = timed.end[by_end]
    pairs = []
    for row in rows.tolist():
        name, start = lane.names[lane.name[row]], int(lane.start_ns[row])
        end = start + int(lane.duration_ns[row])
        if (known := stated.get((gpu, start))) is not None:
            found = np.array(known, np.intp)
        elif _COPIES.search(name):
            at = int(np.searchsorted(launched, start, "left"))
            found = by_launch[at : at + 1]
            found = found[queued[found] == start]
        elif _AWAITS_ALL.search(name):
            at_each = (int(np.searchsorted(queued[own], start, "right")) for own in streams)
            found = np.array([own[at - 1] for own, at in zip(streams, at_each, strict=True) if at])
        else:
            first, last = np.searchsorted(ends, [start, end + STAMP_NS], "right").tolist()
            found = by_end[first:last]
            found = found[queued[found] <= start][-1:]
        pairs += [(row, each) for each in found.tolist() if timed.end[each] <= end + STAMP_NS]
    return pairs


def iterations_of(hosts: HostNodes, launched: Index, iteration: Int32) -> Int32:
    """The step that the host is in up to each moment, NO_LABEL outside of all.

    Of a host without annotated steps that of what it launches, else of the next that it does.
    """
    found = np.full(len(hosts), NO_LABEL, np.int32)
    known = np.flatnonzero(launched >= 0)
    found[launched[known]] = iteration[known]
    at = np.where(found != NO_LABEL, np.arange(len(found)), len(found))
    at = np.minimum.accumulate(at[::-1])[::-1]
    found = np.append(found, np.int32(NO_LABEL))[at]
    is_step = hosts.iteration != NO_LABEL
    entered = np.where(hosts.moment == HostMoment.STEP_BEGIN, hosts.iteration, NO_LABEL)
    last = np.maximum.accumulate(np.where(is_step, np.arange(len(found)), -1))
    before = np.append(-1, last)[: len(found)]
    stated = np.where(
        hosts.gpu[before] == hosts.gpu, np.append(entered, NO_LABEL)[before], NO_LABEL
    )
    has_steps = np.isin(hosts.gpu, hosts.gpu[is_step])
    return np.where(has_steps, stated, found).astype(np.int32)
