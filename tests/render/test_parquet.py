"""The kernel table as Parquet, read back by pyarrow and pandas."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from chopper_core.api import OpenRun
from chopper_core.render.exports import ExportOptions, export, parquet
from tests.demo import demo_run
from tests.support import Row, run_of, sample_run
from tests.tui.explorer import measured_run

ROOT = Path(__file__).resolve().parents[2]


def plain(table: pa.Table) -> dict[str, list[object]]:
    """The values, whether or not dictionaries hold them."""
    return {name: table[name].to_pylist() for name in table.column_names}


@pytest.mark.parametrize("rows_at_once", [7, 1 << 18])
def test_the_file_reads_back_as_the_kernel_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP", rows_at_once)
    run = sample_run(gpus=2, layers=2) if rows_at_once == 7 else measured_run()
    assert export(run, "parquet", tmp_path / "kernels.parquet") == []
    expected = OpenRun(run).kernels(counters=True, signals=True)
    found = pq.read_table(tmp_path / "kernels.parquet")
    assert found.column_names == expected.column_names
    assert plain(found) == plain(expected)
    assert found["kernel"].type == expected["kernel"].type
    groups = pq.ParquetFile(tmp_path / "kernels.parquet").num_row_groups
    assert groups == -(-len(run.table) // rows_at_once)


@pytest.mark.sweep
def test_the_demo_reads_back_equal_with_its_marks(tmp_path: Path) -> None:
    run = demo_run()
    export(run, "parquet", tmp_path / "demo.parquet")
    table, frame = run.table, pq.read_table(tmp_path / "demo.parquet").to_pandas()
    assert len(frame) == len(table)
    assert frame.duration_ns.sum() == table.duration_ns.sum()
    assert np.array_equal(frame.start_ns + run.origin_ns, table.start_ns)
    assert (frame.kernel.to_numpy() == [table.names[code] for code in table.kernel]).all()
    metadata = pq.read_schema(tmp_path / "demo.parquet").metadata
    assert metadata[b"chopper"] == b"chopper.kernels/1"
    assert json.loads(metadata[b"marks"]) == ["generated"]
    assert int(metadata[b"origin_ns"]) == run.origin_ns
    assert {"gfx_mhz", "SQ_WAVES"} <= set(frame.columns)


def test_an_iteration_and_counters_of_some_rows(tmp_path: Path) -> None:
    run = run_of([Row(0, 5, iteration=1), Row(9, 5, iteration=2), Row(20, 5, iteration=2)])
    counted = run.table.with_measured({"SQ_WAVES": np.array([1.0, np.nan, 3.0])})
    run = replace(run, table=counted)
    export(run, "parquet", tmp_path / "a.parquet", ExportOptions(iteration=2))
    found = pq.read_table(tmp_path / "a.parquet")
    assert found["start_ns"].to_pylist() == [9, 20]
    assert found["SQ_WAVES"].to_pylist() == [None, 3.0]


def test_every_column_is_documented(tmp_path: Path) -> None:
    export(run_of([Row(0, 5)]), "parquet", tmp_path / "a.parquet")
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert set(pq.read_schema(tmp_path / "a.parquet").names) <= described
