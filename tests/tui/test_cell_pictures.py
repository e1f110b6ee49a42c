"""Bars of parts and meters in the cells of a table, and which curves are worth a chart."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.analyses.signal_changes import varies
from chopper_core.model.address import parse
from chopper_core.model.charts import BarChart
from chopper_core.model.signals import Signal
from chopper_core.model.view import View, with_view
from chopper_core.render.cells import cell_width
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.util.errors import NothingToShow
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_tui.draw.axes import Axis
from chopper_tui.draw.pieces import Pieces
from chopper_tui.draw.table import plan, repeated_by_columns
from chopper_tui.screen_data import screen_data
from tests.demo import demo_run
from tests.support import Row, run_of

COLOURED = UNICODE.coloured(True)


def cells_of(pieces: Pieces, char: str) -> dict[str, int]:
    """Ink → how many cells of a picture are in it."""
    found: dict[str, int] = {}
    for text, ink in pieces:
        if text.strip() and set(text) == {char}:
            found[ink] = found.get(ink, 0) + len(text)
    return found


@pytest.mark.parametrize(
    ("asked", "column"),
    [
        ("R?view=overheads", "elapsed_ns"),
        ("R?view=launch", "launch_overhead_ns"),
        ("R?view=compare&base=gpu=0", ""),
        ("R:gpu=5?view=compare&base=gpu=0", "elapsed_ns_delta"),
    ],
)
def test_a_chart_that_repeats_a_column_is_found(asked: str, column: str) -> None:
    frame = query(replace(demo_run(), name="R"), parse(asked))
    charts = repeated_by_columns(frame)
    assert [*charts] == [each for each in charts if isinstance(charts[each], BarChart)]
    if not column:
        return
    name = next(each for each in charts if column.removesuffix("_delta") in each)
    drawn = np.nansum([each.numbers for each in charts[name].series], axis=0)
    rows = [frame.labels.index(label) for label in charts[name].labels]
    assert drawn * 1e6 == pytest.approx(frame.values[name].known(missing=0.0)[rows], abs=1.0)


def test_a_bar_of_parts_is_as_long_as_its_row_and_its_parts() -> None:
    frame = query(demo_run(), parse("R?view=overheads"))
    layout = plan(frame, 150, COLOURED, bars=repeated_by_columns(frame))
    column = next(each for each in layout.columns if each.parts is not None)
    assert column.name == "elapsed_ns" and column.parts is not None
    longest = frame.values["elapsed_ns"].known().max()
    for row in range(10):
        cells = cells_of(layout.row(row, [], cursor=False), "▆")
        share = frame.values["elapsed_ns"].known()[row] / longest
        assert sum(cells.values()) == pytest.approx(share * column.bar, abs=1)
        parts = dict(zip(column.parts.inks, column.parts.parts[:, row], strict=True))
        for ink, count in cells.items():
            assert count == pytest.approx(parts[ink] / column.parts.span * column.bar, abs=1)
    names = "".join(text for text, _ in layout.legend(200))
    assert "ideal" in names and "low clock" in names
    plain = plan(frame, 150, ASCII, bars=repeated_by_columns(frame)).row(0, [], cursor=False)
    assert all(text.isascii() for text, _ in plain)


def test_meters_fill_up_to_their_limits_in_the_ink_of_their_state() -> None:
    data = screen_data(demo_run(), parse("demo_data/fsdp2?view=power"), is_complete=True)
    layout = plan(data.frame, 114, COLOURED, full=data.full)
    metered = {each.name: each for each in layout.columns if each.fulls is not None}
    assert metered.keys() == {"mean_power_w", "mean_hotspot_c", "mean_gfx_mhz"}
    assert not layout.sparks
    for row, label in enumerate(data.frame.labels):
        inks = cells_of(layout.row(row, [], cursor=False), "■")
        power, limit = (data.frame.values[n].at(row) for n in ("mean_power_w", "limit_w"))
        assert power is not None and limit is not None
        heat = data.frame.values["mean_hotspot_c"].at(row)
        clock = data.frame.values["mean_gfx_mhz"].at(row)
        assert heat is not None and clock is not None
        filled = round(8 * power / limit) + round(8 * heat / 105) + round(8 * clock / 2100)
        assert inks["shade"] == 24 - filled
        assert ("alarm" in inks) == (label == "5") == (heat >= 95)
        assert ("warning" in inks) == (power >= 0.9 * limit)
    # On the cursor's row pictures keep their inks.
    assert "alarm" in cells_of(layout.row(5, [], cursor=True), "■")


def test_rows_without_a_class_have_the_states_of_their_time() -> None:
    data = screen_data(demo_run(), parse("demo_data/fsdp2"))
    chart = data.bars["share_pct"]
    sums = np.sum([each.numbers for each in chart.series], axis=0)
    assert sums == pytest.approx(data.frame.values["elapsed_ns"].known())
    of_operations = screen_data(demo_run(), parse("demo_data/fsdp2?order=operation"))
    assert of_operations.inks and "share_pct" not in of_operations.bars


def test_a_flat_signal_has_no_chart() -> None:
    run = demo_run()
    signal: Signal = run.measured["gfx_mhz"]
    steady = {
        gpu: replace(curve, integral=1500.0 * curve.covered_ns)
        for gpu, curve in signal.curves.items()
    }
    measured = {**run.measured, "gfx_mhz": replace(signal, curves=steady)}
    assert varies(run, "gfx_mhz")
    assert not varies(replace(run, name="steady", measured=measured, slots={}), "gfx_mhz")


def test_a_signal_that_is_0_or_the_same_has_no_column() -> None:
    rows = [Row(start=start, duration=50) for start in range(0, 10_000, 400)]
    # What a GPU does before its first activity is unknown, which isn't something.
    late = [Row(start=start, duration=50, gpu=1) for start in range(6_000, 10_000, 400)]
    for made in (rows, [*rows, *late]):
        data = screen_data(run_of(made), parse("made.json"))
        assert "comm_pct" in [each.signal.name for each in data.signals]
        assert data.columns_of_signals == 1
    assert screen_data(demo_run(), parse("demo_data/fsdp2")).columns_of_signals == 2


@given(
    low=st.floats(-1e6, 1e6),
    span=st.floats(1e-3, 1e6),
    most=st.integers(1, 12),
)
def test_an_axis_has_three_ticks_within_it(low: float, span: float, most: int) -> None:
    axis = Axis.over(low, low + span, most)
    assert len(axis.places) >= 3
    assert all(low - 1e-6 * span <= each <= low + span * (1 + 1e-6) for each in axis.places)


@pytest.mark.parametrize("name", VIEWS)
def test_a_heading_is_above_its_figures_and_no_longer_than_its_column(name: str) -> None:
    late = [Row(9 * place, 2 + place, iteration=0, operation=f"o{place}") for place in range(4)]
    for run in (demo_run(), run_of(late)):
        with suppress(NothingToShow):
            frame = query(run, with_view(View(run.name), name))
            for width in range(60, 201, 10):
                layout = plan(frame, width, COLOURED, bars=repeated_by_columns(frame))
                for column in layout.columns:
                    assert cell_width(column.header) <= column.cells
                assert sum(cell_width(text) for text, _ in layout.header()) <= width
