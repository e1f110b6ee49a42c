"""The runs below directories: which there are, and a row of settings and figures for each.

A directory is a run if traces or telemetry lie in it, or if those below it are parts of one job:
ranks that differ, or traces here and telemetry there. Traces in one directory whose ranks clash, or
that have no ranks and other names, are several runs. Other directories hold runs, each with a name
of its own and settings from the command line, its manifest, its job's file or its name, in this
order.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.ingest.cache import kept_found, kept_rows, open_cached
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run
from chopper_core.model.run_set import (
    FAILED,
    OK,
    PARTIAL,
    SHORT,
    Reading,
    RunFigures,
    RunRow,
    RunSet,
)
from chopper_core.model.settings import NOT_GIVEN, Given, Setting, in_name
from chopper_core.model.table import empty_table
from chopper_core.sources.ranks import rank_in_name
from chopper_core.sources.registry import Family, family_of, natural_key
from chopper_core.sources.settings import has_settings, read_settings
from chopper_core.sources.shared.text import FileHead
from chopper_core.store.format import is_store, paths_of
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress
from chopper_core.util.workers import read_as_done

_DATA: Final = re.compile(r"\.(?:json|csv|db|rpd|parquet|txt|log|jsonl)(?:\.gz)?$", re.IGNORECASE)
"""Endings of files that may be data."""
_TRACE: Final = re.compile(r"\.(?:json|rpd)(?:\.gz)?$", re.IGNORECASE)
_MAX_PROBED: Final = 40
"""Files of a directory whose start is read to see whether it holds data."""
_MAX_LOOSE: Final = 64
"""Up to this many traces of a directory are told apart; more are one run."""
_DISTRIBUTED: Final = re.compile(r'"distributedInfo"\s*:\s*\{.{0,4000}', re.DOTALL)
_NUMBER: Final = re.compile(r"\d+")
_GENERIC: Final = re.compile(
    r"traces?|kineto|profil\w*|telemetry|counters?|logs?|power|output|tensorboard|plugins?"
    r"|\d+_?(?:kineto|chakra)|(?:rank|node|host|worker)[-_.]?\d+",
    re.IGNORECASE,
)
"""Names of directories that say nothing of the run whose files they hold."""
_WAIT_S: Final = 1.0
_NOTHING: Final = (
    "It has no trace and no telemetry: the job wrote none, stopped early or ran out of memory."
)


class FoundRun(Struct, frozen=True):
    """A run of a directory of runs."""

    name: str
    """Its path below the directory."""
    path: str
    is_empty: bool = False
    """Whether it has no data, where its neighbours of such names do."""


class _Part(Struct, frozen=True):
    """A directory with data, and what it has."""

    path: Path
    families: frozenset[Family]
    ranks: tuple[int, ...] = ()
    """The ranks in the names of its traces."""
    files: tuple[str, ...] = ()
    """Names of the traces in the directory that are a run of their own; () of all of them."""

    @property
    def run(self) -> str:
        """The run as it is opened."""
        return ",".join(str(self.path / name) for name in self.files) or str(self.path)


def find_runs(names: Sequence[str]) -> list[FoundRun]:
    """The runs at and below paths, in natural order; DataError where a path doesn't exist."""
    roots = [path for name in names for path in paths_of(name)]
    found: list[FoundRun] = []
    for root in roots:
        if not root.exists():
            raise DataError(f"{root} does not exist.")
        if not root.is_dir() or is_store(root):
            found.append(FoundRun(root.name, str(root)))
            continue
        parts, empty = _below(root, set(), is_root=True)
        every = [(part, False) for part in parts]
        for part, is_empty in [*every, *((_Part(path, frozenset()), True) for path in empty)]:
            below = part.path.relative_to(root) / _stem(part.files[0] if part.files else "")
            name = root.name if below == Path() else str(below)
            if len(roots) > 1 and below != Path():
                name = f"{root.name}/{below}"
            found.append(FoundRun(name, part.run, is_empty))
    names_of = [each.name for each in found]
    found = [
        replace(each, name=each.path) if names_of.count(each.name) > 1 else each for each in found
    ]
    return sorted(found, key=lambda each: natural_key(each.path))


def holds_runs(name: str) -> bool:
    """Whether a name is directories that hold several runs, and no parts of one."""
    roots = paths_of(name)
    if not all(root.is_dir() for root in roots):
        return False
    if len(roots) == 1:
        return len(find_runs([name])) > 1
    parts = [part for root in roots for part in _below(root, set(), is_root=True)[0]]
    return len(parts) > 1 and not _are_one(parts)


def _below(
    folder: Path, seen: set[tuple[int, int]], *, is_root: bool = False
) -> tuple[list[_Part], list[Path]]:
    """The runs at or below a directory, and directories without data beside them.

    A directory that links lead to again is passed over: `seen` has those that were entered.
    """
    try:
        state = folder.stat()
        if (state.st_dev, state.st_ino) in seen:
            return [], []
        seen.add((state.st_dev, state.st_ino))
        if is_store(folder):
            return [_Part(folder, frozenset((Family.TRACE, Family.TELEMETRY)))], []
        entries = sorted(
            os.scandir(folder), key=lambda each: (each.is_symlink(), natural_key(each.name))
        )
    except OSError:
        return [], []
    entries = [each for each in entries if not each.name.startswith(".")]
    files = [each.name for each in entries if each.is_file()]
    parts: list[_Part] = []
    if own := _families(folder, files):
        loose = _loose_runs(folder, files) if Family.TRACE in own else []
        if len(loose) < 2:
            return [_Part(folder, own, _ranks(files))], []
        one = frozenset((Family.TRACE,))
        parts = [_Part(folder, one, _ranks(names), tuple(names)) for names in loose]
    without: list[Path] = []
    beside: list[Path] = []
    direct: list[Path] = []
    for entry in entries:
        if not entry.is_dir():
            continue
        path = Path(entry.path)
        found, empty = _below(path, seen)
        parts += found
        beside += empty
        if found:
            direct += [path] * (len(found) == 1)
        else:
            without.append(path)
    shapes = {_shape(path.name) for path in direct}
    beside += [path for path in without if _shape(path.name) in shapes]
    is_one = len(parts) > 1 and not own and _are_one(parts)
    if len(parts) == 1 and not beside:
        is_one = not is_root and _GENERIC.fullmatch(parts[0].path.name) is not None
    if is_one:
        whole = frozenset().union(*(part.families for part in parts))
        ranks = tuple(rank for part in parts for rank in part.ranks)
        return [_Part(folder, whole, ranks)], []
    return parts, beside


def _families(folder: Path, files: Sequence[str]) -> frozenset[Family]:
    """The families of the files that lie in a directory itself."""
    found: set[Family] = set()
    candidates = [name for name in files if _DATA.search(name)]
    candidates.sort(key=lambda name: _TRACE.search(name) is None)
    for name in candidates[:_MAX_PROBED]:
        family = family_of(folder / name)
        if family is not None:
            found.add(family)
        elif _TRACE.search(name) and rank_in_name(name) is not None:
            found.add(Family.TRACE)  # damaged, perhaps: reading it says why
        if found & {Family.TRACE}:
            break
    return frozenset(found - {Family.CPU})


def _ranks(files: Sequence[str]) -> tuple[int, ...]:
    ranks = (rank_in_name(name) for name in files if _TRACE.search(name))
    return tuple(rank for rank in ranks if rank is not None)


def _loose_runs(folder: Path, files: Sequence[str]) -> list[list[str]]:
    """The names of the traces in a directory by run, where they belong to several.

    They belong to one where their ranks differ. Where ranks clash, or world sizes differ, those
    of like names are one run, or several if each rank comes several times: a file each. Without
    ranks, those of like names are one.
    """
    names = [name for name in files if _TRACE.search(name) and name.removesuffix(".gz") not in
             set(files) - {name}]  # fmt: skip
    named = [rank_in_name(name) for name in names]
    if not 1 < len(names) <= _MAX_LOOSE or (None not in named and len(set(named)) == len(named)):
        return [names]
    names = [name for name in names if family_of(folder / name) is Family.TRACE]
    places = {name: _place(folder / name) for name in names}
    ranks = [rank for rank, _ in places.values()]
    worlds = {world for _, world in places.values() if world is not None}
    if None not in ranks and len(set(ranks)) == len(ranks) and len(worlds) < 2:
        return [names]
    runs: dict[tuple[object, ...], list[str]] = {}
    times: Counter[tuple[object, ...]] = Counter()
    for name, (rank, world) in places.items():
        like = (_shape(name), world)
        runs.setdefault((*like, times[*like, rank] if rank is not None else 0), []).append(name)
        times[*like, rank] += 1
    return list(runs.values())


def _place(trace: Path) -> tuple[int | None, int | None]:
    """The rank of a trace, by its name or its head, and the size of its world."""
    found = _DISTRIBUTED.search(FileHead(trace).text)
    about = found[0] if found else ""
    rank, world = (
        int(match[1]) if (match := re.search(rf'"{key}"\s*:\s*(\d+)', about)) else None
        for key in ("rank", "world_size")
    )
    named = rank_in_name(trace.name)
    return (rank if named is None else named), world


def _stem(name: str) -> str:
    return re.sub(r"(?:\.pt)?(?:\.trace)?\.(?:json|rpd)(?:\.gz)?$", "", name, flags=re.IGNORECASE)


def _are_one(parts: Sequence[_Part]) -> bool:
    """Whether directories hold parts of one job: kinds of data, or ranks, that don't repeat."""
    if len({tuple(sorted(in_name(part.path.name).items())) for part in parts}) > 1:
        return False
    if any(has_settings(part.path) for part in parts):
        return False
    kinds = [family for part in parts for family in part.families]
    if len(kinds) == len(set(kinds)):
        return True
    ranks = [rank for part in parts for rank in part.ranks]
    have_ranks = all(part.ranks for part in parts if Family.TRACE in part.families)
    telemetry = sum(part.families == {Family.TELEMETRY} for part in parts)
    return have_ranks and len(ranks) == len(set(ranks)) and telemetry <= 1


def _shape(name: str) -> str:
    """A name without its numbers: `llama_1_mbs4` and `llama_2_mbs8` have the same."""
    return _NUMBER.sub("#", name)


class ReadFigures(Struct, frozen=True):
    """Reads a run and returns its figures, from the cache where it can; may be sent to a worker."""

    jobs: int | None = None
    use_cache: bool = True
    overrides: Overrides = NO_OVERRIDES

    def __call__(self, path: Path, progress: Progress) -> RunFigures:
        """Read a run; raises the errors of reading."""
        from chopper_core.ingest.open import open_run
        from chopper_core.views.runs.figures import figures_of_run

        name = str(path)
        if self.use_cache:
            place = kept_rows(name, self.overrides)
            run = open_cached(name, progress, jobs=self.jobs, overrides=self.overrides)
            found = figures_of_run(run)
            place.keep(found)
            return found
        return figures_of_run(open_run(name, progress, jobs=self.jobs, overrides=self.overrides))


def read_rows(
    found: Sequence[FoundRun],
    given: Given = NOT_GIVEN,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    overrides: Overrides = NO_OVERRIDES,
) -> Iterator[tuple[int, RunRow]]:
    """Read runs in parallel and yield the place and row of each once it is there.

    Runs whose figures are cached come first; nothing of them is opened.
    """
    rest: list[int] = []
    for place, each in enumerate(found):
        if each.is_empty:
            yield place, _failed(each, given, _NOTHING)
            continue
        known = kept_rows(each.path, overrides).recall(RunFigures) if use_cache else None
        if known is None:
            rest.append(place)
        else:
            yield place, row_of(each, known, given)
    paths = [Path(found[place].path) for place in rest]
    # Workers share the processors; of a single run, its ranks do.
    reader = ReadFigures(1 if len(rest) > 1 else jobs, use_cache, overrides)
    for number, outcome in read_as_done(paths, reader, jobs):
        each = found[rest[number]]
        if isinstance(outcome, RunFigures):
            yield rest[number], row_of(each, outcome, given)
        else:
            yield rest[number], _failed(each, given, str(outcome))


def row_of(each: FoundRun, found: RunFigures, given: Given) -> RunRow:
    """The row of a run that was read."""
    from chopper_core.views.runs.figures import with_settings

    settings = dict(found.settings) | _settings(each, given)
    whole = with_settings(found, settings)
    status = SHORT if found.is_short else PARTIAL if found.problem else OK
    figures = {**whole.figures, "gpus": float(found.gpus)}
    return RunRow(
        each.name,
        each.path,
        settings,
        status,
        found.problem,
        figures,
        whole.missing,
        found.steps_ns,
    )


def _failed(each: FoundRun, given: Given, reason: str) -> RunRow:
    return RunRow(each.name, each.path, _settings(each, given), FAILED, reason)


def _settings(each: FoundRun, given: Given) -> dict[str, Setting]:
    path = Path(each.path)
    named: dict[str, Setting] = {}
    for part in Path(each.name).parts:
        named |= in_name(part)
    from_files = read_settings(path) if path.is_dir() else {}
    return named | from_files | given.of(each.name)


class _OpenedRuns(Mapping[str, Run]):
    """The runs of a set by path, each opened when it is first asked for."""

    def __init__(
        self, paths: Sequence[str], jobs: int | None, use_cache: bool, overrides: Overrides
    ) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._options = jobs, use_cache, overrides
        self._open: dict[str, Run] = {}
        self._lock = Lock()

    def __getitem__(self, path: str) -> Run:
        if path not in self._paths:
            raise KeyError(path)
        with self._lock:
            if path not in self._open:
                jobs, use_cache, overrides = self._options
                if use_cache:
                    self._open[path] = open_cached(path, jobs=jobs, overrides=overrides)
                else:
                    from chopper_core.ingest.open import open_run

                    self._open[path] = open_run(path, jobs=jobs, overrides=overrides)
        return self._open[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class SetReader:
    """Reads the rows of a set in a thread, and says how far it is."""

    def __init__(self, found: Sequence[FoundRun], rows: Iterator[tuple[int, RunRow]]) -> None:
        self._rows: list[RunRow | None] = [None] * len(found)
        self._news = Condition()
        self._changes = self._seen = 0
        self._error: BaseException | None = None
        self._source = rows
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            for place, row in self._source:
                with self._news:
                    self._rows[place] = row
                    self._changes += 1
                    self._news.notify_all()
        except BaseException as error:
            with self._news:
                self._error = error
                self._news.notify_all()

    def __call__(self, wait: bool) -> Reading:
        """The rows so far; if it is to wait, once there are more than were seen."""
        with self._news:
            if wait:
                self._news.wait_for(
                    lambda: self._changes > self._seen or None not in self._rows or self._error,
                    timeout=_WAIT_S,
                )
            self._seen = self._changes
            if self._error is not None:
                raise self._error
            known = [row for row in self._rows if row is not None]
            return Reading(known, len(self._rows) - len(known))


def open_runs(
    name: str,
    paths: Sequence[str],
    given: Given = NOT_GIVEN,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    overrides: Overrides = NO_OVERRIDES,
) -> RunSet:
    """The runs at and below paths as a set of this name, whose rows are read in a thread.

    Raises DataError if there is none.
    """
    place = kept_found(paths[0]) if use_cache and len(paths) == 1 else None
    found = place.recall(list[FoundRun]) if place is not None else None
    if found is None:
        found = find_runs(paths)
        if place is not None:
            place.keep(found)
    if not found:
        raise DataError(
            f"{', '.join(paths)} holds no runs: directories with traces or telemetry below it."
        )
    rows = read_rows(found, given, jobs=jobs, use_cache=use_cache, overrides=overrides)
    others = _OpenedRuns([each.path for each in found], jobs, use_cache, overrides)
    return RunSet(name, empty_table(), (), (), others=others, reading=SetReader(found, rows))
