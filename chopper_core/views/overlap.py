"""Overlap: how much communication overlaps with the operations, and how much it slows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.overlap import (
    _LIKE,
    Effect,
    Overlaps,
    _OfLike,
    effect,
    overlaps_in,
    overlaps_of,
)
from chopper_core.analyses.overlap_columns import GroupedOverlaps, columns_of_effect
from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.columns import METRICS, Values, numbered, worded
from chopper_core.columns.derived import reduced, statistic_column
from chopper_core.columns.labels import LABELS
from chopper_core.model.charts import Chart, LineChart, Series
from chopper_core.model.column_names import SAMPLED
from chopper_core.model.phrases import facts, level_title, percent
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal, TimeSpans
from chopper_core.model.table import LEVELS, NO_LABEL, Kind
from chopper_core.model.units import Unit, time_text
from chopper_core.model.view import View, child_of, complete_order
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    median_of,
    places_by,
    quantile_of,
    ranked,
    stable_order,
    sums_of,
)
from chopper_core.views.shared.table_view import by_gpu, columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="overlap",
    title="Losses · overlap",
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
_PIECE: Final = 1 << 20
"""Instances that are counted in one go."""
_OF_UNITS: Final = ("sm_active_pct", "tensor_active_pct", "mem_util_pct")
_MOST_PERIOD_NS: Final = 10_000_000
"""Between samples of a profiler; those of monitors are of many kernels each."""
_MIN_CORRELATION: Final = 0.3
"""Correlation of overlap and duration from which the cost is reported."""
_LEVELS: Final = LEVELS[:-1]


_ALONE, _TOGETHER = "compute alone", "with collectives"
_INSTANCES: Final = "operation_instances"
_OF_EACH: Final = ("overlap_pct", "overlap_copies_pct", "instance_ns", "beside_comm_ns")


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
    totals = _totals(found, view.stat)
    headline = _overall(found, totals)
    if by in (*_LEVELS, *run.table.coordinates):
        codes, owner = ranked(found.codes(by))
    else:
        # An instance may have kernels of several rows: each has its part.
        nodes = run.tree_of(view).split(view.path, (by,))
        found, place = overlaps_of(run, nodes)
        rows, owner = ranked(place)
        codes = nodes.codes(by)[rows]
    count = len(codes)
    labels = run.table.texts_of(by, codes)
    is_whole, counted = by in _LIKE and not dict(view.scope).keys() - {"gpu"}, run.uncounted(view)

    def once(gpus: tuple[int, ...], make: Callable[[], _OfLike]) -> _OfLike:
        return run.memo(("overlap of like instances", gpus, counted), make)

    known = effect(found, owner, count, once if is_whole else None)
    of_rows = GroupedOverlaps(found, owner, count)
    number = counts_of(owner, count)
    figures = _figures(of_rows, view.stat)
    own: Own = [
        *figures[:2],
        *columns_of(columns_of_effect(known)),
        *columns_of(of_rows.quantiles()),
        (METRICS[_INSTANCES], Values(number)),
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
        headline=(headline, *_slowest(by, labels, known, base_of(run, view))),
    )


def _figures(rows: GroupedOverlaps, stat: str = "") -> Own:
    """The overlap of the instances with collectives, and with copies too, their time and overlapped
    time, of the rows; with a statistic that over them."""
    if stat:
        order = stable_order(rows.owner)
        return [
            (
                statistic_column(metric, stat),
                reduced(stat, values.take(order), rows.owner[order], rows.count),
            )
            for metric, values in _of_each(rows.found)
        ]
    figures = rows.times()
    return columns_of({name: figures[name] for name in _OF_EACH})


def _of_each(found: Overlaps) -> Own:
    """The same of each instance."""
    whole = np.maximum(found.elapsed_ns, 1)
    each = {
        "overlap_pct": numbered(100.0 * found.share),
        "overlap_copies_pct": numbered(100.0 * (found.masked_ns / whole)),
        "instance_ns": Values(found.elapsed_ns),
        "beside_comm_ns": Values(found.comm_ns),
    }
    return columns_of(each)


def _totals(found: Overlaps, stat: str = "") -> Own:
    return _figures(GroupedOverlaps(found, np.zeros(len(found), np.intp), 1), stat)


def _one_by_one(run: Run, view: View, found: Overlaps) -> ViewResult:
    if len(found) > _MAX_LISTED:
        raise UsageError(
            f"the scope has {len(found)} instances, more than the {_MAX_LISTED} that can be "
            "listed; enter a GPU, a step or an operation first"
        )
    codes = {level: found.codes(level).astype(np.int64) for level in _LEVELS}
    texts = {level: run.table.texts_of(level, own) for level, own in codes.items()}
    totals = _totals(found)
    own: Own = [
        *_of_each(found),
        (LABELS["gpu"], Values(codes["gpu"])),
        (LABELS["iteration"], Values(codes["iteration"], codes["iteration"] == NO_LABEL)),
        (LABELS["phase"], worded(texts["phase"])),
        (LABELS["layer"], Values(codes["layer"], codes["layer"] == NO_LABEL)),
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
    prefix = "" if by == "operation" else f"{level_title(by)} "
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
    gpu = found.codes("gpu")
    gpus = distinct(gpu)
    counts = np.zeros(101 * len(gpus), np.int64)
    for begin in range(0, len(found), _PIECE):
        piece = slice(begin, begin + _PIECE)
        at = np.ceil(100.0 * np.minimum(found.take(piece).share, 1.0) - 1e-9).astype(np.intp)
        counts += counts_of(np.searchsorted(gpus, gpu[piece]) * 101 + at, len(counts))
    of_gpus = counts.reshape(len(gpus), 101)
    shares = 100.0 * np.cumsum(of_gpus, axis=1) / of_gpus.sum(axis=1)[:, None]
    return LineChart.over(
        "instances with at most this much overlap",
        "%",
        "overlap with collectives",
        "%",
        np.arange(101.0),
        by_gpu(gpus.tolist(), shares),
    )


def _samples(run: Run, view: View) -> Iterator[Chart]:
    """Figures of sampled counters while compute runs alone and with collectives, cumulative; also
    the use of units that a profiler sampled.

    A sample counts where compute of the scope runs at its middle: the original's device_cdf.
    """
    table, shares = run.table, np.linspace(0, 1, 101).tolist()
    node = run.tree_of(view).node(view.path)
    for name, signal in run.measured.items():
        if not (name.startswith(f"{SAMPLED}.") or _is_of_units(name, signal)):
            continue
        if signal.unit is not Unit.PERCENT:
            continue
        values: dict[str, list[Float64]] = {_ALONE: [], _TOGETHER: []}
        rows = node.rows
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


def _is_of_units(name: str, signal: Signal) -> bool:
    """Whether a signal is the use of units that a profiler samples often enough for kernels, such
    as the counters of a trace of PyTorch, or the GPU metrics of Nsight Systems."""
    if name not in _OF_UNITS:
        return False
    took = [np.diff(curve.edges_ns.reshape(-1, 2)).ravel() for curve in signal.curves.values()]
    return any(len(each) > 0 and int(median_of(each)) <= _MOST_PERIOD_NS for each in took)


def _against_duration(run: Run, found: Overlaps) -> Chart:
    codes, owner = ranked(found.codes("operation"))
    times = sums_of(found.elapsed_ns, owner, len(codes))
    clouds = {}
    for place in np.argsort(-times, kind="stable")[:_MAX_OPERATIONS].tolist():
        own = np.flatnonzero(owner == place)
        some = found.take(own[:: max(1, -(-len(own) * _MAX_OPERATIONS // _MAX_POINTS))])
        name = run.table.text_of("operation", int(codes[place]))
        clouds[name] = 100.0 * some.share, some.elapsed_ns / 1e6
    return LineChart.clouds("duration of instances", "ms", "overlap with collectives", "%", clouds)
