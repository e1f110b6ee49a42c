"""A run as a Chrome trace for Perfetto: all GPUs on the run's clock in one JSON file.

A process per GPU, with a track for the labels of each level, one per stream, and one per signal.
Collectives are flows between their kernels. Events have the categories and arguments that Kineto
gives them, so that readers of Kineto traces, Chopper among them, take the file too.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from chopper_core.model.column_names import CORRELATION, is_counted
from chopper_core.model.inputs import Gpu
from chopper_core.model.run import Run
from chopper_core.model.table import LABELLED, NO_LABEL, PHASES, Category, KernelTable, Kind
from chopper_core.render.exports import ExportOptions, chosen_rows, new_file
from chopper_core.util.arrays import Float64, Index, Int64, encodable
from chopper_core.util.grouping import counts_of, run_maxima, run_starts, stable_order
from chopper_core.util.progress import Progress
from chopper_core.views.shared.collectives import collectives_of
from chopper_core.views.shared.dependencies import time_order

DESCRIPTION: Final = "a Chrome trace (.json, .json.gz) of all GPUs, for ui.perfetto.dev"
TAKES: Final = ("iteration",)

SCHEMA: Final = "chopper.perfetto/1"
_CATEGORIES: Final = {
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
}
_LABEL_TRACKS: Final = 1 << 30
"""Number of the first track that is no stream."""
_CHUNK: Final = 1 << 14
_COMPRESSION: Final = 5

Event = dict[str, Any]
_Flows = Mapping[int, tuple[str, int, str]]


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    """Write one file; it is gzipped if its name ends in .gz."""
    rows = chosen_rows(run, options)
    table = run.table
    origin_ns = int(table.start_ns[rows].min())
    flows = _flows_of(run, rows)
    encoder = msgspec.json.Encoder()
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": origin_ns,
        "chopper": {"schema": SCHEMA, "run": encodable(run.name), "marks": list(run.marks)},
        **({"chopper_generated": run.generated} if run.generated else {}),
    }
    with new_file(path) as fresh, fresh.open("wb") as plain, ExitStack() as stack:
        file: Any = plain
        if path.suffix == ".gz":
            # Without a name and a time in it: the same run gives the same file.
            file = stack.enter_context(gzip.GzipFile("", "wb", _COMPRESSION, plain, mtime=0))
        file.write(encoder.encode(head)[:-1] + b',"traceEvents":[\n')
        separator = b""
        for number, gpu in enumerate(run.gpus):
            progress("write the trace", number, len(run.gpus))
            own = time_order(table, rows[table.gpu[rows] == gpu.index])
            events = _events(run, gpu, own, origin_ns, flows)
            while chunk := list(islice(events, _CHUNK)):
                file.write(separator + encoder.encode(chunk)[1:-1])
                separator = b",\n"
        file.write(b"\n]}\n")
    return []


def _events(run: Run, gpu: Gpu, rows: Index, origin_ns: int, flows: _Flows) -> Iterator[Event]:
    """The events of one GPU, whose rows come in the order of time."""
    tracks, track = _tracks(run.table, rows)
    yield from _names(run, gpu, tracks)
    yield from _labels(run.table, gpu, rows, origin_ns)
    yield from _slices(run.table, gpu, rows, origin_ns, track)
    yield from _flow_events(run.table, gpu, rows, origin_ns, track, flows)
    yield from _kernel_counters(run.table, gpu, rows, origin_ns)
    yield from _signals(run, gpu, rows, origin_ns)


def _us(ns: int) -> float:
    return ns / 1e3


def _slice(
    category: str, name: str, gpu: Gpu, track: int, at_ns: int, took_ns: int, args: Event
) -> Event:
    place = {"pid": gpu.index, "tid": track, "ts": _us(at_ns), "dur": _us(took_ns)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def _tracks(table: KernelTable, rows: Index) -> tuple[dict[int, str], Int64]:
    """Number and name of each track of a GPU's streams, and the track of each row.

    A viewer drops a slice that begins before the one before it on its track has ended: activities
    of a stream that overlap are put on further tracks.
    """
    track = np.zeros(len(rows), np.int64)
    names: dict[int, str] = {}
    order = stable_order(table.stream[rows])
    first = run_starts(table.stream[rows[order]])
    for number, lane in enumerate(np.split(order, first[1:])):
        if not len(lane):
            continue
        stream = int(table.stream[rows[lane[0]]])
        start = table.start_ns[rows[lane]]
        end = start + table.duration_ns[rows[lane]]
        level = _levels(start, end)
        for extra in range(int(level.max()) + 1):
            # The first track of a stream has its number where that can be one.
            fits = extra == 0 and 0 <= stream < _LABEL_TRACKS
            own = stream if fits else 2 * _LABEL_TRACKS + (number << 8) + extra
            names[own] = f"stream {stream}" + (f", overlapping {extra}" if extra else "")
            track[lane[level == extra]] = own
    return names, track


def _levels(start: Int64, end: Int64) -> Int64:
    """The first level on which nothing runs when an activity of a stream starts."""
    found = np.zeros(len(start), np.int64)
    if (end[:-1] <= start[1:]).all():
        return found
    free: list[int] = []
    for place, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        level = next((k for k, at in enumerate(free) if at <= begins), len(free))
        if level == len(free):
            free.append(ends)
        free[level] = ends
        found[place] = level
    return found


def _names(run: Run, gpu: Gpu, tracks: Mapping[int, str]) -> Iterator[Event]:
    rank = f", rank {gpu.rank}" if gpu.rank != gpu.index else ""
    hardware = f", {gpu.hardware}" if gpu.hardware else ""
    marks = f" ({', '.join(run.marks)})" if run.marks else ""

    def meta(what: str, thread: int, **args: object) -> Event:
        return {"ph": "M", "name": what, "pid": gpu.index, "tid": thread, "ts": 0, "args": args}

    yield meta("process_name", 0, name=f"GPU {gpu.index}{rank}{hardware}{marks}")
    yield meta("process_sort_index", 0, sort_index=gpu.index)
    named = {_LABEL_TRACKS + k: level for k, level in enumerate(LABELLED)} | dict(tracks)
    for place, (thread, name) in enumerate(named.items()):
        yield meta("thread_name", thread, name=name)
        yield meta("thread_sort_index", thread, sort_index=place)


def _labels(table: KernelTable, gpu: Gpu, rows: Index, origin_ns: int) -> Iterator[Event]:
    """A slice for each stretch of activities with one label, level by level.

    Those that compute have the word: communication runs ahead for other layers.
    """
    computes = rows[table.kind[rows] == Kind.COMPUTE]
    rows = computes if len(computes) else rows
    if not len(rows):
        return
    start = table.start_ns[rows]
    end = start + table.duration_ns[rows]
    for k, level in enumerate(LABELLED):
        codes = table.column(level)[rows]
        first = run_starts(codes)
        ends = run_maxima(end, first)
        ends[:-1] = np.minimum(ends[:-1], start[first[1:]])
        for at, until in zip(first.tolist(), ends.tolist(), strict=True):
            if (code := int(codes[at])) == NO_LABEL:
                continue
            text = table.text_of(level, code)
            name = f"{level} {text}" if level in ("iteration", "layer") else text
            begins, track = int(start[at]), _LABEL_TRACKS + k
            took, args = max(until - begins, 0), {"rank": gpu.rank}
            yield _slice("gpu_user_annotation", name, gpu, track, begins - origin_ns, took, args)


def _slices(
    table: KernelTable, gpu: Gpu, rows: Index, origin_ns: int, track: Int64
) -> Iterator[Event]:
    measured = {
        name: values
        for name, values in table.measured.items()
        if is_counted(name) and np.isfinite(values[rows]).any()
    }
    if CORRELATION in table.measured:
        measured["correlation"] = table.measured[CORRELATION]
    for begin in range(0, len(rows), _CHUNK):
        part = rows[begin : begin + _CHUNK]
        columns = _arguments(table, gpu, part, measured)
        tracks = track[begin : begin + _CHUNK].tolist()
        places = (table.column(name)[part].tolist() for name in _PLACES)
        for own, category, kernel, start, took_ns, *values in zip(
            tracks, *places, *columns.values(), strict=True
        ):
            args = {
                name: each for name, each in zip(columns, values, strict=True) if each is not None
            }
            name, at_ns = table.names[kernel], start - origin_ns
            yield _slice(_CATEGORIES[category], name, gpu, own, at_ns, took_ns, args)


_PLACES: Final = ("category", "kernel", "start_ns", "duration_ns")


def _arguments(
    table: KernelTable, gpu: Gpu, rows: Index, measured: Mapping[str, Float64]
) -> dict[str, list[Any]]:
    """Labels and counters of activities by name; None where unknown."""

    def known(column: str, texts: Sequence[str] | None = None) -> list[Any]:
        codes = table.column(column)[rows].tolist()
        return [None if code < 0 else code if texts is None else texts[code] for code in codes]

    kinds = [Kind(code) for code in table.kind[rows].tolist()]
    operations = known("operation", table.operations)
    collectives = zip(operations, kinds, strict=True)
    counted = {name: values[rows].tolist() for name, values in measured.items()}
    return {
        "rank": [gpu.rank] * len(rows),
        "device": [gpu.index] * len(rows),
        "stream": table.stream[rows].tolist(),
        "kind": [kind.name.lower() for kind in kinds],
        "iteration": known("iteration"),
        "layer": known("layer"),
        "phase": known("phase", PHASES),
        "operation": operations,
        "Collective name": [name if kind == Kind.COMM else None for name, kind in collectives],
        "bytes": known("bytes"),
        "Process Group Description": known("group", table.names),
        **{name: list(map(_number, values)) for name, values in counted.items()},
    }


def _number(value: float) -> float | None:
    if isnan(value):
        return None
    return int(value) if value.is_integer() else value


def _flows_of(run: Run, rows: Index) -> dict[int, tuple[str, int, str]]:
    """Place, number and kind of the collective of each row, where several members are among them.

    The place of the first to arrive is `s`, that of the last `f`, and `t` between.
    """
    found = collectives_of(run)
    if found is None:
        return {}
    chosen = np.isin(found.rows, rows)
    member, number = found.rows[chosen], found.member_set[chosen].astype(np.int64)
    several = counts_of(number, len(found))[number] > 1
    member, number = member[several], number[several]
    order = np.lexsort((run.table.gpu[member], run.table.start_ns[member], number))
    member, number = member[order], number[order]
    first = run_starts(number)
    place = np.full(len(member), "t")
    place[np.append(first[1:], len(member))[: len(first)] - 1] = "f"
    place[first] = "s"
    names = [run.table.text_of("operation", code) for code in found.kind.tolist()]
    flows = zip(member.tolist(), place.tolist(), number.tolist(), strict=True)
    return {row: (at, each, names[each]) for row, at, each in flows}


def _flow_events(
    table: KernelTable, gpu: Gpu, rows: Index, origin_ns: int, track: Int64, flows: _Flows
) -> Iterator[Event]:
    for row, own in zip(rows.tolist(), track.tolist(), strict=True):
        if row not in flows:
            continue
        place, number, name = flows[row]
        yield {
            "ph": place,
            "cat": "collective",
            "name": name,
            "id": number,
            "pid": gpu.index,
            "tid": own,
            "ts": _us(int(table.start_ns[row]) - origin_ns),
            **({"bp": "e"} if place == "f" else {}),
            "args": {"rank": gpu.rank},
        }


def _kernel_counters(table: KernelTable, gpu: Gpu, rows: Index, origin_ns: int) -> Iterator[Event]:
    """Counters of kernels as their rate while each runs; 0 from its end until the next begins."""
    for name, values in table.measured.items():
        if not is_counted(name):
            continue
        known = rows[np.isfinite(values[rows]) & (table.duration_ns[rows] > 0)]
        if not len(known):
            continue
        start = table.start_ns[known] - origin_ns
        end = start + table.duration_ns[known]
        rate = 1e3 * values[known] / table.duration_ns[known]
        idle_after = np.append(end[:-1] < start[1:], True)
        for begins, ends, number, is_idle in zip(
            start.tolist(), end.tolist(), rate.tolist(), idle_after.tolist(), strict=True
        ):
            yield _counted(gpu, f"{name} per µs", begins, number)
            if is_idle:
                yield _counted(gpu, f"{name} per µs", ends, 0.0)


def _signals(run: Run, gpu: Gpu, rows: Index, origin_ns: int) -> Iterator[Event]:
    if not len(rows):
        return
    begin = int(run.table.start_ns[rows[0]])
    end = int((run.table.start_ns[rows] + run.table.duration_ns[rows]).max())
    for signal in run.measured.values():
        curve = signal.curves.get(gpu.index)
        if curve is None:
            continue
        inner = curve.edges_ns[(curve.edges_ns > begin) & (curve.edges_ns < end)]
        edges = np.concatenate([[begin], inner, [end]]).astype(np.int64)
        edges = edges[np.append(True, np.diff(edges) > 0)]
        means = curve.means(edges) if len(edges) > 1 else np.zeros(0)
        title = f"{signal.title} {signal.unit}".strip()
        for at in np.flatnonzero(np.isfinite(means)).tolist():
            yield _counted(gpu, title, int(edges[at]) - origin_ns, float(means[at]))


def _counted(gpu: Gpu, name: str, at_ns: int, number: float) -> Event:
    args = {"value": round(number, 6)}
    return {"ph": "C", "name": name, "pid": gpu.index, "tid": 0, "ts": _us(at_ns), "args": args}
