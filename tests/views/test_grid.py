"""The grid: every rank at its coordinates, with nodes and slots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chopper_core.extensions.runs.run_set import open_runs
from chopper_core.ingest.open import open_run
from chopper_core.model import address
from chopper_core.model.charts import HeatMap
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run
from chopper_core.render import as_text
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.query import frame_of, query
from tests.charllm import directory
from tests.demo import demo_run
from tests.pipelines import pipeline_run
from tests.wording import Wording


def frame(run: Run, text: str = "") -> Frame:
    return frame_of(run, address.parse(f"R?view=grid{text}"))


def chart(found: Frame) -> HeatMap:
    (only,) = found.charts
    assert isinstance(only, HeatMap)
    return only


def test_ranks_stand_at_their_coordinates(wording: Wording) -> None:
    run, config, _ = pipeline_run()
    found = frame(run, "&of=edge_c")
    grid = chart(found)
    assert grid.rows == ("pp 0", "pp 1", "pp 2", "pp 3")
    assert grid.columns == tuple(f"{dp} {tp}" for dp in range(4) for tp in range(2))
    plain = query(run, address.parse("R?columns=edge_c"))
    by_gpu = dict(zip(plain.labels, plain.values["edge_c"].numbers.tolist(), strict=True))
    for rank in range(32):
        stage, place = rank // 8, rank % 8
        assert grid.numbers[stage, place] == pytest.approx(by_gpu[str(rank)])
        assert grid.opens is not None
        assert dict(grid.opens(stage, place).scope)["gpu"] == str(rank)
    hot = config.hot_rank
    wording(found.headline[0], f"GPU {hot} (pp 1, dp 2, tp 1, node 1)")
    beyond = found.values["edge_c_beyond_node"].numbers
    assert int(np.nanargmax(beyond)) == hot


@pytest.mark.sweep
def test_a_layout_of_another_order_moves_the_ranks() -> None:
    run, _, _ = pipeline_run("tp=2,pp=4,order=tp-pp-dp", names_groups=False)
    grid = chart(frame(run, "&of=busy_pct"))
    # Ranks of a node are a replica there: its stages are in one column block, apart from others.
    assert grid.rows == ("pp 0", "pp 1", "pp 2", "pp 3")
    assert [each for each in grid.columns if each] == [
        f"{dp} {tp}" for dp in range(4) for tp in range(2)
    ]
    # Each row crosses all four nodes, which stand apart.
    assert grid.columns.count("") == 3


def test_without_a_layout_nodes_are_rows(wording: Wording) -> None:
    run = pipeline_run(names_groups=False)[0]
    found = frame(run, "&of=busy_pct")
    assert chart(found).rows == ("node 0", "node 1", "node 2", "node 3")
    assert chart(found).numbers.shape == (4, 8)
    wording(found.notes[0], "coordinates")


def test_slots_come_from_a_file(tmp_path: Path, wording: Wording) -> None:
    folder = directory(tmp_path, 16, 20, ("gpu_power", "gpu_thermal"))
    lines = [f"{slot},{'front' if slot < 4 else 'rear'}\n" for slot in range(8)]
    (folder / "slots.csv").write_text("gpu,slot\n" + "".join(lines))
    run = open_run(str(folder), jobs=1)
    assert run.skipped == ()
    found = frame(run)
    wording(found.headline[1], "slot: front ")
    values = found.values["slot"]
    assert [values.cell(row) for row in (0, 3, 4, 15)] == ["front", "front", "rear", "rear"]
    heat = {gpu: run.sampled["edge_c"][gpu].mean for gpu in range(16)}
    front = np.mean([heat[gpu] for gpu in heat if gpu % 8 < 4])
    assert f"front {front:.4g} °C" in found.headline[1]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "gpu,slot\nx,front\n", "gpu,slot\n", ""])
def test_a_damaged_map_of_slots_is_named(text: str, tmp_path: Path) -> None:
    folder = directory(tmp_path, 2, 20, ("gpu_power",))
    (folder / "slots.csv").write_text(text)
    run = open_run(str(folder), jobs=1)
    assert not run.slots
    assert any(path.endswith("slots.csv") for path, _ in (*run.skipped, *run.failed))


@pytest.mark.sweep
def test_the_grid_of_samples_alone_prints(tmp_path: Path) -> None:
    run = open_run(str(directory(tmp_path, 16, 20)), jobs=1)
    found = frame(run, "&of=mean_power_w")
    assert chart(found).rows == ("node 0", "node 1")
    assert as_text(found)


def test_a_word_has_no_grid() -> None:
    run = pipeline_run()[0]
    with pytest.raises(UsageError):
        query(run, address.parse("R?view=grid&of=no_such"))


def test_rows_are_figures_where_several_are_asked_for() -> None:
    run, config, _ = pipeline_run()
    found = frame(run, "&of=edge_c,gfx_mhz")
    map_of = chart(found)
    assert map_of.rows == ("edge °C", "gfx MHz")
    assert map_of.columns.count("") == 3 and len(map_of.columns) == 35
    for row, name in enumerate(("edge_c", "gfx_mhz")):
        plain = frame(run, f"&of={name}").values[name].numbers
        expected = 100 * (plain / np.median(plain) - 1)
        there = [place for place, label in enumerate(map_of.columns) if label]
        assert map_of.numbers[row, there] == pytest.approx(expected)
        assert int(np.nanargmax(np.abs(map_of.numbers[row, there]))) == config.hot_rank
    assert len(found.headline) == 2


@pytest.mark.sweep
def test_several_figures_of_samples_alone(tmp_path: Path) -> None:
    run = open_run(str(directory(tmp_path, 16, 20)), jobs=1)
    found = frame(run, "&of=mean_power_w,mean_hot_c")
    assert chart(found).numbers.shape == (2, 17)
    assert found.target(3).filter == "gpu:3"
    for text in (",", "mean_power_w,no_such"):
        with pytest.raises((UsageError, NothingToShow)):
            query(run, address.parse(f"R?view=grid&of={text}"))


def test_expert_ranks_stand_beside_their_replicas() -> None:
    run, _, _ = pipeline_run("tp=2,pp=4,ep=2", names_groups=False)
    grid = chart(frame(run, "&of=busy_pct"))
    assert grid.x_title == "dp/ep tp"
    assert grid.columns == tuple(f"{dp}/{dp % 2} {tp}" for dp in range(4) for tp in range(2))


@pytest.mark.sweep
def test_runs_are_rows_of_one_grid(tmp_path: Path) -> None:
    for name, count in (("a", 16), ("b", 8)):
        directory(tmp_path / name, count, 20, ("gpu_power", "gpu_thermal"))
    runs = open_runs("set", [str(tmp_path)], jobs=1)
    while runs.reading(True).waiting:
        pass
    for text in ("view=grid", "view=power&by=gpu&columns=mean_hot_c"):
        found = query(runs, address.parse(f"set?{text}"))
        map_of = chart(found)
        assert map_of.rows == ("a", "b")
        assert map_of.columns == (*map(str, range(8)), "", *map(str, range(8, 16)))
        one = open_run(str(tmp_path / "a"), jobs=1)
        heat = [one.sampled["edge_c"][gpu].mean for gpu in range(16)]
        assert np.delete(map_of.numbers[0], 8) == pytest.approx(heat)
        assert np.isnan(map_of.numbers[1, 8:]).all()


@pytest.mark.parametrize("dimension", ["pp", "tp"])
def test_telemetry_alone_splits_by_a_coordinate(dimension: str, tmp_path: Path) -> None:
    folder = directory(tmp_path, 16, 20, ("gpu_power", "gpu_thermal"))
    run = open_run(str(folder), jobs=1, overrides=overrides_of(parallel="tp=2,pp=2"))
    whole = frame_of(run, address.parse("R?view=power&base=total"))
    split = frame_of(run, address.parse(f"R?view=power&by={dimension}&base=total"))
    codes = np.array([rank // 8 if dimension == "pp" else rank % 2 for rank in range(16)])
    for name, how in (
        ("mean_power_w", np.sum),
        ("peak_power_w", np.max),
        ("sampled_energy_j", np.sum),
    ):
        numbers = whole.values[name].numbers
        expected = [how(numbers[codes == code]) for code in (0, 1)]
        assert split.values[name].numbers == pytest.approx(expected), name
        assert split.total[name] == pytest.approx(whole.total[name])
    opened = frame_of(run, split.target(1))
    assert [int(label) for label in opened.labels] == np.flatnonzero(codes == 1).tolist()
    with pytest.raises(UsageError, match="takes by="):
        frame_of(run, address.parse("R?view=power&by=microbatch"))


def test_gpus_in_one_place_differ_in_several_figures() -> None:
    run = demo_run()
    found = frame(run)
    tree = query(run, address.parse("R?columns=hotspot_c,gfx_mhz,exposed_comm_ns"))
    assert chart(found).rows == ("hot °C", "gfx MHz", "busy W", "util %", "busy %", "exp.comm")
    for name in ("hotspot_c", "gfx_mhz", "exposed_comm_ns"):
        assert found.values[name].numbers.tolist() == tree.values[name].numbers.tolist()
    assert "exposed communication" in found.headline[0] and "GPU 5" in found.headline[1]
