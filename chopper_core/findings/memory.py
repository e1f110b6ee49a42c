"""The memory of a long job: allocations that failed, growth, fragmentation, little that is free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chopper_core.analyses.memory import (
    HeldMemory,
    MemoryGrowth,
    failed_allocations,
    growth_by_events,
    growth_by_log,
    held_by_events,
    held_by_log,
    largest_holder,
    memory_peak,
    size_text,
)
from chopper_core.analyses.training import training_of
from chopper_core.findings.rule import Cost, Finding, FindingsContext, Group, rule, threshold
from chopper_core.findings.titles import in_short, one_line
from chopper_core.model.phrases import how_often, listed, percent
from chopper_core.model.side_table import MemoryEvents
from chopper_core.model.training import UNKNOWN
from chopper_core.model.view import View

_EVENTS: Final = "events of memory, or a memory snapshot"
_MEMORY: Final = f"a trainer's log with memory, {_EVENTS}"
_COST: Final = "unknown: memory costs no time until it is full"
GROWS: Final = threshold("""memory grows | 2 | % over the run
    the peak of a steady job stays within less""")
GROWS_EACH: Final = threshold("""memory grows per step | 0.01 | % of the peak
    in each complete step; a job of 10,000 steps needs twice the memory then""")
PIECES: Final = threshold("""reserved memory that is free | 15 | % of what is reserved
    allocators round sizes and keep some blocks; more is fragmentation""")
LITTLE: Final = threshold("""memory that is left | 5 | % of the GPU's
    an allocator with less frees and asks again, or fails with the next larger batch""")
_MOST_FAILED: Final = 3


def _finding(
    context: FindingsContext,
    title: str,
    detail: str,
    *,
    of_log: bool = False,
    is_repeated: bool = True,
) -> Finding:
    """A finding about events of memory, or, without any, about a log."""
    at = View(context.view.run, name="memory")
    if of_log or not len(context.run.side(MemoryEvents)):
        at = View(context.view.run, name="training", sort="-logged_memory_bytes")
    return context.finding(one_line(title), detail, at, Cost.UNKNOWN, None, is_repeated=is_repeated)


def _held(context: FindingsContext) -> list[HeldMemory]:
    """What the allocators hold at their peaks: of each GPU by events, else by the log."""
    if held := held_by_events(context.run):
        return held
    training = training_of(context.run)
    of_log = None if training is None else held_by_log(training)
    return [] if of_log is None else [of_log]


def _holders(context: FindingsContext) -> str:
    """What holds the peak, by what labels the allocations; '' without events."""
    run = context.run
    if not len(run.side(MemoryEvents)):
        return ""
    peak = memory_peak(run, View(run.name))
    if peak.event < 0:
        return ""
    named = []
    for level, word in (("phase", ""), ("layer", "layer "), ("operator", "")):
        label, share = largest_holder(run, peak, level)
        if label:
            named.append(f"{word}{label} {percent(share)}")
    return f" At the peak the most is held by {', '.join(named)}." if named else ""


@rule(
    "out-of-memory",
    cost=_COST,
    needs="a job's output with the message of the failure, or a memory snapshot",
    of_logs=True,
    of_memory=True,
    stops_job=True,
)
def out_of_memory(context: FindingsContext) -> Iterator[Finding]:
    """Allocations that failed: what the memory was used for, and what helps."""
    found = failed_allocations(context.run)
    if not found:
        return
    first = found[0]
    others = f" (and {how_often(len(found) - 1)} more)" if len(found) > 1 else ""
    ranks = sorted({each.rank for each in found if each.rank != UNKNOWN})
    more = f" Ranks: {listed(map(str, ranks), 8)}." if len(ranks) > 1 else ""
    yield _finding(
        context,
        f"{first.sentence[0].upper()}{first.sentence[1:]}{others}",
        f"{first.parts}. {first.remedy}{_holders(context)}{more}",
        is_repeated=len(found) > 1,
    )


@rule(
    "memory-growth",
    cost=_COST,
    needs=_MEMORY,
    thresholds=(GROWS, GROWS_EACH),
    of_logs=True,
    of_memory=True,
)
def memory_growth(context: FindingsContext) -> Iterator[Finding]:
    """Memory that grows from step to step, and when it is full."""
    training = training_of(context.run)
    grown = None if training is None else growth_by_log(training)
    if training is not None and grown is not None:
        if grown.last_bytes - grown.first_bytes >= GROWS.share * grown.first_bytes:
            yield _growth(context, [grown], training.capacity_bytes)
        return
    capacity = {gpu.index: float(gpu.memory_bytes) for gpu in context.run.gpus}
    found = [
        each
        for each in growth_by_events(context.run)
        if each.each_bytes >= GROWS_EACH.share * max(each.first_bytes, 1.0)
    ]
    if found:
        found.sort(key=lambda each: -each.each_bytes)
        yield _growth(context, found, capacity.get(found[0].gpu, 0.0))


def _growth(context: FindingsContext, found: Sequence[MemoryGrowth], capacity: float) -> Finding:
    """Of the GPUs that grow, the one that grows most first."""
    grown = found[0]
    gpus = [each.gpu for each in found if each.gpu != UNKNOWN]
    whose, source = (f" on {in_short('GPU', gpus)}", "the trace") if gpus else ("", "the log")
    of_gpu = f" of GPU {gpus[0]}" if gpus else ""
    full = ""
    if capacity > grown.last_bytes:
        at = grown.last + (capacity - grown.last_bytes) / grown.each_bytes
        full = f". At this rate the GPU's {size_text(capacity)} is full at step {round(at):,}"
    operator = f". Most of it is allocated by {grown.operator}" if grown.operator else ""
    return _finding(
        context,
        one_line(
            f"memory grows by {size_text(grown.each_bytes)} per step{whose}",
            f", to {size_text(grown.last_bytes)}",
        ),
        f"Memory{of_gpu} grows from {size_text(grown.first_bytes)} at step {grown.first:,} to "
        f"{size_text(grown.last_bytes)} at step {grown.last:,}, by {source}{full}{operator}",
        of_log=not gpus,
    )


@rule(
    "fragmented-memory",
    cost=_COST,
    group=Group.BETTER,
    needs=_MEMORY,
    thresholds=(PIECES,),
    of_logs=True,
    of_memory=True,
)
def fragmented(context: FindingsContext) -> Iterator[Finding]:
    """Memory that the framework's allocator holds and hasn't handed out when most is allocated."""
    large = [each for each in _held(context) if each.fragmented >= PIECES.share]
    if not large:
        return
    most = max(large, key=lambda each: each.fragmented)
    whose = f" of GPU {most.gpu}" if most.gpu != UNKNOWN else ""
    others = f", and on {len(large) - 1} more" if len(large) > 1 else ""
    unused = most.reserved_bytes - most.allocated_bytes
    yield _finding(
        context,
        f"{size_text(unused)} of the reserved memory{whose} ({percent(most.fragmented)}) is "
        f"unused at the peak{others}",
        f"{size_text(most.reserved_bytes)} reserved, {size_text(most.allocated_bytes)} allocated. "
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and avoid shapes that vary.",
        is_repeated=len(large) > 1,
    )


@rule(
    "little-memory",
    cost=_COST,
    group=Group.BETTER,
    needs=f"{_MEMORY}, with the GPU's memory",
    thresholds=(LITTLE,),
    of_logs=True,
    of_memory=True,
)
def little_memory(context: FindingsContext) -> Iterator[Finding]:
    """Little of the GPU's memory that is left at the peak."""
    full = [each for each in _held(context) if each.free < LITTLE.share]
    if not full:
        return
    least = min(full, key=lambda each: each.free)
    whose = f" on GPU {least.gpu}" if least.gpu != UNKNOWN else ""
    left = max(least.capacity_bytes - least.reserved_bytes, 0.0)
    yield _finding(
        context,
        f"{size_text(left)} of memory is left{whose}: {percent(max(least.free, 0.0))} of "
        f"{size_text(least.capacity_bytes)}",
        f"{size_text(least.reserved_bytes)} is reserved at the peak, before what lies outside "
        f"PyTorch's allocator.{_holders(context)}",
        is_repeated=len(full) > 1,
    )
