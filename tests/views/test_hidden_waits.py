"""Waits that compute hides: whoever is late there is said, and what the step takes longer by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.align.traces import ADAM, ADD, GEMM, RCCL
from tests.support import rows_of
from tests.training import Rank, opened

LAYERS, STEPS = 8, 5
KERNEL_US, REDUCE_US = 1000, 700


@dataclass
class Job:
    """Data parallel training: of each layer the gradients are reduced behind the compute."""

    slower: dict[int, float] = field(default_factory=dict)
    """By how much the kernels of a GPU are slower."""
    uneven: float = 0.0
    """By how much they may be, with another part of it on each GPU and in each step."""
    even: float = 0.0
    """By how much they all are."""
    small_kernels: dict[int, int] = field(default_factory=dict)
    """Of a GPU's optimizer, which is one kernel of 320 µs on the others."""
    world: int = 4
    ranks: Sequence[Rank] = ()

    def run(self) -> float:
        """The time of all steps, in µs."""
        self.ranks = [Rank(number, self.world) for number in range(self.world)]
        for step in range(STEPS):
            self.step(step)
        return max(each.free for each in self.ranks)

    def step(self, number: int) -> None:
        begins = [each.now for each in self.ranks]
        for each in self.ranks:
            part = (5 * each.rank + 3 * number) % len(self.ranks) / (len(self.ranks) - 1)
            each.slower = 1 + self.slower.get(each.rank, 0.0) + self.even + part * self.uneven
            with each.note_around("forward"):
                for layer in range(LAYERS):
                    with each.note_around(f"Layer{layer}"):
                        each.kernel(GEMM, KERNEL_US / 2, "aten::mm")
        reduced = 0
        for layer in reversed(range(LAYERS)):
            for each in self.ranks:
                with each.note_around("backward"), each.note_around(f"Layer{layer}"):
                    each.kernel(GEMM, KERNEL_US, "aten::mm")
            reduced = self.reduce(reduced)
        for each, begin in zip(self.ranks, begins, strict=True):
            each.free, each.slower = reduced, 1.0
            small = self.small_kernels.get(each.rank, 0)
            with each.note_around("optimizer"):
                for _ in range(small):
                    each.kernel(ADD, 6, "aten::add_")
                if not small:
                    each.kernel(ADAM, 320, "aten::_fused_adamw_")
            each.read_back()
            each.host("user_annotation", f"ProfilerStep#{number}", begin, each.now)
            each.now += 1

    def reduce(self, free: int) -> int:
        """When an all-reduce ends on all, in a stream of its own that is free from some time on."""
        starts = [max(each.now + 12, each.free, free) for each in self.ranks]
        end = max(starts) + REDUCE_US
        for each, start in zip(self.ranks, starts, strict=True):
            each.launch(
                RCCL, each.now + 2, start=start, duration=end - start, stream=20,
                **{"Collective name": "allreduce", "In msg nelems": 1 << 22,
                   "Out msg nelems": 1 << 22, "dtype": "BFloat16", "Group size": self.world,
                   "Process Group Name": "0", "Process Group Ranks": str([*range(self.world)])},
            )  # fmt: skip
            each.now += 6
        return end


def _costs_ns(job: Job) -> float:
    return 1e3 * (job.run() - Job().run()) / STEPS


@pytest.mark.parametrize("slower", [0.02, 0.04, 0.08])
def test_a_gpu_for_which_the_others_wait_behind_compute_is_late(
    slower: float, tmp_path: Path
) -> None:
    job = Job(slower={2: slower})
    cost = _costs_ns(job)
    run = opened(job.ranks, tmp_path)
    ranks = rows_of(query(run, View("R", name="ranks")))
    assert ranks["2"]["delay_ns"] == pytest.approx(cost, rel=0.1)
    assert all(ranks[gpu]["delay_ns"] < 0.05 * cost for gpu in "013")
    found = query(run, View("R", name="findings"))
    (late,) = [row for row in map(found.row, range(len(found))) if row["rule"] == "straggler"]
    assert late["saving_ns"] == pytest.approx(cost, rel=0.1)


def test_gpus_whose_kernels_are_slower_in_turn_are_late(tmp_path: Path) -> None:
    """All are at times, so that every GPU is late in many steps: that is no chance."""
    job = Job(uneven=0.4, world=8)
    cost = 1e3 * (job.run() - Job(even=0.2, world=8).run()) / STEPS
    found = query(opened(job.ranks, tmp_path), View("R", name="findings"))
    late = [row for row in map(found.row, range(len(found))) if row["rule"] == "straggler"]
    assert late and late[0]["saving_ns"] == pytest.approx(cost, rel=0.5)


def test_an_optimizer_that_is_not_fused_on_one_gpu_is_compared(tmp_path: Path) -> None:
    """It runs many times as many kernels as the others: they are its peers all the same."""
    job = Job(small_kernels={1: 100})
    cost = _costs_ns(job)
    run = opened(job.ranks, tmp_path)
    ranks = rows_of(query(run, View("R", name="ranks")))
    assert ranks["1"]["delay_ns"] == pytest.approx(cost, rel=0.25)
    found = query(run, View("R", name="findings"))
    (late,) = [each for each in range(len(found)) if found.row(each)["rule"] == "straggler"]
    assert found.labels[late].startswith("GPU 1 ")
    assert found.row(late)["saving_ns"] == pytest.approx(cost, rel=0.25)
