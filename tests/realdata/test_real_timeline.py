"""The timeline of real traces: against the facts that were counted from the files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from chopper_core.model.address import parse
from chopper_core.model.charts import Lanes
from chopper_core.model.run import Run
from chopper_core.views.query import query

Open = Callable[[str], Run]
DDP4 = (
    # span, union of compute (memset along), idle; in ms
    (140.042054, 47.634473, 48.852753),
    (133.748876, 43.711434, 49.132870),
    (133.993967, 43.631110, 46.977763),
    (135.513262, 42.112324, 87.407502),
)


def test_lanes_of_ddp_are_busy_as_counted(opened: Open) -> None:
    run = opened("mi300x_ddp4")
    found = query(run, parse("R?view=timeline&by=gpu"))
    length_ms = query(run, parse("R?view=timeline")).charts[0].seen.length_ns / 1e6  # type: ignore[union-attr]
    for gpu, (span, compute, idle) in enumerate(DDP4):
        row = found.row(gpu)
        assert row["lane_ns"] == pytest.approx((span - idle) * 1e6, abs=1)
        assert row["lane_compute_pct"] == pytest.approx(100 * compute / length_ms, abs=1e-4)


@pytest.mark.sweep
def test_streams_of_ddp_are_those_of_the_file(opened: Open, realdata: Path) -> None:
    run = opened("mi300x_ddp4")
    found = query(run, parse("R?view=timeline&by=stream&columns=lane_activities"))
    wanted: Counter[str] = Counter()
    for rank in range(4):
        with gzip.open(realdata / f"mi300x_ddp4/rank{rank}.json.gz") as file:
            for event in json.load(file)["traceEvents"]:
                if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                    wanted[f"GPU {rank} s{event['args']['stream']}"] += 1
    got = {label: found.row(number)["lane_activities"] for number, label in enumerate(found.labels)}
    assert got == dict(wanted)


def test_seven_ranks_of_dlrm_wait_while_rank_7_computes(opened: Open) -> None:
    run = opened("v100_dlrm_8rank")
    view = parse("R?view=timeline&by=gpu")
    picture = query(run, view).charts[0]
    assert isinstance(picture, Lanes)
    bins = 200
    kinds = [picture.cells(row, bins).kind_ns for row in range(8)]
    # The long SendRecv of rank 1 ends where the short one of rank 7 does, to a cell.
    ends = []
    for row in (1, 7):
        comm = kinds[row][1]
        first = int((comm > 0).argmax())
        last = first
        while comm[last] > 0:
            last += 1
        ends.append(last)
    assert abs(ends[0] - ends[1]) <= 1
    assert (kinds[1][1][: ends[0]] > 0).sum() > 20 * (kinds[7][1][: ends[1]] > 0).sum()


@pytest.mark.parametrize(
    "name",
    ["mi300x_qwen05b.json.gz", "mi300x_train_resnet18.json.gz", "mi300x_ddp4", "v100_dlrm_8rank"],
)
def test_cells_add_up_to_their_lanes(opened: Open, name: str) -> None:
    run = opened(name)
    found = query(run, parse("R?view=timeline"))
    picture = found.charts[0]
    assert isinstance(picture, Lanes)
    for row in range(len(found)):
        busy = found.row(row)["lane_ns"]
        assert picture.cells(row, 77).busy_ns.sum() == picture.cells(row, 500).busy_ns.sum() == busy
