"""Each view of a run of a million activities: what it costs in the core once the run is open."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from chopper_core.answers.opening import work_out
from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.store.kept import Derived
from chopper_core.util.atomic import DERIVED
from chopper_core.util.errors import ChopperError
from chopper_core.util.memory import keep_freed
from chopper_core.views import OVERVIEW, view_spec, view_specs
from chopper_core.views.query import query
from tests.programs.bench.processes import ROOT
from tests.programs.bench.runs import store_of

MILLION = (8, 125_000)
_SHORTER = 0.99
"""The kernels of the run that the views are compared with, for each of this one."""
_AGAIN = 2
OPEN, SUMMARY, INGEST = "open the run", OVERVIEW, "what ingest works out"


def measure(
    store: str, only: str = "", other: str = "", *, is_ingested: bool = False
) -> dict[str, tuple[float, ...]]:
    """View → ms of the first time in a run that was just opened, and of the next, as a median.

    The views that compare are also asked to with another store. Of one that `is_ingested` each view
    is the first one after that.
    """
    with ExitStack() as stack:
        if not is_ingested:
            return _measured(store, only, other)
        store = str(stack.enter_context(_linked(Path(store))))
        start = time.process_time()
        work_out(store, jobs=1)
        took_ms = (time.process_time() - start) * 1000
        return {INGEST: (took_ms, took_ms), **_measured(store, only, other, is_ingested=True)}


@contextmanager
def _linked(store: Path) -> Iterator[Path]:
    """A store with the same files, and nothing that was worked out."""
    with TemporaryDirectory(dir=store.parent) as place:
        folder, derived = Path(place) / store.name, shutil.ignore_patterns(DERIVED)
        yield shutil.copytree(store, folder, copy_function=os.link, ignore=derived)


def _measured(
    store: str, only: str, other: str, *, is_ingested: bool = False
) -> dict[str, tuple[float, ...]]:
    derived = Path(store) / DERIVED
    left = {*derived.iterdir()} if is_ingested else set()
    names = {each.name: View(store, name=each.name) for each in view_specs()}
    if other:
        names |= {
            f"{name}, beside another run": replace(view, baseline=Baseline(other))
            for name, view in names.items()
            if view_spec(view.name).compares
        }
    keep_freed(of_large=True)  # As commands do.
    open_cached(store)  # Verifies its files, once for each state of them.
    gc.collect()  # To let go of what was opened before is no part of opening.
    start = time.process_time()
    open_cached(store)
    found: dict[str, tuple[float, ...]] = {OPEN: ((time.process_time() - start) * 1000,) * 2}
    for name in names:
        if not name.startswith(only):
            continue
        with suppress(ChopperError):
            run = _loaded(store, other, is_ingested)
            cold, *again = (_took(run, names[name]) for _ in range(1 + _AGAIN))
            found[name] = (cold, median(again))
            if isinstance(run.derived, Derived):
                run.derived.wait()
        for each in {*derived.iterdir()} - left if is_ingested else ():
            each.unlink()
    return found


def _loaded(store: str, other: str = "", is_ingested: bool = False) -> Run:
    """The run, as it is when its first page is on the screen; with another one, that too."""
    run = open_cached(store) if is_ingested else open_run(store)
    query(run, View(store))
    for name in ("start_ns", "duration_ns", "kind", "operation"):
        run.table.column(name).sum()
    return replace(run, others={other: _loaded(other)}) if other else run


def _took(run: Run, view: View) -> float:
    start = time.process_time()
    query(run, view)
    return (time.process_time() - start) * 1000


def views_of(
    shape: tuple[int, int],
    rounds: int,
    compares: bool,
    only: str = "",
    *,
    is_ingested: bool = False,
) -> dict[str, tuple[float, float]]:
    """View → ms cold and again, with another run to compare with or without; each round is a
    process, with the files in the page cache. `only` is how the names of the views begin;
    `is_ingested` is as `chopper ingest` leaves the store, and how long it takes for that."""
    ranks, kernels = shape
    code = "from tests.programs.bench.analyses import main; main()"
    store = store_of(ranks, kernels, parts=True)
    arguments = [sys.executable, "-c", code, "--store", str(store), "--only", only]
    arguments += ["--ingested"] if is_ingested else []
    if compares:
        arguments += ["--other", str(store_of(ranks, int(kernels * _SHORTER), parts=True))]
    rows = [
        json.loads(subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True).stdout)
        for _ in range(rounds)
    ]
    return {
        name: (median(row[name][0] for row in rows), median(row[name][1] for row in rows))
        for name in rows[0]
    }


def report(shape: tuple[int, int], found: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """The lines of a markdown table."""
    ranks, kernels = shape
    before = "with nothing kept, as of `chopper show --no-cache`"
    if INGEST in found:
        before = f"with {INGEST}"
    heading = f"ms of processor time in the core, {ranks:,} × {kernels:,} kernels"
    yield f"| {heading} | cold | again |"
    yield "| :-- | --: | --: |"
    for name, cells in found.items():
        yield f"| {name} | {' | '.join(f'{cell:.0f}' for cell in cells)} |"
    yield ""
    yield (
        f"Cold is the first view of a run that was just opened, {before}. An "
        "answer is kept, so that sorting, filtering and coming back ask for nothing. "
        "Findings is all rules at once: most of its time goes over the instances of operations, "
        "one by one, for contention, unsteady clocks, and layers and iterations that stand out."
    )


def main() -> None:
    """Measure and print: a store as JSON, or all as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=MILLION[0])
    parser.add_argument("--kernels", type=int, default=MILLION[1], help="of each rank")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--other", default="", help="a store to compare with")
    parser.add_argument("--only", default="", help="views whose name begins so")
    parser.add_argument("--ingested", action="store_true", help="with what ingest works out")
    options = parser.parse_args()
    if options.store:
        found = measure(
            str(options.store), options.only, options.other, is_ingested=options.ingested
        )
        print(json.dumps(found))
    else:
        shape = options.ranks, options.kernels
        print("\n".join(report(shape, views_of(shape, options.rounds, compares=True))))


if __name__ == "__main__":
    main()
