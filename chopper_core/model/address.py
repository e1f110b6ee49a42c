"""A view written as text: `RUN[:level=label/…][?key=value&…]`, and back."""

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePath
from urllib.parse import quote as plain_quote
from urllib.parse import unquote as plain_unquote

from msgspec.structs import astuple, replace

from chopper_core.model.overrides import joined, parse_overrides
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.table import ACTIVITY, LEVELS, SPLIT_PATTERN, quoted_cycles
from chopper_core.model.view import Baseline, View, Window, as_statistic, complete_order, parse_time
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.patterns import late

# A path may have bytes that are no UTF-8.
quote = partial(plain_quote, errors="surrogateescape")
unquote = partial(plain_unquote, errors="surrogateescape")
_LEVEL_OF = {
    level[:length]: level
    for level in (*LEVELS, ACTIVITY, *DIMENSIONS)
    for length in range(2, len(level) + 1)
}
"""The levels by their names and abbreviations: `it` is iteration."""
_LEVEL = "|".join((SPLIT_PATTERN, *sorted(_LEVEL_OF, key=len, reverse=True)))
_PATH_START = late(rf":(?=(?:{_LEVEL})=)")
_ANY_STEP = late(r":([A-Za-z_]+)=")
_FIRST_STEP = late(rf"(?:{_LEVEL})=")
_STEP = late(rf"/(?=(?:{_LEVEL})=)")
KEYS = (
    "view", "by", "of", "order", "columns", "sort", "filter", "metric", "base", "stat",
    "over", "cut", "clock", "gpu", "hardware", "parallel", "base_parallel", "set", "name",
    "predicted", "from", "to", "at", "mark",
)  # fmt: skip
TOTAL = "total"
"""`base=total`: figures that add up are totals. As a baseline, a run of this name is escaped."""
_TOTALS = "base "
"""The key of the options that it has; the baseline has the other."""
_TREE = "explore"
"""The name of the tree as a view, which needs none."""
TIMES = ("from", "to", "at", "mark")
"""The keys of a time window."""
_ANY = "R"
"""A name for a run whose name doesn't matter."""
_PLAIN = "(),<>:*+[]{}@~!;|"
"""Characters of labels that need no escape, in addition to letters, digits and `_.-~`."""


def parse(address: str) -> View:
    rest, options = _split_options(quoted_cycles(address))
    run, path_text = _split_path(rest)
    if not run:
        raise UsageError(f"the address {address!r} names no run before the ':'")
    order = complete_order(options["order"].split(",")) if options.get("order") else LEVELS
    columns = tuple(name for name in options.get("columns", "").split(",") if name)
    over = [level for level in options.get("over", "").split(",") if level]
    if over and not options.get("stat"):
        raise UsageError("over= needs stat=: it sets the instances of a statistic")
    cut = options.get("cut", "")
    if cut not in ("", "0", "1"):
        raise UsageError(f"cut= takes 1 or 0, not {cut!r}")
    view = View(
        run=run,
        path=_parse_path(path_text, order),
        order=order,
        columns=columns,
        sort=options.get("sort", ""),
        filter=options.get("filter", ""),
        signal=options.get("metric", ""),
        baseline=parse_baseline(options["base"], order) if options.get("base") else None,
        name="" if options.get("view") == _TREE else options.get("view", ""),
        by=options.get("by", ""),
        of=options.get("of", ""),
        overrides=parse_overrides(options),
        window=_parse_window(options),
        cut=cut == "1",
        is_total=_TOTALS in options,
    )
    return as_statistic(view, options["stat"], over) if options.get("stat") else view


def parse_below(text: str) -> View:
    """The view of an address without its run; raises UsageError where it is neither a path nor
    options."""
    separator = "" if not text or text[0] in ":?" else ":"
    view = parse(f"{_ANY}{separator}{text}")
    if view.run == _ANY:
        return view
    raise UsageError(
        f"{text!r} is neither a path below a run, such as gpu=0/iteration=11, nor options after a "
        "question mark, such as ?view=kernels"
    )


def is_below(text: str) -> bool:
    """Whether an address names no run: it is a path below one, options, or nothing."""
    return text[:1] in ("", ":", "?") or bool(_FIRST_STEP.match(text))


def nothing_at(path: PurePath | str) -> ChopperError:
    """The error of a run that doesn't exist: its name may be an address with an unknown level."""
    if unknown := _ANY_STEP.search(str(path)):
        there = ", ".join((*LEVELS, *DIMENSIONS))
        return UsageError(f"unknown level {unknown[1]!r} in {str(path)!r}; the levels are {there}")
    return DataError(f"{path} does not exist.")


def render(view: View) -> str:
    """The shortest address that `parse` turns into the same view."""
    path = path_text(view)
    options = {
        "view": quote(view.name, safe=_PLAIN),
        "by": quote(view.by, safe=_PLAIN),
        "of": quote(view.of, safe=_PLAIN),
        "order": ",".join(_order_prefix(view.order)),
        "columns": ",".join(view.columns),
        "sort": view.sort,
        "filter": quote(view.filter, safe=_PLAIN),
        "metric": quote(view.signal, safe=_PLAIN),
        "base": _baseline(view),
        _TOTALS: TOTAL if view.is_total else "",
        "stat": view.stat,
        "over": ",".join(view.over) if view.stat else "",
        "cut": "1" if view.cut else "",
        # Names are quoted twice: as parts of a list and as an option.
        "clock": quote(view.overrides.clocks_text(), safe=_PLAIN + "=/"),
        "gpu": quote(view.overrides.gpus_text(), safe=_PLAIN + "=/"),
        "hardware": quote(view.overrides.hardware, safe=_PLAIN),
        "parallel": quote(view.overrides.parallel, safe=_PLAIN + "="),
        "base_parallel": quote(view.overrides.base_parallel, safe=_PLAIN + "="),
        "set": quote(joined(view.overrides.settings), safe=_PLAIN + "=/"),
        "name": quote(joined(view.overrides.names), safe=_PLAIN + "=/"),
        "predicted": quote(view.overrides.predicted, safe=_PLAIN),
        **{
            key: f"{time}ns"
            for key, time in zip(TIMES, astuple(view.window), strict=True)
            if time is not None
        },
    }
    query = "&".join(f"{key.strip()}={value}" for key, value in options.items() if value)
    # A run's own name may look like an address.
    mark = ":" if path or view.run.endswith(":") or _split_path(view.run)[1] else ""
    return f"{view.run}{mark}{path}" + (f"?{query}" if query or "?" in view.run else "")


def _split_path(text: str) -> tuple[str, str]:
    """The run and the path of an address without its options; a path neither has `:LEVEL=` nor
    ends with a colon.
    """
    starts = [] if text.endswith(":") else [*_PATH_START.finditer(text)]
    if not starts:
        return text.removesuffix(":"), ""
    return text[: starts[-1].start()], text[starts[-1].end() :]


def parse_baseline(text: str, order: tuple[str, ...] = LEVELS) -> Baseline:
    """Parse `base=`: `gpu=0/…` in the same run, or another run, optionally with a path."""
    if _FIRST_STEP.match(text):
        return Baseline("", _parse_path(text, order))
    if text.endswith(":"):
        return Baseline(text[:-1], ())
    run, path = _split_path(text)
    return Baseline(run, _parse_path(path, order)) if path else Baseline(text)


def _parse_window(options: dict[str, str]) -> Window:
    times = [parse_time(key, options[key]) if options.get(key) else None for key in TIMES]
    window = Window(*times)
    if (window.at_ns, window.mark_ns) != (None, None) and not options.get("view"):
        raise UsageError("at= and mark= need a view along time: view=timeline")
    return window


def path_text(view: View) -> str:
    text = "/".join(step_text(level, label) for level, label in view.scope)
    return f"{text[:-1]}%3A" if text.endswith(":") else text


def step_text(level: str, label: str) -> str:
    return f"{level}={quote(label, safe=_PLAIN)}"


def _baseline(view: View) -> str:
    """The baseline as an option; its path is quoted twice, as a path and as an option."""
    if view.baseline is None:
        return ""
    if view.baseline.path is None:
        text = quote(view.baseline.run, safe=_PLAIN + "/")
        return f"%{ord(TOTAL[0]):x}{TOTAL[1:]}" if text == TOTAL else text
    path = path_text(replace(view, path=view.baseline.path))
    run = f"{view.baseline.run}:" if view.baseline.run or not path else ""
    return quote(run + path, safe=_PLAIN + "/=")


def _split_options(address: str) -> tuple[str, dict[str, str]]:
    rest, mark, query = address.rpartition("?")
    items = query.split("&")
    is_known = re.match(rf"(?:{'|'.join(KEYS)})=|$", query)
    if not mark or not (is_known or ("=" in items[0] and "/" not in query)):
        return address, {}
    options: dict[str, str] = {}
    for item in filter(None, items):
        key, _, value = item.partition("=")
        if key not in KEYS:
            raise UsageError(
                f"unknown option {key!r} in the address; the options are {', '.join(KEYS)}"
            )
        options[_TOTALS if item == f"base={TOTAL}" else key] = unquote(value)
    return rest, options


def _parse_path(text: str, order: tuple[str, ...]) -> tuple[str, ...]:
    labels = []
    expected = (*order, ACTIVITY)
    for depth, step in enumerate(_STEP.split(text.strip("/")) if text else ()):
        name, _, label = step.partition("=")
        name = unquote(name)
        level = _LEVEL_OF.get(name, name)
        if depth >= len(expected) or level != expected[depth]:
            wanted = expected[depth] if depth < len(expected) else "the end"
            raise UsageError(
                f"the levels of a path have an order: expected {wanted}, got {level!r}; "
                f"?order={level},… puts another level first"
            )
        if not label:
            raise UsageError(f"the level {level} in the path has no value")
        labels.append(unquote(label))
    return tuple(labels)


def _order_prefix(order: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest prefix of an order that `complete_order` completes to it."""
    for length in range(len(order)):
        if complete_order(order[:length]) == order:
            return order[:length]
    return order
