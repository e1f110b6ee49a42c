"""The report: one page that needs nothing else, says what `show` says, and runs nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.model.inputs import RecordingSummary
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.drawing import picture
from chopper_core.render.report import head_facts, report
from chopper_core.views.query import query
from chopper_tui.cli import main
from chopper_tui.draw.page import LOOK
from tests.demo import demo_run, small_files
from tests.tui.explorer import sample_run
from tests.wording import Wording

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """What stands in a page; its tags have to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.cells: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            return
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def page_of(run: Run, **changes: object) -> str:
    return report(run, replace(View(run.name), **changes), LOOK, "1.0")


@pytest.fixture(scope="module")
def demo_page() -> str:
    return page_of(demo_run())


def test_it_needs_nothing_else(demo_page: str) -> None:
    page = Page(demo_page)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not [value for name, value in page.attributes if re.match(r"on|src", name)]
    assert all(value.startswith("#s") for name, value in page.attributes if name == "href")
    assert "url(" not in demo_page and "@import" not in demo_page
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in (
        page.attributes
    )
    assert len(demo_page.encode()) <= 1_000_000


def test_a_figure_below_what_is_shown_is_text(demo_page: str) -> None:
    assert "&lt;0.1 %" in demo_page
    assert not re.search(r"<\d", demo_page)


def test_it_says_what_the_views_say(demo_page: str) -> None:
    run, page = demo_run(), Page(demo_page)
    for name in ("overview", "findings", "kernels", "ranks", "comms", "power"):
        frame = query(run, View(run.name, name=name))
        for line in frame.headline:
            assert line in page.text
    found = query(run, View(run.name, name="findings"))
    assert all(label in page.text for label in found.labels)
    assert page.text.count("generated data") == 1
    ranks = query(run, View(run.name, name="ranks"))
    from chopper_core.render.cells import column_texts
    from chopper_core.render.glyphs import UNICODE

    for column in [*column_texts(ranks)][:9]:
        assert column.header in page.cells
        values = ranks.values[column.metric.name]
        cells = [column.cell(values, row, UNICODE) for row in range(len(ranks))]
        assert set(cells) <= {cell.lstrip("▲▼") for cell in page.cells}


def test_figures_that_stand_out_have_their_sign_and_shares_a_bar(demo_page: str) -> None:
    """GPU 5 delays the others; the bar of a share is as long as the share."""
    ranks = demo_page.partition("<h2>GPUs</h2>")[2].partition("</section>")[0]
    [row] = [each for each in ranks.split("<tr>") if re.match(r"<td[^>]*>5</td>", each)]
    assert re.search(r"color:var\(--warning,#\w{6}\)'>▲[\d.]+<", row)
    kernels = demo_page.partition("<h2>Kernels</h2>")[2].partition("</section>")[0]
    bars = re.findall(r"0 50%/([\d.]+)% 75% no-repeat'>([\d.]+)<", kernels)
    assert len(bars) > 5 and all(abs(float(bar) - float(text)) < 0.06 for bar, text in bars)


def test_it_shows_the_slowest_step_and_what_a_fix_would_bring(demo_page: str) -> None:
    table = demo_run().table
    counted = [step for step in {*table.iteration.tolist()} if step >= 11]  # 10 is truncated
    states = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    time = {step: sum(int(getattr(table, each)[table.iteration == step].sum()) for each in states)
            for step in counted}  # fmt: skip
    assert f"<h2>Slowest step: {max(time, key=lambda each: time[each])}</h2>" in demo_page
    what_if = demo_page.partition("<h2>What if</h2>")[2].partition("</section>")[0]
    assert "no stragglers" in what_if and "saves ms" in what_if
    assert "<em>Try:</em>" in demo_page


def test_the_head_says_when_where_and_by_what_a_run_was_made(wording: Wording) -> None:
    facts = {"command": "torchrun train.py", "started": "2026-01-02 03:04:05 UTC",
             "revision": "abc123"}  # fmt: skip
    recording = RecordingSummary(facts, (), hosts=("n1",), job="Slurm 42")
    run = replace(sample_run(), recordings=(recording,))
    found = head_facts(run)
    wording(found["quality"], "4 of 4 ranks", "4 GPUs", "no hardware counters")
    told = {name: text for name, text in found.items() if name != "quality"}
    assert told == {"date": facts["started"], "host": "n1", "job": "Slurm 42",
                    "command": facts["command"], "commit": "abc123"}  # fmt: skip
    alone = head_facts(replace(run, recordings=()))
    (lacking,) = {alone[name] for name in told}
    wording(lacking, "not in the files")
    page = page_of(run)
    assert "<dt>job</dt><dd>Slurm 42</dd>" in page and "<dt>quality</dt>" in page


def test_small_screens_and_paper_have_a_style_of_their_own(demo_page: str) -> None:
    """Where a picture would be illegible it isn't shrunk but scrolled; paper shows all of it."""
    small, paper = (demo_page.partition(f"@media{each}")[2] for each in
                    ("(max-width:700px)", " print"))  # fmt: skip
    assert "svg{max-width:none}" in small.partition("@media")[0]
    assert ".wide{overflow:visible}svg{max-width:100%}" in paper.partition("</style>")[0]
    for part in demo_page.split("<table>")[1:]:
        assert "</table></div>" in part
    assert demo_page.count("<table>") == demo_page.count('<div class="wide"><table>')


def test_what_the_run_lacks_is_said() -> None:
    page = Page(page_of(sample_run()))
    assert "Not known" in page.text and "Power and heat: " in page.text


def test_a_comparison_is_part_of_it_where_there_is_a_baseline(tmp_path: Path) -> None:
    path, run = tmp_path / "page.html", small_files()
    assert main(["report", f"{run}:gpu=1?base=gpu=0", "-o", str(path), "--jobs", "1"]) == 0
    assert "Comparison" in Page(path.read_text()).text


def test_names_stay_text() -> None:
    run = sample_run()
    hostile = "<script>alert(1)</script>\x1b[2J\"'&"
    table = replace(run.table, names=tuple(hostile + name for name in run.table.names))
    text = page_of(replace(run, table=table, name=hostile))
    page = Page(text)
    assert "script" not in page.tags and "\x1b" not in text
    assert "<script>alert(1)</script>" in page.text


def _filled(svg: str) -> set[tuple[int, int]]:
    """The eighths of cells, 1 by 2 units each, that the paths of a picture cover."""
    found = set()
    for x, y, wide, high in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z", svg):
        for right in range(int(wide)):
            found |= {(int(x) + right, int(y) + down) for down in range(int(high))}
    return found


@pytest.mark.parametrize(
    ("char", "is_filled"),
    [
        ("█", lambda x, y: True),
        ("▀", lambda x, y: y < 8),
        ("▄", lambda x, y: y >= 8),
        ("▂", lambda x, y: y >= 12),
        ("▌", lambda x, y: x < 4),
        ("▐", lambda x, y: x >= 4),
        ("▎", lambda x, y: x < 2),
        ("▚", lambda x, y: (x < 4) == (y < 8)),
        ("▙", lambda x, y: x < 4 or y >= 8),
    ],
)
def test_a_block_fills_its_part_of_a_cell(char, is_filled) -> None:  # type: ignore[no-untyped-def]
    svg = picture([[("  ", "")], [(f" {char}{char}", "accent")]], {}, lambda _: False)
    cells = {(x, y) for x in range(8) for y in range(16) if is_filled(x, y)}
    assert _filled(svg) == {(8 * n + x, 16 + y) for n in (1, 2) for x, y in cells}
    assert 'viewBox="0 0 24 32"' in svg


def test_text_takes_the_width_of_its_cells() -> None:
    classes: dict[str, str] = {}
    svg = picture([[("ab", "dim"), ("█ 12 <", "heat3/heat9")]], classes, "heat3/heat9".__eq__)
    assert svg.count('class="i1b"') == 1 and "i0b" not in svg
    found = re.findall(r'<text class="(\w+)" x="(\d+)" y="\d+" textLength="(\d+)">([^<]+)<', svg)
    assert [(x, wide, text) for _, x, wide, text in found] == [
        ("0", "16", "ab"), ("32", "16", "12"), ("56", "8", "&lt;"),
    ]  # fmt: skip
    assert list(classes) == ["dim", "heat3/heat9"]


@pytest.mark.sweep
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_without_scrolling_sideways(
    demo_page: str, tmp_path: Path, width: int
) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to look at the page with")
    path = tmp_path / "page.html"
    # The page allows no script: the copy that measures it has another policy.
    widths = "[document.documentElement.scrollWidth,innerWidth]"
    probe = f"<script>document.title=JSON.stringify({widths})</script>"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", demo_page)
    path.write_text(text.replace("</body>", probe + "</body>"))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    wide, window = json.loads(title[1])
    assert wide <= window
    assert "CONSOLE" not in done.stderr
