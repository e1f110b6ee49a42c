"""How much GPUs have to do in each iteration: tokens, FLOPs and kernels, against others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from chopper_core.model.column_names import FLOPS
from chopper_core.model.run import Run
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import first_equal
from chopper_core.views.shared.phrases import percent
from chopper_core.views.shared.tokens import tokens_in

_LEAST: Final = 0.01
"""A smaller difference is none."""

Ratio = Callable[[Float64], float]
"""How many times as much as usual, from a figure as GPUs x iterations; NaN where unknown."""


def more_work(run: Run, gpus: Sequence[int], iterations: Sequence[int], ratio: Ratio) -> str:
    """What there is more of: `1.3× the tokens`, else `30 % more FLOPs`; empty without more."""
    tokens = ratio(tokens_in(run, gpus, iterations))
    if tokens >= 1 + _LEAST:
        return f"{tokens:.3g}× the tokens"
    cells = run.tree().split((), ("gpu", "iteration"))
    place = (
        first_equal(np.asarray(gpus), cells.codes("gpu").astype(np.int64)),
        first_equal(np.asarray(iterations), cells.codes("iteration").astype(np.int64)),
    )
    own = (place[0] >= 0) & (place[1] >= 0)
    kernels = cells.sizes() - cells.sum("collectives") - cells.sum("copies")
    for word, values in (("FLOPs", cells.known(FLOPS)[0]), ("kernels", kernels)):
        found = np.full((len(gpus), len(iterations)), np.nan)
        found[place[0][own], place[1][own]] = values[own]
        more = ratio(found)
        if more >= 1 + _LEAST:
            return f"{percent(more - 1)} more {word}"
    return ""
