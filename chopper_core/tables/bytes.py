"""Files opened read-only, as a stream of bytes; compressed ones are decompressed on the way, as far
as they are intact."""

from __future__ import annotations

import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from stat import S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISSOCK
from typing import IO, TYPE_CHECKING, Any, Final

from chopper_core.util.atomic import BYTE_ORDER_MARK
from chopper_core.util.compression import GROWTH, GZIP, Compression, compression_of
from chopper_core.util.errors import DataError

if TYPE_CHECKING:
    from chopper_core.tables.arrow_stream import ArrowStream

_WIDE: Final = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""PowerShell writes UTF-16 with these for `nvidia-smi > file`."""
_LONGEST_MARK: Final = 4
PIECE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
_BLOCK_BYTES: Final = 1 << 12
"""Of a compressed file, which are decompressed at a time: what is in a damaged one is lost."""


try:
    # Its drop-in module inflates several times faster.
    _INFLATE: Any = import_module("isal.isal_zlib")
except ImportError:
    _INFLATE = zlib
_INFLATE_ERRORS: Final[tuple[type[Exception], ...]] = (zlib.error, _INFLATE.error)
_GZIP_WINDOW_BITS: Final = 31
_MAX_EMPTY_MEMBERS: Final = 1000
MAX_RATIO: Final = 150
"""How often its size a file of a true run may unpack to: gzipped traces do 10 to 40 times."""
_SMALL_BYTES: Final = 1 << 26
"""Up to so many unpacked bytes any ratio is read."""
_MAGIC_BYTES: Final = 64
_PICKLE: Final = (
    "is a Python pickle, which can run any code, so Chopper never opens it; convert it where it "
    'comes from: pandas.read_pickle("{name}").to_csv("{stem}.csv", index=False) keeps {columns}'
)
_PICKLED: Final = {
    "cpu": "ts, cpu and percent; add the column core from lscpu -e=CPU,CORE",
    "gpu": "ts (CLOCK_MONOTONIC), gpu (the KFD node) and the columns of "
    "amdsmi_get_gpu_metrics_info",
}
"""What the original's pickles hold, by the stem of their names."""
_SNAPSHOT: Final = (
    "is a memory snapshot of PyTorch, a Python pickle, which can run any code, so Chopper never "
    "opens it; write JSON where it comes from: json.dump(torch.cuda.memory._snapshot(), file), or "
    'of this file json.dump(pandas.read_pickle("{name}"), open("{stem}.json", "w"))'
)
_SNAPSHOT_KEYS: Final = (b"segments", b"device_traces")
"""The name at the start of a snapshot's pickle."""
_NO_FILES: Final = {
    S_ISFIFO: "a pipe",
    S_ISSOCK: "a socket",
    S_ISCHR: "a device",
    S_ISBLK: "a device",
    S_ISDIR: "a directory",
}
_FOREIGN_MAGIC: Final = {
    b"\xfd7zXZ\x00": "is compressed with xz; decompress it first (xz -d)",
    b"7z\xbc\xaf\x27\x1c": "is a 7-Zip archive; unpack it first (7z x)",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"SQLite format 3\x00": "is an SQLite database, not a trace in JSON",
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), _PICKLE),
    b"PAR1": "is a Parquet file, not a trace in JSON",
}


def is_bomb(size_bytes: int, unpacked_bytes: int) -> bool:
    """Whether a file unpacks to more than a true one of its size does."""
    return unpacked_bytes > max(_SMALL_BYTES, MAX_RATIO * size_bytes)


def not_a_file(path: Path) -> str:
    """Why a path can't be read as a file, as the rest of a sentence: opening a pipe waits for its
    writer, without an end. '' where it can, or where opening it will tell."""
    try:
        status = path.stat()
        # /proc/kmsg, which is empty and waits for the kernel, says that it is a file.
        if not status.st_size and path.resolve().is_relative_to("/proc"):
            return "is a file of the kernel, not of a disk"
    except OSError:
        return ""
    mode = status.st_mode
    kind = next((name for is_kind, name in _NO_FILES.items() if is_kind(mode)), "")
    return f"is {kind}, not a file; Chopper reads files more than once" if kind else ""


class ByteSource:
    """Reads a file, compressed as its first bytes say or not, in pieces of about `piece_bytes`.

    Text that starts with a byte order mark is given in UTF-8, without the mark: no reader sees one.

    A truncated or damaged stream ends at the damage, which `problem` then describes. With
    `foreign`, a file that starts like one of another format raises DataError, which names it.
    """

    def __init__(self, path: Path, piece_bytes: int = PIECE_BYTES, *, foreign: bool = True) -> None:
        self.path = path
        self.piece_bytes = piece_bytes
        self.problem: str | None = None
        self.bytes_given = 0
        self.last = b""
        """The piece that was given last."""
        self._zeros = 0
        self._inflater: Any = None
        """Of gzip."""
        self._stream: ArrowStream | None = None
        """Of all other compressions."""
        self._ended = False
        self._empty_members = 0
        self._has_content = False
        self._pending = b""
        self._decode: Callable[[bytes], str] | None = None
        if why := not_a_file(path):
            raise DataError(f"{path} {why}.")
        try:
            self._file: IO[bytes] = path.open("rb", buffering=_READ_BYTES)
            self.size_bytes = path.stat().st_size
            magic = self._file.read(_MAGIC_BYTES)
            self._file.seek(0)
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
        for start, meaning in _FOREIGN_MAGIC.items() if foreign else ():
            if magic.startswith(start):
                self._file.close()
                if meaning is _PICKLE and any(key in magic for key in _SNAPSHOT_KEYS):
                    meaning = _SNAPSHOT
                elif meaning is _PICKLE:
                    columns = _PICKLED.get(path.stem, "its columns")
                    meaning = meaning.format(name=path.name, stem=path.stem, columns=columns)
                raise DataError(f"{path} {meaning}.")
        self.compression = compression_of(magic)
        if self.compression is GZIP:
            self._inflater = _INFLATE.decompressobj(_GZIP_WINDOW_BITS)
        elif self.compression is not None:
            self._stream = self._opened_stream(self.compression)

    def _opened_stream(self, compression: Compression) -> ArrowStream:
        # Imported on use: most files are plain, or gzip.
        from chopper_core.tables.arrow_stream import ArrowStream, can_decompress

        if not can_decompress(compression):
            self._file.close()
            how = f"{compression.name}; decompress it first ({compression.unpack})"
            raise DataError(f"{self.path} is compressed with {how}.")
        return ArrowStream(compression, self._read_block, lambda: self._file.seek(0))

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        self._stream = None

    @property
    def file_position(self) -> int:
        """Bytes read so far of the file on disk."""
        return self._file.tell()

    @property
    def likely_bytes(self) -> int:
        """About how long the text is."""
        return self.size_bytes * (GROWTH if self.compression else 1)

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        piece = self._read_any() if self.bytes_given else self._read_first()
        while piece and self._decode is not None:
            # Less than a character remains for the next piece.
            if text := self._decode(piece):
                return text.encode()
            piece = self._read_any()
        self.last = piece
        return piece

    def _read_first(self) -> bytes:
        """The first piece without a byte order mark, which tells the encoding."""
        piece = b""
        while len(piece) < _LONGEST_MARK and (more := self._read_any()):
            piece += more
        if encoding := next((name for mark, name in _WIDE.items() if piece.startswith(mark)), ""):
            self._decode = getincrementaldecoder(encoding)("replace").decode
        elif piece.startswith(BYTE_ORDER_MARK):
            return piece.removeprefix(BYTE_ORDER_MARK) or self._read_any()
        return piece

    def read_all(self, most: int, advice: str = "") -> bytes:
        """Return the rest of a file of JSON; raises DataError for more than it may have."""
        data = bytearray()
        while piece := self.read():
            data += piece
            if len(data) > most:
                raise DataError(f"{self.path} has more than {most:,} bytes of JSON{advice}.")
        return bytes(data)

    def _read_any(self) -> bytes:
        compression = self.compression
        piece = (
            self._decompressed(compression) if compression else self._read_file(self.piece_bytes)
        )
        if piece[:1] == b"\0" and piece.count(0) == len(piece):
            self._zeros += len(piece)
            if self._zeros > _SMALL_BYTES:
                self.problem = f"The file holds only zeros from byte {self.bytes_given:,} on"
                return b""
        self.bytes_given += len(piece)
        return piece

    def _read_file(self, wanted: int) -> bytes:
        try:
            return self._file.read(wanted)
        except OSError as error:
            self.problem = f"Reading stopped: {error.strerror or error}"
            self._ended = True
            return b""

    def _read_block(self) -> bytes:
        return self._read_file(_BLOCK_BYTES)

    def _decompressed(self, compression: Compression) -> bytes:
        parts: list[bytes] = []
        wanted = self.piece_bytes
        if is_bomb(self.size_bytes, self.bytes_given) and not self._ended:
            self._ended = True
            self.problem = (
                f"The {compression.name} stream unpacks to more than {MAX_RATIO} times its size, "
                f"as no profiler's does; {self.bytes_given >> 20} MiB were read"
            )
        while wanted > 0 and not self._ended:
            stream = self._stream
            part = self._inflated(wanted) if stream is None else self._of_arrow(stream, wanted)
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def _of_arrow(self, stream: ArrowStream, wanted: int) -> bytes:
        """Some of what is left of a compressed file; without any it has ended."""
        from chopper_core.tables.arrow_stream import TooLargeWindow

        try:
            part = stream.read(wanted)
        except TooLargeWindow as error:
            raise DataError(
                f"{self.path} is compressed with a window of more than 128 MiB; decompress it "
                "first (zstd -d --long=31)."
            ) from error
        self._ended = not part or bool(stream.problem)
        if stream.problem and self.compression:
            self.problem = self.problem or f"The {self.compression.name} stream {stream.problem}"
        return part

    def _inflated(self, wanted: int) -> bytes:
        """Some of what is left of a gzip file, perhaps nothing before its end."""
        if not self._pending:
            self._pending = self._read_block()
        is_file_read = not self._pending
        try:
            part: bytes = self._inflater.decompress(self._pending, wanted)
        except _INFLATE_ERRORS as error:
            self.problem = f"The gzip stream is damaged ({error})"
            self._ended = True
            return b""
        self._has_content = self._has_content or bool(part)
        self._pending = self._inflater.unconsumed_tail
        if self._inflater.eof:
            self._ended = not self._next_member()
        elif is_file_read and not part:
            self.problem = self.problem or "The gzip stream is cut off"
            self._ended = True
        return part

    def _next_member(self) -> bool:
        rest = self._inflater.unused_data
        (start,) = GZIP.starts
        if len(rest) < len(start):
            rest += self._read_block()
        rest = rest.lstrip(b"\x00")
        self._empty_members = 0 if self._has_content else self._empty_members + 1
        self._has_content = False
        if self._empty_members > _MAX_EMPTY_MEMBERS:
            self.problem = f"More than {_MAX_EMPTY_MEMBERS:,} empty gzip members follow each other"
            return False
        if not rest.startswith(start):
            if rest:
                self.problem = "Other bytes follow the gzip stream"
            self._pending = b""
            return False
        self._inflater = _INFLATE.decompressobj(_GZIP_WINDOW_BITS)
        self._pending = rest
        return True
