"""The registry of metrics: the one place that names, defines and computes every figure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import breakdown, counters, matching, original, telemetry, time, tokens
from chopper_core.metrics.metric import Metric, Scope, Values, column, numbered, worded
from chopper_core.model.column_names import NO_TIMES, integral_of, is_counted, is_counter
from chopper_core.model.hardware import ONE_INSTANCE, SUM, CounterInfo, Hardware, counter_info
from chopper_core.model.table import ACTIVITY, KernelTable
from chopper_core.model.units import unit_of_file
from chopper_core.util.errors import UsageError

__all__ = [
    "DEFAULT_COLUMNS",
    "METRICS",
    "Metric",
    "Scope",
    "Values",
    "catalogue",
    "column",
    "default_columns",
    "metric",
    "numbered",
    "worded",
]

METRICS: Final = {
    metric.name: metric
    for metric in (
        *time.METRICS,
        *telemetry.METRICS,
        *breakdown.METRICS,
        *original.METRICS,
        *tokens.METRICS,
        *matching.METRICS,
        *counters.METRICS,
    )
}

DEFAULT_COLUMNS: Final = (
    "elapsed_ns",
    "share_pct",
    "kernels",
    "busy_pct",
    "exposed_comm_ns",
    "idle_ns",
    "compute_ns",
    "overlap_ns",
    "exposed_copy_ns",
    "hidden_ns",
    "kernel_ns",
)
"""What a frame of the tree gives when nobody asks for columns, the most telling first."""
ACTIVITY_COLUMNS: Final = (
    "kernel_ns",
    "start_ns",
    "launch_ns",
    "stream",
    "bytes",
    "elapsed_ns",
    "share_pct",
    "idle_ns",
    "compute_ns",
    "overlap_ns",
    "exposed_comm_ns",
    "exposed_copy_ns",
    "hidden_ns",
    "kernels",
    "busy_pct",
)


MEASURED_COLUMNS: Final = ("gfx_mhz", "gfx_util_pct", "power_w", "mfma_util_pct")
"""What default frames gain, after the first figures, where a run has it."""
_FIRST: Final = 3
_TIMELESS: Final = frozenset(
    (*time.COUNTS, *(each.name for each in (*matching.METRICS, *counters.METRICS)))
)
_ADDING: Final = (SUM, ONE_INSTANCE)
_AMOUNTS: Final = ("KB",)
"""Units of what profilers derive that can be added up."""
NO_INFOS: Final[Mapping[str, CounterInfo]] = {}
_COUNTED_COLUMNS: Final = 8
"""So many metrics of counters are shown of a run without times."""


def default_columns(
    level: str, table: KernelTable, hardware: Hardware | None = None
) -> tuple[str, ...]:
    """The columns of a level when nobody asks for others: with what the run has measured."""
    if not table.has_times:
        known = [
            name
            for name in counters.NEEDS
            if not counters.lacking(name, table.measured)
            and (hardware is not None or name not in counters.NEEDS_SPECIFICATION)
        ]
        return ("kernels", *known[:_COUNTED_COLUMNS])
    columns = ACTIVITY_COLUMNS if level == ACTIVITY else DEFAULT_COLUMNS
    measured = tuple(name for name in MEASURED_COLUMNS if is_measured(name, table))
    return (*columns[:_FIRST], *measured, *columns[_FIRST:])


def is_measured(name: str, table: KernelTable) -> bool:
    """Whether a run has what a metric of counters or telemetry needs."""
    needs = counters.NEEDS.get(name, (integral_of(name),))
    return all(column in table.measured for column in needs)


def raw_counter(name: str, info: CounterInfo | None = None) -> Metric:
    """The metric of a hardware counter under its own name: its sum over the node.

    What the profiler derived, or took the largest of, can't be added up: it is that of a node only
    where one activity has it.
    """
    known = info or counter_info(name)
    adds = known.aggregation in _ADDING or known.unit in _AMOUNTS

    def compute(scope: Scope) -> Values:
        total, count = scope.nodes.known(name)
        return Values(total, (count == 0) if adds else (count != 1))

    what = known.description.rstrip(". ") or f"The hardware counter {name}"
    unmatched = "no dispatch of the counter runs was matched with the row"
    return Metric(
        name,
        unit_of_file(known.unit),
        name,
        "sum" if adds else "of one activity",
        f"{what}: {known.aggregation}{', summed over the activities' if adds else ''}.",
        compute,
        source="counters",
        missing_because=unmatched
        if adds
        else f"{unmatched}, or several were: as it is {known.aggregation} it can't be added up",
    )


def _without_times(known: Metric) -> Metric:
    """A metric of a run without times: what is no count of something is missing."""
    if known.name in _TIMELESS:
        return known

    def compute(scope: Scope) -> Values:
        nothing = np.zeros(len(scope.nodes), np.int64)
        return Values(nothing, np.ones(len(nothing), np.bool_))

    return replace(known, compute=compute, missing_because=NO_TIMES)


def metric(
    name: str,
    table: KernelTable | None = None,
    infos: Mapping[str, CounterInfo] = NO_INFOS,
) -> Metric:
    """The metric of a name, of raw counters too; raises UsageError with the nearest names.

    `infos` is what the profiler says of its counters.
    """
    if name in METRICS:
        known = METRICS[name]
        return _without_times(known) if table is not None and not table.has_times else known
    if table is not None and name in table.measured and is_counted(name):
        return raw_counter(name, infos.get(name))
    if is_counter(name):
        raise UsageError(
            f"the run has no counter {name}; a counter run that collects it "
            f"(rocprofv3 --pmc {name}) beside the traces would give it"
        )
    if of_part := telemetry.part(name):
        return of_part
    raise UsageError(f"no column {name!r}{nearest(name)}")


def nearest(name: str) -> str:
    """The end of a sentence on a column that isn't there: which ones are near."""
    from difflib import get_close_matches

    titles = (name, name.rpartition("_")[0])  # time_ms: a title with a unit
    near = [known.name for known in METRICS.values() if known.title in titles]
    near = near or get_close_matches(name, METRICS, 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"{hint} `chopper metrics` lists all"


def catalogue(format_name: str) -> str:
    """The registry as `text`, `markdown` or `json`."""
    if format_name == "json":
        entries = [
            {
                "name": metric.name,
                "unit": metric.unit,
                "title": metric.title,
                "reduces": metric.reduces,
                "definition": metric.definition,
                "source": metric.source,
                "missing_because": metric.missing_because or None,
            }
            for metric in METRICS.values()
        ]
        import json

        return json.dumps({"schema": "chopper.metrics/1", "metrics": entries}, indent=1) + "\n"
    if format_name == "markdown":
        lines = ["| name | unit | of children | definition |", "| :-- | :-- | :-- | :-- |"]
        lines += [
            f"| `{metric.name}` | {metric.unit} | {metric.reduces} | {metric.definition} |"
            for metric in METRICS.values()
        ]
        return "\n".join(lines) + "\n"
    lines = []
    for metric in METRICS.values():
        unit = f" ({metric.unit})" if metric.unit and not metric.name.endswith("_ns") else ""
        lines.append(
            f"{metric.name}{unit}, shown as `{metric.title}`; of children: {metric.reduces}"
        )
        lines += [f"    {line}" for line in textwrap.wrap(metric.definition, 92)]
        if metric.missing_because:
            lines.append(f"    missing: {metric.missing_because}")
        lines.append(f"    source: {metric.source}")
    return "\n".join(lines) + "\n"
