"""The time accounting of one rank: its GPUs' spans, cut where the host's steps begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.host import Links, codes_matching
from chopper_core.align.host_tables import HostGaps
from chopper_core.align.labels import NOWHERE, Intervals
from chopper_core.align.side_work import SIDE_WORK, names_of_gaps
from chopper_core.model.accounting import (
    NO_GAPS,
    Account,
    OutsideGaps,
    account,
    accounted,
    launch_overheads,
)
from chopper_core.model.side_table import HostState
from chopper_core.model.step_spans import NO_STEP, HostEvidence, StepSpans
from chopper_core.model.table import (
    COLUMNS,
    NO_LABEL,
    Category,
    KernelTable,
    Kind,
    Phase,
    Rule,
    concatenate,
)
from chopper_core.sources.trace import Trace
from chopper_core.tables.columns import narrowed
from chopper_core.util.arrays import AnyArray, Codes, Index, Int8, Int32, Int64, Rows, column_types
from chopper_core.util.patterns import late

OUTSIDE_STEPS: Final = "outside steps"
"""The name of time that belongs to no step."""
SET_UP: Final = "set-up"
"""Time before the first step."""
_LAUNCHES: Final = late(r"Launch")
_SYNCHRONIZES: Final = late(r"(?:Device|Stream|Ctx)Synchronize")
_MOSTLY_QUEUED: Final = 0.1
"""The part of a step for which it waits behind unrecorded work where its beginning is cut."""


class OutsideTime(Rows, frozen=True):
    """Idle time of the GPUs of a rank that belongs to no step."""

    gpu: Int32
    start_ns: Int64
    end_ns: Int64
    kind: Int8
    """The place of its name in `OUTSIDE_NAMES`."""

    @classmethod
    def of_gpu(cls, gpu: int, gaps: OutsideGaps, kind: Int8 | int = 0) -> OutsideTime:
        count = len(gaps.start_ns)
        kinds = np.full(count, kind, np.int8)
        return cls(np.full(count, gpu, np.int32), gaps.start_ns, gaps.end_ns, kinds)


NO_OUTSIDE: Final = OutsideTime.of_gpu(0, NO_GAPS)
OUTSIDE_NAMES: Final = (OUTSIDE_STEPS, SET_UP, *SIDE_WORK)


class RankAccount(Struct, frozen=True):
    """What the activities of a rank are charged with, in the order of the file."""

    charges: dict[str, AnyArray]
    outside: OutsideTime
    truncated: frozenset[int]
    """Steps of whose beginning the queue held work that isn't recorded."""


def host_evidence(
    trace: Trace, links: Links, gpu: Codes, spans: StepSpans, place: Index, without: Index
) -> dict[int, HostEvidence]:
    """What the host did, for each GPU that a rank drives; a thread that launches for several GPUs
    doesn't show for which of them a launch was that has no activity; `without` are those, as rows
    of `Trace.launches`."""
    launches = trace.launches
    called = np.sort(launches.start_ns[codes_matching(trace.names, launches.name, _LAUNCHES)])
    syncs = codes_matching(trace.names, launches.name, _SYNCHRONIZES)
    synced = np.sort((launches.start_ns + launches.duration_ns)[syncs])
    found = {}
    of_thread = _gpu_of_threads(links, gpu, len(trace.threads))
    lost_gpu = of_thread[launches.thread[without]]
    for number in range(int(gpu.max(initial=0)) + 1):
        own = slice(None) if not gpu.any() else np.flatnonzero(gpu == number)
        lost = np.sort(launches.start_ns[without[lost_gpu == number]])
        found[number] = HostEvidence(spans, place[own], lost, synced, called)
    return found


def _gpu_of_threads(links: Links, gpu: Codes, threads: int) -> Int64:
    """The only GPU that each thread launches for, else NOWHERE; of a rank with one GPU that."""
    if not gpu.any():
        return np.zeros(threads, np.int64)
    known = np.flatnonzero(links.points.known())
    thread = links.points.thread[known]
    low, high = np.full(threads, gpu.max() + 1), np.full(threads, NOWHERE)
    np.minimum.at(low, thread, gpu[known])
    np.maximum.at(high, thread, gpu[known])
    return np.where(low == high, low, NOWHERE)


def account_rank(
    trace: Trace,
    links: Links,
    gpu: Codes,
    kind: Int8,
    iteration: Int32,
    evidence: Mapping[int, HostEvidence],
    beside: Intervals,
) -> tuple[RankAccount, HostGaps]:
    """Charge the time of each GPU of a rank; `beside` is work next to its steps. The gaps are the
    idle and copy time whose hosts are asked what they did."""
    activities = trace.activities
    charges: dict[str, AnyArray] = {}
    outside: list[OutsideTime] = []
    gaps: list[HostGaps] = []
    truncated: set[int] = set()
    for number, host in evidence.items():
        own = np.flatnonzero(gpu == number) if gpu.any() else slice(None)
        start, took = activities.start_ns[own], activities.duration_ns[own]
        launch, kinds = links.launch_ns[own], kind[own]
        stream, step = activities.stream[own], iteration[own]
        found = account(start, took, kinds, stream, launch, host)
        columns = found.columns
        # Those of each in half the memory before the next are worked out.
        for name in columns:
            columns[name] = narrowed(columns[name])
        for name, values in launch_overheads(start, took, kinds, launch, step).items():
            columns[name] = narrowed(values)
        thread = links.points.thread[own]
        gaps += _gaps(number, start, thread, found)
        truncated |= _waiting_in_queue(start, found.outside, host)
        outside.append(_outside(beside, number, found.outside, host.steps))
        if not gpu.any():
            charges = columns
        else:
            for name, values in columns.items():
                charges.setdefault(name, np.zeros(len(gpu), np.int64))[own] = values
    times = reduce(OutsideTime.joined, outside)
    return RankAccount(charges, times, frozenset(truncated)), reduce(HostGaps.joined, gaps)


def _waiting_in_queue(start: Int64, gaps: OutsideGaps, host: HostEvidence) -> set[int]:
    """The steps that begin behind unrecorded work for a good part of their annotation."""
    steps, place = host.steps, host.step_of[gaps.following]
    if not len(place) or not len(steps):
        return set()
    length = steps.end_ns - steps.start_ns
    is_queue = (place != NO_STEP) & (gaps.end_ns == start[gaps.following])
    is_queue &= gaps.end_ns - gaps.start_ns > _MOSTLY_QUEUED * length[place]
    return set(steps.number[place[is_queue]].tolist())


def charged(gpu: Index, *columns: AnyArray) -> dict[str, Int64]:
    """What each activity is charged with on its GPU where nothing is known of the host, from
    columns: start, duration, kind, stream, launch and step."""
    found: dict[str, Int64] = {}
    for number in range(int(gpu.max(initial=0)) + 1):
        own = np.flatnonzero(gpu == number)
        start, took, kind, stream, launch, step = (column[own] for column in columns)
        for name, values in accounted(start, took, kind, stream, launch, step).columns.items():
            column = found.setdefault(name, np.zeros(len(gpu), np.int64))
            # Zeros that nothing writes to take no memory.
            if values.any():
                column[own] = values
    return found


def _gaps(gpu: int, start: Int64, thread: Int32, found: Account) -> Iterator[HostGaps]:
    idle, copying = found.idle, found.columns["exposed_copy_ns"]
    copies = np.flatnonzero(copying)
    gaps = found.outside
    for rows, begin, end, state in (
        (idle.row, idle.begin_ns, idle.launch_ns, HostState.LATE),
        (idle.row, idle.launch_ns, idle.unknown_ns, HostState.LAUNCHED),
        (idle.row, idle.unknown_ns, idle.end_ns, HostState.UNKNOWN),
        (copies, start[copies], start[copies] + copying[copies], HostState.COPYING),
        (gaps.following, gaps.start_ns, gaps.end_ns, HostState.LATE),
    ):
        count = len(rows)
        yield HostGaps(
            np.full(count, gpu, np.int32), thread[rows], begin, end, np.full(count, state, np.int8)
        ).take(end > begin)


def _outside(beside: Intervals, gpu: int, gaps: OutsideGaps, spans: StepSpans) -> OutsideTime:
    """The time outside the steps of a GPU, named after what the host did most of it."""
    count = len(gaps.start_ns)
    kind = np.zeros(count, np.int8)
    if count:
        kind[gaps.end_ns <= spans.start_ns[0]] = OUTSIDE_NAMES.index(SET_UP)
        named = names_of_gaps(beside, gaps.start_ns, gaps.end_ns)
        is_named = named >= 0
        kind[is_named] = OUTSIDE_NAMES.index(SIDE_WORK[0]) + named[is_named]
    return OutsideTime.of_gpu(gpu, gaps, kind)


def with_outside(table: KernelTable, outside: OutsideTime) -> KernelTable:
    """The table with a row without an activity for each time outside steps, at its end."""
    if not len(outside):
        return table
    parts = [table, outside_rows(outside)]
    return replace(concatenate(parts), coordinates=table.coordinates)


def outside_rows(outside: OutsideTime) -> KernelTable:
    """A row without an activity for each time outside steps."""
    count = len(outside)
    types = column_types(KernelTable)
    columns: dict[str, Any] = {name: np.zeros(count, types[name]) for name in COLUMNS}
    for name in ("iteration", "layer", "group", "bytes", "stream"):
        columns[name][:] = NO_LABEL
    columns["gpu"][:] = outside.gpu
    columns["kind"][:] = Kind.COMPUTE
    columns["category"][:] = Category.OUTSIDE
    columns["phase"][:] = Phase.OTHER
    columns["operation"][:] = outside.kind
    columns["operation_rule"][:] = np.where(outside.kind > 0, Rule.ANNOTATION, Rule.NONE)
    columns["start_ns"] = columns["launch_ns"] = outside.end_ns
    columns["idle_ns"] = columns["idle_host_ns"] = outside.end_ns - outside.start_ns
    return KernelTable((OUTSIDE_STEPS,), OUTSIDE_NAMES, **columns)
