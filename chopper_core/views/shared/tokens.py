"""The tokens of a step on each GPU, from the shapes in the trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chopper_core.model.column_names import TOKENS
from chopper_core.model.run import Run
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import distinct


def tokens_in(run: Run, gpus: Sequence[int], iterations: Sequence[int]) -> Float64:
    """The tokens of each iteration of each GPU, as GPUs x iterations; NaN where not known.

    An iteration that shows none has those of the GPU's others, where these all have as many.
    """
    found = np.full((len(gpus), len(iterations)), np.nan)
    if TOKENS not in run.table.measured:
        return found
    steps = run.tree().split((), ("gpu", "iteration"))
    sums, _ = steps.known(TOKENS)
    rows = {gpu: place for place, gpu in enumerate(gpus)}
    columns = {iteration: place for place, iteration in enumerate(iterations)}
    codes = zip(steps.codes("gpu").tolist(), steps.codes("iteration").tolist(), strict=True)
    for (gpu, iteration), tokens in zip(codes, sums.tolist(), strict=True):
        if gpu in rows and iteration in columns:
            found[rows[gpu], columns[iteration]] = tokens
    for own in found:
        known = distinct(own[own > 0])
        own[~(own > 0)] = known[0] if len(known) == 1 else np.nan
    return found
