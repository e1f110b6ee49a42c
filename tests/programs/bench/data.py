"""Data to measure on: generated traces, kept under build/ for the next run."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

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


def for_original(path: Path) -> Path:
    """The same trace as plain JSON without what the original Chopper stops at: links of forward and
    backward work of which an operator or the annotation is missing, and kernels whose launch or its
    operator is. A trace that begins within a step has some."""
    fitting = path.parent / "for-original.json"
    if fitting.exists():
        return fitting
    whole = json.loads(unpacked(path).read_bytes())
    of_category: dict[str, list[dict[str, Any]]] = {}
    for event in whole["traceEvents"]:
        of_category.setdefault(event.get("cat", ""), []).append(event)
    # It takes whole nanoseconds, and layers and iterations for no annotation of an operator.
    operators = {_ns(event["ts"]) for event in of_category["cpu_op"]}
    known = {event["args"]["External id"] for event in of_category["cpu_op"]}
    launches = {
        event["args"]["correlation"]: event["args"].get("External id")
        for event in of_category["cuda_runtime"]
    }
    ends: dict[int, dict[str, int]] = {}
    for event in of_category["fwdbwd"]:
        ends.setdefault(event["id"], {})["bp" if "bp" in event else "s"] = _ns(event["ts"])
    annotations = sorted(
        (_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"]))
        for event in of_category["user_annotation"]
        if not re.fullmatch(r"(Layer|Iteration)\d+", event["name"])
    )
    begins = [begin for begin, _ in annotations]
    latest = list(accumulate((end for _, end in annotations), max))

    def stops(event: dict[str, Any]) -> bool:
        if event.get("cat") == "kernel":
            return launches.get(event["args"].get("correlation")) not in known
        if event.get("cat") != "fwdbwd":
            return False
        own = ends[event["id"]]
        if len(own) < 2 or not operators.issuperset(own.values()):
            return True
        before = bisect_right(begins, own["s"])
        return not before or latest[before - 1] < own["s"]

    kept = [event for event in whole["traceEvents"] if not stops(event)]
    fitting.write_text(json.dumps(whole | {"traceEvents": kept}), encoding="utf-8")
    return fitting


def _ns(microseconds: float) -> int:
    return int(microseconds * 1000)
