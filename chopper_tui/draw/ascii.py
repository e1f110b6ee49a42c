"""The screen in ASCII, for terminals and locales without UTF-8."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from chopper_core.render.cells import cell_width

_STAND_INS: Final = str.maketrans(
    dict.fromkeys("─━▔▁", "-")
    | dict.fromkeys("│┃▏▎▊▐", "|")
    | dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+")
    | dict.fromkeys("█▪", "#")
    | dict.fromkeys("‘’", "'")
    | dict.fromkeys("“”", '"')
    | dict.fromkeys("–—", "-")
    | {
        "µ": "u",
        "×": "x",
        "·": ".",
        "…": "~",
        "●": "*",
        "•": "*",
        "▌": "|",
        "Δ": "d",
        "°": " ",
    }
    | {"⏎": "<", "←": "<", "→": ">", "↑": "^", "↓": "v", "▲": "^", "▼": "v", "›": ">"}
)


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """Text in ASCII of the same width."""
    return "".join(
        char if char.isascii() else "?" * cell_width(char) for char in text.translate(_STAND_INS)
    )


class AsciiFilter(LineFilter):
    """Replaces what is not ASCII, as the last filter."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments in ASCII."""
        return [
            segment if segment.control else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]
