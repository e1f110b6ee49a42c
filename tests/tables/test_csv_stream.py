"""CSV read in pieces, clean and damaged, equals what Python's reader gives for the whole text."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.column import TableColumn, integer_in
from chopper_core.tables.columns import float_column
from chopper_core.tables.csv_stream import CsvFile
from chopper_core.tables.losses import ABSENT, Losses

FIELDS = ["", "1", "907", "0x1f", "a b", "k<int, 4>", "x,y", 'say "hi"', "é", " 7 ", "two\nlines"]
ODD = [b'"', b",", b"\n", b"\r", b"\r\n", b"\xff", b"\x00", b'""', b' "', b'"x', b"id,name,value\n"]


def as_python_reads(content: bytes) -> tuple[list[list[str]], int]:
    """The rows that are as long as the header and not the header again, and how many are lost."""
    reader = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    first = next(reader)
    rows, lost = [], 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return rows, lost
        except csv.Error:
            lost += 1
            continue
        if len(row) == len(first):
            rows += [row] if row != first else []
        else:
            lost += any(row)


def written(chosen: random.Random, rows: int) -> bytes:
    def field(text: str) -> str:
        quoted = any(mark in text for mark in ',"\n') or chosen.random() < 0.5
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [",".join(field(chosen.choice(FIELDS)) for _ in range(3)) for _ in range(rows)]
    return "\n".join(["id,name,value", *lines, ""]).encode()


@pytest.mark.few(15)
@pytest.mark.parametrize("seed", range(200))
def test_pieces_and_oddities_change_nothing(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    content = written(chosen, 60)
    head = content.index(b"\n") + 1
    for _ in range(chosen.randrange(4)):
        place = chosen.randrange(head, len(content))
        content = content[:place] + chosen.choice(ODD) + content[place + chosen.randrange(3) :]
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    losses = Losses()
    rows: list[list[str]] = []
    with ByteSource(path, chosen.choice([7, 40, 300, 1 << 20])) as source:
        for batch in CsvFile(source, losses).batches():
            columns = [batch.at(index).texts for index in range(3)]
            rows += [list(row) for row in zip(*columns, strict=True)]
    wanted, lost = as_python_reads(content)
    assert rows == wanted
    assert losses.unreadable_events == lost


@pytest.mark.sweep
def test_a_quote_without_its_end_costs_the_rows_around_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    quoted, plain = b'1,"k<int, 4>",2.5\n' * 20_000, b"1,k,2.5\n" * 3_000_000
    for rows, kept in ((quoted, 39_990), (plain, 4_000_000)):
        path.write_bytes(b"id,name,value\n" + rows + b'1,"odd,2\n' + rows)
        losses = Losses()
        with ByteSource(path) as source:
            found = sum(len(batch) for batch in CsvFile(source, losses).batches())
        assert found > kept
        assert 0 < losses.unreadable_events <= 2 * rows.count(b"\n") + 1 - found


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
