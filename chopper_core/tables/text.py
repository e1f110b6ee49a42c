"""The start of a file, by which its format is recognised, and the text of a whole file."""

from __future__ import annotations

import csv
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from functools import cached_property, lru_cache
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

from chopper_core.tables.bytes import ByteSource, not_a_file
from chopper_core.tables.losses import Losses
from chopper_core.util.atomic import FileState, file_state
from chopper_core.util.compression import COMPRESSED_ENDINGS, Compression, compression_of
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late

HEAD_BYTES: Final = 1 << 16
HEADING_LINES: Final = 50
"""Headings are searched for in so many lines: warnings and comments may precede them."""
TEXT_SUFFIXES: Final = (
    ".csv", ".json", ".jsonl", ".txt", ".log", ".out", *COMPRESSED_ENDINGS
)  # fmt: skip
"""Common endings of text files written by tools."""
PRINTED: Final = late(r'\s*\{\s*"schema"\s*:\s*"chopper\.')
"""How JSON that Chopper prints begins."""
SQLITE_MAGIC: Final = b"SQLite format 3\0"
_MAGIC_BYTES: Final = 16
_BLOCK_BYTES: Final = 1 << 20
_PROBED_BYTES: Final = 1 << 9
"""Text may contain zeros further on: files open at a power failure often end in them."""
MAX_LINE: Final = 1 << 18
"""No tool writes longer lines of telemetry; in characters."""
MAX_OBJECT: Final = 1 << 24
"""Nor longer JSON objects: a snapshot of a GPU takes some 10,000 characters."""
_TOO_DEEP: Final = 1 << 16
"""So many characters are skipped where objects are nested beyond any decoder's depth."""
_LONGEST_START: Final = 1 << 10
"""The start of an object, with the white space in it."""
_LONGEST_TOKEN: Final = 64
"""A number or a word of JSON that is cut off is an error within its length of the end."""
_BLANKS: Final = "\n\n\n"
_SHORT_LINE: Final = 8
"""Where lines are longer on average, few are empty."""
_MANY_BLANKS: Final = re.compile(r"\n{3,}|(?:\r\n){3,}")


class FileHead:
    """The first 64 KiB of a file, decompressed; read lazily and once for all formats."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why `data` can't be read, as the rest of a sentence that starts with the file."""

    @cached_property
    def magic(self) -> bytes:
        """The first bytes on disk; empty if the file can't be read."""
        if not_a_file(self.path):
            return b""
        try:
            with self.path.open("rb") as file:
                return file.read(_MAGIC_BYTES)
        except OSError:
            return b""

    @property
    def compression(self) -> Compression | None:
        return compression_of(self.magic)

    @cached_property
    def data(self) -> bytes:
        """The decompressed bytes after any byte order mark; empty if unreadable."""
        try:
            with ByteSource(self.path, HEAD_BYTES) as source:
                data = source.read()
                if source.problem and not data:
                    self.problem = f"can't be read: {source.problem}"
                return data
        except DataError as error:
            self.problem = str(error).removeprefix(f"{self.path} ").rstrip(".")
            return b""

    @cached_property
    def tables(self) -> frozenset[str]:
        """The tables of an SQLite database; none for other files, or if it can't be read."""
        if not self.magic.startswith(SQLITE_MAGIC):
            return frozenset()
        from chopper_core.tables.database import opened_database

        try:
            with opened_database(self.path, "an SQLite") as database:
                return frozenset(database.tables())
        except DataError:
            return frozenset()

    @cached_property
    def text(self) -> str:
        """The bytes as text; '' for binary files."""
        return "" if b"\x00" in self.data[:_PROBED_BYTES] else self.data.decode("utf-8", "replace")

    @cached_property
    def lines(self) -> list[str]:
        lines = self.text.splitlines()
        is_cut = len(lines) > 2 and not self.text.endswith(("\n", "\r"))
        return lines[:-1] if is_cut else lines

    @property
    def is_json(self) -> bool:
        return self.text.lstrip().startswith(("{", "["))

    @cached_property
    def rows(self) -> list[list[str]]:
        """The cells of the lines that may be headings; empty for JSON."""
        if self.is_json:
            return []
        return [csv_cells(line) for line in self.lines[:HEADING_LINES]]


def head_of(path: Path) -> FileHead:
    """The start of a file in its present state, the same for all who ask in turn."""
    return _head_of(path, file_state(path))


@lru_cache(maxsize=4)
def _head_of(path: Path, _state: FileState) -> FileHead:
    return FileHead(path)


class FileText:
    """The text of a file, read piece by piece up to any damage, and the losses in reading it."""

    def __init__(self, path: Path, losses: Losses | None = None) -> None:
        self.path = path
        self.losses = Losses() if losses is None else losses
        self.too_long = 0
        """How many lines were skipped so far."""
        self.position = self.size_bytes = 0
        """Of the file on disk, in bytes."""

    def lines(self) -> Iterator[str]:
        for block in self.blocks():
            yield from split_lines(block)

    def blocks(self) -> Iterator[str]:
        """Yield whole lines of about 1 MiB, without a truncated last one: half a number is a wrong
        number.

        Of empty lines in a row some are left out. A line longer than `MAX_LINE` is skipped and
        counted. Raises DataError if the file can't be read.
        """
        lines, rest, is_skipping = 0, "", False
        for piece in self._pieces(_BLOCK_BYTES):
            text = rest + piece
            ends = text.count("\n")
            if ends * _SHORT_LINE > len(text):
                # At most some empty lines in a row: millions would take long.
                text = _MANY_BLANKS.sub(_BLANKS, text)
            # A line may continue, or its line feed follow, in the next piece.
            *ended, rest = _with_ends(text[text.rfind("\n") + 1 :]) or [""]
            text = text[: text.rfind("\n") + 1] + "".join(ended)
            if is_skipping or _may_be_long(text):
                found = _with_ends(text)
                known = found[1:] if is_skipping else found
                fitting = [line for line in known if len(line) <= MAX_LINE]
                self.too_long += len(found) - len(fitting)
                is_skipping = is_skipping and not found
                text = "".join(fitting)
            lines += ends + len(ended)
            yield text
            if len(rest) > MAX_LINE:
                rest, is_skipping = "", True
        self.too_long += is_skipping
        self.losses.unreadable_events += self.too_long
        self.losses.note(self.too_long, "line", f"longer than {MAX_LINE >> 10} KiB: skipped")
        if rest and lines > 1 and not rest.endswith("\r"):
            self._ends_early()
        elif rest and not is_skipping:
            yield rest.rstrip("\r")

    def objects(self, start: re.Pattern[str]) -> Iterator[dict[str, Any] | str]:
        """Yield the JSON objects that begin as `start` does; of one that can't be decoded the
        start.

        Objects inside of others are part of these; one longer than `MAX_OBJECT` can't be decoded.
        Raises DataError if the file can't be read.
        """
        decoder = json.JSONDecoder(strict=False)
        pieces = self._pieces(HEAD_BYTES)
        text, position, last, is_over = "", 0, "", False
        while not is_over:
            piece = "".join(islice(pieces, max(len(text) // HEAD_BYTES, 1)))
            text, position, is_over = text[position:] + piece, 0, not piece
            last = piece.rstrip()[-1:] or last
            while begin := start.search(text, position):
                try:
                    found, position = decoder.raw_decode(text, begin.start())
                    yield found
                    continue
                except RecursionError:
                    position = begin.end() + _TOO_DEEP
                except ValueError as error:
                    if not is_over and _may_go_on(error, text):
                        position = begin.start()
                        if len(text) - position <= MAX_OBJECT:
                            break
                        position = len(text)
                    else:
                        position = begin.end()
                yield begin.group()
            else:
                # The next object may have begun.
                position = max(position, len(text) - _LONGEST_START)
        if last not in ("}", "]"):
            self._ends_early()

    def _ends_early(self) -> None:
        self.losses.truncated = True
        self.losses.notes.append("The file ends within a row, which is skipped.")

    def _pieces(self, piece_bytes: int) -> Iterator[str]:
        with ByteSource(self.path, piece_bytes) as source:
            decode = getincrementaldecoder("utf-8")("replace").decode
            self.size_bytes = source.size_bytes
            while piece := source.read():
                self.position = source.file_position
                yield decode(piece)
            yield decode(b"", True)
            if source.problem:
                self.losses.truncated = True
                self.losses.notes.append(f"{source.problem}: the data before it is used.")


def _may_be_long(text: str) -> bool:
    """Whether a line may be longer than `MAX_LINE`."""
    half = MAX_LINE // 2
    return any(text.find("\n", at, at + half) < 0 for at in range(0, len(text) - half, half))


def _may_go_on(error: ValueError, text: str) -> bool:
    """Whether an object can't be decoded because its end is missing."""
    if not isinstance(error, json.JSONDecodeError):
        return False  # A number of more digits than Python takes.
    return error.pos >= len(text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated")


def split_lines(text: str) -> list[str]:
    """Lines that end with a line feed or a carriage return, and with nothing else of Unicode's."""
    return [line.rstrip("\r\n") for line in _with_ends(text)]


def _with_ends(text: str) -> list[str]:
    return StringIO(text, newline="").readlines()


def csv_cells(line: str) -> list[str]:
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]
