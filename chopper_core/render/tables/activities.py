"""Activities and their launches: rows of the kernel table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.collective_figures import PROCESS_GROUP
from chopper_core.columns import METRICS, metric_named, parse_columns
from chopper_core.columns.labels import LABELS
from chopper_core.columns.metric import Metric
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME, activity_rows
from chopper_core.render.arrow import field_of, labels_array, table_of, words_array
from chopper_core.render.kernel_rows import kernel_rows, measured_counters, measured_signals
from chopper_core.render.tables import table
from chopper_core.util.arrays import Index

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final[dict[str, Metric]] = {
    **{name: LABELS[name] for name in ("gpu", "rank", "iteration", "phase", "layer")},
    **parse_columns("""
        operation | | operation
            Operation of the model or of the framework; of a collective its kind, such as
            all_gather, null if no rank's trace names it.
        kernel | | kernel
            Name of the kernel, copy or memset.
        kind | | kind
            Of an activity its part in the time accounting: compute, comm or copy. Of what a host
            thread does: operator, an outermost one, or call, a call of the GPU's runtime that
            doesn't launch.
        category | | category
            kernel, memcpy or memset, as in the trace; outside: time outside steps, without an
            activity.
        stream | | stream
            Stream or queue.
        duration_ns | ns | duration
            From its start to its end.
        launch_ns | ns | launched
            Start of the launch call, since the first activity; null without a launch record.
        idle_after_ns | ns | idle after
            The part of idle_ns after it.
        attributes | | attributes
            Other attributes that the trace gives, as a JSON object.
    """),
    "group": replace(PROCESS_GROUP, name="group"),
    **{name: METRICS[name] for name in ("start_ns", "end_ns", "bytes")},
}
_OF_LAUNCHES: Final = parse_columns("""
    latency_ns | ns | latency
        From the start of the launch call to the start of the activity: launch latency where the
        queue is empty, else time in the queue.
""")


@table("activities", is_large=True)
def activities(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A kernel, copy or memset on a GPU; its counters and the means of signals over it follow."""
    import pyarrow as pa

    made = kernel_rows(
        run,
        rows_of_gpus(run, gpus),
        counters=measured_counters(run),
        signals=measured_signals(run),
    )
    fields = [_field(run, field) for field in made.schema]
    return made.cast(pa.schema(fields, made.schema.metadata))


def _field(run: Run, field: pa.Field) -> pa.Field:
    name = field.name
    if name in COLUMNS:
        return field_of(name, field.type, str(COLUMNS[name].unit), COLUMNS[name].definition)
    metric = metric_named(name, run.table, run.counter_info)
    return field_of(name, field.type, str(metric.unit), metric.definition)


def rows_of_gpus(run: Run, gpus: Sequence[int] | None) -> Index:
    """The rows of the kernel table of some GPUs, in its order; None: of all."""
    every = np.arange(len(run.table))
    return every if gpus is None else every[np.isin(run.table.gpu, gpus)]


def ranks_array(run: Run, gpus: Index) -> pa.Array:
    """The rank of the process that each of some GPUs works for."""
    import pyarrow as pa

    rank_of = run.rank_of
    return pa.array([rank_of[index] for index in gpus.tolist()], pa.int64())


@table("launches", is_large=True)
def launches(run: Run, gpus: Sequence[int] | None) -> pa.Table:
    """A launch call whose activity is in the trace."""
    from chopper_core.tables.arrow_files import array_of

    every = run.table
    rows = activity_rows(every, rows_of_gpus(run, gpus))
    rows = rows[every.launch_ns[rows] != NO_TIME]
    start, launched = every.start_ns[rows], every.launch_ns[rows]
    made: dict[str, pa.Array] = {
        "gpu": array_of(every.gpu[rows].astype(np.int64)),
        "iteration": labels_array(every.iteration[rows]),
        "operation": words_array(every.operation[rows], every.operations),
        "kernel": words_array(every.kernel[rows], every.names),
        "stream": array_of(every.stream[rows]),
        "launch_ns": array_of(launched - run.origin_ns),
        "start_ns": array_of(start - run.origin_ns),
        "latency_ns": array_of(start - launched),
    }
    charged = ("idle_host_ns", "idle_launch_ns", "prep_overhead_ns", "call_overhead_ns")
    made |= {name: array_of(every.column(name)[rows]) for name in charged}
    known: dict[str, Metric] = {**METRICS, **COLUMNS, **_OF_LAUNCHES}
    return table_of([(known[name], array) for name, array in made.items()])
