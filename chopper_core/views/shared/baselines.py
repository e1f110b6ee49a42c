"""The baselines that a view may take where none is set yet: each row sets one."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Values, column
from chopper_core.model.run import Run
from chopper_core.model.view import Baseline, View
from chopper_core.util.errors import NoSuchNode
from chopper_core.views.spec import ViewResult

HOW: Final = (
    "no baseline yet: press b on a scope and 8 on another, or mark two rows with space and press =,"
    " or end the address with base=gpu=0 or base=RUN"
)
_STEP: Final = ("gpu", "iteration")


class Candidate(Struct, frozen=True):
    """A row: a view with a baseline."""

    label: str
    view: View
    base_ns: int
    delta_ns: int


def candidates(run: Run, view: View) -> ViewResult:
    """The other runs that are open, the same scope on other GPUs and in other iterations, and
    the scope's own GPUs or iterations beside one another."""
    found = [*_others(run, view), *_same_elsewhere(run, view), *_children(run, view)]
    return ViewResult(
        level="baseline",
        labels=[each.label for each in found],
        columns=(
            (_BASE, Values(np.array([each.base_ns for each in found], np.int64))),
            (_DELTA, Values(np.array([each.delta_ns for each in found], np.int64))),
        ),
        opens=lambda row: found[row].view,
        headline=(f"{HOW}{'; or take a row with Enter' if found else ''}",),
    )


def _others(run: Run, view: View) -> list[Candidate]:
    own_ns = _time_of(run, view)
    found = []
    for name, other in run.others.items():
        with suppress(NoSuchNode):
            time = _time_of(other, view)
            found.append(Candidate(name, _beside(view, Baseline(name)), time, own_ns - time))
    return found


def _same_elsewhere(run: Run, view: View) -> list[Candidate]:
    tree, own_ns = run.tree(view.order), _time_of(run, view)
    found = []
    for depth, (level, label) in enumerate(view.scope):
        others = tree.children(view.path[:depth]).labels if level in _STEP else ()
        for text in others:
            path = (*view.path[:depth], text, *view.path[depth + 1 :])
            if text == label:
                continue
            with suppress(NoSuchNode):
                time = _time_of(run, replace(view, path=path))
                beside = _beside(view, Baseline("", path))
                found.append(Candidate(f"{level}={text}", beside, time, own_ns - time))
    return found


def _children(run: Run, view: View) -> list[Candidate]:
    """Each GPU beside the one in the middle, each iteration beside the one before."""
    level = view.level
    if level not in _STEP:
        return []
    children = run.tree_of(view).children(view.path)
    labels, times = list(children.labels), children.groups.elapsed_ns.tolist()
    if level == "iteration" and (left_out := set(map(str, run.left_out(view)))):
        kept = [place for place, label in enumerate(labels) if label not in left_out]
        labels, times = [labels[place] for place in kept], [times[place] for place in kept]
    middle = int(np.argsort(times, kind="stable")[(len(times) - 1) // 2])
    found = []
    for row, label in enumerate(labels):
        base = middle if level == "gpu" else row - 1
        if base in (row, -1):
            continue
        paths = [(*view.path, text) for text in (label, labels[base])]
        beside = _beside(replace(view, path=paths[0]), Baseline("", paths[1]))
        text = f"{level}={label} vs {level}={labels[base]}"
        found.append(Candidate(text, beside, times[base], times[row] - times[base]))
    return found


def _beside(view: View, baseline: Baseline) -> View:
    return replace(view, baseline=baseline, sort="", filter="", columns=())


_BASE: Final = column("base_ns", "ns", "base time", "The time of what would be the baseline.")
_DELTA: Final = column(
    "scope_ns_delta",
    "ns",
    "Δ time",
    "The time of what would be compared less that of the baseline.",
    signed=True,
)


def _time_of(run: Run, view: View) -> int:
    """The time of a view's node; raises NoSuchNode."""
    return int(run.tree_of(view).node(view.path).elapsed_ns[0])
