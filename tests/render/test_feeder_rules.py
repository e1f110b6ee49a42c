"""Chakra's feeders on what Chopper writes: each issues every node.

Both are written anew from their rules, apart from Chopper's own check: the classic one frees a node
when its last data dependency is done, and never looks for one that the file lacks; FeederV3 counts
control dependencies too, and aborts at one that is missing.
"""

from __future__ import annotations

import heapq
from pathlib import Path

import pytest

from chopper_core.extensions.chakra.et import EtFile, write_et
from chopper_core.extensions.chakra.schema import Metadata, Node
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import activity_count
from chopper_core.render.exports import ExportOptions, export
from tests.demo import demo_run
from tests.ingest.test_graph_nodes import everything, pipeline, synced
from tests.oracles.astra_sim import random_delay, runs
from tests.realdata.conftest import FOLDER
from tests.support import sample_run


def nodes_of(path: Path) -> list[Node]:
    with EtFile(path) as file:
        return list(file)


def issued_by_classic(nodes: list[Node]) -> list[int]:
    """The ids in the order of issue: of those that are free the lowest."""
    known = {node.id: node for node in nodes}
    children: dict[int, list[int]] = {}
    open_needs = {node.id: set(node.data_deps) for node in nodes}
    for node in nodes:
        for need in node.data_deps:
            children.setdefault(need, []).append(node.id)
    free = [number for number, needs in open_needs.items() if not needs]
    heapq.heapify(free)
    issued = []
    while free:
        number = heapq.heappop(free)
        issued.append(number)
        known.pop(number)
        for child in children.get(number, ()):
            open_needs[child].discard(number)
            if not open_needs[child] and child in known:
                heapq.heappush(free, child)
    return issued


def issued_by_v3(nodes: list[Node]) -> list[int]:
    """The ids in the order of issue; raises KeyError where a dependency is missing."""
    waits = {node.id: 0 for node in nodes}
    children: dict[int, list[int]] = {node.id: [] for node in nodes}
    for node in nodes:
        for need in {*node.data_deps, *node.ctrl_deps}:
            children[need].append(node.id)
            waits[node.id] += 1
    free = [number for number, count in waits.items() if not count]
    issued = []
    while free:
        issued.append(free.pop())
        for child in children[issued[-1]]:
            waits[child] -= 1
            if not waits[child]:
                free.append(child)
    return issued


def all_issued(run: Run, out: Path, **options: bool) -> int:
    """Export a run, check that both feeders issue all nodes, and return how many that are."""
    export(run, "chakra", out, ExportOptions(**options))
    count = 0
    for path in out.glob("*.et"):
        nodes = nodes_of(path)
        ids = sorted(node.id for node in nodes)
        assert sorted(issued_by_classic(nodes)) == ids
        assert sorted(issued_by_v3(nodes)) == ids
        count += len(nodes)
    return count


@pytest.mark.parametrize("gaps", [False, True])
def test_every_node_of_a_small_run_is_issued(gaps: bool, tmp_path: Path) -> None:
    run = sample_run(gpus=2, layers=2)
    count = all_issued(run, tmp_path / "out", gaps=gaps)
    assert count > len(run.table) if gaps else count == len(run.table)


def test_every_node_of_chakra_runs_is_issued(tmp_path: Path) -> None:
    for number, make in enumerate((everything, synced, lambda folder: pipeline(folder / "in"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = open_run(str(make(folder)), jobs=1)
        assert all_issued(run, folder / "out") == len(run.table)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["demo", "v100_dlrm_8rank", "mi300x_ddp4"])
def test_every_node_of_whole_runs_is_issued(name: str, tmp_path: Path) -> None:
    if name != "demo" and not (FOLDER / name).exists():
        pytest.skip(f"no {FOLDER / name}")
    run = demo_run() if name == "demo" else open_run(str(FOLDER / name), jobs=1)
    assert all_issued(run, tmp_path / "out") == activity_count(run.table)
    assert all(runs(tmp_path / "out", random_delay(seed)) for seed in range(3))


def test_a_missing_dependency_stops_them(tmp_path: Path) -> None:
    """What the check's rule is for: the classic one stops early and silently, V3 aborts."""
    nodes = [Node(1, "a", 4), Node(2, "b", 4, data_deps=[1, 99]), Node(3, "c", 4, data_deps=[2])]
    with (tmp_path / "a.0.et").open("wb") as file:
        write_et(file, Metadata("1.0.0"), nodes)
    found = nodes_of(tmp_path / "a.0.et")
    assert issued_by_classic(found) == [1]
    with pytest.raises(KeyError):
        issued_by_v3(found)
