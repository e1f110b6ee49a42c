"""Moving the cursor, and walking the tree: into rows, up, to siblings, back and forward."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.model import address
from chopper_core.model.phrases import level_title
from chopper_core.model.view import at_level, sibling, with_view
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views import OVERVIEW, RUNS, parsed_view
from chopper_core.views.shared.children import silent_levels
from chopper_core.views.spec import SeveralRuns
from chopper_tui import screen_data
from chopper_tui.actions.compare import enter_run, leave_run, leave_view, runs_filter
from chopper_tui.completions import address_completions
from chopper_tui.history import (
    Trail,
    as_measured,
    changed,
    everywhere,
    into_child,
    parent_of,
    passed,
    place_of,
    to_sibling,
)
from chopper_tui.keymap import MOVE, WALK, action, actions
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer


@actions(MOVE, while_busy=True)("""
    next_row: 1 | down j | Next row
        Move the cursor one row down.
    previous_row: -1 | up k | Previous row
        Move the cursor one row up.
    """)
def _move(screen: Explorer, rows: int) -> None:
    screen.move(rows)


@actions(MOVE, while_busy=True)("""
    page_down: 1 | pagedown ctrl+f | Page down
        Move the cursor down by the height of the table.
    page_up: -1 | pageup ctrl+b | Page up
        Move the cursor up by the height of the table.
    half_down: 0.5 | ctrl+d | Half a page down
        Move the cursor down by half the height of the table.
    half_up: -0.5 | ctrl+u | Half a page up
        Move the cursor up by half the height of the table.
    """)
def _turn(screen: Explorer, pages: float) -> None:
    screen.move(int(screen.listing.page * pages))


@actions(MOVE, while_busy=True)("""
    first: 0 | g home | First row
        Move the cursor to the first row.
    last: 1 | G end | Last row
        Move the cursor to the last row.
    """)
def _go_to_end(screen: Explorer, is_last: int) -> None:
    screen.listing.move_to(screen.listing.rows - 1 if is_last else 0)


def _has_panels(screen: Explorer) -> bool:
    return len(screen.panels) > 1


@actions(MOVE, can=_has_panels)("""
    next_pane: 1 | tab | Next panel | panel
        Give the keys to the next panel of the screen: findings, parts of the bar, detail, the tree
        at the left; the focused one has a bright border. On a screen of one part: its next tab.
    previous_pane: -1 |  | Previous panel
        Give the keys to the previous panel.
    """)
def _go_to_panel(screen: Explorer, step: int) -> None:
    if _has_panels(screen):
        screen.next_panel(step)
    else:
        screen.action_perform("view", screen.place)


@actions(MOVE)("""
    more: 2 | ) | More lines for charts
        Move the divider between charts and table down, in this view and in later sessions.
    less: -2 | ( | More lines for the table
        Move the divider between charts and table up, in this view and in later sessions.
    """)
async def _move_split(screen: Explorer, lines: int) -> None:
    await screen.move_split(lines)


def _can_enter(screen: Explorer) -> bool:
    if screen.scope_tree.place is not None:
        return True
    try:
        if screen.part is not None:
            return True
        if not screen.view.name:
            return screen.table.label is not None and not screen.view.is_leaf
        target = screen.target
    except UsageError:
        return False
    if isinstance(screen.run, SeveralRuns):
        return True
    is_open = target.run in (screen.view.run, *screen.home.others)
    return is_open and place_of(target) != place_of(screen.view)


@action(
    *(WALK, "enter", "right", "l"),
    verb="in",
    title="Enter the row",
    hint="in",
    can=_can_enter,
    gives=("", "inside", "inside"),
)
async def enter(screen: Explorer, argument: str) -> None:
    """Enter the row under the cursor: its children become the table. Levels with one value only
    are passed through; Up comes back the same way. In the tree at the left → opens a place and ←
    closes it."""
    label, place = screen.table.label, screen.scope_tree.place
    if place is not None and argument:
        screen.scope_tree.fold(is_open=True)
        return
    if place is not None:
        await screen.go(screen.trail_to(place))
        return
    if screen.view.name:
        await _enter_evidence(screen)
        return
    if screen.part is not None:  # The same rows by a state of time.
        await screen.change(screen.part)
        return
    if screen.view.is_leaf:
        raise UsageError("a single activity has no children")
    if label is None:
        raise UsageError("there is no row to enter")
    partner = screen.frame.partner(screen.table.cursor)
    trail = into_child(screen.here, label, screen.columns, partner)
    labels: tuple[str, ...] = ()
    if not trail[-1].view.is_leaf:
        labels = await run_in_thread(silent_levels, screen.run, trail[-1].view)
    through = passed(trail, labels, screen.columns)
    silent = [level_title(level) for level, _ in through[-1].view.scope[len(trail) - 1 :]]
    levels = " and ".join(silent)
    await screen.go(through, f"passed through {levels}: one value only" if labels else "")


async def _enter_evidence(screen: Explorer) -> None:
    target = screen.target
    if isinstance(screen.run, SeveralRuns):
        await enter_run(screen, target)
        return
    if target.run not in (screen.view.run, *screen.home.others):
        raise UsageError(f"the row belongs to another run: {target.run}")
    if place_of(target) == place_of(screen.view):
        raise UsageError("nothing to drill into")
    card, is_finding = screen.cards.card, screen.view.name == "findings"
    finding = card.text if screen.cards.has_keys and card is not None else ""
    finding = screen.table.label or "" if is_finding and not finding else finding
    await screen.open_evidence(target)
    screen.finding = (screen.view, finding)


def _can_go_up(screen: Explorer) -> bool:
    view = screen.view
    if isinstance(screen.run, SeveralRuns):
        is_shaped = view.filter or view.baseline or view.by
        return bool(screen.zoom or view.name != RUNS or is_shaped)
    came_from = screen.entries and place_of(screen.entries[-1][0]) == place_of(view)
    is_below = bool(view.name and not _is_top(screen)) or len(screen.trail) > 1
    is_changed = bool(screen.zoom or view.filter or view.overrides.predicted)
    return bool(came_from or is_below or is_changed or isinstance(screen.home, SeveralRuns))


@action(
    *(WALK, "escape", "left", "h", "backspace"),
    title="Up to the parent",
    hint="up",
    can=_can_go_up,
    gives=("", *["parent"] * 3),
    cancels=True,
)
async def up(screen: Explorer, argument: str) -> None:
    """Go up to the parent, with its cursor, sort, filter and scroll position; Esc first shows the
    other panels again, or clears a filter, and cancels a slow step. At the top it does nothing.
    """
    if argument and screen.scope_tree.place is not None:
        screen.scope_tree.fold(is_open=False)
    elif not argument and screen.zoom:
        screen.zoom_panel()
    elif not argument and _has_own_filter(screen):
        await screen.change(replace(screen.view, filter=""))
        screen.say("filter cleared")
    elif isinstance(screen.run, SeveralRuns):
        await leave_view(screen)
    elif screen.entries and place_of(screen.entries[-1][0]) == place_of(screen.view):
        await screen.go(screen.entries.pop()[1])
    elif screen.view.name and not _is_top(screen):
        await screen.go(changed(screen.here, with_view(screen.view, "")))
    elif len(screen.trail) > 1:
        await screen.go(parent_of(screen.here))
    elif screen.view.filter:
        await screen.change(replace(screen.view, filter=""))
    elif screen.view.overrides.predicted:
        await _leave_predicted(screen)
    elif isinstance(screen.home, SeveralRuns):
        await leave_run(screen)
    else:
        screen.say("this is the whole run; q quits")


def _is_top(screen: Explorer) -> bool:
    """Whether the view is the summary of the whole run, or the view that the run was opened at."""
    view = screen.view
    return not view.path and (view.name == OVERVIEW or place_of(view) == place_of(screen.landing))


async def _leave_predicted(screen: Explorer) -> None:
    """Go back to the measured run, to where the predicted one was opened from."""
    while screen.entries:
        _, before = screen.entries.pop()
        if not before[-1].view.overrides.predicted:
            await screen.go(before)
            return
    await screen.change(as_measured(screen.view))


def _has_own_filter(screen: Explorer) -> bool:
    """Whether the view has a filter that it wasn't opened with, as the evidence of a finding is."""
    view = screen.view
    is_opened_with = any(
        place_of(opened) == place_of(view) and opened.filter == view.filter
        for opened, _ in screen.entries[-1:]
    )
    return view.filter not in ("", runs_filter(view)) and not is_opened_with


@action(WALK, title="Up to a step of the path", takes="DEPTH")
async def ascend(screen: Explorer, argument: str) -> None:
    """Go up to the ancestor at a depth of the path, 0 for the run; a click on the breadcrumb does
    it."""
    if not argument.isdecimal() or int(argument) >= len(screen.trail):
        raise UsageError(f"the path has the depths 0 to {len(screen.trail) - 1}")
    await screen.go(screen.here[: int(argument) + 1])


def _has_siblings(screen: Explorer) -> bool:
    if len(screen.trail) < 2 or isinstance(screen.run, SeveralRuns):
        return False
    parent = screen.trail[-2].view
    return len(screen.run.tree(parent.order).children(parent.path).labels) > 1


def _has_gpus(screen: Explorer) -> bool:
    return "gpu" in dict(screen.view.scope) and len(screen.run.gpus) > 1


@actions(WALK, can=_has_siblings, adds_up=True)("""
    previous_sibling: -1 | [ | Previous sibling
        Go to the sibling above the scope in its parent's table.
    next_sibling: 1 | ] | Next sibling | sibling
        Go to the sibling below the scope in its parent's table.
    """)
async def _go_to_sibling(screen: Explorer, step: int, presses: int) -> None:
    if len(screen.trail) < 2:
        raise UsageError("the whole run has no sibling")
    labels = await run_in_thread(screen_data.siblings, screen.run, screen.trail[-2].view)
    before = view = screen.view
    for _ in range(presses):
        before, view = view, sibling(view, labels, step)
    if view != screen.view:
        await screen.go(to_sibling(screen.here, view))
    if view is before:
        raise UsageError(f"this is the {'last' if step > 0 else 'first'} of its siblings")


@actions(WALK, can=_has_gpus)("""
    previous_gpu: -1 | { | Same on the previous GPU
        Go to the same scope on the previous GPU, or its nearest ancestor there.
    next_gpu: 1 | } | Same on the next GPU | GPU
        Go to the same scope on the next GPU, or its nearest ancestor there.
    """)
async def _go_to_gpu(screen: Explorer, step: int) -> None:
    view, message = await run_in_thread(screen_data.same_on_gpu, screen.run, screen.view, step)
    # The parents keep their sort, filter and cursor on the other GPU too.
    *above, last = screen.here[: len(screen.trail_to(view))]
    gpu = dict(view.scope)["gpu"]
    parents = (
        replace(old, view=at_level(old.view, "gpu", gpu), label=view.path[depth])
        for depth, old in enumerate(above)
    )
    await screen.go((*parents, replace(last, view=view)), message)


@actions(WALK)("""
    back: true | H | Back
        Go back to where you were before, step by step.
    forward: false | L | Forward
        Go forward again, after going back.
    """)
async def _go_in_history(screen: Explorer, is_back: bool) -> None:
    source = screen.past if is_back else screen.future
    if not source:
        raise UsageError("this is where you began" if is_back else "this is the latest view")
    signal, here = screen.view.signal, screen.here
    trail = everywhere(source[-1], lambda view: replace(view, signal=signal))
    past, future = screen.past, screen.future
    await screen.go(trail)
    if screen.view != trail[-1].view:
        return
    # Moving in the history doesn't add to it.
    source.pop()
    (future if is_back else past).append(here)
    screen.past, screen.future = past, future


@action(WALK, "ctrl+g", title="Go to an address", takes="ADDRESS", while_busy=True)
def go(screen: Explorer, argument: str) -> Awaitable[None] | None:
    """Open an address, as snapshots print it; the key lets you edit this view's: Tab completes,
    ↑ recalls, Enter goes there, Esc restores.
    """
    if argument:
        return screen.go(_trail_at(screen, argument))
    text = screen.frame.address
    path_end = text.rfind("?") if "?" in text else len(text)
    _ask_address(screen, text, path_end)
    return None


def _ask_address(screen: Explorer, text: str, cursor: int) -> None:
    """Go to an edited address; an invalid one stays open for editing."""

    async def go_there(text: str) -> None:
        text = text.strip()
        if not text:
            return
        try:
            trail = _trail_at(screen, text)
            run = await run_in_thread(screen_data.run_shown, screen.home, trail[-1].view)
            data = await run_in_thread(screen_data.screen_data, run, trail[-1].view)
        except ChopperError as error:
            _ask_address(screen, text, len(text))
            screen.say(str(error), error=True)
        else:
            screen.arrive(trail, data, run=run)

    complete = partial(address_completions, screen.run, screen.frame)
    screen.ask("@", text, go_there, cursor=cursor, complete=complete)


def _trail_at(screen: Explorer, argument: str) -> Trail:
    own = screen.view.run
    runs = screen.home.others if isinstance(screen.home, SeveralRuns) else ()
    known = sorted((own, screen.home.name, *runs), key=len, reverse=True)
    has_run = any(argument.startswith(name) for name in known)
    is_place = has_run or address.is_below(argument)
    if not is_place and argument.partition("=")[0] in address.KEYS:
        argument = f"?{argument}"  # As people type a view's options.
    view = parsed_view(argument if has_run else f"{own}:{argument.lstrip(':')}")
    if view.run not in known:
        raise UsageError(f"{argument} is an address of another run; this one is {own}")
    if view.overrides and view.overrides != screen.view.overrides:
        raise UsageError("this address needs other --clock/--gpu options; reopen with it")
    kept = replace(screen.view.overrides, predicted=view.overrides.predicted)
    return screen.trail_to(replace(view, overrides=kept))
