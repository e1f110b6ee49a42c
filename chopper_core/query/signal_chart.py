"""A signal over the time of a view, for its chart and the sparklines of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups
from chopper_core.model.run import Run, interval_of, scope_of
from chopper_core.model.signals import Signal, mean_known
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index

MAX_SPARKLINE_GPUS: Final = 128
"""The most GPUs of a row for which its sparkline is computed."""
MAX_SPARKLINE_ACTIVITIES: Final = 1 << 24
"""The most activities that are gathered to find the GPUs of the rows."""


class SignalChart(Struct, frozen=True):
    """A signal of a node's GPUs over the node's time, or over the window of its view."""

    signal: Signal
    start_ns: int
    """Since the run's first activity."""
    end_ns: int
    scope_ns: tuple[int, int]
    """The node's own time."""
    gpus: tuple[int, ...]
    values: Float64
    """GPUs x bins of equal width; NaN where the signal is unknown."""

    @property
    def is_zoomed(self) -> bool:
        """Whether it shows a time range other than the node's."""
        return (self.start_ns, self.end_ns) != self.scope_ns


def _wanted() -> None:
    """Somebody waits for it."""


def signal_chart(
    run: Run, view: View, bins: int, check: Callable[[], None] = _wanted
) -> SignalChart:
    """The signal of a view over its node, from its first start to its last end, or its window.

    `check` raises Cancelled once nobody waits for it: many GPUs take long.
    """
    signal = run.signal(view.signal)
    scope = scope_of(run, view)
    start, end = scope
    if view.window:
        seen = interval_of(run, view)
        start, end = seen.from_ns, seen.to_ns
    there = (
        [gpu.index for gpu in run.gpus]
        if run.is_sampled_only
        else run.tree(view.order).node(view.path).gpus(0)
    )
    gpus = [gpu for gpu in there if gpu in signal.curves]
    bounds = np.linspace(start + run.origin_ns, end + run.origin_ns, bins + 1)
    values = []
    for gpu in gpus:
        check()
        values.append(signal.curves[gpu].means(bounds))
    stacked = np.stack(values) if values else np.full((0, bins), np.nan)
    return SignalChart(signal, start, end, scope, tuple(gpus), stacked)


def means_of(signal: Signal, nodes: Groups, shown: Index) -> Callable[[Index, int], Float64]:
    """The means of a signal over the time of the shown nodes, as `Frame.means`.

    NaN for nodes on more than MAX_SPARKLINE_GPUS GPUs, or with more than MAX_SPARKLINE_ACTIVITIES
    activities whose GPUs aren't indexed: they would take too long.
    """

    def means(rows: Index, bins: int) -> Float64:
        result = np.full((len(rows), bins), np.nan)
        if not nodes.has_gpus and int(nodes.sizes().sum()) > MAX_SPARKLINE_ACTIVITIES:
            return result
        start, end = nodes.min("start_ns"), nodes.max("end_ns")
        for position, row in enumerate(shown[rows]):
            bounds = np.linspace(start[row], end[row], bins + 1)
            gpus = [gpu for gpu in nodes.gpus(int(row)) if gpu in signal.curves]
            if len(gpus) > MAX_SPARKLINE_GPUS:
                continue
            values = [signal.curves[gpu].means(bounds) for gpu in gpus]
            if values:
                result[position] = mean_known(np.stack(values))
        return result

    return means
