"""Iterations that take longer than the others, and the kind of time that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    distinct,
    first_equal,
    median_of,
    medians_along,
    ranked,
    sums_of,
)
from chopper_core.views.findings.remedies import changes_of
from chopper_core.views.findings.rule import (
    FEWEST,
    Cost,
    Finding,
    FindingsContext,
    interval_text,
    low_interval,
    outlier_limit,
    rule,
    threshold,
)
from chopper_core.views.shared.filter import only
from chopper_core.views.shared.host_causes import host_charges
from chopper_core.views.shared.phrases import by_number, listed, percent, time
from chopper_core.views.shared.step_times import more_work, step_times

LONGER: Final = threshold("""longer iteration | 3 | % of the median
    iterations of a steady run vary by 1 to 2 %, which the deviation from the median allows for""")
UNEVEN: Final = threshold("""uneven steps | 10 | % of the shortest
    with steps this far apart their mean is the time of none of them""")
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
    times = _kinds_of_time(context)
    reasons: dict[Cost, list[int]] = {}
    for place in own[np.argsort(-took[own], kind="stable")].tolist():
        cost, _ = _grown(times, np.array([place]), median_of)
        reasons.setdefault(cost, []).append(place)
    for places in reasons.values():
        yield _slow(context, times, np.array(places))
    found = _uneven(context, [*iterations[slow].tolist(), *delayed])
    if found is not None:
        yield _of_two_lengths(context, times, *found)


def _slow(context: FindingsContext, times: dict[Cost, Float64], slow: Index) -> Finding:
    iterations, took = context.all_iterations, context.took_ns
    usual = median_of(took)
    lost = float((took[slow] - usual).sum())
    cost, mostly, changes = _explained(context, times, slow, median_of)
    is_one = len(slow) == 1
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


def _uneven(context: FindingsContext, known: list[int]) -> tuple[Mask, str] | None:
    """The long ones of steps of two lengths, if they aren't known, and how that is said."""
    step = step_times(context.run, context.view)
    numbers, each = np.array(step.iterations), step.each_ns
    if len(each) < 2 or not each.min() > 0:
        return None
    is_long = each > (1 + UNEVEN.share) * each.min()
    if is_long[~np.isin(numbers, np.array(known, np.int64))].any():
        factor = each[is_long].mean() / each[~is_long].mean()
        verb = "takes" if is_long.sum() == 1 else "take"
        others = f"other{'s' if len(each) > is_long.sum() + 1 else ''}"
        which = by_number("iteration", numbers[is_long].tolist())
        return is_long, f"{which} {verb} {factor:.1f} times as long as the {others}"
    if len(each) < FEWEST.value or len(known):
        return None
    first, end, longer = low_interval(1 / each)
    is_long = (np.arange(len(each)) >= first) & (np.arange(len(each)) < end)
    is_clear = min(end - first, (~is_long).sum()) >= 2 and longer >= LONGER.share
    if not is_clear or each[is_long].min() <= each[~is_long].max():
        return None
    factor = each[is_long].mean() / each[~is_long].mean()
    names = tuple(numbers[is_long].tolist())
    when = interval_text(names, is_last=end == len(each))
    return is_long, f"they take {percent(factor - 1)} longer {when}"


def _of_two_lengths(
    context: FindingsContext, times: dict[Cost, Float64], is_long: Mask, text: str
) -> Finding:
    step = step_times(context.run, context.view)
    each, long = step.each_ns, np.array(step.iterations)[is_long].tolist()
    usual = float(each[~is_long].mean())
    is_other = ~np.isin(context.all_iterations, long)
    at = np.flatnonzero(~is_other)
    cost, mostly, changes = _explained(context, times, at, lambda ns: float(ns[is_other].mean()))
    is_first = long == [_first_of_run(context, max(long))]
    found = context.finding(
        f"steps take {time(each.min())} to {time(each.max())}: {text}; {mostly} and long step"
        f"{_more(context, at, cost)}",
        context.with_view("throughput", "iteration", sort="-iteration_ns"),
        cost,
        None if is_first else step.mean_ns - usual,
        is_repeated=len(long) > 1,
        total_ns=float((each[is_long] - usual).sum()) * len(context.gpus),
        cells=context.cells_of(iteration=long),
    )
    return replace(found, remedy=changes)


def _delayed(context: FindingsContext) -> list[int]:
    """The iterations that a straggler of some of them delays."""
    leads = context.leads
    if leads is None:
        return []
    some = [late for late in leads.stragglers if len(late.delayed) < len(leads.iterations)]
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
    numbers: Int64 = context.run.table.iteration.astype(np.int64)
    return int(numbers.min(where=numbers != NO_LABEL, initial=without))


def _kinds_of_time(context: FindingsContext) -> dict[Cost, Float64]:
    """The time of each kind in each of all iterations, mean over GPUs."""
    cells = context.by_iteration
    iterations, place = ranked(cells.codes("iteration"))
    gpus = distinct(cells.codes("gpu")).tolist()
    moved = context.moved.by_step(context.run, gpus, iterations.tolist()).sum(axis=0)
    found = {}
    for part, (_, *names) in _PARTS.items():
        each = np.sum([sums_of(cells.sum(name), place) for name in names], axis=0)
        found[part] = (each + moved * ("idle_host_ns" in names)) / len(gpus)
    return found


def _grown(
    times: dict[Cost, Float64], slow: Index, usual: Callable[[Float64], float]
) -> tuple[Cost, dict[Cost, float]]:
    """The kind of time that slow iterations have most more of, and how much of each."""
    grown = {part: float((each[slow] - usual(each)).mean()) for part, each in times.items()}
    return max(grown, key=lambda part: grown[part]), grown


def _explained(
    context: FindingsContext,
    times: dict[Cost, Float64],
    slow: Index,
    usual: Callable[[Float64], float],
) -> tuple[Cost, str, str]:
    """The kind of time that slow iterations have most more of, how much, mean over GPUs; and the
    steps without."""
    cost, grown = _grown(times, slow, usual)
    doing = ""
    charges, numbers = host_charges(context.run), context.all_iterations
    if cost == Cost.HOST and charges.causes:
        inside = np.isin(context.table.gpu[charges.row], context.gpus)
        place = np.where(inside, first_equal(numbers, charges.iteration), -1)
        sums = charges.sums(place, len(numbers))
        doing = charges.doing((sums[slow] - medians_along(sums, axis=0)).mean(axis=0))
    mostly = f"mostly {_PARTS[cost][0]}{doing}, {time(grown[cost])} more per GPU"
    changes = changes_of(grown)
    if _more(context, slow, cost):
        ns = times[Cost.COMPUTE][slow].mean()
        changes = (*changes[1:], f"compute x{1 - grown[Cost.COMPUTE] / ns:.4f}")
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
