"""Windows of time: written and read back, and every step stays within the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.view import (
    ALL_TIME,
    SHORTEST_NS,
    Interval,
    View,
    Window,
    enter,
    fitted,
    panned,
    parse_time,
    pointing,
    resolved,
    sibling,
    stepped,
    with_view,
    zoomed,
)
from chopper_core.util.errors import UsageError

TIMES = st.one_of(st.none(), st.integers(0, 10**13))


@st.composite
def stretches(draw: st.DrawFn) -> Interval:
    end = draw(st.integers(SHORTEST_NS, 10**12))
    length = draw(st.integers(SHORTEST_NS, end))
    begin = draw(st.integers(0, end - length))
    at = draw(st.integers(0, end))
    return Interval(begin, begin + length, at, None, end)


@given(TIMES, TIMES, TIMES, TIMES)
def test_an_address_gives_the_window_back(
    begin: int | None, end: int | None, at: int | None, mark: int | None
) -> None:
    view = View("R", ("0",), name="timeline", window=Window(begin, end, at, mark))
    assert parse(render(view)) == view
    assert bool(view.window) == (view.window != ALL_TIME)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1500", 1500),
        ("17ns", 17),
        ("1.5us", 1500),
        ("2µs", 2000),
        ("12.25ms", 12_250_000),
        ("3s", 3_000_000_000),
        ("1.000000001s", 1_000_000_001),
        ("9007199254.740993s", 9_007_199_254_740_993_000),
    ],
)
def test_times_have_units(text: str, ns: int) -> None:
    assert parse_time("from", text) == ns
    assert parse(f"R?view=timeline&from={text}").window.from_ns == ns


@pytest.mark.parametrize("text", ["-1", "1d", "1:60:00", "ms", "1,5ms", "1e3", "nan", "1.5.2"])
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="is an invalid time"):
        parse(f"R?view=timeline&from={text}")


def test_times_take_a_view() -> None:
    with pytest.raises(UsageError, match="view=timeline"):
        parse("R?at=1ms")


@given(TIMES, TIMES, TIMES, st.integers(1, 10**12), st.data())
def test_a_window_is_resolved_within_the_run(
    begin: int | None, end: int | None, at: int | None, run_end: int, data: st.DataObject
) -> None:
    low = data.draw(st.integers(0, run_end))
    scope = (low, data.draw(st.integers(low, run_end)))
    try:
        seen = resolved(Window(begin, end, at), scope, run_end)
    except UsageError:
        first = scope[0] if begin is None else begin
        assert first >= run_end or (end is not None and end <= first)
        return
    assert 0 <= seen.from_ns < seen.to_ns <= run_end and 0 <= seen.at_ns <= run_end
    if begin is not None and end is not None and end - begin >= SHORTEST_NS and end <= run_end:
        assert (seen.from_ns, seen.to_ns) == (begin, end)
    if begin is None and end is None and scope[1] - scope[0] >= SHORTEST_NS:
        assert (seen.from_ns, seen.to_ns) == scope
    assert resolved(seen.window(), scope, run_end) == seen


def within(seen: Interval) -> bool:
    return 0 <= seen.from_ns < seen.to_ns <= seen.end_ns and 0 <= seen.at_ns <= seen.end_ns


@given(stretches())
def test_zooming_keeps_the_cursor_at_its_place(seen: Interval) -> None:
    near = zoomed(seen, 0.5)
    assert within(near) and near.at_ns == seen.at_ns
    assert near.length_ns == max(round(seen.length_ns * 0.5), SHORTEST_NS)
    if seen.from_ns <= seen.at_ns <= seen.to_ns:
        assert near.from_ns <= near.at_ns <= near.to_ns
        before = (seen.at_ns - seen.from_ns) / seen.length_ns
        after = (near.at_ns - near.from_ns) / near.length_ns
        assert abs(before - after) <= 2 / near.length_ns + 1e-9
    far = zoomed(near, 2.0)
    assert within(far) and far.at_ns == seen.at_ns
    if seen.length_ns >= 2 * SHORTEST_NS:
        assert abs(far.length_ns - seen.length_ns) <= 1
        if seen.from_ns <= seen.at_ns <= seen.to_ns:
            assert abs(far.from_ns - seen.from_ns) <= 3


@given(stretches())
def test_zooming_out_comes_to_the_whole_run_and_stays(seen: Interval) -> None:
    for _ in range(40):
        seen = zoomed(seen, 2.0)
    assert (seen.from_ns, seen.to_ns) == (0, seen.end_ns)
    assert zoomed(seen, 2.0) == seen


@given(stretches(), st.sampled_from([-0.5, 0.5, 1.0]))
def test_panning_keeps_the_length(seen: Interval, share: float) -> None:
    moved = panned(seen, share)
    assert 0 <= moved.from_ns < moved.to_ns <= moved.end_ns
    assert moved.length_ns == seen.length_ns
    assert within(moved)
    is_seen = seen.from_ns <= seen.at_ns <= seen.to_ns
    if is_seen:
        assert moved.at_ns - seen.at_ns == moved.from_ns - seen.from_ns
    there = seen.from_ns + round(seen.length_ns * share)
    if 0 <= there <= seen.end_ns - seen.length_ns:
        assert moved.from_ns == there
        assert not is_seen or panned(moved, -share) == seen


@given(stretches(), st.integers(-(10**6), 10**12))
def test_the_cursor_is_always_shown(seen: Interval, at: int) -> None:
    moved = pointing(seen, at)
    assert within(moved) and moved.length_ns == seen.length_ns
    assert moved.at_ns == min(max(at, 0), seen.end_ns)
    assert moved.from_ns <= moved.at_ns <= moved.to_ns
    if seen.from_ns <= moved.at_ns <= seen.to_ns:
        assert moved.from_ns == seen.from_ns


@given(st.integers(2, 300), st.data())
def test_the_cursor_steps_from_cell_to_cell(bins: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(bins * 4, 10**9))
    seen = Interval(5 * length, 6 * length, 5 * length + length // 2, None, 20 * length)

    def cell(each: Interval) -> int:
        return (each.at_ns - each.from_ns) * bins // each.length_ns

    first = cell(seen)
    right = stepped(seen, 1, bins)
    assert cell(right) == first + 1 or right.from_ns != seen.from_ns
    assert cell(stepped(right, -1, bins)) == first or right.from_ns != seen.from_ns
    walked = seen
    for _ in range(bins):
        walked = stepped(walked, 1, bins)
        assert walked.from_ns <= walked.at_ns <= walked.to_ns
    assert walked.at_ns > seen.at_ns and walked.from_ns > seen.from_ns


@given(stretches(), st.data())
def test_fitting_shows_all_of_it(seen: Interval, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, seen.end_ns - 1))
    high = data.draw(st.integers(low + 1, seen.end_ns))
    fit = fitted(seen, low, high)
    assert 0 <= fit.from_ns <= low and high <= fit.to_ns <= fit.end_ns
    assert fit.length_ns <= max(1.25 * (high - low) + 1, SHORTEST_NS)


def test_other_places_have_other_times() -> None:
    window = Window(1, 1000)
    view = View("R", ("0", "10"), name="timeline", window=window)
    assert not enter(view, "forward").window and not with_view(view, "").window
    assert not sibling(view, ["10", "11"], 1).window
    on_gpu = replace(view, path=("0",))
    assert sibling(on_gpu, ["0", "1"], 1).window == window
