"""Actions on Chopper itself: the command line, help, colours, leaving; copies, snapshots, tour."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.view import View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import one_named
from chopper_core.util.patterns import listed_entries
from chopper_tui.actions.arguments import accepts
from chopper_tui.actions.compare import refuse_of_set
from chopper_tui.actions.palette import answer, as_meant, knows, titles_found
from chopper_tui.completions import address_completions, arguments_of, completions
from chopper_tui.export import (
    benchmark_line,
    is_picture,
    issue_text,
    printed,
    row_text,
    write_snapshot,
)
from chopper_tui.keymap import CHOPPER, EXPORT, action, find_command
from chopper_tui.search import FILLING
from chopper_tui.steps import run_in_thread
from chopper_tui.terminal import has_clipboard

if TYPE_CHECKING:
    from chopper_core.util.escape import Escaped
    from chopper_tui.screen import Explorer


@action(CHOPPER, ":", title="Ask", hint="ask", while_busy=True)
def command(screen: Explorer, _: str) -> None:
    """Ask in words, as ctrl+p does (`slowest layer`, `gpu 5 at 1100 ms`), or give a command: the
    words after the colon in this list; a second colon says that it is one. Tab completes, ↑ ↓
    recall."""
    open_command(screen)


def open_command(screen: Explorer, text: str = "") -> None:
    known = tuple(screen.actions.values())
    arguments = arguments_of(screen.run, screen.frame)
    addresses = partial(address_completions, screen.run, screen.frame)

    def perform(text: str) -> Awaitable[None] | None:
        text = text.strip()
        if not text:
            return None
        is_told, is_word = text.startswith(":"), len(text.split()) == 1
        try:
            found, argument = find_command(known, text)
        except UsageError:
            is_known = not is_word or knows(screen, text) or as_meant(screen, text) != text
            if is_told or not is_known:
                raise
            # `:1900 mhz`, `:step 11`, `:softmax`, `:who holds the others back`
            no_clock = f"{text!r} is no clock: clock=2100 is one"
            answer(screen, text, no_clock if text.startswith(_CLOCK) else "")
            return None
        perform = partial(found.perform, screen, argument)
        is_verb = text.partition(" ")[0] == found.verb
        if is_told or not argument or accepts(screen, found, argument, is_cut=not is_verb):
            return perform()
        words = argument.lower().split()
        is_plain = is_verb and not FILLING & {*words} and found.id not in _OF_FILES
        if is_plain and (len(words) == 1 or not knows(screen, text, is_whole=True)):
            return perform()  # Which refuses it: it is mistyped, and no question.
        answer(screen, text)
        return None

    def complete(text: str, _: str) -> Sequence[str]:
        return completions(text, known, arguments, addresses)

    screen.ask(":", text, perform, complete=complete, answers=partial(titles_found, screen))


_OF_FILES: Final = ("open", "report")
"""Actions that a word which is no file may have been meant for otherwise."""


_CLOCK: Final = "clock="
"""How a question about a clock begins, which isn't one where no number follows."""


@action(CHOPPER, "?", title="Help")
def help_(screen: Explorer, _: str) -> None:
    """Explain the part, finding or sorted column at the cursor; then this screen's keys, all keys
    and commands, the filter, columns and words. A click on an entry performs it."""
    from chopper_tui.widgets.reader import help_text

    actions, style = tuple(screen.actions.values()), screen.table.inks.of("accent")
    here = screen.explained()
    screen.read("Help", help_text(actions, screen.frame, screen.size.width, style, here))


@action(CHOPPER, title="Theme", takes="dark|light|contrast|ansi")
def theme(screen: Explorer, argument: str) -> None:
    """Choose the colours: for a dark or light terminal, high contrast, or the terminal's own 16."""
    from chopper_tui.draw.theme import THEMES

    if argument:
        argument = one_named("theme", argument, THEMES)
    following = THEMES[(THEMES.index(screen.app.theme) + 1) % len(THEMES)]
    screen.app.theme = argument or following
    screen.say(f"theme {screen.app.theme}")


@action(CHOPPER, "ctrl+l", title="Redraw")
def redraw(screen: Explorer, _: str) -> None:
    """Draw the whole screen again."""
    screen.app.redraw()  # type: ignore[attr-defined]


@action(CHOPPER, "R", title="Reload")
async def reload(screen: Explorer, _: str) -> None:
    """Read the run's files again; path, view, sort, filter and the cursor's row stay. A chip in the
    first line shows when files have changed.
    """
    await screen.reload(screen.app.load)  # type: ignore[attr-defined]
    if not screen.status.message:
        screen.say("reloaded")


@action(CHOPPER, title="Watch")
async def watch(screen: Explorer, _: str) -> None:
    """Follow the run's files as they grow, as `chopper RUN --watch` does; again: no more."""
    app: Any = screen.app
    follower, app.follower = app.follower, None
    if follower is not None:
        screen.tell("")
        screen.say("not watching any more; :watch follows the files again")
        return
    from chopper_core.ingest.follow import Follower

    refuse_of_set(screen)
    follower = Follower(screen.home.name, screen.view.overrides.of_run)
    await screen.reload(follower.open)
    app.follower = follower


@action(CHOPPER, "space", title="Pause", view="live", hint="pause")
def pause(screen: Explorer, _: str) -> None:
    """Keep a run that is followed as it is on the screen; again: follow it."""
    screen.is_paused = not screen.is_paused
    screen.tell("paused" if screen.is_paused else "")
    screen.say(
        "paused; space or :pause follows the run again" if screen.is_paused else "not paused"
    )


@action(CHOPPER, "ctrl+z", title="To the shell", while_busy=True)
def suspend(screen: Explorer, _: str) -> None:
    """Suspend Chopper and return to the shell; `fg` resumes it."""
    screen.app.action_suspend_process()


@action(CHOPPER, "q", "ctrl+c", title="Quit", hint="quit", while_busy=True)
def quit_(screen: Explorer, _: str) -> None:
    """Quit Chopper."""
    screen.app.exit()


CLIPBOARD_BYTES: Final = 70_000
"""The most that terminals accept over OSC 52."""
_FORM_TITLES: Final = {
    "markdown": "Markdown",
    "csv": "CSV",
    "json": "JSON",
    "svg": "a picture (SVG)",
}
"""How messages name the formats of snapshots."""


@action(EXPORT, "y", title="Copy the row")
def copy_row(screen: Explorer, _: str) -> None:
    """Copy the row to the terminal's clipboard, under its headings: name, figures with four digits
    and their units, address."""
    if not len(screen.frame):
        raise UsageError("there is no row to copy")
    _copy(screen, row_text(screen.frame, screen.table.cursor), "the row", "text with tabs")


@action(EXPORT, "Y", title="Copy the view as Markdown")
async def copy_view(screen: Explorer, _: str) -> None:
    """Copy the whole table as markdown to the terminal's clipboard."""
    _copy(screen, await run_in_thread(printed, screen.frame, "markdown"), "the view", "Markdown")


@action(EXPORT, "B", title="Copy a benchmark", takes="[hipblaslt|torch]")
async def bench(screen: Explorer, argument: str) -> None:
    """In the views roofline and kernels by shape: copy a command that runs the row's shape alone,
    with hipblaslt-bench where possible, else with PyTorch.
    """
    row = screen.table.cursor
    line = await run_in_thread(benchmark_line, screen.run, screen.frame, row, argument)
    _copy(screen, line, f"the benchmark of {screen.frame.labels[row]}", "a command")


@action(EXPORT, title="Copy for an issue")
async def issue(screen: Explorer, _: str) -> None:
    """Copy a report for an issue as markdown: the run's speed, the findings, this table, the
    sources, and the addresses that show them.
    """
    refuse_of_set(screen)
    _copy(
        screen,
        await run_in_thread(issue_text, screen.run, screen.frame),
        "the text for an issue",
        "Markdown",
    )


@action(EXPORT, "P", title="Snapshot", takes="[text|md|csv|json|svg] [PATH]", hint="snap")
async def snapshot(screen: Explorer, argument: str) -> None:
    """Write the whole filtered table to a new file and show its name; text includes the key
    figures and the chart.
    """
    from chopper_tui.textual_internals import screen_picture

    picture = screen_picture(screen.app) if is_picture(argument) else ""
    path, form = await run_in_thread(write_snapshot, screen.run, screen.frame, argument, picture)
    screen.say(f"wrote the view as {_FORM_TITLES.get(form, form)}: {path}")


def _copy(screen: Explorer, text: Escaped, name: str, form: str) -> None:
    if not has_clipboard():
        raise UsageError(f"this terminal has no clipboard for {name}; P writes a file")
    size = len(text.encode())
    if size > CLIPBOARD_BYTES:
        raise UsageError(f"{name} is too large for the clipboard ({size} bytes); P writes a file")
    screen.app.copy_to_clipboard(text)
    screen.say(f"copied {name} as {form} ({size} bytes) through the terminal")


class Stop(Struct, frozen=True):
    """A view of the tour and its explanation."""

    title: str
    text: str
    view: str
    depth: int = 0
    """Steps of the path into the run's first GPU and step."""
    is_of_table: bool = False
    """Whether the explanation leaves the table in sight, instead of what is above it."""


def _stops(text: str) -> Iterator[Stop]:
    """Stops, each a line `title | view | depth | table` with the explanation set in below it."""
    for head, words in listed_entries(text):
        title, view, *more = (each.strip() for each in head.split("|"))
        yield Stop(title, words, view, int("".join(more[:1]) or 0), len(more) > 1)


STOPS: Final = tuple(
    _stops("""
    0  summary | overview
        This is the run: its speed, one bar of what a step is made of, every GPU on one
        time axis, and the findings below, the costliest first. j and k move, Enter opens a
        finding's evidence, esc comes back. W explains why a GPU is late.
    1  tree |
        Where the time goes, level by level: GPU, step, phase, layer, operation,
        kernel. Enter goes into a row, esc up again; [ ] go to its neighbours, { } to the
        same place on another GPU. Tinted cells stand out from their peers.
    shaping the table | | 2 | table
        o sorts, / filters while you type (time>1ms, gpu:0-3), p splits by another level, C
        chooses columns, m the signal of the chart. i shows everything known about a row. +
        and - zoom the chart; ( and ) move the line below it.
    1 again: blocks | icicle | 2
        All levels at once: width is time, colour a figure (m changes it). Arrow keys move,
        Enter goes into a block.
    2  timeline | timeline | 2
        What runs when: + - zoom, a d pan, c goes to the next collective, v or a drag of
        the mouse measures. With a baseline its lanes are beneath, dim.
    3  kernels | kernels
        What runs, and how far from its roof: by name, by shape and, with 3 again, those
        that lose most time to it. B copies a command that runs a shape alone.
    4  losses | overheads
        From the time at the hardware's peak to the time measured: each loss is a step of
        the waterfall.
    5  GPUs | ranks
        Which GPU the others wait for, since which layer, and how it differs. The
        other tabs are one more 5 away each: grid, heat map, power, memory.
    6  compare |
        b compares the table with its row; space marks two rows and = compares them;
        `chopper A B` opens two runs. Then every table has differences, and 6 lists what
        changed.
    taking it with you | overview
        y copies the row, Y the table, P writes a file, :report a whole page, :export a trace
        for another program; :open shows another run. Each view has an address (ctrl+g) that
        `chopper show` prints. ? has every key, ctrl+p finds anything by name. q quits.
    """)
)


@action(CHOPPER, title="Tour")
async def tour(screen: Explorer, _: str) -> None:
    """Walk through the screens in a minute, on this run; esc ends it."""
    await _show(screen, 0, 1)


async def _show(screen: Explorer, number: int, step: int) -> None:
    """Show a stop, or where this run has none of its view the next one."""
    from chopper_tui.widgets.dialogs import TourBox

    for here in range(number, len(STOPS) if step > 0 else -1, step):
        stop = STOPS[here]
        await screen.go(screen.trail_to(_view_of(screen, stop)))
        if not screen.status.is_error:
            title = f"tour {here + 1}/{len(STOPS)}  {stop.title}"
            box = TourBox(title, stop.text, "-above" if stop.is_of_table else "")
            screen.open_dialog(box, partial(_go_on, screen, here))
            break
    screen.say("")


async def _go_on(screen: Explorer, here: int, step: int) -> None:
    await _show(screen, max(here + step, 0), step)


def _view_of(screen: Explorer, stop: Stop) -> View:
    """The view of a stop: the run, or its first GPU and its first whole step."""
    run, here = screen.run, screen.view
    view = View(here.run, overrides=here.overrides)
    gpu = run.tree().children(()).labels[0]
    iterations = run.tree().children((gpu,)).labels
    left_out = set(map(str, run.left_out(replace(view, path=(gpu,)))))
    whole = (label for label in iterations if label not in left_out)
    path = (gpu, next(whole, iterations[0]))
    return with_view(replace(view, path=path[: stop.depth]), stop.view)
