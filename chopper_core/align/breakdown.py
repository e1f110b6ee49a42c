"""Breakdown of compute time into losses, from theoretical to measured time.

How a kernel's time follows the clock of the compute units, as far as a run shows it: one bound by
arithmetic takes as much longer as the clock is lower; one bound by memory hardly does. A run shows
which: the same kernel ran at different clocks on different GPUs, in other iterations and in the
counter run, during communication and without. Where the run shows nothing, either is possible, and
only bounds are known.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model import column_names as col
from chopper_core.model.hardware import ElementType, Hardware
from chopper_core.model.table import KernelTable, Kind
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Mask, Numbers, Rows
from chopper_core.util.grouping import first_equal, quantiles_of, ranked
from chopper_core.util.workers import in_common, in_processes
from chopper_core.work.kernel_classes import kernel_classes

_MAX_ROWS: Final = 1 << 20
"""Of more activities every n-th is taken."""
_MIN_DURATION_NS: Final = 2_000
"""The time of a shorter kernel is its launch's."""
_BESIDE: Final = 0.01
"""From this share of its time during communication on a kernel counts as overlapped."""
_MIN_OVERLAP_VARIANCE: Final = 0.0025
_SMALLEST_SPREAD: Final = 0.005
"""Of means of like kernels: half a percent, where less is seen by chance."""
_MAX_WIDTH: Final = 0.25
"""Bounds that are closer are one value: they leave open 5 % of the time at 0.8 of the clock."""
_MIN_LIKE: Final = 3
"""Kernels of a class needed to tell how others of it respond."""
_CHUNK: Final = 1 << 16


class ClockResponse(Struct, frozen=True):
    """Exponents by group of like kernels: time is proportional to 1 / clock ** exponent.

    0 for a kernel that the clock doesn't slow, 1 for one that slows as much as the clock.
    """

    keys: Int64
    """The groups (`_keys`), rising."""
    low: Float64
    high: Float64

    def of(self, table: KernelTable) -> tuple[Float64, Float64]:
        """The bounds of the exponent of each activity; 0 and 1 where nothing is known."""
        place = first_equal(self.keys, _keys(table))
        return tuple(  # type: ignore[return-value]
            np.append(values, unknown)[place]
            for values, unknown in ((self.low, 0.0), (self.high, 1.0))
        )


def clock_response(table: KernelTable, hardware: Hardware) -> ClockResponse:
    """How the run's kernels follow the clock.

    Least squares of the logarithm of the mean durations of like kernels (name, operation, phase)
    over that of the clock and over the share during communication. Means are by GPU and iteration,
    separate by whether communication ran next to them, and by GPU in the counter run, where nothing
    does. A group that shows too little takes the range of its class of kernels.
    """
    nothing = ClockResponse(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    if col.known_of("gfx_mhz") not in table.measured:
        return nothing
    table = table.take(slice(None, None, -(-len(table) // _MAX_ROWS) or 1))
    known = table.measured[col.known_of("gfx_mhz")]
    with np.errstate(invalid="ignore", divide="ignore"):
        clock = table.measured[col.integral_of("gfx_mhz")] / known / hardware.clock_mhz
        used = (table.kind == Kind.COMPUTE) & (table.duration_ns >= _MIN_DURATION_NS)
        used &= (known > table.duration_ns / 2) & (clock > 0)
    if not used.any():
        return nothing
    keys, group = ranked(_keys(table))
    means = _Means.of_trace(table, group, clock, used)
    if col.CYCLES in table.measured and col.COUNTER_DURATION in table.measured:
        means = means.joined(_Means.of_counter_run(table, group, used, hardware))
    exponent, error, fits = means.exponents(len(keys))
    low, high = np.clip(exponent - 2 * error, 0, 1), np.clip(exponent + 2 * error, 0, 1)
    fits &= 2 * error <= _MAX_WIDTH
    # An exponent within its error of 0 or 1 is taken as 0 or 1.
    exponent = np.where(high >= 1, 1.0, np.where(low <= 0, 0.0, exponent))
    first = first_equal(group, np.arange(len(keys)))
    names = kernel_classes([table.names[code] for code in table.kernel[first].tolist()])
    classes: dict[str, int] = {}
    owner = np.array([classes.setdefault(name, len(classes)) for name in names])
    by_class = _by_class(owner, exponent, fits)
    low, high = (np.where(fits, exponent, bound) for bound in by_class)
    is_close = high - low <= _MAX_WIDTH
    middle = (low + high) / 2
    return ClockResponse(
        keys.astype(np.int64), np.where(is_close, middle, low), np.where(is_close, middle, high)
    )


def _keys(table: KernelTable) -> Int64:
    operation = table.kernel.astype(np.int64) * (len(table.operations) + 1) + table.operation + 1
    return (operation << 8) + table.phase + 1


def _by_class(owner: Index, exponent: Float64, fits: Mask) -> tuple[Float64, Float64]:
    """The range of each group's class; 0 to 1 where few kernels of the class are known."""
    count = int(owner.max()) + 1
    ranges = quantiles_of(exponent[fits], owner[fits], count, (0.1, 0.9))
    known = np.bincount(owner[fits], minlength=count) >= _MIN_LIKE
    return (
        np.where(known, ranges[:, 0], 0.0)[owner],
        np.where(known, ranges[:, 1], 1.0)[owner],
    )


class _Means(Rows, frozen=True):
    """Means of like kernels: their group, logarithms of clock and duration, share overlapped."""

    group: Index
    clock: Float64
    duration: Float64
    overlapped: Float64

    @classmethod
    def of_trace(cls, table: KernelTable, group: Index, clock: Float64, used: Mask) -> _Means:
        """By GPU and iteration, separately for work with and without communication next to it."""
        rows = np.flatnonzero(used)
        share = np.minimum(table.overlap_ns[rows] / table.duration_ns[rows], 1.0)
        _, iteration = ranked(table.iteration[rows])
        _, gpu = ranked(table.gpu[rows])
        place = (gpu * (int(iteration.max()) + 1) + iteration) * 2 + (share > _BESIDE)
        return cls._of(group[rows], place, clock[rows], table.duration_ns[rows], share)

    @classmethod
    def of_counter_run(
        cls, table: KernelTable, group: Index, used: Mask, hardware: Hardware
    ) -> _Means:
        """By GPU: kernels ran one by one."""
        took, cycles = table.measured[col.COUNTER_DURATION], table.measured[col.CYCLES]
        rows = np.flatnonzero(used & (took >= _MIN_DURATION_NS) & (cycles > 0))
        clock = cycles[rows] / hardware.xccs / (took[rows] * hardware.clock_mhz * 1e-3)
        return cls._of(group[rows], table.gpu[rows], clock, took[rows], np.zeros(len(rows)))

    @classmethod
    def _of(
        cls,
        group: Index,
        place: Codes,
        clock: Float64,
        duration: Numbers,
        overlapped: Float64,
    ) -> _Means:
        width = int(place.max(initial=0)) + 1
        cells, owner = ranked(group.astype(np.int64) * width + place)
        size = np.bincount(owner, minlength=len(cells))
        clock, duration, overlapped = (
            np.bincount(owner, values, len(cells)) / size
            for values in (np.log(clock), np.log(duration), overlapped)
        )
        return cls(cells // width, clock, duration, overlapped)

    def exponents(self, count: int) -> tuple[Float64, Float64, Mask]:
        """The exponent of each group, its standard error, and whether it is a possible one."""

        def sums(one: Float64, other: Float64) -> Float64:
            return np.bincount(self.group, one * other, count).astype(np.float64)

        size = np.bincount(self.group, minlength=count)
        clock, duration, overlap = (
            values - (np.bincount(self.group, values, count) / np.maximum(size, 1))[self.group]
            for values in (self.clock, self.duration, self.overlapped)
        )
        spread = sums(overlap, overlap)
        varies = spread > _MIN_OVERLAP_VARIANCE * size
        with np.errstate(invalid="ignore", divide="ignore"):
            clock, duration = (
                values - np.where(varies, sums(values, overlap) / spread, 0.0)[self.group] * overlap
                for values in (clock, duration)
            )
            contrast = sums(clock, clock)
            slope = np.where(contrast > 0, sums(clock, duration) / contrast, 0.0)
            rest = duration - slope[self.group] * clock
            free = size - 2 - varies
            scatter = np.sqrt(sums(rest, rest) / np.maximum(free, 1))
            error = np.maximum(scatter, _SMALLEST_SPREAD) / np.sqrt(contrast)
        exponent = -slope
        possible = (free > 0) & (contrast > 0)
        possible &= (exponent > -3 * error) & (exponent < 1 + 3 * error)
        return exponent, np.where(contrast > 0, error, np.inf), possible


def breakdown_columns(table: KernelTable, hardware: Hardware | None) -> dict[str, Float64]:
    """The parts of `BREAKDOWN` for each activity, in whole ns; NaN for unknown parts.

    And `AT_PEAK`, the theoretical part of the whole duration, not of the charged time.

    All but frequency are at the nominal clock: theoretical = model FLOPs / peak of the matrix
    units for the type of their operands; recompute = the same of recomputation, in a run that
    recomputes, whose theoretical part is 0; extra instructions = executed operations, each at
    the peak of its type, - both; MFMA loss = time of the serialised run - executed;
    contention = time in the trace - time of the serialised run; frequency = duration - time in
    the trace. Work without matrix instructions is `vector`.

    By how much a kernel's time changes with the clock is known within bounds (`clock_response`).
    Each part is the smallest within them; the rest is `unseparated`: frequency or not.
    Without the counters of its type the time is `unmodelled`, except for the theoretical part and
    frequency; so is the time of executed operations with unknown model FLOPs, type or peak.
    Without a clock contention and frequency are `unseparated`. The known parts add up to
    compute_ns + overlap_ns of the activity: they are scaled from its duration to the charged time
    and rounded, and the largest takes the remainder of the rounding.
    """
    names: tuple[str, ...] = (*col.BREAKDOWN, col.AT_PEAK)
    if has_again := bool((again := table.is_recomputed).any()):
        names = (*names, col.RECOMPUTED, col.RECOMPUTED_FLOPS, col.RECOMPUTED_AT_PEAK)
    columns = {name: in_common(len(table)) for name in names}
    response = clock_response(table, hardware) if hardware else None

    def fill(begin: int) -> None:
        rows = slice(begin, begin + _CHUNK)
        found = _of_rows(table.take(rows), hardware, response)
        if has_again:
            found |= _of_recomputation(table.take(rows), again[rows], found)
        for name, values in found.items():
            columns[name][rows] = values

    # In chunks: the intermediate arrays are many times larger than the result.
    for _ in in_processes(fill, range(0, len(table), _CHUNK), len(table)):
        pass
    return columns


def _of_recomputation(
    table: KernelTable, again: Mask, found: dict[str, Float64]
) -> dict[str, Float64]:
    """The parts with the FLOPs of recomputation as a part of their own: they are no model's."""

    def recomputed(values: Float64) -> Float64:
        return np.where(again, values, np.where(np.isfinite(values), 0.0, np.nan))

    theory = found["theoretical_ns"]
    flops = table.measured.get(col.FLOPS, np.full(len(table), np.nan))
    return {
        "theoretical_ns": np.where(again & np.isfinite(theory), 0.0, theory),
        col.RECOMPUTED: recomputed(theory),
        col.RECOMPUTED_FLOPS: recomputed(flops),
        col.RECOMPUTED_AT_PEAK: recomputed(found[col.AT_PEAK]),
    }


def _of_rows(
    table: KernelTable, hardware: Hardware | None, response: ClockResponse | None
) -> dict[str, Float64]:
    charged = (table.compute_ns + table.overlap_ns).astype(np.float64)
    duration = table.duration_ns.astype(np.float64)
    unknown = np.full(len(table), np.nan)
    if hardware is None or response is None:
        parts = dict.fromkeys(col.BREAKDOWN, unknown)
        parts["unmodelled_ns"] = duration
        return {**_whole(parts, charged, duration), col.AT_PEAK: unknown}
    ideal = hardware.at_peak_ns(
        table.measured.get(col.FLOPS, unknown), table.measured.get(col.FLOPS_TYPE, unknown)
    )
    low = high = np.ones(len(table))
    if col.known_of("gfx_mhz") in table.measured or col.COUNTER_DURATION in table.measured:
        low, high = response.of(table)
    parts = _parts(table, hardware, ideal, low)
    if (high > low).any():
        others = _parts(table, hardware, ideal, high)
        parts = {name: _nearest_zero(values, others[name]) for name, values in parts.items()}
        explained = sum(np.nan_to_num(values) for values in parts.values())
        # Missing without both counters and a clock.
        parts["unseparated_ns"] = parts["unseparated_ns"] + duration - explained
    return {**_whole(parts, charged, duration), col.AT_PEAK: ideal}


def _parts(
    table: KernelTable, hardware: Hardware, ideal: Float64, exponent: Float64
) -> dict[str, Float64]:
    """The parts of each duration if its time goes with 1 / clock ** exponent; they add up to it."""
    duration = table.duration_ns.astype(np.float64)
    unknown = np.full(len(table), np.nan)

    def column(name: str) -> Float64:
        return table.measured.get(name, unknown)

    executed = _executed_ns(table, hardware)
    with np.errstate(invalid="ignore", divide="ignore"):
        clock = (
            column(col.integral_of("gfx_mhz"))
            / column(col.known_of("gfx_mhz"))
            / hardware.clock_mhz
        )
        in_trace = duration * clock**exponent
        alone = column(col.CYCLES) / hardware.xccs / (hardware.clock_mhz * 1e-3)
        took = column(col.COUNTER_DURATION)
        # Cycles at the nominal clock, or the measured time, or between.
        alone = np.where(took > 0, alone**exponent * took ** (1 - exponent), alone)
    counted = np.isfinite(executed) & np.isfinite(alone)
    timed = np.isfinite(clock)
    matrix = counted & (executed > 0)
    shaped = np.isfinite(ideal) & ~(counted & ~matrix)
    # Without a clock, contention and frequency can't be separated.
    spent = np.where(timed, in_trace, duration)
    without_shapes = np.where(matrix & ~shaped, executed, 0.0)
    return {
        "theoretical_ns": np.where(shaped, ideal, np.where(counted, 0.0, np.nan)),
        "extra_inst_ns": _where(counted, matrix & shaped, executed - ideal),
        "mfma_loss_ns": _where(counted, matrix, alone - executed),
        "vector_ns": _where(counted, counted & ~matrix, alone),
        "contention_ns": np.where(counted & timed, in_trace - alone, np.nan),
        "frequency_ns": np.where(timed, duration - in_trace, np.nan),
        "unseparated_ns": np.where(timed, 0.0, np.where(counted, duration - alone, np.nan)),
        "unmodelled_ns": np.where(counted, without_shapes, spent - np.where(shaped, ideal, 0.0)),
    }


def _nearest_zero(one: Float64, other: Float64) -> Float64:
    with np.errstate(invalid="ignore"):
        smallest = np.where(np.abs(one) <= np.abs(other), one, other)
        return np.where(one * other < 0, 0.0, smallest)


def _executed_ns(table: KernelTable, hardware: Hardware) -> Float64:
    """Time of the counted matrix operations, each at the peak of its type.

    NaN where the counter of the work's type is missing (for work of unknown type: any of the run's
    counters), and where operations of a type without a peak ran.
    """
    unknown = np.full(len(table), np.nan)
    element = table.measured.get(col.FLOPS_TYPE, unknown)
    is_typed = element > ElementType.UNKNOWN
    counted = [name for name in col.MATRIX_COUNTERS.values() if name in table.measured]
    total, known = np.zeros(len(table)), is_typed | bool(counted)
    for type_, counter in col.MATRIX_COUNTERS.items():
        needed = element == type_
        if counter not in counted:
            known &= ~needed
            continue
        counts = table.measured[counter]
        taken = counts * col.OPS_PER_COUNT / hardware.flop_per_ns(type_)
        total += np.where(counts > 0, taken, 0.0)
        known &= np.isfinite(counts) | ~(needed | ~is_typed)
    return np.where(known, total, np.nan)


def _where(known: Mask, has: Mask, values: Float64) -> Float64:
    """Values where they exist, 0 where they are known not to, else NaN."""
    return np.where(has, values, np.where(known, 0.0, np.nan))


def _whole(parts: dict[str, Float64], charged: Float64, duration: Float64) -> dict[str, Float64]:
    table = np.stack(list(parts.values()))
    is_known = np.isfinite(table)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(duration > 0, charged / duration, 0.0)
    whole = np.rint(np.where(is_known, table, 0.0) * scale)
    largest = np.argmax(np.abs(whole), axis=0)
    largest = np.where(whole.any(axis=0), largest, len(parts) - 1)
    whole[largest, np.arange(whole.shape[1])] += charged - whole.sum(axis=0)
    whole[~is_known] = np.nan
    return dict(zip(parts, whole, strict=True))
