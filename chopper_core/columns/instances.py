"""Instances of operations, and how much communication overlaps them.

An instance is an operation of one layer, phase and step on one GPU. Its time is that of its
own kernels, and its overlap the share of that in which communication runs on the GPU: a collective
between two of its kernels overlaps neither. Where a stream comes back to a layer, as in the
micro-steps of gradient accumulation, each visit is an instance of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups, comparable_kernels, gpu_by_gpu, work_of
from chopper_core.model.signals import SpansOfGpus
from chopper_core.model.table import (
    LEVELS,
    NO_LABEL,
    KernelTable,
    Kind,
    Selection,
    selected_count,
)
from chopper_core.util.arrays import AnyArray, Index, Int32, Int64, Mask
from chopper_core.util.grouping import (
    run_mask,
    run_maxima,
    run_minima,
    run_sums,
    sorted_run_mask,
)
from chopper_core.util.workers import in_threads

_KEYS: Final = LEVELS[:-1]
_AT_ONCE: Final = 64
"""Pieces of rows whose instances are found before they are put together."""
_ROOM: Final = 1.02
"""For how many more instances there is room than there will be if all pieces are alike."""
_PIECE: Final = 1 << 18
"""Instances whose labels are compared at a time."""


class OperationInstances(Struct, frozen=True):
    """The instances of the operations of some nodes, node by node."""

    node: Index
    row: Index
    """A row of each, for its labels."""
    start_ns: Int64
    elapsed_ns: Int64
    """From the start of its first kernel to the end of its last, with the gaps between them."""
    busy_ns: Int64
    overlapped_ns: Int64
    """The part of that in which communication runs."""
    masked_ns: Int64
    """The part in which communication or any of the other given activities run."""
    work: Int64
    """Equal for instances that run the same kernels: of one name, shape and FLOPs."""


def visits(whole: OperationInstances, table: KernelTable, left_out: Mask) -> Int64 | None:
    """The number of the visit in which each compute activity runs, along the table; 0 of others.

    A visit lasts until the stream turns to another layer or phase, outside layers to another
    operation. `left_out` are operations that don't count, such as copies of gathered parameters;
    the last one stands for none. None where no place is visited twice. `whole` are the instances
    of the whole table; a place has several.
    """
    row, begin, end = whole.row, whole.start_ns, whole.start_ns + whole.elapsed_ns
    if left_out.any():
        own = ~left_out[table.operation[row]]
        row, begin, end = row[own], begin[own], end[own]
    if not len(row):
        return None
    first = _firsts(table, row)
    gpu = table.gpu[row[first]]
    begin, end = run_minima(begin, first), run_maxima(end, first)
    order = np.lexsort((begin, gpu))
    meets = (end[order][:-1] > begin[order][1:]) & (np.diff(gpu[order]) == 0)
    if not meets.any():
        return None
    # Only GPUs whose places meet are gone through in the order of time.
    again = np.isin(table.gpu, gpu[order][1:][meets])
    again &= (table.kind == Kind.COMPUTE) & ~left_out[table.operation]
    rows = np.flatnonzero(again)
    rows = rows[np.lexsort((table.start_ns[rows], table.stream[rows], table.gpu[rows]))]
    number = np.zeros(len(table), np.int64)
    number[rows] = np.cumsum(run_mask(table.stream[rows], *_place_keys(table, rows)))
    return number


def _firsts(table: KernelTable, rows: Index) -> Index:
    """The places of rows that are elsewhere than the one before."""
    found = []
    for begin in range(0, len(rows), _PIECE):
        before = max(begin - 1, 0)
        begins = run_mask(*_place_keys(table, rows[before : begin + _PIECE]))
        found.append(np.flatnonzero(begins[begin - before :]) + begin)
    return np.concatenate(found)


def _place_keys(table: KernelTable, rows: Index) -> list[AnyArray]:
    layer = table.layer[rows]
    operation = np.where(layer == NO_LABEL, table.operation[rows], NO_LABEL)
    return [table.gpu[rows], table.iteration[rows], table.phase[rows], layer, operation]


def instances(
    nodes: Groups, visit: Int64 | None = None, copying: Mask | None = None
) -> OperationInstances:
    """The instances of the operations of nodes, split by the visits of `visits` where given.

    `copying` are the activities that mask an instance as communication does.
    """
    table, rows = nodes.table, nodes.selection
    if visit is None and len(nodes) == 1:
        # GPU by GPU the columns stay in the processor's cache.
        spans = partial(_spans, table, nodes=None, visit=None, copying=copying)
        return _joined(spans, gpu_by_gpu(table, rows), table, has_copies=copying is not None)
    return _spans(table, rows, nodes.first if len(nodes) > 1 else None, visit, copying)


def _joined(
    spans: Callable[[Selection], OperationInstances],
    pieces: Sequence[Selection],
    table: KernelTable,
    *,
    has_copies: bool,
) -> OperationInstances:
    """The instances of pieces of rows one after the other; no piece is there twice for long."""
    # Where communication alone masks, one column tells both.
    same = {} if has_copies else {"masked_ns": "overlapped_ns"}
    names = [name for name in OperationInstances.__struct_fields__ if name not in ("node", *same)]
    columns = {name: np.empty(0, np.int64) for name in names}
    count, left = 0, sum(map(selected_count, pieces))
    for begin in range(0, len(pieces), _AT_ONCE):
        some = pieces[begin : begin + _AT_ONCE]
        parts = in_threads(spans, some, len(table))
        own, rows = sum(len(each.row) for each in parts), sum(map(selected_count, some))
        if count + own > len(columns["row"]):
            # As many as the rest has, if it is as these.
            room = count + int(own * left / max(rows, 1) * _ROOM) + 1
            columns = {name: _longer(each, count, room) for name, each in columns.items()}
        for name, column in columns.items():
            end = count + own
            np.concatenate([getattr(part, name) for part in parts], out=column[count:end])
        count, left = count + own, left - rows
    for column in columns.values():
        column.resize(count, refcheck=False)
    columns |= {name: columns[other] for name, other in same.items()}
    return OperationInstances(node=np.broadcast_to(0, columns["row"].shape), **columns)


def _longer(values: Int64, count: int, room: int) -> Int64:
    found = np.empty(room, np.int64)
    found[:count] = values[:count]
    return found


def _spans(
    table: KernelTable,
    rows: Selection,
    nodes: Index | None,
    visit: Int64 | None,
    copying: Mask | None,
) -> OperationInstances:
    """The instances of rows; `nodes` are the first rows of nodes."""
    place = np.flatnonzero(table.kind[rows] == Kind.COMPUTE)
    own = place + rows.start if isinstance(rows, slice) else rows[place]
    keys = [table.column(name)[own] for name in _KEYS]
    if visit is not None:
        keys.append(visit[own])
    if nodes is not None:
        keys.insert(0, np.searchsorted(nodes, place, "right") - 1)
    is_new = sorted_run_mask(*keys)
    if is_new is None:
        order = np.lexsort(keys[::-1])
        own, keys = own[order], [key[order] for key in keys]
        is_new = run_mask(*keys)
    first = np.flatnonzero(is_new)
    node = keys[0][first] if nodes is not None else np.zeros(len(first), np.intp)
    start, took = table.start_ns[own], table.duration_ns[own]
    in_comm = _during_comm(table, own)
    masked = in_comm
    if copying is not None:
        running = np.flatnonzero(copying | (table.kind == Kind.COMM))
        masked = running_ns(table, running, table.gpu[own], start, start + took)

    begin = run_minima(start, first)
    elapsed = run_maxima(start + took, first) - begin
    work = work_of(table, own)
    outside = np.flatnonzero(table.layer[own] == NO_LABEL)
    # All of an operation in a layer are the same as in another; outside, each stands alone.
    work[outside] = comparable_kernels(table, own[outside])
    busy, overlapped, work = (run_sums(n, first) for n in (took, in_comm, work))
    hidden = overlapped if copying is None else run_sums(masked, first)
    return OperationInstances(node, own[first], begin, elapsed, busy, overlapped, hidden, work)


def _during_comm(table: KernelTable, rows: Index) -> Int64:
    """The time of each of some compute activities in which communication runs on the GPU."""
    found = table.overlap_ns[rows].astype(np.int64)
    # The accounts charge a moment to one activity: where several compute, they don't tell.
    shared = np.flatnonzero(table.compute_ns[rows] + found != table.duration_ns[rows])
    if len(shared):
        own, comm = rows[shared], np.flatnonzero(table.kind == Kind.COMM)
        start = table.start_ns[own]
        end = start + table.duration_ns[own]
        found[shared] = running_ns(table, comm, table.gpu[own], start, end)
    return found


def running_ns(
    table: KernelTable,
    running: Index,
    gpu: Int32,
    start: Int64,
    end: Int64,
) -> Int64:
    """The ns of each span on `gpu` in which any of the `running` rows of the table runs."""
    spans = SpansOfGpus.running(
        table.gpu[running], table.start_ns[running], table.duration_ns[running]
    )
    return spans.within(gpu, start, end)
