"""A rule of the findings: its input, its thresholds, and the findings that it yields.

A rule is a function decorated with `@rule`, whose docstring describes what it looks for;
`threshold` declares its limits. Rules are in modules by theme, which `findings.MODULES` registers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cached_property
from inspect import cleandoc
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.leads import RankLeads, leads
from chopper_core.analyses.matched_kernels import compared_iterations
from chopper_core.analyses.outliers import spread_of
from chopper_core.analyses.step_times import of_steps, step_times
from chopper_core.columns import METRICS, Scope, Values, computed_column
from chopper_core.graph.collectives import Collectives, collectives_in
from chopper_core.graph.process_groups import places_of
from chopper_core.model.column_names import integral_of, known_of
from chopper_core.model.groups import Groups, work_of
from chopper_core.model.memo import Memo
from chopper_core.model.parallel import DIMENSIONS, TITLES
from chopper_core.model.phrases import by_number, time
from chopper_core.model.run import Run
from chopper_core.model.table import LABELLED, LEVELS, NO_LABEL, NO_LABEL_TEXT, KernelTable, Kind
from chopper_core.model.view import SEPARATOR, View, complete_order
from chopper_core.util.arrays import Codes, Float64, Index, Int8, Int64, Mask, Numbers
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    median_of,
    ratios,
    run_maxima,
    run_minima,
    run_starts,
    stable_order,
)
from chopper_core.work.kernel_classes import classes_of_names


class Threshold(Struct, frozen=True):
    """A limit above or below which something becomes a finding."""

    name: str
    value: float
    unit: str
    why: str

    @property
    def share(self) -> float:
        return self.value / 100


def threshold(text: str) -> Threshold:
    """Declare a threshold: `name | value | unit`, and in the lines below it why."""
    heading, *why = text.splitlines()
    parts = [part.strip() for part in heading.split("|")]
    if len(parts) != 3:
        raise ValueError(f"a threshold begins with `name | value | unit`, not {heading!r}")
    name, value, unit = parts
    return Threshold(name, float(value), unit, " ".join(map(str.strip, why)))


FEWEST: Final = threshold("""layers or steps needed to tell one that differs | 4 | at least
    the median of fewer means little""")
IRREGULAR: Final = threshold("""irregular step | 2 | times the median
    warm-up, compilation, evaluation or a checkpoint: not a regular step. A note names them, and
    no other rule looks at them""")
SMALLEST_SAVING: Final = threshold("""smallest cost or saving | 0.1 | % of the step
    step times of a steady run vary by about as much; a smaller saving is not worth a look""")
ROBUST_Z: Final = threshold("""distance from the median | 6 | x 1.4826 x MAD
    the usual 3.5 (Iglewicz and Hoaglin) is for a single test; here every operation is tested""")
LEAST_SPREAD: Final = threshold("""smallest spread assumed | 1 | % of the median
    a MAD near zero would make everything an outlier""")
EXPLAINED: Final = threshold("""part of another finding | 60 | % of its time
    two findings of mostly the same time don't add up: the lag of a GPU and its throttling""")
GENERAL: Final = (SMALLEST_SAVING, EXPLAINED, IRREGULAR, FEWEST, ROBUST_Z, LEAST_SPREAD)
_MAX_ENDS: Final = 1_000
"""Places between steps that are compared pair by pair."""
_FEW_GPUS: Final = 3
"""Fewer are named one by one, whatever they have in common."""
_MANY_STEPS: Final = 10
"""Fewer show no steady change."""
_WORK_BITS: Final = (1 << 40) - 1
CELL: Final = LEVELS[:5]
"""The levels of a cell: the kernels of one operation, layer, phase, step and GPU."""


class FindingsContext(Struct, frozen=True, eq=False, dict=True):
    """The analysed part of a run, and sums that several rules use."""

    run: Run
    view: View
    node: Groups
    """The analysed activities of the scope, as one group."""
    by_iteration: Groups
    """The activities of all complete steps by GPU and step."""
    all_iterations: Int64
    took_ns: Float64
    """The step time of each of `all_iterations`: its mean over the GPUs that have it."""
    gpus: tuple[int, ...] = ()
    iterations: tuple[int, ...] = ()
    """The analysed ones; (-1,) where the trace has none."""
    irregular: tuple[int, ...] = ()
    """Complete steps that take far longer than the others; not analysed."""
    excluded: Mapping[str, Sequence[int]] = {}
    """The codes of the steps that are not analysed."""
    compared: tuple[int, ...] = ()
    """Those of a large run that GPUs are compared in; none: all."""
    sampled_from: int | None = None
    """How many steps `iterations` were evenly chosen from; None: they are all."""

    @property
    def table(self) -> KernelTable:
        return self.node.table

    @property
    def released(self) -> FindingsContext:
        """The same without activities and sums."""
        none = Groups.single(self.table, slice(0, 0))
        return replace(self, node=none, by_iteration=none)

    @cached_property
    def cells(self) -> Groups:
        return self.node.split(CELL)[0]

    @cached_property
    def computing_rows(self) -> Index:
        """The activities that compute, in the order of the table."""
        own, kind = self.node.selection, self.table.kind
        computes = np.flatnonzero(kind[own] == Kind.COMPUTE)
        return computes + own.start if isinstance(own, slice) else own[computes]

    def split(self, *levels: str) -> Groups:
        """The activities split by some levels, from stored sums where there are any."""
        tree = self.run.tree(self.view.order)
        return tree.split(self.view.path, levels, self.excluded)

    def compute_sums(self, name: str) -> tuple[Float64, Float64]:
        """Integral of a signal over each cell that computes, and the time that it covers.

        Both sums cover the same activities: those without a value have no weight.
        """
        columns = (integral_of(name), known_of(name))
        sums, _ = self._memo(("sums", name), lambda: self.cells.known_together(columns))
        area, known = (np.where(self.computes, sums[column], 0.0) for column in columns)
        return area, known

    @cached_property
    def collectives(self) -> Collectives | None:
        return collectives_in(self.run, self.node, iterations=self.compared)

    @cached_property
    def computes(self) -> Mask:
        kinds = self.table.kind[self.cells.selection]
        return np.asarray(run_minima(kinds, self.cells.first) == Kind.COMPUTE)

    @cached_property
    def layer_rule(self) -> Int8:
        """The weakest rule that gives activities of each cell their layer."""
        return run_maxima(self.table.layer_rule[self.cells.selection], self.cells.first)

    @cached_property
    def cell_work(self) -> Int64:
        """A number of each cell, equal for cells that run the same kernels: exact as a float."""
        work = np.add.reduceat(work_of(self.table, self.cells.selection), self.cells.first)
        return np.asarray(work & _WORK_BITS, np.int64)

    @cached_property
    def computing(self) -> tuple[Index, Index, list[slice]]:
        """The cells that compute by phase and operation, then by layer; a number of each one's
        labels, in this order; and where the cells of each phase and operation are."""
        names, label = self.together(*LABELLED)
        iteration, phase, layer, operation = names.T
        order = np.lexsort((iteration, layer, operation, phase))
        number = np.empty(len(names), np.intp)
        number[order] = np.arange(len(names))
        cells = np.flatnonzero(self.computes)
        numbers = number[label[cells]]
        ends = np.cumsum(counts_of(numbers, len(names)))
        last = np.append(run_starts(phase[order], operation[order])[1:], len(names)) - 1
        parts = [slice(*each) for each in pairwise([0, *ends[last].tolist()])]
        order = stable_order(numbers)
        return cells[order], numbers[order], parts

    def of_classes(self, classes: Collection[str]) -> Mask:
        """Whether each name of the table is of one of some classes."""
        return np.array([each in classes for each in classes_of_names(self.run)], np.bool_)

    def codes(self, level: str) -> Codes:
        return self._memo(("codes", level), lambda: self.cells.codes(level))

    def together(self, *levels: str) -> tuple[Int64, Index]:
        """The distinct combinations of codes at some levels, and the position of each cell's."""

        def found() -> tuple[Int64, Index]:
            if levels == LABELLED or not set(levels) <= set(LABELLED):
                return combined([self.codes(level) for level in levels])
            # Cells are many, and their labels few.
            labels, label = self.together(*LABELLED)
            names, place = combined([labels[:, LABELLED.index(level)] for level in levels])
            return names, place[label]

        return self._memo(("together", levels), found)

    @cached_property
    def _memo(self) -> Memo:
        return Memo()

    def cells_of(self, **codes: int | Collection[int]) -> Mask:
        """The cells with these codes of these levels: of as many findings as are about them."""
        wanted = {
            level: (each,) if isinstance(each, int) else tuple(each)
            for level, each in codes.items()
        }

        def found() -> Mask:
            inside = np.ones(len(self.cells), np.bool_)
            for level, each in wanted.items():
                names, place = self.together(level)
                if not (is_wanted := np.isin(names[:, 0], each)).all():
                    inside &= is_wanted[place]
            inside.flags.writeable = False
            return inside

        return self._memo(("cells", *wanted.items()), found)

    def cells_of_pairs(self, chosen: Index) -> Mask:
        """The cells of some of the phases and operations, as places among these `together`."""

        def found() -> Mask:
            names, pair = self.together("phase", "operation")
            return np.isin(np.arange(len(names)), chosen)[pair]

        return self._memo(("pairs", *chosen.tolist()), found)

    def cells_about(self, finding: Finding) -> Index:
        """The places of the cells whose time a finding costs."""
        own = slice(0, len(self.cells))
        if finding.gpu is not None:
            # Cells are in the order of their levels, of which the GPU is the first.
            gpu = self.codes(CELL[0])
            own = slice(*np.searchsorted(gpu, (finding.gpu, finding.gpu + 1)).tolist())
        if finding.cells is None:
            return np.arange(own.start, own.stop)
        return own.start + np.flatnonzero(finding.cells[own])

    @cached_property
    def stage(self) -> Int64:
        """The pipeline stage of each GPU; 0 without any."""
        gpus = np.array(self.gpus, np.int64)
        stages = self.table.coordinates.get("pp")
        return np.zeros_like(gpus) if stages is None else stages[gpus].astype(np.int64)

    def place(self, level: str) -> Index:
        """The position of each cell's GPU in `gpus`, or of its step in `iterations`."""
        return self.together(level)[1]

    @property
    def spots(self) -> int:
        """The number of pairs of a GPU and a step."""
        return len(self.gpus) * len(self.iterations)

    def by_gpu_and_iteration(self, figure: Callable[[Groups], Numbers]) -> Float64:
        return of_steps(self._steps, self.gpus, self.iterations, figure(self._steps))

    @cached_property
    def _steps(self) -> Groups:
        return self.split("gpu", "iteration")

    @cached_property
    def busy_ns(self) -> Float64:
        """The time with compute, as GPUs x steps."""
        return self.by_gpu_and_iteration(
            lambda nodes: nodes.sum("compute_ns") + nodes.sum("overlap_ns")
        )

    def kernels(self) -> Float64:
        """The number of activities that compute, as GPUs x steps."""
        return self.by_gpu_and_iteration(Groups.computing)

    @cached_property
    def step_ns(self) -> float:
        """The step time: the mean over the complete steps and GPUs; NaN without a trace."""
        if self.run.is_sampled_only:
            return float("nan")
        return step_times(self.run, self.view).mean_ns

    @cached_property
    def usual_ns(self) -> float:
        """The mean over the analysed steps: the step time, unless some are irregular."""
        if not self.irregular:
            return max(self.step_ns, 1.0)
        times = step_times(self.run, self.view)
        usual = times.each_ns[~np.isin(times.iterations, self.irregular)]
        return max(float(usual.mean()) if len(usual) else self.step_ns, 1.0)

    def share(self, time_ns: float) -> float:
        """A time per step as a share of the step, 0 to 1."""
        return time_ns / max(self.step_ns, 1.0)

    def per_iteration(self, total_ns: float) -> float:
        """A sum over GPUs and steps, per GPU and step."""
        return total_ns / self.spots

    @property
    def has_iterations(self) -> bool:
        return self.iterations != (NO_LABEL,)

    @property
    def each(self) -> str:
        """The unit of a mean per step, in a sentence."""
        usual = "usual " if self.irregular else ""
        return f" per {usual}step" if self.has_iterations else ""

    @property
    def a_step(self) -> str:
        """The unit of a mean per step, in a title; of one step it is none."""
        return " a step" if self.has_iterations and len(self.iterations) > 1 else ""

    @property
    def whole(self) -> str:
        """What findings are about: the step, or the run where the trace has none."""
        return "step" if self.has_iterations else "run"

    @property
    def a_whole(self) -> str:
        """What a replay makes shorter, as the subject of a sentence."""
        return "a step" if self.has_iterations else "the run"

    @property
    def of_step(self) -> str:
        """What a share is of, in a sentence; a trace without steps has only its time."""
        if not self.has_iterations:
            return "of the time"
        return f"of the{' usual' if self.irregular else ''} step"

    @property
    def per_gpu(self) -> str:
        """The unit of a mean per step over the GPUs, in a sentence."""
        if len(self.gpus) == 1:
            return self.each
        return f" per GPU and{self.each.removeprefix(' per')}" if self.each else " per GPU"

    def gpus_text(self, gpus: Sequence[int]) -> str:
        """GPUs by their numbers; several that are all of a stage, node or replica by that."""
        own = set(gpus)
        if _FEW_GPUS <= len(own) < len(self.gpus):
            places = places_of(self.run, self.gpus)
            parts = {f"{TITLES[name]} ": each for name, each in places.coordinates.items()}
            for title, of_gpu in (*parts.items(), ("", places.nodes)):
                inside = {part for gpu, part in zip(self.gpus, of_gpu, strict=True) if gpu in own}
                part = inside.pop() if len(inside) == 1 else ""
                if part not in ("", NO_LABEL) and list(of_gpu).count(part) == len(own):
                    return f"the {len(own)} GPUs of {title}{part}"
        return by_number("GPU", sorted(own))

    @property
    def repeats(self) -> bool:
        """Whether a thing can be seen in several steps or on several GPUs."""
        return self.spots > 1

    @cached_property
    def leads(self) -> RankLeads | None:
        """The lead and lag of the GPUs; None with one GPU, or without kernels to match."""
        if len(self.gpus) < 2:
            return None
        try:
            return leads(self.run, self.view)[0]
        except UsageError:
            return None

    def figure(self, name: str, nodes: Groups) -> Values:
        return METRICS[name].compute(Scope.of(self.run, nodes, self.node))

    def by_step(self, name: str) -> Float64:
        """A metric as GPUs x steps; NaN where it isn't known."""
        return self.by_gpu_and_iteration(lambda nodes: self.figure(name, nodes).known())

    def by_gpu(self, name: str) -> Float64:
        """A metric of each GPU of the scope; NaN where it isn't known."""
        return self.figure(name, self.split("gpu")).known()

    def finding(
        self,
        title: str,
        detail: str,
        evidence: View,
        kind: Cost,
        cost_ns: float | None,
        *,
        is_measured: bool = True,
        is_repeated: bool | None = None,
        gpu: int | None = None,
        cost_of: str = "",
        total_ns: float | None = None,
        cells: Mask | None = None,
        changes: tuple[str, ...] | None = None,
        group: Group | None = None,
        why_more: str = "",
        unreplayed: str = "",
        is_limit: bool = False,
    ) -> Finding:
        """A finding that costs as much in each step, on one GPU or on all.

        Repeated, unless stated, is what several steps or GPUs may show.
        """
        if is_repeated is None:
            is_repeated = self.repeats
        if total_ns is None and cost_ns is not None:
            total_ns = cost_ns * (len(self.iterations) if gpu is not None else self.spots)
        sure = confidence(measured=is_measured, repeated=is_repeated)
        return Finding(
            title,
            detail,
            evidence,
            sure,
            cost_ns,
            gpu=gpu,
            cost_of=cost_of,
            kind=kind,
            total_ns=total_ns,
            cells=cells,
            changes=changes,
            why_more=why_more,
            group=group,
            unreplayed=unreplayed,
            is_limit=is_limit,
        )

    def at(self, **labels: str) -> View:
        steps = dict(self.view.scope) | labels
        # Coordinates lead to GPUs, so that they come first.
        levels = [level for level in (*DIMENSIONS, *LEVELS) if level in steps]
        path = tuple(steps[level] for level in levels)
        return replace(self.view, path=path, order=complete_order(levels))

    def split_by(self, level: str, **labels: str) -> View:
        """The scope, or a part of it, with rows of a level that isn't above it."""
        view = self.at(**labels)
        levels = [name for name, _ in view.scope]
        return view if level in levels else replace(view, order=complete_order([*levels, level]))

    def with_view(self, name: str, by: str = "", *, sort: str = "", **labels: str) -> View:
        return replace(self.at(**labels), name=name, by=by, sort=sort)

    def with_signal(self, signal: str, sort: str) -> View:
        """The view of power, with a signal over time, sorted by a column of that signal."""
        if signal not in self.run.measured:
            # Activities carry the figure though nothing shows it over time.
            sort = "-" * sort.startswith("-") + signal
            return replace(self.at(), columns=("elapsed_ns", signal), sort=sort)
        return replace(self.with_view("power", sort=sort), signal=signal)

    def text(self, level: str, code: int) -> str:
        return self.table.text_of(level, int(code))

    def phase(self, code: int) -> str:
        text = self.text("phase", code)
        return "the unlabelled part" if text == NO_LABEL_TEXT else text


def context_of(run: Run, view: View) -> FindingsContext:
    """The context of a view's scope; raises NoSuchNode where it is empty."""
    kept = {"signal": view.signal, "overrides": view.overrides, "cut": view.cut}
    # Findings are remembered with the run, whose name leads to their evidence from any view.
    view = replace(View(run.name, view.path, view.order), **kept)
    if run.is_sampled_only:
        # Its rules look at its samples.
        nothing, none = Groups.single(run.table, slice(0, 0)), np.empty(0, np.int64)
        return FindingsContext(run, view, nothing, nothing, none, np.empty(0))
    tree, table = run.tree(view.order), run.table
    numbers = tree.split(view.path, ("iteration",)).codes("iteration").astype(np.int64)
    whole = (numbers != NO_LABEL) & ~np.isin(numbers, np.array(run.left_out(view), np.int64))
    if not whole.any():
        whole = np.ones(len(numbers), np.bool_)
    each = tree.split(view.path, ("gpu", "iteration"), {"iteration": numbers[~whole].tolist()})
    gpus, iterations = (
        distinct(each.codes(level)).astype(np.int64) for level in ("gpu", "iteration")
    )
    took = of_steps(each, gpus, iterations, each.elapsed_ns)
    there = of_steps(each, gpus, iterations, np.ones(len(each)))
    took = ratios(took.sum(axis=0), there.sum(axis=0))
    irregular: tuple[int, ...] = ()
    if len(iterations) > FEWEST.value:
        irregular = tuple(iterations[took > IRREGULAR.value * median_of(took)].tolist())
    counted = iterations[~np.isin(iterations, irregular)]
    compared = compared_iterations(run, view)
    analysed = counted[np.isin(counted, compared)] if compared else counted
    if not len(analysed):
        analysed = counted[:1]
    excluded = numbers[~np.isin(numbers, analysed)].tolist()
    node = Groups.single(table, tree.rows_without(view.path, excluded))
    return FindingsContext(
        run,
        view,
        node,
        each,
        iterations,
        took,
        gpus=tuple(distinct(table.gpu[node.selection]).tolist()),
        iterations=tuple(analysed.tolist()),
        irregular=irregular,
        excluded={"iteration": excluded},
        compared=compared,
        sampled_from=len(counted) if len(analysed) < len(counted) else None,
    )


def largest_first(values: Float64 | Int64) -> list[int]:
    """The places of the positive values, the largest first."""
    return [place for place in np.argsort(-values, kind="stable").tolist() if values[place] > 0]


def largest_parts(
    context: FindingsContext, level: str, names: Int64, sums: Float64 | Int64
) -> Iterator[str]:
    """The parts of a sum by a label and phase, the largest first: `all_gather in backward 2 ms`."""
    for place in largest_first(sums):
        label, phase = names[place].tolist()
        part = time(context.per_iteration(float(sums[place])))
        yield f"{context.text(level, label)} in {context.phase(phase)} {part}"


def outlier_limit(
    values: Float64, least: Threshold, least_spread: float = LEAST_SPREAD.share
) -> float:
    """The value above which one of several stands out, by robust z and by a least excess in %.

    `least_spread` is the smallest spread assumed, as a share of the median.
    """
    middle = median_of(values)
    spread = max(spread_of(values), least_spread * middle)
    return middle + max(ROBUST_Z.value * spread, least.share * middle)


def low_interval(relative: Float64) -> tuple[int, int, float]:
    """The neighbouring steps whose mean is furthest below that of the others, and by how much.

    By the largest difference in standard errors, so that all that are low are taken. Of many
    steps the ends are searched for in steps first, then one by one near the best.
    """
    count, sums = len(relative), np.append(0.0, np.cumsum(relative))
    step = -(-count // _MAX_ENDS)
    ends = np.append(np.arange(0, count, max(step, 1)), count)
    first, end, drop = _lowest(sums, ends, ends)
    if step > 1:
        near = (np.arange(max(at - step, 0), min(at + step, count) + 1) for at in (first, end))
        first, end, drop = _lowest(sums, *near)
    return first, end, drop


def _lowest(sums: Float64, firsts: Index, ends: Index) -> tuple[int, int, float]:
    """The interval between some of the places that `low_interval` looks for."""
    count = len(sums) - 1
    size, inside = ends - firsts[:, None], sums[ends] - sums[firsts][:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = (sums[-1] - inside) / (count - size)
        drop = np.where(size < count, 1 - inside / size / usual, 0.0)
        contrast = np.where(size > 0, drop * np.sqrt(size * (count - size) / count), -np.inf)
    first, end = np.unravel_index(int(contrast.argmax()), contrast.shape)
    return int(firsts[first]), int(ends[end]), float(drop[first, end])


def drift_of(each: Float64, least: float) -> tuple[float, float] | None:
    """The ends of the line through values that rise or fall steadily, by a share at least; None
    where they don't, or are few."""
    if len(each) < _MANY_STEPS or not np.isfinite(each).all():
        return None
    at = np.arange(len(each))
    slope, begin = np.polyfit(at, each, 1).tolist()
    residual = float((each - begin - slope * at).std())
    grown = slope * (len(each) - 1)
    if abs(grown) < max(least * abs(begin), ROBUST_Z.value * residual):
        return None
    return begin, begin + grown


def weighted_medians(values: Float64, weights: Float64) -> Float64:
    """The median of each column by weight, of its known values; 1 without any."""
    if not len(values):
        return np.ones(values.shape[1])
    order = np.argsort(values, axis=0, kind="stable")
    known = np.where(np.isfinite(values), weights, 0.0)
    sums = np.cumsum(np.take_along_axis(known, order, 0), axis=0)
    middle = (sums < sums[-1] / 2).sum(axis=0)[None]
    found = np.take_along_axis(values, np.take_along_axis(order, middle, 0), 0)[0]
    return np.where(sums[-1] > 0, found, 1.0)


class Cost(Enum):
    """The kind of time that a finding costs."""

    UNKNOWN = 0
    COMPUTE = 1
    """Of any of the four kinds below."""
    COMMUNICATION = 2
    COPIES = 3
    HOST = 4
    """Idle before launch calls."""
    LAUNCH = 5
    """The other idle time."""
    CLOCK = 6
    KERNELS = 7
    """The same kernels take longer at the same clock."""
    WORK = 8
    CONTENTION = 9

    def may_be(self, other: Cost) -> bool:
        both = {self, other}
        is_compute = Cost.COMPUTE in both and both <= COMPUTES
        return len(both) == 1 or Cost.UNKNOWN in both or is_compute


COMPUTES: Final = frozenset((Cost.COMPUTE, Cost.CLOCK, Cost.KERNELS, Cost.WORK, Cost.CONTENTION))


WORST_GPU: Final = "worst GPU"
"""Whose time a finding costs where others wait for the GPU that has most of it in a step."""
ITS_GPUS: Final = "mean of its GPUs"


class Confidence(IntEnum):
    """How sure a finding is; `MEANING` explains each."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    @property
    def text(self) -> str:
        return self.name.lower()


MEANING: Final = {
    Confidence.HIGH: "measured in the traces, in several steps or on several GPUs",
    Confidence.MEDIUM: "measured but seen once, or seen several times but estimated by comparison",
    Confidence.LOW: "seen once, and estimated by comparison",
}
CONFIDENCE: Final = computed_column(
    "confidence",
    "",
    "confidence",
    "How sure it is that the cause is there; how sure its saving is, the range says. "
    + "; ".join(f"{each.text}: {text}" for each, text in MEANING.items())
    + ".",
)


DETAIL: Final = computed_column(
    "detail",
    "",
    "detail",
    "The finding in full: evidence, since when, and why it saves more or less than it costs.",
)


def confidence(*, measured: bool, repeated: bool) -> Confidence:
    return Confidence(1 + measured + repeated)


class Group(IntEnum):
    """What a finding asks of its reader; the groups in the order in which they are shown."""

    FIX = 0
    BETTER = 1
    UNKNOWN = 2

    @property
    def text(self) -> str:
        return ("fix first", "could be better", "not known")[self]


_BOUND: Final = re.compile(
    r"(?:host|launch|copy) x0(?![.\d])|no host gaps|comm hidden|no contention"
)
"""Changes that nothing attains in full."""


def is_bound(remedy: str) -> bool:
    """Whether a question asks for more than any change can attain, such as a host of zero time."""
    return any(_BOUND.search(each) for each in remedy.split(SEPARATOR))


class Finding(Struct, frozen=True):
    """One line with its numbers, the long sentence, and the view that shows the evidence."""

    title: str
    """Who, what and how much, in at most `MAX_TITLE` characters."""
    detail: str
    """The same in full, with evidence."""
    evidence: View
    confidence: Confidence
    cost_ns: float | None = None
    """Measured time that it takes, per step, of the GPUs that `cost_of` names; None if it can't be
    measured."""
    saving_ns: float | None = None
    """By how much a step is shorter without it, which is the answer to `remedy`; None where
    nothing replays the steps without it."""
    gpu: int | None = None
    """The one GPU that it is about."""
    cost_of: str = ""
    """Whose time it costs; empty: its one GPU's, else the mean of all GPUs."""
    kind: Cost = Cost.UNKNOWN
    total_ns: float | None = None
    """GPU time affected, summed over GPUs and analysed steps."""
    cells: Mask | None = None
    """The cells of the context that it is about; None: all, or those of its GPU."""
    changes: tuple[str, ...] | None = None
    """What a replay changes there, as `chopper what-if` asks; None: what its kind says."""
    without: str = "without it"
    """How a step is without it, as the end of a phrase."""
    remedy: str = ""
    """The questions whose answer is the saving; empty: what its place and changes say."""
    is_limit: bool = False
    """Whether no change attains what its remedy asks, though that names a figure."""
    is_of_all: bool = False
    """Whether what it costs is a mean over all complete steps, irregular ones among them."""
    doubt: str = ""
    """Why its data is in doubt."""
    alone_ns: float | None = None
    """What it alone saves by replay, where that is more than what it is a part of saves; None
    elsewhere."""
    together_with: str = ""
    """The title of the finding without which this one saves nothing; empty: it saves alone."""
    together_ns: float | None = None
    """What both save together; None where each saves alone."""
    further_ns: float | None = None
    """How much of that is beyond what the other one saves alone."""
    unreplayed: str = ""
    """Why what it saves is unknown; empty: the run's reason, if it has one."""
    why_more: str = ""
    """Why it may save more than it costs, where that isn't that waits get shorter."""
    see_also: str = ""
    """The title of a finding that takes much of the same time and costs less than this one."""
    is_removed_with_whole: bool = False
    """Whether the replay of what it is a part of is its own, too: one change has one saving."""
    needs_replay: bool = False
    """Whether it says more than other findings only where a replay tells what it costs."""
    group: Group | None = None
    """None: that of its rule."""
    advice: tuple[str, ...] = ()
    """What to try, the most likely first."""

    @property
    def is_replayed(self) -> bool:
        return self.saving_ns is not None

    @property
    def is_bound(self) -> bool:
        """Whether what it saves is the most that any change may save."""
        return self.is_limit or is_bound(self.remedy)

    @property
    def worth_ns(self) -> float | None:
        """What it saves; where nothing replays it, what it costs."""
        return self.cost_ns if self.saving_ns is None else self.saving_ns


Find = Callable[[FindingsContext], Iterable[Finding]]


class FindingRule(Struct, frozen=True):
    """A rule: as a decorator, it takes the function from the context to findings."""

    name: str
    cost: str = ""
    """What the cost of its findings is."""
    group: Group = Group.FIX
    is_symptom: bool = False
    """Whether its findings say that steps take longer, and others why."""
    holds: tuple[float, float] = (0.9, 1.1)
    """How far the range of a replay is widened, which holds what was planted: whether the replay
    removes just what the finding is about."""
    needs: str = ""
    """The data it needs beyond a trace."""
    thresholds: tuple[Threshold, ...] = ()
    of_durations: bool = False
    """Whether durations alone show it, also where times are reconstructed."""
    of_samples: bool = False
    """Whether it is of telemetry without a trace, and only of that."""
    of_logs: bool = False
    """Whether it is of a trainer's log, alone or next to other files."""
    of_memory: bool = False
    """Whether it is of the framework's allocator, which logs, traces and snapshots may show."""
    stops_job: bool = False
    """Whether its findings say why a job ended: they come first."""
    find: Find = lambda context: ()
    looks_for: str = ""
    """The first paragraph of the function's docstring."""

    def __call__(self, find: Find) -> FindingRule:
        looks_for = " ".join(cleandoc(find.__doc__ or "").partition("\n\n")[0].split())
        return replace(self, find=find, looks_for=looks_for)


rule: Final = FindingRule
