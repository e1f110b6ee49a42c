"""Causes of idle time: what the hosts did while their GPUs had nothing to run, by name.

Each piece of a gap is charged to where the launching thread was. A call that waits for the GPU, or
in which the runtime allocates, lets the queue run dry: where a gap begins within one, ordinary work
of the host shortly after it is charged to the call. Pieces are whole nanoseconds and add up to the
idle time of any rows.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.host_time import HostStack, HostState
from chopper_core.model.run import Run
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.grouping import run_starts, stable_order

_KNOWN: Final = (
    ("frame", re.compile(r"DataLoader|dataloader|data_?load|next_batch", re.I), "data loading"),
    ("frame", re.compile(r"save_?checkpoint|checkpoint\w*save|serialization\.py.*\bsave\b"
                         r"|\btorch\.save\b|^checkpoint", re.I), "saving a checkpoint"),
    ("frame", re.compile(r"^gc$|\bgc\.|garbage|^<built-in \w+ collect>|Python GC", re.I),
     "garbage collection"),
    ("frame", re.compile(r"\blogg(?:ing|er)\b|wandb|tensorboard|SummaryWriter", re.I), "logging"),
    ("call", re.compile(r"Free|Malloc|MemPool|MemAddress|MemMap|MemUnmap"), "memory allocation"),
    ("operator", re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$"),
     "reading a value back"),
    ("frame", re.compile(r"^Optimizer\.zero_grad"), "zeroing gradients"),
    ("frame", re.compile(r"^Optimizer\.step|[Oo]ptim\w*/\w+\.py\(\d+\): step"), "the optimizer"),
)  # fmt: skip
"""Where a text is looked for (`frame`: annotations and Python frames), and what it means."""
_WAITS: Final = re.compile(r"Synchronize|Memcpy(?!.*Async)|EventQuery|Free|Malloc|StreamWait$")
"""Calls during which the queue can run dry."""
_AFTERMATH_NS: Final = 200_000
"""How long after such a call the launches that follow it are its doing."""
_DETAIL: Final = 48
UNSEEN: Final = "code that the trace doesn't show"


class HostCause(Struct, frozen=True):
    """What a host did."""

    what: str
    """In a few words, or a name of the trace."""
    name: str = ""
    """The name in the trace that shows it, '' where that is `what`."""

    @property
    def text(self) -> str:
        """Both, in a sentence."""
        if not self.name:
            return self.what
        name = self.name if len(self.name) <= _DETAIL else f"{self.name[: _DETAIL - 1]}…"
        return f"{self.what} ({name})"


class HostCharges(Struct, frozen=True, eq=False):
    """The idle and copy time of a run by cause; one value per piece of it."""

    causes: tuple[HostCause, ...]
    row: Index
    """The activity that it is charged to."""
    cause: Int64
    """The position of its cause in `causes`."""
    ns: Int64
    state: Int64
    """Of `HostState`."""

    def sums(
        self, place: Index, count: int, states: tuple[HostState, ...] = (HostState.LATE,)
    ) -> Float64:
        """The time in some states by a place of each piece (-1: none) and by cause."""
        chosen = (place >= 0) & np.isin(self.state, states)
        code = place[chosen] * len(self.causes) + self.cause[chosen]
        size = count * len(self.causes)
        sums = np.bincount(code, weights=self.ns[chosen], minlength=size)
        return sums.astype(np.float64).reshape(count, len(self.causes))

    def main(self, ns: Float64) -> HostCause | None:
        """The cause of at least half of a time by cause; None where several share it."""
        positive = np.maximum(ns, 0)
        if not len(ns) or not positive.any():
            return None
        largest = int(positive.argmax())
        return self.causes[largest] if 2 * positive[largest] >= positive.sum() else None


def cause_of(stack: HostStack) -> HostCause:
    """The cause that a host's place in its code names."""
    places = {
        "frame": (stack.annotation, stack.frame),
        "call": (stack.call,),
        "operator": (stack.operator,),
    }
    for place, pattern, what in _KNOWN:
        for text in places[place]:
            if text and pattern.search(text):
                return HostCause(what, text.replace("_local_scalar_dense", "item"))
    waits = stack.call if _WAITS.search(stack.call) else ""
    name = waits or stack.operator or stack.annotation or stack.frame or stack.call
    return HostCause(name or UNSEEN)


def _is_known(stack: HostStack) -> bool:
    """Whether a stack shows more than the host's ordinary work."""
    return bool(cause_of(stack).name) or bool(_WAITS.search(stack.call))


def host_charges(run: Run) -> HostCharges:
    """The idle and copy time of a run by cause, worked out once."""
    return run.memo(("host causes",), lambda: _charged(run))


def _charged(run: Run) -> HostCharges:
    pieces = run.host_time
    row = pieces.owners(run.table, np.arange(len(run.table)))
    order = np.flatnonzero(row >= 0)
    order = order[stable_order(pieces.start_ns[order])]
    order = order[stable_order(row[order])]
    row, stack = row[order], pieces.stack[order]
    first = run_starts(row)
    waits = np.array([bool(_WAITS.search(each.call)) for each in pieces.stacks], np.bool_)
    if len(row):
        sizes = np.diff(np.append(first, len(row)))
        call = np.repeat(stack[first], sizes)
        ended = np.repeat((pieces.start_ns + pieces.duration_ns)[order[first]], sizes)
        known = np.array([_is_known(each) for each in pieces.stacks], np.bool_)
        soon = pieces.start_ns[order] < ended + _AFTERMATH_NS
        stack = np.where(waits[call] & soon & ~known[stack], call, stack)
    causes: dict[HostCause, int] = {}
    code = [causes.setdefault(cause_of(each), len(causes)) for each in pieces.stacks]
    return HostCharges(
        tuple(causes),
        row,
        np.array(code, np.int64)[stack],
        pieces.duration_ns[order],
        pieces.state[order].astype(np.int64),
    )
