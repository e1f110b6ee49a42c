"""Columns of calls: the work of one, the kernel that serves them, and commands that time one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from chopper_core.columns.metric import METRICS, Scope, Values, absent, declare, numbered, worded
from chopper_core.model.column_names import CALL_SHAPE
from chopper_core.util.grouping import maxima_of, minima_of

if TYPE_CHECKING:
    from chopper_core.analyses.rows import Partition
    from chopper_core.model.run import Run
    from chopper_core.model.shapes import CallShape

OF_CALLS: Final = ("call_flops", "call_bytes", "hipblaslt", "torch", "served_by")
_LEVELS: Final = {"served_by": "kernel", "main_operation": "operation"}
"""Column → the level whose label with the most time it has."""
_MODELLED: Final = "the row has no operator of a known work with recorded inputs"
_NO_BYTES: Final = f"{_MODELLED}, or the trace lacks the types of its operands"


def shape_figures(run: Run, rows: Partition) -> dict[str, Values]:
    """The columns of calls of rows by shape."""
    scope = rows.scope(run)
    return {name: METRICS[name].compute(scope) for name in OF_CALLS}


def _shapes(scope: Scope, run: Run) -> list[CallShape | None]:
    """The shape of each node whose activities have one and the same; None for others."""
    # Loaded here: most screens show no shapes.
    from chopper_core.analyses.call_figures import labels_of_shapes

    nodes, labels = scope.nodes, labels_of_shapes(run)
    if CALL_SHAPE not in nodes.table.measured:
        return [None] * len(nodes)  # Millions of activities are read to tell the same.
    if "shapes" not in nodes.memo:
        shapes, size = [*labels.shapes.values(), None], len(nodes)
        none = len(shapes) - 1
        least, most = np.full(size, none, np.int64), np.full(size, -1, np.int64)
        for rows, node in nodes.pieces():
            codes = labels.codes(nodes.table, rows).astype(np.int64)
            least = np.minimum(least, minima_of(codes, node, size, none))
            most = np.maximum(most, maxima_of(codes, node, size, -1))
        one = np.where(least == most, least, none).tolist()
        nodes.memo["shapes"] = [shapes[code] for code in one]
    found: list[CallShape | None] = nodes.memo["shapes"]
    return found


def _figure(name: str, scope: Scope) -> Values:
    from chopper_core.analyses.benchmarks import hipblaslt_line, torch_line
    from chopper_core.analyses.call_figures import most_in

    nodes, run = scope.nodes, scope.run
    if name in _LEVELS:
        parts, row = nodes.split((_LEVELS[name],))
        return most_in(parts, _LEVELS[name], row, len(nodes))
    if run is None:
        return absent(len(nodes))
    shapes = _shapes(scope, run)
    if name == "call_flops":
        return numbered([shape.flops if shape else None for shape in shapes])
    if name == "call_bytes":
        return numbered([shape.bytes if shape else None for shape in shapes])
    line_of = hipblaslt_line if name == "hipblaslt" else torch_line
    return worded([line_of(shape) if shape else None for shape in shapes])


declare(
    f"""
    call_flops | FLOP | FLOPs/call | common value
        Floating-point operations of one call of the row's shape.
        missing: {_MODELLED}, or has several shapes
    call_bytes | B | bytes/call | common value
        Modelled bytes of one call of the row's shape: every tensor that the operator reads or
        writes counts once, at the size of its type.
        missing: {_NO_BYTES}, or has several shapes
    served_by | | served by | words
        The kernel that takes most of the row's time, and how many others served its calls.
        missing: the row has no kernel
        source: trace
    main_operation | | operation | words
        The operation that takes most of the row's kernel time, and how many others do.
        missing: no operation is known of the row
        source: trace
    hipblaslt | | hipblaslt-bench | common value
        A hipblaslt-bench command that runs the row's shape.
        missing: the row is no matrix product with one shape and recorded types
    torch | | torch benchmark | common value
        A command that times the row's shape with PyTorch.
        missing: the row has no shape whose operands PyTorch can make again
    """,
    _figure,
    source="shapes in the trace; docs/shapes.md",
)
