"""Chakra traces made by hand, and tables compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chopper_core.extensions.chakra.et import write_et
from chopper_core.extensions.chakra.schema import Attribute, Metadata, Node, NodeType, Value
from chopper_core.model.run import Run
from chopper_core.model.table import ADDITIVE, COLUMNS

TYPES = {bool: "bool", int: "int64", float: "double", str: "string"}


def node(
    number: int, duration_us: int = 1, *needs: int, name: str = "kernel", **values: Value
) -> Node:
    """A GPU node; `values` are attributes, `type` and `ctrl` its type and callers."""
    kind = values.pop("type", NodeType.COMP)
    callers: Any = values.pop("ctrl", [])
    attributes = {"is_cpu_op": False, **values}
    return Node(
        id=number,
        name=name,
        type=int(kind),  # type: ignore[call-overload]
        ctrl_deps=list(callers),
        data_deps=list(needs),
        duration_us=duration_us,
        attributes={key: Attribute(TYPES[type(each)], each) for key, each in attributes.items()},
    )


def written(path: Path, nodes: Iterable[Node], **metadata: Value) -> Path:
    """A file of the nodes."""
    values = {key: Attribute(TYPES[type(each)], each) for key, each in metadata.items()}
    with path.open("wb") as file:
        write_et(file, Metadata("1.0.0", values), nodes)
    return path


def sorted_rows(run: Run) -> dict[str, list[Any]]:
    """The columns of a run as plain values, labels as text, in an order of their own."""
    table = run.table
    columns: dict[str, list[Any]] = {name: table.column(name).tolist() for name in COLUMNS}
    for name, texts in (
        ("kernel", table.names),
        ("group", table.names),
        ("operation", table.operations),
    ):
        columns[name] = [texts[code] if code >= 0 else "" for code in columns[name]]
    keys = [columns[name] for name in ("gpu", "start_ns", *sorted(columns.keys() - {*ADDITIVE}))]
    order = sorted(range(len(table)), key=lambda row: [key[row] for key in keys])
    return {name: [values[row] for row in order] for name, values in columns.items()}
