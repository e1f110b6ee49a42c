"""Large files of counters are read in little memory: a process has a limit on its address space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chopper_core.sources.counters.rocprofv3_csv import read_processes
from chopper_core.sources.counters.tables import CounterValues
from chopper_core.tables.losses import Losses
from tests.limited import NEEDS_LINUX, run_limited
from tests.programs.bench.counters import (
    COUNTERS,
    write_counter_csv,
    write_counter_json,
    write_rocpd,
)

HEADROOM_MB = 80
"""Above what the process has after its imports; about 40 are needed."""
IMPORTS = """
import csv, json, sqlite3
import numpy as np
import pyarrow, pyarrow.csv
from chopper_core.sources.counters.rocpd import read as read_rocpd
from chopper_core.sources.counters.rocprofv3_csv import read_processes
from chopper_core.sources.counters.rocprofv3_json import read as read_json

# One thread for reading, started before the limit.
pyarrow.set_io_thread_count(1)
pyarrow.set_cpu_count(1)
pyarrow.csv.read_csv(pyarrow.BufferReader(b"a\\n1\\n"))
"""
READ = {
    ".csv": "(run,) = read_processes(counters=path)",
    ".json": "(run,) = read_json(path)",
    ".db": "(run,) = read_rocpd(path)",
}
CHECK = """
wanted = 100 * np.arange(len(run.dispatches))
for number, (name, values) in enumerate(run.dispatches.counters.items()):
    assert (values == wanted + number).all(), name
print(len(run.dispatches), *run.dispatches.counters)
"""
WHOLE = {
    ".csv": "rows = list(csv.reader(path.open()))",
    ".json": "json.loads(path.read_bytes())",
    ".db": "sqlite3.connect(path).execute('SELECT * FROM rocpd_pmc_event_0198c1f2').fetchall()",
}
SHAPES: dict[str, tuple[Callable[[Path, int], None], int]] = {
    "a_counter_collection.csv": (write_counter_csv, 60_000),
    "a_results.json": (write_counter_json, 24_000),
    "a_results.db": (write_rocpd, 24_000),
}

pytestmark = NEEDS_LINUX


@pytest.fixture(scope="module", params=SHAPES)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write, dispatches = SHAPES[request.param]
    path: Path = tmp_path_factory.mktemp("large") / request.param
    write(path, dispatches)
    assert path.stat().st_size > 44e6
    return path


@pytest.mark.sweep
def test_it_is_read_within_the_limit(large: Path) -> None:
    done = run_limited(IMPORTS, READ[large.suffix] + CHECK, large, HEADROOM_MB)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(SHAPES[large.name][1]), *COUNTERS]


@pytest.mark.sweep
def test_the_limit_is_too_low_for_all_at_once(large: Path) -> None:
    done = run_limited(IMPORTS, WHOLE[large.suffix], large, HEADROOM_MB)
    assert done.returncode != 0 and "MemoryError" in done.stderr


@pytest.mark.sweep
def test_instances_are_added_up_on_the_way() -> None:
    """Whatever their order: here all rows for one instance, then all for the next."""
    values, rows = CounterValues(Losses(), sums=True), np.arange(300_000)
    for instance in range(64):
        given = np.full(len(rows), float(instance))
        given[instance] = np.nan
        values.add(rows, np.zeros(len(rows), np.int64), given)
        assert len(values._columns[0]) <= len(rows)
    found, sums = values.take(0)
    np.testing.assert_array_equal(found, rows)
    wanted = np.full(len(rows), float(sum(range(64))))
    wanted[:64] -= np.arange(64)
    np.testing.assert_array_equal(sums, wanted)
    assert len(values.take(0)[0]) == 0


WIDE = """
try:
    read_processes(counters=path)
except Exception as error:
    print(error)
"""
HEADS = "Kernel_Name,Dispatch_Id,Agent_Id,Counter_Name,Counter_Value\n"
ODD: dict[str, tuple[str, Callable[[int], str], int]] = {
    "names": ("has 30,000 counters, more than any", lambda n: f"k,{n % 7},0,C{n},1\n", 30_000),
    "dispatches": (
        "has 6,000 counters, but a value for few of them in each of its 60,000 dispatches",
        lambda n: f"k,{n},0,C{n % 6000},1\n",
        60_000,
    ),
}
"""Odd files: what is said of them, and their rows."""


@pytest.mark.parametrize("name", ODD)
def test_odd_files_take_no_more_memory_than_their_size_says(name: str, tmp_path: Path) -> None:
    said, row, count = ODD[name]
    (path := tmp_path / "a_counter_collection.csv").write_text(
        HEADS + "".join(map(row, range(count)))
    )
    done = run_limited(IMPORTS, WIDE, path, HEADROOM_MB + 130)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr


def test_counters_of_other_dispatches_each_are_read(tmp_path: Path) -> None:
    """Sorted by counter, or backwards: each value stays with its dispatch."""
    rows = [f"k{n % 7},{n % 7},0,C{n},{n}\n" for n in range(9_000)]
    (path := tmp_path / "a_counter_collection.csv").write_text(HEADS + "".join(reversed(rows)))
    counters = read_processes(counters=path)[0].dispatches.counters
    assert len(counters) == 9_000
    for n in range(0, 9_000, 97):
        wanted = [n if dispatch == n % 7 else np.nan for dispatch in range(7)]
        np.testing.assert_array_equal(counters[f"C{n}"], wanted)


def test_without_sums_the_first_value_counts() -> None:
    values = CounterValues(Losses(), sums=False)
    values.add(np.array([5, 5, 2, 5]), np.array([1, 0, 1, 1]), np.array([1.0, 2.0, 3.0, 4.0]))
    values.add(np.array([2, 6]), np.array([1, 1]), np.array([3.0, 7.0]))
    rows, given = values.take(1)
    assert (rows.tolist(), given.tolist()) == ([2, 5, 6], [3.0, 1.0, 7.0])
    assert values.repeated == 1


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("value", [1e308, -1e308, np.inf, 2.0**64])
def test_what_no_counter_can_hold_is_left_out_and_counted(sums: bool, value: float) -> None:
    losses = Losses()
    values = CounterValues(losses, sums)
    for _ in range(2):
        values.add(np.array([0, 1, 2]), np.zeros(3, np.int64), np.array([1.0, value, np.nan]))
    rows, found = values.take(0)
    assert rows.tolist() == [0] and found.tolist() == [2.0 if sums else 1.0]
    assert losses.unreadable_events == 2
