"""The step of a scope: its complete iterations, how long they take and of what that consists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Scope, Values
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Phase
from chopper_core.model.tree import Tree
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import counted, distinct, median_of
from chopper_core.views.overheads import LOSSES, THEORY, parts_of, with_parts, without_flops
from chopper_core.views.shared.tokens import tokens_in

PARTS: Final = {THEORY: "theoretical", **LOSSES}
"""The parts of a step's time where the FLOPs of the model are known."""
STATES: Final = {
    "compute_ns": "compute",
    "overlap_ns": "compute beside communication",
    **{name: LOSSES[name] for name in ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")},
}
"""The parts where they are not: all compute would be unattributed."""


_COUNTED: Final = (
    "extra_inst_ns",
    "mfma_loss_ns",
    "vector_ns",
    "contention_ns",
)
_UNATTRIBUTED: Final = "unmodelled_ns"
_CACHED: Final = 4
"""Scopes whose step is cached: it may hold the rows of all activities."""
IRREGULAR_TIMES: Final = 2.0
"""Times the median from which an iteration is a warm-up, an evaluation or a checkpoint."""


class Step(Struct, frozen=True, eq=False):
    """The complete iterations of a scope, on its GPUs; without iterations, the scope itself."""

    run: Run
    view: View
    tree: Tree
    gpus: list[int]
    nodes: Groups
    """The activities of each GPU in the iterations."""
    whole: Groups
    """Those of all GPUs, as one group."""
    iterations: list[int]
    """Empty: the scope has none."""
    left_out: list[int]
    """Iterations that the profiling window cuts, or that a GPU lacks."""
    irregular: list[int]
    """Complete iterations that take far longer than the others: no part of the mean step."""
    median_ns: float
    """The median over all complete iterations of the longest GPU's time."""
    times_ns: Int64
    """GPUs x iterations; 0 where a GPU lacks one."""
    cells: int
    """The number of pairs of a GPU and an iteration."""
    begins_ns: Int64
    """The first start in each iteration."""
    ends_ns: Int64
    """The last end in each iteration."""

    @property
    def word(self) -> str:
        """The word for an iteration: inference has steps."""
        if not self.iterations:
            return "time"
        phases = set(self.tree.split(self.view.path, ("phase",)).codes("phase").tolist())
        return "step" if phases & {Phase.PREFILL, Phase.DECODE} else "iteration"

    @property
    def slowest_ns(self) -> Int64:
        """The time of each iteration on the GPU that takes longest."""
        return np.asarray(self.times_ns.max(axis=0), np.int64)

    @property
    def typical(self) -> int:
        """The place of the iteration whose time is nearest to the median."""
        return int(np.abs(self.slowest_ns - self.median_ns).argmin())

    @property
    def mean_ns(self) -> float:
        """The mean time of a GPU in an iteration: the parts of the step add up to it."""
        return float(self.times_ns.sum()) / self.cells

    def scope(self, nodes: Groups) -> Scope:
        """Some of the activities, to compute metrics of."""
        return Scope(nodes, self.whole, self.run.origin_ns, self.run.hardware, self.run.measured)

    def figure(self, name: str) -> Values:
        """A metric of each GPU."""
        return METRICS[name].compute(self.scope(self.nodes))

    def tokens_per_s(self) -> float | None:
        """Tokens per second of all GPUs together, by the median iteration; None if unknown."""
        if not self.iterations:
            return None
        iterations = sorted((*self.iterations, *self.irregular))
        tokens = tokens_in(self.run, self.gpus, iterations).mean()
        if not np.isfinite(tokens) or not self.median_ns:
            return None
        return float(1e9 * tokens / self.median_ns * len(self.gpus))

    def parts_of(self, nodes: Groups) -> Mapping[str, Int64]:
        """The parts of the time of some of the activities, in ns; they add up to it."""
        parts = parts_of(self.run, nodes)
        if parts.values[THEORY].present().any():
            return {name: parts.numbers(name) for name in PARTS}
        return self.states_of(nodes)

    @property
    def without_flops_pct(self) -> float:
        """How much of the matrix kernels' time has unknown FLOPs, in %."""
        return without_flops(self.tree.split(self.view.path, ("operation", "kernel")))

    def states_of(self, nodes: Groups) -> Mapping[str, Int64]:
        """The states of the GPUs in the time of some of the activities, in ns."""
        return {name: nodes.sum(name) for name in STATES}


def has_counted(parts: Mapping[str, Int64]) -> bool:
    """Whether any part is known from counters."""
    return any(parts[name][0] for name in _COUNTED if name in parts)


def without_counted(parts: Mapping[str, Int64]) -> Mapping[str, Int64]:
    """The parts with those that counters tell apart in unattributed compute."""
    added = np.sum([parts[name] for name in _COUNTED if name in parts], axis=0, dtype=np.int64)
    return {
        name: values + added if name == _UNATTRIBUTED else values
        for name, values in parts.items()
        if name not in _COUNTED
    }


def titles_of(parts: Mapping[str, Int64]) -> Mapping[str, str]:
    """The titles of the parts of a step."""
    titles = PARTS | STATES
    return {name: titles[name] for name in parts}


def step_of(run: Run, view: View) -> Step:
    """The step of a view's scope, found once; raises NoSuchNode."""
    plain = replace(view, sort="", filter="", columns=())
    return run.memo(("step", plain), lambda: _step_of(run, plain), keep=_CACHED)


def _step_of(run: Run, view: View) -> Step:
    tree = with_parts(run).tree(view.order)
    by_iteration = tree.split(view.path, ("gpu", "iteration"))
    gpus = distinct(by_iteration.codes("gpu")).astype(np.int64)
    codes = by_iteration.codes("iteration").astype(np.int64)
    found, counts = counted(codes[codes != NO_LABEL])
    everywhere = found[counts == len(gpus)]
    whole = [code for code in everywhere.tolist() if code not in run.left_out(view)]
    # Of a run with nothing but cut iterations, these are shown.
    kept = whole or everywhere.tolist() or found.tolist()
    took = _times_of(by_iteration, gpus, codes, kept).max(axis=0)
    median = median_of(took) if kept else 0.0
    complete = kept
    kept = [code for code, own in zip(kept, took.tolist(), strict=True)
            if own <= IRREGULAR_TIMES * median]  # fmt: skip
    without = {"iteration": [code for code in set(codes.tolist()) if code not in kept]}
    without = without if kept and without["iteration"] else {}
    nodes = tree.split(view.path, ("gpu",), without)
    cells = tree.split(view.path, ("gpu", "iteration"), without) if kept else nodes
    shape = (len(gpus), max(len(kept), 1))
    place = np.searchsorted(gpus, cells.codes("gpu")) * shape[1]
    if kept:
        place = place + np.searchsorted(np.array(kept), cells.codes("iteration"))
    return Step(
        run,
        view,
        tree,
        gpus.tolist(),
        nodes,
        tree.split(view.path, (), without),
        kept,
        [code for code in found.tolist() if code not in complete],
        [code for code in complete if code not in kept],
        median if kept else float(cells.elapsed_ns.max()),
        _table(cells.elapsed_ns, place, shape, 0),
        len(cells),
        _table(cells.min("start_ns"), place, shape, np.iinfo(np.int64).max).min(axis=0),
        _table(cells.max("end_ns"), place, shape, np.iinfo(np.int64).min).max(axis=0),
    )


def _times_of(cells: Groups, gpus: Int64, codes: Int64, kept: list[int]) -> Int64:
    """The time charged to some iterations on each GPU, as GPUs x iterations."""
    own = np.isin(codes, kept)
    place = np.searchsorted(gpus, cells.codes("gpu")[own]) * len(kept)
    place += np.searchsorted(np.array(kept, np.int64), codes[own])
    return _table(cells.elapsed_ns[own], place, (len(gpus), len(kept)), 0)


def _table(values: Int64, place: Index, shape: tuple[int, int], empty: int) -> Int64:
    """Values of GPUs and iterations as GPUs x iterations."""
    found = np.full(shape[0] * shape[1], empty, np.int64)
    found[place] = values
    return found.reshape(shape)
