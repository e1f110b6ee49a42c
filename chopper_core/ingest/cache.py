"""The cache of runs: stores in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.ingest.spelling import absolute, is_spelled_out, respelled
from chopper_core.model.hardware import is_file, own_file
from chopper_core.model.inputs import FoundRun
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run, located
from chopper_core.model.tree import ordered
from chopper_core.store.format import (
    FILES,
    STORE_INDEX,
    is_store,
    paths_of,
    read_index,
    read_label,
)
from chopper_core.store.kept import Derived, Kept
from chopper_core.store.reader import large_files, read_store, verify
from chopper_core.util import atomic, debug, plugins
from chopper_core.util.arrays import json_of
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.memory import shortages
from chopper_core.util.nearby import Look, States, found_by, note_looks, noted_looks
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import shared_by

T = TypeVar("T")
PACKAGE: Final = Path(__file__).resolve().parents[1]
_DIGEST_LENGTH: Final = 24
_MAPPED_FROM_ROWS: Final = 1 << 15
"""A run of so many activities takes less memory once it is mapped from its store."""
SMALL_BYTES: Final = 1 << 17
"""A run of a set whose files have no more is read again in less time than a store of it is written
and verified: its row alone is kept."""
_MOST_BYTES: Final = 20 * 10**9
MOST_DAYS: Final = 60
_MOST_FOLDERS: Final = 64
_MOST_SHIFT: Final = 4
"""So many folders, or a sixteenth of what all may take, are written before all is looked at."""
KINDS: Final = ("rows", "found", "nearby", "verified", "program", "derived", "screens")
"""Kinds of figures that are kept with the cached runs: rows of tables of runs; the runs that
directories hold; where readers looked for files next to those of runs; which stores are intact;
digests of the program; what was derived from stores that can't be written; first screens of the
explorer."""
_EVERY_KIND: Final = (*KINDS, "sets")
"""With what older versions kept."""


class CacheEntry(Struct, frozen=True):
    """A cached run."""

    path: Path
    name: str
    """The path of the run, absolute; empty if it can't be read."""
    options: tuple[str, ...]
    """With which the run was read: one that is read with others is another entry."""
    is_old: bool
    """Whether another version of Chopper wrote it or it is corrupt, so that it isn't used again."""
    size_bytes: int
    used_s: float
    """When it was last opened, in seconds since the epoch."""
    is_gone: bool
    """Whether the files that it was read from are gone."""
    derived: tuple[str, ...]
    """The answers that are kept with it."""


def directory() -> Path:
    """The cache directory: `$XDG_CACHE_HOME/chopper/runs`."""
    return atomic.user_folder("XDG_CACHE_HOME", "~/.cache") / "runs"


def open_cached(
    name: str,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
    is_verified: bool = True,
) -> Run:
    """Open a run from the cache if its files are unchanged; otherwise read and cache it.

    The layout of the ranks is none of what a cached run depends on. Unless it `is_verified`, the
    large files of a store are left to `verify_run`.

    Raises the errors of `open_run`. A cache that can't be read or written only costs time; one
    that others can write to is not read.
    """
    overrides = overrides.of_run
    if overrides.parallel:
        plain, layout = replace(overrides, parallel=""), overrides.parallel
        run = open_cached(name, progress, jobs=jobs, overrides=plain, is_verified=is_verified)
        return located(run, layout)
    paths = paths_of(name)
    if len(paths) == 1 and is_store(paths[0]) and not overrides:
        index = _index_of(paths[0])
        return _with_derived(_opened(paths[0], progress, is_verified), paths[0], index)
    if not all(path.exists() for path in paths):
        return _read(name, progress, jobs, overrides)
    origin = _origin(paths, overrides)
    folder = directory()
    files = RunState(paths, origin, overrides)
    state = files.key
    cached = folder / state
    if is_store(cached) and atomic.is_private(folder):
        try:
            index = _index_of(cached)
            run = _kept_run(cached, progress, is_verified)
            files.note()
            os.utime(cached)
            return _with_derived(respelled(run, name), cached, index)
        except (ChopperError, OSError) as error:
            debug.note(f"{cached} can't be used: {error}")
            atomic.remove_folder(cached)
    before, index = shortages(), ""
    run, state = files.read(lambda: _read(name, progress, jobs, overrides))
    cached = folder / state
    is_foreign = folder.exists() and not atomic.is_own(folder)
    # With more memory the run would be another.
    if shortages() != before or is_foreign:
        return respelled(run, name)
    # What is kept of rows is of those that later processes read.
    if (table := ordered(run.table)) is not run.table:
        run = replace(run, table=table)
    # Imports pyarrow, which a cached run doesn't need.
    from chopper_core.store.writer import write_store

    try:
        if folder.exists() and not atomic.is_private(folder):
            # Others could have put runs there: none of them is kept.
            clear()
        atomic.make_private(folder)
        # Those of other states of the same files or of other versions, and unfinished ones.
        atomic.remove_abandoned(folder)
        for path in folder.glob(f"{state.partition('-')[0]}-*"):
            if path != cached or not is_store(path):
                atomic.remove_folder(path)
        if key_of(name, overrides) == state:
            with debug.timed(f"write {cached}"), shared_by(jobs):
                whole = respelled(run, absolute(name))
                write_store(
                    whole, cached, origin=origin, private=True, is_synced=False, progress=progress
                )
            index = _index_of(cached)
            _trim_once_due(cached, is_run=True)
            if len(run.table) >= _MAPPED_FROM_ROWS:
                run = _kept_run(cached, progress, False)
    except (ChopperError, OSError) as error:
        debug.note(f"{name} is not cached: {error}")
    return _with_derived(respelled(run, name), cached, index)


def _with_derived(run: Run, store: Path, index: str) -> Run:
    """A run as it was opened from a store with an index, or written to it, with what was derived
    from it: in the store, or in the cache where it can't be written."""
    if not index or _index_of(store) != index:
        return run  # Another process replaced it meanwhile.

    def state() -> str:
        options = json_of(run.overrides).decode()
        return "\n".join([index, options, *_specifications(run.overrides), program()])

    inner, is_cached = store / atomic.DERIVED, store.parent == directory()
    folders = {inner: is_cached}
    if not is_cached and not os.access(inner if inner.exists() else store, os.W_OK):
        own = directory().parent / "derived" / digest([os.path.realpath(store)])
        folders = {own: True, **folders}
        _note_use(own)
    return replace(run, derived=Derived(folders, run, state, is_as_started))


def _note_use(folder: Path) -> None:
    """Note when the answers of a store were used; for others to come, remove what is too much."""
    with suppress(OSError):
        if folder.exists():
            os.utime(folder)
        else:
            atomic.make_private(folder)
            _trim_once_due(folder, is_run=False)


def _index_of(store: Path) -> str:
    """A digest of a store's index, which has the checksums of all its files; '' without one."""
    try:
        return hashlib.sha256(atomic.read_small(store / STORE_INDEX)).hexdigest()
    except OSError:
        return ""


class ProgramVersion(Struct, frozen=True):
    """What answers depend on beside the files of runs."""

    digest: str
    """Of the content of Chopper's own code and of its plugins'."""
    files: tuple[str, ...]
    """Those of plugins."""
    stamp: str
    """Their states."""


def program() -> str:
    """The version of all that works out answers, the same on any machine.

    Once Chopper was installed again beneath this process, which runs what it imported, the version
    is one that no later process has.
    """
    place, known = _kept_version()
    if known is None:
        files = plugins.files_of_plugins()
        read = (path for path in (*code_files(), *files) if os.path.isfile(path))
        texts = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in read]
        known = ProgramVersion(digest(texts), tuple(files), _states_of(files))
        if not is_as_started():
            return place.state
        place.keep(known)
        _known[place.state] = known
    return known.digest


_known: Final[dict[str, ProgramVersion]] = {}
"""What this process worked out or read, by the state of what it was worked out from."""


def plugins_as_started() -> str:
    """The states of the plugins' files when this process first looked: it may read runs with those
    that it imported then."""
    return _plugins_in(tuple(sys.path))


@cache
def _plugins_in(_path: tuple[str, ...]) -> str:
    _, known = _kept_version()
    return _states_of(plugins.files_of_plugins() if known is None else known.files)


def _kept_version() -> tuple[Kept, ProgramVersion | None]:
    """The version as it was last worked out, if that is still the one, and its place."""
    stamp = digest([_STARTED_WITH, *map(_stamp, sys.path)])
    place = Kept(directory().parent / "program" / digest([str(PACKAGE), sys.prefix]), stamp)
    known = _known.get(stamp) or place.recall(ProgramVersion)
    if known is None or known.stamp != _states_of(known.files):
        return place, None
    _known[stamp] = known
    return place, known


def _states_of(files: Sequence[str]) -> str:
    return digest([*map(_stamp, files)])


def _opened(folder: Path, progress: Progress, is_verified: bool) -> Run:
    with debug.timed(f"open {folder}"):
        run = read_store(folder, progress)
        if is_verified:
            _verify(folder, progress)
        return run


def _kept_run(cached: Path, progress: Progress, is_verified: bool) -> Run:
    """A cached run by the name that its texts have; a store's is that of its folder."""
    return replace(_opened(cached, progress, is_verified), name=read_label(cached).name)


def verify_run(
    name: str, overrides: Overrides, progress: Progress = silent, *, again: bool = False
) -> None:
    """Verify a run's store or cached run; raises DataError and removes a damaged cached run."""
    paths, overrides = paths_of(name), replace(overrides, parallel="")
    if len(paths) == 1 and is_store(paths[0]):
        _verify(paths[0], progress, again=again)
        return
    cached = directory() / key_of(name, overrides)
    try:
        if is_store(cached):
            _verify(cached, progress, again=again)
    except DataError as error:
        atomic.remove_folder(cached)
        raise DataError(f"{name}: its cached run was damaged; open it again") from error


def _verify(folder: Path, progress: Progress, *, again: bool = False) -> None:
    """Verify the files of a store that opening it doesn't, once for each state of them."""
    names = FILES if again else large_files(folder)
    if not names:
        return
    place = directory().parent / "verified" / digest([os.path.realpath(folder)])
    kept = Kept(place, digest([_stamp(folder / name) for name in sorted(FILES)]))
    if not again and kept.recall(bool):
        return
    with debug.timed(f"verify {folder}"):
        verify(folder, names, progress)
    if not again:
        kept.keep(True)


def key_of(name: str, overrides: Overrides = NO_OVERRIDES) -> str:
    """The cache key of anything computed from a run's files: a digest of their real paths and the
    overrides, and one of the states of all that they are read with.
    """
    paths = paths_of(name)
    return RunState(paths, _origin(paths, overrides), overrides).key


class RunState:
    """The state of all that a run is read from: its files and those that readers look for next to
    them, options, specifications of GPUs, Chopper's code and its plugins'.
    """

    def __init__(self, paths: Sequence[Path], origin: str, overrides: Overrides) -> None:
        self._paths = paths
        self._origin = digest([origin])
        specifications = _specifications(overrides)
        own = digest([*_stamps(paths), _STARTED_WITH, plugins_as_started(), *specifications])
        self._own = own
        self._place = Kept(directory().parent / "nearby" / self._origin, own)
        self.looks = self._place.recall(list[Look]) or []
        """What readers of these files looked for elsewhere, when they were read before."""
        self._found = {look: found_by(look) for look in self.looks}

    @property
    def key(self) -> str:
        found = (str(each) for look in sorted(self._found) for each in _settled(self._found[look]))
        nearby = [*map(str, sorted(self._found)), *found]
        return f"{self._origin}-{digest([self._own, *nearby]) if nearby else self._own}"

    def note(self) -> None:
        """Note these looks: what was read before isn't read again."""
        note_looks(self._found)

    def read(self, read: Callable[[], T]) -> tuple[T, str]:
        """What reads the files returns, and the key of all that it was read from."""
        with noted_looks() as noted:
            found = read()
        below = [os.path.realpath(path) for path in self._paths]
        for look, states in noted.items():
            path = f"{os.path.realpath(look[0])}{os.sep}"
            if not any(path.startswith(f"{each}{os.sep}") for each in below):
                self._found.setdefault(look, states)
        if len(self._found) > len(self.looks):
            self.looks = sorted(self._found)
            self._place.keep(self.looks)
        return found, self.key


def _settled(states: States) -> Iterator[object]:
    """The states of files, no other ones' while a file may change unseen."""
    for path, state in states:
        yield path, state, () if atomic.is_settled(state) else os.urandom(8)


def _read(name: str, progress: Progress, jobs: int | None, overrides: Overrides) -> Run:
    # Readers take long to import, and a cached run doesn't need them.
    from chopper_core.ingest.open import open_run

    with debug.timed(f"read {name}"):
        spelled = name if is_spelled_out(name) else absolute(name)
        return open_run(spelled, progress, jobs=jobs, overrides=overrides)


def entries() -> list[CacheEntry]:
    """The cached runs, those used last first."""
    found = []
    for path in _folders():
        options: tuple[str, ...] = ()
        try:
            index = read_index(path)
            name, is_old, origin = index.name, False, index.origin.splitlines()
            options = tuple(line for line in origin if not os.path.isabs(line))
        except DataError:
            name, is_old = read_label(path).name, True
        with suppress(FileNotFoundError):  # Another process removed it.
            used_s, derived = os.stat(path).st_mtime, _files(path / atomic.DERIVED)
            size = sum(size for _, size, _ in (*_files(path), *derived))
            is_gone = not all(map(os.path.exists, name.split(",")))
            kinds = sorted({os.path.basename(file).rpartition("-")[0] for _, _, file in derived})
            about = is_old, size, used_s, is_gone, tuple(kinds)
            found.append(CacheEntry(path, name, options, *about))
    return sorted(found, key=lambda entry: -entry.used_s)


def kept_figures() -> Iterator[tuple[str, int, int]]:
    """Of each of `KINDS` the number of values that are kept, and their bytes."""
    for kind in KINDS:
        folders = directory().parent / kind, *_inner_folders(kind)
        files = [each for folder in folders for each in _files(folder)]
        if files:
            yield kind, len(files), sum(size for _, size, _ in files)


def most_bytes() -> int:
    """How much all that is cached may take together; `$CHOPPER_CACHE_GB` says otherwise."""
    try:
        return max(int(float(os.environ.get("CHOPPER_CACHE_GB", "")) * 1e9), 0)
    except (ValueError, OverflowError):
        return _MOST_BYTES


def trim(newest: Path | None = None) -> None:
    """Remove what wasn't used for `MOST_DAYS`, and what was used the longest ago, until the rest
    takes no more than it may; the `newest` run stays."""
    since_s = time.time() - 24 * 3600.0 * MOST_DAYS
    used, folders = list[tuple[float, int, str]](), _folders()
    for kind in _EVERY_KIND:
        used += _files(directory().parent / kind)
        folders += _inner_folders(kind)
    for each in folders:
        with suppress(FileNotFoundError):  # Another process removed it.
            used.append(_used(each))
    total = 0
    for used_s, size, name in sorted(used, key=lambda each: (each[2] != str(newest), -each[0])):
        total += size
        if name != str(newest) and (used_s < since_s or total > most_bytes()):
            debug.note(f"{name} is removed: unused, or the cache is full")
            if os.path.isdir(name):
                atomic.remove_folder(Path(name))
            else:
                Path(name).unlink(missing_ok=True)


class _Written(Struct):
    """What this process has put into the cache since it last looked at all of it."""

    folders: int
    size_bytes: int


_written: Final = _Written(_MOST_FOLDERS, 0)
"""At first it looks."""


def _trim_once_due(newest: Path, *, is_run: bool) -> None:
    """Trim after a folder was written, unless this process did so just now: looking at thousands of
    runs for each of them would take longer than reading them."""
    _written.folders += 1
    _written.size_bytes += _used(newest)[1]
    if _written.folders > _MOST_FOLDERS or _written.size_bytes > most_bytes() >> _MOST_SHIFT:
        _written.folders = _written.size_bytes = 0
        trim(newest if is_run else None)


def _used(folder: Path) -> tuple[float, int, str]:
    """When a folder was used last, the size of its files and of those derived from them, and its
    path."""
    files = [*_files(folder), *_files(folder / atomic.DERIVED)]
    return os.stat(folder).st_mtime, sum(size for _, size, _ in files), str(folder)


def _inner_folders(kind: str) -> list[Path]:
    """The folders of a kind, of a run each."""
    try:
        with os.scandir(directory().parent / kind) as found:
            return [Path(each.path) for each in found if each.is_dir()]
    except OSError:
        return []


def _files(folder: Path) -> list[tuple[float, int, str]]:
    """When each file of a folder was changed, its size, and its path."""
    try:
        with os.scandir(folder) as found:
            stats = [(each.stat(), each.path) for each in found if each.is_file()]
    except OSError:
        return []
    return [(status.st_mtime, status.st_size, path) for status, path in stats]


def worked_out(
    kind: str,
    name: str,
    of: type[T],
    work: Callable[[], T],
    overrides: Overrides = NO_OVERRIDES,
) -> T:
    """The figures of a run, of one of `KINDS`, worked out once for a state of its files."""
    paths = paths_of(name)
    origin = _origin(paths, overrides)
    place, files = _place(kind, name, origin), RunState(paths, origin, overrides)
    known = _kept_at(place, files.key, overrides).recall(of)
    if known is not None:
        files.note()
        return known
    found, key = files.read(work)
    _kept_at(place, key, overrides).keep(found)
    return found


def recalled(kind: str, name: str, of: type[T], overrides: Overrides = NO_OVERRIDES) -> T | None:
    """The figures of a run that are kept; None without. Only where there are some of another state,
    the run's files are looked at."""
    paths = paths_of(name)
    origin = _origin(paths, overrides)
    place = _place(kind, name, origin)
    if not os.path.exists(place):
        return None
    return _kept_at(place, RunState(paths, origin, overrides).key, overrides).recall(of)


def _kept_at(place: Path, key: str, overrides: Overrides) -> Kept:
    # A layout changes a row, not what is read.
    return Kept(place, key + overrides.parallel)


def _place(kind: str, name: str, origin: str) -> Path:
    return directory().parent / kind / digest([name, origin])


def found_runs(name: str, *, use_cache: bool = True) -> list[FoundRun]:
    """The runs at and below a path, as `find_runs` finds them: searched once for a state of its
    files."""

    def search() -> list[FoundRun]:
        # A run that was opened before needs none of it.
        from chopper_core.ingest.discovery import find_runs

        return find_runs([name])

    return worked_out("found", name, list[FoundRun], search) if use_cache else search()


def clear(*, old_only: bool = False) -> tuple[int, int]:
    """Remove all cached runs, or those of no further use; returns their number and bytes."""
    atomic.remove_abandoned(directory())
    removed = [entry for entry in entries() if entry.is_old or not old_only]
    for entry in removed:
        atomic.remove_folder(entry.path)
    if not old_only:
        for kind in _EVERY_KIND:
            shutil.rmtree(directory().parent / kind, ignore_errors=True)
    return len(removed), sum(entry.size_bytes for entry in removed)


def _folders() -> list[Path]:
    """Those of cached runs, and what is left of removed ones."""
    try:
        with os.scandir(directory()) as found:
            return [Path(each.path) for each in found if each.name[0] != "." and each.is_dir()]
    except OSError:
        return []


def _origin(paths: Sequence[Path], overrides: Overrides) -> str:
    """What a run is read from and how, however its paths are spelled.

    A link of another name counts: a rank may be known by the name of its file or folder.
    """
    found = []
    for path in paths:
        real, spelled = os.path.realpath(path), os.path.abspath(path)
        is_alias = os.path.basename(real) != os.path.basename(spelled)
        found += [real, spelled] if is_alias else [real]
    options = [text for text in (overrides.clocks_text(), overrides.gpus_text()) if text]
    options += [f"hardware {overrides.hardware}"] if overrides.hardware else []
    return "\n".join([*found, *options])


def _stamps(paths: Sequence[Path]) -> Iterator[str]:
    """Path and state of every file below the paths, sorted by path; of directories the path, since
    an empty one is a run that wrote nothing."""
    for path in map(os.path.realpath, paths):
        if not os.path.isdir(path):
            yield _stamp(path)
            continue
        for folder, folders, files in atomic.walk_once(path):
            folders.sort()
            yield f"{folder}/"
            for file in sorted(files):
                yield _stamp(os.path.join(folder, file))


def _stamp(path: str | Path) -> str:
    """A path and the state of its file; no other one's while it may change unseen."""
    state = atomic.file_state(path)
    fresh = () if atomic.is_settled(state) else (os.urandom(8).hex(),)
    return "\t".join(map(str, (path, *state, *fresh)))


def _specifications(overrides: Overrides) -> Iterator[str]:
    """Digests of the user's GPU specifications: his own, and those of `--hardware FILE`."""
    given = [Path(os.path.expanduser(overrides.hardware))] if is_file(overrides.hardware) else []
    for path in (own_file(), *given):
        try:
            yield digest([atomic.read_small(path).decode("utf-8", "surrogateescape")])
        except (FileNotFoundError, NotADirectoryError):
            yield ""
        except OSError as error:
            yield str(error)


def is_as_started() -> bool:
    """Whether the files of the code are still those that this process imports.

    If not, it may have imported some of either version: what it works out is kept for nobody.
    """
    return _code_stamp() == _STARTED_WITH


def _code_stamp() -> str:
    return digest([str((path, *atomic.file_state(path))) for path in code_files()])


def code_files(package: Path = PACKAGE) -> list[str]:
    """The files of a package, sorted, without compiled ones, which come and go."""
    found: list[str] = []
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        read = (name for name in names if name.endswith((".py", ".toml", ".tcss")))
        found += (os.path.join(folder, name) for name in read)
    return sorted(found)


def program_files() -> list[str]:
    """All files of the program and its plugins, and the folders that plugins are looked for in."""
    return [
        *code_files(PACKAGE.parent / "chopper_tui"),
        *code_files(),
        *sys.path,
        *plugins.files_of_plugins(),
    ]


def digest(parts: Sequence[str]) -> str:
    text = "\n".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]


_STARTED_WITH: Final = _code_stamp()
"""The state of the code's files as this process imports them."""
