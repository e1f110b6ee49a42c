"""Iterations that take longer than the others, and the kind of time that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.side_table import HostState
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    combined,
    distinct,
    distinct_without,
    first_equal,
    grouped,
    median_of,
    places_by,
    ranked,
    sums_of,
)
from chopper_core.views.findings.remedies import changes_of
from chopper_core.views.findings.rule import (
    FEWEST,
    Cost,
    Finding,
    FindingsContext,
    low_interval,
    outlier_limit,
    rule,
    threshold,
)
from chopper_core.views.shared.filter import only
from chopper_core.views.shared.host_causes import host_charges
from chopper_core.views.shared.leads import ALWAYS
from chopper_core.views.shared.phrases import by_number, listed, percent, recurrence, time
from chopper_core.views.shared.step_times import more_work, step_times

LONGER: Final = threshold("""longer iteration | 3 | % of the median
    iterations of a steady run vary by 1 to 2 %, which the deviation from the median allows for""")
UNEVEN: Final = threshold("""uneven steps | 10 | % of the shortest
    with steps this far apart their mean is the time of none of them""")
_MAX_APART: Final = 1_000
"""Iterations of which each may have a reason of its own."""
STEADY: Final = 0.005
"""The least spread of iterations assumed, as a share of the median."""

_PARTS: Final = {
    Cost.COMPUTE: ("compute", "compute_ns", "overlap_ns"),
    Cost.COMMUNICATION: ("exposed communication", "exposed_comm_ns"),
    Cost.COPIES: ("copies", "exposed_copy_ns"),
    Cost.HOST: ("idle before launch calls", "idle_host_ns"),
    Cost.LAUNCH: ("other idle time", "idle_launch_ns", "idle_unknown_ns"),
}
"""Kind of time → its name, and its columns."""


@rule(
    "iteration",
    is_symptom=True,
    saving="their time beyond the median of all, or beyond that of the shorter steps; none for a "
    "run's first step, which warms up",
    holds=(0.8, 1.2),
    needs="two iterations or more",
    thresholds=(LONGER, UNEVEN),
)
def differing_iterations(context: FindingsContext) -> Iterator[Finding]:
    """Iterations that take longer than the others: some, all from one on, or steps of two lengths.

    Those that take longer for different reasons are several findings.
    """
    iterations, took, delayed = context.all_iterations, context.took_ns, _delayed(context)
    slow = slow_iterations(context)
    own = slow[~np.isin(iterations[slow], np.array(delayed, np.int64))]
    times, usual = _TimeByKind(context), median_of(took)
    for places in _by_reason(times, own[np.argsort(-took[own], kind="stable")]):
        yield _slow(times, places, usual)
    known = [*iterations[slow].tolist(), *delayed]
    while (found := _uneven(context, known)) is not None:
        yield from _of_two_lengths(times, found, is_whole=found.is_interval or len(own) > 0)
        known += found.numbers[found.is_long].tolist()


class _TimeByKind(Struct, frozen=True, eq=False, dict=True):
    """The times of all iterations, in their order."""

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
    def _by_host(self) -> tuple[Int64, Float64, Float64]:
        """The iteration and cause of what hosts do late, its time, and the usual time by cause."""
        context, charges = self.context, host_charges(self.context.run)
        inside = np.isin(context.table.gpu[charges.row], context.gpus)
        place = np.where(inside, first_equal(context.all_iterations, charges.iteration), -1)
        own = (place >= 0) & (charges.state == HostState.LATE)
        pairs, owner = combined([charges.cause[own], place[own]])
        sums = sums_of(charges.ns[own], owner, len(pairs)).astype(np.float64)
        # Iterations and causes are many, but an iteration has few of these: it has none of others.
        usual, count = np.zeros(len(charges.causes)), len(context.all_iterations)
        for cause, at in places_by(pairs[:, 0]).items():
            if 2 * len(at) >= count:
                usual[cause] = median_of(np.append(sums[at], np.zeros(count - len(at))))
        return pairs, sums, usual

    def by_host(self, slow: Index) -> Float64:
        """The time by cause that hosts take beyond the usual, mean over some iterations."""
        pairs, sums, usual = self._by_host
        own = np.flatnonzero(np.isin(pairs[:, 1], slow))
        return sums_of(sums[own], pairs[own, 0], len(usual)) / len(slow) - usual


def _by_reason(times: _TimeByKind, slow: Index) -> Iterator[Index]:
    """Iterations that take longer for the same reason: the kind of time that grows most, and what
    their hosts do. Of very many the reason of all is looked for."""
    if len(slow) > _MAX_APART:
        return iter([slow])
    others = distinct_without(np.arange(len(times.context.took_ns)), slow)
    kinds = [*times.kinds]
    grown = np.stack([each[slow] - median_of(each[others]) for each in times.kinds.values()])
    cost_of = dict(zip(slow.tolist(), grown.argmax(axis=0).tolist(), strict=True))

    def reason(place: int) -> tuple[int, str]:
        cost = cost_of[place]
        return cost, _doing(times, np.array([place]), kinds[cost])

    return map(np.array, grouped(slow.tolist(), reason).values())


def _slow(times: _TimeByKind, slow: Index, usual: float) -> Finding:
    context = times.context
    iterations, took = context.all_iterations, context.took_ns
    lost = float((took[slow] - usual).sum())
    cost, mostly, changes = _explained(times, slow, median_of)
    is_one = len(slow) == 1
    if not is_one and np.ptp(slow) == len(slow) - 1:
        slow = np.sort(slow)
    named = listed((f"{iterations[place]} ({time(took[place])})" for place in slow), 3)
    found = context.finding(
        f"{len(slow)} of {len(iterations)} iterations {'takes' if is_one else 'take'} longer "
        f"than the median of {time(usual)}: iteration{'' if is_one else 's'} {named}; "
        f"{mostly}{'' if is_one else ' and slow iteration'}{_more(context, slow, cost)}",
        context.with_view("throughput", "iteration", sort="-iteration_ns"),
        cost,
        lost / len(iterations),
        is_repeated=not is_one,
        total_ns=lost * len(context.gpus),
        cells=context.cells_of(iteration=iterations[slow].tolist()),
    )
    return replace(found, remedy=changes)


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
    if is_long.any():
        return _TwoLengths(numbers, each, is_long)
    if len(each) < FEWEST.value or len(known):
        return None
    first, end, longer = low_interval(1 / each)
    is_long = (np.arange(len(each)) >= first) & (np.arange(len(each)) < end)
    is_clear = min(end - first, (~is_long).sum()) >= 2 and longer >= LONGER.share
    if not is_clear or each[is_long].min() <= each[~is_long].max():
        return None
    return _TwoLengths(numbers, each, is_long, is_interval=True)


def _of_two_lengths(times: _TimeByKind, found: _TwoLengths, *, is_whole: bool) -> Iterator[Finding]:
    context, numbers, each = times.context, found.numbers, found.each_ns
    usual = float(each[~found.is_long].mean())
    is_other = np.isin(context.all_iterations, numbers[~found.is_long])
    places = np.flatnonzero(np.isin(context.all_iterations, numbers[found.is_long]))
    for at in [places] if is_whole else _by_reason(times, places):
        long = np.isin(numbers, context.all_iterations[at])
        which = numbers[long].tolist()
        factor, many = each[long].mean() / usual, len(each) > len(which) + 1
        text = (
            f"{by_number('iteration', which)} {'takes' if len(which) == 1 else 'take'} "
            f"{factor:.1f} times as long as the other{'s' if many else ''}"
        )
        if found.is_interval:
            when = recurrence(np.flatnonzero(long).tolist(), numbers.tolist())
            text = f"they take {percent(factor - 1)} longer{when}"
        cost, mostly, changes = _explained(times, at, lambda ns: float(ns[is_other].mean()))
        is_first = which == [_first_of_run(context, max(which))]
        lost = float((each[long] - usual).sum())
        finding = context.finding(
            f"steps take {time(each.min())} to {time(each.max())}: {text}; {mostly} and long step"
            f"{_more(context, at, cost)}",
            context.with_view("throughput", "iteration", sort="-iteration_ns"),
            cost,
            None if is_first else lost / len(context.all_iterations),
            is_repeated=len(which) > 1,
            total_ns=lost * len(context.gpus),
            cells=context.cells_of(iteration=which),
        )
        yield replace(finding, remedy=changes)


def _delayed(context: FindingsContext) -> list[int]:
    """The iterations that a straggler of some of them delays."""
    leads = context.leads
    if leads is None:
        return []
    count = len(leads.iterations)
    some = [each for each in leads.stragglers if len(each.when) < ALWAYS * count]
    some = [each for each in some if len(each.delayed) < count]
    return [leads.iterations[at] for late in some for at in (*late.delayed, *late.when)]


def slow_iterations(context: FindingsContext) -> Index:
    """The positions of the complete iterations that take longer.

    The run's first iteration warms up and may take longer.
    """
    iterations, took = context.all_iterations, context.took_ns
    if len(iterations) < FEWEST.value:
        return np.zeros(0, np.intp)
    first = _first_of_run(context, np.iinfo(np.int64).max)
    return np.flatnonzero((took > outlier_limit(took, LONGER, STEADY)) & (iterations != first))


def _first_of_run(context: FindingsContext, without: int) -> int:
    numbers = context.run.pairs.codes("iteration")
    return min(numbers[numbers != NO_LABEL].tolist(), default=without)


def _grown(
    times: _TimeByKind, slow: Index, usual: Mapping[Cost, float]
) -> tuple[Cost, str, dict[Cost, float]]:
    """The kind of time that slow iterations have most more of, what their hosts do then, and how
    much more of each."""
    grown = {part: float(each[slow].mean() - usual[part]) for part, each in times.kinds.items()}
    cost = max(grown, key=lambda part: grown[part])
    return cost, _doing(times, slow, cost), grown


def _doing(times: _TimeByKind, slow: Index, cost: Cost) -> str:
    """What hosts do in slow iterations that have most more of a kind of time."""
    charges = host_charges(times.context.run)
    return charges.doing(times.by_host(slow)) if cost == Cost.HOST and charges.causes else ""


def _explained(
    times: _TimeByKind, slow: Index, usual: Callable[[Float64], float]
) -> tuple[Cost, str, str]:
    """The kind of time that slow iterations have most more of, how much, mean over GPUs; and the
    steps without."""
    context, kinds = times.context, times.kinds
    cost, doing, grown = _grown(times, slow, {part: usual(kinds[part]) for part in kinds})
    mostly = f"mostly {_PARTS[cost][0]}{doing}, {time(grown[cost])} more per GPU"
    changes = changes_of(grown)
    if _more(context, slow, cost):
        ns = times.kinds[Cost.COMPUTE][slow].mean()
        changes = (*changes[1:], f"compute x{1 - grown[Cost.COMPUTE] / ns:.4f}")
    numbers = context.all_iterations
    when = only("iteration", [context.text("iteration", numbers[at]) for at in slow])
    return cost, mostly, "; ".join(f"{when} {change}" for change in changes)


def _more(context: FindingsContext, slow: Index, cost: Cost) -> str:
    if cost != Cost.COMPUTE:
        return ""

    def ratio(values: Float64) -> float:
        means = values.mean(axis=0)
        usual = median_of(np.delete(means, slow)) if len(slow) < len(means) else np.nan
        return float(means[slow].mean()) / usual if usual > 0 else np.nan

    more = more_work(context.run, context.gpus, context.all_iterations.tolist(), ratio)
    return f": they have {more}" if more else ""
