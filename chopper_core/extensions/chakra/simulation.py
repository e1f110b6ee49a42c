"""Logs of ASTRA-sim: when each system issued each node of its trace, and when the node was done.

A line `issue,…` and a line `callback,…` with the same system and node id are an activity. The log
gives a node no more than its name and type; labels, sizes and streams come from the `.et` files of
the simulated ranks, where these lie next to the log or in one of the two folders above it.

ASTRA-sim rotates its log: `log.log` continues `log.1.log`, and that `log.2.log`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.extensions.chakra import et
from chopper_core.extensions.chakra.graph import (
    IDLE,
    OUTSIDE,
    STEPS,
    AttributeColumn,
    ExecutionGraph,
    GraphBuilder,
)
from chopper_core.extensions.chakra.graph_run import TICK_CLOCK, graph_run
from chopper_core.extensions.chakra.host_pieces import GAP, HOST
from chopper_core.extensions.chakra.schema import COMMUNICATION, Attribute, Node, NodeType
from chopper_core.model.doubts import Doubt
from chopper_core.model.run import Run
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.text import FileHead, FileText, head_of
from chopper_core.util.errors import DataError
from chopper_core.util.nearby import file_nearby, files_nearby
from chopper_core.util.progress import Progress, silent

NAME: Final = "ASTRA-sim log"
FILES: Final = "[`.log`, `.txt`](chakra.md#simulations) with `issue` and `callback` lines"
EXAMPLE: Final = "AstraSim_Analytical …, which writes log/log.log"
SUFFIXES: Final = (".log", ".txt", ".out")
FORMAT: Final = "ASTRA-sim log"

_EVENT: Final = re.compile(
    r"\b(issue|callback), ?[^=,]*=(\d{1,9}), ?[^=,]*=(\d{1,18}), ?[^=,]*=(\d{1,20}), ?[^=,]*="
    r"(.*?)(?:, ?(?:node->)?(?:node_)?type=(\d{1,3}))?$",
    re.ASCII,
)
"""System, tick, node id, node name (commas and all), type."""
_STATISTIC: Final = re.compile(
    r"\bsys\[(\d{1,9})\](?:,| (?=peak)) ?([A-Za-z][\w -]{1,60}): "
    r"(\d[\d.]{0,40}(?: ?[%\w/ ]{1,60})?)\s*$",
    re.ASCII,
)
"""Times are bare numbers; shares, bandwidths and memory have units behind them."""
_FINISHED: Final = re.compile(
    r"\bsys\[(\d{1,9})\] finished, (\d{1,18}) cycles"
    r"(?:, exposed communication (-?\d{1,20}) cycles)?",
    re.ASCII,
)
"""ASTRA-sim 2.0 has no exposed communication yet."""
_TYPE_PREFIX: Final = re.compile(
    r"^(COMP|COMM_COLL|COMM_SEND|COMM_RECV|MEM_LOAD|MEM_STORE)(?:_NODE)?_"
)
_PART: Final = re.compile(r"(?P<stem>.+)\.(?P<number>[1-9]\d{0,3})(?P<suffix>\.\w+)")
"""The name of a log that another one continues."""
_FOLDERS: Final = 3
"""That of a log and those above it in which traces are looked for: the nearest that has any."""
_COMM_STREAM: Final = 1
"""Simulators run communication during compute: without a trace each has a stream."""
_NS_PER_US: Final = 1_000
_TICKS: Final = ("Wall time", "finished")
"""Statistics that are the end of a system's last node."""
_TIMES: Final = ("ts_ns", "dur_ns", "launch_ns", HOST, IDLE)
_TIMES_OF_ALL: Final = ("reconstructed", "time_origin_ns", STEPS, OUTSIDE)
"""In the metadata."""


class SimulatedRun(Struct, frozen=True):
    """The systems of a log as graphs with times, and the log's own statistics."""

    path: Path
    graphs: tuple[ExecutionGraph, ...]
    """A graph per system, in rising order; its metadata has the rank."""
    statistics: Mapping[int, Mapping[str, str]]
    """System → name and value of each statistic, as the log has them."""
    notes: tuple[str, ...]
    begins_at: int = 0
    """The first tick, above 0 where the beginning of the log is missing."""
    ends_at: int = 0
    clock: str = TICK_CLOCK
    format: str = FORMAT

    def as_run(self) -> Run:
        from chopper_core.ingest.rank import merged

        found = []
        for place, graph in enumerate(self.graphs):
            run = graph_run(graph)
            source = run.sources[0]
            figures = self.statistics.get(source.rank, {})
            doubts = source.doubts
            if self.begins_at and not place:
                doubts += (Doubt("begin", self.begins_at, self.ends_at, f"{self.begins_at:,}"),)
            source = replace(
                source,
                path=str(self.path),
                doubts=doubts,
                clock=self.clock,
                losses=(*source.losses, *(self.notes if not place else ())),
                facts={**source.facts, "format": self.format, **figures},
                notes=(*source.notes, *_contradictions(run, figures)),
            )
            found.append(replace(run, name=str(self.path), sources=(source,)))
        return merged(found, "number of the system in the log")


def _contradictions(run: Run, figures: Mapping[str, str]) -> list[str]:
    """A sentence for each statistic of the log that its events contradict."""
    table = run.table
    last = int((table.start_ns + table.duration_ns).max())
    return [
        f"system {run.sources[0].rank}: {name} is {figures[name]}, the last node ended at {last}"
        for name in _TICKS
        if figures.get(name, str(last)) != str(last)
    ]


class SystemEvents(Struct):
    """The events of one system."""

    issued: dict[int, tuple[int, str, int | None]]
    """Node id → tick, name, type, of nodes that are not done yet."""
    done: dict[int, tuple[int, int, str, int | None]]
    """Node id → tick of issue and of callback, name, type."""
    repeated: int = 0
    skipped: int = 0
    """Nodes that were done without having been issued: ASTRA-sim 2.0 skips those without work."""


def recognise(head: FileHead) -> Recognised | Unusable | None:
    if (newer := _newer(head.path)) and _first_tick(head_of(newer)) not in (None, 0):
        return Unusable(f"is a part of {newer.name}, with which it is read")
    return None if _first_tick(head) is None else Recognised(FORMAT)


def _first_tick(head: FileHead) -> int | None:
    """The tick of the first event in the head of a log, -1 where it starts with the end of a node
    or with statistics; None for other files."""
    for line in map(str.rstrip, head.text.splitlines()):
        if found := _EVENT.search(line):
            return int(found[3]) if found[1] == "issue" else -1
        if _STATISTIC.search(line) or _FINISHED.search(line):
            return -1
    return None


def _newer(path: Path) -> Path | None:
    """The file whose name says that it continues a log, if it is there."""
    if (match := _PART.fullmatch(path.name)) is None:
        return None
    number = int(match["number"]) - 1
    newer = path.with_name(f"{match['stem']}{f'.{number}' if number > 0 else ''}{match['suffix']}")
    return newer if file_nearby(newer).is_file() else None


def _parts_of(path: Path) -> list[Path]:
    """The log and what it continues, the oldest first: a log begins with an issue at tick 0."""
    found = [path]
    match = _PART.fullmatch(path.name)
    stem, number = (match["stem"], int(match["number"])) if match else (path.stem, 0)
    first = _first_tick(head_of(path))
    while first != 0:
        number += 1
        older = path.with_name(f"{stem}.{number}{path.suffix}")
        if not file_nearby(older).is_file():
            break
        found.insert(0, older)
        first = _first_tick(head_of(older))
        if first is None:
            # What the simulator says of itself before the first event.
            break
    return found


def read(path: Path, progress: Progress = silent) -> SimulatedRun:
    systems: dict[int, SystemEvents] = {}
    statistics: dict[int, dict[str, str]] = {}
    notes: list[str] = []
    parts = _parts_of(path)
    first = last = None
    for number, part in enumerate(parts):
        progress(f"read {part.name}", number, len(parts))
        text = FileText(part)
        ticks = _read_part(text, systems, statistics)
        first = first if first is not None else ticks[0]
        last = ticks[1] if ticks[1] is not None else last
        notes += text.losses.notes
    if not any(system.done for system in systems.values()):
        raise DataError(
            f"{path} has statistics of a simulation and no node that was issued and done: run "
            'ASTRA-sim with "trace-enabled": 1 and open log/log.log, which it writes where it '
            "runs; its console has no events."
        )
    graphs = []
    for number in sorted(systems):
        system = systems[number]
        notes += _missing(number, system, statistics)
        if system.done:
            graphs.append(_graph(path, number, system, notes))
    return SimulatedRun(path, tuple(graphs), statistics, tuple(notes), first or 0, last or 0)


def _read_part(
    text: FileText,
    systems: dict[int, SystemEvents],
    statistics: dict[int, dict[str, str]],
) -> tuple[int | None, int | None]:
    """Take the events and statistics of a file; returns its first and its last tick."""
    first: int | None = None
    last: int | None = None
    for line in text.lines():
        if found := _EVENT.search(line.rstrip()):
            last = int(found[3])
            first = last if first is None else first
            _take(systems, found)
        elif found := _STATISTIC.search(line):
            statistics.setdefault(int(found[1]), {})[found[2]] = found[3]
        elif found := _FINISHED.search(line):
            numbers = statistics.setdefault(int(found[1]), {})
            numbers["finished"] = found[2]
            if found[3] is not None:
                numbers["exposed communication"] = found[3]
    return first, last


def _take(systems: dict[int, SystemEvents], found: re.Match[str]) -> None:
    system = systems.setdefault(int(found[2]), SystemEvents({}, {}))
    tick, node = int(found[3]), int(found[4])
    if found[1] == "issue":
        if node in system.issued or node in system.done:
            system.repeated += 1
            return
        system.issued[node] = (tick, found[5], None if found[6] is None else int(found[6]))
    elif (begun := system.issued.pop(node, None)) is not None:
        system.done[node] = (begun[0], max(tick, begun[0]), *begun[1:])
    elif node not in system.done:
        system.skipped += 1


def _missing(
    number: int, system: SystemEvents, statistics: Mapping[int, Mapping[str, str]]
) -> Iterator[str]:
    for count, what in (
        (len(system.issued), "nodes were issued and not done; they are left out"),
        (system.repeated, "nodes were issued again; the first time counts"),
        (system.skipped, "nodes are done without a line that issues them"),
    ):
        if count:
            yield f"system {number}: {count} {what}"
    if statistics and "finished" not in statistics.get(number, {}):
        lacks = "has no line that it finished" if number in statistics else "did not finish"
        yield f"system {number} {lacks}"


def _graph(path: Path, number: int, system: SystemEvents, notes: list[str]) -> ExecutionGraph:
    """The graph of a system: that of its trace with the times of the log, else of the log alone."""
    folders = path.absolute().parents[:_FOLDERS]
    near = (files_nearby(folder, "*.et") for folder in folders)
    of_system = ([each for each in found if each.stem.endswith(f".{number}")] for found in near)
    traces = next((found for found in of_system if found), [])
    try:
        if len(traces) > 1:
            raise DataError(f"{traces[0].name} and {traces[1].name} both lie near the log")
        if traces:
            return _timed(_checked(et.read(traces[0]), system), path, number, system)
    except DataError as error:
        notes.append(f"labels of system {number} are not known: {error}")
    return graph_of_names(path, number, system)


def graph_of_names(path: Path, number: int, system: SystemEvents) -> ExecutionGraph:
    """The graph of a system of which no more than names, types and times are known."""
    builder = GraphBuilder(path, FORMAT)
    for node, (_, _, name, stated) in system.done.items():
        prefix = _TYPE_PREFIX.match(name)
        kind = NodeType[prefix[1]] if prefix else NodeType.COMP
        if stated is not None and NodeType.METADATA < stated <= NodeType.COMM_COLL:
            kind = NodeType(stated)
        attributes = {"is_cpu_op": Attribute("bool", name == GAP)}
        if kind in COMMUNICATION:
            attributes["stream"] = Attribute("int64", _COMM_STREAM)
        builder.add(Node(node, name, kind, attributes=attributes))
    return _timed(builder.graph("", {}), path, number, system)


def _checked(graph: ExecutionGraph, system: SystemEvents) -> ExecutionGraph:
    """The trace of a system; raises DataError if the log is not of a simulation of it."""
    names = {node: graph.names[code] for node, code in zip(graph.ids, graph.name, strict=True)}
    for node, (_, _, name, _) in system.done.items():
        if names.get(node) not in (name, _TYPE_PREFIX.sub("", name)):
            raise DataError(
                f"{graph.path} is another workload: its node {node} is "
                f"{names.get(node, 'missing')!r}, that of the log {name!r}"
            )
    return graph


def _timed(graph: ExecutionGraph, path: Path, number: int, system: SystemEvents) -> ExecutionGraph:
    """A graph with the times of the log; nodes that it lacks are not activities."""
    places = np.array([at for at, node in enumerate(graph.ids) if node in system.done], np.intp)
    ticks = np.array([system.done[graph.ids[at]][:2] for at in places.tolist()], np.int64)
    started, lasted = ticks[:, 0], ticks[:, 1] - ticks[:, 0]
    attributes = {name: each for name, each in graph.attributes.items() if name not in _TIMES}
    for name, times in (("ts_ns", started), ("dur_ns", lasted)):
        types = ["int64"] * len(places)
        attributes[name] = AttributeColumn(types, array("q", places), times.tolist())
    metadata = {name: value for name, value in graph.metadata.items() if name not in _TIMES_OF_ALL}
    start_us, duration_us = np.zeros((2, len(graph)), np.int64)
    start_us[places], duration_us[places] = started // _NS_PER_US, lasted // _NS_PER_US
    kind = np.full(len(graph), NodeType.INVALID, np.int8)
    kind[places] = graph.type[places]
    return replace(
        graph,
        path=path,
        start_us=start_us,
        duration_us=duration_us,
        size_bytes=path.stat().st_size,
        type=kind,
        metadata={**metadata, "rank": number},
        attributes=attributes,
    )
