"""Addresses: every view has one, and it leads back to the view."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_core.columns import METRICS
from chopper_core.model.address import nothing_at, parse, render
from chopper_core.model.overrides import (
    Overrides,
    overrides_of,
    parse_clock,
    parse_gpu,
    seconds_text,
)
from chopper_core.model.table import LEVELS
from chopper_core.model.view import (
    STATISTICS,
    View,
    Window,
    as_statistic,
    complete_order,
    enter,
    pivot,
    resolved,
    sibling,
    up,
)
from chopper_core.util.errors import DataError, UsageError

labels = st.text(min_size=1, max_size=30) | st.sampled_from(
    ("none", "void at::native::f<4, g(int)::{lambda()#1}>(int, char*)", "a/layer=3", "x?sort=y")
)
readings = st.builds(
    overrides_of,
    st.lists(st.tuples(labels, st.integers(-(2**61), 2**61)), max_size=2),
    st.lists(st.tuples(labels, labels, st.none() | st.integers(0, 9999)), max_size=2),
)
views = st.builds(
    View,
    run=st.sampled_from(
        [
            *("run", "a/b.json.gz", "../x y/ü:1", "C:/odd", "a:gpu=1", "a:", "a::"),
            *("a?view=kernels", "a?", "?", "a?magic=1:layer=2", "a:gpu=1/b"),
        ]
    ),
    path=st.lists(labels, max_size=7).map(tuple),
    order=st.permutations(LEVELS).map(tuple),
    columns=st.lists(st.sampled_from(sorted(METRICS)), max_size=3, unique=True).map(tuple),
    sort=st.sampled_from(("", "name", "-elapsed_ns", "kernels")),
    filter=st.text(max_size=20),
    signal=st.sampled_from(("", "busy_pct", "gfx_mhz")),
    overrides=st.just(Overrides()) | readings,
    cut=st.booleans(),
) | st.builds(
    as_statistic,
    st.builds(View, run=st.just("run"), filter=st.text(max_size=20)),
    st.sampled_from(sorted(STATISTICS)),
    st.lists(st.sampled_from(LEVELS), max_size=3, unique=True),
)


@given(views)
def test_an_address_leads_back_to_its_view(view: View) -> None:
    assert parse(render(view)) == view


@given(views)
def test_an_address_is_one_printable_line(view: View) -> None:
    rest = render(view).removeprefix(view.run)
    assert rest.isprintable() and " " not in rest


@given(views, labels)
def test_up_undoes_drill(view: View, label: str) -> None:
    if view.is_leaf:
        assert enter(view, label) == view
        return
    below = enter(view, label)
    assert below.path == (*view.path, label)
    back = up(below)
    assert (back.path, back.order, back.columns) == (view.path, view.order, view.columns)


@given(views, st.sampled_from(LEVELS))
def test_a_pivot_keeps_the_node(view: View, level: str) -> None:
    turned = pivot(view, level)
    assert turned.scope == view.scope
    assert sorted(turned.order) == sorted(LEVELS)
    if level in view.order[len(view.path) :]:
        assert turned.level == level
    else:
        assert turned == view


@given(views, st.lists(labels, min_size=1, unique=True))
def test_a_sibling_step_forth_and_back_is_none(view: View, names: list[str]) -> None:
    for position, name in enumerate(names[:-1]):
        at = View(view.run, (*view.path[:3], name), view.order)
        following = sibling(at, names, 1)
        assert following.path[-1] == names[position + 1]
        assert sibling(following, names, -1) == at
    assert sibling(View("r", (names[-1],)), names, 1).path == (names[-1],)


def test_the_example_of_the_design() -> None:
    view = parse(
        "demo_data/fsdp2:gpu=3/iteration=1/phase=backward/layer=17?sort=-elapsed_ns&filter=gemm"
    )
    assert view == View(
        "demo_data/fsdp2",
        ("3", "1", "backward", "17"),
        sort="-elapsed_ns",
        filter="gemm",
    )


def test_levels_may_be_cut_short() -> None:
    """As the breadcrumb shows them: step 10."""
    cut = "runs/a:gp=5/it=10/ph=backward/la=3/op=mlp_dp?base=gpu=0/it=11"
    whole = "runs/a:gpu=5/iteration=10/phase=backward/layer=3/operation=mlp_dp"
    assert parse(cut) == parse(f"{whole}?base=gpu=0/iteration=11")
    assert render(parse(cut)).startswith(whole)


def test_a_pivot_names_only_the_levels_it_moves() -> None:
    view = parse("r:operation=attn_fa?order=operation,gpu")
    assert view.order == ("operation", "gpu", "iteration", "phase", "layer", "kernel")
    assert view.scope == (("operation", "attn_fa"),)
    assert render(view) == "r:operation=attn_fa?order=operation"


def test_names_of_kernels_need_no_escapes_by_hand() -> None:
    view = parse("r:kernel=void at::native::f<4>(int)?order=kernel")
    assert view.path == ("void at::native::f<4>(int)",)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (":gpu=1", "names no run"),
        ("r:phase=backward", "expected gpu, got 'phase'"),
        ("r:gpu=1/phase=backward", "expected iteration, got 'phase'"),
        ("r:gpu=", "no value"),
        ("r?order=gpu,gpu", "repeats a level"),
        ("r?order=colour", "unknown level 'colour'"),
        ("r?colour=red", "unknown option 'colour'"),
        ("r?sort=name&colour=red", "unknown option 'colour'"),
    ],
)
def test_what_is_no_address_says_why(address: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(address)


def test_how_files_are_read_is_spelled_as_on_the_command_line() -> None:
    view = parse("r:gpu=3?clock=amd-smi=+1.25s&gpu=amd-smi:4=0,rocprofv3:0000:0C:00.0=none")
    assert view.path == ("3",)
    assert view.overrides == overrides_of(
        [parse_clock("amd-smi=+1.25s")],
        [parse_gpu("amd-smi:4=0"), parse_gpu("rocprofv3:0000:0C:00.0=none")],
    )
    assert view.overrides.clocks == (("amd-smi", 1_250_000_000),)
    assert view.overrides.gpus == (("amd-smi", "4", 0), ("rocprofv3", "0000:0C:00.0", None))
    assert parse(render(view)) == view
    assert "clock=amd-smi=+1.25s" in render(view) and "gpu=amd-smi:4=0" in render(view)


@given(st.integers(-(2**61), 2**61))
def test_a_shift_keeps_every_nanosecond(shift_ns: int) -> None:
    assert parse_clock(f"a=b={seconds_text(shift_ns)}s") == ("a=b", shift_ns)


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=1e400", "a=nan", "a=inf", "a=1 h"])
def test_what_is_no_shift_says_what_one_is(text: str) -> None:
    with pytest.raises(UsageError, match=r"not SOURCE=\+SECONDS"):
        parse_clock(text)


@pytest.mark.parametrize(
    "text", ["", "a", "a=1", "a:=1", ":4=1", "a:4=", "a:4=-1", "a:4=x", "a:4=²"]
)
def test_what_is_no_device_says_what_one_is(text: str) -> None:
    with pytest.raises(UsageError, match=r"not SOURCE:ID=GPU"):
        parse_gpu(text)


def test_an_order_may_name_a_part() -> None:
    assert complete_order(("layer",))[:3] == ("layer", "gpu", "iteration")


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(UsageError, match="unknown level 'colour' in 'run:colour=1'; the"):
        raise nothing_at("run:colour=1")
    with pytest.raises(DataError, match=r"^run does not exist\.$"):
        raise nothing_at("run")


def test_times_are_answered_as_they_are_typed() -> None:
    window = Window(9_000_000_000, None, None, None)
    with pytest.raises(UsageError, match=r"^from=9s is after the end of the run \(250 µs\)$"):
        resolved(window, (0, 250_000), 250_000)
    window = Window(1_500_000_000, 200_000_000, None, None)
    with pytest.raises(UsageError, match=r"^from=1\.5s is not before to=200ms$"):
        resolved(window, (0, 10**10), 10**10)
