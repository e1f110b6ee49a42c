"""The places of a new store, worked out by several processes: the same answers, none half kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

import pytest

from chopper_core.answers import opening
from chopper_core.ingest import cache
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.render import render_frame
from chopper_core.store.writer import write_store
from chopper_core.util import atomic, memory
from chopper_core.views import VIEWS
from chopper_core.views.query import frame_of
from tests.conftest import ROOT
from tests.demo import small_files

WORKING = """
import os, pathlib, sys
from chopper_core.answers import opening
from chopper_core.model import run as run_module
from chopper_core.util import atomic, workers
from chopper_core.util.progress import Cancelled
from chopper_core.views import overlap
store, log, jobs, how = sys.argv[1:]
run_module.WORTH_KEEPING_S, workers.PROCESSES_FROM_ROWS = 0.0, 0
here, answer, to = os.getpid(), opening._answer, open(log, "ab", buffering=0)
def noted(run, name):
    is_copy = os.getpid() != here
    to.write(f"{name or 'signals'} {os.getpid() if is_copy else 'here'}\\n".encode())
    if how == "killed" and name == "overlap" and is_copy:
        os.kill(os.getpid(), 9)
    if how == "cancelled" and is_copy:  # It is ended while it writes.
        derived = pathlib.Path(store, atomic.DERIVED)
        derived.mkdir(exist_ok=True)
        atomic.temporary_path(derived / "written", "new").touch()
    answer(run, name)
opening._answer = noted
if how == "short of memory":
    def lacks(run, view):
        raise MemoryError
    overlap.answer = lacks
def progress(step, done, total):
    if how == "cancelled" and done > 2:
        raise Cancelled
try:
    opening.work_out(store, progress, int(jobs))
except Cancelled:
    print("cancelled", open(f"/proc/self/task/{here}/children").read())
"""
NEEDS_FORKS = pytest.mark.skipif(sys.platform != "linux", reason="no process says its threads")


STORE = Path("run.chopper")
"""A store of the same name wherever it is."""


@pytest.fixture(scope="module")
def unasked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that nothing is kept of."""
    store = tmp_path_factory.mktemp("unasked") / STORE
    write_store(open_run(str(small_files()), jobs=1), store)
    return store


@pytest.fixture(scope="module")
def plain(unasked: Path) -> Mapping[str, str]:
    """Address → its answer without anything kept."""
    with chdir(unasked.parent):
        return _answers(open_run(str(STORE), jobs=1))


@pytest.fixture
def store(unasked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it in the working directory."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(unasked, STORE)


def _answers(run: Run) -> dict[str, str]:
    return {f"?view={name}": _answer(run, name) for name in VIEWS if name != "live"}


def _answer(run: Run, name: str) -> str:
    frame = frame_of(run, parse(f"{STORE}?view={name}"))
    opens = [frame.addresses(row) for row in range(len(frame))]
    return "\n".join([render_frame(frame, "json"), *opens])


def _work_out(folder: Path, jobs: int, how: str) -> tuple[list[list[str]], str]:
    """The places that were answered, and who did; what was printed."""
    log = folder / "log"
    done = subprocess.run(
        [sys.executable, "-c", WORKING, "run.chopper", str(log), str(jobs), how],
        cwd=folder,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split() for line in lines], done.stdout


def _kept(folder: Path) -> set[str]:
    derived = folder / "run.chopper" / atomic.DERIVED
    assert not [each for each in derived.iterdir() if each.name.startswith(".")], "half of one"
    return {each.name.partition("-")[0] for each in derived.iterdir()}


@NEEDS_FORKS
@pytest.mark.few(2)
@pytest.mark.parametrize("jobs", [1, 2, 64])
def test_any_number_of_processes_keeps_the_same_answers(
    tmp_path: Path, store: Path, plain: Mapping[str, str], jobs: int
) -> None:
    done, _ = _work_out(tmp_path, jobs, "well")
    assert sorted(name for name, _ in done) == sorted([*VIEWS, "signals"])
    assert ({who for _, who in done} == {"here"}) == (jobs == 1)
    assert {"findings", "overview", "ranks", "comms", "graph", "overlap"} <= _kept(tmp_path)
    assert _answers(cache.open_cached(str(store))) == plain


@NEEDS_FORKS
@pytest.mark.parametrize("how", ["killed", "short of memory"])
def test_what_a_process_can_not_do_is_left_to_who_asks(
    tmp_path: Path, store: Path, plain: Mapping[str, str], how: str
) -> None:
    """The places that nobody had begun are done all the same."""
    done, _ = _work_out(tmp_path, 2, how)
    names = [name for name, _ in done]
    assert len(names) == len(set(names))
    if how == "killed":
        # The other process goes on.
        assert {*names} == {*VIEWS, "signals"}
    assert "overlap" not in _kept(tmp_path)
    assert _answers(cache.open_cached(str(store))) == plain


@NEEDS_FORKS
def test_who_stops_it_leaves_no_process_and_no_half(
    tmp_path: Path, store: Path, plain: Mapping[str, str]
) -> None:
    _, printed = _work_out(tmp_path, 2, "cancelled")
    assert printed.split() == ["cancelled"]
    _kept(tmp_path)
    assert _answers(cache.open_cached(str(store))) == plain


def test_as_many_processes_as_find_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = tmp_path / "meminfo"
    sizes.write_text("MemTotal: 99000000 kB\nMemAvailable: 1000000 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(memory, "_MEMORY", sizes)
    each = 1_024_000_000 // 4 - memory.WORKER_MB * 10**6
    assert [memory.jobs_fitting(jobs, each) for jobs in (1, 3, 64)] == [1, 3, 4]
    assert memory.jobs_fitting(64, 10**12) == 0
    monkeypatch.setattr(memory, "_limit", memory._allocated() + 600_000_000)
    assert memory.jobs_fitting(64, each) == 2
    monkeypatch.setattr(memory, "_limit", 0)
    sizes.write_text("nothing that is known")
    assert memory.jobs_fitting(3, each) == 3


def test_places_that_share_their_work_are_one_part(tmp_path: Path) -> None:
    run = open_run(str(small_files()), jobs=1)
    parts = opening._parts(run)
    every = [name for part in parts for name in part]
    assert sorted(every) == sorted([*VIEWS, ""])
    assert parts[0] == ("findings", "whatif", "overview", "ranks", "live")
    assert parts[1] == ("graph", "comms")
