"""Names that people type mean the same everywhere, however they are spelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.columns.lookup import column_names
from chopper_core.model.address import parse
from chopper_core.model.view import SUM
from chopper_core.render.exports import format_named
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import bare, names_meant, near_names, one_named
from chopper_core.views import SET_VIEWS, TABS, VIEWS, parsed_view, view_name
from chopper_tui.actions import ACTIONS
from chopper_tui.keymap import find_command

NAMES = ("what_if", "whatever", "heat-map", "Ranks")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("what_if", ("what_if",)),
        ("What-If", ("what_if",)),
        ("what if", ("what_if",)),
        ("WHATIF", ("what_if",)),
        ("what", ("what_if", "whatever")),
        ("whate", ("whatever",)),
        ("heat_", ("heat-map",)),
        ("rank", ("Ranks",)),
        ("map", ()),
        ("", ()),
        ("-", ()),
    ],
)
def test_case_dashes_and_a_unique_beginning(typed: str, found: tuple[str, ...]) -> None:
    assert names_meant(typed, NAMES) == found


def test_a_whole_name_is_no_beginning_of_a_longer_one() -> None:
    assert names_meant("rank", ("rank", "ranks")) == ("rank",)
    assert names_meant("RANK", ("rank", "ranks")) == ("rank",)


def test_titles_are_names_too_and_several_for_one_are_one() -> None:
    titles = {"critical path": "graph", "Critical": "graph"}
    assert names_meant("criti", ("graph",), titles) == ("graph",)


def test_a_refusal_names_what_is_near_or_all() -> None:
    with pytest.raises(UsageError, match=r"^unknown map 'heatmop'; did you mean heat-map\?$"):
        one_named("map", "heatmop", NAMES)
    with pytest.raises(UsageError, match=r"^unknown map 'zzz'; the maps are what_if, whatever"):
        one_named("map", "zzz", NAMES)
    with pytest.raises(UsageError, match=r"^map 'what' may be what_if, whatever$"):
        one_named("map", "what", NAMES)
    assert near_names("rnaks", NAMES) == ["Ranks"]


@given(st.sampled_from([*VIEWS, *SET_VIEWS]), st.randoms())
def test_any_view_by_any_spelling(name: str, random) -> None:  # type: ignore[no-untyped-def]
    typed = "".join(random.choice((each.upper(), each, f"{each}-", f"{each}_")) for each in name)
    assert view_name(typed) == name
    assert parsed_view(f"R?view={typed}").name == name
    assert bare(typed) == bare(name)


def test_the_titles_of_tabs_are_views() -> None:
    for name, tab in TABS.items():
        assert view_name(tab.name.upper()) == name
    assert parsed_view("R?view=tree").name == ""


@pytest.mark.parametrize(
    ("typed", "verb", "argument"),
    [
        ("whatif", "view", "whatif"),
        ("What-If no contention", "what-if", "no contention"),
        ("what_if no contention", "what-if", "no contention"),
        ("view what-if", "view", "what-if"),
        ("Heat Map", "view", "heatmap"),
        ("roof", "view", "roofline"),
        ("THEME dark", "theme", "dark"),
        ("snap csv", "snapshot", "csv"),
    ],
)
def test_commands_are_as_forgiving(typed: str, verb: str, argument: str) -> None:
    action, rest = find_command(ACTIONS, typed)
    assert (action.verb, rest) == (verb, argument)


def test_statistics_levels_columns_and_formats_are_as_forgiving() -> None:
    assert parse("R?stat=Mean&over=Step").stat == "mean"
    assert parse("R?stat=Mean&over=Step").over == ("iteration",)
    assert parse("R?stat=SUM").stat == parse(f"R?stat={SUM}").stat
    assert parse("R?order=Step,GPU").order[:2] == ("iteration", "gpu")
    assert column_names(["-Elapsed-NS", "gfx mhz"]) == ("-elapsed_ns", "gfx_mhz")
    assert format_named("Perfetto") == format_named("perf") == "perfetto"


@pytest.mark.parametrize("typed", ["q", "q!", ":wq", "qa!", "x", "exit", "Quit"])
def test_the_words_of_vim_and_of_shells_quit(typed: str) -> None:
    assert find_command(ACTIONS, typed)[0].verb == "quit"
