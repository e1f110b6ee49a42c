"""Columns that grow in place: what was read so far is held once, without a list of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from chopper_core.sources.kineto.columns import Columns
from chopper_core.util.arrays import AnyArray

_FIRST_ROWS: Final = 1 << 12
_PRIVATE: Final = {"flags": MAP_PRIVATE | MAP_ANONYMOUS}


class GrowingColumn:
    """Numbers in one array, which has room for more: memory that is not touched is not taken."""

    def __init__(self, kind: DTypeLike) -> None:
        self._array: AnyArray = np.empty(0, kind)
        self._room: mmap | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, values: AnyArray) -> None:
        """Append numbers."""
        end = self._count + len(values)
        if end > len(self._array):
            self._grow(max(len(self._array) * 3 // 2, end, _FIRST_ROWS))
        self._array[self._count : end] = values
        self._count = end

    def whole(self) -> AnyArray:
        """Return all numbers, as long as none is appended."""
        return self._array[: self._count]

    def _grow(self, rows: int) -> None:
        """Make room of own pages, which are given back whole: the heap keeps what lies below."""
        kind = self._array.dtype
        self._array = np.empty(0, kind)
        if self._room is None or not _is_stretched(self._room, rows * kind.itemsize):
            before, self._room = self._room, mmap(-1, rows * kind.itemsize, **_PRIVATE)
            if before is not None:
                np.frombuffer(self._room, kind)[: self._count] = np.frombuffer(
                    before, kind, self._count
                )
        self._array = np.frombuffer(self._room, kind)


def _is_stretched(room: mmap, size: int) -> bool:
    """Whether there is so much room now; its pages move without being copied."""
    try:
        room.resize(size)
    except (BufferError, SystemError):
        # Somebody looks at them, or the system can't.
        return False
    return True


class GrowingColumns:
    """Equally long columns."""

    def __init__(self, types: Mapping[str, DTypeLike]) -> None:
        self._columns = {name: GrowingColumn(kind) for name, kind in types.items()}

    def add(self, columns: Columns) -> None:
        """Append rows to every column."""
        for name, column in self._columns.items():
            column.append(columns[name])

    def extend(self, other: GrowingColumns) -> None:
        """Append the rows of others of the same types, which are forgotten there."""
        self.add(other.joined())

    def last(self) -> Mapping[str, Any]:
        """Return the row that was appended last."""
        return {name: column.whole()[-1] for name, column in self._columns.items()}

    def joined(self) -> Columns:
        """Return the whole columns, and forget them here."""
        return {name: self._columns.pop(name).whole() for name in list(self._columns)}
