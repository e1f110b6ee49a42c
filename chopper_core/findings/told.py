"""Findings in words and figures, without all that they were worked out of: kept with a run."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct

from chopper_core.findings import Checked, checked, scope_key
from chopper_core.findings.parts import group_of
from chopper_core.findings.sentences import detail_of, finding_figures
from chopper_core.model.run import Run
from chopper_core.model.view import View

Ends = tuple[float | None, float | None]
"""Of the range of what a finding saves, in ns; None without a replay."""


class ToldFinding(Struct, frozen=True):
    """A finding as it is shown, in the order of all of a scope."""

    rule: str
    group: str
    is_part: bool
    """Whether it is a part of the last one before it that isn't."""
    title: str
    brief: str
    """Its detail without why it saves more or less than it costs."""
    detail: str
    advice: tuple[str, ...]
    figures: tuple[str, ...]
    """What it costs and saves."""
    evidence: View
    confidence: int
    share_pct: float
    """What it saves, else what it costs, in % of the step; without a trace 0."""
    remedy: str
    """The question that replays the steps without it; empty without a replay."""


def told(run: Run, view: View) -> tuple[ToldFinding, ...]:
    """The findings of a view's scope; raises NothingToShow."""
    key = _told_key(view)

    def made() -> tuple[ToldFinding, ...]:
        return _told(checked(run, view))

    return run.memo(key, lambda: run.kept(key, tuple[ToldFinding, ...], made, tuple, tuple))


def is_told(run: Run, view: View) -> bool:
    """Whether `told` answers at once: it was asked before, or kept with the run's files."""
    key = _told_key(view)
    if run.memo.has(key):
        return True
    known = run.recalled(key, tuple[ToldFinding, ...], tuple)
    if known is None:
        return False
    run.memo(key, lambda: known)
    return True


def ranges(run: Run, view: View) -> tuple[Ends, ...]:
    """The ends of the range of what each finding of a view's scope saves; takes as long again."""
    key = "ranges", *scope_key(view)

    def made() -> tuple[Ends, ...]:
        known = checked(run, view)
        return tuple(known.range_ns(*each) for each, _ in known.placed)

    return run.memo(key, lambda: run.kept(key, tuple[Ends, ...], made, tuple, tuple))


def _told_key(view: View) -> tuple[Hashable, ...]:
    return "told", *scope_key(view)


def _told(known: Checked) -> tuple[ToldFinding, ...]:
    context = known.context
    has_steps = not context.run.is_sampled_only
    return tuple(
        ToldFinding(
            rule=rule.name,
            group=group_of(rule, finding).text,
            is_part=whose is not None,
            title=finding.title,
            brief=finding.detail,
            detail=detail_of(context, finding),
            advice=finding.advice,
            figures=finding_figures(finding),
            evidence=finding.evidence,
            confidence=finding.confidence,
            share_pct=100 * context.share(finding.worth_ns or 0.0) if has_steps else 0.0,
            remedy=finding.remedy if finding.is_replayed else "",
        )
        for (rule, finding), whose in known.placed
    )
