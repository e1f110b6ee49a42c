"""The clock of a rank's GPUs against that of its host, from what can't have been otherwise.

An activity starts after its launch call has begun, and a call that waits for one returns after its
end. Each such pair bounds how late the GPU's stamps are; where the bounds exclude that they are
right, they are corrected before anything is inferred from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.host import Links, codes_matching
from chopper_core.model.doubts import Doubt
from chopper_core.model.inputs import ClockBounds
from chopper_core.model.table import NO_TIME
from chopper_core.sources.trace import Trace
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import distinct, isin
from chopper_core.util.patterns import late

_WAITS_FOR_ALL: Final = late(r"(?:Device|Ctx)Synchronize")
_WAITS_FOR_COPY: Final = late(r"Memcpy(?!.*Async)")
_MARGIN_NS: Final = 1_000
"""Stamps of older traces are whole microseconds."""
_LATENCY_NS: Final = 5_000
"""The shortest time from a launch call to the start of its activity."""
_FEWEST: Final = 3
"""Calls, or launches, that agree: one may have a wrong stamp of its own."""
_OFTEN: Final = 0.2
"""The part of the activities launched to an idle GPU that begin before their calls where a clock
is off."""
_WAITED_NS: Final = 10_000
"""A shorter call may not have waited."""
_FAR_BEYOND_NS: Final = 50_000
"""A call that returns earlier than this before the end of its work didn't wait for it."""
_LONGEST_NS: Final = 1_000_000
"""Clocks that are farther apart are not those of one trace."""


def late_by(latest: int | None, beyond: Int64) -> int:
    """How late the stamps of a GPU are for its host, in ns, from the most that they can be and from
    what calls returned before; 0 where nothing contradicts them."""
    earliest = _earliest(beyond)
    if earliest is not None and earliest > _MARGIN_NS:
        found = earliest + _MARGIN_NS
    elif latest is not None and latest < -2 * _MARGIN_NS:
        # What its calls that wait contradict is no matter of the clock.
        if earliest is not None and latest < earliest:
            return 0
        found = latest - _LATENCY_NS
        found = found if earliest is None else max(found, earliest)
    else:
        return 0
    return found if abs(found) < _LONGEST_NS else 0


def _earliest(beyond: Int64) -> int | None:
    """The least that stamps must be late, by what calls returned before; None for few calls."""
    # The second most: one call may have returned for another reason.
    return int(np.partition(beyond, -2)[-2]) if len(beyond) >= _FEWEST else None


def _latest(trace: Trace, links: Links, own: Index) -> int | None:
    """The most that stamps can be late: the third least time from a launch call to the start of an
    activity that ends idle time; None where there are few, or where only some that stand out begin
    before their call."""
    activities = trace.activities
    own = own[np.argsort(activities.start_ns[own], kind="stable")]
    start = activities.start_ns[own]
    reached = np.maximum.accumulate(start + activities.duration_ns[own])
    is_idle = np.append(True, start[1:] > reached[:-1] + _MARGIN_NS)[: len(own)]
    is_idle &= links.launch[own] >= 0
    latency = (start - links.launch_ns[own])[is_idle]
    if len(latency) < _FEWEST:
        return None
    least = int(np.partition(latency, _FEWEST - 1)[_FEWEST - 1])
    # What was launched while earlier work ran waits for it, whatever the clock.
    is_empty = links.launch_ns[own] >= np.append(NO_TIME, reached[:-1])[: len(own)]
    of_empty = np.count_nonzero(is_idle & is_empty)
    is_rare = np.count_nonzero(latency < 0) < max(_OFTEN * of_empty, 1)
    return None if least < 0 and is_rare else least


def _beyond_returns(trace: Trace, links: Links, own: Index, *, is_only: bool) -> Int64:
    """From the return of each call that waits to the end of what it waited for."""
    launches, activities = trace.launches, trace.activities
    end_ns = activities.start_ns + activities.duration_ns
    returned = launches.start_ns + launches.duration_ns
    copies = own[links.launch[own] >= 0]
    call = links.launch[copies]
    waits = codes_matching(trace.names, launches.name, _WAITS_FOR_COPY)
    waits &= launches.duration_ns > _WAITED_NS
    is_waited = waits[call]
    beyond = [end_ns[copies[is_waited]] - returned[call[is_waited]]]
    if is_only:
        beyond.append(_after_synchronizing(trace, links, own, end_ns, returned))
    return np.concatenate(beyond)


def _after_synchronizing(
    trace: Trace, links: Links, own: Index, end_ns: Int64, returned: Int64
) -> Int64:
    """How long after each call that waits for the GPU the last activity launched before it ends."""
    launches = trace.launches
    waits = codes_matching(trace.names, launches.name, _WAITS_FOR_ALL)
    calls = np.flatnonzero(waits & (launches.duration_ns > _WAITED_NS))
    rows = own[links.launch[own] >= 0]
    if not len(calls) or not len(rows):
        return np.zeros(0, np.int64)
    rows = rows[np.argsort(links.launch_ns[rows], kind="stable")]
    ends = np.maximum.accumulate(end_ns[rows])
    place = np.searchsorted(links.launch_ns[rows], launches.start_ns[calls], "left") - 1
    # Only a call that had something to wait for shows when that ended.
    pending = (place >= 0) & (ends[place] > launches.start_ns[calls])
    return np.asarray((ends[place] - returned[calls])[pending], np.int64)


class OnHostClock(Struct, frozen=True):
    """A trace on the clock of its host."""

    trace: Trace
    doubts: tuple[Doubt, ...]
    bounds: ClockBounds | None
    """What remains unknown of the GPUs' clock, the widest of them; None without launches."""


def on_host_clock(trace: Trace, links: Links) -> OnHostClock:
    """The trace with its activities on the clock of its host, and doubts about that: where it moves
    them, and what contradicts their host all the same. What no clock explains is left out."""
    activities = trace.activities
    devices = distinct(activities.device).tolist()
    whose = [np.flatnonzero(activities.device == device) for device in devices]
    is_only = len(devices) == 1
    beyond = [_beyond_returns(trace, links, own, is_only=is_only) for own in whose]
    latest = [_latest(trace, links, own) for own in whose]
    late = [late_by(most, of_gpu) for most, of_gpu in zip(latest, beyond, strict=True)]
    bounds = None
    if (links.launch >= 0).any():
        bounds = reduce(ClockBounds.joined, map(_remaining, latest, beyond, late))
    by = np.zeros(len(activities), np.int64)
    for own, of_gpu in zip(whose, late, strict=True):
        by[own] = of_gpu
    doubts: list[Doubt] = []
    if by.any():
        largest = int(by[np.abs(by).argmax()])
        way = "late" if largest > 0 else "early"
        detail = f"at least {abs(largest) / 1e3:,.1f} µs ({way}) and are corrected"
        if bounds is not None and (width_ns := bounds.width_ns) is not None:
            detail += f" to within {width_ns / 1e3:,.1f} µs"
        doubts.append(Doubt("clock", int(np.count_nonzero(by)), len(by), detail))
        trace = replace(trace, activities=replace(activities, start_ns=activities.start_ns - by))
        beyond = [_beyond_returns(trace, links, own, is_only=is_only) for own in whose]
    far = _far_early(trace, links)
    every = np.concatenate([np.zeros(0, np.int64), *beyond])
    doubts += _contradictions(trace, links, every, far)
    if len(far):
        doubts.append(Doubt("far", len(far), int(np.count_nonzero(links.launch >= 0))))
        kept = np.ones(len(activities), np.bool_)
        kept[far] = False
        figures = {name: values[kept] for name, values in trace.figures.items()}
        trace = replace(trace, activities=trace.activities.take(kept), figures=figures)
    return OnHostClock(trace, tuple(doubts), bounds)


def _remaining(latest: int | None, beyond: Int64, late_ns: int) -> ClockBounds:
    """What the bounds leave of a clock's error once it is corrected."""
    earliest = _earliest(beyond)
    return ClockBounds(
        early_ns=None if earliest is None else max(late_ns - earliest, 0),
        late_ns=None if latest is None else max(latest - late_ns, 0),
    )


def _far_early(trace: Trace, links: Links) -> Index:
    """The activities that start so long before their launch that no clock explains it: the steps
    around such a time would be wrong."""
    linked = np.flatnonzero(links.launch >= 0)
    far = linked[trace.activities.start_ns[linked] < links.launch_ns[linked] - _LONGEST_NS]
    return far if len(far) <= _OFTEN * len(linked) else far[:0]


def _contradictions(trace: Trace, links: Links, beyond: Int64, far: Index) -> Iterator[Doubt]:
    """Activities but the far ones that start before their launch, and calls that return before what
    they waited for has ended, by far more than stamps are apart."""
    linked = np.flatnonzero(links.launch >= 0)
    start, launched = trace.activities.start_ns[linked], links.launch_ns[linked]
    early = (start < launched - _MARGIN_NS) & ~isin(linked, far)
    if early.any():
        yield Doubt("early", int(np.count_nonzero(early)), len(linked))
    unfinished = int(np.count_nonzero(beyond > _FAR_BEYOND_NS))
    if unfinished:
        yield Doubt("unfinished", unfinished, len(beyond))
