"""Stores made rank by rank: by processes, by any executor, by calls on many machines."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.extensions.chakra.host_trace import HostFile
from chopper_core.ingest import batches as batch
from chopper_core.ingest.batches import finish, ingest_into, ingest_store
from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model import run as run_module
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.table import COLUMNS, concatenate
from chopper_core.render import info, render_frame
from chopper_core.store import reader as store_reader
from chopper_core.store import writer as store_writer
from chopper_core.store.reader import read_store
from chopper_core.util.atomic import DERIVED
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.progress import Cancelled, Progress
from chopper_core.views.query import frame_of
from chopper_tui.cli import main
from tests.conftest import ROOT
from tests.demo import generated_files
from tests.wording import Wording

RANKS = (0, 3, 5)
_CUT = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op"'
"""A trace that ends before its first activity."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three ranks of a small run and its telemetry."""
    made = generated_files("ranks", ranks=6, iterations=2, layers=2, with_counters=False)
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in RANKS:
        shutil.copy(made / f"rank{rank}.json.gz", folder)
    shutil.copytree(made / "telemetry", folder / "telemetry")
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the traces that are read from now on in this process."""
    names: list[str] = []
    plain = batch.read_rank

    def counted(path: Path, progress: Progress, hosts: Sequence[HostFile]) -> Run:
        names.append(path.name)
        return plain(path, progress, hosts)

    monkeypatch.setattr(batch, "read_rank", counted)
    return names


def trace(source: Path, rank: int) -> Path:
    return source / f"rank{rank}.json.gz"


def stored(store: Path, source: Path) -> Run:
    """The run of a store under its traces' name."""
    return replace(read_store(store), name=str(source))


def same(ours: Run, theirs: Run) -> None:
    assert len(ours.table) > 1000
    for name in COLUMNS:
        np.testing.assert_array_equal(ours.table.column(name), theirs.table.column(name))
    assert (ours.table.names, ours.table.operations) == (
        theirs.table.names,
        theirs.table.operations,
    )
    assert list(ours.table.measured) == list(theirs.table.measured)
    for name in theirs.table.measured:
        np.testing.assert_array_equal(ours.table.measured[name], theirs.table.measured[name])
    assert info.info_json(ours) == info.info_json(theirs)


def leftovers(store: Path) -> list[str]:
    return sorted(path.name for path in store.parent.iterdir() if path.name.startswith("."))


@pytest.mark.sweep
def test_one_go_gives_what_reading_gives(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "out"
    assert ingest_store(str(source), store, jobs=1) == ()
    same(stored(store, source), open_run(str(source), jobs=1))
    assert leftovers(store) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_calls_for_each_rank_give_the_same(
    source: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    store = tmp_path / "out"
    for number in order:
        (outcome,) = ingest_into(str(trace(source, RANKS[number])), store).values()
        assert outcome is None
        assert not store.exists()
    finish(store, str(source))
    same(stored(store, source), open_run(str(source), jobs=1))
    assert leftovers(store) == []
    with pytest.raises(DataError, match="is finished"):
        finish(store)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["a job each", "--jobs 1", "--jobs 2", "--jobs 4", "dask"])
def test_what_ingest_works_out_is_the_same_however_ranks_are_read(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    way: str,
) -> None:
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)

    def answers(read: Sequence[str], place: str, opened: Callable[[str], Run]) -> dict[str, str]:
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        for line in read:
            assert main(["ingest", *line.split()]) == 0
        run = opened("out")
        return {
            view: render_frame(frame_of(run, parse(f"out?view={view}")), "json")
            for view in ("findings", "overview", "ranks", "comms", "overlap", "launch", "kernels")
        }

    whole = f"{source} -o out {way}"
    if way == "dask":
        whole = f"{source} -o out --engine dask --scheduler {request.getfixturevalue('scheduler')}"
    jobs = [f"{trace(source, rank)} --into out" for rank in RANKS]
    read = [*jobs, f"{source} --finish out"] if way == "a job each" else [whole]
    ours = answers(read, "ours", open_cached)
    theirs = answers([f"{source} -o out --jobs 1 --no-cache"], "alone", open_run)
    assert (tmp_path / "ours" / "out" / DERIVED).exists()
    assert not (tmp_path / "alone" / "out" / DERIVED).exists()
    assert ours == theirs


@pytest.mark.sweep
def test_calls_at_once_in_processes(source: Path, tmp_path: Path) -> None:
    """As a job array does it, the same rank twice among them, then a process that finishes."""
    chopper = [sys.executable, "-m", "chopper_tui.cli", "ingest"]

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*chopper, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=source, env={**os.environ, **PATHS}
        )

    with ThreadPoolExecutor() as pool:
        jobs = [f"rank{rank}.json.gz" for rank in (*RANKS, RANKS[0])]
        done = list(pool.map(lambda name: call(name, "--into", "../out"), jobs))
    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    last = call("--finish", "../out")
    assert (last.returncode, last.stdout) == (0, ""), last.stderr
    ours, theirs = read_store(tmp_path / "out"), open_run(str(source), jobs=1)
    np.testing.assert_array_equal(ours.table.start_ns, theirs.table.start_ns)
    assert [each.path for each in ours.sources] == [each.path for each in theirs.sources]


PATHS = {"PYTHONPATH": str(ROOT)}


@pytest.mark.sweep
def test_a_killed_ingest_goes_on_where_it_was(
    source: Path, tmp_path: Path, reads: list[str]
) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from chopper_core.ingest import batches as batch\n"
        "plain, done = batch.read_rank, []\n"
        "def read(path, progress, hosts):\n"
        "    done.append(path)\n"
        "    return os._exit(9) if len(done) == 3 else plain(path, progress, hosts)\n"
        "batch.read_rank = read\n"
        "batch.ingest_store(sys.argv[1], Path(sys.argv[2]), jobs=1)"
    )
    store = tmp_path / "out"
    command = [sys.executable, "-c", code, str(source), str(store)]
    assert subprocess.run(command, cwd=ROOT).returncode == 9
    assert not store.exists() and leftovers(store) == [".out.parts"]
    ingest_store(str(source), store, jobs=1)
    same(stored(store, source), open_run(str(source), jobs=1))
    assert reads == [trace(source, RANKS[2]).name]
    assert leftovers(store) == []


@pytest.mark.sweep
def test_cancelling_keeps_what_is_read(source: Path, tmp_path: Path, reads: list[str]) -> None:
    def stop(step: str, done: int, total: int) -> None:
        if len(reads) == 2:
            raise Cancelled

    store = tmp_path / "out"
    with pytest.raises(Cancelled):
        ingest_store(str(source), store, stop, jobs=1)
    ingest_store(str(source), store, jobs=1)
    names = [trace(source, rank).name for rank in RANKS]
    assert reads == [names[0], names[1], names[1], names[2]]


@pytest.mark.sweep
def test_a_worker_process_is_cancelled(source: Path, tmp_path: Path) -> None:
    calls = 0

    def stop(step: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Cancelled

    with pytest.raises(Cancelled):
        ingest_store(str(source), tmp_path / "out", stop, jobs=2)
    assert not (tmp_path / "out").exists()


def test_a_rank_that_cannot_be_read_is_named(source: Path, tmp_path: Path) -> None:
    content = trace(source, 3).read_bytes()
    trace(source, 3).write_bytes(_CUT)
    store = tmp_path / "out"
    (error,) = ingest_into(str(trace(source, 3)), store).values()
    assert error is not None and "rank3.json.gz" in str(error)
    for rank in (0, 5):
        ingest_into(str(trace(source, rank)), store)
    failed = finish(store, str(source))
    run = read_store(store)
    assert [each.rank for each in run.sources] == [0, 5]
    assert [Path(path).name for path, _ in failed] == ["rank3.json.gz"]
    assert run.failed == failed
    trace(source, 3).write_bytes(content)
    assert not ingest_store(str(source), store, jobs=1)


@pytest.mark.sweep
def test_a_rank_that_was_not_read_is_named(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "out"
    for rank in (0, 3):
        ingest_into(str(trace(source, rank)), store)
    ((path, reason),) = finish(store, str(source))
    assert path == str(trace(source, 5)) and "not ingested yet" in reason
    assert len(read_store(store).sources) == 2
    with pytest.raises(DataError, match=r"1 of 3 traces can't be joined, .* is unchanged"):
        finish(store, str(source))
    # Once it is read, the parts of the others are still there.
    ingest_into(str(trace(source, 5)), store)
    assert finish(store, str(source)) == ()
    same(stored(store, source), open_run(str(source), jobs=1))
    assert leftovers(store) == []
    # Over a finished store a part of the ranks must not replace all of them.
    ingest_into(str(trace(source, 5)), store)
    with pytest.raises(DataError, match=r"2 of 3 traces can't be joined, .* is unchanged"):
        finish(store, str(source))
    assert len(read_store(store).sources) == 3


def test_parts_of_traces_that_are_damaged_are_not_kept(source: Path, tmp_path: Path) -> None:
    """To read them again brings nothing."""
    store = tmp_path / "out"
    trace(source, 3).write_bytes(_CUT)
    ingest_into(str(source), store, jobs=1)
    assert len(finish(store, str(source))) == 1
    assert leftovers(store) == []


def test_a_job_that_still_writes_its_part_can_end(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "out"
    ingest_into(str(trace(source, 0)), store)
    begun = batch.parts_folder(store) / ".rank3.begun.new"
    begun.mkdir()
    finish(store, str(source))
    assert begun.is_dir()
    ingest_into(str(trace(source, 3)), store)
    ingest_into(str(trace(source, 5)), store)
    assert finish(store, str(source)) == ()
    assert leftovers(store) == []


def test_many_traces_that_lack_are_told_in_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "out"
    content = trace(source, 0).read_bytes()
    for number in range(100, 130):
        trace(source, number).write_bytes(content)
    for number in range(200, 230):
        trace(source, number).write_bytes(_CUT)
    assert main(["ingest", str(trace(source, 0)), "--into", str(store)]) == 0
    assert main(["ingest", ",".join(str(trace(source, n)) for n in range(200, 230)),
                 "--into", str(store)]) == 1  # fmt: skip
    capsys.readouterr()
    assert main(["ingest", str(source), "--finish", str(store), "--no-cache"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) < 6
    assert any("left out 32 traces; the first: " in line for line in told)
    assert any("left out 30 traces; the first: " in line for line in told)
    assert any("are kept in" in line for line in told)


def test_parts_of_another_version_are_named_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "out"
    ingest_into(str(source), store, jobs=1)
    monkeypatch.setattr(batch, "_code", lambda: "newer")
    with pytest.raises(DataError) as caught:
        finish(store)
    text = str(caught.value)
    assert "3 of 3 traces can't be joined, nothing was written" in text
    assert text.count("another version") == 1 and f"--into {store}" in text
    assert not store.exists()


@pytest.mark.sweep
def test_a_changed_trace_is_read_again(source: Path, tmp_path: Path, reads: list[str]) -> None:
    store = tmp_path / "out"
    ingest_into(str(source), store, jobs=1)
    assert len(reads) == 3
    ingest_into(str(source), store, jobs=1)
    assert len(reads) == 3
    shutil.copy(trace(source, 3), trace(source, 0))
    ((path, reason),) = finish(store, str(source))
    assert path == str(trace(source, 0)) and "has changed" in reason


def test_another_version_reads_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    store = tmp_path / "out"
    ingest_into(str(trace(source, 0)), store)
    monkeypatch.setattr(batch, "_code", lambda: "newer")
    ingest_into(str(trace(source, 0)), store)
    assert len(reads) == 2


@pytest.mark.sweep
@pytest.mark.parametrize("large_bytes", [store_reader._LARGE_BYTES, 0])
@pytest.mark.parametrize("name", ["kernels.arrow", "measured.arrow", "run.json"])
def test_a_corrupt_part_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, large_bytes: int
) -> None:
    """Also where opening it verifies none of its files, as none of many megabytes."""
    monkeypatch.setattr(store_reader, "_LARGE_BYTES", large_bytes)
    store = tmp_path / "out"
    ingest_into(str(source), store, jobs=1)
    (file,) = (tmp_path / ".out.parts").glob(f"rank3*/{name}")
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    ((path, reason),) = finish(store, str(source))
    assert path == str(trace(source, 3)) and "is corrupt" in reason


def test_a_full_disk_ends_it(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_writer, "write_arrow", full)
    with pytest.raises(DataError, match="No space left"):
        ingest_store(str(source), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_part_is_a_store(source: Path, tmp_path: Path) -> None:
    ingest_into(str(trace(source, 3)), tmp_path / "out")
    (part,) = (tmp_path / ".out.parts").iterdir()
    ours, theirs = open_run(str(part)), open_run(str(trace(source, 3)), jobs=1)
    assert sorted(ours.table.start_ns) == sorted(theirs.table.start_ns)
    assert (ours.sources[0].rank, ours.gpus[0].rank) == (3, 3)


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="handles are counted in /proc")
def test_parts_are_open_one_at_a_time(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file takes a handle, of which a process has 1,024; a run may have more ranks."""
    counts = []
    plain = batch.read_store

    def counted(folder: Path) -> Run:
        counts.append(len(os.listdir("/proc/self/fd")))
        return plain(folder)

    monkeypatch.setattr(batch, "read_store", counted)
    ingest_store(str(source), tmp_path / "out", jobs=1)
    described, gathered = counts[: len(RANKS)], counts[len(RANKS) : 2 * len(RANKS)]
    # While they are gathered, their columns are open for writing, and the part before this one.
    assert len(set(described)) == len(set(gathered[1:])) == 1


def test_nothing_else_is_overwritten(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a Chopper store"):
        ingest_into(str(source), source)
    with pytest.raises(DataError, match="--into"):
        finish(tmp_path / "nothing")


class Odd(Executor):
    """Breaks at one file, as a worker does whose machine goes away."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            if "rank5" in str(arguments[0]):
                raise ConnectionError("the worker is gone")
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.sweep
def test_any_executor_will_do(source: Path, tmp_path: Path, wording: Wording) -> None:
    with ThreadPoolExecutor(2) as threads:
        assert ingest_store(str(source), tmp_path / "a", executor=threads) == ()
    same(stored(tmp_path / "a", source), open_run(str(source), jobs=1))
    ((path, reason),) = ingest_store(str(source), tmp_path / "b", executor=Odd())
    assert [each.rank for each in read_store(tmp_path / "b").sources] == [0, 3]
    assert path == str(trace(source, 5))
    wording(reason, "worker")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Dask cluster of two worker processes on this machine."""
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'chopper-tui[dask]'"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster:
        yield cluster.scheduler_address


@pytest.mark.sweep
def test_dask_on_two_workers(
    source: Path, tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace(source, 3).write_bytes(b'{"schemaVersion": 1, "traceEvents": [')
    # A relative name: the workers were started elsewhere.
    monkeypatch.chdir(tmp_path)
    arguments = ["ingest", "run", "-o", "out", "--engine", "dask", "--scheduler", scheduler]
    assert main(arguments) == 0
    run = read_store(tmp_path / "out")
    assert [Path(path).name for path, _ in run.failed] == ["rank3.json.gz"]
    trace(source, 3).unlink()
    theirs = open_run("run", jobs=1)
    for name in COLUMNS:
        np.testing.assert_array_equal(run.table.column(name), theirs.table.column(name))
    assert [each.path for each in run.sources] == [each.path for each in theirs.sources]


@pytest.mark.sweep
def test_no_scheduler_is_a_sentence(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'chopper-tui[dask]'"
    )
    import dask

    monkeypatch.setitem(dask.config.config["distributed"]["comm"]["timeouts"], "connect", "1s")
    arguments = ["ingest", str(source), "-o", str(tmp_path / "out"), "--engine", "dask"]
    assert main([*arguments, "--scheduler", "tcp://127.0.0.1:9"]) == 1
    wording(capsys.readouterr().err, "tcp://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "out"], "missing run"),
        (["--into", "out"], "missing trace"),
        (["RUN", "-o", "out", "--scheduler", "a:1"], "goes with --engine dask"),
        (["RUN", "-o", "out", "--engine", "dask"], "needs --scheduler"),
        (["RUN", "--into", "out", "--clock", "amd_smi=1"], "go with --finish"),
        (["RUN", "--into", "out", "--engine", "dask"], "goes with -o"),
    ],
)
def test_wrong_use_is_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = [str(tmp_path / word) if word in ("RUN", "out") else word for word in arguments]
    assert main(["ingest", *given]) == 2
    assert sentence in capsys.readouterr().err


def test_ranks_are_gathered_from_files(source: Path, tmp_path: Path) -> None:
    tables = []
    for rank in RANKS:
        outcome = batch.read_rank(trace(source, rank), lambda *_: None)
        assert not isinstance(outcome, ChopperError)
        tables.append(outcome.table)
    measured = {"power_w": np.arange(float(len(tables[1])))}
    tables[1] = tables[1].with_measured(measured)
    theirs = concatenate(tables)
    contents = [batch.TableContent.of(table) for table in tables]
    ours = batch.gather(contents, tables.__getitem__, tmp_path / "all")
    begin, end = len(tables[0]), len(tables[0]) + len(tables[1])
    for column in ("start_ns", "kernel", "operation", "bytes"):
        # All are of GPU 0 here: within each, the rows are in the order of the levels.
        assert sorted(ours.column(column)[begin:end]) == sorted(theirs.column(column)[begin:end])
    assert np.isnan(ours.measured["power_w"][:begin]).all()
    assert sorted(ours.measured["power_w"][begin:end]) == sorted(measured["power_w"])


@pytest.mark.sweep
def test_a_second_writer_is_refused_and_reads_nothing(
    source: Path, tmp_path: Path, reads: list[str]
) -> None:
    """Of two at once the last one's store lacked the ranks whose parts the first had removed."""
    store = tmp_path / "a.chopper"
    folder = batch.parts_folder(store)
    folder.mkdir()
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is writing"):
            ingest_store(str(source), store, jobs=1)
        assert not reads and not store.exists() and folder.exists()
    finally:
        os.close(handle)
    ingest_store(str(source), store, jobs=1)
    assert len(reads) == len(RANKS) and not folder.exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("refused", [errno.EBADF, errno.ENOLCK, errno.ENOSYS])
def test_a_second_writer_is_refused_where_folders_have_no_locks(
    refused: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses to lock what isn't open for writing, and other file systems to lock at all."""
    store, flock = tmp_path / "a.chopper", fcntl.flock

    def lock(handle: int, how: int) -> None:
        is_writable = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_RDWR
        if refused != errno.EBADF or not is_writable:
            raise OSError(refused, os.strerror(refused))
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    with batch._only_writer(store):
        if refused == errno.EBADF:
            with pytest.raises(DataError, match="another process is writing"):
                ingest_store(str(source), store, jobs=1)
    assert not leftovers(store)
    # A lock that a killed process left is none.
    batch.parts_folder(store).mkdir()
    (batch.parts_folder(store) / "lock").touch()
    ingest_store(str(source), store, jobs=1)
    assert store.exists() and not leftovers(store)


def test_the_lock_of_a_killed_writer_is_gone_with_it(source: Path, tmp_path: Path) -> None:
    """Workers are copies of it, which live on for a moment: none of them holds it."""
    store = tmp_path / "a.chopper"
    end, until = os.pipe()
    writer = os.fork()
    if not writer:
        with batch._only_writer(store):
            if not os.fork():
                os.close(until)
                os.read(end, 1)  # Until the test ends.
            os._exit(0)
    os.waitpid(writer, 0)
    with batch._only_writer(store):
        pass
    os.close(until)
    os.close(end)


def test_traces_that_are_gone_need_the_name_of_the_run(source: Path, tmp_path: Path) -> None:
    store, traces = tmp_path / "a.chopper", tmp_path / "traces"
    traces.mkdir()
    shutil.copy(sorted(source.rglob("*rank*"))[0], traces)
    ingest_into(str(traces), store, jobs=1)
    shutil.rmtree(traces)
    with pytest.raises(DataError, match="no longer exists; name the run"):
        finish(store)


def test_a_part_that_vanishes_is_no_rank_that_is_left_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no locks."""
    store, plain = tmp_path / "a.chopper", batch.read_parts

    def removed(*given: Any, **options: Any) -> Any:
        found = plain(*given, **options)
        shutil.rmtree(sorted(batch.parts_folder(store).glob("*.chopper"))[1])
        return found

    monkeypatch.setattr(batch, "read_parts", removed)
    with pytest.raises(DataError, match="removed in the meantime; it is unchanged"):
        ingest_store(str(source), store, jobs=1)
    assert not store.exists()


def test_a_file_replaced_while_ranks_are_read_has_them_read_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = batch.read_parts, []
    telemetry = next((source / "telemetry").iterdir())

    def replacing(*given: Any, **more: Any) -> dict[Path, ChopperError]:
        calls.append(given)
        failed = plain(*given, **more)
        if len(calls) == 1:
            content = telemetry.read_bytes()
            telemetry.unlink()
            telemetry.write_bytes(content)
        return failed

    monkeypatch.setattr(batch, "read_parts", replacing)
    store = tmp_path / "a.chopper"
    assert ingest_store(str(source), store, jobs=1) == ()
    assert len(calls) == 2
    assert read_store(store).telemetry
