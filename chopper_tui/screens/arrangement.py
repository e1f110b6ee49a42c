"""What has room on the Explore screen: sizes of its parts for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALLEST: Final = (40, 10)
"""Below this nothing is drawn but a line that says so."""
_WHOLE: Final = (60, 16)
_SIDE_FROM: Final = 120

CHARTS: Final = ("small", "full", "off")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Heights and widths of the parts; 0: not shown."""

    too_small: bool = False
    lines: bool = True
    """Whether the breadcrumb, the status and the keys are shown."""
    figures: bool = True
    top_chart: int = 0
    side: int = 0
    """Width of the pane at the right."""
    side_chart: int = 0
    gpus: int = 0


def arrange(
    width: int, height: int, *, chart: str = "small", zoom: bool = False, gpus: int = 0
) -> Arrangement:
    """The arrangement for a size; `gpus` is the number of lines about the row on every GPU."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Arrangement(too_small=True, lines=False, figures=False)
    if width < _WHOLE[0] or height < _WHOLE[1]:
        return Arrangement(lines=False, figures=False)
    if zoom:
        return Arrangement(figures=False)
    middle = height - 4
    full = max(middle // 2, 4)
    if width < _SIDE_FROM:
        small = 4 if height < 40 else 6
        return Arrangement(top_chart={"small": small, "full": full}.get(chart, 0))
    side = max(42, width * 36 // 100)
    tall = {"small": max(6, min(height // 5, 11)), "full": full}.get(chart, 0)
    room = middle - tall
    lines = min(gpus + 2, max(room // 3, 0)) if gpus else 0
    return Arrangement(side=side, side_chart=tall, gpus=lines)
