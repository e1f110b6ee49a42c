"""What has room on the Explore screen: sizes of its parts for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALLEST: Final = (40, 10)
"""Below this nothing is drawn but a line that says so."""
_WHOLE: Final = (60, 16)
_SIDE_FROM: Final = 120
_TWO_SPARKS_FROM: Final = 160
_TWO_CHARTS_FROM: Final = 30
"""Lines of the terminal."""

CHARTS: Final = ("small", "full", "off")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Heights and widths of the parts; 0: not shown."""

    too_small: bool = False
    lines: bool = True
    """Whether the breadcrumb, the status and the keys are shown."""
    figures: bool = True
    charts: tuple[int, int, int] = (0, 0, 0)
    """Above the table, and two in the pane at the right."""
    side: int = 0
    """Width of the pane at the right."""
    gpus: int = 0
    sparks: int = 1
    """Columns of sparklines, where the table has room for them."""


def arrange(
    width: int, height: int, *, chart: str = "small", zoom: bool = False, gpus: int = 0
) -> Arrangement:
    """The arrangement for a size; `gpus` is the number of lines about the row on every GPU."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement(too_small=True, lines=False, figures=False)
    if width < _WHOLE[0] or height < _WHOLE[1]:
        return Arrangement(lines=False, figures=False)
    if zoom:
        return Arrangement(figures=False, sparks=2 if width >= _SIDE_FROM else 1)
    middle = height - 4
    full = max(middle // 2, 4)
    if width < _SIDE_FROM:
        small = 4 if height < 40 else 6
        return Arrangement(charts=({"small": small, "full": full}.get(chart, 0), 0, 0))
    side = max(42, width * 36 // 100)
    both = {"small": max(6, min(height // 3, 20)), "full": full}.get(chart, 0)
    # The lower one has the time axis: two lines more give both the same room for their curves.
    lower = min(both // 2 + 1, both) if height >= _TWO_CHARTS_FROM else 0
    room = middle - both
    lines = min(gpus + 3, max(room // 3, 0)) if gpus else 0
    return Arrangement(
        charts=(0, both - lower, lower),
        side=side,
        gpus=lines,
        sparks=2 if width >= _TWO_SPARKS_FROM else 1,
    )
