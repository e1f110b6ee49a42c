"""Waits of streams and of calls of the host that a trace states."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from chopper_core.model.side_table import NO_STREAM, StreamWaits, WaitKind
from chopper_core.sources.trace import SyncKind, Syncs, Trace
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import first_equal

_KIND: Final = np.full(len(SyncKind), WaitKind.CALL, np.int8)
"""What waits in a synchronization of each kind."""
_KIND[SyncKind.WAIT], _KIND[SyncKind.BARRIER] = WaitKind.STREAM, WaitKind.BARRIER


def read_stated_waits(trace: Trace, devices: Int64) -> StreamWaits:
    """The waits of the streams and calls of some devices, on the clock of the host.

    An event is recorded by the call with the correlation id that the trace names, else it is the
    last one recorded under its id before the wait. Its stream is that of the record, which any
    wait for it may name. Where either is missing, what is waited for isn't stated.
    """
    syncs = trace.syncs
    time_ns, _ = _called(trace, syncs.correlation, syncs.start_ns)
    is_record = syncs.kind == SyncKind.RECORD
    records, waits = np.flatnonzero(is_record), np.flatnonzero(~is_record)
    gpu = first_equal(devices, syncs.device[waits].astype(np.int64))
    waits, gpu = waits[gpu >= 0], gpu[gpu >= 0]
    recorded = _recorded(syncs, time_ns, waits, records)
    until_ns, is_known = _called(trace, recorded, _recorded_at(syncs, records, recorded))
    is_known |= until_ns != ABSENT
    awaited = _awaited(syncs, waits, records, recorded)
    is_stream = syncs.kind[waits] == SyncKind.STREAM
    awaited = np.where(is_stream, syncs.stream[waits], np.where(is_known, awaited, NO_STREAM))
    kind = _KIND[syncs.kind[waits]]
    is_wait = kind != WaitKind.CALL
    order = np.lexsort((time_ns[waits], gpu))
    found = StreamWaits(
        (),
        gpu=gpu.astype(np.int32),
        kind=kind,
        stream=np.where(is_wait, syncs.stream[waits], NO_STREAM),
        time_ns=time_ns[waits],
        awaited=awaited,
        until_ns=np.where(is_stream | (awaited == NO_STREAM), time_ns[waits], until_ns),
    )
    columns = {name: values[order] for name, values in found.columns().items()}
    return StreamWaits((), **columns)


def _called(trace: Trace, correlation: Int64, otherwise: Int64) -> tuple[Int64, Mask]:
    """When the calls with some correlation ids begin, and where there is one."""
    launches = trace.launches
    call = first_equal(launches.correlation, correlation)
    is_known = (call >= 0) & (correlation > 0)
    start = np.append(launches.start_ns, 0)[call]
    return np.where(is_known, start, otherwise), is_known


def _recorded_at(syncs: Syncs, records: Index, recorded: Int64) -> Int64:
    """When records with some correlation ids were made, as they state it themselves, or ABSENT."""
    record = first_equal(syncs.correlation[records], recorded)
    start = np.append(syncs.start_ns[records], ABSENT)[record]
    return np.where(recorded == ABSENT, ABSENT, start)


def _recorded(syncs: Syncs, time_ns: Int64, waits: Index, records: Index) -> Int64:
    """The correlation id of the record that each wait is for, or ABSENT."""
    found = syncs.recorded[waits].copy()
    lacks = np.flatnonzero((found == ABSENT) & (syncs.event[waits] != ABSENT))
    if not len(lacks) or not len(records):
        return found
    order = records[np.lexsort((time_ns[records], syncs.event[records]))]
    keys = list(zip(syncs.event[order].tolist(), time_ns[order].tolist(), strict=True))

    for row in lacks.tolist():
        event = int(syncs.event[waits[row]])
        at = bisect_right(keys, (event, int(time_ns[waits[row]]))) - 1
        if at >= 0 and keys[at][0] == event:
            found[row] = syncs.correlation[order[at]]
    return found


def _awaited(syncs: Syncs, waits: Index, records: Index, recorded: Int64) -> Int64:
    """The stream in which each event was recorded, or NO_STREAM."""
    found = syncs.awaited[waits]
    named = np.flatnonzero(found != ABSENT)
    of_record = first_equal(syncs.correlation[records], recorded)
    of_other = first_equal(recorded[named], recorded)
    for at, streams in ((of_record, syncs.stream[records]), (of_other, found[named])):
        is_found = (found == ABSENT) & (at >= 0) & (recorded != ABSENT)
        found = np.where(is_found, np.append(streams, ABSENT)[at], found)
    return np.where(found == ABSENT, NO_STREAM, found)
