"""Pairs that can't be compared: what refuses them, by how much they agree, and what a job sees."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.comparable import Comparability, comparability
from chopper_core.model.doubts import Doubt
from chopper_core.model.inputs import RECONSTRUCTED, Source
from chopper_core.model.run import Run
from chopper_core.model.table import Phase, Rule
from chopper_core.store.writer import write_store
from chopper_tui.cli import main
from tests.support import Row, run_of
from tests.wording import Wording

STEP = (("gemm", 40_000, Phase.FORWARD), ("mlp", 30_000, Phase.BACKWARD))


def made(gpus: int = 2, steps: int = 6, name: str = "run", **parts: tuple[int, Phase]) -> Run:
    """A run of equal steps; `parts` replace or add operations: duration and phase."""
    step = {operation: (duration, phase) for operation, duration, phase in STEP} | parts
    rows = []
    for gpu in range(gpus):
        at = 0
        for iteration in range(steps):
            for operation, (duration, phase) in step.items():
                rows.append(
                    Row(
                        at, duration, gpu=gpu, iteration=iteration, operation=operation, phase=phase
                    )
                )
                at += duration
    return run_of(rows, name=name)


def with_flops(run: Run, each: float, again: float = 0.0) -> Run:
    count = len(run.table)
    measured = {"model_flops": np.full(count, each), "recomputed_flops": np.full(count, again)}
    return replace(run, table=replace(run.table, measured={**run.table.measured, **measured}))


def with_source(run: Run, clock: str = "", *doubts: Doubt) -> Run:
    source = Source("a.json", 1, 0, "", {}, {}, {}, (), clock, {}, doubts=doubts)
    return replace(run, sources=(source,))


def kinds(pair: Comparability) -> list[str]:
    return [text.partition(":")[0] for text in pair.refusals]


def test_equal_runs_differ_in_nothing() -> None:
    pair = comparability(made(), [made(), made(steps=9)], ["elapsed_ns"])
    assert pair.reasons == () and pair.score_pct == 100


def test_each_difference_refuses_a_pair() -> None:
    base = made()
    assert kinds(comparability(made(gpus=4), [base])) == ["layout"]
    other = tuple(replace(gpu, hardware="MI300X") for gpu in base.gpus)
    named = replace(base, gpus=other)
    older = replace(base, gpus=tuple(replace(gpu, hardware="MI250X") for gpu in other))
    assert kinds(comparability(named, [older])) == ["GPUs"]
    assert comparability(named, [base]).refusals == ()  # an unknown product is no other one
    inference = made(gemm=(40_000, Phase.PREFILL), mlp=(30_000, Phase.DECODE))
    assert "steps" in kinds(comparability(inference, [base]))
    found = replace(base.table, iteration_rule=np.full(len(base.table), Rule.NONE, np.int8))
    assert kinds(comparability(replace(base, table=found), [base])) == ["steps"]
    simulated = with_source(base, f"{RECONSTRUCTED} from a graph")
    assert kinds(comparability(simulated, [base])) == ["data"]
    assert comparability(simulated, [simulated]).refusals == ()
    # One of several baselines is enough.
    assert kinds(comparability(base, [base, made(gpus=1)])) == ["layout"]


@pytest.mark.parametrize(("ratio", "is_refused"), [(1.0, False), (0.99, False), (0.95, True)])
def test_other_work_is_other_flops_without_recomputation(ratio: float, is_refused: bool) -> None:
    base = with_flops(made(), 1e9)
    pair = comparability(with_flops(made(), 1e9 * ratio), [base])
    assert bool(pair.refusals) == is_refused
    assert pair.score_pct == pytest.approx(100 * ratio)
    # Recomputing the forward pass is a change to measure, not other work; nor are more steps.
    again = comparability(with_flops(made(steps=9), 1.5e9, again=0.5e9), [base])
    assert again.reasons == ()


def test_without_shapes_work_is_what_operations_share() -> None:
    base = made()
    # 70 of 2 x 70 + 10 µs are of the same names on either side: (70 + 70) / 150.
    pair = comparability(made(extra=(10_000, Phase.FORWARD)), [base])
    assert pair.score_pct == pytest.approx(100 * 140 / 150) and not pair.refusals
    other = run_of([Row(0, 10, operation="conv", iteration=1)])
    assert "work" in kinds(comparability(other, [run_of([Row(0, 10, iteration=1)])]))


def test_doubts_count_for_the_figures_that_they_touch() -> None:
    lost = with_source(made(), "", Doubt("launches", 5, 100))
    pair = comparability(lost, [made()], ["idle_ns"])
    assert kinds(pair) == ["data"] and pair.score_pct == pytest.approx(95)
    assert comparability(lost, [made()], ["compute_ns"]).reasons == ()
    few = with_source(made(), "", Doubt("launches", 5, 1000))
    assert comparability(few, [made()], ["idle_ns"]).refusals == ()


def test_a_job_sees_a_refusal_as_an_error_and_goes_on_at_will(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    runs = {"a": made(name="a"), "b": made(name="b", mlp=(36_000, Phase.BACKWARD)), "c": made(1)}
    a, b, c = (str(tmp_path / name) for name in runs)
    for name, run in runs.items():
        write_store(run, tmp_path / name)
    limits = ["--fail-if", "step_time>+2%", "--fail-if", "operation=gemm/elapsed_ns>+5%"]
    file = tmp_path / "results <1>.xml"
    assert main(["diff", a, b, *limits, "--junit", str(file)]) == 4
    suite = fromstring(file.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    first, second = suite
    assert first.get("name") == "step_time>+2%" and first[0].tag == "failure"
    assert "beyond the noise" in str(first[0].get("message")) and second[0].tag == "system-out"
    capsys.readouterr()
    assert main(["diff", a, c, *limits, "--junit", str(file)]) == 1
    wording.among(capsys.readouterr().err, "0 %", "1 GPU", "baseline 2", "--anyway")
    suite = fromstring(file.read_text())
    assert suite.get("errors") == "2" and suite[0][0].tag == "error"
    assert main(["diff", a, c, *limits, "--anyway", "--format", "json"]) == 0
    pair = json.loads(capsys.readouterr().out)["comparability"]
    assert pair["score_pct"] == 0 and pair["reasons"][0]["kind"] == "layout"
