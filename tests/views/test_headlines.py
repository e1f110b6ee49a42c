"""Headlines end where a value would say nothing: no negative delays, no extremes among equals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.base import base_of
from chopper_core.analyses.leads import RankLeads, Straggler, leads
from chopper_core.model.address import parse
from chopper_core.model.phrases import percent
from chopper_core.model.units import Unit, scaled_text
from chopper_core.render.cells import wrapped
from chopper_core.util.errors import NothingToShow
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_core.views.ranks import headline
from chopper_core.views.shared.evidence import finding_cards
from chopper_core.views.shared.marks import tints
from chopper_tui.draw.pieces import lead
from chopper_tui.widgets.cards_pane import cards_of
from tests.demo import demo_run
from tests.support import Row, run_of, sample_run
from tests.tui.explorer import measured_run
from tests.wording import Wording


def test_a_straggler_that_starts_its_kernels_early_is_not_said_to_start_them_late(
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    """The others wait for a GPU in collectives though it leads in all matched kernels."""
    stand, view = leads(sample_run(gpus=4), parse("R?view=ranks"))
    first = int(np.nanargmax(stand.mean_lead_ns))
    late = Straggler(first, 2e6, (0, 1), 2e6, (0, 1), None)
    monkeypatch.setattr(RankLeads, "stragglers", (late,))
    monkeypatch.setattr(RankLeads, "behind", first)
    lines = headline(stand, base_of(stand.run, view))
    assert lines[0].startswith(f"straggler GPU {stand.gpus[first]} ")
    wording(lines[0], "2 ms per step")
    assert not any("-" in line or "last" in line for line in lines)


_WORDS = ("no ", "never ", "none ", "only ", "unknown", "nothing", "the ", "too few", "straggler ")
"""How a headline without a figure in its first phrase begins: it says what isn't there, or who."""


@pytest.mark.parametrize("name", VIEWS)
def test_a_headline_is_a_line_of_figures(name: str) -> None:
    """Each begins with a figure, which is the strong phrase, and all take three lines at 80."""
    for run in (demo_run(), sample_run(gpus=4), run_of([Row(0, 1_760, iteration=0, launch=0)])):
        lines = _headline(run, name)
        for line in lines:
            strong = lead(line)[0][0]
            assert re.search("[0-9]", strong) or line.startswith(_WORDS) or "-bound" in strong, line
        fitted = [part for line in lines for part in wrapped(line, 78)]
        assert len(fitted) <= 3, fitted


def test_equal_gpus_have_no_extremes() -> None:
    run = measured_run()
    level = {name: np.full_like(own, 1500.0) for name, own in run.table.measured.items()}
    even = replace(run, table=run.table.with_measured(level))
    rows = [
        Row(1_000_000 * step, 500_000, gpu=gpu, iteration=step)
        for gpu in range(4)
        for step in range(3)
    ]
    for name, made in (("grid&of=elapsed_ns", run_of(rows)), ("heatmap", run_of(rows))):
        (line, *_) = query(made, parse(f"R?view={name}")).headline
        assert not any(word in line for word in ("largest", "smallest", "most")), line
    for line in query(even, parse("R?view=grid&of=gfx_mhz")).headline:
        assert "smallest" not in line


def test_what_is_nothing_is_left_out() -> None:
    one = run_of([Row(0, 1_760, iteration=0, operation="a", launch=0)])
    texts = [
        line
        for name in ("launch", "launch&by=host", "overlap", "icicle", "icicle&by=gpu")
        for line in _headline(one, name)
    ]
    assert texts and not any(" 0 ms" in f" {text}" or "0.0 " in text for text in texts), texts


def _headline(run: object, name: str) -> tuple[str, ...]:
    try:
        return query(run, parse(f"R?view={name}")).headline  # type: ignore[arg-type]
    except NothingToShow:
        return ()


def test_the_share_of_the_first_kernels_is_that_of_their_rows() -> None:
    found = query(demo_run(), parse("R?view=kernels"))
    first = found.values["kernel_pct"].numbers[:5].sum()
    total = found.total["kernel_ns"]
    assert total is not None
    line = found.headline[0]
    assert f"{first:.1f} % in the top 5" in line
    assert line.startswith(f"{scaled_text(total, Unit.NS)} of kernels")
    assert f"{len(found.labels)} kernels" in line


def test_a_share_that_rounds_to_nothing_is_not_zero() -> None:
    assert [percent(each) for each in (0.0, 0.0004, 0.0005, 0.062)] == [
        *("0.0 %", "<0.1 %", "0.1 %", "6.2 %")
    ]
    assert scaled_text(0.03, Unit.PERCENT) == "<0.1 %"


def test_a_node_that_all_gpus_are_on_is_not_named() -> None:
    assert not any("node" in line for line in _headline(demo_run(), "grid"))


def test_candidates_that_take_as_long_have_no_tint() -> None:
    found = query(demo_run(), parse("R?view=compare"))
    delta = next(each for each in found.columns if each.signed)
    assert np.abs(found.values[delta.name].numbers).max() > 0
    assert not tints(found, delta).any()


def test_the_share_of_a_path_is_of_the_work_and_the_gap_beside_it() -> None:
    found = query(demo_run(), parse("R?view=graph"))
    names = [each.name for each in found.columns]
    assert names[:3] == ["path_ns", "path_gap_ns", "path_pct"]
    work, gap, share = (found.values[name].numbers for name in names[:3])
    np.testing.assert_allclose(100 * (work + gap) / (work + gap).sum(), share)


def test_findings_that_explain_another_hang_below_it() -> None:
    found = query(demo_run(), parse("R?view=findings"))
    cards = cards_of(found)
    assert cards is not None
    hang = [card.text.startswith("└ ") for card in cards.cards]
    assert hang == found.values["part_of"].present().tolist()
    assert any(hang)


def test_a_finding_has_the_same_figures_on_its_card_and_in_the_summary() -> None:
    """With a dash for a saving that isn't known next to a cost that is."""
    run = demo_run()
    cards = cards_of(query(run, parse("R?view=findings")))
    assert cards is not None
    summary = {card.text: card.figures for card in finding_cards(run, parse("R"), 99)}
    shared = {card.text: card.figures for card in cards.cards if card.text in summary}
    assert shared == {text: summary[text] for text in shared}
    assert any(len(each) == 2 and each[1] == "–" for each in shared.values())
