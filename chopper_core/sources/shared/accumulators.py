"""Counters that only rise, except where they wrap or are reset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_WIDTHS: Final = (32, 64)
_LARGEST_STEP_SHARE: Final = 8
"""A fall is a wrap only if the step is below this part of the counter's range, else a reset."""


def steps(readings: Sequence[int | float], bits: int = 0) -> list[int | float | None]:
    """Return the differences between neighbours, exact for integers; None over a reset.

    Integer counters of 32 and 64 bits may wrap between two readings. One of a known number of
    `bits` wraps wherever it falls, however far.
    """
    if bits:
        return [
            later - earlier + ((1 << bits) if later < earlier else 0)
            for earlier, later in pairwise(readings)
        ]
    return [_step(earlier, later) for earlier, later in pairwise(readings)]


def unwrapped(readings: Sequence[int | float], bits: int = 0) -> tuple[list[int | float], int]:
    """Return the amounts since the first reading, and the number of resets.

    The amount over a reset is unknown, so nothing is added.
    """
    total: list[int | float] = [0] if readings else []
    resets = 0
    for step in steps(readings, bits):
        resets += step is None
        total.append(total[-1] + (step or 0))
    return total, resets


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
