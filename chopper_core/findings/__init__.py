"""Findings: the problems of a run, those first whose fix saves most.

To add a rule, write it into the module of its theme; a new module's name goes to `MODULES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import nlargest
from importlib import import_module
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.findings.advice import advice_for
from chopper_core.findings.parts import Found, Worth, in_groups, why_not_replayed
from chopper_core.findings.rule import (
    COMPUTES,
    SMALLEST_SAVING,
    Confidence,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    Group,
    context_of,
)
from chopper_core.model.doubts import HOST_RULES, MARGIN_NS, DoubtKind
from chopper_core.model.inputs import ClockBounds
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.side_table import MemoryEvents
from chopper_core.model.training import TrainedSteps
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.util.grouping import sums_of
from chopper_core.util.plugins import Plugin

MODULES: Final = (
    "clocks",
    "gpus",
    "communication",
    "hosts",
    "losses",
    "efficiency",
    "operations",
    "iterations",
    "beside",
    "missing",
    "training",
    "memory",
    "experts",
)
RULES: Final[tuple[FindingRule, ...]] = tuple(
    each
    for name in MODULES
    for each in vars(import_module(f"{__name__}.{name}")).values()
    if isinstance(each, FindingRule)
)
"""All rules, in the order of `MODULES`: of equal savings, that of the later rule comes first."""

_MOST_OF_RULE: Final = 64
"""Of thousands of GPUs a rule may find something on each."""
_MOSTLY_LOST: Final = 0.1
"""The part of what a check looked at that is lost from which on no saving is claimed."""


class Checked(Struct, frozen=True, eq=False):
    """The findings of a scope in groups, before what takes as long again: their ranges."""

    context: FindingsContext
    """Without the sums that the rules look at, which take more memory than all else."""
    compute_ns: float
    """Per GPU and step."""
    worth: Worth | None
    placed: list[tuple[Found, int | None]]

    def ranges_ns(self) -> tuple[tuple[float | None, float | None], ...]:
        """The ends of the range of what each finding saves: of a whole no less than of its part."""
        found = [self._range_ns(*each) for each, _ in self.placed]
        for at, ((_, part), whose) in enumerate(self.placed):
            low, high = found[at]
            if whose is None or low is None or high is None or part.together_ns is not None:
                continue
            least, most = found[whose]
            saving = self.placed[whose][0][1].saving_ns
            if least is not None and most is not None and saving is not None:
                found[at] = low, max(min(high, most), part.saving_ns or 0.0)
                found[whose] = max(least, min(low, saving)), most
        return tuple(found)

    def _range_ns(self, rule: FindingRule, finding: Finding) -> tuple[float | None, float | None]:
        """The ends of the range of what a finding saves, which is at most the step, and at most
        what of it isn't compute where that isn't what the finding costs. None without a replay."""
        ends = None if self.worth is None else self.worth.range_ns(finding)
        if ends is None or finding.saving_ns is None:
            return None, None
        (low, high), (least, most), saving = ends, rule.holds, finding.saving_ns
        limit = self.context.step_ns
        if finding.kind not in {Cost.UNKNOWN, *COMPUTES}:
            limit = max(limit - self.compute_ns, saving)
        low, high = least * low, most * high
        if finding.doubt and rule.name in HOST_RULES:
            slack_ns = clock_slack_ns(self.context)
            low, high = low - slack_ns, high + slack_ns
        high = saving if finding.is_bound else max(high, saving)
        return min(max(low, 0.0), saving), min(high, limit)


def clock_slack_ns(context: FindingsContext) -> float:
    """What the doubt about the clocks of GPUs leaves of an idle time's split, per step of the GPU
    with the most.

    Where a launch is in a gap is known to the remaining width of the clock's offset, and it is in
    the gap; a width up to the margin of clocks that nothing contradicts changes no order.
    """
    run = context.run
    sources = [each for each in run.sources if any(one.code == "clock" for one in each.doubts)]
    widths = [_width_ns(each.gpu_clock) for each in sources if each.gpu_clock is not None]
    width_ns = max(widths, default=0)
    if width_ns <= MARGIN_NS:
        return 0.0
    rows = np.flatnonzero(np.isin(run.table.iteration, context.iterations))
    open_ns = np.minimum(run.table.idle_ns[rows], width_ns)
    by_gpu = sums_of(open_ns, run.table.gpu[rows].astype(np.intp))
    return float(by_gpu.max(initial=0)) / len(context.iterations)


def _width_ns(bounds: ClockBounds) -> int:
    """The remaining width; where one side isn't bounded, twice what the other one leaves."""
    known = [each for each in (bounds.early_ns, bounds.late_ns) if each is not None]
    width_ns = bounds.width_ns
    return width_ns if width_ns is not None else 2 * max([*known, MARGIN_NS])


def checked(run: Run, view: View) -> Checked:
    """The findings of a view's scope, checked once; raises NothingToShow."""

    def made() -> Checked:
        context = context_of(run, view)
        worth = None if run.is_sampled_only else Worth.of(context)
        placed, node, rest = _find(context, worth), context.node, context.released
        if run.is_sampled_only:
            return Checked(rest, 0.0, None, placed)
        compute = sum(float(node.sum(name)[0]) for name in ("compute_ns", "overlap_ns"))
        return Checked(
            rest,
            context.per_iteration(compute),
            None if worth is None else replace(worth, context=rest),
            [((rule, replace(each, cells=None)), whose) for (rule, each), whose in placed],
        )

    key = "findings", view.path, view.order, view.signal, view.overrides, view.cut
    return run.memo(key, made)


def rules_of(run: Run) -> tuple[FindingRule, ...]:
    """The rules that a run can be checked by: where times are reconstructed, those of durations."""
    is_logged = len(run.side(TrainedSteps)) > 0
    has_memory = is_logged or len(run.side(MemoryEvents)) > 0
    is_alone = run.is_logged_only or run.is_snapshot

    def applies(rule: FindingRule) -> bool:
        if rule.of_logs:
            return has_memory if rule.of_memory else is_logged
        return rule.of_samples == run.is_sampled_only and not is_alone

    rules = tuple(rule for rule in (*RULES, *_plugin_rules()) if applies(rule))
    return tuple(rule for rule in rules if rule.of_durations or not run.is_reconstructed)


@cache
def _plugin_rules() -> tuple[FindingRule, ...]:
    """The rules of plugins; one that fails finds nothing, and is a problem to report."""

    def guarded(plugin: Plugin, rule: FindingRule) -> FindingRule:
        def find(context: FindingsContext) -> Iterable[Finding]:
            return plugin.attempt(lambda: list(rule.find(context)), [])

        return replace(rule, find=find)

    found = plugins.loaded("findings", FindingRule.__struct_fields__)
    return tuple(guarded(plugin, rule) for plugin, rule in found)


def _find(context: FindingsContext, worth: Worth | None) -> list[tuple[Found, int | None]]:
    """The findings of all rules in groups, and the place of the one that each is a part of."""
    found = [
        (rule, finding)
        for rule in rules_of(context.run)
        for finding in _largest(context, rule, has_replay=worth is not None)
    ]
    if context.run.is_sampled_only:
        advised = [
            (rule, replace(each, advice=advice_for(context, rule, each, None)))
            for rule, each in found
        ]
        return [(each, None) for each in sorted(advised, key=_rank_of_samples)]
    if worth is not None:
        found = [(rule, worth.of_finding(each)) for rule, each in found]
    why = "no replay removes it" if worth is not None else why_not_replayed(context)
    why = "only steps of the whole run are replayed" if context.view.path else why
    found = [
        # Those of a log are about steps that no trace has.
        (rule, each if rule.of_logs or each.unreplayed else replace(each, unreplayed=why))
        for rule, each in found
    ]
    found = [(rule, _doubted(context, rule, each)) for rule, each in found]
    placed: list[tuple[Found, int | None]] = []
    for (rule, each), whose in in_groups(context, found, worth):
        # What is tried for the whole is tried for its parts.
        known = () if whose is None else placed[whose][0][1].advice
        tried = each.advice or advice_for(context, rule, each, worth)
        advice = tuple(one for one in tried if one not in known)
        placed.append(((rule, replace(each, advice=advice)), whose))
    return placed


def _rank_of_samples(found: Found) -> tuple[bool, float, int]:
    """What ended the job comes first, then what costs most, then what is surest."""
    rule, finding = found
    return not rule.stops_job, -(finding.cost_ns or 0.0), -finding.confidence


def _doubted(context: FindingsContext, rule: FindingRule, finding: Finding) -> Finding:
    """A finding that rests on data in doubt: of low confidence, and without a saving where much
    of the data is."""
    whose = None if finding.gpu is None else context.run.rank_of.get(finding.gpu)
    touching = (
        each
        for each in context.run.doubts
        if rule.name in each.rules and (whose is None or not each.ranks or whose in each.ranks)
    )
    if (doubt := next(touching, None)) is None:
        return finding
    is_lost = doubt.kind == DoubtKind.LOST and doubt.share > _MOSTLY_LOST
    saving = None if is_lost else finding.saving_ns
    is_small = doubt.kind != DoubtKind.LOST
    sure = min(finding.confidence, Confidence.MEDIUM) if is_small else Confidence.LOW
    return replace(finding, confidence=sure, doubt=doubt.sentence, saving_ns=saving)


def _largest(context: FindingsContext, rule: FindingRule, *, has_replay: bool) -> list[Finding]:
    """The findings of a rule that save most, and how many more there are."""
    number = 0

    def large() -> Iterator[tuple[int, Finding]]:
        nonlocal number
        for each in rule.find(context):
            share = np.inf
            if each.cost_ns is not None and not context.run.is_sampled_only:
                share = context.share(each.cost_ns)
            if share >= SMALLEST_SAVING.share and (has_replay or not each.needs_replay):
                number += 1
                yield number, each

    # Not a list of all: each of thousands holds its cells.
    most = nlargest(_MOST_OF_RULE, large(), key=lambda one: one[1].cost_ns or np.inf)
    found = [each for _, each in sorted(most, key=lambda one: one[0])]
    if more := number - len(found):
        text = f"{count(more, 'more finding')} of the rule {rule.name} that cost less: not listed"
        at = context.at()
        found.append(context.finding(text, text, at, Cost.UNKNOWN, None, group=Group.UNKNOWN))
    return found


def count_findings(are_parts: Sequence[bool]) -> tuple[int, str]:
    """How many findings there are, and how many parts they have, as the end of a phrase; of each
    whether it is a part."""
    parts = sum(are_parts)
    return len(are_parts) - parts, f" with {count(parts, 'part')}" if parts > 0 else ""
