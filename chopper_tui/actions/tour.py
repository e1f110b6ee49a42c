"""A short walk through the explorer, over whichever run is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.view import View, with_view
from chopper_tui.keymap import CHOPPER, action

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer


class Stop(Struct, frozen=True):
    """A view of the tour and its explanation."""

    title: str
    text: str
    view: str
    """Its name; empty: the tree."""
    depth: int = 0
    """Steps of the path into the run's first GPU and iteration."""
    is_of_table: bool = False
    """Whether the explanation leaves the table in sight, instead of what is above it."""


STOPS: Final = (
    Stop(
        "overview",
        "This is the run: its speed, one bar of what a step is made of, every GPU on one time "
        "axis, and the findings below, the costliest first. j and k move, Enter opens a "
        "finding's evidence, esc comes back. W explains why a GPU is late.",
        "overview",
    ),
    Stop(
        "1  the tree",
        "Where the time goes, level by level: GPU, iteration, phase, layer, operation, kernel. "
        "Enter goes into a row, esc up again; [ ] go to its neighbours, { } to the same place "
        "on another GPU. Tinted cells stand out from their peers.",
        "",
    ),
    Stop(
        "shaping the table",
        "o sorts, / filters while you type (time>1ms, gpu:0-3), p splits by another level, C "
        "chooses columns, m the signal of the chart. i shows everything known about a row. + and "
        "- zoom the chart; ( and ) move the line below it.",
        "",
        2,
        is_of_table=True,
    ),
    Stop(
        "1 again: the icicle",
        "All levels at once: width is time, colour a figure (m changes it). Arrow keys move, Enter "
        "goes into a block.",
        "icicle",
        2,
    ),
    Stop(
        "2  the timeline",
        "What runs when: + - zoom, a d pan, c goes to the next collective, v or a drag of the "
        "mouse measures. With a baseline its lanes are beneath, dim.",
        "timeline",
        2,
    ),
    Stop(
        "4  overheads",
        "From the time at the hardware's peak to the time measured: each loss is a step of the "
        "waterfall.",
        "overheads",
    ),
    Stop(
        "5  the straggler",
        "Which GPU the others wait for, since which layer, and what sets it apart. The heat map"
        " is one more 5 away.",
        "ranks",
    ),
    Stop(
        "8  comparing",
        "b makes a scope the baseline of others; space marks two rows and = compares them; "
        "`chopper A B` opens two runs. Then every table has differences, and 8 lists what "
        "changed.",
        "",
    ),
    Stop(
        "taking it with you",
        "y copies the row, Y the table, P writes a file, :issue copies a whole report. Each "
        "view has an address (ctrl+g) that `chopper show` prints. ? has every key and can be "
        "searched; ctrl+p finds anything by name. That's all: q quits.",
        "overview",
    ),
)


@action(CHOPPER, title="Tour")
async def tour(screen: Explorer, _: str) -> None:
    """Walk through the screens in a minute, on this run; esc ends it."""
    await _show(screen, 0, 1)


async def _show(screen: Explorer, number: int, step: int) -> None:
    """Show a stop, or where this run has none of its view the next one."""
    from chopper_tui.widgets.dialogs import TourBox

    while 0 <= number < len(STOPS):
        stop = STOPS[number]
        await screen.go(screen.trail_to(_view_of(screen, stop)))
        if not screen.status.is_error:
            break
        number += step
    else:
        screen.say("")
        return
    screen.say("")
    title = f"tour {number + 1}/{len(STOPS)}  {stop.title}"
    here = number
    box = TourBox(title, stop.text, "-above" if stop.is_of_table else "")
    screen.open_dialog(box, lambda go: _show(screen, max(here + go, 0), go))


def _view_of(screen: Explorer, stop: Stop) -> View:
    """The view of a stop: the run, or its first GPU and iteration that is whole."""
    here = screen.view
    view = View(here.run, overrides=here.overrides, baseline=None)
    path = _first_of(screen, view)[: stop.depth]
    return with_view(replace(view, path=path), stop.view)


def _first_of(screen: Explorer, view: View) -> Sequence[str]:
    """The path to the run's first GPU and its first iteration, one that isn't truncated if any."""
    run = screen.run
    gpu = run.tree().children(()).labels[0]
    iterations = run.tree().children((gpu,)).labels
    left_out = set(map(str, run.left_out(replace(view, path=(gpu,)))))
    whole = (label for label in iterations if label not in left_out)
    return gpu, next(whole, iterations[0])
