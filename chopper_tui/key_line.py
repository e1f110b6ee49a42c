"""The key figures of a scope, as the line over its table says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chopper_core.model.view import View
from chopper_core.render.glyphs import Glyphs
from chopper_tui.draw.figures import Figure

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
"""Figure → what stands before it, the most telling first; some need nothing but their unit."""
_MEASURED: Final = ("gfx_mhz", "gfx_util_pct", "power_w")


def key_line(figures: Mapping[str, Figure], view: View, glyphs: Glyphs) -> list[tuple[str, str]]:
    """(title, figure) of what a scope adds up to; no telemetry, no word of it."""
    line = []
    for name, title in KEY_FIGURES.items():
        figure = figures[name]
        if name in _MEASURED and figure.number is None:
            continue
        is_sum = name == "elapsed_ns" and "gpu" not in dict(view.scope)
        line.append(("GPU time" if is_sum else title, _text(figure, glyphs)))
    return line


def _text(figure: Figure, glyphs: Glyphs) -> str:
    if figure.metric.unit == "%" and figure.number is not None:
        # Nearly all is not all: 99.8 isn't written as 100.
        decimals = int(99.5 <= figure.number < 99.95)
        return f"{'~' if figure.held else ''}{figure.number:.{decimals}f}%"
    return figure.text(glyphs, short=True)
