"""The time in which activities run, GPU after GPU on one axis, against a loop over nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.model.signals import SpansOfGpus

_EPOCH = 1_700_000_000_000_000_000
"""Clocks of GPUs may begin this far from each other."""
_ROWS = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 9))


@given(st.lists(_ROWS, max_size=8), st.lists(_ROWS, min_size=1, max_size=8))
def test_spans_on_a_gpu_are_those_of_its_own_activities(
    activities: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
        gpu, start, length = np.array(rows, np.int64).reshape(-1, 3).T
        return [gpu, start + np.where(gpu == 1, _EPOCH, 0), length]

    running = SpansOfGpus.running(*columns(activities))
    gpu, begin, length = columns(asked)
    found = running.within(gpu, begin, begin + length)
    for (number, start, long), ns in zip(asked, found.tolist(), strict=True):
        own = [range(at, at + took) for other, at, took in activities if other == number]
        assert ns == sum(any(at in each for each in own) for at in range(start, start + long))
