"""The README shows what the program gives: captures and tables are made, not written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from msgspec.structs import replace
from rich.color import ColorSystem

from chopper_core.columns.quantities import QUANTITIES, Quantity
from chopper_core.extensions.runs.figures import GPUS, REASON, RUN_COLUMNS, STATUS
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.replay import replay_run
from chopper_core.model.address import KEYS, parse
from chopper_core.model.glossary import OPERATIONS, TERMS
from chopper_core.model.view import View
from chopper_core.render import render_frame
from chopper_core.render.glyphs import UNICODE
from chopper_core.sources.registry import FORMATS, Family, formats
from chopper_core.views import OVERVIEW
from chopper_core.views.query import query
from chopper_tui.actions import ACTIONS
from chopper_tui.app import ChopperApp
from chopper_tui.cli import main
from chopper_tui.config import read_config
from chopper_tui.keymap import key_name
from chopper_tui.play import keys_of, play
from chopper_tui.textual_internals import screen_looks, screen_picture
from chopper_tui.widgets.reader import help_text, tab_rows
from tests.demo import as_kept, demo_run
from tests.tour_picture import SECONDS, animated
from tests.tui.explorer import explorer, sample_run

pytestmark = pytest.mark.golden

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
EXAMPLES = ROOT / "docs" / "examples.md"
KEYS_PAGE = ROOT / "docs" / "keys.md"
RUNS_PAGE = ROOT / "docs" / "runs.md"
PICTURES = ROOT / "docs" / "pictures"
PICTURED = {
    "overview": (140, 40), "timeline": (200, 60), "compare": (140, 40), "ranks": (140, 40),
}  # fmt: skip
"""The size of each picture's terminal."""
COMPARED = (
    "demo_data/fsdp2:gpu=5/iteration=11/phase=backward?order=gpu,iteration,phase,operation"
    "&columns=elapsed_ns,elapsed_ns_delta,elapsed_ns_delta_pct,gfx_mhz,gfx_mhz_delta"
    "&filter=mlp_.p|attn_fa|^all_g|reduce_s&base=gpu=3/iteration=11/phase=backward"
)
FINDINGS = "demo_data/fsdp2?view=findings"
SHOWN = "demo_data/fsdp2:gpu=5/iteration=11"


def block(name: str, text: str) -> str:
    """The part of the README between a marker and its end."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
    assert found, f"the page has no block {name}"
    return found[1]


def check(name: str, expected: str, page: Path = README) -> None:
    text = page.read_text(encoding="utf-8")
    expected = expected.strip("\n")
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        head, rest = text.split(start)
        page.write_text(head + start + expected + end + rest.split(end)[1], encoding="utf-8")
        return
    assert block(name, text) == expected


def test_the_table_of_keys(capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", "--format", "markdown"])
    check("keys", capsys.readouterr().out, KEYS_PAGE)


def test_it_is_read_in_five_minutes_and_groups_the_pages_in_four() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 1200
    table = text.partition("\n## Documentation\n")[2]
    assert re.findall(r"^\| \*\*(\w+)\*\*", table, re.MULTILINE) == [
        "Use", "Numbers", "Formats", "Contribute",
    ]  # fmt: skip
    for said in ("uv tool install '.[record]'", "pipx install", "uv tool install chopper-tui",
                 "No GPU needed", "opens the explorer on a terminal"):  # fmt: skip
        assert said in text
    # Every place has a question that the demo answers.
    places = re.findall(r"^\| `(\d)` \|", text, re.MULTILINE)
    assert sorted({*places}) == [*map(str, range(7))]


def test_the_table_of_screens() -> None:
    rows = [
        f"| `{key}` | {title} | `{name}` | {asks} | {splits} |"
        for key, title, name, asks, splits in tab_rows()
    ]
    check(
        "screens",
        "\n".join(
            ["| key | tab | `view=` | asks | `by=` |", "| :-- | :-- | :-- | :-- | :-- |", *rows]
        ),
        KEYS_PAGE,
    )


def test_every_action_has_its_place() -> None:
    """In the table of keys: its keys and its command; in the help: the sentence, too."""
    keys = block("keys", KEYS_PAGE.read_text(encoding="utf-8"))
    shown = str(help_text(ACTIONS, query(sample_run(), View("sample.json")), 120))
    told = " ".join(shown.split())
    for action in ACTIONS:
        assert action.keys or action.verb
        for text in (f"`:{action.verb}", *map(key_name, action.keys)):
            assert text in keys, f"{action.id}: {text}"
        assert f":{action.verb}" in told and " ".join(action.help.split()[:4]) in told


def test_the_table_of_figures() -> None:
    # In a process of its own: a test may have imported or declared others.
    command = [sys.executable, "-m", "chopper_tui.cli", "metrics", "--format", "markdown"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    check("metrics", listed, ROOT / "docs" / "metrics.md")


def test_the_table_of_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = (GPUS, *(each.metric for each in RUN_COLUMNS.values()), STATUS, REASON)
    rows = [f"| `{each.name}` | {each.unit} | {each.definition} |" for each in metrics]
    columns = "\n".join(["| column | unit | definition |", "| :-- | :-- | :-- |", *rows])
    check("run columns", columns, RUNS_PAGE)
    for name in ("fsdp1", "fsdp2", "memory"):
        demo_run(name)
    as_kept(monkeypatch)
    monkeypatch.chdir(ROOT)
    assert main(["runs", "demo_data", "--width", "120"]) == 0
    text = capsys.readouterr().out
    check("runs", f"```console\n$ chopper runs demo_data --width 120\n{text}```", RUNS_PAGE)


def test_the_glossary() -> None:
    lines = ["## Operations", "", "| name | operation |", "| :-- | :-- |"]
    lines += [f"| `{name}` | {long} |" for name, long in OPERATIONS.items()]
    lines += ["", "## Terms", "", "| term | meaning |", "| :-- | :-- |"]
    lines += [f"| {term} | {meaning} |" for term, meaning in TERMS.items()]
    check("glossary", "\n".join(lines), ROOT / "docs" / "glossary.md")


def test_the_page_of_quantities() -> None:
    check("quantities", "\n".join(map(section, QUANTITIES.values())), ROOT / "docs/quantities.md")


def section(each: Quantity) -> str:
    shown: dict[str, list[str]] = {}
    for place in each.places:
        view, _, what = place.partition(" ")
        shown.setdefault(view, []).append(f"`{what}`" if "_" in what else what)
    places = "; ".join(f"{view} ({', '.join(names)})" for view, names in shown.items())
    return f"""### {each.name} ({each.unit})

{each.definition}

- base: {each.base}
- counts: {each.covers}
- computed by `{each.function}`
- shown in: {places}
"""


def formats_table(families: Iterable[Family]) -> str:
    """The formats and how to get a file of each."""
    rows = ["| kind | written by | files | for example |", "| :-- | :-- | :-- | :-- |"]
    for family in families:
        for source in formats(family):
            example = f"`{source.EXAMPLE}`" if source.EXAMPLE else ""
            rows.append(f"| {family} | {source.NAME} | {source.FILES} | {example} |")
    return "\n".join(rows)


def test_the_tables_of_formats() -> None:
    check("formats", formats_table(FORMATS), ROOT / "docs" / "reading.md")
    telemetry = formats_table([Family.TELEMETRY])
    check("telemetry formats", telemetry, ROOT / "docs" / "telemetry.md")


def test_each_format_has_its_releases_and_the_test_that_holds_them() -> None:
    page = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    table = page.split("\n## Releases\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    named = {row[0] for row in rows}
    assert {source.NAME for family in FORMATS for source in formats(family)} <= named
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name for row in rows[2:] for name in re.findall(r"`(\w+\.py)`", row[2])} <= tests
    assert all("`test_" in row[2] for row in rows[2:])


def test_the_first_minute() -> None:
    """A checkout, a look at the product and its tests: CI calls what the README says."""
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition("\n## ")
    assert rest.startswith("First minute\n") and len(head.splitlines()) < 20
    lines = re.findall(r"^(.*?) +#", block("first minute", text), re.MULTILINE)
    checkout, demo, test = lines
    assert checkout == "git clone URL chopper && cd chopper"
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert (demo, test) == ("make demo", "make test") and test in steps
    for command in (demo, test):
        planned = subprocess.run(
            [*command.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        assert f"{'chopper demo' if command == demo else 'pytest'}" in planned.stdout
    assert "`uvx --from . chopper demo`" in rest.partition("\n## ")[0]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "chopper" in scripts["scripts"]


def test_the_printed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    view = parse(SHOWN)
    text = render_frame(query(demo_run(), view), "text", width=100)
    command = f"$ chopper show '{SHOWN}' --width 100\n"
    check("show", f"```console\n{command}{text}```")


def test_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    view = parse(COMPARED)
    text = render_frame(query(demo_run(), view), "text", width=100)
    check("compared", f"```console\n$ chopper show '{COMPARED}' --width 100\n{text}```", EXAMPLES)


def test_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    view = parse(FINDINGS)
    text = render_frame(query(demo_run(), view), "text", width=120, limit=5)
    command = f"$ chopper show '{FINDINGS}' --width 120 --limit 5\n"
    check("findings", f"```console\n{command}{text}```", EXAMPLES)


def coloured_demo(start: View, *others: str) -> ChopperApp:
    """The demo in true colours, next to other runs."""
    known = {f"demo_data/{name}": demo_run(name) for name in others}
    run = replace(demo_run(), name="demo_data/fsdp2", others=known)
    app = ChopperApp(lambda _: run, start, glyphs=UNICODE.coloured(True))
    app.console._color_system = ColorSystem.TRUECOLOR
    return app


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PICTURED)
async def test_the_pictures_show_what_the_program_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture is the screen after the keys beside it."""
    monkeypatch.chdir(ROOT)
    picture, size = PICTURES / f"{name}.svg", PICTURED[name]
    async with explorer(size, app=coloured_demo(View("demo_data/fsdp2"), "fsdp1")) as at:
        await at.press(*keys_of(str(PICTURES / f"{name}.keys")))
        shown = screen_picture(at.app)
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        picture.write_text(shown, encoding="utf-8")
    assert picture.read_text(encoding="utf-8") == shown
    assert len(shown.encode()) <= 11 * size[0] * size[1]
    assert len(set(re.findall(r"fill:(#[0-9a-f]{6})", shown))) >= 6  # In more than 16 colours.


async def test_the_live_picture_is_of_a_running_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The demo after 28 seconds, written as a job writes it, on a clock of its own."""
    monkeypatch.chdir(tmp_path)
    replay_run(ROOT / "demo_data" / "fsdp2", Path("job"), began_s=1_780_000_000, seconds=28)
    follower, picture = Follower("job", jobs=1), PICTURES / "live.svg"
    run = follower.open()
    assert (run.name, len(run.gpus)) == ("job", 8)
    follower.tail()
    app = ChopperApp(lambda _: run, View("job", name="live"), glyphs=UNICODE.coloured(True))
    app.console._color_system = ColorSystem.TRUECOLOR
    async with explorer((140, 40), app=app) as at:
        at.explore.tell("live")
        await at.settle()
        text, shown = at.text(), screen_picture(at.app)
    follower.close()
    assert "alarms" in text and re.search(r"last \d+ s, limits", text), text
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        picture.write_text(shown, encoding="utf-8")
    assert picture.read_text(encoding="utf-8") == shown


async def test_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third collective after the middle of GPU 5's backward, from near."""
    monkeypatch.chdir(ROOT)
    run = demo_run()
    async with explorer((80, 24), run, View(run.name, ("5", "11", "backward"))) as at:
        await at.press("2", "c", "w", "w", "w", "w", "v", "c", "c")
        text = "\n".join(line.rstrip() for line in at.text().splitlines())
    check("timeline", f"```\n{text}\n```", EXAMPLES)


TOUR = ROOT / "tests" / "tui" / "tour.keys"
STOPS = {"ranks": 1, "compare": 4, "kernels": 8}
"""How many keys of the tour lead to each of its screens."""


def test_the_guided_tour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From eight GPUs to the kernels that explain the planted straggler, in ten keys at most."""
    monkeypatch.chdir(ROOT)
    keys = keys_of(str(TOUR))
    assert len(keys) <= 10
    shown = {}
    for name, count in STOPS.items():
        run = demo_run()
        start = View(run.name, name=OVERVIEW)
        app = ChopperApp(lambda progress, run=run: run, start, glyphs=UNICODE)
        shown[name] = play(app, keys[:count], (80, 24))
    check("tour-kernels", f"```\n{shown['kernels']}```", EXAMPLES)
    truth = json.loads((ROOT / "demo_data" / "fsdp2" / "truth.json").read_text())
    slow = truth["slow_gpu"]["rank"]
    assert f"straggler GPU {slow} lags" in shown["ranks"]
    assert re.search(rf"^ \S+ › GPU {slow} .*compare", shown["compare"], re.MULTILINE)
    at = rf"^ \S+ › GPU {slow} › mlp_dp .*compare"
    assert re.search(at, shown["kernels"], re.MULTILINE)
    # The text says: waits less in collectives, mlp_dp costs the most, each kernel takes longer.
    row = re.compile(r"^ .\s?(\S+(?: [NT]{2})?) +[\d.]+ +([+-][\d.]+) +[+-]", re.MULTILINE)
    parts = {name: float(change) for name, change in row.findall(shown["compare"])}
    assert parts["all_gather"] < 0 and parts["reduce_scatter"] < 0
    assert max(parts, key=lambda name: parts[name]) == "mlp_dp"
    changes = [float(change) for _, change in row.findall(shown["kernels"])]
    assert len(changes) == 3 and min(changes) > 0
    text = README.read_text(encoding="utf-8")
    told = re.search(r"`([^`]+)`<!-- keys of the tour -->", text)
    assert told and told[1].split() == [key_name(key) for key in keys]


async def test_the_tour_is_one_animated_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame per key, of which one is visible at each moment; no script."""
    monkeypatch.chdir(ROOT)
    keys, picture = keys_of(str(TOUR)), PICTURES / "tour.svg"
    async with explorer((100, 30), app=coloured_demo(View("demo_data/fsdp2", name=OVERVIEW))) as at:
        frames = [screen_looks(at.app)]
        for key in keys:
            await at.press(key)
            frames.append(screen_looks(at.app))
    shown = animated(frames, [key_name(key) for key in keys])
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        picture.write_text(shown, encoding="utf-8")
    assert picture.read_text(encoding="utf-8") == shown
    assert len(shown.encode()) <= 400_000
    root = fromstring(shown)
    groups = [each.get("class") for each in root.iter() if each.get("class", "").startswith("f ")]
    assert groups == [f"f f{number}" for number in range(len(keys) + 1)]
    delays = re.findall(r"\.f\d+\{animation-delay:(\d+)s\}", shown)
    assert list(map(int, delays)) == [SECONDS * number for number in range(len(groups))]
    assert f"animation:t {SECONDS * len(groups)}s step-end" in shown and "<script" not in shown


def test_every_key_of_an_address_is_described() -> None:
    page = (ROOT / "docs" / "addresses.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    told = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    assert set(KEYS) <= told
    for example in re.findall(r"`((?:\w+=[^`&]+&?)+)`", page):
        if example.split("=")[0] in KEYS:
            assert parse(f"R?{example}"), example


def test_the_settings_are_ones(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    found = re.search(r"```toml\n(\[explorer\].*?)```", text, re.DOTALL)
    assert found
    path = tmp_path / "config.toml"
    path.write_text(found[1], encoding="utf-8")
    config = read_config(lambda: ACTIONS, path)
    assert config.warnings == () and config.theme == "light" and "operation" in config.columns


def test_every_link_leads_somewhere_and_every_page_is_linked() -> None:
    pages = {README, *(ROOT / "docs").rglob("*.md")}
    linked = {README}
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            assert path.exists(), f"{page.name}: {target}"
            linked.add(path)
    assert pages <= linked
