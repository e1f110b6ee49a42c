"""When kernels are the same."""

from __future__ import annotations

import numpy as np

from chopper_core.model.column_names import FLOPS
from chopper_core.model.groups import comparable_kernels
from chopper_core.model.table import NO_LABEL
from tests.support import Row, run_of


def test_kernels_without_a_size_are_the_same_at_the_same_place_only() -> None:
    """Two steps with three kernels of a name, one with two, and each layer's."""
    rows, now = [], 0
    for step, count in enumerate((3, 3, 2)):
        for layer in (NO_LABEL, 0, 1):
            for _ in range(count):
                rows.append(Row(now, 9, iteration=step, layer=layer, kernel="gemm"))
                now += 10
    table = run_of(rows).table
    same = comparable_kernels(table, np.arange(len(table)))
    of = {
        (step, layer): same[(table.iteration == step) & (table.layer == layer)].tolist()
        for step in range(3)
        for layer in (NO_LABEL, 0, 1)
    }
    # A layer's are those of the others, too.
    assert len({*of[0, 0]}) == 3
    assert of[0, NO_LABEL] == of[1, NO_LABEL] == of[0, 0] == of[1, 1]
    # One is missing: which of them, nobody knows.
    assert not {*of[2, 0]} & {*of[0, 0]}
    known = table.with_measured({FLOPS: np.full(len(table), 4.0)})
    assert len({*comparable_kernels(known, np.arange(len(table))).tolist()}) == 1
