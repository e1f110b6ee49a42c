"""Runs of other files than traces: counters, schedules, telemetry, logs, memory snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.ingest.attach import with_slots
from chopper_core.ingest.counter_run import run_of_dispatches
from chopper_core.ingest.finish import with_layout, with_overrides, with_sources
from chopper_core.ingest.logs import logged_run, with_logs
from chopper_core.ingest.recorded import (
    without_traces,
)
from chopper_core.ingest.untraced import RunInputs, telemetry_run
from chopper_core.model.inputs import (
    NO_DEVICE,
    Gpu,
)
from chopper_core.model.run import Run
from chopper_core.model.side_table import MemoryEvents, side_tables
from chopper_core.model.training import FailedAllocations
from chopper_core.sources.registry import (
    Family,
    RunPart,
)
from chopper_core.util.errors import DataError


def run_without_traces(opening: RunInputs) -> Run | None:
    """The run of paths without traces; raises DataError for a recorded one without anything."""
    if not all(path.exists() for path in opening.paths):
        return None
    run = _counted(opening) or _scheduled(opening) or _sampled(opening) or _logged(opening)
    run = run or _of_parts(opening, Family.MEMORY)
    if run is None and opening.recorded:
        raise DataError(without_traces(opening.name, opening.recorded))
    return run


def run_of_ranges(
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
    run = run_of_dispatches(opening.name, dispatch_runs, overrides)
    run = replace(run, skipped=(*run.skipped, *found.unread().items()))
    return with_sources(with_overrides(run, overrides), opening, None)


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
    return with_overrides(replace(run, skipped=left, failed=tuple(failed)), opening.overrides)


def _sampled(opening: RunInputs) -> Run | None:
    run, paths = telemetry_run(opening), opening.paths
    run = run and with_logs(run, paths, opening.progress, opening.read_logs)
    return run and with_overrides(with_layout(with_slots(run, paths), paths), opening.overrides)


def _logged(opening: RunInputs) -> Run | None:
    run = logged_run(
        opening.name, opening.paths, opening.overrides, opening.progress, opening.read_logs
    )
    return run and with_layout(_with_snapshots(run, opening), opening.paths)


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
