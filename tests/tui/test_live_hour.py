"""A minute of the scripted hour (`tests/programs/live_hour.py`): each second's screen is right."""

from __future__ import annotations

import pytest

from tests.programs.live_hour import run


@pytest.mark.few(1)
@pytest.mark.parametrize("of_node", [False, True])
def test_each_second_of_a_job_and_of_a_node_is_right_in_few_bytes(of_node: bool) -> None:
    found = run(16, of_node=of_node, interval_s=0.05)
    assert not found["wrong"], found["wrong"][0]
    assert found["updates"] == 15 and found["bytes"]["most"] <= 1500, found["bytes"]
    assert found["memory_mb"]["most"] < 200
