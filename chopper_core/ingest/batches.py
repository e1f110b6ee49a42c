"""From files to a store, rank by rank: in one go, or from many processes and machines at once.

What is read is kept beside the store until it is finished, so that a run that was interrupted goes
on where it was. A rank that can't be read is named in the store; the others are in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.ingest.open import Ranks, open_run, read_rank
from chopper_core.ingest.parts import (
    NotKept,
    folder_of,
    gather,
    has_part,
    read_part,
    traces_of,
    write_part,
)
from chopper_core.ingest.rank_file import RankFile
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable
from chopper_core.sources.discover import find_traces
from chopper_core.store.paths import is_store, paths_of
from chopper_core.store.reader import read_store
from chopper_core.store.writer import check_place, write_store
from chopper_core.util.atomic import beside
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import read_all


class _ReadPart(Struct, frozen=True):
    """Reads a trace and keeps what it gave; may be sent to another process."""

    folder: Path

    def __call__(self, trace: Path, progress: Progress) -> None:
        if has_part(self.folder, trace):
            return
        try:
            outcome: RankFile | ChopperError = read_rank(trace, progress)
        except ChopperError as error:
            outcome = error
        write_part(self.folder, trace, outcome)
        if isinstance(outcome, ChopperError):
            raise outcome


def read_parts(
    traces: Sequence[Path],
    store: Path,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> dict[Path, ChopperError]:
    """Read the traces that are not read yet and keep what they gave; why some can't be used.

    Raises NotKept where it can't be written.
    """
    folder = folder_of(store)
    wanted = [trace for trace in traces if not has_part(folder, trace)]
    # Workers elsewhere have another current directory.
    paths = [trace.absolute() for trace in wanted]
    outcomes = read_all(paths, _ReadPart(folder.absolute()), progress, jobs, executor)
    for outcome in outcomes:
        if isinstance(outcome, NotKept):
            raise outcome
    return {
        trace: outcome
        for trace, outcome in zip(wanted, outcomes, strict=True)
        if isinstance(outcome, ChopperError)
    }


def ingest_into(
    name: str, store: Path, progress: Progress = silent, *, jobs: int | None = None
) -> dict[Path, ChopperError | None]:
    """Read the traces of a name for a store that others read for too; what came of each."""
    check_place(store)
    traces = [trace.path for trace in find_traces(paths_of(name)).traces]
    failed = read_parts(traces, store, progress, jobs=jobs)
    return {trace: failed.get(trace) for trace in traces}


def ingest_store(
    name: str,
    store: Path,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
    executor: Executor | None = None,
) -> Run:
    """Read a run and write its store; what an earlier try has read already is not read again."""
    check_place(store)
    folder = folder_of(store)

    def ranks(traces: Sequence[Path], progress: Progress) -> list[RankFile | ChopperError]:
        failed = read_parts(traces, store, progress, jobs=jobs, executor=executor)
        return [_part_or_error(folder, trace, failed.get(trace)) for trace in traces]

    return _put_together(name, store, progress, overrides, ranks)


def finish(
    store: Path, name: str = "", progress: Progress = silent, *, overrides: Overrides = NO_OVERRIDES
) -> Run:
    """Write a store of the ranks that were read for it, and of what lies beside their traces.

    Without a name the run is the directory that holds all their traces. Traces of the run that
    were not read are named in `Run.failed`. Raises DataError where nothing was read.
    """
    check_place(store)
    folder = folder_of(store)
    traces = traces_of(folder)
    if not traces:
        done = f"; {store} is finished" if is_store(store) else ""
        raise DataError(
            f"nothing was read for {store}{done}: chopper ingest RANKFILE --into {store} does"
        )
    if not name:
        lost = next((trace for trace in traces if not trace.exists()), None)
        if lost is not None:
            raise DataError(f"{lost} is not there any more; say which run it is of")
        parents = [str(trace.parent) for trace in traces]
        name = os.path.commonpath(parents)

    def ranks(traces: Sequence[Path], _: Progress) -> list[RankFile | ChopperError]:
        missing = [trace for trace in traces if not has_part(folder, trace)]
        if missing and is_store(store):
            raise DataError(
                f"{missing[0]} and so {len(missing)} of {len(traces)} traces were not read for "
                f"{store}, which stays as it is: chopper ingest TRACE --into {store} reads them"
            )
        return [_part_or_error(folder, trace) for trace in traces]

    return _put_together(name, store, progress, overrides, ranks)


def _part_or_error(
    folder: Path, trace: Path, error: ChopperError | None = None
) -> RankFile | ChopperError:
    if error is not None:
        return error
    try:
        return read_part(folder, trace)
    except DataError as missing:
        return missing


def _put_together(
    name: str, store: Path, progress: Progress, overrides: Overrides, ranks: Ranks
) -> Run:
    folder = folder_of(store)
    together = beside(folder / "all", "new")

    def one_table(tables: Sequence[KernelTable]) -> KernelTable:
        return gather(tables, together)

    try:
        run = open_run(name, progress, overrides=overrides, ranks=ranks, gather=one_table)
        write_store(run, store, progress=progress)
    finally:
        shutil.rmtree(together, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    return replace(read_store(store), name=name)
