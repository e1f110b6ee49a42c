"""What a trainer's log shows of the whole run: profiled steps, data, ranks, periods, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.outliers import spread_of
from chopper_core.analyses.training import (
    FEWEST,
    Training,
    periodic_steps,
    restarts_of,
    traced_steps,
    training_of,
)
from chopper_core.findings.rule import (
    ROBUST_Z,
    Cost,
    Finding,
    FindingsContext,
    low_interval,
    rule,
    threshold,
)
from chopper_core.model.phrases import (
    by_number,
    count,
    how_often,
    longer_by,
    percent,
    small,
    than_or_as,
    time,
)
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import means_of, median_of, ratios

_LOG: Final = "a trainer's log"
_UNKNOWN: Final = "unknown: it is of another kind than time"
LONGER: Final = threshold("""profiled steps longer | 3 | % of the run's median
    step times vary by about as much; below it the profile shows the run as it is""")
WAITS: Final = threshold("""waits for data | 5 | % of the run's time
    a loader that keeps up costs less than 1 %""")
BEHIND: Final = threshold("""rank slower | 3 | % of the median of the ranks
    the ranks of a healthy job are closer together""")
PRICE: Final = threshold("""price of periodic steps | 0.5 | % of the median step
    checkpoints and evaluations of most jobs cost less""")
DECAYS: Final = threshold("""throughput falls | 3 | % from the first tenth of the run to the last
    more than the noise of means over many steps""")
SPIKE: Final = threshold("""loss spike | 8 | x the usual change from line to line
    the loss of a healthy job falls slowly""")
_WINDOWS: Final = 64
_MOST_RANKS: Final = 4
_MOST_SPIKES: Final = 5
_BEFORE: Final = 20
"""Lines before a spike that tell the usual loss."""


def _view(context: FindingsContext, by: str = "", *, sort: str = "") -> View:
    return View(context.view.run, name="training", by=by, sort=sort)


def _finding(
    context: FindingsContext,
    title: str,
    detail: str,
    evidence: View,
    *,
    cost_ns: float | None = None,
    is_repeated: bool = True,
) -> Finding:
    """A finding about all steps of the run; `cost_ns` is per step. No replay predicts it."""
    found = context.finding(
        title, detail, evidence, Cost.UNKNOWN, cost_ns, total_ns=0.0, is_repeated=is_repeated
    )
    return replace(found, total_ns=None)


@rule(
    "profiled-steps",
    cost="the traced steps' time beyond the median of the run's others",
    needs=f"{_LOG} next to traces",
    thresholds=(LONGER,),
    of_logs=True,
)
def profiled_steps(context: FindingsContext) -> Iterator[Finding]:
    """Traced steps that take longer than the run's others by its log: the profiler slows them."""
    traced = traced_steps(context.run)
    if traced is None or abs(traced.longer) < LONGER.share:
        return
    title = traced.sentence[:1].upper() + traced.sentence[1:]
    detail = "The job spends time that this profile doesn't show."
    if traced.longer > 0:
        detail = "The profiler slows them: the times here are longer than those of the job."
    more = max(traced.step_ns - traced.usual_ns, 0.0) or None
    yield _finding(context, title, detail, _view(context), cost_ns=more)


@rule(
    "data-bound-run",
    cost="mean time in which a step waits for its batch",
    needs=f"{_LOG} with data times",
    thresholds=(WAITS,),
    of_logs=True,
)
def data_bound(context: FindingsContext) -> Iterator[Finding]:
    """Steps that wait for their batch, over the whole run."""
    training = training_of(context.run)
    if training is None or "data_ns" not in training.figures:
        return
    waits_ns = training.mean("data_ns", training.steady)
    step_ns = training.mean("step_ns", training.steady)
    if not step_ns > 0 or not waits_ns >= WAITS.share * step_ns:
        return
    share = ratios(training.figures["data_ns"], training.step_ns)
    bound = training.steady & (share > 0.5)
    steps = int(training.steps[bound].sum())
    more = f" In {count(steps, 'step')} it is more than half of the time." if steps else ""
    yield _finding(
        context,
        f"Waiting for data takes {percent(waits_ns / step_ns)} of the run's steps",
        f"{time(waits_ns)} of {time(step_ns)} per step, over the whole run.{more} Use more loader "
        "workers, or prefetch.",
        _view(context, sort="-data_wait_pct"),
        cost_ns=waits_ns,
    )


@rule(
    "slow-rank-run",
    cost="time of the rank beyond the median rank while it is slow, per step of the run",
    needs=f"{_LOG} of several ranks",
    thresholds=(BEHIND,),
    of_logs=True,
)
def slow_ranks(context: FindingsContext) -> Iterator[Finding]:
    """Ranks that take longer than the others by the log, and since when."""
    training = training_of(context.run)
    if training is None or len(training.ranks) < 2:
        return
    for rank, first, last, slower, share in _slow_ranks(training):
        longer, when = longer_by(1 + slower), f" since step {first:,}"
        if last != int(training.step[-1]):
            when = f" from step {first:,} to {last:,}"
        if first <= int(training.step[training.steady][0]) and last == int(training.step[-1]):
            when = ""
        yield _finding(
            context,
            f"Rank {rank} takes {longer} {than_or_as(1 + slower)} the median rank{when}",
            f"By the log of {len(training.ranks):,} ranks. Check the clock and the temperature of "
            "its GPU in that time.",
            _view(context, "rank", sort="-rank_slower_pct"),
            cost_ns=slower * share * training.usual_ns if training.usual_ns > 0 else None,
        )


def _slow_ranks(training: Training) -> list[tuple[int, int, int, float, float]]:
    """The ranks that are slow, the first and last step of that time, by how much, and which share
    of the run's lines that is."""
    rows, ranks = training.rows, training.ranks
    own = np.flatnonzero((rows.rank >= 0) & training.steady[training.place])
    own = own[np.isfinite(training.relative[own])]
    if not len(own):
        return []
    whose = np.searchsorted(ranks, rows.rank[own])
    place = training.place[own]
    windows = min(_WINDOWS, max(len(training) // FEWEST, 1))
    window = place * windows // len(training)
    cell = whose * windows + window
    means = means_of(training.relative[own], cell, len(ranks) * windows)
    means = means.reshape(len(ranks), windows)
    highest = np.nanmax(np.where(np.isfinite(means), means, 0.0), axis=1)
    limit = max(1 + BEHIND.share, median_of(highest) + ROBUST_Z.value * spread_of(highest))
    found = []
    for rank in np.argsort(-highest, kind="stable").tolist():
        if highest[rank] < limit:
            break
        mine = own[whose == rank]
        begin, end, drop = low_interval(1.0 / training.relative[mine])
        relative = training.relative[mine][begin:end]
        slower = float(relative.mean()) - 1.0 if len(relative) else 0.0
        if drop <= 0 or slower < BEHIND.share:
            continue
        steps = training.step[training.place[mine]]
        share = (end - begin) / len(steps)
        found.append((int(ranks[rank]), int(steps[begin]), int(steps[end - 1]), slower, share))
        if len(found) == _MOST_RANKS:
            break
    return found


@rule(
    "periodic-steps",
    cost="what such a step takes longer, over the steps between two of them",
    needs=_LOG,
    thresholds=(PRICE,),
    of_logs=True,
)
def periodic(context: FindingsContext) -> Iterator[Finding]:
    """Steps at equal distances that take longer, such as a checkpoint, and their price per step."""
    training = training_of(context.run)
    if training is None:
        return
    for each in periodic_steps(training):
        if each.each_ns < PRICE.share * training.usual_ns:
            continue
        yield _finding(
            context,
            f"Every {each.every:,} steps one takes {time(each.more_ns)} longer: "
            f"{time(each.each_ns)} per step",
            f"{each.count:,} times, first at step {each.first:,}; "
            f"{percent(each.each_ns / training.usual_ns)} of the median step. A checkpoint, an "
            "evaluation or logging may be the cause.",
            _view(context, "step", sort="-logged_step_ns"),
            cost_ns=each.each_ns,
        )


@rule(
    "loss-spikes", cost=_UNKNOWN, needs=f"{_LOG} with the loss", thresholds=(SPIKE,), of_logs=True
)
def loss_spikes(context: FindingsContext) -> Iterator[Finding]:
    """Jumps of the loss, and whether steps next to them took longer."""
    training = training_of(context.run)
    if training is None or "loss" not in training.figures:
        return
    places = _spikes(training.figures["loss"])
    if not len(places):
        return
    slow = [_slow_next_to(training, place) for place in places.tolist()]
    shown = []
    for place, more_ns in [*zip(places.tolist(), slow, strict=True)][:_MOST_SPIKES]:
        loss = training.figures["loss"]
        text = f"step {int(training.step[place]):,} ({loss[place - 1]:.4g} to {loss[place]:.4g}"
        shown.append(f"{text}{f', a step takes {time(more_ns)} longer' if more_ns else ''})")
    more = f" and {len(places) - len(shown)} more" if len(places) > len(shown) else ""
    both = sum(each > 0 for each in slow)
    yield _finding(
        context,
        f"The loss jumps {how_often(len(places))}{_next_to_long(both, len(places))}",
        f"At {', '.join(shown)}{more}.",
        _view(context, "step"),
        is_repeated=len(places) > 1,
    )


def _next_to_long(both: int, number: int) -> str:
    """How many of some jumps are next to a long step, as the end of a phrase."""
    if number == 1:
        return ", next to a long step" if both else ""
    return f", {small(both) if both else 'none'} of them next to a long step"


def _spikes(loss: Float64) -> Index:
    """The places at which the loss jumps above that of the lines before."""
    known = np.flatnonzero(np.isfinite(loss))
    if len(known) <= _BEFORE:
        return np.empty(0, np.intp)
    values = loss[known]
    usual = median_of(np.abs(np.diff(values)))
    change = np.append(0.0, np.diff(values))
    limit = SPIKE.value * max(usual, 0.002 * median_of(np.abs(values)))
    jumps = np.flatnonzero(change > limit)
    return np.array(
        [
            known[at]
            for at in jumps.tolist()
            if at >= 1 and values[at] > values[max(at - _BEFORE, 0) : at].max()
        ],
        np.intp,
    )


def _slow_next_to(training: Training, place: int) -> float:
    """How much longer than usual the longest step near a place takes; 0 if none does."""
    near = training.step_ns[max(place - 1, 0) : place + 2]
    near = near[np.isfinite(near)]
    more = float(near.max()) - training.usual_ns if len(near) else 0.0
    return more if more > 0.1 * training.usual_ns else 0.0


@rule(
    "falling-throughput",
    cost="mean time of a step beyond that of the first tenth of the run",
    needs=_LOG,
    thresholds=(DECAYS,),
    of_logs=True,
)
def falling(context: FindingsContext) -> Iterator[Finding]:
    """Steps that take ever longer, or tokens per second that fall, over the run."""
    training = training_of(context.run)
    if training is None:
        return
    own = np.flatnonzero(training.steady)
    tenth = len(own) // 10
    if tenth < FEWEST:
        return
    parts = [median_of(training.step_ns[own[at * tenth : (at + 1) * tenth]]) for at in range(10)]
    longer = parts[-1] / parts[0] - 1.0
    # One step up is a change, not a decay: most tenths take longer than the one before.
    rises = sum(later > earlier for earlier, later in pairwise(parts))
    if longer < DECAYS.share or rises < 7:
        return
    yield _finding(
        context,
        f"Steps take ever longer: {percent(longer)} more at the end of the run",
        f"{time(parts[-1])} in the last tenth of the run, {time(parts[0])} in the first.",
        _view(context),
        cost_ns=max(float(np.mean(parts)) - parts[0], 0.0),
    )


@rule(
    "restarts",
    cost="the time of the steps that were run again, and of being away, over all logged steps",
    needs=_LOG,
    of_logs=True,
)
def restarts(context: FindingsContext) -> Iterator[Finding]:
    """Starts of the job after the first, the steps that were run again, and the time away."""
    training = training_of(context.run)
    found = [] if training is None else restarts_of(training)
    if training is None or not found:
        return
    again = sum(each.again for each in found)
    away = sum(each.away_ns for each in found if each.away_ns > 0)
    lost = again * training.usual_ns if training.usual_ns > 0 else 0.0
    parts = [
        f"{count(again, 'step')} run again" if again else "",
        f"{time(lost + away)} lost" if lost + away > 0 else "",
    ]
    firsts = by_number("step", [each.first for each in found])
    yield _finding(
        context,
        f"The job was started again {how_often(len(found))}: "
        f"{', '.join(filter(None, parts)) or 'nothing was run again'}",
        f"At {firsts}.",
        _view(context, "attempt"),
        cost_ns=(lost + away) / max(training.logged, 1) or None,
        is_repeated=len(found) > 1,
    )
