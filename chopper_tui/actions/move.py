"""Moving the cursor along the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_tui.keymap import MOVE, action

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
    """Give the keys that move to the next part of the screen: the findings, or the detail at the
    right, which then scrolls."""
    screen.next_pane()


@action(MOVE, ")", title="More lines for pictures")
async def more(screen: Explorer, _: str) -> None:
    """Move the line between pictures and table down, in this view and in later sessions."""
    await screen.move_split(2)


@action(MOVE, "(", title="More lines for the table")
async def less(screen: Explorer, _: str) -> None:
    """Move the line between pictures and table up, in this view and in later sessions."""
    await screen.move_split(-2)
