"""Samples of processors as columns of a file, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from chopper_core.arrows import array_of, lists_of, numbers_of, text_lists_of, texts_of
from chopper_core.cpu import CpuSamples

_TEXTS: Final = ("path", "format", "clock", "method")
_NUMBERS: Final = ("offset_ns", "uncertainty_ns", "samples")
_ARRAYS: Final = {"cpus": np.int64, "cores": np.int64, "times_ns": np.int64, "percent": np.float64}


def as_table(files: Sequence[CpuSamples]) -> pa.Table:
    """All files as a table, a row for each."""
    given: dict[str, list[Any]] = {
        name: [getattr(file, name) for file in files] for name in CpuSamples.__struct_fields__
    }
    columns: dict[str, pa.Array] = {name: texts_of(given[name]) for name in _TEXTS}
    columns |= {name: _numbers(given[name]) for name in _NUMBERS}
    columns["notes"] = text_lists_of(given["notes"])
    for name, kind in _ARRAYS.items():
        columns[name] = lists_of([values.ravel() for values in given[name]], kind)
    return pa.table(columns)


def _numbers(values: Sequence[int | None]) -> pa.Int64Array:
    known = np.array([value is not None for value in values], np.bool_)
    return array_of(np.array([value or 0 for value in values], np.int64), known)


def from_table(table: pa.Table) -> tuple[CpuSamples, ...]:
    """The files of such a table."""
    found = []
    table = table.combine_chunks()
    for row in range(len(table)):
        values = {name: table.column(name)[row].as_py() for name in (*_TEXTS, *_NUMBERS)}
        values["notes"] = tuple(table.column("notes")[row].as_py())
        for name in _ARRAYS:
            values[name] = numbers_of(table.column(name)[row].values)
        shape = len(values["times_ns"]), len(values["cpus"])
        values["percent"] = values["percent"].reshape(shape)
        found.append(CpuSamples(**values))
    return tuple(found)
