"""The baseline's lane beneath a timeline's: matched by name and occurrence, with the drift."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from chopper_core.model.charts import Lanes
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.render.glyphs import UNICODE
from chopper_core.views.query import query
from chopper_tui.draw.charts import draw as draw_lanes
from tests.support import sample_run

RUN = "sample.json"


@pytest.fixture(scope="module")
def run() -> Run:
    return sample_run(2, 3, 4)


def numbered_starts(run: Run, gpu: int, iteration: int) -> dict[tuple[str, int], int]:
    """(name, occurrence) → start, activity by activity."""
    table, seen = run.table, Counter[str]()
    rows = [r for r in range(len(table)) if (table.gpu[r], table.iteration[r]) == (gpu, iteration)]
    found = {}
    for row in sorted(rows, key=lambda each: int(table.start_ns[each])):
        name = table.names[table.kernel[row]]
        found[name, seen[name]] = int(table.start_ns[row])
        seen[name] += 1
    return found


def lanes_of(run: Run, view: View) -> Lanes:
    chart = query(run, view).charts[0]
    assert isinstance(chart, Lanes)
    return chart


@pytest.mark.parametrize("base", [("1", "11"), ("0", "12")])
def test_it_is_moved_to_the_first_match_and_drifts_until_the_last(
    run: Run, base: tuple[str, str]
) -> None:
    view = View(RUN, ("0", "11"), name="timeline", baseline=Baseline("", base))
    chart = lanes_of(run, view)
    assert chart.ghosts is not None
    ghost = chart.ghosts(0, 50)
    assert ghost is not None
    own = numbered_starts(run, 0, 11)
    there = numbered_starts(run, int(base[0]), int(base[1]))
    begin, end = (run.origin_ns + t for t in (chart.seen.from_ns, chart.seen.to_ns))
    pairs = sorted((t, there[key]) for key, t in own.items() if key in there and begin <= t < end)
    assert len(pairs) > 10
    shift = pairs[0][0] - pairs[0][1]
    assert ghost.drift_ns == pairs[-1][0] - pairs[-1][1] - shift
    # The busy time is that of the baseline's lane in the moved window.
    table, gpu = run.table, int(base[0])
    moment = np.zeros(end - begin, np.bool_)
    lane = int(chart.lanes[0].rpartition("s")[2])
    for row in range(len(table)):
        if table.gpu[row] == gpu and table.stream[row] == lane:
            start = int(table.start_ns[row]) + shift - begin
            stop = start + int(table.duration_ns[row])
            moment[max(start, 0) : max(stop, 0)] = True
    assert int(ghost.cells.busy_ns.sum()) == int(moment.sum())


def test_without_a_baseline_there_is_none(run: Run) -> None:
    assert lanes_of(run, View(RUN, ("0", "11"), name="timeline")).ghosts is None


def test_it_is_drawn_beneath_its_lane_with_the_drift_at_the_edge(run: Run) -> None:
    view = View(RUN, ("0", "11"), name="timeline", baseline=Baseline("", ("1", "11")))
    chart = lanes_of(run, view)
    lines = ["".join(text for text, _ in line) for line in draw_lanes(chart, 100, 30, UNICODE)]
    at = next(y for y, line in enumerate(lines) if "▌" + chart.lanes[0] in line)
    assert chart.ghosts is not None
    ghost = chart.ghosts(0, 50)
    assert ghost is not None and "GPU 1" in lines[at + 1]
    drift = f"{ghost.drift_ns / 1e6:+.3f} ms" if ghost.drift_ns else "0 ms"
    assert lines[at + 1].endswith(drift)
    low = ["".join(text for text, _ in line) for line in draw_lanes(chart, 100, 9, UNICODE)]
    assert len(low) <= 9 and 1 <= sum("GPU 1" in line for line in low) <= 4
