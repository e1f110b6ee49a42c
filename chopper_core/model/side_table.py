"""Side tables: what a run knows next to its kernels, such as allocations, row by row of a GPU.

A side table is one struct: its columns, which of them are codes, times and rows, and its file in a
store. From these declarations follow how the tables of several ranks become one, how times move
onto one clock, and how a table is stored; `store.format.SIDE_TABLES` lists those that are kept.

Host time is the idle time of each GPU, cut wherever the thread that launches next enters or leaves
a runtime call, an operator, an annotation or a Python frame. The pieces of a gap lie in the idle
time that `accounting` charges to a row, and add up to that, to the nanosecond.
Copies that nothing hides are cut in the same way. The host lane has outermost operators, and
runtime calls that don't launch, on the GPU that their thread launches for.

A memory event belongs to the next activity that its thread launches, which it allocates for or
makes room for; after the last launch, to the last one. Its labels are those of that activity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.accounting import IDLE_COLUMNS, idle_times
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.step_spans import StepSpans
from chopper_core.model.table import ANY_NUMBER, NO_LABEL, KernelTable, Phase, Selection
from chopper_core.model.units import Unit
from chopper_core.util.arrays import AnyArray, Float64, Index, Int8, Int32, Int64
from chopper_core.util.grouping import distinct, places_by, stable_order

_DTYPES: Final = {"Int8": np.int8, "Int32": np.int32, "Int64": np.int64, "Float64": np.float64}
ALLOCATED: Final = "allocated_bytes"
RESERVED: Final = "reserved_bytes"
MEMORY_SIGNALS: Final = {ALLOCATED: ("allocated", "allocated"), RESERVED: ("reserved", "reserved")}
"""Signal → its title, and the column of `MemoryEvents` that it shows."""
NEVER: Final = -1


class SideTable(Struct, frozen=True, eq=False):
    """Rows in order of GPU; the fields after `names` are columns of one length."""

    FILE: ClassVar[str]
    """Its file in a store, which lacks it where it has no rows."""
    NAME: ClassVar[type[Any]] = str
    """The type of `names`: texts, or structs."""
    CODES: ClassVar[tuple[str, ...]] = ()
    """The columns of codes; -1 is none."""
    TIMES: ClassVar[tuple[str, ...]] = ()
    """The columns of times on the run's clock."""
    ROWS: ClassVar[tuple[str, ...]] = ()
    """The columns of row numbers of the table itself; -1 is none."""
    KINDS: ClassVar[Mapping[str, type[IntEnum]]] = {}
    """The columns of an enumeration's members; -1 is none."""

    ORDER: ClassVar[tuple[str, ...]] = ()
    """The columns that rows of a GPU are in order of, where parts put together may not be."""

    names: Sequence[Any]
    """The names that codes stand for, each of type `NAME`."""
    gpu: Int32

    def __len__(self) -> int:
        return len(self.gpu)

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__[1:]

    def columns(self) -> dict[str, AnyArray]:
        return {name: getattr(self, name) for name in self.column_names()}

    def of_gpu(self, gpu: int, column: str = "", value: int = 0) -> slice:
        """The rows of a GPU; with one value of the column that they are in order of."""
        begin, end = np.searchsorted(self.gpu, [gpu, gpu + 1]).tolist()
        if not column:
            return slice(begin, end)
        low, high = np.searchsorted(getattr(self, column)[begin:end], [value, value + 1]).tolist()
        return slice(begin + low, begin + high)

    def codes(self, gpus: int) -> dict[str, int]:
        """The columns of codes → how many codes there are; -1 is none."""
        found = {"gpu": gpus, "iteration": ANY_NUMBER, "layer": ANY_NUMBER}
        found |= {name: len(kind) for name, kind in self.KINDS.items()}
        found |= dict.fromkeys(self.ROWS, len(self))
        return found | dict.fromkeys(self.CODES, len(self.names))

    def in_memory(self) -> Self:
        """The same without the file that it may be mapped from."""
        return replace(self, **{name: values.copy() for name, values in self.columns().items()})

    def moved(self, by_gpu: Int64) -> Self:
        by = by_gpu[self.gpu]
        return replace(self, **{name: getattr(self, name) + by for name in self.TIMES})

    def renumbered(self, by_gpu: Int32) -> Self:
        """The same with so much added to the numbers of each GPU's steps."""
        if "iteration" not in self.column_names():
            return self
        own: Int32 = self.columns()["iteration"]
        own = np.where(own == NO_LABEL, own, own + by_gpu[self.gpu]).astype(own.dtype)
        return replace(self, iteration=own)

    def from_gpu(self, first: int) -> Self:
        return replace(self, gpu=self.gpu + np.int32(first))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        parts = [part for part in parts if len(part)]
        columns: dict[str, list[AnyArray]] = {name: [] for name in cls.column_names()}
        names: dict[Any, int] = {}
        first = 0
        for part in parts:
            codes = [names.setdefault(name, len(names)) for name in part.names]
            recoded = np.array([*codes, -1], np.int32)
            for name, values in part.columns().items():
                if name in cls.CODES:
                    values = recoded[values]
                elif name in cls.ROWS:
                    values = np.where(values < 0, values, values + first).astype(values.dtype)
                columns[name].append(values)
            first += len(part)
        if not parts:
            return empty(cls)
        found = {name: np.concatenate(each) for name, each in columns.items()}
        order = np.lexsort([*(found[name] for name in reversed(cls.ORDER)), found["gpu"]])
        if (order[1:] < order[:-1]).any():
            # Windows of a rank follow each other.
            back = np.append(np.argsort(order), -1)
            found = {name: values[order] for name, values in found.items()}
            found |= {name: back[found[name]].astype(found[name].dtype) for name in cls.ROWS}
        return cls(tuple(names), **found)


def axis_of(*times_ns: Int64) -> Callable[[Int32, Int64 | int], Int64]:
    """Where times of GPUs are on one axis, GPU after GPU: none is beyond those of the next GPU."""
    known = [each for each in times_ns if len(each)]
    first = min((int(each.min()) for each in known), default=0)
    width = max((int(each.max()) for each in known), default=0) - first + 1
    return lambda gpu, at_ns: gpu.astype(np.int64) * width + (at_ns - first)


T = TypeVar("T", bound=SideTable)
SideTables = Mapping[type[SideTable], SideTable]
"""Kind of side table → a run's own, for those that have rows."""


def empty(kind: type[T]) -> T:
    kinds = SideTable.__annotations__ | kind.__annotations__
    return kind((), *(np.empty(0, _DTYPES[kinds[name]]) for name in kind.column_names()))


def side_tables(*tables: SideTable) -> SideTables:
    return {type(table): table for table in tables if len(table)}


def joined_tables(ranks: Iterable[tuple[SideTables, int]]) -> SideTables:
    """The tables of a run from those of its ranks, each with the number of its first GPU."""
    found: dict[type[SideTable], list[SideTable]] = {}
    for tables, first in ranks:
        for kind, table in tables.items():
            found.setdefault(kind, []).append(table.from_gpu(first))
    return side_tables(*(kind.joined(parts) for kind, parts in found.items()))


class HostState(IntEnum):
    """The state of the GPU during that time."""

    LATE = 0
    """Idle, before the launch call of the activity that ends it, or after the last activity of a
    step: `idle_host_ns`."""
    LAUNCHED = 1
    """Idle, from that call on: `idle_launch_ns`."""
    COPYING = 2
    """Only the copy runs that it belongs to."""
    UNKNOWN = 3
    """Idle, without a launch record, or after a launch without an activity: `idle_unknown_ns`."""


class HostStack(Struct, frozen=True):
    """Where a host thread was: the innermost of each kind, '' without one."""

    call: str = ""
    """A call of the GPU's runtime."""
    operator: str = ""
    annotation: str = ""
    """A user annotation that is not a whole step."""
    frame: str = ""
    """A Python frame of 100 µs or more."""


class HostTime(SideTable, frozen=True, eq=False):
    """Pieces of time of the GPUs of a run, in order of GPU and time."""

    FILE = "host.arrow"
    NAME = HostStack
    CODES = ("stack",)
    TIMES = ("start_ns",)
    KINDS = {"state": HostState}

    start_ns: Int64
    duration_ns: Int64
    stack: Int32
    """Code of the stack."""
    state: Int8

    @property
    def stacks(self) -> Sequence[HostStack]:
        return self.names

    def owners(self, table: KernelTable, rows: Selection, steps: HostSteps) -> Index:
        """The row that each piece is charged to, of some rows of the table; -1 for others'."""
        found = np.full(len(self), -1, np.intp)
        is_copy = self.state == HostState.COPYING
        copies = np.flatnonzero(is_copy)
        if len(copies):
            own = _charged_rows(table.exposed_copy_ns, rows)
            begins = table.start_ns[own]
            lengths = table.exposed_copy_ns[own]
            found[copies] = self._placed(copies, table.gpu[own], begins, begins + lengths, own)
        gaps = np.flatnonzero(~is_copy)
        if len(gaps):
            own, begins, ends = self._idle_times(table, rows, steps)
            found[gaps] = self._placed(gaps, table.gpu[own], begins, ends, own)
        return found

    def _idle_times(
        self, table: KernelTable, rows: Selection, steps: HostSteps
    ) -> tuple[Index, Int64, Int64]:
        """The rows with idle time, among some rows, with its begins and ends."""
        owners = [np.zeros(0, np.intp)]
        begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        chosen = _charged_rows(table.idle_ns, rows)
        for gpu, places in places_by(table.gpu[chosen]).items():
            own = chosen[places]
            charges = {name: getattr(table, name)[own] for name in IDLE_COLUMNS}
            times = table.start_ns[own], table.launch_ns[own], table.iteration[own]
            charged, begin, end = idle_times(*times, charges, steps.spans(gpu))
            owners.append(own[charged])
            begins.append(begin)
            ends.append(end)
        return np.concatenate(owners), np.concatenate(begins), np.concatenate(ends)

    def _placed(self, pieces: Index, gpu: Int32, begins: Int64, ends: Int64, rows: Index) -> Index:
        """Of some pieces the row in whose time each begins; -1 for none."""
        wanted = self.start_ns[pieces]
        if not len(rows):
            return np.full(len(pieces), -1, np.intp)
        on_axis = axis_of(begins, ends, wanted)
        place, until = on_axis(gpu, begins), on_axis(gpu, ends)
        order = stable_order(place)
        at_piece = on_axis(self.gpu[pieces], wanted)
        at = np.searchsorted(place[order], at_piece, "right") - 1
        at_row = order[np.maximum(at, 0)]
        return np.where((at >= 0) & (at_piece < until[at_row]), rows[at_row], -1)


def _charged_rows(charged_ns: Int64, rows: Selection) -> Index:
    """Those of some rows that are charged with anything."""
    own = np.flatnonzero(charged_ns[rows] > 0)
    return own + rows.start if isinstance(rows, slice) else rows[own]


class HostSteps(SideTable, frozen=True, eq=False):
    """The annotated iterations of the host that launches each GPU's work, in order of GPU and time.

    They don't overlap; where the host is in no annotation, there is none.
    """

    FILE = "steps.arrow"
    TIMES = ("start_ns",)

    start_ns: Int64
    duration_ns: Int64
    iteration: Int32

    @classmethod
    def of(cls, spans: Mapping[int, StepSpans]) -> HostSteps:
        """The steps of the hosts of some GPUs, by the GPU."""
        joined = [(gpu, *each) for gpu in sorted(spans) for each in spans[gpu].rows()]
        gpus, number, start, end = np.array(joined, np.int64).reshape(-1, 4).T
        return cls((), gpus.astype(np.int32), start, end - start, number.astype(np.int32))

    def spans(self, gpu: int) -> StepSpans:
        """The steps of one GPU's host."""
        own = self.of_gpu(gpu)
        start = self.start_ns[own]
        return StepSpans(self.iteration[own].astype(np.int64), start, start + self.duration_ns[own])

    def at(self, gpu: Int32, times_ns: Int64) -> Int64:
        """The iteration whose annotation the host of a GPU is in at some instants, or NO_LABEL."""
        if not len(self):
            return np.full(len(gpu), NO_LABEL, np.int64)
        on_axis = axis_of(self.start_ns, self.start_ns + self.duration_ns, times_ns)
        begin, place = on_axis(self.gpu, self.start_ns), on_axis(gpu, times_ns)
        at = np.maximum(np.searchsorted(begin, place, "right") - 1, 0)
        inside = (place >= begin[at]) & (place < begin[at] + self.duration_ns[at])
        return np.where(inside, self.iteration[at], NO_LABEL).astype(np.int64)


class HostKind(IntEnum):
    """A kind of host work."""

    OPERATOR = 0
    CALL = 1
    """A call of the GPU's runtime other than a launch, such as one that waits or allocates."""


class HostLane(SideTable, frozen=True, eq=False):
    """Operators and runtime calls of launching threads, in order of GPU, kind and start."""

    FILE = "lane.arrow"
    CODES = ("name",)
    TIMES = ("start_ns",)
    KINDS = {"kind": HostKind}
    ORDER = ("kind", "start_ns")

    kind: Int8
    name: Int32
    """Code in `names`."""
    start_ns: Int64
    duration_ns: Int64


NO_STREAM: Final = -1


class WaitKind(IntEnum):
    """What waits."""

    STREAM = 0
    """What is launched to a stream from then on."""
    CALL = 1
    """A call of the host, which begins then."""
    BARRIER = 2
    """As a stream, of a GPU whose other waits may not be stated."""


class StreamWaits(SideTable, frozen=True, eq=False):
    """What the trace states that streams and calls wait for: all that was launched to a stream
    until an event was recorded in it. In order of GPU and time."""

    FILE = "waits.arrow"
    TIMES = ("time_ns", "until_ns")
    KINDS = {"kind": WaitKind}
    ORDER = ("time_ns",)

    kind: Int8
    stream: Int64
    """The stream that waits, NO_STREAM for a call."""
    time_ns: Int64
    awaited: Int64
    """The stream that is waited for; NO_STREAM where the trace doesn't state it."""
    until_ns: Int64
    """Waited for is what was launched by then; `time_ns` where that isn't stated."""


class GraphEdges(SideTable, frozen=True, eq=False):
    """What the activities of replayed graphs wait for, as the trace states it: an activity and
    another one by their streams and starts. In order of GPU and time."""

    FILE = "arrows.arrow"
    TIMES = ("start_ns", "before_ns")
    ORDER = ("start_ns",)

    stream: Int64
    start_ns: Int64
    before: Int64
    """The stream of the other one."""
    before_ns: Int64
    """Its start."""


class MemoryEvents(SideTable, frozen=True, eq=False):
    """Allocations and releases on the GPUs of a run, in order of GPU and time."""

    FILE = "memory.arrow"
    CODES = ("operator", "operation")
    TIMES = ("time_ns",)
    KINDS = {"phase": Phase}
    ROWS = ("partner",)

    time_ns: Int64
    """On the host: the GPU uses the memory when it gets there."""
    bytes: Int64
    """Negative where memory is released."""
    allocated: Int64
    """Bytes that are allocated on the GPU from then on."""
    reserved: Int64
    """Bytes that the framework's allocator holds of the GPU from then on."""
    partner: Int32
    """The event that releases or allocated the same memory; `NEVER` without one in the trace."""
    operator: Int32
    """Code of the innermost operator on the host, or -1."""
    iteration: Int32
    phase: Int8
    layer: Int32
    operation: Int32
    """Code of a name, or -1."""

    def alive(self, at: int) -> Index:
        """The allocations whose memory is still allocated right after an event of their GPU."""
        rows = np.arange(self.of_gpu(int(self.gpu[at])).start, at + 1)
        partner = self.partner[rows]
        alive: Index = rows[(self.bytes[rows] > 0) & ((partner == NEVER) | (partner > at))]
        return alive

    def signals(self) -> dict[str, Signal]:
        if not len(self):
            return {}
        gpus = [int(gpu) for gpu in distinct(self.gpu)]
        return {
            name: Signal(
                name,
                title,
                Unit.BYTES,
                {gpu: self._curve(gpu, getattr(self, column)) for gpu in gpus},
                0.0,
                float(getattr(self, column).max()),
            )
            for name, (title, column) in MEMORY_SIGNALS.items()
        }

    def _curve(self, gpu: int, values: Int64) -> IntegralCurve:
        own = self.of_gpu(gpu)
        times = self.time_ns[own]
        # Of events at one moment the last one counts.
        last = np.flatnonzero(np.append(times[1:] > times[:-1], True))
        begins = times[last]
        ends = np.append(begins[1:], begins[-1] + 1)
        return between(begins, ends, values[own][last].astype(np.float64))


def largest_between(values: Int64, begins: Index, ends: Index) -> Float64:
    """The largest of the values in each range [begin, end); NaN for an empty one."""
    found = np.full(len(begins), np.nan)
    some = np.flatnonzero(ends > begins)
    if not len(some):
        return found
    # Ranges overlap by one value at most: each second of the bounds ends one.
    bounds = np.stack([begins[some], ends[some]], axis=1).ravel()
    padded = np.append(values, np.iinfo(np.int64).min)
    found[some] = np.maximum.reduceat(padded, bounds)[::2]
    return found
