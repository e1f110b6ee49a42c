"""Screens that open over the explorer, and the one before it: choosers, texts, the palette."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, TypeVar

from msgspec import Struct
from rich.console import RenderableType
from rich.text import Text
from textual import events, getters
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList, Static
from textual.widgets.option_list import Option

from chopper_core.columns import Metric
from chopper_core.render.glyphs import Glyphs, bar
from chopper_core.util.demo import is_demo
from chopper_core.util.escape import clean
from chopper_core.util.progress import progress_text, share_done
from chopper_tui.draw.pieces import Pieces, fit
from chopper_tui.draw.theme import Inks
from chopper_tui.textual_internals import (
    ClickableOptions,
    DimmedScreen,
    SteadyScreen,
    forget_styles,
)
from chopper_tui.widgets.pane import Pane

T = TypeVar("T")
Options = Sequence[tuple[str, str, str]]
"""(id, title, explanation) of what can be chosen."""

_MIN_OPTION_CELLS: Final = 69
"""Cells of an option where the screen has them, so that boxes are equally wide."""
_FRAME_CELLS: Final = 7
"""Cells of the box around an option: its border, its padding, the scrollbar."""


class Search(Struct, frozen=True):
    """How a chooser finds more than is in its list."""

    found: Callable[[Sequence[str]], Options]
    """The options for words, the best first."""
    typed: str = ""
    """What is typed at first."""


class Dialog(SteadyScreen[T], ModalScreen[T]):
    """A box over the explorer, closed once; None is no answer."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-high")]  # noqa: RUF012 (as Textual declares it)
    answered: Callable[[T], None] | None = None
    """Takes the answer at once: Textual's own callback comes after the keys that follow."""

    def render(self) -> RenderableType:
        inks: Inks = self.app.inks  # type: ignore[attr-defined]
        below = super().render()
        if isinstance(below, BackgroundScreen):
            return DimmedScreen(below.screen, inks.of("shade"))
        return below

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close with an answer; a late one must not close the screen below."""
        if self.app.screen_stack[-1:] != [self]:
            return AwaitComplete()
        closed = super().dismiss(result)
        if result is not None and self.answered is not None:
            self.answered(result)
        return closed

    def on_unmount(self) -> None:
        forget_styles()

    def action_cancel(self) -> None:
        self.dismiss(None)


class Sought(Dialog[T]):
    """A dialog that shows what matches the text that is typed; `/` begins a text, too."""

    search_text = ""
    is_typing = False
    types_at_once: ClassVar[bool] = True
    """Whether any character begins a text; else only `/` does."""

    def takes_key(self, event: events.Key) -> bool:
        """Type a character, or take the last one back; whether it did."""
        char = event.character
        if event.key == "backspace" and self.is_typing:
            self._type(self.search_text[:-1])
        elif char is None or not event.is_printable:
            return False
        elif char == "/" and not self.is_typing:
            self.is_typing = True
            self._type("")
        else:
            return self.takes_text(char)
        return True

    def takes_text(self, text: str) -> bool:
        """Search for more text, typed or pasted; False where it doesn't begin a search."""
        if not self.is_typing and not self.types_at_once:
            return False
        self.is_typing = True
        self._type(self.search_text + text.lower())
        return True

    def action_leave(self) -> None:
        if self.is_typing:
            self.is_typing = False
            self._type("")
        else:
            self.action_cancel()

    def _type(self, text: str) -> None:
        self.search_text = text
        self.apply_search(text.split())

    def apply_search(self, words: Sequence[str]) -> None:
        raise NotImplementedError

    @property
    def typed(self) -> str:
        return f"  /{self.search_text}" if self.is_typing else ""


class Chooser(Sought[Any]):
    """Options that typing narrows: every character is searched for, none is a key.

    Answers with the id of the chosen option.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("left", "cancel", show=False),
        Binding("ctrl+n", "step(1)", show=False),
        Binding("ctrl+p", "step(-1)", show=False),
        # The list's own pages need lines that it hasn't before it is drawn.
        Binding("pageup", "turn(-1)", show=False, priority=True),
        Binding("pagedown", "turn(1)", show=False, priority=True),
        # Before the list's own, which answers by a message: the next key would overtake it.
        Binding("enter", "take", show=False, priority=True),
        Binding("right", "forward", show=False),
    ]
    list = getters.query_one(OptionList)

    def __init__(
        self,
        title: str,
        options: Options,
        chosen: str | None = None,
        search: Search | None = None,
    ) -> None:
        super().__init__()
        self._title = title
        self._options = self._shown = options
        self._chosen = chosen
        self._search = search
        self._widest = self._aligned = max(len(title) for _, title, _ in options)
        self._longest_why = max(len(why) for _, _, why in options)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.styles.width = self._cells + _FRAME_CELLS
            yield Label(Text(self._title), id="title")
            yield ClickableOptions(*self._made(range(len(self._shown))), compact=True)
            whole = max(len(title) + len(why) for _, title, why in self._options)
            if whole > self._cells and any(why for _, _, why in self._options):
                yield Label(id="about")

    def on_mount(self) -> None:
        keys = [key for key, _, _ in self._options]
        self.list.highlighted = keys.index(self._chosen) if self._chosen in keys else 0
        if self._search is not None and self._search.typed:
            self.takes_text(self._search.typed)

    def on_option_list_option_highlighted(self) -> None:
        self._explain()

    def _explain(self) -> None:
        """Explain the highlighted option in a whole sentence: on its line there may be half."""
        place = self._highlighted
        for label in self.query("#about").results(Label):
            label.update(Text("" if place is None else self._shown[place][2], "dim"))

    @property
    def _cells(self) -> int:
        needed = self._widest + 2 + self._longest_why
        return min(max(needed, _MIN_OPTION_CELLS), option_cells(self.app.size.width))

    def _made(self, places: Iterable[int]) -> Sequence[Option]:
        if self._search is not None:
            titles = (title for _, title, _ in self._shown if len(title) <= self._short)
            self._aligned = max(map(len, titles), default=0)
        return [Option(self._line(place), id=str(place)) for place in places]

    @property
    def _short(self) -> int:
        """The cells of a title that leaves room for its explanation."""
        return self._cells * 3 // 5

    def _line(self, place: int) -> Text:
        _, title, why = self._shown[place]
        if self._search is not None and len(title) > self._short:
            why = ""  # What the entry is comes first; the explanation is below the list.
        if why:
            return _option(f"{title:<{self._aligned}}  ", why, self._cells)
        # A sentence, wrapped and set in below its first word.
        margin = " " * (len(title) - len(title.lstrip("→> ")))
        lines = textwrap.wrap(title, max(self._cells, 1), subsequent_indent=margin)
        return Text("\n".join(lines))

    @property
    def key(self) -> str | None:
        return None if self._highlighted is None else self._shown[self._highlighted][0]

    def action_take(self) -> None:
        if self._highlighted is not None:
            self.dismiss(self.key)

    def action_forward(self) -> None:
        self.action_take()

    def on_option_list_option_selected(self) -> None:
        self.action_take()

    def action_step(self, step: int) -> None:
        if step > 0:
            self.list.action_cursor_down()
        else:
            self.list.action_cursor_up()

    def action_turn(self, pages: int) -> None:
        options = self.list
        if options.highlighted is not None:
            row = options.highlighted + pages * max(options.size.height - 1, 1)
            options.highlighted = max(min(row, options.option_count - 1), 0)

    def apply_search(self, words: Sequence[str]) -> None:
        options = self.list
        options.clear_options()
        options.add_options(self._made(self._found(words)))
        if options.option_count:
            options.highlighted = 0
        else:
            # A list without lines can't turn its pages.
            options.add_option(Option("nothing matches", disabled=True))
        self._explain()
        self.query_one("#title", Label).update(Text(self._title + self.typed))

    def _found(self, words: Sequence[str]) -> Sequence[int]:
        """The places of the options that have the words: those first that say so in their title."""
        if not words:
            self._shown = self._options
            return range(len(self._shown))
        if self._search is not None:
            self._shown = self._search.found(words)
            return range(len(self._shown))
        titled, explained = list[int](), list[int]()
        for at, (_, title, why) in enumerate(self._options):
            if all(word in title.lower() for word in words):
                titled.append(at)
            elif all(word in f"{title} {why}".lower() for word in words):
                explained.append(at)
        return [*titled, *explained]

    @property
    def _highlighted(self) -> int | None:
        option = self.list.highlighted_option
        return None if option is None or option.id is None else int(option.id)


def option_cells(width: int) -> int:
    return width * 96 // 100 - _FRAME_CELLS


class ColumnChooser(Chooser):
    """Columns to switch on and off; answers with the names of the chosen ones, in their order."""

    def __init__(
        self, title: str, chosen: Sequence[Metric], others: Sequence[Metric], glyphs: Glyphs
    ) -> None:
        self._offered = [*chosen, *others]
        options = [
            (each.name, each.title, f"{each.name} {each.definition}") for each in self._offered
        ]
        super().__init__(f"{title}: space chooses, enter takes", options)
        self._order = [each.name for each in chosen]
        self._mark = glyphs.mark

    @property
    def _cells(self) -> int:
        return min(_MIN_OPTION_CELLS, option_cells(self.app.size.width))

    def takes_key(self, event: events.Key) -> bool:
        """Like others, but a space always toggles: columns are searched by one word."""
        if event.key == "space":
            self.on_option_list_option_selected()
            return True
        return super().takes_key(event)

    def action_take(self) -> None:
        self.dismiss(tuple(self._order) or None)

    def action_forward(self) -> None:
        """Enter takes all at once."""

    def on_option_list_option_selected(self) -> None:
        name, place = self.key, self._highlighted
        if name is None or place is None or self.list.highlighted is None:
            return
        if name in self._order:
            self._order.remove(name)
        else:
            self._order.append(name)
        self.list.replace_option_prompt_at_index(self.list.highlighted, self._line(place))

    def _line(self, place: int) -> Text:
        each = self._offered[place]
        mark = self._mark if each.name in self._order else " "
        return _option(f"{mark} {each.title:<{self._widest}}  ", each.definition, self._cells)


def _option(title: str, why: str, width: int) -> Text:
    """An option and its explanation, shortened to the cells that are left."""
    room = width - len(title)
    if room and len(why) > room:
        short = textwrap.shorten(why, max(room, 1), placeholder=" …")
        # Where not even a word fits, its beginning is more useful than a lone ellipsis.
        why = short if len(short) > len(" …") else f"{why[: max(room - 1, 0)]}…"
    return Text.assemble(title, (why, "dim"), no_wrap=True, overflow="crop")


class TourBox(Dialog[int]):
    """One stop of the tour; answers with the steps to go forward (1) or back (-1)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space,n,right,l,j,down", "go(1)", show=False, priority=True),
        Binding("left,p,h,k,up,backspace", "go(-1)", show=False, priority=True),
        Binding("escape,q", "cancel", show=False, priority=True),
    ]

    def __init__(self, title: str, text: str, classes: str = "") -> None:
        super().__init__()
        self.add_class(*classes.split())
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = Content(self._title)
            is_wide = self.app.size.width >= 60
            box.border_subtitle = "⏎ next, ← back, esc ends" if is_wide else "⏎ ← esc"
            yield Static(Text(self._text))

    def render(self) -> RenderableType:
        return ModalScreen.render(self)

    def action_go(self, step: int) -> None:
        self.dismiss(step)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.dismiss(1)


_LOADING_WIDTH: Final = 60


_OF_DEMO: Final = "the generated run of Chopper: its traces are read once"


class LoadingPane(Pane):
    """The step of loading, a bar and the share that is done."""

    step = "opening"
    done = 0
    total = 0

    def __init__(self, run_name: str) -> None:
        super().__init__()
        self._run_name = run_name

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        room = min(_LOADING_WIDTH, max(width - 4, 1))
        margin = (" " * ((width - room) // 2), "text")
        step = progress_text(self.step, self.done, self.total)
        share = share_done(self.done, self.total)
        percent = "" if share is None else f"{100 * share:4.0f} %"
        drawn = bar(share or 0.0, max(room - 8, 0), self.glyphs)
        middle: list[Pieces] = [
            [margin, (fit(f"Chopper  {clean(self._run_name)}", room, self.glyphs), "strong")],
            [margin, (fit(_OF_DEMO if is_demo(self._run_name) else "", room, self.glyphs), "dim")],
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
        yield LoadingPane(self._run_name)

    def report(self, step: str, done: int, total: int) -> None:
        for pane in self.query(LoadingPane):
            pane.put(step=step, done=done, total=total)

    async def action_cancel(self) -> None:
        await self.app.run_action("leave")
