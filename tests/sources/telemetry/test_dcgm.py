"""DCGM: `dcgmi dmon` with and without times, scrapes of the exporter, tables."""

from __future__ import annotations

from collections.abc import Mapping
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

from chopper_core.sources.signals import ClockDomain, GpuName, SignalName, Telemetry
from chopper_core.util.errors import DataError
from tests.wording import Wording

MIB = 2**20


def test_dmon_has_values_and_no_times(tmp_path: Path, wording: Wording) -> None:
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
    (note,) = found.losses.notes
    wording(note, "1 row", "without a GPU")


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
        + dcgm_sample(field, 0, 9, more=',GPU_I_ID="3"', stamp=f" {1000 * (START_S + at)}")
        for at in range(3)
    )
    found = read(tmp_path, text, "metrics.txt")
    assert seconds(found, SignalName.ENERGY_J) == [0, 1, 2]
    assert values(found, SignalName.ENERGY_J) == [0, 1, 2]
    assert values(found, SignalName.ENERGY_RATE_W) == [1, 1]
    assert found.losses.notes == []


def scraped(fields: Mapping[str, object], labels: str = 'gpu="0"', at: int = 0) -> str:
    return "".join(f"{field}{{{labels}}} {value} {1000 * (START_S + at)}\n"
                   for field, value in fields.items())  # fmt: skip


def signals_of(found: Telemetry) -> dict[str, list[float]]:
    return {
        f"{signal}.{each.part}".strip("."): each.value.tolist()
        for (_, signal), every in found.signals.items()
        for each in every
    }


BEFORE_4_9: dict[str, object] = {
    "DCGM_FI_DEV_SM_CLOCK": 1410, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 70, "DCGM_FI_DEV_POWER_USAGE": 612.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5000, "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 42, "DCGM_FI_DEV_FB_USED": 70000,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.96, "DCGM_FI_PROF_DRAM_ACTIVE": 0.41,
    "DCGM_FI_PROF_SM_ACTIVE": 0.5, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25,
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 700,
}  # fmt: skip
SINCE_4_9: dict[str, object] = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1410e6, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": 2619e6,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 61, "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": 70,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 612.5, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 5,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.97, "DCGM_FI_DEV_MEMORY_UTIL_RATIO": 0.42,
    "DCGM_FI_DEV_FB_USED_BYTES": 73400320000, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": 0.96,
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": 0.41, "DCGM_FI_PROF_SM_UTIL_RATIO": 0.5,
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": 0.25, "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": 700,
}  # fmt: skip


def test_the_fields_of_dcgm_4_7_are_those_of_before_in_other_units(tmp_path: Path) -> None:
    before = signals_of(read(tmp_path, scraped(BEFORE_4_9), "before.prom"))
    since = signals_of(read(tmp_path, scraped(SINCE_4_9), "since.prom"))
    assert since == before and len(since) == 12
    heading, row = ",".join(SINCE_4_9), ",".join(map(str, SINCE_4_9.values()))
    table = read(tmp_path, f"timestamp,gpu,{heading}\n{START_S},0,{row}\n", "since.csv")
    assert signals_of(table) == before


@pytest.mark.parametrize(
    ("written", "percent"),
    [(["0.97", "1", "0"], [97, 100, 0]), (["97", "100", "1"], [97, 100, 1]), (["0", "0"], [0, 0])],
)
def test_the_ratio_of_dcgm_4_6_is_in_percent(
    tmp_path: Path, written: list[str], percent: list[float]
) -> None:
    lines = (
        scraped({"DCGM_FI_DEV_GPU_UTIL_RATIO": each}, at=at) for at, each in enumerate(written)
    )
    found = read(tmp_path, "".join(lines), "a.prom")
    assert values(found, SignalName.GFX_UTIL_PCT) == percent


def test_a_ratio_that_may_be_per_cent_is_left_out(tmp_path: Path, wording: Wording) -> None:
    fields = {"DCGM_FI_DEV_GPU_UTIL_RATIO": 1, "DCGM_FI_DEV_BOARD_POWER_WATTS": 100}
    found = read(tmp_path, scraped(fields), "a.prom")
    assert list(found.signals) == [(0, SignalName.POWER_W)]
    (note,) = found.losses.notes
    wording(note, "1 value of gfx_util_pct", "wrong unit")


def test_seconds_under_a_limiter_are_shares_of_the_time(tmp_path: Path) -> None:
    lines = (
        scraped(
            {
                "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL": under,
                "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL": 7.5,
            },
            at=2 * at,
        )
        for at, under in enumerate((100.5, 101, 103))
    )
    found = read(tmp_path, "".join(lines), "a.prom")
    assert values(found, SignalName.THROTTLE_PCT, part="power") == [25, 100]
    assert values(found, SignalName.THROTTLE_PCT) == [25, 100]


def test_fields_that_nothing_is_read_from_are_counted(tmp_path: Path) -> None:
    fields = {"DCGM_FI_DEV_POWER_USAGE": 1, "DCGM_FI_DEV_NEW_POWER_KILOWATTS": 1, "go_threads": 3}
    found = read(tmp_path, scraped(fields) + scraped(fields, at=1), "a.prom")
    assert found.unused == {"DCGM_FI_DEV_NEW_POWER_KILOWATTS": 2}
    text = f"time,gpu,DCGM_FI_DEV_POWER_USAGE,new,lacking\n{START_S},0,1,2,N/A\n"
    assert read(tmp_path, text, "a.csv").unused == {"new": 1}


def test_instances_of_a_gpu_give_its_board_once(tmp_path: Path) -> None:
    text = "".join(
        scraped(
            {"DCGM_FI_DEV_POWER_USAGE": 400 + at, "DCGM_FI_DEV_FB_USED": size},
            f'gpu="0",GPU_I_ID="{instance}"',
            at,
        )
        for at in range(2)
        for instance, size in (("1", 20000), ("2", 1000))
    )
    untimed = "".join(line.rpartition(" ")[0] + "\n" for line in text.splitlines())
    for number, each in enumerate((text, untimed)):
        found = read(tmp_path, each, f"{number}.prom")
        assert signals_of(found) == {"power_w": [400, 401]}
        assert found.unused == {"DCGM_FI_DEV_FB_USED of MIG instances": 4}


AMD = 'gpu_id="{}",hostname="n1",serial_number="s"'


def test_metrics_of_amds_exporter_before_and_since_1_4_2(tmp_path: Path) -> None:
    def text(system: str, memory: str, video: str, hot: str) -> str:
        lines = ""
        for at in range(2):
            gpu = AMD.format(0)
            fields = {
                "gpu_package_power": 700,
                "gpu_average_package_power": 690,
                "gpu_energy_consumed": 1e9 + 700e6 * at,
                f"gpu_violation_{hot}_accumulated": 100 + 10 * at,
                "gpu_violation_current_accumulated_counter": 1000 + 20 * at,
                "pcie_bandwidth": 8000,
            }
            lines += scraped(fields, gpu, at)
            clocks = (system, 1900), (system, 1700), (memory, 1300), (video, 95)
            for index, (kind, mhz) in enumerate(clocks):
                labels = f'{gpu},clock_index="{index}",clock_type="{kind}"'
                lines += scraped({"gpu_clock": mhz}, labels, at)
            for link in range(2):
                lines += scraped({"gpu_xgmi_link_rx": 1000 * at}, f'{gpu},link_index="{link}"', at)
        return lines

    old = "GPU_CLOCK_TYPE_"
    before = read(
        tmp_path,
        text(f"{old}SYSTEM", f"{old}MEMORY", f"{old}VIDEO", "soc_thermal_residency"),
        "a.prom",
    )
    since = read(tmp_path, text("system", "memory", "video", "socket_thermal_residency"), "b.prom")
    assert signals_of(before) == signals_of(since)
    found = signals_of(since)
    assert found["power_w"] == [700, 700]
    assert found["energy_rate_w"] == [700]
    assert found["gfx_mhz"] == [1800, 1800] and found["gfx_mhz.xcd1"] == [1700, 1700]
    assert found["mem_mhz"] == [1300, 1300]
    assert found["throttle_pct"] == [50]
    assert found["pcie_gbps"] == [1, 1]
    assert found["xgmi_read_bytes"] == [0, 2 * 1000 * 1024]
    assert since.unused == {"gpu_clock_video": 2}


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


@pytest.mark.parametrize("name", ["DEV_POWER_VIOLATION", "PVIOL"])
def test_violations_are_nanoseconds_under_a_limiter(tmp_path: Path, name: str) -> None:
    """0.5 s of 2 s, then all of 2 s; limits of use and of synchronization are no limiters."""
    under_ns = (7_000_000_000, 7_500_000_000, 9_500_000_000)
    if name.startswith("DEV"):
        lines = (
            scraped({f"DCGM_FI_{name}": each, "DCGM_FI_DEV_LOW_UTIL_VIOLATION": 1}, at=2 * at)
            for at, each in enumerate(under_ns)
        )
        found = read(tmp_path, "".join(lines), "a.prom")
        assert found.unused == {"DCGM_FI_DEV_LOW_UTIL_VIOLATION": 3}
    else:
        rows = (f"{START_S + 2 * at} GPU 0 61 {each}\n" for at, each in enumerate(under_ns))
        found = read(tmp_path, "time #Entity TMPTR PVIOL\n" + "".join(rows), "a.txt")
    assert values(found, SignalName.THROTTLE_PCT, part="power") == [25, 100]
