"""Levels beyond those of the tree: any column of the activities splits a table and scopes a path.

`class=gemm`, `stream=7` and `iteration%2=0` are steps of a path as `layer=3` is. What needs more
than the model is added where it is known, with `add_split`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.util.arrays import Int64
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.model.table import KernelTable

_MADE: Final = ("class", "shape")
SPLITS: Final = (*_MADE, "stream", "kind")
"""The columns that split, the most useful first; besides, `iteration%N` of every N iterations."""
PATTERN: Final = rf"{'|'.join(SPLITS)}|iteration%[1-9]\d{{0,5}}"
"""Any of them, as a regular expression."""
_CYCLE: Final = late(r"iteration%([1-9]\d{0,5})")
_KNOWN: Final = late(PATTERN)

Codes = tuple[Int64, Sequence[str]]
"""The code of each activity, -1 where it has none, and the text of each code."""
_CODES: Final[dict[str, Callable[[KernelTable], Codes]]] = {}


def add_split(name: str) -> Callable[[Callable[[KernelTable], Codes]], None]:
    return lambda codes: _CODES.__setitem__(name, codes)


def is_split(level: str) -> bool:
    """Whether a level is a column of the activities."""
    return _KNOWN.fullmatch(level) is not None


def is_made(level: str) -> bool:
    """Whether a split is no column of a table: its codes are made where it is asked for."""
    return level in _MADE or "%" in level


def quoted_cycles(text: str) -> str:
    """An address whose `iteration%12` is no escape of a character."""
    return re.sub(r"\biteration%(?!25\d)(?=\d)", "iteration%25", text)


def split_codes(table: KernelTable, level: str) -> Codes:
    """The codes of a table's activities along a split, computed once per table."""
    if level not in table.split_cache:
        table.split_cache[level] = _codes_of(table, level)
    return table.split_cache[level]


def _codes_of(table: KernelTable, level: str) -> Codes:
    if cycle := _CYCLE.fullmatch(level):
        length = int(cycle[1])
        codes = np.where(table.iteration < 0, -1, table.iteration % length).astype(np.int64)
        return codes, [str(code) for code in range(length)]
    return _CODES[level](table)
