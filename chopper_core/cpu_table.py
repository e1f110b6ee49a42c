"""Samples of processors as columns of a file, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from chopper_core.cpu import CpuSamples

_WORDS: Final = (
    ("path", pa.string()),
    ("format", pa.string()),
    ("clock", pa.string()),
    ("offset_ns", pa.int64()),
    ("uncertainty_ns", pa.int64()),
    ("method", pa.string()),
    ("samples", pa.int64()),
    ("notes", pa.list_(pa.string())),
)
_ARRAYS: Final = (
    ("cpus", pa.large_list(pa.int64())),
    ("cores", pa.large_list(pa.int64())),
    ("times_ns", pa.large_list(pa.int64())),
    ("percent", pa.large_list(pa.float64())),
)


def as_table(files: Sequence[CpuSamples]) -> pa.Table:
    """All files as a table, a row for each."""
    columns: dict[str, Any] = {
        name: pa.array([getattr(file, name) for file in files], kind) for name, kind in _WORDS
    }
    columns |= {
        name: pa.array([getattr(file, name).ravel() for file in files], kind)
        for name, kind in _ARRAYS
    }
    return pa.table(columns)


def from_table(table: pa.Table) -> tuple[CpuSamples, ...]:
    """The files of such a table."""
    found = []
    table = table.combine_chunks()
    for row in range(len(table)):
        values: dict[str, Any] = {name: table.column(name)[row].as_py() for name, _ in _WORDS}
        values["notes"] = tuple(values["notes"])
        for name, kind in _ARRAYS:
            values[name] = _numpy(table.column(name)[row].values, str(kind.value_type))
        shape = len(values["times_ns"]), len(values["cpus"])
        values["percent"] = values["percent"].reshape(shape)
        found.append(CpuSamples(**values))
    return tuple(found)


def _numpy(array: pa.Array, kind: str) -> NDArray[Any]:
    """Numbers without nulls; pyarrow's own way there imports pandas."""
    kind = "float64" if kind == "double" else kind
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]
