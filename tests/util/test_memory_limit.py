"""Limits on memory: a sentence with the way out, and what is whole is kept."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from chopper_core.ingest import batches
from chopper_core.ingest.batches import ingest_store
from chopper_core.ingest.cache import open_cached
from chopper_core.model.run import Run
from chopper_core.store.reader import read_store
from chopper_core.util import memory
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.memory import OutOfMemory, is_out_of_memory, parse_size, worker_limit
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import read_all
from chopper_tui.cli import main
from tests.conftest import ROOT
from tests.ingest.test_run_sets import trace
from tests.limited import NEEDS_LINUX, run_limited, within
from tests.sources.counters.counter_writers import counter_rows, write_csv
from tests.wording import Wording


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command would limit the process of the tests."""
    monkeypatch.setattr(memory, "limit_memory", lambda size=0: None)


@pytest.mark.parametrize(
    ("text", "size"),
    [("500M", 500e6), ("2G", 2e9), ("1.5GiB", 1.5 * 2**30), ("800mb", 8e8), ("2000000k", 2e9),
     ("123456789", 123456789)],
)  # fmt: skip
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "1X", "99M", "5", "1e9", "2 G B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)
    with pytest.raises(SystemExit) as left:
        main(["info", "x", f"--max-memory={text}"])
    assert left.value.code == 2


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/job/step", {"job/memory.max": "5000", "job/step/memory.max": "max"}, 5000),
        ("0::/job", {"memory.max": "9000", "job/memory.max": "max"}, 9000),
        ("0::/", {}, 0),
        ("9:cpu:/job\n4:memory:/job\n0::/job", {"memory/job/memory.limit_in_bytes": "7000"}, 7000),
        ("4:memory:/elsewhere", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, 0),
        ("4:memory:/elsewhere", {"memory/memory.limit_in_bytes": "800"}, 800),
        ("nonsense\n", {}, 0),
    ],
)
def test_the_limit_of_a_job_is_the_lowest_of_its_cgroups(
    groups: str,
    limits: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = tmp_path / "cgroup"
    own.write_text(groups)
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(memory, "_OWN_GROUPS", own)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.job_limit() == expected


def test_a_run_in_a_real_cgroup_ends_in_a_sentence(tmp_path: Path, wording: Wording) -> None:
    group = Path("/sys/fs/cgroup/memory/chopper-test")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("260000000")
    except OSError:
        pytest.skip("no memory cgroup can be made here")
    enter = f'echo 0 > {group}/cgroup.procs; exec {sys.executable} -m chopper_tui ingest "$@"'
    try:
        done = subprocess.run(
            ["sh", "-c", enter, "-", str(ROOT / "demo_data" / "fsdp2"), "-o", str(tmp_path / "s")],
            capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
        )  # fmt: skip
    finally:
        group.rmdir()
    if not done.returncode:
        pytest.skip("it fits into the limit with these versions of its dependencies")
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stderr
    wording.among(done.stderr, "260 MB")


@pytest.mark.parametrize(
    ("limit", "largest", "expected"),
    [(0, 10**9, (8, 0)), (10**9, 0, (7, 10**9)), (400, 0, (2, 0)), (300, 0, (1, 0)),
     (2000, 1000, (3, 0)), (500, 5000, (1, 0))],
)  # fmt: skip
def test_fewer_workers_fit_a_limit(
    limit: int, largest: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they and the parent never have more than the limit."""
    limit *= 10**6 if limit < 10**6 else 1
    monkeypatch.setattr(memory, "_limit", limit)
    workers, each = worker_limit(8, largest * 10**6 if largest < 10**6 else largest)
    assert workers == expected[0]
    if each:
        assert workers > 1 and workers * each + memory.LEAST_MB * 10**6 <= limit
    else:
        assert workers == 1 or not limit


def _caused(cause: BaseException) -> ChopperError:
    try:
        raise DataError("x can't be read") from cause
    except DataError as error:
        return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("libarrow.so: failed to map segment from shared object"), True),
        (RuntimeError("can't start new thread"), True),
        (_caused(MemoryError()), True),
        (_caused(OSError(errno.ENOENT, "no")), False),
        (ValueError("x"), False),
        (None, False),
    ],
    ids=repr,
)
def test_what_running_out_of_memory_is(error: BaseException | None, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), OSError("error: launch worker thread")]
)
def test_a_lack_of_threads_is_none_of_memory(error: Exception, wording: Wording) -> None:
    """Where the process has no limit on its memory, which threads take, too."""
    assert is_out_of_memory(_caused(error))
    wording(str(memory.memory_error("reading a.csv", _caused(error))), "a.csv", "ulimit -u")
    with within(1 << 30):
        assert "memory" in str(memory.memory_error("reading a.csv", error))


class _Hungry:
    """A reader that runs out of memory at files named so; may be sent to a worker."""

    def __call__(self, path: Path, progress: Progress) -> str:
        if path.name.startswith("large"):
            raise MemoryError
        return path.name


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_a_run_without_the_file_that_needs_more_is_no_run(jobs: int, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "large", "b")]
    for path in paths:
        path.touch()
    with pytest.raises(OutOfMemory, match=r"reading .*large takes more memory than"):
        read_all(paths, _Hungry(), silent, jobs)
    assert read_all([paths[0], paths[2]], _Hungry(), silent, jobs) == ["a", "b"]


@pytest.mark.parametrize(
    ("hungry", "said"),
    [
        ("counters.files.read_found", "reading .*_counter_collection.csv"),
        ("run_counters", "joining the counters with kernels"),
        ("telemetry.sampler.read", "reading .*own.csv"),
        ("placed_together", "joining the telemetry with kernels"),
        ("placed_cpu", "joining the CPU samples with kernels"),
    ],
)
def test_a_run_opens_without_what_is_beside_its_traces_and_is_not_cached(
    hungry: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace(tmp_path)
    (tmp_path / "own.csv").write_text("# clock: epoch\ntime_ns,gpu,power_w\n5,0,1\n90000,0,2\n")
    (tmp_path / "cpu.csv").write_text("# clock: epoch\ntime_ns,cpu,percent\n5,0,1\n90000,0,2\n")
    rows = counter_rows(["kernel"] * 3, {"SQ_WAVES": [1.0] * 3})
    write_csv(tmp_path / "1_counter_collection.csv", *rows)

    def run_out(*_: object, **__: object) -> object:
        raise MemoryError

    place = "chopper_core.sources" if "." in hungry else "chopper_core.ingest.attach"
    with monkeypatch.context() as patch:
        patch.setattr(f"{place}.{hungry}", run_out)
        run = open_cached(str(tmp_path))
        reasons = [reason for _, reason in run.failed]
        assert len(run.table) and any(re.search(f"{said} takes more memory", r) for r in reasons)
    whole = open_cached(str(tmp_path))
    assert len(whole.table) == len(run.table)
    assert not whole.failed and whole.telemetry and whole.cpu and whole.counters


def test_what_was_read_is_kept_and_the_rest_is_read_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    for rank in range(3):
        trace(run, rank)
    read: list[str] = []
    plain = batches.read_rank

    def hungry(path: Path, *more: object) -> Run:
        read.append(path.name)
        if path.name == "rank2.json" and len(read) <= 3:
            raise DataError("rank2.json can't be read") from MemoryError()
        return plain(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "read_rank", hungry)
    assert main(["ingest", str(run), "-o", str(store), "--jobs", "1"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "kept" in said[0]
    wording(said[1], "rank2.json", "memory")
    assert not store.exists()
    assert not ingest_store(str(run), store, jobs=1)
    assert len(read_store(store).gpus) == 3
    assert read == ["rank0.json", "rank1.json", "rank2.json", "rank2.json"]


def test_a_command_that_runs_out_of_memory_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    def hungry(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr("chopper_tui.commands.keys.run", hungry)
    assert main(["keys"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    wording(said, "memory")


@pytest.mark.sweep
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("limit_mb", [100, 130, 180, 250, 600])
@pytest.mark.parametrize("how", ["option", "RLIMIT_AS", "RLIMIT_DATA"])
def test_ingest_within_a_limit_ends_in_a_sentence(
    how: str, limit_mb: int, jobs: int, demo: Path, tmp_path: Path
) -> None:
    """The whole run or a sentence, never a traceback, nor an abort of a library."""
    if how != "option" and limit_mb <= memory.LEAST_MB:
        pytest.skip("not even the interpreter's own modules can be loaded")

    def limit() -> None:
        if how != "option":
            size = limit_mb << 20
            resource.setrlimit(getattr(resource, how), (size, size))

    given = [f"--max-memory={limit_mb}M"] if how == "option" else []
    done = subprocess.run(
        [sys.executable, "-m", "chopper_tui", "ingest", str(demo), "-o", str(tmp_path / "store"),
         "--jobs", str(jobs), *given],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
        preexec_fn=limit, check=False,
    )  # fmt: skip
    said = done.stderr.splitlines()
    assert "Traceback" not in done.stderr, done.stderr
    assert 1 <= len([line for line in said if "left out" not in line]) <= 2, done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert (tmp_path / "store").exists() == (done.returncode == 0)
    if done.returncode:
        assert "memory" in said[-1] and "OpenBLAS" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on what is allocated")
@pytest.mark.parametrize("limit_mb", [300, 2000])
def test_libraries_take_no_more_of_a_larger_limit(limit_mb: int) -> None:
    """Twice what Chopper itself takes, at most; the rest is for the data."""
    code = (
        "import sys\nimport numpy as np\nfrom chopper_core.util import memory\n"
        "memory.limit_memory(int(sys.argv[1]) * 10**6)\nmemory.start_libraries()\n"
        "np.empty((int(sys.argv[1]) - 2 * memory.LEAST_MB) * 10**6, np.uint8)\n"
        # Arrow's oldest versions may abort a process that ends as their threads begin.
        "import os, time\ntime.sleep(0.1)\nos._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(limit_mb)],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on what is allocated")
def test_a_limit_is_named_as_it_was_given() -> None:
    """Whatever of it copies have in common."""
    code = (
        "from chopper_core.util import memory\nmemory.limit_memory(300 * 10**6)\n"
        "kept = memory.shared_bytes(40 * 10**6)\nprint(memory.memory_error('this', MemoryError()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "--max-memory allows (300 MB)" in done.stdout, done.stderr


@NEEDS_LINUX
@pytest.mark.parametrize(("headroom_mb", "threads"), [(24, 0), (200, 2)])
def test_without_memory_for_a_thread_values_are_kept_without_one(
    headroom_mb: int, threads: int, tmp_path: Path
) -> None:
    """Python waits for ever for a thread that ends for want of memory as it begins. Another one is
    started to see whether one can be."""
    done = run_limited(
        "import threading\nfrom chopper_core.store.kept import Derived\n"
        "started, start = [], threading.Thread.start\n"
        "threading.Thread.start = lambda own: (started.append(own), start(own))[1]\n",
        "class Whose:\n    name = 'run'\n"
        "own = lambda: Derived({path: False}, Whose, lambda: 'state', lambda: True)\n"
        "of = own()\nof.keep(('figure',), lambda: 'kept')\nof.wait()\n"
        "print(len(started), own().recall(('figure',), str))\n",
        tmp_path / "derived",
        headroom_mb,
    )
    assert done.stdout == f"{threads} kept\n", done.stderr
