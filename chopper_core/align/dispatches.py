"""Counter runs without a PyTorch trace: dispatches as a run, and sampled counters as signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.rank import AlignedRank, align_rank, used_names
from chopper_core.model.column_names import COUNTER_DURATION, COUNTS_PER_US, part_of
from chopper_core.model.signals import IntegralCurve, Signal, between
from chopper_core.model.table import KernelTable, Rule
from chopper_core.model.units import Unit
from chopper_core.sources.dispatches import DispatchRun, SampledCounter
from chopper_core.sources.trace import Activities, ActivityCategory, LaunchShape, Trace, blank
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Float64, Index, Int32, Int64
from chopper_core.util.grouping import distinct, median_of

_ROUNDING_NS: Final = 2_000
"""Two tools give one execution's times within this: traces are written in µs."""
_DRIFT: Final = 1e-5
"""And two clocks of one host run apart by this share of the time at most."""
_NS_PER_US: Final = 1_000.0


class AlignedDispatches(Struct, frozen=True):
    """The aligned dispatches, their counters as measured columns."""

    aligned: AlignedRank
    agents: Sequence[int]
    """The agent behind each of the table's GPUs."""
    products: Sequence[str]
    """Name of the product of each of the table's GPUs."""
    without_times: int
    """Dispatches without times in any pass; they are excluded."""


def align_dispatches(run: DispatchRun) -> AlignedDispatches:
    """Label and account the dispatches by kernel names and roctx ranges.

    Streams are queues. The operation is the innermost roctx range, else the kernel's class. If no
    dispatch has times, they keep their order, 1 ns apart, with a duration of 0 ns.
    """
    if not (run.dispatches.start_ns >= 0).any():
        order = np.arange(len(run.dispatches), dtype=np.int64)
        run = replace(run, dispatches=replace(run.dispatches, start_ns=order, end_ns=order))
    dispatches = run.dispatches
    timed = np.flatnonzero((dispatches.start_ns >= 0) & (dispatches.end_ns >= dispatches.start_ns))
    aligned = align_rank(_trace(run, timed))
    order = _order_of(aligned, run, timed)
    columns = {name: values[order] for name, values in dispatches.counters.items()}
    if columns and aligned.table.has_times:
        lasted = (dispatches.end_ns - dispatches.start_ns)[order].astype(np.float64)
        columns[COUNTER_DURATION] = lasted
    table = _named_by_ranges(aligned.table.with_measured(columns), run, dispatches.region[order])
    products = [run.agents[agent].product or run.agents[agent].name for agent in aligned.devices]
    devices = tuple(run.agents[agent].node_id for agent in aligned.devices)
    return AlignedDispatches(
        replace(aligned, table=table, devices=devices),
        aligned.devices,
        products,
        len(dispatches) - len(timed),
    )


def _named_by_ranges(table: KernelTable, run: DispatchRun, region: Int32) -> KernelTable:
    """The table with the innermost roctx range (code in the run's names, or -1) as operation."""
    used = distinct(region[region >= 0])
    if not len(used):
        return table
    is_named = region >= 0
    code = len(table.operations) + np.searchsorted(used, region)
    renamed = replace(
        table,
        operations=[*table.operations, *(run.names[each] for each in used)],
        operation=np.where(is_named, code, table.operation).astype(np.int32),
        operation_rule=np.where(is_named, np.int8(Rule.ANNOTATION), table.operation_rule),
    )
    return used_names(renamed)


def _order_of(aligned: AlignedRank, run: DispatchRun, timed: Index) -> Index:
    """The dispatch behind each row of the aligned table."""
    table, dispatches = aligned.table, run.dispatches
    agent = np.array(aligned.devices)[table.gpu]
    rows = np.lexsort((table.stream, table.duration_ns, table.start_ns, agent))
    source = timed[
        np.lexsort(
            (
                dispatches.queue[timed],
                (dispatches.end_ns - dispatches.start_ns)[timed],
                dispatches.start_ns[timed],
                dispatches.gpu[timed],
            )
        )
    ]
    order = np.empty(len(table), np.intp)
    order[rows] = source
    return order


def _trace(run: DispatchRun, rows: Index) -> Trace:
    dispatches, count = run.dispatches, len(rows)
    return Trace(
        path=run.paths[0],
        size_bytes=sum(path.stat().st_size for path in run.paths),
        names=run.names,
        activities=replace(
            blank(Activities, count),
            name=dispatches.name[rows],
            category=np.full(count, ActivityCategory.KERNEL, np.int8),
            device=dispatches.gpu[rows],
            stream=dispatches.queue[rows],
            start_ns=dispatches.start_ns[rows],
            duration_ns=(dispatches.end_ns - dispatches.start_ns)[rows],
            launch_shape=np.zeros(count, np.int32),
        ),
        launch_shapes=(LaunchShape(ABSENT, ABSENT),),
        event_counts={"dispatch": len(dispatches)},
        losses=Losses(),
    )


class PlacedCounter(Struct, frozen=True):
    """A sampled counter and its place in the run."""

    counter: SampledCounter
    gpu: int
    offset_ns: int
    """Offset from the clock of the samples to the run's clock."""


def same_execution(table: KernelTable, rows: Index, start_ns: Int64, end_ns: Int64) -> int | None:
    """The offset from the dispatches' clock to that of the activities they match; None where the
    dispatches are another execution.

    Of one execution all starts differ by the same, and durations are equal; no other execution
    repeats its own times to the µs. One dispatch alone tells nothing.
    """
    known = start_ns >= 0
    if known.sum() < 2:
        return None
    apart = (table.start_ns[rows] - start_ns)[known]
    longer = (table.duration_ns[rows] - (end_ns - start_ns))[known]
    offset = int(median_of(apart))
    drift = _ROUNDING_NS + _DRIFT * float(np.ptp(start_ns[known]))
    same = (np.abs(apart - offset) <= drift) & (np.abs(longer) <= _ROUNDING_NS)
    return offset if same.all() else None


def counter_signals(counters: Sequence[PlacedCounter]) -> dict[str, Signal]:
    """A signal for each counter: its increments per µs, as means between samples.

    A GPU of several counter runs has the samples of the first.
    """
    curves: dict[str, dict[int, IntegralCurve]] = {}
    highest: dict[str, float] = {}
    for placed in counters:
        name, own = placed.counter.name, placed.counter
        if placed.gpu in curves.setdefault(name, {}):
            continue
        rate = _rate(own)
        shift = placed.offset_ns
        curves[name][placed.gpu] = between(own.begin_ns + shift, own.time_ns + shift, rate)
        known = rate[np.isfinite(rate)]
        highest[name] = max(highest.get(name, 0.0), float(known.max(initial=0.0)))
    return {
        part_of(COUNTS_PER_US, name): Signal(
            part_of(COUNTS_PER_US, name), name, Unit.PER_US, own, 0.0, highest[name]
        )
        for name, own in curves.items()
    }


def _rate(counter: SampledCounter) -> Float64:
    lasted_ns = np.maximum(counter.time_ns - counter.begin_ns, 1)
    rate: Float64 = counter.counted * (_NS_PER_US / lasted_ns)
    return rate
