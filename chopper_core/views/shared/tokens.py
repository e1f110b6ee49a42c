"""The tokens of a step: of each GPU, from the shapes in the trace, and of all GPUs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from chopper_core.model.column_names import TOKENS
from chopper_core.model.parallel import SHARING
from chopper_core.model.run import Run
from chopper_core.model.settings import Setting
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import distinct


def replicas(sizes: Mapping[str, Setting], ranks: float = 1.0) -> float:
    """The data-parallel replicas that some ranks make up, less than one for a part of a replica.

    Ranks that differ only along `SHARING` work on the same tokens, so that tokens per second are
    those of a rank times the replicas.
    """
    known = (sizes.get(name) for name in SHARING)
    return ranks / prod(size for size in known if isinstance(size, int | float) and size > 0)


def replicas_of(run: Run, gpus: Sequence[int] = ()) -> float:
    """The replicas of some GPUs, or per GPU; of all GPUs of a run, those of its whole world."""
    sizes = run.parallel.sizes if run.parallel is not None else {}
    return replicas(sizes, ranks_of(run, gpus) if gpus else 1.0)


def ranks_of(run: Run, gpus: Sequence[int]) -> int:
    """The number of GPUs; of all GPUs of a run, the ranks of the job, known by its traces."""
    return len(gpus) if len(gpus) < len(run.gpus) else max(len(gpus), run.world)


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
