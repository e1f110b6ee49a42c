"""The kinds of runs that random input is tried on."""

from __future__ import annotations

import gzip
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.ingest.cache import open_cached
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.util.progress import silent
from chopper_tui.commands.options import open_view_with
from tests.allocating import allocating_run
from tests.charllm import directory
from tests.demo import demo_run
from tests.ingest.test_chakra_runs import chain
from tests.pipelines import pipeline_run
from tests.tui.explorer import measured_run, sample_run
from tests.tui.test_runs_screen import set_of_runs

Made = tuple[Run, View]


def hostile_run(folder: Path) -> Run:
    """A trace whose names are escape sequences, markup, formulas and bidirectional controls."""
    names = ["\x1b[2J\x1b]0;owned\x07", "[bold red]x[/]", "=1+1", "\u202etxt.exe", "a\u200bb", "ab",
             "../../etc/passwd", "<script>", "|a|b|", "x" * 6000, "", "\x00", "\ud83d"]  # fmt: skip
    spans = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 1000 + 10 * i, "dur": 7 - i % 3, "pid": 0,
         "tid": 7 + i % 2, "args": {"device": 0, "stream": 7 + i % 2, "correlation": i}}
        for i, name in enumerate(names * 20)
    ]  # fmt: skip
    path = folder / "hostile [red]\u202e.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": spans}).encode(errors="replace")))
    return open_cached(str(path))


def _plain(make: Callable[[Path], Run]) -> Callable[[Path], Made]:
    def made(folder: Path) -> Made:
        run = make(folder)
        return run, View(run.name)

    return made


def _compared(folder: Path) -> Made:
    base, run = demo_run("fsdp1"), demo_run("fsdp2")
    start = View(run.name, baseline=Baseline(base.name))
    return replace(run, others={base.name: base}), start


def _chakra(folder: Path) -> Run:
    return open_cached(str(chain(folder)))


def _sampled(folder: Path) -> Run:
    return open_cached(str(directory(folder / "charllm", ranks=4, samples=60)))


KINDS: Final[dict[str, Callable[[Path], Made]]] = {
    "demo": _plain(lambda _: demo_run()),
    "sample": _plain(lambda _: sample_run()),
    "measured": _plain(lambda _: measured_run()),
    "one GPU": _plain(lambda _: sample_run(1, 1, 2)),
    "hostile": _plain(hostile_run),
    "chakra": _plain(_chakra),
    "telemetry": _plain(_sampled),
    "set": _plain(lambda _: set_of_runs()),
    "compared": _compared,
    "pipeline": _plain(lambda _: pipeline_run()[0]),
    "allocating": _plain(lambda _: allocating_run()),
}
"""Name → what makes the run and the view that the explorer opens with."""


def opened(name: str) -> Made:
    """The run, or set of runs, at a path, as the command line opens it."""
    view = View(name)
    return open_view_with(view, Namespace(jobs=1, no_cache=False), silent), view
