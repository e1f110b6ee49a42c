"""Finds the traces of a run, and the rank of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from chopper_core.sources.foreign import what_is
from chopper_core.sources.registry import (
    NEXT_TO_TRACES,
    Family,
    SkippedFile,
    discover,
    formats,
)
from chopper_core.tables.columns import MAX_RANKS
from chopper_core.tables.losses import ABSENT
from chopper_core.tables.text import head_of
from chopper_core.util.compression import COMPRESSED, COMPRESSED_TRACE, has_ending
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import natural_key

FROM_FILE: Final = "distributedInfo"
FROM_NAME: Final = "file name"
FROM_FOLDER: Final = "folder name"
FROM_ORDER: Final = "order"

EXPECTED: Final = (
    f"expected PyTorch profiler traces (.json or {COMPRESSED_TRACE}), one per rank, e.g. "
    f"rank0{COMPRESSED_TRACE}, an RPD database, or Chakra traces (.et)"
)

_MAX_NAMED: Final = 3
"""So many files of a directory without traces are named in an error."""
_RANK_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![a-z])rank[-_.=\[]?(\d+)",
        r"(?<![a-z])worker[-_]?(\d+)",
        r"(?<!\d)(\d+)[-_]?of[-_]?\d+",
        r"(?<![a-z0-9])r(\d+)(?![a-z0-9])",
        # Chakra: NAME.<rank>.et, chakra.<rank>.json, linked.<rank>.json.
        rf"\.(\d+)\.et{COMPRESSED}$",
        r"chakra\.(\d+)\.json",
        r"linked[-_.](\d+)\.json",
    )
)


class TraceFile(Struct, frozen=True):
    """A trace file and the rank in its name."""

    path: Path
    rank_hint: int | None
    """The rank in the name of the file or a folder."""
    hint_source: str
    """FROM_NAME or FROM_FOLDER; '' without a hint."""


class HostFile(Struct, frozen=True):
    """A host trace as its head describes it."""

    path: Path
    process: int
    """The id of the process, ABSENT without one."""
    rank_hint: int | None
    """The last number in its name."""
    is_capture: bool = False
    """Whether it is a trace of the capture of graphs that others replay."""
    is_annotation: bool = False
    """Whether it says what the nodes of graphs were marked with as they were captured."""


class FoundTraces(Struct, frozen=True):
    """The files at the given paths, in natural order of the names (rank2 before rank10)."""

    traces: Sequence[TraceFile]
    lost: Sequence[SkippedFile]
    """Unreadable files that are named like the trace of a rank."""
    hosts: Sequence[HostFile]
    """Host traces, which may belong to the traces."""
    skipped: Sequence[SkippedFile]
    """All other files, host traces too; without a reason where they aren't named like a trace."""


class RankAssignment(Struct, frozen=True):
    """The rank of a trace and its origin: FROM_FILE, FROM_NAME, FROM_FOLDER or FROM_ORDER."""

    rank: int
    source: str


def find_traces(paths: Sequence[Path]) -> FoundTraces:
    """Find the traces at the paths: files, or directories with everything below them.

    Raises DataError if a path doesn't exist or no trace is found.
    """
    if not paths:
        raise DataError(f"No path was given; {EXPECTED}.")
    found = discover(paths, Family.TRACE)
    others = [*found.skipped, *(SkippedFile(path, "") for path in found.unknown)]
    if not found.files:
        raise DataError(_nothing_found(paths, _with_reasons(others, paths)))
    first = found.files[0].source
    if any(file.source is not first for file in found.files):
        order = [*formats(Family.TRACE), *(file.source for file in found.files)]
        first = min((file.source for file in found.files), key=order.index)
    paths = [file.path for file in found.files if file.source is first]
    hosts = hosts_among(paths)
    others += [SkippedFile(path, "has no GPU work: a CPU-only process wrote it")
               for path in hosts]  # fmt: skip
    merges = merges_among(paths)
    others += [SkippedFile(path, "merges the traces next to it, which are read instead")
               for path in merges]  # fmt: skip
    paths = [path for path in paths if path not in {*hosts, *merges}]
    captures = captures_among(paths)
    others += [SkippedFile(path, "captures graphs that no trace of its rank replays")
               for path in captures]  # fmt: skip
    others += [
        SkippedFile(file.path, f"is a trace of {file.source.NAME} next to others; open it alone")
        for file in found.files
        if file.source is not first
    ]
    others.sort(key=lambda file: natural_key(file.path))
    lost = [file for file in others if file.is_damaged and rank_in_name(file.path.name) is not None]
    heads = [
        cast(Any, source).host_trace_head(head_of(file.path))
        for source in (formats(Family.HOST) if others else ())
        for file in others
        if has_ending(file.path.name, source.SUFFIXES)
    ]
    return FoundTraces(
        _with_hints([path for path in paths if path not in captures]),
        lost,
        [
            *(head for head in heads if head is not None),
            *(HostFile(path, ABSENT, claimed_rank(path), is_capture=True) for path in captures),
            *(
                HostFile(file.path, ABSENT, int(match[1]), is_annotation=True)
                for file in others
                if (match := _ANNOTATIONS.fullmatch(file.path.name))
            ),
        ],
        [file for file in others if file not in lost],
    )


def assign_ranks(traces: Sequence[tuple[TraceFile, int | None]]) -> list[RankAssignment]:
    """Return the rank of each trace: from the file, else its name, else the next free one.

    Free ranks are assigned from the lowest, in natural order of the paths. Raises DataError if two
    files claim one rank.
    """
    claimed: dict[int, Path] = {}
    assigned: dict[int, RankAssignment] = {}
    for index, (trace, rank_in_file) in enumerate(traces):
        claims = ((rank_in_file, FROM_FILE), (trace.rank_hint, trace.hint_source))
        known = [(r, source) for r, source in claims if r is not None and r < MAX_RANKS]
        if not known:
            continue
        rank, source = known[0]
        if rank in claimed:
            raise DataError(
                f"{claimed[rank]} and {trace.path} both claim rank {rank}; "
                "give the files of one step of one run only."
            )
        claimed[rank] = trace.path
        assigned[index] = RankAssignment(rank, source)
    unknown = [index for index in range(len(traces)) if index not in assigned]
    unknown.sort(key=lambda index: natural_key(traces[index][0].path))
    free = (rank for rank in range(len(traces)) if rank not in claimed)
    for index, rank in zip(unknown, free, strict=False):
        assigned[index] = RankAssignment(rank, FROM_ORDER)
    return [assigned[index] for index in range(len(traces))]


_MERGED: Final = re.compile("merged", re.IGNORECASE)
_CAPTURE: Final = re.compile("captur", re.IGNORECASE)
_ANNOTATIONS: Final = re.compile(
    rf"kernel_annotations_rank(\d{{1,9}})(?:[_.].*)?\.json{COMPRESSED}"
)
_RANK_IN_HEAD: Final = re.compile(
    r'"distributedInfo"\s*:\s*\{.{0,4000}?"rank"\s*:\s*(\d+)', re.DOTALL
)
_MOST_HOSTS: Final = 16
"""So many traces without a rank are searched for work of a GPU."""
_MOST_CLAIMS: Final = 64
"""Of so many traces those that claim one rank are searched for captures."""


def captures_among(traces: Sequence[Path]) -> list[Path]:
    """The traces that capture graphs, and replay none: those whose names say so, else those that
    claim the rank of another one."""
    candidates = [path for path in traces if _CAPTURE.search(path.name)]
    candidates = candidates or [path for path in traces if _CAPTURE.search(path.parent.name)]
    if len(candidates) in (0, len(traces)):
        candidates = []
        if 1 < len(traces) <= _MOST_CLAIMS:
            claims = {
                path: (claimed_rank(path), process_in_name(path.name) or path) for path in traces
            }
            processes = Counter(rank for rank, _ in set(claims.values()))
            candidates = [path for path, (rank, _) in claims.items() if processes[rank] > 1]
    if not candidates:
        return []
    # Imported on use: most runs have no captures.
    from chopper_core.sources.kineto.reader import holds_captures

    found = [path for path in candidates if holds_captures(path)]
    return found if len(found) < len(traces) else []


def hosts_among(traces: Sequence[Path]) -> list[Path]:
    """The traces without a rank and without work of a GPU, next to those of ranks: an engine's
    front end has one of its own."""
    nameless = [path for path in traces if rank_in_name(path.name) is None]
    if not 0 < len(nameless) < min(len(traces), _MOST_HOSTS):
        return []
    # Imported on use: most runs have none.
    from chopper_core.sources.kineto.reader import lacks_gpu_work

    return [path for path in nameless if claimed_rank(path) is None and lacks_gpu_work(path)]


def merges_among(traces: Sequence[Path]) -> list[Path]:
    """The traces that an engine merged from others in the same directory."""
    candidates = [path for path in traces if _MERGED.search(path.name)]
    if not 0 < len(candidates) < len(traces):
        return []
    from chopper_core.sources.kineto.reader import merges_by_pid

    others = Counter(path.parent for path in traces if path not in candidates)
    return [path for path in candidates if others[path.parent] and merges_by_pid(head_of(path))]


def claimed_rank(path: Path) -> int | None:
    """The rank of a trace by its head, else by its name, which may be that in its node."""
    match = _RANK_IN_HEAD.search(head_of(path).text)
    return int(match[1]) if match else rank_in_name(path.name)


def rank_in_name(name: str) -> int | None:
    for pattern in _RANK_PATTERNS:
        match = pattern.search(name)
        if match:
            return int(match.group(1))
    return None


_PROCESS: Final = re.compile(rf"(.+_\d+)\.\d{{16,}}\.pt\.trace\.json{COMPRESSED}")


def process_in_name(name: str) -> str | None:
    """Host and process in a name by torch.profiler.tensorboard_trace_handler: each of its windows
    has a file with another time, in ns since torch 2, whose traces have a common clock."""
    match = _PROCESS.fullmatch(name)
    return match[1] if match else None


def _with_hints(files: Sequence[Path]) -> list[TraceFile]:
    """Read ranks from names; a folder's name counts only if it contains a single trace."""
    hints = [rank_in_name(file.name) for file in files]
    named = files if None in hints else ()
    traces_below = Counter(folder for file in named for folder in file.absolute().parents)
    traces: list[TraceFile] = []
    for file, hint in zip(files, hints, strict=True):
        source = FROM_NAME
        for folder in file.absolute().parents if hint is None else ():
            if hint is not None or traces_below[folder] > 1:
                break
            hint, source = rank_in_name(folder.name), FROM_FOLDER
        traces.append(TraceFile(file, hint, "" if hint is None else source))
    return traces


def _nothing_found(paths: Sequence[Path], skipped: Sequence[SkippedFile]) -> str:
    if len(paths) == 1 and not paths[0].is_dir() and skipped:
        return f"{paths[0]} {_reason(skipped[0])}."
    places = ", ".join(str(path) for path in paths)
    files = "file" if len(skipped) == 1 else "files"
    looked_at = f" among {len(skipped):,} {files}" if skipped else ""
    named = "".join(f" {file.path.name} {_reason(file)}." for file in skipped[:_MAX_NAMED])
    named += " …" if len(skipped) > _MAX_NAMED else ""
    return f"{places} holds no traces{looked_at}; {EXPECTED}.{named}"


def _with_reasons(files: Sequence[SkippedFile], paths: Sequence[Path]) -> list[SkippedFile]:
    """Other files than traces, each with the reason of the reader that knows it best."""
    others = [file for family in NEXT_TO_TRACES for file in discover(paths, family).skipped]
    known = {file.path: file for file in reversed(others)}
    return [file if file.is_damaged else known.get(file.path, file) for file in files]


def _reason(file: SkippedFile) -> str:
    return file.reason or what_is(head_of(file.path))
