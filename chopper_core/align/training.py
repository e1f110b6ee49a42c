"""Trainers' logs of a job as one table: restarts, ranks, lines that repeat, and times of steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
from msgspec import structs

from chopper_core.model.experts import ExpertTokens
from chopper_core.model.side_table import SideTables, side_tables
from chopper_core.model.training import (
    FIGURES,
    UNKNOWN,
    FailedAllocations,
    LogSource,
    TrainedPhases,
    TrainedSteps,
)
from chopper_core.sources.trainer.steps import TrainerLog, joined_columns
from chopper_core.util.arrays import AnyArray, Float64, Index, Int64
from chopper_core.util.grouping import distinct, run_mask, run_starts

_KEY: Final = ("file", "line", "rank", "step", "time_ns")


def joined_logs(logs: Sequence[TrainerLog]) -> tuple[SideTables, tuple[LogSource, ...]]:
    """The steps of a job by its logs, and how each log was read.

    Lines of one rank about one step that follow each other are one row; equal lines of two files
    count once. A rank that comes to a step again, or to one before it, was started again.
    """
    rows = _merged(_together(logs))
    rows = _taken(rows, _without_repeats(rows))
    rows = _with_attempts(rows)
    rows, is_stated = _with_times(rows, len(logs))
    rows = _taken(rows, np.lexsort((rows["rank"], rows["step"], rows["attempt"])))
    count = len(rows["step"])
    unknown = np.full(count, np.nan)
    steps = TrainedSteps(
        (),
        np.zeros(count, np.int32),
        rows["rank"].astype(np.int32),
        rows["attempt"].astype(np.int32),
        rows["step"],
        rows["steps"].astype(np.int32),
        rows["time_ns"],
        **{name: rows.get(name, unknown) for name in FIGURES},
    )
    names = [name for log in logs for name in log.phases]
    phases = _phases(rows, [*dict.fromkeys(names)])
    others = _out_of_memory(rows, logs), _experts(rows, logs)
    stated = dict(enumerate(is_stated))
    sources = tuple(
        LogSource(
            str(log.path),
            log.format,
            log.clock.value,
            len(log),
            len(distinct(log.rank[log.rank >= 0])),
            stated[place],
            tuple(log.notes),
            tuple(log.losses.notes),
            dict(log.unused),
        )
        for place, log in enumerate(logs)
    )
    return side_tables(steps, phases, *others), sources


_Rows = dict[str, AnyArray]


def _together(logs: Sequence[TrainerLog]) -> _Rows:
    rows: _Rows = {
        "file": np.repeat(np.arange(len(logs)), [len(log) for log in logs]),
        "line": np.concatenate([np.arange(len(log)) for log in logs]),
        "rank": np.concatenate([log.rank.astype(np.int64) for log in logs]),
        "step": np.concatenate([log.step for log in logs]),
        "time_ns": np.concatenate([log.time_ns for log in logs]),
    }
    phases = joined_columns(logs, "phases")
    rows |= joined_columns(logs, "figures")
    return rows | {_phase(name): values for name, values in phases.items()}


def _phase(name: str) -> str:
    return f"phase {name}"


def _taken(rows: _Rows, which: Index) -> _Rows:
    """Some rows in an order, column by column: a million rows of a thousand ranks are large."""
    count = len(rows["step"])
    if len(which) != count or (which[1:] < which[:-1]).any():
        for name in rows:
            rows[name] = rows[name][which]
    return rows


def _figure(rows: _Rows, name: str) -> Float64:
    return rows[name] if name in rows else np.full(len(rows["step"]), np.nan)


def _merged(rows: _Rows) -> _Rows:
    """Consecutive lines of one rank about one step as one row: some trainers write several."""
    order = np.lexsort((rows["rank"], rows["file"]))
    file, rank, step = (rows[name][order] for name in ("file", "rank", "step"))
    first = run_starts(file, rank, step)
    if len(first) == len(order):
        return rows
    found: _Rows = {}
    for name, values in rows.items():
        ordered = values[order]
        if name in _KEY:
            found[name] = ordered[first]
            if name == "time_ns":
                found[name] = np.maximum.reduceat(ordered, first)
            continue
        # The last known one: lines of one step differ in what they say.
        known = np.where(np.isnan(ordered), -1, np.arange(len(ordered)))
        last = np.maximum.reduceat(known, first)
        found[name] = np.where(last >= first, ordered[np.maximum(last, 0)], np.nan)
    return found


def _without_repeats(rows: _Rows) -> Index:
    """The rows that aren't in an earlier file, too: of the same rank, step, stamp and loss."""
    if rows["file"].max(initial=0) == rows["file"].min(initial=0):
        return np.arange(len(rows["step"]))
    loss = np.nan_to_num(_figure(rows, "loss"), nan=-1.0)
    speed = np.nan_to_num(_figure(rows, "tokens_per_s"), nan=-1.0)
    keys = rows["step"], rows["time_ns"], loss, speed
    order = np.lexsort((rows["file"], rows["rank"], *keys[::-1]))
    ordered = [each[order] for each in keys]
    rank, file = rows["rank"][order], rows["file"][order]
    same = ~run_mask(*ordered, rank) & run_mask(file)
    # Without a stamp and figures nothing shows that two lines are one.
    same &= (ordered[1] >= 0) | (ordered[2] != -1.0)
    kept = np.ones(len(order), np.bool_)
    kept[order[same]] = False
    return np.flatnonzero(kept)


def _with_attempts(rows: _Rows) -> _Rows:
    """The rows with how often the job was started before each: one count for all ranks."""
    first_ns = _first_of(rows["file"], rows["time_ns"])
    place = np.arange(len(rows["step"]))
    # Files of one rank follow each other by their stamps; rows of a file keep their order.
    order = np.lexsort((place, rows["file"], first_ns[rows["file"]], rows["rank"]))
    rank, step = rows["rank"][order], rows["step"][order]
    is_new = np.zeros(len(order), np.int64)
    is_new[1:] = (rank[1:] == rank[:-1]) & (step[1:] <= step[:-1])
    begins = run_starts(rank)
    counted = np.cumsum(is_new)
    own = counted - np.repeat(counted[begins], np.diff(begins, append=len(rank)))
    attempt = np.empty(len(order), np.int64)
    attempt[order] = own
    return rows | {"attempt": attempt}


def _first_of(owner: Int64, times_ns: Int64) -> Int64:
    """The earliest stamp of each file; those without any keep the order of their names."""
    found = np.full(int(owner.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    known = times_ns >= 0
    np.minimum.at(found, owner[known], times_ns[known])
    return found


def _with_times(rows: _Rows, logs: int) -> tuple[_Rows, list[bool]]:
    """The rows with the steps that each is about, and times between stamps where none is stated."""
    order = np.lexsort((rows["step"], rows["attempt"], rows["rank"]))
    rank, attempt, step = (rows[name][order] for name in ("rank", "attempt", "step"))
    stamp = rows["time_ns"][order]
    follows = ~run_mask(rank, attempt)
    since = np.ones(len(order), np.int64)
    since[1:] = np.where(follows[1:], step[1:] - step[:-1], 1)
    # The first line of a start is about as many steps as the next one, where both are multiples.
    begins = np.flatnonzero(~follows[:-1] & follows[1:]) if len(order) > 1 else np.empty(0, np.intp)
    after = since[begins + 1]
    is_multiple = (after > 1) & (step[begins] > 0) & (step[begins] % np.maximum(after, 1) == 0)
    since[begins] = np.where(is_multiple, after, 1)
    since = np.clip(since, 1, np.iinfo(np.int32).max)
    took = np.full(len(order), np.nan)
    known = follows[1:] & (stamp[1:] >= 0) & (stamp[:-1] >= 0)
    elapsed = np.where(known, stamp[1:] - stamp[:-1], -1)
    took[1:] = np.where(elapsed > 0, elapsed / since[1:], np.nan)
    stated = _figure(rows, "step_ns")[order]
    files = rows["file"][order]
    has_stated = np.zeros(logs, np.bool_)
    has_stated[distinct(files[np.isfinite(stated)])] = True
    # A file that states some has no others: both kinds of time aren't the same.
    stated = np.where(has_stated[files], stated, took)
    found = dict(rows)
    for name, values in (("steps", since), ("step_ns", stated)):
        found[name] = np.empty(len(order), values.dtype)
        found[name][order] = values
    return found, has_stated.tolist()


class _LinesOfFile:
    """Where in the steps of a job lines of a log are that aren't about a step themselves."""

    def __init__(self, rows: _Rows, file: int) -> None:
        self._rows = rows
        self._own = np.flatnonzero(rows["file"] == file)

    def of(self, rank: int, line: int) -> dict[str, int]:
        """The attempt and the last step that the rank logged before, else that any rank did."""
        rows = self._rows
        before = self._own[rows["line"][self._own] < line]
        of_rank = before[rows["rank"][before] == rank]
        before = of_rank if len(of_rank) else before
        if not len(before):
            return {"rank": rank, "attempt": 0, "step": UNKNOWN}
        last = before[rows["line"][before].argmax()]
        return {"rank": rank} | {name: int(rows[name][last]) for name in ("attempt", "step")}


def _out_of_memory(rows: _Rows, logs: Sequence[TrainerLog]) -> FailedAllocations:
    """The allocations that failed, each behind the last step before it. A message that is printed
    again, with its rank or without, counts once."""
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for file, log in enumerate(logs):
        if not log.failed:
            continue
        places = _LinesOfFile(rows, file)
        for each in log.failed:
            place = places.of(each.rank, each.rows)
            sizes = structs.asdict(each.failed)
            key = (place["attempt"], *sizes.values())
            if each.rank == UNKNOWN and any(known[1:] == key for known in found):
                continue
            found.pop((UNKNOWN, *key), None)
            found[each.rank, *key] = {**place, **sizes, "largest_bytes": UNKNOWN}
    return FailedAllocations.of([*found.values()])


def _experts(rows: _Rows, logs: Sequence[TrainerLog]) -> ExpertTokens:
    """The tokens of experts, each list behind the last step before it."""
    found: list[tuple[dict[str, int], Sequence[float]]] = []
    for file, log in enumerate(logs):
        if not log.experts:
            continue
        places = _LinesOfFile(rows, file)
        # A step has a list per layer behind the same row.
        place_of = cache(places.of)
        found += [
            ({**place_of(each.rank, each.rows), "layer": each.layer}, each.counts)
            for each in log.experts
        ]
    return ExpertTokens.of(found)


def _phases(rows: _Rows, names: Sequence[str]) -> TrainedPhases:
    at, codes, times = [], [], []
    for code, name in enumerate(names):
        values = rows[_phase(name)]
        own = np.flatnonzero(np.isfinite(values))
        at.append(own)
        codes.append(np.full(len(own), code, np.int32))
        times.append(values[own])
    if not names:
        return TrainedPhases(
            (), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
        )
    row = np.concatenate(at).astype(np.int64)
    order = np.argsort(row, kind="stable")
    return TrainedPhases(
        tuple(names),
        np.zeros(len(row), np.int32),
        row[order],
        np.concatenate(codes)[order],
        np.concatenate(times)[order],
    )
