"""Collectives of several process groups with known truth, and profilers that lose parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from msgspec.structs import replace

from chopper_core.graph.collectives import collectives_of
from chopper_core.model.run import Run
from chopper_core.model.table import Kind
from tests.support import Row, run_of

US = 1_000


@dataclass(frozen=True)
class Damage:
    """What the profilers lose; shares are of each GPU's collectives."""

    labels: float = 0.0
    """Launch records, and with them kind, size and group."""
    kernels: float = 0.0
    """Kernels without any record."""
    stretches: int = 4
    scatter_ns: int = 8_000
    """Ends of one collective lie within this."""
    clocks_ns: int = 0
    """Clocks of the GPUs differ by up to this."""


@dataclass(frozen=True)
class Layout:
    """Who communicates with whom, and how often."""

    gpus: int = 4
    iterations: int = 3
    layers: int = 8
    tensor_parallel: int = 1
    rooted: int = 0
    """Broadcasts at the start of an iteration."""


@dataclass
class Damaged:
    """A run with the number of the true collective of each row, and the true ranks of each."""

    run: Run
    collective: np.ndarray
    members: dict[int, int] = field(default_factory=dict)

    def score(self) -> tuple[int, int, int]:
        """How many collectives could be shown, are shown right, and are shown wrong."""
        found = collectives_of(self.run)
        assert found is not None
        seen = np.bincount(self.collective[self.collective >= 0])
        whole = sum(int(seen[number]) == size for number, size in self.members.items())
        right = wrong = 0
        for number in np.flatnonzero(found.complete):
            true = self.collective[found.members.rows_of(int(number))]
            is_right = len(set(true.tolist())) == 1 and len(true) == self.members[int(true[0])]
            right, wrong = right + is_right, wrong + (not is_right)
        return whole, right, wrong


def damaged(seed: int, layout: Layout, damage: Damage) -> Damaged:
    """Simulate the collectives, and lose what the damage says."""
    random = Random(f"collectives {seed}")
    rows, numbers, groups, sizes = _simulated(random, layout, damage)
    keep = np.ones(len(rows), np.bool_)
    bare = np.zeros(len(rows), np.bool_)
    gpu = np.array([row.gpu for row in rows])
    ends = np.array([row.start + row.duration for row in rows])
    for number in range(layout.gpus):
        own = np.flatnonzero(gpu == number)
        own = own[np.argsort(ends[own])]
        bare[_stretches(random, own, damage.labels, damage.stretches)] = True
        keep[_stretches(random, own, damage.kernels, 10**9)] = False
    ahead = [random.randint(-damage.clocks_ns, damage.clocks_ns) for _ in range(layout.gpus)]
    kept = np.flatnonzero(keep).tolist()
    run = run_of(
        [
            replace(
                rows[at],
                start=rows[at].start + ahead[rows[at].gpu],
                operation="collective" if bare[at] else rows[at].operation,
            )
            for at in kept
        ]
    )
    names = sorted(set(groups))
    table = replace(
        run.table,
        names=[*run.table.names, *names],
        group=np.array(
            [-1 if bare[at] else len(run.table.names) + names.index(groups[at]) for at in kept],
            np.int32,
        ),
        bytes=np.array([-1 if bare[at] else sizes[at] for at in kept], np.int64),
    )
    members: dict[int, int] = {}
    for number in numbers:
        members[number] = members.get(number, 0) + 1
    return Damaged(replace(run, table=table), np.array([numbers[at] for at in kept]), members)


def _stretches(random: Random, rows: np.ndarray, share: float, stretches: int) -> list[int]:
    """So large a share of the rows, in so many stretches at random places."""
    lost = round(share * len(rows) + random.random() - 0.5)
    each = max(1, -(-lost // stretches))
    found: set[int] = set()
    while len(found) < lost:
        begin = random.randrange(len(rows))
        found |= set(range(begin, min(begin + each, len(rows), begin + lost - len(found))))
    return [int(rows[at]) for at in found]


def _simulated(
    random: Random, layout: Layout, damage: Damage
) -> tuple[list[Row], list[int], list[str], list[int]]:
    rows: list[Row] = []
    numbers: list[int] = []
    groups: list[str] = []
    sizes: list[int] = []
    now = [random.randrange(200 * US) for _ in range(layout.gpus)]
    free = [0] * layout.gpus
    count = 0
    width = layout.tensor_parallel
    pairs = [range(first, first + width) for first in range(0, layout.gpus, width)]
    world = f"0 (default_pg) of {layout.gpus}"

    def communicate(
        kind: str, members: Sequence[int], group: str, size: int, iteration: int, *, blocks: bool
    ) -> None:
        nonlocal count
        starts = {gpu: max(now[gpu], 0 if blocks else free[gpu]) for gpu in members}
        transfer = 12 * US + size // 400 + random.randrange(10 * US)
        end = max(starts.values()) + transfer
        for place, gpu in enumerate(members):
            own = end + random.randint(0, damage.scatter_ns)
            if kind == "broadcast" and place == 0:
                own = starts[gpu] + transfer
            stream = 12 if blocks else 11
            rows.append(
                Row(starts[gpu], own - starts[gpu], Kind.COMM, stream, gpu, iteration,
                    operation=kind, kernel="ncclDevKernel_Generic")
            )  # fmt: skip
            numbers.append(count)
            groups.append(group)
            sizes.append(size)
            if blocks:
                now[gpu] = own
            else:
                free[gpu] = own
        count += 1

    def compute(microseconds: int) -> None:
        for gpu in range(layout.gpus):
            now[gpu] += round(microseconds * US * random.uniform(0.9, 1.2))

    everyone = range(layout.gpus)
    for iteration in range(layout.iterations):
        for _ in range(layout.rooted):
            communicate("broadcast", everyone, world, 4096, iteration, blocks=True)
            compute(300)
        for phase in range(2):
            for layer in range(layout.layers):
                size = 40_000_000 if layer else 90_000_000
                kind = "all_gather" if not phase else "reduce_scatter"
                communicate(kind, everyone, world, size, iteration, blocks=False)
                for _ in range(2):
                    compute(60)
                    if width > 1:
                        for number, pair in enumerate(pairs):
                            name = f"{number + 1} (tp) of {width}"
                            communicate("all_reduce", pair, name, 600_000, iteration, blocks=True)
        for _ in range(3):
            compute(5)
            communicate("all_reduce", everyone, world, 4, iteration, blocks=True)
        compute(700)
        for gpu in everyone:
            now[gpu] = max(now[gpu], free[gpu])
    return rows, numbers, groups, sizes
