"""The registry of metrics: the one place that names, defines and computes every figure."""

# Metrics register themselves where they are imported; this order is that of every list.
# isort: off
from chopper_core.columns import (
    time as time,
    breakdown as breakdown,
    launches as launches,
    sequences as sequences,
    inference as inference,
    counters as counters,
    counters_formulas as counters_formulas,
    counters_units as counters_units,
    roofline as roofline,
)
from chopper_core.columns.counters import raw_counter as raw_counter
from chopper_core.columns.lookup import (
    catalogue as catalogue,
    column_names as column_names,
    default_columns as default_columns,
    find_column as find_column,
    heat_of as heat_of,
    is_measured as is_measured,
    metric_named as metric_named,
    nearest_names as nearest_names,
    registered as registered,
    worst_first as worst_first,
)
from chopper_core.columns.metric import (
    METRICS as METRICS,
    Metric as Metric,
    Reduces as Reduces,
    Scope as Scope,
    Theme as Theme,
    Values as Values,
    OTHER_COLUMNS as OTHER_COLUMNS,
    column as column,
    columns as columns,
    computed_column as computed_column,
    numbered as numbered,
    parse_columns as parse_columns,
    row_columns as row_columns,
    worded as worded,
    worded_codes as worded_codes,
)
