"""The kernel table: one row per activity of a GPU, with its levels and labels.

Beyond the levels of the tree, any column of the activities splits a table and scopes a path:
`class=gemm`, `stream=7` and `iteration%2=0` are steps of a path as `layer=3` is. What needs more
than the model is added where it is known, with `add_split`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from chopper_core.model.column_names import CALL_SHAPE, FLOPS_TYPE, MODULES
from chopper_core.model.hardware import ElementType
from chopper_core.model.shapes import CallShape
from chopper_core.util.arrays import (
    AnyArray,
    Float64,
    Index,
    Int8,
    Int32,
    Int64,
    Mask,
    column_types,
)
from chopper_core.util.patterns import late

_Entry = TypeVar("_Entry")
LEVELS: Final = ("gpu", "iteration", "phase", "layer", "operation", "kernel")
PLACES: Final = LEVELS[2:5]
"""The levels that say where in a step of a GPU an activity is."""
LABELLED: Final = LEVELS[1:-1]
"""The levels whose labels are found by a rule; GPU and kernel are in the trace."""
ACTIVITY: Final = "activity"
"""The level under the last one: the single activities of a node."""

NO_LABEL: Final = -1
"""The code of a missing label, at every level."""
ANY_NUMBER: Final = 1 << 31
"""How many codes a level of numbers has."""
NO_LABEL_TEXT: Final = "none"
"""How a path spells a missing label; people see `unlabelled`."""
UNLABELLED: Final = "unlabelled"
RECOMPUTE_SUFFIX: Final = " (recompute)"
"""Ends the operations of forward work that backward repeats."""
NO_TIME: Final = np.iinfo(np.int64).min
"""An unknown time."""


class Kind(IntEnum):
    """The kind of an activity in the time accounting."""

    COMPUTE = 0
    COMM = 1
    COPY = 2


_KINDS: Final = ("compute", "communication", "copy")


class Category(IntEnum):
    """The category of an activity in the trace."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    INTERVAL = 3
    """Time between two samples of telemetry, in a run without any trace."""
    OUTSIDE = 4
    """No activity: idle time outside steps, at its end. It has no duration."""


class Phase(IntEnum):
    """The part of a step in which an activity was launched: of training, or of inference."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    DATA = 3
    OTHER = 4
    PREFILL = 5
    DECODE = 6


class Rule(IntEnum):
    """The rule that found a label, the most reliable first; `text` is for people."""

    text: str

    def __new__(cls, code: int, text: str = "") -> Self:
        rule = int.__new__(cls, code)
        rule._value_, rule.text = code, text
        return rule

    NONE = 0, "unlabelled"
    """No label; an activity with a rule and without a layer is known to lie outside the layers."""
    ANNOTATION = 1, "annotation"
    FSDP = 2, "FSDP range"
    MODULE = 3, "nn.Module frame"
    AUTOGRAD = 4, "autograd link to the forward operator"
    SHAPE = 5, "shape and order of the matrix products"
    HOST_OPERATOR = 6, "framework operator"
    KERNEL_NAME = 7, "kernel name"
    COLLECTIVE = 8, "collective arguments"
    NEIGHBOUR = 9, "neighbours on the stream"
    WINDOW = 10, "window between annotations"
    BURST = 11, "end of the optimizer step"
    STEP_ORDER = 12, "order within the step"
    CONTEXT = 13, "the same neighbouring kernels elsewhere"
    PARTNER = 14, "the same collective on other GPUs"
    REPETITION = 15, "repeats of a sequence of kernels (inferred)"


PHASES: Final = tuple(phase.name.lower() for phase in Phase)
MODEL_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.PREFILL, Phase.DECODE)
"""The phases in which the model's layers run."""
INFERENCE_PHASES: Final = (Phase.PREFILL, Phase.DECODE)

_MADE: Final = ("class", "shape", "sequence", "batch", "module")
SPLITS: Final = (*_MADE, "stream", "kind")
"""The columns that split, the most useful first; also `iteration%N` of every N iterations."""
SPLIT_PATTERN: Final = rf"{'|'.join(SPLITS)}|iteration%[1-9]\d{{0,5}}"
"""Any of them, as a regular expression."""
_CYCLE: Final = late(r"iteration%([1-9]\d{0,5})")
_SPLIT: Final = late(SPLIT_PATTERN)

BETWEEN_MODULES: Final = " › "
"""Between the classes of the modules around a launch."""
SplitCodes = tuple[AnyArray, Sequence[str]]
"""The code of each activity, -1 where it has none, and the text of each code."""
_SPLIT_CODES: Final[dict[str, Callable[[KernelTable], SplitCodes]]] = {}


def add_split(name: str) -> Callable[[Callable[[KernelTable], SplitCodes]], None]:
    return lambda codes: _SPLIT_CODES.__setitem__(name, codes)


def is_split(level: str) -> bool:
    return _SPLIT.fullmatch(level) is not None


def quoted_cycles(text: str) -> str:
    """An address whose `iteration%12` is no escape of a character."""
    return re.sub(r"\biteration%(?!25\d)(?=\d)", "iteration%25", text)


def _is_made(level: str) -> bool:
    """Whether a split is no column of a table: its codes are made where it is asked for."""
    return level in _MADE or "%" in level


class KernelTable(Struct, frozen=True, eq=False, dict=True):
    """One row per activity; every column is a numpy array of the same length.

    Labels are codes: numbers stand for themselves, phases are `Phase`, operations and kernel
    names point into `operations` and `names`; `NO_LABEL` is a missing one. Times are ns on the
    run's clock; `launch_ns` is `NO_TIME` where the trace has no launch record. The columns of
    `ADDITIVE` are times (see `accounting`) that add up over any set of rows.
    """

    names: Sequence[str]
    operations: Sequence[str]

    gpu: Int32
    iteration: Int32
    phase: Int8
    layer: Int32
    operation: Int32
    kernel: Int32

    kind: Int8
    category: Int8
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    launch_ns: Int64
    bytes: Int64
    """Bytes that a copy or collective moved, or -1."""
    group: Int32
    """Code of the process group of a collective in `names`, or -1."""

    iteration_rule: Int8
    phase_rule: Int8
    layer_rule: Int8
    operation_rule: Int8

    compute_ns: Int64
    overlap_ns: Int64
    exposed_comm_ns: Int64
    exposed_copy_ns: Int64
    idle_ns: Int64
    idle_host_ns: Int64
    idle_launch_ns: Int64
    idle_unknown_ns: Int64
    idle_after_ns: Int64
    hidden_ns: Int64
    launch_overhead_ns: Int64
    prep_overhead_ns: Int64
    call_overhead_ns: Int64

    measured: Mapping[str, Float64] = field(default_factory=dict)
    """Columns from counters, telemetry and shapes, NaN where a source has no value."""
    coordinates: Mapping[str, Int32] = field(default_factory=dict)
    """Parallel dimension → the coordinate of each GPU by its number, `NO_LABEL` if unknown."""
    shapes: Sequence[CallShape] = ()
    """The shapes of operator calls that the measured column `CALL_SHAPE` points into."""

    def __len__(self) -> int:
        return len(self.gpu)

    def column(self, name: str) -> Int64:
        """One column of labels, times or counts by its name; coordinates follow from the GPU."""
        if name in self.coordinates:
            return self.coordinates[name][self.gpu].astype(np.int64)
        if _is_made(name):
            return self._split(name)[0]
        values: Int64 = getattr(self, name)
        return values

    @cached_property
    def _splits(self) -> dict[str, SplitCodes]:
        return {}

    def _split(self, level: str) -> SplitCodes:
        if level not in self._splits:
            if cycle := _CYCLE.fullmatch(level):
                length = int(cycle[1])
                codes = np.where(self.iteration < 0, -1, self.iteration % length).astype(np.int64)
                self._splits[level] = codes, [str(code) for code in range(length)]
            else:
                self._splits[level] = _SPLIT_CODES[level](self)
        return self._splits[level]

    @cached_property
    def is_sampled(self) -> bool:
        """Whether rows are intervals between samples, and not activities."""
        return bool((self.category[:1] == Category.INTERVAL).any())

    @property
    def is_recomputed(self) -> Mask:
        """Which activities repeat the forward for the backward: activation recomputation."""
        marked = [name.endswith(RECOMPUTE_SUFFIX) for name in self.operations]
        return np.array([*marked, False], np.bool_)[self.operation]

    @cached_property
    def has_times(self) -> bool:
        """Whether any activity has a duration: untimed counters have only an order."""
        return bool(self.duration_ns[:1000].any() or self.duration_ns.any())

    def codes(self, gpus: int) -> dict[str, int]:
        """The columns of codes → how many codes there are; -1 is none."""
        kinds = {"phase": Phase, "kind": Kind, "category": Category, FLOPS_TYPE: ElementType}
        found = {name: len(kind) for name, kind in kinds.items()}
        found |= dict.fromkeys((f"{level}_rule" for level in LABELLED), len(Rule))
        found |= dict.fromkeys(("kernel", "group", MODULES), len(self.names))
        found |= {"operation": len(self.operations), CALL_SHAPE: len(self.shapes)}
        return found | {"gpu": gpus, "iteration": ANY_NUMBER, "layer": ANY_NUMBER}

    def with_measured(self, columns: Mapping[str, Float64]) -> KernelTable:
        return replace(self, measured={**self.measured, **columns})

    def without_measured(self, *names: str) -> KernelTable:
        return replace(self, measured={k: v for k, v in self.measured.items() if k not in names})

    def take(self, rows: Index | slice) -> KernelTable:
        """The table of the given rows, in their order; a slice is not copied."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        measured = {name: values[rows] for name, values in self.measured.items()}
        return replace(self, **columns, measured=measured)

    def code_of(self, level: str, text: str) -> int | None:
        """The code of a label's text at a level, or None where the table has no such label."""
        if text == NO_LABEL_TEXT:
            return NO_LABEL
        if text.lstrip("\\") == NO_LABEL_TEXT:
            text = text[1:]
        texts = self._texts(level)
        if texts is not None:
            try:
                return texts.index(text)
            except ValueError:
                return None
        # One spelling each: paths and labels are compared as texts.
        is_plain = text.isascii() and text.isdigit() and len(text) < 20
        return int(text) if is_plain and str(int(text)) == text else None

    def text_of(self, level: str, code: int) -> str:
        """The text of a label's code at a level, as a path spells it."""
        if code == NO_LABEL:
            return NO_LABEL_TEXT
        texts = self._texts(level)
        if texts is None:
            return str(code)
        return spelled(texts[code])

    def texts_of(self, level: str, codes: AnyArray) -> list[str]:
        texts = self._texts(level)
        return [
            NO_LABEL_TEXT if code == NO_LABEL
            else str(code) if texts is None
            else spelled(texts[code])
            for code in codes.tolist()
        ]  # fmt: skip

    def _texts(self, level: str) -> Sequence[str] | None:
        """The texts of a level's codes; None where they are numbers."""
        if _is_made(level):
            return self._split(level)[1]
        of = {"phase": PHASES, "kind": _KINDS, "operation": self.operations, "kernel": self.names}
        return of.get(level)


def spelled(text: str) -> str:
    """A label as a path spells it: one that reads like a missing one begins with a backslash."""
    return f"\\{text}" if text.lstrip("\\") == NO_LABEL_TEXT else text


Selection = slice | Index
"""Rows of a table: a contiguous slice, which is never copied, or any rows."""


def activity_rows(table: KernelTable, rows: Index) -> Index:
    """Some rows without those of time outside steps, which stand for no activity."""
    is_activity = np.not_equal(table.category[rows], Category.OUTSIDE)
    return np.asarray(rows[is_activity], np.intp)


def activity_count(table: KernelTable) -> int:
    """The number of its rows but for those of time outside steps."""
    return int(np.count_nonzero(table.category != Category.OUTSIDE))


LONGEST_LATENCY_NS: Final = 1_000_000
"""A launch reaches an idle GPU within microseconds; a longer time is a wait for something else."""


def _latency(idle_launch_ns: AnyArray, start_ns: AnyArray, launch_ns: AnyArray) -> AnyArray:
    """Idle time after a launch call at which nothing ran: it is all the time since that call."""
    is_all = (idle_launch_ns == start_ns - launch_ns) & (idle_launch_ns <= LONGEST_LATENCY_NS)
    return np.where(is_all, idle_launch_ns, 0)


DERIVED: Final[Mapping[str, Callable[[Callable[[str], AnyArray]], AnyArray]]] = {
    "end_ns": lambda column: column("start_ns") + column("duration_ns"),
    "kernels": lambda column: np.equal(column("category"), Category.KERNEL),
    "outside": lambda column: np.equal(column("category"), Category.OUTSIDE),
    "collectives": lambda column: np.equal(column("kind"), Kind.COMM),
    "copies": lambda column: np.equal(column("kind"), Kind.COPY),
    "unlinked": lambda column: np.equal(column("launch_ns"), NO_TIME),
    "known_bytes": lambda column: np.maximum(column("bytes"), 0),
    "idle_latency_ns": lambda column: _latency(
        column("idle_launch_ns"), column("start_ns"), column("launch_ns")
    ),
}
"""Columns derived from others, activity by activity."""


def selected_count(rows: Selection) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def values_of(table: KernelTable, column: str, rows: Selection) -> AnyArray:
    """A column of the table, derived ones too, at some rows."""
    if column in table.coordinates:
        return table.coordinates[column][table.gpu[rows]]
    derived = DERIVED.get(column)
    if derived is not None:
        return derived(lambda name: table.column(name)[rows])
    return table.column(column)[rows]


COLUMNS: Final = tuple(
    name
    for name in KernelTable.__struct_fields__
    if name not in ("names", "operations", "measured", "coordinates", "shapes")
)
STATE_TITLES: Final = {
    "compute_ns": "compute",
    "overlap_ns": "compute during communication",
    "exposed_comm_ns": "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
}
STATES: Final = tuple(STATE_TITLES)
"""The columns that partition a GPU's span: they add up to `elapsed_ns`."""
ADDITIVE: Final = (
    *STATES,
    "idle_host_ns",
    "idle_launch_ns",
    "idle_unknown_ns",
    "idle_after_ns",
    "hidden_ns",
    "launch_overhead_ns",
    "prep_overhead_ns",
    "call_overhead_ns",
)


def empty_table() -> KernelTable:
    types = column_types(KernelTable)
    columns: dict[str, Any] = {name: np.empty(0, types[name]) for name in COLUMNS}
    return KernelTable((), (), **columns)


def _whole(parts: Sequence[AnyArray]) -> AnyArray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class MergedTexts(Struct, frozen=True):
    """The texts of several tables: each once, with its code."""

    names: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    shapes: dict[CallShape, int] = field(default_factory=dict)

    def recoded(self, table: KernelTable) -> KernelTable:
        """A table with the codes of these texts, to which those are added that it has first."""
        names, operations, shapes = self.codes_of(table.names, table.operations, table.shapes)
        own = table.measured
        for name, codes in ((CALL_SHAPE, shapes), (MODULES, names)):
            if name in own:
                own = {**own, name: recoded(own[name], codes)}
        return replace(
            table,
            kernel=_recode(table.kernel, names),
            group=_recode(table.group, names),
            operation=_recode(table.operation, operations),
            measured=own,
        )

    def codes_of(
        self, names: Sequence[str], operations: Sequence[str], shapes: Sequence[CallShape]
    ) -> tuple[Int32, Int32, Int32]:
        return (
            _merge(names, self.names),
            _merge(operations, self.operations),
            _merge(shapes, self.shapes),
        )

    def of(self, table: KernelTable) -> KernelTable:
        """A table that has all these texts."""
        texts = (tuple(each) for each in (self.names, self.operations, self.shapes))
        return replace(table, **dict(zip(("names", "operations", "shapes"), texts, strict=True)))


def concatenate(tables: Sequence[KernelTable]) -> KernelTable:
    """One table of several, with their dictionaries of texts merged."""
    texts = MergedTexts()
    parts = [texts.recoded(table) for table in tables]
    columns: dict[str, Any] = {
        name: _whole([getattr(part, name) for part in parts]) for name in COLUMNS
    }
    nothing = [np.full(len(part), np.nan) for part in parts]
    measured = {
        name: _whole([part.measured.get(name, no) for part, no in zip(parts, nothing, strict=True)])
        for name in dict.fromkeys(name for part in parts for name in part.measured)
    }
    return texts.of(KernelTable((), (), measured=measured, **columns))


def append(table: KernelTable, more: KernelTable) -> None:
    """Add a few rows at the end of a table that isn't shared yet, one column after the other."""
    names, operations = [*table.names], [*table.operations]
    name_codes = _codes_in(names, more.names)
    columns = {name: getattr(more, name) for name in COLUMNS} | {
        "kernel": _recode(more.kernel, name_codes),
        "group": _recode(more.group, name_codes),
        "operation": _recode(more.operation, _codes_in(operations, more.operations)),
    }
    for name, values in columns.items():
        force_setattr(table, name, np.concatenate([getattr(table, name), values]))
    measured, unknown = dict(table.measured), np.full(len(more), np.nan)
    force_setattr(table, "measured", measured)
    for name in measured:
        measured[name] = np.concatenate([measured[name], unknown])
    force_setattr(table, "names", tuple(names))
    force_setattr(table, "operations", tuple(operations))


def _codes_in(texts: list[str], more: Sequence[str]) -> Int32:
    """The places of some texts in a list, at whose end those are put that it lacks."""
    texts += [text for text in more if text not in texts]
    return np.array([texts.index(text) for text in more], np.int32)


def whole_codes(values: Float64) -> Int32:
    """The codes in a measured column, `NO_LABEL` where it has none."""
    return np.nan_to_num(values, nan=NO_LABEL).astype(np.int32)


def recoded(values: Float64, new_codes: Int32) -> Float64:
    codes = _recode(whole_codes(values), new_codes)
    return np.where(codes == NO_LABEL, np.nan, codes)


def _merge(texts: Sequence[_Entry], into: dict[_Entry, int]) -> Int32:
    return np.array([into.setdefault(text, len(into)) for text in texts], np.int32)


def _recode(codes: Int32, new_codes: Int32) -> Int32:
    if not len(new_codes):
        return codes
    return np.where(codes == NO_LABEL, np.int32(NO_LABEL), new_codes[codes])
