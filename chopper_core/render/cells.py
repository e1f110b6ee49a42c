"""How one figure and one name are written: the same on the screen, in text and in markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from pathlib import PurePath
from textwrap import wrap
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import Metric, Values
from chopper_core.model.column_names import AWAITED
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import BETWEEN_FACTS, level_title
from chopper_core.model.signals import Signal
from chopper_core.model.table import LEVELS, NO_LABEL_TEXT, UNLABELLED
from chopper_core.model.units import Unit, UnitScale
from chopper_core.model.view import View
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.escape import NARROW, clean
from chopper_core.util.patterns import late
from chopper_core.views import view_spec
from chopper_core.views.frame import Frame

SENTENCES: Final = ("finding",)
OUTSIDE_STEPS: Final = "outside steps"
"""The name of what belongs to no step."""
_CRUMBS: Final = {
    "gpu": "GPU ",
    "iteration": "step ",
    "layer": "L",
    **{name: f"{name} " for name in DIMENSIONS},
}


_TWO_NAMES: Final = 15
"""Cells from which on two names with an arrow between them are both shown."""
_MAX_CUT: Final = 2
"""Truncated steps that are named where there is little room."""


def scale_of(metric: Metric, largest: float, is_whole: bool = True) -> UnitScale:
    """The scale for figures up to `largest`; those without a unit are counts if they are whole."""
    return replace(metric.unit.scale(largest, is_whole), signed=metric.signed)


class ColumnText(Struct, frozen=True):
    """How a column of a frame is written: its header and its scale."""

    metric: Metric
    scale: UnitScale
    is_word: bool = False

    def cell(self, values: Values, row: int, glyphs: Glyphs) -> str:
        """One figure as text; `~` marks one that isn't measured on all of the row, `*` one that
        covers only some of the row's GPUs, `≤` a bound that nothing attains."""
        if values.words is not None:
            word = values.cell(row)
            return glyphs.missing if word is None else clean(str(word))
        text = self.scale.cell(values.at(row), glyphs.missing)
        if values.is_partial(row):
            return f"*{text}"
        if values.is_bound(row) and values.at(row) is not None:
            return f"≤{text}"
        return f"~{text}" if values.is_extrapolated(row) else text

    def aligned(self, text: str, width: int) -> str:
        return "".join(self.split(text, width))

    def split(self, text: str, width: int) -> tuple[str, str]:
        """The same as the space before it, and the text with the space after it."""
        room = " " * (width - cell_width(text))
        return ("", text + room) if self.is_word else (room, text)

    @property
    def header(self) -> str:
        title, unit = self.metric.title, self.scale.text
        # The s of a plural is no unit.
        before = title[: -len(unit)][-1:]
        ends = title.endswith(unit) and not (before and f"{unit}{before}".isalpha())
        has_unit = not unit or ends or title.startswith(f"{unit} ")
        return title if has_unit else f"{title} {unit}"


MOMENTS: Final = ("start_ns", "end_ns", "launch_ns", "peak_at_ns", "at_start_ns")
"""Columns of places in time, which only all their digits distinguish."""


def column_texts(
    frame: Frame, is_wanted: Callable[[Metric], bool] = lambda column: True
) -> Iterator[ColumnText]:
    """How each column is written, in a unit for its figures; unknown times in that of others.

    Columns without any value are left out, unless they were asked for or the view's come and go.
    Each is computed as it is taken, if it `is_wanted` by then.
    """

    @cache
    def longest_ns() -> float:
        times = (each for each in frame.columns if each.unit is Unit.NS)
        return max((_largest(frame, each) for each in times if _is_drawn(frame, each)), default=0)

    drawn = (each for each in frame.columns if is_wanted(each) and _is_drawn(frame, each))
    first = next(drawn, None)
    for column in frame.columns if first is None else chain((first,), drawn):
        most = _largest(frame, column) or (longest_ns() if column.unit is Unit.NS else 0)
        scale = scale_of(column, most, _is_whole(frame, column))
        if column.name not in MOMENTS:
            scale = scale.readable(most)
        yield ColumnText(column, scale, frame.values[column.name].words is not None)


def _is_drawn(frame: Frame, metric: Metric) -> bool:
    name, view = metric.name, frame.view
    if view.columns or frame.is_pending or name == frame.sort.removeprefix("-"):
        return True
    spec = view_spec(view.name) if view.name else None
    comes_and_goes = spec is not None and (spec.along_time or spec.is_live)
    if comes_and_goes or metric.missing_because == AWAITED:
        return True
    return bool(frame.values[name].present().any()) or frame.total.get(name) is not None


def _is_whole(frame: Frame, metric: Metric) -> bool:
    values = frame.values[metric.name]
    known = values.numbers[values.present()]
    return bool((known == np.round(known)).all()) and not (frame.total.get(metric.name) or 0) % 1


def _largest(frame: Frame, metric: Metric) -> float:
    values = frame.values[metric.name]
    if values.words is not None:
        return 0.0
    present = np.abs(values.numbers[values.present()].astype(np.float64))
    if len(frame):
        return float(present.max()) if len(present) else 0.0
    # The heading of a table whose rows are filtered out keeps a unit.
    return abs(frame.total.get(metric.name) or 0.0)


def scale_title(signal: Signal) -> str:
    """The signal and the scale of a sparkline: `busy 0-100%`, `gfx 1491-1922 MHz`."""
    space = "" if signal.unit is Unit.PERCENT else " "
    low, high = map(signal.scale.number, (signal.low, signal.high))
    return f"{signal.title} {low}-{high}{space}{signal.scale.text}"


_BEFORE_UNIT: Final = late(
    r"(?<=\d) (?=(?:%|°C|[kMGT]?B(?:/s)?|[nµm]?s|min|h|[kM]?W|[kMG]?Hz|[kmM]?J"
    r"|[kMGTP]?FLOPs?(?:/s|/B)?)(?![\w/]))"
)
_NO_BREAK: Final = "\u00a0"


def wrapped(text: str, width: int) -> list[str]:
    """A sentence, cleaned, in lines of at most `width` cells; none begins with a bare unit.

    Short facts with dots between them stay whole.
    """
    return [*_wrapped(text, width)]


@lru_cache(maxsize=1 << 8)  # The same cards are drawn at each update of a run that is followed.
def _wrapped(text: str, width: int) -> tuple[str, ...]:
    facts = _BEFORE_UNIT.sub(_NO_BREAK, clean(text)).split(BETWEEN_FACTS)
    if len(facts) > 1:
        facts = [each.replace(" ", _NO_BREAK) if len(each) < width / 3 else each for each in facts]
    joined = BETWEEN_FACTS.join(facts)
    indent = " " * (len(text) - len(text.lstrip()))
    lines = wrap(joined, width, break_on_hyphens=False, subsequent_indent=indent)
    return tuple(line.replace(_NO_BREAK, " ") for line in lines)


def cell_width(text: str) -> int:
    if NARROW.fullmatch(text):
        return len(text)
    from wcwidth import wcswidth

    return max(wcswidth(text), 0)


def longest_width(texts: Sequence[str]) -> int:
    """The width of the widest text; of tens of thousands, looked at together."""
    if NARROW.fullmatch("".join(texts)):
        return max(map(len, texts), default=0)
    return max(map(cell_width, texts))


def pad(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


BARS: Final = frozenset(("share_pct", "kernel_pct", "loss_pct"))
"""Columns whose cells have a bar."""
_NOISE: Final = (
    ("", late(r"^(?:void|static|__global__) +"), ""),
    ("(anonymous", late(r"\(anonymous namespace\)::"), ""),
    ("::", late(r"\b(?:at::native|at::cuda::detail|at::detail|c10|std|ck_tile)::"), ""),
    # Composable Kernel's entry point says nothing of the kernel that is its last argument.
    ("kentry<", late(r"^kentry<[\d, ]*(\w+<.*>) ?(?:, [^<>]*)?>$"), r"\1"),
    # For lambdas within lambdas, the function and the innermost parameters identify one.
    ("::{lambda", late(r"::\{lambda\([^{}]*\)#\d+\}::operator\(\)\([^(){}]*\)(?: const)?"), ""),
    ("::{lambda", late(r"(?<=\w)\([^(){}]*\)(?=::\{lambda)"), ""),
)
"""A literal that is in every match, which costs less to look for; a pattern; what replaces it."""


def display_name(label: str, level: str) -> str:
    """A label as people see it: cleaned, and a kernel's without namespaces and parameters."""
    if label == NO_LABEL_TEXT and level in (*LEVELS, *DIMENSIONS):
        return OUTSIDE_STEPS if level == "iteration" else UNLABELLED
    if level == "kernel":
        label = _without_parameters(_demangled(label))
        for literal, pattern, replacement in _NOISE:
            if literal in label:
                label = pattern.sub(replacement, label)
    return clean(label)


_MANGLED: Final = late(r"_ZN?[KVr]*(?=\d)")
_TOKEN: Final = late(r"(?:L[a-z]n?|E)(\d+)E|(DF16[b_])|[ST][0-9A-Z]*_|(\d+)")
_TYPES: Final = {"DF16b": "bf16", "DF16_": "half"}
_ENTRY: Final = ["ck_tile", "kentry"]


def _demangled(name: str) -> str:
    """A C++ symbol as the names and numbers in it: `aiter::norm<bf16, 64, 8>`."""
    begin = _MANGLED.match(name)
    if begin is None:
        return name
    words: list[str] = []
    at, end = begin.end(), name.find("EEv") % (len(name) + 1)
    while length := re.match(r"\d+", name[at:]):
        first = at + length.end()
        at = first + int(length[0])
        words.append(name[first:at])
    arguments: list[str] = []
    place = at + 1
    while name[at : at + 1] == "I" and (token := _TOKEN.search(name, place, end)):
        place = token.end() + int(token[3] or 0)
        text = token[1] or _TYPES.get(token[2] or "", "") or name[token.end() : place]
        arguments += [text] if re.fullmatch(r"\d+|\w\w+", text) else []
    if words == _ENTRY:
        words = [next((each for each in arguments if not each.isdigit()), "kentry")]
    inside = f"<{', '.join(arguments)}>" if arguments else ""
    return "::".join(words) + inside


def _without_parameters(name: str) -> str:
    """A C++ signature without its last, outermost parentheses."""
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += (name[position] == ")") - (name[position] == "(")
        if depth == 0:
            is_signature = position > 0 and name[position - 1] != " "
            return name[:position] if is_signature else name
    return name


def title_of(view: View) -> str:
    """The question asked of a node, as a breadcrumb ends; empty where it is its children."""
    if not view.name:
        return ""
    details = [part for part in (view.by and f"by {level_title(view.by)}", view.of) if part]
    return " ".join([view.name, *details])


def crumb(level: str, label: str) -> str:
    """A step of a path as a breadcrumb: `GPU 3`, `step 12`, `backward`, `L17`, `attn_fa`."""
    name = display_name(label, level)
    if name == UNLABELLED:
        return f"{level_title(level)} {UNLABELLED}"
    if name == OUTSIDE_STEPS:
        return name
    return _CRUMBS.get(level, "") + name if level != "activity" else f"activity {name}"


def baseline_title(view: View) -> str:
    """The baseline of a view, in as few words as name it; empty without one."""
    if view.baseline is None:
        return ""
    run = clean(PurePath(view.baseline.run.rstrip("/")).name)
    path = view.path if view.baseline.path is None else view.baseline.path
    own = dict(view.scope)
    levels = zip((*view.order, "activity"), path, strict=False)
    steps = [crumb(level, label) for level, label in levels if own.get(level) != label]
    return " ".join(([run] if run else []) + steps) or "itself"


def statistic_title(frame: Frame) -> str:
    """The statistic of a frame's figures where they aren't sums: `median per gpu, step`."""
    if not frame.view.stat or not frame.over:
        return ""
    return f"{frame.view.stat} per {', '.join(frame.over)}"


def cut_title(frame: Frame) -> str:
    """The steps of a frame's scope that are truncated or warm up: `it 10 cut, left out`; empty
    without any."""
    if not frame.truncated:
        return ""
    counted = ", left out" if frame.left_out else ", counted" * frame.view.cut
    warm = [number for number in frame.truncated if number in frame.warm_up]
    cut = [number for number in frame.truncated if number not in frame.warm_up]
    parts = []
    for numbers, word in ((cut, "cut"), (warm, "warm-up")):
        names = ", ".join(map(str, numbers[:_MAX_CUT]))
        more = f" +{len(numbers) - _MAX_CUT}" if len(numbers) > _MAX_CUT else ""
        parts += [f"step {names}{more} {word}"] if numbers else []
    return ", ".join(parts) + counted


def elide(text: str, width: int, glyphs: Glyphs) -> str:
    """Text of at most `width` cells, shortened in the middle; so are two names."""
    if cell_width(text) <= width:
        return text
    if width <= 1:
        return glyphs.ellipsis[: max(width, 0)]
    before, arrow, after = text.partition(f" {glyphs.arrow} ")
    if arrow and width >= _TWO_NAMES:
        half = (width - len(arrow)) // 2
        before = elide(before, max(half, width - len(arrow) - cell_width(after)), glyphs)
        return before + arrow + elide(after, width - len(arrow) - cell_width(before), glyphs)
    closed = text.rstrip("> ") if text.endswith((">>", "> >")) else text
    # Brackets that close one another tell nothing.
    text = closed if cell_width(closed) > width else text
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return first_cells(text, head) + glyphs.ellipsis + first_cells(text, tail, from_end=True)


def beginning(text: str, width: int, glyphs: Glyphs) -> str:
    """Text of at most `width` cells, shortened at the end."""
    if cell_width(text) <= width:
        return text
    return first_cells(text, width - 1) + glyphs.ellipsis if width > 0 else ""


def first_cells(text: str, width: int, *, from_end: bool = False) -> str:
    """The longest beginning, or end, of a text that takes at most `width` cells."""
    if NARROW.fullmatch(text):
        return text[len(text) - width :] if from_end else text[:width]
    from wcwidth import iter_graphemes

    step = -1 if from_end else 1
    # A character and what combines with it are never parted.
    graphemes = [*iter_graphemes(text)][::step]
    return "".join(graphemes[: fitting(map(cell_width, graphemes), width, gap=0)][::step])


def fitting(widths: Iterable[int], available: int, gap: int = 1) -> int:
    """How many of the columns, from the first on, fit into the available cells."""
    used = count = 0
    for width in widths:
        used += width + gap
        if used > available:
            break
        count += 1
    return count
