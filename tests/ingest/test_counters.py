"""Dispatches of a counter run find the activities of the trace that they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.align.counters import CounterMatch, launch_order, match_counters
from chopper_core.align.launches import (
    UNKNOWN,
    UNMATCHED,
    Comparison,
    Dispatched,
    plain_name,
)
from chopper_core.model.column_names import BLOCK, GRID, Match
from chopper_core.model.table import KernelTable, Kind
from chopper_core.util.arrays import Int32
from tests.ingest.simulated import Place, Simulated
from tests.support import Row, table_of

FORWARD = (
    *("norm", "gemm_q", "gemm_k", "rope", "attention", "gemm_o", "add"),
    *("norm", "gemm_up", "silu", "gemm_down", "add"),
)
BACKWARD = (
    *("add", "wgrad_down", "dgrad_down", "silu_back", "wgrad_up", "dgrad_up", "norm_back"),
    *("wgrad_o", "dgrad_o", "attention_back", "rope", "wgrad_q", "dgrad_q", "norm_back"),
)
LAYERS = 4
PROGRAM = (
    *("embed", *FORWARD * LAYERS, "head", "loss"),
    *("loss_back", "head_back", *BACKWARD * LAYERS, "embed_back"),
    *("clip", "clip", "clip", "adam", "adam"),
)
AUTOTUNING = ("gemm_q", "tile_a", "tile_b", "gemm_q", "tile_a", "tile_b") * 4


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A dispatch of a hand-made counter run; `place` is None for one that is in no iteration."""

    name: str
    place: Place | None = None


def named(names: Sequence[str], name: Int32) -> Dispatched:
    """Dispatches with nothing but names."""
    nothing = np.full(len(name), UNKNOWN, np.int64)
    return Dispatched(names, name, nothing, nothing, nothing.astype(np.int32), nothing)


def trace(
    iterations: Sequence[Sequence[str]], first: int = 10, unlinked: Sequence[int] = ()
) -> KernelTable:
    """Iterations of kernels on one stream; `unlinked` are rows without a launch record."""
    rows: list[Row] = []
    for number, names in enumerate(iterations, first):
        for name in names:
            launch = None if len(rows) in unlinked else 10 * len(rows)
            start = 5_000 + 100 * len(rows)
            rows.append(Row(start, 80, iteration=number, kernel=name, launch=launch))
    return table_of(rows)


def execution(
    iterations: int, lost: Sequence[Place] = (), program: Sequence[str] = PROGRAM
) -> list[Dispatch]:
    """The dispatches of a counter run that executes the program some times."""
    return [
        Dispatch(name, (iteration, position))
        for iteration in range(iterations)
        for position, name in enumerate(program)
        if (iteration, position) not in lost
    ]


def match(table: KernelTable, dispatches: Sequence[Dispatch]) -> CounterMatch:
    names = sorted({dispatch.name for dispatch in dispatches})
    codes = np.array([names.index(dispatch.name) for dispatch in dispatches], np.int32)
    return match_counters(table, np.arange(len(table)), named(names, codes))


SIZES = {"gemm_q": 64, "gemm_k": 16}
"""Workgroups of two products that are one kernel, launched one after the other."""


def one_kernel(names: Sequence[str]) -> list[str]:
    return ["gemm" if name in SIZES else name for name in names]


def sized(
    blocks: Sequence[int], trace_blocks: Sequence[int], in_items: bool = False
) -> CounterMatch:
    """The program twice, its products of one name, with the sizes that both sides give.

    The counter run launches the second product before the first one.
    """
    names = list(PROGRAM)
    table = trace([one_kernel(names)])
    grids = [float(SIZES.get(name, 8)) for name in names]
    own = np.array(trace_blocks, np.float64)
    table = table.with_measured({GRID: np.array(grids) * (own if in_items else 1), BLOCK: own})
    order = swapped(names)
    executed = one_kernel([names[at] for at in order])
    known = sorted(set(executed))
    codes = np.array([known.index(name) for name in executed], np.int32)
    items = np.array([int(grids[at]) * blocks[at] for at in order], np.int64)
    groups = np.array([blocks[at] for at in order], np.int64)
    plain = named(known, codes)
    dispatched = replace(plain, items=items, workgroup=groups)
    return match_counters(table, np.arange(len(table)), dispatched)


def swapped(names: Sequence[str]) -> list[int]:
    """The positions of the program as the counter run executes them."""
    order = list(range(len(names)))
    for at, name in enumerate(names):
        if name == "gemm_q":
            order[at], order[at + 1] = order[at + 1], order[at]
    return order


@pytest.mark.parametrize("in_items", [False, True])
def test_products_of_one_name_in_another_order_are_told_by_their_grids(in_items: bool) -> None:
    blocks = [256] * len(PROGRAM)
    order = swapped(PROGRAM)
    found = sized(blocks, blocks, in_items)
    assert [order[at] for at in found.dispatch] == list(range(len(PROGRAM)))
    assert set(states(found)) == {Match.MATCHED}


def test_by_name_alone_products_in_another_order_get_each_other_s_counters() -> None:
    """Sizes that the trace doesn't have in common with the counter run tell nothing."""
    order = swapped(PROGRAM)
    found = sized([256] * len(PROGRAM), [100] * len(PROGRAM))
    by_name = [order[at] for at in found.dispatch]
    wrong = [at for at, place in enumerate(by_name) if at != place]
    assert [PROGRAM[at] for at in wrong] == ["gemm_q", "gemm_k"] * LAYERS


def test_a_launch_without_a_size_is_matched_by_its_name() -> None:
    blocks = [256] * len(PROGRAM)
    order = swapped(PROGRAM)
    unsized = [-1 if name == "attention" else 256 for name in PROGRAM]
    found = sized(blocks, unsized)
    assert [order[at] for at in found.dispatch] == list(range(len(PROGRAM)))


def test_products_of_one_name_in_another_order_are_told_by_the_ranges_around_them() -> None:
    """The operations of the trace are annotations, which the counter run has as roctx ranges."""
    names = list(PROGRAM)
    rows = [
        Row(100 * at, 80, iteration=0, kernel=kernel, operation=name, launch=10 * at)
        for at, (kernel, name) in enumerate(zip(one_kernel(names), names, strict=True))
    ]
    table, order = table_of(rows), swapped(names)
    texts = sorted({*one_kernel(names), *names})
    kernels = one_kernel([names[at] for at in order])
    codes = np.array([texts.index(name) for name in kernels], np.int32)
    regions = np.array([texts.index(names[at]) for at in order], np.int32)
    plain = named(texts, codes)
    by_name = match_counters(table, np.arange(len(table)), plain)
    told = match_counters(table, np.arange(len(table)), replace(plain, region=regions))
    assert [order[at] for at in told.dispatch] == list(range(len(names)))
    assert set(states(told)) == {Match.MATCHED}
    assert [order[at] for at in by_name.dispatch] != list(range(len(names)))
    # Ranges of other names than the operations tell nothing.
    other = replace(
        plain,
        names=[
            f"range {name}" if name in names and name not in kernels else name for name in texts
        ],
        region=regions,
    )
    assert match_counters(table, np.arange(len(table)), other).dispatch.tolist() == (
        by_name.dispatch.tolist()
    )


def states(found: CounterMatch) -> list[Match]:
    return [Match(int(state)) for state in found.match]


def places(found: CounterMatch, dispatches: Sequence[Dispatch]) -> list[Place | None]:
    return [dispatches[at].place if at != UNMATCHED else None for at in found.dispatch]


def check_names_agree(
    table: KernelTable, found: CounterMatch, dispatches: Sequence[Dispatch]
) -> None:
    for row, at in enumerate(found.dispatch):
        if at != UNMATCHED:
            name = table.names[table.kernel[row]]
            assert plain_name(name) == plain_name(dispatches[at].name)
    taken = Counter(
        (int(table.iteration[row]), int(at)) for row, at in enumerate(found.dispatch) if at >= 0
    )
    assert max(taken.values(), default=0) <= 1, "two kernels of one iteration took one dispatch"


def test_the_same_program_matches_one_to_one() -> None:
    table, dispatches = trace([PROGRAM]), execution(1)
    found = match(table, dispatches)
    assert found.dispatch.tolist() == list(range(len(PROGRAM)))
    assert set(states(found)) == {Match.MATCHED}
    assert (found.windows, found.unused_dispatches, found.comparison) == (1, 0, "exact")


def test_iterations_that_the_counter_run_lacks_borrow() -> None:
    table, dispatches = trace([PROGRAM] * 3), execution(1)
    found = match(table, dispatches)
    size = len(PROGRAM)
    assert states(found) == [Match.BORROWED] * 2 * size + [Match.MATCHED] * size
    assert places(found, dispatches) == [(0, position) for position in range(size)] * 3
    assert found.unused_dispatches == 0


def test_of_more_iterations_the_last_ones_are_taken() -> None:
    table, dispatches = trace([PROGRAM] * 2), execution(5)
    found = match(table, dispatches)
    assert set(states(found)) == {Match.MATCHED}
    expected = [(iteration, place) for iteration in (3, 4) for place in range(len(PROGRAM))]
    assert places(found, dispatches) == expected
    assert found.windows == 5
    assert found.unused_dispatches == 3 * len(PROGRAM)


def test_autotuning_before_the_first_iteration_is_left_over() -> None:
    table = trace([PROGRAM] * 2)
    dispatches = [*map(Dispatch, AUTOTUNING), *execution(2)]
    found = match(table, dispatches)
    assert set(states(found)) == {Match.MATCHED}
    expected = [(iteration, place) for iteration in (0, 1) for place in range(len(PROGRAM))]
    assert places(found, dispatches) == expected
    assert found.unused_dispatches == len(AUTOTUNING)


def test_a_warm_up_iteration_of_other_kernels_is_no_iteration_of_the_trace() -> None:
    table = trace([PROGRAM])
    warm_up = [Dispatch(f"{name}_untuned") for name in PROGRAM]
    dispatches = [*warm_up, *execution(1)]
    found = match(table, dispatches)
    assert places(found, dispatches) == [(0, place) for place in range(len(PROGRAM))]
    assert found.windows == 1
    assert found.unused_dispatches == len(warm_up)


def test_a_lost_dispatch_leaves_its_kernel_without_and_the_others_right() -> None:
    lost = [(0, 5), (0, 30), (0, 77), (0, 90)]
    table, dispatches = trace([PROGRAM]), execution(1, lost)
    found = match(table, dispatches)
    check_names_agree(table, found, dispatches)
    for position, (place, state) in enumerate(
        zip(places(found, dispatches), states(found), strict=True)
    ):
        expected = None if (0, position) in lost else (0, position)
        assert place == expected
        assert state is (Match.NONE if expected is None else Match.MATCHED)


def test_losses_at_every_landmark_do_not_lose_the_iteration() -> None:
    """Layers are alike: what is unlike them lies at the start, the middle and the end."""
    lost = [(0, 0), (0, PROGRAM.index("head")), (0, PROGRAM.index("embed_back"))]
    table, dispatches = trace([PROGRAM]), execution(1, lost)
    found = match(table, dispatches)
    certain = [row for row, state in enumerate(states(found)) if state is Match.MATCHED]
    assert len(certain) > 0.9 * len(PROGRAM)
    assert all(places(found, dispatches)[row] == (0, row) for row in certain)


def test_what_one_iteration_lost_is_borrowed_from_the_other() -> None:
    table, dispatches = trace([PROGRAM] * 2), execution(2, [(1, 5), (0, 40)])
    found = match(table, dispatches)
    size = len(PROGRAM)
    expected = [(iteration, place) for iteration in (0, 1) for place in range(size)]
    expected[40], expected[size + 5] = (1, 40), (0, 5)
    assert places(found, dispatches) == expected
    borrowed = [row for row, state in enumerate(states(found)) if state is Match.BORROWED]
    assert borrowed == [40, size + 5]


def test_dispatches_in_between_are_left_over() -> None:
    dispatches = execution(1)
    for place in (3, 33, 60, 100):
        dispatches.insert(place, Dispatch("fill_buffer"))
    table = trace([PROGRAM])
    found = match(table, dispatches)
    assert places(found, dispatches) == [(0, place) for place in range(len(PROGRAM))]
    assert found.unused_dispatches == 4


def test_kernels_that_changed_places_cost_only_themselves() -> None:
    dispatches = execution(1)
    at = PROGRAM.index("head")
    dispatches[at], dispatches[at + 1] = dispatches[at + 1], dispatches[at]
    table = trace([PROGRAM])
    found = match(table, dispatches)
    check_names_agree(table, found, dispatches)
    others = [place for place in range(len(PROGRAM)) if place not in (at, at + 1)]
    assert [places(found, dispatches)[place] for place in others] == [
        (0, place) for place in others
    ]
    # One of the two can be paired in order, and which one is a matter of taste.
    assert sorted(states(found)[at : at + 2]) == [Match.NONE, Match.AMBIGUOUS]


def test_one_lost_of_equal_neighbours_makes_all_of_them_ambiguous() -> None:
    at = PROGRAM.index("clip")
    table, dispatches = trace([PROGRAM]), execution(1, [(0, at + 1)])
    found = match(table, dispatches)
    check_names_agree(table, found, dispatches)
    clips = states(found)[at : at + 3]
    assert sorted(clips) == [Match.NONE, Match.AMBIGUOUS, Match.AMBIGUOUS]
    assert set(states(found)[:at]) == {Match.MATCHED}


@pytest.mark.parametrize("suffix", [".kd", " [clone .kd]", " [clone .kd].kd", " (.kd)"])
def test_suffixes_of_kernel_descriptors_make_no_difference(suffix: str) -> None:
    table = trace([PROGRAM])
    dispatches = [Dispatch(name + suffix, (0, place)) for place, name in enumerate(PROGRAM)]
    found = match(table, dispatches)
    assert set(states(found)) == {Match.MATCHED}
    assert found.comparison == "exact"


def long_name(name: str) -> str:
    return (
        f"void at::native::{name}_kernel<c10::BFloat16, 8, at::native::{name}_functor>(int, char*)"
    )


def test_names_that_a_tool_cuts_short_are_compared_as_far_as_they_go() -> None:
    table = trace([[long_name(name) for name in PROGRAM]])
    dispatches = [Dispatch(long_name(name)[5:45], (0, place)) for place, name in enumerate(PROGRAM)]
    assert len({dispatch.name for dispatch in dispatches}) == len(set(PROGRAM))
    found = match(table, dispatches)
    assert found.comparison == "prefix"
    assert set(states(found)) == {Match.MATCHED}
    assert places(found, dispatches) == [(0, place) for place in range(len(PROGRAM))]


def test_names_without_their_parameters_are_compared_by_their_base() -> None:
    table = trace([[long_name(name) for name in PROGRAM]])
    dispatches = [Dispatch(f"{name}_kernel", (0, place)) for place, name in enumerate(PROGRAM)]
    found = match(table, dispatches)
    assert found.comparison == "base name"
    assert places(found, dispatches) == [(0, place) for place in range(len(PROGRAM))]


def test_a_counter_run_of_another_program_matches_nothing() -> None:
    table = trace([PROGRAM])
    found = match(table, [Dispatch(f"other_{name}") for name in PROGRAM])
    assert set(states(found)) == {Match.NONE}
    assert found.windows == 0
    assert found.unused_dispatches == len(PROGRAM)


def test_collectives_and_copies_need_no_dispatch() -> None:
    rows: list[Row] = []
    kernels = []
    for place, name in enumerate(PROGRAM):
        start = 5_000 + 100 * len(rows)
        if place % 7 == 3:
            rows.append(
                Row(start, 500, Kind.COMM, 11, kernel="ncclDevKernel", launch=start - 4_000)
            )
            start += 50
        if place % 30 == 5:
            rows.append(Row(start, 9, Kind.COPY, 10, kernel="Memcpy", launch=start - 4_000))
        kernels.append(len(rows))
        rows.append(Row(start + 20, 70, kernel=name, launch=start - 3_990))
    rows = [replace(row, iteration=1) for row in rows]
    table, dispatches = table_of(rows), execution(1)
    found = match(table, dispatches)
    assert found.dispatch[kernels].tolist() == list(range(len(PROGRAM)))
    others = np.setdiff1d(np.arange(len(rows)), kernels)
    assert len(others) > 10
    assert set(found.dispatch[others].tolist()) == {UNMATCHED}
    assert set(found.match[others].tolist()) == {Match.NONE}


def test_kernels_of_several_streams_match_in_the_order_of_their_launches() -> None:
    """On the side stream kernels run much later than what was launched after them."""
    rows = [
        Row(
            5_000 + 100 * place + (6_000 if place % 5 == 2 else 0),
            80,
            stream=9 if place % 5 == 2 else 0,
            iteration=1,
            kernel=name,
            launch=10 * place,
        )
        for place, name in enumerate(PROGRAM)
    ]
    table, dispatches = table_of(rows), execution(1)
    found = match(table, dispatches)
    assert found.dispatch.tolist() == list(range(len(PROGRAM)))
    assert set(states(found)) == {Match.MATCHED}


@pytest.mark.parametrize("unlinked", [(0,), (50,), (109,), (0, 1, 2, 3), tuple(range(0, 110, 7))])
def test_kernels_without_a_launch_record_keep_their_place(unlinked: tuple[int, ...]) -> None:
    table, dispatches = trace([PROGRAM], unlinked=unlinked), execution(1)
    found = match(table, dispatches)
    assert found.dispatch.tolist() == list(range(len(PROGRAM)))
    assert set(states(found)) == {Match.MATCHED}


def test_a_trace_without_any_launch_record_is_matched_in_the_order_of_the_starts() -> None:
    table = trace([PROGRAM] * 2, unlinked=range(2 * len(PROGRAM)))
    dispatches = execution(2)
    found = match(table, dispatches)
    assert found.dispatch.tolist() == list(range(2 * len(PROGRAM)))


@pytest.mark.parametrize("begin", [1, 10, 40, 49, 60, 80, 100])
def test_the_rest_of_a_cut_iteration_matches_the_end_of_the_program(begin: int) -> None:
    """What was launched before the profiler began has no launch record."""
    cut = PROGRAM[begin:]
    table = trace([cut, PROGRAM, PROGRAM], unlinked=range(min(8, len(cut))))
    dispatches = execution(2)
    found = match(table, dispatches)
    check_names_agree(table, found, dispatches)
    size = len(cut)
    assert places(found, dispatches)[:size] == [(0, begin + place) for place in range(size)]
    assert set(states(found)[:size]) == {Match.BORROWED}
    assert set(states(found)[size:]) == {Match.MATCHED}


def test_a_counter_run_that_stops_amid_an_iteration_misleads_nobody() -> None:
    whole = execution(3)
    dispatches = whole[: len(whole) - 30]
    found = match(trace([PROGRAM] * 2), dispatches)
    certain = [
        (row % len(PROGRAM), place)
        for row, place in enumerate(places(found, dispatches))
        if states(found)[row] in (Match.MATCHED, Match.BORROWED)
    ]
    assert all(place is not None and place[1] == position for position, place in certain)
    assert len(certain) > 1.7 * len(PROGRAM)


def test_a_run_of_two_kernels_matches_too() -> None:
    table = trace([["a", "b"]] * 3)
    dispatches = execution(3, program=["a", "b"])
    found = match(table, dispatches)
    check_names_agree(table, found, dispatches)
    assert all(
        place is None or place[1] == row % 2 for row, place in enumerate(places(found, dispatches))
    )


def test_neither_kernels_nor_dispatches_are_no_error() -> None:
    found = match(trace([PROGRAM]), [])
    assert set(states(found)) == {Match.NONE}
    copies = table_of([Row(10, 5, Kind.COPY, iteration=1, kernel="Memcpy", launch=3)])
    found = match(copies, execution(1))
    assert states(found) == [Match.NONE]
    assert found.unused_dispatches == len(PROGRAM)


POSITIONS = st.integers(0, len(PROGRAM) - 1)


@given(
    traced=st.integers(1, 3),
    executed=st.integers(1, 3),
    cut=st.integers(0, 70),
    lost=st.sets(st.tuples(st.integers(0, 2), POSITIONS), max_size=8),
    autotuning=st.booleans(),
    fills=st.lists(st.integers(0, 300), max_size=5),
)
def test_nothing_is_matched_silently_wrong(
    traced: int,
    executed: int,
    cut: int,
    lost: set[Place],
    autotuning: bool,
    fills: list[int],
) -> None:
    """Any kernels lost, others added, another number of iterations, the first one cut."""
    iterations = [*([PROGRAM[cut:]] if cut else []), *[PROGRAM] * traced]
    table = trace(iterations, unlinked=range(6) if cut else ())
    dispatches = [*(map(Dispatch, AUTOTUNING) if autotuning else ()), *execution(executed, [*lost])]
    for at in fills:
        dispatches.insert(at % (len(dispatches) + 1), Dispatch("fill_buffer"))
    found = match(table, dispatches)
    check_names_agree(table, found, dispatches)
    found_places = places(found, dispatches)
    row = 0
    certain = 0
    for number, names in enumerate(iterations):
        window = executed - len(iterations) + number
        for position in range(len(PROGRAM) - len(names), len(PROGRAM)):
            place = found_places[row]
            state = Match(int(found.match[row]))
            if state is Match.NONE:
                assert found.dispatch[row] == UNMATCHED
            elif state is Match.MATCHED:
                assert place == (window, position)
            elif state is Match.BORROWED:
                assert place is not None and place[1] == position
                assert place != (window, position)
            certain += state in (Match.MATCHED, Match.BORROWED)
            row += 1
    assert certain > 0.75 * row or found.windows == 0


# The demonstration's simulation knows each dispatch's true place.


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"seed": 7},
        {"iterations": 4},
        {"iterations": 1, "layers": 3},
        {"layers": 6, "recompute": True},
        {"annotations": False},
    ],
    ids=str,
)
def generated(request: pytest.FixtureRequest, simulated: Callable[..., Simulated]) -> Simulated:
    return simulated(**request.param)


@pytest.mark.sweep
def test_on_generated_runs_every_certain_pair_is_the_true_one(generated: Simulated) -> None:
    for gpu in generated.gpus:
        wrong = []
        for activity in generated.activities(gpu):
            if activity.match is Match.MATCHED:
                is_true = activity.place == (max(activity.own_window, 0), activity.position)
            elif activity.match is Match.BORROWED:
                is_true = activity.is_right
            else:
                continue
            if not is_true:
                wrong.append(activity.says())
        assert wrong == []


@pytest.mark.sweep
def test_on_generated_runs_almost_all_that_was_measured_is_found(generated: Simulated) -> None:
    for gpu in generated.gpus:
        measured = generated.measured_positions(gpu)
        activities = list(generated.activities(gpu))
        available = [activity for activity in activities if measured[activity.position]]
        without = [activity for activity in available if activity.match is Match.NONE]
        certain = [a for a in available if a.match in (Match.MATCHED, Match.BORROWED)]
        assert len(without) <= 0.02 * len(available), [activity.says() for activity in without]
        assert len(certain) >= 0.9 * len(available)
        never = [activity for activity in activities if not measured[activity.position]]
        assert {a.match for a in never} <= {Match.NONE, Match.AMBIGUOUS}


@pytest.mark.sweep
def test_on_generated_runs_names_agree_and_no_dispatch_serves_twice(generated: Simulated) -> None:
    names = generated.counter_run.names
    for gpu in generated.gpus:
        codes = generated.counter_run.dispatches.name[generated.dispatches(gpu)]
        taken: Counter[tuple[int, int]] = Counter()
        for activity in generated.activities(gpu):
            if activity.dispatch != UNMATCHED:
                assert plain_name(names[codes[activity.dispatch]]) == plain_name(activity.name)
                taken[activity.iteration, activity.dispatch] += 1
        assert set(taken.values()) == {1}


@pytest.mark.sweep
def test_on_generated_runs_both_sides_give_the_sizes_of_launches(small: Simulated) -> None:
    """Grids of the trace are in workgroups and those of the profiler in work-items."""
    table, dispatched = small.run.table, small.dispatched(0)
    sequence = launch_order(table, small.rows(0))
    known = {name: code for code, name in enumerate(dispatched.names)}
    ours = np.array([known.get(table.names[code], -9) for code in table.kernel[sequence]], np.int64)
    theirs = dispatched.name.astype(np.int64)
    launched, others = Comparison(table, sequence, dispatched, ours, theirs).sides()
    of_trace, of_dispatch = launched.traits[0], others.traits[0]
    assert np.mean(of_trace[ours >= 0] != UNKNOWN) > 0.9
    pairs = dict(zip(small.rows(0).tolist(), small.match(0).dispatch.tolist(), strict=True))
    for at, row in enumerate(sequence.tolist()):
        if of_trace[at] != UNKNOWN and (other := pairs[row]) != UNMATCHED:
            assert of_trace[at] == of_dispatch[other]
