"""The energy of the complete steps of a scope, and of their tokens, on all of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from chopper_core.analyses.samples import energy_of_windows
from chopper_core.analyses.step_times import (
    of_steps,
    step_windows,
    tokens_in,
    untraced_in,
    whole_steps,
)
from chopper_core.columns import METRICS, Scope, Values
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Mask
from chopper_core.util.grouping import ratios

_LACKS = -np.inf
"""The energy where a GPU has no such complete step."""


class StepEnergy(Struct, frozen=True, eq=False):
    """Energy and tokens of whole steps, as GPUs x steps.

    GPUs without a trace have the steps of the others.
    """

    gpus: tuple[int, ...]
    iterations: tuple[int, ...]
    joules: Float64
    """NaN where unknown, -inf where a GPU has no such complete step."""
    held: Mask
    """Where a sample of the power counts for up to a period beyond the samples."""
    tokens: Float64
    """Those that a GPU works on; NaN where unknown."""

    @classmethod
    def of(cls, run: Run, view: View, given: float | None) -> StepEnergy:
        """Of the steps of a scope; `given` are the tokens of a GPU and step."""
        steps, gpus, numbers = whole_steps(run, view)
        energy = METRICS["energy_j"].compute(Scope.of(run, steps))
        is_cut = np.isin(steps.codes("iteration"), [] if view.cut else [*run.cut_iterations])
        joules, held = np.where(is_cut, _LACKS, energy.known()), _is_held(energy)
        joules = of_steps(steps, gpus, numbers, joules, _LACKS)
        held = of_steps(steps, gpus, numbers, held, False)
        everyone, iterations = gpus.tolist(), numbers.tolist()
        if untraced := untraced_in(run, view):
            windows = step_windows(run, view)
            more, is_held = energy_of_windows(run, view, untraced)
            place = {number: at for at, number in enumerate(windows.iterations)}
            at = np.array([place.get(number, -1) for number in iterations], np.intp)
            shape = len(untraced), len(iterations)
            there = np.broadcast_to(at >= 0, shape)
            joules = np.vstack([joules, np.where(there, more[:, at], _LACKS)])
            held = np.vstack([held, there & is_held[:, at]])
            everyone += untraced
        tokens = tokens_in(run, everyone, iterations, given)
        return cls(tuple(everyone), tuple(iterations), joules, held, tokens)

    @property
    def _whole(self) -> Mask:
        return ~np.isneginf(self.joules)

    def _sums(self, rows: Sequence[Index]) -> tuple[Float64, Float64]:
        """Energy and tokens of the whole steps of each row's GPUs."""
        whole = self._whole
        energy, used = (
            np.where(whole, each, 0.0).sum(axis=1) for each in (self.joules, self.tokens)
        )
        return (
            np.array([energy[own].sum() for own in rows]),
            np.array([used[own].sum() for own in rows]),
        )

    @property
    def _alone(self) -> list[Index]:
        return [np.array([place], np.intp) for place in range(len(self.gpus))]

    def each(self, rows: Sequence[Index] | None = None) -> Values:
        """The mean energy of a step of each GPU, or of the GPUs of each row together."""
        whole = self._whole
        mean = ratios(np.where(whole, self.joules, 0.0).sum(axis=1), whole.sum(axis=1))
        rows = self._alone if rows is None else rows
        numbers = np.array([mean[own].sum() for own in rows], np.float64)
        is_held = np.array([self.held[own].any() for own in rows], np.bool_)
        return Values(numbers, extrapolated=is_held & np.isfinite(numbers))

    def each_token(self, rows: Sequence[Index] | None = None) -> Values:
        """The energy of a token of each GPU, or of the GPUs of each row together, in mJ."""
        energy, used = self._sums(self._alone if rows is None else rows)
        return Values(1e3 * ratios(energy, used))

    def together(self) -> Values:
        """The mean energy of a step of all GPUs, as one value."""
        return self.each([np.arange(len(self.gpus))])

    def token(self) -> Values:
        """The energy of a token of all GPUs together, in mJ, as one value."""
        return self.each_token([np.arange(len(self.gpus))])

    def of_iterations(self) -> tuple[Values, Values]:
        """The energy of each step on all GPUs, in J, and of a token of it, in mJ."""
        joules = self.joules.sum(axis=0)
        is_held = self.held.any(axis=0) & np.isfinite(joules)
        return (
            Values(joules, extrapolated=is_held),
            Values(1e3 * ratios(joules, self.tokens.sum(axis=0))),
        )


def _is_held(values: Values) -> Mask:
    """Where a value is marked as extrapolated."""
    return np.zeros(len(values), np.bool_) if values.extrapolated is None else values.extrapolated
