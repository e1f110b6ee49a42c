"""Databases of Nsight Systems: activities, calls, NVTX ranges, ranks, sizes, and refusals."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.table import Category, Kind
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.wording import Wording

EPOCH_NS = 1_768_000_000_000_000_000
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
  blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER,
  staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER,
  copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER,
  text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
TEXTS = {1: "sm90_xmma_gemm_bf16bf16_bf16f32_tn_n", 2: "void vectorized_elementwise_kernel<4>()",
         3: "cudaLaunchKernel_v7000", 4: "cudaMemcpyAsync_v3020",
         5: "aten::mm, seq = 12, op_id = 3, sizes = [[64, 32], [32, 16]]"}  # fmt: skip


def write(path: Path, processes: int = 1, kernels: bool = True) -> Path:
    """Two steps of a product and an elementwise kernel each, and a copy, for each process."""
    with sqlite3.connect(path) as db:
        db.executescript(SCHEMA)
        if not kernels:
            db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", TEXTS.items())
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (EPOCH_NS,))
        for number in range(processes if kernels else 0):
            db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, ?, ?, '')",
                       (number, "NVIDIA H100 80GB HBM3"))  # fmt: skip
            # The first process has the last GPU.
            device, pid = processes - 1 - number, (1 << 48) + ((500 + number) << 24)
            tid = pid + 500
            for step in range(2):
                at, first = 100_000 * step + 1000, 10 * step + 1
                for place, (name, grid) in enumerate(((1, 32), (2, 264))):
                    call, begin = at + 1000 * place, at + 5000 + 10_000 * place
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,3,0)",
                               (call, call + 500, tid, first + place))  # fmt: skip
                    kernel = (begin, begin + 8000, device, 1, 7, first + place, pid, name, name,
                              grid, 1, 1, 128, 2, 1, 168, 1024, 4096, None)  # fmt: skip
                    marks = ",".join("?" * len(kernel))
                    db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", kernel)
                events = [(at - 500, at + 90_000, 59, f"step {step + 4}", tid, None),
                          (at - 100, at + 600, 59, None, tid, 5),
                          (at, None, 34, "a mark", tid, None)]  # fmt: skip
                db.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,?,0,?,?,NULL,?,0)", events)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (150000,150100,0,?,50,4,0)",
                       (tid,))  # fmt: skip
            copy = (151_000, 152_000, device, 1, 7, 50, pid, 4096, 1, 1, 2)
            marks = ",".join("?" * len(copy))
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({marks})", copy)
    db.close()
    return path


def test_a_database_that_was_read_is_in_no_list_of_others(tmp_path: Path, wording: Wording) -> None:
    write(tmp_path / "report.sqlite", processes=2)
    run = open_run(str(tmp_path), jobs=1)
    assert run.skipped == () and run.ranks == (0, 1)
    (origin,) = {source.rank_from for source in run.sources}
    wording(origin, "order of their GPUs")


def test_what_nsight_systems_says_and_what_nothing_reads_is_in_info(
    tmp_path: Path, wording: Wording
) -> None:
    with sqlite3.connect(write(tmp_path / "report.sqlite")) as db:
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, source, severity, text)")
        db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, 1, 'Started.'), (0, 1, 3, 'Lost.')")
        db.execute("CREATE TABLE OSRT_API (start, end, nameId)")
        db.execute("INSERT INTO OSRT_API VALUES (1, 2, 3), (3, 4, 3)")
    db.close()
    run = open_run(str(tmp_path), jobs=1)
    source = run.sources[0]
    wording.among(source.losses, "Lost.")
    (note,) = [doubt.sentence for doubt in run.doubts]
    wording(note, "Lost.")
    assert not any("Started" in loss for loss in source.losses)
    assert source.unused == {"OSRT_API": 2}


def test_a_database_is_a_run_with_steps_operators_and_sizes(tmp_path: Path) -> None:
    run = open_run(str(write(tmp_path / "report.sqlite")), jobs=1)
    table = run.table
    assert [gpu.hardware for gpu in run.gpus] == ["NVIDIA H100 80GB HBM3"]
    assert run.hardware is not None and run.hardware.name == "H100-SXM"
    kernels = table.category == Category.KERNEL
    assert kernels.sum() == 4 and table.duration_ns[kernels].tolist() == [8000] * 4
    assert sorted(set(table.iteration[kernels].tolist())) == [4, 5]
    # Launched within the range of step 5, whose time is that of the launch.
    launched = table.launch_ns[kernels & (table.iteration == 5)]
    assert sorted(launched.tolist()) == [EPOCH_NS + 101_000, EPOCH_NS + 102_000]
    copy = table.kind == Kind.COPY
    assert table.bytes[copy].tolist() == [4096]
    assert [table.names[code] for code in table.kernel[copy]] == ["Memcpy HtoD (Host -> Device)"]
    frame = query(run, parse("R?view=kernels&columns=grid,block,registers,lds_bytes"))
    row = frame.row(list(frame.labels).index("sm90_xmma_gemm_bf16bf16_bf16f32_tn_n"))
    assert [row[name] for name in ("grid", "block", "registers", "lds_bytes")] == [
        32,
        256,
        168,
        5120,
    ]
    # An operator of emit_nvtx has its sizes, and with them its work.
    shapes = {shape.label: shape for shape in table.shapes}
    assert shapes["mm 64x16x32"].flops == 2 * 64 * 32 * 16
    assert "mm" in table.operations


def test_the_processes_of_a_node_are_ranks_in_the_order_of_their_gpus(tmp_path: Path) -> None:
    run = open_run(str(write(tmp_path / "node.sqlite", 3)), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 0), (1, 1), (2, 2)]
    assert run.table.launch_ns.min() > 0
    for rank in range(3):
        assert ((run.table.gpu == rank) & (run.table.category != Category.OUTSIDE)).sum() == 5


def test_reports_and_databases_without_gpu_work_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job.nsys-rep").write_bytes(b"\0\1\2\3 a report")
    with pytest.raises(DataError, match="nsys export --type sqlite"):
        open_run(str(tmp_path / "job.nsys-rep"), jobs=1)
    path = write(tmp_path / "host.sqlite", kernels=False)
    with pytest.raises(DataError, match="without GPU activity"):
        open_run(str(path), jobs=1)
    (tmp_path / "node.xplane.pb").write_bytes(b"\x0a\x10 planes")
    with pytest.raises(DataError, match="xprof"):
        open_run(str(tmp_path / "node.xplane.pb"), jobs=1)


def test_damaged_rows_cost_themselves(tmp_path: Path) -> None:
    path = write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 1")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 'many', demangledName = 99 "
                   "WHERE rowid = 2")  # fmt: skip
        db.execute("UPDATE NVTX_EVENTS SET text = '' WHERE rowid = 1")
    db.close()
    run = open_run(str(path), jobs=1)
    assert (run.table.category == Category.KERNEL).sum() == 3
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(path.read_bytes()[:20_000])
    try:
        open_run(str(cut), jobs=1)
    except DataError as error:
        assert "cut.sqlite" in str(error)


OLDER = {
    "2019": {"CUPTI_ACTIVITY_KIND_KERNEL": ["globalPid", "graphNodeId", "demangledName"],
             "CUPTI_ACTIVITY_KIND_MEMCPY": ["globalPid"],
             "NVTX_EVENTS": ["domainId", "endGlobalTid"], "TARGET_INFO_GPU": ["busLocation"]},
    "without sizes": {"CUPTI_ACTIVITY_KIND_KERNEL": ["gridX", "blockZ", "registersPerThread"]},
    "texts in the events": {"NVTX_EVENTS": ["textId"]},
    "ids of texts alone": {"NVTX_EVENTS": ["text"]},
}  # fmt: skip
"""Columns that versions of the schema lack."""


@pytest.mark.parametrize("version", OLDER)
def test_columns_that_a_version_lacks_cost_what_they_say(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as db:
        for table, columns in OLDER[version].items():
            for column in columns:
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.close()
    run = open_run(str(path), jobs=1)
    kernels = run.table.category == Category.KERNEL
    names = {run.table.names[code] for code in run.table.kernel[kernels]}
    assert kernels.sum() == 4 and names == {TEXTS[1], TEXTS[2]}
    assert run.table.launch_ns.min() > EPOCH_NS and not run.failed
    steps = {4, 5} if version != "ids of texts alone" else {-1}
    assert set(run.table.iteration[kernels].tolist()) == steps
    assert ("registers" in run.table.measured) == (version != "without sizes")
    assert ("mm" in run.table.operations) == (version != "texts in the events")


_SESSION = "TARGET_INFO_SESSION_START_TIME"
UNDATED = (
    f"DELETE FROM {_SESSION}",
    *(f"UPDATE {_SESSION} SET utcEpochNs = {date}" for date in ("NULL", 2**63 - 1, -5)),
)


@pytest.mark.parametrize("change", UNDATED)
def test_a_session_without_a_date_counts_from_its_start(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as db:
        db.execute(change)
        # A time that no clock shows costs its row.
        db.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end) VALUES (?, ?)", [2**63 - 9] * 2
        )
    db.close()
    assert open_run(str(path), jobs=1).table.launch_ns.min() == 1000


def test_graphs_traced_as_a_whole_are_activities_and_said_to_be(tmp_path: Path) -> None:
    path = write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as db:
        db.executescript(f"""
            DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;
            DROP TABLE TARGET_INFO_SESSION_START_TIME;
            CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER,
              deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,
              globalPid INTEGER, graphId INTEGER, graphExecId INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE
              VALUES (6000, 9000, 0, 1, 7, 1, {(1 << 48) + (500 << 24)}, 12, 13);
        """)
    db.close()
    run = open_run(str(path), jobs=1)
    rows = run.table.category == Category.KERNEL
    assert [run.table.names[code] for code in run.table.kernel[rows]] == ["CUDA graph 12"]
    assert run.table.duration_ns[rows].tolist() == [3000]
    assert run.table.launch_ns[rows].tolist() == [1000]
    assert any("--cuda-graph-trace=node" in str(note) for note in run.sources[0].losses)


def test_an_activity_without_a_process_is_of_the_one_of_its_gpu(tmp_path: Path) -> None:
    """It makes no rank of its own: where rows have no process, or a table lacks the column."""
    path = write(tmp_path / "node.sqlite", 2)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL WHERE rowid IN (1, 5)")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN globalPid")
    db.close()
    table = (run := open_run(str(path), jobs=1)).table
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 0), (1, 1)]
    assert np.bincount(table.gpu[table.category != Category.OUTSIDE]).tolist() == [5, 5]
    assert table.launch_ns.min() > EPOCH_NS


def test_a_kernel_whose_time_was_not_collected_has_none(tmp_path: Path) -> None:
    """Start and end are 0 then: they aren't the start of the session."""
    path = write(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as db:
        db.execute('UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, "end" = 0, correlationId = 0 '
                   "WHERE rowid = 2")  # fmt: skip
    db.close()
    run = open_run(str(path), jobs=1)
    kernels = run.table.category == Category.KERNEL
    assert kernels.sum() == 3 and run.table.start_ns.min() > EPOCH_NS
    assert ("untimed", 1, 5) in [(doubt.code, doubt.count, doubt.of) for doubt in run.doubts]


def test_a_device_that_others_are_hidden_from_is_the_gpu_that_it_is(tmp_path: Path) -> None:
    """With CUDA_VISIBLE_DEVICES each process calls its GPU 0: the first has GPU 1 of the node here,
    the second GPU 0. Their metrics are those of these GPUs, and ranks are in their order."""
    path = write(tmp_path / "node.sqlite", 2)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 0")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET deviceId = 0")
        db.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid)")
        db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, 500, 'b'), (0, 0, 501, 'a')")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 77 "
                   f"WHERE globalPid = {(1 << 48) + (500 << 24)}")  # fmt: skip
        db.execute("CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value)")
        db.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (metricId, metricName)")
        db.execute("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (1, 'SMs Active [Throughput %]')")
        db.executemany(
            "INSERT INTO GPU_METRICS VALUES (?, ?, 1, ?)",
            [(at, (1 << 48) + gpu, 30 + 40 * gpu) for at in range(0, 300_000, 10_000)
             for gpu in (0, 1)],
        )  # fmt: skip
    db.close()
    run = open_run(str(path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 0), (1, 1)]
    frame = query(run, parse("R?columns=sm_active_pct,grid&cut=1"))
    rows = [frame.row(number) for number in range(2)]
    assert [(row["sm_active_pct"], row["grid"] == 77) for row in rows] == [(30, False), (70, True)]


def test_reports_of_several_nodes_have_ranks_one_after_the_other(tmp_path: Path) -> None:
    """Each has the processes of its node, and names it; processes of a node are on one clock."""
    for number in (2, 10):
        path = write(tmp_path / f"report.{number}.sqlite", 2)
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid, name, value)")
            db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'Hostname', ?)",
                       (f"node{number}",))  # fmt: skip
        db.close()
    run = open_run(str(tmp_path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    files = [(Path(source.path).name, source.rank, source.host) for source in run.sources]
    assert files == [
        ("report.2.sqlite", 0, "node2"), ("report.2.sqlite", 1, "node2"),
        ("report.10.sqlite", 2, "node10"), ("report.10.sqlite", 3, "node10"),
    ]  # fmt: skip
    assert [(clock.name, clock.ranks) for clock in run.hosts] == [
        ("node2", (0, 1)),
        ("node10", (2, 3)),
    ]


def test_a_node_with_one_process_comes_where_its_report_does(tmp_path: Path) -> None:
    for number, processes in ((1, 2), (2, 1), (3, 2)):
        write(tmp_path / f"report.{number}.sqlite", processes)
    run = open_run(str(tmp_path), jobs=1)
    found = [(Path(source.path).name[7], source.rank) for source in run.sources]
    assert found == [("1", 0), ("1", 1), ("2", 2), ("3", 3), ("3", 4)]
