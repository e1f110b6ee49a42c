"""Writing the files of profilers, and making runs by hand."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chopper_core.model.hardware import Agent
from chopper_core.sources.counters.files import find_counters, read_found
from chopper_core.sources.dispatches import Dispatches, DispatchRun
from chopper_core.tables.losses import Losses

KERNELS = ("gemm", "void add<float, 4>(float*, int)", 'odd "name", with [clone .kd]')


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV with every field quoted, as rocprofv3 does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def counter_rows(
    kernels: Sequence[str], counters: Mapping[str, Sequence[float]], **fixed: Any
) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows of a counter_collection file: a dispatch per kernel, ids from 1."""
    columns = [
        "Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id",
        "Grid_Size", "Kernel_Id", "Kernel_Name", "Workgroup_Size", "Counter_Name",
        "Counter_Value", "Start_Timestamp", "End_Timestamp",
    ]  # fmt: skip
    rows = []
    for index, kernel in enumerate(kernels):
        for name, values in counters.items():
            fields = {
                "Correlation_Id": index + 1,
                "Dispatch_Id": index + 1,
                "Agent_Id": "Agent 4",
                "Queue_Id": 1,
                "Process_Id": 77,
                "Thread_Id": 78,
                "Grid_Size": 256,
                "Kernel_Id": 9,
                "Kernel_Name": kernel,
                "Workgroup_Size": 64,
                "Counter_Name": name,
                "Counter_Value": f"{values[index]:.6f}",
                "Start_Timestamp": 1000 * index + 5,
                "End_Timestamp": 1000 * index + 505,
            }
            fields |= fixed
            rows.append([fields[column] for column in columns])
    return columns, rows


def made_run(
    rows: Sequence[tuple[int, str, int]], counters: Mapping[str, Sequence[float]], label: str = "a"
) -> DispatchRun:
    """Make a run of (gpu, kernel, grid) rows, which are sorted by gpu."""
    names = list(dict.fromkeys(name for _, name, _ in rows))
    count = len(rows)
    grid = np.zeros((count, 3), np.int32)
    grid[:, 0] = [size for _, _, size in rows]
    start_ns = np.arange(count, dtype=np.int64) * 100
    return DispatchRun(
        paths=(Path("runs") / f"{label}.csv",),
        format="test",
        names=names,
        agents=tuple(Agent(node) for node in range(4)),
        dispatches=Dispatches(
            name=np.array([names.index(name) for _, name, _ in rows], np.int32),
            gpu=np.array([gpu for gpu, _, _ in rows], np.int32),
            process=np.full(count, 1, np.int64),
            part=np.zeros(count, np.int32),
            queue=np.zeros(count, np.int64),
            dispatch_id=np.arange(1, count + 1, dtype=np.int64),
            correlation=np.arange(1, count + 1, dtype=np.int64),
            start_ns=start_ns,
            end_ns=start_ns + 50,
            grid=grid,
            workgroup=np.zeros((count, 3), np.int32),
            registers=np.full(count, -1, np.int32),
            lds=np.full(count, -1, np.int32),
            region=np.full(count, -1, np.int32),
            counters={name: np.array(values, np.float64) for name, values in counters.items()},
        ),
        counter_info={},
        passes=1,
        join_notes=[],
        losses=Losses(),
    )


MINIMAL_SCHEMA = """
CREATE TABLE "rocpd_metadata{u}" (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE "rocpd_string{u}" (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE "rocpd_info_process{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT);
CREATE TABLE "rocpd_info_thread{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT);
CREATE TABLE "rocpd_info_agent{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, type TEXT,
  absolute_index INT, logical_index INT, type_index INT, name TEXT, product_name TEXT,
  extdata TEXT);
CREATE TABLE "rocpd_info_kernel_symbol{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT,
  code_object_id INT, kernel_name TEXT, display_name TEXT);
CREATE TABLE "rocpd_info_pmc{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, agent_id INT,
  name TEXT, symbol TEXT, description TEXT, units TEXT);
CREATE TABLE "rocpd_event{u}" (id INTEGER PRIMARY KEY, guid TEXT, category_id INT, stack_id INT,
  parent_stack_id INT, correlation_id INT, extdata TEXT);
CREATE TABLE "rocpd_pmc_event{u}" (id INTEGER PRIMARY KEY, guid TEXT, event_id INT, pmc_id INT,
  value REAL);
CREATE TABLE "rocpd_region{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT,
  start INT, end INT, name_id INT, event_id INT);
CREATE TABLE "rocpd_kernel_dispatch{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT,
  tid INT, agent_id INT, kernel_id INT, dispatch_id INT, queue_id INT, stream_id INT, start INT,
  end INT, workgroup_size_x INT, workgroup_size_y INT, workgroup_size_z INT, grid_size_x INT,
  grid_size_y INT, grid_size_z INT, region_name_id INT, event_id INT);
"""
RELATIONS = (
    "metadata", "string", "info_process", "info_thread", "info_agent", "info_kernel_symbol",
    "info_pmc", "event", "pmc_event", "region", "kernel_dispatch",
)  # fmt: skip


def insert(connection: sqlite3.Connection, table: str, **values: Any) -> None:
    """Insert a row."""
    columns = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join("?" * len(values))
    connection.execute(
        f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', tuple(values.values())
    )


def fill_rocpd(connection: sqlite3.Connection, suffix: str, guid: str, pid: int) -> None:
    """Insert a process: 2 GPUs, 2 kernels, 6 dispatches, 2 counters in 3 instances, roctx.

    Ids start at 1 in every process. The last dispatch has no event and so no counters.
    """

    def add(table: str, **values: Any) -> None:
        insert(connection, f"rocpd_{table}{suffix}", guid=guid, **values)

    texts = ("KERNEL_DISPATCH", "MARKER_CORE_RANGE_API", "HIP_RUNTIME_API_EXT", "roctxRangePush",
             "hipLaunchKernel", "")  # fmt: skip
    for number, text in enumerate(texts, 1):
        add("string", id=number, string=text)
    add("info_process", id=1, nid=1, pid=pid)
    add("info_thread", id=1, nid=1, pid=1, tid=pid + 1)
    for number, (kind, node) in enumerate((("CPU", 0), ("GPU", 4), ("GPU", 5)), 1):
        add("info_agent", id=number, nid=1, pid=1, type=kind, absolute_index=node,
            logical_index=node, type_index=max(0, node - 4), name="gfx942",
            product_name="MI300X",
            extdata='{"cu_count": 304, "num_xcc": 8, "simd_per_cu": 4}')  # fmt: skip
    for number, name in enumerate(("gemm", "add"), 1):
        add("info_kernel_symbol", id=number, nid=1, pid=1, code_object_id=1,
            kernel_name=f"{name}.kd", display_name=f"{name}.kd")  # fmt: skip
        add("info_pmc", id=number, nid=1, pid=1, agent_id=2, name=("SQ_WAVES", "FETCH_SIZE")[
            number - 1], symbol="", description=f"about {name}", units="")  # fmt: skip
    add("event", id=50, category_id=2, stack_id=900, extdata='{"message": "layer 0"}')
    add("region", id=1, nid=1, pid=1, tid=1, start=100, end=5000, name_id=4, event_id=50)
    for number in range(1, 7):
        event = number if number < 6 else None
        if event:
            add("event", id=event, category_id=1, stack_id=number, correlation_id=0, extdata="{}")
            add("event", id=100 + number, category_id=3, stack_id=number, extdata="{}")
            add("region", id=1 + number, nid=1, pid=1, tid=1, start=2000 * number,
                end=2000 * number + 10, name_id=5, event_id=100 + number)  # fmt: skip
        add("kernel_dispatch", id=number, nid=1, pid=1, tid=1, agent_id=2 + number % 2,
            kernel_id=1 + number % 2, dispatch_id=number, queue_id=1, stream_id=1,
            start=9000 + 100 * number, end=9050 + 100 * number, workgroup_size_x=64,
            workgroup_size_y=1, workgroup_size_z=1, grid_size_x=256, grid_size_y=2,
            grid_size_z=1, region_name_id=6, event_id=event)  # fmt: skip
        for counter in (1, 2):
            for instance in range(3):
                if event:
                    add("pmc_event", event_id=event, pmc_id=counter,
                        value=100.0 * number + 10 * counter + instance)  # fmt: skip


def minimal_rocpd(path: Path, processes: int = 2, *, views: bool = True) -> Path:
    """Write a database with one set of tables per process, and views that unite them."""
    with sqlite3.connect(path) as connection:
        suffixes = [f"_0198{number:04x}_aaaa_7bbb" for number in range(processes)]
        for number, suffix in enumerate(suffixes):
            connection.executescript(MINIMAL_SCHEMA.replace("{u}", suffix))
            fill_rocpd(connection, suffix, f"guid-{number}", 1000 + number)
        for name in RELATIONS if views else ():
            union = " UNION ALL ".join(
                f'SELECT * FROM "rocpd_{name}{suffix}"' for suffix in suffixes
            )
            connection.execute(f'CREATE VIEW "rocpd_{name}" AS {union}')
    connection.close()
    return path


def table_of(run: DispatchRun) -> list[tuple[Any, ...]]:
    """Return a run's rows with codes looked up; NaN is None."""
    rows = run.dispatches
    counters = {
        name: [None if np.isnan(value) else value for value in column.tolist()]
        for name, column in sorted(rows.counters.items())
    }
    return [
        (
            run.names[rows.name[index]],
            run.agents[rows.gpu[index]].node_id,
            *(
                int(column[index])
                for column in (
                    rows.process,
                    rows.queue,
                    rows.dispatch_id,
                    rows.correlation,
                    rows.start_ns,
                    rows.end_ns,
                )
            ),
            tuple(rows.grid[index].tolist()),
            tuple(rows.workgroup[index].tolist()),
            run.names[rows.region[index]] if rows.region[index] >= 0 else None,
            {name: column[index] for name, column in counters.items()},
        )
        for index in range(len(rows))
    ]


def read_counters(paths: Sequence[Path]) -> list[DispatchRun]:
    return read_found(find_counters(paths), paths)
