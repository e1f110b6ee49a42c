"""Private parts of Textual that Chopper uses: all of them here, each with a test.

Textual has no public way to read a screen as text, and its picture of one has seams between cells.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual._styles_cache import StylesCache
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.color import TRANSPARENT
from textual.geometry import Size
from textual.keys import _character_to_key
from textual.message import Message
from textual.message_pump import MessagePump
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import OptionList

from chopper_core.render.drawing import GROUNDS, alone
from chopper_core.render.palette import mixed
from chopper_core.util.escape import printable
from chopper_core.util.patterns import late
from chopper_tui.last_screen import Lines
from chopper_tui.terminal_input import ESCAPE, Pasted, Typed

if TYPE_CHECKING:
    from textual.pilot import Pilot

T = TypeVar("T")
_TICK_S: Final = 0.0005
"""Timers without a delay are due after it."""
_MOST_TURNS: Final = 50
key_of_character = _character_to_key
"""A character's key as bindings name it: `[` is `left_square_bracket`."""


class ShownCells:
    """The cells that the terminal shows, whichever screen drew them; updates send what differs."""

    def __init__(self, *, can_erase: bool = False) -> None:
        """`can_erase`: the terminal fills a number of blank cells with a background (ECH)."""
        self._lines: dict[int, list[_Cell | None]] = {}
        self._can_erase = can_erase

    def forget(self) -> None:
        self._lines.clear()

    def put(self, lines: Lines) -> None:
        """Take lines as those that the terminal shows."""
        self._lines = {
            y: [(char, codes) for text, codes in line for char in text]
            for y, line in enumerate(lines)
        }

    def lines(self, width: int, height: int) -> Lines:
        """The lines that the terminal shows; none where a cell isn't known."""
        found = []
        for y in range(height):
            cells = self._lines.get(y, [])[:width]
            if any(cell is None for cell in cells):
                return ()
            runs = groupby(filter(None, cells), key=itemgetter(1))
            found.append([("".join(char for char, _ in run), codes) for codes, run in runs])
        return found

    def whole(self, screen: Screen[Any], update: Any) -> Any:
        """An update that is of all cells where none is known: a part alone would stand on a cleared
        screen. Nothing until the screen is laid out at the terminal's size, which draws all: lines
        of another one would be cut, or go on in the next."""
        compositor, app = screen._compositor, screen.app
        if isinstance(update, LayoutUpdate | ChopsUpdate) and compositor.size != app.size:
            return None
        if self._lines or not isinstance(update, ChopsUpdate):
            return update
        return compositor.render_update(full=True, screen_stack=app._background_screens)

    def changes(self, update: Any) -> Any:
        is_update = isinstance(update, LayoutUpdate | ChopsUpdate)
        return ChangedCells(self, update) if is_update else update

    def sent(self, parts: Iterable[tuple[int, int, Strip]], console: Console) -> str:
        """What shows the cells that differ, of parts of lines: lines, columns and cells.

        Runs in a style that returns are sent together: a move is shorter than colours.
        """
        # A cleared screen needs no blank cells.
        sequences, at, style = ["" if self._lines else "\x1b[2J"], (-1, -1), ""
        runs = [run for part in parts for run in self._take(*part, console)]
        times = Counter(run.codes for run in runs)
        returning = [each for each in times if len(each) >= _LONG and times[each] >= _OFTEN]
        order = {codes: place for place, codes in enumerate(returning, 1)}
        for run in sorted(runs, key=lambda run: order.get(run.codes, 0)):
            move = _move(at, (run.line, run.column))
            sequences += move, _change_of_style(style, run.codes), run.text
            at, style = (run.line, run.end), run.codes
        return "".join([*sequences, _change_of_style(style, "")])

    def _take(self, y: int, x: int, strip: Strip, console: Console) -> Iterator[_StyledText]:
        """Remember the cells from a place on; runs of those that differ.

        Lines with characters of zero or two cells are sent whole.
        """
        line, end = self._lines.setdefault(y, []), x + strip.cell_length
        line += [_BLANK] * (end - len(line))
        before = line[x:end]
        if not all(_is_one_cell_each(segment.text) for segment in strip):
            line[x:end] = [None] * len(before)
            # Whatever a widget has drawn, no character of it acts on the terminal.
            shown = Strip([Segment(printable(each.text), each.style) for each in strip])
            yield _StyledText(y, x, shown.render(console), "", _UNKNOWN)
            return
        after: list[_Cell] = []
        system = console._color_system or ColorSystem.TRUECOLOR
        for text, style, _ in strip:
            codes = _codes(style, system)
            blank = _of_blanks(codes)
            after += [(char, blank if char == " " else codes) for char in text]
        line[x:end] = after
        differing = [at for at, cell in enumerate(after) if cell != before[at]]
        first = 0
        for place, at in enumerate(differing, 1):
            if place == len(differing) or not _are_near(after[at : differing[place] + 1]):
                begin = differing[first]
                yield from self._runs(y, x + begin, after[begin : at + 1])
                first = place

    def _runs(self, y: int, x: int, cells: Sequence[_Cell]) -> Iterator[_StyledText]:
        """The runs of cells next to each other; many blank ones are erased."""
        for text, codes in _by_style(cells):
            is_erased = self._can_erase and not _SEEN_WITHOUT_CHARACTER & _attributes(codes)
            for piece in _BLANKS.split(text) if is_erased else (text,):
                if is_erased and _BLANKS.fullmatch(piece):
                    yield _StyledText(y, x, f"\x1b[{len(piece)}X", codes, x)
                elif piece:
                    yield _StyledText(y, x, piece, codes, x + len(piece))
                x += len(piece)


class _StyledText(NamedTuple):
    """Text in one style."""

    line: int
    column: int
    text: str
    codes: str
    end: int
    """The column that the terminal's cursor is in after it."""


_Cell = tuple[str, str]
_BLANK: Final = (" ", "")
_UNKNOWN: Final = -1
_LONG: Final = 12
_OFTEN: Final = 3
"""Codes of so many characters, in so many runs, are longer than moving to these again."""
_BLANKS: Final = late(r"( {12,})")
"""Blank cells that take more bytes than erasing them and moving over them."""
_COLOUR: Final = late(r"(?:^|;)[34]8;(?:2;\d+;\d+;\d+|5;\d+)")
_GROUND: Final = late(r"(?:^|;)(48;2;\d+;\d+;\d+|48;5;\d+|4[0-7]|10[0-7])$")
"""A background: the last of the codes."""
_SEEN_WITHOUT_CHARACTER: Final = {"4", "7", "9", "21", "53"}
"""Codes of lines and of reverse."""
_SETS: Final = {"3": "colour", "9": "colour", "4": "ground", "1": "ground"}
"""What codes of several digits set, by the first one; the others are attributes."""
_MOVE_BYTES: Final = 4


def _are_near(cells: list[_Cell]) -> bool:
    """Whether the cells between two that differ take fewer bytes than moving over them."""
    (_, style), *between, _ = cells
    size = sum(len(char.encode()) for char, _ in between)
    return size <= _MOVE_BYTES and all(_joins(*cell, style) for cell in between)


def _joins(char: str, own: str, style: str) -> bool:
    """Whether a cell can be sent in the style before it: of a blank one the background is seen."""
    return own == style or (char == " " and own == _of_blanks(style))


def _by_style(cells: Sequence[_Cell]) -> Iterator[tuple[str, str]]:
    """Texts of one style each: a blank cell joins the text that its background is behind."""
    text, style = "", cells[0][1]
    for char, own in cells:
        if not _joins(char, own, style):
            if text.isspace() and style == _of_blanks(own):
                text, style = text + char, own
                continue
            yield text, style
            text, style = "", own
        text += char
    yield text, style


@lru_cache(maxsize=4096)
def _is_one_cell_each(text: str) -> bool:
    if not text.isprintable():
        return False
    return text.isascii() or all(get_character_cell_size(char) == 1 for char in text)


@lru_cache(maxsize=1024)
def _codes(style: Style | None, system: ColorSystem) -> str:
    """The codes of a style; black and white are shorter from the palette of 256."""
    codes = Strip.render_ansi(style, system) if style is not None else ""
    return codes.replace(";2;255;255;255", ";5;231").replace(";2;0;0;0", ";5;16")


def _attributes(codes: str) -> set[str]:
    return set(_COLOUR.sub("", codes).split(";"))


@lru_cache(maxsize=8192)
def _change_of_style(before: str, after: str) -> str:
    """What sets a style after another one, which is reset if it has more than the new one sets."""
    if before == after:
        return ""
    is_kept = not after or _parts(before) <= _parts(after)
    return f"\x1b[{'' if is_kept else ';'}{after}m"


def _parts(codes: str) -> set[str]:
    """What a style sets: attributes, a colour, a background."""
    colours = {_SETS[found.strip(";")[0]] for found in _COLOUR.findall(codes)}
    plain = _attributes(codes) - {""}
    return colours | {_SETS.get(code[0], code) if code[1:] else code for code in plain}


@lru_cache(maxsize=1024)
def _of_blanks(codes: str) -> str:
    """The visible part of a style where there is no character."""
    if _SEEN_WITHOUT_CHARACTER & _attributes(codes):
        return codes
    ground = _GROUND.search(codes)
    return ground[1] if ground else ""


class ChangedCells(CompositorUpdate):
    """The cells of an update that differ from those that the terminal shows."""

    def __init__(self, shown: ShownCells, update: LayoutUpdate | ChopsUpdate) -> None:
        self._shown = shown
        self._update = update

    def render_segments(self, console: Console) -> str:
        return self._shown.sent(self._parts(), console)

    def _parts(self) -> Iterator[tuple[int, int, Strip]]:
        if isinstance(self._update, LayoutUpdate):
            for y, strips in enumerate(self._update.strips, self._update.region.y):
                yield y, self._update.region.x, Strip.join(strips)
            return
        for y, begin, end in self._update.spans:
            line = self._update.chops[y].items()
            for stop, (x, strip) in zip(self._update.chop_ends[y], line, strict=False):
                first, last = max(begin, x), min(end, stop)
                if strip is not None and first < last:
                    yield y, first, strip.crop(first - x, last - x)


def _move(before: tuple[int, int], after: tuple[int, int]) -> str:
    """From behind the cells that were written last to others, by lines and columns from 0."""
    (y, x), (line, column) = before, after
    if before == after:
        return ""
    ways = [f"\x1b[{line + 1};{column + 1}H"]
    if line == y and column > x >= 0:
        ways.append(f"\x1b[{column - x}C" if column > x + 1 else "\x1b[C")
    if line in (y, y + 1) and y >= 0:
        ways.append("\r" + "\n" * (line - y) + (f"\x1b[{column}C" if column else ""))
    return min(ways, key=len)


class DimmedScreen(BackgroundScreen):
    """The screen below a dialog in one style: the dialog is prominent, and few bytes are sent."""

    def __init__(self, screen: Screen[Any], style: Style) -> None:
        super().__init__(screen, TRANSPARENT)
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Segment.split_lines(console.render(self.screen._compositor, options)):
            yield Segment("".join(text for text, _, control in line if not control), self._style)
            yield Segment.line()


class MessageParser:
    """What the terminal's sequences mean, by Textual's own parser.

    The parser raises on a number that it can't read, and takes the keys after a sequence that it
    doesn't know for more of it: another one begins then, and the sequence is dropped.
    """

    def __init__(self) -> None:
        self._parser = XTermParser()

    def messages(self, typed: Typed) -> list[Message]:
        if isinstance(typed, Pasted):
            return [events.Paste(typed.text)]
        if typed == ESCAPE:
            return [events.Key("escape", ESCAPE)]
        if len(typed) > _MAX_SEQUENCE or _UNASKED.match(typed):
            return []
        try:
            found = [*self._parser.feed(typed)]
        except Exception:
            found = []
        if not found:
            before, self._parser = self._parser, XTermParser()
            self._parser.last_x, self._parser.last_y = before.last_x, before.last_y
            if len(typed) == len(_ALT):
                found += self._parser._sequence_to_key_events(typed[-1], alt=True)
        return [message for message in found if _is_sound(message)]


_ALT: Final = f"{ESCAPE}x"
_MAX_SEQUENCE: Final = 32
"""Characters beyond which Textual performs a sequence as keys."""
_UNASKED: Final = late(r"\x1b\[(?:48;.*t|\?2048;.*|<(?:1(?:2[89]|[3-9]\d)|[2-9]\d\d|\d{4,});.*)\Z")
"""Sizes, which are asked of the terminal's device: one of no pixels ends Textual's parser at the
next report of the mouse. Buttons beyond three, which it takes for the left one."""
_MAX_CELLS: Final = 1 << 15


def _is_sound(message: Message) -> bool:
    """Whether the app can use a message."""
    if isinstance(message, events.MouseEvent):
        return max(message.screen_x, message.screen_y) < _MAX_CELLS
    if isinstance(message, events.Key):
        return not any("\ud800" <= char <= "\udfff" for char in message.character or "")
    return True


def press(app: App[Any], key: str) -> None:
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


class ClickableOptions(OptionList):
    """A list that ignores a click on an option that is gone: a search replaces what it offers."""

    async def _on_click(self, event: events.Click) -> None:
        number = event.style.meta.get("option")
        if number is not None and number >= self.option_count:
            event.prevent_default()


def forget_styles() -> None:
    """Forget the colours of what is drawn: Textual's cache of them keeps closed dialogs."""
    StylesCache.get_inner_outer.cache_clear()


class SteadyScreen(Screen[T]):
    """A screen that is laid out at the terminal's size, and draws all that asked for it."""

    def _screen_resized(self, size: Size) -> None:
        """Ignore a size that the terminal no longer has.

        Each layout posts its size to the screen as another message: two sizes under way would
        answer each other endlessly.
        """
        if size == self.app.size:
            super()._screen_resized(size)

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        """Draw what else asked for it: a layout pauses the timer that draws.

        A resize and a new theme lay out a screen from the app's messages, which leave the screen's
        own loop asleep: what it had to draw would wait for the next key.
        """
        super()._refresh_layout(size, scroll)
        if size is not None:
            self.check_idle()


def fire(timer: Timer) -> Timer:
    """A timer of one tick that never skips it.

    Textual skips ticks that are late when the timer starts: another thread, or a stop, between two
    of its lines left the screen without painting until the end.
    """
    timer._skip = False
    return timer


def resume(screen: Screen[Any]) -> None:
    """Lay out and paint a screen that is on top now, once.

    Textual paints a first layout again for each part that has asked for it until then.
    """
    screen.stack_updates += 1
    if screen._size == screen.app.size:
        screen.refresh()
        return
    screen._refresh_layout(screen.app.size)
    if not screen.app._batch_count:
        for each in (screen, *screen.walk_children(Widget)):
            each._layout_required = each._repaint_required = each._scroll_required = False


def without_toasts(app: App[Any]) -> None:
    app._disable_notifications = app._disable_tooltips = True


async def messages_done(pilot: Pilot[Any]) -> None:
    """Wait until the app and each widget wait for their next message.

    Textual sends a message to each to know: that takes most of the time of a key.
    """
    await asyncio.sleep(_TICK_S)
    for _ in range(_MOST_TURNS):
        if all(map(_is_waiting, _pumps_of(pilot.app))):
            return
        await asyncio.sleep(0)
    await pilot._wait_for_screen()


def _pumps_of(app: App[Any]) -> Iterator[MessagePump]:
    yield app
    if app.screen_stack:
        yield from app.screen.walk_children(with_self=True)


def _is_waiting(pump: MessagePump) -> bool:
    if pump._closed or (pump._task is None and not pump._running):
        return True
    queue: Any = pump._message_queue
    return queue.empty() and bool(queue.ready_event._waiters) and pump._pending_message is None


def is_holding_back(app: App[Any]) -> bool:
    return bool(app._batch_count)


def screen_text(app: App[Any]) -> str:
    """The screen as text, after pending layout; lines without trailing spaces."""
    app.screen._on_timer_update()
    strips = app.screen._compositor.render_strips()
    return "".join("".join(each.text for each in strip).rstrip() + "\n" for strip in strips)


def screen_picture(app: App[Any]) -> str:
    """The screen as SVG, on the ground of its theme."""
    return alone(screen_looks(app), *GROUNDS.get(app.theme, GROUNDS["dark"]))


def screen_looks(app: App[Any]) -> list[list[tuple[str, str]]]:
    """The screen's lines as texts, each with its style and the colour behind it."""
    ground, text = GROUNDS.get(app.theme, GROUNDS["dark"])
    strips = app.screen._compositor.render_strips()
    return [[(each.text, _look(each.style, ground, text)) for each in strip] for strip in strips]


def _look(style: Style | None, ground: str, text: str) -> str:
    """The CSS of a text, `|`, and the colour behind it where it has one."""
    if style is None:
        return "|"
    front, back = (
        "" if each is None or each.is_default else each.get_truecolor().hex
        for each in (style.color, style.bgcolor)
    )
    if style.reverse:
        front, back = back or ground, front or text
    if style.dim:
        front = mixed(front or text, back or ground, 0.4)
    css = ([f"fill:{front}"] if front else []) + (["font-weight:bold"] if style.bold else [])
    css += ["text-decoration:underline"] if style.underline else []
    return f"{';'.join(css)}|{back if back != ground else ''}"
