"""What the explorer looks like, as text: set CHOPPER_UPDATE_GOLDENS=1 to write it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.render.glyphs import ASCII, UNICODE
from tests.tui.explorer import explorer, measured_run

GOLDEN = Path(__file__).parent / "golden"
DEEP = ("3", "11", "backward", "2")


def compare(name: str, text: str) -> None:
    """Compare with a golden file, or write it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("CHOPPER_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (60, 16), (50, 12), (30, 8)])
@pytest.mark.parametrize("name", ["root", "layer"])
async def test_the_screen(name: str, size: tuple[int, int]) -> None:
    view = View("sample.json", DEEP if name == "layer" else ())
    async with explorer(size, view=view) as at:
        compare(f"{name}_{size[0]}x{size[1]}", at.text())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (160, 50), (200, 60)])
@pytest.mark.parametrize("name", ["root", "layer"])
async def test_the_screen_with_telemetry(name: str, size: tuple[int, int]) -> None:
    view = View("sample.json", DEEP if name == "layer" else ())
    async with explorer(size, measured_run(), view) as at:
        compare(f"{name}-telemetry_{size[0]}x{size[1]}", at.text())


async def test_ascii() -> None:
    async with explorer((120, 40), view=View("sample.json", DEEP), glyphs=ASCII) as at:
        text = at.text()
        assert text.isascii()
        compare("layer-ascii_120x40", text)


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
        await at.press(*keys)
        compare(f"{name}_80x24", at.text())


async def test_the_choice_of_signals() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json", DEEP)) as at:
        await at.press("m")
        compare("signals_80x24", at.text())
