"""Attaching counters and telemetry, as far as they are there, to a run of traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from chopper_core.align.breakdown import breakdown_columns
from chopper_core.model.column_names import PASSING
from chopper_core.model.hardware import hardware_of, own_file, specifications
from chopper_core.model.overrides import Overrides, is_meant
from chopper_core.model.run import Run
from chopper_core.util.errors import UsageError
from chopper_core.util.progress import Progress


def attach(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    """A run with all that counters and telemetry at the paths say of it, as `Run.reading` says.

    A source that can't be used is named in `Run.failed`; the run stays as it is without it.
    """
    beside = _beside_traces(run, paths)
    if beside:
        # The readers of all formats take longer to import than a small trace takes to read.
        from chopper_core.ingest.companions import with_counters

        run = with_counters(run, beside, progress)
    return attach_telemetry(run, paths, progress)


def attach_telemetry(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    """A run with the telemetry below the paths, and with what its time is made of."""
    run = replace(run, table=run.table.without_measured(*PASSING))
    beside = _beside_traces(run, paths)
    if beside:
        from chopper_core.ingest.companions import with_cpu, with_telemetry

        run = with_telemetry(run, beside, progress)
        run = with_cpu(run, beside, progress)
    columns = breakdown_columns(run.table, run.hardware)
    return replace(run, table=run.table.with_measured(columns))


def _beside_traces(run: Run, paths: Sequence[Path]) -> list[Path]:
    """Where counters and telemetry may be: directories, and files that are none of the traces."""
    traces = {source.path for source in run.sources}
    return [path for path in paths if path.is_dir() or str(path) not in traces]


def with_overrides(run: Run, overrides: Overrides) -> Run:
    """A run whose sources are to be read so; raises UsageError where it has no such GPU."""
    numbers = {gpu.index for gpu in run.gpus}
    for part, device, gpu in overrides.gpus:
        if gpu is not None and gpu not in numbers:
            there = ", ".join(map(str, sorted(numbers)))
            raise UsageError(
                f"--gpu '{part}:{device}={gpu}': the run has no GPU {gpu}; it has {there}"
            )
    if overrides.hardware and hardware_of(overrides.hardware) is None:
        raise UsageError(
            f"--hardware {overrides.hardware!r} is no GPU that Chopper knows; it knows "
            f"{', '.join(specifications())}, and {own_file()} can add others"
        )
    return replace(run, overrides=overrides)


def check_overrides(run: Run) -> Run:
    """The run; raises UsageError where `Run.reading` names what the run doesn't have."""
    timed = [(Path(source.path).name, source.format) for source in run.telemetry]
    timed += [(Path(source.path).name, source.format) for source in run.cpu]
    traces = [source.called for source in run.sources]
    for part, _ in run.overrides.clocks:
        if not any(is_meant(part, names) for names in (*timed, *traces)):
            there = ", ".join(f"{name} ({kind})" for name, kind in timed) or "none"
            raise UsageError(
                f"--clock {part!r} names no telemetry of this run, no trace and no host; "
                f"there is {there}"
            )
    for part, device, _ in run.overrides.gpus:
        said = f"--gpu '{part}:{device}'"
        meant = [i for i in run.identities if is_meant(part, (i.format, _names(i.source)))]
        if not meant:
            there = ", ".join(
                dict.fromkeys(f"{_names(i.source)} ({i.format})" for i in run.identities)
            )
            raise UsageError(
                f"{said} names no counters or telemetry of this run; there is {there or 'none'}"
            )
        if not any(device.casefold() in identity.names for identity in meant):
            there = ", ".join(identity.device for identity in meant)
            raise UsageError(f"{said} names no device of {_names(meant[0].source)}; it has {there}")
    return run


def _names(paths: str) -> str:
    """The names of the files of a source."""
    return ", ".join(Path(path).name for path in paths.split(", "))
