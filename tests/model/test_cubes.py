"""Both ways to a figure, from the cells of cubes and from the rows, against a third in Python."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.analyses import rows as rows_module
from chopper_core.analyses.rows import by_node
from chopper_core.model import groups as groups_module
from chopper_core.model import groups as reductions
from chopper_core.model import run as run_module
from chopper_core.model import signals as signals
from chopper_core.model import tree as tree_module
from chopper_core.model.address import parse
from chopper_core.model.cubes import HIGHEST, LOWEST, SUMMED, Cubes, summarise
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.signals import BusyCurve, share_running
from chopper_core.model.table import LEVELS, KernelTable, Kind
from chopper_core.model.tree import Tree, in_order, level_order
from chopper_core.model.view import View
from chopper_core.util.errors import ChopperError, NoSuchNode
from chopper_core.util.grouping import distinct
from chopper_core.views import VIEWS, view_specs
from chopper_core.views.find import find_everywhere, names_everywhere
from chopper_core.views.query import query
from chopper_core.views.shared import signal_charts as charts_module
from chopper_core.views.shared.row_columns import node_figures
from chopper_core.views.shared.signal_charts import signal_chart
from tests.support import Row, run_of, sample_run

COLUMNS = [
    "elapsed_ns",
    "kernels",
    "busy_pct",
    "hidden_ns",
    "min_ns",
    "max_ns",
    "start_ns",
    "end_ns",
    "stream",
    "launch_ns",
    "bytes",
    "unlinked",
    "copies",
    "collectives",
    "idle_host_ns",
    "activities",
    "mean_ns",
    "model_flops",
    "model_tflops",
    "energy_j",
]


def measured(run: Run, seed: int = 3) -> Run:
    """The run in order, with columns that are known for some rows, two of them for the same."""
    table = run.table.take(level_order(run.table))
    random = np.random.default_rng(seed)
    some = np.where(random.random(len(table)) < 0.7, random.random(len(table)), np.nan)
    few = np.where(random.random(len(table)) < 0.2, random.random(len(table)), np.nan)
    columns = {"model_flops": some * 1e12, "SQ_WAVES": some * 100, "energy_j": few}
    return replace(run, table=table.with_measured(columns))


def summed(run: Run) -> Run:
    """The run with cubes of every set of levels."""
    return replace(
        run,
        cubes=Cubes(run.table, {frozenset(c.levels): c for c in summarise(run.table, 1 << 20, 1)}),
    )


@pytest.fixture(autouse=True)
def no_short_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "_MAX_ADDED_ROWS", -1)


rows = st.builds(
    Row,
    start=st.integers(0, 5_000),
    duration=st.integers(0, 300),
    stream=st.integers(0, 2),
    gpu=st.integers(0, 2),
    iteration=st.integers(-1, 2),
    phase=st.integers(-1, 4),
    layer=st.integers(-1, 2),
    operation=st.sampled_from(["a", "b", "c"]),
    kernel=st.sampled_from(["k", "l"]),
    launch=st.none() | st.integers(0, 5_000),
)


@given(st.lists(rows, min_size=1, max_size=40), st.permutations(LEVELS), st.data())
def test_cells_and_rows_agree(made: list[Row], order: list[str], data: st.DataObject) -> None:
    slow = measured(run_of(made))
    fast = summed(slow)
    table = slow.table
    row = data.draw(st.integers(0, len(made) - 1))
    depth = data.draw(st.integers(0, len(LEVELS) - 1))
    path = [table.text_of(level, int(table.column(level)[row])) for level in order[:depth]]
    left_out: tuple[int, ...] = ()
    if data.draw(st.booleans()):
        others = sorted(set(table.iteration.tolist()) - {int(table.iteration[row]), -1})
        left_out = (
            tuple(data.draw(st.lists(st.sampled_from(others), unique=True))) if others else ()
        )
    ours = fast.tree(tuple(order), left_out).children(path)
    theirs = slow.tree(tuple(order), left_out).children(path)
    assert ours.groups.cells is not None and theirs.groups.cells is None
    assert ours.labels == theirs.labels
    for groups in (ours.groups, theirs.groups):
        seen = [
            (group, row)
            for rows, numbers in groups.pieces()
            for group, row in zip(numbers, np.arange(len(table))[rows], strict=True)
        ]
        parts = [np.arange(len(table))[groups.part(n)] for n in range(len(groups))]
        assert sorted(seen) == sorted((n, row) for n, part in enumerate(parts) for row in part)
    inside = np.ones(len(table), np.bool_)
    for level, label in zip(order, path, strict=False):
        inside &= table.column(level) == table.code_of(level, label)
    if "iteration" not in order[: depth + 1]:
        inside &= ~np.isin(table.iteration, left_out)
    there = {table.text_of(order[depth], int(c)) for c in table.column(order[depth])[inside]}
    assert set(ours.labels) == there
    for tree in (fast.tree(tuple(order), left_out), slow.tree(tuple(order), left_out)):
        kept = inside & ~np.isin(table.iteration, left_out)
        own = inside if "iteration" in order[:depth] else kept
        assert sorted(tree.node(path).rows) == list(np.flatnonzero(own))
        parts = tree.split(path, ("gpu", "iteration"))
        assert sorted(parts.rows) == list(np.flatnonzero(own)) and parts.sizes().sum() == own.sum()
    for number, label in enumerate(ours.labels):
        own = inside & (table.column(order[depth]) == table.code_of(order[depth], label))
        for groups in (ours.groups, theirs.groups):
            assert sorted(groups.rows_of(number)) == list(np.flatnonzero(own))
            assert groups.gpus(number) == sorted({int(gpu) for gpu in table.gpu[own]})
            assert groups.sizes()[number] == own.sum()
            for reduce, columns in ((np.sum, SUMMED), (np.min, LOWEST), (np.max, HIGHEST)):
                for column in columns:
                    values = groups_module.values_of(table, column, np.flatnonzero(own))
                    got = getattr(groups, reduce.__name__.removeprefix("a"))(column)[number]
                    assert got == reduce(values.astype(np.int64)), (reduce, column)
            for column, values in table.measured.items():
                known = np.isfinite(values) & own
                total, count = groups.known(column)
                assert total[number] == pytest.approx(values[known].sum())
                assert count[number] == known.sum()
                assert groups.known_duration(column)[number] == table.duration_ns[known].sum()
    together = ("model_flops", "SQ_WAVES")
    assert ours.groups.cells.known_together(together) is not None
    for columns in (together, ("model_flops", "energy_j")):
        left, right = (each.groups.known_together(columns) for each in (ours, theirs))
        assert list(left[1]) == list(right[1])
        for column in columns:
            assert left[0][column] == pytest.approx(right[0][column])


some_levels = st.lists(st.sampled_from(LEVELS), max_size=2, unique=True)


@given(
    st.lists(rows, min_size=1, max_size=40), some_levels, some_levels, st.sets(st.integers(0, 62))
)
def test_groups_are_split_alike_whichever_cubes_there_are(
    made: list[Row], levels: list[str], more: list[str], lacking: set[int]
) -> None:
    slow = measured(run_of(made))
    fast = summed(slow)
    cubes = [*fast.cubes.by_levels.items()]
    kept = dict(each for place, each in enumerate(cubes) if place not in lacking)
    fast = replace(fast, cubes=Cubes(fast.table, kept))
    excluded = {"iteration": [int(slow.table.iteration[-1])]} if len(made) > 1 else {}
    found = []
    for run in (fast, slow):
        try:
            groups = run.tree().split((), levels, excluded)
        except NoSuchNode:
            groups = run.tree().split((), levels)
        parts, owner = groups.split(more)
        sums = [parts.sum(name) for name in ("duration_ns", "idle_ns")]
        labels = [parts.codes(level) for level in (*levels, *more)]
        found.append([each.tolist() for each in (owner, parts.sizes(), *sums, *labels)])
        found[-1] += [np.sort(parts.rows_of(place)).tolist() for place in range(len(parts))]
    assert found[0] == found[1]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "order",
    [LEVELS, ("operation", "gpu"), ("kernel", "operation"), ("layer", "iteration", "gpu")],
)
def test_frames_charts_and_finds_agree(order: tuple[str, ...]) -> None:
    slow = measured(sample_run(gpus=3))
    fast = summed(slow)
    order = (*order, *(level for level in LEVELS if level not in order))
    path: tuple[str, ...] = ()
    while len(path) <= len(LEVELS):
        view = View("R", path, order, columns=tuple(COLUMNS))
        ours, theirs = query(fast, view), query(slow, view)
        assert ours.labels == theirs.labels
        assert ours.total == pytest.approx(theirs.total)
        for column in COLUMNS:
            left, right = ours.values[column], theirs.values[column]
            assert list(left.present()) == list(right.present())
            there = left.present()
            assert left.numbers[there] == pytest.approx(right.numbers[there])
            if right.numbers.dtype.kind == "i":
                assert list(left.numbers[there]) == list(right.numbers[there])
        places = np.arange(len(ours.labels))
        np.testing.assert_array_equal(ours.means(places, 7), theirs.means(places, 7))
        np.testing.assert_array_equal(
            signal_chart(fast, view, 9).values, signal_chart(slow, view, 9).values
        )
        assert node_figures(fast, view, ["kernels"])["kernels"].at(0) == ours.total["kernels"]
        path = (*path, ours.labels[len(ours.labels) // 2])
    whole = View("R", order=order)
    for text in ("attn", ".", "!attn !cijk"):
        ours_found, theirs_found = (
            find_everywhere(run, whole, text, 10_000) for run in (fast, slow)
        )
        assert set(ours_found.hits) == set(theirs_found.hits)
        assert (ours_found.names, ours_found.nodes) == (theirs_found.names, theirs_found.nodes)
        assert names_everywhere(fast, whole, text) == names_everywhere(slow, whole, text)


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_MAX_SORTED", 0)
    slow = measured(sample_run(gpus=2))
    fast = summed(slow)
    (spec,) = (each for each in view_specs() if each.name == name)
    for by in spec.by or ("",):
        for scope in ("", ":gpu=1", ":gpu=0/iteration=11/phase=forward"):
            ours, theirs = (_rows(run, f"R{scope}?view={name}&by={by}") for run in (fast, slow))
            assert ours.keys() == theirs.keys(), (by, scope)
            for label, row in theirs.items():
                for column, value in row.items():
                    same = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
                    assert ours[label][column] == same, (by, scope, label, column)


def _rows(run: Run, address: str) -> dict[str, dict[str, object]]:
    """The rows of a view by place and label; the sentence where the run can't have it."""
    try:
        frame = query(run, parse(address))
    except ChopperError as error:
        return {str(error): {}}
    return {f"{n} {label}": frame.row(n) for n, label in enumerate(frame.labels)}


def test_a_missing_node_is_named_alike() -> None:
    slow = measured(sample_run(gpus=2))
    fast = summed(slow)
    for path in (("7",), ("0", "99"), ("0", "10", "forward", "3", "nothing"), ("x",), ("9" * 12,)):
        said = []
        for run in (fast, slow):
            with pytest.raises(NoSuchNode) as error:
                run.tree().node(path)
            said.append(str(error.value))
        assert said[0] == said[1]


def test_a_table_in_no_order_has_the_same_tree() -> None:
    table = sample_run(gpus=2).table
    shuffled = table.take(np.random.default_rng(1).permutation(len(table)))
    ordered = table.take(level_order(table))
    assert in_order(ordered) and not in_order(shuffled)

    def found(table: KernelTable) -> dict[tuple[str, ...], tuple[int, ...]]:
        tree, nodes = Tree(table), {}
        for gpu in tree.children(()).labels:
            for iteration in tree.children((gpu,)).labels:
                children = tree.children((gpu, iteration))
                sums = zip(children.groups.sum("idle_ns"), children.groups.sizes(), strict=True)
                for label, own in zip(children.labels, sums, strict=True):
                    nodes[gpu, iteration, label] = tuple(map(int, own))
        return nodes

    assert found(shuffled) == found(ordered)


def test_a_summary_of_another_table_is_not_used() -> None:
    run = summed(measured(sample_run(gpus=2)))
    fewer = replace(run, table=run.table.take(np.arange(len(run.table) // 2)))
    assert fewer.tree().node(()).sizes()[0] == len(run.table) // 2


def test_only_cubes_that_save_something_are_made() -> None:
    table = measured(sample_run()).table
    counts = defaultdict(int)
    for cube in summarise(table, 12, 16):
        is_by_gpu = len(cube.levels) == 2 and "gpu" in cube.levels
        assert len(cube) <= (len(table) // 16 if is_by_gpu else 12)
        counts[len(cube.levels)] += 1
    assert counts[1] and not counts[6]
    assert summarise(table, 1 << 20, len(table) + 1) == []


@pytest.mark.parametrize("name", ["busy_pct", "compute_pct"])
@given(st.lists(rows, min_size=1, max_size=40), st.data())
def test_the_busy_share_is_that_of_the_union(
    name: str, made: list[Row], data: st.DataObject
) -> None:
    run = measured(run_of(made))
    table = run.table
    # Without any times there is no busy share.
    assume(table.has_times)
    part = data.draw(st.sampled_from((2, 64)))
    with patch.object(signals, "PART", part), patch.object(run_module, "PART", part):
        for gpu in run.gpus:
            own = table.gpu == gpu.index
            starts, durations = table.start_ns[own], table.duration_ns[own]
            span = (int(starts.min()), int((starts + durations).max()))
            counted = (table.kind[own] == Kind.COMPUTE) | (name == "busy_pct")
            slow = share_running(starts[counted], durations[counted], span)
            times = np.array(sorted(data.draw(st.lists(st.floats(-100, 6_000), min_size=2))))
            fast = run.signal(name).curves[gpu.index]
            for ours, theirs in zip(fast.integrals(times), slow.integrals(times), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-6)
            np.testing.assert_allclose(fast.means(times), slow.means(times), atol=1e-6)
            assert isinstance(fast, BusyCurve)
            exact = fast.with_all_edges()
            np.testing.assert_array_equal(exact.integral[-1], slow.integral[-1])


@pytest.mark.parametrize("limit", ["MAX_SPARKLINE_GPUS", "MAX_SPARKLINE_ACTIVITIES"])
def test_no_means_of_rows_on_very_many_gpus(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = summed(measured(sample_run(gpus=4)))
    by_phase = View("R", order=("phase", *(level for level in LEVELS if level != "phase")))
    rows = np.arange(3)
    assert np.isfinite(query(run, by_phase).means(rows, 4)).all()
    run = summed(measured(sample_run(gpus=4)))
    if limit == "MAX_SPARKLINE_ACTIVITIES":
        monkeypatch.setattr(Groups, "has_gpus", False)
    monkeypatch.setattr(charts_module, limit, 3)
    assert np.isnan(query(run, by_phase).means(rows, 4)).all()
    # A row per GPU has them whatever the number of GPUs.
    is_known = np.isfinite(query(run, View("R")).means(rows, 4)).all()
    assert is_known == (limit == "MAX_SPARKLINE_GPUS")


def test_columns_of_which_one_is_nowhere_known_have_no_sums_in_cells_or_rows() -> None:
    run = measured(sample_run())
    columns = {"none": np.full(len(run.table), np.nan), "all": np.ones(len(run.table))}
    cubed = summed(replace(run, table=run.table.with_measured(columns)))
    for cubes in (cubed.cubes, None):
        groups = Tree(cubed.table, LEVELS, cubes).split((), ("operation",))
        for names, known in ((("none", "all"), 0), (("all",), len(cubed.table))):
            sums, count = groups.known_together(names)
            assert count.sum() == known
            assert [own.sum() for own in sums.values()] == [known] * len(names)


@pytest.mark.parametrize("order", [LEVELS, ("iteration", "gpu", *LEVELS[2:]), LEVELS[::-1]])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_rows_without_iterations_are_the_others_in_the_order_of_the_table(
    order: tuple[str, ...], depth: int
) -> None:
    table = measured(sample_run()).table
    tree = Tree(table, order)
    path = tuple(table.text_of(level, table.column(level)[0]) for level in order[:depth])
    own = np.ones(len(table), np.bool_)
    for level in order[:depth]:
        own &= table.column(level) == table.column(level)[0]
    first, *_, last = distinct(table.iteration).tolist()
    for left_out in ([], [last], [last, first, 10_000]):
        wanted = np.flatnonzero(own & ~np.isin(table.iteration, left_out))
        found = np.arange(len(table))[tree.rows_without(path, left_out)]
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("levels", [("operation",), ("phase", "kernel"), ("gpu",)])
@pytest.mark.parametrize("more", [("gpu",), ("kernel",), ("iteration", "layer")])
def test_groups_are_split_alike_by_cells_and_by_rows(
    levels: tuple[str, ...], more: tuple[str, ...]
) -> None:
    run = measured(sample_run())
    by_rows, whose = run.tree().split((), levels).split(more)
    nodes = summed(run).tree().split((), levels)
    by_cells, owner = nodes.split(more)
    assert nodes.cells is not None and by_rows.cells is None
    # Where the cells of the groups don't tell, those of a larger cube do.
    assert by_cells.cells is not None
    np.testing.assert_array_equal(owner, whose)
    for figure in (Groups.sizes, lambda groups: groups.sum("duration_ns")):
        np.testing.assert_array_equal(figure(by_cells), figure(by_rows))
    for level in (*levels, *more):
        np.testing.assert_array_equal(by_cells.codes(level), by_rows.codes(level))
    for group in range(len(by_rows)):
        np.testing.assert_array_equal(by_cells.rows_of(group), by_rows.rows_of(group))


@pytest.mark.parametrize("path", [(), ("1",)])
def test_nodes_are_the_same_from_sums_as_from_rows(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's figures are those of its GPUs, whose activities needn't be read for them."""
    rows = [Row(start=10 * n, duration=3 + n % 4, gpu=n % 5, iteration=n % 3) for n in range(60)]
    monkeypatch.setattr(
        rows_module, "node_labels", lambda run, gpus: [f"host{gpu // 2}" for gpu in gpus]
    )
    plain = measured(run_of(rows))
    found = []
    for run in (plain, summed(plain)):
        tree = run.tree()
        whole, parts = tree.node(path), tree.split(path, ("gpu",))
        names, nodes = by_node(run, whole, parts)
        assert (nodes.cells is not None) == (run is not plain)
        own = [sorted(nodes.rows_of(place).tolist()) for place in range(len(nodes))]
        assert [{run.table.gpu[row] // 2 for row in each} for each in own] == [
            {int(name.removeprefix("host"))} for name in names
        ]
        found.append((names, nodes.elapsed_ns.tolist(), nodes.sizes().tolist(), own))
    assert found[0] == found[1] and sum(found[0][2]) == len(plain.tree().node(path).rows)
