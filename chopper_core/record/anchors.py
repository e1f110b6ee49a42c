"""The clocks of a host at one moment, as they tie the stamps of several tools to each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

from msgspec import Meta, Struct

_TRIES: Final = 20
_STEP_NS: Final = 100_000
"""Clocks that move against each other by more between two anchors were set, or the host slept."""
EPOCH: Final = "epoch"
MONOTONIC: Final = "monotonic"
BOOTTIME: Final = "boottime"
Whole = Annotated[int, Meta(gt=-(1 << 62), lt=1 << 62)]
"""An integer of a file: times in ns whose differences fit 64 bits."""


class Anchor(Struct, frozen=True):
    """The three clocks at one moment; the two others are read between two reads of the first."""

    epoch_ns: Whole
    """CLOCK_REALTIME: the middle of the two reads."""
    monotonic_ns: Whole
    boottime_ns: Whole
    width_ns: Whole
    """Between the two reads: the others are off by at most half of it."""

    def of(self, clock: str) -> int:
        """The time of a clock: EPOCH, MONOTONIC or BOOTTIME."""
        return int(getattr(self, f"{clock}_ns"))


class Offset(Struct, frozen=True):
    """What to add to the stamps of one clock to get another's."""

    offset_ns: int
    uncertainty_ns: int
    anchors: int
    """How many agree with it."""


def take_anchor(tries: int = _TRIES) -> Anchor:
    """Read the clocks several times, and keep the tightest reading."""
    found = []
    for _ in range(tries):
        before_ns = time.time_ns()
        monotonic_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after_ns = time.time_ns()
        middle_ns = (before_ns + after_ns) // 2
        found.append(Anchor(middle_ns, monotonic_ns, boottime_ns, after_ns - before_ns))
    # A clock that is set in between makes a negative width.
    return min(found, key=lambda anchor: abs(anchor.width_ns))


def offset_between(anchors: Sequence[Anchor], clock: str, to: str, at_ns: int) -> Offset | None:
    """The offset from one clock to another near a moment on the latter; None without anchors.

    Clocks that were set between anchors have several offsets; that of the anchor nearest in time
    counts, and the uncertainty is that of the tightest anchor that agrees with it.
    """
    if not anchors:
        return None
    nearest = min(anchors, key=lambda anchor: abs(anchor.of(to) - at_ns))
    offset_ns = nearest.of(to) - nearest.of(clock)
    agreeing = [
        each for each in anchors if abs(each.of(to) - each.of(clock) - offset_ns) <= _STEP_NS
    ]
    best = min(agreeing, key=lambda anchor: abs(anchor.width_ns))
    return Offset(best.of(to) - best.of(clock), abs(best.width_ns) // 2 + 1, len(agreeing))


def clock_steps(anchors: Sequence[Anchor]) -> list[str]:
    """Sentences on clocks that were set, or stood still while the host slept, between anchors."""
    found = []
    for before, after in pairwise(anchors):
        elapsed_ns = after.monotonic_ns - before.monotonic_ns
        until = f"in the {elapsed_ns / 1e9:.0f} s before {after.monotonic_ns / 1e9:.0f} s of uptime"
        boottime_ns = after.boottime_ns - before.boottime_ns
        if abs(set_ns := after.epoch_ns - before.epoch_ns - boottime_ns) > _STEP_NS:
            found.append(f"the clock was set by {set_ns / 1e9:+.6g} s {until}")
        if abs(slept_ns := boottime_ns - elapsed_ns) > _STEP_NS:
            found.append(f"the host slept {slept_ns / 1e9:.6g} s {until}")
    return found
