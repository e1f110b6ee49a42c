"""The GPUs of a scope side by side: who holds the others up, since when, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Scope
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, KernelTable
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64, Index, Int64, Numbers
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    beyond_others,
    distinct,
    run_starts,
    stable_order,
)
from chopper_core.views.shared.collective_figures import Chosen, chosen_in
from chopper_core.views.shared.collectives import Collectives, collectives_of
from chopper_core.views.shared.contended import shares_beside_comm, slowdown_beside_comm
from chopper_core.views.shared.lateness import lateness_of
from chopper_core.views.shared.matched_kernels import (
    Occurrences,
    compared_iterations,
    occurrences_of,
    within,
)

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
_MIN_RUN: Final = 4
"""Neighbouring occurrences of one label from which on they are added up together."""
_ONSET_SHARE: Final = 0.1
"""The share of the largest mean lead from which the lag begins."""


class RankLeads(Struct, frozen=True, eq=False, dict=True):
    """The GPUs of a scope, side by side; arrays have one value per GPU of `gpus`."""

    run: Run
    node: Groups
    """The scope on all GPUs, without iterations that are left out or have nothing matched."""
    view: View
    without: Mapping[str, Sequence[int]]
    """Codes by level that are left out of it, besides truncated iterations."""
    compared: tuple[int, int] | None
    """How many iterations of how many are compared, where they are too many."""
    gpus: tuple[int, ...]
    """The GPUs with compute."""
    peers: tuple[Occurrences, ...]
    """The matched compute of each set of GPUs that run the same operations."""
    collectives: Chosen | None
    iterations: tuple[int, ...]
    iteration_ns: Int64
    """Elapsed time of each GPU (rows) in each iteration (columns), -1 where it has none."""
    delays_ns: Float64 | None
    """By how much each GPU delays the others, as above; None without complete collectives."""
    each_work_ns: Float64
    """Durations of the matched compute, as above."""
    each_unhindered_ns: Float64
    """The same as it would be if no collective waited for later GPUs beside it."""
    each_host_ns: Float64
    """Idle time before launch calls, as above."""
    each_launch_ns: Float64
    """The rest of the idle time, as above."""
    each_copy_ns: Float64
    """Exposed copies, as above."""
    mhz: Float64
    """NaN where it isn't known."""

    @property
    def table(self) -> KernelTable:
        """The run's kernel table."""
        return self.run.table

    def split(self, level: str) -> Groups:
        """The scope by the labels of a level."""
        return self.run.tree_of(self.view).split(self.view.path, (level,), self.without)

    @cached_property
    def set_of(self) -> tuple[int, ...]:
        """The place in `peers` of each GPU's set."""
        owner = {gpu: place for place, own in enumerate(self.peers) for gpu in own.gpus}
        return tuple(owner[gpu] for gpu in self.gpus)

    @property
    def found(self) -> Occurrences:
        """The matched compute of the straggler and its peers."""
        return self.peers[self.set_of[self.behind]]

    @property
    def late_column(self) -> int:
        """The straggler's column in `found`."""
        return self.found.gpus.index(self.gpus[self.behind])

    def by_gpu(self, figure: Callable[[Occurrences], Numbers]) -> Float64:
        """A figure of the GPUs of each set of peers; NaN where nothing of theirs matches."""
        values = np.full(len(self.gpus), np.nan)
        for own in self.peers:
            if len(own):
                values[np.searchsorted(self.gpus, own.gpus)] = figure(own)
        return values

    @cached_property
    def lead_ns(self) -> Float64:
        """The sum of each GPU's leads; NaN without matched compute."""
        return self.by_gpu(lambda own: own.lead_ns.sum(axis=0))

    @cached_property
    def mean_lead_ns(self) -> Float64:
        """The mean of them."""
        return self.by_gpu(lambda own: own.lead_ns.mean(axis=0))

    @property
    def work_ns(self) -> Float64:
        """Durations of the matched compute, per iteration."""
        return _mean(self.each_work_ns)

    @property
    def host_ns(self) -> Float64:
        """Idle time before launch calls, per iteration."""
        return _mean(self.each_host_ns)

    @property
    def launch_ns(self) -> Float64:
        """The rest of the idle time, per iteration."""
        return _mean(self.each_launch_ns)

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

    @cached_property
    def typical_ns(self) -> float:
        """The median over iterations of the longest GPU's time."""
        return float(np.median(self.iteration_ns.max(axis=0)))

    @property
    def is_straggler(self) -> bool:
        """Whether any GPU's lag is large enough to matter."""
        return bool(self.stragglers)

    @cached_property
    def stragglers(self) -> tuple[Straggler, ...]:
        """The GPUs that the others wait for, the one that delays them most first.

        A second one has a cause of its own, and isn't late only beside a far later one.
        """
        if self.delays_ns is None:
            return self._last_by_leads()
        mean, most = self.delays_ns.mean(axis=1), self.delays_ns.max(axis=1)
        # Where anyone is late at times by chance, nobody is by as much as that.
        usual = np.quantile(self.delays_ns, _USUAL_DELAY)
        always = mean > np.maximum(MIN_DELAY_SHARE * self.typical_ns, _CLEARLY * _least(mean))
        once = most > np.maximum(MIN_ONCE_SHARE * self.typical_ns, _CLEARLY * usual)
        chosen = np.flatnonzero(always | once)
        late: list[Straggler] = []
        for place in chosen[np.argsort(-mean[chosen], kind="stable")].tolist():
            own = self.delays_ns[place]
            delayed = np.flatnonzero(own > _SAME_DELAY * own.max())
            delay = float(own[delayed].mean())
            when, cause = self._explained(place, delayed, delay)
            beside = max((self.delays_ns[one.place, delayed].mean() for one in late), default=0.0)
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

    def _explained(self, place: int, delayed: Index, delay_ns: float) -> tuple[Index, str | None]:
        """The iterations in which a GPU that delays some takes longer than its peers, and why.

        The end of an iteration delays the next one.
        """
        before = delayed[delayed > 0] - 1
        before = before[~np.isin(before, delayed)]
        least = _MIN_EXPLAINED * delay_ns
        cause = self._cause(place, delayed, least)
        if cause is None and len(before):
            cause = self._cause(place, before, least)
        cause = cause or self._cause(place, delayed, MIN_CAUSE_SHARE * self.typical_ns)
        if cause is None:
            return delayed, None
        word = "work" if cause in ("clock", "kernels") else cause
        extra = self.beyond_peers(self.each[word])[place]
        when = np.flatnonzero(extra > _SAME_DELAY * extra.max())
        # Before the first activity of a trace no time can be idle.
        missing = delayed[:1][(delayed[:1] == 0) & (when[:1] > 0)]
        return np.concatenate([missing, when]), cause

    def _last_by_leads(self) -> tuple[Straggler, ...]:
        """The GPU with the least lead, where no collectives show who waits for whom."""
        lead = np.where(np.isnan(self.mean_lead_ns), np.inf, self.mean_lead_ns)
        place = int(lead.argmin())
        own = self.peers[self.set_of[place]]
        if len(own.gpus) < 2 or not len(own):
            return ()
        ahead = float(others_lead(own, own.gpus.index(self.gpus[place])).mean())
        if ahead <= _MIN_LAG_SHARE * self.typical_ns:
            return ()
        everywhere = np.arange(len(self.iterations))
        when, cause = self._explained(place, everywhere, ahead)
        always = tuple(everywhere.tolist())
        return (Straggler(place, ahead, always, ahead, tuple(when.tolist()), cause),)

    def beyond_peers(self, values: Numbers) -> Float64:
        """Each GPU's value less the median of its peers; NaN without any."""
        numbers = np.asarray(values, np.float64)
        found = np.full(numbers.shape, np.nan)
        for number in range(len(self.peers)):
            own = np.flatnonzero(np.array(self.set_of) == number)
            found[own] = beyond_others(numbers[own])
        return found

    def peers_median(self, values: Numbers) -> Float64:
        """The median of each GPU's peers; NaN without any."""
        return np.asarray(values, np.float64) - self.beyond_peers(values)

    @property
    def each(self) -> dict[str, Float64]:
        """The times that can make a GPU late, as GPUs x iterations."""
        return {
            "work": self.each_unhindered_ns,
            "host": self.each_host_ns,
            "launch": self.each_launch_ns,
            "copies": self.each_copy_ns,
        }

    def extra(self, when: Sequence[int] | Index = ()) -> dict[str, Float64]:
        """These times beyond the peers', mean over some iterations or all."""
        at = np.asarray(when, np.intp) if len(when) else slice(None)
        return {
            word: self.beyond_peers(values[:, at].mean(axis=1))
            for word, values in self.each.items()
        }

    def causes(self) -> list[str | None]:
        """Why each GPU lags; None without a cause."""
        late = {one.place: one.cause for one in self.stragglers}
        least = MIN_CAUSE_SHARE * self.typical_ns
        return [
            late[place] if place in late else self._cause(place, (), least)
            for place in range(len(self.gpus))
        ]

    def _cause(self, place: int, when: Sequence[int] | Index, least: float) -> str | None:
        """What a GPU takes longer for than its peers, in some iterations; None where it is less."""
        extra = {word: float(np.nan_to_num(own[place])) for word, own in self.extra(when).items()}
        word = max(extra, key=lambda name: extra[name])
        if extra[word] <= least:
            return None
        if word != "work":
            return word
        return "clock" if self._is_slow(place) else "kernels"

    def _is_slow(self, place: int) -> bool:
        return bool(self.mhz[place] < LOW_CLOCK_RATIO * self.peers_median(self.mhz)[place])

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


class Straggler(Struct, frozen=True):
    """A GPU that the others wait for."""

    place: int
    """Its place in `RankLeads.gpus`."""
    delay_ns: float
    """By how much it delays the others, mean over all iterations."""
    delayed: tuple[int, ...]
    """The places in `RankLeads.iterations` of those that it delays."""
    once_ns: float
    """By how much it delays those that it delays."""
    when: tuple[int, ...]
    """The places of those with its cause; the end of one delays the next one."""
    cause: str | None
    """`clock`, `kernels`, `host`, `launch` or `copies`; None without a cause."""


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
    if not any(map(len, peers)):
        raise NothingToShow(
            "no compute kernel of the scope runs on all GPUs, so they can't be compared"
        )
    return _side_by_side(run, view, node, compared, peers), view


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


def _side_by_side(
    run: Run,
    view: View,
    node: Groups,
    compared: tuple[int, ...],
    peers: tuple[Occurrences, ...],
) -> RankLeads:
    table = run.table
    gpus = np.sort(np.concatenate([own.gpus for own in peers])).astype(np.int64)
    seen = distinct(np.concatenate([table.iteration[own.rows[:, 0]] for own in peers]))
    tree = run.tree_of(view)
    there = tree.split(view.path, ("iteration",)).codes("iteration")
    without = {
        "gpu": [gpu.index for gpu in run.gpus if gpu.index not in gpus],
        "iteration": sorted(set(there.tolist()) - set(seen.tolist())),
    }
    without = {level: codes for level, codes in without.items() if codes}

    cells = tree.split(view.path, ("gpu", "iteration"), without)
    place = (
        np.searchsorted(gpus, cells.codes("gpu")),
        np.searchsorted(seen, cells.codes("iteration")),
    )
    elapsed = np.full((len(gpus), len(seen)), -1, np.int64)
    elapsed[place] = cells.max("end_ns") - cells.min("start_ns")

    def summed(*columns: str) -> Float64:
        total = np.zeros(elapsed.shape)
        for name in columns:
            total[place] += cells.sum(name)
        return total

    known = collectives_of(run)
    whole = tree.split(view.path, (), without)
    by_gpu = tree.split(view.path, ("gpu",), without)
    clock = METRICS["gfx_mhz"].compute(Scope(by_gpu, whole, run.origin_ns, run.hardware))
    mhz = np.full(len(gpus), np.nan)
    mhz[np.searchsorted(gpus, by_gpu.codes("gpu"))] = np.where(
        clock.present(), clock.numbers, np.nan
    )
    numbers, iterations = tuple(gpus.tolist()), tuple(seen.tolist())
    plain, unhindered = _work(peers, gpus, seen, known)
    collectives = (
        None if known is None else chosen_in(run, known, node, without.get("iteration", ()))
    )
    delays = None
    if collectives is not None and collectives.complete.any():
        lateness = lateness_of(run, collectives.all, tuple(own.gpus for own in peers))
        delays = lateness.delays(collectives.members, numbers, iterations)
    return RankLeads(
        run=run,
        node=whole,
        view=view,
        without=without,
        compared=(len(compared), len(there)) if compared else None,
        gpus=numbers,
        peers=peers,
        collectives=collectives,
        iterations=iterations,
        iteration_ns=elapsed,
        delays_ns=delays,
        each_work_ns=plain,
        each_unhindered_ns=unhindered,
        each_host_ns=summed("idle_host_ns"),
        each_launch_ns=summed("idle_launch_ns", "idle_unknown_ns"),
        each_copy_ns=summed("exposed_copy_ns"),
        mhz=mhz,
    )


def _mean(each: Float64) -> Float64:
    mean: Float64 = each.mean(axis=1)
    return mean


def _least(values: Float64) -> float:
    """The lower median: half of the GPUs, or more, are at most as late."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _work(
    peers: Sequence[Occurrences],
    gpus: Int64,
    iterations: Int64,
    collectives: Collectives | None,
) -> tuple[Float64, Float64]:
    """Durations of matched compute, GPUs x iterations; and without collectives that wait beside."""
    plain = np.zeros((len(gpus), len(iterations)))
    unhindered = np.zeros(plain.shape)
    for own in peers:
        if not len(own):
            continue
        when = np.searchsorted(iterations, own.table.iteration[own.rows[:, 0]])
        beside = [shares_beside_comm(own, gpu, collectives) for gpu in range(len(own.gpus))]
        code, rates = slowdown_beside_comm(own, beside)
        for gpu, took, shares in zip(own.gpus, own.durations_ns(), beside, strict=True):
            place = int(np.searchsorted(gpus, gpu))
            plain[place] = np.bincount(when, weights=took, minlength=len(iterations))
            fair = took / np.exp(rates[code, 0] * shares[0])
            unhindered[place] = np.bincount(when, weights=fair, minlength=len(iterations))
    return plain, unhindered


def others_lead(found: Occurrences, place: int) -> Float64:
    """How much earlier than a column's GPU the others start each occurrence, mean over them."""
    others = found.lead_ns.sum(axis=1) - found.lead_ns[:, place]
    mean: Float64 = others / (len(found.gpus) - 1) - found.lead_ns[:, place]
    return mean


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


def sums_by(codes: Index, values: Iterable[Int64], count: int) -> Float64:
    """Sums of a figure of the occurrences, GPU by GPU, as codes x GPUs."""
    first = run_starts(codes)
    if len(codes) and _MIN_RUN * len(first) < len(codes):
        # Neighbours of one code are added up sooner than dealt out.
        codes, values = codes[first], (np.add.reduceat(own, first) for own in values)
    sums = [np.bincount(codes, weights=own, minlength=count) for own in values]
    return np.stack(sums, axis=1).astype(np.float64)


def leads_by(codes: Index, found: Occurrences, count: int) -> tuple[Float64, Int64]:
    """Sums of leads by a code per occurrence, as codes x GPUs, and how many occurrences."""
    return sums_by(codes, found.lead_ns.T, count), np.bincount(codes, minlength=count)


def unmatched_compute(stand: RankLeads) -> int:
    """How many compute activities of the scope are not among the matched."""
    node = stand.node
    others = node.sum("collectives")[0] + node.sum("copies")[0]
    return int(node.sizes()[0] - others) - sum(own.rows.size for own in stand.peers)
