"""The pace of compute after idle time, against runs made with a known one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from chopper_core.graph.build import step_graph
from chopper_core.graph.pace import pace_after_idle
from chopper_core.model.run import Run
from tests.support import Row, run_of

BEFORE = 30_000_000


def idle_share(spans: list[tuple[int, int]], begin: int) -> float:
    """The share of the 30 ms before a time in which no kernel runs."""
    busy = sum(max(0, min(end, begin) - max(start, begin - BEFORE)) for start, end in spans)
    return 1 - busy / BEFORE


def paced_run(pace: float, noise: float = 0.0) -> Run:
    """Kernels of 1 ms with pauses of any length, which take less after idle time."""
    random, now = Random(7), 0
    rows: list[Row] = []
    spans: list[tuple[int, int]] = []
    for number in range(400):
        now += random.choice((0, 0, 0, 5_000_000))
        chance = 1 + noise * random.uniform(-1, 1)
        duration = round(1_000_000 * (1 - pace * idle_share(spans, now)) * chance)
        spans.append((now, now + duration))
        rows.append(Row(now, duration, iteration=number // 40))
        now += duration
    return run_of(rows)


def found_pace(run: Run) -> float:
    graph = step_graph(run)
    kind = run.table.kind[graph.row[graph.activities]].astype(np.int64)
    return pace_after_idle(run, graph, kind)


@pytest.mark.parametrize("pace", [0.02, 0.05, 0.1])
def test_compute_that_is_faster_after_idle_time_is_known_by_how_much(pace: float) -> None:
    assert found_pace(paced_run(pace)) == pytest.approx(pace, rel=0.1)


def test_noise_leaves_the_pace_open_and_its_end_never_below_the_truth() -> None:
    assert 0.05 <= found_pace(paced_run(0.05, noise=0.01)) < 0.08


def test_slower_after_idle_time_is_no_faster_pace_and_more_than_a_third_none() -> None:
    assert found_pace(paced_run(-0.05)) == 0
    assert found_pace(paced_run(0.6)) == pytest.approx(1 / 3)


def test_a_run_of_no_idle_time_shows_none() -> None:
    rows = [Row(1_000 * at, 1_000, iteration=at // 10) for at in range(100)]
    assert found_pace(run_of(rows)) == 0
