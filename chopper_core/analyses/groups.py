"""Rows of a node brought together by a code of their own, wherever they lie in the tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chopper_core.tree import Groups


def grouped(parent: Groups, codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Groups]:
    """The different codes in rising order, and the rows of each in their order.

    `codes` has one code per row of `parent.rows`.
    """
    order = np.argsort(codes, kind="stable")
    ordered = np.asarray(codes)[order].astype(np.int64)
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return ordered[first], Groups(parent.table, parent.rows[order], first)


def quantiles(groups: Groups, column: str, shares: tuple[float, ...]) -> NDArray[np.float64]:
    """Quantiles of a column over each group, as groups x shares, by linear interpolation."""
    values = groups.table.column(column)[groups.rows].astype(np.float64)
    owner = np.repeat(np.arange(len(groups)), groups.sizes())
    ordered = values[np.lexsort((values, owner))]
    sizes = groups.sizes()
    places = groups.first[:, None] + np.asarray(shares) * (sizes - 1)[:, None]
    low = np.floor(places).astype(np.intp)
    high = np.ceil(places).astype(np.intp)
    weight = places - low
    found: NDArray[np.float64] = ordered[low] * (1 - weight) + ordered[high] * weight
    return found
