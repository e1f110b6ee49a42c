"""From files to a store, rank by rank: in one go, or from many processes and machines at once.

Each trace that was read is kept in the parts folder next to the store until the store is finished,
as a store of its own, so that an interrupted ingest resumes. A trace that can't be read has a part
without rows that says why; the finished store names it in `Run.failed`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.ingest.cache import PACKAGE, code_files
from chopper_core.ingest.logs import ReadLogs, read_logs
from chopper_core.ingest.open import open_run
from chopper_core.ingest.rank import rank_table, read_rank, read_unchanged
from chopper_core.ingest.untraced import ReadSamples, read_files
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run
from chopper_core.model.table import COLUMNS, KernelTable, MergedTexts, empty_table
from chopper_core.model.tree import ordered
from chopper_core.sources.ranks import find_traces
from chopper_core.store.format import is_store, paths_of, read_label
from chopper_core.store.reader import large_files, read_store, verify
from chopper_core.store.writer import StoreWriteError, check_place, write_store
from chopper_core.tables.database import logs_of
from chopper_core.tables.mmap_columns import content_of
from chopper_core.util import children, debug
from chopper_core.util.arrays import AnyArray
from chopper_core.util.atomic import file_state, remove_folder, temporary_path, write_at
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.memory import is_out_of_memory
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import in_processes, read_all, shared_by

if TYPE_CHECKING:
    from chopper_core.sources.ranks import HostFile


_FAILED: Final = " failed"
"""Ends the origin of a part whose trace can't be used."""
_GROUP: Final = 16
"""Parts that one process takes in turn."""
_GROUP_ROWS: Final = 1 << 16
_ROWS_PER_PART: Final = 1 << 13
"""Opening and verifying a part takes as long as work on so many rows."""
_MEASURED: Final = "measured "
_Done = TypeVar("_Done")
Failures = tuple[tuple[str, str], ...]
"""The path of each trace that a store lacks, and why."""


class UnreadError(DataError):
    """A trace has no part that can be used: it is to be read, or read again."""


def ingest_store(
    name: str,
    store: Path,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
    executor: Executor | None = None,
) -> Failures:
    folder = parts_folder(store)

    def read_ranks(
        parts: _PartsOfStore, traces: Sequence[Path], hosts: Sequence[HostFile], progress: Progress
    ) -> list[Run | ChopperError]:
        failed = read_parts(traces, store, progress, hosts=hosts, jobs=jobs, executor=executor)
        if any(t not in failed and not read_label(_part_path(folder, t)).origin for t in traces):
            raise DataError(
                f"ranks that were read for {store} were removed in the meantime; it is unchanged: "
                "run the same command again"
            )
        return parts.described(traces, failed)

    return _written(name, store, progress, jobs, overrides, read_ranks)


def _written(
    name: str,
    store: Path,
    progress: Progress,
    jobs: int | None,
    overrides: Overrides,
    read_ranks: _ReadParts,
    has_all: Callable[[], bool] = lambda: True,
) -> Failures:
    """Write a store of parts, and remove these once it has all that there are to be."""
    check_place(store)
    with (
        _only_writer(store),
        _gathered(name, store, progress, jobs, overrides, read_ranks) as run,
        shared_by(jobs),
    ):
        write_store(run, store, progress=progress)
        if has_all():
            remove_folder(parts_folder(store), _remove_parts)
        return run.failed


@contextmanager
def _only_writer(store: Path) -> Iterator[None]:
    """Keep other processes from finishing the store, which removes its parts.

    Raises DataError where one is at it; one that is gone is at nothing. On a file system without
    locks nobody is kept.
    """
    import fcntl

    folder = parts_folder(store)
    # NFS locks only what is open for writing, which no folder can be.
    lock = folder / "lock"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise StoreWriteError(f"can't write the store {store}: {error.strerror}") from error
        with os.fdopen(handle), children.own_lock(handle):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"another process is writing {store}; wait for it to end, or choose another "
                    "name"
                ) from None
            except OSError:
                pass
            # Its last writer may have removed it in between.
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                    with suppress(OSError):
                        folder.rmdir()
                return


def ingest_into(
    name: str, store: Path, progress: Progress = silent, *, jobs: int | None = None
) -> dict[Path, ChopperError | None]:
    """Read traces for a store that other processes read for too; returns the error of each."""
    check_place(store)
    found = find_traces(paths_of(name))
    traces = [trace.path for trace in found.traces]
    failed = read_parts(traces, store, progress, hosts=found.hosts, jobs=jobs)
    return {trace: failed.get(trace) for trace in traces}


def finish(
    store: Path,
    name: str = "",
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> Failures:
    """Write a store from the traces that were read for it and the files next to them.

    Without a name the run is the directory that holds all these traces. Traces of the run that
    were not read are named in `Run.failed`; the parts of the others then stay, for another call
    once these are read. Raises DataError if no trace was read.
    """
    check_place(store)
    folder = parts_folder(store)
    read = [Path(read_label(part).name) for part in sorted(folder.glob("*.chopper"))]
    if not read:
        done = f"; {store} is finished" if is_store(store) else ""
        raise DataError(
            f"no trace was read for {store}{done}: run chopper ingest RANKFILE --into {store} first"
        )
    if not name:
        lost = next((trace for trace in read if not trace.exists()), None)
        if lost is not None:
            raise DataError(
                f"{lost} no longer exists; name the run: chopper ingest RUN --finish {store}"
            )
        name = os.path.commonpath([str(trace.parent) for trace in read])

    unread: list[UnreadError] = []

    def read_ranks(
        parts: _PartsOfStore,
        traces: Sequence[Path],
        _hosts: Sequence[HostFile],
        _progress: Progress,
    ) -> list[Run | ChopperError]:
        nonlocal unread
        ranks = parts.described(traces, {})
        errors = [rank for rank in ranks if not isinstance(rank, Run)]
        unread = [error for error in errors if isinstance(error, UnreadError)]
        if errors and (is_store(store) or len(unread) == len(ranks)):
            written = f"{store} is unchanged" if is_store(store) else "nothing was written"
            raise DataError(
                f"{len(errors):,} of {len(traces):,} traces can't be joined, {written}; the first: "
                f"{errors[0]}. Read them with: chopper ingest TRACE --into {store}"
            )
        return ranks

    return _written(name, store, progress, jobs, overrides, read_ranks, lambda: not unread)


def read_again(
    name: str,
    store: Path,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
    waits: Callable[[Path], bool] = lambda trace: False,
    read_samples: ReadSamples = read_files,
    read_logs: ReadLogs = read_logs,
) -> Run:
    """The run of files as they are now; only traces that changed since the last time are read.

    Parts are kept for a store that isn't written. Traces that wait are in `Run.failed`.
    """

    def read_ranks(
        parts: _PartsOfStore, traces: Sequence[Path], hosts: Sequence[HostFile], progress: Progress
    ) -> list[Run | ChopperError]:
        late = {
            trace: DataError(f"{trace} is still being written") for trace in filter(waits, traces)
        }
        there = [trace for trace in traces if trace not in late]
        failed = late | read_parts(there, store, progress, hosts=hosts, jobs=jobs)
        return parts.described(traces, failed)

    with _gathered(
        name, store, progress, jobs, overrides, read_ranks, read_samples, read_logs
    ) as run:
        return run


@contextmanager
def _gathered(
    name: str,
    store: Path,
    progress: Progress,
    jobs: int | None,
    overrides: Overrides,
    read_ranks: _ReadParts,
    read_samples: ReadSamples = read_files,
    read_logs: ReadLogs = read_logs,
) -> Iterator[Run]:
    """Gather the parts as a run, whose columns are files of a folder as long as it is written."""
    folder = parts_folder(store)
    columns = temporary_path(folder / "all", "new")
    parts = _PartsOfStore(folder, progress)

    def gather_parts(ranks: Sequence[Run]) -> KernelTable:
        try:
            return parts.gathered(ranks, columns)
        except OSError as error:
            raise StoreWriteError(f"can't write the store {store}: {error.strerror}") from error

    try:
        yield open_run(
            name,
            progress,
            jobs=jobs,
            overrides=overrides,
            read_ranks=partial(read_ranks, parts),
            gather=gather_parts,
            read_samples=read_samples,
            read_logs=read_logs,
        )
    finally:
        # What is mapped stays.
        shutil.rmtree(columns, ignore_errors=True)


class TableContent(Struct, frozen=True):
    """What a table has but for its values."""

    rows: int
    names: tuple[Any, ...]
    operations: tuple[Any, ...]
    shapes: tuple[Any, ...]
    measured: tuple[str, ...]

    @classmethod
    def of(cls, table: KernelTable) -> TableContent:
        names, operations, shapes = map(tuple, (table.names, table.operations, table.shapes))
        return cls(len(table), names, operations, shapes, tuple(table.measured))

    def sharing(self, known: dict[Any, Any]) -> TableContent:
        """This, with texts that are the same objects as in others of which they are `known`."""

        def shared(texts: tuple[Any, ...]) -> tuple[Any, ...]:
            if texts not in known:
                own = tuple(known.setdefault(each, each) for each in texts)
                known[own] = own
            found: tuple[Any, ...] = known[texts]
            return found

        fields = ("names", "operations", "shapes", "measured")
        return replace(self, **{name: shared(getattr(self, name)) for name in fields})


def gather(
    contents: Sequence[TableContent],
    read: Callable[[int], KernelTable],
    folder: Path,
    progress: Progress = silent,
) -> KernelTable:
    """One table of several, in mapped files of a folder; a process has one of them in memory at a
    time.

    The rows of each are in the order of the levels; measured columns that it lacks are NaN.
    """
    texts = MergedTexts()
    for own in dict.fromkeys((each.names, each.operations, each.shapes) for each in contents):
        texts.codes_of(*own)
    nothing = np.empty(0)
    measured = dict.fromkeys((name for each in contents for name in each.measured), nothing)
    whole = texts.of(replace(empty_table(), measured=measured))
    first = np.cumsum([0, *(each.rows for each in contents)]).tolist()
    if not first[-1]:
        return whole
    folder.mkdir(parents=True, exist_ok=True)
    columns = _all_columns(whole)
    with ExitStack() as stack:
        # Each in a file of its own: a system has one process at a time write to a file.
        files = {
            name: stack.enter_context((folder / f"{number}.bin").open("wb"))
            for number, name in enumerate(columns)
        }

        def put(group: Sequence[int]) -> None:
            begin, end = first[group[0]], first[group[-1] + 1]
            places = {name: np.empty(end - begin, like.dtype) for name, like in columns.items()}
            for number in group:
                table = read(number)
                if TableContent.of(table) != contents[number]:
                    raise DataError("a rank was read again meanwhile; run the same command again")
                own = _all_columns(ordered(texts.recoded(table)))
                rows = slice(first[number] - begin, first[number + 1] - begin)
                for name, values in places.items():
                    values[rows] = own.get(name, np.nan)
            for name in _turned([*columns], group[0] // _GROUP):
                write_at(files[name].fileno(), begin * places[name].itemsize, places[name].data)

        groups = _groups([each.rows for each in contents])
        share = partial(progress, "merge ranks", total=len(groups))
        for _ in in_processes(put, groups, first[-1], share):
            pass
    columns = {
        name: np.frombuffer(content_of(Path(files[name].name)), like.dtype)
        for name, like in columns.items()
    }
    measured = {name: columns.pop(f"{_MEASURED}{name}") for name in whole.measured}
    return replace(whole, measured=measured, **columns)


def _turned(names: list[str], by: int) -> list[str]:
    """Names from another one on: processes that begin with others don't wait for each other."""
    by %= len(names)
    return names[by:] + names[:by]


def _groups(rows: Sequence[int]) -> list[range]:
    """Groups of parts that follow each other, by their rows."""
    groups, begin = list[range](), 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or end - begin == _GROUP or sum(rows[begin:end]) >= _GROUP_ROWS:
            groups.append(range(begin, end))
            begin = end
    return groups


def _all_columns(table: KernelTable) -> dict[str, AnyArray]:
    measured = {f"{_MEASURED}{name}": values for name, values in table.measured.items()}
    return {**{name: table.column(name) for name in COLUMNS}, **measured}


class _PartsOfStore:
    """The parts of a store, which as many processes read as may share the work."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress
        self._contents: dict[str, TableContent] = {}
        """By the paths of traces."""
        self._texts: dict[Any, Any] = {}

    def described(
        self, traces: Sequence[Path], failed: Mapping[Path, ChopperError]
    ) -> list[Run | ChopperError]:
        """The parts of traces without their rows, which `gathered` maps a few at a time; or the
        error with which one failed."""
        found: dict[Path, Run | ChopperError] = dict(failed)
        there = [trace for trace in traces if trace not in failed]
        for trace, part, content in _of_each(_described, self._folder, there, self._progress):
            found[trace] = part
            if content is not None:
                self._contents[str(trace)] = content.sharing(self._texts)
        return [found[trace] for trace in traces]

    def gathered(self, ranks: Sequence[Run], folder: Path) -> KernelTable:
        """One table of the parts of ranks, with their GPUs as these are numbered."""
        traces = [rank.sources[0].path for rank in ranks]

        def read(number: int) -> KernelTable:
            part = read_store(_part_path(self._folder, Path(traces[number])))
            return rank_table(part, ranks[number].gpus[0].index)

        contents = [self._contents[trace] for trace in traces]
        return gather(contents, read, folder, self._progress)


_ReadParts = Callable[
    [_PartsOfStore, Sequence[Path], Sequence["HostFile"], Progress], Sequence[Run | ChopperError]
]
"""Reads traces whose parts are some of these."""


def _of_each(
    work: Callable[[Path, Sequence[Path]], list[_Done]],
    folder: Path,
    traces: Sequence[Path],
    progress: Progress,
) -> Iterator[_Done]:
    """What is made of the part of each trace, in as many processes as may share the work."""

    def report(done: int) -> None:
        progress("check the ranks read", min(done * _GROUP, len(traces)), len(traces))

    rows = len(traces) * _ROWS_PER_PART
    for made in in_processes(partial(work, folder), _in_turn(traces), rows, report):
        yield from made


def _in_turn(paths: Sequence[Path]) -> list[Sequence[Path]]:
    """Those that one process takes in turn."""
    return [paths[begin : begin + _GROUP] for begin in range(0, len(paths), _GROUP)]


def _read_part(trace: Path, progress: Progress, folder: Path, hosts: Sequence[HostFile]) -> None:
    """Read a trace and write its part."""
    if has_part(folder, trace):
        return
    origin = _origin(trace)
    try:
        run = read_unchanged(trace, lambda: read_rank(trace, progress, hosts))
    except ChopperError as error:
        # Without enough memory the trace is as good as the others: the next try has more.
        if not is_out_of_memory(error):
            write_part(folder, trace, error, origin)
        raise
    write_part(folder, trace, run, origin)


def read_parts(
    traces: Sequence[Path],
    store: Path,
    progress: Progress = silent,
    *,
    hosts: Sequence[HostFile] = (),
    jobs: int | None = None,
    executor: Executor | None = None,
) -> dict[Path, ChopperError]:
    """Write the parts of traces without one; returns the errors. Raises StoreWriteError."""
    folder = parts_folder(store)
    with shared_by(jobs):
        lacks = [*_of_each(_without_part, folder, traces, progress)]
    wanted = [trace for trace, is_without in zip(traces, lacks, strict=True) if is_without]
    # Workers elsewhere have another current directory.
    paths = [trace.absolute() for trace in wanted]
    near = [replace(host, path=host.path.absolute()) for host in hosts]
    reader = partial(_read_part, folder=folder.absolute(), hosts=near)
    outcomes = read_all(paths, reader, progress, jobs, executor)
    failed = {}
    for trace, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, StoreWriteError):
            raise outcome
        if isinstance(outcome, ChopperError):
            failed[trace] = outcome
    return failed


def parts_folder(store: Path) -> Path:
    """The hidden folder next to a store that holds its parts until it is finished."""
    return store.with_name(f".{store.name}.parts")


def _remove_parts(folder: Path) -> None:
    """Remove what is in a folder, in as many processes as may share the work."""
    parts = sorted(folder.iterdir())
    for _ in in_processes(_remove_each, _in_turn(parts), len(parts) * _ROWS_PER_PART):
        pass


def _remove_each(parts: Sequence[Path]) -> None:
    for part in parts:
        shutil.rmtree(part, ignore_errors=True)


def has_part(folder: Path, trace: Path) -> bool:
    is_current = read_label(_part_path(folder, trace)).origin == _origin(trace)
    # A writer that was killed while it removed the parts leaves some of their files.
    return is_current and isinstance(read_part(folder, trace), Run)


def write_part(folder: Path, trace: Path, outcome: Run | ChopperError, origin: str) -> None:
    name = str(trace.resolve())
    if isinstance(outcome, ChopperError):
        run = Run(name, empty_table(), (), (), failed=((name, str(outcome)),))
        origin += _FAILED
    else:
        run = replace(outcome, name=name)
    part = _part_path(folder, trace)
    if not is_store(part):
        # Half a part, of a writer that was killed while it removed the parts.
        remove_folder(part)
    write_store(run, part, origin=origin, is_synced=False)


def read_part(folder: Path, trace: Path) -> Run | DataError:
    """The run of one rank that a trace gave, from its part, or the error it was read with.

    An error also where the part is missing, damaged, or of another state of the trace.
    """
    part = _part_path(folder, trace)
    origin = read_label(part).origin.removesuffix(_FAILED)
    if not origin:
        return UnreadError(f"{trace} is not ingested yet")
    if not origin.endswith(_code()):
        return UnreadError(f"{trace} was ingested by another version of Chopper; ingest it again")
    if trace.exists() and _origin(trace) != origin:
        return UnreadError(f"{trace} has changed since it was ingested; ingest it again")
    try:
        # Opening it verifies all but the large files.
        run = read_store(part)
        verify(part, large_files(part))
    except (DataError, OSError) as error:
        debug.note(f"{part} is corrupt: {error}")
        return UnreadError(f"{trace} was ingested, but its part is corrupt; ingest it again")
    return DataError(run.failed[0][1]) if run.failed else run


def _described(
    folder: Path, traces: Sequence[Path]
) -> list[tuple[Path, Run | DataError, TableContent | None]]:
    """The parts of traces without their rows, and what the tables of these have."""
    found: list[tuple[Path, Run | DataError, TableContent | None]] = []
    texts: dict[Any, Any] = {}
    for trace in traces:
        part, content = read_part(folder, trace), None
        if isinstance(part, Run):
            content = TableContent.of(part.table).sharing(texts)
            side = {kind: each.in_memory() for kind, each in part.side_tables.items()}
            part = replace(part, table=empty_table(), side_tables=side, cubes=None)
        found.append((trace, part, content))
    return found


def _without_part(folder: Path, traces: Sequence[Path]) -> list[bool]:
    return [not has_part(folder, trace) for trace in traces]


def _part_path(folder: Path, trace: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(trace.resolve())).hexdigest()[:12]
    return folder / f"{trace.name}-{digest}.chopper"


def _origin(trace: Path) -> str:
    """The state of a trace, with the logs of a database, and the code of the Chopper that reads
    it."""
    files = trace, *(log for log in logs_of(trace) if log.exists())
    # Each machine that reads parts has its own number for the device.
    states = (number for file in files for number in file_state(file)[:-1])
    return " ".join(map(str, (*states, _code())))


@cache
def _code() -> str:
    """A digest of Chopper's own files: another version may label and align differently."""
    digest = hashlib.sha256()
    for path in map(Path, code_files()):
        digest.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
