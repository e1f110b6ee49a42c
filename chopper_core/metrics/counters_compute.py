"""Metrics of the clock, of waves and what they wait for, and of the units that compute."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics.counters import (
    CYCLES,
    MOPS,
    TIME,
    WAVES_PER_SIMD,
    Chip,
    Weights,
    formula,
    per_cu_cycle,
    per_cycle,
    per_engine_cycle,
)
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64

_MFMA_TYPES: Final = ("BF16", "F16", "F8", "F32", "F64", "I8")
_TRAINING_TYPES: Final = ("BF16", "F16", "F8")
_FLOP_PER_MOP: Final = 512
_CLOCK_LIMIT: Final = 1.1
_VALU_FLOP: Final = " + ".join(
    f"64 SQ_INSTS_VALU_ADD_{dtype} + 64 SQ_INSTS_VALU_MUL_{dtype} + "
    f"64 SQ_INSTS_VALU_TRANS_{dtype} + 128 SQ_INSTS_VALU_FMA_{dtype}"
    for dtype in ("F16", "F32", "F64")
)


def _bracketed(terms: str) -> str:
    return f"({terms})" if " " in terms else terms


def _active_cus(slots: Float64, chip: Chip) -> Float64:
    """AMD's count of active compute units from 4 x the mean number of busy ones."""
    waves_per_cu = WAVES_PER_SIMD * chip.simds_per_cu
    busy = np.rint(slots)
    active = busy / waves_per_cu * 8 + np.minimum(busy % waves_per_cu, 8)
    return np.floor(np.minimum(active, chip.compute_units))


def _mfma_flop(chip: Chip) -> Weights:
    return {f"{MOPS}{dtype}": _FLOP_PER_MOP for dtype in chip.float_types()}


def _mfma_peak_clocks(chip: Chip) -> Weights:
    """The cycles of the counted operations at the peak of their types."""
    return {
        f"{MOPS}{dtype}": _FLOP_PER_MOP / chip.flop_per_clk(dtype) for dtype in chip.float_types()
    }


def _mfma_rate(dtype: str) -> None:
    operation = "OP" if dtype == "I8" else "FLOP"
    formula(
        f"mfma_{dtype.lower()}_t{operation.lower()}s",
        Unit.TOPS if dtype == "I8" else Unit.TFLOPS,
        f"MFMA {dtype}",
        f"Matrix operations in {dtype} per time: {_FLOP_PER_MOP} x {MOPS}{dtype} / duration.",
        "rocprof-compute gfx942 panel 0200",
        f"{_FLOP_PER_MOP} {MOPS}{dtype}",
        TIME,
        1e-3,
    )


def _mfma_peak(dtype: str) -> None:
    formula(
        f"mfma_{dtype.lower()}_peak_pct",
        Unit.PERCENT,
        f"{dtype} peak%",
        f"Matrix operations in {dtype} per time, in % of the published peak of the type.",
        "rocprof-compute gfx942 panel 0200",
        f"{_FLOP_PER_MOP} {MOPS}{dtype}",
        TIME,
        lambda chip: 100.0 / (chip.flop_per_clk(dtype) * chip.clock_mhz * 1e-3),
    )


def _possible_clock(mhz: Float64, chip: Chip) -> Float64:
    """The clocks that are possible for the GPU; NaN elsewhere."""
    return np.where(mhz > _CLOCK_LIMIT * chip.clock_mhz, np.nan, mhz)


def _utilization(name: str, title: str, of: str, part: str) -> None:
    formula(
        name,
        Unit.PERCENT,
        title,
        f"Share of the CUs' cycles in which {of}: 100 x {_bracketed(part)} / (GPU cycles x CUs).",
        "rocprof-compute gfx942 panel 0200",
        part,
        CYCLES,
        per_cu_cycle(100.0),
    )


def _share_of_instructions(name: str, title: str, what: str, part: str) -> None:
    formula(
        name,
        Unit.PERCENT,
        title,
        f"{what} in % of all instructions: 100 x {_bracketed(part)} / SQ_INSTS.",
        "rocprof-compute gfx942 panel 1000",
        part,
        "SQ_INSTS",
        100.0,
    )


def _cycles_of_a_wave(name: str, title: str, what: str, part: str) -> None:
    formula(
        name,
        Unit.CYCLES,
        title,
        f"Cycles that a wave {what}, on average: 4 x {part} / SQ_WAVES.",
        "rocprof-compute gfx942 panel 0700",
        f"4 {part}",
        "SQ_WAVES",
    )


def _blocked(name: str, title: str, what: str, part: str) -> None:
    formula(
        name,
        Unit.PERCENT,
        title,
        f"{what}: 100 x {part} / (GRBM_SPI_BUSY per XCC x shader engines).",
        "rocprof-compute gfx942 panel 0600",
        part,
        "GRBM_SPI_BUSY",
        per_engine_cycle(100.0),
    )


def _full(name: str, title: str, what: str, part: str, factor: float = 100.0) -> None:
    formula(
        name,
        Unit.PERCENT,
        title,
        f"Share of the CUs' cycles in which workgroups waited because {what}: {factor:g} x {part} "
        f"/ "
        "(GPU cycles x CUs).",
        "rocprof-compute gfx942 panel 0600",
        part,
        CYCLES,
        per_cu_cycle(factor),
    )


def _command_processor(unit: str, what: str) -> None:
    busy, idle = f"{unit}_{unit}_STAT_BUSY", f"{unit}_{unit}_STAT_IDLE"
    formula(
        f"{unit.lower()}_util_pct",
        Unit.PERCENT,
        f"{unit} %",
        f"Share of the time in which {what} was busy: 100 x {busy} / ({busy} + {idle}).",
        "rocprof-compute gfx942 panel 0500",
        busy,
        f"{busy} + {idle}",
        100.0,
    )


formula(
    "counter_mhz",
    Unit.MHZ,
    "count.MHz",
    "Shader clock in the counter run: GPU cycles (GRBM_GUI_ACTIVE / XCCs) / "
    "duration; missing above 1.1 x the GPU's highest clock: in kernels of a few µs "
    "the counted cycles outlast the kernel.",
    "rocprof-compute gfx942 GRBM_GUI_ACTIVE_PER_XCD",
    CYCLES,
    TIME,
    lambda chip: 1e3 / chip.xccs,
    _possible_clock,
)
formula(
    "gpu_util_pct",
    Unit.PERCENT,
    "GPU %",
    "Share of the cycles in which the GPU was active: 100 x GRBM_GUI_ACTIVE / GRBM_COUNT.",
    "rocprof-compute gfx942 panel 0600; rocprofiler-sdk GPU_UTIL",
    CYCLES,
    "GRBM_COUNT",
    100.0,
)
_utilization("cu_util_pct", "CU %", "the CU had waves", "SQ_BUSY_CU_CYCLES")
formula(
    "active_cus",
    Unit.CUS,
    "act. CUs",
    "Active CUs by AMD's rule: n/32 x 8 + min(n mod 32, 8), at most all of them, with n = "
    "4 x SQ_BUSY_CU_CYCLES / GPU cycles, rounded.",
    "rocprof-compute gfx942 panel 0200",
    "4 SQ_BUSY_CU_CYCLES",
    CYCLES,
    per_cycle(1.0),
    _active_cus,
)
formula(
    "waves",
    Unit.NONE,
    "waves",
    "Number of waves launched: SQ_WAVES.",
    "rocprof-compute gfx942 panel 0700",
    "SQ_WAVES",
)
formula(
    "resident_waves",
    Unit.WAVES,
    "res. waves",
    "Mean number of waves on the GPU at a time: SQ_LEVEL_WAVES accumulated over the cycles / GPU "
    "cycles.",
    "rocprof-compute gfx942 panel 0200",
    "SQ_LEVEL_WAVES_ACCUM",
    CYCLES,
    per_cycle(1.0),
)
formula(
    "occupancy_pct",
    Unit.PERCENT,
    "occup. %",
    "Waves on the GPU in % of its wave slots: 400 x SQ_WAVE_CYCLES / (GPU cycles x CUs x 8 "
    "waves per SIMD).",
    "rocprofiler-sdk OccupancyPercent",
    "SQ_WAVE_CYCLES",
    CYCLES,
    lambda chip: 400.0 * chip.xccs / (chip.compute_units * chip.simds_per_cu * WAVES_PER_SIMD),
)

formula(
    "mfma_util_pct",
    Unit.PERCENT,
    "MFMA %",
    "Share of the cycles in which the matrix units were busy: 100 x SQ_VALU_MFMA_BUSY_CYCLES / "
    "(GPU cycles x CUs x SIMDs).",
    "rocprof-compute gfx942 panel 0200; rocprofiler-sdk MfmaUtil",
    "SQ_VALU_MFMA_BUSY_CYCLES",
    CYCLES,
    lambda chip: 100.0 * chip.xccs / (chip.compute_units * chip.simds_per_cu),
)
formula(
    "mfma_flop",
    Unit.FLOP,
    "MFMA FLOP",
    f"Floating-point operations of the matrix units: {_FLOP_PER_MOP} x the sum of {MOPS}… over "
    "the architecture's floating-point types.",
    "rocprof-compute gfx942 panel 1100",
    _mfma_flop,
)
formula(
    "mfma_tflops",
    Unit.TFLOPS,
    "MFMA TF/s",
    "Floating-point operations of the matrix units, of all types, per second: mfma_flop / "
    "duration.",
    "rocprof-compute gfx942 panel 1100",
    _mfma_flop,
    TIME,
    1e-3,
)
formula(
    "mfma_peak_pct",
    Unit.PERCENT,
    "MFMA peak%",
    "Time of the matrix operations at the published peaks of their types, in % of the duration.",
    "rocprof-compute gfx942 panel 0200, types added up",
    _mfma_peak_clocks,
    TIME,
    lambda chip: 100.0 * 1e3 / chip.clock_mhz,
)
formula(
    "mfma_efficiency_pct",
    Unit.PERCENT,
    "MFMA eff.%",
    "Cycles of the matrix operations at the peaks of their types, in % of the GPU cycles: the "
    "share of the peak at the actual clock.",
    "UnaryLab/chopper MFMA Flop Cycles, for every type",
    _mfma_peak_clocks,
    CYCLES,
    per_cycle(100.0),
)
formula(
    "mfma_inst_cycles",
    Unit.CYCLES,
    "MFMA cyc.",
    "Mean cycles of a matrix instruction: SQ_VALU_MFMA_BUSY_CYCLES / SQ_INSTS_MFMA.",
    "rocprof-compute gfx942 panel 1100",
    "SQ_VALU_MFMA_BUSY_CYCLES",
    "SQ_INSTS_MFMA",
)
for _dtype in _MFMA_TYPES:
    _mfma_rate(_dtype)
for _dtype in _TRAINING_TYPES:
    _mfma_peak(_dtype)

formula(
    "valu_tflops",
    Unit.TFLOPS,
    "VALU TF/s",
    "Floating-point operations of the vector units per time: 64 x (adds + multiplies + "
    "transcendentals + 2 x FMAs) in F16, F32 and F64 / duration.",
    "rocprof-compute gfx942 panel 0200",
    _VALU_FLOP,
    TIME,
    1e-3,
)
_utilization("valu_util_pct", "VALU %", "the vector unit worked", "SQ_ACTIVE_INST_VALU")
_utilization("salu_util_pct", "SALU %", "the scalar unit worked", "SQ_ACTIVE_INST_SCA")
_utilization(
    "vmem_util_pct",
    "VMEM %",
    "vector memory instructions were issued",
    "SQ_ACTIVE_INST_FLAT + SQ_ACTIVE_INST_VMEM",
)
_utilization("branch_util_pct", "branch %", "the branch unit worked", "SQ_ACTIVE_INST_MISC")
formula(
    "valu_threads",
    Unit.THREADS,
    "VALU thr.",
    "Mean number of active threads of a vector instruction, of 64: SQ_THREAD_CYCLES_VALU / "
    "SQ_ACTIVE_INST_VALU.",
    "rocprof-compute gfx942 panel 0200; rocprofiler-sdk VALUUtilization",
    "SQ_THREAD_CYCLES_VALU",
    "SQ_ACTIVE_INST_VALU",
)
formula(
    "ipc",
    Unit.NONE,
    "IPC",
    "Instructions per cycle of a busy CU: SQ_INSTS / SQ_BUSY_CU_CYCLES.",
    "rocprof-compute gfx942 panel 0200",
    "SQ_INSTS",
    "SQ_BUSY_CU_CYCLES",
)
formula(
    "ipc_issued",
    Unit.NONE,
    "IPC issued",
    "Instructions per cycle in which any was issued: (VALU + VMEM + SALU + SMEM + branches + "
    "messages + skipped ones + LDS) / SQ_ACTIVE_INST_ANY.",
    "rocprof-compute gfx942 panel 1100",
    "SQ_INSTS_VALU + SQ_INSTS_VMEM + SQ_INSTS_SALU + SQ_INSTS_SMEM + SQ_INSTS_BRANCH + "
    "SQ_INSTS_SENDMSG + SQ_INSTS_VSKIPPED + SQ_INSTS_LDS",
    "SQ_ACTIVE_INST_ANY",
)
_share_of_instructions(
    "mix_valu_pct",
    "mix VALU%",
    "Vector instructions other than matrix ones",
    "SQ_INSTS_VALU - SQ_INSTS_MFMA",
)
_share_of_instructions("mix_mfma_pct", "mix MFMA%", "Matrix instructions", "SQ_INSTS_MFMA")
_share_of_instructions("mix_vmem_pct", "mix VMEM%", "Vector memory instructions", "SQ_INSTS_VMEM")
_share_of_instructions("mix_lds_pct", "mix LDS%", "LDS instructions", "SQ_INSTS_LDS")
_share_of_instructions("mix_salu_pct", "mix SALU%", "Scalar instructions", "SQ_INSTS_SALU")

_cycles_of_a_wave("wave_cycles", "wave cyc.", "lived", "SQ_WAVE_CYCLES")
_cycles_of_a_wave("wave_active_cycles", "wave act.", "worked", "SQ_ACTIVE_INST_ANY")
_cycles_of_a_wave("wave_wait_cycles", "wave wait", "waited for anything", "SQ_WAIT_ANY")
_cycles_of_a_wave("wave_issue_wait_cycles", "issue wait", "waited to issue", "SQ_WAIT_INST_ANY")
_blocked(
    "not_scheduled_pct",
    "not sched.",
    "Share of the cycles in which the workgroup manager could not place a workgroup",
    "SPI_RA_REQ_NO_ALLOC_CSN",
)
_blocked(
    "pipe_stall_pct",
    "pipe stall",
    "Share of the cycles in which a scheduler pipe stalled for resources",
    "SPI_RA_RES_STALL_CSN",
)
_full("vgpr_full_pct", "VGPR full", "VGPRs were too few", "SPI_RA_VGPR_SIMD_FULL_CSN")
_full("lds_full_pct", "LDS full", "LDS was too small", "SPI_RA_LDS_CU_FULL_CSN", 400.0)
_full("slots_full_pct", "slots full", "wave slots were taken", "SPI_RA_WAVE_SIMD_FULL_CSN")
_command_processor("CPC", "the command processor's packet processor")
_command_processor("CPF", "the command processor's fetcher")
