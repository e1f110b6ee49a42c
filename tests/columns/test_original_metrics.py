"""The original's stacked ratios, worked out by hand, with activities that lack a part."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from support import Row, sample_run, table_of

from chopper_core.columns import METRICS, breakdown
from chopper_core.columns.metric import Scope
from chopper_core.model.groups import Groups
from chopper_core.model.hardware import hardware_of
from chopper_core.model.table import Kind, Phase
from chopper_core.model.tree import Tree

MFMA_OPS = "SQ_INSTS_VALU_MFMA_MOPS_BF16"


def value_of(name: str, measured: dict[str, list[float]], product: str = "MI300X") -> float | None:
    """A ratio of one node of three activities of 1, 2 and 4 us."""
    table = table_of([Row(10_000 * n, 1_000 * 2**n) for n in range(3)])
    columns = {key: np.array(values, np.float64) for key, values in measured.items()}
    nodes = Tree(table.with_measured(columns)).node(())
    return METRICS[name].compute(Scope(nodes, nodes, 0, hardware_of(product))).at(0)


def test_instructions() -> None:
    counts = {MFMA_OPS: [1_000.0, 3_000.0, 5.0], "model_flops": [256_000.0, 768_000.0, nan]}
    assert value_of("original_inst", counts) == pytest.approx(512 * 4_000 / 1_024_000)
    assert value_of("original_inst", {MFMA_OPS: [1.0, 1.0, 1.0]}) is None


def test_utilisation() -> None:
    counts = {
        "GRBM_GUI_ACTIVE": [16_000.0, 8_000.0, 99.0],
        "SQ_VALU_MFMA_BUSY_CYCLES": [900_000.0, 300_000.0, nan],
    }
    # 3,000 cycles of 304 x 4 SIMDs, of which 1,200,000 were busy.
    assert value_of("original_util", counts) == pytest.approx(3_000 * 304 * 4 / 1_200_000)
    assert value_of("original_util", counts, "unheard of") is None
    assert value_of("original_util", counts | {"SQ_VALU_MFMA_BUSY_CYCLES": [0.0] * 3}) is None


def test_frequency() -> None:
    cycles = {"GRBM_GUI_ACTIVE": [8 * 2_100.0, 8 * 2_100.0, nan]}
    # 3 us in the trace, 4,200 cycles at 2.1 GHz.
    assert value_of("original_freq", cycles) == pytest.approx(1.5)
    assert value_of("original_freq", cycles, "unheard of") is None
    assert value_of("original_freq", {}) is None


COMM = Kind.COMM


def overlap_of(*rows: Row) -> float | None:
    nodes = Tree(table_of(rows)).node(())
    return METRICS["original_ovl"].compute(Scope(nodes, nodes, 0)).at(0)


def test_overlap_compares_the_middle_instance_with_the_least_overlapped() -> None:
    """Shares of 0, 1/2, 1 and 1; of four the second is in the middle: 120 ns over 100 ns."""
    layers = [
        Row(0, 100, layer=0),
        Row(1_000, 50, layer=1),
        Row(1_080, 40, layer=1),
        Row(2_000, 300, layer=2),
        Row(3_000, 310, layer=3),
    ]
    beside = [
        # Two at once count once; the gap of layer 1 counts as well: 60 of 120 ns.
        Row(1_040, 60, COMM, stream=1, operation="all_gather"),
        Row(1_050, 20, COMM, stream=2, operation="all_gather"),
        Row(1_990, 400, COMM, stream=1, operation="all_gather"),
        Row(3_000, 310, COMM, stream=1, operation="all_gather"),
    ]
    table = table_of([*layers, *beside])
    nodes = Tree(table, ("operation", "gpu")).children(()).groups
    values = METRICS["original_ovl"].compute(Scope(nodes, nodes, 0))
    assert [values.at(row) for row in range(len(nodes))] == [None, pytest.approx(120 / 100)]


def test_overlap_is_1_where_the_middle_has_none_or_is_faster() -> None:
    slow, fast = Row(0, 100, layer=0), Row(1_000, 150, layer=1)
    assert overlap_of(slow, fast) == 1.0
    assert overlap_of(slow) is None
    comm = [Row(start, 200, COMM, stream=1) for start in (1_000, 2_000, 3_000)]
    faster = [Row(start, 80, layer=start) for start in (1_000, 2_000, 3_000)]
    assert overlap_of(slow, *faster, *comm) == 1.0
    slower = [Row(start, 180, layer=start) for start in (1_000, 2_000, 3_000)]
    assert overlap_of(slow, *slower, *comm) == 1.8


def test_overlap_is_that_of_the_instance_s_own_gpu() -> None:
    own = [Row(0, 100, layer=0), Row(1_000, 170, layer=1), Row(2_000, 170, layer=2),
           Row(3_000, 170, layer=3)]  # fmt: skip
    comm = [Row(start, 200, COMM, stream=1, gpu=1) for start in (1_000, 2_000, 3_000)]
    assert overlap_of(*own, *comm) == 1.0


def test_overlap_of_several_operations_or_phases_is_missing() -> None:
    assert overlap_of(Row(0, 9), Row(10, 9, operation="other")) is None
    assert overlap_of(Row(0, 9), Row(10, 9, phase=Phase.BACKWARD)) is None
    assert overlap_of(Row(0, 9, COMM)) is None


def test_the_stack_goes_from_theory_to_the_duration() -> None:
    counts = {
        MFMA_OPS: [1_000_000.0] * 3,
        "model_flops": [400e6] * 3,
        "GRBM_GUI_ACTIVE": [8 * 2_100.0] * 3,
        "SQ_VALU_MFMA_BUSY_CYCLES": [2_100 * 304 * 4 / 2.0] * 3,
    }
    theory = 3 * 400e6 / (304 * 2048 * 2.1)
    assert value_of("original_upto_theory_ns", counts) == pytest.approx(theory)
    assert value_of("original_upto_inst_ns", counts) == pytest.approx(theory * 512 / 400)
    assert value_of("original_upto_util_ns", counts) == pytest.approx(theory * 512 / 400 * 2)
    assert value_of("original_upto_ovl_ns", counts) is None  # Of one instance.
    # 7 us in the trace, 3 us of cycles at the nominal clock.
    freq = 7 / 3
    assert value_of("original_upto_freq_ns", counts) == pytest.approx(theory * 512 / 400 * 2 * freq)
    assert value_of("original_upto_theory_ns", counts, "V100-SXM2") is None
    assert value_of("original_upto_inst_ns", counts, "unheard of") is None
    del counts[MFMA_OPS]
    assert value_of("original_upto_theory_ns", counts) == pytest.approx(theory)
    assert value_of("original_upto_freq_ns", counts) is None


def test_an_activity_alone_needs_no_communication_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The detail of what a timeline's cursor is on asks for it at each step of the cursor."""
    run = sample_run()
    monkeypatch.setattr(breakdown, "running_ns", None)
    alone = Groups.single(run.table, slice(0, 1))
    found = METRICS["original_ovl"].compute(Scope.of(run, alone, alone))
    assert not found.present().any()
    with pytest.raises(TypeError):
        every = run.tree().node(())
        METRICS["original_ovl"].compute(Scope.of(run, every, every))
