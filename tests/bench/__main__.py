"""All benchmarks, printed as markdown or written to a file."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.bench import explorer, reading

PACKAGES = (
    "numpy",
    "pyarrow",
    "msgspec",
    "textual",
    "isal",
    "orjson",
    "ijson",
    "HolisticTraceAnalysis",
)


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--size", type=int, default=200, metavar="MB")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines = [
        "# Benchmarks",
        "",
        "`make bench` writes this page anew. The data is generated, the processes run in turn.",
        "",
        f"Machine: {_processor()}, {os.cpu_count()} processors, {_memory_gb():.0f} GB, "
        f"{platform.system()}; Python {platform.python_version()}; {_versions()}.",
        "",
        "## Reading a trace",
        "",
        *reading.report(options.size, options.rounds),
        "",
        "## The explorer over a pseudo-terminal",
        "",
        *explorer.report(options.rounds),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def _versions() -> str:
    found = []
    for name in PACKAGES:
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


if __name__ == "__main__":
    main()
