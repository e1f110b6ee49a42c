"""One event of a Chrome trace: its categories, its fields as a typed struct.

Clean JSON is decoded in bulk, damaged JSON event by event. Numbers of `ts` and
`dur` come as `int` or `float`, and as `Decimal` in a file whose times a float can't hold to the
nanosecond. Spellings of categories: libkineto's `ActivityType.cpp` and `output_json.cpp`;
`Operator`, `Runtime`, `Kernel`, `Memcpy` and `Memset` are those of torch 1.8, known to its
TensorBoard plugin (`EventTypes`).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np

from chopper_core.model.traffic import traffic_of
from chopper_core.sources.trace import ActivityCategory, Collective, HostCategory, SyncKind
from chopper_core.tables.columns import (
    FLOAT_EXACT_BELOW_US,
    MAX_BYTES,
    MAX_RANKS,
    int_column,
    integer,
)
from chopper_core.tables.json_stream import DECODE_ERRORS
from chopper_core.tables.losses import ABSENT
from chopper_core.tables.unread import MOST_LETTERS, MOST_NAMES
from chopper_core.util.arrays import Int64
from chopper_core.util.patterns import late

ACTIVITY_CATEGORIES: Final[Mapping[str, int]] = {
    "kernel": int(ActivityCategory.KERNEL),
    "Kernel": int(ActivityCategory.KERNEL),
    "gpu_memcpy": int(ActivityCategory.MEMCPY),
    "Memcpy": int(ActivityCategory.MEMCPY),
    "gpu_memset": int(ActivityCategory.MEMSET),
    "Memset": int(ActivityCategory.MEMSET),
}
LAUNCH_CATEGORIES: Final = frozenset(
    ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver",
     "privateuse1_runtime", "Runtime")
)  # fmt: skip
OLD_RANGE: Final = "Operator"
"""The category that torch up to 1.9 gives to operators and to named ranges."""
RANGE_CATEGORIES: Final[Mapping[str, int]] = {
    "cpu_op": int(HostCategory.OPERATOR),
    OLD_RANGE: int(HostCategory.OPERATOR),
    "user_annotation": int(HostCategory.ANNOTATION),
}
FRAME_CATEGORY: Final = "python_function"

FORWARD_BACKWARD: Final = "fwdbwd"
HOST_DEVICE: Final = "ac2g"
FLOW_CATEGORIES: Final[Mapping[str, str]] = {
    "fwdbwd": FORWARD_BACKWARD,
    "fwd_bwd": FORWARD_BACKWARD,
    "forward_backward": FORWARD_BACKWARD,
    "ac2g": HOST_DEVICE,
    "async_gpu": HOST_DEVICE,
    "async_cpu_to_gpu": HOST_DEVICE,
}

SYNC_CATEGORY: Final = "cuda_sync"
RECORD_CATEGORY: Final = "cuda_event"
"""Events that are recorded in streams."""
CPU_FUNCTIONS, CUDA_FUNCTIONS = "CPU functions", "CUDA functions"
"""The processes of `torch.autograd.profiler`'s own traces, whose events have no category."""
NODE_CATEGORIES: Final = ("graph_event_node", "graph_host_node")
"""Nodes of a graph that are no activities."""
FIRST_ARROW: Final = 1 << 40
"""The lowest id of arrows between nodes of a graph, by torch's CUPTI backend."""
SYNC_KINDS: Final[Mapping[Any, int]] = {
    "Event Sync": int(SyncKind.EVENT),
    "Stream Wait Event": int(SyncKind.WAIT),
    "Stream Sync": int(SyncKind.STREAM),
}
MEMORY_EVENT: Final = "[memory]"
"""The name of events that allocate or release memory; older versions give them no category."""
COUNTER_CATEGORY: Final = "hardware_counters"
COUNTERS: Final = late(r"GPU (\d{1,6}) Counters")
"""The process of a device's counters, whose events may have no category."""
INSTANT_CATEGORY: Final = "cpu_instant_event"
CPU: Final = 0
"""The framework's type of device of the host's own memory."""

CATEGORIES: Final = (
    *ACTIVITY_CATEGORIES,
    *LAUNCH_CATEGORIES,
    *RANGE_CATEGORIES,
    FRAME_CATEGORY,
    *FLOW_CATEGORIES,
    "gpu_user_annotation",
    INSTANT_CATEGORY,
)
"""The frequent ones."""

_PROFILER_RANGE: Final = re.compile(r"^(?:ProfilerStep#|Optimizer\.|enumerate\(|nccl:)")
_OPERATOR_NAME: Final = re.compile(r"::|Backward\d*$")


def old_category(event: Event) -> str:
    """Return the category that later versions of torch give to a range.

    Operators have a namespace, or are nodes of autograd, or carry its sequence number.
    """
    if event.cat != OLD_RANGE:
        return event.cat
    numbered = event.args is not None and event.args.sequence != ABSENT
    is_operator = numbered or _OPERATOR_NAME.search(event.name)
    if _PROFILER_RANGE.search(event.name) or not is_operator:
        return "user_annotation"
    return OLD_RANGE


_MODULE_PREFIX: Final = "nn.Module: "
_RECOMPUTE_FRAME: Final = re.compile(
    r"(?:checkpoint(?:ing)?|tensor_parallel/random)\.py\(\d+\): (?:recompute_fn|backward)$"
)
_SHAPED_OPERATOR: Final = re.compile(
    r"mm(?:[_.<]|$)|matmul|linear|attention|attn|mha_|conv|embedding|^triton_", re.I
)
_TYPED_OPERATOR: Final = re.compile(
    r"^aten::(?:linear|matmul|(?:add|_scaled_|_int_|(?:_scaled)?_grouped_)?mm|(?:badd)?bmm)$"
    r"|attention|attn|mha_|conv|^triton_",
    re.I,
)


class FrameKinds(dict[str, int]):
    """The kind of host range of a Python frame, by its name."""

    def __missing__(self, name: str) -> int:
        kind = HostCategory.FRAME
        if name.startswith(_MODULE_PREFIX):
            kind = HostCategory.MODULE
        elif _RECOMPUTE_FRAME.search(name):
            kind = HostCategory.RECOMPUTE
        self[name] = kind
        return kind


class KeptInputs(IntEnum):
    """The inputs of an operator that are kept: how many of the texts about them."""

    NOTHING = 0
    SHAPES = 1
    ALL = 4
    """Shapes, types, the values of inputs other than tensors, and strides."""


@lru_cache(maxsize=1 << 14)
def kept_inputs(name: str) -> int:
    if traffic_of(name):
        return int(KeptInputs.ALL)
    if not _SHAPED_OPERATOR.search(name):
        return int(KeptInputs.NOTHING)
    return int(KeptInputs.ALL if _TYPED_OPERATOR.search(name) else KeptInputs.SHAPES)


Number = int | str | float | None
NOTHING: Final = msgspec.Raw(b"")


if TYPE_CHECKING:
    Phase: TypeAlias = str
    Category: TypeAlias = str
else:

    class _Known(StrEnum):
        """Frequent texts, for which no new object is made each time; others stay text."""

        @classmethod
        def _missing_(cls, text: str) -> str:
            return text

    Phase = _Known("Phase", {name or "NONE": name for name in ("", "X", "s", "f", "M")})
    Category = _Known("Category", {name or "NONE": name for name in ("", *CATEGORIES)})

COMPLETE: Final = Phase("X")


class Args(msgspec.Struct, gc=False):
    """The arguments that the tables need; types differ between versions of the profiler.

    Each is looked for from the one before on: the frequent ones are in the order of most files.
    """

    external_id: Number = msgspec.field(name="External id", default=ABSENT)
    record_function: Number = msgspec.field(name="Record function id", default=ABSENT)
    sequence: Number = msgspec.field(name="Sequence number", default=ABSENT)
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=ABSENT)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    device: Number = None
    stream: Number = None
    correlation: Number = ABSENT
    bytes: Number = ABSENT
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    old_shapes: msgspec.Raw = msgspec.field(name="Input dims", default=NOTHING)
    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=ABSENT)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=ABSENT)
    group_size: Number = msgspec.field(name="Group size", default=ABSENT)
    dtype: Any = None
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    source_rank: Number = msgspec.field(name="Src Rank", default=ABSENT)
    target_rank: Number = msgspec.field(name="Dst Rank", default=ABSENT)
    old_external_id: Number = msgspec.field(name="external id", default=ABSENT)
    copy_kind: Any = msgspec.field(name="copy kind", default=None)
    source_kind: Any = msgspec.field(name="src kind", default=None)
    target_kind: Any = msgspec.field(name="dst kind", default=None)
    """Of copies that torch's CUPTI backend names `Memcpy` alone."""
    graph_node: Number = msgspec.field(name="graph node id", default=ABSENT)
    annotation: Any = None
    """Of a graph's node, as the next two: what it was marked with."""
    module: Any = msgspec.field(name="module_fqn", default=None)
    mark: Any = msgspec.field(name="name", default=None)
    sync_kind: Any = msgspec.field(name="cuda_sync_kind", default=None)
    awaited_stream: Number = msgspec.field(name="wait_on_stream", default=ABSENT)
    recorded_by: Number = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=ABSENT)
    awaited_event: Number = msgspec.field(name="wait_on_cuda_event_id", default=ABSENT)
    event: Number = msgspec.field(name="event_id", default=ABSENT)
    rank: Number = ABSENT
    """In a file that merges the traces of several ranks."""
    occupancy: Any = msgspec.field(name="est. achieved occupancy %", default=nan)
    registers: Any = msgspec.field(name="registers per thread", default=nan)
    shared_memory: Any = msgspec.field(name="shared memory", default=nan)
    real_stream: Number = msgspec.field(name="original_stream", default=None)
    """Of a graph's kernel that torch's CUPTI backend draws in a lane, whose number is `stream`."""
    lane: Any = msgspec.field(name="(drawn in)", default=nan)
    """That lane, once `stream` is the real one (`undraw_lanes`)."""
    hsa_queue: Any = nan
    """On ROCm since Kineto of June 2026, whose `stream` is that of HIP; before, it is the queue."""
    kernel: msgspec.Raw = NOTHING
    """Of a launch on ROCm: the name of its kernel."""
    size: Number = msgspec.field(name="Bytes", default=ABSENT)
    """Of an event that allocates or releases memory, as the next five."""
    address: Number = msgspec.field(name="Addr", default=ABSENT)
    device_type: Number = msgspec.field(name="Device Type", default=CPU)
    device_id: Number = msgspec.field(name="Device Id", default=ABSENT)
    allocated: Number = msgspec.field(name="Total Allocated", default=ABSENT)
    reserved: Number = msgspec.field(name="Total Reserved", default=ABSENT)


FIGURES: Final[Mapping[str, str]] = {
    "est_occupancy_pct": "occupancy",
    "registers": "registers",
    "lds_bytes": "shared_memory",
    "hsa_queue": "hsa_queue",
    "logical_lane": "lane",
}
"""Column of the kernel table → the field of `Args` that has it. Any number of an activity can be
one: nothing else between the file and the metric needs to know it."""


class Event(msgspec.Struct, gc=False):
    """One element of `traceEvents`."""

    ph: Phase = ""
    cat: Category = ""
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Any = None
    dur: Any = None
    id: Number = None
    args: Args | None = None


def name_copies(events: Sequence[Event]) -> None:
    """Name copies by their kind, as Kineto does: `Memcpy HtoD (Pinned -> Device)`."""
    for event in events:
        if event.name == "Memcpy" and event.args is not None and event.args.copy_kind:
            kinds = str(event.args.source_kind).title(), str(event.args.target_kind).title()
            event.name = f"Memcpy {event.args.copy_kind} ({kinds[0]} -> {kinds[1]})"


def undraw_lanes(events: Sequence[Event]) -> None:
    """Put activities that are drawn in a lane of their own into the stream that they ran in: only
    there one waits for the one before it."""
    for event in events:
        args = event.args
        if args is not None and args.real_stream is not None:
            args.lane, args.stream = args.stream, args.real_stream


def number_functions(events: Sequence[Event], last: int) -> int:
    """Give events of old autograd traces the categories and ids of later ones; the last id.

    Kernels follow the operator that launched them, and have its id; their thread is the device.
    """
    for event in events:
        if event.pid == CPU_FUNCTIONS:
            last += 1
            event.cat, event.args = Category("cpu_op"), Args(external_id=last)
        else:
            kinds = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
            event.cat = Category(kinds.get(event.name[:6], "kernel"))
            event.args = Args(external_id=last or ABSENT, device=event.tid, stream=0)
    return last


_RANK_IN_PID: Final = late(r"\[TP(\d{1,6})((?:-[A-Z]+\d{1,6})*)\] ?(.*)")
"""Before each process of a trace that SGLang merged from those of its ranks."""
_PLACE: Final = late(r"-(PP|DP)(\d+)")
PLACES: Final = {"PP": 8, "DP": 13}
"""Where numbers of stages and replicas are in a rank that isn't that of tensor parallelism alone,
in bits."""
_TP_RANKS, _STAGES, _REPLICAS = 1 << 8, 1 << 5, 1 << 7


def split_ranks(events: Sequence[Event]) -> bool:
    """Move the ranks before processes to the events' own; whether there are any."""
    is_any = False
    for event in events:
        match = _RANK_IN_PID.fullmatch(event.pid) if isinstance(event.pid, str) else None
        if match:
            event.args = event.args or Args()
            event.args.rank = _rank_of(int(match[1]), match[2])
            event.pid = int(match[3]) if match[3].isdecimal() else match[3]
            is_any = True
    return is_any


@lru_cache(1 << 10)
def _rank_of(of_tensors: int, rest: str) -> int:
    """The rank of tensor parallelism, with stage and replica where there are several; ABSENT for
    more of them than a rank has room for."""
    places = {kind: int(number) for kind, number in _PLACE.findall(rest)}
    stage, replica = places.get("PP", 0), places.get("DP", 0)
    if not stage and not replica:
        return of_tensors
    if of_tensors >= _TP_RANKS or stage >= _STAGES or replica >= _REPLICAS:
        return ABSENT
    return of_tensors + (stage << PLACES["PP"]) + (replica << PLACES["DP"])


def event_mark(args: Args) -> str:
    """What a graph's node was marked with; '' for nothing."""
    return next(
        (each for each in (args.module, args.annotation, args.mark) if isinstance(each, str)), ""
    )


_READ_FIELDS: Final = frozenset(
    field.encode_name for field in (*msgspec.structs.fields(Event), *msgspec.structs.fields(Args))
)
_OF_DRAWING: Final = frozenset(("bp", "s", "tts", "tdur", "cname", "sf", "esf"))
"""Fields of an event of which viewers of traces alone make use."""


class UnreadFields(dict[str, set[str]]):
    """The names of fields that nothing is read from, by the category of their events."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()

    def look_at(self, text: bytes) -> None:
        """Look at the events of a JSON array."""
        with suppress(*DECODE_ERRORS):
            for event in msgspec.json.decode(text):
                self.see(event)

    def see(self, event: Mapping[str, Any]) -> None:
        category, args = event.get("cat"), event.get("args")
        # Those without a category name processes, or are counters and memory.
        if not (category and isinstance(category, str)) or event.get("ph") != COMPLETE:
            return
        args = args if isinstance(args, dict) else ()
        # Most events have the fields of another one of their category.
        fields = (category, *event, *args)
        if fields not in self._seen and len(self._seen) < MOST_NAMES:
            self._seen.add(fields)
            names = {*event, *args} - _READ_FIELDS - _OF_DRAWING
            if names and len(self) < MOST_NAMES:
                known = self.setdefault(category, set())
                known.update([name[:MOST_LETTERS] for name in names][: MOST_NAMES - len(known)])

    def join(self, other: Mapping[str, set[str]]) -> None:
        for category, names in other.items():
            self.setdefault(category, set()).update(names)


class EventDecoder:
    """Decodes events; switches to exact decimals once a file needs them."""

    def __init__(self) -> None:
        self.is_exact = False
        self.beyond_repair = 0
        """Bytes of objects that no repair made valid."""

    @property
    def is_exact(self) -> bool:
        """Whether floats are decoded as decimals."""
        return self._is_exact

    @is_exact.setter
    def is_exact(self, is_exact: bool) -> None:
        self._is_exact = is_exact
        hook = Decimal if is_exact else None
        self._many = msgspec.json.Decoder(list[Event], float_hook=hook)

    @property
    def has_given_up(self) -> bool:
        """Whether repairs failed so often that the file is none of torch's."""
        return self.beyond_repair > _MAX_BEYOND_REPAIR

    def decode_many(self, text: bytes) -> list[Event]:
        """Decode a JSON array of events.

        Raises one of DECODE_ERRORS if the text is not valid JSON or a field has an odd type.
        """
        events = self._many.decode(text)
        if not self._is_exact and _has_inexact_times(events):
            self.is_exact = True
            events = self._many.decode(text)
        return events

    def decode_one(self, text: bytes) -> tuple[Event, bool] | None:
        """Decode one JSON object with fields of any type, and repair it if it is invalid.

        The second value is whether it had to be repaired; None if that fails.
        """
        with suppress(*DECODE_ERRORS, ValueError):
            return self.decode_many(b"[" + text + b"]")[0], False
        with suppress(*_LOADS_ERRORS):
            return event_of(_loads(text.decode())), False
        for repair in () if self.has_given_up else (_without_odd_numbers, _with_quotes_escaped):
            with suppress(*_LOADS_ERRORS):
                fields = _loads(repair(text).decode("utf-8", "replace"), strict=False)
                return event_of(fields), True
        self.beyond_repair += len(text)
        return None


def _has_inexact_times(events: Sequence[Event]) -> bool:
    """Return whether a float may have lost nanoseconds of a start; one numpy pass if none has."""
    try:
        packed = struct.pack(f"={len(events)}d", *[event.ts for event in events])
        if not (np.frombuffer(packed, np.float64) >= FLOAT_EXACT_BELOW_US).any():
            return False
    except (struct.error, OverflowError):
        pass
    return any(type(event.ts) is float and event.ts >= FLOAT_EXACT_BELOW_US for event in events)


_LOADS_ERRORS: Final = (ValueError, TypeError, RecursionError)


def _loads(text: str, *, strict: bool = True) -> Any:
    return json.loads(text, strict=strict, parse_float=Decimal, parse_constant=_refuse)


def _refuse(_constant: str) -> None:
    raise ValueError


_MAX_BEYOND_REPAIR: Final = 1 << 21
_HAS_ODD_NUMBER: Final = re.compile(rb"nan|inf", re.IGNORECASE)
# Strings are matched first, to leave what they say. So are escaped quotes outside of them, each of
# which would otherwise be tried as the start of a string up to the end of the text.
_ODD_NUMBER: Final = re.compile(
    rb'("(?:[^"\\]++|\\.)*+"|\\.)|[-+]?\b(?:nan|inf(?:inity)?)\b(?:\([^)]{0,64}\))?',
    re.DOTALL | re.IGNORECASE,
)
_NAME_START: Final = re.compile(rb'"(?:name|kernel)"\s*+:\s*+"')
_NAME_END: Final = re.compile(rb'"\s*+(?:\}|,\s*+"[A-Za-z][\w ]*+"\s*+:)')
_BARE_QUOTE: Final = re.compile(rb'(?<!\\)"')


def _without_odd_numbers(text: bytes) -> bytes:
    """Put null where C++ printed nan or inf."""
    if not _HAS_ODD_NUMBER.search(text):
        return text
    return _ODD_NUMBER.sub(lambda match: match.group(1) or b"null", text)


def _with_quotes_escaped(text: bytes) -> bytes:
    """Escape the quotes in a name that was printed unescaped."""
    text = _without_odd_numbers(text)
    parts, done = [], 0
    while (start := _NAME_START.search(text, done)) and (
        end := _NAME_END.search(text, start.end())
    ):
        name = text[start.end() : end.start()]
        parts += [text[done : start.end()], _BARE_QUOTE.sub(b'\\\\"', name)]
        done = end.start()
    return b"".join([*parts, text[done:]])


def event_of(fields: Any) -> Event:
    """Convert a decoded object to an event; fields of an invalid type count as missing."""
    if not isinstance(fields, dict):
        raise TypeError("an event is an object")
    args = fields.get("args")
    texts = {key: _text(fields.get(key)) for key in ("ph", "cat", "name")}
    numbers = {key: _number(fields.get(key)) for key in ("pid", "tid", "ts", "dur", "id")}
    values: dict[str, Any] = {**texts, **numbers}
    if isinstance(args, dict):
        values["args"] = _args_of(args)
    return Event(**values)


_RAW: Final = {field.name for field in msgspec.structs.fields(Args) if field.type is msgspec.Raw}


def _args_of(fields: Mapping[str, Any]) -> Args:
    names = zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True)
    values = {attribute: fields[key] for attribute, key in names if key in fields}
    for raw in _RAW & values.keys():
        values[raw] = msgspec.Raw(json.dumps(values[raw], default=str).encode())
    return Args(**values)


def _text(value: Any) -> str:
    """Return text that can be encoded as UTF-8: half a surrogate pair can't."""
    if value is None:
        return ""
    return str(value).encode("utf-8", "replace").decode()


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float | str | Decimal) else None


def external_ids(args: Sequence[Args]) -> Int64:
    """The external id of each; ABSENT where it has none."""
    ids = int_column([arg.external_id for arg in args])
    is_missing = ids == ABSENT
    if is_missing.any():
        ids = np.where(is_missing, int_column([arg.old_external_id for arg in args]), ids)
    return ids


_OF_COLLECTIVE: Final = {
    "collective": None, "in_elements": MAX_BYTES, "out_elements": MAX_BYTES, "dtype": None,
    "group_size": MAX_RANKS, "group_name": None, "group_description": None, "group_ranks": None,
    "source_rank": MAX_RANKS, "target_rank": MAX_RANKS,
}  # fmt: skip
"""Field of `Args` → what a number there is below, None for a text; as in `Collective`."""
_given: Final = attrgetter(*_OF_COLLECTIVE)


def collective_of(args: Args) -> Collective:
    given = _given(args)
    try:
        return _collective(*given)
    except TypeError:  # A list can't be remembered.
        return _collective.__wrapped__(*given)


@lru_cache(maxsize=1 << 12, typed=True)
def _collective(*given: Any) -> Collective:
    limits = _OF_COLLECTIVE.values()
    own: list[Any] = [
        _text(value) if below is None else count_of(value, below)
        for value, below in zip(given, limits, strict=True)
    ]
    return Collective(*own)


def count_of(value: Any, below: int = 2**63) -> int:
    """The integer from 0 in a field of any type; ABSENT for others."""
    number = integer(value)
    return number if number is not None and 0 <= number < below else ABSENT
