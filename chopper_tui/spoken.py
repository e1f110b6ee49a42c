"""Places, times, clocks, rankings and comparisons of a run that a person puts into words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.analyses.gaps import longest_gap, timeline_of_gap
from chopper_core.columns import METRICS, Metric, registered
from chopper_core.columns.filter import only
from chopper_core.model.glossary import OPERATIONS
from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.units import time_text
from chopper_core.model.view import (
    ALL_TIME,
    STATISTICS,
    Baseline,
    View,
    as_statistic,
    at_level,
    child_of,
    parse_time,
    pivot,
    with_view,
)
from chopper_core.render.cells import crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.grouping import distinct
from chopper_core.util.patterns import late
from chopper_core.views import view_spec
from chopper_core.views.find import names_found
from chopper_core.views.spec import splits_of
from chopper_core.work.kernel_classes import classes_of_names
from chopper_tui.concepts import in_usual_words, said_concepts
from chopper_tui.search import (
    FILLING,
    Offer,
    can_look_through,
    found_among,
    going,
    spaced,
    stem,
)
from chopper_tui.what_ifs import asked_what_ifs

Steps = Mapping[str, str]
"""Levels of the tree and the label of each that a text names."""

_LEVEL_WORDS: Final = {level: level for level in LEVELS} | {
    "step": "iteration",
    "it": "iteration",
    "rank": "gpu",
    "l": "layer",
    "op": "operation",
    "shape": "shape",
}
"""Words that people type for a level: before a label it is a place, alone a split."""
_LABELLED: Final = ("gpu", "iteration", "phase", "layer")
"""Levels whose labels are understood; the names of the others are searched for."""
_ORDERS: Final = {
    word: order
    for order, words in (
        ("worst", "worst bad lost improvable inefficient inefficiency wasteful"),
        ("longest", "slowest longest largest top biggest costliest"),
        ("shortest", "fastest shortest smallest best quickest"),
    )
    for word in words.split()
}
_SLOW: Final = frozenset(("slow", "bottleneck", "bottlenecks"))
"""Words for the longest of rows, next to a level: else what is slow is named elsewhere."""
_COMMON_PHASES: Final = frozenset(("other", "data"))
_STATISTICS: Final = {name: name for name in STATISTICS if name != "sum"} | {"average": "mean"}
_BASE: Final = frozenset(("baseline", "base", "reference"))
_GAPS: Final = frozenset(("gap", "idle", "host", "cpu"))
"""Words for the time in which a GPU waits for its host."""
_LIMITS: Final = dict.fromkeys(("under", "below", "less", "<"), "<") | dict.fromkeys(
    ("over", "above", "more", ">"), ">"
)
_AMOUNT: Final = late(r"(\d+(?:\.\d+)?)(%|[a-zµ]*)")
_UNIT: Final = late(r"%|ns|us|µs|ms|s|[kmgt]?b|w|mhz|ghz")
_SEPARATORS: Final = late(r"[:=/,;›?!\s]+")
_NUMBERED: Final = late(r"([a-z]+)(\d+)")
"""`gpu5`, `L3`."""
_ASIDE_WORDS: Final = """
achieve during get give go let list over perform performance performing performs screen like
make need now place please put reach reaches same see set take tell use want
"""
_ASIDE: Final = frozenset(_ASIDE_WORDS.split())
"""Words around what is asked for."""
_CHOSEN: Final = frozenset(("by", "per", "each", "which", "what"))
"""Words before the level that the rows are of."""
_MEASURED_WORDS: Final = "duration durations latency length long takes time times took"
_MEASURES: Final = frozenset(_MEASURED_WORDS.split())
"""Words for how long kernels take."""
_RANKED: Final = frozenset(("sorted", "ordered", "ranked", "ranking", "list", "listed"))
"""Words for rows in their order."""
_COUNTED: Final = frozenset(("top", "first", "worst", "slowest"))
"""Words before the number of rows that someone wants."""
_AGAINST: Final = late(r"\s+(?:vs\.?|versus|against|with|and|to)\s+")
_COMPARE: Final = late(r"^(?:compare|diff|differences?)\s+(?:of\s+|between\s+)?")
_NUMBER: Final = r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?"
_TIME: Final = late(rf"(?:\b([a-z]+)[\s=]+)?({_NUMBER})\s*(ns|us|µs|ms|s|seconds?)\b")
_AT_A_TIME: Final = (
    *("launching", "queue", "depth", "wait", "work", "time", "gpu", "where", "elsewhere"),
)
"""Concepts of questions about a moment."""
_BEFORE_TIMES: Final = ("at", "around", "near", "after", "time", "t")
_MOST_PLACES: Final = 3


class Asked(Struct):
    """The words of a text, each by what it says."""

    steps: dict[str, str] = field(default_factory=dict)
    split: str = ""
    """A level without a label: what the rows are."""
    order: str = ""
    """`worst`, `longest` or `shortest` first."""
    statistic: str = ""
    limit: str = ""
    """An operator and a number: `<57`."""
    is_base: bool = False
    again: dict[str, str] = field(default_factory=dict)
    """Levels that a text names twice, and the second label."""
    rest: list[str] = field(default_factory=list)
    """Words of names, figures and tabs."""


def spoken(run: Run, view: View, tabs: Iterable[Offer], text: str) -> list[Offer]:
    """What a text says that is in no list; `tabs` are the entries of the tabs."""
    if not text:
        return []
    compared = [*_comparisons(run, view, text)]
    asked = asked_in(run, text)
    found = [*compared, *_asked_for(run, view, asked, tabs)]
    return [*asked_what_ifs(run, text), *found, *_times(run, view, text)]


def words_spoken(run: Run) -> list[str]:
    """The words that are understood before a label or a name, and the labels that are words."""
    labels = (label for level in _labels(run).values() for label in level if label.isalpha())
    words = (*_LEVEL_WORDS, *_ORDERS, *_STATISTICS, *_LIMITS, *_BASE, *_GAPS, *_MEASURES, *_ASIDE)
    return [*words, *_SLOW, *_COUNTED, *_RANKED, *labels]


def place_named(run: Run, view: View, text: str) -> Offer | None:
    """The place that a text names among other words; None without."""
    asked = asked_in(run, text)
    return _place(view, asked) if asked.steps and asked.rest else None


def place_asked(run: Run, view: View, text: str) -> View | None:
    """The place that a whole text names, as `gpu 5`, `step 11` or `11`; None without."""
    asked = asked_in(run, text)
    if not asked.steps and len(asked.rest) == 1:
        word = asked.rest.pop()
        levels = ((level, labels[word]) for level, labels in _labels(run).items() if word in labels)
        asked.steps.update([*levels][:1])
    is_place = not (asked.rest or asked.split or asked.order or asked.statistic)
    return at_place(view, asked.steps) if asked.steps and is_place else None


def asked_in(run: Run, text: str) -> Asked:
    """What each word of a text says, by the labels of the run."""
    known, asked = _labels(run), Asked()
    words, before, is_chosen = [*_words(in_usual_words(text))], "", False
    while words:
        last, before = before, words[0]
        word = words.pop(0)
        level = _LEVEL_WORDS.get(word) or _LEVEL_WORDS.get(stem(word), "")
        label = known[level].get(words[0]) if level in _LABELLED and words else None
        if label is not None and level not in asked.steps:
            asked.steps[level] = label
            words.pop(0)
        elif label is not None and level not in asked.again:
            asked.again[level] = label
            words.pop(0)
        elif _is_phase(known, word, last) and "phase" not in asked.again:
            named = asked.again if "phase" in asked.steps else asked.steps
            named["phase"] = known["phase"][word]
        elif level and word != "l" and (not asked.split or (last in _CHOSEN and not is_chosen)):
            asked.split, is_chosen = level, last in _CHOSEN
        elif word.isdecimal() and last in _COUNTED:
            continue
        elif (second := _again(known, asked, word)) is not None:
            asked.again |= second
        elif word in _ORDERS:
            asked.order = _ORDERS[word]
        elif word in _STATISTICS:
            asked.statistic = _STATISTICS[word]
        elif word in _LIMITS and words and (number := _amount(words)):
            asked.limit = f"{_LIMITS[word]}{number}"
        elif word in _BASE:
            asked.is_base = True
            # `12 with 11 as the baseline`: the one named last.
            asked.steps, asked.again = asked.steps | asked.again, {}
        elif not level and word not in FILLING and word not in _ASIDE:
            asked.rest.append(word)
    if asked.split and not asked.order and _SLOW & {*asked.rest}:
        asked.order = "longest"
        asked.rest = [word for word in asked.rest if word not in _SLOW]
    return asked


def _is_phase(known: Mapping[str, Mapping[str, str]], word: str, last: str) -> bool:
    """Whether a word is a phase; one that means much else is so only after the word phase."""
    return word in known["phase"] and (word not in _COMMON_PHASES or last == "phase")


def _again(
    known: Mapping[str, Mapping[str, str]], asked: Asked, word: str
) -> Mapping[str, str] | None:
    """A number that is another label of the level named last: the 3 of `gpu 5 and 3`."""
    level = [*asked.steps][-1] if asked.steps else ""
    if not word.isdecimal() or not level or level in asked.again:
        return None
    return {level: known[level][word]} if word in known[level] else None


def _amount(words: list[str]) -> str:
    """The number that words begin with, with its unit, taken from them; empty: there is none."""
    if words[:1] == ["than"]:
        words.pop(0)
    found = _AMOUNT.fullmatch(words[0]) if words else None
    if found is None:
        return ""
    words.pop(0)
    unit = words.pop(0) if not found[2] and words and _UNIT.fullmatch(words[0]) else found[2]
    return f"{found[1]}{'' if unit == '%' else unit}"


def _words(text: str) -> Iterator[str]:
    for word in filter(None, (each.rstrip(".") for each in _SEPARATORS.split(text.lower()))):
        found = _NUMBERED.fullmatch(word)
        if found is not None and found[1] in _LEVEL_WORDS:
            yield from found.groups()
        else:
            yield word


def _labels(run: Run) -> Mapping[str, Mapping[str, str]]:
    """Level → its labels in small letters → as they are."""

    def found() -> dict[str, dict[str, str]]:
        columns = {level: distinct(run.tree().codes_of(level)) for level in _LABELLED}
        return {
            level: {each.lower(): each for each in run.table.texts_of(level, codes)}
            for level, codes in columns.items()
        }

    return run.memo(("labels to type",), found)


def _comparisons(run: Run, view: View, text: str) -> Iterator[Offer]:
    """`gpu 5 vs 3`, `step 12 against step 11`, `12 vs 11`, `how does gpu 5 differ from gpu 3`."""
    asked, said = asked_in(run, text), said_concepts(text)
    if asked.is_base:
        return
    if asked.again and "compare" in said and not {*asked.rest} - said["compare"] - {"between"}:
        yield _compared(view, asked.steps, asked.steps | asked.again)
        return
    sides = _AGAINST.split(_COMPARE.sub("", text))
    if len(sides) != 2:
        return
    one, other = (asked_in(run, each) for each in sides)
    is_plain = not one.rest and (not other.rest or (one.steps and len(other.rest) == 1))
    if (one.steps or other.steps) and not is_plain:
        return
    pairs: list[tuple[Steps, Steps]] = []
    if one.steps and other.steps:
        pairs.append((one.steps, other.steps))
    elif one.steps:
        level = [*one.steps][-1]
        if second := asked_in(run, f"{level} {sides[1]}").steps:
            pairs.append((one.steps, second))
    else:
        known = _labels(run)
        levels = ("iteration", "gpu", "layer")
        both = (level for level in levels if all(each in known[level] for each in sides))
        pairs += [
            ({level: known[level][sides[0]]}, {level: known[level][sides[1]]}) for level in both
        ]
    for steps in pairs:
        here, there = (at_place(view, each) for each in steps)
        if here.order == there.order and here.path != there.path:
            yield _compared(view, *steps)


def _compared(view: View, *steps: Steps) -> Offer:
    here, there = (at_place(view, each) for each in steps)
    against = replace(here, name="compare", baseline=Baseline("", there.path))
    return going(" vs ".join(map(_crumbs, steps)), "What differs, part by part.", against)


def _asked_for(run: Run, view: View, asked: Asked, tabs: Iterable[Offer]) -> Iterator[Offer]:
    if (asked.steps or asked.split) and {*asked.rest} <= _MEASURES | _RANKED:
        asked = replace(asked, rest=[])
    if asked.rest:
        yield from _bare_label(run, view, asked)
        yield from _gap(run, view, asked)
        if (asked.steps or asked.split) and not (asked.order or asked.statistic):
            yield from _tabs_there(run, view, asked, tabs)
        is_measured = bool({*asked.rest} & _MEASURES)
        if asked.steps or asked.order or asked.statistic or asked.limit or is_measured:
            yield from _of_names(run, view, asked)
    elif asked.split == "shape" and asked.order:
        yield _of_shapes(run, at_place(view, asked.steps), asked, "", "")
    elif asked.steps or (asked.split and asked.order):
        entries = [_place(view, asked)]
        if asked.steps and not (asked.split or asked.order):
            entries.append(_as_baseline(view, asked.steps))
        yield from entries[:: -1 if asked.is_base else 1]


def _gap(run: Run, view: View, asked: Asked) -> Iterator[Offer]:
    """The longest gap of a place in the timeline, where the host's work stands below it."""
    if {*map(stem, asked.rest)} <= _GAPS and (asked.steps or "gap" in asked.rest):
        place = at_place(view, asked.steps)
        with suppress(ChopperError):
            gap = longest_gap(run, place)
            if gap is not None:
                where = _crumbs(asked.steps) or ("this place" if view.path else "the run")
                why = f"In the timeline, {time_text(gap.length_ns)}, with what the host does there."
                yield going(f"Longest gap of {where}", why, timeline_of_gap(run, view, gap))


def _bare_label(run: Run, view: View, asked: Asked) -> Iterator[Offer]:
    """A label alone: `11` may be a step, a layer, a GPU."""
    if len(asked.rest) != 1 or asked.steps or asked.split or asked.order or asked.statistic:
        return
    for level, labels in _labels(run).items():
        if (label := labels.get(asked.rest[0])) is not None:
            steps = {level: label}
            entries = [_place(view, Asked(steps)), _as_baseline(view, steps)]
            yield from entries[:: -1 if asked.is_base else 1]


def _sorted(asked: Asked, column: str) -> str:
    """The sort by a time, in the order that is asked for: the longest first."""
    return column if asked.order == "shortest" else f"-{column}"


def _place(view: View, asked: Asked) -> Offer:
    """A place in the tree, its rows split and sorted as asked for."""
    place, name = at_place(view, asked.steps), _crumbs(asked.steps)
    if asked.split in LEVELS:
        place = pivot(place, asked.split)
    elif place.level == "iteration" and {"phase", "layer"} & {*asked.steps}:
        # Whoever names no step means their mean.
        deepest = max(LEVELS.index(level) for level in asked.steps)
        place = pivot(place, LEVELS[deepest + 1])
    rows = f"{level_title(place.level)}s"
    is_ranked = bool(asked.order) or place.level == "layer"
    if is_ranked:
        place = replace(place, sort=_sorted(asked, "elapsed_ns"))
    if asked.statistic:
        place = as_statistic(place, asked.statistic)
    first = "fastest" if asked.order == "shortest" else "slowest"
    why = f"Its {rows}{f', the {first} first' if is_ranked else ''}."
    if not (asked.split or asked.order or asked.statistic):
        return going(f"Go to {name}", why, place)
    title = f"{rows[0].upper()}{rows[1:]}{f' of {name}' if name else ''}"
    if is_ranked:
        title += f", {first} first"
    if asked.statistic:
        title += f", {asked.statistic}"
    return going(title, "In the tree, by the time charged to each.", place)


def _as_baseline(view: View, steps: Steps) -> Offer:
    place = at_place(view, steps)
    parent = replace(place, path=place.path[:-1], baseline=Baseline("", place.path))
    title = f"{_crumbs(steps)} as the baseline"
    return going(title, "The rows next to it, compared with it.", parent)


def _of_names(run: Run, view: View, asked: Asked) -> Iterator[Offer]:
    """Kernels, operations or shapes that the other words name, as asked for."""
    text, place = " ".join(asked.rest), at_place(view, asked.steps)
    if not can_look_through(run) or text.isdecimal() or asked.again:
        return
    if asked.limit:
        yield from _limited(run, place, asked)
        return
    named = _names(run, text)
    if named is None:
        text = " ".join(word for word in asked.rest if word not in _MEASURES)
        named = _names(run, text) if text else None
    if named is None:
        return
    by, wanted = named
    where = f" of {_crumbs(asked.steps)}" if asked.steps else ""
    if asked.split == "shape":
        yield _of_shapes(run, place, asked, text, where)
        return
    if asked.order == "worst" and run.hardware is not None:
        shown = replace(with_view(place, "lost"), by=by, filter=wanted)
        yield going(f"{text}{where} by time lost to the roof", "The worst first.", shown)
        return
    shown = replace(with_view(place, "kernels"), by=by, filter=wanted)
    if asked.statistic and f"{asked.statistic}_ns" in METRICS:
        shown = replace(shown, sort=f"-{asked.statistic}_ns")
        yield going(f"{asked.statistic} of {text}{where}", "In a column of the kernels.", shown)
    elif asked.order:
        shown = replace(shown, sort=_sorted(asked, "kernel_ns"))
        first = "fastest" if asked.order == "shortest" else "slowest"
        yield going(f"{text}{where}, {first} first", "By name.", shown)
    elif not asked.statistic:
        yield going(f"{text}{where}", "Its kernels by name, the longest first.", shown)


def _limited(run: Run, place: View, asked: Asked) -> Iterator[Offer]:
    """The kernels that some words name, of those whose figure, which the others name, is beyond a
    limit."""
    words = [word for word in asked.rest if _names(run, word) is not None]
    column = _column_named([word for word in asked.rest if word not in words])
    text = " ".join(words)
    named = _names(run, text) if words and column is not None else None
    if column is None or named is None:
        return
    by, wanted = named
    limit = f"{column.name}{asked.limit}"
    sort = f"-{column.name}" if asked.limit.startswith(">") else column.name
    shown = replace(with_view(place, "kernels"), by=by, filter=f"{wanted} {limit}", sort=sort)
    yield going(f"{text} with {column.title} {asked.limit}", "Kernels by name.", shown)


def _names(run: Run, text: str) -> tuple[str, str] | None:
    """The split of kernels and the filter that show what a text names; None: it names nothing."""
    classes = [Offer(each, "", "") for each in sorted({*classes_of_names(run)})]
    if found := [each.title for each in found_among(classes, text.split(), is_whole=True)]:
        return "name", only("class", found)
    meant = [
        name
        for name in run.table.operations
        if all(f" {stem(word)}" in spaced(OPERATIONS.get(name, "")) for word in text.split())
    ]
    if meant:
        return "operation", only("operation", meant)
    with suppress(UsageError):
        operations, kernels = names_found(run, text)
        if operations or kernels:
            return ("name" if kernels else "operation"), text
    return None


def _column_named(words: Sequence[str]) -> Metric | None:
    """The registered column whose title has the words and little else."""
    known = [Offer(each.title, "", "", each.name) for each in registered()]
    found = found_among(known, words, is_whole=True)[:1] if words else []
    return METRICS[found[0].argument] if found else None


def _of_shapes(run: Run, place: View, asked: Asked, text: str, where: str) -> Offer:
    """Shapes of calls, those first that lose most time to their roof where roofs are known."""
    name = f"{text} shapes".lstrip() + where
    if asked.order == "worst" and run.hardware is not None:
        shown = replace(with_view(place, "lost"), by="shape", filter=text)
        return going(f"{name} by time lost to the roof", "The worst first.", shown)
    shown = replace(with_view(place, "roofline"), filter=text)
    return going(f"{name}, slowest first", "With their distance from the roof.", shown)


def _tabs_there(run: Run, view: View, asked: Asked, tabs: Iterable[Offer]) -> Iterator[Offer]:
    """Tabs that the other words name, of the place, and by the level that is named."""
    place = replace(at_place(view, asked.steps), baseline=view.baseline)
    known = (each for each in tabs if not each.lacks)
    for tab in found_among(known, asked.rest, is_whole=True)[:_MOST_PLACES]:
        name = "" if tab.argument == "explore" else tab.argument
        shown, title = with_view(place, name), tab.title.split("  ")[-1]
        if name and asked.split in splits_of(run, view_spec(name)):
            shown, title = replace(shown, by=asked.split), f"{title} by {level_title(asked.split)}"
        elif not asked.steps:
            continue
        yield going(f"{title} of {_crumbs(asked.steps)}" if asked.steps else title, tab.why, shown)


def _crumbs(steps: Steps) -> str:
    return ", ".join(crumb(level, label) for level, label in steps.items())


def at_place(view: View, steps: Steps) -> View:
    """The place in the scope of a view, or the same place of another GPU, step and so on."""
    place = replace(with_view(view, ""), sort="", filter="", columns=(), baseline=None)
    for level, label in steps.items():
        within = level in dict(place.scope)
        place = at_level(place, level, label) if within else child_of(place, level, label)
    return place


def _times(run: Run, view: View, text: str) -> Iterator[Offer]:
    """The timeline at a time: `1100 ms`, or of a place as `gpu 5 at 1100 ms`, with whatever words
    ask what runs or waits there."""
    found = _TIME.search(text)
    if found is None or (found[1] or "") in (*_LIMITS, "than"):
        return
    asked, said = asked_in(run, _TIME.sub("", text)), said_concepts(text)
    known = set[str]().union(*(said.get(each, ()) for each in _AT_A_TIME))
    if {*asked.rest} - known or ((found[1] or "at") not in _BEFORE_TIMES and not asked.steps):
        return
    number, unit = found[2], found[3] if found[3][0] != "s" else "s"
    time = f"{number.replace(',', '')}{unit.replace('µ', 'u')}"
    why = "The cursor of the timeline goes there: what runs, and what waits in the queue."
    if not asked.steps:
        yield Offer(f"Timeline at {number} {unit}", why, "at", time)
        return
    window = replace(ALL_TIME, at_ns=parse_time("at", time))
    there = replace(with_view(at_place(view, asked.steps), "timeline"), window=window)
    yield going(f"Timeline of {_crumbs(asked.steps)} at {number} {unit}", why, there)
