"""Join the passes of one program in one table: a row per dispatch with all its counters.

Each pass is another execution, so passes can't be joined by time. Executions share the order in
which each GPU gets its kernels: the third `gemm` of a GPU is the same work in each. Where profilers
lose dispatches, it isn't; a lost dispatch leaves a gap in the dispatch ids: ids that differ by one
number, and have the same kernels all along, decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from chopper_core.sources.counters.references import fuller_agent, same_agent
from chopper_core.sources.counters.tables import dispatch_order
from chopper_core.sources.dispatches import Dispatches, DispatchRun, SampledCounter
from chopper_core.sources.trace import Activities, Launches, Syncs
from chopper_core.tables.columns import Interner
from chopper_core.tables.losses import ABSENT, merged_losses
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import (
    combined,
    distinct,
    first_equal,
    last_equal,
    nth_of,
    ranked,
    stable_order,
)

_MIN_COMPARED: Final = 16
"""Fewer dispatches are joined by occurrence: their ids may agree by chance."""

_SAME_WORK: Final = 0.98
"""The part of the ids that both passes have that must be of the same kernel."""
_MIN_SHARE: Final = 0.5
"""The part of the shorter pass that must be matched."""
_MAX_PAIRS: Final = 1 << 16
"""Pairs of dispatches of a kernel that vote for the difference of the ids."""
_CANDIDATES: Final = 8
DIFFERS_BY: Final = 0.01
"""Relative difference above which the values of one counter in two passes are noted."""
_SIZES: Final = ("grid", "workgroup")
_TIMES: Final = ("start_ns", "end_ns")
_PROCESS_IDS, _PROGRAM_IDS = 40, 52
"""The bits of correlation ids of one process, and of those of one program."""
_Linked = TypeVar("_Linked", Dispatches, Launches, Activities, Syncs)
_Number = TypeVar("_Number", np.int32, np.int64, np.float64)


def join_passes(passes: Sequence[DispatchRun]) -> DispatchRun:
    """Join executions of one program dispatch by dispatch (see above).

    Where all kernels ran as often in both, the n-th of a GPU and kernel is the n-th.

    Times, ids and region of a row are those of the first pass that has it; kernel traces without
    counters come first. A dispatch that only a later pass has becomes a row without times, since
    its times are those of another execution. Dispatches that match except for the grid stay
    separate. `join_notes` counts all of these.
    """
    ordered = sorted(passes, key=lambda run: bool(run.dispatches.counters))
    joined = ordered[0]
    keys = _Keys.of(joined.dispatches)
    for other in ordered[1:]:
        joined, keys = _join_next(joined, keys, other)
    counted = sum(run.passes for run in passes if run.dispatches.counters)
    return replace(joined, passes=max(1, counted))


def join_same_process(trace: DispatchRun, counters: DispatchRun) -> DispatchRun:
    """Join the kernel trace and the counters of one process, by dispatch id.

    If the ids belong to different kernels, the files are two executions, joined as passes.
    """
    there = _in_terms_of(trace, counters)
    match = _same_ids(trace.dispatches, there.dispatches)
    both = match >= 0
    same_name = trace.dispatches.name[match[both]] == there.dispatches.name[both]
    if not both.any() or not same_name.all():
        return join_passes([trace, counters])
    processes = distinct(there.dispatches.process)
    if len(processes) == 1:
        process = trace.dispatches.process
        process = np.where(process < 0, processes[0], process)
        trace = replace(trace, dispatches=replace(trace.dispatches, process=process))
    rows = _in_order(_merged(trace.dispatches, there.dispatches, match))
    return _with_new_rows(trace, there, rows, repeat_notes(trace.dispatches, there, match))


def joined_dispatches(parts: Sequence[DispatchRun]) -> DispatchRun:
    """Concatenate the processes of one pass, and note the GPUs that they share.

    On a GPU that several processes used, dispatches are ordered by process.
    """
    joined, *others = parts
    for number, other in enumerate(others, 1):
        there = _with_own_ids(_in_terms_of(joined, other), number << _PROCESS_IDS)
        there = _as_part(there, number)
        ours = distinct(joined.dispatches.gpu)
        shared = ours[np.isin(ours, there.dispatches.gpu)]
        rows = _in_order(_merged(joined.dispatches, there.dispatches))
        note = (
            f"Several processes used the same GPU ({len(shared):,} of them); occurrences are "
            "counted process by process."
        )
        joined = _with_new_rows(joined, there, rows, [note] if len(shared) else [])
    return joined


def one_after_another(programs: Sequence[DispatchRun]) -> DispatchRun:
    """Put programs that used the same GPUs at different times into one run, in order of time.

    Each keeps its rows, in its own order of dispatch.
    """
    in_order = sorted(programs, key=_first_start)
    joined, *others = in_order
    for number, other in enumerate(others, 1):
        there = _with_own_ids(_in_terms_of(joined, other), number << _PROGRAM_IDS)
        rows = _merged(joined.dispatches, there.dispatches)
        joined = _with_new_rows(joined, there, _taken(rows, stable_order(rows.gpu)), [])
    if not others:
        return joined
    each = []
    for run in in_order:
        known = run.dispatches.start_ns >= 0
        busy_ns = int((run.dispatches.end_ns - run.dispatches.start_ns)[known].sum())
        each.append(f"{pass_name(run)} ({known.sum():,} dispatches, {busy_ns / 1e6:.3f} ms)")
    listed = ", ".join(each)
    note = f"{len(programs)} programs ran one after another: {listed}; the time between is idle."
    return replace(joined, join_notes=[note, *joined.join_notes])


def _with_new_rows(
    base: DispatchRun, there: DispatchRun, rows: Dispatches, notes: Sequence[str]
) -> DispatchRun:
    """The run of both, whose times are on one clock."""
    joined = _with_rows(base, there, rows, notes)
    passes = max(base.passes, there.passes)
    first = np.int32(len(base.threads))
    calls = replace(there.calls, thread=there.calls.thread + first)
    ranges = replace(there.ranges, thread=there.ranges.thread + first)
    return replace(
        joined,
        passes=passes,
        sampled=_sampled(base, there),
        calls=base.calls.joined(calls),
        ranges=base.ranges.joined(ranges),
        threads=[*base.threads, *there.threads],
        copies=base.copies.joined(there.copies),
        syncs=base.syncs.joined(there.syncs),
    )


def _first_start(run: DispatchRun) -> int:
    starts = run.dispatches.start_ns
    return int(starts[starts >= 0].min(initial=np.iinfo(np.int64).max))


class _Keys(Struct, frozen=True):
    """The place of each dispatch in its own pass."""

    nth: Int64
    """How many of its GPU and kernel come before it."""
    ids: Int64
    """Its dispatch id as the first pass counts, or ABSENT."""

    @classmethod
    def of(cls, rows: Dispatches) -> _Keys:
        return cls(nth_of(rows.gpu, rows.name), rows.dispatch_id.astype(np.int64))


def _join_next(base: DispatchRun, keys: _Keys, other: DispatchRun) -> tuple[DispatchRun, _Keys]:
    there = _in_terms_of(base, other)
    ours, others, theirs = base.dispatches, there.dispatches, _Keys.of(there.dispatches)
    match, nearest = _same_occurrence(ours, keys.nth, others, theirs.nth)
    theirs = _by_ids(ours, keys, others, theirs, match, nearest)
    # Unmatched rows come after the last row of the first pass up to them, without their times.
    rows = _merged(ours, others, match, with_times=not (ours.start_ns >= 0).any())
    is_new = match < 0
    anchor = np.concatenate((np.arange(len(ours)), np.maximum.accumulate(nearest)[is_new]))
    order = np.lexsort((np.arange(len(rows)) >= len(ours), anchor, rows.gpu))
    joined_keys = _Keys(
        np.concatenate((keys.nth, theirs.nth[is_new]))[order],
        np.concatenate((keys.ids, theirs.ids[is_new]))[order],
    )
    unmatched = is_new & (nearest >= 0)
    is_other_grid = ours.name[nearest[unmatched]] == others.name[unmatched]
    notes = match_notes(base, there, match)
    if count := int(is_other_grid.sum()):
        notes.append(
            f"{pass_name(there)}: {count:,} dispatches have a different grid from the same "
            "occurrence of their kernel in earlier passes; they are not joined."
        )
    notes += repeat_notes(ours, there, match)
    if there.sampled:
        notes.append(
            f"{pass_name(there)} ran at other times; its samples are no signals, only totals of "
            "kernels."
        )
    # Its times are those of another execution: none of them is lost.
    there = replace(there, losses=replace(there.losses, bad_times=0))
    joined = _with_rows(base, there, _taken(rows, order), notes)
    return replace(joined, passes=base.passes + other.passes), joined_keys


def _by_ids(
    base: Dispatches, keys: _Keys, other: Dispatches, theirs: _Keys, match: Int64, nearest: Int64
) -> _Keys:
    """Replace matches by occurrence, GPU by GPU, where ids show better.

    Returns the keys of the other pass, with its ids as the first one counts where they agree.
    """
    ids = np.full(len(other), ABSENT, np.int64)
    for gpu in distinct(other.gpu).tolist():
        here, there = np.flatnonzero(base.gpu == gpu), np.flatnonzero(other.gpu == gpu)
        if min(len(here), len(there)) < _MIN_COMPARED:
            continue
        name, other_name = base.name[here].astype(np.int64), other.name[there].astype(np.int64)
        found = same_ids(name, keys.ids[here], other_name, theirs.ids[there])
        if found is None:
            continue
        both = np.flatnonzero(found >= 0)
        shift = int(theirs.ids[there[both[0]]] - keys.ids[here[found[both[0]]]])
        ids[there] = theirs.ids[there] - shift
        rows = np.where(found >= 0, here[found], ABSENT)
        nearest[there] = rows
        size, size_there = _grid_sizes(base), _grid_sizes(other)
        unlike = (rows >= 0) & (size[rows] > 0) & (size_there[there] > 0)
        unlike &= size[rows] != size_there[there]
        match[there] = np.where(unlike, ABSENT, rows)
    return _Keys(theirs.nth, ids)


def _in_terms_of(base: DispatchRun, other: DispatchRun) -> DispatchRun:
    """Return `other` with the codes of names and GPUs of `base`, extended by its own."""
    names = Interner({name: code for code, name in enumerate(base.names)})
    name_code = np.array([*(names[name] for name in other.names), ABSENT], np.int32)
    agents = list(base.agents)
    gpu_code = np.zeros(len(other.agents), np.int32)
    for index, agent in enumerate(other.agents):
        place = next((i for i, one in enumerate(agents) if same_agent(one, agent)), len(agents))
        if place == len(agents):
            agents.append(agent)
        agents[place] = fuller_agent(agents[place], agent)
        gpu_code[index] = place
    rows = replace(
        other.dispatches,
        name=name_code[other.dispatches.name],
        gpu=gpu_code[other.dispatches.gpu],
        region=name_code[other.dispatches.region],
    )
    by_gpu = stable_order(rows.gpu)
    return replace(
        other,
        names=list(names),
        agents=tuple(agents),
        dispatches=_taken(rows, by_gpu),
        sampled=[replace(each, gpu=int(gpu_code[each.gpu])) for each in other.sampled],
        syncs=replace(other.syncs, device=gpu_code[other.syncs.device]),
        calls=replace(other.calls, name=name_code[other.calls.name]),
        ranges=replace(other.ranges, name=name_code[other.ranges.name]),
        copies=replace(
            other.copies,
            name=name_code[other.copies.name],
            device=gpu_code[other.copies.device],
        ),
    )


def _with_own_ids(run: DispatchRun, number: int) -> DispatchRun:
    """The run whose correlation ids are none of those of runs with other numbers."""

    def shifted(ids: Int64) -> Int64:
        return np.where(ids > 0, ids + number, ids)

    def with_ids(rows: _Linked) -> _Linked:
        return replace(rows, correlation=shifted(rows.correlation))

    return replace(
        run,
        dispatches=with_ids(run.dispatches),
        calls=with_ids(run.calls),
        copies=with_ids(run.copies),
        syncs=replace(with_ids(run.syncs), recorded=shifted(run.syncs.recorded)),
    )


def _as_part(run: DispatchRun, number: int) -> DispatchRun:
    """The run of one process as a part of a program."""
    return replace(
        run,
        dispatches=replace(run.dispatches, part=np.full(len(run.dispatches), number, np.int32)),
        threads=[(process, thread, number) for process, thread, _ in run.threads],
        copies=replace(run.copies, rank=np.full(len(run.copies), number, np.int32)),
        syncs=replace(run.syncs, rank=np.full(len(run.syncs), number, np.int32)),
    )


def _sampled(base: DispatchRun, there: DispatchRun) -> tuple[SampledCounter, ...]:
    """The samples of two processes on one clock; of two at one time those of the first."""
    found = {(each.name, each.gpu): each for each in base.sampled}
    for other in there.sampled:
        key = other.name, other.gpu
        first, later = sorted((found.setdefault(key, other), other), key=_begin)
        if later.begin_ns[0] >= first.time_ns[-1]:
            columns = ("begin_ns", "time_ns", "counted")
            both = {
                name: np.concatenate((getattr(first, name), getattr(later, name)))
                for name in columns
            }
            found[key] = replace(first, **both)
    return tuple(found.values())


def _begin(counter: SampledCounter) -> int:
    return int(counter.begin_ns[0])


def _taken(rows: Dispatches, order: Int64) -> Dispatches:
    """Return these rows; -1 stands for a row of missing values."""
    known = order >= 0

    def at(column: NDArray[_Number], missing: float) -> NDArray[_Number]:
        found = np.full((len(order), *column.shape[1:]), missing, column.dtype)
        found[known] = column[order[known]]
        return found

    columns = asdict(rows)
    counters = {name: at(column, np.nan) for name, column in columns.pop("counters").items()}
    return Dispatches(
        **{name: at(column, 0 if name in _SIZES else ABSENT) for name, column in columns.items()},
        counters=counters,
    )


def _same_ids(base: Dispatches, other: Dispatches) -> Int64:
    """Return the row of `base` with the GPU and dispatch id of each row of `other`, or ABSENT."""
    gpu = np.concatenate((base.gpu, other.gpu)).astype(np.int64)
    _, key = combined((gpu, np.concatenate((base.dispatch_id, other.dispatch_id))))
    match = last_equal(key[: len(base)], key[len(base) :])
    return np.where(other.dispatch_id >= 0, match, ABSENT)


def _same_occurrence(
    base: Dispatches, nth: Int64, other: Dispatches, nth_there: Int64
) -> tuple[Int64, Int64]:
    """Return the row of `base` with the GPU, kernel and occurrence of each row of `other`.

    ABSENT if there is none, or only one with another grid; the second value includes the latter,
    the first pass's before those of later ones. An unknown grid matches any grid.
    """
    columns = (
        np.concatenate((base.gpu, other.gpu)).astype(np.int64),
        np.concatenate((base.name, other.name)).astype(np.int64),
        np.concatenate((nth, nth_there)),
    )
    size, size_there = _grid_sizes(base), _grid_sizes(other)
    _, key = combined((*columns, np.concatenate((size, size_there))))
    match = first_equal(key[: len(base)], key[len(base) :])
    _, key = combined(columns)
    match_any = first_equal(key[: len(base)], key[len(base) :])
    open_rows = np.flatnonzero((match < 0) & (match_any >= 0))
    unknown = (size[match_any[open_rows]] == 0) | (size_there[open_rows] == 0)
    unknown &= ~np.isin(match_any[open_rows], match)
    match[open_rows[unknown]] = match_any[open_rows[unknown]]
    return match, match_any


def _merged(
    base: Dispatches, other: Dispatches, match: Int64 | None = None, *, with_times: bool = True
) -> Dispatches:
    """Return the rows of `base`, completed by their matches, then the unmatched rows of `other`."""
    if match is None:
        match = np.full(len(other), ABSENT, np.int64)
    is_new = match < 0
    partner = np.full(len(base), ABSENT, np.int64)
    partner[match[~is_new]] = np.flatnonzero(~is_new)
    partner = np.concatenate((partner, np.flatnonzero(is_new)))
    mine = np.concatenate((np.arange(len(base)), np.full(int(is_new.sum()), ABSENT)))
    return _completed(_taken(base, mine), _taken(other, partner), with_times=with_times)


def _in_order(rows: Dispatches) -> Dispatches:
    order = dispatch_order(rows.gpu, rows.process, rows.dispatch_id, rows.start_ns)
    return _taken(rows, order)


def _completed(here: Dispatches, there: Dispatches, *, with_times: bool) -> Dispatches:
    """Return the rows of `here`, with the values of `there` where they are missing."""
    columns, more = asdict(here), asdict(there)
    counters, more_counters = columns.pop("counters"), more.pop("counters")
    for name, column in columns.items():
        if name in _SIZES:
            # More of x, y and z may be known; a single size is their product.
            is_fuller = (more[name] > 0).sum(axis=1) > (column > 0).sum(axis=1)
            columns[name] = np.where(is_fuller[:, None], more[name], column)
        elif with_times or name not in _TIMES:
            columns[name] = np.where(column >= 0, column, more[name])
    for name, column in more_counters.items():
        known = counters.get(name, column)
        counters[name] = np.where(np.isnan(known), column, known)
    return Dispatches(**columns, counters=counters)


def _grid_sizes(rows: Dispatches) -> Int64:
    """Return the work-items of each dispatch; 0 where unknown."""
    known = np.maximum(rows.grid.astype(np.int64), 1).prod(axis=1)
    return np.where(rows.grid.any(axis=1), known, 0)


def _with_rows(
    base: DispatchRun, other: DispatchRun, rows: Dispatches, notes: Sequence[str]
) -> DispatchRun:
    return replace(
        other,
        paths=(*base.paths, *(path for path in other.paths if path not in base.paths)),
        format=base.format,
        dispatches=rows,
        counter_info={**other.counter_info, **base.counter_info},
        join_notes=list(dict.fromkeys((*base.join_notes, *other.join_notes, *notes))),
        losses=merged_losses(base.losses, other.losses),
        sampled=base.sampled,
        syncs=base.syncs,
        calls=base.calls,
        ranges=base.ranges,
        threads=base.threads,
        copies=base.copies,
    )


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


def match_notes(base: DispatchRun, other: DispatchRun, match: Int64) -> list[str]:
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
