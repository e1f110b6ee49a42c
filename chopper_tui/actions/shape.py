"""Shaping the table: its columns, filter, order, split, statistic, totals, and a row in detail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.columns import METRICS, column_names, metric_named, worst_first
from chopper_core.columns.derived import instance_levels, underlying
from chopper_core.columns.filter import NO_ROW
from chopper_core.model.phrases import count, level_title
from chopper_core.model.table import SPLITS, is_split
from chopper_core.model.view import STATISTICS, SUM, as_statistic, level_named
from chopper_core.model.view import pivot as pivoted
from chopper_core.render.cells import (
    beginning,
    display_name,
    statistic_title,
    wrapped,
)
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import names_meant
from chopper_core.util.patterns import late
from chopper_core.views import view_spec
from chopper_core.views.find import names_found
from chopper_core.views.shared.run_notes import cut_note
from chopper_core.views.spec import SeveralRuns, splits_of
from chopper_tui.actions.ask import by, reading_width
from chopper_tui.actions.find import find_in_run
from chopper_tui.actions.program import open_command
from chopper_tui.completions import filter_terms, units_shown
from chopper_tui.config import save_columns
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.history import Trail, changed, columns_for, everywhere, with_statistic
from chopper_tui.keymap import TABLE, action, actions
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

HIDDEN_BELOW_PCT: Final = "1"
_SHARE_TERM: Final = late(r"(?:^|\s+)share_pct>=(\S+)")


DEFAULT: Final = "default"
NO_BASE: Final = "no figure here adds up over GPUs and steps"


@actions(TABLE)("""
    right: 1 | > | The next columns
        Show the next eight columns; the names stay. All others are in i and C.
    left: -1 | < | The columns before
        Go back to the first columns.
    """)
def _scroll(screen: Explorer, way: int) -> None:
    if screen.shows_sentences or screen.has_table_drawn:
        raise UsageError("there are no columns to scroll; i shows all figures of a row")
    screen.table.turn_columns(way)


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
    names = screen.view.columns or _planned(screen)
    if screen.view.name:  # The table may still show the view before.
        own = {column.name for column in (*screen.frame.columns, *screen.frame.more)}
        return tuple(name for name in names if name in own)
    return tuple(dict.fromkeys(underlying(name) for name in names))


def _planned(screen: Explorer) -> tuple[str, ...]:
    """The columns that have room on the screen."""
    plan = screen.table.layout_plan
    return tuple(column.name for column in plan.columns) if plan is not None else ()


def _named_columns(screen: Explorer, text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = list(shown_columns(screen)) if all(word[0] in "+-" for word in words) else []
    for word in words:
        (name,) = column_names([word.lstrip("+-")], screen.frame.columns)
        if not screen.view.name:
            name = metric_named(name, screen.run.table).name
        if name in names:
            names.remove(name)
        if not word.startswith("-"):
            names.append(name)
    if not names:
        raise UsageError("a table needs a column; :columns default restores the defaults")
    return tuple(names)


async def _show_columns(screen: Explorer, names: tuple[str, ...]) -> None:
    view = replace(screen.view, columns=names)
    added = [name for name in names if name not in shown_columns(screen)]
    screen.table.added = added[-1] if added else ""
    await screen.go(changed(screen.here, view), "" if names else "default columns")
    if screen.view != view:
        return
    fits = len(_planned(screen)) if screen.table.layout_plan is not None else len(names)
    if fits < len(names):
        screen.say(f"{fits} of {len(names)} columns fit; > scrolls to the others")
    if view.name:
        return
    screen.columns.pop(view.level, None)
    if names:
        screen.columns[view.level] = names
    if screen.config.remember:
        await run_in_thread(save_columns, view.level, names)


def _has_rows(screen: Explorer) -> bool:
    return bool(screen.table.rows or screen.view.filter)


@action(TABLE, "/", title="Filter", takes="TEXT", hint="filter", while_busy=True, can=_has_rows)
def filter_(screen: Explorer, argument: str) -> Awaitable[None] | None:
    """Show the rows that match, while you type; Enter keeps the filter, Esc restores. Names that
    are in no row are searched for in the run."""
    if argument:
        return _show_filtered(screen, units_shown(screen.frame)(argument))
    if not _has_rows(screen):
        screen.say("no rows to filter here: search the run")
        open_command(screen, "find ")
        return None
    before: list[Trail] = []
    text = "" if screen.steps.is_busy else screen.view.filter
    screen.steps.add(lambda: before.append(screen.here))
    _ask_filter(screen, text, before)
    return None


async def _show_filtered(screen: Explorer, text: str, label: str | None = None) -> None:
    """Show the rows that match; the cursor stays on its row, or goes back to that of a label."""
    trail = changed(screen.here, replace(screen.view, filter=text))
    await screen.go((*trail[:-1], replace(trail[-1], label=label or trail[-1].label)))
    screen.table.show_first()
    if _hides_all(screen, text):
        hints = (note for note in screen.frame.notes if note.startswith(NO_ROW))
        more = f"{count(_names_in_run(screen, text), 'name')} of the run: ⏎ shows them; "
        screen.say((more if not more.startswith("0") else "") + next(hints, ""), error=True)


def _hides_all(screen: Explorer, text: str) -> bool:
    return bool(text) and screen.frame.view.filter == text and not len(screen.frame)


def _names_in_run(screen: Explorer, text: str) -> int:
    """How many operations and kernels of the run a text finds, if it is no term of a column."""
    if isinstance(screen.run, SeveralRuns):
        return 0
    with suppress(UsageError):
        return sum(names_found(screen.run, text))
    return 0


def _ask_filter(screen: Explorer, text: str, before: list[Trail]) -> None:
    """Filter while text is typed; Esc goes back to the place `before`."""
    # Rows, columns and units are those before anything is typed.
    terms, in_units = filter_terms(screen.frame), units_shown(screen.frame)

    async def follow() -> None:
        wanted = in_units(screen.typed)
        if wanted != screen.view.filter or screen.status.is_error:
            # A text that matched less on the way to this one doesn't lose the row of the cursor.
            await _show_filtered(screen, wanted, before[0][-1].label)

    async def finish(text: str) -> None:
        """Filter by the text; an invalid one stays open for editing, names that are elsewhere in
        the run are searched for."""
        screen.searched = text if text.strip() else screen.searched
        await follow()
        if _hides_all(screen, in_units(text)) and _names_in_run(screen, text):
            await restore()
            await find_in_run(screen, text)
            return
        if _hides_all(screen, in_units(text)):
            # A filter that nothing matches isn't left behind: it stays open, Esc restores.
            why = screen.status.message
            _ask_filter(screen, text, before)
            screen.say(why, error=True)
            return
        error = screen.status.message if screen.status.is_error else ""
        if error and text != screen.view.filter:
            _ask_filter(screen, text, before)
            screen.say(error, error=True)

    async def restore() -> None:
        await screen.go(before[0])

    def complete(text: str, _: str) -> Sequence[str]:
        """The terms that begin with what is typed, or with its last words."""
        for begin in (0, *(place + 1 for place, char in enumerate(text) if char == " ")):
            found = [text[:begin] + each for each in terms if each.startswith(text[begin:] or " ")]
            if found:
                return found
        return []

    screen.ask("/", text, finish, changed=follow, cancelled=restore, complete=complete)


@action(TABLE, "%", title="Hide small rows", takes="SHARE")
async def hide(screen: Explorer, argument: str) -> None:
    """Hide rows below a share of their parent (1%), as a term of the filter; press again to show
    them."""
    before = screen.view.filter
    rest = _SHARE_TERM.sub("", before).strip()
    if not argument and rest != before:
        await screen.change(replace(screen.view, filter=rest))
        screen.say("all rows shown")
        return
    number = (argument or HIDDEN_BELOW_PCT).removesuffix("%").strip()
    if not re.fullmatch(r"\d+(\.\d+)?", number):
        raise UsageError(f"invalid share {argument!r}; :hide 0.5% hides rows below half a percent")
    await screen.change(replace(screen.view, filter=f"{rest} share_pct>={number}%".strip()))
    screen.say(f"{screen.frame.hidden_text}; filter {screen.view.filter}")


@action(TABLE, "o", title="Sort by …", takes="COLUMN", hint="sort", can=_has_rows)
async def sort(screen: Explorer, argument: str) -> None:
    """Sort the rows by a column, what needs attention first, such as the longest time or the least
    share of a roof; again: reversed (-COLUMN: largest first, +COLUMN: smallest first); by name, or
    in the level's default order."""
    frame = screen.frame
    if argument:
        sign, name = (argument[0], argument[1:]) if argument[0] in "+-" else ("", argument)
        is_own = argument in ("own", "none", "default")
        name = "" if is_own else column_names([name], frame.columns)[0]
        if sign or is_own:
            await _sort_by(screen, sign.replace("+", "") + name)
        elif frame.sort.removeprefix("-") == name:
            await reverse(screen, "")
        else:
            await _sort_by(screen, worst_first(name))
        return
    options = [("", "default order", f"by {level_title(frame.level)}, as in the run")]
    options.append(("name", "name", "alphabetical"))
    times = Counter(column.title for column in frame.columns)
    for column in frame.columns:
        title = column.title + (f" ({column.name})" if times[column.title] > 1 else "")
        options.append((column.name, title, column.definition))
    current = frame.sort.removeprefix("-")
    screen.choose("Sort by", options, current, lambda chosen: sort(screen, chosen or "own"))


@actions(TABLE)("""
    sort_left: -1 | , | Sort by the previous column
        Sort by the column to the left.
    sort_right: 1 | . | Sort by the next column
        Sort by the column to the right.
    """)
async def _shift_sort(screen: Explorer, step: int) -> None:
    names = ["name", *_planned(screen)]
    current = screen.frame.sort.removeprefix("-")
    position = names.index(current) + step if current in names else 0
    name = names[position % len(names)]
    await _sort_by(screen, worst_first(name))


@action(TABLE, "r", title="Reverse")
async def reverse(screen: Explorer, _: str) -> None:
    """Reverse the sort."""
    current = screen.frame.sort or "name"
    await _sort_by(screen, current[1:] if current.startswith("-") else f"-{current}")


async def _sort_by(screen: Explorer, sort: str) -> None:
    """Sort; the cursor follows its row, unless it waits on the first one, which nobody chose."""
    trail = changed(screen.here, replace(screen.view, sort=sort))
    if not screen.table.cursor:
        trail = (*trail[:-1], replace(trail[-1], label=None))
    await screen.go(trail)
    if screen.status.is_error:
        return
    screen.table.show_first()
    name = screen.frame.sort.removeprefix("-")
    column = next((each for each in screen.frame.columns if each.name == name), None)
    if column is not None:
        text = f"{column.title}: {' '.join(column.definition.split())}"
        screen.say(beginning(text, screen.size.width - 2, screen.table.glyphs))


def _can_split(screen: Explorer) -> bool:
    if name := screen.view.name:
        return bool(splits_of(screen.run, view_spec(name)))
    return len(_levels_below(screen)) > 1


def _levels_below(screen: Explorer) -> tuple[str, ...]:
    """The levels that the scope can be split by, those of its order first."""
    depth = len(screen.view.path)
    above, rest = screen.view.order[:depth], screen.view.order[depth:]
    others = (*screen.run.table.coordinates, *SPLITS)
    return (*rest, *(name for name in others if name not in (*above, *rest)))


@action(TABLE, "p", title="Pivot", takes="LEVEL", hint="split", can=_can_split)
async def pivot(screen: Explorer, argument: str) -> None:
    """Choose the level that splits the scope next."""
    if screen.view.name:
        await by(screen, argument)
        return
    above, rest = screen.view.order[: len(screen.view.path)], _levels_below(screen)
    if argument:
        if argument not in rest and (argument in above or not is_split(argument)):
            if not rest or set(names_meant(argument, above)) - set(names_meant(argument, rest)):
                raise UsageError(f"the levels below this scope are {', '.join(rest) or 'none'}")
            argument = level_named(argument, rest)
        view = pivoted(screen.view, argument)
        columns = columns_for(argument, screen.view, screen.columns)
        await screen.change(replace(view, columns=columns))
        return
    if len(rest) < 2:
        raise UsageError("there is no other level to split this scope by")
    options = [
        (level, level_title(level), "then " + ", ".join(r for r in rest if r != level))
        for level in rest
    ]
    screen.choose("Split the scope by", options, rest[0], lambda level: pivot(screen, level))


@action(TABLE, "s", title="Statistic", takes="NAME [LEVEL,…]")
async def stat(screen: Explorer, argument: str) -> None:
    """Show figures as sum, mean, median, p95, max, min or spread over each row's instances: its
    GPUs, steps and, for names, layers."""
    if not screen.frame.over and argument != SUM:
        raise UsageError(
            f"the view {screen.view.name} computes its figures for each row as a whole: "
            "no statistic applies"
        )
    if argument:
        name, _, over = argument.partition(" ")
        levels = [level.strip() for level in over.split(",") if level.strip()]
        view = as_statistic(screen.view, name, levels)
        await screen.go(with_statistic(screen.here, view))
        if not screen.status.is_error:
            title = statistic_title(screen.frame)
            screen.say(f"figures are the {title}" if title else "figures are sums")
        return
    options = [(name, name, meaning) for name, meaning in STATISTICS.items()]
    level = screen.frame.level if screen.view.name else ""
    over = ", ".join(map(level_title, instance_levels(replace(screen.view, over=()), level)))
    title = f"Figures as a statistic, one instance per {over}"
    screen.choose(title, options, screen.view.stat or SUM, lambda name: stat(screen, name))


@action(TABLE, "t", verb="cut", title="Truncated steps")
async def truncated(screen: Explorer, _: str) -> None:
    """Include truncated steps and warm-up in the figures; press again to leave them out."""
    cut = not screen.view.cut
    counted = replace(screen.view, cut=False)
    if cut and not screen.run.cut_iterations and not screen.run.uncounted(counted):
        raise UsageError("no step of this run is truncated or warm-up")
    await screen.go(everywhere(screen.here, lambda view: replace(view, cut=cut)))
    if not screen.status.is_error:
        outside = "time outside steps is included" if cut else "nothing here is truncated"
        screen.say(next(iter(cut_note(screen.run, screen.view)), outside))


@action(TABLE, "U", title="Totals")
async def totals(screen: Explorer, _: str) -> None:
    """Show totals over GPUs and steps in place of figures per step and GPU; press again to go
    back."""
    is_total = not screen.view.is_total
    await screen.go(everywhere(screen.here, lambda view: replace(view, is_total=is_total)))
    if not screen.status.is_error:
        screen.say(f"figures: {screen.frame.base}" if screen.frame.base else NO_BASE)


@action(TABLE, "x", title="Full names")
def names(screen: Explorer, _: str) -> None:
    """Switch between full names, with namespaces and parameters, and short ones."""
    table = screen.table
    table.full_names = not table.full_names
    table.show(screen.data, table.cursor, table.offset_of_cursor)
    screen.say(f"kernels have their {'full' if table.full_names else 'short'} names")


@action(TABLE, "i", title="Detail of the row")
async def detail(screen: Explorer, _: str) -> None:
    """Show all figures of the row, its full name and its address."""
    from rich.text import Text

    from chopper_tui.widgets.detail import full_detail
    from chopper_tui.widgets.footer import other_notes

    if not screen.table.rows:
        raise UsageError("there is no row")
    found = await run_in_thread(detail_of, screen.run, screen.frame, screen.table.cursor)
    width = reading_width(screen)
    lines = full_detail(found, width, screen.table.glyphs)
    texts = ["".join(piece for piece, _ in line).rstrip() for line in lines]
    text = "".join(f"{line}\n" for line in texts)
    for note in other_notes(screen.frame):
        text += "\n" + "\n".join(wrapped(f"note: {note}", width))
    name = display_name(found.label, found.level)
    screen.read(f"{level_title(found.level)} {name}"[:width], Text(text))
