"""Compressed streams that Arrow decompresses; of a damaged one all that is before the damage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pyarrow as pa

from chopper_core.util.compression import Compression

_STEP_BYTES: Final = 1 << 14
"""Arrow drops what a read that fails has decompressed so far."""
_ENDS_EARLY: Final = "Truncated"
_LARGE_WINDOW: Final = "too much memory for decoding"
_NO_MEMORY: Final = "not enough memory"


class TooLargeWindow(ValueError):
    """A file that Arrow can't decompress within 128 MiB of memory."""


class _CompressedBytes:
    """The file that Arrow reads."""

    closed = False

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def read(self, _wanted: int) -> bytes:
        return self._read()

    def close(self) -> None:
        """The file is its opener's to close."""


def can_decompress(compression: Compression) -> bool:
    """Whether this build of Arrow can: a distribution may leave codecs out."""
    return bool(pa.Codec.is_available(compression.codec))


class ArrowStream:
    """The decompressed bytes of a file.

    `read` returns some compressed bytes, and after `rewind` the first ones.
    """

    def __init__(
        self, compression: Compression, read: Callable[[], bytes], rewind: Callable[[], object]
    ) -> None:
        self.problem = ""
        """Why the stream ends before it should, as the rest of a sentence that starts with it."""
        self._codec = compression.codec
        self._read_compressed, self._rewind = read, rewind
        self._given = 0
        self._stream = self._opened()

    def _opened(self) -> pa.CompressedInputStream:
        file = pa.PythonFile(_CompressedBytes(self._read_compressed), mode="r")
        return pa.CompressedInputStream(file, self._codec)

    def read(self, wanted: int) -> bytes:
        """Return at most so many bytes; none at the end. Raises TooLargeWindow."""
        if self.problem:
            return b""
        try:
            part: bytes = self._stream.read(min(wanted, _STEP_BYTES))
        except OSError as error:
            says = str(error)
            if _LARGE_WINDOW in says:
                raise TooLargeWindow(says) from error
            if _NO_MEMORY in says:
                raise MemoryError(says) from error
            why = says.rpartition(" failed: ")[2]
            self.problem = "is cut off" if _ENDS_EARLY in says else f"is damaged ({why})"
            part = self._before_damage()
        self._given += len(part)
        return part

    def _before_damage(self) -> bytes:
        """What the read that failed had decompressed: it is done again byte by byte."""
        self._rewind()
        found = bytearray()
        with suppress(OSError):
            stream, left = self._opened(), self._given
            while left and (again := stream.read(min(left, _STEP_BYTES))):
                left -= len(again)
            while byte := stream.read(1):
                found += byte
        return bytes(found)
