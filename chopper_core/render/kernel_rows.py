"""Activities with their figures as an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.model.attributes import NO_NODE, Attributes, attributes_json, nodes_at
from chopper_core.model.column_names import integral_of, is_counted, known_of
from chopper_core.model.run import Run
from chopper_core.model.table import ADDITIVE, NO_LABEL, NO_TIME, PHASES, Category, Kind, Selection
from chopper_core.render.arrow import words_array

if TYPE_CHECKING:
    import pyarrow as pa

KERNELS_SCHEMA: Final = "chopper.kernels/1"
"""Version of the columns, also in the metadata of their Arrow schema."""


def measured_counters(run: Run) -> tuple[str, ...]:
    return tuple(name for name in run.table.measured if is_counted(name))


def measured_signals(run: Run) -> tuple[str, ...]:
    return tuple(name for name in run.signal_names if integral_of(name) in run.table.measured)


def kernel_rows(
    run: Run, rows: Selection, *, counters: Sequence[str] = (), signals: Sequence[str] = ()
) -> pa.Table:
    """Some activities as rows of the schema `KERNELS_SCHEMA`.

    Labels and names are dictionaries, times int64 ns since `run.origin_ns`, missing values null.
    `counters` and `signals` of the table add columns; a signal is its time-weighted mean over the
    activity. Where traces give attributes of activities, `attributes` has them as JSON.
    """
    import pyarrow as pa

    from chopper_core.tables.arrow_files import array_of

    table = run.table

    iteration, layer = table.iteration[rows], table.layer[rows]
    launch, size = table.launch_ns[rows], table.bytes[rows]
    columns: dict[str, pa.Array] = {
        "gpu": array_of(table.gpu[rows]),
        "iteration": array_of(iteration, iteration != NO_LABEL),
        "phase": words_array(table.phase[rows], PHASES),
        "layer": array_of(layer, layer != NO_LABEL),
        "operation": words_array(table.operation[rows], table.operations),
        "kernel": words_array(table.kernel[rows], table.names),
        "kind": words_array(table.kind[rows], [kind.name.lower() for kind in Kind]),
        "category": words_array(table.category[rows], [each.name.lower() for each in Category]),
        "stream": array_of(table.stream[rows]),
        "start_ns": array_of(table.start_ns[rows] - run.origin_ns),
        "duration_ns": array_of(table.duration_ns[rows]),
        "launch_ns": array_of(launch - run.origin_ns, launch != NO_TIME),
        "bytes": array_of(size, size >= 0),
        "group": words_array(table.group[rows], table.names),
    }
    columns |= {name: array_of(table.column(name)[rows]) for name in ADDITIVE}
    for name in counters:
        values = table.measured[name][rows]
        columns[name] = array_of(values, np.isfinite(values))
    for name in signals:
        known_ns = table.measured[known_of(name)][rows]
        is_known = known_ns > 0
        mean = table.measured[integral_of(name)][rows] / np.where(is_known, known_ns, 1.0)
        columns[name] = array_of(mean, is_known)
    lacking: set[str] = set()
    if run.is_sampled_only:
        lacking = columns.keys() - {"gpu", "category", "start_ns", "duration_ns", *signals}
    elif not table.has_times:
        lacking = {name for name in columns if name.endswith("_ns")}
    nothing = pa.nulls(len(iteration))
    columns |= {name: nothing.cast(columns[name].type) for name in columns if name in lacking}
    attributes = run.side(Attributes)
    if len(attributes):
        gpus, nodes = table.gpu[rows].tolist(), nodes_at(table, rows).tolist()
        texts = [
            attributes_json(attributes.of(gpu, node)) if node != NO_NODE else None
            for gpu, node in zip(gpus, nodes, strict=True)
        ]
        columns["attributes"] = pa.array(texts, pa.string())
    made = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    times = {"times": run.times_mark} if run.times_mark else {}
    units = {name: "ns" for name in columns if name.endswith("_ns")} | {"bytes": "B"}
    units |= {name: str(run.measured[name].unit) for name in signals if name in run.measured}
    infos = {name: run.counter_info[name] for name in counters if name in run.counter_info}
    units |= {name: str(info.unit) for name, info in infos.items() if str(info.unit)}
    known = {name: unit for name, unit in units.items() if name in columns}
    pandas = _for_pandas(made.schema, known)
    return made.replace_schema_metadata({"chopper": KERNELS_SCHEMA, **times, "pandas": pandas})


def _for_pandas(schema: pa.Schema, units: Mapping[str, str]) -> str:
    """What `to_pandas` and `pandas.read_parquet` go by: nullable types, and units in `attrs`."""
    import pyarrow as pa

    columns = []
    for field in schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        nullable = "Float64" if pa.types.is_floating(field.type) else "Int64"
        is_text = pa.types.is_string(field.type)
        columns.append(
            {
                "name": field.name,
                "field_name": field.name,
                "pandas_type": "categorical" if pa.types.is_dictionary(field.type) else "unicode",
                "numpy_type": nullable if is_number else "string" if is_text else "int32",
                "metadata": None,
            }
        )
    made = {"index_columns": [], "column_indexes": [], "columns": columns}
    about = {"attributes": {"units": units}, "creator": {"library": "chopper"}}
    return json.dumps({**made, **about, "pandas_version": "2.1.0"})
