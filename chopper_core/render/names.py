"""Short kernel names: parts that all names share are folded, parts that differ stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from os.path import commonprefix
from string import ascii_letters, digits
from typing import Final

from chopper_core.model.column_names import PART_OF
from chopper_core.render.cells import beginning, cell_width, display_name, elide, first_cells
from chopper_core.render.glyphs import Glyphs
from chopper_core.util.escape import clean
from chopper_core.util.grouping import grouped_by
from chopper_core.util.patterns import late
from chopper_core.views.frame import Frame

FOLDED: Final = "…"
_TENSILE: Final = late(r"^(?:Custom_)?Cijk_")
_TEMPLATE: Final = late(r"[^<]*<")
_TILE: Final = late(r"(?<=_)MT\d+x\d+x\d+(?=_|$)")
_LAYOUT: Final = late(r"(?:Custom_)?Cijk_A(il|li)k_B(jl|lj)k_")
_BRACKETS: Final = late(r"[<({\[)}\]>,]")
_LETTERS: Final = ascii_letters + digits
_PLAIN: Final = late(r"[\w.-]+")
_WORD: Final = _LETTERS + "_"
_MIN_DIFFERENCE_WIDTH: Final = 8
"""Narrower names show only their beginning and end."""
_TENSILE_HEAD: Final = 5
"""Tokens at the start of a Tensile name without a tile: layouts and types of the operands."""


def row_names(frame: Frame, glyphs: Glyphs, most: int | None = None) -> tuple[str, ...]:
    """The names of the rows, or of the first so many: a renamed kernel is `old → new`, a truncated
    step `9 cut`, one that warms up `1 warm-up`.

    Parts of a finding are indented.
    """
    count = len(frame) if most is None else min(most, len(frame))
    partners = frame.partners[:count]
    names = display_names((*frame.labels[:count], *partners), frame.level)
    if frame.truncated and frame.level == "iteration":
        why = dict.fromkeys(map(str, frame.truncated), " cut")
        why |= dict.fromkeys(map(str, frame.warm_up), " warm-up")
        rows = zip(names, frame.labels, strict=False)  # The names of the first ones, perhaps.
        return tuple(f"{name}{why.get(label, '')}" for name, label in rows)
    if parts := frame.values.get(PART_OF):
        depths: list[int] = []
        for row in range(count):
            whole = parts.at(row)
            is_behind = whole is not None and not (frame.sort or frame.hidden)
            depths.append(depths[int(whole) - 1] + 1 if is_behind and whole else whole is not None)
        return tuple("  " * depth + name for depth, name in zip(depths, names, strict=True))
    if not partners:
        return names
    return tuple(
        f"{before} {glyphs.arrow} {name}" if partner else name
        for name, before, partner in zip(names[:count], names[count:], partners, strict=True)
    )


@lru_cache(maxsize=64)
def display_names(labels: tuple[str, ...], level: str) -> tuple[str, ...]:
    """The labels of a frame as shown, distinct where the labels are.

    Template arguments that all kernels of one template share become `…`; of Tensile's parameters
    the tile and the layout stay, and those that distinguish two kernels.
    """
    names = [display_name(label, level) for label in labels]
    if level != "kernel":
        return tuple(names)
    short = list(names)
    for pattern, fold in ((_TENSILE, _tensile), (_TEMPLATE, _templates)):
        rows = [row for row, name in enumerate(names) if pattern.match(name)]
        for row, name in zip(rows, fold([names[row] for row in rows]), strict=True):
            short[row] = name
    counts = Counter(short)
    return tuple(
        name if counts[name] == 1 else clean(label)
        for name, label in zip(short, labels, strict=True)
    )


@lru_cache(maxsize=64)
def fitting_names(names: tuple[str, ...], width: int, glyphs: Glyphs) -> tuple[str, ...]:
    """The names in at most `width` cells each, distinct wherever possible.

    The middle of a name gives way; of those that would then look the same, and of the kernels of
    one template, what distinguishes them stays instead of their end.
    """
    short = {name: elide(name, width, glyphs) for name in names}
    cut = [name for name, text in short.items() if text != name]
    for kind in (_template, short.__getitem__):
        for several in grouped_by(cut, kind).values():
            if len(several) > 1 and width >= _MIN_DIFFERENCE_WIDTH:
                _show_difference(several, 0, width, glyphs, short)
    if len(set(short.values())) < len(short) and all(map(_PLAIN.fullmatch, cut)):
        short |= _without_ends(cut, width, glyphs)
    return tuple(short[name] for name in names)


def _without_ends(names: Sequence[str], width: int, glyphs: Glyphs) -> dict[str, str]:
    """Names less the words that all begin and end with; empty if that is not short enough."""
    begin = len(commonprefix(names).rstrip(_LETTERS))  # noqa: RUF071 - characters are meant
    rests = [name[begin:] for name in names]
    end = len(commonprefix([rest[::-1] for rest in rests]).rstrip(_LETTERS))  # noqa: RUF071
    ellipsis, last = glyphs.ellipsis if begin else "", glyphs.ellipsis if end else ""
    found = {
        name: ellipsis + rest[: len(rest) - end] + last
        for name, rest in zip(names, rests, strict=True)
    }
    return found if all(cell_width(text) <= width for text in found.values()) else {}


def _template(name: str) -> str:
    template, mark, _ = name.partition("<")
    return template if mark else name


def _show_difference(
    names: Sequence[str], word: int, width: int, glyphs: Glyphs, short: dict[str, str]
) -> None:
    """Put into `short` the beginning of each name, and its part from the first difference on.

    `word` is where the last attempt began, which did not show it all.
    """
    shared = commonprefix(names)  # noqa: RUF071 - characters are meant, not paths
    begin = len(shared.rstrip(_WORD))
    begin = begin if begin > word else len(shared)
    head = first_cells(shared[:begin], width // 3)
    head += glyphs.ellipsis if len(head) < begin else ""
    for name in names:
        short[name] = head + beginning(name[begin:], width - cell_width(head), glyphs)
    for several in grouped_by(names, short.__getitem__).values():
        # No other attempt shows more of them from where they differ.
        if len(several) > 1 and (begin < len(shared) or len(several) < len(names)):
            _show_difference(several, begin, width, glyphs, short)


def _tensile(names: list[str]) -> list[str]:
    """Tensile names as tile and layout; those that share these keep the parameters that differ."""
    short = list(names)
    same = grouped_by(range(len(names)), lambda row: _tile_and_layout(names[row]))
    for begin, rows in same.items():
        tokens = [dict.fromkeys(names[row].split("_")) for row in rows]
        shared = set(tokens[0]).intersection(*tokens)
        for row, own in zip(rows, tokens, strict=True):
            short[row] = " ".join([begin, *(token for token in own if token not in shared)])
    return short


def _tile_and_layout(name: str) -> str:
    """`MT256x256x64 NT`: T where an operand is transposed; of others the name's beginning."""
    tile, layout = _TILE.search(name), _LAYOUT.match(name)
    if tile is None or layout is None:
        return "_".join(name.split("_")[:_TENSILE_HEAD])
    first, second = layout.groups()
    return f"{tile[0]} {'T' if first == 'li' else 'N'}{'N' if second == 'lj' else 'T'}"


def _templates(names: list[str]) -> list[str]:
    """Template names; instances of one template keep the arguments in which they differ."""
    parsed = [_arguments(name) for name in names]
    keys = [(head, len(arguments), rest) for head, arguments, rest in parsed]
    short = list(names)
    for (head, count, rest), rows in grouped_by(range(len(keys)), keys.__getitem__).items():
        if count == 0 or len({names[row] for row in rows}) < 2:
            continue
        columns = []
        for place in range(count):
            values = [parsed[row][1][place] for row in rows]
            same = len(set(values)) == 1
            columns.append([FOLDED] * len(rows) if same else _templates(values))
        for number, row in enumerate(rows):
            inside = _joined([column[number] for column in columns], ", ")
            short[row] = f"{head}<{inside}>{rest}"
    return short


def _arguments(name: str) -> tuple[str, list[str], str]:
    """A template's name, its outermost arguments, and what follows them."""
    head, opening, tail = name.partition("<")
    if not opening or not head.strip():
        return name, [], ""
    arguments, depth, begin = [], 0, 0
    for mark in _BRACKETS.finditer(tail):
        position, character = mark.start(), mark[0]
        if character in "<({[":
            depth += 1
        elif character in ")}]" or (character == ">" and depth):
            depth -= 1
        elif character == ">" or (character == "," and not depth):
            arguments.append(tail[begin:position].strip())
            begin = position + 1
            if character == ">":
                return head, arguments, tail[begin:]
    return name, [], ""


def _joined(parts: Sequence[str], separator: str) -> str:
    shown = [
        part
        for place, part in enumerate(parts)
        if part != FOLDED or not place or parts[place - 1] != FOLDED
    ]
    return separator.join(shown)
