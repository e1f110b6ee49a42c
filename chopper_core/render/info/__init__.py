"""The description of a run for `chopper info`: what was read, matched, labelled and missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan, nan
from pathlib import PurePath
from textwrap import wrap
from typing import Any, Final

from msgspec.structs import replace

from chopper_core.metrics import METRICS
from chopper_core.model.hardware import ElementType
from chopper_core.model.inputs import (
    BY_HAND,
    TIMES_NOTES,
    CounterSource,
    HostClock,
    Identity,
    TelemetrySource,
)
from chopper_core.model.overrides import seconds_text
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples
from chopper_core.model.table import LABELLED
from chopper_core.render.cells import Escaped, clean, escape_each, fitting, scale_of
from chopper_core.render.info.document import INFO_SCHEMA, as_json, describe, numbers_text
from chopper_core.util.grouping import distinct

__all__ = ["INFO_SCHEMA", "as_json", "as_text", "describe"]

_Document = Mapping[str, Any]

_MAX_LISTED_NAMES: Final = 60
_LINE_WIDTH: Final = 100
_UNLIMITED: Final = 1 << 16
"""Cells that no table has."""
_MAX_FILES: Final = 8
"""Of more telemetry files of one format, the first one stands for all."""


def as_text(run: Run, width: int = 0) -> Escaped:
    """The description as text, its tables in blocks of at most `width` cells; 0: of any width."""
    found = describe(run)
    names = [counter["name"] for counter in found["counter_columns"]]
    example = clean(names[0]) if names else ""
    counters = f"{len(names)} counters, available as columns (--columns {example})"
    lines = [
        *_head_lines(run, found),
        *["", *_gpu_lines(found, width)],
        *_section(
            "rank clocks (corrected)", map(_clock_line, run.hosts if len(run.hosts) > 1 else ())
        ),
        *_identity_lines(run, width),
        *_source_lines(found["sources"], width),
        *_section(
            "files that could not be used", (clean(item["reason"]) for item in found["failed"])
        ),
        *_section("collectives, over all GPUs", map(_collective_line, found["collectives"])),
        *_section(
            "model FLOPs by data type, over all GPUs", _flops_lines(run, found["model_flops"])
        ),
        *_section(
            "files not read",
            (f"{clean(item['path'])}: {clean(item['reason'])}" for item in found["skipped"]),
        ),
        *_coverage_lines(run, found["coverage"]),
        *(line for source in run.counters for line in _counter_lines(source)),
        *_section(counters, map(clean, _listed(names))),
        *_telemetry_lines(run),
        *(line for samples in run.cpu for line in _processor_lines(samples)),
    ]
    if found["partial_iterations"]:
        numbers = ", ".join(map(str, found["partial_iterations"]))
        lines += ["", f"iterations truncated by the profiling window: {numbers}"]
    return escape_each([*lines, *_section("missing", found["missing"])])


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """Lines below a title, indented; nothing without any."""
    texts = [f"  {line}" for line in lines]
    return ["", title, *texts] if texts else []


def _head_lines(run: Run, found: _Document) -> list[str]:
    lines = [f"run        {clean(run.name)}"]
    if run.generated:
        lines.append(f"           GENERATED data, not measured (made by {clean(run.generated)})")
    if note := TIMES_NOTES.get(run.times_mark):
        lines.append(f"           {note[0].upper()}{note[1:]}")
    hardware = sorted({gpu.hardware or "unknown hardware" for gpu in run.gpus})
    lines.append(f"GPUs       {len(run.gpus)} x {', '.join(map(clean, hardware))}")
    lines += [
        f"read with  --{option} {clean(option_text)}"
        for option, text in found["read_with"].items()
        for option_text in ([text] if option == "parallel" else text.split(","))
        if option_text
    ]
    if run.parallel is not None:
        lines.append(f"parallel   {run.parallel.text}, from {run.parallel.origin}")
        lines += [f"           {note}" for note in run.parallel.notes]
    return lines


def _coverage_lines(run: Run, coverage: _Document) -> list[str]:
    what = "GPU time (sum of durations)" if run.table.has_times else "the dispatches"
    lines = ["", f"label coverage in % of {what}, by rule"]
    for level in LABELLED:
        lines.append(f"  {level:<10} {coverage[level]['labelled_pct']:6.2f} % labelled")
        shares = coverage[level]["rules"].items()
        lines += [f"             {share:6.2f} % {rule}" for rule, share in shares]
    return lines


def _listed(names: Sequence[str]) -> list[str]:
    """Names in lines, at most `_MAX_LISTED_NAMES` of them."""
    shown = [*names[:_MAX_LISTED_NAMES]]
    if len(names) > _MAX_LISTED_NAMES:
        shown.append(f"and {len(names) - _MAX_LISTED_NAMES} more")
    return wrap(", ".join(shown), _LINE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _gpu_lines(found: dict[str, Any], width: int) -> list[str]:
    titles = ("GPU", "rank", "device", "span ms", "kernels", "collectives", "copies", "memsets",
              "unlinked kernels")  # fmt: skip
    keys = ("kernels", "collectives", "copies", "memsets", "kernels_without_launch")
    spans = (gpu["span_ns"] for gpu in found["gpus"])
    rows = [
        (
            *(str(gpu[key]) for key in ("gpu", "rank", "device")),
            f"{span / 1e6:.3f}" if span is not None else "-",
            *(str(gpu[key]) for key in keys),
        )
        for gpu, span in zip(found["gpus"], spans, strict=True)
    ]
    return _aligned((titles, *rows), width)


def _clock_line(clock: HostClock) -> str:
    ranks, shift = numbers_text(clock.ranks), seconds_text(clock.correction_ns)
    doubt = f", +/- {clock.uncertainty_ns / 1e6:.3f} ms" if clock.uncertainty_ns else ""
    return clean(f"{clock.name}, rank {ranks}: {shift} s to the run's{doubt}: {clock.method}")


def _identity_lines(run: Run, width: int) -> list[str]:
    """The devices of each source, matched to GPUs: a row per GPU, a column per source."""
    if not run.identities:
        return []
    by_source: dict[str, list[Identity]] = {}
    files = Counter(source.format for source in run.telemetry)
    for identity in run.identities:
        # With a file per signal and GPU, a column for each would be of no use.
        is_one_of_many = files[identity.format] > _MAX_FILES
        key = identity.format if is_one_of_many else identity.source
        by_source.setdefault(key, []).append(
            replace(identity, source=f"{identity.format} ({files[identity.format]} files)")
            if is_one_of_many
            else identity
        )
    rows = [["GPU", "rank", "trace", *(_source_title(found[0]) for found in by_source.values())]]
    for gpu in run.gpus:
        cells = [
            " | ".join(
                dict.fromkeys(_device(identity) for identity in found if identity.gpu == gpu.index)
            )
            for found in by_source.values()
        ]
        trace = f"device {gpu.device}{', ' if gpu.pci else ''}{gpu.pci}"
        rows.append([str(gpu.index), str(gpu.rank), trace, *cells])
    lines = ["", "devices matched to GPUs", *_aligned(rows, width)]
    for found in by_source.values():
        ways = dict.fromkeys(identity.by for identity in found if identity.gpu is not None)
        lines.append(f"  {_source_title(found[0])}: by {', '.join(ways) or 'nothing'}")
        left_out = [_device(identity) for identity in found if identity.gpu is None]
        if left_out:
            lines.append(f"    not matched: {', '.join(left_out)}")
    return [clean(line) for line in lines]


def _source_title(identity: Identity) -> str:
    """The name of a file; the format where a source is made of several."""
    paths = identity.source.split(", ")
    return PurePath(paths[0]).name if len(paths) == 1 else identity.format


def _device(identity: Identity) -> str:
    return identity.device + (" *" if identity.by == BY_HAND else "")


def _collective_line(item: dict[str, Any]) -> str:
    size = "some sizes unknown"
    if item["bytes"] is not None:
        scale = scale_of(METRICS["bytes"], item["bytes"])
        size = f"{scale.cell(item['bytes'])} {scale.text}"
    group = f"group {clean(item['group'])}" if item["group"] else "unknown group"
    return f"{item['count']:>6} {clean(item['operation'])}, {group}, {size}"


def _flops_lines(run: Run, amounts: dict[str, float]) -> list[str]:
    lines = []
    for name, amount in sorted(amounts.items(), key=lambda item: -item[1]):
        scale = scale_of(METRICS["model_flops"], amount)
        share = 100.0 * amount / sum(amounts.values())
        peak = run.hardware.flop_per_ns(ElementType[name.upper()]) if run.hardware else nan
        at = "unknown peak" if isnan(peak) else f"peak {peak * 1e-3:.1f} TFLOP/s"
        lines.append(f"{scale.cell(amount):>8} {scale.text}  {share:5.1f} % {name}, {at}")
    return lines


def _counter_lines(source: CounterSource) -> list[str]:
    whole = source.matched + source.borrowed + source.ambiguous + source.unmatched
    counts = (
        (source.matched, "matched"),
        (source.borrowed, "borrowed from another iteration"),
        (source.ambiguous, "ambiguous"),
        (source.unmatched, "without counters"),
    )
    return [
        "",
        f"counters of GPU {source.gpu}: {source.format}, {source.counters} counters of "
        f"{source.dispatches} dispatches, {source.iterations} iterations recognised "
        f"(names compared: {source.comparison})",
        f"  {whole} compute kernels: "
        + ", ".join(f"{count} {what}" for count, what in counts if count),
        f"  {source.unused_dispatches} dispatches without a kernel in the trace",
        *(f"  {clean(note)}" for note in source.notes),
    ]


def _processor_lines(samples: CpuSamples) -> list[str]:
    cores = f" on {len(distinct(samples.cores))} cores" if samples.has_cores else ""
    what = f"samples of {len(samples.cpus)} logical processors{cores}"
    return _placed_lines("CPU usage", samples, what)


def _telemetry_lines(run: Run) -> list[str]:
    """Each file of telemetry; of many of one format the first one."""
    lines: list[str] = []
    for form, files in Counter(source.format for source in run.telemetry).items():
        own = [source for source in run.telemetry if source.format == form]
        for telemetry in own[:1] if files > _MAX_FILES else own:
            lines += _placed_lines("telemetry", telemetry, "samples")
        if files > _MAX_FILES:
            lines.append(f"  and {files - 1} more files of {form}")
    return lines


def _placed_lines(kind: str, source: CpuSamples | TelemetrySource, what: str) -> list[str]:
    """A file of samples: what it has, where it lies on the run's clock, notes."""
    place = f"NOT PLACED: {source.method}"
    if source.offset_ns is not None:
        place = (
            f"clock {source.clock}, {source.offset_ns / 1e9:+.6f} s to the run's, "
            f"+/- {source.uncertainty_ns / 1e6:.3f} ms: {source.method}"
        )
    title = f"{kind} {clean(source.path)}: {source.format}, {source.samples} {what}"
    return _section(title, map(clean, (place, *source.notes)))


def _source_lines(sources: Sequence[_Document], width: int) -> list[str]:
    """A line per file, then clocks, facts and counts; counts that differ by rank as ranges."""
    titles = ("rank", "MB", "events", "used", "file")
    rows = [
        (
            str(source["rank"]),
            f"{source['size_bytes'] / 1e6:.1f}",
            str(_events(source)),
            str(_events(source) - sum(source["unused_events"].values())),
            clean(source["path"]),
        )
        for source in sources
    ]
    lines = ["", "sources", *_aligned((titles, *rows), width, words=1)]
    lines += _notes_by_rank(sources, "rank from", lambda source: source["rank_from"])
    lines += _notes_by_rank(sources, "clock", lambda source: source["clock"])
    lines += _notes_by_rank(sources, "", _facts)
    several = len(sources) > 1
    for title, key in (("not used", "unused_events"), ("found", "findings")):
        if counts := _counts(sources, key):
            lines.append(f"  {title}{', in each rank' if several else ''}")
            lines += [f"    {line}" for line in counts]
    lines += [
        f"  {mark}{clean(note)}"
        for source in sources
        for key, mark in (("notes", ""), ("losses", f"LOST in {clean(_short(source))}: "))
        for note in source[key]
    ]
    return lines


def _short(source: _Document) -> str:
    """The file of a source; the directory of one with several."""
    paths = source["path"].split(", ")
    return str(source["path"] if len(paths) == 1 else PurePath(paths[0]).parent)


def _events(source: _Document) -> int:
    return sum(source["events"].values())


def _facts(source: _Document) -> str:
    return ", ".join(f"{key} {value}" for key, value in source["facts"].items())


def _notes_by_rank(
    sources: Sequence[_Document], title: str, what: Callable[[_Document], str]
) -> list[str]:
    """A fact of the files, once for all ranks that share it."""
    ranks: dict[str, list[int]] = {}
    for source in sources:
        ranks.setdefault(what(source), []).append(source["rank"])
    return [
        f"  {f'{title}: ' if title else ''}{clean(note)}"
        + (f" (rank {numbers_text(sorted(those))})" if len(ranks) > 1 else "")
        for note, those in ranks.items()
        if note
    ]


def _counts(sources: Sequence[_Document], key: str) -> list[str]:
    """Each count by name, largest first; least and most where the ranks differ."""
    names = dict.fromkeys(name for source in sources for name in source[key])
    found = []
    for name in names:
        counts = [(source[key].get(name, 0), source["rank"]) for source in sources]
        least, most = min(counts), max(counts, key=lambda pair: (pair[0], -pair[1]))
        if not most[0]:
            continue
        count = str(most[0])
        if least[0] < most[0]:
            count = f"{least[0]} (rank {least[1]}) to {most[0]} (rank {most[1]})"
        found.append((most[0], f"{count} {clean(name) or 'without category'}"))
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
        places = (0, *range(begin, end))
        lines += [
            "  "
            + "  ".join(
                row[place].rjust(widths[place]) if place < figures else row[place]
                for place in places
            ).rstrip()
            for row in rows
        ]
        begin = end
    return lines
