"""Streams of `.et` files: messages behind their lengths, plain or gzip, one in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from chopper_core.sources.chakra.schema import (
    Metadata,
    Node,
    decode_metadata,
    decode_node,
    delimited,
    encode_metadata,
    encode_node,
)
from chopper_core.sources.chakra.wire import WireError
from chopper_core.sources.shared.bytes import ByteSource
from chopper_core.util.errors import DataError

MAX_MESSAGE_BYTES: Final = 1 << 26
"""A node larger than this is refused: a million dependencies take 3 MB."""
_MAX_LENGTH_BYTES: Final = 5
_FEW_NODES: Final = 1 << 18


class EtFile:
    """An open `.et` file: its metadata, and its nodes one after the other."""

    def __init__(self, path: Path) -> None:
        """Open a file and read its metadata; raises DataError if it has none."""
        self.path = path
        self.nodes = 0
        """Nodes read so far."""
        # Any bytes may be a length: no magic number of another format is one here.
        self._source = ByteSource(path, foreign=False)
        self._data = b""
        self._at = 0
        try:
            first = self._message()
            self.metadata: Metadata = decode_metadata(first) if first else Metadata()
        except WireError as error:
            self._source.__exit__()
            raise DataError(
                f"{path} can't be read as a Chakra trace: its start {error}."
            ) from error

    def __enter__(self) -> EtFile:
        return self

    def __exit__(self, *_error: object) -> None:
        self._source.__exit__()

    @property
    def done_bytes(self) -> int:
        """Bytes of the file on disk that were read."""
        return self._source.file_position

    def __iter__(self) -> Iterator[Node]:
        """Yield the nodes; raises DataError at the first that is cut off or invalid."""
        while True:
            try:
                message = self._message()
                if message is None:
                    return
                if not message:
                    raise WireError("is empty, and upstream's readers stop there")
                node = decode_node(message)
            except WireError as error:
                raise DataError(
                    f"{self.path} is damaged: node {self.nodes + 1:,} of the file {error}."
                ) from error
            self.nodes += 1
            if self.nodes > max(_FEW_NODES, self._source.size_bytes):
                raise DataError(f"{self.path} holds more nodes than bytes, as no true trace does.")
            yield node

    def _message(self) -> bytes | None:
        """The next message; None at the end of the file."""
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
            why = f" ({self._source.problem})" if self._source.problem else ""
            raise WireError(f"claims {size:,} bytes where {len(message):,} are left{why}")
        return message

    def _take(self, size: int) -> bytes:
        while len(self._data) - self._at < size:
            piece = self._source.read()
            if not piece:
                break
            self._data = self._data[self._at :] + piece
            self._at = 0
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken


def write_et(file: IO[bytes], metadata: Metadata, nodes: Iterable[Node]) -> int:
    """Write a trace and return the number of its nodes."""
    file.write(delimited(encode_metadata(metadata)))
    count = 0
    for node in nodes:
        file.write(delimited(encode_node(node)))
        count += 1
    return count
