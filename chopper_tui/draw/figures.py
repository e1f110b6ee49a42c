"""Figures of a node with all that a person needs to trust them: unit, `~` where held, why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import Metric, Reduces, Theme, Values, metric_named, registered
from chopper_core.columns.counters import lacking as lacking_counters
from chopper_core.columns.lookup import reasons
from chopper_core.model.attributes import attribute_text, attributes_at
from chopper_core.model.charts import Lanes
from chopper_core.model.column_names import is_counted
from chopper_core.model.run import Run
from chopper_core.model.table import STATES
from chopper_core.model.view import View, enter
from chopper_core.render.cells import scale_of
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.escape import clean
from chopper_core.views import OVERVIEW, TABS
from chopper_core.views.frame import Frame, Number
from chopper_core.views.shared.row_columns import node_figures

_REST: Final = "more of the trace"


def _of(theme: Theme) -> tuple[str, ...]:
    return tuple(metric.name for metric in registered() if metric.theme == theme)


_KINDS: Final = {
    "time": ("elapsed_ns", "share_pct", "kernels", "busy_pct", *STATES, "hidden_ns", "kernel_ns"),
    Theme.TELEMETRY.value: _of(Theme.TELEMETRY),
    Theme.BREAKDOWN.value: _of(Theme.BREAKDOWN),
    Theme.COUNTERS.value: _of(Theme.COUNTERS),
    _REST: (),
}
"""The groups of a detail, the most telling first; what none names is in the last."""
_STEADY: Final = (Theme.BREAKDOWN, Theme.COUNTERS)
"""Groups of figures that keep their places from row to row: some GPUs only have counters."""

_COUNTED: Final = (Reduces.SUM, Reduces.MIN, Reduces.MAX, Reduces.COMMON, Reduces.DISTINCT)
"""How figures that are counts reduce: an integer among them is written as one."""


class Figure(Struct, frozen=True):
    """One figure of a node."""

    metric: Metric
    number: Number | None
    held: bool = False
    """Whether it is that of the nearest sample, none lying within the node."""
    word: str = ""
    partial: bool = False
    """Whether it covers only some of the node's GPUs."""

    @property
    def is_nothing(self) -> bool:
        """Whether it is an amount of zero; stream 0 and launch 0 are not amounts."""
        return not self.word and self.number == 0 and self.metric.reduces != Reduces.COMMON

    @property
    def _is_whole(self) -> bool:
        if not isinstance(self.number, float):
            return True
        return self.metric.reduces in _COUNTED and self.number.is_integer()

    def text(self, glyphs: Glyphs, *, short: bool = False, beside_title: bool = False) -> str:
        """The figure with its unit, in the scale that suits it alone; short: with few digits.

        Next to its title it has no unit where the title ends with it.
        """
        if self.word:
            return clean(self.word)
        if self.number is None:
            return glyphs.missing
        scale = scale_of(self.metric, abs(self.number), self._is_whole)
        if short:
            scale = scale.readable(self.number)
        text = f"{'*' if self.partial else '~' if self.held else ''}{scale.cell(self.number)}"
        if not scale.text or (beside_title and self.metric.title.endswith(scale.text)):
            return text
        return f"{text}{'' if scale.text == '%' else ' '}{scale.text}"


def figures_shown(run: Run, view: View, names: Iterable[str]) -> dict[str, Figure]:
    known = node_figures(run, view, names)
    return {
        name: _figure(metric_named(name, run.table), values, 0) for name, values in known.items()
    }


def _figure(metric: Metric, values: Values, row: int) -> Figure:
    cell = values.cell(row)
    word = cell if isinstance(cell, str) else ""
    return Figure(metric, values.at(row), values.is_extrapolated(row), word, values.is_partial(row))


def _pointed(frame: Frame, label: str) -> str | None:
    for picture in frame.charts[:1]:
        if isinstance(picture, Lanes):
            return picture.pointed[picture.lanes.index(label)].kernel
    return None


class Detail(Struct, frozen=True):
    """All that is known of a row, and what isn't."""

    label: str
    level: str
    address: str
    groups: Mapping[str, tuple[Figure, ...]]
    """Title → figures, those of the frame first; no group is empty."""
    zeros: tuple[Metric, ...]
    missing: tuple[Metric, ...]
    """Those that no group has."""
    reasons: Mapping[str, Sequence[Metric]]
    lacking: Mapping[tuple[str, ...], Sequence[Metric]]
    """Counters that the run has not → what they would give."""
    attributes: Mapping[str, str]


def _shown(run: Run, frame: Frame, row: int) -> tuple[str, str, dict[str, Figure]]:
    """Name, level and figures of a row, or of the activity that its picture points at."""
    label, pointed = frame.labels[row], _pointed(frame, frame.labels[row])
    own = {column.name: _figure(column, frame.values[column.name], row) for column in frame.columns}
    shown = own if pointed is None else {}
    # A share is one of the frame's parent; of the row itself it would always be 100 %.
    known = (each.name for each in registered())
    others = [name for name in known if name not in shown and name != "share_pct"]
    if pointed is not None:
        return pointed, "kernel", figures_shown(run, frame.target(row), others)
    if frame.view.name in ("", OVERVIEW):
        view = frame.view if frame.view.is_leaf else enter(frame.view, label)
        view = replace(frame.target(row), name="") if frame.view.name else view
        with suppress(NoSuchNode):  # a row that only the baseline has
            shown |= figures_shown(run, view, others)
    return label, frame.level, shown


def _title(name: str) -> str:
    """The name of a view as the header has it."""
    return TABS[name].name if name in TABS else name


def detail(run: Run, frame: Frame, row: int) -> Detail:
    label, level, shown = _shown(run, frame, row)
    is_pointed = level != frame.level
    measured = run.table.measured
    needed = {
        name: lacking_counters(figure.metric, measured)
        for name, figure in shown.items()
        if any(map(is_counted, measured))
    }
    groups: dict[str, list[Figure]] = {title: [] for title in _KINDS}
    left_out: list[Figure] = []
    lacking: dict[tuple[str, ...], list[Metric]] = {}
    others_missing: list[Metric] = []
    for name, figure in shown.items():
        counters = needed.get(name)
        if figure.number is None and counters:
            lacking.setdefault(counters, []).append(figure.metric)
        elif figure.number is None:
            others_missing.append(figure.metric)
        has_place = figure.metric.theme in _STEADY and counters == ()
        # Without times no row has any of them.
        has_place = has_place and (run.table.has_times or not figure.metric.needs_times)
        if not has_place and (figure.number is None or figure.is_nothing):
            left_out.append(figure)
        else:
            own = "" if is_pointed or not frame.view.name else _title(frame.view.name)
            title = next((title for title, names in _KINDS.items() if name in names), own or _REST)
            groups.setdefault(title, []).append(figure)
    return Detail(
        label,
        level,
        frame.addresses(row),
        {title: tuple(own) for title, own in groups.items() if own},
        tuple(figure.metric for figure in left_out if figure.is_nothing),
        tuple(figure.metric for figure in left_out if figure.number is None),
        reasons(others_missing, run.table, run.hardware),
        lacking,
        {
            name: attribute_text(value)
            for name, value in attributes_at(run, frame.target(row)).items()
        },
    )
