"""The runs below directories.

A directory is a run if traces or telemetry lie in it, or if those below it are parts of one job:
ranks that differ, or traces here and telemetry there. Traces in one directory whose ranks clash, or
that have no ranks and other names, are several runs, and so are the schedules of several jobs.
Other directories hold runs, each with a name of its own. Files named together pass the same test.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.address import nothing_at
from chopper_core.model.inputs import FoundRun
from chopper_core.model.settings import in_name
from chopper_core.record.manifest import MANIFEST, read_manifest
from chopper_core.sources.ranks import (
    captures_among,
    claimed_rank,
    hosts_among,
    merges_among,
    process_in_name,
    rank_in_name,
)
from chopper_core.sources.registry import Family, family_of
from chopper_core.sources.settings import has_settings
from chopper_core.store.format import STORE_INDEX, is_store, name_of, paths_of
from chopper_core.tables.text import head_of
from chopper_core.util.atomic import holds
from chopper_core.util.compression import COMPRESSED, copies_before
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import grouped_by
from chopper_core.util.patterns import matched_group, natural_key, shape_of_name

_DATA: Final = re.compile(
    r"\.(?:json|csv|db|rpd|sqlite|pftrace|parquet|txt|log|jsonl|et|out|err)"
    rf"{COMPRESSED}$|_rank_\d+$",
    re.IGNORECASE,
)
_TRACE: Final = re.compile(
    rf"(?:\.pt)?(?:\.trace)?\.(?:json|rpd|sqlite|pftrace){COMPRESSED}$", re.IGNORECASE
)
"""The ending of a trace's name."""
_MAX_PROBED: Final = 40
"""Files of a directory whose start is read to see whether it holds data."""
_MAX_LOOSE: Final = 64
"""Up to this many traces of a directory may be several runs; more are one."""
_MAX_PROCESSES: Final = 4096
"""The same where their names are those of processes: a job that is started again writes as many."""
_MAX_NAMED: Final = 3
_DISTRIBUTED: Final = re.compile(r'"distributedInfo"\s*:\s*\{.{0,4000}', re.DOTALL)
_DEVICE: Final = re.compile(r'"deviceProperties"\s*:\s*\[\s*\{[^}]*?"name"\s*:\s*"([^"]+)"')
_GENERIC: Final = re.compile(
    r"traces?|kineto|profil\w*|telemetry|counters?|logs?|power|output|tensorboard|plugins?"
    r"|\d+_?(?:kineto|chakra)|(?:rank|node|host|worker)[-_.]?\d+",
    re.IGNORECASE,
)
"""Names of directories that say nothing of the run whose files they hold."""


_OF_JOB: Final = re.compile(r"\d+|checkpoint[-_]\d+", re.IGNORECASE)
"""Names of the directories of one job that each have a log."""


class _Part(Struct, frozen=True):
    """A directory with data, and its content."""

    path: Path
    families: frozenset[Family]
    ranks: tuple[int, ...] = ()
    """The ranks in the names of its traces."""
    ranked: tuple[Path, ...] = ()
    """Those traces."""
    traces: tuple[Path, ...] = ()
    """One of its traces with a rank in its name; where none has, one of each process."""
    files: tuple[str, ...] = ()
    """Names of the traces in the directory that are a run of their own; () of all of them."""

    @property
    def run(self) -> str:
        return ",".join(name_of(self.path / name) for name in self.files) or name_of(self.path)

    def told_ranks(self) -> Iterator[int | None]:
        """The ranks in names, else those that the traces, or folders named for a rank, tell."""
        yield from self.ranks
        for trace in self.traces:
            if rank_in_name(trace.name) is None and family_of(trace) is Family.TRACE:
                rank, folder = claimed_rank(trace), trace.parent.name
                yield rank_in_name(folder) if rank is None and _GENERIC.fullmatch(folder) else rank


def find_runs(names: Sequence[str]) -> list[FoundRun]:
    """The runs at and below paths, in natural order; DataError where a path doesn't exist."""
    found: list[FoundRun] = []
    roots: list[Path] = []
    for name in names:
        paths = paths_of(name)
        for path in paths:
            if not path.exists():
                raise nothing_at(path)
        parts = _named_together(paths)
        if len(paths) > 1 and len(parts) < 2:
            found.append(FoundRun(name, name))
        elif any(part.files for part in parts) and not any(path.is_dir() for path in paths):
            found += [FoundRun(_stem(part.files[0]), part.run) for part in parts]
        else:
            roots += paths
    for root in dict.fromkeys(roots):
        if not root.is_dir() or is_store(root):
            found.append(FoundRun(root.name, name_of(root)))
            continue
        parts, empty = _below(root, set(), is_root=True)
        for part in [*parts, *(_Part(path, frozenset()) for path in empty)]:
            below = part.path.relative_to(root) / _stem(part.files[0] if part.files else "")
            above = Path(root.name) if len(roots) > 1 or below == Path() else Path()
            found.append(FoundRun(str(above / below), part.run, not part.families))
    times = Counter(each.name for each in found)
    named = (replace(run, name=run.path) if times[run.name] > 1 else run for run in found)
    return sorted(named, key=lambda each: natural_key(each.path))


def check_is_one(name: str) -> None:
    if holds_runs(name):
        found = [each.name for each in find_runs([name])]
        named = ", ".join([*found[:_MAX_NAMED], *(["…"] if len(found) > _MAX_NAMED else [])])
        raise DataError(
            f"{name} is {len(found)} runs: {named}; open one of them, or list them with: "
            f"chopper runs {name}"
        )


def holds_runs(name: str) -> bool:
    """Whether a name is several runs, and no parts of one."""
    return all(path.exists() for path in paths_of(name)) and len(find_runs([name])) > 1


def _named_together(paths: Sequence[Path]) -> list[_Part]:
    """The runs of several paths; none or one where they are parts of one."""
    parts: list[_Part] = []
    folders: dict[Path, list[str]] = {}
    for path in paths if len(paths) > 1 else ():
        if path.is_dir():
            parts += _below(path, set(), is_root=True)[0]
        elif len(paths) <= _MAX_LOOSE:
            folders.setdefault(path.parent, []).append(path.name)
    for folder, files in folders.items():
        family = {name: family_of(folder / name) for name in files}
        traces = [name for name in files if family[name] is Family.TRACE]
        runs = _loose_runs(folder, traces) if traces else []
        parts += [_part(folder, frozenset((Family.TRACE,)), own, own) for own in runs]
        jobs = _whole_jobs(folder, files)
        parts += [_part(folder, frozenset((Family.SCHEDULE,)), own, own) for own in jobs]
    return parts[:1] if _are_one(parts) else parts


def _below(
    folder: Path, seen: set[tuple[int, int]], *, is_root: bool = False
) -> tuple[list[_Part], list[Path]]:
    """The runs at or below a directory, and directories without data next to them.

    A directory that links lead to again is passed over: `seen` has those that were entered.
    """
    try:
        state = folder.stat()
        if (state.st_dev, state.st_ino) in seen:
            return [], []
        seen.add((state.st_dev, state.st_ino))
        entries = sorted(
            os.scandir(folder), key=lambda each: (each.is_symlink(), natural_key(each.name))
        )
    except OSError:
        return [], []
    # Of thousands of directories few have these files: to look for each takes as long as all else.
    names = {each.name for each in entries}
    if STORE_INDEX in names and is_store(folder):
        return [_Part(folder, frozenset((Family.TRACE, Family.TELEMETRY)))], []
    if MANIFEST in names and (ranks := _recorded_ranks(folder)) is not None:
        return [_Part(folder, frozenset((Family.TRACE, Family.TELEMETRY)), ranks)], []
    entries = [each for each in entries if not each.name.startswith(".")]
    folders = [Path(each.path) for each in entries if holds(each.is_dir)]
    files = [each.name for each in entries if holds(each.is_file)]
    links = {each.name: os.path.realpath(each.path) for each in entries if each.is_symlink()}
    if links:
        real = {os.path.realpath(folder / name) for name in files if name not in links}
        files = [name for name in files if links.get(name) not in real]

    @cache  # A directory is entered once.
    def below() -> list[tuple[list[_Part], list[Path]]]:
        return [_below(path, seen) for path in folders]

    parts: list[_Part] = []
    own = _families(folder, files)
    if own == {Family.TRAINER}:
        # A launcher's log above the runs that it started is none of theirs.
        runs = [part for found, _ in below() for part in found]
        if len(runs) > 1 and not _are_one(runs):
            return runs, []
    if own:
        loose, one = _whole_jobs(folder, files), frozenset((Family.SCHEDULE,))
        if Family.TRACE in own:
            loose, one = _loose_runs(folder, files), frozenset((Family.TRACE,))
        elif own == {Family.TRAINER}:
            loose, one = _loose_logs(files), own
        if len(loose) < 2:
            return [_part(folder, own, files)], []
        parts = [_part(folder, one, names, names) for names in loose]
    without: list[Path] = []
    without_data: list[Path] = []
    shapes: set[str] = set()
    """Of the names of directories with one run."""
    for path, (found, empty) in zip(folders, below(), strict=True):
        parts += found
        without_data += empty
        if not found:
            without.append(path)
        elif len(found) == 1:
            shapes.add(shape_of_name(path.name))
    without_data += [path for path in without if shape_of_name(path.name) in shapes]
    is_one = len(parts) > 1 and not own and _are_one(parts)
    if len(parts) == 1 and not without_data:
        is_one = not is_root and _GENERIC.fullmatch(parts[0].path.name) is not None
    if is_one:
        whole = frozenset().union(*(part.families for part in parts))
        ranks = tuple(rank for part in parts for rank in part.ranks)
        ranked = tuple(trace for part in parts for trace in part.ranked)
        traces = tuple(trace for part in parts for trace in part.traces)
        return [_Part(folder, whole, ranks, ranked, traces)], []
    return parts, without_data


def _recorded_ranks(folder: Path) -> tuple[int, ...] | None:
    """The ranks of a recorded run, whose folders are windows of it; None for another directory."""
    try:
        manifest = read_manifest(folder)
    except DataError:
        return None
    ranks = {process.rank for process in manifest.processes} if manifest else set()
    return tuple(sorted(rank for rank in ranks if rank is not None)) if manifest else None


def _families(folder: Path, files: Sequence[str]) -> frozenset[Family]:
    found: set[Family] = set()
    candidates = [name for name in files if _DATA.search(name)]
    candidates.sort(key=lambda name: _TRACE.search(name) is None)
    for name in candidates[:_MAX_PROBED]:
        family = family_of(folder / name)
        if family is not None:
            found.add(family)
        elif _TRACE.search(name) and rank_in_name(name) is not None:
            found.add(Family.TRACE)  # may be damaged: reading it gives the reason
        if Family.TRACE in found:
            break
    return frozenset(found - {Family.CPU})


def _part(
    folder: Path, families: frozenset[Family], names: Sequence[str], files: Sequence[str] = ()
) -> _Part:
    ranks = {name: rank_in_name(name) for name in names if _TRACE.search(name)}
    known = {name: rank for name, rank in ranks.items() if rank is not None}
    traces = [*known][:1] or [*_windows([*ranks])]
    return _Part(
        folder,
        families,
        tuple(known.values()),
        tuple(folder / name for name in known),
        tuple(folder / name for name in traces),
        tuple(files),
    )


def _loose_logs(files: Sequence[str]) -> list[list[str]]:
    """The logs in a directory by job: their names differ in words, not in a number or an ending."""
    names = [name for name in files if _DATA.search(name)]
    if not 1 < len(names) <= _MAX_LOOSE or any(rank_in_name(name) is not None for name in names):
        return [names]
    return [*grouped_by(names, lambda name: shape_of_name(name.partition(".")[0])).values()]


def _loose_runs(folder: Path, files: Sequence[str]) -> list[list[str]]:
    """The names of the traces in a directory by run, where they belong to several.

    They belong to one where their ranks differ. Where ranks clash, or world sizes or GPU models
    differ, those of like names are one run, or several if each rank comes several times: a file
    each. Without ranks, those of like names are one.
    """
    there = set(files)
    names = [name for name in files if _TRACE.search(name)]
    names = [name for name in names if there.isdisjoint(copies_before(name))]
    if len(names) == 1:
        return [names]
    traces = [folder / name for name in names]
    apart = hosts_among(traces) or merges_among(traces) or captures_among(traces)
    if others := [path.name for path in apart]:
        rest = [name for name in names if name not in others]
        return [[*run, *others] for run in _loose_runs(folder, rest)]
    windows = _windows(names)
    names = [*windows]
    named = [rank_in_name(name) for name in names]
    are_ranks = None not in named and len(set(named)) == len(named)
    most = _MAX_PROCESSES if all(map(process_in_name, names)) else _MAX_LOOSE
    if not 1 < len(names) <= most or (are_ranks and len(set(map(shape_of_name, names))) == 1):
        return [[*chain(*windows.values())]]
    names = [name for name in names if family_of(folder / name) is Family.TRACE]
    places = {name: _place(folder / name) for name in names}
    ranks = [rank for rank, _ in places.values()]
    are_ranks = None not in ranks and len(set(ranks)) == len(ranks)
    if are_ranks and not _differ([job for _, job in places.values()]):
        return [[*chain(*(windows[name] for name in names))]]
    runs: dict[tuple[object, ...], list[str]] = {}
    times: Counter[tuple[object, ...]] = Counter()
    for name, (rank, job) in places.items():
        like = (shape_of_name(name), job)
        runs.setdefault((*like, times[*like, rank] if rank is not None else 0), []).extend(
            windows[name]
        )
        times[*like, rank] += 1
    return list(runs.values())


def _windows(names: Sequence[str]) -> dict[str, list[str]]:
    """The first of each process's traces, and all of them: profiler windows on one clock."""
    found = grouped_by(sorted(names, key=natural_key), lambda name: process_in_name(name) or name)
    return {each[0]: each for each in found.values()}


def _whole_jobs(folder: Path, files: Sequence[str]) -> list[list[str]]:
    """The schedules in a directory that have all ranks of a job each: tables, unlike JSON."""
    names = [name for name in files if name.endswith(".parquet")]
    jobs = names if 1 < len(names) <= _MAX_LOOSE else []
    return [[name] for name in jobs if family_of(folder / name) is Family.SCHEDULE]


_Job = tuple[int | None, str | None]
"""The size of a trace's world and the model of its first GPU, by its head."""


def _place(trace: Path) -> tuple[int | None, _Job]:
    head = head_of(trace).text
    about = matched_group(_DISTRIBUTED, head, 0)
    rank, world = (
        int(match[1]) if (match := re.search(rf'"{key}"\s*:\s*(\d+)', about)) else None
        for key in ("rank", "world_size")
    )
    return (rank_in_name(trace.name) if rank is None else rank), (
        world,
        matched_group(_DEVICE, head) or None,
    )


def _differ(jobs: Sequence[_Job]) -> bool:
    """Whether traces that tell their job tell different ones."""
    return any(
        len({one for one in told if one is not None}) > 1 for told in zip(*jobs, strict=True)
    )


def _stem(name: str) -> str:
    return _TRACE.sub("", name)


def _are_one(parts: Sequence[_Part]) -> bool:
    """Whether parts are of one job: kinds of data, or ranks, that don't repeat."""
    if len({tuple(sorted(in_name(part.path.name).items())) for part in parts}) > 1:
        return False
    logs = [part for part in parts if part.families == {Family.TRAINER}]
    if len(logs) > 1:
        # A launcher makes a directory per rank, a trainer one per checkpoint.
        names = [part.path.name for part in parts]
        return len(logs) == len(parts) and all(
            _OF_JOB.fullmatch(name) or rank_in_name(name) is not None for name in names
        )
    kinds = [family for part in parts for family in part.families]
    are_kinds = len(kinds) == len(set(kinds))
    if not are_kinds:
        ranks = [rank for part in parts for rank in part.ranks]
        telemetry = sum(part.families == {Family.TELEMETRY} for part in parts)
        if telemetry > 1:
            return False
        if len(ranks) > len(set(ranks)):
            return _are_nodes(parts)
    # Of thousands of runs, what needs no file has told by now.
    if any(has_settings(part.path) for part in parts):
        return False
    return are_kinds or (
        _have_ranks(parts)
        and not _differ([_place(trace)[1] for part in parts for trace in part.traces[:1]])
    )


def _are_nodes(parts: Sequence[_Part]) -> bool:
    """Whether the traces of parts, named by the rank in their node, are all ranks of one job."""
    traces = [trace for part in parts for trace in part.ranked]
    if not traces:
        return False
    _, (world, _) = _place(traces[0])
    if world != len(traces) or any(has_settings(part.path) for part in parts):
        return False
    seen: set[int] = set()
    for trace in traces:
        rank, (size, _) = _place(trace)
        if rank is None or rank in seen or size != world:
            return False
        seen.add(rank)
    return True


def _have_ranks(parts: Sequence[_Part]) -> bool:
    """Whether the traces of parts have ranks, and no two the same."""
    seen: set[int | None] = {None}
    for part in parts:
        before = len(seen)
        for rank in part.told_ranks():
            if rank in seen:
                return False
            seen.add(rank)
        if len(seen) == before and Family.TRACE in part.families:
            return False
    return True
