"""What was found in a run, for people."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from pathlib import PurePath
from textwrap import wrap
from typing import Any, Final

import numpy as np

from chopper_core.metrics import METRICS
from chopper_core.model.hardware import ElementType
from chopper_core.model.overrides import seconds_text
from chopper_core.model.run import BY_HAND, CounterSource, Identity, Run, TelemetrySource
from chopper_core.model.signals import CpuSamples
from chopper_core.render.cells import clean, scale_of
from chopper_core.render.info.document import LABELLED, describe
from chopper_core.render.info.numbers import aligned, numbers_text
from chopper_core.render.info.sources import source_lines

_MOST_NAMES: Final = 60
_LINE: Final = 100


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
    lines += _clock_lines(run)
    lines += _identity_lines(run)
    lines += source_lines(found["sources"])
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
    return aligned((titles, *rows))


def _clock_lines(run: Run) -> list[str]:
    """The clocks of the ranks, where there are several."""
    if len(run.hosts) < 2:
        return []
    lines = ["", "clocks of the ranks (corrected)"]
    for clock in run.hosts:
        ranks = numbers_text(clock.ranks)
        line = f"  {clock.name}, rank {ranks}: {seconds_text(clock.correction_ns)} s to the run's"
        if clock.uncertainty_ns:
            line += f", +/- {clock.uncertainty_ns / 1e6:.3f} ms"
        lines.append(clean(f"{line}: {clock.method}"))
    return lines


def _identity_lines(run: Run) -> list[str]:
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
    lines = ["", "which device of each source a GPU is", *aligned(rows)]
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
