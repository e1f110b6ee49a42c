"""How much of a large run each step looks at: counts of rows and bytes, which no noise changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.align.breakdown import breakdown_columns
from chopper_core.ingest.batches import TableContent, gather
from chopper_core.model.cubes import Cubes, summarise
from chopper_core.model.run import Run
from chopper_core.model.table import COLUMNS, LEVELS
from chopper_core.model.view import View, enter, pivot
from chopper_core.sources.kineto.reader import read as read_trace
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.tables.bytes import ByteSource
from chopper_core.views.find import find_everywhere
from chopper_core.views.overview import preview
from chopper_core.views.query import query
from tests.conftest import ROOT as ROOT_FOLDER
from tests.limited import within
from tests.programs.bench.runs import Tables, run_of

RANKS, KERNELS = 4, 70_000
ROWS = RANKS * KERNELS
STEP = 2_442
"""Rows of an iteration of a rank."""
PROBED = 50_000
"""Values at the head of columns that tell which columns have any; however long the run is."""


class Counted(np.ndarray):
    """A column that counts how many of its values are taken out or worked on."""

    touched = 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return np.asarray(self)[key].view(Counted)
        taken = np.asarray(self)[key]
        Counted.touched += np.size(taken)
        return taken

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(_plain, given), **options)

    def __array_function__(self, function: Any, _: Any, given: Any, options: Any) -> Any:
        if function is np.searchsorted:
            Counted.touched += np.size(given[1]) * int(np.log2(len(given[0]) + 1))
            return function(np.asarray(given[0]), *given[1:], **options)
        return function(*(_plain(each) for each in given), **options)

    def astype(self, *given: Any, **options: Any) -> Any:
        return _plain(self).astype(*given, **options)


def _plain(value: Any) -> Any:
    if isinstance(value, Counted):
        Counted.touched += value.size
        return np.asarray(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(each) for each in value)
    return value


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    tables = Tables(RANKS, KERNELS)
    contents = [TableContent.of(each) for each in tables]
    table = gather(contents, tables.__getitem__, folder / "together")
    write_store(run_of(RANKS, KERNELS, table), folder / "store")
    return folder / "store"


@pytest.fixture
def run(stored: Path) -> Iterator[Run]:
    """The stored run, with columns that count."""
    plain = read_store(stored)
    columns = {name: plain.table.column(name).view(Counted) for name in COLUMNS}
    table = replace(plain.table, **columns)
    assert plain.cubes is not None and plain.cubes.by_levels
    yield replace(plain, table=table, cubes=Cubes(table, plain.cubes.by_levels))


def touched(run: Run, view: View) -> int:
    Counted.touched = 0
    assert len(query(run, view))
    return Counted.touched


ROOT = View("R")
GPU = enter(ROOT, "2")
PHASE = enter(enter(GPU, "3"), "backward")
LAYER = enter(PHASE, "7")


@pytest.mark.few(2)
@pytest.mark.parametrize("level", LEVELS)
def test_a_split_of_the_whole_run_needs_its_sums_only(run: Run, level: str) -> None:
    assert touched(run, pivot(ROOT, level)) <= PROBED


def test_the_parts_of_a_step_need_the_sums_of_the_run_only(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its headline and its bar, where GPUs are as many as in runs of 10,000."""
    monkeypatch.setattr("chopper_core.model.cubes._MAX_BY_GPU", 1)
    plain = read_store(stored)
    table = plain.table.with_measured(breakdown_columns(plain.table, None))
    # Of so many GPUs the sums by GPU are more than those by phase.
    cubes = {frozenset(cube.levels): cube for cube in summarise(table) if cube.levels != ("gpu",)}
    measured = {name: values.view(Counted) for name, values in table.measured.items()}
    table = replace(table, measured=measured)
    run = replace(plain, table=table, cubes=Cubes(table, cubes))
    Counted.touched = 0
    assert preview(run, View("R", name="overview")) is not None
    assert Counted.touched <= PROBED


@pytest.mark.parametrize("level", LEVELS)
def test_the_gpus_of_each_part_of_the_run_are_known_from_its_sums(run: Run, level: str) -> None:
    """Sparklines are of the signals of a row's GPUs."""
    order = (level, *(each for each in LEVELS if each != level))
    groups = run.tree(order).children(()).groups
    Counted.touched = 0
    found = [groups.gpus(number) for number in range(len(groups))]
    assert Counted.touched == 0
    assert {gpu for each in found for gpu in each} == set(range(RANKS))


@pytest.mark.parametrize(
    ("view", "rows"),
    [(GPU, 10), (enter(GPU, "3"), STEP), (PHASE, STEP), (LAYER, STEP // 32)],
)
def test_a_node_needs_no_more_than_its_own_rows(run: Run, view: View, rows: int) -> None:
    columns = 20
    assert touched(run, view) <= PROBED + rows * columns


def test_what_a_person_does_with_a_table_needs_its_sums_only(run: Run) -> None:
    for view in (
        replace(ROOT, sort="-idle_ns"),
        replace(ROOT, filter="time>1ms"),
        replace(pivot(ROOT, "operation"), filter="gemm|attn"),
        replace(enter(pivot(ROOT, "operation"), "mlp_up"), sort="-busy_pct"),
    ):
        assert touched(run, view) <= PROBED, view


def test_a_name_is_found_without_a_look_at_all_columns(run: Run) -> None:
    Counted.touched = 0
    assert find_everywhere(run, View("R"), "attn_fa").hits
    assert Counted.touched <= ROWS


def test_a_table_is_made_in_little_memory(stored: Path) -> None:
    """The first frame of a run allocates far less than a column of it, a node's no more."""
    plain = read_store(stored)
    query(plain, ROOT)
    for view in (ROOT, GPU, PHASE, LAYER, pivot(ROOT, "kernel")):
        with within(ROWS * 8):
            query(plain, view)


def test_a_trace_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT_FOLDER / "demo_data" / "fsdp2" / "rank0.json.gz"
    plain, read = ByteSource._read_file, []

    def counted(self: ByteSource, wanted: int) -> bytes:
        piece = plain(self, wanted)
        read.append(len(piece))
        return piece

    monkeypatch.setattr(ByteSource, "_read_file", counted)
    read_trace(path)
    size = path.stat().st_size
    assert sum(read) == size


def test_a_store_takes_few_bytes_for_each_activity(stored: Path) -> None:
    size = sum(path.stat().st_size for path in stored.iterdir())
    assert size <= 300 * ROWS


def test_whether_a_run_communicates_is_known_from_its_sums(run: Run) -> None:
    """A view asks it for the panel next to it."""
    Counted.touched = 0
    assert run.communicates
    assert Counted.touched <= PROBED
