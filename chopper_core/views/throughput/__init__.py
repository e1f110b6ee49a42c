"""Throughput: step time, tokens per second, cost per token."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Metric, Values, column, numbered, worded
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.run import Run
from chopper_core.model.table import PHASES
from chopper_core.model.units import time_text
from chopper_core.model.view import View, pivot
from chopper_core.query.derived import named, reduced_along
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import distinct, median_of, medians_along
from chopper_core.views.shared.table_view import child_of
from chopper_core.views.spec import ViewResult, ViewSpec
from chopper_core.views.throughput.parts import PARTS, Steps, steps_of

_GIVEN: Final = re.compile(r"tokens:(\d{1,12})")
_NO_TOKENS: Final = (
    "the trace has no shapes of an embedding or attention (record_shapes=True in the profiler), "
    "and the address gives no number of tokens (of=tokens:8192, per GPU and iteration)"
)
_CUT: Final = "the iteration is truncated by the profiling window, or missing on a GPU"
_TIME: Final = (
    "Time charged to an iteration of a GPU: its activities and the idle time before them, so that "
    "the iterations of a GPU add up to its span."
)

ITERATION: Final = column(
    "iteration_ns",
    "ns",
    "iteration",
    f"The iteration's time on the GPU that takes longest. {_TIME}",
    missing_because=_CUT,
)
SLOWEST: Final = column("slowest", "", "slowest GPU", "The GPU that takes longest.")
STATE: Final = column(
    "state", "", "state", "steady, or cut: truncated by the profiling window, or missing on a GPU."
)
MEDIAN: Final = column(
    "median_ns",
    "ns",
    "median",
    f"The median over the steady iterations of the GPU's time in them. {_TIME}",
    missing_because=_CUT,
)
SPREAD: Final = column(
    "spread_pct",
    "%",
    "spread",
    "The longest less the shortest time, in % of the shortest: of GPUs in an iteration, or of "
    "steady iterations on a GPU.",
)
SPAN: Final = column(
    "span_ns",
    "ns",
    "span",
    "First start to last end, the largest of all GPUs: the original's iteration time, without the "
    "idle time before the iteration and where iterations overlap too long.",
    source="UnaryLab/chopper lead_and_throughput.py (use_elapsed)",
)
TOKENS_IN: Final = column(
    "tokens",
    "",
    "tokens",
    "Tokens per GPU and iteration: given in the address, or from the trace's shapes.",
    source="trace or address",
    missing_because=_NO_TOKENS,
)
RATE: Final = column(
    "tokens_per_s",
    "tok/s",
    "per GPU",
    "Tokens per second and GPU: tokens / iteration_ns; of a GPU, by the median of the iterations' "
    "times.",
    source="trace or address",
    missing_because=f"{_NO_TOKENS}; or {_CUT}",
)
PART: Final = column(
    "part_ns",
    "ns",
    "time",
    "Mean time per GPU and steady iteration. Compute of forward, backward, prefill and decode is "
    "divided by the operation's name where it is known (q_ip, attn_fa, mlp_gs ...), else by the "
    "kernel's class; convolutions are with the GEMMs. Communication and copies are the exposed "
    "time; launch is idle time. The parts add up to the mean iteration.",
)
PART_SHARE: Final = column(
    "part_pct", "%", "share", "part_ns in % of the mean time of a GPU in a steady iteration."
)
PER_TOKEN: Final = column(
    "per_token_ns",
    "ns",
    "per token",
    "part_ns / tokens.",
    source="trace or address",
    missing_because=_NO_TOKENS,
)


_OVER: Final = {
    "iteration": ("gpu",),
    "gpu": ("iteration",),
    "part": ("gpu", "iteration"),
}
"""Split → the levels that tell a row's instances apart."""


def _part_column(name: str) -> Metric:
    return column(
        f"{name.replace(' ', '_').lower()}_ns",
        "ns",
        name,
        f"Time of {name}, mean per GPU and iteration of the row (see part_ns).",
    )


PART_COLUMNS: Final = tuple(_part_column(name) for name in PARTS)
SPEC: Final = ViewSpec(
    name="throughput",
    title="Throughput",
    question="Step time, tokens per second, cost per token",
    by=("iteration", "gpu", "part"),
    of="tokens:N, of a GPU and iteration",
    parts=tuple(each.name for each in PART_COLUMNS),
)


def answer(run: Run, view: View) -> ViewResult:
    """The steps of the scope by iteration, GPU or part of their time."""
    by = view.by or "iteration"
    along = run.table.coordinates
    over = _OVER.get(by, _OVER["gpu"])
    if view.over and set(view.over) != set(over):
        raise UsageError(
            f"the view throughput by {by} has one instance per {' and '.join(over)}; it takes no "
            "other over="
        )
    steps = steps_of(run, view, given_tokens(view.of))
    if by in along:
        labels, own, total = _by_coordinate(run, steps, view)
    else:
        make = {"iteration": _by_iteration, "gpu": _by_gpu, "part": _by_part}[by]
        labels, own, total = make(steps, view.stat)
    known = [metric.name for metric, values in own if values.present().any()]
    return ViewResult(
        level=by,
        labels=labels,
        columns=tuple(own),
        opens=lambda row: _opens(view, by, labels[row]),
        total=total,
        shown=tuple(known),
        over=over,
        headline=_headline(steps),
        notes=_notes(run, view, steps),
        charts=_pictures(steps),
    )


def _opens(view: View, by: str, label: str) -> View:
    """An iteration or a GPU: its node; a part: the operations it lies in."""
    if by != "part":
        return child_of(view, by, label)
    if label == "launch":
        return replace(view, name="launch", by="", of="", columns=(), sort="", filter="")
    plain = replace(view, name="", by="", of="", columns=(), filter="", sort="")
    phase = label.partition(" ")[0]
    if phase in PHASES:
        plain = child_of(view, "phase", phase)
    state = {"communication": "exposed_comm_ns", "copies": "exposed_copy_ns"}.get(label)
    sort = f"-{state or 'compute_busy_ns'}"
    return replace(pivot(plain, "operation"), sort=sort)


def given_tokens(text: str) -> int | None:
    """The tokens that an address gives, `tokens:8192`; raises UsageError for anything else."""
    if not text:
        return None
    match = _GIVEN.fullmatch(text)
    if match is None or not int(match[1]):
        raise UsageError(
            f"the view throughput takes of=tokens:N, the tokens per GPU and iteration, not {text!r}"
        )
    return int(match[1])


Columns = tuple[list[str], list[tuple[Metric, Values]], dict[str, int | float]]


def _by_iteration(steps: Steps, stat: str) -> Columns:
    times = steps.times_ns
    slowest = times.argmax(axis=0)
    tokens = steps.tokens.mean(axis=0)
    steady = steps.steady
    rate = np.where(steady, 1e9 * tokens / np.maximum(steps.slowest_ns, 1), np.nan)
    least = np.where(steps.there, times, np.iinfo(np.int64).max).min(axis=0)
    took = Values(steps.slowest_ns)
    spread = np.where(steady, 100.0 * (steps.slowest_ns - least) / np.maximum(least, 1), np.nan)
    means = steps.parts_ns.sum(axis=0) / np.maximum(steps.there.sum(axis=0), 1)[:, None]
    if stat:
        took = numbered(reduced_along(stat, np.where(steps.there, times, np.nan)))
        there = steps.there[:, :, None]
        means = reduced_along(stat, np.where(there, steps.parts_ns, np.nan))
    own: list[tuple[Metric, Values]] = [
        (_stated(ITERATION, stat), took),
        (RATE, numbered(rate)),
        (STATE, worded(["steady" if whole else "cut" for whole in steady.tolist()])),
        (SLOWEST, worded([f"GPU {steps.gpus[row]}" for row in slowest.tolist()])),
        (SPREAD, numbered(spread)),
        (TOKENS_IN, _counted(np.where(steady, tokens, np.nan))),
        (SPAN, Values(steps.span_ns.max(axis=0))),
        *_part_columns(steps, means, stat),
    ]
    total: dict[str, int | float] = {}
    if steady.any():
        total[ITERATION.name] = median_of(steps.slowest_ns[steady])
        if stat:
            total[ITERATION.name] = float(reduced_along(stat, times[:, steady].ravel()[:, None])[0])
        if np.isfinite(found := _rate(steps)):
            total[RATE.name] = found
    return [str(number) for number in steps.iterations], own, total


def _counted(numbers: Float64) -> Values:
    """Numbers as integers, where all that are known are whole."""
    known = np.isfinite(numbers)
    if (numbers[known] % 1 == 0).all():
        return Values(np.where(known, numbers, 0).astype(np.int64), ~known)
    return numbered(numbers)


def _stated(metric: Metric, stat: str) -> Metric:
    return named(metric, stat) if stat else metric


def _part_columns(steps: Steps, numbers: Float64, stat: str) -> list[tuple[Metric, Values]]:
    """The columns of the parts that take any time, from rows x parts."""
    return [
        (_stated(PART_COLUMNS[place], stat), numbered(numbers[:, place])) for place in _used(steps)
    ]


def _by_coordinate(run: Run, steps: Steps, view: View) -> Columns:
    """A row per coordinate: times of its slowest GPU, means of its GPUs for all else."""
    codes = run.table.coordinates[view.by][steps.gpus]
    parts = distinct(codes).tolist()
    labels = [run.table.text_of(view.by, code) for code in parts]
    members = [np.flatnonzero(codes == code) for code in parts]
    _, own, total = _rows_of_gpus(steps, members, view.stat)
    whose = "of the slowest GPU of the row"
    slowest = replace(MEDIAN, definition=f"The median over the steady iterations, {whose}. {_TIME}")
    return labels, [(slowest if m.name == MEDIAN.name else m, values) for m, values in own], total


def _by_gpu(steps: Steps, stat: str) -> Columns:
    return _rows_of_gpus(steps, [np.array([at]) for at in range(len(steps.gpus))], stat)


def _rows_of_gpus(steps: Steps, members: list[Index], stat: str) -> Columns:
    """A row per GPU, or per set of GPUs that take as long as the slowest of them."""
    steady = steps.steady
    times = np.stack([steps.times_ns[own][:, steady].max(axis=0) for own in members])
    tokens = np.stack([steps.tokens[own][:, steady].mean(axis=0) for own in members])
    parts = np.stack([steps.parts_ns[own][:, steady].mean(axis=0) for own in members])
    count = len(members)
    if steady.any():
        median = medians_along(times, axis=1)
        spread = 100.0 * (times.max(axis=1) - times.min(axis=1)) / np.maximum(times.min(axis=1), 1)
        means = parts.mean(axis=1)
        mean_tokens = tokens.mean(axis=1)
        took = median
        if stat:
            took = reduced_along(stat, times.T)
            means = reduced_along(stat, np.moveaxis(parts, 1, 0))
    else:
        median = took = spread = mean_tokens = np.full(count, np.nan)
        means = np.full((count, len(PARTS)), np.nan)
    own: list[tuple[Metric, Values]] = [
        (named(ITERATION, stat) if stat else MEDIAN, numbered(took)),
        (RATE, numbered(1e9 * mean_tokens / median)),
        (SPREAD, numbered(spread)),
        (TOKENS_IN, _counted(mean_tokens)),
        *_part_columns(steps, means, stat),
    ]
    total: dict[str, int | float] = {}
    if steady.any():
        total[MEDIAN.name] = median_of(times.max(axis=0))
        if stat:
            total[ITERATION.name] = float(reduced_along(stat, times.ravel()[:, None])[0])
        if np.isfinite(found := _rate(steps)):
            total[RATE.name] = found
    return [str(gpu) for gpu in steps.gpus], own, total


def _by_part(steps: Steps, stat: str) -> Columns:
    used = _used(steps)
    chosen = steps.parts_ns[:, steps.steady]
    if chosen.size:
        means = chosen.mean(axis=(0, 1))
        tokens = steps.tokens[:, steps.steady].mean()
    else:
        means, tokens = np.full(len(PARTS), np.nan), np.nan
    whole = means.sum()
    took = means
    if stat and chosen.size:
        took = reduced_along(stat, chosen.reshape(-1, len(PARTS)))
    own: list[tuple[Metric, Values]] = [
        (_stated(PART, stat), numbered(took[used])),
        (PART_SHARE, numbered(100.0 * means[used] / whole)),
        (PER_TOKEN, numbered(means[used] / tokens)),
    ]
    figures = {PART_SHARE.name: 100.0, PER_TOKEN.name: whole / tokens}
    if not stat:
        figures[PART.name] = whole
    total = {name: float(value) for name, value in figures.items() if np.isfinite(value)}
    return [PARTS[place] for place in used], own, total if np.isfinite(whole) else {}


def _used(steps: Steps) -> list[int]:
    return np.flatnonzero(steps.parts_ns.sum(axis=(0, 1))).tolist()


def _rate(steps: Steps) -> float:
    """Tokens per second and GPU by the median steady iteration; NaN where they aren't known."""
    if not steps.steady.any():
        return float("nan")
    tokens = steps.tokens[:, steps.steady].mean()
    return float(1e9 * tokens / median_of(steps.slowest_ns[steps.steady]))


def _headline(steps: Steps) -> tuple[str, ...]:
    if not steps.steady.any():
        return ("the scope has no complete iteration: throughput is unknown",)
    count = int(steps.steady.sum())
    median = median_of(steps.slowest_ns[steps.steady])
    over = f"{count} steady iteration{'s' if count > 1 else ''}"
    time = f"an iteration takes {time_text(median)}, median of {over} on the slowest GPU"
    rate = _rate(steps)
    if not np.isfinite(rate):
        return (f"{time}; the tokens are unknown",)
    tokens = steps.tokens[:, steps.steady]
    what = f"{rate:,.0f} tokens/s per GPU"
    if len(steps.gpus) > 1:
        what += f", {rate * len(steps.gpus):,.0f} on {len(steps.gpus)} GPUs"
    each = f"{tokens.mean():,.0f} tokens per GPU and iteration"
    means = steps.parts_ns[:, steps.steady].mean(axis=(0, 1)) / tokens.mean()
    largest = np.argsort(-means, kind="stable")[:3].tolist()
    parts = ", ".join(f"{PARTS[place]} {means[place] / 1e3:.2f}" for place in largest)
    return (f"{what}: {each}; {time}", f"a token takes {means.sum() / 1e3:.2f} µs: {parts} µs")


def _notes(run: Run, view: View, steps: Steps) -> tuple[str, ...]:
    notes = []
    cut = [str(n) for n, whole in zip(steps.iterations, steps.steady, strict=True) if not whole]
    if cut:
        notes.append(f"iteration {', '.join(cut)} left out: truncated or missing on a GPU")
    if not np.isfinite(steps.tokens[:, steps.steady]).all():
        notes.append(f"tokens are unknown: {_NO_TOKENS}")
    elif view.of:
        notes.append("tokens as given in the address")
    else:
        notes.append(
            "tokens from the shapes in the trace; where several GPUs share them (tensor or "
            "pipeline parallelism) the rate of all GPUs counts them several times"
        )
    deeper = [level for level, _ in view.scope if level not in ("gpu", "iteration")]
    if deeper:
        notes.append(f"figures are of whole iterations: the scope's {', '.join(deeper)} is ignored")
    return tuple(notes)


def _pictures(steps: Steps) -> tuple[BarChart | LineChart, ...]:
    if not steps.steady.any():
        return ()
    means = steps.parts_ns[:, steps.steady].mean(axis=1)
    tokens = steps.tokens[:, steps.steady].mean(axis=1)
    known = bool(np.isfinite(tokens).all())
    each = means / tokens[:, None] / 1e3 if known else means / 1e6
    used = _used(steps)
    bars = BarChart(
        "time per token" if known else "time per iteration",
        "µs" if known else "ms",
        tuple(f"GPU {gpu}" for gpu in steps.gpus),
        tuple(Series(PARTS[place], each[:, place]) for place in used),
    )
    numbers = np.array(steps.iterations, np.float64)[steps.steady]
    line = LineChart(
        "iteration time",
        "ms",
        "iteration",
        "",
        (numbers,),
        (Series("slowest GPU", steps.slowest_ns[steps.steady] / 1e6),),
    )
    return (bars, line)
