"""Runs below directories: which there are, and the row of each."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import chopper_core as chopper
from chopper_core.analyses.gate import UNCHECKED, judge, parse_limit
from chopper_core.analyses.step_traffic import LINKS
from chopper_core.answers.opening import holds_several
from chopper_core.columns import METRICS
from chopper_core.extensions.runs import run_set as runs
from chopper_core.extensions.runs.figures import (
    LARGEST,
    LEAST,
    MEAN,
    RUN_COLUMNS,
    STEP_PARTS,
    TOTAL,
    TREE,
)
from chopper_core.extensions.runs.run_rows import Reading, RunRow
from chopper_core.extensions.runs.run_set import RunSet, open_runs
from chopper_core.ingest import discovery
from chopper_core.ingest.discovery import find_runs, holds_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.address import render
from chopper_core.model.charts import BarChart, Cards
from chopper_core.model.inputs import FoundRun
from chopper_core.model.settings import in_name
from chopper_core.model.table import empty_table
from chopper_core.model.view import View
from chopper_core.util.errors import DataError, NothingToShow, UsageError
from chopper_core.views.query import query
from chopper_tui.cli import main
from chopper_tui.commands.explore import address_of
from tests.align.traces import TinyTrace
from tests.charllm import directory
from tests.demo import as_kept, demo_run
from tests.programs.fuzz.seeds import _workers, small_trace
from tests.sources.telemetry.telemetry_texts import DCGM_DMON, stamped
from tests.wording import Wording

RUNS = ("fsdp1", "fsdp2")


@pytest.fixture
def demos(monkeypatch: pytest.MonkeyPatch) -> RunSet:
    """Both demo runs, as they are kept."""
    for name in RUNS:
        demo_run(name)
    as_kept(monkeypatch)
    return open_runs("demo_data", ["demo_data"], jobs=1)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A directory without the cache of the test below it."""
    (tmp_path / "sweep").mkdir()
    return tmp_path / "sweep"


def test_names_that_begin_like_others_are_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./~` isn't the home directory and `./@main` no baseline, whether typed or found."""
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    names = ("~", "~root", "@main")
    (here := tmp_path / "here").mkdir()
    for name in names:
        trace(here / name)
    monkeypatch.chdir(here)
    for name in names:
        run = open_run(f"./{name}", jobs=1)
        assert [source.path for source in run.sources] == [f"{name}/rank0.json"]
    found = find_runs(["."])
    assert sorted(each.name for each in found) == sorted(names)
    for each in found:
        (source,) = open_run(each.path, jobs=1).sources
        assert source.path == f"{each.name}/rank0.json"


def trace(folder: Path, rank: int = 0, step_us: int = 100, world: int = 1) -> None:
    """A trace of one rank with three iterations of one kernel."""
    tiny = TinyTrace(members={"distributedInfo": {"rank": rank, "world_size": world}})
    for step in range(3):
        at = step * step_us
        tiny.note(f"ProfilerStep#{step}", at, at + step_us - 1)
        tiny.launch("kernel", at + 10, duration=step_us // 2)
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write(folder / f"rank{rank}.json")


def all_rows(runs: RunSet) -> None:
    while runs.reading(True).waiting:
        pass


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--format", "json", "--limit", "200"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fsdp2", "fsdp1"])
def test_every_cell_is_a_figure_of_show(
    name: str, demos: RunSet, capsys: pytest.CaptureFixture[str]
) -> None:
    root = [name for name, each in METRICS.items() if each.reduces and name not in RUN_COLUMNS]
    table = shown(capsys, "runs", "demo_data", "--columns", ",".join([*RUN_COLUMNS, *root]))
    (row,) = [each for each in table["rows"] if each["name"] == name]  # type: ignore[attr-defined]
    path = f"demo_data/{name}"
    whole = shown(capsys, "show", f"{path}?columns={','.join(root)}")["total"]
    assert {each: row[each] for each in root} == {each: whole[each] for each in root}  # type: ignore[index]
    checked = check_cells(capsys, path, row, tokens=8 * 8192)
    parts = {
        each["name"]: each["part_ns"]
        for each in shown(capsys, "show", f"{path}?view=throughput&by=part")["rows"]  # type: ignore[attr-defined]
    }
    comm, copies, idle = (parts.pop(each, 0.0) for each in ("communication", "copies", "launch"))
    wanted = (sum(parts.values()), comm, copies, idle)
    assert [row[each] for each in STEP_PARTS] == pytest.approx(wanted, rel=1e-9)
    assert sum(wanted) == pytest.approx(row["step_time_ns"], rel=1e-9)
    assert checked == set(RUN_COLUMNS) - {"window_ns", "window_energy_j", *STEP_PARTS}


def test_runs_show_their_steps_in_parts_the_best_figures_and_findings(wording: Wording) -> None:
    def run(name: str, step: float, idle: float, **more: float | str) -> RunRow:
        parts = dict(zip(STEP_PARTS, (step - idle, 0.0, 0.0, idle), strict=True))
        figures = {"step_time_ns": step, "run_tokens_per_s": 1e12 / step, **parts, **more}
        return RunRow(name, name, figures=figures)

    rows = (
        run("slow", 3e6, 1e6, mfu_pct=30.0, straggler="GPU 1", j_per_token=2.0),
        run("fast", 2e6, 5e5, mfu_pct=41.0, j_per_token=1.0),
        run("as good", 2.002e6, 5e5, mfu_pct=40.9, j_per_token=1.5),
    )
    several = RunSet("all", empty_table(), (), (), reading=lambda wait: Reading(rows))
    frame = several.frame(View("all", name="runs"), wait=False)
    shown = [each.name for each in frame.columns]
    assert shown[:4] == ["gpus", "step_time_ns", "run_tokens_per_s", "mfu_pct"]
    assert "straggler" in shown and not set(STEP_PARTS) & set(shown)
    best = {name: rows.tolist() for name, rows in frame.best.items()}
    assert best["step_time_ns"] == best["mfu_pct"] == [False, True, True]
    assert best["j_per_token"] == [False, True, False]
    bars, cards = frame.charts
    assert isinstance(bars, BarChart) and isinstance(cards, Cards)
    assert {each.name: each.numbers.tolist() for each in bars.series} == {
        "compute": [2.0, 1.5, 1.502],
        "idle": [1.0, 0.5, 0.5],
    }
    wording(cards.cards[0].text, "fast is the fastest")
    (note,) = frame.headline
    wording(note, "3 runs: 3 ok", "fast is the fastest", "500000 tok/s")
    # While others are read, the best of those that are isn't the best of all.
    early = replace(several, reading=lambda wait: Reading(rows, 1))
    frame = early.frame(View("all", name="runs"), wait=False)
    assert not frame.best
    (headline,) = frame.headline
    wording(headline, "4 runs: 3 ok, 1 ")
    # Steps of other work aren't compared, and telemetry alone has none that is split.
    rows = (*rows[:1], RunRow("log", "log", {"sequence": 8}, figures={"step_time_ns": 1e6}))
    frame = several.frame(View("all", name="runs"), wait=False)
    assert "step_time_ns" not in frame.best
    (bars,) = (each for each in frame.charts if isinstance(each, BarChart))
    assert bars.series[-1].name == "not split"


@pytest.mark.sweep
def test_every_cell_of_telemetry_alone_is_a_figure_of_show(
    sweep: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    directory(sweep / "charllm_tp2", 2, 20)
    directory(sweep / "charllm_tp4", 2, 9)
    (sweep / "dcgm_tp2").mkdir()
    (sweep / "dcgm_tp2" / "dcgm.txt").write_text(stamped(DCGM_DMON))
    given = ("--set", "steps=2,gbs=64,seq=512", "--jobs", "1")
    table = shown(capsys, "runs", str(sweep), "--columns", ",".join(RUN_COLUMNS), *given)
    rows = {row["name"]: row for row in table["rows"]}  # type: ignore[attr-defined]
    for name, row in rows.items():
        is_short = name == "charllm_tp4"
        check_cells(capsys, str(sweep / name), row, tokens=64 * 512, batch=64)
        window = None
        if not is_short:
            document = shown(capsys, "show", f"{sweep / name}?view=overview")
            window = document["total"]["window_ns"]  # type: ignore[index]
        assert row["window_ns"] == window
        assert row["step_time_ns"] == (None if window is None else window / 2)
    short = chopper.runs(sweep, columns=["status", "reason"], jobs=1)
    assert short.row(1)["status"] == "short"
    wording(str(short.row(1)["reason"]), "9 samples of power of rank 0", "fewer than 10")


REDUCTIONS = {MEAN: np.mean, LEAST: np.min, LARGEST: np.max}


def check_cells(
    capsys: pytest.CaptureFixture[str],
    path: str,
    row: Mapping[str, Any],
    tokens: float,
    batch: float | None = None,
) -> set[str]:
    """Compare the cells of a row with what `show` prints of the run; returns those compared."""
    checked = set()
    for view in {each.view for each in RUN_COLUMNS.values() if each.view}:
        own = {name: each for name, each in RUN_COLUMNS.items() if each.view == view}
        for name, each in own.items():
            status = main(["show", f"{path}?view={view}&columns={each.name}", "--format", "json"])
            text = capsys.readouterr().out
            document = json.loads(text) if status == 0 else {"total": {}, "rows": []}
            expected = document["total"].get(each.name)
            cells = [other[each.name] for other in document["rows"] if each.name in other]
            if each.how != TOTAL:
                known = bool(cells) and None not in cells
                expected = float(REDUCTIONS[each.how](cells)) if known else None
            if expected is None:
                # Of telemetry alone the settings give the step time and the tokens.
                derived = name in ("step_time_ns", "tokens_per_s") or name.endswith("_step_bytes")
                assert row[name] is None or derived, (path, name)
            else:
                assert row[name] == pytest.approx(expected, rel=1e-12), (path, name)
            checked.add(name)
    step_s = None if row["step_time_ns"] is None else row["step_time_ns"] * 1e-9
    joules = row["j_per_step"]
    if joules is not None and "demo" in path:
        power = shown(capsys, "show", f"{path}?view=power&columns=iteration_energy_j")
        assert joules == power["total"]["iteration_energy_j"]  # type: ignore[index]
    by_hand = {
        "samples_per_s": batch and step_s and batch / step_s,
        "run_tokens_per_s": step_s and tokens / step_s,
        "j_per_token": joules and joules / tokens,
        "tokens_per_j": joules and tokens / joules,
        "j_per_sample": batch and joules and joules / batch,
        "samples_per_s_mj": batch and joules and step_s and batch / step_s / (joules * 1e-6),
    }
    for link in LINKS:
        ways = [row[f"{link}_{way}_step_bytes"] for way in ("in", "out")]
        by_hand[f"{link}_token_bytes"] = None if None in ways else sum(ways) / tokens
    for name, expected in by_hand.items():
        assert row[name] == (None if expected is None else pytest.approx(expected, rel=1e-9)), name
    checked |= {*by_hand, "j_per_step"}
    if row["straggler"] is not None:
        ranks = shown(capsys, "show", f"{path}?view=ranks&columns=delay_ns")
        delays = {f"GPU {other['name']}": other["delay_ns"] for other in ranks["rows"]}  # type: ignore[attr-defined]
        assert row["straggler"] == "GPU 5" and row["straggler_delay_ns"] == delays["GPU 5"]
    return checked | {"straggler", "straggler_delay_ns"}


def test_what_is_missing_has_its_reason(demos: RunSet, sweep: Path, wording: Wording) -> None:
    directory(sweep / "charllm_tp2", 2, 20, ("gpu_power",))
    trace(sweep / "traced_tp4")
    for where in ("demo_data", sweep):
        runs = open_runs("all", [str(where)], jobs=1)
        all_rows(runs)
        for row in runs.reading(False).rows:
            for name in RUN_COLUMNS:
                assert (name in row.figures) != bool(row.missing.get(name)), (row.name, name)
    frame = chopper.runs(sweep, columns=["gpu_mhz", "bubble_pct", "l2_hit_pct"], jobs=1)
    notes = "\n".join(frame.notes)
    wording.among(notes, "gpu_mhz of charllm_tp2", "some of the GPUs")
    wording.among(notes, "bubble_pct of charllm_tp2", "telemetry alone")
    assert "l2_hit_pct missing: " in notes


@pytest.mark.usefixtures("demos")
def test_views_of_runs_share_tokens_by_the_settings_too() -> None:
    """A layout that settings alone give counts in each view as in the table of runs."""
    view = "throughput&columns=tokens_per_s"
    told, rows = (
        chopper.runs("demo_data", set=["tp=2"], view=each, columns=["tokens_per_s"], jobs=1)
        for each in ("runs", view)
    )
    plain = chopper.runs("demo_data", view=view, jobs=1).values["tokens_per_s"].known()
    assert told.values["tokens_per_s"].known().tolist() == pytest.approx((plain / 2).tolist())
    assert rows.values["tokens_per_s"].known().tolist() == pytest.approx((plain / 2).tolist())


def test_derived_figures_follow_from_the_settings(demos: RunSet) -> None:
    by_hand = chopper.runs("demo_data", set=["gbs=64,seq=1024"], jobs=1).to_pandas()
    plain = chopper.runs("demo_data", jobs=1).to_pandas().iloc[1]
    row = by_hand.iloc[1]
    step_s = row["step_time_ns"] * 1e-9
    assert row["samples_per_s"] == pytest.approx(64 / step_s)
    assert row["run_tokens_per_s"] == pytest.approx(64 * 1024 / step_s)
    assert row["j_per_token"] == pytest.approx(row["j_per_step"] / (64 * 1024))
    assert row["samples_per_s_mj"] == pytest.approx(64 / step_s / (row["j_per_step"] * 1e-6))
    # Without them tokens come from the trace: 8192 of each of 8 GPUs.
    assert plain["run_tokens_per_s"] == pytest.approx(8 * 8192 / step_s)
    assert "samples_per_s" not in plain
    # GPUs of one replica share them.
    shared = chopper.runs("demo_data", set=["tp=4"], jobs=1).to_pandas().iloc[1]
    assert shared["run_tokens_per_s"] == pytest.approx(2 * 8192 / step_s)


def test_the_demo_is_faster_with_fsdp2(demos: RunSet) -> None:
    frame = chopper.runs("demo_data", base="fsdp1", jobs=1)
    change = 100 * (frame.row(1)["step_time_ns_x"] - 1)
    assert change == pytest.approx(-1.7, abs=0.05)
    assert frame.row(0)["step_time_ns_x"] == 1.0
    assert frame.labels == [*RUNS, "memory"]
    assert [frame.row(row)["fsdp"] for row in (0, 1)] == [1, 2]


def test_the_gate_has_the_same_change(demos: RunSet) -> None:
    base, run = (demos.others[f"demo_data/{name}"] for name in RUNS)
    found = judge(run, base, [parse_limit("step_time>+2%")])[0]
    assert found.change_pct == pytest.approx(-1.7, abs=0.05)
    all_rows(demos)
    frame = query(demos, View("demo_data"))
    assert [found.base, found.ours] == [frame.row(row)["step_time_ns"] for row in (0, 1)]
    # Two iterations of each can't tell.
    assert found.verdict == UNCHECKED


@pytest.mark.sweep
def test_a_run_that_lacks_a_column_has_no_figure_there(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_run("fsdp2")
    (sweep / "full").symlink_to(Path("demo_data/fsdp2").absolute())
    trace(sweep / "bare")
    for columns in ("gfx_mhz", "gfx_mhz,kernel_ns", "model_tflops"):
        found = shown(capsys, "show", f"{sweep}?view=kernels&columns={columns}", "--jobs", "1")
        rows = {row["name"]: row for row in found["rows"]}  # type: ignore[attr-defined]
        first = columns.partition(",")[0]
        assert rows["bare"][first] is None and rows["full"][first] > 0
    # As a matrix too, also where the first run is the one without.
    for view, column in (("overheads&by=gpu", "frequency_ns"), ("launch&by=gpu", "gfx_mhz")):
        found = shown(capsys, "show", f"{sweep}?view={view}&columns={column}", "--jobs", "1")
        row = found["rows"][0]  # type: ignore[index]
        assert row["bare"] is None and row["full"] > 0
    assert main(["show", f"{sweep}?view=kernels&columns=none_such", "--jobs", "1"]) == 2
    assert "none_such" in capsys.readouterr().err


def test_a_figure_divided_by_the_baseline_s_can_be_named(
    demos: RunSet, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["step_time_ns", "step_time_ns_x"]
    frame = chopper.runs("demo_data", base="fsdp1", columns=both, jobs=1)
    rows = [frame.row(at) for at in (0, 1)]
    assert rows[1]["step_time_ns_x"] == rows[1]["step_time_ns"] / rows[0]["step_time_ns"]
    frame = chopper.runs(
        "demo_data",
        base="best",
        columns=["mfu_pct_x"],
        sort="-step_time_ns_x",
        filter="run:fsdp1,fsdp2",
    )
    assert [each.name for each in frame.columns] == ["mfu_pct_x"]
    assert frame.labels == list(RUNS)
    with pytest.raises(UsageError, match="divided by that of a baseline: base=RUN"):
        chopper.runs("demo_data", columns=["step_time_ns_x"])


def test_best_of_a_group(demos: RunSet) -> None:
    whole = chopper.runs("demo_data", base="best", jobs=1).to_pandas()
    assert whole["step_time_ns_x"].min() == 1 and whole["step_time_ns_x"].max() > 1
    assert whole["run_tokens_per_s_x"].max() == 1 and whole["run_tokens_per_s_x"].min() < 1
    alone = chopper.runs("demo_data", by="fsdp", base="best", jobs=1).to_pandas()
    assert (alone["step_time_ns_x"] == 1).all()


def test_rows_are_sorted_filtered_and_grouped(demos: RunSet) -> None:
    assert chopper.runs("demo_data", sort="step_time_ns", jobs=1).labels == [
        "memory",
        "fsdp2",
        "fsdp1",
    ]
    assert chopper.runs("demo_data", filter="step_time_ns<750ms", jobs=1).labels == [
        "fsdp2",
        "memory",
    ]
    assert chopper.runs("demo_data", filter="run:fsdp1", jobs=1).labels == ["fsdp1"]
    frame = chopper.runs("demo_data", set=["fsdp1:cooling=z", "fsdp2:cooling=a"], by="cooling")
    assert frame.labels[:2] == ["fsdp2", "fsdp1"]
    with pytest.raises(UsageError, match="no run has the setting 'heat'"):
        chopper.runs("demo_data", by="heat", jobs=1)
    with pytest.raises(UsageError, match="none of these runs"):
        chopper.runs("demo_data", base="fsdp3", jobs=1)
    with pytest.raises(UsageError, match="unknown column 'steptime'"):
        chopper.runs("demo_data", columns=["steptime"], jobs=1)


def test_settings_are_named_as_headings_and_names_write_them(sweep: Path, wording: Wording) -> None:
    for tp in (1, 2, 4):
        for size in (8, 16):
            trace(sweep / f"llama_TP{tp}_mbs{size}", step_us=100 * tp + size)

    def shown(text: str, **options: Any) -> list[str]:
        return chopper.runs(sweep, filter=text, jobs=1, **options).labels

    both = ["llama_TP2_mbs8", "llama_TP2_mbs16", "llama_TP4_mbs8", "llama_TP4_mbs16"]
    assert shown("tp:2,4") == shown("TP:2,4 status:ok") == both
    assert shown("mbs:8 tp:4") == shown("microbatch:8 TP:4") == ["llama_TP4_mbs8"]
    assert shown("tp:3") == []
    (note, *_) = chopper.runs(sweep, filter="tp:two", jobs=1).notes
    wording(note, "tp:two", "number")
    by = [
        chopper.runs(sweep, by=name, jobs=1) for name in ("microbatch", "mbs", "micro_batch_size")
    ]
    assert [frame.labels for frame in by] == [by[0].labels] * 3
    columns = chopper.runs(sweep, columns=["mbs", "TP"], sort="-mbs", jobs=1)
    assert [each.name for each in columns.columns] == ["microbatch", "tp"]
    assert columns.labels[0].endswith("mbs16")


def test_runs_are_found_at_any_depth(sweep: Path) -> None:
    for name in ("llama/llama_1_mbs1", "llama/llama_1_mbs2", "gpt/tp2/traces", "gpt/tp4/traces"):
        trace(sweep / name)
    (sweep / "llama" / "llama_1_mbs4").mkdir()
    (sweep / "llama" / "logs").mkdir()
    (sweep / ".hidden").mkdir()
    trace(sweep / ".hidden")
    found = find_runs([str(sweep)])
    names = [(each.name, each.is_empty) for each in found]
    assert names == [
        ("gpt/tp2", False),
        ("gpt/tp4", False),
        ("llama/llama_1_mbs1", False),
        ("llama/llama_1_mbs2", False),
        ("llama/llama_1_mbs4", True),
    ]
    assert holds_runs(str(sweep))
    assert not holds_runs(str(sweep / "gpt" / "tp2"))


def test_a_directory_is_searched_once_for_each_state_of_it(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    search = find_runs

    def counted(names: Sequence[str]) -> list[FoundRun]:
        searched.extend(names)
        return search(names)

    monkeypatch.setattr(discovery, "find_runs", counted)

    def found() -> list[str]:
        searched.clear()
        assert holds_several(str(sweep), use_cache=True)
        whole = open_runs("set", [str(sweep)], jobs=1)
        while whole.reading(True).waiting:
            pass
        return [row.name for row in whole.reading(False).rows]

    trace(sweep / "mbs1")
    trace(sweep / "mbs2")
    assert found() == ["mbs1", "mbs2"] and len(searched) == 1
    assert found() == ["mbs1", "mbs2"] and not searched
    (sweep / "mbs4").mkdir()  # A run that wrote nothing.
    assert found() == ["mbs1", "mbs2", "mbs4"] and searched
    trace(sweep / "mbs4")
    assert len(found()) == 3 and searched
    assert len(found()) == 3 and not searched


def test_parts_of_one_run_are_no_runs(sweep: Path) -> None:
    trace(sweep / "node0", 0)
    trace(sweep / "node1", 1)
    assert not holds_runs(str(sweep))
    assert not holds_runs(f"{sweep}/node0,{sweep}/node1")
    assert [each.path for each in find_runs([str(sweep)])] == [str(sweep)]
    # The same rank twice: two runs.
    trace(sweep / "node2", 1)
    assert len(find_runs([str(sweep)])) == 3
    # Ranks that differ, but so do the settings.
    trace(sweep / "b" / "tp1", 0)
    trace(sweep / "b" / "tp2", 1)
    assert holds_runs(str(sweep / "b"))


def test_a_failed_run_is_a_row_with_its_reason(sweep: Path, wording: Wording) -> None:
    trace(sweep / "mbs1")
    trace(sweep / "mbs2")
    (sweep / "mbs2" / "rank0.json").write_text('{"traceEvents": [')
    (sweep / "mbs4").mkdir()
    frame = chopper.runs(sweep, jobs=1)
    rows = {name: frame.row(at) for at, name in enumerate(frame.labels)}
    assert rows["mbs1"]["status"] == "ok" and rows["mbs1"]["step_time_ns"] > 0
    assert rows["mbs2"]["status"] == rows["mbs4"]["status"] == "failed"
    assert "rank0.json" in rows["mbs2"]["reason"]
    wording(rows["mbs4"]["reason"], "no trace", "no telemetry")
    assert rows["mbs4"]["microbatch"] == 4
    for name in ("mbs2", "mbs4"):
        assert rows[name]["step_time_ns"] is None and rows[name]["gpus"] is None
    # Any metric of the root, too, and in parallel.
    frame = chopper.runs(sweep, columns=["kernel_ns", "status"], jobs=2, cache=False)
    assert [frame.row(at)["kernel_ns"] for at in range(3)] == [50_000, None, None]


def test_a_row_is_read_once_and_again_when_a_file_changes(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        trace(sweep / name)
    first = chopper.runs(sweep, jobs=1)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("opened again")

    with monkeypatch.context() as patch:
        patch.setattr("chopper_core.extensions.runs.run_set.open_cached", fail)
        assert chopper.runs(sweep, jobs=1).to_json() == first.to_json()
    (sweep / "b" / "rank0.json").unlink()
    trace(sweep / "b", step_us=200)
    changed = chopper.runs(sweep, jobs=1)
    assert changed.row(0) == first.row(0)
    assert changed.row(1)["step_time_ns"] != first.row(1)["step_time_ns"]


def test_rows_are_there_while_others_are_read(sweep: Path) -> None:
    for name in ("a1", "a2", "a3"):
        trace(sweep / name)
    runs = open_runs("all", [str(sweep)], jobs=1)
    seen = [len(runs.reading(False).rows)]
    while runs.reading(False).waiting:
        seen.append(len(runs.reading(True).rows))
    assert seen[-1] == 3 and seen == sorted(seen)
    assert query(runs, View("all")).labels == ["a1", "a2", "a3"]
    assert not query(runs, View("all")).is_pending


def test_telemetry_alone_has_the_figures_of_its_window(sweep: Path) -> None:
    for name, watts in (("gpt3_1_00000", 400.0), ("gpt3_2_00000", 500.0)):
        (sweep / name).mkdir()
        for rank in range(2):
            lines = [f"{1726000000 + 0.05 * at:.6f},{watts + 10 * rank}" for at in range(201)]
            (sweep / name / f"gpu_power_{rank}.csv").write_text("\n".join(lines) + "\n")
    frame = chopper.runs(sweep, set=["gbs=128,steps=1"], jobs=1)
    row = frame.row(0)
    assert [frame.row(at).get("status", "ok") for at in (0, 1)] == ["ok", "ok"]
    # By hand: 10 s at 400 and 410 W.
    assert row["window_ns"] == pytest.approx(10e9, rel=1e-6)
    assert row["window_energy_j"] == row["j_per_step"] == pytest.approx(8100, rel=1e-6)
    assert row["gpu_power_w"] == pytest.approx(405) and row["peak_power_w"] == 410
    assert row["samples_per_s"] == pytest.approx(12.8, rel=1e-6)
    assert row["samples_per_s_mj"] == pytest.approx(12.8 / 8100e-6, rel=1e-6)
    without = chopper.runs(sweep, columns=["step_time_ns", "window_ns"], jobs=1)
    assert without.row(0)["step_time_ns"] is None


def test_directories_without_runs(sweep: Path) -> None:
    with pytest.raises(DataError, match="holds no runs"):
        chopper.runs(sweep)
    with pytest.raises(DataError, match="does not exist"):
        chopper.runs(sweep / "nowhere")


def test_the_command_prints_every_format(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x_tp2", "x_tp4"):
        trace(sweep / name)
    shutil.rmtree(sweep / "x_tp8", ignore_errors=True)
    for format_name, expected in (
        ("text", "step µs"), ("csv", "name,tp,gpus,step_time_ns"), ("markdown", "| x\\_tp2 | 2 |"),
    ):  # fmt: skip
        assert main(["runs", str(sweep), "--jobs", "1", "--format", format_name]) == 0
        assert expected in capsys.readouterr().out
    # The directory itself is an address.
    assert main(["show", str(sweep), "--format", "csv", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("name,tp,gpus,step_time_ns")
    address = f"{sweep}?view=runs&by=tp&base=best"
    assert main(["show", address, "--format", "csv", "--jobs", "1"]) == 0
    assert "step_time_ns_x" in capsys.readouterr().out


def test_the_address_of_a_set_brings_its_settings_back(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("llama_2-4_m1", "llama_4-2_m2"):
        trace(sweep / name)
    given = ("--set", "*m1:cooling=a;b %", "--set", "seq=512", "--name", "{model}_{tp}-{pp}_m{mbs}")
    columns = ("--columns", "model,tp,pp,cooling,sequence", "--sort=-tp", "--jobs", "1")
    first = shown(capsys, "runs", str(sweep), *given, *columns)
    assert first["rows"][0]["tp"] == 4 and first["rows"][1]["cooling"] == "a;b %"  # type: ignore[index]
    again = shown(capsys, "show", str(first["address"]), "--jobs", "1")
    assert again == first
    frame = chopper.runs(
        sweep, set=["seq=512"], name=["{model}_{tp}-{pp}_m{mbs}"], view="sweep&by=tp", jobs=1
    )
    assert frame.labels == ["2", "4"] and frame.level == "TP"
    told = chopper.runs(sweep, set=["gbs=8"], view="findings", jobs=1)
    assert "set=gbs=8" in shown_address(told, 0)


def shown_address(frame: chopper.ResultFrame, row: int) -> str:
    return render(frame.target(row))


def test_a_layout_of_all_runs_and_of_each_side(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ranks in (("a", 2), ("b", 4)):
        for rank in range(ranks):
            trace(sweep / name, rank, world=ranks)
    cells = chopper.runs(sweep, parallel="tp=2", columns=["tp", "dp"], jobs=1)
    assert [cells.row(at) for at in (0, 1)] == [{"tp": 2, "dp": None}, {"tp": 2, "dp": 2}]
    # The row of one layout isn't that of another, nor that without.
    assert chopper.runs(sweep, parallel="tp=1", columns=["dp"], jobs=1).row(1) == {"dp": 4}
    assert "tp" not in chopper.runs(sweep, jobs=1).values
    sides = [str(sweep / "a"), str(sweep / "b")]
    assert main(["diff", *sides, "--parallel", "tp=4", "--columns", "elapsed_ns"]) == 2
    assert f"{sides[0]}: tp=4: " in capsys.readouterr().err
    both = shown(capsys, "diff", *sides, "--parallel", "tp=4", "--base-parallel", "tp=2")
    assert "parallel=tp=4&base_parallel=tp=2" in str(both["address"])
    assert shown(capsys, "show", str(both["address"])) == both


def loose(folder: Path, name: str, rank: int | None, world: int = 2, step_us: int = 100) -> None:
    trace(folder / "made", rank or 0, step_us, world)
    made = folder / "made" / f"rank{rank or 0}.json"
    text = made.read_text()
    document = json.loads(text)
    if rank is None:
        del document["distributedInfo"]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    shutil.rmtree(folder / "made")


def test_unrelated_traces_in_one_directory_are_several_runs(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loose(sweep, "baseline.json", None)
    loose(sweep, "tuned.pt.trace.json", None, step_us=80)
    (sweep / "notes.json").write_text('{"tp": 2}')
    found = find_runs([str(sweep)])
    assert [each.name for each in found] == ["baseline", "tuned"] and holds_runs(str(sweep))
    document = shown(capsys, "show", f"{sweep}?view=runs&columns=step_time_ns", "--jobs", "1")
    assert [row["name"] for row in document["rows"]] == ["baseline", "tuned"]  # type: ignore[attr-defined]
    assert [row["step_time_ns"] for row in document["rows"]] != [None, None]  # type: ignore[attr-defined]


def test_ranks_that_clash_are_of_several_steps(sweep: Path) -> None:
    # As torch's TensorBoard handler writes them: host_process.time, the rank only inside.
    for at, (rank, stamp) in enumerate([(0, 100), (1, 101), (0, 200), (1, 201)]):
        loose(sweep, f"node1_4{rank}.1700000{stamp}.pt.trace.json", rank, step_us=100 + at)
    found = find_runs([str(sweep)])
    assert [len(each.path.split(",")) for each in found] == [2, 2]
    frame = chopper.runs(sweep, columns=["gpus"], jobs=1)
    assert [frame.row(at)["gpus"] for at in (0, 1)] == [2, 2]


def test_ranks_that_differ_are_one_run_and_worlds_that_differ_are_not(sweep: Path) -> None:
    for rank in range(2):
        loose(sweep / "..", f"sweep/host_{rank}.17.pt.trace.json", rank)
    assert [each.path for each in find_runs([str(sweep)])] == [str(sweep)]
    assert not holds_runs(str(sweep))
    loose(sweep, "other_2.18.pt.trace.json", 2, world=4)
    assert len(find_runs([str(sweep)])) == 2
    # Beside directories with runs, each is one.
    trace(sweep / "deeper" / "tp2")
    assert find_runs([str(sweep)])[0].name == "deeper/tp2"


@pytest.mark.parametrize("folders", ["rank{rank}", "node{rank}/profile", "{rank}/out", "r{rank}"])
def test_ranks_that_only_traces_tell_are_one_run_in_any_directories(
    folders: str, sweep: Path
) -> None:
    # As torch's TensorBoard handler writes them where each rank has a directory.
    for rank in range(3):
        loose(sweep, f"{folders.format(rank=rank)}/host_4{rank}.17.pt.trace.json", rank)
    assert [each.path for each in find_runs([str(sweep)])] == [str(sweep)]
    assert open_run(str(sweep), jobs=1).table.gpu.max() == 2
    # The same rank again, or a trace without one, is another run's.
    loose(sweep, f"{folders.format(rank=3)}/host_43.17.pt.trace.json", 2)
    assert len(find_runs([str(sweep)])) == 4
    loose(sweep, f"{folders.format(rank=3)}/host_43.17.pt.trace.json", 3, world=9)
    assert len(find_runs([str(sweep)])) == 4


def test_directories_named_for_ranks_are_one_run_and_repetitions_are_not(sweep: Path) -> None:
    for rank in range(2):
        loose(sweep, f"job/rank_{rank}/trace.json", None)
        loose(sweep, f"repeated/r{rank}/trace.json", None)
    found = [each.name for each in find_runs([str(sweep)])]
    assert found == ["job", "repeated/r0", "repeated/r1"]


@pytest.mark.parametrize("name", ["n{node}/rank{local}.json", "n{node}_rank{local}.json"])
def test_ranks_named_by_their_place_in_a_node_are_one_run(sweep: Path, name: str) -> None:
    """torchrun's LOCAL_RANK repeats on each node; distributedInfo has the rank of the world."""
    for rank in range(4):
        loose(sweep, name.format(node=rank // 2, local=rank % 2), rank, world=4)
    assert [each.path for each in find_runs([str(sweep)])] == [str(sweep)]
    run = open_run(str(sweep), jobs=1)
    assert run.ranks == (0, 1, 2, 3)
    # The same job again, or without one of its ranks, is no part of it.
    loose(sweep, name.format(node=2, local=0), 0, world=4)
    assert len(find_runs([str(sweep)])) > 1


def test_worlds_of_a_sweep_are_no_nodes_of_one_job(sweep: Path) -> None:
    for job in range(2):
        for rank in range(2):
            loose(sweep, f"job{job}/rank{rank}.json", rank, world=2)
    assert len(find_runs([str(sweep)])) == 2


VLLM = "dp0_pp0_tp{0}_dcp0_ep{0}_rank{0}.177300000000000{0}.pt.trace.json"


def test_a_trace_of_a_process_without_gpus_is_left_out(sweep: Path, wording: Wording) -> None:
    """As vLLM 0.17 writes them: coordinates of a rank in its name, and the front end's trace."""
    for rank in range(4):
        loose(sweep, VLLM.format(rank), None)
    front = sweep / "host1_9000.async_llm.1773000000000009.pt.trace.json"
    tiny = TinyTrace()
    tiny.op("aten::empty", 10, 20)
    tiny.write(front)
    assert [each.path for each in find_runs([str(sweep)])] == [str(sweep)]
    run = open_run(str(sweep), jobs=1)
    assert run.ranks == (0, 1, 2, 3)
    wording(dict(run.skipped)[str(front)], "no GPU work")
    assert run.parallel is not None and run.parallel.text == "tp 4 × ep 4"
    assert run.parallel.coordinates[3] == {"ep": 3, "tp": 3}


def test_launches_without_any_activity_are_counted(tmp_path: Path) -> None:
    tiny = TinyTrace()
    for at in range(3):
        tiny.call("hipLaunchKernel", 10 * at, at + 1)
    tiny.call("hipDeviceSynchronize", 50, 9)
    with pytest.raises(DataError, match="has 3 launches and no GPU activity: the profiler rec"):
        open_run(str(tiny.write(tmp_path / "dead.json")), jobs=1)


def test_coordinates_in_names_are_no_sizes() -> None:
    assert in_name("llama_tp8-pp2_mbs4") == {"tp": 8, "pp": 2, "microbatch": 4}
    assert in_name(VLLM.format(3)) == {}
    assert in_name("dp1_pp1_tp1_ep3_rank7") == {}
    assert in_name("1747-TP-11-DP-0-EP-11") == {}


def test_a_link_to_the_trace_next_to_it_is_no_run(sweep: Path) -> None:
    loose(sweep, "host_1.json", 0)
    loose(sweep, "host_2.json", 1)
    (sweep / "latest.json").symlink_to("host_1.json")
    assert [each.path for each in find_runs([str(sweep)])] == [str(sweep)]
    assert len(open_run(str(sweep), jobs=1).sources) == 2


def test_files_named_together_pass_the_test_of_a_directory(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loose(sweep, "tuned.json", None, step_us=80)
    loose(sweep, "control.json", None)
    base, other = str(sweep / "tuned.json"), str(sweep / "control.json")
    assert holds_runs(f"{base},{other}")
    assert address_of([base, other]) == f"{other}?base={base}"
    assert len(shown(capsys, "show", f"{base},{other}?view=runs")["rows"]) == 2  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 runs: control, tuned"):
        chopper.open(f"{base},{other}")
    # Ranks of one job are one run; of jobs of other sizes, in any directory, they are not.
    for rank in range(2):
        loose(sweep, f"rank{rank}.json", rank)
        loose(sweep / "..", f"rank{rank}_of_4.json", rank, world=4)
    ranks = [str(sweep / f"rank{rank}.json") for rank in range(2)]
    assert address_of(ranks) == ",".join(ranks)
    assert not holds_runs(",".join(ranks))
    assert holds_runs(f"{ranks[0]},{sweep}/../rank1_of_4.json")
    # Telemetry belongs to the traces that it is named with.
    (sweep / "power.csv").write_text(stamped(DCGM_DMON))
    assert not holds_runs(f"{base},{sweep}/power.csv")


def test_what_a_shell_makes_of_a_directory_is_the_directory(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`chopper RUN/*` took a run's telemetry for another run, and a store's tables for data."""
    run = sweep / "run"
    trace(run)
    (run / "telemetry").mkdir()
    (run / "telemetry" / "power.csv").write_text(stamped(DCGM_DMON))
    entries = sorted(map(str, run.iterdir()))
    assert address_of(entries) == str(run)
    assert address_of(entries[:1]) == entries[0]
    trace(sweep / "other")
    runs = [str(sweep / "other"), str(run)]
    assert address_of(runs) == f"{run}?base={sweep / 'other'}", "directories alone are runs"


def test_a_file_of_a_store_is_the_store(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace(sweep / "run")
    store = tmp_path / "store"
    assert main(["ingest", str(sweep / "run"), "-o", str(store)]) == 0
    parts = sorted(map(str, store.glob("[!.]*")))
    assert len(parts) > 2 and address_of(parts) == str(store)
    assert [each.path for each in find_runs(parts)] == [str(store)]
    capsys.readouterr()
    whole = shown(capsys, "show", str(store))["total"]
    assert whole and all(shown(capsys, "show", part)["total"] == whole for part in parts)
    with pytest.raises(SystemExit):
        main(["show", *parts])
    error = capsys.readouterr().err
    assert f"not {len(parts)} paths" in error and len(error) < 200
    # A file that only has such a name is read as it is.
    (sweep / "run.json").write_text((sweep / "run" / "rank0.json").read_text())
    assert [each.path for each in find_runs([str(sweep / "run.json")])] == [str(sweep / "run.json")]


def test_links_lead_to_each_run_once(sweep: Path) -> None:
    trace(sweep / "tp2")
    trace(sweep / "run one")
    (sweep / "again").symlink_to("tp2")
    (sweep / "loop").mkdir()
    (sweep / "loop" / "self").symlink_to("..")
    (sweep / "dangling").symlink_to("nowhere")
    assert [each.name for each in find_runs([str(sweep)])] == ["run one", "tp2"]


def check_row(row: RunRow) -> None:
    """Compare the figures of a row with the views of its run, opened alone, and their reasons."""
    run = open_run(row.path)
    for name, each in RUN_COLUMNS.items():
        if not each.view:
            continue
        view = "" if each.view == TREE else each.view
        asked = View(row.path, name=view, columns=(each.name,), is_total=view != "overheads")
        try:
            frame = query(run, asked)
        except (NothingToShow, UsageError) as error:
            assert name not in row.figures, (row.name, name)
            is_reason = isinstance(error, NothingToShow) and not run.is_sampled_only
            assert not is_reason or row.missing[name] == str(error), (row.name, name)
            continue
        number = frame.total.get(each.name)
        if each.how != TOTAL:
            values = frame.values[each.name]
            is_known = len(values) > 0 and values.present().all()
            number = REDUCTIONS[each.how](values.numbers) if is_known else None
        if name not in row.figures:
            # Matrix kernels without FLOPs would make it too small.
            is_unknown = row.missing[name].endswith("of matrix kernels has unknown FLOPs")
            assert number is None or is_unknown, (row.name, name)
            why = frame.columns[0].missing_because or "the run lacks it on some of its GPUs"
            assert is_unknown or run.is_sampled_only or row.missing[name] == why, (row.name, name)
        else:
            assert row.figures[name] == number, (row.name, name)


def test_rows_say_what_the_opened_runs_say(sweep: Path) -> None:
    """Runs of one and of two ranks, torn, without annotations, calls or shapes, and at random."""
    for name in ("whole", "both"):
        (sweep / name).mkdir()
    whole = json.loads(small_trace().write(sweep / "whole" / "rank0.json").read_text())
    events = whole["traceEvents"]

    def write(name: str, kept: Sequence[Mapping[str, Any]]) -> None:
        (sweep / name).mkdir()
        (sweep / name / "rank0.json").write_text(json.dumps({**whole, "traceEvents": kept}))

    for rank in range(2):
        small_trace(rank).write(sweep / "both" / f"rank{rank}.json")
    text = (sweep / "whole" / "rank0.json").read_bytes()
    for share in (30, 60, 90):
        (sweep / f"torn{share}").mkdir()
        (sweep / f"torn{share}" / "rank0.json").write_bytes(text[: len(text) * share // 100])
    for category in ("user_annotation", "cuda_runtime", "cpu_op", "python_function"):
        write(f"without_{category}", [each for each in events if each.get("cat") != category])
    later = [each for each in events if each["ph"] != "X" or each["ts"] > 900]
    write("late", later)
    chance = random.Random(38)
    for number in range(8):
        write(f"drop{number}", [each for each in events if chance.random() > 0.1 + number / 20])
    found = open_runs("all", [str(sweep)], jobs=1, use_cache=False)
    all_rows(found)
    rows = found.reading(False).rows
    assert {row.status for row in rows} >= {"ok", "partial", "short"}
    for row in rows:
        if row.status != "failed":
            check_row(row)


@pytest.mark.sweep
def test_a_run_that_is_being_written_is_partial(sweep: Path, wording: Wording) -> None:
    for name in ("mbs1", "mbs2"):
        trace(sweep / name)
    file = sweep / "mbs2" / "rank0.json"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    frame = chopper.runs(sweep, columns=["status", "reason"], jobs=1)
    assert frame.row(0) == {"status": "ok", "reason": None}
    assert frame.row(1)["status"] == "partial"
    wording(str(frame.row(1)["reason"]), "rank0.json")
    # Once it is whole, so is the row.
    trace(sweep / "mbs2")
    assert chopper.runs(sweep, columns=["status"], jobs=1).row(1) == {"status": "ok"}


def test_schedules_of_two_jobs_are_two_runs(tmp_path: Path) -> None:
    names = ["trace-A.parquet", "trace-B.parquet"]
    for name in names:
        _workers(tmp_path).rename(tmp_path / name)
    assert [each.name for each in find_runs([str(tmp_path)])] == names
    (tmp_path / "trace-B.parquet").unlink()
    assert not holds_runs(str(tmp_path))


def test_a_table_of_runs_is_filtered_by_its_headings(sweep: Path) -> None:
    trace(sweep / "mbs1")
    trace(sweep / "mbs2", step_us=300)
    runs = open_runs(str(sweep), [str(sweep)], jobs=1)
    all_rows(runs)

    def named(text: str) -> list[str]:
        return list(query(runs, View(str(sweep), name="runs", filter=text)).labels)

    assert named("step µs > 200") == named("microbatch=2") == ["mbs2"]
    assert named("Status=OK") == ["mbs1", "mbs2"]
    frame = query(runs, View(str(sweep), name="runs", filter="status=fine", columns=("Step µs",)))
    assert frame.columns[0].name == "step_time_ns" and "status is ok" in frame.notes[0]


def test_the_newest_runs_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        folder = tmp_path / f"run{number}"
        trace(folder)
        at_s = 1_000 + (number * 7) % 5
        os.utime(folder, (at_s, at_s))
    monkeypatch.setattr(runs, "read_as_done", lambda paths, *_: [read.extend(paths)] * 0)
    read: list[Path] = []
    found = find_runs([str(tmp_path)])
    list(runs.read_rows(found, use_cache=False))
    times = [path.stat().st_mtime for path in read]
    assert len(times) == 4 and times == sorted(times, reverse=True)
