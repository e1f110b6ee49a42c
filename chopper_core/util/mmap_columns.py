"""Columns that lie in files as they lie in memory: mapped, so that only what is used is read.

The files are Arrow's, uncompressed. Where in them the numbers lie is kept by who wrote them: Arrow
would have to be imported to find them, which takes longer than all else that opens a store.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.util.arrays import AnyArray

ENDS: Final = " ends"
"""Behind the name of a column of lists: where its rows begin and end."""

Content = mmap.mmap | bytes


class Place(Struct, frozen=True, array_like=True):
    """Where the numbers of a column lie in a file."""

    kind: str
    begin: int
    count: int


def content_of(path: Path) -> Content:
    """A file, mapped; read whole where the file system can't map it."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return path.read_bytes()


def numbers_at(content: Content, place: Place) -> AnyArray:
    """The numbers at a place; ValueError where the file is too short for them."""
    return np.frombuffer(content, np.dtype(place.kind), place.count, place.begin)


def columns_of(content: Content, places: Mapping[str, Place]) -> dict[str, AnyArray]:
    """All columns of a file."""
    return {name: numbers_at(content, place) for name, place in places.items()}


def lists_of(columns: Mapping[str, AnyArray], name: str) -> list[AnyArray]:
    """The rows of a column of lists; none where the file has no rows."""
    values = columns.get(name, np.empty(0))
    ends = columns.get(f"{name}{ENDS}", np.empty(0, np.int64)).tolist()
    return [values[begin:end] for begin, end in pairwise(ends)]
