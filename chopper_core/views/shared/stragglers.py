"""Which GPUs hold the others up, in which iterations, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import quantile_of
from chopper_core.views.shared.matched_kernels import others_lead
from chopper_core.views.shared.rank_times import RankTimes

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
    """`clock`, `kernels`, `host`, `launch` or `copies`; None without a cause."""


def stragglers_of(times: RankTimes) -> tuple[Straggler, ...]:
    """The GPUs that the others wait for, the one that delays them most first.

    A second one has a cause of its own, and isn't late only beside a far later one.
    """
    if times.delays_ns is None:
        return _last_by_leads(times)
    mean, most = times.delays_ns.mean(axis=1), times.delays_ns.max(axis=1)
    # Where anyone is late at times by chance, nobody is by as much as that.
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
    word = "work" if cause in ("clock", "kernels") else cause
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
    if word != "work":
        return word
    return "clock" if _is_slow(times, place) else "kernels"


def _is_slow(times: RankTimes, place: int) -> bool:
    return bool(times.mhz[place] < LOW_CLOCK_RATIO * times.peers_median(times.mhz)[place])


def _least(values: Float64) -> float:
    """The lower median: half of the GPUs, or more, are at most as late."""
    return float(np.sort(values)[(len(values) - 1) // 2])
