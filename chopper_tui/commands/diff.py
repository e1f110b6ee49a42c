"""`chopper diff`: what changed between two runs, and whether limits on it are exceeded."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from math import isfinite
from typing import TYPE_CHECKING, Final

from chopper_core.answers.runner import compared_address, shown
from chopper_core.tables.losses import number_of
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.escape import Escaped, escape_each, escape_lines
from chopper_tui.commands import show
from chopper_tui.commands.arguments import READING, TABLE
from chopper_tui.commands.options import (
    open_with_progress,
    opened_run_with,
    progress_line,
    view_of,
)
from chopper_tui.commands.output import frame_text, write_text
from chopper_tui.terminal import remark

if TYPE_CHECKING:
    from chopper_core.analyses.comparable import Comparability
    from chopper_core.analyses.gate import Judged
    from chopper_core.views.frame import Frame

DESCRIPTION: Final = "Compare B with A, its baseline: what changed, largest first."
OPTIONS: Final = f"""
    A | the baseline; @NAME of `chopper baseline`
    B | the run to compare with it
    PATH? | a part of both, such as gpu=0/iteration=11
    several --fail-if LIMIT | exit code 4 if B exceeds the limit beyond the noise of its steps:
        'step_time>+2%', 'operation=mlp_dp/elapsed_ns>+5%', 'gpu=3/exposed_comm_ns>+1ms'
    several --base RUN | further baselines with the settings of A, for --fail-if: a run, a pattern
        of paths, or a directory of runs; the limit has to be exceeded beyond their spread
        too
    --strict | exit code 4 also for a limit that isn't known to be met: noise hides it, or it can't
        be checked
    --allow-unchecked | exit code 0, not 5, for a limit that can't be checked: a run lacks the
        figure, or has fewer than four complete steps
    --anyway | judge limits also of runs that aren't comparable: of other work, layout, steps or
        GPUs, or with doubts about a limit's figure
    --junit FILE | write the results as JUnit XML, for the page of a job{TABLE}{READING}"""
EXCEEDED: Final = 4
NOT_CHECKED: Final = 5


def run(options: Namespace) -> int:
    if options.strict and options.allow_unchecked:
        raise UsageError("--strict fails what --allow-unchecked lets pass; give one of them")
    bases = _baselines(options)
    options.a = bases[0]
    options.address = compared_address(options.a, options.b, options.path)
    if not options.fail_if:
        return show.run(options)
    from chopper_core.analyses.base import baseline_of
    from chopper_core.analyses.comparable import comparability, not_comparable
    from chopper_core.analyses.gate import FAIL, INCONCLUSIVE, PASS, UNCHECKED, judge
    from chopper_core.render.junit import ERROR
    from chopper_core.views.query import frame_of

    view = shown(view_of(options.address, options), options.columns)
    opened = open_with_progress(view, options)
    with progress_line() as progress:
        others = [
            opened_run_with(name, view.overrides.of_base, options, progress) for name in bases[1:]
        ]
    base, _ = baseline_of(opened, view)
    columns = {name for limit in options.fail_if for name in limit.columns}
    pair = comparability(opened, (base, *others), columns)
    if pair.refusals and not options.anyway:
        refusal = not_comparable(opened.name, options.a, pair)
        _write_junit(options, [(limit.text, ERROR, refusal) for limit in options.fail_if])
        raise DataError(f"{refusal}; --anyway judges the limits all the same")
    judged = judge(opened, base, options.fail_if, others)
    write_text(_printed(frame_of(opened, view), judged, pair, options), options)
    verdicts = [each.verdict for each in judged]
    if options.strict:
        verdicts = [each if each == PASS else FAIL for each in verdicts]
    elif options.allow_unchecked:
        verdicts = [INCONCLUSIVE if each == UNCHECKED else each for each in verdicts]
    _write_junit(
        options,
        [
            (each.limit.text, verdict, each.sentence)
            for each, verdict in zip(judged, verdicts, strict=True)
        ],
    )
    if unchecked := verdicts.count(UNCHECKED):
        remark(
            f"chopper diff: {unchecked} of {number_of(len(verdicts), 'limit')} can't be checked; "
            "--allow-unchecked lets them pass"
        )
    if FAIL in verdicts:
        return EXCEEDED
    return NOT_CHECKED if unchecked else 0


def _baselines(options: Namespace) -> list[str]:
    """The runs to compare with, A first; several are for limits alone."""
    from chopper_core.ingest.discovery import find_runs, holds_runs
    from chopper_core.store.format import SIGN, matching_paths, named_runs

    names: list[str] = []
    for text in (options.a, *options.base):
        for path in (each for name in matching_paths(text) for each in named_runs(name)):
            is_several = os.path.isdir(path) and holds_runs(path)
            names += [r.path for r in find_runs([path]) if not r.is_empty] if is_several else [path]
    # A pattern may match the run itself.
    own = [name for name in dict.fromkeys(names) if not _is_same(name, options.b)]
    names = own or names[:1]
    if len(names) == 1 or options.fail_if:
        return names
    if options.base or not options.a.startswith(SIGN):
        raise UsageError(
            f"{len(names)} baselines are for limits (--fail-if); compare with one of "
            f"{', '.join(names[:4])}"
        )
    return names[:1]


def _is_same(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _write_junit(options: Namespace, results: list[tuple[str, str, str]]) -> None:
    if options.junit:
        from chopper_core.render.junit import as_junit

        write_text(
            as_junit(f"{options.b} against {options.a}", results), Namespace(output=options.junit)
        )


def _printed(
    frame: Frame, judged: list[Judged], pair: Comparability, options: Namespace
) -> Escaped:
    """The frame with the limits: sentences in text, a table in markdown, `limits` in JSON."""
    from chopper_core.analyses.gate import limits_table

    sentences = [each.sentence for each in judged]
    if pair.reasons:
        sentences.append(f"comparable by {pair.score_pct:.0f} %: {pair.reasons[0].text}")
    text, format_name = frame_text(frame, options)
    if format_name == "text":
        return Escaped(escape_each([*sentences, ""]) + text)
    if format_name == "markdown":
        return escape_lines(f"{limits_table(judged)}\n{text}")
    # In files for programs, people find the sentences next to the data.
    remark("\n".join(sentences))
    if format_name == "csv":
        return text
    from chopper_core.render.exchange import json_text

    document = json.loads(text)
    document["comparability"] = {
        "score_pct": pair.score_pct,
        "reasons": [
            {"kind": each.kind, "text": each.text, "agreement": each.agreement}
            for each in pair.reasons
        ],
    }
    document["limits"] = [
        {
            "limit": each.limit.text,
            "verdict": each.verdict,
            "run": _known(each.ours),
            "base": _known(each.base),
            "unit": each.metric.unit,
            "change_pct": _known(each.change_pct),
            "q": _known(each.q),
            "iterations": list(each.counts),
            "baselines": each.runs,
            "spread_pct": _known(each.spread_pct),
            "sentence": each.sentence,
        }
        for each in judged
    ]
    return json_text(document)


def _known(number: float) -> float | None:
    return number if isfinite(number) else None
