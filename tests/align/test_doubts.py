"""What a trace contradicts or lacks is said, left out, and lowers what rests on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.analyses.step_times import step_times
from chopper_core.api import OpenRun
from chopper_core.findings import clock_slack_ns
from chopper_core.findings.rule import context_of
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import Composition
from chopper_core.model.doubts import CHECKS, Doubt
from chopper_core.model.run import Run
from chopper_core.model.table import Category
from chopper_core.render.info import describe, info_text
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.wording import Wording

STEPS = 6
KERNELS = 20
Event = dict[str, Any]


class Trace:
    """The events of a trace of one GPU: each step waits for its copy, which ends it."""

    def __init__(self, late_us: float = 0.0) -> None:
        self.events: list[Event] = []
        self.metadata: dict[str, Any] = {}
        self.late_us = late_us
        self._correlation = 0
        now = 1_000.0
        for step in range(STEPS):
            now = self._step(step, now)

    def add(self, category: str, name: str, ts: float, dur: float, **args: object) -> Event:
        is_gpu = category in ("kernel", "gpu_memcpy")
        pid, tid = (0, args.get("stream", 7)) if is_gpu else (100, 1)
        event = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}
        event |= {"pid": pid, "tid": tid, "args": args}
        self.events.append(event)
        return event

    def launch(self, call: str, name: str, ts: float, start: float, dur: float) -> None:
        self._correlation += 1
        category = "gpu_memcpy" if "Memcpy" in call else "kernel"
        took = dur + start - ts + 1.5 if "Memcpy" in call else 4.0
        self.add("cuda_runtime", call, ts, took, correlation=self._correlation)
        own = {"device": 0, "stream": 7, "correlation": self._correlation}
        self.add(category, name, start + self.late_us, dur, **own)

    def _step(self, step: int, begin: float) -> float:
        busy, now = begin, begin + 10.0
        for at in range(KERNELS):
            start = max(now + 6.0, busy + 1.0)
            self.launch("hipLaunchKernel", f"kernel_{at % 5}", now, start, 50.0)
            busy, now = start + 50.0, now + 20.0
        start = max(now + 6.0, busy + 1.0)
        self.launch("hipMemcpyWithStream", "Memcpy DtoH", now, start, 30.0)
        end = start + 40.0
        self.add("user_annotation", f"ProfilerStep#{step + 5}", begin, end - begin)
        return end + 2.0

    def open(self, folder: Path) -> Run:
        folder.mkdir(exist_ok=True)
        path = folder / "rank0.json"
        self.write(path)
        return open_run(str(path), jobs=1)

    def write(self, path: Path) -> None:
        document = {"traceEvents": self.events, "distributedInfo": {"rank": 0}} | self.metadata
        path.write_text(json.dumps(document))

    def named(self, category: str, name: str = "") -> list[Event]:
        return [e for e in self.events if e["cat"] == category and name in e["name"]]

    def drop(self, chosen: Sequence[Event]) -> None:
        gone = {id(event) for event in chosen}
        self.events = [event for event in self.events if id(event) not in gone]


def codes(run: Run) -> list[str]:
    return [doubt.code for doubt in run.doubts]


def step_ms(run: Run) -> float:
    return step_times(run, parse("R")).mean_ns / 1e6


def _lost_graphs() -> Trace:
    """A graph launch in each step, without its kernels."""
    trace = Trace()
    for step in trace.named("user_annotation"):
        trace.launch("hipGraphLaunch", "lost", step["ts"] + 600.0, step["ts"] + 610.0, 5.0)
    trace.drop(trace.named("kernel", "lost"))
    return trace


def test_a_clean_trace_has_no_doubt(tmp_path: Path) -> None:
    run = Trace().open(tmp_path)
    assert run.doubts == ()
    assert describe(run)["quality"] == []
    assert step_ms(run) == pytest.approx((KERNELS * 51 + 16 + 31 + 10 + 2) / 1e3, rel=0.01)


def test_lost_activities_are_counted_and_their_idle_time_is_unknown(tmp_path: Path) -> None:
    trace, whole = Trace(), Trace().open(tmp_path)
    lost = trace.named("kernel")[45:48] + trace.named("kernel")[70:71]
    trace.drop(lost)
    run = trace.open(tmp_path)
    [doubt] = run.doubts
    assert (doubt.code, doubt.count, doubt.of) == ("launches", 4, STEPS * (KERNELS + 1))
    assert int(run.table.idle_unknown_ns.sum()) == (3 * 51 + 1 + 51 + 1) * 1_000
    assert step_ms(run) == pytest.approx(step_ms(whole), rel=1e-6)
    frame = query(run, parse("R?columns=elapsed_ns,idle_unknown_ns"))
    assert frame.notes[0].startswith("doubt: 4 of 126 launches")
    assert frame.values["idle_unknown_ns"].is_extrapolated(0)
    assert not frame.values["elapsed_ns"].is_extrapolated(0)


def test_graph_launches_without_kernels_promise_no_saving(tmp_path: Path, wording: Wording) -> None:
    run = _lost_graphs().open(tmp_path)
    assert [(each.code, each.count, each.of) for each in run.doubts] == [("graphs", STEPS, STEPS)]
    overview = query(run, parse("R?view=overview"))
    wording(overview.headline[-1], f"{STEPS} of {STEPS} graph launches")
    findings = query(run, parse("R?view=findings"))
    for row in range(len(findings)):
        if findings.values["doubt"].at(row) is not None:
            assert findings.values["confidence"].cell(row) == "low"
            assert findings.values["saving_ns"].at(row) is None


def test_a_sentence_marks_the_figures_that_a_doubt_touches(tmp_path: Path) -> None:
    doubtful, plain = _lost_graphs().open(tmp_path), Trace().open(tmp_path / "plain")
    for view in ("overview", "throughput", "findings", "losses", "overheads", "launch"):
        told, clean = (
            "".join(query(run, parse(f"R?view={view}")).headline) for run in (doubtful, plain)
        )
        assert "~" in told and "~" not in clean, (told, clean)
    bar, clean_bar = (query(run, parse("R?view=overview")).charts[0] for run in (doubtful, plain))
    assert isinstance(bar, Composition) and isinstance(clean_bar, Composition)
    assert (bar.doubted, clean_bar.doubted) == (("idle",), ())


@pytest.mark.parametrize("at", ["first", "last"])
def test_a_step_cut_at_an_edge_is_no_doubt(tmp_path: Path, at: str) -> None:
    trace = Trace()
    kernels = trace.named("kernel")
    trace.drop(kernels[:5] if at == "first" else kernels[-5:] + trace.named("gpu_memcpy")[-1:])
    run = trace.open(tmp_path)
    assert run.doubts == ()
    assert run.partial_iterations[0] == {5 if at == "first" else 5 + STEPS - 1}


def test_a_kernel_over_whole_later_ones_is_left_out(tmp_path: Path) -> None:
    trace, whole = Trace(), Trace().open(tmp_path)
    trace.named("kernel")[30]["dur"] = 2_000_000.0
    run = trace.open(tmp_path)
    [doubt] = run.doubts
    assert (doubt.code, doubt.count, doubt.detail) == ("impossible", 1, "kernel_0, 2,000 ms")
    assert len(run.table) == len(whole.table) - 1
    assert step_ms(run) == pytest.approx(step_ms(whole), rel=1e-6)


def test_short_overlaps_are_legal(tmp_path: Path) -> None:
    trace = Trace()
    kernels = trace.named("kernel")
    for kernel in kernels[::2]:
        kernel["dur"] += 20.0
    for first, second in zip(kernels[1::40], kernels[2::40], strict=True):
        second["ts"], second["dur"] = first["ts"] + 10.0, 20.0
    run = trace.open(tmp_path)
    assert codes(run) == []
    assert int((run.table.category == Category.KERNEL).sum()) == len(kernels)


@pytest.mark.parametrize("late_us", [-40.0, -12.0, 12.0, 40.0])
def test_a_gpu_clock_that_is_off_is_corrected(tmp_path: Path, late_us: float) -> None:
    whole, run = Trace().open(tmp_path), Trace(late_us).open(tmp_path)
    [doubt] = run.doubts
    assert doubt.code == "clock" and ("late" if late_us > 0 else "early") in doubt.detail
    assert step_ms(run) == pytest.approx(step_ms(whole), rel=0.01)
    savings = [
        query(each, parse("R?view=findings&columns=saving_ns")).values["saving_ns"].at(0)
        for each in (whole, run)
    ]
    assert savings[0] == pytest.approx(savings[1], rel=0.1)


def test_what_remains_of_a_clock_is_known(tmp_path: Path, wording: Wording) -> None:
    """Launches take 6 µs to an idle GPU, and calls return 1.5 µs after what they wait for."""
    bounds = Trace().open(tmp_path).sources[0].gpu_clock
    assert bounds is not None and (bounds.early_ns, bounds.late_ns) == (1_500, 6_000)
    run = Trace(-40.0).open(tmp_path)
    assert "corrected to within 7.5 µs" in run.doubts[0].sentence
    wording.among(str(info_text(run)), "GPU clocks")
    trace = Trace()
    trace.drop(trace.named("gpu_memcpy") + trace.named("cuda_runtime", "Memcpy"))
    bounds = trace.open(tmp_path).sources[0].gpu_clock
    assert bounds is not None and (bounds.early_ns, bounds.width_ns) == (None, None)


@pytest.mark.parametrize(("slow_us", "is_wider"), [(0.0, False), (30.0, True)])
def test_what_remains_of_a_corrected_clock_widens_ranges(
    tmp_path: Path, slow_us: float, is_wider: bool
) -> None:
    """Calls that return later leave more open, of each gap no more than it takes."""
    trace = Trace(-40.0)
    for call in trace.named("cuda_runtime", "Memcpy"):
        call["dur"] += slow_us
    run = trace.open(tmp_path)
    context = context_of(run, parse("R?view=findings"))
    width_ns = 7_500 + slow_us * 1e3
    open_ns = np.minimum(run.table.idle_ns, width_ns).sum() / STEPS
    assert 0 < open_ns < (run.table.idle_ns > 0).sum() * width_ns / STEPS
    assert clock_slack_ns(context) == pytest.approx(open_ns * is_wider, rel=0.01)


@pytest.mark.parametrize("late_us", [-1.0, 0.5])
def test_stamps_within_their_bounds_stay(tmp_path: Path, late_us: float) -> None:
    run, whole = Trace(late_us).open(tmp_path), Trace().open(tmp_path)
    assert run.doubts == ()
    shift = run.table.start_ns.min() - whole.table.start_ns.min()
    assert abs(int(shift) - int(late_us * 1e3)) <= 1


def test_launch_calls_that_were_lost_are_in_doubt(tmp_path: Path) -> None:
    """A few scattered ones are usual, those of a buffer are not."""
    trace = Trace()
    calls = [e["args"]["correlation"] for e in trace.named("kernel")[28:37]]
    trace.drop([e for e in trace.named("cuda_runtime") if e["args"]["correlation"] in calls])
    [doubt] = trace.open(tmp_path).doubts
    assert (doubt.code, doubt.count, doubt.iterations) == ("calls", 9, (6,))
    trace = Trace()
    trace.drop(trace.named("cuda_runtime")[20:110:45])
    assert trace.open(tmp_path).doubts == ()


@pytest.mark.parametrize("ts", [0.0, 1_500.0])
def test_a_time_far_before_the_launch_is_left_out(tmp_path: Path, ts: float) -> None:
    whole, trace = Trace().open(tmp_path), Trace()
    trace.named("kernel")[70]["ts"] = ts
    run = trace.open(tmp_path)
    assert codes(run) == ["far"] and run.doubts[0].iterations == (8,)
    steps = [step_times(each, parse("R")).each_ns.tolist() for each in (whole, run)]
    assert steps[0] == steps[1]


def test_an_activity_that_the_profiler_could_not_time_is_left_out(tmp_path: Path) -> None:
    trace = Trace()
    trace.named("kernel")[70] |= {"ts": 0, "dur": 0}
    trace.metadata["baseTimeNanoseconds"] = 1_720_000_000_000_000_000
    [doubt] = trace.open(tmp_path).doubts
    assert (doubt.code, doubt.count, doubt.iterations) == ("untimed", 1, (8,))


@pytest.mark.parametrize(
    ("text", "is_doubt"),
    [
        ("WARNING:2026-03-02 10:11:12 7:7 Cupti.cpp:243] Dropped 12 activity records", True),
        ("WARNING:2026-03-02 10:11:12 7:7 Cupti.cpp:310] Exceeded max GPU buffer count", True),
        ("WARNING:2026-03-02 10:11:12 7:7 Profiler.cpp:1] Adding metadata after the fact", False),
    ],
)
def test_what_the_profiler_says_it_lost_is_in_doubt(
    tmp_path: Path, text: str, is_doubt: bool
) -> None:
    trace = Trace()
    trace.metadata["WARNING"] = [text]
    run = trace.open(tmp_path)
    assert codes(run) == ["diagnostics"] * is_doubt
    assert text.partition("] ")[2] in " ".join(run.sources[0].losses)


def test_a_newer_schema_is_in_doubt(tmp_path: Path) -> None:
    trace = Trace()
    trace.metadata["schemaVersion"] = 2
    [doubt] = trace.open(tmp_path).doubts
    assert doubt.kind == "schema" and "schema 2" in doubt.sentence


def test_ranks_that_are_missing_among_most_are_in_doubt(tmp_path: Path, wording: Wording) -> None:
    for rank in (0, 1, 3):
        trace = Trace()
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 4}
        trace.write(tmp_path / f"rank{rank}.json")
    [doubt] = open_run(str(tmp_path), jobs=1).doubts
    assert doubt.kind == "coverage"
    wording(doubt.sentence, "1 of 4 ranks", "(2)")
    assert open_run(str(tmp_path / "rank0.json"), jobs=1).doubts == ()


def test_an_activity_before_its_launch_is_impossible(tmp_path: Path) -> None:
    trace = Trace()
    trace.named("kernel")[50]["ts"] -= 400.0
    assert [(each.code, each.count) for each in trace.open(tmp_path).doubts] == [("early", 1)]


def test_quality_is_in_info_json_and_python(tmp_path: Path) -> None:
    trace = Trace()
    trace.drop(trace.named("kernel")[45:46])
    run = trace.open(tmp_path)
    [quality] = describe(run)["quality"]
    assert quality["check"] == "launches" and quality["ranks"] == [0]
    assert quality["kind"] == "lost activities" and "idle_ns" in quality["columns"]
    opened = OpenRun(run)
    assert opened.info()["quality"] == [quality]
    assert [*quality["iterations"]] == [7]
    assert json.loads(opened.frame("").to_json())["quality"] == json.loads(json.dumps([quality]))


def test_launches_without_any_activity_are_said(tmp_path: Path) -> None:
    trace = Trace()
    trace.drop(trace.named("kernel") + trace.named("gpu_memcpy"))
    with pytest.raises(DataError, match=r"has 120 launches and no GPU activity"):
        trace.open(tmp_path)


def test_activities_that_are_in_the_file_twice_count_once(tmp_path: Path) -> None:
    trace, whole = Trace(), Trace().open(tmp_path)
    for event in (*trace.named("kernel")[20:23], trace.named("gpu_memcpy")[0]):
        trace.add(event["cat"], event["name"], event["ts"], event["dur"], **event["args"])
    run = trace.open(tmp_path)
    [doubt] = run.doubts
    assert (doubt.code, doubt.count) == ("repeated", 4)
    assert "4 of " in doubt.sentence and "in the file twice, and count once" in doubt.sentence
    for name in ("start_ns", "duration_ns", "elapsed_ns", "launch_ns"):
        theirs = getattr(whole.table, name, None)
        if theirs is not None:
            assert getattr(run.table, name).tolist() == theirs.tolist()


def test_equal_kernels_of_a_graph_are_several(tmp_path: Path) -> None:
    """They have one launch, and in a file of whole microseconds maybe one time."""
    trace = Trace()
    first = trace.named("kernel")[20]
    at = first["ts"] + first["dur"]
    for ts, dur in ((at, 1.0), (at, 1.0), (at + 1, 3.0), (at + 4, 3.0)):
        trace.add("kernel", "short", ts, dur, **first["args"])
    run = trace.open(tmp_path)
    assert not any(doubt.code == "repeated" for source in run.sources for doubt in source.doubts)
    assert run.table.names.index("short") in run.table.kernel
    assert (run.table.kernel == run.table.names.index("short")).sum() == 4


def test_kernels_that_take_no_time_make_none_impossible(tmp_path: Path) -> None:
    """Old traces have whole microseconds: short kernels begin and end with those before them."""
    trace = Trace()
    for first in trace.named("kernel", "kernel_2")[:2]:
        for ts in (first["ts"], first["ts"] + first["dur"]):
            for _ in range(3):
                trace.add("kernel", "short", ts, 0.0, **first["args"])
    run = trace.open(tmp_path)
    assert not any(doubt.code == "impossible" for source in run.sources for doubt in source.doubts)


def test_a_sentence_about_one_thing_is_no_plural() -> None:
    for code in CHECKS:
        one, two = (Doubt(code, count, 5, "this").sentence for count in (1, 2))
        assert "{" not in one + two
        # Else the words after the number are of several things, whatever it is.
        assert not one.startswith("1 of 5 ") or one != two.replace("2", "1", 1), one
    one, two = (Doubt("impossible", count, 9, "gemm").sentence for count in (1, 2))
    assert one == (
        "1 of 9 kernels contains whole later kernels of its stream, which is impossible, and is "
        "left out: gemm"
    )
    assert two == (
        "2 of 9 kernels contain whole later kernels of their stream, which is impossible, and are "
        "left out: gemm"
    )
