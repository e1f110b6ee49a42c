"""What was worked out of a run is kept with it: the same answers, and never a damaged one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict, replace

import chopper_core
from chopper_core import findings
from chopper_core.analyses import lane_cells, launch_columns, leads
from chopper_core.analyses import lanes as lanes_module
from chopper_core.analyses.lanes import Lane, waits_of
from chopper_core.answers import opening
from chopper_core.answers.opening import as_asked, work_out
from chopper_core.findings import Checked, checked
from chopper_core.ingest import cache
from chopper_core.ingest.open import open_run
from chopper_core.model import run as run_module
from chopper_core.model.address import parse
from chopper_core.model.charts import Lanes
from chopper_core.model.run import Run
from chopper_core.model.signals import TimeSpans
from chopper_core.model.table import Selection
from chopper_core.model.view import View, with_view
from chopper_core.render import render_frame
from chopper_core.render.report import report
from chopper_core.store import kept
from chopper_core.store.kept import Derived
from chopper_core.store.writer import write_store
from chopper_core.util import atomic, plugins
from chopper_core.util.arrays import Float64, Int64
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, overview, ranks, view_module
from chopper_core.views.query import frame_of, query
from chopper_core.views.shared import evidence, kept_answers, row_columns, signal_charts
from chopper_core.views.shared.kept_answers import StoredAnswer
from chopper_core.views.shared.told_findings import knows_remedies, remedy_of
from chopper_core.work import kernel_classes
from chopper_core.work.kernel_classes import classes_of_names, kernel_class
from chopper_tui.cli import main
from chopper_tui.draw.page import LOOK
from tests.conftest import ROOT
from tests.demo import small_files
from tests.programs.answers import addresses
from tests.support import place_of_row, sample_run
from tests.wording import Wording

ALL = ("?view=findings", "?view=ranks", "?view=overview", "?view=comms", "?view=whatif")
QUESTIONS = ("gpu:1 as peers", "no contention;no host gaps", "clock=2000", "comm at peak")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = small_files()
    folder = tmp_path_factory.mktemp("derived") / "run.chopper"
    write_store(open_run(str(made), jobs=1), folder)
    return folder


@pytest.fixture
def copy(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of which everything that is worked out is kept."""
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    return shutil.copytree(store, tmp_path / "run.chopper")


def _json(name: Path | str, address: str, opened: Callable[[str], Run] = cache.open_cached) -> str:
    run = opened(str(name))
    frame = frame_of(run, parse(f"{name}{address}"))
    text = render_frame(frame, "json")
    opens = [frame.addresses(row) for row in range(len(frame))]
    if isinstance(run.derived, Derived):
        run.derived.wait()
    return "\n".join([text, *opens])


def _files(store: Path) -> list[Path]:
    return sorted((store / atomic.DERIVED).iterdir())


class Asked:
    """Which views were worked out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        for name in ("findings", "ranks", "comms", "whatif", "launch"):
            module = view_module(name)
            monkeypatch.setattr(module, "answer", partial(self._ask, name, module.answer))

    def _ask(self, name: str, answer: Any, *asked: object) -> object:
        self.names.append(name)
        return answer(*asked)

    def take(self) -> list[str]:
        found, self.names = self.names, []
        return found


def test_every_view_of_a_run_opened_again_is_the_same(copy: Path) -> None:
    """Rows, totals, notes, charts and what rows open, as with nothing kept."""
    addresses = [f"?view={name}" for name in VIEWS if name != "live"] + [":gpu=1?view=kernels"]
    plain = {each: _json(copy, each, lambda name: open_run(name, jobs=1)) for each in addresses}
    assert not (copy / atomic.DERIVED).exists()
    for _ in range(2):
        assert {each: _json(copy, each) for each in addresses} == plain
    names = {path.name.partition("-")[0] for path in _files(copy)}
    assert {"findings", "ranks", "comms", "overview", "overlap", "roofline", "launch"} <= names


def _everything(run: Run, address: str) -> str:
    """What a command writes: a table with pictures as JSON, the sentence of an error, what is said
    of each finding with its advice, or the page of a report."""
    view = parse(f"{run.name}{address.removeprefix('report').removeprefix('advice')}")
    try:
        if address.startswith("report"):
            return report(run, view, LOOK, "of a test")
        if address.startswith("advice"):
            cards = [each for each in evidence.finding_cards(run, view, 99) if each.rule]
            said = [evidence.explained_finding(run, view, each) for each in cards]
            return repr([said, [remedy_of(run, view, each.text) for each in cards]])
        frame = frame_of(as_asked(run, view), view)
        opens = [frame.addresses(row) for row in range(len(frame))]
        text = render_frame(frame, "json", limit=10**9, has_pictures=True)
        return "\n".join([text, *opens])
    except ChopperError as error:
        return str(error)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_every_answer_of_a_demo_run_is_the_same_with_and_without_what_is_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each level, view and split with its pictures, what-ifs, predicted steps, advice, reports."""
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    monkeypatch.setattr(kept, "_MOST_FILES", 1 << 20)
    store = tmp_path / "run.chopper"
    write_store(open_run(str(ROOT / "demo_data" / name), jobs=1), store)
    asked = [*addresses(), "advice", "report", "report:gpu=1", "?predicted=gpu:1 as peers"]
    asked += [f"?view=whatif&of={each}" for each in QUESTIONS]
    asked += [f"?view={each}&predicted=no contention" for each in ("overview", "timeline")]
    asked = [each for each in asked if "view=live" not in each]
    plain = open_run(str(store), jobs=1)
    expected = {each: _everything(plain, each) for each in asked}
    assert sum("chopper.frame" in each for each in expected.values()) > 50
    assert not (store / atomic.DERIVED).exists()
    first = cache.open_cached(str(store))
    found = {each: _everything(first, each) for each in asked}
    assert isinstance(first.derived, Derived)
    first.derived.wait()
    assert [each for each in asked if found[each] != expected[each]] == []
    assert len(_files(store)) > 20
    for each in asked:
        # Each in a run of its own, in which nothing is remembered.
        assert _everything(cache.open_cached(str(store)), each) == expected[each], each


def test_what_was_worked_out_is_not_worked_out_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    for expected in (["findings", "ranks", "comms", "whatif"], []):
        for address in ALL:
            _json(copy, address)
        assert asked.take() == expected
    chopper_core.open(str(copy), cache=False).frame("?view=ranks")
    assert asked.take() == ["ranks"]


def test_splits_of_ranks_are_made_of_the_kept_answer_by_gpu(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = ("?view=ranks&by=node", "?view=ranks&by=gpu", ":gpu=1?view=ranks")
    expected = [_json(copy, each, open_run) for each in splits]
    _json(copy, "?view=ranks")
    monkeypatch.setattr(ranks, "leads", None)  # No kernels are compared.
    assert [_json(copy, each) for each in splits] == expected


def test_classes_of_names_are_kept_and_the_names_are_not(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of kernels can be kilobytes each: they are looked up once for the run's files, and
    stand in no answer that has a row for each."""
    monkeypatch.setattr(kernel_classes, "_CLASS_OF", {})
    expected = [_json(copy, each) for each in ("?view=kernels", "?view=overview")]
    names = cache.open_cached(str(copy)).table.names
    classes = classes_of_names(cache.open_cached(str(copy)))
    assert classes == tuple(kernel_class(name) for name in names)

    def refuse(*_: object) -> list[str]:
        raise AssertionError("names are looked up again")

    monkeypatch.setattr(kernel_classes, "kernel_classes", refuse)
    assert [_json(copy, each) for each in ("?view=kernels", "?view=overview")] == expected
    assert classes_of_names(cache.open_cached(str(copy))) == classes
    (answer,) = (path for path in _files(copy) if path.name.startswith("kernels-"))
    content = answer.read_bytes()
    assert sum(name.encode() in content for name in names) < len(names) / 4
    (found,) = (path for path in _files(copy) if path.name.startswith("classes of names-"))
    found.write_bytes(found.read_bytes().replace(b"gemm", b"norm"))
    with pytest.raises(AssertionError, match="looked up again"):
        classes_of_names(cache.open_cached(str(copy)))


def test_classes_of_many_names_are_kept_by_the_process_that_read_them(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading has looked the names up, so that listing their classes takes no time."""
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", float("inf"))
    for many in (1 << 30, 1):
        monkeypatch.setattr(kernel_classes, "_MANY_NAMES", many)
        run = cache.open_cached(str(copy))
        classes_of_names(run)
        assert isinstance(run.derived, Derived)
        run.derived.wait()
        assert (copy / atomic.DERIVED).exists() == (many == 1)
    assert _files(copy)[0].name.startswith("classes of names-")


def test_what_another_view_worked_out_before_is_kept(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings are quick to list after the overview, and slow in a process that lists them
    first."""
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", float("inf"))
    asked = Asked(monkeypatch)
    run = cache.open_cached(str(copy))
    for name in ("overview", "findings", "ranks"):
        frame_of(run, View(str(copy), name=name))
    assert isinstance(run.derived, Derived) and asked.take() == ["findings", "ranks"]
    run.derived.wait()
    for name in ("findings", "ranks"):
        _json(copy, f"?view={name}")
    assert asked.take() == ["ranks"]


def _overview_lanes(run: Run) -> Lanes:
    charts = frame_of(run, View(run.name, name="overview")).charts
    (lanes,) = (each for each in charts if isinstance(each, Lanes))
    return lanes


def _drawn(lanes: Lanes) -> list[object]:
    """What lanes are drawn from."""
    found: list[object] = []
    for row in range(len(lanes.lanes)):
        cells = asdict(lanes.cells(row, 40)).values()
        found += [each.tolist() if isinstance(each, np.ndarray) else each for each in cells]
        found.append(lanes.bands(row, 40))
    return found


def test_the_lanes_of_a_first_screen_are_drawn_without_reading_activities_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "_FIRST_LANES", 1)
    run = cache.open_cached(str(copy))
    expected = _drawn(_overview_lanes(run))
    assert isinstance(run.derived, Derived)
    run.derived.wait()
    read: list[str] = []

    def counted(run: Run, lane: Lane) -> TimeSpans:
        read.append(f"GPU {lane.gpu}")
        return waits_of(run, lane)

    monkeypatch.setattr(lane_cells, "waits_of", counted)
    run = cache.open_cached(str(copy))
    lanes = _overview_lanes(run)
    assert _drawn(lanes) == expected and read == [*lanes.owners[1:]] and len(read) > 0
    # A part that is zoomed into is one of very many: none is kept.
    assert isinstance(run.derived, Derived) and lanes.part is not None
    run.derived.wait()
    files = _files(copy)
    _drawn(lanes.part(0.25, 0.5))
    run.derived.wait()
    assert {*read} == {*lanes.owners} and _files(copy) == files


def test_a_timeline_opened_again_brings_no_activities_together(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> str:
        run = cache.open_cached(str(copy))
        frame = query(run, View(run.name, name="timeline"))
        (lanes,) = frame.charts
        assert isinstance(lanes, Lanes) and lanes.clocks is not None
        assert isinstance(run.derived, Derived)
        every = range(len(lanes.lanes))
        drawn = [(asdict(lanes.cells(row, 30)), lanes.clocks(row, 30)) for row in every]
        beside = lanes.bands(0, 30), lanes.strips(0, 30), lanes.signals, lanes.pointed, lanes.seen
        rows = [frame.row(row) for row in every]
        run.derived.wait()
        return repr([*frame.headline, *frame.labels, *rows, drawn, beside])

    expected = shown()
    with monkeypatch.context() as patch:
        patch.setattr(lanes_module, "lane_of", None)
        assert shown() == expected
    files = _files(copy)
    run = cache.open_cached(str(copy))
    query(run, parse(f"{copy}?view=timeline&from=0.1ms&to=0.2ms"))
    assert isinstance(run.derived, Derived)
    run.derived.wait()
    # A window is one of very many: none is kept.
    assert _files(copy) == files


def test_columns_of_very_many_activities_are_kept(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_columns, "_MANY", 0)
    addresses = [f"{at}?{view}columns=comm_wait_ns" for at in ("", ":gpu=1") for view in
                 ("view=launch&", "")]  # fmt: skip
    expected = [_json(copy, each) for each in addresses]
    assert all("comm_wait_ns" in each for each in expected)
    monkeypatch.setattr(launch_columns, "_during_comm", None)
    assert [_json(copy, each) for each in addresses] == expected
    with pytest.raises(TypeError):
        _json(copy, ":gpu=1/iteration=12?columns=comm_wait_ns")


def test_what_many_rows_open_is_not_worked_out_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that open their part of the tree do so at once, however many there are."""
    monkeypatch.setattr(kept_answers, "_MOST_OPENED", 0)
    address = ":gpu=1?view=launch"
    asked, expected = Asked(monkeypatch), _json(copy, address)
    assert asked.take() == ["launch"] and len(expected.splitlines()) > 3
    assert _json(copy, address) == expected and not asked.take()
    # What is no part of the tree is asked of the view again.
    expected = _json(copy, "?view=findings")
    assert asked.take() == ["findings"] and _json(copy, "?view=findings") == expected
    assert asked.take() == ["findings"]


def test_findings_are_explained_without_checking_them_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`?` on a card, its question for a replay, and whether there is one, of a run opened again."""
    asked: list[View] = []

    def counted(run: Run, view: View) -> Checked:
        asked.append(view)
        return checked(run, view)

    monkeypatch.setattr(findings, "checked", counted)

    def explained() -> list[object]:
        run, view = cache.open_cached(str(copy)), View(str(copy))
        assert knows_remedies(run, view) == bool(asked)
        cards = [each for each in evidence.finding_cards(run, view, 9) if each.rule]
        found = [
            *(evidence.explained_finding(run, view, each) for each in cards),
            *(remedy_of(run, view, each.text) for each in cards),
        ]
        assert isinstance(run.derived, Derived)
        run.derived.wait()
        return found

    first, number = explained(), len(asked)
    assert number and any(isinstance(each, str) and each for each in first)
    assert explained() == first and len(asked) == number


def test_a_damaged_value_is_worked_out_anew(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed bit, a torn, an empty and a longer file, and a link: each is none."""
    whole = {address: _json(copy, address) for address in ALL}
    for number, path in enumerate(_files(copy)):
        content = path.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        damaged = (flipped, content[:-3], b"", content + b" ", None)[number % 5]
        if damaged is not None:
            path.write_bytes(damaged)
            continue
        path.unlink()
        path.symlink_to("/nowhere")
    asked = Asked(monkeypatch)
    assert {address: _json(copy, address) for address in ALL} == whole
    assert asked.take() == ["findings", "ranks", "comms", "whatif"]
    assert {address: _json(copy, address) for address in ALL} == whole
    assert not asked.take()


def test_values_of_another_shape_are_not_used(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole files of the right key, by a hand that knows the digest, are no way to wrong rows."""
    whole = _json(copy, "?view=comms")
    decoded = kept.decoded

    def changed(content: bytes, kind: type) -> object:
        found = decoded(content, kind)
        if not isinstance(found, StoredAnswer) or found.nodes is None:
            return found
        rows = np.array([10**9, 10**9 + 1], np.intp)
        return replace(found, nodes=replace(found.nodes, rows=rows, first=np.zeros(1, np.intp)))

    monkeypatch.setattr(kept, "decoded", changed)
    assert _json(copy, "?view=comms") == whole
    for hostile in (
        ("|O", [1], b"12345678"),
        ("<f8", [99], b"12345678"),
        ("<i8", [1], b"12345678"),
    ):
        with pytest.raises((ValueError, TypeError, msgspec.MsgspecError)):
            decoded(msgspec.msgpack.encode([hostile]), tuple[Float64, ...])


@pytest.mark.parametrize("change", ["program", "hardware", "store"])
def test_another_rule_option_or_run_is_worked_out_anew(
    change: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "?view=findings"
    _json(copy, address)
    asked = Asked(monkeypatch)
    if change == "program":
        monkeypatch.setattr(cache, "program", lambda: "a threshold is another")
    elif change == "hardware":
        own = tmp_path / "config" / "chopper" / "hardware.toml"
        own.parent.mkdir(parents=True)
        own.write_text('["My GPU"]\nclock_mhz = 1000\n')
        monkeypatch.setenv("XDG_CONFIG_HOME", str(own.parent.parent))
    else:
        run = cache.open_cached(str(copy))
        write_store(replace(run, generated="otherwise", derived=None), copy)
    _json(copy, address)
    assert asked.take() == ["findings"]


@pytest.mark.parametrize("name", ["elsewhere.chopper", "a b:c?d.chopper"])
def test_a_store_that_was_moved_or_copied_has_its_answers_under_its_new_name(
    name: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rows and cards open is of the new name, too."""
    views = ("findings", "overview", "ranks")

    def asked(store: Path) -> list[str]:
        run, found = cache.open_cached(str(store)), []
        for each in views:
            frame = query(run, with_view(View(str(store)), each))
            cards = [card.address for one in frame.charts for card in getattr(one, "cards", ())]
            found += [render_frame(frame, "json"), *map(frame.addresses, range(len(frame))), *cards]
        assert isinstance(run.derived, Derived)
        run.derived.wait()
        return found

    asked(copy)
    moved = copy.rename(tmp_path / name)
    again = Asked(monkeypatch)
    found = asked(moved)
    assert not again.take()
    shutil.rmtree(moved / atomic.DERIVED)
    assert asked(moved) == found


def test_the_version_of_the_program_follows_the_code_of_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache.program()
    assert cache.program() == before
    own = tmp_path / "rule.py"
    own.write_text("LIMIT = 1\n")
    monkeypatch.setattr(plugins, "files_of_plugins", lambda: [str(own)])
    monkeypatch.syspath_prepend(str(tmp_path))
    with_plugin = cache.program()
    assert with_plugin != before and cache.program() == with_plugin
    own.write_text("LIMIT = 2\n")
    assert cache.program() not in (before, with_plugin)


@pytest.mark.parametrize("when", ["before it answers", "between two answers"])
def test_nothing_is_kept_once_the_files_of_the_program_were_replaced(
    when: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade beneath a process: it answers as it was imported, a later one as it reads."""
    rule = tmp_path / "rule.py"
    rule.write_text("LIMIT = 1\n")
    monkeypatch.setattr(cache, "code_files", lambda: [str(rule)])
    monkeypatch.setattr(cache, "_STARTED_WITH", cache._code_stamp())
    assert cache.is_as_started()
    if when == "between two answers":
        _json(copy, "?view=ranks")
    before = [path.name for path in _files(copy)] if (copy / atomic.DERIVED).exists() else []
    rule.write_text("LIMIT = 20\n")
    assert not cache.is_as_started()
    _json(copy, "?view=findings")
    _json(copy, "?view=comms")
    assert ([*_files(copy)] if before else []) == [copy / atomic.DERIVED / name for name in before]
    # The next process imports what stands there now, and keeps it.
    monkeypatch.setattr(cache, "_STARTED_WITH", cache._code_stamp())
    asked = Asked(monkeypatch)
    _json(copy, "?view=findings")
    assert asked.take() == ["findings"]
    _json(copy, "?view=findings")
    assert not asked.take()


def test_a_run_with_something_replaced_uses_nothing_of_what_was_opened(copy: Path) -> None:
    run = cache.open_cached(str(copy))
    assert run.derived is not None and run.derived.is_of(run)
    assert run.derived.is_of(replace(run, others={"another": run}))
    faster = replace(run.table, duration_ns=run.table.duration_ns // 2)
    assert not run.derived.is_of(replace(run, table=faster))
    assert not run.derived.is_of(replace(run, measured={}))
    assert (
        cache.open_cached(str(copy), overrides=replace(run.overrides, parallel="dp=2")).derived
        is None
    )


def test_a_store_that_cannot_be_written_keeps_it_in_the_cache(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    asked = Asked(monkeypatch)
    whole = _json(copy, "?view=ranks")
    assert asked.take() == ["ranks"] and not (copy / atomic.DERIVED).exists()
    assert _json(copy, "?view=ranks") == whole and not asked.take()
    (kept,) = (cache.directory().parent / "derived").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("is_all", [True, False])
def test_answers_of_a_store_that_others_wrote_are_used(
    is_all: bool, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner's are in it, as `chopper ingest` writes them; one's own are in the cache, also
    where the store may be written and the answers of another user may not."""
    whole, asked = _json(copy, "?view=ranks"), Asked(monkeypatch)
    before = _files(copy)
    mine = set() if is_all else {copy}
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or Path(path) in mine)
    assert _json(copy, "?view=ranks") == whole and not asked.take()
    comms = _json(copy, "?view=comms")
    assert asked.take() == ["comms"] and _files(copy) == before
    assert _json(copy, "?view=comms") == comms and not asked.take()
    for path in before:
        path.write_bytes(b"damaged")
    assert _json(copy, "?view=ranks") == whole and asked.take() == ["ranks"]
    assert _json(copy, "?view=ranks") == whole and not asked.take()


def test_answers_of_one_run_are_none_of_another(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the same name, moved by hand between two stores."""
    other = tmp_path / "other.chopper"
    run = open_run(str(copy))
    write_store(replace(run, table=run.table.take(np.arange(len(run.table) // 2))), other)
    stores = copy, other
    expected = [[_json(store, each, open_run) for each in ALL] for store in stores]
    for store in stores:
        for each in ALL:
            _json(store, each)
    names = [{path.name for path in _files(store)} for store in stores]
    assert len(names[0] & names[1]) > 3
    aside = (copy / atomic.DERIVED).rename(tmp_path / "aside")
    (other / atomic.DERIVED).rename(copy / atomic.DERIVED)
    aside.rename(other / atomic.DERIVED)
    assert [[_json(store, each) for each in ALL] for store in stores] == expected


def test_what_cannot_be_kept_is_no_word_on_the_terminal(tmp_path: Path, wording: Wording) -> None:
    """Of two logs of the same GPUs none is used, and nothing is there to keep of them."""
    log = ROOT / "demo_data" / "fsdp1" / "telemetry" / "amd_smi_monitor.csv"
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("one.csv", "two.csv"):
        shutil.copy(log, folder / name)
    found = subprocess.run(
        [sys.executable, "-m", "chopper_tui", "show", str(folder)],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    wording.among(found.stdout, "no samples of GPU 0")
    assert "Traceback" not in found.stderr


def test_what_is_derived_is_no_file_of_the_run(copy: Path) -> None:
    before = cache.key_of(str(copy))
    _json(copy, "?view=ranks")
    assert _files(copy) and cache.key_of(str(copy)) == before
    cache.verify_run(str(copy), cache.NO_OVERRIDES, again=True)


def test_the_oldest_values_go_where_there_are_too_many(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_MOST_FILES", 2)
    for name in ("ranks", "comms", "findings"):
        _json(copy, f"?view={name}")
    names = [path.name.partition("-")[0] for path in _files(copy)]
    assert len(names) == 2 and "findings" in names


def test_the_first_answer_does_not_wait_for_the_writing(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = threading.Event()
    publish = atomic.publish

    def slow(path: Path, *args: object, **options: object) -> None:
        assert path.parent != copy / atomic.DERIVED or let.wait(20)
        publish(path, *args, **options)  # type: ignore[arg-type]

    run = cache.open_cached(str(copy))
    monkeypatch.setattr(atomic, "publish", slow)
    assert len(query(run, parse(f"{copy}?view=ranks")).labels) == 2
    assert isinstance(run.derived, Derived) and not list(copy.glob(f"{atomic.DERIVED}/*"))
    let.set()
    run.derived.wait()
    assert "ranks" in {path.name.partition("-")[0] for path in _files(copy)}


def test_a_kill_while_it_is_written_leaves_nothing_half(copy: Path) -> None:
    """Killed before the rename, the next process works it out, and clears what was left."""
    code = (
        "import os, signal, sys\n"
        "import chopper_core.model.run as run\n"
        "run.WORTH_KEEPING_S = 0.0\n"
        "replace = os.replace\n"
        "def killed(old, new):\n"
        "    if '.derived' in str(new):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(old, new)\n"
        "os.replace = killed\n"
        "import chopper_core\n"
        "chopper_core.open(sys.argv[1]).frame('?view=ranks')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(copy)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    left = _files(copy)
    assert left and all(path.name.startswith(".") for path in left)
    whole = _json(copy, "?view=ranks", lambda name: open_run(name, jobs=1))
    assert _json(copy, "?view=ranks") == whole
    assert "ranks" in {path.name.partition("-")[0] for path in _files(copy)}
    assert not any(path.name.startswith(".") for path in _files(copy))


def test_the_cache_is_bounded_by_size_and_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run used last stays, whatever its size; older ones go once all take too much."""
    run = cache.directory()
    atomic.make_private(run)
    now = time.time()
    for number in range(4):
        write_store(sample_run(), run / f"{number}-state", private=True)
        os.utime(run / f"{number}-state", (now - 100 * number, now - 100 * number))
    size = sum(file.stat().st_size for file in (run / "0-state").iterdir())
    place = place_of_row(tmp_path)
    place.keep([1.0])

    def names() -> list[str]:
        return sorted(path.name for path in run.iterdir())

    cache.trim()
    assert len(names()) == 4 and [kind for kind, _, _ in cache.kept_figures()] == ["rows"]
    monkeypatch.setenv("CHOPPER_CACHE_GB", str(2.5 * size / 1e9))
    cache.trim()
    assert names() == ["0-state", "1-state"]
    os.utime(run / "1-state", (1.0, 1.0))
    os.utime(place.file, (1.0, 1.0))
    cache.trim(run / "1-state")
    assert names() == ["0-state", "1-state"] and place.recall(list[float]) is None
    cache.trim(run / "0-state")
    assert names() == ["0-state"]
    monkeypatch.setenv("CHOPPER_CACHE_GB", "0")
    cache.trim(run / "0-state")
    assert names() == ["0-state"]


def test_the_cache_is_looked_at_after_many_runs_or_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after each: of thousands, looking takes longer than reading."""
    trimmed: list[Path | None] = []
    monkeypatch.setattr(cache, "trim", trimmed.append)
    monkeypatch.setattr(cache, "_MOST_FOLDERS", 3)
    monkeypatch.setattr(cache, "_written", cache._Written(3, 0))
    (tmp_path / "file").write_bytes(bytes(1000))
    for _ in range(9):
        cache._trim_once_due(tmp_path, is_run=True)
    assert trimmed == [tmp_path] * 3
    monkeypatch.setenv("CHOPPER_CACHE_GB", "0.000032")
    for _ in range(6):
        cache._trim_once_due(tmp_path, is_run=False)
    assert trimmed[3:] == [None] * 2


def test_answers_of_stores_that_cannot_be_written_are_bounded_too(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the cached runs, by size and by when they were used last: reading is using."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    monkeypatch.setattr(cache, "_MOST_FOLDERS", 0)
    derived = cache.directory().parent / "derived"

    def sizes() -> list[int]:
        return [sum(path.stat().st_size for path in each.iterdir()) for each in derived.iterdir()]

    stores = [shutil.copytree(store, tmp_path / f"{number}.chopper") for number in range(3)]
    for number, each in enumerate(stores[:2]):
        _json(each, "?view=ranks")
        for folder in derived.iterdir():
            if folder.stat().st_mtime > time.time() - 100:
                os.utime(folder, (time.time() - 10**5 * (2 - number),) * 2)
    assert len(sizes()) == 2
    monkeypatch.setenv("CHOPPER_CACHE_GB", str(max(sizes()) / 1e9))
    _json(stores[0], "?view=ranks")
    (older,) = (each for each in derived.iterdir() if each.stat().st_mtime < time.time() - 100)
    _json(stores[2], "?view=ranks")
    assert len(sizes()) == 2 and not older.exists(), "that of the second store went"
    place = place_of_row(tmp_path)
    place.keep([1.0])
    os.utime(place.file, (time.time() - 24 * 3600 * (cache.MOST_DAYS - 1),) * 2)
    assert place.recall(list[float]) == [1.0]
    monkeypatch.setenv("CHOPPER_CACHE_GB", "1")
    monkeypatch.setattr(cache, "MOST_DAYS", 2)
    cache.trim()
    assert place.recall(list[float]) == [1.0]


def test_a_cached_run_that_was_removed_while_it_is_open_stays_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `chopper cache clear`, or once the run's files are others: answers make no half of one."""
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    made = str(small_files())
    run = cache.open_cached(made, jobs=1)
    assert isinstance(run.derived, Derived) and cache.clear()[0] == 1
    expected = render_frame(frame_of(run, View(made, name="ranks")), "json")
    run.derived.wait()
    assert [*cache.directory().iterdir()] == []
    # Halves that older versions left are in no run's way, and go like any other entry.
    own = cache.directory() / cache.key_of(made)
    for half in (own, cache.directory() / "another"):
        (half / atomic.DERIVED).mkdir(parents=True)
        (half / atomic.DERIVED / "ranks-0").write_bytes(bytes(100))
    assert [(each.is_old, each.size_bytes) for each in cache.entries()] == [(True, 100)] * 2
    assert _json(Path(made), "?view=ranks") == _json(Path(made), "?view=ranks")
    assert [(each.path == own, each.is_old) for each in cache.entries()] == [
        (True, False),
        (False, True),
    ]
    assert cache.clear(old_only=True) == (1, 100)
    again = cache.open_cached(made, jobs=1)
    assert render_frame(frame_of(again, View(made, name="ranks")), "json") == expected


@pytest.mark.parametrize(
    ("limits", "left"),
    [({}, []), ({"_MOST_REPLAYED": 0}, ["whatif"]), ({"_MOST_OF_ALL": 0}, ["comms", "whatif"])],
    ids=["all", "all but long replays", "first"],
)
def test_ingest_works_out_all_places_or_of_large_runs_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], left: list[str]
) -> None:
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    for limit, most in limits.items():
        monkeypatch.setattr(opening, limit, most)
    made = small_files()
    stores = {each: tmp_path / f"{each or 'plain'}.chopper" for each in ("", "--no-cache")}
    for option, store in stores.items():
        given = [option] if option else []
        assert main(["ingest", str(made), "-o", str(store), "--jobs", "1", *given]) == 0
    asked, checks = Asked(monkeypatch), list[View]()
    with monkeypatch.context() as patch:
        patch.setattr(findings, "checked", lambda run, view: checks.append(view))
        for address in ("?view=findings", "?view=live"):
            _json(stores[""], address)
    assert not asked.take() and not checks
    for address in ALL:
        _json(stores[""], address)
    assert asked.take() == left
    names = {path.name.partition("-")[0] for path in _files(stores[""])}
    assert {"overview", "findings", "ranks"} <= names
    assert not (stores["--no-cache"] / atomic.DERIVED).exists()


def test_ingest_checks_the_findings_once_however_large_they_are(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their replays, findings of many ranks take more memory than a run remembers."""
    asked: list[View] = []

    def forgotten(run: Run, view: View) -> Checked:
        asked.append(view)
        found = checked(run, view)
        run.memo.trim(0)
        return found

    for module in (findings, view_module("findings")):
        monkeypatch.setattr(module, "checked", forgotten)
    monkeypatch.setattr(opening, "_MOST_OF_ALL", 0)
    work_out(str(copy))
    assert len(asked) == 1
    kept_names = {path.name.partition("-")[0] for path in _files(copy)}
    assert {"findings", "overview", "ranges", "advice"} - kept_names == set()


def test_the_first_places_share_what_they_are_made_of(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them compares the GPUs, which takes seconds for thousands."""
    made: list[View] = []
    compared = leads._leads

    def counted(run: Run, view: View) -> leads.RankLeads:
        made.append(view)
        return compared(run, view)

    monkeypatch.setattr(leads, "_leads", counted)
    monkeypatch.setattr(opening, "_MOST_OF_ALL", 0)
    work_out(str(copy))
    assert len(made) == len(set(made)) > 0


def test_what_is_kept_of_rows_is_of_the_stored_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace may be read in another order than that of the levels, in which stores have it."""
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    name, read = str(small_files()), cache._read

    def shuffled(*asked: Any) -> Run:
        run = read(*asked)
        order = np.random.default_rng(1).permutation(len(run.table))
        return replace(run, table=run.table.take(order))

    addresses = [f"?view={view}" for view in VIEWS]
    plain = open_run(name, jobs=1)
    expected = {each: _json(name, each, lambda _: plain) for each in addresses}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_read", shuffled)
    first = cache.open_cached(name, jobs=1)
    found = {each: _everything(first, each) for each in addresses}
    assert isinstance(first.derived, Derived)
    first.derived.wait()
    monkeypatch.setattr(cache, "_read", lambda *asked: pytest.fail("it is read again"))
    for each in addresses:
        assert _everything(cache.open_cached(name), each) == found[each], each
        assert _json(name, each) == expected[each], each


def test_each_value_that_is_kept_has_a_key_of_its_own(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds under one key would replace each other, and each be worked out again in turn."""
    kinds: dict[str, set[object]] = {}
    recall = Derived.recall

    def noted(self: Derived, key: tuple[object, ...], kind: type[Any]) -> Any:
        kinds.setdefault(repr(key), set()).add(kind)
        return recall(self, key, kind)

    monkeypatch.setattr(Derived, "recall", noted)
    for name in VIEWS:
        if name != "live":
            _json(copy, f"?view={name}")
    assert len(kinds) > len(VIEWS)
    assert not [key for key, found in kinds.items() if len(found) > 1]


def test_lanes_of_another_width_need_nothing_else_of_the_summary(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cache.open_cached(str(copy))
    expected = _drawn(_overview_lanes(run))
    assert isinstance(run.derived, Derived)
    run.derived.wait()
    for path in _files(copy):
        if path.name.startswith("lanes-"):
            path.unlink()
    monkeypatch.setattr(overview, "_lag_ns", None)
    monkeypatch.setattr(overview, "_cards", None)
    assert _drawn(_overview_lanes(cache.open_cached(str(copy)))) == expected


def _swap(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _instead(make: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
    def replace_by(path: Path, other: Path) -> None:
        path.unlink()
        make(path, other)

    return replace_by


HARMS: dict[str, Callable[[Path, Path], object]] = {
    "another's content": lambda path, other: path.write_bytes(other.read_bytes()),
    "swapped": _swap,
    "longer": lambda path, _: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "a folder": _instead(lambda path, _: path.mkdir()),
    "a link to another": _instead(lambda path, other: path.symlink_to(other)),
    "a link to itself": _instead(lambda path, _: path.symlink_to(path)),
    "a pipe": _instead(lambda path, _: os.mkfifo(path)),
}


@pytest.mark.parametrize("is_cached", [False, True])
def test_what_is_no_kept_value_is_worked_out_again(
    is_cached: bool, copy: Path, tmp_path: Path
) -> None:
    """In the store that is opened, and in the cache; nothing is waited for."""
    name, asked = small_files() if is_cached else copy, ("?view=findings", "?view=ranks")
    plain = open_run(str(name), jobs=1)
    expected = [_json(name, each, lambda _: plain) for each in asked]
    for each in asked:
        _json(name, each)
    folder = cache.directory() / cache.key_of(str(name)) if is_cached else copy
    whole = shutil.copytree(folder / atomic.DERIVED, tmp_path / "whole")
    for harm, change in HARMS.items():
        shutil.rmtree(folder / atomic.DERIVED)
        files = _files(shutil.copytree(whole, folder / atomic.DERIVED).parent)
        assert len(files) > 2
        for number, path in enumerate(files):
            change(path, files[number - 1])
        for _ in range(2):
            assert [_json(name, each) for each in asked] == expected, harm


def test_a_chart_of_a_signal_is_drawn_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = View(str(copy), signal="power_w")
    run = cache.open_cached(str(copy))
    expected = signal_charts.signal_chart(run, view, 40)
    assert len(expected.gpus) > 1 and np.isfinite(expected.values).any()
    for _ in range(2):
        run = cache.open_cached(str(copy))
        chart = signal_charts.kept_signal_chart(run, view, 40)
        np.testing.assert_array_equal(chart.values, expected.values)
        assert chart.signal.name == expected.signal.name
        plain = {"values": 0, "signal": 0}
        assert asdict(chart) | plain == asdict(expected) | plain
        assert isinstance(run.derived, Derived)
        run.derived.wait()
        monkeypatch.setattr(type(next(iter(chart.signal.curves.values()))), "means", _refused)
    with pytest.raises(AssertionError):
        signal_charts.kept_signal_chart(run, view, 41)


def _refused(*_: object) -> None:
    raise AssertionError


def test_a_column_that_others_remembered_parts_of_is_kept(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was quick to work out only because they had read the activities before."""
    monkeypatch.setattr(row_columns, "_MANY", 0)
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", float("inf"))
    monkeypatch.setattr(row_columns, "WORTH_KEEPING_S", float("inf"))
    expected = _json(copy, "?columns=comm_wait_ns")
    run = cache.open_cached(str(copy))
    for names in ("least_latency_ns", "main_cause", "comm_wait_ns"):
        render_frame(frame_of(run, parse(f"{copy}?columns={names}")), "json")
    assert isinstance(run.derived, Derived)
    run.derived.wait()
    read: list[object] = []
    during = launch_columns._during_comm

    def counted(run: Run, rows: Selection) -> Int64:
        read.append(rows)
        return during(run, rows)

    monkeypatch.setattr(launch_columns, "_during_comm", counted)
    assert _json(copy, "?columns=comm_wait_ns") == expected
    assert len(read) == 1  # For the total, of which nobody had remembered anything.
