"""Files that change under an open run: a chip says so, and R reads them again."""

from __future__ import annotations

from pathlib import Path

from chopper_core.ingest.open import open_run
from chopper_core.ingest.watch import RunFiles
from chopper_core.model.address import parse
from chopper_core.record.manifest import start_manifest
from chopper_core.views.query import query
from chopper_tui.app import ChopperApp
from tests.ingest.test_run_sets import trace
from tests.tui.explorer import Driven, explorer
from tests.wording import Wording


def app_of(folder: Path, view: str = "") -> ChopperApp:
    return ChopperApp(lambda _: open_run(str(folder), jobs=1), parse(f"{folder}{view}"))


async def news_of(driven: Driven) -> str:
    """The first line of the screen once changes were looked for."""
    driven.app._tell(driven.app._opening.files.news())
    await driven.settle()
    return driven.lines()[1]


def test_news_of_files(tmp_path: Path, wording: Wording) -> None:
    for rank in range(3):
        trace(tmp_path, rank, world=3)
    (tmp_path / "notes.md").write_text("old")
    files = RunFiles(str(tmp_path), "")
    files.note(files.state())
    assert files.news() == ""
    (tmp_path / "my words.txt").write_text("no telemetry")
    (tmp_path / ".rank3.json.part").write_text("{")
    assert files.news() == ""
    trace(tmp_path, 3, world=4)
    assert files.news() == "new files"
    trace(tmp_path, 1, step_us=200, world=3)
    assert files.news() == "files changed"
    (tmp_path / "rank2.json").unlink()
    assert files.news() == "rank2.json deleted"
    (tmp_path / "rank0.json").unlink()
    wording(files.news(), "rank0.json", "1 more", "deleted")
    files.note(files.state())
    assert files.news() == ""
    (tmp_path / "config.yaml").write_text("seq_length: 64")
    assert files.news() == "new files"
    files.note(files.state())
    start_manifest(tmp_path, ["true"])
    assert files.news() == "new files"
    files.note(files.state())
    (tmp_path / "rank1.json").rename(tmp_path / "rank1.json.old")
    wording(files.news(), "rank1.json renamed", "rank1.json.old")
    (tmp_path / "rank3.json").unlink()
    wording(files.news(), "rank1.json renamed", "rank1.json.old", "rank3.json deleted")


async def test_reload_keeps_the_place_and_the_row(tmp_path: Path) -> None:
    for rank in range(2):
        trace(tmp_path, rank, world=3)
    where = ":?sort=-elapsed_ns&filter=elapsed_ns%3E0"
    async with explorer(app=app_of(tmp_path, where)) as driven:
        driven.explore.table.move_to_label("1")
        before = driven.explore.view
        assert "reloads" not in await news_of(driven)
        trace(tmp_path, 2, step_us=300, world=3)
        trace(tmp_path, 0, step_us=200, world=3)
        assert "files changed · R reloads" in await news_of(driven)
        assert set(driven.frame.labels) == {"0", "1"}
        await driven.press("R")
        assert driven.explore.view == before and driven.label == "1"
        assert driven.status == "reloaded" and "reloads" not in await news_of(driven)
        wanted = query(open_run(str(tmp_path), jobs=1), before)
        assert list(driven.frame.labels) == list(wanted.labels) == ["2", "0", "1"]
        assert driven.frame.total == wanted.total


async def test_a_place_that_is_gone_gives_way_to_the_nearest_above(
    tmp_path: Path, wording: Wording
) -> None:
    for rank in range(2):
        trace(tmp_path, rank, world=2)
    async with explorer(app=app_of(tmp_path, ":gpu=1/iteration=1")) as driven:
        (tmp_path / "rank1.json").unlink()
        wording(await news_of(driven), "rank1.json deleted")
        await driven.command(":reload")
        assert driven.path == () and "no gpu 1 here" in driven.status
        (tmp_path / "rank0.json").write_text("")
        await driven.press("R")
        assert "rank0.json" in driven.status and driven.frame.labels
        assert "files changed" in await news_of(driven)
