"""The page of results: a row for each budget, and what they were measured on."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.programs.bench.budgets import HEAD, Budget, row

_HEAD = """\
# Benchmarks

`make bench` rewrites this page, and prints the tables behind it; `make bench-peers` adds the tools
that PyPI has; `make bench-quick` prints the same of small runs in three minutes. All figures are of
one run on one machine. The data is synthetic, processes run one at a time, memory is the largest
resident set of the whole process. Times are processor time unless the row says wall: what others
do on the machine lengthens that less.
"""
_PACKAGES = (
    "numpy",
    "pyarrow",
    "msgspec",
    "textual",
    "isal",
    "orjson",
    "ijson",
    "HolisticTraceAnalysis",
)


@dataclass(frozen=True, slots=True)
class Section:
    """What a part found: the tables that it prints and its rows of the page."""

    lines: Sequence[str]
    budgets: Sequence[Budget] = ()


def page_of(found: Mapping[str, Section], conditions: str) -> str:
    """The page of the parts that were measured in one run."""
    rows = [row(each, name) for name, section in found.items() for each in section.budgets]
    return "\n".join([_HEAD, conditions, "", *HEAD, *rows, ""])


class Conditions:
    """What the parts are measured on, and what else the machine does during that time."""

    def __init__(self) -> None:
        """Begin."""
        self._load = os.getloadavg()[0]
        self._began = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def line(self) -> str:
        """All of it in a sentence or two, at the end."""
        took = time.monotonic() - self._began
        others = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return (
            f"Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC in {took:.0f} s: {_processor()}, "
            f"{os.cpu_count()} processors, {_memory_gb():.0f} GB, {platform.system()}; Python "
            f"{platform.python_version()}; {_versions()}. Load average before: {self._load:.1f}; "
            f"others kept {max(others / took, 0):.1f} processors busy."
        )


def _busy_s() -> float:
    """Processor time that the machine has spent, or that was taken from it, since it started."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Processor time of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _versions() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
