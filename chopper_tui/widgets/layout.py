"""Which parts of the explorer a terminal shows, and the lines above its divider.

`chopper.tcss` lays the parts out by the classes given here.
"""

from __future__ import annotations

from typing import Final

_BREAKPOINTS: Final = {
    "-fits": (40, 10),
    "-lines": (60, 16),
    "-tall": (60, 30),
    "-wide": (120, 16),
    "-large": (160, 30),
}
"""Columns and lines of a terminal from which a class of the screen holds."""


def size_classes(width: int, height: int) -> dict[str, bool]:
    return {
        name: width >= columns and height >= lines
        for name, (columns, lines) in _BREAKPOINTS.items()
    }


def lines_above(body: int, *, upper: int, lower: int, share: float, moved: int = 0) -> int:
    """The lines above the divider in a body of lines.

    The part above it gets what the one below leaves of `lower`, at least its share and at most
    `upper`; a person `moved` it. Of what both leave, the part below has the rest.
    """
    lines = min(upper, max(round(share * body), body - lower))
    return min(max(lines + moved, 0), max(body - 2, 0))
