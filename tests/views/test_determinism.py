"""Determinism: tests against all arrangements, kernels against a plain count, the demo's truth."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support import Row, rows_of, run_of, sample_run

from chopper_core.analyses.matched_kernels import same_kernels
from chopper_core.analyses.significance import LEVEL, adjusted, can_differ, paired, ranks, unpaired
from chopper_core.analyses.steadiness import steadiness
from chopper_core.model.address import parse, render
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, STATES, Kind
from chopper_core.views.determinism import TOO_FEW, WITHIN_NOISE
from chopper_core.views.query import query
from tests.demo import demo_run, generated_run
from tests.wording import Wording

DEMO = Path(__file__).resolve().parents[2] / "demo_data"


@pytest.fixture(scope="module")
def flat() -> Run:
    """The run without determinism of memory."""
    return demo_run("fsdp1", named=str(DEMO / "fsdp1"))


@pytest.fixture(scope="module")
def both(run: Run, flat: Run) -> Run:
    """The demo run, with the other one to compare with."""
    return replace(run, others={"flat": flat})


def truth(name: str) -> Any:
    return json.loads((DEMO / name / "truth.json").read_text())["stability"]["per_gpu"]


@pytest.mark.parametrize("seed", range(12))
def test_the_paired_test_is_that_of_all_signs(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(6, 11))
    # Small whole numbers, so that there are ties and pairs without a difference.
    ours, base = random.integers(0, 6, (2, count)).astype(np.float64)
    ours += random.integers(0, 4)
    apart = (ours - base)[ours != base]
    if len(apart) < 6:
        assert np.isnan(paired(ours, base))
        return
    sizes = ranks(np.abs(apart))
    low = min(sizes[apart > 0].sum(), sizes[apart < 0].sum())
    signs = list(product((False, True), repeat=len(apart)))
    as_low = sum(sizes[np.array(each)].sum() <= low + 1e-9 for each in signs)
    assert paired(ours, base) == pytest.approx(min(1.0, 2 * as_low / len(signs)))


@pytest.mark.parametrize("seed", range(12))
def test_the_unpaired_test_is_that_of_all_choices(seed: int) -> None:
    random = np.random.default_rng(seed)
    ours = random.integers(0, 7, int(random.integers(4, 7))).astype(np.float64)
    base = random.integers(2, 9, int(random.integers(4, 6))).astype(np.float64)
    rank = ranks(np.concatenate([ours, base]))
    middle = len(ours) * (len(rank) + 1) / 2
    sums = [sum(rank[list(each)]) for each in combinations(range(len(rank)), len(ours))]
    far = abs(rank[: len(ours)].sum() - middle)
    expected = sum(abs(each - middle) >= far - 1e-9 for each in sums) / len(sums)
    assert unpaired(ours, base) == pytest.approx(expected)


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("other", range(6))
def test_so_many_figures_can_differ_where_the_clearest_result_does(count: int, other: int) -> None:
    p = unpaired(np.arange(count) + 100.0, np.arange(other) + 0.0)
    assert can_differ(count, other) == (p < LEVEL)


def test_too_few_figures_tell_nothing_and_many_go_by_the_normal_distribution() -> None:
    few = np.arange(5.0)
    assert np.isnan(paired(few + 9, few))
    assert paired(np.arange(6.0) + 9, np.arange(6.0)) == pytest.approx(2 / 64)
    assert np.isnan(unpaired(np.arange(3.0), np.arange(3.0) + 9))
    assert paired(np.ones(8), np.ones(8)) == 1.0
    random = np.random.default_rng(1)
    ours, base = random.normal(0, 1, (2, 60))
    assert paired(ours, base) > 0.05 and unpaired(ours, base) > 0.05
    assert paired(ours + 2, base) < 1e-6 and unpaired(ours + 2, base) < 1e-6
    assert ranks(np.array([3.0, 1, 3, 7])).tolist() == [2.5, 1, 2.5, 4]


def test_several_tests_are_adjusted_as_defined() -> None:
    chances = np.array([0.04, np.nan, 0.01, 0.2, 0.012, 1.0])
    known = np.sort(chances[np.isfinite(chances)])
    for chance, found in zip(chances, adjusted(chances), strict=True):
        if np.isnan(chance):
            assert np.isnan(found)
            continue
        place = int(np.searchsorted(known, chance))
        expected = min(known[k] * len(known) / (k + 1) for k in range(place, len(known)))
        assert found == pytest.approx(min(expected, 1.0))


def plain_places(run: Run, gpu: int, iterations: tuple[int, ...]) -> dict[Any, list[list[int]]]:
    """Kernel's place → the rows of each step there, in order of start."""
    table = run.table
    found: dict[Any, list[list[int]]] = defaultdict(lambda: [[] for _ in iterations])
    rows = np.flatnonzero((table.gpu == gpu) & (table.kind == Kind.COMPUTE))
    for row in rows[np.argsort(table.start_ns[rows], kind="stable")].tolist():
        if int(table.iteration[row]) in iterations:
            place = tuple(
                int(table.column(level)[row]) for level in ("phase", "layer", "operation", "kernel")
            )
            found[place][iterations.index(int(table.iteration[row]))].append(row)
    return found


@pytest.mark.parametrize("gpu", [2, 5])
def test_spreads_over_iterations_are_those_of_a_plain_count(both: Run, gpu: int) -> None:
    found = steadiness(both, parse("R"))
    assert found.iterations == (11, 12)
    spreads: dict[str, list[float]] = defaultdict(list)
    table = both.table
    for one, other in plain_places(both, gpu, (11, 12)).values():
        if len(one) != len(other):
            continue
        for rows in zip(one, other, strict=True):
            durations = [int(table.duration_ns[row]) for row in rows]
            spreads["kernel"].append(100 * (max(durations) / min(durations) - 1))
            for name, signal in (("gfx", "gfx_mhz"), ("power", "power_w")):
                means = [
                    float(table.measured[f"{signal} integral"][row])
                    / float(table.measured[f"{signal} known"][row])
                    for row in rows
                ]
                spreads[name].append(100 * (max(means) / min(means) - 1))
    assert len(spreads["kernel"]) > 1500
    for name, each in spreads.items():
        assert found.values[f"{name}_spread_pct"][gpu] == pytest.approx(median(each)), name


def test_kernels_of_which_iterations_have_other_numbers_have_no_partners() -> None:
    rows = []
    for iteration, count in ((1, 2), (2, 3), (3, 2)):
        start = 1_000 * iteration
        rows += [Row(start + 10 * n, 5, iteration=iteration, kernel="a") for n in range(count)]
        rows.append(Row(start + 100, 7 + iteration, iteration=iteration, kernel="b"))
        rows.append(Row(start + 200, 7, iteration=iteration, kernel="b", operation="other"))
    run = run_of(rows)
    table = run.table
    parts = [run.tree().node(("0", str(number))).rows for number in (1, 2, 3)]
    places = np.stack(same_kernels(table, parts, LEVELS[2:]))
    assert places.shape == (3, 2)
    names = {table.text_of("kernel", int(code)) for code in table.kernel[places].ravel()}
    assert names == {"b"}
    assert sorted(table.duration_ns[places].T.tolist()) == [[7, 7, 7], [8, 9, 10]]
    assert np.stack(same_kernels(table, [parts[0], parts[2]], LEVELS[2:])).shape == (2, 4)


def test_kernels_of_other_names_at_the_same_place_are_not_the_same() -> None:
    rows = [
        Row(1000 * iteration + 10 * at, 5, iteration=iteration, kernel=name)
        for iteration, names in ((1, "ab"), (2, "ac"))
        for at, name in enumerate(names)
    ]
    run = run_of(rows)
    parts = [run.tree().node(("0", str(number))).rows for number in (1, 2)]
    assert np.stack(same_kernels(run.table, parts, LEVELS[2:5])).shape == (2, 2)
    places = np.stack(same_kernels(run.table, parts, LEVELS[2:]))
    assert [
        run.table.text_of("kernel", int(code)) for code in run.table.kernel[places].ravel()
    ] == [*"aa"]


def test_the_figures_are_the_truth_s(both: Run, flat: Run) -> None:
    for run, name in ((both, "fsdp2"), (flat, "fsdp1")):
        found = steadiness(run, parse("R"))
        for gpu, planted in truth(name).items():
            place = int(gpu)
            for signal in ("gfx_mhz", "mem_mhz", "power_w"):
                mean = np.mean([planted[signal][each]["mean"] for each in ("11", "12")])
                assert found.values[f"steady_{signal}"][place] == pytest.approx(mean, rel=0.004)
            spread = found.values["kernel_spread_pct"][place]
            assert spread == pytest.approx(planted["kernel_spread_pct"], rel=0.03)


def test_iteration_times_are_the_step_times_of_the_gpu(run: Run, wording: Wording) -> None:
    """A plain sum over activities."""
    table = run.table
    frame = query(run, parse("R?view=determinism"))
    for place in (0, 5):
        steps = query(run, parse(f"R:gpu={place}?view=throughput")).values["iteration_ns"]
        times = [steps.at(row) or 0 for row in (0, 1)]
        for iteration, step_ns in zip((11, 12), times, strict=True):
            own = (table.gpu == place) & (table.iteration == iteration)
            plain = sum(int(table.column(state)[own].sum()) for state in STATES)
            assert step_ns == plain
        row = frame.row(place)
        assert row["iteration_time_ns"] == median(times)
        assert row["iteration_spread_pct"] == pytest.approx(100 * (max(times) / min(times) - 1))
    wording.among(frame.notes, "outside steps")
    assert any("base=RUN compares" in note for note in frame.notes)
    wording(frame.headline[0], "clock 1681 MHz")
    assert frame.headline[0].endswith(" · medians of 8 GPUs")


def test_the_run_without_determinism_is_less_steady_beyond_noise(
    both: Run, wording: Wording
) -> None:
    frame = query(both, parse("R?view=determinism&by=figure&base=flat"))
    rows = rows_of(frame)
    for name in ("steady_sd_gfx_mhz", "steady_sd_mem_mhz", "kernel_spread_pct", "power_spread_pct"):
        assert rows[name]["verdict"] == "steadier", name
        assert float(rows[name]["p"] or 1) <= float(rows[name]["q"] or 1) < 0.05
        assert float(rows[name]["change_pct"] or 0) < -20
    for name in ("steady_gfx_mhz", "steady_mem_mhz"):
        assert rows[name]["verdict"] == "higher"
    assert rows["steady_gfx_mhz"]["change_pct"] == pytest.approx(100 * (1 / 0.955 - 1), abs=1.5)
    # All GPUs have an iteration's time together: two iterations of each run tell nothing.
    assert rows["iteration_time_ns"]["verdict"] == TOO_FEW
    assert rows["iteration_spread_pct"]["verdict"] == TOO_FEW
    steadier = sum(row["verdict"] == "steadier" for row in rows.values())
    wording(frame.headline[0], " flat ", "beyond noise")
    assert f" · {steadier} steadier" in frame.headline[0] and steadier


def test_gpus_stand_beside_those_of_the_baseline(both: Run, flat: Run) -> None:
    name = "steady_sd_gfx_mhz"
    view = parse(f"R?view=determinism&base=flat&columns={name},{name}_base,{name}_delta")
    assert parse(render(view)) == view
    frame = query(both, view)
    ours, theirs = (steadiness(run, parse("R")).values[name] for run in (both, flat))
    for place in range(8):
        row = frame.row(place)
        assert row[name] == ours[place] and row[f"{name}_base"] == theirs[place]
        assert row[f"{name}_delta"] == pytest.approx(ours[place] - theirs[place])


def test_a_run_does_not_differ_from_itself(run: Run, wording: Wording) -> None:
    same = replace(run, others={"same": run})
    frame = query(same, parse("R?view=determinism&by=figure&base=same"))
    verdicts = {frame.row(place)["verdict"] for place in range(len(frame))}
    assert verdicts <= {WITHIN_NOISE, TOO_FEW}
    (note,) = frame.headline
    wording(note, "none of 9 figures", "same")


def test_few_gpus_are_too_few_to_tell(both: Run, wording: Wording) -> None:
    frame = query(both, parse("R:gpu=3?view=determinism&by=figure&base=flat"))
    assert {frame.row(place)["verdict"] for place in range(len(frame))} == {TOO_FEW}
    wording(frame.headline[0], "too few GPUs and steps")
    rows = rows_of(frame)
    assert "p" not in rows["steady_sd_gfx_mhz"]
    ours = query(both, parse("R:gpu=3?view=determinism&base=flat"))
    assert ours.row(0)["steady_sd_gfx_mhz_base"] == pytest.approx(
        rows["steady_sd_gfx_mhz"]["baseline"]
    )


def test_iterations_of_gpus_tell_where_gpus_are_too_few() -> None:
    slow = sample_run(gpus=2, iterations=6)
    frame = query(
        replace(slow, others={"other": sample_run(gpus=2, iterations=6, layers=5)}),
        parse("R?view=determinism&by=figure&base=other"),
    )
    rows = rows_of(frame)
    assert rows["iteration_time_ns"]["compared"] == "6 and 6 steps"
    assert rows["iteration_time_ns"]["verdict"] == "lower"
    assert rows["kernel_spread_pct"]["verdict"] == TOO_FEW


def test_a_scope_without_whole_iterations_says_so(run: Run, wording: Wording) -> None:
    frame = query(run, parse("R:gpu=1/iteration=none?view=determinism"))
    (note,) = frame.headline
    wording(note, "no complete step")
    frame = query(run, parse("R:gpu=1/iteration=11?view=determinism"))
    assert "kernel_spread_pct" not in frame.row(0)
    wording.among(frame.notes, "fewer than two complete steps")


@pytest.fixture(scope="module")
def small() -> dict[str, Run]:
    """Small runs: clean ones that differ by chance alone, and one without determinism."""
    runs = {
        name: generated_run(name, layers=4, with_counters=False, **options)
        for name, options in (
            ("one", {"seed": 1, "clean": True}),
            ("two", {"seed": 2, "clean": True}),
            ("flat", {"seed": 4, "strategy": "FSDP1"}),
        )
    }
    return {name: replace(run, others=runs) for name, run in runs.items()}


@pytest.mark.sweep
@pytest.mark.parametrize(("ours", "base"), [("one", "two"), ("two", "one")])
def test_runs_that_differ_by_chance_are_within_noise(
    small: dict[str, Run], ours: str, base: str
) -> None:
    frame = query(small[ours], parse(f"R?view=determinism&by=figure&base={base}"))
    verdicts = [frame.row(place)["verdict"] for place in range(len(frame))]
    assert verdicts.count(WITHIN_NOISE) == 9
    assert frame.headline[0].endswith(f"figures differs from {base} beyond noise")


@pytest.mark.sweep
def test_a_small_run_without_determinism_is_beyond_it(small: dict[str, Run]) -> None:
    frame = query(small["one"], parse("R?view=determinism&by=figure&base=flat"))
    rows = rows_of(frame)
    assert rows["kernel_spread_pct"]["verdict"] == "steadier"
    assert rows["steady_sd_mem_mhz"]["verdict"] == "steadier"
    assert rows["steady_gfx_mhz"]["verdict"] == "higher"


@pytest.mark.parametrize("name", ["power", "kernels", "compare", "determinism", "timeline"])
def test_views_without_a_comparison_say_so(both: Run, name: str) -> None:
    frame = query(both, parse(f"R?view={name}&base=flat"))
    said = any("this view ignores the baseline" in note for note in frame.notes)
    assert said is (name == "power")


def test_a_scope_without_compute_has_no_matched_kernels() -> None:
    comm = [
        Row(9 * n, 5, Kind.COMM, iteration=n, operation="all_gather", kernel="nccl")
        for n in range(4)
    ]
    view = parse("R:operation=all_gather?view=determinism&order=operation")
    run = run_of([*comm, Row(90, 5, iteration=4)])
    spreads = steadiness(run, view).values["kernel_spread_pct"]
    assert np.isnan(spreads).all() and len(query(run, view)) == 1


def test_a_row_leads_to_the_kernels_that_differ_most_from_step_to_step() -> None:
    run = sample_run(gpus=2, iterations=3)
    inside = query(run, parse(query(run, parse("R?view=determinism")).addresses(1)))
    assert inside.level == "kernel" and inside.view.path == ("1",)
    spreads = inside.values["elapsed_ns"].known(missing=0.0).tolist()
    assert spreads == sorted(spreads, reverse=True) and spreads[0] > 0
    # Without another step there is no spread to open.
    alone = sample_run(gpus=2, iterations=1)
    assert parse(query(alone, parse("R?view=determinism")).addresses(1)).stat == ""
