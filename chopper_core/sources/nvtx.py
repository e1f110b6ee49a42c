"""Operators in ranges of NVTX and roctx: `torch.autograd.profiler.emit_nvtx` writes their names so,
with their sizes and numbers that are others each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.sources.trace import HostCategory, HostRanges, InputTexts
from chopper_core.tables.columns import Interner
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Int32
from chopper_core.util.patterns import late

_OPERATOR: Final = late(
    r"^(?P<name>[\w:]+)(?:, seq = \d+)?, op_id = \d+(?:.{0,99}?, sizes = (?P<sizes>\[.*\]))?"
)


def operator_of(title: str) -> tuple[str, str] | None:
    """The name and the sizes, as a JSON list or '', of the operator that a range is; None of
    others."""
    match = _OPERATOR.match(title)
    return None if match is None else (match["name"], match["sizes"] or "")


class Operators(Struct, frozen=True):
    """Ranges of which some are operators."""

    names: Sequence[str]
    ranges: HostRanges
    inputs: Sequence[InputTexts]
    plain: Int32
    """The code of the plain name, by the code of each name before; -1 by that of none."""


def with_operators(names: Sequence[str], ranges: HostRanges) -> Operators:
    """The ranges that are annotations by their titles, codes of which are in `names`."""
    known = Interner({name: code for code, name in enumerate(names)})
    inputs: dict[InputTexts, int] = Interner()
    plain = np.append(np.arange(len(names), dtype=np.int32), np.int32(ABSENT))
    sizes = np.full(len(plain), ABSENT, np.int32)
    category = np.full(len(plain), HostCategory.ANNOTATION, np.int8)
    for code in set(ranges.name.tolist()):
        if found := operator_of(names[code]):
            plain[code], category[code] = known[found[0]], HostCategory.OPERATOR
            sizes[code] = inputs[InputTexts(found[1])] if found[1] else ABSENT
    ranges = replace(
        ranges,
        name=plain[ranges.name],
        category=category[ranges.name],
        inputs=sizes[ranges.name],
    )
    return Operators(list(known), ranges, list(inputs), plain)
