"""The metrics of hardware counters, each worked out by hand from AMD's definitions.

The plain numbers in the expectations are MI300X's: 304 CUs of 4 SIMDs, 8 XCCs of 4 shader engines
and 16 L2 channels, 160 scalar caches, 2100 MHz, 5300 GB/s, and per cycle and CU 2048 FLOP in BF16
and F16, 4096 in F8, 256 in F32 and F64.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from math import nan

import numpy as np
import pytest
from msgspec.structs import replace
from support import Row, table_of

import chopper_core.columns.metric as registry
from chopper_core.columns import METRICS, Scope, Values
from chopper_core.model.groups import Groups
from chopper_core.model.hardware import Hardware
from chopper_core.model.tree import Tree
from chopper_core.model.units import Unit
from tests.columns.test_unit_figures import FORMULAS
from tests.realdata.conftest import FOLDER as REALDATA
from tests.wording import Wording

MI300X = Hardware(
    name="MI300X",
    match=("MI300X",),
    arch="gfx942",
    compute_units=304,
    simds_per_cu=4,
    xccs=8,
    clock_mhz=2100,
    flop_per_clk_cu={
        "fp64": 256,
        "fp32": 256,
        "fp16": 2048,
        "bf16": 2048,
        "fp8": 4096,
        "int8": 4096,
    },
    memory_gbps=5300,
    tdp_w=750,
)
MI250X_GCD = replace(
    MI300X,
    name="MI250X-GCD",
    match=("MI250X",),
    arch="gfx90a",
    compute_units=110,
    xccs=1,
    clock_mhz=1700,
    flop_per_clk_cu={"fp64": 256, "fp32": 256, "fp16": 1024, "bf16": 1024, "int8": 1024},
    memory_gbps=1640,
)
MI355X = replace(
    MI300X,
    name="MI355X",
    match=("MI355X",),
    arch="gfx950",
    compute_units=256,
    clock_mhz=2400,
    flop_per_clk_cu={
        "fp64": 128,
        "fp32": 256,
        "fp16": 4096,
        "bf16": 4096,
        "fp8": 8192,
        "fp4": 16384,
    },
    memory_gbps=8000,
)

BY_NAME = {name: metric for name, metric in METRICS.items() if metric.counters}
TIME = "counter_duration_ns"
MOPS = "SQ_INSTS_VALU_MFMA_MOPS_"
VALU = "SQ_INSTS_VALU_"


Counters = Mapping[str, Sequence[float]]


def groups_of(counters: Counters) -> Groups:
    """One node of activities that count these."""
    activities = len(next(iter(counters.values())))
    table = table_of([Row(100 * number, 50) for number in range(activities)])
    measured = {name: np.array(values, np.float64) for name, values in counters.items()}
    return Tree(table.with_measured(measured)).node(())


def values_of(name: str, nodes: Groups, hardware: Hardware | None = MI300X) -> Values:
    return BY_NAME[name].compute(Scope(nodes, nodes, 0, hardware))


def value_of(
    name: str, counters: Counters, hardware: Hardware | None = MI300X
) -> float | int | None:
    return values_of(name, groups_of(counters), hardware).at(0)


def with_half_known(counters: Counters) -> Counters:
    """The counters with two activities more: one that lacks the last, one that lacks all."""
    *most, last = counters
    return {name: [*counters[name], 1e9, nan] for name in most} | {
        last: [*counters[last], nan, nan]
    }


CYCLES: Counters = {"GRBM_GUI_ACTIVE": [8_000, 16_000]}
SPAN: Counters = {TIME: [500, 700]}
PRODUCTS: Counters = {
    f"{MOPS}{dtype}": counts
    for dtype, counts in {
        "F8": [1_000, 2_000],
        "F16": [3_000, 0],
        "BF16": [500_000, 100_000],
        "F32": [10, 20],
        "F64": [5, 5],
    }.items()
}
READS: Counters = {
    "TCC_BUBBLE_sum": [300, 100],
    "TCC_EA0_RDREQ_32B_sum": [200, 100],
    "TCC_EA0_RDREQ_sum": [1_000, 500],
}
WRITES: Counters = {"TCC_EA0_WRREQ_64B_sum": [600, 200], "TCC_EA0_WRREQ_sum": [700, 400]}

EXPECTED: dict[str, tuple[Counters, float]] = {
    # The whole GPU: cycles are GRBM_GUI_ACTIVE / 8.
    "counter_mhz": ({"GRBM_GUI_ACTIVE": [160_000, 40_000], TIME: [10_000, 4_000]}, 25_000 / 14.0),
    "gpu_util_pct": (
        {"GRBM_GUI_ACTIVE": [6_000, 3_000], "GRBM_COUNT": [8_000, 4_000]},
        100 * 9_000 / 12_000,
    ),
    "cu_util_pct": (
        {"SQ_BUSY_CU_CYCLES": [200_000, 100_000], **CYCLES},
        100 * 300_000 / (3_000 * 304),
    ),
    # n = 4 x 300,000 / 3,000 = 400: 400 / 32 x 8 = 100, and 400 mod 32 = 16 makes 8 more.
    "active_cus": ({"SQ_BUSY_CU_CYCLES": [200_000, 100_000], **CYCLES}, 108),
    "waves": ({"SQ_WAVES": [16_384, 4_096]}, 20_480),
    "resident_waves": (
        {"SQ_LEVEL_WAVES_ACCUM": [5e6, 1e6], "GRBM_GUI_ACTIVE": [16_000, 8_000]},
        6e6 / 3_000,
    ),
    "occupancy_pct": (
        {"SQ_WAVE_CYCLES": [1_000_000, 500_000], "GRBM_GUI_ACTIVE": [16_000, 8_000]},
        400 * 1_500_000 / 3_000 / 304 / 32,
    ),
    # Matrix units.
    "mfma_util_pct": (
        {"SQ_VALU_MFMA_BUSY_CYCLES": [900_000, 300_000], "GRBM_GUI_ACTIVE": [16_000, 8_000]},
        100 * 1_200_000 / (3_000 * 304 * 4),
    ),
    "mfma_flop": (
        {
            f"{MOPS}F8": [1, 2],
            f"{MOPS}F16": [10, 20],
            f"{MOPS}BF16": [100, 200],
            f"{MOPS}F32": [1_000, 2_000],
            f"{MOPS}F64": [10_000, 20_000],
        },
        512 * 33_333,
    ),
    "mfma_tflops": (
        {**PRODUCTS, TIME: [1_000, 3_000]},
        512 * (3_000 + 3_000 + 600_000 + 30 + 10) / 4_000e-9 / 1e12,
    ),
    "mfma_peak_pct": (
        {**PRODUCTS, TIME: [1_000, 3_000]},
        100
        * 512
        * (3_000 / 4_096 + 3_000 / 2_048 + 600_000 / 2_048 + 30 / 256 + 10 / 256)
        / (304 * 2.1 * 4_000),
    ),
    "mfma_efficiency_pct": (
        {**PRODUCTS, **CYCLES},
        100
        * 512
        * (3_000 / 4_096 + 3_000 / 2_048 + 600_000 / 2_048 + 30 / 256 + 10 / 256)
        / (304 * 3_000),
    ),
    "mfma_inst_cycles": (
        {"SQ_VALU_MFMA_BUSY_CYCLES": [3_200, 400], "SQ_INSTS_MFMA": [100, 50]},
        3_600 / 150,
    ),
    "mfma_bf16_tflops": (
        {f"{MOPS}BF16": [600_000, 200_000], **SPAN},
        512 * 800_000 / 1_200e-9 / 1e12,
    ),
    "mfma_f16_tflops": (
        {f"{MOPS}F16": [500_000, 200_000], **SPAN},
        512 * 700_000 / 1_200e-9 / 1e12,
    ),
    "mfma_f8_tflops": ({f"{MOPS}F8": [400_000, 200_000], **SPAN}, 512 * 600_000 / 1_200e-9 / 1e12),
    "mfma_f32_tflops": (
        {f"{MOPS}F32": [300_000, 200_000], **SPAN},
        512 * 500_000 / 1_200e-9 / 1e12,
    ),
    "mfma_f64_tflops": (
        {f"{MOPS}F64": [200_000, 200_000], **SPAN},
        512 * 400_000 / 1_200e-9 / 1e12,
    ),
    "mfma_i8_tops": ({f"{MOPS}I8": [100_000, 200_000], **SPAN}, 512 * 300_000 / 1_200e-9 / 1e12),
    # The peaks: 304 x 2048 x 2.1 GHz = 1307.4 TFLOP/s, and twice that in F8.
    "mfma_bf16_peak_pct": (
        {f"{MOPS}BF16": [600_000, 200_000], **SPAN},
        100 * (512 * 800_000 / 1_200e-9) / 1307.4432e12,
    ),
    "mfma_f16_peak_pct": (
        {f"{MOPS}F16": [500_000, 200_000], **SPAN},
        100 * (512 * 700_000 / 1_200e-9) / 1307.4432e12,
    ),
    "mfma_f8_peak_pct": (
        {f"{MOPS}F8": [500_000, 200_000], **SPAN},
        100 * (512 * 700_000 / 1_200e-9) / 2614.8864e12,
    ),
    # Instructions.
    "valu_tflops": (
        {
            f"{VALU}ADD_F16": [1_000, 0],
            f"{VALU}MUL_F16": [2_000, 0],
            f"{VALU}TRANS_F16": [3_000, 0],
            f"{VALU}FMA_F16": [4_000, 0],
            f"{VALU}ADD_F32": [0, 5_000],
            f"{VALU}MUL_F32": [0, 6_000],
            f"{VALU}TRANS_F32": [0, 7_000],
            f"{VALU}FMA_F32": [0, 8_000],
            f"{VALU}ADD_F64": [900, 0],
            f"{VALU}MUL_F64": [800, 0],
            f"{VALU}TRANS_F64": [700, 0],
            f"{VALU}FMA_F64": [600, 0],
            TIME: [500, 1_500],
        },
        64 * (6_000 + 2 * 4_000 + 18_000 + 2 * 8_000 + 2_400 + 2 * 600) / 2_000e-9 / 1e12,
    ),
    "valu_util_pct": (
        {"SQ_ACTIVE_INST_VALU": [98_304, 1_696], **CYCLES},
        100 * 100_000 / (3_000 * 304),
    ),
    "salu_util_pct": (
        {"SQ_ACTIVE_INST_SCA": [50_000, 1_000], **CYCLES},
        100 * 51_000 / (3_000 * 304),
    ),
    "vmem_util_pct": (
        {"SQ_ACTIVE_INST_FLAT": [30_000, 1_000], "SQ_ACTIVE_INST_VMEM": [20_000, 4_000], **CYCLES},
        100 * 55_000 / (3_000 * 304),
    ),
    "branch_util_pct": (
        {"SQ_ACTIVE_INST_MISC": [7_000, 2_000], **CYCLES},
        100 * 9_000 / (3_000 * 304),
    ),
    "valu_threads": (
        {"SQ_THREAD_CYCLES_VALU": [6_400, 320], "SQ_ACTIVE_INST_VALU": [100, 20]},
        6_720 / 120,
    ),
    "ipc": ({"SQ_INSTS": [327_680, 20_320], "SQ_BUSY_CU_CYCLES": [400_000, 100_000]}, 0.696),
    "ipc_issued": (
        {
            "SQ_INSTS_VALU": [1, 100],
            "SQ_INSTS_VMEM": [2, 100],
            "SQ_INSTS_SALU": [4, 100],
            "SQ_INSTS_SMEM": [8, 100],
            "SQ_INSTS_BRANCH": [16, 100],
            "SQ_INSTS_SENDMSG": [32, 100],
            "SQ_INSTS_VSKIPPED": [64, 100],
            "SQ_INSTS_LDS": [128, 100],
            "SQ_ACTIVE_INST_ANY": [300, 900],
        },
        1_055 / 1_200,
    ),
    "mix_valu_pct": (
        {"SQ_INSTS_VALU": [600, 100], "SQ_INSTS_MFMA": [250, 0], "SQ_INSTS": [1_000, 500]},
        100 * 450 / 1_500,
    ),
    "mix_mfma_pct": ({"SQ_INSTS_MFMA": [240, 30], "SQ_INSTS": [1_000, 500]}, 100 * 270 / 1_500),
    "mix_vmem_pct": ({"SQ_INSTS_VMEM": [120, 60], "SQ_INSTS": [1_000, 500]}, 100 * 180 / 1_500),
    "mix_lds_pct": ({"SQ_INSTS_LDS": [60, 60], "SQ_INSTS": [1_000, 500]}, 100 * 120 / 1_500),
    "mix_salu_pct": ({"SQ_INSTS_SALU": [45, 0], "SQ_INSTS": [1_000, 500]}, 100 * 45 / 1_500),
    # Waits: what waves count comes in units of 4 cycles.
    "wave_cycles": ({"SQ_WAVE_CYCLES": [9_000, 600], "SQ_WAVES": [20, 4]}, 4 * 9_600 / 24),
    "wave_active_cycles": (
        {"SQ_ACTIVE_INST_ANY": [3_000, 600], "SQ_WAVES": [20, 4]},
        4 * 3_600 / 24,
    ),
    "wave_wait_cycles": ({"SQ_WAIT_ANY": [5_000, 600], "SQ_WAVES": [20, 4]}, 4 * 5_600 / 24),
    "wave_issue_wait_cycles": (
        {"SQ_WAIT_INST_ANY": [1_000, 600], "SQ_WAVES": [20, 4]},
        4 * 1_600 / 24,
    ),
    "not_scheduled_pct": (
        {"SPI_RA_REQ_NO_ALLOC_CSN": [9_000, 1_000], "GRBM_SPI_BUSY": [8_000, 16_000]},
        100 * 10_000 / (3_000 * 32),
    ),
    "pipe_stall_pct": (
        {"SPI_RA_RES_STALL_CSN": [7_000, 1_000], "GRBM_SPI_BUSY": [8_000, 16_000]},
        100 * 8_000 / (3_000 * 32),
    ),
    "vgpr_full_pct": (
        {"SPI_RA_VGPR_SIMD_FULL_CSN": [70_000, 5_000], **CYCLES},
        100 * 75_000 / (3_000 * 304),
    ),
    "lds_full_pct": (
        {"SPI_RA_LDS_CU_FULL_CSN": [7_000, 5_000], **CYCLES},
        400 * 12_000 / (3_000 * 304),
    ),
    "slots_full_pct": (
        {"SPI_RA_WAVE_SIMD_FULL_CSN": [30_000, 5_000], **CYCLES},
        100 * 35_000 / (3_000 * 304),
    ),
    "cpc_util_pct": (
        {"CPC_CPC_STAT_BUSY": [300, 100], "CPC_CPC_STAT_IDLE": [100, 500]},
        100 * 400 / 1_000,
    ),
    "cpf_util_pct": (
        {"CPF_CPF_STAT_BUSY": [200, 100], "CPF_CPF_STAT_IDLE": [100, 600]},
        100 * 300 / 1_000,
    ),
    # LDS: 32 banks of 4 B.
    "lds_gbps": (
        {"SQ_LDS_IDX_ACTIVE": [50_000, 10_000], "SQ_LDS_BANK_CONFLICT": [8_000, 2_000], **SPAN},
        50_000 * 4 * 32 / 1_200e-9 / 1e9,
    ),
    "lds_util_pct": (
        {"SQ_LDS_IDX_ACTIVE": [50_000, 10_000], **CYCLES},
        100 * 60_000 / (3_000 * 304),
    ),
    "lds_conflict_pct": (
        {"SQ_LDS_BANK_CONFLICT": [8_000, 2_000], "SQ_LDS_IDX_ACTIVE": [50_000, 10_000]},
        10_000 * 3.125 / 50_000,
    ),
    "lds_conflict_stall_pct": (
        {"SQ_LDS_BANK_CONFLICT": [8_000, 2_000], **CYCLES},
        100 * 10_000 / 3_000 / 304,
    ),
    "lds_latency_cycles": (
        {"SQ_INST_LEVEL_LDS_ACCUM": [64_000, 8_000], "SQ_INSTS_LDS": [1_000, 500]},
        72_000 / 1_500,
    ),
    # L1 caches.
    "vmem_latency_cycles": (
        {"SQ_INST_LEVEL_VMEM_ACCUM": [640_000, 80_000], "SQ_INSTS_VMEM": [1_000, 500]},
        720_000 / 1_500,
    ),
    "ta_busy_pct": ({"TA_TA_BUSY_sum": [400_000, 50_000], **CYCLES}, 100 * 450_000 / (3_000 * 304)),
    "vl1d_hit_pct": (
        {
            "TCP_TCC_READ_REQ_sum": [100, 300],
            "TCP_TCC_WRITE_REQ_sum": [50, 10],
            "TCP_TCC_ATOMIC_WITH_RET_REQ_sum": [5, 0],
            "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": [0, 35],
            "TCP_TOTAL_CACHE_ACCESSES_sum": [1_000, 600],
        },
        100 - 100 * 500 / 1_600,
    ),
    "vl1d_gbps": (
        {"TCP_TOTAL_CACHE_ACCESSES_sum": [9_000, 1_000], **SPAN},
        10_000 * 128 / 1_200e-9 / 1e9,
    ),
    "coalescing_pct": (
        {"TA_TOTAL_WAVEFRONTS_sum": [100, 50], "TCP_TOTAL_ACCESSES_sum": [6_000, 1_500]},
        150 * 64 * 100 / (7_500 * 4),
    ),
    # A read is of 128 B, all else of 64 B.
    "l1_l2_gbps": (
        {
            "TCP_TCC_READ_REQ_sum": [6_000, 1_000],
            "TCP_TCC_WRITE_REQ_sum": [500, 100],
            "TCP_TCC_ATOMIC_WITH_RET_REQ_sum": [20, 0],
            "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": [0, 80],
            **SPAN,
        },
        (7_000 * 128 + 700 * 64) / 1_200e-9 / 1e9,
    ),
    "vl1d_data_stall_pct": (
        {"TCP_PENDING_STALL_CYCLES_sum": [400, 50], "TCP_GATE_EN1_sum": [1_000, 500]},
        100 * 450 / 1_500,
    ),
    "sl1d_hit_pct": (
        {
            "SQC_DCACHE_HITS": [900, 60],
            "SQC_DCACHE_MISSES": [40, 30],
            "SQC_DCACHE_MISSES_DUPLICATE": [60, 110],
        },
        100 * 960 / 1_200,
    ),
    # Two requests per cycle and cache, over the time.
    "sl1d_l2_peak_pct": (
        {
            "SQC_TC_DATA_READ_REQ": [3_000, 1_000],
            "SQC_TC_DATA_WRITE_REQ": [200, 0],
            "SQC_TC_DATA_ATOMIC_REQ": [0, 100],
            **SPAN,
        },
        4_300 * 100_000 / (2 * 2_100 * 160 * 1_200),
    ),
    "l1i_hit_pct": (
        {
            "SQC_ICACHE_HITS": [500, 60],
            "SQC_ICACHE_MISSES": [40, 30],
            "SQC_ICACHE_MISSES_DUPLICATE": [60, 110],
        },
        100 * 560 / 800,
    ),
    # L2 caches: 128 channels.
    "l2_hit_pct": ({"TCC_HIT_sum": [68_496, 1_504], "TCC_MISS_sum": [20_000, 10_000]}, 70.0),
    "l2_gbps": ({"TCC_REQ_sum": [9_000, 3_000], **SPAN}, 12_000 * 128 / 1_200.0),
    "l2_util_pct": ({"TCC_BUSY_sum": [100_000, 20_000], **CYCLES}, 100 * 120_000 / (128 * 3_000)),
    # Fabric: of 1,500 reads 400 are of 128 B, 300 of 32 B, the other 800 of 64 B.
    "fabric_read_bytes": (READS, 128 * 400 + 64 * 800 + 32 * 300),
    "fabric_read_gbps": ({**READS, **SPAN}, (128 * 400 + 64 * 800 + 32 * 300) / 1_200e-9 / 1e9),
    "fabric_read_peak_pct": (
        {**READS, **SPAN},
        100 * (128 * 400 + 64 * 800 + 32 * 300) / 1_200 / 5_300,
    ),
    "fabric_write_bytes": ({**WRITES}, 64 * 800 + 32 * 300),
    "fabric_write_gbps": ({**WRITES, **SPAN}, (64 * 800 + 32 * 300) / 1_200e-9 / 1e9),
    "fabric_write_peak_pct": ({**WRITES, **SPAN}, 100 * (64 * 800 + 32 * 300) / 1_200 / 5_300),
    "fabric_read_latency_cycles": (
        {"TCC_EA0_RDREQ_LEVEL_sum": [900_000, 90_000], "TCC_EA0_RDREQ_sum": [1_000, 500]},
        990_000 / 1_500,
    ),
    "fabric_write_latency_cycles": (
        {"TCC_EA0_WRREQ_LEVEL_sum": [700_000, 95_000], "TCC_EA0_WRREQ_sum": [1_000, 500]},
        795_000 / 1_500,
    ),
    "hbm_read_pct": (
        {"TCC_EA0_RDREQ_DRAM_sum": [900, 90], "TCC_EA0_RDREQ_sum": [1_000, 500]},
        100 * 990 / 1_500,
    ),
    "remote_read_pct": (
        {"TCC_EA0_RDREQ_DRAM_sum": [900, 90], "TCC_EA0_RDREQ_sum": [1_000, 500]},
        100 * 510 / 1_500,
    ),
}


def test_every_metric_is_expected() -> None:
    assert set(EXPECTED) | set(FORMULAS) == set(BY_NAME)


@pytest.mark.few(25)
@pytest.mark.parametrize("name", EXPECTED)
def test_by_hand(name: str) -> None:
    """The figure; then with rows that lack counters, of two nodes, and of nothing but zeros."""
    counters, expected = EXPECTED[name]
    close = pytest.approx(expected, rel=1e-12)
    assert value_of(name, counters) == close
    assert value_of(name, with_half_known(counters)) == close

    table = groups_of({counter: [nan, *values] for counter, values in counters.items()}).table
    nodes = Groups(table, np.arange(len(table)), np.array([0, 1]))
    values = values_of(name, nodes)
    assert values.at(0) is None and np.isnan(values.numbers[0])
    assert values.at(1) == close

    if BY_NAME[name].reduces == "ratio of sums":
        assert value_of(name, {counter: [0.0] * len(v) for counter, v in counters.items()}) is None

    found = value_of(name, counters, hardware=None)
    assert found == (close if name in NO_HARDWARE_NEEDED else None)
    needs_it = "the GPU's specification" in BY_NAME[name].missing_because
    assert needs_it == (name not in NO_HARDWARE_NEEDED)


@pytest.mark.few(25)
@pytest.mark.parametrize("name", EXPECTED)
def test_needs_are_what_is_needed(name: str) -> None:
    counters, _ = EXPECTED[name]
    assert set(BY_NAME[name].counters) == set(counters)
    for counter in counters:
        assert counter in BY_NAME[name].missing_because
        rest = {other: values for other, values in counters.items() if other != counter}
        assert value_of(name, rest or {"OTHER": [1.0]}) is None
        unknown = {**counters, counter: [nan] * len(counters[counter])}
        assert value_of(name, unknown) is None


def test_ratios_are_of_sums() -> None:
    counters = {"TCC_HIT_sum": [90.0, 0.0], "TCC_MISS_sum": [10.0, 900.0]}
    assert value_of("l2_hit_pct", counters) == pytest.approx(100 * 90 / 1_000)
    assert value_of("l2_hit_pct", counters) != pytest.approx((90 + 0) / 2)


NO_HARDWARE_NEEDED = {
    *("gpu_util_pct", "waves", "mfma_inst_cycles", "valu_tflops", "valu_threads"),
    *("mfma_bf16_tflops", "mfma_f16_tflops", "mfma_f8_tflops", "mfma_f32_tflops"),
    *("mfma_f64_tflops", "mfma_i8_tops", "ipc", "ipc_issued", "mix_valu_pct", "mix_mfma_pct"),
    *("mix_vmem_pct", "mix_lds_pct", "mix_salu_pct", "wave_cycles", "wave_active_cycles"),
    *("wave_wait_cycles", "wave_issue_wait_cycles", "cpc_util_pct", "cpf_util_pct", "lds_gbps"),
    *("lds_conflict_pct", "lds_latency_cycles", "vmem_latency_cycles", "vl1d_hit_pct"),
    *("coalescing_pct", "vl1d_data_stall_pct", "sl1d_hit_pct", "l1i_hit_pct", "l2_hit_pct"),
    *("l2_gbps", "fabric_read_bytes", "fabric_read_gbps", "fabric_write_bytes"),
    *("fabric_write_gbps", "fabric_read_latency_cycles", "fabric_write_latency_cycles"),
    *("hbm_read_pct", "remote_read_pct"),
}


def test_an_unknown_architecture_has_what_its_specification_gives() -> None:
    other = replace(MI300X, arch="gfx999")
    for name in ("mfma_util_pct", "counter_mhz", "l2_hit_pct"):
        counters, expected = EXPECTED[name]
        assert value_of(name, counters, other) == pytest.approx(expected)
    for name in ("mfma_flop", "mfma_bf16_peak_pct", "l2_util_pct", "vl1d_gbps", "l1_l2_gbps"):
        assert value_of(name, EXPECTED[name][0], other) is None


def test_cycles_are_of_one_xcc() -> None:
    counters = {"GRBM_GUI_ACTIVE": [160_000.0], TIME: [10_000.0]}
    assert value_of("counter_mhz", counters) == pytest.approx(2_000)
    assert value_of("counter_mhz", counters, replace(MI300X, xccs=16)) == pytest.approx(1_000)


def test_a_clock_that_no_gpu_has_is_missing() -> None:
    counters = {"GRBM_GUI_ACTIVE": [8 * 24_000.0], TIME: [10_000.0]}
    assert value_of("counter_mhz", counters) is None
    assert value_of("counter_mhz", counters, replace(MI300X, clock_mhz=2400)) == 2_400


def test_occupancy_of_a_full_gpu_is_100() -> None:
    cycles, waves = 1_000, 32 * 304
    full = {"GRBM_GUI_ACTIVE": [8.0 * cycles]}
    in_quads = {**full, "SQ_WAVE_CYCLES": [waves * cycles / 4]}
    assert value_of("occupancy_pct", in_quads) == pytest.approx(100)
    accumulated = {**full, "SQ_LEVEL_WAVES_ACCUM": [1.0 * waves * cycles]}
    assert value_of("resident_waves", accumulated) == pytest.approx(waves)


@pytest.mark.parametrize(
    ("name", "raw", "per"),
    [
        ("lds_latency_cycles", "SQ_INST_LEVEL_LDS", "SQ_INSTS_LDS"),
        ("vmem_latency_cycles", "SQ_INST_LEVEL_VMEM", "SQ_INSTS_VMEM"),
        ("resident_waves", "SQ_LEVEL_WAVES", "GRBM_GUI_ACTIVE"),
    ],
)
def test_levels_need_accumulation(name: str, raw: str, per: str) -> None:
    assert value_of(name, {raw: [640.0], per: [10.0]}) is None
    assert f"{raw}_ACCUM" in BY_NAME[name].missing_because


def test_vector_memory_is_without_lds() -> None:
    counters = {"SQ_INSTS_VMEM": [100.0], "SQ_INSTS_LDS": [300.0], "SQ_INSTS": [1_000.0]}
    assert value_of("mix_vmem_pct", counters) == pytest.approx(10)
    active = {"SQ_ACTIVE_INST_FLAT": [0.0], "SQ_ACTIVE_INST_VMEM": [304.0]}
    cycles = {"SQ_ACTIVE_INST_LDS": [999.0], "GRBM_GUI_ACTIVE": [80.0]}
    assert value_of("vmem_util_pct", active | cycles) == pytest.approx(10)


def test_scalar_requests_are_per_time_not_per_request() -> None:
    requests = {
        "SQC_TC_DATA_READ_REQ": [672_000.0],
        "SQC_TC_DATA_WRITE_REQ": [0.0],
        "SQC_TC_DATA_ATOMIC_REQ": [0.0],
        TIME: [1_000.0],
    }
    for all_requests in (1.0, 1e6):
        counters = {**requests, "SQC_DCACHE_REQ": [all_requests]}
        assert value_of("sl1d_l2_peak_pct", counters) == pytest.approx(100)


def test_few_waves_wait_for_slots_by_the_number_of_cus() -> None:
    counters = {"SPI_RA_WAVE_SIMD_FULL_CSN": [304_000.0], "GRBM_GUI_ACTIVE": [8_000.0]}
    assert value_of("slots_full_pct", counters) == pytest.approx(100)


@pytest.mark.parametrize(
    ("busy", "cus"),
    # Per cycle n = 4 x busy: whole eights of CUs and the rest, rounded, never above all.
    [(0.0, 0), (0.5, 2), (1.1, 5), (2.0, 10), (8.0, 8), (10.0, 18), (93.0, 101), (304.0, 304)],
)
def test_active_cus(busy: float, cus: int) -> None:
    counters = {"SQ_BUSY_CU_CYCLES": [busy * 1_000], "GRBM_GUI_ACTIVE": [8_000.0]}
    assert value_of("active_cus", counters) == cus


def test_remote_reads_are_not_below_0() -> None:
    counters = {"TCC_EA0_RDREQ_DRAM_sum": [1_010.0], "TCC_EA0_RDREQ_sum": [1_000.0]}
    assert value_of("remote_read_pct", counters) == 0
    assert value_of("hbm_read_pct", counters) == pytest.approx(101)


def test_gfx90a() -> None:
    reads = {"TCC_EA_RDREQ_sum": [1_000.0], "TCC_EA_RDREQ_32B_sum": [200.0], TIME: [500.0]}
    writes = {"TCC_EA_WRREQ_sum": [700.0], "TCC_EA_WRREQ_64B_sum": [600.0], TIME: [500.0]}
    read, written = 64 * 800 + 32 * 200, 64 * 600 + 32 * 100
    for hardware in (MI250X_GCD, None):
        assert value_of("fabric_read_bytes", reads, hardware) == read
        assert value_of("fabric_read_gbps", reads, hardware) == pytest.approx(read / 500)
        assert value_of("fabric_write_gbps", writes, hardware) == pytest.approx(written / 500)
    share = value_of("fabric_read_peak_pct", reads, MI250X_GCD)
    assert share == pytest.approx(100 * read / 500 / 1_640)
    level = {**reads, "TCC_EA_RDREQ_LEVEL_sum": [600_000.0], "TCC_EA_RDREQ_DRAM_sum": [900.0]}
    assert value_of("fabric_read_latency_cycles", level, MI250X_GCD) == pytest.approx(600)
    assert value_of("hbm_read_pct", level, MI250X_GCD) == pytest.approx(90)
    assert value_of("remote_read_pct", level, MI250X_GCD) == pytest.approx(10)

    cycles = {"GRBM_GUI_ACTIVE": [1_000.0]}
    busy = {"SQ_VALU_MFMA_BUSY_CYCLES": [220_000.0], "TCC_BUSY_sum": [16_000.0]}
    assert value_of("mfma_util_pct", cycles | busy, MI250X_GCD) == pytest.approx(50)
    assert value_of("l2_util_pct", cycles | busy, MI250X_GCD) == pytest.approx(50)
    accesses = {"TCP_TOTAL_CACHE_ACCESSES_sum": [1_000.0], TIME: [500.0]}
    assert value_of("vl1d_gbps", accesses, MI250X_GCD) == pytest.approx(64 * 1_000 / 500)
    no_f8 = {f"{MOPS}{dtype}": [10.0] for dtype in ("F16", "BF16", "F32", "F64")}
    assert value_of("mfma_flop", no_f8, MI250X_GCD) == 512 * 40
    assert value_of("mfma_f8_peak_pct", {f"{MOPS}F8": [1.0], TIME: [1.0]}, MI250X_GCD) is None
    requests = EXPECTED["l1_l2_gbps"][0]
    assert value_of("l1_l2_gbps", requests, MI250X_GCD) == pytest.approx(64 * 7_700 / 1_200)
    scalar = EXPECTED["sl1d_l2_peak_pct"][0]
    assert value_of("sl1d_l2_peak_pct", scalar, MI250X_GCD) == pytest.approx(
        4_300 * 100_000 / (2 * 1_700 * 56 * 1_200)
    )


def test_gfx950() -> None:
    types = {f"{MOPS}{dtype}": [10.0] for dtype in ("F6F4", "F8", "F16", "BF16", "F32", "F64")}
    counters = {**types, TIME: [1_000.0]}
    assert value_of("mfma_flop", counters, MI355X) == 512 * 60
    cycles = 512 * 10 * (1 / 16_384 + 1 / 8_192 + 1 / 4_096 + 1 / 4_096 + 1 / 256 + 1 / 128) / 256
    assert value_of("mfma_peak_pct", counters, MI355X) == pytest.approx(100 * cycles / 2_400)
    del types[f"{MOPS}F6F4"]
    assert value_of("mfma_flop", types, MI355X) is None


def test_mi300x_reads_of_128_bytes_are_needed() -> None:
    counters = {"TCC_EA0_RDREQ_sum": [1_000.0], "TCC_EA0_RDREQ_32B_sum": [200.0]}
    assert value_of("fabric_read_bytes", counters) is None
    assert value_of("fabric_read_bytes", {**counters, "TCC_BUBBLE_sum": [0.0]}) == 57_600
    assert value_of("fabric_read_bytes", {**counters, "TCC_BUBBLE_sum": [800.0]}) == 108_800


def test_messages(wording: Wording) -> None:
    wording(BY_NAME["l2_hit_pct"].missing_because, "TCC_HIT_sum and TCC_MISS_sum")
    assert BY_NAME["waves"].missing_because == "needs SQ_WAVES"
    wording(BY_NAME["hbm_read_pct"].missing_because, "TCC_EA_", "gfx90a")


UNIT_IN_NAME = {
    "%": "_pct",
    "GB/s": "_gbps",
    "TFLOP/s": "_tflops",
    "TOP/s": "_tops",
    "MHz": "_mhz",
    "B": "_bytes",
    "FLOP": "_flop",
    "cycles": "_cycles",
    "waves": "_waves",
    "CUs": "_cus",
    "threads": "_threads",
}


def test_names_titles_and_definitions() -> None:
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)
    for metric in METRICS.values():
        assert re.fullmatch(r"[^\n]+\.", metric.definition), metric.definition
        assert "  " not in metric.definition
    for metric in BY_NAME.values():
        assert metric.name.endswith(UNIT_IN_NAME.get(metric.unit, "")), metric.name
        assert 0 < len(metric.title) <= 10, metric.title
        assert metric.source and metric.source != "trace"


def test_counters_of_a_real_copy() -> None:
    """A copy of 2^20 doubles on MI300X, counted in 12 passes."""
    path = REALDATA / "mi300x_vcopy_long" / "pmc_perf.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    counters: dict[str, list[float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["Dispatch_ID"] == "1":
                took = float(row["End_Timestamp"]) - float(row["Start_Timestamp"])
                counters[row["Counter_Name"]] = [float(row["Counter_Value"])]
                counters[TIME] = [took]
    assert value_of("waves", counters) == 16_384
    assert value_of("fabric_write_bytes", counters) == 2**20 * 8
    assert value_of("fabric_read_bytes", counters) == pytest.approx(2**20 * 8, rel=0.01)
    assert value_of("valu_threads", counters) == 64
    occupancy = value_of("occupancy_pct", counters)
    resident = value_of("resident_waves", counters)
    assert resident is not None
    assert occupancy == pytest.approx(100 * resident / (32 * 304), rel=0.05)
    found = {name: value_of(name, counters) for name in BY_NAME}
    no_mfma, no_lds = (
        {"mfma_inst_cycles"},
        {"lds_conflict_pct", "lds_latency_cycles", "lds_clean_pct"},
    )
    too_short_for_a_clock, not_counted = (
        {"counter_mhz", "nominal_gap_pct"},
        {"flat_insts", "l2_busy_pct"},
    )
    assert {name for name, value in found.items() if value is None} == (
        no_mfma | no_lds | too_short_for_a_clock | not_counted
    )
    shares = [value for name, value in found.items() if name.endswith("_pct") and value is not None]
    assert not [share for share in shares if not 0 <= share <= 100]


def test_a_function_becomes_a_metric_by_one_decorator(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(registry, "METRICS", {})

    @registry.metric("launched", Unit.NONE, "launched", missing="never")
    def launched(scope: Scope) -> Values:
        """Number of activities that
        have a launch record."""
        return Values(scope.nodes.sizes() - scope.nodes.sum("unlinked"))

    made = registry.METRICS["launched"]
    wording(made.definition, "launch record")
    assert (made.reduces, made.missing_because, made.compute) == ("sum", "never", launched)
    with pytest.raises(ValueError, match="two columns are called launched"):
        registry.declare("launched | ns | again | sum\n    The same.", registry.known_sum)
    with pytest.raises(ValueError, match="two columns are called launched"):
        registry.column("launched | | launched\n    Another number.")
    monkeypatch.setattr(registry, "OTHER_COLUMNS", {})
    (lane,) = registry.row_columns("lanes", "lane | | lane\n    Its number.").values()
    assert lane.rows == "lanes" and [*registry.OTHER_COLUMNS.values()] == [lane]
    with pytest.raises(ValueError, match="two columns are called lane"):
        registry.column("lane | ns | lane\n    Its time.")
