"""Reading a trace: Chopper's reader beside JSON decoders that only build objects, and its peers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.programs.bench.data import for_original, trace, unpacked
from tests.programs.bench.processes import Cost, can_import, in_turn, middle, python

TABLE = "chopper: to the labelled kernel table"
SHARED = "chopper: the same, two processes"
TYPED = "msgspec: typed decoding alone"
ORIGINAL = "the original Chopper: merge.py"
HTA = "HolisticTraceAnalysis: load"
TRACELENS = "TraceLens: load and tree"

# They begin as the program does: by saying that numpy's linear algebra needs no threads.
_READ = (
    "import sys, chopper_tui; from pathlib import Path\n"
    "from chopper_core.sources.kineto.reader import read as read_trace\n"
    "read_trace(Path(sys.argv[1]))"
)
_TABLE = (
    "import sys, chopper_tui\nfrom chopper_core.ingest.open import open_run\n"
    "if __name__ == '__main__': open_run(sys.argv[1], jobs=int(sys.argv[2]))"
)
_GUNZIP = "import gzip, sys; data = gzip.open(sys.argv[1]).read()\n"
_DECODERS = {
    "json": "import json; json.loads(data)",
    "orjson": "import orjson; orjson.loads(data)",
    "msgspec": "import msgspec; msgspec.json.decode(data)",
    "ijson": "import io, ijson; sum(1 for _ in ijson.items(io.BytesIO(data), 'traceEvents.item'))",
}
_TYPED = """
import msgspec
class Event(msgspec.Struct, gc=False):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw()
class File(msgspec.Struct):
    traceEvents: list[Event]
msgspec.json.decode(data, type=File)
"""
_HTA = (
    "import sys; from pathlib import Path; from hta.trace_analysis import TraceAnalysis\n"
    "path = Path(sys.argv[1])\n"
    "TraceAnalysis(trace_files={0: path.name}, trace_dir=str(path.parent))"
)
_TRACELENS = (
    "import sys; sys.path.insert(0, sys.argv[2]); from TraceLens import TreePerfAnalyzer\n"
    "TreePerfAnalyzer.from_file(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the processes took to read one trace."""

    megabytes: float
    packed_megabytes: float
    rounds: int
    costs: dict[str, Cost]
    missing: Sequence[str]
    """What isn't installed, or failed, in sentences."""


def peers(path: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The commands of what is there besides Chopper; what is missing and how to give it."""
    commands, missing = {}, []
    for name, code in _DECODERS.items():
        if name == "json" or can_import(name):
            commands[f"{name}: decode alone"] = python(_GUNZIP + code, str(path))
        else:
            missing.append(f"{name} is not installed")
    commands[TYPED] = python(_GUNZIP + _TYPED, str(path))
    if can_import("hta"):
        commands[HTA] = python(_HTA, str(path))
    else:
        missing.append("HolisticTraceAnalysis is not installed")
    if lens := os.environ.get("TRACELENS"):
        commands[TRACELENS] = python(_TRACELENS, str(path), lens)
    else:
        missing.append("TraceLens: name a checkout of AMD-AGI/TraceLens in TRACELENS")
    if original := os.environ.get("CHOPPER_MERGE"):
        # It reads plain JSON only; {} in the command stands for the trace.
        plain = str(for_original(path))
        commands[ORIGINAL] = [word.replace("{}", plain) for word in original.split()]
    else:
        missing.append(
            "the original Chopper: name the command that merges one trace in CHOPPER_MERGE, "
            "with {} for the trace"
        )
    return commands, missing


def measure(megabytes: int, rounds: int, *, alone: bool = False) -> Measured:
    """Medians of `rounds` runs of each in turn; of Chopper alone where asked for."""
    path = trace(megabytes)
    size = unpacked(path).stat().st_size / 1e6
    commands = {TABLE: python(_TABLE, str(path), "1"), SHARED: python(_TABLE, str(path), "2")}
    missing: list[str] = []
    if not alone:
        commands["chopper: events to columns"] = python(_READ, str(path))
        others, missing = peers(path)
        commands |= others
    costs = {name: middle(each) for name, each in in_turn(commands, rounds, missing).items()}
    return Measured(size, path.stat().st_size / 1e6, rounds, costs, missing)


def lines(found: Measured) -> Iterator[str]:
    """The lines of a markdown table."""
    reference = found.costs[TABLE].wall_s
    yield (
        f"One trace, {found.megabytes:.0f} MB ({found.packed_megabytes:.1f} MB packed), medians of "
        f"{found.rounds} runs in turn, from .json.gz; peak is the largest resident set of the "
        "whole process:"
    )
    yield ""
    yield "| whole process | wall s | cpu s | MB/s | peak MB | wall, table = 1 |"
    yield "| :-- | --: | --: | --: | --: | --: |"
    for name, cost in found.costs.items():
        speed = found.megabytes / cost.wall_s
        yield (
            f"| {name} | {cost.wall_s:.2f} | {cost.cpu_s:.2f} | {speed:.0f} "
            f"| {cost.peak_mb:.0f} | {cost.wall_s / reference:.2f} |"
        )
    if ORIGINAL in found.costs:
        yield ""
        yield "The original reads plain JSON, without the few events that it stops at."
    if found.missing:
        yield ""
        yield f"Not measured: {'; '.join(found.missing)}."
