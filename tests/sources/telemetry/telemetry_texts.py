"""Small telemetry files written by hand after the tools' column lists."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.signals import SignalName, SignalSamples, Telemetry

SECOND_NS = 1_000_000_000
START_S = 1_754_585_900


def put(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_telemetry(path: Path) -> Telemetry:
    telemetry = read_source(path, Family.TELEMETRY)
    assert isinstance(telemetry, Telemetry)
    return telemetry


def read(tmp_path: Path, text: str | bytes, name: str = "telemetry.csv") -> Telemetry:
    return read_telemetry(put(tmp_path / name, text))


def samples(
    telemetry: Telemetry, signal: SignalName, gpu: int = 0, part: str = ""
) -> SignalSamples:
    return next(entry for entry in telemetry.signals[gpu, signal] if entry.part == part)


def values(telemetry: Telemetry, signal: SignalName, gpu: int = 0, part: str = "") -> list[float]:
    return samples(telemetry, signal, gpu, part).value.tolist()


def seconds(telemetry: Telemetry, signal: SignalName, gpu: int = 0, part: str = "") -> list[float]:
    """Times of a signal in seconds after START_S."""
    times_ns = samples(telemetry, signal, gpu, part).time_ns
    return [(time_ns - START_S * SECOND_NS) / SECOND_NS for time_ns in times_ns.tolist()]


def parts(telemetry: Telemetry, signal: SignalName, gpu: int = 0) -> list[str]:
    return [entry.part for entry in telemetry.signals[gpu, signal]]


METRIC_HEADINGS = (
    "timestamp,gpu,gfx_activity,umc_activity,mm_activity,vcn_activity,socket_power,gfx_voltage,"
    "throttle_status,gfx_0_clk,gfx_0_min_clk,gfx_0_max_clk,gfx_0_clk_locked,gfx_1_clk,gfx_2_clk,"
    "mem_0_clk,mem_0_max_clk,edge,hotspot,mem,width,bandwidth,current_bandwidth_sent,"
    "total_energy_consumption,total_vram,used_vram,accumulation_counter,prochot_accumulated,"
    "ppt_accumulated,socket_thermal_accumulated,ppt_violation_activity,hbm_thermal_accumulated"
)


def metric_row(second: int, gpu: int, energy_j: float, ticks: int, ppt: int, thermal: int) -> str:
    return (
        f"{START_S + second},{gpu},97,41,N/A,\"['N/A', '0', 'N/A']\",{700 + gpu},N/A,UNTHROTTLED,"
        f"2100,132,2100,DISABLED,2000,N/A,1300,1300,N/A,71,{60 + second},16,N/A,N/A,"
        f"{energy_j},196592,{1000 + second},{ticks},0,{ppt},{thermal},5,N/A"
    )


METRIC_CSV = "\n".join(
    (
        METRIC_HEADINGS,
        metric_row(0, 0, 1000.5, 2**32 - 1000, 10, 0),
        metric_row(0, 1, 2000.0, 500, 7, 7),
        metric_row(1, 0, 1700.5, 0, 260, 100),
        metric_row(1, 1, 2701.0, 1500, 7, 7),
        metric_row(2, 0, 2400.25, 1000, 260, 600),
        metric_row(2, 1, 3402.0, 2500, 7, 7),
        "",
    )
)


def with_unit(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def metric_object(gpu: int, second: int | None = None, power_w: float = 700) -> dict[str, Any]:
    def clock(mhz: Any) -> dict[str, Any]:
        return {"clk": mhz, "min_clk": with_unit(132, "MHz"), "clk_locked": "N/A"}

    stamp = {} if second is None else {"timestamp": START_S + second}
    return {
        **stamp,
        "gpu": gpu,
        "usage": {"gfx_activity": with_unit(97, "%"), "umc_activity": with_unit(41, "%")},
        "power": {"socket_power": with_unit(power_w, "W"), "gfx_voltage": "N/A"},
        "clock": {
            "gfx_0": clock(with_unit(2100, "MHz")),
            "gfx_1": clock(with_unit(2.0, "GHz")),
            "gfx_2": clock("N/A"),
            "mem_0": clock(with_unit(1300, "MHz")),
        },
        "temperature": {"edge": "N/A", "hotspot": with_unit(71, "C"), "mem": with_unit(60, "C")},
        "energy": {"total_energy_consumption": with_unit(10.5, "J")},
        "mem_usage": {"used_vram": with_unit(2048, "MB")},
        "throttle": {"accumulation_counter": "N/A", "ppt_violation_activity": with_unit(5, "%")},
    }


def metric_list(seconds_: tuple[int, ...] = (0, 1), gpus: int = 2) -> str:
    return json.dumps([metric_object(gpu, second) for second in seconds_ for gpu in range(gpus)])


OLD_MONITOR_CSV = f"""\
timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clock,gfx,mem,mem_clock,\
vram_used,vram_total,pviol,tviol,phot_tviol
{START_S},0,650,70,60,2100,99,30,1300,1024,196592,12,3,N/A
{START_S},1,640,69,59,N/A,98,29,1300,1025,196592,0,0,N/A
{START_S + 1},0,651,71,61,2000,100,31,1300,1026,196592,14,20,N/A
{START_S + 1},1,641,70,60,1900,97,28,1300,1027,196592,0,0,N/A
"""

NEW_MONITOR_CSV = f"""\
timestamp,gpu,xcp,power_usage,max_power,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,\
vram_used,vram_total
{START_S},0,N/A,650,750,70,60,2100,99,30,1.5,192.0
{START_S + 1},0,N/A,651,750,71,61,2000,100,31,2.0,192.0
"""

ROCM_SMI_CSV = f"""\
timestamp,device,Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),\
Temperature (Sensor memory) (C),Current Socket Graphics Package Power (W),GPU use (%),\
GPU Memory Allocated (VRAM%),GPU Memory Read/Write Activity (%),sclk clock speed:,\
sclk clock level:,mclk clock speed:,VRAM Total Used Memory (B),Node ID,PCI Bus
{START_S}.25,card0,N/A,44.0,39.0,152.0,93,71,20,(2100Mhz),1,(1300Mhz),2048,2,0000:0C:00.0
{START_S}.25,card1,N/A,45.0,38.0,153.0,92,71,21,(2050Mhz),1,(1300Mhz),4096,3,0000:22:00.0
{START_S + 1}.25,card0,N/A,46.0,40.0,155.5,94,71,22,(1900Mhz),1,(900Mhz),2048,2,0000:0C:00.0
"""

NVIDIA_CSV = """\
timestamp, index, pci.bus_id, power.draw [W], clocks.current.graphics [MHz], \
clocks.current.memory [MHz], temperature.gpu, utilization.gpu [%], memory.used [MiB], \
clocks_throttle_reasons.active
2025/08/07 16:58:23.250, 0, 00000000:07:00.0, 131.17 W, 1980 MHz, 2619 MHz, 41, 93 %, 1024 MiB, \
0x0000000000000001
2025/08/07 16:58:23.254, 1, 00000000:0B:00.0, [N/A], 1755 MHz, 2619 MHz, 43, 95 %, 2048 MiB, \
0x0000000000000004
2025/08/07 16:58:23.350, 0, 00000000:07:00.0, 700.50 W, 1410 MHz, 2619 MHz, 52, 100 %, 1024 MiB, \
0x0000000000000044
"""

NVIDIA_NO_UNITS_CSV = """\
timestamp, index, power.draw [W], utilization.gpu [%], clocks_event_reasons.sw_power_cap
2025/08/07 16:58:23, 0, 131.17, 93, Not Active
2025/08/07 16:58:24, 0, 140, 94, Active
"""

DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz     MB
 20250807   16:58:23      0    131     41      -     93     20      0      0   2619   1980   1024
 20250807   16:58:23      1    132     42     50     94     21      0      0   2619   1965   1025
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz     MB
 20250807   16:58:24      0    700     52      -    100     40      0      0   2619   1410   2048
"""

ZEUS_CSV = f"""\
time,power0,power1
{START_S}.125,131.5,140.25
{START_S}.2250001,132.5,141.25
{START_S}.325,133.5,142.25
"""

OWN_CSV = f"""\
# clock: monotonic
time_ns,gpu,gfx_mhz,gfx_mhz.xcd0,gfx_mhz.xcd1,power_w,throttle_pct.ppt,energy_j,vram_bytes
1000,0,2050,2100,2000,700,10,1000.5,{2**37}
2000,0,,2000,1800,710,20,1001.0,{2**37}
1000,1,2000,,,650,0,2000,5
"""

DCGM_DMON = """\
#Entity   POWER             TMPTR        SMCLK        GRACT             FBUSD        TOTEC                   DVCCTR
ID              W                 C                                                       mJ
GPU 0     131.170           41           1980         0.930             1024         1000000                 1
GPU 1     N/A               43           1755         0.950             2048         2000000                 4
GPU-I 0   N/A               N/A          N/A          0.400             N/A          N/A                     N/A
GPU 0     700.500           52           1410         1.000             1024         1070000                 68
#Entity   POWER             TMPTR        SMCLK        GRACT             FBUSD        TOTEC                   DVCCTR
ID              W                 C                                                       mJ
GPU 1     640.250           44           1740         0.990             2048         2064000                 4


dmon was stopped do to receiving a signal
"""  # noqa: E501
"""As dcgmi 3.3 writes it: no times, headings repeated, other entities between the GPUs."""


def stamped(text: str, stamp: str = f"{START_S}.{{ms:03d}}000") -> str:
    """Lines with a time before each, as `ts %.s` writes it: 100 ms from one line to the next."""
    lines = enumerate(text.splitlines())
    return "".join(f"{stamp.format(ms=100 * (at % 10))} {line}\n" for at, line in lines if line)


def dcgm_sample(field: str, gpu: int, value: float, more: str = "", stamp: str = "") -> str:
    """A line of dcgm-exporter."""
    labels = f'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:0{gpu}:00.0",device="nvidia{gpu}"'
    return f'{field}{{{labels},modelName="H100",Hostname="n1"{more}}} {value:f}{stamp}\n'


DCGM_SCRAPES = "".join(
    f"# {START_S + second}\n"
    "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
    + "".join(
        dcgm_sample("DCGM_FI_DEV_POWER_USAGE", gpu, 500 + 10 * gpu + second)
        + dcgm_sample("DCGM_FI_DEV_GPU_TEMP", gpu, 60 + gpu)
        + dcgm_sample("DCGM_FI_DEV_SM_CLOCK", gpu, 1900 - gpu)
        + dcgm_sample("DCGM_FI_DEV_XID_ERRORS", gpu, 0)
        for gpu in range(2)
    )
    for second in range(3)
)
DCGM_CSV = "timestamp,Hostname,gpu,DCGM_FI_DEV_POWER_USAGE,DCGM_FI_DEV_GPU_TEMP\n" + "".join(
    f"{START_S + second},n1,{gpu},{500 + 10 * gpu + second},{60 + gpu}\n"
    for second in range(3)
    for gpu in range(2)
)
