"""The action that chooses columns, per level, for this session and the next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar, Final

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from chopper_core.metrics import METRICS, Metric, metric_named
from chopper_core.query.differences import underlying
from chopper_core.render.cells import level_title
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.errors import UsageError
from chopper_tui.background import away
from chopper_tui.history import changed
from chopper_tui.remembered import remember_columns
from chopper_tui.screens.comparer import Comparer

DEFAULT: Final = "default"
_WIDTH: Final = 80


class Columner(Comparer):
    """A comparer that chooses columns."""

    async def do_columns(self, argument: str) -> None:
        """The columns of this level."""
        shown = self._shown_columns()
        if argument == DEFAULT:
            await self._take_columns(())
        elif argument:
            await self._take_columns(self._named_columns(argument, shown))
        else:
            own = {column.name: column for column in (*self.frame.columns, *self.frame.more)}
            # What an analysis shows are its own columns; the tree has all figures.
            known = own if self.view.name else own | METRICS
            chosen = [known[name] for name in shown]
            others = [each for name, each in known.items() if name not in shown]
            title = f"Columns of tables by {level_title(self.frame.level)}"
            chooser = ColumnChooser(title, chosen, others, self.table.glyphs)
            self.app.push_screen(chooser, self._columns_chosen)

    def _shown_columns(self) -> tuple[str, ...]:
        """The columns of the view, or of its defaults those that are on the screen."""
        plan = self.table.layout_plan
        names = self.view.columns or (
            tuple(column.name for column in plan.columns) if plan is not None else ()
        )
        if self.view.name:
            return tuple(names)
        return tuple(dict.fromkeys(underlying(name) for name in names))

    def _named_columns(self, text: str, shown: tuple[str, ...]) -> tuple[str, ...]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        columns = list(shown) if all(word[0] in "+-" for word in words) else []
        for word in words:
            name = self._column(word.lstrip("+-"))
            # What columns an analysis has, its answer knows.
            name = name if self.view.name else metric_named(name, self.run.table).name
            if name in columns:
                columns.remove(name)
            if not word.startswith("-"):
                columns.append(name)
        if not columns:
            raise UsageError("a table takes one column at least; :columns default has the usual")
        return tuple(columns)

    def _column(self, text: str) -> str:
        raise NotImplementedError

    def _columns_chosen(self, names: tuple[str, ...] | None) -> None:
        if names:
            self.take(lambda: self._take_columns(names))

    async def _take_columns(self, names: tuple[str, ...]) -> None:
        view = replace(self.view, columns=names)
        await self.go(changed(self.here, view), "the usual columns" if not names else "")
        if self.view != view:
            return
        plan = self.table.layout_plan
        fits = len(plan.columns) if plan is not None else len(names)
        if fits < len(names):
            self.say(f"{fits} of {len(names)} columns have room here; z gives more")
        if view.name:
            return
        self.columns.pop(view.level, None)
        if names:
            self.columns[view.level] = names
        if self.config.remember:
            await away(remember_columns, view.level, names)


class ColumnChooser(ModalScreen[tuple[str, ...] | None]):
    """Answers with the names of the chosen columns in their order, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,left,h", "give_up", show=False),
        Binding("space", "choose", show=False),
        Binding("j", "step(1)", show=False),
        Binding("k", "step(-1)", show=False),
    ]

    def __init__(
        self, title: str, chosen: Sequence[Metric], others: Sequence[Metric], glyphs: Glyphs
    ) -> None:
        """Offer columns, those that are shown now first."""
        super().__init__()
        self._title = title
        self._offered = [*chosen, *others]
        self._order = [each.name for each in chosen]
        self._widest = max(len(each.title) for each in self._offered)
        self._mark = glyphs.mark

    def compose(self) -> ComposeResult:
        """The title over the list."""
        with Vertical(id="box"):
            yield Label(Text(f"{self._title}: space chooses, enter takes"), id="title")
            options = (Option(self._line(each), id=each.name) for each in self._offered)
            yield OptionList(*options, compact=True)

    def on_option_list_option_selected(self) -> None:
        """Answer."""
        self.dismiss(tuple(self._order))

    def action_choose(self) -> None:
        """Choose the highlighted column, as the last one, or no more."""
        options = self.query_one(OptionList)
        if options.highlighted is None:
            return
        each = self._offered[options.highlighted]
        if each.name in self._order:
            self._order.remove(each.name)
        else:
            self._order.append(each.name)
        options.replace_option_prompt_at_index(options.highlighted, self._line(each))

    def action_give_up(self) -> None:
        """Answer with nothing."""
        self.dismiss(None)

    def action_step(self, step: int) -> None:
        """Move the highlight."""
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def _line(self, each: Metric) -> Text:
        mark = self._mark if each.name in self._order else " "
        head = f"{mark} {each.title:<{self._widest}}  "
        room = max(min(self.app.size.width, _WIDTH) - len(head) - 8, 1)
        why = textwrap.shorten(each.definition, room, placeholder=" …")
        return Text.assemble(head, (why, "dim"), no_wrap=True, overflow="crop")
