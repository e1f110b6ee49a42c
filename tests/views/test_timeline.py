"""Timeline: cells, rows and jumps against slow counts, ns by ns."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.analyses import lanes
from chopper_core.analyses.lane_cells import cells_of
from chopper_core.analyses.lanes import (
    CLASS_NAMES,
    Lane,
    busy_by_class,
    edges,
    lane_of,
    lanes_of,
    next_start,
    slack_strip,
    waits_of,
)
from chopper_core.graph.collectives import collectives_of
from chopper_core.graph.slack import row_slack
from chopper_core.model.address import parse, render
from chopper_core.model.charts import SLACK, Lanes
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Category, Kind, Phase
from chopper_core.model.view import View, Window
from chopper_core.render import as_csv, as_json
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_core.work.kernel_classes import kernel_class
from chopper_tui.export import printed
from tests.demo import demo_run
from tests.support import Row, run_of, sample_run
from tests.wording import Wording

ROWS = st.lists(
    st.builds(
        Row,
        start=st.integers(0, 300),
        duration=st.integers(0, 60),
        kind=st.sampled_from(Kind),
        stream=st.sampled_from([7, 8, -1]),
        gpu=st.sampled_from([0, 1]),
        layer=st.integers(-1, 3),
        kernel=st.sampled_from(["a", "b", "c"]),
    ),
    min_size=1,
    max_size=25,
)


def lanes_picture(run: Run, view: View) -> Lanes:
    picture = query(run, view).charts[0]
    assert isinstance(picture, Lanes)
    return picture


def slow_busy(rows: list[Row], begin: int, end: int) -> int:
    return sum(any(r.start <= t < r.start + r.duration for r in rows) for t in range(begin, end))


@pytest.mark.sweep
@given(ROWS, st.integers(0, 250), st.integers(1, 120), st.integers(1, 13))
def test_cells_are_what_a_slow_count_finds(
    rows: list[Row], begin: int, length: int, bins: int
) -> None:
    run = run_of(rows)
    end = begin + length
    for gpu in {row.gpu for row in rows}:
        for lane in (*lanes_of(run, gpu), *lanes_of(run, gpu, whole=True)):
            own = [r for r in rows if r.gpu == gpu and lane.stream in (None, r.stream)]
            cells = cells_of(run, lane, begin, end, bins)
            cuts = [begin + length * cell // bins for cell in range(bins + 1)]
            assert cells.width_ns.tolist() == np.diff(cuts).tolist()
            for cell, (low, high) in enumerate(pairwise(cuts)):
                assert cells.busy_ns[cell] == slow_busy(own, low, high)
                for kind in Kind:
                    of_kind = [row for row in own if row.kind == kind]
                    assert cells.kind_ns[kind, cell] == slow_busy(of_kind, low, high)
            # Nothing is lost between cells.
            assert cells.busy_ns.sum() == lane.busy.between(np.array([begin, end]))[0]
            assert cells.busy_ns.sum() == slow_busy(own, begin, end)


@pytest.mark.sweep
@given(ROWS, st.integers(0, 380), st.integers(1, 100))
def test_what_runs_is_what_a_slow_search_finds(rows: list[Row], at: int, length: int) -> None:
    run = run_of(rows)
    for lane in lanes_of(run, rows[0].gpu):
        own = [r for r in rows if r.gpu == lane.gpu and r.stream == lane.stream]
        found = lane.running(at)
        running = [r for r in own if r.start <= at < r.start + r.duration]
        assert (found is None) == (not running)
        if found is not None:
            assert lane.starts_ns[found] == max(row.start for row in running)
            assert lane.ends_ns(slice(found, found + 1))[0] > at
        later = [row.start for row in own if row.start > at]
        earlier = [row.start for row in own if row.start < at]
        after, before = lane.after(at), lane.before(at)
        assert (None if after is None else lane.starts_ns[after]) == min(later, default=None)
        assert (None if before is None else lane.starts_ns[before]) == max(earlier, default=None)
        there = [r for r in own if r.start < at + length and r.start + r.duration > at]
        assert lane.count(at, at + length) == len(there)


@given(ROWS)
def test_a_lane_holds_every_activity_once(rows: list[Row]) -> None:
    run = run_of(rows)
    seen: Counter[int] = Counter()
    for gpu in {row.gpu for row in rows}:
        for lane in lanes_of(run, gpu):
            seen.update(lane.rows.tolist())
            assert set(run.table.stream[lane.rows].tolist()) == {lane.stream}
    assert seen == Counter(range(len(rows)))


@pytest.mark.parametrize(
    "address",
    [
        "R?view=timeline",
        "R:gpu=3?view=timeline&from=100ms&to=101.5ms&at=100.25ms&mark=101ms",
        "R:gpu=1/iteration=11/phase=backward?view=timeline",
        "R?order=operation&view=timeline&by=gpu&from=0.9s&to=0.95s",
        "R:operation=attn_fa?order=operation&view=timeline&from=500ms&to=520ms",
    ],
)
def test_rows_are_plain_sums_over_the_demo(run: Run, address: str) -> None:
    view = parse(address)
    found = query(run, view)
    picture = lanes_picture(run, view)
    seen, table, origin = picture.seen, run.table, run.origin_ns
    begin, end, at = (time + origin for time in (seen.from_ns, seen.to_ns, seen.at_ns))
    start, stop = table.start_ns, table.start_ns + table.duration_ns
    own = set(run.tree(view.order).node(view.path).rows.tolist())
    for number, label in enumerate(found.labels):
        row = found.row(number) | {n: v.cell(number) for n, v in found.values.items()}
        gpu, _, stream = label.removeprefix("GPU ").partition(" s")
        mask = (table.gpu == int(gpu)) & (table.category != Category.OUTSIDE)
        if stream:
            mask &= table.stream == int(stream)
        there = np.flatnonzero(mask & (start < end) & (stop > begin))
        assert row["lane_activities"] == len(there)
        assert row["lane_ns"] == length_of(start[there], stop[there], begin, end)
        if "scope_ns" in row:
            mine = np.array([r for r in there.tolist() if r in own], np.intp)
            assert row["scope_ns"] == length_of(start[mine], stop[mine], begin, end)
        if seen.mark_ns is not None:
            low, high = sorted((at, seen.mark_ns + origin))
            between = np.flatnonzero(mask & (start < high) & (stop > low))
            assert row["between_ns"] == length_of(start[between], stop[between], low, high)
            assert row["between_activities"] == len(between)
        running = np.flatnonzero(mask & (start <= at) & (stop > at))
        if not len(running):
            assert row["at_kernel"] is None and row["at_duration_ns"] is None
        else:
            last = int(running[np.argmax(start[running])])
            assert row["at_kernel"] == table.names[table.kernel[last]]
            assert row["at_duration_ns"] == table.duration_ns[last]
            assert row["at_start_ns"] == start[last] - origin
            layer = int(table.layer[last])
            assert row["at_layer"] == (None if layer == NO_LABEL else layer)
            there_view = parse(found.addresses(number))
            assert run.tree(there_view.order).node(there_view.path).rows.tolist() == [last]
    assert found.total["lane_ns"] == found.values["lane_ns"].numbers.sum()


def length_of(starts: np.ndarray, ends: np.ndarray, begin: int, end: int) -> int:
    """The time in which any runs, by walking along the activities."""
    total, reached = 0, begin
    for low, high in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        low, high = max(low, reached), min(high, end)
        if high > low:
            total += high - low
            reached = high
    return total


def test_a_scope_without_a_window_is_shown_whole(run: Run) -> None:
    view = parse("R:gpu=2/iteration=11/phase=forward?view=timeline")
    seen = lanes_picture(run, view).seen
    node = run.tree().node(view.path)
    assert seen.from_ns == node.min("start_ns")[0] - run.origin_ns
    assert seen.to_ns == node.max("end_ns")[0] - run.origin_ns
    assert seen.from_ns < seen.at_ns < seen.to_ns
    of_scope = query(run, view).values["scope_ns"].numbers.sum()
    assert 0 < of_scope < query(run, view).values["lane_ns"].numbers.sum()


@pytest.mark.parametrize("kind", [None, *Kind])
@pytest.mark.parametrize("step", [1, -1])
def test_a_jump_goes_to_the_next_start(run: Run, kind: Kind | None, step: int) -> None:
    table = run.table
    view = parse("R:gpu=5?view=timeline&from=600ms&to=640ms&at=610.123ms")
    labels = query(run, view).labels
    for label in labels:
        mask = table.gpu == 5
        if kind is None:
            mask &= table.stream == int(label.partition(" s")[2])
        else:
            mask &= table.kind == kind
        starts = table.start_ns[mask] - run.origin_ns
        beyond = starts[starts > 610_123_000] if step > 0 else starts[starts < 610_123_000]
        found = next_start(run, view, label, step, kind)
        if not len(beyond):
            assert found is None
            continue
        assert found is not None
        lane, seen = found
        assert seen.at_ns == (beyond.min() if step > 0 else beyond.max())
        assert seen.from_ns <= seen.at_ns <= seen.to_ns and seen.length_ns == 40_000_000
        there = table.gpu == 5
        there &= table.stream == int(lane.partition(" s")[2])
        assert seen.at_ns + run.origin_ns in table.start_ns[there]


def test_all_collectives_are_reached_one_after_another() -> None:
    run = sample_run(gpus=2)
    view = View("R", ("1",), name="timeline", window=Window(at_ns=0))
    wanted = np.unique(run.table.start_ns[(run.table.kind == Kind.COMM) & (run.table.gpu == 1)])
    reached = []
    while (found := next_start(run, view, "GPU 1 s0", 1, Kind.COMM)) is not None:
        reached.append(found[1].at_ns + run.origin_ns)
        view = replace(view, window=found[1].window())
    assert reached == wanted.tolist()


def test_bands_name_what_computes_in_the_middle_of_each_cell(run: Run) -> None:
    view = parse("R:gpu=4?view=timeline&from=700ms&to=760ms")
    picture, table, bins = lanes_picture(run, view), run.table, 90
    bands = {band.title: band for band in picture.bands(0, bins)}
    assert list(bands) == ["iteration", "phase", "layer", "operation"]
    computes = np.flatnonzero((table.gpu == 4) & (table.kind == Kind.COMPUTE))
    computes = computes[np.argsort(table.start_ns[computes], kind="stable")]
    checked = 0
    for title, prefix in (("phase", ""), ("layer", "L")):
        for span in bands[title].spans:
            if span.dense:
                continue
            for cell in range(span.begin, span.end):
                cuts = [700_000_000 + 60_000_000 * edge // bins for edge in (cell, cell + 1)]
                middle = run.origin_ns + sum(cuts) // 2
                last = computes[np.searchsorted(table.start_ns[computes], middle, "right") - 1]
                code = int(table.column(title)[last])
                assert span.text == prefix + table.text_of(title, code)
                checked += 1
    assert checked > bins


def test_strips_are_the_signal_of_the_lanes_gpu(run: Run) -> None:
    view = parse("R?view=timeline&from=700ms&to=760ms&metric=busy_pct")
    picture = lanes_picture(run, view)
    for row in (0, len(picture.lanes) - 1):
        gpu = int(picture.owners[row].removeprefix("GPU "))
        strips = picture.strips(row, 30)
        assert [strip.title for strip in strips] == ["busy", "gfx", "power", "queue", "slack"]
        begin, length = picture.seen.from_ns, picture.seen.length_ns
        bounds = np.array([begin + length * edge // 30 for edge in range(31)]) + run.origin_ns
        for strip, name in zip(strips[:3], ("busy_pct", "gfx_mhz", "power_w"), strict=True):
            means = run.signal(name).curves[gpu].means(bounds.astype(float))
            assert strip.numbers == pytest.approx(means, nan_ok=True)


def test_notes_name_what_is_unknown(wording: Wording) -> None:
    run = run_of([Row(0, 50, stream=-1), Row(100, 50, stream=-7), Row(120, 60, stream=-7)])
    found = query(run, parse("R?view=timeline&at=75ns"))
    assert found.labels == ["GPU 0 s?", "GPU 0 #7"] or found.labels == ["GPU 0 #7", "GPU 0 s?"]
    notes = " ".join(found.notes)
    wording(notes, "stream")
    assert "text names" in notes
    assert "no telemetry" in notes
    wording(notes, "1 activit", "stream")
    row = found.values
    assert row["at_kernel"].cell(0) is None
    assert sorted(row["next_ns"].cell(number) or -1 for number in (0, 1)) == [-1, 25]
    assert lanes_picture(run, parse("R?view=timeline")).strips(0, 10) == ()


@pytest.mark.parametrize(("at_ns", "waiting"), [(5, 0), (15, 2), (40, 2), (120, 1), (205, 0)])
def test_what_waits_in_the_queue_at_the_cursor(at_ns: int, waiting: int) -> None:
    """Three kernels on two streams, launched at 0, 10 and 12, that start at 5, 100 and 200."""
    run = run_of([Row(5, 50, launch=0), Row(100, 50, launch=10), Row(200, 50, stream=1, launch=12)])
    found = query(run, parse(f"R?view=timeline&at={at_ns - 5}ns")).values["at_queue"]
    assert [found.cell(row) for row in range(len(found))] == [waiting] * len(found)


def test_the_queue_at_any_time_is_what_is_launched_and_has_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "_BLOCK", 4)
    random = Random(3)
    starts = [20 * number + random.randrange(20) for number in range(40)]
    rows = []
    for start in starts:
        launch = random.choice([None, start - random.randrange(1, 300), start + 5])
        rows.append(Row(start, 30, stream=random.randrange(2), launch=launch))
    run = run_of(rows)
    launched = [(row.launch, row.start) for row in rows if row.launch is not None]
    for at in range(0, 900, 7):
        wanted = sum(launch <= at < start for launch, start in launched)
        assert lanes.waiting_at(run, 0, at) == wanted


def test_only_the_first_of_many_gpus_are_shown() -> None:
    run = run_of([Row(number, 50, gpu=number) for number in range(70)])
    found = query(run, parse("R?view=timeline"))
    assert len(found) == 64 and any("64 of 70 GPUs" in note for note in found.notes)
    assert query(run, parse("R:gpu=69?view=timeline")).labels == ["GPU 69 s0"]


def test_by_gpu_is_all_streams_together(run: Run) -> None:
    columns = "columns=gpu,lane_ns,lane_activities"
    streams = query(run, parse(f"R?view=timeline&from=100ms&to=300ms&{columns}"))
    gpus = query(run, parse("R?view=timeline&by=gpu&from=100ms&to=300ms"))
    assert gpus.labels == [f"GPU {number}" for number in range(8)]
    own: Counter[int] = Counter()
    for number in range(len(streams)):
        gpu = streams.values["gpu"].cell(number)
        assert isinstance(gpu, int)
        own[gpu] += int(streams.values["lane_activities"].numbers[number])
        assert gpus.values["lane_ns"].numbers[gpu] >= streams.values["lane_ns"].numbers[number]
    assert gpus.values["lane_activities"].numbers.tolist() == [own[gpu] for gpu in range(8)]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("R?view=kernels&from=1ms", "takes no from="),
        ("R?view=timeline&from=5s", "after the end of the run"),
        ("R?view=timeline&from=3ms&to=2ms", "not before"),
        ("R?view=timeline&by=layer", "takes by="),
        ("R?view=timeline&of=x", "takes no of="),
    ],
)
def test_what_cant_be_shown_is_said(run: Run, address: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        query(run, parse(address))


def test_rows_have_addresses_that_lead_back(run: Run) -> None:
    found = query(run, parse("R:gpu=3?view=timeline&from=10ms&to=20ms"))
    assert render(parse(found.address)) == found.address
    for number in range(len(found)):
        there = query(run, parse(found.addresses(number)))
        assert there.view.is_leaf


class Counted(np.ndarray):
    """An array that counts how many of its numbers are looked at."""

    looked_at = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):  # type: ignore[no-untyped-def]
        plain = [np.asarray(each) for each in inputs]
        Counted.looked_at += max((each.size for each in plain), default=0)
        return getattr(ufunc, method)(*plain, **kwargs)

    def __array_function__(self, func, types, args, kwargs):  # type: ignore[no-untyped-def]
        plain = [np.asarray(each) if isinstance(each, Counted) else each for each in args]
        if func is np.searchsorted:
            steps = int(np.ceil(np.log2(len(plain[0]) + 2)))
            Counted.looked_at += np.size(plain[1]) * steps
        else:
            Counted.looked_at += max((np.size(each) for each in plain), default=0)
        return func(*plain, **kwargs)


def counted(lane: Lane) -> Lane:
    def arrays(stretches):  # type: ignore[no-untyped-def]
        names = ("starts_ns", "ends_ns")
        made = replace(stretches, **{n: getattr(stretches, n).view(Counted) for n in names})
        made.__dict__["_before_ns"] = stretches._before_ns.view(Counted)
        return made

    names = ("starts_ns", "latest_ns")
    return replace(
        lane,
        **{name: getattr(lane, name).view(Counted) for name in names},
        kinds=tuple(map(arrays, lane.kinds)),
        busy=arrays(lane.busy),
    )


def work_of(count: int, bins: int, begin: int, end: int) -> int:
    """How many numbers are looked at for the cells of a lane of so many activities."""
    random = np.random.default_rng(3)
    edges = np.sort(random.choice(10**9, 2 * count, replace=False))
    rows = [
        Row(int(a), int(b - a), Kind(number % 3))
        for number, (a, b) in enumerate(edges.reshape(-1, 2).tolist())
    ]
    run = run_of(rows)
    lane = counted(lane_of(run.table, np.argsort(run.table.start_ns), 0, 0))
    busy_by_class(run, lane)  # Once per lane, as the lane itself.
    waits_of(run, lane)
    Counted.looked_at = 0
    cells_of(run, lane, begin, end, bins)
    lane.running((begin + end) // 2)
    return Counted.looked_at


def test_the_work_goes_with_the_cells_and_not_with_the_activities() -> None:
    whole = (0, 10**9)
    few, many = work_of(500, 80, *whole), work_of(8000, 80, *whole)
    # Sixteen times the activities are four steps more in each search.
    assert 0 < many <= few + 4 * 81 * (5 + len(CLASS_NAMES)) * 2
    assert many < 8000 * 3
    assert work_of(8000, 160, *whole) <= 2.2 * many
    assert work_of(8000, 80, 4 * 10**8, 4 * 10**8 + 10**5) <= 1.5 * many


@given(ROWS, st.integers(0, 250), st.integers(1, 120), st.integers(1, 13))
def test_a_lane_knows_when_its_gpu_computes(
    rows: list[Row], begin: int, length: int, bins: int
) -> None:
    run = run_of(rows)
    for gpu in {row.gpu for row in rows}:
        compute = [row for row in rows if row.gpu == gpu and row.kind == Kind.COMPUTE]
        for lane in (*lanes_of(run, gpu), *lanes_of(run, gpu, whole=True)):
            found = cells_of(run, lane, begin, begin + length, bins).computing_ns
            assert found is not None
            assert int(found.sum()) == slow_busy(compute, begin, begin + length)


def test_a_lane_waits_from_each_arrival_to_the_last() -> None:
    run = demo_run()
    starts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    collectives = collectives_of(run)
    assert collectives is not None
    table, last = run.table, collectives.last_start_ns[collectives.member_set]
    begin, end = int(table.start_ns.min()), int(collectives.end_ns.max()) + 1
    for row, until, waits in zip(collectives.rows, last, collectives.member_wait_ns, strict=True):
        if waits:
            starts[int(table.gpu[row])] += [(int(table.start_ns[row]), int(until))]
    for gpu, spans in starts.items():
        (lane,) = lanes_of(run, gpu, whole=True)
        waiting, until = 0, begin
        for first, stop in sorted(spans):
            waiting += max(stop - max(first, until), 0)
            until = max(until, stop)
        found = cells_of(run, lane, begin, end, 7).waiting_ns
        assert found is not None and int(found.sum()) == waiting > 0


@given(ROWS, st.integers(0, 250), st.integers(1, 120), st.integers(1, 13))
def test_compute_by_class_is_what_a_slow_count_finds(
    rows: list[Row], begin: int, length: int, bins: int
) -> None:
    run = run_of(rows)
    cuts = [begin + length * cell // bins for cell in range(bins + 1)]
    for lane in lanes_of(run, rows[0].gpu, whole=True):
        cells = cells_of(run, lane, begin, begin + length, bins)
        assert cells.class_ns is not None and len(cells.class_ns) == len(CLASS_NAMES)
        own = [r for r in rows if r.gpu == lane.gpu and r.kind == Kind.COMPUTE]
        for cell, (low, high) in enumerate(pairwise(cuts)):
            # No row of these has a name of a known class.
            assert cells.class_ns[-1, cell] == slow_busy(own, low, high)
        assert not cells.class_ns[:-1].any()


def test_the_classes_of_compute_are_those_of_the_kernels() -> None:
    run = sample_run()
    lane = lanes_of(run, 0, whole=True)[0]
    times = [int((each.ends_ns - each.starts_ns).sum()) for each in busy_by_class(run, lane)]
    for number, name in enumerate(CLASS_NAMES):
        own = [
            row
            for row in lane.rows.tolist()
            if run.table.kind[row] == Kind.COMPUTE
            and (kernel_class(run.table.names[run.table.kernel[row]]) == name.lower())
        ]
        if name in ("GEMM", "attention", "optimizer"):
            assert times[number] == run.table.duration_ns[own].sum()
    assert times[0] > 0 and times[1] > 0


def test_several_gpus_have_a_lane_each_and_one_has_its_streams() -> None:
    run = sample_run()
    assert lanes_picture(run, parse("R?view=timeline")).lanes[:2] == ("GPU 0", "GPU 1")
    assert lanes_picture(run, parse("R:gpu=1?view=timeline")).lanes[0].startswith("GPU 1 s")
    assert lanes_picture(run, parse("R?view=timeline&by=stream")).lanes[0].startswith("GPU 0 s")


def test_phases_are_told_apart_where_layers_meet() -> None:
    rows = [
        Row(0, 10, phase=Phase.FORWARD, layer=3, iteration=1),
        Row(10, 10, phase=Phase.BACKWARD, layer=3, iteration=1),
        Row(20, 10, phase=Phase.BACKWARD, layer=NO_LABEL, iteration=1),
        Row(500, 10, Kind.COPY),
    ]
    bands = lanes_picture(run_of(rows), parse("R?view=timeline&from=0&to=100ns")).bands(0, 10)
    found = {band.title: [(s.begin, s.end, s.text) for s in band.spans] for band in bands}
    assert found["phase"] == [(0, 1, "forward"), (1, 3, "backward")]
    assert found["layer"] == [(0, 1, "L3"), (1, 2, "L3")]


@pytest.mark.parametrize("scope", ["", ":gpu=3", ":gpu=3/iteration=11/phase=backward/layer=7"])
def test_every_format_has_the_lanes(run: Run, scope: str) -> None:
    found = query(run, parse(f"R{scope}?view=timeline"))
    told = json.loads(as_json(found, has_pictures=True))
    assert [row["name"] for row in told["rows"]] == list(found.labels)
    (picture,) = told["pictures"]
    assert picture["lanes"] == list(found.labels) and picture["cells"] == 100
    for row, busy in zip(told["rows"], picture["busy_ns"], strict=True):
        assert sum(busy) == row["lane_ns"]
    strips = picture["strips"]["GPU 3"]
    assert [strip["title"] for strip in strips] == ["gfx", "power", "queue", "slack"]
    assert len(strips[0]["numbers"]) == 100
    for form in ("text", "markdown"):
        text = printed(found, form, width=100)
        assert "▀ compute  ▄ comm" in text and "▼" in text
    assert as_csv(found).count("\n") == len(found) + 1


def test_lanes_are_those_of_the_rows(run: Run) -> None:
    every = lanes_picture(run, parse("R?view=timeline&by=stream&from=100ms&to=300ms"))
    view = parse("R?view=timeline&by=stream&from=100ms&to=300ms&filter=s11&sort=-lane_ns")
    found, some = query(run, view), lanes_picture(run, view)
    assert list(some.lanes) == list(found.labels) and len(found) == 8
    assert list(some.lanes) != sorted(some.lanes)
    for row, name in enumerate(some.lanes):
        other = every.lanes.index(name)
        assert (some.cells(row, 50).busy_ns == every.cells(other, 50).busy_ns).all()
        assert some.pointed[row] == every.pointed[other]
        assert some.owners[row] == every.owners[other]
        assert some.bands(row, 50) == every.bands(other, 50)
    assert lanes_picture(run, parse("R?view=timeline&filter=no_such_lane")).lanes == ()


@given(st.integers(0, 7), st.integers(1, 60), st.floats(0, 0.9), st.floats(0.01, 1))
@settings(max_examples=20)
def test_a_cell_has_the_least_slack_of_what_runs_in_it(
    gpu: int, bins: int, first: float, share: float
) -> None:
    run = demo_run()
    table, slack = run.table, row_slack(run)
    assert slack is not None
    ends = table.start_ns + table.duration_ns
    begin = run.origin_ns + int(first * (int(ends.max()) - run.origin_ns))
    end = begin + max(int(share * (int(ends.max()) - begin)), bins)
    strip = slack_strip(run, gpu, begin, end, bins)
    assert strip is not None and strip.title == SLACK and strip.low == 0
    cut = edges(begin, end, bins)
    own = table.gpu == gpu
    for cell, (low, high) in enumerate(pairwise(cut.tolist())):
        there = own & (table.start_ns < high) & (ends > low)
        least = slack[there].min() if there.any() else np.nan
        assert strip.numbers[cell] == least or (np.isnan(least) and np.isnan(strip.numbers[cell]))


def test_a_long_run_has_no_lane_of_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chopper_core.analyses.lanes._MAX_WITH_SLACK", 10)
    run = demo_run()
    assert slack_strip(run, 0, run.origin_ns, run.origin_ns + 1000, 4) is None


def test_cells_divide_a_span_of_years() -> None:
    begin, end = 130_000, 2**63 - 10**9
    cut = edges(begin, end, 512).tolist()
    assert cut == [begin + (end - begin) * place // 512 for place in range(513)]
