"""Data to measure on: generated traces, kept under build/ for the next run."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

from tests.programs.bench.processes import ROOT

MB_PER_ITERATION = 5.43
"""Uncompressed size of one generated iteration of one rank."""


def trace(megabytes: int) -> Path:
    """A generated trace of about this uncompressed size, as .json.gz."""
    folder = ROOT / "build" / "bench" / f"trace-{megabytes}mb"
    path = folder / "rank0.json.gz"
    if not path.exists():
        iterations = max(round(megabytes / MB_PER_ITERATION), 1)
        command = [
            sys.executable, "demo_data/generate.py", "--ranks", "1", "--iterations",
            str(iterations), "--no-counters", "--no-telemetry", "-o", str(folder),
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)
    return path


def rank_traces(count: int) -> list[Path]:
    """Generated traces of a step of so many ranks, about 0.3 MB each as .json.gz."""
    folder = ROOT / "build" / "bench" / f"ranks-{count}"
    if not folder.exists():
        command = [
            sys.executable, "demo_data/generate.py", "--ranks", str(count), "--iterations", "1",
            "--layers", "4", "--no-counters", "--no-telemetry", "-o", str(folder),
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)
    return sorted(folder.glob("rank*.json.gz"))


def names_trace(count: int, size: int) -> Path:
    """A trace of a kernel of each of so many names, whose templates make them so long."""
    path = ROOT / "build" / "bench" / f"names-{count}x{size}" / "rank0.json"
    if path.exists():
        return path
    random = Random(count)
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1}
        | {"ts": 0, "dur": 10 * count}
    ]
    for number in range(count):
        name = f"void kernel_{number}<"
        while len(name) < size:
            name += random.choice(_PARTS_OF_NAMES)
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 2}
        kernel = {"cat": "kernel", "name": name[:size], "pid": 0, "tid": 7, "dur": 4}
        link = {"correlation": number + 1}
        events.append({"ph": "X", "ts": 10 * number + 1, **launch, "args": link})
        place = {"device": 0, "stream": 7, **link}
        events.append({"ph": "X", "ts": 10 * number + 5, **kernel, "args": place})
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


_PARTS_OF_NAMES = (
    "at::native::vectorized_elementwise_kernel<4, ", "std::array<char*, 3ul>, ",
    "cutlass::gemm::kernel::DefaultGemm<", "at::native::(anonymous namespace)::",
    "reduce_kernel<512, 1, ", "float, c10::BFloat16, ",
)  # fmt: skip


def unpacked(path: Path) -> Path:
    """The same trace as plain JSON beside it."""
    plain = path.with_suffix("")
    if not plain.exists():
        with gzip.open(path) as packed, plain.open("wb") as target:
            shutil.copyfileobj(packed, target, 1 << 20)
    return plain
