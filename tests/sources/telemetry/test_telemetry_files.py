"""Telling telemetry from other files."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import write_table
from telemetry_texts import (
    DMON,
    METRIC_CSV,
    NVIDIA_CSV,
    OLD_MONITOR_CSV,
    OWN_CSV,
    ROCM_SMI_CSV,
    ZEUS_CSV,
    metric_list,
    put,
    read_telemetry,
)

from chopper_core.sources.registry import Family, FoundFiles, discover
from chopper_core.util.errors import DataError
from tests.wording import Wording

OTHERS = {
    "trace.json": ('{"schemaVersion": 1, "traceEvents": [{"gpu": 0, "power_usage": 1}]}', "JSON"),
    "counters.csv": ('"Correlation_Id","Dispatch_Id","Agent_Id"\n1,1,2\n', "of no known tool"),
    "samples.csv": ("timestamp_ns,counter_name,counter_value,dims\n1,A,2,x\n", "of no known tool"),
    "numbers.csv": ("1,2,3\n4,5,6\n", "has no headings"),
    "empty.csv": ("", "is empty"),
    "binary.csv": ("a\x00b", "is binary"),
}


def find_telemetry(paths: list[Path]) -> FoundFiles:
    return discover(paths, Family.TELEMETRY)


def test_telemetry_is_recognised_by_content(tmp_path: Path) -> None:
    put(tmp_path / "a10.csv", METRIC_CSV)
    put(tmp_path / "a2.txt", OLD_MONITOR_CSV)
    put(tmp_path / "a3.log", ROCM_SMI_CSV)
    put(tmp_path / "a4.csv.gz", NVIDIA_CSV)
    put(tmp_path / "a5.txt", DMON)
    put(tmp_path / "a6.csv", ZEUS_CSV)
    put(tmp_path / "a7.csv", OWN_CSV)
    put(tmp_path / "a8.json", metric_list())
    put(tmp_path / "notes.md", METRIC_CSV)
    found = find_telemetry([tmp_path, tmp_path / "a2.txt"])
    assert [(file.path.name, file.format) for file in found.files] == [
        ("a2.txt", "amd-smi monitor CSV"),
        ("a3.log", "rocm-smi CSV"),
        ("a4.csv.gz", "nvidia-smi CSV"),
        ("a5.txt", "nvidia-smi dmon"),
        ("a6.csv", "Zeus power CSV"),
        ("a7.csv", "telemetry CSV"),
        ("a8.json", "amd-smi JSON"),
        ("a10.csv", "amd-smi metric CSV"),
    ]
    assert found.skipped == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_skipped_with_a_reason(tmp_path: Path, name: str) -> None:
    text, reason = OTHERS[name]
    path = put(tmp_path / name, text)
    found = find_telemetry([tmp_path])
    assert found.files == []
    assert all(reason in skipped.reason for skipped in found.skipped)
    with pytest.raises(DataError, match=f"{name} .*{reason}"):
        read_telemetry(path)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    path = put(tmp_path / "gpu.pkl", pickle.dumps({"ts": [1], "gpu": [2]}))
    with pytest.raises(DataError, match=r"never opens.*read_pickle.*to_csv") as refusal:
        read_telemetry(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("family", Family)
def test_parquet_whose_names_are_no_text_is_skipped(tmp_path: Path, family: Family) -> None:
    path = tmp_path / "a.parquet"
    write_table(pyarrow.table({"time_é": [1]}), path)
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xc3("))
    discover([path], family)


def test_parquet_of_something_else_is_skipped(tmp_path: Path, wording: Wording) -> None:
    write_table(pyarrow.table({"a": [1]}), tmp_path / "a.parquet")
    put(tmp_path / "b.parquet", b"PAR1 and no more")
    reasons = [file.reason for file in find_telemetry([tmp_path]).skipped]
    wording(reasons[0], "Parquet", "time_ns", "signals")
    wording(reasons[1], "Parquet")


def test_only_the_start_of_a_file_is_read_to_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [' + b" " * 1000)
        file.truncate(1 << 34)
    assert find_telemetry([path]).unknown == [path]
    with pytest.raises(DataError, match="is a Chrome trace in JSON"):
        read_telemetry(path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        find_telemetry([tmp_path / "nowhere"])
