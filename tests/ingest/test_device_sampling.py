"""Device sampling beside a trace: counters of the whole GPU go to the kernels that ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.store.writer import write_store
from chopper_core.tables.bytes import ByteSource
from chopper_core.util.errors import DataError, UsageError
from chopper_core.views.query import query
from tests.sources.counters.counter_writers import read_counters
from tests.wording import Wording

MS = 1_000_000
BOOT_NS = 81_097_000 * MS
SPANS = {"gemm": (0, 10), "norm": (8, 14), "add": (9, 10), "copy": (20, 26), "late": (40, 44)}
"""Kernel → start and end in ms; norm runs on behind gemm, add all beside it."""
WAVES = {0: 1000, 10: 3000, 20: 3400, 30: 4400}
CYCLES = {0: 0, 10: 5000, 20: 6000, 30: 8000}


def write(
    folder: Path,
    rank: int = 0,
    agent: int = 4,
    counters: Mapping[str, Mapping[int, int]] | None = None,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["kernel_name,start_ns,end_ns,duration_ns,agent_id,queue_id,correlation_id"]
    lines += [
        f"{name}.kd,{BOOT_NS + start * MS},{BOOT_NS + end * MS},{(end - start) * MS},{agent},1,{n}"
        for n, (name, (start, end)) in enumerate(SPANS.items())
    ]
    (folder / f"kernel_traces_rank{rank}.csv").write_text("\n".join(lines) + "\n")
    lines = ["timestamp_ns,counter_name,counter_value,agent_id,DIMENSION_XCC"]
    for name, values in (counters or {"SQ_WAVES": WAVES}).items():
        for at, value in values.items():
            # Two instances, of a quarter and three quarters.
            lines.append(f"{BOOT_NS + at * MS},{name},{value // 4},{agent},0")
            lines.append(f"{BOOT_NS + at * MS},{name},{value - value // 4},{agent},1")
    (folder / f"counter_samples_rank{rank}.csv").write_text("\n".join(lines) + "\n")


def trace_of_the_same_execution(folder: Path) -> None:
    """What Kineto wrote of the sampled execution, on its own clock, in µs."""
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 2, "tid": 0, "ts": 1000 * start + 0.3,
         "dur": 1000 * (end - start), "args": {"device": 2, "stream": 0}}
        for name, (start, end) in SPANS.items()
    ]  # fmt: skip
    document = {"baseTimeNanoseconds": 1_754_585_900 * 10**9, "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(document))


def trace(folder: Path) -> None:
    """Another execution of the same kernels, faster and one by one."""
    kernel: dict[str, Any] = {"ph": "X", "cat": "kernel", "pid": 2, "tid": 0, "dur": 3.0,
                              "args": {"device": 2, "stream": 0}}  # fmt: skip
    events = [kernel | {"name": name, "ts": 5.0 * n} for n, name in enumerate(SPANS)]
    document = {"baseTimeNanoseconds": 1_754_585_900 * 10**9, "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(document))


def column(run: Run, name: str) -> dict[str, object]:
    frame = query(run, parse(f"R?order=kernel&columns={name}"))
    return {label: frame.row(row)[name] for row, label in enumerate(frame.labels)}


EXPECTED = {
    "gemm": pytest.approx(2000),  # 0 to 10 ms at 200 a ms
    "norm": pytest.approx(160),  # 10 to 14 ms at 40 a ms: before, gemm ran
    "add": None,  # no time of its own
    "copy": pytest.approx(600),  # 20 to 26 ms at 100 a ms
    "late": None,  # after the last sample
}


def test_what_is_counted_goes_to_the_kernel_that_runs(tmp_path: Path) -> None:
    write(tmp_path)
    run = open_run(str(tmp_path))
    assert column(run, "SQ_WAVES") == EXPECTED
    assert run.sources[0].facts["format"] == "device sampling"
    assert any("every 10.000 ms" in note for note in run.sources[0].notes)


def test_it_is_matched_with_a_trace(tmp_path: Path, wording: Wording) -> None:
    write(tmp_path / "sampled")
    trace(tmp_path)
    run = open_run(str(tmp_path))
    assert column(run, "SQ_WAVES") == EXPECTED
    assert column(run, "kernel_ns")["gemm"] == 3000
    (source,) = run.counters
    assert (source.format, source.gpu, source.matched) == ("device sampling", 0, 5)
    wording.among(source.notes, "4 of 5 kernels")
    assert not [path for path, _ in run.skipped if path.endswith(".csv")]


def test_groups_of_counters_are_passes(tmp_path: Path) -> None:
    write(tmp_path / "group_0", counters={"SQ_WAVES": WAVES})
    write(tmp_path / "group_1", counters={"GRBM_GUI_ACTIVE": CYCLES})
    (run,) = read_counters([tmp_path])
    assert run.passes == 2 and sorted(run.dispatches.counters) == ["GRBM_GUI_ACTIVE", "SQ_WAVES"]
    opened = open_run(str(tmp_path))
    assert column(opened, "SQ_WAVES")["gemm"] == pytest.approx(2000)
    assert column(opened, "GRBM_GUI_ACTIVE")["gemm"] == pytest.approx(5000)


def test_ranks_are_gpus(tmp_path: Path) -> None:
    write(tmp_path, rank=0, agent=4)
    write(tmp_path, rank=1, agent=5)
    run = open_run(str(tmp_path))
    assert [gpu.device for gpu in run.gpus] == [4, 5]
    frame = query(run, parse("R?columns=SQ_WAVES"))
    assert [frame.row(row)["SQ_WAVES"] for row in (0, 1)] == [pytest.approx(2760)] * 2


def test_samples_without_kernels_are_said(tmp_path: Path, wording: Wording) -> None:
    write(tmp_path)
    (tmp_path / "kernel_traces_rank0.csv").unlink()
    with pytest.raises(DataError, match="no kernels of the same process next to it"):
        read_counters([tmp_path])
    trace(tmp_path)
    run = open_run(str(tmp_path))
    wording(run.failed[0][1], "no kernels")


def test_instances_sampled_at_different_times_are_not_used(
    tmp_path: Path, wording: Wording
) -> None:
    write(tmp_path)
    path = tmp_path / "counter_samples_rank0.csv"
    late = [line.split(",") for line in path.read_text().splitlines()]
    for row in late[2::2]:
        row[0] = str(int(row[0]) + 7)
    path.write_text("\n".join(map(",".join, late)) + "\n")
    (run,) = read_counters([tmp_path])
    assert not run.dispatches.counters
    wording.among(run.losses.notes, "SQ_WAVES")


WAVES_PER_US = [0.2, 0.04, 0.1]
"""Counted between samples over the 10 ms between them."""


def rates(run: Run, gpu: int = 0, name: str = "SQ_WAVES") -> list[float]:
    """The means of a sampled counter over each 10 ms since the first start."""
    curve = run.signal(f"counts_per_us.{name}").curves[gpu]
    return curve.means(run.origin_ns + np.arange(4) * 10 * MS).tolist()


def test_sampled_counters_are_signals(tmp_path: Path) -> None:
    write(tmp_path)
    run = open_run(str(tmp_path))
    assert rates(run) == pytest.approx(WAVES_PER_US)
    assert run.signal().name == "busy_pct", "telemetry and busy time come first"
    frame = query(run, parse("R?order=kernel&columns=counts_per_us.SQ_WAVES"))
    means = {name: frame.row(n)["counts_per_us.SQ_WAVES"] for n, name in enumerate(frame.labels)}
    assert means["gemm"] == pytest.approx(0.2) and means["norm"] == pytest.approx((0.4 + 0.16) / 6)
    assert means["late"] is None, "after the last sample"


def test_they_come_back_from_a_store(tmp_path: Path) -> None:
    write(tmp_path / "run")
    write_store(open_run(str(tmp_path / "run")), tmp_path / "stored")
    assert rates(open_run(str(tmp_path / "stored"))) == pytest.approx(WAVES_PER_US)


def test_a_trace_of_the_same_execution_has_them_on_its_clock(tmp_path: Path) -> None:
    write(tmp_path / "sampled")
    trace_of_the_same_execution(tmp_path)
    run = open_run(str(tmp_path))
    assert rates(run) == pytest.approx(WAVES_PER_US, rel=1e-4)


def test_a_trace_of_another_execution_has_none(tmp_path: Path) -> None:
    """The counters of its kernels are known, the times at which they were counted are not its."""
    write(tmp_path / "sampled")
    trace(tmp_path)
    run = open_run(str(tmp_path))
    assert not run.measured and "SQ_WAVES" in run.table.measured


def test_only_the_pass_that_gives_the_times_has_signals(tmp_path: Path, wording: Wording) -> None:
    write(tmp_path / "group_0", counters={"SQ_WAVES": WAVES})
    write(tmp_path / "group_1", counters={"GRBM_GUI_ACTIVE": CYCLES})
    run = open_run(str(tmp_path))
    assert list(run.measured) == ["counts_per_us.SQ_WAVES"]
    wording.among(run.sources[0].notes, "other times")


def test_each_rank_has_its_own(tmp_path: Path) -> None:
    write(tmp_path, rank=0, agent=4)
    doubled = {at: 2 * count for at, count in WAVES.items()}
    write(tmp_path, rank=1, agent=5, counters={"SQ_WAVES": doubled})
    run = open_run(str(tmp_path))
    assert rates(run) == pytest.approx(WAVES_PER_US)
    assert rates(run, gpu=1) == pytest.approx([2 * rate for rate in WAVES_PER_US])


MATRIX = {0: 0, 10: 3_000_000, 20: 3_600_000, 30: 9_000_000}
"""Cycles in which matrix units were busy, and below those of the GPU, which its 8 XCCs count."""
ACTIVE = {0: 0, 10: 8 * 20_000, 20: 8 * 30_000, 30: 8 * 50_000}


def test_figures_of_counters_that_are_sampled_together(tmp_path: Path) -> None:
    both = {"SQ_VALU_MFMA_BUSY_CYCLES": MATRIX, "GRBM_GUI_ACTIVE": ACTIVE}
    write(tmp_path, counters=both)
    # A collective from 22 to 25 ms: the middle of the last sample is at 25 ms, as it ends.
    path = tmp_path / "kernel_traces_rank0.csv"
    line = f"ncclDevKernel_Generic.kd,{BOOT_NS + 22 * MS},{BOOT_NS + 26 * MS},{4 * MS},4,2,9\n"
    path.write_text(path.read_text() + line)
    run = open_run(str(tmp_path), overrides=Overrides(hardware="MI300X"))
    assert run.hardware is not None
    # 304 compute units of 4 matrix units each.
    busy = [
        100 * matrix / (cycles * 304 * 4)
        for matrix, cycles in ((3_000_000, 20_000), (600_000, 10_000), (5_400_000, 20_000))
    ]
    curve = run.signal("sampled.mfma_util_pct").curves[0]
    assert curve.interval_values() == pytest.approx(busy)
    mhz = run.signal("sampled.counter_mhz").curves[0].interval_values()
    assert mhz == pytest.approx([2.0, 1.0, 2.0])  # 20,000 cycles in 10 ms
    assert not run.has_telemetry
    # gemm runs in the middle of the first sample, nothing in that of the second.
    charts = query(run, parse("R?view=overlap")).charts
    (chart,) = (each for each in charts if each.title == "samples with at most this much MFMA")
    lines = dict(zip((each.name for each in chart.series), chart.x, strict=True))
    assert lines["compute alone"] == pytest.approx(busy[0])
    assert lines["with collectives"] == pytest.approx(busy[2])
    assert column(run, "sampled.mfma_util_pct")["gemm"] == pytest.approx(busy[0])


def test_counters_of_other_samples_give_no_figure(tmp_path: Path) -> None:
    later = {at + 1: value for at, value in ACTIVE.items()}
    both = {"SQ_VALU_MFMA_BUSY_CYCLES": MATRIX, "GRBM_GUI_ACTIVE": later}
    write(tmp_path, counters=both)
    run = open_run(str(tmp_path), overrides=Overrides(hardware="MI300X"))
    assert "sampled.counter_mhz" in run.signal_names
    assert "sampled.mfma_util_pct" not in run.signal_names


def test_a_figure_of_samples_without_hardware_says_what_it_needs(tmp_path: Path) -> None:
    write(tmp_path, counters={"SQ_WAVES": WAVES, "GRBM_GUI_ACTIVE": CYCLES})
    run = open_run(str(tmp_path))
    assert run.hardware is None
    with pytest.raises(UsageError, match="--hardware MI300X"):
        run.signal("sampled.mfma_util_pct")
    known = open_run(str(tmp_path), overrides=Overrides(hardware="MI300X"))
    with pytest.raises(UsageError, match="needs counters"):
        known.signal("sampled.mfma_util_pct")
    with pytest.raises(UsageError, match="unknown signal"):
        known.signal("nothing")


def test_another_group_is_no_other_program(tmp_path: Path, wording: Wording) -> None:
    """One whose kernels are fewer is joined; one with other kernels can't be, and says why."""
    write(tmp_path / "group_0", counters={"SQ_WAVES": WAVES})
    write(tmp_path / "group_1", counters={"GRBM_GUI_ACTIVE": CYCLES})
    path = tmp_path / "group_1" / "kernel_traces_rank0.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    run = open_run(str(tmp_path))
    assert column(run, "GRBM_GUI_ACTIVE")["gemm"] == pytest.approx(5000)
    heading, *rows = path.read_text().splitlines()
    path.write_text(
        "\n".join([heading, *(f"other_{number}{row}" for number, row in enumerate(rows))])
    )
    run = open_run(str(tmp_path))
    reasons = [why for name, why in run.skipped if "group_1" in name]
    assert reasons
    for why in reasons:
        wording(why, "sampled counters")


@pytest.mark.parametrize("stem", ["cpu", "gpu", "metric_samples"])
def test_the_advice_for_a_pickle_names_it(tmp_path: Path, stem: str) -> None:
    path = tmp_path / f"{stem}.pkl"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match=f'read_pickle."{stem}.pkl"..to_csv."{stem}.csv"') as error:
        ByteSource(path)
    assert ("lscpu" in str(error.value)) == (stem == "cpu")
