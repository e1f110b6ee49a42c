"""The steps from view to view are pure functions, and keep what they promise on any way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.table import LEVELS
from chopper_core.model.view import (
    STATISTICS,
    Baseline,
    View,
    as_statistic,
    at_level,
    enter,
    pivot,
    up,
    with_view,
)
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_tui.history import (
    Trail,
    Visit,
    changed,
    everywhere,
    into_child,
    moved_row,
    parent_of,
    trail_to,
    with_baseline,
    with_statistic,
)
from tests.tui.explorer import sample_run

RUN = sample_run(gpus=3, iterations=2, layers=3)
Step = Callable[[View], View]

labels = st.text(min_size=1, max_size=8) | st.sampled_from(("0", "none", "a/layer=3", "x&y=z?w"))
levels = st.sampled_from(LEVELS)
texts = st.text(max_size=12) | st.sampled_from(("gemm !copy", "gpu:0-3,7", "time>1ms", "a=b&c"))
baselines = st.none() | st.builds(
    Baseline, st.sampled_from(("other", "runs/a b")), st.none() | st.tuples(labels)
)
steps: st.SearchStrategy[Step] = st.one_of(
    labels.map(lambda label: lambda view: enter(view, label)),
    st.just(up),
    levels.map(lambda level: lambda view: pivot(view, level)),
    texts.map(lambda text: lambda view: replace(view, filter=text)),
    st.sampled_from(("", "name", "-elapsed_ns", "-elapsed_ns_delta")).map(
        lambda sort: lambda view: replace(view, sort=sort)
    ),
    st.sampled_from(("", "busy_pct", "gfx mhz")).map(
        lambda name: lambda view: replace(view, signal=name)
    ),
    st.sampled_from(("", *VIEWS)).map(lambda name: lambda view: with_view(view, name)),
    st.tuples(labels, labels).map(lambda pair: lambda view: replace(view, by=pair[0], of=pair[1])),
    st.tuples(st.sampled_from(sorted(STATISTICS)), st.lists(levels, max_size=2, unique=True)).map(
        lambda pair: lambda view: as_statistic(view, *pair)
    ),
    baselines.map(lambda baseline: lambda view: replace(view, baseline=baseline)),
    labels.map(lambda label: lambda view: at_level(view, "gpu", label)),
)


def walked(way: list[Step]) -> View:
    view = View("runs/today")
    for step in way:
        view = step(view)
    return view


@given(st.lists(steps, max_size=12))
def test_wherever_a_way_leads_the_address_leads_there_too(way: list[Step]) -> None:
    view = walked(way)
    assert parse(render(view)) == view
    assert render(parse(render(view))) == render(view)


@given(st.lists(steps, max_size=8), labels)
def test_up_after_drill_is_the_view_but_for_its_table(way: list[Step], label: str) -> None:
    view = walked(way)
    if view.is_leaf:
        assert enter(view, label) == view
        return
    back = up(enter(view, label))
    plain = replace(view, sort="", filter="", name="", by="", of="")
    assert replace(back, sort="", baseline=None) == replace(plain, baseline=None)
    fixed = view.baseline is not None and view.baseline.path is not None
    assert back.baseline == view.baseline or not fixed


@given(st.lists(steps, max_size=8), labels, st.integers(0, 40))
def test_out_after_into_is_the_identity(way: list[Step], label: str, offset: int) -> None:
    """The trail keeps what the view alone gives up: sort, filter, cursor and scroll."""
    view = walked(way)
    trail = moved_row(trail_to(view), label, offset)
    if not view.is_leaf:
        assert parent_of(into_child(trail, label)) == trail
    assert parent_of((Visit(View("r")),)) == (Visit(View("r")),)


@given(st.lists(steps, max_size=8), texts, levels)
def test_what_is_shown_of_a_table_and_what_the_table_is_of_commute(
    way: list[Step], text: str, level: str
) -> None:
    view = walked(way)
    # A pivot gives other rows: what was said of the old ones falls away, in either order.
    if level in view.order[len(view.path) :]:
        assert pivot(replace(view, filter=text), level) == pivot(view, level)
        assert pivot(replace(view, sort="name"), level) == pivot(view, level)
    assert pivot(pivot(view, level), level) == pivot(view, level)
    for one, two in (
        (lambda each: replace(each, filter=text), lambda each: replace(each, sort="name")),
        (lambda each: replace(each, filter=text), lambda each: replace(each, signal="busy_pct")),
        (lambda each: pivot(each, level), lambda each: replace(each, signal="busy_pct")),
        (lambda each: pivot(each, level), lambda each: as_statistic(each, "median")),
        (lambda each: replace(each, filter=text), lambda each: as_statistic(each, "p95")),
    ):
        assert one(two(view)) == two(one(view))


@given(st.lists(steps, max_size=6), st.sampled_from(list(VIEWS)))
def test_a_question_and_back_is_the_same_node(way: list[Step], name: str) -> None:
    view = with_view(walked(way), "")
    back = with_view(with_view(view, name), "")
    assert (back.path, back.order, back.baseline) == (view.path, view.order, view.baseline)
    assert back.level == view.level and not back.by and not back.of


@given(st.lists(steps, max_size=6), baselines)
def test_a_trail_keeps_its_places_whatever_is_set_for_all(
    way: list[Step], baseline: Baseline | None
) -> None:
    trail = trail_to(walked(way))
    paths = [place.view.path for place in trail]

    def of(other: Trail) -> list[tuple[str, ...]]:
        return [place.view.path for place in other]

    assert of(with_baseline(trail, baseline)) == paths
    assert of(everywhere(trail, lambda view: replace(view, signal="busy_pct"))) == paths
    assert of(with_statistic(trail, as_statistic(trail[-1].view, "max"))) == paths
    assert with_baseline(with_baseline(trail, baseline), baseline) == with_baseline(trail, baseline)
    assert changed(trail, trail[-1].view) == trail


PATHS = [(), ("1",), ("2", "11"), ("0", "10", "backward"), ("1", "11", "forward", "2")]
COLUMNS = ("elapsed_ns", "compute_ns", "idle_ns", "kernels")


@given(
    st.sampled_from(PATHS),
    levels,
    st.sampled_from(("", "a", "!a", "time>100us", "kernels>3 !mlp", "nothing at all")),
    st.sampled_from(("", "name", "-elapsed_ns", "idle_ns")),
)
def test_the_whole_is_the_same_however_it_is_split_filtered_and_sorted(
    path: tuple[str, ...], level: str, text: str, sort: str
) -> None:
    view = View("sample.json", path, columns=COLUMNS, is_total=True)
    whole = query(RUN, view).total
    shown = query(RUN, replace(pivot(view, level), filter=text, sort=sort))
    assert shown.total == whole
    every = query(RUN, pivot(view, level))
    assert sum(int(row) for row in every.values["elapsed_ns"].numbers) == whole["elapsed_ns"]
    assert len(shown) + shown.hidden == len(every)
    assert shown.hidden_ns == whole["elapsed_ns"] - int(shown.elapsed_ns.sum())
    unsorted = query(RUN, replace(pivot(view, level), filter=text))
    assert sorted(shown.labels) == sorted(unsorted.labels)


@pytest.mark.parametrize("path", PATHS)
def test_the_same_rows_pass_a_filter_in_any_order_of_terms(path: tuple[str, ...]) -> None:
    view = View("sample.json", path)
    one = query(RUN, replace(view, filter="kernels>3 !0 time>10us"))
    two = query(RUN, replace(view, filter="time>10us kernels>3 !0"))
    assert list(one.labels) == list(two.labels)
    by_steps = set(query(RUN, view).labels)
    for term in ("kernels>3", "!0", "time>10us"):
        by_steps &= set(query(RUN, replace(view, filter=term)).labels)
    assert set(one.labels) == by_steps
