"""Coordinates of ranks as levels, filters and splits of every view."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.step_account import _thousands
from chopper_core.extensions.runs.figures import figures_of_run, with_settings
from chopper_core.model import address
from chopper_core.model.column_names import TOKENS
from chopper_core.model.cubes import Cubes, summarise
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run, located
from chopper_core.model.table import STATES
from chopper_core.model.tree import Tree
from chopper_core.model.view import View, pivot
from chopper_core.render import as_text
from chopper_core.util.errors import NoSuchNode, UsageError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import frame_of, query
from chopper_core.views.spec import splits_of
from tests.pipelines import pipeline_run
from tests.support import sample_run
from tests.wording import Wording


@pytest.fixture(scope="module")
def run() -> Run:
    return pipeline_run()[0]


def at(run: Run, text: str) -> View:
    return address.parse(f"R{text}")


def elapsed(run: Run, rows: object) -> int:
    return int(sum(run.table.column(state)[rows].sum() for state in STATES))  # type: ignore[index]


@pytest.mark.few(1)
@pytest.mark.parametrize("dimension", ["pp", "dp", "tp"])
def test_a_dimension_splits_the_tree(run: Run, dimension: str) -> None:
    frame = query(run, at(run, f"?order={dimension}&base=total"))
    ranks = np.arange(32)
    place = {"tp": ranks % 2, "dp": ranks // 2 % 4, "pp": ranks // 8}[dimension]
    assert frame.level == dimension
    assert list(frame.labels) == [str(code) for code in range(int(place.max()) + 1)]
    for row, label in enumerate(frame.labels):
        own = np.isin(run.table.gpu, np.flatnonzero(place == int(label)))
        assert frame.elapsed_ns[row] == elapsed(run, own)
    assert frame.parent_ns == frame.elapsed_ns.sum()


def test_dimensions_nest_and_lead_to_gpus(run: Run) -> None:
    frame = query(run, at(run, ":pp=2/tp=1?order=pp,tp"))
    assert frame.level == "gpu"
    assert list(frame.labels) == ["17", "19", "21", "23"]
    deeper = query(run, at(run, ":pp=2/tp=1/gpu=19/iteration=4?order=pp,tp"))
    own = (run.table.gpu == 19) & (run.table.iteration == 4)
    assert deeper.parent_ns == elapsed(run, own)
    assert address.parse(address.render(frame.view)) == frame.view
    with pytest.raises(NoSuchNode, match="no gpu 0 here"):
        query(run, at(run, ":pp=2/gpu=0?order=pp"))
    with pytest.raises(NoSuchNode, match="no pp 7 here; available: 0, 1, 2, 3"):
        query(run, at(run, ":pp=7?order=pp"))


def test_iterations_left_out_stay_out_of_a_coordinate(run: Run) -> None:
    tree = run.tree(("pp", *run.tree().order), (3,))
    own = (run.table.gpu // 8 == 1) & (run.table.iteration != 3)
    assert tree.node(("1",)).elapsed_ns[0] == elapsed(run, own)


def test_sums_of_cubes_are_those_of_the_rows(run: Run) -> None:
    table = run.table
    order = ("pp", "dp", *run.tree().order)
    cubed = Tree(table, order, Cubes(table, {frozenset(c.levels): c for c in summarise(table)}))
    plain = Tree(table, order)
    for path in ((), ("2",), ("2", "1"), ("2", "1", "18")):
        ours, theirs = cubed.children(path), plain.children(path)
        assert list(ours.labels) == list(theirs.labels)
        assert ours.groups.elapsed_ns.tolist() == theirs.groups.elapsed_ns.tolist()


def test_a_coordinate_filters_gpus(run: Run) -> None:
    assert list(query(run, at(run, "?filter=pp:3 tp:1")).labels) == ["25", "27", "29", "31"]
    power = query(run, at(run, "?view=power&filter=pp:0-1 dp:2"))
    assert list(power.labels) == ["4", "5", "12", "13"]
    with pytest.raises(UsageError, match="rows are by iteration"):
        query(run, at(run, ":gpu=3?filter=pp:3"))


def test_a_view_splits_by_a_dimension(run: Run) -> None:
    able = [name for name in VIEWS if "pp" in splits_of(run, view_spec(name))]
    by_gpu = {name for name in VIEWS if {"gpu", "rank"} & set(view_spec(name).by)}
    assert set(able) == by_gpu
    assert {"throughput", "timeline", "overview", "determinism", "graph", "icicle"} <= by_gpu
    for name in able:
        path, base = "", ""
        if view_spec(name).compares:
            path, base = ":iteration=3", "&order=iteration&base=iteration=4"
        frame = frame_of(run, at(run, f"{path}?view={name}&by=pp{base}"))
        prefix = "pp " if name == "timeline" else ""
        assert sorted(frame.labels) in ([f"{prefix}{pp}" for pp in range(4)], []), name
        assert as_text(frame)
        if frame.labels:
            opened = frame.target(0)
            assert dict(opened.scope).get("pp", frame.labels[0]) == frame.labels[0]
            assert frame_of(run, opened) is not None
    with pytest.raises(UsageError, match="takes by="):
        query(run, at(run, "?view=cpu&by=pp"))


@pytest.mark.few(1)
@pytest.mark.parametrize("dimension", ["pp", "tp"])
def test_rows_of_coordinates_are_sums_of_their_gpus(run: Run, dimension: str) -> None:
    """Of every view that splits, whatever adds up; its total is that of the GPUs."""
    places = run.table.coordinates[dimension]
    compared = 0
    for name in VIEWS:
        spec = view_spec(name)
        # A lane stands for one GPU of a coordinate, and a pipeline shows means.
        if dimension not in splits_of(run, spec) or name in ("compare", "pipeline", "timeline"):
            continue
        each = "gpu" if "gpu" in splits_of(run, spec) else "rank"
        split, whole = (
            frame_of(run, at(run, f"?view={name}&by={by}&base=total")) for by in (dimension, each)
        )
        for metric in whole.columns:
            theirs = split.values.get(metric.name)
            if metric.reduces != "sum" or theirs is None:
                continue
            values = whole.values[metric.name]
            if not values.present().all() or not theirs.present().all():
                continue
            sums = np.bincount(places[[int(gpu) for gpu in whole.labels]], values.numbers)
            found = dict(zip(split.labels, theirs.numbers.tolist(), strict=True))
            expected = {str(code): each for code, each in enumerate(sums.tolist())}
            assert found == pytest.approx(expected), (name, metric.name)
            assert split.total.get(metric.name) == pytest.approx(whole.total.get(metric.name))
            compared += 1
    assert compared > 20


def test_a_stage_takes_the_mean_of_its_gpus(run: Run) -> None:
    split, whole = (
        query(run, at(run, f"?view=throughput&by={by}&columns=iteration_ns,exposed_comm_ns"))
        for by in ("pp", "gpu")
    )
    by_gpu = whole.values["exposed_comm_ns"].numbers.reshape(4, 8).mean(axis=1)
    assert split.values["exposed_comm_ns"].numbers == pytest.approx(by_gpu)
    mean = whole.values["iteration_ns"].numbers.reshape(4, 8).mean(axis=1)
    assert split.values["iteration_ns"].numbers == pytest.approx(mean)
    assert split.total == pytest.approx(whole.total)


def test_gpus_of_a_replica_share_its_tokens(run: Run, wording: Wording) -> None:
    """32 ranks of tp 2 x dp 4 x pp 4: four replicas, of 1000 tokens each."""
    step_s = query(run, at(run, "?view=overview")).total["iteration_ns"] / 1e9
    rate = 4 * 1000 / step_s
    throughput = query(run, at(run, "?view=throughput&of=tokens:1000"))
    assert throughput.total["tokens_per_s"] * 32 == pytest.approx(rate)
    assert f"{rate:,.0f} on 32 GPUs" in throughput.headline[0]
    table = run.table
    tokens = np.full(len(table), np.nan)
    steps = run.tree().split((), ("gpu", "iteration"))
    tokens[[steps.rows_of(each)[0] for each in range(len(steps))]] = 1000
    known = replace(run, table=table.with_measured({TOKENS: tokens}))
    headline = query(known, at(known, "?view=overview")).headline[0]
    assert f"{_thousands(rate)} tok/s" in headline
    found = figures_of_run(known)
    of_runs = with_settings(found, found.settings)
    assert of_runs.figures["run_tokens_per_s"] == pytest.approx(rate)
    assert of_runs.figures["tokens_per_s"] * 32 == pytest.approx(rate)
    # A stage is a part of each replica.
    stage = query(known, at(known, ":pp=1?order=pp&view=throughput"))
    wording.among(stage.notes, "8 GPUs", "replica")


def test_lanes_of_stages_are_those_of_their_first_gpus(run: Run) -> None:
    stages = query(run, at(run, "?view=timeline&by=pp&columns=lane_ns,gpu"))
    gpus = query(run, at(run, "?view=timeline&by=gpu"))
    busy = gpus.values["lane_ns"].numbers[::8].tolist()
    assert stages.values["lane_ns"].numbers.tolist() == busy
    assert any("28 more GPUs" in note for note in stages.notes)
    some = query(run, at(run, ":tp=1/dp=2?order=tp,dp&view=timeline&by=pp&columns=gpu"))
    assert some.values["gpu"].numbers.tolist() == [5, 13, 21, 29]


def test_every_view_takes_a_scope_of_coordinates(run: Run) -> None:
    for name in VIEWS:
        frame = frame_of(run, at(run, f":pp=2/tp=1?order=pp,tp&view={name}"))
        assert as_text(frame), name


def test_without_coordinates_there_is_no_such_split() -> None:
    run = pipeline_run(names_groups=False)[0]
    assert run.parallel is None
    with pytest.raises(UsageError, match="takes by="):
        query(run, at(run, "?view=overheads&by=pp"))
    with pytest.raises(UsageError, match="--parallel"):
        query(run, at(run, "?filter=pp:3"))
    told = located(run, "tp=2,pp=4")
    assert list(query(told, at(told, "?view=overheads&by=pp&sort=name")).labels) == list("0123")
    assert told.table.coordinates["pp"].tolist() == [rank // 8 for rank in range(32)]


def test_an_order_takes_known_dimensions_alone(run: Run) -> None:
    """A sentence with the way out, from any view and any place."""
    for text in ("?order=pp,tp", "?order=pp&view=kernels", ":pp=0?order=pp&view=timeline"):
        with pytest.raises(UsageError, match="no level pp: its ranks have no known layout; --p"):
            frame_of(sample_run(), at(run, text))
    with pytest.raises(UsageError, match="has no level ep: its ranks differ in "):
        frame_of(run, at(run, "?order=ep"))


def test_a_pivot_takes_a_dimension(run: Run) -> None:
    view = pivot(View("R", ("3",)), "tp")
    assert view.order[:3] == ("gpu", "tp", "iteration")
    assert list(query(run, view).labels) == ["1"]
    assert pivot(view, "gpu") == view


def test_groups_split_by_a_dimension(run: Run) -> None:
    whole = Groups.single(run.table, slice(0, len(run.table)))
    parts, owner = whole.split(("dp", "iteration"))
    assert len(parts) == 4 * 3
    assert owner.tolist() == [0] * 12
    assert parts.codes("dp").tolist() == [dp for dp in range(4) for _ in range(3)]
