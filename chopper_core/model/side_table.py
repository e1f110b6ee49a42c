"""Side tables: what a run knows next to its kernels, such as allocations, row by row of a GPU.

A side table is one struct: its columns, which of them are codes, times and rows, and its file in a
store. From these declarations follow how the tables of several ranks become one, how times move
onto one clock, and how a table is stored; `store.format.SIDE_TABLES` lists those that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.arrays import AnyArray, Int32, Int64

_DTYPES: Final = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64, "Float64": np.float64}


class SideTable(Struct, frozen=True, eq=False):
    """Rows in order of GPU; the fields after `names` are columns of one length."""

    FILE: ClassVar[str]
    """Its file in a store, which lacks it where it has no rows."""
    NAME: ClassVar[type[Any]] = str
    """The type of `names`: texts, or structs."""
    CODES: ClassVar[tuple[str, ...]] = ()
    """The columns of codes; -1 is none."""
    TIMES: ClassVar[tuple[str, ...]] = ()
    """The columns of times on the run's clock."""
    ROWS: ClassVar[tuple[str, ...]] = ()
    """The columns of row numbers of the table itself; -1 is none."""

    names: Sequence[Any]
    """The names that codes stand for, each of type `NAME`."""
    gpu: Int32

    def __len__(self) -> int:
        return len(self.gpu)

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__[1:]

    def columns(self) -> dict[str, AnyArray]:
        return {name: getattr(self, name) for name in self.column_names()}

    def of_gpu(self, gpu: int, column: str = "", value: int = 0) -> slice:
        """The rows of a GPU; with one value of the column that they are in order of."""
        begin, end = np.searchsorted(self.gpu, [gpu, gpu + 1]).tolist()
        if not column:
            return slice(begin, end)
        low, high = np.searchsorted(getattr(self, column)[begin:end], [value, value + 1]).tolist()
        return slice(begin + low, begin + high)

    def in_memory(self) -> Self:
        """The same without the file that it may be mapped from."""
        return replace(self, **{name: values.copy() for name, values in self.columns().items()})

    def moved(self, by_gpu: Int64) -> Self:
        by = by_gpu[self.gpu]
        return replace(self, **{name: getattr(self, name) + by for name in self.TIMES})

    def from_gpu(self, first: int) -> Self:
        return replace(self, gpu=self.gpu + np.int32(first))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        parts = [part for part in parts if len(part)]
        columns: dict[str, list[AnyArray]] = {name: [] for name in cls.column_names()}
        names: dict[Any, int] = {}
        first = 0
        for part in parts:
            codes = [names.setdefault(name, len(names)) for name in part.names]
            recoded = np.array([*codes, -1], np.int32)
            for name, values in part.columns().items():
                if name in cls.CODES:
                    values = recoded[values]
                elif name in cls.ROWS:
                    values = np.where(values < 0, values, values + first).astype(values.dtype)
                columns[name].append(values)
            first += len(part)
        if not parts:
            return empty(cls)
        return cls(tuple(names), **{name: np.concatenate(each) for name, each in columns.items()})


T = TypeVar("T", bound=SideTable)
SideTables = Mapping[type[SideTable], SideTable]
"""Kind of side table → a run's own, for those that have rows."""


def empty(kind: type[T]) -> T:
    kinds = SideTable.__annotations__ | kind.__annotations__
    return kind((), *(np.empty(0, _DTYPES[kinds[name]]) for name in kind.column_names()))


def side_tables(*tables: SideTable) -> SideTables:
    return {type(table): table for table in tables if len(table)}


def joined_tables(ranks: Iterable[tuple[SideTables, int]]) -> SideTables:
    """The tables of a run from those of its ranks, each with the number of its first GPU."""
    found: dict[type[SideTable], list[SideTable]] = {}
    for tables, first in ranks:
        for kind, table in tables.items():
            found.setdefault(kind, []).append(table.from_gpu(first))
    return side_tables(*(kind.joined(parts) for kind, parts in found.items()))
