"""Causes of idle time: the hosts' activity by name while their GPUs had nothing to run.

Each piece of a gap is charged to where the launching thread was (`HostPlace`): a runtime call, else
an operator, else an annotation, else a Python frame. Its cause is named after that, unless the
stack shows something more telling, such as data loading around a copy. A call that waits for the
GPU, or in which the runtime allocates, lets the queue run dry: where a gap begins within one,
ordinary work of the host shortly after it has the call as its cause. Pieces are whole nanoseconds
and add up to the idle time of any rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.run import Run
from chopper_core.model.side_table import HostStack, HostState, HostSteps, HostTime, axis_of
from chopper_core.model.table import ACTIVITY, NO_LABEL, Selection, values_of
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index, Int32, Int64, Mask, Rows
from chopper_core.util.escape import cut_text
from chopper_core.util.grouping import (
    beyond_others,
    distinct,
    first_equal,
    isin,
    run_sizes,
    run_starts,
    stable_order,
    sums_of,
)


class HostPlace(IntEnum):
    """The innermost place of a host that the trace shows, the first of these that there is."""

    CALL = 0
    OPERATOR = 1
    ANNOTATION = 2
    FRAME = 3
    NOTHING = 4


PLACE_NAMES: Final = ("runtime call", "operator", "annotation", "Python frame", "nothing traced")
ALLOCATOR: Final = "the memory allocator"
"""Asking a driver for memory, or giving it back."""
READ_BACK: Final = "reading a value back"
"""From its GPU, which the host waits for."""
_KNOWN: Final = (
    ("range", re.compile(r"DataLoader|dataloader|data_?load|next_batch", re.I), "data loading"),
    ("range", re.compile(r"save_?checkpoint|checkpoint\w*save|serialization\.py.*\bsave\b"
                         r"|\btorch\.save\b|^checkpoint", re.I), "saving a checkpoint"),
    ("range", re.compile(r"^gc$|\bgc\.|garbage|^<built-in \w+ collect>|Python GC", re.I),
     "garbage collection"),
    ("range", re.compile(r"\blogg(?:ing|er)\b|wandb|tensorboard|SummaryWriter", re.I), "logging"),
    ("range", re.compile(r"_dynamo/convert_frame|compile_fx|_compile_inner|\btorch\.compile\b"
                         r"|_inductor/\w+\.py.*compile"), "compiling"),
    ("call", re.compile(r"Free|Malloc|MemPool|MemAddress|MemMap|MemUnmap"), ALLOCATOR),
    ("operator", re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$"),
     READ_BACK),
    ("range", re.compile(r"^Optimizer\.zero_grad"), "zeroing gradients"),
    ("range", re.compile(r"^Optimizer\.step|[Oo]ptim\w*/\w+\.py\(\d+\): step"), "the optimizer"),
)  # fmt: skip
"""Where a text is looked for (`range`: annotations and Python frames), and what it means."""
LAUNCH_CALLS: Final = "launch calls"
"""All of them together: which one a kernel takes is no cause."""
WAITING: Final = (ALLOCATOR, READ_BACK, "synchronisation", "copy calls")
"""Causes in which a host waits for its GPU or its driver."""
NEEDLESS: Final = frozenset(
    (*WAITING, "data loading", "saving a checkpoint", "garbage collection", "logging", "compiling")
)
"""Causes that are no part of a step's own work."""
OTHER_CALLS: Final = "other runtime calls"
_SEVERAL: Final = frozenset((LAUNCH_CALLS, "copy calls", "events", OTHER_CALLS))
"""Causes that are plural, as the subject of a sentence."""
_CALLS: Final = (
    (re.compile(r"Synchronize"), "synchronisation"),
    (re.compile(r"Event|StreamWait"), "events"),
    (re.compile(r"Memcpy|Memset"), "copy calls"),
    (re.compile(r"Launch"), LAUNCH_CALLS),
)
"""Other kinds of runtime calls, the first that matches."""
_WAITS: Final = re.compile(r"Synchronize|Memcpy(?!.*Async)|EventQuery|Free|Malloc|StreamWait$")
"""Calls during which the queue can run dry."""
AFTERMATH_NS: Final = 200_000
"""How long after such a call the launches that follow it are its doing."""
_DETAIL: Final = 48
_ONE_PLACE: Final = 0.6
"""Of the time of a cause, from which on a place that has it is named."""
_FEW_LAYERS: Final = 2
"""With fewer a layer, and what is outside of all, is no place."""
UNSEEN: Final = "untraced code"
_WORDS: Final = frozenset(
    (UNSEEN, OTHER_CALLS, *(what for _, _, what in _KNOWN), *(what for _, what in _CALLS))
)


Steps = Sequence[int] | Int64
"""Numbers of GPUs or of steps."""


class HostCause(Struct, frozen=True):
    """A cause of idle time on the host."""

    what: str
    """In a few words, or a name of the trace."""
    name: str = ""
    """The name in the trace that shows it, '' where that is `what`."""

    @property
    def text(self) -> str:
        if not self.name:
            return self.what
        name = cut_text(self.name, _DETAIL)
        return f"{self.what} ({name})"

    @property
    def leaves(self) -> str:
        """The verb of a sentence whose subject it is."""
        return "leave" if self.what in _SEVERAL else "leaves"

    @property
    def is_of_trace(self) -> bool:
        """Whether `what` is a name of the trace, which keeps its case."""
        return self.what not in _WORDS


class HostCharges(Rows, frozen=True, eq=False):
    """The idle and copy time of a run by cause; one value per piece of it."""

    causes: tuple[HostCause, ...]
    row: Index
    """The activity that it is charged to."""
    cause: Int64
    """The position of its cause in `causes`."""
    place: Int64
    """Of `HostPlace`: where the host was, whatever the cause."""
    ns: Int64
    state: Int64
    """Of `HostState`."""
    piece: Index
    """The position in `HostTime`."""

    @property
    def by_cause(self) -> Int64:
        return sums_of(self.ns, self.cause, len(self.causes))

    def sums(
        self, place: Index, count: int, states: tuple[HostState, ...] = (HostState.LATE,)
    ) -> Float64:
        """The time in some states by a place of each piece (-1: none) and by cause."""
        chosen = (place >= 0) & isin(self.state, states)
        code = place[chosen] * len(self.causes) + self.cause[chosen]
        size = count * len(self.causes)
        sums = sums_of(self.ns[chosen], code, size)
        return sums.astype(np.float64).reshape(count, len(self.causes))

    def main(self, ns: Float64 | Int64) -> HostCause | None:
        """The cause of at least half of a time by cause, of several such as calls that free and
        allocate memory the largest; None where different ones share it."""
        positive = np.maximum(ns, 0)
        if not len(ns) or not positive.any():
            return None
        kinds: dict[str, int] = {}
        kind = np.array([kinds.setdefault(each.what, len(kinds)) for each in self.causes])
        sums = sums_of(positive, kind)[kind]
        largest = int(np.where(sums == sums.max(), positive, -1).argmax())
        return self.causes[largest] if sums[largest] >= positive.sum() / 2 else None

    def doing(self, ns: Float64 | Int64) -> str:
        """The same as the end of a phrase: ` in logging`."""
        cause = self.main(ns)
        return "" if cause is None else f" in {cause.text}"


def place_of(stack: HostStack) -> HostPlace:
    texts = (stack.call, stack.operator, stack.annotation, stack.frame)
    return next((HostPlace(at) for at, text in enumerate(texts) if text), HostPlace.NOTHING)


def cause_of(stack: HostStack) -> HostCause:
    if (known := _known_cause(stack)) is not None:
        return known
    if not stack.call:
        return HostCause(stack.operator or stack.annotation or stack.frame or UNSEEN)
    kind = next((what for pattern, what in _CALLS if pattern.search(stack.call)), OTHER_CALLS)
    return HostCause(kind, "" if kind == LAUNCH_CALLS else stack.call)


@lru_cache(maxsize=1 << 12)
def _known_cause(stack: HostStack) -> HostCause | None:
    texts = {
        "range": (stack.annotation, stack.frame),
        "call": (stack.call,),
        "operator": (stack.operator,),
    }
    for place, pattern, what in _KNOWN:
        for text in texts[place]:
            if text and pattern.search(text):
                return HostCause(what, text.replace("_local_scalar_dense", "item"))
    return None


def host_charges(run: Run) -> HostCharges:
    return run.memo(("host causes",), lambda: charges_of(run, slice(0, len(run.table))))


def charges_of(run: Run, rows: Selection) -> HostCharges:
    """The idle and copy time of some activities of a run by cause, in the order of row and time."""
    table, pieces = run.table, run.side(HostTime)
    row = pieces.owners(table, rows, run.side(HostSteps))
    order = np.flatnonzero(row >= 0)
    order = order[stable_order(pieces.start_ns[order])]
    order = order[stable_order(row[order])]
    begin = pieces.start_ns[order]
    end = begin + pieces.duration_ns[order]
    first = run_starts(row[order])
    waits = np.array([bool(_WAITS.search(each.call)) for each in pieces.stacks], np.bool_)
    dry = first[waits[pieces.stack[order[first]]]]
    part, start = _cut(
        pieces.gpu[order], begin, end, pieces.gpu[order[dry]], end[dry] + AFTERMATH_NS
    )
    length = np.append(start[1:], 0) - start
    last = np.append(part[1:] != part[:-1], True)[: len(part)]
    length[last] = (end[part] - start)[last]
    piece = order[part]
    row, stack = row[piece], pieces.stack[piece]
    place = np.array([place_of(each) for each in pieces.stacks], np.int64)[stack]
    if len(row):
        # The call that a gap begins in, and when it ends.
        opening = np.repeat(np.arange(len(first)), run_sizes(run_starts(row), len(row)))
        call, ended = pieces.stack[order[first]][opening], end[first][opening]
        known = waits | [_known_cause(each) is not None for each in pieces.stacks]
        soon = start < ended + AFTERMATH_NS
        stack = np.where(waits[call] & soon & ~known[stack], call, stack)
    causes: dict[HostCause, int] = {}
    code = [causes.setdefault(cause_of(each), len(causes)) for each in pieces.stacks]
    state = pieces.state[piece].astype(np.int64)
    return HostCharges(
        tuple(causes),
        row,
        np.array(code, np.int64)[stack],
        place,
        length,
        state,
        piece,
    )


def _cut(gpu: Int32, begin: Int64, end: Int64, at_gpu: Int32, at_ns: Int64) -> tuple[Index, Int64]:
    """Pieces of time cut at instants of their GPU: the piece of each part, and where it begins."""
    on_axis = axis_of(begin, end, at_ns)
    base, bounds = on_axis(gpu, 0), distinct(on_axis(at_gpu, at_ns))
    low = np.searchsorted(bounds, base + begin, "right")
    count = np.searchsorted(bounds, base + end, "left") - low
    part = np.repeat(np.arange(len(begin)), count + 1)
    head = np.cumsum(count + 1) - (count + 1)
    start = begin[part]
    cut = np.arange(len(part)) - head[part]
    later = np.flatnonzero(cut > 0)
    own = part[later]
    start[later] = bounds[low[own] + cut[later] - 1] - base[own]
    return part, start


def cause_beyond(
    run: Run,
    gpu: int,
    gpus: Sequence[int],
    iterations: Sequence[int],
    states: tuple[HostState, ...] = (HostState.LATE,),
) -> str:
    """Where a GPU's host spends most of the time beyond other GPUs' hosts: ` in logging`."""
    charges = host_charges(run)
    if not charges.causes:
        return ""
    place = first_equal(np.array(gpus, np.int64), run.table.gpu[charges.row])
    inside = isin(run.table.iteration[charges.row], iterations)
    sums = charges.sums(np.where(inside, place, -1), len(gpus), states)
    return charges.doing(beyond_others(sums)[list(gpus).index(gpu)])


def place_beyond(run: Run, gpu: int, gpus: Sequence[int], iterations: Steps) -> str:
    """Where in the step a GPU's host is late beyond other GPUs' hosts, if most of it is at one
    place: ` in layer 3`, ` at the end of the step`."""
    charges = host_charges(run)
    at_gpu = first_equal(np.array(gpus, np.int64), run.table.gpu[charges.row])
    own = (at_gpu >= 0) & isin(run.table.iteration[charges.row], iterations)
    own &= charges.state == HostState.LATE
    code = _places_in_step(run, charges.take(own))
    count = int(code.max(initial=0)) + 1
    sums = sums_of(charges.ns[own], at_gpu[own] * count + code, len(gpus) * count)
    beyond = beyond_others(sums.reshape(len(gpus), count).astype(np.float64))
    return _place_text(run, np.maximum(beyond[list(gpus).index(gpu)], 0.0))


def place_of_most(run: Run, charges: HostCharges) -> str:
    """The same for some charges: where most of their time is."""
    return _place_text(run, sums_of(charges.ns, _places_in_step(run, charges)).astype(np.float64))


def at_place_of_most(run: Run, charges: HostCharges) -> Mask:
    """Which charges are at the place that has most of their time; all where none does."""
    code = _places_in_step(run, charges)
    ns = sums_of(charges.ns, code)
    if not len(ns) or ns.max() < _ONE_PLACE * ns.sum():
        return np.ones(len(code), np.bool_)
    return np.asarray(code == ns.argmax())


def _places_in_step(run: Run, charges: HostCharges) -> Int64:
    """Where in the step each charge is: 0 at its end, after its last activity, 1 outside layers,
    else the layer and 2."""
    begins = run.side(HostTime).start_ns[charges.piece]
    is_after = begins >= values_of(run.table, "end_ns", charges.row)
    layer = run.table.layer[charges.row].astype(np.int64)
    return np.where(is_after, 0, np.maximum(layer, NO_LABEL) + 2)


def _place_text(run: Run, ns: Float64) -> str:
    most = int(ns.argmax()) if len(ns) else 1
    if most == 1 or ns[most] <= 0 or ns[most] < _ONE_PLACE * ns.sum():
        return ""
    if most == 0:
        return " at the end of the step" if (run.table.iteration != NO_LABEL).any() else ""
    has_others = len(distinct(run.table.layer)) > _FEW_LAYERS
    return f" in layer {most - 2}" if has_others else ""


def within_scope(run: Run, view: View, rows: Index) -> Mask:
    """Which activities have the labels of a view's path, whatever their step."""
    table, found = run.table, np.ones(len(rows), np.bool_)
    for level, label in view.scope:
        if level == "iteration":
            continue
        codes = values_of(table, level, rows) if level != ACTIVITY else rows
        wanted = [code for code in distinct(codes).tolist() if table.text_of(level, code) == label]
        found &= isin(codes, wanted)
    return found
