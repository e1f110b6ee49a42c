"""Traces of Kineto since torch 2.10, and of torch's CUPTI backend, by their sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.support import opened_events


@pytest.mark.parametrize("is_new", [True, False])
def test_hip_streams_and_their_queues_are_told_apart(tmp_path: Path, is_new: bool) -> None:
    """Since June 2026 `stream` is that of HIP, and two of them share a queue."""
    events = []
    for number, (stream, queue) in enumerate(((3, 1), (4, 1), (5, 2)), 1):
        args = {"device": 0, "stream": stream if is_new else queue, "correlation": number}
        args |= {"hsa_queue": queue} if is_new else {}
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1,
             "ts": 10 * number, "dur": 2, "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 0,
             "ts": 10 * number + 4, "dur": 3, "args": args},
        ]  # fmt: skip
    run = opened_events(tmp_path, events)
    assert sorted(run.table.stream.tolist()) == ([3, 4, 5] if is_new else [1, 1, 2])
    assert run.sources[0].facts["streams"] == ("HIP" if is_new else "HSA queues")
    frame = query(run, View("R", order=("kernel",), columns=("stream", "hsa_queue")))
    queues = frame.values["hsa_queue"].numbers.tolist()
    assert sorted(queues) == [1, 1, 2] if is_new else all(map(np.isnan, queues))
    assert np.isnan(frame.total["hsa_queue"] or np.nan)
