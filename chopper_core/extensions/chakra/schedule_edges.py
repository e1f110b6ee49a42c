"""Which operations of a pipeline schedule wait for which: what follows from stage and microbatch.

The rules are those of Megatron's schedules, as Lin et al. (OSDI 2025) replay them. Computation is
one stream, each kind of transfer another, and gathering and reducing over replicas a third. The
n-th receive comes before the n-th computation of its direction and is posted after the one before;
the n-th send follows it. The first transfers of gradients are posted before the last forward of
the warm-up. Parameters are gathered before the first computation; after the last one come the
reductions, the norm of the gradients and the optimizer, one after the other. A dump without
transfers has its microbatches alone: a forward waits for that of the stage before, a backward for
that of the stage after.

Members of a transfer or a collective wait for each other; that follows from their groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.attributes import StatedEdges
from chopper_core.model.column_names import CHUNK, MICROBATCH, NODE
from chopper_core.model.table import KernelTable, Kind, Phase
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.grouping import combined, counts_of, first_equal, nth_of, ranked

_SEND: Final = "-send"
_RECEIVE: Final = "-recv"
_GATHER: Final = "params-all-gather"
_OVER_REPLICAS: Final = (_GATHER, "grads-reduce-scatter")
_COMPUTE: Final = ("forward", "backward")
_STAMP_NS: Final = 10_000
"""Starts and durations in single precision differ from ends by as much after minutes."""


class _Operations(Struct, frozen=True, eq=False):
    """The operations of a run in order of GPU, step and start."""

    table: KernelTable
    rows: Index
    cell: Index
    """GPU and step."""
    name: Int64

    @classmethod
    def of(cls, table: KernelTable) -> _Operations:
        rows = np.lexsort((table.operation, table.start_ns, table.iteration, table.gpu))
        cell = combined([table.gpu[rows], table.iteration[rows]])[1]
        return cls(table, rows, cell, table.operation[rows].astype(np.int64))

    def called(self, *names: str) -> Mask:
        codes = [code for code, name in enumerate(self.table.operations) if name in names]
        return np.isin(self.name, codes)

    def chain(self, own: Mask) -> tuple[Index, Index]:
        """Each of some operations and the one before it in its step."""
        places = np.flatnonzero(own)
        same = self.cell[places[1:]] == self.cell[places[:-1]]
        return places[1:][same], places[:-1][same]

    def ends(self, own: Mask, *, last: bool = False) -> Index:
        """The first or the last of some operations, by cell; -1 for cells without any."""
        found = np.full(int(self.cell.max(initial=-1)) + 1, -1, np.int64)
        places = np.flatnonzero(own)
        places = places if last else places[::-1]
        found[self.cell[places]] = places
        return found


_Edges = list[tuple[Index, Index]]
"""The operations that wait and those that they wait for."""


def with_edges(
    table: KernelTable, place: Mapping[int, tuple[int, int]]
) -> tuple[KernelTable, StatedEdges]:
    """The table with its activities numbered, and what they wait for.

    `place` is the stage and the replica of each rank.
    """
    own = _Operations.of(table)
    has_transfers = any(name.endswith((_SEND, _RECEIVE)) for name in table.operations)
    found = _of_workers(own) if has_transfers else []
    computes = (table.kind[own.rows] == Kind.COMPUTE) & (
        own.table.phase[own.rows] < Phase.OPTIMIZER
    )
    found += [own.chain(computes)]
    found += _after_compute(own, computes)
    if not has_transfers:
        found += _of_microbatches(own, place)
    found += _between_steps(own, np.concatenate([after for after, _ in found]), place)
    after, before = (own.rows[np.concatenate(each)] for each in zip(*found, strict=True))
    order = np.lexsort((before, after, table.gpu[after]))
    after, before = after[order], before[order]
    number = np.arange(len(table))
    edges = StatedEdges(
        (),
        gpu=table.gpu[after],
        node=number[after],
        before=number[before],
        host_ns=np.zeros(len(after), np.int64),
        is_control=np.zeros(len(after), np.int8),
        gpu_offset=table.gpu[before] - table.gpu[after],
    )
    return table.with_measured({NODE: number.astype(np.float64)}), edges


def _of_workers(own: _Operations) -> _Edges:
    """The edges of sends, receives and gathers."""
    found: _Edges = []
    first_of = {}
    for name in _COMPUTE:
        computes = own.called(f"{name}-compute")
        first_of[name] = own.ends(computes)
        sends, receives = (own.called(name + kind) for kind in (_SEND, _RECEIVE))
        for transfers in (sends, receives):
            found.append(own.chain(transfers))
        after, before = _paired(own, sends, computes)
        found.append((after, before))
        receive, compute = _paired(own, receives, computes)
        found.append((compute, receive))
        # It is posted when the computation before is done.
        later, earlier = own.chain(computes)
        before = first_equal(later, compute)
        known = before >= 0
        found.append((receive[known], earlier[before[known]]))
    forwards = np.flatnonzero(own.called("forward-compute"))
    backward = first_of["backward"]
    warm = forwards[forwards < backward[own.cell[forwards]]]
    nth = nth_of(own.cell[warm][::-1])[::-1]
    posted = np.full(len(backward), -1, np.int64)
    posted[own.cell[warm[nth == 1]]] = warm[nth == 1]
    for kind in (_SEND, _RECEIVE):
        found.append(_known(own.ends(own.called(f"backward{kind}")), posted))
    found.append(own.chain(own.called(*_OVER_REPLICAS)))
    gathers = own.ends(own.called(_GATHER), last=True)
    found.append(_known(first_of["forward"], gathers))
    return found


def _known(after: Index, before: Index) -> tuple[Index, Index]:
    own = (after >= 0) & (before >= 0)
    return after[own], before[own]


def _paired(own: _Operations, transfers: Mask, computes: Mask) -> tuple[Index, Index]:
    """Each transfer with its computation: the n-th with the n-th, where a step has as many."""
    places = [np.flatnonzero(each) for each in (transfers, computes)]
    count = int(own.cell.max(initial=-1)) + 1
    sizes = [counts_of(own.cell[each], count) for each in places]
    equal = sizes[0] == sizes[1]
    one, other = (each[equal[own.cell[each]]] for each in places)
    return one, other


def _after_compute(own: _Operations, computes: Mask) -> _Edges:
    """Reductions, the norm and the optimizer: one after the other, after the last computation."""
    last = own.ends(computes, last=True)
    table, rows = own.table, own.rows
    at = last[own.cell]
    end = np.where(at >= 0, (table.start_ns + table.duration_ns)[rows[at]], 0)
    transfers = np.isin(
        own.name,
        [c for c, name in enumerate(table.operations) if name.endswith((_SEND, _RECEIVE))],
    )
    tail = (at >= 0) & ~computes & ~transfers & (table.start_ns[rows] >= end - _STAMP_NS)
    return [own.chain(tail), _known(own.ends(tail), last)]


def _between_steps(
    own: _Operations, waiting: Index, place: Mapping[int, tuple[int, int]]
) -> _Edges:
    """What waits for nothing in its step waits for the last operations of its replica's step before
    it: a dump's steps follow each other."""
    is_first = np.ones(len(own.rows), np.bool_)
    is_first[waiting] = False
    first = np.flatnonzero(is_first)
    last = own.ends(np.ones(len(own.rows), np.bool_), last=True)
    rows = own.rows
    gpu, step = own.table.gpu[rows], ranked(own.table.iteration[rows])[1]
    key = (gpu[last].astype(np.int64) << 32) + step[last]
    found = []
    for mate, (_, replica) in place.items():
        ranks = [rank for rank, (_, other) in place.items() if other == replica]
        theirs = first[np.isin(gpu[first], ranks)]
        before = first_equal(key, (mate << 32) + step[theirs] - 1)
        found.append(_known(theirs, np.where(before < 0, -1, last[before])))
    return found


def _of_microbatches(own: _Operations, place: Mapping[int, tuple[int, int]]) -> _Edges:
    """Forwards after those of the stage before, backwards after those of the stage after."""
    table, rows = own.table, own.rows
    stages = 1 + max(stage for stage, _ in place.values())
    at = np.array([place.get(gpu, (0, 0)) for gpu in range(max(place) + 1)], np.int64)
    stage, replica = at[table.gpu[rows]].T
    chunk = np.nan_to_num(table.measured[CHUNK][rows]) if CHUNK in table.measured else 0
    microbatch = np.nan_to_num(table.measured[MICROBATCH][rows], nan=-1.0).astype(np.int64)
    depth = (stage + stages * np.asarray(chunk, np.int64)).astype(np.int64)
    found: _Edges = []
    for name, ahead in zip(_COMPUTE, (-1, 1), strict=True):
        places = np.flatnonzero(own.called(name) & (microbatch >= 0))
        if not len(places):
            continue
        depths = depth[places]
        keys = [replica[places], table.iteration[rows[places]].astype(np.int64), microbatch[places]]
        base = combined(keys)[1].astype(np.int64) * (int(depths.max()) + 3)
        before = first_equal(base + depths + 1, base + depths + 1 + ahead)
        known = before >= 0
        found.append((places[known], places[before[known]]))
    return found
