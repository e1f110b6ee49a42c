"""The timeline drawn as characters in named styles: axis, bands, lanes and strips of signals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import Band, LaneCells, Lanes, Span, Strip
from chopper_core.model.units import time_text
from chopper_core.model.window import Interval
from chopper_core.render.cells import cell_width, clean, display_name, elide, pad
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Int64, Mask
from chopper_core.views.timeline.hosts import QUEUE
from chopper_tui.draw.drawer import MAX_ZOOM, Canvas, Drawer, Lens
from chopper_tui.draw.pieces import TONES, Line, cut, hue_of, toned, width_of

KIND_INKS: Final = ("accent", "second", "third")
CLASS_INKS: Final = ("accent", "seventh", "fifth", "eighth", "tenth", "ninth")
"""Of the classes of compute."""
_FILLS: Final = {
    "unicode": ("▁▂▃▄▅▆▇█", "░▒▓", "⠄⠤⠶⠿"),
    "ascii": (".=#", "xX", "oO"),
}
"""Levels of compute, communication and copies: the busier a cell, the fuller."""
_BOTH: Final = {"unicode": "▚", "ascii": "%"}
"""For cells in which kinds run at once for most of the busy time."""
_BOTH_INK: Final = "fourth"
_LEVELS: Final = {"unicode": "▁▂▃▄▅▆▇█", "ascii": "_.-=+*%#"}
_MIN_LABEL: Final = 9
_MAX_LABEL: Final = 16
_HEAD: Final = 3
"""Lines of the legend and the axis."""
_BANDS_BY_IMPORTANCE: Final[tuple[str, ...]] = ("phase", "layer", "operation", "scope", "iteration")
"""Bands in order of importance, for heights with room for some."""
_SHORT: Final = {"iteration": "it", "operation": "op"}
"""Short titles of bands, beside the number of a GPU."""
_MAX_STRIP_LINES: Final = 6
_TICK_STEPS: Final = (1, 2, 5)
_GAP: Final = 3
_MIN_WITH_GHOST: Final = 5
"""Lines of lanes, bands and strips from which a baseline's lane has room."""
_MIN_WITH_HOST: Final = 6
"""The same for the lane of the host."""
_MIN_WITH_THREE_STRIPS: Final = 16
_HOST_INKS: Final = {KIND_INKS[0]: "shade", KIND_INKS[1]: "strong"}
"""Operators are quieter than the calls that keep the host."""
_MIN_NAMED_WIDTH: Final = 9
"""Width from which an activity shows its name."""


class Marks(Struct, frozen=True):
    """The characters of axis, cursor and mark."""

    line: str
    tick: str
    cursor: str
    mark: str
    between: str
    upright: str
    dense: str
    edge: str
    begin: str
    at_mark: str


_MARKS: Final = {
    "unicode": Marks("─", "┬", "▼", "◆", "═", "│", "┄", "▏", "▐", "┊"),
    "ascii": Marks("-", "+", "v", "M", "=", "|", "~", "|", "|", ":"),
}


class LanesDrawer(Drawer[Lanes]):
    """Lanes with their bands and strips; the row of the table's cursor is in full."""

    follows_cursor = True
    is_alone = True

    def lines(self, chart: Lanes, width: int, glyphs: Glyphs) -> int:
        """All lanes, bands and strips."""
        signals = chart.signals * _MAX_STRIP_LINES or 1
        lanes = len(chart.lanes) * (1 + (chart.ghosts is not None)) + (chart.hosts is not None)
        return _HEAD + lanes + len(_BANDS_BY_IMPORTANCE) + signals

    def draw(self, chart: Lanes, on: Canvas) -> list[Line]:
        """As much as fits, the lane of the cursor's row among it."""
        return draw_lanes(chart, on.width, on.height, on.glyphs, on.row)

    def max_zoom(self, chart: Lanes) -> float | None:
        """Any, where no window of the view does it."""
        return None if chart.part is None else MAX_ZOOM

    def seen(self, chart: Lanes, lens: Lens) -> Lanes:
        """A part of its time."""
        return chart if chart.part is None else chart.part(*lens.range)

    def time_cell(self, chart: Lanes, x: int) -> int:
        """The cell of its time axis."""
        return x - label_width(chart) - 1


def label_width(picture: Lanes) -> int:
    """Width of the labels."""
    longest = max((cell_width(clean(name)) for name in picture.lanes), default=0) + 1
    return min(max(longest, _MIN_LABEL), _MAX_LABEL)


def bins_of(picture: Lanes, width: int) -> int:
    """Cells of the time axis at a width."""
    return max(width - label_width(picture) - 1, 1)


def lane_line(picture: Lanes, row: int, bins: int, glyphs: Glyphs) -> Line:
    """A lane alone."""
    return _lane(picture.cells(row, bins), bins, glyphs, _Columns(None, None), False)


def phases_line(picture: Lanes, row: int, bins: int, glyphs: Glyphs) -> str:
    """The names of the phases above a lane, and the length of the time axis at its end."""
    bands = picture.bands(row, bins)
    line = "".join(text for text, _ in _band(bands[0], bins, glyphs)) if bands else " " * bins
    length = f" {glyphs.spelled(time_text(picture.seen.length_ns))}"
    return line[: max(bins - len(length), 0)] + length[:bins]


def draw_lanes(
    picture: Lanes, width: int, height: int, glyphs: Glyphs, selected: int = 0
) -> list[Line]:
    """The chart as at most `height` lines of at most `width` cells."""
    if not picture.lanes:
        return []
    selected = min(max(selected, 0), len(picture.lanes) - 1)
    room, bins = label_width(picture), bins_of(picture, width)
    bands = picture.bands(selected, bins)
    strips = picture.strips(selected, bins)
    ghosts = _ghosts_shown(picture, selected, height)
    host = _host_shown(picture, selected, bins, height - len(ghosts))
    unmeasured = all(strip.title == QUEUE for strip in strips) and height >= _HEAD + _MIN_WITH_HOST
    room_left = height - len(ghosts) - (host is not None) - (unmeasured and bool(strips))
    parts = _allotted(room_left, len(picture.lanes), len(bands), max(len(strips), 1))
    strips = _chosen(strips, parts.strips)
    shown = [band for band in bands if band.title in _kept(bands, parts.bands)]
    top = min(max(selected - parts.lanes // 2, 0), len(picture.lanes) - parts.lanes)
    places = range(top, top + parts.lanes)
    columns = _columns(picture.seen, bins)
    drawn = [
        _lane(picture.cells(row, bins), bins, glyphs, columns, row == selected) for row in places
    ]
    scaled = strips if parts.strip_lines == 1 else ()
    used = {ink.removeprefix("text/") for line in drawn for _, ink in line}
    title = _legend(picture, places, scaled, used, width, glyphs)
    lines: list[Line] = [cut(title, width, glyphs)]
    lines += _axis(picture.seen, bins, room, glyphs)
    owner = picture.owners[selected]
    many = len(set(picture.owners)) > 1
    for band in shown:
        short = _SHORT.get(band.title, band.title)
        name = f"{owner.removeprefix('GPU ')} {short}" if many else band.title
        lines.append([(_label(name, room, glyphs) + " ", "dim"), *_band(band, bins, glyphs)])
    for row, line in zip(places, drawn, strict=True):
        sign = glyphs.cursor if row == selected else " "
        label = sign + _label(picture.lanes[row], room - 1, glyphs) + " "
        lines.append([(label, "strong" if row == selected else "text"), *line])
        if row in ghosts:
            lines.append(_ghost(picture, row, bins, room, glyphs))
    if host is not None:
        name = f"{owner.removeprefix('GPU ')} host" if many else " host"
        line = _lane(host, bins, replace(glyphs, in_colour=False), _Columns(None, None), False)
        drawn_host = [(text, _HOST_INKS.get(ink, ink)) for text, ink in line]
        lines.append([(_label(name, room, glyphs) + " ", "dim"), *drawn_host])
    if unmeasured or (not strips and parts.strips):
        lines.append([(_label("", room, glyphs) + " ", "dim"), (clean(picture.missing), "dim")])
    for strip in strips:
        lines += _strip(strip, parts.strip_lines, room, glyphs)
    return [cut(line, width, glyphs) for line in lines][: max(height, 0)]


def _host_shown(picture: Lanes, row: int, bins: int, height: int) -> LaneCells | None:
    """The host lane of a lane's GPU, where the trace shows it and there is room."""
    if picture.hosts is None or height < _HEAD + _MIN_WITH_HOST:
        return None
    return picture.hosts(row, bins)


def _chosen(strips: Sequence[Strip], count: int) -> tuple[Strip, ...]:
    """So many strips: signals first, but the queue beneath the host that fills it."""
    chosen = strips[:count]
    return tuple(sorted(chosen, key=lambda strip: strip.title != QUEUE))


def _ghosts_shown(picture: Lanes, selected: int, height: int) -> range:
    """The lanes that have the baseline's beneath: all where there is room, else the selected."""
    count = len(picture.lanes)
    if picture.ghosts is None or height < _HEAD + _MIN_WITH_GHOST:
        return range(0)
    if height >= _HEAD + 2 * count + _MIN_WITH_GHOST:
        return range(count)
    return range(selected, selected + 1)


def _ghost(picture: Lanes, row: int, bins: int, room: int, glyphs: Glyphs) -> Line:
    """The baseline's lane, dim, with the drift at its end."""
    found = picture.ghosts(row, bins) if picture.ghosts is not None else None
    if found is None:
        return [(" " * (room + 1), "dim"), ("nothing of the baseline matches here", "dim")]
    label = _label(f" {glyphs.bar[0]} {found.title}", room, glyphs) + " "
    fills = _FILLS[glyphs.name][0]
    share = found.cells.busy_ns / np.maximum(found.cells.width_ns, 1)
    chars = [fills[_level(each, len(fills))] if each > 0 else " " for each in share.tolist()]
    drift = f" {found.drift_ns / 1e6:+.3f} ms" if found.drift_ns else " 0 ms"
    end = max(bins - len(drift), 0)
    return [(label, "dim"), ("".join(chars[:end]), "shade"), (drift[: bins - end], "alert")]


class _LaneParts(Struct, frozen=True):
    lanes: int
    bands: int
    strips: int
    strip_lines: int


def _allotted(height: int, lanes: int, bands: int, strips: int) -> _LaneParts:
    """How many lanes, bands and strips fit: at least one lane, then the rest by importance."""
    room = max(height - _HEAD, 1)
    some = 2 if room >= 8 else 1 if room >= 4 else 0
    strips = min(strips, some + (room >= _MIN_WITH_THREE_STRIPS))
    shown = min(lanes, max(room - strips - min(bands, some), 1))
    bands = max(min(bands, room - strips - shown), 0)
    rest = room - strips - shown - bands
    lines = min(1 + rest // strips, _MAX_STRIP_LINES) if strips else 0
    return _LaneParts(shown, bands, strips, lines)


def _kept(bands: Sequence[Band], count: int) -> list[str]:
    titles = {band.title for band in bands}
    return [title for title in _BANDS_BY_IMPORTANCE if title in titles][:count]


def _legend(
    picture: Lanes,
    places: range,
    scaled: Sequence[Strip],
    used: set[str],
    width: int,
    glyphs: Glyphs,
) -> Line:
    """The legend, with the scale of one-line strips, in a wording that fits."""
    line: Line = []
    if len(places) < len(picture.lanes):
        whole = f"{places.start + 1}-{places.stop} of {len(picture.lanes)} {picture.title}  "
        line.append((whole, "strong"))
    if glyphs.in_colour:
        names = dict(zip(CLASS_INKS, picture.classes, strict=False))
        names = names or {KIND_INKS[0]: picture.kinds[0]}
        names |= dict(zip(KIND_INKS[1:], picture.kinds[1:], strict=True))
        names |= {_BOTH_INK: "compute + comm" if "comm" in picture.kinds else "both"}
        fill = _FILLS[glyphs.name][0][-1]
        for ink, name in names.items():
            line += [(fill, ink), (f" {name}  ", "dim")] if ink in used else []
    else:
        for number, kind in enumerate(picture.kinds):
            fill = _FILLS[glyphs.name][number]
            line += [(fill[-1], KIND_INKS[number]), (f" {kind} ", "dim")]
        if _BOTH_INK in used:
            line += [(_BOTH[glyphs.name], _BOTH_INK), (" both ", "dim")]
    for meaning in ("main kind, full=busy", "full=busy"):
        for units in (True, False):
            scales = "".join(f"  {_scale(strip, units)}" for strip in scaled)
            best = [*line, (meaning + scales, "dim")]
            if width_of(best) <= width:
                return best
    best = [*line, ("full=busy", "dim")]
    return best if width_of(best) <= width else line


def _label(text: str, width: int, glyphs: Glyphs) -> str:
    return pad(elide(clean(text), width, glyphs), width)


class _Columns(Struct, frozen=True):
    """The cells of cursor and mark; None where they are outside the window."""

    cursor: int | None
    mark: int | None


def _columns(seen: Interval, bins: int) -> _Columns:
    return _Columns(_cell(seen, bins, seen.at_ns), _cell(seen, bins, seen.mark_ns))


def _cell(seen: Interval, bins: int, time: int | None) -> int | None:
    """The cell of a time; the end of the window is in the last one."""
    if time is None or not seen.from_ns <= time <= seen.to_ns:
        return None
    return min((time - seen.from_ns) * bins // max(seen.length_ns, 1), bins - 1)


def _axis(seen: Interval, bins: int, room: int, glyphs: Glyphs) -> list[Line]:
    """Ticks at round times over a ruler with cursor, mark and the interval between them."""
    marks = _MARKS[glyphs.name]
    step = _tick_step(seen, bins)
    decimals = 0 if step >= 10**6 else 3 if step >= 10**3 else 6
    ruler, labels = [marks.line] * bins, [" "] * (bins + 1)
    first = -(-seen.from_ns // step) * step
    for time in range(first, seen.to_ns + 1, step):
        cell = (time - seen.from_ns) * bins // max(seen.length_ns, 1)
        if cell >= bins:
            continue
        ruler[cell] = marks.tick
        text = f"{time / 1e6:.{decimals}f}"
        if cell + len(text) <= bins:
            labels[cell : cell + len(text)] = text
    columns = _columns(seen, bins)
    ends = _cells_between(seen, bins)
    for cell in ends:
        ruler[cell] = marks.between
    if columns.mark is not None:
        ruler[columns.mark] = marks.mark
    if columns.cursor is not None:
        ruler[columns.cursor] = marks.cursor
    return [
        [(_label("ms", room, glyphs) + " ", "dim"), ("".join(labels).rstrip(), "dim")],
        [(" " * (room + 1), "dim"), *_pointed("".join(ruler), columns)],
    ]


def _cells_between(seen: Interval, bins: int) -> range:
    if seen.mark_ns is None:
        return range(0)
    low, high = sorted((seen.at_ns, seen.mark_ns))
    if high < seen.from_ns or low > seen.to_ns:
        return range(0)
    begin = _cell(seen, bins, max(low, seen.from_ns))
    end = _cell(seen, bins, min(high, seen.to_ns))
    assert begin is not None and end is not None
    return range(begin, end + 1)


def _pointed(ruler: str, columns: _Columns) -> Line:
    """The ruler with cursor and mark highlighted."""
    special = {columns.cursor, columns.mark}
    return [
        ("".join(ruler[place] for place in places), ink)
        for ink, places in (
            (ink, list(group))
            for ink, group in groupby(
                range(len(ruler)), key=lambda place: "alert" if place in special else "dim"
            )
        )
    ]


def _tick_step(seen: Interval, bins: int) -> int:
    """Round ns between ticks, wide enough for their labels."""
    step, size = 1, 1
    while True:
        for factor in _TICK_STEPS:
            step = factor * size
            decimals = 0 if step >= 10**6 else 3 if step >= 10**3 else 6
            wide = len(f"{seen.to_ns / 1e6:.{decimals}f}") + _GAP
            if step * bins >= wide * seen.length_ns:
                return step
        size *= 10


def _band(band: Band, bins: int, glyphs: Glyphs) -> Line:
    """The label of each span from its first cell on; dashes where several share a cell."""
    marks = _MARKS[glyphs.name]
    cells = [" "] * bins
    for span in band.spans:
        width = span.end - span.begin
        if span.dense:
            cells[span.begin : span.end] = marks.dense * width
            continue
        cells[span.begin : span.end] = _within(span, width, marks, glyphs)
    return [("".join(cells), "text")]


def _within(span: Span, width: int, marks: Marks, glyphs: Glyphs) -> str:
    text = clean(span.text)
    if not text:
        return marks.between * width
    if cell_width(text) != len(text):
        text = "".join(c for c in text if cell_width(c) == 1)
    if len(text) < width:
        return (marks.edge + text + " ").ljust(width, marks.line)[:width]
    short = text.removeprefix("L").removeprefix("it ")
    for candidate in (text, short):
        if len(candidate) < width:
            return (marks.edge + candidate).ljust(width)
    if width >= 4:
        return marks.edge + text[: width - 1]
    return marks.edge + " " * (width - 1)


def _lane(
    cells: LaneCells, bins: int, glyphs: Glyphs, columns: _Columns, is_selected: bool
) -> Line:
    """In each cell the kind with most time, as full as the share of time in which anything runs.

    In colours compute has those of its classes, and names stand on the colour of their lane.
    """
    fills, marks = _FILLS[glyphs.name], _MARKS[glyphs.name]
    kinds = cells.kind_ns.argmax(axis=0)
    busy = cells.busy_ns > 0
    share = cells.busy_ns / np.maximum(cells.width_ns, 1)
    chars, inks = [" "] * bins, ["text"] * bins
    classes = cells.class_ns.argmax(axis=0) if cells.class_ns is not None else None
    for place in np.flatnonzero(busy).tolist():
        fill = fills[0 if glyphs.in_colour else kinds[place]]
        chars[place] = fill[_level(float(share[place]), len(fill))]
        inks[place] = KIND_INKS[kinds[place]]
        if kinds[place] == 0 and classes is not None and glyphs.in_colour:
            inks[place] = CLASS_INKS[classes[place]]
    # Of two that run at once, a small lead in time means nothing.
    at_once = 2 * (cells.kind_ns.sum(axis=0) - cells.busy_ns) > cells.busy_ns
    for place in np.flatnonzero(at_once).tolist():
        inks[place] = _BOTH_INK
        if not glyphs.in_colour:
            chars[place] = _BOTH[glyphs.name]
    for span in cells.spans:
        if at_once[span.begin : span.end].any():
            continue
        if span.begins:
            chars[span.begin] = marks.edge if glyphs.in_colour else marks.begin
            if glyphs.in_colour:
                inks[span.begin] = f"text/{inks[span.begin]}"
        if span.end - span.begin < _MIN_NAMED_WIDTH:
            continue
        if glyphs.in_colour:
            within = range(span.begin + 1, span.end)
            chars[span.begin + 1 : span.end] = " " * len(within)
            for place in within:
                inks[place] = f"text/{inks[place]}"
        name, room = display_name(span.text, "kernel"), span.end - span.begin - 3
        if len(name) > room and span.short:
            name = clean(span.short)
        name = elide(name, room, glyphs)
        if len(name) == cell_width(name):
            chars[span.begin + 2 : span.begin + 2 + len(name)] = name
    for column, char in ((columns.mark, marks.at_mark), (columns.cursor, marks.upright)):
        if column is not None and not busy[column]:
            chars[column], inks[column] = char, "dim"
    if is_selected and columns.cursor is not None:
        inks[columns.cursor] = "cursor"
    return [
        ("".join(chars[place] for place in places), ink)
        for ink, places in (
            (ink, list(group)) for ink, group in groupby(range(bins), key=inks.__getitem__)
        )
    ]


def _level(share: float, levels: int) -> int:
    """The level of a share; only an almost full cell has the last one."""
    return min(int(share * (levels - 1) + 0.5), levels - 1)


def _scale(strip: Strip, with_unit: bool) -> str:
    scale = strip.unit.axis(strip.low, strip.high)
    unit = f" {scale.text}" if with_unit else ""
    return f"{strip.title} {scale.number(strip.low)}-{scale.number(strip.high)}{unit}"


def _strip(strip: Strip, height: int, room: int, glyphs: Glyphs) -> list[Line]:
    """A signal as columns rising from the bottom line, blank where it is unknown."""
    levels = _LEVELS[glyphs.name]
    scale = strip.unit.axis(strip.low, strip.high)
    title, low, high = f"{strip.title} {scale.text}", *map(scale.number, (strip.low, strip.high))
    labels = [title, f"{low}-{high}"]
    if height > 2:
        ends = max(len(low), len(high))
        labels = [high.rjust(ends), *[""] * (height - 2), low.rjust(ends)]
        labels[1] = title
    known = np.isfinite(strip.numbers)
    if not known.any():
        return [[(_label(labels[0], room, glyphs) + " ", "dim"), ("unknown here", "dim")]]
    filled = _heights(strip, known, height * len(levels))
    lines: list[Line] = []
    for row in range(height):
        below = (height - 1 - row) * len(levels)
        own = np.clip(filled - below, 0, len(levels))
        text = "".join(" " if level <= 0 else levels[level - 1] for level in own.tolist())
        label = (_label(labels[row], room, glyphs) + " ", "dim")
        tone = (height - 1 - row) * TONES // height
        hue = hue_of(strip.unit)
        drawn = toned(text, hue, levels) if height == 1 else [(text, f"{hue}{tone}")]
        lines.append([label, *drawn])
    return lines


def _heights(strip: Strip, known: Mask, top: int) -> Int64:
    span = strip.high - strip.low
    shares = np.where(known, (np.where(known, strip.numbers, 0.0) - strip.low), 0.0)
    shares = np.clip(shares / span, 0, 1) if span > 0 else np.full(len(shares), 0.5)
    heights = 1 + np.rint(shares * (top - 1)).astype(np.int64)
    return np.where(known, heights, 0)
