"""Which of several runs is the fastest, and which are as fast within the noise of their steps.

Two are equally fast where their steps don't differ beyond noise: the Wilcoxon-Mann-Whitney test of
`determinism`, adjusted for the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.significance import LEVEL, adjusted, can_differ, unpaired
from chopper_core.extensions.runs.figures import HIGHER, is_better
from chopper_core.extensions.runs.run_rows import RunRow
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import median_of

_SPEEDS: Final = ("run_tokens_per_s", "samples_per_s", "step_time_ns")
_STEP: Final = "step_time_ns"
PER_STEP: Final = ("step_time_ns", "j_per_step")
"""Figures of a step: they compare runs whose steps do the same work."""
_SAME_WORK: Final = ("global_batch", "sequence")
"""Settings that must be the same where steps are compared, not tokens or samples."""
_SAME_TOKENS: Final = 1.001
"""Times the fewest tokens of a step: more is other work."""
_NO_STEPS: Final = np.empty(0, np.float64)
MODEL: Final = "model"
"""The setting whose runs are compared, unless another one is chosen."""


class Speed(Struct, frozen=True, eq=False):
    """The runs of a group by their speed, the fastest first."""

    figure: str
    rows: tuple[RunRow, ...]
    values: Float64
    """More is faster."""
    chances: Float64
    """How likely chance alone makes the steps of a run differ so much from the fastest's;
    NaN where there are too few steps."""

    @property
    def equal(self) -> tuple[int, ...]:
        """The places of the runs as fast as the fastest within noise, which is the first."""
        return (0, *np.flatnonzero(self.chances >= LEVEL).tolist())


def speed_of(rows: Sequence[RunRow]) -> Speed | None:
    """The runs that have the best figure of speed that two of them have; None without one."""
    figure = common_figure(rows, _SPEEDS)
    if figure is None:
        return None
    known = [row for row in rows if figure in row.figures]
    values = np.array([figure_in(row, figure) for row in known])
    values = values if is_better(figure) == HIGHER else 1.0 / values
    order = np.argsort(-values, kind="stable")
    ordered = [known[place] for place in order.tolist()]
    first = _of_iterations(ordered[0], float(values[order[0]]))
    chances = [np.nan]
    for place, row in zip(order[1:].tolist(), ordered[1:], strict=True):
        is_enough = can_differ(len(row.steps_ns), len(first))
        steps = _of_iterations(row, float(values[place])) if is_enough else _NO_STEPS
        chances.append(unpaired(steps, first))
    return Speed(figure, tuple(ordered), values[order], adjusted(np.array(chances)))


def common_figure(rows: Sequence[RunRow], figures: Sequence[str]) -> str | None:
    """The first figure that all runs with any of them have, of steps only if the work is equal."""
    timed = [row for row in rows if any(name in row.figures for name in figures)]
    if len(timed) < 2:
        return None
    for name in figures:
        if all(name in row.figures for row in timed) and (
            name not in PER_STEP or equal_work(timed)
        ):
            return name
    return None


def equal_work(rows: Sequence[RunRow]) -> bool:
    """Whether the steps of runs do the same work, as far as settings and tokens tell."""
    tokens = [figure_in(row, "run_tokens_per_s") * figure_in(row, _STEP) for row in rows]
    known = [each for each in tokens if np.isfinite(each)]
    stated = {tuple(row.settings.get(name) for name in _SAME_WORK) for row in rows}
    return len(stated) < 2 and max(known, default=0.0) <= _SAME_TOKENS * min(known, default=0.0)


def _of_iterations(row: RunRow, value: float) -> Float64:
    steps = np.array(row.steps_ns, np.float64)
    return value * median_of(steps) / steps if len(steps) else steps


def figure_in(row: RunRow, figure: str) -> float:
    """A figure of a run; NaN where it is unknown."""
    value = row.figures.get(figure)
    return float(value) if isinstance(value, int | float) else np.nan
