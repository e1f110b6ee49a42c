"""Exports of real traces, read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from chopper_core.graph.build import activity_rows
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.render.exports import export
from tests.render.test_perfetto import has_whole_tracks, is_equal, written
from tests.views.test_dependencies import time_order


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["mi300x_ddp4", "v100_dlrm_8rank", "a100_rank0of16.json.gz"])
def test_a_trace_for_perfetto_reads_back_equal(
    opened: Callable[[str], Run], name: str, tmp_path: Path
) -> None:
    run = opened(name)
    document = written(run, tmp_path, "trace.json")
    is_equal(run, document, activity_rows(run.table, np.arange(len(run.table))))
    has_whole_tracks(document)
    again = open_run(str(tmp_path / "trace.json"), jobs=1)
    # Time outside steps is no activity; what is read back has no annotations.
    a, b = (
        time_order(each.table, activity_rows(each.table, np.arange(len(each.table))))
        for each in (run, again)
    )
    for column in ("gpu", "start_ns", "duration_ns", "kind"):
        assert np.array_equal(run.table.column(column)[a], again.table.column(column)[b])


def test_a_parquet_file_has_every_activity(opened: Callable[[str], Run], tmp_path: Path) -> None:
    run = opened("mi300x_ddp4")
    export(run, "parquet", tmp_path / "a.parquet")
    found = pq.read_table(tmp_path / "a.parquet").to_pandas()
    assert found.duration_ns.sum() == run.table.duration_ns.sum()
    assert (found.kind == "comm").sum() == 4 * 21
