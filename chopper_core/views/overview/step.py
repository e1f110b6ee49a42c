"""The step of a scope: its complete iterations, their time and its parts; two lines about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
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
from chopper_core.util.arrays import Int64, Mask
from chopper_core.views.overheads import (
    LOSSES,
    THEORY,
    covered_parts,
    parts_of,
    with_parts,
    without_flops,
    without_gpus,
)
from chopper_core.views.shared.marks import Coverage
from chopper_core.views.shared.phrases import count, time
from chopper_core.views.shared.samples import mean_powers, together
from chopper_core.views.shared.step_times import (
    StepTimes,
    of_steps,
    replicas_of,
    step_times,
    tokens_in,
)

OTHER: Final = "other_compute_ns"
"""Unattributed compute together with parts that aren't distinguished."""
_OUTSIDE: Final = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")
_COMPUTE: Final = {"compute_ns": "compute", "overlap_ns": "compute beside communication"}
PARTS: Final = (THEORY, *LOSSES)
"""The parts of a step's time where the FLOPs of the model are known."""
STATES: Final = (*_COMPUTE, *_OUTSIDE)
"""The parts where they are not: all compute would be unattributed."""
TITLES: Final = {
    THEORY: "theoretical",
    **_COMPUTE,
    **{name: title for name, title in LOSSES.items() if name not in _OUTSIDE},
    OTHER: "other compute",
    **{name: LOSSES[name] for name in _OUTSIDE},
}
"""The titles of all parts, in the order of a bar."""
COUNTED: Final = (
    "extra_inst_ns",
    "mfma_loss_ns",
    "vector_ns",
    "contention_ns",
)
_UNATTRIBUTED: Final = "unmodelled_ns"
_CACHED: Final = 4
"""Scopes whose step is cached: it may hold the rows of all activities."""
_LEAST_SPREAD: Final = 0.01
"""Of the longest step: the range of steps that differ by less is not shown."""
_SMALLEST_CHANGE_PCT: Final = 0.05
_MAX_UNKNOWN_FLOPS_PCT: Final = 5.0
"""Of the time of matrix kernels: with more, the share of the peak would be far too small."""


class Step(Struct, frozen=True, eq=False, dict=True):
    """The complete iterations of a scope, on its GPUs; without iterations, the scope itself."""

    run: Run
    view: View
    tree: Tree
    times: StepTimes
    nodes: Groups
    """The activities of each GPU in the iterations."""
    whole: Groups
    """Those of all GPUs, as one group."""
    begins_ns: Int64
    """The first start in each iteration."""
    ends_ns: Int64
    """The last end in each iteration."""

    @property
    def gpus(self) -> list[int]:
        return [int(gpu) for gpu in self.times.gpus]

    @property
    def word(self) -> str:
        """The word for an iteration: inference has steps."""
        if not self.times.iterations:
            return "time"
        phases = set(self.tree.split(self.view.path, ("phase",)).codes("phase").tolist())
        return "step" if phases & {Phase.PREFILL, Phase.DECODE} else "iteration"

    def scope(self, nodes: Groups) -> Scope:
        return Scope.of(self.run, nodes, self.whole)

    def figure(self, name: str) -> Values:
        return METRICS[name].compute(self.scope(self.nodes))

    def tokens_per_s(self) -> float | None:
        times = self.times
        if not times.iterations:
            return None
        tokens = tokens_in(self.run, self.gpus, times.iterations).mean()
        if not np.isfinite(tokens) or not times.mean_ns:
            return None
        return float(1e9 * tokens / times.mean_ns * replicas_of(self.run, self.gpus))

    @cached_property
    def parts(self) -> Mapping[str, Int64]:
        """The parts of the time of all activities, in ns; they add up to it."""
        parts = parts_of(self.run, self.whole)
        if parts.values[THEORY].present().any():
            return self._with_moved({name: parts.numbers(name) for name in PARTS})
        return self.states

    @cached_property
    def covered(self) -> Mapping[str, frozenset[int]]:
        """The GPUs that have each part, of the parts that only some GPUs have."""
        run = with_parts(self.run)
        return covered_parts(Coverage(run, self.view, "", self.whole, self.whole))

    @cached_property
    def some(self) -> frozenset[int]:
        """The GPUs whose bar has the parts that others lack; empty where all have all."""
        each = [self.covered[name] for name in self.parts if name in self.covered]
        each = [gpus for gpus in each if gpus]
        return frozenset.intersection(*each) or max(each, key=len) if each else frozenset()

    def parts_on(self, gpus: Collection[int]) -> tuple[Mapping[str, Int64], int]:
        """The parts of the time of some GPUs, and the number of their iterations."""
        without = {**self.times.excluded, **without_gpus(self.tree, gpus)}
        parts = parts_of(self.run, self.tree.split(self.view.path, (), without))
        own = np.isin(self.times.gpus, list(gpus))
        found = self._with_moved({name: parts.numbers(name) for name in PARTS}, own)
        return found, int((self.times.times_ns[own] > 0).sum())

    @property
    def of_peak_pct(self) -> float:
        """The theoretical time in % of the time, on the GPUs where it is known."""
        own, _ = self.parts_on(self.covered.get(THEORY, self.gpus))
        return 100.0 * float(own[THEORY][0]) / max(sum(int(each[0]) for each in own.values()), 1)

    @property
    def without_flops_pct(self) -> float:
        """How much of the matrix kernels' time has unknown FLOPs, in %."""
        return without_flops(self.tree.split(self.view.path, ("operation", "kernel")))

    @property
    def states(self) -> Mapping[str, Int64]:
        return self._with_moved({name: self.whole.sum(name) for name in STATES})

    def _with_moved(
        self, parts: Mapping[str, Int64], gpus: Mask | slice = slice(None)
    ) -> Mapping[str, Int64]:
        return {**parts, "idle_ns": parts["idle_ns"] + self.times.moved_ns[gpus].sum()}


def without(parts: Mapping[str, Int64], names: Collection[str]) -> Mapping[str, Int64]:
    """The parts with some of them and unattributed compute together as other compute."""
    merged = [_UNATTRIBUTED, *(name for name in names if name in parts)]
    if _UNATTRIBUTED not in parts:
        return parts
    other: Int64 = np.sum([parts[each] for each in merged], axis=0, dtype=np.int64)
    return {**{name: values for name, values in parts.items() if name not in merged}, OTHER: other}


def step_of(run: Run, view: View) -> Step:
    plain = replace(view, sort="", filter="", columns=())
    return run.memo(("step", plain), lambda: _step_of(run, plain), keep=_CACHED)


def _step_of(run: Run, view: View) -> Step:
    times = step_times(run, view)
    tree = with_parts(run).tree(view.order)
    cells = tree.split(view.path, ("gpu", "iteration"), times.excluded)
    shape, limits = (times.gpus, times.iterations or (NO_LABEL,)), np.iinfo(np.int64)
    return Step(
        run,
        view,
        tree,
        times,
        tree.split(view.path, ("gpu",), times.excluded),
        tree.split(view.path, (), times.excluded),
        of_steps(cells, *shape, cells.min("start_ns"), limits.max).min(axis=0),
        of_steps(cells, *shape, cells.max("end_ns"), limits.min).max(axis=0),
    )


class _Fact(Struct, frozen=True):
    """A figure of the first line: its number and how it is written; `of` names it."""

    number: float | None
    text: Callable[[float], str]
    before: str = ""
    after: str = ""
    is_share: bool = False
    """Whether a change is in percentage points."""


def headline_of(step: Step, base: Step | None = None) -> str:
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
    elapsed = max(int(step.times.times_ns.sum()), 1)
    theory = step.of_peak_pct if knows_flops else None
    some = step.covered.get(THEORY, ())
    on_some = f" of peak ({len(some)}/{len(step.gpus)} GPUs)" if some else " of peak"
    communicates = int(step.whole.sum("collectives")[0]) > 0 and not step.run.is_reconstructed
    exposed = 100.0 * int(whole["exposed_comm_ns"][0]) / elapsed if communicates else None
    least, most = step.times.each_ns.min(), step.times.each_ns.max()
    spread = ""
    if most - least >= _LEAST_SPREAD * most:
        (shortest, unit), longest = time(least).split(), time(most)
        shortest = shortest if longest.endswith(f" {unit}") else f"{shortest} {unit}"
        spread = f" ({shortest} to {longest})"
    return (
        _Fact(step.times.mean_ns, time, before=f"{step.word} ", after=spread),
        _Fact(step.tokens_per_s(), _thousands, after=" tok/s"),
        _Fact(theory, _percent, after=on_some, is_share=True),
        _Fact(exposed, _percent, before="exposed ", is_share=True),
        _Fact(together(mean_powers(step.run, step.view)), power_text),
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


def _percent(number: float) -> str:
    return f"{number:.1f} %" if number < 10 else f"{number:.0f} %"


def _thousands(number: float) -> str:
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= least:
            return f"{number / least:.{_decimals(number / least)}f}{unit}"
    return f"{number:.{_decimals(number)}f}"


def _decimals(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2


def power_text(watts: float) -> str:
    return f"{watts / 1e3:.1f} kW" if watts >= 1000 else f"{watts:.0f} W"


def facts_of(step: Step) -> list[str]:
    run = step.run
    products = Counter(gpu.hardware or "unknown GPU" for gpu in run.gpus if gpu.index in step.gpus)
    facts = [f"{count} × {name}" for name, count in products.most_common()]
    ranks = len({gpu.rank for gpu in run.gpus})
    if run.world > ranks:
        facts.append(f"{ranks} of {run.world} ranks")
    facts.append(_iterations(step))
    facts.append(_sources(step))
    return [fact for fact in facts if fact]


def _iterations(step: Step) -> str:
    used = len(step.times.iterations)
    known = used + len(step.times.left_out)
    if not known:
        return "no iterations"
    return count(known, step.word) if used == known else f"{used} of {known} {step.word}s"


def _sources(step: Step) -> str:
    run, table = step.run, step.run.table
    counted = sorted({each.gpu for each in run.counters if each.gpu in step.gpus})
    counters = "no counters"
    if counted:
        every = len(counted) == len(step.gpus)
        counters = "counters" if every else f"counters on {count(len(counted), 'GPU')}"
    elif CYCLES in table.measured:
        counters = "counters"
    telemetry = {"gfx_mhz": "clock", "power_w": "power"}
    lacks = [word for name, word in telemetry.items() if not is_measured(name, table)]
    if not lacks:
        return f"{counters} · telemetry"
    if len(lacks) == 1:
        return f"{counters} · no {lacks[0]}"
    return f"{counters} · no telemetry" if counters != "no counters" else "trace only"
