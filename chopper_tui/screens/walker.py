"""The actions that walk: with the cursor along the rows, and from scope to scope."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from chopper_core.model import address
from chopper_core.model.view import View, filtered, sibling, with_view
from chopper_core.util.errors import ChopperError, UsageError
from chopper_tui import looks
from chopper_tui.background import away
from chopper_tui.history import Trail, beside, changed, charted, into, out
from chopper_tui.screens.typist import Typist
from chopper_tui.widgets.address_bar import AddressBar


class Walker(Typist):
    """A typist that moves."""

    def do_down(self, _: str) -> None:
        """The next row."""
        self.table.move(1)

    def do_up(self, _: str) -> None:
        """The row before."""
        self.table.move(-1)

    def do_page_down(self, _: str) -> None:
        """A page down."""
        self.table.move(self.table.page)

    def do_page_up(self, _: str) -> None:
        """A page up."""
        self.table.move(-self.table.page)

    def do_half_down(self, _: str) -> None:
        """Half a page down."""
        self.table.move(self.table.page // 2)

    def do_half_up(self, _: str) -> None:
        """Half a page up."""
        self.table.move(-(self.table.page // 2))

    def do_first(self, _: str) -> None:
        """The first row."""
        self.table.move_to(0)

    def do_last(self, _: str) -> None:
        """The last row."""
        self.table.move_to(self.table.rows - 1)

    async def do_drill(self, _: str) -> None:
        """Into the row under the cursor."""
        label = self.table.label
        if self.view.name:
            await self._to_evidence()
            return
        if self.view.is_leaf:
            raise UsageError("a single activity has nothing under it")
        if label is None:
            raise UsageError("there is no row to go into")
        await self.go(into(self.here, label, self.columns, self.frame.partner(self.table.cursor)))

    async def do_leave(self, _: str) -> None:
        """To the parent; out of a view back to the tree, from a row's evidence to its row."""
        if self.entries and _same_place(self.entries[-1][0], self.view):
            before = self.entries.pop()[1]
            await self.go(before)
            return
        if self.view.name:
            await self.go(changed(self.here, with_view(self.view, "")))
            return
        if len(self.trail) == 1:
            if self.view.filter:
                await self.change(filtered(self.view, ""))
                return
            raise UsageError("this is the whole run; q quits")
        await self.go(out(self.here))

    async def do_previous_sibling(self, _: str) -> None:
        """The neighbour above."""
        await self._sibling(-1)

    async def do_next_sibling(self, _: str) -> None:
        """The neighbour below."""
        await self._sibling(1)

    async def do_previous_gpu(self, _: str) -> None:
        """The same on the GPU before."""
        await self._gpu(-1)

    async def do_next_gpu(self, _: str) -> None:
        """The same on the GPU after."""
        await self._gpu(1)

    async def do_back(self, _: str) -> None:
        """The view before this one."""
        if self.last_trail is None:
            raise UsageError("there is no view before this one yet")
        await self.go(charted(self.last_trail, self.view.signal))

    def do_go(self, argument: str) -> Awaitable[None] | None:
        """To an address, given or edited in the place of the breadcrumb."""
        if argument:
            return self.go(self._trail_at(argument))
        self.open_address(self.frame.address)
        return None

    def address_entered(self, text: str) -> None:
        """To an edited address; one that leads nowhere can be edited on."""
        self.close_address()
        self.say("")
        if text.strip():
            self.take(lambda: self._go_or_edit(text.strip()))

    async def _go_or_edit(self, text: str) -> None:
        try:
            trail = self._trail_at(text)
            seen = await away(looks.look, self.run, trail[-1].view)
        except ChopperError as error:
            self.open_address(text, len(text))
            self.say(str(error), error=True)
        else:
            self.query_one(AddressBar).remember(text)
            self.arrive(trail, seen)

    def _trail_at(self, argument: str) -> Trail:
        own = self.view.run
        has_run = argument.startswith(own)
        view = address.parse(argument if has_run else f"{own}:{argument.lstrip(':')}")
        if view.run != own:
            raise UsageError(f"{argument} is of another run; this one is {own}")
        if view.overrides and view.overrides != self.view.overrides:
            raise UsageError(f"{own} is not read so; leave, and start with this address")
        return self.trail_to(replace(view, overrides=self.view.overrides))

    async def _to_evidence(self) -> None:
        """To where the row of a view leads; the way up then leads back here."""
        if not self.table.rows:
            raise UsageError("there is no row to go into")
        there = self.frame.target(self.table.cursor)
        if there.run != self.view.run:
            raise UsageError(f"the row is of another run: {there.run}")
        if _same_place(there, self.view):
            raise UsageError("the row leads to nothing more")
        before = self.here
        await self.go(self.trail_to(there))
        if _same_place(self.view, there):
            self.entries.append((there, before))

    async def _sibling(self, step: int) -> None:
        if len(self.trail) < 2:
            raise UsageError("the whole run has no sibling")
        labels = await away(looks.siblings, self.run, self.trail[-2].view)
        view = sibling(self.view, labels, step)
        if view is self.view:
            raise UsageError(f"this is the {'last' if step > 0 else 'first'} of its siblings")
        await self.go(beside(self.here, view))

    async def _gpu(self, step: int) -> None:
        view, message = await away(looks.same_on_gpu, self.run, self.view, step)
        trail = self.trail_to(view)
        here = self.here
        # The parents keep their sort, filter and cursor on the other GPU too.
        parents = tuple(
            replace(old, view=replace(old.view, path=view.path[:depth]), label=view.path[depth])
            for depth, old in enumerate(here[: len(trail) - 1])
        )
        await self.go((*parents, replace(here[len(trail) - 1], view=view)), message)


def _same_place(one: View, other: View) -> bool:
    """Whether two views are of the same node and ask the same of it."""
    return _question(one) == _question(other)


def _question(view: View) -> tuple[object, ...]:
    return view.path, view.order, view.name, view.by, view.of, view.baseline
