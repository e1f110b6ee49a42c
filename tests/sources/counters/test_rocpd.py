"""rocpd: the official views as the oracle, tables alone, several processes, other databases."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopper_core.sources.counters.rocpd import read as read_rocpd
from chopper_core.util.errors import DataError
from tests.sources.counters.counter_writers import (
    RELATIONS,
    fill_rocpd,
    insert,
    minimal_rocpd,
    read_counters,
    table_of,
)

SCHEMA = (
    Path(
        os.environ.get("CHOPPER_REALDATA")
        or Path(__file__).resolve().parents[4] / "shared/realdata"
    )
    / "rocpd_schema"
)


def official_rocpd(path: Path) -> Path:
    """Write a database with the official schema; like real ones it has rows for all that's used."""
    if not SCHEMA.is_dir():
        pytest.skip(f"no {SCHEMA}; $CHOPPER_REALDATA says where the official schema is")
    uuid, guid = "_01985aaa_bbbb_7ccc_8ddd_eeeeffff0000", "01985aaa-bbbb-7ccc-8ddd-eeeeffff0000"
    with sqlite3.connect(path) as connection:
        for name in ("rocpd_tables", "rocpd_views", "data_views"):
            text = (SCHEMA / f"{name}.sql").read_text(encoding="utf-8")
            connection.executescript(text.replace("{{uuid}}", uuid).replace("{{guid}}", guid))
        connection.execute("PRAGMA foreign_keys = OFF")
        insert(connection, f"rocpd_info_node{uuid}", id=1, hash=1, machine_id="m")
        for name in ("queue", "stream"):
            insert(connection, f"rocpd_info_{name}{uuid}", id=1, nid=1, pid=1, name="q")
        fill_rocpd(connection, uuid, guid, 1000)
    connection.close()
    return path


def test_agrees_with_the_official_views(tmp_path: Path) -> None:
    path = official_rocpd(tmp_path / "1000_results.db")
    (run,) = read_rocpd(path)
    with sqlite3.connect(path) as connection:
        kernels = connection.execute(
            "SELECT name, agent_abs_index, pid, queue_id, dispatch_id, stack_id, start, end, "
            "grid_x, grid_y, grid_z, workgroup_x FROM kernels"
        ).fetchall()
        counters = {
            (dispatch, name): value
            for dispatch, name, value in connection.execute(
                "SELECT dispatch_id, counter_name, value FROM counters_collection"
            )
        }
    rows = table_of(run)
    assert len(rows) == 6, "the view lacks the dispatch without an event"
    found = {
        (f"{name}.kd", node, process, queue, number, correlation, start, end, *grid, workgroup[0])
        for (
            name, node, process, queue, number, correlation, start, end, grid, workgroup, *_
        ) in rows
        if number < 6
    }  # fmt: skip
    assert found == set(kernels) and len(kernels) == 5
    measured = {
        (row[4], name): value
        for row in rows
        for name, value in row[-1].items()
        if value is not None
    }
    assert measured == counters and len(counters) == 10


@pytest.mark.parametrize("kind", ["official", "minimal"])
def test_views_dropped_gives_the_same(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "full.db"
    if kind == "official":
        official_rocpd(path)
    else:
        minimal_rocpd(path)
    bare = Path(shutil.copy(path, tmp_path / "bare.db"))
    with sqlite3.connect(bare) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'"):
            connection.execute(f'DROP VIEW "{name}"')
    connection.close()
    assert list(map(table_of, read_rocpd(path))) == list(map(table_of, read_rocpd(bare)))


def test_processes_are_kept_apart_by_guid(tmp_path: Path) -> None:
    runs = read_rocpd(minimal_rocpd(tmp_path / "merged.db"))
    assert [set(run.dispatches.process.tolist()) for run in runs] == [{1000}, {1001}]
    for run in runs:
        rows = table_of(run)
        assert [row[0] for row in rows] == ["gemm"] * 3 + ["add"] * 3
        assert [row[1] for row in rows] == [4, 4, 4, 5, 5, 5]
        assert rows[0][-1] == {"SQ_WAVES": 3 * 210.0 + 3, "FETCH_SIZE": 3 * 220.0 + 3}
        assert rows[2][-1] == {"SQ_WAVES": None, "FETCH_SIZE": None}
        agent = run.agents[0]
        assert (agent.compute_units, agent.xccs, agent.simds_per_cu) == (304, 8, 4)
        assert run.counter_info["SQ_WAVES"].description == "about gemm"


def test_region_is_that_of_the_launch(tmp_path: Path) -> None:
    """The range ends at 5000: launches 1 and 2 at 2000 and 4000 are inside; all ran after it."""
    (run,) = read_rocpd(minimal_rocpd(tmp_path / "one.db", 1))
    regions = {row[4]: row[-2] for row in table_of(run)}
    assert regions == {1: "layer 0", 2: "layer 0", 3: None, 4: None, 5: None, 6: None}


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (("A", "HIP", "rocTX"), "rocprof v1"),
        (("users",), "not of rocprofv3"),
    ],
)
def test_other_databases_are_refused(tmp_path: Path, tables: tuple[str, ...], says: str) -> None:
    path = tmp_path / "trace.rpd"
    with sqlite3.connect(path) as connection:
        for name in tables:
            connection.execute(f'CREATE TABLE "{name}" (id INTEGER)')
    connection.close()
    with pytest.raises(DataError, match=says) as refused:
        read_counters([path])
    assert str(path) in str(refused.value)


def test_nothing_is_written_beside_the_database(tmp_path: Path) -> None:
    path = minimal_rocpd(tmp_path / "a #? b.db")
    before = path.read_bytes()
    tmp_path.chmod(0o555)
    try:
        read_rocpd(path)
        assert os.listdir(tmp_path) == [path.name]
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == before


@pytest.mark.sweep
def test_damage_is_noted_or_refused(tmp_path: Path) -> None:
    """A damaged file gives the rows of the whole one, others with a note, or an error."""
    path = minimal_rocpd(tmp_path / "a.db")
    whole, rows = path.read_bytes(), outcome(path)
    generator = np.random.default_rng(3)
    truncated = [whole[:length] for length in (10, 100, 1000, 5000, len(whole) // 2)]
    starts = generator.integers(0, len(whole) - 64, 120).tolist()
    noisy = [whole[:start] + generator.bytes(64) + whole[start + 64 :] for start in starts]
    outcomes = []
    for content in (*truncated, whole[:-100], *noisy):
        path.write_bytes(content)
        outcomes.append(outcome(path))
    assert outcomes[: len(truncated)] == ["refused"] * len(truncated)
    assert outcomes[len(truncated)] == "noted", "all but the last rows are read"
    others = Counter(found for found in outcomes if isinstance(found, str))
    assert all(found == rows for found in outcomes if not isinstance(found, str))
    assert others["refused"] > len(truncated) and others["noted"] > 2


def outcome(path: Path) -> str | list[tuple[Any, ...]]:
    """Return the rows of a database; what became of it if they can't be trusted."""
    try:
        runs = read_rocpd(path)
    except DataError as error:
        assert str(path) in str(error)
        return "refused"
    if any(run.losses.notes for run in runs):
        assert all("damaged" in note or "of no dispatch" in note for note in runs[0].losses.notes)
        return "noted"
    return [row for run in runs for row in table_of(run)]


def test_missing_relations_and_columns(tmp_path: Path) -> None:
    path = minimal_rocpd(tmp_path / "poor.db", 1)
    with sqlite3.connect(path) as connection:
        for name in RELATIONS:
            connection.execute(f'DROP VIEW "rocpd_{name}"')
            if name not in ("kernel_dispatch", "metadata"):
                connection.execute(f'DROP TABLE "rocpd_{name}_01980000_aaaa_7bbb"')
    connection.close()
    (run,) = read_rocpd(path)
    assert len(run.dispatches) == 6
    assert run.names == ["kernel 2", "kernel 1"] and len(run.agents) == 2


@pytest.mark.parametrize("relation", ["rocpd_string", "rocpd_kernel_dispatch"])
@pytest.mark.parametrize(
    "rows",
    [
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id FROM n",
        "SELECT * FROM rocpd_event a, rocpd_event b, rocpd_event c, rocpd_event d, rocpd_event e",
    ],
)
def test_tables_are_read_in_place_of_the_views_of_a_file(
    relation: str, rows: str, tmp_path: Path
) -> None:
    path = minimal_rocpd(tmp_path / "hostile.db")
    plain = [table_of(run) for run in read_rocpd(path)]
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP VIEW {relation}")
        connection.execute(f"CREATE VIEW {relation} AS {rows}")
    connection.close()
    assert [table_of(run) for run in read_rocpd(path)] == plain
