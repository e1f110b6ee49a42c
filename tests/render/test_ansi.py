"""Text in the colours of a terminal: the same text, with codes around it."""

from __future__ import annotations

import re

import pytest

from chopper_core.model.view import View
from chopper_core.render import as_text
from chopper_core.render.palette import (
    CIVIDIS,
    is_light,
    nearest_of_256,
    paint_for,
    painted,
    painted_on_dark,
    painted_on_light,
    plain,
)
from chopper_core.views.query import query
from chopper_tui.export import printed
from tests.tui.explorer import measured_run

SGR = re.compile(r"\x1b\[[\d;]*m")
VIEWS = ("", "kernels", "heatmap", "findings", "timeline")


@pytest.mark.parametrize("name", VIEWS)
def test_colours_change_no_character_of_a_table(name: str) -> None:
    frame = query(measured_run(), View("sample.json", name=name))
    coloured, bare = as_text(frame, paint=painted), as_text(frame)
    assert SGR.sub("", coloured) == bare and coloured != bare


def test_a_gpu_that_stands_out_is_tinted() -> None:
    frame = query(measured_run(), View("sample.json", columns=("elapsed_ns", "gfx_mhz")))
    row = next(line for line in as_text(frame, paint=painted).splitlines() if line.startswith("3 "))
    assert "\x1b[93m" in row


@pytest.mark.parametrize("format_name", ["markdown", "csv", "json"])
def test_only_text_is_coloured(format_name: str) -> None:
    run = measured_run()
    frame = query(run, View("sample.json", name="heatmap"))
    assert "\x1b" not in printed(frame, format_name, charted=run, paint=painted)
    assert "\x1b" in printed(frame, "text", charted=run, paint=painted)


def test_where_there_are_colours() -> None:
    assert paint_for(True, {"TERM": "xterm-256color"}) is painted
    assert paint_for(False, {"TERM": "xterm-256color"}) is plain
    assert paint_for(True, {"TERM": "xterm", "NO_COLOR": "1"}) is plain
    assert paint_for(True, {"TERM": "dumb"}) is plain and paint_for(True, {}) is plain


def test_true_colours_are_used_where_the_terminal_has_them() -> None:
    true = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    assert paint_for(True, true) is painted_on_dark
    assert paint_for(True, true | {"COLORFGBG": "0;15"}) is painted_on_light
    assert paint_for(True, true | {"NO_COLOR": "1"}) is plain
    assert painted_on_dark("x", "gemm") == "\x1b[38;2;95;149;228mx\x1b[0m"
    assert painted_on_dark("▀", "gemm/hidden") == ("\x1b[38;2;95;149;228;48;2;151;77;219m▀\x1b[0m")
    frame = query(measured_run(), View("sample.json", name="overview"))
    bare = printed(frame, "text")
    for paint in (painted_on_dark, painted_on_light):
        assert SGR.sub("", printed(frame, "text", paint=paint)).split() != []
        assert "38;2;" in printed(frame, "text", paint=paint) and "\x1b" not in bare


def test_the_nearest_colour_of_256_is_the_nearest() -> None:
    def rgb(code: int) -> tuple[int, ...]:
        if code >= 232:
            return (8 + 10 * (code - 232),) * 3
        steps = (0, 95, 135, 175, 215, 255)
        return tuple(steps[(code - 16) // 6**power % 6] for power in (2, 1, 0))

    for colour in CIVIDIS:
        own = tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
        distances = {
            code: sum((a - b) ** 2 for a, b in zip(own, rgb(code), strict=True))
            for code in range(16, 256)
        }
        assert distances[nearest_of_256(colour)] == min(distances.values())
    assert is_light("#ffffff") and not is_light("#00224e")
