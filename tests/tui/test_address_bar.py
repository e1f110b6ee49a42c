"""The address that is edited at the bottom, and what Tab makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.model.address import parse, render
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View, enter
from chopper_core.views.query import query
from chopper_tui.completions import address_completions, arguments_of
from chopper_tui.widgets.footer import Prompt, PromptLine, Status
from chopper_tui.widgets.header import Crumbs
from tests.tui.explorer import Driven, explorer, measured_run, sample_run

RUN = "sample.json"
SIZES = [(80, 24), (40, 10), (200, 60)]


def bar(at: Driven) -> PromptLine:
    return at.explore.query_one(Prompt).line


def is_open(at: Driven) -> bool:
    return at.explore.query_one(Prompt).display


def offered(text: str, rest: str = "", view: View | None = None) -> list[str]:
    run = measured_run()
    return address_completions(run, query(run, view or View(RUN)), text, rest)


BASES = ("by", "base", "base_parallel")


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("text", "rest", "expected"),
    [
        ("", "", ["gpu="]),
        ("samp", "", [f"{RUN}:gpu="]),
        (RUN, "", [f"{RUN}:gpu="]),
        (f"{RUN}:", "", [f"{RUN}:gpu="]),
        (f"{RUN}:g", "", [f"{RUN}:gpu="]),
        (f"{RUN}:layer", "", []),
        ("gpu=", "", ["gpu=0", "gpu=1", "gpu=2", "gpu=3"]),
        (f"{RUN}:gpu=2", "", [f"{RUN}:gpu=2/iteration="]),
        ("gpu=9", "", []),
        ("gpu=9/", "", []),
        ("gpu=1/", "", ["gpu=1/iteration="]),
        ("gpu=1/it", "", ["gpu=1/iteration="]),
        ("gpu=1/iteration=", "", [f"gpu=1/iteration={each}" for each in (10, 11, 12)]),
        ("gpu=1/iteration=1", "", [f"gpu=1/iteration={each}" for each in (10, 11, 12)]),
        ("gpu=1/phase=", "", []),
        ("gpu=1/iteration=10/phase=f", "", ["gpu=1/iteration=10/phase=forward"]),
        # In the order that follows the cursor.
        ("", "?order=layer", ["layer="]),
        ("layer=1", "?view=kernels&order=layer", ["layer=1/gpu="]),
        ("layer=1", "?order=nonsense", []),
        # What begins nowhere is looked for inside.
        ("gpu=1/iteration=10/phase=IMIZ", "", ["gpu=1/iteration=10/phase=optimizer"]),
        ("gpu=0?vi", "", ["gpu=0?view="]),
        ("gpu=0?view=k", "", ["gpu=0?view=kernels"]),
        ("gpu=0?view=kernels&b", "", [f"gpu=0?view=kernels&{key}=" for key in BASES]),
        ("gpu=0?view=kernels&by=c", "", ["gpu=0?view=kernels&by=class"]),
        ("gpu=0?stat=m", "", [f"gpu=0?stat={each}" for each in ("mean", "median", "max", "min")]),
        ("gpu=0?ov", "", ["gpu=0?over="]),
        ("gpu=0?stat=max&over=gpu,la", "", ["gpu=0?stat=max&over=gpu,layer"]),
        ("gpu=0?fr", "", ["gpu=0?from="]),
        ("gpu=0?view=kernels&fr", "", ["gpu=0?view=kernels&from="]),
        ("gpu=0?view=timeline&fr", "", ["gpu=0?view=timeline&from="]),
        ("?order=ker", "", ["?order=kernel"]),
        ("?metric=pow", "", ["?metric=power_w"]),
        ("?sort=-gfx_m", "", ["?sort=-gfx_mhz"]),
        ("gpu=0?base=gpu=", "", [f"gpu=0?base=gpu={each}" for each in range(4)]),
        ("gpu=0?view=kernels&view", "", []),
        ("gpu=0?nonsense=", "", []),
    ],
)  # fmt: skip
def test_what_completes_an_address(text: str, rest: str, expected: list[str]) -> None:
    assert offered(text, rest) == expected


@pytest.mark.sweep
@given(data=st.data(), depth=st.integers(1, len(LEVELS)))
def test_steps_that_are_offered_lead_to_every_node(data: st.DataObject, depth: int) -> None:
    run, view, text = sample_run(), View(RUN), f"{RUN}:gpu="
    frame = query(run, view)
    for _ in range(depth):
        view = enter(view, data.draw(st.sampled_from(query(run, view).labels)))
        [step] = [each for each in address_completions(run, frame, text) if parse(each) == view]
        assert step == render(view)
        text = address_completions(run, frame, step)[0]
        assert text.startswith(f"{step}/") and text.endswith("=")


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_the_address_of_the_view_is_edited(size: tuple[int, int]) -> None:
    async with explorer(size, view=View(RUN, ("0", "11"))) as at:
        before = at.text()
        await at.press("ctrl+g")
        assert bar(at).value == at.frame.address
        assert at.lines()[-1].startswith(" @") and "gpu=0/iteration=11" in at.lines()[-1]
        await at.press("escape")
        assert at.text() == before
        await at.press("ctrl+g", "backspace")
        await at.type("0")
        await at.press("enter")
        assert at.path == ("0", "10") and not is_open(at)
        await at.press("ctrl+g", "up")
        assert bar(at).value == f"{RUN}:gpu=0/iteration=10"


async def test_a_long_address_is_seen_at_its_end() -> None:
    path = ("0", "10", "forward", "1", "attn_fa")
    async with explorer((40, 10), view=View(RUN, path)) as at:
        await at.press("ctrl+g")
        assert "operation=attn_fa" in at.lines()[-1] and len(bar(at).value) > 40
        await at.press("home")
        assert at.lines()[-1].startswith(f" @{RUN}:gpu=0")


async def test_the_path_is_edited_before_the_options() -> None:
    view = View(RUN, ("0",), name="kernels", by="class")
    async with explorer(view=view) as at:
        await at.press("ctrl+g", "tab")
        assert bar(at).value == f"{RUN}:gpu=0/iteration=?view=kernels&by=class"
        await at.press("tab")
        assert bar(at).value == f"{RUN}:gpu=0/iteration=10?view=kernels&by=class"
        assert "1 of 3:  10  11  12" in at.text()
        await at.press("tab", "tab", "shift+tab", "enter")
        assert at.frame.view == View(RUN, ("0", "11"), name="kernels", by="class")
        assert "1 of 3" not in at.text()


async def test_what_is_dim_behind_the_cursor_is_taken() -> None:
    async with explorer(view=View(RUN, ("0",))) as at:
        await at.press("ctrl+g", "/")
        assert "gpu=0/iteration=" in at.lines()[-1]
        await at.press("right")
        assert bar(at).value == f"{RUN}:gpu=0/iteration="
        await at.press("right", "enter")
        assert at.path == ("0", "10")


@pytest.mark.sweep
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gpu=0/iteration=99", "99"),
        ("phase=forward", "expected gpu, got 'phase'"),
        ("gpu=0?view=nonsense", "nonsense"),
        ("gpu=0?sort=nonsense", "nonsense"),
        ("gpu=0?colour=red", "colour"),
    ],
)
async def test_a_bad_address_says_why_and_can_be_edited(
    size: tuple[int, int], text: str, why: str
) -> None:
    async with explorer(size, view=View(RUN, ("1",))) as at:
        await at.press("ctrl+g", "ctrl+u")
        await at.type(text)
        await at.press("enter")
        status = at.explore.query_one(Status)
        assert is_open(at) and bar(at).value == text and at.path == ("1",)
        assert status.is_error and why in status.message and status.display
        assert sum(line.strip() != "" for line in at.lines()[-3:]) >= 1
        await at.press("ctrl+u")
        await at.type("gpu=2")
        await at.press("enter")
        assert at.path == ("2",) and not is_open(at) and at.status == ""


async def test_keys_while_an_address_is_edited_are_its_own() -> None:
    async with explorer() as at:
        await at.press("ctrl+g")
        await at.press("q", "?", ":")
        assert bar(at).value.endswith("q?:")
        await at.press("escape")
        assert "filter" in at.lines()[-1] and not is_open(at)


async def test_a_click_on_the_breadcrumb_edits_it() -> None:
    async with explorer(view=View(RUN, ("0",))) as at:
        step = at.text().splitlines()[1].index("GPU 0")
        await at.pilot.click(Crumbs, offset=(step, 0))
        await at.settle()
        assert is_open(at)


@pytest.mark.sweep
async def test_the_command_completes_addresses_too() -> None:
    async with explorer() as at:
        await at.press(":")
        await at.type("go gpu=1/it")
        await at.press("tab", "tab", "tab", "enter")
        assert at.path == ("1", "11")


def test_views_of_plugins_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chopper_core.util.plugins.plugins", lambda group: {"gaps": group})
    run = measured_run()
    assert offered("gpu=0?view=ga") == ["gpu=0?view=gaps"]
    assert "gaps" in arguments_of(run, query(run, View(RUN)))["view"]
