"""Counters that only rise, and fall when they wrap or are set back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_WIDTHS: Final = (32, 64)
_LARGEST_STEP_SHARE: Final = 8
"""A fall is a wrap only if the step over it is below this part of the counter's range."""


def steps(readings: Sequence[int | float]) -> list[int | float | None]:
    """Return what was counted between neighbours, exact for integers; None over a set-back.

    Integer counters of 32 and 64 bits may wrap between two readings.
    """
    return [_step(earlier, later) for earlier, later in pairwise(readings)]


def unwrapped(readings: Sequence[int | float]) -> tuple[list[int | float], int]:
    """Return what was counted since the first reading, and how often the counter was set back.

    What was counted over a set-back is unknown, so it adds nothing.
    """
    total: list[int | float] = [0] if readings else []
    set_back = 0
    for step in steps(readings):
        set_back += step is None
        total.append(total[-1] + (step or 0))
    return total, set_back


def _step(earlier: int | float, later: int | float) -> int | float | None:
    if later >= earlier:
        return later - earlier
    if not (isinstance(earlier, int) and isinstance(later, int)):
        return None
    for width in _WIDTHS:
        if earlier < 1 << width:
            step = later - earlier + (1 << width)
            return step if step < (1 << width) // _LARGEST_STEP_SHARE else None
    return None
