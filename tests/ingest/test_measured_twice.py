"""Two files for one signal of one GPU: an error in a sentence, not the first one."""

from __future__ import annotations

import json
from pathlib import Path

from chopper_core.ingest.attach import telemetry_report

START_S = 1_726_000_000


def write(folder: Path, name: str, value: float, start_s: int = START_S, seconds: int = 4) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{start_s + n}.5,{value}\n" for n in range(seconds)))


def test_two_names_of_one_signal_contradict_each_other(tmp_path: Path) -> None:
    write(tmp_path, "gpu_power_3.csv", 600)
    write(tmp_path, "power_3.csv", 610)
    write(tmp_path, "power_4.csv", 620)
    report = telemetry_report([tmp_path], "text") or ""
    assert "both give power_w of gpu 3 at the same time" in report
    assert "620 to 620" in report and "600 to 600" not in report and "610 to 610" not in report


def test_metrics_parts_ranks_and_later_files_do_not(tmp_path: Path) -> None:
    for name in ("gpu_power_3.csv", "gpu_power_4.csv", "gpu_thermal_3.csv", "pcie_rx_bytes_3.csv"):
        write(tmp_path, name, 50)
    write(tmp_path, "pcie_tx_bytes_3.csv", 50)
    write(tmp_path / "later", "gpu_power_3.csv", 50, START_S + 100)
    report = telemetry_report([tmp_path], "text") or ""
    assert "could not be used" not in report and report.count("4 samples") == 6


def test_each_of_many_files_that_overlap_is_named(tmp_path: Path) -> None:
    """Pair by pair, 1,500 files took as long as reading them."""
    spans = [(0, 9), (2, 1), (5, 9), (20, 1), (30, 4), (31, 1), (33, 1), (34, 1)]
    for at, (start_s, seconds) in enumerate(spans):
        name = ("power_3.csv", "gpu_power_3.csv")[at % 2]
        write(tmp_path / str(at), name, at, START_S + start_s, seconds)
    report = telemetry_report([tmp_path], "json") or ""
    failed = {int(Path(each["path"]).parent.name) for each in json.loads(report)["failed"]}
    assert failed == {
        at
        for at, (start, length) in enumerate(spans)
        for other, (begin, width) in enumerate(spans)
        if at != other and start < begin + width and begin < start + length
    }
