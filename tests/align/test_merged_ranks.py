"""A file that merges the traces of several ranks gives what their own files give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import COLUMNS, Category
from chopper_core.util.errors import DataError
from tests.align.traces import ADAM, AUTOGRAD, EVALUATE, GEMM, TinyTrace
from tests.realdata.conftest import FOLDER as REALDATA
from tests.wording import Wording


def rank_trace(rank: int) -> TinyTrace:
    """Two steps; each rank is later and slower, with the same threads and correlation ids."""
    trace = TinyTrace(device=2, members={"distributedInfo": {"rank": rank, "world_size": 3}})
    length = 300 + 150 * rank
    for step in (4, 5):
        at = 40 * rank + length * (step - 4)
        trace.note(f"ProfilerStep#{step}", at, at + length)
        trace.op("aten::mm", at + 10, at + 30)
        trace.launch(GEMM, at + 15, duration=20 + rank)
        trace.op(EVALUATE + "MmBackward0", at + 40, at + 60, AUTOGRAD)
        trace.launch(GEMM, at + 45, thread=AUTOGRAD, duration=30)
        trace.note("Optimizer.step#AdamW.step", at + 200, at + 250)
        trace.launch(ADAM, at + 210, duration=90)
    return trace


def merged(traces: list[tuple[int, TinyTrace]], path: Path) -> Path:
    """One file with the events of all ranks, each of which names its rank."""
    events: list[dict[str, Any]] = []
    for rank, trace in traces:
        events += [each | {"args": each.get("args", {}) | {"rank": rank}} for each in trace.events]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def rows_of(run: Run) -> list[tuple[Any, ...]]:
    table = run.table
    columns = [table.column(name) for name in COLUMNS if name not in ("kernel", "operation")]
    names = [table.names[code] for code in table.kernel]
    operations = [table.operations[code] for code in table.operation]
    return sorted(zip(names, operations, *(each.tolist() for each in columns), strict=True))


def test_a_trace_merged_by_pids_is_its_parts(tmp_path: Path, wording: Wording) -> None:
    """SGLang puts the rank before each pid; correlations of the ranks are the same numbers."""
    apart = tmp_path / "apart"
    apart.mkdir()
    events: list[dict[str, Any]] = []
    for rank in range(3):
        trace = rank_trace(rank)
        trace.write(apart / f"1755-TP-{rank}.trace.json")
        events += [each | {"pid": f"[TP{rank:02}] {each['pid']}"} for each in trace.events]
    whole = apart / "merged-1755.trace.json"
    text = json.dumps({"traceEvents": events})
    whole.write_text(text)
    assert [each.path for each in find_runs([str(apart)])] == [str(apart)]
    parts = open_run(str(apart), jobs=1)
    ((path, why),) = parts.skipped
    assert path == str(whole)
    wording(why, "merges the traces")
    alone = tmp_path / "merged.json"
    alone.write_text(text)
    run = open_run(str(alone), jobs=1)
    assert rows_of(run) == rows_of(parts) and run.ranks == (0, 1, 2)
    (origin,) = {each.rank_from for each in run.sources}
    wording(origin, "[TPnn]", "pid")


def test_stages_and_replicas_in_pids_are_ranks_of_their_own(tmp_path: Path) -> None:
    """Two stages of two ranks of tensor parallelism, then two replicas: each has a TP00."""
    for kind in ("PP", "DP"):
        places = [(0, 0), (0, 1), (1, 0), (1, 1)]
        events: list[dict[str, Any]] = []
        (tmp_path / kind).mkdir()
        for rank, (other, of_tensors) in enumerate(places):
            trace = rank_trace(rank)
            trace.write(tmp_path / kind / f"rank{rank}.json")
            label = f"[TP{of_tensors:02}-{kind}{other:02}-EP{of_tensors:02}]"
            events += [each | {"pid": f"{label} {each['pid']}"} for each in trace.events]
        (tmp_path / f"{kind}.json").write_text(json.dumps({"traceEvents": events}))
        run = open_run(str(tmp_path / f"{kind}.json"), jobs=1)
        parts = open_run(str(tmp_path / kind), jobs=1)
        assert run.ranks == (0, 1, 2, 3) and rows_of(run) == rows_of(parts)


def test_a_merged_file_is_its_ranks_files(tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    traces = [(rank, rank_trace(rank)) for rank in (1, 2, 3)]
    for rank, trace in traces:
        trace.write(apart / f"rank{rank}.json")
    whole = open_run(str(merged(traces, tmp_path / "all.json")))
    files = open_run(str(apart), jobs=1)
    assert rows_of(whole) == rows_of(files)
    assert whole.partial_iterations == files.partial_iterations
    assert [(gpu.index, gpu.rank) for gpu in whole.gpus] == [(1, 1), (2, 2), (3, 3)]
    assert [source.rank for source in whole.sources] == [1, 2, 3]
    assert all("args.rank" in source.rank_from for source in whole.sources)


def test_merged_ranks_that_do_not_follow_each_other_are_numbered_in_order(tmp_path: Path) -> None:
    traces = [(rank, rank_trace(rank)) for rank in (0, 5)]
    run = open_run(str(merged(traces, tmp_path / "all.json")))
    assert [(gpu.index, gpu.rank) for gpu in run.gpus] == [(0, 0), (1, 5)]
    activities = run.table.category != Category.OUTSIDE
    assert np.bincount(run.table.gpu[activities]).tolist() == [6, 6]


def test_a_rank_of_its_own_file_and_of_a_merged_one_is_refused(tmp_path: Path) -> None:
    rank_trace(1).write(tmp_path / "rank1.json")
    merged([(rank, rank_trace(rank)) for rank in (0, 1)], tmp_path / "two.json")
    with pytest.raises(DataError, match="both claim rank 1"):
        open_run(str(tmp_path), jobs=1)


@pytest.mark.sweep
def test_the_merged_ddp_run_is_its_four_files() -> None:
    if not REALDATA.is_dir():
        pytest.skip(f"no real traces at {REALDATA}")
    whole = open_run(str(REALDATA / "mi300x_ddp4_merged.json.gz"), jobs=1)
    files = open_run(str(REALDATA / "mi300x_ddp4"), jobs=1)
    for name in ("gpu", "iteration", "phase", "layer", "kind", "category"):
        for column in ("duration_ns", "idle_ns", "exposed_comm_ns"):
            weights = [
                np.bincount(
                    run.table.column(name) + 1, weights=run.table.column(column).astype(float)
                ).tolist()
                for run in (whole, files)
            ]
            assert weights[0] == weights[1], (name, column)
    table = whole.table
    own = [(table.gpu == 0) & (table.iteration == number) for number in (9, 10, 11)]
    assert [int((table.category[rows] == 0).sum()) for rows in own] == [1038, 1038, 1038]
    elapsed = [whole.tree().node(("0", str(number))).elapsed_ns[0] for number in (9, 10, 11)]
    assert [round(float(each) / 1e6, 2) for each in elapsed] == [47.23, 44.84, 48.05]
