"""Planted causes and clean runs: what a run truly loses, and that nothing accuses a clean one.

`python -m tests.bench.findings` measures all causes, sizes and seeds.
"""

from __future__ import annotations

import pytest

from tests.bench import findings as bench
from tests.bench.findings import planted

SILENT = tuple(style for style in planted.STYLES if style != "stages")


@pytest.mark.parametrize("style", ["module", "fsdp accumulating", "noisy"])
def test_a_clean_run_has_no_findings(style: str) -> None:
    assert not bench.clean(style, 1).false


@pytest.mark.slow
@pytest.mark.parametrize("style", SILENT)
def test_clean_runs_of_every_style_have_no_findings(style: str) -> None:
    assert not bench.clean(style, 2).false


def test_every_cause_has_its_right_finding() -> None:
    assert set(bench.EXPECTED) == set(planted.CAUSES) and len(planted.CAUSES) >= 20


@pytest.mark.parametrize("cause", ["data of one GPU late, always", "one layer slow"])
def test_a_cause_costs_what_the_run_without_it_lacks(cause: str) -> None:
    """Of a stall that nothing hides, that is the stall itself, less what the host wakes for."""
    found = planted.plant(cause, 1, 0.04, "module")
    assert found.share == pytest.approx(0.04, rel=0.1)
    assert found.cause.iterations[-1] == found.run.config.last_iteration


@pytest.mark.parametrize(
    "cause",
    [
        "one GPU at a lower clock",
        "one operation slow in one layer",
        "a throttled GPU",
        # Its GPUs 0 and 3 have few collectives in common, and are placed by the others.
        "a slow link of one group",
        "garbage collection on one GPU",
        "a checkpoint on one GPU",
    ],
)
def test_a_planted_cause_is_the_first_finding(cause: str) -> None:
    found = bench.measure(cause, 1, 0.04)
    assert found.level == 3, found.found
