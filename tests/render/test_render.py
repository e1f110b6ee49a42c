"""The renderings of a frame: one set of figures, four formats, no trust in names."""

from __future__ import annotations

import csv
import io
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import Row, run_of, sample_run

from chopper_core import columns as metrics
from chopper_core.columns import METRICS, raw_counter
from chopper_core.model.address import parse
from chopper_core.model.hardware import CounterInfo
from chopper_core.model.table import Kind
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.render import FORMATS, info, render_frame
from chopper_core.render.cells import cell_width, display_name, elide, scale_of
from chopper_core.render.exchange import json_text
from chopper_core.render.glyphs import ASCII, UNICODE, bar, glyphs_for, sparkline
from chopper_core.util.escape import clean
from chopper_core.views.query import query
from tests.wording import Wording

RUN = sample_run()
STANDARD = {
    "kernels", "kernel_ns", "elapsed_ns", "compute_ns", "overlap_ns", "exposed_comm_ns",
    "exposed_copy_ns", "idle_ns", "hidden_ns", "share_pct", "busy_pct",
}  # fmt: skip


@pytest.mark.parametrize(
    "address",
    ["s", "s:gpu=1", "s:gpu=1/iteration=11/phase=backward/layer=2", "s?order=kernel",
     "s:gpu=1/iteration=11/phase=backward/layer=2/operation=attn_fa/kernel=FmhaFwdKernel<128>"],
)  # fmt: skip
def test_json_follows_its_schema(address: str) -> None:
    frame = query(RUN, replace(parse(address), is_total=True))
    document = json.loads(render_frame(frame, "json"))
    assert document["schema"] == "chopper.frame/2"
    assert document["address"] == frame.address
    assert document["level"] == frame.level
    names = [column["name"] for column in document["columns"]]
    assert set(names) >= STANDARD
    for column in document["columns"]:
        assert set(column) == {"name", "unit", "title"}
    for row in document["rows"]:
        assert set(row) == {"name", "address", *names}
        assert parse(row["address"]).path[:-1] == parse(address).path
        assert all(row[name] is None or isinstance(row[name], int | float) for name in names)
    assert set(document["total"]) == set(names)
    for state in ("elapsed_ns", "idle_ns", "kernel_ns", "kernels"):
        assert document["total"][state] == sum(row[state] for row in document["rows"])


def test_a_limit_is_said(wording: Wording) -> None:
    frame = query(RUN, View("s"))
    document = json.loads(render_frame(frame, "json", limit=1))
    assert len(document["rows"]) == 1
    wording.among(document["notes"], "3 of 4 rows", "limit of 1")
    wording.among(render_frame(frame, "text", limit=1), "3 of 4 rows")
    wording.among(render_frame(frame, "markdown", limit=1), "3 of 4 rows")


def test_csv_holds_the_figures_of_json() -> None:
    frame = query(RUN, View("s", ("1", "11", "backward")))
    rows = json.loads(render_frame(frame, "json"))["rows"]
    table = list(csv.DictReader(io.StringIO(render_frame(frame, "csv"))))
    rows = [{**row, "base": frame.base} for row in rows]
    assert [{key: str(value) for key, value in row.items()} for row in rows] == table


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200, 400])
@pytest.mark.parametrize("address", ["s", "s:gpu=1/iteration=11/phase=backward", "s?order=kernel"])
def test_text_keeps_to_its_width(width: int, address: str) -> None:
    text = render_frame(query(RUN, parse(address)), "text", width=width)
    table = text.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= width
    assert "time" in table[1]


def test_columns_that_somebody_asks_for_all_stay() -> None:
    view = View("s", columns=tuple(METRICS))
    header = render_frame(query(RUN, view), "text", width=80).splitlines()[1]
    assert all(metric.title in header for metric in METRICS.values())


def test_the_same_cells_in_text_and_markdown() -> None:
    frame = query(RUN, View("s", ("1",), columns=("elapsed_ns", "idle_ns", "busy_pct")))
    text = render_frame(frame, "text").splitlines()[2]
    markdown = render_frame(frame, "markdown").splitlines()[4]
    assert text.split()[:4] == [cell.strip() for cell in markdown.split("|")[1:5]]


def test_generated_data_says_so_everywhere(wording: Wording) -> None:
    frame = query(RUN, View("s"))
    for format_name in ("text", "markdown", "json"):
        wording.among(render_frame(frame, format_name), "generated data")


@given(st.text(max_size=60))
def test_names_are_data_and_nothing_else(name: str) -> None:
    run = run_of([Row(0, 10, Kind.COMPUTE, kernel=name or "x", operation="op")])
    view = View("r", ("0", "none", "forward", "none", "op"))
    frame = query(run, view)
    text = render_frame(frame, "text", width=80)
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(cell_width, text.split("\n\n")[0].splitlines())) <= 80
    assert json.loads(render_frame(frame, "json"))["rows"][0]["name"] == (name or "x")
    for format_name in FORMATS:
        render_frame(frame, format_name)


def test_escape_codes_are_written_out() -> None:
    assert clean("a\x1b[31mb\u202ec\n") == "a\\x1b[31mb\\u202ec\\x0a"


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::F>(int, at::native::F)",
            "vectorized_elementwise_kernel<4, F>",
        ),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64", "Cijk_Alik_Bljk_BBS_BH_MT256x256x64"),
        ("Memcpy HtoD (Host -> Device)", "Memcpy HtoD (Host -> Device)"),
        ("(odd)", "(odd)"),
        ("unbalanced)", "unbalanced)"),
        ("none", "unlabelled"),
    ],
)
def test_kernels_are_shown_without_noise(label: str, shown: str) -> None:
    assert display_name(label, "kernel") == shown


@pytest.mark.parametrize(
    ("unit", "largest", "cell"),
    [("ns", 9e10, "90.000"), ("ns", 9e9, "9000.000"), ("ns", 9e4, "90.000"), ("ns", 900, "900"),
     ("B", 2e9, "2.000"), ("%", 12.34, "12.3"), ("", 12, "12")],
)  # fmt: skip
def test_figures_read_well(unit: str, largest: float, cell: str) -> None:
    metric = next(metric for metric in METRICS.values() if metric.unit == unit)
    assert scale_of(metric, largest).cell(largest) == cell


def test_missing_figures_are_not_zero() -> None:
    frame = query(RUN, View("s", columns=("bytes", "elapsed_ns")))
    assert json.loads(render_frame(frame, "json"))["rows"][0]["bytes"] is None
    assert "–" in render_frame(frame, "text").splitlines()[2]
    assert render_frame(frame, "csv").splitlines()[1].split(",")[1] == ""


@given(st.text(max_size=50), st.integers(0, 60))
def test_elision_keeps_to_its_width(text: str, width: int) -> None:
    assert cell_width(elide(clean(text), width, UNICODE)) <= width


def test_bars_and_sparklines_show_what_they_mean() -> None:
    import numpy as np

    assert bar(1.0, 4, UNICODE) == "████"
    assert bar(0.0, 4, UNICODE) == "    "
    assert bar(0.0001, 4, UNICODE) == "▏   "
    assert bar(0.5, 4, ASCII) == "##  "
    assert sparkline(np.array([0.0, 0.5, 1.0, np.nan]), UNICODE) == "▁▅█ "


def test_what_the_stream_cannot_write_is_drawn_in_ascii() -> None:
    assert glyphs_for("utf-8") is UNICODE
    assert glyphs_for("ascii") is ASCII
    assert glyphs_for("iso-8859-1") is ASCII
    assert glyphs_for(None) is ASCII
    text = render_frame(query(RUN, View("s", sort="-elapsed_ns")), "text", glyphs=ASCII, width=100)
    assert text.isascii() and " v " in text, "the arrow is a letter, and no part of the unit"


def test_scripts_get_a_pandas_table() -> None:
    frame = query(RUN, View("s", columns=("elapsed_ns", "bytes"), is_total=True))
    table = frame.to_pandas()
    assert table["name"].tolist() == list(frame.labels)
    assert int(table["elapsed_ns"].sum()) == frame.total["elapsed_ns"]
    assert table["bytes"].isna().all()


def test_every_unit_has_digits_for_every_size() -> None:
    for unit in Unit:
        assert unit.scales[-1].least == 0 and unit.scales == tuple(
            sorted(unit.scales, key=lambda scale: -scale.least)
        )
    with pytest.raises(ValueError, match="parsec"):
        metrics.column("""far | parsec | far
            How far.""")


@pytest.mark.parametrize(
    ("unit", "figures", "cell"),
    [("", [3.0], "3"), ("", [3.5], "3.50"), ("%", [12.34], "12.3"), ("KB", [96.0], "96"),
     ("KB", [0.25], "0.25"), ("KB", [1234.5], "1234"), ("FLOP/B", [7.25], "7.25")],
)  # fmt: skip
def test_counters_of_files_keep_their_digits(unit: str, figures: list[float], cell: str) -> None:
    info = CounterInfo("DerivedThing", unit)
    scale = scale_of(raw_counter(info.name, info), max(figures), figures[0].is_integer())
    assert scale.cell(figures[0]) == cell
    assert scale.text == unit


def test_json_escapes_what_is_not_seen() -> None:
    document = {"name": "a\ufe0f\u3164\x9b\U000e0041\u202eé"}
    text = json_text(document)
    assert r"a\ufe0f\u3164\u009b\udb40\udc41\u202eé" in text and json.loads(text) == document


def test_the_kinds_of_charts_in_json_are_an_interface() -> None:
    """Programs tell charts by `kind`: a class may be renamed, its kind may not."""
    from chopper_core.model import charts
    from chopper_core.model.view import Interval
    from chopper_core.render.exchange import _KINDS

    classes = {each.__name__ for each in get_args(charts.Chart)} | {Interval.__name__}
    kinds = {"BarChart", "HeatMap", "Lanes", "LineChart", "Rows", "Stretch"}
    kinds |= {"Cards", "Composition", "GpuLanes", "Icicle", "MemoryChart", "Roofline", "StepBars"}
    assert {_KINDS.get(name, name) for name in classes} == kinds


@pytest.mark.parametrize("product", ["NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X", "MI350X"])
def test_info_has_null_for_what_is_unknown_of_the_hardware(product: str) -> None:
    run = sample_run()
    run = replace(run, gpus=tuple(replace(gpu, hardware=product) for gpu in run.gpus))
    known = json.loads(info.info_json(run))["hardware"]
    assert run.hardware is not None and known["clock_mhz"] == run.hardware.clock_mhz
    assert known["memory_mhz"] == run.hardware.memory_mhz
    assert ("MI300X" in product) == (known["memory_mhz"] is not None)
