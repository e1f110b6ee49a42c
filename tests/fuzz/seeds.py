"""Small true files, one or more of each format, to be damaged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.align.traces import ADAM, ADD, GEMM, RCCL, TinyTrace
from tests.ingest.test_device_sampling import write as write_samples
from tests.sources.counters.counter_writers import counter_rows, minimal_rocpd, write_csv
from tests.sources.counters.test_counter_json import process
from tests.sources.telemetry.telemetry_texts import (
    DCGM_DMON,
    DCGM_SCRAPES,
    DMON,
    METRIC_CSV,
    NEW_MONITOR_CSV,
    NVIDIA_CSV,
    OWN_CSV,
    ROCM_SMI_CSV,
    START_S,
    ZEUS_CSV,
    metric_list,
)
from tests.sources.test_rpd import write as write_rpd

Seed = Callable[[Path], Path]
"""Writes a file, and what it needs beside it, into a folder; returns the file."""

_CPU_CSV: Final = "# clock: epoch\ntime_ns,cpu,core,percent\n" + "".join(
    f"{START_S * 10**9 + at * 100_000_000},{cpu},{cpu // 2},{10 * cpu + at}\n"
    for at in range(6)
    for cpu in range(4)
)


def small_trace(rank: int = 0) -> TinyTrace:
    """Two steps of a model of two layers, with modules, shapes, flows, copies, collectives and
    allocations."""
    trace = TinyTrace(process=100 + rank)
    trace.members = {
        "baseTimeNanoseconds": START_S * 10**9,
        "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}],
        },
    }
    for step in range(2):
        at = 2000 * step
        trace.note(f"ProfilerStep#{step}", at, at + 1900)
        products = []
        for layer in range(2):
            begin = at + 100 + 300 * layer
            trace.module(f"DecoderLayer_{layer}", begin, begin + 250)
            sizes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
            products.append(trace.op("aten::mm", begin + 10, begin + 60, **sizes))
            trace.launch(GEMM, begin + 20)
            trace.op("aten::add", begin + 100, begin + 140)
            trace.launch(ADD, begin + 110, start=begin + 122 + rank)
        backward = trace.op("autograd::engine::evaluate_function: MmBackward0", at + 800, at + 900)
        trace.flow(products[0], backward)
        trace.launch(GEMM, at + 820)
        sent = {
            "Collective name": "allreduce",
            "In msg nelems": 1024,
            "dtype": "BFloat16",
            "Group size": 2,
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
        }
        trace.op("record_param_comms", at + 950, at + 1000, **sent)
        trace.launch(RCCL, at + 960, start=at + 1000 - 10 * rank, duration=50 + 10 * rank, **sent)
        trace.launch("Memcpy HtoD", at + 1100, category="gpu_memcpy", bytes=4096)
        trace.note("Optimizer.step#AdamW.step", at + 1300, at + 1500)
        trace.launch(ADAM, at + 1320)
        used = {"Device Type": 1, "Device Id": 0, "Addr": 1 << 40, "Bytes": 512 * (step + 1),
                "Total Allocated": 4096 * (step + 1), "Total Reserved": 8192}  # fmt: skip
        trace.events.append(
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": at + 50,
             "pid": trace.process, "tid": 1, "args": used}
        )  # fmt: skip
    return trace


def _trace(folder: Path) -> Path:
    small_trace(1).write(folder / "rank1.json")
    return small_trace().write(folder / "rank0.json")


def _packed_trace(folder: Path) -> Path:
    plain = small_trace().write(folder / "rank0.json")
    packed = folder / "rank0.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    return packed


def _beside(name: str, content: str | Callable[[Path], Any]) -> Seed:
    """A file beside a good trace."""

    def write(folder: Path) -> Path:
        small_trace().write(folder / "rank0.json")
        path = folder / name
        if callable(content):
            content(path)
        else:
            path.write_text(content, encoding="utf-8")
        return path

    return write


def _counters_json(path: Path) -> None:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process()]}), encoding="utf-8")


def _counters_csv(path: Path) -> None:
    kernels = [GEMM, ADD] * 4
    counted = {"SQ_WAVES": range(100, 108), "FETCH_SIZE": range(8)}
    write_csv(path, *counter_rows(kernels, counted))


def _parquet(text: str) -> Callable[[Path], Any]:
    """The same table as Parquet."""
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))

    def write(path: Path) -> None:
        table = pa.csv.read_csv(pa.BufferReader(body.encode()))
        pq.write_table(table.replace_schema_metadata({"clock": "epoch"}), path)

    return write


def _samples(folder: Path) -> Path:
    write_samples(folder)
    return folder / "counter_samples_rank0.csv"


SEEDS: Final[Mapping[str, Seed]] = {
    "trace": _trace,
    "packed trace": _packed_trace,
    "rpd": lambda folder: write_rpd(folder / "trace.rpd"),
    "rocpd": _beside("1000_results.db", lambda path: minimal_rocpd(path, 1)),
    "rocprofv3 json": _beside("a_results.json", _counters_json),
    "rocprofv3 csv": _beside("1_counter_collection.csv", _counters_csv),
    "device samples": _samples,
    "amd-smi csv": _beside("metric.csv", METRIC_CSV),
    "amd-smi monitor": _beside("monitor.csv", NEW_MONITOR_CSV),
    "amd-smi json": _beside("metric.json", metric_list()),
    "rocm-smi csv": _beside("rocm.csv", ROCM_SMI_CSV),
    "nvidia-smi csv": _beside("nvidia.csv", NVIDIA_CSV),
    "nvidia-smi dmon": _beside("dmon.txt", DMON),
    "dcgmi dmon": _beside("dcgm.txt", DCGM_DMON),
    "dcgm-exporter": _beside("metrics.prom", DCGM_SCRAPES),
    "zeus": _beside("zeus.csv", ZEUS_CSV),
    "own sampler": _beside("own.csv", OWN_CSV),
    "own sampler parquet": _beside("own.parquet", _parquet(OWN_CSV)),
    "charllm": _beside("power_0.csv", "".join(f"{START_S + n},{600 + n}\n" for n in range(9))),
    "cpu csv": _beside("cpu.csv", _CPU_CSV),
    "cpu parquet": _beside("cpu.parquet", _parquet(_CPU_CSV)),
}
"""Name → what writes the file. Those `beside` a trace must not change what is said of it."""
