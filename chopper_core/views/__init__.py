"""The views, one module each: a question about a node of the tree, and the rows that answer it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from msgspec.structs import replace

from chopper_core.model.address import parse
from chopper_core.model.view import View
from chopper_core.util import plugins
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import bare, one_named
from chopper_core.util.plugins import Plugin

if TYPE_CHECKING:
    from chopper_core.columns import Metric
    from chopper_core.views.spec import ViewModule, ViewSpec

OVERVIEW: Final = "overview"
"""The view that a run opens with."""
WHATIF: Final = "whatif"
"""The view that replays the steps with something changed."""
TREE: Final = "explore"
"""The name of the tree where views are chosen; in addresses it has none."""
PLACES: Final = {
    "0": "Summary",
    "1": "Tree",
    "2": "Timeline",
    "3": "Kernels",
    "4": "Losses",
    "5": "GPUs",
    "6": "Compare",
}
"""Key of each place → its name; keys, positions and names are the same at every size."""


class Tab(NamedTuple):
    """Where a view is: a sub-tab of a place."""

    place: str
    """The key of the place."""
    title: str
    """Its name there: in the header, in choosers, help and docs."""

    @property
    def name(self) -> str:
        """`Kernels · shapes`; `Tree` where it is all of the place's name."""
        place = PLACES[self.place]
        return place if self.title == place.lower() else f"{place} · {self.title}"


VIEWS: Final = {
    OVERVIEW: Tab("0", "summary"),
    "findings": Tab("0", "findings"),
    "live": Tab("0", "live"),
    "icicle": Tab("1", "blocks"),
    "timeline": Tab("2", "timeline"),
    "graph": Tab("2", "critical path"),
    "kernels": Tab("3", "by name"),
    "roofline": Tab("3", "shapes"),
    "lost": Tab("3", "lost"),
    "memchart": Tab("3", "data flow"),
    "losses": Tab("4", "step"),
    "overheads": Tab("4", "compute"),
    "launch": Tab("4", "launch"),
    "comms": Tab("4", "communication"),
    "overlap": Tab("4", "overlap"),
    "pipeline": Tab("4", "pipeline"),
    "ranks": Tab("5", "ranks"),
    "grid": Tab("5", "grid"),
    "heatmap": Tab("5", "heat map"),
    "power": Tab("5", "power"),
    "memory": Tab("5", "memory"),
    "experts": Tab("5", "experts"),
    "cpu": Tab("5", "CPU"),
    "determinism": Tab("5", "steadiness"),
    "compare": Tab("6", "compare"),
    WHATIF: Tab("6", "what if"),
    "throughput": Tab("6", "throughput"),
    "training": Tab("6", "training"),
}
"""Name of each view's module → its place, in the order in which the key opens them in turn.

Names and places suffice for key bindings and completion; the modules cost 5 to 20 ms each to
import, so that each is imported when its specification or its rows are needed.
"""
TABS: Final = dict(
    sorted({TREE: Tab("1", "tree"), **VIEWS}.items(), key=lambda item: item[1].place)
)
"""The tabs of one run, place by place: the tree is a view without a module."""
RUNS: Final = "runs"
"""The view that a set of runs opens with."""
_OF_SETS: Final = plugins.declared("SET_VIEWS")
SET_VIEWS: Final = tuple(_OF_SETS)
"""The views of several runs alone, under Compare; the others show each run of a set in a row."""


def view_module(name: str) -> ViewModule:
    """The module of a view; raises UsageError for an unknown name, DataError where one fails."""
    if name == "info":
        raise UsageError(
            "info isn't a table: `chopper info RUN` prints it, ! in the explorer shows it"
        )
    if name in VIEWS:
        return cast("ViewModule", import_module(f"{__name__}.{name}"))
    if name in _OF_SETS:
        return cast("ViewModule", import_module(_OF_SETS[name]))
    if (plugin := plugin_of(name)) is not None:
        return cast("ViewModule", plugin.load("SPEC", "answer"))
    found = view_name(name)
    if found == TREE:
        raise UsageError(f"{name} isn't a view of its own: an address without view= is the tree")
    return view_module(found)


def view_name(text: str) -> str:
    """The name of a view that people type: of its module, or as the header shows it, in any case,
    or cut; raises UsageError."""
    if text in VIEWS or text in _OF_SETS or text == TREE:
        return text
    for name, tab in TABS.items():
        if bare(text) in (bare(tab.title), bare(tab.name), bare(PLACES[tab.place])):
            return name
    titles = {tab.title: name for name, tab in TABS.items()}
    return one_named("view", text, (*views_of_one_run(), *SET_VIEWS), titles)


def parsed_view(text: str) -> View:
    """The view of an address, its name as people type it; raises UsageError."""
    return with_known_name(parse(text))


def with_known_name(view: View) -> View:
    """A view with the name that its own means; raises UsageError."""
    if not view.name or view.name == "info" or plugin_of(view.name) is not None:
        return view
    name = view_name(view.name)
    return replace(view, name="" if name == TREE else name)


def views_of_one_run() -> tuple[str, ...]:
    return *VIEWS, *plugins.plugins("views")


def plugin_of(name: str) -> Plugin | None:
    """The plugin of a view that Chopper lacks itself."""
    known = name in VIEWS or name in _OF_SETS
    return None if known else plugins.plugins("views").get(name)


def view_spec(name: str) -> ViewSpec:
    return view_module(name).SPEC


def columns_of_view(name: str) -> tuple[Metric, ...]:
    """The columns of a view's rows, and those that its module declares; not those of any table."""
    from chopper_core.columns import METRICS, OTHER_COLUMNS, Metric

    module = view_module(name)
    found = {each.name: each for each in OTHER_COLUMNS.values() if each.rows in module.SPEC.rows}
    for thing in vars(module).values():
        several = thing.values() if isinstance(thing, dict) else (thing,)
        columns = [each for each in several if isinstance(each, Metric)]
        found |= {each.name: each for each in columns if each.name not in METRICS}
    return tuple(found.values())


def view_specs() -> tuple[ViewSpec, ...]:
    return tuple(map(view_spec, VIEWS))
