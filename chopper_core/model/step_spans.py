"""The annotated steps of a host, in order of time, and what else of the host bounds idle time.

A step is what its annotation says: the accounting cuts the idle time between two steps here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.table import NO_TIME
from chopper_core.util.arrays import AnyArray, Index, Int64, Mask
from chopper_core.util.grouping import isin, median_of

NO_STEP: Final = -1
"""The place of a step that there is none of."""
_ENOUGH_GAPS: Final = 3
"""Gaps between consecutive steps that show what is usual."""
_UNKNOWN_GAP: Final = 0.1
"""Part of a step that the loop may work for between two steps, where fewer gaps are known."""
_LONG_GAP: Final = 1.5
"""A gap beyond this many usual ones holds more than the loop's own work."""
_SHORT: Final = 0.01
"""Less than this part of a step says nothing about a gap."""


class StepSpans(Struct, frozen=True, eq=False, dict=True):
    """Annotated steps that don't overlap, in order of time."""

    number: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.number)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Number, begin and end of each."""
        yield from zip(
            self.number.tolist(), self.start_ns.tolist(), self.end_ns.tolist(), strict=True
        )

    def at(self, time_ns: Int64) -> Index:
        """The place of the step that holds each instant, or `NO_STEP`."""
        if not len(self):
            return np.full(len(time_ns), NO_STEP, np.intp)
        place = np.searchsorted(self.start_ns, time_ns, "right") - 1
        inside = (place >= 0) & (time_ns <= self.end_ns[place])
        return np.where(inside, place, NO_STEP)

    def opens_at(self, time_ns: Int64) -> Mask:
        """Whether a step that opens a window begins at each instant."""
        return isin(time_ns, self.start_ns[self.opens_window])

    def ends_of(self, number: AnyArray, time_ns: Int64) -> Int64:
        """The end of the last step of each number that begins by a time; `NO_TIME` without one."""
        place = np.searchsorted(self.start_ns, time_ns, "right") - 1
        while (is_later := (place >= 0) & (np.append(self.number, 0)[place] != number)).any():
            place = place - is_later
        return np.append(self.end_ns, NO_TIME)[place]

    @cached_property
    def opens_window(self) -> Mask:
        """Whether no step with the number before comes right before a step."""
        return np.append(True, np.diff(self.number) != 1)[: len(self)]

    @cached_property
    def loop_ns(self) -> Int64:
        """What the loop itself takes before each step, such as for the data loader: up to the
        usual gap, the median between steps of consecutive numbers."""
        gap = np.append(0, self.start_ns[1:] - self.end_ns[:-1])[: len(self)]
        follows = ~self.opens_window
        length = median_of(self.end_ns - self.start_ns) if len(self) else 0.0
        known = gap[follows]
        if len(known) < _ENOUGH_GAPS:
            usual = np.full(len(self), int(_UNKNOWN_GAP * length))
        else:
            median = median_of(known)
            most = max(_LONG_GAP * median, median + _SHORT * length)
            usual = np.where(gap <= most, gap, int(median))
        return np.where(follows, np.minimum(gap, usual), 0)

    @cached_property
    def lacks_loop(self) -> Mask:
        """Whether a step opens a window whose other steps begin with work of the loop, that before
        the first one isn't recorded, and the mean of all would show that."""
        if len(self) <= 1:
            return np.zeros(len(self), np.bool_)
        usual = median_of(self.loop_ns[~self.opens_window]) if (~self.opens_window).any() else 0.0
        is_followed = np.append(~self.opens_window[1:], False)
        length = median_of(self.end_ns - self.start_ns)
        steps = np.bincount(np.cumsum(self.opens_window))[np.cumsum(self.opens_window)]
        counts = usual > _SHORT * length * steps
        return np.asarray(self.opens_window & is_followed & counts, np.bool_)


NO_SPANS: Final = StepSpans(*np.zeros((3, 0), np.int64))


class HostEvidence(Struct, frozen=True, eq=False):
    """What the host of a GPU did, as far as it bounds the GPU's idle time."""

    steps: StepSpans
    step_of: Index
    """The place of each activity's step in `steps`, or `NO_STEP`."""
    lost_ns: Int64
    """Launch calls without an activity, in order."""
    synced_ns: Int64
    """Ends of calls that waited for the whole GPU or a stream, in order."""
    launched_ns: Int64
    """All launch calls, in order."""

    def is_queue_empty(self, launch_ns: Int64) -> Mask:
        """Whether a synchronization has ended before each launch call, with no other between."""
        if not len(self.synced_ns):
            return np.zeros(len(launch_ns), np.bool_)
        synced = np.append(np.iinfo(np.int64).min, self.synced_ns)
        last_sync = synced[np.searchsorted(self.synced_ns, launch_ns, "right")]
        launched = np.append(np.iinfo(np.int64).min, self.launched_ns)
        last_launch = launched[np.searchsorted(self.launched_ns, launch_ns, "left")]
        return (last_sync > np.iinfo(np.int64).min) & (last_sync >= last_launch)
