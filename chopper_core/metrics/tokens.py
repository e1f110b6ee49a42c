"""The metric of tokens: what comes into the model."""

from __future__ import annotations

import numpy as np

from chopper_core.metrics.metric import Metric, Scope, Values
from chopper_core.model.column_names import TOKENS
from chopper_core.model.units import Unit


def _tokens(scope: Scope) -> Values:
    total, count = scope.nodes.known(TOKENS)
    return Values(np.rint(total).astype(np.int64), count == 0)


METRICS = (
    Metric(
        TOKENS,
        Unit.NONE,
        "tokens",
        "sum",
        "Tokens that come into the model, by the shape of its embedding's indices, else of the "
        "queries of its first layer's attention; they stand at the forward activity that takes "
        "them.",
        _tokens,
        missing_because="no embedding or attention with recorded shapes in the row "
        "(record_shapes=True)",
    ),
)
