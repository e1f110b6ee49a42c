"""What each run gets in the end: other sources, its layout, and what is given by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from chopper_core.align.breakdown import breakdown_columns
from chopper_core.columns.counters import sampled_figures
from chopper_core.ingest.attach import attach_sources
from chopper_core.ingest.untraced import RunInputs
from chopper_core.model.column_names import PASSING
from chopper_core.model.hardware import hardware_in, hardware_of, is_file, own_file, specifications
from chopper_core.model.overrides import Overrides, is_meant
from chopper_core.model.parallel import layout_of_settings
from chopper_core.model.run import Run
from chopper_core.model.settings import in_name
from chopper_core.sources.kineto.events import COUNTER_CATEGORY
from chopper_core.sources.registry import (
    ListedPaths,
)
from chopper_core.sources.settings import gives_settings, read_settings
from chopper_core.sources.telemetry.databases import SUFFIXES as SAMPLED
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.memory import reading


def with_layout(run: Run, paths: Sequence[Path]) -> Run:
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


def with_sources(run: Run, opening: RunInputs, ranges: Sequence[Path] | None) -> Run:
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


def with_overrides(run: Run, overrides: Overrides) -> Run:
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


def check_overrides(run: Run) -> Run:
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
