"""What if: a step graph replayed with something changed.

A change gives the new work of some nodes three times: the least, the expected and the most, as far
as the run leaves it open. Changes follow each other, so that several questions are asked together.
Work is that without communication during it: how much communication slows it follows from the
replay itself, which is repeated until waits and work agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.breakdown import clock_response
from chopper_core.graph.build import build_graph, step_graph
from chopper_core.graph.collectives import collectives_of
from chopper_core.graph.contention import Contention, contention_of
from chopper_core.graph.dependencies import INFERRED, Evidence
from chopper_core.graph.pace import pace_after_idle
from chopper_core.graph.step_graph import NodeKind, Replayed, StepGraph, replay
from chopper_core.model.column_names import (
    FLOPS,
    FLOPS_TYPE,
    MICROBATCH,
    MODEL_BYTES,
    integral_of,
    known_of,
)
from chopper_core.model.groups import comparable_kernels
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable, Kind, Phase
from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int8, Int32, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    first_equal,
    isin,
    means_of,
    median_of,
    nth_of,
    quantile_of,
    quantiles_of,
    ranked,
    ratios,
    run_starts,
    stable_order,
    sums_of,
)
from chopper_core.work.kernel_classes import MATRIX_CLASSES, kernel_classes

LEAST, EXPECTED, MOST = range(3)
_ROUNDS: Final = 12
"""Replays at most until waits and contention agree: each changes the rest by a tenth, but where
GPUs wait for one another in turn."""
_AGREES: Final = 1e-4
"""Of all work, which a further replay may change."""
_SIDES: Final = (0.1, 0.9)
"""The quantiles of the peers between which the time of one of them is expected."""
_MANY_PEERS: Final = 10
"""Fewer have no tenth on each side."""
_FASTEST: Final = 0.1
"""The quantile of transfers that the link's bandwidth alone limits."""

_USUAL: Final = 0.25
"""The quantile of like transfers that those on a fast link have."""
_ENDS: Final = 0.05
"""Of the step, at most, the communication at its ends that nothing can hide; larger collectives can
be split."""

_ONCE: Final = ("as peers", "balanced", "at peak", "hidden", "clock")
"""The forms that give a node its time, instead of changing the one that it has."""
_FREE: Final = -(1 << 60)
"""The lag of an edge that holds nothing back."""

New = Callable[[Float64], Float64]
"""From the work of all nodes to that of the changed ones; or the least, the expected and the most
of each, as three rows."""


class Change(Struct, frozen=True, eq=False):
    """The nodes that a question changes, and their new work."""

    nodes: Index
    new: New
    notes: tuple[str, ...] = ()
    rates: Callable[[Float64], Float64] | None = None
    """From the rates of contention of each row, waits and transfers x rows, to new ones."""
    free: Index | None = None
    """Edges that hold nothing back any more."""
    lags: tuple[Index, float] | None = None
    """Edges whose lag is so many times as long."""
    waits: Index | None = None
    """Edges that may hold nothing back either, where it saves most."""
    form: str = ""
    """How it is asked. Nodes that get a time of their own get it once, whatever names them."""
    axis: str = ""
    """What its peers differ in: nodes slow on a GPU and in a layer get the time of either's."""

    def repeats(self, other: Change) -> bool:
        """Whether another change is the same one under another name."""
        same = self.form == other.form and np.array_equal(self.nodes, other.nodes)
        if same and self.lags is not None and other.lags is not None:
            return np.array_equal(self.lags[0], other.lags[0])
        return same and self.rates is None and self.lags is other.lags is None

    def work(self, work: Float64, side: int = EXPECTED) -> Float64:
        """The new work of its nodes, the least, the expected or the most."""
        new = self.new(work)
        return new if new.ndim == 1 else new[side]


class Predicted(Struct, frozen=True, eq=False):
    """A step replayed with something changed."""

    work_ns: Int64
    lag_ns: Int64
    replayed: Replayed

    def is_of(self, work_ns: Int64, lag_ns: Int64) -> bool:
        return np.array_equal(work_ns, self.work_ns) and np.array_equal(lag_ns, self.lag_ns)


class Predictor(Struct, frozen=True, eq=False):
    """A step graph with its identity replay, to ask questions of."""

    run: Run
    iterations: tuple[int, ...]
    """Those of the graph; none: those of the run."""
    graph: StepGraph
    identity: Predicted
    contention: Contention | None
    kind: Int64
    """Of the rows of the graph's activities."""
    shares: Float64
    """Of the rows of contention in the identity replay."""
    doubtful_lag_ns: Int64 | None
    """The lags without edges that may be chance; None if there are none."""
    kept: Index
    """Nodes of other steps than those that change, and of none where there are any: those
    that change begin with what they leave."""

    @classmethod
    def of(
        cls, run: Run, iterations: tuple[int, ...] = (), changed: tuple[int, ...] = ()
    ) -> Predictor:
        """That of a run, or of steps of it, some of which change; made once."""

        def narrowed() -> Predictor:
            whole = run.memo(("predictor", iterations), lambda: cls._made(run, iterations))
            labels = whole.graph.iteration
            in_steps = labels != NO_LABEL
            is_kept = in_steps & ~np.isin(labels, changed)
            if in_steps.any():
                is_kept |= ~in_steps & (whole.graph.kind != NodeKind.MEETING)
            return replace(whole, kept=np.flatnonzero(is_kept))

        return run.memo(("predictor", iterations, changed), narrowed)

    @classmethod
    def _made(cls, run: Run, iterations: tuple[int, ...]) -> Predictor:
        chosen = np.flatnonzero(isin(run.table.iteration, iterations))
        graph = build_graph(run, chosen) if iterations else step_graph(run)
        identity = Predicted(graph.work_ns, graph.lag_ns, replay(graph))
        kind = run.table.kind[graph.row[graph.activities]].astype(np.int64)
        found = contention_of(run, graph)
        times = identity.replayed
        none = np.zeros((2, 0))
        shares = none if found is None else found.shares(graph, times.begin_ns, times.end_ns, kind)
        rest = graph, identity, found, kind, shares, _doubtful_lag(graph)
        return cls(run, iterations, *rest, kept=np.zeros(0, np.intp))

    @property
    def pace(self) -> float:
        """How much less time compute takes per share of idle time before it, at most."""
        key = ("pace after idle time", self.iterations)
        return self.run.memo(key, lambda: pace_after_idle(self.run, self.graph, self.kind))

    def shares_in(self, replayed: Replayed) -> Float64:
        """The shares of the rows of contention in a replay."""
        if self.contention is None:
            return self.shares
        times = replayed.begin_ns, replayed.end_ns
        return self.contention.shares(self.graph, *times, self.kind)

    def predict(
        self,
        changes: Sequence[Change],
        side: int = EXPECTED,
        start: Predicted | None = None,
        shares: Float64 | None = None,
    ) -> Predicted:
        """The replay after some changes; `start` is one whose waits are near, and `shares` are
        those of the rows of contention in it."""
        graph, found = self.graph, self.contention
        lag = graph.lag_ns
        work = graph.work_ns.astype(np.float64)
        nodes, rates = np.zeros(0, np.intp), np.zeros((2, 0))
        if found is not None:
            nodes = graph.activities[found.place]
            rates = found.rates[side][:, found.owner]
            work[nodes] /= found.slowed(rates, self.shares)
        done: dict[tuple[str, str], Mask] = {}
        for place, change in enumerate(changes):
            if any(change.repeats(other) for other in changes[:place]):
                continue
            fresh = np.ones(len(change.nodes), np.bool_)
            if change.form in _ONCE:
                mask = done.setdefault((change.form, change.axis), np.zeros(len(graph), np.bool_))
                fresh = ~mask[change.nodes]
                mask[change.nodes] = True
            work[change.nodes[fresh]] = change.work(work, side)[fresh]
            rates = rates if change.rates is None else change.rates(rates)
            if change.free is not None:
                lag = lag.copy()
                lag[change.free] = _FREE
            if change.lags is not None:
                edges, factor = change.lags
                lag = lag.copy()
                lag[edges] = np.rint(lag[edges] * factor).astype(np.int64)
            if change.waits is not None and side == LEAST:
                lag = lag.copy()
                lag[change.waits] = _FREE
        is_kept = np.zeros(len(graph), np.bool_)
        is_kept[self.kept] = True
        if lag is not graph.lag_ns:
            lag = np.where(is_kept[graph.target], graph.lag_ns, lag)
        times = start.replayed if start is not None else None
        whole, part, last_moved = graph.work_ns, 1.0, np.inf
        for _ in range(_ROUNDS):
            now = work.copy()
            if found is not None:
                if times is not None and (start is None or shares is None):
                    before = self.shares if shares is None else shares
                    shares = before + part * (self.shares_in(times) - before)
                now[nodes] *= found.slowed(rates, self.shares if shares is None else shares)
            last = whole
            whole = np.where(is_kept, graph.work_ns, np.rint(now).astype(np.int64))
            if start is not None and start.is_of(whole, lag):
                return start
            moved = float(np.abs(whole - last).sum())
            if start is None and times is not None and moved <= _AGREES * whole.sum():
                return Predicted(last, lag, times)
            # Where the GPU that waits slows down until others wait for it, half of a change is.
            part = 0.5 if moved > last_moved / 2 else part
            last_moved = moved if times is not None else last_moved
            times = replay(graph, whole, lag)
            if found is None or start is not None:
                break
        assert times is not None
        return Predicted(whole, lag, times)


def scaled(nodes: Index, factor: float | Float64, *notes: str) -> Change:
    """The work of some nodes times a factor, or times three."""
    return Change(nodes, lambda work: np.asarray(work[nodes] * factor), notes)


def activities_scaled(graph: StepGraph, nodes: Index, factor: float) -> Change:
    """The work of some activities times a factor. Without them no call may wait for them, either:
    its host launches ahead."""
    change = scaled(nodes, factor)
    if factor:
        return change
    return replace(change, waits=_blocked(graph, nodes, graph.source))


def host_scaled(graph: StepGraph, nodes: Index, factor: float) -> Change:
    """The host's work times a factor, and its time between the end of a wait and the call's
    return. Without that work its calls may wait for nothing, either."""
    change = scaled(nodes, factor)
    returns = _blocked(graph, nodes, graph.target)
    return replace(change, lags=(returns, factor), waits=None if factor else returns)


def _blocked(graph: StepGraph, nodes: Index, ends: Int32) -> Index:
    """The edges of calls that wait for activities, of which one end is among some nodes."""
    own = np.zeros(len(graph), np.bool_)
    own[nodes] = True
    return np.flatnonzero((graph.evidence == Evidence.BLOCKED) & own[ends])


def launch_scaled(graph: StepGraph, chosen: Mask, factor: float) -> Change:
    """The time that launches of some rows take to arrive, times a factor."""
    target = graph.row[graph.target]
    edges = np.flatnonzero((graph.evidence == Evidence.LAUNCH) & (target >= 0) & chosen[target])
    return replace(scaled(np.zeros(0, np.intp), 1.0), lags=(edges, factor))


def nodes_of_host(graph: StepGraph) -> Index:
    """The nodes of the host's own work: launches, calls, and what is between them."""
    return np.flatnonzero(graph.kind <= NodeKind.RETURN)


def rows_of_hosts(graph: StepGraph, nodes: Index) -> tuple[Int64, Int8]:
    """The row that each of some host nodes counts for, and whether that was launched before.

    It is what the host launches next in its step; after the last launch of a step, that one. -1
    where nothing is launched.
    """
    launches = np.flatnonzero(graph.evidence == Evidence.LAUNCH)
    found = np.full(len(graph), -1, np.int64)
    found[graph.source[launches]] = graph.row[graph.target[launches]]
    order = nodes[np.argsort(graph.gpu[nodes], kind="stable")]
    of_order, gpu = found[order], np.append(graph.gpu[order], -1)
    known = np.where(of_order >= 0, np.arange(len(order)), -1)
    last = np.maximum.accumulate(known)
    is_end = np.isin(order, graph.host_ends) & (of_order < 0) & (last >= 0)
    is_end &= gpu[last] == gpu[:-1]
    # The end of a step counts for what was launched last, and so does what comes before it.
    of_order = np.where(is_end, of_order[last], of_order)
    place = np.where(of_order >= 0, np.arange(len(order)), len(order))
    place = np.minimum.accumulate(place[::-1])[::-1]
    own = np.append(of_order, -1)[place]
    own[gpu[place] != gpu[:-1]] = -1
    rows, is_after = np.full(len(graph), -1, np.int64), np.zeros(len(graph), np.int8)
    rows[order] = own
    is_after[order] = np.append(is_end, False)[place] & (own >= 0)
    return rows[nodes], is_after[nodes]


# As peers


def as_peers(
    run: Run, graph: StepGraph, chosen: Mask, axis: str, kernels: Mask | None = None
) -> Change:
    """The time that peers take for the same kernel: the median of those that aren't chosen.

    `chosen` are rows, `axis` is what peers differ in: `gpu`, a coordinate of GPUs, `layer` or
    `iteration`. Peers are among the rows of some kernels, where not all are asked about. The same
    kernel has the same name and shape, at the same place of the step.
    Where no peer runs the same there, the operation takes as long there as on peers: they have as
    much work, too, and what most of them don't run takes no time. Elsewhere the same kernel of the
    operation counts, else its time is that of peers per FLOP, or per byte. If all GPUs are chosen
    (or layers, or steps), the peers are all that run the same, itself too. A copy that most peers
    don't make takes no time. The range is the spread of the peers, of each kernel alone where
    layers differ.
    An operation of a schedule has no shape: its peers are all of its kind, and their mean keeps the
    sum of the work (Lin et al., OSDI 2025).
    """
    table, nodes = run.table, graph.activities
    if MICROBATCH in table.measured:
        rows = graph.row[nodes].astype(np.intp)
        return _as_schedule(table, nodes, rows, chosen[rows])
    alike = LikeActivities.of(run, graph, axis)
    rows, keys, unit = alike.rows, alike.keys, alike.unit
    who, transfers = alike.who, alike.transfers
    own, whole = chosen[rows], len(distinct(who))
    if whole < 2:
        raise NothingToShow(f"no peers: the run has one {'GPU' if axis == 'gpu' else axis}")
    kind = table.kind[rows]
    among = np.ones(len(rows), np.bool_) if kernels is None else kernels[rows]
    peers = ~own & among & np.isin(kind, distinct(kind[own]))
    is_whole = not peers.any() or len(distinct(who[own])) == whole
    if is_whole:
        # What the terms leave out, such as operations, is no peer: each is one of the others.
        peers = among
    extra = own & (kind == Kind.COPY)
    if extra.any():
        extra &= _is_extra(table, rows, axis, peers)
    uneven = UnevenWork.of(table, rows, own, peers, who, axis, keys[0])

    def new(work: Float64) -> Float64:
        time = work[nodes]
        usual = np.full(len(rows), np.nan)
        low: float | Float64 = 1.0
        high: float | Float64 = 1.0
        for place, code in enumerate(keys):
            value = time / unit if place == len(keys) - 1 else time
            known = peers & np.isfinite(value)
            count = int(code.max(initial=-1)) + 1
            median = quantiles_of(value[known], code[known], count, (0.5,))[:, 0][code]
            lacks = own & ~np.isfinite(usual)
            usual[lacks] = (median * unit if place == len(keys) - 1 else median)[lacks]
            if not place and axis == "layer":
                ends = quantiles_of(value[known], code[known], count, _SIDES)
                low, high = (ratios(each[code], median)[own] for each in ends.T)
                low, high = (np.where(np.isfinite(each), each, 1.0) for each in (low, high))
            elif not place:
                among = known & np.isin(code, code[own])
                low, high = _spread(time, median, who, among, is_whole=is_whole)
            if not place and uneven is not None:
                usual[uneven.rows] = np.nan
                usual[uneven.rows] = uneven.usual(time, usual)
            if np.isfinite(usual[own]).all():
                break
        if transfers is not None:
            known = peers & (transfers >= 0)
            count = int(transfers.max(initial=-1)) + 1
            like = quantiles_of(time[known], transfers[known], count, (0.5,))[:, 0]
            like = np.append(like, np.nan)[transfers]
            usual = np.where(np.isfinite(like), like, usual)
        usual = np.where(np.isfinite(usual), usual, time)
        usual = np.where(extra, 0.0, usual)[own]
        return np.stack([usual * low, usual, usual * high])

    return Change(nodes[own], new, axis=axis)


class LikeActivities(Struct, frozen=True, eq=False):
    """What the activities of a graph have in common with those of peers that differ in an axis,
    whichever of them are asked about."""

    rows: Index
    keys: list[Index]
    """What the same kernel has in common with that of peers, the closest first."""
    unit: Float64
    who: AnyArray
    transfers: Index | None

    @classmethod
    def of(cls, run: Run, graph: StepGraph, axis: str) -> LikeActivities:
        """Those of a graph, made once: of many ranks they are many megabytes."""

        def made() -> LikeActivities:
            table, rows = run.table, graph.row[graph.activities].astype(np.intp)
            keys, unit = _same_kernels(table, rows, axis), _units(table, rows)
            who = table.column(axis)[rows]
            return cls(rows, keys, unit, who, like_transfers(run, rows, axis))

        return run.memo(("like activities", graph, axis), made)


def like_transfers(run: Run, rows: Index, axis: str) -> Index | None:
    """What transfers have in common with those of peers; -1 for other activities.

    Peers are collectives of one kind, size and phase: of other process groups in the same step
    where GPUs differ, of the same group in other steps where these do. None elsewhere. The
    place among the collectives of a step says less: records may be lost.
    """
    found = collectives_of(run) if axis != "layer" else None
    if found is None:
        return None
    place = first_equal(found.rows, rows)
    own = np.flatnonzero(place >= 0)
    sets = found.member_set[place[own]]
    own, sets = own[found.complete[sets]], sets[found.complete[sets]]
    table, group = run.table, found.group[sets]
    codes: list[Codes] = [found.kind[sets], found.bytes[sets], found.size[sets]]
    codes.append(table.phase[rows[own]])
    codes.append(group if axis == "iteration" else table.iteration[rows[own]])
    code = combined(codes)[1]
    count = int(code.max(initial=-1)) + 1
    if axis != "iteration":
        groups = _numbers_of(group, code, count)
        code = np.where(groups[code] > 1, code, -1)
    like = np.full(len(rows), -1, np.intp)
    like[own] = code
    return like


class UnevenWork(Struct, frozen=True, eq=False):
    """Compute that no peer runs at the same place, by cell: an operation of a layer and phase in a
    step, or on a GPU; where layers differ, of a phase of a step on a GPU.

    Arrays are over the activities of a graph but for `rows`, which are those of own work.
    """

    rows: Index
    own: Mask
    peers: Mask
    cell: Index
    """The cell of each activity, whoever runs it."""
    spot: Index
    """The cell of each activity, and who runs it."""
    cell_of_spot: Index
    is_extra: Mask
    """By cell: whether most peers that run the layer don't run the operation."""

    @classmethod
    def of(
        cls,
        table: KernelTable,
        rows: Index,
        own: Mask,
        peers: Mask,
        who: Codes,
        axis: str,
        same: Index,
    ) -> UnevenWork | None:
        """None where peers run all of the own compute."""
        computes = table.kind[rows] == Kind.COMPUTE
        differs = axis if axis in ("layer", "iteration") else "gpu"
        names = [name for name in ("gpu", "iteration", "phase", "layer") if name != differs]
        place = combined([table.column(name)[rows] for name in names])[1]
        cells, cell = combined([place, table.operation[rows]])
        spots, spot = combined([cell, who])

        peers = peers & computes

        def peers_of(code: Index, count: int) -> Int64:
            return _numbers_of(who[peers], code[peers], count)

        of_cell = peers_of(cell, len(cells))
        of_place = peers_of(place, int(place.max()) + 1)[cells[:, 0]]
        is_extra = 2 * of_cell < of_place
        # Most peers run the same; a few that have as much more to do are no measure.
        with_peers = 2 * peers_of(same, int(same.max(initial=-1)) + 1)[same] > of_cell[cell]
        with_peers &= ~is_extra[cell]
        found = np.flatnonzero(own & computes & ~with_peers)
        # Of the others nothing is known: no peer runs the operation, or the layer without it.
        kept = found[((of_cell > 0) | is_extra)[cell[found]]]
        if not len(kept):
            return None
        return cls(kept, own, peers, cell, spot, spots[:, 0].astype(np.intp), is_extra)

    def usual(self, time: Float64, matched: Float64) -> Float64:
        """The time of `rows`, so that each cell takes as long as the median of its peers'."""
        count = len(self.cell_of_spot)
        whole = sums_of(np.where(self.peers, time, 0.0), self.spot, count)
        has = counts_of(self.spot[self.peers], count) > 0
        cells = len(self.is_extra)
        usual = quantiles_of(whole[has], self.cell_of_spot[has], cells, (0.5,))[:, 0]
        usual = np.where(self.is_extra, 0.0, usual)
        known = self.own & np.isfinite(matched)
        rest = usual[self.cell_of_spot] - sums_of(np.where(known, matched, 0.0), self.spot, count)
        mine = sums_of(time[self.rows], self.spot[self.rows], count)
        factor = np.maximum(np.nan_to_num(rest), 0.0) / np.maximum(mine, 1.0)
        return np.asarray(time[self.rows] * factor[self.spot[self.rows]])


def _numbers_of(values: Codes, owner: Index, count: int) -> Int64:
    """How many different values each owner has."""
    pairs = combined([owner, values])[0]
    return counts_of(pairs[:, 0].astype(np.intp), count)


def _spread(
    time: Float64, median: Float64, who: Int64, known: Mask, *, is_whole: bool
) -> tuple[float, float]:
    """How far the whole time of one more peer is from the median of all, as factors: by their
    quantiles, of a few by Student's t, since these may all be on one side. `is_whole` is whether
    nobody is added, since the peers are all that is chosen."""
    codes, owner = ranked(who[known])
    whole, usual = (sums_of(each[known], owner, len(codes)) for each in (time, median))
    shares = ratios(whole, usual)
    shares = shares[np.isfinite(shares)]
    if len(shares) < 2:
        return 1.0, 1.0
    if is_whole or len(shares) >= _MANY_PEERS:
        low, high = quantile_of(shares, _SIDES).tolist()
    else:
        more = len(shares) - 1
        # Close to the same quantile of Student's t.
        errors = 1.28 + 0.95 / more + 0.85 / more**3
        half = errors * float(shares.std(ddof=1)) * (1 + 1 / len(shares)) ** 0.5
        low, high = max(1 - half, 0.0), 1 + half
    return min(low, 1.0), max(high, 1.0)


def student(count: int) -> float:
    """Close to the quantile of Student's t that 19 of 20 errors of a mean are below; of two or
    more values."""
    return 2.0 + 2.4 / (count - 1) + 8.4 / (count - 1) ** 3


def _as_schedule(table: KernelTable, nodes: Index, rows: Index, own: Mask) -> Change:
    code = table.operation[rows]
    count = len(table.operations)
    computes = table.kind[rows] == Kind.COMPUTE

    def new(work: Float64) -> Float64:
        time = work[nodes]
        median = quantiles_of(time, code, count, (0.5,))[:, 0]
        return np.where(computes, means_of(time, code, count)[code], median[code])[own]

    return Change(nodes[own], new)


def _same_kernels(table: KernelTable, rows: Index, axis: str) -> list[Index]:
    """What the same kernel has in common with that of peers, the closest first."""
    labels = {name: table.column(name)[rows] for name in ("gpu", "iteration", "phase", "layer")}
    operation, kernel = table.operation[rows], table.kernel[rows]
    work = ranked(comparable_kernels(table, rows))[1]
    nth = nth_of(kernel, operation, *labels.values())
    of_gpus = axis not in ("layer", "iteration")
    without = {"gpu"} if of_gpus else {axis}
    here: list[Codes] = [column for name, column in labels.items() if name not in without]
    near: list[Codes] = [labels["phase"], operation]
    near += [labels[name] for name in ("gpu", "iteration") if name not in without]
    codes: list[list[Codes]] = [[*here, operation, work, nth], [*near, work], near]
    if axis == "layer":
        codes[0] = [*here, operation, work]
    return [combined(each)[1] for each in codes]


def _is_extra(table: KernelTable, rows: Index, axis: str, peers: Mask) -> Mask:
    """Whether most peers run fewer activities of its name in the same phase than an activity's
    number there; those of a size that most peers run, too, come first."""
    same: list[Codes] = [table.phase[rows], table.kernel[rows]]
    spot: list[Codes] = [table.gpu[rows], table.iteration[rows]]
    if axis == "layer":
        same.append(table.operation[rows])
        spot.append(table.layer[rows])
    most = len(distinct(combined(spot)[1][peers]))

    def has_peers(alike: list[Codes], order: Index) -> Mask:
        columns = [each[order] for each in (*alike, *spot)]
        nth = np.empty(len(rows), np.int64)
        nth[order] = nth_of(*columns)
        code = combined([*alike, nth])[1]
        known = counts_of(code[peers], int(code.max(initial=-1)) + 1)[code]
        return np.asarray(2 * known >= most)

    of_size = has_peers([*same, table.bytes[rows]], np.arange(len(rows)))
    return ~has_peers(same, np.argsort(~of_size, kind="stable"))


def _units(table: KernelTable, rows: Index) -> Float64:
    """The work of activities: FLOPs, or bytes of communication and copies; NaN where unknown."""
    flops = table.measured.get(FLOPS)
    units = np.full(len(rows), np.nan) if flops is None else flops[rows].astype(np.float64)
    moved = table.bytes[rows]
    units = np.where(table.kind[rows] == Kind.COMPUTE, units, np.where(moved > 0, moved, np.nan))
    return np.where(units > 0, units, np.nan)


class NodesOfHosts(Struct, frozen=True, eq=False):
    """The host's nodes of a graph before a launch or the end of a step, whichever are asked
    about."""

    every: Index
    rows: Index
    """The row that each counts for."""
    is_after: Int8
    """Whether that was launched before."""
    back: Int64
    """A launch, or the end of a step, comes after the calls before it: how many are between."""
    is_first: Mask
    block: Index
    """The GPU, step and phase of each, as a number."""
    blocks: int

    @classmethod
    def of(cls, run: Run, graph: StepGraph) -> NodesOfHosts:
        def made() -> NodesOfHosts:
            table, every = run.table, nodes_of_host(graph)
            rows, is_after = rows_of_hosts(graph, every)
            every, rows, is_after = every[rows >= 0], rows[rows >= 0], is_after[rows >= 0]
            back = nth_of(rows[::-1], is_after[::-1])[::-1]
            block = combined([table.gpu[rows], table.iteration[rows], table.phase[rows]])[1]
            blocks = int(block.max(initial=-1)) + 1
            return cls(every, rows, is_after, back, back == 0, block, blocks)

        return run.memo(("host nodes", graph), made)


class LikeLaunches(Struct, frozen=True, eq=False):
    """What the host's nodes of a graph have in common with those of peers, by some labels."""

    launch: Index
    code: Index
    count: int
    in_step: Index
    steps: int
    has_step: Mask
    """Whether several GPUs have it in a step."""

    @classmethod
    def of(cls, run: Run, graph: StepGraph, names: Sequence[str]) -> LikeLaunches:
        def made() -> LikeLaunches:
            table, hosts = run.table, NodesOfHosts.of(run, graph)
            rows, same = hosts.rows, [table.column(name) for name in names]
            launch = combined([*same, nth_of(*same, table.gpu, table.iteration)])[1][rows]
            launch = combined([launch, hosts.is_after])[1]
            code = combined([launch, hosts.back])[1]
            in_step = combined([code, table.iteration[rows]])[1]
            steps = int(in_step.max(initial=-1)) + 1
            has_step = _numbers_of(table.gpu[rows], in_step, steps)[in_step] > 1
            return cls(launch, code, int(code.max(initial=-1)) + 1, in_step, steps, has_step)

        return run.memo(("like launches", graph, names), made)


_LAUNCHES: Final = (("phase", "layer", "operation", "kernel"), ("phase", "operation", "kernel"))
"""Labels of a launch that is the same on peers, the closest first."""


def host_as_peers(run: Run, graph: StepGraph, nodes: Index, axis: str) -> Change:
    """The host's time before the same launches on other GPUs in the same step, else in any; where a
    whole phase is chosen, that of all of them. Steps have those of the same GPU as peers: what its
    host does in all of them stays.

    A call that most of them don't make there takes no time, and waits for nothing. A phase of a
    step whose host is no slower than its peers' keeps its times: this never makes steps longer.
    """
    table, hosts = run.table, NodesOfHosts.of(run, graph)
    every, rows, block, blocks = hosts.every, hosts.rows, hosts.block, hosts.blocks
    own = np.isin(every, nodes)
    # Of a phase that is chosen on all GPUs and in all steps, each is a peer of the others.
    phase = ranked(table.phase[rows])[1]
    is_whole = counts_of(phase[own], int(phase.max(initial=-1)) + 1) == counts_of(phase)
    spots = (table.gpu[rows], table.iteration[rows])
    is_everywhere = all(
        len(distinct(each[own])) >= len(distinct(each[each != NO_LABEL])) for each in spots
    )
    peers = ~own | (is_whole[phase] & is_everywhere)
    for names in _LAUNCHES:
        alike = LikeLaunches.of(run, graph, names)
        launch, code, count = alike.launch, alike.code, alike.count
        launches = int(launch.max(initial=-1)) + 1
        there = counts_of(launch[peers & hosts.is_first], launches)[launch]
        known = counts_of(code[peers], count)[code]
        is_alike = _mostly_alike(launch[own], launch[peers])
        if is_alike:
            break  # Else no peer runs these layers, as in another stage of a pipeline.
    is_extra = own & (2 * known < there)
    if is_alike:
        # A launch that none of them has is more than they do.
        is_extra |= own & (known == 0)
    of_gpu = combined([code, table.gpu[rows]])[1] if axis == "iteration" else None
    if of_gpu is not None:
        is_extra &= counts_of(of_gpu[peers], int(of_gpu.max(initial=-1)) + 1)[of_gpu] == 0
    extra = np.zeros(len(graph), np.bool_)
    extra[every[is_extra]] = True

    def new(work: Float64) -> Float64:
        time = work[every]
        usual = quantiles_of(time[peers], code[peers], count, (0.5,))[:, 0][code]
        in_step, steps = alike.in_step, alike.steps
        of_step = quantiles_of(time[peers], in_step[peers], steps, (0.5,))[:, 0][in_step]
        usual = np.where(alike.has_step & np.isfinite(of_step), of_step, usual)
        if of_gpu is not None:
            gpus = int(of_gpu.max(initial=-1)) + 1
            always = quantiles_of(time[peers], of_gpu[peers], gpus, (0.5,))[:, 0][of_gpu]
            usual = np.where(np.isfinite(always), always, usual)
        usual = np.where(is_extra, 0.0, np.where(np.isfinite(usual), usual, time))
        is_slower = sums_of(time, block, blocks) > sums_of(usual, block, blocks)
        return np.asarray(np.where(is_slower[block], usual, time)[own])

    free = np.flatnonzero(extra[graph.target] & (graph.evidence == Evidence.BLOCKED))
    return Change(every[own], new, free=free)


def _mostly_alike(own: Index, peers: Index) -> bool:
    """Whether hosts launch the same, but for what one of them launches in addition."""
    codes, others = distinct(own), distinct(peers)
    both = np.count_nonzero(np.isin(codes, others))
    return 2 * int(both) > min(len(codes), len(others))


def without_contention(predictor: Predictor, chosen: Mask, *, as_others: bool = False) -> Change:
    """Compute that communication doesn't slow, or slows as it does the other operations."""
    found = predictor.contention
    if found is None:
        raise NothingToShow(
            "the cost of contention is unknown: communication never runs during compute, or always "
            "as much"
        )
    own = chosen[found.rows]
    if as_others and not found.known[:, found.owner[own]].any():
        raise NothingToShow(
            "how much communication slows it is unknown: it always runs during as much of it, or "
            "never"
        )

    def rates(now: Float64) -> Float64:
        new = now.copy()
        for of in range(2):
            others = now[of][~own & found.known[of][found.owner]]
            usual = median_of(others) if as_others and len(others) else 0.0
            new[of, own] = np.minimum(now[of, own], usual)
        return new

    during = (predictor.shares * predictor.run.table.duration_ns[found.rows])[:, own]
    open_ns = during[~found.known[:, found.owner[own]]].sum() / max(during.sum(), 1.0)
    note = f"contention is estimated from other operations for {100 * open_ns:.0f} % of the time"
    nothing = np.zeros(0, np.intp)
    notes = (note,) if open_ns >= 0.01 else ()
    return Change(nothing, lambda work: work[nothing], notes, rates)


# Clock


def bound_by_memory(run: Run, rows: Codes | slice = slice(None)) -> Mask:
    """Which of some activities are kernels that memory bounds: by the FLOPs and bytes of their
    operators' inputs, where these and the GPU's peaks are known, else those without matrix
    products."""
    table, chip = run.table, run.hardware
    used = np.flatnonzero(counts_of(table.kernel, len(table.names)))
    bound = np.zeros(len(table.names), np.bool_)
    classes = kernel_classes([table.names[code] for code in used.tolist()])
    bound[used] = [each not in MATRIX_CLASSES for each in classes]
    found = bound[table.kernel[rows]]
    flops, moved = (table.measured.get(name) for name in (FLOPS, MODEL_BYTES))
    if chip is not None and flops is not None and moved is not None:
        element = table.measured.get(FLOPS_TYPE)
        types = np.full(len(found), np.nan) if element is None else element[rows]
        at_peak, moving = chip.at_peak_ns(flops[rows], types), moved[rows] / chip.memory_gbps
        known = (at_peak > 0) & (moving > 0)
        found = np.where(known, moving > at_peak, found)
    return np.asarray(found & (table.kind[rows] == Kind.COMPUTE), np.bool_)


def at_clock(run: Run, graph: StepGraph, chosen: Mask, mhz: float) -> Change:
    """Compute at another clock: its time goes with 1 / clock ** exponent (`clock_response`)."""
    table, chip = run.table, run.hardware
    if known_of("gfx_mhz") not in table.measured:
        raise NothingToShow("the clock of the GPUs is unknown: it needs telemetry")
    rows = graph.row[graph.activities]
    place = np.flatnonzero(chosen[rows] & (table.kind[rows] == Kind.COMPUTE))
    rows = rows[place]
    area, time = (table.measured[name] for name in (integral_of("gfx_mhz"), known_of("gfx_mhz")))
    clock = ratios(area[rows], time[rows])
    low, high = np.zeros(len(rows)), np.ones(len(rows))
    if chip is not None:
        low, high = (each[rows] for each in clock_response(table, chip).of(table))
    # Shorter than a sample: the clock of its neighbours on the GPU would change it little.
    ratio = np.where(clock > 0, clock, mhz) / mhz
    ends = np.sort(np.stack([ratio**low, ratio**high]), axis=0)
    # What matrix units bound is compute-bound, as far as the run leaves it open.
    likely = ratio ** np.where(bound_by_memory(run, rows), low, high)
    spent = table.duration_ns[rows]
    open_ns = float(spent[high - low > 0].sum() / max(spent.sum(), 1))
    note = f"how {100 * open_ns:.0f} % of the compute time follows the clock is known within bounds"
    sides = np.stack([ends[0], likely, ends[1]])
    return scaled(graph.activities[place], sides, *([note] if open_ns >= 0.01 else []))


# Communication


def at_peak(run: Run, graph: StepGraph, chosen: Mask) -> Change:
    """Transfers as the fastest tenth of the same kind, process group and size; at most as fast as
    the fastest tenth of any size, per byte."""
    table, found, acts = run.table, collectives_of(run), graph.activities
    set_of = np.full(len(table), -1, np.int64)
    if found is not None:
        own = found.complete[found.member_set]
        set_of[found.rows[own]] = found.member_set[own]
    sets = set_of[graph.row[acts]]
    every = np.flatnonzero(sets >= 0)
    own = chosen[graph.row[acts[every]]]
    if found is None or not own.any():
        raise NothingToShow("no collective has all its ranks in the files: transfers are unknown")
    moved = np.maximum(found.bytes[sets[every]], 1).astype(np.float64)
    kind = combined([found.kind[sets[every]], found.group[sets[every]]])[1]
    same = combined([kind, found.bytes[sets[every]]])[1]

    def new(work: Float64) -> Float64:
        time = work[acts[every]]
        per_byte, like = (
            quantiles_of(value, code, int(code.max()) + 1, (_FASTEST,))[:, 0][code]
            for value, code in ((time / moved, kind), (time, same))
        )
        like = np.minimum(like, time)
        least = np.where(moved > 1, np.minimum(per_byte * moved, like), like)
        return np.stack([least, like, like])[:, own]

    return Change(acts[every[own]], new)


def balanced(run: Run, graph: StepGraph, chosen: Mask) -> Change:
    """The same work in all, shared evenly: each GPU that computes in an operation of a layer and
    step takes the mean time of them all there."""
    table, acts = run.table, graph.activities
    rows = graph.row[acts]
    own = np.flatnonzero(chosen[rows] & (table.kind[rows] == Kind.COMPUTE))
    if len(distinct(table.gpu[rows[own]])) < 2:
        raise NothingToShow("no compute of several GPUs is chosen: nothing can be shared")
    labels = [getattr(table, name)[rows[own]] for name in ("iteration", "phase", "layer")]
    # Names may list what differs, such as tokens.
    names = [each.partition("[")[0] for each in table.operations]
    first: dict[str, int] = {}
    same = [first.setdefault(name, code) for code, name in enumerate(names)]
    labels.append(np.array([*same, NO_LABEL], np.int64)[table.operation[rows[own]]])
    cells, cell = combined([each.astype(np.int64) for each in labels])
    shares, share = combined([cell.astype(np.int64), table.gpu[rows[own]].astype(np.int64)])
    of_cell = shares[:, 0].astype(np.intp)

    def new(work: Float64) -> Float64:
        time = work[acts[own]]
        sums = sums_of(time, share, len(shares))
        means = means_of(sums, of_cell, len(cells))
        factors: Float64 = means[of_cell] / np.maximum(sums, 1.0)
        return time * factors[share]

    return Change(acts[own], new)


def stages_balanced(run: Run, graph: StepGraph, chosen: Mask) -> Change:
    """The same work in all, moved between pipeline stages until each computes for as long in each
    phase of a step."""
    table, acts = run.table, graph.activities
    rows = graph.row[acts]
    own = np.flatnonzero(chosen[rows] & (table.kind[rows] == Kind.COMPUTE))
    gpu = table.gpu[rows[own]].astype(np.int64)
    stage = table.coordinates["pp"].astype(np.int64)
    if len(distinct(stage[gpu])) < 2:
        raise NothingToShow("no compute of several stages is chosen: nothing can be moved")
    labels = [table.column(name)[rows[own]].astype(np.int64) for name in ("iteration", "phase")]
    cells, cell = combined(labels)
    shares, share = combined([cell.astype(np.int64), stage[gpu]])
    of_cell = shares[:, 0].astype(np.intp)
    gpus = counts_of(ranked(stage)[1])[first_equal(distinct(stage), shares[:, 1])]

    def new(work: Float64) -> Float64:
        time = work[acts[own]]
        of_stage = sums_of(time, share, len(shares)) / gpus
        even = means_of(of_stage, of_cell, len(cells))
        factors: Float64 = even[of_cell] / np.maximum(of_stage, 1.0)
        return time * factors[share]

    return Change(acts[own], new)


def hidden(run: Run, graph: StepGraph, chosen: Mask) -> Change:
    """Communication that compute hides, as far as it can."""
    rows, ns = exposed_transfers(run, np.flatnonzero(chosen & (run.table.kind == Kind.COMM)))
    less = np.zeros(len(run.table))
    less[rows] = ns
    nodes = graph.activities[less[graph.row[graph.activities]] > 0]
    taken = less[graph.row[nodes]]
    return Change(nodes, lambda work: np.maximum(work[nodes] - taken, 0.0))


def exposed_transfers(
    run: Run, rows: Index, iterations: tuple[int, ...] = ()
) -> tuple[Index, Float64]:
    """The exposed communication of some rows, without waiting for others, in ns; less what nothing
    can hide: of each step the first two gathers and the last two reductions, up to a part of it.

    Of a large run with the rows of some steps alone, collectives are matched in these.

    What a transfer takes longer than like ones is a slow link's, and not to be hidden.
    """
    table, found = run.table, collectives_of(run, iterations)
    alone = table.exposed_comm_ns[rows].astype(np.float64)
    if found is not None:
        place = first_equal(found.rows, rows)
        matched = np.flatnonzero(place >= 0)
        place = place[matched]
        like = combined([found.kind, found.bytes, found.size])[1]
        fast = quantiles_of(found.transfer_ns, like, int(like.max()) + 1, (_USUAL,))[like, 0]
        least = alone[matched] - found.member_exposed_ns[place]
        alone[matched] = np.clip(least, 0.0, fast[found.member_set[place]])
    own = np.flatnonzero(~np.isin(table.phase[rows], (Phase.OPTIMIZER, Phase.DATA)))
    if len(own):
        own = own[stable_order(table.start_ns[rows[own]])]
        step = combined([table.gpu[rows[own]], table.iteration[rows[own]]])[1]
        order = stable_order(step)
        own, first = own[order], run_starts(step[order])
        last = np.append(first[1:], len(own)) - 1
        nearest = (first, np.minimum(first + 1, last), last, np.maximum(last - 1, first))
        ends = own[distinct(np.concatenate(nearest))]
        steps = run.tree().split((), ("iteration",))
        own_steps = np.isin(steps.codes("iteration"), iterations) if iterations else slice(None)
        most = _ENDS * float(steps.elapsed_ns[own_steps].sum())
        alone[ends] *= max(1.0 - most / max(float(alone[ends].sum()), 1.0), 0.0)
    return rows, alone


def _doubtful_lag(graph: StepGraph) -> Int64 | None:
    """The lags of the edges, with those that hold nothing back for which no launch speaks.

    Only where a node waits for something recorded too. None without any.
    """
    target, recorded = graph.target, ~np.isin(graph.evidence, INFERRED)
    has_more = counts_of(target[recorded], len(graph)) > 0
    doubtful = (graph.evidence == Evidence.UNKNOWN) & has_more[target]
    return np.where(doubtful, _FREE, graph.lag_ns) if doubtful.any() else None
