"""Attach counters, telemetry and CPU samples to a run of traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.align.counters import run_counters
from chopper_core.align.identity import with_places
from chopper_core.align.node_cpu import cpu_of_nodes
from chopper_core.align.sensors import believed, coverage, unlike_kernels, without_clocks
from chopper_core.align.telemetry import signals, summaries, telemetry_columns
from chopper_core.align.telemetry_clock import KnownClocks, place, placed_cpu, placed_together
from chopper_core.ingest.logs import with_logs, with_skipped
from chopper_core.ingest.recorded import RecordedRun
from chopper_core.ingest.untraced import (
    RunInputs,
    identified,
    measured_twice,
    status_of,
    with_models,
    with_ranks,
)
from chopper_core.model.hardware import hardware_of_agent, is_file
from chopper_core.model.inputs import Identity, TelemetrySource
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostSteps
from chopper_core.sources.cpu import CpuTable
from chopper_core.sources.dispatches import CLOCK_BOOTTIME
from chopper_core.sources.kineto.events import COUNTER_CATEGORY
from chopper_core.sources.registry import Family, discover
from chopper_core.sources.signals import ClockDomain, SignalName, Telemetry
from chopper_core.sources.telemetry import databases
from chopper_core.sources.telemetry.trace_counters import read_counters
from chopper_core.tables.text import FileHead, csv_cells
from chopper_core.util.atomic import read_small
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.memory import internal_error, is_out_of_memory, memory_error, reading
from chopper_core.util.progress import Progress


def attach_sources(run: Run, opening: RunInputs, ranges: Sequence[Path] | None) -> Run:
    """Attach counters, telemetry and CPU samples to a run; what can't be used is in `Run.failed`.

    `ranges` are traces that hold CUPTI ranges; None leaves out counters. Where memory runs out, or
    anything else goes wrong, the run opens without that source.
    """
    sources: dict[str, Callable[[Run, RunInputs], Run]] = {
        "telemetry": attach_telemetry,
        "CPU samples": attach_cpu,
        "trainer logs": attach_logs,
    }
    if ranges is not None:
        sources = {"counters": partial(attach_counters, ranges=ranges), **sources}
    for name, attach in sources.items():
        try:
            run = attach(run, opening)
        except Exception as error:
            if isinstance(error, ChopperError):
                raise
            doing = f"joining the {name} with kernels"
            short = is_out_of_memory(error)
            why = (
                memory_error(doing, error) if short else f"{doing} failed: {internal_error(error)}"
            )
            run = replace(run, failed=(*run.failed, (str(opening.paths[0]), f"{why}.")))
    return run


def attach_counters(run: Run, opening: RunInputs, ranges: Sequence[Path]) -> Run:
    # The readers of counters take long to import.
    from chopper_core.sources.counters.files import find_counters, read_found

    paths, progress = opening.paths, opening.progress
    found = find_counters(paths, ranges)
    run = with_skipped(run, found)
    if not found.files:
        return run
    progress("read counters", 0, 1)
    try:
        with reading(found.files[0].path):
            dispatch_runs = read_found(found, [path for path in paths if path.is_dir()], progress)
    except DataError as error:
        return replace(run, failed=(*run.failed, (str(found.files[0].path), str(error))))
    counters = run_counters(run.table, run.gpus, dispatch_runs, run.overrides, progress)
    used = {str(file.path) for file in found.files}
    product = run.overrides.hardware or run.gpus[0].hardware
    described = [hardware_of_agent(agent, product) for agent in counters.agents]
    if is_file(run.overrides.hardware):
        described = [run.described_hardware]
    agents = [agent for each in dispatch_runs for agent in each.agents]
    return replace(
        run,
        table=run.table.with_measured(counters.columns),
        gpus=with_places(run.gpus, agents),
        described_hardware=next((spec for spec in described if spec is not None), None),
        counters=counters.sources,
        measured={**run.measured, **counters.signals},
        counter_info=counters.info,
        identities=(*run.identities, *counters.identities),
        skipped=tuple(item for item in run.skipped if item[0] not in used),
    )


def attach_telemetry(run: Run, opening: RunInputs) -> Run:
    recorded, progress = opening.recorded, opening.progress
    # A profiler's database can have samples too.
    own = [Path(each.path) for each in run.sources if each.path.endswith(databases.SUFFIXES)]
    own = [path for path in own if databases.recognise(FileHead(path))]
    found_files = discover([*opening.paths, *own] if own else opening.paths, Family.TELEMETRY)
    run = with_skipped(run, found_files)
    read, failed = opening.telemetry(found_files, run)
    run = with_ranks(run, read)
    placed: list[tuple[Telemetry, TelemetrySource]] = []
    identities: list[Identity] = []
    for done, telemetry in enumerate(read):
        progress("match telemetry", done, len(read))
        there = recorded.gpus_of(telemetry.path, run.gpus) if recorded else run.gpus
        matched, gpus = identified(telemetry, there, run.overrides)
        run = replace(run, gpus=with_models(run.gpus, telemetry, gpus))
        identities += matched
        shift_ns = run.overrides.shift_ns(telemetry.path.name, telemetry.format) or 0
        clocks = _known_clocks(run, telemetry, gpus, recorded)
        placed.append((telemetry, place(telemetry, run.table, gpus, clocks, shift_ns)))
    placed += _counters_of_traces(run, progress)
    twice = measured_twice(placed)
    placed = [(telemetry, source) for telemetry, source in placed if telemetry.path not in twice]
    placed = placed_together(placed)
    failed += [(str(path), reason) for path, reason in twice.items()]
    unreadable = {path for path, _ in failed}
    run = replace(
        run,
        identities=(*run.identities, *identities),
        failed=(*run.failed, *failed),
        skipped=tuple(item for item in run.skipped if item[0] not in unreadable),
    )
    if not placed:
        return run
    progress("join telemetry with kernels", 0, 0)
    table, steps = run.table, run.side(HostSteps)
    spans = (table.start_ns, table.duration_ns), (steps.start_ns, steps.duration_ns)
    begin = min(int(start.min()) for start, _ in spans if len(start))
    end = max(int((start + took).max()) for start, took in spans if len(start))
    measured = signals(placed, (begin, end))
    used = {str(telemetry.path) for telemetry, _ in placed}
    figures, of_nodes = summaries(placed)
    sources = tuple(source for _, source in placed)
    left_out = {name for each in sources for doubt in each.doubts for name in doubt.signals}
    table = table.with_measured(telemetry_columns(table, measured, steps))
    lacks = [*coverage(measured, run.gpus, (begin, end), left_out)]
    if contradicted := [*unlike_kernels(table)]:
        gpus_without = sorted({gpu for doubt in contradicted for gpu in doubt.gpus})
        measured, table = without_clocks(measured, table, gpus_without)
        figures = {
            name: {gpu: each for gpu, each in own.items() if gpu not in gpus_without}
            if name.partition(".")[0] == SignalName.GFX_MHZ
            else own
            for name, own in figures.items()
        }
        lacks += contradicted
    return replace(
        run,
        sampled=figures,
        of_nodes=of_nodes,
        cpu=(*run.cpu, *cpu_of_nodes(placed)),
        status=status_of(run.gpus, figures.get(SignalName.POWER_W, {}), found_files, read),
        table=table,
        measured={**measured, **run.measured},
        telemetry=(replace(sources[0], doubts=(*sources[0].doubts, *lacks)), *sources[1:]),
        skipped=tuple(item for item in run.skipped if item[0] not in used),
    )


def _counters_of_traces(run: Run, progress: Progress) -> list[tuple[Telemetry, TelemetrySource]]:
    """The counters in traces, on their own clock, as telemetry of the devices of their ranks."""
    found = []
    for source in run.sources:
        if not source.events.get(COUNTER_CATEGORY) or ", " in source.path:
            continue
        telemetry = believed(read_counters(Path(source.path), progress))
        own = {gpu.device: gpu.index for gpu in run.gpus if gpu.rank == source.rank}
        gpus = {
            number: own[name.index]
            for number, name in enumerate(telemetry.gpus)
            if name.index in own
        }
        clocks = {
            telemetry.clock: (_epoch_correction(run, gpus), "known: its clock is the trace's")
        }
        found.append((telemetry, place(telemetry, run.table, gpus, clocks)))
    return found


def attach_cpu(run: Run, opening: RunInputs) -> Run:
    files, recorded = opening.paths.found(Family.CPU), opening.recorded
    if not files.files or not len(run.table):
        return run
    table = run.table
    span = (int(table.start_ns.min()), int((table.start_ns + table.duration_ns).max()))
    is_epoch = all(source.clock.startswith(ClockDomain.EPOCH) for source in run.sources)
    found = []
    tables: list[CpuTable]
    tables, failed = files.read("CPU samples", opening.progress)
    for samples in tables:
        node = recorded.node_of(samples.path) if recorded else None
        own = [clock for clock in run.hosts if node is not None and clock.name == node.host]
        corrections = {clock.correction_ns for clock in own or run.hosts}
        known_ns = (corrections.pop() if len(corrections) == 1 else 0) if is_epoch else None
        shift_ns = run.overrides.shift_ns(samples.path.name, samples.format) or 0
        found.append(placed_cpu(samples, span, run.telemetry, known_ns, shift_ns))
    read = {str(file.path) for file in files.files}
    return replace(
        run,
        cpu=(*found, *run.cpu),
        failed=(*run.failed, *failed),
        skipped=tuple(item for item in run.skipped if item[0] not in read),
    )


def attach_logs(run: Run, opening: RunInputs) -> Run:
    return with_logs(run, opening.paths, opening.progress, opening.read_logs)


def _known_clocks(
    run: Run, telemetry: Telemetry, gpus: Mapping[int, int], recorded: RecordedRun | None
) -> KnownClocks:
    if all(source.clock.startswith(ClockDomain.EPOCH) for source in run.sources):
        epoch_ns = _epoch_correction(run, gpus)
        corrected = "its clock is that of its ranks' host"
        why = corrected if epoch_ns else "known: its clock is the run's"
        clocks = _by_anchors(run, telemetry, ClockDomain.EPOCH, epoch_ns, recorded)
        return {**clocks, ClockDomain.EPOCH: (epoch_ns, why)}
    if not all(source.clock.startswith(CLOCK_BOOTTIME) for source in run.sources):
        return {}
    awake = "CLOCK_MONOTONIC is the run's CLOCK_BOOTTIME unless the host slept"
    known = {
        ClockDomain.BOOTTIME: (0, "known: its clock is the run's"),
        ClockDomain.MONOTONIC: (0, awake),
    }
    if telemetry.to_monotonic_ns is not None:
        known[telemetry.clock] = telemetry.to_monotonic_ns, f"it has both clocks; {awake}"
    return {**known, **_by_anchors(run, telemetry, ClockDomain.BOOTTIME, 0, recorded)}


def _by_anchors(
    run: Run,
    telemetry: Telemetry,
    to: ClockDomain,
    correction_ns: int,
    recorded: RecordedRun | None,
) -> KnownClocks:
    """The clocks of a recorded run; `correction_ns` is that of the file's host to the run's."""
    if recorded is None:
        return {}
    at_ns = int(run.table.start_ns.min()) - correction_ns
    found = recorded.offsets(telemetry.path, to, at_ns)
    return {clock: (offset + correction_ns, why) for clock, (offset, why) in found.items()}


def _epoch_correction(run: Run, gpus: Mapping[int, int]) -> int:
    ranks = {run.rank_of[gpu] for gpu in gpus.values()}
    found = {clock.correction_ns for clock in run.hosts if ranks & set(clock.ranks)}
    return found.pop() if len(found) == 1 else 0


SLOTS: Final = "slots.csv"
"""Lines `gpu,slot` under that heading: the GPU's number in its node, and a word."""
_HEADING: Final = ["gpu", "slot"]


def with_slots(run: Run, paths: Sequence[Path]) -> Run:
    """The run with the slots of `slots.csv` in its directory; `failed` names a damaged one."""
    found = next((path / SLOTS for path in paths if (path / SLOTS).is_file()), None)
    if found is None:
        return run
    run = replace(run, skipped=tuple(item for item in run.skipped if item[0] != str(found)))
    try:
        with reading(found):
            return replace(run, slots=_slots(found))
    except DataError as error:
        return replace(run, failed=(*run.failed, (str(found), str(error))))


def _slots(path: Path) -> dict[int, str]:
    try:
        text = read_small(path).decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    heading, *rows = [csv_cells(line) for line in text.splitlines() if line.strip()] or [[]]
    slots: dict[int, str] = {}
    for cells in rows if list(map(str.casefold, heading)) == _HEADING else ():
        if len(cells) != len(_HEADING) or not cells[0].isdecimal() or not cells[1]:
            raise DataError(f"{path} isn't a map of slots: each line is a GPU's number and a word.")
        slots[int(cells[0])] = cells[1]
    if not slots:
        raise DataError(f"{path} isn't a map of slots: it has no lines below the heading gpu,slot.")
    return slots
