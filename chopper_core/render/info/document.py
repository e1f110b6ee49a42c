"""The description of a run as a document, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from chopper_core.model.column_names import FLOPS, FLOPS_TYPE, NO_TIMES, is_counted
from chopper_core.model.hardware import ElementType, counter_info, own_file
from chopper_core.model.inputs import SampledFile
from chopper_core.model.parallel import Parallel
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import LABELLED, NO_LABEL, STATES, Category, Kind, Rule
from chopper_core.render.cells import Escaped
from chopper_core.render.exchange import finite, json_text
from chopper_core.util.arrays import Mask
from chopper_core.util.grouping import counts_of, distinct, ranked, sums_of

INFO_SCHEMA: Final = "chopper.info/1"
_OF_SOURCE: Final = (
    *("path", "size_bytes", "rank", "rank_from", "clock", "facts", "events", "unused"),
    *("findings", "losses", "notes"),
)
_RENAMED: Final = {"unused": "unused_events"}
"""Fields of a source that the schema calls by another name."""


def describe(run: Run) -> dict[str, Any]:
    """A run's description: a document of the schema `chopper.info/1`.

    Coverage is in % of the GPU time (sum of the durations) and per rule. Unknown numbers are None.
    """
    if run.table.is_sampled:
        # Intervals between samples are no activities.
        run = replace(run, table=run.table.take(slice(0, 0)), cubes=None)
    table = run.table
    document = {
        "schema": INFO_SCHEMA,
        "run": run.name,
        "generated": run.generated,
        **({"times": run.times_mark} if run.times_mark else {}),
        "gpus": [
            {
                "gpu": gpu.index,
                "rank": gpu.rank,
                "device": gpu.device,
                "pci": gpu.pci or None,
                "hardware": gpu.hardware or None,
                **counts,
            }
            for gpu, counts in zip(run.gpus, _gpu_counts(run), strict=True)
        ],
        "parallel": None if run.parallel is None else _parallel(run.parallel),
        "hosts": run.hosts,
        "identities": [
            {"source": i.source, "format": i.format, "device": i.device, "gpu": i.gpu, "by": i.by}
            for i in run.identities
        ],
        "read_with": {
            "clock": run.overrides.clocks_text(),
            "gpu": run.overrides.gpus_text(),
            "hardware": run.overrides.hardware,
            "parallel": run.overrides.parallel,
        },
        "sources": [
            {_RENAMED.get(name, name): getattr(source, name) for name in _OF_SOURCE}
            for source in run.sources
        ],
        "failed": [{"path": path, "reason": reason} for path, reason in run.failed],
        "skipped": [{"path": path, "reason": reason} for path, reason in run.skipped],
        "coverage": {level: _coverage(run, level) for level in LABELLED},
        "levels": {
            level: sorted_labels(run, level) if level != "operation" else len(table.operations)
            for level in LABELLED
        },
        "partial_iterations": sorted(
            {number for numbers in run.partial_iterations.values() for number in numbers}
        ),
        "collectives": _collectives(run),
        "model_flops": _model_flops(run),
        "counters": run.counters,
        "counter_columns": [
            run.counter_info.get(name) or counter_info(name)
            for name in run.table.measured
            if is_counted(name)
        ],
        "telemetry": run.telemetry,
        "processors": [_processors(samples) for samples in run.cpu],
        "hardware": run.hardware,
        "missing": _missing(run),
    }
    plain: dict[str, Any] = finite(to_builtins(document, str_keys=True))
    return plain


def _model_flops(run: Run) -> dict[str, float]:
    """The model's FLOPs by the type of their operands, over all GPUs."""
    flops = run.table.measured.get(FLOPS, np.zeros(0))
    element = run.table.measured.get(FLOPS_TYPE, np.zeros(0))
    return {
        each.text: float(amount)
        for each in ElementType
        if (amount := flops[(element == each) & np.isfinite(flops)].sum()) > 0
    }


def _collectives(run: Run) -> list[dict[str, Any]]:
    """Number and bytes of the collectives by operation and process group, over all GPUs."""
    table = run.table
    rows = np.flatnonzero(table.kind == Kind.COMM)
    groups = len(table.names) + 1
    codes = table.operation[rows].astype(np.int64) * groups + table.group[rows] + 1
    found, which = ranked(codes)
    listed = []
    for number, code in enumerate(found.tolist()):
        operation, group = code // groups, code % groups - 1
        size = table.bytes[rows[which == number]]
        listed.append(
            {
                "operation": table.text_of("operation", operation),
                "group": table.names[group] if group >= 0 else None,
                "count": len(size),
                "bytes": int(size.sum()) if (size >= 0).all() else None,
            }
        )
    return sorted(listed, key=lambda item: -int(item["count"]))


def _missing(run: Run) -> list[str]:
    missing = [] if run.table.has_times else [f"times: {NO_TIMES}"]
    if not run.counters and not any(map(is_counted, run.table.measured)):
        missing.append("no hardware counters: unit utilisation and its losses are unknown")
    elif run.counters:
        without = sorted({gpu.index for gpu in run.gpus} - {source.gpu for source in run.counters})
        if without:
            missing.append(f"no counters of GPU {numbers_text(without)}")
    if not run.has_telemetry:
        missing.append("no telemetry on the run's clock: clock, power and temperature are unknown")
    if run.hardware is None:
        missing.append(
            "unknown GPU: no peak to compare with; name it with --hardware MI300X, "
            f"or add it to {own_file()}"
        )
    return missing


def numbers_text(numbers: Sequence[int]) -> str:
    """Rising numbers with consecutive ones joined: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def sorted_labels(run: Run, level: str) -> list[str]:
    codes = distinct(run.table.column(level))
    return [run.table.text_of(level, int(code)) for code in codes]


def as_json(run: Run) -> Escaped:
    return json_text(describe(run))


def _parallel(parallel: Parallel) -> dict[str, Any]:
    """The sizes of the parallel dimensions, and the coordinates of each rank."""
    return {
        "sizes": parallel.sizes,
        "from": parallel.origin,
        "ranks": parallel.coordinates,
        "notes": parallel.notes,
    }


def _gpu_counts(run: Run) -> list[dict[str, int | None]]:
    """Span and numbers of activities of each GPU, in the order of the run's."""
    table, size = run.table, max(gpu.index for gpu in run.gpus) + 1
    kernel = table.category == Category.KERNEL

    def counted(which: Mask) -> list[int]:
        found: list[int] = counts_of(table.gpu[which], size).tolist()
        return found

    counts = {
        "kernels": counted(kernel),
        "collectives": counted(table.kind == Kind.COMM),
        "copies": counted(table.category == Category.MEMCPY),
        "memsets": counted(table.category == Category.MEMSET),
        "kernels_without_launch": counted(kernel & (table.launch_ns < 0)),
    }
    spans = np.zeros(size)  # of whole nanoseconds: exact up to 100 days
    for state in STATES if table.has_times else ():
        spans += sums_of(table.column(state), table.gpu, size)
    return [
        {
            "span_ns": int(spans[gpu.index]) if table.has_times else None,
            **{name: numbers[gpu.index] for name, numbers in counts.items()},
        }
        for gpu in run.gpus
    ]


def _coverage(run: Run, level: str) -> dict[str, Any]:
    table = run.table
    rules = table.column(f"{level}_rule").astype(np.intp)
    weights = table.duration_ns if table.has_times else np.ones(len(table))
    by_rule = sums_of(weights, rules, len(Rule))
    whole = float(by_rule.sum()) or 1.0
    shares = {
        Rule(rule).text: 100.0 * float(by_rule[rule]) / whole
        for rule in np.argsort(-by_rule)
        if by_rule[rule] > 0
    }
    # Work outside a model's layers has a rule and no layer.
    labelled = weights[(table.column(level) != NO_LABEL) | (rules != Rule.NONE)].sum()
    return {"labelled_pct": 100.0 * float(labelled) / whole, "rules": shares}


def _processors(samples: CpuSamples) -> dict[str, Any]:
    return {
        **{name: getattr(samples, name) for name in SampledFile.__struct_fields__},
        "processors": len(samples.cpus),
        "cores": len(distinct(samples.cores)) if samples.has_cores else None,
    }
