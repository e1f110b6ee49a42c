"""The real rocm-smi files against what the csv module alone gives."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest
from telemetry_texts import read_telemetry

from chopper_core.ingest.open import open_run
from chopper_core.render.info import info_text
from chopper_core.sources.registry import Family, discover
from chopper_core.sources.signals import ClockDomain, SignalName
from tests.wording import Wording

COLUMNS = [
    ("gpu_power.csv", 2, SignalName.POWER_W),
    ("gpu_temp.csv", 2, SignalName.EDGE_C),
    ("gpu_temp.csv", 3, SignalName.HOTSPOT_C),
    ("gpu_usage.csv", 2, SignalName.GFX_UTIL_PCT),
    ("gpu_usage.csv", 5, SignalName.VRAM_BYTES),
]


def rows_of(path: Path) -> tuple[dict[str, list[list[str]]], int]:
    """The rows of every card, and the number of rows of none."""
    per_card: dict[str, list[list[str]]] = defaultdict(list)
    junk = 0
    with path.open(newline="") as file:
        lines = csv.reader(file)
        next(lines)
        for row in lines:
            if row[1]:
                per_card[row[1]].append(row)
            else:
                junk += 1
    return per_card, junk


def test_the_files_are_found(rocm_smi_files: Path) -> None:
    found = discover([rocm_smi_files], Family.TELEMETRY)
    assert [file.path.name for file in found.files] == [
        "gpu_power.csv",
        "gpu_temp.csv",
        "gpu_usage.csv",
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "column", "signal"), COLUMNS)
def test_every_sample_is_there(
    rocm_smi_files: Path, name: str, column: int, signal: SignalName
) -> None:
    telemetry = read_telemetry(rocm_smi_files / name)
    expected, junk = rows_of(rocm_smi_files / name)
    assert (
        [gpu.card for gpu in telemetry.gpus]
        == sorted(expected)
        == [f"card{number}" for number in range(8)]
    )
    for number, gpu in enumerate(telemetry.gpus):
        (samples,) = telemetry.signals[number, signal]
        rows = expected[gpu.card]
        assert samples.time_ns.tolist() == [int(row[0]) * 10**9 for row in rows]
        assert samples.value.tolist() == [float(row[column]) for row in rows]
    assert not telemetry.losses.unreadable_events, f"the {junk} other rows hold a time alone"
    assert telemetry.clock is ClockDomain.EPOCH
    assert telemetry.resolution_ns == 10**9


def test_the_known_figures(rocm_smi_files: Path) -> None:
    figures = {}
    for name, signal in (
        ("gpu_power.csv", SignalName.POWER_W),
        ("gpu_temp.csv", SignalName.HOTSPOT_C),
        ("gpu_usage.csv", SignalName.VRAM_BYTES),
    ):
        telemetry = read_telemetry(rocm_smi_files / name)
        (samples,) = telemetry.signals[0, signal]
        span_s = int(samples.time_ns[-1] - samples.time_ns[0]) // 10**9
        figures[name] = (len(samples), span_s, telemetry.losses.unreadable_events)
    assert figures == {
        "gpu_power.csv": (539, 2751, 0),
        "gpu_temp.csv": (536, 2751, 0),
        "gpu_usage.csv": (538, 2750, 0),
    }


def test_what_is_odd_about_them_is_said(rocm_smi_files: Path, wording: Wording) -> None:
    power = read_telemetry(rocm_smi_files / "gpu_power.csv")
    wording.among(power.notes, "4,312 rows", "fewer values")
    assert (0, SignalName.POWER_CAP_W) not in power.signals
    temperature = read_telemetry(rocm_smi_files / "gpu_temp.csv")
    wording.among(temperature.notes, "8 GPUs", "cooler")
    usage = read_telemetry(rocm_smi_files / "gpu_usage.csv")
    wording.among(usage.notes, "gfx_activity")


def test_without_a_trace_the_files_are_described(rocm_smi_files: Path) -> None:
    report = info_text(open_run(str(rocm_smi_files), jobs=1))
    assert "power_w: 4312 samples, 138 to 751" in report
    assert "could not be used" not in report, "the rows that hold a time alone separate rounds"


def test_eight_gpus_of_a_log_without_an_index(log_without_index: Path) -> None:
    """The file has 300 rounds of 8 rows; some rounds pause for half a second."""
    with log_without_index.open(newline="") as file:
        _, *rows = csv.reader(file)
    telemetry = read_telemetry(log_without_index)
    assert [gpu.index for gpu in telemetry.gpus] == list(range(8))
    for gpu in range(8):
        (power,) = telemetry.signals[gpu, SignalName.POWER_W]
        assert power.value.tolist() == [float(row[1].split()[0]) for row in rows[gpu::8]]
    assert not telemetry.losses.notes
