"""Answers that were given, kept with their run: to sort or filter their rows asks nothing anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.views.result import ViewResult

_KEPT: Final = 32
_KEPT_ROWS: Final = 1 << 25
"""Answers times activities of the run: of a large one fewer are kept, but a few; those that hold
sums and no activities don't count."""
_FEW: Final = 4
_LOCK: Final = Lock()


class _Asked(Struct, eq=False):
    """A question, and its answer when there is one."""

    answer: ViewResult | None = None
    lock: Lock = field(default_factory=Lock)
    """Held while it is worked out: who asks the same meanwhile waits for it."""

    @property
    def holds_rows(self) -> bool:
        """Whether it may hold numbers for each of the run's activities."""
        nodes = None if self.answer is None else self.answer.nodes
        return nodes is None or nodes.holds_rows


def known_answer(run: Run, view: View, ask: Callable[[View], ViewResult]) -> ViewResult:
    """The answer to a view's question, asked if nobody did before; whatever is raised is not kept.

    The order of the rows, a filter and the columns to show change nothing of it.
    """
    plain = replace(view, sort="", filter="", columns=())
    with _LOCK:
        answers: OrderedDict[View, _Asked] = run.answers
        asked = answers.get(plain)
        if asked is None:
            asked = answers[plain] = _Asked()
        answers.move_to_end(plain)
        most = max(_FEW, min(_KEPT, _KEPT_ROWS // max(len(run.table), 1)))
        large = [each for each, other in answers.items() if other.holds_rows]
        for each in (*large[:-most], *list(answers)[:-_KEPT]):
            answers.pop(each, None)
    with asked.lock:
        if asked.answer is None:
            asked.answer = ask(plain)
    known = asked.answer

    def opens(row: int) -> View:
        opened = known.opens(row)
        return view if opened == plain else opened

    return replace(known, opens=opens)
