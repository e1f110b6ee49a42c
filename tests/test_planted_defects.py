"""The bench that plants defects finds them, in a few that are quick; all else stays equal."""

from __future__ import annotations

from random import Random

import pytest

from chopper_core.model.address import parse
from chopper_core.views.query import query
from tests.programs.bench.doubts import (
    DEFECTS,
    SENSORS,
    generated,
    of_sensor,
    of_trace,
    report,
    written,
)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    [
        "a buffer of kernels lost",
        "launch records lost",
        "an impossibly long kernel",
        "GPU stamps early",
        "the profiler says that it lost something",
    ],
)
def test_a_defect_of_a_trace_is_doubted_and_touches_nothing_else(name: str) -> None:
    found = of_trace(DEFECTS[name], generated("annotated", 1000), Random(1))
    assert found is not None and found.is_found and found.changed == ()


@pytest.mark.parametrize("name", ["power beyond the hardware", "samples of part of the run"])
def test_a_defect_of_telemetry_is_doubted_and_touches_nothing_else(name: str) -> None:
    found = of_sensor(name, SENSORS[name], generated("annotated", 1000), Random(1))
    assert found is not None and found.is_found and found.changed == ()
    assert report([found], [])[-1] == f"| {name} | 1 of 1 | 1 of 1 |"


def test_a_generated_run_is_without_a_doubt() -> None:
    assert generated("annotated", 1000).run.doubts == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["a buffer of kernels lost", "an impossibly long kernel"])
def test_a_defect_of_one_rank_accuses_no_gpu(name: str) -> None:
    """What was lost is no reason that the others wait for it."""
    base = generated("annotated", 1000)
    ranks = base.ranks()
    assert DEFECTS[name].plant(ranks, Random(3)) is not None
    run = written(base, ranks, None)
    assert run.doubts
    found = query(run, parse("R?view=findings"))
    rules = [found.values["rule"].cell(row) for row in range(len(found))]
    sure = [found.values["confidence"].cell(row) for row in range(len(found))]
    accused = [rule for rule, each in zip(rules, sure, strict=True) if each != "low"]
    assert [rule for rule in accused if rule != "missing"] == []
