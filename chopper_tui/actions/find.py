"""Finding names, and going to the next hit or outlier."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.analyses.outliers import FACTOR, MAD_TO_SIGMA, outliers
from chopper_core.columns import METRICS
from chopper_core.model.phrases import count
from chopper_core.render.cells import (
    cell_width,
    crumb,
    display_name,
    elide,
    scale_of,
)
from chopper_core.render.glyphs import Glyphs
from chopper_core.render.names import fitting_names
from chopper_core.util.errors import UsageError
from chopper_tui.actions.compare import refuse_of_set
from chopper_tui.actions.program import open_command
from chopper_tui.actions.time import find_along_time
from chopper_tui.draw.figures import Figure
from chopper_tui.keymap import (
    FIND,
    action,
    actions,
)
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_core.views.find import Found
    from chopper_tui.screen import Explorer


@action(FIND, "f", title="Find a name anywhere", takes="TEXT", while_busy=True)
def find(screen: Explorer, argument: str) -> Awaitable[None] | None:
    """Find operations and kernels anywhere in the run (terms as in a filter); Enter goes to one.
    In the timeline the cursor goes to the next match; n and N repeat the search."""
    if not argument:
        open_command(screen, "find ")
        return None
    if screen.lanes is not None:
        screen.searched = argument
        return find_along_time(screen, 1)
    return find_in_run(screen, argument)


async def find_in_run(screen: Explorer, argument: str) -> None:
    """Offer the operations and kernels whose names match, or their places."""
    from chopper_core.views.find import find_everywhere as find_nodes
    from chopper_core.views.find import names_everywhere
    from chopper_tui.widgets.dialogs import option_cells

    refuse_of_set(screen)
    asked = screen.run, screen.view, argument
    found = await run_in_thread(names_everywhere, *asked)
    if not found.by_name:
        raise UsageError(f"no operation and no kernel of the run matches {argument!r}")
    screen.searched = argument
    if len(found.by_name) < 2 or len(found.by_name) == found.nodes:
        _choose_place(screen, await run_in_thread(find_nodes, *asked))
        return
    scale = scale_of(METRICS["elapsed_ns"], found.by_name[0].elapsed_ns)
    times = [f"{scale.cell(each.elapsed_ns):>8} {scale.text}  " for each in found.by_name]
    places = [count(each.places, "place") for each in found.by_name]
    room = option_cells(screen.app.size.width) - max(map(len, times)) - max(map(len, places)) - 4
    shown_names = fitting_names(
        tuple(display_name(each.name, each.level) for each in found.by_name),
        max(room, 1),
        screen.table.glyphs,
    )
    options = [
        (str(number), time + name, where)
        for number, (time, name, where) in enumerate(zip(times, shown_names, places, strict=True))
    ]

    async def places_of(key: str) -> None:
        one = found.by_name[int(key)]
        _choose_place(screen, await run_in_thread(partial(find_nodes, one=one), *asked))

    shown = f", the {len(options)} longest" if found.names > len(options) else ""
    screen.choose(f"{count(found.names, 'name')}{shown}", options, None, places_of)


def _choose_place(screen: Explorer, found: Found) -> None:
    """Offer the places of a name, or of several with one each, those with the most time first."""
    from chopper_tui.widgets.dialogs import option_cells

    cells, glyphs = option_cells(screen.app.size.width), screen.table.glyphs
    options = _hit_options(found, screen.view.order, cells, glyphs)
    shown = f", the {len(found.hits)} longest" if found.nodes > len(found.hits) else ""
    title = f"{count(found.nodes, 'place')} of {count(found.names, 'name')}{shown}"

    async def go_to_hit(key: str) -> None:
        view = replace(screen.view, path=found.hits[int(key)].path, sort="", filter="")
        # Its parent's table, with the cursor on it: n and N continue from there.
        await screen.go(screen.trail_to(view)[:-1], f"hit {int(key) + 1} of {found.nodes}")

    if len(options) == 1:
        screen.steps.add(partial(go_to_hit, "0"))
    else:
        screen.choose(title, options, None, go_to_hit)


@actions(FIND)("""
    next_hit: 1 | n | Next hit
        Go to the next row that matches the last search or filter.
    previous_hit: -1 | N | Previous hit
        Go to the previous row that matches the last search or filter.
    """)
async def _go_to_match(screen: Explorer, step: int) -> None:
    if screen.lanes is not None:
        await find_along_time(screen, step)
        return
    text = screen.searched or screen.view.filter
    if not text:
        raise UsageError("no search yet: f finds a name, / filters")
    screen.searched = text
    from chopper_core.views.find import hit_rows

    _, place = _next_of(screen, hit_rows(screen.frame, text), step, f"hit of {text}")
    screen.say(f"hit of {text}: {place}")


@actions(FIND)("""
    next_outlier: 1 | e | Next outlier
        Go to the next row whose distance from the median is over 3.5 x 1.4826 x MAD, by the sort
        column or time.
    previous_outlier: -1 | E | Previous outlier
        Go to the previous row whose distance from the median is over 3.5 x 1.4826 x MAD, by the
        sort column or time.
    """)
async def _go_to_outlier(screen: Explorer, step: int) -> None:
    frame = screen.frame
    name = frame.sort.removeprefix("-")
    if name not in frame.values or frame.values[name].words is not None:
        numbers = [each for each in frame.values if frame.values[each].words is None]
        default = next(iter(numbers), "") if screen.view.name else "elapsed_ns"
        name = name if name in METRICS else default
    if not name:
        raise UsageError("no column here has numbers")
    if name not in frame.values:
        from chopper_core.views.query import query

        frame = await run_in_thread(query, screen.run, replace(screen.view, columns=(name,)))
    found = outliers(frame.values[name], frame.counted())
    column = next(each for each in frame.columns if each.name == name)
    glyphs = screen.table.glyphs

    def text(number: float) -> str:
        return Figure(column, number).text(glyphs)

    rule = f"median {text(found.median)}, ±{text(found.limit)} ({FACTOR}×{MAD_TO_SIGMA}×MAD)"
    if not found.rows:
        raise UsageError(f"no outlier by {column.title}: {rule}")
    row, place = _next_of(screen, found.rows, step, "outlier")
    value = frame.values[name].at(row)
    assert value is not None
    screen.say(f"outlier {place}: {column.title} {text(value)}; {rule}")


def _next_of(screen: Explorer, rows: Sequence[int], step: int, name: str) -> tuple[int, str]:
    """Move the cursor to the next of the rows, past the last to the first; the row, its number."""
    if not rows:
        raise UsageError(f"no {name} in this table")
    later = [row for row in rows if (row - screen.table.cursor) * step > 0]
    row = min(later or rows) if step > 0 else max(later or rows)
    screen.table.move_to(row)
    return row, f"{rows.index(row) + 1} of {len(rows)}"


def _hit_options(
    found: Found, order: Sequence[str], room: int, glyphs: Glyphs
) -> list[tuple[str, str, str]]:
    """The hits in `room` cells: time, name and path, the name shortened first."""
    scale = scale_of(METRICS["elapsed_ns"], found.hits[0].elapsed_ns)
    times = [f"{scale.cell(hit.elapsed_ns):>8} {scale.text}  " for hit in found.hits]
    room -= max(map(len, times)) + 2
    paths = [
        f" {glyphs.crumb} ".join(
            crumb(level, label) for level, label in zip(order, hit.path[:-1], strict=False)
        )
        for hit in found.hits
    ]
    names = fitting_names(
        tuple(display_name(hit.path[-1], hit.level) for hit in found.hits),
        max(room - max(map(cell_width, paths)), room * 2 // 5),
        glyphs,
    )
    left = room - max(map(cell_width, names))
    return [
        (str(number), time + name, elide(path, left, glyphs))
        for number, (time, name, path) in enumerate(zip(times, names, paths, strict=True))
    ]
