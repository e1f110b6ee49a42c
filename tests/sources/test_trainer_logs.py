"""Logs of trainers: lines as each writes them, below what launchers and loggers put before them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from chopper_core.sources.registry import Family, family_of, read_source
from chopper_core.sources.signals import ClockDomain
from chopper_core.sources.trainer.steps import TrainerLog, leading_number
from chopper_core.util.errors import DataError
from tests.sources.trainer_texts import (
    DEEPSPEED,
    EPOCHS,
    MAXTEXT,
    MEGATRON,
    MLPERF,
    MMENGINE,
    PRIMUS,
    PRINTED,
    STATE,
    TITAN,
    TITAN_EVENTS,
    VERL,
    XTUNER,
    lines,
)
from tests.wording import Wording

_GIB = 2.0**30


def log_of(folder: Path, text: str, name: str = "train.log") -> TrainerLog:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    assert family_of(path) is Family.TRAINER
    found: TrainerLog = read_source(path, Family.TRAINER)
    return found


Expected = dict[str, list[float]]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            MEGATRON,
            {"step_ns": [1234.1e6, 1234.2e6, 1234.3e6], "tflops": [410.2] * 3,
             "loss": [3.201, 3.202, 3.203], "grad_norm": [1.25] * 3, "learning_rate": [1e-4] * 3},
        ),
        (
            PRIMUS,
            {"step_ns": [2701.1e6, 2701.2e6, 2701.3e6], "tflops": [210.5] * 3,
             "tokens_per_s": [12130.4] * 3, "loss": [2.352391] * 3, "grad_norm": [0.132] * 3,
             "memory_bytes": [227.35 * _GIB] * 3, "capacity_bytes": [255.98 * _GIB] * 3},
        ),
        (
            TITAN,
            {"tokens_per_s": [7281, 7282, 7283], "tflops": [407.35] * 3, "mfu_pct": [41.19] * 3,
             "loss": [8.1661, 8.1662, 8.1663], "grad_norm": [3.6855] * 3,
             "memory_bytes": [2.5 * _GIB] * 3, "capacity_bytes": [2.5 / 0.0312 * _GIB] * 3},
        ),
        (
            VERL,
            {"step_ns": [41.5e9, 42.5e9, 43.5e9], "tokens_per_s": [1234.5] * 3,
             "mfu_pct": [34.0] * 3, "loss": [0.011, 0.012, 0.013], "grad_norm": [0.5] * 3},
        ),
        (
            MAXTEXT,
            {"step_ns": [1.15e9, 1.25e9, 1.35e9], "tokens_per_s": [4567.89] * 3,
             "tflops": [123.456] * 3, "loss": [2.145, 2.245, 2.345]},
        ),
        (
            MMENGINE,
            {"step_ns": [1.2145e9, 1.2245e9, 1.2345e9], "loss": [2.31, 2.32, 2.33],
             "learning_rate": [2e-4] * 3, "memory_bytes": [12345 * 2.0**20] * 3,
             "data_ns": [0.0123e9] * 3},
        ),
        (
            XTUNER,
            {"step_ns": [3.21e9, 3.22e9, 3.23e9], "tokens_per_s": [10150.4] * 3,
             "loss": [1.51, 1.52, 1.53], "grad_norm": [0.75] * 3, "learning_rate": [1e-5] * 3,
             "memory_bytes": [60.5 * _GIB] * 3, "reserved_bytes": [64.0 * _GIB] * 3,
             "data_ns": [0.0125e9] * 3},
        ),
    ],
)  # fmt: skip
def test_each_trainer_s_lines(tmp_path: Path, template: str, expected: Expected) -> None:
    log = log_of(tmp_path, "setup: 1\n" + lines(template) + "done\n")
    assert log.step.tolist() == [1, 2, 3] and not log.losses.notes
    assert {name: values.tolist() for name, values in log.figures.items()} == {
        name: pytest.approx(values, rel=1e-12) for name, values in expected.items()
    }


def test_stamps_and_ranks_before_a_line(tmp_path: Path) -> None:
    second = int(datetime(2026, 3, 5, 8, 40, 1, tzinfo=UTC).timestamp()) * 10**9
    log = log_of(tmp_path, lines(TITAN))
    assert log.clock is ClockDomain.LOCAL and log.rank.tolist() == [3] * 3
    assert log.time_ns.tolist() == [second + n * 10**9 + 125 * 10**6 for n in range(3)]
    assert log_of(tmp_path, lines(PRIMUS)).rank.tolist() == [31] * 3
    assert log_of(tmp_path, lines(XTUNER)).rank.tolist() == [5] * 3
    plain = lines(TITAN).replace("[rank3]:", "")
    assert log_of(tmp_path, plain).rank.tolist() == [-1] * 3
    assert log_of(tmp_path, plain, "rank7.log").rank.tolist() == [7] * 3
    assert log_of(tmp_path, plain, "attempt_0/2/stdout.log").rank.tolist() == [2] * 3
    of_srun = "".join(f"{rank}: {line}\n" for rank in (0, 11) for line in plain.splitlines())
    assert log_of(tmp_path, of_srun).rank.tolist() == [0] * 3 + [11] * 3
    zoned = plain.replace("08:40:0", "09:40:0").replace(",125", ".125+01:00")
    log = log_of(tmp_path, zoned)
    assert log.clock is ClockDomain.EPOCH and log.time_ns[0] == second + 125 * 10**6
    # Those of mmengine's epochs and of absl lack the year.
    for text in (lines(EPOCHS), lines(MAXTEXT)):
        log = log_of(tmp_path, text)
        year = datetime.fromtimestamp((tmp_path / "train.log").stat().st_mtime, UTC).year
        stamp = datetime(year, 3, 5, 8, 40, 1, tzinfo=UTC).timestamp() * 1e9
        assert 0 <= log.time_ns[0] - stamp < 10**9
        assert any("lack the year" in note for note in log.notes)


DISGUISES: dict[str, Callable[[str], str]] = {
    "torchrun": lambda line: f"[rank5]: {line}",
    "srun": lambda line: f"5: {line}",
    "colours": lambda line: f"\x1b[1;32m{line}\x1b[0m",
    "a progress bar": lambda line: f" 50%|#####     | 1/2 [00:01<00:01]\r{line}\r",
    "containers": lambda line: f"2026-03-05T08:40:00.123456789Z stdout F {line}",
    "another language": lambda line: f"训练日志 — größe {line}",
}
"""What launchers and terminals make of a line."""


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize(
    "template",
    [MEGATRON, PRIMUS, TITAN, VERL, MAXTEXT, MMENGINE, EPOCHS, XTUNER, DEEPSPEED, MLPERF, PRINTED],
)
def test_each_trainer_s_lines_in_disguise(tmp_path: Path, template: str, disguise: str) -> None:
    """Steps and figures are those of the plain lines, and the rank that of the launcher."""
    if template == PRINTED and disguise == "a progress bar":
        pytest.skip("a bar has the steps of these lines: see the test of the Trainer")
    plain = lines(template) if "{n" in template else template
    known = log_of(tmp_path, plain, "plain.log")
    changed = [DISGUISES[disguise](line) for line in plain.splitlines()]
    # Lines of other libraries, and of a rank that is cut, come between.
    between = [f"{each}\nWARNING: step 7 of 9, loss: none\n" for each in changed]
    log = log_of(tmp_path, "\ufeffsetup\n" + "".join(between) + changed[-1][:20], "job.log")
    assert log.step.tolist() == known.step.tolist() and not log.losses.unreadable_events
    assert {*log.figures} == {*known.figures} and {*log.phases} == {*known.phases}
    for name, values in (*known.figures.items(), *known.phases.items()):
        own = log.figures.get(name, log.phases.get(name))
        assert own is not None and np.array_equal(own, values, equal_nan=True)
    if disguise in ("torchrun", "srun"):
        assert set(log.rank.tolist()) == {5}


def test_lines_about_something_else_are_no_steps(tmp_path: Path) -> None:
    """torchtitan's validation, between its steps, and verl's lengths under its times."""
    text = "".join(
        f"{line}\n{line.replace('step:', 'validate step:').replace('7,28', '9,99')}\n"
        for line in lines(TITAN).splitlines()
    )
    log = log_of(tmp_path, text)
    assert log.step.tolist() == [1, 2, 3]
    assert log.figures["tokens_per_s"].tolist() == [7281, 7282, 7283]
    of_total = lines(TITAN).replace("step:  ", "step: ").replace("  loss", "/644 = 9.3 %  loss", 3)
    assert log_of(tmp_path, of_total).step.tolist() == [1, 2, 3]
    slowest = "timing_s/agent_loop/slowest/response_length:4096 - timing_s/gen"
    log = log_of(tmp_path, lines(VERL).replace("timing_s/gen", slowest))
    assert set(log.phases) == {"gen", "update_actor"}


def test_steps_of_epochs_count_from_the_first(tmp_path: Path) -> None:
    assert log_of(tmp_path, lines(EPOCHS)).step.tolist() == [501, 502, 503]


def test_phases_and_unused_keys(tmp_path: Path) -> None:
    log = log_of(tmp_path, lines(VERL))
    assert {name: values.tolist() for name, values in log.phases.items()} == {
        "gen": [12.5e9] * 3,
        "update_actor": [20.25e9] * 3,
    }
    assert log.unused == {"global_seqlen/mean": 3}
    assert log_of(tmp_path, lines(MEGATRON)).unused == {
        "consumed samples": 3,
        "global batch size": 3,
        "loss scale": 3,
        "number of skipped iterations": 3,
    }


@pytest.mark.parametrize("before", ["", "/iterations "])
def test_timers_below_a_step_of_megatron(tmp_path: Path, before: str) -> None:
    """The parts of a step as the slowest rank has them."""
    text = "".join(
        before
        + MEGATRON.format(n=n, c=n)
        + "(min, max) time across ranks (ms):\n"
        + f"    forward-backward ...............................: (900.50, 91{n}.25)\n"
        + "    optimizer ......................................: (50.00, 51.25)\n"
        for n in (1, 2)
    )
    log = log_of(tmp_path, text)
    assert {name: values.tolist() for name, values in log.phases.items()} == {
        "forward-backward": [911.25e6, 912.25e6],
        "optimizer": [51.25e6] * 2,
    }


def test_deepspeed_says_a_step_in_three_lines(tmp_path: Path) -> None:
    log = log_of(tmp_path, lines(DEEPSPEED))
    assert log.step.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3] and log.rank.tolist()[0] == 0
    rates = log.figures["samples_per_s"]
    assert rates[np.isfinite(rates)].tolist() == pytest.approx([5.1, 5.2, 5.3])
    assert set(log.phases) == {"fwd", "bwd", "bwd_inner", "step"}
    forward = log.phases["fwd"]
    assert forward[np.isfinite(forward)].tolist() == [12.5e6] * 3


def test_colours_carriage_returns_and_what_is_cut(tmp_path: Path) -> None:
    coloured = lines(TITAN).replace("step:", "\x1b[31mstep:").replace("  loss", "\x1b[39m  loss")
    log = log_of(tmp_path, coloured.replace("\n", "\r\n"))
    assert log.step.tolist() == [1, 2, 3] and log.figures["loss"].tolist()[0] == 8.1661
    text = lines(TITAN)
    log = log_of(tmp_path, text[: text.rindex("tps")])
    assert log.step.tolist() == [1, 2] and log.losses.truncated
    # A key that comes later, or is gone, loses nothing.
    mixed = lines(TITAN).splitlines(keepends=True)
    mixed[0] = mixed[0].replace("grad_norm:  3.6855  ", "")
    mixed[1] = mixed[1].replace("mfu: 41.19%", "mfu: 41.19%  lr: 0.5")
    log = log_of(tmp_path, "".join(mixed))
    assert np.isnan(log.figures["grad_norm"]).tolist() == [True, False, False]
    assert log.figures["learning_rate"].tolist()[1] == 0.5
    assert log.figures["tflops"].tolist() == [407.35] * 3


def test_lines_that_no_trainer_writes(tmp_path: Path, wording: Wording) -> None:
    """Many equal keys in a line, other keys in each line, and keys of any length."""
    first = lines(TITAN, 1)
    log = log_of(tmp_path, first + ("step: 2 " + "loss: x " * 3000 + "\n") * 20)
    assert len(log) == 21 and np.isnan(log.figures["loss"][1:]).all()
    others = "".join(f"step: {n} k{n}: 1 tps: 1\n" for n in range(2, 402))
    log = log_of(tmp_path, first + others + "step: 9 " + "a" * 99_999 + ": 1 tps: 5\n")
    wording.among(log.losses.notes, "parsed")
    assert max(map(len, log.unused)) < 99_999 and len(log.unused) < 400


def test_thousands_and_decimal_commas() -> None:
    assert leading_number("7,282")[0] == 7282 and leading_number("1,234,567.5")[0] == 1234567.5
    assert leading_number("3,25")[0] == 3.25 and leading_number("41.19%") == (41.19, "%")
    assert leading_number("5901.2/5905.3")[0] == 5901.2 and np.isnan(leading_number("n/a")[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("time_ms", ["1e308", "-1e308"])
def test_a_time_too_long_for_its_unit_is_none(tmp_path: Path, time_ms: str) -> None:
    log = log_of(tmp_path, lines(MEGATRON, 3).replace("1234.1", time_ms))
    assert np.array_equal(log.figures["step_ns"], [np.nan, 1234.2e6, 1234.3e6], equal_nan=True)


def test_the_state_of_hugging_face_s_trainer(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 5e-5, "loss": 2.5, "step": 10},
        {"epoch": 0.1, "eval_loss": 2.4, "step": 10},
        {"epoch": 0.2, "grad_norm": 1.25, "learning_rate": 4e-5, "loss": 2.25, "step": 20},
        {"epoch": 0.2, "step": 20, "train_runtime": 50.0, "train_samples_per_second": 12.8},
    ]
    text = json.dumps({"best_metric": None, "global_step": 20, "log_history": history}, indent=2)
    log = log_of(tmp_path, text, "trainer_state.json")
    assert log.step.tolist() == [10, 20, 20]
    assert log.figures["loss"].tolist()[:2] == [2.5, 2.25]
    assert log.figures["step_ns"].tolist()[2] == 2.5e9
    assert log.figures["samples_per_s"].tolist()[2] == 12.8
    printed = "".join(
        f"\r{n}%|#| {10 * n}/100 [00:{15 * n:02}<02:15,  1.50s/it]"
        f"{{'loss': '{3 - n / 4}', 'grad_norm': '1.5', 'learning_rate': '5e-05', "
        f"'epoch': '0.{n}'}}\n"
        for n in range(1, 4)
    )
    log = log_of(tmp_path, printed)
    assert log.step.tolist() == [10, 20, 30]
    assert log.figures["loss"].tolist() == [2.75, 2.5, 2.25]
    assert log.figures["step_ns"].tolist()[1:] == [1.5e9, 1.5e9]


def test_mlperf_events(tmp_path: Path) -> None:
    def event(key: str, value: object, time_ms: int, **metadata: object) -> str:
        text = json.dumps({
            "namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key,
            "value": value, "metadata": {"file": "train.py", "lineno": 5, **metadata},
        })  # fmt: skip
        return f"0: :::MLLOG {text}\n"

    text = event("global_batch_size", 64, 1_772_700_000_000) + "".join(
        event("tracked_stats", {"train_loss": 5.0 - n, "throughput": 100.0 + n},
              1_772_700_000_000 + 1000 * n, samples_count=640 * n)
        for n in range(1, 4)
    )  # fmt: skip
    log = log_of(tmp_path, text)
    assert log.step.tolist() == [10, 20, 30] and log.clock is ClockDomain.EPOCH
    assert log.figures["loss"].tolist() == [4.0, 3.0, 2.0]
    assert log.figures["samples_per_s"].tolist() == [101, 102, 103]
    assert log.time_ns[0] == 1_772_700_001_000 * 10**6


def test_structured_events_of_torchtitan(tmp_path: Path) -> None:
    """A step of 100 ms with 10 ms for its batch and 80 ms forward and backward; one of 150 ms."""
    begin_us = 1_772_700_000_000_000
    events = []
    for step, begin, took in ((1, 0, 100), (2, 100, 150), (3, 250, 100)):
        for name, at in (("fetching_batch_start", 0), ("fetching_batch_end", 10),
                         ("fwd_bwd_start", 15), ("fwd_bwd_end", took - 5)):  # fmt: skip
            events.append((step, begin + at, name, None, None))
        events.append((step, begin + took - 4, "metric_value", "loss", 5.0 - step))
    text = "".join(
        json.dumps({
            "tid": 7, "rank": 2, "global_rank": 2, "source": "training", "step": step,
            "time_us": begin_us + 1000 * at_ms, "log_type_name": name, "event_name": event,
            "value": value,
        }) + "\n"
        for step, at_ms, name, event, value in events
    )  # fmt: skip
    log = log_of(tmp_path, text, "structured_logs/training.global_rank_2.20260305-AB.jsonl")
    assert log.step.tolist() == [1, 2, 3] and log.rank.tolist() == [2] * 3
    # The last one ends with its last event.
    assert log.figures["step_ns"].tolist() == [100e6, 150e6, 96e6]
    assert log.figures["data_ns"].tolist() == [10e6] * 3
    assert log.figures["loss"].tolist() == [4.0, 3.0, 2.0]
    assert log.phases["fwd_bwd"].tolist() == [80e6, 130e6, 80e6]


def test_other_text_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "notes.log"
    for text in (
        "step: 1 of the recipe\nstep: 2 stir\n",
        "iteration 3/10 done\n",
        "Step 1/12 : FROM ubuntu\n",
        "global_step=3 is what we want\n",
        "the train run: time: 3\n",
    ):
        path.write_text(text)
        assert family_of(path) is None
    path.write_text("step: 1  loss: x  tps: y\n")
    with pytest.raises(DataError):
        read_source(path, Family.TRAINER)


def test_numbers_of_json_that_are_beyond_any_step(tmp_path: Path) -> None:
    """Steps, stamps and samples that no run has cost their own row only."""
    state = json.loads(STATE)
    state["log_history"][1] = {"loss": 10**400, "step": 10**30}
    log = log_of(tmp_path, json.dumps(state), "trainer_state.json")
    assert log.step.tolist() == [10, 20, 20] and log.losses.unreadable_events == 1
    text = MLPERF.replace("1280", "Infinity").replace("1772700003000", "-1e308")
    log = log_of(tmp_path, text)
    assert log.step.tolist() == [10, 30] and log.time_ns.tolist()[1] == -1
    text = TITAN_EVENTS.replace('"step": 2', f'"step": {10**30}')
    log = log_of(tmp_path, text, "training.global_rank_2.jsonl")
    assert log.step.tolist() == [1, 3]
