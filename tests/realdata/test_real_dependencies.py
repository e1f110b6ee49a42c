"""Dependencies between the activities of real traces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chopper_core.graph.build import activity_rows
from chopper_core.graph.dependencies import Evidence, dependencies, time_order
from chopper_core.model.run import Run
from tests.views.test_dependencies import is_valid


@pytest.mark.parametrize(
    ("name", "streams", "across"),
    [
        ("mi300x_ddp4", 8, 140),
        ("v100_dlrm_8rank", 32, 191),
        ("a100_rank0of16.json.gz", 6, 381),
        ("mi300x_qwen05b.json.gz", 1, 0),
    ],
)
def test_streams_are_chains_and_no_edge_leads_back(
    opened: Callable[[str], Run], name: str, streams: int, across: int
) -> None:
    table = opened(name).table
    rows = time_order(table, activity_rows(table, np.arange(len(table))))
    found = dependencies(table, rows)
    is_valid(table, rows, found)
    by_evidence = np.bincount(found.evidence, minlength=len(Evidence))
    assert by_evidence[Evidence.STREAM] == len(rows) - streams
    assert len(found.source) - by_evidence[Evidence.STREAM] == across
