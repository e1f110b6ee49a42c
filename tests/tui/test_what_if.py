"""The key that replays the steps without what the cursor's row shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from threading import Event

import pytest
from msgspec.structs import replace

from chopper_core.model.charts import Lanes
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.views import whatif
from chopper_core.views.query import query
from chopper_core.views.spec import ViewResult
from tests.demo import demo_run
from tests.support import sample_run
from tests.tui.explorer import explorer
from tests.wording import Wording


async def test_the_row_becomes_the_question() -> None:
    async with explorer() as app:
        label = app.label
        await app.press("I")
        assert app.explore.view.name == "whatif"
        assert app.explore.view.of == f"gpu:{label} as peers"
        await app.command("what-if gpu:1 x0.5")
        assert app.explore.view.of == "gpu:1 x0.5"
        await app.command("what-if faster")
        assert "is not a question" in app.status


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Runs of any size are replayed as large ones, once the event is set."""
    may_end, answer = Event(), whatif.answer

    def answered(run: Run, view: View) -> ViewResult:
        assert may_end.wait(60)
        return answer(run, view)

    monkeypatch.setattr(whatif, "_LARGE", 0)
    monkeypatch.setattr(whatif, "answer", answered)
    yield may_end
    may_end.set()


async def test_questions_of_a_large_run_come_before_their_answers(replays: Event) -> None:
    async with explorer(run=replace(sample_run())) as app:  # of which nothing is known yet
        app.send("I")
        while app.explore.view.name != "whatif":
            await asyncio.sleep(0.01)
        question = app.explore.view.of
        assert app.frame.is_pending and app.frame.labels == ["as measured", question]
        app.send("down")
        while app.label != question:
            await asyncio.sleep(0.01)
        assert app.frame.is_pending and "computing" in app.text()
        replays.set()
        await app.settle()
        wanted = query(app.explore.run, app.explore.view)
        assert app.label == question and not app.frame.is_pending
        assert app.frame.headline == wanted.headline and "computing" not in app.text()
        assert app.frame.values["saving_ns"].cell(1) == wanted.values["saving_ns"].cell(1)


async def test_a_question_without_an_answer_leads_back(replays: Event) -> None:
    replays.set()
    async with explorer(run=replace(sample_run())) as app:  # of which nothing is known yet
        await app.press("I")
        before = app.explore.view
        await app.command("what-if gpu:99 as peers")
        assert app.explore.view == before and not app.frame.is_pending
        assert "matches nothing" in app.status
        await app.press("H")
        assert app.explore.view.name != "whatif"
        await app.command("what-if faster")
        assert app.explore.view.name != "whatif" and "is not a question" in app.status


async def test_a_question_opens_the_predicted_step() -> None:
    async with explorer() as app:
        await app.press("I", "down", "enter")
        view = app.explore.view
        assert view.name == "timeline" and view.baseline == Baseline("measured")
        assert view.overrides.predicted == "gpu:0 as peers"
        assert "predicted" in app.explore.run.marks and app.explore.run.name == view.run
        lanes = app.explore.frame.charts[0]
        assert isinstance(lanes, Lanes) and lanes.ghosts is not None
        # Other views of it are of the predicted run too, and its address leads to it.
        await app.press("8")
        assert app.explore.view.name == "compare" and "in measured" in app.explore.frame.headline[0]
        address = app.explore.frame.address
        # Up leads through the predicted run, and out of it where it was entered.
        await app.press("escape", "escape")
        assert app.explore.view.overrides.predicted and not app.explore.view.path
        await app.press("escape")
        assert app.explore.view.name == "whatif"
        assert not app.explore.view.overrides.predicted
        assert "predicted" not in app.explore.run.marks
        await app.command(f"go {address}")
        assert app.explore.view.overrides.predicted and "predicted" in app.explore.run.marks


async def test_one_key_replays_without_the_row_and_goes_back(wording: Wording) -> None:
    async with explorer() as app:
        asked = View(app.explore.run.name, name="whatif", of="gpu:1 as peers")
        said = query(app.explore.run, asked).headline[0]
        await app.press("down", "X")
        assert app.explore.view.overrides.predicted == "gpu:1 as peers"
        wording(app.status, said)
        await app.press("1")
        assert app.explore.view.name == "" and "predicted" in app.explore.run.marks
        await app.press("X")
        assert not app.explore.view.overrides.predicted and app.explore.view.baseline is None
        assert "predicted" not in app.explore.run.marks
        await app.command("predict gpu:9 as peers")
        assert "gpu:9 matches nothing" in app.status and not app.explore.view.overrides.predicted


async def test_a_finding_and_its_evidence_lead_to_the_step_without_it(wording: Wording) -> None:
    run = demo_run("fsdp2")
    async with explorer(run=run, view=View(run.name, name="overview")) as app:
        card = app.explore.cards.card
        assert card is not None and "GPU 5 is hot" in card.text
        await app.press("X")
        assert app.explore.view.overrides.predicted == "gpu:5 compute as peers"
        assert app.explore.view.path == ("11",)
        wording(app.status, "702 ms", "739.9 ms")
        await app.press("escape")
        assert app.explore.view.name == "overview"
        await app.press("down", "enter")
        assert app.explore.view.name != "overview" and not app.explore.view.overrides.predicted
        await app.press("I")
        assert app.explore.view.name == "whatif" and app.explore.view.of == "gpu:5 compute as peers"
        await app.press("9")
        assert app.explore.view.name == "findings"
        await app.press("G", "X")
        wording(app.status, ":predict")


async def test_questions_keep_both_ends_next_to_their_figures_in_a_narrow_terminal() -> None:
    async with explorer((80, 24), run=demo_run(), view=View("fsdp2", name="whatif")) as at:
        assert re.search(r"gpu:2 iteration:12 \w+…\w+ as peers  ", at.text())
        [above] = [line for line in at.lines() if "saves" in line and "step" in line]
        assert above.split()[:2] == ["step", "saves"]
