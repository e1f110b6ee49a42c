"""Findings: the problems of a run, those first whose fix saves most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of_steps
from chopper_core.analyses.rows import LabelledRows
from chopper_core.analyses.saving_columns import SAVING, SAVING_SHARE
from chopper_core.columns import Values, column, numbered, worded
from chopper_core.findings import Checked, checked, count_findings, rules_of
from chopper_core.findings.parts import Found, Worth, group_of, why_not_replayed
from chopper_core.findings.rule import (
    CONFIDENCE,
    DETAIL,
    IRREGULAR,
    SMALLEST_SAVING,
    Finding,
    FindingsContext,
)
from chopper_core.findings.sentences import cost_of, detail_of
from chopper_core.model.phrases import by_number, count, facts, percent, time
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.views.shared.told_findings import ToldFinding, ranges, told, unknown_in_short
from chopper_core.views.spec import SETTINGS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="findings",
    title="Summary · findings",
    question="What stands out, how much time would fixing it save, and where is the evidence?",
    by_of_runs=SETTINGS,
    no_statistic="has a row per finding, which is one thing",
    takes_samples=True,
    takes_logs=True,
    takes_snapshots=True,
    is_costly=True,
)
COSTS: Final = column("""cost_ns | ns | costs
    Measured time that it takes, per step, of the GPUs that `cost_of` names.
    missing: it can't be measured""")
COST_OF: Final = column("""cost_of | | costs on
    Whose time it costs: of one GPU; of the GPU with most of it in each step, which others wait for
    (worst GPU); or the mean, of all GPUs (mean GPU) or of those that it is about.
    missing: the run has one GPU, or what it costs can't be measured""")
LOW: Final = column(f"""saving_low_ns | ns | saves min
    The low end of what it saves in steps that are run again without it, so that how much like steps
    vary counts: allows for what else would wait then, and for other work that a lower clock or
    busier links would slow down.
    missing: {SAVING.missing_because}""")
HIGH: Final = column(f"""saving_high_ns | ns | saves max
    The high end of what it saves in steps that are run again without it; of a bound (`≤`), the
    bound.
    missing: {SAVING.missing_because}""")
GROUP: Final = column("""group | | group
    What it asks for: fix first (a cause), could be better (what all GPUs lose alike, such as
    kernels below their roof, set-up, and what saves nothing until another finding is fixed), or not
    known (what the files lack).""")
ADVICE: Final = column("""advice | | what to do
    What to try, the most likely first, at most three sentences: only what the run shows to fit.
    missing: nothing that the run shows tells what would help""")
PART_OF: Final = column("""part_of | | part of
    The number of the finding that it is a part of, counting from 1 in the default order: both cost
    the same time.
    missing: it costs time that no other finding does, or unknown time""")
TOTAL: Final = column("""gpu_time_ns | ns | total GPU time
    GPU time affected, summed over GPUs and complete steps.
    missing: no GPU time is attributed to it""")
_FIRST: Final = 3
_ABOVE: Final = 1.1
"""Times the cost: from here on a saving above it is explained."""
RULE: Final = column("""rule | | rule
    The rule that found it (docs/findings.md).""")
DOUBT: Final = column("""doubt | | doubt
    Why the data that it rests on is in doubt: its confidence is low.
    missing: nothing that it rests on is in doubt""")
REMEDY: Final = column("""remedy | | what if
    The question of `chopper what-if` that replays the steps without it.
    missing: no replay removes it""")
OWN: Final = (
    COSTS, COST_OF, SAVING, CONFIDENCE, LOW, HIGH, GROUP, DETAIL, ADVICE, SAVING_SHARE, RULE,
    PART_OF, TOTAL, DOUBT, REMEDY,
)  # fmt: skip
"""The columns of the view, as the page of findings lists them."""


def answer(run: Run, view: View) -> ViewResult:
    known = checked(run, view)
    context, worth, placed = known.context, known.worth, known.placed
    found = [each for each, _ in placed]
    findings = [finding for _, finding in found]
    savings = [each.saving_ns for each in findings]
    ends, said = ranges(run, view, known), told(run, view, known)
    shares = [None if saving is None else 100 * context.share(saving) for saving in savings]
    bound = np.array([each.is_bound for each in findings], np.bool_)
    return ViewResult(
        LabelledRows("finding", [finding.title for finding in findings]),
        columns=(
            (COSTS, _rounded([each.cost_ns for each in findings])),
            (COST_OF, worded([cost_of(context, each) or None for each in findings])),
            (SAVING, replace(_rounded(savings), bound=bound)),
            (CONFIDENCE, worded([finding.confidence.text for finding in findings])),
            (LOW, _rounded([low for low, _ in ends])),
            (HIGH, _rounded([high for _, high in ends])),
            (PART_OF, _rounded([None if whose is None else whose + 1 for _, whose in placed])),
            (DETAIL, worded([detail_of(context, each) for each in findings])),
            (ADVICE, worded([" ".join(each.advice) or None for each in findings])),
            (SAVING_SHARE, replace(numbered(shares), bound=bound)),
            (RULE, worded([rule.name for rule, _ in found])),
            (GROUP, worded([group_of(*each).text for each in found])),
            (TOTAL, _rounded([finding.total_ns for finding in findings])),
            (DOUBT, worded([each.doubt or None for each in findings])),
            (REMEDY, worded([each.remedy if each.is_replayed else None for each in findings])),
        ),
        shown=_shown(run, findings),
        opens=lambda row: _evidence(said[row], view),
        headline=(_headline(known, unknown_in_short(said)),),
        base=replace(base_of_steps(run, view), is_of_step=True),
        notes=(
            *_together(context, worth, placed),
            *_above(findings),
            *_notes(context, worth, findings),
        ),
    )


def _shown(run: Run, findings: Sequence[Finding]) -> tuple[str, ...]:
    """The columns without a trace: nothing is replayed, and few findings have a cost."""
    if not run.is_sampled_only:
        return ()
    costs = (COSTS.name,) if any(each.cost_ns is not None for each in findings) else ()
    return (*costs, CONFIDENCE.name, RULE.name, DETAIL.name)


def _evidence(finding: ToldFinding, view: View) -> View:
    """The view that shows it, with the same baseline."""
    same = view.baseline is not None and view.baseline.path is None
    return replace(finding.evidence, baseline=view.baseline) if same else finding.evidence


def _rounded(figures: Sequence[float | None]) -> Values:
    whole = np.array([0 if each is None else round(each) for each in figures], np.int64)
    return Values(whole, np.array([each is None for each in figures], np.bool_))


def _headline(known: Checked, unknown: str) -> str:
    context = known.context
    groups, parts = count_findings([whose is not None for _, whose in known.placed])
    result = (count(groups, "finding") if groups else "nothing stands out") + parts
    if context.run.is_sampled_only:
        if context.run.is_logged_only:
            return facts(result, "the trainer's log alone", "without a trace, no savings")
        if context.run.is_snapshot:
            return facts(result, "memory snapshots alone", "without a trace, no savings")
        gpus = count(len(context.run.gpus), "GPU")
        return facts(result, f"telemetry of {gpus}", "without a trace, no savings")
    mark, per = context.run.mark("iteration_ns"), " per step" if context.has_iterations else ""
    return facts(
        result,
        unknown,
        f"{mark}{time(context.step_ns)}{per}{_mean_of(context)}",
        f"{len(rules_of(context.run))} rules checked",
    )


def _mean_of(context: FindingsContext) -> str:
    """What the step time is a mean of: `, mean of 2 steps and 8 GPUs`."""
    numbers = (len(context.all_iterations), "step"), (len(context.gpus), "GPU")
    several = " and ".join(count(number, word) for number, word in numbers if number > 1)
    return f", mean of {several}" if several else ""


def _together(
    context: FindingsContext, worth: Worth | None, placed: list[tuple[Found, int | None]]
) -> tuple[str, ...]:
    """What the first findings are worth together, which is less than their sum or more."""
    whole = [each for (_, each), whose in placed if whose is None][:_FIRST]
    first = [each.remedy for each in whole if each.is_replayed]
    if worth is None or len(first) < 2 or len(first) < len(whole):
        return ()
    is_most = any(each.is_bound for each in whole)
    saved, alone = worth.together_ns(first, is_most), sum(each.saving_ns or 0.0 for each in whole)
    most = "≤" if is_most else ""
    differs = abs(saved - alone) >= SMALLEST_SAVING.share * context.step_ns
    own = f" (sum {time(alone)})" if differs else ""
    per = " a step" if context.has_iterations else ""
    return (
        f"by replay, the first {len(first)} together save {most}{time(saved)}{per}, "
        f"{percent(context.share(saved))}{own}",
    )


def _above(findings: Sequence[Finding]) -> tuple[str, ...]:
    """That a saving may be above the cost, where one is."""
    if any((each.saving_ns or 0.0) > _ABOVE * (each.cost_ns or np.inf) for each in findings):
        return ("a saving clearly above its cost has its reason in the finding's detail",)
    return ()


def _notes(
    context: FindingsContext, worth: Worth | None, findings: Sequence[Finding]
) -> tuple[str, ...]:
    notes = [] if worth is None or not worth.steady.replays.note else [worth.steady.replays.note]
    costs = any(each.cost_ns is not None for each in findings) and not context.run.is_sampled_only
    if worth is None and costs and (why := why_not_replayed(context)):
        notes.append(f"savings are unknown: {why}")
    elif worth is not None and worth.least_ns:
        error_ns = abs(worth.steady.error_ns)
        notes.append(
            f"the replayed step is {time(error_ns)} from the measured one: savings below "
            f"{time(worth.least_ns)} aren't shown"
        )
    if context.irregular:
        which = by_number("step", context.irregular)
        whole = len(context.all_iterations)
        usual = whole - len(context.irregular)
        notes.append(
            f"{which} took over {IRREGULAR.value:g} times the median; figures per usual step are "
            f"means of the other {usual} ({time(context.usual_ns)} each), and the views behind "
            f"findings include all {whole}"
        )
    if len({cost_of(context, each) for each in findings if each.cost_ns}) > 1:
        notes.append("costs: of the GPU named; saves: what a step gets shorter by: quote that")
    if any(each.is_replayed for each in findings):
        notes.append("saves min to max: of steps run again without it; confidence: in the cause")
    if context.sampled_from is not None:
        notes.append(
            f"{len(context.iterations)} of {context.sampled_from} steps, evenly chosen, are "
            "analysed: all have too many activities; contention is not analysed"
        )
    return (*notes, *plugins.problems())
