"""How kernels follow the clock, found in runs made with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from support import Row, table_of

from chopper_core.align.breakdown import breakdown_columns, clock_response
from chopper_core.model.column_names import BREAKDOWN, COUNTER_DURATION, CYCLES, MATRIX_OPS
from chopper_core.model.hardware import hardware_of
from chopper_core.model.table import KernelTable, Kind
from chopper_core.util.arrays import Float64

HARDWARE = hardware_of("MI300X")
assert HARDWARE is not None
EXPONENTS = {"Cijk_Ailk_MT256": 1.0, "layer_norm_kernel": 0.0, "vectorized_elementwise": 0.4}
ALONE_NS = 100_000.0
"""At the nominal clock."""
SLOWDOWN = 0.3
"""Beside communication."""
COUNTED_AT = 0.95
"""The clock of the counter run."""


class Made:
    """A run of several GPUs and iterations, and the true parts of each activity's time."""

    def __init__(self, clocks: list[float], *, counted: int, beside: float, noise: float = 2e-3):
        random = np.random.default_rng(7)
        rows, exponents, shares, relative = [], [], [], []
        for gpu, clock in enumerate(clocks):
            now = 0
            for iteration in range(6):
                for name, exponent in EXPONENTS.items():
                    for place in range(8):
                        # Half of them alone; a collective in the first part of the others.
                        share = beside if place % 2 else 0.0
                        took = ALONE_NS * clock**-exponent * (1 + SLOWDOWN * share)
                        took = round(took * (1 + noise * random.standard_normal()))
                        rows.append(Row(now, took, gpu=gpu, kernel=name, iteration=iteration))
                        exponents.append(exponent)
                        shares.append(share)
                        relative.append(clock)
                        if share:
                            rows.append(Row(now, round(took * share), Kind.COMM, 5, gpu, iteration))
                            exponents.append(np.nan)
                            shares.append(np.nan)
                            relative.append(np.nan)
                        now += took + 100
        self.table = table_of(rows)
        self.exponent, self.share, clock = map(np.array, (exponents, shares, relative))
        duration = self.table.duration_ns
        mhz = clock * HARDWARE.clock_mhz
        is_counted = (self.table.gpu < counted) & (self.table.kind == Kind.COMPUTE)
        took = np.where(is_counted, ALONE_NS * COUNTED_AT**-self.exponent, np.nan)
        cycles = took * COUNTED_AT * HARDWARE.clock_mhz * 1e-3 * HARDWARE.xccs
        measured = {"gfx_mhz integral": duration * mhz, "gfx_mhz known": duration * (clock > 0)}
        if counted:
            measured |= {COUNTER_DURATION: took, CYCLES: cycles, MATRIX_OPS: took * 0}
        self.table = self.table.with_measured(measured)
        in_trace = duration * clock**self.exponent
        self.frequency = duration - in_trace
        self.contention = in_trace - ALONE_NS

    def sums(self, values: Float64, of: int | None = None) -> dict[str, float]:
        """Sums by kernel, on one GPU or all."""
        own = np.isfinite(self.exponent) & ((self.table.gpu == of) | (of is None))
        return {
            name: float(np.nansum(values[own & (self.table.kernel == code)]))
            for code, name in enumerate(self.table.names)
            if name in EXPONENTS
        }


def columns_of(table: KernelTable) -> dict[str, Float64]:
    columns = breakdown_columns(table, HARDWARE)
    charged = table.compute_ns + table.overlap_ns
    assert (sum(np.nan_to_num(columns[name]) for name in BREAKDOWN) == charged).all()
    return columns


@pytest.mark.parametrize("beside", [0.0, 0.8])
def test_kernels_of_gpus_at_several_clocks_show_how_they_follow_them(beside: float) -> None:
    made = Made([0.74, 0.78, 0.8, 0.82], counted=2, beside=beside)
    low, high = clock_response(made.table, HARDWARE).of(made.table)
    for name, exponent in EXPONENTS.items():
        own = made.table.kernel == made.table.names.index(name)
        assert low[own][0] == pytest.approx(exponent, abs=0.08) == high[own][0]
    columns = columns_of(made.table)
    for gpu in (0, 1):
        took = made.sums(made.table.duration_ns.astype(float), gpu)
        for part, true in (
            ("frequency_ns", made.frequency),
            ("contention_ns", made.contention),
        ):
            found = made.sums(columns[part], gpu)
            for name, value in made.sums(true, gpu).items():
                assert found[name] == pytest.approx(value, abs=0.03 * took[name]), (name, part)
        assert not any(made.sums(columns["unseparated_ns"], gpu).values())


def test_the_counter_run_s_clock_is_another_one() -> None:
    """All GPUs at one clock; the counter run shows how the kernels follow it."""
    made = Made([0.8, 0.8], counted=1, beside=0.0)
    low, high = clock_response(made.table, HARDWARE).of(made.table)
    for name, exponent in EXPONENTS.items():
        own = made.table.kernel == made.table.names.index(name)
        assert low[own][0] == pytest.approx(exponent, abs=0.1) == high[own][0]


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("beside", [0.0, 0.8])
def test_at_one_clock_only_bounds_are_known(counted: int, beside: float) -> None:
    """Where each kernel runs at one clock only, or the clock and communication change together."""
    made = Made([0.8], counted=counted, beside=beside)
    without = made.table.without_measured(COUNTER_DURATION)
    columns = columns_of(without)
    frequency, either = made.sums(columns["frequency_ns"]), made.sums(columns["unseparated_ns"])
    took = made.sums(made.table.duration_ns.astype(float))
    for name, value in made.sums(made.frequency).items():
        assert either[name] > 0.15 * took[name] or (counted and EXPONENTS[name] < 1)
        # Durations vary by 0.2 %, also from the trace to the counter run.
        assert frequency[name] <= value + 1
        assert value <= frequency[name] + either[name] + 0.002 * took[name]
    if not counted:
        assert not any(frequency.values())


def test_slow_clocks_with_slow_kernels_of_another_cause_tell_nothing() -> None:
    """A GPU with a higher clock whose kernels take longer: the clock isn't why."""
    made = Made([0.8, 0.9], counted=0, beside=0.0)
    slow = np.where(made.table.gpu == 1, 1.4, 1.0)
    longer = made.table.duration_ns * slow
    table = table_of([
        Row(int(start * 2), int(took), gpu=int(gpu), kernel=made.table.names[code], iteration=i)
        for start, took, gpu, code, i in zip(
            made.table.start_ns, longer, made.table.gpu, made.table.kernel, made.table.iteration,
            strict=True,
        )
    ]).with_measured({
        name: values * (slow if "integral" in name or "known" in name else 1)
        for name, values in made.table.measured.items()
    })  # fmt: skip
    low, high = clock_response(table, HARDWARE).of(table)
    assert (low == 0).all() and (high == 1).all()


def test_a_run_without_telemetry_has_no_response() -> None:
    table = table_of([Row(0, 10_000)])
    assert not len(clock_response(table, HARDWARE).keys)
    assert [each.tolist() for each in clock_response(table, HARDWARE).of(table)] == [[0.0], [1.0]]
