"""A run: one profiled job, aligned: its kernel table and what was found on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chopper_core.accounting import BusyTime, busy_time
from chopper_core.schema import LEVELS, KernelTable
from chopper_core.tree import Tree


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device of one rank."""

    index: int
    """Its number in the run: the rank, where every rank has one GPU."""
    rank: int
    device: int
    """The device as the trace numbers it (on AMD the HSA node, not the GPU's index)."""
    hardware: str
    """Name of the product, '' where the trace doesn't say it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One input file and what became of it."""

    path: str
    size_bytes: int
    rank: int
    rank_from: str
    """Where the rank was read: `distributedInfo`, the file name, or the order of the files."""
    events: Mapping[str, int]
    unused: Mapping[str, int]
    findings: Mapping[str, int]
    """Counts of what is incomplete in the file, by a name for people."""
    losses: tuple[str, ...]
    """One sentence per thing that could not be read."""
    clock: str
    facts: Mapping[str, str]
    """What the file says of itself: versions, world size, base time."""


@dataclass(frozen=True)
class Run:
    """An aligned run."""

    name: str
    table: KernelTable
    gpus: tuple[Gpu, ...]
    sources: tuple[Source, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """(file, reason) of files that are no traces."""
    failed: tuple[tuple[str, str], ...] = ()
    """(file, reason) of traces that could not be used."""
    generated: str | None = None
    """What made the data, where it says that it was generated and not measured."""
    partial_iterations: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """GPU → iterations that the profiler's start or end cut."""
    _trees: dict[tuple[str, ...], Tree] = field(default_factory=dict, repr=False)
    _busy: dict[int, BusyTime] = field(default_factory=dict, repr=False)

    @property
    def origin_ns(self) -> int:
        """The start of the run's first activity on the run's clock."""
        return int(self.table.start_ns.min()) if len(self.table) else 0

    def tree(self, order: tuple[str, ...] = LEVELS) -> Tree:
        """The tree in an order of the levels, made once."""
        if order not in self._trees:
            self._trees[order] = Tree(self.table, order)
        return self._trees[order]

    def busy(self, gpu: int) -> BusyTime:
        """The busy time of a GPU, made once."""
        if gpu not in self._busy:
            rows = self.table.gpu == gpu
            self._busy[gpu] = busy_time(self.table.start_ns[rows], self.table.duration_ns[rows])
        return self._busy[gpu]

    def busy_shares(self, gpu: int, bounds_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        """The busy share (0..1) of a GPU in each bin between neighbouring bounds."""
        return self.busy(gpu).share(bounds_ns)
