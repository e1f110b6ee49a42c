"""Peers: a cell against its like, such as an operation on one GPU against the same on the others.

Ranks, heat maps, marks, comparisons and findings ask one question: how far is a figure of a cell
from the median of the cells that do the same? Like cells agree in all labels but one (`by`), and in
their work: the same kernels, of the same names, shapes and FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups
from chopper_core.model.same_work import work_of
from chopper_core.util.arrays import Float64, Int64, Numbers
from chopper_core.util.grouping import others_median_of, ranked


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
