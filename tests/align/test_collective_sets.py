"""Collectives of several groups are matched right whatever the profiler loses of their launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.align.collective_ends import CommKernels, end_offsets
from chopper_core.align.collective_sets import labelled_by_partners
from chopper_core.model.table import KernelTable, Kind, Rule
from chopper_core.model.tree import in_order
from chopper_core.views.shared.collectives import collectives_of
from tests.align.damaged_collectives import US, Damage, Layout, damaged
from tests.bench.joins import collectives_of_files

ONE = Layout()
TENSOR = Layout(gpus=8, layers=12, tensor_parallel=2)
ROOTED = Layout(rooted=2)
SEEDS = range(7_100, 7_104)


def shares(layout: Layout, damage: Damage) -> tuple[float, float]:
    """Of the collectives in all files the share shown right; of those shown the share wrong."""
    scores = np.array([damaged(seed, layout, damage).score() for seed in SEEDS]).sum(axis=0)
    whole, right, wrong = scores.tolist()
    return right / whole, wrong / max(right + wrong, 1)


@pytest.mark.parametrize("layout", [ONE, TENSOR, ROOTED], ids=["one", "tensor", "rooted"])
@pytest.mark.parametrize(("lost", "goal"), [(0.0, 0.999), (0.002, 0.98), (0.015, 0.95)])
def test_collectives_survive_lost_launches(layout: Layout, lost: float, goal: float) -> None:
    right, wrong = shares(layout, Damage(labels=lost))
    assert right >= goal
    assert wrong <= 0.005


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
    after = labelled_by_partners(before)
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
    assert 3 in end_offsets(CommKernels.of(table)).apart
    found = collectives_of(one.run)
    assert found is not None
    assert not found.complete.any()


@pytest.mark.few(1)
@pytest.mark.parametrize("share", [0.015, 0.25])
def test_collectives_of_files_survive_lost_launches(tmp_path: Path, share: float) -> None:
    whole, right, wrong = collectives_of_files(
        tmp_path, ranks=2, layers=3, seed=7_400, lost_share=share, end_scatter_ns=9_000
    )
    assert whole > 30
    assert right >= 0.97 * whole
    assert wrong == 0
