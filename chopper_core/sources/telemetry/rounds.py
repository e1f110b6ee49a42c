"""Signals of a library's samples as they are taken: what `sampler` and `series` read of a file of
them, without writing and parsing one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.signals import TRACKS
from chopper_core.sources.signals import (
    RATES,
    ClockDomain,
    GpuName,
    SignalName,
    SignalSamples,
    Telemetry,
)
from chopper_core.sources.telemetry.cells import UNSUPPORTED
from chopper_core.sources.telemetry.rows import Field, FieldKind, factors_of, is_in_range
from chopper_core.sources.telemetry.sampler import layout_of
from chopper_core.sources.telemetry.series import COMBINED, STATUS, XCD, rates_of, shares_of
from chopper_core.tables.losses import Losses
from chopper_core.util.arrays import Float64, Int64, Mask

Reading = int | float | str | tuple[int | float | str, ...]
"""A value, one per member of a list, or '' for an unknown one."""
_Values = dict[str, tuple[Float64, Mask]]
"""Of each part of a signal: its value of each GPU, and which GPUs ever had one."""
_TIME: Final = "time_ns"


class SampleRounds:
    """Turns the newest sample of each GPU into the values of its signals.

    Rates and shares are between a GPU's samples, so that the first has none.
    """

    def __init__(self, headings: Sequence[str], names: Sequence[GpuName]) -> None:
        """`headings` are those of Chopper's own format, without the times and the GPU's names."""
        layout = layout_of([*headings, _TIME])
        assert layout is not None, headings
        self._fields, self._format = layout.fields, layout.format
        self._names, self._gpus = names, len(names)
        self._factors = {field: factors_of(field).get(field.unit, nan) for _, field in self._fields}
        self._members: dict[tuple[Field, int], Field] = {}
        self._before: dict[Field, Float64] = {}
        """The last number of each counter, and when that was: (2, GPUs)."""
        self._origin_ns = -1
        """The time of the first sample: what is between samples stays exact."""
        self._had: dict[Field, Mask] = {}
        """Which GPUs ever had a value."""

    def telemetry(
        self, path: Path, samples: Iterable[tuple[int, int, Sequence[Reading]]]
    ) -> Telemetry:
        """The samples as a file at `path` has them."""
        times_ns, values = self.read(samples)
        signals = {
            (gpu, name): [SignalSamples(times_ns[gpu : gpu + 1], own[gpu : gpu + 1])]
            for name, own in values.items()
            for gpu in np.flatnonzero(np.isfinite(own)).tolist()
        }
        clock, losses = ClockDomain.EPOCH, Losses()
        return Telemetry(path, self._format, clock, 1, self._names, signals, [], losses)

    def read(
        self, samples: Iterable[tuple[int, int, Sequence[Reading]]]
    ) -> tuple[Int64, Mapping[SignalName, Float64]]:
        """The time of each GPU's sample (0 without one), and its signals; NaN where unknown.

        A sample is the place of its GPU, its time in ns, and a reading per heading.
        """
        times_ns = np.zeros(self._gpus, np.int64)
        numbers: dict[Field, Float64] = {}
        for gpu, time_ns, readings in samples:
            self._origin_ns = time_ns if self._origin_ns < 0 else self._origin_ns
            times_ns[gpu] = time_ns
            for column, field in self._fields:
                for each, reading in self._cells(field, readings[column]):
                    if each not in numbers:
                        numbers[each] = np.full(self._gpus, nan)
                    numbers[each][gpu] = reading
        values = {
            field: self._in_unit(field, own)
            for field, own in numbers.items()
            if not field.is_accumulated
        }
        counted = {field: own for field, own in numbers.items() if field.is_accumulated}
        values |= self._steps(counted, times_ns)
        for field, own in values.items():
            known = np.isfinite(own)
            self._had[field] = self._had[field] | known if field in self._had else known
        unknown = np.full(self._gpus, nan)
        return times_ns, self._own_values(
            {field: values.get(field, unknown) for field in self._had}
        )

    def _cells(self, field: Field, reading: Reading) -> Iterable[tuple[Field, float]]:
        if not isinstance(reading, tuple):
            given = field.convert(reading) if field.convert and reading != "" else reading
            if isinstance(given, int | float) and given not in UNSUPPORTED:
                yield field, given
            return
        for number, each in enumerate(reading):
            if not isinstance(each, str) and each not in UNSUPPORTED:
                member = self._members.get((field, number))
                if member is None:
                    member = replace(field, part=f"{field.part}{number}", is_list=False)
                    self._members[field, number] = member
                    self._factors[member] = self._factors[field]
                yield member, each

    def _in_unit(self, field: Field, numbers: Float64) -> Float64:
        values = numbers * self._factors[field]
        return np.where(is_in_range(field, numbers, values), values, nan)

    def _steps(self, counted: Mapping[Field, Float64], times_ns: Int64) -> dict[Field, Float64]:
        """The rates of counters since the GPU's reading before, and the shares of limiters."""
        found = {}
        ticks = next((each for each in counted if each.kind is FieldKind.TICKS), None)
        for field, numbers in counted.items():
            if field.kind is FieldKind.TICKS or (field.kind is FieldKind.RESIDENCY and not ticks):
                continue
            # Of a limiter the ticks are what the time is of a counter.
            is_share = field.kind is FieldKind.RESIDENCY
            over = counted[ticks] if ticks and is_share else times_ns - self._origin_ns
            is_known = is_in_range(field, numbers, numbers) & np.isfinite(over)
            now = np.where(is_known, np.array([numbers, over]), nan)
            before = self._before.get(field)
            self._before[field] = now if before is None else np.where(is_known, now, before)
            if before is None:
                continue
            pair, base = np.array([before[0], now[0]]), np.array([before[1], now[1]])
            if is_share:
                share, is_told = shares_of(pair, base)
                found[field] = np.where(is_told[0], share[0], nan)
            elif field.signal in RATES:
                signal, per_ns = RATES[field.signal]
                rate, is_told = rates_of(pair, base, self._factors[field] * per_ns, field.bits)
                member = replace(field, signal=signal)
                found[member] = np.where(is_told[0], rate[0], nan)
        return found

    def _own_values(self, values: Mapping[Field, Float64]) -> dict[SignalName, Float64]:
        """The value of each signal of each GPU, of its parts where it has no own."""
        by_part: dict[SignalName, dict[str, list[Field]]] = {}
        for field in values:
            if field.signal in TRACKS:
                by_part.setdefault(field.signal, {}).setdefault(field.part, []).append(field)
        found = {}
        for signal, parts in by_part.items():
            chosen = {part: self._chosen(fields, values) for part, fields in parts.items()}
            status = chosen.pop(STATUS, None)
            own, has_own = chosen.pop("", self._nothing)
            if signal is SignalName.GFX_MHZ:
                xcds = [had for part, (_, had) in chosen.items() if part.startswith(XCD)]
                has_own = has_own & ~np.any(xcds, axis=0) if xcds else has_own
            of_parts, has_parts = self._combined(signal, chosen)
            if status is not None and signal is SignalName.THROTTLE_PCT:
                of_parts = np.where(has_parts, of_parts, status[0])
            found[signal] = np.where(has_own, own, of_parts)
        return found

    def _chosen(
        self, fields: Sequence[Field], values: Mapping[Field, Float64]
    ) -> tuple[Float64, Mask]:
        """The values of one of several columns of the same meaning, as for a file: of the first
        that all GPUs have; a GPU without it has its own first one."""
        if len(fields) == 1:
            return values[fields[0]], self._had[fields[0]]
        most = max(int(self._had[field].sum()) for field in fields)
        order = sorted(fields, key=lambda each: each.alternative)
        order.sort(key=lambda each: int(self._had[each].sum()) < most)
        order[1:] = sorted(order[1:], key=lambda each: each.alternative)
        found, has_one = self._nothing
        for field in order:
            is_first = self._had[field] & ~has_one
            found, has_one = np.where(is_first, values[field], found), has_one | is_first
        return found, has_one

    @property
    def _nothing(self) -> tuple[Float64, Mask]:
        return np.full(self._gpus, nan), np.zeros(self._gpus, np.bool_)

    def _combined(self, signal: SignalName, parts: _Values) -> tuple[Float64, Mask]:
        combined, has_parts = self._nothing
        if not parts or signal not in COMBINED:
            return combined, has_parts
        values = np.array([value for value, _ in parts.values()])
        had = np.array([each for _, each in parts.values()])
        has_parts = np.asarray(had.any(axis=0))
        if COMBINED[signal] is np.sum:
            # A sum needs all parts that the GPU has.
            combined = np.where(has_parts, np.where(had, values, 0.0).sum(axis=0), nan)
        elif (is_known := np.isfinite(values).any(axis=0)).any():
            combined[is_known] = COMBINED[signal](values[:, is_known], axis=0)
        return combined, has_parts
