"""Events, a piece at a time, into the tables of a trace."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from chopper_core.sources.kineto.categories import (
    ACTIVITY_CATEGORIES,
    FLOW_CATEGORIES,
    FORWARD_BACKWARD,
    FRAME_CATEGORY,
    HOST_DEVICE,
    LAUNCH_CATEGORIES,
    RANGE_CATEGORIES,
    FrameKinds,
    Kept,
    KeptInputs,
)
from chopper_core.sources.kineto.columns import (
    ChunkedColumns,
    Columns,
    Interner,
    bounded,
    int_column,
    integer,
)
from chopper_core.sources.kineto.events import Args, Event
from chopper_core.sources.kineto.times import nanoseconds
from chopper_core.sources.trace import (
    ABSENT,
    Activities,
    Collective,
    Flows,
    HostRanges,
    Int32,
    Int64,
    Launches,
    LaunchShape,
)

_ACTIVITY_TYPES: Final[Mapping[str, DTypeLike]] = {
    "name": np.int32,
    "category": np.int8,
    "device": np.int32,
    "stream": np.int64,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
    "bytes": np.int64,
    "collective": np.int32,
    "launch_shape": np.int32,
}
_LAUNCH_TYPES: Final[Mapping[str, DTypeLike]] = {
    "name": np.int32,
    "thread": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
}
_RANGE_TYPES: Final[Mapping[str, DTypeLike]] = {
    "name": np.int32,
    "category": np.int8,
    "thread": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "external_id": np.int64,
    "sequence": np.int64,
    "forward_thread": np.int64,
    "shapes": np.int32,
    "types": np.int32,
    "values": np.int32,
    "collective": np.int32,
}
_FLOW_TYPES: Final[Mapping[str, DTypeLike]] = {
    "id": np.int64,
    "is_start": np.bool_,
    "thread": np.int32,
    "time_ns": np.int64,
}
_FLOW_END_TYPES: Final[Mapping[str, DTypeLike]] = {"id": np.int64, "is_start": np.bool_}

_NO_ARGS: Final = Args()
_CATEGORY_OF: Final = attrgetter("cat")
_NAME_OF: Final = attrgetter("name")
_THREAD_OF: Final = attrgetter("pid", "tid")
_FLOW_PHASES: Final = ("s", "f")
_INT32_LIMIT: Final = 2**31
_ALL_INPUTS: Final = int(Kept.ALL)
_JSON_SPACE: Final = b" \t\r\n"


class _Groups(dict[str, list[Event]]):
    """The events of a piece by the table they belong to."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.activities: list[Event] = []
        self.launches: list[Event] = []
        self.ranges: list[Event] = []
        self.frames: list[Event] = []
        self.flows: dict[str, list[Event]] = {FORWARD_BACKWARD: [], HOST_DEVICE: []}
        self._others: list[Event] = []
        self.update(dict.fromkeys(ACTIVITY_CATEGORIES, self.activities))
        self.update(dict.fromkeys(LAUNCH_CATEGORIES, self.launches))
        self.update(dict.fromkeys(RANGE_CATEGORIES, self.ranges))
        self[FRAME_CATEGORY] = self.frames
        self.update((category, self.flows[kind]) for category, kind in FLOW_CATEGORIES.items())
        for event in events:
            self[event.cat].append(event)

    def __missing__(self, category: str) -> list[Event]:
        return self._others


class _JsonTexts(dict[bytes, int]):
    """The codes of JSON texts without their spaces; ABSENT for an empty one."""

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names
        self[b""] = ABSENT

    def __missing__(self, text: bytes) -> int:
        compact = text.translate(None, _JSON_SPACE).decode("utf-8", "replace")
        code = self[text] = self._names[compact]
        return code


class TraceTables:
    """The tables of a trace while its events arrive."""

    def __init__(self) -> None:
        self.names: dict[str, int] = Interner()
        self.threads: dict[tuple[Any, Any], int] = Interner()
        self.collectives: dict[Collective, int] = Interner()
        self._launch_shapes: dict[tuple[bytes, bytes], int] = Interner()
        self.event_counts: Counter[str] = Counter()
        self.used_counts: Counter[str] = Counter()
        self.bad_times = 0
        self._activities = ChunkedColumns(_ACTIVITY_TYPES)
        self._launches = ChunkedColumns(_LAUNCH_TYPES)
        self._ranges = ChunkedColumns(_RANGE_TYPES)
        self._frames = ChunkedColumns(_RANGE_TYPES)
        self._flows = ChunkedColumns(_FLOW_TYPES)
        self._flow_ends = {
            kind: ChunkedColumns(_FLOW_END_TYPES) for kind in (HOST_DEVICE, FORWARD_BACKWARD)
        }
        self._frame_kinds = FrameKinds()
        self._kept_inputs = KeptInputs()
        self._input_texts = _JsonTexts(self.names)

    def add(self, events: Sequence[Event]) -> None:
        """Take what the tables need of these events."""
        self.event_counts.update(map(_CATEGORY_OF, events))
        groups = _Groups(events)
        self._add_activities(groups.activities)
        self._add_launches(groups.launches)
        self._add_ranges(self._ranges, groups.ranges, RANGE_CATEGORIES, _CATEGORY_OF)
        kinds = map(self._frame_kinds.__getitem__, map(_NAME_OF, groups.frames))
        frames = [frame for frame, kind in zip(groups.frames, kinds, strict=True) if kind != ABSENT]
        self._add_ranges(self._frames, frames, self._frame_kinds, _NAME_OF)
        self._add_flows(groups.flows[FORWARD_BACKWARD])
        for kind, events_of_kind in groups.flows.items():
            self._add_flow_ends(kind, events_of_kind)

    def thread_keys(self) -> list[tuple[int | str, int | str]]:
        """Return the (process id, thread id) of each thread code; ABSENT for what has no id."""
        return [(_thread_key(process), _thread_key(thread)) for process, thread in self.threads]

    def activities(self) -> Activities:
        """Return the finished table; each of these four can be asked for once."""
        return Activities(**self._activities.joined())

    def launch_shapes(self) -> list[LaunchShape]:
        """Return the shape of each code of `Activities.launch_shape`."""
        return [LaunchShape(_product(grid), _product(block)) for grid, block in self._launch_shapes]

    def launches(self) -> Launches:
        """Return the finished table."""
        return Launches(**self._launches.joined())

    def ranges(self) -> HostRanges:
        """Return the finished table: operators and annotations in the file's order, then frames."""
        self._ranges.extend(self._frames)
        return HostRanges(**self._ranges.joined())

    def flows(self) -> Flows:
        """Return the finished table."""
        return Flows(**self._flows.joined())

    def one_ended_flows(self) -> dict[str, int]:
        """Return how many flow ids have a start or an end only, by kind of flow."""
        counts: dict[str, int] = {}
        for kind, chunks in self._flow_ends.items():
            ends = chunks.joined()
            starts = np.unique(ends["id"][ends["is_start"]])
            finishes = np.unique(ends["id"][~ends["is_start"]])
            counts[kind] = np.setxor1d(starts, finishes, assume_unique=True).size
        return counts

    def _add_activities(self, events: Sequence[Event]) -> None:
        events, columns = self._timed(events)
        args = [event.args or _NO_ARGS for event in events]
        streams = [
            event.tid if arg.stream is None else arg.stream
            for event, arg in zip(events, args, strict=True)
        ]
        devices = [
            event.pid if arg.device is None else arg.device
            for event, arg in zip(events, args, strict=True)
        ]
        columns["name"] = self._name_codes(events)
        columns["category"] = np.array([ACTIVITY_CATEGORIES[event.cat] for event in events])
        columns["device"] = bounded(int_column(devices), _INT32_LIMIT)
        columns["stream"] = self._numbers_or_names(streams)
        columns["correlation"] = int_column([arg.correlation for arg in args])
        columns["external_id"] = _external_ids(args)
        columns["bytes"] = int_column([arg.bytes for arg in args])
        columns["collective"] = self._collective_codes(args)
        codes = [self._launch_shapes[bytes(arg.grid), bytes(arg.block)] for arg in args]
        columns["launch_shape"] = np.array(codes, np.int32)
        self._activities.add(columns)

    def _add_launches(self, events: Sequence[Event]) -> None:
        events, columns = self._timed(events)
        args = [event.args or _NO_ARGS for event in events]
        columns["name"] = self._name_codes(events)
        columns["thread"] = self._thread_codes(events)
        columns["correlation"] = int_column([arg.correlation for arg in args])
        columns["external_id"] = _external_ids(args)
        self._launches.add(columns)

    def _add_ranges(
        self,
        table: ChunkedColumns,
        events: Sequence[Event],
        kinds: Mapping[str, int],
        kind_key_of: Callable[[Event], str],
    ) -> None:
        events, columns = self._timed(events)
        args = [event.args or _NO_ARGS for event in events]
        columns["name"] = self._name_codes(events)
        columns["category"] = np.array([kinds[key] for key in map(kind_key_of, events)])
        columns["thread"] = self._thread_codes(events)
        columns["external_id"] = _external_ids(args)
        columns["sequence"] = int_column([arg.sequence for arg in args])
        columns["forward_thread"] = int_column([arg.forward_thread for arg in args])
        columns |= self._input_codes(events, args)
        columns["collective"] = self._collective_codes(args)
        table.add(columns)

    def _add_flows(self, events: Sequence[Event]) -> None:
        events = [event for event in events if event.ph in _FLOW_PHASES]
        time_ns, usable = nanoseconds([event.ts for event in events])
        self.bad_times += int(np.count_nonzero(~usable))
        events = [events[row] for row in np.flatnonzero(usable)]
        self.used_counts.update(map(_CATEGORY_OF, events))
        columns = self._flow_columns(events)
        columns["thread"] = self._thread_codes(events)
        columns["time_ns"] = time_ns[usable]
        self._flows.add(columns)

    def _add_flow_ends(self, kind: str, events: Sequence[Event]) -> None:
        events = [event for event in events if event.ph in _FLOW_PHASES]
        self._flow_ends[kind].add(self._flow_columns(events))

    def _flow_columns(self, events: Sequence[Event]) -> Columns:
        return {
            "id": self._numbers_or_names([event.id for event in events]),
            "is_start": np.array([event.ph == "s" for event in events], np.bool_),
        }

    def _timed(self, events: Sequence[Event]) -> tuple[Sequence[Event], Columns]:
        """Return the complete events with usable times, and their starts and durations."""
        complete = [event for event in events if event.ph == "X"]
        start_ns, has_start = nanoseconds([event.ts for event in complete])
        duration_ns, has_duration = nanoseconds([event.dur for event in complete])
        usable = has_start & has_duration & (duration_ns >= 0)
        if not usable.all():
            self.bad_times += int(np.count_nonzero(~usable))
            complete = [complete[row] for row in np.flatnonzero(usable)]
            start_ns, duration_ns = start_ns[usable], duration_ns[usable]
        self.used_counts.update(map(_CATEGORY_OF, complete))
        return complete, {"start_ns": start_ns, "duration_ns": duration_ns}

    def _name_codes(self, events: Sequence[Event]) -> Int32:
        codes = map(self.names.__getitem__, map(_NAME_OF, events))
        return np.fromiter(codes, np.int32, len(events))

    def _thread_codes(self, events: Sequence[Event]) -> Int32:
        codes = map(self.threads.__getitem__, map(_THREAD_OF, events))
        return np.fromiter(codes, np.int32, len(events))

    def _collective_codes(self, args: Sequence[Args]) -> Int32:
        codes = np.full(len(args), ABSENT, np.int32)
        for row, arg in enumerate(args):
            if arg.collective is not None:
                codes[row] = self.collectives[_collective_of(arg)]
        return codes

    def _input_codes(self, events: Sequence[Event], args: Sequence[Args]) -> Columns:
        shapes, types, values = codes = np.full((3, len(events)), ABSENT, np.int32)
        code_of = self._input_texts
        kept = map(self._kept_inputs.__getitem__, map(_NAME_OF, events))
        for row, inputs in enumerate(kept):
            if inputs:
                arg = args[row]
                shapes[row] = code_of[bytes(arg.shapes)]
                if inputs == _ALL_INPUTS:
                    types[row] = code_of[bytes(arg.types)]
                    values[row] = code_of[bytes(arg.values)]
        return dict(zip(("shapes", "types", "values"), codes, strict=True))

    def _numbers_or_names(self, values: Sequence[Any]) -> Int64:
        """Return ids as numbers; one that is text and no number is -2 minus its code in names."""
        try:
            return np.fromiter(values, np.int64, len(values))
        except (TypeError, ValueError, OverflowError):
            return np.array([self._number_or_name(value) for value in values], np.int64)

    def _number_or_name(self, value: Any) -> int:
        number = integer(value)
        if number is not None:
            return number
        return -2 - self.names[value] if isinstance(value, str) and value else ABSENT


def _thread_key(value: Any) -> int | str:
    return value if isinstance(value, int | str) else _count(value)


def _product(text: bytes) -> int:
    """Return the product of a JSON list of positive numbers; ABSENT if it is none."""
    try:
        sizes = [int(size) for size in json.loads(text)]
    except (ValueError, TypeError, OverflowError):
        return ABSENT
    return prod(sizes) if sizes and min(sizes) > 0 else ABSENT


def _external_ids(args: Sequence[Args]) -> Int64:
    ids = int_column([arg.external_id for arg in args])
    is_missing = ids == ABSENT
    if is_missing.any():
        ids = np.where(is_missing, int_column([arg.old_external_id for arg in args]), ids)
    return ids


def _collective_of(args: Args) -> Collective:
    return Collective(
        name=_text(args.collective),
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        dtype=_text(args.dtype),
        group_size=_count(args.group_size),
        group_name=_text(args.group_name),
        group_description=_text(args.group_description),
        group_ranks=_text(args.group_ranks),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _count(value: Any) -> int:
    number = integer(value)
    return ABSENT if number is None else number
