"""Errors of rare files: each in the sentence that docs/internals/errors.md lists."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from chopper_core.extensions.chakra import et
from chopper_core.ingest.counter_run import run_of_dispatches
from chopper_core.ingest.open import open_run
from chopper_core.model.overrides import NO_OVERRIDES
from chopper_core.sources.counters import device_samples, rocpd
from chopper_core.sources.kineto.reader import read as read_trace
from chopper_core.tables.database import opened_database
from chopper_core.util.errors import DataError
from tests.ingest.chakra_files import node, written
from tests.programs.fuzz.seeds import SEEDS
from tests.sources.counters.counter_writers import made_run, minimal_rocpd
from tests.views.test_pipeline import dump
from tests.wording import Wording


def test_a_trace_without_a_byte(tmp_path: Path) -> None:
    for name, content in (("rank0.json", b""), ("rank0.json.gz", gzip.compress(b" \n"))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=r"is empty\."):
            read_trace(tmp_path / name)


def test_chakra_nodes_beyond_any_time(tmp_path: Path) -> None:
    nodes = [node(1, 5, name="gemm", ts_ns=2**62), node(2, 5, 1, name="gemm")]
    path = written(tmp_path / "a.0.et", nodes, world_size=1, rank=0)
    with pytest.raises(DataError, match="has times that are not valid nanoseconds"):
        open_run(str(path), jobs=1)


def test_more_chakra_nodes_than_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(et, "_FEW_NODES", 8)
    path = written(tmp_path / "a.0.et", [node(1, 5)] * 2000, world_size=1, rank=0)
    packed = path.with_suffix(".et.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with et.EtFile(packed) as file, pytest.raises(DataError, match="holds more nodes than bytes"):
        list(file)


def test_two_traces_of_a_system_beside_its_log(tmp_path: Path, wording: Wording) -> None:
    SEEDS["astra-sim logger"](tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.0.et").write_bytes(b"")
    run = open_run(str(tmp_path / "sim.txt"), jobs=1)
    said = [loss for source in run.sources for loss in (*source.losses, *source.notes)]
    wording.among(said, "a.0.et and b.0.et")


def test_steps_of_a_pipeline_that_take_years(tmp_path: Path) -> None:
    dump(tmp_path, 0, [(0, 1), (2, 9e7)], 9e7)
    path = tmp_path / "pp_0.json"
    (step, *_) = json.loads(path.read_text()).values()
    path.write_text(json.dumps(dict.fromkeys(range(200), step)))
    with pytest.raises(DataError, match=r"steps take .* days together, which no run does"):
        open_run(str(tmp_path), jobs=1)


def test_device_samples_without_a_kernel(tmp_path: Path) -> None:
    SEEDS["device samples"](tmp_path)
    path = next(tmp_path.glob("kernel_traces_rank*.csv"))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"has no kernels\."):
        device_samples.read(path)


def test_counters_without_a_dispatch() -> None:
    with pytest.raises(DataError, match=r"a.csv has no kernel dispatches"):
        run_of_dispatches("R", [made_run([], {})], NO_OVERRIDES)


def test_rocpd_with_more_rows_than_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr("chopper_core.tables.database._ROWS_OF_ANY", -(10**6))
    path = minimal_rocpd(tmp_path / "1000_results.db", 1)
    notes = [note for run in rocpd.read(path) for note in run.losses.notes]
    wording.among(notes, "rocpd_kernel_dispatch", "damaged", "more rows")


def test_rocpd_whose_dispatches_are_damaged(tmp_path: Path) -> None:
    path = minimal_rocpd(tmp_path / "1000_results.db", 1)
    with closing(sqlite3.connect(path)) as db:
        table = "SELECT rootpage FROM sqlite_master WHERE name LIKE 'rocpd_kernel_dispatch%'"
        (page,) = db.execute(table).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(data)
    with pytest.raises(DataError, match="can't be read as a rocpd database: "):
        rocpd.read(path)


def test_a_database_that_fails_after_it_was_opened(tmp_path: Path) -> None:
    """As a disk does whose errors begin there; a damaged schema is found on opening."""
    path = minimal_rocpd(tmp_path / "1000_results.db", 1)
    with (
        pytest.raises(DataError, match="can't be read as a rocpd database: Cannot operate on"),
        opened_database(path, "a rocpd") as database,
    ):
        database.close()
        database.tables()
