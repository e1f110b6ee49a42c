"""A list to choose one thing from."""

from __future__ import annotations

import textwrap
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from chopper_core.metrics import metric_named
from chopper_core.model.run import Run

_LEAST: Final = 69
"""Cells of an option in the box where the screen has them: a box for each question alike."""
_FRAME: Final = 7
"""Cells of the box around an option: its border, its padding, the scrollbar."""


def room_of(width: int) -> int:
    """The cells that an option may take on a screen of this width."""
    return width * 96 // 100 - _FRAME


def _line(title: str, why: str, room: int) -> Text:
    short = why if len(why) <= room else textwrap.shorten(why, max(room, 1), placeholder=" …")
    return Text.assemble(title, (short, "dim"), no_wrap=True, overflow="crop")


def signal_options(run: Run) -> list[tuple[str, str, str]]:
    """The signals over time of a run as options: with their ranges, and what they are."""
    signals = [run.signal(name) for name in run.signal_names]
    widest = max(len(signal.title) for signal in signals)
    return [
        (
            signal.name,
            f"{signal.title:<{widest}}  {signal.low:.0f}-{signal.high:.0f} {signal.unit}",
            metric_named(signal.name).definition.partition(", mean over")[0]
            if signal.name in run.measured
            else "Share of time in which such work ran, from the trace",
        )
        for signal in signals
    ]


class Chooser(ModalScreen[str | None]):
    """Answers with the id of the chosen option, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left,h", "give_up", show=False),
        Binding("j", "step(1)", show=False),
        Binding("k", "step(-1)", show=False),
        Binding("l,right", "take", show=False),
    ]

    def __init__(
        self, title: str, options: list[tuple[str, str, str]], chosen: str | None = None
    ) -> None:
        """Offer (id, title, explanation) options, with the cursor on `chosen`."""
        super().__init__()
        self._title = title
        self._options = options
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """The title over the list."""
        widest = max(len(title) for _, title, _ in self._options)
        needed = widest + 2 + max(len(why) for _, _, why in self._options)
        cells = min(max(needed, _LEAST), room_of(self.app.size.width))
        with Vertical(id="box") as box:
            box.styles.width = cells + _FRAME
            yield Label(Text(self._title), id="title")
            yield OptionList(
                *(
                    Option(_line(title.ljust(widest + 2), why, cells - widest - 2), id=key)
                    for key, title, why in self._options
                ),
                compact=True,
            )

    def on_mount(self) -> None:
        """Put the cursor on what is chosen now."""
        keys = [key for key, _, _ in self._options]
        self.query_one(OptionList).highlighted = (
            keys.index(self._chosen) if self._chosen in keys else 0
        )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer."""
        self.dismiss(event.option.id)

    def action_give_up(self) -> None:
        """Answer with nothing."""
        self.dismiss(None)

    def action_take(self) -> None:
        """Choose the highlighted option."""
        self.query_one(OptionList).action_select()

    def action_step(self, step: int) -> None:
        """Move the highlight."""
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()
