"""Throughput: step time, tokens per second, cost per token, and the parts of a step's time.

The parts are GEMM, attention and vector work by phase, the optimizer, and what is no compute.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import PAIR, base_of_steps
from chopper_core.analyses.rows import GpuRows, LabelledRows
from chopper_core.analyses.step_columns import STEADY, state_of, whole_numbers
from chopper_core.analyses.step_parts import (
    IDLE,
    PARTS,
    STEP_PART_ROWS,
    StepParts,
    part_column,
    step_parts_of,
)
from chopper_core.analyses.step_times import (
    NO_TOKENS,
    stated_tokens,
    token_rate,
)
from chopper_core.columns import (
    METRICS,
    OTHER_COLUMNS,
    Metric,
    Reduces,
    Scope,
    Values,
    numbered,
    worded,
)
from chopper_core.columns.derived import reduced_along, statistic_column
from chopper_core.model.charts import BarChart, LineChart, Series
from chopper_core.model.phrases import count, facts
from chopper_core.model.run import Run
from chopper_core.model.table import PHASES
from chopper_core.model.units import time_text
from chopper_core.model.view import View, child_of, pivot, with_view
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import ratios
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec, options_of

# Here they are means of a GPU and a step, whatever the base of the view.
PART_COLUMNS: Final = tuple(
    replace(METRICS[part_column(part)], reduces=Reduces.RATIO) for part in PARTS
)
_OVER: Final = {"iteration": ("gpu",), "gpu": ("iteration",), "part": ("gpu", "iteration")}
"""Split → the levels that distinguish a row's instances."""
_OF_SEVERAL: Final = ("spread_pct", "span_ns")
"""What the total row has of all steps together, next to means."""


SPEC: Final = ViewSpec(
    name="throughput",
    title="Compare · throughput",
    question="Step time, tokens per second, cost per token",
    by=("iteration", "gpu", "part"),
    rows=(STEP_PART_ROWS,),
    of="tokens:N, of a GPU and step",
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
    steps = step_parts_of(run, view, int(given) if given else None)
    by_part = by == "part"
    labels, own, whole = _by_part(steps, view.stat) if by_part else _by_step(run, steps, view, by)
    if _deeper(view):
        own, whole = _without_parts(own), _without_parts(whole)
    elif whole and not by_part:
        scope = Scope.of(run, run.tree_of(view).node(view.path))
        whole += [(METRICS[name], METRICS[name].compute(scope)) for name in _OF_SEVERAL]
    return table_view(
        view,
        LabelledRows(by, labels),
        own,
        whole,
        opens=lambda row: _opens(view, by, labels[row]),
        over=over,
        headline=_headline(run, steps),
        notes=_notes(run, view, steps),
        charts=_charts(steps),
        base=base_of_steps(run, view),
    )


def _deeper(view: View) -> list[str]:
    """The levels of a scope that are parts of steps."""
    return [level for level, _ in view.scope if level not in PAIR]


def _without_parts(found: list[Column]) -> list[Column]:
    """Columns without those of parts: they are of whole steps, and a column of that name is of the
    scope's part of them."""
    return [(metric, values) for metric, values in found if metric.name not in SPEC.parts]


def _opens(view: View, by: str, label: str) -> View:
    """A step or a GPU: its node; a part: its operations."""
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
        return (statistic_column(metric, stat) if stat else metric), Values(numbers)

    columns = [
        stated(METRICS["iteration_ns"], took),
        (METRICS["tokens_per_s"], Values(token_rate(tokens, step_ns))),
        (METRICS["step_tokens"], whole_numbers(tokens)),
        *(stated(PART_COLUMNS[place], found[:, 2 + place]) for place in steps.used),
    ]
    return {metric.name: (metric, values) for metric, values in columns}


def _every(steps: StepParts) -> Float64:
    """GPUs x steps x (time, tokens, parts)."""
    return np.stack([steps.times_ns, steps.tokens, *np.moveaxis(steps.parts_ns, 2, 0)], axis=2)


def _by_iteration(steps: StepParts, every: Float64) -> Float64:
    """Steps x GPUs x (time, tokens, parts); the tokens of truncated ones are unknown."""
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
    """A row per step, GPU or coordinate; its instances are GPUs, or steps."""
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
    own["spread_pct"] = (METRICS["spread_pct"], Values(spread))
    first = ["iteration_ns", "tokens_per_s", "spread_pct"]
    if by == "iteration":
        slowest = steps.times_ns.argmax(axis=0).tolist()
        more = {
            "state": worded(_states(run, steps, counted)),
            "slowest": worded([f"GPU {steps.gpus[place]}" for place in slowest]),
            "span_ns": Values(steps.span_ns.max(axis=0)),
        }
        own |= {name: (METRICS[name], values) for name, values in more.items()}
        first[2:] = ["state", "slowest", "spread_pct", "step_tokens", "span_ns"]
    columns = [own[name] for name in dict.fromkeys((*first, *own))]
    return labels, columns, _total(steps, cells[counted], view.stat)


def _by_part(steps: StepParts, stat: str) -> Table:
    used, means = steps.used, steps.means_ns
    whole = means.sum(keepdims=True)

    def figures(part_ns: Float64) -> list[Column]:
        return columns_of(
            {
                "part_ns": numbered(part_ns),
                "part_pct": numbered(100.0 * ratios(part_ns, whole)),
                "per_token_ns": numbered(ratios(part_ns, np.asarray(steps.step_tokens))),
            }
        )

    own, total = figures(means[used]), figures(whole)
    if stat:
        chosen = steps.parts_ns[:, steps.steady].reshape(-1, len(PARTS))
        took = reduced_along(stat, chosen) if chosen.size else means
        own[0], total = (
            (statistic_column(OTHER_COLUMNS["part_ns"], stat), numbered(took[used])),
            total[1:],
        )
    return [PARTS[place] for place in used], own, total


def _states(run: Run, steps: StepParts, counted: Mask) -> list[str]:
    """Whether each step is steady, else why it isn't."""
    return [
        STEADY if whole else state_of(run, number)
        for number, whole in zip(steps.iterations, counted.tolist(), strict=True)
    ]


def _headline(run: Run, steps: StepParts) -> tuple[str, ...]:
    if not steps.steady.any():
        return ("the scope has no complete step: throughput is unknown",)
    took_mark, idle_mark = run.mark("iteration_ns"), run.mark("idle_ns")
    tokens, took = steps.step_tokens, f"step {took_mark}{time_text(steps.step_ns)}"
    if not np.isfinite(tokens) or not steps.step_ns:
        over = count(int(steps.steady.sum()), "steady step")
        return (
            facts(took, f"mean of {over} on {count(len(steps.gpus), 'GPU')}", "tokens unknown"),
        )
    rate = float(token_rate(tokens, steps.step_ns))
    mark = run.mark("tokens_per_s")
    every = f", {mark}{rate * steps.ranks:,.0f} on {steps.ranks} GPUs" if steps.ranks > 1 else ""
    means = steps.means_ns / tokens
    largest = [place for place in np.argsort(-means, kind="stable")[:3].tolist() if means[place]]
    parts = ", ".join(
        f"{PARTS[place]} {idle_mark if PARTS[place] == IDLE else ''}{means[place] / 1e3:.2f}"
        for place in largest
    )
    return (
        facts(f"{mark}{rate:,.0f} tok/s per GPU{every}", f"{took}, {tokens:,.0f} tokens"),
        f"{took_mark}{means.sum() / 1e3:.2f} µs a token: {parts}",
    )


def _notes(run: Run, view: View, steps: StepParts) -> tuple[str, ...]:
    notes = []
    if not np.isfinite(steps.tokens[:, steps.steady]).all():
        notes.append(f"tokens are unknown: {NO_TOKENS}")
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
    if deeper := _deeper(view):
        notes.append(f"figures are of whole steps: the scope's {', '.join(deeper)} is ignored")
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
        "time per token" if known else "time per step",
        "µs" if known else "ms",
        tuple(f"GPU {gpu}" for gpu in steps.gpus),
        tuple(Series(PARTS[place], each[:, place]) for place in used),
    )
    numbers = np.array(steps.iterations, np.float64)[steps.steady]
    mean = {"mean of the GPUs": steps.each_ns[steps.steady] / 1e6}
    return bars, LineChart.over("step time", "ms", "iteration", "", numbers, mean)
