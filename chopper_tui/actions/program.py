"""Actions on Chopper itself: the command line, help, colours, leaving."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from chopper_core.util.errors import UsageError
from chopper_tui.completions import address_completions, arguments_of, completions
from chopper_tui.keymap import CHOPPER, PALETTE_KEY, action, find_command

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer
    from chopper_tui.widgets.pane import DrawingApp


@action(CHOPPER, ":", title="Command line", hint="cmd", while_busy=True)
def command(screen: Explorer, _: str) -> None:
    """Type a command: the words after the colon in this list. Tab completes, ↑ ↓ recall."""
    open_command(screen)


def open_command(screen: Explorer, text: str = "") -> None:
    known = tuple(screen.actions.values())
    arguments = arguments_of(screen.run, screen.frame)
    addresses = partial(address_completions, screen.run, screen.frame)

    def perform(text: str) -> Awaitable[None] | None:
        if not text.strip():
            return None
        found, argument = find_command(known, text)
        return found.handler(screen, argument)

    def complete(text: str, _: str) -> Sequence[str]:
        return completions(text, known, arguments, addresses)

    screen.ask(":", text, perform, complete=complete)


@action(CHOPPER, "?", title="Help")
def help_(screen: Explorer, _: str) -> None:
    """Show this screen's keys, the screens, all keys and commands, the filter, columns and words; a
    click on an entry performs it."""
    from chopper_tui.widgets.help import help_text

    actions, style = tuple(screen.actions.values()), screen.table.inks.of("accent")
    screen.read("Help", help_text(actions, screen.frame, screen.size.width, style))


@action(CHOPPER, title="Theme", takes="dark|light|contrast|ansi")
def theme(screen: Explorer, argument: str) -> None:
    """Choose the colours: for a dark or light terminal, high contrast, or the terminal's own 16."""
    from chopper_tui.draw.theme import THEMES

    if argument and argument not in THEMES:
        raise UsageError(f"unknown theme {argument!r}; the themes are {', '.join(THEMES)}")
    following = THEMES[(THEMES.index(screen.app.theme) + 1) % len(THEMES)]
    screen.app.theme = argument or following
    screen.say(f"theme {screen.app.theme}")


@action(CHOPPER, "ctrl+l", title="Redraw")
def redraw(screen: Explorer, _: str) -> None:
    """Draw the whole screen again."""
    screen.app.clear_notifications()
    cast("DrawingApp", screen.app).redraw()


@action(CHOPPER, "ctrl+z", title="To the shell", while_busy=True)
def suspend(screen: Explorer, _: str) -> None:
    """Suspend Chopper and return to the shell; `fg` resumes it."""
    screen.app.action_suspend_process()


@action(CHOPPER, "q", "ctrl+c", title="Quit", hint="quit", while_busy=True)
def quit_(screen: Explorer, _: str) -> None:
    """Quit Chopper."""
    screen.app.exit()


@action(CHOPPER, PALETTE_KEY, title="Search all of these")
def palette(screen: Explorer, _: str) -> None:
    """Search actions, views, columns, signals and recent places by name."""
    from chopper_tui.widgets.dialogs import Palette

    actions = [(each.title, each.help, each.id, "") for each in screen.actions.values()]
    offered = [*actions, *_offers(screen)]
    options = [(str(place), title, text) for place, (title, text, _, _) in enumerate(offered)]

    def perform(key: str) -> None:
        _, _, action_id, argument = offered[int(key)]
        screen.action_perform(action_id, argument)

    screen.open_dialog(Palette("Search", options), perform)


def _offers(screen: Explorer) -> Iterator[tuple[str, str, str, str]]:
    """Entries of the palette next to actions: (title, explanation, action, its argument)."""
    from chopper_core.metrics import METRICS
    from chopper_core.model import address
    from chopper_core.views import view_specs
    from chopper_tui.draw.theme import THEMES

    for spec in view_specs():
        yield f"View: {spec.title}", spec.question, "view", spec.name
    for name in THEMES:
        yield f"Theme: {name}", "Choose these colours.", "theme", name
    for name in screen.run.signal_names:
        yield f"Signal: {screen.run.signal(name).title}", f"Chart {name}.", "metric", name
    shown = {column.name for column in screen.frame.columns}
    known = screen.frame.more if screen.view.name else METRICS.values()
    for metric in known:
        if metric.name not in shown:
            yield f"Column: {metric.title}", metric.definition, "columns", f"+{metric.name}"
    recent = (address.render(trail[-1].view) for trail in reversed(screen.past))
    for text in dict.fromkeys(recent):
        yield f"Recent: {text}", "Go there again.", "go", text
