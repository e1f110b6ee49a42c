"""Samples in the databases of Nsight Systems and RPD, on the clock of the same file's kernels."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import SignalName, Telemetry
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.sources import test_nsys, test_rpd

METRICS = {
    1: "GPC Clock Frequency [MHz]", 2: "GR Active [Throughput %]", 3: "SMs Active [Throughput %]",
    4: "Tensor Active [Throughput %]", 5: "DRAM Read Bandwidth [Throughput %]",
    6: "DRAM Write Bandwidth [Throughput %]", 7: "PCIe RX Throughput [Throughput %]",
}  # fmt: skip


def nsight(path: Path, *, clock: int = 1_980_000_000) -> Path:
    """Kernels of a GPU, and its metrics every 10 µs: those of the tensor cores count up."""
    test_nsys.write(path)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT)")
        db.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, sourceId INT, typeName TEXT,"
                   " metricId INT, metricName TEXT)")  # fmt: skip
        rows = [(256, 0, "GA100", number, name) for number, name in METRICS.items()]
        db.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?, ?, ?, ?)", rows)
        for at in range(20):
            values = {1: clock, 2: 90, 3: 80, 4: 2 * at, 5: 30, 6: 12, 7: 1}
            for number, value in values.items():
                sample = (10_000 * at, 256, number, value)
                db.execute("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", sample)
    return path


def of(telemetry: Telemetry, signal: SignalName) -> list[float]:
    (samples,) = telemetry.signals[0, signal]
    return samples.value.tolist()


@pytest.mark.parametrize("clock", [1980, 1_980_000_000])
def test_metrics_of_nsight_are_signals(tmp_path: Path, clock: int) -> None:
    found = read_source(nsight(tmp_path / "a.sqlite", clock=clock), Family.TELEMETRY)
    assert set(of(found, SignalName.GFX_MHZ)) == {1980.0}
    assert of(found, SignalName.TENSOR_ACTIVE_PCT) == [2.0 * at for at in range(20)]
    assert set(of(found, SignalName.MEM_UTIL_PCT)) == {42.0}
    assert (found.resolution_ns, len(found.signals)) == (10_000, 5)


@pytest.mark.parametrize("given", ["file", "folder"])
def test_kernels_have_the_metrics_of_their_time(tmp_path: Path, given: str) -> None:
    path = nsight(tmp_path / "a.sqlite")
    run = open_run(str(path if given == "file" else tmp_path), jobs=1)
    (source,) = run.telemetry
    assert (source.format, source.offset_ns) == ("Nsight Systems GPU metrics", 0)
    assert "gfx_mhz" in run.measured and "tensor_active_pct" in run.measured
    assert not run.failed and not run.skipped
    frame = query(run, parse("R?view=kernels&columns=gfx_mhz,tensor_active_pct"))
    assert {frame.row(row)["gfx_mhz"] for row in range(len(frame))} == {1980.0}


def test_a_database_without_samples_has_no_telemetry(tmp_path: Path) -> None:
    run = open_run(str(test_nsys.write(tmp_path / "a.sqlite")), jobs=1)
    assert not run.telemetry and not run.failed and not run.skipped


def test_the_monitor_of_rpd_has_spans_of_the_clock(tmp_path: Path) -> None:
    path = test_rpd.write(tmp_path / "trace.rpd")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE rocpd_monitor (id INTEGER PRIMARY KEY, deviceType TEXT, deviceId"
                   " INT, monitorType TEXT, start INT, end INT, value TEXT)")  # fmt: skip
        rows = [
            ("gpu", gpu, "sclk", 500 + 500 * at, 1000 + 500 * at, str(1200 + 300 * at + gpu))
            for gpu in (0, 1)
            for at in range(4)
        ]
        rows += [("gpu", 0, "power", 500, 2500, "612.5"), ("cpu", 0, "sclk", 500, 2500, "3000")]
        db.executemany("INSERT INTO rocpd_monitor(deviceType, deviceId, monitorType, start, end,"
                       " value) VALUES (?, ?, ?, ?, ?, ?)", rows)  # fmt: skip
    telemetry = read_source(path, Family.TELEMETRY)
    assert of(telemetry, SignalName.GFX_MHZ) == [1200, 1500, 1800, 2100]
    assert of(telemetry, SignalName.POWER_W) == [612.5]
    run = open_run(str(path), jobs=1)
    (source,) = run.telemetry
    assert (source.offset_ns, set(source.gpus.values())) == (0, {0, 1})
    # The product of GPU 0 runs from 1000 to 1500, in the second span.
    frame = query(run, parse("R:0?view=kernels&columns=gfx_mhz"))
    row = frame.row(list(frame.labels).index("gemm"))
    assert row["gfx_mhz"] == pytest.approx(1500)
    assert run.sources[0].clock.startswith("boottime")


def test_a_database_of_other_metrics_has_no_signal(tmp_path: Path) -> None:
    path = nsight(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE TARGET_INFO_GPU_METRICS SET metricName = 'PCIe RX Throughput'")
    with pytest.raises(DataError, match="has no samples of the GPU's clock, activity or power"):
        read_source(path, Family.TELEMETRY)
