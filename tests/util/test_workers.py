"""Reading many files at once: the same outcomes with and without workers, whatever happens."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from chopper_core.util import children
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Cancelled, silent, stop_unwanted
from chopper_core.util.workers import (
    PROCESSES_FROM_ROWS,
    in_processes,
    in_threads,
    read_all,
    shared_by,
)
from tests.conftest import ROOT
from tests.demo import small_files
from tests.util.readers import (
    blocked_signals,
    die_in_worker,
    fail_concurrently,
    print_and_read,
    read_both,
    read_size,
    which_thread,
)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for number, name in enumerate(("a", "bad", "c")):
        (tmp_path / name).write_bytes(bytes(number))
    (tmp_path / "parent").write_text(str(os.getpid()))
    return [tmp_path / name for name in ("a", "bad", "c")]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_file_gives_its_outcome_in_order(files: list[Path], jobs: int) -> None:
    first, error, last = read_all(files, read_size, silent, jobs)
    assert (first, last) == (0, 2)
    assert isinstance(error, DataError) and "is bad" in str(error)


@pytest.mark.sweep
def test_files_are_read_here_when_the_workers_die(files: list[Path]) -> None:
    assert read_all([files[0], files[2]], die_in_worker, silent, 2) == [1, 1]
    assert not multiprocessing.active_children()


@pytest.mark.sweep
def test_files_are_read_here_when_no_worker_starts(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "may_fork", lambda: False)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert read_all([files[0], files[2]], read_size, silent, 2) == [0, 2]


@pytest.mark.sweep
def test_a_pool_that_starts_in_part_leaves_no_process(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SpawnProcess.start
    started: list[SpawnProcess] = []

    def start_one(process: SpawnProcess) -> None:
        if started:
            raise OSError(errno.EAGAIN, "no more processes")
        start(process)
        started.append(process)

    monkeypatch.setattr(children, "may_fork", lambda: False)
    monkeypatch.setattr(SpawnProcess, "start", start_one)
    assert read_all([files[0], files[2]], read_size, silent, 2) == [0, 2]
    assert len(started) == 1 and started[0] not in multiprocessing.active_children()


@pytest.mark.sweep
@pytest.mark.parametrize("jobs", [1, 2])
def test_who_waits_can_cancel(files: list[Path], jobs: int) -> None:
    def cancel(step: str, done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        read_all(files, read_size, cancel, jobs)


@pytest.mark.sweep
def test_workers_start_where_standard_error_is_an_apps(tmp_path: Path) -> None:
    """An app takes standard error and says that it has the file -1."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom chopper_core.util.workers import read_all\n"
        "from chopper_core.util.progress import silent\n"
        "from tests.util.readers import read_size\n"
        "class Taken:\n    fileno = lambda self: -1\n    write = flush = lambda self, *_: 0\n"
        "sys.stderr = taken = Taken()\n"
        "found = read_all([Path(name) for name in sys.argv[1:]], read_size, silent, 2)\n"
        "assert sys.stderr is taken\nprint(found)"
    )
    names = [str(tmp_path / name) for name in ("a", "b")]
    done = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[1, 1]"


STARTING = """
import signal, sys, threading
from pathlib import Path
from chopper_core.util.progress import silent
from chopper_core.util.workers import read_all
from tests.util.readers import how_it_began
signal.signal(signal.SIGTERM, lambda *_: print("ended here"))
if sys.argv[1] == "two":
    waiting = threading.Event()
    threading.Thread(target=waiting.wait, daemon=True).start()
for _ in range(2):
    print(*read_all([Path(name) for name in sys.argv[2:]], how_it_began, silent, 2), sep="\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process says its threads")
@pytest.mark.parametrize(("threads", "expected"), [("one", "Fork"), ("two", "Spawn")])
def test_workers_are_copies_of_a_process_with_one_thread(
    files: list[Path], threads: str, expected: str
) -> None:
    """Of one with several, a copy could wait forever for what another thread holds; those of the
    workers before are gone."""
    names = [str(files[0]), str(files[2])]
    done = subprocess.run(
        [sys.executable, "-c", STARTING, threads, *names],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (4 * f"{expected}Process, True\n", "")


LEFT_OPEN = """
import sys, time
from chopper_core.util.workers import PROCESSES_FROM_ROWS, in_processes, shared_by
def work(number):
    time.sleep(0.05)
    return number
with shared_by(2):
    found = in_processes(work, range(8), PROCESSES_FROM_ROWS)
    print(next(found))
if sys.argv[1] == "raised":
    raise SystemExit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is copied")
@pytest.mark.parametrize(("how", "code"), [("at its end", 0), ("raised", 3)])
def test_who_leaves_work_undone_ends_with_its_workers(how: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, how],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "0\n", "")


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["the script", "a thread"])
def test_a_script_without_a_main_guard_runs_once(tmp_path: Path, where: str) -> None:
    """Workers that import the main script again would repeat what it does."""
    for rank in (0, 1):
        shutil.copy(small_files() / f"rank{rank}.json.gz", tmp_path)
    call = "found.append(open_run(sys.argv[1], jobs=2))"
    if where == "a thread":
        call = f"t = threading.Thread(target=lambda: {call}); t.start(); t.join()"
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, threading\nfrom chopper_core.ingest.open import open_run\n"
        f"print('top level')\nfound = []\n{call}\nprint(len(found[0].gpus))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout.split("\n"), done.stderr) == (["top level", "2", ""], "")


@pytest.mark.parametrize("is_first", [True, False])
def test_workers_leave_ctrl_c_to_the_process_that_started_them(
    files: list[Path], is_first: bool
) -> None:
    """Also the first ones of a process, with which Python starts a tracker that lets it in. This
    process has no signal blocked after that."""
    if is_first:
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    found = read_all([files[0], files[2]], blocked_signals, silent, 2)
    assert found == [[signal.SIGINT]] * 2
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.sweep
def test_what_a_worker_prints_does_no_harm(files: list[Path]) -> None:
    assert read_all([files[0], files[2]], print_and_read, silent, 2) == [0, 2]


def test_threads_give_their_results_in_order_and_their_errors() -> None:
    assert in_threads(abs, range(-9, 0)) == [*range(9, 0, -1)]
    assert in_threads(abs, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda number: 1 // number, [1, 0, 2])


@pytest.mark.parametrize(("jobs", "of_many"), [(1, True), (2, False)])
def test_a_thread_works_concurrently_where_a_file_has_several_processors(
    files: list[Path], jobs: int, of_many: bool
) -> None:
    assert read_all(files[:1], which_thread, silent, jobs) == [[True, of_many]]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_beside_fails_here(files: list[Path], jobs: int) -> None:
    (error,) = read_all(files[:1], fail_concurrently, silent, jobs)
    assert isinstance(error, DataError) and "is bad" in str(error)


def test_a_process_that_may_have_no_others_reads_alone(files: list[Path]) -> None:
    """A daemon of `multiprocessing`, such as a worker of its Pool."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        found = manager.list()
        process = context.Process(target=read_both, args=(files[:2], found), daemon=True)
        process.start()
        process.join()
        assert [*found] == [path.stat().st_size for path in files[:2]]


SHARING = """
import os, sys, time
from multiprocessing.connection import Connection
import pyarrow
from chopper_core.util.children import may_fork
from chopper_core.util.workers import in_processes, shared_by
squares, parent = [number * number for number in range(40)], os.getpid()
assert may_fork(), "at first"
plain = Connection._send
def send(self, content, *given):
    if b"half" in bytes(content[:200]):
        os.write(self.fileno(), content[:1000])
        os.kill(os.getpid(), 9)
    plain(self, content, *given)
Connection._send = send
class Odd(Exception):
    def __init__(self, one, _other):
        super().__init__(one)
def work(number):
    here = os.getpid()
    if number == 7 and here != parent and sys.argv[1] == "killed while it sends":
        time.sleep(0.3)  # until the others have done all that was begun beyond it
        return "half", bytes(100_000)
    if number == 7 and here != parent:
        if sys.argv[1] == "killed":
            os.kill(here, 9)
        if sys.argv[1] == "short of memory":
            raise MemoryError
        if sys.argv[1] == "unreadable":
            raise Odd(1, 2)
        if sys.argv[1] == "unsendable":
            raise ValueError(lambda: 0)
    if number == 8 and sys.argv[1] == "wrong":
        raise ValueError("wrong")
    print("a library's banner") if here != parent else None
    return squares[number], here == parent
with shared_by(int(sys.argv[2])):
    found = list(in_processes(work, range(40)))
assert [value for value, _ in found] == squares
assert may_fork(), "again"
print(sum(is_here for _, is_here in found))
"""


def shared_out(how: str, jobs: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHARING, how, str(jobs)],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=50,
    )  # fmt: skip


NEEDS_FORKS = pytest.mark.skipif(sys.platform != "linux", reason="no process says its threads")


@NEEDS_FORKS
@pytest.mark.parametrize(
    ("how", "jobs", "here"),
    [("well", 1, 40), ("well", 2, 0), ("well", 64, 0), ("short of memory", 2, 1), ("killed", 2, 1),
     ("killed while it sends", 2, 1), ("unreadable", 2, 1), ("unsendable", 2, 1)],
)  # fmt: skip
def test_copies_of_a_process_share_what_it_has(how: str, jobs: int, here: int) -> None:
    """Its results come in order; an item whose worker fell short, died or had an error that can't
    be sent is done here, and no other."""
    done = shared_out(how, jobs)
    assert done.stdout == f"{here}\n", done.stderr
    assert "Traceback" not in done.stderr


REFUSED = """
import errno, os
from multiprocessing import active_children
from pathlib import Path
from chopper_core.util.progress import silent
from chopper_core.util.workers import in_processes, read_all, shared_by
from tests.util.readers import size_of
fork, forked, here = os.fork, [], os.getpid()
def second_fails():
    forked.append(0)
    if len(forked) % 2 == 0:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = second_fails
paths = [Path(__import__("numpy").__file__)] * 3
print(read_all(paths, size_of, silent, 3) == [paths[0].stat().st_size] * 3, len(forked))
with shared_by(3):
    print({*in_processes(lambda _: os.getpid() != here, range(3))}, len(forked), active_children())
"""


@NEEDS_FORKS
def test_where_not_all_workers_can_be_started_others_do_all_and_none_is_left() -> None:
    """A process whose worker waits for something to do never ends."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.stdout == "True 2\n{True} 4 []\n", done.stderr


THREADS = """
import sys, threading
from pathlib import Path
from chopper_core.util.progress import silent
from chopper_core.util.workers import in_processes, read_all, shared_by
from tests.util.readers import size_of
start, left = threading.Thread.start, [int(sys.argv[1])]
def limited(thread):
    left[0] -= 1
    if left[0] < 0:
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = limited
paths = [Path(__import__("numpy").__file__)] * 3
print(read_all(paths, size_of, silent, 3) == [paths[0].stat().st_size] * 3)
with shared_by(3):
    print([*in_processes(abs, range(3))])
"""


@NEEDS_FORKS
@pytest.mark.parametrize("threads", [0, 1])
def test_without_threads_for_workers_their_work_is_done_here(threads: int) -> None:
    """Each has one that sees its parent end; this process needs none for them."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(threads)],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.stdout == "True\n[0, 1, 2]\n", done.stderr
    assert "Traceback" not in done.stderr


def test_threads_that_may_be_started_are_gone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = threading.active_count(), threading.Thread.start
    assert children.may_start_threads(5)
    assert threading.active_count() == before
    left = [3]

    def limited(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert not children.may_start_threads(5)
    left[0] = 5
    assert children.may_start_threads(5)
    assert threading.active_count() == before


READING = """
import os, sys
from pathlib import Path
import pyarrow as pa
from pyarrow import parquet
from chopper_core.tables.column import csv_table
from chopper_core.tables.parquet import opened_parquet
from chopper_core.util.workers import in_processes, shared_by
path = Path(sys.argv[1])
parquet.write_table(pa.table({str(at): [1.0] * 1000 for at in range(8)}), path, row_group_size=100)
def read(_):
    with opened_parquet(path) as file:
        rows = sum(len(batch) for batch in file.iter_batches())
    return rows, len(csv_table(b"1,2\\n" * 1000, 2)), os.getpid()
first = read(0)
with shared_by(2):
    found = list(in_processes(read, range(8)))
print({each[:2] for each in found}, os.getpid() in {each[2] for each in found})
"""


@NEEDS_FORKS
def test_copies_read_tables_after_this_process_has(tmp_path: Path) -> None:
    """Arrow's threads stay."""
    done = subprocess.run(
        [sys.executable, "-c", READING, str(tmp_path / "a.parquet")],
        cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.stdout == "{(1000, 1000)} False\n", done.stderr


@NEEDS_FORKS
def test_an_error_in_a_copy_is_raised_here() -> None:
    done = shared_out("wrong", 2)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: wrong\n")


def of_copies(count: int, taken: int) -> list[tuple[int, int]]:
    """How many items had begun when each of the first was taken."""
    begun = multiprocessing.get_context("fork").RawArray("b", count)

    def work(number: int) -> int:
        begun[number] = 1
        return number

    with shared_by(2):
        found = in_processes(work, range(count))
        return [(next(found), sum(begun)) for _ in range(taken)]


@NEEDS_FORKS
def test_copies_wait_for_their_results_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "may_fork", lambda: True)
    for number, begun in of_copies(100, 20):
        assert number < begun <= number + 1 + 4


@NEEDS_FORKS
@pytest.mark.parametrize("is_long", [True, False])
def test_who_waits_for_copies_can_cancel(monkeypatch: pytest.MonkeyPatch, is_long: bool) -> None:
    """At once, where they look up what they make; no process is left."""
    monkeypatch.setattr(children, "may_fork", lambda: True)

    def work(number: int) -> int:
        while is_long:
            stop_unwanted()
        return number

    def report(done: int) -> None:
        if is_long or done == 3:
            raise Cancelled

    before = multiprocessing.active_children()
    with shared_by(2), pytest.raises(Cancelled):
        list(in_processes(work, range(10), report=report))
    # What others left may end meanwhile.
    assert {*multiprocessing.active_children()} <= {*before}


def test_few_rows_are_worked_on_here() -> None:
    with shared_by(2):
        found = list(in_processes(lambda _: os.getpid(), range(4), PROCESSES_FROM_ROWS - 1))
    assert found == 4 * [os.getpid()]


@NEEDS_FORKS
def test_a_copy_has_its_share_of_the_memory() -> None:
    """Beyond what this process has; where it is too little for several, there is none."""
    code = (
        "import os, resource, sys\nimport numpy as np\nfrom chopper_core.util import memory\n"
        "from chopper_core.util.workers import in_processes, shared_by\n"
        "kept = np.ones(25 * 10**6)\nmemory.limit_memory(int(sys.argv[1]) * 10**6)\n"
        "memory.start_libraries()\n"
        "work = lambda _: (os.getpid(), resource.getrlimit(resource.RLIMIT_DATA)[0])\n"
        "with shared_by(4):\n    found = set(in_processes(work, range(8)))\n"
        "print(len(found), os.getpid() in dict(found), max(size for _, size in found) // 10**6)"
    )
    for size, expected in ((500, "True"), (1000, "False")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(size)],
            cwd=ROOT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True,
            text=True,
        )  # fmt: skip
        count, is_here, limit = done.stdout.split()
        assert is_here == expected, done.stdout + done.stderr
        assert int(limit) <= size and int(count) <= 4
