"""The screen while somebody types: a filter, a command, or an address in the breadcrumb's place."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from textual.widgets import Input

from chopper_core.model.run import Run
from chopper_core.model.view import filtered
from chopper_tui import looks
from chopper_tui.addressing import continuations
from chopper_tui.config import AS_IT_COMES, Config
from chopper_tui.history import Columns, Trail
from chopper_tui.screens.explorer import Explorer
from chopper_tui.widgets.address_bar import AddressBar
from chopper_tui.widgets.crumbs import Crumbs, Position
from chopper_tui.widgets.prompt import Prompt
from chopper_tui.widgets.status import KeyLine, Status
from chopper_tui.words import completions, words_of

_OFFERED: Final = 40
"""Completions that are named; nobody reads more."""


class Typist(Explorer):
    """An explorer that takes what is typed."""

    def __init__(
        self,
        run: Run,
        look: looks.Look,
        config: Config = AS_IT_COMES,
        columns: Columns = MappingProxyType({}),
    ) -> None:
        super().__init__(run, look, config, columns)
        self._trail_before_filter: Trail | None = None
        self._filter_text = ""

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while somebody types."""
        prompt = self.query_one(Prompt)
        if prompt.is_open and prompt.sign == "/":
            self._filter_text = event.value
            self.take(self._filter_live)

    def open_prompt(self, sign: str, text: str = "") -> None:
        """Take a filter or a command."""
        words = words_of(self.run, self.frame)

        def complete(text: str, _: str) -> Sequence[str]:
            return completions(text, words, self._addresses)

        if sign == "/":
            self.take(self._begin_filter)
        self.query_one(KeyLine).display = False
        self.query_one(Prompt).open(self, sign, text, None if sign == "/" else complete)

    def close_prompt(self) -> None:
        """Back to the keys."""
        self.query_one(Prompt).close()
        self.query_one(KeyLine).display = self._arranged is None or self._arranged.lines
        self._point_no_more()

    def open_address(self, text: str, cursor: int | None = None) -> None:
        """Take an address in the place of the breadcrumb."""
        path_end = text.rfind("?") if "?" in text else len(text)
        self._show_address(True)
        bar = self.query_one(AddressBar)
        bar.open(self, text, path_end if cursor is None else cursor, self._addresses)

    def close_address(self) -> None:
        """Back to the breadcrumb and the keys."""
        self.query_one(AddressBar).close()
        self._show_address(False)
        self._point_no_more()

    def prompt_entered(self, text: str) -> None:
        """Keep what was typed: a subclass knows what for."""
        raise NotImplementedError

    def prompt_left(self) -> None:
        """Restore what was there before something was typed."""
        if self.query_one(AddressBar).is_open:
            self.close_address()
            self.say("")
            return
        filtering = self.query_one(Prompt).sign == "/"
        self.close_prompt()
        if filtering:
            self.take(self._restore)

    def prompt_offers(self, offered: Sequence[str], place: int) -> None:
        """Show what else completes what is typed."""
        self.say("")
        first, last = min(offered), max(offered)
        shared = first[: next((i for i, c in enumerate(first) if last[i : i + 1] != c), None)]
        begin = max(map(shared.rfind, " ,/?&=:")) + 1
        names = [each[begin:] for each in (*offered[place:], *offered[:place])][:_OFFERED]
        self.query_one(Status).point(f"{place + 1} of {len(offered)}:  {'  '.join(names)}")

    def _addresses(self, text: str, rest: str = "") -> list[str]:
        return continuations(self.run, self.frame, text, rest)

    def _show_address(self, is_open: bool) -> None:
        now = self._arranged
        lines = now is None or now.lines
        marked = self.run.generated is not None and not (now is not None and now.too_small)
        self.query_one("#top").display = lines or marked or is_open
        self.query_one(Crumbs).edit(is_open)
        self.query_one(Position).display = not is_open
        self.query_one(KeyLine).tell(AddressBar.KEYS if is_open else "")

    def _point_no_more(self) -> None:
        self.query_one(Status).point("")
        self.follow()

    def _begin_filter(self) -> None:
        self._trail_before_filter = self.here

    async def _filter_live(self) -> None:
        text = self._filter_text
        if text != self.view.filter or self.query_one(Status).is_error:
            await self.change(filtered(self.view, text))

    async def _restore(self) -> None:
        trail, self._trail_before_filter = self._trail_before_filter, None
        if trail is None:
            return
        self._filter_text = trail[-1].view.filter
        await self.go(trail)
