"""The cursors in heat map and icicle: from cell to cell, from block to block, and into one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import metric_named
from chopper_core.model.charts import HeatMap, Icicle
from chopper_core.model.column_names import HEAT
from chopper_core.model.view import View, at_level, pivot
from chopper_core.util.errors import UsageError
from chopper_tui.draw.canvas import WHOLE
from chopper_tui.draw.charts import panned
from chopper_tui.keymap import WALK, action, actions

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer


FIGURES: Final = (
    *("elapsed_ns", "gfx_mhz", "gfx_util_pct", "power_w", "exposed_comm_ns", "idle_ns"),
    *(*HEAT, "kernels"),
)
"""The figures that a key goes through, as far as the run has them."""
_COLOURS: Final = (
    *("gfx_mhz", "busy_pct", "gfx_util_pct", "power_w", "exposed_comm_ns", "idle_ns"),
    *("mfma_util_pct", "hotspot_c"),
)
"""Those of an icicle."""

_heat = partial(action, WALK, view="heatmap")
_heats = actions(WALK, view="heatmap")


@_heats("""
    cell_left: -1 | left h | Cell to the left | cell
        Heat map: move the cursor a column to the left.
    cell_right: 1 | right l | Cell to the right
        Heat map: move the cursor a column to the right.
    """)
def _step(screen: Explorer, step: int) -> None:
    heat, whole = _map_of(screen), screen.frame.charts[0]
    wanted = screen.cell[1] + step
    if not 0 <= wanted < len(heat.columns) and screen.lens != WHOLE:
        with suppress(UsageError):  # at the end of the map
            screen.look(panned(screen.lens, whole, step / len(heat.columns)))
            wanted = screen.cell[1] + step
        heat = _map_of(screen)
    screen.cell = (0, min(max(wanted, 0), len(heat.columns) - 1))
    screen.follow_cursor()


@_heat("enter", title="Enter the cell", hint="in")
async def open_cell(screen: Explorer, _: str) -> None:
    """Heat map: go to the cell under the cursor: its GPU, at its column."""
    heat = _map_of(screen)
    label = screen.table.label
    if heat.opens is None or label not in heat.labels or not heat.columns:
        raise UsageError("there is no cell to enter")
    # The cursor keeps its column where a map has fewer: it is drawn at the last one.
    view = heat.opens(heat.labels.index(label), min(screen.cell[1], len(heat.columns) - 1))
    await screen.open_evidence(replace(view, run=screen.view.run))


@_heat("m", title="Next figure of the heat map", hint="figure")
async def next_figure(screen: Explorer, _: str) -> None:
    """Heat map: show the next figure; :of chooses any."""
    await show_next_figure(screen, FIGURES)


async def show_next_figure(screen: Explorer, figures: Sequence[str]) -> None:
    """Show a view with the next of some figures that the run has."""
    table = screen.run.table
    current = screen.view.of or figures[0]
    place = figures.index(current) if current in figures else -1
    for name in (*figures[place + 1 :], *figures[: place + 1]):
        try:
            metric = metric_named(name, table)
        except UsageError:
            continue
        await screen.change(replace(screen.view, of="" if name == figures[0] else name))
        if not screen.status.is_error:
            screen.say(f"{metric.title}; m shows the next figure, :of any")
            return


def _map_of(screen: Explorer) -> HeatMap:
    heat = screen.first_chart(HeatMap)
    if heat is None or heat.opens is None:
        raise UsageError("there are no cells: this heat map has quantiles of the GPUs")
    return heat


@_heats("""
    previous_iteration: -1 | , | Previous iteration of the heat map
        Heat map: show the previous iteration alone; before the first, all of them.
    next_iteration: 1 | . | Next iteration of the heat map | iteration
        Heat map: show the next iteration alone; after the last, all of them.
    """)
async def _step_iteration(screen: Explorer, step: int) -> None:
    view, table = screen.view, screen.run.table
    codes = sorted(
        {int(code) for code in screen.run.tree().split((), ("iteration",)).codes("iteration")}
    )
    labels = [table.text_of("iteration", code) for code in codes]
    if view.by == "iteration" or len(labels) < 2:
        raise UsageError("the heat map has no iterations to step through")
    here = dict(view.scope).get("iteration")
    place = labels.index(here) + step if here in labels else (0 if step > 0 else len(labels) - 1)
    if 0 <= place < len(labels):
        there = _in_iteration(view, labels[place])
        await screen.go(screen.trail_to(there), f"iteration {labels[place]}")
        return
    depth = view.order.index("iteration")
    await screen.go(screen.trail_to(replace(view, path=view.path[:depth])), "all iterations")


def _in_iteration(view: View, label: str) -> View:
    if "iteration" in dict(view.scope):
        return at_level(view, "iteration", label)
    split = pivot(view, "iteration")
    return replace(split, path=(*split.path, label))


_icicle = partial(action, WALK, view="icicle")


@actions(WALK, view="icicle")("""
    block_left: -1 | left h | Block to the left | block
        Icicle: move the cursor to the previous block of the level.
    block_right: 1 | right l | Block to the right
        Icicle: move the cursor to the next block of the level.
    """)
def _step_block(screen: Explorer, step: int) -> None:
    depth, block = screen.cell
    last = len(_icicle_of(screen).rows[depth].labels) - 1
    screen.move_to_cell((depth, min(max(block + step, 0), last)))


@_icicle("down", "j", title="Level below", hint="level")
def block_down(screen: Explorer, _: str) -> None:
    """Icicle: move the cursor to the largest child block."""
    icicle = _icicle_of(screen)
    depth, block = screen.cell
    if depth + 1 >= len(icicle.rows):
        raise UsageError("this is the last level")
    row = icicle.rows[depth + 1]
    inside = np.flatnonzero(row.parents == block)
    largest = inside[np.argmax((row.ends_ns - row.begins_ns)[inside])]
    screen.move_to_cell((depth + 1, int(largest)))


@_icicle("up", "k", title="Level above")
def block_up(screen: Explorer, _: str) -> None:
    """Icicle: move the cursor to the parent block."""
    icicle = _icicle_of(screen)
    depth, block = screen.cell
    if not depth:
        raise UsageError("this is the first level")
    screen.move_to_cell((depth - 1, int(icicle.rows[depth].parents[block])))


@_icicle("enter", title="Enter the block", hint="in")
async def open_block(screen: Explorer, _: str) -> None:
    """Icicle: show only the block under the cursor; a kernel opens in the tree."""
    view = _icicle_of(screen).opens(*screen.cell)
    await screen.open_evidence(replace(view, run=screen.view.run))


@_icicle("m", title="Next figure of the icicle", hint="figure")
async def next_colour(screen: Explorer, _: str) -> None:
    """Icicle: colour the blocks by the next figure; :of chooses any."""
    await show_next_figure(screen, _COLOURS)


def _icicle_of(screen: Explorer) -> Icicle:
    icicle = screen.first_chart(Icicle)
    if icicle is None:
        raise UsageError("this is for the icicle; :view icicle opens it")
    return icicle
