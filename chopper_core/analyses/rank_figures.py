"""The figures of ranks in rows of activities: who is ahead, extra work, waits in collectives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.base import PAIR, pair_codes
from chopper_core.analyses.collective_columns import gpu_words
from chopper_core.analyses.leads import (
    RankLeads,
    lead_changes,
    leads,
)
from chopper_core.analyses.matched_kernels import Occurrences, sums_by
from chopper_core.analyses.rows import Own
from chopper_core.columns import METRICS, Values, column, numbered, worded
from chopper_core.columns.metric import Scope, absent
from chopper_core.model.groups import Groups
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.errors import ChopperError
from chopper_core.util.grouping import (
    beyond_others,
    counts_of,
    distinct,
    first_equal,
    medians_along,
    places_by,
    ranked,
    ratios,
    run_maxima,
    run_starts,
    sums_of,
)

_LEADS: Final = "leads"
CAUSES_OF_GPUS: Final = column("""apart_gpus | | causes
    GPUs of the row that lag, by cause (see apart_by).
    missing: none of them lags for a known cause""")


def rank_waits(stand: RankLeads) -> Own:
    """Per GPU: own wait and caused wait in collectives, whole and exposed."""
    chosen, count = stand.collectives, len(stand.gpus)
    heads = [
        METRICS[name] for name in ("wait_ns", "caused_ns", "exposed_wait_ns", "caused_exposed_ns")
    ]
    if chosen is None or not chosen.complete.any():
        return [(head, absent(count, 0)) for head in heads]
    each = [
        (waits, who)
        for waits in (chosen.member_wait_ns, chosen.member_exposed_ns)
        for who in waiting_pairs(stand)
    ]
    # GPUs that aren't compared come last.
    sums = [Values(sums_of(waits, who, count + 1)[:-1]) for waits, who in each]
    return list(zip(heads, sums, strict=True))


def waiting_pairs(stand: RankLeads) -> tuple[Int64, Int64]:
    """Of each collective's kernel the places of its GPU and of the one that arrives last."""
    chosen, gpus = stand.collectives, np.array(stand.gpus)
    assert chosen is not None
    places = np.full(max(int(stand.table.gpu.max()), int(gpus.max())) + 1, len(gpus))
    places[gpus] = np.arange(len(gpus))
    last = chosen.last_gpu[chosen.member_set]
    return places[stand.table.gpu[chosen.rows]], places[last]


class RowsOnGpus(Struct, frozen=True, eq=False):
    """Pairs of a row and a GPU, row by row."""

    row: Index
    place: Index
    """The GPU, as its place in the scope's."""
    owner: Index
    """The pair of each matched kernel that is in a row."""

    def __len__(self) -> int:
        return len(self.row)


class RowsOfPeers(Struct, frozen=True, eq=False):
    """The rows of activities that the matched kernels of a set of peers are in, by parts: the steps
    where all matched kernels of a GPU's step are in one row, else the occurrences."""

    own: Occurrences
    places: Index
    """Of its GPUs, among the scope's."""
    number: Index
    """The row of each part's kernels on each GPU, -1: none; as GPUs x parts."""
    part: Index
    """The part of each occurrence."""
    step: Index
    """The step of each part, as its place among the scope's."""
    same_ns: Float64 | Int64
    """The durations of the same compute, as GPUs x parts."""

    @classmethod
    def of(cls, stand: RankLeads, own: Occurrences, number: Index) -> RowsOfPeers:
        """Of the number of each matched kernel's row, as GPUs x occurrences."""
        places = np.searchsorted(stand.gpus, own.gpus)
        step = np.searchsorted(stand.iterations, stand.table.iteration[own.rows[:, 0]])
        steps, part = ranked(step)
        whole = number[:, first_equal(part, np.arange(len(steps)))]
        if all((each[part] == mine).all() for each, mine in zip(whole, number, strict=True)):
            return cls(own, places, whole, part, steps, stand.each["same"][places][:, steps])
        took = own.durations_ns() * own.is_same
        return cls(own, places, number, np.arange(len(own)), step, took)

    @property
    def inside(self) -> Mask:
        return np.asarray(self.number >= 0, np.bool_)

    @property
    def sizes(self) -> Int64:
        """The occurrences of each part."""
        return counts_of(self.part, len(self.step))

    @property
    def has_same(self) -> Mask:
        """Whether a part has compute that is the same on all GPUs."""
        return np.asarray(counts_of(self.part[self.own.is_same], len(self.step)) > 0, np.bool_)

    def summed(self, each: Int64) -> Float64 | Int64:
        """A figure of matched kernels, as occurrences x GPUs, added up as GPUs x parts."""
        is_each = len(self.step) == len(each) and (self.part[1:] > self.part[:-1]).all()
        return each.T if is_each else sums_by(self.part, each.T, len(self.step)).T


class RowLeads(Struct, frozen=True, eq=False, dict=True):
    """What rows of activities show of the GPUs of their scope side by side."""

    stand: RankLeads
    nodes: Groups
    parent: Groups

    @cached_property
    def numbers(self) -> tuple[RowsOfPeers, ...]:
        """The rows that the matched kernels of each set of peers are in."""
        peers = self.stand.peers
        # GPU by GPU, as they are in memory.
        every = self.nodes.numbers_of(np.concatenate([own.rows.T.ravel() for own in peers]))
        parts = np.split(every, np.cumsum([own.rows.size for own in peers])[:-1])
        return tuple(
            RowsOfPeers.of(self.stand, own, part.reshape(own.rows.T.shape))
            for part, own in zip(parts, peers, strict=True)
        )

    @cached_property
    def cells(self) -> RowsOnGpus:
        """The pairs of a row and a GPU with a matched kernel."""
        gpus = len(self.stand.gpus)
        parts = [(each.number * gpus + each.places[:, None])[each.inside] for each in self.numbers]
        codes, owner = ranked(np.concatenate(parts))
        return RowsOnGpus(codes // gpus, codes % gpus, owner)

    def _summed(self, figure: Callable[[RowsOfPeers], Float64 | Int64]) -> Float64:
        """A figure of the parts of peers, added up by row and GPU."""
        found = [figure(each)[each.inside] for each in self.numbers]
        values = np.concatenate(found).astype(np.float64)
        return sums_of(values, self.cells.owner, len(self.cells))

    def of_rows(self, each: Float64 | Int64) -> Float64:
        """The sum of a figure of rows and GPUs, by row."""
        return sums_of(np.asarray(each, np.float64), self.cells.row, len(self.nodes))

    @cached_property
    def counts(self) -> Float64:
        """Matched kernels by row and GPU."""
        return self._summed(lambda each: np.broadcast_to(each.sizes, each.number.shape))

    @cached_property
    def lead_ns(self) -> Float64:
        return self._summed(lambda each: each.summed(each.own.lead_ns))

    @cached_property
    def gpus_of_rows(self) -> Int64:
        """How many GPUs of each row have a matched kernel."""
        return counts_of(self.cells.row, len(self.nodes))

    @property
    def is_matched(self) -> Mask:
        return np.asarray(self.gpus_of_rows > 0, np.bool_)

    @property
    def several(self) -> Mask:
        return np.asarray(self.gpus_of_rows > 1, np.bool_)

    @cached_property
    def steps(self) -> Int64:
        """The number of steps in which each row has a matched kernel."""
        count = len(self.stand.iterations)
        pairs = [(each.number * count + each.step)[each.inside] for each in self.numbers]
        return counts_of(distinct(np.concatenate(pairs)) // count, len(self.nodes))

    @cached_property
    def compared(self) -> Index:
        """The place of the GPU of each row whose work is compared: its only one, else the scope's
        straggler; -1 where neither has a matched kernel there."""
        found, cells = np.full(len(self.nodes), -1, np.intp), self.cells
        late = cells.place == self.stand.behind
        found[cells.row[late]] = self.stand.behind
        alone = self.gpus_of_rows[cells.row] == 1
        found[cells.row[alone]] = cells.place[alone]
        return found

    @cached_property
    def compared_work(self) -> tuple[Float64, Float64, Float64]:
        """The durations of the same compute per step on the compared GPU of each row; of its
        kernels there, on its other peers their median, and on any of them the largest. NaN without.
        """
        own_ns, usual_ns, most_ns = np.full((3, len(self.nodes)), np.nan)
        rows_of = places_by(self.compared)
        for each in self.numbers:
            has_same = each.has_same
            number, took = each.number[:, has_same], each.same_ns[:, has_same]
            whole = took.sum(axis=1)
            usual = whole - beyond_others(whole)
            for at, place in enumerate(each.places.tolist()):
                if place not in rows_of or not has_same.any():
                    continue
                rows, of_part = rows_of[place], number[at]
                if (of_part == rows[0]).all():
                    own_ns[rows[0]], usual_ns[rows[0]] = whole[at], usual[at]
                    most_ns[rows[0]] = whole.max()
                    continue
                inside = np.isin(of_part, rows)
                sums = sums_by(of_part[inside], took[:, inside], len(self.nodes))[rows]
                own_ns[rows], most_ns[rows] = sums[:, at], sums.max(axis=1)
                if sums.shape[1] > 1:
                    usual_ns[rows] = medians_along(np.delete(sums, at, axis=1), axis=1)
        first, second, third = (ratios(each, self.steps) for each in (own_ns, usual_ns, most_ns))
        return first, second, third

    @cached_property
    def of_gpus(self) -> list[tuple[int, tuple[int, ...]] | None]:
        """The GPU and steps, as places of the scope's, of each row that is all that one GPU does in
        them; else None."""
        cells, owner = self.nodes.split(PAIR)
        every = self.parent.split(PAIR)[0]
        at = first_equal(pair_codes(every), pair_codes(cells))
        is_all = (at >= 0) & (cells.sizes() == every.sizes()[at])
        gpus, steps = cells.codes("gpu"), cells.codes("iteration").astype(np.int64)
        places, whens = (
            first_equal(np.array(known, np.int64), codes.astype(np.int64))
            for known, codes in ((self.stand.gpus, gpus), (self.stand.iterations, steps))
        )
        found: list[tuple[int, tuple[int, ...]] | None] = [None] * len(self.nodes)
        for row, own in places_by(owner).items():
            when = whens[own][whens[own] >= 0]
            if is_all[own].all() and len(distinct(places[own])) == 1 and len(when):
                place = int(places[own[0]])
                found[row] = (place, tuple(when.tolist())) if place >= 0 else None
        return found

    def of_each_gpu(self, figure: Callable[[int, tuple[int, ...]], float]) -> Values:
        """A figure of the rows that are one GPU, by its place and steps."""
        return numbered([np.nan if own is None else figure(*own) for own in self.of_gpus])

    def known(self, numbers: Float64, there: Mask | None = None) -> Values:
        """Figures of the rows with a matched kernel."""
        is_there = self.is_matched if there is None else self.is_matched & there
        return numbered(np.where(is_there, numbers, np.nan))

    def share(self, each: Float64) -> Values:
        """A figure by row and GPU over the matched kernels of each row."""
        return self.known(ratios(self.of_rows(each), self.of_rows(self.counts)))

    def last(self) -> Float64:
        """How many matched kernels no other GPU starts later, by row and GPU."""
        return self._summed(lambda each: each.summed((each.own.lead_ns == 0).astype(np.int64)))

    @cached_property
    def _by_lead(self) -> tuple[Index, Float64]:
        """The places of rows and GPUs by row, then by mean lead, and their mean leads."""
        mean = ratios(self.lead_ns, self.counts)
        order = np.lexsort((self.cells.place, mean, self.cells.row))
        return order, mean[order]

    def behind(self) -> tuple[Index, Float64, Float64]:
        """The GPU of each row that is ahead least, how far it is, and how far the others are
        beyond; NaN without a matched kernel."""
        order, mean = self._by_lead
        row, size = self.cells.row[order], len(self.nodes)
        first, gpu = run_starts(row), np.zeros(size, np.intp)
        gpu[row[first]] = np.array(self.stand.gpus)[self.cells.place[order][first]]
        least = np.full(size, np.nan)
        least[row[first]] = mean[first]
        others = ratios(sums_of(mean, row, size) - least, self.gpus_of_rows - 1)
        return gpu, least, others - least

    def lag(self) -> Float64:
        """How much later than the earliest of its peers a GPU starts its matched kernels of each
        row, mean over them; the largest of the row's GPUs, NaN without a matched kernel."""
        found = np.full(len(self.nodes), np.nan)
        for each in self.numbers:
            if not len(each.own):
                continue
            number, lead = each.number, each.summed(each.own.lead_ns)
            if (number == number[:1]).all():
                # Rows of all GPUs: each occurrence is in one of them.
                means = self._mean_leads(each, lead, number[0])
                found = np.fmax(found, means.max(axis=1) - means.min(axis=1))
                continue
            whole = lead.sum(axis=1) / len(each.own)
            for at, of_part in enumerate(number):
                row = of_part[0]
                if row >= 0 and (of_part == row).all():
                    found[row] = np.fmax(found[row], whole.max() - whole[at])
                else:
                    means = self._mean_leads(each, lead, of_part)
                    found = np.fmax(found, means.max(axis=1) - means[:, at])
        return found

    def _mean_leads(self, each: RowsOfPeers, lead_ns: Float64 | Int64, number: Index) -> Float64:
        """Rows x GPUs of the mean lead over the occurrences of each row, by the numbers of
        parts."""
        inside, size = number >= 0, len(self.nodes)
        sums = sums_by(number[inside], lead_ns[:, inside], size)
        return ratios(sums, sums_of(each.sizes[inside], number[inside], size)[:, None])

    def change(self) -> Values:
        """How much the others gain on the scope's straggler at its kernels of each row."""
        stand = self.stand
        late = self.numbers[stand.peers.index(stand.found)]
        number = late.number[stand.late_column, late.part]
        inside, count = number >= 0, len(self.nodes)
        gained = sums_of(lead_changes(stand)[inside], number[inside], count)
        there = counts_of(number[inside], count) > 0
        return self.known(gained * len(stand.gpus), there)

    def throughput(self) -> Float64:
        """Of rows of one GPU against its peers, of others against the other rows."""
        work, (_, _, most) = self.work(), self.compared_work
        longest = np.where(self.several, np.nan_to_num(work), 0.0).max(initial=0.0)
        return ratios(np.where(self.several, longest, most), work)

    def work(self) -> Float64:
        """The durations of the same compute per step, the largest of each row's GPUs."""
        took = self._summed(lambda each: each.same_ns)
        order = np.lexsort((took, self.cells.row))
        row, most = self.cells.row[order], np.full(len(self.nodes), np.nan)
        first = run_starts(row)
        most[row[first]] = run_maxima(took[order], first)
        return ratios(most, self.steps)

    def waits(self) -> Values:
        """The waits in the collectives of each row that the scope's straggler causes."""
        chosen, count = self.stand.collectives, len(self.nodes)
        if chosen is None:
            return Values(np.zeros(count, np.int64))
        number = self.nodes.numbers_of(chosen.rows)
        inside = number >= 0
        unseen = counts_of(number[inside], count) > 0
        whole = chosen.complete[chosen.member_set]
        unseen &= counts_of(number[inside & whole], count) == 0
        mine = inside & (waiting_pairs(self.stand)[1] == self.stand.behind)
        return Values(sums_of(chosen.member_wait_ns[mine], number[mine], count), unseen)

    def delays(self) -> Values:
        delays_ns = self.stand.delays_ns
        if delays_ns is None:
            return absent(len(self.nodes), 0)
        return self.of_each_gpu(lambda place, when: float(delays_ns[place, list(when)].mean()))

    def extra(self, word: str) -> Values:
        return self.of_each_gpu(lambda place, when: float(self.stand.extra(word, when)[place]))

    def causes(self) -> Values:
        stand, words = self.stand, list[str | None]()
        every = stand.causes()
        for own in self.of_gpus:
            if own is None:
                words.append(None)
            elif len(own[1]) == len(stand.iterations):
                words.append(every[own[0]])
            else:
                words.append(stand.cause_of(*own))
        return worded(words)

    def figure(self, name: str) -> Values:
        if name in _OF_WORK:
            own, usual, _ = self.compared_work
            return self.known(_OF_WORK[name](own, usual))
        return _FIGURES[name](self)


_OF_WORK: Final[dict[str, Callable[[Float64, Float64], Float64]]] = {
    "extra_work_ns": lambda own, usual: own - usual,
    "slower_pct": lambda own, usual: 100.0 * (ratios(own, usual) - 1),
}
_FIGURES: Final[dict[str, Callable[[RowLeads], Values]]] = {
    "lead_ns": lambda rows: rows.known(rows.of_rows(rows.lead_ns)),
    "mean_lead_ns": lambda rows: rows.share(rows.lead_ns),
    "starts_last_pct": lambda rows: rows.share(100.0 * rows.last()),
    "lag_ns": lambda rows: rows.known(rows.lag()),
    "least_lead_ns": lambda rows: rows.known(rows.behind()[1]),
    "occurrences": lambda rows: Values(rows.of_rows(rows.counts).astype(np.int64)),
    "behind": lambda rows: gpu_words(rows.behind()[0], rows.several),
    "ahead_ns": lambda rows: rows.known(rows.behind()[2], rows.several),
    "lead_change_ns": RowLeads.change,
    "work_ns": lambda rows: rows.known(rows.work()),
    "throughput_x": lambda rows: rows.known(rows.throughput()),
    "straggler_wait_ns": RowLeads.waits,
    "delay_ns": RowLeads.delays,
    "extra_host_ns": lambda rows: rows.extra("host"),
    "extra_launch_ns": lambda rows: rows.extra("launch"),
    "apart_by": RowLeads.causes,
}


def rank_scope(stand: RankLeads, level: str) -> Scope:
    """The rows of a level of GPUs that are compared already, for columns of ranks."""
    nodes, parent = stand.split(level), stand.node
    nodes.memo[_LEADS, id(parent)] = RowLeads(stand, nodes, parent), parent
    return Scope.of(stand.run, nodes, parent)


def row_leads(scope: Scope) -> RowLeads | None:
    """The GPUs of the scope of some rows side by side, in its complete steps; None where they can't
    be compared."""
    nodes, run = scope.nodes, scope.run
    origin = scope.parent.origin or nodes.origin
    if run is None or origin is None or run.is_reconstructed:
        return None
    key = _LEADS, id(scope.parent)
    if key not in nodes.memo:
        order, _, path, *_ = origin
        try:
            stand, _ = leads(run, View(run.name, path, order))
            made = RowLeads(stand, nodes, scope.parent)
        except ChopperError:
            made = None
        # The parent stays referred to, so that no other gets its id.
        nodes.memo[key] = made, scope.parent
    found: RowLeads | None = nodes.memo[key][0]
    return found
