"""Processors: the view against a plain count and the demo's truth; reading and placing files."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from support import sample_run

from chopper_core.align.telemetry_clock import placed_cpu
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import HeatMap, LineChart
from chopper_core.model.inputs import TelemetrySource
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.render.cells import column_texts
from chopper_core.render.info import describe, info_text
from chopper_core.sources.cpu import CpuTable
from chopper_core.sources.registry import Family, discover, read_source
from chopper_core.sources.signals import ClockDomain
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError, UsageError
from chopper_core.views.query import query
from tests.wording import Wording

DEMO = Path(__file__).resolve().parents[2] / "demo_data" / "fsdp2"
FILE = DEMO / "telemetry" / "cpu.csv.gz"


def read_cpu(path: Path) -> CpuTable:
    table = read_source(path, Family.CPU)
    assert isinstance(table, CpuTable)
    return table


def plain_samples(run: Run) -> dict[int, dict[int, tuple[int, float]]]:
    """Time on the run's clock → processor → its core through the sockets, and percent."""
    offset = run.cpu[0].offset_ns or 0
    found: dict[int, dict[int, tuple[int, float]]] = defaultdict(dict)
    lines = gzip.decompress(FILE.read_bytes()).decode().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        core = 96 * int(row["socket"]) + int(row["core"])
        found[int(row["time_ns"]) + offset][int(row["cpu"])] = (core, float(row["percent"]))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("level", [0, 5])
def test_iterations_are_those_of_a_plain_count(run: Run, level: int) -> None:
    of = f"&of=above:{level}" if level else ""
    frame = query(run, parse(f"R?view=cpu{of}"))
    assert frame.labels == ["11", "12"]
    samples = plain_samples(run)
    table = run.table
    for place, label in enumerate(frame.labels):
        own = table.iteration == int(label)
        begin = int(table.start_ns[own].min())
        end = int((table.start_ns + table.duration_ns)[own].max())
        inside = [each for time, each in samples.items() if begin <= time <= end]
        active = [{c for c, (_, p) in each.items() if p > level} for each in inside]
        cores = [[each[c][0] for c in busy] for each, busy in zip(inside, active, strict=True)]
        row = frame.row(place)
        assert row["cpu_samples"] == len(inside) > 5
        assert row["active_cpus"] == pytest.approx(fmean(map(len, active)))
        assert row["max_active_cpus"] == max(map(len, active))
        assert row["logical_pct"] == pytest.approx(100 * median(map(len, active)) / 384)
        assert row["active_cores"] == pytest.approx(fmean(len(set(c)) for c in cores))
        assert row["physical_pct"] == pytest.approx(100 * median(len(set(c)) for c in cores) / 192)
        assert row["shared_cores"] == pytest.approx(fmean(len(c) - len(set(c)) for c in cores))
        work = fmean(sum(p for _, p in each.values()) / 100 for each in inside)
        assert row["cpu_work"] == pytest.approx(work)


def test_the_truth_is_found(run: Run) -> None:
    truth = json.loads((DEMO / "truth.json").read_text())["processors"]
    frame = query(run, parse("R?view=cpu"))
    for place, label in enumerate(frame.labels):
        if label in truth["iterations"]:
            planted, row = truth["iterations"][label], frame.row(place)
            assert row["active_cpus"] == pytest.approx(planted["active"], rel=0.02)
            assert row["active_cores"] == pytest.approx(planted["active_cores"], rel=0.02)
            assert row["cpu_work"] == pytest.approx(planted["work"], rel=0.02)
    assert "of 384 logical processors" in frame.headline[0]
    assert "of 192 physical cores" in frame.headline[1]
    line, heat = frame.charts
    assert isinstance(line, LineChart) and isinstance(heat, HeatMap)
    assert [series.name for series in line.series] == ["logical active", "physical active", "work"]
    assert np.nanmin(heat.numbers) >= 0 and np.nanmax(heat.numbers) <= 2


def test_processors_and_cores_are_those_of_a_plain_count(run: Run) -> None:
    samples = plain_samples(run)
    table = run.table
    begin = int(table.start_ns.min())
    end = int((table.start_ns + table.duration_ns).max())
    inside = [each for time, each in samples.items() if begin <= time <= end]
    frame = query(run, parse("R?view=cpu&by=cpu&cut=1"))
    assert len(frame) == 384
    for place in (0, 5, 200, 383):
        cpu, row = int(frame.labels[place]), frame.row(place)
        assert row["core"] == inside[0][cpu][0]
        assert row["cpu_busy_pct"] == pytest.approx(fmean(each[cpu][1] for each in inside))
        share = fmean(100.0 * (each[cpu][1] > 0) for each in inside)
        assert row["active_pct"] == pytest.approx(share)
    frame = query(run, parse("R?view=cpu&by=core&cut=1"))
    assert len(frame) == 192
    first, core = frame.row(0), int(frame.labels[0])
    threads = [sum(p > 0 for c, p in each.values() if c == core) for each in inside]
    assert first["busy_threads"] == pytest.approx(fmean(threads))
    assert first["active_pct"] == pytest.approx(fmean(100.0 * (n > 0) for n in threads))
    busy = fmean(sum(p for c, p in each.values() if c == core) for each in inside)
    assert first["cpu_busy_pct"] == pytest.approx(busy)


def test_what_can_t_be_asked_says_why(run: Run, wording: Wording) -> None:
    with pytest.raises(UsageError, match="no CPU samples on the run's clock"):
        query(sample_run(), parse("R?view=cpu"))
    with pytest.raises(UsageError, match="the view cpu takes of="):
        query(run, parse("R?view=cpu&of=most"))
    with pytest.raises(
        UsageError, match=r"no CPU samples in a file 'node7'; the files are cpu.csv.gz"
    ):
        query(run, parse("R?view=cpu&of=file:node7"))
    without = replace(run, cpu=(replace(run.cpu[0], cores=np.full(384, -1)),))
    frame = query(without, parse("R?view=cpu"))
    assert frame.row(0)["active_cores"] is None
    assert "active_cores" not in [text.metric.name for text in column_texts(frame)]
    wording.among(frame.notes, "physical cores")
    with pytest.raises(UsageError, match="no rows by core"):
        query(without, parse("R?view=cpu&by=core"))


def test_the_file_is_described_and_nothing_is_skipped(run: Run, wording: Wording) -> None:
    (found,) = describe(run)["processors"]
    assert (found["processors"], found["cores"], found["clock"]) == (384, 192, "monotonic")
    assert not any("cpu.csv" in path for path, _ in (*run.skipped, *run.failed))
    wording.among(info_text(run), "384 logical processors", "192 cores")


def written(path: Path, *rows: str, clock: str = "epoch", heading: str = "") -> Path:
    head = heading or "time_ns,cpu,core,socket,percent"
    path.write_text("\n".join([f"# clock: {clock}", head, *rows]) + "\n")
    return path


def test_cores_are_numbered_through_the_sockets(tmp_path: Path) -> None:
    rows = [f"1000,{cpu},{cpu % 2},{cpu // 2},1" for cpu in range(4)]
    assert read_cpu(written(tmp_path / "a.csv", *rows)).cores.tolist() == [0, 1, 2, 3]
    rows = [f"1000,{cpu},{cpu},{cpu // 2},1" for cpu in range(4)]
    assert read_cpu(written(tmp_path / "b.csv", *rows)).cores.tolist() == [0, 1, 2, 3]


def test_parquet_and_the_original_s_columns_read_alike(tmp_path: Path, wording: Wording) -> None:
    columns = {"ts": [10, 10, 20, 20], "cpu": [1, 0, 0, 1], "percent": [50.0, 0.0, None, 1.5]}
    pq.write_table(pa.table(columns), tmp_path / "cpu.parquet")
    text = "ts,cpu,percent,name,cmdline\n10,1,50,\"['a', 'b']\",x\n10,0,0,,\n20,0,,,\n20,1,1.5,,\n"
    (tmp_path / "cpu.csv").write_text(text)
    assert [file.path.name for file in discover([tmp_path], Family.CPU).files] == [
        "cpu.csv",
        "cpu.parquet",
    ]
    for name in ("cpu.parquet", "cpu.csv"):
        file = read_cpu(tmp_path / name)
        assert file.clock is ClockDomain.MONOTONIC
        assert file.times_ns.tolist() == [10, 20]
        assert file.percent[:, 1].tolist() == [50.0, 1.5]
        assert file.percent[0, 0] == 0 and np.isnan(file.percent[1, 0])
        assert file.cores.tolist() == [-1, -1]
        wording.among(file.notes, "1 row of 4")


def test_damaged_rows_are_left_out_and_counted(tmp_path: Path, wording: Wording) -> None:
    rows = ("5,0,0,0,10", "5,0,0,0,12", "5,1,1,0,900", "x,1,1,0,3", "5,cpu2,2,0,100.4", "5,3")
    file = read_cpu(written(tmp_path / "a.csv", *rows))
    assert file.cpus.tolist() == [0, 2]
    assert file.percent.tolist() == [[12.0, 100.0]]
    wording.among(file.notes, "2 rows of 5")
    wording.among(file.notes, "1 row", "number of cells")
    wording.among(file.notes, "1 row", "another one of its CPU")


def test_files_without_use_are_refused_by_name(tmp_path: Path, wording: Wording) -> None:
    with pytest.raises(DataError, match=r"a\.csv holds no usable CPU sample"):
        read_cpu(written(tmp_path / "a.csv", "x,y,0,0,z"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing")
    others = [tmp_path / "b.parquet", written(tmp_path / "c.csv", heading="time_ns,gpu,power_w")]
    assert not discover(others, Family.CPU).files
    file = read_cpu(written(tmp_path / "d.csv", "5,0,0,0,10", clock="sundial"))
    assert file.clock is ClockDomain.UNKNOWN
    wording.among(file.notes, "clock")


def source(clock: str, offset_ns: int | None, uncertainty_ns: int) -> TelemetrySource:
    return TelemetrySource("gpu.csv", "", clock, offset_ns, uncertainty_ns, "", 0, (), {})


def test_a_file_is_placed_by_its_clock_or_by_telemetry_on_the_same_one(
    tmp_path: Path, wording: Wording
) -> None:
    rows = [f"{time},0,0,0,1" for time in range(0, 1000, 100)]
    span = (5_250, 5_450)
    monotonic = read_cpu(written(tmp_path / "a.csv", *rows, clock="monotonic"))
    sources = [source("monotonic", 4_000, 90), source("monotonic", 5_000, 10)]
    sources.append(source("monotonic", None, 0))
    placed = placed_cpu(monotonic, span, sources, 0)
    assert (placed.offset_ns, placed.uncertainty_ns) == (5_000, 10)
    # Those within the span, and one on either side.
    assert placed.times_ns.tolist() == [5_200, 5_300, 5_400, 5_500]
    lost = placed_cpu(monotonic, span, [], 0)
    assert lost.offset_ns is None and not len(lost.times_ns)
    wording(lost.method, "no telemetry")
    by_hand = placed_cpu(monotonic, span, [], 0, shift_ns=5_000)
    assert by_hand.offset_ns == 5_000 and "by hand" in by_hand.method
    epoch = read_cpu(written(tmp_path / "b.csv", *rows))
    assert placed_cpu(epoch, (250, 450), [], 0).times_ns.tolist() == [200, 300, 400, 500]
    assert placed_cpu(epoch, (250, 450), [], 7).offset_ns == 7
    elsewhere = placed_cpu(epoch, span, [], 0)
    assert elsewhere.offset_ns is None
    wording(elsewhere.method, "overlap")


def test_a_store_gives_the_samples_back(run: Run, tmp_path: Path) -> None:
    empty = replace(run.cpu[0], times_ns=np.empty(0, np.int64), percent=np.empty((0, 384)))
    given = (run.cpu[0], replace(empty, offset_ns=None, notes=("a", "b")))
    write_store(replace(run, cpu=given), tmp_path / "store")
    for before, after in zip(given, read_store(tmp_path / "store").cpu, strict=True):
        for name in CpuSamples.__struct_fields__:
            one, two = getattr(before, name), getattr(after, name)
            same = np.array_equal(one, two, equal_nan=True) if name in ARRAYS else one == two
            assert same, name


ARRAYS = ("cpus", "cores", "times_ns", "percent")


def test_a_run_opens_without_any_and_with_a_damaged_one(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "rank0.json.gz").write_bytes((DEMO / "rank0.json.gz").read_bytes())
    written(tmp_path / "cpu.csv", "x,y,0,0,z")
    opened: Any = open_run(str(tmp_path), jobs=1)
    assert opened.cpu == ()
    ((path, reason),) = opened.failed
    assert path.endswith("cpu.csv")
    wording(reason, "CPU sample")
