"""Causes planted in real traces: stalls of all hosts at the beginning of steps, by what they do.

At a step's first event each rank's GPU is idle, as the steps of such a file begin with a copy that
blocks. A stall there moves all that follows, on hosts and GPUs, by its length: what it costs is
exact. `python -m tests.programs.bench.causes_in_files` looks for the file in $CHOPPER_REALDATA.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from chopper_core.findings.rule import context_of
from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from tests.programs.bench.causes import Finding, findings_of

FILES: Final = "mi300x_ddp4"
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_EACH_NS: Final = 8_000_000
"""A sixth of a step."""
Event = dict[str, Any]


class Stall(Struct, frozen=True):
    """What hosts do for a while, as the trace shows it, and what a finding about it says."""

    category: str
    name: str
    words: str


STALLS: Final[Mapping[str, Stall]] = {
    "data loading": Stall(
        "user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "data loading",
    ),
    "garbage collection": Stall("python_function", "<built-in function collect>", "garbage"),
    "a checkpoint": Stall(
        "python_function", "torch/serialization.py(943): save", "saving a checkpoint"
    ),
    "logging": Stall("python_function", "wandb/sdk/wandb_run.py(1703): log", "logging"),
    "a compilation": Stall(
        "python_function", "torch/_dynamo/convert_frame.py(1133): _compile", "compiling"
    ),
    "hipFree": Stall("cuda_runtime", "hipFree", "hipFree|memory allocator"),
    "hipMalloc": Stall("cuda_runtime", "hipMalloc", "hipMalloc|memory allocator"),
    "hipDeviceSynchronize": Stall("cuda_runtime", "hipDeviceSynchronize", "synchronisation"),
    "a lock": Stall("python_function", "threading.py(1165): join", r"threading.py|\bjoin"),
    "nothing traced": Stall("", "", "untraced"),
}  # fmt: skip
_ALL, _ONE = "in each step", "in one step"


class FoundInFile(Struct, frozen=True):
    """The findings of a real run with a stall, against its truth."""

    what: str
    cost_ns: float
    words: str
    step: int | None
    """The one that it is in."""
    found: tuple[Finding, ...]

    @property
    def named(self) -> Finding | None:
        """The first finding that names it in its title; of one step it names that too."""
        when = "" if self.step is None else rf"\b(?:step|iteration)s?\b.*\b{self.step}\b"
        right = (each for each in self.found if re.search(self.words, each.title, re.I))
        return next((each for each in right if re.search(when, each.detail, re.I)), None)

    @property
    def ratio(self) -> float | None:
        """What it saves over what it costs."""
        named = self.named
        return None if named is None or not named.saving_ns else named.saving_ns / self.cost_ns


def with_stall(events: list[Event], stall: Stall, steps: frozenset[int], ns: int) -> list[Event]:
    """A rank's events with a stall at the beginning of some steps."""
    begins = sorted(
        (float(each["ts"]), int(match[1]))
        for each in events
        if each.get("cat") == "user_annotation" and (match := _STEP.fullmatch(str(each["name"])))
    )
    us, cuts = ns / 1e3, [ts for ts, number in begins if number in steps]

    def moved(ts: float, *, is_end: bool = False) -> float:
        # The step's own annotation begins before its stall, and ends after it.
        return ts + us * sum(ts > cut or (is_end and ts == cut) for cut in cuts)

    found = []
    for each in events:
        if "ts" in each and each.get("ph") != "M":
            ts, end = float(each["ts"]), float(each["ts"]) + float(each.get("dur", 0.0))
            each = {**each, "ts": moved(ts)}
            if "dur" in each:
                each["dur"] = moved(end) - each["ts"]
        found.append(each)
    host = next(each for each in events if each.get("cat") == "user_annotation")
    for number, cut in enumerate(cuts):
        if stall.name:
            own = {"ph": "X", "cat": stall.category, "name": stall.name, "pid": host["pid"],
                   "tid": host["tid"], "ts": moved(cut) + 1.0, "dur": us - 2.0,
                   "args": {"correlation": 900_000_000 + number}}  # fmt: skip
            found.append(own)
    return found


def measure_files(files: Path) -> Iterator[FoundInFile]:
    """All stalls, in each step and in one, in the traces of a directory."""
    traces = {path: json.loads(gzip.decompress(path.read_bytes())) for path in
              sorted(files.glob("rank*.json.gz"))}  # fmt: skip
    numbers = sorted(
        int(match[1])
        for each in next(iter(traces.values()))["traceEvents"]
        if each.get("cat") == "user_annotation" and (match := _STEP.fullmatch(str(each["name"])))
    )
    run = open_run(str(files), jobs=1)
    analysed = set(context_of(run, View(run.name)).iterations)
    for what, stall in STALLS.items():
        for when, steps in ((_ALL, numbers), (_ONE, numbers[1:2])):
            ns = _EACH_NS * (1 if when == _ALL else len(analysed))
            with tempfile.TemporaryDirectory() as folder:
                for path, trace in traces.items():
                    events = with_stall(trace["traceEvents"], stall, frozenset(steps), ns)
                    text = json.dumps({**trace, "traceEvents": events})
                    (Path(folder) / path.name.removesuffix(".gz")).write_text(text)
                found = findings_of(open_run(folder, jobs=1))
            step = steps[0] if when == _ONE else None
            cost = ns * len(analysed.intersection(steps)) / len(analysed)
            yield FoundInFile(f"{what} {when}", cost, stall.words, step, found)


def main() -> None:
    """Print a row per stall, and how many are right."""
    known = list(measure_files(Path(os.environ["CHOPPER_REALDATA"]) / FILES))
    print("| stall of all hosts | in a title | told ÷ true |\n| :-- | :-- | --: |")
    for each in known:
        ratio = "–" if each.ratio is None else f"{each.ratio:.2f}"
        print(f"| {each.what} | {'yes' if each.named else 'no'} | {ratio} |")
        if "-v" in sys.argv:
            for one in each.found[:3]:
                print("    ", one.rule, one.saving_ns and one.saving_ns / 1e6, one.detail)
    right = sum(each.named is not None for each in known)
    sized = sum(each.ratio is not None and abs(each.ratio - 1) <= 0.25 for each in known)
    print(f"\n{right} of {len(known)} are named; {sized} are sized within a quarter.")


if __name__ == "__main__":
    main()
