"""Kernels that could be better on all GPUs alike, and findings that save only together."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.overlap import overlaps_in
from chopper_core.findings import communication, efficiency
from chopper_core.findings.remedies import question_of
from chopper_core.findings.rule import CELL, Cost, context_of
from chopper_core.model.hardware import ElementType, specifications
from chopper_core.model.run import Run
from chopper_core.model.table import Kind, Phase
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.support import Row, run_of, sample_run

US = 1_000
GEMM = "Cijk_Alik_Bljk_BBS_BH"


def steps_of(kernels: list[tuple[str, str, int]], steps: int = 3, times: int = 8) -> Run:
    """Steps of `times` rounds of kernels (operation, kernel, ns), one after the other."""
    rows, now = [], 0
    for step in range(steps):
        for _ in range(times):
            for operation, kernel, duration in kernels:
                rows.append(Row(now, duration, iteration=step, operation=operation, kernel=kernel))
                now += duration
    return run_of(rows)


def measured(run: Run, **columns: dict[str, float]) -> Run:
    """The run on an MI300X, with columns by operation."""
    table = run.table
    names = np.array(table.operations)[table.operation]
    added = {
        name: np.array([by.get(operation, np.nan) for operation in names])
        for name, by in columns.items()
    }
    chip = specifications()["MI300X"]
    return replace(run, table=replace(table, measured=added), described_hardware=chip)


def row_of(run: Run, rule: str) -> dict[str, object] | None:
    frame = query(run, View(run.name, name="findings"))
    rows = [frame.row(row) for row in range(len(frame))]
    own = [each for each in rows if each["rule"] == rule]
    assert len(own) < 2
    return own[0] if own else None


def test_kernels_that_only_copy_cost_their_time() -> None:
    copy = "void at::native::elementwise_kernel<direct_copy_kernel_cuda>"
    run = steps_of([("mm", GEMM, 90 * US), ("contiguous", copy, 10 * US)])
    row = row_of(run, "moved-data")
    assert row is not None and row["cost_ns"] == 8 * 10 * US
    assert row["group"] == "could be better" and "contiguous" in str(row["detail"])
    few = steps_of([("mm", GEMM, 97 * US), ("contiguous", copy, 3 * US)])
    assert row_of(few, "moved-data") is None
    fsdp = steps_of([("mm", GEMM, 90 * US), ("FSDP::all_gather_copy_out", copy, 10 * US)])
    assert row_of(fsdp, "moved-data") is None


def test_attention_with_a_softmax_of_its_own_isnt_fused() -> None:
    softmax = "void softmax_warp_forward<float, float, float, 12, false, true>"
    row = row_of(steps_of([("mm", GEMM, 90 * US), ("sdpa", softmax, 5 * US)]), "unfused-attention")
    assert row is not None and row["cost_ns"] == 8 * 5 * US
    # Between the two products, not what comes after them.
    cast = "void at::native::bfloat16tofloat32_copy_kernel"
    parts = [("scores", GEMM, 90), ("to", cast, 4), ("softmax", softmax, 5), ("drop", "dropout", 2),
             ("values", GEMM, 90), ("norm", "layer_norm", 20)]  # fmt: skip
    run = steps_of([(name, kernel, us * US) for name, kernel, us in parts])
    row = row_of(run, "unfused-attention")
    assert row is not None and row["cost_ns"] == 8 * (4 + 5 + 2) * US
    loss = "void cunn_SoftMaxForward<8, float, float, float, LogSoftMaxForwardEpilogue>"
    run = steps_of([("mm", GEMM, 90 * US), ("cross_entropy", loss, 5 * US)])
    assert row_of(run, "unfused-attention") is None


@pytest.mark.parametrize(("number", "phase", "named"), [
    (300, Phase.OPTIMIZER, True), (20, Phase.OPTIMIZER, False), (300, Phase.BACKWARD, False),
])  # fmt: skip
def test_optimizers_in_many_small_kernels_cost_their_time(
    number: int, phase: Phase, named: bool
) -> None:
    rows, now = [], 0
    for step in range(3):
        rows.append(Row(now, 20_000 * US, iteration=step, operation="mm", kernel=GEMM))
        now += 20_000 * US
        for _ in range(number):
            rows.append(Row(now, 4 * US, iteration=step, phase=phase, operation="aten::mul_"))
            now += 5 * US
    row = row_of(run_of(rows), "small-kernels")
    assert (row is not None) == named
    if row is not None:
        assert row["cost_ns"] == pytest.approx(number * 4 * US, rel=0.3)
        assert row["group"] == "could be better" and "aten::mul_" in str(row["detail"])


@pytest.mark.parametrize(("excess", "until_us", "named"), [
    (0.5, 4_000, True), (0.02, 4_000, False), (0.5, 1_000_000, False), (0.0, 1, False),
])  # fmt: skip
def test_steps_that_begin_slowly_cost_what_kernels_take_longer_there(
    excess: float, until_us: int, named: bool
) -> None:
    names = ("q", "k", "v", "out", "up", "down")
    rows, now, lost = [], 0, 0
    for step in range(6):
        begin = now
        for layer in range(50):
            for place, name in enumerate(names):
                usual = (40 + 5 * place) * US
                left = max(0.0, 1 - (now - begin) / until_us / US)
                took = round(usual * (1 + excess * left))
                lost += took - usual
                rows.append(Row(now, took, iteration=step, layer=layer, operation=name,
                                kernel=f"{GEMM}_{name}"))  # fmt: skip
                now += took
        now += 2_000 * US
    row = row_of(run_of(rows), "slow-start")
    assert (row is not None) == named
    if row is not None:
        assert row["cost_ns"] == pytest.approx(lost / 6, rel=0.25)
        assert "In the first" in str(row["detail"])


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_what_is_slow_at_first_is_the_same_gpu_by_gpu_and_at_once(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, rows = np.random.default_rng(gpus), []
    for gpu in range(gpus):
        for step in range(3):
            now = 14_000 * US * step
            for place in range(240):
                left = max(0.0, 1 - place / 40)
                took = round((30 + 5 * (place % 6) + random.random()) * (1 + 0.4 * left) * US)
                rows.append(
                    Row(now, took, gpu=gpu, iteration=step, layer=place // 6,
                        operation=f"op{place % 6}", kernel=f"{GEMM}_{place % 6}")
                )  # fmt: skip
                now += took
    found = []
    for piece, run in ((1, run_of(rows)), (1 << 30, run_of(rows)), (1, run_of(rows[::-1]))):
        monkeypatch.setattr(efficiency, "_PIECE", piece)
        found.append(row_of(run, "slow-start"))
    # Also of a table in no order.
    assert found[0] is not None and found[0] == found[1] == found[2]


@pytest.mark.parametrize("wide_us", [80, 1])
def test_a_product_of_a_wider_type_than_most_costs_what_its_flops_take_longer(wide_us: int) -> None:
    run = steps_of([("mlp", GEMM, 200 * US), ("head", f"{GEMM}_S", wide_us * US)])
    run = measured(
        run,
        model_flops={"mlp": 2e11, "head": 5e9},
        model_flops_type={"mlp": ElementType.BF16, "head": ElementType.FP32},
    )
    row = row_of(run, "wide-type")
    if wide_us == 1:
        assert row is None
        return
    chip = specifications()["MI300X"]
    ratio = chip.flop_per_ns(ElementType.FP32) / chip.flop_per_ns(ElementType.BF16)
    assert row is not None and row["cost_ns"] == pytest.approx(8 * 80 * US * (1 - ratio), rel=1e-3)
    assert "head" in str(row["detail"])


@pytest.mark.parametrize(("reached", "is_found"), [(0.02, True), (0.3, False)])
def test_kernels_far_below_the_memory_roof(reached: float, is_found: bool) -> None:
    chip = specifications()["MI300X"]
    moved = reached * 50 * US * chip.memory_gbps
    run = steps_of([("mlp", GEMM, 200 * US), ("norm", "batch_norm_kernel", 50 * US)])
    row = row_of(measured(run, model_bytes={"norm": moved}), "memory-roof")
    assert (row is not None) == is_found
    if row is not None:
        assert row["cost_ns"] == pytest.approx(8 * 50 * US * (1 - reached / 0.1), rel=1e-3)


def test_no_step_is_replayed_for_contention_that_nothing_else_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay only tells by how much: that of 1,000 GPUs takes 20 s."""
    monkeypatch.setattr(communication, "_slowed_during", lambda context: pytest.fail("replayed"))
    run = sample_run()
    assert row_of(run, "contention") is None
    assert overlaps_in(run, View(run.name)).comm_ns.any()


def test_contention_is_seen_without_layers() -> None:
    rows, excess = [], 0
    for number in range(48):
        begin, is_slowed = 200_000 * number, number % 2
        rows.append(Row(begin, 140_000 if is_slowed else 100_000, iteration=number // 16,
                        operation="mm", kernel=GEMM))  # fmt: skip
        if is_slowed:
            excess += 40_000
            rows.append(Row(begin, 140_000, Kind.COMM, stream=1, iteration=number // 16,
                            operation="all_reduce", kernel="ncclKernel"))  # fmt: skip
    run = run_of(rows)
    # Products of one name may be of any size.
    assert row_of(run, "contention") is None
    row = row_of(measured(run, model_flops={"mm": 2e9}), "contention")
    assert row is not None and row["cost_ns"] == pytest.approx(excess / 3, rel=1e-3)
    assert "40.0 % longer" in str(row["detail"])


def test_a_factor_of_some_cells_takes_as_much_from_all_that_are_asked_about() -> None:
    """Of two operations in two phases, two of the four cells have labels in common with all."""
    rows, now = [], 0
    times = {"norm": {Phase.FORWARD: 30, Phase.BACKWARD: 50}, "pool": {Phase.FORWARD: 10,
             Phase.BACKWARD: 10}, "mm": {Phase.FORWARD: 100, Phase.BACKWARD: 200}}  # fmt: skip
    for step in range(3):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            for operation, by_phase in times.items():
                took = by_phase[phase] * US
                rows.append(Row(now, took, phase=phase, iteration=step, operation=operation))
                now += took
    run = run_of(rows)
    context = context_of(run, View(run.name))
    cells = np.zeros(len(context.cells), np.bool_)
    for at in range(len(cells)):
        place = tuple(context.text(level, context.codes(level)[at]) for level in CELL[2::2])
        cells[at] = place in {("forward", "pool"), ("backward", "norm")}
    assert cells.sum() == 2 * 3
    found = context.finding("title", "detail", View(run.name), Cost.KERNELS, 30.0 * US,
                            cells=cells, changes=("compute x0.5",))  # fmt: skip
    asked = question_of(context, found)
    assert asked.startswith("operation:norm,pool compute x")
    assert float(asked.rpartition("x")[2]) == pytest.approx(1 - 0.5 * (10 + 50) / (30 + 50 + 20))
    norms = np.array(
        [context.text("operation", code) == "norm" for code in context.codes("operation")]
    )
    assert question_of(context, replace(found, cells=norms)) == "operation:norm compute x0.5"
