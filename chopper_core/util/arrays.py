"""The types of the arrays that columns, labels and selections are made of."""

from __future__ import annotations

from typing import Any

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
