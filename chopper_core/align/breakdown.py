"""Breakdown of compute time into losses, from theoretical to measured time."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.align.clock_response import ClockResponse, clock_response
from chopper_core.model.column_names import (
    AT_PEAK,
    BREAKDOWN,
    COUNTER_DURATION,
    CYCLES,
    FLOPS,
    FLOPS_TYPE,
    MATRIX_COUNTERS,
    OPS_PER_COUNT,
    integral_of,
    known_of,
)
from chopper_core.model.hardware import ElementType, Hardware
from chopper_core.model.table import KernelTable
from chopper_core.util.arrays import Float64, Mask

_CHUNK: Final = 1 << 18


def breakdown_columns(table: KernelTable, hardware: Hardware | None) -> dict[str, Float64]:
    """The parts of `BREAKDOWN` for each activity, in whole ns; NaN for unknown parts.

    And `AT_PEAK`, the theoretical part of the whole duration, not of the charged time.

    All but frequency are at the nominal clock: theoretical = model FLOPs / peak of the matrix
    units for the type of their operands; extra instructions = executed operations, each at
    the peak of its type, - theoretical; MFMA loss = time of the serialised run - executed;
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
    columns = {name: np.empty(len(table)) for name in (*BREAKDOWN, AT_PEAK)}
    response = clock_response(table, hardware) if hardware else None
    # In chunks: the intermediate arrays are many times larger than the result.
    for begin in range(0, len(table), _CHUNK):
        rows = slice(begin, begin + _CHUNK)
        for name, values in _of_rows(table.take(rows), hardware, response).items():
            columns[name][rows] = values
    return columns


def _of_rows(
    table: KernelTable, hardware: Hardware | None, response: ClockResponse | None
) -> dict[str, Float64]:
    charged = (table.compute_ns + table.overlap_ns).astype(np.float64)
    duration = table.duration_ns.astype(np.float64)
    unknown = np.full(len(table), np.nan)
    if hardware is None or response is None:
        parts = dict.fromkeys(BREAKDOWN, unknown)
        parts["unmodelled_ns"] = duration
        return {**_whole(parts, charged, duration), AT_PEAK: unknown}
    ideal = hardware.at_peak_ns(
        table.measured.get(FLOPS, unknown), table.measured.get(FLOPS_TYPE, unknown)
    )
    low = high = np.ones(len(table))
    if known_of("gfx_mhz") in table.measured or COUNTER_DURATION in table.measured:
        low, high = response.of(table)
    parts = _parts(table, hardware, ideal, low)
    if (high > low).any():
        others = _parts(table, hardware, ideal, high)
        parts = {name: _nearest_zero(values, others[name]) for name, values in parts.items()}
        said = sum(np.nan_to_num(values) for values in parts.values())
        # Missing where neither counters nor a clock are there.
        parts["unseparated_ns"] = parts["unseparated_ns"] + duration - said
    return {**_whole(parts, charged, duration), AT_PEAK: ideal}


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
        clock = column(integral_of("gfx_mhz")) / column(known_of("gfx_mhz")) / hardware.clock_mhz
        in_trace = duration * clock**exponent
        alone = column(CYCLES) / hardware.xccs / (hardware.clock_mhz * 1e-3)
        took = column(COUNTER_DURATION)
        # Cycles at the nominal clock, or the time that went by, or between.
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
    """The smallest value between two; 0 where their signs differ."""
    with np.errstate(invalid="ignore"):
        smallest = np.where(np.abs(one) <= np.abs(other), one, other)
        return np.where(one * other < 0, 0.0, smallest)


def _executed_ns(table: KernelTable, hardware: Hardware) -> Float64:
    """Time of the counted matrix operations, each at the peak of its type.

    NaN where the counter of the work's type is missing (for work of unknown type: any of the run's
    counters), and where operations of a type without a peak ran.
    """
    unknown = np.full(len(table), np.nan)
    element = table.measured.get(FLOPS_TYPE, unknown)
    is_typed = element > ElementType.UNKNOWN
    total, known = np.zeros(len(table)), is_typed.copy()
    counted = [name for name in MATRIX_COUNTERS.values() if name in table.measured]
    known[~is_typed] = len(counted) > 0
    for type_, counter in MATRIX_COUNTERS.items():
        counts = table.measured.get(counter, unknown)
        says = np.isfinite(counts)
        needed = element == type_
        if counter in counted:
            needed = needed | ~is_typed
            taken = counts * OPS_PER_COUNT / hardware.flop_per_ns(type_)
            total += np.where(says & (counts > 0), taken, 0.0)
        known &= says | ~needed
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
