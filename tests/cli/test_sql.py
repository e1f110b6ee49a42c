"""SQL: the fifteen questions of its page against views, and what a query can't do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import chopper_core as chopper
from chopper_core.answers import extras
from chopper_core.answers import sql as module
from chopper_core.answers.sql import sql
from chopper_core.api import OpenRun
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.cli import main
from tests.conftest import ROOT
from tests.demo import as_kept, demo_run
from tests.wording import Wording

PAGE = (ROOT / "docs" / "sql.md").read_text("utf-8")
QUESTIONS = re.findall(
    r"### (\d+\. [^\n]+)\n\nView: `([^`]+)`\n\n```sql\n(.*?)```", PAGE, re.DOTALL
)
DEMO = "demo_data/fsdp2"


@pytest.fixture(scope="module")
def run() -> OpenRun:
    demo_run()
    with pytest.MonkeyPatch.context() as patch:
        as_kept(patch)
        return chopper.open(DEMO)


def test_the_page_has_fifteen_questions() -> None:
    assert [int(title.partition(".")[0]) for title, _, _ in QUESTIONS] == [*range(1, 16)]


@pytest.mark.parametrize(("address", "query"), [each[1:] for each in QUESTIONS])
def test_sql_answers_as_the_view(run: OpenRun, address: str, query: str) -> None:
    frame = run.frame(address)
    found = run.sql(query).to_pylist()
    label, *figures = found[0]
    compared = [name for name in figures if name in frame.values]
    assert compared, figures
    row_of = {text: row for row, text in enumerate(frame.labels)}
    for answer in found:
        row = row_of[str("none" if answer[label] is None else answer[label])]
        for name in compared:
            expected = frame.values[name].cell(row)
            if not isinstance(expected, int | float):
                assert answer[name] == expected
            else:
                assert float(answer[name]) == pytest.approx(expected, rel=1e-6, abs=1e-6), name


REFUSED = {
    "select * from read_csv('/etc/passwd')": "SQL reads the tables of the run alone",
    "select * from '/etc/passwd'": "does not exist",
    "select * from glob('/*')": "SQL reads the tables of the run alone",
    "select * from read_parquet('https://example.org/a.parquet')": "SQL reads the tables|does not",
    "select * from query": "does not exist",
    "copy gpus to '/tmp/gpus.csv'": "only SELECT is possible, not COPY",
    "attach '/tmp/a.db'": "only SELECT is possible, not ATTACH",
    "install httpfs": "only SELECT is possible, not",
    "set memory_limit='100GB'": "only SELECT is possible, not SET",
    "delete from gpus": "only SELECT is possible, not DELETE",
    "create table a as select 1": "only SELECT is possible, not CREATE",
    "select 1; select 2": "one SELECT at a time, not 2 statements",
    "": "one SELECT at a time, not 0 statements",
    "selec": "syntax error",
    "select nothing from gpus": 'SQL: Binder Error: Referenced column "nothing" not found',
    "select * from kernels": "the tables are activities, iterations",
}


def test_a_query_reads_the_tables_and_nothing_else(
    run: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for query, sentence in REFUSED.items():
        with pytest.raises(UsageError, match=sentence) as refused:
            run.sql(query)
        assert "\n" not in str(refused.value)
    assert not [*tmp_path.iterdir()]


def test_a_query_that_takes_long_is_stopped(run: OpenRun) -> None:
    with pytest.raises(DataError, match=r"stopped after 0\.2 s; ask for less"):
        run.sql("select count(*) from range(10000000000) a, range(1000) b", seconds=0.2)


def test_a_query_that_needs_too_much_memory_is_stopped(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._SETTINGS, "memory_limit", "20MB")
    with pytest.raises(DataError, match=r"the query needs more than \w+ of memory; ask for less"):
        run.sql("select list(range) from range(20000000)")


def test_rows_are_counted_where_they_are_cut(run: OpenRun) -> None:
    answer = sql(run.run, "select gpu, kernel from activities", limit=7)
    assert len(answer.rows) == 7 and answer.total == len(run.run.table)


@pytest.mark.usefixtures("demo_kept")
def test_the_command_prints_in_the_formats_of_show(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    query = "select gpu, elapsed_ns, null as lacking, 1e999 as far from iterations order by 1, 2"

    def printed(*more: str) -> str:
        assert main(["sql", DEMO, query, *more]) == 0
        return capsys.readouterr().out

    document: dict[str, Any] = json.loads(printed("--format", "json", "--limit", "3"))
    assert document["schema"] == "chopper.table/1" and document["query"] == query
    assert (document["rows_total"], document["rows_shown"]) == (24, 3)
    assert document["columns"][1] == {"name": "elapsed_ns", "unit": "ns"}
    assert document["rows"][0]["lacking"] is document["rows"][0]["far"] is None
    assert printed("--format", "csv").startswith("gpu,elapsed_ns,lacking,far\n0,")
    assert printed().splitlines()[0].split() == ["gpu", "elapsed_ns", "lacking", "far"]
    assert printed("--format", "markdown").startswith("| gpu | elapsed_ns | lacking | far |\n")
    assert main(["sql", DEMO, "select 'a\x1b[2Jb|c' as \"x\x1b\" from gpus limit 1"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    big = "select repeat('x', 1000) as x from range(500)"
    assert main(["sql", DEMO, big, "--format", "json"]) == 0
    text = capsys.readouterr().out
    assert len(text) <= 100_000 and json.loads(text)["rows_total"] == 500
    wide = ", ".join(f"{number} as a_column_{number}" for number in range(4_000))
    assert main(["sql", DEMO, f"select {wide}", "--format", "json"]) == 2
    wording(capsys.readouterr().err, "4000 columns", "100 kB")
    assert main(["sql", DEMO, "select 1", "-o", str(tmp_path / "one.csv")]) == 0
    assert (tmp_path / "one.csv").read_text() == "1\n1\n"

    def missing(_: str) -> None:
        raise ImportError

    capsys.readouterr()
    monkeypatch.setattr(extras, "import_module", missing)
    assert main(["sql", DEMO, "select 1"]) == 2
    wording(capsys.readouterr().err, "SQL", "chopper-tui[sql]")
