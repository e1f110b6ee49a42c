"""Findings: the problems of a run, ranked by potential saving.

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

from chopper_core.analyses.base import base_of_steps
from chopper_core.columns import Values, column, numbered, worded
from chopper_core.findings.parts import Found, Worth, in_groups
from chopper_core.findings.rule import (
    COMPUTES,
    CONFIDENCE,
    IRREGULAR,
    SMALLEST_SAVING,
    Confidence,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    context_of,
)
from chopper_core.model.doubts import DoubtKind
from chopper_core.model.phrases import by_number, count, facts, percent, time
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.util.plugins import Plugin
from chopper_core.views.spec import SETTINGS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="findings",
    title="Findings",
    question="What stands out, how much time would fixing it save, and where is the evidence?",
    by_of_runs=SETTINGS,
    no_statistic="has a row per finding, which is one thing",
    takes_samples=True,
)


MODULES: Final = (
    "clocks",
    "gpus",
    "communication",
    "hosts",
    "losses",
    "operations",
    "iterations",
    "beside",
    "missing",
)
RULES: Final[tuple[FindingRule, ...]] = tuple(
    each
    for name in MODULES
    for each in vars(import_module(f"{__name__}.{name}")).values()
    if isinstance(each, FindingRule)
)
"""All rules, in the order of `MODULES`: of equal savings, that of the later rule comes first."""

SAVING: Final = column("""saving_ns | ns | saving
    Potential saving: how much shorter an iteration would be without it, mean over the complete
    iterations, by replay or by estimate; 0 where the replay takes no less. That of a part is in
    that of the whole.
    missing: the impact can't be estimated""")
LOW: Final = column(f"""saving_low_ns | ns | at least
    The low end of the potential saving's range: allows for what else would wait then, and for
    other work that a lower clock or busier links would slow down.
    missing: {SAVING.missing_because}""")
HIGH: Final = column(f"""saving_high_ns | ns | at most
    The high end of the potential saving's range.
    missing: {SAVING.missing_because}""")
SHARE: Final = column(f"""saving_pct | % | of step
    Potential saving in % of the step time.
    missing: {SAVING.missing_because}""")
PART_OF: Final = column("""part_of | | part of
    The number of the finding that it is a part of, counting from 1 in the default order: both cost
    the same time.
    missing: it costs time that no other finding does, or unknown time""")
BASIS: Final = column(f"""basis | | by
    What the saving is known by: a replay of the steps without the time that the finding costs, or
    an estimate of its rule, where steps can't be replayed.
    missing: {SAVING.missing_because}""")
TOTAL: Final = column("""gpu_time_ns | ns | total GPU time
    GPU time affected, summed over GPUs and complete iterations.
    missing: no GPU time is attributed to it""")
_FIRST: Final = 3
_MOST_OF_RULE: Final = 64
"""Of thousands of GPUs a rule may find something on each."""
RULE: Final = column("""rule | | rule
    The rule that found it (docs/findings.md).""")
DOUBT: Final = column("""doubt | | doubt
    Why the data that it rests on is in doubt: its confidence is low.
    missing: nothing that it rests on is in doubt""")
_MOSTLY_LOST: Final = 0.1
"""The part of what a check looked at that is lost from which on no saving is claimed."""
REMEDY: Final = column("""remedy | | what if
    The question of `chopper what-if` that replays the steps without it.
    missing: no replay removes it""")


class Checked(Struct, frozen=True, eq=False):
    """The findings of a scope in groups, before what takes as long again: their ranges."""

    context: FindingsContext
    """Without the sums that the rules look at, which take more memory than all else."""
    activities: int
    compute_ns: float
    """Per GPU and iteration."""
    worth: Worth | None
    placed: list[tuple[Found, int | None]]

    def range_ns(self, rule: FindingRule, finding: Finding) -> tuple[float | None, float | None]:
        """The ends of the potential saving's range, which is at most the step, and at most what of
        it isn't compute where that isn't what the finding costs."""
        if (saving := finding.saving_ns) is None:
            return None, None
        least, most = rule.holds_replayed if finding.is_replayed else rule.holds
        worth, context = self.worth, self.context
        ends = (finding.low_ns, finding.high_ns) if worth is None else worth.range_ns(finding)
        low, high = (saving if end is None else end for end in ends)
        limit = context.step_ns
        if finding.cost not in {Cost.UNKNOWN, *COMPUTES}:
            limit = max(limit - self.compute_ns, saving)
        return min(max(least * low, 0.0), limit), min(max(most * high, saving), limit)


def checked(run: Run, view: View) -> Checked:
    """The findings of a view's scope, checked once; raises NothingToShow."""

    def made() -> Checked:
        context = context_of(run, view)
        worth = None if run.is_sampled_only else Worth.of(context)
        placed, node, rest = _find(context, worth), context.node, context.released
        if run.is_sampled_only:
            return Checked(rest, 0, 0.0, None, placed)
        compute = sum(float(node.sum(name)[0]) for name in ("compute_ns", "overlap_ns"))
        return Checked(
            rest,
            int(node.sizes()[0]),
            context.per_iteration(compute),
            None if worth is None else replace(worth, context=rest),
            [((rule, replace(each, cells=None)), whose) for (rule, each), whose in placed],
        )

    key = ("findings", view.path, view.order, view.signal, view.overrides, view.cut)
    return run.memo(key, made)


def answer(run: Run, view: View) -> ViewResult:
    known = checked(run, view)
    context, worth, placed = known.context, known.worth, known.placed
    found = [each for each, _ in placed]
    findings = [finding for _, finding in found]
    savings = [each.saving_ns for each in findings]
    ranges = [known.range_ns(*each) for each in found]
    shares = [None if saving is None else 100 * context.share(saving) for saving in savings]
    unknown = replace(SAVING, missing_because="without a trace no time can be attributed to it")
    return ViewResult(
        level="finding",
        labels=[finding.sentence for finding in findings],
        columns=(
            (unknown if run.is_sampled_only else SAVING, _rounded(savings)),
            (LOW, _rounded([low for low, _ in ranges])),
            (HIGH, _rounded([high for _, high in ranges])),
            (SHARE, numbered(shares)),
            (CONFIDENCE, worded([finding.confidence.text for finding in findings])),
            (RULE, worded([rule.name for rule, _ in found])),
            (PART_OF, _rounded([None if whose is None else whose + 1 for _, whose in placed])),
            (BASIS, worded([_basis(finding) for finding in findings])),
            (TOTAL, _rounded([finding.total_ns for finding in findings])),
            (DOUBT, worded([each.doubt or None for each in findings])),
            (REMEDY, worded([each.remedy if each.is_replayed else None for each in findings])),
        ),
        shown=(SAVING.name, CONFIDENCE.name, RULE.name) if run.is_sampled_only else (),
        opens=lambda row: _with_baseline(findings[row].evidence, view),
        headline=(_headline(known),),
        base=base_of_steps(run, view),
        notes=(*_together(context, worth, placed), *_notes(context, worth)),
    )


def rules_of(run: Run) -> tuple[FindingRule, ...]:
    """The rules that a run can be checked by: where times are reconstructed, those of durations."""
    rules = (*RULES, *_plugin_rules())
    rules = tuple(rule for rule in rules if rule.of_samples == run.is_sampled_only)
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
        return [(each, None) for each in sorted(found, key=lambda each: -each[1].confidence)]
    if worth is not None:
        found = [(rule, worth.of_finding(each)) for rule, each in found]
    found = [(rule, _doubted(context, rule, each)) for rule, each in found]
    return in_groups(context, found, worth)


def _doubted(context: FindingsContext, rule: FindingRule, finding: Finding) -> Finding:
    """A finding that rests on data in doubt: of low confidence, and without a saving where much
    of the data is."""
    doubt = next((each for each in context.run.doubts if rule.name in each.rules), None)
    if doubt is None:
        return finding
    is_lost = doubt.kind == DoubtKind.LOST and doubt.share > _MOSTLY_LOST
    saving = None if is_lost else finding.saving_ns
    is_small = not is_lost and doubt.kind in (DoubtKind.CLOCK, DoubtKind.IMPOSSIBLE)
    sure = min(finding.confidence, Confidence.MEDIUM) if is_small else Confidence.LOW
    return replace(finding, confidence=sure, doubt=doubt.sentence, saving_ns=saving)


def _largest(context: FindingsContext, rule: FindingRule, *, has_replay: bool) -> list[Finding]:
    """The findings of a rule that save most, and how many more there are."""
    number = 0

    def large() -> Iterator[tuple[int, Finding]]:
        nonlocal number
        for each in rule.find(context):
            share = np.inf if each.saving_ns is None else context.share(each.saving_ns)
            if share >= SMALLEST_SAVING.share and (has_replay or not each.needs_replay):
                number += 1
                yield number, each

    # Not a list of all: each of thousands holds its cells.
    most = nlargest(_MOST_OF_RULE, large(), key=lambda one: one[1].saving_ns or np.inf)
    found = [each for _, each in sorted(most, key=lambda one: one[0])]
    if more := number - len(found):
        sentence = (
            f"{count(more, 'more finding')} of the rule {rule.name} that save less: not listed"
        )
        found.append(context.finding(sentence, context.at(), Cost.UNKNOWN, None))
    return found


def _basis(finding: Finding) -> str | None:
    return None if finding.saving_ns is None else ("estimate", "replay")[finding.is_replayed]


def _with_baseline(evidence: View, view: View) -> View:
    same = view.baseline is not None and view.baseline.path is None
    return replace(evidence, baseline=view.baseline) if same else evidence


def _rounded(figures: Sequence[float | None]) -> Values:
    whole = np.array([0 if each is None else round(each) for each in figures], np.int64)
    return Values(whole, np.array([each is None for each in figures], np.bool_))


def numbers_of(known: Checked) -> tuple[int, str]:
    """How many findings there are, and how many parts they have, as the end of a phrase."""
    whose = [whose for _, whose in known.placed]
    groups = whose.count(None)
    return groups, f" with {count(len(whose) - groups, 'part')}" * (groups < len(whose))


def _headline(known: Checked) -> str:
    context = known.context
    groups, parts = numbers_of(known)
    result = (count(groups, "finding") if groups else "nothing stands out") + parts
    if context.run.is_sampled_only:
        gpus = count(len(context.run.gpus), "GPU")
        return facts(result, f"telemetry of {gpus}", "without a trace, no savings")
    return facts(
        result,
        f"{time(context.step_ns)}{' per iteration' * context.has_iterations}",
        f"{len(rules_of(context.run))} rules",
        f"{count(known.activities, 'activity')} checked",
    )


def _together(
    context: FindingsContext, worth: Worth | None, placed: list[tuple[Found, int | None]]
) -> tuple[str, ...]:
    """What the first findings are worth together, which is less than their sum or more."""
    whole = [each for (_, each), whose in placed if whose is None][:_FIRST]
    first = [each.remedy for each in whole if each.is_replayed]
    if worth is None or len(first) < 2 or len(first) < len(whole):
        return ()
    saved = worth.saving_ns(first)
    return (
        f"the first {len(first)} together: {time(saved)} ({percent(context.share(saved))}) less "
        "per step, by replay",
    )


def _notes(context: FindingsContext, worth: Worth | None) -> tuple[str, ...]:
    notes = [] if worth is None or not worth.steady.replays.note else [worth.steady.replays.note]
    if context.irregular:
        which = by_number("iteration", context.irregular)
        them = "it" if len(context.irregular) == 1 else "them"
        notes.append(
            f"{which} took over {IRREGULAR.value:g} times the median: left out of figures per "
            f"usual iteration; the views behind findings include {them}"
        )
    if context.sampled_from is not None:
        notes.append(
            f"{len(context.iterations)} of {context.sampled_from} iterations, evenly chosen, are "
            "analysed: all have too many activities; contention is not analysed"
        )
    return (*notes, *plugins.problems())
