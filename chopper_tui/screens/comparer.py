"""The actions that compare: marks, the comparison of the marked rows, the baseline."""

from __future__ import annotations

from chopper_core.model.address import parse_baseline
from chopper_core.model.view import Baseline
from chopper_core.render.cells import baseline_title
from chopper_core.util.errors import UsageError
from chopper_tui.history import changed, compared
from chopper_tui.marks import comparison, mark_of, toggled
from chopper_tui.screens.seeker import Seeker


class Comparer(Seeker):
    """A seeker that compares."""

    def do_mark(self, _: str) -> None:
        """A mark on the cursor's row, or none any more."""
        label = self.table.label
        if self.view.name:
            raise UsageError("what is marked are nodes of the tree; 1 shows it")
        if label is None:
            raise UsageError("there is no row to mark")
        self.marks = toggled(self.marks, mark_of(self.view, label))
        self.show_marks()

    def do_unmark(self, _: str) -> None:
        """No marks at all."""
        if not self.marks:
            raise UsageError("nothing is marked")
        self.marks = ()
        self.show_marks()

    async def do_compare(self, _: str) -> None:
        """The marked rows beside each other."""
        view = comparison(self.marks, self.view, self.table.label)
        if view.path == self.view.path and view.order == self.view.order:
            await self.go(changed(self.here, view), f"{len(self.marks)} marked rows")
            return
        said = f"base {baseline_title(view)}" if view.baseline else f"{len(self.marks)} marked rows"
        await self.go(self.trail_to(view), said)

    async def do_baseline(self, argument: str) -> None:
        """The scope as the baseline of what is looked at next, a given one, or none any more."""
        if argument:
            chosen = parse_baseline(argument, self.view.order)
        elif self.view.baseline is None:
            chosen = Baseline("", self.view.path)
        else:
            await self.go(compared(self.here, None), "no baseline")
            return
        await self.go(compared(self.here, chosen), "baseline set; go to what to compare with it")
