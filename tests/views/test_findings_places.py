"""The place and the reason within findings: layers, the end of a step, what drifts, what grows."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.findings import checked
from chopper_core.findings.rule import drift_of
from chopper_core.findings.sentences import detail_of
from chopper_core.findings.titles import MAX_TITLE
from chopper_core.model.phrases import time
from chopper_core.model.view import View
from tests.demo import demo_run
from tests.programs.bench import causes as bench
from tests.programs.bench.causes import planted
from tests.wording import Wording


def test_values_drift_where_a_line_explains_them() -> None:
    noise = np.random.default_rng(1).normal(0, 1, 40)
    rising = 100 + 0.5 * np.arange(40) + noise
    ends = drift_of(rising, 0.03)
    assert ends == pytest.approx((100, 119.5), abs=2)
    assert drift_of(rising[::-1], 0.03) == pytest.approx((119.5, 100), abs=2)
    # Noise alone, a rise within it, too small a rise, few values, and unknown ones are no drift.
    assert drift_of(100 + noise, 0.03) is None
    assert drift_of(100 + 0.05 * np.arange(40) + noise, 0.03) is None
    assert drift_of(np.linspace(100, 102, 40), 0.03) is None
    assert drift_of(np.linspace(100, 120, 9), 0.03) is None
    assert drift_of(np.where(np.arange(40) == 3, np.nan, rising), 0.03) is None


CASES = (
    # Cause, style, what the first finding says, and what its title does.
    (
        "hipMalloc in one layer",
        "module",
        r"hipMalloc\) in layer 1:",
        "the memory allocator in layer 1",
    ),
    (
        "a stall after the optimizer",
        "annotated",
        "at the end of the step",
        "at the end of the step",
    ),
    ("data that take ever longer", "module", r"growing gradually from \S+ \S+ to", "Data loading"),
    ("a step that compiles", "module", "by compiling .* in step", "Compiling"),
    ("experts of one GPU with more tokens", "fsdp", r"mostly in layers \d and \d \(mlp", "FLOPs"),
)


@pytest.mark.few(1)
@pytest.mark.parametrize(("cause", "style", "words", "titled"), CASES)
def test_a_finding_names_where_and_why(cause: str, style: str, words: str, titled: str) -> None:
    found = bench.findings_of(bench.opened(planted.plant(cause, 1, 0.05, style).run))
    assert re.search(words, found[0].detail), found[0].detail
    assert titled in found[0].title and len(found[0].title) <= MAX_TITLE
    assert "…" not in found[0].title


def test_a_part_says_what_it_saves_alone_and_that_its_whole_saves_less(wording: Wording) -> None:
    run = demo_run()
    known = checked(run, View(run.name))
    finding = next(each for (_, each), _ in known.placed if each.saving_ns and each.cost_ns)
    saving = finding.saving_ns or 0.0
    part = replace(finding, saving_ns=saving, alone_ns=2 * saving)
    text = detail_of(known.context, part)
    wording(text, time(2 * saving))
    assert f"saves only {time(saving)}" in text
