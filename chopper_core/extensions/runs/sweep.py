"""Sweep: a metric of a set of runs over one of their settings, a line for each of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import isfinite, isnan, nan
from statistics import median
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.columns import Metric, Values, numbered
from chopper_core.extensions.runs.figures import HIGHER, WORLD, is_better, known_column
from chopper_core.extensions.runs.run_rows import FAILED, RunRow, RunRows, setting_of, settings_of
from chopper_core.extensions.runs.runs import figure_values, frame_of_set, shown_rows
from chopper_core.model.charts import LineChart
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.settings import KNOWN, Setting
from chopper_core.model.units import scaled_text
from chopper_core.model.view import RUN_LEVEL, View, with_view
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import grouped_by
from chopper_core.views import RUNS
from chopper_core.views.frame import Frame
from chopper_core.views.spec import RUN_FIGURE, SETTINGS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="sweep",
    title="Compare · sweep",
    question="How does a figure of the runs change with one of their settings?",
    of=RUN_FIGURE,
    by_of_runs=SETTINGS,
    no_statistic="shows one figure of each run",
)

FIGURE: Final = "step_time_ns"
_MAX_LINES: Final = 12


def answer(run: Run, view: View) -> ViewResult:
    raise NothingToShow("a sweep is of several runs; open a directory of runs")


def set_frame(run: RunRows, view: View, *, wait: bool = False) -> Frame:
    """A row for each value of the setting `by`, a column for each line; UsageError."""
    rows, reading = shown_rows(run, view, wait=wait)
    settings = settings_of(rows)
    varied = [name for name in settings if _values(rows, name)[1:] and name != WORLD]
    x = next((name for name in ("microbatch", *varied) if name in varied), "")
    name = view.of or FIGURE
    metric = known_column(name)
    if reading.waiting and not _values(rows, view.by or x):
        return _early(run, view, metric, reading.waiting)
    x = setting_of(view.by, settings) if view.by else x
    if not x:
        raise NothingToShow("no setting differs between the runs; give settings with --set, --name")
    along = _values(rows, x)
    lines = [each for each in varied if each != x]
    known = figure_values(run, rows, name)
    swept = [place for place, row in enumerate(rows) if x in row.settings]
    cells = grouped_by(swept, lambda place: (_line(rows[place], lines), rows[place].settings[x]))
    groups = dict.fromkeys(group for group, _ in cells)
    numbers = known.known()
    figures = {cell: [*filter(isfinite, numbers[places])] for cell, places in cells.items()}
    columns = [
        (
            _column(metric, group, x),
            numbered([median(figures.get((group, value)) or [nan]) for value in along]),
        )
        for group in groups
    ]
    several = sum(len(each) > 1 for each in figures.values())
    notes = [f"one row per {x} value, one column per {', '.join(lines) or 'run'}"]
    notes += _failures(rows, cells.values(), numbers)[:_MAX_LINES]
    if several:
        notes.append(f"cells with several runs show their median: {several}")
    if len(swept) < len(rows):
        notes.append(f"{len(rows) - len(swept)} runs have no {x}: left out")
    return frame_of_set(
        run,
        replace(view, by=x, of=name),
        KNOWN.get(x, x),
        [str(value) for value in along],
        columns,
        lambda row: replace(with_view(view, RUNS), filter=_only(x, along[row])),
        notes=notes,
        headline=_headline(metric, x, columns, along),
        charts=(_chart(metric, x, along, columns),),
        is_pending=bool(reading.waiting),
    )


def _failures(
    rows: Sequence[RunRow], cells: Iterable[Sequence[int]], numbers: Float64
) -> list[str]:
    """Of each cell the last run that failed, in the order of the runs."""
    last = [
        [place for place in cell if rows[place].status == FAILED and isnan(numbers[place])][-1:]
        for cell in cells
    ]
    failed = [rows[place] for place in sorted(chain(*last))]
    return [f"{row.name} failed: {row.reason}" for row in failed]


def _early(run: RunRows, view: View, metric: Metric, waiting: int) -> Frame:
    """The frame while no run with the setting has been read."""
    note = f"still reading {count(waiting, 'run')}"
    nothing = [(metric, numbered([]))]
    return frame_of_set(
        run, view, RUN_LEVEL, [], nothing, lambda _: view, notes=[note], is_pending=True
    )


def _values(rows: Sequence[RunRow], name: str) -> list[Setting]:
    """The values of a setting: numbers in rising order, then words."""
    found = {row.settings[name] for row in rows if name in row.settings}
    numbers = sorted(each for each in found if isinstance(each, int | float))
    return [*numbers, *sorted(each for each in found if isinstance(each, str))]


def _line(row: RunRow, lines: Sequence[str]) -> str:
    """The settings of a run without the swept one: the name of its line."""
    words = []
    for name in lines:
        if name in row.settings:
            value = row.settings[name]
            title = "" if isinstance(value, str) else KNOWN.get(name, f"{name}=")
            words.append(f"{title}{value}")
    return " ".join(words)


def _column(metric: Metric, group: str, x: str) -> Metric:
    return replace(
        metric,
        name=group or metric.name,
        title=group or metric.title,
        definition=f"{metric.name} of the runs {group}".rstrip() + ".",
        missing_because=f"no run {group} with this {x}, or it failed",
    )


def _only(x: str, value: Setting) -> str:
    return f"{x}:{value}" if isinstance(value, str) else f"{x}={value}"


def _headline(
    metric: Metric, x: str, columns: Sequence[tuple[Metric, Values]], along: Sequence[Setting]
) -> tuple[str, ...]:
    better = is_better(metric.name)
    known = [
        (float(number), column.title, along[row])
        for column, values in columns
        for row in range(len(along))
        if (number := values.at(row)) is not None
    ]
    if not known or not better:
        return ()
    number, line, value = (max if better == HIGHER else min)(known, key=lambda each: each[0])
    of = "" if line == metric.title else f", {line}"
    word = "highest" if better == HIGHER else "lowest"
    text = scaled_text(number, metric.unit)
    return (f"{word} {metric.title}: {text} at {KNOWN.get(x, x)} {value}{of}",)


def _chart(
    metric: Metric, x: str, along: Sequence[Setting], columns: Sequence[tuple[Metric, Values]]
) -> LineChart:
    """A line per group, with gaps where runs failed; words are at 1, 2, 3 …"""
    is_number = all(isinstance(value, int | float) for value in along)
    places = np.array(along if is_number else range(1, len(along) + 1), np.float64)
    lines = columns[:_MAX_LINES]
    drawn = {column.title: values.known() for column, values in lines}
    largest = np.nan_to_num(np.abs(np.stack(list(drawn.values())))).max()
    scale = metric.unit.scale(float(largest), is_whole=False)
    title = KNOWN.get(x, x)
    if not is_number:
        title += ": " + ", ".join(f"{place} {value}" for place, value in enumerate(along, 1))
    return LineChart.over(
        f"{metric.title} over {KNOWN.get(x, x)}",
        scale.text,
        title,
        "",
        places,
        {name: numbers / scale.divisor for name, numbers in drawn.items()},
    )
