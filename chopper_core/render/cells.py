"""How one figure and one name are written: the same on the screen, in text and in markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from chopper_core.frame import Frame, Number
from chopper_core.metrics import Metric
from chopper_core.render.glyphs import Glyphs
from chopper_core.schema import LEVELS, NO_LABEL_TEXT

UNLABELLED: Final = "unlabelled"
LEVEL_TITLES: Final = {
    "gpu": "GPU",
    "iteration": "iteration",
    "phase": "phase",
    "layer": "layer",
    "operation": "operation",
    "kernel": "kernel",
    "activity": "activity",
}
_CRUMBS: Final = {"gpu": "GPU ", "iteration": "it ", "layer": "L"}

_TIME_STEPS: Final = ((1e10, "s", 1e9, 3), (1e6, "ms", 1e6, 3), (1e3, "µs", 1e3, 3))
_BYTE_STEPS: Final = ((1e9, "GB", 1e9, 3), (1e6, "MB", 1e6, 3), (1e3, "kB", 1e3, 3))


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit for a whole column, so that its figures can be compared by eye."""

    unit: str
    divisor: float
    decimals: int

    def cell(self, number: Number | None, missing: str = "–") -> str:
        """One figure as text, without its unit."""
        if number is None:
            return missing
        if self.divisor == 1 and self.decimals == 0:
            return f"{number:.0f}"
        return f"{number / self.divisor:.{self.decimals}f}"


def scale_of(metric: Metric, largest: float) -> Scale:
    """The scale in which a column with this largest absolute figure reads best."""
    if metric.unit == "%":
        return Scale("%", 1, 1)
    steps = {"ns": _TIME_STEPS, "B": _BYTE_STEPS}.get(metric.unit, ())
    for threshold, unit, divisor, decimals in steps:
        if largest >= threshold:
            return Scale(unit, divisor, decimals)
    return Scale(metric.unit, 1, 0)


@dataclass(frozen=True, slots=True)
class ColumnText:
    """How a column of a frame is written: its header and its scale."""

    metric: Metric
    scale: Scale

    @property
    def header(self) -> str:
        """Title and unit; the unit once."""
        title, unit = self.metric.title, self.scale.unit
        return title if not unit or title.endswith(unit) else f"{title} {unit}"


def column_texts(frame: Frame) -> tuple[ColumnText, ...]:
    """How each column of a frame is written; sums of time share one unit, to compare by eye."""
    common = max(
        (_largest(frame, column) for column in frame.columns if _is_time(column)), default=0
    )
    return tuple(
        ColumnText(
            column, scale_of(column, common if _is_time(column) else _largest(frame, column))
        )
        for column in frame.columns
    )


def _is_time(metric: Metric) -> bool:
    return metric.unit == "ns" and metric.reduces == "sum"


def _largest(frame: Frame, metric: Metric) -> float:
    values = frame.values[metric.name]
    present = np.abs(values.numbers[values.present()].astype(np.float64))
    return float(present.max()) if len(present) else 0.0


_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Text with its control, invisible and direction-changing characters written as escapes."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


_NOISE: Final = (
    (re.compile(r"^(?:void|static|__global__) +"), ""),
    (re.compile(r"\(anonymous namespace\)::"), ""),
    (re.compile(r"\b(?:at::native|at::cuda::detail|at::detail|c10|std)::"), ""),
)


def display_name(label: str, level: str) -> str:
    """A label as people see it: cleaned, and a kernel's without namespaces and parameters."""
    if label == NO_LABEL_TEXT and level in LEVELS:
        return UNLABELLED
    if level == "kernel":
        label = _without_parameters(label)
        for pattern, replacement in _NOISE:
            label = pattern.sub(replacement, label)
    return clean(label)


def _without_parameters(name: str) -> str:
    """A C++ signature without its last, outermost parentheses."""
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += (name[position] == ")") - (name[position] == "(")
        if depth == 0:
            return name[:position] or name
    return name


def crumb(level: str, label: str) -> str:
    """A step of a path as a breadcrumb: `GPU 3`, `it 12`, `backward`, `L17`, `attn_fa`."""
    name = display_name(label, level)
    if name == UNLABELLED:
        return f"{LEVEL_TITLES[level]} {UNLABELLED}"
    return _CRUMBS.get(level, "") + name if level != "activity" else f"activity {name}"


def elide(text: str, width: int, glyphs: Glyphs) -> str:
    """Text of at most `width` cells: its middle gives way, both ends stay."""
    if len(text) <= width:
        return text
    if width <= 1:
        return glyphs.ellipsis[:width]
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return text[:head] + glyphs.ellipsis + (text[-tail:] if tail else "")


def fitting(widths: Iterable[int], available: int, gap: int = 1) -> int:
    """How many of the columns, from the first on, fit into the available cells."""
    used = count = 0
    for width in widths:
        used += width + gap
        if used > available:
            break
        count += 1
    return count
