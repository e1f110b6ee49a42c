"""Moving the cursor, and walking the tree: into rows, up, to siblings, back and forward."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.model import address
from chopper_core.model.view import View, filtered, sibling, with_view
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views.shared.children import silent_levels
from chopper_core.views.spec import SeveralRuns
from chopper_tui import screen_data
from chopper_tui.actions.sets import enter_run, leave_run, leave_view, runs_filter
from chopper_tui.completions import address_completions
from chopper_tui.history import Trail, changed, charted, child_of, parent_of, passed, to_sibling
from chopper_tui.keymap import MOVE, WALK, action
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer


@action(MOVE, "down", "j", title="Next row", while_busy=True)
def next_row(screen: Explorer, _: str) -> None:
    """Move the cursor one row down."""
    screen.move(1)


@action(MOVE, "up", "k", title="Previous row", while_busy=True)
def previous_row(screen: Explorer, _: str) -> None:
    """Move the cursor one row up."""
    screen.move(-1)


@action(MOVE, "pagedown", "ctrl+f", title="Page down", while_busy=True)
def page_down(screen: Explorer, _: str) -> None:
    """Move the cursor down by the height of the table."""
    screen.move(screen.listing.page)


@action(MOVE, "pageup", "ctrl+b", title="Page up", while_busy=True)
def page_up(screen: Explorer, _: str) -> None:
    """Move the cursor up by the height of the table."""
    screen.move(-screen.listing.page)


@action(MOVE, "ctrl+d", title="Half a page down", while_busy=True)
def half_down(screen: Explorer, _: str) -> None:
    """Move the cursor down by half the height of the table."""
    screen.move(screen.listing.page // 2)


@action(MOVE, "ctrl+u", title="Half a page up", while_busy=True)
def half_up(screen: Explorer, _: str) -> None:
    """Move the cursor up by half the height of the table."""
    screen.move(-(screen.listing.page // 2))


@action(MOVE, "g", "home", title="First row", while_busy=True)
def first(screen: Explorer, _: str) -> None:
    """Move the cursor to the first row."""
    screen.move_to(0)


@action(MOVE, "G", "end", title="Last row", while_busy=True)
def last(screen: Explorer, _: str) -> None:
    """Move the cursor to the last row."""
    screen.move_to(screen.listing.rows - 1)


@action(MOVE, "tab", title="Next part")
def next_pane(screen: Explorer, _: str) -> None:
    """Move the focus to the next part of the screen: the findings, or the detail on the right,
    which then scrolls.
    """
    screen.next_pane()


@action(MOVE, ")", title="More lines for charts")
async def more(screen: Explorer, _: str) -> None:
    """Move the divider between charts and table down, in this view and in later sessions."""
    await screen.move_split(2)


@action(MOVE, "(", title="More lines for the table")
async def less(screen: Explorer, _: str) -> None:
    """Move the divider between charts and table up, in this view and in later sessions."""
    await screen.move_split(-2)


@action(WALK, "enter", "right", "l", verb="in", title="Enter the row", hint="in")
async def enter(screen: Explorer, _: str) -> None:
    """Enter the row under the cursor: its children become the table. Levels with one value only
    are passed through; Up comes back the same way."""
    label, table = screen.table.label, screen.table
    if screen.view.name:
        await _enter_evidence(screen)
        return
    if screen.view.is_leaf:
        raise UsageError("a single activity has no children")
    if label is None:
        raise UsageError("there is no row to enter")
    partner = screen.frame.partner(table.cursor)
    trail = child_of(screen.here, label, screen.columns, partner)
    labels: tuple[str, ...] = ()
    if not trail[-1].view.is_leaf:
        labels = await run_in_thread(silent_levels, screen.run, trail[-1].view)
    through = passed(trail, labels, screen.columns)
    levels = " and ".join(level for level, _ in through[-1].view.scope[len(trail) - 1 :])
    await screen.go(through, f"passed through {levels}: one value only" if labels else "")


async def _enter_evidence(screen: Explorer) -> None:
    """Go to the evidence of a view's row, and remember the way back."""
    target = screen.target
    if isinstance(screen.run, SeveralRuns):
        await enter_run(screen, target)
        return
    if target.run not in (screen.view.run, *screen.home.others):
        raise UsageError(f"the row belongs to another run: {target.run}")
    if _same_place(target, screen.view):
        raise UsageError("nothing to drill into")
    before = screen.here
    await screen.go(screen.trail_to(target))
    if _same_place(screen.view, target):
        screen.entries.append((target, before))


@action(
    *(WALK, "escape", "left", "h", "backspace"),
    title="Up to the parent",
    hint="up",
    gives=("", *["parent"] * 3),
    cancels=True,
)
async def up(screen: Explorer, argument: str) -> None:
    """Go up to the parent, with its cursor, sort, filter and scroll position; Esc clears a filter
    first, and cancels a slow step.
    """
    if not argument and _has_own_filter(screen):
        await screen.change(filtered(screen.view, ""))
        screen.say("filter cleared")
    elif isinstance(screen.run, SeveralRuns):
        await leave_view(screen)
    elif screen.entries and _same_place(screen.entries[-1][0], screen.view):
        await screen.go(screen.entries.pop()[1])
    elif screen.view.name:
        await screen.go(changed(screen.here, with_view(screen.view, "")))
    elif len(screen.trail) > 1:
        await screen.go(parent_of(screen.here))
    elif screen.view.filter:
        await screen.change(filtered(screen.view, ""))
    elif isinstance(screen.home, SeveralRuns):
        await leave_run(screen)
    else:
        raise UsageError("this is the whole run; q quits")


def _has_own_filter(screen: Explorer) -> bool:
    """Whether the view has a filter that it wasn't opened with, as the evidence of a finding is."""
    view = screen.view
    opened = screen.entries[-1][0] if screen.entries else None
    is_as_opened = opened is not None and _same_place(opened, view) and opened.filter == view.filter
    return bool(view.filter) and view.filter != runs_filter(view) and not is_as_opened


@action(WALK, title="Up to a step of the path", takes="DEPTH")
async def ascend(screen: Explorer, argument: str) -> None:
    """Go up to the ancestor at a depth of the path, 0 for the run; a click on the breadcrumb does
    it."""
    if not argument.isdecimal() or int(argument) >= len(screen.trail):
        raise UsageError(f"the path has the depths 0 to {len(screen.trail) - 1}")
    await screen.go(screen.here[: int(argument) + 1])


@action(WALK, "[", title="Previous sibling")
async def previous_sibling(screen: Explorer, _: str) -> None:
    """Go to the sibling above the scope in its parent's table."""
    await _go_to_sibling(screen, -1)


@action(WALK, "]", title="Next sibling", hint="sibling")
async def next_sibling(screen: Explorer, _: str) -> None:
    """Go to the sibling below the scope in its parent's table."""
    await _go_to_sibling(screen, 1)


async def _go_to_sibling(screen: Explorer, step: int) -> None:
    if len(screen.trail) < 2:
        raise UsageError("the whole run has no sibling")
    labels = await run_in_thread(screen_data.siblings, screen.run, screen.trail[-2].view)
    view = sibling(screen.view, labels, step)
    if view is screen.view:
        raise UsageError(f"this is the {'last' if step > 0 else 'first'} of its siblings")
    await screen.go(to_sibling(screen.here, view))


@action(WALK, "{", title="Same on the previous GPU")
async def previous_gpu(screen: Explorer, _: str) -> None:
    """Go to the same scope on the previous GPU, or its nearest ancestor there."""
    await _go_to_gpu(screen, -1)


@action(WALK, "}", title="Same on the next GPU", hint="GPU")
async def next_gpu(screen: Explorer, _: str) -> None:
    """Go to the same scope on the next GPU, or its nearest ancestor there."""
    await _go_to_gpu(screen, 1)


async def _go_to_gpu(screen: Explorer, step: int) -> None:
    view, message = await run_in_thread(screen_data.same_on_gpu, screen.run, screen.view, step)
    trail = screen.trail_to(view)
    here = screen.here
    # The parents keep their sort, filter and cursor on the other GPU too.
    parents = tuple(
        replace(old, view=replace(old.view, path=view.path[:depth]), label=view.path[depth])
        for depth, old in enumerate(here[: len(trail) - 1])
    )
    await screen.go((*parents, replace(here[len(trail) - 1], view=view)), message)


@action(WALK, "H", title="Back")
async def back(screen: Explorer, _: str) -> None:
    """Go back to where you were before, step by step."""
    await _go_in_history(screen, screen.past, "this is where you began")


@action(WALK, "L", title="Forward")
async def forward(screen: Explorer, _: str) -> None:
    """Go forward again, after going back."""
    await _go_in_history(screen, screen.future, "this is the latest view")


async def _go_in_history(screen: Explorer, source: list[Trail], end: str) -> None:
    if not source:
        raise UsageError(end)
    trail, here = charted(source[-1], screen.view.signal), screen.here
    past, future = screen.past, screen.future
    await screen.go(trail)
    if screen.view != trail[-1].view:
        return
    # Moving in the history doesn't add to it.
    is_back = source is past
    source.pop()
    (future if is_back else past).append(here)
    screen.past, screen.future = past, future


@action(WALK, "ctrl+g", title="Go to an address", takes="ADDRESS", while_busy=True)
def go(screen: Explorer, argument: str) -> Awaitable[None] | None:
    """Open an address, as snapshots print it; the key lets you edit this view's address in the
    breadcrumb: Tab completes, Enter goes there, Esc restores.
    """
    if argument:
        return screen.go(_trail_at(screen, argument))
    text = screen.frame.address
    path_end = text.rfind("?") if "?" in text else len(text)
    handler = AddressHandler(screen)
    screen.open_address(handler, text, path_end, handler.complete)
    return None


class AddressHandler:
    """Goes to an edited address; an invalid one stays open for editing."""

    def __init__(self, screen: Explorer) -> None:
        self._screen = screen

    def complete(self, text: str, rest: str) -> Sequence[str]:
        """The completions of the address up to the cursor."""
        return address_completions(self._screen.run, self._screen.frame, text, rest)

    def prompt_changed(self, text: str) -> None:
        """Nothing follows the text while it is typed."""

    def prompt_entered(self, text: str) -> None:
        self.prompt_cancelled()
        if text.strip():
            self._screen.steps.add(lambda: self._go(text.strip()))

    def prompt_cancelled(self) -> None:
        """Show the breadcrumb again."""
        self._screen.close_prompt()
        self._screen.say("")

    def prompt_offers(self, offered: Sequence[str], place: int) -> None:
        """Name the other completions."""
        self._screen.status.offer(offered, place)

    async def _go(self, text: str) -> None:
        screen = self._screen
        try:
            trail = _trail_at(screen, text)
            run = await run_in_thread(screen_data.run_of, screen.home, trail[-1].view)
            data = await run_in_thread(screen_data.screen_data, run, trail[-1].view)
        except ChopperError as error:
            screen.open_address(self, text, len(text), self.complete)
            screen.say(str(error), error=True)
        else:
            screen.arrive(trail, data, run=run)


def _trail_at(screen: Explorer, argument: str) -> Trail:
    own = screen.view.run
    known = sorted((own, screen.home.name, *_runs_of_set(screen)), key=len, reverse=True)
    has_run = any(argument.startswith(name) for name in known)
    view = address.parse(argument if has_run else f"{own}:{argument.lstrip(':')}")
    if view.run not in known:
        raise UsageError(f"{argument} is an address of another run; this one is {own}")
    if view.overrides and view.overrides != screen.view.overrides:
        raise UsageError("this address needs other --clock/--gpu options; reopen with it")
    return screen.trail_to(replace(view, overrides=screen.view.overrides))


def _runs_of_set(screen: Explorer) -> tuple[str, ...]:
    return tuple(screen.home.others) if isinstance(screen.home, SeveralRuns) else ()


def _same_place(one: View, other: View) -> bool:
    """Whether two views show the same of the same node."""
    return _identity(one) == _identity(other)


def _identity(view: View) -> tuple[object, ...]:
    return view.run, view.path, view.order, view.name, view.by, view.of, view.baseline
