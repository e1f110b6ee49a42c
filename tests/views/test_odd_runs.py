"""Every view of runs at the edge: JSON is strict, and a view without rows says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import chopper_core
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.view import Baseline, View
from chopper_core.render import FORMATS, as_json, render_frame
from chopper_core.util.errors import NoSuchNode, NothingToShow, UsageError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import frame_of, preview_frame, query
from chopper_tui.cli import main
from tests.align.traces import GEMM, TinyTrace
from tests.support import Row, run_of

SPLITS = [("", ""), *((name, by) for name in VIEWS for by in view_spec(name).by or ("",))]
EPOCH = 1_700_000_000_000_000_000
RUNS: dict[str, Callable[[], Run]] = {
    "one activity": lambda: run_of([Row(0, 10)]),
    "one since the epoch": lambda: run_of([Row(1_700_000_000_000_000_123, 10, launch=EPOCH)]),
    "one of no duration": lambda: run_of([Row(5, 0, iteration=1, launch=5)]),
    "nothing lasts": lambda: run_of([Row(n, 0, iteration=n, gpu=n % 2) for n in range(6)]),
    "one collective": lambda: run_of([Row(0, 9, Kind.COMM, operation="all_reduce")]),
    "one copy": lambda: run_of([Row(0, 9, Kind.COPY, iteration=3)]),
    "all at once": lambda: run_of([Row(0, 9, stream=n, gpu=n % 2, iteration=1) for n in range(8)]),
    "one on each": lambda: run_of([Row(0, 9 * n, gpu=n, iteration=7, layer=n) for n in range(3)]),
}


def no_constant(word: str) -> None:
    raise AssertionError(f"{word} in JSON")


@pytest.mark.parametrize("name", VIEWS)
def test_no_view_takes_a_gpu_that_does_not_exist(name: str) -> None:
    with pytest.raises((NoSuchNode, UsageError)):
        frame_of(run_of([Row(0, 10)]), View("R", ("0=P,g:view",), name=name))


@pytest.mark.few(1)
@pytest.mark.parametrize("odd", RUNS)
@pytest.mark.parametrize("stat", ["", "median", "spread"])
def test_json_is_strict_whatever_the_run(odd: str, stat: str) -> None:
    run = RUNS[odd]()
    for name, by in SPLITS:
        for path in ((), ("0",)):
            try:
                frame = frame_of(run, View("R", path, name=name, by=by, stat=stat))
            except (NoSuchNode, UsageError):
                continue
            numbers = [*frame.total.values(), *frame.row(0).values()] if len(frame) else []
            assert all(np.isfinite(each) for each in numbers if isinstance(each, float)), name
            document = json.loads(as_json(frame), parse_constant=no_constant)
            assert document["rows"] or document["notes"], (name, by)
            for each in FORMATS:
                assert render_frame(frame, each)


@pytest.mark.few(1)
@pytest.mark.parametrize("odd", ["one on each", "nothing lasts"])
def test_a_baseline_may_take_no_time_and_have_other_rows(odd: str) -> None:
    run = RUNS[odd]()
    gpus = [str(gpu.index) for gpu in run.gpus[:2]]
    for name in ("", *VIEWS):
        for path, base in product([(), *((gpu,) for gpu in gpus)], gpus):
            view = View("R", path, name=name, baseline=Baseline(path=(base,)))
            try:
                preview_frame(run, view)
                frame = frame_of(run, view)
            except UsageError:
                continue
            json.loads(as_json(frame), parse_constant=no_constant)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_without_rows_says_why(name: str) -> None:
    run = RUNS["one activity"]()
    try:
        query(run, View("R", name=name))
    except NothingToShow as reason:
        frame = frame_of(run, View("R", name=name))
        assert len(frame) == 0 and frame.notes[0] == str(reason)
        document = json.loads(as_json(frame))
        assert document["rows"] == [] and document["notes"][0] == str(reason)


@pytest.mark.sweep
def test_the_command_line_and_python_do_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    for name in VIEWS:
        assert main(["show", f"{path}?view={name}", "--format", "json", "--no-cache"]) == 0
        json.loads(capsys.readouterr().out, parse_constant=no_constant)
    assert main(["show", f"{path}?view=comms", "--no-cache"]) == 0
    assert "no collectives" in capsys.readouterr().out
    opened = chopper_core.open(path, cache=False)
    assert len(opened.frame("?view=ranks")) == 0
    assert opened.frame("?view=explore").labels == opened.frame().labels
    for view in ("explore", "info"):
        assert main(["show", f"{path}?view={view}", "--no-cache"]) == 0
        assert "k" in capsys.readouterr().out


@pytest.mark.parametrize("first", [1, 11])
def test_a_gpu_with_nothing_in_common_is_not_compared(first: int, tmp_path: Path) -> None:
    for rank in range(3):
        trace = TinyTrace(members={"distributedInfo": {"rank": rank, "world_size": 3}})
        is_last = rank == 2
        for step in range(3):
            begin, number = 1000 * step, step + (first if is_last else 1)
            trace.note(f"ProfilerStep#{number}", begin, begin + 990)
            for at in range(begin + 10, begin + 810, 100):
                trace.op("aten::topk" if is_last else "aten::mm", at, at + 20)
                trace.launch("sort_kernel" if is_last else GEMM, at + 5, duration=50)
        trace.write(tmp_path / f"rank{rank}.json")
    run = open_run(str(tmp_path))
    frame = query(run, View(run.name, name="ranks"))
    assert frame.headline[0].startswith("no straggler among the GPUs that are compared")
    assert any(note.startswith("no lag is known of GPU 2") for note in frame.notes)
