"""Data to measure on: generated traces, kept under build/ for the next run."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

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


def unpacked(path: Path) -> Path:
    """The same trace as plain JSON beside it."""
    plain = path.with_suffix("")
    if not plain.exists():
        with gzip.open(path) as packed, plain.open("wb") as target:
            shutil.copyfileobj(packed, target, 1 << 20)
    return plain
