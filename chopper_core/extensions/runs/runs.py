"""Runs: several runs side by side, sorted, filtered, grouped by a setting, against a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import isnan, nan
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.columns import METRICS, Metric, Values, nearest_names, numbered, worded
from chopper_core.columns.filter import FilterRows, Shown, matching, shown_of
from chopper_core.extensions.runs.figures import (
    GPUS,
    HIGHER,
    LOWER,
    REASON,
    RUN_COLUMNS,
    SHOWN_ON_REQUEST,
    STATUS,
    STEP_PARTS,
    WORLD,
    is_better,
    known_column,
    root_figure,
    setting_column,
)
from chopper_core.extensions.runs.run_rows import (
    FAILED,
    OK,
    Reading,
    RunRow,
    RunRows,
    setting_of,
    settings_of,
)
from chopper_core.extensions.runs.speed import (
    MODEL,
    PER_STEP,
    equal_work,
    figure_in,
    speed_of,
)
from chopper_core.model.charts import BarChart, Chart, LineChart, Series
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import count, listed
from chopper_core.model.run import Run
from chopper_core.model.settings import KNOWN, LAYOUT_FROM, Setting
from chopper_core.model.units import Unit, scaled_text
from chopper_core.model.view import RUN_LEVEL, View
from chopper_core.util.arrays import Index, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import grouped_by
from chopper_core.util.patterns import late
from chopper_core.views import RUNS
from chopper_core.views.frame import Frame
from chopper_core.views.shared.row_columns import with_column_names
from chopper_core.views.spec import BEST, SETTINGS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name=RUNS,
    title="Compare · runs",
    question="Which of the runs are the best in speed, power and heat, and which failed?",
    by_of_runs=SETTINGS,
    no_statistic="shows one figure of each run",
)
RATIO: Final = "_x"
"""The end of a column's name that is normalised to a baseline."""
_NAMED_TERM: Final = late(r"(?P<name>\w+)[:=<>!]")
_OWN: Final = {each.name: each for each in (GPUS, STATUS, REASON)}
STEP: Final = "step_time_ns"
_MAX_BARS: Final = 24
_MIN_STEPS: Final = 3
_NOT_SPLIT: Final = "not split"
_AS_GOOD: Final = 0.005
"""Of the best figure: others within it are as good."""
_MAX_REASONS: Final = 6
_MAX_NAMED: Final = 3
Column = tuple[Metric, Values]
Cell = Setting | None
"""A cell of a column of settings or figures; None where the run lacks it."""
_Table = Mapping[str, Sequence[Cell]]


def answer(run: Run, view: View) -> ViewResult:
    raise NothingToShow("this is one run; open a directory of runs")


def set_frame(run: RunRows, view: View, *, wait: bool = False) -> Frame:
    """The rows of a set's runs; with `wait`, once more of them are read than were seen.

    Raises UsageError for an unknown column, setting or baseline.
    """
    reading = run.reading(wait)
    rows, waiting = list(reading.rows), reading.waiting
    labels, settings, group = [row.name for row in rows], settings_of(rows), view.by
    if group and rows and not waiting:
        group = setting_of(group, settings)
    table, nothing = rows_table(rows), [None] * len(rows)
    titled = (
        *_OWN.values(),
        *(each.metric for each in RUN_COLUMNS.values()),
        *map(setting_column, settings),
    )
    view = with_column_names(view, titled, settings)
    base, groups = _baseline(view, rows), table.get(group, nothing)

    @cache
    def known(name: str) -> Column:
        """The column of a name, divided by that of the baseline where the name ends so."""
        if stem := _divided(name, settings):
            if not base:
                raise UsageError(
                    f"{name} is {stem} divided by that of a baseline: base=RUN, or base={BEST}"
                )
            return _ratio(*known(stem), groups, base, labels)
        metric = _column(name, settings)
        if name not in RUN_COLUMNS and (name in _OWN or name in settings):
            return metric, cell_values(table.get(name, nothing))
        return metric, figure_values(run, rows, name)

    asked = list(view.columns or _shown(rows, settings, table))
    if group and group not in asked:
        asked.insert(0, group)
    # With a baseline figures are ratios, unless both are named.
    columns = [
        known(f"{name}{RATIO}")
        if base
        and _is_figure(name, settings)
        and not _divided(name, settings)
        and f"{name}{RATIO}" not in asked
        else known(name)
        for name in asked
    ]
    metrics = [metric for metric, _ in columns]
    own = (*(each.name for each in metrics), *RUN_COLUMNS, *settings, *_OWN)
    shown = shown_of(
        FilterRows(RUN_LEVEL, labels, lambda name: known(name)[1], own, (*metrics, *titled)),
        view.filter,
        view.sort,
    )
    if group:
        order = np.argsort(_group_order(groups)[shown.at], kind="stable")
        shown = replace(shown, at=shown.at[order])
    lacking = [(metric, known(metric.name.removesuffix(RATIO))[1]) for metric in metrics]
    here = [rows[at] for at in shown.at.tolist()]
    lacking = [(metric, values.take(shown.at)) for metric, values in lacking]
    taken = [(metric, values.take(shown.at)) for metric, values in columns]
    notes = _notes(rows, base, waiting) + _reasons(here, lacking, is_asked=bool(view.columns))
    if shown.hidden:
        notes.append(f"{shown.hidden} of {len(rows)} runs filtered out")
    return frame_of_set(
        run,
        view,
        RUN_LEVEL,
        labels,
        columns,
        lambda row: view_of_run(view, rows[row]),
        shown=shown,
        notes=notes,
        more=tuple(each.metric for name, each in RUN_COLUMNS.items() if name not in asked),
        headline=_headline(rows, len(rows) + waiting),
        charts=_charts(view, rows, columns, shown.at),
        best={} if waiting else _best_figures(here, taken),
        is_pending=bool(waiting),
    )


def _charts(
    view: View, rows: Sequence[RunRow], columns: Sequence[Column], shown: Index
) -> tuple[Chart, ...]:
    """The step in its parts, every step of comparable runs, and the column that is sorted by."""
    here = [rows[row] for row in shown.tolist()]
    if not 1 < len(here) <= _MAX_BARS:
        return ()
    drawn = [each for each in columns if each[0].unit is not Unit.NONE and each[1].words is None]
    own = view.sort.removeprefix("-").removesuffix(RATIO)
    known = [each for each in drawn if each[0].name.removesuffix(RATIO) == own] or drawn
    parts = _in_parts(here)
    bars = [] if parts and known[:1] and known[0][0].name.removesuffix(RATIO) == STEP else known[:1]
    return (*parts, *_each_step(here), *_bars(bars, here, shown))


def _bars(columns: Sequence[Column], here: Sequence[RunRow], shown: Index) -> list[BarChart]:
    """A bar per run of each column that is known of any."""
    found = []
    for metric, values in columns:
        numbers = values.known()[shown]
        if np.isfinite(numbers).any():
            scale = metric.unit.scale(float(np.nanmax(np.abs(numbers))), is_whole=False)
            bars = (Series(metric.title, numbers / scale.divisor),)
            names = tuple(row.name for row in here)
            found.append(BarChart(f"{metric.title} by run", scale.text, names, bars))
    return found


def _in_parts(here: Sequence[RunRow]) -> list[BarChart]:
    """The step of each run in its parts, and where they are unknown as a whole."""
    known = {
        title: np.array([figure_in(row, name) for row in here])
        for name, title in STEP_PARTS.items()
    }
    split = np.nansum([*known.values()], axis=0) > 0
    if not split.any():
        return []
    whole = np.array([figure_in(row, STEP) for row in here])
    rest = {_NOT_SPLIT: np.where(split, np.nan, whole)} if np.isfinite(whole[~split]).any() else {}
    scale = Unit.NS.scale(float(np.nanmax(whole)), is_whole=False)
    parts = tuple(
        Series(name, numbers / scale.divisor)
        for name, numbers in (known | rest).items()
        if np.nan_to_num(numbers).any()
    )
    return [BarChart("step by run", scale.text, tuple(row.name for row in here), parts)]


def _each_step(here: Sequence[RunRow]) -> list[LineChart]:
    """The time of every complete step: whether runs differ by more than their steps do."""
    timed = [row for row in here if len(row.steps_ns) >= _MIN_STEPS]
    if len(timed) < 2 or not equal_work(timed):
        return []
    scale = Unit.NS.scale(max(max(row.steps_ns) for row in timed), is_whole=False)
    lines = tuple(Series(row.name, np.array(row.steps_ns) / scale.divisor) for row in timed)
    x = tuple(np.arange(1.0, len(row.steps_ns) + 1) for row in timed)
    return [LineChart("every complete step", scale.text, "step", "", x, lines)]


def _best_figures(here: Sequence[RunRow], columns: Sequence[Column]) -> dict[str, Mask]:
    """The rows with the best figure of each column, of runs that can be compared in it."""
    comparable = len({row.settings.get(MODEL) for row in here}) < 2
    found: dict[str, Mask] = {}
    for metric, values in columns:
        name = metric.name.removesuffix(RATIO)
        better = 0 if values.words is not None else is_better(name)
        is_fair = comparable and (name not in PER_STEP or equal_work(here))
        numbers = better * values.known()
        if not better or not is_fair or np.isfinite(numbers).sum() < 2:
            continue
        most = float(np.nanmax(numbers))
        best = numbers >= most - _AS_GOOD * abs(most)
        if not best[np.isfinite(numbers)].all():
            found[metric.name] = best
    return found


def terms_on_runs(text: str, rows: Sequence[RunRow]) -> tuple[str, str]:
    """The terms of a filter that are on runs, `run:A` or on a setting (`model:gpt3-175b`), and the
    others, those on coordinates of GPUs (`pp:1`) among them."""
    settings = {*settings_of(rows), RUN_LEVEL} - {*DIMENSIONS}
    of_runs, others = list[str](), list[str]()
    for term in text.split():
        match = _NAMED_TERM.match(term)
        (of_runs if match and match["name"] in settings else others).append(term)
    return " ".join(of_runs), " ".join(others)


def shown_rows(run: RunRows, view: View, *, wait: bool = False) -> tuple[list[RunRow], Reading]:
    """The rows of a set that a view's terms on runs leave, all without, and how far it is read."""
    reading = run.reading(wait)
    labels, settings = [row.name for row in reading.rows], tuple(settings_of(reading.rows))

    def values(name: str) -> Values:
        return cell_values(rows_table(reading.rows)[name])

    rows = FilterRows(RUN_LEVEL, labels, values, settings)
    mask = matching(rows, terms_on_runs(view.filter, reading.rows)[0])
    return [row for row, kept in zip(reading.rows, mask, strict=True) if kept], reading


def view_of_run(view: View, row: RunRow) -> View:
    return View(row.path, overrides=view.overrides.of_run)


def frame_of_set(
    run: RunRows,
    view: View,
    level: str,
    labels: Sequence[str],
    columns: Sequence[Column],
    target: Callable[[int], View],
    *,
    shown: Shown | None = None,
    total: Mapping[str, int | float | None] | None = None,
    notes: Sequence[str] = (),
    **options: object,
) -> Frame:
    """A frame whose rows are not activities of one run: all of them, or those that are shown."""
    own = target
    if shown is not None:
        at, labels, notes = shown.at, shown.labels, (*shown.hint, *notes)
        columns = [(metric, values.take(at)) for metric, values in columns]
        own = lambda row: target(int(at[row]))  # noqa: E731
    found = Frame(
        view=view,
        level=level,
        columns=tuple(metric for metric, _ in columns),
        labels=list(labels),
        values={metric.name: values for metric, values in columns},
        total={metric.name: None for metric, _ in columns} | dict(total or {}),
        sort=view.sort,
        hidden=0 if shown is None else shown.hidden,
        notes=tuple(notes),
        target=own,
        signal=run.signal(),
    )
    return replace(found, **options)


def rows_table(rows: Sequence[RunRow]) -> dict[str, list[Cell]]:
    """The runs as columns: the settings, figures, status and reason of each, as they are; None
    where a run lacks one."""
    # Not pandas: to import it takes as long as all else until the first screen.
    table: dict[str, list[Cell]] = {}
    for place, row in enumerate(rows):
        own = {STATUS.name: row.status, REASON.name: row.reason or None}
        for name, cell in {**row.settings, **row.figures, **own}.items():
            if name not in table:
                table[name] = [None] * len(rows)
            table[name][place] = cell
    if GPUS.name in table:
        table[GPUS.name] = [None if each is None else int(each) for each in table[GPUS.name]]
    return table


def cell_values(found: Sequence[Cell]) -> Values:
    """A column of a table of runs: of whole numbers, of numbers, else of words."""
    given = [each for each in found if each is not None]
    if any(isinstance(each, str) for each in given):
        return worded([None if each is None else str(each) for each in found])
    numbers = np.array([nan if each is None else float(each) for each in found], np.float64)
    if given and all(isinstance(each, int) for each in given):
        whole = np.array([0 if each is None else int(each) for each in found], np.int64)
        return Values(whole, np.isnan(numbers))
    return numbered(numbers)


def figure_values(run: RunRows, rows: Sequence[RunRow], name: str) -> Values:
    known_column(name)
    found = [row.figures.get(name) for row in rows]
    if name not in RUN_COLUMNS:
        for place, row in enumerate(rows):
            if found[place] is None and row.status != FAILED:
                key = ("figure", name, row.path)
                found[place] = run.memo(key, partial(root_figure, run, row, name))
    return cell_values(found)


def _divided(name: str, settings: Sequence[str]) -> str:
    """The figure that a column divides by the baseline's; empty for a column of its own."""
    stem = name.removesuffix(RATIO)
    is_own = stem == name or name in (*settings, *_OWN, *RUN_COLUMNS, *METRICS)
    return "" if is_own or not _is_figure(stem, settings) else stem


def _is_figure(name: str, settings: Sequence[str]) -> bool:
    return name not in _OWN and name != "straggler" and name not in settings


def _column(name: str, settings: Sequence[str]) -> Metric:
    if name in _OWN:
        return _OWN[name]
    if name in RUN_COLUMNS:
        return RUN_COLUMNS[name].metric
    if name in settings:
        return setting_column(name)
    try:
        return known_column(name)
    except UsageError:
        there = ", ".join((*settings, *_OWN, *RUN_COLUMNS))
        raise UsageError(
            f"unknown column {name!r} of a table of runs; it has {there}, and any metric"
            f"{nearest_names(name)}"
        ) from None


def _shown(rows: Sequence[RunRow], settings: Sequence[str], table: _Table) -> tuple[str, ...]:
    """The default columns: of the settings those that differ or say what the run is."""
    figures = [name for name in RUN_COLUMNS if name in table and name not in SHOWN_ON_REQUEST]
    is_ok = all(row.status == OK for row in rows)
    gpus = table.get(GPUS.name, [None] * len(rows))
    partly = any(
        world is not None and world != found
        for world, found in zip(table.get(WORLD, ()), gpus, strict=False)
    )
    kept = [
        name
        for name in settings
        if name in KNOWN or (partly if name == WORLD else len(set(table[name])) > 1)
    ]
    if is_ok:
        return (*kept, GPUS.name, *figures)
    return (*kept, STATUS.name, GPUS.name, *figures, REASON.name)


def _group_order(found: Sequence[Cell]) -> Index:
    """The place of each row's group: numbers by value, then words, then rows without it."""
    keys = [*map(_group_key, found)]
    place = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([place[key] for key in keys], np.intp)


def _group_key(cell: Cell) -> tuple[int, float, str]:
    if cell is None:
        return 2, 0.0, ""
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        number = nan
    return (1, 0.0, str(cell)) if isnan(number) else (0, number, "")


def _baseline(view: View, rows: Sequence[RunRow]) -> str:
    """The run, or `best`, that figures are normalised to; empty without."""
    if view.baseline is None:
        return ""
    name = view.baseline.run
    if name == BEST:
        return BEST
    for row in rows:
        if name in (row.name, row.path):
            return row.name
    raise UsageError(
        f"the baseline {name!r} is none of these runs; it is the name of one, or {BEST}: the best "
        "figure of the group"
    )


def _ratio(
    metric: Metric, values: Values, groups: Sequence[Cell], base: str, labels: Sequence[str]
) -> Column:
    """A figure divided by that of the baseline, or by the best of its group."""
    numbers = values.known()
    whole = np.full(len(numbers), numbers[labels.index(base)] if base != BEST else nan)
    better = {HIGHER: np.fmax, LOWER: np.fmin}.get(is_better(metric.name))
    if base == BEST and better is not None:
        for rows in grouped_by(range(len(groups)), groups.__getitem__).values():
            whole[rows] = better.reduce(numbers[rows])
    found = numbers / np.where(whole == 0, nan, whole)
    what = "the best of its group" if base == BEST else f"that of {base}"
    named = replace(
        metric,
        name=f"{metric.name}{RATIO}",
        unit=Unit.TIMES,
        title=metric.title,
        definition=f"{metric.name} divided by {what}. {metric.definition}",
        missing_because=metric.missing_because or "the baseline lacks it, or it is 0",
        signed=False,
    )
    return named, numbered(found)


def _headline(rows: Sequence[RunRow], total: int) -> tuple[str, ...]:
    statuses = Counter(row.status for row in rows)
    words = [f"{number} {status}" for status, number in statuses.items()]
    words += [f"{total - len(rows)} being read"] if total > len(rows) else []
    text = f"{count(total, 'run')}: {', '.join(words)}"
    is_fair = len(rows) == total and len({row.settings.get(MODEL) for row in rows}) < 2
    speed = speed_of(rows) if is_fair else None
    if speed is not None:
        first = speed.rows[0]
        fastest = scaled_text(figure_in(first, speed.figure), known_column(speed.figure).unit)
        equal = [speed.rows[place].name for place in speed.equal]
        who = f"{first.name} is the fastest"
        if len(equal) > 1:
            who = f"{listed(equal)} are equally fast within noise"
        text += f"; {who}: {fastest}"
    return (text,)


def _notes(rows: Sequence[RunRow], base: str, waiting: int) -> list[str]:
    notes = []
    if waiting:
        notes.append(f"{waiting} of {waiting + len(rows)} runs are still being read")
    if base == BEST:
        notes.append("figures are divided by the best of the group: 1 is the best")
    elif base:
        notes.append(f"figures are divided by those of {base}")
    if assumed := sum(LAYOUT_FROM in row.settings for row in rows):
        notes.append(
            f"~ the parallelism of {count(assumed, 'run')} is assumed from the index in the name, "
            "as in CharLLM-PPT's sweeps on H200; the job's YAML or --set tp=2,pp=16 states it"
        )
    bad = [row for row in rows if row.status != OK]
    notes += [f"{row.name} is {row.status}: {row.reason}" for row in bad[:_MAX_REASONS]]
    if len(bad) > _MAX_REASONS:
        more = count(len(bad) - _MAX_REASONS, "more run")
        notes.append(f"not ok: {more}; the column reason says why")
    return notes


def _reasons(rows: Sequence[RunRow], columns: Sequence[Column], *, is_asked: bool) -> list[str]:
    """Why columns have no figure of some runs; where none has one, only if they were asked for."""
    read = [(place, row) for place, row in enumerate(rows) if row.status != FAILED]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for metric, values in columns:
        name = metric.name.removesuffix(RATIO)
        if name in _OWN or not (is_asked or name in RUN_COLUMNS):
            continue
        present = values.present()
        lacking: dict[str, list[str]] = {}
        for place, row in read:
            reason = row.missing.get(name) or metric.missing_because
            if not present[place] and reason:
                lacking.setdefault(reason, []).append(row.name)
        if sum(map(len, lacking.values())) == len(read) and not is_asked:
            continue
        for reason, names in lacking.items():
            whose = f"{len(names)} runs" if len(names) > _MAX_NAMED else ", ".join(names)
            whose = "" if len(names) == len(read) else f" of {whose}"
            own = name if is_asked else metric.title
            by_reason.setdefault((whose, reason), []).append(own)
    texts = [
        f"{', '.join(names)}{whose} missing: {why}" for (whose, why), names in by_reason.items()
    ]
    more = 0 if is_asked else len(texts) - _MAX_REASONS
    if more > 0:
        texts[_MAX_REASONS:] = [f"{more} more reasons: show a column (--columns) to see its own"]
    return texts
