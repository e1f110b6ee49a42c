"""Memory of a long job: allocations that failed, growth over steps, fragmentation, headroom."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import nan
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.training import FEWEST, Training
from chopper_core.model.column_names import PEAK_BYTES
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run
from chopper_core.model.side_table import MemoryEvents
from chopper_core.model.table import NO_LABEL, NO_TIME
from chopper_core.model.training import UNKNOWN, FailedAllocations
from chopper_core.model.units import Unit, scaled_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import distinct, median_of, ranked, sums_of

size_text: Final = partial(scaled_text, unit=Unit.BYTES)
_OUTSIDE: Final = 0.1
"""Of the GPU's memory: what belongs to no tensor is named from there on."""


class MemoryPeak(Struct, frozen=True, eq=False):
    """The moment at which the most is allocated in a scope."""

    event: int = -1
    """The event that reaches it; -1 where it is unknown."""
    alive: Index = np.empty(0, np.intp)
    """The allocations that are not released by then."""
    earlier_bytes: int = 0
    """Bytes allocated before the first event of its GPU."""


def memory_peak(run: Run, view: View) -> MemoryPeak:
    """When the most is allocated up to a launch of a scope's activities; without any, ever."""
    memory, table = run.side(MemoryEvents), run.table
    if not len(table):
        return _peak_at(memory, int(memory.allocated.argmax()))
    node = run.tree_of(view).node(view.path)
    peaks: Float64 = table.measured[PEAK_BYTES][node.rows]
    if not np.isfinite(peaks).any():
        return MemoryPeak()
    row, most = int(node.rows[np.nanargmax(peaks)]), int(np.nanmax(peaks))
    own = memory.of_gpu(int(table.gpu[row]))
    reached = np.flatnonzero(memory.allocated[own] == most)
    launched = int(table.launch_ns[row])
    until = int(table.start_ns[row]) if launched == NO_TIME else launched
    before = reached[memory.time_ns[own][reached] <= until]
    return _peak_at(memory, own.start + int(before[-1] if len(before) else reached[0]))


def _peak_at(memory: MemoryEvents, event: int) -> MemoryPeak:
    alive = memory.alive(event)
    earlier = int(memory.allocated[event]) - int(memory.bytes[alive].sum())
    return MemoryPeak(event, alive, earlier)


def largest_holder(run: Run, peak: MemoryPeak, level: str) -> tuple[str, float]:
    """The value of a level that holds most of a peak, and its share; '' where nothing labels it."""
    memory = run.side(MemoryEvents)
    codes, place = ranked(getattr(memory, level)[peak.alive].astype(np.int64))
    sums = sums_of(memory.bytes[peak.alive], place, len(codes))
    sums = np.where(codes >= 0, sums, 0)
    if not sums.any():
        return "", 0.0
    code, most = int(codes[sums.argmax()]), int(memory.allocated[peak.event])
    if level in ("operation", "operator"):
        return memory.names[code], float(sums.max()) / most
    return run.table.text_of(level, code), float(sums.max()) / most


class OutOfMemoryCase(Struct, frozen=True):
    """An allocation that failed, and what the memory was used for; NaN where it isn't known."""

    rank: int
    attempt: int
    step: int
    device: int
    asked_bytes: float
    capacity_bytes: float
    free_bytes: float
    allocated_bytes: float
    unallocated_bytes: float
    largest_bytes: float

    @property
    def outside_bytes(self) -> float:
        """What is in use and no tensor's: the communication library, other processes."""
        rest = self.capacity_bytes - self.free_bytes
        return max(rest - self.allocated_bytes - self.unallocated_bytes, 0.0)

    @property
    def is_fragmented(self) -> bool:
        """Whether the allocator has more than it was asked for, in pieces that are too small."""
        return self.unallocated_bytes >= self.asked_bytes

    def ends(self, training: Training) -> bool:
        """Whether it is the end of the job: no step follows it."""
        return self.attempt == training.attempts[-1] and self.step >= int(training.step[-1])

    @property
    def whose(self) -> str:
        if self.rank != UNKNOWN:
            return f"rank {self.rank}"
        return f"GPU {self.device} of a rank" if self.device != UNKNOWN else "a rank"

    @property
    def sentence(self) -> str:
        when = f" after step {self.step:,}" if self.step != UNKNOWN else ""
        free = f", {size_text(self.free_bytes)} free" if self.free_bytes >= 0 else ""
        return f"out of memory on {self.whose}{when}: {size_text(self.asked_bytes)} wanted{free}"

    @property
    def parts(self) -> str:
        """What the memory was used for, in a line."""
        named = (
            (self.allocated_bytes, "allocated"),
            (self.unallocated_bytes, "reserved and free in pieces"),
            (self.outside_bytes, "outside PyTorch's allocator"),
            (self.free_bytes, "free"),
        )
        whole = f" of {size_text(self.capacity_bytes)}" if self.capacity_bytes > 0 else ""
        known = [f"{size_text(size)} {word}" for size, word in named if size >= 0]
        return facts(*known) + whole if known else "the message doesn't say what used the memory"

    @property
    def remedy(self) -> str:
        """What helps, by what used the memory."""
        if self.is_fragmented:
            piece = self.largest_bytes
            largest = f", the largest of {size_text(piece)}" if piece >= 0 else ""
            return (
                f"The allocator had enough in pieces{largest}: it is fragmented. Set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and avoid shapes that vary."
            )
        if self.outside_bytes >= max(_OUTSIDE * self.capacity_bytes, self.asked_bytes):
            return (
                "Much of the memory belongs to no tensor: look for other processes on the GPU, and "
                "for buffers of the communication library."
            )
        if self.allocated_bytes >= 0:
            return (
                "Tensors fill the memory: use a smaller microbatch, recompute more activations, or "
                "shard more of the model."
            )
        return ""


def failed_allocations(run: Run) -> list[OutOfMemoryCase]:
    """The allocations that failed, by attempt and step."""
    rows = run.side(FailedAllocations)
    columns = {}
    for name in OutOfMemoryCase.__struct_fields__:
        values = getattr(rows, name)
        if name.endswith("_bytes"):
            values = np.where(values == UNKNOWN, nan, values.astype(np.float64))
        columns[name] = values.tolist()
    found = [OutOfMemoryCase(*each) for each in zip(*columns.values(), strict=True)]
    return sorted(
        found, key=lambda each: (each.attempt, each.step == UNKNOWN, each.step, each.rank)
    )


class MemoryGrowth(Struct, frozen=True):
    """Memory that grows from step to step."""

    first_bytes: float
    """The most that is allocated in the first step, or usual in the first tenth of a run."""
    last_bytes: float
    each_bytes: float
    """Per step."""
    first: int
    """Steps."""
    last: int
    gpu: int = UNKNOWN
    operator: str = ""
    """What most of it is allocated by."""


_TENTHS: Final = 10
_RISES: Final = 7
"""Of nine: most tenths of a run need more than the one before."""


def growth_by_log(training: Training) -> MemoryGrowth | None:
    """How the memory grows over the last start of the job; None where it doesn't."""
    if "memory_bytes" not in training.figures:
        return None
    own = training.attempt == training.attempt.max()
    sizes = training.figures["memory_bytes"]
    places = np.flatnonzero(own & np.isfinite(sizes) & ~training.is_first)
    tenth = len(places) // _TENTHS
    if tenth < FEWEST:
        return None
    parts = [places[at * tenth : (at + 1) * tenth] for at in range(_TENTHS)]
    medians = [median_of(sizes[part]) for part in parts]
    steps = [median_of(training.step[part]) for part in parts]
    rises = sum(later > earlier for earlier, later in pairwise(medians))
    grown, over = medians[-1] - medians[0], steps[-1] - steps[0]
    if rises < _RISES or grown <= 0 or over <= 0:
        return None
    return MemoryGrowth(medians[0], medians[-1], grown / over, round(steps[0]), round(steps[-1]))


_FEWEST_STEPS: Final = 3
_STEADY: Final = 0.5
"""Of the median growth: what the step that grows least has."""


def growth_by_events(run: Run) -> list[MemoryGrowth]:
    """The GPUs that allocate more in each complete step than they release there."""
    memory = run.side(MemoryEvents)
    if not len(memory):
        return []
    left_out = run.left_out(View(run.name))
    found = []
    for gpu in distinct(memory.gpu).tolist():
        own = memory.of_gpu(gpu)
        labels, bytes_of = memory.iteration[own], memory.bytes[own]
        inside = np.flatnonzero((labels != NO_LABEL) & ~np.isin(labels, left_out))
        steps = distinct(labels[inside]).astype(np.int64)
        if len(steps) < _FEWEST_STEPS:
            continue
        grown = sums_of(bytes_of[inside], np.searchsorted(steps, labels[inside]), len(steps))
        each = median_of(grown.astype(np.float64))
        # What is released behind the last launch, as gradients before a next step, is the last's.
        if each <= 0 or grown[:-1].min() < _STEADY * each:
            continue
        peaks = (
            memory.allocated[own][inside[labels[inside] == step]].max()
            for step in steps[[0, -1]].tolist()
        )
        first, last = map(float, peaks)
        operator = _growing(memory, own, inside)
        span = int(steps[0]), int(steps[-1])
        found.append(MemoryGrowth(first, last, each, *span, gpu, operator))
    return found


def _growing(memory: MemoryEvents, own: slice, inside: Index) -> str:
    """The operator that allocates most of what isn't released; '' outside operators."""
    codes = memory.operator[own][inside].astype(np.int64)
    kept = np.where(memory.partner[own][inside] < 0, memory.bytes[own][inside], 0)
    sums = sums_of(np.maximum(kept, 0), codes + 1, len(memory.names) + 1)
    most = int(sums.argmax()) - 1
    return memory.names[most] if most >= 0 else ""


class HeldMemory(Struct, frozen=True):
    """What a GPU's allocator holds at most, and what is allocated of it then."""

    gpu: int
    """UNKNOWN: of any, by the log."""
    reserved_bytes: float
    allocated_bytes: float
    capacity_bytes: float
    """NaN where it isn't known."""

    @property
    def fragmented(self) -> float:
        """The share of what is held that isn't allocated."""
        return 1.0 - self.allocated_bytes / self.reserved_bytes

    @property
    def free(self) -> float:
        """The share of the GPU's memory that is neither held nor allocated; NaN if unknown."""
        return 1.0 - self.reserved_bytes / self.capacity_bytes


def held_by_events(run: Run) -> list[HeldMemory]:
    """Of each GPU with events of memory, at the moment when most is allocated."""
    memory = run.side(MemoryEvents)
    capacity = {gpu.index: gpu.memory_bytes for gpu in run.gpus}
    found = []
    for gpu in distinct(memory.gpu).tolist():
        own = memory.of_gpu(gpu)
        at = int(memory.allocated[own].argmax())
        reserved, allocated = int(memory.reserved[own][at]), int(memory.allocated[own][at])
        if reserved >= allocated > 0:
            found.append(HeldMemory(gpu, reserved, allocated, capacity.get(gpu) or nan))
    return found


def held_by_log(training: Training) -> HeldMemory | None:
    """The most of any step and rank; None where the log has no memory."""
    every = np.ones(len(training), np.bool_)
    used = training.mean("memory_bytes", every)
    reserved = training.mean("reserved_bytes", every)
    held = reserved if reserved > 0 else used
    if not held > 0:
        return None
    return HeldMemory(UNKNOWN, held, used if used > 0 else nan, training.capacity_bytes)
