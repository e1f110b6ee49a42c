"""Runs of telemetry without a trace, and GPUs that only telemetry has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.identity import gpus_of_telemetry
from chopper_core.align.node_cpu import cpu_of_nodes
from chopper_core.align.sensors import all_believed
from chopper_core.align.telemetry import interval_table, signals, summaries
from chopper_core.align.telemetry_clock import placed_at
from chopper_core.ingest.logs import ReadLogs, read_logs
from chopper_core.ingest.recorded import RecordedRun
from chopper_core.model.inputs import NO_DEVICE, Gpu, Identity, TelemetrySource
from chopper_core.model.overrides import Overrides
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.signals import FEWEST_SAMPLES, SampleSummary
from chopper_core.sources.registry import Failures, Family, FoundFiles, ListedPaths
from chopper_core.sources.signals import ClockDomain, SignalName, SignalSamples, Telemetry
from chopper_core.sources.telemetry.cells import SECOND_NS
from chopper_core.sources.telemetry.charllm import metric_of_file
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress

_NUMBERED: Final = "its samples have no timestamps, so they are numbered: one a second"
_WHY_KNOWN: Final = "the run has no trace: its clock is that of the samples"
_STOPPED: Final = "OOM or stopped"


ReadSamples = Callable[[FoundFiles, Run | None, Progress], tuple[list[Telemetry], Failures]]
"""Reads files of telemetry next to a run's traces, and says why others can't be read."""


def read_files(
    found: FoundFiles, _run: Run | None, progress: Progress
) -> tuple[list[Telemetry], Failures]:
    """Read all of each file."""
    return found.read("telemetry", progress)


class RunInputs(Struct, frozen=True):
    """What a run is opened with."""

    name: str
    paths: ListedPaths
    progress: Progress
    overrides: Overrides
    recorded: RecordedRun | None
    read_samples: ReadSamples
    read_logs: ReadLogs = read_logs

    def telemetry(self, found: FoundFiles, run: Run | None) -> tuple[list[Telemetry], Failures]:
        """Read the telemetry of some files, without readings that can't be."""
        read, failed = self.read_samples(found, run, self.progress)
        product = run.gpus[0].hardware if run is not None and run.gpus else ""
        return all_believed(read, self.overrides.hardware or product), failed


def telemetry_run(opening: RunInputs) -> Run | None:
    """The run of the telemetry at its paths, without any trace; None without any telemetry.

    Its time is that of the samples, on the clock that most files share. Files of another clock are
    named in `Run.failed`, and so is what can't be read. Raises DataError if no file can be read.
    """
    found, overrides = opening.paths.found(Family.TELEMETRY), opening.overrides
    if not found.files and not _stopped_files(found):
        return None
    read, failed = opening.telemetry(found, None)
    if not read and not _stopped_files(found):
        raise DataError(failed[0][1] if failed else "the telemetry has no samples")
    timed = [each for each in read if each.resolution_ns]
    is_timed = bool(timed) or not read
    if not is_timed:
        # Samples of equal distance: means are right, times and energy aren't known.
        timed = read = [_numbered(each) for each in read]
    clock = Counter(each.clock for each in timed).most_common(1)[0][0] if timed else None
    gpus = _gpus_of(timed, found)
    sources, identities = [], []
    for each in read:
        matched, own = identified(each, gpus, overrides)
        gpus = with_models(gpus, each, own)
        identities += matched
        shift_ns = overrides.shift_ns(each.path.name, each.format) or 0
        source = _source(each, own, clock, shift_ns)
        sources.append(source if is_timed else replace(source, offset_ns=0, method=_NUMBERED))
    placed = list(zip(read, sources, strict=True))
    twice = measured_twice(placed)
    failed += [(str(path), reason) for path, reason in twice.items()]
    placed = [(each, source) for each, source in placed if each.path not in twice]
    figures, of_nodes = summaries(placed)
    figures = {
        name: {gpu: replace(each, is_timed=is_timed) for gpu, each in own.items()}
        for name, own in figures.items()
    }
    spans = [each for by_gpu in figures.values() for each in by_gpu.values()]
    first_ns = min((each.first_ns for each in spans), default=0)
    measured = signals(placed, (first_ns, max((each.last_ns for each in spans), default=0)))
    return Run(
        name=opening.name,
        table=interval_table(placed, measured),
        gpus=gpus,
        sources=(),
        skipped=tuple(found.unread().items()),
        failed=tuple(failed),
        telemetry=tuple(source for _, source in placed),
        identities=tuple(identities),
        measured=measured,
        sampled=figures,
        of_nodes=of_nodes,
        cpu=cpu_of_nodes(placed),
        status=status_of(gpus, figures.get(SignalName.POWER_W, {}), found, read),
        overrides=overrides,
    )


def measured_twice(files: Sequence[tuple[Telemetry, TelemetrySource]]) -> dict[Path, str]:
    """Return the files of one tool that give one signal of one GPU at the same time, and why.

    Files of several tools don't contradict each other; the one with finer stamps is used.
    """
    spans: dict[tuple[Any, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for at, (telemetry, source) in enumerate(files):
        for (number, signal), samples in telemetry.signals.items():
            for each in samples if number in source.gpus else ():
                if len(each):
                    key = (telemetry.format, source.gpus[number], signal, each.part)
                    spans[key].append((int(each.time_ns[0]), int(each.time_ns[-1]), at))
    found: dict[Path, str] = {}
    for (_, gpu, signal, _), of_signal in spans.items():
        end, last = min(of_signal)[0] - 1, -1
        for begin, this_end, this in sorted(of_signal):
            if begin <= end:
                one, other = (files[at][0].path for at in sorted((last, this)))
                reason = (
                    f"{one} and {other} both give {signal} of GPU {gpu} at the same time; keep one "
                    "of them in the run."
                )
                for path in (one, other):
                    found.setdefault(path, reason)
            if this_end > end:
                end, last = this_end, this
    return found


def _numbered(telemetry: Telemetry) -> Telemetry:
    def timed(samples: SignalSamples) -> SignalSamples:
        begin_ns = None if samples.begin_ns is None else samples.begin_ns * SECOND_NS
        return replace(samples, time_ns=samples.time_ns * SECOND_NS, begin_ns=begin_ns)

    signals = {key: [*map(timed, parts)] for key, parts in telemetry.signals.items()}
    return replace(telemetry, signals=signals)


def _gpus_of(read: Sequence[Telemetry], found: FoundFiles) -> tuple[Gpu, ...]:
    names = {name for each in read for name in each.gpus}
    places = sorted({name.pci for name in names if name.pci})
    numbers = {name.index for name in names if name.index >= 0}
    if any(each.by_rank for each in read) or not read:
        numbers = {name.index for each in read if not each.is_of_node for name in each.gpus}
        numbers |= {rank for _, rank in _stopped_files(found)}
    elif not numbers and places:
        return tuple(Gpu(n, n, NO_DEVICE, "", pci=place) for n, place in enumerate(places))
    elif not numbers:
        numbers = set(range(max(len(each.gpus) for each in read)))
    return tuple(Gpu(number, number, NO_DEVICE, "") for number in sorted(numbers))


def with_models(
    gpus: Sequence[Gpu], telemetry: Telemetry, own: Mapping[int, int]
) -> tuple[Gpu, ...]:
    """The GPUs with the products that telemetry names, where nothing else did."""
    models = {gpu: telemetry.gpus[number].model for number, gpu in own.items()}
    return tuple(
        gpu if gpu.hardware else replace(gpu, hardware=models.get(gpu.index, "")) for gpu in gpus
    )


def _source(
    telemetry: Telemetry, gpus: dict[int, int], clock: ClockDomain | None, shift_ns: int
) -> TelemetrySource:
    offset_ns: int | None = shift_ns
    method = _WHY_KNOWN
    if not telemetry.resolution_ns:
        offset_ns, method = None, "its samples have no timestamps"
    elif telemetry.clock != clock and not shift_ns:
        offset_ns, method = None, f"its clock is not that of the other files, {clock}"
    return placed_at(telemetry, {} if telemetry.is_of_node else gpus, offset_ns, method)


def identified(
    telemetry: Telemetry, gpus: Sequence[Gpu], overrides: Overrides
) -> tuple[list[Identity], dict[int, int]]:
    """The devices of a telemetry file, and their GPUs by number in the file.

    A device of a file that names ranks is that of the rank.
    """
    by_hand = overrides.devices(telemetry.path.name, telemetry.format)
    known = [replace(gpu, index=gpu.rank) for gpu in gpus] if telemetry.by_rank else gpus
    index_of = {own.index: gpu.index for own, gpu in zip(known, gpus, strict=True)}
    path, kind = str(telemetry.path), telemetry.format
    found = []
    matches = zip(telemetry.gpus, gpus_of_telemetry(telemetry.gpus, known, by_hand), strict=True)
    for device, who in matches:
        gpu = None if who.gpu is None else index_of[who.gpu]
        found.append(Identity(path, kind, device.names, device.text, gpu, who.by))
    return found, {n: each.gpu for n, each in enumerate(found) if each.gpu is not None}


def with_ranks(run: Run, read: Iterable[Telemetry]) -> Run:
    """The run with a GPU for each rank that only telemetry has, which names it by rank."""
    ranks = {
        name.index for each in read if each.by_rank and not each.is_of_node for name in each.gpus
    }
    missing = sorted(ranks - {gpu.rank for gpu in run.gpus})
    if not missing:
        return run
    by_rank = all(gpu.index == gpu.rank for gpu in run.gpus)
    after = max((gpu.index for gpu in run.gpus), default=-1) + 1
    more = [
        Gpu(rank if by_rank else after + place, rank, NO_DEVICE, "")
        for place, rank in enumerate(missing)
    ]
    return replace(run, gpus=tuple(sorted((*run.gpus, *more), key=lambda gpu: gpu.index)))


def status_of(
    gpus: Sequence[Gpu],
    power: Mapping[int, SampleSummary],
    found: FoundFiles,
    read: Sequence[Telemetry],
) -> str:
    """Why a monitored run is incomplete: files without samples, or with too few; '' if it isn't.

    The monitor writes its files when the process ends: an empty one means that it was killed.
    """
    empty = {rank for _, rank in _stopped_files(found)}
    if empty:
        has = "has" if len(empty) == 1 else "have"
        files = f"{len(empty)} of {len(gpus)} ranks {has}" if len(gpus) > 1 else "the rank has"
        return f"{_STOPPED}: {files} empty files"
    if not power or not any(each.by_rank for each in read):
        return ""
    rank_of = {gpu.index: gpu.rank for gpu in gpus}
    short = [
        (each.samples, rank_of[gpu])
        for gpu, each in power.items()
        if gpu in rank_of and (each.samples < FEWEST_SAMPLES or each.span_ns <= 0)
    ]
    if short:
        samples, rank = min(short)
        few = f"{count(samples, 'sample')} of power of rank {rank}"
        return f"{_STOPPED}: {few}, fewer than {FEWEST_SAMPLES}"
    is_dark = all(each.area <= 0 for each in power.values())
    return f"{_STOPPED}: no GPU draws any power" if is_dark else ""


def _stopped_files(found: FoundFiles) -> list[tuple[Path, int]]:
    """Empty files that are named as a monitor's of GPUs are, and their ranks."""
    empty = [(file.path, metric_of_file(file.path)) for file in found.skipped if file.is_damaged]
    return [
        (path, series.rank)
        for path, series in empty
        if series is not None and not series.is_of_node
        if path.is_file() and not path.stat().st_size
    ]
