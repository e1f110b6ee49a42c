"""The steps of a scope on its GPUs: figures as GPUs x steps, step times, tokens, and work.

The step time has one definition, for the overview, throughput, findings and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import PAIR, base_of
from chopper_core.model.column_names import FLOPS, TOKENS
from chopper_core.model.groups import Groups
from chopper_core.model.parallel import SHARING
from chopper_core.model.phrases import percent
from chopper_core.model.run import Run, between_programs
from chopper_core.model.settings import Setting
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.util.arrays import AnyArray, Float64, Int64, Mask
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    first_equal,
    maxima_of,
    median_of,
    minima_of,
    ratios,
    sums_of,
)

_LEAST_GAP_NS: Final = 10**9
"""A shorter gap may well be within a program."""
NO_TOKENS: Final = (
    "the trace has no shapes of an embedding or attention (record_shapes=True in the profiler), "
    "and neither the settings (--set gbs=128,seq=4096) nor the address (of=tokens:8192, per GPU "
    "and step) give a number of tokens"
)


def of_steps(
    cells: Groups,
    gpus: Sequence[int] | Int64,
    iterations: Sequence[int] | Int64,
    values: AnyArray,
    empty: float = 0.0,
) -> AnyArray:
    """Values of cells of one GPU and step each, as GPUs x steps (x more).

    Numbers stay integers if `empty` is one.
    """
    shape = (len(gpus), len(iterations), *values.shape[1:])
    found = np.full(shape, empty, np.result_type(values, type(empty)))
    whose = first_equal(np.asarray(gpus, np.int64), cells.codes("gpu"))
    when = first_equal(np.asarray(iterations, np.int64), cells.codes("iteration"))
    own = (whose >= 0) & (when >= 0)
    found[whose[own], when[own]] = values[own]
    return found


def _pairs(run: Run, view: View) -> tuple[Groups, Int64, Int64]:
    """The activities of a view's scope by GPU and step, its GPUs and labelled steps."""
    cells = run.tree(view.order).split(view.path, PAIR) if view.path else run.pairs
    gpus, iterations = (distinct(cells.codes(level)).astype(np.int64) for level in PAIR)
    return cells, gpus, iterations[iterations != NO_LABEL]


def whole_steps(run: Run, view: View) -> tuple[Groups, Int64, Int64]:
    """All activities by GPU and step; the GPUs and labelled steps of a scope.

    Whatever else the scope names, the steps are whole.
    """
    cells, gpus, iterations = _pairs(run, view)
    if not view.path:
        return cells, gpus, iterations
    tree = run.tree(view.order)
    without = {
        level: sorted(set(tree.codes_of(level).tolist()) - set(codes.tolist()))
        for level, codes in zip(PAIR, (gpus, iterations), strict=True)
        if len(codes)
    }
    without = {level: codes for level, codes in without.items() if codes}
    # The rows of one GPU lie together.
    node = (run.table.text_of("gpu", int(gpus[0])),) if len(gpus) == 1 else ()
    return run.tree().split(node, PAIR, without), gpus, iterations


class StepTimes(Struct, frozen=True, eq=False):
    """The time charged to each complete step on each GPU of a scope.

    A scope without steps is one step.
    """

    gpus: Int64
    iterations: tuple[int, ...]
    """The complete steps; empty: the scope has none."""
    left_out: tuple[int, ...]
    """Steps that take no part."""
    excluded: Mapping[str, Sequence[int]]
    """The codes of all steps that take no part, as `Tree.split` excludes them."""
    times_ns: Int64
    """GPUs x steps; 0 where a GPU lacks one."""
    pairs: Mask
    """The GPUs of the scope, those with activities first, x steps: which figures are per."""

    @property
    def mean_ns(self) -> float:
        """The step time: the mean over the GPUs and steps, to which the parts add up."""
        return float(self.times_ns.sum()) / self.cells

    @property
    def cells(self) -> int:
        """The number of pairs of a GPU and a step."""
        return int(self.pairs.sum())

    @property
    def each_ns(self) -> Float64:
        """The step time of each step: its mean over the GPUs that have it."""
        return ratios(self.times_ns.sum(axis=0), self.pairs.sum(axis=0))

    @property
    def by_gpu_ns(self) -> Float64:
        """The step time of each GPU: its mean over the steps that it has."""
        return ratios(self.times_ns.sum(axis=1), self.pairs[: len(self.gpus)].sum(axis=1))

    @property
    def typical(self) -> int:
        """The place of the step whose time is nearest to the median."""
        return int(np.abs(self.each_ns - median_of(self.each_ns)).argmin())


def step_times(run: Run, view: View) -> StepTimes:
    """The step times of a view's scope, computed once; raises NoSuchNode."""
    key = ("step times", view.order, view.path, view.cut)
    return run.memo(key, lambda: _step_times(run, view))


def _step_times(run: Run, view: View) -> StepTimes:
    view = replace(view, is_total=False)
    base = base_of(run, view)
    cells, gpus, found = _pairs(run, view)
    codes = cells.codes("iteration").astype(np.int64)
    steps = distinct(base.cells.codes("iteration")[base.counted]).astype(np.int64)
    kept = steps[steps != NO_LABEL]
    others = distinct(codes[~np.isin(codes, steps)]).tolist()
    times = of_steps(cells, gpus, steps, cells.elapsed_ns, 0)
    every = distinct(base.cells.codes("gpu")[base.counted]).astype(np.int64)
    every = np.concatenate([gpus, every[~np.isin(every, gpus)]])
    return StepTimes(
        gpus=gpus,
        iterations=tuple(kept.tolist()),
        left_out=tuple(found[~np.isin(found, kept)].tolist()),
        excluded={"iteration": others} if others else {},
        times_ns=times,
        pairs=of_steps(base.cells, every, steps, base.counted, False),
    )


class StepWindows(Struct, frozen=True, eq=False):
    """When the complete steps of a scope run on the GPUs with a trace: for those without."""

    iterations: tuple[int, ...]
    """Empty: the run as one step."""
    begins_ns: Int64
    """When the first GPU begins each: the idle time before its first activity is part of it."""
    ends_ns: Int64
    mean_ns: Float64
    """The time charged to each, mean of the GPUs."""


def step_windows(run: Run, view: View) -> StepWindows:
    """The windows of a view's steps, computed once; raises NoSuchNode."""
    key = ("step windows", view.order, view.path, view.cut)
    return run.memo(key, lambda: _step_windows(run, view))


def _step_windows(run: Run, view: View) -> StepWindows:
    iterations, cells = step_times(run, view).iterations, run.pairs
    place = np.zeros(len(cells), np.intp)
    if iterations:
        place = first_equal(np.array(iterations, np.int64), cells.codes("iteration"))
    own, size = np.flatnonzero(place >= 0), max(len(iterations), 1)
    # Idle time after the last activity, in which others are still at work, is in the step.
    ends = (cells.max("end_ns") + cells.sum("idle_after_ns"))[own]
    begins = ends - cells.elapsed_ns[own]
    place = place[own]
    return StepWindows(
        iterations,
        minima_of(begins, place, size, int(begins.max(initial=0))),
        maxima_of(ends, place, size),
        ratios(sums_of(cells.elapsed_ns[own], place, size), counts_of(place, size)),
    )


def untraced_in(run: Run, view: View) -> list[int]:
    """The GPUs of a scope that telemetry alone has; none where it names what runs on a GPU."""
    if run.is_sampled_only:
        return []
    there = [gpu.index for gpu in run.gpus if gpu.index not in run.traced]
    for level, label in view.scope if there else ():
        if level in run.table.coordinates:
            places, code = run.table.coordinates[level], run.table.code_of(level, label)
            there = [gpu for gpu in there if places[gpu] == code]
        elif level != "iteration":
            return []
    return there


def replicas(sizes: Mapping[str, Setting]) -> float:
    """The part of a data-parallel replica that a rank makes up.

    Ranks that differ only along `SHARING` work on the same tokens.
    """
    known = (sizes.get(name) for name in SHARING)
    return 1.0 / prod(size for size in known if isinstance(size, int | float) and size > 0)


def replicas_of(run: Run) -> float:
    """Replicas per GPU: less than one where GPUs share tokens."""
    return replicas(run.parallel.sizes if run.parallel is not None else {})


def token_rate(tokens: AnyArray | float, step_ns: AnyArray | float, gpus: float = 1.0) -> Float64:
    """Tokens per second of GPUs with so many tokens each; NaN for a step of no time."""
    return ratios(1e9 * gpus * np.asarray(tokens, np.float64), np.asarray(step_ns, np.float64))


def ranks_of(run: Run, gpus: Sequence[int]) -> int:
    """The number of GPUs; of all GPUs of a run, the ranks of the job, known by its traces."""
    return len(gpus) if len(gpus) < len(run.gpus) else max(len(gpus), run.world)


def tokens_in(
    run: Run, gpus: Sequence[int], iterations: Sequence[int], given: float | None = None
) -> Float64:
    """The tokens of each step of each GPU, as GPUs x steps; NaN where not known.

    Tokens per second, the energy and the time of a token all divide by these. GPUs of one replica
    share the tokens that enter its model, which are `given`, or those of the settings, or those of
    the trace.
    """
    stated = stated_tokens(run)
    if given or not stated:
        entering = _entering(run, gpus, iterations)
        if given:
            entering = np.full_like(entering, given)
        return replicas_of(run) * entering
    return np.full((len(gpus), len(iterations)), stated / max(run.world, len(run.gpus)))


def stated_tokens(run: Run) -> float:
    """The tokens of a step of the whole job by its settings, global_batch x sequence; else 0."""
    tokens = 1.0
    for name in ("global_batch", "sequence"):
        value = run.settings.get(name)
        tokens *= value if isinstance(value, int | float) and value > 0 else 0
    return tokens


def _entering(run: Run, gpus: Sequence[int], iterations: Sequence[int]) -> Float64:
    """The tokens that enter the model of each GPU in each step.

    A step that shows none has those of the GPU's others, where these all have as many. GPUs
    that show none, such as those of later pipeline stages and those without a trace, have the
    tokens of the other GPUs of their replica, where these show as many.
    """
    if TOKENS not in run.table.measured:
        return np.full((len(gpus), len(iterations)), np.nan)
    steps = run.pairs
    every = distinct(np.concatenate([steps.codes("gpu"), np.asarray(gpus, np.int64)]))
    found = of_steps(steps, every, iterations, steps.known(TOKENS)[0], np.nan)
    for own in found:
        known = distinct(own[own > 0])
        own[~(own > 0)] = known[0] if len(known) == 1 else np.nan
    lacks = np.isnan(found)
    if lacks.any():
        replica = _replica_of(run, every)
        for place, number in zip(*map(np.ndarray.tolist, np.nonzero(lacks)), strict=True):
            others = found[replica == replica[place], number] if replica is not None else []
            known = distinct(np.asarray(others)[np.isfinite(others)])
            if not len(known) and every[place] not in run.traced:
                known = distinct(found[np.isfinite(found[:, number]), number])
            if len(known) == 1:
                found[place, number] = known[0]
    return found[np.searchsorted(every, np.asarray(gpus, np.int64))]


def _replica_of(run: Run, gpus: Int64) -> Int64 | None:
    """The data-parallel replica of each GPU; None without a known layout."""
    if not run.table.coordinates:
        return None
    places = run.table.coordinates.get("dp")
    return np.zeros(len(gpus), np.int64) if places is None else places[gpus].astype(np.int64)


_LEAST: Final = 0.01

Ratio = Callable[[Float64], float]
"""How many times as much as usual, from a figure as GPUs x steps; NaN where unknown."""


def more_work(run: Run, gpus: Sequence[int], iterations: Sequence[int], ratio: Ratio) -> str:
    """What there is more of: `1.3× the tokens`, else `30 % more FLOPs`; empty without more."""
    tokens = ratio(tokens_in(run, gpus, iterations))
    if tokens >= 1 + _LEAST:
        return f"{tokens:.3g}× the tokens"
    cells = run.pairs
    for word, values in (("FLOPs", cells.known(FLOPS)[0]), ("kernels", cells.computing())):
        more = ratio(of_steps(cells, gpus, iterations, values, np.nan))
        if more >= 1 + _LEAST:
            return f"{percent(more - 1)} more {word}"
    return ""


def gap_of_programs(run: Run) -> tuple[int, bool]:
    """Idle time that is most of a run's without steps, as between two programs, in ns, 0 without
    any; and whether it is so long that it is charged to nothing."""
    gaps = (between_programs(run, gpu) for gpu in run.traced)
    cut_ns = max((end - begin for begin, end in gaps), default=0)
    if cut_ns:
        return cut_ns, True
    table = run.table
    gap, span = int(table.idle_ns.max(initial=0)), int(np.ptp(table.start_ns)) if len(table) else 0
    return (gap if gap > max(span / 2, _LEAST_GAP_NS) else 0), False
