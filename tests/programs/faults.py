"""Kills and faults of ingest: `python -m tests.programs.faults --kills 1000 --seed 7`.

After every fault the store is the old one, the new one, or none; every view has the true figures,
and says which ranks it lacks; the next writer gets the new run and leaves nothing else behind.
A number and the name of the scenario repeat a fault: `--seed 7 --only replace --kills 1`; where a
moment of time decides, it is the same one but for the machine's own noise.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec import Struct

from chopper_core.ingest.batches import finish, ingest_into, ingest_store, parts_folder
from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.render.exchange import as_json
from chopper_core.store.format import is_store, read_index
from chopper_core.store.reader import read_store, verify
from chopper_core.util import atomic
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.workers import dask_executor
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from tests.programs.fuzz.seeds import small_trace
from tests.sources.telemetry.telemetry_texts import ZEUS_CSV

RANKS: Final = 3
STATES: Final = "abm"
_EVENTS: Final = frozenset(
    ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.scandir", "os.listdir",
     "os.chmod", "os.utime", "mmap.__new__", "shutil.rmtree", "ctypes.dlsym", "subprocess.Popen")
)  # fmt: skip
"""Python's audit events at which a process is stopped: all that touch the file system."""
_NOBODY: Final = 65534
_MEMORY: Final = "/dev/shm"
_LIMIT_S: Final = 120
_ODDS_BY_EVENT: Final = 0.6
_FIGURES: Final = ("columns", "rows", "total", "level")
Figures = dict[str, Any]


class Place(Struct):
    """A folder of its own for one fault."""

    root: Path
    random: Random

    @property
    def source(self) -> Path:
        return self.root / "run"

    @property
    def store(self) -> Path:
        return self.root / "out" / "a.chopper"


_KNOWN: Final[dict[tuple[Any, ...], str]] = {}


class Broken(AssertionError):
    """A promise that a fault broke."""


def write_source(folder: Path, state: str) -> None:
    """The traces of a state of the run: `a`, `b`, or `m`, which is `a` but for rank 1 of `b`.

    The states have other times, and the same number of bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(RANKS):
        (folder / f"rank{rank}.json").write_bytes(_content(state, rank))
    (folder / "zeus.csv").write_text(ZEUS_CSV)


@cache
def _content(state: str, rank: int) -> bytes:
    trace, is_b = small_trace(rank), state == "b" or (state == "m" and rank == 1)
    for event in trace.events:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            event["dur"] += 20 if is_b else 10
    with tempfile.TemporaryDirectory() as folder:
        content = trace.write(Path(folder) / "t.json").read_bytes()
    return content.ljust(64 << 10)


# --- figures ---------------------------------------------------------------------------------


def figures(run: Run) -> Figures:
    """The figures of all views; None for a view that the run can't have."""
    found: Figures = {}
    for name in ("", *VIEWS):
        try:
            frame = query(run, parse(f"R?view={name}" if name else "R"))
        except UsageError:
            found[name] = None
            continue
        document = json.loads(as_json(frame))
        rows = [{k: v for k, v in row.items() if k != "address"} for row in document["rows"]]
        found[name] = {key: document[key] for key in _FIGURES if key in document} | {"rows": rows}
    return found


def says_what_it_lacks(run: Run) -> None:
    """Every view of a run that lacks files says how many."""
    for name in ("", *VIEWS):
        with suppress(UsageError):
            notes = query(run, parse(f"R?view={name}" if name else "R")).notes
            if not any("could not be used" in note for note in notes):
                raise Broken(f"{len(run.failed)} files missing, and the view {name!r} is silent")


@cache
def truth(state: str, ranks: tuple[int, ...]) -> str:
    """The figures of some ranks of a state, read from a folder that holds nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        write_source(Path(folder), state)
        for rank in set(range(RANKS)) - set(ranks):
            (Path(folder) / f"rank{rank}.json").unlink()
        return json.dumps(figures(open_run(folder, jobs=1)))


def state_of(run: Run) -> str:
    """Which state a run is of, by its figures; with the ranks it has, if it lacks any."""
    found = json.dumps(figures(run))
    every = range(RANKS)
    for state in STATES:
        if found == truth(state, tuple(every)) and not run.failed:
            return state
    if run.failed:
        says_what_it_lacks(run)
        lost = {Path(path).name for path, _ in run.failed}
        for count in range(1, RANKS):
            for ranks in combinations(every, count):
                missing = {f"rank{rank}.json" for rank in every if rank not in ranks}
                if missing <= lost:
                    for state in STATES:
                        if found == truth(state, ranks):
                            return f"{state} without {len(missing)}"
    raise Broken(f"figures of no state of the run; failed: {run.failed}")


def state_of_store(store: Path) -> str:
    """The state of what lies under a store's name: `none`, or as `state_of`."""
    if not store.exists():
        return "none"
    if not is_store(store):
        raise Broken(f"{store} is no store")
    verify(store)
    # The same bytes have the same figures, and most faults leave one of a few stores.
    files = tuple(sorted(read_index(store).files.items()))
    if files not in _KNOWN:
        _KNOWN[files] = state_of(read_store(store))
    return _KNOWN[files]


# --- processes -------------------------------------------------------------------------------


def in_child(work: Callable[[], object], at: Callable[[], None] | None, event: int) -> int:
    """Start a process that works, and calls `at` before the n-th event; returns its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        signal.alarm(_LIMIT_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if at is not None:
            _hook(at, event)
        work()
    except BaseException as error:
        with suppress(OSError):
            Path(os.environ["FAULT_LOG"]).write_text(traceback.format_exc())
        os._exit(1 if isinstance(error, ChopperError | OSError) else 3)
    os._exit(0)


def _hook(at: Callable[[], None], event: int) -> None:
    seen = 0

    def hook(name: str, _: object) -> None:
        nonlocal seen
        if name in _EVENTS:
            seen += 1
            if seen == event:
                at()

    sys.addaudithook(hook)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ended(pid: int, log: Path) -> int:
    """The exit code of a child; raises Broken for one that ended in an exception or hung."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 3:
        raise Broken(log.read_text()[-1500:])
    if code == -signal.SIGALRM:
        raise Broken(f"hung for {_LIMIT_S} s")
    return code


class Killer:
    """Runs work in a child and kills it at a moment that the seed chooses."""

    def __init__(self) -> None:
        self._usual: dict[str, tuple[int, float]] = {}

    def __call__(
        self, place: Place, name: str, work: Callable[[], object], *, group: bool = True
    ) -> int:
        log = place.root / "log"
        os.environ["FAULT_LOG"] = str(log)
        events, seconds = self._usual.get(name, (40, 0.1))
        random = place.random
        if random.random() < _ODDS_BY_EVENT:
            pid = in_child(work, _kill_self, random.randrange(1, events + 1))
        else:
            pid = in_child(work, None, 0)
            time.sleep(random.uniform(0, seconds))
            with suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(pid, signal.SIGKILL)
        return ended(pid, log)

    def calibrate(self, place: Place, name: str, work: Callable[[], object]) -> None:
        """Count the events, and the time, of work that nothing disturbs."""
        if name in self._usual:
            return
        os.environ["FAULT_LOG"] = str(place.root / "log")
        counted = place.root / "events"

        def counting() -> None:
            seen = [0]

            def hook(event: str, _: object) -> None:
                seen[0] += event in _EVENTS

            sys.addaudithook(hook)
            work()
            count = seen[0]
            counted.write_text(str(count))

        begin = time.monotonic()
        if code := ended(in_child(counting, None, 0), place.root / "log"):
            reason = (place.root / "log").read_text()[-1500:]
            raise Broken(f"{name} ends with {code} where nothing disturbs it: {reason}")
        self._usual[name] = (int(counted.read_text()), time.monotonic() - begin)


KILLER: Final = Killer()


# --- scenarios -------------------------------------------------------------------------------


def _ingest(place: Place, **options: Any) -> Callable[[], object]:
    return lambda: ingest_store(str(place.source), place.store, **{"jobs": 1, **options})


def _undisturbed(place: Place, name: str, work: Callable[[], object]) -> None:
    """Calibrate on a copy of the place."""
    if name in KILLER._usual:
        return
    before = place.root.with_name("before")
    shutil.rmtree(before, ignore_errors=True)
    shutil.copytree(place.root, before, symlinks=True)
    KILLER.calibrate(place, name, work)
    shutil.rmtree(place.root)
    before.rename(place.root)


def _old(place: Place) -> None:
    """A store of state `b` under the name, and the files of state `a`."""
    write_source(place.source, "b")
    place.store.parent.mkdir(exist_ok=True)
    ingest_store(str(place.source), place.store, jobs=1)
    write_source(place.source, "a")


def fresh(place: Place) -> set[str]:
    _undisturbed(place, "fresh", _ingest(place))
    KILLER(place, "fresh", _ingest(place))
    return {"none", "a"}


def replaced(place: Place) -> set[str]:
    _old(place)
    _undisturbed(place, "replaced", _ingest(place))
    KILLER(place, "replaced", _ingest(place))
    return {"b", "a"}


def jobs(place: Place) -> set[str]:
    """Worker processes; the parent alone is killed, or the whole group, or one of the workers."""
    work = _ingest(place, jobs=2)
    _undisturbed(place, "jobs", work)
    if place.random.random() < 0.6:
        KILLER(place, "jobs", work, group=place.random.random() < 0.5)
        return {"none", "a"}
    os.environ["FAULT_LOG"] = str(place.root / "log")
    pid = in_child(work, None, 0)
    time.sleep(place.random.uniform(0.1, 0.6))
    children = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError):
        for worker in children.read_text().split()[:1]:
            os.kill(int(worker), signal.SIGKILL)
    if code := ended(pid, place.root / "log"):
        raise Broken(f"ended with {code} where only a worker was killed")
    return {"a"}


def into(place: Place) -> set[str]:
    """Some ranks read by processes of their own, one of which is killed, and then finished."""
    ranks = list(range(RANKS))
    place.random.shuffle(ranks)

    def one(rank: int) -> Callable[[], object]:
        return lambda: ingest_into(str(place.source / f"rank{rank}.json"), place.store, jobs=1)

    _undisturbed(place, "into", one(0))
    for rank in ranks[1:]:
        one(rank)()
    KILLER(place, "into", one(ranks[0]))
    if place.random.random() < 0.5:
        finish(place.store, str(place.source))
        found = state_of_store(place.store)
        if found not in ("a", "a without 1"):
            raise Broken(f"finished as {found}")
        if found != "a":
            one(ranks[0])()
    return {"none", "a", "a without 1"}


def finished(place: Place) -> set[str]:
    """The call that finishes is killed; sometimes over an older store."""
    is_old = place.random.random() < 0.5
    if is_old:
        _old(place)
    ingest_into(str(place.source), place.store, jobs=1)

    def work() -> object:
        return finish(place.store, str(place.source))

    _undisturbed(place, "finished", work)
    KILLER(place, "finished", work)
    return {"b", "a"} if is_old else {"none", "a"}


def cached(place: Place) -> set[str]:
    """Opening a run, which caches it, is killed; the next one gets the true figures."""
    os.environ["XDG_CACHE_HOME"] = str(place.root / "cache")
    if place.random.random() < 0.5:
        write_source(place.source, "b")
        open_cached(str(place.source), jobs=1)
        write_source(place.source, "a")

    def work() -> object:
        return open_cached(str(place.source), jobs=1)

    _undisturbed(place, "cached", work)
    KILLER(place, "cached", work)
    for _ in range(2):
        if (found := state_of(open_cached(str(place.source), jobs=1))) != "a":
            raise Broken(f"opened as {found} after a kill")
    kept = list((place.root / "cache" / "chopper" / "runs").iterdir())
    if len(kept) != 1:
        raise Broken(f"in the cache: {[path.name for path in kept]}")
    return {"none"}


def full_disk(place: Place) -> set[str]:
    """A file system of its own that is full at some moment; else a limit of the size of files."""
    is_old = place.random.random() < 0.5
    needs = 3 << 20 if is_old else 2 << 20
    size = place.random.randrange(64 << 10, needs)
    with ExitStack() as stack:
        place.store.parent.mkdir(exist_ok=True)
        if _can_mount():
            stack.enter_context(_small_disk(place.store.parent, needs))
            if is_old:
                _old(place)
            _resized(place.store.parent, size)
        elif is_old:
            _old(place)
        work = _ingest(place) if _can_mount() else lambda: _limited(_ingest(place), size // 16)
        os.environ["FAULT_LOG"] = str(place.root / "log")
        code = ended(in_child(work, None, 0), place.root / "log")
        expected = {"a"} if code == 0 else {"b", "a"} if is_old else {"none"}
        found = state_of_store(place.store)
        if found not in expected:
            raise Broken(f"ended with {code}, and the store is {found}")
        if _can_mount():
            _resized(place.store.parent, 64 << 20)
        _next_writer(place)
    return {"none"}


def no_permission(place: Place) -> set[str]:
    """The right to write, or to read the traces, is lost at some moment."""
    is_old = place.random.random() < 0.5
    # Also imports what the one without rights can't read.
    _old(place)
    if not is_old:
        shutil.rmtree(place.store)
    lost = place.random.choice([place.store.parent, place.source, place.source / "rank1.json"])

    def lose() -> None:
        os.chmod(lost, 0o500 if lost == place.store.parent else 0)

    def work() -> object:
        if os.geteuid() == 0:
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        return _ingest(place)()

    _give_to_nobody(place)
    _undisturbed(place, "no permission", work)
    _give_to_nobody(place)
    os.environ["FAULT_LOG"] = str(place.root / "log")
    at = place.random.randrange(1, KILLER._usual["no permission"][0] + 1)
    mode = lost.stat().st_mode
    ended(in_child(work, lose, at), place.root / "log")
    os.chmod(lost, mode)
    return {"b" if is_old else "none", "a", "a without 1"}


def _give_to_nobody(place: Place) -> None:
    """Where this process has all rights, let one without any enter the place and write there."""
    if os.geteuid() == 0:
        os.chmod(place.root.parent, 0o711)
        for path in (place.root, *place.root.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)


def changed_source(place: Place) -> set[str]:
    """Files are replaced while they are read, by others of the same size and time."""
    in_place, state = place.random.random() < 0.5, place.random.choice("bbm")

    def change() -> None:
        for rank in range(RANKS):
            if _content(state, rank) != _content("a", rank):
                _change(place.source / f"rank{rank}.json", _content(state, rank), in_place)

    os.environ["FAULT_LOG"] = str(place.root / "log")
    _undisturbed(place, "fresh", _ingest(place))
    at = place.random.randrange(1, KILLER._usual["fresh"][0])
    works = [_ingest(place), lambda: _into_and_finish(place)]
    ended(in_child(place.random.choice(works), change, at), place.root / "log")
    write_source(place.source, "a")
    some = {f"{each} without {count}" for each in STATES for count in (1, 2)}
    return {"none", "a", state, *some}


def changed_cached(place: Place) -> set[str]:
    """A cached run isn't taken for one whose files have the same names, sizes and times."""
    os.environ["XDG_CACHE_HOME"] = str(place.root / "cache")
    in_place = place.random.random() < 0.5

    def change() -> None:
        for rank in range(RANKS):
            _change(place.source / f"rank{rank}.json", _content("b", rank), in_place)

    os.environ["FAULT_LOG"] = str(place.root / "log")
    at = place.random.randrange(1, 100)

    def work() -> object:
        return open_cached(str(place.source), jobs=1)

    ended(in_child(work, change, at), place.root / "log")
    is_changed = (place.source / "rank0.json").read_bytes() == _content("b", 0)
    expected = "b" if is_changed else "a"
    if (found := state_of(open_cached(str(place.source), jobs=1))) != expected:
        raise Broken(f"opened as {found}, and the files are {expected}")
    write_source(place.source, "a")
    return {"none"}


def _into_and_finish(place: Place) -> None:
    for rank in range(RANKS):
        ingest_into(str(place.source / f"rank{rank}.json"), place.store, jobs=1)
    finish(place.store, str(place.source))


def _change(path: Path, content: bytes, in_place: bool) -> None:
    status = path.stat()
    if in_place:
        path.write_bytes(content)
    else:
        beside = path.with_suffix(".other")
        beside.write_bytes(content)
        os.utime(beside, ns=(status.st_atime_ns, status.st_mtime_ns))
        beside.rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def dask(place: Place) -> set[str]:
    """Workers of a Dask cluster, one of which is killed, or the process that asks them."""
    address, workers = _cluster()

    def work() -> object:
        with dask_executor(address) as executor:
            return _ingest(place, executor=executor)()

    os.environ["FAULT_LOG"] = str(place.root / "log")
    process = subprocess.Popen(
        [sys.executable, "-m", "chopper_tui", "ingest", str(place.source), "-o", str(place.store),
         "--engine", "dask", "--scheduler", address],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    kills_client = place.random.random() < 0.5
    time.sleep(place.random.uniform(0.2, 1.6))
    if kills_client:
        process.kill()
    else:
        os.kill(place.random.choice(workers()), signal.SIGKILL)
    try:
        code = process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        # A worker that is killed while it starts isn't restarted: the client waits for another.
        process.kill()
        process.wait()
        _CLUSTERS.pop().close()
        return {"none", "a"}
    if kills_client:
        # The workers finish what they were asked, and would write beside the next writer.
        time.sleep(1)
    if not kills_client and code:
        raise Broken(f"ended with {code} where only a worker was killed")
    return {"none", "a"} if kills_client else {"a", "a without 1", "a without 2"}


_CLUSTERS: Final[list[Any]] = []


def _cluster() -> tuple[str, Callable[[], list[int]]]:
    from distributed import LocalCluster

    if not _CLUSTERS:
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        _CLUSTERS.append(
            LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
        )
    (cluster,) = _CLUSTERS

    def workers() -> list[int]:
        while True:
            found = [nanny.pid for nanny in cluster.workers.values() if nanny.pid]
            if found:
                return found
            time.sleep(0.1)

    return cluster.scheduler_address, workers


@cache
def _can_mount() -> bool:
    """Whether this process may mount a file system: in containers and for users it may not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _small_disk(Path(folder), 1 << 16):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


@contextmanager
def _small_disk(folder: Path, size: int) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _resized(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], capture_output=True)


def _limited(work: Callable[[], object], size: int) -> object:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return work()


SCENARIOS: Final[dict[str, Callable[[Place], set[str]]]] = {
    "fresh": fresh,
    "replaced": replaced,
    "jobs": jobs,
    "into": into,
    "finished": finished,
    "cached": cached,
    "full disk": full_disk,
    "no permission": no_permission,
    "changed source": changed_source,
    "changed cached": changed_cached,
    "dask": dask,
}
WEIGHTS: Final = {"dask": 0.1, "jobs": 0.7}
"""Of those that take seconds each; others are 1."""


def fault(name: str, number: int) -> str:
    """Do one fault and check what is left; returns the state. Raises Broken."""
    place = Place(_root() / "place", Random(f"{name} {number}"))
    shutil.rmtree(place.root, ignore_errors=True)
    write_source(place.source, "a")
    allowed = SCENARIOS[name](place)
    found = state_of_store(place.store)
    if found not in allowed:
        raise Broken(f"the store is {found}, not {' or '.join(sorted(allowed))}")
    if place.store.exists() or name not in ("cached", "changed cached", "full disk"):
        _next_writer(place)
    return found


@cache
def _root() -> Path:
    """A folder of this process: the same name each time makes the same bytes.

    In memory where that can be: a kill loses nothing that was written, and syncing takes long.
    """
    folder = tempfile.mkdtemp(prefix="faults", dir=_MEMORY if os.path.isdir(_MEMORY) else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _next_writer(place: Place) -> None:
    """The same command once more: it gives the new run, and leaves nothing else."""
    atomic._clean.cache_clear()  # As in a process of its own.
    ingest_store(str(place.source), place.store, jobs=1)
    if (found := state_of_store(place.store)) != "a":
        raise Broken(f"the next writer's store is {found}")
    left = sorted({path.name for path in place.store.parent.iterdir()} - {place.store.name})
    if left or parts_folder(place.store).exists():
        raise Broken(f"the next writer leaves {left}")


def play(
    seed: int, *, kills: int = 0, seconds: float = 0, only: Sequence[str] = ()
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Faults from a seed on; returns how often each scenario left each state, and the failures."""
    outcomes: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    names = list(only or SCENARIOS)
    weights = [WEIGHTS.get(name, 1.0) for name in names]
    end = time.monotonic() + seconds
    number = seed
    while outcomes.total() < kills or time.monotonic() < end:
        (name,) = Random(number).choices(names, weights)
        try:
            outcomes[name, fault(name, number)] += 1
        except (AssertionError, ChopperError, OSError, subprocess.TimeoutExpired) as error:
            outcomes[name, "BROKEN"] += 1
            failures.append(f'--only "{name}" --seed {number} --kills 1: {error}')
            print(failures[-1], flush=True)
        number += 1
    return outcomes, failures


def main() -> int:
    """Play, and print how often each scenario left each state; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, help="faults, kills among them")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--only", choices=SCENARIOS, action="append")
    options = parser.parse_args()
    begin = time.monotonic()
    outcomes, failures = play(
        options.seed, kills=options.kills, seconds=options.seconds, only=options.only or ()
    )
    for name in SCENARIOS:
        there = {state: count for (each, state), count in outcomes.items() if each == name}
        if there:
            print(f"{name:16}", *(f"{count} {state}," for state, count in sorted(there.items())))
    for cluster in _CLUSTERS:
        cluster.close()
    print(f"{outcomes.total()} faults, {len(failures)} broken, {time.monotonic() - begin:.0f} s")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
