"""The step of a scope: its complete iterations, their time and its parts; two lines about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Scope, Values, is_measured
from chopper_core.model.column_names import CYCLES
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Phase
from chopper_core.model.tree import Tree
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.grouping import counted, distinct, median_of
from chopper_core.views.overheads import LOSSES, THEORY, parts_of, with_parts, without_flops
from chopper_core.views.shared.phrases import count, time
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
_SMALLEST_CHANGE_PCT: Final = 0.05
_MAX_UNKNOWN_FLOPS_PCT: Final = 5.0
"""Of the time of matrix kernels: with more, the share of the peak would be far too small."""


class Step(Struct, frozen=True, eq=False, dict=True):
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

    @cached_property
    def parts(self) -> Mapping[str, Int64]:
        """The parts of the time of all activities, in ns; they add up to it."""
        parts = parts_of(self.run, self.whole)
        if parts.values[THEORY].present().any():
            return {name: parts.numbers(name) for name in PARTS}
        return self.states

    @property
    def without_flops_pct(self) -> float:
        """How much of the matrix kernels' time has unknown FLOPs, in %."""
        return without_flops(self.tree.split(self.view.path, ("operation", "kernel")))

    @property
    def states(self) -> Mapping[str, Int64]:
        """The states of the GPUs in the time of all activities, in ns."""
        return {name: self.whole.sum(name) for name in STATES}


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
    # A run with only truncated iterations shows them.
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


class _Fact(Struct, frozen=True):
    """A figure of the first line: its number and how it is written; `of` names it."""

    number: float | None
    text: Callable[[float], str]
    before: str = ""
    after: str = ""
    is_share: bool = False
    """Whether a change is in percentage points."""


def headline_of(step: Step, base: Step | None = None) -> str:
    """The figures that are known, the most important first; with a baseline, how each changed."""
    others = _figures(base) if base is not None else (None,) * 5
    clauses = [
        _fact_text(figure, other)
        for figure, other in zip(_figures(step), others, strict=True)
        if figure.number is not None
    ]
    return " · ".join(clauses)


def _figures(step: Step) -> tuple[_Fact, ...]:
    whole = step.parts
    knows_flops = THEORY in whole and step.without_flops_pct <= _MAX_UNKNOWN_FLOPS_PCT
    elapsed = max(int(step.whole.elapsed_ns[0]), 1)
    theory = 100.0 * int(whole[THEORY][0]) / elapsed if knows_flops else None
    communicates = int(step.whole.sum("collectives")[0]) > 0 and not step.run.is_reconstructed
    exposed = 100.0 * int(whole["exposed_comm_ns"][0]) / elapsed if communicates else None
    return (
        _Fact(step.median_ns, time, before=f"{step.word} "),
        _Fact(step.tokens_per_s(), _thousands, after=" tok/s"),
        _Fact(theory, _percent, after=" of peak", is_share=True),
        _Fact(exposed, _percent, before="exposed ", is_share=True),
        _Fact(_power_w(step), _power),
    )


def _fact_text(figure: _Fact, other: _Fact | None) -> str:
    assert figure.number is not None
    text = f"{figure.before}{figure.text(figure.number)}{figure.after}"
    if other is None or other.number is None:
        return text
    if figure.is_share:
        change, unit = figure.number - other.number, "points"
    else:
        change, unit = 100.0 * (figure.number / other.number - 1.0) if other.number else 0.0, "%"
    text = f"{figure.before}{other.text(other.number)} → {figure.text(figure.number)}{figure.after}"
    if abs(change) < _SMALLEST_CHANGE_PCT:
        return f"{text} (same)"
    return f"{text} ({change:+z.1f} {unit})"


def _power_w(step: Step) -> float | None:
    """The mean power of all GPUs together; None if that of any is unknown."""
    if not is_measured("power_w", step.run.table):
        return None
    values = step.figure("power_w")
    return float(values.numbers.sum()) if values.present().all() else None


def _percent(number: float) -> str:
    return f"{number:.1f} %" if number < 10 else f"{number:.0f} %"


def _thousands(number: float) -> str:
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= least:
            return f"{number / least:.{_decimals(number / least)}f}{unit}"
    return f"{number:.{_decimals(number)}f}"


def _decimals(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2


def _power(watts: float) -> str:
    return f"{watts / 1e3:.1f} kW" if watts >= 1000 else f"{watts:.0f} W"


def facts_of(step: Step) -> list[str]:
    """The run in a line: its GPUs, ranks, iterations, and the sources that it lacks."""
    run = step.run
    products = Counter(gpu.hardware or "unknown GPU" for gpu in run.gpus if gpu.index in step.gpus)
    facts = [f"{count} × {name}" for name, count in products.most_common()]
    ranks = len({gpu.rank for gpu in run.gpus})
    world = max((int(w) for s in run.sources if (w := s.facts.get("world size", "")).isdigit()),
                default=0)  # fmt: skip
    if world > ranks:
        facts.append(f"{ranks} of {world} ranks")
    facts.append(_iterations(step))
    facts.append(_sources(step))
    return [fact for fact in facts if fact]


def _iterations(step: Step) -> str:
    used = len(step.iterations)
    known = used + len(step.left_out) + len(step.irregular)
    if not known:
        return "no iterations"
    return count(known, step.word) if used == known else f"{used} of {known} {step.word}s"


def _sources(step: Step) -> str:
    """Which GPUs have counters and telemetry, or that they don't."""
    run, table = step.run, step.run.table
    counted = sorted({each.gpu for each in run.counters if each.gpu in step.gpus})
    counters = "no counters"
    if counted:
        every = len(counted) == len(step.gpus)
        counters = "counters" if every else f"counters on {count(len(counted), 'GPU')}"
    elif CYCLES in table.measured:
        counters = "counters"
    measured = [name for name in ("gfx_mhz", "power_w") if is_measured(name, table)]
    if len(measured) == 2:
        return f"{counters} · telemetry"
    lacks = {"gfx_mhz": "clock", "power_w": "power"}
    if measured:
        return f"{counters} · no {next(lacks[name] for name in lacks if name not in measured)}"
    return f"{counters} · no telemetry" if counters != "no counters" else "trace only"
