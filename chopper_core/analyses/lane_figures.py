"""Figures of the lanes of a timeline over its window, and between its mark and its cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.analyses.lane_cells import KIND_NAMES
from chopper_core.analyses.lanes import Lane
from chopper_core.columns import Values, row_columns
from chopper_core.model.signals import TimeSpans
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Int64

LANE_ROWS: Final = "lanes of a timeline"
row_columns(
    LANE_ROWS,
    """
    lane_ns | ns | busy time | sum
        Time of the window in which anything runs on the lane.
    lane_pct | % | busy %
        Share of the window in which anything runs on the lane.
    lane_compute_pct | % | compute
        Share of the window in which compute runs on the lane.
    lane_comm_pct | % | comm
        Share of the window in which communication runs on the lane.
    lane_copy_pct | % | copy
        Share of the window in which a copy runs on the lane.
    lane_activities | | activities | sum
        Activities that run on the lane at any time of the window.
    scope_ns | ns | of scope | sum
        Time of the window in which activities of the scope itself run on the lane.
    between_ns | ns | busy Δ
        Time between the mark and the cursor in which anything runs on the lane.
        missing: the view has no mark (mark=)
    between_activities | | activities Δ
        Activities that run on the lane at any time between the mark and the cursor.
        missing: the view has no mark (mark=)
""",
)


def lane_figures(
    lanes: Sequence[Lane],
    window: tuple[int, int],
    marked: Sequence[int] | None,
    scoped: Sequence[TimeSpans] | None,
) -> dict[str, Values]:
    """The figures of lanes by column, over a window in ns of the run's clock.

    `marked` are the ends between mark and cursor, `scoped` the time of the scope's own activities
    on each lane; None without.
    """
    begin, end = window
    length = max(end - begin, 1)

    def within(times: Sequence[TimeSpans], begin: int, end: int) -> Int64:
        ends = np.array([begin, end], np.int64)
        return np.array([int(each.between(ends)[0]) for each in times], np.int64)

    def counted(begin: int, end: int) -> Values:
        return Values(np.array([lane.count(begin, end) for lane in lanes], np.int64))

    every = [lane.busy for lane in lanes]
    busy = within(every, begin, end)
    found = {
        "gpu": Values(np.array([lane.gpu for lane in lanes], np.int64)),
        "lane_ns": Values(busy),
        "lane_pct": Values(100.0 * busy / length),
    }
    for kind, word in zip(Kind, KIND_NAMES, strict=True):
        taken = within([lane.kinds[kind] for lane in lanes], begin, end)
        found[f"lane_{word}_pct"] = Values(100.0 * taken / length)
    found["lane_activities"] = counted(begin, end)
    if scoped is not None:
        found["scope_ns"] = Values(within(scoped, begin, end))
    if marked is not None:
        first, last = marked
        found["between_ns"] = Values(within(every, first, last))
        found["between_activities"] = counted(first, last)
    return found
