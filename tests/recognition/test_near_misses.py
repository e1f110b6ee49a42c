"""For every reader: its own file, and near misses that must be read right or refused by name.

A case is a file name, its content, and a part of the outcome (`outcomes.outcome`).
"""

from __future__ import annotations

import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.recognition.outcomes import outcome, put
from tests.sources.counters.counter_writers import minimal_rocpd

S = 1_726_000_000
"""Seconds since the epoch."""
Case = tuple[str, str | bytes, str]


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def doc(**keys: Any) -> str:
    return json.dumps(keys)


SAMPLES = lines(f"{S}.25,600", f"{S}.5,610")
CHARLLM: list[Case] = [
    ("gpu_power_3.csv", SAMPLES, "CharLLM-PPT CSV: power_w[3]=600.0 (epoch)"),
    ("power_0.csv", SAMPLES, "power_w[0]=600.0"),
    ("GPU_POWER_3.CSV", SAMPLES, "power_w[3]=600.0"),
    ("gpu_power_12.csv.gz", SAMPLES, "power_w[12]=600.0"),
    ("gpu_thermal_3.csv", lines(f"{S}.25,60"), "edge_c[3]=60.0"),
    ("mem_thermal_3.csv", lines(f"{S}.25,61"), "mem_c[3]=61.0"),
    ("sm_clock_9.csv", lines(f"{S}.25,1980"), "gfx_mhz[9]=1980.0"),
    ("mem_clock_9.csv", lines(f"{S}.25,2619"), "mem_mhz[9]=2619.0"),
    ("gpu_util_9.csv", lines(f"{S}.25,100"), "gfx_util_pct[9]=100.0"),
    ("mem_power_9.csv", lines(f"{S}.25,80"), "mem_power_w[9]=80.0"),
    (
        "nvlink_rx_throughput_9.csv",
        lines(f"{S},10", f"{S + 1},20"),
        "nvlink_read_gbps[9]=1.024e-05",
    ),
    ("nvlink_tx_throughput_9.csv", lines(f"{S},10", f"{S + 1},20"), "nvlink_write_gbps[9]=1.02"),
    (
        "pcie_rx_bytes_9.csv",
        lines(f"{S},4294966295", f"{S + 1},9001"),
        "pcie_gbps.rx[9]=1.0002e-05",
    ),
    ("gpu_power_3.csv", lines(f"{S}.25,-1", f"{S}.5,610"), "power_w[3]=610.0"),
    ("gpu_power_3.csv", lines(f"{S}.25,-1"), "refused: is CharLLM-PPT CSV, but holds no usable"),
    ("gpu_util_3.csv", lines(f"{S}.25,600"), "refused: is CharLLM-PPT CSV, but holds no usable"),
    ("mem_util_9.csv", lines(f"{S}.25,40"), "refused: is the memory's activity on NVIDIA and"),
    (
        "gpu_current_3.csv",
        SAMPLES,
        "refused: has no headings, and 'gpu_current' in its name isn't",
    ),
    ("gpu_power.csv", SAMPLES, "refused: has no headings, and its name doesn't say the metric"),
    ("telemetry.csv", SAMPLES, "refused: has no headings, and its name doesn't say the metric"),
    ("3.csv", SAMPLES, "refused: has no headings"),
    ("system_cpu_temp_rank_3.csv", SAMPLES, "refused: has no headings, and 'system_cpu_temp_rank'"),
    ("system_cpu_usage_rank_3_id_0.csv", SAMPLES, "refused: mixes the seconds of several states"),
    ("system_ib_rx_bytes_rank_3_id_ib0.csv", SAMPLES, "ib_read_bytes"),
    ("system_memory_used_3.csv", SAMPLES, "host_memory_bytes[3]=600.0"),
    ("gpu_power_rank_3_id_0.csv", SAMPLES, "refused: has no headings"),
    ("gpu_power_3.csv", "", "refused: is empty: the run was stopped before it wrote its samples"),
    ("gpu_power_3.csv", lines(f"{S}.25,600,1", f"{S}.5,610,1"), "refused: has no headings"),
    ("gpu_power_3.csv", lines("0.25,600", "0.5,610"), "refused: has no headings"),
]
ZEUS: list[Case] = [
    ("z.csv", lines("time,power0,power1", f"{S}.5,100,200"), "power_w[0]=100.0, power_w[1]=200.0"),
    ("z.csv", lines("time,power4", f"{S}.5,100"), "Zeus power CSV: power_w[4]=100.0"),
    (
        "z.csv",
        lines("time,power", f"{S}.5,100"),
        "refused: is a table of no known tool (columns ti",
    ),
    ("z.csv", lines("time,energy0", f"{S}.5,100"), "refused: is a table of no known tool"),
    ("z.csv", lines(f"{S}.5,100,200"), "refused: has no headings"),
    (
        "z.csv",
        lines("start_time,window_name,elapsed_time", "1,s,2"),
        "refused: is a table of no known tool",
    ),
]
QUERY = "timestamp, index, power.draw [W], clocks.current.sm [MHz]"
ROW = "2025/07/27 00:22:27.858, 1, 71.25 W, 1980 MHz"
ROUND = [
    f"2025/07/27 00:22:{s:02}.{ms}, {w} W" for s in range(4) for ms, w in ((858, 71), (862, 72))
]
NVIDIA: list[Case] = [
    ("n.csv", lines(QUERY, ROW), "nvidia-smi CSV: gfx_mhz[1]=1980.0, power_w[1]=71.25 (local time"),
    ("n.csv", lines("timestamp, index, power.draw [mW]", "2025/07/27 00:22:27, 0, 71000"), "=71.0"),
    (
        "n.csv",
        lines("timestamp, index, power.draw [J]", "2025/07/27 00:22:27, 0, 7"),
        "refused: is nv",
    ),
    (
        "n.csv",
        lines(QUERY, ROW.replace("71.25 W", "71 C").replace("1980", "x")),
        "refused: is nvidia",
    ),
    ("n.csv", lines("timestamp, index, watts", "2025/07/27 00:22:27, 0, 7"), "refused: is a table"),
    ("n.csv", lines("timestamp, power.draw [W]", *ROUND), "power_w[0]=71.0, power_w[1]=72.0"),
    ("n.csv", lines("timestamp, power.draw [W]", *ROUND[::2]), "power_w[]=71.0"),
    (
        "n.csv",
        lines("timestamp, power.draw [W]", *ROUND[:2]),
        "refused: doesn't name the GPU of its",
    ),
    ("n.csv", lines("timestamp, power.draw [W]", *ROUND[:1] * 9), "refused: doesn't name the GPU"),
    ("n.csv", lines("power.draw [W]", "7 W", "8 W"), "refused: "),
    (
        "n.txt",
        lines("# gpu pwr gtemp", "# Idx W C", "0 131 41"),
        "nvidia-smi dmon: edge_c[0]=41.0, power_w[0]=131.0",
    ),
    ("n.txt", lines("# pwr gtemp", "# W C", "131 41"), "refused: is text of no known tool"),
    (
        "n.txt",
        lines("# gpu rxpci txpci", "# Idx MB/s MB/s", "0 1 2"),
        "refused: is text of no known",
    ),
    (
        "n.txt",
        "Sun Jul 27 00:22:27 2025\n+-----+\n| NVIDIA-SMI 550 |\n",
        "refused: is a screen of nvid",
    ),
]
PMON = (
    "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command",
    "# Idx           #    C/G      %      %      %      %      %      %    name",
    "    0      10291     C     48      6      -      -      -      -    python",
    "    0      10293     C     50      7      -      -      -      -    python",
)
NVIDIA += [
    (
        "n.txt",
        lines(*PMON),
        "refused: lists processes (column pid), not GPUs; record: nvidia-smi --query-gpu=timestamp",
    ),
    (
        "a.csv",
        lines("timestamp,gpu,name,pid,mem_usage,gfx,enc", f"{S},0,python,7,1,2,3"),
        "refused: lists processes (column pid), not GPUs; record: amd-smi metric -w 1 --csv",
    ),
]
DCGM: list[Case] = [
    ("d.txt", lines("#Entity POWER", "ID W", "GPU 1 71.250"), "dcgmi dmon: power_w[1]=71.25 (unk"),
    ("d.txt", lines(f"{S}.5 #Entity POWER", f"{S}.6 GPU 1 71.250"), "power_w[1]=71.25 (epoch)"),
    ("d.txt", lines("#Entity XIDER", "ID", "GPU 1 0"), "refused: is text of no known tool"),
    ("d.txt", lines("#Entity POWER", "ID W", "Switch 1 71.250"), "refused: is dcgmi dmon, but"),
    ("d.txt", lines("#Entity POWER", "ID W", "GPU 1 N/A"), "refused: is dcgmi dmon, but holds no"),
    ("d.txt", lines("Entity Name Kind", "GPU 1 71.250"), "refused: is text of no known tool"),
    ("d.prom", lines(f'DCGM_FI_DEV_GPU_TEMP{{gpu="1"}} 41 {S}000'), "edge_c[1]=41.0 (epoch)"),
    (
        "d.prom",
        lines('DCGM_FI_DEV_GPU_TEMP{UUID="a"} 41'),
        "refused: is dcgm-exporter scrapes, but",
    ),
    ("d.prom", lines('node_power{gpu="1"} 41'), "refused: is text of no known tool"),
    ("d.csv", lines("time,gpu,DCGM_FI_DEV_SM_CLOCK", f"{S},1,1980"), "DCGM CSV: gfx_mhz[1]=1980.0"),
    ("d.csv", lines("time,gpu,POWER", f"{S},1,71"), "refused: is a table of no"),
]
METRIC = "timestamp,gpu,socket_power,gfx_0_clk,hotspot"
AMD_JSON = {"gpu": 2, "power": {"socket_power": {"value": 150, "unit": "W"}}}
AMD: list[Case] = [
    ("a.csv", lines(METRIC, f"{S},2,150,2100,71"), "hotspot_c[2]=71.0, power_w[2]=150.0"),
    ("a.csv", lines(METRIC, f"{S},2,150 C,2100 W,71 MHz"), "refused: is amd-smi metric CSV, but"),
    (
        "a.csv",
        lines(METRIC, f"{S},2,0.15 kW,2.1 GHz,71"),
        "gfx_mhz[2]=2100.0, hotspot_c[2]=71.0, power_w[2]=150.0",
    ),
    (
        "a.csv",
        lines(METRIC.replace("gpu", "card"), f"{S},2,150,2100,71"),
        "refused: is a table of no",
    ),
    ("a.csv", lines(METRIC.replace("timestamp", "when"), f"{S},2,150,2100,71"), "(unknown)"),
    ("a.csv", lines("timestamp,gpu,voltage", f"{S},2,1"), "refused: is a table of no known tool"),
    (
        "a.csv",
        lines("timestamp,gpu,power_usage", f"{S},2,150"),
        "amd-smi monitor CSV: power_w[2]=15",
    ),
    ("a.json", json.dumps([AMD_JSON]), "amd-smi JSON: power_w[2]=150.0"),
    ("a.json", json.dumps([AMD_JSON, AMD_JSON | {"gpu": 3}]), "power_w[2]=150.0, power_w[3]=150.0"),
    ("a.json", json.dumps({"gpu_data": [AMD_JSON]}), "power_w[2]=150.0"),
    (
        "a.json",
        json.dumps([{"gpu": 2, "asic": {"market_name": "MI300X"}}]),
        "refused: is a JSON list",
    ),
    (
        "a.json",
        json.dumps([{"gpu": 2, "power": {"socket_power": {"value": 1, "unit": "C"}}}]),
        "refus",
    ),
]
CARD = {"Current Socket Graphics Package Power (W)": "159.0", "GPU use (%)": "7"}
ROCM_SMI: list[Case] = [
    (
        "r.json",
        doc(card0=CARD),
        "rocm-smi JSON: gfx_util_pct[card0]=7.0, power_w[card0]=159.0 (unkn",
    ),
    ("r.json", doc(timestamp=S, card0=CARD, card1=CARD), "power_w[card1]=159.0 (epoch)"),
    ("r.json", lines(doc(timestamp=S, card0=CARD), doc(timestamp=S + 1, card0=CARD)), "(epoch)"),
    ("r.json", doc(card0={"Card Series": "MI300X"}), "refused: is rocm-smi JSON without power"),
    ("r.json", doc(card0={"Voltage (mV)": "900"}), "refused: is rocm-smi JSON without power"),
    ("r.json", doc(gpu0=CARD), "refused: is JSON of no known tool (keys gpu0)"),
    (
        "r.csv",
        lines("timestamp,device,GPU use (%)", f"{S},card0,7"),
        "rocm-smi CSV: gfx_util_pct[card0",
    ),
    ("r.csv", lines("device,GPU use (%)", "card0,7"), "gfx_util_pct[card0]=7.0 (unknown)"),
    ("r.csv", lines("timestamp,GPU use (%)", f"{S},7"), "refused: is a table of no known tool"),
    ("r.csv", lines("timestamp,device,power_watts", f"{S},card0,7"), "power_w[card0]=7.0"),
    (
        "r.csv",
        lines("timestamp,device,power_kilowatts", f"{S},card0,7"),
        "refused: is a table of no",
    ),
    ("r.csv", lines("timestamp,device,gfx_activity", f"{S},card0,7"), "refused: is a table of no"),
    (
        "r.txt",
        "=== ROCm System Management Interface ===\nGPU[0] : 1\n",
        "refused: is a screen of rocm",
    ),
]
OWN: list[Case] = [
    (
        "o.csv",
        lines("# clock: monotonic", "time_ns,gpu,power_w", "5,0,7"),
        "telemetry CSV: power_w[0]",
    ),
    ("o.csv", lines("time_ns,gpu,power_w", "5,0,7"), "power_w[0]=7.0 (unknown)"),
    ("o.csv", lines("time_ns,gpu,power_mw", "5,0,7"), "refused: is a table of no known tool"),
    ("o.csv", lines("time_s,gpu,power_w", "5,0,7"), "refused: is a table of no known tool"),
    ("o.csv", lines("time_ns,gpu,power_w", "5,0,7 mW"), "power_w[0]=0.007"),
    ("o.csv", lines("time_ns,gpu,power_w", "5,0,7 C"), "refused: is telemetry CSV, but holds no"),
    ("o.csv", lines("time_ns,power_w", "5,7"), "power_w[]=7.0"),
    ("o.csv", lines("time_ns,power_w", "5,7", "5,8", "9,7"), "refused: doesn't name the GPU"),
    ("o.parquet", b"PAR1 and no more", "refused: is Parquet that can't be read"),
    (
        "c.csv",
        lines("# clock: epoch", f"time_ns,cpu,percent\n{S},0,50"),
        "CPU samples CSV: 1 CPUs, [50",
    ),
    ("c.csv", lines("time_ns,cpu,fraction", f"{S},0,0.5"), "refused: is a table of no known tool"),
    ("c.csv", lines("time_ns,cpu,percent", f"{S},0,5000"), "refused: holds no usable CPU sample"),
    (
        "memory.csv",
        lines("timestamp,used_gb,free_gb", f"{S},1,2"),
        "refused: is a table of no known",
    ),
    (
        "cpu.csv",
        lines("timestamp,cpu_percent", f"{S},1"),
        "refused: is a table of no known tool (col",
    ),
]
COUNTS = "Dispatch_Id,Agent_Id,Kernel_Name,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp"
TRACE = "Kind,Agent_Id,Dispatch_Id,Kernel_Name,Start_Timestamp,End_Timestamp"
WIDE = "Dispatch_ID,GPU_ID,Grid_Size,Kernel_Name,Start_Timestamp,End_Timestamp,SQ_WAVES"
COUNTERS: list[Case] = [
    (
        "1_counter_collection.csv",
        lines(COUNTS, "1,Agent 4,k,SQ_WAVES,9,5,6"),
        "1 dispatches, 1 timed",
    ),
    ("mine.txt", lines(COUNTS, "1,Agent 4,k,SQ_WAVES,9,5,6"), "{'SQ_WAVES': 9.0}"),
    ("c.csv", lines(COUNTS, "1,Agent 4,k,SQ_WAVES,9,8.1E+14,8.1E+14"), "1 dispatches, 0 timed"),
    ("c.csv", lines(COUNTS, "1,Agent 4,k,SQ_WAVES,9,5.25,6.75"), "1 dispatches, 1 timed"),
    ("c.csv", lines(COUNTS, "1,Agent 4,k,SQ_WAVES,9,6,5"), "1 dispatches, 0 timed"),
    (
        "c.csv",
        lines(COUNTS.replace("Kernel_Name", "Kernel"), "1,A,k,S,9,5,6"),
        "refused: is a table of",
    ),
    (
        "c.csv",
        lines(COUNTS.replace("Dispatch_Id", "Id"), "1,A,k,S,9,5,6"),
        "refused: has counters, but",
    ),
    ("c.csv", lines(COUNTS, "x,Agent 4,k,SQ_WAVES,9,5,6"), "refused: has no dispatches"),
    (
        "t.csv",
        lines(TRACE, "KERNEL_DISPATCH,Agent 4,1,k,5,6"),
        "rocprofv3 CSV: 1 dispatches, 1 timed, {}",
    ),
    (
        "t.csv",
        lines(TRACE.replace("Start_Timestamp", "Start"), "K,A,1,k,5,6"),
        "refused: is a table of",
    ),
    (
        "t.csv",
        lines("Kind,Direction,Start_Timestamp,End_Timestamp", "M,H2D,5,6"),
        "refused: has memory c",
    ),
    ("t.csv", lines("Name,Calls,TotalDurationNs", "k,1,2"), "refused: has totals; Chopper adds up"),
    ("t.csv", lines("Sample_Timestamp,Exec_Mask,Dispatch_Id", "1,2,3"), "refused: has PC samples"),
    (
        "pmc_perf.csv",
        lines(WIDE, "0,2,64,k,5,6,9"),
        "rocprof-compute CSV: 1 dispatches, 1 timed, {'S",
    ),
    ("pmc_perf.csv", lines(WIDE, "0,2,64,k,1248227792617386.5,1248227792639148.5,9"), "1 timed"),
    (
        "pmc_perf.csv",
        lines(WIDE.replace("Dispatch_ID", "No"), "0,2,64,k,5,6,9"),
        "refused: is a ta",
    ),
    (
        "results.csv",
        lines("Index,KernelName,gpu-id,BeginNs,EndNs,SQ_WAVES", "0,k,0,5,6,9"),
        "rocprof v1",
    ),
    ("results.csv", lines("Index,KernelName,gpu-id,SQ_WAVES", "0,k,0,9"), "1 dispatches, 0 timed"),
    (
        "roctx.csv",
        lines("domain,roctx_id,name", "a,1,b"),
        "refused: is a marker trace of rocprof v2",
    ),
    (
        "kernel_traces_rank0.csv",
        lines("kernel_name,start_ns,end_ns", "k,5,6"),
        "device sampling: 1 disp",
    ),
    (
        "kernel_traces_rank0.csv",
        lines("kernel_name,start_us,end_us", "k,5,6"),
        "refused: is a table of",
    ),
    (
        "r.json",
        doc(**{"rocprofiler-sdk-tool": []}),
        "refused: has no dispatches; rocprofv3 records",
    ),
    ("pmc.txt", "pmc: SQ_WAVES GRBM_COUNT\ngpu: 0\n", "refused: is a list of counters to collect"),
]
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 2, "tid": 0, "ts": 5, "dur": 1}
CALL = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 5, "dur": 1}


def events(*found: dict[str, Any], **keys: Any) -> str:
    return doc(**keys, traceEvents=list(found))


CUPTI = KERNEL | {"cat": "cuda_profiler_range", "args": {"smsp__cycles_active.sum": 7}}
V1 = {"ph": "X", "name": "k", "pid": 6, "tid": 0, "ts": "5", "dur": "1", "args": {"BeginNs": "5"}}
RPD = {"ph": "X", "name": "k", "pid": "2", "tid": "0", "ts": "5", "dur": "1",
       "args": {"desc": "KernelExecution"}}  # fmt: skip
TRACES: list[Case] = [
    ("rank0.json", events(KERNEL), "Kineto trace: 1 activities of device 2"),
    ("rank0.json", json.dumps([KERNEL]), "Kineto trace: 1 activities of device 2"),
    ("rank0.json.gz", events(KERNEL, schemaVersion=1), "Kineto trace: 1 activities"),
    ("anything", events(KERNEL), "Kineto trace: 1 activities"),
    (
        "c.json",
        events(CUPTI),
        "CUPTI ranges: 1 dispatches, 0 timed, {'smsp__cycles_active_sum': 7.0}",
    ),
    ("c.json", events(CUPTI | {"cat": "cuda_profiler"}), "refused: has no GPU activity: 1 events"),
    ("cpu.json", events(CALL), "refused: has no GPU activity: 1 events, none of them a kernel"),
    ("v1.json", events(V1), "refused: is a Chrome trace of rocprof v1; give its results.csv"),
    ("rpd.json", json.dumps([{}, RPD]), "refused: is a Chrome trace made from an RPD file"),
    (
        "xpu.json",
        events(KERNEL | {"cat": "xpu_runtime"}),
        "accelerator (xpu_runtime), which is not",
    ),
    (
        "viz.json",
        events({k: v for k, v in KERNEL.items() if k != "cat"}),
        "refused: is a Chrome trace",
    ),
    ("et.json", doc(schema="1.0.1", nodes=[{"id": 1}]), "refused: is a PyTorch execution trace"),
    (
        "graph.json",
        doc(step="decode", nodes=[]),
        "refused: is JSON of no known tool (keys step, no",
    ),
    (
        "config.json",
        doc(model="llama", layers=80),
        "refused: is JSON of no known tool (keys model,",
    ),
    ("list.json", "[1, 2]", "refused: is a JSON list, but not of trace events"),
    ("empty.json", "", "refused: is empty"),
    ("spaces.json", " \n ", "refused: is empty"),
]


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "{}")
    return buffer.getvalue()


def tarred(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


OTHERS: list[Case] = [
    ("rank0.json", "<!DOCTYPE html><html>log in</html>", "refused: is an HTML page"),
    ("gpu.pkl", b"\x80\x04\x95\x00", "refused: is a Python pickle, which can run any code"),
    (
        "snapshot.pickle",
        pickle.dumps({"segments": [], "device_traces": []}),
        "refused: is a memory snapshot of PyTorch",
    ),
    ("traces.zip", zipped("rank0.json"), "refused: is a zip archive (rank0.json …); unpack it"),
    ("traces.tar", tarred("rank0.json"), "refused: is a tar archive (rank0.json …); unpack it"),
    ("traces.tar.gz", tarred("r/0.json"), "refused: is a tar archive (r/0.json …); unpack it"),
    ("traces.tgz", b"\x1f\x8bgarbage", "refused: "),
    ("rank0.json.zst", b"\x28\xb5\x2f\xfd1234", "refused: can't be read: The zstd stream is"),
    ("rank0.json.xz", b"\xfd7zXZ\x00", "refused: is compressed with xz"),
    ("rank0.json.bz2", b"BZh91", "refused: can't be read: The bzip2 stream is cut off"),
    ("rank0.et", b"\x08\x01\x12", "refused: can't be read as a Chakra trace: its start claims"),
    ("a.pftrace", b"\n\x05", "refused: is a Perfetto trace"),
    ("a.nsys-rep", b"\x00\x01", "refused: is a report of Nsight Systems"),
    ("a.ncu-rep", b"NVR\0", "refused: is a report of Nsight Compute"),
    ("zeros.json", b"\0" * 64, "refused: holds zeros"),
    ("rank0.json", "version https://git-lfs.github.com/spec/v1\n", "refused: is a Git LFS pointer"),
    ("log.txt", "Omniperf version: 2.0.0\n", "refused: is text of no known tool ('Omniperf ver"),
    ("numbers.csv", "1,2,3\n4,5,6\n", "refused: has no headings"),
    ("x.csv", "a\x1b[2J,b\n1,2\n", "refused: is a table of no known tool (columns a\ufffd[2J, b)"),
    ("x.json", '{"\x1b]0;x": 1}', "refused: is JSON of no known tool (keys \ufffd]0;x)"),
    ("x.tar", tarred("\x1b[2J"), "refused: is a tar archive (\ufffd[2J …)"),
    ("x.csv", f"{'h' * 3000},b\n1,2\n", "hhh…, b)"),
]  # fmt: skip


CASES = [*CHARLLM, *ZEUS, *NVIDIA, *DCGM, *AMD, *ROCM_SMI, *OWN, *COUNTERS, *TRACES, *OTHERS]


@pytest.mark.few(50)
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    CASES,
    ids=[f"{number}-{name}" for number, (name, _, _) in enumerate(CASES)],
)
def test_a_file_is_read_right_or_refused(
    tmp_path: Path, name: str, content: str | bytes, expected: str
) -> None:
    found = outcome(put(tmp_path, name, content))
    assert expected in found
    if found.startswith("refused: "):
        assert "\n" not in found and str(tmp_path) not in found


def tables(path: Path, *names: str) -> Path:
    with sqlite3.connect(path) as database:
        for name in names:
            database.execute(f'CREATE TABLE "{name}" (id integer)')
    database.close()
    return path


def test_databases(tmp_path: Path) -> None:
    assert outcome(minimal_rocpd(tmp_path / "a.db", 1)).startswith("rocpd: 6 dispatches, 6 timed")
    for name, has, expected in (
        ("b.db", ("rocpd_api", "rocpd_op"), "refused: is an RPD database, but its rocpd_op lacks"),
        ("c.db", ("rocpd_api",), "refused: is an SQLite database, but not of rocprofv3"),
        ("d.sqlite", ("CUPTI_ACTIVITY_KIND_KERNEL",), "refused: is a database of Nsight Systems"),
        ("e.db", ("A", "HIP", "rocTX"), "refused: is a database of rocprof v1"),
        ("f.db", ("users",), "refused: is an SQLite database, but not of rocprofv3"),
    ):
        assert expected in outcome(tables(tmp_path / name, *has))


def test_there_are_enough_cases() -> None:
    assert len(CASES) + 6 >= 120
