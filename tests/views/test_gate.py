"""Limits on what may change: alarms on equal runs, changes that are found, and their sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chopper_core.analyses.gate import (
    FAIL,
    INCONCLUSIVE,
    MIN_ITERATIONS,
    PASS,
    UNCHECKED,
    Judged,
    judge,
    limits_table,
    parse_limit,
    samples_of_limit,
)
from chopper_core.analyses.significance import one_more
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.store.format import set_baseline
from chopper_core.util.errors import NoSuchNode, UsageError
from chopper_core.views.query import query
from tests.support import Row, rows_of, run_of
from tests.wording import Wording

OPERATIONS = {"gemm": 40_000, "norm": 8_000, "mlp_dp": 30_000}


def run_with(
    seed: int, iterations: int = 12, noise: float = 0.01, name: str = "run", **slower: float
) -> Run:
    """Two GPUs whose operations vary by a normal noise; `slower` are factors of operations."""
    random = np.random.default_rng(seed)
    rows = []
    for gpu in range(2):
        at = 0
        for iteration in range(iterations):
            for operation, mean in OPERATIONS.items():
                factor = slower.get(operation, 1.0) * (1.0 + noise * random.standard_normal())
                duration = round(mean * factor)
                rows.append(Row(at, duration, gpu=gpu, iteration=iteration, operation=operation))
                at += duration
    return run_of(rows, name=name)


def verdict(run: Run, base: Run, text: str) -> Judged:
    return judge(run, base, [parse_limit(text)])[0]


def count_of_fails(pairs: int, text: str, **slower: float) -> int:
    found = 0
    for seed in range(pairs):
        base, run = run_with(2 * seed), run_with(2 * seed + 1, **slower)
        found += verdict(run, base, text).verdict == FAIL
    return found


def check_rates(pairs: int) -> None:
    # Of equal runs, even with no room in the limit: not more alarms than the test's level.
    assert count_of_fails(pairs, "operation=mlp_dp/elapsed_ns>+0%") <= pairs * 5 // 100
    assert count_of_fails(pairs, "step_time>+0%") <= pairs * 5 // 100
    # 3 % more on one operation, with a limit of 1 %.
    found = count_of_fails(pairs, "operation=mlp_dp/elapsed_ns>+1%", mlp_dp=1.03)
    assert found >= pairs * 95 // 100
    assert count_of_fails(pairs, "operation=gemm/elapsed_ns>+1%", mlp_dp=1.03) == 0


def test_alarms_and_finds_of_some_pairs() -> None:
    check_rates(20)


@pytest.mark.sweep
def test_alarms_and_finds_of_100_pairs() -> None:
    check_rates(100)


def test_the_three_results(wording: Wording) -> None:
    base = run_with(1)
    assert verdict(run_with(2, mlp_dp=1.1), base, "operation=mlp_dp/elapsed_ns>+5%").verdict == FAIL
    assert verdict(run_with(2), base, "operation=mlp_dp/elapsed_ns>+5%").verdict == PASS
    near = verdict(run_with(2, mlp_dp=1.05), base, "operation=mlp_dp/elapsed_ns>+5%")
    assert near.verdict == INCONCLUSIVE
    wording(near.sentence, "noise", "12 and 12")
    few = verdict(run_with(2, 3, mlp_dp=2.0), base, "step_time>+5%")
    assert few.verdict == UNCHECKED and np.isnan(few.q)
    wording(few.sentence, "3 and 12 steps", f"{MIN_ITERATIONS} of each")


def test_the_figures_are_those_of_the_iterations() -> None:
    run, base = run_with(3, mlp_dp=1.1), run_with(4)
    found = verdict(run, base, "gpu=1/operation=mlp_dp/elapsed_ns>+20%")
    rows = [run.table.duration_ns[at] for at in range(len(run.table))
            if run.table.gpu[at] == 1 and run.table.text_of("operation", int(run.table.operation[at])) == "mlp_dp"]  # noqa: E501  # fmt: skip
    assert found.ours == np.median(rows) and found.verdict == PASS
    # Sums of both GPUs are per GPU.
    _, both = samples_of_limit(run, parse_limit("operation=gemm/kernel_ns>+1%"))
    assert len(both) == 12 and abs(np.median(both) / OPERATIONS["gemm"] - 1) < 0.02
    _, counts = samples_of_limit(run, parse_limit("kernels>+1"))
    assert counts.tolist() == [3.0] * 12
    assert verdict(run, base, "kernels>+1").verdict == PASS


def test_sums_are_those_of_every_view() -> None:
    """A part that runs on one of two GPUs, and in some steps only, is per GPU and step."""

    def run_of_part(duration: int, every: int) -> Run:
        rows = []
        for gpu in range(2):
            for step in range(12):
                at = step * 1_000_000
                rows.append(Row(at, 400_000, gpu=gpu, iteration=step, operation="gemm"))
                if gpu == 0 and step % every == 0:
                    at += 400_000
                    rows.append(Row(at, duration, gpu=gpu, iteration=step, operation="item"))
        return run_of(rows)

    run, base = run_of_part(110_000, 1), run_of_part(100_000, 1)
    for each, expected in ((run, 55_000), (base, 50_000)):
        shown = query(each, parse("R?order=operation&columns=kernel_ns"))
        assert rows_of(shown)["item"]["kernel_ns"] == expected
        limit = parse_limit("operation=item/kernel_ns>+5%")
        assert samples_of_limit(each, limit)[1].tolist() == [expected] * 12
    assert verdict(run, base, "operation=item/kernel_ns>+7us").verdict == PASS
    assert verdict(run, base, "operation=item/kernel_ns>+3us").verdict == FAIL
    # Of one GPU it is that of the GPU.
    assert verdict(run, base, "gpu=0/operation=item/kernel_ns>+7us").verdict == FAIL
    # Half of the steps with twice as much of it have as much of it.
    seldom = verdict(run_of_part(200_000, 2), base, "operation=item/kernel_ns>+5%")
    assert seldom.counts == (12, 12) and seldom.ours == seldom.base
    assert seldom.verdict != FAIL


def test_limits_below_and_in_units() -> None:
    base, slow = run_with(5), run_with(6, gemm=1.2)
    assert verdict(slow, base, "operation=gemm/elapsed_ns>+4us").verdict == FAIL
    assert verdict(slow, base, "operation=gemm/elapsed_ns>+20us").verdict == PASS
    assert verdict(run_with(6, gemm=0.8), base, "operation=gemm/elapsed_ns<-10%").verdict == FAIL
    assert verdict(slow, base, "operation=gemm/elapsed_ns<-10%").verdict == PASS


def test_several_limits_are_adjusted_together() -> None:
    base, run = run_with(7), run_with(8, mlp_dp=1.03)
    texts = [f"operation={name}/elapsed_ns>+1%" for name in OPERATIONS]
    alone = verdict(run, base, texts[2])
    together = judge(run, base, [parse_limit(text) for text in texts])
    assert [each.verdict for each in together][2] == FAIL
    assert together[2].q >= alone.q
    table = limits_table(together)
    assert table.count("\n") == 5 and "❌ fail" in table and "`operation=mlp_dp" in table


def test_parts_that_are_missing(wording: Wording) -> None:
    base, run = run_with(9), run_with(10)
    with pytest.raises(NoSuchNode, match="no operation mlp_dq"):
        verdict(run, base, "operation=mlp_dq/elapsed_ns>+1%")
    rows = [Row(at * 10_000, 5_000, iteration=at, operation="gemm") for at in range(12)]
    only = verdict(run, run_of(rows), "operation=norm/elapsed_ns>+1%")
    assert only.verdict == UNCHECKED
    wording(only.sentence, "the baseline")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("step_time", "is not a limit such as"),
        ("step_time>2x", "unknown unit 'x'"),
        ("step_time>2", "needs a unit, such as step_time>2ms or step_time>2%"),
        ("steptime>+2%", "unknown column 'steptime'"),
        ("node=1/elapsed_ns>+2%", "is not LEVEL=LABEL"),
        ("gpu=1/step_time>+2%", "covers whole steps"),
        ("power_w>+1ms", "power_w is in W, not in ms"),
        ("step_time>+1GB", "iteration_ns is in ns, not in GB"),
        ("kernels>+1W", "kernels is in no unit, not in W"),
        ("step_time>+2%%", "is not a limit such as"),
        ("step_time>nan%", "is not a limit such as"),
    ],
)
def test_invalid_limits(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_limit(text)


def test_an_iteration_has_no_noise() -> None:
    with pytest.raises(UsageError, match="whose noise can't be known"):
        verdict(run_with(1), run_with(2), "iteration=3/elapsed_ns>+1%")


def test_the_command_fails_where_a_limit_is_exceeded(
    tmp_path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:  # type: ignore[no-untyped-def]
    from chopper_core.store.writer import write_store
    from chopper_tui.cli import main

    write_store(run_with(1), tmp_path / "a")
    write_store(run_with(2, mlp_dp=1.1), tmp_path / "b")
    set_baseline("main", str(tmp_path / "a"))
    limits = ["--fail-if", "operation=mlp_dp/elapsed_ns>+5%", "--fail-if", "step_time>+50%"]
    assert main(["diff", "@main", str(tmp_path / "b"), *limits]) == 4
    lines = capsys.readouterr().out.splitlines()
    wording(lines[0], "fail: ", "operation=mlp_dp/elapsed_ns>+5%", ": +")
    assert lines[1].startswith("pass: step_time>+50%")
    assert main(["diff", str(tmp_path / "b"), "@main", *limits, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["verdict"] for each in document["limits"]] == [PASS, PASS]
    assert document["limits"][0]["change_pct"] < -5 and document["rows"]
    assert main(["diff", "@main", str(tmp_path / "b"), *limits, "--format", "markdown"]) == 4
    assert capsys.readouterr().out.startswith("| limit | baseline | run |")
    assert main(["diff", "@main", str(tmp_path / "b"), "--fail-if", "gpu=9/idle_ns>+1%"]) == 3
    assert main(["diff", "@other", str(tmp_path / "b"), *limits]) == 2
    # A run is no slower than itself.
    own = str(tmp_path / "b")
    assert main(["diff", own, own, "--fail-if", "step_time>+50%"]) == 0
    capsys.readouterr()
    assert main(["baseline"]) == 0
    assert capsys.readouterr().out == f"@main\t{tmp_path / 'a'}\n"
    assert main(["baseline", "remove", "main"]) == 0
    assert main(["baseline", "remove", "main"]) == 2


def test_what_noise_hides_passes_unless_the_gate_is_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from chopper_core.store.writer import write_store
    from chopper_tui.cli import main

    write_store(run_with(1), tmp_path / "a")
    file = tmp_path / "results.xml"
    pair = ["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--junit", str(file)]
    asked = [*pair, "--fail-if", "step_time>+0%"]
    for options, code, failures, skipped in (
        ([], 0, 0, 1),
        (["--allow-unchecked"], 0, 0, 1),
        (["--strict"], 4, 1, 0),
    ):
        assert main([*asked, *options]) == code
        captured = capsys.readouterr()
        assert captured.out.startswith("inconclusive: ")
        assert not captured.err.replace(f"{file}\n", "")
        assert f'failures="{failures}" errors="0" skipped="{skipped}"' in file.read_text()
    assert main([*pair, "--fail-if", "step_time>+50%", "--strict"]) == 0


def test_a_limit_that_cannot_be_checked_passes_only_if_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """A figure or a part that a run lacks, or too few steps, else stays green forever."""
    from chopper_core.store.writer import write_store
    from chopper_tui.cli import main

    write_store(run_with(1), tmp_path / "a")
    write_store(run_with(2, 3), tmp_path / "short")
    renamed = [Row(at * 10_000, 5_000, iteration=at, operation="norm") for at in range(12)]
    write_store(run_of(renamed), tmp_path / "renamed")
    file = tmp_path / "results.xml"
    for other, limit in (
        ("a", "energy_j>+5%"),
        ("a", "operation=norm/power_w>+5W"),
        ("short", "step_time>+500%"),
        ("renamed", "operation=gemm/elapsed_ns>+5%"),
    ):
        pair = ["diff", str(tmp_path / "a"), str(tmp_path / other), "--anyway"]
        pair += ["--junit", str(file)]
        asked = [*pair, "--fail-if", limit]
        for options, code, counts in (
            ([], 5, 'failures="0" errors="1" skipped="0"'),
            (["--allow-unchecked"], 0, 'failures="0" errors="0" skipped="1"'),
            (["--strict"], 4, 'failures="1" errors="0" skipped="0"'),
        ):
            assert main([*asked, *options]) == code
            captured = capsys.readouterr()
            assert captured.out.startswith(f"unchecked: {limit}: ")
            assert counts in file.read_text()
            said = captured.err.replace(f"{file}\n", "")
            if options:
                assert not said
            else:
                wording(said, "1 of 1 limit", "--allow-unchecked")
        # What fails is more than what wasn't checked.
        assert main([*asked, "--fail-if", "kernels<+1"]) == (5 if other == "short" else 4)
        capsys.readouterr()
        assert main([*asked, "--format", "json"]) == 5
        assert json.loads(capsys.readouterr().out)["limits"][0]["verdict"] == UNCHECKED
    assert main([*asked, "--strict", "--allow-unchecked"]) == 2
    said = "--strict fails what --allow-unchecked lets pass; give one of them"
    assert capsys.readouterr().err == f"chopper: {said}\n"


@pytest.mark.parametrize("figure", ["idle_ns", "exposed_copy_ns", "exposed_comm_ns"])
def test_a_baseline_of_0_has_no_change_in_per_cent(
    figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from chopper_core.store.writer import write_store
    from chopper_tui.cli import main

    write_store(run_with(1), tmp_path / "a")
    asked = ["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--fail-if", f"{figure}>+1ms"]
    assert main(asked) == 0
    assert capsys.readouterr().out.startswith(f"pass: {figure}>+1ms: 0 ms → 0 ms, beyond the noise")
    assert main([*asked, "--format", "markdown"]) == 0
    assert f"| `{figure}>+1ms` | 0 ms | 0 ms | – | ✅ pass |" in capsys.readouterr().out
    assert main([*asked, "--format", "json"]) == 0
    limit = json.loads(capsys.readouterr().out)["limits"][0]
    assert (limit["run"], limit["base"], limit["change_pct"]) == (0.0, 0.0, None)


def run_between(seed: int, noise: float = 0.03, factor: float = 1.0) -> Run:
    """A run whose steps vary by 0.3 %, and which differs from the next one by more."""
    whole = factor * (1.0 + noise * float(np.random.default_rng(9000 + seed).standard_normal()))
    return run_with(seed, 8, 0.003, **dict.fromkeys(OPERATIONS, whole))


def check_between(pairs: int) -> None:
    alarms = found = alone = 0
    limit = [parse_limit("step_time>+0%")]
    for seed in range(pairs):
        base, *others = (run_between(7 * seed + at) for at in range(5))
        same, slow = run_between(7 * seed + 5), run_between(7 * seed + 6, factor=1.25)
        alarms += judge(same, base, limit, others)[0].verdict == FAIL
        alone += judge(same, base, limit)[0].verdict == FAIL
        found += judge(slow, base, limit, others)[0].verdict == FAIL
    assert alarms <= pairs * 5 // 100 and found >= pairs * 95 // 100
    # Without them half of the runs are slower than chance in their iterations allows.
    assert alone >= pairs * 30 // 100


@pytest.mark.sweep
def test_several_baselines_show_the_noise_between_runs() -> None:
    check_between(20)


@pytest.mark.sweep
def test_several_baselines_of_100_runs() -> None:
    check_between(100)


def test_the_sentence_says_which_noise_is_known(wording: Wording) -> None:
    base, other, run = run_with(1), run_with(2, gemm=1.02), run_with(3, gemm=1.3)
    limit = [parse_limit("operation=gemm/elapsed_ns>+5%")]
    (one,) = judge(run, base, limit)
    assert one.verdict == FAIL
    wording(one.sentence, "noise between runs")
    (two,) = judge(run, base, limit, [other])
    assert (two.runs, two.counts, one.counts) == (2, (12, 24), (12, 12))
    wording(two.sentence, "12 and 24 steps", "2 baselines", "±1.3 %")
    # Two baselines tell little of their spread: q is Student's, with one degree of freedom.
    assert two.q > 100 * one.q
    lacking = run_of([Row(at * 10_000, 5_000, iteration=at, operation="norm") for at in range(12)])
    (kept,) = judge(run, base, limit, [lacking])
    assert (kept.runs, kept.verdict) == (1, FAIL)


@pytest.mark.parametrize(
    ("t", "freedom"), [(12.706, 1), (4.303, 2), (3.182, 3), (2.776, 4), (2.571, 5), (2.042, 30)]
)
def test_students_test_has_the_table_s_values(t: float, freedom: int) -> None:
    others = np.zeros(freedom + 1)
    others[0] = 1.0
    spread = others.std(ddof=1) * np.sqrt(1 + 1 / len(others))
    assert one_more(others.mean() + t * spread, others) == pytest.approx(0.05, abs=2e-4)
    assert np.isnan(one_more(1.0, others[:1])) and one_more(2.0, np.ones(4)) == 0.0


def test_the_command_takes_several_baselines(
    tmp_path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:  # type: ignore[no-untyped-def]
    from chopper_core.store.writer import write_store
    from chopper_tui.cli import main

    for number in range(4):
        write_store(run_between(number, 0.01), tmp_path / "main" / f"m{number}")
    write_store(run_between(7, factor=1.3), tmp_path / "slow")
    limit = ["--fail-if", "step_time>+5%", "--format", "json"]
    slow, first = str(tmp_path / "slow"), str(tmp_path / "main" / "m0")
    for given in (
        ["diff", str(tmp_path / "main"), slow],
        ["diff", str(tmp_path / "main" / "m*"), slow],
        ["diff", first, slow, "--base", str(tmp_path / "main" / "m[123]")],
    ):
        assert main([*given, *limit]) == 4
        captured = capsys.readouterr()
        assert json.loads(captured.out)["limits"][0]["baselines"] == 4
        wording(captured.err, "4 baselines")
    # A pattern that matches the run itself doesn't compare it with itself.
    assert main(["diff", str(tmp_path / "main" / "m*"), first, *limit]) == 0
    assert json.loads(capsys.readouterr().out)["limits"][0]["baselines"] == 3
    assert main(["baseline", "set", "main", *map(str, sorted((tmp_path / "main").iterdir()))]) == 0
    assert main(["diff", "@main", slow, *limit]) == 4
    assert json.loads(capsys.readouterr().out)["limits"][0]["baselines"] == 4
    assert main(["diff", "@main", slow]) == 0
    assert main(["diff", str(tmp_path / "main"), slow]) == 2
    wording(capsys.readouterr().err, "4 baselines")
    assert main(["diff", str(tmp_path / "no*"), slow, *limit]) == 1
