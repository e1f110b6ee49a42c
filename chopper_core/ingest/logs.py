"""Trainers' logs of a run: next to its traces or telemetry, or alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.model.inputs import NO_DEVICE, Gpu
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.model.table import empty_table
from chopper_core.model.training import TrainedSteps
from chopper_core.record.manifest import is_ring
from chopper_core.sources.registry import (
    Failures,
    Family,
    FoundFiles,
    ListedPaths,
    SkippedFile,
)
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct
from chopper_core.util.progress import Progress

if TYPE_CHECKING:
    from chopper_core.sources.trainer.steps import TrainerLog

ReadLogs = Callable[[FoundFiles, Progress], "tuple[list[TrainerLog], Failures]"]
"""Reads trainers' logs, and says why others can't be read."""
_NAMES: Final = "trainer logs"
_SAME: Final = "has the steps of a recording; those of the trainer's own log are shown"


def read_logs(found: FoundFiles, progress: Progress) -> tuple[list[TrainerLog], Failures]:
    """Read all of each file."""
    return found.read(_NAMES, progress)


def with_logs(run: Run, paths: ListedPaths, progress: Progress, read: ReadLogs = read_logs) -> Run:
    """The run with the steps of the logs at its paths; what can't be read is in `Run.failed`."""
    found = _without_rings(paths.found(Family.TRAINER))
    if not found.files:
        return with_skipped(run, found)
    # Most runs have no log.
    from chopper_core.align.training import joined_logs

    logs, failed = read(found, progress)
    run = replace(run, failed=(*run.failed, *failed))
    if logs:
        tables, sources = joined_logs(logs)
        run = replace(run, side_tables={**run.side_tables, **tables}, logs=sources)
    return with_skipped(run, found, (file.path for file in found.files))


def _without_rings(found: FoundFiles) -> FoundFiles:
    """The files without what a recording has of steps that a trainer's own log has, too."""
    logs = [file for file in found.files if not is_ring(file.path)]
    if not logs or len(logs) == len(found.files):
        return found
    rings = [SkippedFile(file.path, _SAME) for file in found.files if is_ring(file.path)]
    return replace(found, files=logs, skipped=[*found.skipped, *rings])


def with_skipped(run: Run, found: FoundFiles, read: Iterable[Path] = ()) -> Run:
    """The run with why files of a family aren't read, and without those that are read."""
    unused = {str(file.path): file.reason for file in found.skipped}
    known = {*map(str, read), *unused}
    others = (item for item in run.skipped if item[0] not in known)
    return replace(run, skipped=(*others, *unused.items()))


def logged_run(
    name: str,
    paths: ListedPaths,
    overrides: Overrides,
    progress: Progress,
    read: ReadLogs = read_logs,
) -> Run | None:
    """The run of trainers' logs alone; None without any. Raises DataError if none can be read."""
    found = paths.found(Family.TRAINER)
    if not found.files:
        return None
    base = Run(
        name=name,
        table=empty_table(),
        gpus=(),
        sources=(),
        skipped=tuple(found.unread().items()),
        overrides=overrides,
    )
    run = with_logs(base, paths, progress, read)
    steps = run.side(TrainedSteps)
    if not len(steps):
        raise DataError(run.failed[0][1] if run.failed else "the logs have no steps")
    ranks = distinct(steps.rank[steps.rank >= 0]).tolist() or [0]
    gpus = tuple(Gpu(rank, rank, NO_DEVICE, "") for rank in ranks)
    return replace(run, gpus=gpus)
