"""Telemetry as signals of the run's GPUs, and as measured columns of the kernel table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.accounting import IDLE_COLUMNS, cut, idle_times
from chopper_core.model.column_names import (
    ENERGY,
    HELD,
    integral_of,
    is_part,
    known_of,
    part_of,
    samples_in,
)
from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.side_table import HostSteps
from chopper_core.model.signals import (
    REACH_PERIODS,
    TRACKS,
    IntegralCurve,
    NodeSamples,
    SampleSummary,
    Signal,
    between,
    filled,
    holding,
    nearest_values,
    reach_of,
    summary_of,
    summed,
    while_busy,
)
from chopper_core.model.step_spans import NO_SPANS, StepSpans
from chopper_core.model.table import COLUMNS, NO_LABEL, NO_TIME, Category, KernelTable, empty_table
from chopper_core.model.units import Unit
from chopper_core.sources.signals import COUNTED, SignalName, SignalSamples, Telemetry
from chopper_core.util.arrays import Float64, Index, Int64, column_types
from chopper_core.util.grouping import distinct, median_of, places_by
from chopper_core.util.patterns import natural_key

_OF_NODES: Final = (SignalName.IB_READ_GBPS, SignalName.IB_WRITE_GBPS)
"""Signals of a node's devices, which add up."""
_LONGEST_PERIOD_NS: Final = 86_400 * 10**9
"""A larger gap between stamps is that of a clock that was set, not of a tool that rests."""


def signals(
    placed: Sequence[tuple[Telemetry, TelemetrySource]], span: tuple[int, int]
) -> dict[str, Signal]:
    """The signals of all aligned files; of two files, the one with finer timestamps wins.

    Their scale is their range within the span of the run, else overall. Signals of parts, such as
    the clock of an XCD, come last, as `gfx_mhz.xcd3`. A node's is at the GPU whose process samples
    it: that of all its devices, and that of each.
    """
    found: dict[tuple[SignalName, str], dict[int, IntegralCurve]] = {}
    ranges: dict[SignalName, list[float]] = {}
    for each in _placed_samples(placed):
        if each.signal not in TRACKS or each.gpu is None:
            continue
        curves = found.setdefault((each.signal, each.samples.part), {})
        if each.gpu in curves:
            continue
        curve = _curve(each)
        known = np.isfinite(each.samples.value)
        if known.any() and len(curve.edges_ns):
            curves[each.gpu] = curve
            times = each.samples.time_ns + (each.offset_ns - each.source.late_ns)
            inside = (times >= span[0]) & (times <= span[1]) & known
            reached = each.samples.value[inside if inside.any() else known]
            ranges.setdefault(each.signal, []).extend((reached.min(), reached.max()))
    for signal in _OF_NODES:
        devices = [own for (of, part), own in found.items() if of is signal and part]
        for gpu in {gpu for own in devices for gpu in own}:
            of_gpu = [own[gpu] for own in devices if gpu in own]
            found.setdefault((signal, ""), {})[gpu] = summed(of_gpu)
    order = {signal: place for place, signal in enumerate(TRACKS)}
    return {
        name: Signal(
            name,
            f"{title} {part}".rstrip(),
            unit,
            found[signal, part],
            0.0 if unit is Unit.PERCENT else float(min(ranges[signal])),
            100.0 if unit is Unit.PERCENT else float(max(ranges[signal])),
        )
        for signal, part in sorted(
            found, key=lambda key: (key[1] != "", order[key[0]], natural_key(key[1]))
        )
        for name in [part_of(signal.value, part)]
        for title, unit in [(TRACKS[signal].title, TRACKS[signal].unit)]
        if found[signal, part] and ranges.get(signal)
    }


class _PlacedSamples(Struct, frozen=True):
    """The samples of one signal of a GPU, on the clock of the run by an offset."""

    telemetry: Telemetry
    source: TelemetrySource
    offset_ns: int
    number: int
    """Of the GPU in the file."""
    gpu: int | None
    signal: SignalName
    samples: SignalSamples


def _placed_samples(
    placed: Sequence[tuple[Telemetry, TelemetrySource]],
) -> Iterator[_PlacedSamples]:
    """All samples of the aligned files, those with finer timestamps first."""
    for telemetry, source in sorted(placed, key=lambda pair: pair[0].resolution_ns):
        if (offset_ns := source.offset_ns) is None:
            continue
        for (number, signal), parts in telemetry.signals.items():
            gpu = source.gpus.get(number)
            for each in parts:
                yield _PlacedSamples(telemetry, source, offset_ns, number, gpu, signal, each)


def _curve(placed: _PlacedSamples) -> IntegralCurve:
    """Samples as a curve; times far from any sample are unknown.

    Those of some tools hold until the next one. Rates are means of the spans that they have.
    """
    samples, offset_ns = placed.samples, placed.offset_ns
    distances = np.diff(samples.time_ns)
    period = min(int(median_of(distances)), _LONGEST_PERIOD_NS) if len(distances) else 10**9
    reach = REACH_PERIODS * period
    if samples.begin_ns is None:
        is_held, times = placed.telemetry.is_held and len(distances), samples.time_ns + offset_ns
        if not is_held:
            times -= placed.source.late_ns
        curve = (holding if is_held else nearest_values)(times, samples.value, reach)
        if not len(distances):
            return curve
        return replace(curve, reach=reach_of(times, samples.value, curve, period))
    begins = _begins(samples)
    lengths = samples.time_ns - begins
    near = lengths <= max(reach, int(median_of(lengths)))
    curve = between(
        begins[near] + offset_ns, samples.time_ns[near] + offset_ns, samples.value[near]
    )
    ends = begins[near][:1] + offset_ns, samples.time_ns[near][-1:] + offset_ns
    beyond = reach_of(np.concatenate(ends), samples.value[near], curve, int(median_of(lengths)))
    return replace(curve, reach=beyond)


def _begins(samples: SignalSamples) -> Int64:
    """The begins of the spans that samples are means of, none before the end of the last one."""
    assert samples.begin_ns is not None
    return np.maximum(samples.begin_ns, np.append(samples.begin_ns[:1], samples.time_ns[:-1]))


def summaries(
    placed: Sequence[tuple[Telemetry, TelemetrySource]],
) -> tuple[dict[str, dict[int, SampleSummary]], tuple[NodeSamples, ...]]:
    """The samples of all aligned files in a few figures: of GPUs by signal, and of nodes.

    Of two files with a signal of a GPU, the one with finer timestamps wins.
    """
    found: dict[str, dict[int, SampleSummary]] = {}
    nodes: list[NodeSamples] = []
    for each in _placed_samples(placed):
        samples, part = each.samples, each.samples.part
        times_ns = samples.time_ns + each.offset_ns
        begins_ns = None if samples.begin_ns is None else _begins(samples) + each.offset_ns
        summary = summary_of(times_ns, samples.value, begins_ns, counts=each.signal in COUNTED)
        if summary is None:
            continue
        if each.telemetry.is_of_node:
            rank = each.telemetry.gpus[each.number].index
            nodes.append(NodeSamples(rank, each.signal.value, part, summary))
        elif each.gpu is not None:
            found.setdefault(part_of(each.signal.value, part), {}).setdefault(each.gpu, summary)
    return found, tuple(sorted(nodes, key=lambda node: (node.rank, node.signal, node.label)))


def interval_table(
    placed: Sequence[tuple[Telemetry, TelemetrySource]], signals: Mapping[str, Signal]
) -> KernelTable:
    """A row per GPU and interval between two of its samples, of whichever signal.

    Its columns are those that telemetry adds to activities: a sample holds until the next one, or
    for its span, and the energy is the integral of the power, without spans by the trapezoidal
    rule. Of very many samples several neighbouring intervals are one row. Nothing is charged to any
    state of a GPU.
    """
    stamps: dict[int, list[Int64]] = {}
    held: dict[str, dict[int, IntegralCurve]] = {}
    drawn: dict[int, IntegralCurve] = {}
    for each in _placed_samples(placed):
        known = np.isfinite(each.samples.value)
        times, values = each.samples.time_ns[known] + each.offset_ns, each.samples.value[known]
        is_instant = each.samples.begin_ns is None
        if (gpu := each.gpu) is None or len(times) < 1 + is_instant:
            continue
        curves = held.setdefault(part_of(each.signal.value, each.samples.part), {})
        if is_instant:
            begins, ends, middle = times[:-1], times[1:], (values[:-1] + values[1:]) / 2
            values = values[:-1]
        else:
            begins, ends = _begins(each.samples)[known] + each.offset_ns, times
            middle = values
        stamps.setdefault(gpu, []).extend((begins, ends))
        if gpu not in curves:
            curves[gpu] = between(begins, ends, values)
            if each.signal is SignalName.POWER_W:
                drawn[gpu] = between(begins, ends, middle)
    used = [telemetry for telemetry, source in placed if source.offset_ns is not None]
    is_timed = all(telemetry.resolution_ns for telemetry in used)
    edges = {gpu: distinct(np.concatenate(own)) for gpu, own in sorted(stamps.items())}
    several = -(-sum(map(len, edges.values())) // _MAX_INTERVALS)
    edges = {gpu: np.append(own[:-1:several], own[-1]) for gpu, own in edges.items()}
    if not edges:
        return empty_table()
    begins = np.concatenate([own[:-1] for own in edges.values()])
    ends = np.concatenate([own[1:] for own in edges.values()])
    types, count = column_types(KernelTable), len(begins)
    columns: dict[str, Any] = {name: np.zeros(count, types[name]) for name in COLUMNS}
    for name in ("iteration", "phase", "layer", "operation", "group", "bytes"):
        columns[name][:] = NO_LABEL
    columns["launch_ns"][:] = NO_TIME
    columns["category"][:] = Category.INTERVAL
    numbers = np.array(list(edges))
    columns["gpu"][:] = np.repeat(numbers, [len(own) - 1 for own in edges.values()])
    columns["start_ns"][:] = begins
    columns["duration_ns"][:] = ends - begins
    table = KernelTable((INTERVAL,), (), **columns)
    own = {name: replace(each, curves=held.get(name, {})) for name, each in signals.items()}
    found = telemetry_columns(table, own)
    powers = [replace(each, curves=drawn) for name, each in signals.items() if name == "power_w"]
    found.pop(ENERGY, None)
    found.pop(HELD, None)
    if powers and is_timed:
        found |= _energy(table, powers)
    return table.with_measured(found)


INTERVAL: Final = "sampling interval"
"""The name of the rows of a run without any trace."""
_MAX_INTERVALS: Final = 1 << 18


_CLOCKS: Final = ("gfx_mhz", "mem_mhz")
POWERS: Final = ("energy_rate_w", "power_w")
"""Sources of energy, the more accurate first."""


def telemetry_columns(
    table: KernelTable, signals: Mapping[str, Signal], steps: HostSteps | None = None
) -> dict[str, Float64]:
    """Integrals of the signals over each activity, and the energy charged to it."""
    columns: dict[str, Float64] = {}
    end_ns, of_gpu = table.start_ns + table.duration_ns, places_by(table.gpu)
    for name, signal in signals.items():
        if is_part(name):
            continue
        found = np.full((3, len(table)), np.nan)
        for gpu, curve in signal.curves.items():
            if (own := of_gpu.get(gpu)) is None:
                continue  # A GPU that only telemetry has.
            start, end = table.start_ns[own], end_ns[own]
            if name in _CLOCKS:
                curve = while_busy(curve, start, table.duration_ns[own])
            before, after = (
                np.stack([*curve.integrals(at), np.searchsorted(curve.edges_ns, at)])
                for at in (start, end)
            )
            found[:, own] = after - before
        names = integral_of(name), known_of(name), samples_in(name)
        columns |= dict(zip(names, found, strict=True))
    powers = [signals[name] for name in POWERS if name in signals]
    if powers:
        columns |= _energy(table, powers, steps)
    return columns


def charged_times(
    table: KernelTable, own: Index, steps: StepSpans = NO_SPANS
) -> tuple[Index, Int64, Int64]:
    """The times that the rows of a GPU are charged with: the row by its place in `own`, begin and
    end."""
    start, took = table.start_ns[own], table.duration_ns[own]
    pieces = cut(start, took, table.kind[own], table.stream[own])
    busy = np.flatnonzero(pieces.is_compute | pieces.is_comm | pieces.is_copy)
    charges = {name: getattr(table, name)[own] for name in IDLE_COLUMNS}
    rows, begin, end = idle_times(start, table.launch_ns[own], table.iteration[own], charges, steps)
    return (
        np.concatenate([pieces.owner[busy], rows]),
        np.concatenate([pieces.edges_ns[busy], begin]),
        np.concatenate([pieces.edges_ns[busy + 1], end]),
    )


def _energy(
    table: KernelTable, powers: Sequence[Signal], steps: HostSteps | None = None
) -> dict[str, Float64]:
    """The energy of each piece of a GPU's span, charged as its time is, in J.

    The energy counter wins, unless the power signal has more than twice its samples; where the one
    that wins is unknown, the other one counts. Up to a
    sampling period before the first sample and after the last one, the power is that of the sample:
    the column `HELD` has how much of each row's time that is, where it is any.
    """
    energy, held = np.full(len(table), np.nan), np.zeros(len(table))
    measured = {gpu for power in powers for gpu in power.curves}
    for gpu, own in places_by(table.gpu).items():
        if gpu not in measured:
            continue
        curve = power_of(powers, gpu)
        spans = NO_SPANS if steps is None else steps.spans(gpu)
        owner, begin, end = charged_times(table, own, spans)
        joules, known = (
            np.bincount(owner, weights=until - since, minlength=len(own))
            for since, until in zip(curve.integrals(begin), curve.integrals(end), strict=True)
        )
        length = np.bincount(owner, weights=end - begin, minlength=len(own))
        lacks = known < length
        if lacks.any():
            longer = curve.held_for_a_period()
            some = np.flatnonzero(lacks[owner])
            more, covered = (
                np.bincount(owner[some], weights=until - since, minlength=len(own))
                for since, until in zip(
                    longer.integrals(begin[some]), longer.integrals(end[some]), strict=True
                )
            )
            held[own] = np.where(lacks, covered - known, 0.0)
            joules, known = np.where(lacks, more, joules), np.where(lacks, covered, known)
        energy[own] = np.where(known >= length, joules * 1e-9, np.nan)
    held[np.isnan(energy)] = 0.0
    return {ENERGY: energy, **({HELD: held} if held.any() else {})}


def power_of(powers: Sequence[Signal], gpu: int) -> IntegralCurve:
    """The curve that a GPU's energy is computed from, of signals with the more accurate first;
    where that one is unknown, as over a reset of the counter, the other one counts."""
    curves = [power.curves[gpu] for power in powers if gpu in power.curves]
    most = max(len(distinct(curve.edges_ns)) for curve in curves)
    best = next(each for each in curves if 2 * len(distinct(each.edges_ns)) >= most)
    for other in curves:
        best = best if other is best else filled(best, other)
    return best
