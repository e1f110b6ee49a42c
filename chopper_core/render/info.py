"""The description of a run for `chopper info`: what was read, matched, labelled and missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from math import isnan, nan
from pathlib import PurePath
from textwrap import wrap
from typing import Any, Final

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from chopper_core.columns import METRICS
from chopper_core.model.column_names import (
    FLOPS,
    FLOPS_TYPE,
    NO_TIMES,
    RECOMPUTED_FLOPS,
    is_counted,
)
from chopper_core.model.groups import elapsed_of_rows
from chopper_core.model.hardware import ElementType, counter_info, own_file
from chopper_core.model.inputs import (
    BY_HAND,
    TIMES_NOTES,
    ClockBounds,
    CounterSource,
    HostClock,
    Identity,
    SampledFile,
    TelemetrySource,
)
from chopper_core.model.overrides import seconds_text
from chopper_core.model.phrases import of_one
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import LABELLED, NO_LABEL, Category, Kind, Rule, Selection
from chopper_core.model.training import LogSource
from chopper_core.model.units import has_date, utc_text
from chopper_core.render.cells import fitting, scale_of
from chopper_core.render.exchange import finite, json_text
from chopper_core.tables.losses import number_of
from chopper_core.util.escape import Escaped, escape_each
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    grouped_by,
    ranked,
    stable_order,
    sums_of,
)
from chopper_core.util.patterns import shape_of_name
from chopper_core.work.kernel_classes import OTHER_CLASS, classes_of_names

INFO_SCHEMA: Final = "chopper.info/1"
_OF_SOURCE: Final = (
    *("path", "size_bytes", "rank", "rank_from", "clock", "facts", "events", "unused"),
    *("findings", "losses", "notes", "gpu_clock", "unread"),
)
_OF_IDENTITY: Final = ("source", "format", "device", "gpu", "by")
_OF_PARALLEL: Final = ("sizes", "origin", "coordinates", "notes")
_RENAMED: Final = {
    "unused": "unused_events",
    "unread": "unused_fields",
    "origin": "from",
    "coordinates": "ranks",
}
"""Fields that the schema calls by another name."""
_MAX_LISTED_NAMES: Final = 60
_MAX_UNKNOWN: Final = 10
_MAX_LINES: Final = 256
"""Of a section; all of what is listed is in JSON."""
_LINE_WIDTH: Final = 100
_UNLIMITED: Final = 1 << 16
_MAX_FILES: Final = 8
"""Of more telemetry files of one format, the first one stands for all."""
_GPU_COLUMNS: Final = {
    "GPU": "gpu",
    "rank": "rank",
    "device": "device",
    "span ms": "span_ns",
    "kernels": "kernels",
    "collectives": "collectives",
    "copies": "copies",
    "memsets": "memsets",
    "unlinked kernels": "kernels_without_launch",
}

_Document = Mapping[str, Any]


def describe(run: Run) -> dict[str, Any]:
    """A run's description: a document of the schema `chopper.info/1`.

    Coverage is in % of the GPU time (sum of the durations) and per rule. Unknown numbers are None.
    """
    is_sampled = run.is_sampled_only
    if is_sampled:
        # Intervals between samples are no activities.
        run = replace(run, table=run.table.take(slice(0, 0)), cubes=None)
    table, parallel = run.table, run.parallel
    document = {
        "schema": INFO_SCHEMA,
        "run": run.name,
        "generated": run.generated,
        **({"times": run.times_mark} if run.times_mark else {}),
        "gpus": _gpus(run),
        "parallel": _of(parallel, _OF_PARALLEL) if parallel else None,
        "hosts": run.hosts,
        "identities": [_of(each, _OF_IDENTITY) for each in run.identities],
        "read_with": {
            "clock": run.overrides.clocks_text(),
            "gpu": run.overrides.gpus_text(),
            "hardware": run.overrides.hardware,
            "parallel": run.overrides.parallel,
        },
        "sources": [_of(source, _OF_SOURCE) for source in run.sources],
        "recordings": run.recordings,
        **({"logs": run.logs} if run.logs else {}),
        "failed": [{"path": path, "reason": reason} for path, reason in run.failed],
        "skipped": [{"path": path, "reason": reason} for path, reason in run.skipped],
        "quality": [doubt.as_json for doubt in run.doubts],
        "coverage": {level: coverage_of(run, level) for level in LABELLED},
        "levels": {
            level: len(table.operations)
            if level == "operation"
            else table.texts_of(level, distinct(table.column(level)))
            for level in LABELLED
        },
        "unclassified": _unclassified(run),
        "partial_iterations": sorted(frozenset().union(*run.partial_iterations.values())),
        "collectives": _collectives(run),
        "model_flops": _model_flops(run),
        "counters": run.counters,
        "counter_columns": [
            run.counter_info.get(name) or counter_info(name)
            for name in table.measured
            if is_counted(name)
        ],
        "telemetry": run.telemetry,
        **({"samples": _samples(run)} if is_sampled else {}),
        "processors": [
            {
                **_of(samples, SampledFile.__struct_fields__),
                "processors": len(samples.cpus),
                "cores": len(distinct(samples.cores)) if samples.has_cores else None,
            }
            for samples in run.cpu
        ],
        "hardware": run.hardware,
        "missing": missing_of(run),
    }
    plain: dict[str, Any] = finite(to_builtins(document, str_keys=True))
    return plain


def _of(thing: object, names: Iterable[str]) -> _Document:
    return {_RENAMED.get(name, name): getattr(thing, name) for name in names}


def info_json(run: Run) -> Escaped:
    return json_text(describe(run))


def _gpus(run: Run) -> list[_Document]:
    table, places = run.table, _rows_of_gpus(run)

    def counts(rows: Selection) -> dict[str, int]:
        category = table.category[rows]
        kernel = category == Category.KERNEL
        masks = {
            "kernels": kernel,
            "collectives": table.kind[rows] == Kind.COMM,
            "copies": category == Category.MEMCPY,
            "memsets": category == Category.MEMSET,
            "kernels_without_launch": kernel & (table.launch_ns[rows] < 0),
        }
        return {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}

    return [
        {
            "gpu": gpu.index,
            "rank": gpu.rank,
            "device": gpu.device,
            "pci": gpu.pci or None,
            "hardware": gpu.hardware or None,
            "span_ns": int(elapsed_of_rows(table, rows).sum()) if table.has_times else None,
            **counts(rows),
        }
        for gpu in run.gpus
        for rows in (places.get(gpu.index, slice(0)),)
    ]


def _rows_of_gpus(run: Run) -> Mapping[int, Selection]:
    """Pieces of the table: what is worked out for all of it at once takes memory like it."""
    return run.tree().by_gpu() if len(run.table) else {}


def _model_flops(run: Run) -> dict[str, float]:
    flops = run.table.measured.get(FLOPS, np.zeros(0))
    if RECOMPUTED_FLOPS in run.table.measured:
        flops = flops - run.table.measured[RECOMPUTED_FLOPS]
    element = run.table.measured.get(FLOPS_TYPE, np.zeros(0))
    return {
        each.text: float(amount)
        for each in ElementType
        if (amount := flops[(element == each) & np.isfinite(flops)].sum()) > 0
    }


def _collectives(run: Run) -> list[_Document]:
    table = run.table
    rows = np.flatnonzero(table.kind == Kind.COMM)
    groups = len(table.names) + 1
    codes = table.operation[rows].astype(np.int64) * groups + table.group[rows] + 1
    found, which = ranked(codes)
    size, count = table.bytes[rows], counts_of(which, len(found))
    amounts, unknown = sums_of(size, which, len(found)), counts_of(which[size < 0], len(found))
    return [
        {
            "operation": table.text_of("operation", found[at] // groups),
            "group": table.names[found[at] % groups - 1] if found[at] % groups else None,
            "count": int(count[at]),
            "bytes": None if unknown[at] else int(amounts[at]),
        }
        for at in stable_order(-count).tolist()
    ]


def _unclassified(run: Run) -> dict[str, float]:
    """The milliseconds of kernels whose names have no class, most first."""
    table, classes = run.table, classes_of_names(run)
    time_ns = np.zeros(len(table.names), np.int64)
    for rows in _rows_of_gpus(run).values():
        time_ns += sums_of(table.duration_ns[rows], table.kernel[rows], len(table.names))
    return {
        table.names[code]: float(time_ns[code]) / 1e6
        for code in stable_order(-time_ns).tolist()
        if time_ns[code] and classes[code] == OTHER_CLASS
    }


def _samples(run: Run) -> _Document:
    """The samples of each signal, over all GPUs and nodes."""
    every = {name: [*found.values()] for name, found in run.sampled.items()}
    for each in run.of_nodes:
        every.setdefault(each.signal, []).append(each.summary)
    return {
        name: {
            "samples": sum(each.samples for each in found),
            "min": min(each.low for each in found),
            "max": max(each.high for each in found),
            "first_ns": min(each.first_ns for each in found),
            "last_ns": max(each.last_ns for each in found),
        }
        for name, found in every.items()
    }


def missing_of(run: Run) -> list[str]:
    if run.is_logged_only:
        return ["no traces: the log of a trainer says how long steps take, not why"]
    if run.is_snapshot:
        return ["no traces: memory snapshots say what was allocated, not when the GPU worked"]
    if run.is_sampled_only:
        return ["no traces and no counters: this telemetry belongs to no run"]
    missing = [] if run.table.has_times else [f"times: {NO_TIMES}"]
    if not run.counters and not any(map(is_counted, run.table.measured)):
        sampled = [name for name in ("sm_active_pct", "tensor_active_pct") if name in run.measured]
        what = "what splits compute into its losses is unknown; units were sampled over time: "
        missing.append(
            f"no hardware counters of kernels: {what}{', '.join(sampled)}"
            if sampled
            else "no hardware counters: unit utilisation and its losses are unknown"
        )
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


def coverage_of(run: Run, level: str) -> _Document:
    table, unlabelled = run.table, 0
    by_rule = np.zeros(len(Rule), np.int64)
    for rows in _rows_of_gpus(run).values():
        rules = table.column(f"{level}_rule")[rows]
        weights = table.duration_ns[rows] if table.has_times else np.ones(len(rules), np.int64)
        by_rule += sums_of(weights, rules, len(Rule))
        # Work outside a model's layers has a rule and no layer.
        lacks = (rules == Rule.NONE) & (table.column(level)[rows] == NO_LABEL)
        unlabelled += int(weights[np.flatnonzero(lacks)].sum())
    labelled, whole = int(by_rule.sum()) - unlabelled, float(by_rule.sum()) or 1.0
    shares = {
        Rule(rule).text: 100.0 * float(by_rule[rule]) / whole
        for rule in np.argsort(-by_rule)
        if by_rule[rule] > 0
    }
    return {"labelled_pct": 100.0 * float(labelled) / whole, "rules": shares}


def info_text(run: Run, width: int = 0, *, with_missing: bool = True) -> Escaped:
    """The description as text, its tables in blocks of at most `width` cells; 0: of any width."""
    found = describe(run)
    lines = _head_lines(run, found)
    missing = [("missing", found["missing"])] if with_missing else []
    for title, texts in (*_sections(run, found, width), *missing):
        own = [f"  {text}" for text in texts]
        more = len(own) - _MAX_LINES
        if more > 0:
            own[_MAX_LINES:] = [
                f"  and {more:,} more lines; `chopper info RUN --format json` has all"
            ]
        if own:
            lines += ["", *([title] if title else []), *own]
    return escape_each(lines, is_sentence=False)


_MOST_NAMED: Final = 3
"""Files of one kind with one reason that are named each."""


def _by_reason(items: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A line per file, or one for many files in a directory with the same ending and reason."""

    def kind_of(item: Mapping[str, str]) -> tuple[PurePath, str, str]:
        path = PurePath(item["path"])
        return path.parent, path.suffix, item["reason"]

    for (_, _, reason), alike in grouped_by(items, kind_of).items():
        if len(alike) <= _MOST_NAMED:
            yield from (f"{item['path']}: {reason}" for item in alike)
        else:
            yield f"{alike[0]['path']} and {len(alike) - 1} more like it: {reason}"


def _sections(run: Run, found: _Document, width: int) -> Iterator[tuple[str, Iterable[str]]]:
    """Titles and lines; a section without lines isn't shown."""
    if not run.is_sampled_only:
        yield "", _aligned([[*_GPU_COLUMNS], *map(_gpu_cells, found["gpus"])], width)
    for recording in run.recordings:
        lines = (f"{name:<12} {text}" for name, text in recording.facts.items())
        yield "recorded by chopper record", (*lines, *recording.problems, *recording.notes)
    yield "doubts about the data", map(_doubt_line, found["quality"])
    yield "rank clocks (corrected)", map(_clock_line, run.hosts if len(run.hosts) > 1 else ())
    yield "devices matched to GPUs", _identity_lines(run, width)
    yield "samples, over all GPUs", map(_sample_line, found.get("samples", {}).items())
    yield "sources", _source_lines(found["sources"], width) if run.sources else ()
    yield "files that could not be used", (item["reason"] for item in found["failed"])
    yield "collectives, over all GPUs", map(_collective_line, found["collectives"])
    yield "model FLOPs by data type, over all GPUs", _flops_lines(run, found["model_flops"])
    yield "files not read", _by_reason(found["skipped"])
    of_what = "GPU time (sum of durations)" if run.table.has_times else "the dispatches"
    coverage = () if run.is_sampled_only else _coverage_lines(found["coverage"])
    yield f"label coverage in % of {of_what}, by rule", coverage
    unknown = list(found["unclassified"].items())
    more = [f"and {len(unknown) - _MAX_UNKNOWN} more"] if len(unknown) > _MAX_UNKNOWN else []
    lines = (f"{time:9.3f} ms  {name[:_LINE_WIDTH]}" for name, time in unknown)
    yield "kernels without a class, by time", (*islice(lines, _MAX_UNKNOWN), *more)
    for counters in run.counters:
        yield _counter_section(counters)
    names = [counter["name"] for counter in found["counter_columns"]]
    available = f"available as column{'s' if len(names) > 1 else ''}"
    title = f"{number_of(len(names), 'counter')}, {available} (--columns {', '.join(names[:1])})"
    if len(names) > _MAX_LISTED_NAMES:
        names[_MAX_LISTED_NAMES:] = [f"and {len(names) - _MAX_LISTED_NAMES} more"]
    yield title, wrap(", ".join(names), _LINE_WIDTH, break_long_words=False, break_on_hyphens=False)
    yield from _sample_sections(run)
    cut = ", ".join(map(str, found["partial_iterations"]))
    yield "steps truncated by the profiling window", [cut] if cut else []


def _doubt_line(doubt: _Document) -> str:
    where = [
        f"{what}{'s' if len(numbers) > 1 else ''} {numbers_text(numbers)}"
        for what, numbers in (("rank", doubt["ranks"]), ("step", doubt["iterations"]))
        if numbers
    ]
    place = f" ({', '.join(where)})" if where else ""
    return f"{doubt['kind']}: {doubt['text']}{place}"


def _head_lines(run: Run, found: _Document) -> list[str]:
    lines = [f"run        {run.name}"]
    if run.generated:
        lines.append(f"           GENERATED data, not measured (made by {run.generated})")
    if note := TIMES_NOTES.get(run.times_mark):
        lines.append(f"           {note[0].upper()}{note[1:]}")
    hardware = sorted({gpu.hardware or "unknown hardware" for gpu in run.gpus})
    if run.is_logged_only:
        hardware = ["unknown hardware: a log names ranks, not GPUs"]
    elif run.is_snapshot:
        hardware = ["unknown hardware: a memory snapshot doesn't name it"]
    lines.append(f"GPUs       {len(run.gpus)} x {', '.join(hardware)}")
    lines += [
        f"read with  --{option} {option_text}"
        for option, text in found["read_with"].items()
        for option_text in ([text] if option == "parallel" else text.split(","))
        if option_text
    ]
    if run.parallel is not None:
        lines.append(f"parallel   {run.parallel.text}, from {run.parallel.origin}")
        lines += [f"           {note}" for note in run.parallel.notes]
    return lines


def _gpu_cells(gpu: _Document) -> list[str]:
    span = "-" if gpu["span_ns"] is None else f"{gpu['span_ns'] / 1e6:.3f}"
    return [span if key == "span_ns" else str(gpu[key]) for key in _GPU_COLUMNS.values()]


def _sample_line(item: tuple[str, _Document]) -> str:
    name, found = item
    seconds = (found["last_ns"] - found["first_ns"]) / 1e9
    since = ""
    if has_date(found["first_ns"]):
        since = f" from {utc_text(found['first_ns'])}"
    values = f"{found['samples']} samples, {found['min']:g} to {found['max']:g}"
    return f"{name}: {values}, {seconds:.3f} s{since}"


def _coverage_lines(coverage: _Document) -> Iterator[str]:
    for level, found in coverage.items():
        yield f"{level:<10} {found['labelled_pct']:6.2f} % labelled"
        for rule, share in found["rules"].items():
            yield f"           {share:6.2f} % {rule}"


def _clock_line(clock: HostClock) -> str:
    ranks, shift = numbers_text(clock.ranks), seconds_text(clock.correction_ns)
    doubt = f", +/- {clock.uncertainty_ns / 1e6:.3f} ms" if clock.uncertainty_ns else ""
    return f"{clock.name}, rank {ranks}: {shift} s to the run's{doubt}: {clock.method}"


def _identity_lines(run: Run, width: int) -> list[str]:
    """The devices of each source, matched to GPUs: a row per GPU, a column per source."""
    by_source: dict[tuple[str, str], list[Identity]] = {}
    files = Counter(source.format for source in run.telemetry)
    for each in run.identities:
        count, is_one = files[each.format], ", " not in each.source
        key = each.source, PurePath(each.source).name if is_one else each.format
        # With a file per signal and GPU, a column for each would be of no use.
        key = ("", f"{each.format} ({count} files)") if count > _MAX_FILES else key
        by_source.setdefault(key, []).append(each)
    rows = [["GPU", "rank", "trace", *(title for _, title in by_source)]]
    by_gpu = [grouped_by(found, lambda each: each.gpu) for found in by_source.values()]
    for gpu in run.gpus:
        cells = (dict.fromkeys(map(_device, found.get(gpu.index, ()))) for found in by_gpu)
        trace = f"device {gpu.device}{', ' if gpu.pci else ''}{gpu.pci}"
        rows.append([str(gpu.index), str(gpu.rank), trace, *map(" | ".join, cells)])
    lines = _aligned(rows, width) if by_source else []
    for (_, title), found in by_source.items():
        ways = dict.fromkeys(each.by for each in found if each.gpu is not None)
        lines.append(f"{title}: by {', '.join(ways) or 'nothing'}")
        if left_out := [_device(each) for each in found if each.gpu is None]:
            lines.append(f"  not matched: {', '.join(left_out)}")
    return lines


def _device(identity: Identity) -> str:
    return identity.device + (" *" if identity.by == BY_HAND else "")


def _collective_line(item: _Document) -> str:
    size = "some sizes unknown"
    if item["bytes"] is not None:
        scale = scale_of(METRICS["bytes"], item["bytes"])
        size = f"{scale.cell(item['bytes'])} {scale.text}"
    group = f"group {item['group']}" if item["group"] else "unknown group"
    return f"{item['count']:>6} {item['operation']}, {group}, {size}"


def _flops_lines(run: Run, amounts: Mapping[str, float]) -> list[str]:
    lines = []
    for name, amount in sorted(amounts.items(), key=lambda item: -item[1]):
        scale = scale_of(METRICS["model_flops"], amount)
        share = 100.0 * amount / sum(amounts.values())
        peak = run.hardware.flop_per_ns(ElementType[name.upper()]) if run.hardware else nan
        at = "unknown peak" if isnan(peak) else f"peak {peak * 1e-3:.1f} TFLOP/s"
        lines.append(f"{scale.cell(amount):>8} {scale.text}  {share:5.1f} % {name}, {at}")
    return lines


def _counter_section(source: CounterSource) -> tuple[str, Sequence[str]]:
    counts = {
        "matched": source.matched,
        "borrowed from another step": source.borrowed,
        "ambiguous": source.ambiguous,
        "without counters": source.unmatched,
    }
    kernels = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    title = (
        f"counters of GPU {source.gpu}: {source.format}, {source.counters} counters of "
        f"{source.dispatches} dispatches, {source.iterations} steps recognised "
        f"(names compared: {source.comparison})"
    )
    unused = f"{source.unused_dispatches} dispatches without a kernel in the trace"
    return title, (f"{sum(counts.values())} compute kernels: {kernels}", unused, *source.notes)


def _sample_sections(run: Run) -> Iterator[tuple[str, Sequence[str]]]:
    """Files of telemetry, of many of one format the first one, then of CPU samples."""
    files = Counter(source.format for source in run.telemetry)
    shown: set[str] = set()
    for telemetry in run.telemetry:
        many = files[telemetry.format]
        if many > _MAX_FILES and telemetry.format in shown:
            continue
        shown.add(telemetry.format)
        more = [f"and {many - 1} more files of {telemetry.format}"] if many > _MAX_FILES else []
        unused = _unused_lines(telemetry.unused)
        yield _sampled_section("telemetry", telemetry, "samples", *unused, *more)
    for log in run.logs:
        yield _log_section(log)
    for samples in run.cpu:
        cores = f" on {len(distinct(samples.cores))} cores" if samples.has_cores else ""
        what = f"samples of {len(samples.cpus)} logical processors{cores}"
        yield _sampled_section("CPU usage", samples, what)


def _log_section(log: LogSource) -> tuple[str, Sequence[str]]:
    ranks = f" of {number_of(log.ranks, 'rank')}" if log.ranks else ""
    times = (
        "step times as the trainer states them"
        if log.is_stated
        else ("step times between stamps: the trainer states none")
    )
    return (
        f"trainer's log {log.path}: {log.format}, {number_of(log.rows, 'line')} about steps{ranks}",
        (
            f"clock {log.clock}; {times}",
            *log.notes,
            *(f"LOST: {note}" for note in log.losses),
            *_unused_lines(log.unused),
        ),
    )


def _unused_lines(unused: Mapping[str, int]) -> list[str]:
    """The fields that no figure is read from; those that differ by a number are one."""
    fields = grouped_by(unused, shape_of_name)
    texts = [
        f"{name} ({sum(unused[each] for each in alike):,})"
        for shape, alike in fields.items()
        for name in [alike[0] if len(alike) == 1 else f"{len(alike)} x {shape}"]
    ]
    title = f"not used, with their number of values: {number_of(len(unused), 'field')}: "
    return wrap(title + ", ".join(texts), _LINE_WIDTH) if unused else []


def _sampled_section(
    kind: str, source: CpuSamples | TelemetrySource, what: str, *more: str
) -> tuple[str, Sequence[str]]:
    place = f"NOT PLACED: {source.method}"
    if source.offset_ns is not None:
        place = (
            f"clock {source.clock}, {source.offset_ns / 1e9:+.6f} s to the run's, "
            f"+/- {source.uncertainty_ns / 1e6:.3f} ms: {source.method}"
        )
    title = f"{kind} {source.path}: {source.format}, {source.samples} {what}"
    return title, (place, *source.notes, *more)


def _gpu_clock_lines(sources: Sequence[_Document]) -> Iterator[str]:
    """What remains unknown of the GPUs' clocks against those of their hosts, the most of any."""
    known = [ClockBounds(**each) for source in sources if (each := source["gpu_clock"])]
    if known:
        bounds = reduce(ClockBounds.joined, known)
        late, early = (
            f"{way} by an unknown amount" if ns is None else f"at most {ns / 1e3:,.1f} µs {way}"
            for way, ns in (("late", bounds.late_ns), ("early", bounds.early_ns))
        )
        yield f"GPU clocks against their hosts': {late}, {early}"


def _source_lines(sources: Sequence[_Document], width: int) -> list[str]:
    """A line per file, then facts, once for all ranks that share one, and counts."""
    rows = [["rank", "MB", "events", "used", "file"]]
    for source in sources:
        events = sum(source["events"].values())
        used = events - sum(source["unused_events"].values())
        size = f"{source['size_bytes'] / 1e6:.1f}"
        rows.append([str(source["rank"]), size, str(events), str(used), source["path"]])
    lines = _aligned(rows, width, words=1)
    facts = {
        "rank from: ": [source["rank_from"] for source in sources],
        "clock: ": [source["clock"] for source in sources],
        "": [", ".join(map(" ".join, source["facts"].items())) for source in sources],
    }
    for title, texts in facts.items():
        ranks: dict[str, list[int]] = {}
        for source, text in zip(sources, texts, strict=True):
            ranks.setdefault(text, []).append(source["rank"])
        for text, those in ranks.items():
            whose = f" (rank {numbers_text(sorted(those))})" if len(ranks) > 1 else ""
            lines += [f"{title}{text}{whose}"] if text else []
    lines += _gpu_clock_lines(sources)
    several = ", in each rank" if len(sources) > 1 else ""
    for title, key in (("not used", "unused_events"), ("found", "findings")):
        if counts := _counts(sources, key):
            lines += [f"{title}{several}", *(f"  {line}" for line in counts)]
    lines += _unread_lines(sources)
    for source in sources:
        paths = source["path"].split(", ")
        short = paths[0] if len(paths) == 1 else PurePath(paths[0]).parent
        lines += source["notes"]
        lines += [f"LOST in {short}: {note}" for note in source["losses"]]
    return lines


def _unread_lines(sources: Sequence[_Document]) -> list[str]:
    """The fields that nothing is read from, of all files together."""
    found: dict[str, dict[str, None]] = {}
    for source in sources:
        for category, names in source["unused_fields"].items():
            found.setdefault(category, {}).update(dict.fromkeys(names))
    texts = [f"{category}: {', '.join(sorted(names))}" for category, names in found.items()]
    count = number_of(sum(map(len, found.values())), "field")
    return wrap(f"not used: {count}: {'; '.join(texts)}", _LINE_WIDTH) if found else []


def _counts(sources: Sequence[_Document], key: str) -> list[str]:
    """Each count by name, largest first; least and most where the ranks differ."""
    found = []
    for name in dict.fromkeys(name for source in sources for name in source[key]):
        counts = [(source[key].get(name, 0), source["rank"]) for source in sources]
        least, most = min(counts), max(counts, key=lambda pair: (pair[0], -pair[1]))
        count = str(most[0])
        if least[0] < most[0]:
            count = f"{least[0]} (rank {least[1]}) to {most[0]} (rank {most[1]})"
        if most[0]:
            words = of_one(name) if key == "findings" and most[0] == 1 else name
            found.append((most[0], f"{count} {words or 'without category'}"))
    return [line for _, line in sorted(found, key=lambda pair: -pair[0])]


def _aligned(rows: Sequence[Sequence[str]], width: int, words: int = 0) -> list[str]:
    """The lines of a table of figures; its last `words` columns align left.

    Columns beyond `width` are a block below the others, after the first column again.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    figures = len(widths) - words
    room = (width or _UNLIMITED) - widths[0] - 2
    lines: list[str] = []
    begin = 1
    while begin < len(widths):
        end = begin + max(fitting(widths[begin:], room, gap=2), 1)
        for row in rows:
            cells = [
                row[place].rjust(widths[place]) if place < figures else row[place]
                for place in (0, *range(begin, end))
            ]
            lines.append("  ".join(cells).rstrip())
        begin = end
    return lines
