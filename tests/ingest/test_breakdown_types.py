"""The breakdown of work of several types, worked out by hand for an MI300X at 2100 MHz.

304 compute units do 2048 bf16 operations per clock, 4096 fp8 and 256 fp32: in a nanosecond
1,307,443.2, 2,614,886.4 and 163,430.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

import numpy as np
import pytest
from msgspec.structs import replace
from support import Row, table_of

from chopper_core.align import breakdown
from chopper_core.align.breakdown import breakdown_columns
from chopper_core.columns import METRICS
from chopper_core.columns.metric import Scope
from chopper_core.model.column_names import AT_PEAK, BREAKDOWN, FLOPS, FLOPS_TYPE, MATRIX_COUNTERS
from chopper_core.model.hardware import ElementType, hardware_of
from chopper_core.model.table import KernelTable
from chopper_core.model.tree import Tree

BF16, FP32, FP8 = 1_307_443.2, 163_430.4, 2_614_886.4
UNKNOWN = float(ElementType.UNKNOWN)
MOPS = "SQ_INSTS_VALU_MFMA_MOPS_"
CYCLES = "GRBM_GUI_ACTIVE"
Measured = Mapping[str, list[float]]


def table(measured: Measured, *durations_ns: int) -> KernelTable:
    """Kernels one after the other."""
    rows = [Row(10_000 * number, each) for number, each in enumerate(durations_ns)]
    columns = {name: np.array(values, np.float64) for name, values in measured.items()}
    return table_of(rows).with_measured(columns)


def parts(measured: Measured, *durations_ns: int, product: str = "MI300X") -> list[dict[str, int]]:
    """The parts of each kernel that are there; they add up to its duration."""
    columns = breakdown_columns(table(measured, *durations_ns), hardware_of(product))
    assert tuple(columns) == (*BREAKDOWN, AT_PEAK)
    found = []
    for row, duration in enumerate(durations_ns):
        own = {
            name: int(values[row])
            for name, values in columns.items()
            if name in BREAKDOWN and np.isfinite(values[row]) and values[row] != 0
        }
        assert sum(own.values()) == duration
        found.append(own)
    return found


def metric(
    name: str, measured: Measured, *durations_ns: int, product: str = "MI300X"
) -> float | None:
    hardware = hardware_of(product)
    kernels = table(measured, *durations_ns)
    nodes = Tree(kernels.with_measured(breakdown_columns(kernels, hardware))).node(())
    return METRICS[name].compute(Scope(nodes, nodes, 0, hardware)).at(0)


def typed(*works: tuple[float, float]) -> dict[str, list[float]]:
    """FLOPs and the type of what they multiply, kernel by kernel."""
    return {FLOPS: [flops for flops, _ in works], FLOPS_TYPE: [type_ for _, type_ in works]}


def test_the_same_work_takes_longer_at_the_peak_of_a_wider_type() -> None:
    flops = 300 * BF16
    work = typed(*((flops, type_) for type_ in (ElementType.BF16, ElementType.FP32,
                                                ElementType.FP8)))  # fmt: skip
    bf16, fp32, fp8 = parts(work, 4_000, 4_000, 4_000)
    assert bf16 == {"theoretical_ns": 300, "unmodelled_ns": 3_700}
    assert fp32 == {"theoretical_ns": 2_400, "unmodelled_ns": 1_600}
    assert fp8 == {"theoretical_ns": 150, "unmodelled_ns": 3_850}
    assert metric("theoretical_ns", work, 4_000, 4_000, 4_000) == 2_850
    assert metric("peak_pct", work, 4_000, 4_000, 4_000) == pytest.approx(100 * 2_850 / 12_000)
    assert metric("model_tflops", work, 4_000, 4_000, 4_000) == pytest.approx(
        3 * 300 * 1_307.4432 / 12_000
    )
    assert metric("flops_without_peak", work, 4_000, 4_000, 4_000) == 0


def test_the_peak_at_the_clock_that_ran() -> None:
    """Two kernels of 4 us at 1050 and 1400 MHz of 2100, with 1 and 2 us at the nominal peak."""
    work = typed((1_000 * BF16, ElementType.BF16), (2_000 * BF16, ElementType.BF16))
    clocks = {
        "gfx_mhz integral": [4_000 * 1_050.0, 4_000 * 1_400.0],
        "gfx_mhz known": [4_000.0, 4_000.0],
    }
    assert metric("peak_pct", work, 4_000, 4_000) == pytest.approx(100 * 3 / 8)
    assert metric("peak_at_clock_pct", work | clocks, 4_000, 4_000) == pytest.approx(
        100 * 3 / 8 * 2_100 / 1_225
    )
    assert metric("peak_at_clock_pct", work, 4_000, 4_000) is None


def test_work_of_unknown_type_has_no_theory_and_is_told() -> None:
    work = typed((300 * BF16, UNKNOWN), (500 * BF16, ElementType.BF16))
    unknown, known = parts(work, 4_000, 1_000)
    assert unknown == {"unmodelled_ns": 4_000}
    assert known == {"theoretical_ns": 500, "unmodelled_ns": 500}
    assert metric("peak_pct", work, 4_000, 1_000) == pytest.approx(50)
    assert metric("flops_without_peak", work, 4_000, 1_000) == 300 * BF16
    assert metric("model_flops", work, 4_000, 1_000) == 800 * BF16
    alone = typed((300 * BF16, UNKNOWN))
    assert metric("peak_pct", alone, 4_000) is None
    no_column = {FLOPS: [300 * BF16]}
    assert metric("peak_pct", no_column, 4_000) is None
    assert parts(no_column, 4_000) == [{"unmodelled_ns": 4_000}]


def test_a_type_that_the_gpu_has_no_peak_for_has_no_theory() -> None:
    """The matrix units of V100 know neither bf16 nor fp8."""
    work = typed((1e9, ElementType.BF16), (1e9, ElementType.FP16))
    bf16, fp16 = parts(work, 4_000, 4_000, product="Tesla V100-SXM2-32GB")
    assert "theoretical_ns" not in bf16
    assert fp16["theoretical_ns"] == round(1e9 / (80 * 1024 * 1.53))
    assert metric("flops_without_peak", work, 4_000, 4_000, product="V100-SXM2") == 1e9


def test_executed_operations_count_at_the_peak_of_their_own_type() -> None:
    """1,000 ns at the nominal clock alone: 2100 cycles of each of 8 XCCs."""
    cycles = [8 * 2_100.0] * 2
    work = typed((100 * BF16, ElementType.BF16), (400 * FP32, ElementType.FP32))
    counters = {
        CYCLES: cycles,
        f"{MOPS}BF16": [150 * BF16 / 512, 0.0],
        f"{MOPS}F32": [0.0, 500 * FP32 / 512],
    }
    bf16, fp32 = parts(work | counters, 1_200, 1_300)
    assert bf16 == {
        "theoretical_ns": 100,
        "extra_inst_ns": 50,
        "mfma_loss_ns": 850,
        "unseparated_ns": 200,
    }
    assert fp32 == {
        "theoretical_ns": 400,
        "extra_inst_ns": 100,
        "mfma_loss_ns": 500,
        "unseparated_ns": 300,
    }


def test_without_the_counter_of_its_type_work_is_unmodelled_not_vector() -> None:
    work = typed((400 * FP32, ElementType.FP32), (nan, nan))
    counters = {CYCLES: [8 * 2_100.0] * 2, f"{MOPS}BF16": [0.0, 0.0]}
    product, vector = parts(work | counters, 1_300, 1_000)
    assert product == {"theoretical_ns": 400, "unmodelled_ns": 900}
    assert vector == {"vector_ns": 1_000}


def test_executed_operations_of_untyped_work_are_unmodelled() -> None:
    work = typed((400 * BF16, UNKNOWN))
    counters = {CYCLES: [8 * 2_100.0], f"{MOPS}BF16": [500 * BF16 / 512], f"{MOPS}F8": [0.0]}
    assert parts(work | counters, 1_000) == [{"unmodelled_ns": 500, "mfma_loss_ns": 500}]
    half_read = counters | {f"{MOPS}F8": [nan]}
    assert parts(work | half_read, 1_000) == [{"unmodelled_ns": 1_000}]


def test_two_types_in_one_kernel_add_up() -> None:
    work = typed((100 * FP8, ElementType.FP8))
    counters = {
        CYCLES: [8 * 2_100.0],
        f"{MOPS}F8": [100 * FP8 / 512],
        f"{MOPS}BF16": [60 * BF16 / 512],
    }
    (found,) = parts(work | counters, 1_000)
    assert found == {"theoretical_ns": 100, "extra_inst_ns": 60, "mfma_loss_ns": 840}


def test_some_rows_at_a_time_give_what_all_give(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    names = (FLOPS, FLOPS_TYPE, CYCLES, *MATRIX_COUNTERS.values())
    measured = {
        name: np.where(random.random(50) < 0.3, nan, random.integers(0, 9, 50)).tolist()
        for name in names
    }
    kernels = table(measured, *random.integers(1, 9_000, 50).tolist())
    whole = breakdown_columns(kernels, hardware_of("MI300X"))
    monkeypatch.setattr(breakdown, "_CHUNK", 7)
    for name, values in breakdown_columns(kernels, hardware_of("MI300X")).items():
        np.testing.assert_array_equal(values, whole[name])


def test_recomputed_products_are_a_part_of_their_own() -> None:
    """The parts add up, and the rate of the kernels is that of what they execute."""
    work = typed((400 * BF16, ElementType.BF16), (300 * BF16, ElementType.BF16))
    hardware, kernels = hardware_of("MI300X"), table(work, 1_000, 1_000)
    kernels = replace(
        kernels,
        operations=("mlp_up", "mlp_up (recompute)"),
        operation=np.array([0, 1], kernels.operation.dtype),
    )
    found = breakdown_columns(kernels, hardware)
    assert found["theoretical_ns"].tolist() == [400, 0]
    assert found["recompute_ns"].tolist() == [0, 300]
    assert found["unmodelled_ns"].tolist() == [600, 700]
    nodes = Tree(kernels.with_measured(found)).split((), ("operation",))
    computed = {
        name: METRICS[name].compute(Scope(nodes, nodes, 0, hardware)).numbers.tolist()
        for name in ("model_flops", "peak_pct", "recompute_ns")
    }
    assert computed["model_flops"] == [400 * BF16, 0]
    assert computed["peak_pct"] == pytest.approx([40, 30])
    assert computed["recompute_ns"] == [0, 300]
