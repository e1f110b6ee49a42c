"""What was found in a run, and what was not: for `chopper info`, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isnan, nan
from pathlib import PurePath
from textwrap import wrap
from typing import Any, Final

import numpy as np

from chopper_core.cpu import CpuSamples
from chopper_core.element_types import ElementType
from chopper_core.hardware import own_file
from chopper_core.measured import FLOPS, FLOPS_TYPE, NO_TIMES, is_counted
from chopper_core.metrics import METRICS
from chopper_core.reading import seconds_text
from chopper_core.render.cells import clean, scale_of
from chopper_core.run import BY_HAND, CounterSource, Identity, Run, TelemetrySource
from chopper_core.schema import NO_LABEL, STATES, Category, Kind, Rule
from chopper_core.sources.counters.names import counter_info

INFO_SCHEMA: Final = "chopper.info/1"
_MOST_NAMES: Final = 60
_LINE: Final = 100
LABELLED: Final = ("iteration", "phase", "layer", "operation")


def describe(run: Run) -> dict[str, Any]:
    """What was found: a document of the schema `chopper.info/1`.

    Coverage is in % of the GPU time (sum of the durations) and per rule.
    """
    table = run.table
    return {
        "schema": INFO_SCHEMA,
        "run": run.name,
        "generated": run.generated,
        "gpus": [
            {
                "gpu": gpu.index,
                "rank": gpu.rank,
                "device": gpu.device,
                "pci": gpu.pci or None,
                "hardware": gpu.hardware or None,
                **_gpu_counts(run, gpu.index),
            }
            for gpu in run.gpus
        ],
        "hosts": [asdict(clock) | {"ranks": list(clock.ranks)} for clock in run.hosts],
        "identities": [
            {"source": i.source, "format": i.format, "device": i.device, "gpu": i.gpu, "by": i.by}
            for i in run.identities
        ],
        "read_with": {
            "clock": run.reading.clocks_text(),
            "gpu": run.reading.gpus_text(),
            "hardware": run.reading.hardware,
        },
        "sources": [
            {
                "path": source.path,
                "size_bytes": source.size_bytes,
                "rank": source.rank,
                "rank_from": source.rank_from,
                "clock": source.clock,
                "facts": dict(source.facts),
                "events": dict(source.events),
                "unused_events": dict(source.unused),
                "findings": dict(source.findings),
                "losses": list(source.losses),
            }
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
        "counters": [asdict(source) for source in run.counters],
        "counter_columns": [
            asdict(run.counter_info.get(name) or counter_info(name))
            for name in run.table.measured
            if is_counted(name)
        ],
        "telemetry": [
            {**asdict(source), "gpus": {str(k): v for k, v in source.gpus.items()}}
            for source in run.telemetry
        ],
        "processors": [_processors(samples) for samples in run.cpu],
        "hardware": asdict(run.hardware) if run.hardware else None,
        "missing": _missing(run),
    }


def _model_flops(run: Run) -> dict[str, float]:
    """The model's FLOPs by the type of what is multiplied, over all GPUs."""
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
    pairs = np.stack([table.operation[rows], table.group[rows]], axis=1)
    found, which = np.unique(pairs, axis=0, return_inverse=True)
    listed = []
    for number, (operation, group) in enumerate(found.tolist()):
        size = table.bytes[rows[which.ravel() == number]]
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
        missing.append("no hardware counters: use of the GPU's units and their losses are unknown")
    elif run.counters:
        without = sorted({gpu.index for gpu in run.gpus} - {source.gpu for source in run.counters})
        if without:
            missing.append(f"no counters of GPU {', '.join(map(str, without))}")
    if not run.measured:
        missing.append("no telemetry that could be placed: clocks, power, temperature are unknown")
    if run.hardware is None:
        missing.append(
            "no known GPU: no peak to compare with; --hardware MI300X says what it is, "
            f"{own_file()} adds others"
        )
    return missing


def sorted_labels(run: Run, level: str) -> list[str]:
    """The labels of a level that the run has, in their order."""
    codes = np.unique(run.table.column(level))
    return [run.table.text_of(level, int(code)) for code in codes]


def as_json(run: Run) -> str:
    """The description as JSON."""
    return json.dumps(describe(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_text(run: Run) -> str:
    """The description for people."""
    found = describe(run)
    lines = [f"run        {clean(run.name)}"]
    if run.generated:
        lines.append(f"           GENERATED data, not measured (made by {clean(run.generated)})")
    hardware = sorted({gpu.hardware or "unknown hardware" for gpu in run.gpus})
    lines.append(f"GPUs       {len(run.gpus)} x {', '.join(map(clean, hardware))}")
    lines += [
        f"read with  --{option} {clean(said)}"
        for option, text in found["read_with"].items()
        for said in text.split(",")
        if said
    ]
    lines += ["", *_gpu_lines(found)]
    lines += clock_lines(run)
    lines += identity_lines(run)
    lines += ["", "sources"] + [line for source in found["sources"] for line in _source(source)]
    if found["failed"]:
        lines += ["", "files that could not be used"]
        lines += [f"  {clean(item['reason'])}" for item in found["failed"]]
    if found["collectives"]:
        lines += ["", "collectives, over all GPUs"]
        lines += [_collective_line(item) for item in found["collectives"]]
    if found["model_flops"]:
        lines += ["", "FLOPs of the model, by the type of what is multiplied, over all GPUs"]
        lines += _flops_lines(run, found["model_flops"])
    if found["skipped"]:
        lines += ["", "skipped files"]
        lines += [f"  {clean(item['path'])}: {clean(item['reason'])}" for item in found["skipped"]]
    what = "GPU time (sum of durations)" if run.table.has_times else "the dispatches"
    lines += ["", f"labels, in % of {what}, by the rule that found them"]
    for level in LABELLED:
        cover = found["coverage"][level]
        lines.append(f"  {level:<10} {cover['labelled_pct']:6.2f} % labelled")
        lines += [f"             {share:6.2f} % {rule}" for rule, share in cover["rules"].items()]
    lines += [line for source in run.counters for line in _counter_lines(source)]
    if names := [counter["name"] for counter in found["counter_columns"]]:
        lines += ["", f"{len(names)} counters, which are columns (--columns {names[0]})"]
        lines += [f"  {clean(line)}" for line in _listed(names)]
    lines += [line for telemetry in run.telemetry for line in _telemetry_lines(telemetry)]
    lines += [line for samples in run.cpu for line in _processor_lines(samples)]
    if found["partial_iterations"]:
        numbers = ", ".join(map(str, found["partial_iterations"]))
        lines += ["", f"iterations cut by the profiler's start or end: {numbers}"]
    if found["missing"]:
        lines += ["", "not found", *(f"  {text}" for text in found["missing"])]
    return "\n".join(lines) + "\n"


def _listed(names: Sequence[str]) -> list[str]:
    """Names in lines; of very many the first."""
    shown = [*names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown.append(f"and {len(names) - _MOST_NAMES} more")
    return wrap(", ".join(shown), _LINE, break_long_words=False, break_on_hyphens=False)


def _gpu_counts(run: Run, gpu: int) -> dict[str, int | None]:
    table = run.table
    own = table.gpu == gpu
    kernel = own & (table.category == Category.KERNEL)
    return {
        "span_ns": int(sum(table.column(state)[own].sum() for state in STATES))
        if table.has_times
        else None,
        "kernels": int(kernel.sum()),
        "collectives": int((own & (table.kind == Kind.COMM)).sum()),
        "copies": int((own & (table.category == Category.MEMCPY)).sum()),
        "memsets": int((own & (table.category == Category.MEMSET)).sum()),
        "kernels_without_launch": int((kernel & (table.launch_ns < 0)).sum()),
    }


def _coverage(run: Run, level: str) -> dict[str, Any]:
    table = run.table
    rules = table.column(f"{level}_rule").astype(np.intp)
    weights = table.duration_ns if table.has_times else np.ones(len(table))
    by_rule = np.bincount(rules, weights=weights, minlength=len(Rule))
    whole = float(by_rule.sum()) or 1.0
    shares = {
        Rule(rule).text: 100.0 * float(by_rule[rule]) / whole
        for rule in np.argsort(-by_rule)
        if by_rule[rule] > 0
    }
    labelled = weights[table.column(level) != NO_LABEL].sum()
    return {"labelled_pct": 100.0 * float(labelled) / whole, "rules": shares}


def _gpu_lines(found: dict[str, Any]) -> list[str]:
    titles = ("GPU", "rank", "device", "span ms", "kernels", "collectives", "copies", "memsets",
              "unlinked kernels")  # fmt: skip
    rows = [
        (
            str(gpu["gpu"]),
            str(gpu["rank"]),
            str(gpu["device"]),
            f"{gpu['span_ns'] / 1e6:.3f}" if gpu["span_ns"] is not None else "-",
            str(gpu["kernels"]),
            str(gpu["collectives"]),
            str(gpu["copies"]),
            str(gpu["memsets"]),
            str(gpu["kernels_without_launch"]),
        )
        for gpu in found["gpus"]
    ]
    return _aligned((titles, *rows))


def clock_lines(run: Run) -> list[str]:
    """The clocks of the ranks, where there are several."""
    if len(run.hosts) < 2:
        return []
    lines = ["", "clocks of the ranks (corrected)"]
    for clock in run.hosts:
        ranks = _ranges(clock.ranks)
        line = f"  {clock.name}, rank {ranks}: {seconds_text(clock.correction_ns)} s to the run's"
        if clock.uncertainty_ns:
            line += f", +/- {clock.uncertainty_ns / 1e6:.3f} ms"
        lines.append(clean(f"{line}: {clock.method}"))
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers with runs of them drawn together: 0-3,7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def identity_lines(run: Run) -> list[str]:
    """Which device of each source a GPU is: a row per GPU, a column per source."""
    if not run.identities:
        return []
    by_source: dict[str, list[Identity]] = {}
    for identity in run.identities:
        by_source.setdefault(identity.source, []).append(identity)
    rows = [["GPU", "rank", "trace", *(_source_title(found[0]) for found in by_source.values())]]
    for gpu in run.gpus:
        cells = [
            " | ".join(_device(identity) for identity in found if identity.gpu == gpu.index)
            for found in by_source.values()
        ]
        trace = f"device {gpu.device}{', ' if gpu.pci else ''}{gpu.pci}"
        rows.append([str(gpu.index), str(gpu.rank), trace, *cells])
    lines = ["", "which device of each source a GPU is", *_aligned(rows)]
    for found in by_source.values():
        ways = dict.fromkeys(identity.by for identity in found if identity.gpu is not None)
        lines.append(f"  {_source_title(found[0])}: by {', '.join(ways) or 'nothing'}")
        left_out = [_device(identity) for identity in found if identity.gpu is None]
        if left_out:
            lines.append(f"    none of the run's GPUs: {', '.join(left_out)}")
    return [clean(line) for line in lines]


def _source_title(identity: Identity) -> str:
    """The name of a file; the format where a source is made of several."""
    paths = identity.source.split(", ")
    return PurePath(paths[0]).name if len(paths) == 1 else identity.format


def _device(identity: Identity) -> str:
    return identity.device + (" *" if identity.by == BY_HAND else "")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _source(source: dict[str, Any]) -> list[str]:
    size = source["size_bytes"] / 1e6
    lines = [
        f"  {clean(source['path'])}  {size:.1f} MB",
        f"    rank {source['rank']} (from {source['rank_from']}); clock: {source['clock']}",
    ]
    if source["facts"]:
        facts = ", ".join(f"{key} {value}" for key, value in source["facts"].items())
        lines.append(f"    {clean(facts)}")
    used = sum(source["events"].values()) - sum(source["unused_events"].values())
    lines.append(f"    {used} of {sum(source['events'].values())} events used")
    if any(source["unused_events"].values()):
        unused = ", ".join(
            f"{count} {clean(name) or 'without category'}"
            for name, count in sorted(source["unused_events"].items(), key=lambda item: -item[1])
            if count
        )
        lines.append(f"    not used: {unused}")
    lines += [f"    {count} {name}" for name, count in source["findings"].items() if count]
    lines += [f"    LOST: {clean(note)}" for note in source["losses"]]
    return lines


def _collective_line(item: dict[str, Any]) -> str:
    size = "sizes not all known"
    if item["bytes"] is not None:
        scale = scale_of(METRICS["bytes"], item["bytes"])
        size = f"{scale.cell(item['bytes'])} {scale.unit}"
    group = f"group {clean(item['group'])}" if item["group"] else "group not known"
    return f"  {item['count']:>6} {clean(item['operation'])}, {group}, {size}"


def _flops_lines(run: Run, amounts: dict[str, float]) -> list[str]:
    lines = []
    for name, amount in sorted(amounts.items(), key=lambda item: -item[1]):
        scale = scale_of(METRICS["model_flops"], amount)
        share = 100.0 * amount / sum(amounts.values())
        peak = run.hardware.flop_per_ns(ElementType[name.upper()]) if run.hardware else nan
        at = "no peak known" if isnan(peak) else f"peak {peak * 1e-3:.1f} TFLOP/s"
        lines.append(f"  {scale.cell(amount):>8} {scale.unit}  {share:5.1f} % {name}, {at}")
    return lines


def _counter_lines(source: CounterSource) -> list[str]:
    whole = source.matched + source.borrowed + source.ambiguous + source.unmatched
    counts = (
        (source.matched, "matched"),
        (source.borrowed, "borrowed from another iteration"),
        (source.ambiguous, "ambiguous"),
        (source.unmatched, "without"),
    )
    return [
        "",
        f"counters of GPU {source.gpu}: {source.format}, {source.counters} counters of "
        f"{source.dispatches} dispatches, {source.iterations} iterations recognised "
        f"(names compared: {source.comparison})",
        f"  {whole} compute kernels: "
        + ", ".join(f"{count} {what}" for count, what in counts if count),
        f"  {source.unused_dispatches} dispatches have no kernel in the trace",
        *(f"  {clean(note)}" for note in source.notes),
    ]


def _processors(samples: CpuSamples) -> dict[str, Any]:
    return {
        "path": samples.path,
        "format": samples.format,
        "clock": samples.clock,
        "offset_ns": samples.offset_ns,
        "uncertainty_ns": samples.uncertainty_ns,
        "method": samples.method,
        "samples": samples.samples,
        "processors": len(samples.cpus),
        "cores": len(np.unique(samples.cores)) if samples.has_cores else None,
        "notes": list(samples.notes),
    }


def _processor_lines(samples: CpuSamples) -> list[str]:
    cores = ""
    if samples.has_cores:
        cores = f" on {len(np.unique(samples.cores))} cores"
    lines = [
        "",
        f"processors {clean(samples.path)}: {samples.format}, {samples.samples} samples of "
        f"{len(samples.cpus)} logical processors{cores}",
    ]
    if samples.offset_ns is None:
        lines.append(f"  NOT PLACED: {samples.method}")
    else:
        lines.append(
            f"  clock {samples.clock}, {samples.offset_ns / 1e9:+.6f} s to the run's, "
            f"+/- {samples.uncertainty_ns / 1e6:.3f} ms: {clean(samples.method)}"
        )
    return [*lines, *(f"  {clean(note)}" for note in samples.notes)]


def _telemetry_lines(source: TelemetrySource) -> list[str]:
    lines = ["", f"telemetry {clean(source.path)}: {source.format}, {source.samples} samples"]
    if source.offset_ns is None:
        lines.append(f"  NOT PLACED: {source.method}")
    else:
        lines.append(
            f"  clock {source.clock}, {source.offset_ns / 1e9:+.6f} s to the run's, "
            f"+/- {source.uncertainty_ns / 1e6:.3f} ms: {source.method}"
        )
    return [*lines, *(f"  {clean(note)}" for note in source.notes)]
