"""Aligns one rank: its trace becomes a labelled and accounted kernel table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from chopper_core.align.arrows import arrow_pairs, graph_edges
from chopper_core.align.checks import doubts_of_launches, lost_launches
from chopper_core.align.collectives import activity_attributes, read_collectives
from chopper_core.align.gpu_clock import on_host_clock
from chopper_core.align.graphs import captured_points, is_uncaptured, stand_ins
from chopper_core.align.host import Backward, Host, Links
from chopper_core.align.host_tables import align_memory, host_time, read_host_lane
from chopper_core.align.launches import launch_sizes
from chopper_core.align.layers import label_layers, mark_outside
from chopper_core.align.model_work import activity_tokens, model_work, on_longest, without_model
from chopper_core.align.modules import Modules, read_modules
from chopper_core.align.operations import label_operations
from chopper_core.align.phases import label_phases
from chopper_core.align.rank_account import (
    OutsideTime,
    RankAccount,
    account_rank,
    host_evidence,
    outside_rows,
)
from chopper_core.align.repeats import label_repeats
from chopper_core.align.side_work import side_intervals
from chopper_core.align.steps import (
    find_steps,
    label_iterations,
    read_inference,
    repeated_numbers,
    spans_of_steps,
)
from chopper_core.align.waits import read_stated_waits
from chopper_core.model import column_names as col
from chopper_core.model.doubts import Doubt
from chopper_core.model.inputs import REPEATED_STEPS, ClockBounds
from chopper_core.model.side_table import HostLane, HostSteps, HostTime, SideTables, side_tables
from chopper_core.model.table import (
    COLUMNS,
    LEVELS,
    NO_TIME,
    Category,
    KernelTable,
    Kind,
    Rule,
    append,
    recoded,
    whole_codes,
)
from chopper_core.sources.trace import Trace
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Index, Int32
from chopper_core.util.grouping import distinct, numbered_rows, ranked
from chopper_core.util.workers import concurrently

NO_NAME: Final = "(no name)"
"""The name of an activity without one."""


class AlignedRank(Struct, frozen=True):
    """A rank's kernel table; its `gpu` column numbers the rank's own devices from 0."""

    table: KernelTable
    devices: tuple[int, ...]
    partial_iterations: frozenset[int]
    findings: Mapping[str, int]
    """Counts of incomplete items, by display name."""
    doubts: tuple[Doubt, ...] = ()
    gpu_clock: ClockBounds | None = None
    side_tables: SideTables = field(default_factory=dict)


def align_rank(trace: Trace) -> AlignedRank:
    aligned, outside = _in_order_of_file(trace)
    # Nothing else refers to its columns any more, so old ones are freed one by one.
    table = aligned.table
    if len(outside):
        append(table, outside_rows(outside))
    node = numbered_rows([table.column(level) for level in LEVELS])
    _put_in_order(table, np.lexsort((table.start_ns, node)))
    return replace(aligned, table=used_names(table))


def _in_order_of_file(trace: Trace) -> tuple[AlignedRank, OutsideTime]:
    """A row for each activity of the file, in its order; and the time of no step."""
    arrows = arrow_pairs(trace)
    host = Host(trace, captured_points)
    of_ranges = concurrently(partial(_of_ranges, host), len(trace.ranges))
    on_clock = on_host_clock(trace, host.links)
    if on_clock.trace is not trace:
        trace = on_clock.trace
        host = Host(trace, captured_points)
    activities = trace.activities
    devices, numbers = ranked(activities.device)
    gpu = numbers.astype(np.int32)
    del numbers
    kind, links = host.kind, host.links
    collectives = read_collectives(host)
    inference = read_inference(host)
    steps = find_steps(host, inference)
    spans = spans_of_steps(steps)
    labelled = label_iterations(host, spans)
    iterations, truncated = labelled.labels, labelled.truncated
    bare = replace(links, points=replace(links.points))  # Without what labels cache.
    lost = lost_launches(host, spans, truncated)
    doubts = (*on_clock.doubts, *doubts_of_launches(host, lost.lost, spans))
    launched = np.concatenate([lost.lost, lost.at_edges])
    evidence = host_evidence(trace, bare, gpu, spans, labelled.place, launched)
    beside = side_intervals(host)

    def accounts() -> tuple[RankAccount, HostTime, HostLane]:
        found, gaps = account_rank(trace, bare, gpu, kind, iterations.codes, evidence, beside)
        idle = host_time(trace, bare, gaps)
        del gaps
        return found, idle, read_host_lane(trace, bare, gpu)

    modules, host.backward = of_ranges()
    del of_ranges
    accounted = concurrently(accounts, len(trace.ranges))
    host.stand_ins = stand_ins(host, iterations.codes)
    phases = label_phases(host, inference, iterations, beside)
    # The kernels of a graph have the layer and the operation that were captured.
    layers = label_layers(host, modules, iterations, phases)
    places = label_repeats(host, layers, iterations, phases)
    operations, operation_names = label_operations(
        host, modules, collectives, iterations, phases, places, beside
    )
    mark_outside(layers, operations, operation_names)
    host.forget_ranges()
    for labels in (layers, operations):
        inferred = host.stand_ins[0][labels.rules[host.stand_ins[0]] != Rule.NONE]
        labels.rules[inferred] = Rule.CONTEXT
    names = [*(name or NO_NAME for name in trace.names), *collectives.groups]
    around = {col.MODULES: modules.around(host, len(names))} if modules.paths else {}
    names += modules.paths
    group = np.where(collectives.group >= 0, collectives.group + len(trace.names), -1)
    group = group.astype(np.int32)
    lenders = (activities.name, operations.codes, phases.codes)
    work = model_work(host, lenders, iterations.codes)
    without = without_model(host, work)
    keys = (activities.name, operations.codes, phases.codes, layers.codes)
    tokens = on_longest(host, inference.steps, inference.tokens)
    if not np.isfinite(tokens).any():
        tokens = activity_tokens(host, phases.codes, layers.codes, keys)
    requests = on_longest(host, inference.steps, inference.requests)
    attributes, nodes = activity_attributes(host, collectives.argument)
    streams = int(host.lane.max(initial=-1)) + 1
    is_marked = activities.annotation != ABSENT
    sizes, uncaptured = launch_sizes(host), int((is_uncaptured(host) & ~is_marked).sum())
    # Last without a thread, since both the accounts and the host's ranges take much memory.
    del host, modules, keys, links
    rank_account, idle, launching = accounted()
    charges = rank_account.charges
    is_idle = bool(charges["idle_ns"].any())
    columns: dict[str, Any] = {name: charges.pop(name).astype(np.int64) for name in [*charges]}
    table = KernelTable(
        names=names,
        operations=operation_names,
        shapes=work.shapes,
        gpu=gpu,
        iteration=iterations.codes,
        phase=phases.codes.astype(np.int8),
        layer=layers.codes,
        operation=operations.codes,
        kernel=activities.name,
        kind=kind,
        category=activities.category,
        stream=activities.stream,
        start_ns=activities.start_ns,
        duration_ns=activities.duration_ns,
        launch_ns=bare.launch_ns,
        bytes=collectives.bytes,
        group=group,
        iteration_rule=iterations.rules,
        phase_rule=phases.rules,
        layer_rule=layers.rules,
        operation_rule=operations.rules,
        measured={
            col.FLOPS: work.flops,
            col.FLOPS_TYPE: work.element,
            col.MODEL_BYTES: work.bytes,
            col.CALL_NS: work.call_ns,
            **({col.CALL_SHAPE: work.shape} if work.shapes else {}),
            **around,
            col.CORRELATION: np.where(activities.correlation > 0, activities.correlation, np.nan),
            col.TOKENS: tokens,
            **({col.REQUESTS: requests} if np.isfinite(requests).any() else {}),
            **sizes,
            **trace.figures,
            **nodes,
        },
        **columns,
    )
    memory, memory_columns, unplaced = align_memory(trace, bare, devices, table)
    table = table.with_measured(memory_columns)
    of_host = HostSteps.of(dict.fromkeys(range(len(devices)), spans))
    waits = read_stated_waits(trace, devices)
    edges = graph_edges(trace, arrows, devices)
    side = side_tables(idle, of_host, memory, launching, attributes, waits, edges)
    findings = {
        **_unlinked(table, bare),
        "collectives without arguments": collectives.without_arguments,
        "attentions without FLOPs (the trace doesn't say whether they are causal)": (
            work.of_unknown_mask
        ),
        **without,
        "kernels of graphs whose capture isn't in the traces": uncaptured,
        "memory events of a device that isn't one of the GPUs": unplaced,
        "GPUs without the work of their hosts, which would repeat for each of them too often": (
            len(devices) * (is_idle and not len(idle))
        ),
        **({REPEATED_STEPS: repeated} if (repeated := repeated_numbers(steps)) else {}),
        "communication kernels": int((kind == Kind.COMM).sum()),
        "streams": streams,
    }
    aligned = AlignedRank(
        table=table,
        devices=tuple(int(device) for device in devices),
        partial_iterations=truncated | rank_account.truncated,
        side_tables=side,
        findings=findings,
        doubts=doubts,
        gpu_clock=on_clock.bounds,
    )
    return aligned, rank_account.outside


def _of_ranges(host: Host) -> tuple[Modules, Backward]:
    """What the ranges of a host say, whatever is known of its GPUs and their clock."""
    return read_modules(host), host.backward


def _put_in_order(table: KernelTable, order: Index) -> None:
    """Sort the rows of a table that isn't shared yet in place, column by column."""
    for name in COLUMNS:
        force_setattr(table, name, getattr(table, name)[order])
    measured = dict(table.measured)
    force_setattr(table, "measured", measured)
    for name in measured:
        measured[name] = measured[name][order]


def _unlinked(table: KernelTable, links: Links) -> dict[str, int]:
    lacks = table.launch_ns == NO_TIME
    return {
        "activities without a launch record": int(lacks.sum()),
        "kernels without a launch record": int((lacks & (table.category == Category.KERNEL)).sum()),
        "activities whose correlation several launch calls share": links.shared_correlations,
        "activities that start before their launch call (clocks disagree)": links.late_launches,
        "launch calls without an activity": len(links.orphans),
    }


def used_names(table: KernelTable) -> KernelTable:
    around = table.measured.get(col.MODULES, np.empty(0))
    codes = (table.kernel, table.group, whole_codes(around))
    used, name_code = _renumbered(len(table.names), *codes)
    operations, operation_code = _renumbered(len(table.operations), table.operation)
    if col.MODULES in table.measured:
        table = table.with_measured({col.MODULES: recoded(around, name_code)})
    return replace(
        table,
        names=tuple(table.names[code] for code in used),
        operations=tuple(table.operations[code] for code in operations),
        kernel=name_code[table.kernel],
        group=name_code[table.group],
        operation=operation_code[table.operation],
    )


def _renumbered(count: int, *columns: Int32) -> tuple[Index, Int32]:
    """The codes in use, and the new number of each of `count` codes; -1 stays -1."""
    used = distinct(np.concatenate([distinct(column) for column in columns]))
    used = used[used >= 0]
    new = np.full(count + 1, -1, np.int32)
    new[used] = np.arange(len(used), dtype=np.int32)
    return used, new
