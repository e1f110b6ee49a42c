"""The palette: everything by its name, and the places, times and clocks that a person types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.columns import METRICS
from chopper_core.columns.filter import only
from chopper_core.columns.quantities import QUANTITIES
from chopper_core.model import address
from chopper_core.model.glossary import OPERATIONS
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.view import (
    ALL_TIME,
    Baseline,
    View,
    at_level,
    child_of,
    parse_time,
    with_view,
)
from chopper_core.render.cells import crumb
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import distinct
from chopper_core.util.patterns import late
from chopper_core.views import PLACES, columns_of_view
from chopper_core.views.find import names_found
from chopper_core.views.spec import SeveralRuns
from chopper_core.work.kernel_classes import classes_of_names
from chopper_tui.keymap import CHOPPER, EXPLORE, PALETTE_KEY, Action, action
from chopper_tui.places import question_of_place, tabs_at

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer
    from chopper_tui.widgets.dialogs import Options

Steps = list[tuple[str, str]]
"""Levels and labels of places of the tree."""
Offer = tuple[str, str, str, str]
"""An entry: its title, an explanation, and the action with its argument that it performs."""

_SOUGHT: Final = ("open", "export", "report", "snapshot", "issue", "compare", "limits", "theme")
"""What the palette offers first, after the seven places."""
_LEVEL_WORDS: Final = {level: level for level in ("gpu", "iteration", "phase", "layer")} | {
    "step": "iteration",
    "it": "iteration",
    "rank": "gpu",
    "l": "layer",
}
"""Words that people type for a level whose labels are offered; names are searched."""
_LABELLED: Final = tuple(dict.fromkeys(_LEVEL_WORDS.values()))
_BETWEEN: Final = late(r"[:=/,›]+|(?<=[a-z])(?=\d)")
"""What stands between words and labels: `step 11`, `step=11`, `gpu5`."""
_AGAINST: Final = late(r"\s+(?:vs\.?|versus|against|with|and)\s+")
_NUMBER: Final = r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?"
_CLOCK: Final = late(rf"({_NUMBER})\s*([mg]hz)?")
_TIME: Final = late(rf"(?:([a-z].*?)\s+(?:at\s+)?)?({_NUMBER})\s*(ns|us|µs|ms|s)")
_CLOCKS_MHZ: Final = (300, 5000)
"""Clocks of GPUs: other numbers without a unit are none."""
_MOST_NAMES: Final = 200_000
"""Names of a run that are looked through while a person types."""


@action(CHOPPER, PALETTE_KEY, title="Search all of these")
def palette(screen: Explorer, typed: str) -> None:
    """Search everything by name: places, actions, figures and their columns, signals, recent
    places; operations, kernels and classes of the run; what is typed as a place (`step 11`,
    `gpu 5 layer 3`, `gpu 5 vs 3`), a time (`1100 ms`, `gpu 5 at 1100 ms`) or a clock (`1900 MHz`).
    """
    from chopper_tui.widgets.dialogs import Search

    listed, hidden = [*_listed(screen)], [*_figures(screen)]

    def said(text: str) -> tuple[Options, Options]:
        words = " ".join(text.split())
        return _options(spoken(screen, words)), _options(_found(screen, words))

    def perform(key: str) -> None:
        action_id, _, argument = key.partition(" ")
        screen.action_perform(action_id, argument)

    search = Search(said, len(listed), typed)
    screen.choose("Search", _options([*listed, *hidden]), None, perform, search)


def knows(screen: Explorer, text: str) -> bool:
    """Whether a text is one that the palette understands, or in the title of an entry."""
    words = text.lower().split()
    if any((*spoken(screen, " ".join(words)), *_found(screen, " ".join(words)))):
        return True
    titles = (title.lower() for title, _, _, _ in (*_listed(screen), *_figures(screen)))
    return any(all(word in title for word in words) for title in titles)


def _options(offers: Iterable[Offer]) -> Options:
    return [(f"{action_id} {argument}", title, why) for title, why, action_id, argument in offers]


def _listed(screen: Explorer) -> Iterator[Offer]:
    """What is listed before anything is typed: the seven places come first."""
    from chopper_core.render.exports import EXPORTS
    from chopper_tui.draw.theme import THEMES

    tabs = {
        name: (f"{tab.place}  {tab.name}", question_of_place(name), "view", name)
        for name, tab in screen.tabs.items()
    }
    yield from [tabs.pop(tabs_at(screen.tabs, place)[0]) for place in PLACES]
    known = screen.actions
    first = [known[name] for name in _SOUGHT if name in known]
    yield from map(_performed, first)
    yield from tabs.values()
    rest = (each for each in known.values() if each not in first and each.id != "palette")
    yield from map(_performed, rest)
    for name in () if isinstance(screen.run, SeveralRuns) else EXPORTS:
        yield f"Export as {name}", "Write the run, or its step, to a file.", "export", name
    for name in THEMES:
        yield f"Theme: {name}", "Choose these colours.", "theme", name
    for name in screen.run.signal_names:
        yield f"Signal: {screen.run.signal(name).title}", f"Chart {name}.", "metric", name
    recent = (address.render(trail[-1].view) for trail in reversed(screen.past))
    for text in dict.fromkeys(recent):
        yield f"Recent: {text}", "Go there again.", "go", text


def _performed(known: Action) -> Offer:
    return known.title, f"{known.help} {known.command}", known.id, ""


def _figures(screen: Explorer) -> Iterator[Offer]:
    """The figures that are shown somewhere, by their names and headings, and the place to go to."""
    tabs, here = screen.tabs, screen.view.name or EXPLORE
    for quantity in QUANTITIES.values():
        names = (each.partition(" ")[0] for each in quantity.places)
        views = (EXPLORE if name == "tree" else name for name in names)
        if (name := next((each for each in views if each in tabs), "")) in tabs:
            yield (
                f"Figure: {quantity.name}",
                f"{tabs[name].name}: {quantity.definition}",
                "view",
                name,
            )
    for column in screen.frame.columns:
        yield f"Sort by: {column.title}", column.definition, "sort", f"-{column.name}"
    for name, tab in tabs.items():
        for column in () if name in (here, EXPLORE) else columns_of_view(name):
            yield f"{tab.name}: {column.title}", column.definition, "view", name


def spoken(screen: Explorer, text: str) -> list[Offer]:
    """What a text says that is in no list: places of the tree, a time, a clock."""
    if not text or isinstance(screen.run, SeveralRuns):
        return []
    return [*_places(screen, text), *_times(screen, text), *_clocks(text)]


def _places(screen: Explorer, text: str) -> Iterator[Offer]:
    view, known = screen.view, _labels(screen.run)
    sides = _AGAINST.split(text)
    named = [_steps(each, known) for each in sides]
    if len(sides) == 2 and named[0] and not named[1]:
        # `gpu 5 vs 3`
        named[1] = _steps(f"{named[0][-1][0]} {sides[1]}", known)
    if len(sides) == 2 and all(named):
        one, other = (_at(view, steps) for steps in named)
        if one.order == other.order and one.path != other.path:
            against = replace(one, name="compare", baseline=Baseline("", other.path))
            yield _going(" vs ".join(map(_crumbs, named)), "What differs, part by part.", against)
    alone = [[(level, known[level][text])] for level in _LABELLED if text in known[level]]
    for steps in (named if any(named) else alone) if len(sides) == 1 else ():
        place, name = _at(view, steps), _crumbs(steps)
        yield _going(f"Go to {name}", "What it is made of, in the tree.", place)
        parent = replace(place, path=place.path[:-1], baseline=Baseline("", place.path))
        yield _going(f"{name} as the baseline", "The rows next to it, compared with it.", parent)


def _going(title: str, why: str, view: View) -> Offer:
    return title, why, "go", address.render(view)


def _crumbs(steps: Steps) -> str:
    return ", ".join(crumb(level, label) for level, label in steps)


def _labels(run: Run) -> Mapping[str, Mapping[str, str]]:
    """Level → its labels in small letters → as they are."""

    def found() -> dict[str, dict[str, str]]:
        columns = {level: distinct(run.tree().codes_of(level)) for level in _LABELLED}
        return {
            level: {each.lower(): each for each in run.table.texts_of(level, codes)}
            for level, codes in columns.items()
        }

    return run.memo(("labels to type",), found)


def _steps(text: str, known: Mapping[str, Mapping[str, str]]) -> Steps:
    """The places of the tree that a text names: `gpu 5 step=11 L3 backward`; empty: it is none."""
    steps: dict[str, str] = {}
    words = _BETWEEN.sub(" ", text).lower().split()
    while words:
        level = _LEVEL_WORDS.get(words[0], "")
        if level:
            words.pop(0)
        elif words[0] in known["phase"]:
            level = "phase"
        label = known[level].get(words.pop(0)) if level and words else None
        if label is None or level in steps:
            return []
        steps[level] = label
    return [*steps.items()]


def _at(view: View, steps: Steps) -> View:
    """The place in the scope of a view, or the same place of another GPU, step and so on."""
    place = replace(with_view(view, ""), sort="", filter="", columns=(), baseline=None)
    for level, label in steps:
        within = level in dict(place.scope)
        place = at_level(place, level, label) if within else child_of(place, level, label)
    return place


def _times(screen: Explorer, text: str) -> Iterator[Offer]:
    """The timeline at a time: `1100 ms`, or of a place as `gpu 5 at 1100 ms`."""
    found = _TIME.fullmatch(text)
    if found is None:
        return
    where, number, unit = found.groups()
    steps = _steps(where or "", _labels(screen.run))
    if where and not steps:
        return
    time = f"{number.replace(',', '')}{unit.replace('µ', 'u')}"
    why = "The cursor of the timeline goes there: what runs, and what waits in the queue."
    if not steps:
        yield f"Timeline at {number} {unit}", why, "at", time
        return
    window = replace(ALL_TIME, at_ns=parse_time("at", time))
    view = replace(with_view(_at(screen.view, steps), "timeline"), window=window)
    yield _going(f"Timeline of {_crumbs(steps)} at {number} {unit}", why, view)


def _clocks(text: str) -> Iterator[Offer]:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return
    clock = float(found[1].replace(",", "")) * (1000 if found[2] == "ghz" else 1)
    if found[2] or _CLOCKS_MHZ[0] <= clock <= _CLOCKS_MHZ[1]:
        why = "How long a step would take at this clock, by replay."
        yield f"What if the clock were {clock:,.10g} MHz", why, "what_if", f"clock={clock:g}"


def _found(screen: Explorer, text: str) -> Iterator[Offer]:
    """Names of the run, and columns to add to the table; those that only explain with it last."""
    yield from _names(screen, text)
    shown = {column.name for column in screen.frame.columns}
    metrics = screen.frame.more if screen.view.name else METRICS.values()
    others = [each for each in metrics if each.name not in shown]
    words = text.split()
    titled = [each for each in others if all(word in each.title.lower() for word in words)]
    named = {each.name for each in titled}
    for each in (*titled, *(each for each in others if each.name not in named)):
        if each.name in named or all(word in each.definition.lower() for word in words):
            yield f"Column: {each.title}", each.definition, "columns", f"+{each.name}"


def _names(screen: Explorer, text: str) -> Iterator[Offer]:
    """Operations, kernels and classes of the run that a text finds."""
    run, view = screen.run, screen.view
    if not text or isinstance(run, SeveralRuns) or len(run.table.names) > _MOST_NAMES:
        return
    here = replace(with_view(view, "kernels"), by="")
    for each in sorted({*classes_of_names(run)}):
        if text in each:
            shown = replace(here, filter=only("class", [each]))
            yield _going(f"Kernels of class {each}", "By name, the longest first.", shown)
    for name in run.table.operations:
        meaning = OPERATIONS.get(name, "")
        if all(word in meaning.lower() for word in text.split()):
            yield f"Find {name}", f"{meaning}: where it runs.", "find", f"^{re.escape(name)}$"
    with suppress(UsageError):
        operations, kernels = names_found(run, text)
        if operations or kernels:
            found = " and ".join(
                count(number, what)
                for number, what in ((operations, "operation"), (kernels, "kernel"))
                if number
            )
            yield f"Find {text}", f"{found} of the run: where they run.", "find", text
