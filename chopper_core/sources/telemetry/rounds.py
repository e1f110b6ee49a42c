"""Rounds of one row per GPU, in order, in files that don't name their GPUs: by the rows' times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import counted, first_equal

_CLEAR_STEP: Final = 2.0
"""Between rounds is at least this many times the usual time between the rows of a round."""
_PAUSE_SHARE: Final = 0.75
"""A gap of this part of the usual one between rounds ends a round, or is a slow query."""
_MAX_GPUS_OF_NODE: Final = 64
_WHOLE_ROUNDS: Final = 0.8
"""Rounds are certain if they take up this part of the rows."""
_FEWEST_ROUNDS: Final = 3
BROKEN: Final = -1


def places_in_rounds(times_ns: Int64) -> Int64 | None:
    """Return the place of each row in its round, BROKEN in rounds with missing rows.

    A round may pause, as a tool does when a query is slow: its parts then add up to a whole one.
    None if the times don't show rounds, or too few.
    """
    gaps = np.diff(times_ns)
    if len(gaps) < _FEWEST_ROUNDS - 1 or gaps.min() < 0:
        return None
    found: Int64 | None = None
    most = _WHOLE_ROUNDS * len(times_ns)
    for pause_ns in _pauses(gaps):
        runs = np.diff(np.flatnonzero(gaps >= pause_ns), prepend=-1, append=len(gaps))
        sizes, counts = counted(runs)
        # Of sizes as common as each other the first one counts.
        chosen = np.lexsort((first_equal(runs, sizes), -counts))[0]
        size, count = int(sizes[chosen]), int(counts[chosen])
        if size == 1 or count < _FEWEST_ROUNDS:
            continue
        places = _places(runs.tolist(), size)
        whole = len(places) - int((places == BROKEN).sum())
        if size * count >= _WHOLE_ROUNDS * len(times_ns) and whole >= most:
            found, most = places, whole
    if found is None and _is_regular(gaps):
        return np.zeros(len(times_ns), np.int64)
    return found


def _pauses(gaps: Int64) -> list[int]:
    """Return where the gap between rounds may begin, for rounds of 2 rows and more.

    Of rounds of n rows every n-th gap is a long one. A few queries within a round may take as long.
    """
    longest = np.sort(gaps)[::-1]
    rows = len(gaps) + 1
    found = []
    for size in range(2, min(rows // _FEWEST_ROUNDS, _MAX_GPUS_OF_NODE) + 1):
        rounds = rows // size
        pause_ns = int(longest[(rounds - 1) // 2] * _PAUSE_SHARE)
        within = longest[rounds:]
        if pause_ns >= _CLEAR_STEP * max(int(within[len(within) // 2]), 1):
            found.append(pause_ns)
    return sorted(set(found))


def _places(runs: Sequence[int], size: int) -> Int64:
    places: list[int] = []
    parts = 0
    for run in runs:
        parts += run
        if parts < size:
            continue
        broken = 0 if parts == size else parts - run if run == size else parts
        places += [BROKEN] * broken
        if parts > broken:
            places += range(size)
        parts = 0
    return np.array(places + [BROKEN] * parts, np.int64)


def _is_regular(gaps: Int64) -> bool:
    """Return whether rows follow each other like the samples of one GPU."""
    middle = int(np.sort(gaps)[len(gaps) // 2])
    near = int((middle <= _CLEAR_STEP * gaps).sum())
    return middle > 0 and near >= _WHOLE_ROUNDS * len(gaps)
