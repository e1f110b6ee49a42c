"""The tables of a trace, filled with a piece of its events at a time."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from math import nan, prod
from operator import attrgetter, not_
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import DTypeLike

from chopper_core.sources.kineto.events import (
    ACTIVITY_CATEGORIES,
    COMPLETE,
    COUNTER_CATEGORY,
    COUNTERS,
    CPU,
    CPU_FUNCTIONS,
    CUDA_FUNCTIONS,
    FIGURES,
    FIRST_ARROW,
    FLOW_CATEGORIES,
    FORWARD_BACKWARD,
    FRAME_CATEGORY,
    HOST_DEVICE,
    INSTANT_CATEGORY,
    LAUNCH_CATEGORIES,
    MEMORY_EVENT,
    NODE_CATEGORIES,
    OLD_RANGE,
    RANGE_CATEGORIES,
    RECORD_CATEGORY,
    SYNC_CATEGORY,
    SYNC_KINDS,
    Args,
    Category,
    Event,
    FrameKinds,
    UnreadFields,
    collective_of,
    count_of,
    event_mark,
    external_ids,
    kept_inputs,
    name_copies,
    number_functions,
    old_category,
    split_ranks,
    undraw_lanes,
)
from chopper_core.sources.trace import (
    Activities,
    Allocations,
    Arrows,
    Collective,
    Flows,
    HostCategory,
    HostRanges,
    InputTexts,
    Launches,
    LaunchShape,
    SyncKind,
    Syncs,
)
from chopper_core.tables.columns import (
    MAX_BYTES,
    MAX_DURATION_NS,
    MAX_RANKS,
    Columns,
    GrowingColumns,
    Interner,
    NameInterner,
    bounded,
    float_column,
    int_column,
    integer,
    nanoseconds,
    packed_values,
)
from chopper_core.tables.losses import ABSENT, Repeats
from chopper_core.util.arrays import Float64, Index, Int32, Int64, Mask, Rows, column_types
from chopper_core.util.grouping import distinct, run_mask

_FLOW_END_TYPES: Final[Mapping[str, DTypeLike]] = {"id": np.int64, "is_start": np.bool_}

_NO_ARGS: Final = Args()
_RANK_SAMPLE: Final = 256
"""Events of a piece that show whether a file merges ranks: a merged one names it in all."""
_FLOW_PHASES: Final = ("s", "f")
_INT32_LIMIT: Final = 2**31
_MAX_THREADS: Final = 2**62
"""A launch has fewer: three sizes of 31 bits at most, of which two are smaller than 2^16."""
_UNSEEN: Final = -1
_TABLE_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(ACTIVITY_CATEGORIES, "activities"),
    **dict.fromkeys(LAUNCH_CATEGORIES, "launches"),
    **dict.fromkeys(RANGE_CATEGORIES, "ranges"),
    FRAME_CATEGORY: "frames",
    **FLOW_CATEGORIES,
    **dict.fromkeys((INSTANT_CATEGORY, ""), "instants"),
    COUNTER_CATEGORY: "counters",
    **dict.fromkeys((SYNC_CATEGORY, RECORD_CATEGORY), "syncs"),
    **dict.fromkeys(NODE_CATEGORIES, "nodes"),
}
"""The table of the events of a category."""
_ACTIVITY_KINDS: Final = {Category(name): kind for name, kind in ACTIVITY_CATEGORIES.items()}
_RANGE_KINDS: Final = {Category(name): kind for name, kind in RANGE_CATEGORIES.items()}
"""By the objects that events have, which are found without a look at their letters."""
_OF_GPU: Final[Mapping[str, DTypeLike]] = {
    **dict.fromkeys(
        ("external_id", "sequence", "forward_thread", "correlation", "graph_node", "id"), np.int32
    ),
    # Codes: most files have fewer than 32,768 of each.
    **dict.fromkeys(
        ("name", "thread", "collective", "inputs", "launch_shape", "annotation"), np.int16
    ),
}
"""Columns that are stored in so little memory where they fit."""
_OF_HOST: Final[Mapping[str, DTypeLike]] = {**_OF_GPU, "duration_ns": np.int32}
"""Those of activities are few."""
_FIGURES: Final = {name: attrgetter(of) for name, of in FIGURES.items()}
_MIN_FRAME_US: Final = 100
_JSON_SPACE: Final = b" \t\r\n"
_BETWEEN_TEXTS: Final = b"\0"
_CATEGORY: Final = "the category of an event"
"""Of which there are no codes, but the order counts."""


_TABLES: Final[Mapping[str, type[Rows]]] = {
    "activities": Activities,
    "launches": Launches,
    "ranges": HostRanges,
    "flows": Flows,
    "allocations": Allocations,
    "syncs": Syncs,
    "arrows": Arrows,
}
"""The tables of a trace by their fields there."""


class _InputCodes(dict[bytes, int]):
    """The codes of an operator's inputs, JSON texts joined by a NUL byte; ABSENT without shapes."""

    def __init__(self) -> None:
        self.texts: dict[InputTexts, int] = Interner()

    def __missing__(self, joined: bytes) -> int:
        compact = joined.translate(None, _JSON_SPACE).decode("utf-8", "replace")
        texts = InputTexts(*compact.split(_BETWEEN_TEXTS.decode()))
        code = self[joined] = self.texts[texts] if texts.shapes else ABSENT
        return code


class Sizes(Struct, frozen=True):
    """How far tables have grown."""

    rows: Sequence[int]
    """Of each of the tables."""
    keys: Sequence[int]
    """Those with a code, of each kind."""


class Share(Struct):
    """What one process read of a text, whatever parts of it."""

    keys: Mapping[str, Sequence[Any]]
    """In the order of their codes, by the column of these."""
    counts: Counter[str]
    unused_counts: Counter[str]
    unread: UnreadFields
    bad_times: int
    bad_host_times: int
    columns: Sequence[Columns]
    """Of each of the tables; taken out as they are joined."""


class TraceTables:
    """The tables of a trace while its events arrive."""

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats
        self.names: dict[str, int] = NameInterner()
        self.threads: dict[tuple[Any, Any, int], int] = Interner()
        self.is_merged = False
        """Whether events name their rank: the file merges several."""
        self.collectives: dict[Collective, int] = Interner()
        self.annotations: dict[str, int] = NameInterner()
        self._launch_shapes: dict[bytes, int] = Interner()
        self.event_counts: Counter[str] = Counter()
        self._unused_counts: Counter[str] = Counter()
        self.unread = UnreadFields()
        self.bad_times = self.bad_host_times = 0
        self._tables = {
            name: GrowingColumns(column_types(kind), _OF_GPU if name == "activities" else _OF_HOST)
            for name, kind in _TABLES.items()
        }
        self._frames = GrowingColumns(column_types(HostRanges), _OF_HOST)
        self._figures = GrowingColumns(dict.fromkeys(FIGURES, np.float64))
        self._flow_ends = {
            kind: GrowingColumns(_FLOW_END_TYPES, _OF_HOST)
            for kind in (HOST_DEVICE, FORWARD_BACKWARD)
        }
        self._frame_kinds = FrameKinds()
        self._kept_inputs = np.zeros(0, np.int8)
        """The kept inputs of operators (`KeptInputs`), by the code of their name."""
        self._input_codes = _InputCodes()
        self.has_text_ids = False
        self._last_function = 0
        """The last number of an operator in an old autograd trace."""
        self._has_nodes = False
        """Whether nodes of graphs are numbered, each by its place among the rows here."""

    def add(self, events: Sequence[Event]) -> None:
        if split_ranks(events[:_RANK_SAMPLE]):
            split_ranks(events)
        self.is_merged = self.is_merged or any(
            event.args is not None and event.args.rank != ABSENT for event in events[:_RANK_SAMPLE]
        )
        own: dict[str, list[Event]] = {table: [] for table in _TABLE_OF.values()}
        categories = [event.cat for event in events]
        groups: dict[str, list[Event]] = {}
        for category, count in Counter(categories).items():
            self.event_counts[str(category)] += count
            groups[category] = own[_TABLE_OF[category]] if category in _TABLE_OF else []
        # A loop without a step of the interpreter: half of the time.
        any(map(list.append, map(groups.__getitem__, categories), events))
        own["instants"] = self._without_functions(own)
        self._add_activities(own["activities"])
        self._add_launches(own["launches"])
        self._add_ranges(self._tables["ranges"], own["ranges"])
        kinds = self._frame_kinds
        frames = [
            frame
            for frame in own["frames"]
            if kinds[frame.name] != HostCategory.FRAME or _is_long(frame.dur)
        ]
        self._unused_counts[FRAME_CATEGORY] += len(own["frames"]) - len(frames)
        self._add_ranges(self._frames, frames, kinds)
        for kind in self._flow_ends:
            self._add_flows(kind, own[kind])
        self._add_syncs(own["syncs"])
        self._add_arrows(own[HOST_DEVICE])
        self._add_nodes(own["nodes"])
        self._add_allocations(self._without_counters(own["instants"]))

    def _without_functions(self, own: Mapping[str, list[Event]]) -> list[Event]:
        """Those without a category but the events of old autograd traces, which are put where
        later ones are."""
        is_old = [
            event.ph == COMPLETE and event.pid in (CPU_FUNCTIONS, CUDA_FUNCTIONS)
            for event in own["instants"]
        ]
        functions = [*compress(own["instants"], is_old)]
        if not functions:
            return own["instants"]
        self._last_function = number_functions(functions, self._last_function)
        for event in functions:
            self.event_counts[str(event.cat)] += 1
            own[_TABLE_OF[event.cat]].append(event)
        self.event_counts[""] -= len(functions)
        return [*compress(own["instants"], map(not_, is_old))]

    def _without_counters(self, events: list[Event]) -> list[Event]:
        """The events but those of counters without a category, which are counted as others are."""
        rest = [
            event
            for event in events
            if not (event.ph == "C" and COUNTERS.fullmatch(str(event.pid)))
        ]
        if len(rest) < len(events):
            self.event_counts[COUNTER_CATEGORY] += len(events) - len(rest)
            self.event_counts[""] -= len(events) - len(rest)
        return rest

    def sizes(self) -> Sizes:
        return Sizes([*map(len, self._growing())], [*map(len, self._keys().values())])

    def is_joinable(self) -> bool:
        """Whether nothing but codes changes when these tables are joined to others."""
        return not (
            self.has_text_ids or self._has_nodes or self._last_function or self._repeats.rows
        )

    def share(self) -> Share:
        """All that was added, which the tables no longer have."""
        return Share(
            {column: list(keys) for column, keys in self._keys().items()},
            self.event_counts,
            self._unused_counts,
            self.unread,
            self.bad_times,
            self.bad_host_times,
            [table.joined() for table in self._growing()],
        )

    def join(self, shares: Sequence[Share], parts: Sequence[tuple[int, Sizes, Sizes]]) -> None:
        """Add the parts of a text in their order: each the number of its share, and what was in the
        share before and after it."""
        found = self._keys() | {_CATEGORY: Interner()}
        for number, before, after in parts:
            ends = zip(shares[number].keys.items(), before.keys, after.keys, strict=True)
            for (column, keys), begin, end in ends:
                for key in keys[begin:end]:
                    found[column][key]
        codes = [
            {
                column: np.array([*map(found[column].__getitem__, keys), ABSENT], np.int32)
                for column, keys in share.keys.items()
            }
            for share in shares
        ]
        for place, table in enumerate(self._growing()):
            for column in [*shares[0].columns[place]]:
                whole = [share.columns[place].pop(column) for share in shares]
                if column in codes[0]:
                    whole = [own[column][rows] for own, rows in zip(codes, whole, strict=True)]
                table.append(
                    column,
                    np.concatenate(
                        [
                            whole[number][before.rows[place] : after.rows[place]]
                            for number, before, after in parts
                        ]
                    ),
                )
        self.event_counts.update(dict.fromkeys(found[_CATEGORY], 0))
        for share in shares:
            self.event_counts.update(share.counts)
            self._unused_counts.update(share.unused_counts)
            self.unread.join(share.unread)
            self.bad_times += share.bad_times
            self.bad_host_times += share.bad_host_times

    def _growing(self) -> tuple[GrowingColumns, ...]:
        tables = (*self._tables.values(), *self._flow_ends.values())
        return (*tables, self._frames, self._figures)

    def _keys(self) -> dict[str, dict[Any, int]]:
        """The keys with a code, by the column of their codes."""
        return {
            "name": self.names,
            "thread": self.threads,
            "collective": self.collectives,
            "annotation": self.annotations,
            "launch_shape": self._launch_shapes,
            "inputs": self._input_codes.texts,
            _CATEGORY: self.event_counts,
        }

    def finished(self, base_time_ns: int) -> dict[str, Any]:
        """The tables and their codes by the fields of a `Trace`, with times from a base on.

        Ranges are operators and annotations in the file's order, then frames. Can be called once.
        """
        self._tables["ranges"].add(self._frames.joined())
        tables = {name: table.joined() for name, table in self._tables.items()}
        for columns in tables.values():
            columns["start_ns" if "start_ns" in columns else "time_ns"] += base_time_ns
        sizes = (joined.split(_BETWEEN_TEXTS) for joined in self._launch_shapes)
        return {
            **{name: kind(**tables[name]) for name, kind in _TABLES.items()},
            "names": list(self.names),
            "threads": [
                (_thread_key(process), _thread_key(thread), rank)
                for process, thread, rank in self.threads
            ],
            "figures": {
                name: figures
                for name, figures in self._figures.joined().items()
                if np.isfinite(figures).any()
            },
            "collectives": list(self.collectives),
            "annotations": list(self.annotations),
            "launch_shapes": [
                LaunchShape(_product(grid), _product(block)) for grid, block in sizes
            ],
            "inputs": list(self._input_codes.texts),
            "event_counts": {name: count for name, count in self.event_counts.items() if count},
            "unused_events": self._unused_events(),
            "unread_fields": {
                category: sorted(names)
                for category, names in sorted(self.unread.items())
                if names and category in _TABLE_OF
            },
            "one_ended_flows": self._one_ended_flows(),
        }

    def _unused_events(self) -> dict[str, int]:
        counts = {
            category: count
            if _TABLE_OF.get(category, HOST_DEVICE) == HOST_DEVICE
            else self._unused_counts[category]
            for category, count in self.event_counts.items()
        }
        return {category: count for category, count in counts.items() if count}

    def _one_ended_flows(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kind, chunks in self._flow_ends.items():
            ends = chunks.joined()
            starts = distinct(ends["id"][ends["is_start"]])
            finishes = distinct(ends["id"][~ends["is_start"]])
            counts[kind] = len(np.setxor1d(starts, finishes, assume_unique=True))
        return counts

    def _add_activities(self, events: Sequence[Event]) -> None:
        if not events:
            return
        name_copies(events)
        undraw_lanes(events)
        events, columns = self._timed(events)
        args = [event.args or _NO_ARGS for event in events]
        streams, devices = [arg.stream for arg in args], [arg.device for arg in args]
        for row in [row for row, stream in enumerate(streams) if stream is None]:
            streams[row] = events[row].tid
        for row in [row for row, device in enumerate(devices) if device is None]:
            devices[row] = events[row].pid
        columns["category"] = _codes(_ACTIVITY_KINDS, [event.cat for event in events])
        columns["device"] = bounded(int_column(devices), _INT32_LIMIT)
        columns["stream"] = self._numbers_or_names(streams)
        columns["correlation"] = int_column([arg.correlation for arg in args])
        columns["external_id"] = external_ids(args)
        columns["bytes"] = bounded(int_column([arg.bytes for arg in args]), MAX_BYTES)
        columns["collective"] = self._collective_codes(args)
        shapes = [_BETWEEN_TEXTS.join((arg.grid, arg.block)) for arg in args]
        columns["launch_shape"] = _codes(self._launch_shapes, shapes)
        columns["rank"] = self._ranks(events)
        columns["graph_node"] = int_column([arg.graph_node for arg in args])
        columns["annotation"] = self._annotation_codes(args)
        self._tables["activities"].add(columns)
        self._figures.add({name: _figure([*map(of, args)]) for name, of in _FIGURES.items()})

    def _add_launches(self, events: Sequence[Event]) -> None:
        if not events:
            return
        events, columns = self._timed(events)
        columns["thread"] = self._thread_codes(events)
        columns["correlation"] = int_column(
            [ABSENT if event.args is None else event.args.correlation for event in events]
        )
        self._tables["launches"].add(columns)

    def _add_ranges(
        self,
        table: GrowingColumns,
        events: Sequence[Event],
        kinds: Mapping[str, int] = _RANGE_KINDS,
    ) -> None:
        """Add ranges, whose kind is that of their category, or of their name for `FrameKinds`."""
        if not events:
            return
        events, columns = self._timed(events)
        args = [event.args or _NO_ARGS for event in events]
        if kinds is not _RANGE_KINDS:
            keys = [event.name for event in events]
        elif self.event_counts[OLD_RANGE]:
            keys = [old_category(event) for event in events]
        else:
            keys = [event.cat for event in events]
        columns["category"] = _codes(kinds, keys)
        columns["thread"] = self._thread_codes(events)
        columns["external_id"] = external_ids(args)
        columns["sequence"] = int_column([arg.sequence for arg in args])
        columns["forward_thread"] = int_column([arg.forward_thread for arg in args])
        columns["inputs"] = self._inputs(events, columns["name"], args)
        columns["collective"] = self._collective_codes(args)
        table.add(columns)

    def _add_flows(self, kind: str, events: Sequence[Event]) -> None:
        if not events:
            return
        ends = events
        phases = [event.ph for event in events]
        if phases.count("s") + phases.count("f") < len(events):
            ends = [event for event in events if event.ph in _FLOW_PHASES]
            if kind == FORWARD_BACKWARD:
                self._count_unused(event for event in events if event.ph not in _FLOW_PHASES)
            phases = [event.ph for event in ends]
        columns: Columns = {
            "id": self._numbers_or_names([event.id for event in ends]),
            "is_start": np.frombuffer("".join(phases).encode(), np.uint8) == ord("s"),
        }
        self._flow_ends[kind].add(columns)
        if kind != FORWARD_BACKWARD:
            return
        columns["time_ns"], usable = nanoseconds([event.ts for event in ends])
        ends = self._usable(ends, usable)
        columns = {name: values[usable] for name, values in columns.items()}
        columns["thread"] = self._thread_codes(ends)
        self._tables["flows"].add(columns)

    def _add_allocations(self, events: Sequence[Event]) -> None:
        if not events:
            return
        is_own = [
            event.name == MEMORY_EVENT
            and event.args is not None
            and integer(event.args.device_type) != CPU
            and 0 < abs(integer(event.args.size) or 0) < MAX_BYTES
            for event in events
        ]
        own: Sequence[Event] = list(compress(events, is_own))
        self._count_unused(compress(events, map(not_, is_own)))
        if not own:
            return
        time_ns, usable = nanoseconds([event.ts for event in own])
        own, time_ns = self._usable(own, usable), time_ns[usable]
        args = [event.args for event in own if event.args is not None]
        columns: Columns = {
            "device": bounded(int_column([arg.device_id for arg in args]), _INT32_LIMIT),
            "thread": self._thread_codes(own),
            "time_ns": time_ns,
            "bytes": int_column([arg.size for arg in args]),
            "address": int_column([arg.address for arg in args]),
            "allocated": bounded(int_column([arg.allocated for arg in args]), MAX_BYTES),
            "reserved": bounded(int_column([arg.reserved for arg in args]), MAX_BYTES),
        }
        self._tables["allocations"].add(columns)

    def _add_arrows(self, events: Sequence[Event]) -> None:
        """Add the ends of arrows between nodes of graphs, of those to activities of a device."""
        own = [event for event in events if type(event.id) is int and event.id >= FIRST_ARROW]
        if own:
            ids = int_column([event.id for event in own])
            is_start = np.array([event.ph == "s" for event in own], np.bool_)
            self._add_ends(own, ids, is_start, [event.ts for event in own])

    def _add_nodes(self, events: Sequence[Event]) -> None:
        """Add the nodes of graphs that are no activities: arrows lead through them."""
        timed, columns = self._timed(events) if events else ([], {})
        if timed:
            self._has_nodes = True
            begin, took = columns["start_ns"], columns["duration_ns"]
            number = -2 - np.arange(len(timed)) - len(self._tables["arrows"])
            for is_start, at in ((False, begin), (True, begin + took)):
                self._add_ends(timed, number, np.full(len(timed), is_start), at)

    def _add_ends(
        self, events: Sequence[Event], ids: Int64, is_start: Mask, times: Sequence[Any] | Int64
    ) -> None:
        at_ns = times if isinstance(times, np.ndarray) else nanoseconds(times)[0]
        columns: Columns = {
            "id": ids,
            "is_start": is_start,
            "device": bounded(int_column([event.pid for event in events]), _INT32_LIMIT),
            "lane": int_column([event.tid for event in events]),
            "time_ns": at_ns,
            "rank": self._ranks(events),
        }
        self._tables["arrows"].add(columns)

    def _add_syncs(self, events: Sequence[Event]) -> None:
        """Add stated synchronizations, but for those with a whole GPU, which calls show."""
        if not events:
            return
        kinds = [
            SyncKind.RECORD
            if event.cat == RECORD_CATEGORY
            else SYNC_KINDS.get(None if event.args is None else event.args.sync_kind, ABSENT)
            for event in events
        ]
        is_own = [kind != ABSENT for kind in kinds]
        self._count_unused(compress(events, map(not_, is_own)))
        own: Sequence[Event] = list(compress(events, is_own))
        if not own:
            return
        args = [event.args or _NO_ARGS for event in own]
        kind = int_column([*compress(kinds, is_own)])
        is_record = kind == SyncKind.RECORD  # Their time is that of the GPU.
        columns: Columns = {
            "kind": kind,
            "device": bounded(int_column([arg.device for arg in args]), _INT32_LIMIT),
            "stream": int_column([arg.stream for arg in args]),
            "start_ns": np.where(is_record, ABSENT, nanoseconds([event.ts for event in own])[0]),
            "correlation": int_column([arg.correlation for arg in args]),
            "event": int_column(
                [arg.event if arg.awaited_event == ABSENT else arg.awaited_event for arg in args]
            ),
            "awaited": int_column([arg.awaited_stream for arg in args]),
            "recorded": int_column([arg.recorded_by for arg in args]),
            "rank": self._ranks(own),
        }
        self._tables["syncs"].add(columns)

    def _timed(self, events: Sequence[Event]) -> tuple[Sequence[Event], Columns]:
        """Return the complete events with usable times; their names, starts and durations."""
        complete = events
        phases = [event.ph for event in events]
        if phases.count(COMPLETE) < len(events):
            complete = [event for event in events if event.ph == COMPLETE]
            self._count_unused(event for event in events if event.ph != COMPLETE)
        start_ns, has_start = nanoseconds([event.ts for event in complete])
        duration_ns, has_duration = nanoseconds([event.dur for event in complete])
        usable = has_start & has_duration & (duration_ns >= 0) & (duration_ns < MAX_DURATION_NS)
        for row in np.flatnonzero((start_ns == 0) & (duration_ns == 0)).tolist():
            # The profiler writes that of an activity whose time it doesn't know.
            usable[row] &= complete[row].cat not in ACTIVITY_CATEGORIES
        if not usable.all():
            complete = self._usable(complete, usable)
            start_ns, duration_ns = start_ns[usable], duration_ns[usable]
        if len(start_ns):
            self._repeats.add(len(start_ns), len(distinct(start_ns)))
        names = _codes(self.names, [event.name for event in complete])
        return complete, {"name": names, "start_ns": start_ns, "duration_ns": duration_ns}

    def _usable(self, events: Sequence[Event], usable: Mask) -> Sequence[Event]:
        """Return the events with usable times, and count the others."""
        if usable.all():
            return events
        self.bad_times += int(np.count_nonzero(~usable))
        lost = compress(events, (~usable).tolist())
        self.bad_host_times += sum(event.cat not in ACTIVITY_CATEGORIES for event in lost)
        self._count_unused(compress(events, (~usable).tolist()))
        return list(compress(events, usable.tolist()))

    def _count_unused(self, events: Iterable[Event]) -> None:
        self._unused_counts.update(event.cat for event in events)

    def _thread_codes(self, events: Sequence[Event]) -> Int64:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        ranks = self._ranks(events)
        begins: Index = np.arange(len(events))
        with suppress(struct.error):  # One is a name.
            begins = np.flatnonzero(
                run_mask(packed_values(processes), packed_values(threads), ranks)
            )
        rows, own = begins.tolist(), ranks[begins].tolist()
        keys = [(processes[row], threads[row], rank) for row, rank in zip(rows, own, strict=True)]
        return np.repeat(_codes(self.threads, keys), np.diff(begins, append=len(events)))

    def _ranks(self, events: Sequence[Event]) -> Int32:
        if not self.is_merged:
            return np.full(len(events), ABSENT, np.int32)
        ranks = [ABSENT if event.args is None else event.args.rank for event in events]
        return bounded(int_column(ranks), MAX_RANKS).astype(np.int32)

    def _collective_codes(self, args: Sequence[Args]) -> Int32:
        codes = np.full(len(args), ABSENT, np.int32)
        names = [arg.collective for arg in args]
        if names.count(None) < len(names):
            for row in [row for row, name in enumerate(names) if name is not None]:
                codes[row] = self.collectives[collective_of(args[row])]
        return codes

    def _annotation_codes(self, args: Sequence[Args]) -> Int32:
        codes = np.full(len(args), ABSENT, np.int32)
        for row, arg in enumerate(args):
            if arg.graph_node is not ABSENT and (mark := event_mark(arg)):
                codes[row] = self.annotations[mark]
        return codes

    def _inputs(self, events: Sequence[Event], name_codes: Int64, args: Sequence[Args]) -> Int32:
        if unseen := len(self.names) - len(self._kept_inputs):
            self._kept_inputs = np.append(self._kept_inputs, np.full(unseen, _UNSEEN, np.int8))
        kept = self._kept_inputs[name_codes]
        for row in np.flatnonzero(kept == _UNSEEN).tolist():
            kept[row] = self._kept_inputs[name_codes[row]] = kept_inputs(events[row].name)
        codes = np.full(len(args), ABSENT, np.int32)
        rows = np.flatnonzero(kept)
        for row, kind in zip(rows.tolist(), kept[rows].tolist(), strict=True):
            arg = args[row]
            if joined := arg.shapes or arg.old_shapes:
                parts = (joined, arg.types, arg.values, arg.strides)[:kind]
                codes[row] = self._input_codes[_BETWEEN_TEXTS.join(parts)]
        return codes

    def _numbers_or_names(self, values: Sequence[Any]) -> Int64:
        """Return ids as numbers; text that is not a number becomes -2 minus its code in names."""
        with suppress(struct.error):
            return packed_values(values)
        return np.array([self._number_or_name(value) for value in values], np.int64)

    def _number_or_name(self, value: Any) -> int:
        number = integer(value)
        if number is not None:
            return number
        if not (isinstance(value, str) and value):
            return ABSENT
        self.has_text_ids = True
        return -2 - self.names[value]


def _codes(codes: Mapping[Any, int], keys: Sequence[Any]) -> Int64:
    return packed_values([*map(codes.__getitem__, keys)])


def _figure(values: Sequence[Any]) -> Float64:
    # Most files have no such figure: each is the default.
    if values.count(nan) == len(values):
        return np.full(len(values), nan)
    return float_column(values)


def _is_long(duration_us: Any) -> bool:
    """Whether a Python frame can be a cause of idle time that counts."""
    try:
        return bool(duration_us >= _MIN_FRAME_US)
    except TypeError:
        return False


def _thread_key(value: Any) -> int | str:
    return value if isinstance(value, int | str) else count_of(value)


def _product(text: bytes) -> int:
    """Return the product of a JSON list of positive numbers; ABSENT for other text."""
    try:
        sizes = [int(size) for size in json.loads(text)]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ABSENT
    product = prod(sizes) if sizes and min(sizes) > 0 else ABSENT
    return product if product < _MAX_THREADS else ABSENT
