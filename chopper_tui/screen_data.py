"""The data of a screen: a view's frame, key figures and signals, and a row on every GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.analyses.lanes import classes_of
from chopper_core.analyses.signal_changes import second_signal, worth_a_chart, worth_a_column
from chopper_core.answers.opening import as_asked
from chopper_core.columns import METRICS
from chopper_core.model.charts import BarChart, Composition, Lanes, Series
from chopper_core.model.column_names import STEP_PART, is_part
from chopper_core.model.memo import LazyMap
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal
from chopper_core.model.table import STATE_TITLES
from chopper_core.model.units import Unit
from chopper_core.model.view import View, at_level, enter, with_view
from chopper_core.render.cells import scale_of
from chopper_core.render.glyphs import ASCII, Glyphs, SparkScale, evenly_sampled
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import ChopperError, NoSuchNode, UsageError
from chopper_core.views import OVERVIEW, view_spec
from chopper_core.views.frame import Frame
from chopper_core.views.shared.marks import far_out
from chopper_core.views.spec import SeveralRuns
from chopper_tui.draw.figures import Figure, figures_shown
from chopper_tui.draw.pieces import (
    CLASS_INKS,
    EXPOSED,
    HIDDEN,
    IDLE,
    Line,
    Pieces,
    signal_ink,
    time_ink,
)
from chopper_tui.draw.table import columns_within, repeated_by_columns
from chopper_tui.draw.timeline import lane_line, named_halves, named_inks, phases_line

_FULL: Final[Mapping[str, float]] = {Unit.PERCENT: 100.0, Unit.CELSIUS: 105.0}
_WIDTH: Final = 80
KEY_FIGURES: Final = {
    "elapsed_ns": "time",
    "busy_pct": "busy",
    "exposed_comm_ns": "exposed",
    "gfx_mhz": "",
    "gfx_util_pct": "util",
    "power_w": "",
    "idle_ns": "idle",
    "kernels": "kernels",
}
"""Metric → its label in the line, the most important first; the unit labels some."""
_IF_MEASURED: Final = ("gfx_mhz", "gfx_util_pct", "power_w")

Means = Callable[[Index, int], Float64]


class ScreenSignal(Struct, frozen=True):
    """A signal over time and its means over the time of a frame's rows."""

    signal: Signal
    means: Means


class RowLines(Struct, eq=False):
    """Lines next to the rows of a frame, drawn once for the rows that were shown."""

    glyphs: Glyphs
    bins: int
    drawn: dict[int, Pieces] = field(default_factory=dict)
    title: Pieces = ()
    """Empty until rows are drawn."""

    def legend(self, room: int) -> Line:
        return []

    def missing(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if row not in self.drawn]


class Sparks(RowLines, kw_only=True, eq=False):
    """Sparklines on one scale: that of the frame's rows, or of some of very many."""

    signal: ScreenSignal
    rows: int
    scale: SparkScale | None = None
    deviation: Float64 | None = None
    """How far above their peers the rows are whose means stand out; None if rows are too many."""

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes it from others of the same rows."""
        return id(self.signal.signal), self.signal.means, self.bins

    def draw(self, rows: Sequence[int]) -> None:
        wanted, signal = self.missing(rows), self.signal.signal
        if not wanted:
            return
        if self.scale is None:
            some = self.signal.means(evenly_sampled(self.rows), self.bins)
            self.scale = SparkScale.of(some)
            self.deviation = far_out(some) if self.rows == len(some) else None
            title = self.scale.title(signal)
            short = title.removesuffix(f" {signal.unit}")
            self.title = [(title if len(title) <= self.bins else short, "header")]
        for row, line in zip(
            wanted, self.signal.means(np.array(wanted, np.intp), self.bins), strict=True
        ):
            text = self.scale.line(line, signal.unit, self.glyphs)
            ink = signal_ink(
                signal.unit, 0.0 if self.deviation is None else float(self.deviation[row])
            )
            flat, _, value = text.rpartition(" ")
            # The value of a flat one is text to read, whatever its ink.
            is_flat = flat and value.replace(".", "").isdigit()
            self.drawn[row] = [(flat, ink), (f" {value}", "dim")] if is_flat else [(text, ink)]


class LaneLines(RowLines, kw_only=True, eq=False):
    """The lanes of the rows, with the phases above them as the title."""

    lanes: Lanes
    has_border: bool
    """Whether the names of the inks are in the table's border, not in the title."""
    used: Counter[str] = field(default_factory=Counter)
    """The cells of each ink."""

    def legend(self, room: int) -> Line:
        if not self.glyphs.in_colour:
            return [("  ", "text"), (named_halves(self.lanes, self.glyphs, room - 2), "dim")]
        return [("  ", "text"), *named_inks(self.lanes, self.used, self.glyphs, room - 2)]

    @property
    def key(self) -> tuple[object, ...]:
        return self.lanes.seen, self.lanes.lanes, self.bins

    def take_over(self, before: RowLines | None) -> None:
        """Take the lanes that were drawn of the same rows in another order."""
        if isinstance(before, LaneLines) and self._span == before._span:
            names = self.lanes.lanes
            if sorted(names) == sorted(before.lanes.lanes):
                drawn = {before.lanes.lanes[row]: line for row, line in before.drawn.items()}
                self.drawn = {row: drawn[name] for row, name in enumerate(names) if name in drawn}
                self.title, self.used = before.title, before.used

    @property
    def _span(self) -> tuple[object, ...]:
        return self.lanes.seen, self.bins, self.glyphs

    def draw(self, rows: Sequence[int]) -> None:
        for row in self.missing(rows):
            self.drawn[row] = lane_line(self.lanes, row, self.bins, self.glyphs)
        if not self.title and self.lanes.lanes:
            for text, ink in chain.from_iterable(self.drawn.values()):
                self.used.update({part: len(text) for part in ink.split("/")})
            named = {} if self.has_border else self.used
            self.title = phases_line(self.lanes, 0, self.bins, self.glyphs, named)


class ScreenData(Struct, frozen=True, dict=True):
    """A frame of a run, the key figures of its scope, and the signals of its charts and sparklines.

    Signals are looked at when a part of the screen has room for them: of a run without telemetry
    they are shares of time, which millions of activities take long to tell.
    """

    run: Run
    frame: Frame
    figures: Mapping[str, Figure] = {}
    bars: Mapping[str, BarChart] = {}
    """The charts that bars in the cells of a column repeat."""
    second: View | None = None
    """Another table of the scope that belongs next to this one."""
    states: tuple[Composition, ...] = ()
    """The five states of a node's time."""
    inks: Sequence[str] = ()
    """Of each row, by what takes most of its time; empty where rows have no class."""
    full: Mapping[str, float] = {}
    """Unit → the figure that fills a meter; 0: it is unknown."""

    @cached_property
    def signals(self) -> tuple[ScreenSignal, ScreenSignal]:
        """The signal of the view and the one next to it; the same for runs side by side, which have
        no time in common."""
        chosen = ScreenSignal(self.frame.signal, self.frame.means)
        if isinstance(self.run, SeveralRuns):
            return chosen, chosen
        if self.frame.signals:
            second = self.frame.signals[0]
        else:
            second = self.run.signal(second_signal(self.run, chosen.signal.name))
        return chosen, ScreenSignal(second, partial(self.frame.means, of=second))

    @cached_property
    def curves(self) -> int:
        """How many of the signals are worth a chart."""
        if isinstance(self.run, SeveralRuns):
            return 0
        return worth_a_chart(self.run, *(each.signal.name for each in self.signals))

    @cached_property
    def columns_of_signals(self) -> int:
        """How many of them are worth a column of sparklines."""
        return worth_a_column(self.run, *(each.signal.name for each in self.signals))

    @property
    def has_signals(self) -> bool:
        """Whether anything is known over time; runs side by side have no time in common."""
        is_known = len(self.frame.signal.curves) > 0
        return is_known or any(len(each.signal.curves) for each in self.signals)


def screen_data(
    run: Run, view: View, *, is_complete: bool = False, width: int = _WIDTH
) -> ScreenData:
    """The data of a view; raises ChopperError where there is nothing to show.

    The columns that a table of that width has room for are computed, in this thread.

    Unless it is to be complete, what takes long is left out, and the frame is pending.
    """
    from chopper_core.views.query import preview_frame, query

    frame = query(run, view) if is_complete else preview_frame(run, view)
    columns_within(frame, width, ASCII)
    view, bars = frame.view, repeated_by_columns(frame)
    plain = [each for each in bars.values() if len(each.series) == 1]
    kept = (chart for chart in frame.charts if not any(chart is each for each in plain))
    frame = replace(frame, charts=tuple(kept))
    if isinstance(run, SeveralRuns):
        return ScreenData(run, frame, bars=bars)
    inks = _inks_of_rows(run, frame)
    # Another view has a headline in their place.
    figures = {} if view.name else figures_shown(run, view, {**KEY_FIGURES, **STATE_TITLES})
    data = ScreenData(
        run,
        frame,
        figures,
        bars if inks else bars | _bars_of_states(frame),
        _second_of(run, view),
        states_of(view, figures),
        inks,
        _full(run),
    )
    if is_complete or view.name != OVERVIEW:
        # Here, in a thread: most screens have room for them.
        _ = data.curves, data.columns_of_signals
    return data


def _full(run: Run) -> Mapping[str, float]:
    """What is known of GPUs is read for a screen with room for meters of theirs."""

    def figure(unit: str) -> float:
        known = None if unit in _FULL else run.hardware
        if known is None:
            return _FULL.get(unit, 0.0)
        return (known.clock_mhz if unit == Unit.MHZ else known.tdp_w) or 0.0

    return LazyMap((*_FULL, Unit.MHZ, Unit.WATTS), figure)


def _second_of(run: Run, view: View) -> View | None:
    second = view_spec(view.name).second if view.name else ""
    if not second or (second == "comms" and not run.communicates):
        return None
    return replace(with_view(view, second), baseline=None)


def _bars_of_states(frame: Frame) -> dict[str, BarChart]:
    """The five states of the time of each row of the tree, in its share's cell."""
    if frame.view.name or not frame.values.keys() >= STATE_TITLES.keys():
        return {}
    known = ((title, frame.values[name].known(missing=0.0)) for name, title in STATE_TITLES.items())
    series = tuple(Series(title, numbers) for title, numbers in known)
    return {"share_pct": BarChart("five states of time", "ns", tuple(frame.labels), series)}


def states_of(view: View, figures: Mapping[str, Figure]) -> tuple[Composition, ...]:
    """The bar of a node's five states; a part leads to the rows that have most of it."""
    parts = [figures[name].number for name in STATE_TITLES if name in figures]
    known = [part for part in parts if part is not None]
    if len(known) < len(STATE_TITLES) or not any(known) or view.is_leaf:
        return ()
    scale = scale_of(METRICS["elapsed_ns"], sum(known))
    series = zip(STATE_TITLES.values(), np.array(known) / scale.divisor, strict=True)

    def opens(part: int) -> View:
        name = [*STATE_TITLES][part]
        return replace(view, columns=("elapsed_ns", "share_pct", name), sort=f"-{name}")

    states = tuple(Series(name, np.array([part])) for name, part in series)
    return (Composition("five states of time", scale.text, ("",), states, opens=opens),)


def _inks_of_rows(run: Run, frame: Frame) -> Sequence[str]:
    if frame.level == STEP_PART:
        # As in the bar of the step; what is idle would have the background's.
        parts = [time_ink(label) for label in frame.labels]
        return ["dim" if ink in ("", IDLE) else ink for ink in parts]
    # Time that the tree charges to communication is exposed.
    inks = (*CLASS_INKS, HIDDEN if frame.view.name else EXPOSED)
    return [inks[place] for place in classes_of(run, frame.level, frame.labels)]


def run_shown(home: Run, view: View) -> Run:
    """The open run of a view: the one that was opened, its baseline, or one of its set with its
    baseline.

    Opens runs of a set when they are first needed; raises the errors of reading, UsageError for
    any other run.
    """
    if view.run == home.name:
        return as_asked(home, view)
    if not isinstance(home, SeveralRuns):
        return as_asked(home.others.get(view.run, home), view)
    if view.run not in home.others:
        raise UsageError(f"{view.run} is none of the runs of {home.name}")
    run = home.others[view.run]
    base = view.base_run
    if base not in home.others:
        return as_asked(run, view)
    return home.memo(
        ("with baseline", view.run, base), lambda: replace(run, others={base: home.others[base]})
    )


def next_signal(run: Run, chosen: str) -> str:
    after = run.signal_names.index(chosen) + 1
    later = (*run.signal_names[after:], *run.signal_names)
    return next(name for name in later if not is_part(name))


def on_every_gpu(run: Run, view: View, label: str) -> View | None:
    """A row of a view split by the GPUs; None where the path doesn't begin with a GPU."""
    if view.name or not view.path or view.order[0] != "gpu" or len(run.gpus) < 2:
        return None
    target = view if view.is_leaf else enter(view, label)
    path = target.path[1 : len(view.order)]
    order = (*view.order[1 : len(path) + 1], "gpu", *view.order[len(path) + 1 :])
    known = ["gfx_mhz"] if "gfx_mhz" in run.measured else []
    return View(
        view.run, path, order, columns=("elapsed_ns", *known), signal=view.signal,
        overrides=view.overrides, cut=view.cut, is_total=view.is_total,
    )  # fmt: skip


def same_on_gpu(run: Run, view: View, step: int) -> tuple[View, str]:
    """The view on a neighbouring GPU, or its nearest ancestor there; and what to say of it."""
    if "gpu" not in dict(view.scope):
        raise UsageError("the scope has several GPUs; enter one first")
    gpus = [str(gpu.index) for gpu in run.gpus]
    position = gpus.index(dict(view.scope)["gpu"]) + step
    if not 0 <= position < len(gpus):
        raise UsageError(f"this is the {'last' if step > 0 else 'first'} GPU")
    there = at_level(view, "gpu", gpus[position])
    tree = run.tree(there.order)
    for depth in range(len(there.path), 0, -1):
        try:
            tree.node(there.path[:depth])
        except NoSuchNode:
            continue
        if depth == len(there.path):
            return there, ""
        nearest = replace(there, path=there.path[:depth], sort="", filter="")
        return nearest, f"GPU {gpus[position]} has no such {there.scope[depth][0]}; this is above"
    raise UsageError(f"GPU {gpus[position]} has nothing of this scope")


def siblings(run: Run, parent: View) -> Sequence[str]:
    from chopper_core.views.query import query

    try:
        # Columns take the time, and the order needs none but that of the sort.
        return query(run, replace(with_view(parent, ""), columns=("elapsed_ns",))).labels
    except ChopperError:
        return ()


def key_line(figures: Mapping[str, Figure], view: View, glyphs: Glyphs) -> list[tuple[str, str]]:
    """(title, figure) of a scope; without telemetry its figures are left out."""
    line = []
    for name, title in KEY_FIGURES.items():
        figure = figures[name]
        if name in _IF_MEASURED and figure.number is None:
            continue
        is_sum = name == "elapsed_ns" and view.is_total and "gpu" not in dict(view.scope)
        line.append(("GPU time" if is_sum else title, _figure_text(figure, glyphs)))
    return line


def _figure_text(figure: Figure, glyphs: Glyphs) -> str:
    if figure.metric.unit == "%" and figure.number is not None:
        # 99.8 must not read as 100.
        decimals = int(99.5 <= figure.number < 99.95)
        return f"{'~' if figure.held else ''}{figure.number:.{decimals}f}%"
    return figure.text(glyphs, short=True)
