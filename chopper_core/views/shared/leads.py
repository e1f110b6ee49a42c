"""The GPUs of a scope side by side: who holds the others up, since when, and why."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import stable_order
from chopper_core.views.shared.matched_kernels import (
    Occurrences,
    compared_iterations,
    occurrences_of,
    others_lead,
    sums_by,
    within,
)
from chopper_core.views.shared.rank_times import RankTimes
from chopper_core.views.shared.stragglers import (
    MIN_CAUSE_SHARE,
    Straggler,
    cause_of,
    stragglers_of,
)

_ONSET_SHARE: Final = 0.1
"""The share of the largest mean lead from which the lag begins."""


class RankLeads(RankTimes, frozen=True, eq=False, dict=True):
    """The GPUs of a scope, side by side, and those of them that the others wait for."""

    @cached_property
    def stragglers(self) -> tuple[Straggler, ...]:
        """The GPUs that the others wait for, the one that delays them most first."""
        return stragglers_of(self)

    @property
    def is_straggler(self) -> bool:
        """Whether any GPU's lag is large enough to matter."""
        return bool(self.stragglers)

    @property
    def found(self) -> Occurrences:
        """The matched compute of the straggler and its peers."""
        return self.peers[self.set_of[self.behind]]

    @property
    def late_column(self) -> int:
        """The straggler's column in `found`."""
        return self.found.gpus.index(self.gpus[self.behind])

    @cached_property
    def behind(self) -> int:
        """The place of the GPU that delays the others most; without collectives of the last."""
        late = self.stragglers
        if late:
            return late[0].place
        lead = np.where(np.isnan(self.mean_lead_ns), np.inf, self.mean_lead_ns)
        return int(lead.argmin())

    @property
    def ahead_ns(self) -> float:
        """How much earlier than the straggler its peers start a kernel, on average."""
        found = self.found
        if len(found.gpus) < 2 or not len(found):
            return 0.0
        return float(others_lead(found, self.late_column).mean())

    def causes(self) -> list[str | None]:
        """Why each GPU lags; None without a cause."""
        late = {one.place: one.cause for one in self.stragglers}
        least = MIN_CAUSE_SHARE * self.typical_ns
        return [
            late[place] if place in late else cause_of(self, place, (), least)
            for place in range(len(self.gpus))
        ]

    def onset(self) -> tuple[str, str] | None:
        """The first phase and layer of the step from which on the others lead."""
        found, column = self.found, self.late_column
        first = found.rows[:, 0]
        phase, layer = (
            self.table.column(level)[first].astype(np.int64) for level in ("phase", "layer")
        )
        width = int(layer.max()) + 2
        # A missing label has the code -1.
        code = (phase + 1) * width + layer + 1
        there = np.bincount(code) > 0
        names = np.flatnonzero(there)
        cell = (np.cumsum(there) - 1)[code]
        count = np.bincount(cell)
        lead = others_lead(found, column)
        mean = np.bincount(cell, weights=lead) / count
        behind = sums_by(cell, found.lead_ns.T, len(count)).argmin(axis=1) == column
        late = behind & (mean >= _ONSET_SHARE * mean.max()) & (mean > 0)
        if not late.any():
            return None
        # The step's order is that of the mean places of the cells in their iterations.
        since = np.bincount(cell, weights=self.places()) / count
        chosen = int(np.where(late, since, np.inf).argmin())
        at_phase, at_layer = divmod(int(names[chosen]), width)
        return (
            self.table.text_of("phase", at_phase - 1),
            self.table.text_of("layer", at_layer - 1),
        )

    def places(self) -> Float64:
        """When each occurrence starts on the last GPU, as a share of its iteration's time."""
        iteration = self.table.iteration[self.found.rows[:, 0]]
        order = stable_order(iteration)
        start = self.found.last_start_ns[order]
        # Occurrences are in order of time, and stay so within an iteration.
        first = np.flatnonzero(np.diff(iteration[order], prepend=iteration[order][:1] - 1))
        number = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
        begin, end = start[first], start[np.append(first[1:], len(order)) - 1]
        share = np.empty(len(order))
        share[order] = (start - begin[number]) / np.maximum(end - begin, 1)[number]
        return share


def leads(run: Run, view: View) -> tuple[RankLeads, View]:
    """The GPUs in a view's scope, and the view without a GPU of its own; raises UsageError."""
    view = of_all_gpus(view)
    node = run.tree_of(view).node(view.path)
    compared = compared_iterations(run, view)
    peers = occurrences_of(run, compared)
    if sum(len(own.gpus) for own in peers) < 2:
        raise NothingToShow("the run has compute on one GPU only; ranks compares several")
    if view.path or run.left_out(view):
        peers = tuple(within(run, own, node) for own in peers)
        # Those without an occurrence in a scope of coordinates are outside it.
        peers = tuple(own for own in peers if len(own))
    if not peers or not any(map(len, peers)):
        raise NothingToShow(
            "no compute kernel of the scope runs on all GPUs, so they can't be compared"
        )
    return RankLeads.of(run, view, node, compared, peers), view


def of_all_gpus(view: View) -> View:
    """The same scope on all GPUs, of which an activity is the kernel that it is of."""
    levels = [(level, label) for level, label in view.scope if level not in ("gpu", ACTIVITY)]
    if len(levels) == len(view.path):
        return view
    return replace(
        view,
        path=tuple(label for _, label in levels),
        order=complete_order([level for level, _ in levels]),
    )


def lead_changes(stand: RankLeads) -> Float64:
    """By how much the others' lead grows from each occurrence to the next of its iteration."""
    found = stand.found
    lead = others_lead(found, stand.late_column)
    iteration = stand.table.iteration[found.rows[:, 0]]
    # Occurrences are in order of time, and stay so within an iteration.
    order = stable_order(iteration)
    ordered, same = lead[order], iteration[order][1:] == iteration[order][:-1]
    change = np.zeros(len(lead))
    change[order[:-1][same]] = (ordered[1:] - ordered[:-1])[same]
    return change


def unmatched_compute(stand: RankLeads) -> int:
    """How many compute activities of the scope are not among the matched."""
    node = stand.node
    others = node.sum("collectives")[0] + node.sum("copies")[0]
    return int(node.sizes()[0] - others) - sum(own.rows.size for own in stand.peers)
