"""Coordinates of a run's ranks, from its traces or from the user, through store and cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.cache import open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model.overrides import overrides_of
from chopper_core.model.parallel import FROM_GROUPS, FROM_SETTINGS, FROM_USER
from chopper_core.model.run import Run
from chopper_core.render.info import describe, info_text
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.errors import UsageError
from tests.align.traces import GEMM, TinyTrace
from tests.wording import Wording

NCCL = "ncclDevKernel_Generic"


def group(name: str, description: str, ranks: list[int]) -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": ranks}


def rank_trace(rank: int, **distributed: Any) -> TinyTrace:
    about = {"rank": rank, "world_size": 8, **distributed}
    trace = TinyTrace(device=2, members={"distributedInfo": about})
    trace.op("aten::mm", 0, 20)
    trace.launch(GEMM, 5, duration=20 + rank)
    return trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """tp 2 × pp 4 in Megatron's order, as the traces of the stages of tp 0 name it."""
    path = tmp_path / "run"
    path.mkdir()
    for rank in (0, 2, 4, 6):
        groups = [
            group("0", "default_pg", list(range(8))),
            group("1", "TENSOR_MODEL_PARALLEL_GROUP", [rank, rank + 1]),
            group("2", "PIPELINE_MODEL_PARALLEL_GROUP", [0, 2, 4, 6]),
            group("3", "EMBEDDING_GROUP", [0, 6]),
        ]
        rank_trace(rank, pg_config=groups).write(path / f"rank{rank}.json")
    return path


def runs(folder: Path, **given: str) -> Iterator[Run]:
    """The run as read, from the cache, from the cache again, and from a store."""
    overrides = overrides_of(**given)
    run = open_run(str(folder), jobs=1, overrides=overrides)
    yield run
    yield open_cached(str(folder), jobs=1, overrides=overrides)
    yield open_cached(str(folder), jobs=1, overrides=overrides)
    write_store(run, folder.parent / "store")
    yield read_store(folder.parent / "store")


def test_a_trace_names_its_groups(folder: Path, wording: Wording) -> None:
    for run in runs(folder):
        assert run.parallel is not None
        assert run.parallel.origin == FROM_GROUPS
        assert dict(run.parallel.sizes) == {"pp": 4, "tp": 2}
        assert [run.parallel.coordinates[rank]["pp"] for rank in run.ranks] == [0, 1, 2, 3]
        # The group of all ranks says nothing, the others are kept once.
        assert len(run.groups) == 4 + 1 + 1
        assert run.world == 8
        assert run.table.column("pp").tolist() == [gpu // 2 for gpu in run.table.gpu]
    wording.among(info_text(run), "tp 2 × pp 4", "process groups")
    assert describe(run)["parallel"]["ranks"]["4"] == {"pp": 2, "tp": 0}


def test_the_user_wins(folder: Path) -> None:
    for run in runs(folder, parallel="tp=4"):
        assert run.parallel is not None
        assert run.parallel.origin == FROM_USER
        assert dict(run.parallel.sizes) == {"dp": 2, "tp": 4}
        assert np.array_equal(run.table.column("tp"), run.table.gpu % 4)
    # A cached run keeps none of it, and a store can be looked at in another layout.
    assert open_cached(str(folder)).overrides.parallel == ""
    other = open_cached(str(folder.parent / "store"), overrides=overrides_of(parallel="pp=2"))
    assert other.parallel is not None
    assert dict(other.parallel.sizes) == {"pp": 2, "dp": 4}


def test_a_layout_that_does_not_fit_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="doesn't make up the run's 8 ranks"):
        open_run(str(folder), jobs=1, overrides=overrides_of(parallel="tp=3"))


def test_collectives_name_groups_too(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 3):
        trace = rank_trace(rank)
        ranks = json.dumps([rank // 2 * 2, rank // 2 * 2 + 1])
        args = {
            "Collective name": "allreduce",
            "Process Group Name": "7",
            "Process Group Description": "mesh_tp",
            "Process Group Ranks": ranks,
        }
        trace.launch(NCCL, 30, duration=10, **args)
        trace.write(tmp_path / f"rank{rank}.json")
    run = open_run(str(tmp_path), jobs=1)
    assert run.parallel is not None
    assert run.parallel.sizes["tp"] == 2
    assert [run.parallel.coordinates[rank]["tp"] for rank in run.ranks] == [0, 1, 0, 1]


@pytest.mark.parametrize("listed", ['"[broken"', "[1, 2]", '[{"ranks": ["a"]}]', "{}", "null"])
def test_damaged_groups_say_nothing(listed: str, tmp_path: Path) -> None:
    path = rank_trace(0, pg_config=json.loads(listed)).write(tmp_path / "rank0.json")
    run = open_run(str(path), jobs=1)
    assert run.groups == ()
    assert run.parallel is None
    assert run.table.coordinates == {}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chopper.json", '{"tp": 2, "pp": 4}'),
        ("job.yaml", "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 4\n"),
    ],
)
def test_settings_beside_the_files_give_a_layout(name: str, text: str, tmp_path: Path) -> None:
    for rank in range(8):
        rank_trace(rank).write(tmp_path / f"rank{rank}.json")
    (tmp_path / name).write_text(text)
    for run in (open_run(str(tmp_path), jobs=1), open_cached(str(tmp_path))):
        assert run.parallel is not None
        assert run.parallel.origin == FROM_SETTINGS
        assert [run.parallel.coordinates[rank]["pp"] for rank in range(8)] == [
            0,
            0,
            1,
            1,
            2,
            2,
            3,
            3,
        ]
    # Settings of another number of ranks say nothing of these.
    (tmp_path / name).write_text(text.replace("4", "5"))
    assert open_run(str(tmp_path), jobs=1).parallel is None


def test_groups_win_over_settings(folder: Path) -> None:
    (folder / "chopper.json").write_text('{"tp": 8}')
    run = open_run(str(folder), jobs=1)
    assert run.parallel is not None
    assert run.parallel.origin == FROM_GROUPS
