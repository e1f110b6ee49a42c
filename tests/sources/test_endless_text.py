"""Text without an end beside good rows: bounded memory, and only what it hides is lost."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import SignalName, Telemetry
from chopper_core.tables import text as text_module
from chopper_core.tables.losses import Repeats
from chopper_core.tables.text import MAX_LINE, FileText
from chopper_core.util.errors import DataError
from tests.limited import NEEDS_LINUX, run_limited
from tests.programs.fuzz.seeds import small_trace
from tests.sources.counters.counter_writers import counter_rows, read_counters, write_csv
from tests.sources.telemetry.telemetry_texts import DMON, METRIC_CSV, NVIDIA_CSV, metric_object
from tests.wording import Wording

UNITS = ("1", ",", '"', "x", "\\", " ", "1,", "é")


def telemetry(path: Path) -> Telemetry:
    found = read_source(path, Family.TELEMETRY)
    assert isinstance(found, Telemetry)
    return found


def powers(path: Path) -> list[float]:
    return telemetry(path).signals[0, SignalName.POWER_W][0].value.tolist()


@pytest.mark.parametrize("unit", UNITS)
def test_a_line_without_an_end_is_one_row_lost(unit: str, tmp_path: Path) -> None:
    good = tmp_path / "good.csv"
    good.write_text(METRIC_CSV)
    head, *rows = METRIC_CSV.splitlines(keepends=True)
    endless = unit * (3 * MAX_LINE // len(unit)) + "\n"
    bad = tmp_path / "bad.csv"
    bad.write_text(head + endless + "".join(rows), encoding="utf-8")
    assert powers(bad) == powers(good)
    losses = telemetry(bad).losses
    assert losses.unreadable_events == 1 and "1 line longer" in losses.notes[0]


def test_empty_lines_cost_nothing(tmp_path: Path) -> None:
    for feed in ("\n", "\r\n"):
        path = tmp_path / "many.csv"
        rows = feed.join(METRIC_CSV.splitlines())
        path.write_bytes((rows + feed * 300_000 + rows.partition(feed)[2] + feed).encode())
        lines = list(FileText(path).lines())
        assert [line for line in lines if line][1:] == METRIC_CSV.splitlines()[1:] * 2
        assert len(lines) < 1000


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", ["1", "[", '{"gpu":', '"', "\\", '{"gpu": "', " "])
def test_an_object_without_an_end_is_lost_alone(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "MAX_OBJECT", 1 << 18)
    monkeypatch.setattr(text_module, "_TOO_DEEP", 1 << 12)
    good, bad = (json.dumps(metric_object(0, second)) for second in (0, 1))
    endless = bad[:-1] + ', "odd": ' + unit * ((1 << 19) // len(unit))
    path = tmp_path / "metric.json"
    path.write_text(f"[{good},\n{endless}", encoding="utf-8")
    found = telemetry(path)
    assert found.signals[0, SignalName.POWER_W][0].value.tolist() == [700.0]
    assert found.losses.truncated


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_objects_are_found_whatever_the_pieces(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "HEAD_BYTES", piece)
    monkeypatch.setattr(text_module, "_BLOCK_BYTES", piece)
    objects = [metric_object(gpu, second) for second in range(3) for gpu in range(2)]
    path = tmp_path / "metric.json"
    path.write_text(json.dumps(objects, indent=1))
    text = FileText(path)
    assert list(text.objects(re.compile(r'\{\s*"timestamp"\s*:'))) == objects
    assert not text.losses.truncated
    lines = METRIC_CSV.replace("\n", "\r\n")
    path.write_text(lines, newline="")
    assert list(FileText(path).lines()) == METRIC_CSV.splitlines()


@pytest.mark.parametrize("unit", ["1", ",", "x", '"a",'])
def test_a_row_of_counters_without_an_end_is_lost_alone(unit: str, tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "1_counter_collection.csv",
        *counter_rows(["gemm", "add"], {"SQ_WAVES": [1.0, 2.0]}),
    )
    head, *rows = path.read_text().splitlines(keepends=True)
    endless = unit * ((5 << 20) // len(unit)) + "\n"
    path.write_text(head + rows[0] + endless + rows[1])
    (run,) = read_counters([path])
    assert run.dispatches.counters["SQ_WAVES"].tolist() == [1.0, 2.0]
    is_lost = any("1 row could not be read" in note for note in run.losses.notes)
    assert is_lost


def test_headings_without_an_end_are_refused(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "1_counter_collection.csv", *counter_rows(["gemm"], {"SQ_WAVES": [1.0]})
    )
    path.write_text(path.read_text().replace("\n", "," * (5 << 20) + "\n", 1))
    with pytest.raises(DataError, match="headings of more than 256 KiB"):
        read_counters([path])


_BEFORE = """
from chopper_core.ingest.open import open_run
from chopper_core.render.info import info_text
import chopper_core.ingest.attach, pyarrow.csv, pyarrow.parquet
"""
_CODE = """
run = open_run(str(path), jobs=1)
assert len(run.table) == 16, len(run.table)
info_text(run)
"""


@NEEDS_LINUX
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "opening", "unit"),
    [
        ("metric.csv", METRIC_CSV, "1"),
        ("metric.csv", METRIC_CSV, "\n"),
        ("metric.csv", METRIC_CSV, ","),
        ("metric.json", json.dumps([metric_object(0, 0)])[:-1] + ', {"gpu": ', "1"),
        ("cpu.csv", "# clock: epoch\ntime_ns,cpu,percent\n", "1"),
        ("a_results.json", '{"rocprofiler-sdk-tool": [{"metadata": {"pid": ', "9"),
        ("a_results.json", '{"rocprofiler-sdk-tool": [{"metadata": ', "["),
    ],
)
def test_a_bomb_beside_a_good_trace(name: str, opening: str, unit: str, tmp_path: Path) -> None:
    """192 MiB in some 200 kB: the trace opens within 150 MiB as if it weren't there."""
    from tests.programs.fuzz.seeds import small_trace

    small_trace().write(tmp_path / "rank0.json")
    with gzip.open(tmp_path / f"{name}.gz", "wb", compresslevel=1) as file:
        file.write(opening.encode())
        for _ in range(192):
            file.write(unit.encode() * (1 << 20))
    found = run_limited(_BEFORE, _CODE, tmp_path, 150)
    assert found.returncode == 0, found.stderr[-800:]


_KERNEL = (
    '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"pid":0,"tid":7,'
    '"args":{"device":0,"stream":7,"correlation":5}},'
)
_OBJECT = json.dumps(metric_object(0, 0))
ROWS = {
    "own.csv": ("# clock: epoch\ntime_ns,gpu,power_w\n", "5,0,700\n"),
    "metric.csv": (METRIC_CSV, METRIC_CSV.splitlines()[-1] + "\n"),
    "nvidia.csv": (NVIDIA_CSV, NVIDIA_CSV.splitlines()[-1] + "\n"),
    "dmon.txt": (DMON, DMON.splitlines()[-1] + "\n"),
    "cpu.csv": ("# clock: epoch\ntime_ns,cpu,percent\n", "5,0,50\n"),
    "metric.json": (f"[{_OBJECT}", f",{_OBJECT}"),
    "rank1.json": ('{"traceEvents":[', _KERNEL),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_one_time_without_number_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """They are no samples, however few bytes they take; the good trace opens without them."""
    monkeypatch.setattr(Repeats, "MOST", 3000)
    small_trace().write(tmp_path / "rank0.json")
    opening, row = ROWS[name]
    (tmp_path / name).write_text(opening + row * (17_000 if name.endswith("json") else 40_000))
    run = open_run(str(tmp_path), jobs=1)
    assert (run.table.gpu == 0).sum() == 16 and not run.measured and not run.cpu
    ((_, reason),) = [each for each in run.failed if each[0].endswith(name)]
    wording(reason, "3,000 rows", "same time")


def test_rows_of_a_fast_sampler_with_whole_seconds_are_no_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Repeats, "MOST", 3000)
    path = tmp_path / "own.csv"
    rows = [f"{at // 500 * 10**9},{at % 2},{at}" for at in range(20_000)]
    path.write_text("\n".join(("# clock: epoch", "time_ns,gpu,power_w", *rows)))
    assert len(powers(path)) == 40
