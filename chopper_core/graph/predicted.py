"""A predicted run: a measured one with the times of a replay."""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.align.rank_account import NO_OUTSIDE, OutsideTime, with_outside
from chopper_core.graph.dependencies import Evidence
from chopper_core.graph.questions import Predicted, Predictor
from chopper_core.model.accounting import accounted
from chopper_core.model.column_names import (
    BLOCK,
    CALL_SHAPE,
    CHUNK,
    FLOPS,
    FLOPS_TYPE,
    GRID,
    LDS,
    MICROBATCH,
    MODEL_BYTES,
    MODULES,
    RECOMPUTED_FLOPS,
    REGISTERS,
    TOKENS,
)
from chopper_core.model.inputs import PREDICTED
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostLane, HostSteps
from chopper_core.model.step_spans import HostEvidence, StepSpans
from chopper_core.model.table import NO_TIME
from chopper_core.model.tree import level_order
from chopper_core.util.arrays import Int32, Int64
from chopper_core.util.grouping import distinct, first_equal, places_by

_LABELS: Final = (
    FLOPS,
    FLOPS_TYPE,
    RECOMPUTED_FLOPS,
    MODEL_BYTES,
    CALL_SHAPE,
    MODULES,
    GRID,
    BLOCK,
    REGISTERS,
    LDS,
    TOKENS,
    MICROBATCH,
    CHUNK,
)
"""What is measured of activities whose times change."""


def _replayed_steps(predictor: Predictor, predicted: Predicted) -> dict[int, StepSpans]:
    """The annotated steps of each GPU's host, which end when the replay leaves them; the time
    between two of them stays as measured."""
    graph, measured = predictor.graph, predictor.run.side(HostSteps)
    ends = {
        (int(graph.gpu[node]), int(graph.iteration[node])): int(predicted.replayed.end_ns[node])
        for node in graph.host_ends
    }
    found = {}
    for gpu in distinct(measured.gpu).tolist():
        steps = measured.spans(gpu)
        numbers, begin, end = steps.number, steps.start_ns, steps.end_ns
        if len(distinct(numbers)) < len(numbers):
            continue
        replayed = np.array([ends.get((gpu, number), NO_TIME) for number in numbers.tolist()])
        kept = np.flatnonzero(replayed != NO_TIME)
        if not len(kept):
            continue
        gap = begin[kept] - np.append(end[kept][0], end[kept][:-1])
        begins = np.append(begin[kept][0], replayed[kept][:-1] + gap[1:])
        begins = np.minimum(begins, replayed[kept])
        found[gpu] = StepSpans(numbers[kept], begins, replayed[kept])
    return found


def _evidence(
    spans: StepSpans | None, iteration: Int32, idle_launch_ns: Int64, launch: Int64
) -> HostEvidence | None:
    """What the replay shows of a GPU's host. A step that opened a window with an empty queue does
    so still."""
    if spans is None:
        return None
    place = first_equal(spans.number, iteration.astype(np.int64))
    is_empty = (idle_launch_ns > 0) & (launch != NO_TIME)
    none = np.zeros(0, np.int64)
    return HostEvidence(spans, place, none, np.sort(launch[is_empty]), none)


def predicted_run(
    predictor: Predictor, predicted: Predicted, question: str, leads: frozenset[int]
) -> Run:
    """The run with the starts, durations and launches of a replay; the steps that others are
    replayed from are truncated.

    It has the activities of the graph, without telemetry and calls of the hosts: these were
    measured at other times.
    """
    graph, times = predictor.graph, predicted.replayed
    table = predictor.run.table.take(graph.row[graph.activities].astype(np.intp))
    start = times.begin_ns[graph.arrivals]
    duration = times.end_ns[graph.activities] - start
    launch = np.full(len(graph), NO_TIME, np.int64)
    edges = np.flatnonzero(graph.evidence == Evidence.LAUNCH)
    launch[graph.target[edges]] = times.end_ns[graph.source[edges]]
    launched = launch[graph.arrivals]
    columns: dict[str, Any] = {"start_ns": start, "duration_ns": duration, "launch_ns": launched}
    spans, outside = _replayed_steps(predictor, predicted), [NO_OUTSIDE]
    for gpu, own in places_by(table.gpu).items():
        step, called = table.iteration[own], launched[own]
        evidence = _evidence(spans.get(gpu), step, table.idle_launch_ns[own], called)
        of_gpu = start[own], duration[own], table.kind[own], table.stream[own]
        found = accounted(*of_gpu, called, step, evidence)
        outside.append(OutsideTime.of_gpu(gpu, found.outside))
        for name, values in found.columns.items():
            columns.setdefault(name, np.zeros(len(table), np.int64))[own] = values
    kept = {name: each for name, each in table.measured.items() if name in _LABELS}
    table = with_outside(
        replace(table, **columns, measured=kept), reduce(OutsideTime.joined, outside)
    )
    run = predictor.run
    cut = {
        gpu.index: run.partial_iterations.get(gpu.index, frozenset()) | leads for gpu in run.gpus
    }
    clock = f"{PREDICTED} by replay: {question}"
    return replace(
        run,
        name=f"{run.name} {PREDICTED}",
        table=table.take(level_order(table)),
        sources=tuple(replace(source, clock=clock) for source in run.sources),
        side_tables={
            **{kind: rows for kind, rows in run.side_tables.items() if kind is not HostLane},
            HostSteps: HostSteps.of(spans),
        },
        partial_iterations=cut if leads else run.partial_iterations,
        measured={},
        sampled={},
        of_nodes=(),
        cpu=(),
        cubes=None,
        recent=None,
        telemetry=(),
        counters=(),
        others={},
    )
