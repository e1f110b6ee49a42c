"""Runs the sampler with stand-ins for the vendors' libraries and tools."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STAND_INS = Path(__file__).parent / "stand_ins"


def environment(library: str, tmp_path: Path, **settings: object) -> dict[str, str]:
    """The environment in which Python finds one of the libraries, and no tools."""
    modules = tmp_path / "modules"
    modules.mkdir(exist_ok=True)
    for name in ("load", library) if library else ():
        if not (modules / f"{name}.py").exists():
            (modules / f"{name}.py").symlink_to(STAND_INS / f"{name}.py")
    return {
        **os.environ,
        "PYTHONPATH": str(modules),
        "STAND_IN": json.dumps(settings),
        "PATH": str(tmp_path / "bin"),
    }


def sampled(
    run: Path, variables: dict[str, str], is_enough: Callable[[], bool], *arguments: str
) -> int:
    """Sample into a directory until it is enough, end the sampler, and give its exit code."""
    run.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "chopper_core.record.sampler", str(run), *arguments]
    with subprocess.Popen(command, env=variables, cwd=Path(__file__).parents[2]) as process:
        until = time.monotonic() + 20
        while process.poll() is None and not is_enough() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        return process.wait(20)


def has_lines(path: Path, count: int) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_bytes().count(b"\n") >= count
