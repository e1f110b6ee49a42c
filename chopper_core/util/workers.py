"""Reading many files, and working on many rows, in worker processes where that pays."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from msgspec import Struct

from chopper_core.util import children, debug, memory
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.compression import GROWTH, is_compressed
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.nearby import Look, States, note_looks, noted_looks
from chopper_core.util.progress import Cancelled, Progress, silent, stop_unwanted, work_while
from chopper_core.util.shelf import Shelf

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future, ProcessPoolExecutor

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
_TOO_FEW: Final = "too few processes may be started (ulimit -u)"


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


@contextmanager
def helped(
    path: Path, work: Helper[Read], size_bytes: int, text_bytes: int
) -> Iterator[tuple[Sequence[Future[Read | ChopperError]], Shelf, Callable[[], bool]] | None]:
    """What other processes will have done at the same file, of that size, the shelf on which this
    one lays texts of it for them, and whether all have ended; None where this one is to read it
    alone."""
    workers, limit = memory.worker_limit(_processes.get(), size_bytes)
    if workers < 2 or _is_daemon():
        yield None
        return
    others = workers - 1
    helps = partial(_read_in_worker, partial(_help, work))
    with _submitted(
        [path] * others, helps, others, limit, text_bytes=text_bytes, is_awaited=False
    ) as begun:
        if begun.shelf is None:
            yield None
            return
        try:
            yield begun.futures, begun.shelf, begun.have_ended
        finally:
            begun.shelf.leave()


def _help(work: Helper[Read], path: Path, progress: Progress) -> Read:
    return work(path, progress, _shared.shelf)


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
    from concurrent.futures import BrokenExecutor, wait

    def work_on(number: int) -> Done:
        return work(items[number])

    ahead = min(_AHEAD * workers, len(items))
    with _submitted(range(ahead), _do_inherited, workers, limit, inherited=work_on) as begun:
        for number in range(len(items)):
            # None is left once workers died, or where they didn't start.
            future = begun.futures[0] if begun.futures else None
            while future and not wait([future], _POLL_SECONDS).done:
                begun.have_ended()
                report(number)
            del begun.futures[:1]
            report(number)
            error = future and future.exception()
            if error and not memory.is_out_of_memory(error):
                if not isinstance(error, BrokenExecutor):
                    raise error
                debug.note_error(error)
            if begun.futures and number + ahead < len(items):
                with suppress(BrokenExecutor):
                    begun.submit(number + ahead)
            yield work_on(number) if error or not future else future.result()


def in_common(count: int) -> Float64:
    """Doubles, 0 at first, that copies of this process fill for it."""
    if not count or _processes.get() < 2:
        return np.zeros(count)
    return np.frombuffer(memory.shared_bytes(8 * count), np.float64)


def _is_daemon() -> bool:
    """Whether this process can't have others."""
    from multiprocessing import current_process  # Slow to import.

    return bool(current_process().daemon)


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
    left = set(range(len(paths)))
    whole = sum(sizes)
    if executor is not None or (workers > 1 and not _is_daemon()):
        from concurrent.futures import BrokenExecutor
        from queue import Empty, SimpleQueue

        is_own = executor is None
        reads = partial(_read_noting, reader) if is_own else reader
        with _submitted(paths, reads, workers, limit, executor) as begun:
            futures, done = begun.futures, begun.bytes_read
            ended: SimpleQueue[Future[Any]] = SimpleQueue()
            number_of = {future: number for number, future in enumerate(futures)}
            for future in futures:
                future.add_done_callback(ended.put)
            count = 0
            while count < len(futures):
                number = -1
                with suppress(Empty):
                    number = number_of[ended.get(timeout=_POLL_SECONDS)]
                    done[number], count = sizes[number], count + 1
                step = f"read and align {count} of {len(futures)} ranks"
                progress(step, int(done.sum()), whole)
                if number < 0:
                    begun.have_ended()
                    continue
                outcome = futures[number].exception() or futures[number].result()
                if is_own and isinstance(outcome, tuple):
                    outcome, looks = outcome
                    note_looks(looks)
                if isinstance(outcome, BaseException):
                    lacks_memory = memory.is_out_of_memory(outcome)
                    if is_own and (lacks_memory or isinstance(outcome, BrokenExecutor)):
                        continue
                    if not isinstance(outcome, ChopperError):
                        if is_own:
                            raise outcome
                        why = str(outcome) or type(outcome).__name__
                        outcome = DataError(f"{paths[number]} was not read: {why}")
                left.remove(number)
                yield number, outcome
    before = whole - sum(sizes[number] for number in left)
    for number in sorted(left):
        yield number, _read(paths[number], reader, _part(progress, before, whole))
        before += sizes[number]


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


class _Begun(Struct):
    """What worker processes are to do."""

    futures: list[Future[Any]]
    """Their outcomes to come."""
    bytes_read: Int64
    """Of each file."""
    shelf: Shelf | None
    submit: Callable[[Any], None]
    """Begin something more."""
    have_ended: Callable[[], bool]
    """Whether all of it has; to be asked by who waits for that."""


@contextmanager
def _submitted(
    items: Sequence[Item],
    does: Callable[[Item, Any], object],
    workers: int,
    limit: int,
    executor: Executor | None = None,
    *,
    text_bytes: int = 0,
    inherited: Callable[[Any], object] | None = None,
    is_awaited: bool = True,
) -> Iterator[_Begun]:
    """Start worker processes, one of which `does` each item, given its number too, with a shelf of
    texts of so many bytes if there are to be any, and what they have `inherited`. On leaving, their
    end is awaited where this process may be copied again after it, or left to themselves.

    An `executor` is given whom to report to, and doesn't say how much it has read. There are none
    where no process can be started, or no memory shared. On leaving, items that no worker has begun
    are cancelled, and others at their next report.
    """
    # Importing them is slow compared with a small trace.
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
    from multiprocessing import get_context

    # Each worker watches its parent and may have a thread of Arrow's, and the pool has two.
    has_room = memory.is_limited() or children.may_start_threads(3 * workers + 2)
    may_fork = children.may_fork()
    is_awaited &= may_fork
    # Within a limit a reader takes what libraries need first, while there is memory.
    is_copy = may_fork and (inherited is not None or not limit)
    context = get_context("fork" if is_copy else "spawn")
    futures: list[Future[Any]] = []
    bytes_read: Any = np.zeros(len(items), np.int64)
    shelf: Shelf | None = None
    count = 0

    def submit(item: Item) -> None:
        nonlocal count
        futures.append(pool.submit(does, item, count))
        count += 1

    def have_ended() -> bool:
        if all(future.done() for future in futures):
            return True
        if executor is None:
            _break_if_killed(pool)
        return False

    with ExitStack() as stack:
        if executor is not None:
            for item in items:
                futures.append(executor.submit(does, item, silent))
                stack.callback(futures[-1].cancel)
            yield _Begun(futures, bytes_read, None, submit, have_ended)
            return
        try:
            if not has_room:
                raise OSError(errno.EAGAIN, _TOO_FEW)
            bytes_read = context.RawArray("q", len(items))
            stop = context.RawValue("b")
            shelf = Shelf(context, workers, text_bytes) if text_bytes else None
            with _inherited(context.get_start_method()):
                shared = _Shared(bytes_read, stop, shelf, inherited)
                given = (os.getpid(), shared, limit, debug.target, _processes.get())
                pool = ProcessPoolExecutor(workers, context, _start_worker, given)
                stack.callback(_end, pool, futures, have_ended, is_awaited=is_awaited)
                stack.callback(setattr, stop, "value", True)
                for item in items:
                    submit(item)
        # A ValueError where an app that starts replaced the standard error at the same time, a
        # RuntimeError where the pool can start no thread.
        except (OSError, ImportError, BrokenExecutor, ValueError, RuntimeError) as error:
            debug.note_error(error)
            stack.close()
            futures.clear()
            shelf = None
        done = np.frombuffer(bytes_read, np.int64)
        yield _Begun(futures, done, shelf, submit, have_ended)


def _end(
    pool: ProcessPoolExecutor,
    futures: Sequence[Future[Any]],
    have_ended: Callable[[], bool],
    *,
    is_awaited: bool,
) -> None:
    """Wait for workers that have something to do; others end by themselves, and the pool's threads
    with them."""
    from concurrent.futures import wait

    if not futures:
        # Not all could be started: nobody tells the others that there is nothing to do.
        _kill_workers(pool)
        manager = vars(pool)["_executor_manager_thread"]
        if manager is not None and manager.ident is None:  # It couldn't be, and is waited for.
            vars(pool)["_executor_manager_thread"] = None
    for future in futures:
        future.cancel()
    while not have_ended():
        is_awaited = True
        wait(futures, _POLL_SECONDS)
    pool.shutdown(wait=is_awaited, cancel_futures=True)


def _break_if_killed(pool: ProcessPoolExecutor) -> None:
    """End a pool of which a worker was killed: while others could still write to it, it waits for
    the rest of what that one was sending, without end. So it does without the thread that manages
    it, which dies where it can't start another one."""
    from concurrent.futures import BrokenExecutor

    manager = vars(pool)["_executor_manager_thread"]
    if manager is not None and not manager.is_alive():
        _kill_workers(pool)
        for item in [*vars(pool)["_pending_work_items"].values()]:
            if not item.future.done():
                item.future.set_exception(BrokenExecutor(_TOO_FEW))
        return
    if any(worker.exitcode for worker in [*(pool._processes or {}).values()]):
        _kill_workers(pool)
        vars(pool._result_queue)["_writer"].close()


def _kill_workers(pool: ProcessPoolExecutor) -> None:
    for worker in [*(pool._processes or {}).values()]:
        worker.kill()


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


class _Shared(Struct):
    """What a worker has of the process that started it."""

    bytes_read: Any = ()
    """Of each file."""
    stop: Any = None
    """Whether to."""
    shelf: Any = None
    inherited: Callable[[Any], object] | None = None


_shared = _Shared()


def _start_worker(
    parent: int, shared: _Shared, limit: int, debug_target: str, processes: int
) -> None:
    global _shared
    import signal

    children.forget_handlers()
    # What has inherited its work has nothing to put away.
    is_over = (lambda: shared.stop.value) if shared.inherited else (lambda: False)
    children.end_with(parent, is_over)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGINT})
    _shared = shared
    _processes.set(processes)
    if shared.inherited:
        # It would write to each of the objects that are the parent's, too, and so copy them.
        gc.freeze()
        _processes.set(1)
        work_while(lambda: not shared.stop.value)
    if limit:
        memory.limit_memory(limit)
        if not shared.inherited:
            memory.start_libraries()
    if debug_target:
        with suppress(OSError):
            debug.start_log(debug_target)
    # A library's prints must not mix with the answers of a command.
    os.dup2(2, 1)


def _read_in_worker(reader: Reader[Read], path: Path, number: int) -> Read | ChopperError:

    def report(step: str, done: int, total: int) -> None:
        if _shared.stop.value:
            raise Cancelled
        _shared.bytes_read[number] = done

    return _read(path, reader, report)


def _read_noting(
    reader: Reader[Read], path: Path, number: int
) -> tuple[Read | ChopperError, Mapping[Look, States]]:
    """What was read, and what the reader looked for next to its file."""
    with noted_looks() as looks:
        return _read_in_worker(reader, path, number), looks


def _do_inherited(item: int, _number: int) -> object:
    assert _shared.inherited is not None
    stop_unwanted()
    return _shared.inherited(item)


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
