"""Collectives of real traces: against figures read from the files by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.align.collective_sets import host_clocks
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.views.query import query
from tests.support import rows_of
from tests.wording import Wording

Open = Callable[[str], Run]
FIRST_SEND_RECV_US = (2146, 7635, 518, 6132, 4882, 4679, 514, 10)


def test_the_first_send_recv_of_dlrm_waits_for_rank_7(opened: Open, wording: Wording) -> None:
    run = opened("v100_dlrm_8rank")
    found = query(run, parse("R?view=comms&of=0"))
    rows = rows_of(found)
    for gpu, duration in enumerate(FIRST_SEND_RECV_US):
        assert rows[str(gpu)]["kernel_ns"] == 1000 * duration
        # All leave together, to the microsecond of the file's clock.
        assert rows[str(gpu)]["wait_ns"] == pytest.approx(1000 * (duration - 10), abs=2000)
    assert rows["7"]["wait_ns"] == 0
    assert found.labels[-1] == "7"
    wording(found.headline[0], "all_to_all 0", "GPU 7", "last")
    each = query(run, parse("R?view=comms&by=collective"))
    assert [each.row(n)["last_gpu"] for n in range(5)] == ["GPU 7"] * 5


@pytest.mark.sweep
def test_bus_bandwidths_of_ddp_by_hand(opened: Open, realdata: Path) -> None:
    run = opened("mi300x_ddp4")
    ranks = []
    for rank in range(4):
        with gzip.open(realdata / f"mi300x_ddp4/rank{rank}.json.gz") as file:
            events = json.load(file)["traceEvents"]
        kernels = [e for e in events if e.get("cat") == "kernel" and "nccl" in e["name"]]
        ranks.append(sorted(kernels, key=lambda event: event["ts"]))
    found = query(run, parse("R?view=comms&by=collective&cut=1"))
    assert len(found) == 21
    for number, events in enumerate(zip(*ranks, strict=True)):
        row = found.row(number)
        size = events[0]["args"]["In msg nelems"] * (
            4 if events[0]["args"]["dtype"] == "Float" else 8
        )
        last = max(event["ts"] for event in events)
        transfer_us = max(event["ts"] + event["dur"] for event in events) - last
        factor = {"allreduce": 2 * 3 / 4, "broadcast": 1.0}[events[0]["args"]["Collective name"]]
        assert row["bus_gbps"] == pytest.approx(factor * size / transfer_us / 1e3, rel=1e-3)
        assert row["last_gpu"] == "GPU 3"


def test_the_others_of_ddp_wait_for_rank_3(opened: Open) -> None:
    found = query(opened("mi300x_ddp4"), parse("R?view=comms&by=gpu&cut=1&base=total"))
    rows = rows_of(found)
    assert {gpu: row["times_last"] for gpu, row in rows.items()} == {
        "0": 0,
        "1": 0,
        "2": 0,
        "3": 21,
    }
    assert rows["3"]["wait_ns"] == 0
    others = sum(rows[gpu]["wait_ns"] for gpu in "012")
    assert rows["3"]["caused_ns"] == others == found.total["wait_ns"]


@pytest.mark.parametrize(("name", "scatter_ns"), [("mi300x_ddp4", 10_000),
                                                   ("v100_dlrm_8rank", 5_000)])  # fmt: skip
def test_real_collectives_tell_a_clock_that_is_ahead(
    opened: Open, name: str, scatter_ns: int
) -> None:
    run = opened(name)
    assert len(run.hosts) == 1
    half, ahead_ns = len(run.gpus) // 2, 5_000_000_000
    shift = np.where(run.table.gpu >= half, ahead_ns, 0)
    moved = replace(run.table, start_ns=run.table.start_ns + shift)
    ranks = {gpu.index: gpu.rank for gpu in run.gpus}
    first, second = host_clocks(moved, ranks, {}, {})
    assert (first.ranks, second.ranks) == (tuple(range(half)), tuple(range(half, 2 * half)))
    assert second.uncertainty_ns is not None and second.uncertainty_ns < scatter_ns
    assert abs(second.correction_ns + ahead_ns) < scatter_ns


def test_one_of_eight_ranks_knows_no_arrivals(opened: Open) -> None:
    found = query(opened("mi300x_resnet_act_ckpt_rank0of8.json.gz"), parse("R?view=comms&cut=1"))
    assert all(
        found.row(n)["last_gpu"] is None for n in range(len(found)) if "last_gpu" in found.values
    )
    assert any("17 of 17" in note for note in found.notes)
    got = query(
        opened("mi300x_resnet_act_ckpt_rank0of8.json.gz"),
        parse(
            "R?view=comms&by=collective&columns=got_gbps,message_bytes,kernel_ns,collective_kind,bus_gbps"
        ),
    )
    for row in rows_of(got).values():
        assert row["bus_gbps"] is None
        if row["collective_kind"] == "all_reduce":
            assert row["got_gbps"] == pytest.approx(
                2 * 7 / 8 * row["message_bytes"] / row["kernel_ns"]
            )


def test_rank_3_of_ddp_is_the_host_bound_straggler(opened: Open) -> None:
    found = query(opened("mi300x_ddp4"), parse("R?view=ranks"))
    rows = rows_of(found)
    assert rows["3"]["starts_last_pct"] == 100.0 and rows["3"]["lead_ns"] == 0
    assert rows["3"]["apart_by"] == "host"
    assert rows["3"]["caused_ns"] == found.total["wait_ns"] == found.total["caused_ns"]
    assert rows["3"]["slower_pct"] < 0 < rows["3"]["extra_host_ns"]
    assert found.headline[0].startswith("straggler GPU 3 lags ")
    assert " · host-bound: " in found.headline[-1]


@pytest.mark.sweep
def test_leads_of_ddp_by_hand(opened: Open, realdata: Path) -> None:
    """By name and count on each rank, as the reference code of Lit Silicon has it."""
    starts: list[dict[tuple[str, int], float]] = []
    for rank in range(4):
        with gzip.open(realdata / f"mi300x_ddp4/rank{rank}.json.gz") as file:
            events = json.load(file)["traceEvents"]
        kernels = [e for e in events if e.get("cat") == "kernel" and "nccl" not in e["name"]]
        seen: dict[str, int] = {}
        own: dict[tuple[str, int], float] = {}
        for event in sorted(kernels, key=lambda event: event["ts"]):
            place = seen[event["name"]] = seen.get(event["name"], -1) + 1
            own[(event["name"], place)] = event["ts"]
        starts.append(own)
    common = set.intersection(*map(set, starts))
    late = [max(own[key] for own in starts) for key in common]
    by_hand = [
        sum(last - own[key] for last, key in zip(late, common, strict=True)) / len(common)
        for own in starts
    ]
    found = rows_of(query(opened("mi300x_ddp4"), parse("R?view=ranks")))
    for rank, lead_us in enumerate(by_hand):
        # The view leaves out the cut iteration and tells places of the step apart.
        assert found[str(rank)]["mean_lead_ns"] == pytest.approx(1000 * lead_us, rel=0.25, abs=1)


def test_a_full_queue_is_no_launch_latency(opened: Open) -> None:
    """Steps 550 to 554 and what the start cuts: 3.3 ms of latency, 687 ms behind other work."""
    run = opened("a100_rank0of16.json.gz")
    names = "idle_latency_ns,idle_queued_ns,idle_launch_ns"
    row = query(run, parse(f"R?columns={names}&cut=1&base=total")).row(0)
    assert row["idle_latency_ns"] == pytest.approx(3.3e6, rel=0.02)
    assert row["idle_queued_ns"] == pytest.approx(687e6, rel=0.002)
    assert row["idle_latency_ns"] + row["idle_queued_ns"] == row["idle_launch_ns"]
    found = query(run, parse("R?view=findings"))
    assert "launch-bound" not in [found.row(n)["rule"] for n in range(len(found))]
    assert "waits in queue" in query(run, parse("R?view=launch")).headline[1]
