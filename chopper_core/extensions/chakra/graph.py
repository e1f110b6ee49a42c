"""A Chakra graph as columns: nodes in the order of the file, dependencies resolved to places.

Every attribute is kept with its type, whether or not anything here reads it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.extensions.chakra.schema import Attribute, Node, NodeType, Value
from chopper_core.model.run import Run
from chopper_core.tables.columns import NameInterner
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Index, Int8, Int32, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import stable_order

_GROUPS: Final = "process_group:init"
IO_SIDES: Final = ("inputs.", "outputs.")
"""The prefixes of a node's inputs and outputs among its attributes: `inputs.shapes`."""
_MAX_VALUE: Final = 1 << 18
"""Characters of a text, or entries of a list; longer ones are left out."""
_INT64: Final = range(-(2**63), 2**63)


class AttributeColumn(Struct, frozen=True):
    """The values of one attribute."""

    type: str
    """The schema's name; several with commas where nodes differ, '' in JSON."""
    nodes: Index
    """Places of the nodes that have it, rising."""
    values: Sequence[Value]
    types: Sequence[str] = ()
    """The type of each, where they differ."""

    def type_of(self, at: int) -> str:
        return self.types[at] if self.types else self.type


class Edges(Struct, frozen=True):
    """Dependencies of one kind: those of node n are `to[first[n]:first[n + 1]]`, as places."""

    first: Index
    to: Index
    """Places of nodes; dangling ones are left out."""
    dangling: int
    """Dependencies on ids that the file lacks."""

    def of(self, node: int) -> list[int]:
        """The places that a node depends on."""
        found: list[int] = self.to[self.first[node] : self.first[node + 1]].tolist()
        return found


def followers_of(after: Index, before: Index, count: int) -> Callable[[int], list[int]]:
    """The nodes that wait for a node, where each of some nodes waits for another."""
    order = stable_order(before)
    followers: list[int] = after[order].tolist()
    first: list[int] = np.searchsorted(before[order], np.arange(count + 1)).tolist()
    return lambda node: followers[first[node] : first[node + 1]]


def cycle_among(
    waits: Sequence[int], needs: Callable[[int], Iterable[int]], ids: Sequence[int]
) -> str:
    """A cycle among the nodes that still wait, by their ids."""
    node = next(node for node, left in enumerate(waits) if left)
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(seen)
        node = next(each for each in needs(node) if waits[each])
    path = [str(ids[each]) for each, place in seen.items() if place >= seen[node]]
    return " waits for ".join([*path[:4], *["…"] * (len(path) > 4), path[0]])


class ExecutionGraph(Struct, frozen=True):
    """The nodes of one file."""

    path: Path
    size_bytes: int
    format: str
    version: str
    metadata: Mapping[str, Value]
    names: Sequence[str]
    ids: Sequence[int]
    name: Int32
    type: Int8
    start_us: Int64
    duration_us: Int64
    data: Edges
    control: Edges
    attributes: Mapping[str, AttributeColumn]
    process_groups: Sequence[str]
    """The inputs of nodes that list process groups, as the file spells them."""
    losses: Losses

    def as_run(self) -> Run:
        """The run of one rank; raises DataError if it has no activity of a GPU or no schedule."""
        from chopper_core.extensions.chakra.graph_run import graph_run

        return graph_run(self)

    def __len__(self) -> int:
        return len(self.ids)

    def numbers(self, name: str, missing: int = ABSENT) -> Int64:
        """An attribute of all nodes as integers; `missing` where a node lacks it."""
        found = np.full(len(self), missing, np.int64)
        if column := self.attributes.get(name):
            for node, value in zip(column.nodes.tolist(), column.values, strict=True):
                if isinstance(value, str) and value.isdecimal():
                    value = int(value)
                if isinstance(value, int) and value in _INT64:
                    found[node] = value
        return found

    def texts(self, name: str) -> list[str]:
        """An attribute of all nodes as text; '' where a node lacks it."""
        found = [""] * len(self)
        if column := self.attributes.get(name):
            for node, value in zip(column.nodes.tolist(), column.values, strict=True):
                found[node] = value if isinstance(value, str) else str(value)
        return found

    @property
    def is_host(self) -> Mask:
        """Which nodes ran on the CPU; without `is_cpu_op` a node ran on the GPU."""
        return np.equal(self.numbers("is_cpu_op", 0), 1)

    @property
    def is_gpu(self) -> Mask:
        """Which nodes are activities of a GPU."""
        return ~self.is_host & (self.type > NodeType.METADATA)


def _column(types: list[str], nodes: Index, values: Sequence[Value]) -> AttributeColumn:
    distinct = dict.fromkeys(types)
    return AttributeColumn(", ".join(distinct), nodes, values, types if len(distinct) > 1 else ())


def _io_attributes(node: Node) -> Iterator[tuple[str, Attribute]]:
    """The inputs and outputs of an activity; those of host nodes are never used."""
    if (node.inputs or node.outputs) and not node.get("is_cpu_op"):
        for side, io in zip(IO_SIDES, (node.inputs, node.outputs), strict=True):
            for part, text in io.items():
                if text:
                    yield f"{side}{part}", Attribute("string", text)


class GraphBuilder:
    """Collects nodes one by one."""

    def __init__(self, path: Path, format_name: str) -> None:
        self._path = path
        self._format = format_name
        self._names: dict[str, int] = NameInterner()
        self._texts: dict[str, str] = {}
        self._ids: list[int] = []
        self._columns = {name: array("q") for name in ("name", "type", "start", "duration")}
        self._deps = {name: (array("q", (0,)), array("Q")) for name in ("data", "control")}
        self._attributes: dict[str, tuple[list[str], array[int], list[Value]]] = {}
        self._groups: list[str] = []
        self._too_long: dict[str, int] = {}
        self.losses = Losses()

    def add(self, node: Node) -> None:
        """Take a node; raises DataError if its times exceed what can be counted."""
        place = len(self._ids)
        if not (0 <= node.start_us < 2**52 and 0 <= node.duration_us < 2**52):
            raise DataError(
                f"{self._path} has a node ({node.id}) whose time is not a number of microseconds."
            )
        self._ids.append(node.id)
        if _GROUPS in node.name:
            self._groups.append(node.inputs.get("values", ""))
        for name, number in (
            ("name", self._names[node.name]),
            ("type", node.type if node.type <= NodeType.COMM_COLL else NodeType.INVALID),
            ("start", node.start_us),
            ("duration", node.duration_us),
        ):
            self._columns[name].append(number)
        for name, ids in (("data", node.data_deps), ("control", node.ctrl_deps)):
            first, to = self._deps[name]
            to.extend(ids)
            first.append(len(to))
        for name, attribute in (*node.attributes.items(), *_io_attributes(node)):
            if isinstance(attribute.value, str | bytes | list) and (
                len(attribute.value) > _MAX_VALUE
            ):
                self._too_long[name] = self._too_long.get(name, 0) + 1
                continue
            types, nodes, values = self._attributes.setdefault(name, ([], array("q"), []))
            types.append(attribute.type)
            nodes.append(place)
            value = attribute.value
            # Schemas of operators repeat on thousands of nodes.
            values.append(self._texts.setdefault(value, value) if isinstance(value, str) else value)

    def graph(self, version: str, metadata: Mapping[str, Value]) -> ExecutionGraph:
        """The graph of the nodes taken; raises DataError if ids repeat or there is no node."""
        if not self._ids:
            raise DataError(f"{self._path} is a Chakra trace without nodes.")
        if self._too_long:
            count, first = sum(self._too_long.values()), next(iter(self._too_long))
            self.losses.notes.append(
                f"{count:,} attributes, such as {first}, have more than {_MAX_VALUE:,} characters "
                "or numbers and are left out"
            )
        ids = np.array(self._ids, np.uint64)
        order = np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(repeated):
            raise DataError(
                f"{self._path} has the node id {int(ids[order][repeated[0]])} twice; "
                "`chopper check` lists what is wrong with a trace."
            )
        columns = {name: np.array(values, np.int64) for name, values in self._columns.items()}
        return ExecutionGraph(
            path=self._path,
            size_bytes=self._path.stat().st_size,
            format=self._format,
            version=version,
            metadata=metadata,
            names=list(self._names),
            ids=self._ids,
            name=columns["name"].astype(np.int32),
            type=columns["type"].astype(np.int8),
            start_us=columns["start"],
            duration_us=columns["duration"],
            data=self._edges("data", ids, order),
            control=self._edges("control", ids, order),
            attributes={
                name: _column(types, np.array(nodes, np.intp), values)
                for name, (types, nodes, values) in self._attributes.items()
            },
            process_groups=self._groups,
            losses=self.losses,
        )

    def _edges(self, name: str, ids: Any, order: Index) -> Edges:
        first, to = self._deps[name]
        wanted = np.array(to, np.uint64)
        at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
        known = ids[order][at] == wanted
        kept = np.concatenate([[0], np.cumsum(known)])
        return Edges(
            kept[np.array(first, np.intp)], order[at[known]], int(len(known) - known.sum())
        )
