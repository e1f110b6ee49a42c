"""Each column is written in the unit of its own figures, and integers without decimals."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Values
from chopper_core.model.address import parse
from chopper_core.render.cells import column_texts
from chopper_core.views.query import query
from tests.support import Row, run_of


def test_a_long_span_leaves_the_unit_of_other_columns() -> None:
    """Two kernels of some ms, 70 hours apart."""
    hours = 70 * 3_600_000_000_000
    run = run_of([Row(0, 5_000_000, iteration=0), Row(hours, 2_000_000, iteration=1)])
    frame = query(run, parse("R?order=iteration&columns=elapsed_ns,kernel_ns,idle_ns"))
    titles = [text.header for text in column_texts(frame)]
    assert titles == ["time h", "kernel time ms", "idle h"]


def test_integers_have_no_decimals() -> None:
    frame = query(run_of([Row(0, 10, iteration=0)]), parse("R?columns=kernels"))
    for numbers, total, text in (([168.0], 168.0, "168"), ([168.5], 168.5, "168.50"),
                                 ([168.0], 168.5, "168.00")):  # fmt: skip
        values = Values(np.array(numbers))
        shown = replace(frame, values={"kernels": values}, total={"kernels": total})
        (column,) = column_texts(shown)
        assert column.scale.cell(values.at(0)) == text
