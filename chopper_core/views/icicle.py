"""Icicle: the scope's time as blocks, level below level, in the colours of a figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.coverage import values_on_base
from chopper_core.analyses.rows import Partition
from chopper_core.columns import Metric, Scope, is_measured, metric_named
from chopper_core.model.charts import Icicle, IcicleRow
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import count, facts, level_title, percent
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT, UNLABELLED
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import run_mask
from chopper_core.views.shared.table_view import table_view
from chopper_core.views.spec import FIGURE, ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="icicle",
    title="Tree · blocks",
    question="Which phases, layers, operations and kernels make up the scope's time?",
    by=any_level("phase", "layer", "operation", "kernel", "iteration"),
    of=FIGURE,
)

_LEVELS: Final = ("phase", "layer", "operation", "kernel")
"""The levels of the picture below the one that is split by."""
_FIGURE, _WITHOUT_TELEMETRY = "gfx_mhz", "busy_pct"
_MAX_BLOCKS: Final = 20_000
"""A level with more of them has none that could be seen."""


def answer(run: Run, view: View) -> ViewResult:
    usual = _FIGURE if is_measured(_FIGURE, run.table) else _WITHOUT_TELEMETRY
    figure = metric_named(view.of or usual, run.table)
    levels = _levels_of(run, view)
    if not levels:
        raise NothingToShow("a single activity has no parts")
    depth = len(view.path)
    rest = [level for level in view.order[depth:] if level not in levels]
    view = replace(view, order=(*view.order[:depth], *levels, *rest))
    tree, base = run.tree_of(view), base_of(run, view)
    whole = tree.node(view.path)
    rows: list[IcicleRow] = []
    for number in range(1, len(levels) + 1):
        nodes = tree.split(view.path, levels[:number])
        if number > 1 and len(nodes) > _MAX_BLOCKS:
            break
        rows.append(_row(base, view, figure, whole, nodes, levels[:number]))
    first = Partition.of(tree, view, levels[0])
    scaled = 1e6 if figure.unit == "ns" else 1.0
    chart = Icicle(
        f"time by {', '.join(level_title(row.level) for row in rows)}; colour {figure.title}",
        "ms" if figure.unit == "ns" else str(figure.unit),
        tuple(replace(row, numbers=row.numbers / scaled) for row in rows),
        _opener(view, rows, len(levels)),
        figure.signed,
    )
    shown = ("elapsed_ns", "share_pct", figure.name, "kernels", "exposed_comm_ns", "idle_ns")
    return replace(
        table_view(
            view,
            first,
            (),
            opens=lambda row: chart.opens(0, rows[0].labels.index(first.labels[row])),
            shown=tuple(dict.fromkeys(shown)),
            headline=(_headline(rows, base.each(int(whole.elapsed_ns[0])), base.words),),
            charts=(chart,),
        ),
        by=levels[0] if levels[0] != SPEC.by[0] else "",
    )


def _levels_of(run: Run, view: View) -> tuple[str, ...]:
    rest = view.order[len(view.path) :]
    if view.by and view.by not in rest and view.by not in run.table.coordinates:
        raise UsageError(f"the levels below this scope are {', '.join(rest) or 'none'}")
    dimensions = [view.by] if view.by in run.table.coordinates else []
    below = [level for level in (view.by, *_LEVELS, *rest) if level in (*dimensions, *rest)]
    usual = [level for level in dict.fromkeys(below) if level in (view.by, *_LEVELS)]
    return tuple(usual or list(dict.fromkeys(below))[:1])


def _row(
    base: Base, view: View, figure: Metric, whole: Groups, nodes: Groups, levels: tuple[str, ...]
) -> IcicleRow:
    times = nodes.elapsed_ns.astype(np.int64)
    ends = np.cumsum(times)
    level = levels[-1]
    texts = {level: nodes.labels(level) for level in levels}
    divisors = base.of_rows(texts)
    values = values_on_base(figure, base, view, Scope.of(base.run, nodes, whole), texts)
    if values.words is not None:
        raise UsageError(f"{figure.name} is text: it has no colours")
    above = levels[:-1]
    parents = np.zeros(len(nodes), np.int64)
    if above:
        parents = np.cumsum(run_mask(*(nodes.codes(name) for name in above))) - 1
    owners = np.asarray(parents, np.int64)
    return IcicleRow(
        level, tuple(texts[level]), ends - times, ends, values.known(), owners, times / divisors
    )


def _opener(view: View, rows: list[IcicleRow], levels: int) -> Callable[[int, int], View]:
    def opens(depth: int, block: int) -> View:
        labels: list[str] = []
        for row in reversed(rows[: depth + 1]):
            labels.insert(0, row.labels[block])
            block = int(row.parents[block])
        plain = replace(view, path=(*view.path, *labels), by="", sort="", filter="", columns=())
        return replace(plain, name="", of="") if depth == levels - 1 else plain

    return opens


def _headline(rows: list[IcicleRow], total: float, words: str) -> str:
    row = next((each for each in reversed(rows) if each.level != "kernel"), rows[-1])
    times: dict[str, float] = {}
    for label, time in zip(row.labels, (row.ends_ns - row.begins_ns).tolist(), strict=True):
        times[label] = times.get(label, 0) + time
    label = max(times, key=lambda each: times[each])
    share = times[label] / max(sum(times.values()), 1)
    name = UNLABELLED if label == NO_LABEL_TEXT else label
    if len(times) == 1:
        return f"{time_text(total)}{words}, all of it in {row.level} {name}"
    return facts(
        f"{time_text(total)}{words}",
        count(len(times), row.level),
        f"{time_text(total * share)} ({percent(share)}) in {name}",
    )
