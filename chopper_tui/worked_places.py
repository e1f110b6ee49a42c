"""Places that answer a question of this run: they are worked out, not looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.clock_drops import CLOCK, ClockDrop, clock_drop
from chopper_core.analyses.gaps import longest_gap, timeline_of_gap
from chopper_core.analyses.step_times import step_times
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, Kind
from chopper_core.model.units import Unit, scaled_text, time_text
from chopper_core.model.view import View, Window, with_view
from chopper_core.render.cells import crumb
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.grouping import median_of
from chopper_core.views import OVERVIEW
from chopper_core.views.find import names_found
from chopper_core.views.query import query, reason_against_view
from chopper_tui.search import Offer, can_look_through, going
from chopper_tui.spoken import Asked, at_place

_LEAST_LETTERS: Final = 4
"""Of a word that may be a part of a name."""
_EDGE: Final = 0.01
"""The part of a step around the end of a phase that is shown, at least."""


def low_clock(run: Run, view: View, asked: Asked) -> Offer | None:
    """The timeline where the clock of a GPU falls, with a line that says since when and how far."""
    named = asked.steps.get("gpu", "")
    drop = clock_drop(run, int(named) if named.isdecimal() else None)
    if drop is None and CLOCK in run.signal_names:
        there = replace(with_view(at_place(view, asked.steps), "timeline"), signal=CLOCK)
        why = "No clock falls by 3 % for good, or is so far below the others'"
        return going("The clock over time", why, there, True)
    if drop is None:
        return None
    since = 0 if drop.since_ns is None else drop.since_ns - run.origin_ns
    there = View(view.run, (str(drop.gpu),), LEVELS, overrides=view.overrides)
    shown = replace(with_view(there, "timeline"), signal=CLOCK, window=Window(at_ns=since))
    return going(f"When the clock of GPU {drop.gpu} is low", _said_of(drop, since), shown, True)


def _said_of(drop: ClockDrop, since_ns: int) -> str:
    when = "from the first sample on" if drop.since_ns is None else f"since {time_text(since_ns)}"
    usual = "the other GPUs' median" if drop.is_of_others else "before"
    return (
        f"GPU {drop.gpu}'s clock is low {when}: {drop.mhz:,.0f} MHz, {100 * drop.share:.1f} % "
        f"below {usual} ({drop.usual_mhz:,.0f}), by all samples, idle times too"
    )


def why_of_gpu(run: Run, view: View, asked: Asked) -> Offer | None:
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
    with suppress(ChopperError):
        times = step_times(run, View(view.run, overrides=view.overrides))
        if not times.iterations:
            return None
        middle = np.argsort(times.each_ns)[(len(times.each_ns) - 1) // 2]
        step = asked.steps.get("iteration", str(times.iterations[int(middle)]))
        gpu = asked.steps.get("gpu", str(run.gpus[0].index))
        edge = _edge(run, int(gpu), int(step), (one, other))
        if edge is None:
            return None
        first, then, end, begin = edge
        near = max(abs(begin - end), int(_EDGE * times.mean_ns))
        window = Window(max(min(end, begin) - near, 0), max(end, begin) + near, min(end, begin))
        there = View(view.run, (gpu, step), LEVELS, overrides=view.overrides)
        gap = f"{time_text(begin - end)} idle" if begin > end else "no gap"
        why = (
            f"GPU {gpu}, step {step}: {first} ends at {time_text(end)}, {then} begins at "
            f"{time_text(begin)}: {gap} between them"
        )
        shown = replace(with_view(there, "timeline"), window=window)
        return going(f"Timeline between {first} and {then}", why, shown, True)
    return None


def _edge(
    run: Run, gpu: int, step: int, phases: tuple[str, str]
) -> tuple[str, str, int, int] | None:
    """The earlier and the later of two phases on a GPU, the end of the one and the start of the
    other in ns of the run; a few activities of either may run among the other's."""
    table = run.table
    codes = [code for each in phases if (code := table.code_of("phase", each)) is not None]
    own = (table.gpu == gpu) & (table.kind == Kind.COMPUTE) & (table.iteration == step)
    rows = np.flatnonzero(own & np.isin(table.phase, codes))
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    phase, spent = table.phase[rows], table.duration_ns[rows]
    if len({*phase.tolist()}) < len(phases):
        return None
    middles = [median_of(table.start_ns[rows[phase == code]]) for code in codes]
    first, then = (0, 1) if middles[0] <= middles[1] else (1, 0)
    # Where least time of the one is after, and of the other before.
    signed = np.where(phase == codes[first], spent, -spent)
    at = int(np.cumsum(signed).argmax()) + 1
    ends = (table.start_ns + table.duration_ns)[rows[:at]][phase[:at] == codes[first]]
    later = table.start_ns[rows[at:]][phase[at:] == codes[then]]
    end, begin = int(ends.max()) - run.origin_ns, int(later.min()) - run.origin_ns
    return phases[first], phases[then], end, begin


def places_of_name(run: Run, view: View, asked: Asked) -> Offer | None:
    """Where the kernels and operations run that a text names."""
    word = next((word for word in asked.rest if is_named(run, word)), "")
    if not word:
        return None
    found = " and ".join(
        count(number, what)
        for number, what in zip(names_found(run, word), ("operation", "kernel"), strict=True)
        if number
    )
    return Offer(f"Where {word} runs", f"{found}, each with its places.", "find", word)


def is_named(run: Run, word: str) -> bool:
    """Whether operations or kernels of the run have a word in their names."""
    if word in run.table.operations:
        return True
    if len(word) < _LEAST_LETTERS or not can_look_through(run):
        return False
    with suppress(UsageError):
        return any(names_found(run, word))
    return False


def one_step(run: Run, view: View, asked: Asked) -> Offer | None:
    """One step in a file for Perfetto: the one that is named, or the slowest."""
    with suppress(ChopperError):
        times = step_times(run, View(view.run, overrides=view.overrides))
        if not times.iterations:
            return Offer("Write the run for Perfetto", "It has no steps.", "export", "perfetto")
        slowest = str(times.iterations[int(np.argmax(times.each_ns))])
        step = asked.steps.get("iteration", slowest)
        which = "" if "iteration" in asked.steps else ", the slowest,"
        why = "Its activities on all GPUs, as a file to open in ui.perfetto.dev."
        return Offer(
            f"Write step {step}{which} for Perfetto", why, "export", f"perfetto step={step}"
        )
    return None


def memory_held(run: Run, view: View, asked: Asked) -> Offer | None:
    """The memory of the GPUs over time, or where the traces lack that its peak by telemetry."""
    lacks = reason_against_view(run, "memory")
    if not lacks:
        there = with_view(at_place(view, asked.steps), "memory")
        return going("Memory of the GPUs: its peak, and what holds it", "", there)
    plain = View(view.run, overrides=view.overrides, columns=("peak_vram_bytes",))
    with suppress(ChopperError):
        found = query(run, plain).values["peak_vram_bytes"]
        known = found.numbers[found.present()]
        if len(known):
            most = scaled_text(float(known.max()), Unit.BYTES)
            why = f"Up to {most} on a GPU, by telemetry; what holds it isn't recorded: {lacks}"
            return going("Peak memory of each GPU, by telemetry", why, plain, True)
    return going("Memory of the GPUs", "", with_view(view, "memory"))._replace(lacks=lacks)


def summary(run: Run, view: View, asked: Asked) -> Offer | None:
    """The summary, whose first line has the run's speed."""
    whole = View(view.run, overrides=view.overrides, name=OVERVIEW)
    with suppress(ChopperError):
        first = query(run, whole).headline[0]
        return going("Summary: step time, tokens/s, MFU, power", f"{first}", whole, True)
    return None


def cores(run: Run, view: View, asked: Asked) -> Offer | None:
    """The cores of the hosts, and that no file says which thread runs on one."""
    why = "Not recorded: no file of this run says on which core a rank's thread runs"
    if reason_against_view(run, "cpu"):
        return Offer("Cores of the ranks' threads", why, "notes", "missing", says=why)
    there = replace(with_view(View(view.run, overrides=view.overrides), "cpu"), by="core")
    return going("CPU: the busiest cores", f"{why}; these are the cores by use", there, True)


WORKED_OUT: Final[Mapping[str, Callable[[Run, View, Asked], Offer | None]]] = {
    "clock_drop": low_clock,
    "why": why_of_gpu,
    "host_gap": host_gap,
    "phase_edge": phase_edge,
    "memory": memory_held,
    "cores": cores,
    "summary": summary,
    "find": places_of_name,
    "perfetto": one_step,
}
"""Name of an answer → what works out its place; None where this run has none."""
