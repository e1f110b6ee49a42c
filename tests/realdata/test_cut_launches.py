"""Without what the host did at first, kernels of real traces have the labels of the whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.ingest.rank import read_rank
from chopper_core.model.column_names import FLOPS
from chopper_core.model.table import NO_TIME, KernelTable

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
LAUNCHES = ("cuda_runtime", "hip_runtime", "cuda_driver")


def cut(source: Path, share: float, target: Path) -> None:
    """The trace without the host's events before this share of the launches."""
    content = json.loads(gzip.decompress(source.read_bytes()))
    events = content["traceEvents"]
    calls = [
        each["ts"]
        for each in events
        if each.get("cat") in LAUNCHES and "correlation" in each.get("args", {})
    ]
    begin = sorted(calls)[int(len(calls) * share)]

    def stays(event: dict[str, Any]) -> bool:
        if event.get("ph") not in ("X", "s") or event.get("cat") in ON_GPU or event["ts"] >= begin:
            return True
        is_range = event.get("cat") in ("python_function", "user_annotation")
        return is_range and event["ts"] + event["dur"] > begin

    content["traceEvents"] = [each for each in events if stays(each)]
    target.write_text(json.dumps(content))


def known(table: KernelTable) -> dict[tuple[int, int], tuple[int, int, str, float]]:
    """The launch, layer, operation and FLOPs of each activity, by time and stream."""
    begin = int(table.start_ns.min())
    return {
        (int(table.start_ns[row]) - begin, int(table.stream[row])): (
            int(table.launch_ns[row]),
            int(table.layer[row]),
            table.operations[table.operation[row]],
            float(table.measured[FLOPS][row]),
        )
        for row in np.flatnonzero(table.operation >= 0)
    }


@pytest.mark.parametrize("share", [0.15, 0.45])
@pytest.mark.parametrize(
    "name",
    [
        "mi300x_train_resnet18.json.gz",
        "mi300x_resnet_act_ckpt_rank0of8.json.gz",
        "mi300x_ddp4/rank0.json.gz",
    ],
)
def test_labels_are_those_of_the_whole_trace(
    realdata: Path, tmp_path: Path, name: str, share: float
) -> None:
    cut(realdata / name, share, tmp_path / "cut.json")
    paths = realdata / name, tmp_path / "cut.json"
    whole, rest = (known(read_rank(path).table) for path in paths)
    lost = [
        (whole[place], found)
        for place, found in rest.items()
        if found[0] == NO_TIME and whole[place][0] != NO_TIME
    ]
    assert len(lost) > 200
    for (_, *expected, flops), (_, *found, lent) in lost:
        assert found == expected
        assert lent == flops or np.isnan(lent)
    assert any(np.isfinite(lent) for _, (*_, lent) in lost)
