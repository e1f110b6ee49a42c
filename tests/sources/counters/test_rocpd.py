"""rocpd: the official views as the oracle, tables alone, several processes, other databases."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.table import NO_TIME
from chopper_core.sources.counters.rocpd import read as read_rocpd
from chopper_core.sources.telemetry.databases import read as read_samples
from chopper_core.util.errors import DataError
from chopper_core.views.query import query
from tests.realdata.conftest import FOLDER
from tests.sources.counters.counter_writers import (
    RELATIONS,
    fill_rocpd,
    insert,
    minimal_rocpd,
    read_counters,
    table_of,
)
from tests.wording import Wording

SCHEMA = FOLDER / "rocpd_schema"


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


def test_a_guid_that_is_no_text_is_one_all_the_same(tmp_path: Path) -> None:
    path = minimal_rocpd(tmp_path / "a.db", 1, views=False)
    (expected,) = read_rocpd(path)
    with sqlite3.connect(path) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            if "guid" in [column[1] for column in database.execute(f"PRAGMA table_info({name})")]:
                database.execute(f"UPDATE {name} SET guid = CAST(x'67ff64' AS TEXT)")
    database.close()
    (found,) = read_rocpd(path)
    assert table_of(found) == table_of(expected)


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


GUID, SUFFIX = "guid-0", "_01980000_aaaa_7bbb"


def changed(path: Path, version: str, *statements: str, dies: int = 3) -> Path:
    """A database of one process with another version of the schema, and what that one changed.

    Its counters have an instance on each of three dies.
    """
    minimal_rocpd(path, 1, views=False)
    with sqlite3.connect(path) as connection:
        insert(connection, f"rocpd_metadata{SUFFIX}", tag="schema_version", value=version)
        update = f'UPDATE "rocpd_info_agent{SUFFIX}" SET extdata = ?'
        connection.execute(update, (f'{{"num_xcc": {dies}}}',))
        for statement in statements:
            connection.executescript(statement.replace("{u}", SUFFIX).replace("{g}", GUID))
    connection.close()
    return path


WITH_SAMPLES = """
ALTER TABLE "rocpd_pmc_event{u}" ADD COLUMN sample_id INT;
ALTER TABLE "rocpd_pmc_event{u}" ADD COLUMN xcc INT;
ALTER TABLE "rocpd_pmc_event{u}" ADD COLUMN shader_engine INT;
ALTER TABLE "rocpd_pmc_event{u}" ADD COLUMN instance INT;
CREATE TABLE "rocpd_sample{u}" (id INTEGER PRIMARY KEY, guid TEXT, track_id INT, timestamp INT);
"""


def test_samples_of_a_counter_are_a_signal_and_no_part_of_dispatches(
    tmp_path: Path, wording: Wording
) -> None:
    plain = table_of(read_rocpd(minimal_rocpd(tmp_path / "plain.db", 1))[0])
    samples = "".join(
        f"INSERT INTO \"rocpd_sample{{u}}\" VALUES ({number}, '{{g}}', 1, {9000 + 10 * number});"
        + "".join(
            f'INSERT INTO "rocpd_pmc_event{{u}}" (guid, event_id, pmc_id, value, sample_id, xcc) '
            f"VALUES ('{{g}}', 2, 1, {5 + number}, {number}, {die});"
            for die in range(8)
        )
        for number in (1, 2, 3)
    )
    (run,) = read_rocpd(changed(tmp_path / "spm.db", "3.0.3", WITH_SAMPLES, samples))
    assert table_of(run) == plain
    (sampled,) = run.sampled
    assert (sampled.name, run.agents[sampled.gpu].node_id) == ("SQ_WAVES", 4)
    assert sampled.time_ns.tolist() == [9010, 9020, 9030]
    assert sampled.begin_ns.tolist() == [9000, 9010, 9020]
    assert sampled.counted.tolist() == [48, 56, 64]
    # Without the table of samples they have no times, and are counted.
    (run,) = read_rocpd(
        changed(tmp_path / "a.db", "3.0.3", WITH_SAMPLES, samples, 'DROP TABLE "rocpd_sample{u}"')
    )
    assert table_of(run) == plain and not run.sampled
    wording.among(run.losses.notes, "24 sampled values")


def test_replays_of_a_dispatch_are_no_instances_of_its_counter(
    tmp_path: Path, wording: Wording
) -> None:
    """Three values of each dispatch can't be of 8 dies; with dimensions, instances are known."""
    one = 'UPDATE "rocpd_pmc_event{u}" SET value = 500;'
    (run,) = read_rocpd(changed(tmp_path / "replay.db", "3.0.3", one, dies=8))
    for counter in run.dispatches.counters.values():
        assert set(counter[~np.isnan(counter)].tolist()) == {500}
    wording.among(run.join_notes, "SQ_WAVES has 3 values")
    dies = one + 'UPDATE "rocpd_pmc_event{u}" SET xcc = id % 3;'
    (run,) = read_rocpd(changed(tmp_path / "dies.db", "3.0.3", WITH_SAMPLES, dies, dies=8))
    for counter in run.dispatches.counters.values():
        assert set(counter[~np.isnan(counter)].tolist()) == {1500}
    assert not any("values of each dispatch" in note for note in run.join_notes)


def test_tracks_and_timestamps_of_schema_4(tmp_path: Path) -> None:
    plain = table_of(read_rocpd(minimal_rocpd(tmp_path / "plain.db", 1))[0])
    tables = """
CREATE TABLE "rocpd_track{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT,
  agent_id INT, queue_id INT, stream_id INT);
INSERT INTO "rocpd_track{u}" VALUES (1, '{g}', 1, 1, 1, 2, 1, 1), (2, '{g}', 1, 1, 1, 3, 1, 1);
CREATE TABLE "rocpd_timestamp{u}" (id INTEGER PRIMARY KEY, guid TEXT, value INT, track_id INT);
INSERT INTO "rocpd_timestamp{u}"
  SELECT 2 * id, guid, start, 1 FROM "rocpd_kernel_dispatch{u}"
  UNION SELECT 2 * id + 1, guid, end, 1 FROM "rocpd_kernel_dispatch{u}"
  UNION SELECT 1000 + 2 * id, guid, start, 1 FROM "rocpd_region{u}"
  UNION SELECT 1001 + 2 * id, guid, end, 1 FROM "rocpd_region{u}";
CREATE TABLE "rocpd_info_category{u}" (id INTEGER PRIMARY KEY, guid TEXT, name TEXT);
INSERT INTO "rocpd_info_category{u}" SELECT id, guid, string FROM "rocpd_string{u}";
ALTER TABLE "rocpd_kernel_dispatch{u}" RENAME TO old;
CREATE TABLE "rocpd_kernel_dispatch{u}" AS SELECT id, guid, agent_id - 1 AS track_id, kernel_id,
  dispatch_id, 2 * id AS start_id, 2 * id + 1 AS end_id, workgroup_size_x, workgroup_size_y,
  workgroup_size_z, grid_size_x, grid_size_y, grid_size_z, region_name_id, event_id FROM old;
DROP TABLE old;
ALTER TABLE "rocpd_region{u}" RENAME TO old;
CREATE TABLE "rocpd_region{u}" AS SELECT id, guid, 1 AS track_id, name_id,
  1000 + 2 * id AS start_id, 1001 + 2 * id AS end_id, event_id FROM old;
DROP TABLE old;
DELETE FROM "rocpd_string{u}" WHERE string LIKE '%API%';
"""
    (run,) = read_rocpd(changed(tmp_path / "v4.db", "4.1.0", tables))
    assert table_of(run) == plain
    assert [note for note in run.join_notes if "columns not used" not in note] == []


CALLS = """
CREATE TABLE "rocpd_memory_copy{u}" (id INTEGER PRIMARY KEY, guid TEXT, nid INT, pid INT, tid INT,
  start INT, end INT, name_id INT, dst_agent_id INT, src_agent_id INT, size INT, queue_id INT,
  stream_id INT, event_id INT, brand_new INT);
INSERT INTO "rocpd_string{u}" VALUES (20, '{g}', 'MEMORY_COPY_HOST_TO_DEVICE'),
  (21, '{g}', 'hipMemcpyAsync'), (22, '{g}', 'hsa_queue_create'), (23, '{g}', 'HSA_CORE_API');
INSERT INTO "rocpd_event{u}" (id, guid, category_id, stack_id) VALUES (200, '{g}', 3, 77),
  (201, '{g}', 20, 77), (202, '{g}', 23, 78);
INSERT INTO "rocpd_region{u}" (id, guid, tid, start, end, name_id, event_id) VALUES
  (20, '{g}', 1, 8000, 8005, 21, 200), (21, '{g}', 1, 8001, 8002, 22, 202);
INSERT INTO "rocpd_memory_copy{u}" VALUES
  (1, '{g}', 1, 1, 1, 8100, 8900, 20, 3, 1, 4096, 1, 1, 201, 9),
  (2, '{g}', 1, 1, 1, 8950, 8990, 20, 1, 2, 64, 1, 1, NULL, 9),
  (3, '{g}', 1, 1, 1, 8950, 8990, 20, 1, 1, 64, 1, 1, NULL, 9);
"""


def test_calls_of_hip_and_copies_are_in_the_run(tmp_path: Path) -> None:
    """Dispatches 1 to 5 are launched at 2000, 4000 … 10000; the sixth has no event, as the second
    copy. A copy from the host to itself is of no GPU, and calls of HSA launch nothing."""
    plain = table_of(read_rocpd(minimal_rocpd(tmp_path / "plain.db", 1))[0])
    path = changed(tmp_path / "copies.db", "3.0.3", CALLS)
    (read,) = read_rocpd(path)
    assert table_of(read) == plain
    assert any("rocpd_memory_copy.brand_new" in note for note in read.join_notes)
    run = open_run(str(path), jobs=1)
    table = run.table
    names = [run.table.names[code] for code in table.kernel.tolist()]
    found = sorted(
        (start, took, name, gpu, launch, size)
        for start, took, name, gpu, launch, size in zip(
            table.start_ns.tolist(), table.duration_ns.tolist(), names, table.gpu.tolist(),
            table.launch_ns.tolist(), table.bytes.tolist(), strict=True,
        )
    )  # fmt: skip
    copy = "Memcpy HtoD (Host -> Device)"
    assert found[:2] == [(8100, 800, copy, 1, 8000, 4096), (8950, 40, copy, 0, NO_TIME, 64)]
    launches = [launch for *_, launch, _ in found[2:]]
    assert launches == [2000, 4000, 6000, 8000, 10000, NO_TIME]
    assert run.sources[0].events == {"dispatch": 6, "copy": 2, "call": 6}


def test_extra_data_in_a_frame_of_lz4_is_read(tmp_path: Path) -> None:
    """As rocprofv3 writes it with compression: texts of ranges, and what agents are."""
    packed = {
        table: pa.compress(text.encode(), codec="lz4", asbytes=True).hex()
        for table, text in (
            ("rocpd_info_agent", '{"cu_count": 304, "num_xcc": 8, "simd_per_cu": 4}'),
            ("rocpd_event", '{"message": "layer 7"}'),
        )
    }
    statements = [
        f"UPDATE \"{table}{{u}}\" SET extdata = X'{text}';" for table, text in packed.items()
    ]
    (run,) = read_rocpd(changed(tmp_path / "lz4.db", "4", *statements))
    assert (run.agents[0].compute_units, run.agents[0].xccs) == (304, 8)
    regions = {row[4]: row[-2] for row in table_of(run)}
    assert regions == {1: "layer 7", 2: "layer 7", 3: None, 4: None, 5: None, 6: None}
    broken = [f"{each[: each.index(chr(39)) + 21]}';" for each in statements]
    (run,) = read_rocpd(changed(tmp_path / "bad.db", "4", *broken))
    assert len(run.dispatches) == 6 and run.agents[0].compute_units == 0


def test_samples_of_rocprof_sys_are_telemetry(tmp_path: Path) -> None:
    """Six counters of a moment share an event, and each has a sample of it."""
    (whole,) = read_rocpd(minimal_rocpd(tmp_path / "plain.db", 1))
    plain, begin = table_of(whole), int(whole.dispatches.start_ns.min())
    names = ("device_busy_gfx", "device_power", "device_temp", "device_memory_usage",
             "device_busy_mm")  # fmt: skip
    statements = [WITH_SAMPLES.partition("CREATE")[0], """
CREATE TABLE "rocpd_sample{u}" (id INTEGER PRIMARY KEY, guid TEXT, track_id INT, timestamp INT,
  event_id INT);"""]  # fmt: skip
    for number, name in enumerate(names, 50):
        statements.append(
            f'INSERT INTO "rocpd_info_pmc{{u}}" (id, guid, nid, pid, agent_id, name, symbol)'
            f" VALUES ({number}, '{{g}}', 1, 1, 2, '{name}', '{name}');"
        )
    for moment in range(4):
        event = 900 + moment
        statements.append(f"INSERT INTO \"rocpd_event{{u}}\" (id, guid) VALUES ({event}, '{{g}}');")
        for place in range(len(names)):
            value = (80, 500, 60, 1_000, 5)[place] + moment
            statements.append(
                'INSERT INTO "rocpd_pmc_event{u}" (guid, event_id, pmc_id, value)'
                f" VALUES ('{{g}}', {event}, {50 + place}, {value});"
                'INSERT INTO "rocpd_sample{u}" (guid, track_id, timestamp, event_id)'
                f" VALUES ('{{g}}', {place}, {begin + 100 * moment}, {event});"
            )
    path = changed(tmp_path / "rocprof-sys.db", "3.0.3", *statements)
    (counters,) = read_rocpd(path)
    assert table_of(counters) == plain
    assert not any("of no dispatch" in note for note in counters.losses.notes)
    run = open_run(str(path), jobs=1)
    (telemetry,) = run.telemetry
    assert telemetry.offset_ns == 0
    assert telemetry.unused == {"device_busy_mm": 4}
    read = read_samples(path)
    values = {name: each[0].value.tolist() for (_, name), each in read.signals.items()}
    assert values == {
        "gfx_util_pct": [80, 81, 82, 83],
        "power_w": [500, 501, 502, 503],
        "edge_c": [60, 61, 62, 63],
        "vram_bytes": [1.000e9, 1.001e9, 1.002e9, 1.003e9],
    }
    assert [gpu.kfd_node for gpu in read.gpus] == [4] and "power_w" in run.measured


def test_groups_of_counters_that_rotate_mark_their_totals(tmp_path: Path) -> None:
    """rocprofv3 counts another group at every other dispatch."""
    statement = """DELETE FROM "rocpd_pmc_event{u}" WHERE (event_id % 2) = (pmc_id % 2);"""
    path = changed(tmp_path / "rotated_results.db", "3.0.5", statement)
    run = open_run(str(path), jobs=1)
    names = [*run.counter_info][:2]
    frame = query(run, parse(f"R?view=kernels&columns={','.join(names)}"))
    for name in names:
        values = frame.values[name]
        covers_some = [
            values.is_extrapolated(row) or not values.present()[row] for row in range(len(frame))
        ]
        assert any(covers_some) and frame.total_mark(name) == "~"


def test_dispatches_of_graphs_are_counted(tmp_path: Path, wording: Wording) -> None:
    plain = table_of(read_rocpd(minimal_rocpd(tmp_path / "plain.db", 1))[0])
    tables = """
ALTER TABLE "rocpd_kernel_dispatch{u}" ADD COLUMN graph_exec_id INT;
ALTER TABLE "rocpd_kernel_dispatch{u}" ADD COLUMN graph_node_id INT;
UPDATE "rocpd_kernel_dispatch{u}" SET graph_exec_id = 5, graph_node_id = id WHERE id > 2;
CREATE TABLE "rocpd_graph_launch{u}" (id INTEGER PRIMARY KEY, guid TEXT, graph_exec_id INT);
INSERT INTO "rocpd_graph_launch{u}" VALUES (1, '{g}', 5), (2, '{g}', 5);
"""
    (run,) = read_rocpd(changed(tmp_path / "graphs.db", "3.0.2", tables))
    assert table_of(run) == plain
    count = len(run.dispatches) - 2
    wording.among(run.join_notes, f"graphs.db: {count} dispatches of 2 graph")


@pytest.mark.parametrize("layout", ["pmc_perf_{}.db", "out/pmc_{}/host/55_results.db"])
def test_passes_in_databases_of_their_own_are_one_run(tmp_path: Path, layout: str) -> None:
    """As rocprof-compute writes them since 3.9; calls and times are those of one of them."""
    for number in (0, 1):
        path = tmp_path / layout.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        later = 5_000_000 * number
        changed(
            path, "3.0.3",
            f'DELETE FROM "rocpd_pmc_event{{u}}" WHERE pmc_id = {number + 1};'
            f'UPDATE "rocpd_kernel_dispatch{{u}}" SET start = start + {later}, '
            f"end = end + {later};",
        )  # fmt: skip
    run = open_run(str(tmp_path), jobs=1)
    assert set(run.counter_info) == {"SQ_WAVES", "FETCH_SIZE"} and not run.skipped
    assert run.sources[0].events == {"dispatch": 6, "call": 5}
    frame = query(run, parse("R?view=kernels&columns=SQ_WAVES,FETCH_SIZE"))
    # Instances 0 to 2 of counter c in dispatch d, of which the last has none: 100 d + 10 c + i. A
    # total is that of one of the two GPUs.
    waves, sizes = (3 * 100 * sum(range(1, 6)) + 5 * (3 * 10 * c + 3) for c in (1, 2))
    assert (frame.total["SQ_WAVES"], frame.total["FETCH_SIZE"]) == (waves / 2, sizes / 2)


def test_schemas_beyond_those_that_are_known(tmp_path: Path, wording: Wording) -> None:
    with pytest.raises(DataError, match=r"schema 5\.0\.1, which is unknown: schemas 3 and 4 are"):
        read_rocpd(changed(tmp_path / "v5.db", "5.0.1"))
    (run,) = read_rocpd(
        changed(
            tmp_path / "v3.db", "3.0.9",
            'CREATE TABLE "rocpd_new_thing{u}" (id INTEGER PRIMARY KEY);'
            'INSERT INTO "rocpd_new_thing{u}" VALUES (1), (2);',
        )
    )  # fmt: skip
    assert run.losses.newer == "3.0.9"
    wording.among(run.join_notes, "rocpd_new_thing (2)")
