"""Damaged Parquet files: no bit ends the process, and no cell the reading."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chopper_core.sources import cpu
from chopper_core.tables.column import TableColumn
from chopper_core.tables.parquet import opened_parquet
from chopper_core.util.errors import DataError
from tests.conftest import ROOT
from tests.programs.fuzz.seeds import SEEDS
from tests.wording import Wording

_FLIPS = """
import sys
from pathlib import Path
from chopper_core.tables.parquet import opened_parquet
from chopper_core.util.errors import DataError
path, data, read = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes(), 0
for at in range(4, len(data)):
    path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:])
    try:
        with opened_parquet(path) as file:
            file.read()
        read += 1
    except DataError as error:
        assert str(path) in str(error)
print(len(data) - 4, read)
"""


def _of_lists(path: Path) -> Path:
    clocks = [[1.0, 2.0], [3.0], []]
    columns = {"time_ns": [1, 2, 3], "current_gfxclks": clocks, "clock": ["a", "b", None]}
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["lists", "cpu parquet"])
def test_a_flipped_bit_anywhere_is_read_over_or_refused(kind: str, tmp_path: Path) -> None:
    path = _of_lists(tmp_path / "a.parquet") if kind == "lists" else SEEDS[kind](tmp_path)
    code = [sys.executable, "-c", _FLIPS, str(path)]
    ended = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert not ended.returncode, ended.stderr
    tried, read = map(int, ended.stdout.split())
    assert tried > 1000 and 0 < read < tried


def _odd(kind: pa.DataType, value: int) -> pa.Array:
    """A value of a type of times that no calendar of Python holds."""
    content = value.to_bytes(kind.bit_width // 8, "little", signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(content)])


_ENDS = pa.py_buffer(b"\0\0\0\0\3\0\0\0\5\0\0\0")
_NO_UTF8 = pa.Array.from_buffers(pa.string(), 2, [None, _ENDS, pa.py_buffer(b"\xff\xfeaok")])


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        (_NO_UTF8, ["\ufffd\ufffda", "ok"]),
        (pa.DictionaryArray.from_arrays(pa.array([1, 0]), _NO_UTF8), ["ok", "\ufffd\ufffda"]),
        (pa.ListArray.from_arrays(pa.array([0, 1, 2]), _NO_UTF8), ["", "['ok']"]),
        (_odd(pa.timestamp("s"), 2**62), [""]),
        (_odd(pa.timestamp("ns", "Nowhere/At all"), 5), [""]),
        (_odd(pa.date32(), -(2**31)), [""]),
        (_odd(pa.duration("s"), 2**62), [""]),
        (pa.array([datetime(2025, 1, 1)]), ["2025-01-01 00:00:00"]),
    ],
)
def test_cells_that_python_cannot_hold_are_missing(cells: pa.Array, texts: list[str]) -> None:
    column = TableColumn.of_another_program(cells)
    assert column.texts == texts
    assert set(column.integers().tolist()) == {-1}


def test_text_that_is_no_utf8_costs_no_row_of_numbers(tmp_path: Path) -> None:
    columns = {"time_ns": [5, 6], "cpu": [0, 1], "percent": [1.0, 2.0], "socket": _NO_UTF8}
    pq.write_table(pa.table(columns), tmp_path / "cpu.parquet")
    assert cpu.read(tmp_path / "cpu.parquet").percent.shape == (2, 2)


def test_a_column_twice_is_read_once(tmp_path: Path) -> None:
    table = pq.read_table(SEEDS["straggler analysis"](tmp_path))
    pq.write_table(table.append_column("rank", table["rank"]), tmp_path / "job.parquet")
    from chopper_core.extensions.chakra.schedules import workers

    assert len(workers.read(tmp_path / "job.parquet").rank)


def test_without_a_thread_for_arrow_a_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    path = SEEDS["straggler analysis"](tmp_path)
    monkeypatch.setattr("chopper_core.tables.parquet.lacks_threads", lambda: True)
    with pytest.raises(DataError) as raised, opened_parquet(path):
        pass
    wording(str(raised.value), path.name, "ulimit -u")
