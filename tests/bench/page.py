"""The page of results: a section and rows of budgets for each part, replaced part by part."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

from tests.bench.budgets import HEAD, Budget, row

_HEAD = """\
# Benchmarks

`make bench` rewrites this page; `make bench BENCH="reading ranks"` rewrites these parts only, and
`make bench-peers` adds the tools that PyPI has. Run nothing else at the same time: each part says
when it was measured, and under which load. The data is synthetic; processes run one at a time;
memory is the largest resident set of the whole process.
"""
_BUDGETS = "Budgets"
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
_IN_THE_WAY = """\
First screens and `show` are of whole processes with warm files, medians and the best; of the keys,
p95 and the same of each key's best. What others do on the machine lengthens walls, so that ingest
is compared by processor time. Keys that end with Esc are left out: 100 ms pass before it is clear
that no more follows it.

Why a budget isn't met:

- **Cold ingest.** Two thirds of it is reading: unpacking and msgspec's decoding take a third of the
  whole, and moving events into columns one by one, in Python, a quarter. Starting the process takes
  a twelfth. The rest is work that the peers don't do: labels of every level from annotations,
  modules, autograd links and shapes, the work of the model, the accounting of every nanosecond.
- **The original Chopper** stops at oddities in the generated trace. On one without 563 one-ended
  links and 49 kernels without a launch, `parse_trace` of its `merge.py` (plain JSON, nothing
  written) took 3.7 times Chopper's processor time and 8 times its memory, in two runs each, when
  Chopper took 2.6 s for the trace.
- **`show` and the first screen.** Most of a start is importing: Textual and Rich 100 ms, the
  standard library 68, numpy and msgspec 40, Chopper's own modules 45 (the best of 7, on a
  busy machine). How
  fast the machine is changes by a quarter from hour to hour: the figures of one section can be
  compared, those of two days cannot.
- **Keys.** What is slow is drawing, not the figures (the engine answers most in a few ms): a row
  that is opened brings the table, the chart and the sparklines of another scope.
- **Every key in every view.** Half of them are answered within 20 ms. Those beyond 50 ms open a GPU
  or its neighbour for the first time in launch, findings, communication or the timeline, whose
  figures are then computed from its 1,250,000 kernels, in 60 to 180 ms; from there back they are
  known. Overlap, opened for the first time, finds 3.8 million instances of operations and compares
  each with those that are like it, on all processors. While others keep half of the machine busy,
  p95 is 51 ms and the slowest view takes 2.5 s.
- **Bytes of a move.** At 80×24 one takes at most 600 B in every view, with all that follows it. On
  larger screens the detail of the new row follows, which is another text, and in the timeline the
  bands and signals of another GPU, which are another picture: with these up to 1.6 KB at 120×40 and
  2.5 KB at 200×60. In the table alone (`z`) a move takes at most 600 B at 120×40, and 800 B at
  200×60, where two lines of 200 cells change colour. `make test-all`
  checks each view at the three sizes.
- **The engine.** Some nodes of a pivot are scattered over all GPUs: their rows are gathered when
  they are first opened. A search for a name everywhere is timed everywhere, and the first
  timeline of a whole run lays out all its activities. The ranks' leads need all collectives
  matched, and the medians of kernels all durations counted: seconds for 33 million activities.
  The explorer shows that it is loading; the cursor still moves, and Esc cancels.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """What a part found: its own section of the page and its rows of the budgets."""

    lines: Sequence[str]
    budgets: Sequence[Budget] = ()


def merged(page: str, part: str, found: Section, titles: Mapping[str, str]) -> str:
    """The page with one part's section and budgets in the place of its older ones.

    `titles` are those of all parts, in their order on the page; what else is there goes.
    """
    sections = _sections(page)
    rows: dict[str, list[str]] = {name: [] for name in titles}
    for line in sections.get(_BUDGETS, "").splitlines():
        name = line.rpartition(" | ")[2].removesuffix(" |")
        if line.startswith("| ") and name in rows:
            rows[name].append(line)
    rows[part] = [row(each, part) for each in found.budgets]
    sections[titles[part]] = "\n".join(found.lines)
    table = [*HEAD, *chain.from_iterable(rows.values())]
    texts = [_HEAD, f"## {_BUDGETS}\n", "\n".join(table) + "\n", _IN_THE_WAY]
    for title in titles.values():
        if title in sections:
            texts += [f"## {title}\n", sections[title].strip("\n") + "\n"]
    return "\n".join(texts)


def _sections(page: str) -> dict[str, str]:
    """Title → text."""
    parts = (text.partition("\n") for text in f"\n{page}".split("\n## ")[1:])
    return {title.strip(): text for title, _, text in parts}


class Conditions:
    """What a part is measured on, and what else the machine does meanwhile."""

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
