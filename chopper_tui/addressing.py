"""How the beginning of an address may go on: with levels and labels, then with options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote

from chopper_core.metrics import METRICS
from chopper_core.model.address import KEYS, TIMES, parse, step_text
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, LEVELS
from chopper_core.model.view import STATISTICS, SUM
from chopper_core.query.frame import Frame
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.spec import ViewSpec

_ORDER: Final = re.compile(r"[?&](order=[^&]*)")
_STEP: Final = re.compile(r"(?P<before>(?:.*/)?)(?P<level>[a-z]*)(?P<equals>=?)(?P<label>.*)")
_LISTS: Final = ("columns", "order", "over")
_READING: Final = ("clock", "gpu", "hardware")
"""How files are read: what is open is read already."""
_MOST: Final = 500
"""Labels that are offered; of more, nobody steps through them."""


def continuations(run: Run, frame: Frame, text: str, rest: str = "") -> list[str]:
    """What the text up to the cursor may become, where a frame of a run is shown.

    `rest` is what follows the cursor: a path is completed in the order of levels given there.
    """
    place, mark, options = text.rpartition("?")
    if mark:
        return [f"{place}?{each}" for each in _options(run, frame, options)]
    own = frame.view.run
    if text and own.startswith(text):
        return [f"{own}:{LEVELS[0]}="]
    start = f"{own}:" if text.startswith(f"{own}:") else ""
    order = _ORDER.search(rest)
    found = _steps(run, own, text.removeprefix(start), f"?{order[1]}" if order else "")
    return [start + each for each in found]


def _steps(run: Run, own: str, path: str, order: str) -> list[str]:
    """What a path may become: the next level, or a label of the one that is begun."""
    step = _STEP.fullmatch(path)
    if step is None:
        return []
    before, level, label = step["before"], step["level"], step["label"]
    try:
        view = parse(f"{own}:{before.rstrip('/')}{order}" if before else f"{own}{order}")
        run.tree(view.order).node(view.path)
        if view.is_leaf:
            return []
        if not step["equals"]:
            return [f"{before}{view.level}="] if view.level.startswith(level) else []
        if level != view.level:
            return []
        labels = run.tree(view.order).children(view.path).labels
    except ChopperError:
        return []
    typed = unquote(label)
    deeper = (*view.order, ACTIVITY)[len(view.path) + 1 :][:1]
    whole = [f"{step_text(level, typed)}/{next_}=" for next_ in deeper if typed in labels]
    others = (step_text(level, each) for each in _matching(labels, typed) if each != typed)
    return [before + each for each in (*whole, *others)]


def _matching(labels: Sequence[str], typed: str) -> list[str]:
    """The labels that begin as typed; where none does, those that hold it."""
    begun = [label for label in labels if label.startswith(typed)][:_MOST]
    return begun or [label for label in labels if typed.lower() in label.lower()][:_MOST]


def _options(run: Run, frame: Frame, text: str) -> Iterable[str]:
    """What the options of an address may become: a key, or a value of the one that is begun."""
    before, mark, last = text.rpartition("&")
    said = dict(item.partition("=")[::2] for item in before.split("&") if item)
    name = said.get("view", "")
    asked = view_spec(name) if name in VIEWS else None
    key, equals, value = last.partition("=")
    if not equals:
        keys = (each for each in _keys(said, asked) if each.startswith(key) and each not in said)
        return [f"{before}{mark}{each}=" for each in keys]
    first, comma, begun = value.rpartition(",") if key in _LISTS else ("", "", value)
    if key == "base":
        values = [*run.others, *_steps(run, frame.view.run, value, "")]
    else:
        values = list(_values(run, frame, key, asked))
    return [
        f"{before}{mark}{key}={first}{comma}{each}" for each in values if each.startswith(begun)
    ]


def _keys(said: dict[str, str], asked: ViewSpec | None) -> Iterable[str]:
    """The keys that mean something beside what is said already."""
    unfit = {*_READING}
    if asked is None or not asked.by:
        unfit.add("by")
    if asked is None or not asked.of:
        unfit.add("of")
    if "stat" not in said:
        unfit.add("over")
    if asked is None or not asked.along_time:
        unfit.update(TIMES if "view" in said else ("at", "mark"))
    return (key for key in KEYS if key not in unfit)


def _values(run: Run, frame: Frame, key: str, asked: ViewSpec | None) -> Sequence[str]:
    names: Sequence[str] = tuple(METRICS)
    if asked is not None and asked.name == frame.view.name:
        names = tuple(
            dict.fromkeys(
                (*(each.name for each in frame.columns), *(each.name for each in frame.more))
            )
        )
    given: dict[str, Sequence[str]] = {
        "view": tuple(VIEWS),
        "by": asked.by if asked is not None else (),
        "of": asked.figures if asked is not None else (),
        "order": LEVELS,
        "over": LEVELS,
        "columns": names,
        "sort": ("name", *(f"-{name}" for name in names), *names),
        "metric": run.signal_names,
        "stat": [name for name in STATISTICS if name != SUM],
    }
    return given.get(key, ())
