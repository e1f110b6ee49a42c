"""`chopper ingest`: align a run once and write it to a store, in one go or rank by rank."""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopper_core.model.overrides import overrides_of
from chopper_core.util import debug
from chopper_core.util.compression import refuse_compressed
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.memory import is_out_of_memory
from chopper_core.util.patterns import shape_of_name
from chopper_tui.commands.arguments import READING
from chopper_tui.commands.options import progress_line
from chopper_tui.commands.output import tell
from chopper_tui.terminal import guard_mapped_files, remark

if TYPE_CHECKING:
    from concurrent.futures import Executor

_MOST_NAMED: Final = 10
DESCRIPTION: Final = "Align a run once and write it to a store: a directory to share."
OPTIONS: Final = f"""
    RUN? | a directory, or comma-separated trace files
    one-of -o, --output STORE | read all ranks and write STORE
    one-of --into STORE | only read, as one of several jobs that read ranks for STORE
    one-of --finish STORE | write STORE from the ranks that --into has read
    --engine {{processes,dask}}=processes | how ranks are read; default: processes
    --scheduler ADDRESS | address of the Dask scheduler, such as
        tcp://host:8786{READING}"""


def run(options: Namespace) -> int:
    from chopper_core.ingest import batches as batch

    gc.freeze()  # Modules are not garbage: each place that is worked out would look through them.
    gc.enable()
    overrides = overrides_of(
        options.clock, options.gpu, hardware=options.hardware, parallel=options.parallel
    )
    for name in filter(None, (options.output, options.into, options.finish)):
        refuse_compressed(Path(name), "a store is a folder, which isn't compressed")
    if options.into:
        return _read_into(options)
    if not options.run and not options.finish:
        raise UsageError("missing run: chopper ingest RUN -o STORE")
    store = Path(options.output or options.finish)
    guard_mapped_files()
    try:
        with progress_line() as progress, _executor(options) as executor:
            if options.finish:
                given = {"jobs": options.jobs, "overrides": overrides}
                failed = batch.finish(store, options.run or "", progress, **given)
            else:
                given = {"jobs": options.jobs, "overrides": overrides, "executor": executor}
                failed = batch.ingest_store(options.run, store, progress, **given)
    except KeyboardInterrupt as error:
        error.add_note("the same command resumes")
        raise
    except Exception as error:
        if is_out_of_memory(error):
            tell("the ranks read so far are kept; the same command with more of it resumes")
        raise
    _tell_left_out(failed, f"; `chopper info {store}` names all")
    if failed and (parts := batch.parts_folder(store)).is_dir():
        tell(
            f"the ranks that were read are kept in {parts}: read the others with --into, then call "
            "--finish again, or remove them"
        )
    if not options.no_cache:
        _work_out(store, options.jobs)
    remark(str(store))
    return 0


def _work_out(store: Path, jobs: int | None) -> None:
    """Work out what is looked at first; the store is whole without it."""
    from chopper_core.answers.opening import work_out
    from chopper_core.store.format import name_of

    try:
        with progress_line() as progress:
            work_out(name_of(store), progress, jobs)
    except Exception as error:
        if not isinstance(error, ChopperError) and not is_out_of_memory(error):
            raise
        debug.note(f"{store} is whole; its summary is not worked out: {error}")


def _tell_left_out(failed: Sequence[tuple[str, str]], who_names_all: str) -> None:
    """Name each trace, or of many that failed for the same reason the first."""
    from chopper_core.util.grouping import grouped_by

    kinds = grouped_by(failed, lambda each: shape_of_name(each[1].replace(each[0], "")))
    for alike in kinds.values():
        if len(alike) > _MOST_NAMED:
            path, reason = alike[0]
            first = reason if reason.startswith(path) else f"{path}: {reason}"
            tell(f"left out {len(alike):,} traces; the first: {first}{who_names_all}")
            continue
        for path, reason in alike:
            is_named = reason.startswith(path)
            tell(f"left out: {reason}" if is_named else f"left out {path}: {reason}")


def _read_into(options: Namespace) -> int:
    """Read some of a run's traces; fails where none of them can be used."""
    from chopper_core.ingest import batches as batch

    if not options.run:
        raise UsageError("missing trace: chopper ingest RANKFILE --into STORE")
    if options.clock or options.gpu or options.hardware or options.parallel or options.set:
        raise UsageError(
            "--clock, --gpu, --hardware, --parallel and --set go with --finish: a single rank does "
            "not need them"
        )
    if options.engine != "processes" or options.scheduler:
        raise UsageError("--engine goes with -o: --into reads on this machine only")
    with progress_line() as progress:
        outcomes = batch.ingest_into(options.run, Path(options.into), progress, jobs=options.jobs)
    read = [trace for trace, error in outcomes.items() if error is None]
    if len(read) > _MOST_NAMED:
        tell(f"read {len(read):,} traces")
    else:
        for trace in read:
            tell(f"read {trace}")
    _tell_left_out([(str(trace), str(error)) for trace, error in outcomes.items() if error], "")
    return 0 if read else 1


@contextmanager
def _executor(options: Namespace) -> Iterator[Executor | None]:
    if options.engine != "dask":
        if options.scheduler:
            raise UsageError("--scheduler goes with --engine dask")
        yield None
        return
    if not options.scheduler:
        raise UsageError("--engine dask needs --scheduler ADDRESS, such as tcp://host:8786")
    from chopper_core.util.workers import dask_executor

    with dask_executor(options.scheduler) as executor:
        yield executor
