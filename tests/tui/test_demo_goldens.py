"""Every screen and level of the demo run at 80x24, four of them at 200x60 as well.

CHOPPER_UPDATE_GOLDENS=1 writes them anew.
"""

from __future__ import annotations

from functools import cache

import pytest

from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.view import Baseline, View
from chopper_core.views import VIEWS
from tests.demo import demo_run
from tests.tui.explorer import explorer
from tests.tui.test_goldens import compare

pytestmark = pytest.mark.golden

SMALL, LARGE = (80, 24), (200, 60)
LARGE_SCREENS = ("overview", "findings", "ranks", "timeline")
"""Few, so that a new metric changes few files; the fourth is the tree's first level."""
NOTHING_TO_SHOW = ("memory", "experts", "pipeline", "training")
"""Views that the demo has no data for: the tree opens in their place, with the reason."""
DEEP = ("5", "11", "backward", "17", "attn_fa")
STEP = DEEP[:2]


@cache
def demo() -> Run:
    """The demo run, the same for all tests here: what views keep with it serves the next."""
    return demo_run()


def at_depth(depth: int) -> View:
    """A view of GPU 5, as deep as the levels go; 7 lists activities, 8 is a single one."""
    name = demo().name
    if depth < len(DEEP) + 1:
        return View(name, DEEP[:depth])
    kernel = demo().tree().children(DEEP).labels[0]
    return View(name, (*DEEP, kernel, "0")[:depth])


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("depth", "size"), [*((depth, SMALL) for depth in range(len(LEVELS) + 2)), (0, LARGE)]
)
async def test_the_tree(depth: int, size: tuple[int, int]) -> None:
    name = (*LEVELS, "activities", "activity")[depth]
    async with explorer(size, demo(), at_depth(depth)) as at:
        compare(f"demo/explore-{name}_{size[0]}x{size[1]}", at.text())


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("name", "size"),
    [*((name, SMALL) for name in VIEWS), *((name, LARGE) for name in LARGE_SCREENS)],
)
async def test_the_screens(name: str, size: tuple[int, int]) -> None:
    baseline = Baseline("", ("3", "11")) if name == "compare" else None
    view = View(demo().name, STEP, name=name, baseline=baseline)
    async with explorer(size, demo(), view) as at:
        if name in NOTHING_TO_SHOW:
            assert not at.frame.view.name and at.explore.status.is_error
        else:
            assert at.frame.view == view and not at.status
        compare(f"demo/{name}_{size[0]}x{size[1]}", at.text())


@pytest.mark.parametrize(
    ("name", "keys"), [("info", ["!"]), ("baselines", ["8"]), ("base", ["b", "}", "H", "{"])]
)
async def test_what_keys_lead_to(name: str, keys: list[str]) -> None:
    async with explorer(SMALL, demo(), View(demo().name, STEP)) as at:
        await at.press(*keys)
        compare(f"demo/{name}_80x24", at.text())
