"""Steps that no annotation numbers have one number in all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.ingest.open import open_run
from chopper_core.ingest.step_numbers import numbered_alike
from chopper_core.model.doubts import Doubt
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.model.side_table import MemoryEvents
from chopper_core.model.table import NO_LABEL, Category
from tests.align.test_cut_windows import STEP_US, STEPS, window
from tests.align.traces import RCCL, TinyTrace

BASE_NS = 1_777_990_396_000_000_000
FIRST_US = 1_000
"""When the first kernel of a `window` starts."""


def write(folder: Path, ranks: list[list[dict[str, Any]]], **members: Any) -> None:
    for rank, events in enumerate(ranks):
        members = {"baseTimeNanoseconds": BASE_NS, **members}
        document = {"traceEvents": events, "distributedInfo": {"rank": rank}, **members}
        (folder / f"rank{rank}.json").write_text(json.dumps(document, default=float))


def seen(begin_us: int, end_us: int, late_us: int, ahead_us: int | None) -> list[dict[str, Any]]:
    """What a window sees of a rank that is so late."""
    trace = window(0, 2 * STEPS * STEP_US, ahead_us)
    for each in trace.events:
        each["ts"] += late_us
    return [e for e in trace.events if begin_us <= e["ts"] and e["ts"] + e["dur"] <= end_us]


def numbers_of(run: Run, late: list[int]) -> set[int]:
    """How far the numbers of steps are from those of the loop, over all activities."""
    table = run.table
    own = np.flatnonzero((table.iteration != NO_LABEL) & (table.category != Category.OUTSIDE))
    since_us = (table.start_ns[own] - BASE_NS) // 1000 - FIRST_US - np.array(late)[table.gpu[own]]
    found: set[int] = set((table.iteration[own] - since_us // STEP_US).tolist())
    return found


@given(
    late=st.lists(st.integers(0, STEP_US // 3), min_size=2, max_size=4),
    begin=st.integers(0, STEP_US + STEP_US // 2),
    length=st.integers(2 * STEP_US, STEPS * STEP_US),
    ahead_us=st.sampled_from((None, 5)),
)
def test_steps_of_one_time_have_one_number(
    late: list[int],
    begin: int,
    length: int,
    ahead_us: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    write(folder, [seen(begin, begin + length, each, ahead_us) for each in late])
    run = open_run(str(folder), jobs=1)
    assert len(numbers_of(run, late)) == 1
    assert int(run.table.iteration[run.table.iteration != NO_LABEL].min()) == 0


def behind_an_optimizer() -> list[list[dict[str, Any]]]:
    """Two ranks, whose window begins in a late one's last kernels of a step."""
    begin = FIRST_US + STEP_US - 5
    return [seen(begin, 2 * STEPS * STEP_US, late_us, None) for late_us in (0, 60)]


def test_cut_steps_go_along(tmp_path: Path) -> None:
    write(tmp_path, behind_an_optimizer())
    run = open_run(str(tmp_path), jobs=1)
    assert numbers_of(run, [0, 60]) == {0}
    assert run.partial_iterations == {0: frozenset(), 1: frozenset({0})}
    assert [source.iterations for source in run.sources] == [(1, 3), (0, 3)]
    assert run.cut_iterations == {0}


def test_annotated_ranks_give_the_numbers(tmp_path: Path) -> None:
    ranks = behind_an_optimizer()
    ranks[0] = seen(FIRST_US + STEP_US - 9, 2 * STEPS * STEP_US, 0, 5)
    notes = TinyTrace()
    for number in range(1, STEPS):
        begin = FIRST_US + STEP_US * number - 9
        notes.note(f"ProfilerStep#{70 + number}", begin, begin + STEP_US - 1)
    ranks[0] += notes.events
    write(tmp_path, ranks)
    assert numbers_of(open_run(str(tmp_path), jobs=1), [0, 60]) == {70}


def annotated(first: int) -> list[list[dict[str, Any]]]:
    """Two ranks that reduce together. Nothing annotates the steps of the second one, whose window
    begins in the last kernels of a step."""
    ranks = behind_an_optimizer()
    ranks[0] = seen(FIRST_US + STEP_US - 9, 2 * STEPS * STEP_US, 0, 5)
    for rank, events in enumerate(ranks):
        trace = TinyTrace()
        for place in range(2 * (STEPS - 1)):
            args = {"Collective name": "allreduce", "In msg nelems": 8 + place, "Group size": 2}
            at = FIRST_US + STEP_US + 70 + place * STEP_US // 2
            trace.gpu(RCCL, at - 20 * rank, 20 + 20 * rank, stream=9, **args)
        for number in range(1, STEPS):
            begin = FIRST_US + STEP_US * number - 9
            if not rank:
                trace.note(f"ProfilerStep#{first + number}", begin, begin + STEP_US - 1)
        events += trace.events
    return ranks


def test_collectives_tell_which_steps_are_those_of_annotated_ranks(tmp_path: Path) -> None:
    write(tmp_path, annotated(70), baseTimeNanoseconds=None)
    run = open_run(str(tmp_path), jobs=1)
    assert [source.iterations for source in run.sources] == [(71, 73), (70, 73)]


def test_steps_at_unknown_times_begin_with_the_first_annotated_one(tmp_path: Path) -> None:
    ranks = annotated(70)
    ranks[1] = seen(FIRST_US + STEP_US, 2 * STEPS * STEP_US, 0, None)
    write(tmp_path, ranks, baseTimeNanoseconds=None)
    run = open_run(str(tmp_path), jobs=1)
    assert [source.iterations for source in run.sources] == [(71, 73), (71, 73)]


def test_ranks_whose_clocks_are_unknown_count_from_their_first(tmp_path: Path) -> None:
    write(tmp_path, behind_an_optimizer(), baseTimeNanoseconds=None)
    run = open_run(str(tmp_path), jobs=1)
    assert [source.iterations for source in run.sources] == [(0, 2), (0, 3)]
    # On one host they can be compared; and what names steps goes along.
    doubt = Doubt("lost", 1, 9, iterations=(2,))
    sources = tuple(replace(each, doubts=(doubt,)) for each in run.sources)
    side = MemoryEvents.joined([])
    side = replace(
        side,
        **{name: np.zeros(3, values.dtype) for name, values in side.columns().items()}
        | {"gpu": np.array([0, 0, 1], np.int32), "iteration": np.array([2, -1, 2], np.int32)},
    )
    run = replace(run, sources=sources, side_tables={MemoryEvents: side})
    run = numbered_alike(run, {0: "n1", 1: "n1"}, {})
    assert [source.iterations for source in run.sources] == [(1, 3), (0, 3)]
    assert [source.doubts[0].iterations for source in run.sources] == [(3,), (2,)]
    assert run.side_tables[MemoryEvents].columns()["iteration"].tolist() == [3, -1, 2]


def test_clocks_of_hosts_that_are_apart_by_a_step_shift_no_numbers(tmp_path: Path) -> None:
    """A rank that is late by a step, on another host: its clock is. On one host it is late."""
    ranks = [seen(0, 2 * STEPS * STEP_US, late_us, None) for late_us in (0, STEP_US)]
    write(tmp_path, ranks)
    run = open_run(str(tmp_path), jobs=1)
    assert [source.iterations for source in run.sources] == [(0, 3), (0, 3)]
    write(tmp_path, ranks, hostname="n1")
    run = open_run(str(tmp_path), jobs=1)
    assert [source.iterations for source in run.sources] == [(0, 3), (1, 4)]
    overrides = Overrides(clocks=(("rank1", -1000 * STEP_US),))
    run = open_run(str(tmp_path), jobs=1, overrides=overrides)
    assert [source.iterations for source in run.sources] == [(0, 3), (0, 3)]
