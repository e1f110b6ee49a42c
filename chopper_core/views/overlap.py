"""Overlap: how much communication overlaps with the operations, and how much it slows them."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Values, column, numbered, worded
from chopper_core.metrics.metric import quotient
from chopper_core.model.charts import Chart, LineChart
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, NO_LABEL
from chopper_core.model.units import time_text
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Index
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    counts_of,
    quantiles_of,
    ranked,
    stable_order,
    sums_of,
)
from chopper_core.views.shared.derived import named, reduced
from chopper_core.views.shared.instances import Effect, Overlaps, effect, overlaps_in
from chopper_core.views.shared.table_view import (
    LabelledRows,
    Own,
    by_gpu,
    child_of,
    known_of,
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

INSTANCE: Final = "instance"
_MAX_LISTED: Final = 20_000
_MAX_POINTS: Final = 1_500
"""With more instances, evenly chosen ones are drawn."""
_MAX_OPERATIONS: Final = 4
_MIN_CORRELATION: Final = 0.3
"""Correlation of overlap and duration from which the cost is reported."""
_LEVELS: Final = LEVELS[:-1]


_CHOPPER: Final = "UnaryLab/chopper compute_overlap_cdf, with the union of the intervals"
_ALIKE: Final = (
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
    {_ALIKE} Several of them count by their number of instances. At least 2 instances on both
    sides, and 10 points between the least and the most overlapped.
    missing: {_NO_SPREAD}""")
COST: Final = column(f"""overlap_cost_ns | ns | cost | signed
    Time of the instances with high overlap beyond the median of those with low overlap (see
    slowdown_x): their number times the difference of the medians.
    missing: {_NO_SPREAD}""")
PEARSON: Final = column(f"""pearson_r | | r
    Pearson's correlation of overlap and duration over the instances, both as differences from
    the mean of like instances, durations relative to it. {_ALIKE}
    missing: {_NO_SPREAD}
    source: Lit Silicon (arXiv 2511.09861)""")
COSINE: Final = column(f"""cosine | | cosine
    Cosine similarity of overlap and duration over the instances, durations relative to the
    mean of like instances. {_ALIKE}
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
TIME: Final = column("""instance_ns | ns | kernel time | sum
    Durations of the instances' own kernels; what runs between two of them is no part of it.""")
BESIDE: Final = column("""beside_comm_ns | ns | overlapped | sum
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


def answer(run: Run, view: View) -> ViewResult:
    found = overlaps_in(run, view)
    if not len(found):
        raise NothingToShow("no overlap: the scope has no compute operations")
    if view.by == INSTANCE:
        found = found.take(np.argsort(found.start_ns, kind="stable"))
        result = _one_by_one(run, view, found)
    else:
        result = _together(run, view, found, view.by or "operation")
    charts = (_cumulative(found), _against_duration(run, found))
    return replace(result, notes=_notes(found), charts=charts)


def _together(run: Run, view: View, found: Overlaps, by: str) -> ViewResult:
    if view.stat and view.over and set(view.over) != set(_LEVELS):
        raise UsageError(
            f"the view overlap has one instance per {', '.join(_LEVELS)}; it takes no other over="
        )
    codes, owner = ranked(found.codes(by))
    count = len(codes)
    labels = [run.table.text_of(by, code) for code in codes.tolist()]
    figures, known = _figures(found, owner, count, view.stat), effect(found, owner, count)
    whole = _totals(found)
    spread = 100.0 * quantiles_of(found.share, owner, count, (0.05, 0.5, 0.95))
    instances = figures[0][1].numbers
    own: Own = [
        *figures[1:3],
        (SLOWDOWN, numbered(known.slowdown)),
        (COST, numbered(known.cost_ns)),
        (PEARSON, numbered(known.pearson)),
        (COSINE, numbered(known.cosine)),
        (MEDIAN, numbered(spread[:, 1])),
        (P5, numbered(spread[:, 0])),
        (P95, numbered(spread[:, 2])),
        figures[0],
        *figures[3:],
    ]

    def opens(row: int) -> View:
        child = replace(child_of(view, by, labels[row]), name=view.name)
        return replace(child, by=INSTANCE) if instances[row] <= _MAX_LISTED else child

    return table_view(
        view,
        LabelledRows(by, labels),
        own,
        _totals(found, view.stat) if view.stat else whole,
        opens=opens,
        shown=known_of(own),
        over=_LEVELS,
        sort="-instance_ns" if by == "operation" else "",
        headline=_headline(found, whole, by, labels, known),
    )


def _figures(found: Overlaps, owner: Index, count: int, stat: str = "") -> Own:
    """The number of instances, their overlap with collectives and with copies too, their time and
    overlapped time, of the rows to which `owner` gives them; with a statistic that over them."""
    number = (INSTANCES, Values(counts_of(owner, count)))
    if stat:
        order = stable_order(owner)
        return [number] + [
            (named(metric, stat), reduced(stat, values.take(order), owner[order], count))
            for metric, values in _of_each(found)
        ]
    elapsed, beside, masked = (
        sums_of(each, owner, count) for each in (found.elapsed_ns, found.comm_ns, found.masked_ns)
    )
    return [
        number,
        (OVERLAP, quotient(beside, elapsed, 100.0)),
        (WITH_COPIES, quotient(masked, elapsed, 100.0)),
        (TIME, Values(elapsed)),
        (BESIDE, Values(beside)),
    ]


def _of_each(found: Overlaps) -> Own:
    return [
        (OVERLAP, numbered(100.0 * found.share)),
        (WITH_COPIES, numbered(100.0 * found.masked_share)),
        (TIME, Values(found.elapsed_ns)),
        (BESIDE, Values(found.comm_ns)),
    ]


def _totals(found: Overlaps, stat: str = "") -> Own:
    return _figures(found, np.zeros(len(found), np.intp), 1, stat)


def _one_by_one(run: Run, view: View, found: Overlaps) -> ViewResult:
    if len(found) > _MAX_LISTED:
        raise UsageError(
            f"the scope has {len(found)} instances, more than the {_MAX_LISTED} that can be "
            "listed; enter a GPU, an iteration or an operation first"
        )
    table = run.table
    texts = {
        level: [table.text_of(level, code) for code in found.codes(level).tolist()]
        for level in _LEVELS
    }
    gpu, layer, iteration = (found.codes(level) for level in ("gpu", "layer", "iteration"))
    own: Own = [
        *_of_each(found),
        (GPU, Values(gpu)),
        (ITERATION, Values(iteration, iteration == NO_LABEL)),
        (PHASE, worded(texts["phase"])),
        (LAYER, Values(layer, layer == NO_LABEL)),
        (METRICS["start_ns"], Values(found.start_ns - run.origin_ns)),
    ]
    order, whole = complete_order(_LEVELS), _totals(found)

    def opens(row: int) -> View:
        path = tuple(texts[level][row] for level in _LEVELS)
        return View(view.run, path, order, signal=view.signal, overrides=view.overrides)

    return table_view(
        view,
        LabelledRows(INSTANCE, texts["operation"]),
        own,
        whole,
        opens=opens,
        headline=(_overall(found, whole),),
    )


def _overall(found: Overlaps, whole: Own) -> str:
    share, with_copies = (values.at(0) or 0.0 for _, values in whole[1:3])
    if not found.comm_ns.any():
        return "no communication overlaps with the operations"
    text = f"communication overlaps with {share:.1f} % of the operations' time"
    if (found.masked_ns != found.comm_ns).any():
        text += f", with FSDP's copies {with_copies:.1f} %"
    return text


def _headline(
    found: Overlaps, whole: Own, by: str, labels: list[str], known: Effect
) -> tuple[str, ...]:
    lines = [_overall(found, whole)]
    # A difference that doesn't correlate with overlap isn't its cost.
    along = np.isfinite(known.cost_ns) & (np.nan_to_num(known.pearson) >= _MIN_CORRELATION)
    cost = np.where(along, known.cost_ns, 0.0)
    if cost.max(initial=0.0) > 0:
        worst = int(cost.argmax())
        r = known.pearson[worst]
        prefix = {"operation": "", "gpu": "GPU "}.get(by, f"{by} ")
        lines.append(
            f"{prefix}{labels[worst]} slows most: "
            f"instances with high overlap take {known.slowdown[worst]:.2f} times as long as those "
            f"with low, r = {r:.2f} between overlap and duration; {time_text(cost[worst])} in all"
        )
    return tuple(lines)


def _notes(found: Overlaps) -> tuple[str, ...]:
    sentences = []
    if (found.masked_ns != found.comm_ns).any():
        sentences.append("FSDP's own operations have no rows: they count as communication")
    if not found.comm_ns.any():
        sentences.append("no collective overlaps with compute")
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
        "instances with at most so much overlap",
        "%",
        "overlap with collectives",
        "%",
        np.arange(101.0),
        by_gpu(gpus.tolist(), shares),
    )


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
