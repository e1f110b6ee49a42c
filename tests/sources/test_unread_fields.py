"""A field that no reader knows is named in the description of a run, in every format: so the next
renamed one is seen."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.render.info import info_text
from tests.sources.counters.counter_writers import counter_rows, minimal_rocpd, write_csv

NEW = "brand_new"


def kineto(folder: Path) -> Path:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10 * number, "dur": 5,
         "args": {"device": 0, "stream": 7, "correlation": number + 1, NEW: 1}}
        for number in range(3)
    ]  # fmt: skip
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, NEW: 2, "traceEvents": events}))
    return path


def rocprofv3_csv(folder: Path) -> Path:
    columns, rows = counter_rows(["gemm"], {"SQ_WAVES": [1]})
    return write_csv(
        folder / "1_counter_collection.csv", [*columns, NEW], [[*row, 1] for row in rows]
    )


def rocprofv3_json(folder: Path) -> Path:
    call = {"start_timestamp": 5, "end_timestamp": 9}
    dispatch = {"kernel_id": 1, "dispatch_id": 1, "agent_id": {"handle": 1}, NEW: 1}
    process = {
        "agents": [], "kernel_symbols": [{"kernel_id": 1, "kernel_name": "k"}],
        "buffer_records": {"kernel_dispatch": [{**call, "dispatch_info": dispatch}], "empty": []},
    }  # fmt: skip
    path = folder / "1_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    return path


def rocpd(folder: Path) -> Path:
    path = minimal_rocpd(folder / "1_results.db", 1, views=False)
    with sqlite3.connect(path) as db:
        (name,) = db.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_kernel_dispatch%'"
        ).fetchone()
        db.execute(f'ALTER TABLE "{name}" ADD COLUMN {NEW} INT')
    db.close()
    return path


def nvidia_smi(folder: Path) -> Path:
    path = folder / "nvidia_smi.csv"
    rows = (f"2026/03/05 08:40:0{at}.000, 0, 600 W, 1\n" for at in range(3))
    path.write_text(f"timestamp, index, power.draw [W], {NEW}\n" + "".join(rows))
    return path


def cpu_samples(folder: Path) -> Path:
    path = folder / "cpu.csv"
    rows = (f"{10**18 + number},{number % 2},50,1\n" for number in range(4))
    path.write_text(f"# clock: epoch\ntime_ns,cpu,percent,{NEW}\n" + "".join(rows))
    kineto_alone(folder)
    return folder


def kineto_alone(folder: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
    (folder / "trace.json").write_text(json.dumps({"traceEvents": [event]}))


def nsys(folder: Path) -> Path:
    path = folder / "report.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(
            f"""CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
INSERT INTO StringIds VALUES (1, 'k');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT,
  correlationId INT, globalPid INT, demangledName INT, shortName INT, {NEW} INT);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 7, 1, 5, 1, 1, 3);"""
        )
    db.close()
    return path


def rpd(folder: Path) -> Path:
    path = folder / "trace.rpd"
    with sqlite3.connect(path) as db:
        db.executescript(
            f"""CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INT, queueId INT, start INT,
  end INT, description_id INT, opType_id INT, {NEW} INT);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INT, tid INT, start INT, end INT,
  apiName_id INT, args_id INT);
CREATE TABLE rocpd_api_ops (api_id INT, op_id INT);
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
INSERT INTO rocpd_string VALUES (1, 'k'), (2, 'KernelExecution');
INSERT INTO rocpd_op VALUES (1, 0, 0, 10, 20, 1, 2, 3);"""
        )
    db.close()
    return path


def inspector(folder: Path) -> Path:
    path = folder / "rank0.log"
    record = {
        "header": {"id": "0xa", "rank": 0, "n_ranks": 1, "nnodes": 1},
        "metadata": {"dump_timestamp_us": 1_700_000_000_000_000, "hostname": "n", "pid": 5},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 64,
                      "coll_exec_time_us": 5, NEW: 1},
    }  # fmt: skip
    path.write_text(json.dumps(record) + "\n")
    return path


def flight_recorder(folder: Path) -> Path:
    path = folder / "nccl_trace_rank_0.json"
    entry = {
        "profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"],
        "collective_seq_id": 1, "state": "completed", "time_created_ns": 10**18,
        "time_discovered_started_ns": 10**18 + 10, "time_discovered_completed_ns": 10**18 + 50,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]],
        "output_dtypes": ["Float"], NEW: 1,
    }  # fmt: skip
    path.write_text(json.dumps({"version": "2.10", "entries": [entry]}))
    return path


@pytest.mark.parametrize(
    "write",
    [kineto, rocprofv3_csv, rocprofv3_json, rocpd, nvidia_smi, cpu_samples, nsys, rpd, inspector,
     flight_recorder],
)  # fmt: skip
def test_a_field_that_nothing_reads_is_named(write: Callable[[Path], Path], tmp_path: Path) -> None:
    text = info_text(open_run(str(write(tmp_path)), jobs=1), 200)
    found = " ".join(text.split())
    assert NEW in found[found.index("not used") :] and "empty" not in found
