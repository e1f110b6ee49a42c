"""The order of rows and their signal over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.metrics import Values
from chopper_core.model.signals import Signal, mean_known
from chopper_core.model.tree import Groups
from chopper_core.query.comparison import (
    is_difference,
)
from chopper_core.util.arrays import Float64, Index

if TYPE_CHECKING:
    pass


NAME = "name"
"""The column of the labels, for sorting."""
LONGEST_FIRST = ("operation", "kernel")


def ordered(
    shown: Index, level: str, labels: list[str], sort: str, values: Callable[[str], Values]
) -> Index:
    """The order of the rows; by name is the level's own order, but for operations and kernels."""
    if not sort:
        return np.arange(len(shown))
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name == NAME:
        order = np.arange(len(shown))
        if level in LONGEST_FIRST:
            order = np.array(sorted(order, key=lambda row: labels[int(shown[row])]), np.intp)
        return order[::-1] if descending else order
    column = values(name).take(shown)
    # What changed most, in either direction, is what a difference is sorted for.
    size = np.abs(column.numbers) if is_difference(name) else column.numbers
    numbers = -size if descending else size
    # Rows without a value come last in both directions.
    return np.lexsort((numbers, ~column.present()))


MOST_GPUS: Final = 128
"""GPUs of a row of which a sparkline is worked out."""
MOST_ACTIVITIES: Final = 1 << 24
"""Activities that are brought together to know on which GPUs the rows are."""


def means_of(signal: Signal, nodes: Groups, shown: Index) -> Callable[[Index, int], Float64]:
    """The means of a track over the time of the shown nodes, as a frame has them.

    Of nodes on very many GPUs, or of very many activities whose GPUs aren't at hand, none are
    known: they would take longer than anybody waits.
    """

    def means(rows: Index, bins: int) -> Float64:
        result = np.full((len(rows), bins), np.nan)
        if not nodes.has_gpus and int(nodes.sizes().sum()) > MOST_ACTIVITIES:
            return result
        start, end = nodes.min("start_ns"), nodes.max("end_ns")
        for position, row in enumerate(shown[rows]):
            bounds = np.linspace(start[row], end[row], bins + 1)
            gpus = [gpu for gpu in nodes.gpus(int(row)) if gpu in signal.curves]
            if len(gpus) > MOST_GPUS:
                continue
            values = [signal.curves[gpu].means(bounds) for gpu in gpus]
            if values:
                result[position] = mean_known(np.stack(values))
        return result

    return means
