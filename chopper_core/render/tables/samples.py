"""Samples of telemetry: signals as intervals with one value each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.columns import parse_columns
from chopper_core.columns.labels import LABELS
from chopper_core.model.run import Run
from chopper_core.model.signals import BusyCurve, IntegralCurve
from chopper_core.render.arrow import table_of, words_array
from chopper_core.render.tables import table
from chopper_core.render.tables.activities import COLUMNS
from chopper_core.util.arrays import Float64, Int64

if TYPE_CHECKING:
    import pyarrow as pa

_OWN: Final = parse_columns("""
    signal | | signal
        Name of the signal, which ends in its unit.
    value | | value
        Value in the interval; where nothing is known, there is no interval.
""")


def intervals(curve: IntegralCurve, bins: int = 0) -> tuple[Int64, Int64, Float64]:
    """Begins, ends and values of the intervals in which a curve is known.

    The intervals are those of the samples, or `bins` equal ones.
    """
    if isinstance(curve, BusyCurve) and not bins:
        curve = curve.with_all_edges()
    edges = curve.edges_ns
    if bins:
        edges = np.linspace(int(edges[0]), int(edges[-1]), bins + 1).astype(np.int64)
    values = curve.means(edges)
    known = np.isfinite(values) & (np.diff(edges) > 0)
    return edges[:-1][known], edges[1:][known], values[known]


@table("samples", is_large=True)
def samples(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A sample of a signal of telemetry on a GPU: the interval in which its value is known."""
    from chopper_core.tables.arrow_files import array_of

    names = tuple(run.measured)
    found = [
        (code, gpu, *intervals(curve))
        for code, name in enumerate(names)
        for gpu, curve in run.measured[name].curves.items()
        if gpus is None or gpu in gpus
    ]
    counts = [len(begins) for _, _, begins, _, _ in found]
    code = np.repeat(np.array([each[0] for each in found], np.int64), counts)
    gpu = np.repeat(np.array([each[1] for each in found], np.int64), counts)
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    begins, ends, values = (
        np.concatenate([part, *(each[2 + place] for each in found)])
        for place, part in enumerate(nothing)
    )
    return table_of(
        [
            (COLUMNS["gpu"], array_of(gpu)),
            (_OWN["signal"], words_array(code, names)),
            (LABELS["unit"], words_array(code, [str(run.measured[name].unit) for name in names])),
            (COLUMNS["start_ns"], array_of(begins - run.origin_ns)),
            (COLUMNS["end_ns"], array_of(ends - run.origin_ns)),
            (_OWN["value"], array_of(values)),
        ]
    )
