"""The event tables that every trace reader returns: columns, not yet aligned.

Times are int64 ns on the clock of the source (for Kineto: nanoseconds since the epoch where the
file carries its base time). Text is interned: a column of codes points into `Trace.names`.
`ABSENT` stands for a value that the file doesn't give. A stream or flow whose id is text has
the number -2 - (its code in `Trace.names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Float64, Int8, Int32, Int64, Mask, Rows, column_types
from chopper_core.util.grouping import commonest, distinct

TIMES_SINCE = "chopper_times_since"
"""The key of `Trace.metadata` that names the clock of times without a date."""


_FAR_NS: Final = 1 << 51
"""26 days; no profile lasts twice as long."""


class ActivityCategory(IntEnum):
    """The kind of GPU activity, as the trace names it."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class HostCategory(IntEnum):
    """The kind of a host interval."""

    OPERATOR = 0
    """A `cpu_op`: an operator of the framework."""
    ANNOTATION = 1
    """A `user_annotation`: a named range."""
    MODULE = 2
    """A Python frame of an `nn.Module` call (`nn.Module: Linear_3`)."""
    RECOMPUTE = 3
    """A Python frame or range that recomputes activations in backward."""
    FRAME = 4
    """Any other Python frame, if it is long."""


class Activities(Rows, frozen=True, eq=False):
    """One row per kernel, memcpy or memset on a GPU, in the order of the file."""

    name: Int32
    category: Int8
    device: Int32
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    external_id: Int64
    bytes: Int64
    collective: Int32
    """Index into `Trace.collectives`, or ABSENT."""
    launch_shape: Int32
    """Index into `Trace.launch_shapes`."""
    graph_node: Int64
    """Its node in a graph that was replayed, as the trace writes it, else ABSENT."""
    annotation: Int32
    """Index into `Trace.annotations`, or ABSENT."""
    rank: Int32
    """The rank in a file that merges several, else ABSENT."""


class Allocations(Rows, frozen=True, eq=False):
    """One row per allocation or release of GPU memory, in the order of the file."""

    device: Int32
    """As the framework numbers it, not as the activities do."""
    thread: Int32
    time_ns: Int64
    bytes: Int64
    """Negative where memory is released."""
    address: Int64
    allocated: Int64
    """All bytes allocated on the device from then on, or ABSENT."""
    reserved: Int64
    """Bytes that the framework's allocator holds of the device from then on, or ABSENT."""


class Arrows(Rows, frozen=True, eq=False):
    """One row per end of an arrow between nodes of a graph, and two per node that is no activity:
    its begin as the end of an arrow, its end as the start of one, with an id below 0."""

    id: Int64
    is_start: Mask
    device: Int32
    lane: Int64
    """The lane of the device, as it is drawn."""
    time_ns: Int64
    rank: Int32
    """The rank in a file that merges several, else ABSENT."""


class SyncKind(IntEnum):
    """What a stated synchronization is; numbered as CUPTI does, but for records."""

    RECORD = 0
    """An event is recorded in a stream."""
    EVENT = 1
    """A call of the host waits for an event."""
    WAIT = 2
    """A stream waits for an event."""
    STREAM = 3
    """A call of the host waits for a stream."""
    BARRIER = 4
    """A stream waited for an event. Waits for events that had been reached aren't stated."""


class Syncs(Rows, frozen=True, eq=False):
    """One row per synchronization that the trace states, in the order of the file."""

    kind: Int8
    """Of `SyncKind`."""
    device: Int32
    stream: Int64
    """The stream that waits, that the host waits for, or in which an event is recorded."""
    start_ns: Int64
    """On the host, where no call has the same correlation id, or ABSENT."""
    correlation: Int64
    event: Int64
    """The id of the event; one event may be recorded again and again."""
    awaited: Int64
    """The stream in which the event that is waited for was recorded, or ABSENT."""
    recorded: Int64
    """The correlation id of the call that recorded it, or ABSENT."""
    rank: Int32
    """The rank in a file that merges several, else ABSENT."""


class LaunchShape(Struct, frozen=True):
    """The size of a launch; ABSENT where the trace doesn't give it."""

    grid: int
    """Product of the grid's sizes, in workgroups; in work-items for extended module
    launches."""
    block: int
    """Work-items per workgroup."""


class Launches(Rows, frozen=True, eq=False):
    """One row per call of the GPU runtime or driver on the host."""

    name: Int32
    thread: Int32
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64


class HostRanges(Rows, frozen=True, eq=False):
    """One row per interval on a host thread that can carry a label.

    Operators and annotations come in the order of the file, then the Python frames.
    """

    name: Int32
    category: Int8
    thread: Int32
    start_ns: Int64
    duration_ns: Int64
    external_id: Int64
    sequence: Int64
    """Autograd's sequence number."""
    forward_thread: Int64
    """Autograd's number of the thread that ran the forward; greater than 0 in backward."""
    inputs: Int32
    """Index into `Trace.inputs`, or ABSENT: of operators whose shapes are used."""
    collective: Int32
    """Index into `Trace.collectives`, or ABSENT."""


class Flows(Rows, frozen=True, eq=False):
    """One row per end of a forward→backward flow."""

    id: Int64
    is_start: Mask
    thread: Int32
    time_ns: Int64


class Collective(Struct, frozen=True):
    """The arguments of a collective; '' and ABSENT where the trace doesn't give them."""

    name: str = ""
    in_elements: int = ABSENT
    out_elements: int = ABSENT
    dtype: str = ""
    group_size: int = ABSENT
    group_name: str = ""
    group_description: str = ""
    group_ranks: str = ""
    source_rank: int = ABSENT
    """The peer of a receive."""
    target_rank: int = ABSENT
    """The peer of a send."""


class OperatorTexts(Struct, frozen=True):
    """Inputs and outputs of an operator as texts of Python lists, as Chakra's nodes have them.

    A tensor's value is its id, storage, offset, elements, bytes of an element, and device.
    """

    values: str
    shapes: str
    types: str
    outputs: str


class InputTexts(Struct, frozen=True):
    """The inputs of an operator as JSON texts of lists by position; empty if not recorded."""

    shapes: str
    types: str = ""
    """Of operators whose work is modelled, as the next two."""
    values: str = ""
    """The inputs other than tensors, each as text."""
    strides: str = ""


class Captured(Rows, frozen=True, eq=False):
    """One row per launch that another trace captured into a graph, in order."""

    file: Int32
    graph: Int32
    """Counts the graphs of a file."""
    kernel: Int32
    """Code of its kernel's name, ABSENT where it isn't known."""
    thread: Int32
    start_ns: Int64


_Table = TypeVar(
    "_Table", Activities, Launches, HostRanges, Flows, Allocations, Captured, Syncs, Arrows
)


def blank(table: type[_Table], count: int = 0) -> _Table:
    types = column_types(table).items()
    return table(**{name: np.full(count, ABSENT, kind) for name, kind in types})


class Trace(Struct, frozen=True):
    """The events of one file: of one rank, or of several that were merged into it."""

    path: Path
    size_bytes: int
    names: Sequence[str]
    activities: Activities
    launch_shapes: Sequence[LaunchShape]
    event_counts: Mapping[str, int]
    """Events by category as the file has them; '' for events without one."""
    losses: Losses
    metadata: Mapping[str, Any] = {}
    """The top-level keys of the file without the events."""
    rank: int | None = None
    """The rank in the file's `distributedInfo`."""
    ranks_from: str = "args.rank of the events: the file merges several ranks"
    """Where the ranks of a file that holds several come from."""
    base_time_ns: int | None = None
    threads: Sequence[tuple[int | str, int | str, int]] = ()
    """(process id, thread id, rank in a file that merges several, else ABSENT) of a thread code."""
    launches: Launches = blank(Launches)
    ranges: HostRanges = blank(HostRanges)
    flows: Flows = blank(Flows)
    allocations: Allocations = blank(Allocations)
    collectives: Sequence[Collective] = ()
    annotations: Sequence[str] = ()
    """What nodes of graphs were marked with as they were captured: paths of modules."""
    inputs: Sequence[InputTexts] = ()
    unused_events: Mapping[str, int] = {}
    """The part of `event_counts` that is in no table above."""
    unread_fields: Mapping[str, Sequence[str]] = {}
    """The names of fields that nothing is read from, by the category or table of their rows."""
    one_ended_flows: Mapping[str, int] = {}
    """Flow ids with one end only, by category (`ac2g`, `fwdbwd`)."""
    figures: Mapping[str, Float64] = {}
    """Measured column of the kernel table → its value for each activity; NaN without one."""
    captured: Captured = blank(Captured)
    syncs: Syncs = blank(Syncs)
    arrows: Arrows = blank(Arrows)
    operators: Mapping[int, OperatorTexts] = {}
    """Row of `ranges` → its inputs and outputs, of a trace that a host trace completes."""

    @property
    def generated(self) -> str | None:
        """The generator named in a trace that was generated, not measured; else None."""
        made_by = self.metadata.get("chopper_generated")
        if isinstance(made_by, Mapping):
            made_by = made_by.get("generator", "a generator")
        return None if made_by is None else str(made_by)


def without_far(trace: Trace) -> Trace:
    """The trace without activities and launches that are weeks from most of their kind, where only
    a damaged time puts them."""
    near = {name: _near(getattr(trace, name).start_ns) for name in ("activities", "launches")}
    count = sum(int((~is_near).sum()) for is_near in near.values())
    if not count:
        return trace
    losses = replace(trace.losses, notes=[*trace.losses.notes])
    losses.bad_times += count
    losses.bad_host_times += int((~near["launches"]).sum())
    losses.note(count, "event", "weeks from the others left out")
    kept = {name: getattr(trace, name).take(is_near) for name, is_near in near.items()}
    figures = {name: values[near["activities"]] for name, values in trace.figures.items()}
    return replace(trace, losses=losses, figures=figures, **kept)


def _near(times_ns: Int64) -> Mask:
    found = np.ones(len(times_ns), np.bool_)
    if len(times_ns) and int(times_ns.max()) - int(times_ns.min()) > _FAR_NS:
        middle = len(times_ns) // 2
        found = np.abs(times_ns - np.partition(times_ns, middle)[middle]) <= _FAR_NS
    return found


def known_processes(device: Int64, process: Int64) -> Int64:
    """The process of each activity: where it isn't known, that of most activities of its device,
    else that of most."""
    is_known = process != ABSENT
    found = process.copy()
    for one in distinct(device[~is_known]).tolist():
        here = device == one
        own = process[is_known & here] if (is_known & here).any() else process[is_known]
        found[here & ~is_known] = commonest(own) if len(own) else ABSENT
    return found


def ranks_of_processes(device: Int64, process: Int64) -> dict[int, int]:
    """The rank of each process of a file, by the devices and processes of its activities.

    Processes are ranks in the order of the GPUs that they use most; a process alone is none.
    """
    homes = [(commonest(device[process == one]), one) for one in distinct(process).tolist()]
    return {one: rank if len(homes) > 1 else ABSENT for rank, (_, one) in enumerate(sorted(homes))}


def by_rank(trace: Trace) -> list[Trace]:
    """The trace of each rank that has activities in a file; the file's own trace if it has one.

    Ranks of one file share neither threads nor correlation ids: host events belong to their rank.
    """
    ranks = distinct(trace.activities.rank).tolist()
    if ranks == [ABSENT]:
        return [trace]
    rank_of = np.array([rank for _, _, rank in trace.threads], np.int32)
    owners = {
        name: rank_of[getattr(trace, name).thread]
        for name in ("launches", "ranges", "flows", "allocations")
    }
    owners |= {"activities": trace.activities.rank, "syncs": trace.syncs.rank}
    owners["arrows"] = trace.arrows.rank
    found: list[Trace] = []
    for rank in ranks:
        is_own = trace.activities.rank == rank
        own = {name: getattr(trace, name).take(owner == rank) for name, owner in owners.items()}
        figures = {name: values[is_own] for name, values in trace.figures.items()}
        # What is of the file is that of its first rank.
        of_file = {} if not found else {"losses": Losses(notes=trace.losses.notes)}
        of_rank = {"rank": None if rank == ABSENT else rank, "figures": figures, **of_file, **own}
        found.append(replace(trace, **of_rank))
    return found
