"""Matches the dispatches of counter runs with the activities of a trace.

Counters come from another execution of the same program: serialised, often with another number of
iterations, without collectives, with a few kernels more or less. Both sides are sequences of
kernel names in launch order, with launch sizes and named ranges where both have them (`launches`).
One complete iteration of the trace is the template; its recurrences in the counter run (windows)
are found by runs of kernels that are unique in the template, and each is aligned with it. The
iterations of the trace take the windows from the last one backwards; iterations without a window
borrow the nearest one. If the counters come from the trace's own process, correlation ids decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.identity import devices_of_agents, gpus_of_agents
from chopper_core.align.launches import (
    UNMATCHED,
    Alignment,
    Comparison,
    Dispatched,
    Launched,
    align,
    common_codes,
    with_moved,
)
from chopper_core.model.column_names import (
    COUNTER_DURATION,
    COUNTER_MATCH,
    COUNTS_PER_US,
    LDS,
    REGISTERS,
    Match,
    part_of,
)
from chopper_core.model.doubts import Doubt, DoubtKind
from chopper_core.model.hardware import Agent, CounterInfo
from chopper_core.model.inputs import CounterSource, Gpu, Identity
from chopper_core.model.overrides import Overrides
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.table import NO_TIME, Category, KernelTable, Kind
from chopper_core.model.units import Unit
from chopper_core.sources.dispatches import DispatchRun, SampledCounter
from chopper_core.util.arrays import Float64, Index, Int8, Int32, Int64, Mask
from chopper_core.util.grouping import counted, distinct, median_of, places_by, run_mask
from chopper_core.util.progress import Progress, silent

RUN_LENGTHS: Final = (6, 4, 2, 1)
"""Lengths of the runs of kernels that mark a place in the template, the safest first."""
RUN_LENGTH: Final = RUN_LENGTHS[0]
_MIN_WINDOW: Final = 0.2
"""Share of the template's marks that a recurrence must show."""


_ROUNDING_NS: Final = 2_000
"""Two tools give one execution's times within this: traces are written in µs."""
_DRIFT: Final = 1e-5
"""And two clocks of one host drift by this share of the time at most."""
_NS_PER_US: Final = 1_000.0


class CounterMatch(Struct, frozen=True):
    """The dispatch of each activity of one GPU."""

    dispatch: Index
    """Row of the dispatches, or UNMATCHED."""
    match: Int8
    spare: Index
    """A dispatch of the same place in another iteration, for counters that this one lacks."""
    windows: int
    """How many iterations of the counter run were recognised."""
    unused_dispatches: int
    """Dispatches without an activity."""
    comparison: str
    """How names were compared: `exact`, `prefix` or `base name`."""


def match_counters(table: KernelTable, rows: Index, dispatched: Dispatched) -> CounterMatch:
    sequence = launch_order(table, rows)
    codes = common_codes(table.names, table.kernel[sequence], dispatched.names, dispatched.name)
    trace_codes, dispatch_codes, comparison = codes
    dispatch = np.full(len(table), UNMATCHED, np.intp)
    match = np.full(len(table), Match.NONE, np.int8)
    spare = dispatch.copy()
    iterations = table.iteration[sequence]
    if not len(sequence) or not len(dispatched):
        unused = len(dispatched)
        return CounterMatch(dispatch[rows], match[rows], spare[rows], 0, unused, comparison)
    both = Comparison(table, sequence, dispatched, trace_codes, dispatch_codes)
    launched, others = both.sides()
    template = launched.take(iterations == _template(iterations))
    fitted = _fit(template, others, windows(template.code, others.code))
    numbers = distinct(iterations)
    last = len(numbers) - 1
    for position, number in enumerate(numbers):
        if not fitted:
            break
        here = iterations == number
        own = sequence[here]
        window = len(fitted) - 1 - (last - position)
        partner, state, other = _with_borrowed(fitted, window)
        placed = _into_template(launched.take(here), template)
        into, ambiguous = placed.partner, placed.ambiguous
        found = (into != UNMATCHED) & (partner[into] != UNMATCHED)
        dispatch[own[found]] = partner[into[found]]
        spare[own[found]] = np.where(ambiguous, UNMATCHED, other[into])[found]
        match[own[found]] = np.where(ambiguous, Match.AMBIGUOUS, state[into])[found]
    kernels, theirs = both.same_launches()
    if len(kernels):
        # Correlation ids of the same process win over the sequences.
        by_id = np.isin(dispatch, theirs) & (match != Match.BORROWED)
        dispatch[by_id], match[by_id], spare[by_id] = UNMATCHED, Match.NONE, UNMATCHED
        dispatch[sequence[kernels]], match[sequence[kernels]] = theirs, Match.MATCHED
        comparison = f"{comparison}; {len(kernels)} by correlation id"
    used = distinct(dispatch[dispatch != UNMATCHED])
    return CounterMatch(
        dispatch[rows],
        match[rows],
        spare[rows],
        len(fitted),
        len(dispatched) - len(used),
        comparison,
    )


def _into_template(kernels: Launched, template: Launched) -> Alignment:
    """The place of each kernel of an iteration in the template.

    A truncated iteration is first placed by its runs of kernels that are unique in the template:
    layers repeat, so its kernels alone would fit in several places.
    """
    begin, end = 0, len(template)
    if len(kernels) != len(template) and (starts := windows(kernels.code, template.code)):
        begin = max(starts[-1] - RUN_LENGTH, 0)
        end = starts[-1] + len(kernels) + RUN_LENGTH
    return _aligned(kernels, template, begin, end)


def _with_borrowed(fitted: Sequence[Alignment], window: int) -> tuple[Index, Int8, Index]:
    """Partners and states of the template in a window; gaps are filled from the nearest window.

    Before the first window everything is borrowed. The third value is a certain partner in the
    nearest other window.
    """
    partner = np.full(len(fitted[0].partner), UNMATCHED, np.intp)
    state = np.full(len(partner), Match.NONE, np.int8)
    spare = partner.copy()
    for other in sorted(range(len(fitted)), key=lambda other: abs(other - window)):
        theirs, ambiguous = fitted[other].partner, fitted[other].ambiguous
        more = (partner != UNMATCHED) & (spare == UNMATCHED) & ~ambiguous
        spare[more] = theirs[more]
        take = (partner == UNMATCHED) & (theirs != UNMATCHED)
        partner[take] = theirs[take]
        state[take] = Match.MATCHED if other == window else Match.BORROWED
        state[take & ambiguous] = Match.AMBIGUOUS
    return partner, state, spare


def launch_order(table: KernelTable, rows: Index) -> Index:
    """The compute kernels among the rows in launch order.

    A kernel without a launch record follows its predecessor on the stream; without a predecessor
    it was launched before the recording began.
    """
    kernels = rows[(table.category[rows] == Category.KERNEL) & (table.kind[rows] == Kind.COMPUTE)]
    by_stream = kernels[np.lexsort((table.start_ns[kernels], table.stream[kernels]))]
    launch = table.launch_ns[by_stream].copy()
    new_stream = run_mask(table.stream[by_stream])
    unknown = launch == NO_TIME
    if unknown.all():
        by_start: Index = kernels[np.argsort(table.start_ns[kernels], kind="stable")]
        return by_start
    launch[unknown & new_stream] = launch[~unknown].min() - 1
    # Launches rise along a stream, so the last known one is the latest so far.
    known = np.where(launch == NO_TIME, -1, np.arange(len(launch)))
    launch = launch[np.maximum.accumulate(known)]
    in_order: Index = by_stream[np.lexsort((table.start_ns[by_stream], launch))]
    return in_order


def windows(template: Int64, sequence: Int64) -> list[int]:
    """Positions in a sequence where the template recurs, in rising order.

    Marks are runs of kernels that are unique in the template; shorter runs serve where long ones
    are too few.
    """
    for length in RUN_LENGTHS:
        if length <= min(len(template), len(sequence)) and (
            starts := _recurrences(template, sequence, length)
        ):
            return starts
    return []


def _recurrences(template: Int64, sequence: Int64, length: int) -> list[int]:
    runs = _runs(template, length)
    counts = Counter(runs)
    places = {run: place for place, run in enumerate(runs) if counts[run] == 1}
    offsets = np.array(
        [
            position - places[run]
            for position, run in enumerate(_runs(sequence, length))
            if run in places
        ],
        np.int64,
    )
    offsets.sort()
    if not len(offsets):
        return []
    # Missing and extra kernels shift the offset within a window slightly; windows follow each
    # other by a template.
    gaps = np.flatnonzero(np.diff(offsets) > max(len(template) // 4, length))
    groups = np.split(offsets, gaps + 1)
    needed = max(_MIN_WINDOW * len(places), 1)
    return [int(median_of(group)) for group in groups if len(group) >= needed]


def _runs(sequence: Int64, length: int) -> list[tuple[int, ...]]:
    values = sequence.tolist()
    return list(zip(*(values[shift:] for shift in range(length)), strict=False))


def _fit(template: Launched, sequence: Launched, starts: list[int]) -> list[Alignment]:
    """For each window the partner in `sequence` of each element of the template."""
    fitted = []
    slack = len(template) // 20 + RUN_LENGTH
    bounds = [-slack, *(start - RUN_LENGTH for start in starts[1:]), len(sequence)]
    for start, lowest, next_start in zip(starts, bounds, bounds[1:], strict=False):
        # Kernels missing from a window shift the apparent start of the next one.
        begin = max(start - slack, lowest, 0)
        end = min(start + len(template) + slack, next_start + 2 * RUN_LENGTH)
        fitted.append(_aligned(template, sequence, begin, end))
    return fitted


def _aligned(first: Launched, second: Launched, begin: int, end: int) -> Alignment:
    """Align with a part of the second sequence."""
    part = second.take(slice(begin, end))
    found = with_moved(align(first, part), first, part)
    partner = np.where(found.partner == UNMATCHED, UNMATCHED, found.partner + begin)
    return Alignment(partner, found.ambiguous)


def _template(iterations: Int32) -> int:
    """The last of the iterations with the most common number of kernels."""
    numbers, counts = counted(iterations)
    commonest = Counter(counts.tolist()).most_common()
    times = commonest[0][1]
    size = max(count for count, seen in commonest if seen == times)
    return int(numbers[counts == size][-1])


class RunCounters(Struct, frozen=True):
    """The counters of a run's activities, and where they come from."""

    columns: Mapping[str, Float64]
    sources: tuple[CounterSource, ...]
    """How well the sequences match, GPU by GPU."""
    agents: tuple[Agent, ...]
    """The device behind each source."""
    info: Mapping[str, CounterInfo]
    identities: tuple[Identity, ...]
    signals: Mapping[str, Signal]
    """Sampled counters of the run's own execution."""


def run_counters(
    table: KernelTable,
    gpus: Sequence[Gpu],
    runs: Sequence[DispatchRun],
    overrides: Overrides,
    progress: Progress = silent,
) -> RunCounters:
    """Match counter runs with a run, GPU by GPU; the first run with a counter wins."""
    columns: dict[str, Float64] = {}
    sources: list[CounterSource] = []
    agents: list[Agent] = []
    info: dict[str, CounterInfo] = {}
    sampled: list[PlacedCounter] = []

    def store(name: str, rows: Index, values: Float64) -> None:
        column = columns.setdefault(name, np.full(len(table), np.nan))
        empty = np.isnan(column[rows])
        column[rows[empty]] = values[empty]

    pairs = [
        (run, agent, identity)
        for run in runs
        for agent, identity in _identities(run, gpus, overrides).items()
    ]
    identities = [identity for _, _, identity in pairs]
    of_gpu = places_by(table.gpu)
    by_index: dict[int | None, Gpu] = {each.index: each for each in reversed(gpus)}
    for done, (run, agent, identity) in enumerate(pairs):
        progress("match counters", done, len(pairs))
        gpu = by_index.get(identity.gpu)
        if gpu is None:
            continue
        dispatches = np.flatnonzero(run.dispatches.gpu == agent)
        rows = of_gpu.get(gpu.index, np.empty(0, np.intp))
        found = match_counters(table, rows, Dispatched.of(run, dispatches, gpu.process))
        hit = found.dispatch != UNMATCHED
        taken = dispatches[found.dispatch[hit]]
        spare = found.spare[hit]
        match = found.match[hit].copy()
        for name, values in run.dispatches.counters.items():
            own = values[taken]
            lacking = np.isnan(own) & (spare != UNMATCHED) & (match != Match.AMBIGUOUS)
            own[lacking] = values[dispatches[spare[lacking]]]
            match[lacking & ~np.isnan(own)] = Match.BORROWED
            store(name, rows[hit], own)
        for name, sizes in ((REGISTERS, run.dispatches.registers), (LDS, run.dispatches.lds)):
            known = sizes[taken] >= 0
            if known.any():
                store(name, rows[hit][known], sizes[taken][known].astype(np.float64))
        start, end = run.dispatches.start_ns[taken], run.dispatches.end_ns[taken]
        duration = np.where((start >= 0) & (end > start), end - start, np.nan)
        store(COUNTER_DURATION, rows[hit], duration.astype(np.float64))
        store(COUNTER_MATCH, rows[hit], match.astype(np.float64))
        offset_ns = same_execution(table, rows[hit], start, end)
        if offset_ns is not None:
            own_samples = (each for each in run.sampled if each.gpu == agent)
            sampled += [(each, gpu.index, offset_ns) for each in own_samples]
        found.match[hit] = match
        kernels = (table.kind[rows] == Kind.COMPUTE) & (table.category[rows] == Category.KERNEL)
        sources.append(_source(run, gpu.index, len(dispatches), found, kernels))
        agents.append(run.agents[agent])
        info |= run.counter_info
    info = {name: each for name, each in info.items() if name in columns}
    return RunCounters(
        columns, tuple(sources), tuple(agents), info, tuple(identities), counter_signals(sampled)
    )


def _source(
    run: DispatchRun, gpu: int, dispatches: int, found: CounterMatch, kernels: Mask
) -> CounterSource:
    count = np.bincount(found.match, minlength=len(Match))
    return CounterSource(
        gpu=gpu,
        paths=tuple(str(path) for path in run.paths),
        format=run.format,
        counters=len(run.dispatches.counters),
        dispatches=dispatches,
        matched=int(count[Match.MATCHED]),
        borrowed=int(count[Match.BORROWED]),
        ambiguous=int(count[Match.AMBIGUOUS]),
        unmatched=int((kernels & (found.match == Match.NONE)).sum()),
        unused_dispatches=found.unused_dispatches,
        iterations=found.windows,
        comparison=found.comparison,
        notes=(*run.join_notes, *run.losses.notes),
        doubts=tuple(_doubts(run, dispatches, count)),
    )


def _doubts(run: DispatchRun, dispatches: int, count: Int64) -> Iterator[Doubt]:
    """Counters that belong to no kernel of the run, and a schema newer than their reader."""
    if run.losses.newer:
        yield Doubt("schema", 1, 1, run.losses.newer)
    if dispatches and count[Match.NONE] == count.sum():
        text = f"no dispatch of {run.paths[0].name} matches a kernel: its counters aren't shown"
        yield Doubt(DoubtKind.COVERAGE.value, dispatches, dispatches, text=text)


def _identities(run: DispatchRun, gpus: Sequence[Gpu], overrides: Overrides) -> dict[int, Identity]:
    paths = tuple(map(str, run.paths))
    used = [int(agent) for agent in distinct(run.dispatches.gpu)]
    agents = [run.agents[agent] for agent in used]
    overridden = overrides.devices(run.format, *(path.name for path in run.paths))
    return {
        agent: Identity(", ".join(paths), run.format, device.names, device.text, who.gpu, who.by)
        for agent, device, who in zip(
            used, devices_of_agents(agents), gpus_of_agents(agents, gpus, overridden), strict=True
        )
    }


def same_execution(table: KernelTable, rows: Index, start_ns: Int64, end_ns: Int64) -> int | None:
    """The offset from the dispatches' clock to that of the activities they match; None where the
    dispatches are another execution.

    Of one execution all starts differ by the same, and durations are equal; no other execution
    repeats its own times to the µs. One dispatch alone tells nothing.
    """
    known = start_ns >= 0
    if known.sum() < 2:
        return None
    distance = (table.start_ns[rows] - start_ns)[known]
    longer = (table.duration_ns[rows] - (end_ns - start_ns))[known]
    offset = int(median_of(distance))
    drift = _ROUNDING_NS + _DRIFT * float(np.ptp(start_ns[known]))
    same = (np.abs(distance - offset) <= drift) & (np.abs(longer) <= _ROUNDING_NS)
    return offset if same.all() else None


PlacedCounter = tuple[SampledCounter, int, int]
"""A sampled counter, its GPU, and the offset from the clock of its samples to the run's in ns."""


def counter_signals(counters: Sequence[PlacedCounter]) -> dict[str, Signal]:
    """A signal for each counter: its increments per µs, as means between samples.

    A GPU of several counter runs has the samples of the first.
    """
    curves: dict[str, dict[int, IntegralCurve]] = {}
    highest: dict[str, float] = {}
    for own, gpu, shift in counters:
        if gpu in curves.setdefault(own.name, {}):
            continue
        lasted_ns = np.maximum(own.time_ns - own.begin_ns, 1)
        rate = own.counted * (_NS_PER_US / lasted_ns)
        curves[own.name][gpu] = between(own.begin_ns + shift, own.time_ns + shift, rate)
        known = rate[np.isfinite(rate)]
        highest[own.name] = max(highest.get(own.name, 0.0), float(known.max(initial=0.0)))
    return {
        part_of(COUNTS_PER_US, name): Signal(
            part_of(COUNTS_PER_US, name), name, Unit.PER_US, own, 0.0, highest[name]
        )
        for name, own in curves.items()
    }
