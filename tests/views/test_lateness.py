"""Who holds the others up, on runs that a small simulation of collectives makes, truth known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.leads import leads
from chopper_core.analyses.matched_kernels import occurrences_of
from chopper_core.findings.rule import context_of
from chopper_core.graph.collectives import collectives_of
from chopper_core.model.address import parse
from chopper_core.model.inputs import Source
from chopper_core.model.phrases import recurrence
from chopper_core.model.run import Run, located
from chopper_core.model.table import LEVELS, NO_TIME, Kind, Phase
from chopper_core.views.query import query
from tests.support import Row, details, run_of
from tests.wording import Wording

MS = 1_000_000
TRANSFER = 300_000
Extra = Callable[[int, int, int], int]
"""ns that a GPU takes longer for, by GPU, step and step."""
Team = Sequence[int]


def grouped(rows: Sequence[Row], groups: Sequence[str]) -> Run:
    """A run of activities and their process groups, in the order of the table."""
    run = run_of(rows)
    names = [*run.table.names, *sorted(set(groups) - {""})]
    codes = np.array([names.index(group) if group else -1 for group in groups], np.int32)
    table = replace(run.table, names=names, group=codes)
    order = np.lexsort((table.start_ns, *(table.column(level) for level in reversed(LEVELS))))
    return replace(run, table=table.take(order))


def job(
    teams: Sequence[Sequence[Team]],
    *,
    iterations: int = 6,
    work: Extra = lambda gpu, iteration, step: 0,
    host: Extra = lambda gpu, iteration, step: 0,
    operation: Callable[[int, int], str] = lambda gpu, step: f"op{step}",
    transfer: Callable[[Team], int] = lambda team: TRANSFER,
) -> Run:
    """Steps of 10 ms of compute, each before an all-reduce of the teams of that step."""
    gpus = sorted({gpu for step in teams for team in step for gpu in team})
    now = dict.fromkeys(gpus, 0)
    rows: list[Row] = []
    groups: list[str] = []
    for iteration in range(iterations):
        for step, those in enumerate(teams):
            phase = Phase.FORWARD if step == 0 else Phase.BACKWARD
            for gpu in gpus:
                now[gpu] += host(gpu, iteration, step)
                took = 10 * MS + work(gpu, iteration, step)
                place = {"gpu": gpu, "iteration": iteration, "phase": phase, "layer": step}
                rows.append(
                    Row(now[gpu], took, operation=operation(gpu, step), launch=now[gpu], **place)
                )
                groups.append("")
                now[gpu] += took
            for team in those:
                end = max(now[gpu] for gpu in team) + transfer(team)
                for gpu in team:
                    rows.append(
                        Row(now[gpu], end - now[gpu], Kind.COMM, 1, gpu, iteration, phase, step,
                            "all_reduce", "nccl", now[gpu] - MS)
                    )  # fmt: skip
                    groups.append(f"{step}{team[0]} of {len(team)}")
                    now[gpu] = end
    return grouped(rows, groups)


EVERYONE = [[range(4)], [range(4)]]
TENSOR_AND_DATA = [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]


def late(run: Run) -> list[tuple[int, list[int], str | None]]:
    """GPU, steps and cause of the stragglers."""
    stand = leads(run, parse("R"))[0]
    return [
        (stand.gpus[one.place], [stand.iterations[at] for at in one.when], one.cause)
        for one in stand.stragglers
    ]


def findings(run: Run, rule: str = "straggler") -> list[str]:
    frame = query(run, parse("R?view=findings"))
    rules = [frame.row(number)["rule"] for number in range(len(frame))]
    return [text for text, own in zip(details(frame), rules, strict=True) if own == rule]


def test_nobody_is_late() -> None:
    run = job(
        EVERYONE, work=lambda gpu, iteration, step: (gpu * 7 + iteration * 5 + step) % 4 * 999
    )
    assert late(run) == []
    assert query(run, parse("R?view=ranks")).headline[0].startswith("no straggler")


def test_one_that_is_late_once_is_late(wording: Wording) -> None:
    run = job(
        EVERYONE, host=lambda gpu, iteration, step: 60 * MS * ((gpu, iteration, step) == (2, 3, 0))
    )
    assert late(run) == [(2, [3], "host")]
    (said,) = findings(run)
    wording(said, "GPU 2", "its host", "step 3")
    wording(said, "60 ms", "other three GPUs")
    wording(query(run, parse("R?view=ranks")).headline[0], "GPU 2", "5 ms", "step 3")


def test_without_launches_a_gpu_that_begins_late_is_idle() -> None:
    """Whether its host was late, or the start of what that launched, nothing shows."""
    run = job(EVERYONE, host=lambda gpu, iteration, step: 3 * MS * (gpu == 2))
    table = run.table
    unknown = table.idle_host_ns + table.idle_launch_ns + table.idle_unknown_ns
    none = np.zeros_like(unknown)
    table = replace(
        table, launch_ns=np.full_like(table.launch_ns, NO_TIME), idle_host_ns=none,
        idle_launch_ns=none, idle_unknown_ns=unknown,
    )  # fmt: skip
    run = replace(run, table=table)
    (said,) = findings(run)
    assert said.startswith("GPU 2 is idle (no launch record shows why) for 5.5 ms per step")
    frame = query(run, parse("R?view=findings"))
    assert "GPU 2 is idle for 5.5 ms more than its peers: the others wait" in frame.labels
    (row,) = [n for n in range(len(frame)) if frame.row(n)["rule"] == "straggler"]
    assert frame.row(row)["confidence"] == "medium"
    assert "idle (no launch record shows why)" in query(run, parse("R?view=ranks")).headline[1]


@pytest.mark.parametrize(
    ("those", "text"),
    [((1, 3, 5), "every 2 steps"), ((3, 4, 5), "since step 3"), ((0, 1), "until")],
)
def test_when_is_part_of_the_answer(those: tuple[int, ...], text: str) -> None:
    run = job(
        EVERYONE, work=lambda gpu, iteration, step: 3 * MS * (gpu == 1 and iteration in those)
    )
    assert late(run) == [(1, list(those), "kernels")]
    assert text in findings(run)[0]


def test_two_slow_gpus_delay_the_others_and_not_each_other(wording: Wording) -> None:
    run = job(EVERYONE, work=lambda gpu, iteration, step: {1: 2 * MS, 3: 1_800_000}.get(gpu, 0))
    assert late(run) == [(1, list(range(6)), "kernels"), (3, list(range(6)), "kernels")]
    (said,) = findings(run)
    wording(said, "GPUs 1 and 3", "GPU 1 has slower kernels")
    wording(said, "GPU 3 has slower kernels")
    assert "it delays" not in said


def test_of_two_late_gpus_neither_delays_the_other(wording: Wording) -> None:
    """One is slow, one late by its host: two findings, of which each delays the other two."""
    run = job(
        EVERYONE,
        work=lambda gpu, iteration, step: 2 * MS * (gpu == 1),
        host=lambda gpu, iteration, step: 2 * MS * (gpu == 3),
    )
    for said in findings(run):
        wording(said, "two of the other three GPUs")
    assert len(findings(run)) == 2


def test_gpus_of_a_stage_are_named_by_the_stage(wording: Wording) -> None:
    """Every second GPU of 16 is in stage 1, whose kernels take longer."""
    run = job([[range(16)]], work=lambda gpu, iteration, step: 2 * MS * (gpu % 2))
    stages = np.arange(16, dtype=np.int32) % 2
    placed = replace(run, table=replace(run.table, coordinates={"pp": stages}))
    context = context_of(placed, parse("R"))
    wording(context.gpus_text(range(1, 16, 2)), "8 GPUs", "stage 1")
    assert context.gpus_text([1, 3]) == "GPUs 1 and 3"
    assert context.gpus_text(range(1, 14, 2)) == "GPUs 1, 3, 5, 7, 9, 11 and 13"
    assert context.gpus_text(range(16)) == "GPUs 0 to 15"


def test_waits_are_followed_through_process_groups() -> None:
    """GPU 1 is slow; GPU 0 waits for it, and is late for GPU 2 by that alone."""
    run = job(TENSOR_AND_DATA, work=lambda gpu, iteration, step: 2 * MS * (gpu == 1))
    assert late(run) == [(1, list(range(6)), "kernels")]
    stand = leads(run, parse("R"))[0]
    assert stand.delays_ns is not None
    assert np.abs(stand.delays_ns[[0, 2, 3]]).max() == 0
    # 2 ms in either step: late for GPU 0 in the first, and for GPU 3 in both.
    assert stand.delays_ns[1].tolist() == [4 * MS] * 6


def test_a_slow_link_is_named_and_nobody_is_late_for_it(wording: Wording) -> None:
    run = job(TENSOR_AND_DATA, transfer=lambda team: TRANSFER * (4 if tuple(team) == (2, 3) else 1))
    (said,) = findings(run, "slow-link")
    wording(said, "GPUs 2 and 3", "all_reduce", "4.0 times as long", "900 µs")
    assert findings(run) == []
    assert findings(job(TENSOR_AND_DATA), "slow-link") == []
    assert findings(job(EVERYONE), "slow-link") == []


def test_stages_of_a_pipeline_are_not_compared() -> None:
    """GPUs 2 and 3 run other operations and take longer, as the last stage does."""
    run = job(
        EVERYONE,
        work=lambda gpu, iteration, step: 3 * MS * (gpu > 1),
        operation=lambda gpu, step: f"{'head' if gpu > 1 else 'block'}{step}",
    )
    assert [own.gpus for own in occurrences_of(run)] == [(0, 1), (2, 3)]
    assert late(run) == []
    slow = job(
        EVERYONE,
        work=lambda gpu, iteration, step: 3 * MS * (gpu > 1) + 2 * MS * (gpu == 3),
        operation=lambda gpu, step: f"{'head' if gpu > 1 else 'block'}{step}",
    )
    assert late(slow) == [(3, list(range(6)), "kernels")]
    assert any("peers" in note for note in query(slow, parse("R?view=ranks")).notes)


def test_delays_against_a_plain_loop() -> None:
    random = np.random.default_rng(3)
    took = random.integers(0, 3 * MS, (4, 6, 2))
    run = job(EVERYONE, work=lambda gpu, iteration, step: int(took[gpu, iteration, step]))
    stand = leads(run, parse("R"))[0]
    assert stand.delays_ns is not None
    for iteration in range(6):
        own = np.zeros(4)
        for step in range(2):
            arrivals = took[:, iteration, step]
            own += np.maximum(arrivals - np.sort(arrivals)[1], 0)
        expected = [own[g] - median(own[h] for h in range(4) if h != g) for g in range(4)]
        assert stand.delays_ns[:, iteration] == pytest.approx(np.maximum(expected, 0), abs=2)


def test_kernels_of_other_names_take_part_by_their_operation() -> None:
    run = job(EVERYONE, work=lambda gpu, iteration, step: 2 * MS * (gpu == 2))
    table = run.table
    names = [*table.names, "another"]
    other = (table.kind == Kind.COMPUTE) & (table.gpu == 2) & (table.phase == Phase.BACKWARD)
    kernel = np.where(other, len(names) - 1, table.kernel).astype(np.int32)
    run = replace(run, table=replace(table, names=names, kernel=kernel))
    (found,) = occurrences_of(run)
    assert len(found) == 12
    assert late(run) == [(2, list(range(6)), "kernels")]


def test_who_waits_for_whom_needs_all_ranks() -> None:
    """Two ranks of a job of 128: nobody knows whom the others wait for."""
    run = job([[range(2)], [range(2)]], work=lambda gpu, iteration, step: 3 * MS * (gpu == 1))
    table = replace(run.table, group=np.full(len(run.table), -1, np.int32))
    source = Source("t", 1, 0, "", {}, {}, {}, (), "", {"world size": "128"})
    run = replace(run, table=table, sources=(source,), world=128)
    found = collectives_of(run)
    assert found is not None and not found.complete.any()
    rows = query(run, parse("R?view=ranks&columns=wait_ns,caused_ns,delay_ns"))
    assert [rows.row(number)["delay_ns"] for number in range(2)] == [None, None]
    said = details(query(run, parse("R?view=findings")))
    assert not any("waiting for later GPUs" in each for each in said)


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ([0, 1, 2, 3], ""),
        ([2], " in step 12"),
        ([2, 3], " since step 12"),
        ([0, 1], " until step 11"),
        ([0, 3], " in steps 10 and 13"),
        ([0, 1, 3], " in steps 10, 11 and 13"),
    ],
)
def test_when(when: list[int], text: str) -> None:
    assert recurrence(when, [10, 11, 12, 13]) == text


def test_of_many_iterations_some_are_named(wording: Wording) -> None:
    numbers = [*range(10, 30, 3), 29]
    found = recurrence([number - 10 for number in numbers], list(range(10, 40)))
    wording(found, "8 of 30 steps", "10, 13, 16, 19, 22 and 3 more")


def pipeline(stages: int, took: Callable[[int], int], host_ns: Callable[[int], int]) -> Run:
    """One GPU per stage, four micro-steps each way, a layer of its own, activations passed on."""
    rows: list[Row] = []
    groups: list[str] = []
    now = dict.fromkeys(range(stages), 0)
    for iteration in range(6):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            way = range(stages) if phase == Phase.FORWARD else range(stages)[::-1]
            for _ in range(4):
                for gpu in way:
                    place = {"gpu": gpu, "iteration": iteration, "phase": phase, "layer": gpu}
                    launch = now[gpu]
                    if phase == Phase.FORWARD:
                        now[gpu] += host_ns(gpu)
                        launch = now[gpu]
                    rows.append(Row(now[gpu], took(gpu), operation="mlp", launch=launch, **place))
                    groups.append("")
                    now[gpu] += took(gpu)
                    following = gpu + (1 if phase == Phase.FORWARD else -1)
                    if following in way:
                        end = max(now[gpu], now[following]) + TRANSFER
                        for one in (gpu, following):
                            rows.append(
                                Row(now[one], end - now[one], Kind.COMM, 1, one, iteration, phase,
                                    one, "send_recv", "nccl", now[one])
                            )  # fmt: skip
                            groups.append(f"{min(gpu, following)} of 2")
                            now[one] = end
    return grouped(rows, groups)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_stage_without_peers_is_compared_with_the_other_stages(
    wording: Wording, stages: int
) -> None:
    def nothing(gpu: int) -> int:
        return 0

    def usual(gpu: int) -> int:
        return 10 * MS

    even = pipeline(stages, usual, nothing)
    assert findings(even, "slow-stage") == findings(even) == []
    slow = pipeline(stages, lambda gpu: (11 if gpu == 1 else 10) * MS, nothing)
    (said,) = findings(slow, "slow-stage")
    wording(said, "GPU 1", "slow stage", "10.0 % longer")
    # One cause is one finding: that the stage is too long is a part of it.
    slower = located(
        pipeline(stages, lambda gpu: (13 if gpu == 1 else 10) * MS, nothing), f"pp={stages}"
    )
    (said,) = findings(slower, "slow-stage")
    assert "30.0 % longer" in said
    (long,) = findings(slower, "long-stage")
    frame = query(slower, parse("R?view=findings"))
    whole, part = details(frame).index(said), details(frame).index(long)
    assert frame.row(part)["part_of"] == whole + 1 == 1
    late_host = pipeline(stages, usual, lambda gpu: 2 * MS * (gpu == 1))
    (said,) = findings(late_host, "slow-stage")
    wording(said, "GPU 1", "held back by its host", "8 ms per step")


def replicas(slow: int) -> Run:
    """Two stages of two GPUs; compute hides the first of two all-reduces of the second stage."""
    rows: list[Row] = []
    groups: list[str] = []
    begin = 0

    def add(
        gpu: int, span: tuple[int, int], when: tuple[int, int], what: str = "", stream: int = 0
    ) -> None:
        kind = Kind.COMM if what else Kind.COMPUTE
        place = (gpu, *when, gpu // 2, what or f"block{gpu // 2}", what or "block")
        rows.append(Row(span[0], span[1] - span[0], kind, stream, *place, launch=span[0]))
        groups.append({"": "", "all_reduce": "data"}.get(what, f"{gpu % 2} of 2"))

    for iteration in range(6):
        forward, backward = (iteration, Phase.FORWARD), (iteration, Phase.BACKWARD)
        took = [10 * MS + 3 * MS * (gpu == slow) for gpu in range(4)]
        sent = [begin + took[gpu] + TRANSFER for gpu in (0, 1)]
        ends = [sent[replica] + took[2 + replica] for replica in (0, 1)]
        for gpu in (0, 1):
            add(gpu, (begin, begin + took[gpu]), forward)
            add(gpu, (begin + took[gpu], sent[gpu]), forward, "send_recv", 1)
            add(gpu + 2, (begin, sent[gpu]), forward, "send_recv", 1)
            add(gpu + 2, (sent[gpu], ends[gpu]), forward)
            add(gpu + 2, (ends[gpu], ends[gpu] + 10 * MS), backward)
            for since in (0, 10 * MS):
                span = ends[gpu] + since, max(ends) + since + TRANSFER
                add(gpu + 2, span, backward, "all_reduce", 2)
        begin = max(ends) + 10 * MS + TRANSFER
    return grouped(rows, groups)


def test_a_gpu_that_waited_for_a_slow_one_is_not_late_behind_a_hidden_collective() -> None:
    for slow in (0, 2):
        run = replicas(slow)
        assert late(run) == [(slow, list(range(6)), "kernels")]
        (said,) = findings(run)
        assert said.startswith(f"GPU {slow} has slower kernels")


def test_of_many_late_gpus_the_latest_are_explained(wording: Wording) -> None:
    """All that are late are counted, in every form of the views that explain some of them."""
    behind = range(1, 200, 2)
    run = job(
        [[range(300)]],
        iterations=2,
        work=lambda gpu, iteration, step: (5 * MS + (200 - gpu) * 1_000) * (gpu in behind),
    )
    stand = leads(run, parse("R"))[0]
    assert [stand.gpus[one.place] for one in stand.stragglers] == list(behind)[:64]
    sentence = "36 more GPUs are late too: only the 64 that are latest are explained one by one"
    assert stand.unexplained() == sentence
    together, rest = findings(run)
    named = ", ".join(str(gpu) for gpu in list(behind)[:16])
    wording(together, f"GPUs {named} and 48 more", ": GPU 1 ")
    assert rest == f"{sentence}."
    frame = query(run, parse("R?view=findings"))
    opened = frame.target(details(frame).index(f"{sentence}."))
    assert (opened.name, opened.sort) == ("ranks", "-delay_ns")
    assert sentence in query(run, parse("R?view=ranks")).notes


def test_where_a_gpu_is_slower_is_of_the_iterations_in_which_it_is(wording: Wording) -> None:
    """One operation takes 20 ms longer in two steps, another one 2 ms longer in all six."""
    run = job(
        [[range(4)]] * 3,
        work=lambda gpu, iteration, step: (
            (gpu == 2) * MS * (20 * (step == 1 and iteration in {2, 3}) + 2 * (step == 2))
        ),
    )
    (said,) = findings(run)
    wording(said, f"{100 * 20 / 22:.1f} %", "op1 in backward", "layer 1", "steps 2 and 3")
