"""Logs of NCCL's and RCCL's Inspector: collectives of all ranks with their sizes and rates."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.extensions.communication import inspector
from chopper_core.graph.collectives import transfers
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render import as_text
from chopper_core.sources.registry import Family, family_of
from chopper_core.util.errors import DataError
from chopper_core.views.query import frame_of
from tests.wording import Wording

BEGIN_US = 1_760_000_000 * 10**6
WORLD = {"id": "0xabc", "comm_name": "unknown", "n_ranks": 4, "nnodes": 2}


def metadata(rank: int, at_us: int, version: str) -> dict[str, Any]:
    return {
        "inspector_output_format_version": version, "git_rev": "", "hostname": f"node{rank // 2}",
        "dump_timestamp_us": BEGIN_US + at_us, "pid": 100 + rank, "rec_mechanism": "x",
    }  # fmt: skip


def performance(
    kind: str, number: int, size: int, lasts_us: int, at_us: int | None, moved: int
) -> dict[str, Any]:
    """`moved` is what NCCL computes the rate of: all ranks' parts of an all-gather."""
    found: dict[str, Any] = {
        "coll": kind, "coll_algo": "RING", "coll_proto": "SIMPLE", "coll_sn": number,
        "coll_msg_size_bytes": size, "coll_exec_time_us": lasts_us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": moved / lasts_us / 1e3,
        "coll_busbw_gbs": 1.0,
    }  # fmt: skip
    if at_us is not None:
        times = {"coll_start_ts": BEGIN_US + at_us, "coll_stop_ts": BEGIN_US + at_us + lasts_us}
        found["event_trace_ts"] = times | {"kernel_events": []}
    return found


def written(folder: Path, version: str = "v4.2", *, verbose: bool = True) -> list[Path]:
    """Ten rounds of an all-reduce of all and an all-gather of pairs; rank 3 comes 0.5 ms late."""
    found = []
    folder.mkdir(exist_ok=True)
    for rank in range(4):
        records: list[dict[str, Any]] = []
        pair = {"id": f"0xd{rank // 2}", "comm_name": "tp", "n_ranks": 2, "nnodes": 1}
        headers = (WORLD | {"rank": rank}, pair | {"rank": rank % 2})
        for place in range(10):
            late = 500 * (rank == 3)
            begin = 5_000 * place
            calls = (
                ("AllReduce", 64 << 20, 1_500 - late, begin + late, 64 << 20),
                ("AllGather", 1 << 20, 100, begin + 2_000, 2 << 20),
            )
            for header, (kind, size, lasts, at, moved) in zip(headers, calls, strict=True):
                own = performance(kind, place, size, lasts, at if verbose else None, moved)
                context = {
                    "header": header,
                    "metadata": metadata(rank, begin + 2_050 * (place >= 0), version),
                }
                if version == "v4.3":
                    stats = {"coll_records": 1, "coll_dropped_total": 3, "p2p_records": 0}
                    records += [context | {"dump_stats": stats}, {"coll_perf": own}]
                else:
                    records.append(context | {"coll_perf": own})
        path = folder / f"node{rank // 2}-pid{100 + rank}.log"
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        found.append(path)
    return found


def rates(run: Run, by: str) -> dict[str, float]:
    frame = frame_of(run, View("R", name="comms", by=by))
    name = "bus_gbps" if "bus_gbps" in frame.values else "got_gbps"
    return {label: frame.values[name].at(row) for row, label in enumerate(frame.labels)}


@pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])
def test_collectives_of_all_ranks_are_one_run(
    version: str, tmp_path: Path, wording: Wording
) -> None:
    paths = written(tmp_path, version)
    assert family_of(paths[0]) is Family.COMMUNICATION
    run = open_run(str(tmp_path), jobs=1)
    assert [(gpu.rank, source.host) for gpu, source in zip(run.gpus, run.sources, strict=True)] == [
        (0, "node0"), (1, "node0"), (2, "node1"), (3, "node1")
    ]  # fmt: skip
    assert len(run.table) == 4 * 20 and run.marks == ()
    # A ring of n moves 2 (n - 1) / n of an all-reduce in the 1 ms since the last rank came, and of
    # an all-gather (n - 1) / n of all parts, in 0.1 ms.
    assert rates(run, "group") == pytest.approx(
        {"0xabc of 4": (64 << 20) * 1.5 / 1e6, "0xd0 (tp) of 2": (2 << 20) / 2 / 1e5,
         "0xd1 (tp) of 2": (2 << 20) / 2 / 1e5}
    )  # fmt: skip
    assert len(rates(run, "size")) == 2
    lost = [loss for source in run.sources for loss in source.losses]
    assert len(lost) == (4 if version == "v4.3" else 0)
    for each in lost:
        wording(each, "6 operations")
    # The last to come are named.
    frame = frame_of(run, View("R", name="comms", by="kind"))
    assert "GPU 3" in as_text(frame).split("all_reduce")[-1].splitlines()[0]


def test_without_times_durations_and_rates_are_there(tmp_path: Path) -> None:
    written(tmp_path, verbose=False)
    run = open_run(str(tmp_path), jobs=1)
    assert run.marks == ("reconstructed",)
    table = run.table
    assert set(table.duration_ns.tolist()) == {1_500_000, 1_000_000, 100_000}
    # Nothing of a process overlaps, and all ends by the time at which it was written.
    for gpu in range(4):
        own = np.sort(table.start_ns[table.gpu == gpu])
        ends = np.sort((table.start_ns + table.duration_ns)[table.gpu == gpu])
        assert (own[1:] >= ends[:-1]).all()
        assert ends[-1] <= (BEGIN_US + 45_000 + 2_050) * 1000
    assert rates(run, "group")["0xd0 (tp) of 2"] > 0


def test_messages_have_peers(tmp_path: Path) -> None:
    for rank in range(2):
        header = {"id": "0x1", "comm_name": "pp", "rank": rank, "n_ranks": 2, "nnodes": 1}
        own = {
            "p2p": ("Send", "Recv")[rank], "p2p_sn": 1, "p2p_peer": 1 - rank,
            "p2p_msg_size_bytes": 4096, "p2p_exec_time_us": 12,
            "event_trace_ts": {"p2p_start_ts": BEGIN_US},
        }  # fmt: skip
        line = {"header": header, "metadata": metadata(rank, 50, "v4.2"), "p2p_perf": own}
        (tmp_path / f"n-pid{rank}.log").write_text(json.dumps(line) + "\n")
    run = open_run(str(tmp_path), jobs=1)
    found = transfers(run, np.arange(2))
    assert {(each.sender, each.receiver, each.bytes) for each in found.values()} == {(0, 1, 4096)}


def test_slow_pairs_are_named(tmp_path: Path) -> None:
    """Ranks send around a ring; the link from 2 to 3 has a quarter of the others' rate."""
    ranks, size = 4, 1 << 20
    for rank in range(ranks):
        header = {"id": "0x1", "comm_name": "pp", "rank": rank, "n_ranks": ranks, "nnodes": 1}
        lines = []
        for place in range(5):
            for kind, peer in (("Send", (rank + 1) % ranks), ("Recv", (rank - 1) % ranks)):
                ends = {rank, peer}
                own = {
                    "p2p": kind, "p2p_sn": place, "p2p_peer": peer, "p2p_msg_size_bytes": size,
                    "p2p_exec_time_us": 400 if ends == {2, 3} else 100,
                    "event_trace_ts": {"p2p_start_ts": BEGIN_US + 1_000 * place},
                }  # fmt: skip
                lines.append(
                    {"header": header, "metadata": metadata(rank, 9_000, "v4.2"), "p2p_perf": own}
                )
        (tmp_path / f"n-pid{rank}.log").write_text("\n".join(map(json.dumps, lines)) + "\n")
    run = open_run(str(tmp_path), jobs=1)
    frame = frame_of(run, View("R", name="comms", by="pair"))
    own = frame.values["median_ns"]
    medians = {label: own.at(row) for row, label in enumerate(frame.labels)}
    assert medians == {
        "rank 0 to 1": 1e5, "rank 1 to 2": 1e5, "rank 2 to 3": 4e5, "rank 3 to 0": 1e5
    }  # fmt: skip


def test_rccl_s_lines_have_no_communicator(tmp_path: Path) -> None:
    for rank in range(2):
        own = performance("AllReduce", 1, 1 << 20, 100, None, 1 << 20) | {"coll_exec_time_us": 99.5}
        line = {"header": {"rank": rank, "n_ranks": 2}, "coll_perf": own}
        path = tmp_path / f"rccl_{rank}.jsonl.gz"
        path.write_bytes(gzip.compress((json.dumps(line) + "\n").encode()))
    run = open_run(str(tmp_path), jobs=1)
    assert [gpu.rank for gpu in run.gpus] == [0, 1]
    assert set(run.table.duration_ns.tolist()) == {99_500}


def test_damage_costs_lines_only(tmp_path: Path, wording: Wording) -> None:
    (path, *_) = written(tmp_path)
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:40]
    lines[5] = lines[5].replace('"coll_exec_time_us": 100', '"coll_exec_time_us": -7')
    lines.insert(6, '{"header": 5, "coll_perf": []}')
    path.write_text("\n".join(lines) + "\n")
    run = open_run(str(tmp_path), jobs=1)
    assert int((run.table.gpu == 0).sum()) == 18
    (note,) = run.sources[0].losses
    wording(note, "3 lines")
    path.write_text(json.dumps({"header": WORLD, "dump_stats": {}}) + "\n")
    with pytest.raises(DataError, match="has no collective or message"):
        open_run(str(path), jobs=1)


def test_a_log_of_headers_alone_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("coll_perf", None)
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match="has no collective or message with a duration"):
        inspector.read(path)
