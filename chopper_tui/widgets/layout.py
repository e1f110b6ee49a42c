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

_MIN_CARD_LINES: Final = 6
"""Lines for cards before the table has those of all its rows."""
_MIN_CHARTS_BESIDE: Final = 12
"""Lines from which charts stand beside cards."""
_MIN_SPACED_LINES: Final = 24
"""Lines below the table from which blank lines set its parts apart."""

_DETAIL_LINES: Final = 16
"""Lines that the detail beside a table needs."""


class Arrangement(Struct, frozen=True):
    """Heights and widths of the parts; 0: not shown."""

    too_small: bool = False
    lines: bool = True
    """Whether the breadcrumb, the status and the keys are shown."""
    figures: int = 1
    """Lines of the key figures or the headline."""
    charts: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    """Above the table, two in the pane at the right, two beside the cards."""
    table: int = 0
    """Lines of the table where cards are below it; 0: the rest."""
    cards_side: int = 0
    """Width of the pane beside the cards."""
    side: int = 0
    """Width of the pane at the right."""
    pictures: tuple[int, int] = (0, 0)
    """Height of a view's picture above the table, and in the pane at the right."""
    gpus: int = 0
    sparks: int = 1
    """Columns of sparklines, where the table has room for them."""
    sentence: int = 0
    """Lines under the table for the sentence of the cursor's row."""


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
    sentence: int = 0,
    along_time: bool = False,
    cards: int = 0,
) -> Arrangement:
    """The arrangement for a size; `gpus` is the number of lines for the row on every GPU.

    A view's `picture` replaces the charts of the tree and gets the lines that the table doesn't
    need for its `rows`, up to those it wants; its other charts follow in the rest, up to the lines
    of all `pictures`. `headline` and `sentence` are the lines of the view's headline and of the
    longest sentence of a row. A timeline has the full width above the table. `cards` are the lines
    that cards below the table want: the table has those of its rows, the cards the rest.
    """
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement(too_small=True, lines=False, figures=0)
    if width < _ALL_PARTS_FROM[0] or height < _ALL_PARTS_FROM[1]:
        return Arrangement(lines=False, figures=0)
    if cards:
        return _over_cards(width, height, 0 if zoom else picture, rows, headline, zoom)
    figures = min(max(headline, 1), _MAX_HEADLINE_LINES[height >= _TWO_CHARTS_FROM])
    if along_time:
        middle = height - 3 - figures
        side = max(42, width * 40 // 100) if width >= _SIDE_FROM and not zoom else 0
        below = 0 if zoom else min(max(rows + 1, _DETAIL_LINES if side else 0), max(middle // 3, 4))
        above = middle if zoom else min(picture, middle - below)
        return Arrangement(figures=figures, pictures=(above, 0), side=side)
    if zoom:
        return Arrangement(figures=0, sparks=2 if width >= _SIDE_FROM else 1)
    middle = height - 3 - figures
    full = max(middle // 2, 4)
    if picture:
        most = middle * 3 // 5
        # A table scrolls; of a picture that is cut the rows below are not seen.
        whole = picture if picture <= most else 0
        small = max(middle * 2 // 5, 6, whole, min(picture, middle - rows - 1))
        room = {"small": small, "full": max(most, small)}.get(chart, 0)
        if width < _SIDE_FROM:
            above = max(min(room, picture), min(pictures, middle - rows - 1)) if room else 0
            return Arrangement(figures=figures, pictures=(above, 0))
        side = max(42, width * 40 // 100)
        return Arrangement(
            figures=figures,
            pictures=(0, max(room, middle // 2) if room else 0),
            side=side,
            sparks=1 if width < _TWO_SPARKS_FROM else 2,
        )
    if width < _SIDE_FROM and sentence:
        return Arrangement(figures=figures, sentence=min(sentence, middle - _MIN_TABLE_LINES))
    if width < _SIDE_FROM:
        small = 4 if height < 40 else 6
        above = {"small": small, "full": full}.get(chart, 0)
        return Arrangement(figures=figures, charts=(above, 0, 0, 0, 0))
    side = max(42, width * 36 // 100)
    both = {"small": max(6, min(height // 3, 20)), "full": full}.get(chart, 0)
    # The lower one has the time axis: two lines more give both the same room for their curves.
    lower = min(both // 2 + 1, both) if height >= _TWO_CHARTS_FROM else 0
    room = middle - both
    lines = min(gpus + 3, max(room // 3, 0)) if gpus else 0
    return Arrangement(
        figures=figures,
        charts=(0, both - lower, lower, 0, 0),
        side=side,
        gpus=lines,
        sparks=2 if width >= _TWO_SPARKS_FROM else 1,
    )


def _over_cards(
    width: int, height: int, picture: int, rows: int, headline: int, zoom: bool
) -> Arrangement:
    """A picture, the table as high as its rows, and cards in the rest."""
    figures = min(max(headline, 1), _MAX_HEADLINE_LINES[height >= _TWO_CHARTS_FROM])
    room = height - 3 - figures - picture
    table = min(rows + 1, max(room - _MIN_CARD_LINES, room // 2, 1))
    rest = room - table
    if not zoom and rest >= _MIN_SPACED_LINES:
        # A blank line after the picture, and one after the table.
        picture, table, rest = picture + 1, table + 1, rest - 2
    if zoom or rest < 2:
        return Arrangement(figures=figures, pictures=(picture, 0), table=room)
    side = width * 36 // 100 if width >= _SIDE_FROM + 20 and rest >= _MIN_CHARTS_BESIDE else 0
    both = rest
    # The lower one has the time axis: two lines more give both the same room for their curves.
    lower = both // 2 + 1 if side else 0
    return Arrangement(
        figures=figures,
        pictures=(picture, 0),
        table=table,
        cards_side=side,
        charts=(0, 0, 0, both - lower if side else 0, lower),
    )
