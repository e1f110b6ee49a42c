"""The layout of a frame in a width: columns, their widths, and the text of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import Metric
from chopper_core.model.charts import BarChart, Chart
from chopper_core.model.column_names import EDGE, HOTSPOT, STEP_PART
from chopper_core.model.phrases import level_title
from chopper_core.model.signals import Signal
from chopper_core.render.cells import (
    BARS,
    SENTENCES,
    ColumnText,
    beginning,
    cell_width,
    column_texts,
    display_name,
    elide,
    fitting,
    longest_width,
    pad,
)
from chopper_core.render.glyphs import Glyphs, SparkScale
from chopper_core.render.names import fitting_names, row_names
from chopper_core.util.arrays import Float64, Int8, Mask
from chopper_core.util.escape import clean
from chopper_core.views.frame import Frame
from chopper_core.views.shared.marks import INKS, Tint, sign_of, tints
from chopper_tui.draw.bars import BarParts, is_beyond
from chopper_tui.draw.pieces import EXPOSED, HIDDEN, Line, Pieces, fit, series_inks

PREFIX: Final = 3
"""Cells for the mark, the cursor and a space."""
GAP: Final = 2
_IN_TIERS: Final = 14
"""Columns that a table shows unless others are chosen: six, and the next eight behind `>`."""
_WIDE: Final = 110
_BAR: Final = 6
_WIDE_BAR: Final = 12
_MAX_BAR: Final = 18
_MAX_PARTS: Final = 36
"""Cells of a bar of several parts, at most."""
_SPARK: Final = 12
_MAX_WORD: Final = 24
_MAX_OPERATION: Final = 14
_WIDE_SPARK: Final = 15
_METER: Final = 8
_HEATS: Final = (HOTSPOT, EDGE, "mean_hotspot_c", "mean_hot_c")
_FIRST: Final = (*_HEATS, "mean_power_w")
_METERED: Final = (
    *(*_FIRST, "power_w", "roof_pct", "model_roof_pct", "peak_pct", "gfx_mhz", "mean_gfx_mhz"),
)
"""Columns that have a meter where there is room; the first ones where they are the question."""
_LIMITS: Final = {"mean_power_w": "limit_w"}
"""Column → the one whose figures fill its meter."""
_MIN_LANE: Final = 24
_LANE_SHARE: Final = 38
"""Percentage of the width that lanes take at least."""
FIGURES: Final = 5
"""Columns of figures that the table of a place shows before it has bars and sparklines."""
_WITH_FIGURES: Final = 73
"""Cells from which it does: in fewer, three and a sparkline tell more."""
_MIN_COLUMNS: Final = 3
"""The same next to lanes, and in a table that isn't the main one."""
_PREFERRED: Final = ("gfx_mhz", "gfx_util_pct")
"""Columns that come after the first two of a level, before its others."""
_MIN_NAME: Final = 16
_TOLD_APART: Final = 24
"""Cells of a kernel's name."""
_SHORT_NAME: Final = 12
_SHORT_WORD: Final = 13
"""Cells of names and of words where `FIGURES` have no room otherwise."""
_NAME_SHARE: Final = {"operation": 25, "kernel": 20, "shape": 36, "question": 53, "finding": 75}
"""Percentage of the width that names may take before columns are dropped."""
_ENOUGH: Final = 9
"""Columns of kernels from which on their names have what they need before further columns."""
_MIN_OF_KERNELS: Final = 6, 12
"""Columns of kernels that are worth more than a bar, and than a sparkline."""
_KERNELS: Final = ("kernels", "lost", "roofline", "overview")
_NO_ROWS: Final = np.zeros(0, np.bool_)
_OF_KERNELS: Final = (*BARS, "kernel_ns", "elapsed_ns", "instance_ns")
_MAX_SHORTENED_TOGETHER: Final = 2000
"""With more rows, names are not shortened together, which takes long."""


class DrawnColumn(Struct, frozen=True):
    """A column as drawn."""

    text: ColumnText
    header: str
    width: int
    figures: int
    """Cells of its figures or words alone, without the heading."""
    bar: int
    """Cells of a bar after the figure; 0: none."""
    longest: float
    """The figure of the longest bar."""
    tints: Int8
    names_kernels: bool = False
    """Whether its words are kernels, which have short names."""
    parts: BarParts | None = None
    """Of the bar of each row; None: bars have one part."""
    fulls: Float64 | None = None
    """Of each row the figure that fills its meter; None: the column has bars."""
    ink: str = ""
    """Of its bars; empty: that of what each row is."""
    above: str = ""
    """The first line of a heading of two lines; `header` is the second one."""

    @property
    def name(self) -> str:
        return self.text.metric.name

    @property
    def cells(self) -> int:
        return self.width + (self.bar + 1 if self.bar else 0)

    def mark(self, tint: int, glyphs: Glyphs) -> str:
        """The mark before a figure far from its peers; a difference has its sign."""
        if self.text.metric.signed:
            return ""
        return sign_of(Tint(tint), glyphs.up, glyphs.down, glyphs.best)

    def picture(self, row: int, number: float | None, glyphs: Glyphs, ink: str) -> Line:
        """The bar or the meter of a row, as wide as the column has room for one."""
        if self.parts is not None:
            return self.parts.line(row, self.bar, glyphs)
        share = min(abs(number or 0) / self.longest, 1.0)
        if self.fulls is None:
            full = min(max(round(share * self.bar), int(4 * share * self.bar >= 1)), self.bar)
            cells = glyphs.row_bar * full
            if is_beyond(number or 0, self.longest):
                # Others set the scale.
                cells = cells[:-1] + glyphs.crumb
            return [(cells, ink), (" " * (self.bar - full), "text")]
        if number is None or not self.fulls[row] > 0:
            return [(" " * self.bar, "text")]
        filled, empty = list(glyphs.meter)
        full = min(round(number / self.fulls[row] * self.bar), self.bar)
        rest = (filled if glyphs.has_halves else empty) * (self.bar - full)
        tint = INKS[0][self.tints[row]]
        return [(filled * full, "good" if tint == "text" else tint), (rest, "shade")]


class SparkColumn(Struct, frozen=True):
    """A column of sparklines; its header says what they show and on which scale."""

    header: str
    cells: int


class LaneColumn(SparkColumn, frozen=True):
    """The column of lanes on one time axis; its cells are drawn with their own inks."""


class TableLayout(Struct, frozen=True):
    """The columns of a frame that fit into a width."""

    frame: Frame
    glyphs: Glyphs
    full_names: bool
    name_width: int
    columns: tuple[DrawnColumn, ...]
    sparks: tuple[SparkColumn, ...]
    names: Sequence[str] | None = None
    """The names of all rows, where they are few enough to fold what they share."""
    short: Sequence[str] | None = None
    before: int = 0
    after: bool = False
    """Whether there are further columns."""
    inks: Sequence[str] = ()
    """Of the bar of each row; empty: what the rows are has no ink of its own."""

    @property
    def heading_lines(self) -> int:
        """Two where the headings would leave no room for the figures in one."""
        return 1 + any(column.above for column in self.columns)

    @property
    def used(self) -> int:
        """The cells of its columns."""
        return PREFIX + self.name_width + _cells(self.columns, self.sparks)

    def column_at(self, x: int) -> Metric | None:
        """The column whose heading is at a cell of the header; None for none."""
        begin = PREFIX + self.name_width
        for column in self.columns:
            end = begin + GAP + column.cells
            if begin + GAP <= x < end:
                return column.text.metric
            begin = end
        return None

    def legend(self, width: int) -> Line:
        """The names of the parts of bars, as many as fit next to the title of a table."""
        parts = next((each.parts for each in self.columns if each.parts is not None), None)
        return [] if parts is None else parts.legend(self.glyphs, width)

    def name(self, row: int) -> str:
        if self.names is not None:
            return self.names[row]
        label, partner = self.frame.labels[row], self.frame.partner(row)
        name = shown_name(label, self.frame.level, self.full_names)
        if not partner:
            return name
        before = shown_name(partner, self.frame.level, self.full_names)
        return f"{before} {self.glyphs.arrow} {name}"

    def _fitted(self, row: int) -> str:
        width, glyphs, name = self.name_width, self.glyphs, self.name(row)
        if self.frame.level in SENTENCES:
            return pad(beginning(name, width, glyphs), width)
        return fit(self.short[row] if self.short else name, width, glyphs)

    def upper_header(self) -> Pieces:
        """The first line of headings of two lines, each over the rest of its own."""
        pieces: Line = [(" " * (PREFIX + self.name_width), "header")]
        for column in self.columns:
            is_sort = column.name == self.frame.sort.removeprefix("-")
            ink = "chosen@reverse" if is_sort else f"header@sort -{column.name}"
            above = column.text.aligned(column.above, column.width).ljust(column.cells)
            pieces += [(" " * GAP, "header"), (above, ink)]
        rest = _cells((), self.sparks)
        return [*pieces, (" " * rest, "header")] if rest else pieces

    def header(self, titles: Sequence[Pieces] = ()) -> Pieces:
        """The titles; a click on one sorts by it, on that of the sort column reverses the order.

        `titles` are those of sparklines or lanes, where they are known better than before drawing.
        """
        frame, glyphs, sort = self.frame, self.glyphs, self.frame.sort.removeprefix("-")
        title = level_title(frame.level) + (glyphs.order(frame.sort) if sort == "name" else "")
        if len(f"{title}, {frame.base}") <= self.name_width:
            title += f", {frame.base}" if frame.base else ""
        pieces = [
            ((" <"[bool(self.before)] + " >"[self.after]).ljust(PREFIX), "header"),
            (
                fit(title, self.name_width, glyphs),
                "chosen@reverse" if sort == "name" else "header@sort name",
            ),
        ]
        for column in self.columns:
            pieces.append((" " * GAP, "header"))
            header = column.text.aligned(column.header, column.cells)
            if column.bar:
                # Above its figures, which are before the bar.
                header = column.header.rjust(column.width).ljust(column.cells)
            ink = "chosen@reverse" if column.name == sort else f"header@sort -{column.name}"
            pieces.append((header, ink))
        for number, spark in enumerate(self.sparks):
            known = titles[number] if number < len(titles) else ()
            pieces.append((" " * GAP, "header"))
            if isinstance(spark, LaneColumn):
                pieces += known or [(" " * spark.cells, "header")]
            else:
                text = "".join(each for each, _ in known) or spark.header
                pieces.append((fit(text, spark.cells, glyphs), "header"))
        return pieces

    def row(self, row: int, drawn: Sequence[Pieces], cursor: bool, marked: bool = False) -> Pieces:
        frame, glyphs = self.frame, self.glyphs
        style = "dim" if frame.left_out and frame.is_cut(row) else "text"
        pieces: Line = [(glyphs.mark if marked else " ", "strong" if marked else "text")]
        pieces += [((glyphs.cursor if cursor else " ") + " ", "text"), (self._fitted(row), style)]
        pictures: set[int] = set()
        for column in self.columns:
            values = frame.values[column.name]
            number, cell = values.at(row), column.text.cell(values, row, glyphs)
            if column.names_kernels:
                cell = display_name(cell, "kernel")
            tint = int(column.tints[row])
            room, figure = column.text.split(elide(cell, column.width, glyphs), column.width)
            mark = column.mark(tint, glyphs)
            pieces.append((" " * (GAP - len(mark)) + room, style))
            ink = INKS[column.text.metric.signed][tint]
            pieces.append((mark + figure, style if ink == "text" else ink))
            if column.bar:
                pieces.append((" ", "text"))
                drawing = column.picture(
                    row, number, glyphs, column.ink or (self.inks[row] if self.inks else "accent")
                )
                pictures.update(range(len(pieces), len(pieces) + len(drawing)))
                pieces += drawing
        lanes: Line = []
        for spark, line in zip(self.sparks, drawn, strict=True):
            if isinstance(spark, LaneColumn):
                lanes += [(" " * GAP, "text"), *line]
                continue
            pieces.append((" " * GAP, "text"))
            pictures.update(range(len(pieces), len(pieces) + len(line)))
            pieces += [*line, (" " * (spark.cells - sum(len(text) for text, _ in line)), "text")]
        if cursor:
            # A move sends no picture again: each stays as it is.
            pieces = [
                (text, ink if at in pictures and text.strip() else "cursor")
                for at, (text, ink) in enumerate(pieces)
            ]
        return [*pieces, *lanes]


def shown_name(label: str, level: str, full: bool) -> str:
    """A label as the table shows it; only kernels have a full name and a short one."""
    return clean(label) if full and level == "kernel" else display_name(label, level)


def plan(
    frame: Frame,
    width: int,
    glyphs: Glyphs,
    full_names: bool = False,
    signals: Sequence[Signal] = (),
    lanes: bool = False,
    first: int = 0,
    added: str = "",
    bars: Mapping[str, BarChart] | None = None,
    inks: Sequence[str] = (),
    full: Mapping[str, float] | None = None,
    is_place: bool = False,
    headings: Mapping[str, ColumnText] = {},
) -> TableLayout:
    """The layout of a frame; columns that don't fit are left out, least important first.

    With `lanes` the rest of the width is a column of lanes. The columns begin with number `first`;
    of these the one that the rows are sorted by and one just `added` are always there, and those
    that were chosen before sparklines and the bar of shares. The table of a place has `FIGURES`
    where the frame does: first bars and sparklines give way, then headings take two lines, then
    names are cut in their middle.
    """
    wide = width >= _WIDE
    cells = _WIDE_BAR if wide and frame.view.name not in _KERNELS else _BAR
    # Parts of a step are of one scale; in kernels, communication is mostly waiting.
    is_kernel = frame.level != STEP_PART
    is_comm = np.array([is_kernel and ink in (HIDDEN, EXPOSED) for ink in inks], np.bool_)
    columns = columns_within(
        frame, width, glyphs, first, added, bars or {}, cells, is_comm, headings
    )
    must = {frame.sort.removeprefix("-"), added} & {each.name for each in columns}
    names = None
    if len(frame) <= _MAX_SHORTENED_TOGETHER and not (full_names and frame.level == "kernel"):
        names = row_names(frame, glyphs)
    longest = _longest_name(frame, names, full_names, width)
    share = width // 2 if full_names else width * _NAME_SHARE.get(frame.level, 20) // 100
    sparks: Sequence[SparkColumn] = ()
    if frame.sparks and len(frame):
        sparks = [_spark_column(each, wide) for each in signals]
    # Names of kernels are worth more than what is beyond so many columns.
    if frame.level == "kernel":
        share = max(share, width - PREFIX - _cells(columns[:_ENOUGH], ()) - 1)
    room = width - PREFIX - min(longest, max(_MIN_NAME, share)) - 1
    if frame.view.name and not lanes and any(each.name in _HEATS for each in columns):
        # Where figures of the GPU are the question, their meters are worth more.
        columns = [_metered(frame, each, full) if each.name in _FIRST else each for each in columns]
        sparks = ()
    if lanes:
        sparks = [LaneColumn("", max(_MIN_LANE, width * _LANE_SHARE // 100))]
    is_whole = is_place and not lanes and width >= _WITH_FIGURES
    least = FIGURES if is_whole else _MIN_COLUMNS
    shown, sparks = _chosen(frame, columns, sparks, room, must, signals[:1], least)
    # Kernels are told apart by names, which one line of headings would cut; in the tree the bars
    # and sparklines that give way for two lines are worth more.
    left = width - PREFIX - _cells(shown, sparks) - 1
    is_of_kernels = frame.level == "kernel" and frame.view.name
    is_named = not is_of_kernels or left >= min(longest, _TOLD_APART)
    if is_whole and (len(shown) < min(least, len(columns)) or not is_named):
        most = width - PREFIX - min(longest, _SHORT_NAME) - 1
        shown, sparks = _in_two_lines(frame, columns, room, most, must, least), ()
    name_width = max(min(longest, width - PREFIX - _cells(shown, sparks) - 1), 1)
    if lanes and sparks:
        used = PREFIX + name_width + _cells(shown, [])
        sparks = [LaneColumn("", max(width - used - GAP - 1, 1))]
    spare = width - PREFIX - name_width - _cells(shown, sparks)
    if not lanes:
        shown, spare = _with_meters(frame, shown, spare, full)
    shown = [_with_longer_bar(each, spare) for each in shown]
    short = fitting_names(names, name_width, glyphs) if names is not None else None
    return TableLayout(
        frame,
        glyphs,
        full_names,
        name_width,
        tuple(shown),
        tuple(sparks),
        names,
        short,
        first,
        len(shown) < len(columns),
        inks,
    )


def columns_within(
    frame: Frame,
    width: int,
    glyphs: Glyphs,
    first: int = 0,
    added: str = "",
    bars: Mapping[str, BarChart] = {},
    bar_cells: int = _BAR,
    is_comm: Mask = _NO_ROWS,
    headings: Mapping[str, ColumnText] = {},
) -> list[DrawnColumn]:
    """The columns that may have room in a width: others take time to compute.

    `headings` has those of columns that keep the unit that they had.
    """
    found: list[DrawnColumn] = []
    used = 0
    chosen = {frame.sort.removeprefix("-"), added}
    named = {*chosen, *(_HEATS if frame.view.name else _PREFERRED)}
    texts = column_texts(frame, lambda column: used <= width or column.name in named)
    for place, text in enumerate(headings.get(each.metric.name, each) for each in texts):
        is_beyond = place >= _IN_TIERS and not frame.view.columns and text.metric.name not in named
        is_before = place < first and text.metric.name not in chosen
        if is_before or is_beyond:
            continue
        found.append(_column(frame, text, glyphs, bars, bar_cells, is_comm))
        used += GAP + _plain(found[-1]).cells
    return found


def _chosen(
    frame: Frame,
    columns: Sequence[DrawnColumn],
    sparks: Sequence[SparkColumn],
    room: int,
    must: Set[str],
    signals: Sequence[Signal],
    least: int,
) -> tuple[list[DrawnColumn], Sequence[SparkColumn]]:
    """The columns and the sparklines or lanes that have room; sparklines are worth more than bars.

    Of the first of the signals the figures are seen at least.
    """
    lanes = any(isinstance(each, LaneColumn) for each in sparks)
    wanted = {each.name for each in columns} if frame.view.columns else must
    plain = [_plain(each) for each in columns]

    def is_few(shown: Sequence[DrawnColumn]) -> bool:
        of_kernels = _MIN_OF_KERNELS[bool(sparks)]
        wanted = of_kernels if frame.view.name in _KERNELS and not lanes else least
        return len(shown) < min(wanted, len(columns))

    def is_short(shown: Sequence[DrawnColumn]) -> bool:
        return is_few(shown) or not wanted <= {each.name for each in shown}

    forms = [columns] if lanes else [columns, plain]
    tries = [(form, sparks[:count]) for count in range(len(sparks), 0, -1) for form in forms]
    for tried, sparks in (*tries, (columns, [])):
        shown = _fitting(frame, tried, room - _cells((), sparks))
        if not (is_few if lanes else is_short)(shown):
            break
    signal = signals[0].name if signals and not sparks else ""
    if signal not in {"", *(each.name for each in shown)}:
        fewer = _fitting(frame, plain, room)
        shown = fewer if signal in {each.name for each in fewer} else shown
    if is_short(shown):
        shown = _fitting(frame, plain, room - _cells((), sparks), must)
    return shown, sparks


def _in_two_lines(
    frame: Frame,
    columns: Sequence[DrawnColumn],
    room: int,
    most: int,
    must: Set[str],
    least: int,
) -> list[DrawnColumn]:
    """The columns under headings of two lines: as many as fit, or the `least` that are wanted in
    `most` cells, with words cut if need be.
    """
    wanted = min(least, len(columns))
    stacked = [_stacked(column) for column in columns]
    short = [_stacked(column, _SHORT_WORD) for column in columns]
    shown = _fitting(frame, stacked, room, must)
    for form in (stacked, short):
        if len(shown) < wanted:
            shown = _fitting(frame, form, most, must, wanted)
    return shown


def _stacked(column: DrawnColumn, most: int = _MAX_WORD) -> DrawnColumn:
    """A column without its bar, its heading broken where the two lines are shortest."""
    plain = _plain(column)
    words = plain.header.split(" ")
    ways = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(len(words))]
    above, header = min(ways, key=lambda way: max(map(cell_width, way)))
    figures = min(plain.figures, most) if column.text.is_word else plain.figures
    width = max(figures, cell_width(above), cell_width(header))
    return replace(plain, above=above, header=header, width=width)


def repeated_by_columns(frame: Frame) -> dict[str, BarChart]:
    """The charts that show no more than bars in the cells of a column would, by its name."""
    found: dict[str, BarChart] = {}
    for chart in frame.charts:
        if name := _repeated_column(frame, chart):
            found.setdefault(name, chart)  # type: ignore[arg-type]
    return found


def _repeated_column(frame: Frame, chart: Chart) -> str:
    """The column whose figures a chart's bars repeat, in whatever unit; empty if none does."""
    if not isinstance(chart, BarChart) or not chart.series or not chart.labels:
        return ""
    several, wanted = len(chart.series) > 1, set(chart.labels)
    places = {label: row for row, label in enumerate(frame.labels) if label in wanted}
    rows = [places[label] for label in chart.labels if label in places]
    if len(rows) < len(chart.labels) or (several and len(rows) < len(set(frame.labels))):
        return ""
    drawn = np.nansum([each.numbers for each in chart.series], axis=0)
    longest = int(np.abs(drawn).argmax())
    for column in frame.columns:
        values = frame.values[column.name]
        own = values.known()[rows] if values.words is None else np.zeros(0)
        own = np.nan_to_num(own) if several else own
        if own.any() and np.allclose(own * drawn[longest], drawn * own[longest], equal_nan=True):
            return column.name
    return ""


def _metered(frame: Frame, column: DrawnColumn, full: Mapping[str, float] | None) -> DrawnColumn:
    """A column with a meter, if it is known what fills that."""
    most = (full or {}).get(column.text.metric.unit)
    limits = frame.values.get(_LIMITS.get(column.name, ""))
    if not most:
        return column
    fulls = np.full(len(frame), most) if limits is None else limits.known()
    width = max(column.width - _METER - 1, cell_width(column.text.scale.cell(most)) + 1)
    return replace(column, bar=_METER, fulls=fulls, width=width)


def _with_meters(
    frame: Frame, columns: Sequence[DrawnColumn], spare: int, full: Mapping[str, float] | None
) -> tuple[list[DrawnColumn], int]:
    """The columns with meters in so many spare cells, and the cells that are left."""
    shown = list(columns)
    for at in sorted(range(len(shown)), key=lambda at: shown[at].name not in _FIRST):
        if shown[at].name in _METERED and spare > _METER and not shown[at].bar:
            shown[at] = _metered(frame, shown[at], full)
            spare -= _METER + 1 if shown[at].bar else 0
    return shown, spare


def _with_longer_bar(column: DrawnColumn, spare: int) -> DrawnColumn:
    if not column.bar or column.fulls is not None:
        return column
    most = _MAX_PARTS if column.parts is not None else _MAX_BAR
    return replace(column, bar=min(column.bar + max(spare, 0), most))


def _plain(column: DrawnColumn) -> DrawnColumn:
    """A column without its bar; the heading of a share is then as short as its figures."""
    header = column.header.replace("% of parent", "%")
    wide = max(column.width, cell_width(header))
    return replace(column, header=header, bar=0, width=wide, parts=None)


def _cells(columns: Sequence[DrawnColumn], sparks: Sequence[SparkColumn]) -> int:
    widths = [*(column.cells for column in columns), *(spark.cells for spark in sparks)]
    return sum(GAP + width for width in widths)


def _fitting(
    frame: Frame,
    columns: Sequence[DrawnColumn],
    room: int,
    must: Set[str] = frozenset(),
    most: int | None = None,
) -> list[DrawnColumn]:
    """The columns that fit, at most so many, in their order; those that must be there, then from
    the first on.
    """
    ranked = list(columns)
    if not frame.view.columns and not frame.view.name:
        head = len(columns[:2])
        ranked[head:] = sorted(columns[head:], key=lambda column: column.name not in _PREFERRED)
    ranked.sort(key=lambda column: column.name not in must)
    count = fitting([column.cells for column in ranked[:most]], room, GAP)
    taken = {column.name for column in ranked[:count]}
    return [column for column in columns if column.name in taken]


def _spark_column(signal: Signal, wide: bool) -> SparkColumn:
    header, longest = (
        scale.title(signal) if wide else scale.title(signal).removesuffix(f" {signal.unit}")
        for scale in (SparkScale(signal.low, signal.high), SparkScale(-signal.high, signal.high))
    )
    return SparkColumn(header, max(len(longest) - 1, _WIDE_SPARK if wide else _SPARK))


def _column(
    frame: Frame,
    text: ColumnText,
    glyphs: Glyphs,
    bars: Mapping[str, BarChart],
    bar_cells: int,
    is_comm: Mask,
) -> DrawnColumn:
    header = text.header
    if frame.sort.removeprefix("-") == text.metric.name:
        header += glyphs.order(frame.sort)
    if frame.values[text.metric.name].words is not None:
        return _column_of_words(frame, text, header)
    return _column_of_figures(frame, text, header, bars, bar_cells, is_comm)


def _column_of_words(frame: Frame, text: ColumnText, header: str) -> DrawnColumn:
    name, values = text.metric.name, frame.values[text.metric.name]
    kernels = frame.view.by == "kernel" or name == "at_kernel"
    codes = set(values.numbers[values.present()].tolist())
    words = [clean((values.words or ())[int(code)]) for code in codes]
    widths = [cell_width(display_name(word, "kernel") if kernels else word) for word in words]
    most = _MAX_OPERATION if name == "main_operation" else _MAX_WORD
    figures = min(max(widths, default=1), most)
    width = max(cell_width(header), figures)
    return DrawnColumn(text, header, width, figures, 0, 1.0, tints(frame, text.metric), kernels)


def _column_of_figures(
    frame: Frame,
    text: ColumnText,
    header: str,
    bars: Mapping[str, BarChart],
    bar_cells: int,
    is_comm: Mask,
) -> DrawnColumn:
    name, values = text.metric.name, frame.values[text.metric.name]
    present = values.numbers[values.present()]
    extremes = [present.min().item(), present.max().item()] if len(present) else []
    extremes += [near[np.abs(near).argmin()].item()] if len(near := present[present != 0]) else []
    marks = (values.extrapolated, values.partial, values.bound)
    mark = "~" if any(each is not None and each.any() for each in marks) else ""
    cells = [mark + text.scale.cell(number) for number in (*extremes, frame.total[name])]
    figures = longest_width(cells)
    chart = bars.get(name)
    parts = BarParts.of(chart, frame.labels) if chart and len(chart.series) > 1 else None
    bar_width = _WIDE_BAR if parts is not None else bar_cells
    if not (name in bars or (name in BARS and not bars)):
        bar_width = 0
    # The title of a column with bars is over these, too.
    width = figures if bar_width else max(figures, cell_width(header))
    if bar_width:
        bar_width = max(bar_width, cell_width(header) - width - 1)
    # Bars of time in kernels have the classes' inks, others that of their kind.
    ink = series_inks([chart.series[0].name])[0] if chart and name not in _OF_KERNELS else ""
    longest = max(map(abs, extremes), default=0) or 1.0
    if name in BARS and frame.level in ("gpu", "iteration"):
        longest = 100.0
    elif bar_width and is_comm.any() and not is_comm.all():
        # The time of communication is mostly waiting: it doesn't set the scale.
        longest = float(np.nanmax(np.abs(values.known()[~is_comm]), initial=0.0)) or 1.0
    drawn = tints(frame, text.metric)
    return DrawnColumn(
        text, header, width, figures, bar_width, longest, drawn, parts=parts, ink=ink
    )


def _longest_name(frame: Frame, names: Sequence[str] | None, full_names: bool, width: int) -> int:
    """The cells of the longest name; of what is longer than a line, `width` or more."""
    if names is None:
        names = frame.labels
        if len(names) <= _MAX_SHORTENED_TOGETHER:
            names = [shown_name(name, frame.level, full_names) for name in names]
    title = len(level_title(frame.level)) + 1
    return max(title, longest_width([name[:width] for name in names]))
