"""From files to a run: find the traces, read each rank, merge them, attach other sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.ingest.attach import with_slots
from chopper_core.ingest.discovery import check_is_one
from chopper_core.ingest.finish import check_overrides, with_layout, with_overrides, with_sources
from chopper_core.ingest.joining import GatherTables, join_ranks, on_one_clock, with_shared_gpus
from chopper_core.ingest.logs import ReadLogs, read_logs
from chopper_core.ingest.no_traces import run_of_ranges, run_without_traces
from chopper_core.ingest.rank import (
    JOINED,
    concatenate_tables,
    read_complete,
)
from chopper_core.ingest.recorded import (
    described,
    recorded_at,
    with_recording,
)
from chopper_core.ingest.untraced import ReadSamples, RunInputs, read_files
from chopper_core.ingest.watch import files_below
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run, SideSource, located
from chopper_core.record.manifest import is_ring
from chopper_core.sources.foreign import NoActivityError, OnlyRangesError, what_is
from chopper_core.sources.ranks import (
    HostFile,
    TraceFile,
    find_traces,
)
from chopper_core.sources.registry import (
    NEXT_TO_TRACES,
    Family,
    ListedPaths,
    Recognised,
    formats,
)
from chopper_core.store.format import is_store, paths_of
from chopper_core.tables.text import FileHead
from chopper_core.util.atomic import FileState, file_state
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.memory import start_libraries
from chopper_core.util.patterns import natural_key
from chopper_core.util.progress import Progress, ShowingProgress, silent
from chopper_core.util.workers import read_all, shared_by

_MAX_ATTEMPTS: Final = 3
"""Attempts to read a run whose files are replaced during that time."""

ReadRanks = Callable[[Sequence[Path], Sequence[HostFile], Progress], Sequence[Run | ChopperError]]
"""Reads traces, with the host traces next to them, as runs of one rank each; returns an error for a
trace that can't be used."""


def open_run(
    name: str,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
    read_ranks: ReadRanks | None = None,
    gather: GatherTables = concatenate_tables,
    read_samples: ReadSamples = read_files,
    read_logs: ReadLogs = read_logs,
) -> Run:
    """Open a run by its name: a trace, several separated by commas, a directory, or a store.

    Files are read by `jobs` processes (default: one per processor when the files are large), or
    by `read_ranks`; `gather` makes one table of theirs, `read_samples` reads telemetry. As many
    share what is worked out of all. A
    `ShowingProgress` is given the run of the traces before other sources join it. A file that can't
    be read is left out and named in `Run.failed`; raises DataError if none is left, where the
    name is several runs, and where files were replaced while others were read, even after another
    try.
    """
    overrides = overrides.of_run
    paths = paths_of(name)
    if len(paths) == 1 and is_store(paths[0]):
        if overrides:
            raise UsageError(
                f"{name} is a store, which is aligned already; "
                "give --clock and --gpu with the files that it was made from"
            )
        from chopper_core.store.reader import read_store

        return located(read_store(paths[0], progress), overrides.parallel)
    start_libraries()
    if len(paths_of(name)) > 1:
        check_is_one(name)
    changed: str | None = None
    for _ in range(_MAX_ATTEMPTS):
        before = {path: file_state(path) for path in files_below(paths)}
        try:
            recorded = recorded_at(paths)
            listed = ListedPaths(paths)
            opening = RunInputs(
                name, listed, progress, overrides, recorded, read_samples, read_logs
            )
            with shared_by(jobs):
                run = _read_run(opening, jobs, read_ranks, gather)
            run = described(run, recorded) if recorded else run
            run = located(check_overrides(_named(run)))
        except DataError:
            if all(file_state(path) == state for path, state in before.items()):
                raise
            continue
        changed = _replaced(run, before)
        if changed is None:
            return run
    raise DataError(f"{changed or name} changed while it was read; open it again once it is whole")


def inputs_of(run: Run) -> list[str]:
    """The files that a run was read from."""
    named = [source.path for source in run.sources]
    named += [source.path for source in run.telemetry]
    named += [samples.path for samples in run.cpu]
    named += [log.path for log in run.logs]
    paths = [path for each in named for path in each.split(", ")]
    return [*paths, *(path for counters in run.counters for path in counters.paths)]


def _replaced(run: Run, before: Mapping[str, FileState]) -> str | None:
    """A file of the run that is another one than before; one that grows, as telemetry, is not, nor
    is a ring of steps."""
    paths = [path for path in inputs_of(run) if path in before and not is_ring(path)]
    states = ((path, before[path], file_state(path)) for path in paths)
    return next((path for path, then, now in states if then != now and now[0] <= then[0]), None)


def _read_run(
    opening: RunInputs, jobs: int | None, read_ranks: ReadRanks | None, gather: GatherTables
) -> Run:
    paths, progress, recorded = opening.paths, opening.progress, opening.recorded
    try:
        discovery = find_traces(paths)
    except DataError:
        if (run := run_without_traces(opening)) is None:
            raise
        return run
    failed = [(str(file.path), f"{file.path} {file.reason}.") for file in discovery.lost]
    read: list[tuple[TraceFile, Run]] = []
    traces = [trace.path for trace in discovery.traces]
    outcomes: Sequence[Run | ChopperError] = (
        read_ranks(traces, discovery.hosts, progress)
        if read_ranks
        else read_all(traces, partial(read_complete, hosts=discovery.hosts), progress, jobs)
    )
    ranges: list[Path] = []
    for trace, outcome in zip(discovery.traces, outcomes, strict=True):
        if isinstance(outcome, Run):
            read.append((trace, outcome))
        elif isinstance(outcome, OnlyRangesError):
            ranges.append(trace.path)
        else:
            failed.append((str(trace.path), str(outcome)))
    if not read:
        is_silent = all(isinstance(each, NoActivityError | OnlyRangesError) for each in outcomes)
        return run_of_ranges(opening, ranges, failed, has_samples=is_silent)
    progress("merge ranks", 0, 1)
    run = with_shared_gpus(join_ranks(opening.name, read, gather))
    run = replace(run, failed=(*failed, *run.failed))
    # Their tables, which are those of the run once more.
    del read, outcomes, outcome
    notes = [note for source in run.sources for note in source.notes]
    left = (
        (str(file.path), file.reason)
        for file in discovery.skipped
        if not any(note.startswith(f"{kind} {file.path} ") for note in notes for kind in JOINED)
    )
    run = with_recording(run, recorded) if recorded else run
    run = on_one_clock(replace(run, skipped=tuple(left)), opening.overrides)
    progress("merge ranks", 1, 1)
    run = with_overrides(run, opening.overrides)
    if isinstance(progress, ShowingProgress):
        awaited = [family for family in NEXT_TO_TRACES if opening.paths.found(family).files]
        if awaited:
            first = with_sources(run, replace(opening, paths=ListedPaths()), None)
            first = described(first, recorded) if recorded else first
            first = replace(first, awaited=frozenset(map(SideSource, awaited)))
            progress.show(located(with_layout(with_slots(first, paths), paths)))
    run = with_sources(run, opening, ranges)
    return with_layout(with_slots(run, paths), paths)


def _named(run: Run) -> Run:
    """The run with a reason for each file that isn't read, in the order of the paths.

    A reader's reason says nothing where another reader has read the file.
    """
    used = set(inputs_of(run))
    unread = ((path, why) for path, why in run.skipped if path not in used)
    skipped = ((path, why or _what_is(Path(path))) for path, why in unread)
    return replace(run, skipped=tuple(sorted(skipped, key=lambda item: natural_key(item[0]))))


def _what_is(path: Path) -> str:
    """Why a file next to others isn't read."""
    head = FileHead(path)
    for family, text in _ALONE.items():
        if any(isinstance(each.recognise(head), Recognised) for each in formats(family)):
            return text
    return what_is(head)


_ALONE: Final = {
    Family.COMMUNICATION: "has the communication of a whole job; open it without the traces next "
    "to it",
    Family.CPU: "has CPU samples, which join the steps of a trace; this run has none",
    Family.MEMORY: "is a memory snapshot of the allocator; open it by itself",
}
"""Why files of a family that make a run alone aren't read next to others."""
