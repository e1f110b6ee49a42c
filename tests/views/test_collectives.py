"""Collectives matched across ranks: what the generator planted, and hand-made gaps."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.graph.collectives import Collectives, collectives_of
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Kind
from tests.support import Row, run_of
from tests.views.conftest import DEMO

US = 1_000


def starts_of(found: Collectives, number: int) -> dict[int, int]:
    table, rows = found.members.table, found.members.rows_of(number)
    return dict(zip(table.gpu[rows].tolist(), table.start_ns[rows].tolist(), strict=True))


def test_collectives_of_some_iterations_are_those_of_the_run(run: Run) -> None:
    whole, some = collectives_of(run), collectives_of(run, (11,))
    assert whole is not None and some is not None
    rows = whole.rows[run.table.iteration[whole.rows] == 11]
    assert 0 < len(rows) < len(whole.rows)

    def waits(found: Collectives) -> list[tuple[int, ...]]:
        """Of each kernel of that step its partners, and how long it waits for them."""
        members = [tuple(sorted(found.members.rows_of(at).tolist())) for at in range(len(found))]
        each = zip(
            found.rows.tolist(),
            found.member_set.tolist(),
            found.member_wait_ns.tolist(),
            found.member_exposed_ns.tolist(),
            strict=True,
        )
        kept = set(rows.tolist())
        return sorted(
            (row, wait, alone, *members[at]) for row, at, wait, alone in each if row in kept
        )

    assert waits(some) == waits(whole)
    assert len(some.rows) == len(rows)


def test_every_collective_of_the_demo_is_the_planted_one(run: Run) -> None:
    found = collectives_of(run)
    assert found is not None and collectives_of(run) is found
    truth = json.loads((DEMO / "truth.json").read_text())
    origin = truth["time_origin_ns"]
    planted = sorted(
        truth["collectives"], key=lambda one: min(s for s in one["start_ns"] if s is not None)
    )
    assert len(planted) == len(found)
    table = run.table
    # The run's clock differs from that of the truth by one constant.
    shift = int(found.end_ns[0]) - planted[0]["end_ns"]
    assert abs(shift - origin) < 10**12
    for number, one in enumerate(planted):
        starts = {gpu: start + shift for gpu, start in enumerate(one["start_ns"]) if start}
        assert starts_of(found, number) == pytest.approx(starts, abs=2)
        assert found.end_ns[number] == pytest.approx(one["end_ns"] + shift, abs=2)
        assert bool(found.complete[number]) == (None not in one["start_ns"])
        kind = table.operations[found.kind[number]]
        assert kind in (one["kind"], "collective")
        if found.complete[number]:
            assert found.last_gpu[number] == one["last_rank"]
            assert found.transfer_ns[number] == pytest.approx(one["transfer_ns"], abs=4)
            waits = found.member_wait_ns[found.member_set == number]
            last = max(starts.values())
            expected = [last - start for _, start in sorted(starts.items())]
            assert waits.tolist() == pytest.approx(expected, abs=4)


def rows_of(starts: dict[int, list[int]], end: list[int], **more: object) -> list[Row]:
    """One all_reduce per place on each GPU, from its start to the common end."""
    return [
        Row(
            start,
            end[place] - start,
            Kind.COMM,
            7,
            gpu,
            operation="all_reduce",
            kernel="ncclDevKernel",
            **more,  # type: ignore[arg-type]
        )
        for gpu, own in starts.items()
        for place, start in enumerate(own)
        if start >= 0
    ]


def test_a_rank_that_joined_late_is_matched_by_its_ends() -> None:
    ends = [100 * US * n for n in range(1, 9)]
    full = [end - 40 * US for end in ends]
    late = [-1, -1, *(end - 20 * US for end in ends[2:])]
    found = collectives_of(run_of(rows_of({0: full, 1: late}, ends)))
    assert found is not None and len(found) == 8
    assert found.complete.tolist() == [False] * 2 + [True] * 6
    assert set(found.last_gpu[2:].tolist()) == {1}
    assert set(found.skew_ns[2:].tolist()) == {20 * US}


def test_clocks_that_differ_are_seen_where_nothing_is_missing() -> None:
    ends = [100 * US * n for n in range(1, 9)]
    early = [end - 40 * US for end in ends]
    rows = rows_of({0: early, 1: early}, ends, iteration=3)
    rows += rows_of({0: [e + 900 * US for e in early]}, [e + 900 * US for e in ends], iteration=4)
    late = [-1, *(e + 900 * US for e in early[1:])]
    rows += rows_of({1: late}, [e + 900 * US for e in ends], iteration=4)
    # The clock of GPU 1 is 130 us ahead: more than the distance of two collectives.
    rows = [replace(row, start=row.start + 130 * US * row.gpu) for row in rows]
    found = collectives_of(run_of(rows))
    assert found is not None and len(found) == 16
    assert int(found.complete.sum()) == 15
    assert set(found.skew_ns[found.complete].tolist()) == {130 * US}


def test_sizes_decide_where_they_differ() -> None:
    ends = [100 * US * n for n in range(1, 5)]
    start = [end - 40 * US for end in ends]
    run = run_of(rows_of({0: start, 1: [-1, *start[1:]]}, ends))
    order = np.argsort(run.table.start_ns + 10**9 * run.table.gpu)
    sizes = np.full(len(run.table), -1, np.int64)
    sizes[order] = [10, 20, 30, 40, 20, 30, 40]
    found = collectives_of(replace(run, table=replace(run.table, bytes=sizes)))
    assert found is not None
    assert found.complete.tolist() == [False, True, True, True]
    assert found.bytes.tolist() == [10, 20, 30, 40]


def test_groups_kinds_and_single_ranks() -> None:
    rows = rows_of({0: [0], 1: [5 * US], 2: [7 * US]}, [50 * US])
    sends = [replace(row, operation="send_recv") for row in rows]
    found = collectives_of(run_of(rows + sends))
    assert found is not None and len(found) == 4
    assert sorted(found.complete.tolist()) == [False, False, False, True]
    assert found.size.tolist() == [3, 3, 3, 3]
    # Of two ranks both take part.
    found = collectives_of(run_of([*rows[:2], *sends[:2], Row(0, 3 * US, gpu=2)]))
    assert found is not None and len(found) == 2
    assert found.complete.tolist() == [True, True]
    assert collectives_of(run_of([Row(0, 5)])) is None


def test_a_name_that_more_gpus_have_than_the_group_has_ranks_is_not_matched() -> None:
    run = run_of(rows_of({0: [0], 1: [5], 2: [0], 3: [9]}, [50 * US]))
    table = run.table
    named = replace(
        table,
        names=[*table.names, "tp of 2"],
        group=np.full(len(table), len(table.names), np.int32),
    )
    found = collectives_of(replace(run, table=named))
    assert found is not None and len(found) == 4 and not found.complete.any()
    assert found.shared_labels == ("tp of 2",)


def test_a_broadcasts_root_does_not_wait() -> None:
    rows = [
        Row(0, 10 * US, Kind.COMM, gpu=0, operation="broadcast"),
        Row(50 * US, 10 * US, Kind.COMM, gpu=1, operation="broadcast"),
        Row(20 * US, 40 * US, Kind.COMM, gpu=2, operation="broadcast"),
    ]
    found = collectives_of(run_of(rows))
    assert found is not None and found.complete.all()
    assert found.member_wait_ns.tolist() == [0, 0, 30 * US]
    assert found.spread_ns is None
    assert NO_LABEL not in found.last_gpu
