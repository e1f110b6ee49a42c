"""Whether two runs can be compared: the same work, layout, steps and GPUs, and data to rely on.

Each check yields how far the runs agree, from 0 to 1; the score of a pair is its weakest check, in
%. Checks below their threshold are reasons to refuse a comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.step_parts import step_parts_of
from chopper_core.model.column_names import FLOPS, RECOMPUTED_FLOPS
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, PHASES, Rule
from chopper_core.model.view import View
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import counted, median_of

SAME_WORK: Final = 0.98
"""Tokens and FLOPs of a step that agree less are other work."""
SAME_NAMES: Final = 0.5
"""Without either, the share of compute in operations that both runs have."""
SURE: Final = 0.99
"""A doubt about more of the data makes a figure unfit for a limit."""
_LEAST_PHASE: Final = 0.01
"""A phase with less of the time doesn't count."""


class Disagreement(Struct, frozen=True):
    """In what two runs differ."""

    kind: str
    """`work`, `layout`, `steps`, `GPUs` or `data`."""
    text: str
    agreement: float
    """From 0 to 1."""
    is_refused: bool


class Comparability(Struct, frozen=True):
    """How far a run and its baselines can be compared."""

    reasons: tuple[Disagreement, ...]

    @property
    def score_pct(self) -> float:
        """100 for runs that differ in nothing that is checked."""
        return 100.0 * min((each.agreement for each in self.reasons), default=1.0)

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(f"{each.kind}: {each.text}" for each in self.reasons if each.is_refused)


def not_comparable(run: str, base: str, pair: Comparability) -> str:
    """The sentence that refuses a pair."""
    return (
        f"{run} and {base} aren't comparable (score {pair.score_pct:.0f} %): "
        f"{'; '.join(pair.refusals)}"
    )


def comparability(run: Run, bases: Sequence[Run], columns: Collection[str] = ()) -> Comparability:
    """What a run and its baselines differ in, for figures that rest on some columns."""
    found: dict[Disagreement, None] = {}
    for base in bases:
        for check in (_layout, _gpus, _steps, _work, _marks):
            found |= dict.fromkeys(check(run, base))
    for each in (run, *bases):
        found |= dict.fromkeys(_doubts(each, columns))
    return Comparability(tuple(sorted(found, key=lambda each: each.agreement)))


def _layout(run: Run, base: Run) -> Iterator[Disagreement]:
    ours, theirs = len(run.gpus), len(base.gpus)
    if ours != theirs:
        text = f"{ours} GPU{'s' if ours > 1 else ''}, the baseline {theirs}"
        yield Disagreement("layout", text, 0.0, True)
        return
    sizes = [each.parallel.sizes if each.parallel is not None else None for each in (run, base)]
    if None not in sizes and sizes[0] != sizes[1]:
        texts = [each.parallel.text or "dp 1" for each in (run, base) if each.parallel is not None]
        yield Disagreement("layout", f"{texts[0]}, the baseline {texts[1]}", 0.0, True)


def _gpus(run: Run, base: Run) -> Iterator[Disagreement]:
    products = [sorted({gpu.hardware for gpu in each.gpus} - {""}) for each in (run, base)]
    if all(products) and products[0] != products[1]:
        ours, theirs = (", ".join(names) for names in products)
        yield Disagreement("GPUs", f"{ours}, the baseline {theirs}", 0.0, True)


def _steps(run: Run, base: Run) -> Iterator[Disagreement]:
    phases = [_phases(each) for each in (run, base)]
    if phases[0] != phases[1]:
        ours, theirs = (", ".join(sorted(names)) or "no phases" for names in phases)
        yield Disagreement("steps", f"{ours}, the baseline {theirs}", 0.0, True)
    rules = [_rule(each) for each in (run, base)]
    if rules[0] != rules[1]:
        text = f"found by {rules[0]}, the baseline's by {rules[1]}"
        yield Disagreement("steps", text, 0.0, True)


def _phases(run: Run) -> frozenset[str]:
    """The phases with a noticeable part of the time; data and other work are of any step."""
    if not len(run.table):
        return frozenset()
    nodes = run.tree().split((), ("phase",))
    whole = max(int(nodes.elapsed_ns.sum()), 1)
    return frozenset(
        PHASES[code]
        for code, ns in zip(nodes.codes("phase").tolist(), nodes.elapsed_ns.tolist(), strict=True)
        if code != NO_LABEL and PHASES[code] not in ("data", "other") and ns > _LEAST_PHASE * whole
    )


def _rule(run: Run) -> str:
    rules = run.table.iteration_rule[run.table.iteration != NO_LABEL]
    if not len(rules):
        return "nothing"
    found, counts = counted(rules)
    return Rule(int(found[int(counts.argmax())])).text


def _work(run: Run, base: Run) -> Iterator[Disagreement]:
    known = False
    for what, amounts in (
        ("tokens per step and GPU", [_tokens(each) for each in (run, base)]),
        ("FLOPs per step and GPU", [_flops(each) for each in (run, base)]),
    ):
        ours, theirs = amounts
        if not (ours > 0 and theirs > 0):
            continue
        known = True
        agreement = min(ours, theirs) / max(ours, theirs)
        if agreement < 1.0 - 1e-9:
            text = f"{ours:.4g} {what}, the baseline {theirs:.4g}"
            yield Disagreement("work", text, agreement, agreement < SAME_WORK)
    if not known and (shared := _shared_names(run, base)) < 1.0 - 1e-9:
        text = f"{shared:.0%} of compute is in operations that both have"
        yield Disagreement("work", text, shared, shared < SAME_NAMES)


def _tokens(run: Run) -> float:
    try:
        steps = step_parts_of(run, View(run.name))
    except NothingToShow:
        return np.nan
    found = steps.tokens[:, steps.steady]
    return float(median_of(found[np.isfinite(found)])) if np.isfinite(found).any() else np.nan


def _flops(run: Run) -> float:
    """The FLOPs of a complete step and GPU, without those of recomputation; NaN if unknown."""
    table = run.table
    if FLOPS not in table.measured:
        return np.nan
    flops = table.measured[FLOPS]
    again = table.measured.get(RECOMPUTED_FLOPS)
    if again is not None:
        flops = flops - np.nan_to_num(again)
    inside = ~np.isin(table.iteration, [NO_LABEL, *run.cut_iterations])
    numbers = run.pairs.codes("iteration")
    pairs = int((~np.isin(numbers, [NO_LABEL, *run.cut_iterations])).sum())
    return float(np.nansum(flops[inside])) / pairs if pairs else np.nan


def _shared_names(run: Run, base: Run) -> float:
    """The share of both runs' compute in operations of the same names; 1 without any compute."""
    times = []
    for each in (run, base):
        nodes = each.tree().split((), ("operation",)) if len(each.table) else None
        labels = [] if nodes is None else nodes.labels("operation")
        busy = [] if nodes is None else (nodes.sum("compute_ns") + nodes.sum("overlap_ns")).tolist()
        times.append(dict(zip(labels, busy, strict=True)))
    both = times[0].keys() & times[1].keys()
    whole = sum(sum(each.values()) for each in times)
    return sum(each[name] for each in times for name in both) / whole if whole else 1.0


def _marks(run: Run, base: Run) -> Iterator[Disagreement]:
    marks = [each.times_mark or "measured" for each in (run, base)]
    if marks[0] != marks[1]:
        text = f"times are {marks[0]}, the baseline's {marks[1]}"
        yield Disagreement("data", text, 0.0, True)


def _doubts(run: Run, columns: Iterable[str]) -> Iterator[Disagreement]:
    wanted = set(columns)
    for doubt in run.doubts:
        touched = not wanted or bool(wanted & set(doubt.columns))
        agreement = 1.0 - min(doubt.share, 1.0)
        if touched:
            yield Disagreement("data", f"{run.name}: {doubt.sentence}", agreement, agreement < SURE)
