"""One name per thing: tabs, titles, headings, help, keys and docs use the same words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
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
    r"unattributed|unattrib\.|unmodelled": "not explained",
    r"possibly frequency": "possibly low clock",
    r"launch ovh|prep ovh|call ovh": "start delay, before launch, after launch",
    r"% of scope": "% of parent",
    r"\bit \d|/it\b|[Ii]terations?\b(?![/=])": "step",
    r"\b[Tt]he overview\b": "the summary",
    r"\b[Tt]he icicle\b|^Icicle": "the blocks",
    r"\b([Aa]|[Tt]he|mean|least|others') leads?\b(?! to)": "lag, ahead",
    r"potential saving|at stake": "saves",
    r"made wait": "caused wait",
}
"""What nobody reads any more → the word that stands for it."""
NAMES: Final = (
    r"`[^`]*`|'[^']*/[^']*'|gpu=\S*|--iteration|\w+_iteration|^ *\w+ \|"
    r"|Iteration annotations|\(its lead\)|one slow iteration"
)
"""Names and addresses in prose, which stay, and what files and a paper call it."""
WRITTEN: Final = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name not in ("CHANGELOG.md", "errors.md", "keys.md")
)
"""All pages; keys and refusals are tested where they are written."""


def said(text: str) -> list[str]:
    prose = re.sub(NAMES, "", text)
    return [pattern for pattern in NOT_SAID if re.search(pattern, prose)]


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
    if frame.level not in ("kernel", "operation", "question"):
        texts += frame.labels
    assert {text: said(text) for text in texts if said(text)} == {}


@pytest.mark.parametrize("page", WRITTEN)
def test_pages_leave_out_what_is_not_said(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|^    .*?$|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    assert {line: said(line) for line in prose.splitlines() if said(line)} == {}


def test_sentences_of_the_program_leave_out_what_is_not_said() -> None:
    """All words between quotes: errors, notes, findings, help, definitions, thresholds."""
    found = {
        f"{path.name}:{text.lineno}: {line}": said(line)
        for package in ("chopper_core", "chopper_tui")
        for path in (ROOT / package).rglob("*.py")
        if "sources" not in path.parts and path.name not in FORMATS
        for text in sentences_in(path)
        for line in str(text.value).splitlines()
        if said(line)
    }
    assert found == {}


FORMATS: Final = ("execution_graph.py", "operations.py", "host_tables.py", "sql.py", "tools.py")
"""Modules whose strings are what files and tables call a step."""


def sentences_in(path: Path) -> list[ast.Constant]:
    """The texts of more than one word of a module, but for what only its readers read: the first
    strings of modules and classes, and those of private functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    private = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " in node.value
        and id(node) not in private
    ]


SEVERAL: Final = "GPUs|hosts|kernels|calls|steps|copies|collectives|operations|clocks|ranks|layers"
ONE: Final = "GPU|host|kernel|step|clock|stage|rank|layer"
DISAGREE: Final = (
    rf"(?:^|[.:;] )(?:[\w-]+ )?(?:{SEVERAL})(?: [\d ,and]+| on GPU \d+| in \w+)? "
    r"(?:is|has|takes|leaves|runs|idles|waits|drops|does|starts|transfers|gets|blocks)\b",
    rf"(?:^|[.:;] )(?:[\w-]+ )?(?:{ONE})(?: \d+)?(?:'s host)? "
    r"(?:are|have|take|leave|run|idle|wait|drop|do|start|transfer|get|block)\b",
    rf"(?<!of )(?<![\d.,:])1 (?:{SEVERAL}|times|activities|places|samples|files|records)\b"
    r"(?! without|/)",  # not: a count next to its label, a rate
    r"\b[\d.,]+ [KMGT]i?B (?:\([^)]*\) |of [\w ]+ )?are\b",
)
"""A subject, and a verb or number that doesn't go with it."""


def test_subjects_and_verbs_agree() -> None:
    """In all sentences that tests have written down, of one thing and of several."""
    written = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("golden/*.json")]
    sentences = [each for text in written for each in _texts(json.loads(text))]
    assert len(sentences) > 500
    wrong = re.compile("|".join(DISAGREE), re.IGNORECASE)
    assert [each for each in sentences if wrong.search(each)] == []


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


@pytest.mark.parametrize("text", [
    "Launch calls on GPU 1 leaves GPUs idle 3 ms a step", "The loss jumps 1 times",
    "GPUs 0 and 2 runs at a 6 % lower clock", "GPU 3's host are 4 ms late", "2 GiB are left",
])  # fmt: skip
def test_what_does_not_agree_is_found(text: str) -> None:
    assert any(re.search(pattern, text, re.IGNORECASE) for pattern in DISAGREE)
