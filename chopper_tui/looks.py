"""What the explorer asks the core: a look at a view, the detail of a row, a row on every GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.errors import ChopperError, NoSuchNode, UsageError
from chopper_core.frame import Frame, Number
from chopper_core.metrics import METRICS, Metric
from chopper_core.query import figures, query
from chopper_core.render.cells import scale_of
from chopper_core.render.glyphs import Glyphs, sparkline
from chopper_core.run import Run
from chopper_core.view import View, at_level, drill

KEY_FIGURES: Final = ("elapsed_ns", "busy_pct", "exposed_comm_ns", "idle_ns", "kernels")
"""What the line under the breadcrumb says of the scope."""


@dataclass(frozen=True)
class Sparks:
    """The sparklines of a frame's rows, worked out once for the rows that were looked at."""

    frame: Frame
    glyphs: Glyphs
    bins: int
    drawn: dict[int, str] = field(default_factory=dict)

    def missing(self, rows: Sequence[int]) -> list[int]:
        """Those of the rows that are not drawn yet."""
        return [row for row in rows if row not in self.drawn] if self.bins else []

    def draw(self, rows: Sequence[int]) -> None:
        """Draw the sparklines of rows."""
        wanted = self.missing(rows)
        if wanted:
            means = self.frame.means(np.array(wanted, np.intp), self.bins)
            shares = self.frame.track.shares(means)
            lines = {
                row: sparkline(line, self.glyphs) for row, line in zip(wanted, shares, strict=True)
            }
            self.drawn.update(lines)


@dataclass(frozen=True, slots=True)
class Look:
    """A frame and the key figures of its scope."""

    frame: Frame
    figures: Mapping[str, Number | None]


def look(run: Run, view: View) -> Look:
    """What a view shows; raises ChopperError where there is nothing to show."""
    frame = query(run, view)
    return Look(frame, figures(run, view, KEY_FIGURES))


def figure(metric: Metric, number: Number | None, glyphs: Glyphs) -> str:
    """One figure with its unit, in the scale that suits it alone."""
    if number is None:
        return glyphs.missing
    scale = scale_of(metric, abs(number))
    space = "" if scale.unit in ("", "%") else " "
    return f"{scale.cell(number)}{space}{scale.unit}"


@dataclass(frozen=True, slots=True)
class Detail:
    """All that is known of a row."""

    label: str
    level: str
    address: str
    figures: tuple[tuple[Metric, Number | None], ...]


def detail(run: Run, frame: Frame, row: int) -> Detail:
    """The detail of a row: the frame's columns first, then every other metric, zeros last."""
    label = frame.labels[row]
    own = frame.row(row)
    others = tuple(name for name in METRICS if name not in own)
    view = frame.view if frame.view.is_leaf else drill(frame.view, label)
    rest = figures(run, view, others)
    # A share is one of the frame's parent; of the row itself it would always be 100 %.
    rest.pop("share_pct", None)
    told = {**own, **dict(sorted(rest.items(), key=lambda item: not item[1]))}
    known = tuple((METRICS[name], number) for name, number in told.items())
    return Detail(label, frame.level, frame.addresses(row), known)


@dataclass(frozen=True, slots=True)
class OnGpus:
    """The time of the same row on every GPU."""

    gpus: tuple[int, ...]
    here: int
    """The GPU of the scope, or of the row."""
    elapsed_ns: NDArray[np.float64]
    """NaN where a GPU has no such row."""

    @property
    def median_ns(self) -> float:
        """The median over the GPUs that have the row."""
        return float(np.nanmedian(self.elapsed_ns))


def on_gpus(run: Run, frame: Frame, row: int) -> OnGpus | None:
    """The time of a row on every GPU; None where the path doesn't begin with a GPU."""
    view = frame.view
    if not view.path or view.order[0] != "gpu" or len(run.gpus) < 2:
        return None
    target = view if view.is_leaf else drill(view, frame.labels[row])
    gpus = tuple(gpu.index for gpu in run.gpus)
    elapsed = [_elapsed(run, at_level(target, "gpu", str(gpu))) for gpu in gpus]
    return OnGpus(gpus, int(view.path[0]), np.array(elapsed, np.float64))


def _elapsed(run: Run, view: View) -> float:
    try:
        return float(figures(run, view, ("elapsed_ns",))["elapsed_ns"] or 0)
    except NoSuchNode:
        return np.nan


def same_on_gpu(run: Run, view: View, step: int) -> tuple[View, str]:
    """The view on a neighbouring GPU, or its nearest ancestor there; and what to say of it."""
    if "gpu" not in dict(view.scope):
        raise UsageError("the scope holds several GPUs; go into one first")
    gpus = [str(gpu.index) for gpu in run.gpus]
    position = gpus.index(dict(view.scope)["gpu"]) + step
    if not 0 <= position < len(gpus):
        raise UsageError(f"this is the {'last' if step > 0 else 'first'} GPU")
    there = at_level(view, "gpu", gpus[position])
    tree = run.tree(there.order)
    for depth in range(len(there.path), 0, -1):
        try:
            tree.node(there.path[:depth])
        except NoSuchNode:
            continue
        if depth == len(there.path):
            return there, ""
        nearest = replace(there, path=there.path[:depth], sort="", filter="")
        return nearest, f"GPU {gpus[position]} has no such {there.scope[depth][0]}; this is above"
    raise UsageError(f"GPU {gpus[position]} has nothing of this scope")


def siblings(run: Run, parent: View) -> Sequence[str]:
    """The labels of a view's rows, in the order in which they are shown."""
    try:
        return query(run, parent).labels
    except ChopperError:
        return ()
