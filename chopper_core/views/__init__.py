"""The questions that may be asked of a node, each answered by the module of its name."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS
from chopper_core.model.column_names import NO_TIMES
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util.errors import UsageError
from chopper_core.views.memo import known_answer
from chopper_core.views.result import ViewResult

__all__ = ["FIGURE", "SUMS", "VIEWS", "ViewResult", "ViewSpec", "answer", "view_spec"]


FIGURE: Final = "figure"
"""What `of=` says where it names any column of a table."""
SUMS: Final = "sum"
"""What `of=` says where it names any column that adds up."""


class ViewSpec(Struct, frozen=True):
    """A question, and where it stands."""

    name: str
    """What addresses call it: `view=NAME`; also the module that answers it."""
    screen: str
    """The digit that opens it; a digit that has several opens them in turn."""
    title: str
    asks: str
    """The question, in a sentence."""
    by: tuple[str, ...] = ()
    """What `by=` may be, the usual one first."""
    of: str = ""
    """What `of=` says, `FIGURE`, `SUMS` or in other words; empty: the view takes none."""
    along_time: bool = False
    """Whether it takes a window of time: `from=`, `to=`, `at=`, `mark=`."""
    compares: bool = False
    """Whether it shows what differs from a baseline."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns that `of=` takes, where it takes such."""
        if self.of not in (FIGURE, SUMS):
            return ()
        known = METRICS.items()
        return tuple(name for name, each in known if self.of == FIGURE or each.reduces == SUMS)


VIEWS: Final = (
    ViewSpec(
        "timeline",
        "2",
        "Timeline",
        "What runs when, on which stream, and at which clock and power?",
        ("stream", "gpu"),
        along_time=True,
    ),
    ViewSpec(
        "kernels",
        "3",
        "Kernels",
        "Which kernels take the scope's time, wherever they run?",
        ("name", "class", "operation"),
    ),
    ViewSpec(
        "overheads",
        "4",
        "Overheads",
        "What lies between the time that the model needs at the peak and the time that went by?",
        ("operation", "phase", "layer", "gpu", "iteration"),
    ),
    ViewSpec(
        "launch",
        "4",
        "Launch",
        "What does compute wait for before it starts, and why does the GPU stand idle?",
        ("operation", "phase", "layer", "gpu", "iteration"),
    ),
    ViewSpec(
        "throughput",
        "4",
        "Throughput",
        "How long does an iteration take, how many tokens a second is that, what costs a token?",
        ("iteration", "gpu", "part"),
        of="tokens:N, of a GPU and iteration",
    ),
    ViewSpec(
        "ranks",
        "5",
        "Ranks",
        "Which GPU do the others wait for, since where in the step, and why?",
        ("gpu", "node", "iteration", "phase", "layer", "operation"),
    ),
    ViewSpec(
        "heatmap",
        "5",
        "Heat map",
        "Where does a figure of one GPU differ from that of the others?",
        ("layer", "iteration", "operation", "phase", "kernel"),
        of=FIGURE,
    ),
    ViewSpec(
        "comms",
        "6",
        "Comms",
        "How fast are the collectives, which ranks wait in them, and for whom?",
        ("kind", "collective", "phase", "layer", "iteration", "gpu", "group"),
        of="collective",
    ),
    ViewSpec(
        "overlap",
        "6",
        "Overlap",
        "How much communication runs beside the operations, and how much longer do they take?",
        ("operation", "instance", "phase", "layer", "iteration", "gpu"),
    ),
    ViewSpec(
        "power",
        "7",
        "Power",
        "What do the GPUs draw, how fast are they clocked, how hot are they, what limits them?",
        ("gpu", "iteration", "phase", "layer", "operation"),
        of="window:MS, burst:W or tokens:N",
    ),
    ViewSpec(
        "cpu",
        "7",
        "CPU",
        "How many of the host's processors are busy, logical and physical, and which?",
        ("iteration", "cpu", "core"),
        of="above:PERCENT or file:NAME",
    ),
    ViewSpec(
        "determinism",
        "7",
        "Determinism",
        "How steady are clocks, power and durations, and does the baseline differ beyond noise?",
        ("gpu", "figure"),
        compares=True,
    ),
    ViewSpec(
        "compare",
        "8",
        "Compare",
        "What contributes most to the difference from the baseline?",
        ("operation", "kernel", "layer", "phase", "gpu", "iteration", "place"),
        of=SUMS,
        compares=True,
    ),
    ViewSpec(
        "findings",
        "9",
        "Findings",
        "What stands out, how much time is at stake, and where is it to be seen?",
    ),
)


def view_spec(name: str) -> ViewSpec:
    """The analysis of a name; raises UsageError."""
    for known in VIEWS:
        if known.name == name:
            return known
    names = ", ".join(known.name for known in VIEWS)
    raise UsageError(f"no view {name!r}; the views are {names}")


def answer(run: Run, view: View) -> ViewResult:
    """The answer to a view's question; raises UsageError where it can't be asked."""
    asked = view_spec(view.name)
    if not run.table.has_times:
        raise UsageError(f"the view {asked.name} needs times: {NO_TIMES}")
    if view.by and view.by not in asked.by:
        choices = f"takes by={', '.join(asked.by)}" if asked.by else "takes no by="
        raise UsageError(f"the view {asked.name} {choices}, not {view.by!r}")
    if view.of and not asked.of:
        raise UsageError(f"the view {asked.name} takes no of=")
    if view.window and not asked.along_time:
        raise UsageError(f"the view {asked.name} takes no from=, to=, at= and mark=")
    module = import_module(f"chopper_core.views.{asked.name}")
    found = known_answer(run, view, partial(module.answer, run))
    if view.baseline is not None and not asked.compares:
        able = " and ".join(known.name for known in VIEWS if known.compares)
        note = f"nothing here is compared with the baseline; the views {able} do that"
        found = replace(found, notes=(note, *found.notes))
    return found
