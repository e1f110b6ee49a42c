"""Reading many files, in worker processes where that pays, with one progress for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.progress import Cancelled, Progress, silent

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Read = TypeVar("Read")
Reader = Callable[[Path, Progress], Read]

PARALLEL_FROM_BYTES: Final = 4_000_000
"""Compressed size of all files together from which worker processes pay for their start."""
_GZIP_FACTOR: Final = 12
"""How much a trace grows when it is unpacked, about."""
_POLL_SECONDS: Final = 0.1


def read_all(
    paths: Sequence[Path],
    reader: Reader[Read],
    progress: Progress,
    jobs: int | None,
    executor: Executor | None = None,
) -> list[Read | ChopperError]:
    """What the reader makes of each file, or the error that it raised for it.

    `jobs` processes share the files; None decides by their size and the processors. Another
    executor may do it instead. The reader is a function of a module, so that a worker can import
    it.
    """
    if executor is not None:
        return _by_executor(paths, reader, progress, executor)
    sizes = [path.stat().st_size for path in paths]
    workers = min(jobs or os.cpu_count() or 1, len(paths))
    packed = sum(
        size if path.suffix == ".gz" else size // _GZIP_FACTOR
        for path, size in zip(paths, sizes, strict=True)
    )
    if workers > 1 and (jobs is not None or packed >= PARALLEL_FROM_BYTES):
        from concurrent.futures.process import BrokenProcessPool

        try:
            return _in_processes(paths, reader, progress, sum(sizes), workers)
        except BrokenProcessPool:
            # A worker was killed, or couldn't start (a script without a main guard): once more.
            pass
    return _here(paths, sizes, reader, progress)


def _here(
    paths: Sequence[Path], sizes: Sequence[int], reader: Reader[Read], progress: Progress
) -> list[Read | ChopperError]:
    outcomes: list[Read | ChopperError] = []
    for number, path in enumerate(paths):
        try:
            outcomes.append(reader(path, _Part(progress, sum(sizes[:number]), sum(sizes))))
        except ChopperError as error:
            outcomes.append(error)
    return outcomes


def _by_executor(
    paths: Sequence[Path], reader: Reader[Read], progress: Progress, executor: Executor
) -> list[Read | ChopperError]:
    """As `read_all`; what the executor itself can't do for a file is an error of that file."""
    from concurrent.futures import FIRST_COMPLETED, wait

    futures = {executor.submit(reader, path, silent): n for n, path in enumerate(paths)}
    outcomes: dict[int, Read | ChopperError] = {}
    waiting = set(futures)
    try:
        while waiting:
            finished, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                number, error = futures[future], future.exception()
                if error is None:
                    outcomes[number] = future.result()
                elif isinstance(error, ChopperError):
                    outcomes[number] = error
                else:
                    words = str(error) or type(error).__name__
                    outcomes[number] = DataError(f"{paths[number]} was not read: {words}")
            count = len(outcomes)
            progress(f"read and align {count} of {len(paths)} ranks", count, len(paths))
    finally:
        for future in waiting:
            future.cancel()
    return [outcomes[number] for number in range(len(paths))]


class _Part(Struct, frozen=True):
    """The progress of one file within that of all files."""

    whole: Progress
    before: int
    total: int

    def __call__(self, step: str, done: int, total: int) -> None:
        self.whole(step, self.before + done, self.total)


def _in_processes(
    paths: Sequence[Path], reader: Reader[Read], progress: Progress, total: int, workers: int
) -> list[Read | ChopperError]:
    # They take as long to import as a small trace to read.
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from multiprocessing import resource_tracker

    # It takes a standard error with a file to start, and under an app there is another one.
    with redirect_stderr(sys.__stderr__):
        resource_tracker.ensure_running()
    # Threads of the interface may hold locks at a fork, so workers start from a clean process.
    context = multiprocessing.get_context("forkserver")
    # Imported once, for all workers; a module that can't be is passed over.
    context.set_forkserver_preload([reader.__module__])
    done = context.Array("q", len(paths), lock=False)
    stop = context.Event()
    executor = ProcessPoolExecutor(workers, context, _set_up_worker, (done, stop))
    try:
        futures: dict[Future[Read], int] = {
            executor.submit(_in_worker, reader, path, number): number
            for number, path in enumerate(paths)
        }
        outcomes: dict[int, Read | ChopperError] = {}
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                error = future.exception()
                if error is not None and not isinstance(error, ChopperError):
                    raise error
                outcomes[futures[future]] = error if error is not None else future.result()
            progress(f"read and align {len(outcomes)} of {len(paths)} ranks", sum(done), total)
        return [outcomes[number] for number in range(len(paths))]
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)


_worker: dict[str, Any] = {}


def _set_up_worker(done: Any, stop: Any) -> None:
    _worker.update(done=done, stop=stop)


def _in_worker(reader: Reader[Read], path: Path, number: int) -> Read:
    def report(step: str, done: int, total: int) -> None:
        if _worker["stop"].is_set():
            raise Cancelled
        _worker["done"][number] = done

    return reader(path, report)
