"""Communication by parallel dimension, inside and between nodes, and by size of the messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model import address
from chopper_core.model.run import Run
from chopper_core.views.query import frame_of
from tests.align.traces import GEMM, RCCL, TinyTrace
from tests.pipelines import pipeline_run
from tests.wording import Wording


def exposed(run: Run, by: str) -> dict[str, int]:
    found = frame_of(run, address.parse(f"R?view=comms&by={by}&base=total&columns=exposed_comm_ns"))
    numbers = found.values["exposed_comm_ns"].numbers.tolist()
    return dict(zip(found.labels, numbers, strict=True))


def test_each_dimension_has_its_own_exposed_time() -> None:
    run = pipeline_run()[0]
    table = run.table
    kinds = np.array([name[:2] for name in table.names])
    is_comm = table.kind == 1
    for kind, total in exposed(run, "dimension").items():
        own = is_comm & (kinds[table.group] == kind)
        assert total == int(table.exposed_comm_ns[own].sum())
    assert set(exposed(run, "dimension")) == {"tp", "dp", "pp"}


def test_groups_of_several_nodes_are_apart() -> None:
    # Nodes are the stages: only sends and receives leave them.
    run = pipeline_run()[0]
    between = exposed(run, "nodes")
    assert set(between) == {"inside a node", "between nodes"}
    assert between["between nodes"] == exposed(run, "dimension")["pp"]


def test_sizes_are_those_of_the_messages() -> None:
    run = pipeline_run()[0]
    assert list(exposed(run, "size")) == ["1 to 16 MiB"]


@pytest.mark.sweep
def test_a_layout_gives_groups_without_names_their_dimension() -> None:
    named, told = pipeline_run()[0], pipeline_run("tp=2,pp=4", names_groups=False)[0]
    for by in ("dimension", "nodes"):
        assert exposed(told, by) == exposed(named, by)
    assert len(exposed(told, "group")) == len(exposed(named, "group"))


def test_without_names_dimension_and_nodes_are_unknown() -> None:
    run = pipeline_run(names_groups=False)[0]
    assert list(exposed(run, "dimension")) == ["unknown"]
    assert list(exposed(run, "nodes")) == ["unknown"]


@pytest.fixture
def experts(tmp_path: Path) -> Run:
    """An all-to-all over four ranks, of which rank 2 has twice as much."""
    for rank in range(4):
        about = {"rank": rank, "world_size": 4}
        trace = TinyTrace(device=rank, members={"distributedInfo": about})
        trace.op("aten::mm", 0, 30)
        trace.launch(GEMM, 5, duration=20)
        size = 1_000_000 * (1 + (rank == 2))
        trace.launch(
            RCCL,
            40,
            duration=50,
            **{"Collective name": "all_to_allv", "In msg nelems": size, "Out msg nelems": size},
            **{"dtype": "BFloat16", "Group size": 4, "Process Group Name": "ep"},
        )
        trace.write(tmp_path / f"rank{rank}.json")
    return open_run(str(tmp_path), jobs=1)


def test_the_imbalance_of_experts_is_that_of_their_messages(experts: Run, wording: Wording) -> None:
    notes = frame_of(experts, address.parse("R?view=comms")).notes
    wording.among(notes, "GPU 2", "1.60 times", "4 GPUs")
    assert "1 to 16 MiB" in exposed(experts, "size")
