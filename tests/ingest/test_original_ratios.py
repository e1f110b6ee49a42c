"""The original's stack on the demonstration run: its ratios lead from theory to the duration."""

from __future__ import annotations

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.support import rows_of

ORDER = ("iteration", "gpu", "phase", "operation", "layer", "kernel")
COLUMNS = ("theoretical_ns", "original_inst", "original_util", "original_freq", "kernel_ns")
LEVELS = tuple(f"original_upto_{name}_ns" for name in ("theory", "inst", "util", "ovl", "freq"))
PRODUCTS = ("mlp_dp", "mlp_up", "mlp_gp", "attn_fa", "attn_op")


def test_the_stack_ends_at_the_duration(demo: Run) -> None:
    frame = query(demo, View(demo.name, ("11", "0", "forward"), ORDER, COLUMNS))
    rows = rows_of(frame)
    for operation in PRODUCTS:
        theory, inst, util, freq, whole = (rows[operation][name] for name in COLUMNS)
        assert theory * inst * util * freq == pytest.approx(whole, rel=1e-3)
    assert rows["all_gather"]["original_freq"] is None


def test_every_level_of_the_stack_lies_above_the_one_before(demo: Run) -> None:
    frame = query(demo, View(demo.name, ("11", "0", "forward"), ORDER, (*LEVELS, "kernel_ns")))
    rows = rows_of(frame)
    for operation in PRODUCTS:
        levels = [rows[operation][name] for name in LEVELS]
        assert levels == sorted(levels)
        assert levels[-1] == pytest.approx(rows[operation]["kernel_ns"], rel=1e-3)
    assert rows["attn_op"][LEVELS[3]] > 1.2 * rows["attn_op"][LEVELS[2]]
