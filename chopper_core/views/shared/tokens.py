"""What GPUs have to do in a step: the tokens of each and of all, and how much more than others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from chopper_core.model.column_names import FLOPS, TOKENS
from chopper_core.model.parallel import SHARING
from chopper_core.model.run import Run
from chopper_core.model.settings import Setting
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.phrases import percent
from chopper_core.views.shared.step_times import of_steps


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
    if TOKENS not in run.table.measured:
        return np.full((len(gpus), len(iterations)), np.nan)
    steps = run.tree().split((), ("gpu", "iteration"))
    found = of_steps(steps, gpus, iterations, steps.known(TOKENS)[0], np.nan)
    for own in found:
        known = distinct(own[own > 0])
        own[~(own > 0)] = known[0] if len(known) == 1 else np.nan
    return found


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
    kernels = cells.sizes() - cells.sum("collectives") - cells.sum("copies")
    for word, values in (("FLOPs", cells.known(FLOPS)[0]), ("kernels", kernels)):
        more = ratio(of_steps(cells, gpus, iterations, values, np.nan))
        if more >= 1 + _LEAST:
            return f"{percent(more - 1)} more {word}"
    return ""
