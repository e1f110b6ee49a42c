"""The engine without a screen, on large generated stores: open, first frame and each step."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from chopper_core.ingest.cache import open_cached
from chopper_core.model.run import interval_of
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View, enter, pivot, with_view, zoomed
from chopper_core.views.find import find_everywhere
from chopper_core.views.query import query
from chopper_core.views.shared.signal_charts import signal_chart
from tests.programs.bench.processes import ROOT
from tests.programs.bench.runs import LARGE, store_of


def steps(store: str, ranks: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a person does one after the other, each with what it costs in the core."""
    run = None

    def opened() -> None:
        nonlocal run
        run = open_cached(store)

    def show(view: View) -> object:
        assert run is not None
        return query(run, view)

    def cells(view: View) -> object:
        picture = query(run, view).charts[0]  # type: ignore[arg-type]
        lanes = [picture.cells(row, 190) for row in range(len(picture.lanes))]  # type: ignore[union-attr]
        return lanes, picture.bands(0, 190), picture.strips(0, 190)  # type: ignore[union-attr]

    yield "open", opened
    # Whole ones: the last is cut off, and the rows lie in the order of the levels.
    last = int(run.table.iteration[-1]) - 1  # type: ignore[union-attr]
    third, fourth = str(max(min(2, last), 0)), str(max(min(3, last), 0))
    root = View(store)
    yield "first frame", lambda: show(root)
    view = root
    for label in (str(ranks - 1), fourth, "backward", "7", "attn_op", "elementwise_kernel"):
        view = enter(view, label)
        yield f"drill to {view.level}", lambda view=view: show(view)
    layer = enter(enter(enter(enter(root, str(ranks - 2)), third), "backward"), "5")
    yield "another layer", lambda: show(layer)
    for level in LEVELS[1:]:
        yield f"pivot to {level}", lambda level=level: show(pivot(root, level))
    by_operation = pivot(root, "operation")
    inside = enter(by_operation, "mlp_up")
    yield "drill in a pivot: operation", lambda: show(inside)
    inside = enter(inside, "3")
    yield "drill in a pivot: operation, gpu", lambda: show(inside)
    by_layer = enter(pivot(root, "layer"), "9")
    yield "drill in a pivot: layer", lambda: show(by_layer)
    both = enter(pivot(by_layer, "operation"), "attn_fa")
    yield "drill in a pivot: layer, operation", lambda: show(both)
    yield "drill in a pivot: layer, operation, iteration", lambda: show(pivot(both, "iteration"))
    wide = enter(root, "3")
    yield "sort", lambda: show(replace(wide, sort="-idle_ns"))
    for text in ("1", "1 time>1ms", "1 time>1ms kernels>10"):
        yield "filter as typed", lambda text=text: show(replace(wide, filter=text))
    yield "find, the first", lambda: find_everywhere(run, View(""), "attn_fa")  # type: ignore[arg-type]
    yield "find, the next", lambda: find_everywhere(run, View(""), "mlp")  # type: ignore[arg-type]
    yield "chart of a GPU", lambda: signal_chart(run, wide, 160)  # type: ignore[arg-type]
    yield "chart of a layer", lambda: signal_chart(run, layer, 160)  # type: ignore[arg-type]

    for view, by in (
        ("heatmap", "layer"),
        ("heatmap", "kernel"),
        ("ranks", "gpu"),
        ("ranks", "node"),
    ):
        asked = replace(with_view(root, view), by=by)
        yield f"{view} by {by}", lambda asked=asked: show(asked)

    for what, scope in (("of a GPU", wide), ("of the run", root)):
        whole = with_view(scope, "timeline")
        seen = interval_of(run, whole)  # type: ignore[arg-type]
        yield f"timeline {what}, first", lambda whole=whole: cells(whole)
        for _ in range(14):
            seen = zoomed(seen, 0.5)
            near = replace(whole, window=seen.window())
            yield f"timeline {what}, zoom", lambda near=near: cells(near)


def measure(store: str, ranks: int) -> dict[str, float]:
    """Step → ms, in this process."""
    found: dict[str, float] = {}
    for name, step in steps(store, ranks):
        start = time.perf_counter()
        step()
        took = (time.perf_counter() - start) * 1000
        found[name] = max(took, found.get(name, 0.0))
    found["peak MB, with what is mapped of the files"] = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    )
    found["MB of its own at the end"] = _own_mb()
    return found


def _own_mb() -> float:
    """Memory that is no file's, in 10^6 bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / 1e6


def measured_apart(ranks: int, kernels: int, parts: bool = False) -> dict[str, float]:
    """As `measure`, in a process of its own."""
    code = "from tests.programs.bench.engine import main; main()"
    store = store_of(ranks, kernels, parts)
    arguments = [sys.executable, "-c", code, "--store", str(store), "--ranks", str(ranks)]
    done = subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def medians(shape: tuple[int, int], rounds: int, parts: bool = False) -> dict[str, float]:
    """Step → ms; each round is a process, with the files in the page cache."""
    rows = [measured_apart(*shape, parts) for _ in range(rounds)]
    return {name: median(row[name] for row in rows) for name in rows[0]}


def report(shape: tuple[int, int], found: dict[str, float]) -> Iterator[str]:
    """The lines of a markdown table."""
    ranks, kernels = shape
    yield f"| ms in the core, each done once in a fresh process | {ranks:,} × {kernels:,} kernels |"
    yield "| :-- | --: |"
    for name, value in found.items():
        yield f"| {name} | {value:.{0 if 'MB' in name else 1}f} |"


def main() -> None:
    """Measure a store and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=LARGE[0])
    options = parser.parse_args()
    print(json.dumps(measure(str(options.store), options.ranks)))


if __name__ == "__main__":
    main()
