"""Kernel names compared across tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from chopper_core.util.arrays import Int32, Int64

_ENOUGH_NAMES: Final = 0.9
"""Share of dispatches with names in the trace at which a comparison is accepted."""
_MIN_PREFIX: Final = 6
"""Shorter names are prefixes of too many others."""
_CLONE: Final = re.compile(r"(?:\s{0,9}\[clone[^\]]{0,999}\]|\s{0,9}\(\.kd\)|\.kd)+$")
_QUALIFIERS: Final = re.compile(r"^(?:void|static|__global__)\s+")


def plain_name(name: str) -> str:
    """A kernel's name without tool suffixes and return type."""
    return _QUALIFIERS.sub("", _CLONE.sub("", name.strip()))


def base_name(name: str) -> str:
    """The last part of a kernel's name before its template and call parameters."""
    name = re.sub(r"\(anonymous namespace\)::", "", plain_name(name))
    return re.split(r"[<(]", name, maxsplit=1)[0].rsplit("::", 1)[-1]


def common_codes(
    trace_names: Sequence[str],
    trace_name: Int32,
    dispatch_names: Sequence[str],
    dispatch_name: Int32,
) -> tuple[Int64, Int64, str]:
    """Codes of both sides, equal where the names mean the same kernel, and the comparison."""
    trace_used = np.unique(trace_name).tolist()
    dispatch_used = np.unique(dispatch_name).tolist()
    weight = np.bincount(dispatch_name, minlength=len(dispatch_names))

    def shortened(names: Sequence[str], used: list[int]) -> Callable[[str], str]:
        cuts = sorted({plain_name(names[code]) for code in used}, key=len)

        def cut(name: str) -> str:
            plain = plain_name(name)
            return next((c for c in cuts if len(c) >= _MIN_PREFIX and plain.startswith(c)), plain)

        return cut

    ways: list[tuple[str, Callable[[str], str]]] = [
        ("exact", plain_name),
        ("prefix", shortened(dispatch_names, dispatch_used)),
        ("base name", base_name),
    ]
    compared = []
    for title, way in ways:
        codes: dict[str, int] = {}
        of_trace = np.full(len(trace_names), -1, np.int64)
        for code in trace_used:
            of_trace[code] = codes.setdefault(way(trace_names[code]), len(codes))
        in_trace = len(codes)
        of_dispatch = np.full(len(dispatch_names), -2, np.int64)
        for code in dispatch_used:
            of_dispatch[code] = codes.setdefault(way(dispatch_names[code]), len(codes))
        known = (of_dispatch >= 0) & (of_dispatch < in_trace)
        found = float(weight[known].sum()) / max(float(weight.sum()), 1.0)
        compared.append((found, of_trace[trace_name], of_dispatch[dispatch_name], title))
        if found >= _ENOUGH_NAMES:
            break
    _, trace_codes, dispatch_codes, title = max(compared, key=lambda way: way[0])
    return trace_codes, dispatch_codes, title
