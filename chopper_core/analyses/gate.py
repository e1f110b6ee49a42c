"""Limits on what may change from a baseline to a run, judged against the noise of the steps.

A limit is exceeded only where the steps of the run lie beyond it by more than chance: the
Wilcoxon-Mann-Whitney test of `determinism`, between the run's steps and the baseline's moved
by the limit, adjusted for the number of limits. It is met where they lie within it by more than
chance; else the steps can't tell. Where a run lacks the figure, or has too few steps, nothing was
checked: that is no pass.

Runs with the same settings differ by more than their steps do. With several baselines the
spread of their medians is known: the run's median has to lie beyond it too, by Student's test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses import step_columns as step_columns
from chopper_core.analyses.base import base_of
from chopper_core.analyses.coverage import values_on_base
from chopper_core.analyses.significance import LEVEL, adjusted, one_more, unpaired
from chopper_core.analyses.step_parts import step_parts_of
from chopper_core.analyses.step_times import token_rate
from chopper_core.columns import METRICS, Metric, Reduces, Scope, metric_named, raw_counter
from chopper_core.model.column_names import is_counter
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, NO_LABEL
from chopper_core.model.units import WRITTEN, Unit, scaled_text
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NoSuchNode, NothingToShow, UsageError
from chopper_core.util.grouping import distinct, median_of

PASS: Final = "pass"
FAIL: Final = "fail"
INCONCLUSIVE: Final = "inconclusive"
UNCHECKED: Final = "unchecked"
MIN_ITERATIONS: Final = 4
"""The fewest steps of each run with which the test can tell."""
_LIMIT: Final = re.compile(
    r"(?:(?P<path>.+)/)?(?P<figure>[A-Za-z][\w.]*)(?P<sign>[<>])"
    r"(?P<number>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>%|[A-Za-zµ°]*)"
)
STEP_TIME: Final = "iteration_ns"
TOKENS: Final = "tokens_per_s"
_OF_STEPS: Final = (STEP_TIME, TOKENS)
"""Figures of whole steps."""
_ALIASES: Final = {"step_time": STEP_TIME, "step_time_ns": STEP_TIME}


class Limit(Struct, frozen=True):
    """How far a figure may change from the baseline."""

    text: str
    """As it was given."""
    path: tuple[tuple[str, str], ...]
    """Levels and labels of the part that it is about; empty: the whole run."""
    figure: str
    is_upper: bool
    number: float
    is_relative: bool
    """Whether the number is in % of the baseline, not in the figure's unit."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that its figure rests on."""
        if self.figure in _OF_STEPS:
            return (self.figure, STEP_TIME, "elapsed_ns")
        return (self.figure,)

    def moved(self, base: Float64) -> Float64:
        return base * (1.0 + self.number / 100.0) if self.is_relative else base + self.number


class Judged(Struct, frozen=True):
    """A limit and how a run does against it."""

    limit: Limit
    metric: Metric
    ours: float
    """The median of the run's steps."""
    base: float
    counts: tuple[int, int]
    """The steps of the run and of the baselines."""
    runs: int
    """The baselines that have the figure."""
    spread_pct: float
    """The standard deviation of their medians, in % of the mean; NaN of one."""
    reason: str
    """Why it can't be judged, where it can't."""
    chances: tuple[float, float]
    """How likely chance alone makes the difference of the steps, and that of the runs."""
    q: float = np.nan
    """How likely chance alone puts the run as far from the limit; NaN: too few steps."""

    @property
    def medians(self) -> list[str]:
        return [scaled_text(each, self.metric.unit) for each in (self.base, self.ours)]

    @property
    def change_pct(self) -> float:
        """NaN without a figure, or from a baseline of 0."""
        return 100.0 * (self.ours / self.base - 1.0) if self.base else np.nan

    @property
    def change(self) -> str:
        return f"{self.change_pct:+z.1f} %" if np.isfinite(self.change_pct) else ""

    @property
    def verdict(self) -> str:
        if self.reason or not np.isfinite(self.q):
            return UNCHECKED
        if self.q >= LEVEL:
            return INCONCLUSIVE
        is_above = self.ours > float(self.limit.moved(np.array([self.base]))[0])
        return FAIL if is_above == self.limit.is_upper else PASS

    @property
    def sentence(self) -> str:
        limit = self.limit
        what = f"{self.verdict}: {limit.text}"
        if self.reason:
            return f"{what}: {self.reason}"
        values = " → ".join(self.medians)
        over = f"{self.counts[0]} and {self.counts[1]} steps"
        if self.runs > 1:
            over += f", and of {self.runs} baselines that spread by ±{self.spread_pct:.1f} %"
        if self.verdict == UNCHECKED:
            why = f"too few to tell, {over}; {MIN_ITERATIONS} of each can"
        elif self.verdict == INCONCLUSIVE:
            why = f"not beyond the noise of {over} (q {self.q:.2g})"
        else:
            why = f"beyond the noise of {over} (q {self.q:.2g})"
        if self.runs == 1 and self.verdict != UNCHECKED:
            why += "; the noise between runs is unknown"
        return f"{what}: {f'{self.change}, ' if self.change else ''}{values}, {why}"


def parse_limit(text: str) -> Limit:
    """Parse `[LEVEL=LABEL/…]FIGURE>+NUMBER[%|unit]`; raises UsageError."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a limit such as step_time>+2%, operation=mlp_dp/elapsed_ns>+5% or "
            "exposed_comm_ns>+1ms"
        )
    path = []
    for step in (match["path"] or "").split("/"):
        level, equals, label = step.partition("=")
        if step and (not equals or level not in LEVELS):
            raise UsageError(f"{text!r}: {step!r} is not LEVEL=LABEL; levels: {', '.join(LEVELS)}")
        path += [(level, label)] if step else []
    figure = _ALIASES.get(match["figure"], match["figure"])
    own = _named(figure).unit
    if figure in _OF_STEPS and path:
        raise UsageError(f"{text!r}: {figure} covers whole steps; drop the path")
    unit = match["unit"].lower()
    if unit not in WRITTEN:
        raise UsageError(f"{text!r} has an unknown unit {match['unit']!r}")
    scale, its_own = WRITTEN[unit]
    if figure in METRICS and own != (its_own or own):
        raise UsageError(f"{text!r}: {figure} is in {own or 'no unit'}, not in {match['unit']}")
    number = float(match["number"]) * scale
    if number and not unit and own is Unit.NS and not match["figure"].endswith("_ns"):
        raise UsageError(f"{text!r} needs a unit, such as {text.strip()}ms or {text.strip()}%")
    is_relative = unit == "%" and not (figure in METRICS and own is Unit.PERCENT)
    return Limit(text.strip(), tuple(path), figure, match["sign"] == ">", number, is_relative)


def _named(figure: str) -> Metric:
    """A metric, or a hardware counter that a run may have."""
    is_raw = figure not in METRICS and is_counter(figure)
    return raw_counter(figure) if is_raw else metric_named(figure)


def judge(run: Run, base: Run, limits: Sequence[Limit], others: Sequence[Run] = ()) -> list[Judged]:
    found = [_judged(run, (base, *others), limit) for limit in limits]
    of_iterations, of_runs = np.array([each.chances for each in found]).reshape(-1, 2).T
    # Only a difference by both tests is beyond noise.
    together = np.fmax(adjusted(of_iterations), adjusted(of_runs))
    together[~np.isfinite(of_iterations)] = np.nan
    return [replace(each, q=q) for each, q in zip(found, together.tolist(), strict=True)]


def _judged(run: Run, bases: Sequence[Run], limit: Limit) -> Judged:
    """Raises NoSuchNode where none has the part: its name is wrong."""
    taken: list[Float64] = []
    errors: list[NoSuchNode] = []
    reason, metric = "", _named(limit.figure)
    for each, where in ((run, "the run"), *((base, "the baseline") for base in bases)):
        numbers = np.empty(0)
        try:
            metric, numbers = samples_of_limit(each, limit)
            if not len(numbers):
                reason = reason or f"no complete step of {where} has the figure"
        except NoSuchNode as error:
            errors.append(error)
            reason = f"{where} lacks it: {error}"
        except NothingToShow as error:
            reason = f"{where}: {error}"
        taken.append(numbers)
    if len(errors) == 1 + len(bases):
        raise NoSuchNode(f"{limit.text}: {errors[0]}")
    ours, base = taken[0], np.concatenate(taken[1:])
    medians = np.array([median_of(numbers) for numbers in taken[1:] if len(numbers)])
    counts, own = (len(ours), len(base)), median_of(ours)
    mean = float(medians.mean()) if len(medians) > 1 else 0.0
    is_enough = min(counts) >= MIN_ITERATIONS
    return Judged(
        limit,
        metric,
        ours=own,
        base=median_of(medians),
        counts=counts,
        runs=len(medians),
        spread_pct=100.0 * float(medians.std(ddof=1)) / abs(mean) if mean else np.nan,
        reason="" if all(counts) else reason,
        chances=(
            unpaired(ours, limit.moved(base)) if is_enough else np.nan,
            one_more(own, limit.moved(medians)),
        ),
    )


def samples_of_limit(run: Run, limit: Limit) -> tuple[Metric, Float64]:
    """A limit's figure of each complete step, as every view has it: sums are per GPU of the scope.

    Raises NoSuchNode.
    """
    if limit.figure in _OF_STEPS:
        steps = step_parts_of(run, View(run.name))
        numbers = steps.each_ns
        if limit.figure == TOKENS:
            tokens = steps.tokens.mean(axis=0)
            numbers = token_rate(tokens, steps.each_ns)
        return METRICS[limit.figure], _finite(numbers[steps.steady])
    metric = metric_named(limit.figure, run.table, run.counter_info)
    levels = [level for level, _ in limit.path]
    view = View(
        run.name, path=tuple(label for _, label in limit.path), order=complete_order(levels)
    )
    tree = run.tree_of(view)
    node = tree.node(view.path)
    if "iteration" in levels:
        raise UsageError(f"{limit.text!r} names a step, whose noise can't be known")
    base, groups = base_of(run, view), tree.split(view.path, ("iteration",))
    found = dict(zip(groups.codes("iteration").tolist(), range(len(groups)), strict=True))
    counted = distinct(base.cells.codes("iteration")[base.counted])
    complete = counted[counted != NO_LABEL].tolist()
    scope, labels = Scope.of(run, groups, node), {"iteration": groups.labels("iteration")}
    values = values_on_base(metric, base, view, scope, labels).known()
    # A sum of a step in which the part doesn't run is 0.
    without = 0.0 if metric.reduces == Reduces.SUM else np.nan
    return metric, _finite(
        np.array([values[found[step]] if step in found else without for step in complete])
    )


def _finite(numbers: Float64) -> Float64:
    return np.asarray(numbers[np.isfinite(numbers)], np.float64)


def limits_table(judged: Iterable[Judged]) -> str:
    lines = ["| limit | baseline | run | change | result |", "| :-- | --: | --: | --: | :-- |"]
    marks = {
        PASS: "✅ pass",
        FAIL: "❌ fail",
        INCONCLUSIVE: "❔ inconclusive",
        UNCHECKED: "🚫 unchecked",
    }
    for each in judged:
        figures = ["–", "–", "–"]
        if not each.reason:
            figures = [*each.medians, each.change or "–"]
        limit = each.limit.text.replace("|", "\\|")
        lines.append(f"| `{limit}` | {' | '.join(figures)} | {marks[each.verdict]} |")
    return "\n".join(lines) + "\n"
