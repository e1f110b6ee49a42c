"""Arrow files, which other programs read too (Chopper reads them without pyarrow), and arrays.

Conversions avoid `pa.array` and `to_numpy`, which import pandas: 0.4 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from chopper_core.tables.mmap_columns import ENDS, ColumnPlace, content_of
from chopper_core.util.arrays import AnyArray, Mask


def write_arrow(path: Path, columns: Mapping[str, AnyArray]) -> dict[str, ColumnPlace]:
    """Write columns of one length; returns their places."""
    return _write(path, pa.table({name: array_of(values) for name, values in columns.items()}))


def write_lists(path: Path, columns: Mapping[str, Sequence[AnyArray]]) -> dict[str, ColumnPlace]:
    """Write list columns, whose rows are arrays; returns their places."""
    return _write(path, pa.table({name: _lists(rows) for name, rows in columns.items()}))


def _lists(rows: Sequence[AnyArray]) -> pa.LargeListArray:
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    values = np.concatenate(rows) if rows else np.empty(0)
    return pa.LargeListArray.from_arrays(array_of(ends), array_of(values))


def _write(path: Path, table: pa.Table) -> dict[str, ColumnPlace]:
    with path.open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return dict(_places(pa.py_buffer(content_of(path))))


def _places(content: pa.Buffer) -> Iterator[tuple[str, ColumnPlace]]:
    table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
    for field, column in zip(table.schema, table.columns, strict=True):
        if not len(column):
            yield field.name, ColumnPlace(str(_dtype(field.type)), 0, 0)
            continue
        array = column.chunk(0)
        if pa.types.is_large_list(array.type):
            yield f"{field.name}{ENDS}", _place(array.offsets, content)
            array = array.values
        yield field.name, _place(array, content)


def _place(array: pa.Array, content: pa.Buffer) -> ColumnPlace:
    if not len(array):
        return ColumnPlace(str(_dtype(array.type)), 0, 0)
    return ColumnPlace(
        str(_dtype(array.type)), array.buffers()[1].address - content.address, len(array)
    )


def array_of(numbers: AnyArray, known: Mask | None = None) -> pa.Array:
    """Numbers as an Arrow array, without a copy; null where not `known`."""
    numbers = np.ascontiguousarray(numbers)
    validity = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    buffers = [validity, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def texts_of(texts: Sequence[str]) -> pa.StringArray:
    contents = [text.encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([0, *map(len, contents)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(contents))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def numbers_of(array: pa.Array) -> AnyArray:
    """The numbers of an Arrow array without nulls."""
    if not len(array):
        return np.empty(0, _dtype(array.type))
    numbers = np.frombuffer(array.buffers()[1], _dtype(array.type))
    return numbers[array.offset : array.offset + len(array)]


def numbers_or(column: pa.Array | pa.ChunkedArray, missing: float) -> AnyArray:
    """The numbers of a column, with `missing` in place of nulls."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    numbers, validity = numbers_of(array), array.buffers()[0]
    if validity is None:
        return numbers
    is_valid = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return np.where(is_valid[array.offset : array.offset + len(array)], numbers, missing)


@cache
def _dtype(type_: pa.DataType) -> np.dtype[Any]:
    kind = type_.value_type if pa.types.is_large_list(type_) else type_
    return np.dtype("float64" if kind == pa.float64() else str(kind))
