"""The files of a store and their schema.

A store is a directory: `kernels.arrow` (the kernel table, sorted by level), `measured.arrow` (its
measured columns), `operations.arrow` (sums over sets of levels, for large tables), `series.arrow`
(signals over time), `cpu.arrow` (CPU samples), a file for each side table that has rows,
`run.json` (everything else), and `store.json` with the version, and the size and checksum of each
of the others. Columns are uncompressed, so that they can be memory-mapped and only the pages in use
are read. docs/internals/decisions.md gives the reasons.

Stores and runs have paths, or are named baselines: `@main` can replace a run anywhere; with several
runs, it is the first.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Mapping
from errno import EACCES
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.model.address import nothing_at
from chopper_core.model.attributes import Attributes, StatedEdges
from chopper_core.model.experts import ExpertTokens
from chopper_core.model.inputs import SampledFile
from chopper_core.model.run import Run
from chopper_core.model.shapes import CallShape
from chopper_core.model.side_table import (
    HostLane,
    HostSteps,
    HostTime,
    MemoryEvents,
    SideTable,
    StreamWaits,
)
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import COLUMNS
from chopper_core.model.training import FailedAllocations, TrainedPhases, TrainedSteps
from chopper_core.model.units import Unit
from chopper_core.tables.mmap_columns import ColumnPlace
from chopper_core.util.atomic import make_private, publish, read_small, user_folder
from chopper_core.util.demo import DEMO, demo_path
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.escape import cut_text
from chopper_core.util.nearby import file_nearby

_ARROW: Final = ".arrow"
STORE_INDEX: Final = "store.json"
"""The file that makes a directory a store."""
_MAX_SHOWN: Final = 200
_STORE: Final = "chopper.store/"
SCHEMA: Final = f"{_STORE}3"
KERNELS: Final = "kernels.arrow"
MEASURED: Final = "measured.arrow"
SERIES: Final = "series.arrow"
CPU: Final = "cpu.arrow"
RUN: Final = "run.json"
OPERATIONS: Final = "operations.arrow"
SIDE_TABLES: Final[tuple[type[SideTable], ...]] = (
    HostTime,
    HostSteps,
    MemoryEvents,
    HostLane,
    Attributes,
    StatedEdges,
    StreamWaits,
    TrainedSteps,
    TrainedPhases,
    FailedAllocations,
    ExpertTokens,
)
"""The side tables that a store keeps."""
FILES: Final = frozenset(
    (KERNELS, MEASURED, SERIES, CPU, RUN, OPERATIONS, *(each.FILE for each in SIDE_TABLES))
)
CPU_ARRAYS: Final = CpuSamples.__struct_fields__[len(SampledFile.__struct_fields__) :]
SIGN: Final = "@"
"""Begins the name of a baseline."""
_NAME: Final = re.compile(r"[A-Z]\w+")
_WORKED_OUT: Final = ("derived", "awaited")
"""Fields of a run that say nothing of what a store holds."""
_NOT_IN_JSON: Final = (
    *("table", "measured", "cpu", "side_tables", "others", "cubes", "recent"),
    *_WORKED_OUT,
)
"""Fields of a run that have their own files or are computed."""


class StoreIndex(Struct, frozen=True):
    """The content of `store.json`."""

    schema: str
    fingerprint: str
    """`fingerprint()` of the Chopper that wrote the store."""
    name: str
    """The name under which the run was opened."""
    origin: str = field(name="of")
    """The files and options that a cached run or a part was read from; else empty."""
    files: Mapping[str, tuple[int, int]]
    """Size in bytes and CRC-32 of each file."""
    checksum: int = 0
    """CRC-32 of the index itself, encoded with 0 in its place."""

    def checked(self) -> StoreIndex:
        return replace(self, checksum=zlib.crc32(msgspec.json.encode(replace(self, checksum=0))))


class StoredSignal(Struct, frozen=True):
    """A signal without its curves."""

    name: str
    title: str
    unit: Unit
    low: float
    high: float
    gpus: tuple[int, ...]


class StoredRun(Struct, frozen=True):
    """The content of `run.json`."""

    run: msgspec.Raw
    """The fields of the run in `run_fields`."""
    names: tuple[str, ...]
    operations: tuple[str, ...]
    shapes: tuple[CallShape, ...]
    signals: tuple[StoredSignal, ...]
    cubes: tuple[tuple[tuple[str, ...], int], ...]
    """Levels and number of cells of each cube, in the order of the file."""
    patterns: Mapping[str, int]
    cpu: tuple[SampledFile, ...]
    """CPU samples without their arrays."""
    side_names: Mapping[str, msgspec.Raw]
    """File of a side table → its `names`."""
    places: Mapping[str, Mapping[str, ColumnPlace]]
    """File → column → its place in the file."""


_LONGEST_PATH: Final = 4095


def paths_of(name: str) -> list[Path]:
    """The paths in a run's name: one, or several separated by commas; `@NAME` is a baseline's.

    Raises DataError for a path that can't be looked up.
    """
    parts = name.split(",")
    # Of many files the name is too long to be a path itself.
    if len(parts) > 1 and (len(name) > _LONGEST_PATH or not _looked_up(name).exists()):
        return [*dict.fromkeys(store_of(_looked_up(part)) for part in parts if part)]
    return [store_of(_looked_up(name))]


def store_of(path: Path) -> Path:
    """The store that a file is a part of, as a shell's `STORE/*` names them; else the path."""
    is_part = path.suffix == _ARROW or path.name in (STORE_INDEX, RUN)
    is_part = is_part and path.is_file() and file_nearby(path.parent / STORE_INDEX).is_file()
    return path.parent if is_part else path


def name_of(path: str | Path) -> str:
    """The name of a run at a path, which `paths_of` gives back: `~` and `@` begin other names."""
    text = str(path)
    return f".{os.sep}{text}" if text[:1] in ("~", "@") else text


def _looked_up(name: str) -> Path:
    name = named_runs(name)[0]
    try:
        # Not of a path, which `./~` is no more once it is one.
        path = Path(os.path.expanduser(name))
        if name == DEMO and not path.exists():
            path = demo_path()
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise OSError(EACCES, os.strerror(EACCES))
    except OSError as error:
        short = cut_text(name, _MAX_SHOWN)
        raise DataError(f"{short} can't be read: {getattr(error, 'strerror', error)}.") from error
    return path


def is_store(path: Path) -> bool:
    return os.path.isfile(path / STORE_INDEX)


class Label(Struct, frozen=True):
    """The part of `store.json` that is the same in every version."""

    schema: str = ""
    fingerprint: str = ""
    name: str = ""
    origin: str = field(name="of", default="")


def read_label(folder: Path) -> Label:
    """The label of a store of any version; its fields are empty if it can't be read."""
    try:
        return _label_in(read_small(folder / STORE_INDEX))
    except OSError:
        return Label()


def _label_in(index: bytes) -> Label:
    try:
        return msgspec.json.decode(index, type=Label)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return Label()


def read_index(folder: Path) -> StoreIndex:
    try:
        content = read_small(folder / STORE_INDEX)
        label = _label_in(content)
        own = SCHEMA, fingerprint()
        if label.schema.startswith(_STORE) and (label.schema, label.fingerprint) != own:
            raise _other_version(folder)  # Whose index may have other fields.
        index = msgspec.json.decode(content, type=StoreIndex)
        is_whole = index == index.checked()
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise unreadable(folder, error) from error
    if (index.schema, index.fingerprint) != own:
        raise _other_version(folder)
    if not set(index.files) <= FILES:
        raise DataError(f"{folder} is a corrupt store (it names other files); {recreate(folder)}")
    if not is_whole:
        raise DataError(
            f"{folder / STORE_INDEX}: checksum mismatch: the store is corrupt; {recreate(folder)}"
        )
    return index


def _other_version(folder: Path) -> DataError:
    return DataError(f"{folder} was written by another version of Chopper; {recreate(folder)}")


def unreadable(folder: Path, error: Exception) -> DataError:
    if isinstance(error, OSError):
        path = error.filename or folder
        return DataError(f"{path} can't be read: {error.strerror}; {recreate(folder)}")
    return DataError(f"{folder} is a corrupt store ({error}); {recreate(folder)}")


def recreate(folder: Path) -> str:
    """The end of an error: how to get a readable store, from its run where that is still there."""
    from shlex import quote

    name = read_label(folder).name
    is_there = os.path.isabs(name) and all(map(os.path.exists, name.split(",")))
    return f"re-create it with: chopper ingest {quote(name) if is_there else 'RUN'} -o {folder}"


@cache
def fingerprint() -> str:
    """A digest of all stored fields and their types, which changes when one does."""
    # Takes several ms to import, and reading traces imports this module too.
    import hashlib

    parts = [SCHEMA, *COLUMNS]
    waiting: list[Any] = [Run, StoredRun, *SIDE_TABLES, *(each.NAME for each in SIDE_TABLES)]
    seen: set[Any] = set()
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        if isinstance(kind, UnionType):
            waiting += get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Struct):
            parts.append(kind.__name__)
            # `typing.get_type_hints` evaluates each annotation: longer than opening a store.
            for base in kind.__mro__[: kind.__mro__.index(Struct)]:
                known = vars(sys.modules[base.__module__])
                for name, text in base.__annotations__.items():
                    if name in _WORKED_OUT:
                        continue
                    parts.append(f"{name}: {text}")
                    waiting += [known[word] for word in _NAME.findall(text) if word in known]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def run_fields() -> tuple[str, ...]:
    return tuple(name for name in Run.__struct_fields__ if name not in _NOT_IN_JSON)


def baselines_path() -> Path:
    return user_folder("XDG_STATE_HOME", "~/.local/state") / "baselines.json"


def baselines() -> dict[str, tuple[str, ...]]:
    """The named baselines: name → absolute paths of runs with the same settings."""
    # msgspec takes no names of other bytes than UTF-8; opening a store imports this module.
    import json

    try:
        found = json.loads(read_small(baselines_path()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{baselines_path()} can't be read: {reason}") from error
    if not isinstance(found, dict):
        return {}
    return {
        str(name): tuple(map(str, paths)) if isinstance(paths, list) else (str(paths),)
        for name, paths in found.items()
        if paths
    }


def set_baseline(name: str, *runs: str) -> tuple[str, ...]:
    """Give a run, or several with the same settings, a name; returns their paths.

    Raises UsageError, DataError.
    """
    if not name.replace("-", "_").replace(".", "_").isidentifier():
        raise UsageError(f"{name!r} isn't a baseline's name: use letters, digits, - . and _")
    names = [each for run in runs for name in matching_paths(run) for each in named_runs(name)]
    paths = [Path(os.path.expanduser(each)) for each in names]
    for path in paths:
        if not path.exists():
            raise nothing_at(path)
    found = tuple(dict.fromkeys(str(path.absolute()) for path in paths))
    _write({**baselines(), name: found})
    return found


def remove_baseline(name: str) -> None:
    found = baselines()
    if name not in found:
        raise UsageError(_unknown(name, found))
    del found[name]
    _write(found)


def matching_paths(text: str) -> list[str]:
    """The paths that a pattern such as `main/run*` matches, or the text itself without any."""
    from glob import glob

    path = os.path.expanduser(text)
    return [text] if os.path.exists(path) else sorted(glob(path)) or [text]


def named_runs(name: str) -> tuple[str, ...]:
    """The runs of a name such as `@main`, or the path itself; raises UsageError."""
    if not name.startswith(SIGN) or os.path.exists(name):
        return (name,)
    found = baselines()
    if name[1:] not in found:
        raise UsageError(_unknown(name[1:], found))
    return found[name[1:]]


def _unknown(name: str, found: dict[str, tuple[str, ...]]) -> str:
    known = f"known baselines: {', '.join(found)}" if found else "there are no named baselines yet"
    return f"unknown baseline {name!r}; {known}; `chopper baseline set {name} RUN` names one"


def _write(found: dict[str, tuple[str, ...]]) -> None:
    import json

    path = baselines_path()
    try:
        make_private(path.parent)
        publish(path, json.dumps(found, indent=1).encode() + b"\n", mode=0o600)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}") from error
