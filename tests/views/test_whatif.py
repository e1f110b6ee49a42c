"""What-if answers against runs generated without the cause, published answers, and by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from chopper_core.analyses.asked import Steady, change_of, questions_of, selected
from chopper_core.analyses.step_times import step_times
from chopper_core.api import OpenRun
from chopper_core.columns.filter import only
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import Lanes
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.model.table import Kind
from chopper_core.model.view import SEPARATOR, View
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_core.views.shared.row_questions import question_about
from chopper_core.views.whatif import straggler_metrics
from tests.demo import demo_run, small_run
from tests.realdata.conftest import FOLDER
from tests.support import Row, run_of
from tests.wording import Wording

MS = 1e6
TRUTHS = {
    "gpu:5 as peers": 37.22,
    "gpu:2 host as peers": 6.51,
    "layer:21 as peers": 1.011,
    "operation:attn_op contention as peers": 1.00,
}
"""How much shorter the median step of fsdp2 is, generated without each cause (ms)."""


def answers(run: Run, *questions: str, by: str = "") -> dict[str, dict[str, float | None]]:
    found = OpenRun(run).what_if(*questions, by=by)
    figures = {name: each for name, each in found.values.items() if each.words is None}
    return {
        label: {name: values.at(row) for name, values in figures.items()}
        for row, label in enumerate(found.labels)
    }


def test_causes_of_the_demo_cost_what_it_takes_longer_with_them() -> None:
    found = answers(demo_run("fsdp2"), *TRUTHS)
    for question, truth in TRUTHS.items():
        saving = found[question]["saving_ns"]
        assert saving is not None
        assert saving / MS == pytest.approx(truth, rel=0.1, abs=0.2), question
    together = found["all together"]["saving_ns"]
    assert together is not None
    # Causes on different GPUs hide behind each other, so that they save less together.
    assert max(TRUTHS.values()) * 0.9 < together / MS <= 1.1 * sum(TRUTHS.values())


@pytest.mark.parametrize("name", ["fsdp2", "pipeline_pp8", "mi300x_ddp4"])
def test_each_saving_of_a_finding_is_that_of_a_default_question(name: str) -> None:
    if name != "fsdp2" and not (FOLDER / name).is_dir():
        pytest.skip(f"no {name} in {FOLDER}")
    run = demo_run(name) if name == "fsdp2" else open_run(str(FOLDER / name), jobs=1)
    asked, found = answers(run), query(run, View(run.name, name="findings"))
    saving, remedy = found.values["saving_ns"], found.values["remedy"]
    rows = [row for row in range(len(found.labels)) if remedy.cell(row)]
    # The general question is worded in its own way.
    worded = {"host x0": "no host gaps"}
    savings = {worded.get(text := str(remedy.cell(row)), text): saving.at(row) for row in rows}
    bounds = {
        worded.get(text := str(remedy.cell(row)), text) for row in rows if saving.is_bound(row)
    }
    measured = asked["as measured"]["step_ns"]
    assert savings and measured is not None
    for question, saved in savings.items():
        # A bound is in the range of the answer, which is wider where steps differ.
        least, answer = asked[question]["step_low_ns"], asked[question]["saving_ns"]
        assert least is not None and answer is not None and saved is not None
        most = measured - least if question in bounds else answer
        assert answer - 1 <= saved <= most + 1, question


def test_a_change_of_nothing_saves_nothing_and_slower_is_never_faster(tmp_path: Path) -> None:
    run = schedule(tmp_path)
    found = answers(run, "stage:1 x1", "stage:1 x1.1")
    assert found["stage:1 x1"]["saving_ns"] == 0
    slower, measured = found["stage:1 x1.1"], found["as measured"]["step_ns"]
    assert slower["saving_ns"] is not None and slower["saving_ns"] < 0
    assert measured is not None
    assert slower["step_ns"] == pytest.approx(measured - slower["saving_ns"], abs=1)


def test_parts_of_a_change_are_replayed_alone(tmp_path: Path) -> None:
    found = answers(schedule(tmp_path), "operation:forward-compute x0.5", by="gpu")
    # Stage 0 ends earlier, and stage 1 goes on to the end; or stage 1 alone, as by hand above.
    assert found["1"]["saving_ns"] == 65 * MS
    assert found["0"]["saving_ns"] == 25 * MS


def test_a_word_chooses_operations_and_kernels_with_it_in_their_names() -> None:
    run = demo_run("fsdp2")
    table = run.table
    for word in ("mlp", "multi_tensor", "Cijk"):
        has_it = np.zeros(len(table), np.bool_)
        for level in ("operation", "kernel"):
            codes = table.column(level)
            names = [table.text_of(level, code) for code in range(int(codes.max()) + 1)]
            own = [code for code, name in enumerate(names) if word.lower() in name.lower()]
            has_it |= np.isin(codes, own)
        assert 0 < has_it.sum() < len(table)
        assert (selected(run, word, word).rows == has_it).all()
        assert (selected(run, f"!{word}", word).rows == ~has_it).all()


@pytest.mark.sweep
def test_a_finding_leads_to_the_question_without_it() -> None:
    run = demo_run("fsdp2")
    found = OpenRun(run).frame("?view=findings")
    asked = [question_about(found.view, found, row) for row in range(len(found))]
    assert "gpu:5 compute as peers" in asked
    assert "phase:forward operation:attn_op contention as peers" in asked
    for question in filter(None, asked):
        assert OpenRun(run).what_if(question).labels


@pytest.mark.parametrize(
    ("question", "facts"),
    [
        ("gpu=9 as peers", ("gpu:9", "0, 1")),
        ("faster", ("'faster'",)),
        ("colour:red x0.5", ("colour",)),
        ("host at peak", ("as peers", "x0.8")),
        ("stage:3 as peers", ("coordinates of GPUs",)),
        ("gpu:5 x99999999999999999999", ("1,000", "100,000 MHz")),
        ("clock=0", ("1,000", "100,000 MHz")),
        ("zzz x0.5", ("zzz", "operation")),
        ("kernel=zzz x0.5", ("kernel:zzz",)),
    ],
    ids=str,
)
def test_questions_that_cant_be_asked_say_what_can(
    question: str, facts: tuple[str, ...], wording: Wording
) -> None:
    with pytest.raises(UsageError) as told:
        OpenRun(demo_run("fsdp2")).what_if(question)
    wording(str(told.value), *facts)


def test_questions_in_an_address_are_kept_apart_and_asked_once() -> None:
    text = SEPARATOR.join(["gpu:5  as peers", "no contention", "", "gpu:5 as peers"])
    assert questions_of(text) == ["gpu:5 as peers", "no contention"]


def schedule(path: Path) -> Run:
    """Two stages and two microbatches, every start as early as the schedule allows."""
    rows = []
    for stage, name, start, end, microbatch in (
        (0, "forward-compute", 0, 50, 0),
        (0, "forward-send", 50, 60, -1),
        (0, "forward-compute", 50, 100, 1),
        (0, "forward-send", 100, 140, -1),
        (1, "forward-recv", 0, 60, -1),
        (1, "forward-compute", 60, 130, 0),
        (1, "forward-recv", 130, 140, -1),
        (1, "forward-compute", 140, 210, 1),
        (0, "optimizer-clip-main-grad", 140, 220, -1),
        (1, "optimizer-clip-main-grad", 210, 220, -1),
    ):
        place = {"rank": stage, "stage": stage, "dp_rank": 0, "step": 0}
        times = {"start_ts": start / 1e3, "duration": (end - start) / 1e3}
        rows.append({**place, **times, "optype": name, "mb_id": microbatch})
    pq.write_table(pa.Table.from_pylist(rows), path / "job.parquet")
    return open_run(str(path / "job.parquet"), jobs=1)


def test_a_schedule_is_replayed_as_by_hand(tmp_path: Path) -> None:
    run = schedule(tmp_path)
    found = answers(run, "stage:1 operation:forward-compute x0.5", "no stragglers")
    assert found["as measured"]["step_ns"] == 220 * MS
    # The first computation ends at 95, the second transfer waits for its send at 100 and ends at
    # 110, the second computation at 145, and the norm takes 10.
    assert found["stage:1 operation:forward-compute x0.5"]["saving_ns"] == 65 * MS
    # At their mean each computation takes 60: 60, 10, 60, then the second transfer, 60 and 10.
    assert found["no stragglers"]["step_ns"] == (60 + 10 + 60 + 10 + 60 + 10) * MS
    assert found["no stragglers"]["slowdown"] == pytest.approx(220 / 210)


PUBLISHED = {
    # Mean step, S, M_W, M_S, and the saving of the last stage (ms).
    "ST": (2172.7, 1.1787021836556841, 0.0314, 1.2194, 401.7),
    "SE": (9066.6, 1.5373613711484118, 0.0251, 0.6877, 2179.4),
}
"""The results of Lin et al.'s artifact, without launch delays."""


@pytest.mark.parametrize("job", ["ST", pytest.param("SE", marks=pytest.mark.sweep)])
def test_replays_of_real_jobs_agree_with_published_ones(job: str) -> None:
    path = FOLDER / "straggler_whatif" / f"trace-{job}.parquet"
    if not path.exists():
        pytest.skip("no real data")
    run = open_run(str(path), jobs=1)
    step_ms, slowdown, by_worker, by_stage, last_ms = PUBLISHED[job]
    last = int(run.table.coordinates["pp"].max())
    found = answers(run, "no stragglers", f"stage:{last} as peers")
    assert found["no stragglers"]["slowdown"] == pytest.approx(slowdown, rel=0.01)
    saving = step_ms * (1 - 1 / slowdown)
    assert found["no stragglers"]["saving_ns"] == pytest.approx(saving * MS, rel=0.05)
    assert found[f"stage:{last} as peers"]["saving_ns"] == pytest.approx(last_ms * MS, rel=0.05)
    steady = Steady.of(run, View(run.name))
    ideal = steady.predictor.predict([change_of(steady.predictor, "no stragglers")])
    metrics = straggler_metrics(run, steady, ideal)
    assert metrics["S"] == pytest.approx(slowdown, rel=0.01)
    assert metrics["M_W"] == pytest.approx(by_worker, abs=0.02)
    assert metrics["M_S"] == pytest.approx(by_stage, abs=0.02)
    parts = answers(run, "no stragglers", by="pp")
    slowdowns = {label: each["slowdown"] or 0.0 for label, each in parts.items()}
    assert max(slowdowns, key=lambda label: slowdowns[label]) == str(last)


def test_what_a_run_doesnt_record_is_said(tmp_path: Path, wording: Wording) -> None:
    run = schedule(tmp_path)
    for question in ("clock=2100", "no contention", "no host gaps"):
        found = OpenRun(run).what_if(question)
        assert not found.labels
        wording(found.notes[0], question)


def test_contention_of_an_operation_that_is_never_alone_is_unknown(wording: Wording) -> None:
    rows = []
    for number in range(24):
        begin, is_slowed = 100_000 * number, number % 2
        step = number // 8
        rows.append(Row(begin, 11_000 if is_slowed else 10_000, iteration=step, operation="varies"))
        rows.append(Row(begin + 20_000, 12_000, iteration=step, operation="always"))
        since = begin if is_slowed else begin + 20_000
        comm = Row(since, begin + 32_000 - since, Kind.COMM, stream=1, iteration=step, kernel="all")
        rows.append(replace(comm, operation="reduce"))
    found = OpenRun(run_of(rows)).what_if("always contention as peers")
    wording(found.notes[0], "contention as peers", "communication")
    known = OpenRun(run_of(rows)).what_if("varies contention as peers")
    assert known.labels


def test_one_gpu_has_no_peers(wording: Wording) -> None:
    run = run_of([Row(start=1000 * step, duration=500, iteration=step) for step in range(3)])
    found = OpenRun(run).what_if("no stragglers")
    wording(found.notes[0], "no stragglers", "one GPU")


def test_a_predicted_run_is_a_run(tmp_path: Path, wording: Wording) -> None:
    measured = OpenRun(demo_run("fsdp2"))
    saving = answers(measured.run, "gpu:5 as peers")["gpu:5 as peers"]["saving_ns"]
    assert saving is not None
    predicted = measured.predicted("gpu:5 as peers").run
    write_store(predicted, tmp_path / "store")
    for run in (predicted, read_store(tmp_path / "store")):
        table = run.table
        assert run.marks == ("generated", "predicted")
        assert any(note.startswith("predicted times") for note in query(run, parse("R")).notes)
        times = [step_times(each, parse("R")).mean_ns for each in (measured.run, run)]
        assert times[0] - times[1] == pytest.approx(saving, rel=0.01)
        # Every nanosecond of a GPU's span is in one state, as in a measured run.
        states = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
        for gpu in range(8):
            own, spans = table.gpu == gpu, run.side(HostSteps).spans(gpu)
            begins = np.append(table.start_ns[own], spans.start_ns)
            ends = np.append((table.start_ns + table.duration_ns)[own], spans.end_ns)
            span = int(ends.max() - begins.min())
            assert sum(int(getattr(table, name)[own].sum()) for name in states) == span
    of_measured = "?predicted=gpu:5%20as%20peers&base=measured"
    for opened in (measured, OpenRun(predicted)):
        chart = opened.frame(f":gpu=0/iteration=11{of_measured}&view=timeline").charts[0]
        assert isinstance(chart, Lanes) and chart.ghosts is not None
        whole = opened.frame(f"{of_measured}&view=compare")
        wording(whole.headline[0], "739.9 ms in measured")
        assert "predicted=gpu:5%20as%20peers" in whole.address
    OpenRun(predicted).export(tmp_path / "chakra")
    # A stored one has no measured run to ask.
    with pytest.raises(UsageError, match="has predicted times: ask a run that was measured"):
        OpenRun(read_store(tmp_path / "store")).predicted("gpu:1 as peers")


def test_a_coordinate_that_no_gpu_has_is_named_next_to_other_answers(wording: Wording) -> None:
    found = OpenRun(demo_run("fsdp2")).what_if("stage=3 as peers", "layer:21 as peers")
    assert "layer:21 as peers" in found.labels
    wording.among(found.notes, "'stage=3 as peers'", "along pp", "--parallel")


@pytest.mark.parametrize(
    "name",
    [
        "small",
        *(
            pytest.param(name, marks=pytest.mark.sweep)
            for name in ("fsdp2", "v100_dlrm_8rank", "mi300x_qwen05b.json.gz")
        ),
    ],
)
def test_slower_is_never_predicted_to_be_faster(name: str) -> None:
    if name in ("fsdp2", "small"):
        run = small_run() if name == "small" else demo_run(name)
    elif (FOLDER / name).exists():
        run = open_run(str(FOLDER / name), jobs=1)
    else:
        pytest.skip("no real data")
    factors = (0.0, 0.5, 0.9, 1.0, 1.1, 1.5, 3.0)
    for what in ("compute", "gpu:0", "host", "launch"):
        asked = [f"{what} x{factor}" for factor in factors]
        found = answers(run, *asked)
        steps = [found[question]["step_ns"] for question in asked]
        assert all(one <= other for one, other in pairwise(map(float, steps))), what  # type: ignore[arg-type]
        assert steps[3] == found["as measured"]["step_ns"]


def test_the_time_that_a_call_works_after_its_wait_is_the_hosts() -> None:
    path = FOLDER / "mi300x_train_resnet18.json.gz"
    if not path.exists():
        pytest.skip("no real data")
    run = open_run(str(path), jobs=1)
    # Some hipFree and hipHostMalloc calls of some iterations take 20 to 60 ms after their wait.
    steady = Steady.of(run, View(run.name))
    assert abs(steady.error_ns) < 0.02 * steady.times.mean_ns


def test_no_step_takes_less_than_what_it_computes() -> None:
    # Steps that differ by a factor of ten, and launches that take longer than the kernel.
    rows = []
    for step in range(4):
        begin, long = 100_000 * step, 40_000 if step % 2 else 4_000
        for place in range(3):
            start = begin + place * (long + 2_000) + 5_000
            rows.append(Row(start=start, duration=300, iteration=step, launch=start - 4_500))
    run = run_of(rows)
    found = OpenRun(run).what_if("launch x0", "host x0", "compute x0", "launch x9")
    measured = found.values["step_ns"].cell(0)
    for row, label in enumerate(found.labels):
        low, step, high = (
            float(found.values[name].numbers[row])
            for name in ("step_low_ns", "step_ns", "step_high_ns")
        )
        computes = 3 * 300 if label in ("launch x0", "host x0", "launch x9") else 0
        assert computes <= low <= step <= high, label
    assert isinstance(measured, int) and found.values["saving_ns"].numbers.max() <= measured


def test_a_kernel_is_named_as_other_labels_are() -> None:
    run = demo_run("fsdp2")
    rows = np.flatnonzero(run.table.kind == Kind.COMPUTE)
    longest = int(rows[run.table.duration_ns[rows].argmax()])
    kernel = only("kernel", [run.table.names[run.table.kernel[longest]]])
    pairs = {
        f"{kernel} x0.9": f"{kernel.replace(':', '=', 1)} x0.9",
        "gpu:5 as peers": "GPU=5 as peers",
        "gpu!=5 x0.9": "gpu:0-4,6-7 x0.9",
        "!layer:21 x0.9": "layer!=21 x0.9",
    }
    found = answers(run, *pairs, *pairs.values())
    for one, other in pairs.items():
        assert found[one]["saving_ns"] == found[other]["saving_ns"] != 0, one


def test_what_no_counted_step_has_is_said(wording: Wording) -> None:
    run = replace(demo_run("fsdp2"), partial_iterations={0: frozenset([11])})
    for question in ("iteration=11 as peers", "iteration=none as peers"):
        found = OpenRun(run).what_if(question)
        wording(found.notes[0], question, "no complete step")


def test_steps_of_no_time_are_not_replayed() -> None:
    run = run_of([Row(0, 9 * gpu, gpu=gpu, iteration=7) for gpu in range(2)])
    with pytest.raises(UsageError, match="the steps take no time"):
        query(run, View("R", ("0",), name="whatif", of="gpu:0 compute x0.5"))


def test_findings_that_a_filter_hides_have_no_question() -> None:
    run = demo_run()
    view = parse("R?view=findings&filter=nothing-like-it")
    frame = query(run, view)
    assert not frame.labels
    assert question_about(view, frame, 0) == ""


def test_a_layer_as_its_peers_runs_what_they_run() -> None:
    """One layer of five has a kernel more in an operation, and an operation of its own."""
    rows = []
    now = launched = 1_000_000
    for step in range(3):
        for layer in range(5):
            kernels = [("mlp_n", "norm", 30_000), ("mlp_up", "gemm", 100_000)]
            if layer == 2:
                kernels[1:1] = [("mlp_n", "to_float", 20_000), ("check", "isfinite", 15_000)]
            for operation, kernel, ns in kernels:
                # The host launches one each 5 µs, far ahead of the GPU.
                each = Row(now, ns, layer=layer, operation=operation, kernel=kernel)
                rows.append(replace(each, iteration=step, launch=launched - 5_000))
                now, launched = now + ns, launched + 5_000
    found = answers(run_of(rows), "layer:2 as peers")["layer:2 as peers"]
    assert found["saving_ns"] == 20_000 + 15_000


def test_of_all_gpus_each_is_a_peer_whatever_operations_are_left_out() -> None:
    """In each step another GPU takes longer; a kernel without an operation isn't asked about."""
    rows = []
    for gpu in range(3):
        now = 1_000_000
        for step in range(6):
            long = 50_000 * (step % 3 == gpu)
            kernels = ("mlp_up", "gemm", 100_000 + long), ("mlp_dp", "gemm", 80_000), ("", "k", 9)
            for operation, kernel, ns in kernels:
                each = Row(now, ns, operation=operation, kernel=kernel, gpu=gpu, iteration=step)
                rows.append(replace(each, launch=now // 9))
                now += ns
    found = answers(run_of(rows), "compute as peers", "operation:mlp_up,mlp_dp compute as peers")
    whole, named, _ = (each["saving_ns"] for label, each in found.items() if "mea" not in label)
    assert whole == named == round(50_000 / 3)


def test_a_range_holds_how_much_steps_that_run_again_vary() -> None:
    """A kernel takes half as long, in steps that are alike or vary in something else."""

    def range_of(question: str, others_ns: list[int]) -> tuple[float, float]:
        rows, now = [], 1_000_000
        for step, ns in enumerate(others_ns):
            for operation, took in (("mlp_up", ns), ("mlp_dp", 100_000)):
                rows.append(Row(now, took, operation=operation, iteration=step, launch=now // 9))
                now += took
        found = OpenRun(run_of(rows)).what_if(question)
        measured = float(found.values["step_ns"].numbers[0])
        high, low = (
            measured - float(found.values[name].numbers[1])
            for name in ("step_low_ns", "step_high_ns")
        )
        return low, high

    asked = "operation:mlp_dp x0.5"
    alike, ns = [1_000_000] * 9, 50_000
    assert range_of(asked, alike) == (ns, ns)
    varied = (1_000_000 + 5_000 * np.array([3, -2, 0, 1, -3, 2, -1, -2, 2])).tolist()
    low, high = range_of(asked, varied)
    error = 2 * float(np.std(varied)) / 3
    assert ns - 3 * error < low < ns - error and ns + error < high < ns + 3 * error
    # One step in nine is a ninth of the mean, and its own time is not a mean of several.
    low, high = range_of(f"iteration:4 {asked}", varied)
    assert ns / 9 - error < low < ns / 9 - error / 3 and ns / 9 + error / 3 < high
    # What every third step has, or all from one on, is there when they run again.
    every_third = [1_000_000, 1_000_000, 1_300_000] * 3
    from_then_on = [1_000_000] * 4 + [1_300_000] * 5
    assert range_of(asked, every_third) == range_of(asked, from_then_on) == (ns, ns)


def test_no_stragglers_and_one_gpu_as_its_peers_say_how_they_differ() -> None:
    """Two savings next to each other that differ by little are of two questions."""
    frame = query(
        demo_run(), View(demo_run().name, name="whatif", of="no stragglers;gpu:5 as peers")
    )
    note = "no stragglers: each GPU as its peers; gpu:5 as peers: that one alone"
    assert note in frame.notes
    alone = query(demo_run(), View(demo_run().name, name="whatif", of="gpu:5 as peers"))
    assert not any(each.startswith("no stragglers") for each in alone.notes)
    # The same question has the same answer wherever it is asked.
    saves = query(demo_run(), View(demo_run().name, name="findings")).values["saving_ns"]
    one, other = (
        each.values["saving_ns"].at(list(each.labels).index("gpu:5 as peers"))
        for each in (frame, alone)
    )
    assert one == other and any(abs(float(one or 0) - each) < 1 for each in saves.known())
