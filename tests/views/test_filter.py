"""The filter language on a small frame."""

from __future__ import annotations

import pytest
from support import Row, run_of, sample_run

from chopper_core.model.address import parse
from chopper_core.model.table import Kind
from chopper_core.model.view import View, complete_order
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from tests.tui.explorer import measured_run
from tests.wording import Wording

RUN = run_of(
    [
        Row(0, 1_000, operation="attn_fa", kernel="FmhaFwd"),
        Row(1_000, 2_000_000, operation="mlp_up", kernel="Cijk_MT256"),
        Row(2_001_000, 30, Kind.COPY, operation="dl", kernel="Memcpy HtoD"),
    ]
)


def labels(text: str) -> set[str]:
    view = View("r", order=complete_order(("operation",)), filter=text)
    return set(query(RUN, view).labels)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", {"attn_fa", "mlp_up", "dl"}),
        ("ATTN", {"attn_fa"}),
        ("^(attn|mlp)_", {"attn_fa", "mlp_up"}),
        ("!mlp", {"attn_fa", "dl"}),
        ("time>1ms", {"mlp_up"}),
        ("time ms>1", {"mlp_up"}),
        ("Time  ms > 1", {"mlp_up"}),
        ("time µs>=1 !mlp", {"attn_fa"}),
        ("mlp time ms>1", {"mlp_up"}),
        ("attn time ms>1", set()),
        ("% > 50", {"mlp_up"}),
        ("OPERATION=MLP_UP", {"mlp_up"}),
        ("operation!=mlp_up", {"attn_fa", "dl"}),
        ("elapsed_ns<=1us", {"attn_fa", "dl"}),
        ("kernels=0", {"dl"}),
        ("time>0.5us !mlp", {"attn_fa"}),
        ("share_pct>50%", {"mlp_up"}),
        ("bytes>0", set()),
        ("nothing_like_it", set()),
    ],
)
def test_terms_choose_rows(text: str, left: set[str]) -> None:
    assert labels(text) == left


@pytest.mark.parametrize("text", [".*gemm.*fp8", "(.*)*z", "(<bf16,|,gemm.?)+$", ".*.*.*no"])
def test_no_pattern_takes_long_on_a_long_name(text: str) -> None:
    """Each kept Python's own expressions busy for minutes, over one name as compilers write it."""
    name = "void elementwise_kernel<bf16, gemm<float>>(int, ...) " * 110
    run = run_of([Row(0, 1_000, kernel=name), Row(1_000, 10, kernel="gemm_of_fp8")])
    view = View("r", order=complete_order(("kernel",)), filter=text)
    assert set(query(run, view).labels) == ({"gemm_of_fp8"} if "fp8" in text else set())


@pytest.mark.parametrize("text", ["\udcff", "\udcff.", "é", "É", "é.", "straße|x"])
def test_a_pattern_may_have_any_characters(text: str) -> None:
    assert labels(text) == set()


def test_labels_of_the_own_level_take_ranges() -> None:
    run = sample_run()
    assert query(run, View("r", filter="gpu:1-2")).labels == ["1", "2"]
    assert query(run, View("r", filter="gpu:0,3")).labels == ["0", "3"]
    # The end of a range is no amount of work.
    assert query(run, View("r", filter="gpu:2-999999999999")).labels == ["2", "3"]
    assert query(run, View("r", filter="gpu:²-3")).labels == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(", "regular expression"),
        ("speed>3", "unknown column"),
        ("time>3", "needs a unit: time>3ms"),
        ("elapsd_ns>3", "did you mean elapsed_ns"),
        ("time>3parsec", "unknown unit"),
        ("time>3gb", "unknown unit"),
        ("time>slow", "compares elapsed_ns with no number"),
        ("layer:3", "level of the rows is"),
    ],
)
def test_what_is_no_filter_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        labels(text)


def test_a_heading_with_its_unit_may_have_any_dashes() -> None:
    assert labels("time_ms>0.001") == labels("time ms>0.001") == labels("TIME-ms>0.001")
    assert labels("elapsed-ns>1000ns") == labels("elapsed_ns>1000ns")


def test_hidden_rows_are_counted_and_the_total_stays(wording: Wording) -> None:
    frame = query(RUN, View("r", ("0",), filter="nothing"))
    assert (len(frame), frame.hidden) == (0, 1)
    assert frame.total["elapsed_ns"] == 2_001_030
    wording.among(frame.notes, "1 of 1 rows")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("operation=mlp_u", "operation is mlp_up, "),
        ("class=gemm", "no column or level is called class; names are "),
        ("mlp_dwn", "names are mlp_up, "),
        ("time>1s", "time is 30 ns to 2.000 ms"),
        ("attn time>1ms", "each one matches some"),
    ],
)
def test_a_filter_that_leaves_no_row_says_what_there_is(text: str, hint: str) -> None:
    view = View("r", order=complete_order(("operation",)), filter=text)
    frame = query(RUN, view)
    assert not frame.labels and any(hint in note for note in frame.notes), frame.notes


@pytest.mark.parametrize(
    "filter_text", ["class=GEMM", "class:gemm", "Class = gemm", "class!=other,copy"]
)
def test_words_of_a_column_are_compared_without_case(filter_text: str) -> None:
    run = run_of([Row(0, 10, kernel="Cijk_A"), Row(10, 9, Kind.COPY, kernel="Memcpy HtoD")])
    frame = query(run, View("r", name="kernels", filter=filter_text))
    assert frame.labels == ["Cijk_A"]
    none = query(run, View("r", name="kernels", filter="class=gem"))
    assert any("class is gemm, " in note for note in none.notes)


def test_columns_are_named_as_tables_show_them() -> None:
    frame = query(RUN, View("r", columns=("time ms", "Kernels", "busy %"), sort="-exp.comm µs"))
    assert [each.name for each in frame.columns[:3]] == ["elapsed_ns", "kernels", "busy_pct"]
    assert frame.sort == "-exposed_comm_ns"


def test_a_row_that_is_no_part_of_the_tree_is_shown_alone() -> None:
    run = measured_run()
    for address in ("R?view=determinism&by=figure", "R?view=cpu&by=cpu"):
        frame = query(run, parse(address))
        alone = query(run, frame.target(1))
        assert list(alone.labels) == [frame.labels[1]]
        assert alone.target(0) == alone.view


def test_rows_without_a_value_to_sort_by_are_sorted_by_time() -> None:
    rows = [Row(10 * n, 10, kernel=f"k{(n + 1) // 3}") for n in range(6)]
    for sort in ("mfma_util_pct", "-mfma_util_pct"):
        frame = query(run_of(rows), parse(f"R?view=kernels&sort={sort}"))
        assert frame.labels == ["k1", "k0", "k2"]
