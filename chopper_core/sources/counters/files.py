"""Find counter files below directories, and read them as runs.

Files are grouped by location and content: files with one prefix are one process; processes of one
`pass_N` or `pmc_N`, or with the same counters on other GPUs, are one pass; passes in one tree, by
one tool, are one run. Counters of one program may take several passes, each another execution. A
process without counters is not a pass but a kernel trace, the execution whose times are shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.counters import (
    cupti_ranges,
    device_samples,
    pmc_csv,
    rocpd,
    rocprofv3_csv,
    rocprofv3_json,
)
from chopper_core.sources.counters.joining import (
    join_passes,
    joined_dispatches,
    one_after_another,
)
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.ranks import rank_in_name
from chopper_core.sources.registry import (
    Family,
    FoundFiles,
    SkippedFile,
    SourceFile,
    SourceFormat,
    discover,
)
from chopper_core.tables.losses import ABSENT
from chopper_core.util.compression import COMPRESSED
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, grouped_by
from chopper_core.util.memory import reading
from chopper_core.util.patterns import late, natural_key
from chopper_core.util.progress import Progress, silent

_PASS_FOLDER: Final = late(r"(?:pass|pmc)[_-]?(\d+)", re.IGNORECASE)
_PART_FOLDER: Final = late(
    r"(?:rank|gpu|device|node|worker|process|pid|proc)[_-]?\d+|\d+|out", re.IGNORECASE
)
_NAMED_HOST: Final = late(r"(?:node|worker)[_-]?\d+", re.IGNORECASE)
"""Folders of parts that hosts are called as, too."""
_PROCESS_FILE: Final = late(r"\d+_\w+")
_DOMAIN: Final = late(
    r"[_-]?(?:counter_collection|kernel_trace|memory_copy_trace|agent_info|results|"
    r"(?:marker|hip|hsa|rccl)(?:_(?:api|core|runtime|compiler|amd|ext|image|finalize|control))*_trace)$"
)
_SUFFIXES: Final = late(rf"(?:\.(?:csv|json|db))*{COMPRESSED}$", re.IGNORECASE)
_COMPUTE_PART: Final = late(r"(?:results_)?pmc_perf_\d+|pmc_dispatch_info|timestamps")
"""Files that rocprof-compute joins in `pmc_perf.csv`."""
_COMPUTE_LEVEL: Final = late(r"SQC?_\w*LEVEL\w*")
"""Files of its passes that accumulate a level; the tool keeps them separate."""
SAME_PROGRAM: Final = 0.8
"""Sibling folders are passes of one program if they share this part of their kernels."""
RELATED: Final = 0.5
"""A pass belongs to a program that has this part of its dispatches, by kernel name."""

_WORDS: Final = late(r"[^\W_]+")
_BY_CHOICE: Final = (rocpd.NAME, rocprofv3_json.NAME, rocprofv3_csv.NAME)
"""Formats of rocprofv3 by preference: a process is read from the first that it has."""


def find_counters(paths: Sequence[Path], ranges: Sequence[Path] = ()) -> FoundFiles:
    """Look for counter files at the paths: files, or directories and all below them.

    `ranges` are traces that turned out to hold CUPTI ranges. Raises DataError if a path doesn't
    exist.
    """
    found = discover(paths, Family.COUNTERS)
    used: list[SourceFile] = []
    skipped = list(found.skipped)
    known = {file.path for file in found.files}
    more = [
        SourceFile(path, path, cast("SourceFormat", cupti_ranges), cupti_ranges.FORMAT, "")
        for path in ranges
        if path not in known
    ]
    for file in (*found.files, *more):
        reason = _why_read_already(file, found.files) or _why_of_no_use(file, found.files)
        if reason is None:
            used.append(file)
        else:
            skipped.append(SkippedFile(file.path, reason))
    return FoundFiles(used, skipped, [path for path in found.unknown if path not in ranges])


def read_found(
    found: FoundFiles, paths: Sequence[Path], progress: Progress = silent
) -> list[DispatchRun]:
    """Read every run of counters, or kernel trace, with its passes joined; [] without any.

    Files that can't be read are noted in the losses of the first run; they are an error only if
    they are among the paths, or if no other file is usable.
    """
    problems: list[str] = []
    for skipped in found.skipped:
        if skipped.path in paths:
            raise DataError(f"{skipped.path} {skipped.reason}.")
    processes: list[ProcessRun] = []
    for file, read in _readers(found.files):
        folder, host, pass_number = _place(file)
        try:
            with reading(file.path):
                processes += [
                    ProcessRun(run, folder, run.host or host, pass_number) for run in read(progress)
                ]
        except DataError as error:
            if file.path in paths:
                raise
            problems.append(str(error))
    runs = _joined_runs(processes)
    if runs and problems:
        runs[0].losses.notes += problems
    elif problems:
        raise DataError(problems[0])
    return runs


_Reader = tuple[SourceFile, Callable[[Progress], list[DispatchRun]]]
"""The leading file of a process, and what reads it with the others of the process."""


def _readers(files: Sequence[SourceFile]) -> Iterator[_Reader]:
    alone = (rocpd.NAME, rocprofv3_json.NAME, cupti_ranges.NAME)
    for file in (file for name in alone for file in _of(files, name)):
        yield file, file.read
    sysinfos = _of(files, pmc_csv.NAME, pmc_csv.SYSTEM)
    for file in _of(files, pmc_csv.NAME, pmc_csv.COUNTERS):
        near = _nearest(file.path, sysinfos)
        yield file, partial(pmc_csv.read, file.path, sysinfo=near)
    kernels = grouped_by(_of(files, device_samples.NAME, device_samples.KERNELS), _rank_of)
    for file in _of(files, device_samples.NAME, device_samples.SAMPLES):
        own = kernels.get(_rank_of(file))
        path = own.pop(0).path if own else None
        yield file, partial(_listed, device_samples.read_sampled, file.path, path)
    for file in (file for others in kernels.values() for file in others):
        yield file, file.read
    csv_files = _of(files, rocprofv3_csv.NAME)
    agents = _of(csv_files, rocprofv3_csv.NAME, rocprofv3_csv.AGENTS)
    for process in grouped_by(csv_files, lambda file: _process_of(file.path)).values():
        yield from _csv_readers(process, agents)


def _csv_readers(files: Sequence[SourceFile], agents: Sequence[SourceFile]) -> Iterator[_Reader]:
    csv = rocprofv3_csv
    apis, copies = (
        [file.path for file in _of(files, csv.NAME, role)] for role in (csv.API_TRACE, csv.COPIES)
    )
    own = _of(files, csv.NAME, csv.AGENTS)
    roles = (_of(files, csv.NAME, role) for role in (csv.COUNTERS, csv.KERNEL_TRACE))
    for counter, trace in zip_longest(*roles):
        file = counter or trace
        described = own[0].path if own else _nearest(file.path, agents)
        counted, traced = (each.path if each else None for each in (counter, trace))
        yield file, partial(csv.read_processes, counted, traced, described, apis, copies)


def _listed(read: Callable[..., DispatchRun], *given: Any) -> list[DispatchRun]:
    return [read(*given)]


def _of(files: Sequence[SourceFile], name: str, role: str | None = None) -> list[SourceFile]:
    return [file for file in files if name == file.source.NAME and role in (None, file.role)]


def _place(file: SourceFile) -> tuple[Path, str, int | None]:
    """Return the folder of the run, above those of passes, hosts and ranks; host; pass number."""
    root = file.root if file.root.is_dir() else file.path.parent
    folders = list(file.path.parent.relative_to(root).parts)
    host = ""
    is_host = folders and (_NAMED_HOST.fullmatch(folders[-1]) or not _is_layout(folders[-1]))
    if is_host and _PROCESS_FILE.match(file.path.stem):
        host = folders.pop()
    number = None
    for place, folder in enumerate(folders):
        if match := _PASS_FOLDER.fullmatch(folder):
            number, folders = int(match.group(1)), folders[:place]
            break
    while folders and _is_layout(folders[-1]):
        folders.pop()
    return root.joinpath(*folders), host, number


def _is_layout(folder: str) -> bool:
    return bool(_PASS_FOLDER.fullmatch(folder) or _PART_FOLDER.fullmatch(folder))


def _process_of(path: Path) -> tuple[Path, str]:
    """The folder and the name without its domain, which files of one process have in common."""
    return path.parent, _DOMAIN.sub("", _SUFFIXES.sub("", path.name))


def _rank_of(file: SourceFile) -> tuple[Path, int | None]:
    return file.path.parent, rank_in_name(file.path.name)


def _nearest(path: Path, files: Sequence[SourceFile]) -> Path | None:
    above = [file.path for file in files if path.is_relative_to(file.path.parent)]
    return max(above, key=lambda other: len(other.parts), default=None)


def _why_read_already(file: SourceFile, files: Sequence[SourceFile]) -> str | None:
    """Return why another file replaces this one, as the rest of a sentence; or None."""
    path, name = file.path, file.source.NAME
    better = _BY_CHOICE[: _BY_CHOICE.index(name)] if name in _BY_CHOICE else ()
    for other in files:
        in_folder = other.path.parent == path.parent
        if name == pmc_csv.NAME and other.path.stem == "pmc_perf" and path != other.path:
            is_part = in_folder and _COMPUTE_PART.fullmatch(path.stem)
            if is_part or other.path.parent in path.parent.parents:
                return f"is part of {other.path.name}, which is read instead"
            if in_folder and _COMPUTE_LEVEL.fullmatch(path.stem):
                return (
                    f"is a pass that accumulates a level, not part of {other.path.name}; open it "
                    "alone to see it"
                )
        if other.source.NAME in better and _process_of(other.path) == _process_of(path):
            return f"belongs to the same process as {other.path.name}, which is read instead"
    return None


def _why_of_no_use(file: SourceFile, files: Sequence[SourceFile]) -> str | None:
    """Why copies, an API trace or agent description are of no use here; None if they are."""
    path, csv = file.path, rocprofv3_csv
    of_others = (csv.API_TRACE, csv.COPIES, csv.AGENTS)
    if file.source.NAME != csv.NAME or file.role not in of_others:
        return None
    dispatches = [*_of(files, csv.NAME, csv.COUNTERS), *_of(files, csv.NAME, csv.KERNEL_TRACE)]
    if file.role == csv.AGENTS:
        is_used = any(other.path.is_relative_to(path.parent) for other in dispatches)
        return None if is_used else "describes GPUs, but no dispatches of theirs are here"
    own = _process_of(path)
    if not any(_process_of(other.path) == own for other in dispatches):
        what = "copies" if file.role == csv.COPIES else "API calls"
        return f"has {what} of a process whose kernels aren't here"
    if file.role == csv.COPIES or csv.host_side([path]):
        return None
    return "has API calls that are neither HIP's nor roctx ranges"


class ProcessRun(Struct, frozen=True):
    """The dispatches of one process, with its place in the folders."""

    run: DispatchRun
    folder: Path
    """The folder of the run."""
    host: str
    """The host that the file names, else the folder named after it by rocprofv3, or ''."""
    pass_number: int | None


def _joined_runs(processes: Sequence[ProcessRun]) -> list[DispatchRun]:
    ordered = sorted(processes, key=lambda process: natural_key(process.run.paths[0]))
    folders = grouped_by(ordered, lambda process: (process.folder, process.run.format))
    groups: dict[tuple[Path, str, str], list[ProcessRun]] = {}
    for (folder, tool), group in folders.items():
        by_host = _hosts_ran_together(group)
        for process in group:
            groups.setdefault((folder, tool, process.host if by_host else ""), []).append(process)
    return [
        replace(
            one_after_another([join_passes(program) for program in _programs(group)]),
            host=host,
            folder=folder,
        )
        for folder, host, group in _side_by_side(groups)
    ]


def _hosts_ran_together(group: Sequence[ProcessRun]) -> bool:
    """Return whether several hosts took part in one pass, so that their GPUs differ."""
    passes = [
        (process.pass_number, frozenset(process.run.dispatches.counters)) for process in group
    ]
    hosts = {(one, process.host) for one, process in zip(passes, group, strict=True)}
    return len(hosts) > len(set(passes))


def _side_by_side(
    groups: dict[tuple[Path, str, str], list[ProcessRun]],
) -> list[tuple[Path, str, list[ProcessRun]]]:
    """Merge sibling folders that measured different counters of one program; with the folder of
    each and the host, if several took part."""
    merged: list[tuple[tuple[Path, str, str], Path, list[ProcessRun]]] = []
    for (folder, tool, host), group in groups.items():
        key = (folder.parent, tool, host)
        near = (others for other_key, _, others in merged if other_key == key)
        same = next((others for others in near if _is_same_program(others, group)), None)
        if same is None:
            merged.append((key, folder, list(group)))
        else:
            same += group
    return [(folder, host, group) for (_, _, host), folder, group in merged]


def _is_same_program(ones: Sequence[ProcessRun], others: Sequence[ProcessRun]) -> bool:
    counters, more_counters = (
        {name for process in group for name in process.run.dispatches.counters}
        for group in (ones, others)
    )
    if counters & more_counters or not (counters or more_counters):
        return False
    kernels, more_kernels = _kernels(ones), _kernels(others)
    return len(kernels & more_kernels) >= SAME_PROGRAM * len(kernels | more_kernels) > 0


def _programs(group: Sequence[ProcessRun]) -> list[list[DispatchRun]]:
    """Sort processes into programs: the kernel trace, if any, and the passes of each."""
    traces = [process for process in group if not process.run.dispatches.counters]
    counted = [process for process in group if process.run.dispatches.counters]
    programs = [[joined_dispatches(trace)] for trace in _passes(traces)]
    for one_pass in map(joined_dispatches, _passes(counted)):
        own = _program_of(one_pass, programs)
        if own is None:
            programs.append([one_pass])
        else:
            own.append(one_pass)
    return programs


def _program_of(
    one_pass: DispatchRun, programs: list[list[DispatchRun]]
) -> list[DispatchRun] | None:
    """Return the program that a pass belongs to: by its kernels, then by the words of its path.

    A pass that repeats counters belongs to the same program only if it has about the same kernels.
    """
    found, best = None, (0, 0.0)
    for program in programs:
        shared = _shared_kernels(one_pass, program[0])
        counters = {name for run in program for name in run.dispatches.counters}
        repeats = bool(counters & one_pass.dispatches.counters.keys())
        if shared < (SAME_PROGRAM if repeats else RELATED):
            continue
        likeness = (_shared_words(one_pass, program[0]), shared)
        if likeness > best:
            found, best = program, likeness
    return found


def _shared_kernels(one_pass: DispatchRun, program: DispatchRun) -> float:
    """Return the part of the dispatches of a pass that the program has too, by kernel name."""
    own, there = (
        Counter(run.names[code] for code in run.dispatches.name.tolist())
        for run in (one_pass, program)
    )
    return (own & there).total() / max(1, own.total())


def _shared_words(one_pass: DispatchRun, program: DispatchRun) -> int:
    """Return how many words the paths of two runs have in common from the start."""
    words = zip(*(_WORDS.findall(str(run.paths[0])) for run in (one_pass, program)), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], words)))


def _passes(group: Sequence[ProcessRun]) -> list[list[DispatchRun]]:
    """Sort processes into passes: by the number of their folder, else by their counters.

    Without numbers, processes are one pass if they measured the same counters on other GPUs, or at
    the same time.
    """
    numbered: dict[int, list[DispatchRun]] = {}
    found: list[list[DispatchRun]] = []
    for process in group:
        if process.pass_number is not None:
            numbered.setdefault(process.pass_number, []).append(process.run)
            continue
        own = next((one for one in found if _belongs_to(process.run, one)), None)
        if own is None:
            found.append([process.run])
        else:
            own.append(process.run)
    return found + [numbered[number] for number in sorted(numbered)]


def _belongs_to(run: DispatchRun, one_pass: Sequence[DispatchRun]) -> bool:
    if run.dispatches.counters.keys() != one_pass[0].dispatches.counters.keys():
        return False
    gpus = set().union(*map(_gpus, one_pass))
    return not gpus & _gpus(run) or any(_overlap(run, other) for other in one_pass)


def _overlap(one: DispatchRun, other: DispatchRun) -> bool:
    spans = []
    for rows in (one.dispatches, other.dispatches):
        known = rows.start_ns >= 0
        if not known.any():
            return False
        spans.append((rows.start_ns[known].min(), rows.end_ns[known].max()))
    return bool(max(spans[0][0], spans[1][0]) < min(spans[0][1], spans[1][1]))


def _gpus(run: DispatchRun) -> set[tuple[int, int]]:
    used = [run.agents[number] for number in distinct(run.dispatches.gpu).tolist()]
    return {
        (agent.node_id, ABSENT) if agent.node_id >= 0 else (ABSENT, agent.type_index)
        for agent in used
    }


def _kernels(processes: Sequence[ProcessRun]) -> set[str]:
    return {
        process.run.names[code]
        for process in processes
        for code in distinct(process.run.dispatches.name).tolist()
    }
