"""Throughput: steps against a plain count, parts that add up, tokens known or given."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from msgspec.structs import replace
from support import Row, rows_of, run_of, sample_run

from chopper_core.analyses.step_parts import COMPUTE_PARTS, PARTS, operation_class, step_parts_of
from chopper_core.model import groups
from chopper_core.model.address import parse, render
from chopper_core.model.charts import BarChart
from chopper_core.model.run import Run
from chopper_core.model.table import STATES, Kind, Phase
from chopper_core.model.view import View
from chopper_core.render.cells import column_texts
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from tests.wording import Wording

CLASSES = {
    "GEMM": ("q_ip", "k_ip", "v_ip", "attn_op", "mlp_gp", "mlp_up", "mlp_dp", "lp"),
    "attention": ("attn_fa",),
    "vector": ("ie", "ln", "cel", "attn_n", "qkv_re", "attn_ra", "mlp_n", "mlp_gs", "mlp_gu"),
}


def elapsed(run: Run, gpu: int, iteration: int) -> int:
    table = run.table
    own = np.flatnonzero((table.gpu == gpu) & (table.iteration == iteration))
    return sum(int(table.column(state)[row]) for row in own.tolist() for state in STATES)


def test_what_is_remembered_of_steps_is_as_many_values_for_any_number_of_gpus() -> None:
    """A value for each of 10,000 would push out all that was worked out before."""
    remembered = []
    for gpus in (2, 8):
        run = sample_run(gpus=gpus)
        step_parts_of(run, View(run.name))
        remembered.append((len(run.memo), len(run.tree()._memo)))
    assert remembered[0] == remembered[1]


@pytest.mark.parametrize("scope", ["", ":iteration=11?order=iteration", ":gpu=3"])
def test_parts_are_the_same_whatever_is_added_up_at_a_time(
    scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sample_run()
    expected = step_parts_of(run, parse(f"R{scope}"))
    compute_ns = sum(
        int(run.table.compute_ns[own].sum() + run.table.overlap_ns[own].sum())
        for gpu in expected.gpus
        for step in expected.iterations
        for own in [(run.table.gpu == gpu) & (run.table.iteration == step)]
    )
    assert expected.parts_ns[..., : len(COMPUTE_PARTS)].sum() == compute_ns > 0
    monkeypatch.setattr(groups, "_PIECE", 7)
    found = step_parts_of(sample_run(), parse(f"R{scope}"))
    assert found.parts_ns.tolist() == expected.parts_ns.tolist()


@pytest.mark.parametrize("scope", ["", ":gpu=3"])
def test_iterations_are_those_of_a_plain_count(run: Run, scope: str) -> None:
    """Of a run whose last step is truncated on one GPU."""
    run = replace(run, partial_iterations={**run.partial_iterations, 3: frozenset([12])})
    found = query(run, parse(f"R{scope}?view=throughput"))
    gpus = [gpu.index for gpu in run.gpus] if not scope else [3]
    steady = []
    for number, label in enumerate(found.labels):
        times = {gpu: elapsed(run, gpu, int(label)) for gpu in gpus}
        row = found.row(number)
        assert row["iteration_ns"] == pytest.approx(statistics.fmean(times.values()))
        assert row["slowest"] == f"GPU {max(times, key=lambda gpu: times[gpu])}"
        cut = any(int(label) in run.partial_iterations[gpu] for gpu in gpus)
        assert row["state"] == ("cut" if cut else "steady")
        if cut:
            assert row["tokens_per_s"] is None
        else:
            steady += times.values()
            assert row["step_tokens"] == 2 * 4096
            assert row["tokens_per_s"] == pytest.approx(2 * 4096 / (row["iteration_ns"] / 1e9))
    assert steady and len(steady) < len(found) * len(gpus)
    assert found.total["iteration_ns"] == pytest.approx(statistics.fmean(steady))
    assert any("step 12" in note for note in found.notes)
    rate = 2 * 4096 / (statistics.fmean(steady) / 1e9)
    assert found.headline[0].startswith(f"{rate:,.0f} tok/s per GPU")


def test_parts_add_up_to_the_iteration_and_are_those_of_their_operations(run: Run) -> None:
    found = query(run, parse("R:gpu=1/iteration=11?view=throughput&by=part"))
    parts = rows_of(found)
    whole = elapsed(run, 1, 11)
    assert sum(row["part_ns"] for row in parts.values()) == pytest.approx(whole)
    assert found.total["part_ns"] == pytest.approx(whole)
    assert sum(row["part_pct"] for row in parts.values()) == pytest.approx(100)
    table = run.table
    expected: dict[str, int] = {}
    for row in run.tree().node(("1", "11")).rows.tolist():
        operation = table.text_of("operation", int(table.operation[row]))
        compute = int(table.compute_ns[row] + table.overlap_ns[row])
        for word, operations in CLASSES.items():
            phase = {0: "forward", 1: "backward"}.get(int(table.phase[row]))
            if operation in operations and phase:
                label = f"{phase} {word}"
                expected[label] = expected.get(label, 0) + compute
        for label, name in (("communication", "exposed_comm_ns"), ("launch", "idle_ns")):
            expected[label] = expected.get(label, 0) + int(table.column(name)[row])
    for label in ("forward GEMM", "backward GEMM", "forward attention", "communication", "launch"):
        assert parts[label]["part_ns"] == pytest.approx(expected[label]), label
        assert parts[label]["per_token_ns"] == pytest.approx(expected[label] / 8192)
    for label in ("forward vector", "backward vector"):
        # Operations without a name of the vocabulary are vector work by their kernels.
        assert parts[label]["part_ns"] >= expected[label]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("qkv_ip", "GEMM"),
        ("attn_op", "GEMM"),
        ("mlp_gp (recompute)", "GEMM"),
        ("ffn_dp", "GEMM"),
        ("lp", "GEMM"),
        ("attn_fa", "attention"),
        ("attn_op_bias", ""),
        ("opt_step", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("FSDP::all_gather_copy_out", "sharding copies"),
        ("mlp_gs", "vector"),
        ("conv2d", ""),
        ("clip", ""),
    ],
)
def test_only_products_are_products(name: str, word: str) -> None:
    assert operation_class(name) == word


def test_of_gpus(run: Run) -> None:
    found = query(run, parse("R?view=throughput&by=gpu"))
    for number, label in enumerate(found.labels):
        times = [elapsed(run, int(label), iteration) for iteration in (11, 12)]
        row = found.row(number)
        assert row["iteration_ns"] == pytest.approx(statistics.fmean(times))
        assert row["spread_pct"] == pytest.approx(100 * (max(times) - min(times)) / min(times))
    chart = found.charts[0]
    assert isinstance(chart, BarChart) and chart.unit == "µs"
    for place in range(len(chart.labels)):
        mean = statistics.fmean(elapsed(run, place, iteration) for iteration in (11, 12))
        assert sum(series.numbers[place] for series in chart.series) == pytest.approx(
            mean / 8192 / 1e3
        )


def test_tokens_may_be_given() -> None:
    run = sample_run()
    unknown = query(run, parse("R?view=throughput"))
    assert "tokens_per_s" not in [text.metric.name for text in column_texts(unknown)]
    assert "tokens unknown" in unknown.headline[0]
    assert any("of=tokens:8192" in note for note in unknown.notes)
    view = parse("R?view=throughput&of=tokens:1000")
    assert parse(render(view)) == view
    given = query(run, view)
    row = given.row(0)
    assert row["tokens_per_s"] == pytest.approx(1000 / (row["iteration_ns"] / 1e9))
    for text in ("tokens:", "tokens:0", "8192", "tokens:-4", "batch:2"):
        with pytest.raises(UsageError, match="of=tokens:N"):
            query(run, parse(f"R?view=throughput&of={text}"))


def test_a_gpu_that_lacks_an_iteration_makes_it_no_steady_one(wording: Wording) -> None:
    rows = [
        Row(1_000 * step, 500, gpu=gpu, iteration=step, phase=Phase.FORWARD, operation="lp")
        for gpu in range(2)
        for step in range(3 - gpu)
    ]
    found = query(run_of(rows), parse("R?view=throughput&of=tokens:10"))
    states = [found.row(number)["state"] for number in range(len(found))]
    assert states == ["steady", "steady", "cut"]
    cut = replace(run_of(rows), partial_iterations={0: frozenset({0, 1, 2})})
    nothing = query(cut, parse("R?view=throughput&of=tokens:10"))
    (note,) = nothing.headline
    wording(note, "no complete step")
    for by in ("gpu", "part"):
        frame = query(cut, parse(f"R?view=throughput&by={by}"))
        assert all(value is None for value in frame.total.values())


def test_inference_is_divided_by_its_own_phases() -> None:
    rows = [
        Row(0, 300, iteration=0, phase=Phase.PREFILL, operation="q_ip"),
        Row(300, 200, iteration=0, phase=Phase.PREFILL, operation="attn_fa"),
        Row(500, 40, iteration=0, phase=Phase.DECODE, operation="q_ip"),
        Row(540, 10, iteration=0, phase=Phase.DECODE, operation="ln"),
    ]
    found = query(run_of(rows), parse("R?view=throughput&by=part"))
    parts = {label: found.row(number)["part_ns"] for number, label in enumerate(found.labels)}
    assert parts == {
        "prefill GEMM": 300,
        "prefill attention": 200,
        "decode GEMM": 40,
        "decode vector": 10,
    }


def test_without_iterations_it_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match="no steps"):
        query(run_of([Row(0, 10), Row(20, 5, Kind.COMM, 3)]), parse("R?view=throughput"))


@pytest.mark.parametrize("by", ["iteration", "gpu", "part"])
def test_rows_lead_to_what_they_are_of(run: Run, by: str) -> None:
    found = query(run, parse(f"R?view=throughput&by={by}"))
    for number in range(len(found)):
        there = query(run, parse(found.addresses(number)))
        assert len(there)
    assert set(PARTS) >= set(query(run, parse("R?view=throughput&by=part")).labels)


def test_a_statistic_goes_over_the_gpus_of_an_iteration_and_the_iterations_of_a_gpu(
    run: Run,
) -> None:
    gpus, steady = [gpu.index for gpu in run.gpus], (11, 12)
    found = query(run, parse("R?view=throughput&stat=median"))
    assert found.over == ("gpu",) and found.columns[0].title == "median step"
    for number, label in enumerate(found.labels):
        times = [elapsed(run, gpu, int(label)) for gpu in gpus]
        assert found.row(number)["iteration_ns"] == pytest.approx(statistics.median(times))
    found = query(run, parse("R?view=throughput&by=gpu&stat=spread"))
    assert found.over == ("iteration",)
    for number, label in enumerate(found.labels):
        times = [elapsed(run, int(label), iteration) for iteration in steady]
        assert found.row(number)["iteration_ns"] == max(times) - min(times)


def test_a_statistic_of_parts_goes_over_gpus_and_iterations(run: Run) -> None:
    found = query(run, parse("R?view=throughput&by=part&stat=max"))
    assert found.over == ("gpu", "iteration") and found.total["part_ns"] is None
    each = [
        query(run, parse(f"R:gpu={gpu.index}/iteration={number}?view=throughput&by=part"))
        for gpu in run.gpus
        for number in (11, 12)
    ]
    for number, label in enumerate(found.labels):
        parts = [one.row(one.labels.index(label))["part_ns"] for one in each if label in one.labels]
        assert found.row(number)["part_ns"] == max(parts)
    with pytest.raises(UsageError, match="no other over="):
        query(run, parse("R?view=throughput&stat=max&over=layer"))
