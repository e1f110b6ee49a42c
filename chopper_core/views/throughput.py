"""Throughput: step time, tokens per second, cost per token, and the parts of a step's time.

The parts are GEMM, attention and vector work by phase, the optimizer, and what is no compute.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.kernel_classes import ATTENTION_CLASS, OPTIMIZER_CLASS, kernel_class
from chopper_core.metrics import Metric, Values, column, columns, numbered, worded
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import PHASES, KernelTable, Phase, Selection
from chopper_core.model.units import time_text
from chopper_core.model.view import View, pivot, with_view
from chopper_core.util.arrays import AnyArray, Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import ratios, runs_of, sums_of
from chopper_core.views.base import base_of, base_of_steps
from chopper_core.views.shared.derived import named, reduced_along
from chopper_core.views.shared.phrases import count, facts
from chopper_core.views.shared.step_times import (
    of_steps,
    ranks_of,
    replicas_of,
    stated_tokens,
    token_rate,
    tokens_in,
    whole_steps,
)
from chopper_core.views.shared.table_view import (
    GpuRows,
    LabelledRows,
    child_of,
    table_view,
)
from chopper_core.views.spec import ViewResult, ViewSpec, options_of

_BY_PHASE: Final = ("GEMM", "attention", "vector")
_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.PREFILL, Phase.DECODE)
"""The phases whose compute is divided further."""
PARTS: Final = (
    *(f"{phase.name.lower()} {word}" for phase in _PHASES for word in _BY_PHASE),
    "optimizer",
    "sharding copies",
    "other compute",
    "communication",
    "copies",
    "launch",
)
"""They add up to all time: compute by kind, then exposed communication and copies, then idle."""
_OPERATIONS: Final = {
    "GEMM": re.compile(r"^(?:(?:q|k|v|kv|qkv)_ip|attn_op|(?:mlp|ffn|fc)_(?:[gud]|gu)p|ln?p)$"),
    "attention": re.compile(r"^attn_(?:fa|sdpa)$"),
    "vector": re.compile(
        r"^(?:ie|ln|cel|ra|attn_(?:n|i|c|or|ra)|qkv_(?:s|t|re)|(?:mlp|ffn|fc)_(?:n|gs|gu|ra))$"
    ),
    "optimizer": re.compile(r"^opt_|^Optimizer\."),
    "sharding copies": re.compile(r"^(?:FSDP::|FullyShardedDataParallel\.)"),
}
"""The operations of each class. The rules are those of UnaryLab/chopper's annotations.py with the
operations' full names, since its own take every name that ends in `p` for a product.
"""
_RECOMPUTED: Final = " (recompute)"
_KERNELS: Final = {
    "gemm": "GEMM",
    "convolution": "GEMM",
    ATTENTION_CLASS: "attention",
    OPTIMIZER_CLASS: "optimizer",
}
_CLASSES: Final = tuple(_OPERATIONS)
_COLUMNS: Final = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")

_NO_TOKENS: Final = (
    "the trace has no shapes of an embedding or attention (record_shapes=True in the profiler), "
    "and neither the settings (--set gbs=128,seq=4096) nor the address (of=tokens:8192, per GPU "
    "and iteration) give a number of tokens"
)
_CUT: Final = "the iteration is truncated by the profiling window, or missing on a GPU"
COLUMNS: Final = columns(
    f"""
    iteration_ns | ns | iteration
        Time charged to an iteration of a GPU: its activities and the idle time before them, so that
        the iterations of a GPU add up to its span. Mean over the complete iterations and GPUs of
        the row: the step time.
        missing: {_CUT}
    slowest | | slowest GPU
        The GPU that takes longest.
    state | | state
        steady, warm-up: the first of a window, over 1.5 times as long as the others, or cut:
        truncated by the profiling window, or missing on a GPU.
    spread_pct | % | spread
        The longest minus the shortest time, in % of the shortest: of GPUs in an iteration, or of
        steady iterations on a GPU.
    span_ns | ns | span
        First start to last end, the largest of all GPUs: the original's iteration time, without
        the idle time before the iteration and where iterations overlap too long.
        source: UnaryLab/chopper lead_and_throughput.py (use_elapsed)
    tokens | | tokens
        Tokens per GPU and iteration: given in the address, global_batch x sequence of the settings
        over the ranks, or from the trace's shapes. GPUs of one data-parallel replica (tensor,
        context and pipeline parallelism) share its tokens.
        missing: {_NO_TOKENS}
        source: address, settings or trace
    tokens_per_s | tok/s | per GPU
        Tokens per second and GPU: tokens / iteration_ns.
        missing: {_NO_TOKENS}; or {_CUT}
        source: trace or address
    part_ns | ns | time
        Mean time per GPU and steady iteration. Compute of forward, backward, prefill and decode is
        divided by the operation's name where it is known (q_ip, attn_fa, mlp_gs ...), else by the
        kernel's class; convolutions are with the GEMMs. Communication and copies are the exposed
        time; launch is idle time. The parts add up to the mean iteration.
    part_pct | % | of step
        part_ns in % of the mean time of a GPU in a steady iteration.
    per_token_ns | ns | per token
        part_ns / tokens: the time that a GPU takes for a token.
        missing: {_NO_TOKENS}
        source: trace or address
"""
)
PART_COLUMNS: Final = tuple(
    column(
        f"{name.replace(' ', '_').lower()}_ns | ns | {name}\n"
        f"Time of {name}, mean per GPU and iteration of the row (see part_ns)."
    )
    for name in PARTS
)
_OVER: Final = {"iteration": ("gpu",), "gpu": ("iteration",), "part": ("gpu", "iteration")}
"""Split → the levels that distinguish a row's instances."""


SPEC: Final = ViewSpec(
    name="throughput",
    title="Throughput",
    question="Step time, tokens per second, cost per token",
    by=("iteration", "gpu", "part"),
    of="tokens:N, of a GPU and iteration",
    parts=tuple(each.name for each in PART_COLUMNS),
)


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "iteration"
    over = _OVER.get(by, _OVER["gpu"])
    if view.over and set(view.over) != set(over):
        raise UsageError(
            f"the view throughput by {by} has one instance per {' and '.join(over)}; it takes no "
            "other over="
        )
    given = options_of(view, SPEC, tokens=r"0*[1-9]\d{0,11}").get("tokens")
    steps = steps_of(run, view, int(given) if given else None)
    by_part = by == "part"
    labels, own, whole = _by_part(steps, view.stat) if by_part else _by_step(run, steps, view, by)
    return table_view(
        view,
        LabelledRows(by, labels),
        own,
        whole,
        opens=lambda row: _opens(view, by, labels[row]),
        over=over,
        headline=_headline(steps),
        notes=_notes(run, view, steps),
        charts=_charts(steps),
        base=base_of_steps(run, view),
    )


def _opens(view: View, by: str, label: str) -> View:
    """An iteration or a GPU: its node; a part: its operations."""
    if by != "part":
        return child_of(view, by, label)
    if label == "launch":
        return with_view(view, "launch")
    plain = with_view(view, "")
    phase = label.partition(" ")[0]
    if phase in PHASES:
        plain = child_of(view, "phase", phase)
    state = {"communication": "exposed_comm_ns", "copies": "exposed_copy_ns"}.get(label)
    sort = f"-{state or 'compute_busy_ns'}"
    return replace(pivot(plain, "operation"), sort=sort)


Column = tuple[Metric, Values]
Table = tuple[list[str], list[Column], list[Column]]
"""Labels, columns of the rows, and columns of all rows as one."""


def _figures(steps: StepParts, cells: Float64, stat: str, step_ns: Float64) -> dict[str, Column]:
    """Time, rate, tokens and parts of rows, whose cells are instances x (time, tokens, parts)."""
    tokens = cells[:, :, 1].mean(axis=1)
    found = reduced_along(stat or "mean", np.moveaxis(cells, 1, 0))
    took = found[:, 0] if stat else step_ns

    def stated(metric: Metric, numbers: Float64) -> Column:
        return (named(metric, stat) if stat else metric), Values(numbers)

    whole = Values(np.nan_to_num(tokens).astype(np.int64), np.isnan(tokens))
    is_whole = np.array_equal(whole.numbers, np.nan_to_num(tokens))
    columns = [
        stated(COLUMNS["iteration_ns"], took),
        (COLUMNS["tokens_per_s"], Values(token_rate(tokens, step_ns))),
        (COLUMNS["tokens"], whole if is_whole else Values(tokens)),
        *(stated(PART_COLUMNS[place], found[:, 2 + place]) for place in steps.used),
    ]
    return {metric.name: (metric, values) for metric, values in columns}


def totals(run: Run, view: View) -> list[Column]:
    """The total row by iteration; nothing without a complete one."""
    steps = steps_of(run, view)
    return _total(steps, _by_iteration(steps, _every(steps))[steps.steady], "")


def _every(steps: StepParts) -> Float64:
    """GPUs x iterations x (time, tokens, parts)."""
    return np.stack([steps.times_ns, steps.tokens, *np.moveaxis(steps.parts_ns, 2, 0)], axis=2)


def _by_iteration(steps: StepParts, every: Float64) -> Float64:
    """Iterations x GPUs x (time, tokens, parts); the tokens of truncated ones are unknown."""
    cells = np.moveaxis(np.where(steps.there[:, :, None], every, np.nan), 1, 0)
    cells[~steps.steady, :, 1] = np.nan
    return cells


def _total(steps: StepParts, cells: Float64, stat: str) -> list[Column]:
    """All instances as one row."""
    if not steps.steady.any():
        return []
    together = cells.reshape(1, -1, cells.shape[2])
    return [*_figures(steps, together, stat, np.array([steps.step_ns])).values()]


def _by_step(run: Run, steps: StepParts, view: View, by: str) -> Table:
    """A row per iteration, GPU or coordinate; its instances are GPUs, or iterations."""
    every = _every(steps)
    if by == "iteration":
        labels, counted = list(map(str, steps.iterations)), steps.steady
        cells = _by_iteration(steps, every)
    else:
        rows = GpuRows.of(run, steps.gpus, by)
        labels, counted = rows.labels, np.ones(len(rows.labels), np.bool_)
        cells = np.full((len(labels), 1, every.shape[2]), np.nan)
        if steps.steady.any():
            chosen, there = every[:, steps.steady], steps.there[:, steps.steady, None]
            cells = np.stack(
                [ratios(chosen[own].sum(axis=0), there[own].sum(axis=0)) for own in rows.members]
            )
    times = cells[:, :, 0]
    own = _figures(steps, cells, view.stat, reduced_along("mean", times.T))
    least, most = (how.reduce(times, axis=1) for how in (np.fmin, np.fmax))
    spread = np.where(counted, 100.0 * (most - least) / np.maximum(least, 1), np.nan)
    own["spread_pct"] = (COLUMNS["spread_pct"], Values(spread))
    first = ["iteration_ns", "tokens_per_s", "spread_pct"]
    if by == "iteration":
        slowest = steps.times_ns.argmax(axis=0).tolist()
        more = {
            "state": worded(_states(run, steps, counted)),
            "slowest": worded([f"GPU {steps.gpus[place]}" for place in slowest]),
            "span_ns": Values(steps.span_ns.max(axis=0)),
        }
        own |= {name: (COLUMNS[name], values) for name, values in more.items()}
        first[2:] = ["state", "slowest", "spread_pct", "tokens", "span_ns"]
    columns = [own[name] for name in dict.fromkeys((*first, *own))]
    return labels, columns, _total(steps, cells[counted], view.stat)


def _by_part(steps: StepParts, stat: str) -> Table:
    used, means = steps.used, steps.means_ns
    whole = means.sum(keepdims=True)

    def figures(part_ns: Float64) -> list[Column]:
        return [
            (COLUMNS["part_ns"], numbered(part_ns)),
            (COLUMNS["part_pct"], numbered(100.0 * ratios(part_ns, whole))),
            (COLUMNS["per_token_ns"], numbered(ratios(part_ns, np.asarray(steps.step_tokens)))),
        ]

    own, total = figures(means[used]), figures(whole)
    if stat:
        chosen = steps.parts_ns[:, steps.steady].reshape(-1, len(PARTS))
        took = reduced_along(stat, chosen) if chosen.size else means
        own[0], total = (named(COLUMNS["part_ns"], stat), numbered(took[used])), total[1:]
    return [PARTS[place] for place in used], own, total


def _states(run: Run, steps: StepParts, counted: Mask) -> list[str]:
    """Whether each iteration is steady, else why it isn't."""
    return [
        "steady" if whole else "warm-up" if number in run.warm_up else "cut"
        for number, whole in zip(steps.iterations, counted.tolist(), strict=True)
    ]


def _headline(steps: StepParts) -> tuple[str, ...]:
    if not steps.steady.any():
        return ("the scope has no complete iteration: throughput is unknown",)
    tokens, took = steps.step_tokens, f"iteration {time_text(steps.step_ns)}"
    if not np.isfinite(tokens) or not steps.step_ns:
        over = count(int(steps.steady.sum()), "steady iteration")
        return (
            facts(took, f"mean of {over} on {count(len(steps.gpus), 'GPU')}", "tokens unknown"),
        )
    rate = float(token_rate(tokens, steps.step_ns))
    every = f", {rate * steps.ranks:,.0f} on {steps.ranks} GPUs" if steps.ranks > 1 else ""
    means = steps.means_ns / tokens
    largest = np.argsort(-means, kind="stable")[:3].tolist()
    parts = ", ".join(f"{PARTS[place]} {means[place] / 1e3:.2f}" for place in largest)
    return (
        facts(f"{rate:,.0f} tok/s per GPU{every}", f"{took}, {tokens:,.0f} tokens"),
        f"{means.sum() / 1e3:.2f} µs a token: {parts}",
    )


def _notes(run: Run, view: View, steps: StepParts) -> tuple[str, ...]:
    notes = []
    if not np.isfinite(steps.tokens[:, steps.steady]).all():
        notes.append(f"tokens are unknown: {_NO_TOKENS}")
    elif view.of:
        notes.append("tokens as given in the address")
    elif stated_tokens(run):
        batch, sequence = (run.settings[name] for name in ("global_batch", "sequence"))
        notes.append(f"tokens from the settings: global batch {batch} x sequence {sequence}")
    else:
        notes.append("tokens from the shapes in the trace")
    if steps.replicas < 1:
        notes.append(
            f"{round(1 / steps.replicas)} GPUs of a data-parallel replica share its tokens"
        )
    deeper = [level for level, _ in view.scope if level not in ("gpu", "iteration")]
    if deeper:
        notes.append(f"figures are of whole iterations: the scope's {', '.join(deeper)} is ignored")
    return tuple(notes)


def _charts(steps: StepParts) -> tuple[BarChart | LineChart, ...]:
    if not steps.steady.any():
        return ()
    means = ratios(
        steps.parts_ns[:, steps.steady].sum(axis=1),
        steps.there[:, steps.steady].sum(axis=1, keepdims=True),
    )
    tokens = steps.tokens[:, steps.steady].mean(axis=1)
    known = bool(np.isfinite(tokens).all())
    each = means / tokens[:, None] / 1e3 if known else means / 1e6
    used = steps.used
    bars = BarChart(
        "time per token" if known else "time per iteration",
        "µs" if known else "ms",
        tuple(f"GPU {gpu}" for gpu in steps.gpus),
        tuple(Series(PARTS[place], each[:, place]) for place in used),
    )
    numbers = np.array(steps.iterations, np.float64)[steps.steady]
    mean = {"mean of the GPUs": steps.each_ns[steps.steady] / 1e6}
    return bars, LineChart.over("iteration time", "ms", "iteration", "", numbers, mean)


@lru_cache(maxsize=1 << 12)
def operation_class(name: str) -> str:
    """The class of an operation of the vocabulary; empty for others, classed by their kernels."""
    name = name.removesuffix(_RECOMPUTED)
    return next((word for word, known in _OPERATIONS.items() if known.search(name)), "")


def _part_of(table: KernelTable) -> Callable[[Selection], Int64]:
    """A function from rows to the part that each one's compute belongs to, as a place in
    `PARTS`."""
    places = {word: place for place, word in enumerate(_CLASSES)}
    # A missing label, -1, is the last place.
    words = [*map(operation_class, table.operations), ""]
    of_operation = np.array([places.get(word, -1) for word in words], np.int8)
    classes = [places[_KERNELS.get(kernel_class(name), "vector")] for name in table.names]
    of_kernel = np.array(classes, np.int8)
    part = np.full((len(_CLASSES), len(Phase) + 1), PARTS.index("other compute"), np.int64)
    for place, each in enumerate(_PHASES):
        part[: len(_BY_PHASE), each] = len(_BY_PHASE) * place + np.arange(len(_BY_PHASE))
    part[:, Phase.OPTIMIZER] = part[places["optimizer"]] = PARTS.index("optimizer")
    part[places["sharding copies"]] = PARTS.index("sharding copies")

    def found(rows: Selection) -> Int64:
        named = of_operation[table.operation[rows]]
        kind = np.where(named >= 0, named, of_kernel[table.kernel[rows]])
        return np.asarray(part[kind, table.phase[rows]])

    return found


def _parts_of_steps(run: Run, steps: Groups) -> Int64:
    """The time of each part of whole iterations of GPUs, added up once for each GPU."""
    gpus, iterations = (steps.codes(level) for level in ("gpu", "iteration"))
    found = np.zeros((len(steps), len(PARTS)), np.int64)
    for gpu, own in runs_of(gpus):
        codes, parts = run.memo(("parts of steps", gpu), partial(_parts_of_gpu, run, gpu))
        found[own] = parts[np.searchsorted(codes, iterations[own])]
    return found


def _parts_of_gpu(run: Run, gpu: int) -> tuple[AnyArray, Int64]:
    table = run.table
    steps = run.tree().split((table.text_of("gpu", gpu),), ("iteration",))
    part_of = run.memo(("parts of names",), partial(_part_of, table))
    times = np.zeros(len(steps) * len(PARTS), np.int64)
    for rows, step in steps.pieces():
        computing = table.compute_ns[rows] + table.overlap_ns[rows]
        times += sums_of(computing, step * len(PARTS) + part_of(rows), len(times))
    parts = times.reshape(len(steps), len(PARTS))
    for place, name in enumerate(_COLUMNS, len(PARTS) - len(_COLUMNS)):
        parts[:, place] = steps.sum(name)
    return steps.codes("iteration"), parts


class StepParts(Struct, frozen=True, eq=False):
    """The iterations of the scope on its GPUs."""

    gpus: list[int]
    iterations: list[int]
    parts_ns: Int64
    """GPUs x iterations x parts."""
    span_ns: Int64
    """GPUs x iterations."""
    there: Mask
    """Where a GPU has the iteration at all."""
    steady: Mask
    """Which iterations are whole on all GPUs."""
    tokens: Float64
    """Per GPU and iteration, its part of those it shares; NaN where they aren't known."""
    replicas: float
    """Data-parallel replicas per GPU: less than one where GPUs share tokens."""
    ranks: int
    """The GPUs, with those of the job without a trace where all others are here."""

    @property
    def times_ns(self) -> Int64:
        return np.asarray(self.parts_ns.sum(axis=2), np.int64)

    @property
    def each_ns(self) -> Float64:
        """The step time of each iteration: its mean over the GPUs that have it."""
        return np.asarray(self.times_ns.sum(axis=0) / np.maximum(self.there.sum(axis=0), 1))

    @property
    def means_ns(self) -> Float64:
        """The mean of each part over the GPUs' steady iterations; NaN without one."""
        chosen = self.parts_ns[:, self.steady]
        return ratios(chosen.sum(axis=(0, 1)), self.there[:, self.steady].sum())

    @property
    def used(self) -> list[int]:
        """The parts that take any time, as places in `PARTS`."""
        return np.flatnonzero(self.parts_ns.sum(axis=(0, 1))).tolist()

    @property
    def step_tokens(self) -> float:
        """The mean of the tokens of a steady iteration; NaN where they aren't known."""
        return float(self.tokens[:, self.steady].mean()) if self.steady.any() else float("nan")

    @property
    def step_ns(self) -> float:
        """The step time, as of `StepTimes`; NaN without a steady iteration."""
        return float(self.means_ns.sum())


def steps_of(run: Run, view: View, tokens: int | None = None) -> StepParts:
    """The labelled iterations of the scope's GPUs, whole, whatever else the scope names."""
    key = ("steps", view.order, view.path, view.cut, tokens)
    return run.memo(key, lambda: _steps_of(run, view, tokens))


def _steps_of(run: Run, view: View, tokens: int | None) -> StepParts:
    steps, gpus, iterations = whole_steps(run, view)
    if not len(iterations):
        raise NothingToShow(
            "the scope has no iterations; throughput needs a trace with steps "
            "(ProfilerStep# or Iteration annotations, or an optimizer)"
        )

    def laid_out(values: AnyArray, empty: float = 0) -> AnyArray:
        return of_steps(steps, gpus, iterations, values, empty)

    there = laid_out(np.ones(len(steps), np.bool_), False)
    known = tokens_in(run, gpus.tolist(), iterations.tolist(), tokens)
    # The tokens of a truncated step are unknown: only a query for the step shows its rate.
    base = base_of(run, view)
    own = of_steps(base.cells, gpus, iterations, base.counted, False)
    whole = np.asarray(own.any(axis=0), np.bool_)
    if not view.cut:
        whole &= ~np.isin(iterations, [*run.cut_iterations])
    parts = laid_out(_parts_of_steps(run, steps))
    return StepParts(
        gpus.tolist(),
        iterations.tolist(),
        parts,
        laid_out(steps.max("end_ns") - steps.min("start_ns")),
        there,
        whole,
        known,
        replicas_of(run),
        ranks_of(run, gpus.tolist()),
    )
