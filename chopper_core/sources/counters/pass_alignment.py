"""Which dispatches of two executions of one program are the same work, and notes on the others.

Profilers lose dispatches, so that the n-th of a kernel in one pass isn't the n-th in another. A
lost dispatch leaves a gap in the dispatch ids: ids that differ by one number, and have the same
kernels all along, decide.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.sources.dispatches import Dispatches, DispatchRun
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import first_equal, ranked, stable_order

_SAME_WORK: Final = 0.98
"""The part of the ids that both passes have that must be of the same kernel."""
_MIN_SHARE: Final = 0.5
"""The part of the shorter pass that must be matched."""
_MAX_PAIRS: Final = 1 << 16
"""Pairs of dispatches of a kernel that vote for the difference of the ids."""
_CANDIDATES: Final = 8
DIFFERS_BY: Final = 0.01
"""Relative difference above which the values of one counter in two passes are noted."""
_MAX_NAMED_KERNELS: Final = 3
_MAX_NAME_LENGTH: Final = 60


def same_ids(code: Int64, ids: Int64, other_code: Int64, other_ids: Int64) -> Index | None:
    """The row of the first pass for each of the second, by dispatch id; None if they don't agree.

    Codes are equal for the same kernel; ids below 0 are unknown.
    """
    usable, other_usable = ids >= 0, other_ids >= 0
    if not usable.any() or not other_usable.any():
        return None
    best: Index | None = None
    best_count = 0
    shorter = min(int(usable.sum()), int(other_usable.sum()))
    for shift in _id_shifts(code, ids, other_code, other_ids):
        found = first_equal(
            np.where(usable, ids, -2), np.where(other_usable, other_ids - shift, -1)
        )
        both = found >= 0
        same = both & (code[found] == other_code)
        count = int(same.sum())
        if count > best_count and count >= _SAME_WORK * int(both.sum()):
            best, best_count = np.where(same, found, ABSENT), count
    return best if best_count >= _MIN_SHARE * shorter else None


def _id_shifts(code: Int64, ids: Int64, other_code: Int64, other_ids: Int64) -> list[int]:
    """The most frequent differences of ids between equal kernels, rare kernels first."""
    width = int(max(code.max(), other_code.max())) + 1
    counts = np.bincount(code, minlength=width), np.bincount(other_code, minlength=width)
    pairs = counts[0] * counts[1]
    order = stable_order(pairs)
    order = order[pairs[order] > 0]
    enough = int(np.searchsorted(np.cumsum(pairs[order]), _MAX_PAIRS)) + 1
    differences = [
        (other_ids[other_code == kernel] - ids[code == kernel][:, None]).ravel()
        for kernel in order[:enough].tolist()
        if pairs[kernel] <= _MAX_PAIRS
    ]
    if not differences:
        return [0]
    values, place = ranked(np.concatenate(differences))
    votes = np.bincount(place)
    return [int(values[at]) for at in np.argsort(-votes, kind="stable")[:_CANDIDATES]]


def match_notes(
    base: DispatchRun, other: DispatchRun, match: Int64, *, by_occurrence: bool = True
) -> list[str]:
    """Note dispatches of a pass without counterpart in the passes before, and vice versa."""
    rows, there, name = base.dispatches, other.dispatches, pass_name(other)
    both = match >= 0
    alone = int((~both).sum())
    missed = len(rows) - int(both.sum())
    notes: list[str] = []
    if alone:
        notes.append(
            f"{name}: {alone:,} of {len(there):,} dispatches have no counterpart in earlier passes "
            "and become rows without times."
        )
    if missed:
        notes.append(
            f"{name}: {missed:,} of {len(rows):,} dispatches of earlier passes are missing in this "
            "one."
        )
    if by_occurrence and (alone or missed) and both.any():
        notes += _counts_notes(other, rows, there)
    return notes


def repeat_notes(base: Dispatches, other: DispatchRun, match: Int64) -> list[str]:
    """Note counters that were measured again and differ."""
    notes: list[str] = []
    both = match >= 0
    for name in filter(base.counters.__contains__, other.dispatches.counters):
        first, again = base.counters[name][match[both]], other.dispatches.counters[name][both]
        far = np.abs(again - first) > DIFFERS_BY * np.maximum(np.abs(first), np.abs(again))
        if far.any():
            measured = int((~np.isnan(first) & ~np.isnan(again)).sum())
            notes.append(
                f"{name} was measured again in {pass_name(other)} and differs by more than 1 % in "
                f"{int(far.sum()):,} of {measured:,} dispatches; the first pass is used."
            )
    return notes


def pass_name(run: DispatchRun) -> str:
    """Return the folder and name of the file of a pass."""
    return "/".join(run.paths[0].parts[-2:]) if run.paths else "a pass"


def _counts_notes(other: DispatchRun, rows: Dispatches, there: Dispatches) -> list[str]:
    """Note kernels that ran another number of times."""
    codes = np.concatenate((rows.name, there.name))
    is_there = np.arange(len(codes)) >= len(rows)
    kernels, index = ranked(codes)
    counts = np.bincount(index[~is_there], minlength=len(kernels))
    counts_there = np.bincount(index[is_there], minlength=len(kernels))
    differs = np.flatnonzero((counts != counts_there) & (counts > 0) & (counts_there > 0))
    some = [
        f"{other.names[kernels[at]][:_MAX_NAME_LENGTH]}: {counts_there[at]:,} for {counts[at]:,}"
        for at in differs[:_MAX_NAMED_KERNELS]
    ]
    if not some:
        return []
    listed = "; ".join(some) + (" …" if len(differs) > len(some) else "")
    return [
        f"{pass_name(other)}: {len(differs):,} kernels ran a different number of times than in "
        f"earlier passes ({listed}); they are matched from the first occurrence on."
    ]
