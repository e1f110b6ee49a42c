"""Every telemetry format that Chopper reads, on files written by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pytest
from telemetry_texts import (
    DMON,
    METRIC_CSV,
    NEW_MONITOR_CSV,
    NVIDIA_CSV,
    NVIDIA_NO_UNITS_CSV,
    OLD_MONITOR_CSV,
    OWN_CSV,
    ROCM_SMI_CSV,
    SECOND_NS,
    START_S,
    ZEUS_CSV,
    metric_list,
    metric_object,
    parts,
    read,
    samples,
    seconds,
    values,
    with_unit,
)

from chopper_core.ingest.open import open_run
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import ClockDomain, GpuName, SignalName
from chopper_core.sources.telemetry.rows import Field
from chopper_core.sources.telemetry.table import TelemetryTable
from chopper_core.util.errors import DataError
from tests.wording import Wording

MIB = 2**20


def test_amd_smi_metric_csv(tmp_path: Path) -> None:
    telemetry = read(tmp_path, METRIC_CSV)
    assert telemetry.format == "amd-smi metric CSV"
    assert (telemetry.clock, telemetry.resolution_ns) == (ClockDomain.EPOCH, SECOND_NS)
    assert list(telemetry.gpus) == [GpuName(index=0), GpuName(index=1)]
    assert seconds(telemetry, SignalName.POWER_W) == [0, 1, 2]
    assert values(telemetry, SignalName.POWER_W, 1) == [701, 701, 701]
    assert values(telemetry, SignalName.MEM_C) == [60, 61, 62]
    assert values(telemetry, SignalName.HOTSPOT_C) == [71, 71, 71]
    assert values(telemetry, SignalName.GFX_UTIL_PCT) == [97, 97, 97]
    assert values(telemetry, SignalName.MEM_UTIL_PCT) == [41, 41, 41]
    assert values(telemetry, SignalName.VRAM_BYTES) == [1000 * MIB, 1001 * MIB, 1002 * MIB]
    assert (0, SignalName.EDGE_C) not in telemetry.signals
    assert telemetry.losses.notes == []


def test_the_gfx_clock_is_the_mean_of_the_xcds(tmp_path: Path, wording: Wording) -> None:
    telemetry = read(tmp_path, METRIC_CSV)
    assert parts(telemetry, SignalName.GFX_MHZ) == ["", "xcd0", "xcd1"]
    assert values(telemetry, SignalName.GFX_MHZ) == [2050] * 3
    assert values(telemetry, SignalName.GFX_MHZ, part="xcd1") == [2000] * 3
    wording.among(telemetry.notes, "XCDs' clocks")


def test_energy_counts_from_the_first_sample(tmp_path: Path) -> None:
    telemetry = read(tmp_path, METRIC_CSV)
    assert values(telemetry, SignalName.ENERGY_J) == [0, 700, 1399.75]


def test_residencies_are_shares_of_the_ticks_between_samples(tmp_path: Path) -> None:
    telemetry = read(tmp_path, METRIC_CSV)
    # GPU 0's counter of ticks wraps at 32 bits between its first two samples.
    assert seconds(telemetry, SignalName.THROTTLE_PCT, part="ppt") == [1, 2]
    assert values(telemetry, SignalName.THROTTLE_PCT, part="ppt") == [25, 0]
    assert values(telemetry, SignalName.THROTTLE_PCT, part="socket_thermal") == [10, 50]
    assert values(telemetry, SignalName.THROTTLE_PCT) == [25, 50]
    assert values(telemetry, SignalName.THROTTLE_PCT, gpu=1) == [0, 0]
    assert any("a lower bound" in note for note in telemetry.notes)


@pytest.mark.parametrize("root", ["list", "gpu_data", "documents", "stamped documents"])
def test_amd_smi_metric_json(tmp_path: Path, root: str) -> None:
    rows = [metric_object(gpu, second) for second in (0, 1) for gpu in (0, 1)]
    bare = [metric_object(gpu) for gpu in (0, 1)]
    text = {
        "list": json.dumps(rows),
        "gpu_data": json.dumps({"gpu_data": rows}, indent=4),
        "documents": "\n".join(json.dumps(rows[first : first + 2]) for first in (0, 2)),
        "stamped documents": "\n".join(
            json.dumps({"timestamp": START_S + second, "gpu_data": bare}) for second in (0, 1)
        ),
    }[root]
    telemetry = read(tmp_path, text, "metric.json")
    assert telemetry.format == "amd-smi metric JSON"
    assert telemetry.clock is ClockDomain.EPOCH
    assert seconds(telemetry, SignalName.POWER_W, 1) == [0, 1]
    assert values(telemetry, SignalName.GFX_MHZ) == [2050, 2050]
    assert values(telemetry, SignalName.MEM_MHZ) == [1300, 1300]
    assert values(telemetry, SignalName.MEM_C) == [60, 60]
    assert values(telemetry, SignalName.VRAM_BYTES) == [2048 * MIB] * 2
    assert values(telemetry, SignalName.THROTTLE_PCT, part="ppt") == [5, 5]
    assert telemetry.losses.notes == []


def test_amd_smi_without_watching_has_no_times(tmp_path: Path) -> None:
    text = json.dumps({"gpu_data": [metric_object(0), metric_object(1)]})
    telemetry = read(tmp_path, text, "metric.json")
    assert (telemetry.clock, telemetry.resolution_ns) == (ClockDomain.UNKNOWN, 0)
    assert samples(telemetry, SignalName.POWER_W).time_ns.tolist() == [0]
    assert "no timestamps" in telemetry.notes[0]


def test_unstamped_snapshots_are_numbered(tmp_path: Path, wording: Wording) -> None:
    text = "gpu,power_usage,gfx_clk\n0,100,900\n1,101,901\ngpu,power_usage,gfx_clk\n0,200,902\n"
    telemetry = read(tmp_path, text)
    assert samples(telemetry, SignalName.POWER_W).time_ns.tolist() == [0, 1]
    wording.among(telemetry.notes, "1 row repeating the headings")
    assert not telemetry.losses.notes


def test_old_amd_smi_monitor_csv(tmp_path: Path) -> None:
    telemetry = read(tmp_path, OLD_MONITOR_CSV)
    assert telemetry.format == "amd-smi monitor CSV"
    assert values(telemetry, SignalName.GFX_MHZ) == [2100, 2000]
    assert seconds(telemetry, SignalName.GFX_MHZ, 1) == [1]
    assert values(telemetry, SignalName.MEM_UTIL_PCT) == [30, 31]
    assert values(telemetry, SignalName.MEM_C) == [60, 61]
    assert values(telemetry, SignalName.VRAM_BYTES) == [1024 * MIB, 1026 * MIB]
    assert values(telemetry, SignalName.THROTTLE_PCT) == [12, 20]
    assert parts(telemetry, SignalName.THROTTLE_PCT) == ["", "ppt", "socket_thermal"]


def test_new_amd_smi_monitor_csv(tmp_path: Path) -> None:
    telemetry = read(tmp_path, NEW_MONITOR_CSV)
    assert values(telemetry, SignalName.GFX_MHZ) == [2100, 2000]
    assert values(telemetry, SignalName.POWER_CAP_W) == [750, 750]
    assert values(telemetry, SignalName.VRAM_BYTES) == [1536 * MIB, 2048 * MIB]


def test_rows_of_processes_between_those_of_gpus_are_no_readings(
    tmp_path: Path, wording: Wording
) -> None:
    """`amd-smi monitor -w 1 --process --csv` writes a table of each by turns."""
    second_table = "timestamp,gpu,name,pid,gtt_mem,cpu_mem,vram_mem,mem_usage"
    text = ""
    for at in range(3):
        stamp = START_S + at
        text += "timestamp,gpu,xcp,power_usage,hotspot_temperature,gfx_clk,gfx,mem\n"
        text += "".join(f"{stamp},{gpu},0,{700 + gpu},60,2000,98,40\n" for gpu in (0, 1))
        text += f"\n{second_table}\n"
        text += "".join(f"{stamp},{gpu},python,{4000 + gpu},0,0,5,7\n\n" for gpu in (0, 1))
    found = read(tmp_path, text)
    assert [values(found, SignalName.POWER_W, gpu) for gpu in (0, 1)] == [[700] * 3, [701] * 3]
    assert values(found, SignalName.HOTSPOT_C) == [60] * 3
    assert found.unused == {"xcp": 6}
    wording.among(found.losses.notes, "6 rows")


def test_amd_smi_monitor_json(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": START_S + second,
            "gpu": 0,
            "power_usage": with_unit(650, "W"),
            "hotspot_temperature": with_unit(70, "C"),
            "gfx_clk": with_unit(2100, "MHz"),
            "gfx": with_unit(99, "%"),
            "mem": with_unit("N/A", "%"),
            "vram_used": with_unit(1.5, "GB"),
            "process_list": [{"process_info": {"name": "python", "pid": 1}}],
        }
        for second in (0, 1)
    ]
    telemetry = read(tmp_path, json.dumps(rows), "monitor.json")
    assert telemetry.format == "amd-smi monitor JSON"
    assert values(telemetry, SignalName.POWER_W) == [650, 650]
    assert values(telemetry, SignalName.VRAM_BYTES) == [1536 * MIB] * 2
    assert (0, SignalName.MEM_UTIL_PCT) not in telemetry.signals


def test_rocm_smi_csv(tmp_path: Path) -> None:
    telemetry = read(tmp_path, ROCM_SMI_CSV)
    assert telemetry.format == "rocm-smi CSV"
    assert list(telemetry.gpus) == [
        GpuName(kfd_node=2, card="card0", pci="0000:0C:00.0"),
        GpuName(kfd_node=3, card="card1", pci="0000:22:00.0"),
    ]
    assert telemetry.resolution_ns == SECOND_NS // 100
    assert seconds(telemetry, SignalName.POWER_W) == [0.25, 1.25]
    assert values(telemetry, SignalName.GFX_MHZ) == [2100, 1900]
    assert values(telemetry, SignalName.MEM_MHZ) == [1300, 900]
    assert values(telemetry, SignalName.HOTSPOT_C) == [44, 46]
    assert values(telemetry, SignalName.MEM_C, 1) == [38]
    assert values(telemetry, SignalName.VRAM_BYTES, 1) == [4096]
    assert (0, SignalName.EDGE_C) not in telemetry.signals


def test_nvidia_smi_csv_with_units(tmp_path: Path) -> None:
    telemetry = read(tmp_path, NVIDIA_CSV)
    assert telemetry.format == "nvidia-smi CSV"
    assert (telemetry.clock, telemetry.resolution_ns) == (ClockDomain.LOCAL, 10**6)
    assert list(telemetry.gpus) == [
        GpuName(index=0, pci="00000000:07:00.0"),
        GpuName(index=1, pci="00000000:0B:00.0"),
    ]
    wall = datetime(2025, 8, 7, 16, 58, 23, tzinfo=UTC).timestamp() * SECOND_NS
    assert (samples(telemetry, SignalName.POWER_W).time_ns - int(wall)).tolist() == [
        250 * 10**6,
        350 * 10**6,
    ]
    assert values(telemetry, SignalName.POWER_W) == [131.17, 700.5]
    assert (1, SignalName.POWER_W) not in telemetry.signals
    assert values(telemetry, SignalName.GFX_MHZ, 1) == [1755]
    assert values(telemetry, SignalName.VRAM_BYTES) == [1024 * MIB] * 2
    assert values(telemetry, SignalName.THROTTLE_PCT) == [0, 100]
    assert values(telemetry, SignalName.THROTTLE_PCT, 1) == [100]
    assert values(telemetry, SignalName.EDGE_C) == [41, 52]
    assert any("core" in note for note in telemetry.notes)


def test_nvidia_smi_csv_without_units(tmp_path: Path) -> None:
    telemetry = read(tmp_path, NVIDIA_NO_UNITS_CSV)
    assert telemetry.resolution_ns == SECOND_NS
    assert values(telemetry, SignalName.POWER_W) == [131.17, 140]
    assert values(telemetry, SignalName.THROTTLE_PCT) == [0, 100]
    assert parts(telemetry, SignalName.THROTTLE_PCT) == ["", "sw_power_cap"]


@pytest.mark.parametrize(
    ("mask", "share"),
    [(0x1, 0), (0x2, 0), (0x10, 0), (0x100, 0), (0x4, 100), (0x200, 100), (0x400, 100)],
)
def test_reasons_of_nvml_that_limit_the_clock(tmp_path: Path, mask: int, share: int) -> None:
    """Board limit and reliability are reasons since NVML 615; idle and settings limit nothing."""
    head = "timestamp, index, power.draw [W], clocks_event_reasons.active"
    rows = (f"2026/03/05 08:40:0{at}.000, 0, 600 W, {mask:#018x}" for at in range(2))
    found = read(tmp_path, "\n".join([head, *rows, ""]))
    assert values(found, SignalName.THROTTLE_PCT) == [share] * 2


@pytest.mark.parametrize("written", ["{} us", "{}"])
def test_time_under_each_reason_is_a_share(tmp_path: Path, written: str) -> None:
    """Of 2 s the GPU is limited 0.5 s by power; the driver counts in µs, with or without saying."""
    head = (
        "timestamp, index, power.draw [W], clocks_event_reasons_counters.sw_power_cap [us], "
        "clocks_event_reasons_counters.hw_thermal_slowdown [us], "
        "clocks_event_reasons_counters.sync_boost [us]"
    )
    counted = (written.format(711_320_000 + each) for each in (0, 500_000, 500_000))
    rows = (
        f"2026/03/05 08:40:0{2 * at}.000, 0, 600 W, {each}, {written.format(9)}, 3"
        for at, each in enumerate(counted)
    )
    found = read(tmp_path, "\n".join([head, *rows, ""]))
    assert values(found, SignalName.THROTTLE_PCT, part="sw_power_cap") == [25, 0]
    assert values(found, SignalName.THROTTLE_PCT, part="hw_thermal_slowdown") == [0, 0]
    assert values(found, SignalName.THROTTLE_PCT) == [25, 0]
    assert [*found.unused] == ["clocks_event_reasons_counters.sync_boost [us]"]


def test_nvidia_smi_falls_back_where_a_column_has_no_values(
    tmp_path: Path, wording: Wording
) -> None:
    text = "timestamp, power.draw [W], power.draw.instant [W]\n2025/08/07 16:58:23, [N/A], 131 W\n"
    telemetry = read(tmp_path, text)
    assert values(telemetry, SignalName.POWER_W) == [131]
    wording.among(telemetry.notes, "don't name their GPU")


@pytest.mark.few(4)
@pytest.mark.parametrize("interval_ms", [100, 1000])
@pytest.mark.parametrize("gpus", [2, 3, 4, 8, 16])
def test_rows_in_rounds_are_those_of_the_gpus_in_order(
    tmp_path: Path, gpus: int, interval_ms: int
) -> None:
    """nvidia-smi waits between rounds; a query takes a few ms, sometimes as long as the wait."""
    random, time_ms, lines = Random(gpus), 0, ["timestamp, power.draw [W]"]
    for _ in range(622):
        for gpu in range(gpus):
            lines.append(f"{_stamp(time_ms)}, {100 + gpu} W")
            slow = int(interval_ms * random.random()) if random.random() < 0.5 / gpus else 0
            time_ms += random.randrange(3) + slow
        time_ms += interval_ms + random.randrange(4)
    telemetry = read(tmp_path, "\n".join(lines) + "\n")
    assert [gpu.index for gpu in telemetry.gpus] == list(range(gpus))
    for gpu in range(gpus):
        assert set(values(telemetry, SignalName.POWER_W, gpu)) == {100.0 + gpu}
        assert len(values(telemetry, SignalName.POWER_W, gpu)) >= 0.95 * 622


def test_a_round_with_a_missing_row_is_not_used(tmp_path: Path, wording: Wording) -> None:
    lines = ["timestamp, power.draw [W]"]
    lines += [f"{_stamp(100 * n + gpu)}, {100 + gpu} W" for n in range(50) for gpu in range(2)]
    del lines[40]
    telemetry = read(tmp_path, "\n".join(lines) + "\n")
    assert [len(values(telemetry, SignalName.POWER_W, gpu)) for gpu in range(2)] == [49, 49]
    (note,) = telemetry.losses.notes
    wording(note, "1 row", "each GPU")


def test_irregular_rows_of_one_gpu_are_no_rounds(tmp_path: Path) -> None:
    random, time_ms, lines = Random(7), 0, ["timestamp, power.draw [W]"]
    for _ in range(500):
        lines.append(f"{_stamp(time_ms)}, 100 W")
        time_ms += 90 + random.randrange(40)
    assert read(tmp_path, "\n".join(lines) + "\n").gpus == [GpuName()]
    for row in range(1, len(lines)):
        time_ms += int(random.expovariate(0.01))
        lines[row] = f"{_stamp(time_ms)}, 100 W"
    with pytest.raises(DataError, match="doesn't name the GPU"):
        read(tmp_path, "\n".join(lines) + "\n")


def _stamp(time_ms: int) -> str:
    return f"{datetime(2025, 8, 7, tzinfo=UTC) + timedelta(milliseconds=time_ms):%Y/%m/%d %T.%f}"[
        :-3
    ]


def test_a_header_in_another_unit_is_converted(tmp_path: Path) -> None:
    text = "timestamp, index, power.draw [mW]\n2025/08/07 16:58:23, 0, 131000\n"
    assert values(read(tmp_path, text), SignalName.POWER_W) == [131]


def test_dmon(tmp_path: Path) -> None:
    telemetry = read(tmp_path, DMON, "dmon.txt")
    assert telemetry.format == "nvidia-smi dmon"
    assert (telemetry.clock, telemetry.resolution_ns) == (ClockDomain.LOCAL, SECOND_NS)
    assert values(telemetry, SignalName.GFX_MHZ) == [1980, 1410]
    assert values(telemetry, SignalName.POWER_W) == [131, 700]
    assert values(telemetry, SignalName.MEM_C, 1) == [50]
    assert (0, SignalName.MEM_C) not in telemetry.signals
    assert values(telemetry, SignalName.VRAM_BYTES, 1) == [1025 * MIB]
    assert telemetry.losses.notes == []


def test_dmon_without_a_date_has_an_unknown_clock(tmp_path: Path) -> None:
    text = "#Time        gpu    pwr\n#HH:MM:SS    Idx      W\n 00:00:05      0    131\n"
    telemetry = read(tmp_path, text, "dmon.txt")
    assert telemetry.clock is ClockDomain.UNKNOWN
    assert samples(telemetry, SignalName.POWER_W).time_ns.tolist() == [5 * SECOND_NS]


def test_zeus_power_csv(tmp_path: Path) -> None:
    telemetry = read(tmp_path, ZEUS_CSV)
    assert telemetry.format == "Zeus power CSV"
    assert (telemetry.clock, telemetry.resolution_ns) == (ClockDomain.EPOCH, 100)
    assert list(telemetry.gpus) == [GpuName(index=0), GpuName(index=1)]
    assert samples(telemetry, SignalName.POWER_W).time_ns.tolist() == [
        START_S * SECOND_NS + ns for ns in (125_000_000, 225_000_100, 325_000_000)
    ]
    assert values(telemetry, SignalName.POWER_W, 1) == [140.25, 141.25, 142.25]


def test_own_csv(tmp_path: Path) -> None:
    telemetry = read(tmp_path, OWN_CSV)
    assert telemetry.format == "telemetry CSV"
    assert (telemetry.clock, telemetry.resolution_ns) == (ClockDomain.MONOTONIC, 1)
    assert parts(telemetry, SignalName.GFX_MHZ) == ["", "xcd0", "xcd1"]
    assert values(telemetry, SignalName.GFX_MHZ) == [2050, 1900]
    assert values(telemetry, SignalName.GFX_MHZ, part="xcd1") == [2000, 1800]
    assert values(telemetry, SignalName.GFX_MHZ, gpu=1) == [2000]
    assert values(telemetry, SignalName.THROTTLE_PCT) == [10, 20]
    assert values(telemetry, SignalName.ENERGY_J) == [0, 0.5]
    assert values(telemetry, SignalName.VRAM_BYTES) == [2**37] * 2


def test_own_csv_with_both_clocks_knows_their_relation(tmp_path: Path) -> None:
    text = f"time_ns,monotonic_ns,gpu,power_w\n{START_S}000000500,500,0,1\n"
    telemetry = read(tmp_path, text + f"{START_S}000001600,1500,0,2\n")
    assert telemetry.clock is ClockDomain.EPOCH
    assert any(f"median {START_S}000000100 ns" in note for note in telemetry.notes)
    assert any("spread 100 ns" in note for note in telemetry.notes)


def test_own_csv_without_a_clock_says_so(tmp_path: Path, wording: Wording) -> None:
    telemetry = read(tmp_path, "time_ns,gpu,power_w\n5,0,1\n")
    assert telemetry.clock is ClockDomain.UNKNOWN
    wording.among(telemetry.notes, "clock")


def test_a_clock_column_names_the_clock(tmp_path: Path) -> None:
    text = "time_ns,clock,gpu,power_w\n5,CLOCK_BOOTTIME,0,1\n6,epoch,0,2\n7,boottime,0,3\n"
    telemetry = read(tmp_path, text)
    assert telemetry.clock is ClockDomain.BOOTTIME
    assert values(telemetry, SignalName.POWER_W) == [1, 3]
    assert telemetry.losses.bad_times == 1


def test_own_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "time_ns": [10, 20],
            "gpu": [0, 0],
            "power_w": [700.5, None],
            "current_gfxclks": [[2100, 2000, 65535], [1900, 1800, 65535]],
        }
    ).replace_schema_metadata({"clock": "monotonic"})
    path = tmp_path / "own.parquet"
    parquet.write_table(table, path)
    telemetry = read(tmp_path, path.read_bytes(), "copy.parquet")
    assert telemetry.clock is ClockDomain.MONOTONIC
    assert values(telemetry, SignalName.POWER_W) == [700.5]
    assert values(telemetry, SignalName.GFX_MHZ) == [2050, 1850]
    assert parts(telemetry, SignalName.GFX_MHZ) == ["", "xcd0", "xcd1"]


def test_a_converted_pickle_of_the_original_is_read(tmp_path: Path) -> None:
    wrap = 2**32
    text = f"""\
,ts,gpu,current_socket_power,average_socket_power,current_gfxclks,current_uclk,\
temperature_hotspot,average_gfx_activity,energy_accumulator,xgmi_read_data_acc,\
accumulation_counter,ppt_residency_acc,socket_thm_residency_acc,pcie_bandwidth_acc
0,1000000,2,700,N/A,"[2100, 2000, 'N/A']",1300,71,99,{wrap - 65536},"[{wrap - 2}, 10]",100,0,0,5
1,2000000,2,N/A,N/A,"[1900, 1800, 'N/A']",1300,72,98,65536,"[2, 30]",200,25,50,6
"""
    telemetry = read(tmp_path, text, "gpu.csv")
    assert list(telemetry.gpus) == [GpuName(kfd_node=2)]
    assert telemetry.clock is ClockDomain.MONOTONIC
    assert values(telemetry, SignalName.POWER_W) == [700]
    assert values(telemetry, SignalName.GFX_MHZ) == [2050, 1850]
    assert values(telemetry, SignalName.ENERGY_J) == [0, 2]
    assert values(telemetry, SignalName.XGMI_READ_BYTES, part="link0") == [0, 4 * 1024]
    assert values(telemetry, SignalName.XGMI_READ_BYTES) == [0, 24 * 1024]
    assert values(telemetry, SignalName.THROTTLE_PCT, part="ppt") == [25]
    assert values(telemetry, SignalName.THROTTLE_PCT) == [50]
    assert any("pcie_bandwidth_acc" in note for note in telemetry.notes)


def test_gzip_is_read_by_its_content(tmp_path: Path) -> None:
    telemetry = read(tmp_path, METRIC_CSV, "metric.csv.gz")
    assert values(telemetry, SignalName.POWER_W) == [700] * 3


def test_json_text_of_a_list(tmp_path: Path) -> None:
    assert values(read(tmp_path, metric_list(), "m.json"), SignalName.POWER_W) == [700, 700]


def test_amd_smi_says_pcie_in_megabits(tmp_path: Path) -> None:
    text = "timestamp,gpu,power_usage,gfx_clk,pcie_bw\n1754585900,0,700,2100,8000 Mb/s\n"
    assert values(read(tmp_path, text), SignalName.PCIE_GBPS) == [pytest.approx(1.0)]


def test_windows_of_zeus_have_their_mean_power(tmp_path: Path, wording: Wording) -> None:
    """An epoch holds its steps; a name can have commas; a window without a reading counts less."""
    path = tmp_path / "zeus.csv"
    path.write_text(
        "start_time,window_name,elapsed_time,gpu0_energy,gpu3_energy\n"
        "1000.5,step 0,0.5,300.0,150.0\n"
        "1001.0,step 1, all,0.25,100.0,None\n"
        "1000.5,epoch,1.0,500.0,200.0\n"
        "damaged\n"
    )
    telemetry = read_source(path, Family.TELEMETRY)
    assert [gpu.index for gpu in telemetry.gpus] == [0, 3]
    first, second = (telemetry.signals[gpu, SignalName.POWER_W][0] for gpu in (0, 1))
    assert (first.value.tolist(), second.value.tolist()) == ([600, 400], [300])
    assert first.begin_ns is not None
    assert first.begin_ns.tolist() == [1_000_500_000_000, 1_001_000_000_000]
    assert first.time_ns.tolist() == [1_001_000_000_000, 1_001_250_000_000]
    (note,) = telemetry.notes
    wording(note, "1 window")
    assert telemetry.losses.unreadable_events == 1


def test_energy_of_processors_is_that_of_the_node(tmp_path: Path, wording: Wording) -> None:
    """Of windows that hold no other one, where there is a reading."""
    path = tmp_path / "zeus.csv"
    path.write_text(
        "start_time,window_name,elapsed_time,gpu0_energy,cpu0_energy,dram0_energy,new\n"
        "1000,a,2,300,100,None,1\n1002,b,3,300,150,15,2\n1000,both,5,600,250,20,3\n"
    )
    telemetry = read_source(path, Family.TELEMETRY)
    first, second = telemetry.notes[:2]
    wording(first, "CPU 0", "250 J", "5 s", "50 W")
    wording(second, "DRAM 0", "15 J", "3 s", "5 W")
    assert telemetry.unused == {"new": 3}


def test_windows_of_zeus_without_a_reading_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "zeus.csv"
    path.write_text("start_time,window_name,elapsed_time,gpu0_energy\n1000,step,0.5,None\n")
    with pytest.raises(DataError, match="is Zeus window log, but holds no usable sample"):
        read_source(path, Family.TELEMETRY)


def test_a_table_finds_gpus_below_the_headings_that_it_declares(tmp_path: Path) -> None:
    """As one of a plugin: the headings of the GPU are those that recognise the file."""
    columns, path = {"watts": Field(SignalName.POWER_W, "w")}, tmp_path / "power.csv"
    table = TelemetryTable("meter CSV", columns, gpu=("slot", "deviceid"), time=("time",))
    path.write_text("time,DeviceId,watts\n1,0,500\n1,3,501\n2,0,502\n2,3,503\n")
    found = table.read(path)
    assert list(found.gpus) == [GpuName(index=0), GpuName(index=3)]
    assert values(found, SignalName.POWER_W, 1) == [501, 503]
    # Of several that there are the first with something in it.
    path.write_text("time,slot,DeviceId,watts\n1,,0,500\n1,7,3,501\n")
    assert list(table.read(path).gpus) == [GpuName(index=0), GpuName(index=7)]
    path.write_text("time,DeviceId,watts\n1,left,500\n1,right,501\n")
    with pytest.raises(DataError, match="no usable sample: 2 rows without a GPU or any value"):
        table.read(path)


@pytest.mark.parametrize("declared", ["gpu", "time", "host"])
def test_a_heading_that_no_file_can_have_is_refused(declared: str) -> None:
    """Headings are compared in lower case."""
    with pytest.raises(ValueError, match="meter CSV: declare the heading 'Slot' in lower case"):
        TelemetryTable("meter CSV", {}, **{declared: ("Slot",)})


POWERS = "power.draw [W], power.draw.average [W], power.draw.instant [W]"


def test_one_column_is_the_power_of_all_gpus(tmp_path: Path, wording: Wording) -> None:
    """Since driver 535 there are three; power.draw is lacking on one GPU."""
    lines = [f"timestamp, index, name, {POWERS}"]
    for second in range(3):
        for gpu, draw in ((0, "300 W"), (1, "[N/A]")):
            stamp = f"2025/11/02 01:30:0{second}.000"
            lines.append(f"{stamp}, {gpu}, NVIDIA H100 80GB HBM3, {draw}, 200 W, {310 + gpu} W")
    found = read(tmp_path, "\n".join([*lines, ""]))
    assert [values(found, SignalName.POWER_W, gpu)[0] for gpu in (0, 1)] == [310, 311]
    wording.among(found.notes, "power_w is power.draw.instant")
    assert {gpu.model for gpu in found.gpus} == {"NVIDIA H100 80GB HBM3"}
    run = open_run(str(tmp_path), jobs=1)
    assert run.hardware is not None and run.hardware.name == "H100-SXM"


def test_the_hour_that_repeats_at_the_end_of_summer_time(tmp_path: Path, wording: Wording) -> None:
    """10 minutes of 400 W up to 3:00, then 20 of 200 W from 2:00."""
    times = [*range(170 * 60, 180 * 60, 10), *range(120 * 60, 140 * 60, 10)]
    lines = ["timestamp, index, power.draw [W]"]
    for at, second in enumerate(times):
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000"
        lines.append(f"2025/10/26 {clock}, 0, {400 if at < 60 else 200} W")
    found = read(tmp_path, "\n".join([*lines, ""]))
    power = samples(found, SignalName.POWER_W)
    assert set(np.diff(power.time_ns).tolist()) == {10 * SECOND_NS}
    assert power.value.tolist() == [400] * 60 + [200] * 120
    wording.among(found.notes, "120 rows", "an hour later")
    # Another step back is disorder, and so are two of an hour: the rows are sorted.
    for rows in (lines[40:60] + lines[1:40], lines[1:] + lines[1:]):
        again = read(tmp_path, "\n".join([lines[0], *rows, ""]))
        assert not any("an hour later" in note for note in again.notes)


def test_scrapes_of_omnistat(tmp_path: Path) -> None:
    text = "".join(
        f"rocm_num_gpus 2.0 {1000 * (START_S + at)}\n"
        + f'rocm_version_info{{card="1",driver_ver="6.14",type="AMD Instinct MI300X"}} 1.0 '
        f"{1000 * (START_S + at)}\n"
        + "".join(
            f"{name} {value} {1000 * (START_S + at)}\n"
            for card in (0, 1)
            for name, value in (
                (f'rocm_average_socket_power_watts{{card="{card}"}}', 400 + card),
                (f'rocm_sclk_clock_mhz{{card="{card}"}}', 2100),
                (f'rocm_temperature_celsius{{card="{card}",location="hotspot"}}', 61),
                (f'rocm_temperature_memory_celsius{{card="{card}",location="hbm_0"}}', 46),
                (f'rocm_utilization_percentage{{card="{card}"}}', 97),
                (f'rocm_vram_used_percentage{{card="{card}"}}', 12.5),
            )
        )
        for at in range(2)
    )
    found = read(tmp_path, text, "omnistat.prom")
    assert found.format == "omnistat scrapes"
    assert [gpu.model for gpu in found.gpus] == ["", "AMD Instinct MI300X"]
    assert values(found, SignalName.POWER_W, 1) == [401, 401]
    assert values(found, SignalName.HOTSPOT_C) == [61, 61]
    assert values(found, SignalName.MEM_C) == [46, 46]
    assert values(found, SignalName.GFX_UTIL_PCT) == [97, 97]
    assert found.unused == {"rocm_num_gpus": 2, "rocm_vram_used_percentage": 4}
