"""Large files of counters: what a process that reads one takes, in time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.programs.bench.counters import (
    COUNTERS,
    write_counter_csv,
    write_counter_json,
    write_rocpd,
)
from tests.programs.bench.processes import ROOT, python, run

_READ = """
import sys; from pathlib import Path
from chopper_core.sources.counters.rocpd import read as read_rocpd
from chopper_core.sources.counters.rocprofv3_csv import read_processes
from chopper_core.sources.counters.rocprofv3_json import read as read_json
path = Path(sys.argv[1])
read = {".csv": lambda path: read_processes(counters=path), ".json": read_json,
        ".db": read_rocpd}[path.suffix]
read(path)
"""
Writer = Callable[[Path, int], None]
_FILES: tuple[tuple[str, Writer, int, float], ...] = (
    ("results.json", write_counter_json, 1_900, 37),
    ("counter_collection.csv", write_counter_csv, 780, 1_000),
    ("results.db", write_rocpd, 2_280, 2_000),
)
"""Name, writer, bytes of a dispatch and megabytes at full size."""
_DISPATCH_BYTES = 84 + 8 * len(COUNTERS)
"""Of a row of `Dispatches`, in memory."""


def report(share: float) -> Iterator[str]:
    """The lines of a markdown table, for files of a share of the full size."""
    yield "| file | MB | dispatches | wall s | cpu s | MB per cpu s | peak MB | result | the rest |"
    yield "| :-- | --: | --: | --: | --: | --: | --: | --: | --: |"
    for name, write, each, megabytes in _FILES:
        dispatches = int(megabytes * max(share, min(37 / megabytes, 1)) * 1e6 / each)
        path = ROOT / "build" / "bench" / f"{dispatches}_{name}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, dispatches)
        cost = run(python(_READ, str(path)))
        size = path.stat().st_size / 1e6
        result = dispatches * _DISPATCH_BYTES / 1e6
        yield (
            f"| {name} | {size:.0f} | {dispatches:,} | {cost.wall_s:.1f} "
            f"| {cost.cpu_s:.1f} | {size / cost.cpu_s:.0f} | {cost.peak_mb:.0f} | {result:.0f} "
            f"| {cost.peak_mb - result:.0f} |"
        )
    yield ""
    yield (
        f"The result is what is asked for: {_DISPATCH_BYTES} bytes for each dispatch with its "
        f"{len(COUNTERS)} counters. The rest is Python with numpy and pyarrow, 70 MB, what reading "
        "takes, 20 to 30 MB whatever the size of the file, and 40 to 90 bytes for each dispatch "
        "until all are in their order. More instances of a counter or more calls of the runtime "
        "make a file larger and take no memory."
    )
