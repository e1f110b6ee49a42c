"""The step of a scope: its complete steps, their time and its parts; two lines about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.samples import total_power
from chopper_core.analyses.step_times import (
    StepTimes,
    gap_of_programs,
    of_steps,
    ranks_of,
    step_times,
    token_rate,
    tokens_in,
    untraced_in,
)
from chopper_core.analyses.time_parts import (
    LOSSES,
    THEORY,
    covered_parts,
    divided_as,
    parts_of,
    unknown_flops,
    with_all_parts,
    with_parts,
    without_gpus,
)
from chopper_core.columns import METRICS, Scope, Values, is_measured
from chopper_core.model.column_names import CYCLES
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import count, facts, time
from chopper_core.model.run import Run, SideSource
from chopper_core.model.table import NO_LABEL, STATE_TITLES, STATES
from chopper_core.model.tree import Tree
from chopper_core.model.units import Unit, scaled_text, significant
from chopper_core.model.view import View
from chopper_core.util.arrays import Int64
from chopper_core.util.grouping import median_of

OTHER: Final = "other_compute_ns"
"""Unattributed compute together with parts that aren't distinguished."""
_OUTSIDE: Final = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")
_COMPUTE: Final = {name: STATE_TITLES[name] for name in STATES if name not in _OUTSIDE}
PARTS: Final = (THEORY, *LOSSES)
"""The parts of a step's time where the FLOPs of the model are known; else its states, since all
compute would be unattributed."""
TITLES: Final = {
    THEORY: "ideal",
    **_COMPUTE,
    **{name: title for name, title in LOSSES.items() if name not in _OUTSIDE},
    OTHER: "not explained",
    **{name: LOSSES[name] for name in _OUTSIDE},
}
"""The titles of all parts, in the order of a bar."""
COUNTED: Final = ("extra_inst_ns", "mfma_loss_ns", "vector_ns", "contention_ns")
Parts = Mapping[str, float]
"""Part of the time → its ns."""
UNATTRIBUTED: Final = "unmodelled_ns"
_LEAST_SPREAD: Final = 0.01
"""Of the longest step: the range of steps that differ by less is not shown."""
_MEDIAN_APART: Final = 0.05
"""Of the mean step: a median farther from it is shown."""
_FEW_STEPS: Final = 3
_CURVE_CELLS: Final = 12
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_THOUSANDS: Final = (("G", 1e9), ("M", 1e6), ("k", 1e3))
_SMALLEST_CHANGE_PCT: Final = 0.05
_percent: Final = partial(scaled_text, unit=Unit.PERCENT)


class Step(Struct, frozen=True, eq=False, dict=True):
    """The complete steps of a scope, on its GPUs; without steps, the scope itself."""

    run: Run
    view: View
    tree: Tree
    times: StepTimes

    @cached_property
    def nodes(self) -> Groups:
        """The activities of each GPU in the steps."""
        return self.tree.split(self.view.path, ("gpu",), self.times.excluded)

    @cached_property
    def whole(self) -> Groups:
        """Those of all GPUs, as one group."""
        return self.tree.split(self.view.path, (), self.times.excluded)

    @cached_property
    def spans_ns(self) -> tuple[Int64, Int64]:
        """The first start and the last end in each step."""
        cells = self.tree.split(self.view.path, ("gpu", "iteration"), self.times.excluded)
        shape, limits = (self.times.gpus, self.times.iterations or (NO_LABEL,)), np.iinfo(np.int64)
        begins = of_steps(cells, *shape, cells.min("start_ns"), limits.max).min(axis=0)
        return begins, of_steps(cells, *shape, cells.max("end_ns"), limits.min).max(axis=0)

    @cached_property
    def gpus(self) -> list[int]:
        return [int(gpu) for gpu in self.times.gpus]

    @property
    def is_part(self) -> bool:
        """Whether the scope is a part of steps, such as a phase."""
        return not {level for level, _ in self.view.scope} <= {"gpu", "iteration"}

    @cached_property
    def phases(self) -> frozenset[int]:
        """The phases of the steps."""
        parts = self.tree.split(self.view.path, ("phase",), self.times.excluded)
        return frozenset(parts.codes("phase").tolist())

    @property
    def word(self) -> str:
        """The word for what the figures are of."""
        return "step" if self.times.iterations else "time"

    def scope(self, nodes: Groups) -> Scope:
        return Scope.of(self.run, nodes, self.whole)

    def figure(self, name: str) -> Values:
        return METRICS[name].compute(self.scope(self.nodes))

    def tokens_per_s(self) -> float | None:
        times = self.times
        if self.is_part or not times.iterations or not times.mean_ns:
            return None
        tokens = tokens_in(self.run, self.gpus, times.iterations).mean()
        if not np.isfinite(tokens):
            return None
        return float(token_rate(tokens, times.mean_ns, ranks_of(self.run, self.gpus)))

    @cached_property
    def parts(self) -> Parts:
        """The parts of the time of all activities, which add up to it; those that only some GPUs
        distinguish are divided as on these."""
        return {**self._parts_of(self.whole), **self._divided}

    @property
    def divided(self) -> frozenset[str]:
        """The parts that are divided as on some GPUs."""
        return frozenset(self._divided)

    @property
    def states(self) -> Parts:
        return self._parts_of(self.whole, has_theory=False)

    @cached_property
    def covered(self) -> Mapping[str, frozenset[int]]:
        """The GPUs that have each part, of the parts that only some GPUs have."""
        return covered_parts(with_parts(self.run), self.whole)

    @property
    def some(self) -> frozenset[int]:
        """The GPUs that distinguish parts that others don't; empty where all have all."""
        return with_all_parts(self.covered)[0] if self.divided else frozenset()

    @cached_property
    def _divided(self) -> Parts:
        gpus, partial = with_all_parts(self.covered)
        whole = self._parts_of(self.whole)
        if THEORY not in whole or not partial:
            return {}
        without = {**self.times.excluded, **without_gpus(self.tree, gpus)}
        some = self._parts_of(self.tree.split(self.view.path, (), without))
        if THEORY not in some:
            return {}
        of_all, of_some = (
            {name: np.array([float(ns)]) for name, ns in each.items()} for each in (whole, some)
        )
        found = divided_as(of_all, of_some, partial)
        return {name: float(ns[0]) for name, ns in found.items() if np.isfinite(ns[0])}

    @property
    def of_peak_pct(self) -> float:
        """MFU: the time of the model's FLOPs at peak in % of the time."""
        share = 100.0 * self.parts[THEORY] / max(sum(self.parts.values()), 1.0)
        return share * float(np.ravel(parts_of(self.run, self.whole, (THEORY,)).model_x)[0])

    def _parts_of(self, nodes: Groups, *, has_theory: bool = True) -> Parts:
        """The parts of the time of one group, which is all of these GPUs."""
        found = {name: int(nodes.sum(name)[0]) for name in STATES}
        if has_theory:
            known = parts_of(self.run, nodes)
            if known.values[THEORY].present().any():
                found = {name: int(known.numbers(name)[0]) for name in PARTS}
        return found


def without(parts: Parts, names: Collection[str]) -> Parts:
    """The parts with some of them and unattributed compute together as other compute."""
    if UNATTRIBUTED not in parts:
        return parts
    kept = {name: ns for name, ns in parts.items() if name not in (UNATTRIBUTED, *names)}
    return {**kept, OTHER: sum(parts.values()) - sum(kept.values())}


def step_of(run: Run, view: View) -> Step:
    plain = replace(view, sort="", filter="", columns=())

    def made() -> Step:
        return Step(run, plain, with_parts(run).tree(plain.order), step_times(run, plain))

    return run.memo(("step", plain), made)


class _Fact(Struct, frozen=True):
    """A figure of the first line: its number and how it is written; `of` names it."""

    number: float
    text: Callable[[float], str]
    before: str = ""
    after: str = ""
    is_share: bool = False
    """Whether a change is in percentage points."""

    def line(self, other: _Fact | None) -> str:
        """Its text, with the change from that of the baseline."""
        own = f"{self.text(self.number)}{self.after}"
        if other is None:
            return f"{self.before}{own}"
        change, unit = self.number - other.number, "points"
        if not self.is_share:
            change, unit = 100.0 * change / other.number if other.number else 0.0, "%"
        how = "same" if abs(change) < _SMALLEST_CHANGE_PCT else f"{change:+z.1f} {unit}"
        return f"{self.before}{self.text(other.number)} → {own} ({how})"


def headline_of(step: Step, base: Step | None = None) -> str:
    others = _figures(base) if base is not None else {}
    return facts(*(fact.line(others.get(name)) for name, fact in _figures(step).items()))


def _figures(step: Step) -> dict[str, _Fact]:
    times, whole = step.times, step.parts
    least, most = times.each_ns.min(), times.each_ns.max()
    spread = ""
    if most - least >= _LEAST_SPREAD * most:
        (shortest, unit), longest = time(least).split(), time(most)
        shortest = shortest if longest.endswith(f" {unit}") else f"{shortest} {unit}"
        spread = f" ({shortest} to {longest}{_curve(times)})"
    spread += _median_apart(times)
    name = "time" if step.is_part else step.word
    mark = step.run.mark
    found = {"time": _Fact(times.mean_ns, time, f"{name} {mark('iteration_ns')}", spread)}
    if (tokens := step.tokens_per_s()) is not None:
        found["tokens"] = _Fact(tokens, _thousands, mark("tokens_per_s"), " tok/s")
    kernels = step.tree.split(step.view.path, ("operation", "kernel"))
    if THEORY in whole and not unknown_flops(kernels):
        divided = "~" if THEORY in step.divided else ""
        found["peak"] = _Fact(step.of_peak_pct, _percent, f"MFU {divided}", is_share=True)
    if int(step.whole.sum("collectives")[0]) and not step.run.is_reconstructed:
        exposed = 100.0 * whole["exposed_comm_ns"] / max(int(times.times_ns.sum()), 1)
        found["exposed"] = _Fact(exposed, _percent, "exposed ", is_share=True)
    if (watts := total_power(step.run, step.view)) is not None:
        found["power"] = _Fact(watts, power_text, mark("power_w"))
    return found


def _median_apart(times: StepTimes) -> str:
    """The median of the steps where it isn't close to their mean."""
    median = median_of(times.each_ns) if len(times.each_ns) else 0.0
    return (
        f", median {time(median)}"
        if abs(median - times.mean_ns) > _MEDIAN_APART * times.mean_ns
        else ""
    )


def _curve(times: StepTimes) -> str:
    """Step times in order, from the shortest to the longest; the longest of those in a cell."""
    if len(times.iterations) < _FEW_STEPS:
        return ""
    steps = np.array_split(times.each_ns[np.argsort(times.iterations)], _CURVE_CELLS)
    highest = np.array([own.max() for own in steps if len(own)])
    low, high = highest.min(), highest.max()
    levels = np.rint((highest - low) / max(high - low, 1.0) * (len(_LEVELS) - 1)).astype(int)
    return " " + "".join(_LEVELS[level] for level in levels.tolist())


def _thousands(number: float) -> str:
    unit, least = next((each for each in _THOUSANDS if number >= each[1]), ("", 1.0))
    return f"{significant(number / least)}{unit}"


def power_text(watts: float) -> str:
    return scaled_text(watts, Unit.WATTS)


def doubt_of(step: Step) -> tuple[str, ...]:
    """The worst doubt about the run's data, and how many others there are."""
    doubts = step.run.doubts
    if not doubts:
        return ()
    more = f" (and {count(len(doubts) - 1, 'other doubt')})" if len(doubts) > 1 else ""
    return (doubts[0].note + more,)


def facts_of(step: Step) -> str:
    run, own = step.run, {*step.gpus}
    products = Counter(gpu.hardware or "unknown GPU" for gpu in run.gpus if gpu.index in own)
    found = [
        f"{count} × {name.removeprefix('AMD Instinct ').removeprefix('NVIDIA ')}"
        for name, count in products.most_common()
    ]
    if others := untraced_in(run, step.view):
        found.append(f"{count(len(others), 'other GPU')} with telemetry alone")
    ranks = len(run.ranks)
    if run.world > ranks:
        found.append(f"{ranks} of {run.world} ranks")
    has_steps = step.times.iterations or step.view.path
    gap, is_cut = (0, False) if has_steps else gap_of_programs(run)
    how = "between two programs left out" if is_cut else "of it is one gap, as between two programs"
    between = f"{time(gap)} {how}" if gap else ""
    return facts(*found, _iterations(step), between, _sources(step))


def _iterations(step: Step) -> str:
    used = len(step.times.iterations)
    known = used + len(step.times.left_out)
    if not known:
        return "no steps"
    return count(known, step.word) if used == known else f"{used} of {known} {step.word}s"


def _sources(step: Step) -> str:
    run, table = step.run, step.run.table
    counted = {each.gpu for each in run.counters} & set(step.gpus)
    counters = "counters" if counted or CYCLES in table.measured else "no counters"
    if counted and len(counted) < len(step.gpus):
        counters = f"counters on {count(len(counted), 'GPU')}"
    telemetry = {"gfx_mhz": "clock", "power_w": "power"}
    lacks = [word for name, word in telemetry.items() if not is_measured(name, table)]
    if counters == "no counters" and len(lacks) == 2:
        return run.still_reading(SideSource.TELEMETRY) or "trace only"
    text = f"no {lacks[0]}" if len(lacks) == 1 else "no telemetry" if lacks else "telemetry"
    return facts(counters, text)
