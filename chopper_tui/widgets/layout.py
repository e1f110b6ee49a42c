"""The layout of the explorer: sizes of its parts for a terminal."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SMALLEST: Final = (40, 10)
"""Below this only a line says that the terminal is too small."""
_ALL_PARTS_FROM: Final = (60, 16)
_SIDE_FROM: Final = 120
_TWO_SPARKS_FROM: Final = 160
_MIN_TABLE_LINES: Final = 5
"""Of the table above a sentence."""
_TWO_CHARTS_FROM: Final = 30
"""Lines of the terminal."""

_MAX_HEADLINE_LINES: Final = (4, 6)
"""Lines of a view's headline, on a low terminal and on a high one."""

_LOW: Final = 20
"""Lines below which a terminal has less of everything above the GPUs and the cards."""
_LOW_HEADLINE: Final = 2
_MIN_CARD_LINES: Final = 6
"""Lines for cards before the table has those of all its rows."""
_MIN_CHARTS_BESIDE: Final = 12
"""Lines from which charts stand beside cards."""
_MIN_EVIDENCE_LINES: Final = 7
"""Lines below cards from which the evidence of one is shown."""
_MIN_SPACED_LINES: Final = 24
"""Lines below the table from which blank lines set its parts apart."""

_DETAIL_LINES: Final = 16
"""Lines that the detail beside a table needs."""
_WIDE_DETAIL_LINES: Final = 28
"""Lines that it has where charts take the rest."""
_CHARTS_SHARE: Final = 40
"""Percentage of the lines that pictures beside a detail may have before the table's rows."""
_MIN_CHART_LINES: Final = 7
_MIN_WIDE_PICTURE: Final = 8
"""Lines of a picture at full width; a shorter one is drawn beside the table."""


class Arrangement(Struct, frozen=True):
    """Heights and widths of the parts; 0: not shown."""

    too_small: bool = False
    lines: bool = True
    """Whether the breadcrumb, the status and the keys are shown."""
    figures: int = 1
    """Lines of the key figures or the headline."""
    charts: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    """Two above the table, two in the pane at the right, two beside the cards."""
    table: int = 0
    """Lines of the table where cards are below it; 0: the rest."""
    cards_side: int = 0
    """Width of the pane beside the cards."""
    cards_below: int = 0
    """Lines of charts below the cards, where these leave some."""
    only_cards: bool = False
    """Whether cards stand in place of the table."""
    evidence: int = 0
    """Lines of the evidence below these cards."""
    side: int = 0
    """Width of the pane at the right."""
    pictures: tuple[int, int] = (0, 0)
    """Height of a view's picture above the table, and in the pane at the right."""
    gpus: int = 0
    sparks: int = 1
    """Columns of sparklines, where the table has room for them."""


def arrange(
    width: int,
    height: int,
    *,
    chart: str = "small",
    zoom: bool = False,
    gpus: int = 0,
    picture: int = 0,
    pictures: int = 0,
    rows: int = 0,
    headline: int = 0,
    along_time: bool = False,
    cards: bool = False,
    card_lines: int = 0,
    card_gaps: int = 0,
    only_cards: bool = False,
    split: int = 0,
    signals: bool = False,
) -> Arrangement:
    """The arrangement for a size; `gpus` is the number of lines for the row on every GPU.

    A view's `picture` replaces the charts of the tree and gets the lines that the table doesn't
    need for its `rows`, up to those it wants; its other charts follow in the rest, up to the lines
    of all `pictures`. `headline` are the lines of the view's headline. A timeline has the full
    width above the table. With `cards` below the table it has the lines of its rows, and they the
    rest: `card_lines` are those of all cards, `card_gaps` the blank ones among them; with
    `only_cards` there is no table, and the evidence of one has the lines that they leave. `split`
    are lines that a person moved up or down; with `signals` a picture has curves beside it.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement(too_small=True, lines=False, figures=0)
    if width < _ALL_PARTS_FROM[0] or height < _ALL_PARTS_FROM[1]:
        # Cards have the keys: they are in sight, below a part of the table.
        table = min(rows + 1, height // 2) if cards and not zoom else 0
        return Arrangement(lines=False, figures=0, only_cards=only_cards, table=table)
    if cards:
        return _over_cards(
            width, height, picture, rows, headline, zoom, split, card_lines, card_gaps
        )
    figures = min(max(headline, 1), _MAX_HEADLINE_LINES[height >= _TWO_CHARTS_FROM])
    middle = height - 3 - figures
    wide = width >= _SIDE_FROM
    if only_cards:
        rest = middle - card_lines
        if rest < _MIN_EVIDENCE_LINES <= rest + card_gaps:
            rest += card_gaps  # evidence is worth more than blank lines between cards
        has_room = bool(card_lines) and not zoom and rest >= _MIN_EVIDENCE_LINES
        evidence = _split(rest, -split, middle) if has_room else 0
        return Arrangement(figures=figures, only_cards=True, evidence=evidence)
    if along_time:
        side = max(42, width * 40 // 100) if wide and not zoom else 0
        below = 0 if zoom else min(max(rows + 1, _DETAIL_LINES if side else 0), max(middle // 3, 4))
        above = middle if zoom else _split(min(picture, middle - below), split, middle)
        return Arrangement(figures=figures, pictures=(above, 0), side=side)
    if zoom:
        return Arrangement(figures=0, sparks=2 if wide else 1)
    if picture and wide:
        return _beside_detail(
            width, middle, figures, chart, picture, pictures, rows, split, signals
        )
    if picture:
        above = _above_table(middle, chart, picture, pictures, rows)
        return Arrangement(figures=figures, pictures=(_split(above, split, middle), 0))
    sparks = 2 if width >= _TWO_SPARKS_FROM else 1
    full = max(middle // 2, 4)
    small = 4 if height < 40 else 6
    if not wide:
        spare = middle - rows - 1 if rows else 0
        above = {"small": max(small, spare), "full": max(full, spare)}.get(chart, 0)
        above = _split(above, split, middle) if above else 0
        return Arrangement(figures=figures, charts=(above, 0, 0, 0, 0, 0), sparks=2)
    side = max(42, width * 36 // 100)
    table = max(rows + 1, min(_WIDE_DETAIL_LINES, middle // 2))
    above = _split(middle - table, split, middle)
    if chart != "off" and rows and above >= 2 * _MIN_CHART_LINES:
        # The table is as high as its rows; curves are read at full width.
        return Arrangement(
            figures=figures,
            charts=(*_two(above), 0, 0, 0, 0),
            side=side,
            gpus=min(gpus + 3, (middle - above) // 2) if gpus else 0,
            sparks=sparks,
        )
    both = {"small": max(6, min(height // 3, 20)), "full": full}.get(chart, 0)
    both = _split(both, split, middle) if both else 0
    upper, lower = _two(both) if height >= _TWO_CHARTS_FROM else (both, 0)
    # Clock and utilisation stay in sight: what has no chart has sparklines.
    sparks = sparks if lower else 2
    room = middle - both
    return Arrangement(
        figures=figures,
        charts=(0, 0, upper, lower, 0, 0),
        side=side,
        gpus=min(gpus + 3, max(room // 3, 0)) if gpus else 0,
        sparks=sparks,
    )


def _split(lines: int, split: int, middle: int) -> int:
    """The lines above a table, moved by a person."""
    return max(min(lines + split, middle - 2), 0) if split else lines


def _two(lines: int) -> tuple[int, int]:
    """Lines for two charts: the lower one has the time axis, which takes two."""
    lower = min(lines // 2 + 1, lines)
    return lines - lower, lower


def _above_table(middle: int, chart: str, picture: int, pictures: int, rows: int) -> int:
    """The lines of pictures: what the table doesn't need, and a whole picture where it scrolls."""
    most = max(middle * 3 // 5, 0)
    # A table scrolls; of a picture that is cut the rows below are not seen.
    whole = picture if picture <= middle - _MIN_TABLE_LINES else 0
    small = max(middle * 2 // 5, 6, whole, min(picture, middle - rows - 1))
    room = {"small": small, "full": max(most, small)}.get(chart, 0)
    return max(min(room, picture), min(pictures, middle - rows - 1)) if room else 0


def _beside_detail(
    width: int,
    middle: int,
    figures: int,
    chart: str,
    picture: int,
    pictures: int,
    rows: int,
    split: int,
    signals: bool,
) -> Arrangement:
    """On a wide terminal: pictures above at full width where they fit, else beside the table."""
    side = max(42, width * 40 // 100)
    sparks = 1 if width < _TWO_SPARKS_FROM else 2
    below = max(rows + 1, _DETAIL_LINES)
    whole = picture if picture <= middle // 2 else 0
    # A long table scrolls: the charts below the first have some lines of it.
    least = middle * _CHARTS_SHARE // 100 if whole else 0
    above = max(whole, min(pictures, max(middle - below, least)))
    if chart == "full" and above:
        above = max(above, min(pictures, middle * 3 // 5))
    if chart == "off":
        return Arrangement(figures=figures, side=side, sparks=sparks)
    if above < min(picture, _MIN_WIDE_PICTURE):
        room = middle * 3 // 5 if chart == "full" else middle // 2
        return Arrangement(
            figures=figures, pictures=(0, _split(room, split, middle)), side=side, sparks=sparks
        )
    above = _split(above, split, middle)
    # Clock and utilisation have the lines that a detail leaves.
    rest = middle - above - _DETAIL_LINES
    curves = _two(rest) if signals and rest >= 2 * _MIN_CHART_LINES else (0, 0)
    return Arrangement(
        figures=figures, charts=(0, 0, *curves, 0, 0), pictures=(above, 0), side=side, sparks=sparks
    )


def _over_cards(
    width: int,
    height: int,
    picture: int,
    rows: int,
    headline: int,
    zoom: bool,
    split: int,
    wanted: int,
    gaps: int,
) -> Arrangement:
    """A picture, the table as high as its rows, and cards in the rest.

    Lines that cards don't need go to charts: beside them on a wide terminal, else below.
    """
    figures = min(max(headline, 1), _MAX_HEADLINE_LINES[height >= _TWO_CHARTS_FROM])
    if height < _LOW:
        figures = min(figures, _LOW_HEADLINE)
    picture = 0 if zoom else min(picture, max((height - 3 - figures) // 3, 2))
    room = height - 3 - figures - picture
    # A table that scrolls anyway leaves half of the lines to the cards.
    table = room // 2 if rows >= room else max(room - _MIN_CARD_LINES, room // 2)
    # Nothing is cut above lines that few cards leave blank.
    table = min(rows + 1, max(table, room - wanted if wanted else 1, 1))
    table = max(min(table + split, room), 1)
    rest = room - table
    if not zoom and rest >= _MIN_SPACED_LINES:
        # A blank line after the picture, and one after the table.
        picture, table, rest = picture + 1, table + 1, rest - 2
    if zoom or rest < 2:
        return Arrangement(figures=figures, pictures=(picture, 0))
    beside = width >= _SIDE_FROM + 20 and rest >= _MIN_CHARTS_BESIDE
    # Few cards leave the lines below them: curves are read at full width.
    side = width * 36 // 100 if beside and (not wanted or 2 * wanted > rest) else 0
    below = rest - wanted if wanted and not side else 0
    if not side and below < _MIN_CHART_LINES <= below + gaps:
        below += gaps  # a chart is worth more than blank lines between cards
    below = below if below >= _MIN_CHART_LINES else 0
    upper, lower = _two(below) if below >= 2 * _MIN_CHART_LINES else (0, below)
    return Arrangement(
        figures=figures,
        pictures=(picture, 0),
        table=table,
        cards_side=side,
        cards_below=below,
        charts=(0, 0, 0, 0, *(_two(rest) if side else (upper, lower))),
    )
