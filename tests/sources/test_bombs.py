"""Small files that unpack to large ones: refused, or read in part; the trace beside them opens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.ingest.rank import read_rank
from chopper_core.sources.settings import read_settings
from chopper_core.tables import bytes as byte_source
from chopper_core.tables.parquet import opened_parquet
from chopper_core.util.errors import DataError
from tests.bombs import BOMBS, LIMIT_MIB, explode
from tests.limited import NEEDS_LINUX
from tests.programs.fuzz.seeds import small_trace
from tests.wording import Wording

_TEST_MIB = 64


@NEEDS_LINUX
@pytest.mark.sweep
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little_and_hides_nothing(name: str) -> None:
    _, more_mib = explode(name, _TEST_MIB)
    assert more_mib < LIMIT_MIB


def test_gzip_is_read_up_to_the_ratio_of_true_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(byte_source, "_SMALL_BYTES", 1 << 16)
    monkeypatch.setattr(byte_source, "PIECE_BYTES", 1 << 14)
    plain = small_trace().write(tmp_path / "rank0.json")
    text = plain.read_bytes()
    bomb = tmp_path / "rank1.json.gz"
    bomb.write_bytes(gzip.compress(text[: text.rindex(b"]")] + b"," + b" " * (8 << 20)))
    run = read_rank(bomb)
    assert len(run.table) == len(read_rank(plain).table)
    wording.among(run.sources[0].losses, "150 times")
    honest = np.random.default_rng(1).integers(0, 9, 1 << 20).astype("S1").tobytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(honest))
    with byte_source.ByteSource(tmp_path / "a.gz", 1 << 14) as source:
        assert sum(map(len, iter(source.read, b""))) == len(honest) and source.problem is None


@pytest.mark.parametrize("name", [*(name for name in BOMBS if "parquet" in name)])
def test_parquet_of_equal_rows_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_source, "_SMALL_BYTES", 1 << 16)
    path = BOMBS[name](tmp_path, 1)
    with pytest.raises(DataError, match="150 times its size"):
        opened_parquet(path).__enter__()
    small_trace().write(tmp_path / "rank0.json")
    assert len(open_run(str(tmp_path), jobs=1).table) == 16


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manifest.json", "[" * 100_000),
        ("manifest.json", '{"a":' * 100_000),
        ("chopper.yaml", "a:" + " " * 500_000 + "b"),
        ("job.yaml", "\n".join(f"{' ' * at}k{at}:" for at in range(1000))),
        ("job.yaml", "a: &a [x]\n" + "b: [*a, *a, *a, *a]\n" * 20_000),
    ],
)
def test_settings_of_any_depth_and_width_are_read_in_no_time(
    name: str, text: str, tmp_path: Path
) -> None:
    small_trace().write(tmp_path / "rank0.json")
    (tmp_path / name).write_text(text)
    assert len(open_run(str(tmp_path), jobs=1).table) == 16
    assert len(read_settings(tmp_path)) < 10


@pytest.mark.parametrize("depth", [100, 100_000])
def test_ranks_of_groups_may_be_nested_beyond_any_decoder(depth: int, tmp_path: Path) -> None:
    trace = small_trace()
    groups = trace.members["distributedInfo"]["pg_config"]
    groups[0]["ranks"] = "[" * depth
    for event in trace.events:
        if "Process Group Ranks" in event.get("args", {}):
            event["args"]["Process Group Ranks"] = "[" * depth
        if "Input Dims" in event.get("args", {}):
            event["args"]["Input Dims"] = "[" * depth + "]" * depth
    # The document is as deep as that of a decoder that recurses into texts only.
    path = trace.write(tmp_path / "rank0.json")
    assert json.loads(path.read_text())["traceEvents"]
    assert len(read_rank(path).table) == 16


def test_gzip_members_without_content_end_a_file(tmp_path: Path) -> None:
    plain = small_trace().write(tmp_path / "rank0.json")
    packed, empty = gzip.compress(plain.read_bytes()), gzip.compress(b"")
    for members, reason in ((900, ""), (50_000, "More than 1,000 empty gzip members")):
        path = tmp_path / "rank1.json.gz"
        path.write_bytes(packed + empty * members)
        run = read_rank(path)
        assert len(run.table) == 16
        assert any(reason in loss for loss in run.sources[0].losses) == bool(reason)
    with byte_source.ByteSource(path) as source:
        assert b"".join(iter(source.read, b"")) == plain.read_bytes()
