"""One name per thing: tabs, titles, headings, help, keys and docs use the same words."""

from __future__ import annotations

import re
from typing import Final

import pytest

from chopper_core.analyses import step_account, time_parts
from chopper_core.columns import METRICS
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError
from chopper_core.views import PLACES, TABS, VIEWS, view_spec
from chopper_core.views.query import query
from chopper_tui.actions import ACTIONS
from chopper_tui.widgets.reader import help_text, tab_rows
from tests.demo import ROOT, demo_run
from tests.support import sample_run

NOT_SAID: Final = {
    r"MFMA utili[sz]ation": "idle matrix units",
    r"unattributed|unattrib\.": "not explained",
    r"possibly frequency": "possibly low clock",
    r"launch ovh|prep ovh|call ovh": "start delay, before launch, after launch",
    r"% of scope": "% of parent",
    r"iterations? \d": "step",
    r"\bit \d": "step",
    r"per iteration\b": "per step",
}
"""What nobody reads any more → the word that stands for it."""
HAND_WRITTEN: Final = ("README.md", "docs/findings.md", "docs/graph.md", "docs/runs.md")


def said(text: str) -> list[str]:
    return [pattern for pattern in NOT_SAID if re.search(pattern, text)]


def test_tabs_help_and_specifications_have_the_same_names() -> None:
    rows = {row.name: row for row in tab_rows()}
    for name, tab in TABS.items():
        assert (rows[name].key, rows[name].title) == (tab.place, tab.name)
        assert tab.name.startswith(PLACES[tab.place])
    for name in VIEWS:
        assert view_spec(name).title == TABS[name].name
    shown = str(help_text(ACTIONS, query(sample_run(), View("sample.json")), 200))
    for tab in TABS.values():
        assert f"{tab.place}  {tab.name}" in shown
    by_digit = next(each for each in ACTIONS if each.id == "view").help
    assert ", ".join(PLACES.values()) in by_digit.replace("its digit: ", "")


def test_losses_have_one_name_wherever_they_are_listed() -> None:
    for name, title in time_parts.LOSSES.items():
        assert step_account.TITLES.get(name, title) == title
    assert time_parts.TITLES[time_parts.THEORY] == step_account.TITLES[time_parts.THEORY]


def test_titles_keys_and_help_leave_out_what_is_not_said() -> None:
    for metric in METRICS.values():
        if not metric.name.startswith("original"):
            assert not said(metric.title), metric.name
    for action in ACTIONS:
        assert not said(f"{action.title}. {action.help}"), action.id


@pytest.mark.parametrize("name", ["", *VIEWS])
def test_a_frame_leaves_out_what_is_not_said(name: str) -> None:
    try:
        frame = query(demo_run(), View(demo_run().name, name=name))
    except ChopperError as reason:
        assert not said(str(reason))
        return
    charts = [getattr(chart, "title", "") for chart in frame.charts]
    texts = [*frame.headline, *frame.notes, *charts, *(each.title for each in frame.columns)]
    if frame.level not in ("kernel", "operation"):
        texts += frame.labels
    assert {text: said(text) for text in texts if said(text)} == {}


@pytest.mark.parametrize("page", HAND_WRITTEN)
def test_pages_leave_out_what_is_not_said(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|<!-- (\w+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    assert said(prose) == []
