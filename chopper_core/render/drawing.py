"""Lines of characters in inks as a picture: SVG that stands in a page, in the colours of its style.

Blocks and braille dots are paths on whole cells, so that no seams show; what is left is text, each
piece as wide as its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from chopper_core.render.cells import cell_width
from chopper_core.util.escape import clean

CELL: Final = (8, 16)
"""Width and height of a cell."""
GROUNDS: Final = {"light": ("#ffffff", "#24292f"), "dark": ("#0d1117", "#c9d1d9")}
"""The colours of a theme behind a picture that stands alone, and of its text."""
_MARGIN: Final = 12
_BASE: Final = 12
"""From the top of a cell to the line that its text stands on."""
_QUADRANTS: Final = {
    "▖": 4, "▗": 8, "▘": 1, "▙": 13, "▚": 9, "▛": 7, "▜": 11, "▝": 2, "▞": 6, "▟": 14,
}  # fmt: skip
_SHADES: Final = {"░": 0.25, "▒": 0.5, "▓": 0.75}
_BRAILLE_DOTS: Final = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
_BRAILLE: Final = "⠀"

Piece = tuple[str, str]
Box = tuple[int, int, int, int]


def picture(
    lines: Sequence[Sequence[Piece]],
    classes: dict[str, str],
    is_filled: Callable[[str], bool],
) -> str:
    """An SVG of some lines; `classes` gets a class for each ink that is used.

    What is behind the text of an ink that `is_filled` has the class with `b` at its end.
    """
    while lines and not any(text.strip() for text, _ in lines[-1]):
        lines = lines[:-1]
    width = max((sum(cell_width(text) for text, _ in line) for line in lines), default=0)
    parts = [part for y, line in enumerate(lines) for part in _line(line, y, classes, is_filled)]
    across, high = width * CELL[0], len(lines) * CELL[1]
    return (
        f'<svg viewBox="0 0 {across} {high}" width="{across}" role="img" '
        f'shape-rendering="crispEdges">\n{"".join(parts)}</svg>'
    )


def alone(lines: Sequence[Sequence[Piece]], ground: str, text: str) -> str:
    """The same as a file of its own; each ink is the CSS of its text, `|`, and a colour behind."""
    classes: dict[str, str] = {}
    drawn = picture(lines, classes, lambda ink: not ink.endswith("|"))
    rules = [f"text{{font:13px monospace;white-space:pre;fill:{text}}}"]
    for ink, name in classes.items():
        front, _, back = ink.partition("|")
        rules += [f".{name}{{{front}}}"] if front else []
        rules += [f".{name}b{{fill:{back}}}"] if back else []
    across, high = (
        int(size) + 2 * _MARGIN for size in drawn.split('viewBox="0 0 ')[1].split('"')[0].split()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {high}" width="{across}" '
        f'height="{high}">\n<style>{"".join(rules)}</style>\n<rect width="{across}" '
        f'height="{high}" rx="8" fill="{ground}"/>\n'
        f'{drawn.replace("<svg ", f"""<svg x="{_MARGIN}" y="{_MARGIN}" fill="{text}" """, 1)}'
        f"</svg>\n"
    )


def _line(
    line: Sequence[Piece], y: int, classes: dict[str, str], is_filled: Callable[[str], bool]
) -> Iterator[str]:
    from html import escape  # the explorer draws no pictures at its start

    x = 0
    for text, ink in line:
        named = classes.setdefault(ink, f"i{len(classes)}")
        width = cell_width(text)
        if is_filled(ink):
            yield f'<path class="{named}b" d="{_path([(x * 8, y * 16, width * 8, 16)])}"/>'
        for run, at in _runs(text):
            boxes = [box for n, char in enumerate(run) for box in _boxes(char, x + at + n, y)]
            if boxes:
                shade = _SHADES.get(run[0])
                faint = f' opacity="{shade}"' if shade else ""
                yield f'<path class="{named}"{faint} d="{_path(_joined(boxes))}"/>'
            elif run.strip():
                yield (
                    f'<text class="{named}" x="{(x + at) * CELL[0]}" y="{y * CELL[1] + _BASE}" '
                    f'textLength="{cell_width(run) * CELL[0]}">{escape(clean(run))}</text>'
                )
        x += width


def _runs(text: str) -> Iterator[tuple[str, int]]:
    """Stretches that are drawn in one way, with the cell that each begins at."""
    begin, at, kind = 0, 0, ""
    for place, char in enumerate(text):
        own = _kind(char)
        if own != kind:
            if place > begin:
                yield text[begin:place], at
                at += cell_width(text[begin:place])
            begin, kind = place, own
    if text:
        yield text[begin:], at


def _kind(char: str) -> str:
    if char in _SHADES:
        return char
    is_drawn = "▀" <= char <= "▟" or _BRAILLE <= char <= chr(ord(_BRAILLE) + 255)
    return "drawn" if is_drawn else "blank" if char == " " else "text"


def _boxes(char: str, column: int, row: int) -> Iterator[Box]:
    """The filled parts of a cell; none for text."""
    wide, high = CELL
    x, y, code = column * wide, row * high, ord(char)
    if char in _SHADES:
        yield x, y, wide, high
    elif char in _QUADRANTS:
        for bit in range(4):
            if _QUADRANTS[char] >> bit & 1:
                yield x + bit % 2 * wide // 2, y + bit // 2 * high // 2, wide // 2, high // 2
    elif char == "▀":
        yield x, y, wide, high // 2
    elif "▁" <= char <= "█":
        tall = (code - ord("▁") + 1) * high // 8
        yield x, y + high - tall, wide, tall
    elif "▉" <= char <= "▏":
        yield x, y, (ord("▏") - code + 1) * wide // 8, high
    elif char == "▐":
        yield x + wide // 2, y, wide // 2, high
    elif char == "▔":
        yield x, y, wide, high // 8
    elif char == "▕":
        yield x + wide - 1, y, 1, high
    elif _BRAILLE <= char <= chr(ord(_BRAILLE) + 255):
        for bit, (right, down) in enumerate(_BRAILLE_DOTS):
            if code - ord(_BRAILLE) >> bit & 1:
                yield x + 1 + 4 * right, y + 1 + 4 * down, 2, 2


def _joined(boxes: Iterable[Box]) -> list[Box]:
    """Boxes of one line, next to each other and equally tall, as one."""
    joined: list[Box] = []
    for x, y, wide, high in boxes:
        if joined:
            left, top, own, tall = joined[-1]
            if (top, tall) == (y, high) and left + own == x:
                joined[-1] = (left, top, own + wide, tall)
                continue
        joined.append((x, y, wide, high))
    return joined


def _path(boxes: Iterable[Box]) -> str:
    return "".join(f"M{x} {y}h{wide}v{high}h-{wide}z" for x, y, wide, high in boxes)
