"""All benchmarks, printed as markdown or written to a file."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from tests.bench import analyses, budgets, engine, explorer, memory, reading
from tests.bench.processes import ROOT, Cost, in_turn
from tests.bench.runs import LARGE, MANY

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
SMALL, WIDE = explorer.SIZES
_IN_THE_WAY = """\
What stands in the way where a budget isn't met:

- **Cold ingest.** Events to columns take half of it; the other half is what the peers don't do:
  labels of every level from annotations, modules, autograd links and shapes, the work of the model,
  the accounting of every nanosecond. No part stands out: decoding takes an eighth, the nesting of
  host ranges as much, the rest is in hundreds of array operations.
- **Memory at 1 GB** grows with the events: what the host did is held until all labels are found.
- **`show` and first paint.** Importing numpy, pyarrow and msgspec takes half of the processor time
  of `show`, and importing Textual takes longer still in the explorer. Of Chopper's own part 40 ms
  (`show`) and 80 ms (explorer) build its 61 and 134 dataclasses, which Python 3.11 compiles anew
  each time.
- **Keys.** What is slow is drawing, not the figures (the engine answers most in a few ms): a row
  that is opened brings the table, the chart and the sparklines of another scope.
- **The engine.** Some nodes of a pivot are scattered over all GPUs: their rows are gathered when
  they are first opened. A name that is looked for everywhere is timed everywhere, and the first
  timeline of a whole run lays out all its activities. None of these keeps the keys waiting.
"""


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    parser.add_argument("--size", type=int, default=200, metavar="MB", help="of the trace")
    parser.add_argument("--huge", type=int, default=1000, metavar="MB", help="of another; 0: none")
    parser.add_argument("--large", type=_shape, default=LARGE, metavar="RANKSxKERNELS")
    parser.add_argument("--many", type=_shape, default=MANY, metavar="RANKSxKERNELS")
    parser.add_argument("--counters", type=float, default=1.0, help="share of the full sizes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    text = "\n".join(_page(options)) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def _shape(text: str) -> tuple[int, int]:
    ranks, _, kernels = text.partition("x")
    return int(ranks), int(kernels)


def _page(options: argparse.Namespace) -> Iterator[str]:
    rounds = options.rounds
    load = os.getloadavg()[0]
    found = reading.measure(options.size, rounds)
    huge = reading.measure(options.huge, 1, alone=True) if options.huge else None
    show = _show(rounds)
    demo, large = explorer.demo(), explorer.large(*options.large)
    paints = []
    for case in (demo, large):
        explorer.first_paint(case, SMALL)
        paints.append([explorer.first_paint(case, SMALL) for _ in range(2 * rounds)])
    pressed, _ = explorer.pressed(large, SMALL, rounds)
    pages = explorer.pages()
    small, idle = explorer.pressed(pages, SMALL, rounds)
    wide, _ = explorer.pressed(pages, WIDE, rounds)
    runs = [engine.measured_apart(*options.many) for _ in range(rounds)]
    steps = {name: median(run[name] for run in runs) for name in runs[0]}
    many = f"{options.many[0]:,} ranks × {options.many[1]:,} kernels"
    every = (
        *budgets.of_reading(found),
        budgets.of_huge(huge.costs[reading.TABLE] if huge else None),
        *budgets.of_show(show),
        *budgets.of_paint(*paints, large.title),
        *budgets.of_keys(pressed, large.title),
        *budgets.of_bytes(small, wide, idle),
        *budgets.of_ranks(steps, many),
    )
    yield "# Benchmarks"
    yield ""
    yield (
        "`make bench` writes this page anew, `make bench-peers` with the peers that PyPI has. The "
        "data is generated; processes run in turn; memory is the largest resident set of the whole "
        "process."
    )
    yield ""
    yield (
        f"Machine: {_processor()}, {os.cpu_count()} processors, {_memory_gb():.0f} GB, "
        f"{platform.system()}; Python {platform.python_version()}; {_versions()}. "
        f"{datetime.now(UTC):%Y-%m-%d}; load of the machine by others at the start: {load:.1f}."
    )
    yield ""
    yield "## Budgets"
    yield ""
    yield from budgets.lines(every)
    yield ""
    yield (
        "First paint and `show` are of whole processes with warm files, medians and the best; of "
        "the keys, p95 and the same of each key's best. What others do on the machine lengthens "
        "walls, so that ingest is compared by processor time. Keys that end with Esc are left out: "
        "100 ms pass before it is clear that no more follows it."
    )
    yield ""
    yield from _IN_THE_WAY.splitlines()
    yield ""
    yield "## Reading a trace"
    yield ""
    yield from reading.lines(found)
    yield ""
    if huge:
        yield from reading.lines(huge)
        yield ""
    yield "## Reading counters"
    yield ""
    yield from memory.report(options.counters)
    yield ""
    yield "## The explorer over a pseudo-terminal"
    yield ""
    yield from explorer.report(rounds, (demo, pages, large))
    yield "## The engine without a screen"
    yield ""
    yield from engine.report(rounds, (options.large, options.many))
    yield ""
    yield "## The views of a run of a million activities"
    yield ""
    yield from analyses.report(rounds)


def _show(rounds: int) -> list[Cost]:
    """Printing the demo run from a store, once more after it was written."""
    store = ROOT / "build" / "bench" / "demo-store"
    chopper = [sys.executable, "-m", "chopper_tui.cli"]
    runs = [*chopper, "ingest", str(ROOT / "demo_data" / "fsdp2"), "-o", str(store)]
    commands = {"ingest": runs}
    in_turn(commands, 1)
    return in_turn({"show": [*chopper, "show", str(store)]}, 3 * rounds)["show"]


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
