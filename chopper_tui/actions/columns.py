"""Choosing columns, per level, for this session and the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.metrics import METRICS, metric_named
from chopper_core.render.cells import level_title
from chopper_core.util.errors import UsageError
from chopper_core.views.frame import Frame
from chopper_core.views.shared.derived import underlying
from chopper_tui.config import save_columns
from chopper_tui.history import changed
from chopper_tui.keymap import TABLE, action, actions
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

DEFAULT: Final = "default"


@actions(TABLE)("""
    right: 1 | > | Columns to the right
        Scroll the columns to the right; the names stay.
    left: -1 | < | Columns to the left
        Scroll the columns back to the left.
    """)
def _scroll(screen: Explorer, columns: int) -> None:
    screen.table.scroll_columns(columns)


@action(TABLE, "C", title="Columns", takes="A,B|+A|-A|default")
async def columns(screen: Explorer, argument: str) -> None:
    """Choose the columns of this level's tables, kept for later sessions; +A adds one, -A removes
    one, `default` forgets the choice."""
    if argument == DEFAULT:
        await _show_columns(screen, ())
    elif argument:
        await _show_columns(screen, _named_columns(screen, argument))
    else:
        _open_chooser(screen)


def _open_chooser(screen: Explorer) -> None:
    from chopper_tui.widgets.dialogs import ColumnChooser

    shown, frame = shown_columns(screen), screen.frame
    own = {column.name: column for column in (*frame.columns, *frame.more)}
    # A view has its own columns only; the tree has all metrics.
    known = own if screen.view.name else own | METRICS
    chosen = [known[name] for name in shown]
    others = [each for name, each in known.items() if name not in shown]
    title = f"Columns of tables by {level_title(frame.level)}"
    dialog = ColumnChooser(title, chosen, others, screen.table.glyphs)
    screen.open_dialog(dialog, lambda names: _show_columns(screen, names))


def shown_columns(screen: Explorer) -> tuple[str, ...]:
    """The columns of the view, or those of its defaults that have room on the screen."""
    plan = screen.table.layout_plan
    names = screen.view.columns or (
        tuple(column.name for column in plan.columns) if plan is not None else ()
    )
    if screen.view.name:  # The table may still show the view before.
        own = {column.name for column in (*screen.frame.columns, *screen.frame.more)}
        return tuple(name for name in names if name in own)
    return tuple(dict.fromkeys(underlying(name) for name in names))


def _named_columns(screen: Explorer, text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = list(shown_columns(screen)) if all(word[0] in "+-" for word in words) else []
    for word in words:
        name = column_named(screen.frame, word.lstrip("+-"))
        if not screen.view.name:
            name = metric_named(name, screen.run.table).name
        if name in names:
            names.remove(name)
        if not word.startswith("-"):
            names.append(name)
    if not names:
        raise UsageError("a table needs a column; :columns default restores the defaults")
    return tuple(names)


def column_named(frame: Frame, text: str) -> str:
    """The name of a column given by name or title; unknown text is returned unchanged."""
    for column in frame.columns:
        if text in (column.title, column.title.replace(" ", "")):
            return column.name
    known = {each.title.replace(" ", ""): each.name for each in METRICS.values()}
    return known.get(text.replace(" ", ""), text)


async def _show_columns(screen: Explorer, names: tuple[str, ...]) -> None:
    view = replace(screen.view, columns=names)
    added = [name for name in names if name not in shown_columns(screen)]
    screen.table.added = added[-1] if added else ""
    await screen.go(changed(screen.here, view), "" if names else "default columns")
    if screen.view != view:
        return
    plan = screen.table.layout_plan
    fits = len(plan.columns) if plan is not None else len(names)
    if fits < len(names):
        screen.say(f"{fits} of {len(names)} columns fit; > scrolls to the others")
    if view.name:
        return
    screen.columns.pop(view.level, None)
    if names:
        screen.columns[view.level] = names
    if screen.config.remember:
        await run_in_thread(save_columns, view.level, names)
