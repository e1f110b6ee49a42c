"""A step is what its annotation says: training loops as files, asked in every way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core import api
from chopper_core.align.side_work import SIDE_WORK, side_work_of
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, STATES
from chopper_core.model.view import View
from chopper_core.render.report import report
from chopper_core.views.query import query
from chopper_tui.draw.page import LOOK
from tests.align.loops import Launch, Loop, Op, Wait, Work, loop_of, shifted
from tests.align.traces import MAIN, Event
from tests.support import details, opened_events, rows_of
from tests.wording import Wording

MS = 1_000
BURST: tuple[Op, ...] = (*[Launch(10 * MS)] * 5, Wait())
"""50 ms of the GPU, which the host waits for."""


def steps_us(run: Run, gpu: int = 0) -> dict[int, float]:
    """The time charged to each step of a GPU, row by row; `NO_LABEL` is time outside."""
    table = run.table
    total = sum(table.column(state) for state in STATES)
    own = table.gpu == gpu
    return {
        int(number): int(np.sum(total[own & (table.iteration == number)])) / 1e3
        for number in np.unique(table.iteration[own])
    }


def inside(run: Run, gpu: int = 0) -> dict[int, float]:
    return {number: us for number, us in steps_us(run, gpu).items() if number != NO_LABEL}


def opened(folder: Path, loop: Loop) -> Run:
    return opened_events(folder, loop.trace.events)


ops = st.lists(
    st.builds(Work, st.integers(1, 400))
    | st.builds(Launch, st.integers(1, 300), st.sampled_from((7, 7, 9)))
    | st.just(Wait()),
    max_size=8,
)
drained = ops.map(lambda some: [Launch(20), *some, Wait()])
"""The GPU's work of a step ends within it."""


@given(st.lists(ops.map(lambda some: [*some, Launch(5)]), min_size=1, max_size=6), st.integers())
def test_a_shift_of_everything_changes_nothing(
    tmp_path: Path, steps: list[list[Op]], far: int
) -> None:
    loop = loop_of(steps, [Work(30)])
    before = steps_us(opened(tmp_path, loop))
    moved = shifted(loop.trace.events, abs(far) % 10**9)
    assert steps_us(opened_events(tmp_path, moved)) == before


@given(st.lists(drained, min_size=5, max_size=8), st.integers(1, 5))
def test_without_one_of_the_steps_the_others_are_the_same(
    tmp_path: Path, steps: list[list[Op]], at: int
) -> None:
    at = min(at, len(steps) - 1)
    every = list(inside(opened(tmp_path, loop_of(steps, [Work(20)]))).values())
    rest = inside(opened(tmp_path, loop_of([*steps[:at], *steps[at + 1 :]], [Work(20)])))
    assert list(rest.values()) == pytest.approx([*every[:at], *every[at + 1 :]])


@given(st.lists(drained, min_size=4, max_size=7), st.integers(1, 5))
def test_a_gap_of_two_seconds_is_in_no_step(tmp_path: Path, steps: list[list[Op]], at: int) -> None:
    at = min(at, len(steps) - 1)
    loop = loop_of(steps, [Work(20)])
    before = inside(opened(tmp_path, loop))
    begin = sorted(each["ts"] for each in loop.trace.events if "Step" in each["name"])[at]
    events = shifted(loop.trace.events, 2_000 * MS, begin)
    found = steps_us(opened_events(tmp_path, events))
    assert found.pop(NO_LABEL) >= 2_000 * MS
    assert found == before


@given(st.lists(ops.map(lambda some: [*some, Launch(5)]), min_size=3, max_size=6))
def test_a_copy_that_ends_two_steps_later_makes_no_step_negative(
    tmp_path: Path, steps: list[list[Op]]
) -> None:
    loop = loop_of([[Launch(700, 20, "gpu_memcpy"), *each, Work(250)] for each in steps])
    run = opened(tmp_path, loop)
    assert all(us >= 0 for us in steps_us(run).values())
    for name in (*STATES, "idle_after_ns"):
        assert (run.table.column(name) >= 0).all()


@given(st.lists(ops.map(lambda some: [*some, Launch(150, 9)]), min_size=1, max_size=6))
def test_steps_that_overlap_on_the_gpu_and_time_outside_add_up_to_its_span(
    tmp_path: Path, steps: list[list[Op]]
) -> None:
    loop = loop_of(steps, [Work(30)])
    run = opened(tmp_path, loop)
    times = [
        (each["ts"], each["ts"] + each["dur"])
        for each in loop.trace.events
        if each["cat"] in ("kernel", "user_annotation")
    ]
    span = max(end for _, end in times) - min(begin for begin, _ in times)
    assert sum(steps_us(run).values()) == span


def _nested(events: list[Event]) -> list[Event]:
    """Trainers' ranges around single steps, several and all."""
    notes = [each for each in events if "ProfilerStep" in each["name"]]
    first, last = notes[0], notes[-1]
    whole = first | {"name": "Trainer.fit", "dur": last["ts"] + last["dur"] - first["ts"]}
    two = first | {"name": "run_training_batch", "dur": notes[1]["ts"] - first["ts"] + 10}
    each = [note | {"name": "run_training_batch"} for note in notes[2:]]
    return [*events, whole, two, *each]


def _on_another_thread(events: list[Event]) -> list[Event]:
    """The launches come from a thread of their own, and it has the ranges, too."""
    moved = [each | {"tid": MAIN + 1} if each["cat"] == "cuda_runtime" else each for each in events]
    notes = [each for each in events if "ProfilerStep" in each["name"]]
    return [*moved, *({**note, "tid": MAIN + 1, "dur": note["dur"] - 5} for note in notes)]


def _with_copies(events: list[Event]) -> list[Event]:
    """The GPU has copies of the ranges, which lag and overlap."""
    notes = [each for each in events if "ProfilerStep" in each["name"]]
    copy = {"cat": "gpu_user_annotation", "pid": 0, "tid": 7}
    return [*events, *(each | copy | {"ts": each["ts"] + 80, "dur": 900} for each in notes)]


@pytest.mark.parametrize("changed", [_nested, _on_another_thread, _with_copies])
def test_other_ranges_change_no_step(
    tmp_path: Path, changed: Callable[[list[Event]], list[Event]]
) -> None:
    steps = [[Work(100), Launch(50), Launch(120, 9), Wait(), Work(40 * n)] for n in range(5)]
    loop = loop_of(steps, [Work(20)])
    before = inside(opened(tmp_path, loop))
    assert inside(opened_events(tmp_path, changed(loop.trace.events))) == before


def test_a_step_that_several_threads_annotate_is_one(tmp_path: Path) -> None:
    """One of them is 5 µs late."""
    loop = loop_of([[Launch(50), Work(200), Launch(30), Wait()]] * 5, [Work(20)])
    before = inside(opened(tmp_path, loop))
    notes = [each for each in loop.trace.events if "ProfilerStep" in each["name"]]
    late = [each | {"tid": MAIN + 1, "ts": each["ts"] + 5} for each in notes]
    found = inside(opened_events(tmp_path, [*loop.trace.events, *late]))
    assert found == {number: us + 5 * (number == 3) for number, us in before.items()}


def test_windows_are_apart_and_their_first_steps_have_no_time_before_them(tmp_path: Path) -> None:
    loop = Loop()
    for window in (3, 40, 80):
        for number in range(window, window + 3):
            loop.step(number, BURST)
            loop.run([Work(20)])
        loop.run([Work(900 * MS)])
    run = opened(tmp_path, loop)
    found = steps_us(run)
    outside = found.pop(NO_LABEL)
    assert outside == pytest.approx(2 * 900 * MS, rel=0.001)
    assert sorted(found) == [3, 4, 5, 40, 41, 42, 80, 81, 82]
    assert [*found.values()] == pytest.approx([50 * MS] * 9, rel=0.01)


def test_ranks_with_other_steps_have_their_own_times(tmp_path: Path) -> None:
    for rank, (first, ms) in enumerate(((3, 40), (4, 60))):
        steps = [[Launch(ms * MS), Wait()] for _ in range(3)]
        loop = loop_of(steps, [Work(20)], first)
        loop.trace.members = {"distributedInfo": {"rank": rank, "world_size": 2}}
        loop.trace.write(tmp_path / f"rank{rank}.json")
    run = api.open(str(tmp_path)).run
    assert [sorted(inside(run, gpu)) for gpu in (0, 1)] == [[3, 4, 5], [4, 5, 6]]
    assert [*inside(run, 0).values()] == pytest.approx([40 * MS] * 3, rel=0.01)
    assert [*inside(run, 1).values()] == pytest.approx([60 * MS] * 3, rel=0.01)


FIRST = [Work(100 * MS), *BURST]
LAST = [*BURST, Work(100 * MS)]


@pytest.mark.parametrize("ops", [FIRST, LAST], ids=["wait-first", "wait-last"])
def test_the_step_time_is_that_of_the_annotation_wherever_it_stands(
    tmp_path: Path, ops: Sequence[Op], wording: Wording
) -> None:
    loop = loop_of([ops] * 3)
    loop.trace.members = {"distributedInfo": {"rank": 0}}
    (tmp_path / "waits").mkdir()
    loop.trace.write(tmp_path / "waits" / "rank0.json")
    name = str(tmp_path / "waits")
    opened_run = api.open(name)
    close = pytest.approx(150e6, rel=0.01)
    run = opened_run.run

    tree = query(run, View(run.name, ("0",)))
    shown = {label: row["elapsed_ns"] for label, row in rows_of(tree).items() if label != "none"}
    assert shown == {"3": close, "4": close, "5": close}
    assert tree.total["elapsed_ns"] == close
    whole = json.loads(opened_run.frame().to_json())
    assert whole["total"]["elapsed_ns"] == close

    assert opened_run.frame("?view=throughput").headline[0].startswith("step 150 ms")
    assert opened_run.frame("?view=overview").headline[0] == "step 150 ms"
    findings = opened_run.frame("?view=findings")
    assert "150 ms per step" in findings.headline[0]
    wording(details(findings)[0], "100 ms", "per step")
    assert "step 150 ms" in unescape(report(run, View(run.name), LOOK, "1.0"))
    assert api.runs(name).row(0)["step_time_ns"] == close
    kernels = opened_run.kernels().to_pandas()
    per_step = kernels.groupby("iteration")[[*STATES]].sum().sum(axis=1)
    assert [per_step[number] for number in (3, 4, 5)] == [close] * 3


def test_set_up_before_the_first_step_is_outside(tmp_path: Path) -> None:
    loop = Loop()
    loop.run([Work(5_000 * MS), *[Launch(MS)] * 3, Wait()])
    for number in range(5):
        loop.step(number, [Work(10 * MS), *BURST])
    found = steps_us(opened(tmp_path, loop))
    assert found.pop(NO_LABEL) == pytest.approx(3 * MS, rel=0.01)
    assert [*found.values()] == pytest.approx([60 * MS] * 5, rel=0.01)


@pytest.mark.parametrize("evaluates", [[Work(75 * MS)], [Work(5), *[Launch(15 * MS)] * 5, Wait()]])
def test_an_evaluation_counts_for_the_step_that_it_is_in(
    tmp_path: Path, evaluates: list[Op]
) -> None:
    """With work of the GPU and without, between steps and in them."""
    between, within = Loop(), Loop()
    for number in range(6):
        is_third = number % 3 == 2
        between.step(number, BURST)
        between.run([Work(20), *(evaluates if is_third else ())])
        within.step(number, [*BURST, *(evaluates if is_third else ())])
        within.run([Work(20)])
    found = inside(opened(tmp_path, between))
    assert [*found.values()] == pytest.approx([50 * MS] * 6, rel=0.01)
    found = inside(opened(tmp_path, within))
    assert [*found.values()] == pytest.approx([50 * MS, 50 * MS, 125 * MS] * 2, rel=0.01)


def test_a_loader_between_the_annotations_is_time_of_the_steps(tmp_path: Path) -> None:
    run = opened(tmp_path, loop_of([[*BURST, Launch(10 * MS), Wait()]] * 6, [Work(40 * MS)]))
    found = [*inside(run).values()]
    assert found[1:] == pytest.approx([100 * MS] * 5, rel=0.01)
    frame = query(run, View(run.name))
    assert frame.total["elapsed_ns"] == pytest.approx(100e6, rel=0.01)


def cut_steps(run: Run) -> set[int]:
    return {int(number) for cut in run.partial_iterations.values() for number in cut}


@pytest.mark.parametrize(("at", "lost", "is_cut"), [
    ("begin", 3, True), ("end", 3, True), ("begin", 2, False), ("end", 2, False),
    ("middle", 9, False), ("scattered", 9, False),
])  # fmt: skip
def test_steps_are_truncated_where_launches_in_a_row_at_an_edge_have_no_activity(
    tmp_path: Path, at: str, lost: int, is_cut: bool
) -> None:
    """Of 300 launches 3 are 1 %."""
    count = 300
    places = {
        "begin": range(lost),
        "end": range(count - lost, count),
        "middle": range(100, 100 + lost),
        "scattered": range(0, count, count // lost),
    }[at]
    whole = [Launch(20)] * count
    partly = [Launch(20, is_lost=place in places) for place in range(count)]
    run = opened(tmp_path, loop_of([[*partly, Wait()], [*whole, Wait()], [*partly, Wait()]]))
    assert cut_steps(run) == ({3, 5} if is_cut else set())


def test_few_launches_at_an_edge_of_a_large_step_truncate_nothing(tmp_path: Path) -> None:
    whole = [Launch(20)] * 500
    partly = [*[Launch(20, is_lost=True)] * 4, *whole]
    run = opened(tmp_path, loop_of([[*partly, Wait()], [*whole, Wait()]]))
    assert cut_steps(run) == set()


def test_an_old_trace_of_optimizer_steps_has_one_step_for_each(tmp_path: Path) -> None:
    loop = Loop()
    for _ in range(6):
        loop.run([Launch(100), Launch(200), Wait()])
        begin = loop.now
        loop.run([Launch(30), Launch(30)])
        loop.trace.op("Optimizer.step#SGD.step", begin, loop.now)
    run = opened(tmp_path, loop)
    assert sorted(inside(run)) == [*range(6)]


def test_faster_hosts_save_no_time_outside_of_steps(tmp_path: Path) -> None:
    """Set-up before the steps, an evaluation between two of them, with work of the GPU."""
    loop = Loop()
    loop.run([Launch(MS), Work(500 * MS), Launch(MS), Wait(), Work(80 * MS)])
    for number in range(6):
        loop.step(number, [Work(10 * MS), *BURST])
        if number == 2:
            loop.run([Work(100 * MS), Launch(MS), Wait(), Work(100 * MS)])
        loop.run([Work(20)])
    run = api.OpenRun(opened(tmp_path, loop))
    for question, saved_ms in (("host x0", 10), ("host x0.5", 5), ("compute x0.5", 25)):
        found = run.what_if(question)
        saving = found.row(found.labels.index(question))["saving_ns"]
        assert saving == pytest.approx(saved_ms * 1e6, rel=0.01), question


def test_a_host_that_is_late_after_its_last_launch_makes_its_phase_host_bound(
    tmp_path: Path,
    wording: Wording,
) -> None:
    loop = Loop()
    for number in range(4):
        begin = loop.now
        loop.run(BURST)
        loop.trace.note("Optimizer.step#SGD.step", begin, loop.now)
        loop.run([Work(100 * MS)])
        loop.trace.note(f"ProfilerStep#{number}", begin, loop.now)
    run = opened(tmp_path, loop)
    wording(details(api.OpenRun(run).frame("?view=findings"))[0], "Optimizer", "host-bound")
    found = api.OpenRun(run).what_if("phase=optimizer host x0")
    saving = found.row(found.labels.index("phase=optimizer host x0"))["saving_ns"]
    assert saving == pytest.approx(100e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("torch/utils/checkpoint.py(1101): pack_hook", ""),
        ("deepspeed/runtime/activation_checkpointing/checkpointing.py(557): forward", ""),
        ("torch/_dynamo/eval_frame.py(110): _maybe_set_eval_frame", ""),
        ("torch/serialization.py(943): save", "checkpoint"),
        ("train.py(88): evaluate", "evaluation"),
    ],
)
def test_activation_checkpointing_saves_no_checkpoint(name: str, what: str) -> None:
    place = side_work_of(name)
    assert (SIDE_WORK[place] if place >= 0 else "") == what


def test_time_outside_steps_is_in_no_lane_and_of_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chopper_core.model.accounting.QUICK_LAUNCH_NS", 0)
    run = opened(tmp_path, loop_of([[Work(50), *[Launch(50)] * 3, Wait()]] * 3, [Work(20)]))
    assert inside(run) != steps_us(run)
    lanes = query(run, View(run.name, name="timeline", by="stream", columns=("lane_activities",)))
    assert {label: row["lane_activities"] for label, row in rows_of(lanes).items()} == {
        "GPU 0 s7": 9
    }
    streams = query(run, View(run.name, order=("stream",), is_total=True))
    assert {*streams.labels} == {"7", "none"}
