"""Collectives of several groups are matched right whatever the profiler loses of their launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.align.collective_ends import CommKernels, end_offsets
from chopper_core.align.collective_sets import labelled_by_partners, rank_clocks
from chopper_core.graph.collectives import collectives_of
from chopper_core.ingest.joining import on_one_clock
from chopper_core.model.overrides import NO_OVERRIDES
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable, Kind, Rule
from chopper_core.model.tree import in_order
from tests.align.damaged_collectives import US, Damage, Layout, damaged
from tests.limited import within
from tests.pipelines import pipeline_run
from tests.programs.bench.joins import collectives_of_files
from tests.support import Row
from tests.views.test_lateness import grouped

ONE = Layout()
TENSOR = Layout(gpus=8, layers=12, tensor_parallel=2)
ROOTED = Layout(rooted=2)
SEEDS = range(7_100, 7_104)


def shares(layout: Layout, damage: Damage) -> tuple[float, float]:
    """Of the collectives in all files the share shown right; of those shown the share wrong."""
    scores = np.array([damaged(seed, layout, damage).score() for seed in SEEDS]).sum(axis=0)
    whole, right, wrong = scores.tolist()
    return right / whole, wrong / max(right + wrong, 1)


@pytest.mark.few(3)
@pytest.mark.parametrize("layout", [ONE, TENSOR, ROOTED], ids=["one", "tensor", "rooted"])
@pytest.mark.parametrize(("lost", "goal"), [(0.0, 0.999), (0.002, 0.98), (0.015, 0.95)])
def test_collectives_survive_lost_launches(layout: Layout, lost: float, goal: float) -> None:
    right, wrong = shares(layout, Damage(labels=lost))
    assert right >= goal
    assert wrong <= 0.005


@pytest.mark.few(2)
@pytest.mark.parametrize("layout", [ONE, TENSOR, ROOTED], ids=["one", "tensor", "rooted"])
@pytest.mark.parametrize("stretches", [3, 24])
def test_a_quarter_of_the_launches_lost_shows_less_and_hardly_anything_wrong(
    layout: Layout, stretches: int
) -> None:
    right, wrong = shares(layout, Damage(labels=0.25, stretches=stretches))
    assert right >= (0.5 if layout is TENSOR else 0.85)
    assert wrong <= 0.01


def test_kernels_that_are_lost_shift_no_others() -> None:
    right, wrong = shares(ONE, Damage(kernels=0.02, labels=0.02))
    assert right >= 0.95
    assert wrong <= 0.01


def test_clocks_that_differ_by_several_collectives_are_found() -> None:
    right, wrong = shares(TENSOR, Damage(labels=0.02, clocks_ns=900 * US))
    assert right >= 0.95
    assert wrong <= 0.01


def test_a_collective_takes_the_labels_of_its_partners() -> None:
    made = damaged(7_200, ONE, Damage(labels=0.2))
    table, found = made.run.table, collectives_of(made.run)
    assert found is not None
    known = [number for number in np.flatnonzero(found.complete) if found.group[number] >= 0]
    kinds = {table.operations[found.kind[number]] for number in known}
    assert "collective" not in kinds
    bare = table.operation[found.members.rows] == table.operations.index("collective")
    partners = bare & np.isin(found.member_set, known)
    assert partners.sum() > 0.7 * bare.sum()
    assert (found.bytes[found.member_set[partners]] > 0).all()


def test_the_table_names_collectives_like_their_partners() -> None:
    made = damaged(7_200, ONE, Damage(labels=0.2))
    before, whole = made.run.table, damaged(7_200, ONE, Damage()).run.table
    after = on_one_clock(made.run, NO_OVERRIDES).table
    assert in_order(after)

    def kinds(table: KernelTable) -> dict[tuple[int, int], str]:
        """GPU and end of each collective → its operation."""
        return {
            (int(table.gpu[row]), int(table.start_ns[row] + table.duration_ns[row])): (
                table.operations[table.operation[row]]
            )
            for row in np.flatnonzero(table.kind == Kind.COMM)
        }

    truth, was, found = kinds(whole), kinds(before), kinds(after)
    unnamed = {place for place, kind in was.items() if kind == "collective"}
    named = {place for place in unnamed if found[place] != "collective"}
    assert len(named) > 0.7 * len(unnamed) > 0
    assert truth.keys() == was.keys()
    assert all(found[place] == truth[place] for place in named)
    by_partner = after.operation_rule == Rule.PARTNER
    assert by_partner.sum() == len(named)
    assert labelled_by_partners(whole) is whole


def test_ends_that_agree_nowhere_match_nothing() -> None:
    """As when the traces are of different steps: order alone proves nothing."""
    one, other = damaged(7_300, ONE, Damage()), damaged(7_301, ONE, Damage())
    table = one.run.table
    alien = np.flatnonzero(table.gpu == 3)
    strange = np.flatnonzero(other.run.table.gpu == 3)
    count = min(len(alien), len(strange))
    table.duration_ns[alien[:count]] = (
        (other.run.table.start_ns + other.run.table.duration_ns)[strange[:count]]
        - table.start_ns[alien[:count]]
        + np.arange(count) * 37 * US
    )
    assert 3 in end_offsets(CommKernels.of(table)).unmatched
    found = collectives_of(one.run)
    assert found is not None
    assert not found.complete.any()


@pytest.mark.sweep
@pytest.mark.parametrize("share", [0.015, 0.25])
def test_collectives_of_files_survive_lost_launches(tmp_path: Path, share: float) -> None:
    whole, right, wrong = collectives_of_files(
        tmp_path, ranks=2, layers=3, seed=7_400, lost_share=share, end_scatter_ns=9_000
    )
    assert whole > 30
    assert right >= 0.97 * whole
    assert wrong == 0


def members_by_group(run: Run, *, kind: str) -> dict[tuple[int, ...], int]:
    """The GPUs of complete collectives of a kind → how many they have."""
    found = collectives_of(run)
    assert found is not None
    whole = np.flatnonzero(found.complete & (found.kind == run.table.operations.index(kind)))
    sets = [tuple(run.table.gpu[found.members.rows_of(int(one))].tolist()) for one in whole]
    return {gpus: sets.count(gpus) for gpus in set(sets)}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("parallel", "names"), [("", True), ("tp=2,pp=4", False)], ids=["named", "by layout"]
)
def test_collectives_of_every_stage_are_matched(parallel: str, names: bool) -> None:
    """Stages only send to each other, so that no collective relates their ends."""
    run, config, truth = pipeline_run(parallel, names_groups=names)
    layers = config.steps * config.microbatches * 2 * config.layers
    groups = {tuple(group): layers for group in truth["groups"]["tp"]}
    assert members_by_group(run, kind="all_reduce") == groups
    replicas = {tuple(group): config.steps for group in truth["groups"]["dp"]}
    assert members_by_group(run, kind="reduce_scatter") == replicas


@pytest.mark.sweep
def test_a_stated_size_bounds_a_collective() -> None:
    """Replicas in step end alike: without names or a layout, pairs must not make up eights."""
    run, _, _ = pipeline_run(names_groups=False)
    found = collectives_of(run)
    assert found is not None
    assert not found.complete.any()
    assert found.members.sizes().max() <= 4


@pytest.mark.sweep
def test_lost_labels_cost_stages_little() -> None:
    run, _, _ = pipeline_run()
    whole = collectives_of(run)
    assert whole is not None
    true = np.full(len(run.table), -1)
    true[whole.members.rows] = whole.member_set
    table = run.table
    random = np.random.default_rng(7_500)
    comm = np.flatnonzero(table.kind == Kind.COMM)
    lost = comm[random.random(len(comm)) < 0.015]
    operation, group, size = table.operation.copy(), table.group.copy(), table.bytes.copy()
    operation[lost], group[lost], size[lost] = len(table.operations), -1, -1
    duration = table.duration_ns.copy()
    duration[comm] += random.integers(0, 2_000, len(comm))
    damaged_table = replace(
        table,
        operations=(*table.operations, "collective"),
        operation=operation,
        group=group,
        bytes=size,
        duration_ns=duration,
    )
    found = collectives_of(replace(run, table=damaged_table))
    assert found is not None
    shown = [
        set(true[found.members.rows_of(int(one))].tolist())
        for one in np.flatnonzero(found.complete)
    ]
    assert all(len(each) == 1 for each in shown)
    assert len(shown) >= 0.98 * (whole.members.sizes() > 1).sum()


def test_groups_of_one_label_are_told_apart_by_the_layout() -> None:
    run, config, truth = pipeline_run("tp=2,pp=4", names_groups=False)
    labels = {"unnamed group of 2": "TENSOR_MODEL_PARALLEL_GROUP of 2"}
    names = tuple(labels.get(name, name) for name in run.table.names)
    shared = replace(run, table=replace(run.table, names=names))
    count = config.steps * config.microbatches * 2 * config.layers
    groups = {tuple(group): count for group in truth["groups"]["tp"]}
    assert members_by_group(shared, kind="all_reduce") == groups
    unlocated = replace(shared, overrides=replace(shared.overrides, parallel=""))
    assert members_by_group(unlocated, kind="all_reduce") == {}


def test_clocks_of_many_small_groups_take_the_memory_of_their_kernels() -> None:
    """Pairs of 1,500 ranks on a ring: each has few of 30,000 collectives, and all are connected."""
    ranks, rounds = 1_500, 20
    late_ns = (np.arange(ranks) * 7_919) % 2_000
    rows, groups = [], []
    for number in range(2 * rounds):
        for first in range(number % 2, ranks, 2):
            end = 1_000_000 * (number + 1) + 300 * first
            for gpu in (first, (first + 1) % ranks):
                start = end - 100_000 + int(late_ns[gpu])
                rows.append(Row(start, 100_000, Kind.COMM, 1, gpu, 1, operation="all_reduce"))
                groups.append(f"{first} of 2")
    table = grouped(rows, groups).table
    with within(96 << 20):
        found = rank_clocks(table, {gpu: gpu for gpu in range(ranks)})
    assert {rank: one.correction_ns for rank, one in found.items()} == {
        rank: int(late_ns[0] - late_ns[rank]) for rank in range(ranks)
    }
    assert min(one.collectives for one in found.values()) == rounds
