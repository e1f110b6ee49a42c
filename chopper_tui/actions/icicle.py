"""The icicle's cursor: from block to block, from level to level, and into a block."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.charts import Icicle
from chopper_core.util.errors import UsageError
from chopper_tui.actions.heat import show_next_figure
from chopper_tui.keymap import WALK, action

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

_FIGURES: Final = (
    *("gfx_mhz", "busy_pct", "gfx_util_pct", "power_w", "exposed_comm_ns", "idle_ns"),
    *("mfma_util_pct", "hotspot_c"),
)

_icicle = partial(action, WALK, view="icicle")


@_icicle("left", "h", title="Block to the left", hint="block")
def block_left(screen: Explorer, _: str) -> None:
    """Icicle: move the cursor to the block before, on the same level."""
    _step(screen, -1)


@_icicle("right", "l", title="Block to the right")
def block_right(screen: Explorer, _: str) -> None:
    """Icicle: move the cursor to the next block of the level."""
    _step(screen, 1)


@_icicle("down", "j", title="Level below", hint="level")
def block_down(screen: Explorer, _: str) -> None:
    """Icicle: move the cursor to the largest block in the cursor's."""
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
    """Icicle: move the cursor to the block that holds the cursor's."""
    icicle = _icicle_of(screen)
    depth, block = screen.cell
    if not depth:
        raise UsageError("this is the first level")
    screen.move_to_cell((depth - 1, int(icicle.rows[depth].parents[block])))


@_icicle("enter", title="Enter the block", hint="in")
async def open_block(screen: Explorer, _: str) -> None:
    """Icicle: show the icicle of the cursor's block alone; a kernel opens in the tree."""
    view = _icicle_of(screen).opens(*screen.cell)
    before = screen.here
    await screen.go(screen.trail_to(replace(view, run=screen.view.run)))
    if not screen.status.is_error:
        screen.entries.append((screen.view, before))


@_icicle("m", title="Next figure of the icicle", hint="figure")
async def next_colour(screen: Explorer, _: str) -> None:
    """Icicle: colour the blocks by the next figure; :of chooses any."""
    await show_next_figure(screen, _FIGURES)


def _icicle_of(screen: Explorer) -> Icicle:
    icicle = screen.first_chart(Icicle)
    if icicle is None:
        raise UsageError("this is for the icicle; :view icicle opens it")
    return icicle


def _step(screen: Explorer, step: int) -> None:
    depth, block = screen.cell
    last = len(_icicle_of(screen).rows[depth].labels) - 1
    screen.move_to_cell((depth, min(max(block + step, 0), last)))
