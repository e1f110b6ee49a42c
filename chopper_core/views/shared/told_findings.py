"""Findings in words and figures, without all that they were worked out of: kept with a run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.phrases import percent
from chopper_core.model.run import Run
from chopper_core.model.view import View

if TYPE_CHECKING:
    from chopper_core.findings import Checked  # what was kept needs no rule

_MUCH: Final = 0.1
"""Of the step."""
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
    cost_of: str
    """Whose time it costs; empty in a run of one GPU."""
    evidence: View
    confidence: int
    share_pct: float
    """What it saves, else what it costs, in % of the step; without a trace 0."""
    remedy: str
    """The question that replays the steps without it; empty without a replay."""


def told(run: Run, view: View, known: Checked | None = None) -> tuple[ToldFinding, ...]:
    """The findings of a view's scope, their evidence of the run as the view names it; raises
    NothingToShow. Those of who has checked them: of many ranks they are too large to remember."""
    key = _told_key(view)

    def made() -> tuple[ToldFinding, ...]:
        from chopper_core.findings import checked

        return _told(known or checked(run, view))

    kind = tuple[ToldFinding, ...]
    found = run.memo(key, lambda: run.kept(key, kind, made, tuple, tuple, is_costly=True))
    if view.run == run.name:
        return found
    return tuple(replace(each, evidence=replace(each.evidence, run=view.run)) for each in found)


def unknown_in_short(found: Sequence[ToldFinding]) -> str:
    """Of how much of the step the findings say that its cause isn't known, in a few words; empty
    where that is little."""
    from chopper_core.findings.rule import Group

    own = (each for each in found if each.group == Group.UNKNOWN.text and not each.is_part)
    share = sum(each.share_pct for each in own) / 100
    return f"no known cause for {percent(share)} of the step" if share >= _MUCH else ""


def is_told(run: Run, view: View) -> bool:
    """Whether `told` answers at once: it was asked before, or kept with the run's files."""
    return run.knows(_told_key(view), tuple[ToldFinding, ...], tuple)


def remedy_of(run: Run, view: View, title: str) -> str:
    """The what-if question of a finding of the run; empty where no replay removes it."""
    text = title.removeprefix("└ ")
    found = told(run, _whole(view))
    return next((each.remedy for each in found if each.title == text and each.remedy), "")


def told_of_run(run: Run, view: View) -> tuple[ToldFinding, ...]:
    """The findings of the whole run of a view."""
    return told(run, _whole(view))


def knows_remedies(run: Run, view: View) -> bool:
    """Whether `remedy_of` answers at once: its findings may not have been checked yet."""
    return is_told(run, _whole(view))


def _whole(view: View) -> View:
    return View(view.run, overrides=view.overrides)


def ranges(run: Run, view: View, known: Checked | None = None) -> tuple[Ends, ...]:
    """The ends of the range of what each finding of a view's scope saves; takes as long again."""
    key = "ranges", *_scope(view)

    def made() -> tuple[Ends, ...]:
        from chopper_core.findings import checked

        return (known or checked(run, view)).ranges_ns()

    kind = tuple[Ends, ...]
    return run.memo(key, lambda: run.kept(key, kind, made, tuple, tuple, is_costly=True))


def _told_key(view: View) -> tuple[Hashable, ...]:
    return "advice", *_scope(view)


def _scope(view: View) -> tuple[Hashable, ...]:
    """What of a view its findings depend on."""
    return view.path, view.order, view.signal, view.overrides, view.cut


def _told(known: Checked) -> tuple[ToldFinding, ...]:
    from chopper_core.findings.parts import group_of
    from chopper_core.findings.sentences import cost_of, detail_of, finding_figures

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
            cost_of=cost_of(context, finding),
            evidence=finding.evidence,
            confidence=finding.confidence,
            share_pct=100 * context.share(finding.worth_ns or 0.0) if has_steps else 0.0,
            remedy=finding.remedy if finding.is_replayed or finding.is_removed_with_whole else "",
        )
        for (rule, finding), whose in known.placed
    )
