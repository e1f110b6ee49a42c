"""Dumps of PyTorch's flight recorder: who keeps a job waiting, and that no pickle runs anything."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.extensions.communication import flight_recorder
from chopper_core.extensions.communication.job_run import RankLog, run_of_logs
from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render import as_text, info
from chopper_core.sources.registry import Family, family_of
from chopper_core.util.errors import DataError
from chopper_core.views.query import frame_of
from tests.communication.test_inspector import written
from tests.ingest.test_host_traces import kineto
from tests.wording import Wording

BEGIN_NS = 1_760_000_000 * 10**9
WORLD = ("0", "default_pg")
SINCE = "since 2025-10-09 08:53:20 UTC"


def entry(
    number: int,
    state: str = "completed",
    name: str = "all_reduce",
    group: tuple[str, str] = WORLD,
    size: int = 1024,
    at_us: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    begin = BEGIN_NS + (number if at_us is None else at_us) * 1000
    is_done, has_begun = state == "completed", state != "scheduled"
    return {
        "record_id": number, "pg_id": 0, "process_group": group, "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{name}", "state": state,
        "time_created_ns": begin, "time_discovered_started_ns": begin + 5 if has_begun else None,
        "time_discovered_completed_ns": begin + 905 if is_done else None,
        "duration_ms": 0.0008 if is_done else None, "is_p2p": False, "retired": is_done,
        "input_sizes": [[size]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[size]], "output_dtypes": ["BFloat16"],
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    } | more  # fmt: skip


def dump(
    folder: Path,
    rank: int,
    entries: Sequence[dict[str, Any]],
    groups: dict[tuple[str, str], list[int]],
    *,
    is_json: bool = False,
) -> Path:
    """A dump as torch writes it: on a timeout a pickle of plain data, on request JSON."""
    config = {
        name: {"name": name, "desc": text, "ranks": json.dumps(ranks)}
        for (name, text), ranks in groups.items()
    }
    whole = {"version": "2.10", "nccl_version": "2.27.3", "pg_config": config, "pg_status": {}}
    whole["entries"] = [*entries]  # type: ignore[assignment]
    path = folder / f"nccl_trace_rank_{rank}{'.json' * is_json}"
    path.write_bytes(json.dumps(whole).encode() if is_json else pickle.dumps(whole, 2))
    return path


def hang_of(run: Run) -> str:
    doubt = run.doubts[0]
    assert doubt.kind == "hang"
    # On the first screen, and in the description of the run.
    assert doubt.sentence in as_text(frame_of(run, View("R")))
    assert doubt.sentence in info.info_text(run)
    return doubt.sentence


@pytest.mark.parametrize("is_json", [False, True])
def test_the_rank_that_is_missing_is_named(is_json: bool, tmp_path: Path, wording: Wording) -> None:
    for rank in range(4):
        entries = [entry(number) for number in range(1, 11)]
        if rank != 2:
            entries += [entry(11, "started"), entry(12, "scheduled")]
        dump(tmp_path, rank, entries, {WORLD: [0, 1, 2, 3]}, is_json=is_json)
    assert family_of(next(tmp_path.iterdir())) is Family.COMMUNICATION
    run = open_run(str(tmp_path), jobs=1)
    wording(
        hang_of(run),
        "rank 2 ",
        "all_reduce 11",
        "group 0 (default_pg)",
        "ranks 0-1, 3",
        SINCE,
        "all_reduce 10",
    )
    table = run.table
    assert len(table) == 43 and [gpu.rank for gpu in run.gpus] == [0, 1, 2, 3]
    done = table.duration_ns[[table.names[code] == "nccl:all_reduce" for code in table.kernel]]
    assert set(done.tolist()) == {800} and set(table.bytes.tolist()) == {2048}
    assert {table.names[code] for code in table.group} == {"0 (default_pg) of 4"}
    assert run.sources[0].unused == {"operation that never started": 1}


def test_a_rank_without_a_dump_is_named(tmp_path: Path, wording: Wording) -> None:
    for rank in (0, 1, 3):
        dump(tmp_path, rank, [entry(1), entry(2, "started")], {WORLD: [0, 1, 2, 3]})
    wording(
        hang_of(open_run(str(tmp_path), jobs=1)),
        "ranks 0-1, 3",
        "all_reduce 2",
        "group 0 (default_pg)",
        SINCE,
        "rank 2",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "broadcast"}, "broadcast of [[1024]] on rank 1"),
        ({"size": 99}, "all_reduce of [[99]] on rank 1"),
    ],
)  # fmt: skip
def test_calls_that_differ_are_named(
    change: dict[str, Any], says: str, tmp_path: Path, wording: Wording
) -> None:
    for rank in range(3):
        own = entry(2, "started", **(change if rank == 1 else {}))
        dump(tmp_path, rank, [entry(1), own], {WORLD: [0, 1, 2]})
    wording(
        hang_of(open_run(str(tmp_path), jobs=1)),
        "collective 2",
        "group 0 (default_pg)",
        "all_reduce of [[1024]]",
        "ranks 0, 2",
        says,
        SINCE,
    )


def test_the_first_cause_of_a_chain_is_named(tmp_path: Path, wording: Wording) -> None:
    """Rank 3 computes; 2 waits for it in their pair, and 0 and 1 for both in the world's."""
    pair, world = ("7", "tp"), {WORLD: [0, 1, 2, 3], ("7", "tp"): [2, 3]}
    for rank in range(4):
        entries = [entry(1), *([entry(1, "completed", group=pair)] if rank > 1 else [])]
        if rank == 2:
            entries.append(entry(2, "started", group=pair, at_us=30))
        elif rank < 2:
            entries.append(entry(2, "started", at_us=20))
        dump(tmp_path, rank, entries, world)
    found = hang_of(open_run(str(tmp_path), jobs=1))
    # Of rank 3 the world's collective is missing, too, and rank 2 is on its way to it.
    wording(found, "rank 3 ", "all_reduce 2", "group 0 (default_pg)")


def test_ranks_that_wait_for_each_other(tmp_path: Path, wording: Wording) -> None:
    one, other = ("1", "tp"), ("2", "dp")
    groups = {one: [0, 1], other: [0, 1]}
    dump(tmp_path, 0, [entry(1, "started", group=one)], groups)
    dump(tmp_path, 1, [entry(1, "started", "all_gather", group=other)], groups)
    wording(
        hang_of(open_run(str(tmp_path), jobs=1)),
        "rank 0 in all_reduce 1 of group 1 (tp)",
        "for rank 1",
        "rank 1 in all_gather 1 of group 2 (dp)",
        "for rank 0",
        SINCE,
    )


PIPELINE = ("4", "pp")


def message(name: str, state: str = "started") -> dict[str, Any]:
    return entry(0, state, name, PIPELINE, is_p2p=True, p2p_seq_id=1)


def test_a_stage_that_never_sends_is_named(tmp_path: Path, wording: Wording) -> None:
    """Stage 2 waits for 1, which waits for 0; and all wait for 0 in the end."""
    groups = {WORLD: [4, 5, 6], PIPELINE: [4, 5, 6]}
    for stage, own in enumerate(([], [message("recv 1<-0")], [message("recv 2<-1", "scheduled")])):
        dump(tmp_path, 4 + stage, [entry(1), *own], groups)
    wording(
        hang_of(open_run(str(tmp_path), jobs=1)),
        "rank 4 ",
        "rank 5 ",
        "recv 1<-0 of group 4 (pp)",
        SINCE,
    )


def test_a_stage_that_waits_for_a_collective_is_not_the_cause(
    tmp_path: Path, wording: Wording
) -> None:
    groups = {WORLD: [0, 1, 2], PIPELINE: [0, 1, 2], ("5", "dp"): [0, 2]}
    dump(tmp_path, 0, [entry(1), entry(2, "started", group=("5", "dp"))], groups)
    dump(tmp_path, 1, [entry(1), message("recv 1<-0")], groups)
    dump(tmp_path, 2, [entry(1), entry(1, group=("5", "dp"))], groups)
    found = hang_of(open_run(str(tmp_path), jobs=1))
    wording(found, "rank 2 ", "all_reduce 2 of group 5 (dp)", "rank 0 ")


def test_messages_that_wait_for_each_other(tmp_path: Path, wording: Wording) -> None:
    groups = {PIPELINE: [0, 1]}
    dump(tmp_path, 0, [message("recv 0<-1")], groups)
    dump(tmp_path, 1, [message("recv 1<-0")], groups)
    wording(
        hang_of(open_run(str(tmp_path), jobs=1)),
        "rank 0 in recv 0<-1 of group 4 (pp)",
        "rank 1 in recv 1<-0 of group 4 (pp)",
    )


def test_all_are_in_it(tmp_path: Path, wording: Wording) -> None:
    for rank in range(2):
        dump(tmp_path, rank, [entry(1), entry(2, "started")], {WORLD: [0, 1]})
    found = hang_of(open_run(str(tmp_path), jobs=1))
    wording(found, "all_reduce 2 of group 0 (default_pg)", "ranks 0-1")


def test_a_job_that_does_not_hang_says_nothing(tmp_path: Path) -> None:
    """A recorder keeps the last calls of each rank only: the first ones may be of some."""
    for rank in range(2):
        entries = [entry(number) for number in range(1 + 3 * rank, 9)]
        dump(tmp_path, rank, entries, {WORLD: [0, 1]})
    run = open_run(str(tmp_path), jobs=1)
    assert run.doubts == () and len(run.table) == 8 + 5


def test_messages_have_their_ends(tmp_path: Path) -> None:
    for rank, name in enumerate(("send 0->1", "recv 1<-0")):
        own = entry(0, "completed", name, is_p2p=True, p2p_seq_id=1)
        dump(tmp_path, rank, [own], {("4", "pp"): [0, 1]})
    run = open_run(str(tmp_path), jobs=1)
    assert {run.table.operations[code] for code in run.table.operation} == {"send_recv"}
    from chopper_core.graph.collectives import transfers

    found = transfers(run, np.arange(2))
    assert {(each.sender, each.receiver) for each in found.values()} == {(0, 1)}


def test_other_files_are_named(tmp_path: Path, wording: Wording) -> None:
    """Dumps come before an Inspector's logs, and traces before both; the others are named."""
    for rank in range(2):
        dump(tmp_path, rank, [entry(1), entry(2, "started")], {WORLD: [0, 1]})
    assert [each.path for each in find_runs([str(tmp_path)])] == [str(tmp_path)]
    logs = written(tmp_path)
    run = open_run(str(tmp_path), jobs=1)
    assert run.doubts[0].kind == "hang" and len(run.gpus) == 2
    assert sorted(path for path, why in run.skipped if "of another recorder" in why) == [
        *map(str, logs)
    ]
    kineto(tmp_path / "rank0.json")
    run = open_run(str(tmp_path), jobs=1)
    assert len(run.skipped) == 6
    for _, why in run.skipped:
        wording(why, "whole job")


class Danger:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/never"),))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_runs_nothing(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    path = tmp_path / "nccl_trace_rank_0"
    data = {"pg_config": {}, "pg_status": {}, "entries": [Danger()]}
    path.write_bytes(pickle.dumps(data, protocol))
    with pytest.raises(DataError, match="which may run"):
        open_run(str(path), jobs=1)
    assert not target.exists() and not Path("/tmp/never").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"entries": None},
        {"entries": [7, None, {"profiling_name": 5}, {"profiling_name": "nccl:all_reduce"}]},
        {"pg_config": [1], "entries": [entry(1, process_group=3, time_created_ns="x")]},
        {"pg_config": {"0": {"ranks": "[[["}}, "entries": [entry(1, input_sizes=[["a"], 3])]},
        {"entries": [entry(1, input_sizes=[[2**70] * 40], duration_ms=-1.0)]},
    ],
)
def test_damage_is_a_sentence(change: dict[str, Any], tmp_path: Path) -> None:
    whole = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []} | change
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(whole, 2))
    try:
        run = open_run(str(path), jobs=1)
    except DataError as error:
        assert "nccl_trace_rank_0" in str(error)
    else:
        assert len(run.table) == 1 and int(run.table.bytes[0]) in (-1, 2048)
    path.write_bytes(pickle.dumps(whole, 2)[:-9])
    with pytest.raises(DataError, match="nccl_trace_rank_0"):
        open_run(str(path), jobs=1)


def test_dumps_that_show_nothing_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0.json"
    for text, sentence in (
        ('{"version": "2.10", "pg_config": {}, "entries": {}}', "no list of entries"),
        ('{"version": "2.10", "pg_config": {}, "entries": [', "flight recorder's JSON"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=sentence):
            flight_recorder.read(path)


def test_two_dumps_of_one_rank_are_not_one_hang(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for folder in paths:
        folder.mkdir()
        dump(folder, 1, [entry(1)], {WORLD: [0, 1]})
    with pytest.raises(DataError, match="are dumps of rank 1; open those of one hang"):
        open_run(str(tmp_path), jobs=1)


def test_a_log_without_an_operation_is_refused(tmp_path: Path) -> None:
    log = RankLog(tmp_path, 0, 0, "header", "flight recorder", "epoch", (), {})
    with pytest.raises(DataError, match="has no collectives to show: none of them has any times"):
        run_of_logs("job", [log])


def test_entries_without_a_group_are_of_an_unnamed_one(tmp_path: Path, wording: Wording) -> None:
    for rank in range(2):
        calls = [entry(1), entry(2), *[entry(3, "started")] * (rank == 0)]
        for each in calls:
            del each["process_group"]
        dump(tmp_path, rank, calls, {WORLD: [0, 1]})
    run = open_run(str(tmp_path), jobs=1)
    labels = {run.table.names[code] for code in run.table.group.tolist()}
    assert labels == {"unnamed group of 2"}
    wording(hang_of(run), "unnamed")
