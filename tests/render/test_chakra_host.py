"""The host's operators and calls in Chakra traces that are written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.extensions.chakra.lint import lint
from chopper_core.extensions.chakra.schema import Node
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostKind, HostLane, HostSteps, side_tables
from chopper_core.model.table import ADDITIVE, Kind, activity_rows
from chopper_core.render.exports import ExportOptions, export
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError
from tests.demo import demo_run
from tests.ingest.chakra_files import sorted_rows
from tests.realdata.conftest import FOLDER
from tests.render.test_feeder_rules import issued_by_classic, issued_by_v3, nodes_of
from tests.support import Row, run_of
from tests.wording import Wording

Entry = tuple[int, HostKind, str, int, int]
"""GPU, kind, name, start and end."""
OPERATOR, CALL = HostKind.OPERATOR, HostKind.CALL


def with_host(run: Run, entries: Sequence[Entry]) -> Run:
    """The run with operators and calls of the host."""
    entries = sorted(entries, key=lambda each: (each[0], each[1], each[3]))
    gpu, kind, name, start, end = zip(*entries, strict=True)
    names = sorted({*name})
    lane = HostLane(
        tuple(names),
        gpu=np.array(gpu, np.int32),
        kind=np.array(kind, np.int8),
        name=np.array([names.index(each) for each in name], np.int32),
        start_ns=np.array(start),
        duration_ns=np.array(end) - np.array(start),
    )
    return replace(run, side_tables={**run.side_tables, **side_tables(lane)})


def lane_of(run: Run) -> list[tuple[Any, ...]]:
    lane = run.side(HostLane)
    names = [lane.names[code] for code in lane.name.tolist()]
    columns = (lane.gpu, lane.kind, lane.start_ns, lane.duration_ns)
    return sorted(zip(*(each.tolist() for each in columns), names, strict=True))


def a_step(late: int = 0, iteration: int = 0) -> tuple[list[Row], list[Entry]]:
    """An operator that launches twice, and a call that waits for what the second one launched."""
    rows = [
        Row(5_000 + late, 4_000, launch=4_000 + late, iteration=iteration, kernel="gemm"),
        Row(9_000 + late, 11_000, launch=7_000 + late, iteration=iteration, kernel="norm"),
        Row(21_000 + late, 1_000, launch=25_000 + late, iteration=iteration, kernel="late"),
    ]
    entries = [
        (0, OPERATOR, "aten::linear", 1_000 + late, 8_000 + late),
        (0, CALL, "hipMalloc", 2_000 + late, 3_000 + late),
        (0, CALL, "hipStreamSynchronize", 10_000 + late, 24_000 + late),
    ]
    return rows, entries


def shown(nodes: list[Node]) -> list[tuple[Any, ...]]:
    return [
        (each.name, each.start_us, each.duration_us, each.data_deps, each.ctrl_deps)
        for each in nodes
    ]


def test_operators_are_cut_at_launches_and_calls(tmp_path: Path) -> None:
    rows, entries = a_step()
    run = with_host(run_of(rows, "made"), entries)
    export(run, "chakra", tmp_path / "out", ExportOptions(host=True))
    nodes = nodes_of(tmp_path / "out" / "made.0.et")
    assert shown(nodes) == [
        ("aten::linear", 0, 1, [], []),
        ("hipMalloc", 1, 1, [1], [1]),
        ("aten::linear(1)", 2, 1, [2], []),
        ("aten::linear(2)", 3, 3, [3], []),
        # Launched when the second piece ended.
        ("gemm", 4, 4, [3], [3]),
        ("aten::linear(3)", 6, 1, [4], []),
        ("norm", 8, 11, [4, 5], [4]),
        # Its launch is recorded after its start: clocks that disagree show nothing.
        ("late", 20, 1, [7], []),
        # The call's own time begins when what it waits for has ended.
        ("hipStreamSynchronize", 21, 2, [8, 6], []),
    ]
    assert [each.get("is_cpu_op") for each in nodes] == [
        True, True, True, True, False, True, False, False, True
    ]  # fmt: skip
    assert lint([tmp_path / "out"]).violations == []


def test_idle_time_of_the_host_is_a_node_with_gaps(tmp_path: Path) -> None:
    rows, entries = a_step()
    run = with_host(run_of(rows, "made"), entries)
    export(run, "chakra", tmp_path / "out", ExportOptions(host=True, gaps=True))
    nodes = nodes_of(tmp_path / "out" / "made.0.et")
    assert [each[:3] for each in shown(nodes) if each[0] == "host_gap"] == [("host_gap", 7, 2)]


def test_a_run_without_a_host_says_so(tmp_path: Path, wording: Wording) -> None:
    with pytest.raises(DataError) as refused:
        export(run_of([Row(0, 5)], "made"), "chakra", tmp_path / "out", ExportOptions(host=True))
    wording(str(refused.value), "made ", "--host")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("has_steps", [True, False])
def test_a_part_of_a_run_has_the_host_of_its_launches(has_steps: bool, tmp_path: Path) -> None:
    (one, before), (two, after) = a_step(iteration=0), a_step(100_000, iteration=1)
    run = with_host(run_of([*one, *two], "made"), [*before, *after])
    if has_steps:
        gpu, iteration = np.zeros(2, np.int32), np.array([0, 1], np.int32)
        steps = HostSteps((), gpu, np.array([0, 100_000]), np.full(2, 24_500), iteration)
        run = replace(run, side_tables={**run.side_tables, **side_tables(steps)})
    export(run, "chakra", tmp_path / "out", ExportOptions(iteration=1, host=True))
    assert lint([tmp_path / "out"]).violations == []
    nodes = nodes_of(tmp_path / "out" / "made.0.et")
    assert nodes[0].name == "aten::linear" and nodes[0].start_us == 0
    # Without an annotation only launches show when the host works for the iteration.
    again = open_run(str(tmp_path / "out"), jobs=1)
    wanted = [each for each in lane_of(run) if each[2] > 50_000]
    if not has_steps:
        wanted = [each for each in wanted if each[-1] != "hipMalloc"]
    assert lane_of(again) == wanted and len(wanted) == 2 + has_steps


def random_run(seed: int) -> Run:
    """Threads that launch for one GPU: operators that nest or overlap, last no time or tie."""
    draw = random.Random(seed)
    rows, entries, at = [], [], 0
    for _ in range(draw.randint(1, 60)):
        at += draw.choice((0, 0, 1_000, 2_500, 40_000))
        lasts = draw.choice((0, 1, 700, 5_000, 30_000))
        named = draw.choice(("aten::mm", "aten::add", "cudaDeviceSynchronize", "cudaMemcpyAsync"))
        kind = CALL if named.startswith("cuda") else OPERATOR
        entries.append((0, kind, named, at, at + lasts))
        if draw.random() < 0.7:
            start = at + draw.choice((0, 0, 300, 9_000, -500))
            row = Row(max(start, 0), draw.choice((0, 1, 800, 12_000)), launch=at)
            kind_of = draw.choice((Kind.COMPUTE, Kind.COPY))
            rows.append(replace(row, stream=draw.randint(0, 2), kind=kind_of))
    return with_host(run_of(rows or [Row(0, 5)], "made"), entries)


def check(run: Run, out: Path, *, has_ties: bool = False, gaps: bool = False) -> int:
    """Export with the host; all rules hold, and the table and the lane read back equal."""
    export(run, "chakra", out, ExportOptions(host=True, gaps=gaps))
    assert lint([out]).violations == []
    count = 0
    for path in out.glob("*.et"):
        nodes = nodes_of(path)
        ids = [each.id for each in nodes]
        assert sorted(issued_by_classic(nodes)) == sorted(issued_by_v3(nodes)) == ids
        count += len(nodes)
    again = open_run(str(out), jobs=1)
    # Of rows that begin together, the order in the table decides which the time is charged to.
    found, wanted = (sorted_rows(each) for each in (again, run))
    stated = found.keys() - ({*ADDITIVE} if has_ties else {})
    assert {name: found[name] for name in stated} == {name: wanted[name] for name in stated}
    assert lane_of(again) == lane_of(run)
    return count


@pytest.mark.parametrize("seed", range(30))
def test_any_host_reads_back_equal_and_every_node_is_issued(seed: int, tmp_path: Path) -> None:
    run = random_run(seed)
    check(run, tmp_path / "out", has_ties=True, gaps=seed % 2 == 1)
    # Each moment in an operator or call is in one piece, but for waits.
    pieces = [each for each in nodes_of(tmp_path / "out" / "made.0.et") if each.get("is_cpu_op")]
    lane = run.side(HostLane)
    covered = np.zeros(int((lane.start_ns + lane.duration_ns).max()) // 1_000 + 1)
    origin = min(int(lane.start_ns.min()), int(run.table.start_ns.min()))
    for each in pieces:
        begin = each.start_us + round(origin / 1_000)
        covered[begin : begin + each.duration_us] += 1
    assert covered.max(initial=0) <= 1
    firsts = [each for each in pieces if "host" in each.attributes]
    assert len(firsts) == len(lane)


def test_a_store_keeps_what_is_written(tmp_path: Path) -> None:
    rows, entries = a_step()
    write_store(with_host(run_of(rows, "made"), entries), tmp_path / "store")
    run = open_run(str(tmp_path / "store"))
    assert check(replace(run, name="made"), tmp_path / "out") == 9


@pytest.mark.sweep
def test_the_hosts_of_the_demo_are_written(tmp_path: Path) -> None:
    run = demo_run()
    activities = activity_rows(run.table, np.arange(len(run.table)))
    assert check(run, tmp_path / "out") > len(activities) + len(run.side(HostLane))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["v100_dlrm_8rank", "mi300x_ddp4"])
def test_a_walk_takes_as_long_as_the_run_did(name: str, tmp_path: Path) -> None:
    """With the host's work and gaps, dependencies and durations give the measured time."""
    if not (FOLDER / name).exists():
        pytest.skip(f"no {FOLDER / name}")
    run = open_run(str(FOLDER / name), jobs=1)
    check(run, tmp_path / "out", gaps=True)
    table, lane = run.table, run.side(HostLane)
    for number, gpu in enumerate(run.gpus):
        known = {each.id: each for each in nodes_of(tmp_path / "out" / f"{name}.{number}.et")}
        end: dict[int, int] = {}
        for each in known.values():
            begin = max((end[need] for need in (*each.data_deps, *each.ctrl_deps)), default=0)
            end[each.id] = begin + (each.get("dur_ns") or each.duration_us * 1_000)
        rows, own = table.gpu == gpu.index, lane.of_gpu(gpu.index)
        first = min(table.start_ns[rows].min(), lane.start_ns[own].min())
        last = (table.start_ns + table.duration_ns)[rows].max()
        assert max(end.values()) == pytest.approx(last - first, rel=0.02)


def test_a_simulation_has_no_host_of_the_measured_run(tmp_path: Path) -> None:
    """Its lane has the times of the run that was exported, and the simulation has others."""
    rows, entries = a_step()
    run = with_host(run_of(rows, "made"), entries)
    export(run, "chakra", tmp_path / "out", ExportOptions(host=True))
    lines = []
    for node in nodes_of(tmp_path / "out" / "made.0.et"):
        for event, tick in (("issue", 10 * node.id), ("callback", 10 * node.id + 5)):
            lines.append(
                f"[workload] [debug] {event},sys->id=0, tick={tick}, node->id={node.id}, "
                f"node->name={node.name}, node->type={node.type}"
            )
    (tmp_path / "out" / "sim.log").write_text("\n".join(lines) + "\n")
    simulated = open_run(str(tmp_path / "out" / "sim.log"), jobs=1)
    assert len(simulated.table) == 3 and len(simulated.side(HostLane)) == 0
