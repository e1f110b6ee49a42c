"""What a finding is worth: a replay of the steps without the time that it costs.

The time is taken from the work of its activities: from that of kernels, transfers and copies, from
what the host does before their launches, or from the time that a launch takes to arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.graph.dependencies import Evidence
from chopper_core.graph.questions import (
    Predicted,
    Predictor,
    as_peers,
    host_nodes,
    launched_rows,
    scaled,
    without_contention,
)
from chopper_core.graph.step_graph import NodeKind, StepGraph, replay
from chopper_core.graph.window import ReplayedSteps
from chopper_core.model.column_names import MICROBATCH
from chopper_core.model.side_table import HostLane, HostState
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    combined,
    distinct,
    first_equal,
    means_of,
    medians_along,
    others_median,
    ranked,
    stable_order,
    sums_of,
)
from chopper_core.views.findings.rule import (
    CELL,
    COMPUTES,
    Cost,
    Finding,
    FindingsContext,
    Removal,
)
from chopper_core.views.shared.host_causes import HostCharges, host_charges

MAX_ERROR: Final = 0.02
"""Of the step: with a larger error of the replay, savings stay estimates."""
MAX_UNLAUNCHED: Final = 0.05
"""Of the activities: without launch records, what their hosts did before them is unknown."""
_CONTENDED: Final = 0.005
"""Of the step: what fewer waits change in a smaller saving is next to nothing."""
_SAME_GAIN: Final = 0.3
"""The part of the largest gain from which on iterations are compared."""
_MIN_BEYOND: Final = 0.5
"""Of what some GPUs cost: where they take less than that beyond their peers, all their compute is
too long."""
_MAX_CALLS: Final = 64
"""Of a host, that are walked back from a launch."""


class Worth(Struct, frozen=True, eq=False, dict=True):
    """The steps of a context, to replay them without what findings cost."""

    context: FindingsContext
    replays: ReplayedSteps
    identity_ns: Int64
    """The time of each step."""

    @property
    def is_schedule(self) -> bool:
        return MICROBATCH in self.context.table.measured

    @property
    def graph(self) -> StepGraph:
        return self.predictor.graph

    @classmethod
    def of(cls, context: FindingsContext) -> Worth | None:
        """None where steps can't be replayed: too many activities, unknown hosts, a large error."""
        run = context.run
        if context.view.path:
            return None  # What a part is worth to the whole step says little about the part.
        is_schedule = MICROBATCH in run.table.measured
        # Without the calls of hosts, their waiting for GPUs looks like work.
        is_known = is_schedule or (len(run.side(HostLane).gpu) and not run.is_reconstructed)
        if not is_known:
            return None
        took, steps = context.elapsed_ns + context.moved_ns, (context.gpus, context.iterations)
        try:
            replays = ReplayedSteps.of_run(run, *steps, took.mean(axis=0))
        except NothingToShow:
            return None
        graph = replays.predictor.graph
        if not is_schedule and graph.unlaunched > MAX_UNLAUNCHED * len(graph.activities):
            return None
        times = replays.times_ns(replays.predictor.identity.replayed)
        measured = replays.mean(replays.measured(took, *steps))
        if abs(replays.mean(times) - measured) > MAX_ERROR * measured:
            return None
        return cls(context, replays, times)

    @property
    def predictor(self) -> Predictor:
        return self.replays.predictor

    def saved_ns(self, removals: Iterable[Removal]) -> Int64:
        """How much shorter each step is on each GPU when all of that time is removed.

        Of a large saving, a second replay has the contention that follows from the waits of a
        first one.
        """
        graph = self.graph
        work, lag = graph.work_ns.astype(np.float64), graph.lag_ns.astype(np.float64)
        for each in removals:
            work, lag = work - each.work_ns, lag - each.lag_ns
        left, lags = (np.rint(np.maximum(ns, 0.0)).astype(np.int64) for ns in (work, lag))
        nodes = np.flatnonzero(left != graph.work_ns)
        found = Predicted(left, lags, replay(graph, left, lags))
        saved = self.identity_ns - self.replays.times_ns(found.replayed)
        is_large = self.replays.mean(saved) > _CONTENDED * self.identity_ns.mean()
        if self.predictor.contention is not None and is_large:
            parts = left[nodes] / graph.work_ns[nodes]
            found = self.predictor.predict([scaled(nodes, parts)], start=found, lag_ns=lags)
            saved = self.identity_ns - self.replays.times_ns(found.replayed)
        return saved

    def of_finding(self, finding: Finding, holds: tuple[float, float]) -> Finding:
        """A finding with the saving by replay, and its range.

        The range allows for what the rule leaves open, for iterations that gain more or less, and
        for GPUs that gain more than the mean of all.
        """
        shown = self._of_contention(finding) if finding.cost == Cost.CONTENTION else None
        removal = self.removal(finding) if shown is None else shown[0]
        saved = (self.saved_ns([removal]) if shown is None else shown[1]).astype(np.float64)
        replays = self.replays
        by_step = means_of(saved, ranked(replays.steps.iteration[replays.own])[1])
        saving = max(replays.mean(saved), 0.0)
        gains = by_step[by_step > _SAME_GAIN * by_step.max(initial=0.0)]
        error = 0.0
        if len(gains) > 1:
            error = 2 * float(gains.std()) / float(gains.mean()) / np.sqrt(len(gains))
        most = max(saving, float(replays.by_gpu(saved).max()))
        low, high = max(holds[0] - error, 0.0) * saving, (holds[1] + error) * most
        low, high = max(low - replays.error(saved), 0.0), high + replays.error(saved)
        if finding.high_ns is not None and finding.rows is None:
            high = max(most, finding.high_ns)
        found = replace(finding, saving_ns=saving, low_ns=low, high_ns=high)
        return replace(found, estimate_ns=finding.saving_ns, removal=removal)

    def removal(self, finding: Finding) -> Removal:
        """The time that a finding costs on its GPUs, by what it is taken from."""
        cells = self.context.cells_about(finding)
        work, lag = np.zeros(len(self.graph)), np.zeros(len(self.graph.lag_ns))
        if finding.rows is not None:
            np.add.at(work, *self._at_work(*finding.rows))
            return Removal(work, lag)
        gpus = len(distinct(self.context.place("gpu")[cells]))
        if self.is_schedule and finding.cost in COMPUTES:
            return self._of_schedule(cells)
        rows = self.context.cells.rows[np.repeat(cells, self.context.cells.sizes())]
        is_of_some = 2 * gpus <= len(self.context.gpus)
        excess = finding.excess_ns or {finding.cost: finding.saving_ns or 0.0}
        for cost, each in excess.items():
            total = each * gpus * len(self.context.iterations)
            removed = self._removed(cost, total, cells, rows, is_of_some)
            work, lag = work + removed.work_ns, lag + removed.lag_ns
        return Removal(work, lag)

    def _of_schedule(self, cells: Mask) -> Removal:
        """What operations of a schedule take beyond the mean of their kind."""
        chosen = np.zeros(len(self.context.table), np.bool_)
        chosen[self.context.cells.rows[np.repeat(cells, self.context.cells.sizes())]] = True
        change = as_peers(self.context.run, self.graph, chosen, "gpu")
        work = np.zeros(len(self.graph))
        own = self.graph.work_ns.astype(np.float64)
        work[change.nodes] = own[change.nodes] - change.work(own)
        return Removal(work, np.zeros(len(self.graph.lag_ns)))

    def _of_contention(self, finding: Finding) -> tuple[Removal, Int64] | None:
        """What communication slows a finding's operations by beyond the others, and how much
        shorter each step is without; None where the run doesn't show it."""
        graph, context = self.graph, self.context
        sizes, cells = context.cells.sizes(), context.cells_about(finding)
        chosen = np.zeros(len(context.table) + 1, np.bool_)
        chosen[context.cells.rows[np.repeat(cells, sizes)]] = True
        if self.predictor.contention is None:
            return None
        change = without_contention(self.predictor, chosen[:-1], as_others=True)
        found = self.predictor.predict([change])
        less = np.where(chosen[graph.row], np.maximum(graph.work_ns - found.work_ns, 0), 0)
        steps = distinct(self.replays.steps.iteration[self.replays.own])
        least = _MIN_BEYOND * (finding.saving_ns or 0.0) * len(context.gpus) * len(steps)
        if less[np.isin(graph.iteration, steps)].sum() < least:
            return None
        saved = self.identity_ns - self.replays.times_ns(found.replayed)
        return Removal(less.astype(np.float64), np.zeros(len(graph.lag_ns))), saved

    def _removed(
        self, cost: Cost, total: float, cells: Mask, rows: Index, is_of_some: bool
    ) -> Removal:
        """Take a time from activities: of some GPUs, from what takes them longer than others."""
        context, graph = self.context, self.graph
        work, lag = np.zeros(len(graph)), np.zeros(len(graph.lag_ns))

        def parts(of: Float64) -> Float64:
            return of * (total / max(float(of.sum()), 1.0))

        spots = context.place("gpu") * len(context.iterations) + context.place("iteration")
        if cost == Cost.HOST and len(distinct(spots[cells])) == context.spots:
            return self._whole_hosts(rows)
        if cost == Cost.HOST:
            late = self._late(cells, rows, is_of_some)
            return self._of_hosts(parts(late if late.any() else self._late(cells, rows, False)))
        if cost == Cost.LAUNCH:
            edges = np.flatnonzero(graph.evidence == Evidence.LAUNCH)
            idle = np.zeros(len(context.table))
            idle[rows] = context.table.idle_launch_ns[rows]
            lag[edges] = parts(idle[graph.row[graph.target[edges]]])
            return Removal(work, lag)
        kinds = {Cost.COMMUNICATION: Kind.COMM, Cost.COPIES: Kind.COPY}
        rows = rows[context.table.kind[rows] == kinds.get(cost, Kind.COMPUTE)]
        own = context.table.duration_ns[rows].astype(np.float64)
        if cost == Cost.COMMUNICATION:
            own = context.table.exposed_comm_ns[rows].astype(np.float64)
        elif cost in COMPUTES and is_of_some:
            beyond = (self._more_work if cost == Cost.WORK else self._beyond_peers)[rows]
            own = beyond if beyond.sum() >= _MIN_BEYOND * total else own
        np.add.at(work, *self._at_work(rows, parts(own)))
        return Removal(work, lag)

    def _whole_hosts(self, rows: Index) -> Removal:
        """All that the hosts do before the launches of some rows."""
        graph, every = self.graph, host_nodes(self.graph)
        chosen = np.zeros(len(self.context.table) + 1, np.bool_)
        chosen[rows] = True
        own = np.zeros(len(graph), np.bool_)
        own[every[chosen[launched_rows(graph, every)]]] = True
        returns = (graph.evidence == Evidence.BLOCKED) & own[graph.target]
        work, lag = np.where(own, graph.work_ns, 0), np.where(returns, graph.lag_ns, 0)
        return Removal(work.astype(np.float64), lag.astype(np.float64))

    def _at_work(self, rows: Index, ns: Float64) -> tuple[Index, Float64]:
        """The nodes at which some rows work, and as much of a time as each does."""
        nodes = np.full(len(self.context.table), -1, np.int64)
        nodes[self.graph.row[self.graph.activities]] = self.graph.activities
        own = nodes[rows] >= 0
        return nodes[rows][own], np.minimum(ns[own], self.graph.work_ns[nodes[rows][own]])

    @cached_property
    def _beyond_peers(self) -> Float64:
        """How much longer each row takes than the same kernel on the other GPUs."""
        found = np.zeros(len(self.context.table))
        leads = self.context.leads
        for own in leads.peers if leads is not None else ():
            took = np.array(list(own.durations_ns()), np.float64)
            if len(took) > 1:
                usual = np.array(
                    [medians_along(np.delete(took, k, 0), 0) for k in range(len(took))]
                )
                found[own.rows] = np.maximum(took - usual, 0.0).T
        return found

    @cached_property
    def _more_work(self) -> Float64:
        """How much longer each row takes for its part of the work that its GPU has more of than
        the others, in the same operation, layer, phase and iteration."""
        context, cells = self.context, self.context.cells
        table, rows = context.table, cells.rows
        took = np.where(table.kind[rows] == Kind.COMPUTE, table.duration_ns[rows], 0)
        owner = np.repeat(np.arange(len(cells)), cells.sizes())
        sums = sums_of(took.astype(np.float64), owner, len(cells))
        place = context.together(*CELL[1:])[1]
        by_gpu = np.zeros((len(context.gpus), int(place.max(initial=-1)) + 1))
        by_gpu[context.place("gpu"), place] = sums
        beyond = np.maximum(by_gpu - np.nan_to_num(others_median(by_gpu)), 0.0)
        parts = beyond[context.place("gpu"), place] / np.maximum(sums, 1.0)
        found = np.zeros(len(table))
        found[rows] = took * parts[owner]
        return found

    @cached_property
    def _charges(self) -> tuple[HostCharges, Index, Index]:
        """The idle time before launch calls, by GPU and the iteration that the host is in."""
        context, found = self.context, host_charges(self.context.run)
        whose = first_equal(np.array(context.gpus), context.table.gpu[found.row].astype(np.int64))
        when = first_equal(np.array(context.iterations), found.iteration)
        own = (found.state == HostState.LATE) & (whose >= 0) & (when >= 0)
        return found.take(own), whose[own], when[own]

    def _late(self, cells: Mask, rows: Index, is_beyond: bool) -> Float64:
        """The idle time of a finding by row, or the part of it that other GPUs lack."""
        context, (charges, whose, when) = self.context, self._charges
        inside = np.zeros(len(context.table), np.bool_)
        inside[rows] = True
        place = context.place("gpu") * len(context.iterations) + context.place("iteration")
        steps = np.isin(np.arange(context.spots), place[cells]).reshape(len(context.gpus), -1)
        # What ends in another iteration is in none of the cells.
        moved = charges.iteration != context.table.iteration[charges.row]
        own = steps[whose, when] & (inside[charges.row] | moved)
        ns = charges.ns * self._beyond_others if is_beyond else charges.ns
        found = sums_of(ns[own], charges.row[own], len(context.table))
        return np.asarray(found, np.float64)

    @cached_property
    def _beyond_others(self) -> Float64:
        """The part of each piece of idle time that the other GPUs lack in the same phase."""
        context, (charges, whose, when) = self.context, self._charges
        table, gpus = context.table, len(context.gpus)
        moved = charges.iteration != table.iteration[charges.row]
        names, place = combined([when, table.phase[charges.row].astype(np.int64), moved * 1])
        sums = sums_of(charges.ns, place * gpus + whose, len(names) * gpus).reshape(-1, gpus)
        usual = np.nan_to_num(others_median(sums.T.astype(np.float64)).T)
        parts = np.clip(1 - usual / np.maximum(sums, 1), 0.0, 1.0)
        return np.asarray(parts[place, whose], np.float64)

    def _of_hosts(self, late: Float64) -> Removal:
        """Take time from hosts, from that right before the launch of each row on."""
        graph = self.graph
        left, target = graph.work_ns.astype(np.float64), graph.target
        blocked = np.flatnonzero(graph.evidence == Evidence.BLOCKED)
        wakes = np.zeros(len(graph))
        np.maximum.at(wakes, target[blocked], graph.lag_ns[blocked])
        edges = np.flatnonzero(graph.evidence == Evidence.LAUNCH)
        asked = np.zeros(len(graph))
        np.add.at(asked, graph.source[edges], late[graph.row[target[edges]]])
        hosts = np.flatnonzero(np.isin(graph.kind, (NodeKind.HOST, NodeKind.RETURN)))
        hosts = hosts[stable_order(graph.gpu[hosts])]
        same = graph.gpu[hosts[1:]] == graph.gpu[hosts[:-1]]
        before = np.full(len(graph), -1, np.int64)
        before[hosts[1:][same]] = hosts[:-1][same]
        lag, nodes = np.zeros(len(graph)), np.flatnonzero(asked)
        rest = asked[nodes]
        for _ in range(_MAX_CALLS):
            for available, taken in ((left, None), (wakes, lag)):
                some = np.minimum(rest, available[nodes])
                available[nodes] -= some
                rest = rest - some
                if taken is not None:
                    taken[nodes] += some
            nodes = before[nodes]
            more = (rest > 0) & (nodes >= 0)
            nodes, rest = nodes[more], rest[more]
            if not len(nodes):
                break
        of_edges = np.zeros(len(graph.lag_ns))
        of_edges[blocked] = lag[target[blocked]]
        return Removal(graph.work_ns - left, of_edges)
