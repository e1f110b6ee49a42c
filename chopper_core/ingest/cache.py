"""Runs that were read before, kept as stores in the person's cache directory."""

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

from chopper_core.model.hardware import own_file
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run
from chopper_core.store.format import is_store, paths_of, read_index, read_label
from chopper_core.store.reader import read_store
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.progress import Progress, silent

_ENTRY_LENGTH: Final = 24


class Entry(Struct, frozen=True):
    """A kept run."""

    path: Path
    name: str
    """The run as it was named; empty where that can't be read."""
    is_old: bool
    """Whether another version of Chopper kept it, or it is damaged: it is not opened again."""
    size_bytes: int
    used_s: float
    """When it was last opened, in seconds since the epoch."""


def directory() -> Path:
    """Where runs are kept: `$XDG_CACHE_HOME/chopper/runs`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "chopper" / "runs"


def open_kept(
    name: str,
    progress: Progress = silent,
    *,
    jobs: int | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> Run:
    """Open a run, from the cache where its files are as they were; else read it and keep it.

    Raises what `open_run` raises. A cache that can't be read or written changes nothing but time.
    """
    paths = paths_of(name)
    if len(paths) == 1 and is_store(paths[0]) and not overrides:
        return read_store(paths[0], progress)
    if not all(path.exists() for path in paths):
        return _read(name, progress, jobs, overrides)
    of = _origin(name, paths, overrides)
    kept = directory() / _digest([of, *_stamps(paths), _code_stamp(), _own_specifications()])
    if is_store(kept):
        try:
            run = read_store(kept, progress)
            os.utime(kept)
            return replace(run, name=name)
        except (ChopperError, OSError):
            shutil.rmtree(kept, ignore_errors=True)
    run = _read(name, progress, jobs, overrides)
    # It imports Arrow, and a kept run doesn't need it.
    from chopper_core.store.writer import write_store

    try:
        write_store(run, kept, of=of, progress=progress)
    except ChopperError:
        return run
    _forget_older(kept, of)
    return run


def _read(name: str, progress: Progress, jobs: int | None, overrides: Overrides) -> Run:
    # What reads and aligns takes long to import, and a kept run doesn't need it.
    from chopper_core.ingest.open import open_run

    return open_run(name, progress, jobs=jobs, overrides=overrides)


def entries() -> list[Entry]:
    """The kept runs, the last used first."""
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


def clear(*, old_only: bool = False) -> tuple[int, int]:
    """Forget all kept runs, or those that are not opened again; how many, and their bytes."""
    kept = [entry for entry in entries() if entry.is_old or not old_only]
    for entry in kept:
        shutil.rmtree(entry.path, ignore_errors=True)
    return len(kept), sum(entry.size_bytes for entry in kept)


def _folders() -> list[Path]:
    try:
        return [path for path in directory().iterdir() if is_store(path)]
    except OSError:
        return []


def _forget_older(kept: Path, of: str) -> None:
    """Remove what was kept of the same files when they, or Chopper, were others."""
    for path in _folders():
        if path != kept and read_label(path).of == of:
            shutil.rmtree(path, ignore_errors=True)


def _origin(name: str, paths: Sequence[Path], overrides: Overrides) -> str:
    """What makes a reading of files another one than a reading of others."""
    said = [text for text in (overrides.clocks_text(), overrides.gpus_text()) if text]
    said += [f"hardware {overrides.hardware}"] if overrides.hardware else []
    return "\n".join([name, *(str(path.resolve()) for path in paths), *said])


def _stamps(paths: Sequence[Path]) -> Iterator[str]:
    """Name, size and time of change of every file below the paths, in order of their names."""
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


def _own_specifications() -> str:
    """What a person says of GPUs, wherever that lies; nothing where nothing is said."""
    try:
        return _digest([own_file().read_text(encoding="utf-8", errors="surrogateescape")])
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return str(error)


@cache
def _code_stamp() -> str:
    """Of Chopper's own files: another version may label and align otherwise."""
    return _digest([_stamp(path) for path in code_files()])


def code_files() -> list[str]:
    """What Python compiles of them comes and goes without a change."""
    walked = os.walk(Path(__file__).resolve().parents[1])
    files = (os.path.join(folder, name) for folder, _, names in walked for name in names)
    return sorted(file for file in files if file.endswith((".py", ".toml")))


def _digest(parts: Sequence[str]) -> str:
    text = "\n".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_ENTRY_LENGTH]
