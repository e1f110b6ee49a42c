"""Joining passes: against a plain oracle on random passes, and the cases one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.sources.counters.joining import (
    join_passes,
    join_same_process,
    joined_dispatches,
)
from chopper_core.sources.dispatches import DispatchRun, SampledCounter
from tests.sources.counters.counter_writers import made_run
from tests.wording import Wording

Row = tuple[int, str, int]

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.sampled_from((0, 64, 64, 64, 128))),
    max_size=12,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))
PASSES = st.lists(
    st.tuples(ROWS, st.lists(st.sampled_from(("X", "Y", "Z")), unique=True)),
    min_size=1,
    max_size=4,
)


def numbered(passes: list[tuple[list[Row], list[str]]]) -> list[DispatchRun]:
    """Make runs whose values say which pass, counter and row they are of."""
    return [
        made_run(
            rows,
            {
                name: [1e6 * number + 1e4 * "XYZ".index(name) + row for row in range(len(rows))]
                for name in counters
            },
            f"pass{number}",
        )
        for number, (rows, counters) in enumerate(passes)
    ]


def oracle(passes: list[tuple[list[Row], list[str]]]) -> Counter[Any]:
    """Join by (gpu, kernel, occurrence), one dispatch after another; grids that differ stay apart.

    A row is its key and the value of each counter, the first pass's before later ones.
    """
    order = sorted(range(len(passes)), key=lambda number: bool(passes[number][1]))
    joined: list[dict[str, Any]] = []
    for number in order:
        rows, counters = passes[number]
        seen: Counter[tuple[int, str]] = Counter()
        keyed = []
        for index, (gpu, kernel, grid) in enumerate(rows):
            keyed.append((index, (gpu, kernel, seen[gpu, kernel]), grid))
            seen[gpu, kernel] += 1
        free = {id(row) for row in joined}
        partner: dict[int, dict[str, Any]] = {}
        for index, key, grid in keyed:
            for row in joined:
                if row["key"] == key and row["grid"] == grid and id(row) in free:
                    partner[index] = row
                    free.discard(id(row))
                    break
        for index, key, grid in keyed:
            if index in partner:
                continue
            same = [row for row in joined if row["key"] == key]
            if same and id(same[0]) in free and 0 in (grid, same[0]["grid"]):
                partner[index] = same[0]
                free.discard(id(same[0]))
        for index, key, grid in keyed:
            row = partner.get(index)
            if row is None:
                row = {"key": key, "grid": grid, "values": {}}
                joined.append(row)
            row["grid"] = row["grid"] or grid
            for name in counters:
                value = 1e6 * number + 1e4 * "XYZ".index(name) + index
                row["values"].setdefault(name, value)
    return Counter(
        (row["key"][:2], row["grid"], tuple(sorted(row["values"].items()))) for row in joined
    )


def rows_of(run: DispatchRun) -> list[Any]:
    rows = run.dispatches
    return [
        (
            (run.agents[rows.gpu[index]].node_id, run.names[rows.name[index]]),
            int(rows.grid[index, 0]),
            tuple(
                (name, float(column[index]))
                for name, column in sorted(rows.counters.items())
                if not np.isnan(column[index])
            ),
        )
        for index in range(len(rows))
    ]


@pytest.mark.sweep
@given(PASSES)
def test_agrees_with_the_oracle(passes: list[tuple[list[Row], list[str]]]) -> None:
    runs = numbered(passes)
    joined = join_passes(runs)
    assert Counter(rows_of(joined)) == oracle(passes)
    assert joined.passes == max(1, sum(bool(counters) for _, counters in passes))
    assert (np.diff(joined.dispatches.gpu) >= 0).all()
    base = next((run for run in runs if not run.dispatches.counters), runs[0])
    if len(base.dispatches):
        timed = joined.dispatches.start_ns >= 0
        assert joined.dispatches.start_ns[timed].tolist() == base.dispatches.start_ns.tolist()


@given(ROWS.filter(bool), st.integers(2, 4))
def test_same_program_joins_without_a_note(rows: list[Row], count: int) -> None:
    runs = [
        made_run(rows, {f"C{number}": list(range(len(rows)))}, f"p{number}")
        for number in range(count)
    ]
    joined = join_passes(runs)
    assert len(joined.dispatches) == len(rows) and not joined.join_notes
    for number in range(count):
        assert joined.dispatches.counters[f"C{number}"].tolist() == list(range(len(rows)))


def test_missing_and_extra_kernels_are_counted(wording: Wording) -> None:
    first = made_run([(0, "a", 64), (0, "b", 64), (0, "a", 64)], {"X": [1, 2, 3]}, "one")
    second = made_run(
        [(0, "a", 64), (0, "c", 64), (0, "a", 64), (0, "a", 64)], {"Y": [10, 20, 30, 40]}, "two"
    )
    joined = join_passes([first, second])
    names = [joined.names[code] for code in joined.dispatches.name]
    assert names == ["a", "c", "b", "a", "a"], "an extra dispatch comes after what came before it"
    values = joined.dispatches.counters
    assert np.array_equal(values["X"], [1, np.nan, 2, 3, np.nan], equal_nan=True)
    assert np.array_equal(values["Y"], [10, 20, np.nan, 30, 40], equal_nan=True)
    assert joined.dispatches.start_ns.tolist() == [0, -1, 100, 200, -1]
    notes = " ".join(joined.join_notes)
    wording(notes, "2 of 4 dispatches")
    wording(notes, "1 of 3 dispatches")


def test_a_counter_measured_twice(wording: Wording) -> None:
    rows = [(0, "a", 64)] * 3
    first = made_run(rows, {"X": [100, 100, float("nan")]}, "one")
    second = made_run(rows, {"X": [100.5, 150, 7]}, "two")
    joined = join_passes([first, second])
    assert joined.dispatches.counters["X"].tolist() == [100, 100, 7]
    (note,) = joined.join_notes
    wording(note, "1 %", "1 of 2 dispatches")


def test_another_grid_does_not_shift_a_third_pass(wording: Wording) -> None:
    rows = [(0, "a", 64), (0, "a", 64), (0, "a", 64)]
    odd = [(0, "a", 64), (0, "a", 128), (0, "a", 64)]
    joined = join_passes(
        [
            made_run(rows, {"X": [1, 2, 3]}),
            made_run(odd, {"Y": [1, 2, 3]}),
            made_run(rows, {"Z": [1, 2, 3]}),
        ]
    )
    assert len(joined.dispatches) == 4
    both = ~np.isnan(joined.dispatches.counters["X"])
    assert joined.dispatches.counters["Z"][both].tolist() == [1, 2, 3]
    wording.among(joined.join_notes, "1 dispatch", "different grid")


def test_trace_and_counters_of_one_process_join_by_id() -> None:
    trace = made_run([(0, "a", 64), (0, "b", 64), (0, "a", 64)], {}, "trace")
    counters = made_run([(0, "a", 64)], {"X": [5]}, "counters")
    counters.dispatches.dispatch_id[:] = 3
    joined = join_same_process(trace, counters)
    assert np.array_equal(joined.dispatches.counters["X"], [np.nan, np.nan, 5], equal_nan=True)
    assert joined.passes == 1


def test_processes_of_one_pass_are_put_together(wording: Wording) -> None:
    ones = made_run([(0, "a", 64)], {"X": [1]})
    others = made_run([(1, "a", 64), (1, "b", 64)], {"X": [2, 3]})
    joined = joined_dispatches([ones, others])
    assert joined.dispatches.counters["X"].tolist() == [1, 2, 3]
    assert joined.passes == 1 and not joined.join_notes
    shared = joined_dispatches([ones, ones])
    wording(shared.join_notes[0], "Several processes", "same GPU")


def test_samples_of_processes_one_after_the_other_are_all_kept() -> None:
    """Of two that sampled a counter at one time, those of the first."""

    def sampled(start_ns: int, value: float) -> DispatchRun:
        times = np.array([start_ns, start_ns + 10], np.int64)
        samples = SampledCounter("X", 0, times, times + 10, np.array([value, value + 1]))
        return replace(made_run([(0, "a", 64)], {}, f"from {start_ns}"), sampled=(samples,))

    (after,) = joined_dispatches([sampled(0, 1.0), sampled(100, 5.0)]).sampled
    assert after.begin_ns.tolist() == [0, 10, 100, 110] and after.counted.tolist() == [1, 2, 5, 6]
    (before,) = joined_dispatches([sampled(100, 5.0), sampled(0, 1.0)]).sampled
    assert before.time_ns.tolist() == [10, 20, 110, 120] and before.counted.tolist() == [1, 2, 5, 6]
    (same,) = joined_dispatches([sampled(0, 1.0), sampled(10, 5.0)]).sampled
    assert same.counted.tolist() == [1, 2]
