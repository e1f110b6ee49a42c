"""Asking another question of the same scope: its views, their split and their figure."""

from __future__ import annotations

from operator import attrgetter
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.metrics import METRICS
from chopper_core.model import address
from chopper_core.model.view import ALL_TIME, View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.views import view_spec, view_specs
from chopper_core.views.spec import SeveralRuns, splits_of
from chopper_tui.actions.compare import (
    refuse_of_set,
    runs_filter,
    view_of_set,
)
from chopper_tui.actions.program import open_command
from chopper_tui.history import Visit, with_statistic
from chopper_tui.keymap import ALL, ASK, EXPLORE, INFO, SCREENS, action
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

_TREE: Final = (EXPLORE, "Explore", "the scope's children")
_key_of: Final = attrgetter("name", "order", "path")
_INFO_CELLS: Final = 105
_SORTED_AT_ONCE: Final = 500_000
"""Activities that are sorted by time before a person notices."""


@action(ASK, *SCREENS, title="View", takes="NAME", hint="views", gives=tuple(SCREENS))
async def view(screen: Explorer, argument: str) -> None:
    """Show another view of the scope: a screen by its digit (again: its next view), or a view by
    name."""
    current = screen.view.name or EXPLORE
    if isinstance(screen.run, SeveralRuns):
        await view_of_set(screen, argument)
        return
    if not argument:
        options = [_TREE] + [(each.name, each.title, each.question) for each in view_specs()]
        screen.choose("View", options, current, lambda name: view(screen, name))
        return
    names = SCREENS.get(argument, (argument,))
    failed = screen.failed_view if screen.failed_view in names else current
    # Pressed again: the next one, also after one that this scope doesn't have.
    name = names[(names.index(failed) + 1) % len(names)] if failed in names else names[0]
    screen.failed_view = ""
    if name == INFO:
        await _show_info(screen)
        return
    asked = "" if name == EXPLORE else view_spec(name).name
    await _show_view(screen, asked)
    if screen.view.name != asked and argument in SCREENS:
        screen.failed_view = name


@action(ASK, title="Split the view by", takes="WORD")
async def by(screen: Explorer, argument: str) -> None:
    """Choose the rows of a view, such as kernels by name, class or operation; the same as p."""
    name = screen.view.name
    choices = splits_of(screen.run, view_spec(name)) if name else ()
    if not choices:
        raise UsageError("this view has no other split; p splits the tree")
    if argument:
        kept = runs_filter(screen.view)
        await screen.change(replace(screen.view, by=argument, filter=kept, sort="", columns=()))
        return
    options = [(choice, choice, "") for choice in choices]
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
    elif isinstance(screen.run, SeveralRuns):
        screen.choose("Figure", screen.run.figures(), screen.view.of, lambda name: of(screen, name))
    elif known.figures:
        figures = [METRICS[name] for name in known.figures]
        options = [(each.name, each.title, each.definition) for each in figures]
        screen.choose("Figure", options, screen.view.of, lambda name: of(screen, name))
    else:
        screen.say(f"one of: {known.of}, or {ALL}")
        open_command(screen, f"of {screen.view.of}")


@action(ASK, "W", title="Why", hint="why")
async def why(screen: Explorer, _: str) -> None:
    """Explain why the row's GPU, or else the straggler, is late: each cause leads to its
    evidence.
    """
    from chopper_core.views.overview.evidence import causes_of

    refuse_of_set(screen)
    gpu, cards = await run_in_thread(causes_of, screen.run, screen.view, _gpu_of_row(screen))
    arrow = f"{screen.table.glyphs.arrow} "
    options = [
        (card.address, arrow * (place > 0) + card.text, "") for place, card in enumerate(cards)
    ]

    async def open_card(chosen: str) -> None:
        view = address.parse(chosen)
        await screen.open_evidence(replace(view, overrides=screen.view.overrides))

    screen.choose(f"Why GPU {gpu}", options, None, open_card)


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
    if len(screen.run.table) > _SORTED_AT_ONCE:
        screen.say("sorting the activities by time, once")
    here = screen.view
    if _key_of(asked) in screen.left or here.name or here.is_leaf or not screen.table.rows:
        return
    target = screen.frame.target(screen.table.cursor)
    if target.run == here.run:
        from chopper_core.views import timeline

        start = await run_in_thread(timeline.start_of, screen.run, target)
        window = replace(ALL_TIME, at_ns=start)
        screen.left[_key_of(asked)] = Visit(replace(asked, window=window))


async def _show_info(screen: Explorer) -> None:
    refuse_of_set(screen)
    from rich.text import Text

    from chopper_core.render import info

    width = max(min(screen.size.width * 96 // 100 - 5, _INFO_CELLS), 20)
    text = Text()
    for line in (await run_in_thread(info.as_text, screen.run, width)).splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        text.append("\n".join(wrap(line, width, subsequent_indent=indent)) + "\n")
    screen.read("Info", text, passes_digits=True)
