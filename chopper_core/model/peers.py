"""Peers: a cell against its like, such as an operation on one GPU against the same on the others.

Ranks, heat maps, marks, comparisons and findings ask one question: how far is a figure of a cell
from the median of the cells that do the same? Like cells agree in all labels but one (`by`), and in
their work: the same kernels, of the same names, shapes and FLOPs, as far as the trace tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.column_names import CALL_SHAPE, FLOPS
from chopper_core.model.groups import Groups
from chopper_core.model.table import KernelTable, Selection
from chopper_core.util.arrays import Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import hashes, others_median_of, ranked

_SIZES: Final = (CALL_SHAPE, FLOPS)
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_SHAPE_FACTOR: Final = 0x2545F4914F6CDD1D
_SPARE_BITS: Final = 15
"""Of 63, so that 32 thousand of them can be added."""


def knows_sizes(table: KernelTable) -> bool:
    """Whether the trace tells shapes or FLOPs, so that more than names can be compared."""
    return any(name in table.measured for name in _SIZES)


def is_same_work(table: KernelTable, parts: Sequence[Index]) -> Mask:
    """Whether rows side by side do the same: equal sizes, and equal names where some are unknown.

    An autotuner may choose kernels of other names for the same product.
    """
    first = parts[0]
    same, known = np.ones(len(first), np.bool_), np.zeros(len(first), np.bool_)
    for name in _SIZES:
        if name in table.measured:
            sizes = [np.nan_to_num(table.measured[name][rows], nan=-1.0) for rows in parts]
            usual = np.maximum.reduce(sizes)
            for own in sizes:
                same &= (own == usual) | (own < 0)
            known |= np.minimum.reduce(sizes) >= 0
    for rows in parts[1:]:
        same &= known | (table.kernel[rows] == table.kernel[first])
    return same


def work_of(table: KernelTable, rows: Selection) -> Int64:
    """A number per activity, equal for the same kernel; sums differ where the kernels do."""
    found = hashes(len(table.names))[table.kernel[rows]]
    if CALL_SHAPE in table.measured:
        # FLOPs follow from the shape of a call and the kernel.
        shape = np.nan_to_num(table.measured[CALL_SHAPE][rows], nan=-1.0).astype(np.int64) + 1
        found = found + (hashes(int(shape.max(initial=0)) + 1) * _SHAPE_FACTOR)[shape]
    elif FLOPS in table.measured:
        flops = np.nan_to_num(table.measured[FLOPS][rows], nan=-1.0).view(np.uint64)
        found = found + ((flops * _MIXER) >> np.uint64(1)).astype(np.int64)
    return (found & np.iinfo(np.int64).max) >> _SPARE_BITS


class PeerFigures(Struct, frozen=True, eq=False):
    """A figure of cells and of their like; arrays along the cells."""

    values: Float64
    usual: Float64
    """The median of the like cells, without the cell itself; NaN without any."""
    count: Int64
    """How many like cells there are, without the cell itself."""

    @property
    def beyond(self) -> Float64:
        """Each value less the usual one."""
        return self.values - self.usual

    @property
    def ratio(self) -> Float64:
        """Each value over the usual one; NaN where that is 0 or unknown."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.usual != 0, self.values / self.usual, np.nan)


def peers(
    cells: Groups,
    by: str,
    figure: Callable[[Groups], Numbers],
    like: Sequence[str | Int64] = (),
    *,
    any_work: bool = False,
) -> PeerFigures:
    """A figure of each cell next to the median of its like.

    `cells` have one cell per label of `by` and of `like`: levels, or codes along the cells. With
    the iteration among `like` the comparison is per iteration, else over the whole group. Cells of
    other work are no peers, unless `any_work`. A value that is NaN is no peer's.
    """
    keys = [each if isinstance(each, np.ndarray) else cells.codes(each) for each in like]
    if not any_work:
        rows = cells.selection
        keys.append(np.add.reduceat(work_of(cells.table, rows), cells.first))
    group = np.zeros(len(cells), np.intp)
    for key in keys:
        codes, place = ranked(key)
        group = ranked(group * len(codes) + place)[1]
    pairs = group.astype(np.int64) * (int(cells.codes(by).max(initial=0)) + 2) + cells.codes(by)
    if len(ranked(pairs)[0]) < len(cells):
        raise ValueError(f"cells are not split by {by} and {', '.join(map(str, like))} alone")
    values = np.asarray(figure(cells), np.float64)
    usual, count = others_median_of(values, group)
    return PeerFigures(values, usual, count)
