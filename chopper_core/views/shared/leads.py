"""Lead and lag of the GPUs of a scope, and what holds the straggler back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    counts_of,
    quantile_of,
    run_sizes,
    run_starts,
    stable_order,
    sums_of,
)
from chopper_core.views.shared.matched_kernels import (
    Occurrences,
    compared_iterations,
    occurrences_of,
    others_lead,
    sums_by,
    within,
)
from chopper_core.views.shared.rank_times import RankTimes
from chopper_core.views.shared.work import more_work

MIN_CAUSE_SHARE: Final = 0.01
"""A smaller share of the iteration's time is no cause."""
LOW_CLOCK_RATIO: Final = 0.99
"""A clock below this part of the others' median is a lower one."""
MIN_DELAY_SHARE: Final = 0.01
"""A GPU that delays the iterations by more than this share of one, on average, is a straggler."""
MIN_ONCE_SHARE: Final = 0.02
"""A GPU that delays one iteration by more than this share of it is one too."""
_CLEARLY: Final = 2.0
"""How many times later than usual a GPU must be."""
_USUAL_DELAY: Final = 0.75
"""The quantile of the delays of all GPUs and iterations that counts as usual."""
_SAME_DELAY: Final = 0.4
"""The share of its largest delay from which on a GPU's delay of an iteration has the same cause."""
_MIN_EXPLAINED: Final = 0.3
"""The share of its delay that a cause explains at least."""
_MIN_BESIDE: Final = 0.3
"""The share of a straggler's delay from which on another GPU's, at the same time, counts too."""
_MIN_LAG_SHARE: Final = 0.002
"""Smaller leads, as a share of the iteration, make no straggler where there are no collectives."""
_CACHED_SCOPES: Final = 4
"""Scopes whose leads are cached."""
_ONSET_SHARE: Final = 0.1
"""The share of the largest mean lead from which the lag begins."""


class Straggler(Struct, frozen=True):
    """A GPU that the others wait for."""

    place: int
    """Its place in `RankTimes.gpus`."""
    delay_ns: float
    """By how much it delays the others, mean over all iterations."""
    delayed: tuple[int, ...]
    """The places in `RankTimes.iterations` of those that it delays."""
    once_ns: float
    """By how much it delays those that it delays."""
    when: tuple[int, ...]
    """The places of those with its cause; the end of one delays the next one."""
    cause: str | None
    """`clock`, `kernels`, `work`, `host`, `launch` or `copies`; None without a cause."""


def stragglers_of(times: RankTimes) -> tuple[Straggler, ...]:
    """The GPUs that the others wait for, the one that delays them most first.

    A second one has a cause of its own, and isn't late only beside a far later one.
    """
    if times.delays_ns is None:
        return _last_by_leads(times)
    mean, most = times.delays_ns.mean(axis=1), times.delays_ns.max(axis=1)
    # Where any GPU is late at times by chance, none is a straggler by less than that.
    usual = quantile_of(times.delays_ns, (_USUAL_DELAY,))[0]
    always = mean > np.maximum(MIN_DELAY_SHARE * times.typical_ns, _CLEARLY * _least(mean))
    once = most > np.maximum(MIN_ONCE_SHARE * times.typical_ns, _CLEARLY * usual)
    chosen = np.flatnonzero(always | once)
    late: list[Straggler] = []
    for place in chosen[np.argsort(-mean[chosen], kind="stable")].tolist():
        own = times.delays_ns[place]
        delayed = np.flatnonzero(own > _SAME_DELAY * own.max())
        delay = float(own[delayed].mean())
        when, cause = _explained(times, place, delayed, delay)
        beside = max((times.delays_ns[one.place, delayed].mean() for one in late), default=0.0)
        if not late or (cause and delay > _MIN_BESIDE * beside):
            late.append(
                Straggler(
                    place,
                    float(mean[place]),
                    tuple(delayed.tolist()),
                    delay,
                    tuple(when.tolist()),
                    cause,
                )
            )
    return tuple(late)


def _explained(
    times: RankTimes, place: int, delayed: Index, delay_ns: float
) -> tuple[Index, str | None]:
    """The iterations in which a GPU that delays some takes longer than its peers, and why.

    The end of an iteration delays the next one.
    """
    before = delayed[delayed > 0] - 1
    before = before[~np.isin(before, delayed)]
    least = _MIN_EXPLAINED * delay_ns
    cause = cause_of(times, place, delayed, least)
    if cause is None and len(before):
        cause = cause_of(times, place, before, least)
    cause = cause or cause_of(times, place, delayed, MIN_CAUSE_SHARE * times.typical_ns)
    if cause is None:
        return delayed, None
    word = "kernels" if cause == "clock" else cause
    extra = times.beyond_peers(times.each[word])[place]
    when = np.flatnonzero(extra > _SAME_DELAY * extra.max())
    # Before the first activity of a trace no time can be idle.
    missing = delayed[:1][(delayed[:1] == 0) & (when[:1] > 0)]
    return np.concatenate([missing, when]), cause


def _last_by_leads(times: RankTimes) -> tuple[Straggler, ...]:
    """The GPU with the least lead, where no collectives show who waits for whom."""
    lead = np.where(np.isnan(times.mean_lead_ns), np.inf, times.mean_lead_ns)
    place = int(lead.argmin())
    own = times.peers[times.set_of[place]]
    if len(own.gpus) < 2 or not len(own):
        return ()
    ahead = float(others_lead(own, own.gpus.index(times.gpus[place])).mean())
    if ahead <= _MIN_LAG_SHARE * times.typical_ns:
        return ()
    everywhere = np.arange(len(times.iterations))
    when, cause = _explained(times, place, everywhere, ahead)
    always = tuple(everywhere.tolist())
    return (Straggler(place, ahead, always, ahead, tuple(when.tolist()), cause),)


def cause_of(times: RankTimes, place: int, when: Sequence[int] | Index, least: float) -> str | None:
    """Work that a GPU takes longer for than its peers in some iterations; None where it is less."""
    extra = {word: float(np.nan_to_num(own[place])) for word, own in times.extra(when).items()}
    word = max(extra, key=lambda name: extra[name])
    if extra[word] <= least:
        return None
    if word != "kernels":
        return word
    return "clock" if _is_slow(times, place) else "kernels"


def _is_slow(times: RankTimes, place: int) -> bool:
    return bool(times.mhz[place] < LOW_CLOCK_RATIO * times.peers_median(times.mhz)[place])


def _least(values: Float64) -> float:
    """The lower median: half of the GPUs, or more, are at most as late."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def more_of(times: RankTimes, place: int, when: Sequence[int]) -> str:
    """What a GPU has more of than its peers in some iterations; empty where that is unknown."""

    def ratio(values: Float64) -> float:
        means = values[:, list(when)].mean(axis=1)
        usual = float(times.peers_median(means)[place])
        return float(means[place]) / usual if usual > 0 else np.nan

    return more_work(times.run, times.gpus, times.iterations, ratio)


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
        there = counts_of(code) > 0
        names = np.flatnonzero(there)
        cell = (np.cumsum(there) - 1)[code]
        count = counts_of(cell)
        lead = others_lead(found, column)
        mean = sums_of(lead, cell) / count
        behind = sums_by(cell, found.lead_ns.T, len(count)).argmin(axis=1) == column
        late = behind & (mean >= _ONSET_SHARE * mean.max()) & (mean > 0)
        if not late.any():
            return None
        # The step's order is that of the mean places of the cells in their iterations.
        since = sums_of(self.places(), cell) / count
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
        first = run_starts(iteration[order])
        number = np.repeat(np.arange(len(first)), run_sizes(first, len(order)))
        begin, end = start[first], start[np.append(first[1:], len(order)) - 1]
        share = np.empty(len(order))
        share[order] = (start - begin[number]) / np.maximum(end - begin, 1)[number]
        return share


def leads(run: Run, view: View) -> tuple[RankLeads, View]:
    """The GPUs in a view's scope, compared once, and the view without a GPU of its own.

    Raises UsageError.
    """
    view = of_all_gpus(view)
    order = complete_order([level for level, _ in view.scope])
    scope = View(view.run, view.path, order, cut=view.cut)
    found = run.memo(("leads", scope), lambda: _leads(run, scope), keep=_CACHED_SCOPES)
    return found, view


def _leads(run: Run, view: View) -> RankLeads:
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
    return RankLeads.of(run, view, node, compared, peers)


def of_all_gpus(view: View) -> View:
    """The same scope on all GPUs; for an activity, that of its kernel."""
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
