"""Causes of idle time: against plain intervals, at every node, in the demo and on real traces."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.host_causes import ALLOCATOR, READ_BACK, UNSEEN
from chopper_core.analyses.rows import Partition
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostTime
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View, complete_order
from chopper_core.views.frame import Frame
from chopper_core.views.query import answer, query
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.support import opened_events, sample_run
from tests.views.conftest import DEMO

PLACES = ("call", "operator", "annotation", "frame", "untraced")
CATEGORIES = ("cuda_runtime", "cpu_op", "user_annotation", "python_function")
MAIN, AUTOGRAD = 7, 8
Range = tuple[int, int]


def event(cat: str, name: str, start: int, end: int, thread: int = MAIN, **args: Any) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": float(start),
            "dur": float(end - start), "args": args}  # fmt: skip


def random_events(seed: int) -> list[Any]:
    """Kernels that several threads launch, among events of every kind."""
    random = np.random.default_rng(seed)
    events, now = [], 0
    for number in range(1, 80):
        thread = MAIN if random.random() < 0.7 else AUTOGRAD
        at = now + int(random.integers(0, 40))
        if random.random() < 0.9:
            events.append(
                event("cuda_runtime", "hipLaunchKernel", at, at + 5, thread, correlation=number)
            )
        begin = max(now, at) + int(random.integers(0, 60))
        now = begin + int(random.integers(1, 30))
        events.append(event("kernel", "k", begin, now, device=0, stream=0, correlation=number))
    for kind, shortest in zip(CATEGORIES, (1, 1, 1, 100), strict=True):
        for number in range(60):
            begin = int(random.integers(0, now))
            thread = MAIN if random.random() < 0.5 else AUTOGRAD
            end = begin + shortest + int(random.integers(0, 120))
            events.append(event(kind, f"{kind}{number % 5}", begin, end, thread))
    return events


def union(ranges: Sequence[Range]) -> list[Range]:
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def both(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    found, at, place = [], 0, 0
    while at < len(one) and place < len(other):
        begin, end = max(one[at][0], other[place][0]), min(one[at][1], other[place][1])
        if begin < end:
            found.append((begin, end))
        if one[at][1] < other[place][1]:
            at += 1
        else:
            place += 1
    return found


def without(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    ends = [(-(2**62), -(2**62)), *other, (2**62, 2**62)]
    return both(one, [(a[1], b[0]) for a, b in pairwise(ends)])


def length(ranges: Sequence[Range]) -> int:
    return sum(end - begin for begin, end in ranges)


class Plain:
    """The idle time of a trace by place of its launching threads, from its events alone."""

    def __init__(self, events: Sequence[Any]) -> None:
        events = [each for each in events if each.get("ph") == "X"]
        activities = [
            each for each in events if each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
        ]
        self.ranges: dict[tuple[str, int], list[Range]] = defaultdict(list)
        self.unions: dict[tuple[str, int], list[Range]] = {}
        thread_of: dict[int, int] = {}
        launches: list[tuple[int, int]] = []
        called: dict[int, int] = {}
        for each in events:
            if each["cat"] not in CATEGORIES or self._is_step(each):
                continue
            self.ranges[each["cat"], each["tid"]].append(self._range(each))
            number = each["args"].get("correlation", 0)
            if each["cat"] == "cuda_runtime" and number > 0:
                thread_of[number], called[number] = each["tid"], self._range(each)[0]
        for each in activities:
            number = each["args"].get("correlation", 0)
            if number in thread_of:
                launches.append((called[number], thread_of[number]))
        launches.sort()
        self.idle_ns = self.in_operator_ns = 0
        self.by_place = dict.fromkeys(PLACES, 0)
        busy = union([self._range(each) for each in activities])
        first = {}
        for each in sorted(activities, key=self._range, reverse=True):
            first[self._range(each)[0]] = each
        steps = [
            self._range(each)
            for each in events
            if each["cat"] == "user_annotation" and each["name"].startswith("ProfilerStep")
        ]
        # The first step begins, and the last one ends, with what the host says.
        opens, closes = (min(steps)[0], max(steps)[1]) if steps else (busy[0][0], busy[-1][1])
        if opens < busy[0][0]:
            busy = [(opens, opens), *busy]
        if closes > busy[-1][1]:
            busy = [*busy, (closes, closes)]
        self.gaps = [(before[1], behind[0]) for before, behind in pairwise(busy)]
        for begin, end in self.gaps:
            number = first[end]["args"].get("correlation", 0) if end in first else 0
            called_at = min(max(called.get(number, begin), begin), end)
            for part in ((begin, called_at), (called_at, end)):
                before = bisect_left(launches, (part[0],))
                last = launches[before - 1][1] if before else None
                self._charge(part, thread_of.get(number), last)

    @staticmethod
    def _range(each: Any) -> Range:
        start = round(each["ts"] * 1000)
        return start, start + round(each["dur"] * 1000)

    @staticmethod
    def _is_step(each: Any) -> bool:
        is_short = each["cat"] == "python_function" and each["dur"] < 100
        return is_short or each["name"].startswith(("ProfilerStep", "PyTorch Profiler"))

    def _charge(self, gap: Range, own: int | None, last: int | None) -> None:
        rest = self._on(own, [gap])
        if last != own:
            rest = self._on(last, rest)
        self.by_place["untraced"] += length(rest)
        self.idle_ns += gap[1] - gap[0]

    def _near(self, kind: str, thread: int, begin: int, end: int) -> list[Range]:
        if (kind, thread) not in self.unions:
            self.unions[kind, thread] = union(self.ranges[kind, thread])
        ranges = self.unions[kind, thread]
        first = max(bisect_left(ranges, (begin,)) - 1, 0)
        return ranges[first : bisect_right(ranges, (end,))]

    def _on(self, thread: int | None, gaps: list[Range]) -> list[Range]:
        """Charge what a thread does within gaps; the rest of them."""
        if thread is None or not gaps:
            return gaps
        near = [self._near(kind, thread, gaps[0][0], gaps[-1][1]) for kind in CATEGORIES]
        self.in_operator_ns += length(both(gaps, near[1]))
        for place, ranges in zip(PLACES, near, strict=False):
            self.by_place[place] += length(both(gaps, ranges))
            gaps = without(gaps, ranges)
        return gaps


def places(frame: Frame) -> dict[str, int]:
    return {place: int(frame.total[f"host_{place}_ns"] or 0) for place in PLACES}


ALL = ",".join(["idle_ns", *(f"host_{place}_ns" for place in PLACES)])


def by_host(run: Run, path: tuple[str, ...] = (), columns: str = ALL, **more: Any) -> Frame:
    view = View("R", path, name="launch", by="host", columns=tuple(columns.split(",")), cut=True)
    return query(run, replace(view, is_total=True, **more))


@pytest.mark.parametrize("seed", range(4))
def test_places_are_those_of_plain_intervals(tmp_path: Path, seed: int) -> None:
    events = random_events(seed)
    expected = Plain(events)
    assert all(expected.by_place.values())
    frame = by_host(opened_events(tmp_path, events))
    assert frame.total["idle_ns"] == expected.idle_ns == sum(expected.by_place.values())
    assert places(frame) == expected.by_place


@pytest.mark.sweep
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real traces at {REAL_DATA}")
def test_the_idle_time_of_a_real_run() -> None:
    """91.1 ms of rank 3: 71.4 in operators, 19.6 outside; 49.0 of rank 0: 35.1 and 13.8.

    16.9 ms and 8.4 ms of it pass in runtime calls of any thread; 16.7 and 8.4 in those of the
    thread that launches next, which alone can be late with it.
    """
    run = open_run(str(REAL_DATA / "mi300x_ddp4"), jobs=1)
    facts = ((3, 91.06, 71.45, 19.61, 16.9), (0, 48.92, 35.15, 13.78, 8.4))
    for gpu, idle, inside, outside, calls in facts:
        path = REAL_DATA / "mi300x_ddp4" / f"rank{gpu}.json.gz"
        events = [
            each
            for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            if each.get("ph") == "X"
        ]
        expected = Plain(events)
        frame = by_host(run, (str(gpu),))
        assert places(frame) == expected.by_place
        assert frame.total["idle_ns"] == expected.idle_ns
        assert expected.idle_ns / 1e6 == pytest.approx(idle, abs=0.05)
        assert expected.in_operator_ns / 1e6 == pytest.approx(inside, abs=0.05)
        rest = expected.idle_ns - expected.in_operator_ns
        assert rest / 1e6 == pytest.approx(outside, abs=0.05)
        (headline, _) = answer(run, frame.view).headline
        assert f"{expected.in_operator_ns / 1e6:.4g}"[:4] in headline
        any_thread = union([Plain._range(e) for e in events if e["cat"] == "cuda_runtime"])
        in_calls = length(both(expected.gaps, any_thread))
        assert in_calls / 1e6 == pytest.approx(calls, abs=0.05)
        assert 0 < in_calls - expected.by_place["call"] < 3e5


def assert_whole(run: Run, frame: Frame) -> None:
    """The rows, their states and their places add up to the idle time of the node."""
    node = run.tree(frame.view.order).node(frame.view.path)
    idle = int(node.sum("idle_ns")[0])
    assert frame.values["idle_ns"].numbers.sum() == frame.total["idle_ns"] == idle
    for parts in (PLACES, ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns")):
        names = [name if name.startswith("idle") else f"host_{name}_ns" for name in parts]
        sums = sum(frame.values[name].numbers for name in names)
        assert np.array_equal(sums, frame.values["idle_ns"].numbers)
    for name in ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns"):
        assert frame.total[name] == node.sum(name)[0]


FIRST: Sequence[tuple[str, ...]] = [("gpu",), ("phase",), ("operation", "gpu"), ("layer", "kernel")]


@pytest.mark.few(2)
@pytest.mark.parametrize("order", FIRST, ids=",".join)
def test_rows_add_up_to_the_idle_time_of_every_node(run: Run, order: tuple[str, ...]) -> None:
    columns = ALL + ",idle_host_ns,idle_launch_ns,idle_unknown_ns"
    path: tuple[str, ...] = ()
    whole = complete_order(order)
    for _ in range(len(LEVELS)):
        view = View("R", path, whole)
        frame = by_host(run, path, columns, order=whole)
        assert_whole(run, frame)
        shares = by_host(run, path, "idle_ns,host_idle_pct", order=whole)
        assert shares.total["host_idle_pct"] == 100.0
        assert shares.values["host_idle_pct"].numbers.sum() == pytest.approx(100.0)
        rows = Partition.of(run.tree(whole), view, view.level)
        each = rows.nodes.sum("idle_ns")
        sums: dict[str, int] = dict.fromkeys(PLACES, 0)
        if len(rows.labels) <= 12:
            for label, idle in zip(rows.labels, each.tolist(), strict=True):
                if idle:
                    below = by_host(run, (*path, label), order=whole)
                    for place, ns in places(below).items():
                        sums[place] += ns
            assert sums == places(frame), view
        path = (*path, rows.labels[int(each.argmax())])


def test_idle_time_without_a_record_is_a_row() -> None:
    """Of a table without host events nothing is claimed."""
    run = sample_run(gpus=2)
    with pytest.raises(Exception, match="no record of its hosts"):
        answer(run, parse("R?view=launch&by=host"))


def test_the_planted_stall_of_the_demo_is_charged_in_full(run: Run) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())["host_bound_stretch"]
    gpu, iteration = str(truth["rank"]), str(truth["iteration"])
    for layer, idle_ns in truth["idle_host_ns"].items():
        path = (gpu, iteration, truth["phase"], layer)
        frame = by_host(run, path, "idle_ns,idle_host_ns,host_annotation_ns,host_where")
        assert frame.total["idle_host_ns"] == idle_ns
        in_annotations = sum(
            int(row["idle_host_ns"] or 0)
            for row in map(frame.row, range(len(frame.labels)))
            if row["host_where"] == "annotation"
        )
        # The host stalls in annotations; then it runs operators up to the launch.
        assert idle_ns > 0 and in_annotations > 0.97 * idle_ns


def test_a_row_leads_to_its_longest_gap_in_the_timeline(run: Run) -> None:
    view = parse("R:gpu=2?view=launch&by=host&cut=1")
    result = answer(run, view)
    host = run.side(HostTime)
    for row in range(min(len(result.rows.labels), 8)):
        there = result.opens(row)
        assert there.name == "timeline" and there.path == ("2",) and there.window.at_ns
        at = there.window.at_ns + run.origin_ns
        on_gpu = np.flatnonzero(host.gpu == 2)
        inside = (host.start_ns[on_gpu] <= at) & (
            at <= host.start_ns[on_gpu] + host.duration_ns[on_gpu]
        )
        assert inside.any()
        lanes = query(run, there)
        assert set(lanes.values["at_kernel"].words or ()) <= {None}


def launched(number: int, at: float) -> list[Any]:
    """A kernel whose launch call begins at a time."""
    return [
        event("cuda_runtime", "hipLaunchKernel", at, at + 4, correlation=number),
        event("kernel", "k", at + 4, at + 90, device=0, stream=0, correlation=number),
    ]


def test_causes_that_people_know_are_named(tmp_path: Path) -> None:
    """A blocking `.item()`, `hipMalloc`, data loading, garbage collection: each with its gap."""

    found = [
        event("kernel", "k", 10, 100, device=0, stream=0, correlation=1),
        event("cuda_runtime", "hipLaunchKernel", 2, 7, correlation=1),
    ]
    at = 100
    causes = [
        ("cpu_op", "aten::item", "hipMemcpyWithStream", 400),
        ("cpu_op", "aten::empty", "hipMalloc", 300),
        ("user_annotation", "enumerate(DataLoader)#_Iter.__next__", "", 250),
        ("python_function", "<built-in function collect>", "", 200),
    ]
    for number, (cat, name, inner, takes) in enumerate(causes, 2):
        found.append(event(cat, name, at - 50, at + takes))
        if inner:
            found.append(event("cuda_runtime", inner, at - 40, at + takes - 10))
        at += takes
        found += launched(number, at)
        at += 90
    assert by_host(opened_events(tmp_path, found)).labels[:4] == [
        f"{READ_BACK} (aten::item)",
        f"{ALLOCATOR} (hipMalloc)",
        "data loading (enumerate(DataLoader)#_Iter.__next__)",
        "garbage collection (<built-in function collect>)",
    ]


def test_a_function_is_one_row_whatever_the_address_of_its_object(tmp_path: Path) -> None:
    """Processes, and calls, have their objects at other addresses: no two would be compared."""
    found, at = [], 0
    for number in range(1, 4):
        if number > 1:
            name = f"<built-in method step of Loader object at 0x7f{number:02x}A0>"
            found.append(event("python_function", name, at, at + 300))
        at += 310
        found += launched(number, at)
        at += 90
    assert by_host(opened_events(tmp_path, found)).labels[:2] == [
        "<built-in method step of Loader>",
        UNSEEN,
    ]
