"""Places that answer a question of this run: they are worked out, not looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.clock_drops import ClockDrop, clock_drop
from chopper_core.analyses.gaps import longest_gap, timeline_of_gap
from chopper_core.analyses.step_times import step_times
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, Kind
from chopper_core.model.units import time_text
from chopper_core.model.view import View, Window, with_view
from chopper_core.render.cells import crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.views.find import names_found
from chopper_tui.search import Offer
from chopper_tui.spoken import Asked, at_place, can_look_through, going

_EDGE: Final = 0.01
"""The part of a step around the end of a phase that is shown, at least."""


def low_clock(run: Run, view: View, asked: Asked) -> Offer | None:
    """The timeline where the clock of a GPU falls, with a line that says since when and how far."""
    named = asked.steps.get("gpu", "")
    drop = clock_drop(run, int(named) if named.isdecimal() else None)
    if drop is None:
        return None
    since = 0 if drop.since_ns is None else drop.since_ns - run.origin_ns
    there = View(view.run, (str(drop.gpu),), LEVELS, overrides=view.overrides)
    shown = replace(with_view(there, "timeline"), signal="gfx_mhz", window=Window(at_ns=since))
    return going(f"When the clock of GPU {drop.gpu} is low", _said_of(drop, since), shown, True)


def _said_of(drop: ClockDrop, since_ns: int) -> str:
    when = "from the first sample on" if drop.since_ns is None else f"since {time_text(since_ns)}"
    usual = "the other GPUs' median" if drop.is_of_others else "before"
    return (
        f"GPU {drop.gpu}'s clock is low {when}: {drop.mhz:,.0f} MHz, {100 * drop.share:.1f} % below "
        f"{usual} ({drop.usual_mhz:,.0f})"
    )


def reasons(run: Run, view: View, asked: Asked) -> Offer | None:
    """Why a GPU is late, cause by cause; of the straggler where none is named."""
    if len(run.gpus) < 2:
        return None
    gpu = asked.steps.get("gpu", "")
    name = crumb("gpu", gpu) if gpu else "the straggler"
    return Offer(f"Why {name} is late", "Each cause, with its evidence.", "why", gpu)


def host_gap(run: Run, view: View, asked: Asked) -> Offer | None:
    """The longest gap of a place in the timeline, where the host's work stands below it."""
    with suppress(ChopperError):
        gap = longest_gap(run, at_place(view, asked.steps))
        if gap is not None:
            where = ", ".join(crumb(*step) for step in asked.steps.items()) or "the run"
            why = f"In the timeline, {time_text(gap.length_ns)}, with what the host does there."
            return going(f"Longest gap of {where}", why, timeline_of_gap(run, view, gap))
    return None


def phase_edge(run: Run, view: View, asked: Asked) -> Offer | None:
    """The timeline between two phases of a step: of the one that is named, or the median one."""
    one, other = asked.steps.get("phase", ""), asked.again.get("phase", "")
    if not other:
        return None
    table = run.table
    with suppress(ChopperError):
        times = step_times(run, View(view.run, overrides=view.overrides))
        middle = np.argsort(times.each_ns)[(len(times.each_ns) - 1) // 2]
        step = asked.steps.get("iteration", str(times.iterations[int(middle)]))
        gpu = asked.steps.get("gpu", str(run.gpus[0].index))
        own = (table.gpu == int(gpu)) & (table.kind == Kind.COMPUTE)
        own &= table.iteration == int(step)
        ends = table.start_ns + table.duration_ns
        spans = {}
        for phase in (one, other):
            rows = own & (table.phase == table.code_of("phase", phase))
            if not rows.any():
                return None
            spans[phase] = int(table.start_ns[rows].min()), int(ends[rows].max())
        first, then = sorted(spans, key=lambda phase: spans[phase][0])
        end, begin = (time - run.origin_ns for time in (spans[first][1], spans[then][0]))
        near = max(abs(begin - end), int(_EDGE * times.mean_ns))
        window = Window(max(min(end, begin) - near, 0), max(end, begin) + near, min(end, begin))
        there = View(view.run, (gpu, step), LEVELS, overrides=view.overrides)
        between = "nothing" if begin <= end else time_text(begin - end)
        why = (
            f"GPU {gpu}, step {step}: {first} ends at {time_text(end)}, {then} begins at "
            f"{time_text(begin)}; {between} between them"
        )
        shown = replace(with_view(there, "timeline"), window=window)
        return going(f"Timeline between {first} and {then}", why, shown, True)
    return None


def places_of_name(run: Run, view: View, asked: Asked) -> Offer | None:
    """Where the kernels and operations run that a text names."""
    if not can_look_through(run):
        return None
    for word in asked.rest:
        with suppress(UsageError):
            operations, kernels = names_found(run, word)
            if operations or kernels:
                found = " and ".join(
                    count(number, what)
                    for number, what in ((operations, "operation"), (kernels, "kernel"))
                    if number
                )
                return Offer(f"Where {word} runs", f"{found}, each with its places.", "find", word)
    return None


def one_step(run: Run, view: View, asked: Asked) -> Offer | None:
    """One step in a file for Perfetto: the one that is named, or the slowest."""
    with suppress(ChopperError):
        times = step_times(run, View(view.run, overrides=view.overrides))
        slowest = str(times.iterations[int(np.argmax(times.each_ns))])
        step = asked.steps.get("iteration", slowest)
        which = "" if "iteration" in asked.steps else ", the slowest,"
        why = "Its activities on all GPUs, as a file to open in ui.perfetto.dev."
        return Offer(f"Write step {step}{which} for Perfetto", why, "export", f"perfetto step={step}")
    return None


WORKED_OUT: Final[Mapping[str, Callable[[Run, View, Asked], Offer | None]]] = {
    "clock_drop": low_clock,
    "why": reasons,
    "host_gap": host_gap,
    "phase_edge": phase_edge,
    "find": places_of_name,
    "perfetto": one_step,
}
"""Name of an answer → what works out its place; None where this run has none."""
