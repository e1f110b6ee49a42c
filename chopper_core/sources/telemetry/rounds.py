"""Rounds of samples, one per GPU in the order of the GPUs, in files that don't name the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import counted, distinct, first_equal

_CLEAR_STEP: Final = 2.0
"""Between rounds lies at least this many times the time between the rows of a round."""
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
    """Return the gaps that are clearly longer than the next shorter one."""
    lengths = distinct(gaps)
    is_pause = lengths[1:] >= _CLEAR_STEP * np.maximum(lengths[:-1], 1)
    return lengths[1:][is_pause].tolist()  # type: ignore[no-any-return]


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
