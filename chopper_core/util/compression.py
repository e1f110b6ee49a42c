"""Compressed files: how their names end, how they begin, and how one is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from chopper_core.util.errors import UsageError


class Compression(NamedTuple):
    """A way to compress files that Chopper reads."""

    name: str
    ending: str
    """Of the names of its files."""
    starts: tuple[bytes, ...]
    """How its files begin."""
    unpack: str
    """The command that decompresses one."""
    codec: str
    """Arrow's name for it."""


GZIP: Final = Compression("gzip", ".gz", (b"\x1f\x8b",), "gzip -d", "gzip")
ZSTD: Final = Compression(
    "zstd",
    ".zst",
    # pzstd begins with one of the frames that are skipped.
    (b"\x28\xb5\x2f\xfd", *(bytes((kind, *b"\x2a\x4d\x18")) for kind in range(0x50, 0x60))),
    "zstd -d",
    "zstd",
)
_KNOWN: Final = (
    GZIP,
    ZSTD,
    Compression("bzip2", ".bz2", (b"BZh",), "bzip2 -d", "bz2"),
    Compression("LZ4", ".lz4", (b"\x04\x22\x4d\x18",), "lz4 -d", "lz4"),
)
"""A file next to the same one that is compressed otherwise: the first of these is read."""
COMPRESSED_STARTS: Final = tuple(start for each in _KNOWN for start in each.starts)
COMPRESSED_ENDINGS: Final = tuple(each.ending for each in _KNOWN)
COMPRESSED: Final = rf"(?:{'|'.join(COMPRESSED_ENDINGS)})?".replace(".", r"\.")
"""In a pattern of names: the ending of a compressed file, or none."""
GROWTH: Final = 12
"""How much a trace grows when it is decompressed, roughly."""
COMPRESSED_TRACE: Final = ".json.gz"
"""The ending of a trace that the PyTorch profiler compresses."""
_LEVEL: Final = 5
"""Of gzip: half the time of the usual one, for a few percent of size."""
_UNWRITTEN: Final = (".xz", ".lzma", ".zip", ".7z", ".br", ".Z")
"""Endings of compressions that nothing here writes or reads."""
_LONGEST_START: Final = max(map(len, COMPRESSED_STARTS))


def compression_of(start: bytes) -> Compression | None:
    """How a file is compressed that begins so; None if it isn't."""
    return next((each for each in _KNOWN if start.startswith(each.starts)), None)


def is_compressed(path: Path) -> bool:
    """Whether a file is compressed as its name says, or as its first bytes do."""
    if path.name.casefold().endswith(COMPRESSED_ENDINGS):
        return True
    try:
        with path.open("rb") as file:
            return compression_of(file.read(_LONGEST_START)) is not None
    except OSError:
        return False


def uncompressed_name(name: str) -> str:
    """The name of a file before it was compressed."""
    is_named = name.casefold().endswith(COMPRESSED_ENDINGS)
    return name.rpartition(".")[0] if is_named else name


def has_ending(name: str, endings: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these endings, compressed or not."""
    name = name.casefold()
    return name.endswith(endings) or uncompressed_name(name).endswith(endings)


def copies_before(name: str) -> list[str]:
    """The names of the files that are read in place of a compressed one, if they are there."""
    plain = uncompressed_name(name)
    if plain == name:
        return []
    own = name.removeprefix(plain).casefold()
    return [plain, *(plain + each for each in COMPRESSED_ENDINGS[: COMPRESSED_ENDINGS.index(own)])]


@contextmanager
def compressing(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """What writes to an open file, compressed as the ending of its name says.

    The same content gives the same bytes. Raises UsageError for a compression that isn't known, or
    that this build of Arrow has left out.
    """
    ending = Path(name).suffix
    how = next((each for each in _KNOWN if each.ending == ending.casefold()), None)
    if how is None:
        if ending in _UNWRITTEN:
            raise UsageError(
                f"{name}: {ending} can't be written; {', '.join(COMPRESSED_ENDINGS)} can"
            )
        yield file
    elif how is GZIP:
        import gzip  # only writers need it

        # Without a name and a time in it.
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
            yield packed  # type: ignore[misc]
    else:
        import pyarrow as pa

        if not pa.Codec.is_available(how.codec):
            raise UsageError(
                f"{name}: this build of Arrow can't write {how.name}; {GZIP.ending} can"
            )
        stream: Any = pa.CompressedOutputStream(pa.PythonFile(_KeptOpen(file), mode="w"), how.codec)
        with stream:
            yield stream


class _KeptOpen:
    """A file that Arrow writes to: closing it is its opener's."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """Left to its opener."""


def compressed(content: bytes, name: str) -> bytes:
    """The content of a file, compressed as the ending of its name says; raises UsageError."""
    made = BytesIO()
    with compressing(made, name) as file:
        file.write(content)
    return made.getvalue()


def refuse_compressed(path: Path, what: str) -> None:
    """Raise UsageError where a name promises a compression that its kind of output can't have."""
    if path.name.casefold().endswith((*COMPRESSED_ENDINGS, *_UNWRITTEN)):
        raise UsageError(f"{path}: {what}; name it {path.with_suffix('').name}")
