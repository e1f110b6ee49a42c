"""Answers are worked out once, and anew when what they are about is another."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest
from msgspec.structs import replace

from chopper_core.analyses.rows import LabelledRows
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.render.exchange import as_json
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views import VIEWS
from chopper_core.views.query import cached, query
from chopper_core.views.spec import ViewResult
from tests.support import sample_run

KERNELS = View("R", name="kernels")


@pytest.fixture
def run() -> Run:
    return sample_run()


def counted() -> tuple[list[View], Callable[[View], ViewResult]]:
    """A question that writes down who asks it, and whose rows open the view itself."""
    asked: list[View] = []

    def ask(view: View) -> ViewResult:
        asked.append(view)
        return ViewResult(LabelledRows("thing", ["a"]), (), lambda row: view)

    return asked, ask


def test_sorting_filtering_and_other_columns_ask_nothing_anew(run: Run) -> None:
    asked, ask = counted()
    views = [KERNELS, replace(KERNELS, sort="-x"), replace(KERNELS, filter="a", columns=("x",))]
    # A row that opens nothing of its own is shown alone, unless the rows are filtered already.
    opened = [cached(run, view, ask).opens(0) for view in views]
    assert [each.filter for each in opened] == ["thing:a", "thing:a", "a"]
    assert [
        replace(each, filter=view.filter) for each, view in zip(opened, views, strict=True)
    ] == views
    assert asked == [KERNELS]


@pytest.mark.parametrize(
    "other",
    [
        replace(KERNELS, by="class"),
        replace(KERNELS, path=("0",)),
        replace(KERNELS, name="launch"),
        replace(KERNELS, run="S"),
        replace(KERNELS, of="x"),
        replace(KERNELS, signal="busy_pct"),
        replace(KERNELS, baseline=Baseline("S")),
    ],
)
def test_another_question_is_asked(run: Run, other: View) -> None:
    asked, ask = counted()
    for view in (KERNELS, other, KERNELS, other):
        cached(run, view, ask)
    assert asked == [KERNELS, other]


def test_another_run_is_asked_anew(run: Run) -> None:
    asked, ask = counted()
    cached(run, KERNELS, ask)
    cached(replace(run), KERNELS, ask)
    assert len(asked) == 2
    beside = replace(run, others={"S": sample_run(seed=2)})
    cached(beside, KERNELS, ask)
    cached(beside, KERNELS, ask)
    assert len(asked) == 3


def test_what_is_raised_is_raised_again(run: Run) -> None:
    asked = []

    def ask(view: View) -> ViewResult:
        asked.append(view)
        raise UsageError("nothing here")

    for _ in range(2):
        with pytest.raises(UsageError, match="nothing here"):
            cached(run, KERNELS, ask)
    assert len(asked) == 2


def test_who_asks_the_same_at_once_waits_for_the_answer(run: Run) -> None:
    asked, ask = counted()
    begun, go_on = Event(), Event()

    def slowly(view: View) -> ViewResult:
        begun.set()
        assert go_on.wait(10)
        return ask(view)

    answers: list[ViewResult] = []
    first = Thread(target=lambda: answers.append(cached(run, KERNELS, slowly)))
    first.start()
    assert begun.wait(10)
    second = Thread(target=lambda: answers.append(cached(run, KERNELS, ask)))
    second.start()
    # Another question does not wait.
    cached(run, replace(KERNELS, by="class"), ask)
    go_on.set()
    for thread in (first, second):
        thread.join(10)
    assert len(answers) == 2
    assert asked == [replace(KERNELS, by="class"), KERNELS]


@pytest.mark.few(7)
@pytest.mark.parametrize("name", list(VIEWS))
def test_the_second_time_shows_what_the_first_did(run: Run, name: str) -> None:
    view = View("R", name=name)
    texts = []
    for _ in range(2):
        try:
            texts.append(as_json(query(run, view)))
        except ChopperError as error:
            texts.append(str(error))
    assert texts[0] == texts[1]
