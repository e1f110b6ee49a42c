"""Power: figures over time against a value per ns, the demo's truth, and pandas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from support import Row, rows_of, run_of, sample_run

from chopper_core.analyses.power_samples import (
    CORRELATED,
    OF_STEPS,
    Correlation,
    samples_of,
)
from chopper_core.analyses.sample_definitions import DECLARED
from chopper_core.analyses.samples import paired_with, sampled
from chopper_core.columns import METRICS, Metric
from chopper_core.extensions.runs.figures import figures_of_run
from chopper_core.model.address import parse, render
from chopper_core.model.charts import BarChart, LineChart, SignalRows
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal, TimeSpans, between
from chopper_core.model.units import Unit
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views.query import query
from tests.tui.explorer import measured_run
from tests.wording import Wording

TRUTH = Path(__file__).resolve().parents[2] / "demo_data" / "fsdp2" / "truth.json"


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(TRUTH.read_text())
    return document


def expanded(begins: list[int], ends: list[int], values: list[float], size: int) -> np.ndarray:
    """A value for every ns; NaN where none is known."""
    series = np.full(size, np.nan)
    for begin, end, value in zip(begins, ends, values, strict=True):
        series[begin:end] = value
    return series


@pytest.mark.parametrize("seed", range(20))
def test_figures_over_stretches_are_those_of_a_value_per_ns(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(np.arange(1, 400), 40, replace=False))
    begins, ends = edges[::2].copy(), edges[1::2].copy()
    # Most samples follow each other without a gap.
    ends[:-1] = np.where(random.random(19) < 0.7, begins[1:], ends[:-1])
    values = random.integers(50, 90, 20).astype(np.float64)
    values[3] = np.nan
    cuts = np.sort(random.choice(np.arange(0, 420), 6, replace=False))
    stretches = TimeSpans(cuts[::2].astype(np.int64), cuts[1::2].astype(np.int64))
    found = sampled(between(begins.astype(np.int64), ends.astype(np.int64), values), stretches)
    series = expanded(begins.tolist(), ends.tolist(), values.tolist(), 420)
    inside = np.zeros(420, np.bool_)
    for low, high in zip(cuts[::2], cuts[1::2], strict=True):
        inside[low:high] = True
    known = series[inside & np.isfinite(series)]
    assert int(found.weights_ns.sum()) == len(known)
    if not len(known):
        assert np.isnan(found.mean()) and np.isnan(found.quantile(0.5))
        return
    assert found.mean() == pytest.approx(known.mean())
    assert found.deviation() == pytest.approx(known.std())
    for share in (0.05, 0.5, 0.95, 1.0):
        level = min(v for v in known.tolist() if np.mean(known <= v) >= share - 1e-12)
        assert found.quantile(share) == level


def test_bursts_are_runs_of_samples_above_a_level() -> None:
    begins = np.arange(0, 80, 10)
    values = np.array([1.0, 5, 6, 1, 7, 1, 1, 9])
    curve = between(begins, begins + 10, values)
    whole = sampled(curve, TimeSpans(np.array([0]), np.array([80])))
    assert whole.above(4) == (3, 40, 20)
    assert whole.above(5) == (3, 30, 10)
    assert whole.above(9) == (0, 0, 0)
    part = sampled(curve, TimeSpans(np.array([15]), np.array([75])))
    assert part.above(4) == (3, 30, 15)


@pytest.mark.parametrize("share", [0.05, 0.95])
def test_rolling_quantiles_are_those_of_pandas(run: Run, share: float) -> None:
    gpu = samples_of(run, parse("R:gpu=3"))[0]
    own = gpu.signals["gfx_mhz"]
    size = own.window(25e6)
    assert size == 20
    expected = pd.Series(own.values).rolling(size).quantile(share).dropna()
    ends, found = own.rolling(25e6, share)
    assert found == pytest.approx(expected.to_numpy())
    assert ends.tolist() == own.ends_ns[size - 1 :].tolist()
    frame = query(run, parse("R:gpu=3?view=power&of=window:25"))
    if share == 0.05:
        assert frame.row(0)["rolling_gfx_mhz"] == pytest.approx(expected.mean())


def test_clocks_and_power_of_iterations_are_the_truth_s(run: Run, truth: dict[str, Any]) -> None:
    for iteration in ("11", "12"):
        for gpu in range(8):
            frame = query(run, parse(f"R:gpu={gpu}/iteration={iteration}?view=power"))
            row = frame.row(0)
            known = truth["stability"]["per_gpu"][str(gpu)]
            for signal, tolerance in (("gfx_mhz", 0.001), ("power_w", 0.003)):
                mean = known[signal][iteration]["mean"]
                assert row[f"mean_{signal}"] == pytest.approx(mean, rel=tolerance)
            assert row["sd_gfx_mhz"] == pytest.approx(
                known["gfx_mhz"][iteration]["deviation"], abs=1
            )
            assert row["mean_mem_mhz"] == 1300
            joules = (
                known["power_w"][iteration]["mean"] * truth["spans_ns"][str(gpu)][iteration] / 1e9
            )
            assert row["iteration_energy_j"] == pytest.approx(joules, rel=0.01)
            assert row["token_energy_mj"] == pytest.approx(1e3 * joules / 8192, rel=0.01)


def test_the_hot_gpu_is_named_and_throttled(run: Run, wording: Wording) -> None:
    frame = query(run, parse("R?view=power"))
    rows = rows_of(frame)
    assert min(rows, key=lambda gpu: rows[gpu]["mean_gfx_mhz"] or 0) == "5"
    assert max(rows, key=lambda gpu: rows[gpu]["mean_hotspot_c"] or 0) == "5"
    assert [gpu for gpu, row in rows.items() if row["throttled_pct"]] == ["5"]
    assert "GPU 5 most" in frame.headline[0]
    wording(frame.headline[1], "GPU 5 1576 MHz")
    assert "throttled: GPU 5 80 %" in frame.headline[1]
    assert rows["0"]["limit_w"] == 750
    wording.among(frame.notes, "TDP")
    powers = [float(row["mean_power_w"] or 0) for row in rows.values()]
    assert frame.total["mean_power_w"] == pytest.approx(sum(powers))
    assert frame.total_title == "all GPUs"
    # Of whole iterations, the energy charged to them is the step's.
    asked = parse("R?view=power&columns=energy_j,iteration_energy_j")
    energy = query(run, asked)
    for name in asked.columns:
        joules = sum(float(row[name] or 0) for row in rows_of(energy).values())
        assert energy.total[name] == pytest.approx(joules)
    titles = [picture.title for picture in frame.charts]
    for axis in ("hotspot", "power"):
        wording.among(titles, "gfx clock", f"against {axis}")
    for picture in frame.charts:
        if "against" in picture.title:
            assert isinstance(picture, LineChart) and len(picture.series) == 8
        else:
            assert isinstance(picture, SignalRows) and picture.labels[5] == "GPU 5"
            assert picture.title.startswith("rolling") or 5 in picture.outliers


def test_a_row_per_gpu_is_the_mean_in_equal_parts_of_the_time(run: Run) -> None:
    frame = query(run, parse("R?view=power"))
    picture = frame.charts[0]
    assert isinstance(picture, SignalRows) and picture.title == "power"
    found = samples_of(run, parse("R"))
    begin = min(gpu.signals["power_w"].middles_ns[0] for gpu in found)
    end = max(gpu.signals["power_w"].middles_ns[-1] for gpu in found)
    bins = picture.numbers.shape[1]
    assert picture.x == ((begin - run.origin_ns) / 1e6, (end - run.origin_ns) / 1e6)
    for row, gpu in enumerate(found):
        own = gpu.signals["power_w"]
        parts: list[list[float]] = [[] for _ in range(bins)]
        for time, watts in zip(own.middles_ns.tolist(), own.values.tolist(), strict=True):
            parts[min((time - begin) * bins // (end - begin), bins - 1)].append(watts)
        expected = [sum(part) / len(part) if part else np.nan for part in parts]
        assert picture.numbers[row] == pytest.approx(expected, nan_ok=True)
        assert picture.means[row] == frame.row(row)["mean_power_w"]
    assert picture.outliers == (5,)


def test_one_gpu_is_drawn_as_curves(run: Run) -> None:
    frame = query(run, parse("R:gpu=5?view=power"))
    assert all(isinstance(p, LineChart) and len(p.series) == 1 for p in frame.charts)


def test_correlation_is_numpy_s_over_the_same_times(run: Run) -> None:
    gpu = samples_of(run, parse("R:gpu=5/iteration=11"))[0]
    clock, power = gpu.signals["gfx_mhz"], gpu.signals["power_w"]
    # Both come from one file, so that their samples stand for the same times.
    assert clock.begins_ns.tolist() == power.begins_ns.tolist()
    expected = np.corrcoef(clock.values, power.values)[0, 1]
    found = Correlation.of(*paired_with(clock, gpu.curves["power_w"]))
    assert found.r == pytest.approx(expected)
    frame = query(run, parse("R:gpu=5/iteration=11?view=power"))
    assert frame.row(0)["r_gfx_power"] == pytest.approx(expected)


@pytest.mark.parametrize("by", ["iteration", "phase", "layer", "operation"])
def test_energy_adds_up_over_any_level(run: Run, by: str) -> None:
    frame = query(run, parse(f"R:gpu=2?view=power&by={by}&base=total"))
    whole = query(run, parse("R?columns=energy_j&base=total")).row(2)["energy_j"]
    rows = [frame.row(place) for place in range(len(frame))]
    assert sum(row["energy_j"] or 0 for row in rows) == pytest.approx(whole)
    assert sum(row["energy_pct"] or 0 for row in rows) == pytest.approx(100)
    for row in rows:
        power = float(row["energy_j"] or 0) / (float(row["elapsed_ns"] or 0) * 1e-9)
        assert row["charged_power_w"] == pytest.approx(power)
    assert isinstance(frame.charts[0], BarChart)
    if by == "iteration":
        # A total has the time outside steps, which makes no tokens.
        assert frame.labels == ["none", "11", "12"]
        tokens = [row["token_energy_mj"] is not None for row in rows]
        assert tokens == [False, True, True]
        assert query(run, parse("R:gpu=2?view=power&by=iteration")).labels == ["11", "12"]


def test_deeper_scopes_count_only_while_their_work_runs(run: Run) -> None:
    frame = query(run, parse("R:gpu=0/iteration=11/phase=optimizer?view=power"))
    memory_bound = frame.row(0)["mean_power_w"]
    backward = query(run, parse("R:gpu=0/iteration=11/phase=backward?view=power")).row(0)
    assert float(memory_bound or 0) < 600 < float(backward["mean_power_w"] or 0)


def with_power(caps: bool) -> Run:
    """Two GPUs for 100 ns: power 10 W for 50 ns, then 99 W; a cap of 100 W if so."""
    rows = [Row(0, 100, gpu=gpu, iteration=1) for gpu in (0, 1)]
    made = run_of(rows)
    begins, ends = np.array([0, 50]), np.array([50, 100])
    curves = {gpu: between(begins, ends, np.array([10.0, 99.0])) for gpu in (0, 1)}
    measured = {"power_w": Signal("power_w", "power", Unit.WATTS, curves, 0, 100)}
    if caps:
        cap = {0: between(begins, ends, np.array([100.0, 100.0]))}
        measured["power_cap_w"] = Signal("power_cap_w", "cap", Unit.WATTS, cap, 0, 100)
        limiter = {1: between(begins, ends, np.array([0.0, 40.0]))}
        measured["throttle_pct.ppt"] = Signal(
            "throttle_pct.ppt", "ppt", Unit.PERCENT, limiter, 0, 100
        )
    return replace(made, measured=measured)


def test_the_cap_is_the_telemetry_s_and_each_limiter_has_its_share() -> None:
    frame = query(
        with_power(True), parse("R?view=power&columns=limit_w,at_limit_pct,throttled_ppt_pct")
    )
    assert frame.row(0) == {"limit_w": 100, "at_limit_pct": 50, "throttled_ppt_pct": None}
    assert frame.row(1) == {"limit_w": None, "at_limit_pct": None, "throttled_ppt_pct": 20}


def test_what_is_not_known_is_missing(run: Run, wording: Wording) -> None:
    frame = query(with_power(False), parse("R?view=power"))
    assert frame.row(0)["mean_power_w"] == 54.5
    assert frame.row(0)["peak_power_w"] == 99
    assert "mean_gfx_mhz" not in frame.row(0)
    wording.among(frame.notes, "limit is unknown")
    with pytest.raises(UsageError, match="no telemetry of power, clocks or temperatures"):
        query(sample_run(), parse("R?view=power"))


@pytest.mark.parametrize("of", ["window", "burst:-1", "window:0", "window:1,window:2", "cap:3"])
def test_another_of_is_refused(run: Run, of: str) -> None:
    with pytest.raises(UsageError, match="the view power takes of="):
        query(run, parse(f"R?view=power&of={of}"))


def test_options_of_the_address_are_used(run: Run) -> None:
    view = parse("R:gpu=1/iteration=11?view=power&of=burst:700,tokens:1000")
    assert parse(render(view)) == view
    row = query(run, view).row(0)
    samples = samples_of(run, view)[0].signals["power_w"]
    count, time, longest = samples.above(700)
    assert count > 0
    assert row["bursts"] == count and row["longest_burst_ns"] == longest
    assert row["burst_pct"] == pytest.approx(100 * time / samples.weights_ns.sum())
    assert row["token_energy_mj"] == pytest.approx(float(row["iteration_energy_j"] or 0))


def test_no_title_stands_for_two_figures() -> None:
    """The view's means over time aren't the tree's over the durations of the activities."""

    def header(each: Metric) -> str:
        return each.title if each.title.endswith(each.unit) else f"{each.title} {each.unit}"

    own = [*DECLARED.values(), *CORRELATED.values(), *OF_STEPS.values()]
    there = {header(each): each.name for each in METRICS.values()}
    assert [each.name for each in own if there.get(header(each), each.name) != each.name] == []


def test_means_over_time_and_over_activities_name_each_other(wording: Wording) -> None:
    over_time = [each for each in DECLARED.values() if each.name.startswith("mean_")]
    # One of two signals has no metric of its own.
    over_time.remove(DECLARED["mean_hot_c"])
    assert len(over_time) >= 6
    for each in over_time:
        twin = METRICS[each.name.removeprefix("mean_")]
        wording(each.definition, twin.name)
        wording(twin.definition, "idle time")


def test_power_over_time_counts_idle_time_and_power_of_activities_does_not(run: Run) -> None:
    power = query(run, parse("R?view=power&columns=mean_power_w"))
    tree = query(run, parse("R?order=gpu&columns=power_w"))
    for row in range(len(power)):
        assert float(power.row(row)["mean_power_w"] or 0) < float(tree.row(row)["power_w"] or 0)


def signal(name: str, begins: np.ndarray, ends: np.ndarray, values: np.ndarray) -> Signal:
    curves = {0: between(begins, ends, values)}
    return Signal(name, name, Unit.MHZ, curves, 0, float(values.max()))


def idling_run(pause_ns: int) -> Run:
    """Ten kernels at 1,700 MHz with pauses after them, in which the clock falls to 133 MHz."""
    period = 100_000
    starts = np.arange(10, dtype=np.int64) * (period + pause_ns)
    rows = [Row(int(start), period, iteration=0) for start in starts]
    begins = np.sort(np.concatenate([starts, starts + period] if pause_ns else [starts]))
    ends = np.append(begins[1:], begins[-1] + (pause_ns or period))
    busy = np.isin(begins, starts)
    clock = signal("gfx_mhz", begins, ends, np.where(busy, 1700.0, 133.0))
    return replace(run_of(rows), measured={"gfx_mhz": clock})


@pytest.mark.parametrize("pause_ns", [0, 50_000, 900_000])
def test_the_low_clock_of_a_run_does_not_depend_on_idle_time(pause_ns: int) -> None:
    run = idling_run(pause_ns)
    figures = figures_of_run(run).figures
    assert figures["low_mhz"] == pytest.approx(1700.0)
    over_time = 1700 * 100_000 + 133 * pause_ns
    # The pause after the last kernel is no part of the run.
    mean = (10 * over_time - 133 * pause_ns) / (10 * 100_000 + 9 * pause_ns)
    assert figures["gpu_mhz"] == pytest.approx(mean, rel=1e-6)


def test_a_gpu_that_idles_longer_is_not_the_slow_one(wording: Wording) -> None:
    """GPU 1 runs its kernels at a lower clock, GPU 0 pauses at an even lower one."""
    rows, curves = [], {}
    for gpu, busy_mhz, pause_mhz in ((0, 1700.0, 133.0), (1, 1500.0, 1500.0), (2, 1690.0, 1690.0)):
        starts = np.arange(10, dtype=np.int64) * 200_000
        rows += [Row(int(start), 100_000, gpu=gpu, iteration=0) for start in starts]
        begins = np.sort(np.concatenate([starts, starts + 100_000]))
        values = np.where(np.isin(begins, starts), busy_mhz, pause_mhz)
        curves[gpu] = between(begins, np.append(begins[1:], 2_000_000), values)
    clock = Signal("gfx_mhz", "gfx_mhz", Unit.MHZ, curves, 0, 1700.0)
    run = replace(run_of(rows), measured={"gfx_mhz": clock})
    wording(query(run, parse("R?view=power")).headline[-1], "GPU 1 1500 MHz", "median 1695")


def with_heat(heat: str, seed: int, *, slows: bool = True) -> Run:
    """A GPU whose kernels take 1 / clock; the clock falls with the heat, which drifts."""
    random = np.random.default_rng(seed)
    begins = np.arange(0, 2_000_000, 10_000, dtype=np.int64)
    degrees = 70 + 8 * np.sin(np.arange(200) / 7) + random.normal(0, 3, 200)
    clock = 2000 - 12 * (degrees - 70)
    rows = []
    for begin, mhz in zip(begins.tolist(), clock.tolist(), strict=True):
        for place, (name, usual) in enumerate((("gemm", 2500), ("norm", 400))):
            took = usual * 2000 / mhz if slows else usual * random.normal(1, 0.01)
            rows.append(Row(begin + 4000 * place, round(took), iteration=1, kernel=name))
    measured = {
        "gfx_mhz": signal("gfx_mhz", begins, begins + 10_000, clock),
        heat: signal(heat, begins, begins + 10_000, degrees),
    }
    return replace(run_of(rows), measured=measured)


@pytest.mark.parametrize("heat", ["hotspot_c", "edge_c"])
def test_heat_clock_and_duration_go_together(heat: str) -> None:
    names = "r_gfx_hotspot,r_gfx_edge,r_time_gfx,r_time_heat,r_chance,r_samples"
    (row,) = (query(with_heat(heat, 3), parse(f"R?view=power&columns={names}")).row(0),)
    other = {"hotspot_c": "r_gfx_edge", "edge_c": "r_gfx_hotspot"}[heat]
    assert row.pop(other) is None
    of_clock = row["r_gfx_hotspot"] if heat == "hotspot_c" else row["r_gfx_edge"]
    assert of_clock == pytest.approx(-1)
    assert row["r_time_gfx"] == pytest.approx(-1, abs=1e-3)
    assert row["r_time_heat"] == pytest.approx(1, abs=1e-3)
    # 200 samples of a slow drift are worth fewer.
    assert 4 <= row["r_samples"] < 80
    assert row["r_chance"] == pytest.approx(np.tanh(2.576 / np.sqrt(row["r_samples"] - 3)), abs=0.2)


def test_kernels_of_constant_time_correlate_with_nothing() -> None:
    names = "r_time_gfx,r_time_heat,r_chance"
    for seed in range(5):
        row = query(with_heat("edge_c", seed, slows=False), parse(f"R?view=power&columns={names}"))
        assert abs(row.row(0)["r_time_gfx"]) < row.row(0)["r_chance"]


@pytest.mark.sweep
def test_chance_is_that_of_unrelated_series() -> None:
    """Of drifting series that have nothing to do with each other, about 1 % seem to."""
    random = np.random.default_rng(18)
    beyond, count = 0, 1_500
    for _ in range(count):
        noise = random.normal(size=(2, 150))
        for own in noise:
            for at in range(1, 150):
                own[at] += 0.7 * own[at - 1]
        found = Correlation.of(*noise)
        beyond += abs(found.r) > found.by_chance
    assert 0.003 < beyond / count < 0.025


def test_power_beyond_the_cap_has_its_time() -> None:
    made = with_power(True)
    cap = signal("power_cap_w", np.array([0]), np.array([100]), np.array([60.0]))
    run = replace(made, measured=made.measured | {"power_cap_w": cap})
    frame = query(run, parse("R?view=power&columns=peak_over_w,over_limit_ns"))
    assert frame.row(0) == {"peak_over_w": 39, "over_limit_ns": 50}


def test_dies_and_stacks_of_memory_are_compared() -> None:
    made = with_power(False)
    parts = {
        f"{name}{place}": signal(
            f"{name}{place}", np.array([0]), np.array([100]), np.array([value])
        )
        for name, values in (("gfx_mhz.xcd", (1900.0, 1870.0, 1910.0)), ("mem_c.hbm", (60.0, 67.0)))
        for place, value in enumerate(values)
    }
    run = replace(made, measured=made.measured | parts)
    frame = query(run, parse("R?view=power&columns=die_spread_mhz,die_spread_c"))
    assert frame.row(0) == {"die_spread_mhz": 40, "die_spread_c": 7}
    assert frame.row(1) == {"die_spread_mhz": None, "die_spread_c": None}


def test_rows_of_nodes_need_nodes() -> None:
    with pytest.raises(NothingToShow, match="nor the numbers of the devices give the nodes"):
        query(measured_run(), parse("R?view=power&by=node"))
