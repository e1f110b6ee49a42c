"""Idle time by where the hosts were: every nanosecond once, against a plain loop, and the demo."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.align import host_tables
from chopper_core.analyses.host_causes import ALLOCATOR, READ_BACK, UNSEEN, cause_of, host_charges
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostLane, HostStack, HostState, HostSteps, HostTime
from chopper_core.model.view import View
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import NothingToShow
from chopper_core.views.query import query
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.support import opened_events

MAIN, AUTOGRAD = 7, 8


def event(cat: str, name: str, start: float, end: float, thread: int = MAIN, **args: Any) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start,
            "dur": end - start, "args": args}  # fmt: skip


def kernel(start: float, end: float, correlation: int) -> Any:
    return event("kernel", "k", start, end, device=0, stream=0, correlation=correlation)


def launch(at: float, correlation: int, thread: int = MAIN) -> Any:
    name = "hipLaunchKernel"
    return event("cuda_runtime", name, at, at + 5, thread, correlation=correlation)


EVENTS = [
    event("user_annotation", "ProfilerStep#3", 0, 5000),
    kernel(10, 100, 1),
    launch(2, 1),
    # Data loading, then a call that allocates, within an operator, and its launch.
    event("user_annotation", "enumerate(DataLoader)#X.__next__", 50, 600),
    event("cpu_op", "aten::empty", 700, 900),
    event("cuda_runtime", "hipMalloc", 750, 850),
    event("cpu_op", "aten::mm", 920, 960),
    launch(930, 2),
    kernel(950, 1000, 2),
    # Python's collector on the main thread; autograd's thread launches.
    event("python_function", "<built-in function collect>", 1100, 1400),
    event("python_function", "short", 1420, 1450),
    event("cpu_op", "MmBackward0", 1500, 1600, AUTOGRAD),
    launch(1550, 3, AUTOGRAD),
    kernel(1560, 1700, 3),
    # Without a launch record.
    kernel(1800, 1900, 99),
]


def by_stack(run: Run, state: HostState) -> dict[tuple[str, str, str, str], int]:
    sums: dict[tuple[str, str, str, str], int] = defaultdict(int)
    pieces = run.side(HostTime)
    for at in np.flatnonzero(pieces.state == state).tolist():
        one = pieces.stacks[int(pieces.stack[at])]
        place = (one.call, one.operator, one.annotation, one.frame)
        sums[place] += int(pieces.duration_ns[at])
    return sums


def test_each_piece_of_a_gap_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chopper_core.model.accounting.QUICK_LAUNCH_NS", 0)
    run = opened_events(tmp_path, EVENTS)
    us = 1000
    data = ("", "", "enumerate(DataLoader)#X.__next__", "")
    assert by_stack(run, HostState.LATE) == {
        data: 500 * us,
        # 2 µs before the first launch, 3,100 after the last kernel.
        ("", "", "", ""): (2 + 100 + 20 + 100 + 100 + 3100 + 3) * us,
        # From the first launch on, the queue may hold what isn't recorded: that is outside.
        ("hipLaunchKernel", "", "", ""): 5 * us,
        ("", "aten::empty", "", ""): 100 * us,
        ("hipMalloc", "aten::empty", "", ""): 100 * us,
        ("", "aten::mm", "", ""): 10 * us,
        ("", "", "", "<built-in function collect>"): 300 * us,
        ("", "MmBackward0", "", ""): 50 * us,
    }
    assert by_stack(run, HostState.LAUNCHED) == {
        ("hipLaunchKernel", "aten::mm", "", ""): 5 * us,
        ("", "aten::mm", "", ""): 15 * us,
        ("hipLaunchKernel", "MmBackward0", "", ""): 5 * us,
        ("", "MmBackward0", "", ""): 5 * us,
    }
    assert by_stack(run, HostState.UNKNOWN) == {("", "", "", ""): 100 * us}


def assert_whole(run: Run) -> None:
    """The pieces of every row add up to its idle time and its exposed copies."""
    table, pieces = run.table, run.side(HostTime)
    owner = pieces.owners(table, np.arange(len(table)), run.side(HostSteps))
    assert (owner >= 0).all()
    for state, expected in (
        (HostState.LATE, table.idle_host_ns),
        (HostState.LAUNCHED, table.idle_launch_ns),
        (HostState.UNKNOWN, table.idle_unknown_ns),
        (HostState.COPYING, table.exposed_copy_ns),
    ):
        own = pieces.state == state
        sums = np.bincount(owner[own], pieces.duration_ns[own], len(table)).astype(np.int64)
        assert np.array_equal(sums, expected)
    charges = host_charges(run)
    assert charges.ns.sum() == table.idle_ns.sum() + table.exposed_copy_ns.sum()


@pytest.mark.parametrize(
    "bounds", [{"_MOST_ROWS": 30 * 100}, {"_LARGE_ROWS": 30 * 100, "_MOST_REPEATED": 5}]
)
def test_a_thread_that_launches_for_very_many_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]
) -> None:
    """Its work would repeat for each of them: it is left out, and idle times are as before."""
    events = [event("cpu_op", "aten::mm", at, at + 9) for at in range(0, 3000, 10)]
    for device in range(30):
        for at in (100 + device, 2000 + device):
            name = 1000 * device + at
            events.append(launch(at - 5, name))
            run_on = {"device": device, "stream": 0, "correlation": name}
            events.append(event("kernel", "k", at, at + 50, device=0) | {"args": run_on})
    whole = opened_events(tmp_path, events)
    assert len(whole.side(HostTime)) > 30 * 100 and len(whole.side(HostLane)) == 30 * 300
    for name, most in bounds.items():
        monkeypatch.setattr(host_tables, name, most)
    run = opened_events(tmp_path, events)
    assert not len(run.side(HostTime)) and not len(run.side(HostLane))
    assert np.array_equal(run.table.idle_ns, whole.table.idle_ns)
    (count,) = (n for what, n in run.sources[0].findings.items() if "work of their hosts" in what)
    assert count == 30
    with pytest.raises(NothingToShow, match="launches for very many GPUs"):
        query(run, View(run="R", name="launch", by="host"))


def test_pieces_add_up_to_the_idle_time(tmp_path: Path) -> None:
    assert_whole(opened_events(tmp_path, EVENTS))


def test_pieces_of_random_traces_add_up(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    events, now = [], 0.0
    for number in range(1, 300):
        thread = MAIN if random.random() < 0.7 else AUTOGRAD
        at = now + random.integers(0, 40)
        events += [launch(at, number, thread)] * (random.random() < 0.9)
        begin = max(now, at) + random.integers(0, 30)
        now = begin + random.integers(0, 30)
        events.append(kernel(begin, now, number))
    for kind in ("cpu_op", "user_annotation", "cuda_runtime", "python_function"):
        for number in range(400):
            begin = random.integers(0, int(now))
            thread = MAIN if random.random() < 0.5 else AUTOGRAD
            long = random.integers(0, 300)
            events.append(event(kind, f"{kind}{number % 7}", begin, begin + long, thread))
    run = opened_events(tmp_path, events)
    assert_whole(run)
    assert len(run.side(HostTime)) > 300
    write_store(run, tmp_path / "store")
    stored = read_store(tmp_path / "store")
    assert_whole(stored)
    assert stored.side(HostTime).stacks == tuple(run.side(HostTime).stacks)
    twice = HostTime.joined([run.side(HostTime), run.side(HostTime).from_gpu(1)])
    assert len(twice) == 2 * len(run.side(HostTime))
    assert twice.duration_ns.sum() == 2 * run.side(HostTime).duration_ns.sum()


@pytest.mark.parametrize("seed", range(40))
def test_pieces_of_steps_that_lost_kernels_add_up(tmp_path: Path, seed: int) -> None:
    """A step's last activity is charged with time on both sides, and a launch without an activity
    makes why unknown on one side or on both."""
    random = np.random.default_rng(seed)
    events, now, number = [], 0.0, 0
    for step in range(6):
        begin = now + random.integers(0, 30)
        now = begin
        for _ in range(random.integers(1, 4)):
            number += 1
            at = now + random.integers(0, 40)
            now = at + 5
            events += [launch(at, number)] * (random.random() < 0.9)
            if random.random() < 0.7:
                start = at + random.integers(0, 200)
                now = max(now, start + random.integers(1, 30))
                events.append(kernel(start, now, number))
        now += random.integers(0, 60)
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, now))
    if any(each["cat"] == "kernel" for each in events):
        assert_whole(opened_events(tmp_path, events))


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (HostStack(annotation="enumerate(DataLoader)#It.__next__"),
         "data loading (enumerate(DataLoader)#It.__next__)"),
        (HostStack("hipFree", "aten::empty"), f"{ALLOCATOR} (hipFree)"),
        (HostStack("hipMemcpyWithStream", "aten::_local_scalar_dense"),
         f"{READ_BACK} (aten::item)"),
        (HostStack("hipMemcpyWithStream", "aten::copy_", "save_checkpoint"),
         "saving a checkpoint (save_checkpoint)"),
        (HostStack(frame="<built-in function collect>"),
         "garbage collection (<built-in function collect>)"),
        (HostStack("hipMemcpyAsync", "aten::copy_", "enumerate(DataLoader)#It.__next__"),
         "data loading (enumerate(DataLoader)#It.__next__)"),
        (HostStack("hipMemcpyAsync", "aten::copy_"), "copy calls (hipMemcpyAsync)"),
        (HostStack("hipLaunchKernel", "aten::mm", "Layer3"), "launch calls"),
        (HostStack("", "aten::mm", "Layer3"), "aten::mm"),
        (HostStack("hipDeviceSynchronize"), "synchronisation (hipDeviceSynchronize)"),
        (HostStack("hipStreamWaitEvent"), "events (hipStreamWaitEvent)"),
        (HostStack("cudaOccupancyMaxActiveBlocks"),
         "other runtime calls (cudaOccupancyMaxActiveBlocks)"),
        (HostStack(annotation="my range"), "my range"),
        (HostStack(), UNSEEN),
    ],
)  # fmt: skip
def test_causes_have_names(stack: HostStack, text: str) -> None:
    assert cause_of(stack).text == text


def test_a_call_that_drains_the_queue_is_the_cause_of_what_follows(tmp_path: Path) -> None:
    events = [
        kernel(10, 100, 1),
        launch(2, 1),
        event("cpu_op", "aten::item", 20, 130),
        event("cuda_runtime", "hipMemcpyWithStream", 30, 120),
        event("cpu_op", "aten::mm", 140, 160),
        launch(145, 2),
        kernel(150, 900, 2),
        # Long after it the host does something else.
        event("cuda_runtime", "hipStreamSynchronize", 850, 920),
        event("cpu_op", "aten::mm", 3000, 4000),
        launch(3500, 3),
        kernel(3510, 3520, 3),
    ]
    charges = host_charges(opened_events(tmp_path, events))
    late = charges.state == HostState.LATE
    sums = {
        cause.text: int(charges.ns[late & (charges.cause == at)].sum()) // 1000
        for at, cause in enumerate(charges.causes)
    }
    assert sums[f"{READ_BACK} (aten::item)"] == 45
    # It owns the time that the host is in it, and 200 µs more.
    assert sums["synchronisation (hipStreamSynchronize)"] == 20 + 200
    assert sums[UNSEEN] == 2080 - 200
    assert sums["aten::mm"] == 500


@pytest.mark.sweep
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real traces at {REAL_DATA}")
def test_where_the_hosts_of_a_real_run_are() -> None:
    """Of rank 3's 91.1 ms idle 71.4 pass in operators, 19.6 outside; of rank 0's 48.9, 35.1."""
    run = open_run(str(REAL_DATA / "mi300x_ddp4"), jobs=1)
    assert_whole(run)
    pieces = run.side(HostTime)
    in_operator = np.array([bool(each.operator) for each in pieces.stacks])[pieces.stack]
    for gpu, inside, outside in ((3, 71.45, 19.61), (0, 35.15, 13.78)):
        idle = (pieces.gpu == gpu) & (pieces.state != HostState.COPYING)
        for mask, expected in ((in_operator, inside), (~in_operator, outside)):
            assert pieces.duration_ns[idle & mask].sum() / 1e6 == pytest.approx(expected, abs=0.06)
