"""The host lane and the queue beneath it, against plain loops; through store and joins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chopper_core.analyses.gaps import Gap, longest_gap, next_gap
from chopper_core.analyses.host_causes import READ_BACK, UNSEEN
from chopper_core.analyses.lanes import QUEUE, host_cells, queue_strip
from chopper_core.model.charts import Lanes
from chopper_core.model.side_table import HostKind, HostLane
from chopper_core.model.table import NO_TIME
from chopper_core.model.view import View, Window
from chopper_core.render import render_frame
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.views.query import query
from tests.allocating import allocating_run
from tests.support import opened_events, sample_run
from tests.views.test_launch_by_host import event, random_events

BINS = 37


def covered(ranges: list[tuple[int, int]], begin: int, end: int) -> int:
    """The time within two moments that any of the ranges covers, in µs steps."""
    inside = np.zeros(end - begin, np.bool_)
    for first, last in ranges:
        inside[max(first - begin, 0) : max(last - begin, 0)] = True
    return int(inside.sum())


@pytest.mark.parametrize("seed", range(3))
def test_cells_are_those_of_a_plain_loop(tmp_path: Path, seed: int) -> None:
    events = random_events(seed)
    events += [event("cuda_runtime", "hipStreamSynchronize", at, at + 9) for at in (40, 300, 800)]
    # Of a thread that launches nothing.
    events.append(event("cpu_op", "elsewhere", 0, 5_000, 99))
    run = opened_events(tmp_path, events)
    threads = {
        e["tid"] for e in events if e["args"].get("correlation") and "device" not in e["args"]
    }
    own = [e for e in events if e["tid"] in threads]
    calls = [
        (e["ts"], e["ts"] + e["dur"])
        for e in own
        if e["cat"] == "cuda_runtime" and "Launch" not in e["name"]
    ]
    operators = [(e["ts"], e["ts"] + e["dur"]) for e in own if e["cat"] == "cpu_op"]
    origin, begin, end = run.origin_ns, 200, 200 + 40 * BINS
    first = min(e["ts"] for e in events if e["cat"] == "kernel")
    shift = origin - int(first) * 1000
    cells = host_cells(run, 0, begin * 1000 + shift, end * 1000 + shift, BINS)
    assert cells is not None
    for bin_, (low, high) in enumerate(
        (begin + 40 * number, begin + 40 * number + 40) for number in range(BINS)
    ):
        in_calls = covered([(int(a), int(b)) for a, b in calls], low, high)
        anything = covered([(int(a), int(b)) for a, b in (*calls, *operators)], low, high)
        assert cells.busy_ns[bin_] == anything * 1000
        assert cells.kind_ns[HostKind.CALL][bin_] == in_calls * 1000
        assert cells.kind_ns[HostKind.OPERATOR][bin_] == (anything - in_calls) * 1000
    assert "elsewhere" not in run.side(HostLane).names


@pytest.mark.parametrize("seed", range(3))
def test_the_queue_is_that_of_a_plain_loop(tmp_path: Path, seed: int) -> None:
    run = opened_events(tmp_path, random_events(seed))
    table = run.table
    begin, end = run.origin_ns - 1_000, run.origin_ns + 1_000 * BINS * 30
    strip = queue_strip(run, 0, begin, end, BINS)
    assert strip is not None and strip.title == QUEUE
    edges = begin + (end - begin) * np.arange(BINS + 1) // BINS
    for bin_ in range(BINS):
        waited = 0
        for launch, start in zip(table.launch_ns.tolist(), table.start_ns.tolist(), strict=True):
            if launch != NO_TIME:
                low, high = max(launch, int(edges[bin_])), min(start, int(edges[bin_ + 1]))
                waited += max(high - low, 0)
        assert strip.numbers[bin_] == pytest.approx(waited / (edges[bin_ + 1] - edges[bin_]))


def test_the_lane_goes_through_the_store_and_through_joins(tmp_path: Path) -> None:
    run = allocating_run()
    write_store(run, tmp_path / "store")
    stored = read_store(tmp_path / "store").side(HostLane)
    assert tuple(stored.names) == tuple(run.side(HostLane).names) and len(stored) > 20
    for name, values in run.side(HostLane).columns().items():
        assert np.array_equal(stored.columns()[name], values)
    assert set(stored.gpu.tolist()) == {0, 1}
    part = stored.of_gpu(0, "kind", HostKind.OPERATOR)
    assert part.stop > part.start
    twice = HostLane.joined([stored, stored.from_gpu(2)])
    assert len(twice) == 2 * len(stored)
    assert [twice.names[code] for code in twice.name[len(stored) :].tolist()] == [
        stored.names[code] for code in stored.name.tolist()
    ]


def test_the_chart_has_the_host_of_each_gpu() -> None:
    run = allocating_run()
    frame = query(run, View("R", ("1",), name="timeline", window=Window(0, 60_000)))
    (chart,) = frame.charts
    assert isinstance(chart, Lanes) and chart.hosts is not None
    cells = chart.hosts(0, 40)
    assert cells is not None and cells.busy_ns.any()
    assert any(span.text.startswith("aten::") for span in cells.spans)
    assert QUEUE in [strip.title for strip in chart.strips(0, 40)]
    (document,) = json.loads(render_frame(frame, "json", has_pictures=True))["pictures"]
    assert sum(document["hosts"]["GPU 1"]["busy_ns"]) > 0


def test_a_run_without_host_events_has_no_lane() -> None:
    run = sample_run()
    assert host_cells(run, 0, run.origin_ns, run.origin_ns + 1_000, 10) is None
    frame = query(run, View("R", ("1",), name="timeline"))
    assert (
        json.loads(render_frame(frame, "json", has_pictures=True))["pictures"][0]["hosts"]["GPU 1"]
        is None
    )


def waiting_events() -> list[dict[str, object]]:
    """Kernels with gaps of 20, 500 and 60 µs; in the second the host reads a value back for 300."""
    runs = ((0, 100), (120, 200), (700, 800), (860, 900))
    events = [event("cpu_op", "aten::item", 210, 510)]
    for number, (begin, end) in enumerate(runs, 1):
        call = event("cuda_runtime", "hipLaunchKernel", begin - 5, begin, correlation=number)
        kernel = event("kernel", f"k{number}", begin, end, device=0, stream=0, correlation=number)
        events += [call, kernel]
    return events


def test_a_cursor_in_a_gap_tells_what_the_host_does(tmp_path: Path) -> None:
    run = opened_events(tmp_path, waiting_events())

    def at(moment_us: int) -> tuple[object, object]:
        window = Window(at_ns=moment_us * 1000)
        row = query(run, View(run.name, name="timeline", window=window)).row(0)
        return row["at_gap_ns"], row["at_host"]

    gap, host = at(400)
    assert gap == 500_000
    # 300 µs in the operator, 5 in the launch, the rest in nothing that the trace shows.
    assert host == f"{READ_BACK} (aten::item) 300 µs, {UNSEEN} 195 µs"
    assert at(110)[0] == 20_000 and at(150) == (None, None)
    longest = longest_gap(run, View(run.name))
    assert longest == Gap(0, run.origin_ns + 200_000, run.origin_ns + 700_000)


def test_gaps_are_stepped_through_in_order_but_for_short_ones(tmp_path: Path) -> None:
    run = opened_events(tmp_path, waiting_events())
    for least_us, lengths in ((1, [20, 500, 60]), (50, [500, 60]), (501, [])):
        at, found = run.origin_ns, []
        while (gap := next_gap(run, 0, at, 1, least_us * 1000)) is not None:
            found.append(gap.length_ns // 1000)
            at = gap.middle_ns
        assert found == lengths
        back = []
        while (gap := next_gap(run, 0, at, -1, least_us * 1000)) is not None:
            back.append(gap.length_ns // 1000)
            at = gap.middle_ns
        assert back == lengths[-2::-1]
