"""The views, one module each: a question about a node of the tree, and the rows that answer it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from chopper_core.util import plugins
from chopper_core.util.errors import UsageError
from chopper_core.util.plugins import Plugin

if TYPE_CHECKING:
    from chopper_core.views.spec import ViewModule, ViewSpec

OVERVIEW: Final = "overview"
"""The view that a run opens with."""
WHATIF: Final = "whatif"
"""The view that replays the steps with something changed."""
VIEWS: Final = {
    OVERVIEW: "0",
    "icicle": "1",
    "timeline": "2",
    "graph": "2",
    "kernels": "3",
    "roofline": "3",
    "memchart": "3",
    "overheads": "4",
    "launch": "4",
    "throughput": "4",
    "training": "4",
    "ranks": "5",
    "heatmap": "5",
    "grid": "5",
    "comms": "6",
    "overlap": "6",
    "pipeline": "6",
    "power": "7",
    "cpu": "7",
    "determinism": "7",
    "memory": "7",
    "compare": "8",
    "findings": "9",
    WHATIF: "9",
    "live": "0",
}
"""Name of each view's module → the digit that opens it; a digit of several opens them in turn.

Names and digits suffice for key bindings and completion; the modules cost 5 to 20 ms each to
import, so that each is imported when its specification or its rows are needed.
"""
RUNS: Final = "runs"
"""The view that a set of runs opens with."""
_OF_SETS: Final = plugins.declared("SET_VIEWS")
SET_VIEWS: Final = tuple(_OF_SETS)
"""The views of several runs alone; the others show each run of a set in a row."""


def view_module(name: str) -> ViewModule:
    """The module of a view; raises UsageError for an unknown name, DataError where one fails."""
    if name == "info":
        raise UsageError(
            "info isn't a table: `chopper info RUN` prints it, 0 in the explorer shows it"
        )
    if name in VIEWS:
        return cast("ViewModule", import_module(f"{__name__}.{name}"))
    if name in _OF_SETS:
        return cast("ViewModule", import_module(_OF_SETS[name]))
    if (plugin := plugin_of(name)) is not None:
        return cast("ViewModule", plugin.load("SPEC", "answer"))
    raise UsageError(f"unknown view {name!r}; the views are {', '.join(views_of_one_run())}")


def views_of_one_run() -> tuple[str, ...]:
    return *VIEWS, *plugins.plugins("views")


def plugin_of(name: str) -> Plugin | None:
    """The plugin of a view that Chopper lacks itself."""
    known = name in VIEWS or name in _OF_SETS
    return None if known else plugins.plugins("views").get(name)


def view_spec(name: str) -> ViewSpec:
    return view_module(name).SPEC


def view_specs() -> tuple[ViewSpec, ...]:
    return tuple(map(view_spec, VIEWS))
