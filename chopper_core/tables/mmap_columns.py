"""Columns in files as they are in memory: mapped, so that only the pages in use are read.

The files are uncompressed Arrow files. The writer keeps the place of each column, since finding it
would take importing pyarrow, which takes longer than opening a store.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final
from weakref import WeakSet

import numpy as np
from msgspec import Struct

from chopper_core.util.arrays import AnyArray

ENDS: Final = " ends"
"""Suffix of a list column's name, for the offsets of its rows."""

Content = mmap.mmap | bytes
_mapped: Final[WeakSet[mmap.mmap]] = WeakSet()


class ColumnPlace(Struct, frozen=True, array_like=True):
    """Where the values of a column are in a file."""

    kind: str
    """Their dtype."""
    begin: int
    """Offset of the first in bytes."""
    count: int


def content_of(path: Path) -> Content:
    """The content of a file, mapped; read whole if the file system can't map it."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return path.read_bytes()
    _mapped.add(mapped)
    return mapped


def let_go() -> None:
    """Leave what was read of mapped files to the system's cache, from which it comes again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for each in list(_mapped):
            with suppress(ValueError, OSError):  # It may just have been closed.
                each.madvise(mmap.MADV_DONTNEED)


def numbers_at(content: Content, place: ColumnPlace) -> AnyArray:
    """The values at a place; raises ValueError if the file doesn't have it."""
    if place.count < 0:
        raise ValueError(f"a column of {place.count} values")
    return np.frombuffer(content, np.dtype(place.kind), place.count, place.begin)


def mapped_columns(content: Content, places: Mapping[str, ColumnPlace]) -> dict[str, AnyArray]:
    return {name: numbers_at(content, place) for name, place in places.items()}


def lists_of(columns: Mapping[str, AnyArray], name: str) -> list[AnyArray]:
    """The rows of a list column, none if the file has no rows; raises ValueError."""
    values = columns.get(name, np.empty(0))
    ends = columns.get(f"{name}{ENDS}", np.empty(0, np.int64))
    if len(ends) and (ends[0] or ends[-1] != len(values) or (ends[1:] < ends[:-1]).any()):
        raise ValueError(f"the rows of {name} overlap")
    return [values[begin:end] for begin, end in pairwise(ends.tolist())]
