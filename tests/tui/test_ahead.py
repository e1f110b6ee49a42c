"""Views are computed before somebody opens them, where that takes long enough to be noticed."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from time import monotonic

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS
from chopper_core.views.query import answer, cached, query
from chopper_tui import opening
from chopper_tui.app import ChopperApp
from tests.support import sample_run

ROOT = View("R")


@pytest.fixture
def run() -> Run:
    return sample_run()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("PREFETCH_FROM", 0),
        ("_PREFETCH_AFTER_S", 0.0),
        ("_PREFETCH_PAUSE_S", 0.0),
    ):
        monkeypatch.setattr(opening, name, value)


def unanswered(run: Run) -> list[str]:
    """The questions that can be asked of a run and have no answer yet."""
    missing: list[str] = []

    def ask(view: View) -> object:
        missing.append(view.name)
        raise ChopperError

    for name in VIEWS:
        try:
            answer(sample_run(), with_view(ROOT, name))
        except ChopperError:
            continue
        with suppress(ChopperError):
            cached(run, with_view(ROOT, name), ask)  # type: ignore[arg-type]
    return missing


@pytest.mark.sweep
@pytest.mark.usefixtures("at_once")
def test_every_question_that_has_an_answer_is_asked(run: Run) -> None:
    assert len(unanswered(run)) > 8
    opening.prefetch(run, ROOT, Event())
    assert unanswered(run) == []


@pytest.mark.usefixtures("at_once")
def test_nothing_is_asked_any_more_when_the_program_is_left(run: Run) -> None:
    left = Event()
    left.set()
    opening.prefetch(run, ROOT, left)
    assert not len(run.memo)


def test_small_runs_and_the_largest_are_left_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening.prefetch(run, ROOT, Event())
    assert not len(run.memo)
    monkeypatch.setattr(opening, "PREFETCH_FROM", 0)
    monkeypatch.setattr(opening, "PREFETCH_UP_TO", len(run.table) - 1)
    opening.prefetch(run, ROOT, Event())
    assert not len(run.memo)


@pytest.mark.sweep
@pytest.mark.usefixtures("at_once")
async def test_the_explorer_does_it_beside_the_keys(run: Run) -> None:
    app = ChopperApp(lambda progress: run, ROOT)
    async with app.run_test(size=(80, 24)) as pilot:
        end = monotonic() + 30
        while unanswered(run) and monotonic() < end:
            await pilot.pause(0.05)
        assert unanswered(run) == []
        await pilot.press("5")
        await pilot.pause()
        shown = query(run, with_view(ROOT, "ranks"))
        assert app.screen.frame.labels == shown.labels  # type: ignore[attr-defined]
