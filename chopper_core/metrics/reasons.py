"""Why a figure isn't known in a run, and what would give it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from chopper_core.metrics import counters, telemetry
from chopper_core.metrics.counters_formula import TIME
from chopper_core.metrics.metric import Metric
from chopper_core.model.column_names import NO_TIMES, integral_of, is_counted
from chopper_core.model.hardware import Hardware
from chopper_core.model.table import KernelTable

NO_COUNTERS: Final = (
    "the run has no hardware counters (rocprofv3 --pmc …, in files beside the traces)"
)
NO_SPECIFICATION: Final = (
    "needs the specification of the GPU, which no file names; --hardware MI300X says it"
)
_NO_TELEMETRY: Final = (
    "the run has no telemetry of it, or none with a place on its clock (`chopper info`)"
)
_SIGNALS: Final = {metric.name for metric in telemetry.METRICS}


def why_missing(metric: Metric, table: KernelTable, hardware: Hardware | None) -> str:
    """Why a run has no value of a metric somewhere: as far as it goes, what the run lacks."""
    if metric.missing_because == NO_TIMES:
        return NO_TIMES
    if lacking := lacking_counters(metric.name, table):
        if not any(map(is_counted, table.measured)):
            return NO_COUNTERS
        if lacking == (TIME,):
            return "the counter run has no times of its dispatches"
        asked = " ".join(name for name in lacking if name != TIME)
        return f"the run lacks counters, which rocprofv3 --pmc {asked} collects"
    if metric.name in counters.NEEDS:
        if hardware is None and metric.name in counters.NEEDS_SPECIFICATION:
            return NO_SPECIFICATION
        return (
            "no activity of the row has all the counters that it needs, or what it divides by is 0"
        )
    if metric.name in _SIGNALS and integral_of(metric.name) not in table.measured:
        return metric.missing_because if metric.name == "energy_j" else _NO_TELEMETRY
    return metric.missing_because


def lacking_counters(name: str, table: KernelTable) -> tuple[str, ...]:
    """The counters that a metric needs and that a run has of no activity."""
    return counters.lacking(name, table.measured)


def reasons(
    metrics: Iterable[Metric], table: KernelTable, hardware: Hardware | None
) -> dict[str, list[Metric]]:
    """Metrics without a value by the reason for it, in their order."""
    found: dict[str, list[Metric]] = {}
    for metric in metrics:
        found.setdefault(why_missing(metric, table, hardware), []).append(metric)
    return found


def sentences(names: Sequence[Metric], table: KernelTable, hardware: Hardware | None) -> list[str]:
    """A sentence per reason for which metrics have no value."""
    return [
        f"{', '.join(metric.name for metric in group)} {'is' if len(group) == 1 else 'are'} not "
        f"known: {reason}"
        for reason, group in reasons(names, table, hardware).items()
    ]
