"""What may follow the verbs of commands, for Tab: from the registries and the frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from chopper_core.metrics import METRICS
from chopper_core.model.address import path_text
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, LEVELS
from chopper_core.model.view import STATISTICS, SUM, at_level, enter
from chopper_core.query.frame import Frame
from chopper_core.util.errors import UsageError
from chopper_core.views import VIEWS, view_spec
from chopper_tui.actions import ACTIONS, parse_command
from chopper_tui.actions.action import ALL, EXPLORE, INFO
from chopper_tui.draw.theme import THEMES
from chopper_tui.snapshot import SNAPSHOTS

Words = Mapping[str, Sequence[str]]
"""Action → what may follow it; `ACTION…` → what may follow that."""
Addresses = Callable[[str], Sequence[str]]
"""What the beginning of an address may become."""
MORE: Final = "…"
ADDRESSED: Final = "go"
"""The action that takes an address."""
_PARTS: Final = re.compile(r"(.*[ ,?&])([^ ,?&]*)", re.DOTALL)
_PLAIN: Final = re.compile(r"[\w.-]+")
"""Labels that mean themselves as a term of a filter."""
_SHARES: Final = ("0.1%", "0.5%", "1%", "5%")
_MOST: Final = 500
"""Labels that are offered; of more, nobody steps through them."""


def words_of(run: Run, frame: Frame) -> dict[str, tuple[str, ...]]:
    """What may follow the verbs where a frame of a run is shown."""
    view = frame.view
    titles = [column.title.replace(" ", "") for column in frame.columns]
    known = view_spec(view.name) if view.name else None
    by = () if known is None else known.by
    own = (column.name for column in (*frame.columns, *frame.more))
    names = tuple(dict.fromkeys((*own, *(() if view.name else METRICS))))
    labels = (
        () if frame.level == ACTIVITY else tuple(filter(_PLAIN.fullmatch, frame.labels[:_MOST]))
    )
    terms = (*(f"{title}>" for title in titles), f"{frame.level}:", "!")
    signals = run.signal_names
    return {
        "view": (EXPLORE, *VIEWS, INFO),
        "at": (),
        "by": by,
        "of": (*known.figures, ALL) if known is not None and known.of else (),
        "find": tuple(run.table.operations[:_MOST]),
        "filter": (*terms, *labels),
        "filter…": (*terms, *labels),
        "hide": _SHARES,
        "sort": ("own", "name", *(f"-{title}" for title in titles), *titles),
        "columns": ("default", *names, *(f"+{name}" for name in names), *_dropped(frame)),
        "columns…": (*names, *(f"+{name}" for name in names), *_dropped(frame)),
        "pivot": by or view.order[len(view.path) :],
        "stat": tuple(STATISTICS) if frame.over else (SUM,),
        "stat…": LEVELS if frame.over else (),
        "baseline": (*run.others, *_paths(run, frame)),
        "metric": signals,
        "snapshot": SNAPSHOTS,
        "theme": THEMES,
    }


def completions(text: str, words: Words, addresses: Addresses = lambda _: []) -> list[str]:
    """What a command may become: its verb, or its argument among the words for the action."""
    verb, space, rest = text.partition(" ")
    if not space:
        found = [action for action in ACTIONS if action.verb.startswith(verb)]
        return [action.verb + (" " if action.takes else "") for action in found]
    try:
        action, _ = parse_command(verb)
    except UsageError:
        return []
    if action.id == ADDRESSED:
        return [f"{verb} {each}" for each in addresses(rest)]
    whole = [f"{verb} {word}" for word in words.get(action.id, ()) if word.startswith(rest)]
    parts = _PARTS.fullmatch(rest)
    if parts is None or whole:
        return whole
    more = words.get(f"{action.id}{MORE}", ())
    return [f"{verb} {parts[1]}{word}" for word in more if word.startswith(parts[2])]


def _dropped(frame: Frame) -> tuple[str, ...]:
    return tuple(f"-{column.name}" for column in frame.columns)


def _paths(run: Run, frame: Frame) -> tuple[str, ...]:
    """The scope, and the same one on the other GPUs, as `base=` takes them."""
    view = frame.view
    views = [view] if view.path else []
    labels = [str(gpu.index) for gpu in run.gpus]
    if "gpu" in dict(view.scope):
        views += [at_level(view, "gpu", label) for label in labels]
    elif not view.path and view.level == "gpu":
        views += [enter(view, label) for label in labels]
    return tuple(dict.fromkeys(path_text(each) for each in views))
