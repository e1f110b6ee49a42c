"""Damage to files of counters: rows are lost and counted, or the file is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from chopper_core.sources.counters.rocprofv3_csv import read_processes
from chopper_core.util.errors import DataError
from tests.sources.counters.counter_writers import KERNELS, counter_rows, read_counters, write_csv
from tests.sources.counters.test_counter_json import process
from tests.wording import Wording

ROUNDS = 60


def whole_files(folder: Path) -> dict[str, bytes]:
    columns, rows = counter_rows(KERNELS * 30, {"SQ_WAVES": list(range(90))})
    csv_file = write_csv(folder / "1_counter_collection.csv", columns, rows).read_bytes()
    (folder / "1_counter_collection.csv").unlink()
    json_file = json.dumps({"rocprofiler-sdk-tool": [process(count=60)]}).encode()
    wide = b"Dispatch_ID,GPU_ID,Grid_Size,Kernel_Name,Start_Timestamp,End_Timestamp,SQ_WAVES\n"
    wide += b"".join(b'%d,2,64,"k(int, int)",%d,%d,7\n' % (n, n, n + 5) for n in range(80))
    return {
        "1_counter_collection.csv": csv_file,
        "a_results.json": json_file,
        "a_results.json.gz": gzip.compress(json_file),
        "pmc_perf.csv": wide,
    }


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["1_counter_collection.csv", "a_results.json", "a_results.json.gz", "pmc_perf.csv"]
)
@pytest.mark.parametrize("way", ["cut", "noise", "quotes", "removed", "doubled"])
def test_damage_never_raises_anything_else(tmp_path: Path, name: str, way: str) -> None:
    whole = whole_files(tmp_path)[name]
    generator = np.random.default_rng(len(name) * 7 + len(way))
    path = tmp_path / name
    kept = []
    for _ in range(ROUNDS):
        start = int(generator.integers(0, len(whole)))
        size = int(generator.integers(1, 60))
        damaged = {
            "cut": whole[:start],
            "noise": whole[:start] + generator.bytes(size) + whole[start + size :],
            "quotes": whole[:start] + b'"' * (size % 3 + 1) + whole[start + 1 :],
            "removed": whole[:start] + whole[start + size :],
            "doubled": whole[: start + size] + whole[start:],
        }[way]
        path.write_bytes(damaged)
        try:
            runs = read_counters([path])
        except DataError as error:
            assert name in str(error)
            continue
        for run in runs:
            kept.append(len(run.dispatches))
            assert all(len(column) == kept[-1] for column in run.dispatches.counters.values())
    if way != "cut" and name.endswith("csv"):
        assert np.median(kept) >= 75, "damage costs the rows around it only"


def test_losses_are_counted_in_sentences(tmp_path: Path, wording: Wording) -> None:
    columns, rows = counter_rows(KERNELS, {"SQ_WAVES": [1, 2, 3]})
    path = write_csv(tmp_path / "1_counter_collection.csv", columns, rows)
    text = path.read_text()
    text += '"only","three","fields"\n' + text.splitlines()[0] + "\n"
    odd = [list(row) for row in rows]
    odd[0][columns.index("Counter_Value")] = "none"
    odd[1][columns.index("Dispatch_Id")] = 9
    odd[1][columns.index("End_Timestamp")] = 3
    odd[2][columns.index("Kernel_Name")] = ""
    for row in odd:
        text += ",".join(f'"{field}"' for field in row) + "\n"
    path.write_text(text + '"1","1","Agent')
    (run,) = read_processes(counters=path)
    assert len(run.dispatches) == 4
    assert run.losses.truncated and run.losses.bad_times == 1
    assert run.losses.unreadable_events == 3
    notes = " ".join(run.losses.notes)
    wording(notes, "within a row")
    wording(notes, "3 rows")
    wording(notes, "1 dispatch", "valid times", path.name)


def test_a_repeated_value_that_differs_is_noted(tmp_path: Path, wording: Wording) -> None:
    columns, rows = counter_rows(KERNELS, {"SQ_WAVES": [1, 2, 3]})
    _, more = counter_rows(KERNELS, {"SQ_WAVES": [1, 5, 3]})
    path = write_csv(tmp_path / "1_counter_collection.csv", columns, rows + more)
    (run,) = read_processes(counters=path)
    assert run.dispatches.counters["SQ_WAVES"].tolist() == [1, 2, 3]
    wording.among(run.losses.notes, "1 value")
