"""What a stranger who reads findings may ask: whose time is it, of what, and is it said once?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chopper_core.analyses.asked import Steady, change_of
from chopper_core.analyses.step_times import step_times
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from tests.programs.bench import causes as bench
from tests.programs.bench.causes import planted
from tests.support import run_of
from tests.views.test_findings import MS, rows


def findings(run: Run) -> Frame:
    return query(run, parse("R?view=findings"))


def by_rule(run: Run, rule: str) -> dict[str, Any]:
    frame = findings(run)
    found = [frame.row(row) for row in range(len(frame))]
    (one,) = (each for each in found if each["rule"] == rule)
    return one


def products(folder: Path, of_known: list[bool]) -> Run:
    """Steps of matrix products of 200 µs in one operation, some of a known, tiny shape; each is
    launched once the one before has ended."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, begin: float, took: float, **args: Any) -> None:
        place = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 1, "tid": 1}
        times = {"ts": begin, "dur": took}
        events.append({"ph": "X", "cat": category, "name": name, "args": args, **place, **times})

    at, call = 0.0, 0
    for number in (3, 4, 5):
        begin = at
        for is_known in of_known:
            call += 1
            shape = {"Input Dims": [[64, 64]] * 2, "Input type": ["c10::BFloat16"] * 2}
            add("cpu_op", "aten::mm", at, 8, **(shape if is_known else {}))
            add("cuda_runtime", "cudaLaunchKernel", at + 2, 4, correlation=call)
            device = {"device": 0, "stream": 7, "correlation": call}
            add("kernel", "ampere_bf16_gemm_128x128", at + 10, 200, **device)
            add("cuda_runtime", "cudaDeviceSynchronize", at + 9, 202)
            at += 215
        add("user_annotation", f"ProfilerStep#{number}", begin, at - begin)
    about = {
        "distributedInfo": {"rank": 0, "world_size": 1},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    }
    (folder / "rank0.json").write_text(json.dumps({**about, "traceEvents": events}))
    return open_run(str(folder), jobs=1)


@pytest.mark.parametrize("of_known", [[True, False, False], [True, True, False], [True]])
def test_products_save_what_those_of_known_shape_take(of_known: list[bool], tmp_path: Path) -> None:
    """Kernels of unknown FLOPs in the same operation stay as they are."""
    row = by_rule(products(tmp_path, of_known), "products")
    # 64³ takes nanoseconds at the peak: all of the 200 µs of each is beyond it.
    assert row["cost_ns"] == pytest.approx(200_000 * sum(of_known), rel=0.01)
    assert row["saving_ns"] == pytest.approx(row["cost_ns"], rel=0.02)
    assert "less than 1 %" in row["detail"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cause", "rule", "whose"),
    [
        ("one GPU at a lower clock", "straggler", "GPU 2"),
        ("two GPUs at a lower clock", "straggler", "worst GPU"),
        ("data late on all GPUs", "host-bound", "mean GPU"),
    ],
)
def test_a_cost_says_whose_time_it_is(cause: str, rule: str, whose: str) -> None:
    run = bench.opened(planted.plant(cause, 1, 0.04, "module").run)
    assert by_rule(run, rule)["cost_of"] == whose
    frame = findings(run)
    costs, base = (frame.values[name] for name in ("cost_ns", "cost_of"))
    assert (costs.present() == base.present()).all()


def test_with_one_gpu_a_cost_has_no_base(tmp_path: Path) -> None:
    frame = findings(products(tmp_path, [True]))
    assert not frame.values["cost_of"].present().any()


def test_one_replay_is_one_saving(run: Run) -> None:
    """A part that the same question removes has no saving next to that of its whole."""
    frame = findings(run)
    asked = [row["remedy"] for row in map(frame.row, range(len(frame))) if row["remedy"]]
    assert len(asked) == len(set(asked)) > 3
    part = by_rule(run, "throttled")
    assert part["part_of"] == 1 and part["saving_ns"] is None and part["cost_ns"] > 0
    assert "its whole" in part["detail"]


def test_a_share_of_a_run_without_steps_is_of_its_time() -> None:
    made = [
        replace(row, iteration=NO_LABEL, kind=Kind.COPY, kernel="Memcpy HtoD")
        if row.operation == "mlp_dp" and row.layer == 1
        else replace(row, iteration=NO_LABEL)
        for row in rows()
    ]
    frame = findings(run_of(made))
    titles = " ".join(frame.labels)
    assert "% of the time" in titles
    assert " step" not in titles.replace("No steps in this trace", "")
    row = by_rule(run_of(made), "copies")
    assert row["cost_ns"] == pytest.approx(6 * MS) and " step" not in row["detail"]


def reading_back(folder: Path, *, reads: bool) -> Run:
    """Steps that queue their work ahead, and small kernels at two places, the gradient norm and an
    evaluation; after each of those a value is read back, or isn't."""
    folder.mkdir()
    events: list[dict[str, Any]] = []
    now = free = 0.0
    call = 0

    def add(category: str, name: str, begin: float, took: float, **args: Any) -> None:
        is_gpu = category in ("kernel", "gpu_memcpy")
        place = {"pid": 0, "tid": 7} if is_gpu else {"pid": 1, "tid": 1}
        times = {"ts": begin, "dur": took}
        events.append({"ph": "X", "cat": category, "name": name, "args": args, **place, **times})

    def gpu(category: str, name: str, us: float, called: str) -> None:
        nonlocal call, free
        call += 1
        add("cuda_runtime", called, now + 2, 4, correlation=call)
        start = max(free + 1, now + 9)
        add(category, name, start, us, device=0, stream=7, correlation=call)
        free = start + us

    def launch(operator: str, us: float) -> None:
        nonlocal now
        gpu("kernel", f"void {operator[6:]}_kernel", us, "cudaLaunchKernel")
        add("cpu_op", operator, now, 8)
        now += 10

    def read() -> None:
        nonlocal now
        begin = now
        gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1, "cudaMemcpyAsync")
        add("cuda_runtime", "cudaStreamSynchronize", begin + 8, free + 4 - begin - 8)
        add("cpu_op", "aten::item", begin, free + 6 - begin)
        now = free + 9

    for number in range(6):
        begin = now
        for place, operator, us in (("forward", "aten::mm", 300), ("backward", "aten::bmm", 600)):
            at = now
            for _ in range(40):
                launch(operator, us)
            add("user_annotation", place, at, now - at)
        for place, operator, times in (
            ("clip_grad_norm", "aten::linalg_vector_norm", 40),
            ("evaluate", "aten::addmm", 80),
        ):
            at = now
            for _ in range(times):
                launch(operator, 40)
                if reads:
                    read()
            add("user_annotation", place, at, now - at)
        now = max(now, free - 1000)
        add("user_annotation", f"ProfilerStep#{number}", begin, now - begin)
        now += 5
    about = {
        "distributedInfo": {"rank": 0, "world_size": 1},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    }
    (folder / "rank0.json").write_text(json.dumps({**about, "traceEvents": events}))
    return open_run(str(folder), jobs=1)


def test_reading_back_at_two_places_is_one_finding(tmp_path: Path) -> None:
    """What is idle before launch calls and after them has one cause, and one size."""
    run = reading_back(tmp_path / "with", reads=True)
    frame = findings(run)
    named = [frame.row(row) for row, title in enumerate(frame.labels) if "Reading a" in title]
    assert [row["rule"] for row in named] == ["host-bound"]
    took = [
        step_times(each, View(each.name)).mean_ns
        for each in (run, reading_back(tmp_path / "without", reads=False))
    ]
    # The twin has no copies either, which the finding isn't about.
    true_ns = took[0] - took[1] - 120 * 2_000
    assert named[0]["saving_ns"] == pytest.approx(true_ns, rel=0.25)
    assert named[0]["cost_ns"] == pytest.approx(true_ns, rel=0.25)


@pytest.mark.few(1)
def test_a_long_stage_saves_what_moving_its_work_saves() -> None:
    """The truth is the same work in stages of one length, not a run without it."""
    truth = planted.plant("a heavy last stage", 3, 0.04, "stages alone")
    run = bench.opened(truth.run)
    row = by_rule(run, "long-stage")
    assert row["remedy"] == "stages balanced" and row["cost_of"] == "stage 3"
    assert row["saving_ns"] == pytest.approx(truth.cost_ns, rel=0.1)
    assert row["saving_low_ns"] < truth.cost_ns < row["saving_high_ns"]
    predictor = Steady.of(run, View(run.name)).predictor
    change, work = change_of(predictor, "stages balanced"), predictor.graph.work_ns.astype(float)
    after = change.work(work)
    assert after.sum() == pytest.approx(work[change.nodes].sum(), rel=1e-9)
    stage = run.table.coordinates["pp"][predictor.graph.gpu[change.nodes]]
    sums = [after[stage == each].sum() for each in range(4)]
    assert max(sums) == pytest.approx(min(sums), rel=1e-9)
    with pytest.raises(UsageError, match="stages are balanced"):
        change_of(predictor, "stages x0.5")
    with pytest.raises(NothingToShow, match="nothing can be moved"):
        change_of(predictor, "stage:1 stages balanced")


def test_stages_are_balanced_where_there_are_any(tmp_path: Path) -> None:
    run = products(tmp_path, [True])
    with pytest.raises(UsageError, match="no pipeline stages"):
        change_of(Steady.of(run, View(run.name)).predictor, "stages balanced")


@pytest.mark.parametrize("name", ["step 5", "train_step_5", "execute_context_0(0)_generation_4(4)"])
def test_a_step_is_no_cause_of_its_idle_time(name: str, tmp_path: Path) -> None:
    """A host that is in nothing but the annotation of its step is in untraced code."""
    events: list[dict[str, Any]] = []
    for number in range(4):
        at = 10_000.0 * number
        for place in range(10):
            call = 10 * number + place + 1
            begin = at + 1_000 * place
            times = {"pid": 1, "tid": 1, "ph": "X"}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin, "dur": 4}
            events.append({**times, **launch, "args": {"correlation": call}})
            where = {"device": 0, "stream": 7, "correlation": call}
            kernel = {"cat": "kernel", "name": "gemm", "ts": begin + 6, "dur": 400}
            events.append({"ph": "X", "pid": 0, "tid": 7, **kernel, "args": where})
        own = name.replace("5", str(5 + number)) if "5" in name else name
        note = {"cat": "user_annotation", "name": own, "ts": at - 5, "dur": 9_990}
        events.append({**times, **note, "args": {}})
    about = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    (tmp_path / "rank0.json").write_text(json.dumps({**about, "traceEvents": events}))
    frame = findings(open_run(str(tmp_path), jobs=1))
    first = frame.labels[0]
    assert "ntraced code" in first and "step 5" not in first and "execute" not in first
