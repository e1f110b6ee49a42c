"""`chopper record --check` with stand-ins: what is there, what is missing, and what brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from record.recorded import STAND_INS, environment

from tests.wording import Wording

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo {}
"""


def checked(
    tmp_path: Path, *, library: str, torch: str, tools: bool = False, **settings: object
) -> dict[str, str]:
    """The lines of the check by their first words, as "yes …" or "no …"."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("rocprofv3", "rocprofv3-avail") if tools else ():
        text = (STAND_INS / name).read_text()
        (folder / name).write_text(text.replace("/usr/bin/env python3", sys.executable))
        (folder / name).chmod(0o755)
    if torch:
        (folder / "python").write_text(PYTHON.format(torch))
        (folder / "python").chmod(0o755)
    variables = environment(library, tmp_path, **settings) | {"COLUMNS": "1000"}
    variables["PATH"] += ":/bin:/usr/bin" if tools else ""
    command = [sys.executable, "-m", "chopper_tui", "record", "--check", "-o", str(tmp_path / "r")]
    answer = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stderr == ""
    assert not (tmp_path / "r").exists()
    lines = (line.partition("  ") for line in answer.stdout.splitlines())
    return {name: " ".join(rest.split()) for name, _, rest in lines}


def test_a_node_that_can_record_everything(tmp_path: Path, wording: Wording) -> None:
    library = tmp_path / "lib" / "librocprofiler-sdk-roctx.so"
    library.parent.mkdir()
    library.touch()
    found = checked(tmp_path, library="amdsmi", torch="2.9.0+rocm6.4", tools=True)
    wording(
        found["steps and kernels"], "yes", "torch 2.9.0+rocm6.4", str(tmp_path / "bin" / "python")
    )
    wording(found["GPU telemetry"], "yes", "2 x AMD Instinct MI300X", "amdsmi", "amdgpu 6.12.12")
    assert found["hardware counters"].startswith("yes rocprofv3 1.0.0 (ROCm 7.0.2)") or (
        "perf_event_paranoid" in found["hardware counters"]
    )
    assert found["disk"].endswith(f"GB free in {tmp_path}")
    assert found["clocks"].startswith("yes tied to each other within ")


def test_what_is_missing_comes_with_what_brings_it(tmp_path: Path) -> None:
    found = checked(tmp_path, library="pynvml", torch="1.13.1", denied=True)
    assert found["steps and kernels"].startswith("no torch 1.13.1 of ")
    assert found["GPU telemetry"].startswith("no ")
    assert "rocprofiler-sdk" in found["hardware counters"]


@pytest.mark.sweep
def test_a_node_with_gpus_of_nvidia(tmp_path: Path, wording: Wording) -> None:
    found = checked(tmp_path, library="pynvml", torch="")
    wording(
        found["GPU telemetry"],
        "yes",
        "2 x NVIDIA H100 80GB HBM3",
        "nvidia-ml-py",
        "NVIDIA 570.86.10",
    )
    wording(found["steps and kernels"], "no torch")
