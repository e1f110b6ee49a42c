"""The bench that plants defects finds them, in a few that are quick; all else stays equal."""

from __future__ import annotations

from random import Random

import pytest

from tests.bench.doubts import DEFECTS, SENSORS, generated, of_sensor, of_trace, report


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
