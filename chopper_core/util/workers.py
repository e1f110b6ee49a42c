"""Reading many files, in worker processes where that pays, with one progress for all.

Workers are plain interpreters that are sent a reader and a path. `multiprocessing` isn't used: its
workers import the main script again, and so repeat all that a script without a `__main__` guard
does.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import Struct

from chopper_core.util import debug, memory
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.progress import Cancelled, Progress, silent

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Read = TypeVar("Read")
Item = TypeVar("Item")
Done = TypeVar("Done")
Reader = Callable[[Path, Progress], Read]

PARALLEL_FROM_BYTES: Final = 4_000_000
"""Compressed size of all files together from which worker processes pay for their start."""
THREADS_FROM_ROWS: Final = 1 << 18
_GZIP_FACTOR: Final = 12
"""How much a trace grows when it is decompressed, roughly."""
_POLL_SECONDS: Final = 0.1
_DASK_TIMEOUT: Final = "20s"


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
    """
    sizes = [path.stat().st_size for path in paths]
    if executor is not None:
        futures: list[Future[Read | ChopperError]] = [
            executor.submit(reader, path, silent) for path in paths
        ]
        _wait(futures, sizes, [0] * len(paths), progress)
        return _complete(
            [_outcome(future, path) for future, path in zip(futures, paths, strict=True)]
        )
    workers = min(jobs or os.cpu_count() or 1, len(paths))
    packed = [
        size if path.suffix == ".gz" else size // _GZIP_FACTOR
        for path, size in zip(paths, sizes, strict=True)
    ]
    workers, limit = memory.worker_limit(workers, max(packed, default=0) * _GZIP_FACTOR)
    if workers > 1 and (jobs is not None or sum(packed) >= PARALLEL_FROM_BYTES):
        return _complete(_read_in_processes(paths, sizes, reader, progress, workers, limit))
    return _complete(
        _read(path, reader, _FileProgress(progress, number, sizes))
        for number, path in enumerate(paths)
    )


def _complete(outcomes: Iterable[Read | ChopperError]) -> list[Read | ChopperError]:
    """The outcomes; raises OutOfMemory, since a run without that file would be another run."""
    found = []
    for outcome in outcomes:
        if isinstance(outcome, memory.OutOfMemory):
            raise outcome
        found.append(outcome)
    return found


def _read(path: Path, reader: Reader[Read], progress: Progress) -> Read | ChopperError:
    try:
        with debug.timed(f"read {path}"):
            return reader(path, progress)
    except Exception as error:
        debug.note_error(error)
        if memory.is_out_of_memory(error):
            return memory.out_of_memory(f"reading {path}")
        if isinstance(error, ChopperError):
            return error
        raise


class _FileProgress(Struct, frozen=True):
    """The progress of one file within that of all files."""

    whole: Progress
    number: int
    sizes: Sequence[int]

    def __call__(self, step: str, done: int, total: int) -> None:
        self.whole(step, sum(self.sizes[: self.number]) + done, sum(self.sizes))


def _wait(
    futures: Sequence[Future[Any]], sizes: Sequence[int], done: list[int], progress: Progress
) -> None:
    """Wait for all futures while reporting progress in bytes; cancel them if it raises."""
    from concurrent.futures import FIRST_COMPLETED, wait

    numbers = {future: number for number, future in enumerate(futures)}
    waiting = set(futures)
    try:
        while waiting:
            finished, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                done[numbers[future]] = sizes[numbers[future]]
            step = f"read and align {len(futures) - len(waiting)} of {len(futures)} ranks"
            progress(step, sum(done), sum(sizes))
    finally:
        for future in waiting:
            future.cancel()


def _outcome(future: Future[Read | ChopperError], path: Path) -> Read | ChopperError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, ChopperError):
        return error
    return DataError(f"{path} was not read: {str(error) or type(error).__name__}")


def read_as_done(
    paths: Sequence[Path], reader: Reader[Read], jobs: int | None = None
) -> Iterator[tuple[int, Read | ChopperError]]:
    """Call the reader for each path, and yield its place and result, or the error, once it is done.

    `jobs` processes share the paths; None: one per processor. The reader is as of `read_all`.
    """
    workers = min(jobs or os.cpu_count() or 1, len(paths))
    if workers < 2:
        for number, path in enumerate(paths):
            yield number, _read(path, reader, silent)
        return
    from concurrent.futures import as_completed

    with _process_futures(paths, reader, workers, [0] * len(paths)) as futures:
        numbers = {future: number for number, future in enumerate(futures)}
        for future in as_completed(futures):
            number = numbers[future]
            yield number, _read_again_if_died(future, paths[number], reader, silent)


def _read_in_processes(
    paths: Sequence[Path],
    sizes: Sequence[int],
    reader: Reader[Read],
    progress: Progress,
    workers: int,
    limit: int,
) -> list[Read | ChopperError]:
    bytes_done = [0] * len(paths)
    with _process_futures(paths, reader, workers, bytes_done, limit) as futures:
        _wait(futures, sizes, bytes_done, progress)
    return [
        _read_again_if_died(future, paths[number], reader, _FileProgress(progress, number, sizes))
        for number, future in enumerate(futures)
    ]


def _read_again_if_died(
    future: Future[Read | ChopperError], path: Path, reader: Reader[Read], progress: Progress
) -> Read | ChopperError:
    """A worker that died (killed for its memory, say), or whose share of the memory was too small,
    leaves its file to this process, which has all of it by now."""
    if isinstance(future.exception(), _WorkerDied):
        return _read(path, reader, progress)
    outcome = future.result()
    return _read(path, reader, progress) if isinstance(outcome, memory.OutOfMemory) else outcome


def in_threads(
    work: Callable[[Item], Done], items: Sequence[Item], rows: int = THREADS_FROM_ROWS
) -> list[Done]:
    """Call a function for each item and return its results in order, on all processors.

    That pays where its time goes to numpy's loops over as many rows, which lie in all items.
    """
    workers = min(os.cpu_count() or 1, len(items))
    if workers < 2 or rows < THREADS_FROM_ROWS:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(work, items))


@contextmanager
def _process_futures(
    paths: Sequence[Path],
    reader: Reader[Read],
    workers: int,
    bytes_done: list[int],
    limit: int = 0,
) -> Iterator[list[Future[Read | ChopperError]]]:
    """The results of worker processes to come; on leaving, those that have none are cancelled."""
    # Importing them is slow compared with a small trace.
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    idle: list[_Worker] = []
    stop = Event()

    def read(number: int) -> Read | ChopperError:
        def report(step: str, done: int, total: int) -> None:
            if stop.is_set():
                raise Cancelled
            bytes_done[number] = done

        try:
            worker = idle.pop()
        except IndexError:
            worker = _Worker(limit)
        try:
            outcome: Read | ChopperError = worker.read(reader, paths[number], report)
        except BaseException:
            worker.end(kill=True)
            raise
        idle.append(worker)
        return outcome

    threads = ThreadPoolExecutor(workers)
    try:
        yield [threads.submit(read, number) for number in range(len(paths))]
    finally:
        stop.set()
        threads.shutdown(wait=True, cancel_futures=True)
        for worker in idle:
            worker.end()


class _WorkerDied(Exception):
    """A worker process ended, or couldn't be started, before it answered."""


class _Worker:
    """A process that reads one file at a time."""

    def __init__(self, limit: int = 0) -> None:
        # Their import takes several ms, and most runs need no workers.
        import signal
        import subprocess

        code = (
            f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; "
            f"from {__name__} import serve; serve({debug.target!r}, {limit})"
        )
        # The parent handles Ctrl-C; a worker has it blocked from its first instruction.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise _WorkerDied from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._requests = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)

    def read(self, reader: Reader[Read], path: Path, progress: Progress) -> Read | ChopperError:
        """Read a file; what `progress` raises comes out of here, and leaves the worker busy."""
        self._send((reader, path))
        while True:
            report, outcome = self._receive()
            if report is None:
                return cast("Read | ChopperError", outcome)
            progress(*report)

    def end(self, *, kill: bool = False) -> None:
        """End the process, which waits for its next request, or kill it."""
        if kill:
            self._process.kill()
        with suppress(OSError):
            self._requests.close()
        self._answers.close()
        self._process.wait()

    def _send(self, request: Any) -> None:
        try:
            _dump(request, self._requests)
        except OSError as error:
            raise _WorkerDied from error

    def _receive(self) -> Any:
        try:
            return pickle.load(self._answers)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise _WorkerDied from error


def serve(debug_target: str = "", limit: int = 0) -> None:
    """Answer the requests of a `_Worker` until it closes them; the main loop of its process.

    An error that no reader should have ends it: the parent reads the file again, and says it.
    """
    if limit:
        memory.limit_memory(limit)
    if debug_target:
        with suppress(OSError):
            debug.start(debug_target)
    # A library's prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def report(step: str, done: int, total: int) -> None:
        _dump(((step, done, total), None), answers)

    with suppress(EOFError, BrokenPipeError):
        while True:
            reader, path = pickle.load(sys.stdin.buffer)
            try:
                outcome = _read(path, reader, report)
            except Exception as error:
                debug.note_error(error)
                os._exit(1)
            _dump((None, outcome), answers)


def _dump(message: Any, file: IO[bytes]) -> None:
    pickle.dump(message, file, pickle.HIGHEST_PROTOCOL)
    file.flush()


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor on the Dask cluster of a scheduler, whose workers see files at the same paths.

    Raises UsageError if Dask isn't installed, DataError if no scheduler answers at the address.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--engine dask needs Dask: pip install 'chopper-tui[dask]'") from error
    try:
        client = Client(address, timeout=_DASK_TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        # Readers write files, so a call must not be answered from an earlier result.
        yield client.get_executor(pure=False)
