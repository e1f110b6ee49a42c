"""A run opens whatever is taken away or broken; what is then missing is said, and never zero."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.column_names import BREAKDOWN, Match
from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render import render_frame
from chopper_core.render.info import describe
from chopper_core.render.info import info_json as info_json
from chopper_core.render.info import info_text as info_text
from chopper_core.util.errors import DataError, UsageError
from chopper_core.views.query import query
from chopper_core.views.shared.row_columns import node_figures
from tests.ingest.simulated import Simulated
from tests.wording import Wording

NS_PER_DAY = 86_400 * 10**9
FINE, COARSE = "telemetry/gpu_metrics.csv.gz", "telemetry/amd_smi_monitor.csv"
SIGNALS = ("gfx_mhz", "power_w", "hotspot_c", "gfx_util_pct", "throttle_pct", "energy_j")
OF_COUNTERS = ("extra_inst_ns", "mfma_loss_ns", "vector_ns", "contention_ns")
Change = Callable[[Path], object]
Altered = Callable[[Change], Run]


@pytest.fixture
def altered(small: Simulated, tmp_path: Path) -> Altered:
    """Opens a copy of a small run after a change to its files."""

    def make(change: Change) -> Run:
        folder = tmp_path / "run"
        shutil.copytree(small.folder, folder)
        change(folder)
        return open_run(str(folder), jobs=1)

    return make


def remove(*names: str) -> Change:
    """Removes files and folders, which must be there."""

    def change(folder: Path) -> None:
        for name in names:
            paths = list(folder.glob(name))
            assert paths, name
            for path in paths:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def whole(run: Run, *columns: str) -> dict[str, Any]:
    """Figures of the whole run."""
    return of_node(run, (), columns)


def of_node(run: Run, path: tuple[str, ...], columns: Iterable[str]) -> dict[str, Any]:
    """Figures of one node, as numbers."""
    known = node_figures(run, View(run.name, path), columns)
    return {name: values.at(0) for name, values in known.items()}


def missing(run: Run) -> str:
    return " | ".join(describe(run)["missing"])


def telemetry_of(run: Run, name: str) -> TelemetrySource:
    (found,) = (each for each in run.telemetry if name in each.path)
    return found


def check_is_whole_without(run: Run) -> None:
    """What the traces alone give is there, adds up, and can be shown and told in every form."""
    names = (*BREAKDOWN, *SIGNALS, "compute_ns", "overlap_ns", "kernels")
    view = View(run.name, columns=names, is_total=True)
    frame = query(run, view)
    for number in range(len(frame)):
        row = frame.row(number)
        charged = (row["compute_ns"] or 0) + (row["overlap_ns"] or 0)
        assert sum(row[part] or 0 for part in BREAKDOWN) == charged > 0
    shown = json.loads(render_frame(frame, "json"))
    assert shown["total"]["kernels"] > 500
    for form in ("text", "markdown", "csv"):
        assert render_frame(frame, form)
    json.loads(info_json(run))
    assert info_text(run)


def json_rows(run: Run, *columns: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        render_frame(query(run, View(run.name, columns=columns)), "json")
    )["rows"]
    return found


def test_with_everything_nothing_but_what_was_never_there_is_missing(small: Simulated) -> None:
    check_is_whole_without(small.run)
    assert missing(small.run) == ""
    row = whole(small.run, *SIGNALS, *BREAKDOWN, "SQ_WAVES")
    assert all(value is not None for value in row.values())
    assert not small.run.failed


@pytest.mark.sweep
def test_without_counters(altered: Altered) -> None:
    run = altered(remove("counters"))
    check_is_whole_without(run)
    assert run.counters == ()
    assert "no hardware counters" in missing(run)
    row = whole(
        run, *OF_COUNTERS, "theoretical_ns", "frequency_ns", "unmodelled_ns", "mfma_util_pct"
    )
    assert {row[part] for part in (*OF_COUNTERS, "mfma_util_pct")} == {None}
    # What needs no counters is still told.
    assert row["theoretical_ns"] > 0 and row["frequency_ns"] > 0 and row["unmodelled_ns"] > 0
    assert all(row[part] is None for row in json_rows(run, *OF_COUNTERS) for part in OF_COUNTERS)


@pytest.mark.sweep
def test_without_one_pass_its_counters_are_missing_and_the_others_not(
    altered: Altered, small: Simulated
) -> None:
    run = altered(remove("counters/pass_2"))
    check_is_whole_without(run)
    assert whole(run, "SQ_WAVES", "TCC_EA0_RDREQ_sum") == whole(
        small.run, "SQ_WAVES", "TCC_EA0_RDREQ_sum"
    )
    with pytest.raises(UsageError, match=r"rocprofv3 --pmc SQ_INSTS_VALU_MFMA_MOPS_BF16"):
        whole(run, "SQ_INSTS_VALU_MFMA_MOPS_BF16")
    assert whole(run, "extra_inst_ns")["extra_inst_ns"] is None
    assert [source.counters for source in run.counters] == [8, 8]


@pytest.mark.sweep
def test_without_the_first_pass_the_others_still_match(altered: Altered) -> None:
    run = altered(remove("counters/pass_1"))
    check_is_whole_without(run)
    assert {source.gpu for source in run.counters} == {0, 1}
    assert whole(run, "SQ_INSTS_VALU_MFMA_MOPS_BF16")["SQ_INSTS_VALU_MFMA_MOPS_BF16"] > 0
    with pytest.raises(UsageError, match="GRBM_GUI_ACTIVE"):
        whole(run, "GRBM_GUI_ACTIVE")
    assert whole(run, "contention_ns")["contention_ns"] is None


@pytest.mark.sweep
def test_without_the_description_of_the_devices_counters_find_their_gpu(
    altered: Altered, small: Simulated
) -> None:
    run = altered(remove("counters/*/*/*_agent_info.csv"))
    check_is_whole_without(run)
    assert [source.gpu for source in run.counters] == [0, 1]
    for gpu in ("0", "1"):
        with_agents = of_node(small.run, (gpu,), ["GRBM_GUI_ACTIVE"])
        assert of_node(run, (gpu,), ["GRBM_GUI_ACTIVE"]) == with_agents


@pytest.mark.sweep
def test_without_any_telemetry(altered: Altered) -> None:
    run = altered(remove("telemetry"))
    check_is_whole_without(run)
    assert run.telemetry == () and run.measured == {}
    assert "no telemetry" in missing(run)
    row = whole(run, *SIGNALS, *BREAKDOWN)
    assert {row[signal] for signal in SIGNALS} == {None}
    assert row["frequency_ns"] is None and row["contention_ns"] is None
    assert row["unseparated_ns"] > 0 and row["theoretical_ns"] > 0
    for shown in json_rows(run, *SIGNALS):
        assert {shown[signal] for signal in SIGNALS} == {None}


@pytest.mark.sweep
def test_without_the_fine_telemetry_the_coarse_one_is_held_and_marked(altered: Altered) -> None:
    run = altered(remove(FINE))
    check_is_whole_without(run)
    assert telemetry_of(run, "amd_smi").uncertainty_ns == 10**9
    frame = query(run, View(run.name, ("0", "11"), columns=("gfx_mhz",)))
    assert frame.values["gfx_mhz"].is_extrapolated(0)


@pytest.mark.sweep
@pytest.mark.parametrize("gone", [0, 1])
def test_without_one_rank_s_trace(altered: Altered, small: Simulated, gone: int) -> None:
    run = altered(remove(f"rank{gone}.json.gz"))
    kept = 1 - gone
    assert [gpu.index for gpu in run.gpus] == [kept]
    assert [source.gpu for source in run.counters] == [kept]
    columns = ["SQ_WAVES", "gfx_mhz", "hotspot_c", "extra_inst_ns"]
    # Its own counters and sensors, not those of the GPU that is gone.
    before = of_node(small.run, (str(kept),), columns)
    after = of_node(run, (str(kept),), columns)
    assert after["SQ_WAVES"] == before["SQ_WAVES"]
    assert after["gfx_mhz"] == pytest.approx(before["gfx_mhz"], rel=0.005)
    assert after["hotspot_c"] == pytest.approx(before["hotspot_c"], rel=0.02)


@pytest.mark.sweep
def test_counters_of_one_gpu_only(altered: Altered, wording: Wording) -> None:
    run = altered(remove("counters/*/*/58323_*", "counters/*/*/62836_*", "counters/*/*/67349_*"))
    check_is_whole_without(run)
    assert [source.gpu for source in run.counters] == [0]
    wording(missing(run), "no counters of GPU 1")
    rows = json_rows(run, "SQ_WAVES", "extra_inst_ns")
    assert rows[0]["SQ_WAVES"] > 0 and rows[0]["extra_inst_ns"] is not None
    assert rows[1]["SQ_WAVES"] is None and rows[1]["extra_inst_ns"] is None


@pytest.mark.sweep
def test_without_traces_there_is_a_run_of_counters_or_a_sentence(altered: Altered) -> None:
    run = altered(remove("rank*.json.gz"))
    assert len(run.table)
    assert whole(run, "SQ_WAVES")["SQ_WAVES"] > 0


@pytest.mark.sweep
def test_of_two_profiled_runs_the_longer_is_shown_and_the_other_named(altered: Altered) -> None:
    def second_run(folder: Path) -> None:
        remove("rank*.json.gz")(folder)
        shutil.copytree(folder / "counters/pass_1", folder / "another/pass_1")
        remove("another/*/*/58323_*")(folder)

    run = altered(second_run)
    left_out = [path for path, why in run.skipped if "another profiled run" in why]
    assert left_out and all("/another/" in path for path in left_out)
    assert "/another/" not in run.sources[0].path


def test_telemetry_alone_is_a_run_without_activities(altered: Altered) -> None:
    run = altered(remove("rank*.json.gz", "counters"))
    assert run.is_sampled_only
    assert run.measured
    assert not run.sources


def test_with_nothing_left_there_is_a_sentence(altered: Altered) -> None:
    with pytest.raises(DataError):
        altered(remove("rank*.json.gz", "counters", "telemetry*"))


def paths_said(run: Run) -> str:
    notes = [note for source in run.counters for note in source.notes]
    notes += [note for source in run.telemetry for note in source.notes]
    skipped = [f"{path} {why}" for path, why in (*run.failed, *run.skipped)]
    return " | ".join([*notes, *skipped])


def cut(name: str, share: float) -> Change:
    """Leaves the first part of a file's bytes."""

    def change(folder: Path) -> None:
        (path,) = folder.glob(name)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return change


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.98])
def test_a_counter_file_that_is_cut_short_spares_the_other_gpu(
    altered: Altered, small: Simulated, share: float
) -> None:
    run = altered(cut("counters/pass_1/*/58210_counter_collection.csv.gz", share))
    check_is_whole_without(run)
    assert "58210_counter_collection" in paths_said(run)
    theirs = of_node(small.run, ("1",), ["TCC_EA0_RDREQ_sum"])
    assert of_node(run, ("1",), ["TCC_EA0_RDREQ_sum"]) == theirs


@pytest.mark.sweep
def test_counter_files_of_garbage_are_named_and_the_run_opens(altered: Altered) -> None:
    def change(folder: Path) -> None:
        for number, path in enumerate(sorted(folder.glob("counters/*/*/*.csv.gz"))):
            text = path.read_bytes() if number % 2 else gzip.decompress(path.read_bytes())[:300]
            path.write_bytes(b"\x00garbage" + text if number % 2 else gzip.compress(text))

    run = altered(change)
    check_is_whole_without(run)
    assert "counter_collection" in paths_said(run)
    assert "no hardware counters" in missing(run) or run.counters


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_telemetry_that_is_cut_short_is_said(altered: Altered, share: float) -> None:
    run = altered(cut(FINE, share))
    check_is_whole_without(run)
    said = paths_said(run) + " | ".join(f"{each.path} {each.method}" for each in run.telemetry)
    assert "gpu_metrics" in said
    for source in run.telemetry:
        if "gpu_metrics" in source.path and source.offset_ns is not None:
            # Cut in the middle it covers less time than the trace, unless it says what it lost.
            assert source.notes


def rewritten(name: str, line_of: Callable[[list[str]], list[str]]) -> Change:
    """Changes the cells of each row of a telemetry file."""

    def lines(text: str) -> Iterator[str]:
        head = True
        for line in text.splitlines():
            if line.startswith("#") or head:
                head = head and line.startswith("#")
                yield line
            else:
                yield ",".join(line_of(line.split(",")))

    def change(folder: Path) -> None:
        path = folder / name
        packed = path.suffix == ".gz"
        text = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
        content = ("\n".join(lines(text)) + "\n").encode()
        path.write_bytes(gzip.compress(content) if packed else content)

    return change


def both(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


@pytest.mark.sweep
def test_telemetry_of_another_day_is_not_placed(altered: Altered, wording: Wording) -> None:
    """Its clock is the run's, but it was recorded a day before."""

    def earlier(cells: list[str]) -> list[str]:
        return [str(int(cells[0]) - 86_400), *cells[1:]]

    run = altered(both(remove(FINE), rewritten(COARSE, earlier)))
    check_is_whole_without(run)
    assert dict(run.measured) == {}
    wording(missing(run), "no telemetry")
    assert set(whole(run, *SIGNALS).values()) == {None}
    assert "NOT PLACED" in info_text(run)


@pytest.mark.sweep
def test_telemetry_of_other_work_is_not_placed(altered: Altered) -> None:
    random = np.random.default_rng(1)

    def noise(cells: list[str]) -> list[str]:
        mhz, watts, util = (
            f"{middle + spread * random.standard_normal():.0f}"
            for middle, spread in ((1500, 100), (400, 120), (60, 10))
        )
        return [*cells[:2], mhz, cells[3], watts, *cells[5:8], util, *cells[9:]]

    run = altered(both(remove(COARSE), rewritten(FINE, noise)))
    check_is_whole_without(run)
    (source,) = run.telemetry
    assert source.offset_ns is None
    assert source.method
    assert dict(run.measured) == {}
    assert "NOT PLACED" in info_text(run)
    assert set(whole(run, *SIGNALS).values()) == {None}


@pytest.mark.sweep
def test_telemetry_of_gpus_that_the_run_lacks_is_not_placed(
    altered: Altered, wording: Wording
) -> None:
    def renumbered(cells: list[str]) -> list[str]:
        return [cells[0], str(int(cells[1]) + 40), *cells[2:]]

    run = altered(both(remove(COARSE), rewritten(FINE, renumbered)))
    check_is_whole_without(run)
    (source,) = run.telemetry
    assert source.offset_ns is None
    wording(source.method, "none of its GPUs")
    assert dict(run.measured) == {}


@pytest.mark.sweep
def test_a_clock_shift_moves_one_file_and_not_the_other(small: Simulated) -> None:
    shifted = open_run(
        str(small.folder), jobs=1, overrides=overrides_of([("amd_smi", 1_250_000_000)])
    )
    assert telemetry_of(shifted, "amd_smi").offset_ns == 1_250_000_000
    assert "+1.25 s" in telemetry_of(shifted, "amd_smi").method
    fine = telemetry_of(small.run, "gpu_metrics")
    assert telemetry_of(shifted, "gpu_metrics").offset_ns == fine.offset_ns

    moved = open_run(
        str(small.folder), jobs=1, overrides=overrides_of([("gpu_metrics", -7_000_000)])
    )
    assert fine.offset_ns is not None
    assert telemetry_of(moved, "gpu_metrics").offset_ns == fine.offset_ns - 7_000_000
    before = small.run.measured["gfx_mhz"].curves[0].edges_ns
    after = moved.measured["gfx_mhz"].curves[0].edges_ns
    assert (after - before == -7_000_000).all()


@pytest.mark.sweep
def test_a_clock_shift_that_moves_nothing_is_an_error(small: Simulated) -> None:
    with pytest.raises(UsageError, match=r"'rocm_smi' matches no telemetry.*gpu_metrics"):
        open_run(str(small.folder), jobs=1, overrides=overrides_of([("rocm_smi", 1)]))


@pytest.mark.sweep
def test_telemetry_that_cannot_be_read_is_named_once(altered: Altered, wording: Wording) -> None:
    def header_alone(folder: Path) -> None:
        path = folder / COARSE
        path.write_text(path.read_text().splitlines()[0] + "\n")

    run = altered(header_alone)
    check_is_whole_without(run)
    named = [path for path, _ in (*run.failed, *run.skipped) if path.endswith(COARSE)]
    assert len(named) == 1 and named[0] in dict(run.failed)
    wording.among(query(run, View(run.name)).notes, "1 file")
    wording.among(info_text(run), "could not be used")


def waves(kernel: Any) -> int:
    return int(kernel.grid * -(-kernel.block // 64))


def test_a_raw_counter_is_a_column_that_adds_up_to_what_was_dispatched(small: Simulated) -> None:
    from generator.serialised import program

    run = small.run
    frame = query(
        run,
        View(
            run.name, columns=("SQ_WAVES", "SQ_INSTS_VALU_MFMA_MOPS_BF16"), cut=True, is_total=True
        ),
    )
    for gpu in small.gpus:
        executed = program(small.simulation.gpus[gpu], 11)
        matched = [each for each in small.activities(gpu) if each.match is not Match.NONE]
        # What is ambiguous may be of another place, and then has that one's counters.
        dispatched = [executed[each.place[1]].kernel for each in matched if each.place]
        assert len(dispatched) == len(matched) > 300
        rows = [each.row for each in matched]
        assert run.table.measured["SQ_WAVES"][rows].tolist() == list(map(waves, dispatched))
        row = frame.row(gpu)
        assert row["SQ_WAVES"] == sum(map(waves, dispatched))
        assert row["SQ_INSTS_VALU_MFMA_MOPS_BF16"] == sum(
            kernel.executed_flops // 512 for kernel in dispatched
        )
    assert frame.total["SQ_WAVES"] == sum(frame.row(gpu)["SQ_WAVES"] or 0 for gpu in small.gpus)
    deeper = query(run, View(run.name, ("0", "11", "forward"), columns=("SQ_WAVES",)))
    parts = [deeper.row(number)["SQ_WAVES"] for number in range(len(deeper))]
    assert sum(part or 0 for part in parts) == deeper.total["SQ_WAVES"]


def test_collectives_have_no_counters_and_say_null(small: Simulated) -> None:
    order = ("operation", "gpu", "iteration", "phase", "layer", "kernel")
    view = View(small.run.name, order=order, columns=("SQ_WAVES", "kernels"))
    shown = json.loads(render_frame(query(small.run, view), "json"))
    rows = {row["name"]: row for row in shown["rows"]}
    assert rows["all_gather"]["kernels"] > 0
    assert rows["all_gather"]["SQ_WAVES"] is None
    assert rows["mlp_up"]["SQ_WAVES"] > 0


@pytest.mark.parametrize("counter", ["SQ_INSTS_VALU", "TCP_TOTAL_CACHE_ACCESSES_sum"])
def test_a_counter_that_the_run_lacks_says_what_would_give_it(
    small: Simulated, counter: str
) -> None:
    with pytest.raises(UsageError) as error:
        query(small.run, View(small.run.name, columns=(counter,)))
    assert f"rocprofv3 --pmc {counter}" in str(error.value)
