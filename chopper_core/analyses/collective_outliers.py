"""Collectives whose transfer lies outside of those of their kind, group and size."""

from __future__ import annotations

import numpy as np

from chopper_core.analyses.outliers import FACTOR, MAD_TO_SIGMA, MIN_VALUES
from chopper_core.columns import Values, numbered
from chopper_core.graph.collectives import Collectives, collectives_of
from chopper_core.model.run import Run
from chopper_core.util.arrays import Float64
from chopper_core.util.grouping import combined, counts_of, quantiles_of, ratios


def outlying(run: Run, found: Collectives) -> tuple[Values, Values]:
    """Transfer over its median among the run's like collectives, and which are outliers."""
    times, words = run.memo(("outlying collectives",), lambda: _outlying(run))
    return times.take(found.number), words.take(found.number)


def _outlying(run: Run) -> tuple[Values, Values]:
    whole = collectives_of(run)
    assert whole is not None
    names, code = combined([whole.kind, whole.group, whole.bytes])
    own = whole.complete
    transfer = whole.transfer_ns.astype(np.float64)

    def medians(values: Float64) -> Float64:
        return quantiles_of(values[own], code[own], len(names), (0.5,))[:, 0][code]

    median = medians(transfer)
    distance = transfer - median
    spread = medians(np.abs(distance))
    enough = own & (counts_of(code[own], len(names))[code] >= MIN_VALUES) & (spread > 0)
    is_outlier = enough & (np.abs(distance) > FACTOR * MAD_TO_SIGMA * spread)
    words = Values((distance > 0).astype(np.int64), ~is_outlier, words=("fast", "slow"))
    return numbered(ratios(np.where(own, transfer, np.nan), median)), words
