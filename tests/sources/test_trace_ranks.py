"""Finding traces and ranking them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.sources.ranks import (
    RankAssignment,
    TraceFile,
    assign_ranks,
    find_traces,
    rank_in_name,
)
from chopper_core.util.errors import DataError
from tests.align.traces import TinyTrace
from tests.realdata.conftest import FOLDER as REAL_DATA
from tests.wording import Wording

TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "cat": "x"}]})


def put(path: Path, text: str = TRACE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json.gz", 3),
        ("rank_12.json", 12),
        ("rank-07.json", 7),
        ("Rank0_trace.json", 0),
        ("trace_rank5_step10.json", 5),
        ("worker2_step_12.1694128201545.pt.trace.json", 2),
        ("mi300x_resnet_act_ckpt_rank1of8.json.gz", 1),
        ("trace_3of8.json", 3),
        ("step_10_r4.json", 4),
        ("primus-megatron-exp-rank[3].1773000000000000000.pt.trace.json.gz", 3),
        ("dp0_pp0_tp1_dcp0_ep1_rank1.1773000000000000000.pt.trace.json.gz", 1),
        ("frank7.json", None),
        ("step_12.1694128201545.pt.trace.json", None),
        ("node1_1234.1694128201545.pt.trace.json", None),
        ("trace.json", None),
    ],
)
def test_ranks_are_read_off_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_a_directory_is_searched_and_sorted_naturally(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        put(tmp_path / f"rank{rank}.json.gz")
    put(tmp_path / "worker1_step_12.1694128201545.pt.trace.json")
    found = find_traces([tmp_path])
    assert [trace.rank_hint for trace in found.traces] == [0, 2, 10, 1]
    assigned = assign_ranks([(trace, None) for trace in found.traces])
    assert {each.source for each in assigned} == {"file name"}
    assert found.skipped == []


def test_folders_name_the_ranks_of_their_only_trace(tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path / "worker7" / f"rank_{rank}" / "trace.json")
    found = find_traces([tmp_path])
    assert [trace.rank_hint for trace in found.traces] == [0, 1, 2]
    assigned = assign_ranks([(trace, None) for trace in found.traces])
    assert {each.source for each in assigned} == {"folder name"}
    paths = [trace.path for trace in found.traces]
    assert find_traces(paths).traces == found.traces


def test_a_folder_of_several_traces_names_no_rank(tmp_path: Path) -> None:
    put(tmp_path / "rank0_runs" / "a.json")
    put(tmp_path / "rank0_runs" / "b.json")
    assert [trace.rank_hint for trace in find_traces([tmp_path]).traces] == [None, None]


def test_other_files_are_skipped_with_the_reason(tmp_path: Path, wording: Wording) -> None:
    put(tmp_path / "rank0.json")
    put(tmp_path / "rank0.json.gz")
    put(tmp_path / "truth.json", '{"labels": [1, 2]}')
    put(tmp_path / "list.json", "[1, 2]")
    put(tmp_path / "empty.json", "")
    put(tmp_path / "power.csv", "a,b\n")
    put(tmp_path / "execution_traces" / "rank0.json", '{"schema": "1", "nodes": []}')
    put(tmp_path / "counters.json", '{"rocprofiler-sdk-tool": []}')
    put(tmp_path / ".cache" / "rank1.json")
    found = find_traces([tmp_path])
    assert [trace.path.name for trace in found.traces] == ["rank0.json"]
    reasons = {skip.path.relative_to(tmp_path).as_posix(): skip.reason for skip in found.skipped}
    assert reasons.keys() == {
        "rank0.json.gz",
        "truth.json",
        "list.json",
        "empty.json",
        "power.csv",
        "execution_traces/rank0.json",
        "counters.json",
    }
    wording(reasons["rank0.json.gz"], "rank0.json")
    wording(reasons["truth.json"], "JSON")
    assert reasons["empty.json"] == "is empty"
    wording(reasons["execution_traces/rank0.json"], "execution trace")
    assert reasons["counters.json"].startswith("is rocprofv3 JSON")


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "a", "ph": "X", "ts": 1}',
        '\ufeff\n{"traceName": "t", "traceEvents": []}',
        json.dumps({"metadata": {"x": "y" * 100}, "traceEvents": []}),
        json.dumps({"deviceProperties": [{"name": "z" * 100_000}], "traceEvents": []}),
    ],
)
def test_traces_are_known_by_how_they_begin(tmp_path: Path, text: str) -> None:
    assert len(find_traces([put(tmp_path / "odd name", text)]).traces) == 1


def test_a_file_given_twice_counts_once(tmp_path: Path) -> None:
    path = put(tmp_path / "rank0.json")
    assert len(find_traces([path, tmp_path, path]).traces) == 1


def test_nothing_found_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No path was given"):
        find_traces([])
    with pytest.raises(DataError, match=r"none\.json does not exist"):
        find_traces([tmp_path / "none.json"])
    with pytest.raises(DataError, match=r"holds no traces; expected .* rank0.json.gz"):
        find_traces([tmp_path])
    pickled = tmp_path / "gpu.pkl"
    pickled.write_bytes(b"\x80\x04\x95")
    with pytest.raises(DataError, match=r"gpu.pkl is a Python pickle, .*read_pickle"):
        find_traces([pickled])
    pickled.unlink()
    wrong = put(tmp_path / "truth.json", "{}")
    with pytest.raises(DataError, match="holds no traces among 1 file;"):
        find_traces([tmp_path])
    with pytest.raises(DataError, match=r"truth.json is JSON of no known tool\."):
        find_traces([wrong])


def trace(name: str) -> TraceFile:
    hint = rank_in_name(name)
    return TraceFile(Path(name), hint, "" if hint is None else "file name")


def test_ranks_come_from_the_file_then_its_name_then_the_order() -> None:
    assigned = assign_ranks(
        [
            (trace("b10.json"), None),
            (trace("rank5.json"), 0),
            (trace("rank2.json"), None),
            (trace("b9.json"), None),
            (trace("c.json"), 7),
        ]
    )
    assert assigned == [
        RankAssignment(3, "order"),
        RankAssignment(0, "distributedInfo"),
        RankAssignment(2, "file name"),
        RankAssignment(1, "order"),
        RankAssignment(7, "distributedInfo"),
    ]
    assert assign_ranks([]) == []


def test_two_files_of_one_rank_are_refused() -> None:
    with pytest.raises(DataError, match=r"rank1\.json and other\.json both claim rank 1"):
        assign_ranks([(trace("rank1.json"), None), (trace("other.json"), 1)])


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason=f"no real traces at {REAL_DATA}")
def test_real_directories() -> None:
    found = find_traces([REAL_DATA / "v100_dlrm_8rank"])
    assert [trace.rank_hint for trace in found.traces] == list(range(8))
    assert len(found.skipped) == 8
    assert all(skip.path.parent.name == "execution_traces" for skip in found.skipped)
    found = find_traces([REAL_DATA / "mi300x_ddp4", REAL_DATA / "mi300x_qwen05b.json.gz"])
    assert [trace.rank_hint for trace in found.traces] == [0, 1, 2, 3, None]


@pytest.mark.parametrize(
    ("devices", "shared"),
    [
        ({0: 0, 1: 1, 2: 1}, (1, 2)),  # of the same host
        ({0: 2, 1: 2, 2: 2}, (0, 1, 2)),  # as device 2 they see more than one
        ({0: 0, 1: 0, 2: 0}, ()),  # each sees one, which it numbers 0
        ({0: 0, 1: 1, 2: 2, 3: 0}, ()),  # rank 3 is of another host
    ],
)
def test_ranks_that_share_a_gpu_are_named(
    tmp_path: Path, devices: dict[int, int], shared: tuple[int, ...]
) -> None:
    for rank, device in devices.items():
        trace = TinyTrace(process=100 + rank, device=device)
        trace.members |= {"hostname": f"n{rank // 3}", "distributedInfo": {"rank": rank}}
        trace.gpu("gemm", 10, 5)
        trace.write(tmp_path / f"rank{rank}.json")
    run = open_run(str(tmp_path), jobs=1)
    named = {each.rank: each.notes for each in run.sources}
    listed = ", ".join(map(str, shared))
    device = devices[shared[0]] if shared else 0
    note = f"Ranks {listed} share device {device} of n0: their work takes turns."
    assert named == {rank: (note,) if rank in shared else () for rank in devices}
