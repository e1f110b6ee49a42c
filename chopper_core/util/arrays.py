"""The types of the arrays that columns, labels and selections are made of, and their JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

AnyArray = NDArray[Any]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Index = NDArray[np.intp]
"""Positions of rows."""
Mask = NDArray[np.bool_]
Codes = NDArray[np.integer[Any]]
"""Integers of any width."""
Numbers = NDArray[np.generic]
"""Integers, floats or truth values."""
_ELEMENTS: Final[dict[Any, DTypeLike]] = {
    Int8: np.int8,
    Int32: np.int32,
    Int64: np.int64,
    Float64: np.float64,
    Index: np.intp,
    Mask: np.bool_,
}
"""numpy changes what is inside an `NDArray`: an alias is only compared."""


class Rows(msgspec.Struct, frozen=True, eq=False):
    """A record of columns, whose last axis has a row each; other fields are the same for all."""

    def columns(self) -> dict[str, AnyArray]:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: each for name, each in fields if isinstance(each, np.ndarray)}

    def __len__(self) -> int:
        fields = (getattr(self, name) for name in self.__struct_fields__)
        return int(next(each.shape[-1] for each in fields if isinstance(each, np.ndarray)))

    def take(self, rows: Index | Mask | slice) -> Self:
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        columns = self.columns()
        # Of a column under two names once.
        taken = {id(each): each[..., rows] for each in columns.values()}
        own = {name: taken[id(each)] for name, each in columns.items()}
        return msgspec.structs.replace(self, **own)

    def joined(self, other: Self) -> Self:
        others = other.columns()
        return msgspec.structs.replace(self, **{
            name: np.concatenate([each, others[name]], axis=-1)
            for name, each in self.columns().items()
        })  # fmt: skip


@cache
def column_types(table: type[msgspec.Struct]) -> Mapping[str, DTypeLike]:
    """The element types of a table's columns."""
    found = {field.name: field.type for field in msgspec.structs.fields(table)}
    return {name: _ELEMENTS[kind] for name, kind in found.items() if kind in _ELEMENTS}


def json_of(value: object, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON; bytes of a path that are no UTF-8 become escapes, as they are printed."""
    try:
        return msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)
        return msgspec.json.encode(_encodable(plain))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [*map(_encodable, value)] if isinstance(value, list | tuple) else value


def encodable(text: str) -> str:
    """A text in which bytes of a path that are no UTF-8 are escapes: `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()
