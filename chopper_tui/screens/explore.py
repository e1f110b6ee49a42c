"""The Explore screen: with its parents, one method `do_<id>` for each action of the registry."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from textwrap import wrap
from typing import ClassVar, Final

from msgspec.structs import replace
from rich.text import Text
from textual.binding import BindingType

from chopper_core.metrics import METRICS
from chopper_core.model.view import STATISTICS, SUM, as_statistic, filtered, pivot, sorted_by
from chopper_core.query.statistic import instance_levels
from chopper_core.render.cells import (
    clean,
    display_name,
    level_title,
    scale_title,
    statistic_title,
)
from chopper_core.util.errors import UsageError
from chopper_tui import looks
from chopper_tui.actions import ACTIONS, TYPED, parse_command
from chopper_tui.actions.action import MOVE
from chopper_tui.background import away
from chopper_tui.draw.figures import detail as detail_of
from chopper_tui.draw.theme import THEMES
from chopper_tui.history import charted, columns_for, tallied
from chopper_tui.keys import bindings_of
from chopper_tui.printing import printed
from chopper_tui.screens.arrangement import CHARTS
from chopper_tui.screens.chooser import Chooser, signal_options
from chopper_tui.screens.reader import Reader
from chopper_tui.screens.timekeeper import Timekeeper
from chopper_tui.snapshot import is_picture, write_snapshot
from chopper_tui.terminal import has_clipboard
from chopper_tui.widgets.address_bar import AddressBar
from chopper_tui.widgets.detail import full_detail
from chopper_tui.widgets.prompt import Prompt
from chopper_tui.widgets.status import Status, untold

_VIEWS: Final = {action.id: action.view for action in ACTIONS}
_AT_ONCE: Final = frozenset(
    ("quit", "suspend", *(action.id for action in ACTIONS if action.group == MOVE))
)
"""What waits for no step that takes long."""
_CLIPBOARD_BYTES = 70_000
"""What terminals take over OSC 52 without dropping it."""


class ExploreScreen(Timekeeper):
    """The tree: a table of the scope's children, and what is known of them."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(ACTIONS)]

    def action_perform(self, action_id: str, argument: str = "") -> None:
        """Do an action of the registry, after those before it.

        What opens the prompt does so at once: the keys that follow are its text already. While a
        step takes long the cursor moves on the screen that is there, and the way up gives it up.
        """

        def step() -> object:
            self.say("")
            return getattr(self, f"do_{action_id}")(argument)

        if self.is_long and action_id in _AT_ONCE:
            getattr(self, f"do_{action_id}")(argument)
        elif self.is_long and action_id == "leave":
            self.give_up()
        elif action_id in TYPED and not argument:
            step()
        else:
            self.take(step)  # type: ignore[arg-type]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of a view hold in that view alone."""
        if action != "perform" or not parameters:
            return True
        view = _VIEWS.get(str(parameters[0]), "")
        return not view or view == self.view.name

    def on_crumbs_clicked(self) -> None:
        """A click on the breadcrumb edits it."""
        self.action_perform("go")

    def on_frame_table_opened(self) -> None:
        """A click on the cursor's row goes into it."""
        self.action_perform("drill")

    def prompt_entered(self, text: str) -> None:
        """Keep the filter, do the command, or go to the address."""
        if self.query_one(AddressBar).is_open:
            self.address_entered(text)
            return
        prompt = self.query_one(Prompt)
        if text.strip():
            prompt.remember(text)
        self.close_prompt()
        if prompt.sign == "/":
            self.sought = text if text.strip() else self.sought
            self._filter_text = text
            self.take(self._filter_live)
        elif text.strip():
            self.take(lambda: self._command(text))

    def do_filter(self, argument: str) -> Awaitable[None] | None:
        """A filter, typed or given."""
        if argument:
            return self.change(filtered(self.view, argument))
        self._filter_text = "" if self.is_busy else self.view.filter
        self.open_prompt("/", self._filter_text)
        return None

    async def do_sort(self, argument: str) -> None:
        """An order of the rows, chosen or given."""
        if argument:
            await self.change(sorted_by(self.view, self._column(argument)))
            return
        frame = self.frame
        options = [("", "own order", f"by {level_title(frame.level)}, as in the run")]
        options.append(("name", "name", "by the alphabet"))
        options += [(f"-{c.name}", c.title, c.definition) for c in frame.columns]
        current = frame.sort if frame.sort in [key for key, _, _ in options] else f"-{frame.sort}"
        self.app.push_screen(Chooser("Sort by", options, current), self._sort_chosen)

    async def do_sort_left(self, _: str) -> None:
        """Sort by the column before."""
        await self._shift_sort(-1)

    async def do_sort_right(self, _: str) -> None:
        """Sort by the column after."""
        await self._shift_sort(1)

    async def do_reverse(self, _: str) -> None:
        """Turn the order round."""
        sort = self.frame.sort or "name"
        turned = sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"
        await self.change(sorted_by(self.view, turned))

    async def do_pivot(self, argument: str) -> None:
        """Another level next."""
        if self.view.name:
            await self.do_by(argument)
            return
        rest = self.view.order[len(self.view.path) :]
        if argument:
            if argument not in rest:
                raise UsageError(f"the levels below this scope are {', '.join(rest) or 'none'}")
            await self._pivot(argument)
            return
        if len(rest) < 2:
            raise UsageError("there is no other level to split this scope by")
        options = [
            (level, level_title(level), "then " + ", ".join(r for r in rest if r != level))
            for level in rest
        ]
        self.app.push_screen(Chooser("Split the scope by", options, rest[0]), self._pivot_chosen)

    async def do_stat(self, argument: str) -> None:
        """A statistic over the instances of each row."""
        if not self.frame.over and argument != SUM:
            raise UsageError(
                f"the view {self.view.name} works its figures out for each row as a whole: "
                "no statistic applies"
            )
        if argument:
            name, _, over = argument.partition(" ")
            levels = [level.strip() for level in over.split(",") if level.strip()]
            await self._as_statistic(name, levels)
            return
        options = [(name, name, meaning) for name, meaning in STATISTICS.items()]
        level = self.frame.level if self.view.name else ""
        over = ", ".join(instance_levels(replace(self.view, over=()), level))
        title = f"Figures as a statistic, one instance per {over}"
        self.app.push_screen(Chooser(title, options, self.view.stat or SUM), self._stat_chosen)

    async def do_metric(self, argument: str) -> None:
        """Another signal over time; in a view another figure or picture."""
        if self.view.name and not argument and not self.is_along_time:
            await self._another()
            return
        if argument:
            await self._chart(argument)
            return
        options = await away(signal_options, self.run)
        self.app.push_screen(Chooser("Chart", options, self.frame.signal.name), self._metric_chosen)

    async def do_next_metric(self, _: str) -> None:
        """The signal after this one; in a view its next picture."""
        if self.view.name and not self.is_along_time:
            self.next_picture()
            return
        await self._chart(looks.next_signal(self.run, self.frame.signal.name))

    def do_names(self, _: str) -> None:
        """Whole names or short ones."""
        table = self.table
        table.full_names = not table.full_names
        table.show(self.frame, self.look.signals, table.cursor, table.offset_of_cursor)

    async def do_detail(self, _: str) -> None:
        """The detail over the screen."""
        if not self.table.rows:
            raise UsageError("there is no row")
        row = self.table.cursor
        detail = await away(detail_of, self.run, self.frame, row)
        width = min(self.size.width * 96 // 100 - 6, 100)
        text = Text()
        for line in full_detail(detail, width, self.table.glyphs):
            text.append("".join(piece for piece, _ in line).rstrip() + "\n")
        for note in untold(self.frame):
            text.append("\n" + "\n".join(wrap(f"note: {clean(note)}", width)))
        name = display_name(detail.label, detail.level)
        self.app.push_screen(Reader(f"{level_title(detail.level)} {name}"[:width], text))

    def do_zoom(self, _: str) -> None:
        """The table alone, or all."""
        self.zoom = not self.zoom
        self.fit_parts()

    def do_chart(self, _: str) -> None:
        """The next size of the chart."""
        self.zoom = False
        self.chart = CHARTS[(CHARTS.index(self.chart) + 1) % len(CHARTS)]
        self.fit_parts()
        self.say(f"chart {self.chart}")

    def do_copy_row(self, _: str) -> None:
        """The row to the clipboard."""
        frame, row = self.frame, self.table.cursor
        if not len(frame):
            raise UsageError("there is no row to copy")
        figures = ("" if value is None else str(value) for value in frame.row(row).values())
        cells = [clean(frame.labels[row]), *figures, clean(frame.addresses(row))]
        self._copy("\t".join(cells), "the row")

    async def do_copy_view(self, _: str) -> None:
        """The table to the clipboard."""
        self._copy(await away(printed, self.frame), "the view")

    async def do_snapshot(self, argument: str) -> None:
        """The table to a file."""
        picture = self.app.export_screenshot() if is_picture(argument) else ""
        path = await away(write_snapshot, self.run, self.frame, argument, picture)
        self.say(f"wrote {path}")

    def do_command(self, _: str) -> None:
        """A command."""
        self.open_prompt(":")

    def do_help(self, _: str) -> None:
        """The help."""
        from chopper_tui.screens.help import help_screen

        self.app.push_screen(help_screen(self.config.actions, self.frame, self.size.width))

    def do_theme(self, argument: str) -> None:
        """The colours."""
        if argument and argument not in THEMES:
            raise UsageError(f"no colours {argument!r}; there are {', '.join(THEMES)}")
        following = THEMES[(THEMES.index(self.app.theme) + 1) % len(THEMES)]
        self.app.theme = argument or following
        self.say(f"colours {self.app.theme}")

    def do_redraw(self, _: str) -> None:
        """The whole screen anew."""
        self.app.clear_notifications()
        self.refresh(layout=True)

    def do_suspend(self, _: str) -> None:
        """To the shell, until it is told to go on."""
        self.app.action_suspend_process()

    def do_quit(self, _: str) -> None:
        """Leave."""
        self.app.exit()

    async def _command(self, text: str) -> None:
        action, argument = parse_command(text)
        pending = getattr(self, f"do_{action.id}")(argument)
        if pending is not None:
            await pending

    async def _shift_sort(self, step: int) -> None:
        plan = self.table.layout_plan
        shown = [column.name for column in plan.columns] if plan else []
        names = ["name", *shown]
        current = self.frame.sort.removeprefix("-")
        position = names.index(current) if current in names else (-1 if step > 0 else 1)
        name = names[(position + step) % len(names)]
        await self.change(sorted_by(self.view, name if name == "name" else f"-{name}"))

    def _column(self, text: str) -> str:
        """The sort for what somebody typed: a name or a title, perhaps with a minus."""
        if text in ("own", "none"):
            return ""
        sign, name = ("-", text[1:]) if text.startswith("-") else ("", text)
        for column in self.frame.columns:
            if name in (column.title, column.title.replace(" ", "")):
                return sign + column.name
        known = {metric.title.replace(" ", ""): metric.name for metric in METRICS.values()}
        return sign + known.get(name.replace(" ", ""), name)

    def _sort_chosen(self, sort: str | None) -> None:
        if sort is not None:
            self.take(lambda: self.change(sorted_by(self.view, sort)))

    def _pivot_chosen(self, level: str | None) -> None:
        if level is not None:
            self.take(lambda: self._pivot(level))

    async def _pivot(self, level: str) -> None:
        view = pivot(self.view, level)
        await self.change(replace(view, columns=columns_for(level, self.view, self.columns)))

    def _stat_chosen(self, name: str | None) -> None:
        if name is not None:
            self.take(lambda: self._as_statistic(name, ()))

    async def _as_statistic(self, name: str, over: Sequence[str]) -> None:
        view = as_statistic(self.view, name, over)
        await self.go(tallied(self.here, view))
        if not self.query_one(Status).is_error:
            title = statistic_title(self.frame)
            self.say(f"figures are the {title}" if title else "sums")

    def _metric_chosen(self, name: str | None) -> None:
        if name is not None:
            self.take(lambda: self._chart(name))

    async def _chart(self, name: str) -> None:
        signal = await away(self.run.signal, name)
        await self.go(charted(self.here, signal.name), f"chart {scale_title(signal)}")

    def _copy(self, text: str, what: str) -> None:
        if not has_clipboard():
            raise UsageError(f"this terminal has no clipboard for {what}; P writes a file")
        size = len(text.encode())
        if size > _CLIPBOARD_BYTES:
            raise UsageError(f"{what} is too large for the clipboard ({size} bytes); P writes it")
        self.app.copy_to_clipboard(text)
        self.say(f"copied {what} ({size} bytes) through the terminal")
