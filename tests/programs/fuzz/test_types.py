"""Cells of other types and magnitudes cost what they are in, and take no memory for it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.column_names import FLOPS
from chopper_core.util.errors import DataError
from tests.align.traces import GEMM, TinyTrace
from tests.limited import within
from tests.programs.fuzz.attack import attack_cells
from tests.programs.fuzz.seeds import SEEDS, small_trace

_STEP = 97
"""Of the changes of a file one in this many is tried."""
_SWEEP_STEP = 7
_MOST_BYTES = 1 << 28


@pytest.mark.few(6)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_cell_of_another_type_costs_its_row(seed: str) -> None:
    _try_changes(seed, _STEP)


@pytest.mark.sweep
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_many_cells_of_another_type_cost_their_rows(seed: str) -> None:
    _try_changes(seed, _SWEEP_STEP)


def _try_changes(seed: str, step: int) -> None:
    for what, attempt in attack_cells(seed, step):
        try:
            attempt()
        except Exception as error:
            error.add_note(f"{seed}: {what}")
            raise


@pytest.mark.parametrize("rank", [10**9, 2**31, -1, 2**62])
def test_a_number_beyond_any_rank_takes_no_memory(rank: int, tmp_path: Path) -> None:
    path = SEEDS["straggler analysis"](tmp_path)
    table = pq.read_table(path)
    ranks = pa.array([rank, *table["rank"].to_pylist()[1:]], pa.int64())
    pq.write_table(table.set_column(table.schema.get_field_index("rank"), "rank", ranks), path)
    with within(_MOST_BYTES):
        run = open_run(str(path), jobs=1)
    assert {gpu.rank for gpu in run.gpus} == {0, 1}
    assert any("1 row without a valid rank" in loss for loss in run.sources[0].losses)


@pytest.mark.few(10)
@pytest.mark.parametrize("key", ["In msg nelems", "Out msg nelems", "Group size", "bytes", "grid"])
@pytest.mark.parametrize("value", [2**62, 2**64, 10**30, -1, 1e308])
def test_a_magnitude_beyond_any_gpu_is_missing(key: str, value: float, tmp_path: Path) -> None:
    trace = small_trace()
    for event in trace.events:
        if key in event.get("args", {}):
            event["args"][key] = [value] * 3 if key == "grid" else value
    run = open_run(str(trace.write(tmp_path / "rank0.json")), jobs=1)
    assert len(run.table)
    assert (run.table.bytes < 1 << 50).all()


def test_work_that_no_gpu_can_do_is_unknown(tmp_path: Path) -> None:
    trace = small_trace()
    for event in trace.events:
        if event["name"] == "aten::mm":
            event["args"]["Input Dims"] = [[2**31, 2**31], [2**31, 2**31]]
    run = open_run(str(trace.write(tmp_path / "rank0.json")), jobs=1)
    assert not (run.table.measured[FLOPS] > 0).any()


def test_an_integer_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    path = SEEDS["chakra feeder"](tmp_path)
    graph = json.loads(path.read_text())
    graph["workload_graph"][0]["is_cpu_op"] = "9" * 5000
    path.write_text(json.dumps(graph))
    assert len(open_run(str(path), jobs=1).table)


def test_a_process_of_thousands_of_gpus_is_none(tmp_path: Path) -> None:
    trace = TinyTrace()
    for gpu in range(1_025):
        trace.launch(GEMM, 20 * gpu, device=gpu)
    with pytest.raises(DataError, match="1,025 GPUs in one process, and none drives as many"):
        open_run(str(trace.write(tmp_path / "rank0.json")), jobs=1)
