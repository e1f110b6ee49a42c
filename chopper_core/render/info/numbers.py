"""Numbers of ranks and GPUs in few words."""

from __future__ import annotations

from collections.abc import Sequence


def numbers_text(numbers: Sequence[int]) -> str:
    """Rising numbers with runs of them drawn together: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def aligned(rows: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Lines of a table of figures, its last `words` columns to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    figures = len(widths) - words
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if place < figures else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
