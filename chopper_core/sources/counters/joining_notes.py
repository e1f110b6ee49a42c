"""What the joining of passes left out or found ambiguous, in sentences."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.sources.dispatches import Dispatches, DispatchRun
from chopper_core.sources.trace import Losses
from chopper_core.util.arrays import Int64

DIFFERS_BY: Final = 0.01
"""Values of one counter in two passes that are further apart than this share are told."""

_NAMED_KERNELS: Final = 3
_SHORT_NAME: Final = 60


def match_notes(base: DispatchRun, other: DispatchRun, match: Int64) -> list[str]:
    """Return what of a pass found no counterpart in those before, and the other way around."""
    rows, there = base.dispatches, other.dispatches
    notes: list[str] = []
    alone = int((match < 0).sum())
    if alone:
        notes.append(
            f"{pass_name(other)}: {alone:,} of {len(there):,} dispatches have no counterpart in "
            "the passes before: they are rows of their own, without times."
        )
    missed = len(rows) - (len(match) - alone)
    if missed:
        notes.append(
            f"{pass_name(other)}: {missed:,} of {len(rows):,} dispatches of the passes before are "
            "not in this one."
        )
    both = match >= 0
    if (alone or missed) and both.any():
        notes += _counts_notes(other, rows, there)
        ids, ids_there = rows.dispatch_id[match[both]], there.dispatch_id[both]
        if (ids != ids_there).any() and (_has_gaps(rows) or _has_gaps(there)):
            notes.append(
                f"{pass_name(other)}: it or the passes before hold only some dispatches of their "
                f"execution (ids {_range(rows)}; here {_range(there)}): occurrences are counted "
                "among those and may not be the same."
            )
    return notes


def repeat_notes(base: Dispatches, other: DispatchRun, match: Int64) -> list[str]:
    """Return which counters were measured again and differ."""
    notes: list[str] = []
    both = match >= 0
    for name, column in other.dispatches.counters.items():
        if name not in base.counters:
            continue
        first, again = base.counters[name][match[both]], column[both]
        far = np.abs(again - first) > DIFFERS_BY * np.maximum(np.abs(first), np.abs(again))
        measured = int((~np.isnan(first) & ~np.isnan(again)).sum())
        if far.any():
            notes.append(
                f"{name} was measured again in {pass_name(other)} and differs by more than 1 % in "
                f"{int(far.sum()):,} of {measured:,} dispatches: the first pass counts."
            )
    return notes


def grid_notes(other: DispatchRun, count: int) -> list[str]:
    """Return how many matches another grid forbade."""
    if not count:
        return []
    return [
        f"{pass_name(other)}: {count:,} dispatches have another grid than the same occurrence of "
        "their kernel in the passes before: they stay apart."
    ]


def shared_gpu_note(count: int) -> str:
    """Return that processes of one pass ran on the same GPUs."""
    return (
        f"Several processes used the same GPU ({count:,} of them): occurrences are counted over "
        "one process after the other."
    )


def merged_losses(one: Losses, other: Losses) -> Losses:
    """Return the losses of both."""
    return Losses(
        truncated=one.truncated or other.truncated,
        repaired_pieces=one.repaired_pieces + other.repaired_pieces,
        lost_bytes=one.lost_bytes + other.lost_bytes,
        unreadable_events=one.unreadable_events + other.unreadable_events,
        bad_times=one.bad_times + other.bad_times,
        notes=list(dict.fromkeys((*one.notes, *other.notes))),
    )


def pass_name(run: DispatchRun) -> str:
    """Return the file of a pass by its folder and name."""
    return "/".join(run.paths[0].parts[-2:]) if run.paths else "a pass"


def _counts_notes(other: DispatchRun, rows: Dispatches, there: Dispatches) -> list[str]:
    """Return which kernels ran another number of times."""
    codes = np.concatenate((rows.name, there.name))
    is_there = np.arange(len(codes)) >= len(rows)
    kernels, index = np.unique(codes, return_inverse=True)
    counts = np.bincount(index[~is_there], minlength=len(kernels))
    counts_there = np.bincount(index[is_there], minlength=len(kernels))
    differs = np.flatnonzero((counts != counts_there) & (counts > 0) & (counts_there > 0))
    if not len(differs):
        return []
    some = "; ".join(
        f"{other.names[kernels[i]][:_SHORT_NAME]}: {counts_there[i]:,} for {counts[i]:,}"
        for i in differs[:_NAMED_KERNELS]
    )
    return [
        f"{pass_name(other)}: {len(differs):,} kernels ran another number of times than in the "
        f"passes before ({some}{' …' * (len(differs) > _NAMED_KERNELS)}): they are matched from "
        "the first occurrence on."
    ]


def _has_gaps(rows: Dispatches) -> bool:
    ids = rows.dispatch_id[rows.dispatch_id >= 0]
    return len(ids) > 0 and (int(ids.min()) > 1 or int(np.ptp(ids)) >= len(ids))


def _range(rows: Dispatches) -> str:
    ids = rows.dispatch_id[rows.dispatch_id >= 0]
    return f"{int(ids.min()):,} to {int(ids.max()):,}" if len(ids) else "unknown"
