"""Windows of a profiler that begin and end anywhere in a loop whose steps aren't annotated."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chopper_core.model.run import Run
from chopper_core.model.table import Category
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.align.traces import ADAM, GEMM, MAIN, TinyTrace
from tests.support import opened_events

STEPS, KERNELS, OPTIMIZER = 4, 240, 10
EACH_US = 10
"""From a kernel to the next."""
STEP_US = EACH_US * (KERNELS + OPTIMIZER)
WAIT_US = 300
FEW = 3
"""Activities that a step may lack and counts as whole: at least 1 % of it are more here, too."""


def window(begin_us: int, end_us: int, ahead_us: int | None) -> TinyTrace:
    """What a profiler sees from `begin_us` to `end_us`: of the host, which is so far ahead of the
    GPU, and of the GPU; None: of the GPU alone."""
    trace, whole = TinyTrace(), TinyTrace()
    for number in range(STEPS * (KERNELS + OPTIMIZER)):
        place = number % (KERNELS + OPTIMIZER)
        start = 1_000 + EACH_US * number
        name = ADAM if place >= KERNELS else GEMM
        if ahead_us is None:
            whole.gpu(name, start, EACH_US - 1)
            continue
        at = start - ahead_us - 3
        if place == KERNELS:
            until = at + EACH_US * OPTIMIZER - 5
            whole.note("Optimizer.step#AdamW.step", at - 1, until, MAIN)
        if place == KERNELS // 2:
            whole.op("autograd::engine::evaluate_function: MmBackward0", at, at + 5)
        whole.launch(name, at, start=start, duration=EACH_US - 1)
    trace.events = [
        each
        for each in whole.events
        if begin_us <= each["ts"] and each["ts"] + each["dur"] <= end_us
    ]
    return trace


def sizes(run: Run) -> dict[int, int]:
    """The activities of each step that counts."""
    table = run.table
    found: dict[int, int] = {}
    for number, category in zip(table.iteration.tolist(), table.category.tolist(), strict=True):
        if number >= 0 and category != Category.OUTSIDE:
            found[number] = found.get(number, 0) + 1
    return {number: size for number, size in found.items() if number not in run.cut_iterations}


@given(
    begin=st.integers(0, 2 * STEP_US),
    length=st.integers(STEP_US, STEPS * STEP_US),
    ahead_us=st.sampled_from((None, 0, 5, 400, STEP_US - 300)),
)
def test_a_step_that_a_window_cuts_is_not_a_whole_one(
    begin: int, length: int, ahead_us: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = window(begin, begin + length, ahead_us)
    assume(trace.count())
    run = opened_events(tmp_path_factory.mktemp("window"), trace.events)
    found = sizes(run)
    # Whether the first step is whole, another one shows.
    assume(len(found) > 1)
    for number, size in found.items():
        assert abs(KERNELS + OPTIMIZER - size) < FEW, (number, found)
    (note,) = (each for each in query(run, View(run.name)).notes if "optimizer" in each)
    assert note.startswith("what is of which step isn't recorded")


@pytest.mark.parametrize(
    ("begin", "length", "ahead_us"),
    [(596, 5_369, None), (1_225, 9_036, 2_200), (3_446, 8_259, 0)],
    ids=["ends within the optimizer", "begins within the optimizer", "begins at its last kernels"],
)
def test_a_window_s_edge_within_the_optimizer_cuts_a_step(
    begin: int, length: int, ahead_us: int | None, tmp_path: Path
) -> None:
    """Of whose range nothing is left, as it began before."""
    run = opened_events(tmp_path, window(begin, begin + length, ahead_us).events)
    assert {*sizes(run).values()} == {KERNELS + OPTIMIZER}


@pytest.mark.parametrize("kernels", [60, 120])
def test_small_steps_are_told_apart(kernels: int, tmp_path: Path) -> None:
    trace = TinyTrace()
    for number in range(STEPS * (kernels + OPTIMIZER)):
        name = GEMM if number % (kernels + OPTIMIZER) < kernels else ADAM
        trace.gpu(name, 1_000 + EACH_US * number, EACH_US - 1)
    run = opened_events(tmp_path, trace.events)
    assert sizes(run) == dict.fromkeys(range(STEPS), kernels + OPTIMIZER)


@pytest.mark.parametrize("ahead_us", [None, 5])
@pytest.mark.parametrize("begin_us", [0, 1_000 + STEP_US // 2])
def test_the_mean_step_is_the_period_of_the_loop(
    begin_us: int, ahead_us: int | None, tmp_path: Path
) -> None:
    """A GPU waits for a while before each step, and that before the first isn't recorded."""
    trace = window(begin_us, 2 * STEPS * STEP_US, ahead_us)
    for each in trace.events:
        each["ts"] += WAIT_US * ((each["ts"] - 1_000 + (ahead_us or 0) + 4) // STEP_US)
    run = opened_events(tmp_path, trace.events)
    row = query(run, View(run.name)).row(0)
    assert row["elapsed_ns"] == (STEP_US + WAIT_US) * 1_000


@given(
    late=st.lists(st.integers(0, STEP_US // 3), min_size=2, max_size=3),
    begin=st.integers(0, STEP_US),
)
def test_each_gpu_has_its_own_ends_of_steps(
    late: list[int], begin: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """GPUs of one kernel trace run the same loop, each a while after the others."""
    trace = TinyTrace()
    for device, behind in enumerate(late):
        for each in window(0, 2 * STEPS * STEP_US, None).events:
            if each["ts"] + behind >= begin:
                each |= {"ts": each["ts"] + behind, "pid": device}
                each["args"]["device"] = device
                trace.events.append(each)
    run = opened_events(tmp_path_factory.mktemp("gpus"), trace.events)
    assert len(sizes(run)) >= STEPS - 2
    for size in sizes(run).values():
        assert len(late) * (KERNELS + OPTIMIZER - FEW) < size <= len(late) * (KERNELS + OPTIMIZER)


@pytest.mark.parametrize("ahead_us", [None, 0, 400])
def test_whole_steps_stay(ahead_us: int | None, tmp_path: Path) -> None:
    run = opened_events(tmp_path, window(0, 2 * STEPS * STEP_US, ahead_us).events)
    assert sizes(run) == dict.fromkeys(range(STEPS), KERNELS + OPTIMIZER)


def test_without_a_whole_step_figures_are_those_of_the_cut_one(tmp_path: Path) -> None:
    """As where one is whole: time outside steps is in none."""
    trace = window(0, 1_000 + STEP_US // 2, 5)
    trace.note("ProfilerStep#3", 0, 2 * STEP_US)
    # Set-up, before the step; and launches whose activities the window's end lost.
    trace.launch(GEMM, -900)
    for late in range(9):
        trace.call("hipLaunchKernel", 2 * STEP_US - 100 + late, 10_000 + late)
    run = opened_events(tmp_path, trace.events)
    frame = query(run, View(run.name))
    assert run.cut_iterations == {3}
    whole = query(run, View(run.name, path=("0", "3")))
    assert frame.total["elapsed_ns"] == whole.total["elapsed_ns"]
    steps = query(run, View(run.name, path=("0",)))
    assert steps.labels == ["none", "3"] and steps.counted().tolist() == [False, True]
    assert any("no complete one" in note for note in frame.notes)
    assert any("outside steps" in note for note in frame.notes)
