"""Find the files of counters below directories, and read them as runs.

What belongs together is told by where files lie and what they hold: files of one prefix are one
process; processes of one `pass_N` or `pmc_N`, or with the same counters on other GPUs, are one
pass; passes in one tree, by one tool, are one run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.sources.counters.device_samples import read_sampled
from chopper_core.sources.counters.kinds import CounterKind, kind_of
from chopper_core.sources.counters.passes import ProcessRun, joined_runs
from chopper_core.sources.counters.pmc_csv import read_pmc_csv
from chopper_core.sources.counters.rocpd import read_rocpd
from chopper_core.sources.counters.rocprofv3_csv import CsvProcess, read_process
from chopper_core.sources.counters.rocprofv3_json import read_json
from chopper_core.sources.discover import rank_in_name
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import files_at
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

_PASS_FOLDER: Final = re.compile(r"(?:pass|pmc)[_-]?(\d+)", re.IGNORECASE)
_PART_FOLDER: Final = re.compile(
    r"(?:rank|gpu|device|node|worker|process|pid|proc)[_-]?\d+|\d+|out", re.IGNORECASE
)
_PROCESS_FILE: Final = re.compile(r"\d+_\w+")
_DOMAIN: Final = re.compile(
    r"[_-]?(?:counter_collection|kernel_trace|agent_info|results|\w*?(?:marker|hip|hsa|rccl)\w*_trace)$"
)
_SUFFIXES: Final = re.compile(r"(?:\.(?:csv|json|db|gz))+$", re.IGNORECASE)
_FORMAT_RANK: Final = {CounterKind.ROCPD: 0, CounterKind.JSON: 1}
_COMPUTE_PART: Final = re.compile(r"pmc_perf_\d+|results_pmc_perf_\d+")
_CSV_KINDS: Final = (
    CounterKind.COUNTERS,
    CounterKind.KERNEL_TRACE,
    CounterKind.AGENT_INFO,
    CounterKind.API_TRACE,
)


class CounterFile(Struct, frozen=True):
    """A file that holds something of counters."""

    path: Path
    kind: CounterKind
    root: Path
    """The path that was given: the file itself or a directory above it."""


class UnusedFile(Struct, frozen=True):
    """A file of a profiler that can't be used."""

    path: Path
    reason: str
    """The rest of a sentence that starts with the file."""


class CounterDiscovery(Struct, frozen=True):
    """What lies at the given paths, in natural order of the names."""

    files: Sequence[CounterFile]
    skipped: Sequence[UnusedFile]
    """What is nothing of counters isn't listed."""

    def of_kind(self, *kinds: CounterKind) -> list[CounterFile]:
        """Return the files of these kinds."""
        return [file for file in self.files if file.kind in kinds]


def find_counters(paths: Sequence[Path]) -> CounterDiscovery:
    """Look for files of counters at the paths: files, or directories with everything below them.

    Raises DataError if a path doesn't exist.
    """
    files: list[CounterFile] = []
    skipped: list[UnusedFile] = []
    for root, path in files_at(paths):
        kind = kind_of(path)
        if isinstance(kind, CounterKind):
            files.append(CounterFile(path, kind, root))
        elif kind is not None:
            skipped.append(UnusedFile(path, kind))
    used: list[CounterFile] = []
    for file in files:
        reason = _why_read_already(file, files)
        if reason is None:
            used.append(file)
        else:
            skipped.append(UnusedFile(file.path, reason))
    return CounterDiscovery(used, skipped)


def read_counters(paths: Sequence[Path], progress: Progress = silent) -> list[DispatchRun]:
    """Read every run of counters, or kernel trace, at the paths, with its passes joined.

    A file that can't be used is said in the losses of the first run; it is an error only if it was
    named itself, or nothing else is there. [] if there is nothing of counters.
    """
    return read_found(find_counters(paths), paths, progress)


def read_found(
    found: CounterDiscovery, paths: Sequence[Path], progress: Progress = silent
) -> list[DispatchRun]:
    """Read what `find_counters` found at the paths.

    Raises DataError as `read_counters` does.
    """
    problems: list[str] = []
    for skipped in found.skipped:
        if skipped.path in paths:
            raise DataError(f"{skipped.path} {skipped.reason}.")
        problems.append(f"{skipped.path} {skipped.reason}.")
    processes: list[ProcessRun] = []
    for unit in _units(found):
        try:
            processes += [
                ProcessRun(run, unit.folder, unit.host, unit.pass_number)
                for run in unit.read(progress)
            ]
        except DataError as error:
            if unit.paths[0] in paths:
                raise
            problems.append(str(error))
    runs = joined_runs(processes)
    if runs and problems:
        runs[0].losses.notes += problems
    elif problems:
        raise DataError(problems[0])
    return runs


class _Unit(Struct, frozen=True):
    """Files that one reader reads at once."""

    folder: Path
    """The folder of the run: above those of passes, hosts and ranks."""
    host: str
    """The folder that rocprofv3 names after the host, or ''."""
    pass_number: int | None
    kind: CounterKind
    paths: Sequence[Path]
    process: CsvProcess = field(default_factory=CsvProcess)
    sampled: tuple[Path | None, Path | None] = (None, None)
    """Samples of counters and the kernels beside them."""

    def read(self, progress: Progress) -> list[DispatchRun]:
        if self.kind is CounterKind.JSON:
            return read_json(self.paths[0], progress)
        if self.kind is CounterKind.ROCPD:
            return read_rocpd(self.paths[0], progress)
        if self.kind is CounterKind.PMC:
            sysinfo = self.paths[1] if len(self.paths) > 1 else None
            return [read_pmc_csv(self.paths[0], sysinfo, progress)]
        if self.kind is CounterKind.DEVICE_SAMPLES:
            return [read_sampled(self.sampled[0], self.sampled[1], progress)]
        return [read_process(self.process, progress)]


def _units(found: CounterDiscovery) -> Iterator[_Unit]:
    for file in found.of_kind(CounterKind.JSON, CounterKind.ROCPD):
        yield _unit(file, file.kind, [file.path])
    sysinfos = found.of_kind(CounterKind.SYSINFO)
    for file in found.of_kind(CounterKind.PMC):
        near = _nearest(file.path, sysinfos)
        yield _unit(file, file.kind, [file.path] if near is None else [file.path, near.path])
    by_prefix: dict[tuple[Path, str], list[CounterFile]] = {}
    for file in found.of_kind(*_CSV_KINDS):
        by_prefix.setdefault((file.path.parent, _prefix(file.path)), []).append(file)
    yield from _sampled_units(found)
    agent_files = found.of_kind(CounterKind.AGENT_INFO)
    for files in by_prefix.values():
        yield from _csv_units(files, agent_files)


def _sampled_units(found: CounterDiscovery) -> Iterator[_Unit]:
    """Yield samples with the kernels of the same folder and rank."""
    kernels: dict[tuple[Path, int | None], list[CounterFile]] = {}
    for file in found.of_kind(CounterKind.DEVICE_KERNELS):
        kernels.setdefault((file.path.parent, rank_in_name(file.path.name)), []).append(file)
    for file in found.of_kind(CounterKind.DEVICE_SAMPLES):
        near = kernels.get((file.path.parent, rank_in_name(file.path.name)))
        other = near.pop(0).path if near else None
        paths = [file.path] if other is None else [file.path, other]
        unit = _unit(file, CounterKind.DEVICE_SAMPLES, paths)
        yield replace(unit, sampled=(file.path, other))
    for files in kernels.values():
        for file in files:
            unit = _unit(file, CounterKind.DEVICE_SAMPLES, [file.path])
            yield replace(unit, sampled=(None, file.path))


def _csv_units(files: Sequence[CounterFile], agent_files: Sequence[CounterFile]) -> Iterator[_Unit]:
    """Yield the process whose files these are; more than one if a kind occurs more than once."""
    counters = [file for file in files if file.kind is CounterKind.COUNTERS]
    traces = [file for file in files if file.kind is CounterKind.KERNEL_TRACE]
    apis = [file.path for file in files if file.kind is CounterKind.API_TRACE]
    agents = next((file for file in files if file.kind is CounterKind.AGENT_INFO), None)
    for index in range(max(len(counters), len(traces))):
        counter = counters[index] if index < len(counters) else None
        trace = traces[index] if index < len(traces) else None
        file = counter or trace
        if file is None:
            continue
        near = agents or _nearest(file.path, agent_files)
        process = CsvProcess(
            counters=counter.path if counter else None,
            kernel_trace=trace.path if trace else None,
            agent_info=near.path if near else None,
            api_traces=tuple(apis),
        )
        yield replace(_unit(file, CounterKind.COUNTERS, process.paths), process=process)


def _unit(file: CounterFile, kind: CounterKind, paths: Sequence[Path]) -> _Unit:
    """Read off the folders which run, host and pass a file belongs to."""
    root = file.root if file.root.is_dir() else file.path.parent
    folders = list(file.path.parent.relative_to(root).parts)
    host = ""
    if folders and _PROCESS_FILE.match(file.path.stem) and not _is_layout(folders[-1]):
        host = folders.pop()
    number = None
    for place, folder in enumerate(folders):
        match = _PASS_FOLDER.fullmatch(folder)
        if match:
            number = int(match.group(1))
            folders = folders[:place]
            break
    while folders and _is_layout(folders[-1]):
        folders.pop()
    return _Unit(root.joinpath(*folders), host, number, kind, tuple(paths))


def _is_layout(folder: str) -> bool:
    return bool(_PASS_FOLDER.fullmatch(folder) or _PART_FOLDER.fullmatch(folder))


def _prefix(path: Path) -> str:
    """Return what the files of one process have in common: the name without its domain."""
    return _DOMAIN.sub("", _SUFFIXES.sub("", path.name))


def _nearest(path: Path, files: Sequence[CounterFile]) -> CounterFile | None:
    """Return the file in the same folder, else in the nearest above, or None."""
    same = [file for file in files if file.path.parent == path.parent]
    if same:
        return same[0]
    above = [file for file in files if path.is_relative_to(file.path.parent)]
    return max(above, key=lambda file: len(file.path.parts), default=None)


def _why_read_already(file: CounterFile, files: Sequence[CounterFile]) -> str | None:
    """Return why another file holds the same, as the rest of a sentence; or None."""
    path = file.path
    for other in files:
        if file.kind is CounterKind.PMC and other.path.stem == "pmc_perf" and path != other.path:
            folder = other.path.parent
            if folder in path.parent.parents or (
                folder == path.parent and _COMPUTE_PART.fullmatch(path.stem)
            ):
                return f"is part of {other.path.name}, which is read instead"
        is_better = _FORMAT_RANK.get(other.kind, 2) < _FORMAT_RANK.get(file.kind, 2)
        is_beside = other.path.parent == path.parent and _prefix(other.path) == _prefix(path)
        if is_better and is_beside and file.kind in (*_CSV_KINDS, CounterKind.JSON):
            return f"is of the same process as {other.path.name}, which is read instead"
    return None
