"""DCGM: `dcgmi dmon` with and without times, scrapes of the exporter, tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from telemetry_texts import (
    DCGM_CSV,
    DCGM_DMON,
    DCGM_SCRAPES,
    SECOND_NS,
    START_S,
    dcgm_sample,
    parts,
    read,
    samples,
    seconds,
    stamped,
    values,
)

from chopper_core.sources.signals import ClockDomain, GpuName, SignalName
from chopper_core.util.errors import DataError

MIB = 2**20


def test_dmon_has_values_and_no_times(tmp_path: Path) -> None:
    found = read(tmp_path, DCGM_DMON, "dcgm.txt")
    assert (found.format, found.clock, found.resolution_ns) == (
        "dcgmi dmon", ClockDomain.UNKNOWN, 0,
    )  # fmt: skip
    assert list(found.gpus) == [GpuName(index=0), GpuName(index=1)]
    assert values(found, SignalName.POWER_W) == [131.17, 700.5]
    # N/A is missing, and doesn't shift the number of the next sample.
    assert values(found, SignalName.POWER_W, 1) == [640.25]
    assert samples(found, SignalName.POWER_W, 1).time_ns.tolist() == [1]
    assert values(found, SignalName.EDGE_C) == [41, 52]
    assert values(found, SignalName.GFX_MHZ, 1) == [1755, 1740]
    assert values(found, SignalName.GFX_UTIL_PCT) == [93, 100]
    assert values(found, SignalName.VRAM_BYTES, 1) == [2048 * MIB] * 2
    assert values(found, SignalName.ENERGY_J) == [0, 70]
    # Idle (1) is no limiter; the power cap (4) and the hardware's thermal slowdown (64) are.
    assert values(found, SignalName.THROTTLE_PCT) == [0, 100]
    assert values(found, SignalName.THROTTLE_PCT, 1) == [100, 100]
    assert any("no timestamps" in note for note in found.notes)
    assert found.losses.notes == ["1 row without a GPU or any value: skipped."]


def test_a_time_before_each_line_of_dmon(tmp_path: Path) -> None:
    found = read(tmp_path, stamped(DCGM_DMON), "dcgm.txt")
    assert found.clock is ClockDomain.EPOCH
    assert seconds(found, SignalName.POWER_W) == [0.2, 0.5]
    assert seconds(found, SignalName.GFX_MHZ, 1) == [0.3, 0.8]
    dated = stamped(DCGM_DMON, "2025-08-07 16:58:23.{ms:03d}")
    assert read(tmp_path, dated, "dated.txt").clock is ClockDomain.LOCAL


def long_log(rows: int) -> str:
    """Rows of 8 GPUs below headings that come again every 5 rows."""
    head, units = DCGM_DMON.splitlines(keepends=True)[:2]
    row = "GPU {}  {}.250   {}  {}   0.950  2048  {}  4   \n"
    return "".join(
        (head + units) * (at % 5 == 0)
        + row.format(at % 8, 300 + at % 97, 40 + at % 7, 1400 + at % 61, 1000 * at)
        for at in range(rows)
    )


def test_headings_of_dmon_come_again_without_end(tmp_path: Path) -> None:
    found = read(tmp_path, stamped(long_log(5100), f"{START_S}.{{ms:03d}}"), "dcgm.txt")
    assert len(found.gpus) == 8 and not found.losses.unreadable_events


def test_the_head_of_older_versions(tmp_path: Path) -> None:
    text = "# Entity  POWER  TMPTR\n      Id\n    GPU 0  131.1  41\n    GPU 1  132.1  42\n"
    found = read(tmp_path, text, "dcgm.log")
    assert values(found, SignalName.POWER_W, 1) == [132.1]
    assert found.losses.notes == []


def test_rates_of_dmon_are_bytes_per_second(tmp_path: Path) -> None:
    text = "#Entity   PCITX   PCIRX   NVLTX   NVLRX\nID\nGPU 0  1000000000 2000000000 3e9 4e9\n"
    found = read(tmp_path, text, "dcgm.txt")
    assert parts(found, SignalName.PCIE_GBPS) == ["rx", "tx"]
    assert values(found, SignalName.PCIE_GBPS, part="tx") == [1]
    assert values(found, SignalName.NVLINK_WRITE_GBPS) == [3]
    assert values(found, SignalName.NVLINK_READ_GBPS) == [4]


def test_scrapes_of_the_exporter(tmp_path: Path) -> None:
    found = read(tmp_path, DCGM_SCRAPES, "metrics.prom")
    assert found.format == "dcgm-exporter scrapes"
    assert [(gpu.index, gpu.pci) for gpu in found.gpus] == [
        (0, "00000000:00:00.0"), (1, "00000000:01:00.0"),
    ]  # fmt: skip
    assert seconds(found, SignalName.POWER_W, 1) == [0, 1, 2]
    assert values(found, SignalName.POWER_W, 1) == [510, 511, 512]
    assert values(found, SignalName.GFX_MHZ) == [1900] * 3
    assert found.losses.notes == []


def test_scrapes_without_times_are_numbered(tmp_path: Path) -> None:
    text = "".join(line for line in DCGM_SCRAPES.splitlines(True) if not line.startswith("#"))
    found = read(tmp_path, text, "metrics.txt")
    assert samples(found, SignalName.POWER_W).time_ns.tolist() == [0, 1, 2]
    assert found.resolution_ns == 0


def test_times_after_the_values_and_instances_of_a_gpu(tmp_path: Path) -> None:
    field = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    text = "".join(
        dcgm_sample(field, 0, 1000 * at, stamp=f" {1000 * (START_S + at)}")
        + dcgm_sample(field, 0, 9, more=',GPU_I_ID="3"')
        for at in range(3)
    )
    found = read(tmp_path, text, "metrics.txt")
    assert seconds(found, SignalName.ENERGY_J) == [0, 1, 2]
    assert values(found, SignalName.ENERGY_J) == [0, 1, 2]
    assert values(found, SignalName.ENERGY_RATE_W) == [1, 1]
    assert found.losses.notes == ["3 rows without a GPU or any value: skipped."]


def test_a_table_of_fields(tmp_path: Path) -> None:
    found = read(tmp_path, DCGM_CSV)
    assert found.format == "DCGM CSV"
    assert values(found, SignalName.POWER_W, 1) == [510, 511, 512]
    assert seconds(found, SignalName.EDGE_C) == [0, 1, 2]
    short = read(tmp_path, "time,entity,POWER,TMPTR\n1754585900,GPU 3,500,60\n", "short.csv")
    assert list(short.gpus) == [GpuName(index=3)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", DCGM_CSV + DCGM_CSV.replace("n1", "n2").partition("\n")[2]),
        ("a.prom", DCGM_SCRAPES + DCGM_SCRAPES.replace("n1", "n2")),
    ],
)
def test_gpus_of_two_hosts_are_no_gpus_of_one(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(DataError, match=r"several hosts \(n1, n2\)"):
        read(tmp_path, text, name)


def test_dmon_of_fields_without_a_signal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read(tmp_path, "#Entity   XIDER   EDVTL\nID\nGPU 0   0   0\n", "dcgm.txt")
    assert SECOND_NS == 10**9
