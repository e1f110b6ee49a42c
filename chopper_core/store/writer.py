"""Write a run as a store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from pyarrow.lib import ArrowException

from chopper_core.model.cubes import Cube, summarise
from chopper_core.model.inputs import SampledFile
from chopper_core.model.run import Run
from chopper_core.model.signals import IntegralCurve
from chopper_core.model.table import COLUMNS, LEVELS
from chopper_core.model.tree import ordered
from chopper_core.store import format as layout
from chopper_core.tables.arrow_files import write_arrow, write_lists
from chopper_core.tables.mmap_columns import ColumnPlace
from chopper_core.util.arrays import AnyArray, encodable, json_of
from chopper_core.util.atomic import replace_folder, stamp_of, temporary_path
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import in_processes

_MIN_SUMMED_ROWS: Final = 1 << 18
"""Rows from which a table gets cubes."""
_NOT_A_LEVEL: Final = -2
"""The code in the columns of levels that a cube doesn't have."""


class StoreWriteError(DataError):
    """A store can't be written, because the disk is full for example."""


def write_store(
    run: Run,
    folder: Path,
    *,
    origin: str = "",
    private: bool = False,
    is_synced: bool = True,
    progress: Progress = silent,
) -> None:
    """Write a run as a store, which replaces an older one of that name once it is complete.

    `origin` is kept in the index; a `private` store is readable by its owner alone. Unless it
    `is_synced`, a power cut may damage it, which costs no more than reading again.

    Raises UsageError if `folder` exists and is not a store, StoreWriteError if the store can't be
    written.
    """
    check_place(folder)
    fresh = temporary_path(folder, "new")
    progress("write store", 0, 1)
    try:
        fresh.mkdir(parents=True)
        try:
            if private:
                fresh.chmod(0o700)
            _write_files(run, fresh, origin)
            if private:
                for path in fresh.iterdir():
                    path.chmod(0o600)
            replace_folder(fresh, folder, is_synced=is_synced)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, ArrowException, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreWriteError(f"can't write the store {folder}: {reason}") from error
    progress("write store", 1, 1)


def check_place(folder: Path) -> None:
    if folder.exists() and not layout.is_store(folder):
        raise UsageError(f"{folder} exists and is not a Chopper store")


def _write_files(run: Run, folder: Path, origin: str) -> None:
    # A question of a view is no part of a run; predicted times are marked by its sources.
    run = replace(run, overrides=run.overrides.of_run)
    table = ordered(run.table)
    cpu = msgspec.json.decode(
        json_of([msgspec.convert(file, SampledFile, from_attributes=True) for file in run.cpu]),
        type=tuple[SampledFile, ...],
    )
    cubes = summarise(table) if len(table) >= _MIN_SUMMED_ROWS else []
    samples = {n: [getattr(file, n).ravel() for file in run.cpu] for n in layout.CPU_ARRAYS}
    kernels = {name: table.column(name) for name in COLUMNS}
    writers: dict[str, Callable[[Path], dict[str, ColumnPlace]]] = {
        layout.KERNELS: lambda path: write_arrow(path, kernels),
        layout.MEASURED: lambda path: write_arrow(path, table.measured),
        layout.OPERATIONS: lambda path: write_arrow(path, _cells(cubes)),
        layout.SERIES: lambda path: write_lists(path, _series(run)),
        layout.CPU: lambda path: write_lists(path, samples),
    }
    for side in run.side_tables.values():
        writers[side.FILE] = partial(write_arrow, columns=side.columns())

    def write(name: str) -> tuple[dict[str, ColumnPlace], tuple[int, int]]:
        path = folder / name
        return writers[name](path), stamp_of(path)

    written = dict(zip(writers, in_processes(write, [*writers], len(table)), strict=True))
    fields = {name: getattr(run, name) for name in layout.run_fields()}
    stored = layout.StoredRun(
        msgspec.Raw(json_of(fields, _plain)),
        tuple(table.names),
        tuple(table.operations),
        tuple(table.shapes),
        tuple(
            layout.StoredSignal(t.name, t.title, t.unit, t.low, t.high, tuple(t.curves))
            for t in run.measured.values()
        ),
        tuple((cube.levels, len(cube)) for cube in cubes),
        cubes[0].patterns if cubes else {},
        cpu,
        {
            table.FILE: msgspec.Raw(msgspec.json.encode(table.names))
            for table in run.side_tables.values()
        },
        {name: places for name, (places, _) in written.items()},
    )
    (folder / layout.RUN).write_bytes(msgspec.json.encode(stored))
    stamps = {name: stamp for name, (_, stamp) in written.items()}
    stamps[layout.RUN] = stamp_of(folder / layout.RUN)
    files = {name: stamps[name] for name in sorted(stamps)}
    index = layout.StoreIndex(
        layout.SCHEMA, layout.fingerprint(), encodable(run.name), encodable(origin), files
    )
    (folder / layout.STORE_INDEX).write_bytes(msgspec.json.encode(index.checked()))


def _plain(value: Any) -> Any:
    """Convert mappings of other types and numpy numbers for JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value)} can't be stored")


def _cells(cubes: Sequence[Cube]) -> dict[str, AnyArray]:
    if not cubes:
        return {}
    columns: dict[str, list[AnyArray]] = {
        level: [cube.codes.get(level, np.full(len(cube), _NOT_A_LEVEL, np.int32)) for cube in cubes]
        for level in LEVELS
    }
    for key in cubes[0].integers:
        columns[f"i {key}"] = [cube.integers[key] for cube in cubes]
    for key in cubes[0].floats:
        columns[f"f {key}"] = [cube.floats[key] for cube in cubes]
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _series(run: Run) -> dict[str, list[AnyArray]]:
    curves = [curve for signal in run.measured.values() for curve in signal.curves.values()]
    return {
        name: [getattr(curve, name) for curve in curves] for name in IntegralCurve.__struct_fields__
    }
