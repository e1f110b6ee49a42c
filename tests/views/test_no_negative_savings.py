"""A potential saving is what a step would be shorter by: never less than nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from chopper_core.views.query import query


def _event(category: str, name: str, begin: float, took: float, **more: Any) -> dict[str, Any]:
    place = {"pid": more.pop("pid", 1), "tid": more.pop("tid", 1)}
    timed = {"ts": begin, "dur": took, "args": more}
    return {"ph": "X", "cat": category, "name": name, **place, **timed}


def _steps(random: Random) -> list[dict[str, Any]]:
    """Three steps of a host that begins the next one once its GPU is done, in no traced call: a
    later step has idle time at its start that the first one can't have."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for number in (3, 4, 5):
        host, gpu = at + 1, at + 20
        for phase in ("forward", "backward"):
            begin = host
            for place in range(6):
                shapes = {"Input Dims": [[64, 64]] * 2, "Input type": ["c10::BFloat16"] * 2}
                call = len(events)
                took = 40 + round(9 * random.random(), 3)
                events.append(_event("cpu_op", "aten::mm", host, 6, **shapes))
                events.append(
                    _event("cuda_runtime", "cudaLaunchKernel", host + 1, 2, correlation=call)
                )
                device = {"device": 0, "stream": 7, "correlation": call}
                start = max(gpu, host + 8)
                events.append(
                    _event("kernel", f"gemm_{place % 3}", start, took, pid=0, tid=7, **device)
                )
                gpu, host = start + took + random.randrange(3), host + 8
            events.append(_event("user_annotation", phase, begin, host - begin))
        host = gpu + 5
        events.append(_event("user_annotation", f"ProfilerStep#{number}", at, host - at))
        at = host + 10
    return events


@pytest.mark.parametrize("seed", range(4))
def test_no_finding_has_a_saving_below_nothing(seed: int, tmp_path: Path) -> None:
    about = {
        "distributedInfo": {"rank": 0, "world_size": 1},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    }
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({**about, "traceEvents": _steps(Random(seed))}))
    run = open_run(str(path), jobs=1)
    names = ("saving_low_ns", "saving_ns", "saving_high_ns")
    found = query(run, View(run.name, name="findings", columns=names))
    for row in range(len(found)):
        low, saving, high = (found.row(row)[name] for name in names)
        assert saving is None or 0 <= low <= saving <= high
    # No question that comes unasked makes steps longer.
    asked = query(run, View(run.name, name="whatif"))
    assert (asked.values["saving_ns"].known(missing=0.0) >= 0).all()
