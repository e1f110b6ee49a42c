"""Formulas of what waves and workgroups wait for, and of the command processor."""

from __future__ import annotations

from typing import Final

from chopper_core.metrics.counters_formula import (
    CYCLES,
    Formula,
    per_cu_cycle,
    per_engine_cycle,
)
from chopper_core.model.units import Unit


def _cycles_of_a_wave(name: str, title: str, what: str, part: str) -> Formula:
    return Formula(
        name,
        Unit.CYCLES,
        title,
        f"Cycles that a wave {what}, on average: 4 x {part} / SQ_WAVES.",
        "rocprof-compute gfx942 panel 0700",
        f"4 {part}",
        "SQ_WAVES",
    )


def _blocked(name: str, title: str, what: str, part: str) -> Formula:
    return Formula(
        name,
        Unit.PERCENT,
        title,
        f"{what}: 100 x {part} / (GRBM_SPI_BUSY per XCC x shader engines).",
        "rocprof-compute gfx942 panel 0600",
        part,
        "GRBM_SPI_BUSY",
        per_engine_cycle(100.0),
    )


def _full(name: str, title: str, what: str, part: str, factor: float = 100.0) -> Formula:
    return Formula(
        name,
        Unit.PERCENT,
        title,
        f"Part of the CUs' cycles in which workgroups waited as {what}: {factor:g} x {part} / "
        "(GPU cycles x CUs).",
        "rocprof-compute gfx942 panel 0600",
        part,
        CYCLES,
        per_cu_cycle(factor),
    )


def _command_processor(unit: str, what: str) -> Formula:
    busy, idle = f"{unit}_{unit}_STAT_BUSY", f"{unit}_{unit}_STAT_IDLE"
    return Formula(
        f"{unit.lower()}_util_pct",
        Unit.PERCENT,
        f"{unit} %",
        f"Part of the time in which {what} was busy: 100 x {busy} / ({busy} + {idle}).",
        "rocprof-compute gfx942 panel 0500",
        busy,
        f"{busy} + {idle}",
        100.0,
    )


WAITS: Final = (
    _cycles_of_a_wave("wave_cycles", "wave cyc.", "lived", "SQ_WAVE_CYCLES"),
    _cycles_of_a_wave("wave_active_cycles", "wave act.", "worked", "SQ_ACTIVE_INST_ANY"),
    _cycles_of_a_wave("wave_wait_cycles", "wave wait", "waited for anything", "SQ_WAIT_ANY"),
    _cycles_of_a_wave(
        "wave_issue_wait_cycles", "issue wait", "waited to issue", "SQ_WAIT_INST_ANY"
    ),
    _blocked(
        "not_scheduled_pct",
        "not sched.",
        "Part of the cycles in which the workgroup manager could not place a workgroup",
        "SPI_RA_REQ_NO_ALLOC_CSN",
    ),
    _blocked(
        "pipe_stall_pct",
        "pipe stall",
        "Part of the cycles in which a scheduler pipe stalled for resources",
        "SPI_RA_RES_STALL_CSN",
    ),
    _full("vgpr_full_pct", "VGPR full", "VGPRs were too few", "SPI_RA_VGPR_SIMD_FULL_CSN"),
    _full("lds_full_pct", "LDS full", "LDS was too small", "SPI_RA_LDS_CU_FULL_CSN", 400.0),
    _full("slots_full_pct", "slots full", "wave slots were taken", "SPI_RA_WAVE_SIMD_FULL_CSN"),
    _command_processor("CPC", "the command processor's packet processor"),
    _command_processor("CPF", "the command processor's fetcher"),
)
