"""Which texts are the argument of a command, and which are words of a question after its verb."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from chopper_core.columns import METRICS
from chopper_core.columns.lookup import find_column
from chopper_core.model import address
from chopper_core.model.run import Run
from chopper_core.model.view import parse_time
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.patterns import late
from chopper_core.views.find import names_found
from chopper_core.views.spec import SeveralRuns
from chopper_tui.actions.palette import definition
from chopper_tui.completions import arguments_of
from chopper_tui.keymap import Action

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer

_TERM: Final = late(r"\S+[<>=:]\S*|!\S+")
_FILE: Final = late(r"\S*[./\\]\S*")
_SHARE: Final = late(r"\d+(?:\.\d+)?\s*%?")


def accepts(screen: Explorer, action: Action, argument: str, *, is_cut: bool = False) -> bool:
    """Whether an action takes a text: `sort time` is a command, `sort out the slow kernels` is
    none. After a verb that is cut only what it lists."""
    own = None if is_cut else _ACCEPTED.get(action.id)
    if own is not None:
        return own(screen, argument)
    if action.id in _OF_COLUMNS and _is_column(screen, argument):
        return True
    first = argument.replace(",", " ").split()[0]
    return first in arguments_of(screen.run, screen.frame).get(action.id, ())


_OF_COLUMNS: Final = ("sort", "columns")
"""Actions that take columns by their headings, too, which have spaces."""


def _is_column(screen: Explorer, text: str) -> bool:
    name = text.lstrip("+-")
    return name in METRICS or bool(
        find_column(name, screen.frame.columns) or find_column(name, METRICS.values())
    )


def _is_time(text: str) -> bool:
    try:
        return parse_time("at", text) >= 0
    except UsageError:
        return False


def _is_name(run: Run, text: str) -> bool:
    try:
        return any(names_found(run, text))
    except ChopperError:
        return False


def _is_place(screen: Explorer, text: str) -> bool:
    from chopper_tui.spoken import place_asked

    run = screen.run
    is_row = text in screen.frame.labels or text in run.others
    return is_row or (
        not isinstance(run, SeveralRuns) and place_asked(run, screen.view, text) is not None
    )


def _is_run(text: str) -> bool:
    try:
        run = address.parse(text).run
        return os.path.lexists(os.path.expanduser(run)) or bool(_FILE.fullmatch(run))
    except UsageError:
        return False


def _is_filter(text: str) -> bool:
    return len(text.split()) == 1 or all(map(_TERM.fullmatch, text.split()))


def _are_questions(text: str) -> bool:
    # The first screen needs no graph of steps, which answers them.
    from chopper_core.analyses.asked import is_question, questions_of

    return all(map(is_question, questions_of(text)))


_ACCEPTED: Final[Mapping[str, Callable[[Explorer, str], bool]]] = {
    "ascend": lambda _, text: text.isdecimal(),
    "explain_term": lambda screen, text: definition(screen, text) is not None,
    "at": lambda _, text: _is_time(text),
    "baseline": _is_place,
    "filter": lambda _, text: _is_filter(text),
    "find": lambda screen, text: _is_name(screen.run, text),
    "go": lambda _, text: any(sign in text for sign in ":=?"),
    "hide": lambda _, text: bool(_SHARE.fullmatch(text)),
    "measure": lambda _, text: all(map(_is_time, text.split())),
    "notes": lambda _, text: len(text.split()) == 1,
    "open": lambda _, text: _is_run(text),
    "predict": lambda _, text: _are_questions(text),
    "report": lambda _, text: bool(_FILE.fullmatch(text)),
    "what_if": lambda _, text: _are_questions(text),
    "why": lambda screen, text: text in {str(gpu.index) for gpu in screen.run.gpus},
}
"""Action → whether it takes a text, where that is no choice from a list."""
