"""Findings: the problems of a run, ranked by potential saving.

To add a rule, write it into the module of its theme; a new module's name goes to `MODULES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Values, column, numbered, worded
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.util.plugins import Plugin
from chopper_core.views.findings.rule import (
    CONFIDENCE,
    EXPLAINED,
    IRREGULAR,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
    context_of,
)
from chopper_core.views.shared.phrases import by_number, count, time
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
    "gpus",
    "communication",
    "hosts",
    "losses",
    "clocks",
    "operations",
    "iterations",
    "missing",
)
RULES: Final[tuple[FindingRule, ...]] = tuple(
    each
    for name in MODULES
    for each in vars(import_module(f"{__name__}.{name}")).values()
    if isinstance(each, FindingRule)
)
"""All rules, in the order of `MODULES`: of equal savings, that of the later rule comes first."""
_CAUSES_FIRST: Final = tuple(
    TopologicalSorter(
        {each.name: [rule.name for rule in RULES if each.name in rule.explains] for each in RULES}
    ).static_order()
)
"""The names of the rules, each after those that explain it; raises CycleError if there is none."""

SAVING: Final = column("""saving_ns | ns | saving
    Potential saving: how much shorter an iteration would be without it, mean over the complete
    iterations; an estimate. Findings overlap: two savings don't add up.
    missing: the impact can't be estimated""")
LOW: Final = column(f"""saving_low_ns | ns | at least
    The low end of the potential saving's range: allows for what else would wait then, and for
    other work that a lower clock or busier links would slow down.
    missing: {SAVING.missing_because}""")
HIGH: Final = column(f"""saving_high_ns | ns | at most
    The high end of the potential saving's range.
    missing: {SAVING.missing_because}""")
SHARE: Final = column(f"""saving_pct | % | %
    Potential saving in % of the step time.
    missing: {SAVING.missing_because}""")
TOTAL: Final = column("""gpu_time_ns | ns | GPU time
    GPU time affected, summed over GPUs and complete iterations.
    missing: no GPU time is attributed to it""")
RULE: Final = column("""rule | | rule
    The rule that found it (docs/findings.md).""")


def answer(run: Run, view: View) -> ViewResult:
    context = context_of(run, view)
    found = _find(context)
    findings = [finding for _, finding in found]
    savings = [
        None if each.saving_ns is None else min(each.saving_ns, context.step_ns)
        for each in findings
    ]
    ranges = [_range(*each, context.step_ns) for each in found]
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
            (TOTAL, _rounded([finding.total_ns for finding in findings])),
        ),
        shown=(SAVING.name, CONFIDENCE.name, RULE.name) if run.is_sampled_only else (),
        opens=lambda row: _with_baseline(findings[row].evidence, view),
        headline=(_headline(context, len(findings)),),
        notes=_notes(context),
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


def _find(context: FindingsContext) -> list[tuple[FindingRule, Finding]]:
    """The findings of all rules, the largest saving first; those of unknown saving come last."""
    found = [
        (rule, finding)
        for rule in rules_of(context.run)
        for finding in rule.find(context)
        if finding.saving_ns is None or context.share(finding.saving_ns) >= SMALLEST_SAVING.share
    ]
    if context.run.is_sampled_only:
        return sorted(found, key=lambda each: -each[1].confidence)
    # Causes first: only a finding that stays replaces another.
    kept: list[tuple[FindingRule, Finding]] = []
    for name in dict.fromkeys((*_CAUSES_FIRST, *(each.name for each, _ in found))):
        own = [each for each in found if each[0].name == name]
        kept += [each for each in own if not any(_explains(other, each) for other in kept)]
    return sorted(kept, key=lambda each: -1.0 if (s := each[1].saving_ns) is None else s)[::-1]


def _explains(one: tuple[FindingRule, Finding], other: tuple[FindingRule, Finding]) -> bool:
    (rule, cause), (its_rule, effect) = one, other
    return (
        its_rule.name in rule.explains
        and cause.gpu == effect.gpu
        and effect.cost in (cause.cost, Cost.UNKNOWN)
        and (cause.saving_ns or 0.0) >= EXPLAINED.share * (effect.saving_ns or 0.0)
    )


def _range(
    rule: FindingRule, finding: Finding, step_ns: float
) -> tuple[float | None, float | None]:
    """The ends of the potential saving's range, which is at most the step."""
    if (saving := finding.saving_ns) is None:
        return None, None
    low, high = (part * saving for part in rule.holds)
    high = high if finding.high_ns is None else finding.high_ns
    return min(low, step_ns), min(high, step_ns)


def _with_baseline(evidence: View, view: View) -> View:
    same = view.baseline is not None and view.baseline.path is None
    return replace(evidence, baseline=view.baseline) if same else evidence


def _rounded(times_ns: list[float | None]) -> Values:
    whole = np.array([0 if each is None else round(each) for each in times_ns], np.int64)
    return Values(whole, np.array([each is None for each in times_ns], np.bool_))


def _headline(context: FindingsContext, findings: int) -> str:
    result = count(findings, "finding") if findings else "nothing stands out"
    if context.run.is_sampled_only:
        gpus = count(len(context.run.gpus), "GPU")
        return f"{result} in the telemetry of {gpus}; without a trace, no savings"
    activities = int(context.node.sizes()[0])
    return (
        f"{result}: {len(rules_of(context.run))} rules checked {activities:,} activities, "
        f"{time(context.step_ns)}{context.each}"
    )


def _notes(context: FindingsContext) -> tuple[str, ...]:
    notes = []
    if context.irregular:
        which = by_number("iteration", context.irregular)
        notes.append(f"{which} took over {IRREGULAR.value:g} times the median: left out")
    if context.sampled_from is not None:
        notes.append(
            f"{len(context.iterations)} of {context.sampled_from} iterations, evenly chosen, are "
            "analysed: all have too many activities; contention is not analysed"
        )
    return (*notes, *plugins.problems())
