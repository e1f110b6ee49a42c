"""Heat map: every cell against the tree's own figure and a plain loop."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.charts import HeatMap
from chopper_core.model.run import Run
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import others_median
from chopper_core.views import heatmap
from chopper_core.views.query import query
from tests.programs.bench.runs import source_of
from tests.support import Row, run_of
from tests.wording import Wording


def map_of(run: Run, address: str) -> HeatMap:
    picture, *_ = query(run, parse(address)).charts
    assert isinstance(picture, HeatMap)
    return picture


def test_a_sum_against_a_plain_loop(run: Run) -> None:
    table = run.table
    picture = map_of(run, "R:gpu=2/iteration=11?view=heatmap&of=exposed_comm_ns")
    sums: dict[tuple[str, str], int] = {}
    for row in range(len(table)):
        if table.iteration[row] == 11:
            layer = "unlabelled" if table.layer[row] < 0 else str(table.layer[row])
            place = (f"GPU {table.gpu[row]}", layer)
            sums[place] = sums.get(place, 0) + int(table.exposed_comm_ns[row])
    assert picture.unit == "ms" and len(sums) == picture.numbers.size == 8 * 33
    for place, gpu in enumerate(picture.rows):
        for at, layer in enumerate(picture.columns):
            assert picture.numbers[place, at] == pytest.approx(sums[(gpu, layer)] / 1e6)


def test_of_very_many_cells_the_largest_labels_are_there(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Each GPU has kernels of its own, of which the longest of all GPUs are kept."""
    rows = [
        Row(10_000 * at, 10 * at + gpu + 1, gpu=gpu, iteration=1, kernel=f"k{gpu}.{at}")
        for gpu in range(4)
        for at in range(50)
    ]
    run = run_of(rows)
    monkeypatch.setattr(heatmap, "_MOST_CELLS", 4 * 10)
    frame = query(run, parse("R?view=heatmap&by=kernel&of=kernel_ns"))
    wording.among(frame.notes, "the table", "10 of 200 kernels")
    longest = sorted(rows, key=lambda row: -row.duration)[:10]
    assert {row.gpu for row in longest} == {0, 1, 2, 3}
    for gpu in range(4):
        own = [row.duration for row in longest if row.gpu == gpu]
        found = frame.row(gpu)
        assert (found["min_kernel_ns"], found["max_kernel_ns"]) == (min(own), max(own))
    picture = map_of(run, "R?view=heatmap&by=kernel&of=kernel_ns")
    assert set(picture.columns) == {row.kernel for row in longest}


@pytest.mark.parametrize("of", ["gfx_mhz", "mfma_util_pct", "busy_pct"])
@pytest.mark.parametrize("by", ["layer", "operation", "phase"])
def test_each_cell_is_the_figure_of_its_node(run: Run, of: str, by: str) -> None:
    picture = map_of(run, f"R:iteration=12?order=iteration&view=heatmap&of={of}&by={by}")
    compared = 0
    for place, gpu in enumerate(picture.rows[::5]):
        path = f"R:iteration=12/gpu={gpu.removeprefix('GPU ')}?order=iteration,gpu,{by}"
        frame = query(run, parse(f"{path}&columns={of}"))
        for number, label in enumerate(frame.labels):
            at = picture.columns.index("unlabelled" if label == "none" else label)
            value = frame.row(number)[of]
            found = picture.numbers[5 * place, at]
            assert np.isnan(found) if value is None else found == pytest.approx(value)
            compared += value is not None
    assert compared > 2


def test_the_rows_say_how_each_gpu_spreads(run: Run, wording: Wording) -> None:
    address = "R?view=heatmap&of=gfx_mhz&by=operation"
    frame, picture = query(run, parse(address)), map_of(run, address)
    for place in range(8):
        row, own = frame.row(place), picture.numbers[place]
        assert row["min_gfx_mhz"] == pytest.approx(np.nanmin(own))
        assert row["max_gfx_mhz"] == pytest.approx(np.nanmax(own))
        assert row["median_gfx_mhz"] == pytest.approx(np.nanmedian(own))
        assert picture.columns[int(np.nanargmin(own))] == row["min_at"]
        apart = {}
        for at, label in enumerate(picture.columns):
            others = [v for other, v in enumerate(picture.numbers[:, at]) if other != place]
            known = [value for value in others if np.isfinite(value)]
            if known and np.isfinite(own[at]):
                apart[label] = own[at] - statistics.median(known)
        largest = max(apart, key=lambda label: abs(apart[label]))
        assert row["apart_at"] == largest
        assert row["apart_gfx_mhz"] == pytest.approx(apart[largest])
    wording(frame.headline[0], "GPU 5 ", "operation all_reduce")
    address = frame.addresses(5)
    assert render(parse(address)) == address
    there = query(run, parse(address))
    assert dict(there.view.scope) == {"gpu": "5"} and there.level == "operation"


def test_medians_of_the_others() -> None:
    random = np.random.default_rng(3)
    numbers = random.integers(0, 5, (7, 40)).astype(np.float64)
    numbers[random.random(numbers.shape) < 0.4] = np.nan
    found = others_median(numbers)
    for column in range(40):
        for row in range(7):
            others = np.delete(numbers[:, column], row)
            known = others[np.isfinite(others)]
            expected = np.median(known) if len(known) else np.nan
            assert found[row, column] == pytest.approx(expected, nan_ok=True)


def test_what_has_no_map_is_said(run: Run, wording: Wording) -> None:
    with pytest.raises(UsageError, match="unknown column"):
        query(run, parse("R?view=heatmap&of=nothing"))
    with pytest.raises(UsageError, match="gfx_mhz is unknown for the whole scope"):
        query(run_of([Row(0, 5)]), parse("R?view=heatmap&of=gfx_mhz"))
    alone = query(run_of([Row(0, 5)]), parse("R?view=heatmap"))
    assert alone.row(0)["apart_pct"] is None
    wording(alone.headline[0], "only one GPU")


def test_the_usual_split_is_the_first_that_tells_anything(run: Run) -> None:
    assert map_of(run, "R?view=heatmap").x_title == "layer"
    assert map_of(run, "R:gpu=0/layer=3?order=gpu,layer&view=heatmap").x_title == "iteration"
    within = "R:gpu=0/iteration=11/layer=3?order=gpu,iteration,layer&view=heatmap"
    assert map_of(run, within).x_title == "operation"


def test_of_many_gpus_quantiles_are_drawn() -> None:
    rows = [
        Row(0, 100 + (7 * gpu) % 90 + layer, gpu=gpu, layer=layer, stream=layer)
        for gpu in range(90)
        for layer in range(3)
        if gpu != 4 or layer
    ]
    run = run_of(rows)
    address = "R?view=heatmap&of=kernel_ns"
    picture = map_of(run, address)
    assert picture.rows == ("least", "p5", "p25", "median", "p75", "p95", "largest")
    assert picture.has_own_rows
    assert len(query(run, parse(address))) == 90
    for layer in range(3):
        own = [row.duration / 1e6 for row in rows if row.layer == layer]
        expected = np.quantile(own, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1))
        assert picture.numbers[:, layer] == pytest.approx(expected)


def test_under_the_quantiles_the_gpus_are_folded_by_node() -> None:
    rows = [
        Row(0, 100 + (7 * gpu) % 90 + layer, gpu=gpu, layer=layer, stream=layer)
        for gpu in range(90)
        for layer in range(3)
    ]
    run = run_of(rows)
    gpus = tuple(replace(gpu, rank=gpu.index) for gpu in run.gpus)
    sources = tuple(replace(source_of(rank, 3), host=f"node{rank // 8}") for rank in range(90))
    picture = map_of(replace(run, gpus=gpus, sources=sources), "R?view=heatmap&of=kernel_ns")
    assert picture.rows[7:] == tuple(f"node{node}" for node in range(12))
    for node in range(12):
        for layer in range(3):
            own = [r.duration / 1e6 for r in rows if r.layer == layer and r.gpu // 8 == node]
            assert picture.numbers[7 + node, layer] == pytest.approx(np.median(own))


def test_what_is_outside_of_steps_is_not_compared(run: Run, wording: Wording) -> None:
    found = query(run, parse("R?view=heatmap&by=iteration"))
    assert "none" not in found.headline[0]
    wording.among(found.notes, "outside steps")
    assert "none" not in {found.row(number)["apart_at"] for number in range(len(found))}
    alone = query(run, parse("R:gpu=0/iteration=none?view=heatmap&by=iteration"))
    assert not any("outside steps" in note for note in alone.notes)
