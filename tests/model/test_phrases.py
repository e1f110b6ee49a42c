"""Words for numbers of things."""

from __future__ import annotations

import pytest

from chopper_core.model.phrases import of_one


@pytest.mark.parametrize(
    ("several", "one"),
    [
        ("streams", "stream"),
        ("communication kernels", "communication kernel"),
        ("launch calls without an activity", "launch call without an activity"),
        ("dispatches without times", "dispatch without times"),
        ("dependencies on nodes that the file lacks", "dependency on nodes that the file lacks"),
        (
            "activities that start before their launch call (clocks disagree)",
            "activity that starts before its launch call (clocks disagree)",
        ),
        ("node of the unknown type 8", "node of the unknown type 8"),
        ("µs of kernels without a work model", "µs of kernels without a work model"),
    ],
)
def test_one_thing_is_no_plural(several: str, one: str) -> None:
    assert of_one(several) == one
