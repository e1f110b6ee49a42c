"""Metrics of the size of launches: workgroups, their work-items, and how they fill the GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from chopper_core.metrics.metric import Reduces, Scope, Values, absent, metric, time_weighted
from chopper_core.model.column_names import BLOCK, GRID
from chopper_core.model.hardware import Hardware
from chopper_core.model.table import Selection
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

_NO_GRID = "no kernel of the row has the size of its launch in the trace"
_launch = partial(metric, reduces=Reduces.MEAN, missing=_NO_GRID)
_on_gpu = partial(
    _launch,
    source="trace and hardware.toml",
    missing=f"{_NO_GRID}, or the GPU is not in hardware.toml",
)
Figure = Callable[[Float64, int], Float64]
"""From workgroups and the number of compute units."""
_WAVE = 64
"""Work-items of a wave on AMD's data-center GPUs (gfx9); of all others, 32."""


@_launch(GRID, Unit.NONE, "grid")
def grid(scope: Scope) -> Values:
    """Workgroups (blocks) of a launch, mean over durations."""
    return time_weighted(scope, GRID)


@_launch(BLOCK, Unit.NONE, "block")
def block(scope: Scope) -> Values:
    """Work-items (threads) of a workgroup, mean over durations."""
    return time_weighted(scope, BLOCK)


@_launch("registers", Unit.NONE, "regs", missing="the trace doesn't record a kernel's registers")
def registers(scope: Scope) -> Values:
    """Registers of a work-item, mean over durations."""
    return time_weighted(scope, "registers")


@_launch(
    "lds_bytes", Unit.BYTES, "LDS", missing="the trace doesn't record a kernel's shared memory"
)
def local_memory(scope: Scope) -> Values:
    """Local data share (shared memory) of a workgroup, mean over durations."""
    return time_weighted(scope, "lds_bytes")


@_on_gpu("waves_per_cu", Unit.NONE, "waves/CU")
def waves(scope: Scope) -> Values:
    """Waves (warps) of a launch over the compute units of the GPU, mean over durations."""
    chip, table = scope.hardware, scope.nodes.table
    if chip is None or BLOCK not in table.measured:
        return absent(len(scope.nodes))

    def of(grids: Float64, rows: Selection) -> Float64:
        width = _WAVE if chip.arch.startswith("gfx9") else _WAVE // 2
        found: Float64 = grids * np.ceil(table.measured[BLOCK][rows] / width) / chip.compute_units
        return found

    return time_weighted(scope, GRID, figure=of)


@_on_gpu("unused_cus_pct", Unit.PERCENT, "unused CUs %")
def unused(scope: Scope) -> Values:
    """Compute units for which a launch has no workgroup, in % of all; mean over durations. Above 0:
    the kernel is too small for the GPU."""
    return _of_units(scope, lambda grids, units: 100.0 * (1 - np.minimum(grids, units) / units))


@_on_gpu("tail_pct", Unit.PERCENT, "tail %")
def tail(scope: Scope) -> Values:
    """Places that stay empty if each compute unit runs one workgroup at a time, in % of those of
    all rounds: 100 x (1 - grid / (rounds x units)); mean over durations. Kernels of which several
    workgroups share a unit have shorter tails."""
    return _of_units(
        scope, lambda grids, units: 100.0 * (1 - grids / (np.ceil(grids / units) * units))
    )


def _of_units(scope: Scope, figure: Figure) -> Values:
    chip: Hardware | None = scope.hardware
    if chip is None:
        return absent(len(scope.nodes))
    return time_weighted(scope, GRID, figure=lambda grids, _: figure(grids, chip.compute_units))
