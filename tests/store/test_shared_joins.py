"""A store whose ranks several processes join: the same bytes, whatever happens to them."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path
from types import ModuleType

import pytest

from chopper_core.align import breakdown
from chopper_core.ingest import batches
from chopper_core.ingest.batches import ingest_into, ingest_store, parts_folder
from chopper_core.model import cubes
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable
from chopper_core.store import writer
from chopper_core.util import children, workers
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Cancelled
from tests.conftest import ROOT
from tests.demo import generated_files

RANKS = 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some ranks of a small run and its telemetry."""
    made = generated_files("ranks", ranks=RANKS, iterations=2, layers=2, with_counters=False)
    folder = tmp_path_factory.mktemp("run")
    for rank in range(RANKS):
        shutil.copy(made / f"rank{rank}.json.gz", folder)
    shutil.copytree(made / "telemetry", folder / "telemetry")
    return folder


@pytest.fixture(scope="module")
def one(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The content of its store, made by one process."""
    store = tmp_path_factory.mktemp("one") / "store"
    with pytest.MonkeyPatch.context() as patch:
        share_little(patch)
        ingest_store(str(source), store, jobs=1)
    return content_of(store)


@pytest.fixture(scope="module")
def ranks_read(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose ranks are read and not yet joined."""
    store = tmp_path_factory.mktemp("read") / "store"
    ingest_into(str(source), store, jobs=1)
    return store


@pytest.fixture
def unjoined(ranks_read: Path, tmp_path: Path) -> Path:
    """One of a test's own."""
    store = tmp_path / "store"
    shutil.copytree(parts_folder(ranks_read), parts_folder(store))
    return store


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes share what is small, and this one be copied whatever its threads are."""
    share_little(monkeypatch)


def share_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "may_fork", lambda: True)
    monkeypatch.setattr(workers, "PROCESSES_FROM_ROWS", 1)
    monkeypatch.setattr(writer, "_MIN_SUMMED_ROWS", 1)
    monkeypatch.setattr(cubes, "_CHUNK", 300)
    monkeypatch.setattr(breakdown, "_CHUNK", 300)
    monkeypatch.setattr(batches, "_GROUP", 2)


def content_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.iterdir()) if path.is_file()}


@pytest.mark.few(1)
@pytest.mark.parametrize("jobs", [2, 4])
def test_a_store_is_the_same_of_any_number_of_processes(
    source: Path,
    one: Mapping[str, bytes],
    unjoined: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
) -> None:
    shared = []
    pool = workers._pool

    def noted(*given: object, **options: object) -> object:
        shared.append(options.get("inherits"))
        return pool(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(workers, "_pool", noted)
    ingest_store(str(source), unjoined, jobs=jobs)
    assert shared.count(True) >= 6
    assert content_of(unjoined) == one


def killed_once(folder: Path, parent: int) -> None:
    """End a worker by SIGKILL, unless one was before."""
    if os.getpid() != parent:
        with suppress(FileExistsError):
            (folder / "killed").mkdir()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("module", "step"),
    [
        (batches, "read_part"),
        (batches, "write_at"),
        (batches, "_remove_each"),
        (breakdown, "_of_rows"),
        (cubes, "_keys"),
        (cubes, "_reduced"),
        (writer, "stamp_of"),
    ],
)
def test_what_a_killed_worker_left_is_done_by_others(
    source: Path,
    one: Mapping[str, bytes],
    unjoined: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    step: str,
) -> None:
    plain, parent = getattr(module, step), os.getpid()

    def fatal(*given: object) -> object:
        killed_once(tmp_path, parent)
        return plain(*given)

    monkeypatch.setattr(module, step, fatal)
    ingest_store(str(source), unjoined, jobs=2)
    assert (tmp_path / "killed").exists()
    assert content_of(unjoined) == one
    assert not [*tmp_path.glob(".*")]


@pytest.mark.parametrize("step", ["write_at", "stamp_of"])
def test_a_disk_that_is_full_for_a_worker_ends_it(
    source: Path, unjoined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The ranks that were read stay; nothing else does."""
    before = sorted(tmp_path.rglob("*"))
    module = batches if step == "write_at" else writer

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, step, full)
    with pytest.raises(DataError, match="No space left on device"):
        ingest_store(str(source), unjoined, jobs=2)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("step", ["check the ranks read", "merge ranks", "write store"])
def test_a_join_that_is_cancelled_leaves_nothing_of_its_own(
    source: Path, unjoined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before, running = sorted(tmp_path.rglob("*")), active_children()

    def cancel(at: str, done: int, total: int) -> None:
        if at == step:
            raise Cancelled

    with pytest.raises(Cancelled):
        ingest_store(str(source), unjoined, cancel, jobs=2)
    assert sorted(tmp_path.rglob("*")) == before
    assert active_children() == running


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_rank_that_is_read_again_while_ranks_are_joined(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """Places in the whole are those of the rows that it had."""
    plain = batches.rank_table

    def other(rank: Run, first_gpu: int) -> KernelTable:
        return plain(rank, first_gpu).take(slice(first_gpu % 2, None))

    monkeypatch.setattr(batches, "rank_table", other)
    with pytest.raises(DataError, match="was read again meanwhile"):
        ingest_store(str(source), tmp_path / "out", jobs=jobs)
    assert not (tmp_path / "out").exists()


JOIN = """
import os, sys, time
from chopper_tui.cli import main
from chopper_core.util import workers
from chopper_core.ingest import batches
workers.PROCESSES_FROM_ROWS, batches._GROUP, parent = 1, 2, os.getpid()
def slow(*given):
    os.write(2, b"writes\\n") if os.getpid() != parent else None
    time.sleep(60)
batches.write_at = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no process says its threads")
def test_ctrl_c_ends_all_that_share_a_join(source: Path, unjoined: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    asked = ["ingest", str(source), "-o", str(unjoined), "--jobs=2"]
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN, *asked],
        cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert b"writes\n" in iter(process.stderr.readline, b"")
    os.killpg(process.pid, signal.SIGINT)
    left = process.stderr.read()
    assert process.wait() == 130 and b"Traceback" not in left and b"resumes" in left
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert sorted(tmp_path.rglob("*")) == before
