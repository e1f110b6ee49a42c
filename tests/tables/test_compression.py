"""Compressed files of each kind are read as the same bytes, and torn ones up to where they tore."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.text import FileHead
from chopper_core.util.compression import (
    COMPRESSED_ENDINGS,
    copies_before,
    has_ending,
    is_compressed,
    uncompressed_name,
)
from chopper_core.util.errors import DataError
from tests.wording import Wording


def arrow(codec: str) -> Callable[[bytes], bytes]:
    return lambda data: pa.Codec(codec).compress(data).to_pybytes()  # type: ignore[no-any-return]


COMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": arrow("zstd"),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".lz4": arrow("lz4"),
}
"""What makes the files with each ending that is read."""
TEXT: Final = b"".join(b'{"ts": %d, "name": "k%d"},\n' % (n * n, n % 7) for n in range(9_000))
SKIPPED_FRAME: Final = b"\x53\x2a\x4d\x18\x04\0\0\0abcd"


def read(path: Path, piece_bytes: int = 1 << 12) -> tuple[bytes, str]:
    """What is read of a file, and why it ends early."""
    found = b""
    with ByteSource(path, piece_bytes) as source:
        while piece := source.read():
            found += piece
        return found, source.problem or ""


@pytest.fixture(params=COMPRESS)
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_all_endings_are_tested() -> None:
    assert tuple(COMPRESS) == COMPRESSED_ENDINGS


@pytest.mark.parametrize("piece_bytes", [1, 1_000, 1 << 20])
def test_the_text_is_that_of_the_plain_file_whatever_its_name(
    tmp_path: Path, ending: str, piece_bytes: int
) -> None:
    text = TEXT[: 40 * piece_bytes]
    path = tmp_path / "trace.json"
    path.write_bytes(COMPRESS[ending](text))
    assert read(path, piece_bytes) == (text, "")
    assert FileHead(path).data == text[: 1 << 16]
    assert is_compressed(path)
    path.write_bytes(text)
    assert not is_compressed(path)


def test_streams_that_follow_one_another_are_one_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trace.json{ending}"
    half = len(TEXT) // 2
    path.write_bytes(COMPRESS[ending](TEXT[:half]) + COMPRESS[ending](TEXT[half:]))
    assert read(path) == (TEXT, "")


def test_frames_of_zstd_without_content_are_skipped(tmp_path: Path) -> None:
    """pzstd writes one before each frame, and seekable files end with one."""
    frames = [COMPRESS[".zst"](each) for each in (TEXT, TEXT)]
    path = tmp_path / "trace.json"
    path.write_bytes(SKIPPED_FRAME + SKIPPED_FRAME.join(frames) + SKIPPED_FRAME)
    assert read(path) == (TEXT + TEXT, "")


@pytest.mark.parametrize("spoilt", [True, False])
def test_all_before_a_tear_is_read(tmp_path: Path, ending: str, spoilt: bool) -> None:
    """Of streams of a few lines each, all before the one that is damaged or cut."""
    path = tmp_path / "trace.json"
    lines = TEXT.splitlines(keepends=True)[:400]
    streams = [COMPRESS[ending](b"".join(lines[at : at + 8])) for at in range(0, 400, 8)]
    whole, torn = b"".join(streams[:30]), streams[30][: len(streams[30]) // 2]
    path.write_bytes(whole + torn + (b"\xff" * 4096 + b"".join(streams[31:]) if spoilt else b""))
    found, problem = read(path)
    assert found.startswith(b"".join(lines[: 30 * 8]))
    assert TEXT.startswith(found) or spoilt
    assert ("stream is damaged (" if spoilt else "stream is cut off") in problem


def test_a_stream_that_is_cut_anywhere_gives_a_start_of_the_text(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / "trace.json"
    whole = COMPRESS[ending](TEXT)
    most = 0
    for kept in range(12, len(whole), len(whole) // 12):
        path.write_bytes(whole[:kept])
        found, problem = read(path)
        assert TEXT.startswith(found) and "cut off" in problem
        most = max(most, len(found))
    # No more than the last block of each is lost.
    assert most > len(TEXT) - (1 << 17) - (1 << 16)


def test_bytes_that_follow_take_nothing_from_the_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(COMPRESS[ending](TEXT) + b"others")
    found, problem = read(path)
    assert found == TEXT and "stream" in problem


def test_a_stream_that_is_damaged_at_its_start_is_not_called_empty(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(COMPRESS[ending](TEXT)[:9])
    head = FileHead(path)
    assert head.data == b"" and "cut off" in head.problem


def test_a_bomb_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chopper_core.tables.bytes._SMALL_BYTES", 1 << 16)
    for ending, compress in COMPRESS.items():
        path = tmp_path / f"trace.json{ending}"
        path.write_bytes(compress(b" " * (1 << 24)))
        found, problem = read(path)
        unpacked = 150 * path.stat().st_size
        assert max(unpacked, 1 << 16) < len(found) < max(unpacked, 1 << 16) + (1 << 16), ending
        assert "150 times" in problem


def test_a_window_that_needs_gigabytes_is_refused(tmp_path: Path, wording: Wording) -> None:
    path = tmp_path / "trace.json.zst"
    # A frame with a window of 2 GiB, as `zstd --long=31` writes it, and a block of one byte.
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x09\x00\x00 ")
    with pytest.raises(DataError) as raised:
        read(path)
    wording(str(raised.value), "trace.json.zst", "128 MiB", "zstd -d --long=31")


def test_arrow_without_a_codec_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    path = tmp_path / "trace.json.zst"
    path.write_bytes(COMPRESS[".zst"](TEXT))
    monkeypatch.setattr("chopper_core.tables.arrow_stream.can_decompress", lambda _: False)
    with pytest.raises(DataError) as raised:
        read(path)
    wording(str(raised.value), "trace.json.zst", "zstd -d")


def test_names_before_and_after_compression() -> None:
    assert uncompressed_name("rank0.pt.trace.json.zst") == "rank0.pt.trace.json"
    assert uncompressed_name("RANK0.JSON.GZ") == "RANK0.JSON"
    assert uncompressed_name("gz") == "gz" and uncompressed_name("rank0.json") == "rank0.json"
    assert has_ending("Rank0.JSON.zst", (".json",)) and has_ending("rank0.json", (".json",))
    assert has_ending("a.gz", (".gz",)) and not has_ending("rank0.json.xz", (".json",))
    assert copies_before("rank0.json") == []
    assert copies_before("rank0.json.zst") == ["rank0.json", "rank0.json.gz"]
