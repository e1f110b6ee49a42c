"""Metrics by name: the default columns, why a run lacks one, and the catalogue of all."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from chopper_core.columns import counters
from chopper_core.columns.metric import METRICS, OTHER_COLUMNS, Metric, Theme, absent
from chopper_core.columns.time import part_of_signal
from chopper_core.model.column_names import HEAT, NO_TIMES, integral_of, is_counted, is_counter
from chopper_core.model.hardware import CounterInfo, Hardware
from chopper_core.model.table import ACTIVITY, KernelTable
from chopper_core.model.units import Unit
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.grouping import grouped_by
from chopper_core.util.naming import bare, near_names
from chopper_core.util.patterns import late
from chopper_core.util.plugins import Plugin, plugins

DEFAULT_COLUMNS: Final = (
    "elapsed_ns", "share_pct", "kernels", "busy_pct", "exposed_comm_ns", "idle_ns", "compute_ns",
    "overlap_ns", "exposed_copy_ns", "hidden_ns", "kernel_ns",
)  # fmt: skip
"""The columns of a frame of the tree, the most informative first."""
_ACTIVITY_COLUMNS: Final = (
    "kernel_ns", "start_ns", "launch_ns", "stream", "bytes", "elapsed_ns", "share_pct", "idle_ns",
    "compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "hidden_ns", "kernels",
    "busy_pct",
)  # fmt: skip
_MEASURED_COLUMNS: Final = ("gfx_mhz", "gfx_util_pct", "power_w", "mfma_util_pct")
_MEASURED_FROM: Final = 3
_MAX_COUNTER_COLUMNS: Final = 8

_NO_INFOS: Final[Mapping[str, CounterInfo]] = {}
_OWN: Final = tuple(METRICS)
"""The columns of this package, which is imported whole before this module; those of analyses follow
in any order."""
NO_TRACE: Final = "the run has telemetry alone: no activity of a GPU was traced"
_THE_MORE_THE_BETTER: Final = late(
    r"(\w+_)?(roof|peak|achievable|hit|clean|busy|occupancy|util|mfu|hfu|theoretical|theory|hidden"
    r"|efficiency|bandwidth|coalescing|active)_pct|(?!roof)\w*(tflops|tbps)|(bus|algo|got)_gbps"
    r"|\w*mhz|\w*tokens_per_\w+|throughput_x|name"
)
"""Columns whose small figures need attention; names go from A to Z."""
ENERGY_NAME: Final = "energy_j"
NO_COUNTERS: Final = (
    "the run has no hardware counters (rocprofv3 --pmc …, in files next to the traces)"
)
NO_SPECIFICATION: Final = (
    "needs the specification of the GPU, which no file names; give it with --hardware MI300X"
)
_NO_TELEMETRY: Final = (
    "the run has no telemetry of it, or none that could be placed on its clock (`chopper info`)"
)


def metric_named(
    name: str,
    table: KernelTable | None = None,
    infos: Mapping[str, CounterInfo] = _NO_INFOS,
) -> Metric:
    """The metric of a name, raw counters included; raises UsageError with the nearest names.

    `infos` are the profiler's descriptions of its counters.
    """
    if name in METRICS:
        known = METRICS[name]
        reason = "" if table is None else missing_throughout(known, table)
        return _missing(known, reason) if reason else known
    if table is not None and name in table.measured and is_counted(name):
        return counters.raw_counter(name, infos.get(name))
    if is_counter(name):
        raise UsageError(
            f"the run has no counter {name}; collect it with a counter run "
            f"(rocprofv3 --pmc {name}) next to the traces"
        )
    if of_part := part_of_signal(name):
        return of_part
    if plugin := plugins("metrics").get(name):
        return _of_plugin(name, plugin)
    raise UsageError(f"unknown column {name!r}{nearest_names(name)}")


def missing_throughout(known: Metric, table: KernelTable) -> str:
    """Why no row of a run has a registered metric, by what its activities are; empty: one may."""
    if table.is_sampled:
        # Intervals between samples have telemetry and nothing else.
        return "" if known.theme is Theme.TELEMETRY or known.name == "start_ns" else NO_TRACE
    # Without times there are counts and counters.
    return NO_TIMES if known.needs_times and not table.has_times else ""


def _of_plugin(name: str, plugin: Plugin) -> Metric:
    """The metric of a plugin, registered as it is imported; raises DataError where it can't be."""
    known = set(METRICS)
    plugin.load()
    for new in METRICS.keys() - known:
        METRICS[new] = replace(METRICS[new], compute=partial(plugin.call, METRICS[new].compute))
    if name not in METRICS:
        raise DataError(f"{plugin.title} can't be used: importing it registers no metric {name}.")
    return METRICS[name]


def registered() -> list[Metric]:
    """All metrics: those of this package in their order, then those of each other module in its;
    such modules are imported in any order."""
    others = (each for name, each in METRICS.items() if name not in _OWN)
    return [*map(METRICS.__getitem__, _OWN), *sorted(others, key=_module)]


def _module(known: Metric) -> str:
    """Where a metric is computed, its name bound or not."""
    return str(getattr(known.compute, "func", known.compute).__module__)


def find_column(text: str, known: Iterable[Metric]) -> tuple[Metric, float] | None:
    """The column of a name, a title, or a heading as tables show it, without regard to case.

    The number is what a figure in the heading's unit is multiplied by; 0: it names no unit.
    """
    wanted = bare(text)
    titled: tuple[Metric, float] | None = None
    unscaled: Metric | None = None
    for metric in known:
        title = bare(metric.title)
        if wanted == bare(metric.name):
            return metric, 0.0
        if wanted == title or (wanted == "%" and metric.title.startswith("% of ")):
            titled = titled or (metric, 0.0)
        elif wanted == title.strip("%"):
            unscaled = unscaled or metric  # `roof<57` of % roof
        elif wanted.startswith(title):
            for scale in metric.unit.scales if isinstance(metric.unit, Unit) else ():
                if scale.text and wanted == title + bare(scale.text):
                    titled = titled or (metric, scale.divisor)
    return titled if titled is not None or unscaled is None else (unscaled, 0.0)


def column_names(texts: Iterable[str], known: Sequence[Metric] = ()) -> tuple[str, ...]:
    """Columns by name, title or heading, of `known` ones or the registry, each by its name.

    A minus before one, as of a sort, stays, and a plus; an unknown one is left to whoever computes
    it.
    """
    found = []
    for text in texts:
        name = text.lstrip("-+")
        if name and name not in METRICS:
            column = find_column(name, known) or find_column(name, registered())
            text = text.replace(name, column[0].name) if column else text
        found.append(text)
    return tuple(found)


def worst_first(name: str) -> str:
    """The sort by a column, of which what needs attention comes first: the smallest share of a
    roof, the largest time."""
    return name if _THE_MORE_THE_BETTER.fullmatch(name) else f"-{name}"


def nearest_names(name: str) -> str:
    titles = (name, name.rpartition("_")[0])  # time_ms: a title with a unit
    near = [known.name for known in registered() if known.title in titles]
    near = near or near_names(name, METRICS)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"{hint} `chopper metrics` lists all"


def _missing(known: Metric, reason: str) -> Metric:
    return replace(known, compute=lambda scope: absent(len(scope.nodes), 0), missing_because=reason)


def default_columns(
    level: str, table: KernelTable, hardware: Hardware | None = None
) -> tuple[str, ...]:
    """The columns of a level if none are given, with those that the run has measured."""
    if table.is_sampled:
        own = [name for name, each in METRICS.items() if each.theme is Theme.TELEMETRY]
        start = ("start_ns",) if level == ACTIVITY else ()
        return (*start, *(name for name in own if is_measured(name, table)), ENERGY_NAME)
    if not table.has_times:
        computable = [
            known.name
            for known in METRICS.values()
            if known.counters
            and not counters.lacking(known, table.measured)
            and (hardware is not None or not known.needs_hardware)
        ]
        return ("kernels", *computable[:_MAX_COUNTER_COLUMNS])
    columns = _ACTIVITY_COLUMNS if level == ACTIVITY else DEFAULT_COLUMNS
    measured = tuple(name for name in _MEASURED_COLUMNS if is_measured(name, table))
    return (*columns[:_MEASURED_FROM], *measured, *columns[_MEASURED_FROM:])


def is_measured(name: str, table: KernelTable) -> bool:
    needs = METRICS[name].counters if name in METRICS else ()
    return all(column in table.measured for column in needs or (integral_of(name),))


def heat_of(table: KernelTable) -> str:
    """The signal of a run's temperatures: of the hotspot, else of the edge; '' without either."""
    return next((name for name in HEAT if is_measured(name, table)), "")


def why_missing(metric: Metric, table: KernelTable, hardware: Hardware | None) -> str:
    """Why a metric has no value somewhere in a run: first of all, what the run lacks."""
    if metric.missing_because in (NO_TIMES, NO_TRACE):
        return metric.missing_because
    if lacking := counters.lacking(metric, table.measured):
        if not any(map(is_counted, table.measured)):
            return NO_COUNTERS
        if lacking == (counters.TIME,):
            return "the counter run has no dispatch times"
        collected = " ".join(name for name in lacking if name != counters.TIME)
        return f"needs rocprofv3 --pmc {collected}"
    if metric.counters:
        if hardware is None and metric.needs_hardware:
            return NO_SPECIFICATION
        return "no activity of the row has all counters that it needs, or its divisor is 0"
    if metric.theme == Theme.TELEMETRY and integral_of(metric.name) not in table.measured:
        return metric.missing_because if metric.name == ENERGY_NAME else _NO_TELEMETRY
    return metric.missing_because


def reasons(
    metrics: Iterable[Metric], table: KernelTable, hardware: Hardware | None
) -> dict[str, list[Metric]]:
    found = grouped_by(metrics, lambda each: why_missing(each, table, hardware))
    return found


def catalogue(format_name: str) -> str:
    """All columns that are registered: those of `columns` in their order, then others by name; last
    those of rows that aren't made of activities."""
    others = sorted(METRICS.keys() - set(_OWN))
    known = [METRICS[name] for name in (*_OWN, *others)]
    of_rows = sorted(OTHER_COLUMNS.values(), key=lambda each: each.rows)
    if format_name == "json":
        names = ("name", "unit", "title", "reduces", "definition", "source")
        entries, entries_of_rows = (
            [
                {name: getattr(each, name) for name in names}
                | {"missing_because": each.missing_because or None}
                for each in every
            ]
            for every in (known, of_rows)
        )
        for entry, each in zip(entries_of_rows, of_rows, strict=True):
            entry["rows"] = each.rows
        import json

        document = {
            "schema": "chopper.metrics/1",
            "metrics": entries,
            "columns_of_other_rows": entries_of_rows,
        }
        return json.dumps(document, indent=1) + "\n"
    if format_name == "markdown":
        lines = ["| name | unit | of children | definition |", "| :-- | :-- | :-- | :-- |"]
        lines += [
            f"| `{each.name}` | {each.unit} | {each.reduces} | {each.definition} |"
            for each in known
        ]
        lines += [
            "",
            "Columns of rows that aren't made of activities:",
            "",
            "| name | unit | of | definition |",
            "| :-- | :-- | :-- | :-- |",
        ]
        lines += [
            f"| `{each.name}` | {each.unit} | {each.rows} | {each.definition} |" for each in of_rows
        ]
        return "\n".join(lines) + "\n"
    lines = []
    for each in (*known, *of_rows):
        unit = f" ({each.unit})" if each.unit and not each.name.endswith("_ns") else ""
        of = f"of {each.rows}" if each.rows else f"of children: {each.reduces}"
        lines.append(f"{each.name}{unit}, shown as `{each.title}`; {of}")
        lines += [f"    {line}" for line in textwrap.wrap(each.definition, 92)]
        if each.missing_because:
            lines.append(f"    missing: {each.missing_because}")
        lines.append(f"    source: {each.source}")
    return "\n".join(lines) + "\n"
