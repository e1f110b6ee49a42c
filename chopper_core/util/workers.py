"""Reading many files, and working on many rows, in worker processes where that pays."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from chopper_core.util import children, debug, memory
from chopper_core.util.arrays import Float64
from chopper_core.util.compression import GROWTH, is_compressed
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.nearby import Look, States, note_looks, noted_looks
from chopper_core.util.progress import Cancelled, Progress, silent, work_while
from chopper_core.util.shelf import Shelf

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from ctypes import Array, c_longlong

    from chopper_core.util.pool import Context, Outcome, Pool, Work

Read = TypeVar("Read")
Item = TypeVar("Item")
Done = TypeVar("Done")
Reader = Callable[[Path, Progress], Read]
Helper = Callable[[Path, Progress, Shelf], Read]

PARALLEL_FROM_BYTES: Final = 8_000_000
"""Compressed size of all files together from which worker processes pay for their start."""
_processes: Final = ContextVar("processes", default=1)
"""How many may do the work at hand: read a file, for example."""
THREADS_FROM_ROWS: Final = 1 << 18
PROCESSES_FROM_ROWS: Final = 1 << 20
"""Of fewer, copies of this process take longer to start than they save."""
_AHEAD: Final = 2
"""Items per process that are begun before their results are taken."""
_POLL_SECONDS: Final = 0.1


def read_all(
    paths: Sequence[Path],
    reader: Reader[Read],
    progress: Progress,
    jobs: int | None,
    executor: Executor | None = None,
) -> list[Read | ChopperError]:
    """Call the reader for each file and return its results, or the errors it raised, in order.

    `jobs` processes share the files; None decides by their size and the number of processors.
    An `executor` takes the place of these processes; a file that it fails at for its own reasons
    gets a DataError. The reader is a module-level function or a callable that can be pickled.
    Raises OutOfMemory, since a run without that file would be another run.
    """
    sizes = [path.stat().st_size for path in paths]
    packed = [
        size if is_compressed(path) else size // GROWTH
        for path, size in zip(paths, sizes, strict=True)
    ]
    workers, limit = memory.worker_limit(
        min(jobs or os.cpu_count() or 1, len(paths)), max(packed, default=0) * GROWTH
    )
    if jobs is None and sum(packed) < PARALLEL_FROM_BYTES:
        workers = 1
    found: dict[int, Read | ChopperError] = {}
    with shared_by((jobs or os.cpu_count() or 1) // max(len(paths), 1) or 1):
        for number, outcome in _outcomes(paths, sizes, reader, progress, workers, limit, executor):
            if isinstance(outcome, memory.OutOfMemory):
                raise outcome
            found[number] = outcome
    return [found[number] for number in range(len(paths))]


@contextmanager
def shared_by(jobs: int | None) -> Iterator[None]:
    """Let so many processes share the work of this thread (None: one per processor)."""
    before = _processes.set(jobs or os.cpu_count() or 1)
    try:
        yield
    finally:
        _processes.reset(before)


def read_as_done(
    paths: Sequence[Path], reader: Reader[Read], jobs: int | None = None
) -> Iterator[tuple[int, Read | ChopperError]]:
    """Call the reader for each path, and yield its place and result, or the error, once it is done.

    `jobs` processes share the paths; None: one per processor. The reader is as of `read_all`. A
    path may be the name of a run, of several files.
    """
    workers = min(jobs or os.cpu_count() or 1, len(paths))
    return _outcomes(paths, [0] * len(paths), reader, silent, workers)


class Helpers:
    """Other processes at the file that this one reads."""

    def __init__(self, pool: Pool, shelf: Shelf, count: int) -> None:
        self.shelf = shelf
        """On which this process lays texts of the file for them."""
        self._pool, self._count = pool, count
        self._outcomes: dict[int, Outcome] = {}

    def ended(self) -> list[object]:
        """What those that have ended give back: a result or an error, or None."""
        self._outcomes |= self._pool.take(0)
        if any(each.is_lost for each in self._outcomes.values()):
            self._pool.kill()  # They may wait for what one that died has locked.
        return [each.error or each.value for _, each in sorted(self._outcomes.items())]

    def have_ended(self) -> bool:
        return len(self.ended()) == self._count


@contextmanager
def helped(
    path: Path, work: Helper[Read], size_bytes: int, text_bytes: int
) -> Iterator[Helpers | None]:
    """Have other processes work at the same file, of that size, with a shelf for texts of so many
    bytes each; None where this one is to read it alone. Raises OSError where no memory is shared.

    They are ended on leaving, whatever they are at.
    """
    workers, limit = memory.worker_limit(_processes.get(), size_bytes)
    if workers < 2 or _is_daemon():
        yield None
        return
    context = _context(limit)
    shelf = Shelf(context, workers - 1, text_bytes)
    with _pool(context, partial(_help, work, shelf), workers - 1, limit) as pool:
        for _ in range(workers - 1):
            pool.add(path)
        try:
            yield Helpers(pool, shelf, workers - 1) if len(pool) else None
        finally:
            pool.kill()


def _help(work: Helper[Read], shelf: Shelf, path: Path, _number: int) -> Read | ChopperError:
    return _read(path, lambda path, progress: work(path, progress, shelf), silent)


def concurrently(work: Callable[[], Done], rows: int) -> Callable[[], Done]:
    """Return a function that gives the result of work, which a thread does from now on if several
    processors may read the file at hand; else it is done when the function is called."""
    if _processes.get() < 2 or rows < THREADS_FROM_ROWS or not memory.may_start_thread():
        return work
    from concurrent.futures import ThreadPoolExecutor

    thread = ThreadPoolExecutor(1)
    started = thread.submit(work)
    thread.shutdown(wait=False)
    return started.result


def in_threads(
    work: Callable[[Item], Done], items: Sequence[Item], rows: int = THREADS_FROM_ROWS
) -> list[Done]:
    """Call a function for each item and return its results in order, on all processors.

    That pays where its time goes to numpy's loops over as many rows, which lie in all items.
    """
    workers = min(os.cpu_count() or 1, len(items))
    if workers < 2 or rows < THREADS_FROM_ROWS or not memory.may_start_thread():
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(work, items))


def in_processes(
    work: Callable[[Item], Done],
    items: Sequence[Item],
    rows: int = PROCESSES_FROM_ROWS,
    report: Callable[[int], object] = int,
) -> Iterator[Done]:
    """Call a function for each item and yield its results in order; copies of this process, as
    many as may share its work (`shared_by`), do that where it pays and none of its locks is taken.

    They have all that this process has, but for its other threads; what they change it doesn't see,
    so the function gives back what it makes, pickled, or writes it to files. It is called again
    here for an item whose worker died or was short of memory. No more is begun than a few items
    beyond the one that is taken. `report` gets the number of items that are done, often; what it
    raises ends the work.
    """
    workers, limit = min(_processes.get(), len(items)), 0
    if workers > 1 and rows >= PROCESSES_FROM_ROWS and children.may_fork() and not _is_daemon():
        workers, limit = memory.copies_limit(workers)
    else:
        workers = 1
    if workers < 2:
        for number, item in enumerate(items):
            report(number)
            yield work(item)
        return

    def work_on(number: int, _: int) -> Done:
        return work(items[number])

    ahead = min(_AHEAD * workers, len(items))
    done: dict[int, Outcome] = {}
    context = _context(limit, inherits=True)
    with _pool(context, work_on, workers, limit, inherits=True) as pool:
        for number in range(ahead):
            pool.add(number)
        for number, item in enumerate(items):
            done |= pool.take(0)
            report(number)
            while number not in done:
                done |= pool.take(_POLL_SECONDS)
                report(number)
            outcome = done.pop(number)
            if outcome.error:
                raise outcome.error
            if number + ahead < len(items):
                pool.add(number + ahead)
            yield work(item) if outcome.is_lost else outcome.value


def in_common(count: int) -> Float64:
    """Doubles, 0 at first, that copies of this process fill for it."""
    if not count or _processes.get() < 2:
        return np.zeros(count)
    return np.frombuffer(memory.shared_bytes(8 * count), np.float64)


def _is_daemon() -> bool:
    """Whether this process can't have others."""
    from multiprocessing import current_process  # Slow to import.

    return bool(current_process().daemon)


_Ended = Generator[tuple[Mapping[int, "Outcome"], int]]


def _outcomes(
    paths: Sequence[Path],
    sizes: Sequence[int],
    reader: Reader[Read],
    progress: Progress,
    workers: int,
    limit: int = 0,
    executor: Executor | None = None,
) -> Iterator[tuple[int, Read | ChopperError]]:
    """The place of each path and its outcome, once it is done.

    A worker that died (killed for its memory, say), or whose share of the memory was too small,
    leaves its file to this process, which has all of it once the others are done.
    """
    if executor is not None:
        ended = _ended_elsewhere(paths, reader, executor)
    else:
        ended = _ended_in_workers(paths, reader, workers, limit)
    left = set(range(len(paths)))
    whole, count, ended_bytes = sum(sizes), 0, 0
    with closing(ended):
        for found, begun_bytes in ended:
            count += len(found)
            ended_bytes += sum(sizes[number] for number in found)
            step = f"read and align {count} of {len(paths)} ranks"
            progress(step, ended_bytes + begun_bytes, whole)
            for number, outcome in found.items():
                if outcome.error:
                    raise outcome.error
                if not outcome.is_lost:
                    left.remove(number)
                    yield number, outcome.value
    before = whole - sum(sizes[number] for number in left)
    for number in sorted(left):
        yield number, _read(paths[number], reader, _part(progress, before, whole))
        before += sizes[number]


def _ended_in_workers(
    paths: Sequence[Path], reader: Reader[Read], workers: int, limit: int
) -> _Ended:
    """What comes of paths that worker processes read, as it comes, and the bytes that they have
    read of others; nothing where this one is to read them all."""
    if workers < 2 or _is_daemon():
        return
    context = _context(limit)
    try:
        bytes_read = context.RawArray("q", len(paths))
    except OSError as error:  # No memory can be shared.
        debug.note_error(error)
        return
    left = len(paths)
    with _pool(context, partial(_read_noting, reader, bytes_read), workers, limit) as pool:
        for path in paths:
            pool.add(path)
        while left:
            found = pool.take(_POLL_SECONDS)
            left -= len(found)
            for number, outcome in found.items():
                bytes_read[number] = 0
                if outcome.value is not None:
                    outcome.value, looks = outcome.value
                    note_looks(looks)
            yield found, int(np.frombuffer(bytes_read, np.int64).sum())


def _ended_elsewhere(paths: Sequence[Path], reader: Reader[Read], executor: Executor) -> _Ended:
    """The same of an executor, which doesn't tell what it has read of others."""
    from queue import Empty, SimpleQueue

    from chopper_core.util.pool import Outcome

    ended: SimpleQueue[Future[Read]] = SimpleQueue()
    number_of: dict[Future[Read], int] = {}
    try:
        for number, path in enumerate(paths):
            future = executor.submit(reader, path, silent)
            number_of[future] = number
            future.add_done_callback(ended.put)
        while number_of:
            found = {}
            with suppress(Empty):
                future = ended.get(timeout=_POLL_SECONDS)
                number = number_of.pop(future)
                error = future.exception()
                if error and not isinstance(error, ChopperError):
                    why = str(error) or type(error).__name__
                    error = DataError(f"{paths[number]} was not read: {why}")
                found[number] = Outcome(error or future.result())
            yield found, 0
    finally:
        for future in number_of:
            future.cancel()


def _read(path: Path, reader: Reader[Read], progress: Progress) -> Read | ChopperError:
    try:
        with debug.timed(f"read {path}"):
            return reader(path, progress)
    except Exception as error:
        debug.note_error(error)
        if memory.is_out_of_memory(error):
            return memory.memory_error(f"reading {path}", error)
        if isinstance(error, ChopperError):
            return error
        raise


def _part(whole: Progress, before: int, total: int) -> Progress:
    return lambda step, done, _: whole(step, before + done, total)


def _context(limit: int, *, inherits: bool = False) -> Context:
    """How worker processes start: as copies of this one, where it may be copied.

    Within a limit, one that reads takes what libraries need first, while there is memory.
    """
    from multiprocessing import get_context

    if children.may_fork() and (inherits or not limit):
        return get_context("fork")
    return get_context("spawn")


@contextmanager
def _pool(
    context: Context, work: Work, workers: int, limit: int, *, inherits: bool = False
) -> Iterator[Pool]:
    """Worker processes, with the work that they may have inherited: as many as can be started, and
    none on leaving."""
    # Slow to import.
    from chopper_core.util.pool import Pool

    begin = partial(_begin_worker, os.getpid(), limit, debug.target, _processes.get(), inherits)
    pool = Pool()
    try:
        with _inherited(context.get_start_method()):
            for _ in range(workers):
                pool.start(context, begin, work)
    # A ValueError where an app that starts replaced the standard error at the same time.
    except (OSError, ImportError, ValueError) as error:
        debug.note_error(error)
    try:
        yield pool
    finally:
        pool.leave()


@contextmanager
def _inherited(start_method: str) -> Iterator[None]:
    """What worker processes take over from this one when they are started.

    They must not import the main script, which would repeat all that one without a `__main__` guard
    does; they need a standard error that is a file, not that of an app; and this process handles
    Ctrl-C, which they have blocked from their first instruction. Signals to this one wait until all
    are started: a worker whose parent is gone before it has its work ends in a traceback.
    """
    import signal
    from multiprocessing import resource_tracker

    with children.safe_path():
        if start_method != "fork":
            # On its start, which is with the first worker else, it blocks no signal any more.
            resource_tracker.ensure_running()
        main = sys.modules["__main__"]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            with redirect_stderr(sys.__stderr__):
                yield
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_worker(
    parent: int, limit: int, debug_target: str, processes: int, inherits: bool
) -> None:
    import signal

    from chopper_core.util.pool import is_left

    children.forget_handlers()
    # What has inherited its work has nothing to put away.
    children.end_with(parent, is_left if inherits else lambda: False)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGINT})
    _processes.set(processes)
    if inherits:
        # It would write to each of the objects that are the parent's, too, and so copy them.
        gc.freeze()
        _processes.set(1)
        work_while(lambda: not is_left())
    if limit:
        memory.limit_memory(limit)
        if not inherits:
            memory.start_libraries()
    if debug_target:
        with suppress(OSError):
            debug.start_log(debug_target)
    # A library's prints must not mix with the answers of a command.
    os.dup2(2, 1)


def _read_noting(
    reader: Reader[Read], bytes_read: Array[c_longlong], path: Path, number: int
) -> tuple[Read | ChopperError, Mapping[Look, States]]:
    """What was read, and what the reader looked for next to its file."""
    from chopper_core.util.pool import is_left

    def report(step: str, done: int, total: int) -> None:
        if is_left():
            raise Cancelled
        bytes_read[number] = done

    with noted_looks() as looks:
        outcome = _read(path, reader, report)
    if isinstance(outcome, memory.OutOfMemory):
        raise outcome
    return outcome, looks


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor on the Dask cluster of a scheduler, whose workers see files at the same paths.

    Raises UsageError if Dask isn't installed, DataError if no scheduler answers at the address in
    the time to connect that Dask's configuration has.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--engine dask needs Dask: pip install 'chopper-tui[dask]'") from error
    try:
        client = Client(address, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        # Readers write files, so a call must not be answered from an earlier result.
        yield client.get_executor(pure=False)
