"""Marks: made and taken away, counted, and compared with each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.columns import Values
from chopper_core.columns.filter import FilterRows, matching, only
from chopper_core.model.address import parse, render
from chopper_core.model.table import LEVELS
from chopper_core.model.view import Baseline, View
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_tui.history import comparison, mark_of, marked_in, toggled
from chopper_tui.widgets.footer import Status
from tests.tui.explorer import explorer, sample_run

LAYER = ("3", "11", "backward", "2")
LABELS = st.text(min_size=1, max_size=8)


@pytest.mark.sweep
@given(st.lists(LABELS, min_size=1, unique=True), st.data())
def test_a_term_takes_exactly_its_labels(labels: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(labels), min_size=1, unique=True))
    term = only("operation", chosen)
    assert len(term.split()) == 1

    def no_values(name: str) -> object:
        raise AssertionError(name)

    mask = matching(FilterRows("operation", labels, no_values), term)  # type: ignore[arg-type]
    taken = {label for label, is_taken in zip(labels, mask, strict=True) if is_taken}
    numbers = {label for label in labels if label.isdecimal()}
    assert taken - numbers == set(chosen) - numbers and taken >= set(chosen)
    assert parse(render(View("R", filter=term))).filter == term


@given(st.sets(st.integers(0, 40), min_size=1), st.permutations([str(n) for n in range(41)]))
def test_a_term_of_numbers_takes_exactly_these_in_few_words(
    chosen: set[int], labels: list[str]
) -> None:
    term = only("gpu", [label for label in labels if int(label) in chosen])
    mask = matching(FilterRows("gpu", labels, dict[str, Values]().__getitem__), term)
    assert {int(labels[place]) for place in np.flatnonzero(mask)} == chosen
    starts = [number for number in chosen if number - 1 not in chosen]
    assert term.count(",") < 2 * len(starts)


def test_numbers_are_written_as_ranges_and_other_names_as_they_are() -> None:
    assert only("iteration", [str(n) for n in (0, 1, 2, 3, 7, 9, 10)]) == "iteration:0-3,7,9,10"
    assert only("operation", ["2", "02", "1"]) == "operation:2,02,1"


def test_a_mark_is_made_once_and_taken_away() -> None:
    view = View("R", ("0",))
    first, second = mark_of(view, "10"), mark_of(view, "11")
    marks = toggled(toggled((), first), second)
    assert marks == (first, second)
    assert toggled(marks, first) == (second,)
    assert marked_in(marks, view) == {"10", "11"}
    assert marked_in(marks, View("R", ("1",))) == frozenset()
    assert marked_in(marks, View("R", ("0", "10"))) == frozenset()


def test_what_cant_be_compared_is_a_sentence() -> None:
    gpus, layers = View("R"), View("R", LAYER[:3])
    one = mark_of(gpus, "0")
    with pytest.raises(UsageError, match="nothing is marked"):
        comparison((), gpus, mark_of(gpus, "0"))
    with pytest.raises(UsageError, match="one row is marked"):
        comparison((one,), gpus, mark_of(gpus, "0"))
    with pytest.raises(UsageError, match="different kinds: gpu and gpu/iteration/phase/layer"):
        comparison((one, mark_of(layers, "2")), gpus, None)
    with pytest.raises(UsageError, match="these are in several"):
        comparison((one, mark_of(gpus, "1"), mark_of(layers, "2")), gpus, None)


def test_two_activities_are_compared_whatever_their_numbers() -> None:
    run = sample_run()
    kernel = query(run, View("sample.json", (*LAYER, "qkv_ip"))).labels[0]
    path = (*LAYER, "qkv_ip", kernel)
    other = ("2", "10", "backward", "1", "qkv_ip", kernel)
    marks = (mark_of(View("sample.json", other), "0"), mark_of(View("sample.json", path), "0"))
    view = comparison(marks, View("sample.json"), None)
    assert view.path == (*path, "0") and view.baseline == Baseline("", (*other, "0"))
    frame = query(run, view)
    times = [
        query(run, View("sample.json", (*each, "0"))).row(0)["kernel_ns"] for each in (path, other)
    ]
    assert len(frame) == 1
    assert frame.row(0)["kernel_ns_delta"] == times[0] - times[1] != 0


async def test_marks_are_shown_without_colours_and_counted() -> None:
    async with explorer() as at:
        await at.press("j", "space", "G", "space", "g")
        lines = at.text().splitlines()
        assert [line[:1] for line in lines if "ms" not in line].count("●") == 2
        assert "marks 2" in at.text()
        await at.press("enter", "j")
        assert "marks 2" in at.text() and "●" not in at.text()
        await at.press("escape", "G", "space")
        assert at.text().count("●") == 1 and "marks 1" in at.text()
        await at.press("u")
        assert "●" not in at.text() and "marks" not in at.text()
        await at.press("u")
        assert "nothing is marked" in at.status


async def test_a_marked_row_and_the_cursors() -> None:
    async with explorer() as at:
        await at.press("space", "j", "j", "=")
        assert at.path == ("2",) and at.frame.view.baseline == Baseline("", ("0",))
        assert "baseline GPU 0" in at.status and "Δ time" in at.text()
        assert at.frame.address == "sample.json:gpu=2?base=gpu=0"
        assert at.explore.marks == ()
        await at.press("H")
        assert at.path == () and at.frame.view.baseline is None


@pytest.mark.sweep
async def test_two_marked_rows_of_different_places() -> None:
    async with explorer(view=View("sample.json", LAYER[:3])) as at:
        await at.press("j", "space", "{", "j")
        assert at.explore.query_one(Status).marks == 1
        label = at.label
        await at.press("space", "=")
        assert at.frame.view.baseline == Baseline("", (*LAYER[:3], "1"))
        assert at.path == ("2", *LAYER[1:3], label) and label != "1"


@pytest.mark.sweep
async def test_three_marked_rows_are_a_table_of_their_own() -> None:
    async with explorer(view=View("sample.json", LAYER)) as at:
        names = list(at.frame.labels)[:3]
        await at.press("space", "j", "space", "j", "space", "enter", "=")
        assert at.path == LAYER and set(at.frame.labels) == set(names)
        assert len(at.frame) == 3 and at.frame.hidden == 2
        again = query(sample_run(), parse(at.frame.address))
        assert list(again.labels) == list(at.frame.labels)
        await at.press("/", "escape")
        await at.command("filter nothing")
        await at.press("=")
        assert len(at.frame) == 3
        assert LEVELS[4] == at.frame.level
