"""How heat, clock and the duration of kernels of a GPU go together, and what chance would show."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import Metric, Values, numbered
from chopper_core.model.column_names import EDGE, HEAT
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import ranked
from chopper_core.views.power import columns as c
from chopper_core.views.power.samples import GpuSamples
from chopper_core.views.shared.samples import Sampled, means_beside

Own = list[tuple[Metric, Values]]

CHANCE_Z: Final = 2.576
"""Of the normal distribution: chance exceeds it on either side in 1 % of the cases."""
_FEWEST: Final = 4
"""Independent samples; fewer say nothing about chance."""
_MAX_KERNELS: Final = 1 << 18
"""Of a GPU with more, evenly chosen ones are compared."""
_MAX_OVERLAP: Final = 0.1
"""Of a kernel's time; communication beside it slows it too."""


class Correlation(Struct, frozen=True):
    """Pearson's r of two series in time, and the number of independent samples it rests on."""

    r: float
    independent: float

    @classmethod
    def of(cls, one: Float64, other: Float64) -> Correlation:
        """That of two series, sample by sample.

        Neighbouring samples repeat each other, so that n of them are worth n (1 - ab) / (1 + ab),
        with a and b the autocorrelations at lag 1 (Bartlett 1935).
        """
        if len(one) < _FEWEST or np.ptp(one) == 0 or np.ptp(other) == 0:
            return NOTHING
        both = max(_lag_1(one) * _lag_1(other), 0.0)
        r = float(np.corrcoef(one, other)[0, 1])
        return cls(r, len(one) * (1 - both) / (1 + both))

    @property
    def by_chance(self) -> float:
        """The |r| that unrelated series exceed in 1 % of the cases (Fisher's z); NaN if unknown."""
        if self.independent < _FEWEST:
            return np.nan
        return float(np.tanh(CHANCE_Z / np.sqrt(self.independent - 3)))


NOTHING: Final = Correlation(np.nan, np.nan)


def _lag_1(values: Float64) -> float:
    apart = values - values.mean()
    return float((apart[1:] * apart[:-1]).sum() / (apart**2).sum())


def correlations(run: Run, view: View, found: list[GpuSamples]) -> Own:
    """The columns of the correlations, and of the |r| that chance may show."""
    rows = _compute_rows(run, view)
    pairs: dict[str, list[Correlation]] = {name: [] for name in _COLUMNS}
    for gpu in found:
        clock = gpu.signals["gfx_mhz"]
        slower = _slowdowns(run, rows.get(gpu.gpu), clock)
        heat = next((name for name in HEAT if name in gpu.curves), EDGE)
        beside = {name: means_beside(clock, gpu.curves.get(name)) for name in (*HEAT, "power_w")}
        for name, means in beside.items():
            pairs[name].append(_with(clock.values, means))
        pairs["time"].append(_with(slower, clock.values))
        pairs["heat"].append(_with(slower, beside[heat]))
    own: Own = [
        (metric, numbered([each.r for each in pairs[name]])) for name, metric in _COLUMNS.items()
    ]
    chances = np.array([[each.by_chance for each in pairs[name]] for name in _COLUMNS])
    fewest = np.array([[each.independent for each in pairs[name]] for name in _COLUMNS])
    known = np.isfinite(chances).any(axis=0)
    with np.errstate(invalid="ignore"):
        chance = np.where(known, np.where(np.isfinite(chances), chances, -1.0).max(axis=0), np.nan)
        least = np.where(np.isfinite(chances), fewest, np.inf).min(axis=0)
    own.append((c.CHANCE, numbered(chance)))
    own.append((c.INDEPENDENT, Values(np.where(known, least, 0).astype(np.int64), ~known)))
    return own


_COLUMNS: Final = {
    "hotspot_c": c.BY_TEMPERATURE,
    "edge_c": c.BY_EDGE,
    "power_w": c.BY_POWER,
    "time": c.TIME_BY_CLOCK,
    "heat": c.TIME_BY_HEAT,
}


def _with(one: Float64, other: Float64) -> Correlation:
    known = np.isfinite(one) & np.isfinite(other)
    return Correlation.of(one[known], other[known])


def _compute_rows(run: Run, view: View) -> dict[int, Index]:
    """The compute of each GPU of the scope that nothing overlaps, evenly thinned."""
    if run.is_sampled_only or not run.table.has_times:
        return {}
    table = run.table
    nodes: Groups = run.tree_of(view).split(view.path, ("gpu",))
    found = {}
    for place, gpu in enumerate(nodes.codes("gpu").tolist()):
        rows = nodes.rows_of(place)
        rows = rows[:: -(-len(rows) // _MAX_KERNELS)]
        alone = table.overlap_ns[rows] <= _MAX_OVERLAP * table.duration_ns[rows]
        found[int(gpu)] = rows[alone & (table.kind[rows] == Kind.COMPUTE)]
    return found


def _slowdowns(run: Run, rows: Index | None, clock: Sampled) -> Float64:
    """In the time of each sample, the duration of kernels over the mean of kernels of their name.

    A ratio of sums over the kernels that start then; NaN without any.
    """
    slower = np.full(len(clock), np.nan)
    if rows is None or not len(rows) or not len(clock):
        return slower
    table = run.table
    codes = table.kernel[rows].astype(np.int64) * (len(table.operations) + 1)
    _, kind = ranked((codes + table.operation[rows] + 1) * 16 + table.phase[rows] + 1)
    took = table.duration_ns[rows].astype(np.float64)
    usual = (np.bincount(kind, took) / np.maximum(np.bincount(kind), 1))[kind]
    start = table.start_ns[rows]
    place = np.searchsorted(clock.begins_ns, start, "right") - 1
    inside = (place >= 0) & (start < clock.ends_ns[place])
    sums, means = (np.bincount(place[inside], each[inside], len(clock)) for each in (took, usual))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(means > 0, sums / means, np.nan), np.float64)
