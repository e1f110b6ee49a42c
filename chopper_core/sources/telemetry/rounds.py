"""Rounds of samples, one per GPU in the order of the GPUs, in files that don't name the GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

_CLEAR_STEP: Final = 2.0
"""Between rounds lies at least this many times the time between the rows of a round."""
_WHOLE_ROUNDS: Final = 0.8
"""Rounds are certain if they take up this part of the rows."""
_FEWEST_ROUNDS: Final = 3
BROKEN: Final = -1


def places_in_rounds(times_ns: Sequence[int]) -> list[int] | None:
    """Return the place of each row in its round, BROKEN in rounds with missing rows.

    A round may pause, as a tool does when a query is slow: its parts then add up to a whole one.
    None if the times don't show rounds, or too few.
    """
    gaps = [later - earlier for earlier, later in pairwise(times_ns)]
    if len(gaps) < _FEWEST_ROUNDS - 1 or min(gaps) < 0:
        return None
    found: list[int] | None = None
    most = _WHOLE_ROUNDS * len(times_ns)
    for pause_ns in _pauses(gaps):
        runs = list(_runs(gaps, pause_ns))
        size, count = Counter(runs).most_common(1)[0]
        if size == 1 or count < _FEWEST_ROUNDS:
            continue
        places = _places(runs, size)
        whole = len(places) - places.count(BROKEN)
        if size * count >= _WHOLE_ROUNDS * len(times_ns) and whole >= most:
            found, most = places, whole
    if found is None and _is_regular(gaps):
        return [0] * len(times_ns)
    return found


def _pauses(gaps: Sequence[int]) -> Iterator[int]:
    """Yield the gaps that are clearly longer than the next shorter one."""
    for shorter, longer in pairwise(sorted(set(gaps))):
        if longer >= _CLEAR_STEP * max(shorter, 1):
            yield longer


def _runs(gaps: Sequence[int], pause_ns: int) -> Iterator[int]:
    """Yield the number of rows between pauses."""
    count = 1
    for gap in gaps:
        if gap >= pause_ns:
            yield count
            count = 0
        count += 1
    yield count


def _places(runs: Sequence[int], size: int) -> list[int]:
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
    return places + [BROKEN] * parts


def _is_regular(gaps: Sequence[int]) -> bool:
    """Return whether rows follow each other like the samples of one GPU."""
    middle = sorted(gaps)[len(gaps) // 2]
    near = sum(middle <= _CLEAR_STEP * gap for gap in gaps)
    return middle > 0 and near >= _WHOLE_ROUNDS * len(gaps)
