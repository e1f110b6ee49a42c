"""Attributes and dependencies of single activities, next to the kernel table.

An activity with either has a number, its node, in the measured column `NODE`; rows here refer to
GPU and node, so that they hold in any order of the table.
"""

from __future__ import annotations

import math
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from chopper_core.model.column_names import NODE
from chopper_core.model.run import Run
from chopper_core.model.side_table import SideTable
from chopper_core.model.table import KernelTable, Selection
from chopper_core.model.view import View
from chopper_core.util.arrays import Int8, Int32, Int64
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.grouping import distinct

TypedValue = tuple[str, Any]
"""A value with its type in Chakra's schema, such as `int64` or `string_list`; '' for any."""
NO_NODE: Final = -1
NODE_TYPE: Final = "node_type"
"""The attribute with the kind of a send or a receive."""
SEND: Final = "COMM_SEND"
RECEIVE: Final = "COMM_RECV"
_SIGNED: Final = ("int32", "int64", "sint32", "sint64", "sfixed32", "sfixed64")
_UNSIGNED: Final = ("uint32", "uint64", "fixed32", "fixed64")
_WHOLE: Final = frozenset((*_SIGNED, *_UNSIGNED, "bool"))
"""The types whose values are numbers in the table."""
_BYTES: Final = "bytes"


class Attributes(SideTable, frozen=True, eq=False):
    """Attributes of activities, one per row, in order of GPU and node."""

    FILE = "attributes.arrow"
    CODES = ("name", "text")

    node: Int64
    name: Int32
    """Code of the type and the name, such as `int64 seq_id`."""
    number: Int64
    """An integer or a bool; of an unsigned one the 64 bits."""
    text: Int32
    """Code of any other value as JSON; -1 for a number."""

    def of(self, gpu: int, node: int) -> dict[str, TypedValue]:
        found = {}
        own = self.of_gpu(gpu, "node", node)
        for row in range(own.start, own.stop):
            kind, _, name = self.names[self.name[row]].partition(" ")
            text = int(self.text[row])
            if text < 0:
                number = int(self.number[row])
                number = number % (1 << 64) if kind in _UNSIGNED else number
                found[name] = (kind, bool(number) if kind == "bool" else number)
            else:
                found[name] = (kind, _decoded(kind, self.names[text]))
        return found


class StatedEdges(SideTable, frozen=True, eq=False):
    """The dependencies that a trace states, in order of GPU and node.

    Every activity of such a GPU has a row, that without a `before` for the host's work that it
    waits for from the start.
    """

    FILE = "edges.arrow"

    node: Int64
    before: Int64
    """The node that it waits for, or NO_NODE."""
    host_ns: Int64
    """The most work of host nodes on the way between both."""
    is_control: Int8
    gpu_offset: Int32
    """By how much the GPU of `before` is beyond its own; 0 where both are on one."""


def nodes_at(table: KernelTable, rows: Selection) -> Int64:
    values = table.measured.get(NODE)
    if values is None:
        return np.full(len(table.gpu[rows]), NO_NODE, np.int64)
    return np.where(np.isfinite(values[rows]), values[rows], NO_NODE).astype(np.int64)


def attribute_table(values: Iterable[tuple[int, int, Mapping[str, TypedValue]]]) -> Attributes:
    codes: dict[str, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    for gpu, node, attributes in values:
        for name, (kind, value) in attributes.items():
            code = codes.setdefault(f"{kind} {name}", len(codes))
            number, text = 0, -1
            if kind in _WHOLE and isinstance(value, int):
                number = (value + (1 << 63)) % (1 << 64) - (1 << 63)
            else:
                text = codes.setdefault(_json(value), len(codes))
            rows.append((gpu, node, code, number, text))
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Attributes(
        tuple(codes),
        gpu=columns[0].astype(np.int32),
        node=columns[1],
        name=columns[2].astype(np.int32),
        number=columns[3],
        text=columns[4].astype(np.int32),
    )


def attribute_names(attributes: Attributes) -> list[str]:
    codes = distinct(attributes.name).tolist()
    return list(dict.fromkeys(attributes.names[code].partition(" ")[2] for code in codes))


def plain_value(attribute: TypedValue) -> Any:
    """A value for people and JSON: bytes as base64, numbers that JSON lacks as text."""
    value = attribute[1]
    return [_plain(each) for each in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _base64(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def attributes_at(run: Run, view: View) -> dict[str, TypedValue]:
    if not view.is_leaf or NODE not in run.table.measured:
        return {}
    try:
        (row,) = run.tree(view.order).node(view.path).rows.tolist()
    except NoSuchNode:  # A row that only the baseline has.
        return {}
    (node,) = nodes_at(run.table, slice(row, row + 1)).tolist()
    return run.side(Attributes).of(int(run.table.gpu[row]), node)


def attributes_json(attributes: Mapping[str, TypedValue]) -> str | None:
    return (
        _json({name: plain_value(value) for name, value in attributes.items()})
        if attributes
        else None
    )


def attribute_text(attribute: TypedValue) -> str:
    value = plain_value(attribute)
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    # msgspec's JSON has no NaN, which attributes may be.
    import json

    return json.dumps(value, default=_base64)


def _base64(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode()


def _decoded(kind: str, text: str) -> Any:
    """The value of a text; of one that is none, as in a damaged store, the text."""
    import json

    try:
        value = json.loads(text)
        if kind.startswith(_BYTES):
            return [*map(a2b_base64, value)] if isinstance(value, list) else a2b_base64(value)
    except (ValueError, TypeError):
        return text
    return value
