"""Stores whose checksums are right and whose contents contradict each other, or lie nowhere."""

from __future__ import annotations

import builtins
import json
import os
from errno import EACCES
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.ingest.cache import open_cached
from chopper_core.model.hardware import ElementType
from chopper_core.store.format import RUN, STORE_INDEX
from chopper_core.store.reader import large_files, read_store, verify
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError
from tests.allocating import allocating_run
from tests.programs.fuzz.stores import attack_store, seal
from tests.support import sample_run
from tests.tui.explorer import measured_run

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
        ("names", [], "values without a meaning"),
        ("operations", [], "values without a meaning"),
        ("run gpus", [], "values without a meaning"),
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
    seal(folder)
    with pytest.raises(DataError, match=f"corrupt store .*{why}"):
        read_store(folder)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("memory.arrow gpu", -1),
        ("memory.arrow operator", 1 << 20),
        ("memory.arrow partner", -2),
        ("memory.arrow phase", 7),
        ("memory.arrow time_ns", (1 << 62) + 1),
        ("host.arrow stack", 1 << 20),
        ("host.arrow state", 4),
        ("host.arrow duration_ns", -1),
        ("lane.arrow name", -2),
        ("kernels.arrow iteration", -2),
        ("kernels.arrow layer_rule", -1),
        ("kernels.arrow idle_host_ns", (1 << 63) - 1),
        ("kernels.arrow start_ns", -(1 << 62) + 1),
        ("kernels.arrow launch_ns", (1 << 62) + 1),
        ("measured.arrow model_flops_type", 9.0),
        ("measured.arrow model_flops_type", np.inf),
    ],
)
def test_a_value_that_means_nothing_is_refused(column: str, value: float, tmp_path: Path) -> None:
    run = allocating_run()
    types = np.full(len(run.table), float(ElementType.BF16))
    table = run.table.with_measured({"model_flops_type": types})
    write_store(replace(run, table=table), tmp_path / "store")
    file, name = column.split()
    _change_last(tmp_path / "store", file, name, value)
    with pytest.raises(DataError, match=f"corrupt store .*{name} has values without a meaning"):
        read_store(tmp_path / "store")


def test_a_large_file_is_checked_when_it_is_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chopper_core.store.reader._LARGE_BYTES", 1)
    _change_last(folder, "kernels.arrow", "kernel", 1 << 20)
    with pytest.raises(DataError, match="kernel has values without a meaning"):
        read_store(folder)
    monkeypatch.setattr("chopper_core.store.reader._CHECKED_BYTES", 1)
    read_store(folder)
    with pytest.raises(DataError, match="kernel has values without a meaning"):
        verify(folder, large_files(folder))


@pytest.mark.parametrize(
    ("file", "column"), [("series.arrow", "integral"), ("cpu.arrow", "percent")]
)
def test_samples_of_another_type_are_refused(file: str, column: str, tmp_path: Path) -> None:
    write_store(measured_run(), tmp_path / "store")
    content = json.loads((tmp_path / "store" / RUN).read_bytes())
    # Of the same size, so that nothing else is wrong.
    content["places"][file][column][0] = "uint64"
    (tmp_path / "store" / RUN).write_bytes(json.dumps(content).encode())
    seal(tmp_path / "store")
    with pytest.raises(DataError, match=f"corrupt store .*{column} is of uint64"):
        read_store(tmp_path / "store")


def test_rows_out_of_order_are_refused(folder: Path) -> None:
    _change_last(folder, "kernels.arrow", "gpu", 0)
    with pytest.raises(DataError, match=r"corrupt store .*out of order"):
        read_store(folder)


def _change_last(folder: Path, file: str, column: str, value: float) -> None:
    """Change the last value of a column, and give the store right checksums again."""
    kind, begin, count = json.loads((folder / RUN).read_bytes())["places"][file][column]
    data = bytearray((folder / file).read_bytes())
    np.frombuffer(data, kind, count, begin)[-1] = value
    (folder / file).write_bytes(data)
    seal(folder)


@pytest.mark.parametrize("name", [STORE_INDEX, "kernels.arrow"])
def test_a_file_that_may_not_be_read_is_not_called_corrupt(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object, *_: Any, **__: Any) -> Any:
        if str(path).endswith(name):
            raise PermissionError(EACCES, "Permission denied", str(path))
        return opened(path, *_, **__)

    opened = builtins.open
    monkeypatch.setattr(builtins, "open", refused)
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(DataError, match=rf"{name} can't be read: Permission denied; re-create"):
        read_store(folder)


@pytest.mark.parametrize(
    "number", [495, 1112, 1154, 1733, 1940, 1988, 2039, 2091, 2767, 3808, 4493, 4673, *range(6)]
)
def test_a_damaged_store_answers_or_is_refused(number: int) -> None:
    assert not attack_store(number)[1]


@pytest.mark.parametrize("name", [STORE_INDEX, RUN, "kernels.arrow"])
def test_a_hole_of_terabytes_is_refused_unread(name: str, folder: Path) -> None:
    os.truncate(folder / name, 1 << 42)
    for read in (read_store, lambda path: open_cached(str(path))):
        with pytest.raises(DataError, match=r"checksum mismatch|more than 64 MiB"):
            read(folder)
