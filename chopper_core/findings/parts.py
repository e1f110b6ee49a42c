"""What findings are worth, and groups of those that cost the same time: a finding and its parts.

A finding is worth the answer to the what-if questions that remove what it costs.
A finding is a part of another one if a replay removes the same time for both. Where there is no
replay, what a finding costs is spread over the cells that it is about, by its kind of time. One
that saves only together with another of its kind of time is a part of that too. What a part costs
is inside what its whole costs. One that costs more, or another kind of time, which the whole
doesn't explain, stands next to it, and names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.asked import Answer, Steady, answer_of, change_of, questions_of
from chopper_core.analyses.time_parts import THEORY, parts_of
from chopper_core.findings.remedies import question_of
from chopper_core.findings.rule import (
    COMPUTES,
    EXPLAINED,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    Group,
)
from chopper_core.graph.questions import Change, Predictor
from chopper_core.model.column_names import MICROBATCH
from chopper_core.model.phrases import percent, time
from chopper_core.model.side_table import HostLane
from chopper_core.model.view import SEPARATOR
from chopper_core.util.arrays import Float64, Index, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import distinct, grouped_by, sums_of

MAX_ERROR: Final = 0.02
"""Of the step: with a larger error of the replay, only what saves far more is known."""
_MOST_ERROR: Final = 0.1
"""Of the step: with a larger one nothing is."""
_FAR_MORE: Final = 5.0
"""How many times the error a saving is at least, where that is large."""
MAX_UNLAUNCHED: Final = 0.1
"""Of the activities: without launch records, what their hosts did before them is unknown."""


class Worth(Struct, frozen=True, eq=False):
    """The steps of a context, to replay them without what findings cost."""

    context: FindingsContext
    steady: Steady
    least_ns: float = 0.0
    """What saves less, per step, is within the error of the replay."""
    answers: dict[str, Answer | None] = {}
    changes: dict[tuple[Predictor, str], Change] = {}
    """Of each question of some steps: others ask it too, together with their own."""

    @classmethod
    def of(cls, context: FindingsContext) -> Worth | None:
        """None where steps can't be replayed."""
        found = _replayed(context)
        if isinstance(found, str):
            return None
        error = abs(found.error_ns)
        is_large = error > MAX_ERROR * found.times.mean_ns
        return cls(context, found, _FAR_MORE * error if is_large else 0.0)

    def answer(self, remedy: str) -> Answer | None:
        """The answer to some questions together; of a long run other steps are replayed for a
        question of some steps. None where the run lacks what they need."""
        if remedy not in self.answers:
            try:
                self.answers[remedy] = answer_of(*self._asked([remedy]))
            except NothingToShow:
                self.answers[remedy] = None
        return self.answers[remedy]

    def saving_ns(self, remedies: Sequence[str], near: str = "") -> float:
        """What some remedies save together; of several that are compared, with the waits without
        the largest, `near`, since to find their own takes four replays."""
        steady, changes = self._asked(remedies)
        found = self.answer(near) if near else None
        is_same = found is not None and found.steady.predictor is steady.predictor
        start = found.expected if found is not None and is_same else None
        replayed = steady.predictor.predict(changes, start=start)
        return steady.now_ns - steady.mean_ns(replayed)

    def most_ns(self, finding: Finding) -> float | None:
        """What a finding saves; where no change attains what its remedy asks, the most that it may,
        so that it is a bound. None without a replay."""
        saving = finding.saving_ns
        if saving is None or not finding.is_bound:
            return saving
        found = self.answer(finding.remedy)
        if found is None:
            return saving
        return max(found.bound_ns + self.least_ns / _FAR_MORE, saving)

    def together_ns(self, remedies: Sequence[str], is_most: bool) -> float:
        """What some remedies save together; the most that they may, where one is a bound."""
        found = self.answer(SEPARATOR.join(remedies)) if is_most else None
        return self.saving_ns(remedies) if found is None else found.bound_ns

    def _asked(self, remedies: Iterable[str]) -> tuple[Steady, list[Change]]:
        asked = [each for remedy in remedies for each in questions_of(remedy)]
        steady = Steady.of(self.context.run, self.context.view, asked)
        predictor, known = steady.predictor, self.changes
        for each in asked:
            if (predictor, each) not in known:
                known[predictor, each] = change_of(predictor, each)
        return steady, [known[predictor, each] for each in asked]

    def of_finding(self, finding: Finding) -> Finding:
        """A finding with its remedy, and the saving of that: 0 where the replay takes longer."""
        remedy = finding.remedy or question_of(self.context, finding)
        if not remedy or finding.cost_ns is None or (found := self.answer(remedy)) is None:
            return finding
        if 0 < self.least_ns > found.saving_ns:
            known = time(self.least_ns)
            return replace(finding, unreplayed=f"the replay tells only what saves {known} or more")
        return replace(finding, remedy=remedy, saving_ns=max(found.saving_ns, 0.0))

    def range_ns(self, finding: Finding) -> tuple[float, float] | None:
        """The least and the most that a finding's remedy may save; None without a replay."""
        found = self.answer(finding.remedy) if finding.is_replayed else None
        if found is None:
            return None
        (low, high), error = found.range_ns, self.least_ns / _FAR_MORE
        return low - error, high + error

    def asks_alike(self, one: Finding, other: Finding) -> bool:
        """Whether the remedies of two findings are the same changes, each at its place."""
        forms = []
        for each in (one, other):
            answer = self.answer(each.remedy) if each.is_replayed else None
            changes = () if answer is None else answer.changes
            forms.append({(change.form, change.axis) for change in changes})
        return forms[0] == forms[1] != set()

    def removed_ns(self, finding: Finding) -> Float64 | None:
        """What a finding's remedy takes from the work of each node, and from each edge's lag; None
        where it isn't known of the same steps as that of the others."""
        found = self.answer(finding.remedy) if finding.is_replayed else None
        graph = self.steady.predictor.graph
        if found is None or found.steady.predictor.graph is not graph:
            return None
        expected = found.expected
        lag = graph.lag_ns - np.maximum(expected.lag_ns, 0)
        work = graph.work_ns - expected.work_ns
        removed: Float64 = np.maximum(np.concatenate([work, lag]), 0).astype(np.float64)
        return removed


def _replayed(context: FindingsContext) -> Steady | str:
    """The replayed steps of a context, or why there are none: empty where nothing is amiss."""
    run = context.run
    if context.view.path:
        return ""  # What a part is worth to the whole step says little about the part.
    is_schedule = MICROBATCH in run.table.measured
    # Without the calls of hosts, their waiting for GPUs looks like work.
    if not is_schedule and (not len(run.side(HostLane).gpu) or run.is_reconstructed):
        return "the run has no calls of hosts"
    try:
        steady = Steady.of(run, context.view)
    except NothingToShow as error:
        return str(error)
    graph, step_ns = steady.predictor.graph, steady.times.mean_ns
    unlaunched = graph.unlaunched / max(len(graph.activities), 1)
    if not is_schedule and unlaunched > MAX_UNLAUNCHED:
        return (
            f"{percent(unlaunched)} of the activities have no launch record, so that what their "
            "hosts did before them isn't known"
        )
    error_ns, apart_ns = abs(steady.error_ns), steady.apart_ns
    if error_ns > MAX_ERROR * step_ns and apart_ns > _MOST_ERROR * step_ns:
        return (
            f"replayed without a change, a step is {time(apart_ns)} from what was measured, "
            f"{percent(apart_ns / step_ns)} of it"
        )
    return steady


def why_not_replayed(context: FindingsContext) -> str:
    """Why the findings of a context have no savings; empty where they have, or need none."""
    found = _replayed(context)
    return found if isinstance(found, str) else ""


Found = tuple[FindingRule, Finding]

_COLUMNS: Final = {
    Cost.COMMUNICATION: ("exposed_comm_ns",),
    Cost.COPIES: ("exposed_copy_ns",),
    Cost.HOST: ("idle_host_ns",),
    Cost.LAUNCH: ("idle_launch_ns", "idle_unknown_ns"),
} | dict.fromkeys(COMPUTES, ("compute_ns", "overlap_ns"))
"""Kind of time → the columns that it is in; a finding of unknown kind may be in any."""
_TOUCHES: Final = 0.1
"""Of the time that a replay removes for a finding: with less in common, two are two."""
_NOTHING: Final = 1e-4
"""Of the step: what a part saves less than is shown as 0.00 ms."""
_MOST_PAIRED: Final = 8
"""Findings that save nothing alone are tried together with at most so many others."""
_ROUNDED: Final = 0.01
"""By so much more two costs are as large."""
_MORE_WORK: Final = {Cost.WORK, Cost.KERNELS}
_NARROWER: Final = 0.8
"""A finding about less than this part of the time of another one is the more precise, if it
saves no less than this part of what that saves."""


class PlacedFinding(Struct, eq=False):
    """A finding with its parts, and what it costs by cell."""

    rule: FindingRule
    finding: Finding
    at: Index
    """The places of its cells."""
    costs_ns: Float64
    """Of these."""
    about_ns: float
    """All time of its kind in its cells, or of the nodes that it is taken from."""
    removed_ns: Float64 | None
    """What a replay removes, by node and edge."""
    parts: list[PlacedFinding] = []
    sums_ns: dict[bool, Float64] = {}
    """Its costs by GPU; by GPU and step."""

    def holds(self, context: FindingsContext, at: Index) -> Mask:
        """Whether some cells are among its own."""
        gpu, cells = self.finding.gpu, self.finding.cells
        found = np.ones(len(at), np.bool_) if cells is None else cells[at]
        return found if gpu is None else found & (context.codes("gpu")[at] == gpu)

    def may_explain(self, other: PlacedFinding) -> bool:
        """Whether both may be the same time: of one kind, or one says only that steps are long.

        More work is the time that peers don't take, whichever of the two it is taken for.
        """
        is_symptom = self.rule.is_symptom or other.rule.is_symptom
        one, two = self.finding.kind, other.finding.kind
        return is_symptom or one.may_be(two) or {one, two} == _MORE_WORK

    def costs_less_than(self, whole: PlacedFinding) -> bool:
        """Whether what it costs, as shown, can be inside what another one does."""
        return (self.finding.cost_ns or 0.0) <= (1 + _ROUNDED) * (whole.finding.cost_ns or 0.0)

    @property
    def worth_ns(self) -> float:
        return self.finding.worth_ns or 0.0

    def hides_much(self, together_ns: float) -> bool:
        """Whether most of what it saves together with another one shows only once both are gone."""
        return (self.finding.further_ns or 0.0) > together_ns / 2 > self.worth_ns

    @property
    def is_of_pair(self) -> bool:
        """Whether it is one of two that save most of their time only together."""
        together = self.finding.together_ns
        if together is None or self.finding.is_bound:
            return False
        named = self.finding.together_with
        return self.hides_much(together) or any(each.finding.title == named for each in self.parts)

    @property
    def rank(self) -> tuple[bool, float]:
        """What is replayed comes first, then what saves most, alone or with the one that it names,
        or costs most."""
        most = (self.finding.together_ns or 0.0) if self.is_of_pair else 0.0
        return not self.finding.is_replayed, -max(most, self.worth_ns)

    @property
    def group(self) -> Group:
        return group_of(self.rule, self.finding)


def group_of(rule: FindingRule, finding: Finding) -> Group:
    """The group of a finding: its own, else that of its rule."""
    return rule.group if finding.group is None else finding.group


def in_groups(
    context: FindingsContext, found: Sequence[Found], worth: Worth | None
) -> list[tuple[Found, int | None]]:
    """The findings, each followed by its parts; and the place of the one that each is a part of.

    They come by group (`Group`), the largest first. A part saves no more than the finding that it
    is a part of, and those to fix together no more than the step can lose. What saves nothing until
    another one is fixed isn't to be fixed first. Findings that nothing replays come after those
    that something does, and those of unknown cost last.
    """
    # Of equal savings, that of the later rule comes first.
    found = found[::-1]
    placed = [each for each in found if not each[0].of_logs]
    known = [_placed(context, each, worth) for each in placed if each[1].worth_ns is not None]
    known.sort(key=lambda each: -each.worth_ns)
    listed: list[tuple[Found, int | None]] = []

    def walk(level: list[PlacedFinding], whose: int | None, most_ns: float) -> None:
        # A bound is placed by what is expected of it.
        for each in sorted(level, key=lambda each: each.rank):
            finding = each.finding
            if worth is not None:
                finding = replace(finding, saving_ns=worth.most_ns(finding))
            whole = None if whose is None else listed[whose][0][1]
            if whole is not None and finding.is_replayed and finding.remedy == whole.remedy:
                finding = replace(finding, saving_ns=None, is_removed_with_whole=True)
            if finding.saving_ns is not None and finding.saving_ns > most_ns:
                finding = replace(finding, saving_ns=most_ns, alone_ns=finding.saving_ns)
            listed.append(((each.rule, finding), whose))
            walk(each.parts, len(listed) - 1, max(finding.saving_ns or most_ns, 0.0))

    by_group = grouped_by(known, lambda each: each.group)
    later: list[PlacedFinding] = []
    for group in Group:
        of_group = [each for each in found if group_of(*each) == group]
        listed += [(each, None) for each in of_group if each[0].stops_job]
        # Those of a log are about other steps: they share no cells with those of the trace.
        logged = [
            PlacedFinding(*each, at=np.empty(0, np.intp), costs_ns=np.empty(0), about_ns=1.0,
                          removed_ns=None)
            for each in of_group
            if each[0].of_logs and each[1].cost_ns is not None
        ]  # fmt: skip
        own = by_group.get(group, [])
        wholes, later = [*_wholes(context, own, worth), *later, *logged], []
        if group == Group.FIX and worth is not None:
            later = [each for each in wholes if _is_later(context, each, worth)]
            wholes = [each for each in wholes if each not in later]
            for each in later:
                each.finding = replace(each.finding, group=Group.BETTER)
        walk(wholes, None, context.step_ns)
        rest = (each for each in of_group if each[1].worth_ns is None and not each[0].stops_job)
        listed += [(each, None) for each in rest]
    return listed


def _is_later(context: FindingsContext, one: PlacedFinding, worth: Worth) -> bool:
    """Whether a finding saves next to nothing alone, whatever it saves once another one is fixed;
    not one of two that save only together."""
    most = worth.most_ns(one.finding) if one.finding.is_replayed else None
    is_small = most is not None and context.share(most) < SMALLEST_SAVING.share
    return is_small and not one.is_of_pair and not one.parts


def _wholes(
    context: FindingsContext, known: Sequence[PlacedFinding], worth: Worth | None
) -> list[PlacedFinding]:
    """Findings, the largest first, with those that are parts of others among the parts of these."""
    found: list[PlacedFinding] = []
    for one in known:
        _add(context, found, one, worth)
    small = [each for each in found if context.share(each.worth_ns) < SMALLEST_SAVING.share]
    found = _fitting(context, [each for each in found if each not in small])
    if worth is None:
        return [*found, *small]
    for each in found:
        _prune(context, each)
    apart, rest = _hide(context, found, small, worth)
    return [*found, *apart, *_paired(context, rest, worth)]


def _placed(context: FindingsContext, found: Found, worth: Worth | None) -> PlacedFinding:
    rule, finding = found
    at = context.cells_about(finding)
    own: Float64 = np.zeros(len(at))
    for name in _COLUMNS.get(finding.kind, ()):
        own = own + context.cells.sum(name)[at]
    if not own.any():
        own = context.cells.elapsed_ns[at].astype(np.float64)
    about = max(float(own.sum()), 1.0)
    gpus = len(distinct(context.place("gpu")[at]))
    total = (finding.cost_ns or 0.0) * gpus * len(context.iterations)
    costs = own * (total / about)
    removed = None if worth is None else worth.removed_ns(finding)
    if worth is not None and removed is not None:
        work = worth.steady.predictor.graph.work_ns
        about = float(work[removed[: len(work)] > 0].sum())
    return PlacedFinding(rule, finding, at, costs, about, removed)


def _add(
    context: FindingsContext, level: list[PlacedFinding], one: PlacedFinding, worth: Worth | None
) -> None:
    """Add a finding to larger ones, as a part of the smallest that costs the same time.

    It takes the place of one that costs little else, if it is more precise, or the cause of steps
    that differ.
    """
    shared = {number: _shared(context, one, each, worth) for number, each in enumerate(level)}
    around = [number for number, (own, _) in shared.items() if own >= EXPLAINED.share]
    if not around:
        level.append(one)
        return
    number = max(around, key=lambda number: shared[number][1])
    whole, is_most = level[number], shared[number][1] >= EXPLAINED.share
    is_cause = one.rule.is_symptom < whole.rule.is_symptom
    if one.finding.is_replayed and whole.finding.is_replayed:
        is_cause &= one.worth_ns >= EXPLAINED.share * whole.worth_ns
    is_like = one.finding.is_replayed == whole.finding.is_replayed
    is_like &= is_cause or one.rule.is_symptom == whole.rule.is_symptom
    # What a replay tells comes before an estimate of the same time, unless it says next to nothing.
    is_surer = one.finding.is_replayed > whole.finding.is_replayed
    is_surer &= one.finding.kind.may_be(whole.finding.kind)
    is_surer &= context.share(one.worth_ns) >= SMALLEST_SAVING.share
    # A change that can be made comes before a bound of the same time.
    is_attained = is_most and whole.finding.is_bound > one.finding.is_bound
    is_surer |= is_attained and is_like and one.finding.kind.may_be(whole.finding.kind)
    is_narrower = is_like and one.about_ns < _NARROWER * whole.about_ns
    # What is precise about little of it, by what it costs and by what it saves, is a part.
    is_much = bool(one.costs_ns.sum() >= EXPLAINED.share * whole.costs_ns.sum())
    if one.finding.is_replayed and whole.finding.is_replayed:
        is_much |= one.worth_ns >= EXPLAINED.share * whole.worth_ns
        # A whole that saves clearly less would hide what its part saves.
        is_much &= one.worth_ns >= _NARROWER * whole.worth_ns
    is_narrower &= is_much
    if is_surer or (is_most and (is_cause or is_narrower)):
        level[number] = one
        one.parts, whole.parts = [whole, *whole.parts], []
    elif not one.costs_less_than(whole):
        # It costs more than what it would be a part of: it stands next to it.
        one.finding = replace(one.finding, see_also=whole.finding.title)
        level.append(one)
    elif is_most:
        whole.parts.append(one)
    else:
        _add(context, whole.parts, one, worth)


def _hide(
    context: FindingsContext, groups: list[PlacedFinding], small: list[PlacedFinding], worth: Worth
) -> tuple[list[PlacedFinding], list[PlacedFinding]]:
    """Add what saves next to nothing alone to the parts of the group that it hides behind, which
    is the one without which it saves time; return those that cost more than that or another kind
    of time, and the rest."""
    apart, left = list[PlacedFinding](), list[PlacedFinding]()
    behind: dict[str, list[PlacedFinding]] = {}
    for one in sorted(small, key=lambda each: -(each.finding.cost_ns or 0.0)):
        whole = next((each for each in groups if _joins(context, one, each, worth)), None)
        if whole is None:
            # The third of several that are late hides behind all that are later.
            hides = (each for each in groups if each.finding.title in behind)
            whole = next(
                (each for each in hides
                 if _joins(context, one, each, worth, behind[each.finding.title])),
                None,
            )  # fmt: skip
        if whole is None:
            left.append(one)
            continue
        behind.setdefault(whole.finding.title, []).append(one)
        is_part = one.costs_less_than(whole) and whole.may_explain(one)
        (whole.parts if is_part else apart).append(one)
        if not is_part and whole.finding.together_ns is None:
            _name_in_turn(whole, one)
    return apart, left


def _name_in_turn(whole: PlacedFinding, one: PlacedFinding) -> None:
    """Have the finding that another one hides behind name that, too, where it saves most of what
    both save only once that is fixed: two GPUs that are late alike hide each other."""
    together = one.finding.together_ns or 0.0
    if whole.finding.is_bound or one.finding.is_bound or not one.hides_much(together):
        return
    whole.finding = replace(
        whole.finding,
        together_with=one.finding.title,
        together_ns=together,
        further_ns=together - one.worth_ns,
    )


def _paired(
    context: FindingsContext, small: list[PlacedFinding], worth: Worth
) -> list[PlacedFinding]:
    """Findings that save next to nothing alone, with those with which they save as their parts:
    two GPUs that are equally late hide each other. What saves nothing with another either goes."""
    order = sorted(small, key=lambda each: -(each.finding.cost_ns or 0.0))
    remedies = [each.finding.remedy for each in order if each.finding.is_replayed]
    kept: list[PlacedFinding] = []
    if len(remedies) > 1:
        together = worth.saving_ns(remedies)
        if context.share(together - order[0].worth_ns) < SMALLEST_SAVING.share:
            remedies = []
    for one in order:
        candidates = kept[:_MOST_PAIRED] if len(remedies) > 1 else []
        if not _may_join(context, one, candidates, worth):
            candidates = []
        whole = next((each for each in candidates if _joins(context, one, each, worth)), None)
        if whole is None:
            kept.append(one)
            continue
        whole.parts.append(one)
        if whole.finding.together_ns is None:
            whole.finding = replace(
                whole.finding,
                together_with=one.finding.title,
                together_ns=one.finding.together_ns,
                further_ns=(one.finding.together_ns or 0.0) - one.worth_ns,
            )
    return [each for each in kept if each.parts or not _saves_nothing(context, each)]


def _may_join(
    context: FindingsContext, one: PlacedFinding, others: Sequence[PlacedFinding], worth: Worth
) -> bool:
    """Whether a finding saves time once others are gone, all of them: else it does with none."""
    remedies = [each.finding.remedy for each in others if each.finding.is_replayed]
    if len(remedies) < 2 or not one.finding.is_replayed:
        return True
    together = worth.saving_ns([one.finding.remedy, *remedies], remedies[0])
    return context.share(together) >= SMALLEST_SAVING.share


def _joins(
    context: FindingsContext,
    one: PlacedFinding,
    whole: PlacedFinding,
    worth: Worth,
    rest: Sequence[PlacedFinding] = (),
) -> bool:
    """Whether a finding saves time once another one is gone, with the rest that hides behind it;
    it then names these."""
    others = [whole, *rest]
    if not all(each.finding.is_replayed for each in (one, *others)):
        return False
    remedies = [each.finding.remedy for each in others]
    before = worth.saving_ns(remedies, remedies[0]) if rest else whole.worth_ns
    together = worth.saving_ns([one.finding.remedy, *remedies], remedies[0])
    if context.share(together - before) < SMALLEST_SAVING.share:
        return False
    title = '" and "'.join(each.finding.title for each in others)
    further = together - before
    one.finding = replace(
        one.finding, together_with=title, together_ns=together, further_ns=further
    )
    return True


def _prune(context: FindingsContext, whole: PlacedFinding) -> None:
    """Drop the parts of a finding that save nothing."""
    whole.parts = [each for each in whole.parts if not _saves_nothing(context, each)]
    for each in whole.parts:
        _prune(context, each)


def _saves_nothing(context: FindingsContext, one: PlacedFinding) -> bool:
    is_joined = one.finding.together_ns is not None
    return one.finding.is_replayed and not is_joined and context.share(one.worth_ns) < _NOTHING


def _shared(
    context: FindingsContext, one: PlacedFinding, whole: PlacedFinding, worth: Worth | None
) -> tuple[float, float]:
    """The parts of each of two findings' costs that the other one costs too: at the same nodes,
    else by GPU and step in the cells of the second one."""
    # The same kernels may be slow for several reasons at once, which isn't the same time.
    is_asked_alike = worth is not None and worth.asks_alike(one.finding, whole.finding)
    if not (whole.may_explain(one) or is_asked_alike):
        return 0.0, 0.0
    if one.removed_ns is not None and whole.removed_ns is not None:
        both = float(np.minimum(one.removed_ns, whole.removed_ns).sum())
        own = both / max(float(one.removed_ns.sum()), 1.0)
        if worth is not None and _TOUCHES < own < EXPLAINED.share:
            # Some of it saves nothing: what it saves once the other is gone tells.
            largest = whole.finding.remedy
            together = worth.saving_ns((one.finding.remedy, largest), largest)
            own = max(own, 1 - (together - whole.worth_ns) / max(one.worth_ns, 1.0))
        return own, own * one.worth_ns / max(whole.worth_ns, 1.0)
    if not one.finding.kind.may_be(whole.finding.kind):
        return 0.0, 0.0
    # An estimate next to a replay says little about when its time is lost.
    by_step = one.finding.is_replayed == whole.finding.is_replayed
    if by_step not in whole.sums_ns:
        whole.sums_ns[by_step] = _sums(context, whole.at, whole.costs_ns, by_step)
    inside = whole.holds(context, one.at)
    sums = _sums(context, one.at[inside], one.costs_ns[inside], by_step)
    both = float(np.minimum(sums, whole.sums_ns[by_step]).sum())
    own, of_whole = (max(float(each.costs_ns.sum()), 1.0) for each in (one, whole))
    return both / own, both / of_whole


def _sums(context: FindingsContext, at: Index, costs_ns: Float64, by_step: bool) -> Float64:
    """Costs of some cells by GPU, or by GPU and step."""
    place = context.place("gpu")[at]
    if by_step:
        place = place * len(context.iterations) + context.place("iteration")[at]
    return sums_of(costs_ns, place, context.spots)


def _fitting(context: FindingsContext, groups: list[PlacedFinding]) -> list[PlacedFinding]:
    """The groups that together fit into what the step can lose; others are parts of the largest."""
    ideal = parts_of(context.run, context.split()).numbers(THEORY).sum()
    left = context.step_ns - context.per_iteration(float(ideal))
    kept: list[PlacedFinding] = []
    for each in sorted(groups, key=lambda each: -each.worth_ns):
        if kept and each.worth_ns > left:
            kept[0].parts.append(each)
            continue
        kept.append(each)
        left -= each.worth_ns
    return kept
