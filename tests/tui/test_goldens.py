"""What the explorer looks like, as text: set CHOPPER_UPDATE_GOLDENS=1 to write it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.views.shared.told_findings import told_of_run
from tests.tui.explorer import explorer, measured_run

pytestmark = pytest.mark.golden

GOLDEN = Path(__file__).parent / "golden"
DEEP = ("3", "11", "backward", "2")


def compare(name: str, text: str) -> None:
    """Compare with a golden file, or write it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("CHOPPER_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["root", "layer"])
async def test_the_screen(name: str) -> None:
    view = View("sample.json", DEEP if name == "layer" else ())
    async with explorer((80, 24), view=view) as at:
        compare(f"{name}_80x24", at.text())


@pytest.mark.parametrize("name", ["root", "layer"])
async def test_the_screen_with_telemetry(name: str) -> None:
    view = View("sample.json", DEEP if name == "layer" else ())
    async with explorer((80, 24), measured_run(), view) as at:
        compare(f"{name}-telemetry_80x24", at.text())


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_ascii(size: tuple[int, int]) -> None:
    async with explorer(size, view=View("sample.json", DEEP), glyphs=ASCII) as at:
        text = at.text()
        assert text.isascii()
        if size == (80, 24):
            compare("layer-ascii_80x24", text)


async def test_a_terminal_that_is_too_small_says_so() -> None:
    async with explorer((30, 8)) as at:
        assert at.text().strip() == "too small: 40x10 needed"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("help", ["?"]),
        ("detail", ["j", "i"]),
        ("sort", ["o"]),
        ("pivot", ["p"]),
        ("filter", ["/", "t", "t"]),
        ("command", [":", "s", "o"]),
        ("zoom", ["z"]),
        ("full-chart", ["c"]),
        ("names", ["x"]),
        ("palette", ["ctrl+p", "g", "p", "u"]),
    ],
)
async def test_what_a_key_opens(name: str, keys: list[str]) -> None:
    async with explorer((80, 24), view=View("sample.json", DEEP), glyphs=UNICODE) as at:
        # The palette lists the findings once they are known, here before any other test asks.
        told_of_run(at.explore.run, at.explore.view)
        await at.press(*keys)
        compare(f"{name}_80x24", at.text())


async def test_the_choice_of_signals() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json", DEEP)) as at:
        await at.press("m")
        compare("signals_80x24", at.text())
