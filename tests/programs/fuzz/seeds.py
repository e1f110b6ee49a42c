"""Small true files, one or more of each format, to be damaged; and what Chopper keeps itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from chopper_core.record.anchors import Anchor
from chopper_core.record.manifest import (
    MANIFEST,
    NODES,
    PROCESSES,
    SCHEMA,
    Manifest,
    RecordedGpu,
    RecordedNode,
    RecordedProcess,
    RecordedWindow,
)
from tests import charllm
from tests.align.traces import ADAM, ADD, GEMM, RCCL, TinyTrace
from tests.ingest.chakra_files import node, written
from tests.ingest.test_cupti_ranges import ranges
from tests.ingest.test_device_sampling import write as write_samples
from tests.ingest.test_host_traces import host, kineto
from tests.ingest.test_simulations import LOGGED, PLAIN
from tests.sources.counters.counter_writers import counter_rows, minimal_rocpd, write_csv
from tests.sources.counters.test_counter_json import process
from tests.sources.telemetry.telemetry_texts import (
    DCGM_CSV,
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
from tests.sources.test_nsys import write as write_nsys
from tests.sources.test_rpd import write as write_rpd
from tests.sources.trainer_texts import (
    DEEPSPEED,
    EPOCHS,
    MAXTEXT,
    MEGATRON,
    MLPERF,
    MMENGINE,
    PRIMUS,
    STATE,
    TITAN,
    TITAN_EVENTS,
    VERL,
    XTUNER,
    lines,
)
from tests.views.test_pipeline import dump

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


def _chakra(folder: Path) -> Path:
    """Two simulated steps of a rank: products, a collective, a copy; one of them without times."""
    nodes = [
        node(number, 10 + number, *([number - 1] if number > 1 else []), name=name, **more)
        for number, (name, more) in enumerate(
            [
                ("gemm", {"num_ops": 1 << 20, "tensor_size": 4096}),
                ("all_reduce", {"type": 7, "comm_type": 0, "comm_size": 1 << 20, "pg_name": "0"}),
                ("gemm", {"ts_ns": 5_000, "iteration": 1, "layer": 3, "phase": "forward"}),
                ("copy", {"type": 2, "tensor_size": 64}),
            ],
            1,
        )
    ]
    return written(folder / "a.0.et", nodes, world_size=2, rank=0)


def _packed_chakra(folder: Path) -> Path:
    plain = _chakra(folder)
    packed = folder / "a.0.et.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    return packed


def _feeder(folder: Path) -> Path:
    nodes = [
        {"id": number, "name": "gemm", "NodeType": 4, "is_cpu_op": 0, "runtime": 7,
         "data_deps": [number - 1] if number else [], "tensor_size": 512}
        for number in range(4)
    ]  # fmt: skip
    path = folder / "a.0.json"
    path.write_text(json.dumps({"workload_graph": nodes, "schema": "1"}))
    return path


def _host_trace(schema: str) -> Seed:
    def write(folder: Path) -> Path:
        kineto(folder / "kineto.json", ids=True)
        return host(folder / "host.json", schema)

    return write


def _pipeline(folder: Path) -> Path:
    for rank in range(2):
        dump(folder, rank, [(rank, rank + 1), (rank + 1, rank + 2), (4, 6), (7, 9)], 10.0)
    return folder / "pp_0.json"


def _workers(folder: Path) -> Path:
    count = 12
    path = folder / "job.parquet"
    columns = {
        "dp_rank": [0] * count, "stage": [0, 1] * 6, "rank": [0, 1] * 6, "step": [1] * count,
        "optype": ["forward-compute", "backward-compute", "gc", "forward-send"] * 3,
        "start_ts": [0.1 * n for n in range(count)], "duration": [0.05] * count,
        "mb_id": list(range(count)),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)
    return path


def _charllm(folder: Path) -> Path:
    charllm.directory(folder, ranks=2, samples=12)
    return sorted(folder.glob("*_0.csv"))[0]


def _recording(name: str) -> Seed:
    """A trace and samples with what `chopper record` says of them, in its three files."""

    def write(folder: Path) -> Path:
        small_trace().write(folder / "rank0.json")
        (folder / "own.csv").write_text(OWN_CSV)
        gpu = RecordedGpu(0, "0000:0c:00.0", name="AMD Instinct MI300X")
        anchors = [Anchor(START_S * 10**9, 10**12, 10**12 + 7, 400)]
        window = RecordedWindow(0, 1, "written", "rank0.json", 10_000)
        manifest = Manifest(SCHEMA, ["train.py"], started_ns=START_S * 10**9, returncode=0)
        for path, part in {
            MANIFEST: manifest,
            f"{NODES}/n1.json": RecordedNode("n1", anchors, [gpu], files=["own.csv"], samples=9),
            f"{PROCESSES}/n1-100.json": RecordedProcess("n1", 100, 0, 0, 2, windows=[window]),
        }.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(msgspec.json.encode(part))
        return folder / name

    return write


def _text(name: str, content: str) -> Seed:
    """A file alone."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.write_text(content)
        return path

    return write


_MANIFEST: Final = {
    "model": "llama", "parallel": {"tp": 2, "pp": 1, "dp": 1}, "seq_len": 4096, "gpus": 2,
    "nodes": [{"name": "n0", "slots": [0, 1]}], "power_cap_w": 700.5, "flash": True,
}  # fmt: skip
_JOB_YAML: Final = """\
# a job
trainer: {devices: 2}
parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
base: &base
  micro_batch_size: 4
run:
  <<: *base
  global_batch_size: "64"   # samples
  sequence_length: ${trainer.devices}
"""
_TRAINERS: Final = (MEGATRON, PRIMUS, TITAN, VERL, MAXTEXT, MMENGINE, EPOCHS, XTUNER, DEEPSPEED)

SEEDS: Final[Mapping[str, Seed]] = {
    "chakra": _chakra,
    "packed chakra": _packed_chakra,
    "chakra feeder": _feeder,
    "host trace 1.0.1": _host_trace("1.0.1"),
    "host trace 1.1.1": _host_trace("1.1.1-chakra.0.0.4"),
    "astra-sim log": _text("sim.log", PLAIN),
    "astra-sim logger": _text("sim.txt", LOGGED),
    "primus": _pipeline,
    "straggler analysis": _workers,
    "charllm alone": _charllm,
    "nvidia-smi alone": _text("nvidia.csv", NVIDIA_CSV),
    "dcgm csv": _beside("dcgm.csv", DCGM_CSV),
    "manifest json": _beside("manifest.json", json.dumps(_MANIFEST)),
    "manifest yaml": _beside("chopper.yaml", _JOB_YAML),
    **{
        f"recorded {name}": _recording(name)
        for name in (MANIFEST, f"{NODES}/n1.json", f"{PROCESSES}/n1-100.json")
    },
    "cupti ranges": _beside("cupti.json", lambda path: path.write_text(ranges())),
    "job yaml": _beside("job.yaml", _JOB_YAML),
    "trace": _trace,
    "packed trace": _packed_trace,
    "rpd": lambda folder: write_rpd(folder / "trace.rpd"),
    "nsys": lambda folder: write_nsys(folder / "report.sqlite"),
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
    **{
        f"trainer log {number}": _beside("train.log", lines(template))
        for number, template in enumerate(_TRAINERS)
    },
    "trainer log alone": _text("train.log", lines(PRIMUS) + lines(DEEPSPEED)),
    "trainer state": _text("trainer_state.json", STATE),
    "mlperf log": _text("result.log", MLPERF),
    "trainer events": _text("training.global_rank_2.jsonl", TITAN_EVENTS),
    "cpu csv": _beside("cpu.csv", _CPU_CSV),
    "cpu parquet": _beside("cpu.parquet", _parquet(_CPU_CSV)),
}
"""Name → what writes the file. Those `beside` a trace must not change what is said of it."""

OWN: Final[Mapping[str, str]] = {
    "baselines.json": json.dumps({"main": "/runs/a", "best": "/runs/b,c"}),
    "columns.json": json.dumps(
        {"schema": "chopper.columns/1", "columns": {"gpu": ["busy_pct", "idle_ns"], "layer": []}}
    ),
    "layout.json": json.dumps({"schema": "chopper.layout/1", "splits": {"kernels": 5, "": -2}}),
    "config.toml": (
        '[explorer]\ntheme = "dark"\nmouse = true\n[columns]\ngpu = ["busy_pct"]\n'
        '[keys]\nmiddle = ["ctrl+y"]\n'
    ),
}
"""Files that Chopper writes, or that its user does, in the folders of state and settings."""
