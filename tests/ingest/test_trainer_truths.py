"""Jobs with a known truth in the lines of each trainer: a slow rank, a restart, a spike of the loss
next to a long step."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chopper_core.analyses.training import restarts_of, training_of
from chopper_core.findings import checked
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from tests.wording import Wording

Line = Callable[[int, int, datetime, float, float], str]
"""The lines of a step, rank, end, time in seconds, and loss."""
BEGIN = datetime(2026, 3, 5, 8, 40, tzinfo=UTC)
SLOW, SINCE, LONGER = 2, 100, 0.2
SPIKE = 77


def deepspeed(step: int, rank: int, at: datetime, took: float, loss: float) -> str:
    stamp = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}"
    return (
        f"[{stamp}] [INFO] [logging.py:96:log_dist] [Rank {rank}] step={step}, skipped=0, "
        f"lr=[1e-05], mom=[(0.9, 0.999)]\n[{stamp}] [INFO] [timer.py:260:stop] [Rank {rank}] "
        f"epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec=5.0, "
        f"CurrSamplesPerSec={5 / took:.4f}, MemAllocated=1.2GB, MaxMemAllocated=3.5GB"
    )


def mlperf(step: int, rank: int, at: datetime, took: float, loss: float) -> str:
    event = {
        "namespace": "", "time_ms": round(at.timestamp() * 1000), "event_type": "POINT_IN_TIME",
        "key": "tracked_stats", "value": {"train_loss": loss, "train_step_time": took},
        "metadata": {"file": "train.py", "lineno": 5, "step": step},
    }  # fmt: skip
    return f"{rank}: :::MLLOG {json.dumps(event)}"


LINES: dict[str, Line] = {
    "Megatron": lambda step, rank, at, took, loss: (
        f"{rank}:  [{at:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8}/     300 | consumed samples: 9 | "
        f"elapsed time per iteration (ms): {1000 * took:.1f} | lm loss: {loss:.6E} | grad norm: 1 |"
    ),
    "Primus": lambda step, rank, at, took, loss: (
        f"[{at:%Y%m%d %H:%M:%S}][rank-{rank}/3][INFO ] [--trainer.py:2488] :  iteration {step}/ 9 "
        f"| consumed samples: 9 | elapsed time per iteration (ms): {1000 * took:.1f}/1000.0 | "
        f"lm loss: {loss:.6E} | grad norm: 0.132 |"
    ),
    "torchtitan": lambda step, rank, at, took, loss: (
        f"[rank{rank}]:[titan] {at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03} - root - INFO - "
        f"step: {step:2}  loss: {loss:8.4f}  memory: 30.00GiB(40%)  tps: {8192 / took:,.0f}"
    ),
    "verl": lambda step, rank, at, took, loss: (
        f"{rank}: step:{step} - actor/pg_loss:{loss} - timing_s/gen:0.5 - timing_s/step:{took}"
    ),
    "MaxText": lambda step, rank, at, took, loss: (
        f"{rank}: I{at:%m%d %H:%M:%S.%f} 140 metric_logger.py:99] completed step: {step}, seconds: "
        f"{took:.3f}, TFLOP/s/device: 123.4, Tokens/s/device: {8192 / took:.3f}, loss: {loss:.3f}"
    ),
    "mmengine": lambda step, rank, at, took, loss: (
        f"{rank}: {at:%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{step:5}/300]  lr: 1e-4  "
        f"eta: 0:20:33  time: {took:.4f}  data_time: 0.0100  memory: 100  loss: {loss:.4f}"
    ),
    "XTuner": lambda step, rank, at, took, loss: (
        f"[XTuner][RANK {rank}][{at:%Y-%m-%d %H:%M:%S}][INFO] Epoch 1 Step {step}/300 data_time: "
        f"0.0125 lr: 1e-05 time: {took:.4f} text_tokens: 9 total_loss: {loss:.5f} grad_norm: 0.75"
    ),
    "DeepSpeed": deepspeed,
    "MLPerf": mlperf,
}


@pytest.mark.parametrize("trainer", LINES)
def test_a_slow_rank_a_restart_and_a_spike(tmp_path: Path, trainer: str, wording: Wording) -> None:
    """Steps of 1 s; rank 2 takes 1.2 s since step 100. The job ends after step 150 and begins again
    at 141, ten minutes later. The loss jumps at step 77, which takes 4 s."""
    text = ""
    now = dict.fromkeys(range(3), BEGIN)
    for attempt, steps in enumerate((range(1, 151), range(141, 301))):
        for step in steps:
            for rank in (1, 0, 2) if step % 2 else (2, 1, 0):
                took = (1 + LONGER * (rank == SLOW and step >= SINCE)) * (4 if step == SPIKE else 1)
                now[rank] += timedelta(seconds=took)
                loss = 9.0 if step == SPIKE else 3.0 - step / 1000
                text += f"{LINES[trainer](step, rank, now[rank], took, loss)}\n"
        if not attempt:
            text += "3: Traceback (most recent call last):\n"
            now = {rank: max(now.values()) + timedelta(minutes=10) for rank in now}
    (tmp_path / "job.log").write_text(text)
    run = open_run(str(tmp_path / "job.log"))
    training = training_of(run)
    assert training is not None and training.ranks.tolist() == [0, 1, 2]
    assert training.usual_ns == pytest.approx(1e9, rel=0.005)
    (restart,) = restarts_of(training)
    assert (restart.last, restart.first, restart.again) == (150, 141, 10)
    found = {rule.name: each for (rule, each), _ in checked(run, parse("R")).placed}
    slow = found["slow-rank-run"]
    assert slow.title.startswith(f"Rank {SLOW} takes ")
    assert float(slow.title.split()[3]) == pytest.approx(100 * LONGER, abs=1.5)
    assert abs(int(slow.title.rpartition("since step ")[2]) - SINCE) <= 5
    if trainer != "DeepSpeed":  # whose lines have no loss
        spike = found["loss-spikes"]
        wording(spike.title, "jumps once, next to a long step")
        assert f"At step {SPIKE} (" in spike.detail
