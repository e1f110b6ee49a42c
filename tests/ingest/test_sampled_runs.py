"""Runs of telemetry alone: CharLLM-PPT's directories and logs of tools, without any trace."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from chopper_core.align import telemetry
from chopper_core.api import OpenRun
from chopper_core.extensions.runs.figures import figures_of_run, with_settings
from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.render import as_json, as_text
from chopper_core.render.exports import export
from chopper_core.render.info import info_text as info_text
from chopper_core.util.errors import DataError, NoSuchNode, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.query import frame_of
from tests.align.traces import GEMM, TinyTrace
from tests.charllm import START_S, STEPS, WRAP, directory, write
from tests.realdata.conftest import FOLDER
from tests.sources.telemetry.telemetry_texts import (
    DCGM_CSV,
    DCGM_DMON,
    DCGM_SCRAPES,
    DMON,
    METRIC_CSV,
    NEW_MONITOR_CSV,
    NVIDIA_CSV,
    OLD_MONITOR_CSV,
    OWN_CSV,
    ROCM_SMI_CSV,
    ZEUS_CSV,
    metric_list,
    stamped,
)
from tests.wording import Wording

CLOSE = 2e-8
"""The reference has stamps as doubles, 240 ns apart; Chopper reads their decimals."""
VIEWS = ("overview", "power", "heatmap", "determinism", "findings")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of 32 ranks whose figures upstream's own script gave."""
    folder = directory(tmp_path_factory.mktemp("charllm") / "run")
    digest = hashlib.md5((folder / "gpu_power_9.csv").read_bytes()).hexdigest()
    assert digest == "271518e966989135efa412bb1a17526e"
    return open_run(str(folder), jobs=1)


def frame(run: Run, name: str, **given: object) -> Frame:
    return frame_of(run, View(run.name, name=name, **given))  # type: ignore[arg-type]


def figures(run: Run, gpu: int) -> dict[str, float]:
    """All figures of a GPU that the power view has, as JSON has them."""
    found = frame(run, "power")
    names = tuple(each.name for each in (*found.columns, *found.more))
    asked = frame_of(run, View(run.name, name="power", columns=names))
    document = json.loads(as_json(asked, limit=len(asked)))
    return dict(document["rows"][gpu])


def test_the_reference_numbers(reference: Run) -> None:
    run = reference
    assert len(run.gpus) == 32
    assert run.status == ""
    assert run.failed == run.skipped == ()
    ninth = figures(run, 9)
    expected = {
        "mean_power_w": 479.4667760184012,
        "peak_power_w": 555,
        "mean_mem_power_w": 95.49750733490214,
        "mean_hot_c": 55.97432464976859,
        "mean_gfx_mhz": 1920.3041810254016,
        # Exact: upstream loses one unit at each wrap.
        "pcie_in_bytes": 0.18533374834805727 * 2**30,
        "nvlink_in_bytes": 19.89988613128662 * 2**30,
    }
    for name, value in expected.items():
        assert ninth[name] == pytest.approx(value, rel=CLOSE), name
    assert ninth["pcie_in_bytes"] == 199 * STEPS["pcie_rx_bytes"]
    assert ninth["nvlink_in_bytes"] == 199 * STEPS["nvlink_rx_throughput"] * 1024
    assert figures(run, 0)["window_ns"] == pytest.approx(9.950411081314087e9, rel=CLOSE)
    total = frame(run, "overview").total
    assert total["sampled_energy_j"] == pytest.approx(156795.74540030956, rel=CLOSE)
    assert total["mean_power_w"] == pytest.approx(32 * 492.41394980297295, rel=CLOSE)
    assert total["peak_power_w"] == 585
    (speed,) = [line for line in frame(run, "power", of="samples:128").headline if "MJ" in line]
    efficiency = re.search(r"([\d.]+) samples/\(s·MJ\)", speed)
    assert efficiency is not None
    assert float(efficiency[1]) == pytest.approx(82.04170407496699, abs=1e-4)
    row = with_settings(figures_of_run(run), {"global_batch": 128, "steps": 1}).figures
    assert row["samples_per_s_mj"] == pytest.approx(82.04170407496699, rel=CLOSE)
    assert row["gpu_power_w"] == pytest.approx(492.41394980597295, rel=CLOSE)
    assert row["j_per_step"] == pytest.approx(156795.74540030956, rel=CLOSE)
    assert row["lowest_mhz"] == 1980 - 15 * 8


def test_every_view_of_samples_prints(reference: Run, wording: Wording) -> None:
    for name in ("", *VIEWS):
        found = frame(reference, name)
        assert len(found) == (1 if name == "findings" else 32)
        text = as_text(found)
        assert "note: the view" not in text and "note: Losses" not in text
        assert json.loads(as_json(found))["rows"]
    assert "32 GPUs" in frame(reference, "overview").headline[0]
    wording(frame(reference, "comms").notes[0], "communication")
    assert info_text(reference).startswith("run ")
    wording(frame(reference, "power", path=("3",)).notes[0], "without a trace")
    with pytest.raises(NoSuchNode):
        frame(reference, "", path=("99",))


def test_views_offer_no_columns_of_activities(reference: Run) -> None:
    for name in ("overview", "power", "heatmap"):
        offered = {each.name for each in frame(reference, name).more}
        assert not offered & {"elapsed_ns", "kernels", "busy_pct", "idle_ns", "compute_ns"}
        assert "start_ns" in offered


def test_figures_of_activities_are_missing_never_0(reference: Run) -> None:
    asked = ("elapsed_ns", "kernels", "busy_pct", "idle_ns", "compute_ns")
    for name in ("", "overview", "power", "heatmap"):
        found = frame(reference, name, columns=asked)
        assert len(found) == 32
        for column in asked:
            assert not found.values[column].present().any(), (name, column)
            assert found.total[column] is None
        assert all("telemetry alone" in each.missing_because for each in found.columns)
    with pytest.raises(UsageError, match="has no column"):
        frame(reference, "findings", columns=("kernels",))


def test_rows_are_the_intervals_between_samples(tmp_path: Path) -> None:
    directory(tmp_path, 2, 5, ("gpu_power", "gpu_thermal"))
    write(tmp_path, "gpu_power", 1, [100.0, 200.0, 400.0, 400.0, 600.0])
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.table) == 2 * 4 and run.is_sampled_only and not run.traced
    times = np.array([1000 * (50_000 * i + 137 * ((i * 7) % 5)) for i in range(5)])
    own = run.table.gpu == 0
    begins = run.table.start_ns[own] - START_S * 10**9
    assert begins == pytest.approx(times[:-1], abs=1000)
    assert run.table.duration_ns[own] == pytest.approx(np.diff(times), abs=1000)
    # Each sample holds until the next; the energy is the integral by the trapezoidal rule.
    lengths = np.diff(times) * 1e-9
    found = frame(run, "", columns=("power_w", "energy_j"))
    values = np.array([100.0, 200.0, 400.0, 400.0, 600.0])
    assert found.row(1)["power_w"] == pytest.approx(
        (values[:-1] * lengths).sum() / lengths.sum(), 1e-5
    )
    joules = ((values[1:] + values[:-1]) / 2 * lengths).sum()
    assert found.row(1)["energy_j"] == pytest.approx(joules, rel=1e-5)
    assert frame(run, "overview").row(1)["sampled_energy_j"] == pytest.approx(joules, rel=1e-5)
    # What only an activity has is null in Python, and nothing is exported.
    rows = OpenRun(run).kernels(signals=True)
    assert set(rows["category"].to_pylist()) == {"interval"}
    assert rows["power_w"].null_count == 0 and rows["kind"].null_count == len(rows)
    assert rows["compute_ns"].null_count == rows["idle_ns"].null_count == len(rows)
    with pytest.raises(DataError, match="no activities"):
        export(run, "parquet", tmp_path / "out.parquet")


def test_low_clocks_under_load_are_throttling_without_limiters(reference: Run) -> None:
    # 1980 - 15 k MHz, k = (i + r) mod 9: below 97 % from k = 4 on; used less at each tenth sample.
    weights = np.diff([50_000 * i + 137 * ((i * 7) % 5) for i in range(200)])
    samples = np.arange(199)
    is_low = ((samples + 9) % 9 >= 4) & (samples % 10 != 0)
    expected = 100 * weights[is_low].sum() / weights.sum()
    assert figures(reference, 9)["low_clock_pct"] == pytest.approx(expected, rel=1e-6)
    assert "below 97 %" in frame(reference, "findings").labels[0]


def test_failed_reads_are_missing(tmp_path: Path) -> None:
    directory(tmp_path, 2, 20, ("gpu_power", "pcie_rx_bytes"))
    write(tmp_path, "gpu_power", 1, [500.0, -1, 700.0, -1.0, *[700.0] * 16])
    write(tmp_path, "pcie_rx_bytes", 1, [WRAP - 100, -1, 50, 100, *[100] * 16])
    run = open_run(str(tmp_path), jobs=1)
    power = run.sampled["power_w"][1]
    assert (power.low, power.high, power.samples) == (500, 700, 18)
    assert run.sampled["pcie_bytes.rx"][1].amount == 200


def test_a_counter_wraps_twice_by_large_steps(tmp_path: Path) -> None:
    directory(tmp_path, 1, 12, ("gpu_power",))
    step = 3_000_000_000
    write(tmp_path, "nvlink_rx_throughput", 0, [(7 + i * step) % WRAP for i in range(12)])
    run = open_run(str(tmp_path), jobs=1)
    assert 11 * step // WRAP > 2
    assert run.sampled["nvlink_read_bytes"][0].amount == 11 * step * 1024


@pytest.mark.sweep
def test_memory_power_is_no_part_of_the_energy(tmp_path: Path) -> None:
    whole = open_run(str(directory(tmp_path / "a", 3, 20)), jobs=1)
    folder = directory(tmp_path / "b", 3, 20)
    (folder / "mem_power_0.csv").unlink()
    lacking = open_run(str(folder), jobs=1)
    energies = [frame(run, "overview").total["sampled_energy_j"] for run in (whole, lacking)]
    assert energies[0] == energies[1]
    assert "mean_mem_power_w" not in figures(lacking, 0) or (
        figures(lacking, 0)["mean_mem_power_w"] is None
    )
    # Without any file of NVIDIA's alone, `mem_util` could be either of two figures.
    amd = open_run(str(directory(tmp_path / "c", 3, 20, ("gpu_power", "mem_util"))), jobs=1)
    assert "mem_util_pct" not in amd.sampled
    assert any("mem_util" in path for path, _ in amd.skipped)


@pytest.mark.parametrize("samples", [1, 9])
def test_a_short_run_was_stopped(samples: int, tmp_path: Path, wording: Wording) -> None:
    run = open_run(str(directory(tmp_path, 2, samples)), jobs=1)
    wording(run.status, "OOM", f"{samples} sample{'' if samples == 1 else 's'} of", "rank 0")
    assert run.status in frame(run, "overview").headline
    assert "energy" not in frame(run, "overview").headline[0]
    assert run.status in frame(run, "findings").labels


def test_a_run_without_samples_was_stopped(tmp_path: Path, wording: Wording) -> None:
    for rank in range(4):
        for name in ("gpu_power", "sm_clock"):
            (tmp_path / f"{name}_{rank}.csv").touch()
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.gpus) == 4
    wording(run.status, "OOM", "4 of 4 ranks")
    for name in VIEWS:
        found = frame(run, name)
        assert not any(value == 0 for value in found.total.values())
        as_text(found)
    assert run.status in frame(run, "overview").headline


def test_a_rank_without_samples_is_named(tmp_path: Path, wording: Wording) -> None:
    directory(tmp_path, 3, 20)
    (tmp_path / "gpu_power_1.csv").write_text("")
    run = open_run(str(tmp_path), jobs=1)
    wording(run.status, "OOM", "1 of 3 ranks")
    assert frame(run, "overview").total["sampled_energy_j"] is None


def test_a_foreign_stem_is_refused(tmp_path: Path) -> None:
    directory(tmp_path, 2, 20, ("gpu_power",))
    write(tmp_path, "board_power", 0, [1] * 20)
    run = open_run(str(tmp_path), jobs=1)
    ((path, reason),) = run.skipped
    assert path.endswith("board_power_0.csv")
    assert "isn't a known metric" in reason
    assert set(run.sampled) == {"power_w"}


@pytest.mark.sweep
def test_figures_of_nodes_are_of_nodes(tmp_path: Path, wording: Wording) -> None:
    directory(tmp_path, 16, 12, ("gpu_power",))
    for rank in (0, 8):
        for port in (0, 1):
            name = f"system_ib_rx_bytes_rank_{rank}_id_ib{port}.csv"
            lines = [f"{START_S + i},{1000 * i * (port + 1)}\n" for i in range(12)]
            (tmp_path / name).write_text("".join(lines))
        (tmp_path / f"system_memory_free_{rank}.csv").write_text(
            f"{START_S},5e9\n{START_S + 1},4e9"
        )
        (tmp_path / f"system_cpu_usage_rank_{rank}_id_3.csv").write_text(f"{START_S},5\n")
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.gpus) == 16
    found = {(each.rank, each.signal, each.label): each.summary for each in run.of_nodes}
    assert found[8, "ib_read_bytes", "ib1"].amount == 22_000
    assert found[0, "ib_read_bytes", "ib0"].amount == 11_000
    assert found[0, "host_free_bytes", ""].low == 4e9
    assert "ib_read_bytes" not in run.sampled
    assert len(run.skipped) == 2
    assert "states of a processor" in run.skipped[0][1]
    wording.among(frame(run, "overview").notes, "rank 8", "33 kB", "InfiniBand")


def test_gpus_are_those_of_traces_and_of_telemetry(tmp_path: Path) -> None:
    directory(tmp_path, 8, 40, ("gpu_power", "gpu_thermal"))
    for rank in (0, 4):
        about = {"rank": rank, "world_size": 8}
        members = {"distributedInfo": about, "baseTimeNanoseconds": START_S * 10**9}
        trace = TinyTrace(device=2, members=members)
        for number in range(30):
            trace.launch(GEMM, 50_000 * number, duration=30_000)
        trace.write(tmp_path / f"rank-{rank}.json")
    run = open_run(str(tmp_path), jobs=1)
    assert [gpu.rank for gpu in run.gpus] == list(range(8))
    assert sorted(run.traced) == [0, 4]
    assert set(run.sampled["power_w"]) == set(range(8))
    assert run.hardware is None
    found = frame(run, "power")
    assert list(found.labels) == [str(number) for number in range(8)]
    assert found.values["mean_power_w"].present().all()
    for name in ("", "overview", "kernels", "ranks", "timeline", "heatmap", "findings"):
        as_text(frame(run, name))
    info_text(run)


def test_a_run_of_samples_goes_through_the_cache(tmp_path: Path) -> None:
    folder = directory(tmp_path / "run", 2, 20)
    runs = [open_cached(str(folder)), open_cached(str(folder))]
    assert runs[0].sampled == runs[1].sampled
    texts = [as_text(frame(run, name)) for run in runs for name in VIEWS]
    assert texts[: len(VIEWS)] == texts[len(VIEWS) :]


@pytest.mark.sweep
def test_steadiness_compares_two_runs_of_samples(tmp_path: Path) -> None:
    one = open_run(str(directory(tmp_path / "one", 8, 20)), jobs=1)
    folder = directory(tmp_path / "two", 8, 20)
    for rank in range(8):
        write(folder, "sm_clock", rank, [1700 - rank] * 20)
    two = open_run(str(folder), jobs=1)
    from msgspec.structs import replace

    both = replace(two, others={one.name: one})
    view = View(two.name, name="determinism", by="figure", baseline=Baseline(one.name))
    found = frame_of(both, view)
    verdicts = dict(zip(found.labels, found.values["verdict"].words or (), strict=False))
    assert "steady_gfx_mhz" in verdicts


def test_a_log_of_nvidia_smi_is_a_run(tmp_path: Path, wording: Wording) -> None:
    lines = ["timestamp, index, power.draw [W], clocks.sm [MHz], temperature.gpu"]
    for second in range(30):
        for gpu in range(4):
            hot = 70 + 12 * (gpu == 2)
            stamp = f"2025/01/02 10:00:{second:02d}.000"
            lines.append(f"{stamp}, {gpu}, {500 + gpu}.00 W, {1700 - 200 * (gpu == 2)} MHz, {hot}")
    (tmp_path / "gpu.csv").write_text("\n".join([*lines, ""]))
    run = open_run(str(tmp_path), jobs=1)
    assert [gpu.index for gpu in run.gpus] == [0, 1, 2, 3]
    assert run.status == ""
    total = frame(run, "overview").total
    assert total["sampled_energy_j"] == pytest.approx(29 * (4 * 500 + 6))
    found = frame(run, "findings")
    assert any("GPU 2 is hotter" in sentence for sentence in found.labels)
    wording.among(found.labels, "GPU 2", "11.8 %")


def test_idle_gpus_are_called_idle_and_not_slow(tmp_path: Path, wording: Wording) -> None:
    lines = ["timestamp, index, power.draw [W], clocks.sm [MHz], utilization.gpu [%]"]
    for second in range(30):
        for gpu in range(6):
            watts, mhz, used = (90, 300, second == 7) if gpu in (1, 4) else (650 + gpu, 1700, 97)
            stamp = f"2025/01/02 10:00:{second:02d}.000"
            lines.append(f"{stamp}, {gpu}, {watts}.00 W, {mhz} MHz, {int(used)} %")
    (tmp_path / "gpu.csv").write_text("\n".join([*lines, ""]))
    found = frame(open_run(str(tmp_path), jobs=1), "findings")
    (note,) = found.labels
    wording(note, "GPUs 1 and 4", "idle", "1.0 %")


LOGS = [
    ("nvidia.csv", NVIDIA_CSV, {0: 131.17}),
    ("dmon.txt", DMON, {0: 131, 1: 132}),
    ("metric.csv", METRIC_CSV, {0: 700, 1: 701}),
    ("metric.json", metric_list(), {0: 700, 1: 700}),
    ("old.csv", OLD_MONITOR_CSV, {0: 650, 1: 640}),
    ("new.csv", NEW_MONITOR_CSV, {0: 650}),
    ("rocm.csv", ROCM_SMI_CSV, {0: 152, 1: 153}),
    ("zeus.csv", ZEUS_CSV, {0: 132.0000005, 1: 140.7500005}),
    ("own.csv", OWN_CSV, {0: 700, 1: 650}),
    ("dcgm.txt", stamped(DCGM_DMON), {0: 131.17, 1: 640.25}),
    ("dcgm.txt", DCGM_DMON, {0: 131.17, 1: 640.25}),
    ("metrics.prom", DCGM_SCRAPES, {0: 500.5, 1: 510.5}),
    ("dcgm.csv", DCGM_CSV, {0: 500.5, 1: 510.5}),
]
"""File, its text, and the mean power of its GPUs by hand: each sample holds until the next."""


@pytest.mark.few(5)
@pytest.mark.parametrize(("name", "text", "watts"), LOGS)
def test_a_log_of_each_tool_alone_is_a_run(
    name: str, text: str, watts: dict[int, float], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    run = open_run(str(tmp_path), jobs=1)
    assert run.is_sampled_only and not run.failed
    for view in VIEWS:
        found = frame(run, view)
        assert json.loads(as_json(found))["rows"] or view == "findings"
        assert not any("needs a trace" in note for note in found.notes), view
    overview = frame(run, "overview")
    power = overview.values["mean_power_w"]
    known = {int(gpu): power.at(at) for at, gpu in enumerate(overview.labels)}
    assert {gpu: known[gpu] for gpu in watts} == pytest.approx(watts, rel=1e-6)
    assert all(known[gpu] is None for gpu in known.keys() - watts.keys())


def test_samples_without_times_have_means_and_no_energy(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "dcgm.txt").write_text(DCGM_DMON)
    run = open_run(str(tmp_path), jobs=1)
    found = frame(run, "overview")
    assert "window_ns" not in found.values and "sampled_energy_j" not in found.values
    wording.among(found.notes, "no times", "numbered")
    # The device's own counter knows the energy, with or without times.
    own = frame_of(run, View(run.name, name="overview", columns=("counted_energy_j",)))
    assert [own.row(at)["counted_energy_j"] for at in (0, 1)] == [70, 64]
    # A file with times beside it is the clock; the other one is left out.
    (tmp_path / "nvidia.csv").write_text(NVIDIA_CSV)
    both = open_run(str(tmp_path), jobs=1)
    assert both.sampled["power_w"][0].is_timed
    assert any("no timestamps" in each.method for each in both.telemetry)


@pytest.mark.parametrize("gap", [0, 30])
def test_the_first_window_of_spans_counts_like_the_others(
    tmp_path: Path, gap: int, wording: Wording
) -> None:
    """Five windows of 10 s, of 5000 J and more; what was drawn between windows isn't known."""
    lines = ["start_time,window_name,elapsed_time,gpu0_energy,cpu0_energy"]
    begins = [1760000000 + 10 * at + gap * (at > 1) for at in range(5)]
    lines += [f"{begin},step,10.0,{5000 + at},7" for at, begin in enumerate(begins)]
    (tmp_path / "zeus.csv").write_text("\n".join([*lines, ""]))
    run = open_run(str(tmp_path), jobs=1)
    total = frame(run, "overview").total
    assert total["sampled_energy_j"] == pytest.approx(25_010)
    assert total["window_ns"] == (50 + gap) * 10**9
    assert total["mean_power_w"] == pytest.approx(500.2)
    assert frame(run, "").total["energy_j"] == (None if gap else pytest.approx(25_010))
    (note,) = run.telemetry[0].notes
    wording(note, "CPU 0", "35 J", "50 s", "0.7 W")


def test_samples_of_a_node_alone_show_in_every_view(tmp_path: Path) -> None:
    (tmp_path / "system_memory_used_3.csv").write_text("1726000000,600\n1726000001,610\n")
    run = open_run(str(tmp_path), jobs=1)
    for view in VIEWS:
        assert as_text(frame(run, view))


def test_one_window_is_a_run(tmp_path: Path) -> None:
    text = "start_time,window_name,elapsed_time,gpu0_energy\n1760000000,all,10.0,5000\n"
    (tmp_path / "zeus.csv").write_text(text)
    run = open_run(str(tmp_path), jobs=1)
    assert frame(run, "").total["energy_j"] == pytest.approx(5000)


@pytest.mark.parametrize(
    ("name", "gpus"), [("h100x8_nvidia_smi_no_index.csv", 8), ("mi300x_rocm_smi", 8)]
)
def test_real_logs_are_runs(name: str, gpus: int) -> None:
    if not (FOLDER / name).exists():
        pytest.skip("no real data")
    run = open_run(str(FOLDER / name), jobs=1)
    assert len(run.gpus) == gpus
    for view in VIEWS:
        assert as_text(frame(run, view))


def test_very_many_samples_share_rows_with_the_same_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(directory(tmp_path, 2, 100, ("gpu_power", "gpu_thermal")))
    whole = open_run(folder, jobs=1)
    monkeypatch.setattr(telemetry, "_MAX_INTERVALS", 50)
    fewer = open_run(folder, jobs=1)
    assert len(whole.table) == 2 * 99 and len(fewer.table) <= 50
    asked = ("power_w", "energy_j")
    rows = [frame(run, "", columns=asked) for run in (whole, fewer)]
    for place in range(2):
        assert rows[1].row(place) == pytest.approx(rows[0].row(place), rel=1e-9)


def test_a_view_of_telemetry_alone_has_no_parts_of_the_run(
    tmp_path: Path, wording: Wording
) -> None:
    run = open_run(str(directory(tmp_path, 2, 10)), jobs=1)
    notes = frame_of(run, View(run.name, ("0",), name="power")).notes
    wording.among(notes, "explore")
