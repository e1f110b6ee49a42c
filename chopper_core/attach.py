"""Attaching counters and telemetry, as far as they are there, to a run of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.align.breakdown import breakdown_columns
from chopper_core.align.cpu import placed_cpu
from chopper_core.align.identity import devices_of_telemetry, gpus_of_telemetry, with_places
from chopper_core.align.measures import counter_columns, telemetry_columns
from chopper_core.align.telemetry import KnownClock, Placement, place, tracks
from chopper_core.errors import DataError, UsageError
from chopper_core.hardware import hardware_of, hardware_of_agent, own_file, specifications
from chopper_core.measured import PASSING
from chopper_core.progress import Progress
from chopper_core.reading import Reading, is_meant
from chopper_core.run import CounterSource, Identity, Run, TelemetrySource
from chopper_core.sources.cpu import find_cpu, read_cpu
from chopper_core.sources.dispatches import CLOCK_BOOTTIME
from chopper_core.sources.signals import ClockDomain, Telemetry
from chopper_core.sources.telemetry.files import find_telemetry, read_telemetry
from chopper_core.sources.trace import Losses

_EPOCH: Final = "epoch"


def attach(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    """A run with all that counters and telemetry at the paths say of it, as `Run.reading` says.

    A source that can't be used is named in `Run.failed`; the run stays as it is without it.
    """
    beside = _beside_traces(run, paths)
    if beside:
        run = _with_counters(run, beside, progress)
    return attach_telemetry(run, paths, progress)


def attach_telemetry(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    """A run with the telemetry below the paths, and with what its time is made of."""
    run = replace(run, table=run.table.without_measured(*PASSING))
    beside = _beside_traces(run, paths)
    if beside:
        run = _with_telemetry(run, beside, progress)
        run = _with_cpu(run, beside, progress)
    columns = breakdown_columns(run.table, run.hardware)
    return replace(run, table=run.table.with_measured(columns))


def _beside_traces(run: Run, paths: Sequence[Path]) -> list[Path]:
    """Where counters and telemetry may be: directories, and files that are none of the traces."""
    traces = {source.path for source in run.sources}
    return [path for path in paths if path.is_dir() or str(path) not in traces]


def _with_counters(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    # What reads them takes pyarrow with it, which a worker that reads traces does without.
    from chopper_core.sources.counters.files import find_counters, read_found

    found = find_counters(paths)
    unused = {str(file.path): file.reason for file in found.skipped}
    others = (item for item in run.skipped if item[0] not in unused)
    run = replace(run, skipped=(*others, *unused.items()))
    if not found.files:
        return run
    progress("read counters", 0, 1)
    try:
        dispatch_runs = read_found(found, [path for path in paths if path.is_dir()], progress)
    except DataError as error:
        return replace(run, failed=(*run.failed, (str(found.files[0].path), str(error))))
    progress("match counters with the trace", 0, 1)
    columns, matches, identities = counter_columns(run.table, run.gpus, dispatch_runs, run.reading)
    used = {str(file.path) for file in found.files}
    sources = tuple(
        CounterSource(
            gpu=match.gpu,
            paths=tuple(str(path) for path in match.run.paths),
            format=match.run.format,
            counters=len(match.run.dispatches.counters),
            dispatches=match.dispatches,
            matched=match.matched,
            borrowed=match.borrowed,
            ambiguous=match.ambiguous,
            unmatched=match.unmatched,
            unused_dispatches=match.unused_dispatches,
            iterations=match.windows,
            comparison=match.comparison,
            notes=(*match.run.join_notes, *match.run.losses.notes),
        )
        for match in matches
    )
    product = run.reading.hardware or run.gpus[0].hardware
    described = [hardware_of_agent(match.run.agents[match.agent], product) for match in matches]
    skipped = [item for item in run.skipped if item[0] not in used]
    agents = [agent for each in dispatch_runs for agent in each.agents]
    return replace(
        run,
        table=run.table.with_measured(columns),
        gpus=with_places(run.gpus, agents),
        described_hardware=next((spec for spec in described if spec is not None), None),
        counters=sources,
        counter_info={
            name: info
            for match in matches
            for name, info in match.run.counter_info.items()
            if name in columns
        },
        identities=(*run.identities, *identities),
        skipped=tuple(skipped),
    )


def _with_telemetry(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    files = find_telemetry(paths).files
    placed: list[tuple[Telemetry, Placement]] = []
    failed = []
    identities: list[Identity] = []
    for number, file in enumerate(files):
        progress("read telemetry", number, len(files))
        try:
            telemetry = read_telemetry(file.path)
        except DataError as error:
            failed.append((str(file.path), str(error)))
            continue
        called = (file.path.name, telemetry.format)
        devices = devices_of_telemetry(telemetry.gpus)
        found = gpus_of_telemetry(devices, run.gpus, run.reading.devices(*called))
        identities += [
            Identity(str(file.path), telemetry.format, device.names, device.text, who.gpu, who.by)
            for device, who in zip(devices, found, strict=True)
        ]
        gpus = {number: who.gpu for number, who in enumerate(found) if who.gpu is not None}
        shift_ns = run.reading.shift_ns(*called) or 0
        clocks = _known_clocks(run, telemetry, gpus)
        placed.append((telemetry, place(telemetry, run.table, gpus, clocks, shift_ns)))
    unreadable = {path for path, _ in failed}
    run = replace(
        run,
        identities=(*run.identities, *identities),
        failed=(*run.failed, *failed),
        skipped=tuple(item for item in run.skipped if item[0] not in unreadable),
    )
    if not placed:
        return run
    table = run.table
    span = (int(table.start_ns.min()), int((table.start_ns + table.duration_ns).max()))
    measured = tracks(placed, span)
    used = {str(telemetry.path) for telemetry, _ in placed}
    return replace(
        run,
        table=run.table.with_measured(telemetry_columns(run.table, measured)),
        measured=measured,
        telemetry=tuple(_source(placement, found.losses) for found, placement in placed),
        skipped=tuple(item for item in run.skipped if item[0] not in used),
    )


def _with_cpu(run: Run, paths: Sequence[Path], progress: Progress) -> Run:
    """A run with the samples of its hosts' processors."""
    files = find_cpu(paths)
    if not files or not len(run.table):
        return run
    table = run.table
    span = (int(table.start_ns.min()), int((table.start_ns + table.duration_ns).max()))
    is_epoch = all(source.clock.startswith(_EPOCH) for source in run.sources)
    found, failed = [], []
    for number, path in enumerate(files):
        progress("read samples of processors", number, len(files))
        try:
            samples = read_cpu(path)
        except DataError as error:
            failed.append((str(path), str(error)))
            continue
        corrections = {clock.correction_ns for clock in run.hosts}
        known_ns = (corrections.pop() if len(corrections) == 1 else 0) if is_epoch else None
        shift_ns = run.reading.shift_ns(path.name, samples.format) or 0
        found.append(placed_cpu(samples, span, run.telemetry, known_ns, shift_ns))
    read = {str(path) for path in files}
    return replace(
        run,
        cpu=tuple(found),
        failed=(*run.failed, *failed),
        skipped=tuple(item for item in run.skipped if item[0] not in read),
    )


def with_reading(run: Run, reading: Reading) -> Run:
    """A run whose sources are to be read so; raises UsageError where it has no such GPU."""
    numbers = {gpu.index for gpu in run.gpus}
    for part, device, gpu in reading.gpus:
        if gpu is not None and gpu not in numbers:
            there = ", ".join(map(str, sorted(numbers)))
            raise UsageError(
                f"--gpu '{part}:{device}={gpu}': the run has no GPU {gpu}; it has {there}"
            )
    if reading.hardware and hardware_of(reading.hardware) is None:
        raise UsageError(
            f"--hardware {reading.hardware!r} is no GPU that Chopper knows; it knows "
            f"{', '.join(specifications())}, and {own_file()} can add others"
        )
    return replace(run, reading=reading)


def check_reading(run: Run) -> Run:
    """The run; raises UsageError where `Run.reading` names what the run doesn't have."""
    timed = [(Path(source.path).name, source.format) for source in run.telemetry]
    timed += [(Path(source.path).name, source.format) for source in run.cpu]
    traces = [source.called for source in run.sources]
    for part, _ in run.reading.clocks:
        if not any(is_meant(part, names) for names in (*timed, *traces)):
            there = ", ".join(f"{name} ({kind})" for name, kind in timed) or "none"
            raise UsageError(
                f"--clock {part!r} names no telemetry of this run, no trace and no host; "
                f"there is {there}"
            )
    for part, device, _ in run.reading.gpus:
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


def _known_clocks(
    run: Run, telemetry: Telemetry, gpus: Mapping[int, int]
) -> dict[ClockDomain, KnownClock]:
    """The clocks of a file whose way to the run's is known."""
    if all(source.clock.startswith(_EPOCH) for source in run.sources):
        epoch_ns = _epoch_correction(run, gpus)
        whose = "the run's" if not epoch_ns else "that of its ranks' host"
        return {ClockDomain.EPOCH: KnownClock(epoch_ns, f"its clock is {whose}")}
    if not all(source.clock.startswith(CLOCK_BOOTTIME) for source in run.sources):
        return {}
    awake = "CLOCK_MONOTONIC is the run's CLOCK_BOOTTIME unless the host slept"
    known = {
        ClockDomain.BOOTTIME: KnownClock(0, "its clock is the run's"),
        ClockDomain.MONOTONIC: KnownClock(0, awake),
    }
    if telemetry.to_monotonic_ns is not None:
        by_both = KnownClock(telemetry.to_monotonic_ns, f"it has both clocks; {awake}")
        known[telemetry.clock] = by_both
    return known


def _epoch_correction(run: Run, gpus: Mapping[int, int]) -> int:
    """What stamps of the epoch need on the host of these GPUs to be on the run's clock."""
    rank_of = {gpu.index: gpu.rank for gpu in run.gpus}
    ranks = {rank_of[gpu] for gpu in gpus.values()}
    found = {clock.correction_ns for clock in run.hosts if ranks & set(clock.ranks)}
    return found.pop() if len(found) == 1 else 0


def _source(placement: Placement, losses: Losses) -> TelemetrySource:
    return TelemetrySource(
        path=str(placement.path),
        format=placement.format,
        clock=placement.clock,
        offset_ns=placement.offset_ns,
        uncertainty_ns=placement.uncertainty_ns,
        method=placement.method,
        gpus=placement.gpus,
        samples=placement.samples,
        notes=(*placement.notes, *losses.notes),
    )
