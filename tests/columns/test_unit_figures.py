"""The figures of units: each by its formula as AMD and UnaryLab/chopper's rocm_metrics.py state it.

Every counter has a number of its own, so that no figure is right by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support import Row, table_of

from chopper_core.columns import METRICS, Scope
from chopper_core.columns.metric import Theme
from chopper_core.model.hardware import hardware_of
from chopper_core.model.tree import Tree

CUS, XCDS, CLOCK, SES, CHANNELS, SQCS = 304, 8, 2100.0, 32, 128, 160
"""Of an MI300X."""
Counters = Mapping[str, float]


def number_of(counter: str) -> float:
    """The number of a counter, some prime-like one by its name."""
    return 1_000.0 + sum(ord(char) * 31**place for place, char in enumerate(counter)) % 90_007


class Known(defaultdict[str, float]):
    """Counters as a formula asks for them."""

    def __missing__(self, key: str) -> float:
        self[key] = number_of(key)
        return self[key]


def cycles(c: Counters) -> float:
    return c["GRBM_GUI_ACTIVE"] / XCDS


def spi(c: Counters) -> float:
    return c["GRBM_SPI_BUSY"] / XCDS * SES


def valu(c: Counters, kind: str) -> float:
    names = ("ADD", "MUL", "TRANS", "FMA", "FMA")
    return 64 * sum(c[f"SQ_INSTS_VALU_{name}_{kind}"] for name in names)


def of_cus(counter: str, factor: float = 100) -> Callable[[Counters], float]:
    return lambda c: factor * c[counter] / (cycles(c) * CUS)


def over(part: str, whole: str, factor: float = 100) -> Callable[[Counters], float]:
    return lambda c: factor * c[part] / c[whole]


def busy(unit: str) -> Callable[[Counters], float]:
    return lambda c: 100 * c[f"{unit}_BUSY"] / (c[f"{unit}_BUSY"] + c[f"{unit}_IDLE"])


def plain(*counters: str, factor: float = 1) -> Callable[[Counters], float]:
    return lambda c: factor * sum(c[counter] for counter in counters)


def lds(c: Counters) -> float:
    return 128 * (c["SQ_LDS_IDX_ACTIVE"] - c["SQ_LDS_BANK_CONFLICT"])


def fabric(c: Counters) -> float:
    small, large = c["TCC_EA0_RDREQ_32B_sum"], c["TCC_BUBBLE_sum"]
    read = 128 * large + 64 * (c["TCC_EA0_RDREQ_sum"] - large - small) + 32 * small
    whole = c["TCC_EA0_WRREQ_64B_sum"]
    return read + 64 * whole + 32 * (c["TCC_EA0_WRREQ_sum"] - whole)


def ns(c: Counters) -> float:
    return c["counter_duration_ns"]


FORMULAS: dict[str, Callable[[Counters], float]] = {
    "nominal_ns": lambda c: cycles(c) / CLOCK * 1e3,
    "nominal_gap_pct": lambda c: 100 * (ns(c) - cycles(c) / CLOCK * 1e3) / ns(c),
    **{f"mfma_{kind}_flop": plain(f"SQ_INSTS_VALU_MFMA_MOPS_{kind.upper()}", factor=512)
       for kind in ("f16", "bf16", "f32", "f64")},
    "mfma_i8_op": plain("SQ_INSTS_VALU_MFMA_MOPS_I8", factor=512),
    **{f"mfma_{kind}_insts": plain(f"SQ_INSTS_VALU_MFMA_{kind.upper()}")
       for kind in ("i8", "f16", "f32", "f64")},
    **{f"valu_{kind}_flop": lambda c, kind=kind: valu(c, kind.upper())  # type: ignore[misc]
       for kind in ("f16", "f32", "f64")},
    **{f"valu_{kind}_tflops": lambda c, kind=kind: valu(c, kind.upper()) / ns(c) / 1e3  # type: ignore[misc]
       for kind in ("f16", "f32", "f64")},
    "valu_f32_util_pct": lambda c: 100 * valu(c, "F32") / (256 * cycles(c) * CUS),
    "valu_cycles": lambda c: c["SQ_ACTIVE_INST_VALU"] / CUS,
    "salu_insts": plain("SQ_INSTS_SALU"),
    "smem_insts": plain("SQ_INSTS_SMEM"),
    "flat_insts": plain("SQ_INSTS_FLAT"),
    "vmem_insts": plain("SQ_INSTS_VMEM"),
    "branch_insts": plain("SQ_INSTS_BRANCH"),
    "message_insts": plain("SQ_INSTS_SENDMSG"),
    "lds_moved_bytes": lds,
    "lds_peak_pct": lambda c: 100 * lds(c) / ns(c) / (CLOCK * CUS * 0.128),
    "lds_clean_pct": lambda c: 100 * lds(c) / 128 / c["SQ_LDS_IDX_ACTIVE"],
    "lds_access_pct": of_cus("SQ_ACTIVE_INST_LDS", 200),
    "utcl1_hit_pct": over("TCP_UTCL1_TRANSLATION_HIT_sum", "TCP_UTCL1_REQUEST_sum"),
    "vl1d_bytes": plain("TCP_TOTAL_CACHE_ACCESSES_sum", factor=128),
    "vl1d_peak_pct": lambda c: 100 * c["TCP_TOTAL_CACHE_ACCESSES_sum"] * 128 / ns(c)
    / (CLOCK / 1000 * 128 * CUS),
    "vl1d_util_pct": over("TCP_GATE_EN2_sum", "TCP_GATE_EN1_sum"),
    "vl1d_request_stall_pct": over("TCP_TCR_TCP_STALL_CYCLES_sum", "TCP_GATE_EN1_sum"),
    **{f"vl1d_tag_{kind}_stall_pct":
       over(f"TCP_{kind.upper()}_TAGCONFLICT_STALL_CYCLES_sum", "TCP_GATE_EN1_sum")
       for kind in ("read", "write", "atomic")},
    "vl1d_uncached": plain("TCP_TCC_UC_READ_REQ_sum", "TCP_TCC_UC_WRITE_REQ_sum",
                           "TCP_TCC_UC_ATOMIC_REQ_sum"),
    "ta_address_stall_pct": of_cus("TA_ADDR_STALLED_BY_TC_CYCLES_sum"),
    "ta_data_stall_pct": of_cus("TA_DATA_STALLED_BY_TC_CYCLES_sum"),
    "ta_td_stall_pct": of_cus("TA_ADDR_STALLED_BY_TD_CYCLES_sum"),
    "td_busy_pct": of_cus("TD_TD_BUSY_sum"),
    "td_cache_stall_pct": of_cus("TD_TC_STALL_sum"),
    "td_spi_stall_pct": of_cus("TD_SPI_STALL_sum"),
    "l1_l2_read_gbps": lambda c: 128 * c["TCP_TCC_READ_REQ_sum"] / ns(c),
    "l1_l2_write_gbps": lambda c: 64 / ns(c) * (
        c["TCP_TCC_WRITE_REQ_sum"] + c["TCP_TCC_ATOMIC_WITH_RET_REQ_sum"]
        + c["TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum"]
    ),
    "l2_bytes": plain("TCC_REQ_sum", factor=128),
    "l2_peak_pct": lambda c: 100 * c["TCC_REQ_sum"] * 128 / ns(c)
    / (CLOCK / 1000 * 128 * CHANNELS),
    "l2_busy_pct": over("TCC_BUSY_sum", "TCC_CYCLE_sum"),
    "l2_streaming": plain("TCC_STREAMING_REQ_sum"),
    "l2_uncached": plain("TCC_UC_REQ_sum"),
    "sl1d_peak_pct": lambda c: 100_000 * c["SQC_DCACHE_REQ"] / (CLOCK * SQCS * ns(c)),
    "sl1d_l2_gbps": lambda c: 64 / ns(c) * sum(
        c[f"SQC_TC_DATA_{kind}_REQ"] for kind in ("READ", "WRITE", "ATOMIC")
    ),
    "l1i_l2_gbps": lambda c: 64 * c["SQC_TC_INST_REQ"] / ns(c),
    "l1i_l2_peak_pct": lambda c: 100_000 * c["SQC_TC_INST_REQ"] / (2 * CLOCK * SQCS * ns(c)),
    "fabric_32b": lambda c: c["TCC_EA0_RDREQ_32B_sum"] + c["TCC_EA0_WRREQ_sum"]
    - c["TCC_EA0_WRREQ_64B_sum"],
    "fabric_64b": lambda c: c["TCC_EA0_RDREQ_sum"] - c["TCC_BUBBLE_sum"]
    - c["TCC_EA0_RDREQ_32B_sum"] + c["TCC_EA0_WRREQ_64B_sum"],
    # Of 128 B there are reads alone, on chips whose counters of the fabric are these.
    "fabric_128b": lambda c: c["TCC_EA0_RDREQ_sum"] * 0 + c["TCC_BUBBLE_sum"],
    "fabric_bytes": fabric,
    "fabric_gbps": lambda c: fabric(c) / ns(c),
    "fabric_uncached_bytes": plain("TCC_EA0_WR_UNCACHED_32B_sum", "TCC_EA0_RD_UNCACHED_32B_sum",
                                   factor=32),
    "pipe_not_scheduled_pct": lambda c: 100 * c["SPI_RA_REQ_NO_ALLOC"] / spi(c),
    "scratch_stall_pct": lambda c: 100 * c["SPI_RA_TMP_STALL_CSN"] / spi(c),
    "sgpr_full_pct": of_cus("SPI_RA_SGPR_SIMD_FULL_CSN"),
    "barriers_full_pct": of_cus("SPI_RA_BAR_CU_FULL_CSN", 400),
    "workgroups_full_pct": of_cus("SPI_RA_TGLIM_CU_FULL_CSN", 400),
    "waves_full_pct": of_cus("SPI_RA_WVLIM_STALL_CSN", 400),
    "vgpr_write_cycles": over("SPI_VWC_CSC_WR", "SPI_CSN_WAVE", 4),
    "cpf_stall_pct": over("CPF_CPF_STAT_STALL", "CPF_CPF_STAT_BUSY"),
    "cpf_l2_util_pct": busy("CPF_CPF_TCIU"),
    "cpf_l2_stall_pct": over("CPF_CPF_TCIU_STALL", "CPF_CPF_TCIU_BUSY"),
    "cpf_utcl1_stall_pct": over("CPF_CMP_UTCL1_STALL_ON_TRANSLATION", "CPF_CPF_STAT_BUSY"),
    "cpc_stall_pct": over("CPC_CPC_STAT_STALL", "CPC_CPC_STAT_BUSY"),
    "cpc_decode_pct": over("CPC_ME1_BUSY_FOR_PACKET_DECODE", "CPC_CPC_STAT_BUSY"),
    "cpc_dispatch_pct": over("CPC_ME1_DC0_SPI_BUSY", "CPC_CPC_STAT_BUSY"),
    "cpc_l2_util_pct": busy("CPC_CPC_TCIU"),
    "cpc_utcl1_stall_pct": over("CPC_UTCL1_STALL_ON_TRANSLATION", "CPC_CPC_STAT_BUSY"),
    "cpc_utcl2_util_pct": busy("CPC_CPC_UTCL2IU"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_figure_is_that_of_its_formula(name: str) -> None:
    counters = Known()
    expected = FORMULAS[name](counters)
    table = table_of([Row(0, 1_000)])
    columns = {counter: np.array([value]) for counter, value in counters.items()}
    # What the formula doesn't name isn't needed.
    nodes = Tree(table.with_measured(columns)).node(())
    found = METRICS[name].compute(Scope(nodes, nodes, 0, hardware_of("MI300X"))).at(0)
    assert found == pytest.approx(expected, rel=1e-9)


def test_every_figure_of_the_original_has_a_column() -> None:
    """122 figures, some of them twice: those of `FORMULAS`, and those that were there before."""
    of_counters = {name for name, each in METRICS.items() if each.theme is Theme.COUNTERS}
    assert {*FORMULAS} <= of_counters
    assert len(of_counters) >= 122 + 20
