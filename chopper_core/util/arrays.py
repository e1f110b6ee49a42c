"""The types of the arrays that columns, labels and selections are made of."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

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


def to_list(value: object) -> list[Any]:
    """An array as a list that JSON can hold, where NaN becomes null: msgspec's `enc_hook`."""
    if isinstance(value, np.ndarray):
        numbers: list[Any] = value.tolist()
        return numbers
    raise NotImplementedError(f"{type(value).__name__} is not an array")


def from_list(kind: Any, numbers: list[Any]) -> AnyArray:
    """The array of a list, with the type of an annotation such as `Float64`: a `dec_hook`."""
    return np.array(numbers, get_args(get_args(kind)[1])[0])
