"""The registry of metrics: the one place that names, defines and computes every figure."""

# Metrics register themselves where they are imported; this order is that of every list.
# isort: off
from chopper_core.metrics import (
    time as time,
    breakdown as breakdown,
    counters as counters,
    counters_formulas as counters_formulas,
)

# isort: on
from chopper_core.metrics.counters import raw_counter
from chopper_core.metrics.lookup import (
    DEFAULT_COLUMNS,
    catalogue,
    column_names,
    default_columns,
    find_column,
    heat_of,
    is_measured,
    metric_named,
    nearest,
)
from chopper_core.metrics.metric import (
    METRICS,
    Metric,
    Reduces,
    Scope,
    Theme,
    Values,
    column,
    columns,
    computed_column,
    numbered,
    worded,
)

__all__ = [
    "DEFAULT_COLUMNS",
    "METRICS",
    "Metric",
    "Reduces",
    "Scope",
    "Theme",
    "Values",
    "catalogue",
    "column",
    "column_names",
    "columns",
    "computed_column",
    "default_columns",
    "find_column",
    "heat_of",
    "is_measured",
    "metric_named",
    "nearest",
    "numbered",
    "raw_counter",
    "worded",
]
