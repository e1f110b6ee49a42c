"""The command line: completion, history, the address to edit; snapshots as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from chopper_core.model.view import View
from chopper_tui.actions import ACTIONS
from chopper_tui.completions import MORE, arguments_of, completions
from chopper_tui.screen import Explorer
from chopper_tui.widgets.dialogs import Chooser
from chopper_tui.widgets.footer import Prompt, Status
from tests.tui.explorer import Driven, explorer, sample_run

WORDS = {
    "theme": ("dark", "light"),
    "sort": ("name", "-time"),
    "columns": ("default", "time", "gfx", "-gfx"),
    "columns…": ("time", "gfx", "-gfx"),
    "stat": ("mean", "max"),
    "stat…": ("gpu", "phase"),
}


def value(at: Driven) -> str:
    return at.explore.query_one("Prompt PromptLine", Input).value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pi", ["pivot "]),
        ("q", ["quit"]),
        ("theme ", ["theme dark", "theme light"]),
        ("theme l", ["theme light"]),
        ("the l", ["the light"]),
        ("sort -", ["sort -time"]),
        ("nonsense ", []),
        ("quit ", []),
        ("columns d", ["columns default"]),
        ("columns time,g", ["columns time,gfx"]),
        ("columns -gfx,-", ["columns -gfx,-gfx"]),
        ("stat me", ["stat mean"]),
        ("stat max g", ["stat max gpu"]),
        ("stat max gpu,p", ["stat max gpu,phase"]),
        ("go RUN:gpu=0?view=k", ["go RUN:gpu=0?view=k, further"]),
    ],
)
def test_what_completes_a_command(text: str, expected: list[str]) -> None:
    assert completions(text, ACTIONS, WORDS, lambda begun: [f"{begun}, further"]) == expected


async def test_tab_completes_and_goes_round() -> None:
    async with explorer() as at:
        await at.press(":")
        await at.type("piv")
        await at.press("tab")
        assert value(at) == "pivot "
        await at.press("tab")
        assert value(at) == "pivot gpu"
        await at.press("tab")
        assert value(at) == "pivot iteration"
        await at.press("shift+tab")
        assert value(at) == "pivot gpu"
        await at.press("tab", "enter")
        assert at.frame.level == "iteration"


async def test_the_arrows_recall_what_was_entered() -> None:
    async with explorer() as at:
        await at.command("sort -time")
        await at.command("sort name")
        await at.press(":")
        await at.type("zo")
        await at.press("up", "up", "up")
        assert value(at) == "sort -time"
        await at.press("down", "down", "down")
        assert value(at) == "zo"
        await at.press("up", "up", "enter")
        assert at.frame.sort == "-elapsed_ns"


async def test_a_snapshot_as_picture_and_as_md(tmp_path: Path) -> None:
    async with explorer() as at:
        await at.command("snapshot svg")
        [picture] = (tmp_path / "chopper-snapshots").glob("*.svg")
        text = picture.read_text(encoding="utf-8")
        assert text.startswith("<svg") and "sample.json" in text and "@font-face" not in text
        await at.command("snapshot md here.md")
        assert "| " in (tmp_path / "here.md").read_text(encoding="utf-8")


NO_WORDS = ("at", "by", "of", "measure", "bench", "open", "report")
ELSEWHERE = ("view", "snapshot", "export")
"""Views and files are opened by other tests."""


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("path", "name"),
    [((), ""), (("1", "11"), "kernels"), ((), "heatmap"), (("0", "10", "forward", "1"), "compare")],
)
async def test_every_argument_completes_to_what_is_taken(path: tuple[str, ...], name: str) -> None:
    """Words that Tab offers are no errors, once a comparison has its number: two of each verb."""
    view = View("sample.json", path, name=name)
    async with explorer((100, 30), view=view) as at:
        words = arguments_of(at.explore.run, at.frame)
        taking = {action.id: action for action in ACTIONS if action.takes}
        assert {name.removesuffix(MORE) for name in words} | {"go"} == set(taking)
        del taking["go"]
        for name, action in taking.items():
            assert words[name] or name in NO_WORDS, name
            offered = words[name][:2] if name not in ELSEWHERE else ()
            for word in offered:
                await at.command(f"{action.verb} {word}{'0' * word.endswith('>')}")
                if not isinstance(at.app.screen, Explorer):
                    await at.press("escape")
                error = at.explore.query_one(Status).is_error
                assert not error, f"{action.verb} {word}: {at.status}"
                await at.explore.go(at.explore.trail_to(view))
                await at.settle()


PASTED = (
    "a\x7fb",
    "a\x01b",
    "a\tb",
    "\x1b[31mx",
    "a\x9b",
    "\ud800x",
    "\u202ex",
    "e\u0301",
    "\n",
    "",
)


@pytest.mark.few(2)
@pytest.mark.parametrize("opener", ["/", ":", "ctrl+p", "go", "o"])
async def test_any_text_can_be_pasted_into_any_prompt(opener: str) -> None:
    async with explorer((80, 24), sample_run(), View("sample.json")) as at:
        await (at.command("go") if opener == "go" else at.press(opener))
        for text in PASTED:
            at.paste(text)
            await at.press("left", "x")
            assert at.text().replace("\n", "").isprintable()
            if isinstance(at.app.focused, Input):
                assert at.app.focused.value.isprintable()


@pytest.mark.few(4)
@pytest.mark.parametrize("keys", ["0", "?", "i", "!", "?/gpu", "0j/", ":tour\n"])
async def test_a_command_can_be_typed_over_any_text(keys: str) -> None:
    async with explorer((80, 24), sample_run(), View("sample.json")) as at:
        await at.press(*("enter" if key == "\n" else key for key in keys))
        if "/" in keys:
            await at.press("escape")
        await at.command("filter gpu:1")
        assert at.app.screen is at.explore and at.frame.view.filter == "gpu:1"


async def test_a_colon_in_the_palette_searches_for_a_command() -> None:
    async with explorer((80, 24), sample_run(), View("sample.json")) as at:
        await at.press("ctrl+p", *":theme")
        assert isinstance(at.app.screen, Chooser) and "/:theme" in at.text()
        before = at.app.theme
        await at.press("enter")
        assert at.app.screen is at.explore and at.app.theme != before


@pytest.mark.parametrize(("key", "depth"), [("escape", 1), ("h", 0)])
async def test_the_first_escape_clears_the_filter(key: str, depth: int) -> None:
    async with explorer((80, 24), sample_run(), View("sample.json")) as at:
        await at.press("enter", "/", "1", "enter")
        assert at.frame.view.filter == "1"
        await at.press(key)
        assert (len(at.path), at.frame.view.filter) == (depth, "")
        await at.press("1", "3", "/", "g", "enter", "escape")
        assert (at.frame.view.name, at.frame.view.filter) == ("kernels", "")
        await at.press("escape")
        assert at.frame.view.name == ""


@pytest.mark.sweep
async def test_a_filter_that_leaves_no_row_is_explained_while_it_is_typed() -> None:
    async with explorer((80, 24), sample_run(), View("sample.json", name="kernels")) as at:
        await at.press("/", *"class=gem")
        assert not len(at.frame) and "class is gemm" in at.status
        await at.press("m")
        assert len(at.frame) and not at.status


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("kernel t", "kernel time ms>"), ("gemm mean", "gemm mean "), ("class:g", "class:gemm")],
)
async def test_the_filter_completes_headings_as_shown_and_values(typed: str, offered: str) -> None:
    async with explorer((120, 30), view=View("sample.json", name="kernels")) as at:
        await at.press("/")
        line = at.explore.query_one(Prompt).line
        line.value, line.cursor_position = typed, len(typed)
        await at.press("tab")
        assert line.value.startswith(offered)
        if line.value.endswith(">"):
            line.value += "0"
        await at.press("enter")
        assert len(at.frame) and not at.explore.status.is_error
