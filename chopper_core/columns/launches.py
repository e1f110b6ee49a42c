"""Metrics of the size of launches: workgroups, their work-items, and how they fill the GPU."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from chopper_core.columns.metric import (
    Reduces,
    Scope,
    Values,
    absent,
    declare,
    metric,
    time_weighted,
)
from chopper_core.model.column_names import BLOCK, GRID, LDS, REGISTERS
from chopper_core.model.hardware import Hardware
from chopper_core.model.table import KernelTable, Selection
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

_NO_GRID = "no kernel of the row has the size of its launch in the trace"
_SOURCE = "trace and hardware.toml"
_NO_RESOURCES = "neither trace nor rocprofv3 has the kernel's registers and LDS"
declare(
    f"""
    {GRID} | | grid | time-weighted mean
        Workgroups (blocks) of a launch, mean over durations.
    {BLOCK} | | block | time-weighted mean
        Work-items (threads) of a workgroup, mean over durations.
    {REGISTERS} | | regs | time-weighted mean
        Registers of a work-item, accumulators too, mean over durations.
        missing: {_NO_RESOURCES}
    {LDS} | B | LDS | time-weighted mean
        Local data share (shared memory) of a workgroup, mean over durations.
        missing: {_NO_RESOURCES}
""",
    lambda name, scope: time_weighted(scope, name),
    missing=_NO_GRID,
)


@metric(
    "fitting_occupancy_pct", Unit.PERCENT, "fitting occ. %",
    reduces=Reduces.MEAN, source=_SOURCE, missing=_NO_RESOURCES,
)  # fmt: skip
def fitting_occupancy(scope: Scope) -> Values:
    """Waves that fit on a compute unit at once, by the kernel's registers, LDS and workgroups, in %
    of the most it holds; mean over durations. What runs has at most so many."""
    chip, table = scope.hardware, scope.nodes.table
    if chip is None or not {BLOCK, REGISTERS} <= table.measured.keys():
        return absent(len(scope.nodes))

    def of(_: Float64, rows: Selection) -> Float64:
        unit = _UNITS.get(chip.arch)
        waves = waves_of(table.measured[BLOCK][rows], chip)
        fits = fitting_workgroups(table, rows, chip)
        return np.minimum(100.0 * fits * waves / (unit.waves if unit else 1), 100.0)

    return time_weighted(scope, BLOCK, figure=of)


class ComputeUnit(Struct, frozen=True):
    """What the waves of a compute unit (streaming multiprocessor) share."""

    waves: int
    workgroups: int
    lds_bytes: int
    registers: int
    """Of 32 bits and for each work-item of a wave, of all of the unit's waves."""
    granule: int
    """Registers of a work-item are allocated in multiples."""


_UNITS = {
    "gfx90a": ComputeUnit(32, 16, 64 << 10, 4 * 512, 8),
    "gfx942": ComputeUnit(32, 16, 64 << 10, 4 * 512, 8),
    "gfx950": ComputeUnit(32, 16, 160 << 10, 4 * 512, 8),
    "sm_70": ComputeUnit(64, 32, 96 << 10, 2048, 8),
    "sm_80": ComputeUnit(64, 32, 164 << 10, 2048, 8),
    "sm_90": ComputeUnit(64, 32, 228 << 10, 2048, 8),
    "sm_100": ComputeUnit(64, 32, 228 << 10, 2048, 8),
}
"""By architecture; ROCm's gpu-arch-specs and CUDA's table of compute capabilities."""


def waves_of(block: Float64, chip: Hardware) -> Float64:
    """Waves (warps) of a workgroup: of 64 work-items on AMD's data-center GPUs, else of 32."""
    waves: Float64 = np.ceil(block / (64 if chip.arch.startswith("gfx9") else 32))
    return waves


def rounds_of(grid: Float64, units: int) -> tuple[Float64, Float64]:
    """Rounds of a launch if each compute unit runs one workgroup at a time, and the part of the
    units that the last of them fills."""
    rounds = np.ceil(grid / units)
    return rounds, grid / units - rounds + 1


def fitting_workgroups(table: KernelTable, rows: Selection, chip: Hardware) -> Float64:
    """Workgroups that fit on a compute unit at once; NaN where that isn't known."""
    unit, count = _UNITS.get(chip.arch), len(table.measured[BLOCK][rows])
    unknown = np.full(count, np.nan)
    if unit is None or REGISTERS not in table.measured:
        return unknown
    registers, lds = (
        np.asarray(table.measured.get(name, np.full(len(table), np.nan))[rows])
        for name in (REGISTERS, LDS)
    )
    waves = waves_of(table.measured[BLOCK][rows], chip)
    allocated = np.ceil(np.maximum(registers, 1) / unit.granule) * unit.granule
    simds = chip.simds_per_cu
    by_registers = simds * np.floor(unit.registers / simds / allocated)
    fits = np.floor(np.minimum(by_registers, unit.waves) / waves)
    with np.errstate(divide="ignore"):
        fits = np.minimum(fits, np.floor(unit.lds_bytes / np.nan_to_num(lds)))
    # A wave alone is no workgroup that others wait for: as many as waves.
    most: Float64 = np.where(waves > 1, unit.workgroups, max(unit.workgroups, unit.waves))
    found: Float64 = np.minimum(fits, most)
    return found


def _filling(name: str, scope: Scope) -> Values:
    chip, table = scope.hardware, scope.nodes.table
    if chip is None or not {GRID, BLOCK} <= table.measured.keys():
        return absent(len(scope.nodes))

    def of(grid: Float64, rows: Selection) -> Float64:
        rounds, last = rounds_of(grid, chip.compute_units)
        if name == "waves_per_cu":
            return grid * waves_of(table.measured[BLOCK][rows], chip) / chip.compute_units
        if name == "unused_cus_pct":
            return 100 * np.where(rounds > 1, 0.0, 1 - last)
        return 100 * (1 - last) / rounds

    return time_weighted(scope, GRID, figure=of)


declare(
    """
    waves_per_cu | | waves/CU | time-weighted mean
        Waves (warps) of a launch over the compute units of the GPU, mean over durations.
    unused_cus_pct | % | unused CUs % | time-weighted mean
        Compute units for which a launch has no workgroup, in % of all; mean over durations. Above
        0: the kernel is too small for the GPU.
    tail_pct | % | tail % | time-weighted mean
        Places that stay empty if each compute unit runs one workgroup at a time, in % of those of
        all rounds: 100 x (1 - grid / (rounds x units)); mean over durations. Kernels of which
        several workgroups share a unit have shorter tails.
""",
    _filling,
    source=_SOURCE,
    missing=f"{_NO_GRID}, or the GPU is not in hardware.toml",
)
