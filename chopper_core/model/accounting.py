"""Time accounting: every nanosecond of a GPU's span is charged to one row of the kernel table.

The span is cut at every start and end of an activity. Each piece is in exactly one state and is
charged to exactly one activity:

| state of the GPU               | column            | charged to                           |
|--------------------------------|-------------------|--------------------------------------|
| compute runs, no communication | `compute_ns`      | the running compute, earliest start  |
| compute and communication run  | `overlap_ns`      | the same compute                     |
| communication, perhaps copies  | `exposed_comm_ns` | the running communication, likewise  |
| only copies                    | `exposed_copy_ns` | the running copy, likewise           |
| nothing                        | `idle_ns`         | the activity that starts next        |

Ties go to the lower stream, then to the earlier row. Everything is integers: the five columns add
up to the span, to the nanosecond.

Where annotations state the steps of the host (`model/step_spans.py`), the span reaches from the
first annotation to the end of the last, and idle time between the activities of two steps is cut
at these: see `_Idle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.step_spans import NO_STEP, HostEvidence, StepSpans
from chopper_core.model.table import NO_LABEL, NO_TIME, Kind
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask, Rows
from chopper_core.util.grouping import run_mask

_NEVER: Final = np.iinfo(np.int64).max
QUICK_LAUNCH_NS: Final = 100_000
"""A launch reaches an empty queue within this time."""
IDLE_COLUMNS: Final = ("idle_ns", "idle_launch_ns", "idle_unknown_ns", "idle_after_ns")
"""The columns that `idle_times` takes."""


_MIN_BETWEEN_PROGRAMS_NS: Final = 60 * 10**9
"""Idle time without steps that is longer, and most of a GPU's span, is between two programs;
shorter idle time may be one program's own, such as a server's without requests."""


class OutsideGaps(Struct, frozen=True):
    """Idle time of a GPU that belongs to no step, in order of time."""

    start_ns: Int64
    end_ns: Int64
    following: Index
    """The activity that starts next; after the last one, the last one."""


NO_GAPS: Final = OutsideGaps(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.intp))


class IdleTimes(Rows, frozen=True):
    """Where idle time lies that activities of one GPU are charged with: times in ns.

    Up to `launch_ns` it is before the launch call; from `unknown_ns` on its reason is unknown.
    """

    row: Index
    begin_ns: Int64
    launch_ns: Int64
    unknown_ns: Int64
    end_ns: Int64

    def charges(self, count: int) -> dict[str, Int64]:
        return {
            "idle_ns": _charged(self.row, self.end_ns - self.begin_ns, count),
            "idle_host_ns": _charged(self.row, self.launch_ns - self.begin_ns, count),
            "idle_launch_ns": _charged(self.row, self.unknown_ns - self.launch_ns, count),
            "idle_unknown_ns": _charged(self.row, self.end_ns - self.unknown_ns, count),
        }


class Account(Struct, frozen=True):
    """What each activity of a GPU is charged with, and the time that none of them is."""

    columns: dict[str, Int64]
    """Columns in ns, a value per activity."""
    idle: IdleTimes
    """The idle time in the columns."""
    outside: OutsideGaps = NO_GAPS


class Pieces(Struct, frozen=True):
    """The span of a GPU, cut at every start and end."""

    order: Index
    """The activities by start."""
    edges_ns: Int64
    """Times in ns, one more than the pieces."""
    owner: Index
    """The activity that each piece is charged to."""
    is_compute: Mask
    """Whether compute runs; that compute is then the owner."""
    is_comm: Mask
    is_copy: Mask


def cut(start_ns: Int64, duration_ns: Int64, kind: Int8, stream: Int64) -> Pieces:
    """Cut the span of one GPU into pieces and find the owner of each."""
    count = len(start_ns)
    end_ns = start_ns + duration_ns
    order = np.lexsort((stream, start_ns))
    edges = np.sort(np.concatenate([start_ns, end_ns]))
    edges = edges[np.diff(edges, prepend=edges[:1] - 1) > 0]
    owner = np.zeros(max(len(edges) - 1, 0), np.intp)
    if count:
        owner = order[np.minimum(np.searchsorted(start_ns[order], edges[1:], "left"), count - 1)]
    runs: dict[Kind, Mask] = {}
    for of_kind in (Kind.COPY, Kind.COMM, Kind.COMPUTE):
        running = _first_running(order[kind[order] == of_kind], start_ns, end_ns, edges[:-1])
        runs[of_kind] = running >= 0
        np.copyto(owner, running, where=runs[of_kind])
    return Pieces(order, edges, owner, runs[Kind.COMPUTE], runs[Kind.COMM], runs[Kind.COPY])


def account(
    start_ns: Int64,
    duration_ns: Int64,
    kind: Int8,
    stream: Int64,
    launch_ns: Int64,
    host: HostEvidence | None = None,
) -> Account:
    """Split the span of one GPU among its activities, and the time outside its steps.

    Adds to the columns above: `idle_host_ns`, the idle time before the activity's launch call
    (the host was late); `idle_launch_ns`, the idle time from that call on; `idle_unknown_ns`, the
    idle time before an activity without a launch record, or after a launch without an activity;
    `idle_after_ns`, the part of `idle_ns` after the activity, which ends its step; `hidden_ns`, the
    part of a communication under compute, 0 for all others.
    """
    steps = host.steps if host is not None and len(host.steps) else None
    busy, begin, end, order = _busy_and_idle(start_ns, duration_ns, kind, stream, steps)
    gaps = _gaps_of(begin, end, order, start_ns, launch_ns, host)
    del order
    # First: it takes the most memory.
    outside = gaps.outside
    spent = gaps.times()
    after = _charged(gaps.owner, gaps.ended - gaps.begin, len(start_ns))
    del begin, end, gaps
    hidden = busy.pop("hidden_ns")
    charges = {**spent.charges(len(start_ns)), "idle_after_ns": after}
    return Account({**busy, **charges, "hidden_ns": hidden}, spent, outside)


def _busy_and_idle(
    start_ns: Int64, duration_ns: Int64, kind: Int8, stream: Int64, steps: StepSpans | None
) -> tuple[dict[str, Int64], Int64, Int64, Index]:
    """What activities are charged with while any runs, the begins and ends of the time in which
    none does, up to the ends of the steps, and the activities by start.

    The pieces are the largest of what an account takes: they are freed here.
    """
    count = len(start_ns)
    end_ns = start_ns + duration_ns
    pieces = cut(start_ns, duration_ns, kind, stream)
    edges, length = pieces.edges_ns, np.diff(pieces.edges_ns)
    compute, comm, copy = pieces.is_compute, pieces.is_comm, pieces.is_copy

    def charge(where: Mask) -> Int64:
        return _charged(pieces.owner[where], length[where], count)

    hidden = np.zeros(count, np.int64)
    if len(comms := np.flatnonzero(kind == Kind.COMM)):
        until = np.append(0, np.cumsum(np.where(compute, length, 0)))
        begins, ends = (np.searchsorted(edges, at[comms]) for at in (start_ns, end_ns))
        hidden[comms] = until[ends] - until[begins]
        del until, begins, ends
    busy = {
        "compute_ns": charge(compute & ~comm),
        "overlap_ns": charge(compute & comm),
        "exposed_comm_ns": charge(comm & ~compute),
        "exposed_copy_ns": charge(copy & ~comm & ~compute),
        "hidden_ns": hidden,
    }
    idle = np.flatnonzero(~(compute | comm | copy))
    if steps is None:
        idle = idle[~is_between_programs(length[idle], int(length.sum()))]
    begin, end = edges[idle], edges[idle + 1]
    if steps is not None and count:
        begin, end = _with_ends(begin, end, start_ns, end_ns, steps)
    return busy, begin, end, pieces.order


def is_between_programs(gap_ns: Int64, span_ns: int) -> Mask:
    """Whether idle time without steps is of no program: it is charged to nothing."""
    return gap_ns > max(span_ns // 2, _MIN_BETWEEN_PROGRAMS_NS)


def accounted(
    start_ns: Int64,
    duration_ns: Int64,
    kind: Int8,
    stream: Int64,
    launch_ns: Int64,
    iteration: Int32,
    host: HostEvidence | None = None,
) -> Account:
    """The same with the columns of `launch_overheads`: all that a kernel table is charged with."""
    found = account(start_ns, duration_ns, kind, stream, launch_ns, host)
    overheads = launch_overheads(start_ns, duration_ns, kind, launch_ns, iteration)
    return replace(found, columns={**found.columns, **overheads})


def idle_times(
    start_ns: Int64,
    launch_ns: Int64,
    iteration: Int32,
    charges: Mapping[str, Int64],
    steps: StepSpans,
) -> tuple[Index, Int64, Int64]:
    """The idle time before and after the rows of one GPU, from what they are charged with, the
    columns `IDLE_COLUMNS`: the rows, its begins and its ends. What is after one ends with its step.
    """
    after = charges["idle_after_ns"]
    before = charges["idle_ns"] - after
    rows, tails = np.flatnonzero(before), np.flatnonzero(after)
    # In a queue that may hold unrecorded work the time from the launch call on isn't charged: of
    # one with a lost launch before that call the time begins where a window opens.
    from_call = launch_ns[rows] - before[rows]
    in_queue = steps.opens_at(from_call) | (charges["idle_unknown_ns"][rows] == 0)
    in_queue &= (launch_ns[rows] != NO_TIME) & (charges["idle_launch_ns"][rows] == 0)
    end = start_ns[rows]
    end = np.where(in_queue, np.minimum(end, launch_ns[rows]), end)
    until = steps.ends_of(iteration[tails], start_ns[tails])
    tails, until = tails[until != NO_TIME], until[until != NO_TIME]
    begins = end - before[rows], until - after[tails]
    return np.concatenate([rows, tails]), np.concatenate(begins), np.concatenate([end, until])


def _charged(owner: Index, amount: Int64, count: int) -> Int64:
    # Sums of whole nanoseconds stay exact in float64 below 2**53 ns, which is 104 days.
    return np.bincount(owner, weights=amount, minlength=count).astype(np.int64)


class _Idle(Struct, frozen=True):
    """The idle time of a GPU, gap by gap: times in ns, and the activities around each gap.

    A gap between two steps is cut: `begin` – `ended` is the rest of the step before, which its
    annotation holds; `ended` – `left` is outside steps; from `left` on the gap is of the next
    activity's step. Where the queue may hold work that isn't recorded, from `queued` on it is
    outside, too. From the first launch without an activity on, why the GPU is idle is unknown.
    """

    begin: Int64
    ended: Int64
    left: Int64
    queued: Int64
    end: Int64
    launch: Int64
    """The launch call of the next activity; NO_TIME without a record or without a next one."""
    lost: Int64
    """The first launch without an activity after those of earlier activities, or `_NEVER`."""
    following: Index
    """The activity that starts next; after the last one, the last one."""
    owner: Index
    """The last activity of the step before, to which `begin` – `ended` is charged."""

    @property
    def before(self) -> IdleTimes:
        """The idle time that is charged to the next activities."""
        until = np.minimum(self.queued, self.end)
        # Launched after a lost launch, the next activity runs after it.
        is_after_lost = (self.launch == NO_TIME) | (self.lost < self.launch)
        lost = np.where(is_after_lost, np.clip(self.lost, self.left, until), until)
        unknown = np.where(self.launch == NO_TIME, self.left, lost)
        launch = np.clip(self.launch, self.left, unknown)
        return IdleTimes(self.following, self.left, launch, unknown, until)

    @property
    def behind(self) -> IdleTimes:
        """The idle time that is charged to the last activities of steps."""
        lost = np.clip(self.lost, self.begin, self.ended)
        return IdleTimes(self.owner, self.begin, lost, lost, self.ended)

    def times(self) -> IdleTimes:
        """The idle time that is charged to activities; few have any behind them."""
        before, behind = self.before, self.behind
        before = before.take(before.end_ns > before.begin_ns)
        return before.joined(behind.take(behind.end_ns > behind.begin_ns))

    @property
    def outside(self) -> OutsideGaps:
        parts = ((self.ended, self.left), (np.minimum(self.queued, self.end), self.end))
        begin, end = (np.concatenate(each) for each in zip(*parts, strict=True))
        following = np.tile(self.following, 2)
        there = np.flatnonzero(end > begin)
        there = there[np.argsort(begin[there], kind="stable")]
        return OutsideGaps(begin[there], end[there], following[there])


def _gaps_of(
    begin: Int64,
    end: Int64,
    order: Index,
    start_ns: Int64,
    launch_ns: Int64,
    host: HostEvidence | None,
) -> _Idle:
    """The gaps between activities, and those up to the first and after the last one."""
    count = len(start_ns)
    place = np.searchsorted(start_ns[order], end, "left")
    following = order[np.minimum(place, count - 1)] if count else np.zeros(0, np.intp)
    has_next = place < count
    launch = np.where(has_next, launch_ns[following], NO_TIME) if count else begin
    if host is None or not count:
        never = np.full(len(begin), _NEVER)
        return _Idle(begin, begin, begin, never, end, launch, never, following, following)
    lost = _first_lost(place, launch_ns[order], host)
    if not len(host.steps):
        never = np.full(len(begin), _NEVER)
        return _Idle(begin, begin, begin, never, end, launch, lost, following, following)
    step = host.step_of
    after = np.where(has_next, step[following], NO_STEP)
    before, owner = _begun_before(place, order, step)
    del place
    is_cut = (after > before) | (after == NO_STEP)
    spans = host.steps
    bounds = np.append(spans.end_ns, np.iinfo(np.int64).min)
    ended = np.where(is_cut, np.clip(bounds[before], begin, end), begin)
    # Work of no step that was launched before the step began: what its queue held.
    enters_before = np.append(spans.start_ns, _NEVER)[before]
    ended = np.where((after == NO_STEP) & has_next & (launch < enters_before), begin, ended)
    enters = np.append(spans.start_ns, _NEVER)[after]
    enters = np.clip(enters, ended, end)
    own = np.minimum(enters - ended, np.append(spans.loop_ns, 0)[after])
    left = np.where(is_cut, enters - own, begin)
    del before, enters_before, enters, own
    # Time before work of no step is idle time of that work.
    left = np.where((after == NO_STEP) & has_next, ended, left)
    opens = is_cut & np.append(spans.opens_window, False)[after] & (launch != NO_TIME)
    # What starts that soon after its call waited for nothing.
    opens &= (end - launch > QUICK_LAUNCH_NS) & ~host.is_queue_empty(launch)
    queued = np.where(opens, np.maximum(launch, left), _NEVER)
    return _Idle(begin, ended, left, queued, end, launch, lost, following, owner)


def _begun_before(place: Index, order: Index, step: Index) -> tuple[Index, Index]:
    """The latest step that has begun before each gap, and the last activity of it that has: an
    asynchronous copy may end steps later. `place` of the activities in their order begin before."""
    reached = np.maximum.accumulate(np.append(NO_STEP, step[order]))
    is_latest = step[order] == reached[1:]
    latest = np.maximum.accumulate(np.append(0, np.where(is_latest, np.arange(len(order)), 0)))
    return reached[place], order[latest[place]]


def _with_ends(
    begin: Int64, end: Int64, start_ns: Int64, end_ns: Int64, steps: StepSpans
) -> tuple[Int64, Int64]:
    """The gaps, with those from the first annotation to the first activity, and from the last
    activity to the end of the last annotation."""
    first, last = start_ns.min(keepdims=True), end_ns.max(keepdims=True)
    opens, closes = steps.start_ns[:1], steps.end_ns[-1:]
    head, tail = opens < first, last < closes
    return (
        np.concatenate([opens[head], begin, last[tail]]),
        np.concatenate([first[head], end, closes[tail]]),
    )


def _first_lost(place: Index, launch: Int64, host: HostEvidence) -> Int64:
    """The first launch without an activity that comes after those of all earlier activities; these
    are `launch` in order of start, `place` of them before each gap."""
    if not len(host.lost_ns):
        return np.full(len(place), _NEVER)
    latest = np.maximum.accumulate(np.append(NO_TIME, launch))[place]
    at = np.searchsorted(host.lost_ns, latest, "right")
    return np.append(host.lost_ns, _NEVER)[at]


def _first_running(candidates: Index, start_ns: Int64, end_ns: Int64, at_ns: Int64) -> Index:
    """The row among `candidates` (sorted by start) that runs at each time, earliest start first.

    The first candidate whose end lies after a time is where the running maximum of the ends
    passes it; if that one hasn't started, none runs, because all others start later. -1: none.
    """
    if not len(candidates):
        return np.full(len(at_ns), -1, np.intp)
    latest_end = np.maximum.accumulate(end_ns[candidates])
    position = np.searchsorted(latest_end, at_ns, "right")
    runs = position < len(candidates)
    row = candidates[np.minimum(position, len(candidates) - 1, out=position)]
    runs &= start_ns[row] <= at_ns
    row[~runs] = -1
    return row


def launch_overheads(
    start_ns: Int64, duration_ns: Int64, kind: Int8, launch_ns: Int64, iteration: Int32
) -> dict[str, Int64]:
    """Chopper's launch, prep and call overheads of one GPU: columns in ns.

    Per iteration, over its compute activities by start, with `gap` = start - latest end of those
    before: launch = max(0, gap); prep = the part of it before the launch call; call = the part
    from the launch call on. For the first of an iteration the gap counts from the iteration's
    first kernel, of compute or communication: copies of its input don't count. Prep and call are 0
    where no launch record exists or where the launch call is stamped after the start (two clocks).
    Source: UnaryLab/chopper, `trace_metrics.py`, where a short activity of another stream splits a
    long one that still runs; the gap holds exposed communication too, unlike `idle_ns`.
    """
    launch = np.zeros(len(start_ns), np.int64)
    prep = np.zeros(len(start_ns), np.int64)
    call = np.zeros(len(start_ns), np.int64)
    order = np.lexsort((start_ns, iteration))
    order = order[kind[order] != Kind.COPY]
    rows = order[kind[order] == Kind.COMPUTE]
    if len(rows):
        begin = start_ns[order[np.searchsorted(iteration[order], iteration[rows])]]
        previous_end = np.empty(len(rows), np.int64)
        first = run_mask(iteration[rows])
        # Iteration after iteration on one axis: no end of one is beyond those of the next.
        ends = (start_ns + duration_ns)[rows]
        base = (np.cumsum(first) - 1) * (int(ends.max()) - int(ends.min()) + 1)
        previous_end[1:] = (np.maximum.accumulate(ends + base) - base)[:-1]
        previous_end[first] = begin[first]
        gap = np.maximum(0, start_ns[rows] - previous_end)
        if (iteration == NO_LABEL).all():
            # As idle time there, it is charged to nothing.
            gap[is_between_programs(gap, int(ends.max() - start_ns.min()))] = 0
        known = (launch_ns[rows] != NO_TIME) & (launch_ns[rows] <= start_ns[rows])
        called = np.where(known, np.minimum(start_ns[rows] - launch_ns[rows], gap), 0)
        launch[rows] = gap
        call[rows] = called
        prep[rows] = np.where(known, gap - called, 0)
    return {"launch_overhead_ns": launch, "prep_overhead_ns": prep, "call_overhead_ns": call}
