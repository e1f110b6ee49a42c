"""What if: the step time with a cause removed, by replay."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.asked import (
    HOST,
    SHORT,
    Answer,
    NoCoordinates,
    Steady,
    activities_replayed,
    answer_of,
    change_of,
    questions_of,
    typical_step,
)
from chopper_core.analyses.base import base_of_steps
from chopper_core.analyses.rows import LabelledRows
from chopper_core.analyses.saving_columns import SAVING, SAVING_SHARE
from chopper_core.analyses.step_times import step_times, token_rate, tokens_in
from chopper_core.columns import METRICS, Values, columns, numbered, worded
from chopper_core.findings import checked
from chopper_core.graph import questions, window
from chopper_core.graph.path import longest_path
from chopper_core.graph.predicted import predicted_run
from chopper_core.graph.questions import Change, Predicted, Predictor
from chopper_core.model.inputs import MEASURED, PREDICTED
from chopper_core.model.phrases import count, facts, listed, percent, time
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, UNLABELLED
from chopper_core.model.view import SEPARATOR, Baseline, View, child_of, complete_order
from chopper_core.util.arrays import Float64, Int64, Mask
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import distinct, ranked, sums_of
from chopper_core.util.patterns import late
from chopper_core.views import WHATIF
from chopper_core.views.shared.row_questions import ALL_TOGETHER, QUESTION
from chopper_core.views.spec import ViewResult, ViewSpec

SPEC: Final = ViewSpec(
    name=WHATIF,
    title="Compare · what if",
    question="How long would a step take without a cause?",
    by=(QUESTION, "operation", "phase", "layer", "gpu", "iteration"),
    of=f"questions with {SEPARATOR} between them, such as gpu:5 as peers{SEPARATOR}no contention",
    second="graph",
    is_costly=True,
    has_preview=True,
    no_statistic="has a row per question, of whole steps",
)
_DECLARED: Final = columns("""
    step_ns | ns | step
        The step time with the change: the measured step time minus saving_ns.
    step_low_ns | ns | step min
        The low end of the step time's range: the spread of peers, how kernels follow the clock, how
        much communication slows them, and what activities without a launch record waited for.
    step_high_ns | ns | step max
        The high end of the step time's range.
    slowdown | x | slowdown
        Step time replayed as measured over that without stragglers, S of Lin et al. Of a part:
        the step time if only that part keeps its measured times, over that without stragglers.
        missing: the question isn't about stragglers
        source: Lin et al., OSDI 2025 (Understanding Stragglers in Large Model Training)
    next | | next bottleneck
        What most of the longest path is after the change, and its share.
""")
COLUMNS: Final = _DECLARED | {
    each.name: each for each in (SAVING, SAVING_SHARE, METRICS["tokens_per_s"])
}
DEFAULTS: Final = ("no stragglers", "no contention", "no host gaps", "comm at peak")
_ALL_GPUS: Final = DEFAULTS[0]
_ONE_GPU: Final = late(r"gpu:\d+( \w+)? as peers")
_MAX_PARTS: Final = 64
_LARGE: Final = window.MAX_ROWS
"""Activities of a run beyond which its questions are shown before their answers."""
_DOUBTFUL: Final = 0.1
"""The model's error, as a share of the step, that the headline names."""


def predicted(run: Run, view: View) -> Run:
    """The run with the times that all questions of a view together lead to, by replay.

    Raises UsageError for what isn't a question, NothingToShow where the run lacks what it needs.
    """
    asked = questions_of(view.of) or [DEFAULTS[0]]
    steady = Steady.of(run, view, asked)
    predictor = steady.predictor
    found = predictor.predict([change_of(predictor, each) for each in asked])
    return predicted_run(predictor, found, "; ".join(asked), steady.replays.leads)


def run_with_changes(run: Run, view: View) -> Run:
    """The run that a view is of: as measured, or as its questions predict it, with the measured one
    to compare with; raises as `predicted`."""
    asked = view.overrides.predicted
    if asked == run.overrides.predicted:
        return run
    measured = run.others[MEASURED] if run.overrides.predicted else run
    if measured.times_mark == PREDICTED:
        raise UsageError(f"{run.name} has predicted times: ask a run that was measured")

    def found() -> Run:
        return replace(
            predicted(measured, View(measured.name, of=asked)),
            name=measured.name,
            overrides=replace(measured.overrides, predicted=asked),
            others={**measured.others, MEASURED: measured},
        )

    return measured.memo(("predicted", asked), found) if asked else measured


def predicted_step(run: Run, view: View, asked: str) -> View:
    """The timeline of a predicted step next to the measured one: a typical one, or the scope's."""
    own = replace(view.overrides, predicted=asked)
    there = replace(view, name="timeline", by="", of="", sort="", filter="", columns=())
    there = replace(there, overrides=own, baseline=Baseline(MEASURED))
    if view.path:
        return there
    step = run.table.text_of("iteration", typical_step(run, view, questions_of(asked)))
    return replace(there, path=(step,), order=complete_order(["iteration"]))


def preview(run: Run, view: View) -> ViewResult | None:
    """The questions about a large run, before its steps are replayed."""
    if len(run.table) <= _LARGE or (view.by and view.by != QUESTION):
        return None
    asked = questions_of(view.of) or [*DEFAULTS]
    activities = activities_replayed(run, view, asked)
    labels = ["as measured", *asked, *([ALL_TOGETHER] if len(asked) > 1 else [])]
    step = np.full(len(labels), np.nan)
    step[0] = step_times(run, view).mean_ns
    own = [("step_ns", _whole(step))]
    own += [(name, _whole(np.full(len(labels), np.nan))) for name in ("saving_ns", "saving_pct")]
    return ViewResult(
        LabelledRows(QUESTION, labels),
        columns=tuple((COLUMNS[name], values) for name, values in own),
        opens=lambda row: _opened(run, view, labels[1:], row),
        headline=(f"computing… {count(activities, 'activity')} are replayed",),
        base=base_of_steps(run, view),
    )


def answer(run: Run, view: View) -> ViewResult:
    asked = questions_of(view.of)
    if view.by and view.by != QUESTION:
        return _by_part(run, view, Steady.of(run, view, asked), asked or [DEFAULTS[0]])
    known = {} if asked else _default_questions(run, view)
    steady = Steady.of(run, view, asked or [*known])
    answers: dict[str, Answer] = {}
    notes: list[str] = []
    changes: list[Change] = []
    for question in asked or known:
        answer = known.get(question)
        try:
            if answer is None or answer.steady.predictor is not steady.predictor:
                asks = (change_of(steady.predictor, each) for each in questions_of(question))
                answer = answer_of(steady, [*asks])
        except NoCoordinates as reason:
            if len(asked) == 1:
                raise
            notes.append(str(reason))
            continue
        except NothingToShow as reason:
            if len(asked) == 1:
                raise NothingToShow(f"{question}: {reason}") from reason
            notes.append(f"{question}: {reason}")
            continue
        changes += answer.changes
        answers[question] = answer
    if len(answers) > 1:
        answers[ALL_TOGETHER] = answer_of(steady, changes)
    answered = [*answers]
    labels = ["as measured", *answered]
    measured = steady.times.mean_ns
    every = [Answer(steady, (), steady.predictor.identity, np.nan), *answers.values()]
    saving = np.array([each.saving_ns for each in every])
    step = measured - np.nan_to_num(saving)
    ranges = [(0.0, 0.0), *(each.range_ns for each in answers.values())]
    high, low = measured - np.array(ranges).T
    now = steady.now_ns
    slowdown = [
        now / max(now - each.saving_ns, 1.0) if label == DEFAULTS[0] else None
        for label, each in zip(labels, every, strict=True)
    ]
    own = [
        ("step_ns", _whole(step)),
        ("saving_ns", _whole(saving)),
        ("saving_pct", numbered(100.0 * saving / measured)),
        ("step_low_ns", _whole(low)),
        ("step_high_ns", _whole(high)),
        ("tokens_per_s", numbered(token_rate(_tokens(run, steady), step))),
        ("slowdown", numbered(slowdown)),
        ("next", worded([_bottleneck(run, steady, each.expected) for each in every])),
    ]
    return ViewResult(
        LabelledRows(QUESTION, labels),
        columns=tuple((COLUMNS[name], values) for name, values in own),
        opens=lambda row: _opened(run, view, answered, row),
        headline=_headline(steady, answers),
        notes=(*_notes(steady, answers), *notes),
        base=base_of_steps(run, view),
    )


def _default_questions(run: Run, view: View) -> dict[str, Answer | None]:
    """The general ones, and those that the savings of the scope's findings answer, which may be
    several at once."""
    Steady.of(run, view)  # Where steps are too long to replay, nothing is looked for.
    asked: dict[str, Answer | None] = dict.fromkeys(DEFAULTS)
    with suppress(NothingToShow):
        found = checked(run, view)
        for (_, finding), _ in found.placed:
            if found.worth and finding.is_replayed and finding.remedy not in SHORT.values():
                answer = found.worth.answer(finding.remedy)
                if answer is not None and answer.saving_ns >= 0:
                    asked[finding.remedy] = answer
    return asked


def _whole(times_ns: Float64) -> Values:
    return Values(np.rint(np.nan_to_num(times_ns)).astype(np.int64), np.isnan(times_ns))


def _opened(run: Run, view: View, answered: list[str], row: int) -> View:
    """The predicted step of a row; of the first one what each part of all questions brings."""
    asked = [each for each in answered if each != ALL_TOGETHER]
    if not row:
        parts = SEPARATOR.join(asked)
        return replace(view, of=parts, by="operation", sort="", filter="", columns=())
    chosen = answered[row - 1]
    return predicted_step(run, view, SEPARATOR.join(asked if chosen == ALL_TOGETHER else [chosen]))


def _tokens(run: Run, steady: Steady) -> float:
    """Tokens of a step per GPU."""
    gpus = steady.times.gpus.tolist()
    return float(tokens_in(run, gpus, steady.times.iterations).mean())


def _headline(steady: Steady, answers: dict[str, Answer]) -> tuple[str, ...]:
    if not answers:
        return ("nothing that was asked can be replayed",)
    last, found = list(answers.items())[-1]
    measured = steady.times.mean_ns
    saved, share = time(abs(found.saving_ns)), percent(abs(found.saving_ns) / measured)
    change = f"{saved} ({share}) {'less' if found.saving_ns > 0 else 'more'} with {last}"
    if not round(found.saving_ns):
        change = f"no change with {last}"
    error = abs(steady.error_ns) / measured
    off = f"the replay as measured is off by {percent(error)}" if error > _DOUBTFUL else ""
    step = f"step {time(measured - found.saving_ns)} instead of {time(measured)}, by replay"
    return (facts(change, step, off),)


def _notes(steady: Steady, answers: dict[str, Answer]) -> tuple[str, ...]:
    error, measured, graph = steady.error_ns, steady.times.mean_ns, steady.predictor.graph
    notes = [
        f"replayed as measured a step takes {time(measured + error)}: the model's error is "
        f"{time(abs(error))} ({percent(abs(error) / measured)})"
    ]
    notes += filter(None, [steady.replays.note])
    small = [label for label, each in answers.items() if abs(each.saving_ns) < abs(error)]
    if small:
        notes.append(f"save less than the model's error: {listed(small, 8)}")
    alone = [label for label in answers if _ONE_GPU.fullmatch(label)]
    if _ALL_GPUS in answers and alone:
        notes.append(f"{_ALL_GPUS}: each GPU as its peers; {listed(alone, 4)}: that one alone")
    if graph.unseen_ns:
        each = graph.unseen_ns / max(len(steady.replays.steps.gpu), 1)
        notes.append(
            f"{time(each)} per step and GPU are waits for what isn't in the run, such as other "
            "ranks or work of before the trace: they stay as measured"
        )
    if graph.unlaunched:
        activities = count(graph.unlaunched, "activity")
        notes.append(f"{activities} have no launch record: their host's work isn't replayed")
    every = [
        f"{label}: {note}"
        for label, each in answers.items()
        for change in each.changes
        for note in change.notes
    ]
    return (*notes, *dict.fromkeys(each for each in every if not each.startswith(ALL_TOGETHER)))


def _bottleneck(run: Run, steady: Steady, predicted: Predicted) -> str:
    """The kind of work that takes most of the longest path."""
    graph, times = steady.predictor.graph, predicted.replayed
    nodes = longest_path(replace(graph, lag_ns=predicted.lag_ns), times, graph.activities).nodes
    table = run.table
    took = times.work_ns[nodes]
    rows = graph.row[nodes]
    # Operation and phase as one number; that of the host is below all others.
    operation, phase = (
        table.column(each)[rows].astype(np.int64) for each in ("operation", "phase")
    )
    phases = int(phase.max(initial=0)) + 1 - NO_LABEL
    named, own = ranked(np.where(rows < 0, -1, (operation - NO_LABEL) * phases + phase - NO_LABEL))
    sums = sums_of(took, own, len(named))
    whole = int(times.end_ns[nodes[-1]] - times.begin_ns[nodes[0]]) if len(nodes) else 0
    if not len(sums) or not whole:
        return "none"
    most = int(sums.argmax())
    name = HOST
    if named[most] >= 0:
        of_operation, of_phase = (code + NO_LABEL for code in divmod(int(named[most]), phases))
        is_named = of_operation != NO_LABEL
        name = table.text_of("operation", of_operation) if is_named else UNLABELLED
        if of_phase != NO_LABEL:
            name += f" in {table.text_of('phase', of_phase)}"
    return f"{name} {100 * sums[most] / whole:.0f} %"


# Parts of a question


def _by_part(run: Run, view: View, steady: Steady, asked: list[str]) -> ViewResult:
    """What each part of a change brings alone, and what the step takes if only it stays as is."""
    predictor = steady.predictor
    graph, level = predictor.graph, view.by
    changed = predictor.predict([change_of(predictor, each) for each in asked])
    codes = _codes(run, predictor, level)
    parts = distinct(codes[codes != NO_LABEL]).tolist()
    now, ideal = steady.now_ns, steady.mean_ns(changed)
    differ = (changed.work_ns != graph.work_ns) & (codes != NO_LABEL)
    parts = [code for code in parts if code in set(distinct(codes[differ]).tolist())]
    if not parts:
        raise NothingToShow(f"{SEPARATOR.join(asked)} changes nothing")
    sizes = [int(np.abs(changed.work_ns - graph.work_ns)[codes == code].sum()) for code in parts]
    order = np.argsort(sizes)[::-1][:_MAX_PARTS]
    left_out = len(parts) - len(order)
    parts = sorted(parts[place] for place in order.tolist())
    alone = np.array([_only(steady, changed, codes == code) for code in parts])
    kept = np.array([_only(steady, changed, codes != code) for code in parts])
    labels = [run.table.text_of(level, code) for code in parts]
    own = [
        ("saving_ns", _whole(now - alone)),
        ("saving_pct", numbered(100.0 * (now - alone) / steady.times.mean_ns)),
        ("slowdown", numbered(kept / ideal if asked == [DEFAULTS[0]] else [None] * len(parts))),
    ]
    notes = [f"a part's saving is that of changing it alone; all together save {time(now - ideal)}"]
    if left_out:
        notes.append(f"{count(left_out, 'part')} with the smallest changes are left out")
    return ViewResult(
        LabelledRows(level, labels),
        columns=tuple((COLUMNS[name], values) for name, values in own),
        opens=lambda row: child_of(view, level, labels[row]),
        sort="-saving_ns",
        headline=_of_stragglers(run, steady, changed) if asked == [DEFAULTS[0]] else (),
        notes=tuple(notes),
        by=level,
        base=base_of_steps(run, view),
    )


def _only(steady: Steady, changed: Predicted, where: Mask) -> float:
    """The step time with the change in some nodes only."""
    graph = steady.predictor.graph
    lag = np.where(where[graph.target], changed.lag_ns, graph.lag_ns)
    return steady.replayed(np.where(where, changed.work_ns, graph.work_ns), lag)


def _codes(run: Run, predictor: Predictor, level: str) -> Int64:
    """The label of each node: of its activity, or of what the host works for."""
    graph = predictor.graph
    row = graph.row.astype(np.int64)
    host = questions.nodes_of_host(graph)
    row[host] = questions.rows_of_hosts(graph, host)[0]
    found = run.table.column(level).astype(np.int64)[row]
    return np.where(row >= 0, found, NO_LABEL)


def _of_stragglers(run: Run, steady: Steady, ideal: Predicted) -> tuple[str, ...]:
    """S of the run, M_W and M_S: the shares of the loss that the slowest 3 % of the workers and the
    last stage explain."""
    found = straggler_metrics(run, steady, ideal)
    parts = {"M_W": "by the slowest 3 % of the GPUs", "M_S": "by the last stage"}
    named = (f"{name} {percent(found[name])} {by}" for name, by in parts.items() if name in found)
    return (facts(f"S {found['S']:.4g}, slowdown by stragglers", *named),)


def straggler_metrics(run: Run, steady: Steady, ideal: Predicted) -> dict[str, float]:
    """S, M_W and M_S of Lin et al.; M_S only of a pipeline.

    A worker's score is its slowdown, or the smaller one of its stage and its replica.
    """
    predictor, table = steady.predictor, run.table
    now, least = steady.now_ns, steady.mean_ns(ideal)
    found = {"S": now / least}
    if now <= least:
        return found
    gpus = distinct(table.gpu)
    axes = [name for name in ("pp", "dp") if name in table.coordinates] or ["gpu"]
    score = np.full(len(gpus), np.inf)
    for axis in axes:
        codes = _codes(run, predictor, axis)
        own = table.coordinates[axis][gpus] if axis != "gpu" else gpus
        for code in distinct(own).tolist():
            slow = _only(steady, ideal, codes != code) / least
            score[own == code] = np.minimum(score[own == code], slow)
    top = np.lexsort((gpus, -score))[: -(-len(gpus) * 3 // 100)]
    repaired = np.isin(predictor.graph.gpu, gpus[top])
    found["M_W"] = (now - _only(steady, ideal, repaired)) / (now - least)
    if "pp" in table.coordinates:
        stages = _codes(run, predictor, "pp")
        last = _only(steady, ideal, stages == int(table.coordinates["pp"].max()))
        found["M_S"] = (now - last) / (now - least)
    return found
