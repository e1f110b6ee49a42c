"""How many tokens each expert of a mixture of experts got, where a log or a range says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.model.side_table import SideTable
from chopper_core.util.arrays import Float64, Int32, Int64
from chopper_core.util.patterns import late

WORDS: Final = ("xpert", "xp_counts")
"""A text without any has no counts."""
_COUNTS: Final = late(
    r"(?:tokens?[ _-]?(?:per|by)[ _-]?(?:local[ _-]?)?expert|expert[ _-]?(?:loads?|counts?|tokens)"
    r"|exp_counts)[^\[\]\n]{0,24}\[([\d\s,.eE+]{1,40000})\]",
    re.IGNORECASE,
)
_LAYER: Final = late(r"layers?[ _.:=/#-]{0,3}(\d{1,5})", re.IGNORECASE)
MOST_EXPERTS: Final = 1 << 13
_MOST_TOKENS: Final = 1e15


class ExpertTokens(SideTable, frozen=True, eq=False):
    """Tokens of experts by lines of logs; a row per line and expert."""

    FILE = "expert_tokens.arrow"

    rank: Int32
    """-1 where the line names none."""
    attempt: Int32
    step: Int64
    """The last step that was logged before; -1 without one."""
    layer: Int32
    """-1 where the line names none."""
    expert: Int32
    """Its place in the list."""
    tokens: Float64

    @classmethod
    def of(cls, rows: Sequence[tuple[Mapping[str, int], Sequence[float]]]) -> ExpertTokens:
        """The table of lines, each with rank, attempt, step and layer, and its counts."""
        sizes = [len(counts) for _, counts in rows]

        def spread(name: str) -> Int64:
            return np.repeat(np.array([row[name] for row, _ in rows], np.int64), sizes)

        narrow = {name: spread(name).astype(np.int32) for name in ("rank", "attempt", "layer")}
        total = sum(sizes)
        ranges = [np.arange(size, dtype=np.int32) for size in sizes]
        expert = np.concatenate(ranges) if ranges else np.empty(0, np.int32)
        tokens = np.array([each for _, counts in rows for each in counts], np.float64)
        return cls(
            (), np.zeros(total, np.int32), narrow["rank"], narrow["attempt"], spread("step"),
            narrow["layer"], expert, tokens,
        )  # fmt: skip


def counts_in(text: str) -> tuple[int, int, list[float]] | None:
    """Where a text lists the tokens of experts, the layer that it names or -1, and the tokens."""
    found = _COUNTS.search(text)
    if found is None:
        return None
    try:
        counts = [float(each) for each in re.split(r"[\s,]+", found[1].strip(" ,\t")) if each]
    except ValueError:
        return None
    if not 2 <= len(counts) <= MOST_EXPERTS or not all(0 <= each < _MOST_TOKENS for each in counts):
        return None
    layer = _LAYER.search(text)
    return found.start(), int(layer[1]) if layer else -1, counts
