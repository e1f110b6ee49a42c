"""Whole processes, measured as the operating system accounts for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[3]
CHOPPER = (sys.executable, "-m", "chopper_tui")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took, from its start to its end."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    """The largest resident set, in 10^6 bytes."""


_ACCOUNT = """
import os, sys, time
null = os.open(os.devnull, os.O_WRONLY)
actions = [(os.POSIX_SPAWN_DUP2, null, 1)]
start = time.monotonic()
process = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, usage = os.wait4(process, 0)
wall = time.monotonic() - start
print(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""A process starts with the largest resident set of the one that starts it: this one's is small."""


def run(arguments: Sequence[str]) -> Cost:
    """Run a process; raises RuntimeError with its last words where it fails."""
    # As installed: what was compiled once is not compiled again.
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ACCOUNT, *arguments],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        check=True,
    )
    wall, busy, peak, status = done.stdout.split()
    if int(status):
        words = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(words.splitlines()[-1] if words else "it failed")
    return Cost(float(wall), float(busy), int(peak) * 1024 / 1e6)


def in_turn(
    commands: dict[str, Sequence[str]], rounds: int, failed: list[str] | None = None
) -> dict[str, list[Cost]]:
    """Run all commands one after the other, `rounds` times, so that each meets the same noise.

    With `failed`, what fails is said there and left out; else it is raised.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            if name not in costs:
                continue
            try:
                costs[name].append(run(arguments))
            except RuntimeError as error:
                if failed is None:
                    raise
                failed.append(f"{name} failed ({error})")
                del costs[name]
    return costs


def together(commands: Sequence[Sequence[str]]) -> tuple[list[Cost], float]:
    """Run all commands at the same time; what each took, and the seconds until the last ended."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(commands)) as pool:
        costs = [*pool.map(run, commands)]
    return costs, time.monotonic() - began


def middle(costs: Sequence[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(
        median(cost.wall_s for cost in costs),
        median(cost.cpu_s for cost in costs),
        median(cost.peak_mb for cost in costs),
    )


def python(code: str, *arguments: str) -> list[str]:
    """The command that runs a piece of Python with this interpreter."""
    return [sys.executable, "-c", code, *arguments]


def can_import(module: str) -> bool:
    """Whether this interpreter has a module."""
    code = f"import {module}"
    return subprocess.run(python(code), capture_output=True).returncode == 0
