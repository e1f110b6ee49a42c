"""Chakra execution traces in protobuf: `.et` files of a rank each.

A file is a stream of messages behind their lengths, one in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from chopper_core.extensions.chakra.graph import ExecutionGraph, GraphBuilder
from chopper_core.extensions.chakra.graph_run import TraceGraph
from chopper_core.extensions.chakra.schema import (
    Metadata,
    Node,
    WireError,
    decode_metadata,
    decode_node,
    delimited,
    encode_metadata,
    encode_node,
)
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.text import FileHead
from chopper_core.util.compression import has_ending
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

MAX_MESSAGE_BYTES: Final = 1 << 26
"""A node larger than this is refused: a million dependencies take 3 MB."""
_MAX_LENGTH_BYTES: Final = 5
_FEW_NODES: Final = 1 << 18
NAME: Final = "Chakra execution trace"
FILES: Final = "[`.et`](chakra.md) (protobuf), one file per rank"
EXAMPLE: Final = "chopper export RUN --to chakra -o DIR"
SUFFIXES: Final = (".et",)
FORMAT: Final = "Chakra .et"
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_REPORTED_NODES: Final = 4096
_MAX_LISTED: Final = 8


class EtFile:
    """An open `.et` file: its metadata, and its nodes one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes = 0
        self.unknown: set[int] = set()
        """Numbers of the fields of nodes that the schema known here lacks."""
        # Any bytes may be a length: no magic number of another format is one here.
        self.source = ByteSource(path, foreign=False)
        self._data = b""
        self._at = 0
        try:
            first = self._message()
            self.metadata: Metadata = decode_metadata(first) if first else Metadata()
        except WireError as error:
            self.source.__exit__()
            raise DataError(
                f"{path} can't be read as a Chakra trace: its start {error}."
            ) from error

    def __enter__(self) -> EtFile:
        return self

    def __exit__(self, *_error: object) -> None:
        self.source.__exit__()

    def __iter__(self) -> Iterator[Node]:
        """Yield the nodes; raises DataError at the first that is cut off or invalid."""
        while True:
            try:
                message = self._message()
                if message is None:
                    return
                if not message:
                    raise WireError("is empty, and upstream's readers stop there")
                node = decode_node(message, self.unknown)
            except WireError as error:
                raise DataError(
                    f"{self.path} is damaged: node {self.nodes + 1:,} of the file {error}."
                ) from error
            self.nodes += 1
            if self.nodes > max(_FEW_NODES, self.source.size_bytes):
                raise DataError(f"{self.path} holds more nodes than bytes, as no real trace does.")
            yield node

    def _message(self) -> bytes | None:
        size = shift = 0
        for place in range(_MAX_LENGTH_BYTES):
            octet = self._take(1)
            if not octet:
                if place:
                    raise WireError("ends within its length")
                return None
            size |= (octet[0] & 0x7F) << shift
            shift += 7
            if octet[0] < 0x80:
                break
        else:
            raise WireError("has a length of more than 5 bytes")
        if size > MAX_MESSAGE_BYTES:
            raise WireError(
                f"claims {size:,} bytes, more than the {MAX_MESSAGE_BYTES:,} that a node may have"
            )
        message = self._take(size)
        if len(message) < size:
            why = f" ({self.source.problem})" if self.source.problem else ""
            raise WireError(f"claims {size:,} bytes where {len(message):,} are left{why}")
        return message

    def _take(self, size: int) -> bytes:
        while len(self._data) - self._at < size:
            piece = self.source.read()
            if not piece:
                break
            self._data = self._data[self._at :] + piece
            self._at = 0
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken


def unknown_fields(numbers: set[int]) -> str:
    """A sentence on fields of a newer schema."""
    listed = ", ".join(map(str, sorted(numbers)[:_MAX_LISTED]))
    return f"nodes have fields that the schema known here lacks, and that are not read: {listed}"


def write_et(file: IO[bytes], metadata: Metadata, nodes: Iterable[Node]) -> int:
    """Write a trace and return the number of its nodes."""
    file.write(delimited(encode_metadata(metadata)))
    count = 0
    for node in nodes:
        file.write(delimited(encode_node(node)))
        count += 1
    return count


def recognise(head: FileHead) -> Recognised | Unusable | None:
    is_named = has_ending(head.path.name, SUFFIXES)
    try:
        with EtFile(head.path) as file:
            first = next(iter(file), None)
            metadata = file.metadata
    except DataError as error:
        return Unusable(str(error).removeprefix(f"{head.path} ").rstrip(".")) if is_named else None
    if first is None and is_named:
        return Unusable("is a Chakra trace without nodes")
    stated = _VERSION.match(metadata.version) or "schema" in metadata.attributes
    return Recognised(FORMAT) if first is not None and (is_named or stated) else None


def read(path: Path, progress: Progress = silent) -> ExecutionGraph:
    """Read the graph of a file.

    Nodes before damage are kept and losses are noted; raises DataError if there are none.
    """
    builder = GraphBuilder(path, FORMAT, TraceGraph)
    size = max(path.stat().st_size, 1)
    with EtFile(path) as file:
        metadata = file.metadata
        try:
            for node in file:
                builder.add(node)
                if file.nodes % _REPORTED_NODES == 0:
                    progress(f"read {path.name}", file.source.file_position, size)
        except DataError as error:
            if not file.nodes:
                raise
            builder.losses.truncated = True
            builder.losses.notes.append(f"{error} The {file.nodes:,} nodes before it are used.")
        if file.unknown:
            builder.losses.notes.append(unknown_fields(file.unknown))
    values = {name: attribute.value for name, attribute in metadata.attributes.items()}
    return builder.graph(metadata.version, values)
