"""RPD databases, in both schemas, plain and gzip: activities, launches, ranges, sizes."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.table import Category
from chopper_core.sources.ranks import find_traces
from chopper_core.sources.registry import Family, read_source
from chopper_core.sources.trace import Trace
from chopper_core.util.errors import DataError

COMMON = """
CREATE TABLE "rocpd_string" (id integer PRIMARY KEY, string varchar(4096));
CREATE TABLE "rocpd_op" (id integer PRIMARY KEY, gpuId integer, queueId integer, sequenceId integer,
  start integer, end integer, description_id integer, opType_id integer);
CREATE TABLE "rocpd_api" (id integer PRIMARY KEY, pid integer, tid integer, start integer,
  end integer, apiName_id integer, args_id integer);
CREATE TABLE "rocpd_api_ops" (id integer PRIMARY KEY, api_id integer, op_id integer);
CREATE TABLE "rocpd_metadata" (id integer PRIMARY KEY, tag text, value text);
"""
SIZES = """(key integer PRIMARY KEY, gridX integer, gridY integer, gridZ integer,
  workgroupX integer, workgroupY integer, workgroupZ integer);"""
TEXTS = ("", "KernelExecution", "CopyHostToDevice", "FillBuffer", "Barrier", "gemm.kd", "add",
         "hipLaunchKernel", "hipMemcpyAsync", "UserMarker", "Iteration3", "unused")  # fmt: skip
CODE = {text: number for number, text in enumerate(TEXTS, 1)}


def write(path: Path, schema: int = 2) -> Path:
    """Write 2 kernels, a copy, a fill and a barrier of two GPUs; a marker around the calls."""
    plain = path.with_suffix(".sqlite") if path.suffix == ".gz" else path
    kernel, copy = ("kernelapi", "copyapi") if schema > 1 else ("kernelop", "copyop")
    key = "api_ptr_id" if schema > 1 else "op_ptr_id"
    with sqlite3.connect(plain) as db:
        db.executescript(COMMON)
        db.execute(f'CREATE TABLE "rocpd_{kernel}" {SIZES.replace("key", key, 1)}')
        db.execute(f'CREATE TABLE "rocpd_{copy}" ({key} integer PRIMARY KEY, size integer)')
        db.executemany("INSERT INTO rocpd_string VALUES (?, ?)", list(enumerate(TEXTS, 1)))
        ops = [
            (1, 2, 0, 1000, 1500, "gemm.kd", "KernelExecution"),
            (2, 2, 0, 1600, 1700, "add", "KernelExecution"),
            (3, 2, 1, 1650, 1950, "", "CopyHostToDevice"),
            (4, 3, 0, 2000, 2010, "", "FillBuffer"),
            (5, 3, 0, 2020, 2030, "", "Barrier"),
        ]
        for number, gpu, queue, start, end, name, kind in ops:
            row = (number, gpu, queue, 0, start, end, CODE[name], CODE[kind])
            db.execute("INSERT INTO rocpd_op VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        calls = [
            (11, 100, 900, 910, "hipLaunchKernel", ""),
            (12, 100, 920, 930, "hipLaunchKernel", ""),
            (13, 100, 940, 990, "hipMemcpyAsync", ""),
            (14, 100, 800, 3000, "UserMarker", "Iteration3"),
            (15, 100, 800, 800, "UserMarker", "unused"),
        ]
        for number, tid, start, end, name, args in calls:
            row = (number, 77, tid, start, end, CODE[name], CODE[args])
            db.execute("INSERT INTO rocpd_api VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for op, api in ((1, 11), (2, 12), (3, 13)):
            db.execute("INSERT INTO rocpd_api_ops(api_id, op_id) VALUES (?, ?)", (api, op))
        first = 11 if schema > 1 else 1
        db.execute(f"INSERT INTO rocpd_{kernel} VALUES ({first}, 4, 2, 1, 64, 2, 1)")
        db.execute(f"INSERT INTO rocpd_{copy} VALUES ({first + 2}, 4096)")
    db.close()
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize("name", ["trace.rpd", "trace.rpd.gz"])
def test_both_schemas(tmp_path: Path, name: str, schema: int) -> None:
    trace = read_source(write(tmp_path / name, schema), Family.TRACE)
    assert isinstance(trace, Trace)
    rows = trace.activities
    names = [trace.names[code] for code in rows.name.tolist()]
    assert names == ["gemm", "add", "CopyHostToDevice", "FillBuffer"]
    assert rows.category.tolist() == [
        Category.KERNEL,
        Category.KERNEL,
        Category.MEMCPY,
        Category.MEMSET,
    ]
    assert rows.device.tolist() == [2, 2, 2, 3] and rows.stream.tolist() == [0, 0, 1, 0]
    assert rows.start_ns.tolist() == [1000, 1600, 1650, 2000]
    assert rows.duration_ns.tolist() == [500, 100, 300, 10]
    assert rows.bytes.tolist() == [-1, -1, 4096, -1]
    shapes = [trace.launch_shapes[code] for code in rows.launch_shape.tolist()]
    assert [(shape.grid, shape.block) for shape in shapes[:2]] == [(8, 128), (-1, -1)]
    assert trace.launches.correlation.tolist() == [11, 12, 13]
    assert rows.correlation.tolist() == [11, 12, 13, -1]
    assert [trace.names[code] for code in trace.ranges.name.tolist()] == ["Iteration3"]
    assert trace.unused_events == {"op Barrier": 1}


def test_it_opens_as_a_run_with_labels_and_launches(tmp_path: Path) -> None:
    run = open_run(str(write(tmp_path / "rank5.rpd")), jobs=1)
    table = run.table
    assert (table.category != Category.OUTSIDE).sum() == 4 and sorted(
        gpu.device for gpu in run.gpus
    ) == [2, 3]
    gemm = [table.text_of("kernel", code) for code in table.kernel.tolist()].index("gemm")
    assert table.text_of("iteration", int(table.iteration[gemm])) == "3"
    assert int(table.launch_ns[gemm]) == 900
    assert {path for path, _ in run.skipped} == set()


def test_a_compressed_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    read_source(write(tmp_path / "trace.rpd.gz"), Family.TRACE)
    assert not list((tmp_path / "temporary").iterdir())
    monkeypatch.setattr("chopper_core.sources.rpd._MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
        read_source(tmp_path / "trace.rpd.gz", Family.TRACE)
    assert not list((tmp_path / "temporary").iterdir())


def test_a_database_without_a_column_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.rpd")
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE rocpd_op RENAME COLUMN gpuId TO gpu")
    db.close()
    with pytest.raises(DataError, match="its rocpd_op lacks gpuId"):
        read_source(path, Family.TRACE)


def test_damage_costs_the_rows_behind_it(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.rpd")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError):
        read_source(path, Family.TRACE)


def test_beside_pytorch_traces_it_is_named(tmp_path: Path) -> None:
    write(tmp_path / "trace.rpd")
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    found = find_traces([tmp_path])
    assert [trace.path.name for trace in found.traces] == ["rank0.json"]
    (skipped,) = found.skipped
    assert "rocmProfileData (RPD)" in skipped.reason


def test_a_schema_that_takes_minutes_to_parse_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "trace.rpd")
    monkeypatch.setattr("chopper_core.tables.database._MAX_TABLES", 20)
    assert isinstance(read_source(path, Family.TRACE), Trace)
    with sqlite3.connect(path) as db:
        for number in range(60):
            db.execute(f"CREATE TABLE t{number} (a)")
    db.close()
    with pytest.raises(DataError, match="it has more than 20 tables"):
        open_run(str(path), jobs=1)


def test_names_that_no_compiler_writes_are_cut_and_distinct(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.rpd")
    with sqlite3.connect(path) as db:
        for number, end in enumerate("ab", 50):
            db.execute("INSERT INTO rocpd_string VALUES (?, ?)", (number, "gemm" * 100_000 + end))
            db.execute(
                "INSERT INTO rocpd_op VALUES (?, 2, 0, 0, ?, ?, ?, 2)",
                (number, 5000 + number, 5001 + number, number),
            )
    db.close()
    table = open_run(str(path), jobs=1).table
    cut = [name for name in table.names if name.startswith("gemmgemm")]
    assert len(set(cut)) == 2 and all(len(name) < 1 << 14 for name in cut)
    assert all("(400,001 characters, " in name for name in cut)


def test_processes_of_one_file_are_ranks_with_their_own_steps(tmp_path: Path) -> None:
    """Half a step apart, so that a launch of one is in another step of the other; the process with
    the lower number has the higher GPU. A kernel without a call is of its GPU's process, and a
    process without a GPU is no rank."""
    texts = ("", "KernelExecution", "gemm", "hipLaunchKernel", "UserMarker", "step 3", "step 4")
    code = {text: number for number, text in enumerate(texts, 1)}
    path, expected = tmp_path / "node.rpd", []
    with sqlite3.connect(path) as db:
        db.executescript(COMMON)
        db.execute(f'CREATE TABLE "rocpd_kernelapi" {SIZES.replace("key", "api_ptr_id", 1)}')
        db.execute('CREATE TABLE "rocpd_copyapi" (api_ptr_id integer PRIMARY KEY, size integer)')
        db.executemany("INSERT INTO rocpd_string VALUES (?, ?)", list(enumerate(texts, 1)))

        def call(pid: int, begin: int, end: int, name: str, args: str = "") -> int | None:
            row = (pid, pid, begin, end, code[name], code[args])
            return db.execute(
                "INSERT INTO rocpd_api (pid, tid, start, end, apiName_id, args_id) "
                "VALUES (?, ?, ?, ?, ?, ?)", row,
            ).lastrowid  # fmt: skip

        def kernel(gpu: int, begin: int, end: int, of: int | None) -> None:
            row = (gpu, 0, 0, begin, end, code["gemm"], code["KernelExecution"])
            op = db.execute(
                'INSERT INTO rocpd_op (gpuId, queueId, sequenceId, start, "end", description_id, '
                "opType_id) VALUES (?, ?, ?, ?, ?, ?, ?)", row,
            ).lastrowid  # fmt: skip
            if of is not None:
                db.execute("INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (?, ?)", (of, op))

        for rank, (pid, gpu) in enumerate([(900, 2), (800, 3)]):
            for step in (3, 4):
                at = 100_000 * step + 50_000 * rank
                call(pid, at, at + 99_000, "UserMarker", f"step {step}")
                launch = call(pid, at + 90_000, at + 92_000, "hipLaunchKernel")
                kernel(gpu, at + 95_000, at + 140_000, launch)
                expected.append((rank, gpu, step, at + 90_000))
        kernel(3, 700_000, 701_000, None)
        call(700, 300_000, 800_000, "UserMarker", "step 3")
    db.close()
    run = open_run(str(path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in run.gpus] == [(0, 2), (1, 3)]
    table = run.table
    kernels = (table.category == Category.KERNEL) & (table.launch_ns > 0)
    found = zip(
        [run.gpus[gpu].rank for gpu in table.gpu[kernels]],
        [run.gpus[gpu].device for gpu in table.gpu[kernels]],
        table.iteration[kernels].tolist(), table.launch_ns[kernels].tolist(), strict=True,
    )  # fmt: skip
    assert sorted(found) == expected
    alone = (table.category == Category.KERNEL) & (table.launch_ns < 0)
    assert table.gpu[alone].tolist() == [1] and table.start_ns[alone].tolist() == [700_000]
    # The file of another node: its processes are further ranks.
    shutil.copy(path, tmp_path / "node2.rpd")
    both = open_run(str(tmp_path), jobs=1)
    assert [(gpu.rank, gpu.device) for gpu in both.gpus] == [(0, 2), (1, 3), (2, 2), (3, 3)]


def test_an_operation_whose_time_was_not_collected_has_none(tmp_path: Path) -> None:
    """Start and end are 0 then, hours before all others."""
    path = write(tmp_path / "trace.rpd")
    with sqlite3.connect(path) as db:
        db.execute('UPDATE rocpd_op SET start = 0, "end" = 0 WHERE id = 4')
    db.close()
    run = open_run(str(path), jobs=1)
    assert (run.table.category != Category.OUTSIDE).sum() == 3
    assert run.table.start_ns[run.table.category != Category.OUTSIDE].min() == 1000
    assert ("untimed", 1, 4) in [(doubt.code, doubt.count, doubt.of) for doubt in run.doubts]
