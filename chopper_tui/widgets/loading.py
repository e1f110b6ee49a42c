"""The screen before the explorer: the progress of loading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from chopper_core.render.cells import clean
from chopper_core.render.glyphs import bar
from chopper_core.util.progress import share_done, step_text
from chopper_tui.draw.pieces import Pieces, fit
from chopper_tui.textual_internals import SteadyScreen
from chopper_tui.widgets.pane import Pane

_LOADING_WIDTH: Final = 60


class LoadingPane(Pane):
    """The step of loading, a bar and the share that is done."""

    run_name = ""
    step = "opening"
    done = 0
    total = 0

    def report(self, step: str, done: int, total: int) -> None:
        self.step, self.done, self.total = step, done, total
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        room = min(_LOADING_WIDTH, max(width - 4, 1))
        margin = (" " * ((width - room) // 2), "text")
        step = step_text(self.step, self.done, self.total)
        share = share_done(self.done, self.total)
        percent = "" if share is None else f"{100 * share:4.0f} %"
        drawn = bar(share or 0.0, max(room - 8, 0), self.glyphs)
        middle: list[Pieces] = [
            [margin, (fit(f"Chopper  {clean(self.run_name)}", room, self.glyphs), "strong")],
            [],
            [margin, (fit(clean(step), room, self.glyphs), "text")],
            [margin, (drawn, "accent"), ("  ", "text"), (percent, "dim")],
            [],
            [margin, ("esc or q cancels", "dim")],
        ]
        return [*([[]] * max((height - len(middle)) // 2, 0)), *middle]


class LoadingScreen(SteadyScreen[None]):
    """Progress, until the run is loaded."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", show=False)]

    def __init__(self, run_name: str) -> None:
        super().__init__()
        self._run_name = run_name

    def compose(self) -> ComposeResult:
        pane = LoadingPane()
        pane.run_name = self._run_name
        yield pane

    def report(self, step: str, done: int, total: int) -> None:
        for pane in self.query(LoadingPane):
            pane.report(step, done, total)

    async def action_cancel(self) -> None:
        await self.app.run_action("leave")
