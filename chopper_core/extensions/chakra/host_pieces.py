"""The host's part of a Chakra graph: operators and runtime calls that a run keeps, as CPU nodes.

A run has the outermost operators of the threads that launch a GPU's work, the calls of the runtime
that don't launch, and when each activity was launched. Nodes are pieces of these, cut wherever
another one begins or ends and at each launch, one after the other: launching threads count as one
sequence. An activity waits for the piece that ends with its launch; a call that blocks counts from
the end of the activity that it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.extensions.chakra.graph import ExecutionGraph
from chopper_core.graph.host_nodes import TimedRows, awaited_by_calls, queue_times
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostLane, HostSteps, empty
from chopper_core.model.table import NO_TIME, KernelTable
from chopper_core.render.exports import ExportOptions
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct, ranked

HOST: Final = "host"
"""The attribute of the first node of an operator or call: its kind, start and duration in ns."""
GAP: Final = "host_gap"
_MIN_GAP_NS: Final = 1_000
_END, _BEGIN, _EMPTY_END, _LAUNCH = range(4)


class Piece(Struct):
    """A CPU node."""

    name: str
    start_ns: int
    end_ns: int
    before: int = -1
    """The piece before it, or -1."""
    caller: int = -1
    """The last piece of the operator around it, or -1."""
    awaits: Sequence[int] = ()
    """Places of activities that it waits for."""
    whole: list[int] | None = None
    """Of a first piece the kind, start and duration of the operator or call."""


class HostPieces(Struct, frozen=True):
    """The CPU nodes of a GPU in order, and where its activities are among them."""

    pieces: Sequence[Piece]
    launched: Sequence[int]
    """For each activity the piece that it waits for, or -1."""
    callers: Sequence[int]
    """For each activity the last piece of the operator that launched it, or -1."""


def idle_pieces(table: KernelTable, rows: Index) -> HostPieces:
    """The time in which nothing ran on a GPU, whose rows come in the order of their start."""
    start = table.start_ns[rows]
    ends = start + table.duration_ns[rows]
    latest = np.maximum.accumulate(ends)
    last = np.maximum.accumulate(np.where(ends == latest, np.arange(len(rows)), 0)).tolist()
    idle = np.flatnonzero(start[1:] - latest[:-1] >= _MIN_GAP_NS) + 1
    launched = np.full(len(rows), -1)
    launched[idle] = np.arange(len(idle))
    pieces = [
        Piece(GAP, int(latest[at - 1]), int(start[at]), awaits=(last[at - 1],))
        for at in idle.tolist()
    ]
    return HostPieces(pieces, launched.tolist(), [-1] * len(rows))


def chosen_lane(run: Run, rows: Index, options: ExportOptions) -> HostLane:
    """The host's work for some rows of a run: all of it, or what overlaps the launches and the
    annotated step of an iteration, or the launches of as many nodes.

    Raises DataError where the run keeps none.
    """
    lane, steps, table = run.side(HostLane), run.side(HostSteps), run.table
    if not len(lane):
        raise DataError(
            f"{run.name} keeps no operators or calls of the host, so there is nothing for --host "
            "to write; traces of PyTorch's profiler have them."
        )
    if options.iteration is None and options.nodes is None:
        return lane
    inside = np.zeros(len(lane), np.bool_)
    for gpu in distinct(lane.gpu).tolist():
        launch = table.launch_ns[rows[table.gpu[rows] == gpu]]
        is_step = (steps.gpu == gpu) & (options.nodes is None)
        step = np.flatnonzero(is_step & (steps.iteration == options.iteration))
        begins, lasts = steps.start_ns[step], steps.duration_ns[step]
        known = np.concatenate([launch[launch != NO_TIME], begins, begins + lasts])
        if len(known):
            own = lane.of_gpu(gpu)
            ends = lane.start_ns[own] + lane.duration_ns[own]
            inside[own] = (lane.start_ns[own] <= known.max()) & (ends >= known.min())
    return replace(lane, **{name: values[inside] for name, values in lane.columns().items()})


def host_pieces(
    table: KernelTable, lane: HostLane, gpu: int, rows: Index, *, gaps: bool
) -> HostPieces:
    """The host's work for a GPU, whose rows come in the order of their start.

    `gaps`: with the host's time outside of operators.
    """
    own = lane.of_gpu(gpu)
    entries = np.arange(own.start, own.stop)
    starts, ends = lane.start_ns[own], lane.start_ns[own] + lane.duration_ns[own]
    launch = table.launch_ns[rows]
    # A launch after its activity's start shows clocks that disagree.
    launch = np.where(launch > table.start_ns[rows], NO_TIME, launch)
    known = np.flatnonzero(launch != NO_TIME)
    # At one time ends come first, the inner one's before the outer one's; then begins, the outer
    # one's first, and ends of what lasts no time.
    lasts, events = ends - starts, (len(entries), len(entries), len(known))
    at = np.concatenate([ends, starts, launch[known]])
    what = np.repeat([_END, _BEGIN, _LAUNCH], events)
    what[: len(entries)][lasts == 0] = _EMPTY_END
    which = np.concatenate([entries, entries, known])
    order = np.lexsort((np.concatenate([lasts, -lasts, known]), what, at))
    walk = _Walk(lane, _awaited(table, lane, rows, launch, gpu), gaps=gaps)
    launched, callers = [-1] * len(rows), [-1] * len(rows)
    for time, event, each in zip(*(of[order].tolist() for of in (at, what, which)), strict=True):
        if event == _LAUNCH:
            walk.cut(time)
            launched[each], callers[each] = len(walk.pieces) - 1, walk.caller
        elif event == _BEGIN:
            walk.begin(time, each)
        else:
            walk.end(time, each)
    return HostPieces(walk.pieces, launched, callers)


def _awaited(
    table: KernelTable, lane: HostLane, rows: Index, launch: Int64, gpu: int
) -> dict[int, list[tuple[int, int]]]:
    """Row of the lane → end and place of each activity that this call waits for."""
    start, stream = table.start_ns[rows], table.stream[rows]
    ends, gpus = start + table.duration_ns[rows], np.full(len(rows), gpu, np.int32)
    queued = queue_times(gpus, stream, start, launch)
    timed = TimedRows(rows, gpus, stream, table.kind[rows], start, ends, launch, queued)
    until = np.full(gpu + 1, (lane.start_ns + lane.duration_ns).max(initial=0))
    calls, call, activity = awaited_by_calls(lane, timed, until)
    found: dict[int, list[tuple[int, int]]] = {}
    for row, place in zip(calls[call].tolist(), activity.tolist(), strict=True):
        # Stamps may put its end after the call's.
        if start[place] < lane.start_ns[row] + lane.duration_ns[row]:
            found.setdefault(row, []).append((int(ends[place]), place))
    return found


class _Walk:
    """Cuts operators and calls, which nest where they are of one thread, into pieces."""

    def __init__(
        self, lane: HostLane, awaited: Mapping[int, list[tuple[int, int]]], *, gaps: bool
    ) -> None:
        self.pieces: list[Piece] = []
        self._lane, self._awaited, self._gaps = lane, awaited, gaps
        self._open: list[int] = []
        """Rows of the lane, in the order in which they began."""
        self._caller: dict[int, int] = {}
        self._own: dict[int, list[int]] = {}
        """Row of the lane → its pieces."""
        self._since = 0

    @property
    def caller(self) -> int:
        """The last piece of what runs, or -1."""
        return self._own[self._open[-1]][-1] if self._open else -1

    def begin(self, at: int, row: int) -> None:
        self.cut(at)
        self._caller[row] = self.caller
        self._open.append(row)

    def end(self, at: int, row: int) -> None:
        self.cut(at, row)
        if row != self._open[-1] and row in self._awaited:
            self._add(at, at, row, self._awaited[row])
        self._open.remove(row)

    def cut(self, at: int, ending: int = -1) -> None:
        """End the piece that runs, so that what comes next waits for it."""
        begin, self._since = self._since, at
        if not self._open:
            if self._gaps and self.pieces and at - begin >= _MIN_GAP_NS:
                self._add(begin, at)
            return
        row = self._open[-1]
        waits = self._awaited.get(row, []) if row == ending else []
        if at > begin or waits or row not in self._own:
            self._add(min(max([begin, *(end for end, _ in waits)]), at), at, row, waits)

    def _add(
        self, begin: int, end: int, row: int = -1, waits: Sequence[tuple[int, int]] = ()
    ) -> None:
        lane, name, whole = self._lane, GAP, None
        if row >= 0:
            name = lane.names[lane.name[row]]
            own = self._own.setdefault(row, [])
            if own:
                name += f"({len(own)})"
            else:
                columns = (lane.kind, lane.start_ns, lane.duration_ns)
                whole = [int(column[row]) for column in columns]
            own.append(len(self.pieces))
        awaits = [place for _, place in waits]
        before = len(self.pieces) - 1
        self.pieces.append(
            Piece(name, begin, end, before, self._caller.get(row, -1), awaits, whole)
        )


def graph_host_lane(graph: ExecutionGraph, origin_ns: int) -> HostLane:
    """The operators and calls of a file of Chopper's own."""
    column = graph.attributes.get(HOST)
    found = (
        [
            (value[0], graph.name[node], value[1] + origin_ns, value[2])
            for node, value in zip(column.nodes, column.values, strict=True)
            if isinstance(value, list) and [*map(type, value)] == [int] * 3
        ]
        if column
        else []
    )
    if not found:
        return empty(HostLane)
    columns = np.array(sorted(found, key=lambda each: (each[0], each[2])), np.int64).T
    used, name = ranked(columns[1])
    return HostLane(
        tuple(graph.names[code] for code in used.tolist()),
        gpu=np.zeros(len(name), np.int32),
        kind=columns[0].astype(np.int8),
        name=name.astype(np.int32),
        start_ns=columns[2],
        duration_ns=columns[3],
    )
