"""The GPUs of a scope side by side: who leads, who delays the others, and what holds these back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.matched_kernels import (
    Occurrences,
    beyond_peers,
    compared_iterations,
    matched_work,
    occurrences_of,
    others_lead,
    sums_by,
    within,
)
from chopper_core.analyses.step_times import more_work, of_steps
from chopper_core.columns import METRICS, Scope, heat_of
from chopper_core.graph.collectives import (
    Collectives,
    collectives_in,
    collectives_of,
    delays_in,
)
from chopper_core.model.column_names import EDGE
from chopper_core.model.doubts import DoubtKind
from chopper_core.model.groups import Groups
from chopper_core.model.memo import Memo
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, PLACES, KernelTable
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64, Index, Int64, Mask, Numbers
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    beyond_others,
    combined,
    counts_of,
    distinct,
    isin,
    maxima_of,
    median_of,
    minima_of,
    quantile_of,
    ranked,
    stable_order,
    sums_of,
)

ONE_GPU: Final = "the run has compute on one GPU only; ranks compares several"
MIN_CAUSE_SHARE: Final = 0.01
"""A smaller share of the step's time is no cause."""
LOW_CLOCK_RATIO: Final = 0.99
"""A clock below this part of the others' median is a lower one."""
MIN_DELAY_SHARE: Final = 0.01
"""A GPU that delays the steps by more than this share of one, on average, is a straggler."""
MIN_ONCE_SHARE: Final = 0.02
"""A GPU that delays one step by more than this share of it is one too."""
_CLEARLY: Final = 2.0
"""How many times later than usual a GPU must be."""
_USUAL_DELAY: Final = 0.75
"""The quantile of the delays of all GPUs and steps that counts as usual."""
_SAME_DELAY: Final = 0.4
"""The share of its largest delay from which on a GPU's delay of a step has the same cause."""
ALWAYS: Final = 0.75
"""The share of the steps from which on a cause is in all of them, more or less."""
_MIN_EXPLAINED: Final = 0.3
"""The share of its delay that a cause explains at least."""
MIN_OF_OTHERS: Final = 0.3
"""The share of a straggler's delay from which on another GPU's, at the same time, counts too."""
_MIN_LAG_SHARE: Final = 0.002
"""Smaller leads, as a share of the step, make no straggler where there are no collectives."""
_ONSET_SHARE: Final = 0.1
"""The share of the largest mean lead from which the lag begins."""
CAUSES: Final = ("kernels", "work", "host", "launch", "copies")
"""The times of `RankLeads.each` that can make a GPU late."""
_OF_COMPUTE: Final = ("kernels", "work")
"""Those in which it computes longer, which no GPU does by chance; in the others it computes
nothing."""
_MAX_EXPLAINED: Final = 64
"""GPUs whose lag is explained one by one, those that delay the others most."""


class Straggler(Struct, frozen=True):
    """A GPU that the others wait for."""

    place: int
    """Its place in `RankLeads.gpus`."""
    delay_ns: float
    """By how much it delays the others, mean over all steps."""
    delayed: tuple[int, ...]
    """The places in `RankLeads.iterations` of those that it delays."""
    once_ns: float
    """By how much it delays those that it delays."""
    when: tuple[int, ...]
    """The places of those with its cause; the end of one delays the next one."""
    cause: str | None
    """`clock`, `kernels`, `work`, `host`, `launch` or `copies`; None without a cause."""


def word_of(cause: str) -> str:
    """The time of `RankLeads.each` that a cause makes longer."""
    return "kernels" if cause == "clock" else cause


class RankLeads(Struct, frozen=True, eq=False, dict=True):
    """The GPUs of a scope, side by side; arrays have one value per GPU of `gpus`."""

    run: Run
    node: Groups
    """The scope on all GPUs, without steps that are left out or have nothing matched."""
    view: View
    without: Mapping[str, Sequence[int]]
    """Codes by level that are left out of it, in addition to truncated steps."""
    compared: tuple[int, int] | None
    """How many steps of how many are compared, where they are too many."""
    gpus: tuple[int, ...]
    peers: tuple[Occurrences, ...]
    """The matched compute of each set of GPUs that run the same operations."""
    collectives: Collectives | None
    iterations: tuple[int, ...]
    iteration_ns: Int64
    """Elapsed time of each GPU (rows) in each step (columns), -1 where it has none."""
    delays_ns: Float64 | None
    """By how much each GPU delays the others, as above; None without complete collectives."""
    each: Mapping[str, Float64]
    """Times as above: `same`, the matched compute that is the same on all peers; `kernels`, the
    same as it would be if no collective next to it waited for others; `work`, all other compute,
    of other shapes or that only some GPUs have; `host`, idle before launch calls while the host is
    in the step; `launch`, the rest of the idle time; `copies` and `comm`, exposed ones."""

    @property
    def table(self) -> KernelTable:
        return self.run.table

    @cached_property
    def uncompared(self) -> list[int]:
        """The GPUs of the scope that run no compute kernel that others run."""
        compared = [gpu for own in self.peers if len(own.gpus) > 1 for gpu in own.gpus]
        there = self.run.tree_of(self.view).split(self.view.path, ("gpu",))
        own = there.codes("gpu")[there.computing() > 0]
        return sorted(set(own.tolist()).difference(compared))

    def split(self, level: str) -> Groups:
        return self.run.tree_of(self.view).split(self.view.path, (level,), self.without)

    def metric(self, name: str, when: Sequence[int] | Index = ()) -> Float64:
        """A metric of each GPU in some steps, by their places, or in all."""

        def known() -> Float64:
            without = dict(self.without)
            if 0 < len(when) < len(self.iterations):
                others = np.delete(np.array(self.iterations), np.asarray(when, np.intp))
                without["iteration"] = [*without.get("iteration", ()), *others.tolist()]
            nodes = self.run.tree_of(self.view).split(self.view.path, ("gpu",), without)
            found = METRICS[name].compute(Scope.of(self.run, nodes, self.node))
            values = np.full(len(self.gpus), np.nan)
            places = np.searchsorted(self.gpus, nodes.codes("gpu"))
            values[places] = found.known()
            return values

        return self._memo(("metric", name, *when), known)

    def hotter(self, place: int, when: Sequence[int] = ()) -> tuple[float, str]:
        """How much hotter than its peers a GPU is in some steps, NaN unless all are known; and
        where."""
        name = heat_of(self.table)
        heat = self.metric(name, when) if name else np.full(len(self.gpus), np.nan)
        beyond = float(self.beyond_peers(heat)[place]) if np.isfinite(heat).all() else np.nan
        return beyond, " at the edge" if name == EDGE else ""

    def peers_of(self, place: int) -> Occurrences:
        return next(own for own in self.peers if self.gpus[place] in own.gpus)

    def by_gpu(self, figure: Callable[[Occurrences], Numbers]) -> Float64:
        """A figure of the GPUs of each set of peers; NaN where nothing of theirs matches."""
        values = np.full(len(self.gpus), np.nan)
        for own in self.peers:
            if len(own):
                values[np.searchsorted(self.gpus, own.gpus)] = figure(own)
        return values

    @cached_property
    def lead_ns(self) -> Float64:
        return self.by_gpu(lambda own: own.lead_ns.sum(axis=0))

    @cached_property
    def mean_lead_ns(self) -> Float64:
        return self.by_gpu(lambda own: own.lead_ns.mean(axis=0))

    @cached_property
    def lag_ns(self) -> Float64:
        """How much later than the earliest of its peers each GPU starts a kernel, on average."""

        def behind(own: Occurrences) -> Float64:
            lead = own.lead_ns.mean(axis=0)
            return np.asarray(lead.max() - lead, np.float64)

        return self.by_gpu(behind)

    def mean(self, word: str, when: Sequence[int] | Index = ()) -> Float64:
        """One of the times of `each`, mean over some steps or all."""
        at = np.asarray(when, np.intp) if len(when) else slice(None)
        return np.asarray(self.each[word][:, at].mean(axis=1), np.float64)

    @cached_property
    def _memo(self) -> Memo:
        return Memo()

    def extra(self, word: str, when: Sequence[int] | Index = ()) -> Float64:
        # It is of all GPUs, and asked for each of them.
        return self._memo((word, *when), lambda: self.beyond_peers(self.mean(word, when)))

    def same_by_place(
        self, own: Occurrences, when: tuple[int, ...], levels: tuple[str, ...]
    ) -> tuple[Int64, Float64, Float64]:
        """Of compute that is the same on some peers, by some levels: its places, as codes; the
        share of each of all time in some steps; and how much longer each takes on a peer than the
        median of the others."""

        def summed() -> tuple[Int64, Float64]:
            """By all levels, as places x steps x peers: each kernel is looked at once."""
            table, same = self.table, own.take(own.is_same)
            first = same.rows[:, 0]
            names, name = combined([table.column(level)[first] for level in PLACES])
            at = np.searchsorted(self.iterations, table.iteration[first])
            shape = len(names), len(self.iterations)
            sums = sums_by(name * shape[1] + at, same.durations_ns(), shape[0] * shape[1])
            return names, sums.reshape(*shape, len(own.gpus))

        def compared() -> tuple[Int64, Float64, Float64]:
            places, each_ns = self._memo(("places", own.gpus), summed)
            names, name = combined([places[:, PLACES.index(level)] for level in levels])
            every = sums_by(name, each_ns[:, list(when)].sum(axis=1).T, len(names))
            return names, every.sum(axis=1) / max(every.sum(), 1.0), beyond_others(every.T).T

        return self._memo(("places", own.gpus, when, levels), compared)

    @cached_property
    def typical_ns(self) -> float:
        """The median over steps of the longest GPU's time."""
        return median_of(self.iteration_ns.max(axis=0))

    def beyond_peers(self, values: Numbers) -> Float64:
        """Each GPU's value less the median of its peers; NaN without any."""
        return beyond_peers(self.peers, self.gpus, values)

    def peers_median(self, values: Numbers) -> Float64:
        return np.asarray(values, np.float64) - self.beyond_peers(values)

    @cached_property
    def stragglers(self) -> tuple[Straggler, ...]:
        """The GPUs that the others wait for, the one that delays them most first.

        A second one has a cause of its own, and isn't late only because of a far later one. One
        that is late for another cause, in other steps or in the same, is there twice.
        """
        if self.delays_ns is None:
            return self._last_by_leads()
        late = list[Straggler]()
        for place in self._late[:_MAX_EXPLAINED].tolist():
            own = self.delays_ns[place]
            found = self._late_by(place, own)
            if late and not self._is_of_its_own(found, late):
                continue
            if found.cause is None and not self._waits_less(found):
                continue
            rest = np.where(np.isin(np.arange(len(own)), found.delayed), 0.0, own)
            again = self._late_by(place, rest) if rest.max() > self._least_once_ns else None
            if again is None or again.cause in (None, found.cause):
                late.append(found)
                continue
            first = replace(found, delay_ns=found.delay_ns - again.delay_ns)
            late += [first, again] if self._is_of_its_own(again, [*late, first]) else [found]
        return tuple(one for each in late for one in self._by_cause(each))

    def _by_cause(self, found: Straggler) -> tuple[Straggler, ...]:
        """A straggler, and the same GPU for the other cause that it is late for in these steps: it
        computes longer, and does something else for longer, too."""
        if found.cause is None:
            return (found,)
        place, word = found.place, word_of(found.cause)
        rest = [each for each in CAUSES if (each in _OF_COMPUTE) != (word in _OF_COMPUTE)]
        # Idle time after launch calls depends on what else is late.
        rest = [each for each in rest if each != "launch"]
        own = float(self.extra(word, found.when)[place])
        least = max(_MIN_EXPLAINED * own, MIN_DELAY_SHARE * self.typical_ns)
        (cause,) = self._causes(found.when, least, [place], rest)
        if cause is None:
            return (found,)
        other = float(self.extra(word_of(cause), found.when)[place])
        part = other / (own + other)
        first, second = (
            replace(found, delay_ns=share * found.delay_ns, once_ns=share * found.once_ns)
            for share in (1 - part, part)
        )
        return first, replace(second, cause=cause)

    def words_of(self, late: Straggler) -> tuple[str, ...]:
        """The times of `each` that count for a straggler: without what it is late for by a cause
        that is there apart."""
        if late.cause is None:
            return CAUSES
        own, without = word_of(late.cause), set[str]()
        for one in self.stragglers:
            if one.place != late.place or one.cause in (None, late.cause):
                continue
            word = word_of(one.cause)
            is_other_kind = (word in _OF_COMPUTE) != (own in _OF_COMPUTE)
            kind = [each for each in CAUSES if (each in _OF_COMPUTE) == (word in _OF_COMPUTE)]
            without |= {*kind} if is_other_kind else {word}
        return tuple(each for each in CAUSES if each not in without)

    def _late_by(self, place: int, own_ns: Float64) -> Straggler:
        """A GPU that delays the steps by so much each, and why."""
        delayed = np.flatnonzero(own_ns > _SAME_DELAY * own_ns.max())
        delay = float(own_ns[delayed].mean())
        return self._explained(place, float(own_ns.mean()), delayed, delay)

    def _is_of_its_own(self, found: Straggler, late: Sequence[Straggler]) -> bool:
        """Whether one has a cause, and delays its steps by as much as those before it do."""
        assert self.delays_ns is not None
        delayed = list(found.delayed)
        others = max(self.delays_ns[one.place, delayed].mean() for one in late)
        return found.cause is not None and found.once_ns > MIN_OF_OTHERS * float(others)

    def _waits_less(self, found: Straggler) -> bool:
        """Whether a GPU communicates alone for less time than its peers, who wait for it. Where it
        doesn't, it comes last because it waited itself, as in another process group."""
        more = self.extra("comm", found.delayed)[found.place]
        return not more >= -MIN_CAUSE_SHARE * self.typical_ns

    @cached_property
    def _late(self) -> Index:
        """The places of the GPUs that delay the others, the one that delays them most first."""
        if self.delays_ns is None:
            return np.empty(0, np.intp)
        mean, most = self.delays_ns.mean(axis=1), self.delays_ns.max(axis=1)
        chosen = np.flatnonzero(self._always | (most > self._least_once_ns))
        return np.asarray(chosen[np.argsort(-mean[chosen], kind="stable")], np.intp)

    @cached_property
    def _always(self) -> Mask:
        """The GPUs that delay the others by much on average."""
        assert self.delays_ns is not None
        mean = self.delays_ns.mean(axis=1)
        # Where any GPU is late at times by chance, none is a straggler by less than that. The
        # lower median: half of the GPUs, or more, are at most as late.
        least = float(np.sort(mean)[(len(mean) - 1) // 2])
        return np.asarray(
            mean > np.maximum(MIN_DELAY_SHARE * self.typical_ns, _CLEARLY * least), np.bool_
        )

    @cached_property
    def _least_once_ns(self) -> float:
        """What a GPU delays a step by at least, to be late then: more than is usual by chance.

        More work is no chance: those that have it in turn may be late in every step. Nor are slower
        kernels, where less than without them is usual, nor what GPUs do that are late on average.
        """
        least = min(map(self._usual_ns, (("work",), _OF_COMPUTE)))
        return max(MIN_ONCE_SHARE * self.typical_ns, _CLEARLY * least)

    def _usual_ns(self, no_chance: Sequence[str]) -> float:
        """What GPUs often delay a step by, for other reasons than some causes."""
        assert self.delays_ns is not None
        caused = np.max([self.beyond_peers(self.each[word]) for word in no_chance], axis=0)
        is_chance = ~(caused > _MIN_EXPLAINED * self.delays_ns) & ~self._always[:, None]
        by_chance = self.delays_ns[is_chance | (self.delays_ns <= 0)]
        return float(quantile_of(by_chance, (_USUAL_DELAY,))[0]) if len(by_chance) else 0.0

    @cached_property
    def hidden_stragglers(self) -> tuple[Straggler, ...]:
        """GPUs that take longer than their peers, whoever waits for them: those of a pipeline, for
        which other stages wait by design, those that a later straggler hides, and those for which
        others' collectives wait next to compute, which that slows."""
        every, longest = np.arange(len(self.iterations)), np.sort(self._hidden[:_MAX_EXPLAINED])
        found = [self._explained(at, 0.0, every, self._longest[at]) for at in longest.tolist()]
        return tuple(replace(each, delayed=(), once_ns=0.0) for each in found if each.cause)

    @cached_property
    def _longest(self) -> Float64:
        extra = [self.extra(word) for word in CAUSES]
        return np.asarray(np.nan_to_num(extra).max(axis=0), np.float64)

    @cached_property
    def _hidden(self) -> Index:
        """The places of other GPUs that take longer than their peers, the one that takes longest
        first."""
        if self.delays_ns is None:
            return np.empty(0, np.intp)
        late = np.argsort(-self._longest, kind="stable")
        every = self._causes((), MIN_CAUSE_SHARE * self.typical_ns)
        # One that is late at times may take longer for another cause in all steps.
        known = [
            each.place
            for each in self.stragglers
            if len(each.when) == len(self.iterations) or each.cause == every[each.place]
        ]
        is_longer = self._longest[late] > MIN_DELAY_SHARE * self.typical_ns
        return np.asarray(late[is_longer & ~np.isin(late, known)], np.intp)

    def unexplained(self) -> str:
        """How many GPUs are late without being explained, as a sentence; empty if none are."""
        more = sum(max(len(late) - _MAX_EXPLAINED, 0) for late in (self._late, self._hidden))
        if not more:
            return ""
        return (
            f"{count(more, 'more GPU')} {'is' if more == 1 else 'are'} late too: only the "
            f"{_MAX_EXPLAINED} that are latest are explained one by one"
        )

    def _explained(self, place: int, mean_ns: float, delayed: Index, delay_ns: float) -> Straggler:
        """A GPU that delays some steps, why, and in which it takes longer than its peers.

        The end of a step delays the next one.
        """
        before = delayed[delayed > 0] - 1
        before = before[~np.isin(before, delayed)]
        least = _MIN_EXPLAINED * delay_ns
        cause = self._causes(delayed, least, [place])[0]
        if cause is None and len(before):
            cause = self._causes(before, least, [place])[0]
        cause = cause or self._causes(delayed, MIN_CAUSE_SHARE * self.typical_ns, [place])[0]
        when = delayed
        if cause is not None:
            word = word_of(cause)
            extra = self._memo(("each", word), lambda: self.beyond_peers(self.each[word]))[place]
            when = np.flatnonzero(extra > _SAME_DELAY * extra.max())
            # Before the first activity of a trace no time can be idle.
            missing = delayed[:1][(delayed[:1] == 0) & (when[:1] > 0)]
            when = np.concatenate([missing, when]) if cause == "host" else when
            if len(when) >= ALWAYS * len(self.iterations):
                when = np.arange(len(self.iterations))
        which = tuple(delayed.tolist()), delay_ns, tuple(when.tolist())
        return Straggler(place, mean_ns, *which, cause)

    def _last_by_leads(self) -> tuple[Straggler, ...]:
        """The GPU that lags most, where no collectives show who waits for whom; if none does,
        that with more work."""
        place = self._last
        ahead = self._ahead_of(place)
        if ahead <= _MIN_LAG_SHARE * self.typical_ns:
            more = np.nan_to_num(self.extra("work"))
            place, ahead = int(more.argmax()), float(more.max())
            if ahead <= MIN_DELAY_SHARE * self.typical_ns:
                return ()
        return (self._explained(place, ahead, np.arange(len(self.iterations)), ahead),)

    def _causes(
        self,
        when: Sequence[int] | Index,
        least: float,
        places: Sequence[int] | slice = slice(None),
        among: Sequence[str] = CAUSES,
    ) -> list[str | None]:
        """What GPUs take longer for than their peers in some steps; None where it is less."""
        extra = np.nan_to_num([self.extra(word, when)[places] for word in CAUSES])
        extra[[word not in among for word in CAUSES]] = -np.inf
        most = extra.argmax(axis=0)
        is_slow = most == CAUSES.index("kernels")
        if is_slow.any():
            mhz = self.metric("gfx_mhz", when)
            is_slow &= (mhz < LOW_CLOCK_RATIO * self.peers_median(mhz))[places]
        code = np.where(is_slow, len(CAUSES), most)
        code[extra.max(axis=0) <= least] = -1
        words = (*CAUSES, "clock", None)
        return [words[each] for each in code.tolist()]

    def cause_of(self, place: int, when: Sequence[int]) -> str | None:
        """What a GPU takes longer for than its peers in some steps; None where it is little."""
        return self._causes(when, MIN_CAUSE_SHARE * self.typical_ns, [place])[0]

    def causes(self) -> list[str | None]:
        found = self._causes((), MIN_CAUSE_SHARE * self.typical_ns)
        for one in reversed(self.stragglers):
            found[one.place] = one.cause
        return found

    def more_of(self, place: int, when: Sequence[int]) -> str:
        def ratio(values: Float64) -> float:
            means = values[:, list(when)].mean(axis=1)
            usual = float(self.peers_median(means)[place])
            return float(means[place]) / usual if usual > 0 else np.nan

        return more_work(self.run, self.gpus, self.iterations, ratio)

    @property
    def _last(self) -> int:
        return int(np.nan_to_num(self.lag_ns, nan=-1.0).argmax())

    @cached_property
    def behind(self) -> int:
        """The place of the GPU that delays the others most; without collectives of the last."""
        return self.stragglers[0].place if self.stragglers else self._last

    @property
    def found(self) -> Occurrences:
        return self.peers_of(self.behind)

    @property
    def late_column(self) -> int:
        return self.found.gpus.index(self.gpus[self.behind])

    def _ahead_of(self, place: int) -> float:
        """How much earlier than a GPU its peers start a kernel, mean over both."""
        own = self.peers_of(place)
        if len(own.gpus) < 2 or not len(own):
            return 0.0
        return float(others_lead(own, own.gpus.index(self.gpus[place])).mean())

    def onset(self) -> tuple[str, str] | None:
        """The first phase and layer of the step from which on the others lead."""
        found, table, column = self.found, self.table, self.late_column
        first = found.rows[:, 0]
        names, cell = combined([table.phase[first], table.layer[first]])
        sizes = counts_of(cell)
        mean = sums_of(others_lead(found, column), cell) / sizes
        behind = sums_by(cell, found.lead_ns.T, len(sizes)).argmin(axis=1) == column
        late = behind & (mean >= _ONSET_SHARE * mean.max()) & (mean > 0)
        if not late.any():
            return None
        # The step's order is that of the mean places of the cells in their iterations.
        since = sums_of(self.places(), cell) / sizes
        phase, layer = names[int(np.where(late, since, np.inf).argmin())].tolist()
        return table.text_of("phase", phase), table.text_of("layer", layer)

    def places(self) -> Float64:
        """When each occurrence starts on the last GPU, as a share of its step's time."""
        iteration = ranked(self.table.iteration[self.found.rows[:, 0]])[1]
        start, iterations = self.found.last_start_ns, int(iteration.max()) + 1
        begin = minima_of(start, iteration, iterations, int(start.max()))
        length = np.maximum(maxima_of(start, iteration, iterations) - begin, 1)
        return np.asarray((start - begin[iteration]) / length[iteration], np.float64)


def leads(run: Run, view: View) -> tuple[RankLeads, View]:
    """The GPUs in a view's scope, compared once, and the view without a GPU of its own.

    Raises UsageError.
    """
    view = of_all_gpus(view)
    order = complete_order([level for level, _ in view.scope])
    scope = View(run.name, view.path, order, cut=view.cut)
    found = run.memo(("leads", scope), lambda: _leads(run, scope))
    return found, view


def _leads(run: Run, view: View) -> RankLeads:
    node = run.tree_of(view).node(view.path)
    compared = compared_iterations(run, view) if len(run.gpus) > 1 else ()
    peers = occurrences_of(run, compared) if len(run.gpus) > 1 else ()
    if sum(len(own.gpus) for own in peers) < 2:
        raise NothingToShow(ONE_GPU)
    if view.path or run.uncounted(view):
        peers = tuple(within(run, own, node) for own in peers)
        # Those without an occurrence in a scope of coordinates are outside it.
        peers = tuple(own for own in peers if len(own))
    if not any(map(len, peers)):
        raise NothingToShow(
            "no compute kernel of the scope runs on all GPUs, so they can't be compared"
        )
    return _side_by_side(run, view, node, compared, _there(run, view, peers))


def _there(run: Run, view: View, peers: tuple[Occurrences, ...]) -> tuple[Occurrences, ...]:
    """The sets of GPUs that the scope has in the steps that are compared; some are of one GPU."""
    steps = [run.table.iteration[own.rows[:, 0]] for own in peers]
    cells = run.tree_of(view).split(view.path, ("gpu", "iteration"))
    there = cells.codes("gpu")[isin(cells.codes("iteration"), distinct(np.concatenate(steps)))]
    return tuple(own for own in peers if len(own) or isin(np.array(own.gpus), there).all())


def _side_by_side(
    run: Run, view: View, node: Groups, compared: tuple[int, ...], peers: tuple[Occurrences, ...]
) -> RankLeads:
    table, tree = run.table, run.tree_of(view)
    gpus = np.sort(np.concatenate([own.gpus for own in peers])).astype(np.int64)
    seen = distinct(np.concatenate([table.iteration[own.rows[:, 0]] for own in peers]))
    there = tree.split(view.path, ("iteration",)).codes("iteration")
    without = {
        "gpu": sorted({gpu.index for gpu in run.gpus}.difference(gpus.tolist())),
        "iteration": sorted(set(there.tolist()) - set(seen.tolist())),
    }
    without = {level: codes for level, codes in without.items() if codes}
    numbers, iterations = tuple(gpus.tolist()), tuple(seen.tolist())

    cells = tree.split(view.path, ("gpu", "iteration"), without)

    def summed(*columns: str) -> Float64:
        total = np.sum([cells.sum(name) for name in columns], axis=0)
        return of_steps(cells, numbers, iterations, total)

    elapsed = cells.max("end_ns") - cells.min("start_ns")
    plain, unhindered = matched_work(peers, gpus, seen, collectives_of(run, compared))
    chosen = collectives_in(run, node, without.get("iteration", ()), compared)
    each = {
        "same": plain,
        "kernels": unhindered,
        "work": summed("compute_ns", "overlap_ns") - plain,
        "host": summed("idle_host_ns"),
        "launch": summed(*launch_idle(run)),
        "copies": summed("exposed_copy_ns"),
        "comm": summed("exposed_comm_ns"),
    }
    delays = None
    if chosen is not None and chosen.complete.any():
        extra = np.nan_to_num(
            np.max([beyond_peers(peers, numbers, each[word]) for word in CAUSES], axis=0)
        )
        sets = tuple(own.gpus for own in peers)
        delays = delays_in(run, chosen, sets, numbers, iterations, extra)
    return RankLeads(
        run=run,
        node=tree.split(view.path, (), without),
        view=view,
        without=without,
        compared=(len(compared), len(there)) if compared else None,
        gpus=numbers,
        peers=peers,
        collectives=chosen,
        iterations=iterations,
        iteration_ns=of_steps(cells, numbers, iterations, elapsed, -1),
        delays_ns=delays,
        each=each,
    )


def launch_idle(run: Run) -> tuple[str, ...]:
    """The idle time that is taken for one after launch calls: that before activities without a
    call, too, unless activities were lost, after whose launch the reason of idle time is unknown.
    """
    is_lost = any(doubt.kind == DoubtKind.LOST for doubt in run.doubts)
    return ("idle_launch_ns",) if is_lost else ("idle_launch_ns", "idle_unknown_ns")


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


def all_gpus_note(view: View) -> tuple[str, ...]:
    named = [label for level, label in view.scope if level == "gpu"]
    return (f"all GPUs are compared, not GPU {named[0]} alone",) if named else ()


def lead_changes(stand: RankLeads) -> Float64:
    """By how much the others' lead grows from each occurrence to the next of its step."""
    found = stand.found
    lead = others_lead(found, stand.late_column)
    iteration = stand.table.iteration[found.rows[:, 0]]
    # Occurrences are in order of time, and stay so within an iteration.
    order = stable_order(iteration)
    ordered, same = lead[order], iteration[order][1:] == iteration[order][:-1]
    change = np.zeros(len(lead))
    change[order[:-1][same]] = (ordered[1:] - ordered[:-1])[same]
    return change
