"""From files to a run: find the traces, read each rank, merge them, attach other sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.breakdown import breakdown_columns
from chopper_core.align.collective_sets import host_clocks, labelled_by_partners
from chopper_core.columns.counters import sampled_figures
from chopper_core.ingest.attach import attach_sources, with_slots
from chopper_core.ingest.counter_run import run_of_dispatches
from chopper_core.ingest.discovery import check_is_one
from chopper_core.ingest.logs import ReadLogs, logged_run, read_logs, with_logs
from chopper_core.ingest.rank import (
    JOINED,
    concatenate_tables,
    joined_ranks,
    read_complete,
    with_gpu_numbers,
)
from chopper_core.ingest.recorded import (
    described,
    recorded_at,
    with_recording,
    without_traces,
)
from chopper_core.ingest.untraced import ReadSamples, RunInputs, read_files, telemetry_run
from chopper_core.ingest.watch import files_below
from chopper_core.model.column_names import PASSING
from chopper_core.model.hardware import hardware_in, hardware_of, is_file, own_file, specifications
from chopper_core.model.inputs import (
    NO_DEVICE,
    NO_RANK,
    ONE_CLOCK,
    TIMES_NOTES,
    Gpu,
    Source,
)
from chopper_core.model.overrides import NO_OVERRIDES, Overrides, is_meant
from chopper_core.model.parallel import layout_of_settings
from chopper_core.model.run import Run, located
from chopper_core.model.settings import in_name
from chopper_core.model.side_table import MemoryEvents, side_tables
from chopper_core.model.table import NO_TIME, KernelTable, empty_table
from chopper_core.model.training import FailedAllocations
from chopper_core.record.manifest import is_ring
from chopper_core.sources.foreign import NoActivityError, OnlyRangesError, what_is
from chopper_core.sources.kineto.events import COUNTER_CATEGORY
from chopper_core.sources.ranks import (
    HostFile,
    TraceFile,
    assign_ranks,
    find_traces,
    process_in_name,
)
from chopper_core.sources.registry import (
    NEXT_TO_TRACES,
    Family,
    ListedPaths,
    Recognised,
    RunPart,
    formats,
)
from chopper_core.sources.settings import gives_settings, read_settings
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.telemetry.databases import SUFFIXES as SAMPLED
from chopper_core.store.format import is_store, paths_of
from chopper_core.tables.text import FileHead
from chopper_core.util.atomic import FileState, file_state
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.memory import reading, start_libraries
from chopper_core.util.patterns import natural_key
from chopper_core.util.progress import Progress, ShowingProgress, silent
from chopper_core.util.workers import read_all

_MAX_ATTEMPTS: Final = 3
"""Attempts to read a run whose files are replaced during that time."""

ReadRanks = Callable[[Sequence[Path], Sequence[HostFile], Progress], Sequence[Run | ChopperError]]
"""Reads traces, with the host traces next to them, as runs of one rank each; returns an error for a
trace that can't be used."""
GatherTables = Callable[[Sequence[Run]], KernelTable]
"""Makes one table of runs of one rank each, whose `gpus` are numbered as in the whole run."""


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
    by `read_ranks`; `gather` makes one table of theirs, `read_samples` reads telemetry. A
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
            run = _read_run(opening, jobs, read_ranks, gather)
            run = described(run, recorded) if recorded else run
            run = located(_check_overrides(_named(run)))
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
        if (run := _untraced(opening)) is None:
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
        return _of_ranges(opening, ranges, failed, has_samples=is_silent)
    progress("merge ranks", 0, 1)
    run = _with_shared_gpus(_joined(opening.name, read, gather))
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
    run = _with_overrides(run, opening.overrides)
    if isinstance(progress, ShowingProgress) and any(
        opening.paths.found(family).files for family in NEXT_TO_TRACES
    ):
        first = _attached(run, replace(opening, paths=ListedPaths()), None)
        first = described(first, recorded) if recorded else first
        awaited = bool(opening.paths.found(Family.TELEMETRY).files)
        first = replace(first, awaits_telemetry=awaited)
        progress.show(located(_with_layout(with_slots(first, paths), paths)))
    run = _attached(run, opening, ranges)
    return _with_layout(with_slots(run, paths), paths)


def _untraced(opening: RunInputs) -> Run | None:
    """The run of paths without traces; raises DataError for a recorded one without anything."""
    if not all(path.exists() for path in opening.paths):
        return None
    run = _counted(opening) or _scheduled(opening) or _sampled(opening) or _logged(opening)
    run = run or _of_parts(opening, Family.MEMORY)
    if run is None and opening.recorded:
        raise DataError(without_traces(opening.name, opening.recorded))
    return run


def _of_ranges(
    opening: RunInputs, ranges: list[Path], failed: list[tuple[str, str]], *, has_samples: bool
) -> Run:
    """The run of counters where no trace can be read, else of telemetry or steps where the traces
    are whole and have no GPU activity; raises DataError without them."""
    why = " ".join(reason for _, reason in failed[:3])
    try:
        counted = _counted(opening, ranges)
    except DataError as error:
        raise DataError(why or str(error)) from error
    found = counted
    if found is None and has_samples:
        found = _sampled(opening) or _logged(opening)
    if found is None:
        raise DataError(why)
    unread = dict(failed)
    rest = [item for item in found.skipped if item[0] not in unread]
    if has_samples and opening.recorded and not opening.recorded.has_devices:
        # What a recording on CPUs leaves is no damage.
        skipped = [(path, "has events of the host only: no rank used a GPU") for path in unread]
        return replace(found, skipped=(*skipped, *rest))
    return replace(found, failed=(*failed, *found.failed), skipped=tuple(rest))


def _counted(opening: RunInputs, ranges: Sequence[Path] = ()) -> Run | None:
    """The run of counters or kernel traces; `ranges` are traces that hold CUPTI ranges."""
    # The readers of counters take long to import.
    from chopper_core.sources.counters.files import find_counters, read_found

    found = find_counters(opening.paths, ranges)
    dispatch_runs = read_found(found, opening.paths, opening.progress)
    if not dispatch_runs:
        return None
    overrides = opening.overrides
    run = run_of_dispatches(opening.name, dispatch_runs, overrides.hardware)
    run = replace(run, skipped=(*run.skipped, *found.unread().items()))
    return _attached(_with_overrides(run, overrides), opening, None)


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


def _with_layout(run: Run, paths: Sequence[Path]) -> Run:
    for path in filter(Path.is_dir, paths):
        try:
            with reading(path):
                settings = read_settings(path)
                layout = layout_of_settings(settings)
        except DataError as error:
            return replace(run, failed=(*run.failed, (str(path), str(error))))
        run = replace(
            run,
            settings={**in_name(path.absolute().name), **settings, **run.settings},
            skipped=tuple(item for item in run.skipped if not gives_settings(Path(item[0]))),
        )
        if layout is not None:
            return replace(run, layout=layout.text)
    return run


def _scheduled(opening: RunInputs) -> Run | None:
    return _of_parts(opening, Family.SCHEDULE) or _of_parts(opening, Family.COMMUNICATION)


_OTHER_KIND: Final = "is of another recorder; open its files by themselves"


def _of_parts(opening: RunInputs, family: Family) -> Run | None:
    """The run that the files of a family make together; None without any."""
    found = opening.paths.found(family)
    read: list[RunPart]
    read, failed = found.read(f"{family.value} files", opening.progress)
    if failed and not read:
        raise DataError(failed[0][1])
    if not read:
        return None
    # Of several recorders one makes the run, whatever their files are called.
    kind = min({type(part) for part in read}, key=lambda each: each.__name__)
    own = [part for part in read if type(part) is kind]
    run = own[0].run_of(opening.name, own)
    left = tuple((str(file.path), file.reason) for file in found.skipped)
    left += tuple((str(part.path), _OTHER_KIND) for part in read if type(part) is not kind)
    return _with_overrides(replace(run, skipped=left, failed=tuple(failed)), opening.overrides)


def _sampled(opening: RunInputs) -> Run | None:
    run, paths = telemetry_run(opening), opening.paths
    run = run and with_logs(run, paths, opening.progress, opening.read_logs)
    return run and _with_overrides(_with_layout(with_slots(run, paths), paths), opening.overrides)


def _logged(opening: RunInputs) -> Run | None:
    run = logged_run(
        opening.name, opening.paths, opening.overrides, opening.progress, opening.read_logs
    )
    return run and _with_layout(_with_snapshots(run, opening), opening.paths)


def _with_snapshots(run: Run, opening: RunInputs) -> Run:
    """The run of logs with the memory snapshots next to them; a failure that both state is one."""
    try:
        other = _of_parts(opening, Family.MEMORY)
    except DataError as error:
        return replace(run, failed=(*run.failed, (opening.name, str(error))))
    if other is None:
        return run
    ranks = sorted({gpu.rank for gpu in (*run.gpus, *other.gpus)})
    place = np.array([ranks.index(gpu.rank) for gpu in other.gpus], np.int32)
    memory = other.side(MemoryEvents)
    memory = MemoryEvents.joined([replace(memory, gpu=place[memory.gpu])])
    failed = run.side(FailedAllocations).with_others(other.side(FailedAllocations))
    tables = {**run.side_tables, **side_tables(memory, failed)}
    read = {source.path for source in other.sources}
    return replace(
        run,
        gpus=tuple(Gpu(number, rank, NO_DEVICE, "") for number, rank in enumerate(ranks)),
        side_tables=tables,
        sources=other.sources,
        skipped=tuple(each for each in run.skipped if each[0] not in read),
        failed=(*run.failed, *other.failed),
    )


def _joined(name: str, read: Sequence[tuple[TraceFile, Run]], gather: GatherTables) -> Run:
    first_of, repeated = _continued(read)
    read = [each for each in read if each[0].path not in repeated]
    firsts = [each for each in read if each[0].path not in first_of]
    claims = [(file, source) for file, rank in firsts for source in rank.sources]
    assigned = assign_ranks(
        [(file, None if source.rank == NO_RANK else source.rank) for file, source in claims]
    )
    sources: dict[str, list[Source]] = {}
    rank_of: dict[tuple[str, int], int] = {}
    for assignment, (file, source) in zip(assigned, claims, strict=True):
        path, origin = str(file.path), source.rank_from or assignment.source
        rank_of[path, source.rank] = assignment.rank
        source = replace(source, path=path, rank=assignment.rank, rank_from=origin)
        sources.setdefault(path, []).append(source)
    for file, rank in read:
        path, first_path = str(file.path), str(first_of.get(file.path))
        for source, like in zip(rank.sources, sources.get(first_path, ()), strict=False):
            rank_of[path, source.rank] = like.rank
            own = replace(source, path=path, rank=like.rank, rank_from=like.rank_from)
            sources[path] = [own]
    # A merged file whose ranks have a GPU each and follow each other numbers them by rank too.
    by_number = all(
        gpu.rank - rank.gpus[0].rank == gpu.index for _, rank in read for gpu in rank.gpus
    )
    ranks: list[Run] = []
    numbers: dict[int, int] = {}
    """The first GPU of each rank."""
    count = 0

    def place(pair: tuple[TraceFile, Run]) -> tuple[int, int]:
        first = sources[str(pair[0].path)][0]
        return first.rank, first.span_ns[0]

    for file, rank in sorted(read, key=place):
        path = str(file.path)
        number = sources[path][0].rank
        is_first = number not in numbers
        first = numbers.setdefault(number, number if by_number else count)
        gpus = tuple(
            replace(gpu, index=first + gpu.index, rank=rank_of[path, gpu.rank]) for gpu in rank.gpus
        )
        ranks.append(with_gpu_numbers(rank, gpus, tuple(sources[path])))
        count += len(gpus) if is_first else 0
    failed = tuple((str(path), why) for path, why in repeated.items())
    base = Run(name, empty_table(), (), (), failed=failed)
    return joined_ranks(base, ranks, gather(ranks))


def _with_shared_gpus(run: Run) -> Run:
    """The run with a note on each rank that runs on the GPU of another rank of its host.

    A process that sees one GPU numbers it 0: that several do on a host says nothing.
    """
    host_of = {source.rank: source.host for source in run.sources}
    ranks: dict[tuple[str, int], dict[int, None]] = {}
    devices: defaultdict[str, set[int]] = defaultdict(set)
    for gpu in run.gpus:
        if host := host_of.get(gpu.rank):
            devices[host].add(gpu.device)
            ranks.setdefault((host, gpu.device), {})[gpu.rank] = None
    shared: dict[int, str] = {}
    for (host, device), own in ranks.items():
        if len(own) > 1 and (device > 0 or len(devices[host]) > 1):
            listed = ", ".join(map(str, own))
            note = f"Ranks {listed} share device {device} of {host}: their work takes turns."
            shared |= dict.fromkeys(own, note)
    sources = (
        replace(each, notes=(*each.notes, shared[each.rank])) if each.rank in shared else each
        for each in run.sources
    )
    return replace(run, sources=tuple(sources)) if shared else run


def _continued(
    read: Sequence[tuple[TraceFile, Run]],
) -> tuple[dict[Path, Path], dict[Path, str]]:
    """The first window of the rank of each trace that is a later one; why others aren't.

    Windows are on a clock that they share, have the same devices, other times and other iterations.
    Of one process's files those that aren't are left out.
    """
    ranks: dict[Hashable, list[tuple[Source, Path]]] = {}
    for file, run in read:
        source = run.sources[0]
        rank = file.rank_hint if source.rank == NO_RANK else source.rank
        key = process_in_name(file.path.name) or rank
        if key is not None and len(run.sources) == 1 and source.clock.startswith(ClockDomain.EPOCH):
            devices = tuple(gpu.device for gpu in run.gpus)
            ranks.setdefault((key, devices), []).append((source, file.path))
    found: dict[Path, Path] = {}
    repeated: dict[Path, str] = {}
    for windows in ranks.values():
        windows.sort(key=lambda each: each[0].span_ns)
        (last, first), *others = windows
        for source, path in others:
            if _follows(last, source):
                found[path], last = first, source
            elif process_in_name(path.name):
                why = "repeats steps or times of another window of its process; open it alone"
                repeated[path] = f"{path} {why}."
    return found, repeated


def _follows(before: Source, after: Source) -> bool:
    one, other = before.iterations, after.iterations
    is_later = one is None or other is None or one[1] < other[0]
    return is_later and before.span_ns[1] <= after.span_ns[0]


def on_one_clock(run: Run, overrides: Overrides) -> Run:
    """Move the times of all ranks to the clock of the first rank's host.

    Then the collectives that one GPU's trace doesn't name are named like their partners.
    """
    shifts = {source.rank: overrides.shift_ns(*source.called) for source in run.sources}
    by_hand = {rank: shift_ns for rank, shift_ns in shifts.items() if shift_ns is not None}
    table = run.table
    common = (ONE_CLOCK, *TIMES_NOTES)
    is_common = all(source.clock.startswith(common) for source in run.sources)
    clocks = host_clocks(
        table,
        {gpu.index: gpu.rank for gpu in run.gpus},
        {source.rank: ONE_CLOCK if is_common else source.host for source in run.sources},
        by_hand,
    )
    correction_of = {rank: clock.correction_ns for clock in clocks for rank in clock.ranks}
    moved = np.zeros(int(table.gpu.max()) + 1, np.int64)
    moved[[gpu.index for gpu in run.gpus]] = [correction_of[gpu.rank] for gpu in run.gpus]
    if moved.any():
        by = moved[table.gpu]
        launch_ns = np.where(table.launch_ns == NO_TIME, NO_TIME, table.launch_ns + by)
        table = replace(table, start_ns=table.start_ns + by, launch_ns=launch_ns)
        side = {kind: each.moved(moved) for kind, each in run.side_tables.items()}
        by_rank = {gpu.rank: int(moved[gpu.index]) for gpu in run.gpus}
        sources = (
            replace(each, span_ns=tuple(edge + by_rank.get(each.rank, 0) for edge in each.span_ns))
            for each in run.sources
        )
        run = replace(run, side_tables=side, sources=tuple(sources))
    return replace(run, table=labelled_by_partners(table), hosts=tuple(clocks))


def _attached(run: Run, opening: RunInputs, ranges: Sequence[Path] | None) -> Run:
    """The run with the counters and telemetry at the paths, and the parts of its time.

    `ranges` are traces that hold CUPTI ranges; None leaves out counters, of which the run is made.

    A source that can't be used is named in `Run.failed`; the run stays as it is without it.
    """
    traces = {source.path for source in run.sources}
    rest = (path for path in opening.paths if path.is_dir() or str(path) not in traces)
    paths = ListedPaths(rest)
    paths = opening.paths if paths == opening.paths else paths
    has_own = any(source.events.get(COUNTER_CATEGORY) for source in run.sources)
    if paths or has_own or any(Path(each).suffix in SAMPLED for each in traces):
        run = attach_sources(run, replace(opening, paths=paths), ranges)
    figures = sampled_figures(run.measured, run.hardware)
    run = replace(run, measured={**run.measured, **figures}) if figures else run
    table = run.table.without_measured(*PASSING)
    return replace(run, table=table.with_measured(breakdown_columns(table, run.hardware)))


def _with_overrides(run: Run, overrides: Overrides) -> Run:
    numbers = {gpu.index for gpu in run.gpus}
    for part, device, gpu in overrides.gpus:
        if gpu is not None and gpu not in numbers:
            there = ", ".join(map(str, sorted(numbers)))
            raise UsageError(
                f"--gpu '{part}:{device}={gpu}': the run has no GPU {gpu}; it has {there}"
            )
    if is_file(overrides.hardware):
        specified = hardware_in(overrides.hardware, run.gpus[0].hardware)
        return replace(run, overrides=overrides, described_hardware=specified)
    if overrides.hardware and hardware_of(overrides.hardware) is None:
        raise UsageError(
            f"--hardware {overrides.hardware!r} is an unknown GPU; known models: "
            f"{', '.join(specifications())}; a file of specifications ending in .toml, and "
            f"{own_file()}, can add others"
        )
    return replace(run, overrides=overrides)


def _check_overrides(run: Run) -> Run:
    """Return the run; raises UsageError if an override matches none of its sources."""
    sampled = (*run.telemetry, *run.cpu)
    timed = [(Path(source.path).name, source.format) for source in sampled]
    traces = [source.called for source in run.sources]
    for part, _ in run.overrides.clocks:
        if not any(is_meant(part, names) for names in (*timed, *traces)):
            there = ", ".join(f"{name} ({kind})" for name, kind in timed) or "none"
            raise UsageError(
                f"--clock {part!r} matches no telemetry, trace or host of this run; "
                f"its telemetry: {there}"
            )
    for part, device, _ in run.overrides.gpus:
        option = f"--gpu '{part}:{device}'"
        meant = [i for i in run.identities if is_meant(part, (i.format, _names(i.source)))]
        if not meant:
            devices = dict.fromkeys(f"{_names(i.source)} ({i.format})" for i in run.identities)
            raise UsageError(
                f"{option} matches no counters or telemetry of this run; it has "
                f"{', '.join(devices) or 'none'}"
            )
        if not any(device.casefold() in identity.names for identity in meant):
            there = ", ".join(identity.device for identity in meant)
            raise UsageError(
                f"{option} matches no device of {_names(meant[0].source)}; it has {there}"
            )
    return run


def _names(paths: str) -> str:
    return ", ".join(Path(path).name for path in paths.split(", "))
