"""The actions that ask: another question of the same scope, another split, another figure."""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from msgspec.structs import replace
from rich.text import Text

from chopper_core.metrics import METRICS
from chopper_core.model.view import View, with_view
from chopper_core.util.errors import UsageError
from chopper_core.views import view_spec, view_specs
from chopper_tui.actions.action import ALL, EXPLORE, INFO, SCREENS
from chopper_tui.background import away
from chopper_tui.history import Place, tallied
from chopper_tui.screens.chooser import Chooser
from chopper_tui.screens.columner import Columner
from chopper_tui.screens.reader import Reader

_TREE: Final = (EXPLORE, "Explore", "the scope's children")


class Asker(Columner):
    """A columner that asks."""

    async def do_view(self, argument: str) -> None:
        """A view of the scope by its digit or its name."""
        if not argument:
            options = [_TREE] + [(each.name, each.title, each.question) for each in view_specs()]
            self.app.push_screen(
                Chooser("View", options, self.view.name or EXPLORE), self._view_chosen
            )
            return
        names = SCREENS.get(argument, (argument,))
        current = self.view.name or EXPLORE
        if current in names:
            name = names[(names.index(current) + 1) % len(names)]
        else:
            name = self.latest.get(argument, names[0])
        if argument in SCREENS:
            self.latest[argument] = name
        if name == INFO:
            await self._tell()
            return
        asked = "" if name == EXPLORE else view_spec(name).name
        await self._ask(asked)
        if self.view.name != asked and argument in SCREENS:
            # What can't be asked here doesn't stand in the way of the digit's next one.
            self.latest[argument] = names[(names.index(name) + 1) % len(names)]

    async def do_by(self, argument: str) -> None:
        """Another split of the view's rows."""
        choices = view_spec(self.view.name).by if self.view.name else ()
        if not choices:
            raise UsageError("this view has no other split; p splits the tree")
        if argument:
            await self.change(replace(self.view, by=argument, filter="", sort="", columns=()))
            return
        options = [(choice, choice, "") for choice in choices]
        chosen = self.view.by or self.frame.by or choices[0]
        self.app.push_screen(Chooser("Split the view by", options, chosen), self._by_chosen)

    async def do_of(self, argument: str) -> None:
        """Another figure of the view."""
        known = view_spec(self.view.name) if self.view.name else None
        if known is None or not known.of:
            raise UsageError("this view is of nothing that could be chosen")
        if argument:
            await self.change(replace(self.view, of="" if argument == ALL else argument))
            return
        if not known.figures:
            self.say(f"of what: {known.of}, or {ALL}")
            self.open_prompt(":", f"of {self.view.of}")
            return
        figures = [METRICS[name] for name in known.figures]
        options = [(each.name, each.title, each.definition) for each in figures]
        self.app.push_screen(Chooser("Figure", options, self.view.of), self._of_chosen)

    async def _another(self) -> None:
        """Another figure, where the view takes any, else another picture."""
        if view_spec(self.view.name).figures:
            await self.do_of("")
        else:
            self.next_picture()

    async def _ask(self, name: str) -> None:
        """Another question of the same scope; a view that was left is as it was."""
        here = self.here
        self.left[key_of(self.view)] = here[-1]
        view = with_view(self.view, name)
        place = self.left.get(key_of(view), Place(view))
        await self.go(tallied((*here[:-1], place), view))

    async def _tell(self) -> None:
        from chopper_core.render import info

        width = max(self.size.width - 8, 20)
        told = await away(info.as_text, self.run)
        text = Text()
        for line in told.splitlines():
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            text.append("\n".join(wrap(line, width, subsequent_indent=indent)) + "\n")
        self.app.push_screen(Reader("Info", text))

    def _view_chosen(self, name: str | None) -> None:
        if name is not None:
            self.take(lambda: self._ask("" if name == EXPLORE else name))

    def _by_chosen(self, choice: str | None) -> None:
        if choice is not None:
            self.take(lambda: self.do_by(choice))

    def _of_chosen(self, name: str | None) -> None:
        if name is not None:
            self.take(lambda: self.do_of(name))


def key_of(view: View) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What tells the views apart that are kept as they were left."""
    return view.name, view.order, view.path
