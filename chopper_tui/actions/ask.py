"""Asking another question of the same scope: its view, its split, why, and what if."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from textwrap import wrap
from time import time as clock
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.columns import METRICS
from chopper_core.model import address
from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.table import is_split
from chopper_core.model.view import ALL_TIME, View, with_view
from chopper_core.render.cells import (
    wrapped,
)
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import one_named
from chopper_core.views import RUNS, WHATIF, view_spec
from chopper_core.views.query import query, reason_against_view
from chopper_core.views.spec import SeveralRuns, splits_of
from chopper_tui.actions.compare import leave_run, refuse_of_set, runs_filter, view_of_set
from chopper_tui.actions.program import open_command
from chopper_tui.history import Visit, as_measured, place_of, with_statistic
from chopper_tui.keymap import (
    ALL,
    ASK,
    EXPLORE,
    INFO,
    MOVED,
    SCREENS,
    TABLE,
    action,
)
from chopper_tui.places import question_of_place, tabs_at, view_named
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

_key_of: Final = attrgetter("name", "order", "path", "overrides")


@action(
    *(ASK, *SCREENS, *MOVED),
    title="Place",
    takes="NAME",
    hint="places",
    gives=(*SCREENS, *MOVED),
)
async def view(screen: Explorer, argument: str) -> None:
    """Go to a place by its digit: Summary, Tree, Timeline, Kernels, Losses, GPUs, Compare; again:
    its next tab, named in the second line, shift+tab the one before. By name (`:cpu`): any tab. 7,
    8 and 9 still open power, compare and findings.
    """
    tabs = screen.tabs
    if not argument:
        options = [(name, tab.name, question_of_place(name)) for name, tab in tabs.items()]
        current = screen.view.name or EXPLORE
        screen.choose("Go to", options, current, lambda name: view(screen, name))
    elif argument in SCREENS:
        await _turn_tabs(screen, argument, 1)
    elif argument in MOVED:
        name = MOVED[argument]
        await _show_tab(screen, name)
        if argument not in screen.told_moved and not screen.status.is_error:
            screen.told_moved.add(argument)
            screen.say(f"{argument} moved: {tabs[name].name} is under {tabs[name].place} now")
    else:
        await _show_tab(screen, view_named(argument, tabs))


def _has_tabs(screen: Explorer) -> bool:
    tabs, name = screen.tabs, screen.view.name or EXPLORE
    return name in tabs and len(tabs_at(tabs, tabs[name].place)) > 1


@action(ASK, "shift+tab", title="Previous tab", hint="next tab", can=_has_tabs)
async def previous_tab(screen: Explorer, _: str) -> None:
    """Go to the tab before this one, of the same place; before the first comes the last."""
    tabs, name = screen.tabs, screen.view.name or EXPLORE
    if name not in tabs:
        raise UsageError("this view has no place with tabs")
    await _turn_tabs(screen, tabs[name].place, -1)


async def _turn_tabs(screen: Explorer, place: str, step: int) -> None:
    """Show a place, or its next tab; those that can't be shown are passed, with the reason."""
    names, current = tabs_at(screen.tabs, place), screen.view.name or EXPLORE
    at = names.index(current) if current in names else -1
    others = range(1, len(names)) if current in names else range(len(names))
    turn = [names[(at + step * by) % len(names)] for by in others] if at >= 0 else [*names]
    passed: list[str] = []
    for name in turn:
        if not screen.reason_against(name):
            await _show_tab(screen, name)
            if not screen.status.is_error:
                break
        passed.append(name)
    else:
        reasons = map(screen.reason_against, passed)
        raise UsageError(next(reasons, "this place has no other tab"))
    if passed:
        reasons = map(screen.reason_against, passed)
        # Of several there is room for the reasons, not for what would help.
        shown = (each if len(passed) == 1 else each.partition(";")[0] for each in reasons)
        titles = (screen.tabs[each].title for each in passed)
        why = (f"{title}: {reason}" for title, reason in zip(titles, shown, strict=True))
        screen.say(f"passed {'; '.join(why)}")


async def _show_tab(screen: Explorer, name: str) -> None:
    """Show a view; one that can't be shown is in brackets from then on."""
    if name == INFO:
        await notes(screen, "")
    elif name == RUNS and isinstance(screen.home, SeveralRuns) and screen.run is not screen.home:
        await leave_run(screen)
    elif reason := screen.reason_against(name):
        raise UsageError(reason)
    elif isinstance(screen.run, SeveralRuns):
        await view_of_set(screen, name)
    else:
        asked = "" if name == EXPLORE else view_spec(name).name
        await _show_view(screen, asked)
        if screen.view.name != asked:
            screen.lack(name)


@action(ASK, "T", title="Tree as blocks")
async def icicle(screen: Explorer, _: str) -> None:
    """Draw the tree as blocks (icicle), level below level; again: back to the tree."""
    await _show_tab(screen, EXPLORE if screen.view.name == "icicle" else "icicle")


@action(ASK, title="Split the view by", takes="WORD")
async def by(screen: Explorer, argument: str) -> None:
    """Choose the rows of a view, such as kernels by name, class or operation; the same as p."""
    name = screen.view.name
    choices = splits_of(screen.run, view_spec(name)) if name else ()
    if not choices:
        raise UsageError("this view has no other split; p splits the tree")
    if argument:
        kept = runs_filter(screen.view)
        # As its dialog calls it, too: steps are `iteration` in an address.
        titles = {level_title(choice): choice for choice in choices}
        split = argument if is_split(argument) else one_named("split", argument, choices, titles)
        await screen.change(replace(screen.view, by=split, filter=kept, sort="", columns=()))
        return
    options = [(choice, level_title(choice), "") for choice in choices]
    chosen = screen.view.by or screen.frame.by or choices[0]
    screen.choose("Split the view by", options, chosen, lambda choice: by(screen, choice))


@action(ASK, title="Figure of the view", takes="METRIC|…|all")
async def of(screen: Explorer, argument: str) -> None:
    """Choose the figure of a view: a metric (as m does), a collective, or the tokens. `all` clears
    the choice.
    """
    known = view_spec(screen.view.name) if screen.view.name else None
    if known is None or not known.of:
        raise UsageError("this view has no selectable figure")
    if argument:
        await screen.change(replace(screen.view, of="" if argument == ALL else argument))
    elif known.figures or isinstance(screen.run, SeveralRuns):
        figures = map(METRICS.__getitem__, known.figures)
        options = [(each.name, each.title, each.definition) for each in figures]
        if isinstance(screen.run, SeveralRuns):
            options = [*screen.run.figures()]
        screen.choose("Figure", options, screen.view.of, lambda name: of(screen, name))
    else:
        screen.say(f"one of: {known.of}, or {ALL}")
        open_command(screen, f"of {screen.view.of}")


def _can_explain(screen: Explorer) -> bool:
    """Whether the row is of a GPU that has others to wait for it, or is a finding."""
    if len(screen.run.gpus) < 2 or isinstance(screen.run, SeveralRuns):
        return False
    return screen.listing is not screen.table or _gpu_of_row(screen) is not None


def _has_question(screen: Explorer) -> bool:
    """Whether a replay can be asked about the row or the finding at the cursor."""
    is_asked = screen.cards.has_keys or screen.view.name == WHATIF
    return not isinstance(screen.run, SeveralRuns) and (is_asked or _is_question(screen))


def _is_question(screen: Explorer) -> bool:
    """Whether the step can be replayed without the row under the cursor."""
    from chopper_core.views.shared.row_questions import question_about

    if isinstance(screen.run, SeveralRuns) or not _has_row_keys(screen) or not screen.table.rows:
        return False
    return bool(question_about(screen.view, screen.frame, screen.table.cursor))


def _why_slower(screen: Explorer) -> None:
    """Compare the run under the cursor with the fastest; the fastest with the next one."""
    from chopper_tui.actions.palette import why_slower

    run, frame, cursor = screen.run, screen.frame, screen.table.cursor
    assert isinstance(run, SeveralRuns)
    label, (_, speeds) = frame.labels[cursor] if cursor < len(frame) else "", run.by_speed()
    if label not in speeds or len(speeds) < 2:
        refuse_of_set(screen)  # There is nothing to compare it with.
    entry = why_slower(run, [label])
    screen.action_perform(entry.action, entry.argument)


@action(ASK, "W", title="Why", takes="[GPU]", hint="why", can=_can_explain)
async def why(screen: Explorer, argument: str) -> None:
    """Explain why the GPU given, the row's, or else the straggler, is late: each cause leads to its
    evidence. In a table of runs: where the row's run takes longer than the fastest.
    """
    from chopper_core.views.shared.evidence import causes_of

    if isinstance(screen.run, SeveralRuns):
        _why_slower(screen)
        return
    named = int(argument) if argument.isdecimal() else _gpu_of_row(screen)
    gpu, cards = await run_in_thread(causes_of, screen.run, screen.view, named)
    arrow = f"{screen.table.glyphs.arrow} "
    options = [
        (card.address, (arrow if place > 0 else "") + card.text, "")
        for place, card in enumerate(cards)
    ]

    async def open_card(chosen: str) -> None:
        view = address.parse(chosen)
        await screen.open_evidence(replace(view, overrides=screen.view.overrides))

    screen.choose(f"Why GPU {gpu}", options, None, open_card)


@action(ASK, "I", title="What if", takes="QUESTION;…", hint="what if", can=_has_question)
async def what_if(screen: Explorer, argument: str) -> None:
    """Replay the steps without the row: the finding's cause, or its GPU, layer, operation or
    step as its peers; or with what the questions change (`gpu:5 as peers`, `no contention`,
    `clock=2100`).
    """
    refuse_of_set(screen)
    if not argument and screen.view.name == WHATIF:
        screen.say(view_spec(WHATIF).of)
        open_command(screen, f"what-if {screen.view.of}")
        return
    asked = argument or await _question_here(screen)
    await screen.change(replace(with_view(screen.view, WHATIF), of=asked, by=""))


def _can_predict(screen: Explorer) -> bool:
    if screen.view.overrides.predicted or not screen.cards.has_keys:
        return bool(screen.view.overrides.predicted) or _is_question(screen)
    from chopper_core.views.shared.told_findings import knows_remedies, remedy_of

    run, view, card = screen.run, screen.view, screen.cards.card
    # Cards that were kept are there before the findings are checked, which takes long.
    return card is not None and knows_remedies(run, view) and bool(remedy_of(run, view, card.text))


@action(ASK, "X", title="Step without it", takes="QUESTION;…", hint="without", can=_can_predict)
async def predict(screen: Explorer, argument: str) -> None:
    """Show the step that a replay predicts without the row, the finding, or the finding whose
    evidence this is, with the measured one below it; press again for the measured run."""
    from chopper_core.views.whatif import predicted_step

    refuse_of_set(screen)
    view = screen.view
    if view.overrides.predicted and not argument:
        await screen.change(as_measured(view))
        return
    asked = argument or await _question_here(screen)
    if not asked:
        raise UsageError("there is nothing here to replay the steps without; :predict asks")
    screen.say(f"replaying {asked}")
    target = await run_in_thread(predicted_step, screen.run, view, asked)
    answer = replace(with_view(view, WHATIF), of=asked, by="", sort="", filter="", columns=())
    said = (await run_in_thread(query, screen.run, answer)).headline[0]
    await screen.open_evidence(target, f"{said}; below each lane the measured one")


def _has_row_keys(screen: Explorer) -> bool:
    """Whether the row under the cursor has the keys, not another panel."""
    return screen.listing is screen.table or screen.shows_sentences


async def _question_here(screen: Explorer) -> str:
    """The question of the finding at the cursor, of the one whose evidence this is, or of the row;
    empty for none."""
    from chopper_core.views.shared.row_questions import question_about

    card = screen.cards.card if screen.cards.has_keys else None
    opened, sentence = screen.finding
    if card is not None or place_of(opened) != place_of(screen.view):
        sentence = "" if card is None else card.text
    if sentence:
        from chopper_core.views.shared.told_findings import remedy_of

        return await run_in_thread(remedy_of, screen.run, screen.view, sentence)
    if _has_row_keys(screen):
        return question_about(screen.view, screen.frame, screen.table.cursor)
    return ""


def _gpu_of_row(screen: Explorer) -> int | None:
    """The GPU of the scope or of the cursor's row; None where it has none of its own."""
    label = dict(screen.view.scope).get("gpu")
    if label is None and screen.frame.level == "gpu" and screen.listing is screen.table:
        label = screen.table.label
    return int(label) if label is not None and label.isdecimal() else None


async def _show_view(screen: Explorer, name: str) -> None:
    """Show a view of the scope, in the state in which it was left."""
    asked = with_view(screen.view, name)
    if asked.name and view_spec(asked.name).along_time:
        await _start_timeline(screen, asked)
    here = screen.here
    screen.left[_key_of(screen.view)] = here[-1]
    place = screen.left.get(_key_of(asked), Visit(asked))
    if place.view.baseline != asked.baseline:
        # A baseline holds for all views of the scope, also for those that were left without it.
        place = replace(place, view=replace(place.view, baseline=asked.baseline, sort=""))
    await screen.go(with_statistic((*here[:-1], place), asked))


async def _start_timeline(screen: Explorer, asked: View) -> None:
    """Put the cursor of a new timeline where the row under the table's cursor starts."""
    here = screen.view
    if _key_of(asked) in screen.left or here.name or here.is_leaf or not screen.table.rows:
        return
    target = screen.frame.target(screen.table.cursor)
    if target.run == here.run:
        from chopper_core.analyses.lanes import start_of

        start = await run_in_thread(start_of, screen.run, target)
        window = replace(ALL_TIME, at_ns=start)
        screen.left[_key_of(asked)] = Visit(replace(asked, window=window))


@action(TABLE, "!", title="Notes and sources", takes="[WORD]")
async def notes(screen: Explorer, argument: str) -> None:
    """Show the notes on this table: what is left out, unknown, or estimated, and a message that had
    no room; below them what is missing from the run's files, and its sources: what was read,
    aligned and labelled. With a word at the first line that has it."""
    from rich.text import Text

    width = reading_width(screen)
    shown = [*filter(None, [screen.unread]), *screen.frame.notes, *_followed_notes(screen.run)]
    screen.unread = ""
    parts = ["\n".join(wrapped(note, width)) for note in shown]
    if not isinstance(screen.run, SeveralRuns):
        parts.append(await run_in_thread(_sources_text, screen.run, width))
    if not parts:
        raise UsageError("there are no notes on this table")
    title = "Notes and sources" if shown else "Sources"
    screen.read(title, Text("\n\n".join(parts)), passes_digits=True, at=argument)


def _followed_notes(run: Run) -> list[str]:
    """What the first line of a run that is followed may have no room for."""
    if run.recent is None:
        return []
    others = [f"in the same directory: {each.text(clock())}" for each in run.recent.others]
    return [*filter(None, [run.recent.problem, run.recent.gone]), *others]


_LACKED: Final = ("memory", "cpu")
"""Views whose reason to be empty is something that the files of a run don't tell."""
_NO_CORES: Final = "no record of the cores on which the ranks' threads run"


def _sources_text(run: Run, width: int) -> str:
    from chopper_core.render import info

    lines: list[str] = []
    missing = [*info.missing_of(run), *map(partial(reason_against_view, run), _LACKED)]
    missing = [*filter(None, missing), _NO_CORES]
    for line in ("missing", *(f"  {each}" for each in missing), ""):
        lines += wrap(line, width, subsequent_indent="    ") or [""]
    # Missing things are listed once, above.
    for line in info.info_text(run, width, with_missing=False).splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += wrap(line, width, subsequent_indent=indent) or [""]
    return "\n".join(lines)


def reading_width(screen: Explorer) -> int:
    return max(min(screen.size.width * 96 // 100 - 6, 100), 8)
