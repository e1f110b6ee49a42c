"""Steps that take longer than the others, and the kind of time that grows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.host_causes import host_charges
from chopper_core.analyses.leads import ALWAYS
from chopper_core.analyses.step_times import more_work, of_steps, step_times
from chopper_core.columns.filter import only
from chopper_core.findings.remedies import changes_of
from chopper_core.findings.rule import (
    EXPLAINED,
    FEWEST,
    Cost,
    Finding,
    FindingsContext,
    Group,
    drift_of,
    low_interval,
    outlier_limit,
    rule,
    threshold,
)
from chopper_core.findings.titles import in_short, one_line, shortened
from chopper_core.graph.questions import bound_by_memory
from chopper_core.model.phrases import (
    by_number,
    enumerated,
    longer_by,
    percent,
    recurrence,
    than_or_as,
    time,
)
from chopper_core.model.side_table import HostState
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    distinct,
    first_equal,
    grouped_by,
    median_of,
    ranked,
    sums_of,
)

LONGER: Final = threshold("""longer step | 3 | % of the median
    steps of a steady run vary by 1 to 2 %, which the deviation from the median allows for""")
UNEVEN: Final = threshold("""uneven steps | 10 | % of the shortest
    with steps this far apart their mean is the time of none of them""")
REGIME: Final = threshold("""steps longer from one on | 6 | deviations between the two lengths
    with random waits, one in fifty runs of six steps has first and last ones 6 deviations apart; of
    ten steps or more one in a hundred has them 3 apart, which counts there""")
_OF_COMPUTE: Final = ("clock", "kernels", "work", None)
"""Causes of a straggler that its steps compute longer for."""
_COMPUTES_AS_PEERS: Final = "compute as peers"
_MANY_STEPS: Final = 10
_ALSO: Final = 0.25
"""Of the kind of time that grows most, from which on another one is named with it."""
_BY_CLOCK: Final = 0.5
"""The part of longer compute that a lower clock explains at least, to be the reason."""
_ONLY_THERE: Final = 100.0
"""Times the usual time, from which on the usual is next to nothing."""
_ODDS: Final = 4.0
"""How many times slower than all else an operation is at least."""
DRIFT: Final = threshold("""steps that slow down gradually | 3 | % from the first to the last
    the limit of a longer step; the line through them also grows by 6 deviations from it""")
_AS_SLOW: Final = 0.25
"""Of what a first step takes longer: one that does so for as long has its reason."""
_ALONE: Final = 0.5
"""Of how much longer a GPU computes: with more, another one does so, too."""
_MAX_APART: Final = 1_000
"""Steps of which each may have a reason of its own."""
SET_UP: Final = "the run's first step, which warms up: set-up time isn't counted as a cost"
IN_SETUP: Final = ": set-up, no cost per step"
"""The same as the end of a title."""
STEADY: Final = 0.005
"""The least spread of steps assumed, as a share of the median."""

_PARTS: Final = {
    Cost.COMPUTE: ("compute", "compute_ns", "overlap_ns"),
    Cost.COMMUNICATION: ("exposed communication", "exposed_comm_ns"),
    Cost.COPIES: ("copies", "exposed_copy_ns"),
    Cost.HOST: ("idle before launch calls", "idle_host_ns"),
    Cost.LAUNCH: ("idle after launch calls", "idle_launch_ns", "idle_unknown_ns"),
}
"""Kind of time → its name, and its columns."""


@rule(
    "iteration",
    is_symptom=True,
    cost="their time beyond the median of all, or beyond that of the shorter steps; none for a "
    "run's first step, which warms up",
    needs="two steps or more",
    thresholds=(LONGER, UNEVEN, REGIME, DRIFT),
)
def differing_iterations(context: FindingsContext) -> Iterator[Finding]:
    """Steps that take longer than the others: some, all from one on, or steps of two lengths.

    Those that take longer for different reasons are several findings.
    """
    iterations, took, delayed = context.all_iterations, context.took_ns, _delayed(context)
    slow = slow_iterations(context)
    own = slow[~np.isin(iterations[slow], np.array(delayed, np.int64))]
    times, usual = _TimeByKind(context), _Usual(np.ones(len(took), np.bool_), is_mean=False)
    by_compute: list[int] = []
    for places in _by_reason(times, own[np.argsort(-took[own], kind="stable")], usual):
        finding = _slow(times, places, usual)
        by_compute += iterations[places].tolist() if finding.kind == Cost.COMPUTE else []
        yield finding
    known = [*iterations[slow].tolist(), *delayed]
    while (found := _uneven(context, known)) is not None:
        two = _of_two_lengths(times, found, is_whole=found.is_interval or len(own) > 0)
        for finding in two:
            # Of several reasons, which step has which is known to its own finding alone.
            is_it = finding.kind == Cost.COMPUTE
            by_compute += found.numbers[found.is_long].tolist() if is_it else []
            yield finding
        known += found.numbers[found.is_long].tolist()
    drift = [] if known else list(_drift(times))
    yield from drift
    if not drift:
        yield from _longer_compute(times, [*by_compute, *_delayed(context, _OF_COMPUTE)])


class _Usual(Struct, frozen=True, eq=False):
    """The steps that slow ones are compared with, each kind of time and each cause alike."""

    among: Mask
    """Of all steps, in their order."""
    is_mean: bool
    """Whether it is their mean, else their median."""

    def of(self, values: Float64) -> float:
        own = values[self.among]
        return float(own.mean()) if self.is_mean else median_of(own)


class _TimeByKind(Struct, frozen=True, eq=False, dict=True):
    """The times of all steps, in their order."""

    context: FindingsContext

    @cached_property
    def kinds(self) -> dict[Cost, Float64]:
        """The time of each kind, mean over GPUs."""
        cells = self.context.by_iteration
        place = ranked(cells.codes("iteration"))[1]
        gpus = distinct(cells.codes("gpu")).tolist()
        found = {}
        for part, (_, *names) in _PARTS.items():
            each = np.sum([sums_of(cells.sum(name), place) for name in names], axis=0)
            found[part] = each / len(gpus)
        return found

    @cached_property
    def computes(self) -> Float64:
        """The compute of each GPU (rows) in each step (columns)."""
        context, cells = self.context, self.context.by_iteration
        took = cells.sum("compute_ns") + cells.sum("overlap_ns")
        return of_steps(cells, context.gpus, context.all_iterations.tolist(), took)

    def name(self, cost: Cost) -> str:
        """A kind of time in a sentence; idle time without launch records isn't explained."""
        sums = [int(self.context.by_iteration.sum(name).sum()) for name in _PARTS[Cost.LAUNCH][1:]]
        return "unexplained idle" if cost == Cost.LAUNCH and sums[1] > sums[0] else _PARTS[cost][0]

    @cached_property
    def _by_host(self) -> tuple[Int64, Float64]:
        """The cause and step of what hosts do late, and its time, mean over GPUs."""
        context, charges = self.context, host_charges(self.context.run)
        inside = np.isin(context.table.gpu[charges.row], context.gpus)
        steps = context.table.iteration[charges.row].astype(np.int64)
        place = np.where(inside, first_equal(context.all_iterations, steps), -1)
        own = (place >= 0) & (charges.state == HostState.LATE)
        pairs, owner = combined([charges.cause[own], place[own]])
        return pairs, sums_of(charges.ns[own], owner, len(pairs)) / len(context.gpus)

    def by_host(self, slow: Index, usual: _Usual) -> Float64:
        """The time by cause that hosts take beyond the usual, mean over some steps."""
        pairs, sums = self._by_host
        found = np.zeros(len(host_charges(self.context.run).causes))
        # Causes are many, but slow iterations have few of them.
        for cause in distinct(pairs[np.isin(pairs[:, 1], slow), 0]).tolist():
            first, end = np.searchsorted(pairs[:, 0], (cause, cause + 1)).tolist()
            each = np.zeros(len(self.context.all_iterations))
            each[pairs[first:end, 1]] = sums[first:end]
            found[cause] = each[slow].mean() - usual.of(each)
        return found


def _by_reason(times: _TimeByKind, slow: Index, usual: _Usual) -> Iterator[Index]:
    """Steps that take longer for the same reason: the kind of time that grows most, and what
    their hosts do. Of very many the reason of all is looked for."""
    if len(slow) > _MAX_APART:
        return iter([slow])
    kinds = [*times.kinds]
    grown = np.stack([each[slow] - usual.of(each) for each in times.kinds.values()])
    cost_of = dict(zip(slow.tolist(), grown.argmax(axis=0).tolist(), strict=True))

    def reason(place: int) -> tuple[int, str, int]:
        cost, own = cost_of[place], np.array([place])
        longest = _one_longer(times, own, usual)
        doing = _doing(times, own, usual, kinds[cost])[0]
        return cost, doing, -1 if longest is None else longest.gpu

    return map(np.array, grouped_by(slow.tolist(), reason).values())


def _slow(times: _TimeByKind, slow: Index, usual: _Usual) -> Finding:
    context = times.context
    iterations, took = context.all_iterations, context.took_ns
    usual_ns = usual.of(took)
    lost = float((took[slow] - usual_ns).sum())
    is_one = len(slow) == 1
    unit = "per GPU" if is_one else "per GPU and slow step"
    cost, mostly, changes = _explained(times, slow, usual, unit)
    why = _more(times, slow, usual, cost)
    if not is_one and np.ptp(slow) == len(slow) - 1:
        slow = np.sort(slow)
    named = _listed_steps([f"{iterations[place]} ({time(took[place])})" for place in slow])
    factor = took[slow].mean() / max(usual_ns, 1.0)
    found = context.finding(
        _title(
            _which(iterations, slow),
            is_one,
            _as_long(factor, "the median"),
            why.short or f": {_first_of(mostly)}",
        ),
        f"step{'' if is_one else 's'} {named} {'takes' if is_one else 'take'} "
        f"{_as_long(factor, 'the median')} of {len(iterations)} steps, {time(usual_ns)}: "
        f"{mostly}{why.text}; {_cost_of(lost, len(iterations))}",
        context.with_view("throughput", "iteration", sort="-iteration_ns"),
        cost,
        lost / len(iterations),
        is_repeated=not is_one,
        total_ns=lost * len(context.gpus),
        cells=context.cells_of(iteration=iterations[slow].tolist()),
    )
    return _with_remedy(found, why.of_this(changes))


def _with_remedy(finding: Finding, remedy: str) -> Finding:
    """A finding with the questions that replay the steps like the others."""
    even = "made like the others', its time also loses the variation that every step has"
    is_evened = finding.kind in (Cost.COMPUTE, Cost.COMMUNICATION) and "as peers" in remedy
    return replace(finding, remedy=remedy, why_more=even if is_evened else "")


def _which(iterations: Int64, places: Index) -> str:
    """Steps in a title: by their numbers, or every how many."""
    when = recurrence(np.sort(places).tolist(), iterations.tolist())
    if when.startswith(" every"):
        return f"one step in {when.partition(', ')[0].split()[1]}"
    return in_short("step", iterations[places].tolist())


def _first_of(mostly: str) -> str:
    return mostly.removeprefix("mostly ").partition(", ")[0]


def _title(which: str, is_one: bool, compared: str, why: str) -> str:
    takes = "takes" if is_one or which.startswith("one ") else "take"
    return one_line(f"{which} {takes} {compared}", why)


def _as_long(factor: float, what: str) -> str:
    """How long something takes: `7.2 % longer than the median`, `4 times as long as the others`."""
    return f"{longer_by(factor)} {than_or_as(factor)} {what}"


def _cost_of(lost_ns: float, number: int) -> str:
    """What steps that take longer cost, over all of them."""
    return f"over all {number} steps that costs {time(lost_ns / number)} per step"


def _listed_steps(texts: Sequence[str]) -> str:
    """The first three of some steps, and how many more there are."""
    more = [f"{len(texts) - 3} more"] if len(texts) > 3 else []
    return enumerated([*texts[:3], *more])


class _TwoLengths(Struct, frozen=True, eq=False):
    """Steps of two lengths; whether all from one to another are the long ones."""

    numbers: Int64
    each_ns: Float64
    is_long: Mask
    is_interval: bool = False


def _uneven(context: FindingsContext, known: list[int]) -> _TwoLengths | None:
    """Steps of two lengths among those that no finding is about."""
    step = step_times(context.run, context.view)
    numbers, each = np.array(step.iterations, np.int64), step.each_ns
    rest = ~np.isin(numbers, np.array(known, np.int64))
    numbers, each = numbers[rest], each[rest]
    if len(each) < 2 or not each.min() > 0:
        return None
    lengths = np.sort(each)
    is_long = each > (1 + UNEVEN.share) * lengths[0]
    if len(each) >= FEWEST.value:
        # Lengths that vary are two where the short ones differ less than the long ones from them.
        place = int((lengths[1:] / lengths[:-1]).argmax())
        short, long = lengths[place : place + 2]
        is_apart = long > short * max(1 + UNEVEN.share, short / lengths[0])
        is_long = (each > short) & is_apart
    # A GPU's first step may begin with its first activity, without what it waited for before.
    if np.array_equal(numbers[~is_long], step.iterations[:1]):
        is_long &= each > (1 + UNEVEN.share) * step.times_ns[:, 0].max()
    if is_long.any():
        return _TwoLengths(numbers, each, is_long)
    if len(each) < FEWEST.value or len(known):
        return None
    is_long = _regime(each)
    return _TwoLengths(numbers, each, is_long, is_interval=True) if is_long.any() else None


def _of_two_lengths(times: _TimeByKind, found: _TwoLengths, *, is_whole: bool) -> Iterator[Finding]:
    context, numbers, each = times.context, found.numbers, found.each_ns
    usual_ns = float(each[~found.is_long].mean())
    is_other = np.isin(context.all_iterations, numbers[~found.is_long])
    usual = _Usual(is_other, is_mean=True)
    places = np.flatnonzero(np.isin(context.all_iterations, numbers[found.is_long]))
    for at in [places] if is_whole else _by_reason(times, places, usual):
        long = np.isin(numbers, context.all_iterations[at])
        which = numbers[long].tolist()
        factor, many = each[long].mean() / usual_ns, len(each) > len(which) + 1
        compared = _as_long(factor, f"the other{'s' if many else ''}")
        text = f"{by_number('step', which)} {'takes' if len(which) == 1 else 'take'} {compared}"
        when = recurrence(np.flatnonzero(long).tolist(), numbers.tolist())
        is_since = found.is_interval or when.startswith(" since")
        if is_since:
            text = f"they take {longer_by(factor)}{when}"
        cost, mostly, changes = _explained(times, at, usual, "per GPU and long step")
        lost = float((each[long] - usual_ns).sum())
        is_first = which == [_first_of_run(context, max(which))]
        why = _more(times, at, usual, cost)
        short = IN_SETUP if is_first else why.short or f": {_first_of(mostly)}"
        title = _title(in_short("step", which), len(which) == 1, compared, short)
        if is_since:
            title = one_line(f"steps take {longer_by(factor)}{when}", short)
        total = len(context.all_iterations)
        costs = f"; it is {SET_UP}"
        if not is_first:
            costs = f"; {_cost_of(lost, total)}"
        finding = context.finding(
            title,
            f"steps take {time(each.min())} to {time(each.max())}: {text}; {mostly}{why.text}"
            f"{costs}",
            context.with_view("throughput", "iteration", sort="-iteration_ns"),
            cost,
            None if is_first else lost / total,
            is_repeated=len(which) > 1,
            total_ns=lost * len(context.gpus),
            cells=context.cells_of(iteration=which),
            group=Group.BETTER if is_first else None,
        )
        yield _with_remedy(finding, why.of_this(changes))


def _drift(times: _TimeByKind) -> Iterator[Finding]:
    """Steps that take longer and longer."""
    context = times.context
    step = step_times(context.run, context.view)
    numbers, each = np.array(step.iterations, np.int64), step.each_ns
    count, ends = len(each), drift_of(each, DRIFT.share)
    if ends is None or ends[1] < ends[0]:
        return
    grown = percent(ends[1] / ends[0] - 1)
    places = np.flatnonzero(np.isin(context.all_iterations, numbers))
    quarter = max(count // 4, 1)
    usual = _Usual(np.isin(context.all_iterations, numbers[:quarter]), is_mean=True)
    late = places[-quarter:]
    cost, mostly, _ = _explained(times, late, usual, "per GPU in the last quarter of them")
    changes = _explained(times, places[quarter:], usual, "")[2]
    why = _more(times, late, usual, cost)
    lost = float((each - each[:quarter].mean()).sum())
    found = context.finding(
        one_line(f"steps slow down gradually, by {grown}", why.short or f": {_first_of(mostly)}"),
        f"steps slow down gradually, from {time(each.min())} to {time(each.max())}, by "
        f"{grown} over {count} steps; {mostly}{why.text}",
        context.with_view("throughput", "iteration", sort="-iteration_ns"),
        cost,
        max(lost, 0.0) / count,
        cells=context.cells_of(iteration=numbers[quarter:].tolist()),
        changes=(),
    )
    yield _with_remedy(found, why.of_this(changes))


def _longer_compute(times: _TimeByKind, known: list[int]) -> Iterator[Finding]:
    """Steps that compute longer than the others, where other differences hide it in the time of
    whole steps: some, or all from one on."""
    context, compute = times.context, times.kinds[Cost.COMPUTE]
    numbers = context.all_iterations
    rest = ~np.isin(numbers, np.array([*known, *context.irregular], np.int64))
    if rest.sum() < FEWEST.value:
        return
    # The steps as if they differed in nothing else.
    each = compute + max(median_of(context.took_ns[rest]) - median_of(compute[rest]), 0.0)
    is_long = rest & (each > outlier_limit(each[rest], LONGER, STEADY))
    if not is_long.any():
        is_long[rest] = _regime(each[rest])
        if is_long.any():
            # Steps that a straggler delays may be the first ones of them.
            middle = (each[is_long].min() + each[rest & ~is_long].max()) / 2
            begin = int(is_long.argmax())
            before = np.flatnonzero(each[:begin] < middle)
            is_long[int(before[-1]) + 1 if len(before) else 0 : begin] = True
            rest |= is_long
    is_long &= ~_warms_up(context, is_long)
    if not is_long.any():
        return
    places, usual = np.flatnonzero(is_long), _Usual(rest & ~is_long, is_mean=True)
    grown = float(compute[places].mean()) - usual.of(compute)
    why = _more(times, places, usual, Cost.COMPUTE)
    which = numbers[places].tolist()
    analysed = numbers[rest].tolist()
    when = recurrence(first_equal(np.array(analysed), numbers[places]).tolist(), analysed)
    compared = f"{longer_by(1 + grown / max(usual.of(compute), 1.0))}{when}"
    finding = context.finding(
        one_line(f"steps compute {compared}", why.short),
        f"steps compute {compared}, {time(grown)} more per GPU and step{why.text}; other "
        f"differences between steps hide it in their times",
        context.with_view("throughput", "iteration", sort="-iteration_ns"),
        Cost.COMPUTE,
        grown * len(places) / len(numbers),
        is_repeated=len(which) > 1,
        cells=context.cells_of(iteration=which),
    )
    remedy = f"{_only_steps(context, numbers[places])} {_COMPUTES_AS_PEERS}"
    yield _with_remedy(finding, why.of_this(remedy))


def _regime(each: Float64) -> Mask:
    """The long ones of steps that are longer from one on, or up to one; none where none are."""
    first, end, longer = low_interval(1 / each)
    is_long = (np.arange(len(each)) >= first) & (np.arange(len(each)) < end)
    is_clear = min(end - first, (~is_long).sum()) >= 2 and longer >= LONGER.share
    limit = REGIME.value if len(each) < _MANY_STEPS else REGIME.value / 2
    return is_long & (is_clear and _apart(each, is_long) >= limit)


def _apart(each: Float64, is_long: Mask) -> float:
    """How far the shortest long step is from the longest short one, in deviations of both."""
    within = [each[part] - each[part].mean() for part in (is_long, ~is_long)]
    squares = float(sum((part**2).sum() for part in within)) / max(len(each) - 2, 1)
    gap = float(each[is_long].min()) - float(each[~is_long].max())
    return gap / max(float(squares**0.5), STEADY * float(each.mean()))


def _delayed(context: FindingsContext, causes: Collection[str | None] = ()) -> list[int]:
    """The steps that a straggler of some of them delays, for one of some causes, or for any; not
    those that take far longer than it delays them by."""
    leads = context.leads
    if leads is None:
        return []
    count, numbers = len(leads.iterations), np.array(leads.iterations, np.int64)
    place = first_equal(context.all_iterations, numbers)
    took = np.where(place >= 0, context.took_ns[place], 0.0)
    longer = took - median_of(context.took_ns)
    by_straggler = np.zeros(count)
    late = (each for each in leads.stragglers if not causes or each.cause in causes)
    some = [each for each in late if len(each.when) < ALWAYS * count]
    for each in some:
        at = [*{*each.delayed, *each.when}]
        by_straggler[at] += each.once_ns if len(each.delayed) < count else 0.0
    explained = (by_straggler > 0) & (by_straggler >= EXPLAINED.share * longer)
    return [*map(int, numbers[explained])]


def slow_iterations(context: FindingsContext) -> Index:
    """The positions of the complete steps that take longer.

    The run's first step warms up and may take longer, unless it has more work.
    """
    iterations, took = context.all_iterations, context.took_ns
    if len(iterations) < FEWEST.value:
        return np.zeros(0, np.intp)
    is_slow = took > outlier_limit(took, LONGER, STEADY)
    return np.flatnonzero(is_slow & ~_warms_up(context, is_slow))


def warm_up_of(context: FindingsContext) -> set[int]:
    """The run's first step, where it takes longer than the others and warms up."""
    iterations, took = context.all_iterations, context.took_ns
    if len(iterations) < 2:
        return set()
    limit = (1 + UNEVEN.share) * float(np.delete(took, took.argmax()).mean())
    if len(iterations) >= FEWEST.value:
        limit = outlier_limit(took, LONGER, STEADY)
    is_slow = took > limit
    return set(iterations[is_slow & _warms_up(context, is_slow)].tolist())


def _warms_up(context: FindingsContext, is_slow: Mask) -> Mask:
    """The run's first step, if it is slow without more work, and no other one is as much so."""
    is_first = context.all_iterations == _first_of_run(context, np.iinfo(np.int64).max)
    if (is_slow & is_first).any() and _more_work(context, np.flatnonzero(is_first)):
        return np.zeros(len(is_first), np.bool_)
    took = context.took_ns - median_of(context.took_ns)
    first = float(took[is_first].sum())
    is_alike = is_slow & ~is_first & (np.abs(took - first) < _AS_SLOW * first)
    return np.zeros_like(is_first) if is_alike.any() else is_first


def _first_of_run(context: FindingsContext, without: int) -> int:
    numbers = context.run.pairs.codes("iteration")
    return min(numbers[numbers != NO_LABEL].tolist(), default=without)


def _doing(times: _TimeByKind, slow: Index, usual: _Usual, cost: Cost) -> tuple[str, float]:
    """What hosts do in slow steps that have most more of a kind of time, as the end of a
    phrase, and the time that it takes beyond the usual, mean over GPUs."""
    charges = host_charges(times.context.run)
    if cost != Cost.HOST or not charges.causes:
        return "", 0.0
    ns = times.by_host(slow, usual)
    cause = charges.main(ns)
    return ("", 0.0) if cause is None else (charges.doing(ns), ns[charges.causes.index(cause)])


def _explained(times: _TimeByKind, slow: Index, usual: _Usual, unit: str) -> tuple[Cost, str, str]:
    """The kind of time that slow steps have most more of, how much, mean over GPUs, and what
    their hosts do then; and the steps without."""
    context, kinds = times.context, times.kinds
    grown = {part: float(each[slow].mean() - usual.of(each)) for part, each in kinds.items()}
    cost = max(grown, key=lambda part: grown[part])
    doing, doing_ns = _doing(times, slow, usual, cost)
    if len(context.gpus) == 1:
        unit = unit.replace("per GPU and ", "per ").replace("per GPU", "").strip()
    mostly = f"mostly {times.name(cost)}, {time(grown[cost])} more {unit}".rstrip()
    if doing:
        is_all = time(doing_ns) == time(grown[cost]) or doing_ns > grown[cost]
        mostly += f", {'all' if is_all else time(doing_ns)} of that{doing}"
    rest = {part: ns for part, ns in grown.items() if part != cost}
    next_one = max(rest, key=lambda part: rest[part])
    if rest[next_one] > _ALSO * grown[cost] > 0:
        mostly += f", and {times.name(next_one)}, {time(rest[next_one])} more"
    # A usual step has some of it, too.
    usually = usual.of(kinds[Cost.LAUNCH]) / max(float(kinds[Cost.LAUNCH][slow].mean()), 1.0)
    changes = [each.replace("launch x0", f"launch x{usually:.4f}") for each in changes_of(grown)]
    numbers = context.all_iterations
    when = _only_steps(context, numbers[slow])
    if (longest := _one_longer(times, slow, usual)) is not None:
        return Cost.COMPUTE, mostly, longest.remedy(context, numbers[slow])
    return cost, mostly, "; ".join(f"{when} {change}" for change in changes)


def _only_steps(context: FindingsContext, steps: Int64) -> str:
    return only("iteration", [context.text("iteration", step) for step in steps.tolist()])


class _LongerOnOne(Struct, frozen=True):
    """The one GPU that computes longer in slow steps, while the others wait for it."""

    gpu: int
    ns: float
    """How much longer, mean over the steps."""

    @property
    def why(self) -> _Why:
        text = f": GPU {self.gpu} computes {time(self.ns)} longer, and the others wait"
        return _Why(text, f": GPU {self.gpu} computes longer")

    def remedy(self, context: FindingsContext, steps: Int64) -> str:
        own = only("gpu", [context.text("gpu", self.gpu)])
        return f"{own} {_only_steps(context, steps)} {_COMPUTES_AS_PEERS}"


def _one_longer(times: _TimeByKind, slow: Index, usual: _Usual) -> _LongerOnOne | None:
    """The one GPU whose longer compute explains steps in which the GPUs are mostly idle for no
    known reason, such as those of other pipeline stages; None without."""
    context = times.context
    more = {part: each[slow].mean() - usual.of(each) for part, each in times.kinds.items()}
    if len(context.gpus) < 2 or max(more, key=lambda part: more[part]) != Cost.LAUNCH:
        return None
    common = np.array([usual.of(each) for each in times.computes])
    grown = times.computes[:, slow].mean(axis=1) - common
    lost = float(context.took_ns[slow].mean()) - usual.of(context.took_ns)
    *_, second, most = np.sort(grown).tolist()
    if most < EXPLAINED.share * lost or second > _ALONE * most:
        return None
    return _LongerOnOne(context.gpus[int(grown.argmax())], most)


def _more_work(context: FindingsContext, slow: Index) -> str:
    """What slow steps have more of than the others; empty without more."""

    def ratio(values: Float64) -> float:
        means = values.mean(axis=0)
        rest = median_of(np.delete(means, slow)) if len(slow) < len(means) else np.nan
        return float(means[slow].mean()) / rest if rest > 0 else np.nan

    return more_work(context.run, context.gpus, context.all_iterations.tolist(), ratio)


class _Why(Struct, frozen=True):
    """Why slow steps take longer; empty where that is unknown."""

    text: str = ""
    """The end of a phrase."""
    short: str = ""
    """The end of a title."""
    of: str = ""
    """The terms of a question that choose the compute that takes longer; empty: all."""

    def of_this(self, remedy: str) -> str:
        """The questions of a remedy, about nothing but this compute."""
        return remedy.replace(_COMPUTES_AS_PEERS, f"{self.of} as peers") if self.of else remedy


def _more(times: _TimeByKind, slow: Index, usual: _Usual, cost: Cost) -> _Why:
    """Why slow steps take longer: one GPU for which the others wait; what hosts do, which the
    phrase has already; of compute more work, a lower clock, an operation, or what memory bounds."""
    context = times.context
    if (longest := _one_longer(times, slow, usual)) is not None:
        return longest.why
    if cost == Cost.HOST and (doing := _doing(times, slow, usual, cost)[0]):
        return _Why(short=f": {shortened(doing.removeprefix(' in ').partition(' (')[0])}")
    if cost != Cost.COMPUTE:
        return _Why()
    if more := _more_work(context, slow):
        return _Why(f": they have {more}", f": {more}")
    return _slower_compute(context, slow, usual)


def _slower_compute(context: FindingsContext, slow: Index, usual: _Usual) -> _Why:
    """The same of compute that is no more work."""
    # Of a large run not all iterations are analysed, and of none those far from the others.
    analysed = np.isin(context.all_iterations, context.iterations)
    slow, usual = slow[analysed[slow]], replace(usual, among=usual.among & analysed)
    if not len(slow) or not usual.among.any():
        return _Why()
    table, rows = context.table, context.node.rows
    rows = rows[table.kind[rows] == Kind.COMPUTE]
    step = first_equal(context.all_iterations, table.iteration[rows].astype(np.int64))
    iterations, gpus = context.all_iterations.tolist(), len(context.gpus)
    count = len(iterations)

    def by_step(owner: Index, number: int) -> tuple[Float64, Float64]:
        """The usual time of each owner per step and GPU, and by how much it grows."""
        sums = sums_of(table.duration_ns[rows], owner * count + step, number * count) / gpus
        each = sums.reshape(number, count)
        common = np.array([usual.of(line) for line in each])
        return common, each[:, slow].mean(axis=1) - common

    names, operation = combined([table.operation[rows]])
    common, grown = by_step(operation, len(names))
    whole, share = float(grown.sum()), float(grown.sum() / max(common.sum(), 1.0))
    if whole <= 0:
        return _Why()
    mhz = context.figure("gfx_mhz", context.by_iteration).known()
    mhz = of_steps(context.by_iteration, context.gpus, iterations, mhz, np.nan).mean(axis=0)
    if np.isfinite(mhz).all():
        now, before = float(mhz[slow].mean()), usual.of(mhz)
        if before / now - 1 >= _BY_CLOCK * share:
            lower = percent(1 - now / before)
            text = f": the clocks are {lower} lower"
            return _Why(f"{text} ({now:,.0f} vs {before:,.0f} MHz)", text)
    for level in ("operation", "layer", "phase"):
        names, owner = combined([table.column(level)[rows]])
        common, grown = by_step(owner, len(names))
        most = int(grown.argmax())
        part, usually = float(grown[most]) / whole, float(common[most] / max(common.sum(), 1.0))
        is_one = part >= EXPLAINED.share and part * (1 - usually) > _ODDS * usually * (1 - part)
        if is_one and names[most, 0] != NO_LABEL:
            label = context.text(level, int(names[most, 0]))
            name = f"layer {label}" if level == "layer" else label
            factor = 1 + float(grown[most] / max(common[most], 1.0))
            # What next to nothing of is usual has nothing to be compared with.
            how = f"takes {longer_by(factor)}" if factor < _ONLY_THERE else "runs only there"
            text, short = (f": {each} {how}" for each in (name, shortened(name)))
            return _Why(text, short, f"{only(level, [label])} compute")
    common, grown = by_step(bound_by_memory(context.run, rows).astype(np.intp), 2)
    others, memory = (grown / np.maximum(common, 1.0)).tolist()
    if memory >= LONGER.share and memory > 2 * others:
        rest = percent(others) if others >= STEADY else "as long as before"
        longer = longer_by(1 + memory)
        text = f": kernels that memory bounds take {longer}, the others {rest}"
        return _Why(text, ": slow memory", "memory")
    return _Why()
