"""Completions of a command or an address, from the registries, the run and the frame."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from msgspec.structs import asdict

from chopper_core.columns import METRICS
from chopper_core.columns.filter import FilterRows, with_headings
from chopper_core.model.address import KEYS, parse, path_text, step_text
from chopper_core.model.memo import LazyMap
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY, LEVELS, SPLITS
from chopper_core.model.view import STATISTICS, SUM, at_level, enter
from chopper_core.render.cells import column_texts
from chopper_core.render.exports import EXPORTS
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.patterns import late, natural_key
from chopper_core.views import SET_VIEWS, VIEWS, view_spec, views_of_one_run
from chopper_core.views.frame import Frame
from chopper_core.views.shared.marks import mark_limits
from chopper_core.views.spec import SeveralRuns, ViewSpec, splits_of
from chopper_tui.export import BENCHMARKS, SNAPSHOTS
from chopper_tui.keymap import ALL, EXPLORE, INFO, Action, find_command

Arguments = Mapping[str, Sequence[str]]
"""Action → its arguments; `ACTION…` → the arguments after the first."""
Addresses = Callable[[str], Sequence[str]]
MORE: Final = "…"
ADDRESSED: Final = "go"
FILED: Final = ("open", "report")
"""Actions whose argument is a file or a directory."""
_PARTS: Final = late(r"(.*[ ,?&])([^ ,?&]*)", re.DOTALL)
_ORDER_OPTION: Final = late(r"[?&](order=[^&]*)")
_PATH_STEP: Final = late(r"(?P<before>(?:.*/)?)(?P<level>[a-z]*)(?P<equals>=?)(?P<label>.*)")
_LISTS: Final = ("columns", "order", "over")
_READ_OPTIONS: Final = ("clock", "gpu", "hardware", "parallel")
"""Options of reading files; the run is open already."""
_PLAIN: Final = late(r"(?:\w+:)?[\w.-]+")
_SHARES: Final = ("0.1%", "0.5%", "1%", "5%")
_MAX_OFFERED: Final = 500
_MAX_LISTED: Final = 10_000
"""Entries of a directory that are looked at: one on a network may hold millions."""


def arguments_of(run: Run, frame: Frame) -> Arguments:
    from chopper_tui.draw.theme import THEMES  # It imports Textual, and `chopper keys` must not.

    view = frame.view
    titles = [column.title.replace(" ", "") for column in frame.columns]
    known = view_spec(view.name) if view.name else None
    by = () if known is None else splits_of(run, known)
    names = tuple(dict.fromkeys((*_own_columns(frame), *(() if view.name else METRICS))))
    added = (f"+{name}" for name in names)
    columns = (*names, *added, *(f"-{column.name}" for column in frame.columns))
    terms, limits = filter_terms(frame), mark_limits()
    listed: dict[str, tuple[str, ...]] = {
        "view": (*SET_VIEWS, *VIEWS)
        if isinstance(run, SeveralRuns)
        else (EXPLORE, *views_of_one_run(), INFO),
        "at": (),
        **dict.fromkeys(("what_if", "predict"), ("no stragglers", "no host gaps")),
        "measure": (),
        "bench": BENCHMARKS if frame.level == "shape" else (),
        "ascend": tuple(str(depth) for depth in range(len(view.path) + 1)),
        "by": by,
        "of": (*known.figures, ALL) if known is not None and known.of else (),
        "find": tuple(run.table.operations[:_MAX_OFFERED]),
        "filter": terms,
        "filter…": terms,
        "hide": _SHARES,
        "sort": ("own", "name", *(f"-{title}" for title in titles), *titles),
        "columns": ("default", *columns),
        "columns…": columns,
        "pivot": by or view.order[len(view.path) :],
        "stat": tuple(STATISTICS) if frame.over else (SUM,),
        "stat…": LEVELS if frame.over else (),
        "metric": run.signal_names,
        "snapshot": SNAPSHOTS,
        "export": tuple(EXPORTS),
        "report": (),
        "why": tuple(str(gpu.index) for gpu in run.gpus),
        "notes": ("missing", "sources"),
        "explain_term": tuple(column.title for column in frame.columns),
        "open": (),
        "theme": THEMES,
        "limits": ("default", *(f"{name} {a:g} {b:g}" for name, (a, b) in asdict(limits).items())),
    }

    def words(name: str) -> tuple[str, ...]:
        # Of thousands of GPUs only for who asks for them: a command line opens at once.
        return (*run.others, *_baseline_paths(run, frame)) if name == "baseline" else listed[name]

    return LazyMap((*listed, "baseline"), words)


def completions(
    text: str, actions: Sequence[Action], arguments: Arguments, addresses: Addresses = lambda _: []
) -> list[str]:
    verb, space, rest = text.partition(" ")
    if not space:
        found = [action for action in actions if action.verb.startswith(verb)]
        return [action.verb + (" " if action.takes else "") for action in found]
    try:
        action, _ = find_command(actions, verb)
    except UsageError:
        return []
    if action.id == ADDRESSED:
        return [f"{verb} {each}" for each in addresses(rest)]
    if action.id in FILED:
        return [f"{verb} {each}" for each in _file_completions(rest)]
    whole = [f"{verb} {word}" for word in arguments.get(action.id, ()) if word.startswith(rest)]
    parts = _PARTS.fullmatch(rest)
    if parts is None or whole:
        return whole
    more = arguments.get(f"{action.id}{MORE}", ())
    return [f"{verb} {parts[1]}{word}" for word in more if word.startswith(parts[2])]


def _file_completions(text: str) -> list[str]:
    """The names in a directory that begin as typed; those of directories end in a slash."""
    folder, name = os.path.split(text)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted(
                f"{each.name}{os.sep if each.is_dir() else ''}"
                for each in islice(entries, _MAX_LISTED)
                if each.name.startswith(name) and (name or not each.name.startswith("."))
            )
    except OSError:
        return []
    known = filter(str.isprintable, found)
    return [os.path.join(folder, each) for each in islice(known, _MAX_OFFERED)]


def runs_next_to(name: str) -> list[Path]:
    """Directories and stores next to a run's own, by name; others are opened by their path."""
    run = Path(name)
    own = run if run.is_dir() else run.parent
    with suppress(OSError), os.scandir(own.resolve().parent) as entries:
        found = [Path(each.path) for each in islice(entries, _MAX_OFFERED) if each.is_dir()]
        others = [path for path in found if path.name[0] != "." and path != own.resolve()]
        return sorted(others, key=lambda path: natural_key(path.name))
    return []


def filter_terms(frame: Frame) -> tuple[str, ...]:
    """Headings as shown, to be compared, and the words and names to look for."""
    headings, names, words = [], [f"{frame.level}:"], []
    for text in column_texts(frame):
        known, name = frame.values[text.metric.name].words, text.metric.name
        if known is None:
            headings.append(f"{text.header}>")
        else:
            names.append(f"{name}:")
            words += [f"{name}:{word}" for word in known[:_MAX_OFFERED]]
    labels = () if frame.level == ACTIVITY else frame.labels[:_MAX_OFFERED]
    return (*headings, *names, "!", *filter(_PLAIN.fullmatch, (*labels, *words)))


def units_shown(frame: Frame) -> Callable[[str], str]:
    """Makes a filter of what is typed over a frame: numbers are in the units of its headings."""
    headings = {
        each.metric.name: each.header
        for each in column_texts(frame)
        if each.scale.divisor not in (0.0, 1.0)
    }
    own = tuple(each.name for each in frame.columns if each.name not in METRICS)
    rows = FilterRows(frame.level, frame.labels, frame.values.__getitem__, own, frame.columns)
    return lambda text: with_headings(rows, text, headings)


def _own_columns(frame: Frame) -> dict[str, None]:
    return dict.fromkeys(column.name for column in (*frame.columns, *frame.more))


def _baseline_paths(run: Run, frame: Frame) -> tuple[str, ...]:
    """The scope, and the same one on the other GPUs, as `base=` takes them."""
    view = frame.view
    views = [view] if view.path else []
    labels = [str(gpu.index) for gpu in run.gpus]
    if "gpu" in dict(view.scope):
        views += [at_level(view, "gpu", label) for label in labels]
    elif not view.path and view.level == "gpu":
        views += [enter(view, label) for label in labels]
    return tuple(dict.fromkeys(path_text(each) for each in views))


def address_completions(run: Run, frame: Frame, text: str, rest: str = "") -> list[str]:
    """The completions of an address before the cursor; `rest` is the text behind it."""
    place, mark, options = text.rpartition("?")
    if mark:
        return [f"{place}?{each}" for each in _option_completions(run, frame, options)]
    own = frame.view.run
    if isinstance(run, SeveralRuns):
        return [name for name in (own, *run.others) if name.startswith(text)]
    if text and own.startswith(text):
        return [f"{own}:{LEVELS[0]}="]
    start = f"{own}:" if text.startswith(f"{own}:") else ""
    order = _ORDER_OPTION.search(rest)
    found = _path_completions(run, own, text.removeprefix(start), f"?{order[1]}" if order else "")
    return [start + each for each in found]


def _path_completions(run: Run, own: str, path: str, order: str) -> list[str]:
    step = _PATH_STEP.fullmatch(path)
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
    begun = [label for label in labels if label.startswith(typed)][:_MAX_OFFERED]
    return begun or [label for label in labels if typed.lower() in label.lower()][:_MAX_OFFERED]


def _option_completions(run: Run, frame: Frame, text: str) -> Iterable[str]:
    before, mark, last = text.rpartition("&")
    stated = dict(item.partition("=")[::2] for item in before.split("&") if item)
    name = stated.get("view", "")
    asked = view_spec(name) if name in (*VIEWS, *SET_VIEWS) else None
    key, equals, value = last.partition("=")
    if not equals:
        offered = [f"{each}=" for each in KEYS if each not in (*stated, *_READ_OPTIONS)]
        return [before + mark + each for each in offered if each.startswith(key)]
    first, comma, begun = value.rpartition(",") if key in _LISTS else ("", "", value)
    values = _option_values(run, frame, key, asked)
    if key == "base":
        values = [*run.others, *_path_completions(run, frame.view.run, value, "")]
    start = f"{before}{mark}{key}={first}{comma}"
    return [start + each for each in values if each.startswith(begun)]


def _option_values(run: Run, frame: Frame, key: str, asked: ViewSpec | None) -> Sequence[str]:
    is_shown = asked is not None and asked.name == frame.view.name
    names = tuple(_own_columns(frame) if is_shown else METRICS)
    given: dict[str, Sequence[str]] = {
        "view": views_of_one_run(),
        "by": splits_of(run, asked) if asked is not None else (),
        "of": asked.figures if asked is not None else (),
        "order": (*LEVELS, *run.table.coordinates, *SPLITS),
        "over": LEVELS,
        "columns": names,
        "sort": ("name", *(f"-{name}" for name in names), *names),
        "metric": run.signal_names,
        "stat": [name for name in STATISTICS if name != SUM],
    }
    return given.get(key, ())
