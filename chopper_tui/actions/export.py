"""Taking a view along: to the clipboard or into a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chopper_core.util.errors import UsageError
from chopper_tui.actions.sets import refuse_of_set
from chopper_tui.export import (
    benchmark_line,
    is_picture,
    issue_text,
    printed,
    row_text,
    write_snapshot,
)
from chopper_tui.keymap import EXPORT, action
from chopper_tui.steps import run_in_thread
from chopper_tui.terminal import has_clipboard

if TYPE_CHECKING:
    from chopper_core.render.cells import Escaped
    from chopper_tui.screen import Explorer

CLIPBOARD_BYTES: Final = 70_000
"""The most that terminals accept over OSC 52."""


@action(EXPORT, "y", title="Copy the row")
def copy_row(screen: Explorer, _: str) -> None:
    """Copy the row to the terminal's clipboard, under its headings: name, figures with four digits
    and their units, address."""
    if not len(screen.frame):
        raise UsageError("there is no row to copy")
    _copy(screen, row_text(screen.frame, screen.table.cursor), "the row")


@action(EXPORT, "Y", title="Copy the view")
async def copy_view(screen: Explorer, _: str) -> None:
    """Copy the whole table as markdown to the terminal's clipboard."""
    _copy(screen, await run_in_thread(printed, screen.frame, "markdown"), "the view")


@action(EXPORT, "B", title="Copy a benchmark", takes="[hipblaslt|torch]")
async def bench(screen: Explorer, argument: str) -> None:
    """In the views roofline and kernels by shape: copy a command that runs the row's shape alone,
    with hipblaslt-bench where possible, else with PyTorch.
    """
    row = screen.table.cursor
    line = await run_in_thread(benchmark_line, screen.run, screen.frame, row, argument)
    _copy(screen, line, f"the benchmark of {screen.frame.labels[row]}")


@action(EXPORT, title="Copy for an issue")
async def issue(screen: Explorer, _: str) -> None:
    """Copy a report for an issue as markdown: the run's speed, the findings, this table, the
    sources, and the addresses that show them.
    """
    refuse_of_set(screen)
    _copy(screen, await run_in_thread(issue_text, screen.run, screen.frame), "the text")


@action(EXPORT, "P", title="Snapshot", takes="[text|md|csv|json|svg] [PATH]", hint="snap")
async def snapshot(screen: Explorer, argument: str) -> None:
    """Write the whole filtered table to a new file and show its name; text includes the key
    figures and the chart.
    """
    picture = screen.app.export_screenshot() if is_picture(argument) else ""
    path = await run_in_thread(write_snapshot, screen.run, screen.frame, argument, picture)
    screen.say(f"wrote {path}")


def _copy(screen: Explorer, text: Escaped, name: str) -> None:
    if not has_clipboard():
        raise UsageError(f"this terminal has no clipboard for {name}; P writes a file")
    size = len(text.encode())
    if size > CLIPBOARD_BYTES:
        raise UsageError(f"{name} is too large for the clipboard ({size} bytes); P writes a file")
    screen.app.copy_to_clipboard(text)
    screen.say(f"copied {name} ({size} bytes) through the terminal")
