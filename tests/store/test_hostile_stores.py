"""Stores whose checksums are right and whose contents contradict each other, or lie nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.ingest.cache import open_cached
from chopper_core.store.format import RUN, STORE_INDEX, StoreIndex
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.atomic import stamp_of
from chopper_core.util.errors import DataError
from tests.support import sample_run

PLACES = (
    (["int64", 0, 1 << 40], "smaller than requested"),
    (["int64", 1 << 62, 1], "buffer length"),
    (["int64", 0, -1], "column of -1 values"),
    (["object", 0, 1], "OBJECT"),
    (["nonsense", 0, 1], "not understood"),
    (["int64", 0, 3], "different lengths"),
    (["float64", 0, 16], "start_ns is of float64"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sample = sample_run()
    power_w = np.arange(float(len(sample.table)))
    table = sample.table.with_measured({"power_w": power_w})
    write_store(replace(sample, table=table), tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        *(("places kernels.arrow start_ns", place, why) for place, why in PLACES),
        ("places measured.arrow power_w", ["float64", 0, 3], "measured columns of another"),
        ("names", [], "codes without a meaning"),
        ("operations", [], "codes without a meaning"),
        ("run gpus", [], "codes without a meaning"),
    ],
)
def test_a_contradiction_is_refused(key: str, value: list[object], why: str, folder: Path) -> None:
    content = json.loads((folder / RUN).read_bytes())
    *above, last = key.split()
    at = content
    for name in above:
        at = at[name]
    assert at[last] != value
    at[last] = value
    (folder / RUN).write_bytes(json.dumps(content).encode())
    index = msgspec.json.decode((folder / STORE_INDEX).read_bytes(), type=StoreIndex)
    files = {name: stamp_of(folder / name) for name in index.files}
    sealed = replace(index, files=files).checked()
    (folder / STORE_INDEX).write_bytes(msgspec.json.encode(sealed))
    with pytest.raises(DataError, match=f"corrupt store .*{why}"):
        read_store(folder)


@pytest.mark.parametrize("name", [STORE_INDEX, RUN, "kernels.arrow"])
def test_a_hole_of_terabytes_is_refused_unread(name: str, folder: Path) -> None:
    os.truncate(folder / name, 1 << 42)
    for read in (read_store, lambda path: open_cached(str(path))):
        with pytest.raises(DataError, match=r"checksum mismatch|more than 64 MiB"):
            read(folder)
