"""The timeline drawn as characters in named styles: axis, bands, lanes and strips of signals."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import OF_TRACE, Band, LaneCells, Lanes, Span, Strip
from chopper_core.model.phrases import level_title
from chopper_core.model.units import Unit, moment_text, moment_unit, time_text
from chopper_core.model.view import Interval
from chopper_core.render.cells import cell_width, display_name, elide, pad
from chopper_core.render.glyphs import Glyphs, column_glyphs
from chopper_core.render.palette import HEAT_LEVELS
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.escape import clean
from chopper_core.views.shared.marks import far_out
from chopper_tui.draw import axes
from chopper_tui.draw.axes import drawable
from chopper_tui.draw.canvas import MAX_ZOOM, Canvas, Drawer, Lens
from chopper_tui.draw.pieces import (
    CLASS_INKS,
    COMPUTE,
    COPY,
    EXPOSED,
    HIDDEN,
    WAITING,
    Line,
    cut_line,
    inked,
    signal_ink,
    width_of,
)

KIND_INKS: Final = (COMPUTE, EXPOSED, COPY)
_HALVES: Final = {"unicode": " ▀▄█", "ascii": ' "_#'}
"""A cell with nothing, with compute or copies above, communication below, or both."""
_WAITS: Final = {"unicode": "░▒", "ascii": "~="}
"""A cell in which communication waits, alone or under compute, where no colour says so."""
_SOME: Final = {"unicode": "·", "ascii": "."}
"""A cell in which something runs, for less than a quarter of it."""
_MIN_LABEL: Final = 9
_MAX_LABEL: Final = 16
_HEAD: Final = 3
"""Lines of the legend and the axis."""
_BANDS_BY_IMPORTANCE: Final[tuple[str, ...]] = ("phase", "layer", "operation", "scope", "iteration")
"""Bands in order of importance, for heights with room for some."""
_SHORT: Final = {"iteration": "step", "operation": "op"}
_STRIP_LINES: Final = 6
_MAX_STRIP_LINES: Final = 10
_MAX_LANE_LINES: Final = 5
_MIN_WITH_GHOST: Final = 5
"""Lines of lanes, bands and strips from which a baseline's lane has room."""
_MIN_WITH_HOST: Final = 9
"""Lines from which the lane of the host has room, and the reason why there is no signal."""
_CLOCK_CELLS: Final = 5
"""A mark and four digits."""
_MIN_WITH_CLOCKS: Final = 4
"""Lines next to those of lanes and their clocks: two bands, and two strips of other signals."""
_MIN_WITH_THREE_STRIPS: Final = 16
_NODE: Final = 8
"""GPUs of a node."""
_HOST_INKS: Final = {KIND_INKS[0]: "shade", KIND_INKS[1]: "strong"}
"""Operators are quieter than the calls that keep the host."""
_HOST_LEGEND: Final[Line] = [
    *[("host ", "dim"), ("▀", "shade"), (" operators  ", "dim")],
    *[("▄", "strong"), (" runtime calls  ", "dim")],
]
_MIN_NAMED_WIDTH: Final = 8
_MIN_RULE: Final = 2
"""Cells of a phase's rule that a legend in it leaves."""

_Columns = tuple[int | None, int | None]
"""The cells of cursor and mark; None where they are outside the window."""


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
    at_mark: str


_MARKS: Final = {
    "unicode": Marks("─", "┬", "▼", "◆", "═", "│", "┄", "▏", "┊"),
    "ascii": Marks("-", "+", "v", "M", "=", "|", "~", "|", ":"),
}


class LanesDrawer(Drawer[Lanes]):
    """Lanes with their bands and strips; the row of the table's cursor is in full."""

    follows_cursor = True
    is_alone = True
    tallest = 8

    def rows(self, chart: Lanes) -> int:
        return len(chart.lanes)

    def body_lines(self, chart: Lanes) -> int:
        signals = max(chart.signals - (chart.clocks is not None), 0) * _STRIP_LINES or 1
        lanes = len(chart.lanes) * (1 + (chart.ghosts is not None)) + (chart.hosts is not None)
        lanes += (len(chart.lanes) if chart.clocks is not None else 0) + _is_part(chart.seen)
        return _HEAD + lanes + len(_BANDS_BY_IMPORTANCE) + signals

    def body(self, chart: Lanes, on: Canvas) -> None:
        if not chart.lanes:
            return
        glyphs, room, bins = on.glyphs, label_width(chart), bins_of(chart, on.width)
        selected = min(max(on.row, 0), len(chart.lanes) - 1)
        has = _Parts.of(chart, selected, bins, on.height, _MAX_LANE_LINES if on.spreads else 1)
        drawn = self._drawn(chart, has, selected, bins, on)
        scaled = has.strips if has.strip_lines == 1 else ()
        lines_drawn = (line for lane in drawn for line in lane)
        used = {part for line in lines_drawn for _, ink in line for part in ink.split("/")}
        lines = [_map(chart.seen, bins, room, glyphs)] if has.is_mapped else []
        more: list[Line] = [_HOST_LEGEND] if has.host is not None and glyphs.has_halves else []
        more += [has.clocks.scale(glyphs)] if has.clocks and has.has_clock_strips else []
        lines.append(_legend(chart, has.lanes, scaled, used, on.width, glyphs, more))
        lines += _axis(chart.seen, bins, room, "MHz" if chart.clocks is not None else "", glyphs)
        owner = _owner(chart, selected)
        for band in has.bands:
            name = owner + _SHORT.get(band.title, band.title) if owner else level_title(band.title)
            lines.append([_label(name, room, glyphs), *_band(band, bins, glyphs)])
        for row, lane in zip(has.lanes, drawn, strict=True):
            lines += _lane_lines(chart, row, row == selected, lane, has, glyphs)
            if has.has_ghosts:
                lines.append(_ghost(chart, row, bins, room, glyphs))
        if has.host is not None:
            line = _lane(has.host, bins, glyphs.coloured(False), (None, None))
            inked = [(text, _HOST_INKS.get(ink, ink)) for text, ink in line]
            lines.append([_label(f"{owner or ' '}host", room, glyphs), *inked])
        if has.is_unmeasured:
            lines.append([_label("", room, glyphs), (clean(chart.missing), "dim")])
        for strip in has.strips:
            lines += _strip(strip, has.strip_lines, room, glyphs)
        on.lines += lines

    def _drawn(
        self, chart: Lanes, has: _Parts, selected: int, bins: int, on: Canvas
    ) -> list[list[Line]]:
        at, drawn = _columns(chart.seen, bins), []
        for row in has.lanes:
            on.check()
            # The cursor is in one lane: a move of it through all of them took many bytes.
            own = at if row == selected else (None, at[1])
            parts = _apart(chart.cells(row, bins), has.lane_lines)
            drawn.append([_lane(cells, bins, on.glyphs, own) for cells in parts])
        return drawn

    def max_zoom(self, chart: Lanes) -> float | None:
        return None if chart.part is None else MAX_ZOOM

    def seen(self, chart: Lanes, lens: Lens) -> Lanes:
        return chart if chart.part is None else chart.part(*lens.range)

    def time_cell(self, chart: Lanes, x: int) -> int:
        return x - label_width(chart) - 1


class _Parts(Struct, frozen=True, eq=False):
    """What of a picture fits into its height."""

    lanes: Sequence[int]
    lane_lines: int
    bands: list[Band]
    strips: tuple[Strip, ...]
    strip_lines: int
    has_ghosts: bool
    """Whether the baseline's lane is below each of them."""
    host: LaneCells | None
    clocks: _Clocks | None
    has_clock_strips: bool
    is_mapped: bool
    is_unmeasured: bool
    """Whether to say why there are no signals."""

    @classmethod
    def of(cls, chart: Lanes, selected: int, bins: int, height: int, tallest: int) -> _Parts:
        is_mapped = _is_part(chart.seen) and height >= _MIN_WITH_HOST
        height, count = height - is_mapped, len(chart.lanes)
        bands = chart.bands(selected, bins)
        strips = tuple(map(_on_visible_range, drawable(chart.strips(selected, bins))))
        clocks = _Clocks.of(chart, bins)
        has_room = height >= _HEAD + 2 * count + _MIN_WITH_CLOCKS
        # The clock of one GPU alone is an area below.
        has_clock_strips = clocks is not None and clocks.owners > 1 and has_room
        if clocks is not None and has_clock_strips:
            strips = tuple(strip for strip in strips if strip.unit != Unit.MHZ)
            height -= clocks.owners
        has_ghosts = chart.ghosts is not None and height >= _HEAD + _MIN_WITH_GHOST
        # Where lanes and ghosts leave little else they come before all but a band.
        is_tight = has_ghosts and height < _HEAD + 2 * count + _MIN_WITH_GHOST
        if is_tight:
            count, strips = min((height - _HEAD - 1) // 2, count), ()
        ghosts = count if has_ghosts else 0
        host = None
        if chart.hosts is not None and not is_tight and height - ghosts >= _MIN_WITH_HOST:
            host = chart.hosts(selected, bins)
        is_unmeasured = all(each.title in OF_TRACE for each in strips) and height >= _MIN_WITH_HOST
        is_unmeasured = is_unmeasured and not is_tight
        rest = height - ghosts - (host is not None) - (is_unmeasured and bool(strips))
        shown, most_bands, most_strips, lines, lane_lines = _allotted(
            rest, count, len(bands), 0 if is_tight else max(len(strips), 1), tallest
        )
        lanes = _lanes_shown(chart, selected, shown)
        titles = {band.title for band in bands}
        kept = [title for title in _BANDS_BY_IMPORTANCE if title in titles][:most_bands]
        return cls(
            lanes,
            lane_lines,
            [each for each in bands if each.title in kept],
            # The queue is beneath the host that fills it.
            tuple(sorted(strips[:most_strips], key=lambda strip: strip.title not in OF_TRACE)),
            lines,
            has_ghosts,
            host,
            clocks,
            has_clock_strips,
            is_mapped,
            is_unmeasured or (not strips and most_strips > 0),
        )


def _lane_lines(
    chart: Lanes, row: int, is_selected: bool, lane: list[Line], has: _Parts, glyphs: Glyphs
) -> list[Line]:
    """A lane with its name and its clock, and the strip of the clock below it."""
    room, clocks = label_width(chart), has.clocks
    sign, ink = (glyphs.cursor, "strong") if is_selected else (" ", "text")
    clock = [] if clocks is None else clocks.text(row, glyphs)
    name, _ = _label(chart.lanes[row], room - 1 - width_of(clock), glyphs)
    below = lane[1:]
    if clocks is not None and has.has_clock_strips and len(clocks.numbers[row]):
        below.append(clocks.strip(row, glyphs))
    blank = (" " * (room + 1), "dim")
    return [[(sign + name, ink), *clock, *lane[0]], *[[blank, *line] for line in below]]


def _owner(picture: Lanes, row: int) -> str:
    """The GPU of a lane in front of what is its own; empty where all lanes are one GPU's."""
    several = len(set(picture.owners)) > 1
    return f"{picture.owners[row].removeprefix('GPU ')} " if several else ""


def label_width(picture: Lanes) -> int:
    longest = max((cell_width(clean(name)) for name in picture.lanes), default=0) + 1
    width = min(max(longest, _MIN_LABEL), _MAX_LABEL)
    return width + (_CLOCK_CELLS + 1 if picture.clocks is not None else 0)


def bins_of(picture: Lanes, width: int) -> int:
    return max(width - label_width(picture) - 1, 1)


def lane_line(picture: Lanes, row: int, bins: int, glyphs: Glyphs) -> Line:
    return _lane(picture.cells(row, bins), bins, glyphs, (None, None))


def phases_line(
    picture: Lanes, row: int, bins: int, glyphs: Glyphs, used: Mapping[str, int]
) -> Line:
    """The names of the phases above a lane, and the length of the time axis at its end.

    Of the inks that so many cells below `used`, the longest rule names the first that fit.
    """
    bands = picture.bands(row, bins)
    line = "".join(text for text, _ in _band(bands[0], bins, glyphs)) if bands else " " * bins
    length = f" over {glyphs.spelled(time_text(picture.seen.length_ns))}"
    # A name that the length would cut is left out.
    line = re.sub(r"\w+$", "", line[: max(bins - len(length), 0)]).ljust(bins - len(length))
    line += length[:bins]
    rules = [rule.span() for rule in re.finditer("[─-]+", line)]
    begin, end = max(rules, key=lambda span: span[1] - span[0], default=(0, 0))
    named = named_inks(picture, used, glyphs, end - begin - _MIN_RULE)
    if not named:
        return [(line, "header")]
    begin = end - width_of(named)
    return [(line[: begin - 1] + " ", "header"), *named, (line[end:], "header")]


def named_inks(picture: Lanes, used: Mapping[str, int], glyphs: Glyphs, room: int) -> Line:
    """The names of inks, those of the most cells first, as many as have room."""
    named: Line = []
    for _, entry in sorted(_named_inks(picture, used, glyphs).items(), key=lambda e: -used[e[0]]):
        if width_of([*named, *entry]) > room:
            break
        named += entry
    return [*named[:-1], *((text.rstrip(), ink) for text, ink in named[-1:])]


def named_halves(picture: Lanes, glyphs: Glyphs, room: int) -> str:
    """What the cells of lanes mean without colours, as many as have room."""
    _, upper, lower, both = list(_HALVES[glyphs.name])
    words = [f"{upper} {picture.kinds[0]}", f"{lower} {picture.kinds[1]}", f"{both} both"]
    alone, under = [*_WAITS[glyphs.name]]
    words += [f"{under} {picture.kinds[0]}, waiting", f"{alone} waiting"]
    while cell_width("  ".join(words)) > room and len(words) > 1:
        words.pop()
    return "  ".join(words)


def _named_inks(picture: Lanes, used: Container[str], glyphs: Glyphs) -> dict[str, Line]:
    if not glyphs.in_colour:
        return {}
    names = dict(zip(CLASS_INKS, picture.classes, strict=False))
    names = names or {KIND_INKS[0]: picture.kinds[0]}
    names |= dict(zip(KIND_INKS[1:], picture.kinds[1:], strict=True))
    names |= {HIDDEN: "hidden comm", EXPOSED: "exposed comm", WAITING: "waiting"}
    fill = glyphs.spark[-1]
    return {ink: [(fill, ink), (f" {name}  ", "dim")] for ink, name in names.items() if ink in used}


def _lanes_shown(picture: Lanes, selected: int, shown: int) -> Sequence[int]:
    """The lanes around the selected one; the late GPU's is the first where it isn't among them."""
    top = min(max(selected - shown // 2, 0), len(picture.lanes) - shown)
    found = range(top, top + shown)
    late = picture.lanes.index(picture.late) if picture.late in picture.lanes else top
    if late in found or shown < 2:
        return found
    return (late, *(found[:-1] if selected < found[-1] else found[1:]))


def _ghost(picture: Lanes, row: int, bins: int, room: int, glyphs: Glyphs) -> Line:
    found = picture.ghosts(row, bins) if picture.ghosts is not None else None
    if found is None:
        return [_label("", room, glyphs), ("nothing of the baseline matches here", "dim")]
    named = [f" {glyphs.bar[0]} {clean(found.title)}", f"{glyphs.bar[0]}{clean(found.title)}"]
    label = _label(
        next((each for each in named if cell_width(each) <= room), named[1]), room, glyphs
    )
    # Where others are in colours its shades would be read as theirs.
    cells = replace(found.cells, waiting_ns=None) if glyphs.in_colour else found.cells
    ghost = _lane(cells, bins, glyphs.coloured(False), (None, None))
    drift = f" {found.drift_ns / 1e6:+.3f} ms" if found.drift_ns else " 0 ms"
    end = max(bins - len(drift), 0)
    line = cut_line([(text, "third") for text, _ in ghost], end, glyphs)
    return [label, *line, (drift[: bins - end], "warning")]


def _is_part(seen: Interval) -> bool:
    """Whether some of the time lies outside."""
    return seen.length_ns < seen.end_ns


def _map(seen: Interval, bins: int, room: int, glyphs: Glyphs) -> Line:
    """Where the window is in all of the run's time."""
    begin = seen.from_ns * bins // seen.end_ns
    wide = max(-(-seen.length_ns * bins // seen.end_ns), 1)
    before, after = (_MARKS[glyphs.name].line * cells for cells in (begin, bins - begin - wide))
    length = glyphs.spelled(time_text(seen.end_ns))
    label = _label(f"run {length}" if len(length) + 4 <= room else length, room, glyphs)
    return [label, (before, "shade"), (glyphs.bar[-1] * wide, "accent"), (after, "shade")]


class _Clocks(Struct, frozen=True, eq=False):
    """The clock of each lane's GPU along time, on one scale."""

    numbers: tuple[Float64, ...]
    means: Float64
    deviation: Float64

    @classmethod
    def of(cls, picture: Lanes, bins: int) -> _Clocks | None:
        if picture.clocks is None:
            return None
        numbers = tuple(picture.clocks(row, bins) for row in range(len(picture.lanes)))
        known = (each[np.isfinite(each)] for each in numbers)
        means = np.array([float(each.mean()) if len(each) else np.nan for each in known])
        return cls(numbers, means, far_out(means[:, None]))

    @property
    def owners(self) -> int:
        """The lanes that have a strip: one of each GPU."""
        return sum(len(each) > 0 for each in self.numbers)

    def text(self, row: int, glyphs: Glyphs) -> Line:
        """The mean, marked where it stands out among the GPUs."""
        mean, text = float(self.means[row]), " " * _CLOCK_CELLS
        if np.isfinite(mean):
            far = float(self.deviation[row])
            sign = "" if not far else glyphs.up if far > 0 else glyphs.down
            return [(f"{sign}{mean:.0f}".rjust(_CLOCK_CELLS) + " ", "warning" if far else "dim")]
        return [(text + " ", "dim")]

    @property
    def ends(self) -> tuple[float, float]:
        every = np.concatenate(self.numbers)
        return axes.scale_ends(every[np.isfinite(every)])

    def scale(self, glyphs: Glyphs) -> Line:
        low, high = self.ends
        inks = [f"heat{level}/text" for level in range(HEAT_LEVELS)] if glyphs.has_halves else []
        text = [("▀", ink) for ink in inks] or [(glyphs.spark, "good")]
        return [(f"clock {low:.0f} ", "dim"), *text, (f" {high:.0f} MHz  ", "dim")]

    def strip(self, row: int, glyphs: Glyphs) -> Line:
        own, (low, high) = self.numbers[row], self.ends
        shares = np.clip((own - low) / max(high - low, 1e-9), 0.0, 1.0)
        if not glyphs.has_halves:
            return [(column_glyphs(shares, 1, glyphs)[0], "good")]
        levels = np.rint(np.nan_to_num(shares) * (HEAT_LEVELS - 1)).astype(int).tolist()
        texts = ["▀" if each else " " for each in np.isfinite(own).tolist()]
        return inked(texts, [f"heat{level}/text" for level in levels])


def _allotted(
    height: int, lanes: int, bands: int, strips: int, tallest: int
) -> tuple[int, int, int, int, int]:
    """How many lanes, bands and strips fit, at least one lane; and the lines of strip and lane."""
    room = max(height - _HEAD, 1)
    # All lanes of a node come before a second band and a second strip.
    some = 2 if room >= max(min(lanes, _NODE) + _MIN_WITH_CLOCKS, 8) else 1 if room >= 4 else 0
    strips = min(strips, some + (room >= _MIN_WITH_THREE_STRIPS))
    shown = min(lanes, max(room - strips - min(bands, some), 1))
    bands = max(min(bands, room - strips - shown), 0)
    rest = room - strips - shown - bands
    # A second line of each strip comes before taller lanes, these before further ones.
    each = min(1 + max(rest - strips, 0) // shown, tallest) if shown == lanes else 1
    rest -= (each - 1) * shown
    lines = min(1 + rest // strips, _MAX_STRIP_LINES) if strips else 0
    return shown, bands, strips, lines, each


def _legend(
    picture: Lanes,
    places: Sequence[int],
    scaled: Sequence[Strip],
    used: set[str],
    width: int,
    glyphs: Glyphs,
    more: Sequence[Line],
) -> Line:
    line: Line = []
    if len(places) < len(picture.lanes):
        shown = f"{places[0] + 1}-{places[-1] + 1}" if isinstance(places, range) else len(places)
        whole = f"{shown} of {len(picture.lanes)} {picture.title}  "
        line.append((whole, "strong"))
    for entry in (*_named_inks(picture, used, glyphs).values(), *more):
        if width_of(line) + width_of(entry) <= width + 2:
            line += entry
    if not glyphs.in_colour:
        line.append((named_halves(picture, glyphs, width - width_of(line)), "dim"))
    line[-1:] = [(text.rstrip(), ink) for text, ink in line[-1:]]
    texts = ["".join(f"  {_scale(strip, units)}" for strip in scaled) for units in (True, False)]
    room = width - width_of(line)
    return [*line, *[(text, "dim") for text in texts if text and len(text) <= room][:1]]


def _label(text: str, width: int, glyphs: Glyphs) -> tuple[str, str]:
    return pad(elide(clean(text), width, glyphs), width + 1), "dim"


def _columns(seen: Interval, bins: int) -> _Columns:
    return _cell(seen, bins, seen.at_ns), _cell(seen, bins, seen.mark_ns)


def _cell(seen: Interval, bins: int, time: int | None) -> int | None:
    if time is None or not seen.from_ns <= time <= seen.to_ns:
        return None
    return min((time - seen.from_ns) * bins // max(seen.length_ns, 1), bins - 1)


def _axis(seen: Interval, bins: int, room: int, lanes_unit: str, glyphs: Glyphs) -> list[Line]:
    """The labels and the ruler of time, and the unit of the figures next to the lanes."""
    marks = _MARKS[glyphs.name]
    step, decimals = axes.time_step(seen.from_ns, seen.to_ns, bins)
    ruler, labels = [marks.line] * bins, [" "] * (bins + 1)
    first = -(-seen.from_ns // step) * step
    for time in range(first, seen.to_ns + 1, step):
        cell = (time - seen.from_ns) * bins // max(seen.length_ns, 1)
        if cell >= bins:
            continue
        ruler[cell] = marks.tick
        text = moment_text(time, decimals, seen.to_ns)
        if cell + len(text) <= bins:
            labels[cell : cell + len(text)] = text
    for cell in _cells_between(seen, bins):
        ruler[cell] = marks.between
    cursor, mark = columns = _columns(seen, bins)
    if mark is not None:
        ruler[mark] = marks.mark
    if cursor is not None:
        ruler[cursor] = marks.cursor
    inks = ["strong" if cell in columns else "dim" for cell in range(bins)]
    return [
        [_label(moment_unit(seen.to_ns), room, glyphs), ("".join(labels).rstrip(), "dim")],
        [_label(lanes_unit.rjust(room), room, glyphs), *inked(ruler, inks)],
    ]


def _cells_between(seen: Interval, bins: int) -> range:
    if seen.mark_ns is None:
        return range(0)
    low, high = sorted((seen.at_ns, seen.mark_ns))
    begin = _cell(seen, bins, max(low, seen.from_ns))
    end = _cell(seen, bins, min(high, seen.to_ns))
    return range(0) if begin is None or end is None else range(begin, end + 1)


def _band(band: Band, bins: int, glyphs: Glyphs) -> Line:
    marks = _MARKS[glyphs.name]
    cells = [" "] * bins
    for span in band.spans:
        width = span.end - span.begin
        if span.dense:
            cells[span.begin : span.end] = marks.dense * width
            continue
        cells[span.begin : span.end] = _within(span, width, marks)
    return [("".join(cells), "text")]


def _within(span: Span, width: int, marks: Marks) -> str:
    text = clean(span.text)
    if not text:
        return marks.between * width
    if cell_width(text) != len(text):
        text = "".join(c for c in text if cell_width(c) == 1)
    if len(text) < width:
        return (marks.edge + text + " ").ljust(width, marks.line)[:width]
    short = text.removeprefix("L").removeprefix("step ")
    if len(short) >= width:
        short = text[: width - 1] if width >= 4 else ""
    return (marks.edge + short).ljust(width)


def _apart(cells: LaneCells, lines: int) -> list[LaneCells]:
    """The cells of each line of a lane: in a tall one communication has the last, or all but that
    where it is alone; names are in its first line."""
    if lines == 1:
        return [cells]
    kinds = [np.zeros_like(cells.kind_ns), cells.kind_ns.copy()]
    kinds[0][1], kinds[1][1] = cells.kind_ns[1], 0
    computing = kinds[1].max(axis=0) if cells.computing_ns is None else cells.computing_ns
    comm, rest = (
        replace(
            cells,
            kind_ns=own,
            busy_ns=own.max(axis=0),
            computing_ns=computing,
            spans=tuple(each for each in cells.spans if each.is_comm is (own is kinds[0])),
            is_tall=True,
        )
        for own in kinds
    )
    first, last = (rest, comm) if rest.busy_ns.any() else (comm, rest)
    # Traces of what is short are in the first line alone.
    solid = first.busy_ns * (first.busy_ns > cells.width_ns / 4)
    return [first, *[replace(first, spans=(), busy_ns=solid)] * (lines - 2), last]


def _lane(cells: LaneCells, bins: int, glyphs: Glyphs, columns: _Columns) -> Line:
    """Each cell in two halves: compute or copies above, communication below.

    A half is drawn where its kind runs for more than a quarter of the cell. In colours compute has
    those of its classes, and names stand on the colour of their lane.
    """
    marks = _MARKS[glyphs.name]
    chars, inks, is_plain = _in_halves(cells, bins, glyphs)
    for span in cells.spans:
        if is_plain[span.begin : span.end].all():
            _write_name(span, chars, inks, glyphs)
    for column, char in zip(columns, (marks.upright, marks.at_mark), strict=True):
        if column is not None and not cells.busy_ns[column]:
            chars[column], inks[column] = char, "dim"
    if columns[0] is not None:
        inks[columns[0]] = "cursor"
    return inked(chars, inks)


def _in_halves(cells: LaneCells, bins: int, glyphs: Glyphs) -> tuple[list[str], list[str], Mask]:
    """(characters, inks, whether a cell has room for a name)."""
    halves = _HALVES[glyphs.name]
    compute, comm, *rest = cells.kind_ns
    copies = rest[0] if rest else np.zeros_like(compute)
    quarter = cells.width_ns / 4
    is_upper, is_lower = np.maximum(compute, copies) > quarter, comm > quarter
    by_class = cells.class_ns is not None and glyphs.in_colour
    classes = cells.class_ns.argmax(axis=0) if cells.class_ns is not None else comm
    waits = np.zeros(bins, bool) if cells.waiting_ns is None else 2 * cells.waiting_ns > comm
    hides = is_upper if cells.computing_ns is None else cells.computing_ns > quarter
    chars, inks = [" "] * bins, ["text"] * bins
    for place in np.flatnonzero(cells.busy_ns).tolist():
        upper, lower = bool(is_upper[place]), bool(is_lower[place])
        ink = CLASS_INKS[classes[place]] if by_class else COMPUTE
        ink = COPY if copies[place] > compute[place] else ink
        chars[place] = halves[upper + 2 * lower]
        below = WAITING if waits[place] else HIDDEN if hides[place] else EXPOSED
        inks[place] = ink if upper else below
        if lower and waits[place] and not glyphs.in_colour:
            chars[place] = _WAITS[glyphs.name][upper]
        elif cells.is_tall and glyphs.in_colour and (upper or lower):
            chars[place] = halves[3]
        elif upper and lower and glyphs.has_halves:
            chars[place], inks[place] = halves[1], f"{ink}/{below}"
        elif not (upper or lower):
            chars[place], inks[place] = _SOME[glyphs.name], "dim"
    is_some = (cells.busy_ns > 0) & ~is_upper & ~is_lower
    return chars, inks, ~(is_upper & is_lower) & ~is_some


def _write_name(span: Span, chars: list[str], inks: list[str], glyphs: Glyphs) -> None:
    """Write the name of an activity onto its cells, where they are wide enough for it."""
    is_named = span.end - span.begin >= _MIN_NAMED_WIDTH
    if span.begins:
        chars[span.begin] = _MARKS[glyphs.name].edge
    if glyphs.in_colour:
        first = span.begin + (not span.begins)
        for place in range(first, span.end if is_named else span.begin + 1):
            chars[place] = chars[place] if place == span.begin else " "
            inks[place] = f"text/{inks[place]}"
    if not is_named:
        return
    name, room = display_name(span.text, "kernel"), span.end - span.begin - 3
    if span.short and (len(name) > room or span.is_comm):
        name = clean(span.short)
    name = elide(name, room, glyphs)
    if len(name) == cell_width(name):
        chars[span.begin + 2 : span.begin + 2 + len(name)] = name


def _on_visible_range(strip: Strip) -> Strip:
    known = strip.numbers[np.isfinite(strip.numbers)]
    if strip.title in OF_TRACE or not len(known):
        return strip
    low, high = axes.around(float(known.min()), float(known.max()))
    return replace(strip, low=low, high=high)


def _scale(strip: Strip, with_unit: bool) -> str:
    scale = strip.unit.axis(strip.low, strip.high)
    unit = f" {scale.text}" if with_unit else ""
    return f"{strip.title} {scale.number(strip.low)}-{scale.number(strip.high)}{unit}"


def _strip(strip: Strip, height: int, room: int, glyphs: Glyphs) -> list[Line]:
    scale = strip.unit.axis(strip.low, strip.high)
    title, low, high = f"{strip.title} {scale.text}", *map(scale.number, (strip.low, strip.high))
    labels = [title, f"{low}-{high}"]
    if height > 2:
        ends = max(len(low), len(high))
        labels = [high.rjust(ends), *[""] * (height - 2), low.rjust(ends)]
        labels[1] = title
    if not np.isfinite(strip.numbers).any():
        return [[_label(labels[0], room, glyphs), ("unknown here", "dim")]]
    span = strip.high - strip.low
    ink = "accent" if strip.title in OF_TRACE else signal_ink(strip.unit)
    shares = (strip.numbers - strip.low) / span if span > 0 else 0.5 + 0 * strip.numbers
    lines: list[Line] = []
    for row, text in enumerate(column_glyphs(shares, height, glyphs)):
        lines.append([_label(labels[row], room, glyphs), (text, ink)])
    return lines
