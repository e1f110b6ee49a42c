"""The original's stacked ratios, worked out by hand, with activities that lack a part."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from support import Row, table_of

from chopper_core.hardware import hardware_of
from chopper_core.metrics import METRICS
from chopper_core.metrics.metric import Scope
from chopper_core.tree import Tree

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
