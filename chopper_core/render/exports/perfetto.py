"""A run as a Chrome trace for Perfetto: all GPUs on the run's clock in one JSON file.

A process per GPU, with a track for the labels of each level, one per stream, and one per signal.
Collectives are flows between their kernels. Events have the categories and arguments that Kineto
gives them, so that readers of Kineto traces, Chopper among them, take the file too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from chopper_core.graph.collectives import collectives_of
from chopper_core.graph.dependencies import time_order
from chopper_core.model.column_names import CORRELATION, is_counted
from chopper_core.model.inputs import Gpu
from chopper_core.model.run import Run
from chopper_core.model.table import (
    LABELLED,
    NO_LABEL,
    PHASES,
    Category,
    KernelTable,
    Kind,
)
from chopper_core.render.exports import ExportOptions, chosen_rows, new_file
from chopper_core.util.arrays import Float64, Index, Int64, encodable
from chopper_core.util.compression import COMPRESSED_TRACE, compressing
from chopper_core.util.grouping import (
    distinct,
    places_by,
    run_maxima,
    run_starts,
    runs_of,
    stable_order,
)
from chopper_core.util.progress import Progress

DESCRIPTION: Final = f"a Chrome trace (.json, {COMPRESSED_TRACE}) of all GPUs, for ui.perfetto.dev"
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

Event = dict[str, Any]
_Flows = Mapping[int, tuple[str, int, str]]


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    """Write one file, compressed as its name says."""
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
    with (
        new_file(path) as fresh,
        fresh.open("wb") as plain,
        compressing(plain, path.name) as file,
    ):
        file.write(encoder.encode(head)[:-1] + b',"traceEvents":[\n')
        separator, of_gpu = b"", places_by(table.gpu[rows])
        for number, gpu in enumerate(run.gpus):
            progress("write the trace", number, len(run.gpus))
            own = time_order(table, rows[of_gpu.get(gpu.index, np.empty(0, np.intp))])
            events = _GpuEvents(run, gpu, own, origin_ns).all(flows)
            while chunk := list(islice(events, _CHUNK)):
                file.write(separator + encoder.encode(chunk)[1:-1])
                separator = b",\n"
        file.write(b"\n]}\n")
    return []


class _GpuEvents(Struct, frozen=True):
    """The events of one GPU, whose rows come in the order of time."""

    run: Run
    gpu: Gpu
    rows: Index
    origin_ns: int

    def all(self, flows: _Flows) -> Iterator[Event]:
        names, track = _tracks(self.run.table, self.rows)
        yield from self._names(names)
        if len(self.rows):
            yield from self._labels()
            yield from self._slices(track)
            yield from self._flow_events(track, flows)
            yield from self._kernel_counters()
            yield from self._signals()

    def _event(
        self, kind: str, name: str, track: int, at_ns: int, args: Event, **more: object
    ) -> Event:
        place = {"pid": self.gpu.index, "tid": track, "ts": (at_ns - self.origin_ns) / 1e3}
        return {"ph": kind, "name": name, **place, **more, "args": args}

    def _counted(self, name: str, at_ns: int, number: float) -> Event:
        return self._event("C", name, 0, at_ns, {"value": round(number, 6)})

    def _names(self, tracks: Mapping[int, str]) -> Iterator[Event]:
        gpu, marks = self.gpu, self.run.marks
        rank = f", rank {gpu.rank}" if gpu.rank != gpu.index else ""
        hardware = f", {gpu.hardware}" if gpu.hardware else ""
        text = f"GPU {gpu.index}{rank}{hardware}" + (f" ({', '.join(marks)})" if marks else "")
        named = {_LABEL_TRACKS + k: level for k, level in enumerate(LABELLED)} | dict(tracks)
        threads = (("thread", *each, place) for place, each in enumerate(named.items()))
        for what, track, name, place in (("process", 0, text, gpu.index), *threads):
            for key, value in (("name", name), ("sort_index", place)):
                yield self._event("M", f"{what}_{key}", track, self.origin_ns, {key: value})

    def _labels(self) -> Iterator[Event]:
        """A slice for each stretch of activities with one label, level by level.

        Those that compute have the word: communication runs ahead for other layers.
        """
        table = self.run.table
        computes = self.rows[table.kind[self.rows] == Kind.COMPUTE]
        rows = computes if len(computes) else self.rows
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
                begin, args = int(start[at]), {"rank": self.gpu.rank}
                more = {"cat": "gpu_user_annotation", "dur": max(until - begin, 0) / 1e3}
                yield self._event("X", name, _LABEL_TRACKS + k, begin, args, **more)

    def _slices(self, track: Int64) -> Iterator[Event]:
        table = self.run.table
        measured = {
            name: values
            for name, values in table.measured.items()
            if name == CORRELATION or (is_counted(name) and np.isfinite(values[self.rows]).any())
        }
        for begin in range(0, len(self.rows), _CHUNK):
            part = self.rows[begin : begin + _CHUNK]
            columns = _arguments(table, self.gpu, part, measured)
            tracks = track[begin : begin + _CHUNK].tolist()
            places = (table.column(name)[part].tolist() for name in _PLACES)
            for own, category, kernel, start, took_ns, *values in zip(
                tracks, *places, *columns.values(), strict=True
            ):
                known = zip(columns, values, strict=True)
                args = {name: each for name, each in known if each is not None}
                more = {"cat": _CATEGORIES[category], "dur": took_ns / 1e3}
                yield self._event("X", table.names[kernel], own, start, args, **more)

    def _flow_events(self, track: Int64, flows: _Flows) -> Iterator[Event]:
        for row, own in zip(self.rows.tolist(), track.tolist(), strict=True):
            if row in flows:
                place, number, name = flows[row]
                more = {"cat": "collective", "id": number, **({"bp": "e"} if place == "f" else {})}
                start, args = int(self.run.table.start_ns[row]), {"rank": self.gpu.rank}
                yield self._event(place, name, own, start, args, **more)

    def _kernel_counters(self) -> Iterator[Event]:
        """Counters of kernels as their rate while each runs; 0 from its end until the next one."""
        table = self.run.table
        for name, values in table.measured.items():
            if not is_counted(name):
                continue
            is_known = np.isfinite(values[self.rows]) & (table.duration_ns[self.rows] > 0)
            known = self.rows[is_known]
            start = table.start_ns[known]
            end = start + table.duration_ns[known]
            rate = 1e3 * values[known] / table.duration_ns[known]
            is_last = np.append(end[:-1] < start[1:], True)[: len(known)]
            for begins, ends, number, is_idle in zip(
                start.tolist(), end.tolist(), rate.tolist(), is_last.tolist(), strict=True
            ):
                yield self._counted(f"{name} per µs", begins, number)
                if is_idle:
                    yield self._counted(f"{name} per µs", ends, 0.0)

    def _signals(self) -> Iterator[Event]:
        table, rows = self.run.table, self.rows
        begin = int(table.start_ns[rows[0]])
        end = int((table.start_ns[rows] + table.duration_ns[rows]).max())
        for signal in self.run.measured.values():
            curve = signal.curves.get(self.gpu.index)
            if curve is None or begin == end:
                continue
            inner = curve.edges_ns[(curve.edges_ns > begin) & (curve.edges_ns < end)]
            edges = distinct(np.concatenate([[begin], inner, [end]]).astype(np.int64))
            means = curve.means(edges)
            title = f"{signal.title} {signal.unit}".strip()
            for at in np.flatnonzero(np.isfinite(means)).tolist():
                yield self._counted(title, int(edges[at]), float(means[at]))


def _tracks(table: KernelTable, rows: Index) -> tuple[dict[int, str], Int64]:
    """Number and name of each track of a GPU's streams, and the track of each row.

    A viewer drops a slice that begins before the one before it on its track has ended: activities
    of a stream that overlap are put on further tracks.
    """
    track = np.zeros(len(rows), np.int64)
    names: dict[int, str] = {}
    order = stable_order(table.stream[rows])
    for number, (stream, place) in enumerate(runs_of(table.stream[rows[order]])):
        lane = order[place]
        start = table.start_ns[rows[lane]]
        level = _levels(start, start + table.duration_ns[rows[lane]])
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
        free[level : level + 1] = [ends]
        found[place] = level
    return found


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
    order = np.lexsort((run.table.gpu[member], run.table.start_ns[member], number))
    flows: dict[int, tuple[str, int, str]] = {}
    for each, place in runs_of(number[order]):
        members = member[order[place]].tolist()
        if len(members) > 1:
            name = run.table.text_of("operation", int(found.kind[each]))
            flows |= dict.fromkeys(members, ("t", each, name))
            flows[members[-1]] = "f", each, name
            flows[members[0]] = "s", each, name
    return flows
