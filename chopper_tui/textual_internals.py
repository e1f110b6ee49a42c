"""Private parts of Textual that Chopper uses: all of them here, each with a test.

Textual has no public way to read a screen as text, only as a picture (`export_screenshot`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate, Compositor
from textual.app import App
from textual.color import TRANSPARENT
from textual.geometry import Size
from textual.keys import _character_to_key
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import Screen
from textual.widgets import OptionList

if TYPE_CHECKING:
    from textual.pilot import Pilot

key_of_character = _character_to_key
"""A character's key as bindings name it: `[` is `left_square_bracket`."""


class CellCompositor(Compositor):
    """Paints the cells of an update only; Textual's begins each at the left edge of its widget."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """The update of what changed."""
        update = super().render_partial_update()
        return update and CellsUpdate(update.chops, update.spans, update.chop_ends)


class CellsUpdate(ChopsUpdate):
    """Cells of the screen that changed."""

    def render_segments(self, console: Console) -> str:
        """The cells as a terminal takes them."""
        sequences: list[str] = []
        for y, begin, end in self.spans:
            for stop, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                first, last = max(begin, x), min(end, stop)
                if strip is not None and first < last:
                    cells = strip.crop(first - x, last - x)
                    sequences += (f"\x1b[{y + 1};{first + 1}H", cells.render(console))
            sequences.append("\n")
        return "".join(sequences[:-1])


class DimmedScreen(BackgroundScreen):
    """The screen below a dialog in one style: what is above stands out, and few bytes are sent."""

    def __init__(self, screen: Screen[Any], style: Style) -> None:
        super().__init__(screen, TRANSPARENT)
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self.screen._compositor, options)):
            yield Segment("".join(text for text, _, control in line if not control), self._style)
            yield Segment.line()


def dimmed(rendered: RenderableType, style: Style) -> RenderableType:
    """The background of a dialog: the screen below it, dimmed."""
    if isinstance(rendered, BackgroundScreen):
        return DimmedScreen(rendered.screen, style)
    return rendered


def press(app: App[Any], key: str) -> None:
    """Put a key into the app's queue, as the terminal does."""
    character = key if len(key) == 1 else None
    event = events.Key(key_of_character(key) if character else key, character)
    event.set_sender(app)
    app.post_message(event)


async def perform_key(app: App[Any], event: events.Key) -> None:
    """Perform a key by the bindings of the screen on top, at once.

    Textual sends it to the focused widget first and looks for bindings when it comes back: by then
    another screen may be on top.
    """
    if not app.app_focus:
        app.app_focus = True
    if not await app._check_bindings(event.key, priority=True):
        await app._check_bindings(event.key)


_click_option = OptionList._on_click


async def _click_option_if_there(options: OptionList, event: events.Click) -> None:
    """Ignore a click on an option that is gone: the palette replaces its list as it searches."""
    number = event.style.meta.get("option")
    if number is None or number < options.option_count:
        await _click_option(options, event)


_turn_page = OptionList._move_page


def _turn_page_if_drawn(options: OptionList, direction: Any) -> None:
    """Ignore a page that is turned before a new list has lines."""
    if options.option_count and (options.highlighted or 0) in options._index_to_line:
        _turn_page(options, direction)


OptionList._move_page = _turn_page_if_drawn  # type: ignore[method-assign, assignment]
OptionList._on_click = _click_option_if_there  # type: ignore[method-assign, assignment]


_lay_out = Screen._screen_resized


def _lay_out_at_its_size(screen: Screen[Any], size: Size) -> None:
    """Ignore a size that the terminal no longer has.

    Each layout posts its size to the screen as another message: two sizes under way would answer
    each other for ever.
    """
    if size == screen.app.size:
        _lay_out(screen, size)


Screen._screen_resized = _lay_out_at_its_size  # type: ignore[method-assign, assignment]


async def messages_done(pilot: Pilot[Any]) -> None:
    """Wait until all widgets have handled their messages."""
    await pilot._wait_for_screen()


def is_holding_back(app: App[Any]) -> bool:
    """Whether the app defers drawing to draw several changes at once."""
    return bool(app._batch_count)


def screen_text(app: App[Any]) -> str:
    """The screen as text, after pending layout; lines without trailing spaces."""
    app.screen._on_timer_update()
    strips = app.screen._compositor.render_strips()
    return "".join("".join(each.text for each in strip).rstrip() + "\n" for strip in strips)
