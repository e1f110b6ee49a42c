"""Links between stages: a slow one is named, and sized by simulating the pipeline without it.

Sends are buffered: they take their time whenever their receive begins. What the trace names is the
process group of all stages, not who sends to whom.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.graph.collectives import collectives_of, sent_and_received
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.align.traces import RCCL
from tests.training import Rank, all_reduce, opened

STAGES, MICROBATCHES, STEPS = 6, 6, 4
USUAL_US, SLOW_US, LATE_US = 40, 400, 10
COMPUTE_US = (300, 340, 300, 320, 300, 310)


def _send_or_receive(rank: Rank, kind: str, stream: int, start: int, end: int) -> None:
    begin = rank.now
    rank.launch(
        RCCL, rank.now + 2, start=start, duration=end - start, stream=stream,
        **{"Collective name": kind, "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
           "dtype": "BFloat16", "Group size": STAGES, "Process Group Name": "pp",
           "Process Group Ranks": str(list(range(STAGES)))},
    )  # fmt: skip
    rank.now += 6
    rank.op(f"nccl:{kind}", begin, rank.now)


def _step(ranks: list[Rank], slow: int | None) -> None:
    begins = max(each.now for each in ranks)
    for each in ranks:
        each.now, each.free = begins, max(each.free, begins)
    sent = [[0] * MICROBATCHES for _ in ranks]
    for stage, each in enumerate(ranks):
        took = SLOW_US if stage == slow else USUAL_US
        on_stream, sending = each.now + 12, 0
        with each.note_around("forward"):
            for number in range(MICROBATCHES):
                if stage:
                    start = max(on_stream, each.now + 12)
                    ended = max(start + LATE_US, sent[stage - 1][number])
                    _send_or_receive(each, "recv", 11, start, ended)
                    # The next one is posted once this microbatch is computed.
                    each.free = max(each.free, ended + 2)
                each.product("mlp", 2 * COMPUTE_US[stage])
                on_stream = each.free
                if stage < STAGES - 1:
                    start = max(each.free + 2, sending, each.now + 12)
                    sending = sent[stage][number] = start + took
                    _send_or_receive(each, "send", 12, start, sending)
    all_reduce(ranks, 60)
    for each in ranks:
        each.sync()


def _pipeline(slow: int | None, folder: Path) -> tuple[Run, float]:
    """A run, and its mean step in ns."""
    ranks = [Rank(number, STAGES) for number in range(STAGES)]
    begin = ranks[0].now
    for number in range(STEPS):
        starts = [each.now for each in ranks]
        _step(ranks, slow)
        for each, start in zip(ranks, starts, strict=True):
            each.note(f"ProfilerStep#{number}", start, each.now)
    return opened(ranks, folder), 1e3 * (ranks[0].now - begin) / STEPS


def test_a_slow_link_of_two_stages_is_named_and_sized(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("usual", "slow")]
    for each in folders:
        each.mkdir()
    (clean, usual_ns), (run, long_ns) = map(_pipeline, (None, 2), folders)
    for each in (clean, run):
        found = collectives_of(each)
        assert found is not None
        pairs = sent_and_received(found)
        assert len(pairs) == (STAGES - 1) * MICROBATCHES * STEPS
        sender, receiver = each.table.gpu[pairs].T
        assert (abs(receiver - sender) == 1).all()
    frames = [query(each, View(each.name, name="findings")) for each in (clean, run)]
    rules = [[frame.row(row)["rule"] for row in range(len(frame))] for frame in frames]
    assert "slow-link" not in rules[0]
    row = rules[1].index("slow-link")
    assert row == 0
    assert "GPUs 2 and 3" in frames[1].labels[row]
    figures = frames[1].row(row)
    assert figures["saving_ns"] == pytest.approx(long_ns - usual_ns, rel=0.1)
    assert figures["saving_low_ns"] <= long_ns - usual_ns <= figures["saving_high_ns"]
