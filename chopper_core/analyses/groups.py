"""Rows of a node brought together by a code of their own, wherever they lie in the tree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from chopper_core.tree import Groups
from chopper_core.view import View, pivot


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


def by_level(parent: Groups, level: str) -> tuple[list[str], Groups]:
    """The labels of a level within a node, in the order of their codes, and the rows of each."""
    codes, nodes = grouped(parent, parent.table.column(level)[parent.rows])
    return [parent.table.text_of(level, code) for code in codes.tolist()], nodes


def into(view: View, level: str, label: str) -> View:
    """The part of a view's node with a label: split by its level, or the node if it is above."""
    plain = replace(view, analysis="", by="", of="", columns=(), sort="", filter="")
    if level in view.order[: len(view.path)]:
        return plain
    split = pivot(plain, level)
    return replace(split, path=(*split.path, label))
