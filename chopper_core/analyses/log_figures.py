"""Figures of a trainer's log, by windows of steps, starts, ranks and stages of a step."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Final

import numpy as np

from chopper_core.analyses.rows import FigureRows
from chopper_core.analyses.training import (
    Restart,
    Training,
    phases_of,
    restarts_of,
    slowest_rank,
    traced_steps,
    training_of,
)
from chopper_core.columns import Values, numbered, row_columns, worded
from chopper_core.model.run import Run, SideSource
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import means_of, median_of, ratios, sums_of

NO_LOG: Final = (
    "the run has no log of a trainer; put the job's output next to it (Megatron, Primus, "
    "torchtitan, Hugging Face Trainer, DeepSpeed, verl, mmengine, MaxText, MLPerf)"
)
_NO_FIGURE: Final = "the log doesn't have it"
_NO_TIME: Final = "the log states no step time, and has no stamps"
LOG_ROWS: Final = "a log's steps, starts, ranks or stages"
row_columns(
    LOG_ROWS,
    f"""
    logged_steps | | steps
        Steps that lines of the log are about; those that were run again count again.
        missing:
    logged_step_ns | ns | step
        Median time of a step by the log, without the first line of each start: as the trainer
        states it, else between the stamps of lines; of several ranks their median.
        missing: {_NO_TIME}
    logged_p95_ns | ns | p95
        95th percentile of the same.
        missing: {_NO_TIME}
    logged_max_ns | ns | slowest
        The longest step of the row on any rank; of a line about several steps their mean.
        missing: {_NO_TIME}
    rank_spread_pct | % | ranks
        The slowest rank's time beyond the fastest one's, in % of that: mean over steps.
        missing: the log is of one rank, or of the whole job
    logged_tokens_per_s | tok/s | tok/s/GPU
        Tokens per second and GPU by the log, weighted by time.
    logged_samples_per_s | 1/s | samples
        Samples per second of the whole job by the log, weighted by time.
    logged_tflops | TFLOP/s | TFLOP/s
        TFLOP per second and GPU by the log, weighted by time.
    logged_mfu_pct | % | MFU
        Model FLOPs utilisation by the log, weighted by time.
    data_wait_pct | % | data
        Time in which a step waits for its batch, in % of its time.
    loss | | loss
        Mean loss.
    grad_norm | | grad norm
        Mean norm of the gradient.
    logged_memory_bytes | B | peak memory
        The largest memory of a GPU: allocated where the log has that, else what it calls memory.
    logged_reserved_bytes | B | reserved
        The most that the framework's allocator holds of a GPU.
    free_memory_bytes | B | headroom
        A GPU's memory without the most that is in use or reserved.
        missing: the log doesn't have the GPU's memory
    traced | | traced
        Whether the traced steps are among them.
        missing: the run has no trace, or nothing places its steps in the log
    begins | | began with
        The first step after a start.
    steps_again | | run again | sum
        Steps that were logged before the start, too.
    away_ns | ns | away | sum
        From the last line before the start to the first one after it.
        missing: the first start, or no stamps
    rank_slower_pct | % | vs ranks | signed
        Median over the steps of the rank's time beyond the median of the ranks; where the trainer
        states no step times, of the time that its tokens take.
        missing: {_NO_TIME}
    stage_ns | ns | time
        Mean time of the stage per step.
    stage_pct | % | of step
        The same in % of the mean step.
        missing: {_NO_TIME}
    slowest_rank | | slowest
        The rank whose mean time of the stage is the longest.
        missing: the log has the stage of one rank, or of the whole job
    stage_behind_pct | % | vs ranks | signed
        Its time beyond the median of the ranks.
        missing: the log has the stage of one rank, or of the whole job
""",
    missing=_NO_FIGURE,
    source="trainer's log",
)
_MOST_WINDOWS: Final = 40


def logged(run: Run) -> Training:
    """The steps of a run's logs; raises NothingToShow without any."""
    training = training_of(run)
    if training is None:
        run.check_read(SideSource.TRAINER)
        raise NothingToShow(NO_LOG)
    return training


def window_size(training: Training) -> int:
    """The steps of a window: a round number of which few are needed."""
    span = int(training.step.max() - training.step.min()) + 1 if len(training) else 1
    # A line about several steps is in one window.
    each = max(round(median_of(training.steps)), 1) if len(training) else 1
    least = max(-(-span // (_MOST_WINDOWS * each)), 1)
    power: int = 10 ** (len(str(least)) - 1)
    return each * next((size * power for size in (1, 2, 5) if size * power >= least), 10 * power)


def log_steps(run: Run, training: Training, by: str) -> FigureRows:
    """The steps of a log by window, step or attempt."""
    members: list[Mask]
    if by == "attempt":
        members = [training.attempt == each for each in training.attempts]
        labels = [f"start {each + 1}" for each in training.attempts]
    elif by == "step":
        return _each_step(run, training)
    else:
        size = window_size(training)
        # Most count from 1.
        least = min(int(training.step.min()), 1)
        window = (training.step - least) // size
        numbers = sorted(set(window.tolist()))
        members = [window == each for each in numbers]
        labels = [
            f"{begin:,}" if size == 1 else f"{begin:,}-{begin + size - 1:,}"
            for begin in (each * size + least for each in numbers)
        ]
    figures = _figures(run, training, members)
    if by == "attempt":
        figures |= _of_attempts(training)
    return FigureRows(by, labels, figures, _whole(run, training))


def _each_step(run: Run, training: Training) -> FigureRows:
    """A row per line, by its own figures."""
    counts: dict[int, int] = {}
    labels = []
    for step in training.step.tolist():
        counts[step] = counts.get(step, 0) + 1
        again = counts[step]
        labels.append(f"{step:,}" if again == 1 else f"{step:,} (run {again})")
    traced = traced_steps(run)
    is_traced = None if traced is None else traced.mask(training)
    found = {
        "logged_steps": Values(training.steps),
        "logged_step_ns": Values(training.step_ns),
        "logged_max_ns": Values(training.slowest_ns),
        "rank_spread_pct": Values(training.spread_pct),
        **{
            name: Values(training.figures[figure])
            for name, figure in _PLAIN.items()
            if figure in training.figures
        },
    }
    if "capacity_bytes" in training.figures:
        found["free_memory_bytes"] = Values(training.free_bytes)
    if "data_ns" in training.figures:
        share = 100.0 * ratios(training.figures["data_ns"], training.step_ns)
        found["data_wait_pct"] = Values(share)
    if is_traced is not None and is_traced.any():
        found["traced"] = worded(["traced" if each else None for each in is_traced.tolist()])
    return FigureRows("step", labels, found, _whole(run, training))


def _whole(run: Run, training: Training) -> dict[str, Values]:
    return _figures(run, training, [np.ones(len(training), np.bool_)])


_PLAIN: Final = {
    "logged_tokens_per_s": "tokens_per_s",
    "logged_samples_per_s": "samples_per_s",
    "logged_tflops": "tflops",
    "logged_mfu_pct": "mfu_pct",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "logged_memory_bytes": "memory_bytes",
    "logged_reserved_bytes": "reserved_bytes",
}


def _figures(run: Run, training: Training, members: Sequence[Mask]) -> dict[str, Values]:
    """The figures of several places each."""
    steady = [own & training.steady for own in members]
    # Alone the first line of a start tells a row's time.
    timed = [some if some.any() else own for some, own in zip(steady, members, strict=True)]
    quantiles = [training.quantiles(own, (0.5, 0.95)) for own in timed]
    found = {
        "logged_steps": Values(np.array([training.steps[own].sum() for own in members], np.int64)),
        "logged_step_ns": numbered([each[0] for each in quantiles]),
        "logged_p95_ns": numbered([each[1] for each in quantiles]),
        "logged_max_ns": numbered([_largest(training.slowest_ns[own]) for own in timed]),
        "rank_spread_pct": numbered([_mean_known(training.spread_pct[own]) for own in timed]),
    }
    for name, figure in _PLAIN.items():
        if figure in training.figures:
            found[name] = numbered([training.mean(figure, own) for own in members])
    if "capacity_bytes" in training.figures:
        free = [training.free_bytes[own] for own in members]
        found["free_memory_bytes"] = numbered([-_largest(-each) for each in free])
    if "data_ns" in training.figures:
        shares = [
            100.0 * training.mean("data_ns", own) / training.mean("step_ns", own)
            if training.mean("step_ns", own) > 0
            else nan
            for own in timed
        ]
        found["data_wait_pct"] = numbered(shares)
    traced = traced_steps(run)
    if traced is not None and (own_steps := traced.mask(training)).any():
        words = ["traced" if (own & own_steps).any() else None for own in members]
        found["traced"] = worded(words)
    return found


def _mean_known(values: Float64) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else nan


def _largest(values: Float64) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else nan


def _of_attempts(training: Training) -> dict[str, Values]:
    by_attempt: dict[int, Restart] = {each.attempt: each for each in restarts_of(training)}
    known = [by_attempt.get(each) for each in training.attempts]
    firsts = [int(training.step[training.attempt == each][0]) for each in training.attempts]
    return {
        "begins": Values(np.array(firsts, np.int64)),
        "steps_again": numbered([None if each is None else each.again for each in known]),
        "away_ns": numbered([None if each is None else each.away_ns for each in known]),
    }


def log_ranks(training: Training) -> FigureRows:
    """The ranks that a log names; raises NothingToShow without any."""
    if not len(training.ranks):
        raise NothingToShow("the log names no ranks: its lines are about the whole job")
    times, slow = training.by_rank()
    rows = training.rows
    whose = np.searchsorted(training.ranks, np.maximum(rows.rank, 0))
    whose = np.where(rows.rank >= 0, whose, len(training.ranks))
    figures = {
        "logged_step_ns": Values(times),
        "rank_slower_pct": Values(100.0 * (slow - 1.0)),
        "logged_steps": Values(sums_of(rows.steps, whose, len(training.ranks) + 1)[:-1]),
    }
    for name, figure in (("logged_tokens_per_s", "tokens_per_s"), ("loss", "loss")):
        values = getattr(rows, figure)
        known = np.isfinite(values)
        if known.any():
            means = means_of(values[known], whose[known], len(training.ranks) + 1)
            figures[name] = Values(means[:-1])
    return FigureRows("rank", list(map(str, training.ranks.tolist())), figures)


def log_stages(run: Run, training: Training) -> FigureRows:
    """The stages of a step that a log times; raises NothingToShow without any."""
    phases = phases_of(run, training)
    if not phases:
        raise NothingToShow("the log times no stages of a step, such as forward")
    step_ns = training.mean("step_ns", training.steady)
    means = [_mean_known(values[training.steady]) for values in phases.values()]
    means = [
        mean if isfinite(mean) else _mean_known(values)
        for mean, values in zip(means, phases.values(), strict=True)
    ]
    slowest = [slowest_rank(run, training, name) for name in phases]
    figures = {
        "stage_ns": numbered(means),
        "stage_pct": numbered([100.0 * each / step_ns if step_ns > 0 else nan for each in means]),
    }
    if any(each is not None for each in slowest):
        figures["slowest_rank"] = worded([each and str(each[0]) for each in slowest])
        figures["stage_behind_pct"] = numbered([each and 100.0 * each[1] for each in slowest])
    return FigureRows("stage", [*phases], figures)
