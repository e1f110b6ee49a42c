"""Signals of a node over time: its chart, and the means of each row for sparklines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.groups import Groups
from chopper_core.model.run import Run, interval_of, scope_of
from chopper_core.model.signals import Signal, bounds_of
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import evenly, ratios
from chopper_core.views.frame import no_means

MOST_CHARTED_GPUS: Final = 1024
"""Of more, as many at equal distances: to read a GPU takes half a millisecond."""
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
    there: int = 0
    """How many GPUs have the signal; of very many, some are shown."""

    @property
    def is_zoomed(self) -> bool:
        return (self.start_ns, self.end_ns) != self.scope_ns


def kept_signal_chart(
    run: Run, view: View, bins: int, check: Callable[[], None] = lambda: None
) -> SignalChart:
    """`signal_chart` once for a view, with its values from what is kept with the run's files: those
    of thousands of GPUs take long."""
    key = "signal chart", view, bins
    return run.memo(key, lambda: signal_chart(run, view, bins, check, key))


def signal_chart(
    run: Run,
    view: View,
    bins: int,
    check: Callable[[], None] = lambda: None,
    key: tuple[Hashable, ...] = (),
) -> SignalChart:
    """The signal of a view over its node, from its first start to its last end, or its window.

    With a `key`, its values are kept with the run's files, unless it is of a window: a person goes
    through many. `check` raises Cancelled once the result is no longer wanted: many GPUs are slow.
    """
    signal = run.signals(view.signal)[0]
    scope = scope_of(run, view)
    start, end = scope
    if view.window:
        seen = interval_of(run, view)
        start, end = seen.from_ns, seen.to_ns
    there = (
        [gpu.index for gpu in run.gpus]
        if run.is_sampled_only and not (view.path and len(run.table))
        else run.tree(view.order).node(view.path).gpus(0)
    )
    known = [gpu for gpu in there if gpu in signal.curves]
    gpus = evenly(known, MOST_CHARTED_GPUS)
    bounds = bounds_of(start + run.origin_ns, end + run.origin_ns, bins)

    def made() -> Float64:
        values = np.full((len(gpus), bins), np.nan)
        for row, gpu in enumerate(gpus):
            check()
            values[row] = signal.curves[gpu].means(bounds)
        return values

    def checked(values: Float64) -> Float64:
        if values.shape != (len(gpus), bins):
            raise ValueError("a chart of other GPUs, or of another width")
        return values

    is_kept = bool(key) and not view.window
    values = run.kept(key, Float64, made, lambda each: each, checked) if is_kept else made()
    return SignalChart(signal, start, end, scope, gpus, values, len(known))


def signal_means(
    signal: Signal, nodes: Groups, shown: Index, has: Callable[[Signal], bool]
) -> Callable[..., Float64]:
    """The means of a signal that it `has` over the time of the shown nodes, as `Frame.means`.

    NaN for nodes on more than MAX_SPARKLINE_GPUS GPUs, or with more than MAX_SPARKLINE_ACTIVITIES
    activities whose GPUs aren't indexed: they would take too long.
    """

    def means(rows: Index, bins: int, of: Signal = signal) -> Float64:
        if not has(of):
            return no_means(rows, bins)
        known = nodes.means_of.setdefault((of.name, bins), {})
        chosen = shown[rows].tolist()
        asked = [row for row in dict.fromkeys(chosen) if row not in known]
        known.update(zip(asked, _means(of, nodes, asked, bins), strict=True))
        return np.array([known[row] for row in chosen]).reshape(-1, bins)

    return means if has(signal) else no_means


def _means(signal: Signal, nodes: Groups, chosen: Sequence[int], bins: int) -> Float64:
    total, count = np.zeros((len(chosen), bins)), np.zeros((len(chosen), bins), np.intp)
    is_much = not nodes.has_gpus and int(nodes.sizes().sum()) > MAX_SPARKLINE_ACTIVITIES
    if not is_much and chosen:
        start, end = nodes.min("start_ns"), nodes.max("end_ns")
        bounds = bounds_of(start[chosen], end[chosen], bins)
        # A GPU's curve is read once for all rows.
        places_of: dict[int, list[int]] = {}
        for place, row in enumerate(chosen):
            gpus = [gpu for gpu in nodes.gpus(row) if gpu in signal.curves]
            for gpu in gpus if len(gpus) <= MAX_SPARKLINE_GPUS else ():
                places_of.setdefault(gpu, []).append(place)
        for gpu, places in sorted(places_of.items()):
            values = signal.curves[gpu].means(bounds[places])
            is_known = np.isfinite(values)
            total[places] += np.where(is_known, values, 0.0)
            count[places] += is_known
    return ratios(total, count)
