"""Compare: the parts of the difference from a baseline, split by any level, largest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import base_of, other_total
from chopper_core.analyses.coverage import Coverage
from chopper_core.analyses.rows import LabelledRows, Own
from chopper_core.analyses.sides import _ALIKE, _STEP, ANCESTOR, Sides, opens_of, sides_of
from chopper_core.columns import (
    Metric,
    Reduces,
    Values,
    column,
    is_measured,
    metric_named,
    parse_columns,
    worded,
)
from chopper_core.columns.derived import delta_of, relative, relative_of, run_without
from chopper_core.columns.lookup import why_missing
from chopper_core.columns.metric import quotient
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.phrases import change_text, count, facts, level_title
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT, STATES, UNLABELLED
from chopper_core.model.units import drawn_in, scaled_text
from chopper_core.model.view import Baseline, View, complete_order
from chopper_core.util.arrays import Float64
from chopper_core.util.errors import NoSuchNode, NothingToShow, UsageError
from chopper_core.views.shared.run_notes import cut_note
from chopper_core.views.spec import SUMS, ViewResult, ViewSpec, any_level

SPEC: Final = ViewSpec(
    name="compare",
    title="Compare",
    question="What contributes most to the difference from the baseline?",
    by=(*any_level("operation", "kernel", "layer", "phase", "gpu"), "place", "ancestor"),
    of=SUMS,
    compares=True,
    of_one_run="compares two runs: mark them and press =, or `chopper diff A B`",
    no_statistic="shows parts of a difference that add up to it, which those of a statistic don't",
    any_split=True,
)


USUAL: Final = "elapsed_ns"
_DURATIONS: Final = "kernel_ns"
_OTHER_TIME: Final = {USUAL: _DURATIONS, _DURATIONS: USUAL}
"""The other time of the same rows, which may differ from the baseline in the other direction."""
_CHARGED: Final = "time charged"
"""What the first time is called where a sentence or a chart names it."""
_EFFECTS: Final = ("number_", "each_")
_EACH: Final = "activities"
"""What a row has more or fewer of: copies and memsets too, which are no kernels."""
_COUNTS: Final = ("kernels", _EACH)
_MEANS: Final = ("gfx_mhz", "mfma_util_pct", "power_w")

SHARE: Final = column("""of_change_pct | % | share of Δ | signed
    The row's difference in % of the sum of the sizes of all differences.
    missing: no row differs""")
PARTNER: Final = column("""partner | | partner
    `new` if only this side has the row, `removed` if only the baseline has it; the name of a
    kernel in the baseline if it was renamed.
    missing: both sides have the row, by the same name""")

INSTEAD: Final = column("""instead | | instead
    What below the row only one side has: this run's, instead of the baseline's.
    missing: both sides have the same below the row""")

_MAX_DRAWN: Final = 200
_MAX_LISTED: Final = 3
_SHORTENED: Final = ("operation", "kernel")
"""Levels whose labels charts shorten."""


def answer(run: Run, view: View) -> ViewResult:
    figure = metric_named(view.of or USUAL, run.table)
    if figure.reduces != Reduces.SUM:
        raise UsageError(
            f"{figure.name} does not add up over parts; the view compare needs a time, a count, "
            "bytes or energy"
        )
    if view.baseline is None:
        return candidates(run, view)
    both = sides_of(run, view)
    if (without := run_without(figure, both.values(figure), both.runs)) is not None:
        where = "this run" if without is run else "the baseline"
        why = why_missing(figure, without.table, without.hardware)
        raise NothingToShow(f"{figure.title} can't be compared, as {where} has none: {why}")
    columns = {metric.name: (metric, values) for metric, values in _columns(both, figure)}
    total = {metric.name: values.at(0) for metric, values in _columns(both.whole, figure)}
    is_mean = both.ours.base.is_mean_of(both.by, both.pairs.labels)
    added = [SHARE.name, *(name for name in columns if name.startswith(_EFFECTS))]
    for name in set(added) & columns.keys():
        numbers, is_known = columns[name][1].numbers, columns[name][1].present().all()
        total[name] = float(numbers.sum()) if is_known and not is_mean else None
    delta = columns[delta_of(figure).name][1]
    change = delta.known(missing=0.0)
    order = np.argsort(-np.abs(change), kind="stable")
    top = order[delta.present()[order]][:_MAX_DRAWN].tolist() if change.any() else []
    return ViewResult(
        LabelledRows(both.by, list(both.pairs.labels)),
        by=both.by,
        columns=tuple(columns.values()),
        opens=lambda row: opens_of(both, row),
        total={name: number for name, number in total.items() if number is not None},
        sort=f"-{delta_of(figure).name}",
        headline=_headline(both, figure, change, top),
        notes=(*_which_time(both, figure), *_notes(both), *_other_gpus(both, figure)),
        charts=(_chart(both, figure, change, top),) if top else (),
        base=both.ours.base.applied,
    )


def _columns(both: Sides, figure: Metric) -> Own:
    pairs, (ours, base) = both.pairs, both.values(figure)
    change = both.difference(figure)
    sizes = float(np.abs(change.numbers).sum())
    shares = np.where(change.present(), 100.0 * change.numbers, np.nan)
    of_base = replace(
        figure,
        name=f"base_{figure.name}",
        title="base",
        definition=f"{figure.name} of the row in the baseline.",
    )
    other = _OTHER_TIME.get(figure.name)
    beside = [_changed(both, other)] if other else []
    found: Own = [
        (figure, ours),
        (delta_of(figure), change),
        (relative_of(figure), relative(ours, base)),
        *(beside if both.by == "kernel" else ()),
        (SHARE, quotient(shares, np.full(len(change), sizes))),
    ]
    if (pairs.ours < 0).any() or (pairs.base < 0).any() or any(pairs.partners):
        places = zip(pairs.ours.tolist(), pairs.base.tolist(), pairs.partners, strict=True)
        words = [
            "removed" if mine < 0 else "new" if theirs < 0 else partner or None
            for mine, theirs, partner in places
        ]
        found.append((PARTNER, worded(words)))
    if both.by == ANCESTOR:
        found.append((INSTEAD, worded([pairs.instead.get(label) for label in pairs.labels])))
    measured = _measured_means(both)
    others = [*measured[1:], *(STATES if figure.name == USUAL else ()), "kernels"]
    found += [_changed(both, name) for name in measured[:1]]
    found += [(of_base, base), *_effects(both, figure, ours, base)]
    found += beside if both.by != "kernel" else []
    return found + [_changed(both, name) for name in others if name != figure.name]


def _measured_means(both: Sides) -> list[str]:
    return [name for name in _MEANS if all(is_measured(name, run.table) for run in both.runs)]


def _changed(both: Sides, name: str) -> tuple[Metric, Values]:
    known = metric_named(name)
    return delta_of(known), both.difference(known)


def _effects(both: Sides, figure: Metric, ours: Values, base: Values) -> Own:
    """The parts of a difference due to more activities and to larger ones; they add up to it."""
    if figure.name in _COUNTS:
        return []
    now, before, more, fewer = (
        each.known(missing=0.0) for each in (ours, base, *both.values(metric_named(_EACH)))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = (more - fewer) * before / fewer
    # If one side has no activities, the whole difference is due to their number.
    by_number = np.where((more > 0) & (fewer > 0), grown, now - before)
    number, size = parse_columns(
        f"""
        number_{figure.name} | {figure.unit} | from count | sum | signed
            The part of the difference due to more or fewer activities: the difference of their
            number, times {figure.name} of one in the baseline.
        each_{figure.name} | {figure.unit} | from size | sum | signed
            The part of the difference due to more or less {figure.name} per activity: the
            difference minus the part due to their number.
        """
    ).values()
    missing = ~both.difference(figure).present()
    return [(number, Values(by_number, missing)), (size, Values(now - before - by_number, missing))]


def _named(figure: Metric) -> str:
    return _CHARGED if figure.name == USUAL else figure.title


def _headline(both: Sides, figure: Metric, change: Float64, top: list[int]) -> tuple[str, ...]:
    sides = [values.at(0) for values in both.whole.values(figure)]
    ours, base = (each or 0 for each in sides)
    percent = f" ({change_text(ours - base, base)})" if base else ""
    text = partial(scaled_text, unit=figure.unit)
    # Of kernels there are two times, which may differ in their signs.
    is_plain = figure.name == USUAL and both.by != "kernel"
    what = "" if is_plain else f" {_named(figure)}"
    whole = (
        f"{text(ours - base, sign='+')}{percent}{what}{both.ours.base.words}: "
        f"{text(ours)} vs {text(base)} in {both.baseline_name}"
    )
    is_known = both.whole.difference(figure).at(0) is not None
    if not is_known and any(each is not None for each in sides):
        here, there = ("unknown" if each is None else text(each) for each in sides)
        whole = f"{_named(figure)}{both.ours.base.words}: {here} vs {there}"
        whole += f" in {both.baseline_name}"
    if not top:
        same = f"no {level_title(both.by)} differs in {_named(figure)}"
        return (whole, same) if is_known else (whole,)
    parts = []
    for side, word in ((change > 0, "more"), (change < 0, "less")):
        if side.any():
            total = text(float(change[side].sum()), sign="+")
            parts.append(f"{total} in {count(int(side.sum()), 'row')} with {word}")
    # Rows of GPUs or iterations have the whole's mean, not its parts.
    is_mean = both.ours.base.is_mean_of(both.by, both.pairs.labels)
    sums = count(len(change), "row") if is_mean else ", ".join(parts)
    # Names of kernels and ancestors are too long for a sentence.
    listed = top[:_MAX_LISTED] if both.by not in ("kernel", ANCESTOR) else ()
    labels = both.pairs.labels
    named = [(_row_name(both.by, labels[row]), change[row]) for row in listed if change[row]]
    names = [f"{name} {text(number, sign='+')}" for name, number in named]
    return (whole, facts(sums, f"most: {', '.join(names)}" if names else ""))


def _row_name(level: str, label: str) -> str:
    """A row in a sentence: `layer 31`, `unlabelled`, the name of an operation."""
    if label == NO_LABEL_TEXT:
        return UNLABELLED
    return f"{level_title(level)} {label}" if label.isdecimal() else label


def _which_time(both: Sides, figure: Metric) -> tuple[str, ...]:
    """Which time of the kernels is compared, and where their other one is."""
    if both.by != "kernel" or figure.name not in _OTHER_TIME:
        return ()
    texts = {
        USUAL: f"of the {_CHARGED} (each moment to one activity, idle time too)",
        _DURATIONS: "of the sum of durations (simultaneous ones count twice)",
    }
    here, other = (
        f"{delta_of(metric_named(name)).title} is {texts[name]}"
        for name in (figure.name, _OTHER_TIME[figure.name])
    )
    return (f"{here}, {other}: their signs may differ, as of communication that hides more",)


def _notes(both: Sides) -> tuple[str, ...]:
    notes = other_total(both.ours.base, both.base.base)
    if both.base.run is both.ours.run:
        # Of two parts of one run, most notes are the same.
        said = cut_note(both.ours.run, both.ours.view)
        notes += [note for note in cut_note(both.base.run, both.base.view) if note not in said]
    else:
        notes += cut_note(both.base.run, both.base.view, "of the baseline")
    return tuple(notes)


def _other_gpus(both: Sides, figure: Metric) -> Iterator[str]:
    """Which figures are of other GPUs on the two sides, since telemetry or counters cover some."""
    sides = (both.ours, both.base)
    there = [Coverage(side.run, side.view, "", side.node, side.node) for side in sides]
    found: dict[tuple[str, ...], list[str]] = {}
    for known in (figure, *map(metric_named, _measured_means(both))):
        covered = [coverage.covered(known) for coverage in there]
        if covered[0] != covered[1]:
            sizes = [
                (of.gpus if own is None else len(own), of.gpus)
                for own, of in zip(covered, there, strict=True)
            ]
            texts = tuple(f"{some} of {whole}" for some, whole in sizes)
            found.setdefault(texts, []).append(delta_of(known).title)
    for (here, baseline), titles in found.items():
        word = "compares" if len(titles) == 1 else "compare"
        yield f"{', '.join(titles)} {word} {here} GPUs here with {baseline} in the baseline"


def _chart(both: Sides, figure: Metric, change: Float64, top: list[int]) -> BarChart:
    scale, unit = drawn_in(figure.unit)
    drawn, labels = change[top] / scale, [both.pairs.labels[row] for row in top]
    return BarChart(
        f"difference in {_named(figure)} by {level_title(both.by)}",
        unit,
        tuple(UNLABELLED if each == NO_LABEL_TEXT else each for each in labels),
        (
            Series("more than the baseline", np.maximum(drawn, 0.0)),
            Series("less", np.minimum(drawn, 0.0)),
        ),
        level=both.by if both.by in _SHORTENED else "",
    )


HOW: Final = "b on a row and Enter on another, space on two and =, or base=RUN in the address"


class _Candidate(Struct, frozen=True):
    """A scope and something to compare it with, and the time of both."""

    text: str
    view: View
    baseline: Baseline
    base_ns: float
    own_ns: float


def candidates(run: Run, view: View) -> ViewResult:
    found: list[_Candidate] = []
    own_ns = _time_of(run, view)
    for name, other in run.others.items():
        with suppress(NoSuchNode):
            found.append(_Candidate(name, view, Baseline(name), _time_of(other, view), own_ns))
    for depth, (level, label) in enumerate(view.scope):
        if level in _STEP:
            before, after = view.path[:depth], view.path[depth + 1 :]
            rest = [name for name, _ in view.scope if name != level]
            parent = replace(view, path=(*before, *after), order=complete_order([*rest, level]))
            for text, time_ns in _times_of_children(run, parent).items():
                if text != label:
                    there = Baseline("", (*before, text, *after))
                    name = f"{level_title(level)} {text}"
                    found.append(_Candidate(name, view, there, time_ns, own_ns))
    at = view
    alike = _among_children(run, at)
    found += alike
    while not found and at.level not in ("operation", "kernel"):
        # Levels whose nodes do different work are passed through the longest.
        children = run.tree_of(at).children(at.path)
        longest = children.labels[int(children.groups.elapsed_ns.argmax())]
        at = replace(at, path=(*at.path, longest))
        found = alike = _among_children(run, at)
    if not found:
        raise NothingToShow(f"nothing in the run is like it, to compare with; {HOW}")
    base_ns, own_ns_of = np.array([(each.base_ns, each.own_ns) for each in found], np.float64).T

    def opens(row: int) -> View:
        one = found[row]
        return replace(one.view, baseline=one.baseline, sort="", filter="", columns=())

    return ViewResult(
        LabelledRows("baseline", [each.text for each in found]),
        columns=((_BASE, Values(base_ns)), (_DELTA, Values(own_ns_of - base_ns))),
        opens=opens,
        base=base_of(run, view).applied,
        headline=(f"no baseline yet: Enter takes a row; {HOW}", *_why(at.level, alike)),
    )


def _why(level: str, alike: Sequence[_Candidate]) -> Iterator[str]:
    """Why the children of a scope are next to those that they are next to."""
    title = level_title(level)
    if alike and level == "iteration":
        yield f"each {title} next to the one before"
    elif alike and (path := alike[0].baseline.path):
        yield f"each {title} next to {title} {path[-1]}, whose time is in the middle"


def _time_of(run: Run, view: View) -> float:
    return float(base_of(run, view).each(run.tree_of(view).node(view.path).elapsed_ns)[0])


def _times_of_children(run: Run, view: View) -> dict[str, float]:
    """The time of each child of a scope by its label, all summed at once."""
    children = run.tree_of(view).children(view.path)
    divisors = base_of(run, view).of_rows({children.level: children.labels})
    times = children.groups.elapsed_ns / divisors
    return dict(zip(children.labels, times.tolist(), strict=True))


def _among_children(run: Run, view: View) -> list[_Candidate]:
    """Each GPU and layer next to the one in the middle, each step next to the one before."""
    level = view.level
    if level not in _ALIKE:
        return []
    left_out = {NO_LABEL_TEXT}
    left_out |= set(map(str, run.left_out(view))) if level == "iteration" else set()
    times = _times_of_children(run, view)
    labels = [label for label in times if label not in left_out]
    if len(labels) < 2:
        return []
    middle = sorted(labels, key=times.__getitem__)[(len(labels) - 1) // 2]
    found: list[_Candidate] = []
    for label, before in zip(labels, ["", *labels], strict=False):
        base = before if level == "iteration" else middle
        if base not in (label, ""):
            own, there = replace(view, path=(*view.path, label)), Baseline("", (*view.path, base))
            text = f"{level_title(level)} {label} vs {level_title(level)} {base}"
            found.append(_Candidate(text, own, there, times[base], times[label]))
    return found


_BASE: Final = column("""base_ns | ns | base time
    The time of this candidate baseline.""")
_DELTA: Final = column("""scope_ns_delta | ns | Δ time | signed
    The time of the scope minus that of this candidate baseline.""")
