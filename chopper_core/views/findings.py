"""Findings: the problems of a run, ranked by how much time fixing them would save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of_steps
from chopper_core.columns import Values, column, numbered, worded
from chopper_core.findings import Checked, checked, numbers_of, rules_of
from chopper_core.findings.parts import Found, Worth
from chopper_core.findings.rule import (
    CONFIDENCE,
    IRREGULAR,
    Finding,
    FindingsContext,
)
from chopper_core.model.phrases import by_number, count, facts, percent, time
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.views.spec import SETTINGS, ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name="findings",
    title="Findings",
    question="What stands out, how much time would fixing it save, and where is the evidence?",
    by_of_runs=SETTINGS,
    no_statistic="has a row per finding, which is one thing",
    takes_samples=True,
)
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
RULE: Final = column("""rule | | rule
    The rule that found it (docs/findings.md).""")
DOUBT: Final = column("""doubt | | doubt
    Why the data that it rests on is in doubt: its confidence is low.
    missing: nothing that it rests on is in doubt""")
REMEDY: Final = column("""remedy | | what if
    The question of `chopper what-if` that replays the steps without it.
    missing: no replay removes it""")


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


def _basis(finding: Finding) -> str | None:
    return None if finding.saving_ns is None else ("estimate", "replay")[finding.is_replayed]


def _with_baseline(evidence: View, view: View) -> View:
    same = view.baseline is not None and view.baseline.path is None
    return replace(evidence, baseline=view.baseline) if same else evidence


def _rounded(figures: Sequence[float | None]) -> Values:
    whole = np.array([0 if each is None else round(each) for each in figures], np.int64)
    return Values(whole, np.array([each is None for each in figures], np.bool_))


def _headline(known: Checked) -> str:
    context = known.context
    groups, parts = numbers_of(known)
    result = (count(groups, "finding") if groups else "nothing stands out") + parts
    if context.run.is_sampled_only:
        if context.run.is_logged_only:
            return facts(result, "the trainer's log alone", "without a trace, no savings")
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
