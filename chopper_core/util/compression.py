"""Compressed files: how their names end, and how they begin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct


class Compression(Struct, frozen=True):
    """A way to compress files that Chopper reads."""

    name: str
    ending: str
    """Of the names of its files."""
    starts: tuple[bytes, ...]
    """How its files begin."""
    unpack: str
    """The command that decompresses one."""


GZIP: Final = Compression("gzip", ".gz", (b"\x1f\x8b",), "gzip -d")
ZSTD: Final = Compression(
    "zstd",
    ".zst",
    # pzstd begins with one of the frames that are skipped.
    (b"\x28\xb5\x2f\xfd", *(bytes((kind, *b"\x2a\x4d\x18")) for kind in range(0x50, 0x60))),
    "zstd -d",
)
_KNOWN: Final = (
    GZIP,
    ZSTD,
    Compression("bzip2", ".bz2", (b"BZh",), "bzip2 -d"),
    Compression("LZ4", ".lz4", (b"\x04\x22\x4d\x18",), "lz4 -d"),
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
