"""What an export writes runs to its end in ASTRA-sim, on all ranks and at any speed of the network.

ASTRA-sim is that of `tests/oracles/astra_sim.py`.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.extensions.chakra.et import EtFile
from chopper_core.extensions.chakra.lint import lint
from chopper_core.extensions.chakra.schema import CommType, Node, NodeType
from chopper_core.extensions.chakra.synthetic import PATTERNS, generate, pattern_settings
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from chopper_core.render.exports import export
from tests.demo import demo_run, generated_run
from tests.ingest.chakra_files import sorted_rows
from tests.oracles.astra_sim import finished, random_delay, runs
from tests.pipelines import pipeline_run
from tests.realdata.conftest import FOLDER
from tests.support import Row, run_of
from tests.wording import Wording

Call = tuple[int, int, int, str, int, str]
"""GPU, start, duration, operation, bytes and group."""


def run_with(calls: list[Call], computes: list[tuple[int, int, int]] = []) -> Run:  # noqa: B006
    """A run of collectives, each group on a stream of its own, and computations between them."""
    groups = sorted({group for *_, group in calls})
    rows = [
        Row(start, lasts, Kind.COMM, 20 + groups.index(group), gpu, 0, 0, 0, operation, operation)
        for gpu, start, lasts, operation, _, group in calls
    ]
    rows += [Row(start, lasts, Kind.COMPUTE, 7, gpu) for gpu, start, lasts in computes]
    run = run_of(rows)
    names = (*run.table.names, *groups)
    group = [names.index(each) for *_, each in calls] + [-1] * len(computes)
    size = [bytes_ for *_, bytes_, _ in calls] + [-1] * len(computes)
    columns = {"group": np.array(group, np.int32), "bytes": np.array(size, np.int64)}
    return replace(run, table=replace(run.table, names=names, **columns))


def nodes_of(folder: Path) -> list[list[Node]]:
    found = []
    for number in range(len([*folder.glob("*.et")])):
        (path,) = folder.glob(f"*.{number}.et")
        with EtFile(path) as file:
            found.append(list(file))
    return found


def exported(run: Run, folder: Path) -> tuple[list[str], list[list[Node]]]:
    """The notes and the nodes of an export that keeps the rules, runs, and reads back equal."""
    notes = export(run, "chakra", folder)
    report = lint([folder])
    assert (report.violations, report.notes) == ([], [])
    ranks = list(range(len(run.gpus)))
    assert all(finished(folder, random_delay(seed)) == ranks for seed in range(8))
    assert sorted_rows(open_run(str(folder), jobs=1)) == sorted_rows(run)
    return notes, nodes_of(folder)


def test_collectives_of_one_rank_are_computations(tmp_path: Path, wording: Wording) -> None:
    """As in a pipeline whose data-parallel groups have one rank each."""
    calls = [(gpu, 100, 50, "reduce_scatter", 4096, f"{gpu + 1} (dp) of 1") for gpu in range(4)]
    calls += [(gpu, 200, 50, "all_reduce", 4096, "9 (tp) of 4") for gpu in range(4)]
    notes, ranks = exported(run_with(calls), tmp_path / "out")
    (note,) = notes
    wording(note, "4 communication kernels", "COMP", "one rank")
    types = [[NodeType(node.type) for node in own] for own in ranks]
    assert types == [[NodeType.COMP, NodeType.COMM_COLL]] * 4


def test_the_only_rank_of_its_groups_runs(tmp_path: Path, wording: Wording) -> None:
    """One rank of sixteen was traced."""
    notes, ((node,),) = exported(
        run_with([(0, 100, 50, "all_reduce", 4096, "1 (tp) of 16")]), tmp_path / "out"
    )
    assert node.type == NodeType.COMP
    wording(notes[0], "one rank")


@pytest.mark.parametrize("operation", ["all_to_all", "dispatch"])
def test_uneven_exchanges_get_the_largest_size(
    operation: str, tmp_path: Path, wording: Wording
) -> None:
    sizes = (4096, 8192, 1000)
    calls = [(gpu, 100, 50, operation, size, "1 of 3") for gpu, size in enumerate(sizes)]
    notes, ranks = exported(run_with(calls), tmp_path / "out")
    assert [own[0].get("comm_size") for own in ranks] == [8192] * 3
    assert [own[0].get("bytes") for own in ranks] == [*sizes]
    (note,) = notes
    wording(note, "2 all-to-all kernels", "largest size")


def test_tiny_all_gathers_get_a_few_bytes(tmp_path: Path, wording: Wording) -> None:
    calls = [(gpu, 100, 50, "all_gather", 8, "1 of 4") for gpu in range(4)]
    notes, ranks = exported(run_with(calls), tmp_path / "out")
    assert {own[0].get("comm_size") for own in ranks} == {64}
    (note,) = notes
    wording(note, "4 all-gather kernels", "64 B")


def test_groups_on_two_streams_come_in_one_order(tmp_path: Path) -> None:
    """Ranks start two collectives at once, each another one first: with one at a time, they would
    wait for each other."""
    first = [(0, 100, 90, "all_reduce", 4096, "1 of 2"), (1, 110, 80, "all_reduce", 4096, "1 of 2")]
    second = [
        (0, 105, 95, "all_gather", 4096, "2 of 2"),
        (1, 102, 98, "all_gather", 4096, "2 of 2"),
    ]
    _, ranks = exported(run_with([*first, *second]), tmp_path / "out")
    for own in ranks:
        by_kind = {node.get("comm_type"): node for node in own}
        # The last member came to the all-gather at 105, to the all-reduce at 110.
        before = by_kind[CommType.ALL_GATHER]
        assert by_kind[CommType.ALL_REDUCE].data_deps == [before.id]
        assert before.data_deps == []


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(25))
def test_any_run_of_collectives_ends(seed: int, tmp_path: Path) -> None:
    """Groups along two axes of four ranks, on streams of their own, with work between them."""
    draw = random.Random(seed)
    groups = {"1 of 2": (0, 1), "2 of 2": (2, 3), "3 of 2": (0, 2), "4 of 2": (1, 3), "5 of 4": (0, 1, 2, 3)}  # fmt: skip # noqa: E501
    free: dict[tuple[int, str], int] = {}
    calls: list[Call] = []
    for _ in range(12):
        group = draw.choice([*groups])
        members = groups[group]
        operation = draw.choice(("all_reduce", "all_gather", "all_to_all", "reduce_scatter"))
        size = 64 * draw.randint(1, 500)
        starts = [free.get((gpu, group), 0) + draw.randint(0, 400) for gpu in members]
        end = max(starts) + draw.randint(1, 300)
        for gpu, start in zip(members, starts, strict=True):
            uneven = operation == "all_to_all" and draw.random() < 0.5
            calls.append((gpu, start, end - start, operation, size + 64 * uneven, group))
            free[gpu, group] = end
    computes = [(gpu, 200 * at + 10 * gpu, 90) for gpu in range(4) for at in range(8)]
    exported(run_with(calls, computes), tmp_path / "out")


@pytest.mark.few(4)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_generated_patterns_end(pattern: str, tmp_path: Path) -> None:
    settings = [] if pattern == "pipeline" else ["iterations=2"]
    generate(pattern, pattern_settings(pattern, ["ranks=5", *settings]), tmp_path / "out")
    report = lint([tmp_path / "out"])
    assert (report.violations, report.notes) == ([], [])
    for seed in range(4):
        assert runs(tmp_path / "out", random_delay(seed))
        assert runs(tmp_path / "out", random_delay(seed), rendezvous=True)
    # And once more through the table of a run.
    export(open_run(str(tmp_path / "out"), jobs=1), "chakra", tmp_path / "again")
    assert lint([tmp_path / "again"]).violations == [] and runs(tmp_path / "again")


@pytest.mark.parametrize("kind", ["pipeline", "fsdp"])
def test_the_export_of_a_generated_run_ends(kind: str, tmp_path: Path) -> None:
    """A pipeline with groups along three dimensions, and FSDP as the demo has it."""
    if kind == "pipeline":
        run = pipeline_run(pp=2, dp=2, microbatches=4)[0]
    else:
        run = generated_run("exported", ranks=4, iterations=1, layers=2)
    check_export(run, tmp_path / "out")


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["fsdp2", "dlrm"])
def test_the_exports_of_whole_runs_end(name: str, tmp_path: Path) -> None:
    real = FOLDER / "v100_dlrm_8rank"
    if name == "dlrm" and not real.exists():
        pytest.skip("no real traces here")
    check_export(demo_run(name) if name == "fsdp2" else open_run(str(real)), tmp_path / "out")


def check_export(run: Run, folder: Path) -> None:
    export(run, "chakra", folder)
    report = lint([folder])
    assert (report.violations, report.notes) == ([], [])
    assert finished(folder, random_delay(1)) == list(range(len(run.gpus)))
