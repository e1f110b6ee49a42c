"""The start of a file, which tells its format, and the text of a whole file."""

from __future__ import annotations

import csv
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.sources.shared.bytes import BYTE_ORDER_MARK, ByteSource
from chopper_core.sources.trace import Losses
from chopper_core.util.errors import DataError

HEAD_BYTES: Final = 1 << 16
HEADING_LINES: Final = 50
"""Headings are searched for in so many lines: warnings and comments may precede them."""
TEXT_SUFFIXES: Final = (".csv", ".json", ".jsonl", ".txt", ".log", ".out", ".gz")
"""Common endings of text files written by tools."""
PARQUET_MAGIC: Final = b"PAR1"
_MAGIC_BYTES: Final = 16
_PROBED_BYTES: Final = 1 << 9
"""Text may contain zeros further on: files open at a power failure often end in them."""
_WIDE_TEXT: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
"""PowerShell writes these for `nvidia-smi > file`."""


class FileHead:
    """The first 64 KiB of a file, decompressed; read lazily and once for all formats."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why `data` can't be read, as the rest of a sentence that starts with the file."""

    @cached_property
    def magic(self) -> bytes:
        """The first bytes on disk; empty if the file can't be read."""
        try:
            with self.path.open("rb") as file:
                return file.read(_MAGIC_BYTES)
        except OSError:
            return b""

    @cached_property
    def data(self) -> bytes:
        """The decompressed bytes after any byte order mark; empty if unreadable."""
        try:
            with ByteSource(self.path, HEAD_BYTES) as source:
                return source.read().removeprefix(BYTE_ORDER_MARK)
        except DataError as error:
            self.problem = str(error).removeprefix(f"{self.path} ").rstrip(".")
            return b""

    @cached_property
    def text(self) -> str:
        """The bytes as text; '' for binary files."""
        return "" if _is_binary(self.data) else _decoded(self.data)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, without a truncated last one."""
        return _whole_lines(self.text)[0]

    @property
    def is_json(self) -> bool:
        """Whether the text starts like JSON."""
        return self.text.lstrip().startswith(("{", "["))

    @cached_property
    def rows(self) -> list[list[str]]:
        """The cells of the lines that may be headings; empty for JSON."""
        if self.is_json:
            return []
        return [csv_cells(line) for line in self.lines[:HEADING_LINES]]


class FileText(Struct, frozen=True):
    """The text of a file, and the losses in reading it."""

    path: Path
    text: str
    losses: Losses

    def lines(self) -> list[str]:
        """Return the lines without a truncated last one: half a number is a wrong number."""
        lines, is_cut = _whole_lines(self.text)
        if is_cut:
            self.losses.truncated = True
            self.losses.notes.append("The file ends within a row, which is skipped.")
        return lines


def read_text(path: Path) -> FileText:
    """Return the text of a file, up to any damage.

    Raises DataError if it can't be read.
    """
    losses = Losses()
    with ByteSource(path, HEAD_BYTES) as source:
        data = bytearray()
        while piece := source.read():
            data += piece
        if source.problem:
            losses.truncated = True
            losses.notes.append(f"{source.problem}: the data before it is used.")
    return FileText(path, _decoded(bytes(data).removeprefix(BYTE_ORDER_MARK)), losses)


def first_line(error: Exception) -> str:
    """Return the first line of an Arrow error; the others are for programmers."""
    return str(error).partition("\n")[0].rstrip(".")


def csv_cells(line: str) -> list[str]:
    """Return the cells of a line, without the space around them."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _whole_lines(text: str) -> tuple[list[str], bool]:
    """Return the lines without a truncated last one, and whether there was one."""
    lines = text.splitlines()
    is_cut = len(lines) > 2 and not text.endswith(("\n", "\r"))
    return (lines[:-1] if is_cut else lines), is_cut


def _is_binary(data: bytes) -> bool:
    return data[:2] not in _WIDE_TEXT and b"\x00" in data[:_PROBED_BYTES]


def _decoded(data: bytes) -> str:
    encoding = _WIDE_TEXT.get(data[:2])
    return data[2:].decode(encoding, "replace") if encoding else data.decode("utf-8", "replace")
