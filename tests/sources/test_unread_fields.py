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


@pytest.mark.parametrize("write", [kineto, rocprofv3_csv, rocprofv3_json, rocpd, nvidia_smi])
def test_a_field_that_nothing_reads_is_named(write: Callable[[Path], Path], tmp_path: Path) -> None:
    text = info_text(open_run(str(write(tmp_path)), jobs=1), 200)
    (line,) = (line for line in text.splitlines() if NEW in line)
    assert "not used" in line and "empty" not in line
