"""Chakra execution traces in protobuf: `.et` files of a rank each, plain or gzip."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from chopper_core.sources.chakra.files import EtFile
from chopper_core.sources.chakra.graph import ExecutionGraph, GraphBuilder
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.shared.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Chakra execution trace"
FILES: Final = "[`.et` or `.et.gz`](chakra.md) (protobuf), one file per rank"
EXAMPLE: Final = "chopper export RUN --to chakra -o DIR"
SUFFIXES: Final = (".et", ".et.gz")
FORMAT: Final = "Chakra .et"
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_REPORTED_NODES: Final = 4096


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise a file by its first messages: it has no magic number."""
    is_named = head.path.name.casefold().endswith(SUFFIXES)
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

    Nodes before damage are kept and what is lost is noted; raises DataError if there are none.
    """
    builder = GraphBuilder(path, FORMAT)
    size = max(path.stat().st_size, 1)
    with EtFile(path) as file:
        metadata = file.metadata
        try:
            for node in file:
                builder.add(node)
                if file.nodes % _REPORTED_NODES == 0:
                    progress(f"read {path.name}", file.done_bytes, size)
        except DataError as error:
            if not file.nodes:
                raise
            builder.losses.truncated = True
            builder.losses.notes.append(f"{error} The {file.nodes:,} nodes before it are used.")
    values = {name: attribute.value for name, attribute in metadata.attributes.items()}
    return builder.graph(metadata.version, values)
