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

from chopper_core.metrics import Values, column, numbered, worded
from chopper_core.model.doubts import DoubtKind
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.util.plugins import Plugin
from chopper_core.views.base import base_of_steps
from chopper_core.views.findings.advice import advice_for
from chopper_core.views.findings.parts import Found, Worth, group_of, in_groups
from chopper_core.views.findings.remedies import is_bound
from chopper_core.views.findings.rule import (
    COMPUTES,
    CONFIDENCE,
    IRREGULAR,
    SMALLEST_SAVING,
    Confidence,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    Group,
    context_of,
)
from chopper_core.views.shared.phrases import by_number, count, facts, percent, time
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

COSTS: Final = column("""cost_ns | ns | costs
    Measured time that it takes, per step: on its GPU, else mean over the GPUs that it is about.
    missing: it can't be measured""")
SAVING: Final = column("""saving_ns | ns | saves
    How much shorter a step is without it, by replay, mean over the complete steps; `≤` where no
    change attains all of it, such as a host of zero time. That of a part is in that of the whole.
    missing: no replay removes it: the steps can't be replayed, or nothing says how""")
LOW: Final = column(f"""saving_low_ns | ns | at least
    The low end of what it saves: allows for what else would wait then, and for other work that a
    lower clock or busier links would slow down.
    missing: {SAVING.missing_because}""")
HIGH: Final = column(f"""saving_high_ns | ns | at most
    The high end of what it saves.
    missing: {SAVING.missing_because}""")
SHARE: Final = column(f"""saving_pct | % | of step
    What it saves in % of the step time.
    missing: {SAVING.missing_because}""")
GROUP: Final = column("""group | | group
    What it asks for: fix first (a cause), could be better (kernels below their roof), or not known
    (what the files lack).""")
DETAIL: Final = column("""detail | | detail
    The finding in full: evidence, since when, and why it saves more or less than it costs.""")
ADVICE: Final = column("""advice | | what to do
    What to try, the most likely first, at most three sentences: only what the run shows to fit.
    missing: nothing that the run shows tells what would help""")
PART_OF: Final = column("""part_of | | part of
    The number of the finding that it is a part of, counting from 1 in the default order: both cost
    the same time.
    missing: it costs time that no other finding does, or unknown time""")
TOTAL: Final = column("""gpu_time_ns | ns | total GPU time
    GPU time affected, summed over GPUs and complete iterations.
    missing: no GPU time is attributed to it""")
_FIRST: Final = 3
_FAR: Final = 0.2
"""Of the cost: a saving further from it is explained."""
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
OWN: Final = (
    COSTS, SAVING, CONFIDENCE, LOW, HIGH, SHARE, GROUP, RULE, PART_OF, TOTAL, DOUBT, REMEDY,
    ADVICE, DETAIL,
)  # fmt: skip
"""The columns of the view, as the page of findings lists them."""


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
        """The ends of the range of what a finding saves, which is at most the step, and at most
        what of it isn't compute where that isn't what the finding costs. None without a replay."""
        ends = None if self.worth is None else self.worth.range_ns(finding)
        if ends is None or finding.saving_ns is None:
            return None, None
        (low, high), (least, most), saving = ends, rule.holds, finding.saving_ns
        limit = self.context.step_ns
        if finding.kind not in {Cost.UNKNOWN, *COMPUTES}:
            limit = max(limit - self.compute_ns, saving)
        return min(max(least * low, 0.0), saving), min(max(most * high, saving), limit)


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
    bound = np.array([is_bound(each.remedy) for each in findings], np.bool_)
    return ViewResult(
        level="finding",
        labels=[finding.title for finding in findings],
        columns=(
            (COSTS, _rounded([each.cost_ns for each in findings])),
            (SAVING, replace(_rounded(savings), bound=bound)),
            (CONFIDENCE, worded([finding.confidence.text for finding in findings])),
            (LOW, _rounded([low for low, _ in ranges])),
            (HIGH, _rounded([high for _, high in ranges])),
            (SHARE, replace(numbered(shares), bound=bound)),
            (GROUP, worded([group_of(*each).text for each in found])),
            (RULE, worded([rule.name for rule, _ in found])),
            (PART_OF, _rounded([None if whose is None else whose + 1 for _, whose in placed])),
            (TOTAL, _rounded([finding.total_ns for finding in findings])),
            (DOUBT, worded([each.doubt or None for each in findings])),
            (REMEDY, worded([each.remedy if each.is_replayed else None for each in findings])),
            (ADVICE, worded([" ".join(each.advice) or None for each in findings])),
            (DETAIL, worded([detail_of(context, each) for each in findings])),
        ),
        shown=(CONFIDENCE.name, RULE.name, DETAIL.name) if run.is_sampled_only else (),
        opens=lambda row: _with_baseline(findings[row].evidence, view),
        headline=(_headline(known),),
        base=base_of_steps(run, view),
        notes=(*_together(context, worth, placed), *_notes(context, worth)),
    )


def detail_of(context: FindingsContext, finding: Finding) -> str:
    """The long sentence of a finding, and why it saves far more or less than it costs."""
    text, cost, saving = finding.detail, finding.cost_ns, finding.saving_ns
    if not cost or saving is None or context.share(abs(cost - saving)) < SMALLEST_SAVING.share:
        return text
    if saving < (1 - _FAR) * cost:
        rest = time(cost - saving)
        why = "nothing" if saving < _FAR * cost else time(saving)
        return f"{text}. By replay it saves {why}: the other {rest} would go into other waits"
    if saving > (1 + _FAR) * cost and len(context.gpus) > 1:
        return f"{text}. By replay it saves {time(saving)}: GPUs that wait for it wait less, too"
    return text


def figures_of(finding: Finding) -> tuple[str, ...]:
    """What a finding costs and saves, as text; nothing where both are unknown."""
    if finding.cost_ns is None:
        return ()
    saves = "–"
    if finding.saving_ns is not None:
        saves = "≤" * is_bound(finding.remedy) + time(round(finding.saving_ns))
    return time(round(finding.cost_ns)), saves


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
    return [
        ((rule, replace(each, advice=advice_for(context, rule, each, worth))), whose)
        for (rule, each), whose in in_groups(context, found, worth)
    ]


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
            share = np.inf if each.cost_ns is None else context.share(each.cost_ns)
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
