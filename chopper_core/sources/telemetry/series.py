"""Turns collected rows into signals: sorted, unwrapped, with derived ones."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.doubts import Doubt, DoubtKind
from chopper_core.sources.signals import (
    RATES,
    ClockDomain,
    GpuName,
    SignalName,
    SignalSamples,
    Telemetry,
)
from chopper_core.sources.telemetry.cells import Flaw
from chopper_core.sources.telemetry.rows import (
    FLAW_TEXTS,
    Field,
    FieldKind,
    Readings,
    RowCollector,
)
from chopper_core.tables.columns import array_steps, array_unwrapped
from chopper_core.tables.losses import number_of
from chopper_core.util.arrays import AnyArray, Float64, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, run_mask, run_starts
from chopper_core.util.patterns import late, natural_key

NOT_STAMPED: Final = (
    "The file has no timestamps, so it can't be aligned with the run; its times are snapshot "
    "numbers."
)
_DERIVED_NOTES: Final = {
    SignalName.GFX_MHZ: "The gfx clock of a GPU is the mean of its XCDs' clocks.",
    SignalName.THROTTLE_PCT: (
        "The throttle share of a GPU is that of its largest limiter, a lower bound of the share "
        "under any limiter."
    ),
}
"""On figures of GPUs that are combined from those of parts."""
_ROUNDING_PCT: Final = 1.0
_NUMBERED: Final = late(r"[a-z]+[-_ ]?\d+", re.IGNORECASE)
"""A name such as card10."""
XCD: Final = "xcd"
_THROTTLED: Final = {"throttled": 100, "unthrottled": 0}
STATUS: Final = "status"
"""The part of a throttle share that says only whether a limiter is active: others win."""
COMBINED: Final[Mapping[SignalName, Callable[..., Float64]]] = {
    SignalName.GFX_MHZ: np.nanmean,
    SignalName.THROTTLE_PCT: np.nanmax,
    SignalName.XGMI_READ_BYTES: np.sum,
    SignalName.XGMI_WRITE_BYTES: np.sum,
    SignalName.XGMI_READ_GBPS: np.sum,
    SignalName.XGMI_WRITE_GBPS: np.sum,
}
"""How parts combine into the GPU's own value; a sum needs all of them."""

_Parts = dict[SignalName, dict[str, SignalSamples]]


def telemetry_of(format_name: str, rows: RowCollector, notes: Sequence[str] = ()) -> Telemetry:
    """Return the signals of a file from its collected rows.

    Raises DataError if they hold no usable sample, or name no GPU and don't show rounds.
    """
    readings, oddities = rows.finish()
    oddities += _one_definition(readings)
    gpus = sorted(readings, key=_order_of)
    signals: dict[tuple[int, SignalName], list[SignalSamples]] = {}
    resets: Counter[SignalName] = Counter()
    derived: set[SignalName] = set()
    cooler = 0
    for number, gpu in enumerate(gpus):
        parts = _parts_of(readings[gpu], resets)
        for signal, samples_of in parts.items():
            signals[number, signal] = _with_own_value(signal, samples_of, derived)
        cooler += _hotspot_is_cooler(parts)
    rows.count_losses()
    if not signals:
        reasons = f": {listed}" if (listed := " ".join(rows.losses.notes)) else "."
        raise DataError(f"{rows.path} is {format_name}, but holds no usable sample{reasons}")
    for signal, count in resets.items():
        unknown = "the amount counted in the meantime is unknown and not added"
        rows.losses.notes.append(f"{signal} was reset {number_of(count, 'time')}: {unknown}.")
    hotspots = (
        f"The hotspot of {number_of(cooler, 'GPU')} is mostly cooler than the edge, which is "
        "impossible: the temperature headings seem to be shifted. The values are used as labelled."
    )
    return Telemetry(
        path=rows.path,
        format=format_name,
        clock=rows.stamps.clock or ClockDomain.UNKNOWN,
        resolution_ns=rows.stamps.resolution_ns,
        gpus=gpus,
        signals=signals,
        notes=[
            *([NOT_STAMPED] if rows.unstamped_rows else ()),
            *notes,
            *rows.notes,
            *oddities,
            *(note for signal, note in _DERIVED_NOTES.items() if signal in derived),
            *([hotspots] if cooler else ()),
        ],
        losses=rows.losses,
        unused=dict(rows.unused),
        doubts=[
            Doubt(DoubtKind.SENSOR.value, count, 0, signals=(signal.value,), text=text)
            for (signal, flaw), count in rows.flaws.items()
            if flaw in (Flaw.OUT_OF_RANGE, Flaw.WRONG_UNIT)
            for text in [f"{number_of(count, 'value')} of {signal} {FLAW_TEXTS[flaw]}: left out"]
        ],
    )


def _order_of(gpu: GpuName) -> tuple[object, ...]:
    """Sorts GPUs by number and place; a UUID or serial number has no order, and keeps the file's:
    tools write a round in the order of their numbers."""
    is_numbered = _NUMBERED.fullmatch(gpu.card)
    return gpu.index, gpu.kfd_node, natural_key(gpu.card) if is_numbered else [], gpu.pci


def _one_definition(readings: Mapping[GpuName, dict[Field, Readings]]) -> list[str]:
    """Keep of columns with the same meaning the first one that all GPUs have; say which.

    Where none is of all of them, each GPU has its own first one.
    """
    by_meaning: dict[tuple[SignalName, str], dict[Field, int]] = defaultdict(dict)
    for fields in readings.values():
        for field in filter(lambda each: each.heading, fields):
            gpus = by_meaning[field.signal, field.part]
            gpus[field] = gpus.get(field, 0) + 1
    notes = []
    for (signal, _), gpus in by_meaning.items():
        if len(gpus) < 2:
            continue
        most = max(gpus.values())
        first, *others = sorted(gpus, key=lambda field: (gpus[field] < most, field.alternative))
        also = ", ".join(field.heading for field in others)
        notes.append(f"{signal} is {first.heading}; the file has {also}, too.")
        for fields in readings.values():
            for field in others if first in fields else ():
                fields.pop(field, None)
    return notes


def _parts_of(fields: Mapping[Field, Readings], resets: Counter[SignalName]) -> _Parts:
    """The samples of a GPU's signals by part; resets of accumulated ones are counted."""
    parts: _Parts = defaultdict(dict)
    for column, series in sorted(fields.items(), key=lambda entry: entry[0].alternative):
        if column.kind is not FieldKind.VALUE or column.part in parts[column.signal]:
            continue
        if column.is_accumulated:
            if count := _add_accumulated(parts, column, series):
                resets[column.signal] += count
        else:
            parts[column.signal][column.part] = _mean_of_ties(column.part, series)
    throttled = parts[SignalName.THROTTLE_PCT]
    throttled |= _residencies(fields)
    status = throttled.pop(STATUS, None)
    if status is not None and not throttled:
        throttled[""] = replace(status, part="")
    return {signal: each for signal, each in parts.items() if each}


def _add_accumulated(parts: _Parts, column: Field, series: Readings) -> int:
    """Add the amounts since the first sample, and the rates between samples where known.

    Returns how often the counter was reset.
    """
    part = column.part
    times_ns, values = _last_of_ties(series)
    totals, resets = array_unwrapped(values, column.bits)
    parts[column.signal][part] = SignalSamples(times_ns, totals * series.factor, part)
    if column.signal in RATES:
        signal, per_ns = RATES[column.signal]
        rates, known = rates_of(values, times_ns, series.factor * per_ns, column.bits)
        if known.any() and part not in parts[signal]:
            parts[signal][part] = SignalSamples(
                times_ns[1:][known], rates[known], part, times_ns[:-1][known]
            )
    return resets


def _with_own_value(
    signal: SignalName, samples_of: Mapping[str, SignalSamples], derived: set[SignalName]
) -> list[SignalSamples]:
    """Return the GPU's own value, combined from the parts if absent, followed by the parts."""
    order = sorted(samples_of, key=natural_key)
    if signal is SignalName.GFX_MHZ and any(part.startswith(XCD) for part in order):
        order = [part for part in order if part]
    parts = [samples_of[part] for part in order]
    if order[0] == "" or signal not in COMBINED:
        return parts
    if len(parts) == 1 and signal is not SignalName.THROTTLE_PCT:
        return [replace(parts[0], part="")]
    derived.add(signal)
    return [_combined(signal, parts), *parts]


def _mean_of_ties(part: str, series: Readings) -> SignalSamples:
    """Return readings in ascending order of time, the mean of those at equal times."""
    times_ns, values = series.times_ns, series.values
    if (times_ns[1:] < times_ns[:-1]).any():
        order = np.argsort(times_ns, kind="stable")
        times_ns, values = times_ns[order], values[order]
    starts = run_starts(times_ns)
    if len(starts) < len(times_ns):
        counts = np.diff(starts, append=len(times_ns))
        times_ns, values = times_ns[starts], np.add.reduceat(values, starts) / counts
    return SignalSamples(times_ns, values, part)


def _last_of_ties(series: Readings) -> tuple[Int64, AnyArray]:
    """Return times and values in ascending order of time, the last one of equal times."""
    if (series.times_ns[1:] > series.times_ns[:-1]).all():
        return series.times_ns, series.values
    order = np.argsort(series.times_ns, kind="stable")
    order = order[run_mask(series.times_ns[order][::-1])[::-1]]
    return series.times_ns[order], series.values[order]


def _combined(signal: SignalName, parts: Sequence[SignalSamples]) -> SignalSamples:
    times_ns = parts[0].time_ns
    if not all(np.array_equal(times_ns, samples.time_ns) for samples in parts[1:]):
        times_ns = distinct(np.concatenate([samples.time_ns for samples in parts]))
    values = np.full((len(parts), len(times_ns)), np.nan)
    begins = np.full(values.shape, np.iinfo(np.int64).min)
    for row, samples in enumerate(parts):
        at = np.searchsorted(times_ns, samples.time_ns)
        values[row, at] = samples.value
        if samples.begin_ns is not None:
            begins[row, at] = samples.begin_ns
    combined = COMBINED[signal](values, axis=0)
    known = ~np.isnan(combined)
    have_spans = all(samples.begin_ns is not None for samples in parts)
    spans = begins.max(axis=0)[known] if have_spans else None
    return SignalSamples(times_ns[known], combined[known], "", spans)


def _residencies(fields: Mapping[Field, Readings]) -> dict[str, SignalSamples]:
    """The shares of time under limiters, by ticks or seconds that are counted under them."""
    shares: dict[str, SignalSamples] = {}
    for column, series in fields.items():
        if column.kind is FieldKind.SECONDS:
            times_ns, counted = _last_of_ties(series)
            under_ns = 1e9 * series.factor * counted
            share = _shares_under(times_ns, under_ns, times_ns, column.part)
            shares |= {column.part: share} if share else {}
    return shares | _shares_of_ticks(fields)


def _shares_of_ticks(fields: Mapping[Field, Readings]) -> dict[str, SignalSamples]:
    ticks = next(
        (series for column, series in fields.items() if column.kind is FieldKind.TICKS), None
    )
    if ticks is None:
        return {}
    ticks_at_ns, all_ticks = _last_of_ties(ticks)
    shares: dict[str, SignalSamples] = {}
    for column, series in fields.items():
        if column.kind is not FieldKind.RESIDENCY:
            continue
        under_at_ns, under = _last_of_ties(series)
        times_ns, whole = under_at_ns, all_ticks
        if not np.array_equal(under_at_ns, ticks_at_ns):
            times_ns, at_under, at_ticks = np.intersect1d(
                under_at_ns, ticks_at_ns, assume_unique=True, return_indices=True
            )
            under, whole = under[at_under], all_ticks[at_ticks]
        share = _shares_under(times_ns, under, whole, column.part)
        shares |= {column.part: share} if share else {}
    return shares


def _shares_under(
    times_ns: Int64, under: AnyArray, whole: AnyArray, part: str
) -> SignalSamples | None:
    """The share of what was counted under a limiter between samples; None without any."""
    shares, is_known = shares_of(under, whole)
    if not is_known.any():
        return None
    return SignalSamples(times_ns[1:][is_known], shares[is_known], part, times_ns[:-1][is_known])


def rates_of(
    counted: AnyArray, times_ns: AnyArray, factor: float, bits: int = 0
) -> tuple[Float64, Mask]:
    """The amounts per ns between readings, times a factor, along the first axis, and which are
    known: none over a reset."""
    amounts, is_reset = array_steps(counted, bits)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = amounts * factor / np.diff(times_ns, axis=0)
    return rates, np.isfinite(rates) & ~is_reset


def shares_of(under: AnyArray, whole: AnyArray) -> tuple[Float64, Mask]:
    """The part in per cent of what was counted between readings, along the first axis, and where it
    is known."""
    amount, is_part_reset = array_steps(under)
    all_of_it, is_reset = array_steps(whole)
    is_known = ~(is_part_reset | is_reset) & (all_of_it > 0)
    is_known &= amount <= all_of_it * (1 + _ROUNDING_PCT / 100)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.minimum(100.0, 100.0 * amount / all_of_it), is_known


def _hotspot_is_cooler(parts: Mapping[SignalName, Mapping[str, SignalSamples]]) -> bool:
    hotspot = parts.get(SignalName.HOTSPOT_C, {}).get("")
    edge = parts.get(SignalName.EDGE_C, {}).get("")
    if hotspot is None or edge is None:
        return False
    _, at_hotspot, at_edge = np.intersect1d(
        hotspot.time_ns, edge.time_ns, assume_unique=True, return_indices=True
    )
    cooler = hotspot.value[at_hotspot] < edge.value[at_edge]
    return bool(cooler.size and cooler.mean() > 0.5)


def ratios_or_percent(values: Float64) -> Float64 | None:
    """Percent of values that are all ratios or all per cent; None if they don't tell which.

    DCGM 4.6 calls its field 203, in whole per cent, as later versions do a ratio.
    """
    if (values > 1).any() or not values.any():
        return values
    is_ratio = bool((values != np.floor(values)).any())
    return 100 * values if is_ratio else None


def throttled_pct(status: object) -> object:
    """Return 100 for a throttle status that names a limiter, by word or bit mask, else 0."""
    text = str(status).strip().casefold()
    if text in _THROTTLED:
        return _THROTTLED[text]
    try:
        return 100 if int(text, 0) else 0
    except ValueError:
        return status
