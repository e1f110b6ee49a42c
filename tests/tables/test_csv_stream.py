"""CSV read in pieces, clean and damaged, equals what Python's reader gives for each line."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from chopper_core.tables import text
from chopper_core.tables.column import TableColumn, integer_in
from chopper_core.tables.columns import float_column
from chopper_core.tables.csv_stream import CsvFile
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import csv_cells

FIELDS = ["", "1", "907", "0x1f", "a b", "k<int, 4>", "x,y", 'say "hi"', "é", "7", "a\x0bb\u2028c"]
ODD = [b'"', b",", b"\n", b"\r\n", b"\xff", b"\x00", b'""', b' "', b'"x', b"id,name,value\n"]
CELL = r'(?:"(?:[^"]|"")*"|[^",]*)'


def line_by_line(content: bytes) -> tuple[list[list[str]], int]:
    """The rows that are as long as the header and not the header again, and how many lines are not
    empty. Of lines with quotes in odd places no row has to be found.
    """
    first, *lines = content.decode("utf-8", "replace").replace("\r", "").split("\n")
    lines = [line for line in lines if line.strip() and line != first]
    cells = [csv_cells(line) for line in lines if re.fullmatch(f"{CELL}(?:,{CELL})*", line)]
    return [row[:3] for row in cells if len(row) >= 3 and not any(row[3:])], len(lines)


def written(chosen: random.Random, rows: int) -> bytes:
    def field(text: str) -> str:
        quoted = any(mark in text for mark in ',"\n') or chosen.random() < 0.5
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [",".join(field(chosen.choice(FIELDS)) for _ in range(3)) for _ in range(rows)]
    return "\n".join(["id,name,value", *lines, ""]).encode()


@pytest.mark.few(15)
@pytest.mark.parametrize("seed", range(200))
def test_blocks_and_oddities_change_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = random.Random(seed)
    content = written(chosen, 60)
    head = content.index(b"\n") + 1
    for _ in range(chosen.randrange(4)):
        place = chosen.randrange(head, len(content) - 1)
        content = content[:place] + chosen.choice(ODD) + content[place + chosen.randrange(3) :]
    content = content.rstrip(b"\n") + b"\n"
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    monkeypatch.setattr(text, "_BLOCK_BYTES", chosen.choice([40, 300, 1 << 20]))
    losses = Losses()
    rows: list[list[str]] = []
    for batch in CsvFile(path, losses).batches():
        columns = [batch.column(index).texts for index in range(3)]
        rows += [[cell.strip() for cell in row] for row in zip(*columns, strict=True)]
    wanted, lines = line_by_line(content)
    assert len(rows) + losses.unreadable_events == lines
    found = iter(rows)
    assert all(row in found for row in wanted), "in this order"


@pytest.mark.sweep
def test_a_quote_without_its_end_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    quoted, plain = b'1,"k<int, 4>",2.5\n' * 20_000, b"1,k,2.5\n" * 300_000
    for rows in (quoted, plain):
        path.write_bytes(b"id,name,value\n" + rows + b'1,"odd,2\n' + rows)
        losses = Losses()
        found = sum(len(batch) for batch in CsvFile(path, losses).batches())
        assert (found, losses.unreadable_events) == (2 * rows.count(b"\n"), 1)


@pytest.mark.parametrize(
    "texts",
    [
        ["1", "20", "300"],
        ["66345.000000", "0x10", "", "7.5", "1e3", "9" * 30, " 12 ", "nan", "-4"],
        ["0xFFFFFFFFFFFFFFFE", "7"],
        ["1e400", "2"],
        ["inf", "-1"],
        ["1_000", "+3"],
    ],
)
def test_a_column_is_as_its_texts(texts: list[str]) -> None:
    column = TableColumn(pa.array(texts))
    whole = [max(integer_in(text.strip()), ABSENT) for text in texts]
    np.testing.assert_array_equal(column.integers(), whole)
    np.testing.assert_array_equal(column.floats(), float_column(texts))
    assert [column.distinct[code] for code in column.codes.tolist()] == [*map(str.strip, texts)]


def test_without_a_thread_for_arrow_lines_are_split_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,name,value\n" + b'1,"a, b",2\n' * 40 + b"2,c,0x1f\n")

    def cells() -> list[list[str]]:
        batches = CsvFile(path, Losses()).batches()
        return [[*batch.column(at).texts] for batch in batches for at in range(3)]

    plain = cells()
    monkeypatch.setattr("chopper_core.tables.column.lacks_threads", lambda: True)
    assert cells() == plain
    assert plain[1] == ["a, b"] * 40 + ["c"]
