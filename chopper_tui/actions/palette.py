"""The palette: everything by its name, and what a person puts into words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.columns import METRICS, Metric, Scope, registered
from chopper_core.columns.filter import only
from chopper_core.columns.lookup import why_missing
from chopper_core.columns.quantities import QUANTITIES
from chopper_core.model import address
from chopper_core.model.glossary import OPERATIONS, TERMS
from chopper_core.model.phrases import count, percent
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.util.patterns import late
from chopper_core.views import PLACES, SET_VIEWS, columns_of_view
from chopper_core.views.find import names_found
from chopper_core.views.query import reason_against_view
from chopper_core.views.spec import SeveralRuns
from chopper_core.work.kernel_classes import classes_of_names
from chopper_tui.completions import runs_next_to
from chopper_tui.concepts import in_usual_words, said_concepts, words_of_concepts
from chopper_tui.keymap import ASK, CHOPPER, EXPLORE, LIVE, PALETTE_KEY, Action, action
from chopper_tui.places import question_of_place, tabs_at
from chopper_tui.search import (
    Offer,
    can_look_through,
    found_among,
    going,
    is_titled,
    spaced,
    telling,
    without_mistakes,
    words_alike,
)

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer
    from chopper_tui.widgets.dialogs import Options

_SOUGHT: Final = ("open", "export", "report", "snapshot", "issue", "compare", "limits", "theme")
"""What the palette offers first, after the seven places."""
_MOST_CHECKED: Final = 12
"""Columns among the first hits of which it is found out whether the run has them."""
_MOST_NEAR: Final = 5
"""Entries near a question that nothing answers, before the places."""
_MOST_MEANT: Final = 3
"""Answers of a question, the likeliest first."""
_MEANING: Final = late(
    r"(?:what (?:is|are)|define|explain|definition of|meaning of) (?!the |our |my )(?:an? )?(.+?)"
    r"|what (?:does|do) (?:the )?(.+?)(?: column)? (?:mean|stand for)"
)
"""How people ask for the meaning of a word."""
_MOST_ROWS: Final = 300_000
"""Activities of a run for which that takes no time."""
_NOT_LIVE: Final = "no run is followed: it shows the latest sample"


@action(CHOPPER, PALETTE_KEY, title="Search all of these")
def palette(screen: Explorer, typed: str) -> None:
    """Search everything by name: places, actions, findings, figures and their columns, signals,
    recent places; operations, kernels and classes of the run. It understands questions (`who holds
    the others back`, `what is missing`), places (`step 11`, `gpu 5 layer 3`, `gpu 5 vs 3`, `step 11
    as the baseline`), rankings (`slowest layer of gpu 5`, `worst gemm shape`, `p95 attention`), a
    tab of a place (`gpu 2 launch`), times (`1100 ms`, `gpu 5 at 1100 ms`) and what a replay answers
    (`1900 MHz`, `without the straggler`).
    """
    _search(screen, "Search", typed)


def answer(screen: Explorer, text: str, refusal: str = "") -> None:
    """Offer what answers a question in words, below the reason why it is no command; where nothing
    does, what can be asked. Raises UsageError with the reason alone where nothing answers.

    Mistyped words are taken for those that they are of: the title says so.
    """
    if (meant_text := as_meant(screen, text)) != text:
        _search(screen, f"“{text}”: did you mean “{meant_text}”?", meant_text)
    elif knows(screen, text):
        _search(screen, refusal or "Search", text)
    elif refusal:
        raise UsageError(refusal)
    else:
        _search(screen, f"Nothing here answers “{text}”. What is near:", near=text)


def knows(screen: Explorer, text: str, *, is_whole: bool = False) -> bool:
    """Whether something answers a text, all of it or most."""
    return bool(_found(screen, _known(screen), text.lower().split(), is_whole=is_whole))


def as_meant(screen: Explorer, text: str) -> str:
    """A text with its mistyped words as they are meant, where something answers it then."""
    from chopper_tui.spoken import words_spoken

    known, words = _known(screen), spaced(text).split()
    if isinstance(screen.run, SeveralRuns) or _found(screen, known, words, is_whole=True):
        return text
    said = (*words_spoken(screen.run), *sorted(words_of_concepts()), *words_alike())
    titled = (word for each in known for word in spaced(each.title).split() if word.isalpha())
    meant_words = without_mistakes(words, dict.fromkeys((*said, *titled)))
    return " ".join(meant_words) if _found(screen, known, meant_words) else text


def titles_found(screen: Explorer, text: str) -> list[str]:
    """The titles of what answers a text, the first ones."""
    words = text.lower().split()
    if text.startswith(":") or not telling(words):
        return []
    return [each.title for each in _found(screen, _known(screen), words)[:_MOST_NEAR]]


def _search(screen: Explorer, title: str, typed: str = "", near: str = "") -> None:
    from chopper_tui.widgets.dialogs import Search

    known, said = _known(screen), dict[str, str]()

    def found(words: Sequence[str]) -> Options:
        entries = _found(screen, known, words)
        said.update((_key(each), each.says) for each in entries if each.says)
        return _options(entries)

    def perform(key: str) -> None:
        action_id, _, argument = key.partition(" ")
        screen.action_perform(action_id, argument)
        if key in said:
            screen.steps.add(lambda: None if screen.status.is_error else screen.say(said[key]))

    listed = [*_listed(screen)]
    if near:
        nearest = found_among(known, near.lower().split(), is_near=True)
        listed = [*nearest[:_MOST_NEAR], *(each for each in listed if each not in nearest)]
    screen.choose(title, _options(listed), None, perform, Search(found, typed))


def _known(screen: Explorer) -> list[Offer]:
    return [*_listed(screen), *_findings(screen), *_figures(screen), *_names(screen)]


def _key(entry: Offer) -> str:
    return f"{entry.action} {entry.argument}"


@action(ASK, title="Meaning", verb="define", takes="WORD")
def explain_term(screen: Explorer, argument: str) -> None:
    """Explain a column of any table, a quantity, an operation or a term (`:define % roof`)."""
    from rich.text import Text

    found = definition(screen, argument)
    if found is None:
        raise UsageError(f"no column, quantity, operation or term is called {argument!r}")
    title, body = found
    screen.read(title, Text(body))


def _options(entries: Iterable[Offer]) -> Options:
    return [(_key(each), each.title, each.why) for each in entries]


def _found(
    screen: Explorer, known: list[Offer], words: Sequence[str], *, is_whole: bool = False
) -> list[Offer]:
    """What a text means as a question, what else it says, then the entries that have its words,
    those without an answer last."""
    # The first screen needs none of the words of questions.
    from chopper_tui.intents import meant
    from chopper_tui.spoken import place_asked, place_named, spoken

    text, run = " ".join(words), screen.run
    named = _runs_named(screen, text)
    if isinstance(run, SeveralRuns):
        return [*_of_runs(screen, text), *named, *found_among(known, words)]
    tabs = [each for each in known if each.action == "view" and each.title[:1].isdigit()]
    said = spoken(run, screen.view, tabs, in_usual_words(text))
    asked = meant(run, screen.view, text)
    asked = [replace(each, offer=_explained(screen, each.offer)) for each in asked]
    whole = [each.offer for each in asked if each.is_whole and not each.offer.lacks]
    partly = [each.offer for each in asked if not each.is_whole and not each.offer.lacks]
    lacking = [
        each.offer._replace(why=f"not in this run: {each.offer.lacks}")
        for each in asked
        if each.offer.lacks
    ]
    place = None if said else place_named(run, screen.view, text)
    others = [*([] if place is None else [place]), *_text_in_names(screen, text)]
    is_whole = is_whole or bool(said or whole)
    hits = found_among([*known, *others], words, is_whole=is_whole)
    meaning = _meanings(screen, text)
    if _marks_unknown(run, known, hits):
        hits = found_among([*known, *others], words, is_whole=is_whole)
    is_place = place_asked(run, screen.view, text) is not None
    titled = [each for each in hits if each in tabs and is_titled(each, words) and not is_place]
    found = dict[tuple[str, str], Offer]()
    asked_for = [*whole[:_MOST_MEANT], *said, *partly[:_MOST_MEANT]]
    first = [*titled, *(named if "open" in said_concepts(text) else ())]
    unasked = [] if asked_for or titled else named
    for each in [*first, *meaning, *asked_for, *unasked, *hits, *lacking[:1]]:
        # Figures of one view are several entries, what does the same otherwise is one.
        found.setdefault((_key(each), each.title if each.action == "view" else ""), each)
    return [*found.values()]


def _explained(screen: Explorer, entry: Offer) -> Offer:
    """An entry with the help of its action, where it has no explanation of its own."""
    action = screen.actions.get(entry.action)
    return entry._replace(why=action.help) if action is not None and not entry.why else entry


@lru_cache(maxsize=1)
def _near(name: str) -> list[Path]:
    return runs_next_to(name)


def _runs_named(screen: Explorer, text: str) -> list[Offer]:
    """Runs next to this one that a text names."""
    words = {each.rstrip("/?").rpartition("/")[2] for each in text.split()}
    near = [path for path in _near(screen.home.name) if path.name.lower() in words]
    return [Offer(f"Open {path.name}", str(path), "open", str(path)) for path in near]


def _of_runs(screen: Explorer, text: str) -> list[Offer]:
    """Of a table of runs: the best, and why another is slower than it."""
    run, said = screen.run, said_concepts(text)
    assert isinstance(run, SeveralRuns)
    if not {"best", "slow", "compare", "why", "speed"} & said.keys() or len(text.split()) < 2:
        return []
    order, speeds = run.by_speed()
    if len(speeds) < 2:
        return []
    ranked = [*speeds]
    table = replace(screen.view, sort=order, filter="", baseline=None)
    how = f"{percent(1 / speeds[ranked[1]] - 1)} faster than {ranked[1]}"
    best = going(f"{ranked[0]} is the fastest", f"It is {how}.", table, True)
    why = why_slower(run, [name for name in ranked if f" {name.lower()} " in spaced(text)])
    asks_why = {"why", "compare"} & said.keys() or ("slow" in said and "best" not in said)
    return [why, best] if asks_why else [best, why]


def why_slower(run: SeveralRuns, named: Sequence[str]) -> Offer:
    """Compare two of the runs that `by_speed` ranks: those named, in its order; one with the
    fastest, and the fastest, or none, the next one."""
    paths, (_, speeds) = run.paths(), run.by_speed()
    fastest, second, *_ = speeds
    other = next((name for name in named if name != fastest), second)
    first, *_, last = named if len(named) > 1 else (fastest, other)
    how = f"{percent(speeds[first] / speeds[last] - 1)} faster than {last}"
    against = View(paths[last], name="compare", baseline=Baseline(paths[first]))
    what = f"{first} is {how}: where {last} takes longer."
    return going(f"Why {last} is slower than {first}", what, against, True)


def _meanings(screen: Explorer, text: str) -> list[Offer]:
    """What a word means that a text asks for: `what is % roof`, `what does lag mean`."""
    found = _MEANING.fullmatch(text.strip(" ?!."))
    word = next(filter(None, found.groups()), "") if found is not None else ""
    explained = definition(screen, word) if word else None
    if explained is None:
        return []
    title, body = explained
    return [Offer(f"{title}: what it means", body, "explain_term", title)]


def definition(screen: Explorer, word: str) -> tuple[str, str] | None:
    """A column, quantity, term or operation of a name, with its definition; None: there is none."""
    columns = (*screen.frame.columns, *screen.frame.more, *registered())
    known = {title: text for each in columns for title, text in ((each.title, each.definition),)}
    known |= {each.name: each.definition for each in QUANTITIES.values() if each.name not in known}
    known = {**OPERATIONS, **TERMS, **known}
    wanted = spaced(word)
    return next((each for each in known.items() if spaced(each[0]) == wanted), None)


def _marks_unknown(run: Run, known: list[Offer], hits: Sequence[Offer]) -> bool:
    """Note of the columns among the first hits why the run lacks them; whether it lacks any."""
    names = {each.argument for each in hits[:_MOST_CHECKED] if each.action == "columns"}
    reasons = {
        name: why
        for name in names
        if (column := METRICS.get(name.lstrip("+"))) and (why := _why_unknown(run, column))
    }
    is_any = False
    for place, each in enumerate(known):
        if each.action == "columns" and not each.lacks and each.argument in reasons:
            known[place] = each._replace(lacks=reasons[each.argument])
            is_any = True
    return is_any


def _why_unknown(run: Run, metric: Metric) -> str:
    """Why a column is missing throughout a run, where that takes no time to find out."""
    if len(run.table) > _MOST_ROWS or not len(run.table) or run.table.is_sampled:
        return ""

    def found() -> str:
        known = metric.compute(Scope.of(run, run.tree().node(()))).present().any()
        return "" if known else why_missing(metric, run.table, run.hardware) or "it is unknown"

    return run.memo(("why unknown", metric.name), found)


def _lacks(screen: Explorer, name: str) -> str:
    """Why a tab has no answer on this run, as far as that is known at once."""
    if reason := screen.reason_against(name):
        return reason
    run = screen.run
    if isinstance(run, SeveralRuns) or name in (EXPLORE, *SET_VIEWS):
        return ""
    if name == LIVE and run.recent is None:
        return _NOT_LIVE
    return reason_against_view(run, name)


def _listed(screen: Explorer) -> Iterator[Offer]:
    """What is listed before anything is typed: the seven places come first."""
    from chopper_core.render.exports import EXPORTS
    from chopper_tui.draw.theme import THEMES

    tabs = {
        name: Offer(
            f"{tab.place}  {tab.name}",
            question_of_place(name),
            "view",
            name,
            _lacks(screen, name),
        )
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
        what = f"step {screen.step}, where the format takes one" if screen.step else "the run"
        yield Offer(f"Export as {name}", f"Write {what}, to a file.", "export", name)
    for name in THEMES:
        yield Offer(f"Theme: {name}", "Choose these colours.", "theme", name)
    for name in screen.run.signal_names:
        title = f"Signal: {screen.run.signal(name).title}"
        yield Offer(title, f"Chart {name}.", "metric", name)
    recent = (address.render(trail[-1].view) for trail in reversed(screen.past))
    for text in dict.fromkeys(recent):
        yield Offer(f"Recent: {text}", "Go there again.", "go", text)


def _performed(known: Action) -> Offer:
    return Offer(known.title, f"{known.help} {known.command}", known.id)


def _findings(screen: Explorer) -> Iterator[Offer]:
    """The findings of the run, where they are known, each with its evidence."""
    from chopper_core.views.shared.told_findings import knows_remedies, told_of_run

    run, view = screen.run, screen.view
    if isinstance(run, SeveralRuns) or not knows_remedies(run, view):
        return
    for each in told_of_run(run, view):
        evidence = replace(each.evidence, overrides=view.overrides)
        yield going(f"Finding: {each.title}", each.detail, evidence)


def _figures(screen: Explorer) -> Iterator[Offer]:
    """The figures that are shown somewhere, by their names and headings, and the place to go to."""
    tabs, here = screen.tabs, screen.view.name or EXPLORE
    lacks = {name: _lacks(screen, name) for name in tabs}
    for quantity in QUANTITIES.values():
        names = (each.partition(" ")[0] for each in quantity.places)
        views = (EXPLORE if each == "tree" else each for each in names)
        there = sorted((each for each in views if each in tabs), key=lambda each: bool(lacks[each]))
        if there:
            why = f"{tabs[there[0]].name}: {quantity.definition}"
            title = f"Figure: {quantity.name}"
            yield Offer(title, why, "view", there[0], lacks[there[0]])
    for column in screen.frame.columns:
        yield Offer(f"Sort by: {column.title}", column.definition, "sort", column.name)
    shown = {column.name for column in screen.frame.columns}
    for column in screen.frame.more if screen.view.name else registered():
        if column.name not in shown:
            title = f"Column: {column.title}"
            yield Offer(title, column.definition, "columns", f"+{column.name}")
    for name, tab in tabs.items():
        for column in () if name in (here, EXPLORE) else columns_of_view(name):
            title = f"{tab.name}: {column.title}"
            yield Offer(title, column.definition, "view", name, lacks[name])


def _names(screen: Explorer) -> Iterator[Offer]:
    """Classes and operations of the run."""
    run, view = screen.run, screen.view
    if isinstance(run, SeveralRuns) or not can_look_through(run):
        return
    here = replace(with_view(view, "kernels"), by="")
    for each in sorted({*classes_of_names(run)}):
        shown = replace(here, filter=only("class", [each]))
        yield going(f"Kernels of class {each}", "By name, the longest first.", shown)
    for name in run.table.operations:
        meaning = f"{OPERATIONS.get(name, '')}: where it runs.".lstrip(": ")
        yield Offer(f"Find {name}", meaning, "find", f"^{re.escape(name)}$")


def _text_in_names(screen: Explorer, text: str) -> Iterator[Offer]:
    """Operations and kernels of the run whose names have a text."""
    run = screen.run
    if not text or not can_look_through(run):
        return
    with suppress(UsageError):
        operations, kernels = names_found(run, text)
        if operations or kernels:
            found = " and ".join(
                count(number, what)
                for number, what in ((operations, "operation"), (kernels, "kernel"))
                if number
            )
            title = f"Find {text} in the run"
            yield Offer(title, f"{found}: where they run.", "find", text)
