"""Small files that unpack to large ones: `python -m tests.bombs --mb 1024`.

Each lies beside a good trace, which must open as if it weren't there; a line says the processor
time and the memory that it took beyond the result.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chopper_core.extensions.chakra.schema import (
    Metadata,
    Node,
    NodeType,
    delimited,
    encode_metadata,
    encode_node,
)
from tests.programs.fuzz.seeds import LOGGED, small_trace
from tests.sources.counters.counter_writers import counter_rows, write_csv
from tests.sources.telemetry.telemetry_texts import DMON, METRIC_CSV, NVIDIA_CSV, metric_object
from tests.sources.test_rpd import write as write_rpd

Bomb = Callable[[Path, int], Path]
"""Writes a bomb of so many unpacked MiB into a folder; returns the file."""
LIMIT_S_PER_GIB: Final = 10.0
_START_S: Final = 0.5
"""A run without a bomb takes so long."""
LIMIT_MIB: Final = 300
_SPAN: Final = (
    '{{"ph":"X","cat":"kernel","name":"k{}","ts":{},"dur":1,"pid":0,"tid":7,'
    '"args":{{"device":0,"stream":7,"correlation":{}}}}},'
)
_TRACE: Final = '{"traceEvents":[{"ph":"X","cat":"kernel","name":"'


def _text(name: str, opening: str, unit: str) -> Bomb:
    def write(folder: Path, mib: int) -> Path:
        path = folder / f"{name}.gz"
        body = (unit.encode() * ((1 << 20) // len(unit.encode()) + 1))[: 1 << 20]
        with gzip.open(path, "wb", compresslevel=9) as file:
            file.write(opening.encode())
            for _ in range(mib):
                file.write(body)
        return path

    return write


def _repeated(name: str, opening: str, unit: str) -> Bomb:
    """Valid rows without number."""

    def write(folder: Path, mib: int) -> Path:
        path = folder / f"{name}.gz"
        with gzip.open(path, "wb", compresslevel=6) as file:
            file.write(opening.encode())
            body = unit.encode() * ((1 << 20) // len(unit))
            for _ in range(mib):
                file.write(body)
        return path

    return write


def _parquet(columns: dict[str, object]) -> Bomb:
    def write(folder: Path, mib: int) -> Path:
        path = folder / "own.parquet"
        rows = 1 << 17
        arrays = {name: pa.array([value] * rows) for name, value in columns.items()}
        table = pa.table(arrays).replace_schema_metadata({"clock": "epoch"})
        with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
            for _ in range(mib):
                writer.write_table(table)
        return path

    return write


def _parquet_of_texts(folder: Path, mib: int) -> Path:
    """A name of 1 MiB, once in the file and in each of the rows that are read."""
    path = folder / "own.parquet"
    rows = 1000 * mib
    names = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * (1 << 20)])
    columns = {"time_ns": np.arange(rows), "gpu": np.zeros(rows, int), "name": names}
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def _parquet_of_lists(folder: Path, mib: int) -> Path:
    """Few rows of many numbers each."""
    path = folder / "own.parquet"
    rows, width = 4 * mib, 1 << 15
    powers = pa.ListArray.from_arrays(
        np.arange(0, (rows + 1) * width, width, np.int32), np.zeros(rows * width)
    )
    columns = {"time_ns": np.arange(rows), "gpu": np.zeros(rows, int), "power_w": powers}
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def _named(folder: Path, mib: int) -> Path:
    """Names that no compiler writes."""
    path = write_rpd(folder / "names.rpd")
    numbers = range(100, 100 + 2 * mib)
    with closing(sqlite3.connect(path)) as db, db:
        texts = ((at, f"{at}{'k' * (1 << 19)}") for at in numbers)
        db.executemany("INSERT INTO rocpd_string VALUES (?, ?)", texts)
        ops = ((at, 9000 + at, 9001 + at, at) for at in numbers)
        db.executemany("INSERT INTO rocpd_op VALUES (?, 2, 0, 0, ?, ?, ?, 2)", ops)
    return path


def _tables(folder: Path, mib: int) -> Path:
    path = write_rpd(folder / "tables.rpd")
    names = (f"t{number}" for number in range(1000 * mib))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        rows = ((name, name, f"CREATE TABLE {name} (a)") for name in names)
        db.executemany("INSERT INTO sqlite_master VALUES ('table', ?, ?, 2, ?)", rows)
    return path


def _pages(folder: Path, _mib: int) -> Path:
    """A tree of 3 pages, each of which has the next one as all of its some 500 children."""
    path = write_rpd(folder / "pages.rpd")
    with closing(sqlite3.connect(path)) as db:
        pages = "SELECT rootpage FROM sqlite_master WHERE name = 'rocpd_op'"
        (root,) = db.execute(pages).fetchone()
        (count,) = db.execute("PRAGMA page_count").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())

    def above(child: int) -> bytes:
        cells = (size - 12) // 7
        cell = child.to_bytes(4) + b"\x05"
        places = b"".join((size - 5 * at).to_bytes(2) for at in range(1, cells + 1))
        begin = (size - 5 * cells).to_bytes(2)
        head = b"\x05\0\0" + cells.to_bytes(2) + begin + b"\0" + child.to_bytes(4)
        return (head + places).ljust(size - 5 * cells, b"\0") + cell * cells

    data += data[(root - 1) * size : root * size] + above(count + 1) + above(count + 2)
    data[(root - 1) * size : root * size] = above(count + 3)
    data[28:32] = (count + 3).to_bytes(4)
    path.write_bytes(data)
    return path


def _hollow(name: str, write: Callable[[Path], Path]) -> Bomb:
    """A file that goes on as a hole, which takes no space and reads as zeros."""

    def stretch(folder: Path, mib: int) -> Path:
        path = write(folder / name)
        os.truncate(path, mib << 24)
        return path

    return stretch


def _chakra(folder: Path, mib: int) -> Path:
    node = delimited(encode_node(Node(id=7, name="k", type=int(NodeType.COMP))))
    path = folder / "rank9.9.et.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = delimited(encode_metadata(Metadata("1.0.0", {})))
    body = node * ((1 << 20) // len(node))
    packed = [packer.compress(each) for each in (head, *[body] * mib)]
    path.write_bytes(b"".join([*packed, packer.flush()]))
    return path


def _counters(unit: str) -> Bomb:
    def write(folder: Path, mib: int) -> Path:
        plain = write_csv(
            folder / "1_counter_collection.csv", *counter_rows(["gemm"], {"SQ_WAVES": [1.0]})
        )
        opening = plain.read_text()
        plain.unlink()
        return _text(plain.name, opening, unit)(folder, mib)

    return write


_OBJECT: Final = json.dumps([metric_object(0, 0)])[:-1]
_BROKEN: Final = '{"ph":"X","name":"' + '"name":"' * 8000 + "},"
_DIGITS: Final = '{"ph":"X","cat":"kernel","name":"k","ts":' + "9" * 5000 + "},"
BOMBS: Final[dict[str, Bomb]] = {
    **{
        f"trace {unit}": _text("rank1.json", _TRACE, unit)
        for unit in ("x", "[", '{"a":', "9", ",", '"', "\\", "é", "\\u0041")
    },
    "trace of equal events": _repeated("rank1.json", '{"traceEvents":[', _SPAN.format(1, 5, 5)),
    "trace of nan(": _text("rank1.json", '{"traceEvents":[{"dur":', "nan("),
    "trace of names": _text("rank1.json", '{"traceEvents":[{"ph":', '"name":"'),
    "trace of broken names": _repeated("rank1.json", '{"traceEvents":[', _BROKEN),
    "trace of digits": _repeated("rank1.json", '{"traceEvents":[', _DIGITS),
    **{f"amd-smi csv {unit!r}": _text("metric.csv", METRIC_CSV, unit) for unit in ("1", ",", "\n")},
    "amd-smi csv rows": _repeated("metric.csv", METRIC_CSV, METRIC_CSV.splitlines()[-1] + "\n"),
    "nvidia-smi rows": _repeated("nvidia.csv", NVIDIA_CSV, NVIDIA_CSV.splitlines()[-1] + "\n"),
    "dmon rows": _repeated("dmon.txt", DMON, DMON.splitlines()[-1] + "\n"),
    "own csv rows": _repeated("own.csv", "# clock: epoch\ntime_ns,gpu,power_w\n", "5,0,700\n"),
    "amd-smi json [": _text("metric.json", _OBJECT + ', {"gpu": ', "["),
    "amd-smi json objects": _repeated("metric.json", _OBJECT, "," + _OBJECT[1:]),
    "cpu csv 1": _text("cpu.csv", "# clock: epoch\ntime_ns,cpu,percent\n", "1"),
    "cpu csv rows": _repeated("cpu.csv", "# clock: epoch\ntime_ns,cpu,percent\n", "5,0,50\n"),
    "counters 1": _counters("1"),
    'counters "': _counters('"'),
    "rocprofv3 json [": _text("a_results.json", '{"rocprofiler-sdk-tool": [{"metadata": ', "["),
    "rocprofv3 json 9": _text("a_results.json", '{"rocprofiler-sdk-tool": [{"m": {"pid": ', "9"),
    "own parquet": _parquet({"time_ns": 5, "gpu": 0, "power_w": 700.0}),
    "own parquet texts": _parquet_of_texts,
    "own parquet lists": _parquet_of_lists,
    "cpu parquet": _parquet({"time_ns": 5, "cpu": 0, "percent": 5.0}),
    "job parquet": _parquet(
        dict.fromkeys(("dp_rank", "stage", "rank", "step", "start_ts", "duration", "mb_id"), 1)
        | {"optype": "forward"}
    ),
    "chakra nodes": _chakra,
    "chakra feeder": _text("a.0.json", '{"workload_graph": [', '{"id":1},'),
    "host trace": _text("host.json", '{"schema":"1.0.1","nodes":[', '{"id":1},'),
    "astra-sim lines": _text("sim.log", LOGGED, "issue, a"),
    "astra-sim spaces": _text("sim.log", LOGGED, "issue,a=1,b=1,c=1,d=" + " " * 60_000 + "x\n"),
    "rpd names": _named,
    "rpd tables": _tables,
    "rpd pages": _pages,
    "rpd hole": _hollow("hole.rpd", write_rpd),
    "trace hole": _hollow("rank1.json", lambda path: path.write_text(_TRACE) and path),
    "primus": _text("pp_0.json", '{"1": {"fwd_start": [', "0,"),
}

ALONE: Final = frozenset(
    (
        "job parquet",
        "chakra nodes",
        "chakra feeder",
        "astra-sim lines",
        "astra-sim spaces",
        "primus",
        "rpd names",
        "rpd tables",
        "rpd pages",
        "rpd hole",
    )
)
"""Runs of their own, which beside a trace are not read."""
_MEASURE: Final = """
import resource, sys, time
from chopper_core.ingest.open import open_run
from chopper_core.util.errors import DataError
from chopper_core.render.info import info_text
from chopper_core.model.table import COLUMNS
import chopper_core.ingest.attach, pyarrow.csv, pyarrow.parquet
base, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
is_alone, result = len(sys.argv) > 2, 0
try:
    run = open_run(sys.argv[1], jobs=1)
    info_text(run)
    table = run.table
    result = sum(table.column(name).nbytes for name in COLUMNS)
    result += sum(values.nbytes for values in table.measured.values())
except DataError:
    assert is_alone, "the bomb hides the trace"
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base - result // 1024
if not is_alone:
    good = [source for source in run.sources if source.path.endswith("rank0.json")]
    assert len(good) == 1 and (table.gpu == 0).sum() == 16, "the good trace has changed"
print(time.process_time() - begin, peak >> 10)
"""


def explode(name: str, mib: int) -> tuple[float, int]:
    """Open a bomb beside a good trace; returns processor seconds, and MiB beyond the result.

    Raises AssertionError where the good trace doesn't open, or not as if it were alone.
    """
    with tempfile.TemporaryDirectory(prefix="bomb") as folder:
        if name not in ALONE:
            small_trace().write(Path(folder) / "rank0.json")
        BOMBS[name](Path(folder), mib)
        command = [sys.executable, "-c", _MEASURE, folder, *["alone"] * (name in ALONE)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, f"{name}: {found.stderr[-800:]}"
    seconds, more = found.stdout.split()
    return float(seconds), int(more)


def main() -> int:
    """Explode all, and print a line each; 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.bombs", description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="unpacked size in MiB")
    parser.add_argument("--only", choices=BOMBS, action="append")
    options = parser.parse_args()
    failed = 0
    for name in options.only or BOMBS:
        try:
            seconds, more = explode(name, options.mb)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{name:24} FAILED {error}", flush=True)
            continue
        limit_s = _START_S + LIMIT_S_PER_GIB * options.mb / 1024
        is_over = seconds > limit_s or more > LIMIT_MIB
        failed += is_over
        print(f"{name:24} {seconds:7.1f} s {more:6} MiB{' OVER' * is_over}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
