"""Ranks that are read already, each kept by itself until all are put together.

A part is a folder with a rank's kernel table and all else that its trace gave, or why the trace
can't be used. Parts are written whole or not at all, by any number of processes and machines.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from pyarrow.lib import ArrowException

from chopper_core.align.rank import AlignedRank
from chopper_core.ingest.rank_file import RankFile
from chopper_core.model.run import Source
from chopper_core.model.table import COLUMNS, KernelTable, concatenate
from chopper_core.model.tree import in_order, level_order
from chopper_core.util.arrays import AnyArray
from chopper_core.util.arrow_files import write_arrow
from chopper_core.util.atomic import beside, put_folder, stamp_of, write_file
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.mmap_columns import Place, columns_of, content_of

_TABLE: Final = "kernels.arrow"
_REST: Final = "part.json"
_MEASURED: Final = "measured "


class NotKept(DataError):
    """A part can't be written: the disk is full, say."""


class Part(Struct, frozen=True):
    """A part on disk, without its kernel table."""

    path: str
    """The trace."""
    stamp: tuple[int, int]
    """Its size and time of change when it was read."""
    code: str
    """Of the Chopper that read it."""
    failed: str | None
    """Why the trace can't be used."""
    table: tuple[int, int]
    """Size and checksum of the kernel table's file."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where its columns lie."""
    names: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    partial_iterations: frozenset[int] = frozenset()
    findings: Mapping[str, int] = field(default_factory=dict)
    source: Source | None = None
    rank_in_file: int | None = None
    hardware: str = ""
    process: int = -1
    generated: str | None = None


def folder_of(store: Path) -> Path:
    """Where the parts of a store that is not finished lie: hidden, beside it."""
    return store.with_name(f".{store.name}.parts")


def has_part(folder: Path, trace: Path) -> bool:
    """Whether there is a usable part of a trace as it is now."""
    try:
        return _read_rest(_place(folder, trace), trace).failed is None
    except (DataError, OSError):
        return False


def write_part(folder: Path, trace: Path, outcome: RankFile | ChopperError) -> None:
    """Keep what a trace gave; raises NotKept where it can't be written."""
    place = _place(folder, trace)
    fresh = beside(place, "new")
    try:
        fresh.mkdir(parents=True)
        try:
            write_file(fresh / _REST, msgspec.json.encode(_part(fresh, trace, outcome)))
            put_folder(fresh, place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotKept(f"{place} can't be written: {reason}") from error


def read_part(folder: Path, trace: Path) -> RankFile | ChopperError:
    """What a trace gave, from its part; its kernel table is mapped.

    Raises DataError where there is no part, or it is of another state of the trace.
    """
    place = _place(folder, trace)
    part = _read_rest(place, trace)
    if part.failed is not None or part.source is None:
        return DataError(part.failed or "")
    try:
        if stamp_of(place / _TABLE) != tuple(part.table):
            raise ValueError("it is not as it was written")
        columns = columns_of(content_of(place / _TABLE), part.places)
    except (OSError, ValueError) as error:
        raise DataError(f"{place} is damaged ({error}); remove it and ingest {trace}") from error
    table = KernelTable(
        names=part.names,
        operations=part.operations,
        measured={
            name.removeprefix(_MEASURED): values
            for name, values in columns.items()
            if name.startswith(_MEASURED)
        },
        **{name: columns[name] for name in COLUMNS},
    )
    return RankFile(
        AlignedRank(table, part.devices, part.partial_iterations, part.findings),
        replace(part.source, path=str(trace)),
        part.rank_in_file,
        part.hardware,
        part.process,
        part.generated,
    )


def traces_of(folder: Path) -> list[Path]:
    """The traces of which there are parts."""
    found = []
    for place in sorted(folder.glob("*")) if folder.is_dir() else ():
        try:
            found.append(Path(msgspec.json.decode((place / _REST).read_bytes(), type=Part).path))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def gather(tables: Sequence[KernelTable], folder: Path) -> KernelTable:
    """One table of several in files of a folder, of which no more than one table is in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = concatenate([table.take(np.empty(0, np.intp)) for table in tables])
    measured = dict.fromkeys(name for table in tables for name in table.measured)
    files = {name: (folder / f"{name}.bin").open("wb") for name in COLUMNS}
    files |= {
        f"{_MEASURED}{name}": (folder / f"measured{number}.bin").open("wb")
        for number, name in enumerate(measured)
    }
    try:
        for table in tables:
            # With the texts of the whole run before it, its codes become the run's.
            own = concatenate([whole, table])
            if not in_order(own):
                own = own.take(level_order(own))
            for name in COLUMNS:
                own.column(name).tofile(files[name])
            for name in measured:
                nothing = np.full(len(own), np.nan)
                own.measured.get(name, nothing).tofile(files[f"{_MEASURED}{name}"])
    finally:
        for file in files.values():
            file.close()

    def mapped(name: str, dtype: np.dtype[Any]) -> AnyArray:
        path = Path(files[name].name)
        return np.frombuffer(content_of(path), dtype) if path.stat().st_size else np.empty(0, dtype)

    return KernelTable(
        names=whole.names,
        operations=whole.operations,
        measured={name: mapped(f"{_MEASURED}{name}", np.dtype(np.float64)) for name in measured},
        **{name: mapped(name, whole.column(name).dtype) for name in COLUMNS},
    )


@cache
def _code() -> str:
    """Of what Chopper's files hold: another version may label and align otherwise."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _place(folder: Path, trace: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(trace.resolve())).hexdigest()[:12]
    return folder / f"{trace.name}-{digest}"


def _stamp(trace: Path) -> tuple[int, int]:
    status = trace.stat()
    return status.st_size, status.st_mtime_ns


def _read_rest(place: Path, trace: Path) -> Part:
    try:
        part = msgspec.json.decode((place / _REST).read_bytes(), type=Part)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{trace} is not ingested yet") from error
    if part.code != _code():
        raise DataError(f"{trace} was ingested by another version of Chopper; ingest it again")
    if trace.exists() and _stamp(trace) != tuple(part.stamp):
        raise DataError(f"{trace} has changed since it was ingested; ingest it again")
    return part


def _part(folder: Path, trace: Path, outcome: RankFile | ChopperError) -> Part:
    path, code = str(trace.resolve()), _code()
    if isinstance(outcome, ChopperError):
        return Part(path, _stamp(trace), code, str(outcome), (0, 0))
    table = outcome.aligned.table
    columns: dict[str, AnyArray] = {name: table.column(name) for name in COLUMNS}
    columns |= {f"{_MEASURED}{name}": table.measured[name] for name in table.measured}
    places = write_arrow(folder / _TABLE, columns)
    return Part(
        path,
        _stamp(trace),
        code,
        None,
        stamp_of(folder / _TABLE),
        places,
        tuple(table.names),
        tuple(table.operations),
        outcome.aligned.devices,
        outcome.aligned.partial_iterations,
        dict(outcome.aligned.findings),
        outcome.source,
        outcome.rank_in_file,
        outcome.hardware,
        outcome.process,
        outcome.generated,
    )
