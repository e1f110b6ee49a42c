"""Metrics of the LDS, the caches, and the way to memory over the fabric."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.metrics.counters import (
    CYCLES,
    TIME,
    formula,
    per_cu_cycle,
)
from chopper_core.model.units import Unit

_TO_L2_WITHOUT_READS: Final = (
    "TCP_TCC_WRITE_REQ_sum",
    "TCP_TCC_ATOMIC_WITH_RET_REQ_sum",
    "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum",
)
_FABRIC_READ: Final = (
    "128 TCC_BUBBLE_sum + 64 TCC_EA0_RDREQ_sum - 64 TCC_BUBBLE_sum - 64 TCC_EA0_RDREQ_32B_sum "
    "+ 32 TCC_EA0_RDREQ_32B_sum"
)
_FABRIC_WRITE: Final = "64 TCC_EA0_WRREQ_64B_sum + 32 TCC_EA0_WRREQ_sum - 32 TCC_EA0_WRREQ_64B_sum"
_SQC_HITS: Final = "rocprof-compute gfx942 panels 1300 and 1400"


def _scalar_hits(name: str, title: str, what: str, cache: str) -> None:
    hits, misses = f"SQC_{cache}_HITS", f"SQC_{cache}_MISSES"
    formula(
        name,
        Unit.PERCENT,
        title,
        f"Share of the requests to the {what} that hit: 100 x {hits} / (hits + misses + misses of "
        "lines already on their way).",
        _SQC_HITS,
        hits,
        f"{hits} + {misses} + {misses}_DUPLICATE",
        100.0,
    )


def _fabric(way: str, short: str, part: str, how: str) -> None:
    """Register the bytes, the bandwidth and its share of the peak for one direction."""
    source = "rocprof-compute gfx942 panel 0200"
    formula(
        f"fabric_{way}_bytes",
        Unit.BYTES,
        f"fab.{short} B",
        f"Bytes of the L2 caches' {way}s over the fabric: {how}.",
        f"{source}; rocprofiler-sdk {'FETCH' if way == 'read' else 'WRITE'}_SIZE",
        part,
    )
    formula(
        f"fabric_{way}_gbps",
        Unit.GBPS,
        f"fab.{short}GB/s",
        f"Bandwidth of the L2 caches' {way}s over the fabric, to HBM and elsewhere: "
        f"fabric_{way}_bytes / duration.",
        source,
        part,
        TIME,
    )
    formula(
        f"fabric_{way}_peak_pct",
        Unit.PERCENT,
        f"fab.{short} pk%",
        f"fabric_{way}_gbps in % of the memory's published bandwidth.",
        source,
        part,
        TIME,
        lambda chip: 100.0 / chip.memory_gbps,
    )


def _latency(way: str, short: str, request: str) -> None:
    formula(
        f"fabric_{way}_latency_cycles",
        Unit.CYCLES,
        f"fab.{short} lat",
        f"Cycles of the L2 caches' {way}s over the fabric, mean: {request}_LEVEL_sum / "
        f"{request}_sum.",
        "rocprof-compute gfx942 panel 0200",
        f"{request}_LEVEL_sum",
        f"{request}_sum",
    )


formula(
    "lds_gbps",
    Unit.GBPS,
    "LDS GB/s",
    "Bandwidth of the LDS, if every access is full: 128 x (SQ_LDS_IDX_ACTIVE - "
    "SQ_LDS_BANK_CONFLICT) / duration.",
    "rocprof-compute gfx942 panel 0200",
    "128 SQ_LDS_IDX_ACTIVE - 128 SQ_LDS_BANK_CONFLICT",
    TIME,
)
formula(
    "lds_util_pct",
    Unit.PERCENT,
    "LDS %",
    "Share of the cycles in which the LDS worked: 100 x SQ_LDS_IDX_ACTIVE / (GPU cycles x CUs).",
    "rocprof-compute gfx942 panel 1200",
    "SQ_LDS_IDX_ACTIVE",
    CYCLES,
    per_cu_cycle(100.0),
)
formula(
    "lds_conflict_pct",
    Unit.PERCENT,
    "LDS conf.%",
    "Conflict cycles per access in % of the worst case, 32: 100 / 32 x SQ_LDS_BANK_CONFLICT "
    "/ (SQ_LDS_IDX_ACTIVE - SQ_LDS_BANK_CONFLICT).",
    "rocprof-compute gfx942 panel 1200",
    "3.125 SQ_LDS_BANK_CONFLICT",
    "SQ_LDS_IDX_ACTIVE - SQ_LDS_BANK_CONFLICT",
)
formula(
    "lds_conflict_stall_pct",
    Unit.PERCENT,
    "LDS stall%",
    "Share of the cycles in which the LDS was stalled by bank conflicts: 100 x "
    "SQ_LDS_BANK_CONFLICT / (GPU cycles x CUs).",
    "rocprofiler-sdk LDSBankConflict",
    "SQ_LDS_BANK_CONFLICT",
    CYCLES,
    per_cu_cycle(100.0),
)
formula(
    "lds_latency_cycles",
    Unit.CYCLES,
    "LDS lat.",
    "Mean cycles of an LDS instruction: SQ_INST_LEVEL_LDS accumulated over the cycles / "
    "SQ_INSTS_LDS.",
    "rocprof-compute gfx942 panel 1200; rocprofiler-sdk LdsLatency",
    "SQ_INST_LEVEL_LDS_ACCUM",
    "SQ_INSTS_LDS",
)

formula(
    "vmem_latency_cycles",
    Unit.CYCLES,
    "VMEM lat.",
    "Mean cycles of a vector memory instruction: SQ_INST_LEVEL_VMEM accumulated over "
    "the cycles / SQ_INSTS_VMEM.",
    "rocprof-compute gfx942 panel 1100",
    "SQ_INST_LEVEL_VMEM_ACCUM",
    "SQ_INSTS_VMEM",
)
formula(
    "ta_busy_pct",
    Unit.PERCENT,
    "TA %",
    "Share of the cycles in which the address units were busy: 100 x TA_TA_BUSY_sum / (GPU "
    "cycles x CUs).",
    "rocprof-compute gfx942 panel 1500",
    "TA_TA_BUSY_sum",
    CYCLES,
    per_cu_cycle(100.0),
)
formula(
    "vl1d_hit_pct",
    Unit.PERCENT,
    "vL1D hit%",
    "Share of the vector L1 caches' accesses that needed no request to the L2 cache: 100 - 100 "
    "x requests to L2 / TCP_TOTAL_CACHE_ACCESSES_sum.",
    "rocprof-compute gfx942 panel 0200",
    " - ".join(("TCP_TOTAL_CACHE_ACCESSES_sum", "TCP_TCC_READ_REQ_sum", *_TO_L2_WITHOUT_READS)),
    "TCP_TOTAL_CACHE_ACCESSES_sum",
    100.0,
)
formula(
    "vl1d_gbps",
    Unit.GBPS,
    "vL1D GB/s",
    "Bandwidth of the vector L1 caches, if every access is a full line: "
    "TCP_TOTAL_CACHE_ACCESSES_sum x 128 B (gfx90a: 64 B) / duration.",
    "rocprof-compute gfx942 panel 0200",
    "TCP_TOTAL_CACHE_ACCESSES_sum",
    TIME,
    lambda chip: chip.architecture.l1_line_bytes,
)
formula(
    "coalescing_pct",
    Unit.PERCENT,
    "coalesc.%",
    "Coalescing of the threads' addresses, in % of the best case: 100 x 64 x "
    "TA_TOTAL_WAVEFRONTS_sum / (4 x TCP_TOTAL_ACCESSES_sum).",
    "rocprof-compute gfx942 panel 1600",
    "64 TA_TOTAL_WAVEFRONTS_sum",
    "4 TCP_TOTAL_ACCESSES_sum",
    100.0,
)
formula(
    "l1_l2_gbps",
    Unit.GBPS,
    "L1-L2 GB/s",
    "Bandwidth from the vector L1 caches to L2: (reads x 128 B (gfx90a: 64 B) + (writes + "
    "atomics) x 64 B) / duration.",
    "rocprof-compute gfx942 panel 1600",
    lambda chip: {
        "TCP_TCC_READ_REQ_sum": chip.architecture.l1_line_bytes,
        **dict.fromkeys(_TO_L2_WITHOUT_READS, 64.0),
    },
    TIME,
)
formula(
    "vl1d_data_stall_pct",
    Unit.PERCENT,
    "vL1D stall",
    "Share of the vector L1 caches' cycles in which they waited for data from L2: 100 x "
    "TCP_PENDING_STALL_CYCLES_sum / TCP_GATE_EN1_sum.",
    "rocprof-compute gfx942 panel 1600",
    "TCP_PENDING_STALL_CYCLES_sum",
    "TCP_GATE_EN1_sum",
    100.0,
)
_scalar_hits("sl1d_hit_pct", "sL1D hit%", "scalar L1 data caches", "DCACHE")
formula(
    "sl1d_l2_peak_pct",
    Unit.PERCENT,
    "sL1D-L2 %",
    "Requests from the scalar L1 data caches to L2 over the duration, in % of two per cycle and "
    "cache at the published clock.",
    "rocprof-compute gfx942 panel 1400",
    "SQC_TC_DATA_READ_REQ + SQC_TC_DATA_WRITE_REQ + SQC_TC_DATA_ATOMIC_REQ",
    TIME,
    lambda chip: 100.0 / (2 * chip.clock_mhz * 1e-3 * chip.scalar_caches),
)
_scalar_hits("l1i_hit_pct", "L1I hit%", "L1 instruction caches", "ICACHE")

formula(
    "l2_hit_pct",
    Unit.PERCENT,
    "L2 hit%",
    "Share of the L2 caches' requests that hit: 100 x TCC_HIT_sum / (TCC_HIT_sum + TCC_MISS_sum).",
    "rocprof-compute gfx942 panel 0200",
    "TCC_HIT_sum",
    "TCC_HIT_sum + TCC_MISS_sum",
    100.0,
)
formula(
    "l2_gbps",
    Unit.GBPS,
    "L2 GB/s",
    "Bandwidth of the L2 caches, if every request is a full line: 128 x TCC_REQ_sum / duration.",
    "rocprof-compute gfx942 panel 0200",
    "128 TCC_REQ_sum",
    TIME,
)
formula(
    "l2_util_pct",
    Unit.PERCENT,
    "L2 %",
    "Share of the cycles in which the L2 caches' channels were busy: 100 x TCC_BUSY_sum / (GPU "
    "cycles x channels).",
    "rocprof-compute gfx942 panel 1700",
    "TCC_BUSY_sum",
    CYCLES,
    lambda chip: 100.0 * chip.xccs / chip.l2_channels,
)

_fabric(
    "read",
    "rd",
    _FABRIC_READ,
    "128 x TCC_BUBBLE_sum + 64 x (reads - TCC_BUBBLE_sum - reads of 32 B) + 32 x reads of "
    "32 B; gfx90a has none of 128 B",
)
_fabric(
    "write",
    "wr",
    _FABRIC_WRITE,
    "64 x writes of 64 B + 32 x the other writes and atomics",
)
_latency("read", "rd", "TCC_EA0_RDREQ")
_latency("write", "wr", "TCC_EA0_WRREQ")
formula(
    "hbm_read_pct",
    Unit.PERCENT,
    "HBM rd%",
    "Share of the reads over the fabric that went to the GPU's own memory: 100 x "
    "TCC_EA0_RDREQ_DRAM_sum / TCC_EA0_RDREQ_sum.",
    "rocprof-compute gfx942 panel 1700",
    "TCC_EA0_RDREQ_DRAM_sum",
    "TCC_EA0_RDREQ_sum",
    100.0,
)
formula(
    "remote_read_pct",
    Unit.PERCENT,
    "remote rd%",
    "Share of the reads over the fabric that went elsewhere: 100 x (TCC_EA0_RDREQ_sum - "
    "TCC_EA0_RDREQ_DRAM_sum) / TCC_EA0_RDREQ_sum, not below 0.",
    "rocprof-compute gfx942 panel 1700",
    "TCC_EA0_RDREQ_sum - TCC_EA0_RDREQ_DRAM_sum",
    "TCC_EA0_RDREQ_sum",
    100.0,
    lambda share, _: np.maximum(share, 0.0),
)
