"""Each view of a run of a million activities: what it costs in the core once the run is open."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from chopper_core.analyses import ANALYSES
from chopper_core.cache import open_kept
from chopper_core.errors import ChopperError
from chopper_core.query import query
from chopper_core.view import View
from tests.bench.processes import ROOT
from tests.bench.runs import store_of

MILLION = (8, 125_000)
_AGAIN = 5


def measure(store: str, only: str = "") -> dict[str, tuple[float, float]]:
    """View → ms of the first time and, as a median, of the next times."""
    run = open_kept(store)
    query(run, View(store))
    # What a first view pays for every view: pages of the store and modules.
    for name in ("start_ns", "duration_ns", "kind", "operation"):
        run.table.column(name).sum()
    found = {}
    for analysis in ANALYSES:
        for by in analysis.by or ("",):
            name = f"{analysis.name}, by {by}" if by else analysis.name
            if only and not name.startswith(only):
                continue
            view = View(store, analysis=analysis.name, by=by)
            took = []
            try:
                for _ in range(1 + _AGAIN):
                    start = time.process_time()
                    query(run, view)
                    took.append((time.process_time() - start) * 1000)
            except ChopperError:
                continue
            found[name] = (took[0], median(took[1:]))
    return found


def report(rounds: int, shape: tuple[int, int] = MILLION) -> Iterator[str]:
    """The lines of a markdown table; each round is a process, with the files in the page cache."""
    ranks, kernels = shape
    code = "from tests.bench.analyses import main; main()"
    arguments = [sys.executable, "-c", code, "--store", str(store_of(ranks, kernels, parts=True))]
    rows = [
        json.loads(subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True).stdout)
        for _ in range(rounds)
    ]
    heading = f"ms of processor time in the core, {ranks:,} × {kernels:,} kernels"
    yield f"| {heading} | first time | again |"
    yield "| :-- | --: | --: |"
    for name in rows[0]:
        first, again = (median(row[name][place] for row in rows) for place in range(2))
        yield f"| {name} | {first:.0f} | {again:.0f} |"


def main() -> None:
    """Measure and print: a store as JSON, or all as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=MILLION[0])
    parser.add_argument("--kernels", type=int, default=MILLION[1], help="of each rank")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--only", default="", help="views whose name begins so")
    options = parser.parse_args()
    if options.store:
        print(json.dumps(measure(str(options.store), options.only)))
    else:
        print("\n".join(report(options.rounds, (options.ranks, options.kernels))))


if __name__ == "__main__":
    main()
