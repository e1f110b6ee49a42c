"""Overlap: how much communication overlaps with the operations, and how much it slows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of
from chopper_core.columns import METRICS, Values, column, numbered, worded
from chopper_core.columns.derived import named, reduced
from chopper_core.columns.instances import instances, visits
from chopper_core.columns.metric import quotient
from chopper_core.model.charts import Chart, LineChart, Series
from chopper_core.model.column_names import SAMPLED
from chopper_core.model.groups import Groups, contiguous
from chopper_core.model.phrases import facts, percent
from chopper_core.model.run import Run
from chopper_core.model.signals import TimeSpans
from chopper_core.model.table import ACTIVITY, LEVELS, NO_LABEL, KernelTable, Kind, values_of
from chopper_core.model.units import Unit, time_text
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Rows
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    combined,
    counts_of,
    isin,
    means_of,
    places_by,
    quantile_of,
    quantiles_of,
    ranked,
    ratios,
    run_maxima,
    run_minima,
    run_starts,
    run_sums,
    stable_order,
    sums_of,
)
from chopper_core.views.shared.table_view import (
    LabelledRows,
    Own,
    by_gpu,
    child_of,
    table_view,
)
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="overlap",
    title="Overlap",
    question="How much communication overlaps with the operations, and how much does it slow them?",
    by=any_level("operation", "instance", "phase", "layer", "iteration"),
    needs_starts=True,
    any_split=True,
)

FSDP: Final = ("FSDP::", "FullyShardedDataParallel.")
"""How the operations begin in which FSDP copies what it gathers and scatters."""
INSTANCE: Final = "instance"
_MIN_SPREAD: Final = 0.1
"""Smaller differences of overlap are ignored."""
_LIKE: Final = ("gpu", "phase", "operation")
"""The labels in which like instances agree; they run the same kernels, too."""
_MIN_INSTANCES: Final = 2
"""Instances that a median needs."""
_AT_A_TIME: Final = 1 << 16
"""Instances, or those of one GPU, whose durations are compared in one go."""
_MAX_LISTED: Final = 20_000
_MAX_POINTS: Final = 1_500
"""With more instances, evenly chosen ones are drawn."""
_MAX_OPERATIONS: Final = 4
_MIN_CORRELATION: Final = 0.3
"""Correlation of overlap and duration from which the cost is reported."""
_LEVELS: Final = LEVELS[:-1]


_ALONE, _TOGETHER = "compute alone", "with collectives"
_CHOPPER: Final = "UnaryLab/chopper compute_overlap_cdf, with the union of the intervals"
_COMPARED: Final = (
    "Only like instances are compared: of the same operation, phase, GPU and kernels, within the "
    "row."
)
_NO_SPREAD: Final = "too few like instances, or their overlap doesn't differ"

OVERLAP: Final = column(f"""overlap_pct | % | overlap
    Share of the operations' elapsed time in which collectives run on the same GPU: the union
    of their intervals over the sum of instance_ns.
    source: {_CHOPPER}""")
WITH_COPIES: Final = column(f"""overlap_copies_pct | % | with copies
    As overlap_pct, of collectives together with the kernels and copies of FSDP's own
    operations (FSDP::..., FullyShardedDataParallel...), which the original takes for
    communication too.
    source: {_CHOPPER}""")
SLOWDOWN: Final = column(f"""slowdown_x | x | slowdown
    Median elapsed time of the instances with high overlap over that of those with low overlap:
    the upper and the lower quarter of the range between the least and the most overlapped.
    {_COMPARED} Several of them count by their number of instances. At least 2 instances on both
    sides, and 10 points between the least and the most overlapped.
    missing: {_NO_SPREAD}""")
COST: Final = column(f"""overlap_cost_ns | ns | cost | sum | signed
    Time of the instances with high overlap beyond the median of those with low overlap (see
    slowdown_x): their number times the difference of the medians.
    missing: {_NO_SPREAD}""")
PEARSON: Final = column(f"""pearson_r | | r
    Pearson's correlation of overlap and duration over the instances, both as differences from
    the mean of like instances, durations relative to it. {_COMPARED}
    missing: {_NO_SPREAD}
    source: Lit Silicon (arXiv 2511.09861)""")
COSINE: Final = column(f"""cosine | | cosine
    Cosine similarity of overlap and duration over the instances, durations relative to the
    mean of like instances. {_COMPARED}
    missing: no overlap
    source: Lit Silicon (arXiv 2511.09861)""")
MEDIAN: Final = column("""median_overlap_pct | % | median
    Median overlap of the row's instances.""")
P5: Final = column("""p5_overlap_pct | % | p5
    5th percentile of the instances' overlap.""")
P95: Final = column("""p95_overlap_pct | % | p95
    95th percentile of the instances' overlap.""")
INSTANCES: Final = column("""instances | | instances | sum
    Instances of operations: what an operation computes in one layer, phase and iteration on
    one GPU, counted again in each micro-step.""")
TIME: Final = column("""instance_ns | ns | instances' time | sum
    Durations of the instances' own kernels; what runs between two of them is no part of it.""")
OVERLAPPED: Final = column("""beside_comm_ns | ns | overlapped | sum
    The part of instance_ns during which collectives run on the same GPU.""")
GPU: Final = column("""gpu | | GPU
    The GPU of the instance.""")
ITERATION: Final = column("""iteration | | iteration
    The iteration of the instance.
    missing: the trace has no iterations""")
PHASE: Final = column("""phase | | phase
    The phase of the instance.""")
LAYER: Final = column("""layer | | layer
    The layer of the instance.
    missing: it belongs to no layer""")


class Overlaps(Rows, frozen=True, eq=False, dict=True):
    """The instances of a scope: an operation of a layer, phase and iteration on one GPU each.

    Each visit to a layer is an instance of its own. FSDP's own operations count as communication.
    """

    table: KernelTable
    row: Index
    """A row of each, which has its labels."""
    start_ns: Int64
    elapsed_ns: Int64
    """The durations of its kernels."""
    comm_ns: Int64
    """The time of that in which collectives run on the GPU."""
    masked_ns: Int64
    """The time in which collectives or FSDP's copies run."""
    work: Int64
    """Equal for instances that run the same kernels."""

    @cached_property
    def share(self) -> Float64:
        """Overlap with collectives, from 0 to 1."""
        return self.comm_ns / np.maximum(self.elapsed_ns, 1)

    @cached_property
    def _codes(self) -> dict[str, Codes]:
        return {}

    def codes(self, level: str) -> Codes:
        if level not in self._codes:
            self._codes[level] = values_of(self.table, level, self.row)
        return self._codes[level]


def overlaps_in(run: Run, view: View) -> Overlaps:
    """The instances of a view's scope; those of the whole run, or of its GPU, are found once."""
    node, scope = run.tree_of(view).node(view.path), dict(view.scope)
    is_known = "gpu" not in scope or run.memo.has(("overlaps", ()))
    whose = () if is_known else (scope["gpu"],)
    if {"kernel", ACTIVITY} & scope.keys():
        return _found(run, node, whose)
    own = run.tree().node(whose)
    everything = run.memo(("overlaps", whose), lambda: _found(run, own, whose))
    if int(node.sizes()[0]) == int(own.sizes()[0]):
        return replace(everything)  # What it reads of labels isn't kept with it.
    table, row, kept = run.table, everything.row, np.ones(len(everything), np.bool_)
    for level, label in scope.items():
        if level != "gpu" or not whose:
            kept &= values_of(table, level, row) == table.code_of(level, label)
    if left_out := run.uncounted(view):
        kept &= ~isin(table.iteration[row], left_out)
    return everything.take(contiguous(np.flatnonzero(kept)))


def _found(run: Run, node: Groups, whose: tuple[str, ...]) -> Overlaps:
    """The instances of a node of the run, or of its GPU."""
    table, own = run.table, run.tree().node(whose)
    # The code of a missing operation is -1: no name.
    copies = np.array([name.startswith(FSDP) for name in (*table.operations, "")], np.bool_)
    whole = cache(lambda: instances(own))
    visit = run.memo(("visits", whose), lambda: visits(whole(), table, copies))
    copying = copies[table.operation] & (table.kind != Kind.COMM) if copies.any() else None
    is_whole = visit is None and copying is None and node.sizes()[0] == own.sizes()[0]
    found = whole() if is_whole else instances(node, visit, copying)
    every = Overlaps(
        table, found.row, found.start_ns, found.busy_ns, found.overlapped_ns, found.masked_ns,
        found.work,
    )  # fmt: skip
    return every if copying is None else every.take(~copies[table.operation[found.row]])


_OfLike = tuple[Index, Float64]


class Effect(Struct, frozen=True, eq=False):
    """Effect of overlap per row; NaN where it is unknown."""

    pearson: Float64
    cosine: Float64
    slowdown: Float64
    cost_ns: Float64


def effect(
    found: Overlaps, owner: Codes, count: int, once: Callable[..., _OfLike] | None = None
) -> Effect:
    """How durations go with overlap in the rows to which `owner` gives the instances.

    Only like instances are compared: those of the same operation, phase and GPU that run the
    same kernels. Where the instances are all of their GPUs, and like ones of one row, what a GPU
    has is made `once`.
    """
    gpu = found.codes("gpu")
    cuts = [0, len(found)]
    if (gpu[1:] >= gpu[:-1]).all():
        # A few GPUs at a time stay in the processor's cache.
        first = run_starts(gpu)
        cuts = [*first[run_starts(first // _AT_A_TIME)].tolist(), len(found)]
    sums = np.zeros((9, count))
    for begin, end in pairwise(cuts):
        row, make = owner[begin:end], partial(_of_like, found, owner, slice(begin, end))
        gpus = int(gpu[begin]), int(gpu[end - 1]), end - begin
        one, own = make() if once is None else once(gpus, make)
        sums += [sums_of(each, row[one], count) for each in own]
    correlated, similar, (slow, fast, more) = sums.reshape(3, 3, count)
    number = np.maximum(counts_of(owner, count), 1)

    def cosine(products: Float64) -> Float64:
        xy, xx, yy = products
        size = np.sqrt(xx * yy)
        # A rounding error between equal numbers is not a spread.
        return ratios(xy, np.where(size > 1e-9 * number, size, 0.0))

    return Effect(
        cosine(correlated), cosine(similar), ratios(slow, fast), np.where(fast > 0, more, np.nan)
    )


def _of_like(whole: Overlaps, owner: Codes, part: slice) -> _OfLike:
    """One of each group of like instances of a row, and the group's sums that the effect of overlap
    follows from, in a part of the instances.

    The products of share and duration, each squared, beyond their means and as they are; and the
    time of like instances with much overlap, with little, and how much longer the first take.
    """
    found, labels = whole.take(part), (whole.codes(level)[part] for level in _LIKE)
    like = combined([owner[part], *labels, ranked(found.work)[1]])[1]
    order = stable_order(like)
    like, share, took = like[order], found.share[order], found.elapsed_ns[order].astype(np.float64)
    relative = took / np.maximum(means_of(took, like), 1e-9)[like]
    first = run_starts(like)

    def products(x: Float64, y: Float64) -> list[Float64]:
        return [run_sums(each, first) for each in (x * y, x * x, y * y)]

    least, most = run_minima(share, first)[like], run_maxima(share, first)[like]
    quarter, is_wide = (most - least) / 4, most - least >= _MIN_SPREAD
    sides = is_wide & (share <= least + quarter), is_wide & (share >= most - quarter)
    lows, highs = (counts_of(like[side], len(first)) for side in sides)
    low_ns, high_ns = (
        quantiles_of(took[side], like[side], len(first), (0.5,))[:, 0] for side in sides
    )
    both = (lows >= _MIN_INSTANCES) & (highs >= _MIN_INSTANCES)
    weight = counts_of(like)
    longer = (weight * high_ns, weight * low_ns, highs * (high_ns - low_ns))
    sums = (
        *products(share - means_of(share, like)[like], relative - 1.0),
        *products(share, relative),
        *(np.where(both, each, 0.0) for each in longer),
    )
    return order[first], np.array(sums)


def answer(run: Run, view: View) -> ViewResult:
    found = overlaps_in(run, view)
    if not len(found):
        raise NothingToShow("no overlap: the scope has no compute operations")
    if view.by == INSTANCE:
        found = found.take(np.argsort(found.start_ns, kind="stable"))
        result = _one_by_one(run, view, found)
    else:
        result = _together(run, view, found, view.by or "operation")
    charts = (_cumulative(found), _against_duration(run, found)) if found.comm_ns.any() else ()
    return replace(result, notes=_notes(found), charts=(*charts, *_samples(run, view)))


def _together(run: Run, view: View, found: Overlaps, by: str) -> ViewResult:
    if view.stat and view.over and set(view.over) != set(_LEVELS):
        raise UsageError(
            f"the view overlap has one instance per {', '.join(_LEVELS)}; it takes no other over="
        )
    codes, owner = ranked(found.codes(by))
    count = len(codes)
    labels = run.table.texts_of(by, codes)
    is_whole, counted = by in _LIKE and not dict(view.scope).keys() - {"gpu"}, run.uncounted(view)

    def once(gpus: tuple[int, ...], make: Callable[[], _OfLike]) -> _OfLike:
        return run.memo(("overlap of like instances", gpus, counted), make)

    known = effect(found, owner, count, once if is_whole else None)
    number, totals = counts_of(owner, count), _totals(found, view.stat)
    figures = _figures(found, owner, count, view.stat)
    low, median, high = 100.0 * quantiles_of(found.share, owner, count, (0.05, 0.5, 0.95)).T
    own: Own = [
        *figures[:2],
        (SLOWDOWN, numbered(known.slowdown)),
        (COST, numbered(known.cost_ns)),
        (PEARSON, numbered(known.pearson)),
        (COSINE, numbered(known.cosine)),
        (MEDIAN, numbered(median)),
        (P5, numbered(low)),
        (P95, numbered(high)),
        (INSTANCES, Values(number)),
        *figures[2:],
    ]

    def opens(row: int) -> View:
        child = replace(child_of(view, by, labels[row]), name=view.name)
        return replace(child, by=INSTANCE) if number[row] <= _MAX_LISTED else child

    return table_view(
        view,
        LabelledRows(by, labels),
        own,
        totals,
        opens=opens,
        over=_LEVELS,
        sort="-instance_ns" if by == "operation" else "",
        headline=(_overall(found, totals), *_slowest(by, labels, known, base_of(run, view))),
    )


def _figures(found: Overlaps, owner: Index, count: int, stat: str = "") -> Own:
    """The overlap of the instances with collectives, and with copies too, their time and overlapped
    time, of the rows to which `owner` gives them; with a statistic that over them."""
    if stat:
        order = stable_order(owner)
        return [
            (named(metric, stat), reduced(stat, values.take(order), owner[order], count))
            for metric, values in _of_each(found)
        ]
    in_comm, elapsed = (sums_of(each, owner, count) for each in (found.comm_ns, found.elapsed_ns))
    has_copies = found.masked_ns is not found.comm_ns
    masked = sums_of(found.masked_ns, owner, count) if has_copies else in_comm
    return [
        (OVERLAP, quotient(in_comm, elapsed, 100.0)),
        (WITH_COPIES, quotient(masked, elapsed, 100.0)),
        (TIME, Values(elapsed)),
        (OVERLAPPED, Values(in_comm)),
    ]


def _of_each(found: Overlaps) -> Own:
    whole = np.maximum(found.elapsed_ns, 1)
    return [
        (OVERLAP, numbered(100.0 * found.share)),
        (WITH_COPIES, numbered(100.0 * (found.masked_ns / whole))),
        (TIME, Values(found.elapsed_ns)),
        (OVERLAPPED, Values(found.comm_ns)),
    ]


def _totals(found: Overlaps, stat: str = "") -> Own:
    return _figures(found, np.zeros(len(found), np.intp), 1, stat)


def _one_by_one(run: Run, view: View, found: Overlaps) -> ViewResult:
    if len(found) > _MAX_LISTED:
        raise UsageError(
            f"the scope has {len(found)} instances, more than the {_MAX_LISTED} that can be "
            "listed; enter a GPU, an iteration or an operation first"
        )
    codes = {level: found.codes(level).astype(np.int64) for level in _LEVELS}
    texts = {level: run.table.texts_of(level, own) for level, own in codes.items()}
    totals = _totals(found)
    own: Own = [
        *_of_each(found),
        (GPU, Values(codes["gpu"])),
        (ITERATION, Values(codes["iteration"], codes["iteration"] == NO_LABEL)),
        (PHASE, worded(texts["phase"])),
        (LAYER, Values(codes["layer"], codes["layer"] == NO_LABEL)),
        (METRICS["start_ns"], Values(found.start_ns - run.origin_ns)),
    ]
    plain = View(
        view.run, order=complete_order(_LEVELS), signal=view.signal, overrides=view.overrides
    )
    return table_view(
        view,
        LabelledRows(INSTANCE, texts["operation"]),
        own,
        totals,
        opens=lambda row: replace(plain, path=tuple(texts[level][row] for level in _LEVELS)),
        headline=(_overall(found, totals),),
        base=base_of(run, view).itself,
    )


def _overall(found: Overlaps, totals: Own) -> str:
    if not found.comm_ns.any():
        return "no communication overlaps with the operations"
    share, with_copies = (values.at(0) or 0.0 for _, values in totals[:2])
    copies = (found.masked_ns != found.comm_ns).any()
    return facts(
        f"{percent(share / 100)} of the operations' time is overlapped",
        f"{percent(with_copies / 100)} with FSDP's copies" if copies else "",
    )


def _slowest(by: str, labels: list[str], known: Effect, base: Base) -> tuple[str, ...]:
    # A difference that doesn't correlate with overlap isn't its cost.
    along = np.isfinite(known.cost_ns) & (np.nan_to_num(known.pearson) >= _MIN_CORRELATION)
    cost = np.where(along, known.cost_ns, 0.0) / base.of_rows({by: labels})
    worst = int(cost.argmax())
    if cost[worst] <= 0:
        return ()
    prefix = {"operation": "", "gpu": "GPU "}.get(by, f"{by} ")
    return (
        facts(
            f"{prefix}{labels[worst]} +{time_text(cost[worst])}{base.words or ' in all'}",
            f"{known.slowdown[worst]:.2f} × as long with much overlap",
            f"r {known.pearson[worst]:.2f}",
        ),
    )


def _notes(found: Overlaps) -> tuple[str, ...]:
    sentences = []
    if (found.masked_ns != found.comm_ns).any():
        sentences.append("FSDP's own operations have no rows: they count as communication")
    unlayered = int((found.codes("layer") == NO_LABEL).sum())
    if unlayered:
        sentences.append(
            f"{unlayered} of {len(found)} instances are outside layers: each spans an operation's "
            "activities in a phase until another operation runs"
        )
    return tuple(sentences)


def _cumulative(found: Overlaps) -> Chart:
    gpus, owner = ranked(found.codes("gpu"))
    at = np.ceil(100.0 * np.minimum(found.share, 1.0) - 1e-9).astype(np.intp)
    counts = counts_of(owner * 101 + at, 101 * len(gpus)).reshape(len(gpus), 101)
    shares = 100.0 * np.cumsum(counts, axis=1) / counts.sum(axis=1)[:, None]
    return LineChart.over(
        "instances with at most this much overlap",
        "%",
        "overlap with collectives",
        "%",
        np.arange(101.0),
        by_gpu(gpus.tolist(), shares),
    )


def _samples(run: Run, view: View) -> Iterator[Chart]:
    """Figures of sampled counters while compute runs alone and with collectives, cumulative.

    A sample counts where compute of the scope runs at its middle: the original's device_cdf.
    """
    table, shares = run.table, np.linspace(0, 1, 101).tolist()
    rows = run.tree_of(view).node(view.path).rows
    for name, signal in run.measured.items():
        if not name.startswith(f"{SAMPLED}.") or signal.unit is not Unit.PERCENT:
            continue
        values: dict[str, list[Float64]] = {_ALONE: [], _TOGETHER: []}
        for gpu, at in places_by(table.gpu[rows]).items():
            if (curve := signal.curves.get(gpu)) is None:
                continue
            begins, ends = curve.edges_ns[::2], curve.edges_ns[1::2]
            middle, on_gpu = begins + (ends - begins) // 2, rows[at]
            rows_of = (on_gpu[table.kind[on_gpu] == kind] for kind in (Kind.COMPUTE, Kind.COMM))
            spans = (TimeSpans.running(table.start_ns[o], table.duration_ns[o]) for o in rows_of)
            busy, shared = (each.within(middle, middle + 1) > 0 for each in spans)
            sampled = curve.interval_values()
            known = busy & np.isfinite(sampled)
            values[_ALONE].append(sampled[known & ~shared])
            values[_TOGETHER].append(sampled[known & shared])
        lines = {label: np.concatenate(each) for label, each in values.items() if each}
        lines = {label: each for label, each in lines.items() if len(each)}
        if lines:
            x = tuple(quantile_of(each, shares) for each in lines.values())
            y = tuple(Series(label, np.linspace(0.0, 100.0, 101)) for label in lines)
            title = f"samples with at most this much {signal.title}"
            yield LineChart(title, "%", signal.title, signal.unit.value, x, y)


def _against_duration(run: Run, found: Overlaps) -> Chart:
    codes, owner = ranked(found.codes("operation"))
    times = sums_of(found.elapsed_ns, owner, len(codes))
    clouds = {}
    for place in np.argsort(-times, kind="stable")[:_MAX_OPERATIONS].tolist():
        own = np.flatnonzero(owner == place)
        own = own[:: max(1, -(-len(own) * _MAX_OPERATIONS // _MAX_POINTS))]
        name = run.table.text_of("operation", int(codes[place]))
        clouds[name] = 100.0 * found.share[own], found.elapsed_ns[own] / 1e6
    return LineChart.clouds("duration of instances", "ms", "overlap with collectives", "%", clouds)
