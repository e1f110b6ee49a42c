"""Reading a trace: Chopper's reader beside JSON decoders that only build objects."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tests.bench.data import trace, unpacked
from tests.bench.processes import can_import, in_turn, middle, python

_READ = (
    "import sys; from pathlib import Path\n"
    "from chopper_core.sources.kineto.reader import read_trace\n"
    "read_trace(Path(sys.argv[1]))"
)
_TABLE = (
    "import sys\nfrom chopper_core.ingest import open_run\n"
    "if __name__ == '__main__': open_run(sys.argv[1], jobs=1)"
)
_GUNZIP = "import gzip, sys; data = gzip.open(sys.argv[1]).read()\n"
_DECODERS = {
    "json": "import json; json.loads(data)",
    "orjson": "import orjson; orjson.loads(data)",
    "msgspec": "import msgspec; msgspec.json.decode(data)",
    "ijson": "import io, ijson; sum(1 for _ in ijson.items(io.BytesIO(data), 'traceEvents.item'))",
}
_PEERS = {
    "HolisticTraceAnalysis": (
        "hta",
        "import sys; from pathlib import Path; from hta.trace_analysis import TraceAnalysis\n"
        "path = Path(sys.argv[1])\n"
        "TraceAnalysis(trace_files={0: path.name}, trace_dir=str(path.parent))",
    ),
}


def report(megabytes: int, rounds: int) -> Iterator[str]:
    """The lines of a markdown table, medians of `rounds` runs of each in turn."""
    path = trace(megabytes)
    size = unpacked(path).stat().st_size / 1e6
    commands = {
        "chopper: events to columns": python(_READ, str(path)),
        "chopper: to the labelled kernel table": python(_TABLE, str(path)),
    }
    missing = []
    for name, code in _DECODERS.items():
        if name == "json" or can_import(name):
            commands[f"{name}: decode alone"] = python(_GUNZIP + code, str(path))
        else:
            missing.append(name)
    for name, (module, code) in _PEERS.items():
        if can_import(module):
            commands[name] = python(code, str(path))
        else:
            missing.append(name)
    costs = {name: middle(each) for name, each in in_turn(commands, rounds).items()}
    reference = costs["chopper: to the labelled kernel table"].wall_s
    packed = path.stat().st_size / 1e6
    yield f"One trace, {size:.0f} MB ({packed:.1f} MB packed), medians of {rounds} runs in turn:"
    yield ""
    yield "| whole process | wall s | cpu s | MB/s | peak MB | wall, table = 1 |"
    yield "| :-- | --: | --: | --: | --: | --: |"
    for name, cost in costs.items():
        yield (
            f"| {name} | {cost.wall_s:.2f} | {cost.cpu_s:.2f} | {size / cost.wall_s:.0f} "
            f"| {cost.peak_mb:.0f} | {cost.wall_s / reference:.2f} |"
        )
    if missing:
        yield ""
        yield f"Not installed, so not measured: {', '.join(missing)}."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200, metavar="MB")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("\n".join(report(options.size, options.rounds)))


if __name__ == "__main__":
    main()
