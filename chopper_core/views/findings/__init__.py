"""Findings: the tool's own reading of a run, ranked by the time at stake."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Values, column, numbered, worded
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.findings.context import Case, case_of
from chopper_core.views.findings.finding import MEANING, Confidence, Finding
from chopper_core.views.findings.phrases import count, places, time
from chopper_core.views.findings.rules import RULES, Rule, find
from chopper_core.views.findings.thresholds import IRREGULAR, THRESHOLDS, Threshold
from chopper_core.views.result import ViewResult

__all__ = ["MEANING", "RULES", "THRESHOLDS", "Confidence", "Finding", "Rule", "Threshold", "find"]


STAKE: Final = column(
    "stake_ns",
    "ns",
    "at stake",
    "By how much an iteration would be shorter without it, at most: per iteration, mean over the "
    "whole ones. Findings overlap: the times of two need not add up.",
    missing_because="nobody can say what would be without it",
)
SHARE: Final = column(
    "stake_pct",
    "%",
    "%",
    "stake_ns in % of the iteration: the median over the iterations of the longest GPU's time.",
    missing_because=STAKE.missing_because,
)
TOTAL: Final = column(
    "gpu_time_ns",
    "ns",
    "GPU time",
    "The GPU time in it, summed over the GPUs and the whole iterations.",
    missing_because="it stands for no time of its own",
)
CONFIDENCE: Final = column(
    "confidence",
    "",
    "confidence",
    "How sure it is. " + " ".join(f"{each.text}: {text}." for each, text in MEANING.items()),
)
RULE: Final = column("rule", "", "rule", "The rule that found it (docs/findings.md).")


def answer(run: Run, view: View) -> ViewResult:
    """What stands out in a scope, one row per finding."""
    scope = View(view.run, view.path, view.order, metric=view.metric, overrides=view.overrides)
    case = case_of(run, scope)
    found = find(case)
    findings = [finding for _, finding in found]
    shares = [
        None if finding.stake_ns is None else 100 * case.share(finding.stake_ns)
        for finding in findings
    ]
    return ViewResult(
        level="finding",
        labels=[finding.sentence for finding in findings],
        columns=(
            (STAKE, _rounded([finding.stake_ns for finding in findings])),
            (SHARE, numbered(shares)),
            (CONFIDENCE, worded([finding.confidence.text for finding in findings])),
            (RULE, worded([rule.name for rule, _ in found])),
            (TOTAL, _rounded([finding.total_ns for finding in findings])),
        ),
        opens=lambda row: _beside(findings[row].evidence, view),
        headline=(_headline(case, len(findings)),),
        notes=_notes(case),
    )


def _beside(evidence: View, view: View) -> View:
    """The evidence with the other run that the view is compared with, if there is one."""
    same = view.baseline is not None and view.baseline.path is None
    return replace(evidence, baseline=view.baseline) if same else evidence


def _headline(case: Case, findings: int) -> str:
    said = count(findings, "finding") if findings else "nothing stands out"
    activities = int(case.node.sizes()[0])
    return (
        f"{said}: {len(RULES)} rules looked at {activities:,} activities, "
        f"{time(case.step_ns)}{case.each}"
    )


def _rounded(times_ns: list[float | None]) -> Values:
    """Times in whole ns, as everywhere."""
    whole = np.array([0 if each is None else round(each) for each in times_ns], np.int64)
    return Values(whole, np.array([each is None for each in times_ns], np.bool_))


def _notes(case: Case) -> tuple[str, ...]:
    notes = []
    if case.left_out:
        notes.append(
            f"iteration {places(case.left_out)} is left out: the profiler's start or end cuts it"
        )
    if case.irregular:
        notes.append(
            f"iteration {places(case.irregular)} is left out: it takes over "
            f"{IRREGULAR.value:g} times as long as usual"
        )
    if case.of is not None:
        notes.append(
            f"{len(case.iterations)} of {case.of} iterations, evenly chosen, are looked at: all "
            "are too many activities; contention is not looked for"
        )
    return tuple(notes)
