"""Open a store: files are memory-mapped, so that only the pages in use are read.

Sizes are checked on opening, checksums too but for large files (`verify` checks all).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from chopper_core.model.cubes import Cube, Cubes
from chopper_core.model.inputs import SampledFile
from chopper_core.model.run import Run, located
from chopper_core.model.side_table import SideTable
from chopper_core.model.signals import CpuSamples, IntegralCurve, Signal
from chopper_core.model.table import ADDITIVE, LABELLED, NO_LABEL, NO_TIME, KernelTable
from chopper_core.model.tree import in_order
from chopper_core.store import format as layout
from chopper_core.tables.mmap_columns import (
    ColumnPlace,
    Content,
    content_of,
    lists_of,
    mapped_columns,
)
from chopper_core.util.arrays import AnyArray
from chopper_core.util.atomic import file_state, stamp_of
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct
from chopper_core.util.progress import Progress, silent

_LARGE_BYTES: Final = 1 << 22
"""Size from which the checksum of a file is not verified on opening, since that reads all of it."""
_CHECKED_BYTES: Final = 1 << 25
"""Size up to which its columns are checked all the same."""
_TIMES_NS: Final = -(1 << 60), 1 << 62
"""The earliest and the latest time: the time between any two fits into int64."""
_SPAN_NS: Final = 0, 1 << 56
"""The time that an activity is charged for: at most two years."""
_MOST_GPUS: Final = 1 << 24
_ALWAYS: Final = ("kernel", "kind", "category", *(f"{level}_rule" for level in LABELLED))
"""The columns of codes that each row has."""
_CELLS: Final = {"i ": "int64", "f ": "float64"}
"""The types of sums in a cell, by how their names begin; others are codes."""
_UNREADABLE: Final = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)
"""Errors that hostile metadata raises."""
_Read = TypeVar("_Read")
_MAX_ATTEMPTS: Final = 5
"""Attempts to read a store that other processes replace during that time."""


def read_store(folder: Path, progress: Progress = silent) -> Run:
    progress("open store", 0, 1)
    run = _unless_replaced(
        folder, lambda index: _read_files(folder, index, _below(index, _CHECKED_BYTES))
    )
    progress("open store", 1, 1)
    return run


def _unless_replaced(folder: Path, read: Callable[[layout.StoreIndex], _Read]) -> _Read:
    """What is read of a store, or the error, if no other process replaced it during that time."""
    for _ in range(_MAX_ATTEMPTS):
        # Not the index itself: two stores may be put there in turn.
        state = file_state(folder / layout.STORE_INDEX)
        try:
            found = read(layout.read_index(folder))
        except DataError:
            if file_state(folder / layout.STORE_INDEX) == state:
                raise
        else:
            if file_state(folder / layout.STORE_INDEX) == state:
                return found
    raise DataError(f"{folder} is being replaced repeatedly; try again later")


def _read_files(folder: Path, index: layout.StoreIndex, checked: Collection[str]) -> Run:
    """Read a run, and check the columns of some of its files."""
    try:
        small = _below(index, _LARGE_BYTES)
        contents = {
            name: _content(folder / name, stamp, is_verified=name in small)
            for name, stamp in index.files.items()
        }
        stored = msgspec.json.decode(contents[layout.RUN], type=_stored_type())
        rest, places = stored.run, stored.places
        columns: dict[str, Any] = _columns(
            KernelTable, contents[layout.KERNELS], places[layout.KERNELS]
        )
        each_has = "float64", len(columns["gpu"])
        measured = places[layout.MEASURED]
        if any((each.kind, each.count) != each_has for each in measured.values()):
            raise ValueError("measured columns of another length or type")
        table = KernelTable(
            names=stored.names,
            operations=stored.operations,
            shapes=stored.shapes,
            measured=mapped_columns(contents[layout.MEASURED], measured),
            **columns,
        )
        series, cpu, cells = (
            mapped_columns(contents[name], places[name])
            for name in (layout.SERIES, layout.CPU, layout.OPERATIONS)
        )
        side_tables = {
            kind: kind(
                msgspec.json.decode(stored.side_names[kind.FILE], type=tuple[kind.NAME, ...]),  # type: ignore[name-defined]
                **_columns(kind, contents[kind.FILE], places[kind.FILE]),
            )
            for kind in layout.SIDE_TABLES
            if kind.FILE in contents
        }
        numbers = [gpu.index for gpu in rest.gpus]
        if not all(0 <= number < _MOST_GPUS for number in numbers):
            raise ValueError("GPUs with numbers that none has")
        gpus = max(numbers, default=-1) + 1
        if layout.KERNELS in checked:
            _check(table, {**columns, **table.measured}, gpus)
            if not in_order(table):
                raise ValueError("rows out of order")
        for side in side_tables.values():
            if side.FILE in checked:
                _check(side, side.columns(), gpus)
        cubes = _cubes(cells, stored)
        if layout.OPERATIONS in checked:
            for cube in cubes.values():
                _check(table, cube.codes, gpus)
        if {layout.KERNELS, layout.OPERATIONS} <= set(checked):
            _check_labels(table, cubes)
        own: dict[str, Any] = {
            "measured": _signals(series, stored.signals, is_checked=layout.SERIES in checked),
            "cpu": _cpu(cpu, stored.cpu),
            "cubes": Cubes(table, cubes),
        }
    except _UNREADABLE as error:
        raise layout.unreadable(folder, error) from error
    fields = {name: getattr(rest, name) for name in layout.run_fields()}
    fields |= {"name": str(folder)}
    return located(Run(table=table, side_tables=side_tables, **own, **fields))


def _columns(
    kind: type[KernelTable | SideTable], content: Content, places: Mapping[str, ColumnPlace]
) -> dict[str, AnyArray]:
    """The columns of a table, of one length and the declared types; raises ValueError."""
    columns = mapped_columns(content, places)
    _check_types(kind, columns)
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    return columns


def _check_types(kind: type, columns: Mapping[str, AnyArray]) -> None:
    """Raise ValueError for columns, or lists of values, of another type than a record declares."""
    declared = _declared_types(kind)
    for name, values in columns.items():
        if declared.get(name) != values.dtype.name:
            raise ValueError(f"the column {name} is of {values.dtype.name}")


@cache
def _declared_types(kind: type) -> dict[str, str]:
    annotations = (vars(base).get("__annotations__", {}) for base in kind.__mro__)
    return {name: text.lower() for own in annotations for name, text in own.items()}


def _check(table: KernelTable | SideTable, columns: Mapping[str, AnyArray], gpus: int) -> None:
    """Raise ValueError for codes without a meaning, and for times that no run has."""
    ranges = {name: (NO_LABEL, count - 1) for name, count in table.codes(gpus).items()}
    ranges |= dict.fromkeys(("start_ns", "time_ns", "launch_ns"), _TIMES_NS)
    ranges |= dict.fromkeys(ADDITIVE, _SPAN_NS)
    ranges |= {name: (0, ranges[name][1]) for name in ("gpu", *_ALWAYS) if name in ranges}
    ranges["duration_ns"] = 0, 1 << 61
    for name, (low, high) in ranges.items():
        values = columns.get(name, np.empty(0))
        if name == "launch_ns":
            values = values[values != NO_TIME]
        if len(values) and (np.fmin.reduce(values) < low or np.fmax.reduce(values) > high):
            raise ValueError(f"the column {name} has values without a meaning")


def _check_labels(table: KernelTable, cubes: Mapping[frozenset[str], Cube]) -> None:
    """Raise ValueError for cubes of other labels than the activities have."""
    for level in frozenset[str]().union(*cubes):
        known = distinct(table.column(level))
        of_level = (cube.codes[level] for cube in cubes.values() if level in cube.codes)
        if not all(np.array_equal(distinct(codes), known) for codes in of_level):
            raise ValueError(f"sums by {level} of other labels than the activities have")


def _content(path: Path, stamp: tuple[int, int], *, is_verified: bool) -> Content:
    if path.is_symlink():
        way_out = layout.recreate(path.parent)
        raise DataError(f"{path} is a link: a store holds its own files; {way_out}")
    size, checksum = stamp
    if path.stat().st_size != size:
        raise DataError(_mismatch(path))
    content = content_of(path)
    if is_verified and zlib.crc32(content) != checksum:
        raise DataError(_mismatch(path))
    return content


def _below(index: layout.StoreIndex, size: int) -> set[str]:
    """The files that are smaller, and that of the run."""
    return {layout.RUN, *(name for name, (own, _) in index.files.items() if own < size)}


def large_files(folder: Path) -> list[str]:
    """The files of a store that opening it doesn't verify; raises DataError."""
    index = layout.read_index(folder)
    return [name for name in index.files if name not in _below(index, _LARGE_BYTES)]


def verify(
    folder: Path, names: Collection[str] = layout.FILES, progress: Progress = silent
) -> None:
    """Verify the checksums and columns of files of a store, by default of all.

    Raises DataError on a mismatch, and where one can't be read.
    """
    _unless_replaced(folder, lambda index: _verify(folder, index, names, progress))


def _verify(
    folder: Path, index: layout.StoreIndex, names: Collection[str], progress: Progress
) -> None:
    files = {name: stamp for name, stamp in index.files.items() if name in names}
    whole, done = sum(size for size, _ in files.values()), 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        progress("verify store", done, whole)

    for name, stamp in files.items():
        path = folder / name
        try:
            is_whole = path.stat().st_size == stamp[0] and stamp_of(path, report) == tuple(stamp)
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}") from error
        if not is_whole:
            raise DataError(_mismatch(path))
    if files:
        _read_files(folder, index, files)


def _cubes(columns: Mapping[str, AnyArray], stored: layout.StoredRun) -> dict[frozenset[str], Cube]:
    counts = [count for _, count in stored.cubes]
    lengths = set(map(len, columns.values()))
    if counts and (min(counts) < 0 or lengths != {sum(counts)}):
        raise ValueError(f"cubes of {sum(counts)} cells")
    if any(values.dtype != _CELLS.get(name[:2], "int32") for name, values in columns.items()):
        raise ValueError("cells of another type")
    cubes, begin = {}, 0
    for levels, count in stored.cubes:
        own = {name: values[begin : begin + count] for name, values in columns.items()}
        begin += count
        cubes[frozenset(levels)] = Cube(
            levels,
            {level: own[level] for level in levels},
            {name[2:]: values for name, values in own.items() if name.startswith("i ")},
            {name[2:]: values for name, values in own.items() if name.startswith("f ")},
            stored.patterns,
        )
    return cubes


def _mismatch(path: Path) -> str:
    return f"{path}: checksum mismatch: the store is corrupt; {layout.recreate(path.parent)}"


def _signals(
    columns: Mapping[str, AnyArray], signals: tuple[layout.StoredSignal, ...], *, is_checked: bool
) -> dict[str, Signal]:
    lists = _lists(IntegralCurve, columns, IntegralCurve.__struct_fields__)
    curves = list(zip(*lists, strict=True))
    if any(len(set(map(len, curve[:3]))) > 1 or len(curve[3]) not in (0, 4) for curve in curves):
        raise ValueError("curves of different lengths")
    if is_checked and any((edges[1:] < edges[:-1]).any() for edges, *_ in curves):
        raise ValueError("curves whose time goes back")
    rows, found = iter(curves), {}
    for each in signals:
        own = {gpu: IntegralCurve(*next(rows)) for gpu in each.gpus}
        found[each.name] = Signal(each.name, each.title, each.unit, own, each.low, each.high)
    return found


def _lists(
    kind: type, columns: Mapping[str, AnyArray], names: Collection[str]
) -> list[list[AnyArray]]:
    """The rows of list columns of the declared types; raises ValueError."""
    _check_types(kind, {name: columns[name] for name in names if len(columns.get(name, ()))})
    return [lists_of(columns, name) for name in names]


def _cpu(columns: Mapping[str, AnyArray], files: tuple[SampledFile, ...]) -> tuple[CpuSamples, ...]:
    found = []
    rows = zip(*_lists(CpuSamples, columns, layout.CPU_ARRAYS), strict=True)
    for file, arrays in zip(files, rows, strict=True):
        samples = CpuSamples(**asdict(file), **dict(zip(layout.CPU_ARRAYS, arrays, strict=True)))
        shape = len(samples.times_ns), len(samples.cpus)
        found.append(replace(samples, percent=samples.percent.reshape(shape)))
    return tuple(found)


@cache
def _stored_type() -> Any:
    """A stored run with the fields of the run in place of their text: the 4 MB of ten thousand
    ranks are read once."""
    hints = get_type_hints(Run)
    run = msgspec.defstruct("RunFields", [(name, hints[name]) for name in layout.run_fields()])
    return msgspec.defstruct("ReadRun", [("run", run)], bases=(layout.StoredRun,), frozen=True)
