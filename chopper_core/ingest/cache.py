"""The cache of runs: stores in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.hardware import is_file, own_file
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run, located
from chopper_core.store.format import is_store, paths_of, read_index, read_label
from chopper_core.store.reader import read_store
from chopper_core.util.atomic import is_own, is_private, make_private
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.progress import Progress, silent

_DIGEST_LENGTH: Final = 24


class Entry(Struct, frozen=True):
    """A cached run."""

    path: Path
    name: str
    """The name under which the run was opened; empty if it can't be read."""
    is_old: bool
    """Whether it is of another version of Chopper or corrupt, so that it is not used again."""
    size_bytes: int
    used_s: float
    """When it was last opened, in seconds since the epoch."""


def directory() -> Path:
    """The cache directory: `$XDG_CACHE_HOME/chopper/runs`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "chopper" / "runs"


def open_cached(
    name: str,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> Run:
    """Open a run from the cache if its files are unchanged; otherwise read and cache it.

    The layout of the ranks is none of what a cached run depends on.

    Raises the errors of `open_run`. A cache that can't be read or written only costs time; one
    that others can write to is not read.
    """
    if overrides.parallel:
        run = open_cached(name, progress, jobs=jobs, overrides=replace(overrides, parallel=""))
        return located(run, overrides.parallel)
    paths = paths_of(name)
    if len(paths) == 1 and is_store(paths[0]) and not overrides:
        return read_store(paths[0], progress)
    if not all(path.exists() for path in paths):
        return _read(name, progress, jobs, overrides)
    origin = _origin(name, paths, overrides)
    folder = directory()
    cached = folder / key_of(name, overrides)
    if is_store(cached) and is_private(folder):
        try:
            run = read_store(cached, progress)
            os.utime(cached)
            return replace(run, name=name)
        except (ChopperError, OSError):
            shutil.rmtree(cached, ignore_errors=True)
    run = _read(name, progress, jobs, overrides)
    # Imports pyarrow, which a cached run doesn't need.
    from chopper_core.store.writer import write_store

    try:
        if folder.exists() and not is_private(folder):
            if not is_own(folder):
                return run
            # Others could have put runs there: none of them is kept.
            clear()
        make_private(folder)
        write_store(run, cached, origin=origin, private=True, progress=progress)
    except (ChopperError, OSError):
        return run
    _remove_older(cached, origin)
    return run


def key_of(name: str, overrides: Overrides = NO_OVERRIDES) -> str:
    """The key under which what is worked out of a run's files is cached: of their state, the
    overrides, and Chopper's own code."""
    paths = paths_of(name)
    origin = _origin(name, paths, overrides)
    return _digest([origin, *_stamps(paths), _code_stamp(), *_specifications(overrides)])


def _read(name: str, progress: Progress, jobs: int | None, overrides: Overrides) -> Run:
    # Readers take long to import, and a cached run doesn't need them.
    from chopper_core.ingest.open import open_run

    return open_run(name, progress, jobs=jobs, overrides=overrides)


def entries() -> list[Entry]:
    """The cached runs, most recently used first."""
    found = []
    for path in _folders():
        try:
            read_index(path)
            is_old = False
        except DataError:
            is_old = True
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        found.append(Entry(path, read_label(path).name, is_old, size, path.stat().st_mtime))
    return sorted(found, key=lambda entry: -entry.used_s)


def rows_directory() -> Path:
    """The directory of the figures of runs in tables of runs: `$XDG_CACHE_HOME/chopper/rows`."""
    return directory().parent / "rows"


def clear(*, old_only: bool = False) -> tuple[int, int]:
    """Remove all cached runs, or those of no further use; returns their number and bytes."""
    removed = [entry for entry in entries() if entry.is_old or not old_only]
    for entry in removed:
        shutil.rmtree(entry.path, ignore_errors=True)
    if not old_only:
        shutil.rmtree(rows_directory(), ignore_errors=True)
    return len(removed), sum(entry.size_bytes for entry in removed)


def _folders() -> list[Path]:
    try:
        return [path for path in directory().iterdir() if is_store(path)]
    except OSError:
        return []


def _remove_older(cached: Path, origin: str) -> None:
    """Remove runs cached from other states of the same files or by other versions."""
    for path in _folders():
        if path != cached and read_label(path).origin == origin:
            shutil.rmtree(path, ignore_errors=True)


def _origin(name: str, paths: Sequence[Path], overrides: Overrides) -> str:
    """The name, paths and overrides of a run: runs that differ in one of them are cached apart."""
    options = [text for text in (overrides.clocks_text(), overrides.gpus_text()) if text]
    options += [f"hardware {overrides.hardware}"] if overrides.hardware else []
    return "\n".join([name, *(str(path.resolve()) for path in paths), *options])


def _stamps(paths: Sequence[Path]) -> Iterator[str]:
    """Path, size and modification time of every file below the paths, sorted by path."""
    for path in paths:
        if not path.is_dir():
            yield _stamp(path)
            continue
        for folder, folders, files in os.walk(path, followlinks=True):
            folders.sort()
            for file in sorted(files):
                yield _stamp(Path(folder, file))


def _stamp(path: str | Path) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f"{path}\t{error.errno}"
    return f"{path}\t{status.st_size}\t{status.st_mtime_ns}"


def _specifications(overrides: Overrides) -> list[str]:
    """Digests of the user's GPU specifications: his own, and those of `--hardware FILE`."""
    given = [Path(overrides.hardware).expanduser()] if is_file(overrides.hardware) else []
    return [_digest_of_file(path) for path in (own_file(), *given)]


def _digest_of_file(path: Path) -> str:
    """A digest of a text file; empty without it."""
    try:
        return _digest([path.read_text(encoding="utf-8", errors="surrogateescape")])
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return str(error)


@cache
def _code_stamp() -> str:
    """A digest of Chopper's own files: another version may label and align differently."""
    return _digest([_stamp(path) for path in code_files()])


def code_files() -> list[str]:
    """Chopper's own files, sorted; without compiled ones, which come and go."""
    walked = os.walk(Path(__file__).resolve().parents[1])
    files = (os.path.join(folder, name) for folder, _, names in walked for name in names)
    return sorted(file for file in files if file.endswith((".py", ".toml")))


def _digest(parts: Sequence[str]) -> str:
    text = "\n".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]
