"""Each column is written in the unit of its own figures, and integers without decimals."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.columns import Values, computed_column
from chopper_core.model.address import parse
from chopper_core.render.cells import ColumnText, column_texts
from chopper_core.render.glyphs import UNICODE
from chopper_core.views.query import query
from tests.support import Row, run_of


def test_a_long_span_leaves_the_unit_of_other_columns() -> None:
    """Three kernels of some ms, 35 hours apart."""
    hours = 35 * 3_600_000_000_000
    run = run_of([Row(step * hours, 5_000_000, iteration=step) for step in range(3)])
    frame = query(run, parse("R?order=iteration&columns=elapsed_ns,kernel_ns,idle_ns"))
    titles = [text.header for text in column_texts(frame)]
    assert titles == ["time h", "kernel time ms", "idle h"]


def test_the_s_of_a_plural_is_no_unit() -> None:
    run = run_of([Row(0, 5_000_000, iteration=0), Row(60_000_000_000, 2_000_000, iteration=1)])
    frame = query(run, parse("R?view=timeline&at=60000"))
    assert "starts s" in [text.header for text in column_texts(frame)]


@pytest.mark.parametrize(
    ("title", "header"),
    [
        ("W", "W"),
        ("peak W", "peak W"),
        ("W busy", "W busy"),
        ("NEW", "NEW W"),
        ("power", "power W"),
    ],
)
def test_a_header_has_its_unit_once(title: str, header: str) -> None:
    metric = computed_column("some_w", "W", title, "Power.")
    assert ColumnText(metric, metric.unit.scale(500.0, is_whole=True)).header == header


def test_integers_have_no_decimals() -> None:
    frame = query(run_of([Row(0, 10, iteration=0)]), parse("R?columns=kernels"))
    for numbers, total, text in (([168.0], 168.0, "168"), ([168.5], 168.5, "168.5"),
                                 ([168.0], 168.5, "168.0")):  # fmt: skip
        values = Values(np.array(numbers))
        shown = replace(frame, values={"kernels": values}, total={"kernels": total})
        (column,) = column_texts(shown)
        assert column.scale.cell(values.at(0)) == text


def test_the_largest_figure_of_a_column_has_four_digits_and_no_amount_looks_like_none() -> None:
    frame = query(run_of([Row(0, 10, iteration=0)]), parse("R?columns=kernel_ns,start_ns"))
    for numbers, texts in (
        ([1_505_504_000, 740_049_000, 4_000, 0], ["1506", "740", "<1", "0"]),
        ([739_958_000, 4_000, 50_000, 51_000], ["740.0", "<0.1", "0.1", "0.1"]),
        ([8_713_400, 400], ["8.713", "<0.001"]),
    ):
        values = Values(np.array(numbers))
        columns = {"kernel_ns": values, "start_ns": values}
        labels = tuple(map(str, numbers))
        texts_of = [*column_texts(replace(frame, labels=labels, values=columns))]
        assert [texts_of[0].cell(values, row, UNICODE) for row in range(len(texts))] == texts
        # Moments keep what tells them apart.
        assert texts_of[1].cell(values, 0, UNICODE) == f"{numbers[0] / 1e6:.3f}"
