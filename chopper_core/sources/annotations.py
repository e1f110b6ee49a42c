"""What the nodes of graphs were marked with as they were captured: JSON next to the traces.

torch marks the kernels of a capture with the path of their module, or any name, and knows them by
the node's id when they are replayed: `kernel_annotations_rank<R>_*.json` maps one to the other. A
value is a name, an object with one, or a list of these, outermost first. An id has that of its
graph in the upper 32 bits; some traces write the lower ones alone. The pickles that torch writes
too are never read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.sources.trace import Trace
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import NameInterner, cut_name
from chopper_core.util.errors import DataError

_KEYS: Final = ("module_fqn", "fqn", "module", "module_path", "name", "annotation")
"""The fields of an object that may have the name, the surest first."""
_LOW: Final = (1 << 32) - 1
_MOST_BYTES: Final = 1 << 28
_ABOVE: Final = ("annotations", "kernel_annotations", "kernels")
"""Keys that may hold the map."""


def with_annotations(trace: Trace, path: Path) -> tuple[Trace, int]:
    """The trace with the marks of a file on its nodes of graphs, and how many nodes have one.

    Raises DataError for a file that isn't such a map.
    """
    marks = _marks(path)
    low = dict[int, str]()
    for number, mark in marks.items():
        # Of several graphs the lower bits may be of several nodes.
        low[number & _LOW] = mark if low.get(number & _LOW, mark) == mark else ""
    activities = trace.activities
    texts = NameInterner()
    for text in trace.annotations:
        texts[text]
    codes = activities.annotation.copy().astype(np.int32)
    count = 0
    for row in np.flatnonzero(activities.graph_node > 0).tolist():
        number = int(activities.graph_node[row])
        name = marks.get(number) or (low.get(number, "") if number <= _LOW else "")
        if name:
            codes[row] = texts[name]
            count += 1
    found = replace(trace, activities=replace(activities, annotation=codes))
    return replace(found, annotations=list(texts)), count


def _marks(path: Path) -> dict[int, str]:
    with ByteSource(path) as source:
        text = source.read_all(_MOST_BYTES)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if isinstance(given, Mapping):
        given = next((given[key] for key in _ABOVE if isinstance(given.get(key), Mapping)), given)
    if not isinstance(given, Mapping):
        raise DataError(f"{path} maps no nodes of graphs to their names.")
    found = {}
    for key, value in given.items():
        if key.isdecimal() and len(key) < _DIGITS and (name := _name(value)):
            found[int(key)] = cut_name(name)
    if given and not found:
        raise DataError(f"{path} maps no nodes of graphs to their names.")
    return found


_DIGITS: Final = 20
"""Of a number beyond 64 bits."""


def _name(value: Any) -> str:
    """The innermost name of a mark; '' without one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return next((name for each in reversed(value) if (name := _name(each))), "")
    if isinstance(value, Mapping):
        return next(
            (value[key] for key in _KEYS if isinstance(value.get(key), str) and value[key]), ""
        )
    return ""
