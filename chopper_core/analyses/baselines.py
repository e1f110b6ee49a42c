"""What a view may be compared with, where no baseline is set yet: each row sets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from chopper_core.analyses.answer import Answer
from chopper_core.errors import NoSuchNode
from chopper_core.metrics import Values, column, metric
from chopper_core.run import Run
from chopper_core.schema import STATES
from chopper_core.view import Baseline, View

HOW: Final = (
    "no baseline yet: press b on a scope and 8 on another, or mark two rows with space and press =,"
    " or end the address with base=gpu=0 or base=RUN"
)
_STEP: Final = ("gpu", "iteration")


def candidates(run: Run, view: View) -> Answer:
    """The other runs that are open, and the same scope on other GPUs and in other iterations."""
    tree = run.tree(view.order)
    own_ns = _time_of(run, view.order, view.path)
    found: list[tuple[str, Baseline, int]] = []
    for name, other in run.others.items():
        try:
            found.append((name, Baseline(name), _time_of(other, view.order, view.path)))
        except NoSuchNode:
            continue
    for depth, (level, label) in enumerate(view.scope):
        if level not in _STEP:
            continue
        for text in tree.children(view.path[:depth]).labels:
            path = (*view.path[:depth], text, *view.path[depth + 1 :])
            if text == label:
                continue
            try:
                time = _time_of(run, view.order, path)
            except NoSuchNode:
                continue
            found.append((f"{level}={text}", Baseline("", path), time))
    times = np.array([time for _, _, time in found], np.int64)
    return Answer(
        level="baseline",
        labels=[label for label, _, _ in found],
        columns=(
            (metric("elapsed_ns"), Values(times)),
            (
                column(
                    "scope_ns_delta",
                    "ns",
                    "Δ time",
                    "The scope's time less that of the row.",
                    signed=True,
                ),
                Values(own_ns - times),
            ),
        ),
        opens=lambda row: replace(view, baseline=found[row][1], sort="", filter="", columns=()),
        headline=(f"{HOW}{'; or take a row with Enter' if found else ''}",),
    )


def _time_of(run: Run, order: tuple[str, ...], path: tuple[str, ...]) -> int:
    """The time of a node; raises NoSuchNode."""
    node = run.tree(order).node(path)
    return int(sum(node.sum(state)[0] for state in STATES))
