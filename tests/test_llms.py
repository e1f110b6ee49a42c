"""`llms.txt`, the index of the documentation for programs that read, is made from the pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.golden

INDEX = ROOT / "llms.txt"
FIRST = ("agents", "sql", "python", "addresses", "accounting", "metrics", "findings", "what-if")
"""Pages that a program needs first."""


def entry(page: Path) -> str:
    """A line of the index: the title of a page, where it is, and its first sentence."""
    text = re.sub(r"^---\n.*?\n---\n", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None, page
    prose = [part for part in text[title.end() :].split("\n\n") if re.match(r"\s*[A-Z`*\[]", part)]
    words = " ".join(prose[0].split()) if prose else ""
    sentence = re.match(r".*?\.(?= |$)", words)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence[0] if sentence else words)
    return f"- [{title[1]}]({page.relative_to(ROOT).as_posix()}): {plain.rstrip(':')}"


def index() -> str:
    pages = {page.stem: page for page in sorted((ROOT / "docs").glob("*.md"))}
    readme = (ROOT / "README.md").read_text("utf-8")
    about = " ".join(readme.split("\n\n")[1].split())
    guide = "chopper_core/answers/skill.md"
    lines = [
        "# Chopper",
        "",
        f"> {about}",
        "",
        "## First",
        "",
        f"- [Guide for agents]({guide}): the order of work, how to cite, ten worked questions; "
        "`chopper skill` prints it.",
        *(entry(pages[name]) for name in FIRST),
        "",
        "## More",
        "",
        *(entry(page) for name, page in pages.items() if name not in FIRST),
        "",
        "## Optional",
        "",
        *(entry(page) for page in sorted((ROOT / "docs" / "internals").glob("*.md"))),
        "",
    ]
    return "\n".join(lines)


def test_the_index_has_each_page() -> None:
    made = index()
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        INDEX.write_text(made, "utf-8")
    assert INDEX.read_text("utf-8") == made
