"""Scopes in which a view has nothing to show: each says why (docs/internals/errors.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.pipeline import blocks_of, pipeline_of
from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.extensions.runs.run_rows import Reading, RunRow
from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.column_names import MICROBATCH
from chopper_core.model.run import Run
from chopper_core.model.table import Kind, empty_table
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError, NothingToShow
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import frame_of, query
from tests.allocating import events_of
from tests.demo import demo_run
from tests.ingest.test_untimed_counters import HEADINGS, ROWS
from tests.support import Row, run_of
from tests.wording import Wording


def said(run: Run, text: str) -> str:
    return " ".join(frame_of(run, parse(f"R{text}")).notes)


@pytest.fixture(scope="module")
def untimed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("untimed") / "pmc_perf.csv"
    path.write_text("\n".join((HEADINGS, *ROWS)) + "\n")
    return open_run(str(path))


def test_a_scope_that_is_never_idle(wording: Wording) -> None:
    scope = ":gpu=0/iteration=11/phase=forward/layer=5/operation=mlp_gp"
    wording(said(demo_run(), f"{scope}?view=launch&by=host"), "never idle")


def test_a_scope_that_allocates_nothing(tmp_path: Path, wording: Wording) -> None:
    for rank in range(2):
        events = [each for each in events_of(rank) if not rank or each["name"] != "[memory]"]
        document = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    run = open_run(str(tmp_path), jobs=1)
    wording(said(run, ":gpu=1?view=memory"), "allocated or released")


def test_what_needs_times_of_counters_without(untimed: Run, wording: Wording) -> None:
    figures = figures_of_run(untimed)
    wording(figures.missing["straggler"], "no times")
    wording(said(untimed, "?view=graph"), "no dispatch times")


def test_microbatches_that_only_go_back(tmp_path: Path) -> None:
    step = {"total": 9.0, "fwd_start": [], "fwd_end": [], "bwd_start": [0, 2], "bwd_end": [1, 3]}
    for rank in range(2):
        (tmp_path / f"pp_{rank}.json").write_text(json.dumps({"1": step}))
    with pytest.raises(NothingToShow, match="the scope has no forward work"):
        pipeline_of(open_run(str(tmp_path), jobs=1), View("R"))


def test_a_scope_without_a_microbatch() -> None:
    rows = [Row(0, 50, iteration=1, operation="forward microbatch 0"), Row(90, 5, gpu=1)]
    with pytest.raises(NothingToShow, match="the scope has no microbatch"):
        blocks_of(run_of(rows), View("R", ("1",)))


def test_microbatches_without_work() -> None:
    run = run_of([Row(0, 50, iteration=1), Row(60, 50, iteration=1)])
    table = run.table.with_measured({MICROBATCH: np.full(2, np.nan)})
    with pytest.raises(NothingToShow, match="no microbatch has any work"):
        blocks_of(replace(run, table=table), View("R"))


def test_sends_that_are_not_alike() -> None:
    rows = [
        Row(10 * at, 5, kind, gpu=gpu, iteration=1, operation=name)
        for gpu, count in ((0, 2), (1, 3))
        for at, (kind, name) in enumerate([(Kind.COMPUTE, "gemm"), (Kind.COMM, "send")] * count)
    ]
    with pytest.raises(NothingToShow, match="0 to 3 blocks of forward or backward work"):
        blocks_of(run_of(rows), View("R"))


def test_a_view_without_a_figure_of_whole_runs(wording: Wording) -> None:
    runs = {name: run_of([Row(0, 10)]) for name in "ab"}
    reading = Reading(tuple(RunRow(name, name) for name in runs), 0)
    together = RunSet("all", empty_table(), (), (), others=runs, reading=lambda wait: reading)
    notes = [
        note
        for name in VIEWS
        if not view_spec(name).of_one_run
        for note in frame_of(together, View("all", name=name)).notes
    ]
    wording.among(notes, "view live", "by=")


def _steps(gpus: int) -> Run:
    kinds = ((Kind.COMPUTE, "a"), (Kind.COMM, "all_reduce"))
    return run_of(
        [
            Row(1000 * n + 400 * place, 300, kind, operation=name, iteration=n // 4, gpu=gpu)
            for n in range(16)
            for place, (kind, name) in enumerate(kinds)
            for gpu in range(gpus)
        ]
    )


@pytest.mark.parametrize(
    ("gpus", "asked", "says"),
    [
        (1, "whatif&of=comm at peak", "no collective has all its ranks"),
        (2, "whatif&of=operation:a x1&by=operation", "operation:a x1 changes nothing"),
        (2, "whatif&of=kernel_ns>5 x0.5", "kernel_ns is a figure; a question takes labels"),
    ],
)
def test_a_question_without_an_answer_says_why(gpus: int, asked: str, says: str) -> None:
    with pytest.raises(ChopperError, match=re.escape(says)):
        query(_steps(gpus), parse(f"R?view={asked}"))


def test_what_a_run_without_steps_path_or_samples_lacks() -> None:
    rows = [
        Row(0, 1000, operation="a", iteration=0),
        Row(10, 20, operation="b", stream=3, iteration=0),
        Row(1000, 1000, operation="a", iteration=0),
    ]
    run = run_of(rows)
    empty = replace(run, table=run.table.take(np.empty(0, np.int64)))
    for asked_of, address, says in (
        (run_of([Row(0, 5)]), "R?view=whatif", "no steps to replay"),
        (run, "R:operation=b?view=graph&by=node&order=operation", "is on the longest path"),
        (empty, "R?view=live", "no telemetry yet"),
    ):
        with pytest.raises(ChopperError, match=says):
            query(asked_of, parse(address))
