"""The panels of a place: the chart's size and signal, and the limits that are marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.columns import metric_named
from chopper_core.model.run import Run
from chopper_core.render.cells import (
    scale_title,
)
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import names_meant
from chopper_core.views import view_spec
from chopper_core.views.shared.marks import Limits, mark_limits, set_mark_limits
from chopper_core.views.spec import RUN_FIGURE, SeveralRuns
from chopper_tui.actions.ask import of
from chopper_tui.config import CHART_SIZES
from chopper_tui.history import everywhere
from chopper_tui.keymap import TABLE, action
from chopper_tui.screen_data import next_signal
from chopper_tui.steps import run_in_thread

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer
from chopper_tui.actions.shape import DEFAULT


@action(TABLE, title="Limits", takes="[NAME WARNING ALARM|default]")
def limits(screen: Explorer, argument: str) -> None:
    """Choose from where figures and meters are marked, as a warning and as an alarm: `hot_c 90 95`
    (°C), `power_pct 90 100` (of the cap), `roof_pct 40 20`, `util_pct 80 50`; alone it shows them.
    """
    chosen = mark_limits()
    if argument == DEFAULT:
        chosen = Limits()
    elif argument:
        try:
            name, warning, alarm = argument.split()
            pair = float(warning), float(alarm)
        except ValueError:
            name, pair = "", (0.0, 0.0)
        name = next(iter(names_meant(name, Limits.__struct_fields__)), "")
        if not name or not all(0 <= each <= 1e6 for each in pair):
            names = ", ".join(Limits.__struct_fields__)
            raise UsageError(f"limits are NAME WARNING ALARM, such as hot_c 90 95, of {names}")
        chosen = replace(chosen, **{name: pair})
    set_mark_limits(chosen)
    screen.table.show(screen.data, screen.table.cursor, screen.table.offset_of_cursor)
    pairs = ((name, getattr(chosen, name)) for name in Limits.__struct_fields__)
    screen.say("  ".join(f"{name} {low:g} {high:g}" for name, (low, high) in pairs))


@action(TABLE, "z", title="Panel alone")
def zoom(screen: Explorer, _: str) -> None:
    """Give the panel with the keys, as a rule the table, the whole screen; again: show the other
    parts.
    """
    screen.zoom_panel()


@action(TABLE, "c", title="Size of the chart")
def chart(screen: Explorer, _: str) -> None:
    """Switch the chart of the scope over time: small, full, off."""
    if screen.zoom:
        screen.zoom_panel()
    screen.chart = CHART_SIZES[(CHART_SIZES.index(screen.chart) + 1) % len(CHART_SIZES)]
    screen.fit_parts()
    screen.say(f"chart {screen.chart}")


@action(TABLE, "m", title="Signal", takes="NAME")
async def metric(screen: Explorer, argument: str) -> None:
    """Choose the signal of the chart and the sparklines; in a view its figure or next chart."""
    if screen.view.name and not argument and screen.lanes is None:
        known = view_spec(screen.view.name)
        if known.figures or (isinstance(screen.run, SeveralRuns) and known.of == RUN_FIGURE):
            await of(screen, "")
        else:
            screen.next_picture()
    elif argument:
        signals = await run_in_thread(screen.run.signals, argument)
        names = ",".join(each.name for each in signals)
        trail = everywhere(screen.here, lambda view: replace(view, signal=names))
        await screen.go(trail, f"chart {', '.join(map(scale_title, signals))}")
    else:
        options = await run_in_thread(signal_options, screen.run)
        chosen = screen.frame.signal.name
        screen.choose("Chart", options, chosen, lambda name: metric(screen, name))


@action(TABLE, "M", title="Next signal", adds_up=True)
async def next_metric(screen: Explorer, _: str, presses: int) -> None:
    """Show the next signal in the chart, or the view's next chart; after the last, the first."""
    if screen.view.name and screen.lanes is None:
        for _press in range(presses):
            screen.next_picture()
    else:
        name = screen.frame.signal.name
        for _press in range(presses):
            name = next_signal(screen.run, name)
        await metric(screen, name)


def signal_options(run: Run) -> list[tuple[str, str, str]]:
    signals = [run.signal(name) for name in run.signal_names]
    widest = max(len(signal.title) for signal in signals)
    return [
        (
            signal.name,
            f"{signal.title:<{widest}} {scale_title(signal).removeprefix(signal.title)}",
            metric_named(signal.name).definition.partition(", mean over")[0]
            if signal.name in run.measured
            else "Share of time in which such work ran, from the trace",
        )
        for signal in signals
    ]
